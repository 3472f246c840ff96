/* SPDX-License-Identifier: Apache-2.0 */
/* Products and convolutions of integers with what makes their sums numbers, and integers of 8 bits
 * again: one kernel with the bits of the nodes by themselves, on every instruction set, one thread
 * and two, whatever the number of rows.
 */
#include "backend_test.h"

enum { MOST = 40000 };

typedef struct group_case {
  int64_t rows, k, n;   /* of a product; of a convolution: images, channels in and out */
  int64_t size, kernel; /* of a convolution; 0: a product */
  int64_t stride, pad;
  bool depthwise, turned;     /* turned: the weight is stored [N,K] */
  uint32_t x_type, w_type, y; /* y: type of the result, OPIPE_FLOAT where nothing is quantized */
  bool zeros, bias, relu;
} group_case;

static const group_case cases[] = {
    {1, 40, 70, 0, 0, 0, 0, false, false, OPIPE_UINT8, OPIPE_INT8, OPIPE_UINT8, true, true, true},
    {13, 33, 65, 0, 0, 0, 0, false, true, OPIPE_UINT8, OPIPE_INT8, OPIPE_INT8, true, false, false},
    {7, 64, 5, 0, 0, 0, 0, false, true, OPIPE_INT8, OPIPE_UINT8, OPIPE_UINT8, true, true, false},
    {5, 300, 130, 0, 0, 0, 0, false, false, OPIPE_INT8, OPIPE_INT8, OPIPE_FLOAT, false, true, true},
    {2, 5, 17, 9, 3, 1, 1, false, false, OPIPE_UINT8, OPIPE_INT8, OPIPE_UINT8, true, true, true},
    {1, 70, 9, 13, 1, 1, 0, false, false, OPIPE_UINT8, OPIPE_INT8, OPIPE_INT8, true, false, false},
    {1, 3, 20, 30, 5, 2, 2, false, false, OPIPE_INT8, OPIPE_UINT8, OPIPE_FLOAT, true, true, true},
    {2, 12, 12, 11, 3, 1, 1, true, false, OPIPE_UINT8, OPIPE_INT8, OPIPE_UINT8, true, true, true},
    {1, 21, 21, 14, 3, 2, 1, true, false, OPIPE_INT8, OPIPE_INT8, OPIPE_FLOAT, false, true, false},
};

typedef struct group_data {
  uint8_t x[MOST], w[MOST], zx[1], zw[256];
  float scale[256], bias[256], y_scale[1];
  uint8_t y_zero[1];
  char y[4 * MOST];
} group_data;

static bool is_conv(const group_case *c) {
  return c->kernel != 0;
}

static int64_t out_size(const group_case *c) {
  return (c->size + 2 * c->pad - c->kernel) / c->stride + 1;
}

/* Shapes of x, w, the result and what goes with its channels. Returns the rank. */
static uint32_t shapes_of(const group_case *c, int64_t *x, int64_t *w, int64_t *y, int64_t *along) {
  if (!is_conv(c)) {
    memcpy(x, ((int64_t[]){c->rows, c->k}), 2 * sizeof *x);
    memcpy(w, ((int64_t[]){c->turned ? c->n : c->k, c->turned ? c->k : c->n}), 2 * sizeof *w);
    memcpy(y, ((int64_t[]){c->rows, c->n}), 2 * sizeof *y);
    along[0] = c->n;
    return 2;
  }
  const int64_t o = out_size(c);
  memcpy(x, ((int64_t[]){c->rows, c->k, c->size, c->size}), 4 * sizeof *x);
  memcpy(w, ((int64_t[]){c->n, c->depthwise ? 1 : c->k, c->kernel, c->kernel}), 4 * sizeof *w);
  memcpy(y, ((int64_t[]){c->rows, c->n, o, o}), 4 * sizeof *y);
  memcpy(along, ((int64_t[]){c->n, 1, 1}), 3 * sizeof *along);
  return 4;
}

static void fill(group_data *d) {
  opi_test_random random = {11};
  for (int64_t i = 0; i < MOST; ++i) {
    d->x[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
    d->w[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
  }
  d->zx[0] = 117;
  d->y_zero[0] = 9;
  d->y_scale[0] = 1.7f;
  for (int i = 0; i < 256; ++i) {
    d->zw[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
    d->scale[i] = (float)opi_test_uniform(&random, 0.001, 0.003);
    d->bias[i] = (float)opi_test_uniform(&random, -40, 40);
  }
}

static uint32_t temp(bt_graph *g, uint32_t dtype, uint32_t rank, const int64_t *shape) {
  return bt_value(g, OPIPE_VALUE_TEMP, dtype, NULL, rank, shape);
}

/* Sums of the product or convolution. */
static uint32_t put_sums(bt_graph *g, const group_case *c, group_data *d, uint32_t rank,
                         const int64_t *x_shape, const int64_t *w_shape, const int64_t *y_shape) {
  static const int64_t perm[2] = {1, 0}, ones[2] = {1, 1};
  static int64_t kernel[2], strides[2], pads[4]; /* as long as the graph */
  const int64_t turned[2] = {c->k, c->n}, n = c->n;
  uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, c->x_type, d->x, rank, x_shape);
  uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, c->w_type, d->w, rank, w_shape);
  uint32_t zx = OPIPE_NONE, zw = OPIPE_NONE;
  if (c->zeros) {
    zx = bt_value(g, OPIPE_VALUE_CONSTANT, c->x_type, d->zx, 0, NULL);
    zw = bt_value(g, OPIPE_VALUE_CONSTANT, c->w_type, d->zw, 1, &n);
  }
  if (c->turned) {
    const uint32_t from = w;
    w = temp(g, c->w_type, 2, turned);
    bt_ints(g, bt_node(g, "Transpose", BT_IN(from), BT_OUT(w)), "perm", 2, perm);
  }
  const uint32_t sums = temp(g, OPIPE_INT32, rank, y_shape);
  opipe_node *node =
      bt_node(g, is_conv(c) ? "ConvInteger" : "MatMulInteger", BT_IN(x, w, zx, zw), BT_OUT(sums));
  if (is_conv(c)) {
    for (int a = 0; a < 4; ++a)
      pads[a] = c->pad;
    for (int a = 0; a < 2; ++a) {
      kernel[a] = c->kernel;
      strides[a] = c->stride;
    }
    bt_int(g, node, "group", c->depthwise ? c->k : 1);
    bt_ints(g, node, "kernel_shape", 2, kernel);
    bt_ints(g, node, "strides", 2, strides);
    bt_ints(g, node, "dilations", 2, ones);
    bt_ints(g, node, "pads", 4, pads);
  }
  return sums;
}

/* Returns the bytes of the result. */
static uint64_t build(bt_graph *g, const group_case *c, group_data *d) {
  int64_t x_shape[4], w_shape[4], y_shape[4], along[3];
  const uint32_t rank = shapes_of(c, x_shape, w_shape, y_shape, along);
  bt_init(g);
  const bool float_out = c->y == OPIPE_FLOAT;
  uint32_t v = put_sums(g, c, d, rank, x_shape, w_shape, y_shape), next;
  for (uint32_t step = 0; step < 4; ++step) {
    if ((step == 2 && !c->bias) || (step == 3 && !c->relu))
      continue;
    const bool last = float_out && step == (c->relu ? 3u : c->bias ? 2u : 1u);
    next = last ? bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, d->y, rank, y_shape)
                : temp(g, OPIPE_FLOAT, rank, y_shape);
    const uint32_t other = step == 1 || step == 2
                               ? bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT,
                                          step == 1 ? d->scale : d->bias, is_conv(c) ? 3 : 1, along)
                               : OPIPE_NONE;
    if (step == 0)
      bt_int(g, bt_node(g, "Cast", BT_IN(v), BT_OUT(next)), "to", OPIPE_FLOAT);
    else if (step == 3)
      (void)bt_node(g, "Relu", BT_IN(v), BT_OUT(next));
    else
      (void)bt_node(g, step == 1 ? "Mul" : "Add", BT_IN(v, other), BT_OUT(next));
    v = next;
  }
  if (!float_out) {
    const uint32_t scale = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, d->y_scale, 0, NULL);
    const uint32_t zero = bt_value(g, OPIPE_VALUE_CONSTANT, c->y, d->y_zero, 0, NULL);
    next = bt_value(g, OPIPE_VALUE_OUTPUT, c->y, d->y, rank, y_shape);
    opipe_node *node = bt_node(g, "QuantizeLinear", BT_IN(v, scale, zero), BT_OUT(next));
    bt_int(g, node, "axis", 0);
    bt_int(g, node, "block_size", 0);
    bt_int(g, node, "output_dtype", c->y);
    v = next;
  }
  return g->values[v].n_bytes;
}

/* The result, and how many kernels made it. */
static uint32_t result_of(const bt_backend *backend, opipe_device *device, const group_case *c,
                          uint32_t flags, group_data *d, uint64_t *out_bytes) {
  static bt_graph g;
  opipe_error err = OPIPE_ERROR_INIT;
  bt_run r;
  *out_bytes = build(&g, c, d);
  memset(d->y, 0xa5, sizeof d->y);
  OPI_ASSERT_OK_FATAL(bt_prepare(backend->table, device, &g, flags, &r, &err), &err);
  OPI_ASSERT_OK(bt_step(backend->table, &g, &r, &err), &err);
  const uint32_t n = r.info.n_kernels;
  bt_release(backend->table, &r);
  return n;
}

static void check(const bt_backend *backend, opipe_device *device, const group_case *c,
                  const char *name, bool fuses) {
  static group_data d;
  static char wanted[4 * MOST];
  uint64_t bytes = 0;
  fill(&d);
  OPI_ASSERT(
      result_of(backend, device, c, OPIPE_COMPILE_NO_FUSE | OPIPE_COMPILE_POISON, &d, &bytes) >= 3);
  OPI_ASSERT_FATAL(bytes <= sizeof wanted);
  memcpy(wanted, d.y, bytes);
  const uint32_t n = result_of(backend, device, c, OPIPE_COMPILE_POISON, &d, &bytes);
  opi_test_check(!fuses || n == 1, __FILE__, __LINE__, false, "%s, case %d: %u kernels", name,
                 (int)(c - cases), n);
  opi_test_check(memcmp(d.y, wanted, bytes) == 0, __FILE__, __LINE__, false,
                 "%s, case %d: other bits than by itself", name, (int)(c - cases));
}

static void test_groups(void) {
  bt_backend backend;
  bt_open(&backend);
  for (int o = 0; o < BT_BYTE_OPTIONS; ++o) {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
      opipe_error err = OPIPE_ERROR_INIT;
      opipe_device *device = NULL;
      const opipe_status status =
          bt_device(&backend, bt_byte_options[o], threads, 0, &device, &err);
      if (status == OPIPE_E_UNSUPPORTED)
        continue; /* instructions that this machine lacks */
      OPI_ASSERT_FATAL(status == OPIPE_OK);
      for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        check(&backend, device, &cases[i], bt_byte_options[o], o != 0);
      backend.table->device_close(device);
    }
  }
  bt_close(&backend);
}

/* One row by itself has the bits that it has among others. */
static void test_rows_alone(void) {
  static group_data d;
  static char all[4 * MOST];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend backend;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, NULL, 1, 0, &device, &err), &err);
  group_case c = cases[1];
  uint64_t bytes = 0;
  fill(&d);
  (void)result_of(&backend, device, &c, 0, &d, &bytes);
  memcpy(all, d.y, bytes);
  for (int64_t row = 0; row < cases[1].rows; ++row) {
    c.rows = 1;
    fill(&d);
    memmove(d.x, d.x + row * c.k, (size_t)c.k);
    (void)result_of(&backend, device, &c, 0, &d, &bytes);
    OPI_ASSERT(memcmp(d.y, all + row * c.n, bytes) == 0);
  }
  backend.table->device_close(device);
  bt_close(&backend);
}

OPI_TEST_MAIN("op_quantized_group", OPI_TEST(test_groups), OPI_TEST(test_rows_alone))
