/* SPDX-License-Identifier: Apache-2.0 */
/* Followed sessions: process 0 calls, the other process repeats.
 * ctest: timeout=120 label=twice */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/abi/decoder_kit.h"
#include "tests/abi/team_kit.h"
#include "tests/support/allocations.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EACH = 50 };
#else
enum { EACH = 250 };
#endif
enum { CANCELS = (EACH + 4) / 9 };
enum { THREADS = 4, SHAPES = 3, KINDS = 4, CLASSES = 344, OUT = BATCH * SEQ * CLASSES };
enum { FOLLOWED = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED };

static opipe_session_params followed(const member *m) {
  opipe_session_params p = in_team(m);
  p.flags = FOLLOWED;
  return p;
}

/* The same plan in process 0 alone. */
static void open_alone(member *m, opipe_plan_params p, opipe_plan **out_plan,
                       opipe_session **out_session) {
  const opipe_api *api = m->k.api;
  p.team = NULL;
  p.transport = "local";
  MUST_OK(api->plan_make(m->k.bound, &p, out_plan, &m->k.err), &m->k.err);
  MUST_OK(api->session_open(m->k.context, *out_plan, NULL, out_session, &m->k.err), &m->k.err);
}

/* Opens the session in both; the other process follows it to its end. True: this is process 0. */
static bool lead_with(member *m, uint32_t max_shapes) {
  opipe_session_params p = followed(m);
  p.max_shapes = max_shapes;
  MUST_OK(kit_open(&m->k, &p), &m->k.err);
  if (me == 0)
    return true;
  MUST_OK(m->k.api->session_follow(m->k.session, &m->k.err), &m->k.err);
  opipe_session_info info = opipe_session_info_init();
  MUST_OK(m->k.api->session_info(m->k.session, &info, &m->k.err), &m->k.err);
  MUST(info.requests_done > 0);
  return false;
}

static bool lead(member *m) {
  return lead_with(m, 0);
}

/* ---- requests of three shapes, from four threads ---- */

static float expected[SHAPES][KINDS][OUT];

static void fill_ids(int64_t *out, uint32_t kind) {
  for (uint32_t i = 0; i < BATCH * SEQ; ++i)
    out[i] = (i * (37 + 4 * kind) + 11 * kind) % CLASSES;
}

typedef struct client {
  member *m;
  opipe_session *session;
  uint32_t number, n_cancelled, n_done;
} client;

/* One request; its outputs to out [OUT]. */
static opipe_status run_one(const client *c, uint32_t shape, uint32_t kind, bool cancels,
                            float *out, opipe_error *err) {
  const opipe_api *api = c->m->k.api;
  const int64_t dims[] = {BATCH - shape, SEQ};
  int64_t own[BATCH * SEQ];
  opipe_request *request = NULL;
  opipe_tensor got;
  opipe_submit_params params = opipe_submit_params_init();
  fill_ids(own, kind);
  const opipe_binding_io io = kit_ids(own, dims);
  params.n_inputs = 1;
  params.inputs = &io;
  params.stream = c->number;
  MUST_OK(
      api->session_submit_wait(c->session, OPIPE_START_REQUEST, &params, UINT64_MAX, &request, err),
      err);
  if (cancels)
    (void)api->request_cancel(request, NULL);
  const opipe_status status = api->request_wait(request, UINT64_MAX, err);
  if (status == OPIPE_OK) {
    MUST_OK(api->request_output(request, 0, &got, err), err);
    memcpy(out, got.data, (size_t)(BATCH - shape) * SEQ * CLASSES * sizeof *out);
  }
  api->request_release(request);
  return status;
}

static void *be_client(void *arg) {
  client *c = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  float *out = malloc(OUT * sizeof *out);
  MUST(out != NULL);
  for (uint32_t i = 0; i < EACH; ++i) {
    const uint32_t shape = (i / 3 + c->number) % SHAPES, kind = (i * 7 + c->number) % KINDS;
    const bool cancels = i % 9 == 4; /* CANCELS times */
    const opipe_status status = run_one(c, shape, kind, cancels, out, &err);
    if (status != OPIPE_OK) {
      MUST(cancels && status == OPIPE_E_CANCELLED);
      ++c->n_cancelled;
      continue;
    }
    ++c->n_done;
    MUST(memcmp(out, expected[shape][kind],
                (size_t)(BATCH - shape) * SEQ * CLASSES * sizeof *out) == 0);
  }
  free(out);
  return NULL;
}

/* Refused at process 0 after both have prepared the shape, before, and not at all. */
static void be_refused(member *m, float *out) {
  const opipe_api *api = m->k.api;
  const client c = {.m = m, .session = m->k.session};
  const int64_t small[] = {1, SEQ}, wrong[] = {1, SEQ, 7}, longer[] = {BATCH, SEQ, 2};
  opipe_request *request = NULL;
  opipe_submit_params params = opipe_submit_params_init();
  opipe_binding_io io = kit_ids(ids, small);
  opipe_binding_io given = kit_ids(ids, wrong);
  given.name = "logits";
  given.tensor.dtype = (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  given.tensor.rank = 3;
  params.n_inputs = 1;
  params.inputs = &io;
  params.n_outputs = 1;
  params.outputs = &given;
  MUST(api->session_submit(m->k.session, &params, &request, &m->k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m->k.err, "output 'logits': the buffer has rank 3");
  params.n_outputs = 0;
  io.tensor.shape = longer;
  io.tensor.rank = 3;
  MUST(api->session_submit(m->k.session, &params, &request, &m->k.err) == OPIPE_E_INVALID);
  io.name = "nobody";
  MUST(api->session_submit(m->k.session, &params, &request, &m->k.err) < 0);
  MUST_OK(run_one(&c, 0, 0, false, out, &m->k.err), &m->k.err);
  MUST(memcmp(out, expected[0][0], sizeof expected[0][0]) == 0);
}

static void many_requests(void) {
  member m;
  opipe_plan *alone = NULL;
  static float out[OUT];
  client clients[THREADS];
  pthread_t threads[THREADS];
  uint32_t n_done = 0, n_cancelled = 0;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  client one = {.m = &m};
  if (me == 0) {
    open_alone(&m, p, &alone, &one.session);
    for (uint32_t s = 0; s < SHAPES; ++s) {
      for (uint32_t k = 0; k < KINDS; ++k)
        MUST_OK(run_one(&one, s, k, false, expected[s][k], &m.k.err), &m.k.err);
    }
    m.k.api->session_close(one.session);
    m.k.api->plan_destroy(alone);
  }
  plan(&m, &p);
  if (lead(&m)) {
    for (uint32_t t = 0; t < THREADS; ++t) {
      clients[t] = (client){.m = &m, .session = m.k.session, .number = t};
      MUST(pthread_create(&threads[t], NULL, be_client, &clients[t]) == 0);
    }
    for (uint32_t t = 0; t < THREADS; ++t) {
      MUST(pthread_join(threads[t], NULL) == 0);
      n_done += clients[t].n_done;
      n_cancelled += clients[t].n_cancelled;
    }
    MUST(n_done + n_cancelled == THREADS * EACH && n_cancelled <= THREADS * CANCELS);
    be_refused(&m, out);
  }
  leave(&m);
}

/* ---- requests that are cancelled while a shape is new: the cancel comes before process 0's word
 * ---- */

enum { CANCELLERS = 2, NEW_SHAPES = 120, AT_ONCE = 3 };
static atomic_bool no_more;

/* Several at once, so that some are under way when they are cancelled. */
static void *be_canceller(void *arg) {
  const client *c = arg;
  const opipe_api *api = c->m->k.api;
  const int64_t dims[] = {BATCH, SEQ};
  const opipe_binding_io io = kit_ids(ids, dims);
  const struct timespec pause = {.tv_nsec = 100000};
  opipe_request *requests[AT_ONCE];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_submit_params params = opipe_submit_params_init();
  params.n_inputs = 1;
  params.inputs = &io;
  params.stream = c->number;
  while (!atomic_load(&no_more)) {
    for (uint32_t i = 0; i < AT_ONCE; ++i) {
      MUST_OK(api->session_submit_wait(c->session, OPIPE_START_REQUEST, &params, UINT64_MAX,
                                       &requests[i], &err),
              &err);
    }
    (void)nanosleep(&pause, NULL);
    for (uint32_t i = AT_ONCE; i-- > 0;)
      (void)api->request_cancel(requests[i], NULL);
    for (uint32_t i = 0; i < AT_ONCE; ++i) {
      const opipe_status status = api->request_wait(requests[i], UINT64_MAX, &err);
      MUST(status == OPIPE_OK || status == OPIPE_E_CANCELLED);
      api->request_release(requests[i]);
    }
  }
  return NULL;
}

static void cancels_among_new_shapes(void) {
  member m;
  client clients[CANCELLERS];
  pthread_t threads[CANCELLERS];
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  if (lead_with(&m, 6)) { /* of 29: all are forgotten before they come again */
    for (uint32_t t = 0; t < CANCELLERS; ++t) {
      clients[t] = (client){.m = &m, .session = m.k.session, .number = t};
      MUST(pthread_create(&threads[t], NULL, be_canceller, &clients[t]) == 0);
    }
    for (uint32_t i = 0; i < NEW_SHAPES; ++i) {
      const int64_t dims[] = {1 + i / (SEQ - 1) % BATCH, 1 + i % (SEQ - 1)};
      const opipe_binding_io io = kit_ids(ids, dims);
      opipe_submit_params params = opipe_submit_params_init();
      opipe_request *request = NULL;
      params.n_inputs = 1;
      params.inputs = &io;
      MUST_OK(m.k.api->session_submit_wait(m.k.session, OPIPE_START_REQUEST, &params, UINT64_MAX,
                                           &request, &m.k.err),
              &m.k.err);
      MUST_OK(m.k.api->request_wait(request, UINT64_MAX, &m.k.err), &m.k.err);
      m.k.api->request_release(request);
    }
    atomic_store(&no_more, true);
    for (uint32_t t = 0; t < CANCELLERS; ++t)
      MUST(pthread_join(threads[t], NULL) == 0);
  }
  leave(&m);
}

static void test_requests(void) {
  run_case("requests", many_requests, NULL);
  run_case("cancels", cancels_among_new_shapes, NULL);
}

/* ---- requests allocate nothing in the steady state ---- */

/* GROWTH: process 0 may send a request before the follower has ended the one before; the first time
 * that so many are under way, the follower's mailbox, request, results and parcel take memory, and
 * keep it. */
enum { WARM = 100, STEADY = 300, GROWTH = 12 };

/* Counts what this process allocates between two numbers of requests that are done. */
static void *watch(void *arg) {
  const member *m = arg;
  opipe_session_info info = opipe_session_info_init();
  const struct timespec pause = {.tv_nsec = 200000};
  while (info.requests_done < WARM + STEADY) {
    MUST(m->k.api->session_info(m->k.session, &info, NULL) == OPIPE_OK);
    if (info.requests_done >= WARM)
      atomic_store(&counting, true);
    (void)nanosleep(&pause, NULL);
  }
  atomic_store(&counting, false);
  return NULL;
}

static void steady_requests(void) {
  member m;
  static float out[OUT];
  pthread_t thread;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  const opipe_session_params session = followed(&m);
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  MUST(pthread_create(&thread, NULL, watch, &m) == 0);
  const client c = {.m = &m, .session = m.k.session};
  for (uint32_t i = 0; i < WARM + STEADY + 20 && me == 0; ++i)
    MUST_OK(run_one(&c, i % SHAPES, i % KINDS, false, out, &m.k.err), &m.k.err);
  if (me == 1)
    MUST_OK(m.k.api->session_follow(m.k.session, &m.k.err), &m.k.err);
  MUST(pthread_join(thread, NULL) == 0);
  if (n_allocations > GROWTH) {
    (void)fprintf(stderr, "%llu allocations, the first by %p\n", (unsigned long long)n_allocations,
                  atomic_load(&first_caller));
  }
  MUST(n_allocations <= GROWTH);
  leave(&m);
}

static void test_allocations(void) {
  run_case("steady", steady_requests, NULL);
}

/* ---- states ---- */

enum { TOKENS = 12 };

/* A greedy stream; its tokens to out [TOKENS]. */
static void generate(const host_kit *k, opipe_state *state, int64_t first, uint32_t n, bool goes_on,
                     int64_t *out, opipe_error *err) {
  int64_t token = first;
  for (uint32_t i = 0; i < n; ++i) {
    opipe_request *request = NULL;
    opipe_tensor got;
    MUST_OK(decoder_submit(k, state, i == 0 && !goes_on, &token, &request, err), err);
    MUST_OK(k->api->request_wait(request, UINT64_MAX, err), err);
    MUST_OK(k->api->request_output(request, 0, &got, err), err);
    const float *logits = got.data;
    uint32_t best = 0;
    for (uint32_t c = 1; c < DECODER_CLASSES; ++c)
      best = logits[c] > logits[best] ? c : best;
    out[i] = token = best;
    k->api->request_release(request);
  }
}

static int64_t said[THREADS][2 * TOKENS]; /* by the session of one process */

/* Every way of a state: opened, filled, copied, gone on with, reset, closed. */
static void walk(const host_kit *k, int64_t first, int64_t *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_state *a = NULL, *b = NULL;
  MUST_OK(k->api->session_state_open(k->session, NULL, &a, &err), &err);
  MUST_OK(k->api->session_state_open(k->session, NULL, &b, &err), &err);
  generate(k, a, first, TOKENS / 2, false, out, &err);
  MUST_OK(k->api->state_copy(b, a, &err), &err);
  MUST_OK(k->api->state_reset(a, &err), &err);
  generate(k, b, out[TOKENS / 2 - 1], TOKENS / 2, true, out + TOKENS / 2, &err);
  generate(k, a, first + 1, TOKENS, false, out + TOKENS, &err);
  k->api->state_close(a);
  k->api->state_close(b);
}

typedef struct walker {
  const host_kit *k;
  uint32_t number;
} walker;

static void *be_walker(void *arg) {
  const walker *w = arg;
  int64_t out[2 * TOKENS];
  for (uint32_t i = 0; i < 2; ++i) {
    walk(w->k, 3 + 5 * w->number, out);
    MUST(memcmp(out, said[w->number], sizeof out) == 0);
  }
  return NULL;
}

static void many_states(void) {
  member m;
  host_kit alone;
  opipe_state_pair pairs[DECODER_PAIRS];
  opipe_team_params team = opipe_team_params_init();
  opipe_plan_params p = opipe_plan_params_init();
  pthread_t threads[THREADS];
  walker walkers[THREADS];
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 1}, {"past", 16}};
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source("tests/data/gpt_past/model.onnx")};
  opipe_bind_options bind = opipe_bind_options_init();
  memset(&m, 0, sizeof m);
  p.n_streams = 2 * THREADS;
  p.devices = &one_thread;
  p.n_devices = 1;
  if (me == 0) {
    MUST_OK(decoder_open(&alone, NULL, p), &alone.err);
    for (uint32_t t = 0; t < THREADS; ++t)
      walk(&alone, 3 + 5 * t, said[t]);
    kit_close(&alone);
  }
  for (uint32_t i = 0; i < DECODER_PAIRS; ++i) {
    pairs[i] = (opipe_state_pair){
        .output = decoder_present[i], .input = decoder_past[i], .capacity = DECODER_ROOM};
  }
  host_kit *k = &m.k;
  k->err = (opipe_error)OPIPE_ERROR_INIT;
  MUST_OK(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  MUST_OK(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  team.rank = me;
  team.size = W;
  team.job = job;
  team.launcher = "none";
  MUST_OK(k->api->team_open(k->context, &team, &m.team, &k->err), &k->err);
  MUST_OK(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.dims = dims;
  bind.n_dims = 3;
  MUST_OK(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  p.n_stages = 2;
  p.states = pairs;
  p.n_states = DECODER_PAIRS;
  p.team = m.team;
  p.transport = "shm";
  plan(&m, &p);
  if (lead(&m)) {
    for (uint32_t t = 0; t < THREADS; ++t) {
      walkers[t] = (walker){&m.k, t};
      MUST(pthread_create(&threads[t], NULL, be_walker, &walkers[t]) == 0);
    }
    for (uint32_t t = 0; t < THREADS; ++t)
      MUST(pthread_join(threads[t], NULL) == 0);
  }
  leave(&m);
}

static void test_states(void) {
  run_case("states", many_states, NULL);
}

/* ---- evaluations, and calls that are not followed ---- */

static double evaluate(member *m, opipe_session *session) {
  static const int64_t shape[] = {BATCH, SEQ};
  const opipe_binding_io inputs[] = {ids_of("input_ids", shape, true),
                                     ids_of("labels", shape, true)};
  opipe_submit_params params = opipe_submit_params_init();
  opipe_train_report report = opipe_train_report_init();
  opipe_request *ticket = NULL;
  params.n_inputs = 2;
  params.inputs = inputs;
  MUST_OK(m->k.api->session_evaluate(session, &params, &ticket, &m->k.err), &m->k.err);
  MUST_OK(m->k.api->request_wait(ticket, UINT64_MAX, &m->k.err), &m->k.err);
  MUST_OK(m->k.api->request_report(ticket, &report, &m->k.err), &m->k.err);
  m->k.api->request_release(ticket);
  return report.loss;
}

static void evaluations(void) {
  static const int64_t shape[] = {BATCH, SEQ};
  member m;
  opipe_plan *alone = NULL;
  opipe_session *local = NULL;
  opipe_request *ticket = NULL;
  opipe_train_clock clock = opipe_train_clock_init();
  join(&m, true);
  const opipe_train_options train = training();
  opipe_plan_params p = four_ranks(&m);
  p.train = &train;
  double loss = 0;
  if (me == 0) {
    open_alone(&m, p, &alone, &local);
    loss = evaluate(&m, local);
    m.k.api->session_close(local);
    m.k.api->plan_destroy(alone);
  }
  plan(&m, &p);
  for (uint32_t again = 0; again < 2; ++again) { /* one session after the other */
    if (lead(&m)) {
      const opipe_binding_io inputs[] = {ids_of("input_ids", shape, true),
                                         ids_of("labels", shape, true)};
      opipe_submit_params params = opipe_submit_params_init();
      params.n_inputs = 2;
      params.inputs = inputs;
      MUST(evaluate(&m, m.k.session) == loss && evaluate(&m, m.k.session) == loss);
      MUST(m.k.api->session_train_step(m.k.session, &params, &ticket, &m.k.err) ==
           OPIPE_E_UNSUPPORTED);
      MUST_SAY(&m.k.err, "session_train_step: all processes would have to make it");
      MUST(m.k.api->session_clock(m.k.session, &clock, &m.k.err) == OPIPE_E_UNSUPPORTED);
      MUST(m.k.api->session_follow(m.k.session, &m.k.err) == OPIPE_E_INVALID);
    }
    m.k.api->session_close(m.k.session);
    m.k.session = NULL;
  }
  leave(&m);
}

static void refusals(void) {
  member m;
  opipe_request *request = NULL;
  const int64_t shape[] = {BATCH, SEQ};
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  opipe_session_params session = in_team(&m);
  session.flags = OPIPE_SESSION_FOLLOWED | OPIPE_SESSION_INPUTS_OF_0;
  MUST(kit_open(&m.k, &session) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "a followed session needs inputs of process 0, outputs to process 0");
  session = in_team(&m);
  session.flags = FOLLOWED & (me == 0 ? ~0u : ~(uint32_t)OPIPE_SESSION_FOLLOWED);
  MUST(kit_open(&m.k, &session) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "which say whether inputs and outputs travel");
  open_session(&m);
  MUST(m.k.api->session_follow(m.k.session, &m.k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "the session was opened without OPIPE_SESSION_FOLLOWED");
  m.k.api->session_close(m.k.session);
  session = followed(&m);
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  if (me == 1) {
    const opipe_binding_io io = ids_of("input_ids", shape, true);
    MUST(kit_submit(&m.k, &io, &request) == OPIPE_E_INVALID);
    MUST_SAY(&m.k.err, "process 1 follows process 0 in this session");
    MUST_OK(m.k.api->session_follow(m.k.session, &m.k.err), &m.k.err);
  }
  leave(&m);
}

static void test_calls(void) {
  run_case("evaluate", evaluations, NULL);
  run_case("refusals", refusals, NULL);
}

/* ---- the command follow ---- */

/* A server at process 0, whose plan and sizes the command takes: two sessions, then it leaves. */
static void be_server(void) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = opi_test_source(GPT)};
  const opipe_dim dims[] = {{"batch", BATCH}, {"seq", SEQ}};
  static float out[OUT];
  member m;
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_share_params share = opipe_share_params_init();
  memset(&m, 0, sizeof m);
  m.k.err = (opipe_error)OPIPE_ERROR_INIT;
  host_kit *k = &m.k;
  MUST_OK(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  MUST_OK(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  MUST_OK(k->api->team_open(k->context, NULL, &m.team, &k->err), &k->err);
  MUST_OK(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.dims = dims;
  bind.n_dims = 2;
  MUST_OK(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  for (uint32_t again = 0; again < 2; ++again) {
    opipe_plan_params p = four_ranks(&m);
    opipe_plan *own = NULL;
    p.team = NULL;
    p.n_microbatches = 1 + again;
    MUST_OK(k->api->plan_make(k->bound, &p, &own, &k->err), &k->err);
    share.team = m.team;
    share.plan = own;
    MUST_OK(k->api->plan_share(k->bound, &share, &k->plan, &k->err), &k->err);
    opipe_session_params session = followed(&m);
    session.max_in_flight = 3;
    session.max_shapes = 5;
    MUST_OK(kit_open(k, &session), &k->err);
    const client c = {.m = &m, .session = k->session};
    for (uint32_t i = 0; i < 8; ++i)
      MUST_OK(run_one(&c, i % SHAPES, i % KINDS, false, out, &k->err), &k->err);
    k->api->session_close(k->session);
    k->api->plan_destroy(k->plan);
    k->api->plan_destroy(own);
    k->session = NULL;
    k->plan = NULL;
  }
  k->api->team_close(m.team);
  kit_close(k);
}

static void serve_or_follow(void) {
  static char command[4096];
  (void)setenv("RANK", me == 0 ? "0" : "1", 1);
  (void)setenv("WORLD_SIZE", "2", 1);
  (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
  (void)setenv("MASTER_PORT", "29999", 1);
  (void)setenv("TORCHELASTIC_RUN_ID", job, 1);
  if (me == 0) {
    be_server();
    return;
  }
  (void)snprintf(command, sizeof command, "%s", opi_test_build("bin/onnx-pipe"));
  (void)execl(command, "onnx-pipe", "follow", opi_test_source(GPT), (char *)NULL);
  _exit(127);
}

static void test_the_command(void) {
  if (access(opi_test_build("bin/onnx-pipe"), X_OK) != 0)
    OPI_SKIP("the command is not built here");
  run_case("command", serve_or_follow, NULL);
}

/* ---- a follower that ends, and a process 0 that does ---- */

/* Ends a process whose team has failed. */
static void give_up(member *m, int status) {
  m->k.api->session_close(m->k.session);
  m->k.session = NULL;
  m->k.api->team_close(m->team);
  kit_close(&m->k);
  _exit(status);
}

static void one_dies(uint32_t victim) {
  member m;
  static float out[OUT];
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  const opipe_session_params session = followed(&m);
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  const client c = {.m = &m, .session = m.k.session};
  if (me == 1 && victim == 1)
    _exit(7);
  if (me == 1) {
    MUST(m.k.api->session_follow(m.k.session, &m.k.err) == OPIPE_E_PEER);
    MUST_SAY(&m.k.err, "process 0 (pid ");
    give_up(&m, 8);
  }
  if (victim == 0) {
    MUST_OK(run_one(&c, 0, 0, false, out, &m.k.err), &m.k.err);
    _exit(7);
  }
  const int64_t dims[] = {BATCH, SEQ};
  const opipe_binding_io io = ids_of("input_ids", dims, true);
  opipe_request *request = NULL;
  opipe_status status = kit_submit(&m.k, &io, &request);
  if (status == OPIPE_OK)
    status = m.k.api->request_wait(request, UINT64_MAX, &m.k.err);
  MUST(status < 0);
  MUST_SAY(&m.k.err, "process 1 (pid ");
  m.k.api->request_release(request);
  give_up(&m, 9);
}

static void follower_dies(void) {
  one_dies(1);
}

static void leader_dies(void) {
  one_dies(0);
}

static void test_deaths(void) {
  run_case("follower", follower_dies, (const int[]){9, 7});
  run_case("leader", leader_dies, (const int[]){7, 8});
}

OPI_TEST_MAIN("follow", OPI_TEST(test_requests), OPI_TEST(test_allocations), OPI_TEST(test_states),
              OPI_TEST(test_calls), OPI_TEST(test_the_command), OPI_TEST(test_deaths))
