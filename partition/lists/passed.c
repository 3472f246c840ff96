/* SPDX-License-Identifier: Apache-2.0 */
/* See passed.h. */
#include "partition/lists/passed.h"

#include <string.h>

/* Where a gradient is complete. */
typedef struct position {
  uint32_t index; /* in the last backward's steps */
  double at;
} position;

typedef struct passing {
  const opi_passed_query *from;
  opi_arena *arena;
  uint32_t *steps; /* [n_steps] COMPUTEs of the last backward, rising */
  double *ends;    /* [n_steps] where each ends: its last place, or 1 */
  position *of;    /* [n_slots] */
  uint32_t n_steps;
  opipe_error *err;
} passing;

static const opi_step *step_at(const passing *p, uint32_t step) {
  return &p->from->lists->steps[step];
}

static uint32_t whole_of(const passing *p, const opi_step *step) {
  return p->from->plan->whole_of[step->stage * p->from->plan->n_replicas + step->replica];
}

static const opi_program *program_of(const passing *p, const opi_step *step) {
  const uint32_t c = opi_row_class_of(p->from->plan->whole, step->microbatch);
  return opi_program_of(p->from->cuts[c], step->stage, step->pass);
}

/* Finds the steps of the last backward. Another sum in front of it comes first on all ranks. */
static opipe_status find_steps(passing *p) {
  const opi_step *reduce = step_at(p, p->from->reduce);
  const uint32_t first = p->from->lists->rank_first[p->from->rank];
  uint32_t from = p->from->reduce, m = OPIPE_NONE;
  for (uint32_t i = from; i-- > first;) {
    const opi_step *step = step_at(p, i);
    if (step->kind == OPI_ACT_REDUCE)
      break;
    if (step->kind != OPI_ACT_COMPUTE)
      continue;
    m = m == OPIPE_NONE ? step->microbatch : m;
    if (step->pass == OPI_PROGRAM_F || step->microbatch != m || step->next != reduce->next ||
        whole_of(p, step) != whole_of(p, reduce))
      break;
    from = i;
    ++p->n_steps;
  }
  p->steps = OPI_ARENA_ARRAY(p->arena, uint32_t, (size_t)p->n_steps + 1);
  p->ends = OPI_ARENA_ARRAY(p->arena, double, (size_t)p->n_steps + 1);
  if (p->steps == NULL || p->ends == NULL)
    return opi_fail_nomem(p->err, p->n_steps * sizeof *p->ends, "sums");
  p->n_steps = 0;
  for (uint32_t i = from; i < p->from->reduce; ++i) {
    if (step_at(p, i)->kind == OPI_ACT_COMPUTE)
      p->steps[p->n_steps++] = i;
  }
  return OPIPE_OK;
}

/* The share of a program's time at a gradient's end. */
static double share_at(const passing *p, const opi_step *step, const opi_gradient_end *end) {
  const uint32_t c = opi_row_class_of(p->from->plan->whole, step->microbatch);
  double all = 0, done = 0;
  for (uint32_t phase = 0; phase < OPI_PHASES; ++phase) {
    if ((opi_program_phases(step->pass) & 1u << phase) == 0)
      continue;
    const double ns = opi_phase_ns(p->from->plan, p->from->cuts[c], step->stage, step->pass, phase);
    all += ns;
    done += ns * end->done[phase];
  }
  return all > 0 ? done / all : 1;
}

/* Places that a program does not tell: its end. */
static void place_in(const passing *p, uint32_t index) {
  const opi_step *step = step_at(p, p->steps[index]);
  const opi_program *program = program_of(p, step);
  uint32_t n = 0, k = 0;
  const uint32_t *places = p->from->places == NULL ? NULL : p->from->places(p->from->ctx, step, &n);
  p->ends[index] = places == NULL ? 1 : n;
  for (uint32_t i = 0; program->ends != NULL && i < p->from->n_slots; ++i) {
    const uint32_t slot = p->from->slots[i];
    while (k < program->n_params && program->params[k] < slot)
      ++k;
    if (k == program->n_params || program->params[k] != slot || !program->ends[k].is_given)
      continue;
    const double at = places != NULL            ? places[slot]
                      : p->from->places != NULL ? 1
                                                : share_at(p, step, &program->ends[k]);
    p->of[i] = (position){index, at};
  }
}

static bool is_behind(position a, position b) {
  return a.index != b.index ? a.index > b.index : a.at > b.at;
}

/* Whether slot i is the bucket's lowest. */
static bool ends_bucket(const opi_passed_query *from, uint32_t i) {
  uint32_t k = i;
  while (k > 0 && from->buckets[k - 1] != from->buckets[i])
    --k;
  return from->buckets[i] != OPIPE_NONE && k == 0;
}

/* Leaves out some, evenly, but never the last. Returns how many are left. */
static uint32_t thin(opi_passed *list, uint32_t n) {
  const uint32_t each = (n + OPI_PARTS_MOST - 2) / (OPI_PARTS_MOST - 1);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if ((n - 1 - i) % each == 0)
      list[kept++] = list[i];
  }
  return kept;
}

opipe_status opi_passed_find(const opi_passed_query *from, opi_arena *arena, opi_passed **out_list,
                             uint32_t *out_n, opipe_error *err) {
  passing p = {.from = from, .arena = arena, .err = err};
  *out_n = 0;
  *out_list = NULL;
  if (from->n_slots == 0 || opi_plan_is_strict(from->plan->whole) ||
      from->lists->steps[from->reduce].route == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(find_steps(&p));
  p.of = OPI_ARENA_ARRAY(arena, position, from->n_slots);
  opi_passed *list = OPI_ARENA_ARRAY(arena, opi_passed, from->n_slots);
  if (p.of == NULL || list == NULL)
    return opi_fail_nomem(err, from->n_slots * sizeof *list, "sums");
  for (uint32_t i = 0; i < p.n_steps; ++i)
    place_in(&p, i);
  position last = {0, 0};
  for (uint32_t i = from->n_slots; i-- > 0 && p.n_steps != 0;) {
    last = is_behind(p.of[i], last) ? p.of[i] : last;
    if (last.index + 1 == p.n_steps && last.at >= p.ends[last.index])
      break; /* at the REDUCE */
    if (!ends_bucket(from, i))
      continue;
    const opi_passed passed = {p.steps[last.index], from->n_slots - i, last.at};
    const bool again =
        *out_n != 0 && list[*out_n - 1].step == passed.step && list[*out_n - 1].at == passed.at;
    *out_n -= again;
    list[(*out_n)++] = passed;
  }
  if (*out_n != 0)
    *out_n = thin(list, *out_n);
  *out_list = list;
  return OPIPE_OK;
}
