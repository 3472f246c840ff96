/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that are not what a call wants: another kind, released, closed, destroyed, NULL, garbage.
 * All are refused with a message, and nobody else's object suffers.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/abi/handle_calls.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int64_t shape[2] = {1, 8};
static const uint64_t SOON = UINT64_C(30000000000);

static _Atomic uint32_t n_logged;

static void count_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level == OPIPE_LOG_ERROR && strlen(msg) > 10)
    ++n_logged;
}

/* Errors are counted, not printed. */
static const opipe_context_params quiet = {
    .struct_size = sizeof quiet, .log_level = OPIPE_LOG_ERROR, .log = count_log};

static opipe_request *submit(host_kit *k) {
  opipe_request *request = NULL;
  const opipe_binding_io input = kit_ids(ids, shape);
  OPI_ASSERT_OK(kit_submit(k, &input, &request), &k->err);
  return request;
}

/* A release that comes too late must not take the next request from its owner, which lies in the
 * same memory. */
static void test_a_stale_release_leaves_the_next_request_alone(void) {
  host_kit k;
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &quiet, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *first = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(first, SOON, &k.err), &k.err);
  k.api->request_release(first);
  n_logged = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    opipe_request *next = submit(&k);
    OPI_ASSERT(next != first);
    k.api->request_release(first);
    OPI_ASSERT_ERROR(k.api->request_poll(first, &k.err), OPIPE_E_STATE, &k.err,
                     "request_poll: the request was released");
    OPI_ASSERT_OK(k.api->request_wait(next, SOON, &k.err), &k.err);
    k.api->request_release(first);
    OPI_ASSERT_OK(k.api->request_output(next, 0, &out, &k.err), &k.err);
    k.api->request_release(next);
    k.api->request_release(next);
  }
  OPI_ASSERT_INT(n_logged, 300);
  kit_close(&k);
}

/* Requests of a closed session are gone, released or not. */
static void test_requests_end_with_their_session(void) {
  host_kit k;
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &quiet, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *finished = submit(&k), *flying = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(finished, SOON, &k.err), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_ERROR(k.api->request_output(finished, 0, &out, &k.err), OPIPE_E_STATE, &k.err,
                   "its session closed");
  OPI_ASSERT_INT(k.api->request_wait(flying, SOON, &k.err), OPIPE_E_STATE);
  OPI_ASSERT_INT(k.api->request_cancel(flying, &k.err), OPIPE_E_STATE);
  k.api->request_release(finished);
  k.api->request_release(flying);
  kit_close(&k);
}

static void test_a_request_for_inference_has_no_report(void) {
  host_kit k;
  opipe_train_report report = {.struct_size = sizeof report};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &quiet, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *request = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(request, SOON, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->request_report(request, &report, &k.err), OPIPE_E_STATE, &k.err,
                   "for inference");
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- every function x every bad handle ---- */

static const int64_t labels[8] = {2, 3, 4, 5, 6, 7, 8, 9};
static opipe_request *train_step(host_kit *k) {
  opipe_request *ticket = NULL;
  opipe_binding_io io[2] = {kit_ids(ids, shape), kit_ids(labels, shape)};
  io[1].name = "labels";
  const opipe_submit_params params = {
      .struct_size = sizeof params, .n_inputs = 2, .io_stride = sizeof io[0], .inputs = io};
  OPI_ASSERT_OK(k->api->session_train_step(k->session, &params, &ticket, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(ticket, SOON, &k->err), &k->err);
  return ticket;
}

/* A session whose streams keep something, and the state of one. */
static opipe_state *open_past(host_kit *k) {
  static const opipe_state_pair pair = {.output = "present_k_0", .input = "past_k_0"};
  const opipe_plan_params params = {
      .struct_size = sizeof params, .states = &pair, .n_states = 1, .states_stride = sizeof pair};
  opipe_state *state = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(k, &quiet, "tests/data/gpt_past/model.onnx", 1, 8, &params),
                      &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->session_state_open(k->session, NULL, &state, &k->err), &k->err);
  return state;
}

/* A session that generates, and a sequence of it. */
static opipe_sequence *open_sequence(host_kit *k) {
  static const uint32_t prompt[3] = {1, 2, 3};
  const opipe_generate_params turn = {
      .struct_size = sizeof turn, .ids = prompt, .n_ids = 3, .sampling = "max_tokens=2"};
  opipe_sequence *sequence = NULL;
  OPI_ASSERT_OK_FATAL(k->api->session_generate(k->session, &turn, &sequence, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->sequence_wait(sequence, UINT32_MAX, SOON, &k->err), &k->err);
  return sequence;
}

static void open_generating(host_kit *k) {
  const opipe_generation_params generation = {.struct_size = sizeof generation, .context = 64};
  const opipe_plan_params params = {.struct_size = sizeof params, .generation = &generation};
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source("tests/data/rows/grown/model.onnx")};
  memset(k, 0, sizeof *k);
  k->err = (opipe_error)OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(&quiet, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->model, &params, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
}

/* A team of this process alone. */
static opipe_team *open_team(host_kit *k) {
  opipe_team_params params = opipe_team_params_init();
  opipe_team *team = NULL;
  params.launcher = "none";
  OPI_ASSERT_OK_FATAL(k->api->team_open(k->context, &params, &team, &k->err), &k->err);
  return team;
}

/* One of each kind that lives, one that does not. */
static void bench_open(bench *b) {
  host_kit *k = &b->k;
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 2, .train = &train_simple};
  opipe_order *order = NULL;
  OPI_ASSERT_OK_FATAL(
      kit_plan_bound(k, &quiet, GPT, 1, 8, OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN, &params),
      &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->order_make(k->context, &order_small, &order, &k->err), &k->err);
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  kit_strategy(k, &profile, &strategy);
  open_generating(&b->generating);
  void *const live[KINDS] = {k->context,
                             k->bound,
                             k->plan,
                             k->session,
                             train_step(k),
                             order,
                             open_past(&b->past),
                             profile,
                             strategy,
                             open_team(k),
                             open_sequence(&b->generating)};
  memcpy(b->live, live, sizeof live);
  opipe_context *second = NULL;
  opipe_model *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  const opipe_bind_options defaults = {.struct_size = sizeof defaults,
                                       .flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN};
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &second, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &defaults, &bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, &params, &plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->session_open(k->context, k->plan, NULL, &session, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->order_make(k->context, &order_small, &order, &k->err), &k->err);
  opipe_state *state = NULL;
  OPI_ASSERT_OK_FATAL(k->api->session_state_open(b->past.session, NULL, &state, &k->err), &k->err);
  kit_strategy(k, &profile, &strategy);
  opipe_team *team = open_team(k);
  opipe_sequence *sequence = open_sequence(&b->generating);
  void *const dead[KINDS] = {second, bound,   plan,     session, train_step(k), order,
                             state,  profile, strategy, team,    sequence};
  memcpy(b->dead, dead, sizeof dead);
  k->api->context_destroy(second);
  k->api->model_destroy(bound);
  k->api->plan_destroy(plan);
  k->api->session_close(session);
  k->api->request_release(dead[REQUEST]);
  k->api->order_destroy(order);
  k->api->state_close(state);
  k->api->profile_destroy(profile);
  k->api->strategy_destroy(strategy);
  k->api->team_close(team);
  k->api->sequence_release(sequence);
}

static void bench_close(bench *b) {
  b->k.api->profile_destroy(b->live[PROFILE]);
  b->k.api->strategy_destroy(b->live[STRATEGY]);
  b->k.api->team_close(b->live[TEAM]);
  b->k.api->request_release(b->live[REQUEST]);
  b->k.api->order_destroy(b->live[ORDER]);
  kit_close(&b->generating);
  kit_close(&b->past);
  kit_close(&b->k);
}

enum { BAD_MOST = 36 };

/* Handles that row `c` must refuse; NULL is not among them. */
static uint32_t bad_handles(const bench *b, const handle_call *c, void *block, void **out) {
  static opipe_tensor innocent;
  uint32_t n = 0;
  for (uint32_t kind = 0; kind < KINDS; ++kind) {
    if (kind != c->kind)
      out[n++] = b->live[kind];
    out[n++] = b->dead[kind];
  }
  const uintptr_t good = (uintptr_t)b->live[c->kind];
  const uintptr_t garbage[] = {1,
                               8,
                               UINTPTR_MAX,
                               (uintptr_t)block,
                               (uintptr_t)block + 1,
                               (uintptr_t)&innocent,
                               (uintptr_t)b->k.api,
                               good ^ ((uintptr_t)1 << 40),
                               good ^ ((uintptr_t)1 << 20),
                               good ^ 1,
                               good ^ ((uintptr_t)1 << 63)};
  for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; ++i)
    out[n++] = (void *)garbage[i];
  return n;
}

static void expect_refused(const bench *b, const handle_call *c, void *h) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = c->call(b, h, &err);
  if (!((status == OPIPE_E_INVALID || status == OPIPE_E_STATE) &&
        strncmp(err.message, c->name, strlen(c->name)) == 0))
    OPI_FAIL("%s with handle %p: status %d, '%s'", c->name, h, status, err.message);
  if (c->call(b, h, NULL) != status)
    OPI_FAIL("%s with handle %p: another status without an error struct", c->name, h);
}

static void test_every_slot_of_the_table_has_a_row(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  for (size_t slot = offsetof(opipe_api, context_create) + sizeof(void *); slot < api->struct_size;
       slot += sizeof(void *)) {
    size_t i = 0;
    while (i < HANDLE_CALLS && handle_calls[i].slot != slot)
      ++i;
    if (i == HANDLE_CALLS)
      OPI_FAIL("the function at byte %zu of opipe_api has no row in handle_calls.h", slot);
  }
}

static void test_no_function_takes_a_bad_handle(void) {
  bench b;
  void *bad[BAD_MOST], *block = calloc(1, 4096);
  bench_open(&b);
  for (size_t i = 0; i < HANDLE_CALLS; ++i) {
    const handle_call *c = &handle_calls[i];
    if (c->is_void)
      continue;
    const uint32_t n = bad_handles(&b, c, block, bad);
    expect_refused(&b, c, NULL);
    for (uint32_t k = 0; k < n; ++k)
      expect_refused(&b, c, bad[k]);
  }
  b.k.api->request_release(train_step(&b.k));
  bench_close(&b);
  free(block);
}

/* Lines written to standard error since it was sent to `file`. */
static uint32_t count_lines(FILE *file) {
  uint32_t n = 0;
  rewind(file);
  for (int c = getc(file); c != EOF; c = getc(file))
    n += c == '\n';
  return n;
}

/* They say so in the log of the context that the handle belongs to, else on standard error, and
 * destroy nothing. */
static void test_functions_without_a_status_log_and_do_nothing(void) {
  bench b;
  void *bad[BAD_MOST], *block = calloc(1, 4096);
  uint32_t n_bad = 0;
  FILE *file = tmpfile();
  OPI_ASSERT_FATAL(file != NULL);
  bench_open(&b);
  n_logged = 0;
  const int kept = dup(STDERR_FILENO);
  OPI_ASSERT_FATAL(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  for (size_t i = 0; i < HANDLE_CALLS; ++i) {
    const handle_call *c = &handle_calls[i];
    if (!c->is_void)
      continue;
    const uint32_t n = bad_handles(&b, c, block, bad);
    (void)c->call(&b, NULL, NULL);
    for (uint32_t k = 0; k < n; ++k, ++n_bad)
      (void)c->call(&b, bad[k], NULL);
  }
  (void)dup2(kept, STDERR_FILENO);
  (void)close(kept);
  OPI_ASSERT(n_logged > n_bad / 3); /* the live ones, and the dead whose slots are not in use */
  OPI_ASSERT_INT(n_logged + count_lines(file), n_bad);
  OPI_ASSERT_OK(b.k.api->request_poll(b.live[REQUEST], &b.k.err), &b.k.err);
  b.k.api->request_release(train_step(&b.k));
  bench_close(&b);
  (void)fclose(file);
  free(block);
}

/* ---- threads ---- */

typedef struct crowd {
  host_kit k;
  _Atomic uintptr_t plan, request;
  _Atomic uint32_t done, n_bad;
} crowd;

static void *look(void *arg) {
  crowd *c = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  while (c->done == 0) {
    opipe_plan_info info = {.struct_size = sizeof info};
    opipe_tensor out;
    const opipe_status plan = c->k.api->plan_info((opipe_plan *)c->plan, &info, &err);
    if (plan != OPIPE_OK && plan != OPIPE_E_STATE)
      ++c->n_bad;
    if (plan == OPIPE_OK && info.n_stages != 2)
      ++c->n_bad;
    opipe_request *request = (opipe_request *)c->request;
    const opipe_status poll = c->k.api->request_poll(request, &err);
    if (poll != OPIPE_OK && poll != OPIPE_PENDING && poll != OPIPE_E_STATE)
      ++c->n_bad;
    const opipe_status output = c->k.api->request_output(request, 0, &out, &err);
    if (output != OPIPE_OK && output != OPIPE_E_STATE)
      ++c->n_bad;
  }
  return NULL;
}

/* Others look at plans and requests that come and go: an answer or a refusal, never anything else.
 */
static void test_threads_look_at_what_others_destroy(void) {
  enum { ROUNDS = 12, LOOKERS = 2 };
  static const opipe_plan_params two = {.struct_size = sizeof two, .n_stages = 2};
  static crowd c;
  pthread_t threads[LOOKERS];
  OPI_ASSERT_OK_FATAL(kit_plan(&c.k, &quiet, GPT, 1, 8, &two), &c.k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&c.k, NULL), &c.k.err);
  c.plan = (uintptr_t)c.k.plan;
  c.request = (uintptr_t)submit(&c.k);
  for (size_t i = 0; i < LOOKERS; ++i)
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, look, &c) == 0);
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    opipe_plan *plan = NULL;
    opipe_request *last = (opipe_request *)c.request, *next = submit(&c.k);
    OPI_ASSERT_OK_FATAL(c.k.api->plan_make(c.k.bound, &two, &plan, &c.k.err), &c.k.err);
    c.plan = (uintptr_t)plan;
    c.request = (uintptr_t)next;
    OPI_ASSERT_OK(c.k.api->request_wait(last, SOON, &c.k.err), &c.k.err);
    c.k.api->request_release(last);
    c.k.api->plan_destroy(plan);
  }
  opipe_session *session = c.k.session;
  c.k.session = NULL;
  c.k.api->session_close(session); /* with lookers inside its requests */
  c.done = 1;
  for (size_t i = 0; i < LOOKERS; ++i)
    (void)pthread_join(threads[i], NULL);
  OPI_ASSERT_INT(c.n_bad, 0);
  kit_close(&c.k);
}

OPI_TEST_MAIN("misuse", OPI_TEST(test_every_slot_of_the_table_has_a_row),
              OPI_TEST(test_no_function_takes_a_bad_handle),
              OPI_TEST(test_functions_without_a_status_log_and_do_nothing),
              OPI_TEST(test_a_stale_release_leaves_the_next_request_alone),
              OPI_TEST(test_requests_end_with_their_session),
              OPI_TEST(test_a_request_for_inference_has_no_report),
              OPI_TEST(test_threads_look_at_what_others_destroy))
