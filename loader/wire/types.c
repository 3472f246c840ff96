/* SPDX-License-Identifier: Apache-2.0 */
/* Declared types of inputs and outputs. Dimensions are numbers, names (opaque text here) or
 * unknown; negative numbers, which some writers use for unknown, are unknown. Types between inputs
 * and outputs (value_info) are not read: files carry stale ones.
 */
#include "loader/wire/wire.h"

static opipe_status read_dims(opi_load *load, const OpiOnnx__TensorShapeProto *shape,
                              const char *name, opi_wire_type *out, opipe_error *err) {
  if (shape->n_dim > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_LIMIT, "'%.200s' has %zu dimensions; the limit is %d", name,
                    shape->n_dim, OPIPE_MAX_RANK);
  }
  out->rank = (int32_t)shape->n_dim;
  out->shape = OPI_ARENA_ARRAY(load->arena, int64_t, shape->n_dim);
  if (out->shape == NULL)
    return opi_fail_nomem(err, 8 * shape->n_dim, "dimensions");
  for (size_t d = 0; d < shape->n_dim; ++d) {
    const OpiOnnx__TensorShapeProto__Dimension *dim = shape->dim[d];
    out->shape[d] = dim->has_dim_value && dim->dim_value >= 0 ? dim->dim_value : -1;
    if (dim->dim_param == NULL || dim->dim_param[0] == '\0')
      continue;
    if (out->dim_names == NULL) {
      out->dim_names = OPI_ARENA_ARRAY(load->arena, const char *, shape->n_dim);
      if (out->dim_names == NULL)
        return opi_fail_nomem(err, 8 * shape->n_dim, "dimension names");
    }
    out->dim_names[d] = opi_arena_strdup(load->arena, dim->dim_param);
    if (out->dim_names[d] == NULL)
      return opi_fail_nomem(err, 16, "a dimension name");
  }
  return OPIPE_OK;
}

opipe_status opi_wire_read_type(opi_load *load, const OpiOnnx__ValueInfoProto *info,
                                opi_wire_type *out, opipe_error *err) {
  const OpiOnnx__TypeProto *type = info->type;
  const char *name = opi_wire_text(info->name), *other = NULL;
  *out = (opi_wire_type){.rank = -1};
  if (type == NULL)
    return OPIPE_OK;
  if (type->map_type != NULL)
    other = "a map";
  if (type->optional_type != NULL)
    other = "an optional";
  if (type->sparse_tensor_type != NULL)
    other = "a sparse tensor";
  if (other != NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "'%.200s' is %s; only tensors are supported", name,
                    other);
  }
  out->sequence = type->sequence_type != NULL;
  if (type->tensor_type == NULL)
    return OPIPE_OK;
  const int32_t dtype = type->tensor_type->elem_type;
  if (dtype != OPIPE_UNDEFINED && dtype != OPIPE_STRING && opi_dtype_bits((uint32_t)dtype) == 0)
    return opi_fail(err, OPIPE_E_INVALID, "'%.200s' has the unknown element type %d", name, dtype);
  out->dtype = (uint32_t)dtype;
  if (type->tensor_type->shape == NULL)
    return OPIPE_OK;
  return read_dims(load, type->tensor_type->shape, name, out, err);
}

/* False when both say a number and the numbers differ. */
static bool agrees(const opi_value *value, const opi_wire_type *type) {
  if (value->dtype != OPIPE_UNDEFINED && type->dtype != OPIPE_UNDEFINED &&
      value->dtype != type->dtype)
    return false;
  if (value->rank < 0 || type->rank < 0)
    return true;
  if (value->rank != type->rank)
    return false;
  for (int32_t d = 0; d < value->rank; ++d) {
    if (value->shape[d] >= 0 && type->shape[d] >= 0 && value->shape[d] != type->shape[d])
      return false;
  }
  return true;
}

void opi_wire_apply_type(opi_load *load, opi_value *value, const opi_wire_type *type) {
  if (!agrees(value, type)) {
    if (opi_load_first(load, OPI_WARNED_TYPE)) {
      opi_log(
          load->logger, OPIPE_LOG_WARN,
          "the declared type of '%.200s' differs from its value's; such declarations are ignored",
          value->name);
    }
    return;
  }
  if (type->sequence)
    value->flags |= OPI_VALUE_SEQUENCE;
  if (value->dtype == OPIPE_UNDEFINED)
    value->dtype = type->dtype;
  if (value->rank < 0 && type->rank >= 0) {
    value->rank = type->rank;
    value->shape = type->shape;
    value->dim_names = type->dim_names;
  }
}
