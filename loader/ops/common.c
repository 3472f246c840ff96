/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the operator families share; see common.h. */
#include "loader/ops/common.h"

opipe_status opi_in(opi_builder *b, const opi_node *node, uint32_t i, const opi_value **out_value,
                    opipe_error *err) {
  const uint32_t v = opi_node_in(node, i);
  if (v == OPIPE_NONE)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks input %" PRIu32, i);
  if (v >= b->graph->n_values)
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input %" PRIu32 " is a sequence", i);
  *out_value = &b->graph->values[v];
  return OPIPE_OK;
}

const opi_value *opi_in_optional(const opi_builder *b, const opi_node *node, uint32_t i) {
  const uint32_t v = opi_node_in(node, i);
  return v == OPIPE_NONE || v >= b->graph->n_values ? NULL : &b->graph->values[v];
}

opipe_status opi_check_type(const opi_builder *b, const opi_node *node, const opi_value *value,
                            uint32_t types, opipe_error *err) {
  const uint32_t t = value->dtype;
  if ((types & OPI_TYPES_FLOAT) && opi_dtype_is_float(t))
    return OPIPE_OK;
  if ((types & OPI_TYPES_INTEGER) && opi_dtype_is_integer(t))
    return OPIPE_OK;
  if ((types & OPI_TYPES_BOOL) && t == OPIPE_BOOL)
    return OPIPE_OK;
  if ((types & OPI_TYPES_INDEX) && (t == OPIPE_INT32 || t == OPIPE_INT64))
    return OPIPE_OK;
  return opi_node_fail(
      b, node, err, OPIPE_E_INVALID, "input '%s' has type %s, needed is%s%s%s%s", value->name,
      opi_dtype_name(t), types & OPI_TYPES_FLOAT ? " a float type" : "",
      types & OPI_TYPES_INTEGER ? " an integer type" : "", types & OPI_TYPES_BOOL ? " bool" : "",
      types & OPI_TYPES_INDEX ? " int32 or int64" : "");
}

opipe_status opi_check_same_type(opi_builder *b, const opi_node *node, uint32_t first,
                                 opipe_error *err) {
  const opi_value *lead = NULL;
  OPI_TRY(opi_in(b, node, first, &lead, err));
  for (uint32_t i = first + 1; i < node->n_in; ++i) {
    const opi_value *value = opi_in_optional(b, node, i);
    if (value == NULL || value->dtype == lead->dtype)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' has type %s, '%s' has %s",
                         lead->name, opi_dtype_name(lead->dtype), value->name,
                         opi_dtype_name(value->dtype));
  }
  return OPIPE_OK;
}

opipe_status opi_int_attr(const opi_builder *b, const opi_node *node, const char *name,
                          int64_t fallback, int64_t *out_value, opipe_error *err) {
  const opipe_attr *attr = opi_attr_find(node, name);
  *out_value = fallback;
  if (attr == NULL)
    return OPIPE_OK;
  if (attr->kind != OPIPE_ATTR_INT)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute '%s' is not an integer", name);
  *out_value = attr->i;
  return OPIPE_OK;
}

opipe_status opi_axis_attr(const opi_builder *b, const opi_node *node, const char *name,
                           int64_t fallback, uint32_t rank, uint32_t *out_axis, opipe_error *err) {
  int64_t axis;
  OPI_TRY(opi_int_attr(b, node, name, fallback, &axis, err));
  if (opi_axis(axis, rank, out_axis))
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%s %" PRId64 " is outside rank %" PRIu32,
                       name, axis, rank);
}

opipe_status opi_ints_value(opi_builder *b, const int64_t *ints, uint32_t n, uint32_t *out_value,
                            opipe_error *err) {
  *out_value = opi_b_const_ints(b, ints, n);
  return *out_value != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, (uint64_t)n * 8, "a constant");
}

opipe_status opi_attr_or_input(opi_builder *b, const opi_node *node, const char *name, uint32_t i,
                               const int64_t **out_ints, uint32_t *out_n, opipe_error *err) {
  *out_ints = NULL;
  *out_n = 0;
  const opipe_attr *attr = opi_attr_find(node, name);
  if (attr != NULL && attr->kind == OPIPE_ATTR_INTS) {
    static const int64_t none[1] = {0};
    *out_ints = attr->n != 0 ? attr->data : none;
    *out_n = attr->n;
    return OPIPE_OK;
  }
  if (attr != NULL && attr->kind == OPIPE_ATTR_INT) {
    *out_ints = &attr->i;
    *out_n = 1;
    return OPIPE_OK;
  }
  if (opi_node_in(node, i) == OPIPE_NONE)
    return OPIPE_OK;
  return opi_known_ints(b, node, i, out_ints, out_n, err);
}

uint64_t opi_elems(const opi_value *value) {
  uint64_t n = 0;
  return opi_shape_elems(value->shape, (uint32_t)value->rank, &n) ? n : 0;
}

int64_t opi_index_at(const opi_value *at, uint64_t i) {
  int32_t narrow = 0;
  int64_t wide = 0;
  if (at->dtype == OPIPE_INT64) {
    memcpy(&wide, (const char *)at->data + i * 8, 8);
    return wide;
  }
  memcpy(&narrow, (const char *)at->data + i * 4, 4);
  return narrow;
}

opipe_status opi_infer_same(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  return opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err);
}

opipe_status opi_emit_reshape(opi_builder *b, uint32_t value, const int64_t *shape, uint32_t rank,
                              const int64_t *kept, uint32_t *out_value, opipe_error *err) {
  const opi_value *x = opi_b_value(b, value);
  *out_value = value;
  if (rank == (uint32_t)x->rank && (rank == 0 || memcmp(x->shape, shape, rank * 8) == 0))
    return OPIPE_OK;
  const bool parameter = (x->flags & OPI_VALUE_INITIALIZER) != 0 && b->keep_parameters;
  if (x->data != NULL && !parameter) {
    *out_value = opi_b_reshaped(b, value, shape, rank);
    return *out_value != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, 8, "a reshaped constant");
  }
  uint32_t in[2] = {value, OPIPE_NONE};
  const uint32_t rank_in = (uint32_t)x->rank;
  OPI_TRY(opi_ints_value(b, shape, rank, &in[1], err));
  const opipe_attr attrs[2] = {OPI_ATTR_I("allowzero", 1), OPI_ATTR_N("kept", kept, rank_in)};
  const opi_emit emit = {.op = "Reshape",
                         .in = in,
                         .n_in = 2,
                         .n_out = 1,
                         .attrs = attrs,
                         .n_attrs = kept != NULL ? 2 : 1};
  return opi_b_emit(b, &emit, out_value, err);
}

opipe_status opi_lift_reshape(opi_builder *b, const opi_node *node, const int64_t *shape,
                              uint32_t rank, const int64_t *kept, opipe_error *err) {
  const opi_value *x = NULL;
  uint64_t n = 0;
  uint32_t out = OPIPE_NONE;
  char from[128], to[128];
  OPI_TRY(opi_in(b, node, 0, &x, err));
  if (rank > OPIPE_MAX_RANK || !opi_shape_elems(shape, rank, &n) || n != opi_elems(x)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' of shape %s cannot become %s",
                         x->name, opi_shape_text(from, sizeof(from), x->shape, (uint32_t)x->rank),
                         opi_shape_text(to, sizeof(to), shape, rank));
  }
  OPI_TRY(opi_emit_reshape(b, node->in[0], shape, rank, kept, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

void opi_work_move(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  *out_work = (opi_work){0};
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    out_work->bytes += 2.0 * (double)graph->values[node->out[o]].n_bytes;
  }
}
