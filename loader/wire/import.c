/* SPDX-License-Identifier: Apache-2.0 */
/* GraphProto -> opi_graph: names become values first (inputs, initializers, every node's outputs),
 * so that files whose nodes are in no order read like others; then nodes; then outputs; then the
 * order is made executable. A subgraph is read when the attribute that holds it is.
 *
 * An initializer that is an input too is a constant: IR 3 demands the pair, later versions call it
 * an overridable default.
 */
#include <string.h>

#include "loader/graph/opsets.h"
#include "loader/wire/wire.h"

/* ---- inputs and initializers ---- */

static size_t count_initializers(const OpiOnnx__GraphProto *message) {
  return message->n_initializer + message->n_sparse_initializer;
}

/* Callback for each initializer; `tensor` is valid during the call. sparse: its values are
 * `tensor`.
 */
typedef opipe_status (*initializer_fn)(void *ctx, const OpiOnnx__TensorProto *tensor,
                                       const OpiOnnx__SparseTensorProto *sparse, opipe_error *err);

/* One after the other: a million of them unpacked together take hundreds of MiB. */
static opipe_status each_initializer(opi_load *load, const OpiOnnx__GraphProto *message,
                                     initializer_fn body, void *ctx, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (size_t i = 0; i < message->n_initializer && status >= 0; ++i) {
    const OpiOnnx__TensorProto *tensor = NULL;
    opi_arena one;
    opi_arena_init(&one, load->allocator, 0);
    status = opi_wire_unpack_tensor(message->initializer[i].data, message->initializer[i].len, &one,
                                    &tensor, err);
    if (status >= 0 && opi_wire_text(tensor->name)[0] == '\0')
      status = opi_fail(err, OPIPE_E_INVALID, "initializer %zu has no name", i);
    if (status >= 0)
      status = body(ctx, tensor, NULL, err);
    opi_arena_release(&one);
  }
  for (size_t i = 0; i < message->n_sparse_initializer && status >= 0; ++i) {
    const OpiOnnx__SparseTensorProto *sparse = message->sparse_initializer[i];
    if (sparse->values == NULL || opi_wire_text(sparse->values->name)[0] == '\0') {
      return opi_fail(err, OPIPE_E_INVALID, "initializer %zu has no name",
                      message->n_initializer + i);
    }
    status = body(ctx, sparse->values, sparse, err);
  }
  return status;
}

/* The known dimensions alone must not make a size that cannot be. */
static bool is_sane(const opi_wire_type *type) {
  uint64_t n_bytes = 0, product = opi_dtype_bits(type->dtype);
  for (int32_t d = 0; d < type->rank; ++d) {
    if (type->shape[d] <= 0)
      continue;
    if (opi_mul_u64(product, (uint64_t)type->shape[d], &n_bytes))
      return false;
    product = n_bytes;
  }
  return product <= INT64_MAX;
}

static opipe_status add_input(opi_scope *scope, const OpiOnnx__ValueInfoProto *info,
                              opipe_error *err) {
  opi_wire_type type;
  uint32_t value = OPIPE_NONE;
  const char *name = opi_wire_text(info->name);
  const bool is_main = scope->outer == NULL;
  if (name[0] == '\0')
    return opi_fail(err, OPIPE_E_INVALID, "a graph input has no name");
  OPI_TRY(opi_wire_read_type(scope->load, info, &type, err));
  if (is_main && type.sequence) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "input '%.200s' is a sequence; only tensors are supported", name);
  }
  if (is_main && type.dtype == OPIPE_UNDEFINED)
    return opi_fail(err, OPIPE_E_INVALID, "input '%.200s' has no element type", name);
  if (!is_sane(&type))
    return opi_fail(err, OPIPE_E_INVALID, "input '%.200s': its size overflows", name);
  OPI_TRY(opi_scope_define(scope, name, &value, err));
  opi_wire_apply_type(scope->load, &scope->graph->values[value], &type);
  if (!opi_graph_add_input(scope->graph, value))
    return opi_fail_nomem(err, 4, "an input");
  return OPIPE_OK;
}

/* Declared inputs by name; the number says whether an initializer is called so too. */
static opipe_status note_constant(void *ctx, const OpiOnnx__TensorProto *tensor,
                                  const OpiOnnx__SparseTensorProto *sparse, opipe_error *err) {
  opi_map *inputs = ctx;
  uint32_t unused = 0;
  (void)sparse;
  return opi_map_get(inputs, tensor->name, &unused) ? opi_map_set(inputs, tensor->name, 1, err)
                                                    : OPIPE_OK;
}

static bool is_constant(const opi_map *inputs, const OpiOnnx__ValueInfoProto *info) {
  uint32_t constant = 0;
  return opi_map_get(inputs, opi_wire_text(info->name), &constant) && constant != 0;
}

/* ONNX Runtime's optimiser writes an initializer once for each time that it folded it: among
 * several of one name, type and shape the last one counts, as with Constant nodes. */
static opipe_status place_initializer(opi_scope *scope, const opi_dense *dense, uint32_t *out_value,
                                      opipe_error *err) {
  const opi_graph *graph = scope->graph;
  const opi_value *first = NULL;
  char was[64], is[64];
  if (opi_map_get(scope->names, dense->name, out_value))
    first = &graph->values[*out_value];
  if (first == NULL || (first->flags & OPI_VALUE_INITIALIZER) == 0)
    return opi_scope_define(scope, dense->name, out_value, err);
  if (first->dtype != dense->dtype || first->rank != (int32_t)dense->rank ||
      memcmp(first->shape, dense->shape, dense->rank * sizeof *dense->shape) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "initializer '%.200s' is listed twice in graph '%.200s', as %s %s and as %s %s",
                    dense->name, graph->name, opi_dtype_name(first->dtype),
                    opi_shape_text(was, sizeof was, first->shape, (uint32_t)first->rank),
                    opi_dtype_name(dense->dtype),
                    opi_shape_text(is, sizeof is, dense->shape, dense->rank));
  }
  if (opi_load_first(scope->load, OPI_WARNED_TWIN)) {
    opi_log(scope->load->logger, OPIPE_LOG_WARN,
            "initializer '%.200s' is listed twice in graph '%.200s': the last one counts",
            dense->name, graph->name);
  }
  return OPIPE_OK;
}

static opipe_status add_initializer(void *ctx, const OpiOnnx__TensorProto *tensor,
                                    const OpiOnnx__SparseTensorProto *sparse, opipe_error *err) {
  opi_scope *scope = ctx;
  opi_dense dense;
  uint32_t v = OPIPE_NONE;
  if (sparse == NULL)
    OPI_TRY(opi_wire_tensor(scope->load, tensor, &dense, err));
  else
    OPI_TRY(opi_wire_sparse(scope->load, sparse, &dense, err));
  OPI_TRY(place_initializer(scope, &dense, &v, err));
  opi_value *value = &scope->graph->values[v];
  value->dtype = dense.dtype;
  value->rank = (int32_t)dense.rank;
  value->shape = (int64_t *)(uintptr_t)dense.shape; /* in the model's arena, ours */
  value->data = dense.data;
  value->n_bytes = dense.n_bytes;
  value->flags = OPI_VALUE_INITIALIZER | (dense.missing ? OPI_VALUE_MISSING : 0u);
  value->at = sparse == NULL ? tensor->span_offset : 0;
  return OPIPE_OK;
}

/* Declared types of inputs that are initializers are compared, not believed. */
static opipe_status check_declared(opi_scope *scope, const OpiOnnx__ValueInfoProto *info,
                                   opipe_error *err) {
  opi_wire_type type;
  uint32_t value = 0;
  if (!opi_map_get(scope->names, opi_wire_text(info->name), &value))
    return OPIPE_OK;
  OPI_TRY(opi_wire_read_type(scope->load, info, &type, err));
  opi_wire_apply_type(scope->load, &scope->graph->values[value], &type);
  return OPIPE_OK;
}

/* Inputs that the caller feeds, then initializers. */
static opipe_status add_sources(opi_scope *scope, const OpiOnnx__GraphProto *message,
                                opi_map *inputs, opipe_error *err) {
  for (size_t i = 0; i < message->n_input; ++i)
    OPI_TRY(opi_map_keep(inputs, opi_wire_text(message->input[i]->name), 0, err));
  if (message->n_input != 0)
    OPI_TRY(each_initializer(scope->load, message, note_constant, inputs, err));
  for (size_t i = 0; i < message->n_input; ++i) {
    if (!is_constant(inputs, message->input[i]))
      OPI_TRY(add_input(scope, message->input[i], err));
  }
  OPI_TRY(each_initializer(scope->load, message, add_initializer, scope, err));
  for (size_t i = 0; i < message->n_input; ++i) {
    if (is_constant(inputs, message->input[i]))
      OPI_TRY(check_declared(scope, message->input[i], err));
  }
  return OPIPE_OK;
}

/* ---- outputs ---- */

static opipe_status add_output(opi_scope *scope, const OpiOnnx__ValueInfoProto *info,
                               opipe_error *err) {
  const char *name = opi_wire_text(info->name);
  const bool is_main = scope->outer == NULL;
  opi_wire_type type;
  uint32_t v = OPIPE_NONE;
  OPI_TRY(opi_wire_read_type(scope->load, info, &type, err));
  const opipe_status found = opi_scope_find(scope, name, &v, err);
  if (found == OPIPE_E_NOTFOUND || (found >= 0 && v == OPIPE_NONE)) {
    return opi_fail(err, OPIPE_E_INVALID, "graph '%.100s': nothing makes its output '%.200s'",
                    scope->graph->name, name);
  }
  if (found < 0)
    return found;
  opi_value *value = &scope->graph->values[v];
  if (is_main && (value->flags & OPI_VALUE_OUTPUT) != 0)
    return opi_fail(err, OPIPE_E_INVALID, "output '%.200s' is listed twice", name);
  opi_wire_apply_type(scope->load, value, &type);
  if (!opi_graph_add_output(scope->graph, v))
    return opi_fail_nomem(err, 4, "an output");
  return OPIPE_OK;
}

/* ---- the graph ---- */

/* Name of the constant that the node makes, NULL when it is another operator. */
static const char *constant_name(const OpiOnnx__NodeProto *node) {
  if (node->n_output != 1 || node->output[0][0] == '\0')
    return NULL;
  if (strcmp(opi_wire_text(node->op_type), "Constant") != 0)
    return NULL;
  return opi_wire_domain(node->domain)[0] == '\0' ? node->output[0] : NULL;
}

/* Shrunken exports carry later Constant nodes that replace earlier ones of the same name: the last
 * one of each name counts. Gives every name its last node. */
static opipe_status find_latest(const OpiOnnx__GraphProto *message, opi_map *latest,
                                opipe_error *err) {
  for (size_t i = 0; i < message->n_node; ++i) {
    const char *name = constant_name(message->node[i]);
    if (name != NULL)
      OPI_TRY(opi_map_set(latest, name, (uint32_t)i, err));
  }
  return OPIPE_OK;
}

static bool is_replaced(opi_load *load, const OpiOnnx__GraphProto *message, size_t i,
                        const opi_map *latest) {
  uint32_t last = 0;
  const char *name = constant_name(message->node[i]);
  if (name == NULL || !opi_map_get(latest, name, &last) || last == i)
    return false;
  if (opi_load_first(load, OPI_WARNED_CONSTANT)) {
    opi_log(load->logger, OPIPE_LOG_WARN,
            "constant '%.200s' is made by nodes %zu and %u: the last one counts", name, i, last);
  }
  return true;
}

static opipe_status fill_nodes(opi_scope *scope, const OpiOnnx__GraphProto *message,
                               const opi_map *latest, opipe_error *err) {
  for (size_t i = 0; i < message->n_node; ++i) {
    if (is_replaced(scope->load, message, i, latest))
      continue;
    OPI_TRY(opi_wire_define_outputs(scope, message->node[i], err));
  }
  for (size_t i = 0; i < message->n_node; ++i) {
    if (is_replaced(scope->load, message, i, latest))
      ++scope->load->n_nodes;
    else
      OPI_TRY(opi_wire_node(scope, message->node[i], i, err));
  }
  return OPIPE_OK;
}

/* Room for what the message holds at least, so that arrays need not grow step by step. */
static opipe_status reserve(opi_graph *graph, const OpiOnnx__GraphProto *message,
                            opipe_error *err) {
  uint64_t n_values = message->n_input + count_initializers(message);
  for (size_t i = 0; i < message->n_node; ++i)
    n_values += message->node[i]->n_output;
  if (n_values > UINT32_MAX / 4 || message->n_node > UINT32_MAX / 4)
    return opi_fail(err, OPIPE_E_LIMIT, "a graph of %llu values", (unsigned long long)n_values);
  if (!opi_graph_reserve(graph, (uint32_t)n_values, (uint32_t)message->n_node))
    return opi_fail_nomem(err, n_values * sizeof(opi_value), "a graph");
  return OPIPE_OK;
}

static opipe_status fill_graph(opi_scope *scope, const OpiOnnx__GraphProto *message,
                               opi_map *inputs, opi_map *latest, opipe_error *err) {
  OPI_TRY(reserve(scope->graph, message, err));
  OPI_TRY(add_sources(scope, message, inputs, err));
  OPI_TRY(find_latest(message, latest, err));
  OPI_TRY(fill_nodes(scope, message, latest, err));
  for (size_t i = 0; i < message->n_output; ++i)
    OPI_TRY(add_output(scope, message->output[i], err));
  return opi_graph_sort(scope->graph, err);
}

opipe_status opi_wire_graph(opi_scope *scope, const OpiOnnx__GraphProto *message,
                            opipe_error *err) {
  opi_map *inputs = NULL, *latest = NULL;
  opipe_status status = opi_map_create(scope->load->allocator, &inputs, err);
  if (status >= 0)
    status = opi_map_create(scope->load->allocator, &latest, err);
  if (status >= 0)
    status = fill_graph(scope, message, inputs, latest, err);
  opi_map_free(latest);
  opi_map_free(inputs);
  return status;
}

/* ---- the model ---- */

static opipe_status check_ir(opi_load *load, opipe_error *err) {
  const OpiOnnx__ModelProto *message = load->message;
  if (!message->has_ir_version)
    return opi_fail(err, OPIPE_E_INVALID, "not an ONNX model: it has no ir_version");
  if (message->ir_version < OPI_OLDEST_IR || message->ir_version > OPI_NEWEST_IR) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "IR version %lld; %d to %d are supported",
                    (long long)message->ir_version, OPI_OLDEST_IR, OPI_NEWEST_IR);
  }
  if (message->graph == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "the model has no graph");
  if (message->n_opset_import == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the model has no opset_import, so the versions of its operators are unknown");
  }
  if (message->n_opset_import > OPI_WIRE_MAX_OPSETS) {
    return opi_fail(err, OPIPE_E_LIMIT, "the model imports %zu opsets; the limit is %d",
                    message->n_opset_import, OPI_WIRE_MAX_OPSETS);
  }
  if (message->n_configuration > OPI_WIRE_MAX_CONFIGURATIONS) {
    return opi_fail(err, OPIPE_E_LIMIT, "the model has %zu device configurations; the limit is %d",
                    message->n_configuration, OPI_WIRE_MAX_CONFIGURATIONS);
  }
  load->model->ir_version = message->ir_version;
  return OPIPE_OK;
}

static opipe_status check_newest(const opi_opset *opset, opipe_error *err) {
  const uint32_t newest = opi_newest_opset(opset->domain);
  if (newest == 0 || opset->version <= (int64_t)newest)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "the model imports opset %lld of domain %s; operators are known up to opset %u",
                  (long long)opset->version, opset->domain[0] == '\0' ? "ai.onnx" : opset->domain,
                  newest);
}

static opipe_status read_opsets(opi_load *load, opipe_error *err) {
  const OpiOnnx__ModelProto *message = load->message;
  opi_model *model = load->model;
  model->opsets = OPI_ARENA_ARRAY(load->arena, opi_opset, message->n_opset_import);
  if (model->opsets == NULL)
    return opi_fail_nomem(err, message->n_opset_import * 16, "opsets");
  for (size_t i = 0; i < message->n_opset_import; ++i) {
    const OpiOnnx__OperatorSetIdProto *opset = message->opset_import[i];
    opi_opset *out = &model->opsets[i];
    out->domain = opi_arena_strdup(load->arena, opi_wire_domain(opset->domain));
    out->version = opset->version;
    if (out->domain == NULL)
      return opi_fail_nomem(err, 16, "a domain");
    for (size_t k = 0; k < i; ++k) {
      if (strcmp(model->opsets[k].domain, out->domain) != 0)
        continue;
      if (model->opsets[k].version == out->version)
        continue;
      return opi_fail(err, OPIPE_E_INVALID, "domain '%.200s' has opset versions %lld and %lld",
                      out->domain, (long long)model->opsets[k].version, (long long)out->version);
    }
    if (opset->version < 1 || opset->version > 1000000) {
      return opi_fail(err, OPIPE_E_INVALID, "opset version %lld of domain '%.200s'",
                      (long long)opset->version, out->domain);
    }
    OPI_TRY(check_newest(out, err));
  }
  model->n_opsets = (uint32_t)message->n_opset_import;
  return OPIPE_OK;
}

static opipe_status name_producer(opi_load *load, opipe_error *err) {
  const char *name = opi_wire_text(load->message->producer_name);
  const char *version = opi_wire_text(load->message->producer_version);
  load->model->producer =
      opi_arena_printf(load->arena, version[0] != '\0' ? "%s %s" : "%s%s", name, version);
  return load->model->producer != NULL ? OPIPE_OK : opi_fail_nomem(err, 64, "the producer's name");
}

static void count_stages(opi_model *model) {
  for (uint32_t n = 0; n < model->graph->n_nodes; ++n) {
    const int32_t stage = model->graph->nodes[n].stage;
    if (stage >= model->n_stages)
      model->n_stages = stage + 1;
  }
}

static opipe_status import_main(opi_load *load, opipe_error *err) {
  const OpiOnnx__GraphProto *message = load->message->graph;
  const char *name = opi_arena_strdup(load->arena, opi_wire_text(message->name));
  load->model->graph = name != NULL ? opi_graph_new(load->arena, name) : NULL;
  if (load->model->graph == NULL)
    return opi_fail_nomem(err, sizeof(opi_graph), "the graph");
  opi_scope scope;
  opipe_status status = opi_scope_open(&scope, load, load->model->graph, NULL, err);
  if (status >= 0)
    status = opi_wire_graph(&scope, message, err);
  opi_scope_close(&scope);
  return status;
}

opipe_status opi_wire_import(opi_load *load, opipe_error *err) {
  OPI_TRY(check_ir(load, err));
  OPI_TRY(name_producer(load, err));
  OPI_TRY(read_opsets(load, err));
  OPI_TRY(opi_map_create(load->allocator, &load->taken, err));
  OPI_TRY(opi_map_create(load->allocator, &load->node_names, err));
  OPI_TRY(opi_map_create(load->allocator, &load->domains, err));
  OPI_TRY(opi_functions_index(load, err));
  opi_wire_choose_configuration(load);
  OPI_TRY(import_main(load, err));
  load->model->n_file_nodes = load->n_nodes;
  count_stages(load->model);
  return OPIPE_OK;
}
