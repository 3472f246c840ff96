/* SPDX-License-Identifier: Apache-2.0 */
/* Resize and its forerunner Upsample, where they change nothing.
 *
 * Exporters leave a Resize where a table of positions is brought to the picture's size; once shapes
 * are numbers it is mostly the size that is there already. With a scale of 1 on every axis each
 * coordinate transformation but one gives x_original = x_resized, and at whole coordinates every
 * mode (nearest in any rounding; linear; cubic, with whatever coefficient, exclude_outside or
 * antialias) takes the element itself: the node vanishes. The exceptions are looked at: the scale
 * of `scales` may differ from 1 and still give the same size; tf_half_pixel_for_nn is half an
 * element off; tf_crop_and_resize crops unless roi is 0 to 1. A Resize to another size is refused.
 */
#include "loader/ops/common.h"
#include "loader/ops/kit.h"

enum { IN_X = 0, IN_ROI = 1, IN_SCALES = 2, IN_SIZES = 3 };

typedef struct resizing {
  const opi_value *x;
  uint32_t axis[OPIPE_MAX_RANK]; /* [n] that are resized; the others keep their size */
  uint32_t n;
} resizing;

/* The input, when it is there and has elements: an empty tensor stands for an absent one. */
static const opi_value *given(const opi_builder *b, const opi_node *node, uint32_t i) {
  const opi_value *v = opi_in_optional(b, node, i);
  return v == NULL || (v->rank == 1 && v->shape[0] == 0) ? NULL : v;
}

static opipe_status find_axes(const opi_builder *b, const opi_node *node, resizing *r,
                              opipe_error *err) {
  uint32_t n = 0;
  const int64_t *axes = opi_attr_ints(node, "axes", &n);
  OPI_TRY(opi_need(b, node, IN_X, "X",
                   OPI_T_FLOAT | OPI_T_WIDE | OPI_T_UWIDE | OPI_T_SMALL | OPI_T_USMALL | OPI_T_BOOL,
                   1, OPIPE_MAX_RANK, err));
  r->x = opi_input(b, node, IN_X);
  r->n = axes == NULL ? (uint32_t)r->x->rank : n;
  if (r->n > (uint32_t)r->x->rank) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%u axes for input '%s' of rank %d", r->n,
                         r->x->name, r->x->rank);
  }
  for (uint32_t i = 0; i < r->n; ++i) {
    if (opi_axis(axes == NULL ? (int64_t)i : axes[i], (uint32_t)r->x->rank, &r->axis[i]))
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "axis %lld is outside input '%s' of rank %d", (long long)axes[i],
                         r->x->name, r->x->rank);
  }
  return OPIPE_OK;
}

/* One number an axis, or two. */
static opipe_status need_count(const opi_builder *b, const opi_node *node, const resizing *r,
                               const opi_value *list, uint32_t each, opipe_error *err) {
  if (opi_elems(list) == (uint64_t)r->n * each)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "input '%s' has %llu numbers for %u axes, %u are needed", list->name,
                       (unsigned long long)opi_elems(list), r->n, r->n * each);
}

static opipe_status check_sizes(opi_builder *b, const opi_node *node, const resizing *r,
                                opipe_error *err) {
  const int64_t *sizes;
  uint32_t n = 0;
  OPI_TRY(need_count(b, node, r, given(b, node, IN_SIZES), 1, err));
  OPI_TRY(opi_known_ints(b, node, IN_SIZES, &sizes, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    if (sizes[i] == r->x->shape[r->axis[i]])
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "axis %u of '%s' is resized from %lld to %lld; only the size that is "
                         "it has already is supported",
                         r->axis[i], r->x->name, (long long)r->x->shape[r->axis[i]],
                         (long long)sizes[i]);
  }
  return OPIPE_OK;
}

static opipe_status check_scale(const opi_builder *b, const opi_node *node, const resizing *r,
                                uint32_t i, double scale, opipe_error *err) {
  if (scale == 1)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                       "axis %u of '%s' is resized by %g; only 1 is supported", r->axis[i],
                       r->x->name, scale);
}

static opipe_status check_scales(opi_builder *b, const opi_node *node, const resizing *r,
                                 uint32_t input, opipe_error *err) {
  const opi_value *scales = given(b, node, input);
  OPI_TRY(need_count(b, node, r, scales, 1, err));
  if (!opi_value_known(scales))
    return opi_need_value(b, node, node->in[input], err);
  for (uint32_t i = 0; i < r->n; ++i)
    OPI_TRY(check_scale(b, node, r, i, opi_known_element(scales, i), err));
  return OPIPE_OK;
}

/* Transformations that are not the identity at scale 1. */
static opipe_status check_transformation(opi_builder *b, const opi_node *node, const resizing *r,
                                         opipe_error *err) {
  const char *how = opi_attr_string(node, "coordinate_transformation_mode", "half_pixel");
  const char *nearest = opi_attr_string(node, "nearest_mode", "round_prefer_floor");
  const opi_value *roi = given(b, node, IN_ROI);
  if (strcmp(how, "tf_half_pixel_for_nn") == 0) {
    const bool down = strcmp(nearest, "floor") == 0 || strcmp(nearest, "round_prefer_floor") == 0;
    if (down && strcmp(opi_attr_string(node, "mode", "nearest"), "nearest") == 0)
      return OPIPE_OK;
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "it moves elements by one half (tf_half_pixel_for_nn); only a Resize that "
                         "changes nothing is supported");
  }
  if (strcmp(how, "tf_crop_and_resize") != 0)
    return OPIPE_OK;
  if (roi == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "tf_crop_and_resize lacks its roi");
  OPI_TRY(need_count(b, node, r, roi, 2, err));
  if (!opi_value_known(roi))
    return opi_need_value(b, node, node->in[IN_ROI], err);
  for (uint32_t i = 0; i < r->n; ++i) {
    const double begin = opi_known_element(roi, i), end = opi_known_element(roi, r->n + i);
    if (begin == 0 && end == 1)
      continue;
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "axis %u of '%s' is cropped to %g .. %g; only 0 .. 1 is supported",
                         r->axis[i], r->x->name, begin, end);
  }
  return OPIPE_OK;
}

static opipe_status lift_resize(opi_builder *b, const opi_node *node, opipe_error *err) {
  const uint32_t scales = node->version < 11 ? 1 : IN_SCALES; /* version 10: X, scales */
  resizing r;
  OPI_TRY(find_axes(b, node, &r, err));
  if (node->version >= 11 && given(b, node, IN_SIZES) != NULL)
    OPI_TRY(check_sizes(b, node, &r, err));
  else if (given(b, node, scales) != NULL)
    OPI_TRY(check_scales(b, node, &r, scales, err));
  else
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "has neither scales nor sizes");
  if (node->version >= 11)
    OPI_TRY(check_transformation(b, node, &r, err));
  return opi_b_result(b, node, 0, node->in[IN_X], err);
}

static opipe_status lift_upsample(opi_builder *b, const opi_node *node, opipe_error *err) {
  resizing r;
  OPI_TRY(find_axes(b, node, &r, err));
  if (node->version >= 9) {
    if (given(b, node, 1) == NULL)
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks its scales");
    OPI_TRY(check_scales(b, node, &r, 1, err));
    return opi_b_result(b, node, 0, node->in[IN_X], err);
  }
  const opipe_attr *scales = opi_attr_find(node, "scales");
  if (scales == NULL || scales->kind != OPIPE_ATTR_FLOATS || scales->n != r.n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%u scales for input '%s' of rank %u",
                         scales == NULL ? 0 : scales->n, r.x->name, r.n);
  }
  for (uint32_t i = 0; i < r.n; ++i)
    OPI_TRY(check_scale(b, node, &r, i, (double)((const float *)scales->data)[i], err));
  return opi_b_result(b, node, 0, node->in[IN_X], err);
}

static const opi_op ops[] = {
    {OPI_OP("Resize", "", 10, 27, 1, 4, 1, 1), .lift = lift_resize},
    {OPI_OP("Upsample", "", 7, 9, 1, 2, 1, 1), .lift = lift_upsample},
};

const opi_op_family opi_ops_resize = {ops, OPI_COUNT(ops)};
