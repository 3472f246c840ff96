/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of domain "opipe": fast kernels close to the plain ones, the same bits on every
 * instruction set and with two threads; what masks, corners and labels must give.
 */
#include <math.h>

#include "backend_test.h"

enum { ROOM = 1 << 16, OUTPUTS = 4 };

typedef struct maker {
  bt_graph *g;
  opi_test_random random;
  float pool[ROOM];
  size_t used;
  float *out[OUTPUTS];
  int64_t n[OUTPUTS];
  uint32_t n_out;
  uint8_t mask[1024];
  int64_t labels[64];
} maker;

static float *numbers(maker *m, int64_t n) {
  float *data = m->pool + m->used;
  m->used += (size_t)n;
  OPI_ASSERT_FATAL(m->used <= ROOM);
  opi_test_fill_f32(&m->random, data, (size_t)n, -2, 2);
  return data;
}

static int64_t elems(uint32_t rank, const int64_t *shape) {
  int64_t n = 1;
  for (uint32_t i = 0; i < rank; ++i)
    n *= shape[i];
  return n;
}

static uint32_t input(maker *m, uint32_t rank, const int64_t *shape) {
  return bt_value(m->g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, numbers(m, elems(rank, shape)), rank,
                  shape);
}

static uint32_t output(maker *m, uint32_t rank, const int64_t *shape) {
  const uint32_t i = m->n_out++;
  m->n[i] = elems(rank, shape);
  m->out[i] = m->pool + m->used;
  m->used += (size_t)m->n[i];
  OPI_ASSERT_FATAL(m->used <= ROOM);
  return bt_value(m->g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m->out[i], rank, shape);
}

static opipe_node *own(maker *m, const char *op, const uint32_t *in, const uint32_t *out) {
  opipe_node *node = bt_node(m->g, op, in, out);
  node->domain = "opipe";
  return node;
}

/* ---- cases ---- */

static void norm(maker *m, const char *op) {
  const uint32_t dy = input(m, BT_SHAPE(11, 70));
  const uint32_t x = input(m, BT_SHAPE(11, 70));
  const uint32_t scale = input(m, BT_SHAPE(70));
  opipe_node *node = own(m, op, BT_IN(dy, x, scale), BT_OUT(output(m, BT_SHAPE(11, 70))));
  bt_int(m->g, node, "axis", -1);
  bt_float(m->g, node, "epsilon", 1e-5);
}

static void layer_norm(maker *m) {
  norm(m, "LayerNormalizationGrad");
}

static void rms_norm(maker *m) {
  norm(m, "RMSNormalizationGrad");
}

static void layer_scale(maker *m) {
  const uint32_t dy = input(m, BT_SHAPE(150, 70));
  const uint32_t x = input(m, BT_SHAPE(150, 70));
  const uint32_t scale = output(m, BT_SHAPE(70));
  const uint32_t bias = output(m, BT_SHAPE(70));
  opipe_node *node = own(m, "LayerNormalizationGradScale", BT_IN(dy, x), BT_OUT(scale, bias));
  bt_int(m->g, node, "axis", -1);
  bt_float(m->g, node, "epsilon", 1e-5);
}

static void rms_scale(maker *m) {
  const uint32_t dy = input(m, BT_SHAPE(150, 70));
  const uint32_t x = input(m, BT_SHAPE(150, 70));
  opipe_node *node =
      own(m, "RMSNormalizationGradScale", BT_IN(dy, x), BT_OUT(output(m, BT_SHAPE(70))));
  bt_int(m->g, node, "axis", 1);
  bt_float(m->g, node, "epsilon", 1e-6);
}

static void softmax(maker *m, const char *op, const char *forward) {
  const uint32_t dy = input(m, BT_SHAPE(13, 37));
  const uint32_t x = input(m, BT_SHAPE(13, 37));
  const uint32_t y = bt_value(m->g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(13, 37));
  bt_int(m->g, bt_node(m->g, forward, BT_IN(x), BT_OUT(y)), "axis", -1);
  bt_int(m->g, own(m, op, BT_IN(dy, y), BT_OUT(output(m, BT_SHAPE(13, 37)))), "axis", -1);
}

static void soft(maker *m) {
  softmax(m, "SoftmaxGrad", "Softmax");
}

static void log_soft(maker *m) {
  softmax(m, "LogSoftmaxGrad", "LogSoftmax");
}

static void activation(maker *m, const char *name, double alpha) {
  const uint32_t dy = input(m, BT_SHAPE(3, 333));
  const uint32_t x = input(m, BT_SHAPE(3, 333));
  opipe_node *node = own(m, "ActivationGrad", BT_IN(dy, x), BT_OUT(output(m, BT_SHAPE(3, 333))));
  bt_text(m->g, node, "activation", name);
  bt_float(m->g, node, "alpha", alpha);
}

static void gelu(maker *m) {
  activation(m, "Gelu", 0);
}
static void gelu_tanh(maker *m) {
  activation(m, "GeluTanh", 0);
}
static void quick(maker *m) {
  activation(m, "QuickGelu", 1.702);
}
static void swish(maker *m) {
  activation(m, "Swish", 1.0);
}
static void relu(maker *m) {
  activation(m, "Relu", 0);
}
static void hyperbolic(maker *m) {
  activation(m, "Tanh", 0);
}

static void loss(maker *m) {
  const uint32_t dl = input(m, 0, NULL);
  const uint32_t x = input(m, BT_SHAPE(29, 77));
  for (int i = 0; i < 29; ++i)
    m->labels[i] = i % 5 == 3 ? -100 : (i * 31) % 77;
  const uint32_t l = bt_value(m->g, OPIPE_VALUE_INPUT, OPIPE_INT64, m->labels, BT_SHAPE(29));
  opipe_node *node =
      own(m, "SoftmaxCrossEntropyLossGrad", BT_IN(dl, x, l), BT_OUT(output(m, BT_SHAPE(29, 77))));
  bt_text(m->g, node, "reduction", "sum");
  bt_int(m->g, node, "ignore_index", -100);
  bt_float(m->g, node, "smoothing", 0.1);
}

/* heads share keys; `past` keys stand before them. */
static void attend(maker *m, int64_t rows, int64_t past, bool causal, uint32_t mask, int64_t dim) {
  const uint32_t dy = input(m, BT_SHAPE(2, 4, rows, dim));
  const uint32_t q = input(m, BT_SHAPE(2, 4, rows, dim));
  const uint32_t k = input(m, BT_SHAPE(2, 2, rows, dim));
  const uint32_t v = input(m, BT_SHAPE(2, 2, rows, dim));
  uint32_t pk = OPIPE_NONE, pv = OPIPE_NONE, dpk = OPIPE_NONE, dpv = OPIPE_NONE;
  if (past > 0) {
    pk = input(m, BT_SHAPE(2, 2, past, dim));
    pv = input(m, BT_SHAPE(2, 2, past, dim));
  }
  const uint32_t dq = output(m, BT_SHAPE(2, 4, rows, dim));
  const uint32_t dk = output(m, BT_SHAPE(2, 2, rows, dim));
  if (past > 0)
    dpv = output(m, BT_SHAPE(2, 2, past, dim));
  const uint32_t dv = past > 0 ? OPIPE_NONE : output(m, BT_SHAPE(2, 2, rows, dim));
  opipe_node *node = own(m, "AttentionGrad", BT_IN(dy, q, k, v, mask, pk, pv),
                         BT_OUT(dq, dk, dv, OPIPE_NONE, dpk, dpv));
  bt_int(m->g, node, "is_causal", causal);
}

static void causal(maker *m) {
  attend(m, 70, 0, true, OPIPE_NONE, 16);
}

static void full(maker *m) {
  attend(m, 50, 0, false, OPIPE_NONE, 20);
}

static void with_past(maker *m) {
  attend(m, 20, 33, true, OPIPE_NONE, 16);
}

/* Row 3 sees nothing. */
static void bool_mask(maker *m) {
  for (int i = 0; i < 30 * 30; ++i)
    m->mask[i] = i / 30 != 3 && (i * 7) % 5 != 0;
  attend(m, 30, 0, false, bt_value(m->g, OPIPE_VALUE_INPUT, OPIPE_BOOL, m->mask, BT_SHAPE(30, 30)),
         16);
}

static void float_mask(maker *m) {
  attend(m, 30, 0, false, input(m, BT_SHAPE(2, 1, 30, 30)), 16);
}

/* A mask that all batches share, and its gradient. */
static void learnt_mask(maker *m) {
  const uint32_t mask = input(m, BT_SHAPE(1, 4, 30, 30));
  const uint32_t dmask = output(m, BT_SHAPE(1, 4, 30, 30));
  attend(m, 30, 0, true, mask, 16);
  m->g->out[m->g->graph.n_nodes - 1][3] = dmask;
}

static void gather(maker *m) {
  const uint32_t dy = input(m, BT_SHAPE(40, 33));
  static const int64_t shape[2] = {9, 33};
  for (int i = 0; i < 40; ++i)
    m->labels[i] = (i * i) % 9 - (i % 2 == 0 ? 9 : 0);
  const uint32_t l = bt_value(m->g, OPIPE_VALUE_INPUT, OPIPE_INT64, m->labels, BT_SHAPE(40));
  opipe_node *node = own(m, "GatherGrad", BT_IN(dy, l), BT_OUT(output(m, BT_SHAPE(9, 33))));
  bt_int(m->g, node, "axis", 0);
  bt_ints(m->g, node, "shape", 2, shape);
}

typedef struct grad_case {
  const char *name;
  void (*build)(maker *m);
  double tolerance;
} grad_case;

static const grad_case cases[] = {
    {"LayerNormalizationGrad", layer_norm, 2e-5},
    {"RMSNormalizationGrad", rms_norm, 2e-5},
    {"LayerNormalizationGradScale", layer_scale, 1e-4},
    {"RMSNormalizationGradScale", rms_scale, 1e-4},
    {"SoftmaxGrad", soft, 1e-6},
    {"LogSoftmaxGrad", log_soft, 1e-5},
    {"Gelu", gelu, 1e-6},
    {"GeluTanh", gelu_tanh, 2e-6},
    {"QuickGelu", quick, 2e-6},
    {"Swish", swish, 2e-6},
    {"Relu", relu, 0},
    {"Tanh", hyperbolic, 2e-6},
    {"SoftmaxCrossEntropyLossGrad", loss, 1e-6},
    {"AttentionGrad causal", causal, 2e-5},
    {"AttentionGrad", full, 2e-5},
    {"AttentionGrad past", with_past, 2e-5},
    {"AttentionGrad bool mask", bool_mask, 2e-5},
    {"AttentionGrad float mask", float_mask, 2e-5},
    {"GatherGrad", gather, 1e-6},
    {"AttentionGrad dMask", learnt_mask, 2e-5},
};

static maker made[2];

static void run_case(const grad_case *c, const char *options, uint32_t threads, maker *m) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_backend backend;
  bt_graph graph;
  opipe_device *device = NULL;
  memset(m, 0, sizeof *m);
  m->g = &graph;
  m->random.state = 7;
  bt_init(&graph);
  c->build(m);
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, threads, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_run_once(backend.table, device, &graph, OPIPE_COMPILE_POISON, &err), &err);
  backend.table->device_close(device);
  bt_close(&backend);
}

static void test_fast_kernels_agree_with_plain_ones(void) {
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    run_case(&cases[i], "kernels=reference", 1, &made[0]);
    run_case(&cases[i], NULL, 2, &made[1]);
    for (uint32_t k = 0; k < made[0].n_out; ++k) {
      for (int64_t e = 0; e < made[0].n[k]; ++e) {
        const double wanted = (double)made[0].out[k][e];
        const double found = (double)made[1].out[k][e];
        if (!(fabs(found - wanted) <= cases[i].tolerance * (1 + fabs(wanted)))) {
          OPI_FAIL("%s: output %u element %lld is %.9g, not %.9g", cases[i].name, k, (long long)e,
                   found, wanted);
          break;
        }
      }
    }
  }
}

static void test_bits_do_not_depend_on_threads_or_instructions(void) {
  static const char *const options[] = {NULL, "kernels=avx2", "kernels=portable"};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    run_case(&cases[i], NULL, 1, &made[0]);
    for (uint32_t o = 0; o < 3; ++o) {
      run_case(&cases[i], options[o], 2, &made[1]);
      for (uint32_t k = 0; k < made[0].n_out; ++k) {
        if (memcmp(made[0].out[k], made[1].out[k], (size_t)made[0].n[k] * sizeof(float)) != 0) {
          OPI_FAIL("%s: output %u differs with %s", cases[i].name, k,
                   options[o] != NULL ? options[o] : "two threads");
        }
      }
    }
  }
}

/* Gradients of rows that are masked out, and of a softmax of exact zeros. */
static void test_masked_rows_give_nothing(void) {
  run_case(&cases[16], NULL, 2, &made[0]);
  for (int e = 0; e < 16; ++e)
    OPI_ASSERT(made[0].out[0][3 * 16 + e] == 0.0f);
  for (int64_t e = 0; e < made[0].n[0]; ++e)
    OPI_ASSERT(isfinite(made[0].out[0][e]));
}

OPI_TEST_MAIN("op_gradient", OPI_TEST(test_fast_kernels_agree_with_plain_ones),
              OPI_TEST(test_bits_do_not_depend_on_threads_or_instructions),
              OPI_TEST(test_masked_rows_give_nothing))
