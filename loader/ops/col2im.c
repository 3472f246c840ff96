/* SPDX-License-Identifier: Apache-2.0 */
/* Col2Im (torch's fold): blocks of an image, one to a column, are added up where they overlap.
 *
 * It is the transpose of taking patches, so it becomes a ConvTranspose of every channel by itself,
 * whose filter t is 1 at place t of a block: [N * C, places, blocks...] -> [N * C, 1, image...].
 */
#include "loader/ops/conv.h"
#include "loader/ops/kit.h"

enum { MAX_SPATIAL = OPI_MAX_SPATIAL, IN_X = 0, IN_IMAGE, IN_BLOCK };
enum { MOST_PLACES = 4096 }; /* of a block: the filters are its square, 64 MiB */

typedef struct columns {
  uint32_t n; /* spatial axes */
  int64_t image[MAX_SPATIAL], block[MAX_SPATIAL];
  int64_t strides[MAX_SPATIAL], dilations[MAX_SPATIAL], pads[2 * MAX_SPATIAL];
  int64_t blocks[MAX_SPATIAL]; /* along each axis */
  int64_t rest[MAX_SPATIAL];   /* of the image, that no block reaches */
  int64_t places, all_blocks;  /* of a block; of the image */
} columns;

static opipe_status read_sizes(opi_builder *b, const opi_node *node, uint32_t i, const char *what,
                               uint32_t n, int64_t *out, opipe_error *err) {
  const int64_t *ints = NULL;
  uint32_t found = 0;
  OPI_TRY(opi_known_ints(b, node, i, &ints, &found, err));
  if (found != n) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%s '%s' has %u numbers, not %u", what,
                         opi_input(b, node, i)->name, found, n);
  }
  for (uint32_t a = 0; a < n; ++a) {
    if (ints[a] < 1 || ints[a] > INT32_MAX) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "%s '%s' has %lld along axis %u", what,
                           opi_input(b, node, i)->name, (long long)ints[a], a);
    }
    out[a] = ints[a];
  }
  return OPIPE_OK;
}

static opipe_status place_blocks(const opi_builder *b, const opi_node *node, columns *c,
                                 opipe_error *err) {
  c->places = c->all_blocks = 1;
  for (uint32_t a = 0; a < c->n; ++a) {
    const int64_t reach = (c->block[a] - 1) * c->dilations[a] + 1;
    const int64_t room = c->image[a] + c->pads[a] + c->pads[c->n + a] - reach;
    if (room < 0) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "axis %u of the image has %lld elements with its pads, a block reaches "
                           "over %lld",
                           a, (long long)(room + reach), (long long)reach);
    }
    c->blocks[a] = room / c->strides[a] + 1;
    c->rest[a] = room % c->strides[a];
    if (__builtin_mul_overflow(c->places, c->block[a], &c->places) ||
        __builtin_mul_overflow(c->all_blocks, c->blocks[a], &c->all_blocks) ||
        c->places > MOST_PLACES) {
      return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                           "a block has %lld elements along axis %u, and at most %d in all",
                           (long long)c->block[a], a, MOST_PLACES);
    }
  }
  return OPIPE_OK;
}

/* x [N, C * places, blocks] */
static opipe_status check(opi_builder *b, const opi_node *node, columns *c, opipe_error *err) {
  OPI_TRY(opi_need(b, node, IN_X, "input", OPI_T_FLOAT, 3, 3, err));
  OPI_TRY(opi_need(b, node, IN_IMAGE, "image_shape", OPI_T_WIDE, 1, 1, err));
  const int64_t n = opi_input(b, node, IN_IMAGE)->shape[0];
  if (n < 1 || n > MAX_SPATIAL) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "image_shape '%s' has %lld axes, of at most %d",
                         opi_input(b, node, IN_IMAGE)->name, (long long)n, MAX_SPATIAL);
  }
  *c = (columns){.n = (uint32_t)n};
  OPI_TRY(read_sizes(b, node, IN_IMAGE, "image_shape", c->n, c->image, err));
  OPI_TRY(read_sizes(b, node, IN_BLOCK, "block_shape", c->n, c->block, err));
  OPI_TRY(opi_window_ints(b, node, "strides", c->n, 1, 1, c->strides, err));
  OPI_TRY(opi_window_ints(b, node, "dilations", c->n, 1, 1, c->dilations, err));
  OPI_TRY(opi_window_ints(b, node, "pads", 2 * c->n, 0, 0, c->pads, err));
  OPI_TRY(place_blocks(b, node, c, err));
  const opi_value *x = opi_input(b, node, IN_X);
  if (x->shape[1] % c->places != 0 || x->shape[2] != c->all_blocks) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' is [%lld, %lld, %lld]; axis 1 must be a multiple of the %lld "
                         "elements of a block, axis 2 the %lld blocks of the image",
                         x->name, (long long)x->shape[0], (long long)x->shape[1],
                         (long long)x->shape[2], (long long)c->places, (long long)c->all_blocks);
  }
  return OPIPE_OK;
}

/* [places, 1, block...], 1 at a place of its own. */
static opipe_status filters_of(opi_builder *b, const columns *c, uint32_t dtype, uint32_t *out,
                               opipe_error *err) {
  const size_t n = (size_t)c->places, elems = n * n; /* n: at most MOST_PLACES */
  int64_t shape[2 + MAX_SPATIAL] = {c->places, 1};
  float *ones = OPI_ARENA_ARRAY(b->scratch, float, elems);
  if (ones == NULL)
    return opi_fail_nomem(err, elems * sizeof(float), "the places of a block");
  memset(ones, 0, elems * sizeof *ones);
  for (size_t i = 0; i < n; ++i)
    ones[i * n + i] = 1.0f;
  memcpy(shape + 2, c->block, c->n * sizeof *shape);
  *out = opi_b_const(b, OPIPE_FLOAT, shape, 2 + c->n, ones);
  OPI_TRY(opi_k_const(*out, err));
  return dtype == OPIPE_FLOAT ? OPIPE_OK : opi_k_cast(b, *out, dtype, out, err);
}

static opipe_status lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  columns c;
  opi_attrs attrs = {.n = 0};
  uint32_t in[2], y;
  OPI_TRY(check(b, node, &c, err));
  const opi_value x = *opi_input(b, node, IN_X);
  const int64_t channels = x.shape[1] / c.places;
  int64_t shape[2 + MAX_SPATIAL] = {x.shape[0] * channels, c.places};
  memcpy(shape + 2, c.blocks, c.n * sizeof *shape);
  OPI_TRY(opi_k_reshape(b, node->in[IN_X], shape, 2 + c.n, &in[0], err));
  OPI_TRY(filters_of(b, &c, x.dtype, &in[1], err));
  opi_attrs_ints(&attrs, "kernel_shape", c.block, c.n);
  opi_attrs_ints(&attrs, "strides", c.strides, c.n);
  opi_attrs_ints(&attrs, "dilations", c.dilations, c.n);
  opi_attrs_ints(&attrs, "pads", c.pads, 2 * c.n);
  opi_attrs_ints(&attrs, "output_padding", c.rest, c.n);
  opi_node inner = *node;
  inner.in = in;
  inner.n_in = 2;
  inner.attrs = attrs.list;
  inner.n_attrs = attrs.n;
  OPI_TRY(opi_conv_transpose_emit(b, &inner, &y, err));
  shape[0] = x.shape[0];
  shape[1] = channels;
  memcpy(shape + 2, c.image, c.n * sizeof *shape);
  OPI_TRY(opi_k_reshape(b, y, shape, 2 + c.n, &y, err));
  return opi_b_result(b, node, 0, y, err);
}

static const opi_op ops[] = {
    {OPI_OP("Col2Im", "", 18, OPI_NEWEST_ONNX, 3, 3, 1, 1),
     OPI_ATTRS(18, OPI_A(INTS, "strides"), OPI_A(INTS, "pads"), OPI_A(INTS, "dilations")),
     .lift = lift}};
extern const opi_op_family opi_ops_col2im;
const opi_op_family opi_ops_col2im = {ops, OPI_COUNT(ops)};
