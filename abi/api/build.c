/* SPDX-License-Identifier: Apache-2.0 */
/* Models from a host's tables, and models as files. Structs of bodies hang on attributes of that
 * kind; they are checked here, one after the other. */
#include "abi/api/api.h"

enum { BODIES_MOST = 64 /* the loader accepts fewer; this only ends cycles */ };

static opipe_status check_bodies(const opipe_build_graph *graph, uint32_t depth, opipe_error *err) {
  if (depth > BODIES_MOST)
    return opi_fail(err, OPIPE_E_LIMIT, "model_build: graphs nest %u deep", depth);
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    opipe_build_node node;
    opi_array_get(graph->nodes, graph->nodes_stride, i, &node, sizeof node);
    for (uint32_t a = 0; a < node.n_attrs; ++a) {
      const opipe_attr *attr = &node.attrs[a];
      if (attr->kind != OPIPE_ATTR_GRAPH || attr->data == NULL)
        continue;
      OPI_TRY(opi_params_check(&opi_struct_build_graph, "model_build", attr->data, err));
      OPI_TRY(check_bodies(attr->data, depth + 1, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_api_model_build(opi_context_object *context, const opipe_build_params *params,
                                 opipe_model **out_model, opipe_error *err) {
  opipe_build_params own = {0};
  opi_model *file = NULL;
  if (params == NULL || out_model == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_build: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_build_params, "model_build", params, &own, err));
  if (own.graph == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_build: opipe_build_params.graph is NULL");
  OPI_TRY(check_bodies(own.graph, 1, err));
  const opi_load_params env = {.base_dir = own.base_dir,
                               .memory_budget_bytes = own.memory_budget_bytes,
                               .flags = own.flags, /* the same bits */
                               .allocator = &context->allocator,
                               .logger = &context->logger};
  OPI_TRY(opi_model_build(&own, &env, &file, err));
  return opi_model_hand_out(context, file, own.on_release, own.release_ctx, out_model, err);
}

opipe_status opi_api_model_write(opi_model_object *model, const char *path, opipe_error *err) {
  return path == NULL || path[0] == '\0'
             ? opi_fail(err, OPIPE_E_INVALID, "model_write: the path is %s",
                        path == NULL ? "NULL" : "empty")
             : opi_model_write(model->file, path, err);
}

opipe_status opi_api_model_check_target(opi_model_object *model, const char *path, uint32_t what,
                                        opipe_error *err) {
  if (path == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_check_target: the path is NULL");
  OPI_TRY(opi_choice_check("model_check_target", "what", what, OPIPE_TARGET_MODEL, err));
  return opi_model_check_target(model->file, path, what == OPIPE_TARGET_OTHER, err);
}
