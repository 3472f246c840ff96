/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over groups of ranks, in the replay: used by replay.c only.
 *
 * A rank comes to a sum and goes on; whoever needs the result waits until all ranks of the group
 * have come. Transports may serve the sums of a rank in the order in which it came to them, so a
 * rank's coming counts only when it has met at every earlier sum whose group shares two ranks with
 * this one's. Two ranks that come to two such sums in different orders wait for each other. */
#ifndef OPI_MEETINGS_H
#define OPI_MEETINGS_H

#include "partition/lists/lists.h"
#include "partition/plan/clock.h"

/* A sum to which a rank has come and which is not yet met. */
typedef struct opi_sum_entry {
  uint32_t meet; /* item * n_meetings + meeting */
  uint32_t step;
  double at;   /* when it counts, as far as known */
  bool counts; /* no earlier sum is in its way */
} opi_sum_entry;

/* The entries of one rank, in the order in which it came. */
typedef struct opi_sum_entries {
  opi_sum_entry *list; /* [room] */
  uint32_t n, room;
} opi_sum_entries;

typedef struct opi_meetings {
  const opi_lists *lists;
  opi_clock *clock;
  opi_arena *arena;
  const opi_link *link; /* NULL: sums take no time */
  uint64_t first_event;
  opi_sum_entries *entries; /* [n_ranks] */
  uint32_t *first;          /* [n_meetings + 1] into starts: one for every rank of the group */
  uint32_t *starts;         /* steps of a rank that begin the sum */
  uint32_t *come;           /* [n_items * first[n_meetings]] of these, steps taken */
  uint32_t *n_counting;     /* [n_items * n_meetings] */
  double *met;              /* the same index: when all had come; below 0: not yet */
  uint32_t *due;            /* [n_ranks] ranks whose entries are to be looked at */
  bool failed;              /* out of memory */
} opi_meetings;

/* Events of the clock from first_event on are those of meetings: n_items * n_meetings. All in
 * `arena`. link: of the ring by which n ranks meet, 2 (n - 1) messages of 1 / n for a sum, n - 1 of
 * the largest part for a gather or scatter; NULL: untimed. */
opipe_status opi_meetings_open(const opi_lists *lists, uint32_t n_items, opi_clock *clock,
                               uint64_t first_event, const opi_link *link, opi_arena *arena,
                               opi_meetings *out, opipe_error *err);
/* The rank takes a step that begins a sum. meeting OPIPE_NONE: nothing. */
void opi_meetings_come(opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting,
                       uint32_t step, double now);
/* Whether the rank has taken all its steps that begin the sum. */
bool opi_meetings_has_come(const opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting);
/* Whether the sum is met; then *io_now is at least its time. Else the rank waits for it. */
bool opi_meetings_await(opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting,
                        double *io_now);
/* The same of all gradients of the rank. */
bool opi_meetings_await_gradients(opi_meetings *m, uint32_t rank, uint32_t item, double *io_now);
/* The first sum of gradients of the rank that is not met; OPIPE_NONE: none. */
uint32_t opi_meetings_missing(const opi_meetings *m, uint32_t rank, uint32_t item);
/* Describes why a sum is not met, up to the rank that has not come to it, which is returned; or
 * the cycle of sums that ranks come to in different orders, and returns OPIPE_NONE. */
uint32_t opi_meetings_describe(const opi_meetings *m, uint32_t item, uint32_t meeting, char *text,
                               size_t room);

#endif /* OPI_MEETINGS_H */
