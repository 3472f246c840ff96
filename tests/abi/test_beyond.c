/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments beyond the end of something: offsets behind any memory, more tensors than the model
 * has, more micro-batches than rows, two budgets for one device, a context made in a callback, a
 * state copied onto itself. Refused before anything of it is touched, or without effect.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/abi/decoder_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
static const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int64_t shape[2] = {2, 8};

static void open_gpt(host_kit *k) {
  OPI_ASSERT_OK_FATAL(kit_plan(k, NULL, GPT, 2, 8, NULL), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
}

/* ---- offsets ---- */

/* That wrap around to just in front of the data, reach the last byte of all, and lie far behind. */
static const uint64_t far[] = {UINT64_MAX - 7, UINT64_MAX, UINT64_MAX - 4096, UINT64_C(1) << 63,
                               UINT64_C(1) << 62};

static void test_offsets_of_inputs_and_outputs(void) {
  static const int64_t to[3] = {2, 8, 344};
  host_kit k;
  opipe_request *request = NULL;
  float *logits = malloc(sizeof(float) * 16 * 344 + 64);
  opipe_binding_io in = kit_ids(ids, shape);
  opipe_binding_io out = {.name = "logits",
                          .tensor = {.data = logits,
                                     .device_type = OPIPE_DL_CPU,
                                     .rank = 3,
                                     .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                     .shape = to}};
  opipe_submit_params params = opipe_submit_params_init();
  OPI_ASSERT_FATAL(logits != NULL);
  open_gpt(&k);
  params.inputs = &in;
  params.n_inputs = 1;
  for (uint32_t i = 0; i < sizeof far / sizeof far[0]; ++i) {
    in.tensor.byte_offset = far[i];
    OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                     &k.err, "its 128 bytes end beyond any memory");
  }
  in.tensor.byte_offset = 0;
  params.outputs = &out;
  params.n_outputs = 1;
  for (uint32_t i = 0; i < sizeof far / sizeof far[0]; ++i) {
    out.tensor.byte_offset = far[i];
    OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                     &k.err, "output 'logits': with byte_offset");
  }
  out.tensor.byte_offset = 64; /* an offset that fits is accepted */
  logits[0] = 77;
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT(logits[0] == 77);
  k.api->request_release(request);
  kit_close(&k);
  free(logits);
}

static void test_offsets_of_pins_and_parameters(void) {
  host_kit k;
  opipe_pin pin = {.input = "input_ids", .value = kit_ids(ids, shape).tensor};
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_load_params load = opipe_load_params_init();
  opipe_model *made = NULL;
  open_gpt(&k);
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.pins = &pin;
  bind.n_pins = 1;
  load.path = opi_test_source(GPT);
  load.parameters = &pin;
  load.n_parameters = 1;
  for (uint32_t i = 0; i < sizeof far / sizeof far[0]; ++i) {
    pin.value.byte_offset = far[i];
    OPI_ASSERT_ERROR(k.api->model_bind(k.model, &bind, &made, &k.err), OPIPE_E_INVALID, &k.err,
                     "pinned to input 'input_ids': with byte_offset");
    load.flags = i % 2 == 0 ? 0 : OPIPE_LOAD_BORROW;
    OPI_ASSERT_ERROR(k.api->model_load(k.context, &load, &made, &k.err), OPIPE_E_INVALID, &k.err,
                     "parameter 'input_ids': with byte_offset");
  }
  kit_close(&k);
}

/* ---- more than there are ---- */

/* One element, and behind it nothing that may be read. */
static opipe_binding_io *last_before_nothing(void **out_pages, size_t *out_n_bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(pages != MAP_FAILED);
  OPI_ASSERT_INT(mprotect(pages + page, page, PROT_NONE), 0);
  *out_pages = pages;
  *out_n_bytes = 2 * page;
  return (opipe_binding_io *)(void *)(pages + page - sizeof(opipe_binding_io));
}

static void test_more_tensors_than_there_are(void) {
  host_kit k;
  void *pages = NULL;
  size_t n_bytes = 0;
  opipe_request *request = NULL;
  opipe_submit_params params = opipe_submit_params_init();
  opipe_binding_io *in = last_before_nothing(&pages, &n_bytes);
  *in = kit_ids(ids, shape);
  open_gpt(&k);
  params.inputs = in;
  params.n_inputs = 2;
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                   &k.err, "session_submit: 2 inputs are given, there are 1");
  params.n_inputs = UINT32_MAX;
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                   &k.err, "4294967295 inputs are given, there are 1");
  params.n_inputs = 1;
  params.outputs = in;
  params.n_outputs = UINT32_MAX;
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &request, &k.err), OPIPE_E_INVALID,
                   &k.err, "4294967295 outputs are given, there are 1");
  params.n_outputs = 0;
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
  OPI_ASSERT_INT(munmap(pages, n_bytes), 0);
}

static uint64_t cpu_ms(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void test_more_micro_batches_than_rows(void) {
  static const char *const dims[] = {NULL, "batch"};
  static const char *const schedules[] = {"gpipe", "1f1b", "interleaved:chunks=2"};
  host_kit k;
  open_gpt(&k);
  const uint64_t before = cpu_ms();
  for (uint32_t i = 0; i < 6; ++i) {
    opipe_plan *plan = NULL;
    opipe_plan_params params = opipe_plan_params_init();
    params.n_stages = 4;
    params.n_ranks = i / 2 == 2 ? 2 : 0;
    params.n_microbatches = UINT32_C(1) << 30;
    params.schedule = schedules[i / 2];
    params.batch_dim = dims[i % 2];
    OPI_ASSERT_ERROR(k.api->plan_make(k.bound, &params, &plan, &k.err), OPIPE_E_INVALID, &k.err,
                     "1073741824 micro-batches of a request of 2 rows ('batch' of input "
                     "'input_ids')");
  }
  const uint64_t took = cpu_ms() - before;
  opi_test_check(took < 1000, __FILE__, __LINE__, false, "%llu ms", (unsigned long long)took);
  kit_close(&k);
}

/* They have their rows, and are more than can be listed. */
static void test_more_micro_batches_than_can_be_listed(void) {
  host_kit k;
  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = 4;
  params.n_microbatches = UINT32_C(1) << 30;
  const uint64_t before = cpu_ms();
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, GPT, INT64_C(1) << 30, 8, &params), OPIPE_E_LIMIT, &k.err,
                   "4 stages x 1073741824 micro-batches are 4294967296 forwards: at most 134217728 "
                   "actions are possible");
  const uint64_t took = cpu_ms() - before;
  opi_test_check(took < 1000, __FILE__, __LINE__, false, "%llu ms", (unsigned long long)took);
  kit_close(&k);
}

/* ---- two budgets ---- */

static void test_two_budgets_for_one_device(void) {
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_budget budgets[3] = {{.kind = "cpu", .index = 0, .memory_bytes = 1000},
                                    {.kind = "cpu", .index = 1, .memory_bytes = 2000},
                                    {.kind = "cpu", .index = 0, .memory_bytes = 3000}};
  opipe_context_params params = opipe_context_params_init();
  params.budgets = budgets;
  params.n_budgets = 3;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  OPI_ASSERT_ERROR(api->context_create(&params, &context, &err), OPIPE_E_INVALID, &err,
                   "budgets[0] and [2] are both for device cpu:0 (1000 and 3000 bytes)");
  budgets[2].kind = "other";
  OPI_ASSERT_OK_FATAL(api->context_create(&params, &context, &err), &err);
  api->context_destroy(context);
}

/* ---- callbacks ---- */

typedef struct inside {
  const opipe_api *api;
  opipe_status done, output;
} inside;

static opipe_status make_context(const inside *in) {
  opipe_context *context = NULL;
  const opipe_status status = in->api->context_create(NULL, &context, NULL);
  in->api->context_destroy(context);
  return status;
}

static void at_end(void *ctx, opipe_request *request, opipe_status status) {
  inside *in = ctx;
  (void)request;
  (void)status;
  in->done = make_context(in);
}

static opipe_status at_output(void *ctx, uint32_t index, const opipe_tensor *tensor,
                              uint64_t n_bytes, void **out_data) {
  inside *in = ctx;
  (void)index;
  (void)tensor;
  (void)n_bytes;
  (void)out_data;
  in->output = make_context(in);
  return OPIPE_OK;
}

static void test_no_context_is_made_in_a_callback(void) {
  host_kit k;
  opipe_request *request = NULL;
  opipe_binding_io in = kit_ids(ids, shape);
  opipe_submit_params params = opipe_submit_params_init();
  open_gpt(&k);
  inside seen = {.api = k.api};
  params.inputs = &in;
  params.n_inputs = 1;
  params.on_done = at_end;
  params.on_output = at_output;
  params.on_done_ctx = params.on_output_ctx = &seen;
  OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &params, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_INT(seen.done, OPIPE_E_STATE);
  OPI_ASSERT_INT(seen.output, OPIPE_E_STATE);
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- onto itself ---- */

static void test_a_state_copied_onto_itself_stays(void) {
  static const int64_t token = 5;
  host_kit k;
  opipe_state *state = NULL;
  opipe_request *request = NULL;
  opipe_state_info before = opipe_state_info_init(), after = opipe_state_info_init();
  char kept[2][4096];
  OPI_ASSERT_OK_FATAL(decoder_open(&k, NULL, opipe_plan_params_init()), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(decoder_submit(&k, state, true, &token, &request, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(request);
  OPI_ASSERT_OK(k.api->state_get(state, 0, &before, NULL, 0, &k.err), &k.err);
  OPI_ASSERT_FATAL(before.n_bytes > 0 && before.n_bytes <= sizeof kept[0]);
  OPI_ASSERT_OK(k.api->state_get(state, 0, NULL, kept[0], before.n_bytes, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->state_copy(state, state, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->state_get(state, 0, &after, kept[1], before.n_bytes, &k.err), &k.err);
  OPI_ASSERT(after.n_elems == before.n_elems && after.flags == before.flags);
  OPI_ASSERT(memcmp(kept[0], kept[1], before.n_bytes) == 0);
  kit_close(&k);
}

OPI_TEST_MAIN("beyond", OPI_TEST(test_offsets_of_inputs_and_outputs),
              OPI_TEST(test_offsets_of_pins_and_parameters),
              OPI_TEST(test_more_tensors_than_there_are),
              OPI_TEST(test_more_micro_batches_than_rows),
              OPI_TEST(test_more_micro_batches_than_can_be_listed),
              OPI_TEST(test_two_budgets_for_one_device),
              OPI_TEST(test_no_context_is_made_in_a_callback),
              OPI_TEST(test_a_state_copied_onto_itself_stays))
