/* SPDX-License-Identifier: Apache-2.0 */
/* Resize and its forerunner Upsample. Bound graphs contain neither: sizes, scales and roi are
 * numbers by then, and interpolation goes axis by axis, so that
 *
 *   nearest         is a Gather along each axis that changes,
 *   linear, cubic   an opipe.Interpolate (interpolate.c) along each, with the weights worked out
 *                   here: coordinate transformation, antialias, exclude_outside, edges;
 *   extrapolation   (tf_crop_and_resize) a Where along each axis that leaves the input.
 *
 * An axis of scale 1 keeps its elements in every transformation but tf_half_pixel_for_nn and
 * tf_crop_and_resize, and is left out; exporters write many a Resize to the size that is there.
 * Axes that shrink come first, then those that grow, the innermost first: the least is moved.
 * Coordinates are doubles, as in the standard's reference; an extent from scales is the floor of
 * the product in fp32, as in its shape inference. Integers are interpolated in fp32, rounded and
 * limited to their type.
 */
#include <math.h>

#include "loader/ops/common.h"
#include "loader/ops/interpolate.h"

enum { IN_X = 0, IN_ROI = 1, IN_SCALES = 2, IN_SIZES = 3 };
enum { MODE_NEAREST = 0, MODE_LINEAR, MODE_CUBIC };
enum { NEAREST_FLOOR = 0, NEAREST_CEIL, NEAREST_PREFER_FLOOR, NEAREST_PREFER_CEIL };
enum {
  BY_ASYMMETRIC = 0,
  BY_HALF_PIXEL,
  BY_HALF_PIXEL_SYMMETRIC,
  BY_PYTORCH_HALF_PIXEL,
  BY_ALIGN_CORNERS,
  BY_TF_HALF_PIXEL_FOR_NN,
  BY_TF_CROP
};
enum { KEEP_STRETCH = 0, KEEP_NOT_LARGER, KEEP_NOT_SMALLER };

typedef struct resized_axis {
  uint32_t axis;
  int64_t in, out;
  double scale;
  double begin, end; /* of the roi */
} resized_axis;

typedef struct resizing {
  opi_builder *b;
  const opi_node *node;
  const opi_value *x;
  resized_axis axes[OPIPE_MAX_RANK]; /* [n] that the node names; the others keep their size */
  uint32_t n;
  uint32_t mode, nearest, by, keep;
  bool antialias, exclude_outside;
  double cubic_a, extrapolation;
} resizing;

/* -- reading the node -------------------------------------------------------------------------- */

/* The input, when it is there and has elements: an empty tensor stands for an absent one. */
static const opi_value *given(const resizing *r, uint32_t i) {
  const opi_value *v = opi_in_optional(r->b, r->node, i);
  return v == NULL || (v->rank == 1 && v->shape[0] == 0) ? NULL : v;
}

static opipe_status read_word(const resizing *r, const char *name, const char *fallback,
                              const char *const *words, uint32_t n, uint32_t *out,
                              opipe_error *err) {
  const char *text = opi_attr_string(r->node, name, fallback);
  for (*out = 0; *out < n; ++*out) {
    if (strcmp(words[*out], text) == 0)
      return OPIPE_OK;
  }
  return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID,
                       "attribute %s is '%.40s', which is unknown", name, text);
}

static opipe_status read_axes(resizing *r, opipe_error *err) {
  uint32_t n = 0, seen = 0;
  const int64_t *axes = opi_attr_ints(r->node, "axes", &n);
  OPI_TRY(opi_need(r->b, r->node, IN_X, "X",
                   OPI_T_FLOAT | OPI_T_WIDE | OPI_T_UWIDE | OPI_T_SMALL | OPI_T_USMALL | OPI_T_BOOL,
                   1, OPIPE_MAX_RANK, err));
  r->x = opi_input(r->b, r->node, IN_X);
  r->n = axes == NULL ? (uint32_t)r->x->rank : n;
  if (r->n > (uint32_t)r->x->rank) {
    return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID, "%u axes for input '%s' of rank %d",
                         r->n, r->x->name, r->x->rank);
  }
  for (uint32_t i = 0; i < r->n; ++i) {
    uint32_t axis;
    if (!opi_axis(axes == NULL ? (int64_t)i : axes[i], (uint32_t)r->x->rank, &axis)) {
      return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID,
                           "axis %lld is outside input '%s' of rank %d", (long long)axes[i],
                           r->x->name, r->x->rank);
    }
    if (seen >> axis & 1u)
      return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID, "axis %u is named twice", axis);
    seen |= 1u << axis;
    const int64_t extent = r->x->shape[axis];
    r->axes[i] = (resized_axis){axis, extent, extent, 1, 0, 1};
  }
  return OPIPE_OK;
}

static opipe_status read_attributes(resizing *r, opipe_error *err) {
  static const char *const modes[] = {"nearest", "linear", "cubic"};
  static const char *const roundings[] = {"floor", "ceil", "round_prefer_floor",
                                          "round_prefer_ceil"};
  static const char *const transformations[] = {
      "asymmetric",    "half_pixel",           "half_pixel_symmetric", "pytorch_half_pixel",
      "align_corners", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
  static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
  const bool late = strcmp(r->node->op, "Resize") == 0 && r->node->version >= 11;
  const opipe_attr *a = opi_attr_find(r->node, "cubic_coeff_a");
  const opipe_attr *outside = opi_attr_find(r->node, "extrapolation_value");
  OPI_TRY(read_word(r, "mode", "nearest", modes, OPI_COUNT(modes), &r->mode, err));
  r->by = BY_ASYMMETRIC; /* before version 11 */
  r->nearest = NEAREST_FLOOR;
  r->cubic_a = a != NULL && a->kind == OPIPE_ATTR_FLOAT ? (double)a->f : -0.75;
  r->extrapolation =
      outside != NULL && outside->kind == OPIPE_ATTR_FLOAT ? (double)outside->f : 0.0;
  if (!late)
    return OPIPE_OK;
  OPI_TRY(read_word(r, "coordinate_transformation_mode", "half_pixel", transformations,
                    OPI_COUNT(transformations), &r->by, err));
  OPI_TRY(read_word(r, "nearest_mode", "round_prefer_floor", roundings, OPI_COUNT(roundings),
                    &r->nearest, err));
  OPI_TRY(read_word(r, "keep_aspect_ratio_policy", "stretch", policies, OPI_COUNT(policies),
                    &r->keep, err));
  r->exclude_outside = opi_attr_int(r->node, "exclude_outside", 0) != 0;
  r->antialias = opi_attr_int(r->node, "antialias", 0) != 0 && r->mode != MODE_NEAREST;
  return OPIPE_OK;
}

/* One number an axis, or two. */
static opipe_status need_count(const resizing *r, const opi_value *list, uint32_t each,
                               opipe_error *err) {
  if (opi_elems(list) == (uint64_t)r->n * each)
    return OPIPE_OK;
  return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID,
                       "input '%s' has %llu numbers for %u axes, %u are needed", list->name,
                       (unsigned long long)opi_elems(list), r->n, r->n * each);
}

static opipe_status set_scale(const resizing *r, resized_axis *a, double scale, opipe_error *err) {
  const double out = floor((double)((float)a->in * (float)scale));
  if (!(scale > 0) || !isfinite(scale) || out > (double)INT32_MAX) {
    return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID,
                         "axis %u of '%s' has %lld elements and scale %g", a->axis, r->x->name,
                         (long long)a->in, scale);
  }
  a->scale = scale;
  a->out = (int64_t)out;
  return OPIPE_OK;
}

static opipe_status set_scales(resizing *r, uint32_t input, opipe_error *err) {
  const opi_value *scales = given(r, input);
  OPI_TRY(need_count(r, scales, 1, err));
  if (!opi_value_known(scales))
    return opi_need_value(r->b, r->node, r->node->in[input], err);
  for (uint32_t i = 0; i < r->n; ++i)
    OPI_TRY(set_scale(r, &r->axes[i], opi_known_element(scales, i), err));
  return OPIPE_OK;
}

/* Upsample before version 9. */
static opipe_status set_scale_attribute(resizing *r, opipe_error *err) {
  const opipe_attr *scales = opi_attr_find(r->node, "scales");
  if (scales == NULL || scales->kind != OPIPE_ATTR_FLOATS || scales->n != r->n) {
    return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID, "%u scales for input '%s' of rank %u",
                         scales == NULL ? 0 : scales->n, r->x->name, r->n);
  }
  for (uint32_t i = 0; i < r->n; ++i)
    OPI_TRY(set_scale(r, &r->axes[i], (double)((const float *)scales->data)[i], err));
  return OPIPE_OK;
}

static opipe_status set_sizes(resizing *r, opipe_error *err) {
  const int64_t *sizes;
  uint32_t n = 0;
  double common = 0;
  OPI_TRY(need_count(r, given(r, IN_SIZES), 1, err));
  OPI_TRY(opi_known_ints(r->b, r->node, IN_SIZES, &sizes, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    resized_axis *a = &r->axes[i];
    if (sizes[i] < 0 || sizes[i] > INT32_MAX || (a->in == 0 && sizes[i] != 0)) {
      return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID,
                           "axis %u of '%s' cannot be resized from %lld to %lld", a->axis,
                           r->x->name, (long long)a->in, (long long)sizes[i]);
    }
    a->out = sizes[i];
    a->scale = a->in == 0 ? 1 : (double)sizes[i] / (double)a->in;
    if (i == 0 || (r->keep == KEEP_NOT_LARGER ? a->scale < common : a->scale > common))
      common = a->scale;
  }
  for (uint32_t i = 0; i < n && r->keep != KEEP_STRETCH; ++i) {
    resized_axis *a = &r->axes[i];
    a->scale = common;
    const double out = floor(common * (double)a->in + 0.5);
    if (out > (double)INT32_MAX) {
      return opi_node_fail(r->b, r->node, err, OPIPE_E_LIMIT, "axis %u of '%s' becomes %.0f long",
                           a->axis, r->x->name, out);
    }
    a->out = (int64_t)out;
  }
  return OPIPE_OK;
}

static opipe_status read_roi(resizing *r, opipe_error *err) {
  const opi_value *roi = given(r, IN_ROI);
  if (r->by != BY_TF_CROP)
    return OPIPE_OK;
  if (roi == NULL)
    return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID, "tf_crop_and_resize lacks its roi");
  OPI_TRY(need_count(r, roi, 2, err));
  if (!opi_value_known(roi))
    return opi_need_value(r->b, r->node, r->node->in[IN_ROI], err);
  for (uint32_t i = 0; i < r->n; ++i) {
    resized_axis *a = &r->axes[i];
    a->begin = opi_known_element(roi, i);
    a->end = opi_known_element(roi, r->n + i);
    if (!(fabs(a->begin) <= 1e6) || !(fabs(a->end) <= 1e6)) {
      return opi_node_fail(r->b, r->node, err, OPIPE_E_INVALID, "roi of axis %u is %g to %g",
                           a->axis, a->begin, a->end);
    }
  }
  return OPIPE_OK;
}

/* -- coordinates ------------------------------------------------------------------------------- */

/* Where element o lies on the axis before; *out_outside: it takes the extrapolation value. */
static double coordinate(const resizing *r, const resized_axis *a, int64_t o, bool *out_outside) {
  const double n = (double)a->in, width = a->scale * n, i = (double)o;
  double x = 0;
  *out_outside = false;
  switch (r->by) {
    case BY_HALF_PIXEL:
      return (i + 0.5) / a->scale - 0.5;
    case BY_HALF_PIXEL_SYMMETRIC:
      return n / 2 * (1 - (double)a->out / width) + (i + 0.5) / a->scale - 0.5;
    case BY_PYTORCH_HALF_PIXEL:
      return a->out > 1 ? (i + 0.5) / a->scale - 0.5 : 0.0;
    case BY_ALIGN_CORNERS:
      return width == 1 ? 0.0 : i * (n - 1) / (width - 1);
    case BY_TF_HALF_PIXEL_FOR_NN:
      return (i + 0.5) / a->scale;
    case BY_TF_CROP:
      x = width == 1 ? (a->end - a->begin) * (n - 1) / 2
                     : i * (a->end - a->begin) * (n - 1) / (width - 1);
      x += a->begin * (n - 1);
      *out_outside = x < 0 || x > n - 1;
      return x;
    default:
      return i / a->scale;
  }
}

static int64_t clamp(double i, int64_t n) {
  return i < 0 ? 0 : i > (double)(n - 1) ? n - 1 : (int64_t)i;
}

static double nearest(const resizing *r, double x) {
  const double low = floor(x), part = x - low;
  switch (r->nearest) {
    case NEAREST_FLOOR:
      return low;
    case NEAREST_CEIL:
      return part > 0 ? low + 1 : low;
    case NEAREST_PREFER_FLOOR:
      return part > 0.5 ? low + 1 : low;
    default:
      return part >= 0.5 ? low + 1 : low;
  }
}

/* Weight of a neighbour at distance d (of the axis before; shrunk by `narrow` with antialias).
 * Cubic: Keys 1981, eq. 4. */
static double kernel(const resizing *r, double d) {
  const double a = r->cubic_a, t = fabs(d);
  if (r->mode == MODE_LINEAR)
    return t < 1 ? 1 - t : 0;
  if (t <= 1)
    return ((a + 2) * t - (a + 3)) * t * t + 1;
  return t < 2 ? ((a * t - 5 * a) * t + 8 * a) * t - 4 * a : 0;
}

/* Places and weights [n] of the neighbours of x. */
static void neighbours(const resizing *r, const resized_axis *a, double x, double narrow, int64_t n,
                       int64_t *place, double *weight) {
  const int64_t before = n / 2;
  const double begin = ceil(x) - (double)before;
  double sum = 0;
  for (int64_t t = 0; t < n; ++t) {
    const double at = begin + (double)t;
    const bool outside = at < 0 || at > (double)(a->in - 1);
    weight[t] = outside && r->exclude_outside ? 0 : kernel(r, (at - x) * narrow);
    place[t] = clamp(at, a->in);
    sum += weight[t];
  }
  for (int64_t t = 0; t < n && (r->antialias || r->exclude_outside) && sum != 0; ++t)
    weight[t] /= sum;
}

/* -- emission ---------------------------------------------------------------------------------- */

static opipe_status emit_nearest(const resizing *r, const resized_axis *a, uint32_t *io,
                                 opipe_error *err) {
  int64_t *index = OPI_ARENA_ARRAY(r->b->scratch, int64_t, (size_t)a->out);
  opi_attrs attrs = {.n = 0};
  bool outside;
  if (index == NULL)
    return opi_fail_nomem(err, (uint64_t)a->out * sizeof(*index), "indices");
  for (int64_t o = 0; o < a->out; ++o)
    index[o] = clamp(nearest(r, coordinate(r, a, o, &outside)), a->in);
  const uint32_t in[2] = {*io, opi_b_const_ints(r->b, index, (uint32_t)a->out)};
  OPI_TRY(opi_k_const(in[1], err));
  opi_attrs_int(&attrs, "axis", a->axis);
  return opi_k_one(r->b, "Gather", 0, in, 2, &attrs, io, err);
}

static opipe_status emit_weighted(const resizing *r, const resized_axis *a, uint32_t *io,
                                  opipe_error *err) {
  const double narrow = r->antialias && a->scale < 1 ? a->scale : 1.0;
  const double reach = ceil((r->mode == MODE_CUBIC ? 2 : 1) / narrow);
  opi_band band;
  bool outside;
  if (reach > 1e8 || 2 * reach * (double)a->out > 1e8) {
    return opi_node_fail(r->b, r->node, err, OPIPE_E_LIMIT,
                         "axis %u of '%s' is resized from %lld to %lld by filters of %.0f weights",
                         a->axis, r->x->name, (long long)a->in, (long long)a->out, 2 * reach);
  }
  const int64_t n = 2 * (int64_t)reach;
  int64_t *place = OPI_ARENA_ARRAY(r->b->scratch, int64_t, (size_t)(a->out * n));
  double *weight = OPI_ARENA_ARRAY(r->b->scratch, double, (size_t)(a->out * n));
  if (place == NULL || weight == NULL)
    return opi_fail_nomem(err, (uint64_t)(a->out * n) * 16, "weights");
  for (int64_t o = 0; o < a->out; ++o) {
    const double x = coordinate(r, a, o, &outside);
    neighbours(r, a, x, narrow, n, place + o * n, weight + o * n);
    for (int64_t t = 0; outside && t < n; ++t)
      weight[o * n + t] = 0;
  }
  OPI_TRY(opi_band_make(r->b, r->node, a->in, a->out, n, place, weight, &band, err));
  return opi_band_emit(r->b, &band, *io, a->axis, io, err);
}

/* The extrapolation value where the axis leaves the input. */
static opipe_status emit_outside(const resizing *r, const resized_axis *a, uint32_t *io,
                                 opipe_error *err) {
  const opi_value v = *opi_b_value(r->b, *io);
  uint8_t *mask = OPI_ARENA_ARRAY(r->b->scratch, uint8_t, (size_t)a->out);
  int64_t shape[OPIPE_MAX_RANK] = {a->out};
  bool any = false;
  if (mask == NULL)
    return opi_fail_nomem(err, (uint64_t)a->out, "a mask");
  for (int64_t o = 0; o < a->out; ++o) {
    bool outside;
    (void)coordinate(r, a, o, &outside);
    mask[o] = outside;
    any = any || outside;
  }
  if (!any)
    return OPIPE_OK;
  for (uint32_t d = 1; d < (uint32_t)v.rank - a->axis; ++d)
    shape[d] = 1;
  const uint32_t where = opi_b_const(r->b, OPIPE_BOOL, shape, (uint32_t)v.rank - a->axis, mask);
  const uint32_t number = opi_b_const_scalar(r->b, v.dtype, r->extrapolation);
  OPI_TRY(opi_k_const(where, err));
  OPI_TRY(opi_k_const(number, err));
  return opi_k_where(r->b, where, number, *io, io, err);
}

/* A transformation that leaves elements of an axis of scale 1 where they are. */
static bool is_same(const resizing *r, const resized_axis *a) {
  if (a->in == 0 && a->out == 0)
    return true;
  if (a->in != a->out || a->scale != 1 || r->by == BY_TF_HALF_PIXEL_FOR_NN)
    return false;
  return r->by != BY_TF_CROP || (a->begin == 0 && a->end == 1);
}

static opipe_status emit_axis(const resizing *r, const resized_axis *a, uint32_t *io,
                              opipe_error *err) {
  if (is_same(r, a))
    return OPIPE_OK;
  if (r->mode == MODE_NEAREST || a->out == 0)
    OPI_TRY(emit_nearest(r, a, io, err));
  else
    OPI_TRY(emit_weighted(r, a, io, err));
  return emit_outside(r, a, io, err);
}

/* Back to integers: rounded, limited by the Cast. */
static opipe_status emit_rounded(const resizing *r, uint32_t dtype, uint32_t *io,
                                 opipe_error *err) {
  const uint32_t bits = opi_dtype_bits(dtype);
  const bool is_signed = !opi_dtype_is_unsigned(dtype);
  const double high = ldexp(1, (int)bits - (is_signed ? 1 : 0));
  const uint32_t from = opi_b_value(r->b, *io)->dtype;
  uint32_t in[3];
  OPI_TRY(opi_b_op1(r->b, "Round", *io, &in[0], err));
  in[1] = opi_b_const_scalar(r->b, from, is_signed ? -high : 0);
  in[2] = opi_b_const_scalar(r->b, from, bits < 32 ? high - 1 : nextafter(high, 0));
  OPI_TRY(opi_k_const(in[1], err));
  OPI_TRY(opi_k_const(in[2], err));
  OPI_TRY(opi_k_one(r->b, "Clip", 0, in, 3, NULL, io, err));
  return opi_k_cast(r->b, *io, dtype, io, err);
}

static opipe_status emit(const resizing *r, opipe_error *err) {
  const uint32_t dtype = r->x->dtype;
  uint32_t y = r->node->in[IN_X];
  bool same = true;
  for (uint32_t i = 0; i < r->n; ++i)
    same = same && is_same(r, &r->axes[i]);
  const bool whole = !same && r->mode != MODE_NEAREST && !opi_dtype_is_float(dtype);
  if (whole && dtype == OPIPE_BOOL) {
    return opi_node_fail(r->b, r->node, err, OPIPE_E_UNSUPPORTED,
                         "input '%s' is of type bool, which only mode nearest takes", r->x->name);
  }
  if (whole)
    OPI_TRY(opi_k_cast(r->b, y, opi_dtype_bits(dtype) < 32 ? OPIPE_FLOAT : OPIPE_DOUBLE, &y, err));
  for (uint32_t axis = 0; axis < (uint32_t)r->x->rank; ++axis) {
    for (uint32_t i = 0; i < r->n; ++i) {
      if (r->axes[i].axis == axis && r->axes[i].out <= r->axes[i].in)
        OPI_TRY(emit_axis(r, &r->axes[i], &y, err));
    }
  }
  for (uint32_t axis = (uint32_t)r->x->rank; axis-- > 0;) {
    for (uint32_t i = 0; i < r->n; ++i) {
      if (r->axes[i].axis == axis && r->axes[i].out > r->axes[i].in)
        OPI_TRY(emit_axis(r, &r->axes[i], &y, err));
    }
  }
  if (whole)
    OPI_TRY(emit_rounded(r, dtype, &y, err));
  return opi_b_result(r->b, r->node, 0, y, err);
}

static opipe_status lift_resize(opi_builder *b, const opi_node *node, opipe_error *err) {
  const uint32_t scales = node->version < 11 ? 1 : IN_SCALES; /* version 10: X, scales */
  resizing r = {.b = b, .node = node};
  OPI_TRY(read_axes(&r, err));
  OPI_TRY(read_attributes(&r, err));
  if (node->version >= 11 && given(&r, IN_SIZES) != NULL)
    OPI_TRY(set_sizes(&r, err));
  else if (given(&r, scales) != NULL)
    OPI_TRY(set_scales(&r, scales, err));
  else
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "has neither scales nor sizes");
  OPI_TRY(read_roi(&r, err));
  return emit(&r, err);
}

static opipe_status lift_upsample(opi_builder *b, const opi_node *node, opipe_error *err) {
  resizing r = {.b = b, .node = node};
  OPI_TRY(read_axes(&r, err));
  OPI_TRY(read_attributes(&r, err));
  if (node->version < 9)
    OPI_TRY(set_scale_attribute(&r, err));
  else if (given(&r, 1) != NULL)
    OPI_TRY(set_scales(&r, 1, err));
  else
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks its scales");
  return emit(&r, err);
}

static const opi_op ops[] = {
    {OPI_OP("Resize", "", 10, OPI_NEWEST_ONNX, 1, 4, 1, 1),
     OPI_ATTRS(
         19, OPI_A(STRING, "mode"), OPI_A(FLOAT, "extrapolation_value", .since = 11, OPI_PRESET(0)),
         OPI_A(INT, "exclude_outside", .since = 11, OPI_PRESET(0)),
         OPI_A(STRING, "nearest_mode", .since = 11),
         OPI_A(STRING, "coordinate_transformation_mode", .since = 11),
         OPI_A(FLOAT, "cubic_coeff_a", .since = 11, OPI_PRESET(-0.75)),
         OPI_A(STRING, "keep_aspect_ratio_policy", .since = 18), OPI_A(INTS, "axes", .since = 18),
         OPI_A(INT, "antialias", .since = 18, OPI_PRESET(0))),
     .lift = lift_resize},
    {OPI_OP("Upsample", "", 7, 9, 1, 2, 1, 1),
     OPI_ATTRS(9, OPI_A(STRING, "mode"), OPI_A(FLOATS, "scales", .until = 8, .input = 1)),
     .lift = lift_upsample},
};

const opi_op_family opi_ops_resize = {ops, OPI_COUNT(ops)};
