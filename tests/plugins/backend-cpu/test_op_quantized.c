/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 8-bit integers as quantizing tools write them: a range, integers, their product, a
 * scale, a bias and what follows. Fused or not, by every instruction set, with one thread and two:
 * the bits of the reference kernels. A factor that is not such a scale stays a node.
 */
#include "backend_test.h"

enum { M = 7, K = 70, N = 133 };
enum { SCALE_NONE, SCALE_ONE, SCALE_EACH, SCALE_ROWS };

typedef struct product_case {
  uint32_t b_type;
  int scale, zeros;            /* zeros: 0 none, 1 one each, 2 one for each column */
  bool bias, view, gate, seen; /* seen: the numbers are an output too */
  uint32_t n_kernels;          /* fused; one makes the integers, one the scale */
} product_case;

static const product_case cases[] = {
    {OPIPE_INT8, SCALE_ONE, 1, true, false, true, false, 3},
    {OPIPE_UINT8, SCALE_EACH, 2, true, true, false, false, 3},
    {OPIPE_INT8, SCALE_EACH, 0, false, true, true, false, 3},
    {OPIPE_UINT8, SCALE_NONE, 1, true, false, false, false, 2},
    {OPIPE_UINT8, SCALE_ROWS, 1, true, false, false, false, 7}, /* its own nodes */
    {OPIPE_INT8, SCALE_ONE, 0, true, false, false, true, 7},
};

typedef struct data {
  float x[M * K], gate[M * N], residual[M * N], bias[N], scale[N];
  uint8_t b[K * N], zeros[N];
} data;

static void fill(data *d) {
  opi_test_random random = {3};
  opi_test_fill_f32(&random, d->x, M * K, -2.0, 1.0);
  opi_test_fill_f32(&random, d->gate, M * N, -1.0, 1.0);
  opi_test_fill_f32(&random, d->residual, M * N, -1.0, 1.0);
  opi_test_fill_f32(&random, d->bias, N, -1.0, 1.0);
  opi_test_fill_f32(&random, d->scale, N, 0.0, 0.1);
  for (int i = 0; i < K * N; ++i)
    d->b[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
  for (int i = 0; i < N; ++i)
    d->zeros[i] = (uint8_t)opi_test_uniform(&random, 0, 256);
}

static uint32_t rows_value(bt_graph *g, uint32_t role, const void *bytes) {
  return bt_value(g, role, OPIPE_FLOAT, bytes, BT_SHAPE(M, N));
}

/* v times a scale of the case's kind. */
static uint32_t scaled(bt_graph *g, const product_case *c, const data *d, uint32_t v,
                       uint32_t of_x) {
  const int64_t each[1] = {N}, rows[2] = {M, 1};
  const uint32_t rank = c->scale == SCALE_ONE ? 0 : c->scale == SCALE_EACH ? 1 : 2;
  const int64_t *shape = c->scale == SCALE_EACH ? each : rows;
  if (c->scale == SCALE_NONE)
    return v;
  const uint32_t of_b = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, d->scale, rank, shape);
  const uint32_t both = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, rank, shape);
  const uint32_t out = rows_value(g, OPIPE_VALUE_TEMP, NULL);
  bt_node(g, "Mul", BT_IN(of_x, of_b), BT_OUT(both));
  bt_node(g, "Mul", c->scale == SCALE_EACH ? BT_IN(both, v) : BT_IN(v, both), BT_OUT(out));
  return out;
}

static uint32_t viewed(bt_graph *g, uint32_t v) {
  static const int64_t unused[1] = {0};
  const uint32_t shape = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, unused, BT_SHAPE(1));
  const uint32_t cube = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(1, M, N));
  const uint32_t out = rows_value(g, OPIPE_VALUE_TEMP, NULL);
  bt_node(g, "Reshape", BT_IN(v, shape), BT_OUT(cube));
  bt_node(g, "Reshape", BT_IN(cube, shape), BT_OUT(out));
  return out;
}

static void build(bt_graph *g, const product_case *c, const data *d, float *y, float *seen) {
  const int64_t each[1] = {N};
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, d->x, BT_SHAPE(M, K));
  const uint32_t b = bt_value(g, OPIPE_VALUE_PARAMETER, c->b_type, d->b, BT_SHAPE(K, N));
  const uint32_t a = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_UINT8, NULL, BT_SHAPE(M, K));
  const uint32_t a_scale = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, 0, NULL);
  const uint32_t a_zero = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_UINT8, NULL, 0, NULL);
  const uint32_t sums = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_INT32, NULL, BT_SHAPE(M, N));
  uint32_t v = rows_value(g, c->seen ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP, seen);
  bt_node(g, "DynamicQuantizeLinear", BT_IN(x), BT_OUT(a, a_scale, a_zero));
  if (c->zeros == 0) {
    bt_node(g, "MatMulInteger", BT_IN(a, b), BT_OUT(sums));
  } else {
    const uint32_t zeros =
        bt_value(g, OPIPE_VALUE_PARAMETER, c->b_type, d->zeros, c->zeros == 2 ? 1 : 0, each);
    bt_node(g, "MatMulInteger", BT_IN(a, b, a_zero, zeros), BT_OUT(sums));
  }
  bt_int(g, bt_node(g, "Cast", BT_IN(sums), BT_OUT(v)), "to", OPIPE_FLOAT);
  v = scaled(g, c, d, v, a_scale);
  v = c->view ? viewed(g, v) : v;
  if (c->bias) {
    const uint32_t bias = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, d->bias, 1, each);
    const uint32_t out = rows_value(g, OPIPE_VALUE_TEMP, NULL);
    bt_node(g, "Add", BT_IN(bias, v), BT_OUT(out));
    v = out;
  }
  const uint32_t active = rows_value(g, OPIPE_VALUE_TEMP, NULL);
  bt_node(g, "Relu", BT_IN(v), BT_OUT(active));
  v = active;
  if (c->gate) {
    const uint32_t out = rows_value(g, OPIPE_VALUE_TEMP, NULL);
    bt_node(g, "Mul", BT_IN(v, rows_value(g, OPIPE_VALUE_INPUT, d->gate)), BT_OUT(out));
    v = out;
  }
  bt_node(g, "Add", BT_IN(v, rows_value(g, OPIPE_VALUE_INPUT, d->residual)),
          BT_OUT(rows_value(g, OPIPE_VALUE_OUTPUT, y)));
}

/* Number of its kernels; 0: the machine lacks the instructions. */
static uint32_t run(const bt_backend *b, const product_case *c, const data *d, const char *options,
                    uint32_t threads, uint32_t flags, float *y, float *seen) {
  static bt_graph g;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_run r;
  build(&g, c, d, y, seen);
  const opipe_status status = bt_device((bt_backend *)b, options, threads, 0, &device, &err);
  if (status == OPIPE_E_UNSUPPORTED)
    return 0;
  OPI_ASSERT_OK_FATAL(status, &err);
  OPI_ASSERT_OK_FATAL(bt_prepare(b->table, device, &g, flags | OPIPE_COMPILE_POISON, &r, &err),
                      &err);
  const uint32_t n = r.info.n_kernels;
  OPI_ASSERT_OK(bt_step(b->table, &g, &r, &err), &err);
  bt_release(b->table, &r);
  b->table->device_close(device);
  return n;
}

static void check_case(const bt_backend *b, const product_case *c, const data *d) {
  static float wanted[M * N], found[M * N], seen[2][M * N];
  const int number = (int)(c - cases);
  const uint32_t n = run(b, c, d, NULL, 1, 0, found, seen[0]);
  if (n != c->n_kernels)
    OPI_FAIL("case %d: %u kernels, not %u", number, n, c->n_kernels);
  (void)run(b, c, d, "kernels=reference", 1, 0, wanted, seen[1]);
  OPI_ASSERT(memcmp(found, wanted, sizeof found) == 0);
  OPI_ASSERT(!c->seen || memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
  for (uint32_t i = 4; i < 4 * BT_BYTE_OPTIONS; ++i) {
    const char *options = bt_byte_options[i / 4];
    memset(found, 0xa5, sizeof found);
    const uint32_t flags = i % 4 < 2 ? 0 : OPIPE_COMPILE_NO_FUSE;
    const bool ran = run(b, c, d, options, 1 + i % 2, flags, found, seen[0]) > 0;
    if (ran && memcmp(found, wanted, sizeof found) != 0)
      OPI_FAIL("case %d, %s, run %u: other bits", number, options, i);
  }
}

static void test_products_of_integers(void) {
  static data d;
  bt_backend b;
  fill(&d);
  bt_open(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    check_case(&b, &cases[i], &d);
  bt_close(&b);
}

OPI_TEST_MAIN("op_quantized", OPI_TEST(test_products_of_integers))
