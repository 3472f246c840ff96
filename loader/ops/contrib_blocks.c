/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft GatherBlockQuantized: entries of a table of few bits, by indices.
 *
 * Inputs: data (int4, uint4, int8 or uint8, which holds 8 / bits numbers along its last axis),
 * indices, scales (one for each block along quantize_axis), zero_points? (as data). Only the
 * picked entries are unpacked and scaled, never the table: Gather of data, of scales and of zero
 * points, then (code
 * - zero point) * scale in fp32, rounded once to the type of the scales.
 */
#include "loader/ops/contrib.h"
#include "loader/ops/control.h"

enum { IN_DATA, IN_INDICES, IN_SCALES, IN_ZERO };

typedef struct blocks {
  const opi_node *node;
  uint32_t rank, gather, quantize; /* of data; its axes */
  int64_t bits, block;
  int64_t per_byte; /* numbers in an element of data */
  int64_t extent;   /* numbers along quantize_axis */
} blocks;

static opipe_status check_form(opi_builder *b, blocks *q, opipe_error *err) {
  const opi_node *node = q->node;
  const opi_value *x = NULL;
  OPI_TRY(opi_in(b, node, IN_DATA, &x, err));
  const bool packed = x->dtype == OPIPE_UINT8;
  if (!packed && x->dtype != OPIPE_INT4 && x->dtype != OPIPE_UINT4 && x->dtype != OPIPE_INT8) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "input '%s' (data) is of type %s, not int4, uint4, int8 or uint8", x->name,
                         opi_dtype_name(x->dtype));
  }
  q->rank = (uint32_t)x->rank;
  OPI_TRY(opi_axis_attr(b, node, "gather_axis", 0, q->rank, &q->gather, err));
  OPI_TRY(opi_axis_attr(b, node, "quantize_axis", 1, q->rank, &q->quantize, err));
  OPI_TRY(opi_int_attr(b, node, "block_size", 128, &q->block, err));
  OPI_TRY(opi_int_attr(b, node, "bits", 4, &q->bits, err));
  if (q->block < 16 || (q->block & (q->block - 1)) != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute block_size is %" PRId64 ", no power of two from 16 on",
                         q->block);
  }
  if (packed && q->bits != 2 && q->bits != 4 && q->bits != 8) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "attribute bits is %" PRId64 ", not 2, 4 or 8", q->bits);
  }
  q->per_byte = packed ? 8 / q->bits : 1;
  if (q->per_byte > 1 && (q->gather == q->quantize || q->gather != 0)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "picks packed numbers along axis %u, scaled along axis %u: 0 and another "
                         "are needed",
                         q->gather, q->quantize);
  }
  q->extent = x->shape[q->quantize] * (q->quantize + 1 == q->rank ? q->per_byte : 1);
  return OPIPE_OK;
}

/* Scales have the table's shape, in blocks along quantize_axis; zero points are as many. */
static opipe_status check_scales(opi_builder *b, const blocks *q, opipe_error *err) {
  const opi_node *node = q->node;
  OPI_TRY(opi_need(b, node, IN_INDICES, "indices", OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
  OPI_TRY(opi_need(b, node, IN_SCALES, "scales", OPI_T_FLOAT, 1, OPIPE_MAX_RANK, err));
  const opi_value *x = opi_input(b, node, IN_DATA), *scales = opi_input(b, node, IN_SCALES);
  const opi_value *zero = opi_input(b, node, IN_ZERO);
  if (scales->dtype == OPIPE_DOUBLE) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input '%s' (scales) is of type double",
                         scales->name);
  }
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t d = 0; d < q->rank; ++d) {
    const int64_t whole = x->shape[d] * (d + 1 == q->rank ? q->per_byte : 1);
    shape[d] = d == q->quantize ? (whole + q->block - 1) / q->block : whole;
  }
  OPI_TRY(opi_need_shape(b, node, IN_SCALES, shape, q->rank, err));
  if (zero == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_need_same_type(b, node, IN_DATA, IN_ZERO, err));
  shape[q->rank - 1] = (shape[q->rank - 1] + q->per_byte - 1) / q->per_byte;
  return opi_need_shape(b, node, IN_ZERO, shape, q->rank, err);
}

static opipe_status gather(opi_builder *b, uint32_t table, uint32_t indices, uint32_t axis,
                           uint32_t *out, opipe_error *err) {
  const uint32_t in[2] = {table, indices};
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", axis);
  return opi_k_one(b, "Gather", 0, in, 2, &attrs, out, err);
}

/* The table's entries; where they are no whole bytes, of the table in bytes. */
static opipe_status pick(opi_builder *b, const blocks *q, uint32_t table, uint32_t indices,
                         uint32_t *out, opipe_error *err) {
  const opi_value *x = opi_b_value(b, table);
  uint64_t bits = opi_dtype_bits(x->dtype);
  for (uint32_t d = q->gather + 1; d < q->rank; ++d)
    bits *= (uint64_t)x->shape[d];
  if (bits % 8 != 0) {
    const uint32_t bytes = x->dtype == OPIPE_INT4 ? OPIPE_INT8 : OPIPE_UINT8;
    OPI_TRY(opi_k_cast(b, table, bytes, &table, err));
  }
  return gather(b, table, indices, q->gather, out, err);
}

/* x op a number, in int32. */
static opipe_status with_number(opi_builder *b, const char *op, uint32_t x, int64_t number,
                                uint32_t *out, opipe_error *err) {
  opi_attrs attrs = {.n = 0};
  uint32_t in[2] = {x, opi_b_const_scalar(b, OPIPE_INT32, (double)number)};
  OPI_TRY(opi_k_const(in[1], err));
  if (strcmp(op, "Mod") == 0)
    opi_attrs_int(&attrs, "fmod", 0);
  return opi_k_one(b, op, 0, in, 2, &attrs, out, err);
}

/* Codes of int32, unpacked: `extent` of them along the last axis. */
static opipe_status unpack(opi_builder *b, const blocks *q, uint32_t x, int64_t extent,
                           uint32_t *out, opipe_error *err) {
  uint32_t parts[8];
  int64_t shape[OPIPE_MAX_RANK];
  OPI_TRY(opi_k_cast(b, x, OPIPE_INT32, out, err));
  if (q->per_byte == 1)
    return OPIPE_OK;
  const uint32_t rank = opi_rank_of(b, *out);
  for (int64_t p = 0; p < q->per_byte; ++p) {
    parts[p] = *out;
    if (p > 0)
      OPI_TRY(with_number(b, "Div", parts[p], INT64_C(1) << (q->bits * p), &parts[p], err));
    OPI_TRY(with_number(b, "Mod", parts[p], INT64_C(1) << q->bits, &parts[p], err));
  }
  memcpy(shape, opi_shape_of(b, *out), rank * sizeof(*shape));
  shape[rank - 1] *= q->per_byte;
  OPI_TRY(opi_stack(b, q->node, parts, (uint32_t)q->per_byte, rank, out, err));
  OPI_TRY(opi_k_reshape(b, *out, shape, rank, out, err));
  return shape[rank - 1] == extent ? OPIPE_OK : opi_k_slice(b, *out, rank - 1, 0, extent, out, err);
}

/* The block of every entry along the picked numbers' axis that was quantize_axis. */
static opipe_status spread(opi_builder *b, const blocks *q, uint32_t x, uint32_t *out,
                           opipe_error *err) {
  int64_t *list = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)q->extent);
  const uint32_t more = opi_rank_of(b, q->node->in[IN_INDICES]);
  uint32_t indices;
  *out = x;
  if (q->gather == q->quantize)
    return OPIPE_OK;
  if (list == NULL)
    return opi_fail_nomem(err, (uint64_t)q->extent * 8, "blocks");
  for (int64_t i = 0; i < q->extent; ++i)
    list[i] = i / q->block;
  OPI_TRY(opi_ints_value(b, list, (uint32_t)q->extent, &indices, err));
  const uint32_t axis = q->quantize < q->gather ? q->quantize : q->quantize - 1 + more;
  return gather(b, x, indices, axis, out, err);
}

/* The blocks of picked entries, where entries are picked along the axis that has blocks. */
static opipe_status block_indices(opi_builder *b, const blocks *q, uint32_t *out,
                                  opipe_error *err) {
  const uint32_t dtype = opi_input(b, q->node, IN_INDICES)->dtype;
  uint32_t n, zero, block, below, wrapped;
  *out = q->node->in[IN_INDICES];
  if (q->gather != q->quantize)
    return OPIPE_OK;
  OPI_TRY(opi_k_const(n = opi_b_const_scalar(b, dtype, (double)q->extent), err));
  OPI_TRY(opi_k_const(zero = opi_b_const_scalar(b, dtype, 0), err));
  OPI_TRY(opi_k_const(block = opi_b_const_scalar(b, dtype, (double)q->block), err));
  OPI_TRY(opi_b_op2(b, "Less", *out, zero, &below, err));
  OPI_TRY(opi_b_op2(b, "Add", *out, n, &wrapped, err));
  OPI_TRY(opi_k_where(b, below, wrapped, *out, out, err));
  return opi_b_op2(b, "Div", *out, block, out, err);
}

opipe_status opi_ms_gather_blocks_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  blocks q = {.node = node};
  uint32_t codes, scales, zeros, where;
  OPI_TRY(check_form(b, &q, err));
  OPI_TRY(check_scales(b, &q, err));
  const opi_value *scale = opi_input(b, node, IN_SCALES), *x = opi_input(b, node, IN_DATA);
  const uint32_t dtype = scale->dtype;
  const int64_t last = x->shape[q.rank - 1] * q.per_byte, n_last = scale->shape[q.rank - 1];
  const bool is_packed = x->dtype == OPIPE_UINT8;
  OPI_TRY(pick(b, &q, node->in[IN_DATA], node->in[IN_INDICES], &codes, err));
  OPI_TRY(unpack(b, &q, codes, last, &codes, err));
  OPI_TRY(block_indices(b, &q, &where, err));
  OPI_TRY(gather(b, node->in[IN_SCALES], where, q.gather, &scales, err));
  OPI_TRY(spread(b, &q, scales, &scales, err));
  if (opi_node_in(node, IN_ZERO) != OPIPE_NONE) {
    OPI_TRY(pick(b, &q, node->in[IN_ZERO], where, &zeros, err));
    OPI_TRY(unpack(b, &q, zeros, n_last, &zeros, err));
    OPI_TRY(spread(b, &q, zeros, &zeros, err));
    OPI_TRY(opi_b_op2(b, "Sub", codes, zeros, &codes, err));
  } else if (is_packed) {
    OPI_TRY(with_number(b, "Sub", codes, INT64_C(1) << (q.bits - 1), &codes, err));
  }
  OPI_TRY(opi_k_cast(b, codes, OPIPE_FLOAT, &codes, err));
  OPI_TRY(opi_k_cast(b, scales, OPIPE_FLOAT, &scales, err));
  OPI_TRY(opi_b_op2(b, "Mul", codes, scales, &codes, err));
  OPI_TRY(opi_k_cast(b, codes, dtype, &codes, err));
  return opi_b_result(b, node, 0, codes, err);
}
