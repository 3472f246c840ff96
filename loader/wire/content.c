/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor's content inside the message: raw_data or a typed field, found again in the file by the
 * span that the pre-scan noted.
 *
 * raw_data, float_data and double_data that stand in one piece are used where they are (aligned
 * copies of small ones apart); varint fields are decoded to dense little-endian elements. Sub-byte
 * types hold several elements in each int32_data entry, as in raw_data.
 */
#include <string.h>

#include "loader/wire/wire.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are used as the file has them");

enum {
  RAW_DATA = 9,
  FLOAT_DATA = 4,
  INT32_DATA = 5,
  INT64_DATA = 7,
  DOUBLE_DATA = 10,
  UINT64_DATA = 11,
  STRING_DATA = 6
};

/* Which typed field holds a type, in what units. */
typedef struct typed_form {
  uint32_t field;      /* number; 0: none */
  uint32_t unit_bytes; /* of one entry, dense */
  int64_t low, high;   /* of one int32_data entry */
} typed_form;

static typed_form form_of(uint32_t dtype) {
  const uint32_t bits = opi_dtype_bits(dtype);
  switch (dtype) {
    case OPIPE_FLOAT:
    case OPIPE_COMPLEX64:
      return (typed_form){FLOAT_DATA, 4, 0, 0};
    case OPIPE_DOUBLE:
    case OPIPE_COMPLEX128:
      return (typed_form){DOUBLE_DATA, 8, 0, 0};
    case OPIPE_INT64:
      return (typed_form){INT64_DATA, 8, INT64_MIN, INT64_MAX};
    case OPIPE_UINT64:
      return (typed_form){UINT64_DATA, 8, INT64_MIN, INT64_MAX};
    case OPIPE_UINT32:
      return (typed_form){UINT64_DATA, 4, 0, UINT32_MAX};
    case OPIPE_INT32:
      return (typed_form){INT32_DATA, 4, INT32_MIN, INT32_MAX};
    case OPIPE_BOOL:
      return (typed_form){INT32_DATA, 1, 0, 1};
    default:
      break;
  }
  if (bits == 16)
    return (typed_form){INT32_DATA, 2, INT16_MIN, UINT16_MAX};
  if (bits != 0 && bits <= 8)
    return (typed_form){INT32_DATA, 1, INT8_MIN, UINT8_MAX};
  return (typed_form){0, 0, 0, 0};
}

/* One pass over the tensor's fields. */
typedef struct content {
  const OpiOnnx__TensorProto *tensor;
  const uint8_t *file;
  const char *name;
  opi_wire_field raw;   /* n_bytes of it, if has_raw */
  opi_wire_field piece; /* the last packed piece of the typed field */
  uint64_t n_pieces;    /* of the typed field, single entries included */
  bool has_raw, has_other;
} content;

static opipe_status damaged(const content *c, opipe_error *err) {
  return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': its content is malformed", c->name);
}

static opipe_status look(content *c, uint32_t typed, opipe_error *err) {
  uint64_t at = c->tensor->span_offset;
  const uint64_t end = at + c->tensor->span_bytes;
  opi_wire_field field;
  while (at < end) {
    if (!opi_wire_next(c->file, end, &at, &field))
      return damaged(c, err);
    const bool holds = field.wire != OPI_WIRE_BYTES || field.n_bytes != 0;
    if (field.number == RAW_DATA) {
      if (field.wire != OPI_WIRE_BYTES)
        return damaged(c, err);
      c->raw = field;
      c->has_raw = true;
    } else if (field.number == typed && holds) {
      c->piece = field;
      ++c->n_pieces;
    } else if (holds && field.number >= FLOAT_DATA && field.number <= UINT64_DATA &&
               field.number != 8) {
      c->has_other = true;
    }
  }
  return OPIPE_OK;
}

/* Appends entries of a varint field to dense[...]; *io_n counts those there, `room` those expected.
 */
static opipe_status decode_ints(const content *c, const opi_wire_field *field,
                                const typed_form *form, uint8_t *dense, uint64_t room,
                                uint64_t *io_n, opipe_error *err) {
  uint64_t at = field->data, value = 0;
  if (field->wire != OPI_WIRE_BYTES && field->wire != OPI_WIRE_VARINT)
    return damaged(c, err);
  for (; at < field->end; ++*io_n) {
    if (!opi_wire_varint(c->file, field->end, &at, &value))
      return damaged(c, err);
    if (*io_n == room) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "tensor '%s' holds more than the %llu entries of its "
                      "type and dimensions",
                      c->name, (unsigned long long)room);
    }
    const int64_t entry = (int64_t)value;
    if (entry < form->low || entry > form->high) {
      return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': entry %llu is %lld, outside [%lld, %lld]",
                      c->name, (unsigned long long)*io_n, (long long)entry, (long long)form->low,
                      (long long)form->high);
    }
    for (uint32_t b = 0; b < form->unit_bytes; ++b)
      dense[*io_n * form->unit_bytes + b] = (uint8_t)(value >> (8 * b));
  }
  return OPIPE_OK;
}

static opipe_status copy_fixed(const content *c, const opi_wire_field *field,
                               const typed_form *form, uint8_t *dense, uint64_t room,
                               uint64_t *io_n, opipe_error *err) {
  const uint32_t single = form->unit_bytes == 4 ? OPI_WIRE_FIXED32 : OPI_WIRE_FIXED64;
  if (field->wire != OPI_WIRE_BYTES && field->wire != single)
    return damaged(c, err);
  if (field->n_bytes % form->unit_bytes != 0)
    return damaged(c, err);
  const uint64_t n = field->n_bytes / form->unit_bytes;
  if (n > room - *io_n) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%s' holds more than the %llu entries of its type and dimensions",
                    c->name, (unsigned long long)room);
  }
  memcpy(dense + *io_n * form->unit_bytes, c->file + field->data, field->n_bytes);
  *io_n += n;
  return OPIPE_OK;
}

static opipe_status wrong_size(const content *c, const opi_dense *dense, uint64_t found,
                               opipe_error *err) {
  char shape[128];
  return opi_fail(err, OPIPE_E_INVALID,
                  "tensor '%s' (%s %s) needs %llu bytes of content, the file has %llu", c->name,
                  opi_dtype_name(dense->dtype),
                  opi_shape_text(shape, sizeof(shape), dense->shape, dense->rank),
                  (unsigned long long)dense->n_bytes, (unsigned long long)found);
}

/* All pieces of a typed field into memory of their own. */
static opipe_status decode(opi_load *load, const content *c, const typed_form *form,
                           opi_dense *dense, opipe_error *err) {
  const bool fixed = form->field == FLOAT_DATA || form->field == DOUBLE_DATA;
  /* An entry takes at least one byte of the file, or all of its own, so that a claimed size is no
   * way to take memory. */
  const uint64_t least = fixed ? dense->n_bytes : dense->n_bytes / form->unit_bytes;
  if (least > c->tensor->span_bytes)
    return wrong_size(c, dense, c->tensor->span_bytes, err);
  if (fixed && load->model != NULL)
    load->arena->limit_bytes += dense->n_bytes + 64;
  uint8_t *data = opi_arena_alloc(load->arena, dense->n_bytes);
  if (data == NULL)
    return opi_fail_nomem(err, dense->n_bytes, "a tensor's content");
  const uint64_t room = dense->n_bytes / form->unit_bytes;
  const uint64_t end = c->tensor->span_offset + c->tensor->span_bytes;
  uint64_t at = c->tensor->span_offset, n = 0;
  opi_wire_field field;
  while (at < end) {
    if (!opi_wire_next(c->file, end, &at, &field))
      return damaged(c, err);
    if (field.number != form->field)
      continue;
    OPI_TRY(fixed ? copy_fixed(c, &field, form, data, room, &n, err)
                  : decode_ints(c, &field, form, data, room, &n, err));
  }
  if (n != room)
    return wrong_size(c, dense, n * form->unit_bytes, err);
  dense->data = data;
  return OPIPE_OK;
}

static opipe_status absent(opi_load *load, const content *c, opi_dense *dense, opipe_error *err) {
  if (dense->n_bytes == 0) {
    dense->data = opi_arena_alloc(load->arena, 0);
    return dense->data != NULL ? OPIPE_OK : opi_fail_nomem(err, 16, "a tensor");
  }
  if (load->params != NULL && (load->params->flags & OPI_LOAD_GRAPH_ONLY) != 0 && !c->has_other) {
    dense->missing = true;
    return OPIPE_OK;
  }
  return wrong_size(c, dense, 0, err);
}

opipe_status opi_wire_no_content(opi_load *load, const OpiOnnx__TensorProto *tensor,
                                 opipe_error *err) {
  content c = {.tensor = tensor, .file = load->file, .name = opi_wire_text(tensor->name)};
  OPI_TRY(look(&c, 0, err));
  if (!c.has_other && (!c.has_raw || c.raw.n_bytes == 0))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "tensor '%s' has content in the file and in external data",
                  c.name);
}

opipe_status opi_wire_content(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *dense,
                              opipe_error *err) {
  content c = {.tensor = tensor, .file = load->file, .name = dense->name};
  const typed_form form = form_of(dense->dtype);
  OPI_TRY(look(&c, form.field, err));
  if (c.has_raw && c.raw.n_bytes != 0 && (c.n_pieces != 0 || c.has_other)) {
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s' has both raw_data and a typed field",
                    c.name);
  }
  if (c.has_other) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%s' of type %s holds its content in the field of another type", c.name,
                    opi_dtype_name(dense->dtype));
  }
  if (c.n_pieces == 0 && (!c.has_raw || c.raw.n_bytes == 0))
    return absent(load, &c, dense, err);
  if (c.n_pieces == 0) {
    if (c.raw.n_bytes != dense->n_bytes)
      return wrong_size(&c, dense, c.raw.n_bytes, err);
    dense->data = load->file + c.raw.data;
    return OPIPE_OK;
  }
  const bool fixed = form.field == FLOAT_DATA || form.field == DOUBLE_DATA;
  if (fixed && c.n_pieces == 1 && c.piece.wire == OPI_WIRE_BYTES) {
    if (c.piece.n_bytes != dense->n_bytes)
      return wrong_size(&c, dense, c.piece.n_bytes, err);
    dense->data = load->file + c.piece.data;
    return OPIPE_OK;
  }
  return decode(load, &c, &form, dense, err);
}
