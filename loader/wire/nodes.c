/* SPDX-License-Identifier: Apache-2.0 */
/* NodeProto -> opi_node: the operator's version from the opset imports in force, inputs looked up,
 * the stage annotation read, a name made where the file has none. Calls of local functions are
 * handed to the expansion. Whether an operator is known is not asked here: binding reports all of
 * them.
 */
#include <stdio.h>
#include <string.h>

#include "loader/wire/wire.h"

const char *opi_wire_domain(const char *domain) {
  if (domain == NULL || strcmp(domain, "ai.onnx") == 0)
    return "";
  return domain;
}

/* ---- versions ---- */

static bool find_version(OpiOnnx__OperatorSetIdProto *const *opsets, size_t n, const char *domain,
                         int64_t *out_version) {
  for (size_t i = 0; i < n; ++i) {
    if (strcmp(opi_wire_domain(opsets[i]->domain), domain) != 0)
      continue;
    *out_version = opsets[i]->version;
    return true;
  }
  return false;
}

opipe_status opi_wire_version(opi_scope *scope, const char *domain, const char *op,
                              uint32_t *out_version, opipe_error *err) {
  opi_load *load = scope->load;
  const OpiOnnx__FunctionProto *function = scope->call != NULL ? scope->call->function : NULL;
  int64_t version = 1;
  uint32_t unused = 0;
  bool found = function != NULL &&
               find_version(function->opset_import, function->n_opset_import, domain, &version);
  if (!found) {
    found =
        find_version(load->message->opset_import, load->message->n_opset_import, domain, &version);
  }
  if (!found && domain[0] == '\0') {
    return opi_fail(err, OPIPE_E_INVALID,
                    "operator %.100s: the model has no opset_import for the default domain", op);
  }
  if (!found && !opi_map_get(load->domains, domain, &unused)) {
    OPI_TRY(opi_map_set(load->domains, domain, 1, err));
    opi_log(load->logger, OPIPE_LOG_WARN,
            "no opset_import for domain '%.200s' (operator %.100s): version 1 is assumed", domain,
            op);
  }
  if (version < 1 || version > 1000000) {
    return opi_fail(err, OPIPE_E_INVALID, "opset version %lld of domain '%.200s'",
                    (long long)version, domain);
  }
  *out_version = (uint32_t)version;
  return OPIPE_OK;
}

/* ---- stages ---- */

/* Index of the configuration in the model's list, + 1; 0: not listed. */
static size_t listed_at(const OpiOnnx__ModelProto *model, const char *id) {
  size_t at = model->n_configuration;
  while (at > 0 && strcmp(opi_wire_text(model->configuration[at - 1]->name), id) != 0)
    --at;
  return at;
}

/* A file may be annotated for several machines: the configuration that the model lists last, of
 * those that give nodes a stage or tensors a sharding, is read; where none is listed, the first
 * that a node names. */
void opi_wire_choose_configuration(opi_load *load) {
  const OpiOnnx__GraphProto *graph = load->message->graph;
  const char *last = NULL;
  size_t best = 0;
  for (size_t n = 0; n < graph->n_node; ++n) {
    for (size_t i = 0; i < graph->node[n]->n_device_configurations; ++i) {
      const OpiOnnx__NodeDeviceConfigurationProto *entry = graph->node[n]->device_configurations[i];
      const char *id = opi_wire_text(entry->configuration_id);
      const bool says = entry->has_pipeline_stage || entry->n_sharding_spec != 0;
      if (!says || (last != NULL && strcmp(id, last) == 0))
        continue;
      last = id;
      const size_t at = listed_at(load->message, id);
      if (load->configuration != NULL && at <= best)
        continue;
      load->configuration = id;
      best = at;
    }
  }
}

static opipe_status read_stage(opi_load *load, const OpiOnnx__NodeProto *message, int32_t *io_stage,
                               opipe_error *err) {
  for (size_t i = 0; i < message->n_device_configurations; ++i) {
    const OpiOnnx__NodeDeviceConfigurationProto *entry = message->device_configurations[i];
    const char *id = opi_wire_text(entry->configuration_id);
    if (!entry->has_pipeline_stage)
      continue;
    if (load->configuration == NULL || strcmp(id, load->configuration) != 0) {
      if (opi_load_first(load, OPI_WARNED_STAGE)) {
        opi_log(load->logger, OPIPE_LOG_WARN,
                "stages of device configuration '%.100s' are read, those of '%.100s' are not",
                opi_wire_text(load->configuration), id);
      }
      continue;
    }
    if (entry->pipeline_stage < 0 || entry->pipeline_stage > OPI_WIRE_MAX_STAGE) {
      return opi_fail(err, OPIPE_E_INVALID, "pipeline_stage %d is outside [0, %d]",
                      entry->pipeline_stage, OPI_WIRE_MAX_STAGE);
    }
    *io_stage = entry->pipeline_stage;
  }
  return OPIPE_OK;
}

/* ---- nodes ---- */

/* The name of a node, unique in the model. */
static opipe_status name_node(opi_scope *scope, const OpiOnnx__NodeProto *message, size_t index,
                              const char **out_name, opipe_error *err) {
  char made[128];
  const char *name = opi_wire_text(message->name);
  if (name[0] == '\0') {
    (void)snprintf(made, sizeof(made), "%.80s_%zu", message->op_type, index);
    name = made;
  }
  return opi_scope_unique(scope->load, scope->load->node_names, scope->prefix, name, out_name, err);
}

opipe_status opi_wire_define_outputs(opi_scope *scope, const OpiOnnx__NodeProto *message,
                                     opipe_error *err) {
  for (size_t i = 0; i < message->n_output; ++i) {
    uint32_t value = OPIPE_NONE;
    if (message->output[i][0] == '\0')
      continue;
    OPI_TRY(opi_scope_define(scope, message->output[i], &value, err));
  }
  return OPIPE_OK;
}

static opipe_status connect(opi_scope *scope, const OpiOnnx__NodeProto *message, opi_node *node,
                            opipe_error *err) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opipe_status status = opi_scope_find(scope, message->input[i], &node->in[i], err);
    if (status == OPIPE_E_NOTFOUND) {
      return opi_fail(err, OPIPE_E_INVALID, "reads '%.200s', which nothing makes",
                      message->input[i]);
    }
    if (status < 0)
      return status;
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    OPI_TRY(opi_scope_find(scope, message->output[i], &node->out[i], err));
    if (node->out[i] == OPIPE_NONE)
      continue;
    scope->graph->values[node->out[i]].producer = scope->graph->n_nodes - 1;
  }
  return OPIPE_OK;
}

static opipe_status add_node(opi_scope *scope, const OpiOnnx__NodeProto *message,
                             const opi_call_site *site, opipe_error *err) {
  opi_load *load = scope->load;
  uint32_t version = 0;
  const char *plain = opi_wire_domain(message->domain);
  OPI_TRY(opi_wire_version(scope, plain, message->op_type, &version, err));
  if (load->n_nodes >= OPI_WIRE_MAX_NODES) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "the model has more than %d nodes with its functions expanded",
                    OPI_WIRE_MAX_NODES);
  }
  ++load->n_nodes;
  size_t n_in = message->n_input;
  while (n_in > 0 && message->input[n_in - 1][0] == '\0')
    --n_in; /* absent at the end */
  const char *op = opi_arena_strdup(load->arena, message->op_type);
  const char *domain = plain[0] != '\0' ? opi_arena_strdup(load->arena, plain) : "";
  if (op == NULL || domain == NULL)
    return opi_fail_nomem(err, 64, "a node");
  opi_node *node = opi_graph_add_node(scope->graph, site->name, op, domain, (uint32_t)n_in,
                                      (uint32_t)message->n_output, 0);
  if (node == NULL)
    return opi_fail_nomem(err, sizeof(*node), "a node");
  node->attrs = (opipe_attr *)(uintptr_t)site->attrs;
  node->n_attrs = site->n_attrs;
  node->version = version;
  node->source = site->source;
  node->stage = site->stage;
  return connect(scope, message, node, err);
}

static opipe_status read_node(opi_scope *scope, const OpiOnnx__NodeProto *message,
                              opi_call_site *site, opipe_error *err) {
  opipe_attr *attrs = NULL;
  OPI_TRY(opi_functions_find(scope->load, message, &site->function, err));
  OPI_TRY(opi_wire_attributes(scope, message, &attrs, &site->n_attrs, err));
  site->attrs = attrs;
  if (site->function != NULL)
    return opi_functions_expand(scope, site, err);
  return add_node(scope, message, site, err);
}

opipe_status opi_wire_node(opi_scope *scope, const OpiOnnx__NodeProto *message, size_t index,
                           opipe_error *err) {
  const bool in_main = scope->source == OPIPE_NONE;
  if (opi_wire_text(message->op_type)[0] == '\0') {
    return opi_fail(err, OPIPE_E_INVALID, "node '%.200s' (%zu) has no operator",
                    opi_wire_text(message->name), index);
  }
  opi_call_site site = {
      .node = message, .source = in_main ? (uint32_t)index : scope->source, .stage = scope->stage};
  OPI_TRY(name_node(scope, message, index, &site.name, err));
  const int32_t stage = scope->stage;
  OPI_TRY(read_stage(scope->load, message, &site.stage, err));
  OPI_TRY(opi_wire_shardings(scope->load, message, site.name, err));
  /* Subgraphs that are read on the way belong to this node. */
  if (in_main)
    scope->source = site.source;
  scope->stage = site.stage;
  const opipe_status status = read_node(scope, message, &site, err);
  if (in_main)
    scope->source = OPIPE_NONE;
  scope->stage = stage;
  /* Deep inside nested calls the innermost few say enough. */
  if (status < 0 && err != NULL && strlen(err->message) < sizeof(err->message) / 2)
    (void)opi_error_prefix(err, "node '%.100s' (%.60s): ", site.name, message->op_type);
  return status;
}
