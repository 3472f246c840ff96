/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that process 0 of a team gives to all, and outputs that it is given: the bits are those of
 * threads.
 * ctest: timeout=120 */
#include <time.h>

#include "tests/abi/team_kit.h"

enum {
  STEPS = 3,
  LOGITS_MOST = 1 << 15,
  TRAVELS = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0
};

/* Answers to requests, or to steps and an evaluation after them. */
typedef struct outcome {
  double told[STEPS + 1][3];
  float logits[LOGITS_MOST];
  uint64_t n;
} outcome;

static void keep_output(member *m, opipe_request *request, uint32_t index, outcome *out) {
  opipe_tensor t;
  if (m->k.api->request_output(request, index, &t, NULL) < 0)
    return;
  out->n = 1;
  for (int32_t d = 0; d < t.rank; ++d)
    out->n *= (uint64_t)t.shape[d];
  MUST(out->n <= LOGITS_MOST);
  memcpy(out->logits, t.data, out->n * sizeof(float));
}

static void serve(member *m, bool gives, outcome *out) {
  static const int64_t shape[] = {BATCH, SEQ};
  opipe_request *all[STEPS];
  for (uint32_t i = 0; i < STEPS; ++i) {
    const opipe_binding_io io = ids_of("input_ids", shape, gives);
    MUST_OK(kit_submit(&m->k, &io, &all[i]), &m->k.err);
  }
  for (uint32_t i = 0; i < STEPS; ++i) {
    MUST_OK(m->k.api->request_wait(all[i], UINT64_MAX, &m->k.err), &m->k.err);
    keep_output(m, all[i], 0, out);
    m->k.api->request_release(all[i]);
  }
}

/* The steps are submitted one after the other, and then waited for. */
static void train(member *m, bool gives, outcome *out) {
  static const int64_t shape[] = {BATCH, SEQ};
  opipe_request *all[STEPS + 1];
  const opipe_binding_io inputs[] = {ids_of("input_ids", shape, gives),
                                     ids_of("labels", shape, gives)};
  opipe_submit_params step = opipe_submit_params_init();
  step.n_inputs = 2;
  step.inputs = inputs;
  for (uint32_t i = 0; i < STEPS; ++i)
    MUST_OK(m->k.api->session_train_step(m->k.session, &step, &all[i], &m->k.err), &m->k.err);
  MUST_OK(m->k.api->session_evaluate(m->k.session, &step, &all[STEPS], &m->k.err), &m->k.err);
  for (uint32_t i = 0; i <= STEPS; ++i) {
    opipe_train_report report = opipe_train_report_init();
    MUST_OK(m->k.api->request_wait(all[i], UINT64_MAX, &m->k.err), &m->k.err);
    MUST_OK(m->k.api->request_report(all[i], &report, &m->k.err), &m->k.err);
    out->told[i][0] = report.loss;
    out->told[i][1] = i == STEPS ? 0 : report.gradient_norm;
    out->told[i][2] = report.count;
    if (i == STEPS)
      keep_output(m, all[i], 1, out);
    m->k.api->request_release(all[i]);
  }
}

/* A plan of the case: inputs come from process 0, and outputs go there. */
typedef struct journey {
  const char *schedule;
  uint32_t places[4], replicas, n_stages;
  bool trains;
} journey;
static journey trip;

static opipe_plan_params plan_of(const member *m, const opipe_train_options *training) {
  opipe_plan_params p = four_ranks(m);
  p.schedule = trip.schedule;
  p.n_stages = trip.n_stages;
  p.replicas = trip.replicas;
  p.n_microbatches = trip.replicas == 1 ? 4 : 2;
  p.n_ranks = trip.n_stages == 0 ? 4 : 0;
  p.places = trip.places;
  p.n_places = 4;
  p.train = trip.trains ? training : NULL;
  return p;
}

/* Every rank has the memory that was predicted. */
static void check_memory(member *m) {
  for (uint32_t r = 0; r < 4; ++r) {
    opipe_memory_info predicted = opipe_memory_info_init(), measured = opipe_memory_info_init();
    predicted.flags = OPIPE_MEMORY_TRAVELS;
    MUST_OK(m->k.api->plan_memory(m->k.plan, r, &predicted, &m->k.err), &m->k.err);
    if (trip.places[r] != me)
      continue;
    MUST_OK(m->k.api->session_memory(m->k.session, r, &measured, &m->k.err), &m->k.err);
    MUST(predicted.total_bytes == measured.total_bytes);
  }
}

/* Process 1 needs nothing but shapes; it got what its ranks read, and gave what they made. */
static void check_needs(member *m, const outcome *out) {
  static const char *const names[] = {"input_ids", "labels"};
  opipe_session_info info = opipe_session_info_init();
  uint64_t labels = trip.trains ? BATCH * SEQ * sizeof(int64_t) * (STEPS + 1) : 0;
  for (uint32_t i = 0; i < (trip.trains ? 2u : 1u); ++i) {
    uint32_t needed = 2;
    MUST_OK(m->k.api->session_needs(m->k.session, names[i], &needed, &m->k.err), &m->k.err);
    MUST(needed == (me == 0 ? 1u : 0u));
  }
  MUST_OK(m->k.api->session_info(m->k.session, &info, &m->k.err), &m->k.err);
  if (strcmp(trip.schedule, "1f1b") != 0 || trip.replicas != 1 || trip.places[0] != 0)
    return; /* first and last stage are elsewhere */
  const uint64_t logits = out->n * sizeof(float) * (trip.trains ? 1u : STEPS);
  MUST(info.travelled_bytes >= logits + labels);
  MUST(info.travelled_bytes < logits + labels + BATCH * SEQ * sizeof(int64_t) * (STEPS + 1));
}

static void values_travel(void) {
  static outcome told[2];
  member m;
  const opipe_train_options options = training();
  join(&m, trip.trains);
  opipe_plan_params p = plan_of(&m, &options);
  plan(&m, &p);
  opipe_session_params session = in_team(&m);
  session.flags = TRAVELS;
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  check_memory(&m);
  (trip.trains ? train : serve)(&m, me == 0, &told[0]);
  MUST(me != 0 || told[0].n != 0);
  MUST(is_same_everywhere(&m, told[0].told, sizeof told[0].told));
  check_needs(&m, &told[0]);
  if (me == 0) { /* the same plan, run by threads */
    member alone = m;
    p.team = NULL;
    p.places = NULL;
    p.n_places = 0;
    p.transport = "local";
    plan(&alone, &p);
    MUST_OK(kit_open(&alone.k, NULL), &alone.k.err);
    (trip.trains ? train : serve)(&alone, true, &told[1]);
    MUST(memcmp(&told[0], &told[1], sizeof told[0]) == 0);
    alone.k.api->session_close(alone.k.session);
    alone.k.api->plan_destroy(alone.k.plan);
  }
  leave(&m);
}

/* Wishes that differ, and inputs that process 0 lacks. */
static void travels_are_refused(void) {
  static const int64_t shape[] = {BATCH, SEQ};
  member m;
  opipe_request *request = NULL;
  join(&m, false);
  const opipe_plan_params p = four_ranks(&m);
  plan(&m, &p);
  opipe_session_params session = in_team(&m);
  session.flags = me == 0 ? TRAVELS : OPIPE_SESSION_INPUTS_OF_0;
  MUST(kit_open(&m.k, &session) == OPIPE_E_INVALID);
  MUST_SAY(&m.k.err, "process 0 has 0x300, process 1 0x100");
  session.flags = TRAVELS;
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  const opipe_binding_io none = ids_of("input_ids", shape, false);
  if (me == 0) {
    MUST(kit_submit(&m.k, &none, &request) == OPIPE_E_INVALID);
    MUST_SAY(&m.k.err, "input 'input_ids' has no data");
  }
  const opipe_binding_io io = ids_of("input_ids", shape, me == 0);
  MUST_OK(kit_submit(&m.k, &io, &request), &m.k.err);
  MUST_OK(m.k.api->request_wait(request, UINT64_MAX, &m.k.err), &m.k.err);
  m.k.api->request_release(request);
  leave(&m);
}

/* Requests, or steps, that the process with rank 0 cancels at once end everywhere alike, with
 * values or without, and others go on. */
static void travels_are_cancelled(void) {
  static const int64_t shape[] = {BATCH, SEQ};
  member m;
  const opipe_train_options options = training();
  const bool cancels = trip.places[0] == me;
  join(&m, trip.trains);
  opipe_plan_params p = plan_of(&m, &options);
  plan(&m, &p);
  opipe_session_params session = in_team(&m);
  session.flags = TRAVELS;
  MUST_OK(kit_open(&m.k, &session), &m.k.err);
  const opipe_binding_io inputs[] = {ids_of("input_ids", shape, me == 0),
                                     ids_of("labels", shape, me == 0)};
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = trip.trains ? 2 : 1;
  submit.inputs = inputs;
  const time_t since = time(NULL);
  for (uint32_t i = 0; i < 24; ++i) {
    opipe_request *request = NULL;
    int32_t all[2] = {0, (int32_t)i};
    MUST_OK(trip.trains ? m.k.api->session_train_step(m.k.session, &submit, &request, &m.k.err)
                        : m.k.api->session_submit(m.k.session, &submit, &request, &m.k.err),
            &m.k.err);
    if (cancels && i % 2 == 0)
      (void)m.k.api->request_cancel(request, NULL);
    all[0] = m.k.api->request_wait(request, UINT64_MAX, &m.k.err);
    MUST(all[0] == OPIPE_OK || (i % 2 == 0 && all[0] == OPIPE_E_CANCELLED));
    MUST(is_same_everywhere(&m, all, sizeof all));
    m.k.api->request_release(request);
  }
  MUST(time(NULL) - since < 9); /* an idle rank that nobody wakes looks once a second */
  leave(&m);
}

static void test_values(void) {
  static const journey all[] = {
      {"1f1b", {0, 0, 1, 1}, 1, 4, false},   {"gpipe", {1, 0, 0, 1}, 1, 4, false},
      {"gpipe", {0, 1, 0, 1}, 2, 2, false}, /* rows of one output are made in both */
      {"1f1b", {0, 0, 1, 1}, 1, 4, true},    {"2bw", {1, 0, 0, 1}, 1, 4, true},
      {"chimera", {0, 1, 1, 0}, 1, 0, true}, {"seq1f1b:slices=2", {0, 0, 1, 1}, 1, 4, true},
  };
  for (uint32_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    trip = all[i];
    run_case("values", values_travel, NULL);
    if (i == 1 || i == 3)
      run_case("cancelled", travels_are_cancelled, NULL);
  }
  run_case("refused", travels_are_refused, NULL);
}

OPI_TEST_MAIN("team_values", OPI_TEST(test_values))
