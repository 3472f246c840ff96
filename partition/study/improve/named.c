/* SPDX-License-Identifier: Apache-2.0 */
/* The best of the available schedules. Each is tried with every choice and small number of its
 * options, one option at a time. No schedule is known here by name. */
#include "partition/study/improve/named.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "partition/schedule/compute_order.h"
#include "partition/study/improve/works.h"

/* Whole numbers that are tried for an option. */
static const uint32_t numbers[] = {1, 2, 3, 4, 6, 8, 12, 16};

typedef struct contest {
  const opi_plugins *plugins;
  opi_question question;
  const opi_problem *like;
  const opi_costs *costs;
  const opipe_allocator *allocator;
  opi_arena *arena; /* for specs */
  opi_named *best;
  opipe_error *err;
} contest;

/* True if the order has the wanted places. */
static bool stands_there(const contest *c, const opi_problem *p) {
  const opi_problem *like = c->like;
  if (p->versions != OPIPE_VERSIONS_ONE || p->stage_shares != NULL)
    return false;
  if (like == NULL) {
    return p->n_replicas == 1 && p->n_slices == 1 && p->n_parts == 1 &&
           p->n_stages == c->question.n_stages && p->n_ranks == c->question.n_ranks;
  }
  return p->n_ranks == like->n_ranks && p->n_stages == like->n_stages &&
         p->n_replicas == like->n_replicas && p->n_slices == like->n_slices &&
         p->n_parts == like->n_parts &&
         memcmp(p->instance_rank, like->instance_rank,
                (size_t)p->n_stages * p->n_replicas * sizeof *p->instance_rank) == 0;
}

opipe_status opi_order_limit(opi_order *order, const opi_question *question, opipe_error *err) {
  opi_problem *p = &order->problem;
  const size_t n = (size_t)p->n_stages * p->n_replicas;
  if (question->stash_bytes != NULL) {
    uint64_t *bytes = OPI_ARENA_ARRAY(&order->arena, uint64_t, n);
    if (bytes == NULL)
      return opi_fail_nomem(err, n * sizeof *bytes, "caps");
    for (size_t i = 0; i < n; ++i)
      bytes[i] = question->stash_bytes[i / p->n_replicas];
    p->stash_bytes = bytes;
  }
  if (question->free_bytes != NULL) {
    p->rank_stash_bytes =
        opi_arena_copy(&order->arena, question->free_bytes, p->n_ranks * sizeof(uint64_t));
    if (p->rank_stash_bytes == NULL)
      return opi_fail_nomem(err, p->n_ranks * sizeof(uint64_t), "caps");
  }
  return OPIPE_OK;
}

/* *out_ns INFINITY: it breaks a cap. */
static opipe_status time_order(const contest *c, const opi_order *order, double *out_ns) {
  opi_arena arena;
  opi_works works;
  opi_works_order sequence;
  opi_works_clock clock;
  uint32_t rank = 0;
  int64_t most = 0;
  *out_ns = INFINITY;
  opi_arena_init(&arena, c->allocator, 0);
  opipe_status status =
      opi_works_build(&order->problem, order->list, c->costs, &arena, &works, &sequence, c->err);
  if (status == OPIPE_OK && !opi_works_clock_make(&works, &arena, &clock))
    status = opi_fail_nomem(c->err, works.n * sizeof(double), "a schedule");
  if (status == OPIPE_OK && opi_works_fits(&works, &sequence, &rank, &most)) {
    opi_works_clock_run(&works, &clock, &sequence);
    *out_ns = sequence.makespan;
  }
  opi_arena_release(&arena);
  return status;
}

/* Enters a schedule; one that cannot be asked is skipped. Only NOMEM is an error. */
static opipe_status enter(contest *c, const char *spec) {
  opi_order *order = NULL;
  double ns = INFINITY;
  opipe_error *err = c->err, unused = OPIPE_ERROR_INIT;
  c->question.schedule = spec;
  c->err = &unused;
  opipe_status status = opi_order_ask(c->plugins, &c->question, c->allocator, &order, &unused);
  if (status == OPIPE_OK)
    status = opi_order_limit(order, &c->question, &unused);
  if (status == OPIPE_OK && stands_there(c, &order->problem))
    status = time_order(c, order, &ns);
  c->err = err;
  if (status == OPIPE_OK && ns < c->best->ns) {
    opi_order_free(c->best->order);
    *c->best = (opi_named){order, spec, ns};
    return OPIPE_OK;
  }
  opi_order_free(order);
  return status == OPIPE_E_NOMEM ? opi_fail_nomem(err, 1, "schedules") : OPIPE_OK;
}

static opipe_status enter_with(contest *c, const char *id, const char *key, const char *value,
                               size_t n) {
  const char *spec = opi_arena_printf(c->arena, "%s:%s=%.*s", id, key, (int)n, value);
  return spec == NULL ? opi_fail_nomem(c->err, n, "schedules") : enter(c, spec);
}

static opipe_status enter_option(contest *c, const char *id, const opipe_schedule_option *o) {
  for (const char *at = o->choices; o->type == 's' && at != NULL && *at != '\0';) {
    const size_t n = strcspn(at, "|");
    OPI_TRY(enter_with(c, id, o->key, at, n));
    at += n + (at[n] != '\0');
  }
  for (size_t i = 0; o->type == 'i' && i < OPI_COUNT(numbers); ++i) {
    char text[16];
    (void)snprintf(text, sizeof text, "%u", numbers[i]);
    if (numbers[i] >= o->min && numbers[i] <= o->max)
      OPI_TRY(enter_with(c, id, o->key, text, strlen(text)));
  }
  return OPIPE_OK;
}

static opipe_status enter_all(contest *c, const char *id) {
  const opipe_schedule_option *options = NULL;
  opi_schedule_ref ref;
  uint32_t n = 0;
  OPI_TRY(c->plugins->schedule(c->plugins->ctx, id, &ref, c->err));
  OPI_TRY(enter(c, id));
  OPI_TRY(opi_schedule_options(&ref, &options, &n, c->err));
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(enter_option(c, id, &options[i]));
  return OPIPE_OK;
}

opipe_status opi_named_best(const opi_plugins *plugins, const opi_question *question,
                            const opi_problem *like, opi_arena *arena, opi_named *out_best,
                            opipe_error *err) {
  const char *const *ids = NULL;
  uint32_t n = 0;
  contest c = {.plugins = plugins,
               .question = *question,
               .like = like,
               .costs = question->costs,
               .allocator = arena->allocator,
               .arena = arena,
               .best = out_best,
               .err = err};
  *out_best = (opi_named){.ns = INFINITY};
  OPI_TRY(plugins->schedules(plugins->ctx, arena, &ids, &n, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; status == OPIPE_OK && i < n; ++i)
    status = enter_all(&c, ids[i]);
  if (status == OPIPE_OK && out_best->order == NULL) {
    status = opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "none of %u schedules lays out %u stages on %u ranks within the caps", n,
                      question->n_stages, question->n_ranks);
  }
  if (status < 0) {
    opi_order_free(out_best->order);
    out_best->order = NULL;
  }
  return status;
}
