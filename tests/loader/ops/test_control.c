/* SPDX-License-Identifier: Apache-2.0 */
/* If, Loop, Scan and sequences vanish when what decides them is known, and are refused by name when
 * not.
 */
#include "tests/loader/graphs.h"

static const int64_t two[1] = {2}, two_three[2] = {2, 3}, four_three[2] = {4, 3};

/* A body; captured values are added with `capture`. */
static opi_graph *body_open(test_graph *t, const char *name) {
  opi_graph *body = opi_graph_new(&t->arena, name);
  test_need(body != NULL);
  body->outer = t->model.graph;
  t->graph = body;
  return body;
}

static uint32_t capture(test_graph *t, uint32_t outer) {
  opi_graph *body = t->graph;
  const uint32_t inner = test_value(t, NULL);
  test_need(opi_arena_grow(&t->arena, (void **)&body->capture_inner, &body->room_captures,
                           body->n_captures + 1, sizeof(uint32_t)));
  if (body->capture_outer == NULL) {
    body->capture_outer = OPI_ARENA_ARRAY(&t->arena, uint32_t, 8);
    test_need(body->capture_outer != NULL);
  }
  body->capture_inner[body->n_captures] = inner;
  body->capture_outer[body->n_captures++] = outer;
  return inner;
}

static void body_close(test_graph *t) {
  t->graph = t->model.graph;
}

static opipe_attr body_attr(const char *name, const opi_graph *body) {
  return (opipe_attr){.name = name, .data = body, .kind = OPI_ATTR_GRAPH};
}

/* then: Neg(x), else: Abs(x). */
static uint32_t add_if(test_graph *t, uint32_t condition, uint32_t x) {
  opipe_attr attrs[2];
  uint32_t out = OPIPE_NONE;
  opi_graph *then_body = body_open(t, "then");
  test_output(t, test_op(t, "Neg", capture(t, x), OPIPE_NONE));
  opi_graph *else_body = body_open(t, "else");
  test_output(t, test_op(t, "Abs", capture(t, x), OPIPE_NONE));
  body_close(t);
  attrs[0] = body_attr("then_branch", then_body);
  attrs[1] = body_attr("else_branch", else_body);
  test_node(t, "If", 13, &condition, 1, attrs, 2, &out, 1);
  return out;
}

static void test_if_with_known_condition_is_inlined(void) {
  for (uint8_t truth = 0; truth < 2; ++truth) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    const uint32_t c = test_known(&t, "c", OPIPE_BOOL, NULL, 0, &truth);
    const uint32_t y = add_if(&t, c, x);
    test_rename(&t, y, "y");
    test_output(&t, y);
    const opi_bind_options options = test_options();
    OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
    OPI_ASSERT_INT(bound->graph->n_nodes, 1);
    OPI_ASSERT_STR(bound->graph->nodes[0].op, truth ? "Neg" : "Abs");
    OPI_ASSERT_STR(bound->graph->values[bound->graph->outputs[0]].name, "y");
    opi_bound_free(bound);
    test_close(&t);
  }
}

static void test_if_on_an_input_needs_a_pin(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint8_t truth = 1;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t c = test_input(&t, "use_cache", OPIPE_BOOL, two, 0);
  test_output(&t, add_if(&t, test_op(&t, "Not", c, OPIPE_NONE), x));
  opi_bind_options options = test_options();
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err,
                   "depends on graph input 'use_cache'");
  const opi_pin pin = {"use_cache", &truth, NULL, 0, OPIPE_BOOL};
  options.pins = &pin;
  options.n_pins = 1;
  OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err,
                   "needs the value"); /* nothing computes Not without an evaluator */
  test_close(&t);
}

/* A merged decoder: one If on an input, both branches whole graphs. */
static void test_pinned_condition_inlines_one_branch(void) {
  for (uint8_t truth = 0; truth < 2; ++truth) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    const int64_t one[1] = {1};
    const opi_pin pin = {"use_cache", &truth, one, 1, OPIPE_BOOL};
    opi_bind_options options = test_options();
    options.pins = &pin;
    options.n_pins = 1;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    const uint32_t c = test_input(&t, "use_cache", OPIPE_BOOL, one, 1);
    test_output(&t, add_if(&t, c, x));
    OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
    OPI_ASSERT_STR(bound->graph->nodes[0].op, truth ? "Neg" : "Abs");
    OPI_ASSERT_INT(bound->graph->n_inputs, 1);
    opi_bound_free(bound);
    test_close(&t);
  }
}

/* The condition compares a dimension: known once shapes are. */
static void test_if_on_a_shape_is_inlined(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, four_three, 2);
  const uint32_t size = test_op(&t, "Size", x, OPIPE_NONE); /* 12: true as a condition */
  test_output(&t, add_if(&t, size, x));
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  OPI_ASSERT_STR(bound->graph->nodes[0].op, "Neg");
  opi_bound_free(bound);
  test_close(&t);
}

/* body: (i, go, carried) -> (go, carried + w, carried) */
static uint32_t add_loop(test_graph *t, uint32_t trips, uint32_t go, uint32_t x, uint32_t w,
                         uint32_t *out_scan) {
  const uint32_t in[3] = {trips, go, x};
  uint32_t out[2];
  opi_graph *body = body_open(t, "body");
  (void)test_input(t, NULL, OPIPE_INT64, NULL, 0);
  const uint32_t on = test_input(t, NULL, OPIPE_BOOL, NULL, 0);
  const uint32_t carried = test_input(t, NULL, OPIPE_FLOAT, two, 1);
  const uint32_t sum = test_op(t, "Add", carried, capture(t, w));
  test_output(t, test_op(t, "Identity", on, OPIPE_NONE));
  test_output(t, sum);
  test_output(t, carried);
  body_close(t);
  const opipe_attr attr = body_attr("body", body);
  test_node(t, "Loop", 13, in, 3, &attr, 1, out, 2);
  *out_scan = out[1];
  return out[0];
}

static void test_loop_is_unrolled(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t scan = OPIPE_NONE;
  const int64_t trips = 3;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t w = test_input(&t, "w", OPIPE_FLOAT, two, 1);
  const uint32_t n = test_known(&t, "n", OPIPE_INT64, NULL, 0, &trips);
  test_output(&t, add_loop(&t, n, OPIPE_NONE, x, w, &scan));
  test_output(&t, scan);
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  OPI_ASSERT_INT(test_count(bound->graph, "Add"), 3);
  OPI_ASSERT_INT(test_count(bound->graph, "Concat"), 1);
  const opi_value *stacked = &bound->graph->values[bound->graph->outputs[1]];
  OPI_ASSERT_INT(stacked->rank, 2);
  OPI_ASSERT_INT(stacked->shape[0], 3);
  OPI_ASSERT_INT(stacked->shape[1], 2);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_loop_limits(void) {
  const int64_t many = 100000;
  const uint8_t no = 0;
  for (int form = 0; form < 3; ++form) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t scan = OPIPE_NONE;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    const uint32_t w = test_input(&t, "w", OPIPE_FLOAT, two, 1);
    const uint32_t n = form == 1 ? test_input(&t, "n", OPIPE_INT64, NULL, 0)
                                 : test_known(&t, "n", OPIPE_INT64, NULL, 0, &many);
    const uint32_t go = form == 2 ? test_known(&t, "go", OPIPE_BOOL, NULL, 0, &no) : OPIPE_NONE;
    const uint32_t out = add_loop(&t, n, go, x, w, &scan);
    test_output(&t, out);
    test_output(&t, scan);
    const opi_bind_options options = test_options();
    const opipe_status status = opi_bind(&t.model, &options, &bound, &err);
    if (form == 0)
      OPI_ASSERT_ERROR(status, OPIPE_E_UNSUPPORTED, &err, "more than 1024 trips");
    if (form == 1)
      OPI_ASSERT_ERROR(status, OPIPE_E_UNSUPPORTED, &err, "graph input 'n'");
    if (form == 2) { /* not a single trip: the carried value passes, the scan is empty */
      OPI_ASSERT_OK_FATAL(status, &err);
      OPI_ASSERT_STR(bound->graph->nodes[0].op, "Identity");
      OPI_ASSERT_INT(bound->graph->values[bound->graph->outputs[1]].shape[0], 0);
      OPI_ASSERT_INT(bound->graph->values[bound->graph->outputs[1]].shape[1], 2);
    }
    opi_bound_free(bound);
    test_close(&t);
  }
}

static void test_sequences_are_folded(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t one = 1, last = -1;
  const opipe_attr axis = {.name = "axis", .i = 0, .kind = OPIPE_ATTR_INT};
  uint32_t sequence = OPIPE_NONE, in[3], out = OPIPE_NONE;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, four_three, 2);
  const uint32_t y = test_input(&t, "y", OPIPE_FLOAT, two_three, 2);
  const uint32_t at1 = test_known(&t, "at1", OPIPE_INT64, NULL, 0, &one);
  const uint32_t end = test_known(&t, "end", OPIPE_INT64, NULL, 0, &last);
  const uint32_t parts = test_known(&t, "parts", OPIPE_INT64, NULL, 0, &one);
  in[0] = x;
  in[1] = parts;
  test_node(&t, "SplitToSequence", 11, in, 2, &axis, 1, &sequence, 1); /* four of [1, 3] */
  in[0] = sequence;
  in[1] = y;
  in[2] = at1;
  test_node(&t, "SequenceInsert", 11, in, 3, NULL, 0, &sequence, 1); /* five */
  test_output(&t, test_op(&t, "SequenceLength", sequence, OPIPE_NONE));
  in[0] = test_op(&t, "SequenceErase", sequence, end); /* four: 1, 2, 1, 1 rows */
  test_node(&t, "ConcatFromSequence", 11, in, 1, &axis, 1, &out, 1);
  test_output(&t, out);
  test_output(&t, test_op(&t, "SequenceAt", test_op(&t, "Identity", sequence, OPIPE_NONE), at1));
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  const opi_graph *g = bound->graph;
  const opi_node *copy = &g->nodes[g->values[g->outputs[0]].producer];
  const int64_t five = 5;
  OPI_ASSERT_BITS(g->values[copy->in[0]].data, &five, 1, OPIPE_INT64);
  OPI_ASSERT_INT(g->values[g->outputs[1]].shape[0], 5);
  OPI_ASSERT_INT(g->values[g->outputs[2]].shape[0], 2);
  OPI_ASSERT_INT(test_count(g, "Split"), 1);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_sequences_that_stay_are_refused(void) {
  for (int form = 0; form < 3; ++form) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t sequence = OPIPE_NONE;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    const uint32_t at = test_input(&t, "at", OPIPE_INT64, NULL, 0);
    test_node(&t, "SequenceConstruct", 11, &x, 1, NULL, 0, &sequence, 1);
    if (form == 0)
      test_output(&t, sequence);
    if (form == 1)
      test_output(&t, test_op(&t, "SequenceAt", sequence, at));
    if (form == 2)
      test_output(&t, test_op(&t, "Add", sequence, x));
    const opi_bind_options options = test_options();
    const opipe_status status = opi_bind(&t.model, &options, &bound, &err);
    OPI_ASSERT_ERROR(status, OPIPE_E_UNSUPPORTED, &err,
                     form == 1 ? "graph input 'at'" : "a sequence");
    test_close(&t);
  }
}

/* Where a tensor is wanted, optional or not, for its content or its shape: by node, never in
 * silence. */
static void test_sequences_in_place_of_tensors_are_refused(void) {
  static const struct {
    const char *op;
    uint32_t n_in, place;
  } forms[] = {{"SequenceAt", 2, 1},
               {"SequenceInsert", 3, 2},
               {"SequenceInsert", 2, 1},
               {"SequenceErase", 2, 1},
               {"SplitToSequence", 2, 1},
               {"SequenceConstruct", 2, 1},
               {"Reshape", 2, 1},
               {"Gemm", 3, 2},
               {"Clip", 3, 1},
               {"Pad", 2, 1},
               {"Expand", 2, 1},
               {"TopK", 2, 1},
               {"Slice", 5, 3},
               {"If", 1, 0},
               {"Loop", 2, 0},
               {"Loop", 2, 1},
               {"Shape", 1, 0}};
  for (size_t i = 0; i < OPI_COUNT(forms); ++i) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t sequence = OPIPE_NONE, out = OPIPE_NONE, in[5];
    char wanted[32];
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    test_node(&t, "SequenceConstruct", 11, &x, 1, NULL, 0, &sequence, 1);
    for (uint32_t k = 0; k < 5; ++k)
      in[k] = x;
    if (strncmp(forms[i].op, "Sequence", 8) == 0 && strcmp(forms[i].op, "SequenceConstruct") != 0)
      in[0] = sequence;
    in[forms[i].place] = sequence;
    test_node(&t, forms[i].op, forms[i].op[0] == 'S' && forms[i].op[1] == 'e' ? 11 : 13, in,
              forms[i].n_in, NULL, 0, &out, 1);
    test_output(&t, out);
    const opi_bind_options options = test_options();
    (void)snprintf(wanted, sizeof wanted, "input %u is a sequence", forms[i].place);
    OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), OPIPE_E_UNSUPPORTED, &err, wanted);
    test_close(&t);
  }
}

/* body: (state, part) -> (state + part + w, part); made: the stack of parts. */
static uint32_t add_scan(test_graph *t, uint32_t x, uint32_t part, uint32_t w,
                         const opipe_attr *more, uint32_t n_more, uint32_t *out_made) {
  const uint32_t in[2] = {x, part};
  opipe_attr attrs[4];
  uint32_t out[2];
  opi_graph *body = body_open(t, "body");
  const uint32_t state = test_input(t, NULL, OPIPE_FLOAT, two, 1);
  const uint32_t item = test_input(t, NULL, OPIPE_FLOAT, two, 1);
  test_output(t, test_op(t, "Add", test_op(t, "Add", state, item), capture(t, w)));
  test_output(t, test_op(t, "Identity", item, OPIPE_NONE));
  body_close(t);
  attrs[0] = body_attr("body", body);
  for (uint32_t i = 0; i < n_more; ++i)
    attrs[1 + i] = more[i];
  test_node(t, "Scan", 11, in, 2, attrs, 1 + n_more, out, 2);
  *out_made = out[1];
  return out[0];
}

static void test_scan_is_unrolled_along_its_axes(void) {
  static const int64_t shape[2] = {2, 3}, last = -1, backwards = 1;
  const opipe_attr attrs[3] = {OPI_ATTR_I("num_scan_inputs", 1),
                               OPI_ATTR_N("scan_input_axes", &last, 1),
                               OPI_ATTR_N("scan_output_directions", &backwards, 1)};
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t made = OPIPE_NONE;
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
  const uint32_t w = test_input(&t, "w", OPIPE_FLOAT, two, 1);
  const uint32_t part = test_input(&t, "part", OPIPE_FLOAT, shape, 2);
  test_output(&t, add_scan(&t, x, part, w, attrs, 3, &made));
  test_output(&t, made);
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  OPI_ASSERT_INT(test_count(bound->graph, "Add"), 6);
  OPI_ASSERT_INT(test_count(bound->graph, "Split"), 1);
  OPI_ASSERT_INT(test_count(bound->graph, "Scan"), 0);
  const opi_value *stacked = &bound->graph->values[bound->graph->outputs[1]];
  OPI_ASSERT_INT(stacked->rank, 2);
  OPI_ASSERT_INT(stacked->shape[0], 3);
  OPI_ASSERT_INT(stacked->shape[1], 2);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_scans_that_do_not_fit_are_refused(void) {
  static const int64_t shape[2] = {3, 2}, many[2] = {1025, 2}, far = 2, three = 3;
  static const int64_t pair[2] = {0, 0};
  const struct {
    opipe_attr attrs[2];
    const int64_t *shape;
    opipe_status status;
    const char *says;
  } forms[] = {
      {{OPI_ATTR_I("num_scan_inputs", 1)},
       many,
       OPIPE_E_UNSUPPORTED,
       "1025 trips are not unrolled, at most 1024"},
      {{OPI_ATTR_I("num_scan_inputs", 3)}, shape, OPIPE_E_INVALID, "num_scan_inputs"},
      {{OPI_ATTR_I("other", 1)}, shape, OPIPE_E_UNSUPPORTED, "attribute 'other' (1) is not known"},
      {{OPI_ATTR_I("num_scan_inputs", 1), OPI_ATTR_N("scan_input_axes", &far, 1)},
       shape,
       OPIPE_E_INVALID,
       "scan input 'part' of rank 2 has no axis 2"},
      {{OPI_ATTR_I("num_scan_inputs", 1), OPI_ATTR_N("scan_output_axes", pair, 2)},
       shape,
       OPIPE_E_INVALID,
       "scan_output_axes has 2 entries, 1 are needed"},
      {{OPI_ATTR_I("num_scan_inputs", 1), OPI_ATTR_N("scan_output_axes", &far, 1)},
       shape,
       OPIPE_E_INVALID,
       "axis 2 is outside a scan output of rank 2"},
      {{OPI_ATTR_I("num_scan_inputs", 1), OPI_ATTR_N("scan_input_directions", &three, 1)},
       shape,
       OPIPE_E_INVALID,
       "scan_input_directions has entry 3, not 0 or 1"},
  };
  for (size_t i = 0; i < OPI_COUNT(forms); ++i) {
    test_graph t;
    opi_bound *bound = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t made = OPIPE_NONE;
    test_open(&t);
    const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, two, 1);
    const uint32_t w = test_input(&t, "w", OPIPE_FLOAT, two, 1);
    const uint32_t part = test_input(&t, "part", OPIPE_FLOAT, forms[i].shape, 2);
    const uint32_t n = forms[i].attrs[1].name == NULL ? 1 : 2;
    test_output(&t, add_scan(&t, x, part, w, forms[i].attrs, n, &made));
    test_output(&t, made);
    const opi_bind_options options = test_options();
    OPI_ASSERT_ERROR(opi_bind(&t.model, &options, &bound, &err), forms[i].status, &err,
                     forms[i].says);
    test_close(&t);
  }
}

OPI_TEST_MAIN("control", OPI_TEST(test_scan_is_unrolled_along_its_axes),
              OPI_TEST(test_scans_that_do_not_fit_are_refused),
              OPI_TEST(test_if_with_known_condition_is_inlined),
              OPI_TEST(test_if_on_an_input_needs_a_pin),
              OPI_TEST(test_pinned_condition_inlines_one_branch),
              OPI_TEST(test_if_on_a_shape_is_inlined), OPI_TEST(test_loop_is_unrolled),
              OPI_TEST(test_loop_limits), OPI_TEST(test_sequences_are_folded),
              OPI_TEST(test_sequences_that_stay_are_refused),
              OPI_TEST(test_sequences_in_place_of_tensors_are_refused))
