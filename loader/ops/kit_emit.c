/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of emission that lift rules and fusions share: see kit.h.
 *
 * All go through opi_b_emit, so shapes are inferred and constants folded as each node is written.
 */
#include <string.h>

#include "loader/ops/kit.h"

static opipe_attr *next_attr(opi_attrs *attrs, const char *name, uint32_t kind) {
  opipe_attr *attr = &attrs->list[attrs->n < OPI_COUNT(attrs->list) ? attrs->n++ : attrs->n - 1];
  memset(attr, 0, sizeof(*attr));
  attr->name = name;
  attr->kind = kind;
  return attr;
}

void opi_attrs_int(opi_attrs *attrs, const char *name, int64_t value) {
  next_attr(attrs, name, OPIPE_ATTR_INT)->i = value;
}

void opi_attrs_float(opi_attrs *attrs, const char *name, double value) {
  next_attr(attrs, name, OPIPE_ATTR_FLOAT)->f = value;
}

void opi_attrs_string(opi_attrs *attrs, const char *name, const char *value) {
  opipe_attr *attr = next_attr(attrs, name, OPIPE_ATTR_STRING);
  attr->data = value;
  attr->n = (uint32_t)strlen(value);
}

void opi_attrs_ints(opi_attrs *attrs, const char *name, const int64_t *ints, uint32_t n) {
  opipe_attr *attr = next_attr(attrs, name, OPIPE_ATTR_INTS);
  attr->data = ints;
  attr->n = n;
}

opipe_status opi_k_node(opi_builder *b, const char *op, const char *domain, uint32_t version,
                        const uint32_t *in, uint32_t n_in, uint32_t want, const opi_attrs *attrs,
                        uint32_t *out, opipe_error *err) {
  const char *names[8] = {NULL};
  uint32_t n_out = 0, made[8]; /* `out` may lie where `in` does */
  for (uint32_t i = 0; i < OPI_COUNT(names); ++i) {
    if (want >> i & 1u)
      n_out = i + 1;
  }
  for (uint32_t i = 0; i < n_out; ++i)
    names[i] = (want >> i & 1u) != 0 ? NULL : "";
  const opi_emit emit = {.op = op,
                         .domain = domain,
                         .in = in,
                         .n_in = n_in,
                         .n_out = n_out,
                         .attrs = attrs != NULL ? attrs->list : NULL,
                         .n_attrs = attrs != NULL ? attrs->n : 0,
                         .version = version,
                         .out_names = names};
  OPI_TRY(opi_b_emit(b, &emit, made, err));
  memcpy(out, made, n_out * sizeof(*out));
  return OPIPE_OK;
}

opipe_status opi_k_one(opi_builder *b, const char *op, uint32_t version, const uint32_t *in,
                       uint32_t n_in, const opi_attrs *attrs, uint32_t *out, opipe_error *err) {
  uint32_t y; /* `in` may be the place that `out` names */
  OPI_TRY(opi_k_node(b, op, NULL, version, in, n_in, 1, attrs, &y, err));
  *out = y;
  return OPIPE_OK;
}

opipe_status opi_k_lift(opi_builder *b, const opi_node *node, const char *op, const char *domain,
                        uint32_t version, const opi_attrs *attrs, opipe_error *err) {
  uint32_t y;
  OPI_TRY(opi_k_node(b, op, domain, version, node->in, node->n_in, 1, attrs, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

opipe_status opi_k_const(uint32_t value, opipe_error *err) {
  return value == OPIPE_NONE ? opi_fail_nomem(err, 0, "a constant") : OPIPE_OK;
}

static opipe_status with_ints(opi_builder *b, const char *op, uint32_t version, uint32_t x,
                              const int64_t *ints, uint32_t n, const opi_attrs *attrs,
                              uint32_t *out, opipe_error *err) {
  const uint32_t in[2] = {x, opi_b_const_ints(b, ints, n)};
  OPI_TRY(opi_k_const(in[1], err));
  return opi_k_one(b, op, version, in, 2, attrs, out, err);
}

static bool has_shape(const opi_value *v, const int64_t *shape, uint32_t rank) {
  return (uint32_t)v->rank == rank &&
         (rank == 0 || memcmp(v->shape, shape, rank * sizeof(*shape)) == 0);
}

/* Whether a node is left out, because it would change nothing. */
static bool has_no_effect(opi_builder *b, bool by_shapes) {
  return opi_b_choose(b, by_shapes) != 0 && by_shapes;
}

opipe_status opi_k_reshape(opi_builder *b, uint32_t x, const int64_t *shape, uint32_t rank,
                           uint32_t *out, opipe_error *err) {
  const opi_value *v = opi_b_value(b, x);
  opi_attrs attrs = {.n = 0};
  if (has_no_effect(b, has_shape(v, shape, rank))) {
    *out = x;
    return OPIPE_OK;
  }
  if (opi_value_known(v) && !(b->keep_parameters && (v->flags & OPI_VALUE_INITIALIZER) != 0)) {
    *out = opi_b_reshaped(b, x, shape, rank);
    return opi_k_const(*out, err);
  }
  opi_attrs_int(&attrs, "allowzero", 1);
  return with_ints(b, "Reshape", 0, x, shape, rank, &attrs, out, err);
}

opipe_status opi_k_transpose(opi_builder *b, uint32_t x, const int64_t *perm, uint32_t rank,
                             uint32_t *out, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  bool moves = false;
  for (uint32_t a = 0; a < rank; ++a)
    moves = moves || perm[a] != (int64_t)a;
  if (!moves) {
    *out = x;
    return OPIPE_OK;
  }
  opi_attrs_ints(&attrs, "perm", perm, rank);
  return opi_k_one(b, "Transpose", 0, &x, 1, &attrs, out, err);
}

opipe_status opi_k_cast(opi_builder *b, uint32_t x, uint32_t dtype, uint32_t *out,
                        opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  if (opi_b_value(b, x)->dtype == dtype) {
    *out = x;
    return OPIPE_OK;
  }
  opi_attrs_int(&attrs, "to", (int64_t)dtype);
  opi_attrs_int(&attrs, "saturate", 1);
  return opi_k_one(b, "Cast", 0, &x, 1, &attrs, out, err);
}

opipe_status opi_k_expand(opi_builder *b, uint32_t x, const int64_t *shape, uint32_t rank,
                          uint32_t *out, opipe_error *err) {
  const opi_value *v = opi_b_value(b, x);
  if (has_no_effect(b, has_shape(v, shape, rank))) {
    *out = x;
    return OPIPE_OK;
  }
  return with_ints(b, "Expand", 0, x, shape, rank, NULL, out, err);
}

opipe_status opi_k_slice(opi_builder *b, uint32_t x, int64_t axis, int64_t begin, int64_t end,
                         uint32_t *out, opipe_error *err) {
  const int64_t step = 1;
  if (has_no_effect(b, begin == 0 && end == opi_b_value(b, x)->shape[axis])) {
    *out = x;
    return OPIPE_OK;
  }
  const uint32_t in[5] = {x, opi_b_const_ints(b, &begin, 1), opi_b_const_ints(b, &end, 1),
                          opi_b_const_ints(b, &axis, 1), opi_b_const_ints(b, &step, 1)};
  for (uint32_t i = 1; i < 5; ++i)
    OPI_TRY(opi_k_const(in[i], err));
  return opi_k_one(b, "Slice", 0, in, 5, NULL, out, err);
}

opipe_status opi_k_pad(opi_builder *b, uint32_t x, const int64_t *pads, uint32_t *out,
                       opipe_error *err) {
  const uint32_t n = 2 * (uint32_t)opi_b_value(b, x)->rank;
  opi_attrs attrs = {.n = 0};
  bool any = false;
  for (uint32_t i = 0; i < n; ++i)
    any = any || pads[i] != 0;
  *out = x;
  opi_attrs_string(&attrs, "mode", "constant");
  return !has_no_effect(b, !any) ? with_ints(b, "Pad", 0, x, pads, n, &attrs, out, err) : OPIPE_OK;
}

opipe_status opi_k_concat(opi_builder *b, const uint32_t *in, uint32_t n_in, int64_t axis,
                          uint32_t *out, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", axis);
  return opi_k_one(b, "Concat", 0, in, n_in, &attrs, out, err);
}

opipe_status opi_k_reduce(opi_builder *b, const char *op, uint32_t version, uint32_t x,
                          const int64_t *axes, uint32_t n_axes, bool keepdims, uint32_t *out,
                          opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "keepdims", keepdims ? 1 : 0);
  opi_attrs_int(&attrs, "noop_with_empty_axes", 0);
  return with_ints(b, op, version, x, axes, n_axes, &attrs, out, err);
}

opipe_status opi_k_where(opi_builder *b, uint32_t cond, uint32_t yes, uint32_t no, uint32_t *out,
                         opipe_error *err) {
  const uint32_t in[3] = {cond, yes, no};
  return opi_k_one(b, "Where", 0, in, 3, NULL, out, err);
}

opipe_status opi_k_band(opi_builder *b, int64_t rows, int64_t cols, int64_t offset, int64_t lo,
                        int64_t hi, uint32_t *out, opipe_error *err) {
  const int64_t shape[2] = {rows, cols};
  uint64_t n;
  uint8_t *data;
  if (!opi_shape_elems(shape, 2, &n)) {
    return opi_fail(err, OPIPE_E_LIMIT, "a mask of %lld x %lld is too large", (long long)rows,
                    (long long)cols);
  }
  data = opi_arena_alloc(b->scratch, n);
  if (data == NULL)
    return opi_fail_nomem(err, n, "a mask");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t ahead = c - r - offset;
      data[r * cols + c] = ahead >= lo && ahead <= hi;
    }
  }
  *out = opi_b_const(b, OPIPE_BOOL, shape, 2, data);
  return opi_k_const(*out, err);
}
