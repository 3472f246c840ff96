/* SPDX-License-Identifier: Apache-2.0 */
/* A scale that two norms share: what both add to its gradient keeps its order, whatever goes along
 * with what. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROWS = 40, WIDE = 24, RUNS = 3, INPUTS = 4 };

static float numbers[INPUTS][ROWS * WIDE], results[2][ROWS * WIDE];
static const float ones[WIDE] = {1};

static void draw(void) {
  uint32_t seed = 3;
  for (int i = 0; i < INPUTS; ++i) {
    for (int k = 0; k < ROWS * WIDE; ++k) {
      seed = seed * 1664525u + 1013904223u;
      numbers[i][k] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (i == 2 ? 1000.0f : 1.0f);
    }
  }
}

static opipe_node *of_norm(bt_graph *g, const char *op) {
  opipe_node *node = &g->nodes[g->graph.n_nodes - 1];
  node->op = op;
  node->domain = "opipe";
  node->pass = OPIPE_PASS_BACKWARD;
  bt_int(g, node, "axis", 1);
  return node;
}

static void add_scale(bt_graph *g, uint32_t dy, uint32_t x) {
  const uint32_t made = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(WIDE));
  (void)bt_node(g, "", BT_IN(dy, x), BT_OUT(made));
  (void)of_norm(g, "LayerNormalizationGradScale");
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(WIDE));
  g->values[sum].slot = 0;
  bt_node(g, "Accumulate", BT_IN(made), BT_OUT(sum))->domain = "opipe";
}

typedef enum form {
  PAIRS,   /* each norm's gradients behind each other */
  CROSSED, /* both gradients of the scale before both of X, which stand the other way round */
  AROUND,  /* both of X between those of the scale: the second norm's, and the first one's */
  FIRST,   /* the first norm alone */
  SECOND
} form;

static void add_x(bt_graph *g, const uint32_t *in, int norm, uint32_t scale) {
  const uint32_t out =
      bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, results[norm], BT_SHAPE(ROWS, WIDE));
  (void)bt_node(g, "", BT_IN(in[2 * norm], in[2 * norm + 1], scale), BT_OUT(out));
  (void)of_norm(g, "LayerNormalizationGrad");
}

/* Digits: 0 and 1 the norms' gradients of X, 2 and 3 those of the scale. */
static void make_graph(bt_graph *g, form which) {
  static const char *const orders[] = {
      [PAIRS] = "0213", [CROSSED] = "2310", [AROUND] = "3012", [FIRST] = "02", [SECOND] = "13"};
  uint32_t in[INPUTS];
  bt_init(g);
  for (int i = 0; i < INPUTS; ++i)
    in[i] = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, numbers[i], BT_SHAPE(ROWS, WIDE));
  const uint32_t scale = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, ones, BT_SHAPE(WIDE));
  for (const char *at = orders[which]; *at != '\0'; ++at) {
    const int norm = (*at - '0') % 2;
    if (*at < '2')
      add_x(g, in, norm, scale);
    else
      add_scale(g, in[2 * norm], in[2 * norm + 1]);
  }
}

/* The scale's gradient after some runs; launches of one. */
static uint32_t run_graph(const opipe_backend *t, opipe_device *device, form which, int runs,
                          uint32_t flags, float *out) {
  bt_graph g;
  bt_run run;
  make_graph(&g, which);
  ct_run(t, device, &g, OPIPE_COMPILE_OWNED | flags, runs, &run);
  OPI_ASSERT_OK(t->params_read(run.gradients, 0, out, WIDE * sizeof(float), &err), &err);
  bt_release(t, &run);
  return run.info.n_kernels;
}

/* The result of adding the sums of each norm in the order of the nodes. */
static void add_in_order(const opipe_backend *t, opipe_device *device, form which, float *out) {
  float sums[2][WIDE];
  (void)run_graph(t, device, FIRST, 1, 0, sums[0]);
  (void)run_graph(t, device, SECOND, 1, 0, sums[1]);
  for (int k = 0; k < WIDE; ++k) {
    out[k] = 0;
    for (int i = 0; i < 2 * RUNS; ++i)
      out[k] += sums[which == AROUND ? 1 - i % 2 : i % 2][k];
  }
}

static void test_order_stays(void) {
  static const char *const options[] = {"norm_sums=0", "norm_sums=1"};
  ct_backend b;
  float along[WIDE], apart[WIDE], wanted[WIDE];
  draw();
  if (!ct_open(&b))
    OPI_SKIP("%s", CT_WHY);
  for (int i = 0; i < 2; ++i) {
    opipe_device *device = NULL;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, options[i], 1, 0, &device, &err), &err);
    for (form which = PAIRS; which <= AROUND; ++which) {
      const uint32_t n = run_graph(b.base.table, device, which, RUNS, 0, along);
      const uint32_t n_apart =
          run_graph(b.base.table, device, which, RUNS, OPIPE_COMPILE_NO_FUSE, apart);
      OPI_ASSERT(n < n_apart);
      OPI_ASSERT(i != 0 || memcmp(along, apart, sizeof along) == 0);
      add_in_order(b.base.table, device, which, wanted);
      /* in other forms one of them is made by itself, in an order of its own with norm_sums=1 */
      OPI_ASSERT((i != 0 && which != PAIRS) || memcmp(along, wanted, sizeof along) == 0);
    }
    b.base.table->device_close(device);
  }
  bt_close(&b.base);
}

OPI_TEST_MAIN("a scale that two norms share", OPI_TEST(test_order_stays))
