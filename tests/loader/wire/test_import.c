/* SPDX-License-Identifier: Apache-2.0 */
/* Messages -> file graph: inputs and initializers, names, order, attributes, types, sparse tensors;
 * and the refusals that each of them has.
 */
#include <stdio.h>

#include "tests/loader/wire/models.h"

static void test_initializers_and_inputs(void) {
  for (int64_t ir = 3; ir <= 14; ++ir) {
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
  refuse(w_model(with_io((bytes){0}, "x", "x"), 2), OPIPE_E_UNSUPPORTED, "IR version 2; 3 to 14");
  refuse(w_model(with_io((bytes){0}, "x", "x"), 15), OPIPE_E_UNSUPPORTED, "IR version 15; 3 to 14");
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
  bytes result = with_io((bytes){0}, "x", "y");
  w_sub(&result, 1, w_node("Neg", NULL, NULL, "x", "y"));
  w_sub(&result, 5, w_tensor("y", OPIPE_FLOAT, four, 1, numbers, 16));
  refuse(w_model(result, 8), OPIPE_E_INVALID, "'y' is made twice");
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
  for (int64_t i = 1; i <= 2; ++i) {
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

/* Graph `g`: y = x + w, with three initializers, the first and the last of name w. */
static const float last[] = {5, 6, 7, 8};
static bytes with_twins(int dtype, const int64_t *shape, uint64_t n_bytes) {
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "x w", "y"));
  w_sub(&graph, 5, w_tensor("w", OPIPE_FLOAT, four, 1, numbers, 16));
  w_sub(&graph, 5, w_tensor("other", OPIPE_FLOAT, four, 1, numbers, 16));
  w_sub(&graph, 5, w_tensor("w", dtype, shape, 1, last, n_bytes));
  return w_model(graph, 8);
}

static void test_the_last_initializer_counts(void) {
  static const int64_t two[] = {2};
  refuse(with_twins(OPIPE_FLOAT, two, 8), OPIPE_E_INVALID, "as float32 [4] and as float32 [2]");
  refuse(with_twins(OPIPE_INT32, four, 16), OPIPE_E_INVALID, "as float32 [4] and as int32 [4]");
  bytes file = with_twins(OPIPE_FLOAT, four, 16);
  opi_model *model = load(file);
  OPI_ASSERT(model != NULL);
  if (model == NULL)
    return;
  const opi_value *w = &model->graph->values[w_find(model->graph, "w")];
  const opi_value *other = &model->graph->values[w_find(model->graph, "other")];
  OPI_ASSERT_INT(w->flags, OPI_VALUE_INITIALIZER);
  OPI_ASSERT_INT(w->n_bytes, 16);
  OPI_ASSERT(memcmp(w->data, last, 16) == 0);
  OPI_ASSERT(w->at > other->at); /* where new values are saved */
  OPI_ASSERT_INT(model->graph->nodes[0].in[1], w_find(model->graph, "w"));
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
  for (size_t d = 0; d < 2; ++d)
    w_num(&sparse, 3, dims[d]);
  w_sub(&graph, 15, sparse);
  w_sub(&graph, 12, w_value("s", OPIPE_FLOAT, dims, 2));
  return w_model(graph, 8);
}

static void test_sparse_initializers(void) {
  const int64_t dims[] = {2, 3}, flat[] = {1, 5}, pairs[] = {0, 1, 1, 2};
  const float wanted[] = {0, 1, 0, 0, 0, 2};
  for (size_t rank = 1; rank <= 2; ++rank) {
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

/* A Constant node with `attr` made of `field` (5 tensor, 22 sparse tensor). */
static bytes constant_model(const char *attr, uint32_t field, bytes value) {
  bytes a = {0}, node = w_node("Constant", NULL, NULL, "", "c"), graph = {0};
  w_text(&a, 1, attr);
  w_sub(&a, field, value);
  w_num(&a, 20, field == 5 ? 4 : 11);
  w_sub(&node, 5, a);
  w_sub(&graph, 1, node);
  w_sub(&graph, 12, w_value("c", OPIPE_FLOAT, four, 1));
  return w_model(graph, 8);
}

static void test_tensor_attributes(void) {
  const int64_t place[] = {2}, one[] = {1};
  const float spread[] = {0, 0, 1, 0};
  bytes sparse = {0};
  w_sub(&sparse, 1, w_tensor("s", OPIPE_FLOAT, one, 1, numbers, 4));
  w_sub(&sparse, 2, w_tensor(NULL, OPIPE_INT64, one, 1, place, 8));
  w_num(&sparse, 3, 4);
  const struct {
    bytes file;
    const float *wanted;
  } cases[] = {
      {constant_model("value", 5, w_tensor(NULL, OPIPE_FLOAT, four, 1, numbers, 16)), numbers},
      {constant_model("sparse_value", 22, sparse), spread}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    opi_model *model = load(cases[i].file);
    if (model == NULL)
      return;
    const opipe_attr *attr = opi_attr_find(&model->graph->nodes[0], "value");
    OPI_ASSERT_FATAL(attr != NULL && attr->kind == OPIPE_ATTR_TENSOR);
    const opipe_literal *literal = attr->data;
    OPI_ASSERT_INT(literal->dtype, OPIPE_FLOAT);
    OPI_ASSERT_INT(literal->rank, 1);
    OPI_ASSERT_INT(literal->shape[0], 4);
    OPI_ASSERT_INT(literal->n_bytes, 16);
    OPI_ASSERT(memcmp(literal->data, cases[i].wanted, 16) == 0);
    OPI_ASSERT_INT((uintptr_t)literal->data % 4, 0);
    done(model, cases[i].file);
  }
}

static void keep_line(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  char *lines = ctx;
  (void)level;
  (void)file;
  (void)line;
  const size_t n = strlen(lines);
  (void)snprintf(lines + n, 1024 - n, "%s\n", msg);
}

/* Oddities that can be read cause a warning, once. */
static void test_warnings(void) {
  char lines[1024] = "";
  const opi_logger logger = {lines, keep_line, OPIPE_LOG_WARN};
  const int64_t other[] = {5};
  bytes graph = with_io((bytes){0}, "x", "y");
  w_sub(&graph, 1, w_node("Gelu", NULL, "com.microsoft", "x", "h"));
  w_sub(&graph, 1, w_node("Gelu", NULL, "com.microsoft", "h", "y"));
  w_sub(&graph, 5, w_tensor("w", OPIPE_FLOAT, four, 1, numbers, 16));
  w_sub(&graph, 11, w_value("w", OPIPE_FLOAT, other, 1));
  bytes file = w_model(graph, 13);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_OK(w_load(file, 0, &logger, &model, &err), &err);
  OPI_ASSERT(strstr(lines, "declared type of 'w'") != NULL);
  const char *domain = strstr(lines, "no opset_import for domain 'com.microsoft'");
  OPI_ASSERT(domain != NULL && strstr(domain + 1, "no opset_import") == NULL);
  if (model != NULL)
    OPI_ASSERT_INT(model->graph->values[w_find(model->graph, "w")].shape[0], 4);
  done(model, file);
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
  bytes graph = with_io((bytes){0}, "x", "x");
  for (int i = 0; i < 1000; ++i)
    w_sub(&graph, 1, w_node("Neg", NULL, NULL, "x", "-"));
  bytes small = w_model(graph, 8);
  params = (opi_load_params){.data = small.data, .n_bytes = small.n, .memory_budget_bytes = 50000};
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_LIMIT, &err, "50000");
  free(small.data);
  opi_model_free(NULL);
}

OPI_TEST_MAIN("import", OPI_TEST(test_initializers_and_inputs),
              OPI_TEST(test_outputs_may_be_inputs_or_initializers), OPI_TEST(test_names),
              OPI_TEST(test_order), OPI_TEST(test_the_last_constant_counts),
              OPI_TEST(test_the_last_initializer_counts), OPI_TEST(test_attributes),
              OPI_TEST(test_types), OPI_TEST(test_sparse_initializers),
              OPI_TEST(test_tensor_attributes), OPI_TEST(test_warnings),
              OPI_TEST(test_parameters_of_load))
