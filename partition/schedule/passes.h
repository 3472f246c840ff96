/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes and the proof share: which replica computes what, dense indices of events, and
 * text for messages.
 *
 * A *unit* is one (stage, share, micro-batch, slice, part); a share is a replica where
 * micro-batches are cut between replicas, else 0. Forwards and whole backwards of a slice use part
 * 0 .. n_parts-1 alike (forwards part 0 alone). An event is a unit and a phase.
 */
#ifndef OPI_SCHEDULE_PASSES_H
#define OPI_SCHEDULE_PASSES_H

#include "partition/schedule/actions.h"

typedef struct opi_index {
  const opi_problem *problem;
  uint32_t n_shares;   /* largest of stage_shares, else 1 */
  uint32_t *replica;   /* [n_stages * M] that computes it, OPIPE_NONE: none */
  uint32_t *in_first;  /* [n_stages + 1] into in_edges: edges that end there, by src */
  uint32_t *out_first; /* [n_stages + 1] into out_edges: edges that begin there, by dst */
  uint32_t *in_edges, *out_edges;
  uint64_t n_units;
} opi_index;

/* Checks the problem itself (ranges, edges, sizes) and builds the index in `arena`; the replicas
 * are read off the list's computes (of any replica in range). */
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

/* Replicas of `stage` that compute `microbatch`, and read or write rows that replica `with` of
 * stage `other` has: [*out_first, *out_first + count). 0 where nobody does. */
uint32_t opi_peers(const opi_index *x, uint32_t stage, uint32_t microbatch, uint32_t other,
                   uint32_t with, uint32_t *out_first);

/* Something that a compute action reads: a phase of a unit. */
typedef struct opi_need {
  uint32_t stage, replica; /* replica OPIPE_NONE: nobody computes it */
  uint32_t slice, part, phase;
  uint32_t edge; /* of the problem that brings it; OPIPE_NONE: of the same stage */
} opi_need;
/* Sees one of them; false: that is enough. */
typedef bool (*opi_need_fn)(void *ctx, const opi_do *a, const opi_need *need);
/* Shows all of them: a forward reads the slice before and what its stage's edges bring, a backward
 * for the input its forward, the slice behind and the gradients that edges bring back; R and W
 * follow their own rank's work. In a fixed order. Returns whether all were seen. */
bool opi_each_need(const opi_index *x, const opi_do *a, opi_need_fn fn, void *ctx);

/* Is it the second of a pair that overlaps, on a rank whose list begins at `first`? */
static inline bool opi_is_second(const opi_do_list *list, uint32_t first, uint32_t item) {
  const opi_do *before = &list->items[item == first ? item : item - 1];
  return item > first && opi_do_is_compute(before->kind) &&
         (before->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
}

/* ---- stash.c ---- */

/* A change of what a rank keeps, when it comes to `item`: so many parts of the slice that action
 * `of` is about, of n_parts, more or fewer. False: that is enough. */
typedef bool (*opi_stash_fn)(void *ctx, uint32_t item, const opi_do *of, int32_t n_parts);
/* Shows all of a rank's: a forward and a RELOAD take a slice (at their start), a B or W gives its
 * part (at its end), and an OFFLOAD the slice, when the rank comes to the second compute behind it
 * (a pair is one): until then it leaves. Returns whether all were seen. */
bool opi_each_stash(const opi_problem *p, const opi_do_list *list, uint32_t rank, opi_stash_fn fn,
                    void *ctx);

/* ---- group_place.c: of lists whose ranks begin where list->rank_first says ---- */

/* The compute that a collective of a pass belongs to; OPIPE_NONE: it does not stand at one. */
uint32_t opi_group_pass(const opi_do_list *list, uint32_t rank, uint32_t item);
/* Has its pass the same one before it in the list? */
bool opi_group_repeats(const opi_do_list *list, uint32_t rank, uint32_t item);
/* Kinds of the collectives around a compute: bits 1 << OPI_DO_*. */
uint32_t opi_groups_around(const opi_do_list *list, uint32_t rank, uint32_t item);

/* ---- groups.c ---- */

/* Does the problem ask for collectives that opi_pass_reduce does not place? */
bool opi_problem_has_groups(const opi_problem *p);
/* Has the stage a data group of two or more: replicas, or copies of all ranks? */
bool opi_stage_sums(const opi_problem *p, uint32_t stage);

/* Actions of these kinds: bits 1 << OPI_DO_*. */
uint32_t opi_do_list_count(const opi_do_list *list, uint32_t kinds);

/* Makes a list by `fn`, which fills `out` with one rank of the new list. n_items: as
 * opi_do_list_create's. */
typedef opipe_status (*opi_rank_fn)(void *ctx, const opi_do_list *list, uint32_t rank,
                                    opi_do_list *out, opipe_error *err);
opipe_status opi_each_rank(const opi_do_list *list, opi_rank_fn fn, void *ctx, uint64_t n_items,
                           const opipe_allocator *allocator, opi_do_list **out_list,
                           opipe_error *err);

/* Where an action stands, for messages: "rank 1, step 5: 2F0". Steps count from 0. */
typedef struct opi_do_place {
  char text[96];
} opi_do_place;
opi_do_place opi_place_of(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                          uint32_t item);

/* ---- cycle.c ---- */

/* Why a rank stands still: its item that waits, and the one that would let it go on (OPIPE_NONE:
 * there is none). */
typedef struct opi_wait {
  uint32_t item, maker;
} opi_wait;
typedef opi_wait (*opi_wait_fn)(const void *ctx, uint32_t rank);
/* The refusal of a deadlock: "`what`: rank 1, step 5: 2F0 waits for rank 0, step 3: 1F0; ...", the
 * circle that the rank's waiting leads to, cut with "; and N more". `fn` says of every rank that
 * stands still why. Errors: INVALID, always; NOMEM. */
opipe_status opi_tell_cycle(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                            opi_wait_fn fn, const void *ctx, const char *what, opi_arena *arena,
                            opipe_error *err);

#endif /* OPI_SCHEDULE_PASSES_H */
