/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that ranks hold from request to request, at one place for all shapes: pages of keys and
 * values. No message carries them, and no slot is kept for them. */
#include <string.h>

#include "runtime/compiled/build.h"

/* The cell's entry; OPIPE_NONE: there is none yet. */
static uint32_t find(const opi_shapes *shapes, const opi_cell *cell, uint32_t replica) {
  for (uint32_t h = 0; h < shapes->n_residents; ++h) {
    const opi_resident *held = &shapes->residents[h];
    if (held->stage == cell->stage && held->replica == replica &&
        strcmp(held->name, cell->name) == 0)
      return h;
  }
  return OPIPE_NONE;
}

/* Takes one block on every rank here. The cells' names are the plan's own shape's. */
static opipe_status take(opi_compiled *t, opipe_error *err) {
  opi_setup *s = t->setup;
  opi_shapes *shapes = s->shapes;
  const opi_cut *cut = t->model->cuts[0];
  const opi_piece_plan *pieces = t->pieces;
  uint64_t *bytes = OPI_ARENA_ARRAY(&t->arena, uint64_t, s->plan->decided.n_ranks);
  shapes->residents = OPI_ARENA_ARRAY(&s->arena, opi_resident, (size_t)cut->n_cells * pieces->n_replicas);
  shapes->resident_blocks = OPI_ARENA_ARRAY(&s->arena, opi_block, s->plan->decided.n_ranks);
  if (bytes == NULL || shapes->residents == NULL || shapes->resident_blocks == NULL)
    return opi_fail_nomem(err, cut->n_cells * sizeof *shapes->residents, "pages");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    for (uint32_t k = 0; cell->held && k < pieces->n_replicas; ++k) {
      const uint32_t rank = opi_piece_rank(pieces, cell->stage, k);
      if (rank == OPIPE_NONE)
        continue;
      const uint64_t align = s->plan->decided.devices[rank].alignment;
      shapes->residents[shapes->n_residents++] = (opi_resident){.name = cell->name,
                                                  .stage = cell->stage,
                                                  .replica = k,
                                                  .rank = rank,
                                                  .offset_bytes = bytes[rank],
                                                  .n_bytes = cell->n_bytes};
      bytes[rank] += opi_align_up(cell->n_bytes, align == 0 ? 1 : align);
    }
  }
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    if (bytes[r] != 0) {
      OPI_TRY(opi_rank_take(&s->ranks[r], bytes[r], OPIPE_BUFFER_STATE,
                            "the pages of keys and values", &shapes->resident_blocks[r], err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_residents_find(opi_compiled *t, opipe_error *err) {
  const opi_cut *cut = t->model->cuts[0];
  const uint32_t n_mb = t->pieces->n_microbatches;
  if (t->setup->plan->rows == NULL)
    return OPIPE_OK;
  if (t->shape->keep)
    OPI_TRY(take(t, err));
  t->resident_of = OPI_ARENA_ARRAY(&t->arena, uint32_t, (size_t)cut->n_cells * n_mb);
  if (t->resident_of == NULL)
    return opi_fail_nomem(err, cut->n_cells * sizeof *t->resident_of, "pages");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    for (uint32_t m = 0; cell->held && m < n_mb; ++m) {
      const uint32_t k = t->lists->replica_of[(size_t)cell->stage * n_mb + m];
      const uint32_t h = find(t->setup->shapes, cell, k);
      if (h == OPIPE_NONE || t->setup->shapes->residents[h].n_bytes != cell->n_bytes) {
        return opi_fail(err, OPIPE_E_INTERNAL,
                        "pages '%s' of stage %u: the plan's own shape has none of %llu bytes",
                        cell->name, cell->stage, (unsigned long long)cell->n_bytes);
      }
      t->resident_of[(size_t)c * n_mb + m] = h;
    }
  }
  return OPIPE_OK;
}

opipe_region opi_resident_region(const opi_compiled *t, uint32_t index) {
  const opi_resident *held = &t->setup->shapes->residents[index];
  return (opipe_region){.buffer = t->setup->shapes->resident_blocks[held->rank].buffer,
                        .offset_bytes = held->offset_bytes,
                        .n_bytes = held->n_bytes};
}

void opi_residents_free(opi_shapes *shapes) {
  opi_setup *s = shapes->setup;
  for (uint32_t i = 0; shapes->resident_blocks != NULL && i < s->n_here; ++i)
    opi_rank_give(&s->ranks[s->here[i]], &shapes->resident_blocks[s->here[i]]);
}
