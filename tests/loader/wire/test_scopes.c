/* SPDX-License-Identifier: Apache-2.0 */
/* Meaning of names, calls and versions where they stand: subgraphs and what they capture, local
 * functions, opset imports, stage annotations.
 */
#include <stdio.h>

#include "tests/loader/wire/models.h"

/* ---- subgraphs ---- */

static bytes branch(const char *reads, const char *makes) {
  bytes graph = {0};
  w_text(&graph, 2, makes);
  w_sub(&graph, 1, w_node("Neg", NULL, NULL, reads, makes));
  w_sub(&graph, 12, w_value(makes, OPIPE_FLOAT, four, 1));
  return graph;
}

static bytes if_model(bytes then_branch, bytes else_branch) {
  bytes node = w_node("If", "choose", NULL, "c", "y"), graph = with_io((bytes){0}, "x", "y");
  w_attr_graph(&node, "then_branch", then_branch);
  w_attr_graph(&node, "else_branch", else_branch);
  w_sub(&graph, 1, node);
  w_sub(&graph, 1, w_node("Exp", "late", NULL, "x", "h")); /* made after it is captured */
  w_sub(&graph, 11, w_value("c", OPIPE_BOOL, NULL, 0));
  return w_model(graph, 8);
}

static void test_subgraphs_capture(void) {
  bytes file = if_model(branch("h", "r"), branch("x", "r"));
  opi_model *model = load(file);
  if (model == NULL)
    return;
  const opi_graph *graph = model->graph;
  OPI_ASSERT_INT(model->n_file_nodes, 4);
  OPI_ASSERT_STR(graph->nodes[0].name, "late");
  const opi_node *node = &graph->nodes[1];
  const opipe_attr *then_attr = opi_attr_find(node, "then_branch");
  OPI_ASSERT_FATAL(then_attr != NULL && then_attr->kind == OPI_ATTR_GRAPH);
  const opi_graph *then_graph = then_attr->data;
  OPI_ASSERT(then_graph->outer == graph);
  OPI_ASSERT_INT(then_graph->n_captures, 1);
  OPI_ASSERT_INT(then_graph->capture_outer[0], w_find(graph, "h"));
  OPI_ASSERT_INT(then_graph->capture_inner[0], then_graph->nodes[0].in[0]);
  OPI_ASSERT_INT(then_graph->nodes[0].source, 0);
  /* The two branches make "r" each: in the graphs the names differ. */
  const opi_graph *else_graph = opi_attr_find(node, "else_branch")->data;
  OPI_ASSERT(strcmp(then_graph->values[then_graph->outputs[0]].name,
                    else_graph->values[else_graph->outputs[0]].name) != 0);
  done(model, file);

  refuse(if_model(branch("none", "r"), branch("x", "r")), OPIPE_E_INVALID, "reads 'none'");
  /* Names that stand outside too: the inner one is meant. */
  file = if_model(branch("x", "h"), branch("x", "y"));
  model = load(file);
  if (model == NULL)
    return;
  then_graph = opi_attr_find(&model->graph->nodes[0], "then_branch")->data;
  OPI_ASSERT_INT(then_graph->n_captures, 1);
  OPI_ASSERT_INT(then_graph->outputs[0], then_graph->nodes[0].out[0]);
  OPI_ASSERT(strcmp(then_graph->values[then_graph->outputs[0]].name, "h") != 0);
  done(model, file);
  bytes cycle = if_model(branch("y", "r"), branch("x", "r"));
  refuse(cycle, OPIPE_E_INVALID, "cycle");
}

/* ---- functions ---- */

/* Twice(a, b) -> (c, d): c = Scale(a){by = $by, default 5}; d = b. Scale(v) -> w of overload "s":
 * w = Op(v){by = $by}. */
static void add_functions(bytes *model) {
  bytes scale = {0}, op = w_node("Op", "op", NULL, "v", "w");
  w_attr_ref(&op, "by", "by");
  w_text(&scale, 1, "Scale");
  w_text(&scale, 10, "local");
  w_text(&scale, 13, "s");
  w_names(&scale, 4, "v");
  w_names(&scale, 5, "w");
  w_text(&scale, 6, "by");
  w_sub(&scale, 7, op);
  w_opset(&scale, 9, "", 13);
  w_sub(model, 25, scale);

  bytes twice = {0}, call = w_node("Scale", NULL, "local", "a", "t"), preset = {0};
  w_text(&call, 8, "s");
  w_attr_ref(&call, "by", "by");
  w_text(&preset, 1, "by");
  w_num(&preset, 3, 5);
  w_num(&preset, 20, 2);
  w_text(&twice, 1, "Twice");
  w_text(&twice, 10, "local");
  w_names(&twice, 4, "a b");
  w_names(&twice, 5, "c b");
  w_sub(&twice, 11, preset);
  w_sub(&twice, 7, w_node("Relu", NULL, NULL, "t", "c"));
  w_sub(&twice, 7, call);
  w_opset(&twice, 9, "local", 1);
  w_sub(model, 25, twice);
}

static bytes function_model(const char *in, const char *out, int64_t by) {
  bytes call = w_node("Twice", "call", "local", in, out), graph = with_io((bytes){0}, "x", "y");
  if (by >= 0)
    w_attr_int(&call, "by", by);
  w_stage(&call, "plan", 3);
  w_sub(&graph, 1, w_node("Neg", NULL, NULL, "x", "n"));
  w_sub(&graph, 1, call);
  bytes model = w_model(graph, 11);
  w_opset(&model, 8, "local", 1);
  add_functions(&model);
  return model;
}

static const opi_node *node_of(const opi_graph *graph, const char *op) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (strcmp(graph->nodes[n].op, op) == 0)
      return &graph->nodes[n];
  }
  return NULL;
}

static void test_functions_are_expanded(void) {
  for (int64_t by = -1; by < 2; by += 2) {
    bytes file = function_model("n x", "y z", by);
    opi_model *model = load(file);
    if (model == NULL)
      return;
    const opi_graph *graph = model->graph;
    /* Neg, Op, Relu; Identity for the input that is handed through. */
    OPI_ASSERT_INT(graph->n_nodes, 4);
    OPI_ASSERT_INT(model->n_file_nodes, 3);
    const opi_node *op = node_of(graph, "Op"), *relu = node_of(graph, "Relu");
    const opi_node *identity = node_of(graph, "Identity");
    OPI_ASSERT_FATAL(op != NULL && relu != NULL && identity != NULL);
    OPI_ASSERT_INT(opi_attr_int(op, "by", 0), by < 0 ? 5 : by);
    OPI_ASSERT_INT(op->version, 13);
    OPI_ASSERT_INT(relu->version, 17);
    OPI_ASSERT_INT(op->source, 1);
    OPI_ASSERT_INT(op->stage, 3);
    OPI_ASSERT_INT(model->n_stages, 4);
    OPI_ASSERT_STR(op->name, "call/Scale_1/op");
    OPI_ASSERT_INT(op->in[0], w_find(graph, "n"));
    OPI_ASSERT_INT(relu->out[0], w_find(graph, "y"));
    OPI_ASSERT_INT(relu->in[0], w_find(graph, "call/t"));
    OPI_ASSERT_INT(identity->in[0], w_find(graph, "x"));
    OPI_ASSERT_INT(identity->out[0], w_find(graph, "z"));
    done(model, file);
  }
  /* Absent outputs and inputs. */
  bytes file = function_model("n", "y", -1);
  opi_model *model = load(file);
  if (model != NULL)
    OPI_ASSERT_INT(model->graph->n_nodes, 3);
  done(model, file);
  refuse(function_model("n x n", "y z", -1), OPIPE_E_INVALID, "passes 3 inputs");
  refuse(function_model("n x", "y z u", -1), OPIPE_E_INVALID, "takes 3 outputs");
  refuse(function_model("n lost", "y z", -1), OPIPE_E_INVALID, "reads 'lost'");
  refuse(function_model("n", "y z", -1), OPIPE_E_INVALID, "does not make its output 'b'");
}

/* f0 calls f1 twice, f1 calls f2 twice ...: 2^n nodes. */
static bytes exploding(uint32_t n) {
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, w_node("f0", NULL, "local", "x", "y"));
  bytes model = w_model(graph, 8);
  for (uint32_t i = 0; i < n; ++i) {
    char name[16], next[16];
    bytes f = {0};
    (void)snprintf(name, sizeof(name), "f%u", i);
    (void)snprintf(next, sizeof(next), "f%u", i + 1);
    w_text(&f, 1, name);
    w_text(&f, 10, "local");
    w_names(&f, 4, "a");
    w_names(&f, 5, "b");
    const bool last = i + 1 == n;
    w_sub(&f, 7, w_node(last ? "Neg" : next, NULL, last ? NULL : "local", "a", "t"));
    w_sub(&f, 7, w_node(last ? "Neg" : next, NULL, last ? NULL : "local", "t", "b"));
    w_sub(&model, 25, f);
  }
  return model;
}

static void test_functions_are_bounded(void) {
  bytes file = exploding(8);
  opi_model *model = load(file);
  if (model != NULL)
    OPI_ASSERT_INT(model->graph->n_nodes, 256);
  done(model, file);
  refuse(exploding(40), OPIPE_E_LIMIT, "");
  refuse(exploding(200), OPIPE_E_LIMIT, "");

  bytes twice = w_model(with_io((bytes){0}, "x", "x"), 8), f = {0};
  w_text(&f, 1, "f");
  w_sub(&twice, 25, f);
  bytes g = {0};
  w_text(&g, 1, "f");
  w_text(&g, 10, "ai.onnx");
  w_sub(&twice, 25, g);
  refuse(twice, OPIPE_E_INVALID, "defined twice");
}

/* ---- versions and stages ---- */

static bytes versioned(const char *domain, const char *imported) {
  bytes graph = with_io((bytes){0}, "x", "y"), model = {0};
  w_sub(&graph, 1, w_node("Gelu", NULL, domain, "x", "y"));
  w_num(&model, 1, 8);
  w_opset(&model, 8, imported, 12);
  w_sub(&model, 7, graph);
  return model;
}

static void test_versions(void) {
  static const struct {
    const char *domain, *imported;
    int version; /* 0: refused */
  } cases[] = {{NULL, "", 12},           {"", "ai.onnx", 12}, {"ai.onnx", "", 12},
               {"com.microsoft", "", 1}, {"own", "own", 12},  {NULL, "own", 0},
               {"ai.onnx", "own", 0}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    bytes file = versioned(cases[i].domain, cases[i].imported);
    if (cases[i].version == 0) {
      refuse(file, OPIPE_E_INVALID, "opset_import for the default domain");
      continue;
    }
    opi_model *model = load(file);
    if (model == NULL)
      return;
    OPI_ASSERT_INT(model->graph->nodes[0].version, cases[i].version);
    done(model, file);
  }
  bytes none = {0}, twice = versioned("own", "own"), zero = versioned("", "own");
  w_num(&none, 1, 8);
  w_sub(&none, 7, with_io((bytes){0}, "x", "x"));
  refuse(none, OPIPE_E_INVALID, "no opset_import");
  w_opset(&twice, 8, "own", 13);
  refuse(twice, OPIPE_E_INVALID, "12 and 13");
  w_opset(&zero, 8, "", 0);
  refuse(zero, OPIPE_E_INVALID, "opset version 0");
}

static void test_stages(void) {
  bytes graph = with_io((bytes){0}, "x", "y"), a = w_node("Neg", NULL, NULL, "x", "h");
  bytes b = w_node("Neg", NULL, NULL, "h", "y");
  w_stage(&a, "old", 7);
  w_stage(&a, "new", 0);
  w_stage(&b, "new", 2);
  w_sub(&graph, 1, a);
  w_sub(&graph, 1, b);
  bytes file = w_model(graph, 11), config = {0}, newer = {0};
  w_text(&config, 1, "old");
  w_num(&config, 2, 8);
  w_text(&newer, 1, "new");
  w_num(&newer, 2, 3);
  w_sub(&file, 26, config);
  w_sub(&file, 26, newer);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  OPI_ASSERT_INT(model->graph->nodes[0].stage, 0);
  OPI_ASSERT_INT(model->graph->nodes[1].stage, 2);
  OPI_ASSERT_INT(model->n_stages, 3);
  done(model, file);
  bytes bad = with_io((bytes){0}, "x", "y"), node = w_node("Neg", NULL, NULL, "x", "y");
  w_stage(&node, "c", -2);
  w_sub(&bad, 1, node);
  refuse(w_model(bad, 11), OPIPE_E_INVALID, "pipeline_stage -2");
}

OPI_TEST_MAIN("scopes", OPI_TEST(test_subgraphs_capture), OPI_TEST(test_functions_are_expanded),
              OPI_TEST(test_functions_are_bounded), OPI_TEST(test_versions), OPI_TEST(test_stages))
