/* SPDX-License-Identifier: Apache-2.0 */
/* A plan lists what is trained: found once, when it is made; whoever reads it asks no rule again.
 * ctest: timeout=60 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

static void make(host_kit *k, opi_test_text *json) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .optimizer = OPIPE_OPTIMIZER_SGD,
                                     .lr = 0.1};
  const opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = 2, .n_microbatches = 2, .train = &train};
  *json = (opi_test_text){NULL, 0};
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, 4, 8, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, json, &k->err), &k->err);
  size_t n = strlen(json->data);
  kit_take_out_hash(json->data, &n);
}

/* The plan again, from its text, opened. */
static opipe_status reopen(host_kit *k, const opi_test_text *json) {
  k->api->plan_destroy(k->plan);
  k->plan = NULL;
  const opipe_status status =
      k->api->plan_read(k->model, json->data, strlen(json->data), &k->plan, &k->err);
  return status == OPIPE_OK ? kit_open(k, NULL) : status;
}

static uint32_t n_trained(host_kit *k, const char *name, uint32_t *out_trained) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  *out_trained = 99;
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    n += info.trained != 0;
    if (strcmp(info.name, name) == 0)
      *out_trained = info.trained;
    info.struct_size = sizeof info;
  }
  return n;
}

/* The first name of the list; `name` of 128 bytes. */
static char *first_listed(const opi_test_text *json, char *name) {
  char *at = strstr(json->data, "\"trained\": [");
  OPI_ASSERT_FATAL(at != NULL);
  at = strchr(at + 12, '"');
  OPI_ASSERT_FATAL(at != NULL && sscanf(at, "\"%127[^\"]\"", name) == 1);
  return at;
}

static void test_the_list_decides(void) {
  host_kit k;
  opi_test_text json;
  char name[128];
  uint32_t trained = 0;
  make(&k, &json);
  OPI_ASSERT_OK_FATAL(reopen(&k, &json), &k.err);
  char *at = first_listed(&json, name);
  const uint32_t all = n_trained(&k, name, &trained);
  OPI_ASSERT(all > 50 && trained == 1);
  k.api->session_close(k.session);
  k.session = NULL;
  /* without that line: the rule would train it */
  const size_t length = strlen(name) + 2 + strspn(at + strlen(name) + 2, ", \n");
  memmove(at, at + length, strlen(at + length) + 1);
  OPI_ASSERT_OK_FATAL(reopen(&k, &json), &k.err);
  OPI_ASSERT_INT(n_trained(&k, name, &trained), all - 1);
  OPI_ASSERT(trained != 1);
  free(json.data);
  kit_close(&k);
}

static void test_names_that_are_not_there(void) {
  host_kit k;
  opi_test_text json;
  char name[128];
  make(&k, &json);
  char *at = first_listed(&json, name);
  at[1] = '#';
  OPI_ASSERT_ERROR(reopen(&k, &json), OPIPE_E_INVALID, &k.err, "which is not a float initializer");
  free(json.data);
  kit_close(&k);
}

static void test_a_list_is_wanted(void) {
  host_kit k;
  opi_test_text json;
  make(&k, &json);
  char *at = strstr(json.data, "\"trained\"");
  OPI_ASSERT_FATAL(at != NULL);
  at[1] = 'T';
  OPI_ASSERT_ERROR(reopen(&k, &json), OPIPE_E_INVALID, &k.err, "\"trained\"");
  free(json.data);
  kit_close(&k);
}

/* ---- the options of a plan ---- */

static const opipe_train_glob globs[] = {{"*", 0, 0}, {"*weight*", 1, 0}};
static const char *const no_decay[] = {"*bias*", "*norm*"};

/* Nothing as it would be by itself. */
static opipe_train_options unusual(uint32_t optimizer) {
  return (opipe_train_options){
      .struct_size = sizeof(opipe_train_options),
      .loss = OPIPE_LOSS_CROSS_ENTROPY,
      .output = "logits",
      .labels = "targets",
      .ignore = -7,
      .smoothing = 0.125,
      .shift = 1,
      .n_globs = 2,
      .globs = globs,
      .globs_stride = sizeof *globs,
      .recompute = OPIPE_RECOMPUTE_BLOCK,
      .compute = OPIPE_FLOAT16,
      .optimizer = optimizer,
      .seed = 11,
      .lr = 0.25,
      .momentum = 0.5,
      .beta1 = 0.75,
      .beta2 = 0.875,
      .epsilon = 1e-6,
      .decay = 0.0625,
      .clip_norm = 3,
      .flags = optimizer == OPIPE_OPTIMIZER_SGD ? OPIPE_TRAIN_NESTEROV : OPIPE_TRAIN_EPS_INNER,
      .lr_schedule = OPIPE_LR_COSINE,
      .warmup_steps = 5,
      .total_steps = 50,
      .no_decay = no_decay,
      .n_no_decay = 2,
      .loss_scaling = 1};
}

static void expect_options(const opipe_train_options *a, const opipe_train_options *b) {
  OPI_ASSERT(a->loss == b->loss && a->ignore == b->ignore && a->smoothing == b->smoothing);
  OPI_ASSERT(a->shift == b->shift && a->recompute == b->recompute && a->compute == b->compute);
  OPI_ASSERT(a->output != NULL && strcmp(a->output, b->output) == 0);
  OPI_ASSERT(a->labels != NULL && strcmp(a->labels, b->labels) == 0);
  OPI_ASSERT(a->optimizer == b->optimizer && a->seed == b->seed && a->lr == b->lr);
  OPI_ASSERT(a->momentum == b->momentum && a->beta1 == b->beta1 && a->beta2 == b->beta2);
  OPI_ASSERT(a->epsilon == b->epsilon && a->decay == b->decay && a->clip_norm == b->clip_norm);
  OPI_ASSERT(a->flags == b->flags && a->lr_schedule == b->lr_schedule);
  OPI_ASSERT(a->warmup_steps == b->warmup_steps && a->total_steps == b->total_steps);
  OPI_ASSERT(a->loss_scaling == b->loss_scaling);
  OPI_ASSERT_FATAL(a->n_globs == b->n_globs && a->n_no_decay == b->n_no_decay);
  for (uint32_t i = 0; i < a->n_globs; ++i) {
    const opipe_train_glob *x = (const void *)((const char *)a->globs + i * a->globs_stride);
    OPI_ASSERT(strcmp(x->pattern, b->globs[i].pattern) == 0 && x->reserved == 0);
    OPI_ASSERT_INT(x->trainable, b->globs[i].trainable);
  }
  for (uint32_t i = 0; i < a->n_no_decay; ++i)
    OPI_ASSERT(strcmp(a->no_decay[i], b->no_decay[i]) == 0);
}

static opi_test_text written(host_kit *k) {
  opi_test_text out = {NULL, 0};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, &out, &k->err), &k->err);
  return out;
}

static void options_come_back(uint32_t optimizer) {
  host_kit k, again;
  const opipe_train_options given = unusual(optimizer);
  opipe_train_options found = {.struct_size = sizeof found};
  opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = 2, .n_microbatches = 2, .train = &given};
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 4, 8, &plan), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_training(k.plan, &found, &k.err), &k.err);
  expect_options(&found, &given);
  plan.train = &found; /* as it came */
  OPI_ASSERT_OK_FATAL(kit_plan_training(&again, GPT, 4, 8, &plan), &again.err);
  opi_test_text x = written(&k), y = written(&again);
  OPI_ASSERT(x.n == y.n && memcmp(x.data, y.data, x.n) == 0);
  k.api->plan_destroy(k.plan);
  OPI_ASSERT_OK_FATAL(k.api->plan_read(k.model, y.data, y.n, &k.plan, &k.err), &k.err);
  found = (opipe_train_options){.struct_size = sizeof found};
  OPI_ASSERT_OK_FATAL(k.api->plan_training(k.plan, &found, &k.err), &k.err);
  expect_options(&found, &given);
  free(x.data);
  free(y.data);
  kit_close(&k);
  kit_close(&again);
}

static void test_options_come_back(void) {
  for (uint32_t optimizer = 0; optimizer < OPIPE_N_OPTIMIZERS; ++optimizer)
    options_come_back(optimizer);
}

/* An older host gets fewer fields; a plan for inference has none. */
static void test_what_is_asked_for(void) {
  host_kit k;
  const opipe_train_options given = unusual(OPIPE_OPTIMIZER_ADAMW);
  opipe_train_options found = {.struct_size = OPIPE_END(opipe_train_options, labels), .ignore = 3};
  const opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = 2, .n_microbatches = 2, .train = &given};
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 4, 8, &plan), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_training(k.plan, &found, &k.err), &k.err);
  OPI_ASSERT(strcmp(found.labels, "targets") == 0 && found.ignore == 3);
  found.struct_size = sizeof found.struct_size;
  OPI_ASSERT_ERROR(k.api->plan_training(k.plan, &found, &k.err), OPIPE_E_ABI, &k.err,
                   "plan_training: struct_size is 4, at least 24 are needed");
  OPI_ASSERT_ERROR(k.api->plan_training(k.plan, NULL, &k.err), OPIPE_E_INVALID, &k.err, "is NULL");
  kit_close(&k);
  found.struct_size = sizeof found;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 4, 8, NULL), &k.err);
  OPI_ASSERT_ERROR(k.api->plan_training(k.plan, &found, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "plan_training: the plan is for inference");
  kit_close(&k);
}

/* ---- types ---- */

/* y [4, 1] = float(x [4, 2] . wide [2, 1]) . last [1, 1]; x and wide are float64 */
static void build_wide(host_kit *k) {
  static const char *const in[][2] = {{"x", "wide"}, {"a", NULL}, {"b", "last"}};
  static const char *const out[][1] = {{"a"}, {"b"}, {"y"}};
  static const int64_t rows[] = {4, 2}, column[] = {2, 1}, one[] = {1, 1}, answer[] = {4, 1};
  static const double wide[] = {0.5, -0.25};
  static const float last[] = {2};
  const opipe_build_value x = {.name = "x", .shape = rows, .dtype = OPIPE_DOUBLE, .rank = 2};
  const opipe_build_value y = {.name = "y", .shape = answer, .dtype = OPIPE_FLOAT, .rank = 2};
  const opipe_build_tensor tensors[] = {{.name = "wide",
                                         .shape = column,
                                         .data = wide,
                                         .n_bytes = sizeof wide,
                                         .dtype = OPIPE_DOUBLE,
                                         .rank = 2},
                                        {.name = "last",
                                         .shape = one,
                                         .data = last,
                                         .n_bytes = sizeof last,
                                         .dtype = OPIPE_FLOAT,
                                         .rank = 2}};
  const opipe_attr to = {.name = "to", .kind = OPIPE_ATTR_INT, .i = OPIPE_FLOAT};
  const opipe_build_node nodes[] = {
      {.op = "MatMul", .inputs = in[0], .outputs = out[0], .n_inputs = 2, .n_outputs = 1},
      {.op = "Cast",
       .inputs = in[1],
       .outputs = out[1],
       .attrs = &to,
       .n_inputs = 1,
       .n_outputs = 1,
       .n_attrs = 1},
      {.op = "MatMul", .inputs = in[2], .outputs = out[2], .n_inputs = 2, .n_outputs = 1}};
  const opipe_build_graph graph = {.struct_size = sizeof graph,
                                   .inputs = &x,
                                   .outputs = &y,
                                   .tensors = tensors,
                                   .nodes = nodes,
                                   .n_inputs = 1,
                                   .n_outputs = 1,
                                   .n_tensors = 2,
                                   .n_nodes = 3,
                                   .values_stride = sizeof x,
                                   .tensors_stride = sizeof *tensors,
                                   .nodes_stride = sizeof *nodes};
  const opipe_build_opset opset = {.version = 17};
  const opipe_build_params params = {.struct_size = sizeof params,
                                     .graph = &graph,
                                     .opsets = &opset,
                                     .n_opsets = 1,
                                     .opsets_stride = sizeof opset};
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_TRAIN;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_build(k->context, &params, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
}

/* A parameter that can have no master is refused with the plan, not when a session is opened; if it
 * is frozen it is only read. */
static void test_float64_is_not_trained(void) {
  static const char says[] = "parameter 'wide' is float64: only float32, float16 and bfloat16";
  const opipe_train_glob frozen = {"wide", 0, 0};
  opipe_train_options train = {.struct_size = sizeof train,
                               .loss = OPIPE_LOSS_MSE,
                               .output = "y",
                               .labels = "target",
                               .globs = &frozen,
                               .globs_stride = sizeof frozen,
                               .lr = 0.1};
  const opipe_plan_params plan = {.struct_size = sizeof plan, .train = &train};
  host_kit k;
  opi_test_text json = {NULL, 0};
  char name[128];
  build_wide(&k);
  OPI_ASSERT_ERROR(k.api->plan_make(k.bound, &plan, &k.plan, &k.err), OPIPE_E_UNSUPPORTED, &k.err,
                   says);
  train.n_globs = 1;
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &plan, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_write(k.plan, opi_test_take, &json, &k.err), &k.err);
  size_t n = strlen(json.data);
  kit_take_out_hash(json.data, &n);
  OPI_ASSERT_OK(reopen(&k, &json), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  char *at = first_listed(&json, name);
  OPI_ASSERT_FATAL(strcmp(name, "last") == 0);
  memcpy(at + 1, "wide", 4);
  OPI_ASSERT_ERROR(reopen(&k, &json), OPIPE_E_UNSUPPORTED, &k.err, says);
  free(json.data);
  kit_close(&k);
}

OPI_TEST_MAIN("the parameters that a plan trains", OPI_TEST(test_the_list_decides),
              OPI_TEST(test_names_that_are_not_there), OPI_TEST(test_a_list_is_wanted),
              OPI_TEST(test_float64_is_not_trained), OPI_TEST(test_options_come_back),
              OPI_TEST(test_what_is_asked_for))
