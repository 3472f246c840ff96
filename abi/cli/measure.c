/* SPDX-License-Identifier: Apache-2.0 */
/* plan --measure: runs the best predicted plans in turn, round by round, so that other load on the
 * machine affects all of them alike. */
#include "measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "loader/base/sizes.h"

enum { PLANS_MOST = 4, ROUNDS = 7, STEPS_LEAST = 3, STEPS_MOST = 256 };
/* Two plans differ if one is faster in all rounds but so many: a sign test. 1 pair of equal plans
 * in 16 passes for different. */
enum { CONTRARY_MOST = 1 };
#define ROUND_MS 200.0 /* per plan; longer if so few steps take longer */

typedef struct candidate {
  opipe_strategy *strategy; /* NULL: the plan was made from the options */
  opipe_plan *plan;
  char what[160];
  double predicted_ms, rounds_ms[ROUNDS];  /* of a step; of a request in a stream, or alone */
  uint64_t predicted_bytes, session_bytes; /* of the fullest rank */
  uint32_t n_steps;                        /* per round */
  bool failed;                             /* running it failed */
} candidate;

typedef struct measuring {
  const cli_options *o;
  cli_session *s;
  const train_run *run; /* NULL: requests */
  cli_tensor *inputs;
  uint32_t n_inputs;
  bool alone; /* one request at a time */
  candidate candidates[PLANS_MOST];
  uint32_t n, best;
} measuring;

int cli_check_measure(const cli_options *o) {
  if (!o->measures)
    return CLI_DONE;
  if (o->model == NULL)
    return cli_usage("--measure: a MODEL is needed, a description cannot be run");
  if (o->plan.cluster != NULL) {
    return cli_usage(
        "--measure runs on this machine's devices, --cluster %s describes others: "
        "--device names those here",
        o->plan.cluster);
  }
  if ((o->planner.flags & OPIPE_STRATEGY_HYPOTHETICAL) != 0)
    return cli_usage("--measure: a --hypothetical strategy cannot be run");
  if (o->planner.profile != NULL)
    return cli_usage("--measure makes a profile of its own: --profile is not allowed");
  return CLI_DONE;
}

/* ---- candidates ---- */

static void describe(measuring *m, candidate *c) {
  opipe_plan_info info = opipe_plan_info_init();
  opipe_memory_info memory = opipe_memory_info_init();
  opipe_strategy_info said = opipe_strategy_info_init();
  (void)m->s->api->plan_info(c->plan, &info, NULL);
  c->predicted_ms = (m->alone ? info.request_ns : info.interval_ns) * 1e-6;
  for (uint32_t r = 0; m->s->api->plan_memory(c->plan, r, &memory, NULL) == OPIPE_OK; ++r) {
    if (memory.total_bytes > c->predicted_bytes)
      c->predicted_bytes = memory.total_bytes;
  }
  const bool strategic =
      c->strategy != NULL && m->s->api->strategy_info(c->strategy, &said, NULL) == OPIPE_OK;
  (void)snprintf(c->what, sizeof c->what, "%s, %u stages on %u ranks, %u micro-batches%s",
                 strategic ? said.schedule : "as given", info.n_stages, info.n_ranks,
                 info.n_microbatches, strategic && said.recompute != 0 ? ", recomputes" : "");
}

/* Gathers the current plan, and as many of the next ranked ones as there is room for. */
static void gather(measuring *m, const cli_strategy *strategy) {
  uint32_t next = 0;
  opipe_strategy_info info = opipe_strategy_info_init();
  m->candidates[m->n++] = (candidate){.strategy = strategy->strategy, .plan = m->s->plan};
  if (strategy->api != NULL && strategy->api->strategy_info(strategy->strategy, &info, NULL) == 0)
    next = info.rank + 1;
  while (next != 0 && m->n < PLANS_MOST) {
    candidate *c = &m->candidates[m->n];
    *c = (candidate){.plan = NULL};
    cli_planner_next(m->o, m->s, strategy, m->run == NULL ? NULL : m->run->options, &next,
                     &c->strategy, &c->plan);
    if (c->plan == NULL)
      break;
    ++m->n;
  }
  for (uint32_t i = 0; i < m->n; ++i)
    describe(m, &m->candidates[i]);
}

/* ---- runs ---- */

static int by_value(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static double median(const double *values, uint32_t n) {
  double sorted[STEPS_MOST + ROUNDS];
  memcpy(sorted, values, n * sizeof(double));
  qsort(sorted, n, sizeof(double), by_value);
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The first step has cold caches and is left out. */
static int run_steps(measuring *m, candidate *c, uint32_t n, double *out_ms) {
  train_run run = *m->run;
  train_result result;
  run.plan = c->plan;
  run.quiet = true;
  run.n_steps = n + 1;
  run.fullest_bytes = &c->session_bytes;
  const int status = train_go(&run, &result);
  if (status == CLI_DONE)
    *out_ms = median(result.seconds + 1, n) * 1e3;
  train_result_free(&result);
  return status;
}

static int run_requests(measuring *m, candidate *c, uint32_t n, double *out_ms) {
  cli_result result = {NULL};
  cli_timing timing;
  const cli_streaming how = {.n = 2 * n, .at_once = m->alone ? 1 : 0};
  const int status = cli_stream(m->s, c->plan, &how, m->inputs, m->n_inputs, &result, &timing);
  if (status == CLI_DONE) {
    *out_ms = m->alone ? timing.p50_ms : timing.interval_ms;
    c->session_bytes = timing.fullest_bytes;
  }
  cli_result_free(&result);
  return status;
}

static void run_candidate(measuring *m, candidate *c, double *out_ms) {
  if (c->failed)
    return;
  c->failed = (m->run != NULL ? run_steps : run_requests)(m, c, c->n_steps, out_ms) != CLI_DONE;
}

/* A first run of each decides how many steps a round has. */
static void run_all(measuring *m) {
  for (uint32_t i = 0; i < m->n; ++i) {
    candidate *c = &m->candidates[i];
    double ms = 0;
    c->n_steps = STEPS_LEAST;
    run_candidate(m, c, &ms);
    const double steps = ms > 0 ? ROUND_MS / ms : STEPS_MOST;
    c->n_steps = steps > STEPS_MOST    ? STEPS_MOST
                 : steps < STEPS_LEAST ? STEPS_LEAST
                                       : (uint32_t)steps;
  }
  for (uint32_t r = 0; r < ROUNDS; ++r) {
    for (uint32_t i = 0; i < m->n; ++i) {
      if (cli_is_terminal()) {
        (void)fprintf(stderr, "\rmeasuring: round %u of %d, plan %u of %u\033[K", r + 1, ROUNDS,
                      i + 1, m->n);
      }
      run_candidate(m, &m->candidates[i], &m->candidates[i].rounds_ms[r]);
    }
  }
  if (cli_is_terminal())
    (void)fputs("\r\033[K", stderr);
}

/* ---- results ---- */

static double value_of(const measuring *m, const candidate *c) {
  const bool bytes = m->o->planner.objective == OPIPE_OBJECTIVE_MEMORY;
  return bytes ? (double)c->session_bytes : median(c->rounds_ms, ROUNDS);
}

/* Chooses by the planner's objective: bytes, else time. False: none could be run. */
static bool choose(measuring *m) {
  bool any = false;
  for (uint32_t i = 0; i < m->n; ++i) {
    const candidate *c = &m->candidates[i];
    if (!c->failed && (!any || value_of(m, c) < value_of(m, &m->candidates[m->best])))
      m->best = i;
    any = any || !c->failed;
  }
  return any;
}

/* Number of rounds in which it was as fast as the best one, compared round by round. */
static uint32_t rounds_as_fast(const measuring *m, const candidate *c) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < ROUNDS; ++r)
    n += c->rounds_ms[r] <= m->candidates[m->best].rounds_ms[r];
  return n;
}

/* True if these rounds cannot show that it is slower than the best one. Bytes do not spread. */
static bool is_within_spread(const measuring *m, const candidate *c) {
  return m->o->planner.objective != OPIPE_OBJECTIVE_MEMORY && !c->failed &&
         c != &m->candidates[m->best] && rounds_as_fast(m, c) > CONTRARY_MOST;
}

static const char *unit_of(const measuring *m) {
  return m->run != NULL ? "step" : m->alone ? "request alone" : "request of a stream";
}

static void print_row(const candidate *c, uint32_t number, bool is_best) {
  (void)printf("%2u%c %s\n", number, is_best ? '*' : ' ', c->what);
  if (c->failed) {
    (void)printf("      could not be run\n");
    return;
  }
  double sorted[ROUNDS];
  memcpy(sorted, c->rounds_ms, sizeof sorted);
  qsort(sorted, ROUNDS, sizeof(double), by_value);
  const double ms = sorted[ROUNDS / 2];
  (void)printf(
      "      predicted %.3f ms, measured %.3f (%.3f to %.3f): %+.1f %%; %s predicted, %s used\n",
      c->predicted_ms, ms, sorted[0], sorted[ROUNDS - 1], (c->predicted_ms / ms - 1) * 100,
      OPI_SIZE(c->predicted_bytes), OPI_SIZE(c->session_bytes));
}

static void print_spread(const measuring *m) {
  const double best = median(m->candidates[m->best].rounds_ms, ROUNDS);
  for (uint32_t i = 0; i < m->n; ++i) {
    const candidate *c = &m->candidates[i];
    if (!is_within_spread(m, c))
      continue;
    (void)printf(
        "plans %u and %u: the difference of %.1f %% lies within the spread of the rounds "
        "(%u was as fast in %u of %d)\n",
        m->best + 1, i + 1, (median(c->rounds_ms, ROUNDS) / best - 1) * 100, i + 1,
        rounds_as_fast(m, c), ROUNDS);
  }
}

static void print_json_row(const measuring *m, uint32_t i) {
  const candidate *c = &m->candidates[i];
  const bool first = i == 0, is_best = i == m->best;
  (void)printf("%s\n  {\"plan\": \"%s\", \"best\": %s, \"predicted_ms\": %.6f, \"measured_ms\": ",
               first ? "" : ",", c->what, is_best ? "true" : "false", c->predicted_ms);
  if (c->failed)
    (void)printf("null");
  else
    (void)printf("%.6f", median(c->rounds_ms, ROUNDS));
  (void)printf(", \"rounds_ms\": [");
  for (uint32_t r = 0; r < ROUNDS && !c->failed; ++r)
    (void)printf("%s%.6f", r == 0 ? "" : ", ", c->rounds_ms[r]);
  (void)printf("], \"within_spread\": %s, \"steps_of_a_round\": %u, \"predicted_bytes\": %" PRIu64
               ", \"session_bytes\": %" PRIu64 "}",
               is_within_spread(m, c) ? "true" : "false", c->n_steps, c->predicted_bytes,
               c->session_bytes);
}

static void print_all(const measuring *m) {
  if (m->o->out.json)
    (void)printf("{\"unit\": \"%s\", \"measured\": [", unit_of(m));
  else
    (void)printf("measured here: a %s, medians of %d rounds (least to most)\n", unit_of(m), ROUNDS);
  for (uint32_t i = 0; i < m->n; ++i) {
    if (m->o->out.json)
      print_json_row(m, i);
    else
      print_row(&m->candidates[i], i + 1, i == m->best);
  }
  if (m->o->out.json)
    (void)printf("\n], \"plan\": ");
  else
    print_spread(m);
}

/* Hands the best one to the caller and ends the others. */
static void hand_over(measuring *m, cli_strategy *io_strategy) {
  for (uint32_t i = 0; i < m->n; ++i) {
    candidate *c = &m->candidates[i];
    if (i == m->best)
      continue;
    m->s->api->plan_destroy(c->plan);
    m->s->api->strategy_destroy(c->strategy);
  }
  m->s->plan = m->candidates[m->best].plan;
  io_strategy->strategy = m->candidates[m->best].strategy;
}

static int draw(measuring *m) {
  opipe_model_info info = opipe_model_info_init();
  (void)m->s->api->model_info(m->s->bound, &info, NULL);
  m->inputs = calloc(info.n_inputs + 1u, sizeof(*m->inputs));
  if (m->inputs == NULL)
    return cli_fail("out of memory");
  return cli_draw_inputs(m->s, m->o->seed, m->inputs, &m->n_inputs, info.n_inputs);
}

int cli_measure(const cli_options *o, cli_session *s, cli_strategy *strategy,
                const train_run *run) {
  measuring *m = calloc(1, sizeof(*m));
  if (m == NULL)
    return cli_fail("out of memory");
  *m = (measuring){.o = o, .s = s, .run = run};
  m->alone = run == NULL && o->planner.objective == OPIPE_OBJECTIVE_LATENCY;
  int status = run == NULL ? draw(m) : CLI_DONE;
  if (status == CLI_DONE) {
    gather(m, strategy);
    run_all(m);
    if (choose(m))
      print_all(m);
    else
      status = CLI_FAILED; /* each reported its error */
    hand_over(m, strategy);
  }
  for (uint32_t i = 0; i < m->n_inputs; ++i)
    cli_tensor_free(&m->inputs[i]);
  free(m->inputs);
  free(m);
  return status;
}
