/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over spatial axes: Conv, ConvInteger, AveragePool, MaxPool, GlobalAveragePool,
 * GlobalMaxPool.
 *
 * Canonical: kernel_shape, strides, dilations and pads written out, auto_pad resolved with the
 * shapes at hand. The global pools become ReduceMean and ReduceMax.
 */
#include "loader/ops/conv.h"
#include "loader/ops/kit.h"

enum { MAX_SPATIAL = OPI_MAX_SPATIAL };

typedef struct window {
  uint32_t n; /* spatial axes */
  int64_t kernel[MAX_SPATIAL], strides[MAX_SPATIAL], dilations[MAX_SPATIAL], pads[2 * MAX_SPATIAL],
      out[MAX_SPATIAL];
  bool ceil;
} window;

opipe_status opi_window_ints(const opi_builder *b, const opi_node *node, const char *name,
                             uint32_t n, int64_t fallback, int64_t min, int64_t *dst,
                             opipe_error *err) {
  uint32_t given = 0;
  const int64_t *ints = opi_attr_ints(node, name, &given);
  if (ints != NULL && given != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute %s has %u numbers, %u are needed", name, given, n);
  }
  for (uint32_t i = 0; i < n; ++i) {
    dst[i] = ints != NULL ? ints[i] : fallback;
    if (dst[i] < min || dst[i] > INT32_MAX) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute %s holds %lld, out of range",
                           name, (long long)dst[i]);
    }
  }
  return OPIPE_OK;
}

/* Output extent of one axis; resolves auto_pad into pads. */
static opipe_status place_axis(const opi_builder *b, const opi_node *node, window *w, uint32_t a,
                               int64_t extent, const char *auto_pad, opipe_error *err) {
  const int64_t reach = (w->kernel[a] - 1) * w->dilations[a] + 1;
  const bool same = strcmp(auto_pad, "SAME_UPPER") == 0 || strcmp(auto_pad, "SAME_LOWER") == 0;
  int64_t *head = &w->pads[a], *tail = &w->pads[w->n + a];
  if (extent > INT32_MAX) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "input '%s' has %lld along axis %u",
                         opi_input(b, node, 0)->name, (long long)extent, a + 2);
  }
  if (same) {
    const int64_t out = (extent + w->strides[a] - 1) / w->strides[a];
    const int64_t total = (out - 1) * w->strides[a] + reach - extent;
    const int64_t pad = total > 0 ? total : 0;
    *head = strcmp(auto_pad, "SAME_UPPER") == 0 ? pad / 2 : pad - pad / 2;
    *tail = pad - *head;
  } else if (strcmp(auto_pad, "VALID") == 0) {
    *head = *tail = 0;
  } else if (strcmp(auto_pad, "NOTSET") != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute auto_pad is '%.40s', which is unknown", auto_pad);
  }
  const int64_t room = extent + *head + *tail - reach;
  if (room < 0) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "input '%s' has %lld along axis %u, with padding %lld; the window needs %lld",
        opi_input(b, node, 0)->name, (long long)extent, a + 2, (long long)(extent + *head + *tail),
        (long long)reach);
  }
  w->out[a] = room / w->strides[a] + 1;
  if (w->ceil && !same && room % w->strides[a] != 0) {
    ++w->out[a];
    if ((w->out[a] - 1) * w->strides[a] >= extent + *head)
      --w->out[a]; /* a window must begin inside */
  }
  return OPIPE_OK;
}

/* x [N, C, spatial...]; kernel: from the weights (Conv) or NULL (the attribute). */
static opipe_status read_window(const opi_builder *b, const opi_node *node, const int64_t *kernel,
                                window *w, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  const char *auto_pad = opi_attr_string(node, "auto_pad", "NOTSET");
  *w = (window){.n = (uint32_t)x->rank - 2, .ceil = opi_attr_int(node, "ceil_mode", 0) != 0};
  if (kernel == NULL && opi_attr_find(node, "kernel_shape") == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute kernel_shape is missing");
  OPI_TRY(opi_window_ints(b, node, "kernel_shape", w->n, 1, 1, w->kernel, err));
  if (kernel != NULL && opi_attr_find(node, "kernel_shape") == NULL)
    memcpy(w->kernel, kernel, w->n * sizeof(*kernel));
  OPI_TRY(opi_window_ints(b, node, "strides", w->n, 1, 1, w->strides, err));
  OPI_TRY(opi_window_ints(b, node, "dilations", w->n, 1, 1, w->dilations, err));
  OPI_TRY(opi_window_ints(b, node, "pads", 2 * w->n, 0, 0, w->pads, err));
  for (uint32_t a = 0; a < w->n; ++a) {
    if (kernel != NULL && kernel[a] != w->kernel[a]) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' (W) has %lld along axis %u, kernel_shape says %lld",
                           opi_input(b, node, 1)->name, (long long)kernel[a], a + 2,
                           (long long)w->kernel[a]);
    }
    OPI_TRY(place_axis(b, node, w, a, x->shape[a + 2], auto_pad, err));
  }
  if (strncmp(auto_pad, "SAME", 4) == 0)
    w->ceil = false; /* the pads make the windows fit exactly */
  return OPIPE_OK;
}

static void write_window(opi_attrs *attrs, const window *w) {
  opi_attrs_ints(attrs, "kernel_shape", w->kernel, w->n);
  opi_attrs_ints(attrs, "strides", w->strides, w->n);
  opi_attrs_ints(attrs, "dilations", w->dilations, w->n);
  opi_attrs_ints(attrs, "pads", w->pads, 2 * w->n);
}

static opipe_status set_output(opi_builder *b, const opi_node *node, const window *w,
                               int64_t channels, uint32_t dtype, opipe_error *err) {
  const opi_value *x = opi_input(b, node, 0);
  int64_t shape[2 + MAX_SPATIAL] = {x->shape[0], channels};
  memcpy(shape + 2, w->out, w->n * sizeof(*shape));
  return opi_b_set(b, node, 0, dtype, shape, 2 + w->n, err);
}

/* -- Conv -------------------------------------------------------------------------------------- */

/* Channels, groups and the window; types and ranks of X and W are checked. */
static opipe_status groups_check(const opi_builder *b, const opi_node *node, window *w,
                                 int64_t *out_group, opipe_error *err) {
  const int64_t group = opi_attr_int(node, "group", 1);
  const opi_value *x = opi_input(b, node, 0);
  const opi_value *k = opi_input(b, node, 1);
  if (group < 1 || x->shape[1] % group != 0 || k->shape[0] % group != 0) {
    return opi_node_fail(
        b, node, err, OPIPE_E_INVALID,
        "group %lld does not divide the %lld channels of '%s' and the %lld of '%s'",
        (long long)group, (long long)x->shape[1], x->name, (long long)k->shape[0], k->name);
  }
  OPI_TRY(opi_need_dim(b, node, 1, 1, x->shape[1] / group, "the channels of X in a group", err));
  *out_group = group;
  return read_window(b, node, k->shape + 2, w, err);
}

static opipe_status conv_check(const opi_builder *b, const opi_node *node, window *w,
                               int64_t *out_group, opipe_error *err) {
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, 2 + MAX_SPATIAL, err));
  const int32_t rank = opi_input(b, node, 0)->rank;
  OPI_TRY(opi_need(b, node, 1, "W", OPI_T_FLOAT, rank, rank, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 1, err));
  OPI_TRY(opi_may(b, node, 2, "B", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need_same_type(b, node, 0, 2, err));
  OPI_TRY(opi_need_dim(b, node, 2, 0, opi_input(b, node, 1)->shape[0], "the output channels of W",
                       err));
  return groups_check(b, node, w, out_group, err);
}

static opipe_status integer_check(const opi_builder *b, const opi_node *node, window *w,
                                  int64_t *out_group, opipe_error *err) {
  OPI_TRY(opi_need_bytes(b, node, 0, "x", 3, 2 + MAX_SPATIAL, err));
  const int32_t rank = opi_input(b, node, 0)->rank;
  OPI_TRY(opi_need_bytes(b, node, 1, "w", rank, rank, err));
  OPI_TRY(opi_need_zero_point(b, node, 2, 1, "", err));
  OPI_TRY(opi_need_zero_point(b, node, 3, opi_input(b, node, 1)->shape[0], "output channel", err));
  return groups_check(b, node, w, out_group, err);
}

static opipe_status any_check(const opi_builder *b, const opi_node *node, window *w,
                              int64_t *out_group, opipe_error *err) {
  return strcmp(node->op, "ConvInteger") == 0 ? integer_check(b, node, w, out_group, err)
                                              : conv_check(b, node, w, out_group, err);
}

/* attrs points into *w. */
static opipe_status conv_attrs(const opi_builder *b, const opi_node *node, window *w,
                               opi_attrs *attrs, opipe_error *err) {
  int64_t group;
  OPI_TRY(any_check(b, node, w, &group, err));
  write_window(attrs, w);
  opi_attrs_int(attrs, "group", group);
  return OPIPE_OK;
}

static opipe_status conv_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  const uint32_t version = strcmp(node->op, "ConvInteger") == 0 ? 10 : 22;
  opi_attrs attrs = {.n = 0};
  window w;
  OPI_TRY(conv_attrs(b, node, &w, &attrs, err));
  return opi_k_lift(b, node, node->op, NULL, version, &attrs, err);
}

opipe_status opi_conv_emit(opi_builder *b, const opi_node *node, uint32_t *out, opipe_error *err) {
  const uint32_t n_in = opi_node_in(node, 2) == OPIPE_NONE ? 2 : 3;
  opi_attrs attrs = {.n = 0};
  window w;
  OPI_TRY(conv_attrs(b, node, &w, &attrs, err));
  return opi_k_one(b, "Conv", 22, node->in, n_in, &attrs, out, err);
}

static opipe_status conv_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t group;
  window w;
  OPI_TRY(any_check(b, node, &w, &group, err));
  const bool integer = strcmp(node->op, "ConvInteger") == 0;
  return set_output(b, node, &w, opi_input(b, node, 1)->shape[0],
                    integer ? OPIPE_INT32 : opi_input(b, node, 0)->dtype, err);
}

static void conv_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *k = &graph->values[node->in[1]];
  const double per_output = k->shape[0] > 0 ? opi_k_elems(k) / (double)k->shape[0] : 0;
  out_work->flops = 2.0 * opi_k_elems_of(graph, node->out[0]) * per_output;
  out_work->bytes = opi_work_bytes(graph, node);
}

static opipe_status batch_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, 1, false, in, out, err);
}

/* -- pools ------------------------------------------------------------------------------------- */

static opipe_status pool_check(const opi_builder *b, const opi_node *node, window *w,
                               opipe_error *err) {
  const uint32_t classes =
      node->op[0] == 'M' ? OPI_T_FLOAT | OPI_T_SMALL | OPI_T_USMALL : OPI_T_FLOAT;
  OPI_TRY(opi_need(b, node, 0, "X", classes, 3, 2 + MAX_SPATIAL, err));
  return read_window(b, node, NULL, w, err);
}

static opipe_status pool_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  window w;
  OPI_TRY(pool_check(b, node, &w, err));
  if (opi_wants(node, 1))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "output 1 (Indices) is not supported");
  write_window(&attrs, &w);
  opi_attrs_int(&attrs, "ceil_mode", w.ceil ? 1 : 0);
  if (node->op[0] == 'A')
    opi_attrs_int(&attrs, "count_include_pad", opi_attr_int(node, "count_include_pad", 0) != 0);
  return opi_k_lift(b, node, node->op, NULL, 22, &attrs, err);
}

static opipe_status pool_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  window w;
  OPI_TRY(pool_check(b, node, &w, err));
  return set_output(b, node, &w, opi_input(b, node, 0)->shape[1], opi_input(b, node, 0)->dtype,
                    err);
}

static void pool_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  uint32_t n;
  const int64_t *kernel = opi_attr_ints(node, "kernel_shape", &n);
  out_work->flops = opi_k_elems_of(graph, node->out[0]);
  for (uint32_t i = 0; i < n; ++i)
    out_work->flops *= (double)kernel[i];
  out_work->bytes = opi_work_bytes(graph, node);
}

static opipe_status spatial_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                  opi_carry *out, opipe_error *err) {
  return opi_carry_not(graph, node, 2, false, in, out, err);
}

static opipe_status global_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t axes[OPIPE_MAX_RANK];
  uint32_t y;
  OPI_TRY(opi_need(b, node, 0, "X", OPI_T_FLOAT, 3, OPIPE_MAX_RANK, err));
  const uint32_t rank = (uint32_t)opi_input(b, node, 0)->rank;
  for (uint32_t a = 2; a < rank; ++a)
    axes[a - 2] = a;
  OPI_TRY(opi_k_reduce(b, strcmp(node->op, "GlobalMaxPool") == 0 ? "ReduceMax" : "ReduceMean", 0,
                       node->in[0], axes, rank - 2, true, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

#define POOL(name_, max_out_, attrs_)                                                            \
  {                                                                                              \
    OPI_OP(name_, "", 1, OPI_NEWEST_ONNX, 1, 1, 1, max_out_), attrs_,                            \
        .lift = pool_lift, .infer = pool_infer, .work = pool_work, .carry = spatial_carry,       \
        .gradient = opi_gradient_pool, OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER) \
  }

static const opi_op ops[] = {
    {OPI_OP("Conv", "", 1, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(22, OPI_A(INT, "group", OPI_PRESET(1)), OPI_A(INTS, "pads"),
               OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID")),
               OPI_A(INTS, "strides"), OPI_A(INTS, "dilations"), OPI_A(INTS, "kernel_shape"),
               OPI_A(INT, "cudnn_*", OPI_NO_EFFECT)),
     .lift = conv_lift, .infer = conv_infer, .work = conv_work, .carry = batch_carry,
     .gradient = opi_gradient_conv, OPI_COLUMNS(NONE, NARROW, LAYER, ANY, NONE, PLAIN, NEVER)},
    {OPI_OP("ConvInteger", "", 10, OPI_NEWEST_ONNX, 2, 4, 1, 1),
     OPI_ATTRS(10, OPI_A(INT, "group", OPI_PRESET(1)), OPI_A(INTS, "pads"), OPI_A(INTS, "strides"),
               OPI_A(INTS, "dilations"), OPI_A(INTS, "kernel_shape"),
               OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID"))),
     .lift = conv_lift, .infer = conv_infer, .work = conv_work, .carry = batch_carry,
     .stops_gradient = ~UINT64_C(0), OPI_COLUMNS(NONE, AS_IS, OTHER, ANY, NONE, PLAIN, NEVER)},
    POOL("AveragePool", 1,
         OPI_ATTRS(22, OPI_A(INTS, "pads"),
                   OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID")),
                   OPI_A(INTS, "strides"), OPI_A(INTS, "kernel_shape"),
                   OPI_A(INT, "count_include_pad", .since = 7, OPI_PRESET(0)),
                   OPI_A(INT, "ceil_mode", .since = 10, OPI_PRESET(0)),
                   OPI_A(INTS, "dilations", .since = 19, OPI_PRESET(1)),
                   OPI_A(INT, "cudnn_*", OPI_NO_EFFECT))),
    POOL("MaxPool", 2,
         OPI_ATTRS(22, OPI_A(INTS, "pads"),
                   OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID")),
                   OPI_A(INTS, "strides"), OPI_A(INTS, "kernel_shape"),
                   OPI_A(INT, "storage_order", .since = 8, OPI_ONLY(0)),
                   OPI_A(INTS, "dilations", .since = 10, OPI_PRESET(1)),
                   OPI_A(INT, "ceil_mode", .since = 10, OPI_PRESET(0)),
                   OPI_A(INT, "cudnn_*", OPI_NO_EFFECT))),
    {OPI_OP("GlobalAveragePool", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(22),
     .lift = global_lift},
    {OPI_OP("GlobalMaxPool", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(22),
     .lift = global_lift},
};

const opi_op_family opi_ops_conv = {ops, OPI_COUNT(ops)};
