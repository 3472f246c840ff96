/* SPDX-License-Identifier: Apache-2.0 */
/* GridSample (opset 16 and 20): an image, or a volume, read between its elements.
 *
 * Along each axis an output reads `taps` neighbours of its coordinate with weights (nearest: 1,
 * linear: 2, cubic: 4, with a = -0.75); what lies outside is brought inside by the padding mode, or
 * has weight 0. Each combination of neighbours is one GatherND of the rows [places, channels] with
 * the batch in common, times its weight: gradients of the image and of the grid, and the split of
 * the batch, follow from these.
 */
#include "loader/ops/kit.h"

enum { IN_X = 0, IN_GRID, MAX_SPATIAL = 3, MAX_TAPS = 4 };
enum { ZEROS = 0, BORDER, REFLECTION };

typedef struct sampling {
  uint32_t n;     /* spatial axes */
  uint32_t taps;  /* along each */
  uint32_t dtype; /* coordinates and weights */
  int padding;
  bool corners; /* align_corners */
  int64_t places;
} sampling;

/* Neighbours along one axis: both of shape [N, places]. */
typedef struct neighbour {
  uint32_t index;  /* int64, inside */
  uint32_t weight; /* OPIPE_NONE: 1 */
} neighbour;

/* -- reading ----------------------------------------------------------------------------------- */

static opipe_status unknown(const opi_builder *b, const opi_node *node, const char *name,
                            const char *text, opipe_error *err) {
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute %s is '%.40s', which is unknown",
                       name, text);
}

static opipe_status read_modes(const opi_builder *b, const opi_node *node, sampling *s,
                               opipe_error *err) {
  static const char *const paddings[3] = {"zeros", "border", "reflection"};
  const char *mode = opi_attr_string(node, "mode", "linear");
  const char *padding = opi_attr_string(node, "padding_mode", "zeros");
  s->corners = opi_attr_int(node, "align_corners", 0) != 0;
  s->taps = 0;
  if (strcmp(mode, "nearest") == 0)
    s->taps = 1;
  else if (strcmp(mode, "linear") == 0 || strcmp(mode, "bilinear") == 0)
    s->taps = 2;
  else if (strcmp(mode, "cubic") == 0 || strcmp(mode, "bicubic") == 0)
    s->taps = 4;
  if (s->taps == 0)
    return unknown(b, node, "mode", mode, err);
  for (s->padding = ZEROS; s->padding <= REFLECTION; ++s->padding) {
    if (strcmp(padding, paddings[s->padding]) == 0)
      return OPIPE_OK;
  }
  return unknown(b, node, "padding_mode", padding, err);
}

static opipe_status check(const opi_builder *b, const opi_node *node, sampling *s,
                          opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_X, "X", OPI_T_FLOAT, 3, 2 + MAX_SPATIAL, err));
  const opi_value *x = opi_input(b, node, IN_X);
  OPI_TRY(opi_need(b, node, IN_GRID, "grid", OPI_T_FLOAT, x->rank, x->rank, err));
  const opi_value *grid = opi_input(b, node, IN_GRID);
  *s = (sampling){.n = (uint32_t)x->rank - 2,
                  .dtype = grid->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT,
                  .places = 1};
  OPI_TRY(opi_need_dim(b, node, IN_GRID, 0, x->shape[0], "the batch of X", err));
  OPI_TRY(opi_need_dim(b, node, IN_GRID, s->n + 1, s->n, "a coordinate for each axis", err));
  for (uint32_t i = 0; i < s->n; ++i) {
    if (x->shape[i + 2] < 1) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' has %lld along axis %u",
                           x->name, (long long)x->shape[i + 2], i + 2);
    }
    s->places *= grid->shape[i + 1]; /* values whose extents overflow are refused before */
  }
  return read_modes(b, node, s, err);
}

/* -- arithmetic -------------------------------------------------------------------------------- */

static opipe_status with(opi_builder *b, const char *op, uint32_t x, uint32_t dtype, double number,
                         uint32_t *out, opipe_error *err) {
  const uint32_t c = opi_b_const_scalar(b, dtype, number);
  OPI_TRY(opi_k_const(c, err));
  return opi_b_op2(b, op, x, c, out, err);
}

static opipe_status clip(opi_builder *b, uint32_t dtype, double low, double high, uint32_t *io,
                         opipe_error *err) {
  const uint32_t in[3] = {*io, opi_b_const_scalar(b, dtype, low),
                          opi_b_const_scalar(b, dtype, high)};
  OPI_TRY(opi_k_const(in[1], err));
  OPI_TRY(opi_k_const(in[2], err));
  return opi_k_one(b, "Clip", 0, in, 3, NULL, io, err);
}

/* ((k[0] t + k[1]) t + k[2]) t + k[3] */
static opipe_status cubic(opi_builder *b, const sampling *s, uint32_t t, const double *k,
                          uint32_t *out, opipe_error *err) {
  OPI_TRY(with(b, "Mul", t, s->dtype, k[0], out, err));
  for (uint32_t i = 1; i < 4; ++i) {
    if (k[i] != 0)
      OPI_TRY(with(b, "Add", *out, s->dtype, k[i], out, err));
    if (i < 3)
      OPI_TRY(opi_b_op2(b, "Mul", *out, t, out, err));
  }
  return OPIPE_OK;
}

/* The weight of neighbour `tap`; t: how far the coordinate lies behind the lower neighbour. */
static opipe_status weigh(opi_builder *b, const sampling *s, uint32_t t, uint32_t tap,
                          uint32_t *out, opipe_error *err) {
  /* Keys' kernel with a = -0.75 at t + 1, t, 1 - t, 2 - t, as polynomials of t */
  static const double keys[4][4] = {
      {-0.75, 1.5, -0.75, 0}, {1.25, -2.25, 0, 1}, {-1.25, 1.5, 0.75, 0}, {0.75, -0.75, 0, 0}};
  if (s->taps == 1) {
    *out = OPIPE_NONE;
    return OPIPE_OK;
  }
  if (s->taps == 4)
    return cubic(b, s, t, keys[tap], out, err);
  *out = t;
  if (tap == 1)
    return OPIPE_OK;
  OPI_TRY(with(b, "Mul", t, s->dtype, -1, out, err));
  return with(b, "Add", *out, s->dtype, 1, out, err);
}

/* An index anywhere, mirrored into [0, extent): with corners in line at the elements themselves,
 * else at the edges of theirs. */
static opipe_status reflect(opi_builder *b, const sampling *s, int64_t extent, uint32_t *io,
                            opipe_error *err) {
  const int64_t span = s->corners ? extent - 1 : extent,
                last = s->corners ? 2 * span : 2 * span - 1;
  opi_attrs attrs = {.n = 0};
  uint32_t in[2] = {*io, OPIPE_NONE}, other;
  if (extent == 1)
    return with(b, "Mul", *io, OPIPE_INT64, 0, io, err);
  in[1] = opi_b_const_scalar(b, OPIPE_INT64, (double)(2 * span));
  OPI_TRY(opi_k_const(in[1], err));
  opi_attrs_int(&attrs, "fmod", 0);
  OPI_TRY(opi_k_one(b, "Mod", 13, in, 2, &attrs, io, err));
  OPI_TRY(with(b, "Mul", *io, OPIPE_INT64, -1, &other, err));
  OPI_TRY(with(b, "Add", other, OPIPE_INT64, (double)last, &other, err));
  return opi_b_op2(b, "Min", *io, other, io, err);
}

/* The weight becomes 0 where the index lies outside. */
static opipe_status mask(opi_builder *b, const sampling *s, int64_t extent, neighbour *io,
                         opipe_error *err) {
  uint32_t above, below, inside;
  OPI_TRY(with(b, "GreaterOrEqual", io->index, OPIPE_INT64, 0, &above, err));
  OPI_TRY(with(b, "Less", io->index, OPIPE_INT64, (double)extent, &below, err));
  OPI_TRY(opi_b_op2(b, "And", above, below, &inside, err));
  OPI_TRY(opi_k_cast(b, inside, s->dtype, &inside, err));
  if (io->weight == OPIPE_NONE)
    io->weight = inside;
  else
    OPI_TRY(opi_b_op2(b, "Mul", io->weight, inside, &io->weight, err));
  return OPIPE_OK;
}

/* -- neighbours along an axis ------------------------------------------------------------------ */

/* [N, places]: coordinates in elements from the first, converted from -1 .. 1 of the grid.
 * Coordinates far outside are clamped near the border, where the same is read. */
static opipe_status coordinate(opi_builder *b, const sampling *s, uint32_t grid, uint32_t axis,
                               int64_t extent, uint32_t *out, opipe_error *err) {
  const int64_t batch = opi_b_value(b, grid)->shape[0], flat[2] = {batch, s->places};
  const int64_t at = s->n - 1 - axis; /* the grid says x before y */
  const double scale = s->corners ? (double)(extent - 1) / 2 : (double)extent / 2;
  OPI_TRY(opi_k_slice(b, grid, 2, at, at + 1, out, err));
  OPI_TRY(opi_k_reshape(b, *out, flat, 2, out, err));
  OPI_TRY(with(b, "Mul", *out, s->dtype, scale, out, err));
  OPI_TRY(with(b, "Add", *out, s->dtype, (double)(extent - 1) / 2, out, err));
  const double far = s->padding == REFLECTION ? 0x1p30 : MAX_TAPS;
  return clip(b, s->dtype, -far, (double)extent + far, out, err);
}

static opipe_status neighbours(opi_builder *b, const sampling *s, uint32_t grid, uint32_t axis,
                               int64_t extent, neighbour *out, opipe_error *err) {
  uint32_t place, low, t = OPIPE_NONE, first;
  OPI_TRY(coordinate(b, s, grid, axis, extent, &place, err));
  OPI_TRY(opi_k_one(b, s->taps == 1 ? "Round" : "Floor", 0, &place, 1, NULL, &low, err));
  if (s->taps > 1)
    OPI_TRY(opi_b_op2(b, "Sub", place, low, &t, err));
  OPI_TRY(opi_k_cast(b, low, OPIPE_INT64, &first, err));
  for (uint32_t tap = 0; tap < s->taps; ++tap) {
    const int64_t behind = (int64_t)tap - (s->taps == 4 ? 1 : 0);
    neighbour *one = &out[tap];
    one->index = first;
    if (behind != 0)
      OPI_TRY(with(b, "Add", first, OPIPE_INT64, (double)behind, &one->index, err));
    OPI_TRY(weigh(b, s, t, tap, &one->weight, err));
    if (s->padding == ZEROS)
      OPI_TRY(mask(b, s, extent, one, err));
    if (s->padding == REFLECTION)
      OPI_TRY(reflect(b, s, extent, &one->index, err));
    else
      OPI_TRY(clip(b, OPIPE_INT64, 0, (double)(extent - 1), &one->index, err));
  }
  return OPIPE_OK;
}

/* -- all of them ------------------------------------------------------------------------------- */

/* One combination: rows [N, elements, C] at the axes' indices, times the axes' weights. */
static opipe_status sample(opi_builder *b, const sampling *s, uint32_t rows, const int64_t *extent,
                           const neighbour *const *chosen, uint32_t *out, opipe_error *err) {
  const opi_value v = *opi_b_value(b, rows);
  const int64_t column[3] = {v.shape[0], s->places, 1};
  uint32_t at = chosen[0]->index, weight = chosen[0]->weight;
  opi_attrs attrs = {.n = 0};
  for (uint32_t a = 1; a < s->n; ++a) {
    OPI_TRY(with(b, "Mul", at, OPIPE_INT64, (double)extent[a], &at, err));
    OPI_TRY(opi_b_op2(b, "Add", at, chosen[a]->index, &at, err));
    if (weight != OPIPE_NONE)
      OPI_TRY(opi_b_op2(b, "Mul", weight, chosen[a]->weight, &weight, err));
  }
  OPI_TRY(opi_k_reshape(b, at, column, 3, &at, err));
  const uint32_t in[2] = {rows, at};
  opi_attrs_int(&attrs, "batch_dims", 1);
  OPI_TRY(opi_k_one(b, "GatherND", 13, in, 2, &attrs, out, err));
  if (weight == OPIPE_NONE)
    return OPIPE_OK;
  OPI_TRY(opi_k_reshape(b, weight, column, 3, &weight, err));
  if (v.dtype != s->dtype)
    OPI_TRY(opi_k_cast(b, weight, v.dtype, &weight, err));
  return opi_b_op2(b, "Mul", *out, weight, out, err);
}

/* The sum over all combinations, the last axis' neighbours first: [N, places, C]. */
static opipe_status sample_all(opi_builder *b, const sampling *s, uint32_t rows,
                               const int64_t *extent, neighbour near[][MAX_TAPS], uint32_t *out,
                               opipe_error *err) {
  uint32_t n = 1;
  for (uint32_t a = 0; a < s->n; ++a)
    n *= s->taps;
  *out = OPIPE_NONE;
  for (uint32_t k = 0; k < n; ++k) {
    const neighbour *chosen[MAX_SPATIAL] = {NULL};
    uint32_t one, rest = k;
    for (uint32_t a = s->n; a-- > 0; rest /= s->taps)
      chosen[a] = &near[a][rest % s->taps];
    OPI_TRY(sample(b, s, rows, extent, chosen, &one, err));
    if (*out == OPIPE_NONE)
      *out = one;
    else
      OPI_TRY(opi_b_op2(b, "Add", *out, one, out, err));
  }
  return OPIPE_OK;
}

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  static const int64_t turn[3] = {0, 2, 1};
  neighbour near[MAX_SPATIAL][MAX_TAPS];
  sampling s;
  uint32_t grid = OPIPE_NONE, rows, y;
  OPI_TRY(check(b, node, &s, err));
  const opi_value x = *opi_input(b, node, IN_X), g = *opi_input(b, node, IN_GRID);
  const int64_t *extent = x.shape + 2;
  const int64_t table[3] = {x.shape[0], s.places, s.n};
  int64_t image[3] = {x.shape[0], x.shape[1], 1}, shape[2 + MAX_SPATIAL];
  for (uint32_t a = 0; a < s.n; ++a)
    image[2] *= extent[a];
  memcpy(shape, x.shape, 2 * sizeof *shape);
  memcpy(shape + 2, g.shape + 1, s.n * sizeof *shape);
  OPI_TRY(opi_k_cast(b, node->in[IN_GRID], s.dtype, &grid, err));
  OPI_TRY(opi_k_reshape(b, grid, table, 3, &grid, err));
  for (uint32_t a = 0; a < s.n; ++a)
    OPI_TRY(neighbours(b, &s, grid, a, extent[a], near[a], err));
  OPI_TRY(opi_k_reshape(b, node->in[IN_X], image, 3, &rows, err));
  OPI_TRY(opi_k_transpose(b, rows, turn, 3, &rows, err));
  OPI_TRY(sample_all(b, &s, rows, extent, near, &y, err));
  OPI_TRY(opi_k_transpose(b, y, turn, 3, &y, err));
  OPI_TRY(opi_k_reshape(b, y, shape, 2 + s.n, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static const opi_op ops[] = {{OPI_OP("GridSample", "", 16, OPI_NEWEST_ONNX, 2, 2, 1, 1),
                              OPI_ATTRS(22, OPI_A(INT, "align_corners", OPI_PRESET(0)),
                                        OPI_A(STRING, "padding_mode"), OPI_A(STRING, "mode")),
                              .lift = lift}};
extern const opi_op_family opi_ops_grid_sample;
const opi_op_family opi_ops_grid_sample = {ops, OPI_COUNT(ops)};
