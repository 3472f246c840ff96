/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's objects: devices, options, buffers and caps, queues, and memory that runs out at
 * every point. Without this a failed opening would leak, or a cap would be found out by a run.
 */
#include "backend_test.h"

static bt_backend backend;

static void test_device_query_describes_the_machine(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  uint32_t n = 0;
  bt_open(&backend);
  OPI_ASSERT_OK(backend.table->device_count(backend.self, &n, &err), &err);
  OPI_ASSERT_INT(n, 1);
  OPI_ASSERT_OK(backend.table->device_query(backend.self, 0, &info, &err), &err);
  OPI_ASSERT((info.flags & OPIPE_DEVICE_HOST_MEMORY) != 0);
  OPI_ASSERT_INT(info.alignment, 64);
  OPI_ASSERT(info.peak_flops > 1e9 && info.bandwidth > 1e9 && info.memory_bytes > 1u << 20);
  OPI_ASSERT(strchr(info.name, '(') != NULL);
  OPI_ASSERT_ERROR(backend.table->device_query(backend.self, 1, &info, &err), OPIPE_E_NOTFOUND,
                   &err, "device 1");
  /* An older caller knows fewer fields: nothing beyond them is written. */
  opipe_device_info old = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, memory_bytes)};
  old.bandwidth = 7;
  OPI_ASSERT_OK(backend.table->device_query(backend.self, 0, &old, &err), &err);
  OPI_ASSERT(old.bandwidth == 7 && old.memory_bytes == info.memory_bytes);
  bt_close(&backend);
}

static void test_unknown_options_are_errors(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_open(&backend);
  OPI_ASSERT_ERROR(bt_device(&backend, "kernel=reference", 1, 0, &device, &err), OPIPE_E_INVALID,
                   &err, "'kernel'");
  OPI_ASSERT_ERROR(bt_device(&backend, "kernels=sse9", 1, 0, &device, &err), OPIPE_E_INVALID, &err,
                   "sse9");
  OPI_ASSERT_ERROR(bt_device(&backend, ",", 1, 0, &device, &err), OPIPE_E_INVALID, &err, "");
  OPI_ASSERT_ERROR(bt_device(&backend, NULL, 5000, 0, &device, &err), OPIPE_E_LIMIT, &err, "5000");
  OPI_ASSERT_OK(bt_device(&backend, "kernels=portable", 2, 0, &device, &err), &err);
  backend.table->device_close(device);
  backend.table->device_close(NULL);
  bt_close(&backend);
}

static void test_cap_is_enforced_and_names_both_numbers(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  opipe_buffer *a = NULL;
  opipe_buffer *b = NULL;
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  bt_open(&backend);
  const opipe_backend *t = backend.table;
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 1, 4096, &device, &err), &err);
  OPI_ASSERT_OK(t->buffer_alloc(device, 1, OPIPE_BUFFER_ARENA, &a, &err), &err);
  OPI_ASSERT_OK(t->device_usage(device, &usage, &err), &err);
  OPI_ASSERT_INT(usage.live_bytes[OPIPE_BUFFER_ARENA], 64);
  OPI_ASSERT_ERROR(t->buffer_alloc(device, 4033, OPIPE_BUFFER_BOUNDARY, &b, &err), OPIPE_E_LIMIT,
                   &err, "4096");
  OPI_ASSERT(strstr(err.message, "64") != NULL);
  OPI_ASSERT_OK(t->buffer_alloc(device, 4032, OPIPE_BUFFER_BOUNDARY, &b, &err), &err);
  OPI_ASSERT_OK(t->device_usage(device, &usage, &err), &err);
  OPI_ASSERT_INT(usage.live_bytes[OPIPE_BUFFER_BOUNDARY], 4032);
  OPI_ASSERT_INT(usage.peak_bytes, 4096);
  t->buffer_free(b);
  t->buffer_free(a);
  t->buffer_free(NULL);
  OPI_ASSERT_OK(t->device_usage(device, &usage, &err), &err);
  OPI_ASSERT_INT(usage.live_bytes[OPIPE_BUFFER_ARENA] + usage.live_bytes[OPIPE_BUFFER_BOUNDARY], 0);
  OPI_ASSERT_INT(usage.peak_bytes, 4096);
  OPI_ASSERT_ERROR(t->buffer_alloc(device, UINT64_MAX - 10, OPIPE_BUFFER_ARENA, &a, &err),
                   OPIPE_E_INVALID, &err, "");
  OPI_ASSERT_ERROR(t->buffer_alloc(device, 64, OPIPE_BUFFER_KINDS, &a, &err), OPIPE_E_INVALID, &err,
                   "kind");
  t->device_close(device);
  bt_close(&backend);
}

static void test_regions_stay_within_their_buffers(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  opipe_buffer *buffer = NULL;
  opipe_queue *queue = NULL;
  opipe_event *event = NULL;
  char data[64];
  void *host = NULL;
  bt_open(&backend);
  const opipe_backend *t = backend.table;
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, 128, OPIPE_BUFFER_STAGING, &buffer, &err), &err);
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &queue, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->buffer_host(buffer, &host, &err), &err);
  OPI_ASSERT_INT((uintptr_t)host % 64, 0);
  memset(data, 5, sizeof data);
  const opipe_region low = {buffer, 0, 64};
  const opipe_region high = {buffer, 64, 64};
  const opipe_region beyond = {buffer, 65, 64};
  const opipe_region wrapped = {buffer, UINT64_MAX, 64};
  const opipe_region half = {buffer, 0, 32};
  OPI_ASSERT_OK(t->write(queue, &low, data, &err), &err);
  OPI_ASSERT_OK(t->copy(queue, &high, &low, &err), &err);
  memset(data, 0, sizeof data);
  OPI_ASSERT_OK(t->read(queue, data, &high, &err), &err);
  OPI_ASSERT_INT(data[63], 5);
  OPI_ASSERT_ERROR(t->write(queue, &beyond, data, &err), OPIPE_E_INVALID, &err, "128");
  OPI_ASSERT_ERROR(t->read(queue, data, &wrapped, &err), OPIPE_E_INVALID, &err, "");
  OPI_ASSERT_ERROR(t->copy(queue, &half, &low, &err), OPIPE_E_INVALID, &err, "32");
  OPI_ASSERT_OK(t->event_record(queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_wait(queue, event, &err), &err);
  OPI_ASSERT_INT(t->event_poll(event, &err), OPIPE_OK);
  OPI_ASSERT_INT(t->event_sync(event, 0, &err), OPIPE_OK);
  t->event_destroy(event);
  t->queue_close(queue);
  t->buffer_free(buffer);
  t->device_close(device);
  bt_close(&backend);
}

/* Product with packed weights, fused work, a view, a reduction: a bit of everything that allocates.
 */
static void small_graph(bt_graph *g, float *x, float *w, float *bias, float *y) {
  static const int64_t flat[1] = {12};
  bt_init(g);
  const uint32_t X = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(3, 5));
  const uint32_t W = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, w, BT_SHAPE(5, 4));
  const uint32_t B = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, bias, BT_SHAPE(4));
  const uint32_t S = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, flat, BT_SHAPE(1));
  const uint32_t p = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(3, 4));
  const uint32_t q = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(3, 4));
  const uint32_t r = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(12));
  const uint32_t Y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(1));
  bt_node(g, "MatMul", BT_IN(X, W), BT_OUT(p));
  bt_node(g, "Add", BT_IN(p, B), BT_OUT(q));
  bt_node(g, "Reshape", BT_IN(q, S), BT_OUT(r));
  bt_node(g, "ReduceSum", BT_IN(r), BT_OUT(Y));
}

static opipe_status everything(opi_test_memory *memory, void *arg) {
  opipe_error err = OPIPE_ERROR_INIT;
  float x[15], w[20], bias[4] = {1, 2, 3, 4}, y[1] = {0};
  opipe_device *device = NULL;
  opipe_instance *self = NULL;
  bt_backend b = *(bt_backend *)arg;
  bt_graph g;
  for (int i = 0; i < 20; ++i) {
    w[i] = 1;
    x[i % 15] = 1;
  }
  b.host.ctx = &memory->allocator;
  small_graph(&g, x, w, bias, y);
  opipe_status s = b.plugin->open(&b.host, &self, &err);
  if (s < 0)
    return s;
  b.self = self;
  s = bt_device(&b, NULL, 2, 0, &device, &err);
  if (s >= 0)
    s = bt_run_once(b.table, device, &g, OPIPE_COMPILE_POISON, &err);
  if (s >= 0)
    OPI_ASSERT_NEAR(y, (&(float){3 * (4 * 5 + 10)}), 1, OPIPE_FLOAT, 1e-6, 1e-6);
  b.table->device_close(device);
  b.plugin->close(self);
  return s;
}

static void test_every_allocation_may_fail(void) {
  bt_open(&backend);
  /* under a sanitizer more: there every block is an allocation */
  OPI_ASSERT(opi_test_every_allocation(everything, &backend, 500) > 10);
  bt_close(&backend);
}

static void test_support_answers_per_node(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_graph g;
  opipe_support answers[3];
  float x[4] = {0};
  bt_open(&backend);
  bt_init(&g);
  const uint32_t a = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(4));
  const uint32_t b = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(4));
  const uint32_t c = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(4));
  const uint32_t d = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, x, BT_SHAPE(4));
  bt_node(&g, "Relu", BT_IN(a), BT_OUT(b));
  bt_node(&g, "NoSuchOperator", BT_IN(b), BT_OUT(c));
  bt_node(&g, "Not", BT_IN(c), BT_OUT(d));
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_OK(backend.table->support(device, &g.graph, answers, &err), &err);
  OPI_ASSERT_INT(answers[0].status, OPIPE_OK);
  OPI_ASSERT_STR(answers[0].reason, "");
  OPI_ASSERT_INT(answers[1].status, OPIPE_E_UNSUPPORTED);
  OPI_ASSERT(strstr(answers[1].reason, "NoSuchOperator") != NULL);
  OPI_ASSERT_INT(answers[2].status, OPIPE_E_UNSUPPORTED);
  OPI_ASSERT(strstr(answers[2].reason, "bool") != NULL);
  OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_UNSUPPORTED, &err,
                   "NoSuchOperator");
  backend.table->device_close(device);
  bt_close(&backend);
}

OPI_TEST_MAIN("backend-cpu", OPI_TEST(test_device_query_describes_the_machine),
              OPI_TEST(test_unknown_options_are_errors),
              OPI_TEST(test_cap_is_enforced_and_names_both_numbers),
              OPI_TEST(test_regions_stay_within_their_buffers),
              OPI_TEST(test_every_allocation_may_fail), OPI_TEST(test_support_answers_per_node))
