/* SPDX-License-Identifier: Apache-2.0 */
/* Messages -> file graph: inputs and initializers, names and scopes, subgraphs, local functions,
 * versions, stages; and the refusals that each of them has.
 */
#include <stdio.h>

#include "tests/loader/wire/writer.h"

static const int64_t four[] = {4};
static const float numbers[] = {1, 2, 3, 4};

static bytes with_io(bytes graph, const char *in, const char *out) {
  if (in != NULL)
    w_sub(&graph, 11, w_value(in, OPIPE_FLOAT, four, 1));
  if (out != NULL)
    w_sub(&graph, 12, w_value(out, OPIPE_FLOAT, four, 1));
  return graph;
}

/* NULL after a failure that was asserted. The bytes must outlive the model. */
static opi_model *load(bytes model) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *out = NULL;
  OPI_ASSERT_OK(w_load(model, 0, NULL, &out, &err), &err);

  return out;
}

static void refuse(bytes model, opipe_status wanted, const char *part) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *out = NULL;
  OPI_ASSERT_ERROR(w_load(model, 0, NULL, &out, &err), wanted, &err, part);
  opi_model_free(out);
  free(model.data);
}

static void done(opi_model *model, bytes file) {
  opi_model_free(model);
  free(file.data);
}

static void test_initializers_and_inputs(void) {
  for (int64_t ir = 3; ir <= 13; ir++) {
    bytes graph = with_io((bytes){0}, "x", "y");
    w_sub(&graph, 1, w_node("Add", "add", NULL, "x w", "y"));
    w_sub(&graph, 5, w_tensor("w", OPIPE_FLOAT, four, 1, numbers, 16));
    w_sub(&graph, 11, w_value("w", OPIPE_FLOAT, four, 1));
    bytes file = w_model(graph, ir);
    opi_model *model = load(file);
    if (model == NULL)
      return;
    OPI_ASSERT_INT(model->ir_version, ir);
    OPI_ASSERT_INT(model->graph->n_inputs, 1);
    const opi_value *w = &model->graph->values[w_find(model->graph, "w")];
    OPI_ASSERT_INT(w->flags, OPI_VALUE_INITIALIZER);
    OPI_ASSERT(memcmp(w->data, numbers, 16) == 0);
    OPI_ASSERT_INT(w->producer, OPIPE_NONE);
    const opi_node *add = &model->graph->nodes[0];
    OPI_ASSERT_INT(add->in[1], w_find(model->graph, "w"));
    OPI_ASSERT_INT(add->version, 17);
    OPI_ASSERT_INT(add->source, 0);
    OPI_ASSERT_INT(add->stage, -1);
    OPI_ASSERT_INT(model->graph->values[add->out[0]].producer, 0);
    done(model, file);
  }
  refuse(w_model(with_io((bytes){0}, "x", "x"), 2), OPIPE_E_UNSUPPORTED, "IR version 2");
}

static void test_outputs_may_be_inputs_or_initializers(void) {
  bytes graph = with_io((bytes){0}, "x", "x");
  w_sub(&graph, 5, w_tensor("w", OPIPE_FLOAT, four, 1, numbers, 16));
  w_sub(&graph, 12, w_value("w", OPIPE_FLOAT, four, 1));
  bytes file = w_model(graph, 8);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  OPI_ASSERT_INT(model->graph->n_nodes, 0);
  OPI_ASSERT_INT(model->graph->n_outputs, 2);
  OPI_ASSERT_INT(model->graph->values[model->graph->outputs[0]].flags,
                 OPI_VALUE_INPUT | OPI_VALUE_OUTPUT);
  done(model, file);
  refuse(w_model(with_io(with_io((bytes){0}, "x", "x"), NULL, "x"), 8), OPIPE_E_INVALID, "twice");
  refuse(w_model(with_io((bytes){0}, "x", "lost"), 8), OPIPE_E_INVALID, "'lost'");
}

static void test_names(void) {
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, w_node("Clip", NULL, NULL, "x - hi -", "t -"));
  w_sub(&graph, 1, w_node("Relu", "same", NULL, "t", "u"));
  w_sub(&graph, 1, w_node("Relu", "same", NULL, "u", "y"));
  w_sub(&graph, 5, w_tensor("hi", OPIPE_FLOAT, NULL, 0, numbers, 4));
  bytes file = w_model(graph, 8);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  const opi_node *nodes = model->graph->nodes;
  OPI_ASSERT_STR(nodes[0].name, "Clip_0");
  OPI_ASSERT_INT(nodes[0].n_in, 3);
  OPI_ASSERT_INT(nodes[0].in[1], OPIPE_NONE);
  OPI_ASSERT_INT(nodes[0].n_out, 2);
  OPI_ASSERT_INT(nodes[0].out[1], OPIPE_NONE);
  OPI_ASSERT_STR(nodes[1].name, "same");
  OPI_ASSERT_STR(nodes[2].name, "same__1");
  done(model, file);

  bytes twice = with_io((bytes){0}, "x", "y");
  w_sub(&twice, 1, w_node("Relu", NULL, NULL, "x", "y"));
  w_sub(&twice, 1, w_node("Neg", NULL, NULL, "x", "y"));
  refuse(w_model(twice, 8), OPIPE_E_INVALID, "'y' is made twice");
  bytes input = with_io((bytes){0}, "x", "x");
  w_sub(&input, 1, w_node("Neg", NULL, NULL, "x", "x"));
  refuse(w_model(input, 8), OPIPE_E_INVALID, "'x' is made twice");
  bytes unknown = with_io((bytes){0}, "x", "y");
  w_sub(&unknown, 1, w_node("Add", "plus", NULL, "x nowhere", "y"));
  refuse(w_model(unknown, 8), OPIPE_E_INVALID, "node 'plus' (Add): reads 'nowhere'");
}

static void test_order(void) {
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, w_node("Relu", "last", NULL, "b", "y"));
  w_sub(&graph, 1, w_node("Neg", "second", NULL, "a", "b"));
  w_sub(&graph, 1, w_node("Exp", "first", NULL, "x", "a"));
  bytes file = w_model(graph, 8);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  OPI_ASSERT_STR(model->graph->nodes[0].name, "first");
  OPI_ASSERT_INT(model->graph->nodes[0].source, 2);
  OPI_ASSERT_STR(model->graph->nodes[2].name, "last");
  done(model, file);
  bytes cycle = with_io((bytes){0}, "x", "y");
  w_sub(&cycle, 1, w_node("Add", "one", NULL, "x y", "a"));
  w_sub(&cycle, 1, w_node("Neg", "two", NULL, "a", "y"));
  refuse(w_model(cycle, 8), OPIPE_E_INVALID, "cycle");
}

/* Exports that were shrunk later replace constants by later ones of the same name. */
static void test_the_last_constant_counts(void) {
  bytes graph = with_io((bytes){0}, "x", "y");
  for (int64_t i = 1; i <= 2; i++) {
    bytes node = w_node("Constant", NULL, NULL, "", "c");
    w_attr_int(&node, "value_int", i);
    w_sub(&graph, 1, node);
  }
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "x c", "y"));
  bytes file = w_model(graph, 8);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  OPI_ASSERT_INT(model->n_file_nodes, 3);
  OPI_ASSERT_INT(model->graph->n_nodes, 2);
  OPI_ASSERT_INT(opi_attr_int(&model->graph->nodes[0], "value_int", 0), 2);
  done(model, file);
}

static bytes attribute(const char *name, int64_t type, bytes value) {
  bytes b = {0}, node = w_node("Op", "n", NULL, "x", "y");
  w_text(&b, 1, name);
  w_raw(&b, value.data, value.n);
  free(value.data);
  if (type != 0)
    w_num(&b, 20, type);
  w_sub(&node, 5, b);
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, node);
  return w_model(graph, 8);
}

static bytes field_int(int64_t value) {
  bytes b = {0};
  w_num(&b, 3, value);
  return b;
}

static bytes field_strings(void) {
  bytes b = {0};
  w_text(&b, 9, "one");
  w_text(&b, 9, "");
  return b;
}

static const opipe_attr *only_attr(const opi_model *model) {
  const opi_node *node = &model->graph->nodes[0];
  OPI_ASSERT_INT(node->n_attrs, 1);
  return &node->attrs[0];
}

static void test_attributes(void) {
  /* With and without a type. */
  for (int64_t type = 0; type <= 2; type += 2) {
    bytes file = attribute("i", type, field_int(-7));
    opi_model *model = load(file);
    if (model == NULL)
      return;
    OPI_ASSERT_INT(only_attr(model)->kind, OPIPE_ATTR_INT);
    OPI_ASSERT_INT(only_attr(model)->i, -7);
    done(model, file);
  }
  bytes file = attribute("names", 8, field_strings());
  opi_model *model = load(file);
  if (model == NULL)
    return;
  const opipe_attr *attr = only_attr(model);
  OPI_ASSERT_INT(attr->kind, OPIPE_ATTR_STRINGS);
  OPI_ASSERT_INT(attr->n, 2);
  OPI_ASSERT_STR(((const char *const *)attr->data)[0], "one");
  OPI_ASSERT_STR(((const char *const *)attr->data)[1], "");
  done(model, file);
  /* A writer that leaves zeros out. */
  file = attribute("f", 1, (bytes){0});
  model = load(file);
  if (model == NULL)
    return;
  OPI_ASSERT_INT(only_attr(model)->kind, OPIPE_ATTR_FLOAT);
  done(model, file);

  refuse(attribute("i", 1, field_int(1)), OPIPE_E_INVALID, "attribute 'i': declared FLOAT");
  refuse(attribute("i", 99, field_int(1)), OPIPE_E_INVALID, "type 99");
  refuse(attribute("", 2, field_int(1)), OPIPE_E_INVALID, "no name");
  refuse(attribute("t", 4, (bytes){0}), OPIPE_E_INVALID, "holds none");
  refuse(attribute("g", 5, (bytes){0}), OPIPE_E_INVALID, "holds none");
  bytes two = field_int(1);
  w_float(&two, 2, 1);
  refuse(attribute("i", 0, two), OPIPE_E_INVALID, "more than one type");
  bytes ref = {0};
  w_text(&ref, 21, "outer");
  refuse(attribute("i", 2, ref), OPIPE_E_INVALID, "outside of a function");
}

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
  for (uint32_t n = 0; n < graph->n_nodes; n++) {
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
  for (uint32_t i = 0; i < n; i++) {
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
  for (size_t i = 0; i < OPI_COUNT(cases); i++) {
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

/* ---- types, sparse initializers ---- */

static void test_types(void) {
  const int64_t dims[] = {2, -1, 0};
  bytes graph = {0};
  w_sub(&graph, 11, w_value("x", OPIPE_INT64, dims, 3));
  w_sub(&graph, 12, w_value("x", OPIPE_INT64, dims, 3));
  bytes file = w_model(graph, 8);
  opi_model *model = load(file);
  if (model == NULL)
    return;
  const opi_value *x = &model->graph->values[0];
  OPI_ASSERT_INT(x->rank, 3);
  OPI_ASSERT_INT(x->shape[0], 2);
  OPI_ASSERT_INT(x->shape[1], -1);
  OPI_ASSERT_INT(x->shape[2], 0);
  OPI_ASSERT_STR(x->dim_names[1], "n");
  OPI_ASSERT(x->dim_names[0] == NULL);
  done(model, file);

  bytes untyped = {0}, info = {0};
  w_text(&info, 1, "x");
  w_sub(&untyped, 11, info);
  refuse(w_model(untyped, 8), OPIPE_E_INVALID, "'x' has no element type");
  const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
  bytes big = {0};
  w_sub(&big, 11, w_value("x", OPIPE_FLOAT, huge, 2));
  refuse(w_model(big, 8), OPIPE_E_INVALID, "'x': its size overflows");
}

static bytes sparse_model(const int64_t *indices, size_t n_indices, size_t rank,
                          const int64_t *dims) {
  const int64_t n = (int64_t)(n_indices / rank), pairs[] = {n, (int64_t)rank};
  bytes sparse = {0}, graph = {0};
  w_sub(&sparse, 1, w_tensor("s", OPIPE_FLOAT, &n, 1, numbers, (size_t)n * 4));
  w_sub(&sparse, 2, w_tensor(NULL, OPIPE_INT64, pairs, rank == 1 ? 1 : 2, indices, n_indices * 8));
  for (size_t d = 0; d < 2; d++)
    w_num(&sparse, 3, dims[d]);
  w_sub(&graph, 15, sparse);
  w_sub(&graph, 12, w_value("s", OPIPE_FLOAT, dims, 2));
  return w_model(graph, 8);
}

static void test_sparse_initializers(void) {
  const int64_t dims[] = {2, 3}, flat[] = {1, 5}, pairs[] = {0, 1, 1, 2};
  const float wanted[] = {0, 1, 0, 0, 0, 2};
  for (size_t rank = 1; rank <= 2; rank++) {
    bytes file = sparse_model(rank == 1 ? flat : pairs, 2 * rank, rank, dims);
    opi_model *model = load(file);
    if (model == NULL)
      return;
    OPI_ASSERT(memcmp(model->graph->values[0].data, wanted, sizeof(wanted)) == 0);
    OPI_ASSERT_INT(model->graph->values[0].flags, OPI_VALUE_INITIALIZER | OPI_VALUE_OUTPUT);
    done(model, file);
  }
  const int64_t outside[] = {6, 0}, negative[] = {-1, 0}, column[] = {0, 3, 0, 0};
  const int64_t huge[] = {1 << 20, 1 << 20};
  refuse(sparse_model(outside, 2, 1, dims), OPIPE_E_INVALID, "'s': an index");
  refuse(sparse_model(negative, 2, 1, dims), OPIPE_E_INVALID, "'s': an index");
  refuse(sparse_model(column, 4, 2, dims), OPIPE_E_INVALID, "'s': an index");
  refuse(sparse_model(flat, 2, 1, huge), OPIPE_E_UNSUPPORTED, "'s' would take");
}

static void test_parameters_of_load(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  opi_load_params params = {0};
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "none given");
  params.path = "/no/such/file.onnx";
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_NOTFOUND, &err, "/no/such");
  params.data = "x";
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "both given");
  params.path = NULL;
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "empty");
  params.data = "version https://git-lfs.github.com/spec/v1\n";
  params.n_bytes = 43;
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "Git LFS");
  /* NULL for the error is allowed everywhere. */
  OPI_ASSERT_INT(opi_model_load(&params, &model, NULL), OPIPE_E_INVALID);
  bytes small = exploding(8);
  params = (opi_load_params){.data = small.data, .n_bytes = small.n, .memory_budget_bytes = 50000};
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_LIMIT, &err, "50000");
  free(small.data);
  opi_model_free(NULL);
}

OPI_TEST_MAIN("import", OPI_TEST(test_initializers_and_inputs),
              OPI_TEST(test_outputs_may_be_inputs_or_initializers), OPI_TEST(test_names),
              OPI_TEST(test_order), OPI_TEST(test_the_last_constant_counts),
              OPI_TEST(test_attributes), OPI_TEST(test_subgraphs_capture),
              OPI_TEST(test_functions_are_expanded), OPI_TEST(test_functions_are_bounded),
              OPI_TEST(test_versions), OPI_TEST(test_stages), OPI_TEST(test_types),
              OPI_TEST(test_sparse_initializers), OPI_TEST(test_parameters_of_load))
