/* SPDX-License-Identifier: Apache-2.0 */
/* The option bf16= of the CPU backend: which arithmetic a product of bf16 by bf16 gets, in
 * inference and in the three products of training. */
#include "backend_test.h"
#include "plugins/backend-cpu/kernels/half.h"

enum { K = 32, N = 3, M = 2 };

/* Y[M,N] = X[M,K] W[K,N] whose rows of X are 2^24, 1, 0, 1, 0 ... -2^24, 1 and W is 1: 16 by exact
 * sums; what is left of it tells orders of additions apart. False: not on this machine. */
static bool product(const char *options, uint32_t threads, float *out) {
  static bt_graph g;
  static uint16_t x[M * K], y[M * N], w[K * N];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_run r;
  for (int i = 0; i < M * K; ++i) {
    const int k = i % K;
    x[i] = cpu_f32_to_bf16(k == 0 ? 0x1p24f : k == 30 ? -0x1p24f : (float)(k % 2));
  }
  for (int i = 0; i < K * N; ++i)
    w[i] = cpu_f32_to_bf16(1.0f);
  bt_open(&b);
  bt_init(&g);
  const uint32_t vx = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, x, BT_SHAPE(M, K));
  const uint32_t vw = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_BFLOAT16, w, BT_SHAPE(K, N));
  const uint32_t vy = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, y, BT_SHAPE(M, N));
  bt_node(&g, "MatMul", BT_IN(vx, vw), BT_OUT(vy));
  const opipe_status status = bt_device(&b, options, threads, 0, &device, &err);
  if (status >= 0) {
    OPI_ASSERT_OK(bt_prepare(b.table, device, &g, 0, &r, &err), &err);
    OPI_ASSERT_OK(bt_step(b.table, &g, &r, &err), &err);
    bt_release(b.table, &r);
    b.table->device_close(device);
    for (int i = 0; i < M * N; ++i)
      out[i] = cpu_bf16_to_f32(y[i]);
  } else {
    OPI_ASSERT_INT(status, OPIPE_E_UNSUPPORTED);
    OPI_ASSERT(strstr(err.message, options) != NULL);
  }
  bt_close(&b);
  return status >= 0;
}

/* The result without options, by the device's own name. */
static float own(void) {
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  opipe_error err = OPIPE_ERROR_INIT;
  bt_backend b;
  bt_open(&b);
  OPI_ASSERT_OK(b.table->device_query(b.self, 0, &info, &err), &err);
  bt_close(&b);
  return strstr(info.name, "bf16 pairs") != NULL   ? 0.0f
         : strstr(info.name, "bf16 tiles") != NULL ? 16.0f
                                                   : 1.0f;
}

static void test_the_option_chooses_the_order_of_additions(void) {
  const struct {
    const char *options;
    float wanted;
  } cases[] = {{"bf16=widen", 1.0f},
               {"kernels=portable", 1.0f},
               {"kernels=portable,bf16=auto", 1.0f},
               {NULL, own()},
               {"bf16=auto", own()},
               {"bf16=pairs-model", 0.0f},
               {"bf16=tiles-model", 16.0f},
               {"bf16=pairs", 0.0f},
               {"bf16=tiles", 16.0f},
               {"kernels=reference", 16.0f},
               {"kernels=portable,bf16=tiles-model", 16.0f}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
      float y[M * N];
      if (!product(cases[i].options, threads, y))
        continue;
      for (int k = 0; k < M * N; ++k) {
        if (y[k] != cases[i].wanted) {
          OPI_FAIL("%s: %g, wanted %g", cases[i].options == NULL ? "" : cases[i].options,
                   (double)y[k], (double)cases[i].wanted);
        }
      }
    }
  }
}

/* ---- training: Y = X W, dX = D W^T, W's accumulator += Z^T O, W of fp32 behind a Cast ---- */

enum { E = 32 }; /* edge of all of them */

typedef struct layer {
  bt_graph graph;
  uint16_t x[E * E], d[E * E], z[E * E], ones[E * E], y[E * E], dx[E * E];
  float w[E * E], dw[E * E];
} layer;

static uint16_t step(int k) {
  return cpu_f32_to_bf16(k == 0 ? 0x1p24f : k == 30 ? -0x1p24f : (float)(k % 2));
}

static uint32_t half(bt_graph *g, uint32_t role, void *data) {
  return bt_value(g, role, OPIPE_BFLOAT16, data, BT_SHAPE(E, E));
}

static void multiply(bt_graph *g, uint32_t a, bool turn_a, uint32_t b, bool turn_b, uint32_t out) {
  opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(a, b), BT_OUT(out));
  node->domain = "com.microsoft";
  bt_int(g, node, "transA", turn_a);
  bt_int(g, node, "transB", turn_b);
}

/* Every sum runs over the steps of product's rows: 16, 1 or 0. */
static void make_layer(layer *l) {
  bt_graph *g = &l->graph;
  bt_init(g);
  for (int i = 0; i < E * E; ++i) {
    l->x[i] = step(i % E);
    l->d[i] = step(i % E);
    l->z[i] = step(i / E);
    l->ones[i] = cpu_f32_to_bf16(1.0f);
    l->w[i] = 1.001f; /* 1 in bf16 */
  }
  const uint32_t x = half(g, OPIPE_VALUE_INPUT, l->x), d = half(g, OPIPE_VALUE_INPUT, l->d);
  const uint32_t z = half(g, OPIPE_VALUE_INPUT, l->z), o = half(g, OPIPE_VALUE_INPUT, l->ones);
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, l->w, BT_SHAPE(E, E));
  const uint32_t cast = half(g, OPIPE_VALUE_TEMP, NULL), dw = half(g, OPIPE_VALUE_TEMP, NULL);
  const uint32_t wide = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(E, E));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(E, E));
  g->values[sum].slot = g->values[w].slot;
  bt_int(g, bt_node(g, "Cast", BT_IN(w), BT_OUT(cast)), "to", 16);
  multiply(g, x, false, cast, false, half(g, OPIPE_VALUE_OUTPUT, l->y));
  multiply(g, d, false, cast, true, half(g, OPIPE_VALUE_OUTPUT, l->dx));
  multiply(g, z, true, o, false, dw);
  bt_int(g, bt_node(g, "Cast", BT_IN(dw), BT_OUT(wide)), "to", 1);
  bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
}

static opipe_status train_layer(const bt_backend *b, opipe_device *device, layer *l,
                                opipe_error *err) {
  bt_run r;
  opipe_status status = bt_prepare(b->table, device, &l->graph, OPIPE_COMPILE_OWNED, &r, err);
  if (status >= 0)
    status = bt_step(b->table, &l->graph, &r, err);
  if (status >= 0)
    status = b->table->params_read(r.gradients, 0, l->dw, sizeof l->dw, err);
  bt_release(b->table, &r);
  return status;
}

static void test_training_multiplies_in_the_same_order(void) {
  static const struct {
    const char *options;
    float wanted;
    bool rounds; /* W to bf16: it is 1.001 */
  } cases[] = {{"bf16=widen", 1.0f, false},
               {"bf16=pairs-model", 0.0f, true},
               {"bf16=tiles-model", 16.0f, true},
               {"bf16=pairs", 0.0f, true},
               {"bf16=tiles", 16.0f, true}};
  static layer l;
  bt_backend b;
  bt_open(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    opipe_device *device = NULL;
    if (bt_device(&b, cases[i].options, 1 + i % 2, 0, &device, &err) < 0)
      continue;
    make_layer(&l);
    OPI_ASSERT_OK(train_layer(&b, device, &l, &err), &err);
    b.table->device_close(device);
    for (int k = 0; k < E * E; ++k) {
      const float y = cpu_bf16_to_f32(l.y[k]), dx = cpu_bf16_to_f32(l.dx[k]);
      if (l.dw[k] != cases[i].wanted || (cases[i].rounds && (y != l.dw[k] || dx != l.dw[k]))) {
        OPI_FAIL("%s, element %d: Y %g, dX %g, dW %g, wanted %g", cases[i].options, k, (double)y,
                 (double)dx, (double)l.dw[k], (double)cases[i].wanted);
        break;
      }
    }
  }
  bt_close(&b);
}

static void test_other_values_are_refused(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_open(&b);
  OPI_ASSERT_INT(bt_device(&b, "bf16=amx", 1, 0, &device, &err), OPIPE_E_INVALID);
  OPI_ASSERT(strstr(err.message, "bf16=amx") != NULL && strstr(err.message, "auto") != NULL);
  OPI_ASSERT_OK(bt_device(&b, "bf16=auto", 1, 0, &device, &err), &err);
  b.table->device_close(device);
  bt_close(&b);
}

/* ---- tables ---- */

enum { LINES = 67, WIDTH = 131, TAKEN = 6 }; /* odd, and more than a panel, either way */

/* A table that is gathered from and multiplied with, as it is [LINES, WIDTH] or (turned) as the
 * transpose of B: the rows are those that are stored. */
static void check_rows(bool turned) {
  static bt_graph g;
  static uint16_t table[LINES * WIDTH], rows[TAKEN * WIDTH], x[LINES],
      y[LINES > WIDTH ? LINES : WIDTH], z[WIDTH];
  static const int64_t at[TAKEN] = {0, 1, 63, 64, LINES - 1, -2};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  opipe_param_layout layouts[2] = {
      {.struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes)},
      {.struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes)}};
  uint32_t n_layouts = 2;
  bt_backend b;
  bt_run r;
  for (int i = 0; i < LINES * WIDTH; ++i)
    table[i] = cpu_f32_to_bf16((float)(i % 251) - 100);
  memset(rows, 0xff, sizeof rows);
  bt_open(&b);
  bt_init(&g);
  const uint32_t vt =
      bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_BFLOAT16, table, BT_SHAPE(LINES, WIDTH));
  const uint32_t vi =
      bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, (void *)(uintptr_t)at, BT_SHAPE(TAKEN));
  const uint32_t vr =
      bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, rows, BT_SHAPE(TAKEN, WIDTH));
  bt_node(&g, "Gather", BT_IN(vt, vi), BT_OUT(vr));
  const uint32_t va = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, turned ? z : x,
                               BT_SHAPE(1, turned ? WIDTH : LINES));
  const uint32_t vy =
      bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, y, BT_SHAPE(1, turned ? LINES : WIDTH));
  bt_int(&g, bt_node(&g, "Gemm", BT_IN(va, vt), BT_OUT(vy)), "transB", turned);
  OPI_ASSERT_OK_FATAL(bt_device(&b, NULL, 2, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_prepare(b.table, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_OK(b.table->program_params(r.program, layouts, &n_layouts, &err), &err);
  OPI_ASSERT(n_layouts == 1 && layouts[0].key != 0); /* gathered from the panels */
  OPI_ASSERT_OK(bt_step(b.table, &g, &r, &err), &err);
  for (int i = 0; i < TAKEN; ++i) {
    const int64_t line = at[i] < 0 ? at[i] + LINES : at[i];
    OPI_ASSERT(memcmp(rows + i * WIDTH, table + line * WIDTH, WIDTH * sizeof *rows) == 0);
  }
  bt_release(b.table, &r);
  b.table->device_close(device);
  bt_close(&b);
}

static void test_rows_come_from_panels(void) {
  check_rows(false);
  check_rows(true);
}

OPI_TEST_MAIN("op_bf16", OPI_TEST(test_the_option_chooses_the_order_of_additions),
              OPI_TEST(test_training_multiplies_in_the_same_order),
              OPI_TEST(test_other_values_are_refused), OPI_TEST(test_rows_come_from_panels))
