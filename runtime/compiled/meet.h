/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tensor groups: what the ranks of a group give and get at the meetings of a shape's
 * lists (opi_list_meeting.values).
 *
 *   meeting ── opi_meet, one per rank of its group ── collects, one after the other
 *   group   ── opi_group_end, one per rank: a set of ranks that meet
 *
 * A rank that comes to a sum (SUM) notes it as its last coming one and goes on; comings are served
 * in their order, between its other steps, until the rank waits for one (AWAIT).
 */
#ifndef OPI_MEET_H
#define OPI_MEET_H

#include "partition/lists/lists.h"
#include "runtime/device/device.h"

/* A rank's end of a group. Its thread writes it. */
typedef struct opi_group_end {
  opipe_collective *collective; /* NULL: not open, as in the reference */
  opipe_event *ready;           /* NULL: the device is synchronous */
  opipe_event *done[2];         /* of collects in turn, so that a rank may wait for one while the
                                   next travels; NULL: the same */
  uint64_t due[2];              /* 1 + the collect whose `done` its queue does not wait for yet; 0:
                                   none */
  const uint32_t *ranks;        /* [n_ranks] members in their order */
  uint32_t n_ranks;
  uint64_t round;          /* collects that have ended */
  _Atomic uint64_t n_come; /* sums that the rank has come to; others read it */
  char pad_[128];          /* keeps the next rank's end off this one's cache lines */
} opi_group_end;

/* A rank's part in a meeting. */
typedef struct opi_meet {
  opi_group_end *end;   /* NULL: the rank is not here */
  opipe_collect *calls; /* [n_calls] without events */
  uint32_t n_calls;
  uint64_t over; /* collects of its group that had ended with its last one */
} opi_meet;

/* A sum that a rank has come to and that has not ended for it. */
typedef struct opi_coming {
  opi_meet *meet;
  uint32_t step; /* of the list */
  uint32_t call; /* collects that have ended */
  bool asked;    /* `ready` is recorded for the collect at hand */
  bool given;    /* the transport has taken it */
} opi_coming;

/* A rank's comings of a shape: a ring. */
typedef struct opi_comings {
  opi_coming *list; /* [room] 0: the rank is in no group */
  uint32_t first, n, room;
} opi_comings;

/* All meetings of a shape. */
typedef struct opi_meets {
  opi_meet *list;      /* by meeting, then by member */
  uint32_t *first;     /* [n_meetings + 1] into list */
  opi_group_end *ends; /* [n_ends] all that are here */
  uint32_t *rank_of;   /* [n_ends] */
  uint32_t n_ends;
  uint64_t *n_bytes;   /* [n_ends] of the longest list */
  uint32_t *n_regions; /* [n_ends] */
  /* the reference adds up here, in host memory: values in fp32 or fp64, a whole tensor, a part */
  char *sums, *whole, *part;
} opi_meets;

#endif /* OPI_MEET_H */
