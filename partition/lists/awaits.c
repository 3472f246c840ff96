/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank waits for the sums of its tensor group to which it has come: in front of the first
 * of its records that reads one of them. Records in between are computed while sums travel. */
#include "partition/lists/lists.h"

typedef struct await_finding {
  const opi_piece_plan *plan;
  const opi_cut *cut;
  const opi_times *t;
  uint32_t a;     /* record at an odd place */
  uint32_t first; /* that reads a sum so far; OPIPE_NONE: none */
  bool at_once;
} await_finding;

/* Notes the readers of a tensor among the passes of a stage. */
static void note_readers(await_finding *f, uint32_t stage, uint32_t readers) {
  const opipe_action *own = &f->plan->actions[f->a];
  const size_t at = ((size_t)stage * f->plan->n_microbatches + own->microbatch) * OPI_PHASES;
  for (uint32_t p = 0; p < OPI_PHASES; ++p) {
    const uint32_t b = (readers & 1u << p) != 0 ? f->t->phase_action[at + p] : f->a;
    if (b == f->a)
      continue;
    const bool later = b != OPIPE_NONE && b > f->a && f->plan->actions[b].rank == own->rank &&
                       opi_action_is_next(&f->plan->actions[b]) == opi_action_is_next(own);
    f->at_once = f->at_once || !later;
    f->first = later && b < f->first ? b : f->first;
  }
}

static void note_cell(await_finding *f, const opi_cell *cell) {
  f->at_once = f->at_once || cell->output != OPIPE_NONE;
  note_readers(f, cell->stage, cell->readers);
  for (uint32_t r = cell->first_out; r != OPIPE_NONE; r = f->cut->routes[r].next_out) {
    const opi_route *route = &f->cut->routes[r];
    note_readers(f, route->dst_stage, f->cut->cells[route->dst_cell].readers);
  }
}

static uint32_t find_one(await_finding *f) {
  const opipe_action *own = &f->plan->actions[f->a];
  const uint32_t phases = opi_program_phases(opi_action_program(own));
  f->first = OPIPE_NONE;
  f->at_once = false;
  for (uint32_t c = f->cut->cell_first[own->stage]; c < f->cut->cell_first[own->stage + 1]; ++c) {
    const opi_cell *cell = &f->cut->cells[c];
    if (cell->source == OPI_CELL_MADE && (phases & 1u << cell->phase) != 0)
      note_cell(f, cell);
  }
  return f->at_once || f->first == OPIPE_NONE ? f->a : f->first;
}

opipe_status opi_times_await(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                             opi_times *io_times, opipe_error *err) {
  if (opi_plan_width(plan->whole) == 1)
    return OPIPE_OK;
  io_times->await_at = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)plan->n_actions + 1);
  if (io_times->await_at == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof(uint32_t), "sums");
  await_finding f = {.plan = plan, .cut = cut, .t = io_times};
  for (f.a = 0; f.a < plan->n_actions; ++f.a)
    io_times->await_at[f.a] = opi_piece_sums(plan, plan->actions[f.a].stage) ? find_one(&f) : f.a;
  return OPIPE_OK;
}
