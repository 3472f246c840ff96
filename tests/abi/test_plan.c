/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as values: the same bytes every time, read back and written again; refused for another
 * model, or when something in them does not hold; written into the model's file as annotations that
 * give a plan again.
 */
#include <stdlib.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const char *const LLAMA = "tests/data/llama_8block/model.onnx";

typedef struct text {
  char *data;
  size_t n, room;
} text;

static opipe_status append(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  if (t->n + n + 1 > t->room) {
    t->room = (t->n + n + 1) * 2;
    t->data = realloc(t->data, t->room);
    if (t->data == NULL)
      return OPIPE_E_NOMEM;
  }
  memcpy(t->data + t->n, data, n);
  t->n += n;
  t->data[t->n] = '\0';
  return OPIPE_OK;
}

static text plan_text(host_kit *k, opipe_plan *plan) {
  text out = {NULL, 0, 0};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(plan, append, &out, &k->err), &k->err);
  return out;
}

static void test_same_inputs_same_bytes(void) {
  host_kit a, b;
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 3, .n_microbatches = 2, .schedule = "sequential"};
  OPI_ASSERT_OK_FATAL(kit_plan(&a, NULL, GPT, 4, 8, &params), &a.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&b, NULL, GPT, 4, 8, &params), &b.err);
  text x = plan_text(&a, a.plan), y = plan_text(&b, b.plan);
  OPI_ASSERT_STR(x.data, y.data);
  opipe_plan *again = NULL;
  OPI_ASSERT_OK_FATAL(b.api->plan_read(b.model, x.data, x.n, &again, &b.err), &b.err);
  text z = plan_text(&b, again);
  OPI_ASSERT_STR(z.data, x.data);
  b.api->plan_destroy(again);
  free(x.data);
  free(y.data);
  free(z.data);
  kit_close(&a);
  kit_close(&b);
}

static void test_another_model_is_refused(void) {
  host_kit gpt, llama;
  opipe_plan *plan = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&gpt, NULL, GPT, 1, 8, NULL), &gpt.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&llama, NULL, LLAMA, 1, 8, NULL), &llama.err);
  text x = plan_text(&gpt, gpt.plan);
  OPI_ASSERT_ERROR(llama.api->plan_read(llama.model, x.data, x.n, &plan, &llama.err),
                   OPIPE_E_INVALID, &llama.err, "fingerprint");
  free(x.data);
  kit_close(&gpt);
  kit_close(&llama);
}

/* Replaces the first `from` by `to` of the same length and expects the plan to be refused. */
static void expect_refused(host_kit *k, const text *plan, const char *from, const char *to) {
  opipe_plan *out = NULL;
  char *copy = malloc(plan->n + 1);
  OPI_ASSERT_FATAL(copy != NULL);
  memcpy(copy, plan->data, plan->n + 1);
  char *at = strstr(copy, from);
  OPI_ASSERT_FATAL(at != NULL && strlen(from) == strlen(to));
  memcpy(at, to, strlen(to));
  k->err.message[0] = '\0';
  const opipe_status status = k->api->plan_read(k->model, copy, plan->n, &out, &k->err);
  if (status >= 0 || k->err.message[0] == '\0')
    OPI_FAIL("'%s' in place of '%s': status %d", to, from, (int)status);
  k->api->plan_destroy(out);
  free(copy);
}

static void test_a_plan_is_checked_like_any_input(void) {
  host_kit k;
  opipe_plan *out = NULL;
  OPI_ASSERT_OK_FATAL(
      kit_plan(&k, NULL, GPT, 2, 8,
               &(opipe_plan_params){
                   .struct_size = sizeof(opipe_plan_params), .n_stages = 2, .n_microbatches = 2}),
      &k.err);
  text x = plan_text(&k, k.plan);
  expect_refused(&k, &x, "onnx-pipe plan 3", "onnx-pipe plan 2");
  expect_refused(&k, &x, "\"0F0 0F1\"", "\"0F0 0F0\"");
  expect_refused(&k, &x, "\"0F0 0F1\"", "\"0F0    \"");
  expect_refused(&k, &x, "\"1F0 1F1\"", "\"0F0 1F1\"");
  expect_refused(&k, &x, "\"rank\": 1", "\"rank\": 7");
  expect_refused(&k, &x, "\"hash\": \"", "\"hash\":  ");
  expect_refused(&k, &x, "\"depth\": 2", "\"depth\": 3"); /* not what the hash says */
  expect_refused(&k, &x, "\"schedule\":", "\"schedulE\":");
  expect_refused(&k, &x, "\"kind\": \"cpu\"", "\"kind\": \"gpu\""); /* its hash is another's */
  expect_refused(&k, &x, "\"batch_rows\": 2", "\"batch_rows\": 1");
  expect_refused(&k, &x, "\"nodes\": [\"", "\"nodes\": [\n");
  for (size_t n = 0; n < x.n; n += x.n / 40 + 1) /* cut short anywhere */
    OPI_ASSERT(k.api->plan_read(k.model, x.data, n, &out, &k.err) < 0);
  free(x.data);
  kit_close(&k);
}

static void check_annotated(const char *file, uint32_t n_stages) {
  host_kit k;
  text bytes = {NULL, 0, 0};
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_plan_info info = {.struct_size = sizeof info};
  opipe_model_info about = {.struct_size = sizeof about};
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = n_stages};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, file, 1, 8, &params), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_annotate(k.plan, append, &bytes, &k.err), &k.err);
  const opipe_load_params load = {
      .struct_size = sizeof load, .data = bytes.data, .n_bytes = bytes.n};
  const opipe_bind_options bind = {.struct_size = sizeof bind, .flags = OPIPE_BIND_DEFAULTS};
  OPI_ASSERT_OK_FATAL(k.api->model_load(k.context, &load, &model, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->model_info(model, &about, &k.err), &k.err);
  OPI_ASSERT_INT(about.n_annotated_stages, n_stages);
  OPI_ASSERT_OK_FATAL(k.api->model_bind(model, &bind, &bound, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(bound, NULL, &plan, &k.err),
                      &k.err); /* nothing said: as annotated */
  OPI_ASSERT_OK(k.api->plan_info(plan, &info, &k.err), &k.err);
  OPI_ASSERT_INT(info.n_stages, n_stages);
  k.api->plan_destroy(plan);
  k.api->model_destroy(bound);
  k.api->model_destroy(model);
  kit_close(&k);
  free(bytes.data);
}

static void test_annotations_give_a_plan_again(void) {
  for (uint32_t n = 2; n <= 4; ++n) {
    check_annotated(GPT, n);
    check_annotated(LLAMA, n);
    check_annotated("tests/data/encoder/model.onnx", n);
  }
}

/* Predicted for one request over `transport`; 0: refused. */
static double predicted_ns(uint32_t n_stages, const char *transport, opipe_status *out_status,
                           opipe_error *out_err) {
  host_kit k;
  opipe_plan_info info = {.struct_size = sizeof info};
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = n_stages, .transport = transport};
  *out_status = kit_plan(&k, NULL, GPT, 1, 8, &params);
  *out_err = k.err;
  if (*out_status >= 0)
    OPI_ASSERT_OK(k.api->plan_info(k.plan, &info, &k.err), &k.err);
  kit_close(&k);
  return info.request_ns;
}

/* Three messages of a millisecond one after the other; options are read before anything is opened;
 * every rule will do. */
static void test_a_plan_knows_its_transport(void) {
  static const char *const rules[] = {"edge", "pair", "blocking", "grouped"};
  opipe_error err;
  opipe_status status = OPIPE_OK;
  const double quick = predicted_ns(4, "emulated", &status, &err);
  OPI_ASSERT_OK(status, &err);
  const double slow = predicted_ns(4, "emulated:latency_us=1000", &status, &err);
  OPI_ASSERT_OK(status, &err);
  OPI_ASSERT(slow - quick > 2.99e6 && slow - quick < 3.01e6);
  OPI_ASSERT(predicted_ns(4, "emulated:bandwidth=100000", &status, &err) > quick + 1e6);
  OPI_ASSERT_OK(status, &err);
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
    char spec[32];
    (void)snprintf(spec, sizeof spec, "emulated:rule=%s", rules[i]);
    OPI_ASSERT(predicted_ns(2, spec, &status, &err) > 0);
    OPI_ASSERT_OK(status, &err);
    (void)predicted_ns(1, spec, &status, &err);
    OPI_ASSERT_OK(status, &err);
  }
  (void)predicted_ns(2, "emulated:speed=9", &status, &err);
  OPI_ASSERT_ERROR(status, OPIPE_E_NOTFOUND, &err, "speed");
  (void)predicted_ns(2, "local:speed=9", &status, &err);
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &err, "speed=9");
}

/* A plan is JSON: what is no text cannot be written into one. */
static void test_options_that_are_no_text_are_refused(void) {
  const opipe_device_choice device = {.kind = "cpu", .options = "kernels=\xff"};
  const opipe_plan_params params[] = {
      {.struct_size = sizeof *params, .n_stages = 2, .transport = "local:x=\xff"},
      {.struct_size = sizeof *params, .n_stages = 2, .schedule = "gpipe:x=\xff"},
      {.struct_size = sizeof *params,
       .n_stages = 2,
       .devices = &device,
       .n_devices = 1,
       .devices_stride = sizeof(opipe_device_choice)}};
  static const char *const names[] = {"transport 'local'", "schedule 'gpipe'", "(device cpu)"};
  for (size_t i = 0; i < sizeof params / sizeof *params; ++i) {
    host_kit k;
    const opipe_status status = kit_plan(&k, NULL, GPT, 1, 8, &params[i]);
    OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &k.err, "not UTF-8");
    OPI_ASSERT(strstr(k.err.message, names[i]) != NULL);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("plans", OPI_TEST(test_same_inputs_same_bytes),
              OPI_TEST(test_another_model_is_refused),
              OPI_TEST(test_a_plan_is_checked_like_any_input),
              OPI_TEST(test_annotations_give_a_plan_again),
              OPI_TEST(test_options_that_are_no_text_are_refused),
              OPI_TEST(test_a_plan_knows_its_transport))
