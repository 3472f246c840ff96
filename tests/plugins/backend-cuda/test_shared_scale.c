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

/* crossed: both gradients of the scale before both of X, which stand the other way round. */
static void make_graph(bt_graph *g, bool crossed) {
  uint32_t in[INPUTS], out[2];
  bt_init(g);
  for (int i = 0; i < INPUTS; ++i)
    in[i] = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, numbers[i], BT_SHAPE(ROWS, WIDE));
  const uint32_t scale = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, ones, BT_SHAPE(WIDE));
  for (int i = 0; i < 2; ++i)
    out[i] = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, results[i], BT_SHAPE(ROWS, WIDE));
  for (int i = 0; i < 2 && crossed; ++i)
    add_scale(g, in[2 * i], in[2 * i + 1]);
  for (int k = 0; k < 2; ++k) {
    const int i = crossed ? 1 - k : k;
    (void)bt_node(g, "", BT_IN(in[2 * i], in[2 * i + 1], scale), BT_OUT(out[i]));
    (void)of_norm(g, "LayerNormalizationGrad");
    if (!crossed)
      add_scale(g, in[2 * i], in[2 * i + 1]);
  }
}

/* The scale's gradient after some runs; launches of one. */
static uint32_t run_graph(const opipe_backend *t, opipe_device *device, bool crossed,
                          uint32_t flags, float *out) {
  bt_graph g;
  bt_run run;
  opipe_event *event = NULL;
  make_graph(&g, crossed);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, OPIPE_COMPILE_OWNED | flags, &run, &err), &err);
  for (int i = 0; i < RUNS; ++i)
    OPI_ASSERT_OK(bt_step(t, &g, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(30000000000), &err), &err);
  OPI_ASSERT_OK(t->params_read(run.gradients, 0, out, WIDE * sizeof(float), &err), &err);
  t->event_destroy(event);
  bt_release(t, &run);
  return run.info.n_kernels;
}

static void test_order_stays(void) {
  ct_backend b;
  opipe_device *device = NULL;
  float along[WIDE], apart[WIDE];
  draw();
  if (!ct_open(&b))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  for (int crossed = 0; crossed < 2; ++crossed) {
    const uint32_t n = run_graph(b.base.table, device, crossed != 0, 0, along);
    const uint32_t n_apart =
        run_graph(b.base.table, device, crossed != 0, OPIPE_COMPILE_NO_FUSE, apart);
    OPI_ASSERT(n < n_apart);
    OPI_ASSERT(memcmp(along, apart, sizeof along) == 0);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("a scale that two norms share", OPI_TEST(test_order_stays))
