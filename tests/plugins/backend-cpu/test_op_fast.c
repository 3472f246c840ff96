/* SPDX-License-Identifier: Apache-2.0 */
/* Fast kernels behind the operators, as a program runs them: close to the reference, the same bits
 * on every instruction set, with two threads, with and without fusion, and for every number of
 * rows.
 */
#include "backend_test.h"
#include "plugins/backend-cpu/kernels/half.h"

enum { ROWS = 7, WIDE = 70, OUT = 130, ROOM = ROWS * 16 * 256 };

/* Tensors of a case: of `dtype`, filled from one sequence of numbers. */
typedef struct maker {
  bt_graph *g;
  uint32_t dtype;
  int64_t rows;  /* rows in this run */
  int64_t first; /* first row of the whole data */
  opi_test_random random;
  char *pool; /* data of all tensors */
  size_t used;
  void *out;
} maker;

static size_t element_bytes(uint32_t dtype) {
  return dtype == OPIPE_FLOAT ? 4 : 2;
}

/* n numbers in [-1, 1], of which `skip` were drawn and dropped before. */
static void *numbers(maker *m, int64_t skip, int64_t n, int64_t rest) {
  void *data = m->pool + m->used;
  m->used += ((size_t)n * 4 + 64) / 64 * 64;
  OPI_ASSERT_FATAL(m->used < (size_t)ROOM * 8);
  for (int64_t i = 0; i < skip + n + rest; ++i) {
    const float value = (float)opi_test_uniform(&m->random, -1, 1);
    if (i < skip || i >= skip + n)
      continue;
    if (m->dtype == OPIPE_FLOAT) {
      ((float *)data)[i - skip] = value;
    } else {
      ((uint16_t *)data)[i - skip] =
          m->dtype == OPIPE_FLOAT16 ? cpu_f32_to_f16(value) : cpu_f32_to_bf16(value);
    }
  }
  return data;
}

/* An input [rows, a, b] (b 0: [rows, a]). */
static uint32_t rows_input(maker *m, int64_t a, int64_t b) {
  const int64_t shape[3] = {m->rows, a, b};
  const int64_t per_row = a * (b > 0 ? b : 1);
  void *data =
      numbers(m, m->first * per_row, m->rows * per_row, (ROWS - m->first - m->rows) * per_row);
  return bt_value(m->g, OPIPE_VALUE_INPUT, m->dtype, data, b > 0 ? 3 : 2, shape);
}

static uint32_t parameter(maker *m, int64_t a, int64_t b) {
  const int64_t shape[2] = {a, b};
  return bt_value(m->g, OPIPE_VALUE_PARAMETER, m->dtype, numbers(m, 0, a * (b > 0 ? b : 1), 0),
                  b > 0 ? 2 : 1, shape);
}

static uint32_t rows_value(maker *m, bool last, int64_t a, int64_t b) {
  const int64_t shape[3] = {m->rows, a, b};
  return bt_value(m->g, last ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP, m->dtype,
                  last ? m->out : NULL, b > 0 ? 3 : 2, shape);
}

/* ---- cases ---- */

static void product(maker *m) {
  bt_node(m->g, "MatMul", BT_IN(rows_input(m, 3, WIDE), parameter(m, WIDE, OUT)),
          BT_OUT(rows_value(m, true, 3, OUT)));
}

static void product_of_activations(maker *m) {
  bt_node(m->g, "MatMul", BT_IN(rows_input(m, 5, WIDE), rows_input(m, WIDE, 33)),
          BT_OUT(rows_value(m, true, 5, 33)));
}

static void gemm(maker *m) {
  opipe_node *node = bt_node(
      m->g, "Gemm", BT_IN(rows_input(m, WIDE, 0), parameter(m, OUT, WIDE), parameter(m, OUT, 0)),
      BT_OUT(rows_value(m, true, OUT, 0)));
  bt_int(m->g, node, "transB", 1);
  bt_float(m->g, node, "alpha", 0.5);
  bt_float(m->g, node, "beta", 1.5);
}

/* B is no parameter and C a whole matrix: there are as many rows as the data has. */
static void gemm_of_activations(maker *m) {
  const int64_t b_shape[2] = {WIDE, OUT};
  const uint32_t a = rows_input(m, WIDE, 0);
  const uint32_t b =
      bt_value(m->g, OPIPE_VALUE_INPUT, m->dtype, numbers(m, 0, WIDE * OUT, 0), 2, b_shape);
  opipe_node *node = bt_node(m->g, "Gemm", BT_IN(a, b, rows_input(m, OUT, 0)),
                             BT_OUT(rows_value(m, true, OUT, 0)));
  bt_float(m->g, node, "beta", -0.5);
}

/* Everything that may follow a product, then a sum and a norm. */
static void block(maker *m) {
  const uint32_t x = rows_input(m, 3, WIDE);
  const uint32_t gate = rows_input(m, 3, OUT);
  const uint32_t residual = rows_input(m, 3, OUT);
  uint32_t v[7];
  for (int i = 0; i < 6; ++i)
    v[i] = rows_value(m, false, 3, OUT);
  v[6] = rows_value(m, true, 3, OUT);
  bt_node(m->g, "MatMul", BT_IN(x, parameter(m, WIDE, OUT)), BT_OUT(v[0]));
  bt_node(m->g, "Add", BT_IN(parameter(m, OUT, 0), v[0]), BT_OUT(v[1]));
  bt_text(m->g, bt_node(m->g, "Gelu", BT_IN(v[1]), BT_OUT(v[2])), "approximate", "tanh");
  bt_node(m->g, "Mul", BT_IN(gate, v[2]), BT_OUT(v[3]));
  bt_node(m->g, "Add", BT_IN(v[3], residual), BT_OUT(v[4]));
  bt_node(m->g, "Add", BT_IN(v[4], residual), BT_OUT(v[5]));
  opipe_node *norm = bt_node(m->g, "LayerNormalization",
                             BT_IN(v[5], parameter(m, OUT, 0), parameter(m, OUT, 0)), BT_OUT(v[6]));
  bt_int(m->g, norm, "axis", -1);
}

/* As exporters write it: rows flattened for Gemm, unflattened for what follows. */
static void through_views(maker *m) {
  const int64_t rows = m->rows * 3;
  static const int64_t unused[1] = {0};
  const uint32_t shape = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, unused, BT_SHAPE(1));
  const int64_t flat_x[2] = {rows, WIDE};
  const int64_t flat_y[2] = {rows, OUT};
  const uint32_t x = rows_input(m, 3, WIDE);
  const uint32_t residual = rows_input(m, 3, OUT);
  const uint32_t a = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 2, flat_x);
  const uint32_t p = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 2, flat_y);
  const uint32_t q = rows_value(m, false, 3, OUT);
  const uint32_t r = rows_value(m, false, 3, OUT);
  bt_node(m->g, "Reshape", BT_IN(x, shape), BT_OUT(a));
  bt_node(m->g, "Gemm", BT_IN(a, parameter(m, WIDE, OUT), parameter(m, OUT, 0)), BT_OUT(p));
  bt_node(m->g, "Reshape", BT_IN(p, shape), BT_OUT(q));
  bt_node(m->g, "Tanh", BT_IN(q), BT_OUT(r));
  bt_node(m->g, "Add", BT_IN(residual, r), BT_OUT(rows_value(m, true, 3, OUT)));
}

static void layer_norm(maker *m) {
  bt_node(m->g, "LayerNormalization",
          BT_IN(rows_input(m, OUT, 0), parameter(m, OUT, 0), parameter(m, OUT, 0)),
          BT_OUT(rows_value(m, true, OUT, 0)));
}

static void rms_norm(maker *m) {
  bt_node(m->g, "RMSNormalization", BT_IN(rows_input(m, OUT, 0), parameter(m, OUT, 0)),
          BT_OUT(rows_value(m, true, OUT, 0)));
}

static void softmax(maker *m) {
  bt_node(m->g, "Softmax", BT_IN(rows_input(m, 3, WIDE)), BT_OUT(rows_value(m, true, 3, WIDE)));
}

static void log_softmax(maker *m) {
  bt_node(m->g, "LogSoftmax", BT_IN(rows_input(m, 3, WIDE)), BT_OUT(rows_value(m, true, 3, WIDE)));
}

static void reductions(maker *m) {
  static const int64_t last[1] = {-1};
  const uint32_t x = rows_input(m, 3, WIDE);
  const uint32_t axes = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, last, BT_SHAPE(1));
  const uint32_t mean = rows_value(m, false, 3, 1);
  const uint32_t d = rows_value(m, false, 3, WIDE);
  bt_node(m->g, "ReduceMean", BT_IN(x, axes), BT_OUT(mean));
  bt_node(m->g, "Sub", BT_IN(x, mean), BT_OUT(d));
  bt_node(m->g, "ReduceL2", BT_IN(d, axes), BT_OUT(rows_value(m, true, 3, 1)));
}

/* Functions of one element and of two, with a row broadcast. */
static void element_wise(maker *m) {
  static const char *const unary[] = {"Erf", "Exp", "Sqrt", "Tanh", "Sigmoid", "Neg", "Relu"};
  const uint32_t row = parameter(m, WIDE, 0);
  uint32_t v = rows_input(m, 3, WIDE);
  for (int i = 0; i < 7; ++i) {
    const uint32_t next = rows_value(m, false, 3, WIDE);
    const uint32_t sum = rows_value(m, i == 6, 3, WIDE);
    bt_node(m->g, unary[i], BT_IN(v), BT_OUT(next));
    bt_node(m->g, i % 2 == 0 ? "Add" : "Mul", BT_IN(next, row), BT_OUT(sum));
    if (i == 0) { /* keeps what follows positive: Exp, then Sqrt */
      v = rows_value(m, false, 3, WIDE);
      bt_node(m->g, "Abs", BT_IN(sum), BT_OUT(v));
      continue;
    }
    v = sum;
    if (i == 1) {
      v = rows_value(m, false, 3, WIDE);
      bt_node(m->g, "Abs", BT_IN(sum), BT_OUT(v));
    }
  }
}

static void rotary(maker *m) {
  const int64_t x_shape[3] = {m->rows, 5, 32};
  const int64_t table_shape[3] = {1, 5, 8};
  (void)x_shape;
  const uint32_t x = rows_input(m, 5, 32);
  const uint32_t c =
      bt_value(m->g, OPIPE_VALUE_CONSTANT, m->dtype, numbers(m, 0, 40, 0), 3, table_shape);
  const uint32_t s =
      bt_value(m->g, OPIPE_VALUE_CONSTANT, m->dtype, numbers(m, 0, 40, 0), 3, table_shape);
  opipe_node *node =
      bt_node(m->g, "RotaryEmbedding", BT_IN(x, c, s), BT_OUT(rows_value(m, true, 5, 32)));
  bt_int(m->g, node, "num_heads", 2);
}

static void attention(maker *m) {
  const uint32_t q = rows_input(m, 9, 64);
  const uint32_t k = rows_input(m, 9, 32);
  const uint32_t v = rows_input(m, 9, 32);
  opipe_node *node = bt_node(m->g, "Attention", BT_IN(q, k, v), BT_OUT(rows_value(m, true, 9, 64)));
  bt_int(m->g, node, "q_num_heads", 4);
  bt_int(m->g, node, "kv_num_heads", 2);
  bt_int(m->g, node, "is_causal", 1);
}

/* Queries, keys and values side by side in a row, cut apart, reshaped to heads and back. */
static void packed_attention(maker *m) {
  static const int64_t unused[1] = {0};
  static const int64_t sizes[3] = {64, 32, 48};
  const uint32_t shape = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, unused, BT_SHAPE(1));
  const uint32_t parts = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, sizes, BT_SHAPE(3));
  const uint32_t all = rows_input(m, 9, 144);
  uint32_t v[3];
  for (int i = 0; i < 3; ++i)
    v[i] = rows_value(m, false, 9, sizes[i]);
  opipe_node *split = bt_node(m->g, "Split", BT_IN(all, parts), BT_OUT(v[0], v[1], v[2]));
  bt_int(m->g, split, "axis", -1);
  for (int i = 0; i < 3; ++i) {
    const int64_t heads[4] = {m->rows, 9, 2, sizes[i] / 2};
    const uint32_t wide = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 4, heads);
    const uint32_t flat = rows_value(m, false, 9, sizes[i]);
    bt_node(m->g, "Reshape", BT_IN(v[i], shape), BT_OUT(wide));
    bt_node(m->g, "Reshape", BT_IN(wide, shape), BT_OUT(flat));
    v[i] = flat;
  }
  opipe_node *node =
      bt_node(m->g, "Attention", BT_IN(v[0], v[1], v[2]), BT_OUT(rows_value(m, true, 9, 96)));
  bt_int(m->g, node, "q_num_heads", 4);
  bt_int(m->g, node, "kv_num_heads", 2);
  bt_int(m->g, node, "is_causal", 1);
}

static uint32_t image(maker *m, uint32_t role, int64_t c, int64_t h, int64_t w) {
  const int64_t shape[4] = {m->rows, c, h, w}, n = c * h * w;
  void *data = role == OPIPE_VALUE_OUTPUT ? m->out : NULL;
  if (role == OPIPE_VALUE_INPUT)
    data = numbers(m, m->first * n, m->rows * n, (ROWS - m->first - m->rows) * n);
  return bt_value(m->g, role, m->dtype, data, 4, shape);
}

/* x [., c_in, ..] -> [., c_out, h, w], a square kernel, padded by half of it. */
static uint32_t conv(maker *m, uint32_t x, int64_t c_out, int64_t c_in, int64_t kernel,
                     int64_t stride, int64_t group, int64_t h, int64_t w) {
  static const int64_t twice[2][2] = {{1, 1}, {2, 2}},
                       kernels[4][2] = {{0}, {1, 1}, {2, 2}, {3, 3}};
  static const int64_t pads[2][4] = {{0}, {1, 1, 1, 1}};
  const int64_t shape[4] = {c_out, c_in / group, kernel, kernel};
  const uint32_t weight =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, m->dtype,
               numbers(m, 0, c_out * c_in / group * kernel * kernel, 0), 4, shape);
  const uint32_t y = image(m, OPIPE_VALUE_TEMP, c_out, h, w);
  opipe_node *node = bt_node(m->g, "Conv", BT_IN(x, weight, parameter(m, c_out, 0)), BT_OUT(y));
  bt_ints(m->g, node, "kernel_shape", 2, kernels[kernel]);
  bt_ints(m->g, node, "strides", 2, twice[stride - 1]);
  bt_ints(m->g, node, "pads", 4, pads[kernel / 2]);
  bt_int(m->g, node, "group", group);
  return y;
}

static uint32_t same_image(maker *m, const char *op, uint32_t a, uint32_t b, int64_t c, int64_t h,
                           int64_t w) {
  const uint32_t y = image(m, OPIPE_VALUE_TEMP, c, h, w);
  if (b == OPIPE_NONE)
    bt_node(m->g, op, BT_IN(a), BT_OUT(y));
  else
    bt_node(m->g, op, BT_IN(a, b), BT_OUT(y));
  return y;
}

/* Nodes with channels last: convolutions of every kind, nodes that may stand among them, and both
 * ways out. */
static void convolutions(maker *m) {
  static const int64_t axes[2] = {2, 3}, perm[4] = {0, 2, 3, 1}, three[2] = {3, 3};
  static const int64_t pads[4] = {1, 1, 1, 1}, one[2] = {1, 1};
  const int64_t channels[3] = {24, 1, 1}, turned[4] = {m->rows, 5, 4, 8};
  uint32_t x = image(m, OPIPE_VALUE_INPUT, 6, 9, 8);
  x = same_image(m, "HardSwish", conv(m, x, 20, 6, 3, 1, 1, 9, 8), OPIPE_NONE, 20, 9, 8);
  x = same_image(m, "Relu", conv(m, x, 20, 20, 3, 2, 20, 5, 4), OPIPE_NONE, 20, 5, 4);
  x = conv(m, x, 24, 20, 1, 1, 1, 5, 4);
  x = same_image(m, "Add", x, conv(m, x, 24, 24, 1, 1, 1, 5, 4), 24, 5, 4);
  const uint32_t mean = image(m, OPIPE_VALUE_TEMP, 24, 1, 1);
  const uint32_t at = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, axes, BT_SHAPE(2));
  bt_int(m->g, bt_node(m->g, "ReduceMean", BT_IN(x, at), BT_OUT(mean)), "keepdims", 1);
  const uint32_t gate =
      same_image(m, "Sigmoid", conv(m, mean, 24, 24, 1, 1, 1, 1, 1), OPIPE_NONE, 24, 1, 1);
  x = same_image(m, "Mul", x, gate, 24, 5, 4);
  const uint32_t shift =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, m->dtype, numbers(m, 0, 24, 0), 3, channels);
  x = same_image(m, "Sub", shift, x, 24, 5, 4);
  const uint32_t pooled = same_image(m, "MaxPool", x, OPIPE_NONE, 24, 5, 4);
  opipe_node *pool = &m->g->nodes[m->g->graph.n_nodes - 1];
  bt_ints(m->g, pool, "kernel_shape", 2, three);
  bt_ints(m->g, pool, "strides", 2, one);
  bt_ints(m->g, pool, "pads", 4, pads);
  const uint32_t both = image(m, OPIPE_VALUE_TEMP, 48, 5, 4);
  bt_int(m->g, bt_node(m->g, "Concat", BT_IN(x, pooled), BT_OUT(both)), "axis", 1);
  x = conv(m, both, 8, 48, 3, 1, 4, 5, 4);
  const uint32_t y = bt_value(m->g, OPIPE_VALUE_OUTPUT, m->dtype, m->out, 4, turned);
  bt_ints(m->g, bt_node(m->g, "Transpose", BT_IN(x), BT_OUT(y)), "perm", 4, perm);
}

/* Two convolutions beside a way around them, and the relu of their sum. */
static void residual_block(maker *m) {
  static const int64_t perm[4] = {0, 2, 3, 1};
  const int64_t turned[4] = {m->rows, 7, 6, 20};
  uint32_t x = conv(m, image(m, OPIPE_VALUE_INPUT, 6, 7, 6), 20, 6, 1, 1, 1, 7, 6);
  uint32_t y = conv(m, x, 40, 20, 3, 1, 1, 7, 6);
  y = conv(m, same_image(m, "Relu", y, OPIPE_NONE, 40, 7, 6), 20, 40, 1, 1, 1, 7, 6);
  x = same_image(m, "Add", y, x, 20, 7, 6);
  x = same_image(m, "Relu", x, OPIPE_NONE, 20, 7, 6);
  const uint32_t z = bt_value(m->g, OPIPE_VALUE_OUTPUT, m->dtype, m->out, 4, turned);
  bt_ints(m->g, bt_node(m->g, "Transpose", BT_IN(x), BT_OUT(z)), "perm", 4, perm);
}

/* Transposed in front, read elsewhere, the result a boundary. */
static void convolution_between(maker *m) {
  static const int64_t perm[4] = {0, 3, 1, 2}, shape[4] = {0, 7, 5, 9};
  int64_t given[4];
  memcpy(given, shape, sizeof given);
  given[0] = m->rows;
  const int64_t n = 7 * 5 * 9;
  const uint32_t x =
      bt_value(m->g, OPIPE_VALUE_INPUT, m->dtype,
               numbers(m, m->first * n, m->rows * n, (ROWS - m->first - m->rows) * n), 4, given);
  const uint32_t first = image(m, OPIPE_VALUE_TEMP, 9, 7, 5);
  const uint32_t turned = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 4, given);
  bt_node(m->g, "Relu", BT_IN(x), BT_OUT(turned));
  bt_ints(m->g, bt_node(m->g, "Transpose", BT_IN(turned), BT_OUT(first)), "perm", 4, perm);
  const uint32_t a = conv(m, first, 17, 9, 2, 1, 1, 8, 6);
  const uint32_t b = conv(m, a, 17, 17, 1, 1, 1, 8, 6);
  const uint32_t y = image(m, OPIPE_VALUE_OUTPUT, 17, 8, 6);
  const uint32_t soft = image(m, OPIPE_VALUE_TEMP, 17, 8, 6);
  bt_int(m->g, bt_node(m->g, "Softmax", BT_IN(b), BT_OUT(soft)), "axis", 3);
  bt_node(m->g, "Mul", BT_IN(a, soft), BT_OUT(y));
}

/* The last convolution, whose bias is input 2, without it. */
static uint32_t without_bias(maker *m, uint32_t y) {
  m->g->nodes[m->g->graph.n_nodes - 1].n_in = 2;
  return y;
}

/* As files have them whose norms were folded away: what is fused then stands at input 2, where a
 * bias would be. */
static void convolutions_without_bias(maker *m) {
  static const int64_t perm[4] = {0, 2, 3, 1};
  const int64_t turned[4] = {m->rows, 5, 4, 8};
  uint32_t x = image(m, OPIPE_VALUE_INPUT, 6, 9, 8);
  x = without_bias(m, conv(m, x, 20, 6, 3, 1, 1, 9, 8));
  x = same_image(m, "Relu", x, OPIPE_NONE, 20, 9, 8);
  const uint32_t near = without_bias(m, conv(m, x, 20, 20, 3, 2, 20, 5, 4));
  const uint32_t skip = without_bias(m, conv(m, x, 20, 20, 1, 2, 1, 5, 4));
  x = same_image(m, "Add", near, skip, 20, 5, 4);
  x = same_image(m, "Relu", x, OPIPE_NONE, 20, 5, 4);
  const uint32_t gate = without_bias(m, conv(m, x, 20, 20, 1, 1, 1, 5, 4));
  x = same_image(m, "Mul", without_bias(m, conv(m, x, 20, 20, 3, 1, 2, 5, 4)), gate, 20, 5, 4);
  x = same_image(m, "Add", x, without_bias(m, conv(m, x, 20, 20, 1, 1, 1, 5, 4)), 20, 5, 4);
  x = without_bias(m, conv(m, x, 8, 20, 1, 1, 1, 5, 4));
  const uint32_t y = bt_value(m->g, OPIPE_VALUE_OUTPUT, m->dtype, m->out, 4, turned);
  bt_ints(m->g, bt_node(m->g, "Transpose", BT_IN(x), BT_OUT(y)), "perm", 4, perm);
}

/* One pixel: the way out moves no byte. */
static void convolution_of_a_pixel(maker *m) {
  uint32_t x = image(m, OPIPE_VALUE_INPUT, 6, 1, 1);
  x = same_image(m, "Relu", conv(m, x, 20, 6, 3, 1, 1, 1, 1), OPIPE_NONE, 20, 1, 1);
  x = conv(m, x, 24, 20, 1, 1, 1, 1, 1);
  const uint32_t y = image(m, OPIPE_VALUE_OUTPUT, 24, 1, 1);
  bt_int(m->g, bt_node(m->g, "Softmax", BT_IN(x), BT_OUT(y)), "axis", 1);
}

/* Along the last axis and along one before it; rows of three weights, the first element twice. */
static void interpolation(maker *m) {
  static const int64_t first[6] = {0, 0, 1, 2, 2, 0};
  static const float weight[18] = {0.5f, 0.25f, 0.25f, 1, 0,     0,    0.1f, 0.2f,  0.7f,
                                   0.3f, 0.3f,  0.4f,  0, -0.1f, 1.1f, 1.5f, -0.5f, 0.25f};
  for (int i = 0; i < 2; ++i) {
    const uint32_t x = i == 0 ? rows_input(m, 5, 700) : m->g->graph.n_values - 1;
    const uint32_t f = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, first, BT_SHAPE(6));
    const uint32_t w = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, weight, BT_SHAPE(6, 3));
    opipe_node *node = bt_node(m->g, "Interpolate", BT_IN(x, f, w),
                               BT_OUT(rows_value(m, i == 1, 6, i == 0 ? 700 : 6)));
    node->domain = "opipe";
    bt_int(m->g, node, "axis", 1 + i);
  }
}

static void convolution(maker *m) {
  static const int64_t pads[2] = {1, 1};
  const int64_t w_shape[3] = {8, 6, 3};
  const uint32_t x = rows_input(m, 6, 20);
  const uint32_t w =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, m->dtype, numbers(m, 0, 144, 0), 3, w_shape);
  opipe_node *node =
      bt_node(m->g, "Conv", BT_IN(x, w, parameter(m, 8, 0)), BT_OUT(rows_value(m, true, 8, 20)));
  bt_ints(m->g, node, "pads", 2, pads);
}

/* n bytes of codes. */
static void *codes(maker *m, int64_t n) {
  uint8_t *data = (uint8_t *)m->pool + m->used;
  m->used += ((size_t)n + 63) / 64 * 64;
  OPI_ASSERT_FATAL(m->used < (size_t)ROOM * 8);
  for (int64_t i = 0; i < n; ++i)
    data[i] = (uint8_t)opi_test_uniform(&m->random, 0, 256);
  return data;
}

/* Weights of 4 bits in blocks of 32, of fp32 whatever the activations are; then what a product
 * takes along. */
static void product_with_codes(maker *m) {
  enum { BLOCKS = 3, DEEP = 80 };
  const int64_t code_shape[3] = {OUT, BLOCKS, 16}, scale_shape[1] = {OUT * BLOCKS};
  const int64_t zero_shape[2] = {OUT, 2}, w_shape[2] = {OUT, DEEP}, y_shape[3] = {m->rows, 3, OUT};
  const uint32_t kept = m->dtype;
  const uint32_t x = rows_input(m, 3, DEEP), bias = parameter(m, OUT, 0);
  const uint32_t q = bt_value(m->g, OPIPE_VALUE_PARAMETER, OPIPE_UINT8, codes(m, OUT * BLOCKS * 16),
                              3, code_shape);
  const uint32_t z =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, OPIPE_UINT8, codes(m, OUT * 2), 2, zero_shape);
  const uint32_t s = bt_value(m->g, OPIPE_VALUE_PARAMETER, m->dtype, numbers(m, 0, OUT * BLOCKS, 0),
                              1, scale_shape);
  const uint32_t w = bt_value(m->g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, 2, w_shape);
  const uint32_t wide = bt_value(m->g, OPIPE_VALUE_TEMP, kept, NULL, 2, w_shape);
  const uint32_t y = bt_value(m->g, OPIPE_VALUE_TEMP, kept, NULL, 3, y_shape);
  opipe_node *unpack = bt_node(m->g, "DequantizeNBits", BT_IN(q, s, z), BT_OUT(w));
  unpack->domain = "opipe";
  bt_int(m->g, unpack, "K", DEEP);
  bt_int(m->g, unpack, "N", OUT);
  bt_int(m->g, unpack, "bits", 4);
  bt_int(m->g, unpack, "block_size", 32);
  if (kept != OPIPE_FLOAT)
    bt_int(m->g, bt_node(m->g, "Cast", BT_IN(w), BT_OUT(wide)), "to", kept);
  opipe_node *node =
      bt_node(m->g, "FusedMatMul", BT_IN(x, kept != OPIPE_FLOAT ? wide : w), BT_OUT(y));
  node->domain = "com.microsoft";
  bt_int(m->g, node, "transB", 1);
  bt_node(m->g, "Add", BT_IN(y, bias), BT_OUT(rows_value(m, true, 3, OUT)));
}

/* Int8 with a scale and a zero point for each column, and int4 with one for all, of constants. */
static void products_with_int8(maker *m) {
  static const int8_t zero[1] = {3};
  const int64_t q_shape[2] = {WIDE, OUT}, r_shape[2] = {WIDE, OUT}, column[1] = {OUT};
  const uint32_t x = rows_input(m, WIDE, 0);
  const uint32_t q =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, OPIPE_INT8, codes(m, WIDE * OUT), 2, q_shape);
  const uint32_t zq = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT8, codes(m, OUT), 1, column);
  const uint32_t r =
      bt_value(m->g, OPIPE_VALUE_PARAMETER, OPIPE_INT4, codes(m, WIDE * OUT / 2), 2, r_shape);
  const uint32_t sq = parameter(m, OUT, 0);
  const uint32_t sr = bt_value(m->g, OPIPE_VALUE_CONSTANT, m->dtype, numbers(m, 0, 1, 0), 0, NULL);
  const uint32_t zr = bt_value(m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT4, zero, 0, NULL);
  const uint32_t v = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 2, q_shape);
  const uint32_t w = bt_value(m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, 2, r_shape);
  const uint32_t a = rows_value(m, false, OUT, 0), b = rows_value(m, false, OUT, 0);
  opipe_node *unpack = bt_node(m->g, "DequantizeLinear", BT_IN(q, sq, zq), BT_OUT(v));
  bt_int(m->g, unpack, "axis", 1);
  bt_node(m->g, "DequantizeLinear", BT_IN(r, sr, zr), BT_OUT(w));
  bt_node(m->g, "MatMul", BT_IN(x, v), BT_OUT(a));
  bt_node(m->g, "MatMul", BT_IN(x, w), BT_OUT(b));
  bt_node(m->g, "Add", BT_IN(a, b), BT_OUT(rows_value(m, true, OUT, 0)));
}

/* ---- running them ---- */

typedef void (*case_fn)(maker *m);

static char pool[ROOM * 8];
static char outputs[3][ROOM * 4];

/* Runs rows first .. first + rows of a case into `out`; the number of output elements. */
static size_t run_case(bt_backend *b, case_fn build, const char *options, uint32_t threads,
                       uint32_t flags, uint32_t dtype, int64_t first, int64_t rows, void *out) {
  static bt_graph g;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  maker m = {.g = &g, .dtype = dtype, .rows = rows, .first = first, .random = {7}, .pool = pool};
  size_t n = 0;
  m.out = out;
  bt_init(&g);
  build(&m);
  for (uint32_t v = 0; v < g.graph.n_values; ++v) {
    if (g.values[v].role == OPIPE_VALUE_OUTPUT)
      n = g.values[v].n_bytes / element_bytes(dtype);
  }
  const opipe_status status = bt_device(b, options, threads, 0, &device, &err);
  if (status == OPIPE_E_UNSUPPORTED)
    return 0; /* instructions that this machine lacks */
  OPI_ASSERT_OK(status, &err);
  OPI_ASSERT_OK(bt_run_once(b->table, device, &g, flags, &err), &err);
  b->table->device_close(device);
  return n;
}

static void check_case(case_fn build, double tol) {
  static const char *const isas[] = {"kernels=portable", "kernels=avx2", "kernels=avx512"};
  const uint32_t poison = OPIPE_COMPILE_POISON;
  bt_backend b;
  bt_open(&b);
  char *fast = outputs[0];
  char *other = outputs[1];
  const size_t n = run_case(&b, build, NULL, 1, poison, OPIPE_FLOAT, 0, ROWS, fast);
  OPI_ASSERT(n > 0);
  run_case(&b, build, "kernels=reference", 1, poison, OPIPE_FLOAT, 0, ROWS, other);
  OPI_ASSERT_CLOSE(fast, other, n, OPIPE_FLOAT, tol);
  for (int i = 0; i < 3; ++i) {
    for (uint32_t threads = 1; threads <= 2; ++threads) {
      if (run_case(&b, build, isas[i], threads, 0, OPIPE_FLOAT, 0, ROWS, other) > 0)
        OPI_ASSERT_BITS(other, fast, n, OPIPE_FLOAT);
    }
  }
  run_case(&b, build, NULL, 1, OPIPE_COMPILE_NO_FUSE | poison, OPIPE_FLOAT, 0, ROWS, other);
  OPI_ASSERT_BITS(other, fast, n, OPIPE_FLOAT);
  for (int64_t row = 0; row < ROWS; ++row) {
    run_case(&b, build, NULL, 1, 0, OPIPE_FLOAT, row, 1, other);
    OPI_ASSERT_BITS(other, fast + (size_t)row * (n / ROWS) * 4, n / ROWS, OPIPE_FLOAT);
  }
  bt_close(&b);
}

/* Stored halves: one rounding at the end of each operator, fp32 inside. */
static void check_halves(case_fn build) {
  static const struct {
    uint32_t dtype;
    double tol;
  } types[] = {{OPIPE_FLOAT16, 2e-3}, {OPIPE_BFLOAT16, 2e-2}};
  bt_backend b;
  bt_open(&b);
  for (int i = 0; i < 2; ++i) {
    const size_t n =
        run_case(&b, build, NULL, 2, OPIPE_COMPILE_POISON, types[i].dtype, 0, ROWS, outputs[0]);
    run_case(&b, build, "kernels=reference", 1, 0, types[i].dtype, 0, ROWS, outputs[1]);
    OPI_ASSERT_CLOSE(outputs[0], outputs[1], n, types[i].dtype, types[i].tol);
    for (int64_t row = 0; row < ROWS; ++row) {
      run_case(&b, build, NULL, 1, 0, types[i].dtype, row, 1, outputs[1]);
      OPI_ASSERT_BITS(outputs[1], outputs[0] + (size_t)row * (n / ROWS) * 2, n / ROWS,
                      types[i].dtype);
    }
  }
  bt_close(&b);
}

/* Kernels of a case; seen: a temporary (its index among the values) that is an output too. */
static uint32_t kernels_of(case_fn build, uint32_t flags, uint32_t seen) {
  static bt_graph g;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_run r;
  maker m = {.g = &g, .dtype = OPIPE_FLOAT, .rows = ROWS, .random = {7}, .pool = pool};
  m.out = outputs[0];
  bt_open(&b);
  bt_init(&g);
  build(&m);
  if (seen != OPIPE_NONE) {
    uint32_t v = 0;
    for (uint32_t left = seen; g.values[v].role != OPIPE_VALUE_TEMP || left-- > 0;)
      ++v;
    g.values[v].role = OPIPE_VALUE_OUTPUT;
    g.values[v].slot = g.graph.n_boundaries++;
    g.data[g.values[v].slot] = outputs[1];
  }
  OPI_ASSERT_OK(bt_device(&b, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_OK(bt_prepare(b.table, device, &g, flags, &r, &err), &err);
  const uint32_t n = r.info.n_kernels;
  OPI_ASSERT_OK(bt_step(b.table, &g, &r, &err), &err);
  bt_release(b.table, &r);
  b.table->device_close(device);
  bt_close(&b);
  return n;
}

static void test_groups_become_one_kernel(void) {
  OPI_ASSERT_INT(kernels_of(block, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 7);
  OPI_ASSERT_INT(kernels_of(block, 0, OPIPE_NONE), 2);
  OPI_ASSERT_INT(kernels_of(through_views, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 3);
  OPI_ASSERT_INT(kernels_of(through_views, 0, OPIPE_NONE), 1);
  OPI_ASSERT_INT(kernels_of(packed_attention, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 2);
  OPI_ASSERT_INT(kernels_of(packed_attention, 0, OPIPE_NONE), 1);
  OPI_ASSERT_INT(kernels_of(product_with_codes, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 3);
  OPI_ASSERT_INT(kernels_of(product_with_codes, 0, OPIPE_NONE), 1);
  OPI_ASSERT_INT(kernels_of(products_with_int8, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 5);
  OPI_ASSERT_INT(kernels_of(products_with_int8, 0, OPIPE_NONE), 2);
  OPI_ASSERT_INT(kernels_of(residual_block, OPIPE_COMPILE_NO_FUSE, OPIPE_NONE), 7);
  OPI_ASSERT_INT(kernels_of(residual_block, 0, OPIPE_NONE), 4);
}

/* A value that is seen from outside cuts a group in two, wherever it stands. */
static void test_cut_tensors_are_not_swallowed(void) {
  static const uint32_t wanted[6] = {6, 5, 4, 3, 2, 2};
  for (uint32_t i = 0; i < 6; ++i)
    OPI_ASSERT_INT(kernels_of(block, 0, i), wanted[i]);
  OPI_ASSERT_INT(kernels_of(packed_attention, 0, 1), 2);
  OPI_ASSERT_INT(kernels_of(product_with_codes, 0, 0), 3); /* the unpacked matrix */
}

#define CASE(NAME, TOL)           \
  static void test_##NAME(void) { \
    check_case(NAME, TOL);        \
    check_halves(NAME);           \
  }

CASE(product, 2e-6)
CASE(product_of_activations, 2e-6)
CASE(gemm, 2e-6)
CASE(gemm_of_activations, 2e-6)
CASE(block, 5e-6)
CASE(through_views, 5e-6)
CASE(layer_norm, 2e-6)
CASE(rms_norm, 2e-6)
CASE(softmax, 2e-6)
CASE(log_softmax, 2e-6)
CASE(reductions, 2e-6)
CASE(element_wise, 5e-6)
CASE(rotary, 2e-6)
CASE(attention, 5e-6)
CASE(packed_attention, 5e-6)
CASE(convolution, 5e-6)
CASE(interpolation, 2e-6)
CASE(residual_block, 2e-6)
CASE(convolutions, 1e-5)
CASE(convolutions_without_bias, 1e-5)
CASE(convolution_between, 1e-5)
CASE(convolution_of_a_pixel, 5e-6)
CASE(product_with_codes, 2e-6)
CASE(products_with_int8, 2e-6)

OPI_TEST_MAIN("backend-cpu fast operators", OPI_TEST(test_groups_become_one_kernel),
              OPI_TEST(test_cut_tensors_are_not_swallowed), OPI_TEST(test_product),
              OPI_TEST(test_product_of_activations), OPI_TEST(test_gemm),
              OPI_TEST(test_gemm_of_activations), OPI_TEST(test_block),
              OPI_TEST(test_through_views), OPI_TEST(test_layer_norm), OPI_TEST(test_rms_norm),
              OPI_TEST(test_softmax), OPI_TEST(test_log_softmax), OPI_TEST(test_reductions),
              OPI_TEST(test_element_wise), OPI_TEST(test_rotary), OPI_TEST(test_attention),
              OPI_TEST(test_packed_attention), OPI_TEST(test_convolution),
              OPI_TEST(test_interpolation), OPI_TEST(test_convolutions),
              OPI_TEST(test_residual_block), OPI_TEST(test_convolutions_without_bias),
              OPI_TEST(test_convolution_between), OPI_TEST(test_convolution_of_a_pixel),
              OPI_TEST(test_product_with_codes), OPI_TEST(test_products_with_int8))
