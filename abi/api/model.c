/* SPDX-License-Identifier: Apache-2.0 */
/* Models: loading, binding, description. */
#include <string.h>

#include "abi/api/api.h"
#include "runtime/base/base.h"

static opipe_status new_model(opi_context_object *context, opi_model_object **out_model,
                              opipe_error *err) {
  opi_model_object *m = opi_alloc_zero(&context->allocator, 1, sizeof(*m));
  if (m == NULL)
    return opi_fail_nomem(err, sizeof(*m), "a model");
  atomic_init(&m->refs, 1);
  m->context = context;
  opi_arena_init(&m->arena, &context->allocator, 0);
  opi_ref(&context->refs);
  *out_model = m;
  return OPIPE_OK;
}

void opi_model_unref(void *model) {
  opi_model_object *m = model;
  if (m == NULL || !opi_unref(&m->refs))
    return;
  opi_context_object *context = m->context;
  opi_bound_free(m->bound);
  if (m->unbound != NULL)
    opi_model_unref(m->unbound);
  else
    opi_model_free(m->file);
  opi_arena_release(&m->arena);
  if (m->on_release != NULL)
    opi_host_call(m->on_release, m->release_ctx);
  opi_free(&context->allocator, m, sizeof(*m));
  opi_context_unref(context);
}

/* Makes the model's handle for the host. Takes the model over, also on failure. */
static opipe_status hand_out(opi_model_object *m, opipe_model **out_model, opipe_error *err) {
  uint64_t handle = 0;
  OPI_TRY(opi_handle_new(OPI_HANDLE_MODEL, m, opi_model_unref, m->context->handle, &handle, err));
  *out_model = opi_handle_pointer(handle);
  return OPIPE_OK;
}

/* True if the elements can be read in place. */
static bool is_dense(const opipe_tensor *t) {
  int64_t dense = 1;
  for (int32_t d = t->rank; d > 0 && t->strides != NULL; --d) {
    if (t->shape[d - 1] > 1 && t->strides[d - 1] != dense)
      return false;
    dense *= t->shape[d - 1];
  }
  return true;
}

/* A graph input that becomes a parameter. */
static opipe_status promote(opi_model *file, const opipe_pin *parameter, bool borrow,
                            opipe_error *err) {
  const opipe_tensor *t = &parameter->value;
  const char *first = NULL;
  opi_replacement value = {.name = parameter->input, .shape = t->shape};
  value.dtype = opi_dtype_from_dl(t->dtype);
  value.rank = t->rank < 0 ? 0 : (uint32_t)t->rank;
  if (value.name == NULL || t->rank < 0 || t->rank > OPIPE_MAX_RANK ||
      opi_dtype_bits(value.dtype) % 8 != 0 || t->device_type != OPIPE_DL_CPU ||
      !opi_tensor_bytes(value.dtype, t->shape, value.rank, &value.n_bytes) ||
      (t->data == NULL && value.n_bytes != 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "model_load: parameter '%s' has no valid type, shape or data in host memory",
                    value.name == NULL ? "(NULL)" : value.name);
  }
  if (borrow && !is_dense(t)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "model_load: parameter '%s' has strides of its own: only dense ones can be "
                    "borrowed (OPIPE_LOAD_BORROW)",
                    value.name);
  }
  OPI_TRY(opi_tensor_begin(t, value.n_bytes, "model_load: parameter", value.name, &first, err));
  if (borrow) {
    value.data = first;
    return opi_model_promote(file, &value, true, err);
  }
  void *dense = opi_alloc(file->allocator, (size_t)value.n_bytes + 1);
  if (dense == NULL)
    return opi_fail_nomem(err, value.n_bytes, value.name);
  opi_tensor_pack(t, dense);
  value.data = dense;
  const opipe_status status = opi_model_promote(file, &value, false, err);
  opi_free(file->allocator, dense, (size_t)value.n_bytes + 1);
  return status;
}

static opipe_status load(const opi_context_object *context, const opipe_load_params *params,
                         opi_model **out_file, opipe_error *err) {
  const uint32_t known =
      OPIPE_LOAD_GRAPH_ONLY | OPIPE_LOAD_ALLOW_SYMLINKS | OPIPE_LOAD_ALLOW_HARDLINKS;
  const opi_load_params load = {.path = params->path,
                                .data = params->data,
                                .n_bytes = params->n_bytes,
                                .base_dir = params->base_dir,
                                .memory_budget_bytes = params->memory_budget_bytes,
                                .flags = params->flags & known, /* the same bits */
                                .allocator = &context->allocator,
                                .logger = &context->logger};
  OPIPE_STATIC_ASSERT((int)OPIPE_LOAD_GRAPH_ONLY == (int)OPI_LOAD_GRAPH_ONLY &&
                          (int)OPIPE_LOAD_ALLOW_SYMLINKS == (int)OPI_LOAD_ALLOW_SYMLINKS &&
                          (int)OPIPE_LOAD_ALLOW_HARDLINKS == (int)OPI_LOAD_ALLOW_HARDLINKS,
                      "load flags agree");
  opi_model *file = NULL;
  opipe_status status = opi_model_load(&load, &file, err);
  for (uint32_t i = 0; i < params->n_parameters && status >= 0; ++i) {
    opipe_pin parameter;
    opi_array_get(params->parameters, params->parameters_stride, i, &parameter, sizeof parameter);
    status = promote(file, &parameter, (params->flags & OPIPE_LOAD_BORROW) != 0, err);
  }
  if (status < 0) {
    opi_model_free(file);
    return status;
  }
  *out_file = file;
  return OPIPE_OK;
}

opipe_status opi_model_hand_out(opi_context_object *context, opi_model *file,
                                void (*on_release)(void *ctx), void *release_ctx,
                                opipe_model **out_model, opipe_error *err) {
  opi_model_object *m = NULL;
  const opipe_status status = new_model(context, &m, err);
  if (status < 0) {
    opi_model_free(file);
    return status;
  }
  m->file = file;
  OPI_TRY(hand_out(m, out_model, err));
  m->on_release = on_release; /* lent from here on */
  m->release_ctx = release_ctx;
  return OPIPE_OK;
}

opipe_status opi_api_model_load(opi_context_object *context, const opipe_load_params *params,
                                opipe_model **out_model, opipe_error *err) {
  opipe_load_params own = {0};
  opi_model *file = NULL;
  if (params == NULL || out_model == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_load: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_load_params, "model_load", params, &own, err));
  if (own.path == NULL && own.data == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_load: neither a path nor data is given");
  OPI_TRY(load(context, &own, &file, err));
  return opi_model_hand_out(context, file, own.on_release, own.release_ctx, out_model, err);
}

/* ---- binding ---- */

static opipe_status copy_pin(opi_model_object *m, const opipe_pin *pin, opi_pin *out,
                             opipe_error *err) {
  const opipe_tensor *t = &pin->value;
  const char *first = NULL;
  uint64_t n_bytes = 0;
  const uint32_t dtype = opi_dtype_from_dl(t->dtype);
  if (t->rank < 0 || t->rank > OPIPE_MAX_RANK || dtype == OPIPE_UNDEFINED ||
      opi_dtype_bits(dtype) % 8 != 0 ||
      !opi_tensor_bytes(dtype, t->shape, (uint32_t)t->rank, &n_bytes) ||
      (t->data == NULL && n_bytes != 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "model_bind: the tensor pinned to input '%s' has no valid type, shape or data",
                    pin->input);
  }
  if (t->device_type != OPIPE_DL_CPU) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "model_bind: the tensor pinned to input '%s' is on device type %d, host memory is %d",
        pin->input, t->device_type, OPIPE_DL_CPU);
  }
  OPI_TRY(opi_tensor_begin(t, n_bytes, "model_bind: the tensor pinned to input", pin->input, &first,
                           err));
  void *data = opi_arena_alloc(&m->arena, (size_t)n_bytes);
  int64_t *shape = opi_arena_copy(&m->arena, t->shape, (size_t)t->rank * sizeof(int64_t));
  char *input = opi_arena_strdup(&m->arena, pin->input);
  if (data == NULL || shape == NULL || input == NULL)
    return opi_fail_nomem(err, n_bytes, "a pinned input");
  opi_tensor_pack(t, data);
  *out = (opi_pin){
      .input = input, .data = data, .shape = shape, .rank = (uint32_t)t->rank, .dtype = dtype};
  return OPIPE_OK;
}

static opipe_status copy_options(opi_model_object *m, const opipe_bind_options *o,
                                 opipe_error *err) {
  const double ratio = o->dropout_ratio;
  if (!(ratio >= 0 && ratio < 1)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "model_bind: dropout_ratio is %g, it must be at least 0 and below 1", ratio);
  }
  opi_dim_binding *dims = OPI_ARENA_ARRAY(&m->arena, opi_dim_binding, o->n_dims);
  opi_pin *pins = OPI_ARENA_ARRAY(&m->arena, opi_pin, o->n_pins);
  const char **keep = OPI_ARENA_ARRAY(&m->arena, const char *, o->n_keep);
  if (dims == NULL || pins == NULL || keep == NULL)
    return opi_fail_nomem(err, 0, "bind options");
  for (uint32_t i = 0; i < o->n_dims; ++i) {
    opipe_dim dim;
    opi_array_get(o->dims, o->dims_stride, i, &dim, sizeof dim);
    dims[i] = (opi_dim_binding){opi_arena_strdup(&m->arena, dim.name), dim.value};
    if (dims[i].name == NULL)
      return opi_fail_nomem(err, 0, "bind options");
  }
  for (uint32_t i = 0; i < o->n_pins; ++i) {
    opipe_pin pin;
    opi_array_get(o->pins, o->pins_stride, i, &pin, sizeof pin);
    OPI_TRY(copy_pin(m, &pin, &pins[i], err));
  }
  for (uint32_t i = 0; i < o->n_keep; ++i) {
    keep[i] = opi_arena_strdup(&m->arena, o->keep[i]);
    if (keep[i] == NULL)
      return opi_fail_nomem(err, 0, "bind options");
  }
  m->options = (opi_bind_options){
      .dims = dims,
      .pins = pins,
      .barriers = keep,
      .n_dims = o->n_dims,
      .n_pins = o->n_pins,
      .n_barriers = o->n_keep,
      .keep = keep,
      .n_keep = o->n_keep,
      .flags = (o->flags & (OPIPE_BIND_NO_FUSE | OPIPE_BIND_DEFAULTS | OPIPE_BIND_NOISE(31, 7))) |
               ((o->flags & OPIPE_BIND_TRAIN) != 0 ? (uint32_t)OPI_BIND_KEEP_PARAMETERS : 0u),
      .dropout = (o->flags & OPIPE_BIND_DROPOUT_RATIO) != 0   ? OPI_DROPOUT_RATIO
                 : (o->flags & OPIPE_BIND_GRAPH_DROPOUT) != 0 ? OPI_DROPOUT_GRAPH
                                                              : OPI_DROPOUT_OFF,
      .dropout_ratio = ratio,
      .default_batch = o->default_batch,
      .allocator = &m->context->allocator,
      .logger = &m->context->logger};
  return OPIPE_OK;
}

static opipe_status bind(opi_model_object *m, opi_model_object *from,
                         const opipe_bind_options *options, opipe_error *err) {
  OPIPE_STATIC_ASSERT((int)OPIPE_BIND_NO_FUSE == (int)OPI_BIND_NO_FUSE &&
                          (int)OPIPE_BIND_DEFAULTS == (int)OPI_BIND_DEFAULTS &&
                          OPIPE_BIND_NOISE(31, 7) == (uint32_t)OPI_BIND_NOISE,
                      "bind flags agree");
  m->unbound = from;
  m->file = from->file;
  opi_ref(&from->refs);
  OPI_TRY(copy_options(m, options, err));
  OPI_TRY(opi_context_evaluator(m->context, &m->options.evaluator, err));
  OPI_TRY(opi_bind(m->file, &m->options, &m->bound, err));
  m->options.dims = m->bound->dims; /* every free dimension has a number from here on */
  m->options.n_dims = m->bound->n_dims;
  m->options.flags &= ~(uint32_t)OPI_BIND_DEFAULTS;
  return OPIPE_OK;
}

opipe_status opi_api_model_bind(opi_model_object *model, const opipe_bind_options *options,
                                opipe_model **out_bound, opipe_error *err) {
  opi_model_object *m = NULL;
  opipe_bind_options own = {.struct_size = (uint32_t)sizeof own};
  if (out_bound == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_bind: out_bound is NULL");
  if (model->bound != NULL) {
    return opi_fail(err, OPIPE_E_STATE,
                    "model_bind: the model is bound already; bind the loaded one");
  }
  OPI_TRY(opi_params_read(&opi_struct_bind_options, "model_bind", options, &own, err));
  OPI_TRY(new_model(model->context, &m, err));
  const opipe_status status = bind(m, model, &own, err);
  if (status < 0) {
    opi_model_unref(m);
    return status;
  }
  return hand_out(m, out_bound, err);
}

/* ---- description ---- */

static const opi_graph *graph_of(const opi_model_object *m) {
  return m->bound == NULL ? m->file->graph : m->bound->graph;
}

static void count_parameters(const opi_graph *g, opipe_model_info *info) {
  for (uint32_t v = 0; v < g->n_values; ++v) {
    uint64_t elems = 0, bytes = 0;
    const opi_value *value = &g->values[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0 || value->rank < 0)
      continue;
    if (!opi_shape_elems(value->shape, (uint32_t)value->rank, &elems))
      continue;
    if (!opi_tensor_bytes(value->dtype, value->shape, (uint32_t)value->rank, &bytes))
      continue;
    info->parameter_elems += elems;
    info->parameter_bytes += bytes;
  }
}

opipe_status opi_api_model_info(opi_model_object *m, opipe_model_info *io_info, opipe_error *err) {
  OPI_TRY(opi_info_check("model_info", io_info, OPIPE_END(opipe_model_info, bound), err));
  const opi_graph *g = graph_of(m);
  opipe_model_info info = {.struct_size = io_info->struct_size,
                           .bound = m->bound != NULL,
                           .n_inputs = g->n_inputs,
                           .n_outputs = g->n_outputs,
                           .n_file_nodes = m->file->n_file_nodes,
                           .n_nodes = g->n_nodes,
                           .n_annotated_stages = (uint32_t)m->file->n_stages,
                           .n_dims = m->bound == NULL ? 0 : m->bound->n_dims};
  count_parameters(m->file->graph, &info);
  for (uint32_t n = 0; m->bound != NULL && n < g->n_nodes; ++n) {
    opi_work work = {0, 0};
    opi_node_work(g, &g->nodes[n], &work);
    info.flops += work.flops;
  }
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

static opipe_status describe_value(const opi_model_object *m, const char *function,
                                   const uint32_t *list, uint32_t n, uint32_t index, bool input,
                                   opipe_tensor_info *io_info, opipe_error *err) {
  OPI_TRY(opi_info_check(function, io_info, OPIPE_END(opipe_tensor_info, dim_names), err));
  if (index >= n)
    return opi_fail(err, OPIPE_E_NOTFOUND, "%s: index %u of %u", function, index, n);
  const opi_value *v = &graph_of(m)->values[list[index]];
  opipe_tensor_info info = {.struct_size = io_info->struct_size,
                            .dtype = v->dtype,
                            .name = v->name,
                            .shape = v->shape,
                            .dim_names = (const char *const *)v->dim_names,
                            .rank = v->rank < 0 ? 0 : (uint32_t)v->rank};
  if (!input) /* a bound output may be a copy with another name */
    info.name = m->file->graph->values[m->file->graph->outputs[index]].name;
  if (input && m->bound != NULL)
    info.index_limit = m->bound->index_limits[index];
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_model_input(opi_model_object *m, uint32_t index, opipe_tensor_info *io_info,
                                 opipe_error *err) {
  return describe_value(m, "model_input", graph_of(m)->inputs, graph_of(m)->n_inputs, index, true,
                        io_info, err);
}

opipe_status opi_api_model_output(opi_model_object *m, uint32_t index, opipe_tensor_info *io_info,
                                  opipe_error *err) {
  return describe_value(m, "model_output", graph_of(m)->outputs, graph_of(m)->n_outputs, index,
                        false, io_info, err);
}

opipe_status opi_api_model_dim(opi_model_object *m, uint32_t index, opipe_dim_info *io_info,
                               opipe_error *err) {
  const uint32_t n = m->bound == NULL ? 0 : m->bound->n_dims;
  OPI_TRY(opi_info_check("model_dim", io_info, OPIPE_END(opipe_dim_info, value), err));
  if (index >= n)
    return opi_fail(err, OPIPE_E_NOTFOUND, "model_dim: index %u of %u", index, n);
  const opipe_dim_info info = {.struct_size = io_info->struct_size,
                               .name = m->bound->dims[index].name,
                               .value = m->bound->dims[index].value};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}
