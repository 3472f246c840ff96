/* SPDX-License-Identifier: Apache-2.0 */
/* Attentions written by hand: masks of other types than the queries, masks that are known, what
 * must stay as it is. Each fused graph is run against the unfused one.
 */
#include <math.h>

#include "tests/loader/fusion/models.h"
#include "tests/loader/graphs.h"

enum { B = 2, H = 3, S = 4, T = 6, D = 8 };

static uint32_t cast(test_graph *t, uint32_t x, uint32_t dtype) {
  const opipe_attr to = OPI_ATTR_I("to", (int64_t)dtype);
  uint32_t out;
  test_node(t, "Cast", 13, &x, 1, &to, 1, &out, 1);
  return out;
}

/* q [B, H, S, D] k^T, in `dtype`. */
static uint32_t product(test_graph *t, uint32_t dtype) {
  static const int64_t perm[4] = {0, 1, 3, 2}; /* the node points to it */
  const int64_t q_shape[4] = {B, H, S, D}, k_shape[4] = {B, H, T, D};
  const uint32_t q = test_input(t, "q", dtype, q_shape, 4),
                 k = test_input(t, "k", dtype, k_shape, 4);
  const opipe_attr attr = OPI_ATTR_N("perm", perm, 4);
  uint32_t turned;
  test_node(t, "Transpose", 13, &k, 1, &attr, 1, &turned, 1);
  return test_op(t, "MatMul", q, turned);
}

static uint32_t softmax(test_graph *t, uint32_t x) {
  const opipe_attr axis = OPI_ATTR_I("axis", -1);
  uint32_t out;
  test_node(t, "Softmax", 13, &x, 1, &axis, 1, &out, 1);
  return out;
}

static void finish(test_graph *t, uint32_t weights, uint32_t dtype) {
  const int64_t v_shape[4] = {B, H, T, D};
  test_output(t, test_op(t, "MatMul", weights, test_input(t, "v", dtype, v_shape, 4)));
}

static opipe_status bind_graph(test_graph *t, uint32_t flags, opi_bound **out_bound,
                               opipe_error *err) {
  const opi_bind_options options = {
      .flags = flags, .evaluator = test_backend_evaluator(), .allocator = opi_allocator_system()};
  return opi_bind(&t->model, &options, out_bound, err);
}

/* Both graphs give the same within the tolerance; the fused one has `attentions` with the causal
 * flag as wanted. */
static void check(test_graph *t, uint32_t attentions, bool causal, bool masked, double tolerance) {
  opi_bound *fused = NULL, *plain = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  void *a[1], *b[1];
  test_model none;
  memset(&none, 0, sizeof(none));
  if (OPI_ASSERT_OK(bind_graph(t, 0, &fused, &err), &err) &&
      OPI_ASSERT_OK(bind_graph(t, OPI_BIND_NO_FUSE, &plain, &err), &err)) {
    const opi_graph *g = fused->graph;
    OPI_ASSERT_INT(fused->patterns[OPI_PATTERN_ATTENTION], attentions);
    for (uint32_t n = 0; n < g->n_nodes; n++) {
      if (strcmp(g->nodes[n].op, "Attention") != 0)
        continue;
      OPI_ASSERT_INT(opi_attr_int(&g->nodes[n], "is_causal", -1), causal);
      OPI_ASSERT_INT(opi_node_in(&g->nodes[n], 3) != OPIPE_NONE, masked);
    }
    if (OPI_ASSERT_OK(test_run(&none, fused, test_backend_evaluator(), &fused->arena, a, &err),
                      &err) &&
        OPI_ASSERT_OK(test_run(&none, plain, test_backend_evaluator(), &plain->arena, b, &err),
                      &err)) {
      const opi_value *y = &g->values[g->outputs[0]];
      OPI_ASSERT_CLOSE(a[0], b[0], (size_t)(B * H * S * D), y->dtype, tolerance);
    }
  }
  opi_bound_free(fused);
  opi_bound_free(plain);
}

/* Half types, scores and mask in float32: the mask's numbers keep their range. */
static void test_mask_of_another_type(void) {
  const int64_t shape[4] = {B, 1, S, T};
  test_graph t;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  test_open(&t);
  const uint32_t scores = cast(&t, product(&t, OPIPE_FLOAT16), OPIPE_FLOAT);
  const uint32_t added = test_op(&t, "Add", scores, test_input(&t, "mask", OPIPE_FLOAT, shape, 4));
  finish(&t, cast(&t, softmax(&t, added), OPIPE_FLOAT16), OPIPE_FLOAT16);
  check(&t, 1, false, true, 2e-3);
  test_close(&t);
}

/* A known mask [S, T] of zeros and `low`; keep(i, j) says where the zeros are. */
static uint32_t known_mask(test_graph *t, float low, int64_t ahead) {
  const int64_t shape[2] = {S, T};
  float mask[S * T];
  for (int64_t i = 0; i < S * T; i++)
    mask[i] = i % T <= i / T + ahead ? 0.0f : low;
  return test_known(t, "mask", OPIPE_FLOAT, shape, 2, mask);
}

static void check_known(float low, int64_t ahead, bool causal, bool masked) {
  test_graph t;
  test_open(&t);
  const uint32_t scores = product(&t, OPIPE_FLOAT);
  finish(&t, softmax(&t, test_op(&t, "Add", known_mask(&t, low, ahead), scores)), OPIPE_FLOAT);
  check(&t, 1, causal, masked, 1e-5);
  test_close(&t);
}

static void test_known_masks(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  check_known(-INFINITY, 0, true, false); /* causal */
  check_known(-10000.0f, 0, true, false);
  check_known(-3.4e38f, 1, false, true);   /* one key further: no causal mask */
  check_known(-10000.0f, T, false, false); /* keeps everything */
  check_known(-1.5f, 0, false, true);      /* a bias, no mask */
  check_known(-10000.0f, -1, false, true); /* row 0 has no key: added as it is */
}

/* The weights are an output, or the scores are read twice: nothing may be taken away. */
static void test_what_is_needed_stays(void) {
  test_graph t;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  test_open(&t);
  uint32_t weights = softmax(&t, product(&t, OPIPE_FLOAT));
  finish(&t, weights, OPIPE_FLOAT);
  test_output(&t, weights);
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (OPI_ASSERT_OK(bind_graph(&t, 0, &bound, &err), &err))
    OPI_ASSERT_INT(bound->patterns[OPI_PATTERN_ATTENTION], 0);
  opi_bound_free(bound);
  test_close(&t);
  test_open(&t);
  const uint32_t scores = product(&t, OPIPE_FLOAT);
  weights = softmax(&t, scores);
  finish(&t, test_op(&t, "Mul", weights, scores), OPIPE_FLOAT);
  check(&t, 0, false, false, 1e-5);
  test_close(&t);
}

OPI_TEST_MAIN("fusion of attention", OPI_TEST(test_mask_of_another_type),
              OPI_TEST(test_known_masks), OPI_TEST(test_what_is_needed_stays))
