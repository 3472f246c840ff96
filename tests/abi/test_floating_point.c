/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever rounding, flushing and traps a host's threads have set, the library computes the same
 * bits on them, and the host finds its own environment as it left it: after every call, and inside
 * its callbacks. Without this results change with the host, and a host that traps invalid
 * operations is ended by ours. ctest: timeout=120 */
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const char *const PRODUCT = "tests/data/old/mul_1_scalar/model.onnx";

/* ---- environments ---- */

typedef struct environment {
  uint32_t sse, x87_control, x87_flags;
  int rounding, raised;
} environment;

static environment read_environment(void) {
  environment e = {.rounding = fegetround(), .raised = fetestexcept(FE_ALL_EXCEPT)};
#if defined(__x86_64__)
  uint16_t control = 0, flags = 0;
  __asm__ volatile("stmxcsr %0\n\tfnstcw %1\n\tfnstsw %2"
                   : "=m"(e.sse), "=m"(control), "=m"(flags));
  e.x87_control = control;
  e.x87_flags = flags & 0x3f;
#endif
  return e;
}

enum { PLAIN, TO_ZERO, UPWARD, FLUSHED, TRAPPED, SINGLE, FLAGGED, N_MODES };
static const char *const mode_names[] = {"default",     "round to zero",  "round up",
                                         "FTZ and DAZ", "unmasked traps", "x87 in single",
                                         "flags raised"};

static void set_mode(int mode) {
  (void)fesetenv(FE_DFL_ENV);
  if (mode == TO_ZERO)
    (void)fesetround(FE_TOWARDZERO);
  if (mode == UPWARD)
    (void)fesetround(FE_UPWARD);
  if (mode == TRAPPED)
    (void)feenableexcept(FE_ALL_EXCEPT);
  if (mode == FLAGGED)
    (void)feraiseexcept(FE_DIVBYZERO | FE_UNDERFLOW);
#if defined(__x86_64__)
  uint32_t sse = 0;
  __asm__ volatile("stmxcsr %0" : "=m"(sse));
  sse = (sse & ~0x8040u) | (mode == FLUSHED ? 0x8040u : 0);
  __asm__ volatile("ldmxcsr %0" : : "m"(sse));
  const uint16_t single = 0x007f;
  if (mode == SINGLE)
    __asm__ volatile("fldcw %0" : : "m"(single));
#endif
}

static const char *mode_now = "";
static environment wanted;
static uint32_t n_changed;

static bool same(environment a, environment b) {
  return memcmp(&a, &b, sizeof a) == 0;
}

/* Every call of the table goes through this. */
static opipe_status checked(opipe_status status, const host_kit *k, int line) {
  if (!same(read_environment(), wanted))
    ++n_changed;
  if (n_changed != 0 || status < 0) {
    (void)fesetenv(FE_DFL_ENV);
    OPI_FAIL("line %d, %s: status %d, %u environments changed: %s", line, mode_now, (int)status,
             n_changed, status < 0 ? k->err.message : "");
    n_changed = 0;
    set_mode(PLAIN);
    wanted = read_environment();
  }
  return status;
}
#define CALL(call) checked((call), k, __LINE__)
#define CALL_VOID(call) ((call), checked(OPIPE_OK, k, __LINE__))

/* ---- calls of a host, and all their results ---- */

typedef struct harvest {
  uint8_t bytes[1 << 17];
  size_t n;
} harvest;

static opipe_status reap(void *ctx, const void *data, size_t n) {
  harvest *h = ctx;
  if (!same(read_environment(), wanted))
    ++n_changed;
  if (n > sizeof h->bytes - h->n)
    return OPIPE_E_LIMIT;
  memcpy(h->bytes + h->n, data, n);
  h->n += n;
  return OPIPE_OK;
}

/* Calls of the host's callbacks. */
typedef struct calls {
  pthread_t host;
  uint32_t n, wrong;
} calls;

static void *take_memory(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  calls *c = ctx;
  if (pthread_equal(pthread_self(), c->host)) { /* threads of the library have the library's */
    ++c->n;
    c->wrong += !same(read_environment(), wanted);
  }
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  void *fresh = NULL;
  if (posix_memalign(&fresh, align < 16 ? 16 : align, new_size) != 0)
    return NULL;
  if (ptr != NULL) {
    memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
  }
  return fresh;
}

static void drive_until_done(host_kit *k, opipe_request *request, uint32_t n_ranks) {
  while (CALL(k->api->request_poll(request, &k->err)) == OPIPE_PENDING) {
    for (uint32_t r = 0; r < n_ranks; ++r)
      CALL(k->api->session_drive(k->session, r, 0, &k->err));
  }
}

static void reap_outputs(host_kit *k, opipe_request *request, uint32_t n, harvest *h) {
  for (uint32_t i = 0; i < n; ++i) {
    opipe_tensor out;
    uint64_t n_bytes = 0;
    if (CALL(k->api->request_output(request, i, &out, &k->err)) != OPIPE_OK)
      return;
    for (int32_t d = 0; d <= out.rank; ++d)
      n_bytes = d == 0 ? out.dtype.bits / 8 : n_bytes * (uint64_t)out.shape[d - 1];
    (void)reap(h, out.data, n_bytes);
  }
}

enum { LIBRARY, HOST, REFERENCE, N_SESSIONS };

static opipe_session_params session_params(int how) {
  return (opipe_session_params){.struct_size = sizeof(opipe_session_params),
                                .threads = how == HOST ? OPIPE_THREADS_HOST : OPIPE_THREADS_LIBRARY,
                                .flags = how == REFERENCE ? OPIPE_SESSION_REFERENCE : 0};
}

static void serve(host_kit *k, const opipe_binding_io *inputs, uint32_t n_inputs, uint32_t n_ranks,
                  harvest *h) {
  for (int how = LIBRARY; how < N_SESSIONS; ++how) {
    const opipe_session_params params = session_params(how);
    const opipe_submit_params submit = {.struct_size = sizeof submit,
                                        .n_inputs = n_inputs,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = inputs};
    opipe_request *request = NULL;
    if (CALL(k->api->session_open(k->context, k->plan, &params, &k->session, &k->err)) != OPIPE_OK)
      return;
    if (CALL(k->api->session_submit(k->session, &submit, &request, &k->err)) == OPIPE_OK) {
      if (how == HOST)
        drive_until_done(k, request, n_ranks);
      CALL(k->api->request_wait(request, UINT64_C(30000000000), &k->err));
      reap_outputs(k, request, 1, h);
      CALL_VOID(k->api->request_release(request));
    }
    CALL_VOID(k->api->session_close(k->session));
    k->session = NULL;
  }
}

static void train(host_kit *k, const opipe_binding_io *inputs, uint32_t n_ranks, harvest *h) {
  for (int how = LIBRARY; how < N_SESSIONS; ++how) {
    const opipe_session_params params = session_params(how);
    const opipe_submit_params submit = {.struct_size = sizeof submit,
                                        .n_inputs = 2,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = inputs};
    opipe_request *request = NULL;
    opipe_train_report report = {.struct_size = sizeof report};
    if (CALL(k->api->session_open(k->context, k->plan, &params, &k->session, &k->err)) != OPIPE_OK)
      return;
    for (int i = 0; i < 3; ++i) {
      const opipe_status status =
          i == 2 ? CALL(k->api->session_evaluate(k->session, &submit, &request, &k->err))
                 : CALL(k->api->session_train_step(k->session, &submit, &request, &k->err));
      if (status != OPIPE_OK)
        break;
      if (how == HOST)
        drive_until_done(k, request, n_ranks);
      CALL(k->api->request_wait(request, UINT64_C(30000000000), &k->err));
      CALL(k->api->request_report(request, &report, &k->err));
      (void)reap(h, &report.loss, sizeof report.loss);
      (void)reap(h, &report.gradient_norm, sizeof report.gradient_norm);
      CALL_VOID(k->api->request_release(request));
    }
    CALL_VOID(k->api->session_close(k->session));
    k->session = NULL;
  }
}

static opipe_status load(host_kit *k, const char *file, uint32_t flags, calls *c) {
  const opipe_allocator allocator = {c, take_memory};
  const opipe_context_params context = {
      .struct_size = sizeof context, .log_level = OPIPE_LOG_ERROR, .allocator = &allocator};
  const opipe_load_params params = {.struct_size = sizeof params, .path = opi_test_source(file)};
  const opipe_dim dims[] = {{"batch", 2}, {"seq", 4}};
  const opipe_bind_options bind = {.struct_size = sizeof bind,
                                   .flags = OPIPE_BIND_DEFAULTS | flags,
                                   .dims = dims,
                                   .n_dims = file == GPT ? 2 : 0,
                                   .dims_stride = sizeof(opipe_dim)};
  *k = (host_kit){.err = OPIPE_ERROR_INIT};
  opipe_status status = CALL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->context_create(&context, &k->context, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->model_load(k->context, &params, &k->model, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->model_bind(k->model, &bind, &k->bound, &k->err));
  return status;
}

static opipe_status plan(host_kit *k, const opipe_train_options *options, uint32_t stages,
                         harvest *h) {
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = stages, .train = options};
  opipe_status status = CALL(k->api->plan_make(k->bound, &params, &k->plan, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->plan_write(k->plan, reap, h, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->plan_describe(k->plan, OPIPE_FORMAT_JSON, reap, h, &k->err));
  if (status == OPIPE_OK)
    status = CALL(k->api->model_describe(k->bound, OPIPE_FORMAT_JSON, reap, h, &k->err));
  return status;
}

static void end(host_kit *k) {
  CALL_VOID(k->api->plan_destroy(k->plan));
  CALL_VOID(k->api->model_destroy(k->bound));
  CALL_VOID(k->api->model_destroy(k->model));
  CALL_VOID(k->api->context_destroy(k->context));
}

/* Products that are smaller than any normal number: flushed to zero by FTZ, read as zero by DAZ. */
static opipe_binding_io tiny(const char *name, uint32_t *bits, size_t n, const int64_t *shape,
                             int32_t rank) {
  for (size_t i = 0; i < n; ++i)
    bits[i] = 0x00000123u + (uint32_t)i * 7919u;
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = bits,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = rank,
                                       .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                       .shape = shape}};
}

static void do_all(harvest *h, calls *c) {
  static const int64_t ids[8] = {5, 7, 11, 13, 17, 19, 23, 29};
  static const int64_t shape[2] = {2, 4};
  static const opipe_train_options options = {.struct_size = sizeof options,
                                              .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                              .output = "logits",
                                              .labels = "labels",
                                              .ignore = -100,
                                              .shift = 1,
                                              .optimizer = OPIPE_OPTIMIZER_SGD,
                                              .lr = 0.01};
  host_kit kit, *k = &kit;
  opipe_binding_io inputs[2] = {kit_ids(ids, shape), kit_ids(ids, shape)};
  inputs[1].name = "labels";
  if (load(k, GPT, 0, c) == OPIPE_OK && plan(k, NULL, 2, h) == OPIPE_OK)
    serve(k, inputs, 1, 2, h);
  end(k);
  if (load(k, GPT, OPIPE_BIND_TRAIN, c) == OPIPE_OK && plan(k, &options, 2, h) == OPIPE_OK)
    train(k, inputs, 2, h);
  end(k);
}

static void do_small_numbers(harvest *h, calls *c) {
  host_kit kit, *k = &kit;
  opipe_binding_io inputs[2];
  uint32_t bits[2][64];
  uint32_t n = 0;
  if (load(k, PRODUCT, 0, c) == OPIPE_OK && plan(k, NULL, 1, h) == OPIPE_OK) {
    opipe_tensor_info info = {.struct_size = sizeof info};
    for (; n < 2 && k->api->model_input(k->bound, n, &info, &k->err) == OPIPE_OK; ++n)
      inputs[n] = tiny(info.name, bits[n], 64, info.shape, (int32_t)info.rank);
    const uint32_t half = 0x3f000000u;
    for (size_t i = 0; n == 2 && i < 64; ++i)
      bits[1][i] = half;
    serve(k, inputs, n, 1, h);
  }
  end(k);
}

static void run_in(int mode, harvest *h) {
  calls c = {.host = pthread_self()};
  mode_now = mode_names[mode];
  n_changed = 0;
  set_mode(mode);
  wanted = read_environment();
  do_all(h, &c);
  do_small_numbers(h, &c);
  (void)fesetenv(FE_DFL_ENV);
  set_mode(PLAIN);
  OPI_ASSERT(h->n > 1000);
  OPI_ASSERT(c.n > 1000);
  OPI_ASSERT_INT(c.wrong, 0);
}

static harvest first, other;

static void test_bits_and_environment_in_every_mode(void) {
  run_in(PLAIN, &first);
  for (int mode = TO_ZERO; mode < N_MODES; ++mode) {
    other.n = 0;
    run_in(mode, &other);
    if (other.n != first.n || memcmp(other.bytes, first.bytes, first.n) != 0) {
      OPI_FAIL("%s: %zu bytes of results are not the %zu of the default's", mode_names[mode],
               other.n, first.n);
    }
  }
}

/* ---- callbacks ---- */

/* A host's own sink that rounds otherwise from here on, and raises a flag. */
static opipe_status change_environment(void *ctx, const void *data, size_t n) {
  (void)data;
  *(size_t *)ctx += n;
  (void)feraiseexcept(FE_OVERFLOW);
  (void)fesetround(FE_DOWNWARD);
  return OPIPE_OK;
}

static void test_what_a_callback_sets_is_kept(void) {
  host_kit k;
  size_t n = 0;
  set_mode(UPWARD);
  const opipe_status status = kit_plan(&k, NULL, GPT, 1, 8, NULL);
  (void)feclearexcept(FE_ALL_EXCEPT);
  if (status == OPIPE_OK)
    (void)k.api->plan_describe(k.plan, OPIPE_FORMAT_JSON, change_environment, &n, &k.err);
  const environment found = read_environment();
  set_mode(PLAIN);
  OPI_ASSERT_OK(status, &k.err);
  OPI_ASSERT(n > 100);
  OPI_ASSERT_INT(found.rounding, FE_DOWNWARD);
  OPI_ASSERT_INT(found.raised & FE_OVERFLOW, FE_OVERFLOW);
  kit_close(&k);
}

static opipe_status count_bytes(void *ctx, const void *data, size_t n) {
  (void)data;
  *(size_t *)ctx += n;
  return OPIPE_OK;
}

typedef struct heard {
  uint32_t n;
  int rounding;
} heard;

static void hear(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  heard *h = ctx;
  (void)level;
  (void)file;
  (void)line;
  (void)msg;
  ++h->n;
  h->rounding = fegetround();
}

static void test_the_log_is_called_with_the_hosts_environment(void) {
  heard h = {.n = 0};
  opipe_context *context = NULL;
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const char *paths[] = {opi_test_tmpdir()}; /* with a file that is no plugin */
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .log_level = OPIPE_LOG_DEBUG,
                                       .log_ctx = &h,
                                       .log = hear,
                                       .plugin_paths = paths,
                                       .n_plugin_paths = 1};
  OPI_ASSERT_FATAL(opi_test_write_file(opi_test_tmp("opipe-backend-none.so"), "none", 4));
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  set_mode(TO_ZERO);
  opipe_status status = api->context_create(&params, &context, &err);
  size_t n = 0;
  if (status == OPIPE_OK)
    status = api->schedule_list(context, OPIPE_FORMAT_TEXT, count_bytes, &n, &err);
  set_mode(PLAIN);
  OPI_ASSERT_OK(status, &err);
  OPI_ASSERT(h.n > 0);
  OPI_ASSERT_INT(h.rounding, FE_TOWARDZERO);
  api->context_destroy(context);
}

OPI_TEST_MAIN("floating point", OPI_TEST(test_bits_and_environment_in_every_mode),
              OPI_TEST(test_what_a_callback_sets_is_kept),
              OPI_TEST(test_the_log_is_called_with_the_hosts_environment))
