/* SPDX-License-Identifier: Apache-2.0 */
/* Checks, carry rules and work shared by the operator families: see kit.h. */
#include "loader/ops/kit.h"

#include "loader/base/halves.h"
#include "loader/ops/common.h"
#include "loader/ops/walk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const opi_value *opi_input(const opi_builder *b, const opi_node *node, uint32_t i) {
  const uint32_t v = opi_node_in(node, i);
  return v < b->graph->n_values ? &b->graph->values[v] : NULL; /* absent, or a sequence */
}

static uint32_t type_class(uint32_t dtype) {
  const bool wide = opi_dtype_bits(dtype) >= 32;
  if (opi_dtype_is_float(dtype))
    return OPI_T_FLOAT;
  if (opi_dtype_is_unsigned(dtype))
    return wide ? OPI_T_UWIDE : OPI_T_USMALL;
  if (opi_dtype_is_integer(dtype))
    return wide ? OPI_T_WIDE : OPI_T_SMALL;
  return dtype == OPIPE_BOOL ? OPI_T_BOOL : 0;
}

/* "a floating-point type, int32, int64" into `text`. */
static const char *class_text(uint32_t classes, char *text, size_t room) {
  static const char *const names[] = {"a floating-point type", "int32, int64",  "uint32, uint64",
                                      "int8, int16",           "uint8, uint16", "bool"};
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < OPI_COUNT(names); ++i) {
    if ((classes >> i & 1u) == 0 || used >= room)
      continue;
    const int n = snprintf(text + used, room - used, "%s%s", used == 0 ? "" : ", ", names[i]);
    used += n > 0 ? (size_t)n : 0;
  }
  return text;
}

opipe_status opi_need(const opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                      uint32_t classes, int32_t min_rank, int32_t max_rank, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  char shape[128];
  if (x == NULL) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input %u (%s) is missing or no tensor, the node has %u inputs", i, role,
                         node->n_in);
  }
  if ((type_class(x->dtype) & classes) == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (%s) is of type %s, it must be %s", x->name, role,
                         opi_dtype_name(x->dtype), class_text(classes, shape, sizeof(shape)));
  }
  if (x->rank < min_rank || x->rank > max_rank) {
    opi_shape_text(shape, sizeof(shape), x->shape, (uint32_t)x->rank);
    if (min_rank == max_rank) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' (%s) has shape %s of rank %d, rank %d is needed", x->name,
                           role, shape, x->rank, min_rank);
    }
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (%s) has shape %s of rank %d, rank %d to %d is needed",
                         x->name, role, shape, x->rank, min_rank, max_rank);
  }
  return OPIPE_OK;
}

opipe_status opi_may(const opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                     uint32_t classes, int32_t min_rank, int32_t max_rank, opipe_error *err) {
  if (opi_node_in(node, i) == OPIPE_NONE)
    return OPIPE_OK;
  return opi_need(b, node, i, role, classes, min_rank, max_rank, err);
}

opipe_status opi_need_same_type(const opi_builder *b, const opi_node *node, uint32_t i, uint32_t j,
                                opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  const opi_value *y = opi_input(b, node, j);
  if (x == NULL || y == NULL || x->dtype == y->dtype)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' is of type %s, but input '%s' is of type %s", x->name,
                       opi_dtype_name(x->dtype), y->name, opi_dtype_name(y->dtype));
}

opipe_status opi_need_bytes(const opi_builder *b, const opi_node *node, uint32_t i,
                            const char *role, int32_t min_rank, int32_t max_rank,
                            opipe_error *err) {
  OPI_TRY(opi_need(b, node, i, role, OPI_T_SMALL | OPI_T_USMALL, min_rank, max_rank, err));
  const opi_value *x = opi_input(b, node, i);
  return opi_dtype_bits(x->dtype) == 8 ? OPIPE_OK
                                       : opi_node_fail(b, node, err, OPIPE_E_INVALID,
                                                       "input '%s' is of type %s, not of 8 bits",
                                                       x->name, opi_dtype_name(x->dtype));
}

opipe_status opi_need_zero_point(const opi_builder *b, const opi_node *node, uint32_t i, int64_t n,
                                 const char *unit, opipe_error *err) {
  const opi_value *zero = opi_input(b, node, i);
  if (zero == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_need_same_type(b, node, i - 2, i, err));
  if (opi_k_elems(zero) == 1 || (n != 1 && zero->rank == 1 && zero->shape[0] == n))
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "input '%s' has %.0f zero points, one%s%s is supported", zero->name,
                       opi_k_elems(zero), n != 1 ? " or one for each " : "", n != 1 ? unit : "");
}

/* Keeps what is needed of a graph input, for a binding that chose its dimensions. */
static void keep_needed(const opi_builder *b, const opi_value *x, const int64_t *shape) {
  if (b->report == NULL || (x->flags & OPI_VALUE_INPUT) == 0)
    return;
  opi_needed *needed = &b->report->needed;
  needed->source = x->source;
  needed->rank = (uint32_t)x->rank;
  memcpy(needed->shape, shape, (size_t)x->rank * sizeof *shape);
}

opipe_status opi_need_dim(const opi_builder *b, const opi_node *node, uint32_t i, uint32_t axis,
                          int64_t want, const char *what, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  char shape[128];
  if (x == NULL)
    return OPIPE_OK;
  if (axis < (uint32_t)x->rank && x->shape[axis] == want)
    return OPIPE_OK;
  if (axis < (uint32_t)x->rank) {
    int64_t needed[OPIPE_MAX_RANK];
    memcpy(needed, x->shape, (size_t)x->rank * sizeof *needed);
    needed[axis] = want;
    keep_needed(b, x, needed);
  }
  opi_shape_text(shape, sizeof(shape), x->shape, (uint32_t)x->rank);
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' has shape %s: axis %u must be %lld (%s)", x->name, shape, axis,
                       (long long)want, what);
}

opipe_status opi_need_shape(const opi_builder *b, const opi_node *node, uint32_t i,
                            const int64_t *shape, uint32_t rank, opipe_error *err) {
  const opi_value *x = opi_input(b, node, i);
  char has[128], want[128];
  if (x == NULL)
    return OPIPE_OK;
  if ((uint32_t)x->rank == rank &&
      (rank == 0 || memcmp(x->shape, shape, rank * sizeof(*shape)) == 0))
    return OPIPE_OK;
  if ((uint32_t)x->rank == rank)
    keep_needed(b, x, shape);
  opi_shape_text(has, sizeof(has), x->shape, (uint32_t)x->rank);
  opi_shape_text(want, sizeof(want), shape, rank);
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' has shape %s, %s is needed",
                       x->name, has, want);
}

opipe_status opi_need_axis(const opi_builder *b, const opi_node *node, int64_t fallback,
                           uint32_t *out_axis, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  int64_t axis;
  OPI_TRY(opi_int_attr(b, node, "axis", fallback, &axis, err));
  if (x == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input 0 is missing");
  if (opi_axis(axis, (uint32_t)x->rank, out_axis))
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "axis %lld is outside input '%s' of rank %d",
                       (long long)axis, x->name, x->rank);
}

opipe_status opi_need_int(const opi_builder *b, const opi_node *node, const char *name, int64_t min,
                          int64_t max, int64_t *out_value, opipe_error *err) {
  const opipe_attr *attr = opi_attr_find(node, name);
  if (attr == NULL || attr->kind != OPIPE_ATTR_INT)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "integer attribute '%s' is missing", name);
  if (attr->i < min || attr->i > max) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute '%s' is %lld, outside %lld to %lld", name, (long long)attr->i,
                         (long long)min, (long long)max);
  }
  *out_value = attr->i;
  return OPIPE_OK;
}

#define READ_AS(type)                                                       \
  do {                                                                      \
    type t_;                                                                \
    memcpy(&t_, (const uint8_t *)value->data + i * sizeof(t_), sizeof(t_)); \
    *out_value = (double)t_;                                                \
  } while (0)

static bool read_element(const opi_value *value, uint64_t i, double *out_value) {
  uint16_t half;
  switch (value->dtype) {
    case OPIPE_FLOAT:
      READ_AS(float);
      return true;
    case OPIPE_DOUBLE:
      READ_AS(double);
      return true;
    case OPIPE_INT32:
      READ_AS(int32_t);
      return true;
    case OPIPE_INT64:
      READ_AS(int64_t);
      return true;
    case OPIPE_UINT8:
    case OPIPE_BOOL:
      READ_AS(uint8_t);
      return true;
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      memcpy(&half, (const uint8_t *)value->data + i * sizeof(half), sizeof(half));
      *out_value = value->dtype == OPIPE_FLOAT16 ? (double)opi_half_to_float(half)
                                                 : (double)opi_bfloat_to_float(half);
      return true;
    default:
      return false;
  }
}

bool opi_known_scalar(const opi_value *value, double *out_value) {
  return value != NULL && value->data != NULL && value->n_bytes != 0 &&
         (value->flags & OPI_VALUE_KEPT) == 0 && read_element(value, 0, out_value);
}

double opi_known_element(const opi_value *value, uint64_t i) {
  double x = NAN;
  return read_element(value, i, &x) ? x : NAN;
}

double opi_k_elems(const opi_value *value) {
  double n = 1;
  for (int32_t i = 0; i < value->rank; ++i)
    n *= (double)value->shape[i];
  return n;
}

double opi_k_elems_of(const opi_graph *graph, uint32_t value) {
  return value == OPIPE_NONE ? 0 : opi_k_elems(&graph->values[value]);
}

/* -- shared rules ------------------------------------------------------------------------------ */

opipe_status opi_k_infer_same(opi_builder *b, const opi_node *node, uint32_t classes,
                              opipe_error *err) {
  const opi_value *x;
  OPI_TRY(opi_need(b, node, 0, "X", classes, 0, OPIPE_MAX_RANK, err));
  x = opi_input(b, node, 0);
  return opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err);
}

opipe_status opi_infer_float(opi_builder *b, const opi_node *node, opipe_error *err) {
  return opi_k_infer_same(b, node, OPI_T_FLOAT, err);
}

opipe_status opi_carry_refuse(const opi_graph *graph, const opi_node *node, uint32_t i,
                              const char *why, opipe_error *err) {
  const uint32_t v = opi_node_in(node, i);
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "node '%s' (%s) does not carry the axis of input '%s': %s", node->name, node->op,
                  v == OPIPE_NONE ? "" : graph->values[v].name, why);
}

opipe_status opi_carry_first(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err) {
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && in[i].axis >= 0)
      return opi_carry_refuse(graph, node, i, "only the first input may carry it", err);
  }
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = in[0];
  return OPIPE_OK;
}

opipe_status opi_carry_not(const opi_graph *graph, const opi_node *node, uint32_t from,
                           bool only_that, const opi_carry *in, opi_carry *out, opipe_error *err) {
  const int32_t axis = in[0].axis;
  if (axis >= 0 && ((uint32_t)axis == from || (!only_that && (uint32_t)axis > from)))
    return opi_carry_refuse(graph, node, 0, "its elements depend on each other along it", err);
  return opi_carry_first(graph, node, in, out, err);
}

double opi_work_bytes(const opi_graph *graph, const opi_node *node) {
  double bytes = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE)
      bytes += (double)graph->values[node->in[i]].n_bytes;
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    if (node->out[i] != OPIPE_NONE)
      bytes += (double)graph->values[node->out[i]].n_bytes;
  }
  return bytes;
}

void opi_work_each(const opi_graph *graph, const opi_node *node, double flops, opi_work *out_work) {
  out_work->flops = flops * opi_k_elems_of(graph, opi_node_in(node, 0));
  out_work->bytes = opi_work_bytes(graph, node);
}
