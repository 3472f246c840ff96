/* SPDX-License-Identifier: Apache-2.0 */
/* ConvTranspose, as a convolution by phases.
 *
 * y[o] = sum over i, t of x[i] w[t] with i * stride + t * dilation = o + pad. Written as o + pad =
 * q * stride + r and t = m * stride + r, phase r of the result is an ordinary convolution,
 * y[q, r] = sum over m of x[q - m] w[m * stride + r]: one Conv of stride 1 makes all phases as
 * channels, and they are then interleaved (as a pixel shuffle does). Nothing is multiplied by zeros
 * that were put between elements, and gradients, splits and kernels are Conv's. A dilated kernel of
 * a stride above 1 is first spread out with zeros.
 */
#include "loader/ops/conv.h"
#include "loader/ops/kit.h"

enum { MAX_SPATIAL = OPI_MAX_SPATIAL, IN_X = 0, IN_W, IN_B, MAX_EXTENT = INT32_MAX };

/* One spatial axis. */
typedef struct axis {
  int64_t in, kernel, stride, dilation, head, out; /* as the operator says; head: pads cut there */
  int64_t reach; /* elements from the first to the last of the kernel */
  int64_t taps;  /* of a phase */
  int64_t first; /* the first q that is wanted */
  int64_t end;   /* behind the last */
  bool spread;   /* the kernel is spread out with zeros */
} axis;

typedef struct deconv {
  uint32_t n; /* spatial axes */
  axis axes[MAX_SPATIAL];
  int64_t group, channels; /* of Y, in a group */
  int64_t phases;          /* product of the strides */
} deconv;

/* -- reading ----------------------------------------------------------------------------------- */

/* The window's numbers as they stand in the file. */
typedef struct numbers {
  int64_t kernel[MAX_SPATIAL], strides[MAX_SPATIAL], dilations[MAX_SPATIAL], pads[2 * MAX_SPATIAL];
  int64_t more[MAX_SPATIAL];   /* output_padding */
  int64_t wanted[MAX_SPATIAL]; /* output_shape; -1: not said */
  const char *auto_pad;
} numbers;

static opipe_status read_numbers(const opi_builder *b, const opi_node *node, uint32_t n,
                                 numbers *out, opipe_error *err) {
  static const char *const known[] = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
  uint32_t k = 0;
  out->auto_pad = opi_attr_string(node, "auto_pad", "NOTSET");
  while (k < OPI_COUNT(known) && strcmp(out->auto_pad, known[k]) != 0)
    ++k;
  if (k == OPI_COUNT(known)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute auto_pad is '%.40s', which is unknown", out->auto_pad);
  }
  OPI_TRY(opi_window_ints(b, node, "kernel_shape", n, 1, 1, out->kernel, err));
  if (opi_attr_find(node, "kernel_shape") == NULL)
    memcpy(out->kernel, opi_input(b, node, IN_W)->shape + 2, n * sizeof *out->kernel);
  OPI_TRY(opi_window_ints(b, node, "strides", n, 1, 1, out->strides, err));
  OPI_TRY(opi_window_ints(b, node, "dilations", n, 1, 1, out->dilations, err));
  OPI_TRY(opi_window_ints(b, node, "pads", 2 * n, 0, 0, out->pads, err));
  OPI_TRY(opi_window_ints(b, node, "output_padding", n, 0, 0, out->more, err));
  for (uint32_t i = 0; i < n; ++i)
    out->wanted[i] = -1;
  return opi_attr_find(node, "output_shape") == NULL
             ? OPIPE_OK
             : opi_window_ints(b, node, "output_shape", n, 1, 1, out->wanted, err);
}

/* How much of the whole result is cropped, and where it begins. `out` may exceed the result; zeros
 * follow then, and the bias. */
static opipe_status place(const opi_builder *b, const opi_node *node, const numbers *said,
                          uint32_t n, uint32_t i, axis *a, opipe_error *err) {
  const int64_t whole = (a->in - 1) * a->stride + a->reach + said->more[i];
  const bool upper = strcmp(said->auto_pad, "SAME_UPPER") == 0;
  const bool same = upper || strcmp(said->auto_pad, "SAME_LOWER") == 0;
  const int64_t wanted = said->wanted[i] < 0 && same ? a->in * said->strides[i] : said->wanted[i];
  if (wanted >= 0) {
    const int64_t cut = whole > wanted ? whole - wanted : 0;
    a->head = upper ? cut / 2 : cut - cut / 2;
    a->out = wanted;
  } else {
    const bool pads = strcmp(said->auto_pad, "VALID") != 0;
    a->head = pads ? said->pads[i] : 0;
    a->out = whole - a->head - (pads ? said->pads[n + i] : 0);
  }
  if (a->in < 1 || a->out < 1 || a->out > MAX_EXTENT || whole > MAX_EXTENT) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "axis %u has %lld elements in '%s' and would have %lld in the result",
                         i + 2, (long long)a->in, opi_input(b, node, IN_X)->name,
                         (long long)a->out);
  }
  return OPIPE_OK;
}

/* A single element is read once, whatever the stride. */
static opipe_status read_axis(const opi_builder *b, const opi_node *node, const numbers *said,
                              uint32_t n, uint32_t i, axis *a, opipe_error *err) {
  const opi_value *w = opi_input(b, node, IN_W);
  *a = (axis){.in = opi_input(b, node, IN_X)->shape[i + 2],
              .kernel = said->kernel[i],
              .dilation = said->dilations[i]};
  a->stride = a->in == 1 ? 1 : said->strides[i];
  if (w->shape[i + 2] != a->kernel) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' (W) has %lld along axis %u, kernel_shape says %lld", w->name,
                         (long long)w->shape[i + 2], i + 2, (long long)a->kernel);
  }
  if (a->in > MAX_EXTENT || a->kernel < 1 || a->kernel > MAX_EXTENT) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "%lld elements along axis %u, %lld of W",
                         (long long)a->in, i + 2, (long long)a->kernel);
  }
  a->reach = (a->kernel - 1) * a->dilation + 1;
  OPI_TRY(place(b, node, said, n, i, a, err));
  a->spread = a->dilation > 1 && a->stride > 1;
  a->taps = a->stride == 1 ? a->kernel : (a->reach + a->stride - 1) / a->stride;
  a->first = a->head / a->stride;
  a->end = (a->head + a->out + a->stride - 1) / a->stride;
  return OPIPE_OK;
}

/* `all`: channels of the result. */
static opipe_status read_axes(const opi_builder *b, const opi_node *node, int64_t all, deconv *d,
                              opipe_error *err) {
  numbers said;
  int64_t total = all;
  OPI_TRY(read_numbers(b, node, d->n, &said, err));
  d->phases = 1;
  for (uint32_t i = 0; i < d->n; ++i) {
    OPI_TRY(read_axis(b, node, &said, d->n, i, &d->axes[i], err));
    if (__builtin_mul_overflow(total, d->axes[i].stride, &total) ||
        __builtin_mul_overflow(d->phases, d->axes[i].stride, &d->phases)) {
      return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                           "%lld channels and a stride of %lld along axis %u overflow",
                           (long long)all, (long long)d->axes[i].stride, i + 2);
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_builder *b, const opi_node *node, deconv *d, opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_X, "X", OPI_T_FLOAT, 3, 2 + MAX_SPATIAL, err));
  const opi_value *x = opi_input(b, node, IN_X);
  OPI_TRY(opi_need(b, node, IN_W, "W", OPI_T_FLOAT, x->rank, x->rank, err));
  OPI_TRY(opi_need_same_type(b, node, IN_X, IN_W, err));
  OPI_TRY(opi_may(b, node, IN_B, "B", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need_same_type(b, node, IN_X, IN_B, err));
  OPI_TRY(opi_need_dim(b, node, IN_W, 0, x->shape[1], "the channels of X", err));
  const opi_value *w = opi_input(b, node, IN_W);
  *d = (deconv){
      .n = (uint32_t)x->rank - 2, .group = opi_attr_int(node, "group", 1), .channels = w->shape[1]};
  int64_t all;
  if (d->group < 1 || x->shape[1] % d->group != 0 || x->shape[1] == 0 ||
      __builtin_mul_overflow(d->group, d->channels, &all)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "group %lld does not divide the %lld channels of '%s'",
                         (long long)d->group, (long long)x->shape[1], x->name);
  }
  OPI_TRY(opi_need_dim(b, node, IN_B, 0, all, "the output channels of W", err));
  return read_axes(b, node, all, d, err);
}

/* -- the weights: [C, M/g, k...] -> [g * M/g * phases, C/g, taps...] ----------------------------
 */

/* Along spatial axis i extent[i] elements, zeros behind. */
static opipe_status pad_behind(opi_builder *b, const deconv *d, const int64_t *extent, uint32_t *io,
                               opipe_error *err) {
  int64_t pads[2 * (2 + MAX_SPATIAL)] = {0};
  for (uint32_t i = 0; i < d->n; ++i)
    pads[d->n + 4 + i] = extent[i] - opi_b_value(b, *io)->shape[i + 2];
  return opi_k_pad(b, *io, pads, io, err);
}

/* Zeros between the elements of axes that are spread. */
static opipe_status spread(opi_builder *b, const deconv *d, uint32_t *io, opipe_error *err) {
  for (uint32_t i = 0; i < d->n; ++i) {
    const axis *a = &d->axes[i];
    const opi_value w = *opi_b_value(b, *io);
    const uint32_t at = i + 2, rank = (uint32_t)w.rank;
    int64_t shape[OPIPE_MAX_RANK], pads[2 * OPIPE_MAX_RANK] = {0};
    if (!a->spread)
      continue;
    memcpy(shape, w.shape, (at + 1) * sizeof *shape);
    shape[at + 1] = 1;
    memcpy(shape + at + 2, w.shape + at + 1, (rank - at - 1) * sizeof *shape);
    OPI_TRY(opi_k_reshape(b, *io, shape, rank + 1, io, err));
    pads[rank + 1 + at + 1] = a->dilation - 1;
    OPI_TRY(opi_k_pad(b, *io, pads, io, err));
    memcpy(shape, w.shape, rank * sizeof *shape);
    shape[at] = a->kernel * a->dilation;
    OPI_TRY(opi_k_reshape(b, *io, shape, rank, io, err));
    OPI_TRY(opi_k_slice(b, *io, at, 0, a->reach, io, err));
  }
  return OPIPE_OK;
}

/* The last n axes backwards. */
static opipe_status turn_round(opi_builder *b, uint32_t n, uint32_t *io, opipe_error *err) {
  const opi_value w = *opi_b_value(b, *io);
  int64_t lists[4][MAX_SPATIAL]; /* starts, ends, axes, steps */
  uint32_t kept = 0, in[5] = {*io};
  for (uint32_t a = (uint32_t)w.rank - n; a < (uint32_t)w.rank; ++a) {
    if (w.shape[a] == 1)
      continue;
    lists[0][kept] = w.shape[a] - 1;
    lists[1][kept] = INT64_MIN;
    lists[2][kept] = a;
    lists[3][kept++] = -1;
  }
  for (uint32_t l = 0; kept > 0 && l < 4; ++l) {
    in[l + 1] = opi_b_const_ints(b, lists[l], kept);
    OPI_TRY(opi_k_const(in[l + 1], err));
  }
  return kept == 0 ? OPIPE_OK : opi_k_one(b, "Slice", 0, in, 5, NULL, io, err);
}

static opipe_status make_weights(opi_builder *b, const deconv *d, uint32_t w, uint32_t *out,
                                 opipe_error *err) {
  const uint32_t n = d->n;
  const int64_t c = opi_b_value(b, w)->shape[0] / d->group;
  int64_t extent[MAX_SPATIAL], shape[3 + 2 * MAX_SPATIAL], perm[3 + 2 * MAX_SPATIAL] = {0, 2};
  *out = w;
  OPI_TRY(spread(b, d, out, err));
  for (uint32_t i = 0; i < n; ++i)
    extent[i] = d->axes[i].taps * d->axes[i].stride;
  OPI_TRY(pad_behind(b, d, extent, out, err));
  /* [g, C/g, M/g, taps, stride, ...] -> [g, M/g, stride..., C/g, taps...] */
  shape[0] = d->group;
  shape[1] = c;
  shape[2] = d->channels;
  perm[2 + n] = 1;
  for (uint32_t i = 0; i < n; ++i) {
    shape[3 + 2 * i] = d->axes[i].taps;
    shape[4 + 2 * i] = d->axes[i].stride;
    perm[2 + i] = 4 + 2 * i;
    perm[3 + n + i] = 3 + 2 * i;
  }
  OPI_TRY(opi_k_reshape(b, *out, shape, 3 + 2 * n, out, err));
  OPI_TRY(opi_k_transpose(b, *out, perm, 3 + 2 * n, out, err));
  OPI_TRY(turn_round(b, n, out, err));
  shape[0] = d->group * d->channels * d->phases;
  shape[1] = c;
  for (uint32_t i = 0; i < n; ++i)
    shape[2 + i] = d->axes[i].taps;
  return opi_k_reshape(b, *out, shape, 2 + n, out, err);
}

/* The bias of a channel for each of its phases. */
static opipe_status make_bias(opi_builder *b, const deconv *d, uint32_t bias, uint32_t *out,
                              opipe_error *err) {
  const int64_t m = d->group * d->channels;
  const int64_t column[2] = {m, 1}, wide[2] = {m, d->phases}, flat[1] = {m * d->phases};
  *out = bias;
  if (bias == OPIPE_NONE || d->phases == 1)
    return OPIPE_OK;
  OPI_TRY(opi_k_reshape(b, bias, column, 2, out, err));
  OPI_TRY(opi_k_expand(b, *out, wide, 2, out, err));
  return opi_k_reshape(b, *out, flat, 1, out, err);
}

/* -- the convolution, and its phases ----------------------------------------------------------- */

static opipe_status convolve(opi_builder *b, const deconv *d, uint32_t x, uint32_t w, uint32_t bias,
                             uint32_t *out, opipe_error *err) {
  int64_t kernel[MAX_SPATIAL], ones[MAX_SPATIAL], dilations[MAX_SPATIAL], pads[2 * MAX_SPATIAL];
  opi_attrs attrs = {.n = 0};
  for (uint32_t i = 0; i < d->n; ++i) {
    const axis *a = &d->axes[i];
    const int64_t step = a->stride == 1 ? a->dilation : 1;
    const int64_t head = (a->taps - 1) * step - a->first, tail = a->end - a->in;
    OPI_TRY(opi_k_slice(b, x, i + 2, head < 0 ? -head : 0, tail < 0 ? a->end : a->in, &x, err));
    kernel[i] = a->taps;
    ones[i] = 1;
    dilations[i] = step;
    pads[i] = head < 0 ? 0 : head;
    pads[d->n + i] = tail < 0 ? 0 : tail;
  }
  opi_attrs_ints(&attrs, "kernel_shape", kernel, d->n);
  opi_attrs_ints(&attrs, "strides", ones, d->n);
  opi_attrs_ints(&attrs, "dilations", dilations, d->n);
  opi_attrs_ints(&attrs, "pads", pads, 2 * d->n);
  opi_attrs_int(&attrs, "group", d->group);
  const uint32_t in[3] = {x, w, bias};
  return opi_k_one(b, "Conv", 22, in, bias == OPIPE_NONE ? 2 : 3, &attrs, out, err);
}

/* [N, M * phases, q...] -> [N, M, out...] */
static opipe_status interleave(opi_builder *b, const deconv *d, uint32_t *io, opipe_error *err) {
  const uint32_t n = d->n;
  const int64_t m = d->group * d->channels;
  int64_t shape[2 + 2 * MAX_SPATIAL] = {opi_b_value(b, *io)->shape[0], m};
  int64_t perm[2 + 2 * MAX_SPATIAL] = {0, 1};
  for (uint32_t i = 0; i < n; ++i) {
    shape[2 + i] = d->axes[i].stride;
    shape[2 + n + i] = d->axes[i].end - d->axes[i].first;
    perm[2 + 2 * i] = 2 + n + i;
    perm[3 + 2 * i] = 2 + i;
  }
  if (d->phases > 1) {
    OPI_TRY(opi_k_reshape(b, *io, shape, 2 + 2 * n, io, err));
    OPI_TRY(opi_k_transpose(b, *io, perm, 2 + 2 * n, io, err));
    for (uint32_t i = 0; i < n; ++i)
      shape[2 + i] = d->axes[i].stride * (d->axes[i].end - d->axes[i].first);
    OPI_TRY(opi_k_reshape(b, *io, shape, 2 + n, io, err));
  }
  for (uint32_t i = 0; i < n; ++i) {
    const axis *a = &d->axes[i];
    const int64_t begin = a->head - a->first * a->stride;
    OPI_TRY(opi_k_slice(b, *io, i + 2, begin, begin + a->out, io, err));
  }
  return OPIPE_OK;
}

opipe_status opi_conv_transpose_emit(opi_builder *b, const opi_node *node, uint32_t *out,
                                     opipe_error *err) {
  deconv d;
  uint32_t w, bias;
  OPI_TRY(check(b, node, &d, err));
  OPI_TRY(make_weights(b, &d, node->in[IN_W], &w, err));
  OPI_TRY(make_bias(b, &d, opi_node_in(node, IN_B), &bias, err));
  OPI_TRY(convolve(b, &d, node->in[IN_X], w, bias, out, err));
  return interleave(b, &d, out, err);
}

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t y;
  OPI_TRY(opi_conv_transpose_emit(b, node, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static const opi_op ops[] = {
    {OPI_OP("ConvTranspose", "", 1, OPI_NEWEST_ONNX, 2, 3, 1, 1),
     OPI_ATTRS(22, OPI_A(INT, "group", OPI_PRESET(1)),
               OPI_A(STRING, "auto_pad", OPI_TEXTS("NOTSET SAME_UPPER SAME_LOWER VALID")),
               OPI_A(INTS, "strides"), OPI_A(INTS, "pads"), OPI_A(INTS, "output_padding"),
               OPI_A(INTS, "dilations"), OPI_A(INTS, "output_shape"), OPI_A(INTS, "kernel_shape"),
               OPI_A(INT, "cudnn_*", OPI_NO_EFFECT)),
     .lift = lift}};
extern const opi_op_family opi_ops_conv_transpose;
const opi_op_family opi_ops_conv_transpose = {ops, OPI_COUNT(ops)};
