/* SPDX-License-Identifier: Apache-2.0 */
/* The place of every tensor of every micro-batch; used by lists.c only. */
#ifndef OPI_SLOTS_H
#define OPI_SLOTS_H

#include "partition/lists/lists.h"

/* One micro-batch of one cell. */
typedef struct opi_occurrence {
  uint64_t t0, t1; /* modelled ns during which it holds memory */
  uint64_t offset_bytes;
  uint32_t rank;     /* of its stage */
  uint32_t lies_on;  /* rank whose buffer holds it */
  uint32_t home;     /* occurrence whose memory holds it (a tensor between stages of one rank, rows
                        of a tensor of the same stage, one that is written in place) */
  uint32_t previous; /* around the circle: occurrence that had the slot before */
  uint32_t before;   /* else: previous owners of its bytes, index in opi_slots.before */
  uint32_t from, to; /* else: first and last action of its rank that hold it; the list's own length:
                        to the end */
  uint32_t first_action; /* first action of its rank that touches it; received: its first reader */
  uint32_t last_action;
  uint32_t n_slots; /* of its pool; around the circle */
} opi_occurrence;

/* A previous owner of some of an occurrence's bytes. */
typedef struct opi_before {
  uint32_t occurrence, next; /* next: OPIPE_NONE at the last */
} opi_before;

/* An index and its start; for qsort by time, then index. */
typedef struct opi_timed {
  uint64_t t0;
  uint32_t index;
} opi_timed;
int opi_by_time(const void *a, const void *b);

typedef struct opi_slots {
  const opi_piece_plan *plan;
  const opi_cut *cut;         /* of the first class */
  const opi_cut *const *cuts; /* [n_classes] */
  const opi_times *times;
  const uint32_t *alignment;              /* [n_ranks] */
  opi_occurrence *occurrences;            /* [n_cells * n_microbatches], made here */
  opi_before *before;                     /* [n_before] made here */
  uint64_t *boundary_bytes, *stash_bytes; /* [n_ranks] filled */
  uint32_t n_classes, n_before, room_before;
  bool reference; /* no two occurrences share a slot */
  bool strict;    /* receives are posted where their message is made, by the clock */
  bool direct;    /* a tensor read only on other ranks is made at one reader's place */
  opipe_error *err;
} opi_slots;

opipe_status opi_slots_build(opi_slots *slots, opi_arena *scratch);
/* pack.c: offsets of tensors that begin and end with a mini-batch. */
opipe_status opi_slots_pack(opi_slots *slots, opi_arena *scratch);
/* evaluated.c: offsets of outputs that only evaluations make, once all others have their places. */
opipe_status opi_slots_evaluated(opi_slots *slots, opi_arena *scratch);
/* Whether the cell has a place elsewhere: see opi_cell.held. */
static inline bool opi_slots_held(const opi_slots *slots, uint32_t cell) {
  return slots->cut->cells[cell].held;
}
/* Whether the cell is such an output. The reference shares no memory. */
static inline bool opi_slots_apart(const opi_slots *slots, uint32_t cell) {
  return !slots->reference && opi_cell_is_evaluated(slots->cut, &slots->cut->cells[cell]);
}

#endif /* OPI_SLOTS_H */
