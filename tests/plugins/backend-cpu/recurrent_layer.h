/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN as the operators' text says, in plain loops of fp64, and as graphs, with
 * everything that can be given: what tests of backends compare.
 */
#ifndef TESTS_PLUGINS_BACKEND_CPU_RECURRENT_LAYER_H_
#define TESTS_PLUGINS_BACKEND_CPU_RECURRENT_LAYER_H_

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

static const layer lstm_layers[] = {
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
static const layer gru_layers[] = {{.op = "GRU", .gates = 3, .functions = {"Sigmoid", "Tanh"}},
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
static const layer rnn_layers[] = {{.op = "RNN", .gates = 1, .functions = {"Tanh"}},
                                   {.op = "RNN",
                                    .gates = 1,
                                    .reverse = true,
                                    .states = true,
                                    .lens = true,
                                    .clip = 0.3,
                                    .functions = {"Relu"}}};

/* In fp64, of multiples of 1/64: the same numbers in every type. */
static struct {
  double g[MOST], r[GATES * UNITS * UNITS], h0[ROWS * UNITS], c0[ROWS * UNITS], extra[3 * UNITS];
  int64_t lens[ROWS];
  double y[STEPS * ROWS * UNITS], h[ROWS * UNITS], c[ROWS * UNITS];
} data;

static void draw(opi_test_random *random, double *out, int n, double most) {
  for (int i = 0; i < n; ++i)
    out[i] = rint(opi_test_uniform(random, -most, most) * 64) / 64;
}

static void draw_all(void) {
  opi_test_random random = {11};
  draw(&random, data.g, MOST, 1);
  draw(&random, data.r, GATES * UNITS * UNITS, 0.4);
  draw(&random, data.h0, ROWS * UNITS, 1);
  draw(&random, data.c0, ROWS * UNITS, 1);
  draw(&random, data.extra, 3 * UNITS, 1);
  for (int b = 0; b < ROWS; ++b)
    data.lens[b] = b * 3 % (STEPS + 1);
}

/* ---- plainly ---- */

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

/* The part of gate `gate` of unit u that comes from the state h. */
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

/* data.y, h, c */
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

/* ---- as a graph ---- */

typedef struct results {
  char y[STEPS * ROWS * UNITS * 8], h[ROWS * UNITS * 8], c[ROWS * UNITS * 8];
} results;

static char pool[MOST * 8 * 4];
static size_t used;

/* Multiples of 1/64 are exact in every type. */
static void store(char *to, size_t i, uint32_t dtype, double x) {
  const float single = (float)x;
  uint32_t bits = 0;
  memcpy(&bits, &single, sizeof bits);
  const uint16_t brain = (uint16_t)(bits >> 16);
  const uint32_t size_bits = (bits >> 13 & 0x3ffffu) - (112u << 10); /* of fp16, but for 0 */
  const uint16_t half = (uint16_t)(single == 0 ? 0 : (bits >> 16 & 0x8000u) | size_bits);
  const void *from = dtype == OPIPE_DOUBLE    ? (const void *)&x
                     : dtype == OPIPE_FLOAT   ? (const void *)&single
                     : dtype == OPIPE_FLOAT16 ? (const void *)&half
                                              : (const void *)&brain;
  const size_t size = opipe_dtype_bits(dtype) / 8;
  memcpy(to + i * size, from, size);
}

/* Rows [first, first + rows) of tensors of `outer` times ROWS times `each` numbers, of dtype. */
static const void *part(const double *from, int outer, int first, int rows, int each,
                        uint32_t dtype) {
  char *to = pool + used;
  size_t n = 0;
  for (int o = 0; o < outer; ++o) {
    for (int k = first * each; k < (first + rows) * each; ++k, ++n)
      store(to, n, dtype, from[o * ROWS * each + k]);
  }
  used += (n * 8 + 63) / 64 * 64;
  return to;
}

static void put_attributes(bt_graph *g, opipe_node *node, const layer *l) {
  static const float nothing[3] = {0, 0, 0};
  const uint32_t n = l->gates == 4 ? 3 : l->gates == 3 ? 2 : 1;
  bt_int(g, node, "reverse", l->reverse);
  bt_float(g, node, "clip", l->clip);
  bt_int(g, node, "input_forget", l->input_forget);
  bt_int(g, node, "linear_before_reset", l->linear_before_reset);
  opipe_attr *attrs = g->attrs[node - g->nodes] + node->n_attrs;
  attrs[0] =
      (opipe_attr){.name = "activations", .data = l->functions, .kind = OPIPE_ATTR_STRINGS, .n = n};
  attrs[1] =
      (opipe_attr){.name = "activation_alpha", .data = nothing, .kind = OPIPE_ATTR_FLOATS, .n = n};
  attrs[2] = attrs[1];
  attrs[2].name = "activation_beta";
  node->n_attrs += 3;
}

/* The layer over rows [first, first + rows); out gets what a run of it computes. */
static void make_layer(bt_graph *g, const layer *l, uint32_t dtype, int first, int rows,
                       results *out) {
  const int n = l->gates * UNITS, extra = (l->gates == 4 ? 3 : 1) * UNITS;
  uint32_t in[6] = {0, 0, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  used = 0;
  memset(out, 0, sizeof *out);
  bt_init(g);
  in[0] = bt_value(g, OPIPE_VALUE_INPUT, dtype, part(data.g, STEPS, first, rows, n, dtype),
                   BT_SHAPE(STEPS, rows, n));
  in[1] = bt_value(g, OPIPE_VALUE_PARAMETER, dtype, part(data.r, 1, 0, 1, n * UNITS, dtype),
                   BT_SHAPE(n, UNITS));
  if (l->lens)
    in[2] = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, data.lens + first, BT_SHAPE(rows));
  if (l->states) {
    in[3] = bt_value(g, OPIPE_VALUE_INPUT, dtype, part(data.h0, 1, first, rows, UNITS, dtype),
                     BT_SHAPE(rows, UNITS));
  }
  if (l->states && l->gates == 4) {
    in[4] = bt_value(g, OPIPE_VALUE_INPUT, dtype, part(data.c0, 1, first, rows, UNITS, dtype),
                     BT_SHAPE(rows, UNITS));
  }
  if (l->extra) {
    in[5] = bt_value(g, OPIPE_VALUE_PARAMETER, dtype, part(data.extra, 1, 0, 1, extra, dtype),
                     BT_SHAPE(extra));
  }
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, dtype, out->y, BT_SHAPE(STEPS, rows, UNITS));
  const uint32_t h = bt_value(g, OPIPE_VALUE_OUTPUT, dtype, out->h, BT_SHAPE(rows, UNITS));
  const uint32_t c = l->gates == 4
                         ? bt_value(g, OPIPE_VALUE_OUTPUT, dtype, out->c, BT_SHAPE(rows, UNITS))
                         : OPIPE_NONE;
  opipe_node *node =
      bt_node(g, l->op, BT_IN(in[0], in[1], in[2], in[3], in[4], in[5]), BT_OUT(y, h, c));
  node->domain = "opipe";
  put_attributes(g, node, l);
}

/* ---- comparisons ---- */

static void check(const double *wanted, const void *found, size_t n, uint32_t dtype,
                  double tolerance) {
  double worst = 0;
  for (size_t i = 0; i < n; ++i)
    worst = fmax(worst, fabs(opi_test_element(found, i, dtype) - wanted[i]));
  OPI_ASSERT(worst < tolerance);
}

/* All rows, against `plain`. */
static void check_results(const layer *l, const results *found, uint32_t dtype) {
  const double tolerance = dtype == OPIPE_DOUBLE    ? 1e-12
                           : dtype == OPIPE_FLOAT   ? 3e-6
                           : dtype == OPIPE_FLOAT16 ? 4e-3
                                                    : 4e-2;
  check(data.y, found->y, STEPS * ROWS * UNITS, dtype, tolerance);
  check(data.h, found->h, ROWS * UNITS, dtype, tolerance);
  if (l->gates == 4)
    check(data.c, found->c, ROWS * UNITS, dtype, tolerance);
}

/* `alone` computed row b of fp32, `all` every row: the same bits. */
static void check_row(const results *alone, const results *all, int b) {
  OPI_ASSERT_BITS(alone->h, all->h + b * UNITS * 4, UNITS, OPIPE_FLOAT);
  OPI_ASSERT_BITS(alone->c, all->c + b * UNITS * 4, UNITS, OPIPE_FLOAT);
  for (int t = 0; t < STEPS; ++t) {
    OPI_ASSERT_BITS(alone->y + t * UNITS * 4, all->y + (t * ROWS + b) * UNITS * 4, UNITS,
                    OPIPE_FLOAT);
  }
}

/* More steps than there are: an RNN of one step and two rows, the second of which says two. */
static void make_wrong_length(bt_graph *g) {
  static const layer l = {.op = "RNN", .gates = 1, .lens = true, .functions = {"Tanh"}};
  static float from[2], r[1], y[2];
  static const int64_t lens[2] = {1, 2};
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, from, BT_SHAPE(1, 2, 1));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, r, BT_SHAPE(1, 1));
  const uint32_t n = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, lens, BT_SHAPE(2));
  const uint32_t o = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(1, 2, 1));
  opipe_node *node = bt_node(g, l.op, BT_IN(x, w, n), BT_OUT(o));
  node->domain = "opipe";
  put_attributes(g, node, &l);
}

#endif
