/* SPDX-License-Identifier: Apache-2.0 */
/* Dimensions: expressions, what is given, what follows, defaults, and what is refused with both
 * numbers. */
#include "loader/passes/private.h"
#include "tests/loader/graphs.h"

static bool lookup(const void *ctx, const char *name, uint32_t id, int64_t *out_value) {
  (void)ctx, (void)id;
  if (strcmp(name, "s1") == 0)
    *out_value = 17;
  if (strcmp(name, "batch-size") == 0 || strcmp(name, "a.b") == 0)
    *out_value = 3;
  return strcmp(name, "missing") != 0;
}

static opi_expr *parse(opi_arena *arena, const char *text) {
  opi_expr *expr = NULL;
  return opi_expr_parse(arena, text, &expr, NULL) >= 0 ? expr : NULL;
}

static void test_expressions(void) {
  static const struct {
    const char *text;
    int64_t value;
  } rows[] = {{"(((s1 - 1)//8)) + 1", 3},
              {"2*s1", 34},
              {"s1 + s1", 34},
              {"-s1 + 20", 3},
              {"s1 % 5", 2},
              {"(0-s1)//4", -5},
              {"Max(1, s1, 4)", 17},
              {"min(s1,2)*3", 6},
              {"batch-size", 3},
              {"batch-size*2", 6},
              {"a.b", 3},
              {"s1-1", 16},
              {"  7 ", 7}};
  static const char *const bad[] = {
      "s1 +", "(s1", "s1)", "s1 ** 2", "f(s1)", "", "1x", "s1 s1", "99999999999999999999"};
  opi_arena arena;
  int64_t value = 0;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    const opi_expr *e = parse(&arena, rows[i].text);
    const bool good = e != NULL && opi_expr_eval(e, lookup, NULL, &value);
    if (!opi_test_check(good, __FILE__, __LINE__, false, "'%s'", rows[i].text))
      continue;
    OPI_ASSERT_INT(value, rows[i].value);
  }
  for (size_t i = 0; i < OPI_COUNT(bad); ++i) {
    const bool refused = parse(&arena, bad[i]) == NULL;
    (void)opi_test_check(refused, __FILE__, __LINE__, false, "'%s' parses", bad[i]);
  }
  char deep[600];
  memset(deep, '(', sizeof(deep));
  deep[300] = '\0';
  OPI_ASSERT(parse(&arena, deep) == NULL);
  OPI_ASSERT(!opi_expr_eval(parse(&arena, "s1 // (s1 - 17)"), lookup, NULL, &value));
  OPI_ASSERT(!opi_expr_eval(parse(&arena, "missing"), lookup, NULL, &value));
  OPI_ASSERT(!opi_expr_eval(parse(&arena, "9223372036854775807 * s1"), lookup, NULL, &value));
  opi_arena_release(&arena);
}

/* ids [batch, seq], past [batch, 2, past_seq, 4], mask [batch, "past_seq + seq"], patches [(s -
 * 1)//4 + 1] */
static void add_decoder_inputs(test_graph *t) {
  const int64_t free_two[2] = {-1, -1}, past[4] = {-1, 2, -1, 4}, free_one[1] = {-1};
  const uint32_t ids = test_input(t, "ids", OPIPE_INT64, free_two, 2);
  const uint32_t kv = test_input(t, "past", OPIPE_FLOAT, past, 4);
  const uint32_t mask = test_input(t, "mask", OPIPE_INT64, free_two, 2);
  const uint32_t patches = test_input(t, "patches", OPIPE_FLOAT, free_one, 1);
  test_dim(t, ids, 0, "batch");
  test_dim(t, ids, 1, "seq");
  test_dim(t, kv, 0, "batch");
  test_dim(t, kv, 2, "past_seq");
  test_dim(t, mask, 0, "batch");
  test_dim(t, mask, 1, "past_seq + seq");
  test_dim(t, patches, 0, "(s - 1)//4 + 1");
  const uint32_t all[4] = {ids, kv, mask, patches};
  for (uint32_t i = 0; i < 4; ++i)
    test_output(t, test_op(t, "Identity", all[i], OPIPE_NONE));
}

static opipe_status solve(test_graph *t, const opi_bind_options *options, const char *name,
                          int64_t *out_value, opipe_error *err) {
  opi_dim_binding *dims = NULL;
  uint32_t n = 0;
  *out_value = -1;
  OPI_TRY(opi_solve_dims(&t->model, options, &t->arena, &dims, &n, err));
  for (uint32_t d = 0; d < n; ++d) {
    if (strcmp(dims[d].name, name) == 0)
      *out_value = dims[d].value;
  }
  return OPIPE_OK;
}

static void test_given_dims_and_what_follows(void) {
  test_graph t;
  int64_t value = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  test_open(&t);
  add_decoder_inputs(&t);
  const opi_dim_binding sum[] = {{"batch", 2}, {"seq", 3}, {"past_seq", 5}, {"s", 9}};
  options.dims = sum;
  options.n_dims = 4;
  OPI_ASSERT_OK(solve(&t, &options, "past_seq + seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 8);
  OPI_ASSERT_OK(solve(&t, &options, "(s - 1)//4 + 1", &value, &err), &err);
  OPI_ASSERT_INT(value, 3);
  const opi_dim_binding backwards[] = {
      {"batch", 2}, {"seq", 3}, {"past_seq + seq", 7}, {"patches.0", 4}};
  options.dims = backwards;
  OPI_ASSERT_OK(solve(&t, &options, "past_seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 4);
  const opi_dim_binding places[] = {{"ids.0", 2}, {"ids.1", 3}, {"mask.1", 3}, {"s", 1}};
  options.dims = places;
  OPI_ASSERT_OK(solve(&t, &options, "past_seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 0);
  test_close(&t);
}

static void test_refused_dims_name_both_numbers(void) {
  test_graph t;
  int64_t value = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  test_open(&t);
  add_decoder_inputs(&t);
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err,
                   "free dimensions need a number: 'batch' (input 'ids', axis 0), 'seq'");
  const opi_dim_binding strange[] = {{"batsch", 2}};
  options.dims = strange;
  options.n_dims = 1;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_NOTFOUND, &err,
                   "no free dimension 'batsch'; there are: 'batch', 'seq'");
  const opi_dim_binding twice[] = {{"batch", 2}, {"batch", 3}};
  options.dims = twice;
  options.n_dims = 2;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err,
                   "dimension 'batch' is 2 and 3");
  const opi_dim_binding negative[] = {{"batch", -2}};
  options.dims = negative;
  options.n_dims = 1;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err, "is -2");
  const opi_dim_binding apart[] = {{"seq", 3}, {"past_seq", 3}, {"past_seq + seq", 7}};
  options.dims = apart;
  options.n_dims = 3;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err,
                   "'past_seq + seq' is 7 and 6");
  const opi_dim_binding none[] = {{"seq", 9}, {"past_seq + seq", 7}};
  options.dims = none;
  options.n_dims = 2;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err,
                   "'past_seq + seq' cannot be 7 for any 'past_seq'");
  test_close(&t);
}

/* Dimensions that only pinned inputs have are known: they may be given again, and must be the
 * same. */
static void test_dims_of_pinned_inputs(void) {
  const int64_t data[12] = {0}, ids[2] = {2, 3}, patches[1] = {3};
  const opi_pin pins[2] = {
      {.input = "ids", .data = data, .shape = ids, .rank = 2, .dtype = OPIPE_INT64},
      {.input = "patches", .data = data, .shape = patches, .rank = 1, .dtype = OPIPE_FLOAT}};
  opi_dim_binding dims[] = {{"batch", 2}, {"past_seq", 5}, {"seq", 3}, {"(s - 1)//4 + 1", 3}};
  test_graph t;
  int64_t value = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  test_open(&t);
  add_decoder_inputs(&t);
  options.dims = dims;
  options.n_dims = 4;
  options.pins = pins;
  options.n_pins = 2;
  OPI_ASSERT_OK(solve(&t, &options, "past_seq + seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 8);
  dims[3].value = 4;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_INVALID, &err,
                   "is given as 4, but input 'patches' is pinned to a tensor of 3 along axis 0");
  dims[3].name = "patches.0";
  dims[3].value = 3;
  OPI_ASSERT_ERROR(solve(&t, &options, "seq", &value, &err), OPIPE_E_NOTFOUND, &err,
                   "no free dimension 'patches.0'");
  test_close(&t);
}

static void test_given_shapes(void) {
  test_graph t;
  int64_t value = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const int64_t ids[2] = {2, 3}, mask[2] = {2, 8}, past[4] = {2, 2, 5, 4}, bad[4] = {2, 3, 5, 4};
  const int64_t patches[1] = {2};
  test_open(&t);
  add_decoder_inputs(&t);
  opi_input_shape shapes[] = {
      {"ids", ids, 2}, {"mask", mask, 2}, {"past", past, 4}, {"patches", patches, 1}};
  options.shapes = shapes;
  options.n_shapes = 4;
  OPI_ASSERT_OK(solve(&t, &options, "past_seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 5);
  shapes[2].shape = bad;
  OPI_ASSERT_ERROR(solve(&t, &options, "past_seq", &value, &err), OPIPE_E_INVALID, &err,
                   "'past' has shape [-1, 2, -1, 4] in the file (-1: free), [2, 3, 5, 4] is given");
  shapes[2].rank = 3;
  OPI_ASSERT_ERROR(solve(&t, &options, "past_seq", &value, &err), OPIPE_E_INVALID, &err,
                   "[2, 3, 5]");
  test_close(&t);
}

static void test_defaults(void) {
  test_graph t;
  int64_t value = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  options.flags |= OPI_BIND_DEFAULTS;
  test_open(&t);
  add_decoder_inputs(&t);
  OPI_ASSERT_OK(solve(&t, &options, "batch", &value, &err), &err);
  OPI_ASSERT_INT(value, 1);
  OPI_ASSERT_OK(solve(&t, &options, "past_seq + seq", &value, &err), &err);
  OPI_ASSERT_INT(value, 16);
  OPI_ASSERT_OK(solve(&t, &options, "(s - 1)//4 + 1", &value, &err), &err);
  OPI_ASSERT_INT(value, 2); /* s takes 8 */
  test_close(&t);
}

/* out = scores [seq, past + seq] + mask [total]: the file does not say that total = past + seq. */
static void add_unwritten_total(test_graph *t, const char *total) {
  const int64_t free_two[2] = {-1, -1}, free_one[1] = {-1};
  uint32_t joined = OPIPE_NONE;
  const uint32_t past = test_input(t, "past", OPIPE_FLOAT, free_two, 2);
  const uint32_t fresh = test_input(t, "new", OPIPE_FLOAT, free_two, 2);
  const uint32_t mask = test_input(t, "attention_mask", OPIPE_FLOAT, free_one, 1);
  test_dim(t, past, 0, "batch");
  test_dim(t, past, 1, "past_len");
  test_dim(t, fresh, 0, "batch");
  test_dim(t, fresh, 1, "seq");
  test_dim(t, mask, 0, total);
  const uint32_t in[2] = {past, fresh};
  const opipe_attr axis = {.name = "axis", .i = 1, .kind = OPIPE_ATTR_INT};
  test_node(t, "Concat", 13, in, 2, &axis, 1, &joined, 1);
  test_output(t, test_op(t, "Add", joined, mask));
}

static void test_unwritten_sums_are_found(void) {
  static const char *const names[] = {"total", "seq"}; /* its own name, and a wrong one */
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    opi_bind_options options = test_options();
    options.flags |= OPI_BIND_DEFAULTS;
    test_open(&t);
    add_unwritten_total(&t, names[i]);
    OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
    OPI_ASSERT_INT(bound->graph->values[bound->graph->inputs[2]].shape[0], 16);
    OPI_ASSERT_INT(bound->graph->values[bound->graph->inputs[1]].shape[1], 8);
    /* The dimensions handed out bind again as given ones. */
    opi_bound *again = NULL;
    options.flags &= ~(uint32_t)OPI_BIND_DEFAULTS;
    options.dims = bound->dims;
    options.n_dims = bound->n_dims;
    OPI_ASSERT_OK(opi_bind(&t.model, &options, &again, &err), &err);
    OPI_ASSERT_INT(again->graph->values[again->graph->inputs[2]].shape[0], 16);
    opi_bound_free(again);
    opi_bound_free(bound);
    test_close(&t);
  }
}

/* The tables of a rotation are half as wide as its heads of 14, which no sum of defaults is; the
 * mask beside it still needs a sum. */
static void test_what_an_operator_needs_is_taken(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const int64_t heads[4] = {1, 2, -1, 14}, free_two[2] = {-1, -1}, one_free[2] = {1, -1};
  uint32_t in[4], turned = OPIPE_NONE;
  options.flags |= OPI_BIND_DEFAULTS;
  options.default_length = 8;
  test_open(&t);
  in[0] = test_input(&t, "x", OPIPE_FLOAT, heads, 4);
  in[1] = test_input(&t, "cos", OPIPE_FLOAT, free_two, 2);
  in[2] = test_input(&t, "sin", OPIPE_FLOAT, free_two, 2);
  in[3] = test_input(&t, "places", OPIPE_INT64, one_free, 2);
  test_dim(&t, in[0], 2, "seq");
  test_dim(&t, in[1], 1, "half");
  test_dim(&t, in[3], 1, "seq"); /* sin has no names */
  test_node(&t, "RotaryEmbedding", 23, in, 4, NULL, 0, &turned, 1);
  test_output(&t, turned);
  add_unwritten_total(&t, "total");
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  const opi_graph *g = bound->graph;
  OPI_ASSERT_INT(g->values[g->inputs[1]].shape[1], 7);
  OPI_ASSERT_INT(g->values[g->inputs[2]].shape[1], 7);
  OPI_ASSERT_INT(g->values[g->inputs[6]].shape[0], 16);
  opi_bound_free(bound);
  const opi_dim_binding given[1] = {{"half", 8}}; /* stays, though it does not fit */
  options.dims = given;
  options.n_dims = 1;
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err, "must be 7");
  test_close(&t);
}

static void test_no_default_fits(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const int64_t fixed[1] = {1000}, free_one[1] = {-1};
  options.flags |= OPI_BIND_DEFAULTS;
  test_open(&t);
  const uint32_t a = test_input(&t, "a", OPIPE_FLOAT, free_one, 1);
  const uint32_t b = test_input(&t, "b", OPIPE_FLOAT, fixed, 1);
  test_dim(&t, a, 0, "seq");
  const int64_t end = 1000;
  const uint32_t in[2] = {a, test_ints(&t, "shape", &end, 1)};
  uint32_t shaped = OPIPE_NONE;
  test_node(&t, "Reshape", 13, in, 2, NULL, 0, &shaped, 1);
  test_output(&t, test_op(&t, "Add", shaped, b));
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err,
                   "no default fits: bind the dimensions (tried seq=8): node");
  const opi_dim_binding given[1] = {{"seq", 20}}; /* no default is tried */
  options.dims = given;
  options.n_dims = 1;
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err, "node");
  CU_ASSERT_PTR_NULL(strstr(err.message, "default"));
  test_close(&t);
}

OPI_TEST_MAIN("dims", OPI_TEST(test_expressions), OPI_TEST(test_given_dims_and_what_follows),
              OPI_TEST(test_refused_dims_name_both_numbers), OPI_TEST(test_dims_of_pinned_inputs),
              OPI_TEST(test_given_shapes), OPI_TEST(test_defaults),
              OPI_TEST(test_unwritten_sums_are_found),
              OPI_TEST(test_what_an_operator_needs_is_taken), OPI_TEST(test_no_default_fits))
