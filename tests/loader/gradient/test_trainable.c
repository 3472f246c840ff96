/* SPDX-License-Identifier: Apache-2.0 */
/* Which initializers are trained, and why; globs; ties; parameters that an exporter merged; what
 * has no gradient rule; memory that runs out.
 */
#include "tests/loader/gradient/training.h"
#include "tests/loader/graphs.h"

typedef struct rule_case {
  test_graph graph;
  opi_bound *bound;
  opi_training *training;
} rule_case;

static uint32_t known(rule_case *c, const char *name, const int64_t *shape, uint32_t rank) {
  float data[64];
  for (int i = 0; i < 64; ++i)
    data[i] = 0.1F * (float)(i % 7) - 0.2F;
  return test_known(&c->graph, name, OPIPE_FLOAT, shape, rank, data);
}

static uint32_t one(rule_case *c, const char *op, uint32_t x) {
  return test_op(&c->graph, op, x, OPIPE_NONE);
}

static uint32_t two(rule_case *c, const char *op, uint32_t x, uint32_t y) {
  return test_op(&c->graph, op, x, y);
}

static void add_loss(rule_case *c, uint32_t x) {
  const opipe_attr keep = OPI_ATTR_I("keepdims", 0);
  uint32_t loss;
  test_node(&c->graph, "ReduceSum", 13, &x, 1, &keep, 1, &loss, 1);
  test_rename(&c->graph, loss, "loss");
  test_output(&c->graph, loss);
}

static opipe_status build(rule_case *c, const opi_gradient_options *given,
                          const opipe_allocator *allocator, opipe_error *err) {
  opi_bind_options bind = test_options();
  opi_gradient_options options = *given;
  bind.flags |= OPI_BIND_KEEP_PARAMETERS;
  bind.evaluator = options.evaluator = test_backend_evaluator();
  options.compute = OPIPE_FLOAT;
  options.allocator = allocator;
  if (c->bound == NULL)
    OPI_TRY(opi_bind(&c->graph.model, &bind, &c->bound, err));
  opi_training_free(c->training);
  c->training = NULL;
  return opi_gradient_build(c->bound, &options, &c->training, err);
}

static opipe_status build_globs(rule_case *c, const opi_train_glob *globs, uint32_t n,
                                opipe_error *err) {
  const opi_gradient_options options = {.globs = globs, .n_globs = n};
  return build(c, &options, opi_allocator_system(), err);
}

static void close_case(rule_case *c) {
  opi_training_free(c->training);
  opi_bound_free(c->bound);
  test_close(&c->graph);
}

static const opi_train_param *param(const rule_case *c, const char *name) {
  static const opi_train_param none = {.why = 99};
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (strcmp(c->training->params[p].name, name) == 0)
      return &c->training->params[p];
  }
  return &none;
}

static uint32_t why(const rule_case *c, const char *name) {
  return param(c, name)->why;
}

/* x [2,4] -> BatchNormalization -> + rotary table -> * scale -> LayerNormalization of width 4 ->
 * ...
 */
static void open_rules(rule_case *c) {
  const int64_t x_shape[2] = {2, 4}, four[1] = {4}, single[1] = {1}, table[2] = {2, 4};
  const int64_t mask[2] = {2, 4};
  uint32_t y;
  memset(c, 0, sizeof(*c));
  test_open(&c->graph);
  const uint32_t x = test_input(&c->graph, "x", OPIPE_FLOAT, x_shape, 2);
  const uint32_t bn[5] = {
      x, known(c, "bn_scale", four, 1), known(c, "bn_bias", four, 1), known(c, "bn_mean", four, 1),
      test_known(&c->graph, "bn_var", OPIPE_FLOAT, four, 1, (const float[]){1, 2, 1, 2})};
  test_node(&c->graph, "BatchNormalization", 15, bn, 5, NULL, 0, &y, 1);
  const uint32_t angles = known(c, "angles", table, 2);
  y = two(c, "Add", y, two(c, "Mul", one(c, "Sin", angles), one(c, "Cos", angles)));
  y = two(c, "Mul", y, known(c, "scalar", NULL, 0));
  y = two(c, "Mul", y, known(c, "scale1", single, 1));
  y = two(c, "Mul", y, known(c, "val_7", single, 1));
  y = two(c, "Add", y, known(c, "table", mask, 2));
  const uint32_t cond = two(c, "Greater", y, known(c, "bounds", four, 1));
  const uint32_t pick[3] = {cond, y, known(c, "other", four, 1)};
  test_node(&c->graph, "Where", 16, pick, 3, NULL, 0, &y, 1);
  add_loss(c, y);
}

static void test_rules(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  open_rules(&c);
  if (OPI_ASSERT_OK(build_globs(&c, NULL, 0, &err), &err)) {
    OPI_ASSERT_INT(why(&c, "bn_scale"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "bn_bias"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "bn_mean"), OPI_NOT_BUFFER);
    OPI_ASSERT_INT(why(&c, "bn_var"), OPI_NOT_BUFFER);
    OPI_ASSERT_INT(why(&c, "angles"), OPI_NOT_BUFFER);
    OPI_ASSERT_INT(why(&c, "scalar"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "scale1"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "val_7"), OPI_NOT_LITERAL);
    OPI_ASSERT_INT(why(&c, "table"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "bounds"), OPI_NOT_REACHED);
    OPI_ASSERT_INT(why(&c, "other"), OPI_TRAINED);
    OPI_ASSERT_INT(c.training->n_trained, 6);
  }
  close_case(&c);
}

/* Layers that are one wide: a matrix of one element is a parameter as a longer one is, turned too.
 */
static void test_one_wide(void) {
  const int64_t column[2] = {2, 1}, one_one[2] = {1, 1}, rank_four[4] = {1, 1, 1, 1};
  const int64_t image[4] = {1, 1, 2, 1};
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c = {0};
  uint32_t gemm, conv;
  test_open(&c.graph);
  const uint32_t x = test_input(&c.graph, "x", OPIPE_FLOAT, column, 2);
  uint32_t y = two(&c, "MatMul", x, known(&c, "w", one_one, 2));
  y = two(&c, "MatMul", y, one(&c, "Transpose", known(&c, "turned", one_one, 2)));
  const uint32_t in[2] = {y, known(&c, "gemm_w", one_one, 2)};
  test_node(&c.graph, "Gemm", 13, in, 2, NULL, 0, &gemm, 1);
  y = two(&c, "Reshape", gemm, test_ints(&c.graph, "image", image, 4));
  const uint32_t taps[2] = {y, known(&c, "conv_w", rank_four, 4)};
  test_node(&c.graph, "Conv", 11, taps, 2, NULL, 0, &conv, 1);
  add_loss(&c, conv);
  if (OPI_ASSERT_OK(build_globs(&c, NULL, 0, &err), &err)) {
    OPI_ASSERT_INT(why(&c, "w"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "turned"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "gemm_w"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "conv_w"), OPI_TRAINED);
  }
  close_case(&c);
}

static void test_globs(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  open_rules(&c);
  const opi_train_glob few[3] = {{"*", false}, {"bn_*", true}, {"bn_bias", false}};
  if (OPI_ASSERT_OK(build_globs(&c, few, 3, &err), &err)) {
    OPI_ASSERT_INT(why(&c, "bn_scale"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "bn_bias"), OPI_FROZEN_BY_GLOB);
    OPI_ASSERT_INT(why(&c, "bn_mean"), OPI_NOT_BUFFER); /* no edge leads to it */
    OPI_ASSERT_INT(why(&c, "table"), OPI_FROZEN_BY_GLOB);
    OPI_ASSERT_INT(c.training->n_trained, 1);
  }
  const opi_train_glob more[2] = {{"val*", true}, {"angles", true}};
  if (OPI_ASSERT_OK(build_globs(&c, more, 2, &err), &err)) {
    OPI_ASSERT_INT(why(&c, "val_7"), OPI_NOT_LITERAL); /* a pattern takes no literals */
    OPI_ASSERT_INT(why(&c, "angles"), OPI_TRAINED_BY_GLOB);
    OPI_ASSERT_INT(param(&c, "scalar")->n_gradients, 1);
    OPI_ASSERT_INT(c.training->n_trained, 7);
  }
  const opi_train_glob alone[2] = {{"bn_*", true}, {"head.*", true}}; /* they say all of it */
  if (OPI_ASSERT_OK(build_globs(&c, alone, 2, &err), &err)) {
    OPI_ASSERT_INT(why(&c, "bn_scale"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "table"), OPI_NOT_ASKED);
    OPI_ASSERT_INT(c.training->n_trained, 2);
    OPI_ASSERT_INT(c.training->n_unmatched, 1);
    OPI_ASSERT_STR(c.training->unmatched[0], "head.*");
  }
  const opi_train_glob none[1] = {{"*", false}};
  OPI_ASSERT_ERROR(build_globs(&c, none, 1, &err), OPIPE_E_INVALID, &err, "nothing can be trained");
  close_case(&c);
}

static opipe_status write_text(void *ctx, const void *data, uint64_t n_bytes) {
  opi_text_add(ctx, data, n_bytes);
  return OPIPE_OK;
}

static void test_report(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_text text;
  rule_case c;
  open_rules(&c);
  opi_text_init(&text, opi_allocator_system());
  if (OPI_ASSERT_OK(build_globs(&c, NULL, 0, &err), &err) &&
      OPI_ASSERT_OK(opi_training_describe(c.training, write_text, &text, &err), &err)) {
    OPI_ASSERT(strstr(text.data, "bn_scale  float32 [4]  trained\n") != NULL);
    OPI_ASSERT(strstr(text.data, "angles  float32 [2, 4]  not trained: a buffer") != NULL);
    OPI_ASSERT(strstr(text.data, "6 of 11 initializers are trained, 22 elements") != NULL);
    OPI_ASSERT(strstr(text.data, "takes any number of micro-batches") != NULL);
  }
  opi_text_release(&text);
  close_case(&c);
}

/* A weight read as it is and transposed, in three stages: one parameter, three accumulators, and
 * nothing of it crosses a stage. */
static void test_ties(void) {
  const int64_t x_shape[2] = {2, 4}, w[2] = {4, 4};
  const int64_t swap[2] = {1, 0};
  const opipe_attr perm = OPI_ATTR_N("perm", swap, 2);
  const uint32_t stages[16] = {0, 1, 1, 2, 2, 2, 2, 2};
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  uint32_t turned;
  memset(&c, 0, sizeof(c));
  test_open(&c.graph);
  const uint32_t x = test_input(&c.graph, "x", OPIPE_FLOAT, x_shape, 2);
  const uint32_t weight = known(&c, "w", w, 2);
  uint32_t y = two(&c, "MatMul", x, weight);
  test_node(&c.graph, "Transpose", 13, &weight, 1, &perm, 1, &turned, 1);
  y = two(&c, "MatMul", y, turned); /* stage 1 */
  y = two(&c, "MatMul", y, turned); /* stage 2: the same Transpose */
  y = two(&c, "Add", y, two(&c, "MatMul", y, weight));
  add_loss(&c, y);
  const opi_gradient_options options = {.stage_of_node = stages};
  if (OPI_ASSERT_OK(build(&c, &options, opi_allocator_system(), &err), &err)) {
    const opi_training *t = c.training;
    const opi_train_param *p = param(&c, "w");
    OPI_ASSERT_INT(c.bound->graph->n_nodes, 7);
    OPI_ASSERT_INT(p->n_gradients, 4); /* as it is and turned in stage 2 */
    uint32_t n_turned = 0;
    for (uint32_t n = 0; n < t->graph->n_nodes; ++n) {
      n_turned += strcmp(t->graph->nodes[n].op, "Transpose") == 0 &&
                  t->graph->nodes[n].pass == OPIPE_PASS_FORWARD;
    }
    OPI_ASSERT_INT(n_turned, 2);
    for (uint32_t k = 0; k < p->n_gradients && k < 4; ++k) {
      const opi_value *g = &t->graph->values[p->gradients[k]];
      OPI_ASSERT_INT(t->stage[g->producer], k < 2 ? k : 2);
      OPI_ASSERT_INT(g->rank, 2);
    }
  }
  close_case(&c);
}

static void test_backward_edge(void) {
  const int64_t x_shape[2] = {2, 4}, w[2] = {4, 4};
  const uint32_t stages[8] = {1, 0, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  memset(&c, 0, sizeof(c));
  test_open(&c.graph);
  const uint32_t x = test_input(&c.graph, "x", OPIPE_FLOAT, x_shape, 2);
  add_loss(&c, one(&c, "Exp", two(&c, "MatMul", x, known(&c, "w", w, 2))));
  const opi_gradient_options options = {.stage_of_node = stages};
  OPI_ASSERT_ERROR(build(&c, &options, opi_allocator_system(), &err), OPIPE_E_INVALID, &err,
                   "of stage 0 reads");
  close_case(&c);
}

/* An exporter made one of two equal biases: each is its own again, by the Identity's name. */
static void test_merged_parameters(void) {
  const int64_t x_shape[2] = {2, 4}, four[1] = {4};
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  memset(&c, 0, sizeof(c));
  test_open(&c.graph);
  const uint32_t x = test_input(&c.graph, "x", OPIPE_FLOAT, x_shape, 2);
  const uint32_t bias = known(&c, "h.0.bias", four, 1);
  const uint32_t other = one(&c, "Identity", bias);
  test_rename(&c.graph, other, "h.1.bias");
  const uint32_t alone = known(&c, "h.2.bias", four, 1);
  uint32_t y = two(&c, "Add", two(&c, "Exp", two(&c, "Add", x, bias), OPIPE_NONE), other);
  y = two(&c, "Add", one(&c, "Exp", y), one(&c, "Identity", alone));
  add_loss(&c, y);
  if (OPI_ASSERT_OK(build_globs(&c, NULL, 0, &err), &err)) {
    OPI_ASSERT_INT(c.training->n_trained, 3);
    OPI_ASSERT_INT(why(&c, "h.0.bias"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "h.1.bias"), OPI_TRAINED);
    OPI_ASSERT_INT(why(&c, "h.2.bias"), OPI_TRAINED); /* not merged: its own name */
  }
  close_case(&c);
}

/* Every node on the way that has no gradient, in one report; what is frozen does not matter. */
static void test_missing_gradients(void) {
  const int64_t x_shape[2] = {2, 4}, four[1] = {4}, one_four[2] = {1, 4};
  const opipe_attr reduction = OPI_ATTR_S("reduction", "mul");
  static const int64_t places[4] = {0, 1, 1, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  memset(&c, 0, sizeof(c));
  test_open(&c.graph);
  uint32_t y = two(&c, "Add", test_input(&c.graph, "x", OPIPE_FLOAT, x_shape, 2),
                   known(&c, "early", four, 1));
  for (int k = 0; k < 2; ++k) {
    const uint32_t in[3] = {y, test_known(&c.graph, NULL, OPIPE_INT64, one_four, 2, places),
                            test_input(&c.graph, NULL, OPIPE_FLOAT, one_four, 2)};
    test_node(&c.graph, "ScatterElements", 18, in, 3, &reduction, 1, &y, 1);
    y = two(&c, "Add", y, known(&c, k == 0 ? "middle" : "late", four, 1));
  }
  add_loss(&c, y);
  OPI_ASSERT_ERROR(build_globs(&c, NULL, 0, &err), OPIPE_E_UNSUPPORTED, &err,
                   "2 nodes on the way from parameters to the loss have no gradient: "
                   "'ScatterElements");
  const opi_train_glob frozen[2] = {{"early", false}, {"middle", false}};
  OPI_ASSERT_ERROR(build_globs(&c, frozen, 1, &err), OPIPE_E_UNSUPPORTED, &err, "reduction 'mul'");
  OPI_ASSERT_OK(build_globs(&c, frozen, 2, &err), &err);
  close_case(&c);
}

static opipe_status build_under(opi_test_memory *memory, void *arg) {
  rule_case *c = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t stages[64] = {0};
  const opi_gradient_options options = {.stage_of_node = stages, .recompute = OPI_RECOMPUTE_BLOCK};
  const opipe_status status = build(c, &options, &memory->allocator, &err);
  opi_training_free(c->training);
  c->training = NULL;
  return status;
}

static void test_every_allocation(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  rule_case c;
  open_rules(&c);
  if (OPI_ASSERT_OK(build_globs(&c, NULL, 0, &err), &err)) { /* binds */
    opi_training_free(c.training);
    c.training = NULL;
    OPI_ASSERT(opi_test_every_allocation(build_under, &c, 4000) > 3);
  }
  close_case(&c);
}

OPI_TEST_MAIN("trained parameters", OPI_TEST(test_rules), OPI_TEST(test_one_wide),
              OPI_TEST(test_globs), OPI_TEST(test_report), OPI_TEST(test_ties),
              OPI_TEST(test_backward_edge), OPI_TEST(test_merged_parameters),
              OPI_TEST(test_missing_gradients), OPI_TEST(test_every_allocation))
