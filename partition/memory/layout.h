/* SPDX-License-Identifier: Apache-2.0 */
/* Where every boundary buffer of a rank lies: offsets fixed before the first step, the same numbers
 * for prediction and for allocation.
 *
 * One boundary buffer per rank holds, each at a multiple of the device's alignment and in this
 * order: for every stage of the rank the slots of what it receives from other ranks
 * (opi_route_slots), of what it receives from stages of the same rank (as many, written in place by
 * the producer), its request inputs (one each), and its outputs that no route in direct mode covers
 * (one each; as many as their routes have). One arena per rank, as large as its largest program's
 * arena, serves all its programs in turn.
 */
#ifndef OPI_LAYOUT_H
#define OPI_LAYOUT_H

#include "partition/program/cut.h"

typedef struct opi_slot {
  uint64_t
      offset_bytes; /* in the boundary buffer of `rank`; slot k lies k * stride_bytes further */
  uint64_t stride_bytes; /* size rounded up to the alignment */
  uint32_t rank;
  uint32_t depth;
} opi_slot;

typedef struct opi_rank_layout {
  uint64_t boundary_bytes;
  uint64_t arena_bytes;
  uint64_t alignment;
} opi_rank_layout;

typedef struct opi_layout {
  opi_arena arena;
  opi_rank_layout *ranks; /* [n_ranks] */
  opi_slot *cells; /* [n_cells of the cut] REQUEST and RECEIVED: where the program reads; MADE:
                      where it writes. With a direct transport a made tensor is written into the
                      first route's slots on the receiving rank */
  uint32_t n_ranks;
} opi_layout;

/* Slots of a route between neighbouring stages: plan->depth, or one per micro-batch when a rank has
 * several stages. */
uint32_t opi_route_depth(const opi_plan *plan);
/* Slots of any route: one that skips stages has at least one more for each of them, since in a
 * stream that many micro-batches lie between its ends; doubled until there are enough, so that the
 * slots of all of a stage's tensors come round together. */
uint32_t opi_route_slots(const opi_plan *plan, const opi_route *route);
/* The route whose slots a made cell is written into (same rank first, then, if direct, the first
 * route); OPIPE_NONE: it has slots of its own. */
uint32_t opi_home_route(const opi_plan *plan, const opi_cut *cut, const opi_cell *cell,
                        bool direct);

/* arena_bytes [n_stages]: program_info.arena_bytes of each stage's program; alignment [n_ranks];
 * direct: transport writes in place. */
opipe_status opi_layout_build(const opi_plan *plan, const opi_cut *cut, const uint64_t *arena_bytes,
                              const uint32_t *alignment, bool direct,
                              const opipe_allocator *allocator, opi_layout **out_layout,
                              opipe_error *err);
void opi_layout_free(opi_layout *layout); /* accepts NULL */

#endif /* OPI_LAYOUT_H */
