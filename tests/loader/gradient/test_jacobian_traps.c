/* SPDX-License-Identifier: Apache-2.0 */
/* Traps of real models for gradients: rows that are masked everywhere, ties, places where a
 * function has a corner, values with several uses, one constant in several roles; and that the
 * comparison itself finds a gradient that is wrong.
 */
#include "tests/loader/gradient/jacobian.h"

/* Gradient of parameter `name` of a graph whose output is the scalar `loss`; in `arena`. */
static const double *gradient_of(test_graph *t, const char *name, opi_arena *arena) {
  static const opi_train_glob all = {"*", true};
  opi_train_glob globs[2] = {all, {name, true}};
  const opi_loss how = {.kind = OPI_LOSS_OUTPUT, .output = "loss"};
  const opi_gradient_options options = {.loss = &how,
                                        .globs = globs,
                                        .n_globs = 2,
                                        .compute = OPIPE_FLOAT,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  opi_bind_options bind = test_options();
  opi_bound *bound = NULL;
  opi_training *training = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const void *out = NULL;
  double *copy = NULL;
  bind.flags |= OPI_BIND_KEEP_PARAMETERS;
  opipe_status status = opi_bind(&t->model, &bind, &bound, &err);
  if (status >= 0)
    status = opi_gradient_build(bound, &options, &training, &err);
  for (uint32_t p = 0; status >= 0 && p < training->n_params; ++p) {
    if (strcmp(training->params[p].name, name) != 0)
      continue;
    for (uint32_t i = 0; status >= 0 && i < training->params[p].n_gradients; ++i) {
      const uint32_t v = jac_gradient(training, &training->params[p], i);
      const uint64_t n_bytes = training->graph->values[v].n_bytes;
      if (copy == NULL)
        copy = opi_arena_alloc(arena, n_bytes);
      status = jac_run(training->graph, arena, &v, 1, &out, &err);
      for (uint64_t k = 0; status >= 0 && k < n_bytes / 8; ++k)
        copy[k] += ((const double *)out)[k];
    }
  }
  OPI_ASSERT_OK(status, &err);
  opi_training_free(training);
  opi_bound_free(bound);
  return copy;
}

static uint32_t doubles(test_graph *t, const char *name, const int64_t *shape, uint32_t rank,
                        const double *data) {
  return test_known(t, name, OPIPE_DOUBLE, shape, rank, data);
}

static void sum_is_loss(test_graph *t, uint32_t x) {
  const opipe_attr keep = OPI_ATTR_I("keepdims", 0);
  uint32_t loss;
  test_node(t, "ReduceSum", 13, &x, 1, &keep, 1, &loss, 1);
  test_rename(t, loss, "loss");
  test_output(t, loss);
}

/* op(a, b) summed: gradient of a against `wanted`. b NULL: one input. */
static void check_two(const char *op, const double *a, const double *b, const double *wanted,
                      uint32_t n) {
  const int64_t shape[1] = {n};
  test_graph t;
  opi_arena arena;
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const uint32_t x = doubles(&t, "a", shape, 1, a);
  const uint32_t y = b != NULL ? doubles(&t, "b", shape, 1, b) : OPIPE_NONE;
  sum_is_loss(&t, test_op(&t, op, x, y));
  const double *found = gradient_of(&t, "a", &arena);
  for (uint32_t i = 0; found != NULL && i < n; ++i) {
    (void)opi_test_check(fabs(found[i] - wanted[i]) < 1e-12, __FILE__, __LINE__, false,
                         "%s at %g: %g, wanted %g", op, a[i], found[i], wanted[i]);
  }
  OPI_ASSERT(found != NULL);
  opi_arena_release(&arena);
  test_close(&t);
}

static void test_wrong_gradients_are_found(void) {
  jac_case c = {
      .text = "MatMul@13 d[2,3] d[3,2] -> y", .seed = 1, .dtype = OPIPE_DOUBLE, .bend = 1e-5};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  jac_try(&c);
  OPI_ASSERT(strstr(c.why, "found") != NULL);
  OPI_ASSERT_INT(c.n_compared, 12);
  jac_free(&c);
}

static void test_ties_share_equally(void) {
  static const double a[4] = {1, 2, 3, -1}, b[4] = {1, 3, 2, -1};
  static const double largest[4] = {0.5, 0, 1, 0.5}, smallest[4] = {0.5, 1, 0, 0.5};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  check_two("Max", a, b, largest, 4);
  check_two("Min", a, b, smallest, 4);
}

static void test_corners(void) {
  static const double at[3] = {-2, 0, 3};
  static const double absolute[3] = {-1, 0, 1}, relu[3] = {0, 0, 1};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  check_two("Abs", at, NULL, absolute, 3);
  check_two("Relu", at, NULL, relu, 3);
}

/* Clip passes the gradient at its bounds and stops it beyond; Sqrt at 0 gives infinity. */
static void test_bounds(void) {
  static const double x[5] = {-1, -0.5, 0, 0.5, 1}, low = -0.5, high = 0.5, zero[1] = {0};
  static const double passed[5] = {0, 1, 1, 1, 0};
  const int64_t shape[1] = {5}, single[1] = {1};
  test_graph t;
  opi_arena arena;
  uint32_t in[3], y;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  in[0] = doubles(&t, "x", shape, 1, x);
  in[1] = doubles(&t, "low", NULL, 0, &low);
  in[2] = doubles(&t, "high", NULL, 0, &high);
  test_node(&t, "Clip", 13, in, 3, NULL, 0, &y, 1);
  sum_is_loss(&t, y);
  const double *found = gradient_of(&t, "x", &arena);
  for (int k = 0; found != NULL && k < 5; ++k)
    OPI_ASSERT(found[k] == passed[k]);
  OPI_ASSERT(found != NULL);
  test_close(&t);
  test_open(&t);
  sum_is_loss(&t, test_op(&t, "Sqrt", doubles(&t, "x", single, 1, zero), OPIPE_NONE));
  found = gradient_of(&t, "x", &arena);
  OPI_ASSERT(found != NULL && isinf(found[0]));
  opi_arena_release(&arena);
  test_close(&t);
}

/* x read twice by one node, and by several. */
static void test_several_uses(void) {
  static const double x[2] = {3, -2}, twice[2] = {6, -4}, one[2] = {1, 1}, none[2] = {0, 0};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  const int64_t shape[1] = {2};
  const struct {
    const char *op;
    const double *wanted;
  } cases[] = {{"Mul", twice}, {"Sub", none}, {"Div", none}, {"Max", one}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    test_graph t;
    opi_arena arena;
    test_open(&t);
    opi_arena_init(&arena, opi_allocator_system(), 0);
    const uint32_t v = doubles(&t, "x", shape, 1, x);
    sum_is_loss(&t, test_op(&t, cases[i].op, v, v));
    const double *found = gradient_of(&t, "x", &arena);
    for (int k = 0; found != NULL && k < 2; ++k)
      OPI_ASSERT(fabs(found[k] - cases[i].wanted[k]) < 1e-12);
    OPI_ASSERT(found != NULL);
    opi_arena_release(&arena);
    test_close(&t);
  }
}

/* softmax(x + mask) with a row of -inf, repaired by Where(IsNaN(p), 0, p) as exporters do: the row
 * gives 0, never NaN. */
static void test_masked_rows_give_no_nan(void) {
  static const double x[4] = {0.3, -0.4, 0.1, 0.7};
  const double mask[4] = {-(double)INFINITY, -(double)INFINITY, 0, 0}, v[2] = {2, -1};
  const int64_t square[2] = {2, 2}, column[2] = {2, 1};
  test_graph t;
  opi_arena arena;
  uint32_t p, in[3];
  const double nothing = 0;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const uint32_t scores = doubles(&t, "x", square, 2, x);
  p = test_op(&t, "Add", scores, doubles(&t, "mask", square, 2, mask));
  p = test_op(&t, "Softmax", p, OPIPE_NONE);
  in[0] = test_op(&t, "IsNaN", p, OPIPE_NONE);
  in[1] = doubles(&t, "nothing", NULL, 0, &nothing);
  in[2] = p;
  test_node(&t, "Where", 16, in, 3, NULL, 0, &p, 1);
  sum_is_loss(&t, test_op(&t, "MatMul", p, doubles(&t, "v", column, 2, v)));
  const double *found = gradient_of(&t, "x", &arena);
  OPI_ASSERT_FATAL(found != NULL);
  OPI_ASSERT(found[0] == 0 && found[1] == 0);
  OPI_ASSERT(isfinite(found[2]) && found[2] > 0.1 && fabs(found[2] + found[3]) < 1e-12);
  opi_arena_release(&arena);
  test_close(&t);
}

/* One table of ones scales two norms and is added: merged initializers have one gradient, the sum.
 */
static void test_one_constant_in_several_roles(void) {
  static const double x[6] = {0.3, -0.4, 0.1, 0.7, 0.2, -0.9}, ones[3] = {1, 1, 1};
  const int64_t rows[2] = {2, 3}, width[1] = {3};
  test_graph t;
  opi_arena arena;
  uint32_t y, in[3];
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  in[0] = doubles(&t, "x", rows, 2, x);
  in[1] = in[2] = doubles(&t, "ones", width, 1, ones);
  test_node(&t, "LayerNormalization", 17, in, 3, NULL, 0, &y, 1);
  y = test_op(&t, "Add", y, in[1]);
  sum_is_loss(&t, y);
  const double *found = gradient_of(&t, "ones", &arena);
  OPI_ASSERT_FATAL(found != NULL);
  double total = 0;
  for (int k = 0; k < 3; ++k)
    total += found[k];
  OPI_ASSERT(fabs(total - 12) < 1e-9); /* the normalised rows add up to 0: 2 * 3 twice */
  OPI_ASSERT(fabs(found[0] - 4) > 1e-3);
  opi_arena_release(&arena);
  test_close(&t);
}

/* Dropout drops the gradient where it dropped the value, with one scale. */
static void test_dropout_has_one_mask(void) {
  enum { N = 64 };
  double x[N];
  const double ratio = 0.25;
  const uint8_t trains = 1;
  const int64_t shape[2] = {4, N / 4};
  const opi_train_glob all = {"*", true};
  const opi_loss how = {.kind = OPI_LOSS_OUTPUT, .output = "loss"};
  const opi_gradient_options options = {.loss = &how,
                                        .globs = &all,
                                        .n_globs = 1,
                                        .compute = OPIPE_FLOAT,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  opi_bind_options bind = test_options();
  opi_bound *bound = NULL;
  opi_training *training = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_graph t;
  opi_arena arena;
  uint32_t in[3], y, wanted[2] = {OPIPE_NONE, OPIPE_NONE};
  const void *out[2];
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  for (int i = 0; i < N; ++i)
    x[i] = 1 + i;
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  in[0] = doubles(&t, "x", shape, 2, x);
  in[1] = doubles(&t, "ratio", NULL, 0, &ratio);
  in[2] = test_known(&t, "trains", OPIPE_BOOL, NULL, 0, &trains);
  test_node(&t, "Dropout", 13, in, 3, NULL, 0, &y, 1);
  sum_is_loss(&t, y);
  bind.flags |= OPI_BIND_KEEP_PARAMETERS;
  bind.dropout = OPI_DROPOUT_GRAPH;
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &bind, &bound, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_gradient_build(bound, &options, &training, &err), &err);
  for (uint32_t n = training->graph->n_nodes; n-- > 0;) {
    if (strcmp(training->graph->nodes[n].op, "Dropout") == 0)
      wanted[0] = training->graph->nodes[n].out[0];
  }
  for (uint32_t p = 0; p < training->n_params; ++p) {
    if (strcmp(training->params[p].name, "x") == 0)
      wanted[1] = jac_gradient(training, &training->params[p], 0);
  }
  OPI_ASSERT_FATAL(wanted[0] != OPIPE_NONE && wanted[1] != OPIPE_NONE && wanted[0] != wanted[1]);
  OPI_ASSERT_OK_FATAL(jac_run(training->graph, &arena, wanted, 2, out, &err), &err);
  const double *kept = out[0], *dx = out[1];
  int n_kept = 0;
  for (int i = 0; i < N; ++i) {
    OPI_ASSERT(fabs(dx[i] - (kept[i] == 0 ? 0 : 1 / 0.75)) < 1e-12);
    OPI_ASSERT(fabs(kept[i] - x[i] * dx[i]) < 1e-9);
    n_kept += kept[i] != 0;
  }
  OPI_ASSERT(n_kept > N / 2 && n_kept < N);
  opi_training_free(training);
  opi_bound_free(bound);
  opi_arena_release(&arena);
  test_close(&t);
}

/* cos and sin of a RotaryEmbedding are no parameters, unless named. */
static void test_rotary_tables_are_buffers(void) {
  static const double x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, table[4] = {0.5, 0.6, 0.7, 0.8};
  const int64_t shape[4] = {1, 1, 2, 4}, half[3] = {1, 2, 2};
  const opi_train_glob named_one = {"cos", true};
  const opi_loss how = {.kind = OPI_LOSS_OUTPUT, .output = "loss"};
  opi_gradient_options options = {.loss = &how,
                                  .compute = OPIPE_FLOAT,
                                  .evaluator = test_backend_evaluator(),
                                  .allocator = opi_allocator_system()};
  opi_bind_options bind = test_options();
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_graph t;
  uint32_t in[3], y;
  test_open(&t);
  in[0] = doubles(&t, "x", shape, 4, x);
  in[1] = doubles(&t, "cos", half, 3, table);
  in[2] = doubles(&t, "sin", half, 3, table);
  test_node(&t, "RotaryEmbedding", 23, in, 3, NULL, 0, &y, 1);
  sum_is_loss(&t, y);
  bind.flags |= OPI_BIND_KEEP_PARAMETERS;
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &bind, &bound, &err), &err);
  for (int named = 0; named < 2; ++named) {
    opi_training *training = NULL;
    options.globs = named != 0 ? &named_one : NULL;
    options.n_globs = named != 0 ? 1 : 0;
    OPI_ASSERT_OK_FATAL(opi_gradient_build(bound, &options, &training, &err), &err);
    OPI_ASSERT_INT(training->n_params, 3);
    for (uint32_t p = 0; p < training->n_params; ++p) {
      const bool is_x = strcmp(training->params[p].name, "x") == 0;
      const bool is_cos = strcmp(training->params[p].name, "cos") == 0;
      OPI_ASSERT_INT(training->params[p].why, is_x                   ? OPI_TRAINED
                                              : is_cos && named != 0 ? OPI_TRAINED_BY_GLOB
                                                                     : OPI_NOT_BUFFER);
    }
    opi_training_free(training);
  }
  opi_bound_free(bound);
  test_close(&t);
}

/* float -> int -> float stops; the direct path stays. */
static void test_integer_cast_stops(void) {
  static const double x[2] = {1.6, -2.7};
  const int64_t shape[1] = {2};
  const opipe_attr to_int = OPI_ATTR_I("to", OPIPE_INT64), back = OPI_ATTR_I("to", OPIPE_DOUBLE);
  test_graph t;
  opi_arena arena;
  uint32_t whole, v;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  test_open(&t);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const uint32_t p = doubles(&t, "x", shape, 1, x);
  test_node(&t, "Cast", 13, &p, 1, &to_int, 1, &whole, 1);
  test_node(&t, "Cast", 13, &whole, 1, &back, 1, &v, 1);
  sum_is_loss(&t, test_op(&t, "Mul", p, v));
  const double *found = gradient_of(&t, "x", &arena);
  OPI_ASSERT_FATAL(found != NULL);
  OPI_ASSERT(found[0] == 1 && found[1] == -2);
  opi_arena_release(&arena);
  test_close(&t);
}

OPI_TEST_MAIN("traps of gradients", OPI_TEST(test_wrong_gradients_are_found),
              OPI_TEST(test_ties_share_equally), OPI_TEST(test_corners), OPI_TEST(test_bounds),
              OPI_TEST(test_rotary_tables_are_buffers), OPI_TEST(test_dropout_has_one_mask),
              OPI_TEST(test_several_uses), OPI_TEST(test_masked_rows_give_no_nan),
              OPI_TEST(test_one_constant_in_several_roles), OPI_TEST(test_integer_cast_stops))
