/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of structs at the host border: every one is walked by the caller's stride. A count without
 * a list or a stride, a stride below the first element's, and what a newer caller says behind the
 * part that this library knows are refused, naming the field. */
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

/* Elements of a caller whose headers are newer: something stands behind today's fields. */
enum { NEWER = 24 };
typedef struct newer_element {
  unsigned char bytes[sizeof(opipe_binding_io) + NEWER];
} newer_element;

typedef struct try_array {
  host_kit k;
  const char *field; /* in messages */
  uint32_t n_bytes;  /* of today's element */
} try_array;

/* Calls the function that takes the array; data of `n` elements. */
typedef opipe_status (*try_fn)(try_array *t, const void *data, uint32_t n, uint32_t stride);

static opipe_status try_budgets(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  opipe_context *context = NULL;
  const opipe_context_params params = {
      .struct_size = sizeof params, .budgets = data, .n_budgets = n, .budgets_stride = stride};
  const opipe_status status = t->k.api->context_create(&params, &context, &t->k.err);
  t->k.api->context_destroy(context);
  return status;
}

static opipe_status try_parameters(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  opipe_model *model = NULL;
  const opipe_load_params params = {.struct_size = sizeof params,
                                    .path = opi_test_source(GPT),
                                    .parameters = data,
                                    .n_parameters = n,
                                    .parameters_stride = stride};
  const opipe_status status = t->k.api->model_load(t->k.context, &params, &model, &t->k.err);
  t->k.api->model_destroy(model);
  return status;
}

static opipe_status try_bind(try_array *t, const opipe_bind_options *options) {
  opipe_model *bound = NULL;
  const opipe_status status = t->k.api->model_bind(t->k.model, options, &bound, &t->k.err);
  t->k.api->model_destroy(bound);
  return status;
}

static opipe_status try_dims(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  const opipe_bind_options options = {.struct_size = sizeof options,
                                      .flags = OPIPE_BIND_DEFAULTS,
                                      .dims = data,
                                      .n_dims = n,
                                      .dims_stride = stride};
  return try_bind(t, &options);
}

static opipe_status try_pins(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  const opipe_bind_options options = {.struct_size = sizeof options,
                                      .flags = OPIPE_BIND_DEFAULTS,
                                      .pins = data,
                                      .n_pins = n,
                                      .pins_stride = stride};
  return try_bind(t, &options);
}

static opipe_status try_devices(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  opipe_plan *plan = NULL;
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = 2,
                                    .devices = data,
                                    .n_devices = n,
                                    .devices_stride = stride};
  const opipe_status status = t->k.api->plan_make(t->k.bound, &params, &plan, &t->k.err);
  t->k.api->plan_destroy(plan);
  return status;
}

static opipe_status try_globs(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  opipe_plan *plan = NULL;
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .globs = data,
                                     .n_globs = n,
                                     .globs_stride = stride};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  const opipe_status status = t->k.api->plan_make(t->k.bound, &params, &plan, &t->k.err);
  t->k.api->plan_destroy(plan);
  return status;
}

static opipe_status try_inputs(try_array *t, const void *data, uint32_t n, uint32_t stride) {
  opipe_request *request = NULL;
  const opipe_submit_params params = {
      .struct_size = sizeof params, .inputs = data, .n_inputs = n, .io_stride = stride};
  opipe_status status = t->k.api->session_submit(t->k.session, &params, &request, &t->k.err);
  if (status == OPIPE_OK)
    status = t->k.api->request_wait(request, UINT64_MAX, &t->k.err);
  t->k.api->request_release(request);
  return status;
}

/* `element`: one that is valid, so that only the stride decides. */
static void check_array(try_array *t, try_fn call, const void *element) {
  newer_element newer[1];
  opipe_error *err = &t->k.err;
  memset(newer, 0, sizeof newer);
  memcpy(newer, element, t->n_bytes);
  OPI_ASSERT_OK(call(t, element, 1, t->n_bytes), err);
  OPI_ASSERT_OK(call(t, newer, 1, t->n_bytes + NEWER), err);
  OPI_ASSERT_ERROR(call(t, NULL, 1, t->n_bytes), OPIPE_E_INVALID, err, t->field);
  OPI_ASSERT_ERROR(call(t, element, 1, 0), OPIPE_E_ABI, err, t->field);
  OPI_ASSERT_ERROR(call(t, element, 1, t->n_bytes - 1), OPIPE_E_ABI, err, t->field);
  newer[0].bytes[t->n_bytes + NEWER - 1] = 3;
  OPI_ASSERT_ERROR(call(t, newer, 1, t->n_bytes + NEWER), OPIPE_E_ABI, err, t->field);
  OPI_ASSERT(strstr(err->message, " 3 ") != NULL);
}

static void test_arrays_before_a_plan(void) {
  try_array t;
  float value = 1;
  const int64_t none[] = {1};
  const opipe_device_budget budget = {"cpu", 0, 0, UINT64_C(1) << 40};
  const opipe_dim dim = {"batch", 2};
  OPI_ASSERT_OK_FATAL(kit_plan(&t.k, NULL, GPT, 1, 8, NULL), &t.k.err);
  t.field = "budgets";
  t.n_bytes = sizeof budget;
  check_array(&t, try_budgets, &budget);
  t.field = "dims";
  t.n_bytes = sizeof dim;
  check_array(&t, try_dims, &dim);
  /* Elements that would be taken need a model of their own: these are refused behind the array. */
  const opipe_pin pin = {"nobody",
                         {.data = &value,
                          .device_type = OPIPE_DL_CPU,
                          .rank = 1,
                          .dtype = {OPIPE_DL_FLOAT, 32, 1},
                          .shape = none}};
  t.field = "pins";
  OPI_ASSERT_ERROR(try_pins(&t, &pin, 1, 0), OPIPE_E_ABI, &t.k.err, "pins");
  OPI_ASSERT_ERROR(try_pins(&t, NULL, 1, sizeof pin), OPIPE_E_INVALID, &t.k.err, "pins");
  OPI_ASSERT(try_pins(&t, &pin, 1, sizeof pin) < 0);
  OPI_ASSERT(strstr(t.k.err.message, "nobody") != NULL);
  OPI_ASSERT_ERROR(try_parameters(&t, &pin, 1, 0), OPIPE_E_ABI, &t.k.err, "parameters");
  OPI_ASSERT_ERROR(try_parameters(&t, NULL, 1, sizeof pin), OPIPE_E_INVALID, &t.k.err,
                   "parameters");
  OPI_ASSERT(try_parameters(&t, &pin, 1, sizeof pin) < 0);
  OPI_ASSERT(strstr(t.k.err.message, "nobody") != NULL);
  kit_close(&t.k);
}

static void test_arrays_of_plans_and_requests(void) {
  try_array t;
  const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 0}, shape[2] = {1, 8};
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  const opipe_binding_io input = kit_ids(ids, shape);
  OPI_ASSERT_OK_FATAL(kit_plan(&t.k, NULL, GPT, 1, 8, NULL), &t.k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&t.k, NULL), &t.k.err);
  t.field = "devices";
  t.n_bytes = sizeof device;
  check_array(&t, try_devices, &device);
  t.field = "inputs";
  t.n_bytes = sizeof input;
  check_array(&t, try_inputs, &input);
  kit_close(&t.k);
}

static void test_globs(void) {
  try_array t;
  const opipe_train_glob glob = {"*", 1, 0};
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels"};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  OPI_ASSERT_OK_FATAL(kit_plan_training(&t.k, GPT, 1, 8, &params), &t.k.err);
  t.field = "globs";
  t.n_bytes = sizeof glob;
  check_array(&t, try_globs, &glob);
  kit_close(&t.k);
}

/* Elements of two sizes behind each other: the second is reached by the stride alone. */
static void test_the_second_element_is_reached_by_the_stride(void) {
  host_kit k;
  opipe_model *bound = NULL;
  struct {
    opipe_dim known;
    uint64_t newer[3];
  } dims[] = {{{"batch", 3}, {0}}, {{"seq", 5}, {0}}};
  const opipe_bind_options options = {.struct_size = sizeof options,
                                      .dims = &dims[0].known,
                                      .n_dims = 2,
                                      .dims_stride = sizeof dims[0]};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_bind(k.model, &options, &bound, &k.err), &k.err);
  for (uint32_t i = 0; i < 2; ++i) {
    opipe_dim_info info = opipe_dim_info_init();
    OPI_ASSERT_OK(k.api->model_dim(bound, i, &info, &k.err), &k.err);
    OPI_ASSERT_INT(info.value, strcmp(info.name, "batch") == 0 ? 3 : 5);
  }
  k.api->model_destroy(bound);
  kit_close(&k);
}

/* Copies of the pipeline take requests in turn where there are fewer micro-batches; replicas of
 * single stages cut every micro-batch, which must have a row for each. */
static void test_replicas_of_a_plan_for_inference(void) {
  static const uint32_t one_each[] = {1, 1}, two[] = {2, 1};
  opipe_plan_params params = opipe_plan_params_init();
  host_kit k;
  params.n_stages = 2;
  params.replicas = 2;
  OPI_ASSERT_OK(kit_plan(&k, NULL, GPT, 1, 8, &params), &k.err);
  kit_close(&k);
  params.replicas = 0;
  params.n_stage_replicas = 2;
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, GPT, 1, 8, &params), OPIPE_E_INVALID, &k.err, "should list");
  kit_close(&k);
  params.stage_replicas = two;
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, GPT, 1, 8, &params), OPIPE_E_INVALID, &k.err,
                   "stage 0 has 2 replicas, which cannot share a micro-batch of 1 row");
  kit_close(&k);
  OPI_ASSERT_OK(kit_plan(&k, NULL, GPT, 2, 8, &params), &k.err);
  kit_close(&k);
  params.stage_replicas = one_each;
  OPI_ASSERT_OK(kit_plan(&k, NULL, GPT, 1, 8, &params), &k.err);
  kit_close(&k);
}

OPI_TEST_MAIN("strides", OPI_TEST(test_arrays_before_a_plan),
              OPI_TEST(test_arrays_of_plans_and_requests), OPI_TEST(test_globs),
              OPI_TEST(test_the_second_element_is_reached_by_the_stride),
              OPI_TEST(test_replicas_of_a_plan_for_inference))
