/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN against the operators' text in plain loops, with everything that can be
 * given: fp32 on fast and on reference kernels, fp64; each row alone gives the bits that it gives
 * among others, whatever the number of threads.
 */
#include <math.h>

#include "backend_test.h"

enum { STEPS = 4, ROWS = 7, UNITS = 21, GATES = 4, MOST = STEPS * ROWS * GATES * UNITS };

typedef struct layer {
  const char *op;
  int gates;
  bool reverse, states, lens, extra, input_forget, linear_before_reset;
  double clip;
  const char *functions[3];
} layer;

/* In fp64; what a run reads is made of it. */
static struct {
  double g[MOST], r[GATES * UNITS * UNITS], h0[ROWS * UNITS], c0[ROWS * UNITS], extra[3 * UNITS];
  int64_t lens[ROWS];
  double y[STEPS * ROWS * UNITS], h[ROWS * UNITS], c[ROWS * UNITS];
} data;

static double function(const char *name, double x) {
  if (strcmp(name, "Tanh") == 0)
    return tanh(x);
  if (strcmp(name, "Sigmoid") == 0)
    return 1 / (1 + exp(-x));
  return x > 0 ? x : 0; /* Relu */
}

static double clipped(const layer *l, double x) {
  return l->clip > 0 ? fmax(-l->clip, fmin(l->clip, x)) : x;
}

/* What gate `gate` of unit u takes of the state h. */
static double by_state(int gate, int u, const double *h) {
  double sum = 0;
  for (int k = 0; k < UNITS; ++k)
    sum += data.r[(gate * UNITS + u) * UNITS + k] * h[k];
  return sum;
}

static void plain_lstm(const layer *l, const double *g, double *h, double *c) {
  double next[UNITS];
  const double *p = data.extra;
  for (int u = 0; u < UNITS; ++u) {
    const double w = l->extra ? 1 : 0;
    const double a_i = g[u] + by_state(0, u, h) + w * p[u] * c[u];
    const double a_f = g[2 * UNITS + u] + by_state(2, u, h) + w * p[2 * UNITS + u] * c[u];
    const double a_c = g[3 * UNITS + u] + by_state(3, u, h);
    const double i = function(l->functions[0], clipped(l, a_i));
    const double f = l->input_forget ? 1 - i : function(l->functions[0], clipped(l, a_f));
    c[u] = f * c[u] + i * function(l->functions[1], clipped(l, a_c));
    const double a_o = g[UNITS + u] + by_state(1, u, h) + w * p[UNITS + u] * c[u];
    next[u] = function(l->functions[0], clipped(l, a_o)) * function(l->functions[2], c[u]);
  }
  memcpy(h, next, sizeof next);
}

static void plain_gru(const layer *l, const double *g, double *h) {
  double next[UNITS], r[UNITS], reset[UNITS];
  for (int u = 0; u < UNITS; ++u) {
    r[u] = function(l->functions[0], clipped(l, g[UNITS + u] + by_state(1, u, h)));
    reset[u] = r[u] * h[u];
  }
  for (int u = 0; u < UNITS; ++u) {
    const double z = function(l->functions[0], clipped(l, g[u] + by_state(0, u, h)));
    const double linear = r[u] * (by_state(2, u, h) + (l->extra ? data.extra[u] : 0));
    const double a = g[2 * UNITS + u] + (l->linear_before_reset ? linear : by_state(2, u, reset));
    next[u] = (1 - z) * function(l->functions[1], clipped(l, a)) + z * h[u];
  }
  memcpy(h, next, sizeof next);
}

static void plain_rnn(const layer *l, const double *g, double *h) {
  double next[UNITS];
  for (int u = 0; u < UNITS; ++u)
    next[u] = function(l->functions[0], clipped(l, g[u] + by_state(0, u, h)));
  memcpy(h, next, sizeof next);
}

static void plain(const layer *l) {
  const int n = l->gates * UNITS;
  memset(data.y, 0, sizeof data.y);
  for (int b = 0; b < ROWS; ++b) {
    const int length = l->lens ? (int)data.lens[b] : STEPS;
    double *h = data.h + b * UNITS, *c = data.c + b * UNITS;
    for (int u = 0; u < UNITS; ++u) {
      h[u] = l->states ? data.h0[b * UNITS + u] : 0;
      c[u] = l->states ? data.c0[b * UNITS + u] : 0;
    }
    for (int i = 0; i < length; ++i) {
      const int t = l->reverse ? length - 1 - i : i;
      const double *g = data.g + (t * ROWS + b) * n;
      if (l->gates == 4)
        plain_lstm(l, g, h, c);
      else if (l->gates == 3)
        plain_gru(l, g, h);
      else
        plain_rnn(l, g, h);
      memcpy(data.y + (t * ROWS + b) * UNITS, h, UNITS * sizeof *h);
    }
  }
}

/* ---- as a program ---- */

typedef struct results {
  char y[STEPS * ROWS * UNITS * 8], h[ROWS * UNITS * 8], c[ROWS * UNITS * 8];
} results;

static char pool[MOST * 8 * 4];
static size_t used;

/* Rows [first, first + rows) of tensors of `outer` times ROWS times `each` numbers, of dtype. */
static const void *part(const double *from, int outer, int first, int rows, int each,
                        uint32_t dtype) {
  char *to = pool + used;
  size_t n = 0;
  for (int o = 0; o < outer; ++o) {
    for (int k = first * each; k < (first + rows) * each; ++k, ++n) {
      const double x = from[o * ROWS * each + k];
      if (dtype == OPIPE_DOUBLE)
        ((double *)(void *)to)[n] = x;
      else
        ((float *)(void *)to)[n] = (float)x;
    }
  }
  used += (n * 8 + 63) / 64 * 64;
  return to;
}

static void run(const layer *l, const char *options, uint32_t threads, uint32_t dtype, int first,
                int rows, results *out) {
  static const float nothing[3] = {0, 0, 0};
  const int n = l->gates * UNITS, functions = l->gates == 4 ? 3 : l->gates == 3 ? 2 : 1;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_graph g;
  uint32_t in[6] = {0, 0, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  used = 0;
  memset(out, 0, sizeof *out);
  bt_open(&b);
  bt_init(&g);
  in[0] = bt_value(&g, OPIPE_VALUE_INPUT, dtype, part(data.g, STEPS, first, rows, n, dtype),
                   BT_SHAPE(STEPS, rows, n));
  in[1] = bt_value(&g, OPIPE_VALUE_PARAMETER, dtype, part(data.r, 1, 0, 1, n * UNITS, dtype),
                   BT_SHAPE(n, UNITS));
  if (l->lens)
    in[2] = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, data.lens + first, BT_SHAPE(rows));
  if (l->states) {
    in[3] = bt_value(&g, OPIPE_VALUE_INPUT, dtype, part(data.h0, 1, first, rows, UNITS, dtype),
                     BT_SHAPE(rows, UNITS));
  }
  if (l->states && l->gates == 4) {
    in[4] = bt_value(&g, OPIPE_VALUE_INPUT, dtype, part(data.c0, 1, first, rows, UNITS, dtype),
                     BT_SHAPE(rows, UNITS));
  }
  const int extra = (l->gates == 4 ? 3 : 1) * UNITS;
  if (l->extra) {
    in[5] = bt_value(&g, OPIPE_VALUE_PARAMETER, dtype, part(data.extra, 1, 0, 1, extra, dtype),
                     BT_SHAPE(extra));
  }
  const uint32_t y = bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, out->y, BT_SHAPE(STEPS, rows, UNITS));
  const uint32_t h = bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, out->h, BT_SHAPE(rows, UNITS));
  const uint32_t c = l->gates == 4
                         ? bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, out->c, BT_SHAPE(rows, UNITS))
                         : OPIPE_NONE;
  opipe_node *node =
      bt_node(&g, l->op, BT_IN(in[0], in[1], in[2], in[3], in[4], in[5]), BT_OUT(y, h, c));
  node->domain = "opipe";
  bt_int(&g, node, "reverse", l->reverse);
  bt_float(&g, node, "clip", l->clip);
  bt_int(&g, node, "input_forget", l->input_forget);
  bt_int(&g, node, "linear_before_reset", l->linear_before_reset);
  opipe_attr *attrs = g.attrs[0] + node->n_attrs;
  attrs[0] = (opipe_attr){.name = "activations",
                          .data = l->functions,
                          .kind = OPIPE_ATTR_STRINGS,
                          .n = (uint32_t)functions};
  attrs[1] = (opipe_attr){.name = "activation_alpha",
                          .data = nothing,
                          .kind = OPIPE_ATTR_FLOATS,
                          .n = (uint32_t)functions};
  attrs[2] = attrs[1];
  attrs[2].name = "activation_beta";
  node->n_attrs += 3;
  OPI_ASSERT_OK(bt_device(&b, options, threads, 0, &device, &err), &err);
  OPI_ASSERT_OK(bt_run_once(b.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
  b.table->device_close(device);
  bt_close(&b);
}

static void check(const double *wanted, const void *found, size_t n, uint32_t dtype) {
  const double tolerance = dtype == OPIPE_DOUBLE ? 1e-12 : 3e-6;
  double worst = 0;
  for (size_t i = 0; i < n; ++i)
    worst = fmax(worst, fabs(opi_test_element(found, i, dtype) - wanted[i]));
  OPI_ASSERT(worst < tolerance);
}

static void check_results(const layer *l, const results *found, uint32_t dtype) {
  check(data.y, found->y, STEPS * ROWS * UNITS, dtype);
  check(data.h, found->h, ROWS * UNITS, dtype);
  if (l->gates == 4)
    check(data.c, found->c, ROWS * UNITS, dtype);
}

static void check_layer(const layer *l) {
  static results all, other;
  opi_test_random random = {11};
  for (int i = 0; i < MOST; ++i)
    data.g[i] = (double)(float)opi_test_uniform(&random, -1, 1);
  for (int i = 0; i < GATES * UNITS * UNITS; ++i)
    data.r[i] = (double)(float)opi_test_uniform(&random, -0.4, 0.4);
  for (int i = 0; i < ROWS * UNITS; ++i) {
    data.h0[i] = (double)(float)opi_test_uniform(&random, -1, 1);
    data.c0[i] = (double)(float)opi_test_uniform(&random, -1, 1);
  }
  for (int i = 0; i < 3 * UNITS; ++i)
    data.extra[i] = (double)(float)opi_test_uniform(&random, -1, 1);
  for (int b = 0; b < ROWS; ++b)
    data.lens[b] = b * 3 % (STEPS + 1);
  plain(l);
  run(l, NULL, 1, OPIPE_DOUBLE, 0, ROWS, &other);
  check_results(l, &other, OPIPE_DOUBLE);
  run(l, "kernels=reference", 2, OPIPE_FLOAT, 0, ROWS, &other);
  check_results(l, &other, OPIPE_FLOAT);
  run(l, NULL, 1, OPIPE_FLOAT, 0, ROWS, &all);
  check_results(l, &all, OPIPE_FLOAT);
  run(l, "kernels=portable", 2, OPIPE_FLOAT, 0, ROWS, &other);
  OPI_ASSERT(memcmp(&all, &other, sizeof all) == 0);
  for (int b = 0; b < ROWS; b += 3) {
    run(l, NULL, 1, OPIPE_FLOAT, b, 1, &other);
    OPI_ASSERT_BITS(other.h, all.h + b * UNITS * 4, UNITS, OPIPE_FLOAT);
    OPI_ASSERT_BITS(other.c, all.c + b * UNITS * 4, UNITS, OPIPE_FLOAT);
    for (int t = 0; t < STEPS; ++t) {
      OPI_ASSERT_BITS(other.y + t * UNITS * 4, all.y + (t * ROWS + b) * UNITS * 4, UNITS,
                      OPIPE_FLOAT);
    }
  }
}

static void test_lstm(void) {
  static const layer layers[] = {
      {.op = "LSTM", .gates = 4, .functions = {"Sigmoid", "Tanh", "Tanh"}},
      {.op = "LSTM",
       .gates = 4,
       .reverse = true,
       .states = true,
       .lens = true,
       .extra = true,
       .functions = {"Sigmoid", "Tanh", "Relu"}},
      {.op = "LSTM",
       .gates = 4,
       .states = true,
       .lens = true,
       .extra = true,
       .input_forget = true,
       .clip = 0.5,
       .functions = {"Sigmoid", "Relu", "Tanh"}}};
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; ++i)
    check_layer(&layers[i]);
}

static void test_gru(void) {
  static const layer layers[] = {{.op = "GRU", .gates = 3, .functions = {"Sigmoid", "Tanh"}},
                                 {.op = "GRU",
                                  .gates = 3,
                                  .reverse = true,
                                  .states = true,
                                  .lens = true,
                                  .clip = 0.7,
                                  .functions = {"Sigmoid", "Relu"}},
                                 {.op = "GRU",
                                  .gates = 3,
                                  .states = true,
                                  .lens = true,
                                  .extra = true,
                                  .linear_before_reset = true,
                                  .functions = {"Sigmoid", "Tanh"}},
                                 {.op = "GRU",
                                  .gates = 3,
                                  .reverse = true,
                                  .linear_before_reset = true,
                                  .functions = {"Sigmoid", "Tanh"}}};
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; ++i)
    check_layer(&layers[i]);
}

static void test_rnn(void) {
  static const layer layers[] = {{.op = "RNN", .gates = 1, .functions = {"Tanh"}},
                                 {.op = "RNN",
                                  .gates = 1,
                                  .reverse = true,
                                  .states = true,
                                  .lens = true,
                                  .clip = 0.3,
                                  .functions = {"Relu"}}};
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; ++i)
    check_layer(&layers[i]);
}

/* More steps than there are: an error of the data, with row and both numbers. */
static void test_a_length_that_is_none(void) {
  static const layer l = {.op = "RNN", .gates = 1, .lens = true, .functions = {"Tanh"}};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  static float g[2], r[1], y[2];
  static const int64_t lens[2] = {1, 2};
  static const float nothing[1] = {0};
  bt_backend b;
  bt_graph graph;
  bt_open(&b);
  bt_init(&graph);
  const uint32_t x = bt_value(&graph, OPIPE_VALUE_INPUT, OPIPE_FLOAT, g, BT_SHAPE(1, 2, 1));
  const uint32_t w = bt_value(&graph, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, r, BT_SHAPE(1, 1));
  const uint32_t n = bt_value(&graph, OPIPE_VALUE_INPUT, OPIPE_INT64, lens, BT_SHAPE(2));
  const uint32_t o = bt_value(&graph, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(1, 2, 1));
  opipe_node *node = bt_node(&graph, l.op, BT_IN(x, w, n), BT_OUT(o));
  node->domain = "opipe";
  graph.attrs[0][0] =
      (opipe_attr){.name = "activations", .data = l.functions, .kind = OPIPE_ATTR_STRINGS, .n = 1};
  graph.attrs[0][1] =
      (opipe_attr){.name = "activation_alpha", .data = nothing, .kind = OPIPE_ATTR_FLOATS, .n = 1};
  graph.attrs[0][2] = graph.attrs[0][1];
  graph.attrs[0][2].name = "activation_beta";
  node->n_attrs = 3;
  OPI_ASSERT_OK(bt_device(&b, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_ERROR(bt_run_once(b.table, device, &graph, 0, &err), OPIPE_E_INVALID, &err,
                   "row 1 has 2 steps, the layer 1");
  b.table->device_close(device);
  bt_close(&b);
}

OPI_TEST_MAIN("recurrent layers", OPI_TEST(test_lstm), OPI_TEST(test_gru), OPI_TEST(test_rnn),
              OPI_TEST(test_a_length_that_is_none))
