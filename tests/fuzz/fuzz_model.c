/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reading of models and tensors from memory. A model that can be read must be
 * consistent: every tensor's bytes readable, every index in range, and an annotated copy readable
 * again.
 */
#include "loader/graph/model.h"
#include "tests/fuzz/models.h"

static volatile uint8_t sink;

/* Reads the ends of a tensor: they must be memory. */
static void touch(const void *data, uint64_t n_bytes) {
  const uint8_t *bytes = data;
  if (data == NULL || n_bytes == 0)
    return;
  sink = (uint8_t)(bytes[0] ^ bytes[n_bytes / 2] ^ bytes[n_bytes - 1]);
}

static void check_graph(const opi_graph *graph);

static void check_attribute(const opi_graph *graph, const opipe_attr *attr) {
  must(attr->name != NULL, "an attribute without a name");
  if (attr->kind == OPIPE_ATTR_TENSOR) {
    const opipe_literal *literal = attr->data;
    touch(literal->data, literal->n_bytes);
  } else if (attr->kind == OPI_ATTR_GRAPH) {
    const opi_graph *inner = attr->data;
    must(inner->outer == graph, "a subgraph of another graph");
    check_graph(inner);
  } else if (attr->kind == OPIPE_ATTR_STRING) {
    must(((const char *)attr->data)[attr->n] == '\0', "a string without its end");
  }
}

static void check_node(const opi_graph *graph, uint32_t n) {
  const opi_node *node = &graph->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    must(node->in[i] < graph->n_values, "an input out of range");
    const uint32_t producer = graph->values[node->in[i]].producer;
    must(producer == OPIPE_NONE || producer < n, "read before it is made");
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    if (node->out[i] == OPIPE_NONE)
      continue;
    must(node->out[i] < graph->n_values, "an output out of range");
    must(graph->values[node->out[i]].producer == n, "made by another node");
  }
  for (uint32_t a = 0; a < node->n_attrs; ++a)
    check_attribute(graph, &node->attrs[a]);
}

static void check_graph(const opi_graph *graph) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    must(value->name != NULL, "a value without a name");
    touch(value->data, value->n_bytes);
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    check_node(graph, n);
  for (uint32_t i = 0; i < graph->n_outputs; ++i)
    must(graph->outputs[i] < graph->n_values, "a graph output out of range");
  for (uint32_t i = 0; i < graph->n_captures; ++i) {
    must(graph->capture_inner[i] < graph->n_values, "a captured value out of range");
    must(graph->capture_outer[i] < graph->outer->n_values, "a captured name out of range");
  }
}

typedef struct copy {
  uint8_t *data;
  size_t n, room;
} copy;

static opipe_status append(void *ctx, const void *data, size_t n) {
  copy *c = ctx;
  if (n > c->room - c->n)
    return OPIPE_E_LIMIT;
  memcpy(c->data + c->n, data, n);
  c->n += n;
  return OPIPE_OK;
}

/* Nodes in the file's main graph: the annotation wants one stage for each. */
static uint32_t count_nodes(const opi_model *model) {
  uint64_t at = 0;
  uint32_t n = 0;
  opi_wire_field field, inner;
  while (at < model->file_bytes && opi_wire_next(model->file, model->file_bytes, &at, &field)) {
    if (field.number != 7)
      continue;
    for (uint64_t k = field.data;
         k < field.end && opi_wire_next(model->file, field.end, &k, &inner);)
      n += inner.number == 1;
  }
  return n;
}

static void check_annotation(const opi_model *model, const opi_load_params *params) {
  const uint32_t n_nodes = count_nodes(model);
  int32_t *stages = calloc((size_t)n_nodes + 1, sizeof(*stages));
  copy out = {.room = model->file_bytes + 64 * ((size_t)n_nodes + 1)};
  out.data = malloc(out.room);
  if (stages != NULL && out.data != NULL) {
    must(opi_model_annotate(model, "p", stages, n_nodes, 1, NULL, append, &out, NULL) >= 0,
         "it cannot be annotated");
    opi_load_params again = *params;
    opi_model *annotated = NULL;
    again.data = out.data;
    again.n_bytes = out.n;
    const opipe_status status = opi_model_load(&again, &annotated, NULL);
    /* A copy is a little larger, so a limit may be met. */
    must(status >= 0 || status == OPIPE_E_LIMIT, "the annotated copy cannot be read");
    opi_model_free(annotated);
  }
  free(out.data);
  free(stages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const opi_load_params params = {.data = data,
                                  .n_bytes = size,
                                  .flags = size % 2 == 0 ? OPI_LOAD_GRAPH_ONLY : 0,
                                  .memory_budget_bytes = UINT64_C(16) << 20};
  opi_model *model = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_model_load(&params, &model, &err);
  must((status < 0) == (err.message[0] != '\0'), "a status without a message");
  if (status >= 0) {
    check_graph(model->graph);
    check_annotation(model, &params);
  }
  opi_model_free(model);

  opi_arena arena;
  opi_value tensor;
  opi_arena_init(&arena, opi_allocator_system(), UINT64_C(64) << 20);
  if (opi_tensor_parse(data, size, &arena, &tensor, NULL) >= 0)
    touch(tensor.data, tensor.n_bytes);
  opi_arena_release(&arena);
  return 0;
}
