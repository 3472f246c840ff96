/* SPDX-License-Identifier: Apache-2.0 */
/* One field of the wire format at a time: tags, varints, lengths. Everything is bounded by the
 * enclosing message's end; the content of length-delimited fields is never read here.
 */
#include "loader/wire/scan.h"

bool opi_wire_varint(const uint8_t *bytes, uint64_t end, uint64_t *io_at, uint64_t *out) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < 10; ++i) {
    if (*io_at >= end)
      return false;
    const uint8_t byte = bytes[(*io_at)++];
    if (i == 9 && byte > 1)
      return false; /* more than 64 bits */
    value |= (uint64_t)(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      *out = value;
      return true;
    }
  }
  return false;
}

bool opi_wire_next(const uint8_t *bytes, uint64_t end, uint64_t *io_at, opi_wire_field *out) {
  uint64_t tag = 0;
  out->start = *io_at;
  if (!opi_wire_varint(bytes, end, io_at, &tag))
    return false;
  const uint64_t number = tag >> 3;
  if (number == 0 || number > (1u << 29) - 1)
    return false;
  out->number = (uint32_t)number;
  out->wire = (uint32_t)(tag & 7);
  out->value = 0;
  out->data = *io_at;
  switch (out->wire) {
    case OPI_WIRE_VARINT:
      if (!opi_wire_varint(bytes, end, io_at, &out->value))
        return false;
      out->n_bytes = *io_at - out->data;
      break;
    case OPI_WIRE_FIXED64:
      out->n_bytes = 8;
      break;
    case OPI_WIRE_FIXED32:
      out->n_bytes = 4;
      break;
    case OPI_WIRE_BYTES:
      if (!opi_wire_varint(bytes, end, io_at, &out->n_bytes))
        return false;
      out->data = *io_at;
      break;
    default:
      return false;
  }
  if (out->n_bytes > end - out->data)
    return false;
  out->end = out->data + out->n_bytes;
  *io_at = out->end;
  return true;
}

uint32_t opi_wire_put_varint(uint8_t *out, uint64_t value) {
  uint32_t n = 0;
  do {
    const uint8_t more = value > 0x7f ? 0x80 : 0;
    if (out != NULL)
      out[n] = (uint8_t)((value & 0x7f) | more);
    ++n;
    value >>= 7;
  } while (value != 0);
  return n;
}

uint64_t opi_wire_fixed(const uint8_t *bytes, uint32_t n_bytes) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < n_bytes; ++i)
    value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}
