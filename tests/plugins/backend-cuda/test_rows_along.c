/* SPDX-License-Identifier: Apache-2.0 */
/* Work that norms and gates do along: as many steps as are left, with the bits of the nodes one by
 * one. Sums of another order: test_norms_along.c. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 5, WIDE = 24, CELLS = ROWS * WIDE, OUTPUTS = 4 };

static uint16_t halves[6][CELLS];
static float floats[6][CELLS];

/* Draws floats and, cut, bf16. */
static void draw(void) {
  uint32_t seed = 7;
  for (int k = 0; k < 6; ++k) {
    for (int i = 0; i < CELLS; ++i) {
      seed = seed * 1664525u + 1013904223u;
      floats[k][i] = (float)(int)(seed >> 8) / 8388608.0f - 1.0f;
      uint32_t bits = 0;
      memcpy(&bits, &floats[k][i], sizeof bits);
      halves[k][i] = (uint16_t)(bits >> 16);
    }
  }
}

typedef enum form {
  GRAD_AND_SUM,       /* norm's gradient + c */
  SUM_AND_GRAD,       /* c + norm's gradient */
  RMS_AND_SUM,        /* of RMS */
  GRAD_READ_TWICE,    /* and it is an output */
  GRAD_TWICE,         /* the gradient + itself */
  GRAD_AND_ROW,       /* + a row */
  ALL_GRADIENTS,      /* norm's gradient + c, and the scale's */
  ALL_RMS,            /* of RMS */
  SCALES_FIRST,       /* the scale's gradient, its sum with a row; then the norm's */
  SCALE_OF_OTHERS,    /* the scale's of another dY */
  SUM_AND_NORM,       /* norm of a + b, which is an output */
  SUM_FOR_NORM,       /* which nothing else reads */
  SUM_AND_RMS,        /* read behind it */
  SUM_OF_ROW,         /* a + row */
  NORM_LATER,         /* by a scale that is made between */
  SUM_READ_BEFORE,    /* and of which something is made between */
  GATE_SWISH,         /* swish(a) b */
  GATE_SIGMOID,       /* a sigmoid(a) b */
  GATE_GELU,          /* b gelu(a) */
  GATE_KEPT,          /* swish(a) b, and swish(a) */
  GATE_READ_BEFORE,   /* swish(a) is read before the product */
  GATE_OF_SQUARE,     /* swish(a) swish(a) */
  GATE_GRADIENT,      /* (a b) swish'(c) */
  GATE_GRADIENT_KEPT, /* and a b */
  CASES
} form;

static const struct {
  uint32_t steps, alone; /* all that are left; one by one */
} wanted[CASES] = {
    [GRAD_AND_SUM] = {1, 2},    [SUM_AND_GRAD] = {1, 2},  [RMS_AND_SUM] = {1, 2},
    [GRAD_READ_TWICE] = {2, 2}, [GRAD_TWICE] = {2, 2},    [GRAD_AND_ROW] = {2, 2},
    [ALL_GRADIENTS] = {3, 5},   [ALL_RMS] = {3, 5},       [SCALES_FIRST] = {5, 5},
    [SCALE_OF_OTHERS] = {4, 5}, [SUM_AND_NORM] = {1, 2},  [SUM_FOR_NORM] = {1, 2},
    [SUM_AND_RMS] = {2, 3},     [SUM_OF_ROW] = {2, 2},    [NORM_LATER] = {2, 3},
    [SUM_READ_BEFORE] = {3, 3}, [GATE_SWISH] = {1, 2},    [GATE_SIGMOID] = {2, 3},
    [GATE_GELU] = {1, 2},       [GATE_KEPT] = {1, 2},     [GATE_READ_BEFORE] = {3, 3},
    [GATE_OF_SQUARE] = {2, 2},  [GATE_GRADIENT] = {1, 2}, [GATE_GRADIENT_KEPT] = {2, 2}};

typedef struct maker {
  bt_graph g;
  uint32_t dtype;
  uint32_t a, b, c, row, more_row;
  uint32_t n_outputs;
  float (*outputs)[CELLS];
} maker;

static uint32_t temp(maker *m) {
  return bt_value(&m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, BT_SHAPE(ROWS, WIDE));
}

static uint32_t output(maker *m) {
  return bt_value(&m->g, OPIPE_VALUE_OUTPUT, m->dtype, m->outputs[m->n_outputs++],
                  BT_SHAPE(ROWS, WIDE));
}

static uint32_t two(maker *m, const char *op, uint32_t a, uint32_t b, uint32_t to) {
  (void)bt_node(&m->g, op, BT_IN(a, b), BT_OUT(to));
  return to;
}

static uint32_t one(maker *m, const char *op, uint32_t a, uint32_t to) {
  (void)bt_node(&m->g, op, BT_IN(a), BT_OUT(to));
  return to;
}

static uint32_t norm_grad(maker *m, const char *op, uint32_t dy, uint32_t to) {
  opipe_node *node = bt_node(&m->g, op, BT_IN(dy, m->b, m->row), BT_OUT(to));
  node->domain = "opipe";
  bt_int(&m->g, node, "axis", 1);
  return to;
}

/* fp32 of all types but double */
static uint32_t scale_grad(maker *m, const char *op, uint32_t dy, bool is_output) {
  const uint32_t role = is_output ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP;
  const uint32_t to = bt_value(&m->g, role, OPIPE_FLOAT,
                               is_output ? m->outputs[m->n_outputs++] : NULL, BT_SHAPE(WIDE));
  opipe_node *node = bt_node(&m->g, op, BT_IN(dy, m->b), BT_OUT(to));
  node->domain = "opipe";
  bt_int(&m->g, node, "axis", 1);
  return to;
}

static void make_gradients(maker *m, form which) {
  const bool rms = which == RMS_AND_SUM || which == ALL_RMS;
  const char *op = rms ? "RMSNormalizationGrad" : "LayerNormalizationGrad";
  const char *scale_op = rms ? "RMSNormalizationGradScale" : "LayerNormalizationGradScale";
  uint32_t dx = OPIPE_NONE;
  if (which == SCALES_FIRST) { /* the readers of the scale's gradient stand before dX */
    const uint32_t scale = scale_grad(m, scale_op, m->a, false);
    const uint32_t to = bt_value(&m->g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m->outputs[m->n_outputs++],
                                 BT_SHAPE(WIDE));
    (void)one(m, "Neg", scale, to);
    (void)norm_grad(m, op, m->a, output(m));
    return;
  }
  dx = norm_grad(m, op, m->a, which == GRAD_READ_TWICE ? output(m) : temp(m));
  if (which == ALL_GRADIENTS || which == ALL_RMS || which == SCALE_OF_OTHERS)
    (void)scale_grad(m, scale_op, which == SCALE_OF_OTHERS ? m->c : m->a, true);
  switch (which) {
    case SUM_AND_GRAD:
      (void)two(m, "Add", m->c, dx, output(m));
      break;
    case GRAD_TWICE:
      (void)two(m, "Add", dx, dx, output(m));
      break;
    case GRAD_AND_ROW:
      (void)two(m, "Add", dx, m->row, output(m));
      break;
    default:
      (void)two(m, "Add", dx, m->c, output(m));
  }
}

static void make_norms(maker *m, form which) {
  const uint32_t other = which == SUM_OF_ROW ? m->row : m->b;
  const uint32_t sum = two(m, "Add", m->a, other, which == SUM_AND_NORM ? output(m) : temp(m));
  uint32_t scale = m->row;
  if (which == NORM_LATER) {
    scale = bt_value(&m->g, OPIPE_VALUE_TEMP, m->dtype, NULL, BT_SHAPE(WIDE));
    (void)one(m, "Neg", m->row, scale);
  }
  if (which == SUM_READ_BEFORE)
    (void)one(m, "Neg", sum, output(m));
  const uint32_t y = output(m);
  opipe_node *norm =
      which == SUM_AND_RMS
          ? bt_node(&m->g, "RMSNormalization", BT_IN(sum, scale), BT_OUT(y))
          : bt_node(&m->g, "LayerNormalization", BT_IN(sum, scale, m->more_row), BT_OUT(y));
  bt_int(&m->g, norm, "axis", 1);
  if (which == SUM_AND_RMS)
    (void)one(m, "Neg", sum, output(m));
}

static void make_gates(maker *m, form which) {
  uint32_t gate = OPIPE_NONE, p = OPIPE_NONE;
  opipe_node *node = NULL;
  switch (which) {
    case GATE_SIGMOID:
      p = one(m, "Sigmoid", m->a, temp(m));
      (void)two(m, "Mul", two(m, "Mul", m->a, p, temp(m)), m->b, output(m));
      break;
    case GATE_GELU:
      (void)two(m, "Mul", m->b, one(m, "Gelu", m->a, temp(m)), output(m));
      break;
    case GATE_OF_SQUARE:
      gate = one(m, "Swish", m->a, temp(m));
      (void)two(m, "Mul", gate, gate, output(m));
      break;
    case GATE_GRADIENT:
    case GATE_GRADIENT_KEPT:
      p = two(m, "Mul", m->a, m->b, which == GATE_GRADIENT_KEPT ? output(m) : temp(m));
      node = bt_node(&m->g, "ActivationGrad", BT_IN(p, m->c), BT_OUT(output(m)));
      node->domain = "opipe";
      bt_text(&m->g, node, "activation", "Swish");
      break;
    default:
      gate = one(m, "Swish", m->a, which == GATE_KEPT ? output(m) : temp(m));
      if (which == GATE_READ_BEFORE)
        (void)one(m, "Neg", gate, output(m));
      (void)two(m, "Mul", gate, m->b, output(m));
  }
}

static void make_graph(maker *m, form which, uint32_t dtype, float (*outputs)[CELLS]) {
  uint32_t in[5];
  memset(m, 0, sizeof *m);
  bt_init(&m->g);
  m->dtype = dtype;
  m->outputs = outputs;
  for (int i = 0; i < 5; ++i) {
    void *data = dtype == OPIPE_FLOAT ? (void *)floats[i] : (void *)halves[i];
    in[i] = i < 3 ? bt_value(&m->g, OPIPE_VALUE_INPUT, dtype, data, BT_SHAPE(ROWS, WIDE))
                  : bt_value(&m->g, OPIPE_VALUE_INPUT, dtype, data, BT_SHAPE(WIDE));
  }
  m->a = in[0], m->b = in[1], m->c = in[2], m->row = in[3], m->more_row = in[4];
  if (which < SUM_AND_NORM)
    make_gradients(m, which);
  else if (which < GATE_SWISH)
    make_norms(m, which);
  else
    make_gates(m, which);
}

/* Steps of the program; its outputs are where the graph says. */
static uint32_t run_graph(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                          uint32_t flags) {
  bt_run run;
  ct_run(t, device, g, flags, 1, &run);
  const uint32_t n = run.info.n_kernels;
  bt_release(t, &run);
  return n;
}

static void test_rows_do_along(void) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16};
  ct_backend b;
  opipe_device *device = NULL;
  maker m;
  CT_OPEN(&b);
  draw();
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none,norm_sums=0", 1, 0, &device, &err), &err);
  for (uint32_t i = 0; i < 2 * CASES; ++i) {
    const form which = (form)(i / 2);
    float y[3][OUTPUTS][CELLS];
    memset(y, 0, sizeof y);
    for (int alone = 0; alone < 2; ++alone) {
      make_graph(&m, which, types[i % 2], y[alone]);
      const uint32_t flags = OPIPE_COMPILE_POISON | (alone ? (uint32_t)OPIPE_COMPILE_NO_FUSE : 0u);
      const uint32_t n = run_graph(b.base.table, device, &m.g, flags);
      OPI_ASSERT_INT(n, alone ? wanted[which].alone : wanted[which].steps);
    }
    make_graph(&m, which, types[i % 2], y[2]);
    (void)run_graph(b.base.table, device, &m.g, OPIPE_COMPILE_CHECK_FINITE);
    OPI_ASSERT(memcmp(y[0], y[1], sizeof y[0]) == 0);
    OPI_ASSERT(memcmp(y[0], y[2], sizeof y[0]) == 0);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda rows along", OPI_TEST(test_rows_do_along))
