/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms of products by measuring: which one is taken, what is dropped, what a device makes of
 * a choice that it is given. The library's double has several, each with a time and bits of its
 * own (doubles/products.c). */
#include <math.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* y [4, 64] = x [4, 32] w [32, 64]; z [4, 4] = y v [64, 4] + row [4]: the second is deep */
enum { ROWS = 4, IN = 32, MIDDLE = 64, OUT = 4, PRODUCTS = 2 };

typedef struct model {
  bt_graph graph;
  float x[ROWS * IN], w[IN * MIDDLE], v[MIDDLE * OUT], row[OUT], z[ROWS * OUT];
} model;

static void make_model(model *m) {
  float *all[] = {m->x, m->w, m->v, m->row};
  const int n[] = {ROWS * IN, IN * MIDDLE, MIDDLE * OUT, OUT};
  for (int k = 0; k < 4; ++k) {
    for (int i = 0; i < n[k]; ++i)
      all[k][i] = (float)((i * 7 + k * 3) % 23) / 7.0f - 1.5f;
  }
  bt_graph *g = &m->graph;
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m->x, BT_SHAPE(ROWS, IN));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, m->w, BT_SHAPE(IN, MIDDLE));
  const uint32_t v = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, m->v, BT_SHAPE(MIDDLE, OUT));
  const uint32_t row = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, m->row, BT_SHAPE(OUT));
  const uint32_t y = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(ROWS, MIDDLE));
  const uint32_t z = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m->z, BT_SHAPE(ROWS, OUT));
  (void)bt_node(g, "MatMul", BT_IN(x, w), BT_OUT(y));
  (void)bt_node(g, "Gemm", BT_IN(y, v, row), BT_OUT(z));
}

static void expect_result(const model *m) {
  for (int i = 0; i < ROWS * OUT; ++i) {
    double sum = (double)m->row[i % OUT];
    for (int k = 0; k < MIDDLE; ++k) {
      double y = 0;
      for (int j = 0; j < IN; ++j)
        y += (double)m->x[i / OUT * IN + j] * (double)m->w[j * MIDDLE + k];
      sum += y * (double)m->v[k * OUT + i % OUT];
    }
    OPI_ASSERT(fabs((double)m->z[i] - sum) <= 1e-4 * (1 + fabs(sum)));
  }
}

static void list_kernels(const opipe_backend *t, const opipe_program *program,
                         opipe_kernel kernels[PRODUCTS]) {
  uint32_t n = PRODUCTS;
  for (int i = 0; i < PRODUCTS; ++i)
    kernels[i] = (opipe_kernel){.struct_size = sizeof kernels[i]};
  OPI_ASSERT_OK_FATAL(t->program_kernels(program, kernels, &n, &err), &err);
  OPI_ASSERT_INT(n, PRODUCTS);
}

/* Compiles, runs, and looks at what was computed by what. */
static uint64_t run_model(const opipe_backend *t, opipe_device *device, model *m,
                          opipe_kernel kernels[PRODUCTS]) {
  bt_run run;
  opipe_event *event = NULL;
  memset(m->z, 0, sizeof m->z);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m->graph, 0, &run, &err), &err);
  list_kernels(t, run.program, kernels);
  OPI_ASSERT_OK(bt_step(t, &m->graph, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(30000000000), &err), &err);
  t->event_destroy(event);
  expect_result(m);
  const uint64_t workspace = run.info.workspace_bytes;
  bt_release(t, &run);
  return workspace;
}

static void tune_all(const opipe_backend *t, opipe_device *device, model *m,
                     opipe_kernel kernels[PRODUCTS]) {
  const opipe_tune_params params = {.struct_size = sizeof params};
  opipe_device_usage usage = {.struct_size = sizeof usage};
  bt_run run;
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m->graph, 0, &run, &err), &err);
  list_kernels(t, run.program, kernels);
  for (int i = 0; i < PRODUCTS; ++i)
    OPI_ASSERT_OK(t->kernel_tune(run.program, &params, &kernels[i], &err), &err);
  OPI_ASSERT_OK(t->device_usage(device, &usage, &err), &err);
  OPI_ASSERT(usage.live_bytes[OPIPE_BUFFER_STAGING] == 0);
  bt_release(t, &run);
}

static void test_the_fastest_steady_one_is_chosen(void) {
  opipe_kernel kernels[PRODUCTS], found[PRODUCTS];
  ct_backend b;
  model m;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  make_model(&m);
  const uint64_t own = run_model(t, device, &m, found);
  OPI_ASSERT_STR(found[0].choice, "algorithm=21 tile=20 split=1 stages=4");
  OPI_ASSERT_STR(found[1].choice, "algorithm=21 tile=20 split=2 scheme=2 stages=4");
  OPI_ASSERT_INT(found[0].flags | found[1].flags, 0);
  tune_all(t, device, &m, kernels);
  /* the fastest two cannot be made from their attributes, or have other bits then */
  OPI_ASSERT_STR(kernels[0].choice, "algorithm=31 tile=24 split=1 custom=2147483649 stages=5");
  OPI_ASSERT_INT(kernels[0].n_tried, 4);
  OPI_ASSERT_INT(kernels[0].n_dropped, 1);
  OPI_ASSERT(kernels[0].ns < kernels[0].own_ns);
  /* the fastest of the others never has the same bits twice */
  OPI_ASSERT_STR(kernels[1].choice, "algorithm=31 tile=24 split=4 scheme=2 stages=5");
  OPI_ASSERT_INT(kernels[1].n_tried, 7);
  OPI_ASSERT_INT(kernels[1].n_dropped, 2);
  OPI_ASSERT_OK(t->kernels_use(device, kernels, PRODUCTS, &err), &err);
  OPI_ASSERT(run_model(t, device, &m, found) == own);
  for (int i = 0; i < PRODUCTS; ++i) {
    OPI_ASSERT_INT(found[i].flags, OPIPE_KERNEL_GIVEN);
    OPI_ASSERT_STR(found[i].choice, kernels[i].choice);
  }
  t->device_close(device);
  bt_close(&b.base);
}

/* An algorithm that the library does not have, or not for this product, or that wants another
 * workspace. */
static void test_what_does_not_serve_is_not_taken(void) {
  static const char *const useless[] = {"algorithm=99", "algorithm=21 tile=3 split=1 stages=4",
                                        "algorithm=66 split=3 scheme=2 cluster=2",
                                        "algorithm=71 tile=26 split=1 stages=6",
                                        "algorithm=21 tile=20 split=2 stages=4 custom=4294967295"};
  opipe_kernel kernels[PRODUCTS], found[PRODUCTS];
  ct_backend b;
  model m;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  make_model(&m);
  const uint64_t own = run_model(t, device, &m, kernels);
  OPI_ASSERT(own > 0);
  for (size_t i = 0; i < sizeof useless / sizeof useless[0]; ++i) {
    (void)snprintf(kernels[1].choice, sizeof kernels[1].choice, "%s", useless[i]);
    OPI_ASSERT_OK(t->kernels_use(device, kernels, PRODUCTS, &err), &err);
    OPI_ASSERT(run_model(t, device, &m, found) == own);
    OPI_ASSERT_INT(found[0].flags, OPIPE_KERNEL_GIVEN);
    OPI_ASSERT_INT(found[1].flags, 0);
    OPI_ASSERT_STR(found[1].choice, "algorithm=21 tile=20 split=2 scheme=2 stages=4");
  }
  (void)snprintf(kernels[1].choice, sizeof kernels[1].choice,
                 "algorithm=21 tile=20 stages=4 split=1");
  OPI_ASSERT_OK(t->kernels_use(device, kernels, PRODUCTS, &err), &err);
  OPI_ASSERT(run_model(t, device, &m, found) == 0); /* no pieces: no workspace */
  OPI_ASSERT_INT(found[1].flags, OPIPE_KERNEL_GIVEN);
  t->device_close(device);
  bt_close(&b.base);
}

/* Its time is told, and the fastest of those that tables can say is chosen. */
static void test_a_first_choice_that_no_text_makes(void) {
  opipe_kernel kernels[PRODUCTS], found[PRODUCTS];
  ct_backend b;
  model m;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "sm=100", 1, 0, &device, &err), &err);
  make_model(&m);
  (void)run_model(t, device, &m, found);
  OPI_ASSERT_STR(found[0].choice, "algorithm=71 tile=26 split=1 stages=6");
  tune_all(t, device, &m, kernels);
  OPI_ASSERT_STR(kernels[0].choice, "algorithm=31 tile=24 split=1 custom=2147483649 stages=5");
  OPI_ASSERT(kernels[0].own_ns > 0 && kernels[0].own_ns < kernels[0].ns);
  OPI_ASSERT_INT(kernels[0].n_tried, 4);
  OPI_ASSERT_INT(kernels[0].n_dropped, 1);
  OPI_ASSERT_OK(t->kernels_use(device, kernels, PRODUCTS, &err), &err);
  (void)run_model(t, device, &m, found);
  for (int i = 0; i < PRODUCTS; ++i)
    OPI_ASSERT_INT(found[i].flags, OPIPE_KERNEL_GIVEN);
  t->device_close(device);
  bt_close(&b.base);
}

static void test_refusals(void) {
  static const char *const broken[] = {"",
                                       "tile=1",
                                       "algorithm=1 algorithm=2",
                                       "algorithm=x",
                                       "algorithm=1,tile=2",
                                       "algorithm=1 cluster=70000",
                                       "algorithm=1 split=2147483648",
                                       "algorithm=1 custom=4294967296"};
  opipe_kernel kernels[PRODUCTS];
  opipe_tune_params params = {.struct_size = sizeof params, .n_runs = 1};
  ct_backend b;
  model m;
  bt_run run;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  make_model(&m);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m.graph, 0, &run, &err), &err);
  list_kernels(t, run.program, kernels);
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; ++i) {
    (void)snprintf(kernels[0].choice, sizeof kernels[0].choice, "%s", broken[i]);
    OPI_ASSERT_ERROR(t->kernels_use(device, kernels, PRODUCTS, &err), OPIPE_E_INVALID, &err,
                     "is no algorithm");
  }
  OPI_ASSERT_ERROR(t->kernel_tune(run.program, &params, &kernels[0], &err), OPIPE_E_INVALID, &err,
                   "1 runs of 16 candidates");
  params = (opipe_tune_params){.struct_size = sizeof params, .n_candidates = 65};
  OPI_ASSERT_ERROR(t->kernel_tune(run.program, &params, &kernels[0], &err), OPIPE_E_INVALID, &err,
                   "20 runs of 65 candidates");
  bt_release(t, &run);
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda tune", OPI_TEST(test_the_fastest_steady_one_is_chosen),
              OPI_TEST(test_what_does_not_serve_is_not_taken),
              OPI_TEST(test_a_first_choice_that_no_text_makes), OPI_TEST(test_refusals))
