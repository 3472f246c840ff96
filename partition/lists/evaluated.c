/* SPDX-License-Identifier: Apache-2.0 */
/* Places outputs that only an evaluation makes. A training step has no bytes for them: they reuse
 * bytes of tensors that an evaluation does not touch (gradients, and stashes of their own stages);
 * the rest is placed after these.
 *
 *   training    |in|  stash of F 0  |loss|out|  gradients  |
 *   evaluation  |in|  an output     |loss|out|             |
 *
 * An output has its bytes from its program to the STORE right after it, so all micro-batches and
 * all stages of a rank share them. */
#include <stdlib.h>

#include "partition/lists/slots.h"

typedef struct taken {
  uint64_t at, end; /* bytes */
} taken;

typedef struct placing {
  opi_slots *s;
  bool *touched;   /* [n_cells] */
  uint64_t *below; /* [n_cells] for outputs of evaluations: bytes of the stage's other outputs
                      before it */
  taken *blocks;   /* [occurrences] */
  uint64_t align;
} placing;

static bool read_forwards(const opi_cell *cell) {
  return (cell->readers & 1u << OPI_PHASE_F) != 0;
}

/* ---- cells that evaluations touch ---- */

/* Whether the cell travels in an evaluation. Around a circle: whether it may be in flight between
 * bodies. */
static bool travels(const opi_slots *s, const opi_cell *cell, const opi_route *route,
                    const opi_cell *to) {
  return route->within ? read_forwards(to) : s->times->periodic || cell->phase == OPI_PHASE_F;
}

static bool is_touched(const opi_slots *s, const opi_cell *cell, bool evaluates) {
  const opi_cut *cut = s->cut;
  if (cell->source == OPI_CELL_REQUEST)
    return true;
  if (cell->source == OPI_CELL_RECEIVED)
    return travels(s, cell, &cut->routes[cell->route], cell);
  for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = cut->routes[r].next_out) {
    if (travels(s, cell, &cut->routes[r], &cut->cells[cut->routes[r].dst_cell]))
      return true;
  }
  return cell->phase == OPI_PHASE_F &&
         (cell->output != OPIPE_NONE || cell->state != 0 || !evaluates);
}

/* Marks all touched cells; false: no output is made by evaluations alone. */
static bool find_touched(const placing *p) {
  const opi_slots *s = p->s;
  bool any = false;
  for (uint32_t stage = 0; stage < s->cut->n_stages; ++stage) {
    const bool evaluates = opi_stage_evaluates(s->cut, stage);
    for (uint32_t c = s->cut->cell_first[stage]; c < s->cut->cell_first[stage + 1]; ++c)
      p->touched[c] = is_touched(s, &s->cut->cells[c], evaluates);
    any = any || evaluates;
  }
  return any;
}

/* ---- one rank ---- */

static int by_place(const void *left, const void *right) {
  const taken *a = left, *b = right;
  return a->at != b->at ? (a->at < b->at ? -1 : 1) : a->end < b->end ? -1 : a->end > b->end;
}

/* The lowest place for n_bytes that overlaps none of blocks [n]. */
static uint64_t lowest_gap(taken *blocks, uint32_t n, uint64_t n_bytes) {
  uint64_t at = 0;
  qsort(blocks, n, sizeof *blocks, by_place);
  for (uint32_t i = 0; i < n; ++i) {
    if (blocks[i].at >= at && blocks[i].at - at >= n_bytes)
      break;
    at = blocks[i].end > at ? blocks[i].end : at;
  }
  return at;
}

static uint32_t list_touched(const placing *p, uint32_t rank) {
  const opi_slots *s = p->s;
  const uint32_t n_mb = s->plan->n_microbatches;
  uint32_t n = 0;
  for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
    for (uint32_t m = 0; p->touched[c] && !opi_slots_apart(s, c) && m < n_mb; ++m) {
      const opi_occurrence *o = &s->occurrences[(size_t)c * n_mb + m];
      const uint64_t n_bytes = s->cuts[opi_row_class_of(s->plan->whole, m)]->cells[c].n_bytes;
      const taken block = {o->offset_bytes, o->offset_bytes + opi_align_up(n_bytes, p->align)};
      if (o->rank == rank && o->home == OPIPE_NONE)
        p->blocks[n++] = block;
    }
  }
  return n;
}

static bool is_on(const opi_slots *s, uint32_t c, uint32_t m, uint32_t rank) {
  return s->occurrences[(size_t)c * s->plan->n_microbatches + m].rank == rank;
}

/* Lines up the outputs that each of the rank's stages makes in evaluations alone; *out_bytes: the
 * most of any stage. False: beyond 2^64. */
static bool line_up(const placing *p, uint32_t rank, uint64_t *out_bytes) {
  const opi_slots *s = p->s;
  uint64_t sum = 0;
  *out_bytes = 0;
  for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
    uint64_t most = 0;
    uint32_t m = 0;
    sum = c == s->cut->cell_first[s->cut->cells[c].stage] ? 0 : sum;
    while (opi_slots_apart(s, c) && m < s->plan->n_microbatches && !is_on(s, c, m, rank))
      ++m;
    if (!opi_slots_apart(s, c) || m == s->plan->n_microbatches)
      continue;
    for (uint32_t k = 0; k < s->n_classes; ++k)
      most = s->cuts[k]->cells[c].n_bytes > most ? s->cuts[k]->cells[c].n_bytes : most;
    p->below[c] = sum;
    if (opi_add_u64(most, p->align - 1, &most) || opi_add_u64(sum, most & ~(p->align - 1), &sum))
      return false;
    *out_bytes = sum > *out_bytes ? sum : *out_bytes;
  }
  return true;
}

static opipe_status place_on(placing *p, uint32_t rank) {
  opi_slots *s = p->s;
  const uint32_t n_mb = s->plan->n_microbatches;
  const uint64_t have = s->boundary_bytes[rank] + s->stash_bytes[rank];
  uint64_t n_bytes = 0, at = 0, end = 0;
  p->align = s->alignment[rank] == 0 ? 1 : s->alignment[rank];
  bool fits = line_up(p, rank, &n_bytes);
  if (fits && n_bytes == 0)
    return OPIPE_OK;
  if (fits) {
    at = lowest_gap(p->blocks, list_touched(p, rank), n_bytes);
    fits = !opi_add_u64(at, n_bytes, &end);
  }
  if (!fits) {
    return opi_fail(s->err, OPIPE_E_LIMIT, "outputs of evaluations on rank %u exceed 2^64 bytes",
                    rank);
  }
  for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
    for (uint32_t m = 0; opi_slots_apart(s, c) && m < n_mb; ++m) {
      if (is_on(s, c, m, rank))
        s->occurrences[(size_t)c * n_mb + m].offset_bytes = at + p->below[c];
    }
  }
  s->boundary_bytes[rank] += end > have ? end - have : 0;
  return OPIPE_OK;
}

opipe_status opi_slots_evaluated(opi_slots *s, opi_arena *scratch) {
  const size_t n_cells = s->cut->n_cells, n = n_cells * s->plan->n_microbatches;
  placing p = {.s = s,
               .touched = OPI_ARENA_ARRAY(scratch, bool, n_cells),
               .below = OPI_ARENA_ARRAY(scratch, uint64_t, n_cells),
               .blocks = OPI_ARENA_ARRAY(scratch, taken, n)};
  if (p.touched == NULL || p.below == NULL || p.blocks == NULL)
    return opi_fail_nomem(s->err, n * sizeof *p.blocks, "slots");
  if (s->reference || !find_touched(&p))
    return OPIPE_OK;
  for (uint32_t rank = 0; rank < s->plan->n_ranks; ++rank)
    OPI_TRY(place_on(&p, rank));
  return OPIPE_OK;
}
