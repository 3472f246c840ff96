/* SPDX-License-Identifier: Apache-2.0 */
/* The parts in which last backwards run, so that sums of gradients start between them: found once
 * programs are compiled and weights are open. */
#include "partition/lists/passed.h"

#include <string.h>

#include "runtime/compiled/build.h"

typedef struct finding {
  opi_compiled *t;
  const opi_rank *rank;
  opi_arena scratch;
  uint32_t *slots, *buckets, *ends; /* [n_params] */
  uint32_t room;
  opipe_status status; /* of asking a backend for places */
  opipe_error *err;
} finding;

static bool has_parts(const opi_rank *rank) {
  return OPIPE_HAS(rank->backend, opipe_backend, run_part) && rank->backend->run_part != NULL;
}

static const opi_program_unit *unit_of(const opi_compiled *t, const opi_step *step) {
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  return opi_unit_at(t, instance, opi_class_at(t, step->microbatch), step->pass);
}

/* opi_places_fn */
static const uint32_t *places_of(void *ctx, const opi_step *step, uint32_t *out_n) {
  finding *f = ctx;
  const opi_program_unit *unit = unit_of(f->t, step);
  if (unit->program == NULL || f->status < 0)
    return NULL;
  f->status = OPI_ASK_RANK(f->rank, program_places, f->err, unit->program, f->ends, out_n);
  return f->status < 0 || *out_n == 0 ? NULL : f->ends;
}

/* Adds the points of a list to those of the rank's steps, whose last is the program's end. */
static opipe_status add(finding *f, uint32_t instance, const opi_passed *list, uint32_t n,
                        uint32_t *io_n) {
  opi_compiled *t = f->t;
  for (uint32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n || list[i + 1].step != list[i].step;
    if (!opi_arena_grow(&t->arena, (void **)&t->passed.list, &f->room, *io_n + 2,
                        sizeof *t->passed.list))
      return opi_fail_nomem(f->err, n * sizeof *t->passed.list, "parts of backwards");
    t->passed.list[(*io_n)++] =
        (opi_sum_point){.instance = instance, .place = (uint32_t)list[i].at, .n = list[i].n};
    uint32_t n_places = 0;
    if (!last)
      continue;
    if (places_of(f, &t->lists->steps[list[i].step], &n_places) == NULL)
      n_places = 1;
    t->passed.list[(*io_n)++] = (opi_sum_point){.instance = instance, .place = n_places};
    t->passed.first[list[i].step + 1] = *io_n;
  }
  return f->status;
}

static opipe_status find_rank(finding *f, uint32_t *io_n) {
  opi_compiled *t = f->t;
  const opi_lists *lists = t->lists;
  const uint32_t r = f->rank->index;
  for (uint32_t i = lists->rank_first[r]; i < lists->rank_first[r + 1]; ++i) {
    const opi_step *step = &lists->steps[i];
    if (step->kind != OPI_ACT_REDUCE)
      continue;
    const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
    const uint32_t part = opi_weights_instance_at(t, instance);
    opi_passed *list = NULL;
    uint32_t n = 0;
    const opi_passed_query from = {
        .plan = t->pieces,
        .lists = lists,
        .cuts = (const opi_cut *const *)t->model->cuts,
        .rank = r,
        .reduce = i,
        .slots = f->slots,
        .buckets = f->buckets,
        .n_slots = opi_weights_trained(t->setup->shapes->weights, part, f->slots, f->buckets),
        .places = places_of,
        .ctx = f};
    OPI_TRY(opi_passed_find(&from, &f->scratch, &list, &n, f->err));
    OPI_TRY(f->status);
    OPI_TRY(add(f, part, list, n, io_n));
  }
  return OPIPE_OK;
}

static opipe_status find_all(finding *f) {
  opi_compiled *t = f->t;
  const opi_setup *s = t->setup;
  const uint32_t n_params = t->model->cuts[0]->n_params, n_steps = t->lists->n_steps;
  uint32_t n = 0;
  f->slots = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_params);
  f->buckets = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_params);
  f->ends = OPI_ARENA_ARRAY(&f->scratch, uint32_t, n_params);
  t->passed.first = OPI_ARENA_ARRAY(&t->arena, uint32_t, (size_t)n_steps + 1);
  if (f->slots == NULL || f->buckets == NULL || f->ends == NULL || t->passed.first == NULL)
    return opi_fail_nomem(f->err, n_params * sizeof *f->slots, "parts of backwards");
  for (uint32_t k = 0; k < s->n_here; ++k) { /* ranks rise, and so do their steps */
    f->rank = &s->ranks[s->here[k]];
    if (has_parts(f->rank))
      OPI_TRY(find_rank(f, &n));
  }
  for (uint32_t i = 1; i <= n_steps; ++i) {
    if (t->passed.first[i] < t->passed.first[i - 1])
      t->passed.first[i] = t->passed.first[i - 1];
  }
  return OPIPE_OK;
}

opipe_status opi_parts_find(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  finding f = {.t = t, .err = err};
  if (s->shapes->weights == NULL || s->reference)
    return OPIPE_OK;
  opi_arena_init(&f.scratch, s->allocator, 0);
  const opipe_status status = find_all(&f);
  opi_arena_release(&f.scratch);
  return status;
}
