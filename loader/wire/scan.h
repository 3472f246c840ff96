/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf's wire format, read without recursion and without touching long fields.
 *
 * opi_wire_next steps over one field without reading the content of length-delimited fields, so
 * weights of a mapped file stay on disk. The pre-scan checks a whole message against the format's
 * structure, then writes the copy that protobuf-c parses: known fields only, with tensor content
 * replaced by its place in the file.
 */
#ifndef OPI_WIRE_SCAN_H
#define OPI_WIRE_SCAN_H

#include "loader/base/base.h"

enum { OPI_WIRE_VARINT = 0, OPI_WIRE_FIXED64 = 1, OPI_WIRE_BYTES = 2, OPI_WIRE_FIXED32 = 5 };

enum {
  OPI_WIRE_MAX_DEPTH = 64,          /* nested messages */
  OPI_WIRE_MAX_ITEMS = 1 << 24,     /* messages, strings: for each kind */
  OPI_WIRE_MAX_COPY_BYTES = 1 << 30 /* limit on the copy for protobuf-c */
};

/* One field of a message; offsets count from the buffer's first byte. */
typedef struct opi_wire_field {
  uint64_t start;   /* of the tag */
  uint64_t data;    /* of the content, after any length */
  uint64_t n_bytes; /* of the content */
  uint64_t end;     /* data + n_bytes: start of the next field */
  uint64_t value;   /* VARINT: the number */
  uint32_t number;
  uint32_t wire; /* OPI_WIRE_* */
} opi_wire_field;

/* Reads a varint of at most 10 bytes that ends before `end`, and advances *io_at. False if
 * malformed. */
bool opi_wire_varint(const uint8_t *bytes, uint64_t end, uint64_t *io_at, uint64_t *out);
/* Reads the field at *io_at (< end) and advances *io_at. False if malformed: a bad tag, a group, a
 * length beyond `end`. */
bool opi_wire_next(const uint8_t *bytes, uint64_t end, uint64_t *io_at, opi_wire_field *out);
/* Length of `value` as a varint; writes it to `out` unless that is NULL. */
uint32_t opi_wire_put_varint(uint8_t *out, uint64_t value);
/* Little-endian numbers at any alignment. */
uint64_t opi_wire_fixed(const uint8_t *bytes, uint32_t n_bytes);

/* ---- the format's messages ---- */

typedef enum opi_message {
  OPI_MSG_MODEL,
  OPI_MSG_OPSET,
  OPI_MSG_CONFIGURATION,
  OPI_MSG_NODE_CONFIGURATION,
  OPI_MSG_SHARDING,
  OPI_MSG_DEVICE_GROUP,
  OPI_MSG_SHARDED_DIM,
  OPI_MSG_SIMPLE_SHARDING,
  OPI_MSG_GRAPH,
  OPI_MSG_NODE,
  OPI_MSG_ATTRIBUTE,
  OPI_MSG_TENSOR,
  OPI_MSG_SPARSE_TENSOR,
  OPI_MSG_ENTRY,
  OPI_MSG_VALUE_INFO,
  OPI_MSG_TYPE,
  OPI_MSG_TYPE_TENSOR,
  OPI_MSG_TYPE_SEQUENCE,
  OPI_MSG_TYPE_MAP,
  OPI_MSG_TYPE_OPTIONAL,
  OPI_MSG_SHAPE,
  OPI_MSG_DIMENSION,
  OPI_MSG_FUNCTION,
  OPI_MSG_COUNT
} opi_message;

typedef enum opi_field_kind {
  OPI_FIELD_INT,     /* varint */
  OPI_FIELD_FIXED32, /* float */
  OPI_FIELD_TEXT,    /* UTF-8 without NUL */
  OPI_FIELD_BYTES,   /* without NUL */
  OPI_FIELD_MESSAGE,
  OPI_FIELD_INTS,   /* repeated varint, packed or not */
  OPI_FIELD_FLOATS, /* repeated fixed32, packed or not */
  OPI_FIELD_CONTENT /* a tensor's elements, of any wire type; not copied */
} opi_field_kind;

typedef struct opi_field_rule {
  uint16_t number;
  uint8_t kind;     /* opi_field_kind */
  uint8_t repeated; /* otherwise at most once */
  uint8_t child;    /* opi_message, for MESSAGE */
  uint8_t group;    /* fields of the same group > 0 are mutually exclusive */
  const char *name;
} opi_field_rule;

typedef struct opi_message_rule {
  const char *name;
  const opi_field_rule *fields;
  uint32_t n_fields;
  uint32_t tree_bytes; /* of the unpacked structure */
} opi_message_rule;

const opi_message_rule *opi_message_rules(opi_message message);
/* NULL: not a field that the loader reads. */
const opi_field_rule *opi_message_field(opi_message message, uint32_t number);

/* ---- the pre-scan ---- */

typedef struct opi_scan {
  uint64_t copy_bytes;    /* of the copy for protobuf-c */
  uint64_t tree_bytes;    /* upper bound on the memory for unpacking that copy */
  uint64_t content_bytes; /* of tensors, not copied */
  uint64_t n_messages[OPI_MSG_COUNT];
  uint64_t n_strings;
} opi_scan;

/* Checks the message `root` in bytes [n_bytes]: structure, depth, lengths, varints, wire types,
 * repeats of single fields, UTF-8, NULs, counts; and that tree and copy fit the budget (0: 64 MiB +
 * 16 bytes for each byte that is not tensor content). Errors: OPIPE_E_INVALID with offset, message
 * and field; OPIPE_E_LIMIT with both numbers. */
opipe_status opi_prescan(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                         uint64_t budget_bytes, opi_scan *out_scan, opipe_error *err);
/* Writes the copy, exactly scan->copy_bytes of it. */
opipe_status opi_prescan_copy(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                              const opi_scan *scan, uint8_t *out_copy, opipe_error *err);
/* The effective budget, in bytes, for the scan of a message. */
uint64_t opi_scan_budget(const opi_scan *scan, uint64_t n_bytes, uint64_t budget_bytes);

#endif /* OPI_WIRE_SCAN_H */
