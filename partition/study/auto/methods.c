/* SPDX-License-Identifier: Apache-2.0 */
/* Methods: schedules with options. Each value that a plugin lists is tried, one option at a time,
 * on a few ranks. No schedule is known here by name.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "partition/schedule/compute_order.h"
#include "partition/study/auto/space.h"

/* Whole numbers that are tried for an option. */
static const uint32_t numbers[] = {1, 2, 3, 4, 6, 8, 12, 16};

typedef struct trial {
  uint32_t n_ranks, n_microbatches;
} trial;
/* Tried in turn until the schedule accepts one. */
static const trial trials[] = {{4, 8}, {2, 4}, {8, 16}, {1, 2}};

/* ---- a trial ---- */

/* Makespan above the bubble-free bound for this many ranks. */
static opipe_status time_order(opi_space *s, opi_method *m, const opi_order *order,
                               const opi_method_layout *places, const trial *t) {
  const bool train = opi_space_trains(s);
  const double per_stage = train ? 3 : 1;
  opi_simulation result = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  result.peak_stash = OPI_ARENA_ARRAY(&s->arena, double, places->n_ranks);
  if (result.peak_stash == NULL)
    return opi_fail_nomem(s->err, places->n_ranks * sizeof(double), "a planner");
  const opipe_status status = opi_simulate_order(&order->problem, order->list, &opi_unit_costs,
                                                 s->arena.allocator, &result, &err);
  if (status == OPIPE_E_NOMEM)
    return opi_fail_nomem(s->err, 1, "a planner");
  const double work = t->n_microbatches * per_stage * places->n_stages / places->n_ranks;
  m->idle = status < 0 || places->n_ranks < 2
                ? 0
                : fmax(0, result.makespan - work) / (per_stage * (places->n_ranks - 1));
  return OPIPE_OK;
}

static opipe_status try_method(opi_space *s, uint32_t method, const trial *t, bool *out_taken) {
  opi_method *m = &s->methods[method];
  const opi_question q = {.schedule = m->spec,
                          .mode = s->question->mode,
                          .n_ranks = t->n_ranks,
                          .n_microbatches = t->n_microbatches,
                          .costs = &opi_unit_costs};
  const opi_method_layout *places = NULL;
  opi_order *order = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  *out_taken = false;
  OPI_TRY(opi_space_lay_out(s, method, t->n_ranks, 0, t->n_microbatches, &places));
  if (places == NULL)
    return OPIPE_OK;
  opipe_status status = opi_order_ask(&s->plugins, &q, s->arena.allocator, &order, &err);
  if (status < 0) {
    (void)opi_text_line(s->why, err.message);
    return status == OPIPE_E_NOMEM ? opi_fail_nomem(s->err, 1, "a planner") : OPIPE_OK;
  }
  *out_taken = true;
  m->chunks = places->n_stages * places->n_replicas / places->n_ranks;
  m->chunks = m->chunks / places->n_replicas == 0 ? 1 : m->chunks / places->n_replicas;
  m->stale = places->versions != OPIPE_VERSIONS_ONE;
  m->sliced = places->n_slices > 1;
  status = time_order(s, m, order, places, t);
  opi_order_free(order);
  return status;
}

/* Why the method may not be used; NULL: it may. */
static const char *refuse(const opi_space *s, const opi_method *m, bool asked_for) {
  const opi_auto *q = s->question;
  if (m->stale && !q->allow_stale)
    return "its weights are late, which was not allowed";
  if (m->sliced && !q->causal)
    return "its token slices need a model in which no token depends on later ones";
  if (m->sliced && q->slice_ns == 0 && s->curves == NULL && !asked_for)
    return "the fixed cost of token slices is not known";
  return NULL;
}

/* A schedule that accepts none of the trials may exist only for the numbers given, as the order in
 * a file does. */
static opipe_status try_given(opi_space *s, uint32_t method, bool *out_taken) {
  const opi_auto *q = s->question;
  const uint32_t n_copies = q->fixed.pipelines == 0 ? 1 : q->fixed.pipelines;
  const trial given = {q->fixed.n_ranks / n_copies, q->fixed.microbatches / n_copies};
  return given.n_ranks == 0 || given.n_microbatches == 0 ? OPIPE_OK
                                                         : try_method(s, method, &given, out_taken);
}

/* Adds a method unless it exists. */
static opipe_status add_method(opi_space *s, const char *spec, bool asked_for) {
  for (uint32_t i = 0; i < s->n_methods; ++i) {
    if (strcmp(s->methods[i].spec, spec) == 0)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&s->arena, (void **)&s->methods, &s->room_methods, s->n_methods + 1,
                      sizeof *s->methods))
    return opi_fail_nomem(s->err, s->n_methods * sizeof *s->methods, "a planner");
  const uint32_t method = s->n_methods++;
  s->methods[method] = (opi_method){.spec = spec, .chunks = 1};
  bool taken = false;
  for (size_t i = 0; i < OPI_COUNT(trials) && !taken; ++i)
    OPI_TRY(try_method(s, method, &trials[i], &taken));
  if (!taken)
    OPI_TRY(try_given(s, method, &taken));
  opi_method *m = &s->methods[method];
  m->why = taken ? refuse(s, m, asked_for) : opi_arena_strdup(&s->arena, s->why);
  return taken || m->why != NULL ? OPIPE_OK : opi_fail_nomem(s->err, 1, "a planner");
}

opipe_status opi_method_add(opi_space *s, const char *spec, uint32_t *out_method) {
  const uint32_t n = s->n_methods;
  const char *own = opi_arena_strdup(&s->arena, spec);
  if (own == NULL)
    return opi_fail_nomem(s->err, strlen(spec), "a planner");
  OPI_TRY(add_method(s, own, true));
  if (s->n_methods > n)
    s->methods[n].named = true;
  for (*out_method = 0; strcmp(s->methods[*out_method].spec, spec) != 0;)
    ++*out_method;
  if (s->methods[*out_method].why != NULL)
    *out_method = OPIPE_NONE;
  return OPIPE_OK;
}

/* ---- options ---- */

static opipe_status add_option(opi_space *s, const char *id, const char *key, const char *value,
                               size_t n, bool asked_for) {
  const char *spec = opi_arena_printf(&s->arena, "%s:%s=%.*s", id, key, (int)n, value);
  return spec == NULL ? opi_fail_nomem(s->err, n, "a planner") : add_method(s, spec, asked_for);
}

static opipe_status add_choices(opi_space *s, const char *id, const opipe_schedule_option *o,
                                bool asked_for) {
  for (const char *at = o->choices; at != NULL && *at != '\0';) {
    const size_t n = strcspn(at, "|");
    if (o->preset == NULL || strlen(o->preset) != n || memcmp(o->preset, at, n) != 0)
      OPI_TRY(add_option(s, id, o->key, at, n, asked_for));
    at += n + (at[n] != '\0');
  }
  return OPIPE_OK;
}

/* Compares with the schedule's first method, which has no options. */
static void compare_with(opi_space *s, uint32_t first, uint32_t method) {
  const opi_method *base = &s->methods[first];
  opi_method *m = &s->methods[method];
  m->minor = base->why == NULL && method != first && m->chunks == base->chunks &&
             m->sliced == base->sliced && m->idle >= base->idle;
}

static opipe_status add_number(opi_space *s, const char *id, const opipe_schedule_option *o,
                               uint32_t first, uint32_t number, bool asked_for) {
  char text[16];
  (void)snprintf(text, sizeof text, "%u", number);
  if (number < o->min || number > o->max || (o->preset != NULL && strcmp(o->preset, text) == 0))
    return OPIPE_OK;
  const uint32_t method = s->n_methods;
  OPI_TRY(add_option(s, id, o->key, text, strlen(text), asked_for));
  if (method < s->n_methods)
    compare_with(s, first, method);
  return OPIPE_OK;
}

/* If a number of stages is given, also tries the number of stages per rank for each possible number
 * of ranks, because an option may mean that. */
static opipe_status add_numbers(opi_space *s, const char *id, const opipe_schedule_option *o,
                                uint32_t first, bool asked_for) {
  const uint32_t n_stages = s->question->fixed.n_stages, most = s->question->planning.n_devices;
  for (size_t i = 0; i < OPI_COUNT(numbers); ++i)
    OPI_TRY(add_number(s, id, o, first, numbers[i], asked_for));
  for (uint32_t ranks = 1; ranks <= most && ranks <= n_stages; ++ranks) {
    const uint32_t number = n_stages / ranks;
    bool listed = n_stages % ranks != 0;
    for (size_t i = 0; i < OPI_COUNT(numbers); ++i)
      listed = listed || numbers[i] == number;
    if (!listed)
      OPI_TRY(add_number(s, id, o, first, number, asked_for));
  }
  return OPIPE_OK;
}

static opipe_status sweep(opi_space *s, const opi_schedule_ref *ref, const char *id,
                          bool asked_for) {
  const opipe_schedule_option *options = NULL;
  const uint32_t first = s->n_methods;
  uint32_t n = 0;
  OPI_TRY(add_method(s, id, asked_for));
  OPI_TRY(opi_schedule_options(ref, &options, &n, s->err));
  for (uint32_t i = 0; i < n; ++i) {
    if (options[i].type == 's')
      OPI_TRY(add_choices(s, id, &options[i], asked_for));
    else if (options[i].type == 'i')
      OPI_TRY(add_numbers(s, id, &options[i], first, asked_for));
  }
  return OPIPE_OK;
}

opipe_status opi_methods_find(opi_space *s) {
  const opi_auto *q = s->question;
  const bool fixed = q->fixed.schedule != NULL;
  const char *const *specs = fixed ? &q->fixed.schedule : q->schedules;
  const uint32_t n = fixed ? 1 : q->n_schedules;
  uint32_t n_usable = 0;
  for (uint32_t i = 0; i < n; ++i) {
    opi_schedule_ref ref;
    char id[128];
    (void)snprintf(id, sizeof id, "%.*s", (int)strcspn(specs[i], ":"), specs[i]);
    OPI_TRY(s->plugins.schedule(s, id, &ref, s->err));
    OPI_TRY(strchr(specs[i], ':') != NULL ? add_method(s, specs[i], true)
                                          : sweep(s, &ref, specs[i], fixed));
  }
  for (uint32_t i = 0; i < s->n_methods; ++i)
    n_usable += s->methods[i].why == NULL;
  s->why[0] = '\0'; /* no layout has been refused yet */
  if (n_usable > 0)
    return OPIPE_OK;
  return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "planner 'auto': no schedule can be used; '%s': %s",
                  s->methods[0].spec, s->methods[0].why);
}
