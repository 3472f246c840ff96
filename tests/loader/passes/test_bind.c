/* SPDX-License-Identifier: Apache-2.0 */
/* Binding: names that survive, outputs, barriers, one report, folding and its limits, index limits,
 * values followed through expansion, and every allocation failing in turn.
 */
#include "tests/loader/graphs.h"

static const int64_t two[1] = {2}, two_three[2] = {2, 3};

/* Adds and multiplies int64 tensors of equal shape, and counts how often it was asked. */
static opipe_status tiny_run(void *ctx, const opipe_graph *graph, void *const *out_data,
                             opipe_error *err) {
  const opipe_node *node = &graph->nodes[0];
  const bool add = strcmp(node->op, "Add") == 0, mul = strcmp(node->op, "Mul") == 0;
  const opipe_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[node->n_in - 1]];
  if ((!add && !mul) || a->dtype != OPIPE_INT64)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "the tiny evaluator knows Add and Mul of int64");
  ++*(int *)ctx;
  for (uint64_t i = 0; i < a->n_bytes / 8; ++i) {
    const int64_t x = ((const int64_t *)a->data)[i], y = ((const int64_t *)b->data)[i];
    ((int64_t *)out_data[0])[i] = add ? x + y : x * y;
  }
  return OPIPE_OK;
}

static opi_bound *bind_or_end(test_graph *t, const opi_bind_options *options) {
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_bind(&t->model, options, &bound, &err), &err);
  return bound;
}

static void test_shape_arithmetic_is_folded(void) {
  test_graph t;
  int n_runs = 0;
  const opi_evaluator evaluator = {&n_runs, tiny_run};
  opi_bind_options options = test_options();
  options.evaluator = &evaluator;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two_three, 2);
  const int64_t factor[2] = {1, 2};
  const uint32_t shape = test_op(&t, "Shape", x, OPIPE_NONE);
  const uint32_t wide = test_op(&t, "Mul", shape, test_ints(&t, "factor", factor, 2)); /* 2, 6 */
  const uint32_t tiled = test_op(&t, "Tile", x, test_ints(&t, "repeats", factor, 2));
  test_output(&t, test_op(&t, "Neg", test_op(&t, "Reshape", tiled, wide), OPIPE_NONE));
  opi_bound *bound = bind_or_end(&t, &options);
  OPI_ASSERT_INT(n_runs, 1);
  OPI_ASSERT_INT(bound->graph->n_nodes, 2); /* Tile, Neg: the Reshape changes nothing */
  OPI_ASSERT_INT(bound->graph->values[bound->graph->outputs[0]].shape[1], 6);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_fold_limit_and_parameters(void) {
  for (int form = 0; form < 3; ++form) {
    test_graph t;
    int n_runs = 0;
    const opi_evaluator evaluator = {&n_runs, tiny_run};
    opi_bind_options options = test_options();
    options.evaluator = &evaluator;
    const int64_t many[1] = {form == 1 ? (9 << 20) : 4};
    test_open(&t);
    const uint32_t w = test_known(&t, "w", OPIPE_INT64, many, 1, NULL);
    test_output(&t, test_op(&t, "Add", w, w));
    if (form == 2)
      options.flags |= OPI_BIND_KEEP_PARAMETERS; /* integers are no parameters: still folded */
    opi_bound *bound = bind_or_end(&t, &options);
    OPI_ASSERT_INT(n_runs, form == 1 ? 0 : 1);
    OPI_ASSERT_INT(test_count(bound->graph, "Add"), form == 1 ? 1 : 0);
    opi_bound_free(bound);
    test_close(&t);
  }
}

static void test_names_survive(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t a = test_op(&t, "Neg", x, OPIPE_NONE);
  const uint32_t b = test_op(&t, "Identity", a, OPIPE_NONE);
  const uint32_t c = test_op(&t, "Exp", b, OPIPE_NONE);
  const uint32_t d = test_op(&t, "Identity", c, OPIPE_NONE);
  test_rename(&t, a, "a");
  test_rename(&t, b, "b");
  test_rename(&t, c, "c");
  test_rename(&t, d, "d");
  test_output(&t, d);
  for (uint32_t n = 0; n < t.graph->n_nodes; ++n)
    t.graph->nodes[n].source = n; /* as if read from a file */
  opi_bound *bound = bind_or_end(&t, &options);
  const opi_graph *g = bound->graph;
  OPI_ASSERT_INT(g->n_nodes, 2);
  OPI_ASSERT_STR(g->values[g->nodes[0].out[0]].name, "a");
  OPI_ASSERT_STR(g->values[g->outputs[0]].name, "d");
  OPI_ASSERT_INT(g->values[g->outputs[0]].source, d);
  OPI_ASSERT_INT(opi_bound_value(bound, "b"), opi_bound_value(bound, "a"));
  OPI_ASSERT_INT(opi_bound_value(bound, "c"), g->outputs[0]);
  OPI_ASSERT_INT(opi_bound_value(bound, "nothing"), OPIPE_NONE);
  OPI_ASSERT_INT(g->nodes[1].source, 2);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_outputs_without_a_node_get_one(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t unused = test_input(&t, "unused", OPIPE_FLOAT, two, 1);
  const uint32_t w = test_known(&t, "w", OPIPE_FLOAT, two, 1, NULL);
  const uint32_t y = test_op(&t, "Neg", x, OPIPE_NONE);
  test_rename(&t, y, "y");
  const uint32_t outputs[5] = {x, w, y, y, y};
  (void)unused;
  for (uint32_t i = 0; i < 5; ++i)
    test_output(&t, outputs[i]);
  opi_bound *bound = bind_or_end(&t, &options);
  const opi_graph *g = bound->graph;
  OPI_ASSERT_INT(g->n_inputs, 2); /* also the one that nothing reads */
  OPI_ASSERT_INT(g->n_outputs, 5);
  OPI_ASSERT_INT(test_count(g, "Identity"), 4);
  OPI_ASSERT_STR(g->values[g->outputs[0]].name, "x_output");
  OPI_ASSERT_STR(g->values[g->outputs[1]].name, "w_output");
  OPI_ASSERT_STR(g->values[g->outputs[2]].name, "y");
  OPI_ASSERT_STR(g->values[g->outputs[3]].name, "y_output");
  for (uint32_t i = 0; i < 5; ++i)
    OPI_ASSERT_INT(g->values[g->outputs[i]].source, outputs[i]);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_unread_optional_outputs_go(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  const int64_t eight[1] = {8}, k[1] = {2};
  uint32_t out[2], in[2];
  test_open(&t);
  in[0] = test_input(&t, "x", OPIPE_FLOAT, eight, 1);
  in[1] = test_ints(&t, "k", k, 1);
  test_node(&t, "TopK", 11, in, 2, NULL, 0, out, 2);
  test_output(&t, out[0]); /* values are read, indices are not */
  test_node(&t, "TopK", 11, in, 2, NULL, 0, out, 2);
  test_output(&t, out[1]); /* the other way round: values are no optional output */
  opi_bound *bound = bind_or_end(&t, &options);
  OPI_ASSERT_INT(bound->graph->nodes[0].out[1], OPIPE_NONE);
  OPI_ASSERT(bound->graph->nodes[1].out[0] != OPIPE_NONE);
  OPI_ASSERT(bound->graph->nodes[1].out[1] != OPIPE_NONE);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_barriers(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const char *names[1] = {"b"};
  options.barriers = names;
  options.n_barriers = 1;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t a = test_op(&t, "Neg", x, OPIPE_NONE);
  const uint32_t b = test_op(&t, "Identity", a, OPIPE_NONE);
  const uint32_t dead = test_op(&t, "Exp", a, OPIPE_NONE);
  test_rename(&t, a, "a");
  test_rename(&t, b, "b");
  test_rename(&t, dead, "dead");
  test_output(&t, test_op(&t, "Abs", b, OPIPE_NONE));
  bound = bind_or_end(&t, &options);
  OPI_ASSERT((bound->graph->values[opi_bound_value(bound, "a")].flags & OPI_VALUE_BARRIER) != 0);
  opi_bound_free(bound);
  names[0] = "dead"; /* not needed: there is nothing to cut, which is no error */
  bound = bind_or_end(&t, &options);
  OPI_ASSERT_INT(opi_bound_value(bound, "dead"), OPIPE_NONE);
  OPI_ASSERT_INT(bound->graph->n_nodes, 2);
  opi_bound_free(bound);
  names[0] = "nowhere";
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_NOTFOUND, &err,
                   "no tensor 'nowhere'");
  test_close(&t);
}

static opipe_status collect(void *ctx, const void *data, size_t n_bytes) {
  opi_text_add(ctx, data, n_bytes);
  return OPIPE_OK;
}

static void take_warning(void *ctx, uint32_t level, const char *file, uint32_t line,
                         const char *message) {
  (void)file;
  (void)line;
  if (level == OPIPE_LOG_WARN)
    opi_text_printf(ctx, "%s\n", message);
}

/* Every cause once: all in the error; where it has no room, the first there and the others as
 * warnings; no warning where an input's value would help. */
static void test_unsupported_are_listed_once(void) {
  for (uint32_t n = 2; n <= 12; n += 10) {
    test_graph t;
    opi_bound *bound = NULL;
    opi_text log;
    opipe_error err = OPIPE_ERROR_INIT;
    opi_logger logger = {&log, take_warning, OPIPE_LOG_WARN};
    opi_bind_options options = test_options();
    options.logger = &logger;
    opi_text_init(&log, opi_allocator_system());
    opi_text_printf(&log, "log\n");
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    for (uint32_t i = 0; i < n; ++i)
      test_output(&t, test_op(&t, "Frobnicate", x, OPIPE_NONE));
    OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err,
                     "nodes are not supported");
    for (uint32_t i = 0; i < n; ++i) {
      char name[32];
      (void)snprintf(name, sizeof(name), "'Frobnicate_%u'", 2 * i + 1);
      const char *logged = strstr(log.data, name);
      OPI_ASSERT((strstr(err.message, name) != NULL) != (logged != NULL));
      OPI_ASSERT(logged == NULL || strstr(logged + 1, name) == NULL);
    }
    OPI_ASSERT((strchr(log.data, '\0') == log.data + 4) == (n == 2));
    opi_text_release(&log);
    test_close(&t);
  }
}

/* The caller has the value and binds again: nothing was warned of. */
static void test_a_needed_value_is_no_warning(void) {
  test_graph t;
  const int64_t one[1] = {1};
  opi_bound *bound = NULL;
  opi_text log;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_logger logger = {&log, take_warning, OPIPE_LOG_WARN};
  opi_bind_options options = test_options();
  options.logger = &logger;
  opi_text_init(&log, opi_allocator_system());
  opi_text_printf(&log, "log\n");
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t shape = test_input(&t, "shape", OPIPE_INT64, one, 1);
  for (uint32_t i = 0; i < 12; ++i)
    test_output(&t, test_op(&t, "Reshape", x, shape));
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err,
                   "needs the value of graph input 'shape'");
  OPI_ASSERT_INT(err.domain, OPIPE_DOMAIN_INPUT);
  OPI_ASSERT(strcmp(log.data, "log\n") == 0);
  opi_text_release(&log);
  test_close(&t);
}

static void test_unsupported_come_in_one_report(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opi_text text;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  opi_text_init(&text, opi_allocator_system());
  options.report = collect;
  options.report_ctx = &text;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t a = test_op(&t, "Frobnicate", x, OPIPE_NONE);
  const uint32_t b =
      test_op(&t, "Neg", a, OPIPE_NONE); /* reads what is not there: no cause of its own */
  const uint32_t c = test_op(&t, "Celebrate", x, OPIPE_NONE);
  t.graph->nodes[2].domain = "com.microsoft.nchwc";
  const uint32_t late = test_op(&t, "Abs", x, OPIPE_NONE);
  t.graph->nodes[3].version = 99;
  (void)test_op(&t, "Unneeded", x, OPIPE_NONE);
  test_output(&t, test_op(&t, "Add", b, c));
  test_output(&t, late);
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err,
                   "3 nodes are not supported: node 'Frobnicate_1': operator Frobnicate of domain "
                   "ai.onnx, version 18, is not known");
  OPI_ASSERT(text.data != NULL && strstr(text.data, "operator Celebrate") != NULL);
  OPI_ASSERT(text.data != NULL && strstr(text.data, "level 'extended' keeps") != NULL);
  OPI_ASSERT(text.data != NULL && strstr(text.data, "version 99, known are 1 to") != NULL);
  OPI_ASSERT(text.data != NULL && strstr(text.data, "Unneeded") == NULL);
  opi_text_release(&text);
  test_close(&t);
}

static void test_pins(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const int64_t rows[2] = {3, 2}, one_two[2] = {1, 2};
  const int32_t wrong[2] = {3, 2};
  opi_pin pin = {"shape", rows, two, 1, OPIPE_INT64};
  options.pins = &pin;
  options.n_pins = 1;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two_three, 2);
  const uint32_t shape = test_input(&t, "shape", OPIPE_INT64, two, 1);
  test_output(&t, test_op(&t, "Reshape", x, shape));
  bound = bind_or_end(&t, &options);
  OPI_ASSERT_INT(bound->graph->n_inputs, 1);
  OPI_ASSERT_INT(bound->graph->values[bound->graph->outputs[0]].shape[0], 3);
  opi_bound_free(bound);
  pin.data = wrong;
  pin.dtype = OPIPE_INT32;
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err,
                   "'shape' has type int64, the pin has int32");
  pin = (opi_pin){"shape", rows, one_two, 2, OPIPE_INT64};
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_INVALID, &err,
                   "'shape' has shape [2] in the file, the pin has [1, 2]");
  pin.input = "nobody";
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_NOTFOUND, &err,
                   "no input 'nobody' to pin");
  test_close(&t);
}

static void test_index_limits(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  const int64_t table[2] = {50, 4}, positions[2] = {20, 4}, ids[2] = {1, 3};
  const int64_t offset = 2;
  uint32_t in[2], out = OPIPE_NONE;
  test_open(&t);
  const uint32_t i0 = test_input(&t, "ids", OPIPE_INT64, ids, 2);
  const uint32_t i1 = test_input(&t, "positions", OPIPE_INT64, ids, 2);
  const uint32_t i2 = test_input(&t, "mask", OPIPE_INT64, ids, 2);
  const uint32_t i3 = test_input(&t, "free", OPIPE_INT64, ids, 2);
  const uint32_t w = test_known(&t, "w", OPIPE_FLOAT, table, 2, NULL);
  const uint32_t p = test_known(&t, "p", OPIPE_FLOAT, positions, 2, NULL);
  const uint32_t two_more = test_known(&t, "two", OPIPE_INT64, NULL, 0, &offset);
  const uint32_t axis = test_known(&t, "axis", OPIPE_INT64, NULL, 0, (int64_t[]){1});
  test_output(&t, test_op(&t, "Gather", w, test_op(&t, "Identity", i0, OPIPE_NONE)));
  test_output(&t, test_op(&t, "Gather", p, test_op(&t, "Add", i1, two_more)));
  in[0] = i2;
  in[1] = axis;
  test_node(&t, "CumSum", 14, in, 2, NULL, 0, &out, 1);
  test_output(&t, test_op(&t, "Gather", p, out));
  test_output(&t, test_op(&t, "Neg", i3, OPIPE_NONE));
  const uint32_t i4 = test_input(&t, "a", OPIPE_INT64, ids, 2);
  const uint32_t i5 = test_input(&t, "b", OPIPE_INT64, ids, 2);
  const uint32_t doubled = test_op(&t, "Mul", test_op(&t, "Mul", i4, i5), two_more);
  test_output(&t, test_op(&t, "Gather", w, doubled));
  opi_bound *bound = bind_or_end(&t, &options);
  OPI_ASSERT_INT(bound->index_limits[0], 50);
  OPI_ASSERT_INT(bound->index_limits[4], 5); /* 2 * 4 * 4 < 50, 2 * 5 * 5 is not */
  OPI_ASSERT_INT(bound->index_limits[1], 18);
  OPI_ASSERT_INT(bound->index_limits[2], 7); /* 3 * 6 < 20, 3 * 7 is not */
  OPI_ASSERT_INT(bound->index_limits[3], 0);
  opi_bound_free(bound);
  test_close(&t);
}

/* latents [1, 3] expanded to the batch, then mixed with what carries it. */
static void test_expanded_values_are_followed(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  const int64_t batch[3] = {4, 2, 3}, one[3] = {1, 2, 3}, whole[3] = {4, 2, 3};
  opi_carry carry[32];
  const opi_carry held[2] = {{0, 0, 1, 1}, {-1, 0, 1, 1}};
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, batch, 3);
  const uint32_t latents = test_input(&t, "latents", OPIPE_FLOAT, one, 3);
  const uint32_t wide = test_op(&t, "Expand", latents, test_ints(&t, "to", whole, 3));
  const uint32_t in[2] = {test_op(&t, "Exp", wide, OPIPE_NONE), x};
  const opipe_attr axis = {.name = "axis", .i = 1, .kind = OPIPE_ATTR_INT};
  uint32_t joined = OPIPE_NONE;
  test_node(&t, "Concat", 13, in, 2, &axis, 1, &joined, 1);
  test_output(&t, joined);
  opi_bound *bound = bind_or_end(&t, &options);
  OPI_ASSERT_OK(opi_carry_axis(bound->graph, NULL, held, carry, &err), &err);
  OPI_ASSERT_INT(carry[bound->graph->outputs[0]].axis, 0);
  opi_bound_free(bound);
  test_close(&t);
}

/* x [batch, 2] times its own shape reads the batch; plus a table that is expanded to it does not.
 */
static void test_length_read_as_data_is_found(void) {
  for (int form = 0; form < 2; ++form) {
    test_graph t;
    opi_bind_options options = test_options();
    const int64_t rows[2] = {-1, 2}, row[2] = {1, 2}, five_six[2] = {5, 6};
    opipe_error err = OPIPE_ERROR_INIT;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_INT64, rows, 2);
    test_dim(&t, x, 0, "batch");
    const uint32_t shape = test_op(&t, "Shape", x, OPIPE_NONE);
    const uint32_t table = test_known(&t, "table", OPIPE_INT64, row, 2, five_six);
    test_output(&t, form == 0 ? test_op(&t, "Mul", x, shape)
                              : test_op(&t, "Add", x, test_op(&t, "Expand", table, shape)));
    const opi_dim_binding four = {"batch", 4}, one = {"batch", 1};
    options.n_dims = 1;
    options.dims = &four;
    opi_bound *whole = bind_or_end(&t, &options);
    options.dims = &one;
    opi_bound *part = bind_or_end(&t, &options);
    const opipe_status status =
        opi_carry_compare(whole->graph, part->graph, NULL, NULL, NULL, &err);
    if (form == 0)
      OPI_ASSERT_ERROR(status, OPIPE_E_UNSUPPORTED, &err, "depends on the length that is split");
    else
      OPI_ASSERT_OK(status, &err);
    OPI_ASSERT_OK(opi_carry_compare(whole->graph, whole->graph, NULL, NULL, NULL, &err), &err);
    opi_bound_free(whole);
    opi_bound_free(part);
    test_close(&t);
  }
}

static void test_axis_lengths_must_agree(void) {
  test_graph t;
  const opi_bind_options options = test_options();
  opi_carry carry[32];
  opi_carry held[2] = {{0, 0, 1, 1}, {0, 0, 1, 1}};
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t three[1] = {3};
  test_open(&t);
  test_output(&t, test_op(&t, "Neg", test_input(&t, "a", OPIPE_FLOAT, two, 1), OPIPE_NONE));
  test_output(&t, test_op(&t, "Neg", test_input(&t, "b", OPIPE_FLOAT, three, 1), OPIPE_NONE));
  opi_bound *bound = bind_or_end(&t, &options);
  OPI_ASSERT_ERROR(opi_carry_axis(bound->graph, NULL, held, carry, &err), OPIPE_E_UNSUPPORTED, &err,
                   "length 2 in input 'a' and 3 in 'b'");
  held[0].axis = 1;
  OPI_ASSERT_ERROR(opi_carry_axis(bound->graph, NULL, held, carry, &err), OPIPE_E_UNSUPPORTED, &err,
                   "input 'a' of rank 1 cannot hold the axis in dimension 1");
  opi_bound_free(bound);
  test_close(&t);
}

/* A graph that touches inputs, pins, folding, aliases, a search of defaults. */
static opipe_status bind_with(opi_test_memory *memory, void *arg) {
  test_graph *t = arg;
  int n_runs = 0;
  const opi_evaluator evaluator = {&n_runs, tiny_run};
  opi_bind_options options = test_options();
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  options.allocator = &memory->allocator;
  options.flags |= OPI_BIND_DEFAULTS;
  options.evaluator = &evaluator;
  const opipe_status status = opi_bind(&t->model, &options, &bound, &err);
  opi_bound_free(bound);
  return status;
}

static void test_every_allocation_may_fail(void) {
  test_graph t;
  const int64_t free_two[2] = {-1, -1}, free_one[1] = {-1}, factor[2] = {1, 1};
  uint32_t joined = OPIPE_NONE;
  test_open(&t);
  const uint32_t past = test_input(&t, "past", OPIPE_FLOAT, free_two, 2);
  const uint32_t fresh = test_input(&t, "new", OPIPE_FLOAT, free_two, 2);
  const uint32_t mask = test_input(&t, "mask", OPIPE_FLOAT, free_one, 1);
  test_dim(&t, past, 0, "batch");
  test_dim(&t, fresh, 0, "batch");
  test_dim(&t, mask, 0, "seq + 8");
  test_dim(&t, fresh, 1, "seq");
  const uint32_t in[2] = {past, fresh};
  const opipe_attr axis = {.name = "axis", .i = 1, .kind = OPIPE_ATTR_INT};
  test_node(&t, "Concat", 13, in, 2, &axis, 1, &joined, 1);
  const uint32_t shape = test_op(&t, "Mul", test_op(&t, "Shape", joined, OPIPE_NONE),
                                 test_ints(&t, "factor", factor, 2));
  const uint32_t flat = test_op(&t, "Reshape", test_op(&t, "Flatten", joined, OPIPE_NONE), shape);
  test_output(&t, test_op(&t, "Add", test_op(&t, "Identity", flat, OPIPE_NONE), mask));
  const uint64_t runs = opi_test_every_allocation(bind_with, &t, 4000);
  OPI_ASSERT(runs > 10 && runs < 4000);
  test_close(&t);
}

/* Options under which a binding may be used again: every difference that makes another graph is
 * seen. */
static void test_same_options(void) {
  const float data[2][2] = {{1, 2}, {1, 3}};
  const opi_dim_binding dims[] = {{"batch", 2}, {"batch", 3}, {"seq", 2}};
  const opi_pin pins[] = {{"x", data[0], two, 1, OPIPE_FLOAT},
                          {"x", data[1], two, 1, OPIPE_FLOAT},
                          {"y", data[0], two, 1, OPIPE_FLOAT},
                          {"x", data[0], two, 1, OPIPE_INT32}};
  const char *const names[] = {"t", "u"};
  opi_bind_options whole = test_options(), other[12];
  whole.dims = dims, whole.n_dims = 1;
  whole.pins = pins, whole.n_pins = 1;
  whole.barriers = names, whole.n_barriers = 1;
  whole.keep = names, whole.n_keep = 1;
  whole.flags = OPI_BIND_KEEP_PARAMETERS;
  for (size_t i = 0; i < OPI_COUNT(other); ++i)
    other[i] = whole;
  OPI_ASSERT(opi_bind_same(&whole, &other[0]));
  other[0].dims = &dims[1];
  other[1].dims = &dims[2];
  other[2].n_dims = 0;
  other[3].pins = &pins[1];
  other[4].pins = &pins[2];
  other[5].pins = &pins[3];
  other[6].n_pins = 0;
  other[7].barriers = &names[1];
  other[8].keep = &names[1];
  other[9].flags |= OPI_BIND_NO_FUSE;
  other[10].dropout_ratio = 0.5;
  other[11].n_shapes = 1;
  for (size_t i = 0; i < OPI_COUNT(other); ++i) {
    const bool seen = !opi_bind_same(&whole, &other[i]) && !opi_bind_same(&other[i], &whole);
    (void)opi_test_check(seen, __FILE__, __LINE__, false, "difference %zu is not seen", i);
  }
  opi_bind_options open = whole, kept = whole;
  open.flags |= OPI_BIND_DEFAULTS; /* may take other numbers than it is given */
  OPI_ASSERT(!opi_bind_same(&open, &open));
  whole.flags = kept.flags = 0; /* names to keep say nothing then */
  kept.keep = &names[1];
  OPI_ASSERT(opi_bind_same(&whole, &kept));
}

OPI_TEST_MAIN("bind", OPI_TEST(test_shape_arithmetic_is_folded),
              OPI_TEST(test_fold_limit_and_parameters), OPI_TEST(test_names_survive),
              OPI_TEST(test_outputs_without_a_node_get_one), OPI_TEST(test_barriers),
              OPI_TEST(test_unread_optional_outputs_go),
              OPI_TEST(test_unsupported_come_in_one_report),
              OPI_TEST(test_unsupported_are_listed_once),
              OPI_TEST(test_a_needed_value_is_no_warning), OPI_TEST(test_pins),
              OPI_TEST(test_index_limits), OPI_TEST(test_expanded_values_are_followed),
              OPI_TEST(test_length_read_as_data_is_found), OPI_TEST(test_axis_lengths_must_agree),
              OPI_TEST(test_same_options), OPI_TEST(test_every_allocation_may_fail))
