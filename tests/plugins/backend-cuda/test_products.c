/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithms products may have and what they are told: how pieces of a sum are added, how
 * many processors are aimed at, TF32; and what the library's answers mean. On its double
 * (doubles/products.c). */
#include <math.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* y [4, 8] = x [4, 4096] w [4096, 8], deep: the double has algorithms in pieces for it. */
enum { ROWS = 4, DEEP = 4096, WIDE = 8, CELLS = ROWS * WIDE };

typedef struct model {
  bt_graph graph;
  float x[ROWS * DEEP], w[DEEP * WIDE], row[WIDE], y[CELLS];
  uint16_t half_x[ROWS * DEEP], half_w[DEEP * WIDE], half_y[CELLS]; /* bf16 */
} model;

static model m;

static float number_of(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float number = 0;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static uint16_t to_bf16(float number) {
  uint32_t bits = 0;
  memcpy(&bits, &number, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* With a row that is added behind, or without. */
static void make_model(bool is_half, bool has_row) {
  bt_graph *g = &m.graph;
  const uint32_t dtype = is_half ? OPIPE_BFLOAT16 : OPIPE_FLOAT;
  for (int i = 0; i < ROWS * DEEP; ++i) {
    m.x[i] = (float)(i * 7919 % 2003) / 2003.0f + 0.25f;
    m.half_x[i] = to_bf16(m.x[i]);
  }
  for (int i = 0; i < DEEP * WIDE; ++i) {
    m.w[i] = (float)(i * 6007 % 1999) / 1999.0f + 0.125f;
    m.half_w[i] = to_bf16(m.w[i]);
  }
  for (int i = 0; i < WIDE; ++i)
    m.row[i] = (float)(100 * i);
  memset(m.y, 0, sizeof m.y);
  memset(m.half_y, 0, sizeof m.half_y);
  bt_init(g);
  const uint32_t x =
      bt_value(g, OPIPE_VALUE_INPUT, dtype, is_half ? (void *)m.half_x : m.x, BT_SHAPE(ROWS, DEEP));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, dtype, is_half ? (void *)m.half_w : m.w,
                              BT_SHAPE(DEEP, WIDE));
  const uint32_t y = bt_value(g, has_row ? OPIPE_VALUE_TEMP : OPIPE_VALUE_OUTPUT, dtype,
                              has_row   ? NULL
                              : is_half ? (void *)m.half_y
                                        : m.y,
                              BT_SHAPE(ROWS, WIDE));
  (void)bt_node(g, "MatMul", BT_IN(x, w), BT_OUT(y));
  if (has_row) {
    const uint32_t row = bt_value(g, OPIPE_VALUE_PARAMETER, dtype, m.row, BT_SHAPE(WIDE));
    const uint32_t z = bt_value(g, OPIPE_VALUE_OUTPUT, dtype, m.y, BT_SHAPE(ROWS, WIDE));
    (void)bt_node(g, "Add", BT_IN(y, row), BT_OUT(z));
  }
}

/* The greatest error of the results by what they are. */
static double error_of(bool is_half, bool has_row) {
  double worst = 0;
  for (int i = 0; i < CELLS; ++i) {
    double sum = 0;
    for (int k = 0; k < DEEP; ++k) {
      const int a = i / WIDE * DEEP + k, b = k * WIDE + i % WIDE;
      sum += is_half ? (double)number_of(m.half_x[a]) * (double)number_of(m.half_w[b])
                     : (double)m.x[a] * (double)m.w[b];
    }
    const double wanted = sum + (has_row ? (double)m.row[i % WIDE] : 0);
    const double found = is_half ? (double)number_of(m.half_y[i]) : (double)m.y[i];
    const double error = fabs(found - wanted) / wanted;
    if (!(error <= worst))
      worst = error;
  }
  return worst;
}

/* Compiles and runs; steps of the program. The first product is told of in *out. */
static uint32_t run_model(const opipe_backend *t, opipe_device *device, opipe_kernel *out) {
  bt_run run;
  opipe_event *event = NULL;
  uint32_t n = 1;
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m.graph, 0, &run, &err), &err);
  *out = (opipe_kernel){.struct_size = sizeof *out};
  OPI_ASSERT_OK_FATAL(t->program_kernels(run.program, out, &n, &err), &err);
  OPI_ASSERT_OK(bt_step(t, &m.graph, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(30000000000), &err), &err);
  t->event_destroy(event);
  bt_release(t, &run);
  return run.info.n_kernels;
}

static uint32_t n_told;
static void listen(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  n_told += level == OPIPE_LOG_WARN && strstr(msg, "added in the type of the result") != NULL;
}

/* The library would add pieces in bf16, as they are done: first choices are in fp32. */
static void test_pieces_are_added_in_fp32(void) {
  static const char *const others[] = {"algorithm=21 tile=20 split=2 scheme=1 stages=4",
                                       "algorithm=21 tile=20 split=2 scheme=4 stages=4",
                                       "algorithm=21 tile=20 split=2 scheme=3 stages=4"};
  static const char ours[] = "algorithm=21 tile=20 split=2 scheme=2 stages=4";
  ct_backend b;
  opipe_kernel kernel;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  b.base.host.log = listen;
  n_told = 0;
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  make_model(true, false);
  (void)run_model(t, device, &kernel);
  OPI_ASSERT_STR(kernel.choice, ours);
  OPI_ASSERT(error_of(true, false) <= 0x1p-8); /* one rounding */
  for (uint32_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
    (void)snprintf(kernel.choice, sizeof kernel.choice, "%s", others[i]);
    OPI_ASSERT_OK(t->kernels_use(device, &kernel, 1, &err), &err);
    OPI_ASSERT_INT(n_told, i + 1);
    (void)run_model(t, device, &kernel);
    OPI_ASSERT_STR(kernel.choice, ours);
    OPI_ASSERT_INT(kernel.flags, 0);
  }
  t->device_close(device);
  bt_close(&b.base);
}

/* Products without an epilogue stay where the library takes none; without memory nothing does. */
static void test_answers(void) {
  ct_backend b;
  bt_run run;
  opipe_kernel kernel;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  make_model(false, true);
  OPI_ASSERT_INT(run_model(t, device, &kernel), 1);
  static const char *const refused[] = {"7", "8", "15"};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    char all[16];
    (void)setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER", refused[i], 1);
    make_model(false, true);
    OPI_ASSERT_INT(run_model(t, device, &kernel), 2);
    OPI_ASSERT(error_of(false, true) < 1e-5);
    (void)snprintf(all, sizeof all, "%s all", refused[i]);
    (void)setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER", all, 1);
    OPI_ASSERT_ERROR(bt_prepare(t, device, &m.graph, 0, &run, &err), OPIPE_E_UNSUPPORTED, &err,
                     "cublasLtMatmulAlgoGetHeuristic answers CUBLAS_STATUS_");
  }
  (void)setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER", "3", 1);
  OPI_ASSERT_ERROR(bt_prepare(t, device, &m.graph, 0, &run, &err), OPIPE_E_NOMEM, &err,
                   "CUBLAS_STATUS_ALLOC_FAILED (3)");
  (void)setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER", "14", 1);
  OPI_ASSERT_ERROR(bt_prepare(t, device, &m.graph, 0, &run, &err), OPIPE_E_DEVICE, &err, "(14)");
  (void)unsetenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER");
  OPI_ASSERT_INT(run_model(t, device, &kernel), 1);
  t->device_close(device);
  bt_close(&b.base);
}

/* Other choices where products aim at some of the processors; tables know of which. */
static void test_processors_that_are_aimed_at(void) {
  static const struct {
    const char *options, *what, *choice;
  } rows[] = {{NULL, " sm=0", "algorithm=21 tile=20 split=2 scheme=2 stages=4"},
              {"sm=0", " sm=0", "algorithm=21 tile=20 split=2 scheme=2 stages=4"},
              {"sm=100,tf32=0", " sm=100", "algorithm=71 tile=26 split=1 stages=6"},
              {"sm=132", " sm=132", "algorithm=71 tile=26 split=1 stages=6"}};
  static const char *const broken[] = {"sm=133", "sm=-1", "sm=", "sm=4x", "sm=4294967296"};
  ct_backend b;
  opipe_kernel kernel = {.struct_size = 0}, given = {.struct_size = 0};
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, rows[i].options, 1, 0, &device, &err), &err);
    make_model(false, false);
    if (i > 0)
      OPI_ASSERT_OK(t->kernels_use(device, &given, 1, &err), &err); /* of all processors */
    (void)run_model(t, device, &kernel);
    OPI_ASSERT(strstr(kernel.what, rows[i].what) != NULL);
    OPI_ASSERT_STR(kernel.choice, rows[i].choice);
    OPI_ASSERT_INT(kernel.flags, i == 1 ? OPIPE_KERNEL_GIVEN : 0);
    OPI_ASSERT(error_of(false, false) < 1e-5);
    if (i == 0)
      given = kernel;
    t->device_close(device);
  }
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; ++i) {
    OPI_ASSERT_ERROR(bt_device(&b.base, broken[i], 1, 0, &device, &err), OPIPE_E_INVALID, &err,
                     broken[i]);
  }
  OPI_ASSERT_ERROR(bt_device(&b.base, "sm=133", 1, 0, &device, &err), OPIPE_E_INVALID, &err,
                   "sm=133, the device has 132 processors");
  bt_close(&b.base);
}

static void test_operands_are_rounded_where_asked(void) {
  double errors[2] = {0};
  for (int i = 0; i < 2; ++i) {
    ct_backend b;
    opipe_kernel kernel;
    opipe_device *device = NULL;
    CT_OPEN(&b);
    const opipe_backend *t = b.base.table;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, i == 0 ? NULL : "tf32=1", 1, 0, &device, &err), &err);
    make_model(false, false);
    (void)run_model(t, device, &kernel);
    OPI_ASSERT((strstr(kernel.what, "types=float32,float32,tf32 ") != NULL) == (i == 1));
    errors[i] = error_of(false, false);
    make_model(true, false); /* of fp32 alone */
    (void)run_model(t, device, &kernel);
    OPI_ASSERT(strstr(kernel.what, "tf32") == NULL);
    t->device_close(device);
    bt_close(&b.base);
  }
  OPI_ASSERT(errors[0] < 1e-5);
  OPI_ASSERT(errors[1] > 4 * errors[0] && errors[1] < 1e-3);
}

OPI_TEST_MAIN("cuda products", OPI_TEST(test_pieces_are_added_in_fp32), OPI_TEST(test_answers),
              OPI_TEST(test_processors_that_are_aimed_at),
              OPI_TEST(test_operands_are_rounded_where_asked))
