/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move elements: Transpose Tile Concat Split Pad Trilu. (Slice: slice.c.)
 *
 * Canonical forms left in a bound graph:
 *   Transpose(x)            attribute perm always there; the identity permutation vanishes.
 *   Tile(x, repeats)        repeats: known int64 [rank]; all ones vanish.
 *   Concat(x0, x1, ...)     attribute axis >= 0; inputs that are empty along it are left out; one
 * input vanishes. Split(x, split)         split: known int64 [outputs] that adds up; attribute axis
 * >= 0. Pad(x, pads, value?)    pads: known int64 [2 * rank], may be negative; attribute mode;
 * value of x's type, rank 0. Trilu(x, k)             k: known int64, rank 0; attribute upper always
 * there.
 */
#include "loader/ops/common.h"
#include "loader/ops/gradients.h"

/* -- Transpose -- */

static opipe_status read_perm(const opi_builder *b, const opi_node *node, const opi_value *x,
                              int64_t *perm, opipe_error *err) {
  uint32_t n = 0, seen = 0;
  const uint32_t rank = (uint32_t)x->rank;
  const int64_t *given = opi_attr_ints(node, "perm", &n);
  for (uint32_t d = 0; given == NULL && d < rank; ++d)
    perm[d] = (int64_t)(rank - 1 - d);
  if (given != NULL && n != rank) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "perm has %" PRIu32 " entries, '%s' rank %" PRIu32, n, x->name, rank);
  }
  for (uint32_t d = 0; d < rank; ++d) {
    uint32_t axis = 0;
    if (given != NULL)
      perm[d] = given[d];
    if (!opi_axis(perm[d], rank, &axis) || (seen & (1u << axis))) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "perm entry %" PRIu32 " is %" PRId64 ": not a permutation of %" PRIu32,
                           d, perm[d], rank);
    }
    perm[d] = axis;
    seen |= 1u << axis;
  }
  return OPIPE_OK;
}

static opipe_status lift_transpose(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t perm[OPIPE_MAX_RANK];
  bool same = true;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(read_perm(b, node, x, perm, err));
  const uint32_t rank = (uint32_t)x->rank;
  for (uint32_t d = 0; d < rank; ++d)
    same = same && perm[d] == d;
  if (same)
    return opi_b_result(b, node, 0, node->in[0], err);
  const opipe_attr attr = OPI_ATTR_N("perm", perm, rank);
  return opi_b_lift(b, node, "Transpose", node->in, 1, &attr, 1, err);
}

static opipe_status infer_transpose(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t perm[OPIPE_MAX_RANK], shape[OPIPE_MAX_RANK];
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(read_perm(b, node, x, perm, err));
  for (int32_t d = 0; d < x->rank; ++d)
    shape[d] = x->shape[perm[d]];
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static opipe_status carry_transpose(const opi_graph *graph, const opi_node *node,
                                    const opi_carry *in, opi_carry *out, opipe_error *err) {
  uint32_t n = 0;
  const int64_t *perm = opi_attr_ints(node, "perm", &n);
  (void)graph;
  (void)err;
  out[0] = in[0];
  for (uint32_t d = 0; d < n; ++d) {
    if (opi_carries(&in[0]) && perm[d] == in[0].axis)
      out[0].axis = (int32_t)d;
  }
  return OPIPE_OK;
}

/* -- Tile -- */

/* Opset 1: Tile(x, tiles, axis), both scalars; since 6: Tile(x, repeats). */
static opipe_status read_repeats(opi_builder *b, const opi_node *node, const opi_value *x,
                                 int64_t *repeats, opipe_error *err) {
  const int64_t *given = NULL, *axis = NULL;
  uint32_t n = 0, n_axis = 0, at = 0;
  OPI_TRY(opi_known_ints(b, node, 1, &given, &n, err));
  if (node->n_in < 3) {
    if (n != (uint32_t)x->rank) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "repeats has %" PRIu32 " entries, '%s' rank %" PRId32, n, x->name,
                           x->rank);
    }
    if (n != 0)
      memcpy(repeats, given, n * sizeof(*repeats));
    return OPIPE_OK;
  }
  OPI_TRY(opi_known_ints(b, node, 2, &axis, &n_axis, err));
  if (n != 1 || n_axis != 1 || !opi_axis(axis[0], (uint32_t)x->rank, &at))
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "tiles or axis does not fit '%s'", x->name);
  for (int32_t d = 0; d < x->rank; ++d)
    repeats[d] = 1;
  repeats[at] = given[0];
  return OPIPE_OK;
}

static opipe_status lift_tile(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t repeats[OPIPE_MAX_RANK];
  bool same = true;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(read_repeats(b, node, x, repeats, err));
  const uint32_t rank = (uint32_t)x->rank;
  for (uint32_t d = 0; d < rank; ++d)
    same = same && repeats[d] == 1;
  if (same)
    return opi_b_result(b, node, 0, node->in[0], err);
  uint32_t in[2] = {node->in[0], OPIPE_NONE};
  OPI_TRY(opi_ints_value(b, repeats, rank, &in[1], err));
  return opi_b_lift(b, node, "Tile", in, 2, NULL, 0, err);
}

static opipe_status infer_tile(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t repeats[OPIPE_MAX_RANK], shape[OPIPE_MAX_RANK];
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(read_repeats(b, node, x, repeats, err));
  for (int32_t d = 0; d < x->rank; ++d) {
    if (repeats[d] < 0 || __builtin_mul_overflow(x->shape[d], repeats[d], &shape[d])) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "dimension %" PRId32 " of %" PRId64 " is repeated %" PRId64 " times", d,
                           x->shape[d], repeats[d]);
    }
  }
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static opipe_status carry_tile(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  (void)err;
  out[0] = in[0];
  if (!opi_carries(&in[0]) || x->shape[in[0].axis] == 0)
    return OPIPE_OK;
  out[0].outer *= y->shape[in[0].axis] / x->shape[in[0].axis]; /* each repeat holds all parts */
  return OPIPE_OK;
}

/* -- Concat -- */

static opipe_status lift_concat(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL, *first = NULL;
  uint32_t axis = 0, n = 0;
  uint32_t *in = OPI_ARENA_ARRAY(b->scratch, uint32_t, node->n_in);
  if (in == NULL)
    return opi_fail_nomem(err, node->n_in * 4, "inputs");
  OPI_TRY(opi_in(b, node, 0, &first, err));
  if (node->version >= 4 && opi_attr_find(node, "axis") == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute 'axis' is missing");
  OPI_TRY(
      opi_axis_attr(b, node, "axis", node->version < 4 ? 1 : 0, (uint32_t)first->rank, &axis, err));
  for (uint32_t i = 0; i < node->n_in; ++i) {
    OPI_TRY(opi_in(b, node, i, &x, err));
    const bool empty = x->rank > (int32_t)axis && x->shape[axis] == 0;
    bool fits = empty && x->rank == first->rank && x->dtype == first->dtype;
    for (int32_t d = 0; fits && d < x->rank; ++d)
      fits = d == (int32_t)axis || x->shape[d] == first->shape[d];
    if (!fits)
      in[n++] = node->in[i]; /* leave mismatches for the shape rule to report */
  }
  if (n == 0)
    in[n++] = node->in[0];
  if (n == 1)
    return opi_b_result(b, node, 0, in[0], err);
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  return opi_b_lift(b, node, "Concat", in, n, &attr, 1, err);
}

static opipe_status infer_concat(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *first = NULL, *x = NULL;
  int64_t shape[OPIPE_MAX_RANK] = {0};
  uint32_t axis = 0;
  char a[96], c[96];
  OPI_TRY(opi_in(b, node, 0, &first, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)first->rank, &axis, err));
  OPI_TRY(opi_check_same_type(b, node, 0, err));
  memcpy(shape, first->shape, (size_t)first->rank * sizeof(*shape));
  for (uint32_t i = 1; i < node->n_in; ++i) {
    OPI_TRY(opi_in(b, node, i, &x, err));
    bool fits = x->rank == first->rank;
    for (int32_t d = 0; fits && d < x->rank; ++d)
      fits = d == (int32_t)axis || x->shape[d] == first->shape[d];
    if (!fits || __builtin_add_overflow(shape[axis], x->shape[axis], &shape[axis])) {
      return opi_node_fail(
          b, node, err, OPIPE_E_INVALID, "'%s' %s and '%s' %s cannot be joined along axis %" PRIu32,
          first->name, opi_shape_text(a, sizeof(a), first->shape, (uint32_t)first->rank), x->name,
          opi_shape_text(c, sizeof(c), x->shape, (uint32_t)x->rank), axis);
    }
  }
  return opi_b_set(b, node, 0, first->dtype, shape, (uint32_t)first->rank, err);
}

static opipe_status carry_concat(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (!opi_carries(&in[i]) || in[i].axis != opi_attr_int(node, "axis", -1))
      continue;
    return opi_carry_fail(graph, node, err, "values are joined along it (dimension %" PRId32 ")",
                          in[i].axis);
  }
  return opi_carry_broadcast(graph, node, in, out, err);
}

/* -- Split -- */

/* Equal parts; since opset 18 (num_outputs) the last may be smaller. */
static opipe_status equal_parts(const opi_builder *b, const opi_node *node, int64_t extent,
                                int64_t *split, opipe_error *err) {
  const int64_t n = node->n_out;
  const int64_t wanted = opi_attr_int(node, "num_outputs", n);
  const bool uneven = node->version >= 18;
  const int64_t part = (extent + n - 1) / n;
  if (wanted != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "num_outputs is %" PRId64 ", the node has %" PRId64, wanted, n);
  }
  if ((!uneven && extent % n != 0) || part * (n - 1) > extent) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "%" PRId64 " cannot be split into %" PRId64 " equal parts", extent, n);
  }
  for (int64_t i = 0; i < n; ++i)
    split[i] = i + 1 < n ? part : extent - part * (n - 1);
  return OPIPE_OK;
}

static opipe_status lift_split(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *given = NULL;
  uint32_t axis = 0, n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  OPI_TRY(opi_attr_or_input(b, node, "split", 1, &given, &n, err));
  if (given != NULL && n != node->n_out) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "split has %" PRIu32 " entries, the node %" PRIu32 " outputs", n,
                         node->n_out);
  }
  int64_t *split = OPI_ARENA_ARRAY(b->scratch, int64_t, node->n_out);
  if (split == NULL)
    return opi_fail_nomem(err, node->n_out * 8, "split sizes");
  if (given != NULL)
    memcpy(split, given, n * sizeof(*split));
  else
    OPI_TRY(equal_parts(b, node, x->shape[axis], split, err));
  if (node->n_out == 1 && split[0] == x->shape[axis])
    return opi_b_result(b, node, 0, node->in[0], err);
  uint32_t in[2] = {node->in[0], OPIPE_NONE};
  OPI_TRY(opi_ints_value(b, split, node->n_out, &in[1], err));
  const opipe_attr attr = OPI_ATTR_I("axis", axis);
  return opi_b_lift(b, node, "Split", in, 2, &attr, 1, err);
}

static opipe_status infer_split(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const int64_t *split = NULL;
  int64_t shape[OPIPE_MAX_RANK], sum = 0;
  uint32_t axis = 0, n = 0;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(opi_axis_attr(b, node, "axis", 0, (uint32_t)x->rank, &axis, err));
  OPI_TRY(opi_known_ints(b, node, 1, &split, &n, err));
  const opi_value from = *x;
  if (n != node->n_out) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "split has %" PRIu32 " entries, the node %" PRIu32 " outputs", n,
                         node->n_out);
  }
  memcpy(shape, from.shape, (size_t)from.rank * sizeof(*shape));
  for (uint32_t o = 0; o < n; ++o) {
    if (split[o] < 0 || __builtin_add_overflow(sum, split[o], &sum)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "split entry %" PRIu32 " is %" PRId64, o,
                           split[o]);
    }
    shape[axis] = split[o];
    OPI_TRY(opi_b_set(b, node, o, from.dtype, shape, (uint32_t)from.rank, err));
  }
  if (sum == from.shape[axis])
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "split adds up to %" PRId64 ", dimension %" PRIu32 " of '%s' is %" PRId64,
                       sum, axis, from.name, from.shape[axis]);
}

static opipe_status carry_split(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  return opi_carry_mixing(graph, node, in, out, axis, axis + 1, "split", err);
}

/* -- Pad -- */

/* pads for the listed axes (opset 18) spread over all dimensions. */
static opipe_status read_pads(opi_builder *b, const opi_node *node, const opi_value *x,
                              int64_t *pads, opipe_error *err) {
  const int64_t *given = NULL, *axes = NULL;
  uint32_t n = 0, n_axes = 0;
  const uint32_t rank = (uint32_t)x->rank;
  const char *name = opi_attr_find(node, "paddings") != NULL ? "paddings" : "pads";
  OPI_TRY(opi_attr_or_input(b, node, name, 1, &given, &n, err));
  if (opi_node_in(node, 3) != OPIPE_NONE)
    OPI_TRY(opi_known_ints(b, node, 3, &axes, &n_axes, err));
  const uint32_t n_dims = axes != NULL ? n_axes : rank;
  if (given == NULL || n != 2 * n_dims) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "pads has %" PRIu32 " entries for %" PRIu32 " dimensions", n, n_dims);
  }
  memset(pads, 0, 2 * rank * sizeof(*pads));
  for (uint32_t i = 0; i < n_dims; ++i) {
    uint32_t axis = i;
    if (axes != NULL && !opi_axis(axes[i], rank, &axis)) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %" PRId64 " is outside rank %" PRIu32, axes[i], rank);
    }
    pads[axis] = given[i];
    pads[rank + axis] = given[n_dims + i];
  }
  return OPIPE_OK;
}

/* The fill: input 2 as a scalar of x's type, or opset < 11's attribute. */
static opipe_status pad_value(opi_builder *b, const opi_node *node, uint32_t *out_value,
                              opipe_error *err) {
  const opi_value *x = NULL;
  *out_value = opi_node_in(node, 2);
  if (*out_value != OPIPE_NONE) {
    const opi_value *fill = opi_b_value(b, *out_value);
    if (fill->rank == 0)
      return OPIPE_OK;
    if (opi_elems(fill) != 1 || fill->data == NULL) {
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                           "fill '%s' has %" PRIu64 " elements or is not known", fill->name,
                           opi_elems(fill));
    }
    *out_value = opi_b_reshaped(b, *out_value, NULL, 0);
    return *out_value != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, 8, "a scalar");
  }
  if (opi_attr_find(node, "value") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  *out_value = opi_b_const_scalar(b, x->dtype, opi_attr_float(node, "value", 0));
  return *out_value != OPIPE_NONE ? OPIPE_OK : opi_fail_nomem(err, 8, "a scalar");
}

static opipe_status lift_pad(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  int64_t pads[2 * OPIPE_MAX_RANK];
  bool same = true;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  const uint32_t rank = (uint32_t)x->rank;
  OPI_TRY(read_pads(b, node, x, pads, err));
  for (uint32_t i = 0; i < 2 * rank; ++i)
    same = same && pads[i] == 0;
  if (same)
    return opi_b_result(b, node, 0, node->in[0], err);
  uint32_t in[3] = {node->in[0], OPIPE_NONE, OPIPE_NONE};
  OPI_TRY(opi_ints_value(b, pads, 2 * rank, &in[1], err));
  OPI_TRY(pad_value(b, node, &in[2], err));
  const char *mode = opi_attr_string(node, "mode", "constant");
  const opipe_attr attr = OPI_ATTR_S("mode", mode);
  return opi_b_lift(b, node, "Pad", in, 3, &attr, 1, err);
}

static bool is_pad_mode(const char *mode) {
  static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
  for (size_t i = 0; i < OPI_COUNT(modes); ++i) {
    if (strcmp(mode, modes[i]) == 0)
      return true;
  }
  return false;
}

static opipe_status infer_pad(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  const opi_value *fill = opi_in_optional(b, node, 2);
  const char *mode = opi_attr_string(node, "mode", "constant");
  int64_t pads[2 * OPIPE_MAX_RANK], shape[OPIPE_MAX_RANK];
  OPI_TRY(opi_in(b, node, 0, &x, err));
  OPI_TRY(read_pads(b, node, x, pads, err));
  if (fill != NULL && fill->dtype != x->dtype) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "'%s' has type %s, the fill %s", x->name,
                         opi_dtype_name(x->dtype), opi_dtype_name(fill->dtype));
  }
  if (!is_pad_mode(mode))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "mode '%s' is not known", mode);
  for (int32_t d = 0; d < x->rank; ++d) {
    const int64_t before = pads[d], after = pads[x->rank + d];
    const bool over = __builtin_add_overflow(x->shape[d], before, &shape[d]) ||
                      __builtin_add_overflow(shape[d], after, &shape[d]);
    const int64_t room = strcmp(mode, "reflect") == 0 ? x->shape[d] - 1 : x->shape[d];
    const bool needs_data = strcmp(mode, "constant") != 0 && (before > 0 || after > 0);
    const bool beyond = strcmp(mode, "reflect") == 0 && (before > room || after > room);
    if (over || shape[d] < 0 || (needs_data && (x->shape[d] == 0 || beyond))) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "dimension %" PRId32 " of %" PRId64 " cannot be padded by %" PRId64
                           " and %" PRId64 " (%s)",
                           d, x->shape[d], before, after, mode);
    }
  }
  return opi_b_set(b, node, 0, x->dtype, shape, (uint32_t)x->rank, err);
}

static opipe_status carry_pad(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, opipe_error *err) {
  const opi_value *pads = &graph->values[node->in[1]];
  const int64_t *p = pads->data;
  OPI_TRY(opi_carry_same(graph, node, in, out, err));
  if (!opi_carries(&in[0]))
    return OPIPE_OK;
  const int32_t rank = graph->values[node->in[0]].rank;
  if (p != NULL && p[in[0].axis] == 0 && p[rank + in[0].axis] == 0)
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err, "dimension %" PRId32 " is padded", in[0].axis);
}

/* -- Trilu -- */

static opipe_status lift_trilu(opi_builder *b, const opi_node *node, opipe_error *err) {
  const int64_t *k = NULL;
  int64_t diagonal = 0;
  uint32_t n = 0;
  if (opi_node_in(node, 1) != OPIPE_NONE) {
    OPI_TRY(opi_known_ints(b, node, 1, &k, &n, err));
    if (n != 1)
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "k has %" PRIu32 " elements, not 1", n);
    diagonal = k[0];
  }
  const uint32_t in[2] = {node->in[0], opi_b_const(b, OPIPE_INT64, NULL, 0, &diagonal)};
  if (in[1] == OPIPE_NONE)
    return opi_fail_nomem(err, 8, "a constant");
  const opipe_attr attr = OPI_ATTR_I("upper", opi_attr_int(node, "upper", 1) != 0);
  return opi_b_lift(b, node, "Trilu", in, 2, &attr, 1, err);
}

static opipe_status infer_trilu(opi_builder *b, const opi_node *node, opipe_error *err) {
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, 0, &x, err));
  if (x->rank < 2) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "'%s' has rank %" PRId32 ", not 2 or more",
                         x->name, x->rank);
  }
  return opi_b_set(b, node, 0, x->dtype, x->shape, (uint32_t)x->rank, err);
}

static opipe_status carry_trilu(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  const uint32_t rank = (uint32_t)graph->values[node->in[0]].rank;
  return opi_carry_mixing(graph, node, in, out, rank - 2, rank, "cut at a diagonal", err);
}

static const opi_op ops[] = {
    {OPI_OP("Transpose", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_ATTRS(25, OPI_A(INTS, "perm")),
     .lift = lift_transpose, .infer = infer_transpose, .work = opi_work_move,
     .carry = carry_transpose, .gradient = opi_gradient_transpose,
     OPI_COLUMNS(TURNED, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
    {OPI_OP("Tile", "", 1, OPI_NEWEST_ONNX, 2, 3, 1, 1), OPI_NO_ATTRS(13), .lift = lift_tile,
     .infer = infer_tile, .work = opi_work_move, .carry = carry_tile, .gradient = opi_gradient_tile,
     .stops_gradient = 0x6, OPI_COLUMNS(REPEATED, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
    {OPI_OP("Concat", "", 1, OPI_NEWEST_ONNX, 1, 255, 1, 1), OPI_ATTRS(13, OPI_A(INT, "axis")),
     .lift = lift_concat, .infer = infer_concat, .work = opi_work_move, .carry = carry_concat,
     .gradient = opi_gradient_concat,
     OPI_COLUMNS(JOINED, COMMON, OTHER, RISING, NONE, PLAIN, TOGETHER)},
    {OPI_OP("Split", "", 1, OPI_NEWEST_ONNX, 1, 2, 1, 255),
     OPI_ATTRS(18, OPI_A(INTS, "split", .until = 12, .input = 1), OPI_A(INT, "axis"),
               OPI_A(INT, "num_outputs", .since = 18)),
     .lift = lift_split, .infer = infer_split, .work = opi_work_move, .carry = carry_split,
     .gradient = opi_gradient_split, .stops_gradient = 0x2,
     OPI_COLUMNS(PARTS, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
    {OPI_OP("Pad", "", 1, OPI_NEWEST_ONNX, 1, 4, 1, 1),
     OPI_ATTRS(25, OPI_A(FLOAT, "value", .until = 10, .input = 2, OPI_PRESET(0)),
               OPI_A(STRING, "mode", OPI_TEXTS("constant reflect edge wrap")),
               OPI_A(INTS, "paddings", .until = 1),
               OPI_A(INTS, "pads", .since = 2, .until = 10, .input = 1)),
     .lift = lift_pad, .infer = infer_pad, .work = opi_work_move, .carry = carry_pad,
     .gradient = opi_gradient_pad, .stops_gradient = 0xa,
     OPI_COLUMNS(PADDED, COMMON, OTHER, RISING, NONE, PLAIN, NEVER)},
    {OPI_OP("Trilu", "", 14, OPI_NEWEST_ONNX, 1, 2, 1, 1),
     OPI_ATTRS(14, OPI_A(INT, "upper", OPI_PRESET(1))), .lift = lift_trilu, .infer = infer_trilu,
     .work = opi_work_move, .carry = carry_trilu, .gradient = opi_gradient_trilu,
     .stops_gradient = 0x2, OPI_COLUMNS(NONE, COMMON, OTHER, RISING, NONE, PLAIN, FIRST)},
};
extern const opi_op_family opi_ops_movement;
const opi_op_family opi_ops_movement = {ops, OPI_COUNT(ops)};
