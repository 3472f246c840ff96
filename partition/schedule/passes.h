/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the passes and the proof: the replica of every unit, dense indices of events, and text
 * for messages.
 *
 * A *unit* is one (stage, share, micro-batch, slice, part); a share is a replica if replicas share
 * micro-batches, else 0. Backwards, whole or halves, use parts 0 .. n_parts-1 of a slice, forwards
 * only part 0. An event is a unit and a phase. */
#ifndef OPI_SCHEDULE_PASSES_H
#define OPI_SCHEDULE_PASSES_H

#include "partition/schedule/actions.h"

typedef struct opi_index {
  const opi_problem *problem;
  uint32_t n_shares;   /* largest of stage_shares, else 1 */
  uint32_t *replica;   /* [n_stages * M] the replica that computes it; OPIPE_NONE: none */
  uint32_t *in_first;  /* [n_stages + 1] into in_edges: edges that end at the stage, by src */
  uint32_t *out_first; /* [n_stages + 1] into out_edges: edges that begin at the stage, by dst */
  uint32_t *in_edges, *out_edges;
  uint64_t n_units;
} opi_index;

/* Checks the problem itself (ranges, edges, sizes) and builds the index in `arena`; replicas are
 * taken from the list's computes (any replica in range). */
opipe_status opi_index_build(const opi_problem *problem, const opi_do_list *list, opi_arena *arena,
                             opi_index *out_index, opipe_error *err);

static inline uint32_t opi_problem_rank(const opi_problem *p, uint32_t stage, uint32_t replica) {
  return p->instance_rank[stage * p->n_replicas + replica];
}

static inline uint64_t opi_unit(const opi_index *x, uint32_t stage, uint32_t replica,
                                uint32_t microbatch, uint32_t slice, uint32_t part) {
  const opi_problem *p = x->problem;
  const uint32_t share = p->stage_shares == NULL ? 0 : replica;
  return ((((uint64_t)stage * x->n_shares + share) * p->n_microbatches + microbatch) * p->n_slices +
          slice) *
             p->n_parts +
         part;
}

/* Replicas of `stage` that compute `microbatch` and share rows with replica `with` of stage
 * `other`: [*out_first, *out_first + count). 0 if there are none. */
uint32_t opi_peers(const opi_index *x, uint32_t stage, uint32_t microbatch, uint32_t other,
                   uint32_t with, uint32_t *out_first);

/* An input of a compute action: a phase of a unit. */
typedef struct opi_need {
  uint32_t stage, replica; /* replica OPIPE_NONE: no replica computes it */
  uint32_t slice, part, phase;
  uint32_t edge; /* the problem's edge that brings it; OPIPE_NONE: it is of the same stage */
} opi_need;
/* Sees one input; false: stop. */
typedef bool (*opi_need_fn)(void *ctx, const opi_do *a, const opi_need *need);
/* Shows all inputs in a fixed order: a forward reads the slice before and its stage's in-edges; a
 * backward for the input reads its forward, the slice after and the gradients of its out-edges; R
 * and W follow their own rank's work. Returns whether all were shown. */
bool opi_each_need(const opi_index *x, const opi_do *a, opi_need_fn fn, void *ctx);

/* Whether the item is the second of an overlapping pair, on a rank whose list begins at `first`. */
static inline bool opi_is_second(const opi_do_list *list, uint32_t first, uint32_t item) {
  const opi_do *before = &list->items[item == first ? item : item - 1];
  return item > first && opi_do_is_compute(before->kind) &&
         (before->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
}

/* ---- stash.c ---- */

/* Sees the rank's stash change at `item` by n_parts (negative: fewer) parts of the slice that
 * action `of` concerns. False: stop. */
typedef bool (*opi_stash_fn)(void *ctx, uint32_t item, const opi_do *of, int32_t n_parts);
/* Shows all changes of a rank's stash. A forward and a RELOAD take a slice, at their start; a B or
 * W gives its part, at its end; an OFFLOAD gives the slice when the rank reaches the second compute
 * after it (a pair is one), as the transfer runs until then. Returns whether all were shown. */
bool opi_each_stash(const opi_problem *p, const opi_do_list *list, uint32_t rank, opi_stash_fn fn,
                    void *ctx);

/* ---- group_place.c: for lists whose ranks begin where list->rank_first says ---- */

/* The compute to which a collective of a pass belongs; OPIPE_NONE: it stands beside none. */
uint32_t opi_group_pass(const opi_do_list *list, uint32_t rank, uint32_t item);
/* Whether the pass already has the same collective earlier in the list. */
bool opi_group_repeats(const opi_do_list *list, uint32_t rank, uint32_t item);
/* Kinds of the collectives around a compute: bits 1 << OPI_DO_*. */
uint32_t opi_groups_around(const opi_do_list *list, uint32_t rank, uint32_t item);

/* ---- groups.c ---- */

/* Whether the problem needs collectives that opi_pass_reduce does not place. */
bool opi_problem_has_groups(const opi_problem *p);
/* Whether the stage has a data group of two or more: replicas, or copies of all ranks. */
bool opi_stage_sums(const opi_problem *p, uint32_t stage);

/* The number of actions of these kinds, given as bits 1 << OPI_DO_*. */
uint32_t opi_do_list_count(const opi_do_list *list, uint32_t kinds);

/* Makes a list rank by rank: `fn` fills `out` with one rank of the new list. n_items: as in
 * opi_do_list_create. */
typedef opipe_status (*opi_rank_fn)(void *ctx, const opi_do_list *list, uint32_t rank,
                                    opi_do_list *out, opipe_error *err);
opipe_status opi_each_rank(const opi_do_list *list, opi_rank_fn fn, void *ctx, uint64_t n_items,
                           const opipe_allocator *allocator, opi_do_list **out_list,
                           opipe_error *err);

/* The place of an action, for messages: "rank 1, step 5: 2F0". Steps count from 0. */
typedef struct opi_do_place {
  char text[96];
} opi_do_place;
opi_do_place opi_place_of(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                          uint32_t item);

/* ---- cycle.c ---- */

/* Why a rank is blocked: its waiting item, and the item that would release it (OPIPE_NONE: there is
 * none). */
typedef struct opi_wait {
  uint32_t item, maker;
} opi_wait;
typedef opi_wait (*opi_wait_fn)(const void *ctx, uint32_t rank);
/* Refuses a deadlock: "`what`: rank 1, step 5: 2F0 waits for rank 0, step 3: 1F0; ...", the cycle
 * that the rank's wait leads to, shortened by "; and N more". `fn` says for every blocked rank why
 * it waits. Errors: INVALID, always; NOMEM. */
opipe_status opi_tell_cycle(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                            opi_wait_fn fn, const void *ctx, const char *what, opi_arena *arena,
                            opipe_error *err);

#endif /* OPI_SCHEDULE_PASSES_H */
