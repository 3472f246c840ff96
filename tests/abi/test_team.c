/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a team make one plan and open sessions together.
 * ctest: timeout=120 */
#include <pthread.h>
#include <time.h>

#include "tests/abi/team_kit.h"

enum { TEXT = 1 << 20 };

typedef struct text {
  char *bytes;
  size_t n;
} text;

static int add(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  MUST(t->n + n <= TEXT);
  memcpy(t->bytes + t->n, data, n);
  t->n += n;
  return OPIPE_OK;
}

/* ---- one plan ---- */

static void plans_are_one(void) {
  member m;
  join(&m, true);
  const opipe_train_options train = training();
  opipe_plan_params p = four_ranks(&m);
  p.train = &train;
  plan(&m, &p);
  text t = {malloc(TEXT), 0};
  MUST(t.bytes != NULL);
  MUST_OK(m.k.api->plan_write(m.k.plan, add, &t, &m.k.err), &m.k.err);
  MUST(is_same_everywhere(&m, t.bytes, t.n));
  /* It is the plan that one process makes for itself, whose bytes are exact. */
  opipe_plan *alone = NULL;
  text own = {malloc(TEXT), 0};
  p.team = NULL;
  MUST_OK(m.k.api->plan_make(m.k.bound, &p, &alone, &m.k.err), &m.k.err);
  MUST_OK(m.k.api->plan_write(alone, add, &own, &m.k.err), &m.k.err);
  MUST(own.n == t.n && memcmp(own.bytes, t.bytes, t.n) == 0);
  m.k.api->plan_destroy(alone);
  free(own.bytes);
  free(t.bytes);
  /* Every rank has what was predicted. */
  open_session(&m);
  for (uint32_t r = 2 * me; r < 2 * me + 2; ++r) {
    opipe_memory_info predicted = opipe_memory_info_init(), measured = opipe_memory_info_init();
    MUST_OK(m.k.api->plan_memory(m.k.plan, r, &predicted, &m.k.err), &m.k.err);
    MUST_OK(m.k.api->session_memory(m.k.session, r, &measured, &m.k.err), &m.k.err);
    MUST(predicted.total_bytes != 0 && predicted.total_bytes == measured.total_bytes);
    MUST((predicted.flags & OPIPE_MEMORY_ESTIMATED) == 0);
  }
  leave(&m);
}

static void params_differ(void) {
  member m;
  join(&m, false);
  opipe_plan_params p = four_ranks(&m);
  p.schedule = me == 0 ? "1f1b" : "gpipe";
  MUST(m.k.api->plan_make(m.k.bound, &p, &m.k.plan, &m.k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "process 0 asks for schedule '1f1b', process 1 for schedule 'gpipe'");
  /* Ranks that do not fit the processes, and places that do not fit the ranks. */
  p = four_ranks(&m);
  p.n_stages = 3;
  MUST(m.k.api->plan_make(m.k.bound, &p, &m.k.plan, &m.k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "the plan has 3 ranks, the team 2 processes");
  const uint32_t all_in_one[] = {0, 0, 0, 0}, far[] = {0, 1, 2, 1};
  p = four_ranks(&m);
  p.places = all_in_one;
  p.n_places = 4;
  MUST(m.k.api->plan_make(m.k.bound, &p, &m.k.plan, &m.k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "no rank is placed in process 1");
  p.places = far;
  MUST(m.k.api->plan_make(m.k.bound, &p, &m.k.plan, &m.k.err) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "rank 2 is placed in process 2, the team has 2");
  /* A device that one process lacks is that process's, by name. */
  const opipe_device_choice lacking = {.kind = "cpu", .index = me == 1 ? 3 : 0};
  p = four_ranks(&m);
  p.devices = &lacking;
  p.n_devices = 1;
  MUST(m.k.api->plan_make(m.k.bound, &p, &m.k.plan, &m.k.err) < 0);
  MUST_SAY(&m.k.err, "rank 2 of process 1: ");
  /* The team goes on. A device without a number is one that the process has. */
  const opipe_device_choice any = {.kind = "cpu", .index = OPIPE_NONE};
  const uint32_t places[] = {1, 0, 0, 1};
  p.devices = &any;
  p.places = places;
  p.n_places = 4;
  plan(&m, &p);
  open_session(&m);
  opipe_memory_info info = opipe_memory_info_init();
  for (uint32_t r = 0; r < 4; ++r)
    MUST((m.k.api->session_memory(m.k.session, r, &info, NULL) == OPIPE_OK) == (places[r] == me));
  leave(&m);
}

/* A plan that only process 0 has, and a refusal of its own. */
static void plans_are_shared(void) {
  member m;
  opipe_plan *shared = NULL;
  opipe_share_params give = opipe_share_params_init();
  join(&m, false);
  opipe_plan_params p = four_ranks(&m);
  p.team = NULL;
  if (me == 0)
    plan(&m, &p);
  give.team = m.team;
  give.plan = m.k.plan;
  MUST_OK(m.k.api->plan_share(m.k.bound, &give, &shared, &m.k.err), &m.k.err);
  m.k.api->plan_destroy(m.k.plan);
  m.k.plan = shared;
  open_session(&m);
  give.plan = NULL;
  give.refused = me == 0 ? OPIPE_E_LIMIT : OPIPE_OK;
  give.reason = "no plan today";
  MUST(m.k.api->plan_share(m.k.bound, &give, &shared, &m.k.err) == OPIPE_E_LIMIT);
  MUST_SAY(&m.k.err, "no plan today");
  leave(&m);
}

static void test_one_plan(void) {
  run_case("one", plans_are_one, NULL);
  run_case("differ", params_differ, NULL);
  run_case("shared", plans_are_shared, NULL);
}

/* ---- sessions ---- */

/* One request of `rows`; the status of the submit, or of the wait. */
static opipe_status request(member *m, int64_t rows) {
  const int64_t shape[] = {rows, SEQ};
  uint32_t needed = 0;
  opipe_request *r = NULL;
  MUST_OK(m->k.api->session_needs(m->k.session, "input_ids", &needed, &m->k.err), &m->k.err);
  MUST(needed == (me == 0 ? 1 : 0)); /* stage 0 is there */
  const opipe_binding_io io = ids_of("input_ids", shape, needed != 0);
  const opipe_status status = kit_submit(&m->k, &io, &r);
  if (status != OPIPE_OK)
    return status;
  const opipe_status ended = m->k.api->request_wait(r, UINT64_MAX, &m->k.err);
  opipe_tensor out;
  const opipe_status has = m->k.api->request_output(r, 0, &out, NULL);
  MUST(ended != OPIPE_OK || has == (me == 1 ? OPIPE_OK : OPIPE_E_NOTFOUND));
  m->k.api->request_release(r);
  return ended;
}

static void one_refuses(void) {
  member m;
  /* A budget that has room for the plan's shape and for a smaller one, not for one of more rows. */
  const opipe_device_budget budget = {.kind = "cpu", .memory_bytes = me == 1 ? 924000 : 0};
  opipe_context_params context = opipe_context_params_init();
  context.budgets = &budget;
  context.n_budgets = me == 1 ? 1 : 0;
  join_as(&m, &context, OPIPE_BIND_DEFAULTS, 0);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  /* A refused open is everybody's, and the team goes on. */
  opipe_rank_device wrong = {.rank = 2 * me, .index = me == 1 ? 7 : OPIPE_NONE};
  opipe_session_params session = in_team(&m);
  session.devices = &wrong;
  session.n_devices = 1;
  MUST(kit_open(&m.k, &session) < 0);
  MUST_SAY(&m.k.err, "process 1 (pid ");
  wrong = (opipe_rank_device){.rank = 2 * (1 - me), .index = OPIPE_NONE};
  MUST(kit_open(&m.k, &session) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "which is elsewhere");
  session = in_team(&m);
  session.transport_options = me == 1 ? "nonsense=1" : NULL;
  MUST(kit_open(&m.k, &session) < 0);
  MUST_SAY(&m.k.err, "process 1 (pid ");
  MUST_SAY(&m.k.err, "nonsense");
  /* Threads and memory of this machine are no part of the plan. */
  const opipe_rank_device own = {
      .rank = 2 * me, .index = OPIPE_NONE, .threads = 2, .memory_bytes = UINT64_C(1) << 30};
  session = in_team(&m);
  session.devices = &own;
  session.n_devices = 1;
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  opipe_memory_info info = opipe_memory_info_init();
  MUST_OK(m.k.api->session_memory(m.k.session, 2 * me, &info, &m.k.err), &m.k.err);
  MUST(info.cap_bytes == UINT64_C(1) << 30);
  m.k.api->session_close(m.k.session);
  open_session(&m);
  MUST_OK(request(&m, BATCH), &m.k.err);
  /* A refused shape is reported likewise, and the session goes on. */
  MUST(request(&m, 2 * BATCH) == OPIPE_E_LIMIT);
  MUST_SAY(&m.k.err, "process 1 (pid ");
  MUST_OK(request(&m, BATCH), &m.k.err);
  MUST_OK(request(&m, BATCH - 1), &m.k.err);
  leave(&m);
}

/* Steps to which process 0 gives ids, process 1 labels: all know loss and count. */
static void labels_are_elsewhere(void) {
  static const int64_t shape[] = {BATCH, SEQ};
  member m;
  join(&m, true);
  const opipe_train_options train = training();
  opipe_plan_params p = four_ranks(&m);
  p.train = &train;
  plan(&m, &p);
  open_session(&m);
  double told[2][4];
  for (uint32_t whole = 0; whole < 2; ++whole) {
    opipe_binding_io inputs[2];
    uint32_t needed[2] = {0, 0};
    opipe_request *ticket = NULL;
    opipe_train_report report = opipe_train_report_init();
    opipe_submit_params step = opipe_submit_params_init();
    const char *const names[] = {"input_ids", "labels"};
    for (uint32_t i = 0; i < 2; ++i) {
      MUST_OK(m.k.api->session_needs(m.k.session, names[i], &needed[i], &m.k.err), &m.k.err);
      MUST(needed[i] == (me == i ? 1u : 0u));
      inputs[i] = ids_of(names[i], shape, needed[i] != 0 || whole != 0);
    }
    step.n_inputs = 2;
    step.inputs = inputs;
    MUST_OK(m.k.api->session_evaluate(m.k.session, &step, &ticket, &m.k.err), &m.k.err);
    MUST_OK(m.k.api->request_wait(ticket, UINT64_MAX, &m.k.err), &m.k.err);
    MUST_OK(m.k.api->request_report(ticket, &report, &m.k.err), &m.k.err);
    m.k.api->request_release(ticket);
    told[whole][0] = report.loss;
    told[whole][1] = report.count;
    MUST(report.count == (double)(BATCH * (SEQ - 1)));
  }
  MUST(told[0][0] == told[1][0] && is_same_everywhere(&m, told[0], 2 * sizeof(double)));
  /* The labels' process may not leave them out. */
  opipe_binding_io inputs[2] = {ids_of("input_ids", shape, true), ids_of("labels", shape, me == 0)};
  opipe_submit_params step = opipe_submit_params_init();
  opipe_request *ticket = NULL;
  step.n_inputs = 2;
  step.inputs = inputs;
  if (me == 1) {
    MUST(m.k.api->session_train_step(m.k.session, &step, &ticket, &m.k.err) == OPIPE_E_INVALID);
    MUST_SAY(&m.k.err, "input 'labels' has no data");
  }
  leave(&m);
}

static void test_sessions(void) {
  run_case("refuse", one_refuses, NULL);
  run_case("labels", labels_are_elsewhere, NULL);
}

/* ---- several sessions, and their ends ---- */

typedef struct opener {
  member *m;
  const char *name;
  opipe_session *session;
  opipe_error err;
  opipe_status status;
} opener;

static void *open_named(void *arg) {
  opener *o = arg;
  opipe_session_params p = in_team(o->m);
  p.name = o->name;
  o->status = o->m->k.api->session_open(o->m->k.context, o->m->k.plan, &p, &o->session, &o->err);
  return NULL;
}

static void orders_differ(void) {
  member m;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  opener one = {&m, "one", NULL, OPIPE_ERROR_INIT, 0};
  opener two = {&m, "two", NULL, OPIPE_ERROR_INIT, 0};
  opener *first = me == 0 ? &one : &two, *then = me == 0 ? &two : &one;
  pthread_t thread;
  const struct timespec a_while = {.tv_nsec = 100000000};
  MUST(pthread_create(&thread, NULL, open_named, first) == 0);
  (void)nanosleep(&a_while, NULL); /* each process has begun another one */
  (void)open_named(then);
  MUST(pthread_join(thread, NULL) == 0);
  MUST_OK(one.status, &one.err);
  MUST_OK(two.status, &two.err);
  m.k.session = two.session;
  MUST_OK(request(&m, BATCH), &m.k.err);
  m.k.api->session_close(two.session);
  m.k.session = one.session;
  MUST_OK(request(&m, BATCH), &m.k.err);
  leave(&m);
}

/* Sessions that will never meet: both sides are named. */
static void names_differ(void) {
  member m;
  join_as(&m, NULL, OPIPE_BIND_DEFAULTS, UINT64_C(1000000000));
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  opener o = {&m, me == 0 ? "left" : "right", NULL, OPIPE_ERROR_INIT, 0};
  (void)open_named(&o);
  MUST(o.status == OPIPE_E_STATE);
  MUST_SAY(&o.err, "session left #0");
  MUST_SAY(&o.err, "session right #0");
  open_session(&m);
  leave(&m);
}

/* A process that closes first waits, and the other works on. */
static void one_closes_first(void) {
  member m;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  open_session(&m);
  MUST_OK(request(&m, BATCH), &m.k.err);
  if (me == 1) {
    const struct timespec a_while = {.tv_nsec = 300000000};
    (void)nanosleep(&a_while, NULL);
    opipe_session_info info = opipe_session_info_init();
    opipe_memory_info memory = opipe_memory_info_init();
    MUST_OK(m.k.api->session_info(m.k.session, &info, &m.k.err), &m.k.err);
    MUST(info.requests_done == 1);
    MUST_OK(m.k.api->session_memory(m.k.session, 2, &memory, &m.k.err), &m.k.err);
    MUST_OK(m.k.api->team_check(m.team, &m.k.err), &m.k.err);
  }
  leave(&m);
}

/* A process that ends without a word is everybody's error, by name. */
static void one_ends_early(void) {
  member m;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  open_session(&m);
  MUST_OK(request(&m, BATCH), &m.k.err);
  if (me == 1)
    _exit(0);
  const opipe_status status = request(&m, BATCH);
  MUST(status == OPIPE_E_PEER || status == OPIPE_E_STATE);
  m.k.api->session_close(m.k.session);
  opipe_status known = OPIPE_OK; /* the transport may have noticed first */
  for (uint32_t i = 0; i < 200 && known == OPIPE_OK; ++i) {
    const struct timespec again = {.tv_nsec = 10000000};
    (void)nanosleep(&again, NULL);
    known = m.k.api->team_check(m.team, &m.k.err);
  }
  MUST(known == OPIPE_E_PEER);
  MUST_SAY(&m.k.err, "process 1 (pid ");
  m.k.session = NULL;
  m.k.api->team_close(m.team);
  kit_close(&m.k);
}

static void test_several(void) {
  run_case("orders", orders_differ, NULL);
  run_case("names", names_differ, NULL);
}

static void test_ends(void) {
  run_case("first", one_closes_first, NULL);
  run_case("early", one_ends_early, NULL);
}

OPI_TEST_MAIN("team", OPI_TEST(test_one_plan), OPI_TEST(test_sessions), OPI_TEST(test_several),
              OPI_TEST(test_ends))
