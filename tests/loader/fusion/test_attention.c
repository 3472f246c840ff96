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
    for (uint32_t n = 0; n < g->n_nodes; ++n) {
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
  for (int64_t i = 0; i < S * T; ++i)
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

/* The scale stands behind the mask: both are scaled. */
static void test_scale_behind_the_mask(void) {
  const int64_t shape[4] = {B, 1, S, T};
  const float two = 2.0f;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (int known = 0; known < 2; ++known) {
    test_graph t;
    test_open(&t);
    const uint32_t mask =
        known ? known_mask(&t, -10000.0f, 0) : test_input(&t, "mask", OPIPE_FLOAT, shape, 4);
    const uint32_t added = test_op(&t, "Add", product(&t, OPIPE_FLOAT), mask);
    const uint32_t down = test_known(&t, "two", OPIPE_FLOAT, NULL, 0, &two);
    finish(&t, softmax(&t, test_op(&t, "Div", added, down)), OPIPE_FLOAT);
    check(&t, 1, false, true, 1e-5);
    test_close(&t);
  }
}

/* A mask in the half type itself, with a row that has no key: the scores are lost beside it, in the
 * fused kernel too. Below the range of fp16 they are minus infinity. */
static void test_masked_rows_of_half_types(void) {
  static const struct {
    uint32_t dtype;
    float low;
  } masks[] = {{OPIPE_FLOAT16, -65504.0f},
               {OPIPE_FLOAT16, -10000.0f},
               {OPIPE_BFLOAT16, -10000.0f},
               {OPIPE_BFLOAT16, -3.38e38f}};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (size_t i = 0; i < OPI_COUNT(masks); ++i) {
    const uint32_t dtype = masks[i].dtype;
    test_graph t;
    test_open(&t);
    const uint32_t mask = cast(&t, known_mask(&t, masks[i].low, -1), dtype);
    finish(&t, softmax(&t, test_op(&t, "Add", product(&t, dtype), mask)), dtype);
    check(&t, 1, false, true, dtype == OPIPE_FLOAT16 ? 2e-3 : 2e-2);
    test_close(&t);
  }
}

/* Multi-query attention: one head of keys and of values, which the products repeat; of values
 * alone, they are expanded. */
static void test_one_key_head(void) {
  static const int64_t perm[4] = {0, 1, 3, 2};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (int64_t k_heads = 1; k_heads <= H; k_heads += H - 1) {
    const int64_t q_shape[4] = {B, H, S, D}, k_shape[4] = {B, k_heads, T, D},
                  v_shape[4] = {B, 1, T, D};
    const opipe_attr attr = OPI_ATTR_N("perm", perm, 4);
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t turned;
    test_open(&t);
    const uint32_t q = test_input(&t, "q", OPIPE_FLOAT, q_shape, 4),
                   k = test_input(&t, "k", OPIPE_FLOAT, k_shape, 4),
                   v = test_input(&t, "v", OPIPE_FLOAT, v_shape, 4);
    test_node(&t, "Transpose", 13, &k, 1, &attr, 1, &turned, 1);
    const uint32_t scores = test_op(&t, "MatMul", q, turned);
    const uint32_t masked = test_op(&t, "Add", scores, known_mask(&t, -3.4e38f, 0));
    test_output(&t, test_op(&t, "MatMul", softmax(&t, masked), v));
    check(&t, 1, true, false, 1e-5);
    if (OPI_ASSERT_OK(bind_graph(&t, 0, &bound, &err), &err))
      OPI_ASSERT_INT(test_count(bound->graph, "Expand"), k_heads != 1);
    opi_bound_free(bound);
    test_close(&t);
  }
}

/* x cos + Concat(-x[h:], x[:h]) sin in float32 around a half type; `back`: the sum goes back to it.
 */
static void check_rotary(uint32_t dtype, bool back) {
  static const int64_t half[2] = {D / 2, D / 2}, shape[4] = {B, H, S, D};
  float table[2][S * D];
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t parts[2], turned;
  for (int i = 0; i < S * D; ++i) {
    table[0][i] = cosf((float)(i / D) / (float)(1 + i % (D / 2)));
    table[1][i] = sinf((float)(i / D) / (float)(1 + i % (D / 2)));
  }
  test_open(&t);
  const uint32_t x = test_input(&t, "x", dtype, shape, 4);
  const uint32_t split[2] = {x, test_ints(&t, "half", half, 2)};
  const opipe_attr last = OPI_ATTR_I("axis", -1);
  test_node(&t, "Split", 18, split, 2, &last, 1, parts, 2);
  const uint32_t both[2] = {test_op(&t, "Neg", parts[1], OPIPE_NONE), parts[0]};
  test_node(&t, "Concat", 13, both, 2, &last, 1, &turned, 1);
  const uint32_t cosine = test_known(&t, "cos", OPIPE_FLOAT, &shape[2], 2, table[0]),
                 sine = test_known(&t, "sin", OPIPE_FLOAT, &shape[2], 2, table[1]);
  const uint32_t sum = test_op(&t, "Add", test_op(&t, "Mul", cast(&t, x, OPIPE_FLOAT), cosine),
                               test_op(&t, "Mul", cast(&t, turned, OPIPE_FLOAT), sine));
  test_output(&t, back ? cast(&t, sum, dtype) : sum);
  check(&t, 0, false, false, dtype == OPIPE_FLOAT16 ? 2e-3 : 2e-2);
  if (OPI_ASSERT_OK(bind_graph(&t, 0, &bound, &err), &err)) {
    OPI_ASSERT_INT(bound->patterns[OPI_PATTERN_ROTARY], 1);
    OPI_ASSERT_INT(bound->graph->n_nodes, back ? 1 : 2);
  }
  opi_bound_free(bound);
  test_close(&t);
}

static void test_rotary_behind_casts(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  check_rotary(OPIPE_BFLOAT16, true);
  check_rotary(OPIPE_FLOAT16, true);
  check_rotary(OPIPE_BFLOAT16, false);
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
              OPI_TEST(test_known_masks), OPI_TEST(test_scale_behind_the_mask),
              OPI_TEST(test_masked_rows_of_half_types), OPI_TEST(test_one_key_head),
              OPI_TEST(test_rotary_behind_casts), OPI_TEST(test_what_is_needed_stays))
