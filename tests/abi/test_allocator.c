/* SPDX-License-Identifier: Apache-2.0 */
/* A context with an allocator of the host's takes its memory from there: what the guide does not
 * name as an exception calls malloc not once.
 * ctest: label=nosan
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"
#include "tests/support/allocations.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int64_t shape[2] = {2, 8};

/* Through the C library's inner names, which are not counted. */
static void *own_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  _Atomic uint64_t *n = ctx;
  ++*n;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  if (align <= 16)
    return __libc_realloc(ptr, new_size);
  void *fresh = __libc_memalign(align, new_size);
  if (fresh != NULL && ptr != NULL)
    memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
  free(ptr);
  return fresh;
}

static opipe_status drop(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  (void)data;
  (void)n_bytes;
  return OPIPE_OK;
}

typedef struct text {
  char data[1 << 20];
  size_t n;
} text;

static opipe_status keep(void *ctx, const void *data, size_t n_bytes) {
  text *t = ctx;
  if (t->n + n_bytes > sizeof t->data)
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n_bytes);
  t->n += n_bytes;
  return OPIPE_OK;
}

#define TAKES_NOTHING(expr)                                                              \
  do {                                                                                   \
    opi_test_count_allocations();                                                        \
    const opipe_status status_ = (expr);                                                 \
    const uint64_t n_ = opi_test_counted();                                              \
    OPI_ASSERT_OK(status_, &k->err);                                                     \
    if (n_ != 0)                                                                         \
      OPI_FAIL("%s: %llu times malloc, not the context's allocator, first at %p", #expr, \
               (unsigned long long)n_, opi_test_first_caller());                         \
  } while (0)

static opipe_status step(host_kit *k) {
  opipe_request *ticket = NULL;
  opipe_binding_io io[2] = {kit_ids(ids, shape), kit_ids(ids, shape)};
  io[1].name = "labels";
  const opipe_submit_params params = {
      .struct_size = sizeof params, .n_inputs = 2, .io_stride = sizeof io[0], .inputs = io};
  opipe_status status = k->api->session_train_step(k->session, &params, &ticket, &k->err);
  if (status == OPIPE_OK)
    status = k->api->request_wait(ticket, UINT64_MAX, &k->err);
  k->api->request_release(ticket);
  return status;
}

/* Ends of objects have no status. */
static opipe_status close_all(host_kit *k) {
  kit_close(k);
  return OPIPE_OK;
}

static void test_what_does_not_come_from_the_allocator(void) {
  static text plan;
  host_kit kit, *k = &kit;
  _Atomic uint64_t n_own = 0;
  const opipe_allocator own = {(void *)&n_own, own_realloc};
  const opipe_context_params context = {.struct_size = sizeof context, .allocator = &own};
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .labels = "labels",
                                     .lr = 0.01};
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = 2, .train = &train};
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source("tests/data/gpt_8block/model.onnx")};
  const char *copy = opi_test_tmp("copy.onnx");
  opipe_plan *read = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan_bound(k, &context, "tests/data/gpt_8block/model.onnx", 2, 8,
                                     OPIPE_BIND_TRAIN, &params),
                      &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
  OPI_ASSERT_OK(step(k), &k->err);
  opipe_model *model = NULL;
  opi_test_count_allocations();
  OPI_ASSERT_OK(k->api->model_load(k->context, &load, &model, &k->err), &k->err);
  OPI_ASSERT_INT(opi_test_counted(), 1); /* the file is mapped */
  TAKES_NOTHING(k->api->model_describe(k->bound, OPIPE_FORMAT_JSON, drop, NULL, &k->err));
  TAKES_NOTHING(k->api->plan_write(k->plan, keep, &plan, &k->err));
  TAKES_NOTHING(step(k));
  TAKES_NOTHING(k->api->session_save_model(k->session, copy, &k->err));
  TAKES_NOTHING(k->api->session_trace(k->session, OPIPE_TRACE_SVG, drop, NULL, &k->err));
  TAKES_NOTHING(k->api->context_plugins(k->context, OPIPE_FORMAT_JSON, drop, NULL, &k->err));
  opi_test_count_allocations();
  OPI_ASSERT_OK(k->api->plan_read(k->bound, plan.data, plan.n, &read, &k->err), &k->err);
  OPI_ASSERT(opi_test_counted() > 0); /* jansson's: else the guide says too much */
  Dl_info info;
  OPI_ASSERT_FATAL(dladdr(opi_test_first_caller(), &info) != 0);
  OPI_ASSERT(strstr(info.dli_fname, "jansson") != NULL);
  k->api->plan_destroy(read);
  k->api->model_destroy(model);
  TAKES_NOTHING(close_all(k));
  OPI_ASSERT(n_own > 1000);
}
#else
static void test_what_does_not_come_from_the_allocator(void) {
  OPI_SKIP("a sanitizer has a malloc of its own");
}
#endif

OPI_TEST_MAIN("allocator", OPI_TEST(test_what_does_not_come_from_the_allocator))
