/* SPDX-License-Identifier: Apache-2.0 */
/* Steps whose loss or norm is no number, under every kind of schedule: nothing is applied, what
 * comes after is as if they had not been; a session that holds stays where the step began; a clock
 * and the weights carry a run from one session to another.
 * ctest: timeout=120 */
#include <math.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

enum { BATCH = 4, SEQ = 8 };

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

typedef struct way { /* to train */
  const char *schedule;
  uint32_t stages, replicas, loss_scaling;
  double clip;
} way;

static const way ways[] = {{"gpipe", 1, 1, 0, 0}, {"1f1b", 2, 1, 0, 1.0},
                           {"1f1b", 2, 2, 0, 0},  {"chimera:sync=eager", 2, 1, 0, 0},
                           {"zb-h1", 2, 1, 1, 0}, {"2bw", 2, 1, 0, 0}};

static void open_way(host_kit *k, const way *w, uint32_t flags) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .shift = 1,
                                     .optimizer = OPIPE_OPTIMIZER_ADAMW,
                                     .lr = 0.01,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .epsilon = 1e-8,
                                     .clip_norm = w->clip,
                                     .compute = w->loss_scaling != 0 ? OPIPE_FLOAT16 : OPIPE_FLOAT,
                                     .loss_scaling = w->loss_scaling};
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_stages = w->stages,
                                  .n_microbatches = 2,
                                  .replicas = w->replicas,
                                  .schedule = w->schedule,
                                  .train = &train};
  const opipe_session_params session = {
      .struct_size = sizeof session, .flags = flags, .max_in_flight = 3, .spin_us = UINT32_MAX};
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, BATCH, SEQ, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
}

static int64_t ids[BATCH * SEQ];
static const int64_t ids_shape[2] = {BATCH, SEQ};

static opipe_request *start(host_kit *k) {
  opipe_binding_io inputs[2] = {kit_ids(ids, ids_shape), kit_ids(ids, ids_shape)};
  opipe_request *ticket = NULL;
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = 2,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = inputs};
  for (uint32_t i = 0; ids[0] == 0 && i < BATCH * SEQ; ++i) /* once: steps in flight read them */
    ids[i] = (i * 37 + 11) % 344;
  inputs[1].name = "labels";
  OPI_ASSERT_OK_FATAL(k->api->session_train_step(k->session, &params, &ticket, &k->err), &k->err);
  return ticket;
}

static opipe_train_report finish(host_kit *k, opipe_request *ticket) {
  opipe_train_report report = {.struct_size = sizeof report};
  OPI_ASSERT_OK_FATAL(k->api->request_wait(ticket, UINT64_MAX, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_report(ticket, &report, &k->err), &k->err);
  k->api->request_release(ticket);
  return report;
}

/* Weights and moments, of every version. */
typedef struct state {
  char *bytes;
  size_t n;
} state;

static void add(host_kit *k, state *s, const opipe_parameter_info *info, uint32_t what,
                uint32_t version) {
  s->bytes = realloc(s->bytes, s->n + info->n_bytes);
  OPI_ASSERT_FATAL(s->bytes != NULL);
  OPI_ASSERT_OK(k->api->session_get(k->session, info->name, what, version, s->bytes + s->n,
                                    info->n_bytes, &k->err),
                &k->err);
  s->n += info->n_bytes;
}

static state collect(host_kit *k, uint32_t n_versions) {
  state s = {NULL, 0};
  opipe_parameter_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    if (info.trained == 0)
      continue;
    for (uint32_t v = 0; v < n_versions; ++v)
      add(k, &s, &info, OPIPE_STATE_MASTER, v);
    add(k, &s, &info, OPIPE_STATE_FIRST_MOMENT, 0);
    add(k, &s, &info, OPIPE_STATE_SECOND_MOMENT, 0);
  }
  return s;
}

static state collect_weights(host_kit *k) {
  state s = {NULL, 0};
  opipe_parameter_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    if (info.trained != 0)
      add(k, &s, &info, OPIPE_STATE_MASTER, 0);
  }
  return s;
}

static void expect_same(const char *what, const way *w, state *a, state *b) {
  if (a->n != b->n || a->n < 1000 || memcmp(a->bytes, b->bytes, a->n) != 0)
    OPI_FAIL("%s: %s, %u stages, %u replicas", what, w->schedule, w->stages, w->replicas);
  free(a->bytes);
  free(b->bytes);
  *a = *b = (state){NULL, 0};
}

static uint32_t versions_of(const way *w) {
  return strcmp(w->schedule, "2bw") == 0 ? 2 : 1;
}

/* The first element of the first trained parameter, in all versions. */
static float put(host_kit *k, const way *w, float value) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  uint32_t i = 0;
  float before = 0;
  while (k->api->session_parameter(k->session, i, &info, &k->err) == OPIPE_OK && info.trained == 0)
    ++i;
  float *all = malloc(info.n_bytes);
  for (uint32_t v = versions_of(w); v-- > 0;) {
    OPI_ASSERT_OK(k->api->session_get(k->session, info.name, OPIPE_STATE_MASTER, v, all,
                                      info.n_bytes, &k->err),
                  &k->err);
    before = all[0];
    all[0] = value;
    OPI_ASSERT_OK(k->api->session_set(k->session, info.name, OPIPE_STATE_MASTER, v, all,
                                      info.n_bytes, &k->err),
                  &k->err);
  }
  free(all);
  return before;
}

static void test_it_is_not_applied(void) {
  for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
    if (!opi_test_covers(i, 2))
      continue;
    host_kit k;
    open_way(&k, &ways[i], 0);
    const uint32_t n_versions = versions_of(&ways[i]);
    const opipe_train_report first = finish(&k, start(&k));
    OPI_ASSERT_INT(first.skipped, OPIPE_SKIP_NONE);
    const float good = put(&k, &ways[i], NAN);
    state before = collect(&k, 1);
    opipe_request *a = start(&k), *b = start(&k);
    const opipe_train_report bad = finish(&k, a), again = finish(&k, b);
    OPI_ASSERT_INT(bad.skipped, OPIPE_SKIP_NOT_FINITE);
    OPI_ASSERT_INT(again.skipped, OPIPE_SKIP_NOT_FINITE);
    OPI_ASSERT(!isfinite(bad.loss) && !isfinite(bad.gradient_norm) && bad.step == 2);
    state after = collect(&k, 1);
    expect_same("not applied", &ways[i], &before, &after);
    (void)put(&k, &ways[i], good);
    OPI_ASSERT_INT(finish(&k, start(&k)).skipped, OPIPE_SKIP_NONE);
    after = collect(&k, n_versions);
    size_t n_finite = 0;
    for (size_t e = 0; e < after.n / sizeof(float); ++e)
      n_finite += isfinite(((const float *)(const void *)after.bytes)[e]) != 0;
    OPI_ASSERT_INT(n_finite, after.n / sizeof(float));
    free(after.bytes);
    kit_close(&k);
  }
}

/* Steps that were in flight are held too; both versions stay. A clock ends it. */
static void test_a_hold_keeps_what_the_step_saw(void) {
  for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
    if (!opi_test_covers(i, 2))
      continue;
    host_kit k;
    opipe_train_clock clock = {.struct_size = sizeof clock};
    const uint32_t n_versions = versions_of(&ways[i]);
    open_way(&k, &ways[i], OPIPE_SESSION_HOLD);
    (void)finish(&k, start(&k));
    const float good = put(&k, &ways[i], INFINITY);
    state before = collect(&k, n_versions);
    opipe_request *a = start(&k), *b = start(&k);
    OPI_ASSERT_INT(finish(&k, a).skipped, OPIPE_SKIP_NOT_FINITE);
    OPI_ASSERT_INT(finish(&k, b).skipped, OPIPE_SKIP_HELD);
    state after = collect(&k, n_versions);
    expect_same("held", &ways[i], &before, &after);
    (void)put(&k, &ways[i], good);
    OPI_ASSERT_INT(finish(&k, start(&k)).skipped, OPIPE_SKIP_HELD);
    OPI_ASSERT_OK(k.api->session_clock(k.session, &clock, &k.err), &k.err);
    OPI_ASSERT(clock.steps == 4 && clock.updates == 1);
    OPI_ASSERT_OK(k.api->session_set_clock(k.session, &clock, &k.err), &k.err);
    OPI_ASSERT_INT(finish(&k, start(&k)).skipped, OPIPE_SKIP_NONE);
    kit_close(&k);
  }
}

/* ---- the loss alone ---- */

enum { PIXELS = 3 * 16 * 16, CLASSES = 10 };

static void open_vision(host_kit *k, const char *schedule, uint32_t stages, uint32_t replicas) {
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source("tests/data/vision/model.onnx")};
  const opipe_dim dims[] = {{"batch", BATCH}};
  const opipe_bind_options bind = {.struct_size = sizeof bind,
                                   .flags = OPIPE_BIND_TRAIN,
                                   .dims = dims,
                                   .n_dims = 1,
                                   .dims_stride = sizeof *dims};
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "classes",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .lr = 0.01};
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_stages = stages,
                                  .n_microbatches = 2,
                                  .replicas = replicas,
                                  .schedule = schedule,
                                  .train = &train};
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, &plan, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
}

/* The bias of class 0 at minus infinity: a sample of that class has an infinite loss, and finite
 * gradients. */
static void forbid_class_0(host_kit *k) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  float bias[CLASSES];
  uint32_t i = 0;
  while (k->api->session_parameter(k->session, i, &info, &k->err) == OPIPE_OK &&
         (info.rank != 1 || info.shape[0] != CLASSES))
    ++i;
  OPI_ASSERT_OK_FATAL(
      k->api->session_get(k->session, info.name, OPIPE_STATE_MASTER, 0, bias, sizeof bias, &k->err),
      &k->err);
  bias[0] = -INFINITY;
  OPI_ASSERT_OK(
      k->api->session_set(k->session, info.name, OPIPE_STATE_MASTER, 0, bias, sizeof bias, &k->err),
      &k->err);
}

static opipe_train_report step_vision(host_kit *k, const int64_t *labels) {
  static float pixels[BATCH * PIXELS];
  static const int64_t shape[] = {BATCH, 3, 16, 16}, labels_shape[] = {BATCH};
  const opipe_binding_io inputs[] = {{.name = "pixels",
                                      .tensor = {.data = pixels,
                                                 .device_type = OPIPE_DL_CPU,
                                                 .rank = 4,
                                                 .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                                 .shape = shape}},
                                     {.name = "labels",
                                      .tensor = {.data = (void *)(uintptr_t)labels,
                                                 .device_type = OPIPE_DL_CPU,
                                                 .rank = 1,
                                                 .dtype = {OPIPE_DL_INT, 64, 1},
                                                 .shape = labels_shape}}};
  const opipe_submit_params params = {
      .struct_size = sizeof params, .n_inputs = 2, .io_stride = sizeof *inputs, .inputs = inputs};
  opipe_request *ticket = NULL;
  for (uint32_t i = 0; i < BATCH * PIXELS; ++i)
    pixels[i] = (float)(i % 23) * 0.05f;
  OPI_ASSERT_OK_FATAL(k->api->session_train_step(k->session, &params, &ticket, &k->err), &k->err);
  return finish(k, ticket);
}

/* Whoever has the sample: every rank and replica leaves its weights. */
static void test_an_infinite_loss_with_finite_gradients(void) {
  static const int64_t good[BATCH] = {1, 2, 3, 4}, first[BATCH] = {0, 2, 3, 4},
                       last[BATCH] = {1, 2, 3, 0};
  static const way both[] = {{"1f1b", 2, 1, 0, 0}, {"gpipe", 2, 2, 0, 0}};
  for (size_t i = 0; i < 2; ++i) {
    host_kit k;
    open_vision(&k, both[i].schedule, both[i].stages, both[i].replicas);
    forbid_class_0(&k);
    state before = collect_weights(&k);
    const opipe_train_report a = step_vision(&k, first), b = step_vision(&k, last);
    OPI_ASSERT(isfinite(a.gradient_norm) && isinf(a.loss) && isinf(b.loss));
    OPI_ASSERT_INT(a.skipped, OPIPE_SKIP_NOT_FINITE);
    OPI_ASSERT_INT(b.skipped, OPIPE_SKIP_NOT_FINITE);
    state after = collect_weights(&k);
    expect_same("an infinite loss", &both[i], &before, &after);
    OPI_ASSERT_INT(step_vision(&k, good).skipped, OPIPE_SKIP_NONE);
    kit_close(&k);
  }
}

/* Carries over by hand the content of a checkpoint: the next step has the same bits. */
static void carry(host_kit *from, host_kit *to, uint32_t what, uint32_t version) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; from->api->session_parameter(from->session, i, &info, NULL) == OPIPE_OK;
       ++i) {
    if (info.trained == 0)
      continue;
    void *data = malloc(info.n_bytes);
    OPI_ASSERT_OK(from->api->session_get(from->session, info.name, what, version, data,
                                         info.n_bytes, &from->err),
                  &from->err);
    OPI_ASSERT_OK(
        to->api->session_set(to->session, info.name, what, version, data, info.n_bytes, &to->err),
        &to->err);
    free(data);
  }
}

static void test_a_clock_carries_a_run(void) {
  static const way both[] = {{"1f1b", 2, 1, 1, 0}, {"gpipe", 2, 1, 1, 0}};
  host_kit a, b;
  opipe_train_clock clock = {.struct_size = sizeof clock};
  open_way(&a, &both[0], 0);
  open_way(&b, &both[1], 0);
  (void)finish(&a, start(&a));
  (void)finish(&a, start(&a));
  carry(&a, &b, OPIPE_STATE_MASTER, 0);
  carry(&a, &b, OPIPE_STATE_FIRST_MOMENT, 0);
  carry(&a, &b, OPIPE_STATE_SECOND_MOMENT, 0);
  OPI_ASSERT_OK(a.api->session_clock(a.session, &clock, &a.err), &a.err);
  OPI_ASSERT(clock.steps == 2 && clock.updates == 2 && clock.loss_scale == 65536);
  OPI_ASSERT_OK(b.api->session_set_clock(b.session, &clock, &b.err), &b.err);
  (void)finish(&a, start(&a));
  (void)finish(&b, start(&b));
  state x = collect(&a, 1), y = collect(&b, 1);
  expect_same("carried", &both[0], &x, &y);
  clock.loss_scale = 0;
  OPI_ASSERT_ERROR(b.api->session_set_clock(b.session, &clock, &b.err), OPIPE_E_INVALID, &b.err,
                   "loss_scale is 0");
  clock.loss_scale = 1;
  clock.updates = clock.steps + 1;
  OPI_ASSERT_ERROR(b.api->session_set_clock(b.session, &clock, &b.err), OPIPE_E_INVALID, &b.err,
                   "3 updates in 2 steps");
  kit_close(&a);
  kit_close(&b);
}

OPI_TEST_MAIN("steps that are not finite", OPI_TEST(test_it_is_not_applied),
              OPI_TEST(test_a_hold_keeps_what_the_step_saw),
              OPI_TEST(test_an_infinite_loss_with_finite_gradients),
              OPI_TEST(test_a_clock_carries_a_run))
