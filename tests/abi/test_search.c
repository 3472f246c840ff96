/* SPDX-License-Identifier: Apache-2.0 */
/* Planner auto through the host's table: every objective, what is fixed stays fixed, progress and
 * what may not be called from it, a budget's mark, late weights only where they are allowed, the
 * same bytes on any number of threads, the runners-up as strategies, devices of two kinds, what is
 * missing where nothing fits; and that all of it becomes plans that sessions run.
 * ctest: timeout=300 label=twice
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

#define ARCH "gpt:layers=8,hidden=256,heads=4,vocab=512,seq=64"
/* One node of four devices; memory of each in bytes, and the rate of the last two. */
#define CLUSTER                                                                                 \
  "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": 1, \"devices\": [{\"kind\": \"x\", "        \
  "\"alignment\": 64, \"count\": 2, \"flops\": 1e12, \"bandwidth\": 1e11%s}, {\"kind\": "       \
  "\"x\", \"alignment\": 64, \"count\": 2, \"flops\": %s, \"bandwidth\": 1e11%s}], \"tiers\": " \
  "[{\"latency_ns\": 1000, \"bandwidth\": 1e10}]}"
static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const uint32_t SAMPLES[] = {1, 2, 4, 16};

typedef struct asker {
  host_kit k;
  char cluster[1024];
  opipe_profile *profile;
} asker;

static void write_cluster(asker *a, uint64_t memory_bytes, const char *slow) {
  char memory[64] = "";
  if (memory_bytes != 0) {
    (void)snprintf(memory, sizeof memory, ", \"memory_bytes\": %llu",
                   (unsigned long long)memory_bytes);
  }
  (void)snprintf(a->cluster, sizeof a->cluster, CLUSTER, memory, slow, memory);
}

static void make_profile(asker *a) {
  const opipe_profile_params params = {.struct_size = sizeof params,
                                       .samples = SAMPLES,
                                       .n_samples = 4,
                                       .cluster = a->cluster,
                                       .cluster_bytes = strlen(a->cluster)};
  OPI_ASSERT_OK_FATAL(
      a->k.api->profile_of_arch(a->k.context, ARCH, &params, &a->profile, &a->k.err), &a->k.err);
}

static void open_asker(asker *a) {
  memset(a, 0, sizeof *a);
  a->k.err.struct_size = sizeof a->k.err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &a->k.api, &a->k.err), &a->k.err);
  OPI_ASSERT_OK_FATAL(a->k.api->context_create(NULL, &a->k.context, &a->k.err), &a->k.err);
  write_cluster(a, 0, "1e12");
  make_profile(a);
}

static void close_asker(asker *a) {
  a->k.api->profile_destroy(a->profile);
  kit_close(&a->k);
}

static opipe_strategy_params question(const asker *a) {
  opipe_strategy_params params = opipe_strategy_params_init();
  params.cluster = a->cluster;
  params.cluster_bytes = strlen(a->cluster);
  params.batch = 4;
  params.n_threads = 2;
  return params;
}

static opipe_strategy *ask(asker *a, const opipe_strategy_params *params,
                           opipe_strategy_info *out) {
  opipe_strategy *strategy = NULL;
  OPI_ASSERT_OK_FATAL(a->k.api->strategy_make(a->profile, params, &strategy, &a->k.err), &a->k.err);
  *out = opipe_strategy_info_init();
  OPI_ASSERT_OK(a->k.api->strategy_info(strategy, out, &a->k.err), &a->k.err);
  OPI_ASSERT_STR(out->planner, "auto");
  return strategy;
}

static char *describe(asker *a, opipe_strategy *strategy, uint32_t format) {
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(
      a->k.api->strategy_describe(strategy, format, opi_test_take, &text, &a->k.err), &a->k.err);
  return text.data;
}

/* ---- objectives ---- */

static void test_objectives(void) {
  static const char *const names[] = {"step", "throughput", "memory", "latency"};
  double step_ns[4], bytes[4];
  asker a;
  if (opi_test_is_sanitized())
    OPI_SKIP("the optimized build compares objectives");
  open_asker(&a);
  for (uint32_t i = 0; i < 4; ++i) {
    opipe_strategy_info info;
    char member[64];
    opipe_strategy_params params = question(&a);
    params.planner = i % 2 == 0 ? NULL : "auto";
    params.objective = i;
    params.flags = i == OPIPE_OBJECTIVE_LATENCY ? OPIPE_STRATEGY_FORWARD : 0u;
    opipe_strategy *strategy = ask(&a, &params, &info);
    step_ns[i] = info.step_ns;
    bytes[i] = (double)info.memory_bytes;
    OPI_ASSERT((info.flags & OPIPE_STRATEGY_EXECUTABLE) != 0);
    OPI_ASSERT(info.n_ranked >= 2 && info.rank == 0 && info.reason == NULL);
    OPI_ASSERT(info.n_simulated > 0 && info.n_candidates >= info.n_simulated / 2);
    OPI_ASSERT(info.bound <= info.objective * (1 + 1e-12) && info.gap >= 0);
    (void)snprintf(member, sizeof member, "\"objective\": \"%s\"", names[i]);
    char *json = describe(&a, strategy, OPIPE_FORMAT_JSON);
    OPI_ASSERT(strstr(json, "\"format\": \"onnx-pipe strategy 1\"") != NULL);
    OPI_ASSERT(strstr(json, member) != NULL && strstr(json, "\"reason\": \"") != NULL);
    free(json);
    char *text = describe(&a, strategy, OPIPE_FORMAT_TEXT);
    OPI_ASSERT(strstr(text, "simulated") != NULL && strstr(text, "\n 2  ") != NULL);
    free(text);
    a.k.api->strategy_destroy(strategy);
  }
  OPI_ASSERT(bytes[OPIPE_OBJECTIVE_MEMORY] < bytes[OPIPE_OBJECTIVE_STEP]);
  OPI_ASSERT(step_ns[OPIPE_OBJECTIVE_MEMORY] > step_ns[OPIPE_OBJECTIVE_STEP]);
  OPI_ASSERT(step_ns[OPIPE_OBJECTIVE_LATENCY] < step_ns[OPIPE_OBJECTIVE_STEP]);
  OPI_ASSERT(step_ns[OPIPE_OBJECTIVE_THROUGHPUT] >= step_ns[OPIPE_OBJECTIVE_STEP]);
  close_asker(&a);
}

/* Memory within a time between the two; then within one that nothing keeps. */
static void test_a_limit_of_time(void) {
  asker a;
  opipe_strategy_info fast, least, both;
  open_asker(&a);
  opipe_strategy_params params = question(&a);
  params.schedule = "1f1b"; /* few to choose from: of memory all are played */
  params.n_stages = params.n_ranks = 2;
  params.batch = 4;
  a.k.api->strategy_destroy(ask(&a, &params, &fast));
  params.objective = OPIPE_OBJECTIVE_MEMORY;
  a.k.api->strategy_destroy(ask(&a, &params, &least));
  params.limit_ms = fast.step_ns * 1.1e-6;
  a.k.api->strategy_destroy(ask(&a, &params, &both));
  OPI_ASSERT(both.step_ns <= params.limit_ms * 1e6 && both.memory_bytes <= fast.memory_bytes);
  OPI_ASSERT(both.memory_bytes >= least.memory_bytes);
  opipe_strategy *none = NULL;
  params.limit_ms = fast.step_ns * 0.5e-6;
  OPI_ASSERT_ERROR(a.k.api->strategy_make(a.profile, &params, &none, &a.k.err), OPIPE_E_LIMIT,
                   &a.k.err, "the smallest limit that helps");
  params.objective = OPIPE_OBJECTIVE_STEP;
  OPI_ASSERT_ERROR(a.k.api->strategy_make(a.profile, &params, &none, &a.k.err), OPIPE_E_INVALID,
                   &a.k.err, "limit_ms");
  OPI_ASSERT(none == NULL);
  close_asker(&a);
}

/* ---- fixed values ---- */

static void test_what_is_given_stays(void) {
  asker a;
  opipe_strategy_info info;
  open_asker(&a);
  opipe_strategy_params params = question(&a);
  params.schedule = "gpipe";
  params.n_stages = 2;
  params.batch = 16;
  params.n_microbatches = 8;
  params.replicas = 2;
  params.recompute = OPIPE_STRATEGY_RECOMPUTES_ALWAYS;
  a.k.api->strategy_destroy(ask(&a, &params, &info));
  OPI_ASSERT_INT(info.n_stages, 2);
  OPI_ASSERT_INT(info.microbatches, 4);
  OPI_ASSERT_INT(info.samples, 2);
  OPI_ASSERT_INT(info.pipelines, 2);
  OPI_ASSERT_INT(info.recompute, 1);
  params = question(&a);
  params.schedule = "1f1b";
  params.n_ranks = 3;
  params.recompute = OPIPE_STRATEGY_RECOMPUTES_NEVER;
  opipe_strategy *strategy = ask(&a, &params, &info);
  uint32_t n_devices = 0;
  for (uint32_t s = 0; s < info.n_stages / info.chunks; ++s) {
    opipe_strategy_stage_info stage = opipe_strategy_stage_info_init();
    OPI_ASSERT_OK(a.k.api->strategy_stage(strategy, s, &stage, &a.k.err), &a.k.err);
    n_devices += stage.n_devices;
  }
  OPI_ASSERT_INT(n_devices * info.pipelines, 3);
  OPI_ASSERT_INT(info.recompute, 0);
  a.k.api->strategy_destroy(strategy);
  params = question(&a);
  params.schedule = "1f1b";
  params.width = 2;
  params.flags = OPIPE_STRATEGY_HYPOTHETICAL;
  a.k.api->strategy_destroy(ask(&a, &params, &info));
  OPI_ASSERT_INT(info.width, 2);
  close_asker(&a);
}

/* No ranked strategy has late weights unless that is allowed; then one has. */
static void test_late_weights(void) {
  asker a;
  opipe_strategy_info info;
  double flushed = 0;
  open_asker(&a);
  for (uint32_t allowed = 0; allowed < 2; ++allowed) {
    opipe_strategy_params params = question(&a);
    params.flags = allowed != 0 ? OPIPE_STRATEGY_ALLOW_STALE : 0u;
    params.batch = 16;
    params.replicas = 1; /* copies of one stage would need no pipeline */
    params.n_stages = 4;
    opipe_strategy *strategy = ask(&a, &params, &info);
    char *json = describe(&a, strategy, OPIPE_FORMAT_JSON);
    OPI_ASSERT((strstr(json, "\"schedule\": \"2bw") != NULL) == (allowed != 0));
    OPI_ASSERT(allowed == 0 || info.step_ns < flushed);
    flushed = info.step_ns;
    free(json);
    a.k.api->strategy_destroy(strategy);
  }
  close_asker(&a);
}

/* ---- the search ---- */

typedef struct watcher {
  asker *a;
  uint32_t n_calls, n_wrong;
  uint64_t n_simulated;
  double best_ns;
} watcher;

static opipe_status drop(void *ctx, const void *data, size_t n) {
  (void)ctx;
  (void)data;
  (void)n;
  return OPIPE_OK;
}

static void watch(void *ctx, uint64_t n_bounded, uint64_t n_simulated, double best_ns) {
  watcher *w = ctx;
  const opipe_api *api = w->a->k.api;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_profile_info info = opipe_profile_info_init();
  opipe_context *context = NULL;
  (void)n_bounded;
  w->n_wrong += n_simulated < w->n_simulated || !(best_ns <= w->best_ns);
  w->n_simulated = n_simulated;
  w->best_ns = best_ns;
  w->n_wrong += api->profile_info(w->a->profile, &info, &err) != OPIPE_E_STATE;
  w->n_wrong += api->context_plugins(w->a->k.context, 0, drop, NULL, &err) != OPIPE_E_STATE;
  w->n_wrong += api->context_create(NULL, &context, &err) != OPIPE_E_STATE;
  w->n_wrong += strstr(err.message, "progress") == NULL;
  ++w->n_calls;
}

static void test_progress(void) {
  asker a;
  opipe_strategy_info info;
  open_asker(&a);
  watcher w = {.a = &a, .best_ns = INFINITY};
  opipe_strategy_params params = question(&a);
  params.progress = watch;
  params.progress_ctx = &w;
  opipe_strategy *strategy = ask(&a, &params, &info);
  OPI_ASSERT(w.n_calls > 0);
  OPI_ASSERT_INT(w.n_wrong, 0);
  OPI_ASSERT(w.best_ns == info.step_ns && w.n_simulated == info.n_simulated);
  a.k.api->strategy_destroy(strategy); /* and outside all is as before */
  close_asker(&a);
}

static void test_a_budget_is_marked(void) {
  asker a;
  opipe_strategy_info info;
  open_asker(&a);
  opipe_strategy_params params = question(&a);
  a.k.api->strategy_destroy(ask(&a, &params, &info));
  OPI_ASSERT((info.flags & OPIPE_STRATEGY_STOPPED) == 0 || info.n_left > 0);
  params.budget_s = 1e-9;
  opipe_strategy *strategy = ask(&a, &params, &info);
  OPI_ASSERT((info.flags & OPIPE_STRATEGY_STOPPED) != 0 && info.n_left > 0);
  char *json = describe(&a, strategy, OPIPE_FORMAT_JSON);
  OPI_ASSERT(strstr(json, "\"stopped\": \"clock\"") != NULL);
  free(json);
  a.k.api->strategy_destroy(strategy);
  close_asker(&a);
}

static void test_threads_change_nothing(void) {
  asker a;
  char *first = NULL;
  open_asker(&a);
  for (uint32_t n = 1; n <= 4; n += 3) {
    opipe_strategy_info info;
    opipe_strategy_params params = question(&a);
    params.n_threads = n;
    opipe_strategy *strategy = ask(&a, &params, &info);
    char *json = describe(&a, strategy, OPIPE_FORMAT_JSON);
    if (n > 1)
      OPI_ASSERT_STR(json, first);
    free(first);
    first = json;
    a.k.api->strategy_destroy(strategy);
  }
  free(first);
  close_asker(&a);
}

/* Every ranked strategy, played, gives the time that was stated. */
static void check_played(asker *a, opipe_strategy *strategy, double step_ns) {
  const opipe_play_params play = {
      .struct_size = sizeof play, .cluster = a->cluster, .cluster_bytes = strlen(a->cluster)};
  opi_test_text played = {NULL, 0};
  double found = 0;
  OPI_ASSERT_OK_FATAL(
      a->k.api->strategy_play(strategy, &play, OPIPE_PLAY_JSON, opi_test_take, &played, &a->k.err),
      &a->k.err);
  const char *at = strstr(played.data, "\"step_ns\": ");
  OPI_ASSERT_FATAL(at != NULL && sscanf(at, "\"step_ns\": %lf", &found) == 1);
  OPI_ASSERT(fabs(found / step_ns - 1) < 1e-9);
  free(played.data);
}

static void test_the_others(void) {
  asker a;
  open_asker(&a);
  for (uint32_t kinds = 1; kinds <= 2; ++kinds) {
    opipe_strategy_info best;
    double last = 0;
    write_cluster(&a, 0, kinds == 1 ? "1e12" : "3e11");
    const opipe_strategy_params params = question(&a);
    opipe_strategy *first = ask(&a, &params, &best), *other = NULL;
    char *text = describe(&a, first, OPIPE_FORMAT_JSON);
    OPI_ASSERT_FATAL(best.n_ranked >= 2);
    for (uint32_t i = 0; i < best.n_ranked; ++i) {
      opipe_strategy_info info = opipe_strategy_info_init();
      a.k.api->strategy_destroy(other);
      OPI_ASSERT_OK_FATAL(a.k.api->strategy_ranked(first, i, &other, &a.k.err), &a.k.err);
      OPI_ASSERT_OK(a.k.api->strategy_info(other, &info, &a.k.err), &a.k.err);
      OPI_ASSERT(info.rank == i && info.objective >= last && (info.reason == NULL) == (i == 0));
      OPI_ASSERT((info.flags & OPIPE_STRATEGY_EXECUTABLE) != 0);
      check_played(&a, other, info.step_ns);
      char *own = describe(&a, other, OPIPE_FORMAT_JSON); /* up to what the search found */
      const size_t n = (size_t)(strstr(own, "\"search\"") - own);
      OPI_ASSERT((strncmp(own, text, n) == 0) == (i == 0));
      free(own);
      last = info.objective;
    }
    opipe_strategy *none = NULL;
    OPI_ASSERT_ERROR(a.k.api->strategy_ranked(first, best.n_ranked, &none, &a.k.err),
                     OPIPE_E_NOTFOUND, &a.k.err, "strategy_ranked");
    a.k.api->strategy_destroy(first);
    free(text);
    text = describe(&a, other, OPIPE_FORMAT_TEXT); /* it outlives the one it came from */
    OPI_ASSERT(strstr(text, "planner   auto") != NULL);
    OPI_ASSERT(best.bound <= 0 || strstr(text, "gap of the best ") != NULL);
    free(text);
    a.k.api->strategy_destroy(other);
  }
  close_asker(&a);
}

/* ---- nothing fits ---- */

static void expect_limit(asker *a, const opipe_strategy_params *params, opipe_status status,
                         const char *text) {
  opipe_strategy *strategy = NULL;
  OPI_ASSERT_ERROR(a->k.api->strategy_make(a->profile, params, &strategy, &a->k.err), status,
                   &a->k.err, text);
  OPI_ASSERT(strategy == NULL);
}

static void test_what_is_missing(void) {
  asker a;
  opipe_strategy_info info;
  double least = 0;
  open_asker(&a);
  write_cluster(&a, 4000000, "1e12");
  opipe_strategy_params params = question(&a);
  expect_limit(&a, &params, OPIPE_E_LIMIT,
               "no plan fits 4000000 bytes (3.8 MiB) on each of 4 devices");
  const char *says = strstr(a.k.err.message, "takes ");
  OPI_ASSERT_FATAL(says != NULL && sscanf(says, "takes %lf bytes", &least) == 1 && least > 4e6);
  write_cluster(&a, (uint64_t)least, "1e12"); /* the cap in the message suffices */
  params.cluster_bytes = strlen(a.cluster);
  a.k.api->strategy_destroy(ask(&a, &params, &info));
  OPI_ASSERT(info.memory_bytes <= (uint64_t)least);
  params.spare_bytes = (uint64_t)least / 2; /* and with a part of it kept free, no more */
  expect_limit(&a, &params, OPIPE_E_LIMIT, "no plan fits");
  write_cluster(&a, 0, "1e12");
  params = question(&a);
  params.n_microbatches = 3;
  params.replicas = 2;
  expect_limit(&a, &params, OPIPE_E_LIMIT, "3 micro-batches cannot be shared by 2 pipelines");
  params = question(&a);
  params.n_stages = 1000;
  expect_limit(&a, &params, OPIPE_E_LIMIT, "1000 stages of 10 layers");
  params = question(&a);
  params.width = 2;
  expect_limit(&a, &params, OPIPE_E_LIMIT,
               "no session executes tensor width 2 of layers without a model");
  params = question(&a);
  params.schedule = "terapipe:slices=2";
  expect_limit(&a, &params, OPIPE_E_UNSUPPORTED, "no token depends on later ones");
  params.flags = OPIPE_STRATEGY_CAUSAL;
  a.k.api->strategy_destroy(ask(&a, &params, &info));
  OPI_ASSERT_INT(info.n_slices, 1);
  params = question(&a);
  params.planner = "megatron";
  params.replicas = 2;
  expect_limit(&a, &params, OPIPE_E_INVALID, "only planner auto takes replicas");
  close_asker(&a);
}

/* ---- plans ---- */

enum { BATCH = 4, SEQ = 8 };
static int64_t ids[BATCH * SEQ];
static const int64_t ids_shape[2] = {BATCH, SEQ};

static void run_once(host_kit *k, opipe_plan *plan, bool trains) {
  opipe_binding_io inputs[2] = {kit_ids(ids, ids_shape), kit_ids(ids, ids_shape)};
  opipe_session *session = NULL;
  opipe_request *request = NULL;
  inputs[1].name = "labels";
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = trains ? 2 : 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = inputs};
  const opipe_session_params how = {.struct_size = sizeof how};
  OPI_ASSERT_OK_FATAL(k->api->session_open(k->context, plan, &how, &session, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(trains ? k->api->session_train_step(session, &submit, &request, &k->err)
                             : k->api->session_submit(session, &submit, &request, &k->err),
                      &k->err);
  OPI_ASSERT_OK(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err);
  k->api->request_release(request);
  k->api->session_close(session);
}

/* Each that a search ranks for this machine's threads is a plan, has its stages, and runs. */
static void run_ranked(host_kit *k, const opipe_train_options *train, const char *cluster,
                       uint32_t objective, double budget_s) {
  const opipe_profile_params how = {.struct_size = sizeof how,
                                    .train = train,
                                    .samples = SAMPLES,
                                    .n_samples = 3,
                                    .cluster = cluster,
                                    .cluster_bytes = strlen(cluster)};
  const opipe_device_choice devices[3] = {
      {.kind = "cpu", .threads = 1}, {.kind = "cpu", .threads = 1}, {.kind = "cpu", .threads = 1}};
  opipe_plan_params params = opipe_plan_params_init();
  opipe_strategy_params ask_for = opipe_strategy_params_init();
  opipe_strategy_info info = opipe_strategy_info_init();
  opipe_profile *profile = NULL;
  opipe_strategy *best = NULL;
  OPI_ASSERT_OK_FATAL(k->api->profile_of_model(k->bound, &how, &profile, &k->err), &k->err);
  ask_for.cluster = cluster;
  ask_for.cluster_bytes = strlen(cluster);
  ask_for.batch = BATCH;
  ask_for.objective = objective;
  ask_for.budget_s = budget_s;
  ask_for.flags = train != NULL ? OPIPE_STRATEGY_ALLOW_STALE : OPIPE_STRATEGY_FORWARD;
  params.train = train;
  params.devices = devices;
  params.n_devices = 3;
  OPI_ASSERT_OK_FATAL(k->api->strategy_make(profile, &ask_for, &best, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->strategy_info(best, &info, &k->err), &k->err);
  for (uint32_t i = 0; i < info.n_ranked; ++i) {
    opipe_strategy *strategy = NULL;
    opipe_plan *plan = NULL;
    opipe_plan_info made = {.struct_size = sizeof made};
    opi_test_text text = {NULL, 0};
    if (i > 0 && !opi_test_covers(i, opi_test_is_sanitized() ? 24 : 4))
      continue;
    OPI_ASSERT_OK_FATAL(k->api->strategy_ranked(best, i, &strategy, &k->err), &k->err);
    OPI_ASSERT_OK(k->api->strategy_info(strategy, &info, &k->err), &k->err);
    OPI_ASSERT_OK_FATAL(k->api->strategy_plan(strategy, k->bound, &params, &plan, &k->err),
                        &k->err);
    OPI_ASSERT_OK(k->api->plan_info(plan, &made, &k->err), &k->err);
    OPI_ASSERT_INT(made.n_stages, info.n_stages);
    OPI_ASSERT_OK(k->api->plan_write(plan, opi_test_take, &text, &k->err), &k->err);
    OPI_ASSERT(strstr(text.data, "\"planner\": \"auto\"") != NULL);
    OPI_ASSERT((strstr(text.data, "\"stopped\": \"clock\"") != NULL) == (budget_s != 0));
    run_once(k, plan, train != NULL);
    free(text.data);
    k->api->plan_destroy(plan);
    k->api->strategy_destroy(strategy);
  }
  k->api->strategy_destroy(best);
  k->api->profile_destroy(profile);
}

static const char *const three =
    "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"cpu\", \"alignment\": 64, "
    "\"count\": 3, \"flops\": 2e10, \"bandwidth\": 1e10, \"launch_ns\": 500, \"threads\": 1}], "
    "\"tiers\": [{\"latency_ns\": 300, \"bandwidth\": 1e10}]}";
/* The third has half the rate. */
static const char *const two_kinds =
    "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"cpu\", \"alignment\": 64, "
    "\"flops\": 1e10, \"bandwidth\": 1e10, \"launch_ns\": 500, \"threads\": 1}, {\"kind\": "
    "\"cpu\", "
    "\"alignment\": 64, \"count\": 2, \"flops\": 2e10, \"bandwidth\": 1e10, \"launch_ns\": 500, "
    "\"threads\": 1}], \"tiers\": [{\"latency_ns\": 300, \"bandwidth\": 1e10}]}";

static void test_training_plans(void) {
  host_kit k;
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .shift = 1,
                                     .optimizer = OPIPE_OPTIMIZER_SGD,
                                     .lr = 0.01};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, BATCH, SEQ, &params), &k.err);
  run_ranked(&k, &train, three, OPIPE_OBJECTIVE_STEP, 0);
  if (!opi_test_is_sanitized()) {
    run_ranked(&k, &train, two_kinds, OPIPE_OBJECTIVE_THROUGHPUT, 1e-9);
    run_ranked(&k, &train, three, OPIPE_OBJECTIVE_MEMORY, 0);
  }
  kit_close(&k);
}

static void test_plans_of_requests(void) {
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, BATCH, SEQ, NULL), &k.err);
  run_ranked(&k, NULL, two_kinds, OPIPE_OBJECTIVE_LATENCY, 0);
  run_ranked(&k, NULL, three, OPIPE_OBJECTIVE_THROUGHPUT, 0);
  kit_close(&k);
}

OPI_TEST_MAIN("search", OPI_TEST(test_objectives), OPI_TEST(test_a_limit_of_time),
              OPI_TEST(test_what_is_given_stays), OPI_TEST(test_late_weights),
              OPI_TEST(test_progress), OPI_TEST(test_a_budget_is_marked),
              OPI_TEST(test_threads_change_nothing), OPI_TEST(test_the_others),
              OPI_TEST(test_what_is_missing), OPI_TEST(test_training_plans),
              OPI_TEST(test_plans_of_requests))
