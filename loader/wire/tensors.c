/* SPDX-License-Identifier: Apache-2.0 */
/* TensorProto -> dense tensor: type and dimensions checked, content found in the file or beside it.
 *
 * Nothing is copied but what has to be decoded, and small tensors that lie unaligned in the file
 * (up to OPI_WIRE_ALIGN_BYTES, and OPI_WIRE_ALIGN_TOTAL of them): most of what passes read as
 * numbers.
 */
#include "loader/wire/wire.h"

/* Alignment that the type requires. */
static uint32_t element_align(uint32_t dtype) {
  const uint32_t n_bytes = opi_dtype_bits(dtype) / 8;
  if (n_bytes <= 1)
    return 1;
  return n_bytes > 8 ? 8 : n_bytes;
}

/* The copies are no more than what the files hold, so they do not count against the budget. */
static opipe_status align_small(opi_load *load, opi_dense *dense, opipe_error *err) {
  if (load->model == NULL || dense->data == NULL)
    return OPIPE_OK;
  if ((uintptr_t)dense->data % element_align(dense->dtype) == 0)
    return OPIPE_OK;
  if (dense->n_bytes > OPI_WIRE_ALIGN_BYTES)
    return OPIPE_OK;
  if (load->aligned_bytes + dense->n_bytes > OPI_WIRE_ALIGN_TOTAL)
    return OPIPE_OK;
  load->aligned_bytes += dense->n_bytes;
  load->arena->limit_bytes += dense->n_bytes + 64;
  dense->data = opi_arena_copy(load->arena, dense->data, dense->n_bytes);
  return dense->data != NULL ? OPIPE_OK : opi_fail_nomem(err, dense->n_bytes, "a small tensor");
}

static opipe_status read_shape(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *dense,
                               opipe_error *err) {
  if (tensor->n_dims > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_LIMIT, "tensor '%s' has %zu dimensions; the limit is %d",
                    dense->name, tensor->n_dims, OPIPE_MAX_RANK);
  }
  dense->rank = (uint32_t)tensor->n_dims;
  int64_t *shape = OPI_ARENA_ARRAY(load->arena, int64_t, dense->rank);
  if (shape == NULL)
    return opi_fail_nomem(err, 8 * (uint64_t)dense->rank, "dimensions");
  for (uint32_t d = 0; d < dense->rank; ++d) {
    shape[d] = tensor->dims[d];
    if (shape[d] < 0) {
      return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': dimension %u is %lld", dense->name, d,
                      (long long)shape[d]);
    }
  }
  dense->shape = shape;
  return OPIPE_OK;
}

opipe_status opi_wire_tensor(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *out,
                             opipe_error *err) {
  *out = (opi_dense){.name = opi_wire_text(tensor->name), .dtype = (uint32_t)tensor->data_type};
  OPI_TRY(read_shape(load, tensor, out, err));
  if (out->dtype == OPIPE_STRING)
    return OPIPE_OK; /* refused by whoever uses it */
  if (opi_dtype_bits(out->dtype) == 0) {
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s' has the unknown element type %d", out->name,
                    tensor->data_type);
  }
  if (!opi_tensor_bytes(out->dtype, out->shape, out->rank, &out->n_bytes)) {
    char shape[128];
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': the size of %s %s overflows", out->name,
                    opi_dtype_name(out->dtype),
                    opi_shape_text(shape, sizeof(shape), out->shape, out->rank));
  }
  if (tensor->data_location == 1) {
    const uint8_t *data = NULL;
    OPI_TRY(opi_external_find(load, tensor, out->n_bytes, &data, err));
    OPI_TRY(opi_wire_no_content(load, tensor, err));
    out->data = data;
    out->missing = data == NULL;
  } else if (tensor->data_location == 0) {
    OPI_TRY(opi_wire_content(load, tensor, out, err));
  } else {
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': unknown data_location %d", out->name,
                    tensor->data_location);
  }
  return align_small(load, out, err);
}

opipe_status opi_tensor_parse(const void *bytes, uint64_t n_bytes, opi_arena *arena,
                              opi_value *out_tensor, opipe_error *err) {
  opi_load load = {.allocator = arena->allocator,
                   .arena = arena,
                   .file = bytes,
                   .file_bytes = n_bytes,
                   .dir = -1};
  opi_arena_init(&load.parse, arena->allocator, 0);
  opi_scan scan;
  ProtobufCMessage *message = NULL;
  opi_dense dense;
  opipe_status status =
      opi_wire_unpack(bytes, n_bytes, OPI_MSG_TENSOR, 0, &load.parse, &scan, &message, err);
  if (status >= 0)
    status = opi_wire_tensor(&load, (OpiOnnx__TensorProto *)message, &dense, err);
  if (status >= 0 && dense.dtype == OPIPE_STRING)
    status = opi_fail(err, OPIPE_E_UNSUPPORTED, "tensor '%s' holds strings", dense.name);
  if (status >= 0) {
    const char *name = opi_arena_strdup(arena, dense.name);
    const void *data = opi_arena_copy(arena, dense.data, dense.n_bytes);
    if (name == NULL || data == NULL) {
      status = opi_fail_nomem(err, dense.n_bytes, "a tensor");
    } else {
      *out_tensor = (opi_value){.name = name,
                                .shape = (int64_t *)(uintptr_t)dense.shape,
                                .data = data,
                                .n_bytes = dense.n_bytes,
                                .rank = (int32_t)dense.rank,
                                .dtype = dense.dtype,
                                .producer = OPIPE_NONE,
                                .source = OPIPE_NONE};
    }
  }
  opi_arena_release(&load.parse);
  return status;
}
