/* SPDX-License-Identifier: Apache-2.0 */
/* Operators about shapes: Shape Size Reshape Flatten Squeeze Unsqueeze Expand Identity.
 *
 * Canonical forms left in a bound graph:
 *   Reshape(data, shape)  shape: known int64, exactly the output's shape (no 0 and -1 forms),
 * attribute allowzero 1. Flatten, Squeeze and Unsqueeze become it; one that changes nothing
 * vanishes. Attribute kept [rank of data], from Squeeze and Unsqueeze: where each dimension went
 * (-1: gone). Only the axis rules read it: a batch of 1 cannot be told from other ones.
 *   Expand(data, shape)   shape: known int64, exactly the output's shape; one that changes nothing
 * vanishes. Identity(x)           only where a graph output needs a buffer of its own. Shape and
 * Size never remain: they are constants once shapes are numbers.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

/* The file's value that a bound initializer is; OPIPE_NONE: none. */
static uint32_t file_source(const opi_builder *b, const opi_value *x) {
  return b->scope != NULL && b->scope->outer == NULL && x->source < b->scope->file->n_values
             ? x->source
             : OPIPE_NONE;
}

/* For training: a parameter that an exporter merged with another one (builder.merged) is a
 * parameter again, under the name of the Identity's output. Any other Identity is a tie. */
static opipe_status untie(opi_builder *b, const opi_node *node, bool *out_done, opipe_error *err) {
  const uint32_t file_value = opi_node_out(node, 0);
  const opi_value *x = opi_in_optional(b, node, 0);
  uint32_t taken = 0;
  *out_done = false;
  if (b->merged == NULL || x == NULL || file_value == OPIPE_NONE || file_source(b, x) == OPIPE_NONE)
    return OPIPE_OK;
  const char *name = b->scope->file->values[file_value].name;
  if ((x->flags & OPI_VALUE_INITIALIZER) == 0 || !opi_dtype_is_float(x->dtype) ||
      (opi_elems(x) < 2 && (x->flags & OPI_VALUE_KEPT) == 0) ||
      opi_map_get(b->names, name, &taken) || !opi_map_get(b->merged, name, &taken))
    return OPIPE_OK;
  const opi_value from = *x;
  const uint32_t v = opi_b_borrow(b, name, from.dtype, from.shape, (uint32_t)from.rank, from.data);
  if (v == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(from), "a parameter");
  opi_b_value(b, v)->flags = from.flags;
  opi_b_value(b, v)->source = file_value;
  opi_b_value(b, v)->at = from.at;
  b->scope->values[file_value] = v;
  opi_log(b->logger, OPIPE_LOG_WARN,
          "'%s' is taken for a parameter of its own: by its name the exporter merged it with '%s', "
          "whose numbers were the same",
          name, from.name);
  *out_done = true;
  return OPIPE_OK;
}

static opipe_status lift_identity(opi_builder *b, const opi_node *node, opipe_error *err) {
  bool done = false;
  if (node->n_in < 1 || node->in[0] == OPIPE_NONE)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks its input");
  OPI_TRY(untie(b, node, &done, err));
  if (done)
    return OPIPE_OK;
  return opi_b_result(b, node, 0, node->in[0], err); /* sequences pass, too */
}

/* start and end (opset 15) are clamped, as slices are. */
static int64_t clamp_axis(int64_t axis, int64_t rank) {
  if (axis < 0)
    axis += rank;
  return axis < 0 ? 0 : axis > rank ? rank : axis;
}

static opipe_status lift_shape(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  uint32_t out = OPIPE_NONE;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const int64_t start = clamp_axis(opi_attr_int(node, "start", 0), x->rank);
  const int64_t end = clamp_axis(opi_attr_int(node, "end", x->rank), x->rank);
  const uint32_t n = end > start ? (uint32_t)(end - start) : 0;
  OPI_TRY(opi_ints_value(b, n != 0 ? x->shape + start : NULL, n, &out, err));
  return opi_b_result(b, node, 0, out, err);
}

static opipe_status lift_size(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const int64_t size = (int64_t)opi_elems(x);
  const uint32_t out = opi_b_const(b, OPIPE_INT64, NULL, 0, &size);
  if (out == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  return opi_b_result(b, node, 0, out, err);
}

/* 0: copy (unless allowzero), -1: what is left. shape [n] is rewritten. */
static opipe_status resolve_shape(const opi_builder *b, const opi_node *node, const opi_value *x,
                                  int64_t *shape, uint32_t n, bool allow_zero, opipe_error *err) {
  uint32_t free_at = OPIPE_NONE;
  uint64_t known = 1;
  for (uint32_t d = 0; d < n; ++d) {
    if (shape[d] == 0 && !allow_zero) {
      if (d >= (uint32_t)x->rank) {
        return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                             "shape entry %" PRIu32 " copies a dimension that '%s' of rank %" PRId32
                             " lacks",
                             d, x->name, x->rank);
      }
      shape[d] = x->shape[d];
    }
    if (shape[d] < -1 || (shape[d] == -1 && free_at != OPIPE_NONE)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "shape entry %" PRIu32 " is %" PRId64 "%s", d, shape[d],
                           shape[d] == -1 ? ", the second of its kind" : "");
    }
    if (shape[d] == -1)
      free_at = d;
    else if (opi_mul_u64(known, (uint64_t)shape[d], &known))
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the shape overflows");
  }
  if (free_at == OPIPE_NONE)
    return OPIPE_OK;
  const uint64_t elems = opi_elems(x);
  if (known == 0 || elems % known != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "the %" PRIu64 " elements of '%s' cannot be divided by %" PRIu64, elems,
                         x->name, known);
  }
  shape[free_at] = (int64_t)(elems / known);
  return OPIPE_OK;
}

static opipe_status lift_reshape(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *wanted = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_attr_or_input(b, node, "shape", 1, &wanted, &n, err));
  if (wanted == NULL || n > OPIPE_MAX_RANK)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "has no shape, or one of rank %" PRIu32, n);
  if (n != 0)
    memcpy(shape, wanted, n * sizeof(*shape));
  OPI_TRY(resolve_shape(b, node, x, shape, n, opi_attr_int(node, "allowzero", 0) != 0, err));
  return opi_lift_reshape(b, node, shape, n, NULL, err);
}

static opipe_status infer_reshape(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *shape = NULL;
  uint32_t n = 0;
  uint64_t elems = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_known_ints(b, node, 1, &shape, &n, err));
  OPI_TRY(opi_b_set(b, node, 0, x->dtype, shape, n, err));
  if (!opi_shape_elems(shape, n, &elems) || elems != opi_elems(&b->graph->values[node->in[0]])) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID, "'%s' has %" PRIu64 " elements, the new shape %" PRIu64,
        b->graph->values[node->in[0]].name, opi_elems(&b->graph->values[node->in[0]]), elems);
  }
  return OPIPE_OK;
}

static opipe_status carry_reshape(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  char a[96], c[96];
  uint32_t n = 0;
  const int64_t *kept = opi_attr_ints(node, "kept", &n);
  if (opi_carries(&in[0]) && kept != NULL && n == (uint32_t)x->rank && kept[in[0].axis] < y->rank) {
    out[0] = in[0];
    out[0].axis = (int32_t)kept[in[0].axis];
    if (opi_carries(&out[0]))
      return OPIPE_OK;
    return opi_carry_fail(graph, node, err, "dimension %" PRId32 " of '%s' is squeezed away",
                          in[0].axis, x->name);
  }
  out[0] = opi_carry_reshape(x, &in[0], y);
  if (opi_carries(&out[0]) || !opi_carries(&in[0]))
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err, "no dimension of %s keeps dimension %" PRId32 " of %s",
                        opi_shape_text(c, sizeof(c), y->shape, (uint32_t)y->rank), in[0].axis,
                        opi_shape_text(a, sizeof(a), x->shape, (uint32_t)x->rank));
}

static opipe_status lift_flatten(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t shape[2] = {1, 1};
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const int64_t axis = opi_attr_int(node, "axis", 1);
  if (axis < -(int64_t)x->rank || axis > x->rank) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "axis %" PRId64 " is outside rank %" PRId32,
                         axis, x->rank);
  }
  const int64_t at = axis < 0 ? axis + x->rank : axis;
  for (int32_t d = 0; d < x->rank; ++d)
    shape[d >= at] *= x->shape[d];
  return opi_lift_reshape(b, node, shape, 2, NULL, err);
}

/* Marks the axes listed; each once, inside `rank`. */
static opipe_status mark_axes(const opi_builder *b, const opi_node *node, const int64_t *axes,
                              uint32_t n, uint32_t rank, bool *marked, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t axis = 0;
    if (!opi_axis(axes[i], rank, &axis)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %" PRId64 " is outside rank %" PRIu32, axes[i], rank);
    }
    if (marked[axis]) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "axis %" PRId64 " is listed twice",
                           axes[i]);
    }
    marked[axis] = true;
  }
  return OPIPE_OK;
}

static opipe_status lift_squeeze(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *axes = NULL;
  int64_t shape[OPIPE_MAX_RANK], kept[OPIPE_MAX_RANK];
  bool drop[OPIPE_MAX_RANK] = {false};
  uint32_t n = 0, rank = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_attr_or_input(b, node, "axes", 1, &axes, &n, err));
  if (axes != NULL)
    OPI_TRY(mark_axes(b, node, axes, n, (uint32_t)x->rank, drop, err));
  for (int32_t d = 0; d < x->rank; ++d) {
    if (axes == NULL)
      drop[d] = x->shape[d] == 1;
    if (drop[d] && x->shape[d] != 1) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "dimension %" PRId32 " of '%s' is %" PRId64 ", not 1", d, x->name,
                           x->shape[d]);
    }
    kept[d] = drop[d] ? -1 : (int64_t)rank;
    if (!drop[d])
      shape[rank++] = x->shape[d];
  }
  return opi_lift_reshape(b, node, shape, rank, kept, err);
}

static opipe_status lift_unsqueeze(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *axes = NULL;
  int64_t shape[OPIPE_MAX_RANK], kept[OPIPE_MAX_RANK];
  bool added[OPIPE_MAX_RANK] = {false};
  uint32_t n = 0, from = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_attr_or_input(b, node, "axes", 1, &axes, &n, err));
  if (axes == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "has no axes");
  if (n > OPIPE_MAX_RANK || (uint32_t)x->rank + n > OPIPE_MAX_RANK) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "rank %" PRId32 " + %" PRIu32 " is above %d",
                         x->rank, n, OPIPE_MAX_RANK);
  }
  const uint32_t rank = (uint32_t)x->rank + n;
  OPI_TRY(mark_axes(b, node, axes, n, rank, added, err));
  for (uint32_t d = 0; d < rank; ++d) {
    if (!added[d])
      kept[from] = d;
    shape[d] = added[d] ? 1 : x->shape[from++];
  }
  return opi_lift_reshape(b, node, shape, rank, kept, err);
}

static opipe_status lift_expand(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *wanted = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t n = 0, rank = 0;
  char a[96], c[96];
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_known_ints(b, node, 1, &wanted, &n, err));
  if (n > OPIPE_MAX_RANK || !opi_broadcast(x->shape, (uint32_t)x->rank, wanted, n, shape, &rank)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "'%s' of shape %s does not expand to %s",
                         x->name, opi_shape_text(a, sizeof(a), x->shape, (uint32_t)x->rank),
                         opi_shape_text(c, sizeof(c), wanted, n));
  }
  if (rank == (uint32_t)x->rank && (rank == 0 || memcmp(shape, x->shape, rank * 8) == 0))
    return opi_b_result(b, node, 0, node->in[0], err);
  uint32_t in[2] = {node->in[0], OPIPE_NONE};
  OPI_TRY(opi_ints_value(b, shape, rank, &in[1], err));
  return opi_b_lift(b, node, "Expand", in, 2, NULL, 0, err);
}

static opipe_status infer_expand(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *wanted = NULL;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t n = 0, rank = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_known_ints(b, node, 1, &wanted, &n, err));
  if (n > OPIPE_MAX_RANK || !opi_broadcast(x->shape, (uint32_t)x->rank, wanted, n, shape, &rank)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "'%s' does not expand to its shape input",
                         x->name);
  }
  return opi_b_set(b, node, 0, x->dtype, shape, rank, err);
}

static opipe_status carry_expand(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  out[0] = in[0];
  if (!opi_carries(&in[0]))
    return OPIPE_OK;
  out[0].axis += y->rank - x->rank;
  if (x->shape[in[0].axis] == y->shape[out[0].axis])
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err, "it is expanded from %" PRId64 " to %" PRId64,
                        x->shape[in[0].axis], y->shape[out[0].axis]);
}

static void work_none(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  (void)graph;
  (void)node;
  *out_work = (opi_work){0};
}

static const opi_op ops[] = {
    {OPI_OP("Identity", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(25),
     .lift = lift_identity, .infer = opi_infer_same, .work = opi_work_move, .carry = opi_carry_same,
     .gradient = opi_gradient_identity, .sequences = 1,
     OPI_COLUMNS(FORM, COMMON, OTHER, SAME, NONE, PLAIN, FIRST)},
    {OPI_OP("Shape", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(25, OPI_A(INT, "end", .since = 15), OPI_A(INT, "start", .since = 15, OPI_PRESET(0))),
     .lift = lift_shape},
    {OPI_OP("Size", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(25), .lift = lift_size},
    {OPI_OP("Reshape", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 1),
     OPI_ATTRS(25, OPI_A_CONSUMED, OPI_A(INTS, "shape", .until = 4, .input = 1),
               OPI_A(INT, "allowzero", .since = 14, OPI_PRESET(0))),
     .lift = lift_reshape, .infer = infer_reshape, .work = work_none, .carry = carry_reshape,
     .gradient = opi_gradient_reshape, .stops_gradient = 0x2,
     OPI_COLUMNS(FORM, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
    {OPI_OP("Flatten", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1),
     OPI_ATTRS(25, OPI_A(INT, "axis", OPI_PRESET(1))), .lift = lift_flatten,
     .takes = OPI_TAKES_FORM},
    {OPI_OP("Squeeze", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 1),
     OPI_ATTRS(25, OPI_A(INTS, "axes", .until = 12, .input = 1)), .lift = lift_squeeze,
     .takes = OPI_TAKES_FORM},
    {OPI_OP("Unsqueeze", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 1),
     OPI_ATTRS(25, OPI_A(INTS, "axes", .until = 12, .input = 1)), .lift = lift_unsqueeze,
     .takes = OPI_TAKES_FORM},
    {OPI_OP("Expand", "", 8, OPI_NEWEST_ONNX, 2, 2, 1, 1), OPI_NO_ATTRS(13), .lift = lift_expand,
     .infer = infer_expand, .work = opi_work_move, .carry = carry_expand,
     .gradient = opi_gradient_expand, .stops_gradient = 0x2,
     OPI_COLUMNS(STRETCHED, COMMON, OTHER, SAME, NONE, PLAIN, FIRST)},
};
extern const opi_op_family opi_ops_shape;
const opi_op_family opi_ops_shape = {ops, OPI_COUNT(ops)};
