/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that the device lacks, on the CPU: bits of the CPU backend, in the queue's order, with what
 * they take counted and given back. On the doubles, where a function that the driver calls may not
 * call the driver, and pinned memory may not go while queued work uses it.
 * ctest: always */
#include "cuda_test.h"

#define LONG_NS UINT64_C(30000000000)

static opipe_error err = OPIPE_ERROR_INIT;

/* ---- a host with the CPU backend ---- */

typedef struct rig {
  ct_backend b;
  const opipe_backend *t;
  opipe_device *device;
} rig;

static bt_backend cpu;
static int64_t counted_threads, counted_bytes, most_bytes; /* most_bytes 0: no limit */

static opipe_status find_cpu(void *ctx, const char *id, const opipe_backend **out_table,
                             opipe_instance **out_self, opipe_error *e) {
  (void)ctx;
  (void)e;
  OPI_ASSERT_STR(id, "cpu");
  *out_table = cpu.table;
  *out_self = cpu.self;
  return OPIPE_OK;
}

static opipe_status count(void *ctx, const char *id, uint32_t index, int64_t threads,
                          int64_t n_bytes, opipe_error *e) {
  (void)ctx;
  OPI_ASSERT(strcmp(id, "cpu") == 0 && index == 0);
  if (n_bytes > 0 && most_bytes != 0 && counted_bytes + n_bytes > most_bytes) {
    return opipe_fail(e, OPIPE_E_LIMIT, "%lld of %lld bytes", (long long)n_bytes,
                      (long long)most_bytes);
  }
  counted_threads += threads;
  counted_bytes += n_bytes;
  return OPIPE_OK;
}

static const void *interface_with_cpu(void *ctx, const char *id) {
  static const opipe_backend_lookup lookup = {(uint32_t)OPIPE_END(opipe_backend_lookup, count), 0,
                                              find_cpu, count};
  (void)ctx;
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0 ? &lookup : NULL;
}

static bool open_rig(rig *r, const char *options) {
  memset(r, 0, sizeof *r);
  if (!ct_open_with(&r->b, interface_with_cpu))
    return false;
  r->t = r->b.base.table;
  counted_threads = counted_bytes = most_bytes = 0;
  if (options != NULL)
    OPI_ASSERT_OK_FATAL(bt_device(&r->b.base, options, 1, 0, &r->device, &err), &err);
  return true;
}

#define OPEN_RIG(r, options)      \
  bt_open(&cpu);                  \
  if (!open_rig(&(r), options)) { \
    bt_close(&cpu);               \
    OPI_SKIP("%s", CT_WHY);       \
  }

static void close_rig(rig *r) {
  cuda_double_facts facts;
  r->t->device_close(r->device);
  OPI_ASSERT_INT(counted_threads, 0);
  OPI_ASSERT_INT(counted_bytes, 0);
  r->b.look(&facts);
  OPI_ASSERT_INT(facts.live_pinned, 0);
  bt_close(&r->b.base);
  bt_close(&cpu);
}

/* ---- y = relu(turned(einsum(x * w, w, w))); z = einsum(y, y, y) + 1: two sections, of products of
 * three operands, which the device lacks ---- */

enum { SIDE = 3, CELLS = SIDE * SIDE };
static const float some_x[CELLS] = {1, -2, 3, 0.5f, 4, -1, 2, 2, 0.25f},
                   some_w[CELLS] = {2, 1, 0, -1, 3, 1, 1, 0.5f, 2};

typedef struct outputs {
  float y[CELLS], z;
} outputs;

static void make_graph(bt_graph *g, const float *x, outputs *out) {
  static const float one = 1;
  bt_init(g);
  const uint32_t in = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(SIDE, SIDE));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, some_w, BT_SHAPE(SIDE, SIDE));
  const uint32_t xw = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(SIDE, SIDE));
  const uint32_t e = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(SIDE, SIDE));
  const uint32_t e2 = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(SIDE, SIDE));
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, out->y, BT_SHAPE(SIDE, SIDE));
  const uint32_t d = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, 0, NULL);
  const uint32_t c = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, &one, 0, NULL);
  const uint32_t z = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, &out->z, 0, NULL);
  (void)bt_node(g, "Mul", BT_IN(in, w), BT_OUT(xw));
  bt_text(g, bt_node(g, "Einsum", BT_IN(xw, w, w), BT_OUT(e)), "equation", "ij,jk,jk->ik");
  opipe_node *second = bt_node(g, "Einsum", BT_IN(e, w, w), BT_OUT(e2));
  second->name = "turned";
  bt_text(g, second, "equation", "ij,ij,ij->ji");
  (void)bt_node(g, "Relu", BT_IN(e2), BT_OUT(y));
  bt_text(g, bt_node(g, "Einsum", BT_IN(y, y, y), BT_OUT(d)), "equation", "ii,ij,ji->");
  (void)bt_node(g, "Add", BT_IN(d, c), BT_OUT(z));
}

static void finish(const rig *r, const bt_run *run, opipe_event *event) {
  OPI_ASSERT_OK(r->t->event_record(run->queue, event, &err), &err);
  OPI_ASSERT_OK(r->t->event_sync(event, LONG_NS, &err), &err);
}

static void by_the_cpu(const float *x, outputs *out) {
  bt_graph g;
  opipe_device *device = NULL;
  make_graph(&g, x, out);
  OPI_ASSERT_OK_FATAL(bt_device(&cpu, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_OK(bt_run_once(cpu.table, device, &g, 0, &err), &err);
  cpu.table->device_close(device);
}

static void test_bits_are_the_cpus(void) {
  rig r;
  bt_graph g;
  bt_run run;
  outputs wanted, got;
  opipe_event *event = NULL;
  opipe_device_usage usage = {.struct_size = (uint32_t)sizeof usage};
  opipe_program_info info = {.struct_size = (uint32_t)sizeof info};
  cuda_double_facts before, after;
  OPEN_RIG(r, "fallback_threads=2");
  OPI_ASSERT_INT(counted_threads, 2);
  by_the_cpu(some_x, &wanted);
  make_graph(&g, some_x, &got);
  OPI_ASSERT_OK_FATAL(bt_prepare(r.t, r.device, &g, OPIPE_COMPILE_POISON, &run, &err), &err);
  OPI_ASSERT_OK(r.t->event_create(r.device, &event, &err), &err);
  OPI_ASSERT_OK(r.t->program_info(run.program, &info, &err), &err);
  OPI_ASSERT_OK(r.t->device_usage(r.device, &usage, &err), &err);
  OPI_ASSERT_INT(info.n_fallback, 3);
  OPI_ASSERT_INT(info.host_bytes, usage.host_bytes);
  OPI_ASSERT_INT(info.host_bytes, counted_bytes);
  r.b.look(&before);
  for (int i = 0; i < 20; ++i) {
    memset(&got, 0xff, sizeof got);
    OPI_ASSERT_OK(bt_step(r.t, &g, &run, &err), &err);
    r.b.look(&after);
    OPI_ASSERT_INT(after.waits, before.waits); /* nothing waits on the host */
    finish(&r, &run, event);
    OPI_ASSERT_BITS(got.y, wanted.y, CELLS, OPIPE_FLOAT);
    OPI_ASSERT_BITS(&got.z, &wanted.z, 1, OPIPE_FLOAT);
  }
  r.t->event_destroy(event);
  bt_release(r.t, &run);
  close_rig(&r);
}

/* One program on two queues that nothing orders: its memory on the host is one run's at a time. */
static void test_queues_do_not_meet_in_a_section(void) {
  rig r;
  bt_graph g[2];
  bt_run runs[2];
  float x[2][CELLS];
  outputs wanted[2], got[2];
  opipe_event *events[2] = {NULL};
  opipe_binding *second = NULL;
  OPEN_RIG(r, "fallback=cpu");
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i < CELLS; ++i)
      x[k][i] = some_x[i] * (float)(k + 1) + (float)k;
    by_the_cpu(x[k], &wanted[k]);
    make_graph(&g[k], x[k], &got[k]);
    OPI_ASSERT_OK_FATAL(bt_prepare(r.t, r.device, &g[k], 0, &runs[k], &err), &err);
    OPI_ASSERT_OK(r.t->event_create(r.device, &events[k], &err), &err);
  }
  const opipe_bind_params bind = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = g[1].graph.n_boundaries,
      .program = runs[0].program, /* the first one's, on the second one's memory */
      .params = runs[0].params,
      .arena = {runs[1].arena, 0, runs[1].info.arena_bytes},
      .boundaries = runs[1].regions};
  OPI_ASSERT_OK_FATAL(r.t->bind(r.device, &bind, &second, &err), &err);
  r.t->binding_free(runs[1].binding);
  runs[1].binding = second;
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 2; ++k)
      OPI_ASSERT_OK(bt_step(r.t, &g[k], &runs[k], &err), &err);
    for (int k = 0; k < 2; ++k) {
      finish(&r, &runs[k], events[k]);
      OPI_ASSERT_BITS(got[k].y, wanted[k].y, CELLS, OPIPE_FLOAT);
      OPI_ASSERT_BITS(&got[k].z, &wanted[k].z, 1, OPIPE_FLOAT);
    }
  }
  r.t->binding_free(runs[1].binding);
  runs[1].binding = NULL;
  for (int k = 0; k < 2; ++k) {
    r.t->event_destroy(events[k]);
    bt_release(r.t, &runs[k]);
  }
  close_rig(&r);
}

/* An error that a node on the CPU finds in the data is told by the run's event, once, with the
 * node. */
static void test_data_errors_come_back(void) {
  rig r;
  bt_graph g;
  bt_run run;
  outputs got;
  opipe_event *event = NULL;
  float x[CELLS];
  OPEN_RIG(r, "");
  make_graph(&g, x, &got);
  OPI_ASSERT_OK_FATAL(bt_prepare(r.t, r.device, &g, OPIPE_COMPILE_CHECK_FINITE, &run, &err), &err);
  OPI_ASSERT_OK(r.t->event_create(r.device, &event, &err), &err);
  memcpy(x, some_x, sizeof x);
  x[0] = 1.5e38f; /* twice that is finite, four times that is not */
  OPI_ASSERT_OK(bt_step(r.t, &g, &run, &err), &err);
  OPI_ASSERT_OK(r.t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_ERROR(r.t->event_sync(event, LONG_NS, &err), OPIPE_E_INVALID, &err,
                   "on the CPU: node 'Einsum'");
  memcpy(x, some_x, sizeof x);
  OPI_ASSERT_OK(bt_step(r.t, &g, &run, &err), &err);
  finish(&r, &run, event);
  r.t->event_destroy(event);
  bt_release(r.t, &run);
  close_rig(&r);
}

/* ---- refusals ---- */

static opipe_status compile(rig *r, const bt_graph *g, uint32_t flags) {
  opipe_program *program = NULL;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = flags,
      .graph = &g->graph};
  const opipe_status status = r->t->compile(r->device, &params, &program, &err);
  r->t->program_free(program);
  return status;
}

static void test_training_falls_back_when_asked(void) {
  static const struct {
    const char *options;
    opipe_status inference, training;
    const char *why;
  } cases[] = {{"", OPIPE_OK, OPIPE_E_UNSUPPORTED, "training does not fall back unasked"},
               {"fallback=cpu", OPIPE_OK, OPIPE_OK, NULL},
               {"fallback=none", OPIPE_E_UNSUPPORTED, OPIPE_E_UNSUPPORTED, "fallback=none"}};
  outputs out;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    rig r;
    bt_graph g;
    opipe_support support[BT_NODES];
    OPEN_RIG(r, cases[i].options);
    make_graph(&g, some_x, &out);
    OPI_ASSERT_INT(compile(&r, &g, 0), cases[i].inference);
    OPI_ASSERT_INT(compile(&r, &g, OPIPE_COMPILE_OWNED), cases[i].training);
    if (cases[i].why != NULL) {
      OPI_ASSERT(strstr(err.message, "'Einsum' (Einsum)") != NULL);
      OPI_ASSERT(strstr(err.message, cases[i].why) != NULL);
    }
    OPI_ASSERT_OK(r.t->support(r.device, &g.graph, support, &err), &err);
    OPI_ASSERT_INT(support[0].status, OPIPE_OK);
    OPI_ASSERT_INT(support[1].status, cases[i].inference);
    g.nodes[2].op = "NoSuchOperator"; /* neither has it */
    OPI_ASSERT_INT(compile(&r, &g, 0), OPIPE_E_UNSUPPORTED);
    OPI_ASSERT_OK(r.t->support(r.device, &g.graph, support, &err), &err);
    OPI_ASSERT_INT(support[2].status, OPIPE_E_UNSUPPORTED);
    OPI_ASSERT_INT(support[1].status, cases[i].inference);
    if (cases[i].inference == OPIPE_OK)
      OPI_ASSERT(strstr(support[2].reason, "on the CPU") != NULL);
    close_rig(&r);
  }
}

/* The budget of the CPU holds for sections too; nothing is left of what did not fit. */
static void test_bytes_beyond_a_budget(void) {
  rig r;
  bt_graph g;
  bt_run run;
  outputs out;
  OPEN_RIG(r, "");
  make_graph(&g, some_x, &out);
  most_bytes = 64;
  OPI_ASSERT_ERROR(bt_prepare(r.t, r.device, &g, 0, &run, &err), OPIPE_E_LIMIT, &err,
                   "of 64 bytes");
  bt_release(r.t, &run);
  close_rig(&r);
}

static void test_options_that_do_not_fit(void) {
  static const char *const bad[] = {"fallback=gpu", "fallback_threads=0", "fallback_threads=x",
                                    "fallbacks=1"};
  rig r;
  ct_backend alone;
  opipe_device *device = NULL;
  OPEN_RIG(r, NULL);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i)
    OPI_ASSERT_INT(bt_device(&r.b.base, bad[i], 1, 0, &device, &err), OPIPE_E_INVALID);
  close_rig(&r);
  OPI_ASSERT_FATAL(ct_open(&alone)); /* a host without the service */
  OPI_ASSERT_ERROR(bt_device(&alone.base, "fallback=cpu", 1, 0, &device, &err), OPIPE_E_UNSUPPORTED,
                   &err, "no service 'opipe.backends/1'");
  OPI_ASSERT_OK(bt_device(&alone.base, NULL, 1, 0, &device, &err), &err);
  alone.base.table->device_close(device);
  bt_close(&alone.base);
}

OPI_TEST_MAIN("cuda fallback", OPI_TEST(test_bits_are_the_cpus),
              OPI_TEST(test_queues_do_not_meet_in_a_section), OPI_TEST(test_data_errors_come_back),
              OPI_TEST(test_training_falls_back_when_asked), OPI_TEST(test_bytes_beyond_a_budget),
              OPI_TEST(test_options_that_do_not_fit))
