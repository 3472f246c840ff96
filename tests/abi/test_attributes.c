/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes and opsets of graphs that hosts build are checked like those of files. */
#include "tests/abi/host_kit.h"

/* y = Relu(x) with one attribute, in `opset`. */
static opipe_status build_relu(host_kit *k, const opipe_attr *attr, int64_t version) {
  static const int64_t in_shape[2] = {2, 3};
  static const char *const x[] = {"x"}, *const y[] = {"y"};
  opipe_build_value input = {.name = "x"}, output = {.name = "y"};
  opipe_build_node node = {.op = "Relu", .name = "gate", .inputs = x, .outputs = y};
  opipe_build_graph graph = opipe_build_graph_init();
  opipe_build_opset opset = {.domain = NULL, .version = version};
  opipe_build_params build = opipe_build_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  input.shape = in_shape, input.rank = 2, input.dtype = OPIPE_FLOAT;
  output.rank = -1;
  node.n_inputs = node.n_outputs = 1;
  node.attrs = attr, node.n_attrs = 1;
  graph.inputs = &input, graph.n_inputs = 1, graph.outputs = &output, graph.n_outputs = 1;
  graph.nodes = &node, graph.n_nodes = 1;
  build.graph = &graph, build.opsets = &opset, build.n_opsets = 1;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  const opipe_status status = k->api->model_build(k->context, &build, &k->model, &k->err);
  return status < 0 ? status : k->api->model_bind(k->model, &bind, &k->bound, &k->err);
}

static void test_attributes_of_built_nodes(void) {
  const opipe_attr unknown = {.name = "alpha", .f = 0.5, .kind = OPIPE_ATTR_FLOAT};
  const opipe_attr note = {.name = "__alpha", .f = 0.5, .kind = OPIPE_ATTR_FLOAT};
  host_kit k;
  OPI_ASSERT_ERROR(build_relu(&k, &unknown, 28), OPIPE_E_UNSUPPORTED, &k.err,
                   "node 'gate' (Relu): attribute 'alpha' (0.5) is not known");
  kit_close(&k);
  OPI_ASSERT_OK(build_relu(&k, &note, 28), &k.err);
  kit_close(&k);
  OPI_ASSERT_ERROR(build_relu(&k, &note, 29), OPIPE_E_UNSUPPORTED, &k.err,
                   "opset 29 of domain ai.onnx; operators are known up to opset 28");
  kit_close(&k);
}

OPI_TEST_MAIN("attributes of built graphs", OPI_TEST(test_attributes_of_built_nodes))
