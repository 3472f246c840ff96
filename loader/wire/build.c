/* SPDX-License-Identifier: Apache-2.0 */
/* A model from a host's tables: what a file could not say is refused here; the rest becomes the
 * bytes of a file without weights, which are read as any other's are. The content of the main
 * graph's tensors stays where the host has it, or is mapped.
 */
#include <string.h>

#include "loader/wire/build.h"

enum { BODIES_MOST = 16 /* inside one another: 3 messages each, below OPI_WIRE_MAX_DEPTH */ };

static opipe_status check_shape(const char *what, const char *name, uint32_t dtype,
                                const int64_t *shape, uint32_t rank, uint64_t n_bytes,
                                opipe_error *err) {
  char text[128];
  uint64_t need = 0;
  if (rank > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s '%.200s' has %u dimensions; the limit is %d", what,
                    name, rank, OPIPE_MAX_RANK);
  }
  if (dtype == OPIPE_STRING)
    return OPIPE_OK; /* no content is read */
  if (opi_dtype_bits(dtype) == 0) {
    return opi_fail(err, OPIPE_E_INVALID, "%s '%.200s' has the unknown element type %u", what, name,
                    dtype);
  }
  if (!opi_tensor_bytes(dtype, shape, rank, &need) || need != n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID, "%s '%.200s' has %llu bytes, %s %s makes %llu", what,
                    name, (unsigned long long)n_bytes, opi_dtype_name(dtype),
                    opi_shape_text(text, sizeof text, shape, rank), (unsigned long long)need);
  }
  return OPIPE_OK;
}

/* ---- values and tensors ---- */

static opipe_status check_values(const opipe_build_value *list, uint32_t stride, uint32_t n,
                                 const char *what, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    opipe_build_value v;
    opi_array_get(list, stride, i, &v, sizeof v);
    if (v.rank < -1 || v.rank > OPIPE_MAX_RANK) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s '%.200s' has rank %d; -1 (unknown) to %d are "
                      "accepted",
                      what, v.name, v.rank, OPIPE_MAX_RANK);
    }
    for (int32_t d = 0; d < v.rank; ++d) {
      if (v.shape[d] < -1) {
        return opi_fail(err, OPIPE_E_INVALID, "%s '%.200s': dimension %d is %lld", what, v.name, d,
                        (long long)v.shape[d]);
      }
    }
  }
  return OPIPE_OK;
}

static opipe_status check_tensor(const opipe_build_tensor *t, bool is_main, opipe_error *err) {
  OPI_TRY(check_shape("tensor", t->name, t->dtype, t->shape, t->rank, t->n_bytes, err));
  if (t->data != NULL && t->file != NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%.200s' has its content in memory and in file '%.200s'", t->name,
                    t->file);
  }
  if (t->file != NULL && !is_main) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%.200s' of a body has its content in file '%.200s': only those of the "
                    "main graph may",
                    t->name, t->file);
  }
  if (t->data == NULL && t->file == NULL && t->n_bytes != 0 && t->dtype != OPIPE_STRING) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%.200s': its %llu bytes are neither in memory nor in a file", t->name,
                    (unsigned long long)t->n_bytes);
  }
  return OPIPE_OK;
}

/* ---- nodes and graphs ---- */

static opipe_status check_graph(const opipe_build_graph *g, uint32_t depth, opipe_error *err);

static opipe_status check_attribute(const opipe_attr *a, uint32_t depth, opipe_error *err) {
  const opipe_literal *t = a->data;
  const bool is_list = a->kind == OPIPE_ATTR_INTS || a->kind == OPIPE_ATTR_FLOATS ||
                       a->kind == OPIPE_ATTR_STRINGS || a->kind == OPIPE_ATTR_STRING;
  const bool is_one = a->kind == OPIPE_ATTR_TENSOR || a->kind == OPIPE_ATTR_GRAPH;
  if (a->data == NULL && (is_one || (is_list && a->n != 0))) {
    return opi_fail(err, OPIPE_E_INVALID, "attribute '%.100s' (kind %u, %u elements) has no data",
                    a->name, a->kind, a->n);
  }
  for (uint32_t i = 0; a->kind == OPIPE_ATTR_STRINGS && i < a->n; ++i) {
    if (((const char *const *)a->data)[i] == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "attribute '%.100s'[%u] is NULL", a->name, i);
  }
  if (a->kind == OPIPE_ATTR_GRAPH)
    return check_graph(a->data, depth + 1, err);
  if (a->kind != OPIPE_ATTR_TENSOR)
    return OPIPE_OK;
  OPI_TRY(check_shape("attribute", a->name, t->dtype, t->shape, t->rank, t->n_bytes, err));
  if (t->data == NULL && t->n_bytes != 0 && t->dtype != OPIPE_STRING) {
    return opi_fail(err, OPIPE_E_INVALID, "attribute '%.100s': a tensor of %llu bytes without data",
                    a->name, (unsigned long long)t->n_bytes);
  }
  return OPIPE_OK;
}

static opipe_status check_graph(const opipe_build_graph *g, uint32_t depth, opipe_error *err) {
  if (depth > BODIES_MOST)
    return opi_fail(err, OPIPE_E_LIMIT, "graphs nest %u deep; the limit is %d", depth, BODIES_MOST);
  OPI_TRY(check_values(g->inputs, g->values_stride, g->n_inputs, "input", err));
  OPI_TRY(check_values(g->outputs, g->values_stride, g->n_outputs, "output", err));
  for (uint32_t i = 0; i < g->n_tensors; ++i) {
    const opipe_build_tensor t = opi_build_tensor_at(g, i);
    OPI_TRY(check_tensor(&t, depth == 0, err));
  }
  for (uint32_t i = 0; i < g->n_nodes; ++i) {
    opipe_build_node node;
    opi_array_get(g->nodes, g->nodes_stride, i, &node, sizeof node);
    for (uint32_t a = 0; a < node.n_attrs; ++a) {
      const opipe_status status = check_attribute(&node.attrs[a], depth, err);
      if (status < 0) {
        (void)opi_error_prefix(err, "node %u ('%.100s', %.60s): ", i,
                               node.name == NULL ? "" : node.name, node.op);
        return status;
      }
    }
  }
  return OPIPE_OK;
}

/* ---- interface ---- */

opipe_status opi_model_build(const opipe_build_params *params, const opi_load_params *env,
                             opi_model **out_model, opipe_error *err) {
  const opipe_allocator *allocator =
      env->allocator != NULL ? env->allocator : opi_allocator_system();
  opi_load_params load = *env;
  opi_model *model = NULL;
  OPI_TRY(check_graph(params->graph, 0, err));
  const uint64_t n_bytes = opi_build_encode(params, NULL);
  uint8_t *bytes = opi_alloc(allocator, (size_t)n_bytes);
  if (bytes == NULL)
    return opi_fail_nomem(err, n_bytes, "a model's graph");
  (void)opi_build_encode(params, bytes);
  load.data = bytes;
  load.n_bytes = n_bytes;
  load.built = params->graph;
  const opipe_status status = opi_model_load(&load, &model, err);
  if (status < 0) {
    opi_free(allocator, bytes, (size_t)n_bytes);
    return status;
  }
  model->built = bytes;
  *out_model = model;
  return OPIPE_OK;
}
