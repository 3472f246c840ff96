/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in place: a member's sum lies where its own values were, if nothing else reads these.
 *
 *   stretch ─ makes a ──► a, received at the sum ──► sum ──► b ──► read by the next stretch
 *             a, its twin at the sum, and b: one place
 */
#include "loader/ops/collective.h"
#include "partition/lists/slots.h"

static size_t occurrence(const opi_slots *s, uint32_t cell, uint32_t m) {
  return (size_t)cell * s->plan->n_microbatches + m;
}

/* Whether the sum alone reads the values, which a stretch of the member makes. */
static bool is_read_once(const opi_slots *s, uint32_t in, uint32_t m) {
  const opi_cell *cell = &s->cut->cells[in];
  if (cell->source != OPI_CELL_RECEIVED || cell->n_routes != 1 || cell->first_out != OPIPE_NONE)
    return false;
  const opi_route *route = &s->cut->routes[cell->route];
  const opi_cell *made = &s->cut->cells[route->src_cell];
  const opi_occurrence *home = &s->occurrences[occurrence(s, route->src_cell, m)];
  return made->source == OPI_CELL_MADE && made->output == OPIPE_NONE && made->state == 0 &&
         (made->readers & ~(1u << made->phase)) == 0 && made->first_out == cell->route &&
         route->next_out == OPIPE_NONE && (cell->readers & (cell->readers - 1)) == 0 &&
         home->home == OPIPE_NONE &&
         s->occurrences[occurrence(s, in, m)].home == occurrence(s, route->src_cell, m);
}

static bool is_alike(const opi_slots *s, uint32_t in, uint32_t out) {
  for (uint32_t k = 0; k < s->n_classes; ++k) {
    if (s->cuts[k]->cells[in].n_bytes != s->cuts[k]->cells[out].n_bytes)
      return false;
  }
  return true;
}

static void place(opi_slots *s, uint32_t in, uint32_t out, uint32_t m) {
  opi_occurrence *to = &s->occurrences[occurrence(s, out, m)];
  const opi_cell *cell = &s->cut->cells[out];
  if (to->home == OPIPE_NONE && cell->output == OPIPE_NONE && is_alike(s, in, out) &&
      is_read_once(s, in, m))
    to->home = (uint32_t)occurrence(s, in, m);
}

/* Values may be added up twice, so each is the home of one sum at most. */
static bool is_taken(const opi_group_meeting *meeting, uint32_t i, uint32_t member) {
  for (uint32_t k = 0; k < meeting->n_values; ++k) {
    if (k != i && meeting->values[k].in_cell[member] == meeting->values[i].in_cell[member])
      return true;
  }
  return false;
}

void opi_slots_sum_in_place(opi_slots *s) {
  const uint32_t width = opi_plan_width(s->plan->whole);
  for (uint32_t k = 0; k < s->cut->n_meetings && !s->reference; ++k) {
    const opi_group_meeting *meeting = &s->cut->meetings[k];
    for (uint32_t i = 0; i < meeting->n_values * width; ++i) {
      const opi_group_value *value = &meeting->values[i / width];
      const uint32_t in = value->in_cell[i % width], out = value->out_cell[i % width];
      if (value->kind != OPI_COLLECTIVE_SUM || out == OPIPE_NONE ||
          is_taken(meeting, i / width, i % width))
        continue;
      for (uint32_t m = 0; m < s->plan->n_microbatches; ++m)
        place(s, in, out, m);
    }
  }
}

/* A sum keeps its home for as long as it is read. */
void opi_slots_follow_sums(opi_slots *s) {
  const uint32_t n_mb = s->plan->n_microbatches;
  for (size_t i = 0; i < (size_t)s->cut->n_cells * n_mb; ++i) {
    const opi_occurrence *sum = &s->occurrences[i];
    const opi_cell *cell = &s->cut->cells[i / n_mb];
    if (cell->source != OPI_CELL_MADE || sum->home == OPIPE_NONE ||
        s->cut->cells[sum->home / n_mb].stage != cell->stage) /* else a reader's, in place */
      continue;
    for (uint32_t to = sum->home; to != OPIPE_NONE; to = s->occurrences[to].home) {
      opi_occurrence *home = &s->occurrences[to];
      if (s->times->start[sum->last_action] > s->times->start[home->last_action])
        home->last_action = sum->last_action;
      home->t1 = sum->t1 > home->t1 ? sum->t1 : home->t1;
    }
  }
}
