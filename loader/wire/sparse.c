/* SPDX-License-Identifier: Apache-2.0 */
/* SparseTensorProto -> dense tensor: zeros with the listed values put in, up to a stated size.
 * Indices are either positions in the flattened tensor [n] or coordinates [n, rank]; each must lie
 * inside.
 */
#include "loader/wire/wire.h"

#include <string.h>

static opipe_status fail(const opi_dense *dense, opipe_error *err, opipe_status status,
                         const char *what) {
  return opi_fail(err, status, "sparse tensor '%.200s': %s", dense->name, what);
}

static opipe_status read_parts(opi_load *load, const OpiOnnx__SparseTensorProto *sparse,
                               opi_dense *values, opi_dense *indices, opipe_error *err) {
  if (sparse->values == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "sparse tensor without values");
  OPI_TRY(opi_wire_tensor(load, sparse->values, values, err));
  if (sparse->indices == NULL)
    return fail(values, err, OPIPE_E_INVALID, "has no indices");
  OPI_TRY(opi_wire_tensor(load, sparse->indices, indices, err));
  if (values->missing || indices->missing)
    return fail(values, err, OPIPE_E_UNSUPPORTED, "its content was not shipped");
  if (values->rank != 1 || opi_dtype_bits(values->dtype) % 8 != 0 ||
      opi_dtype_bits(values->dtype) == 0)
    return fail(values, err, OPIPE_E_UNSUPPORTED, "values are not a vector of whole-byte elements");
  const uint32_t rank = indices->rank;
  if (indices->dtype != OPIPE_INT64 || rank < 1 || rank > 2 ||
      indices->shape[0] != values->shape[0] ||
      (rank == 2 && indices->shape[1] != (int64_t)sparse->n_dims))
    return fail(values, err, OPIPE_E_INVALID, "indices are not int64 [n] or [n, rank]");
  return OPIPE_OK;
}

/* Position of entry i in the flattened tensor; false when it lies outside. */
static bool position(const opi_dense *dense, const opi_dense *indices, uint64_t i, uint64_t n_elems,
                     uint64_t *out) {
  const uint8_t *raw = indices->data;
  const uint32_t n = indices->rank == 1 ? 1 : dense->rank;
  uint64_t at = 0;
  for (uint32_t d = 0; d < n; ++d) {
    int64_t index = 0;
    memcpy(&index, raw + (i * n + d) * sizeof(index), sizeof(index));
    const uint64_t extent = indices->rank == 1 ? n_elems : (uint64_t)dense->shape[d];
    if (index < 0 || (uint64_t)index >= extent)
      return false;
    at = at * extent + (uint64_t)index;
  }
  *out = at;
  return at < n_elems;
}

static opipe_status fill(opi_load *load, const opi_dense *values, const opi_dense *indices,
                         opi_dense *dense, opipe_error *err) {
  const uint64_t n_values = (uint64_t)values->shape[0];
  const uint64_t elem = opi_dtype_bits(dense->dtype) / 8;
  uint8_t *data = opi_arena_alloc(load->arena, dense->n_bytes);
  if (data == NULL)
    return opi_fail_nomem(err, dense->n_bytes, "a sparse tensor");
  for (uint64_t i = 0; i < n_values; ++i) {
    uint64_t at = 0;
    if (!position(dense, indices, i, dense->n_bytes / elem, &at))
      return fail(dense, err, OPIPE_E_INVALID, "an index lies outside its dimensions");
    memcpy(data + at * elem, (const uint8_t *)values->data + i * elem, elem);
  }
  dense->data = data;
  return OPIPE_OK;
}

opipe_status opi_wire_sparse(opi_load *load, const OpiOnnx__SparseTensorProto *sparse,
                             opi_dense *out, opipe_error *err) {
  opi_dense values, indices;
  OPI_TRY(read_parts(load, sparse, &values, &indices, err));
  *out = (opi_dense){.name = values.name, .dtype = values.dtype};
  if (sparse->n_dims > OPIPE_MAX_RANK)
    return fail(out, err, OPIPE_E_LIMIT, "has more than 16 dimensions");
  out->rank = (uint32_t)sparse->n_dims;
  out->shape = opi_arena_copy(load->arena, sparse->dims, sparse->n_dims * sizeof(int64_t));
  if (out->shape == NULL)
    return opi_fail_nomem(err, 8 * sparse->n_dims, "dimensions");
  if (!opi_tensor_bytes(out->dtype, out->shape, out->rank, &out->n_bytes))
    return fail(out, err, OPIPE_E_INVALID, "its size overflows or a dimension is negative");
  if (out->n_bytes > OPI_WIRE_MAX_SPARSE) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "sparse tensor '%.200s' would take %llu bytes as a dense one; the limit is %d",
                    out->name, (unsigned long long)out->n_bytes, OPI_WIRE_MAX_SPARSE);
  }
  return fill(load, &values, &indices, out, err);
}
