/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-scan: one loop over the fields with an explicit stack of 64 messages, run twice - first
 * to check and to measure, then to write the copy for protobuf-c. Both runs take the same
 * decisions, and the second never writes more than the first measured, even if the file changes in
 * between.
 *
 * In the copy every message length takes five bytes, so that a length can be filled in when its
 * message ends.
 */
#include <stdio.h>
#include <string.h>

#include "loader/base/sizes.h"
#include "loader/wire/scan.h"

enum {
  LENGTH_BYTES = 5,   /* of a message's length in the copy */
  SPAN_OFFSET = 1001, /* TensorProto.span_offset */
  SPAN_BYTES = 1002,  /* TensorProto.span_bytes */
  VARINT_MOST = 11,   /* more than the bytes of one */
  FREE_FIELDS = 16,   /* fields of a message that protobuf-c lists on its stack */
  LISTED_FIELD = 96   /* bytes of its list for each further one, doubling included */
};

typedef struct frame {
  uint64_t begin;     /* of the message in the input */
  uint64_t end;       /* the same */
  uint64_t length_at; /* of its length in the copy */
  uint64_t n_fields;
  uint32_t seen;   /* bit per rule */
  uint32_t groups; /* bit per group */
  opi_message message;
} frame;

typedef struct scanner {
  const uint8_t *bytes;
  uint64_t n_bytes;
  uint64_t at;
  uint8_t *copy; /* NULL: measure */
  uint64_t copy_room;
  opi_scan scan;
  frame stack[OPI_WIRE_MAX_DEPTH];
  uint32_t depth;
  opipe_error *err;
} scanner;

/* Length of the UTF-8 sequence at text[0..n), 0: none (NUL, overlong, surrogate, cut off). */
static uint64_t utf8_sequence(const uint8_t *text, uint64_t n) {
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  const uint8_t first = text[0];
  if (first == 0)
    return 0;
  if (first < 0x80)
    return 1;
  const uint32_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || n < length)
    return 0;
  uint32_t code = first & (0x7fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if ((text[i] & 0xc0) != 0x80)
      return 0;
    code = code << 6 | (text[i] & 0x3fu);
  }
  if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
    return 0;
  return length;
}

static bool is_text(const uint8_t *text, uint64_t n) {
  for (uint64_t i = 0; i < n;) {
    const uint64_t length = utf8_sequence(text + i, n - i);
    if (length == 0)
      return false;
    i += length;
  }
  return true;
}

/* ---- errors ---- */

/* Number of the field that names a message; 0: such messages have no name. */
static uint32_t name_field(opi_message message) {
  switch (message) {
    case OPI_MSG_TENSOR:
      return 8;
    case OPI_MSG_NODE:
      return 3;
    case OPI_MSG_FUNCTION:
    case OPI_MSG_ATTRIBUTE:
    case OPI_MSG_VALUE_INFO:
      return 1;
    default:
      return 0;
  }
}

/* Looks for the name of the innermost message that has one; "" if none can be read. */
static void find_name(const scanner *s, char *out_name, size_t room) {
  out_name[0] = '\0';
  for (uint32_t d = s->depth; d > 0 && out_name[0] == '\0'; --d) {
    const frame *f = &s->stack[d - 1];
    const uint32_t number = name_field(f->message);
    uint64_t at = f->begin;
    opi_wire_field field;
    while (number != 0 && at < f->end && opi_wire_next(s->bytes, f->end, &at, &field)) {
      if (field.number != number || field.wire != OPI_WIRE_BYTES || field.n_bytes > 200)
        continue;
      if (!is_text(s->bytes + field.data, field.n_bytes))
        break;
      (void)snprintf(out_name, room, " '%.*s'", (int)field.n_bytes,
                     (const char *)s->bytes + field.data);
      break;
    }
  }
}

static opipe_status bad(scanner *s, uint64_t offset, const opi_field_rule *field,
                        const char *what) {
  const frame *top = &s->stack[s->depth - 1];
  char name[256];
  find_name(s, name, sizeof(name));
  return opi_fail(s->err, OPIPE_E_INVALID, "%s: offset %llu, %s%s%s%s: %s",
                  offset == 0 ? "not an ONNX model" : "malformed model", (unsigned long long)offset,
                  opi_message_rules(top->message)->name, field != NULL ? "." : "",
                  field != NULL ? field->name : "", name, what);
}

static opipe_status too_many(scanner *s, uint64_t found, uint64_t most, const char *what) {
  return opi_fail(s->err, OPIPE_E_LIMIT, "the model has %llu %s by offset %llu; the limit is %llu",
                  (unsigned long long)found, what, (unsigned long long)s->at,
                  (unsigned long long)most);
}

/* Size of n bytes in an arena, with the pointer to them. */
static uint64_t block(uint64_t n) {
  return opi_align_up(n, 16) + 8;
}

/* ---- the copy ---- */

static bool put(scanner *s, const uint8_t *data, uint64_t n) {
  if (s->copy != NULL) {
    if (n > s->copy_room - s->scan.copy_bytes)
      return false;
    memcpy(s->copy + s->scan.copy_bytes, data, n);
  }
  s->scan.copy_bytes += n;
  return true;
}

static bool put_varint(scanner *s, uint64_t value) {
  uint8_t buffer[10];
  return put(s, buffer, opi_wire_put_varint(buffer, value));
}

static bool put_number(scanner *s, uint32_t number, uint64_t value) {
  return put_varint(s, (uint64_t)number << 3 | OPI_WIRE_VARINT) && put_varint(s, value);
}

static opipe_status changed(scanner *s) {
  return opi_fail(s->err, OPIPE_E_INVALID, "the model file changed while it was read (offset %llu)",
                  (unsigned long long)s->at);
}

/* ---- checks ---- */

static bool packed_ints(const scanner *s, const opi_wire_field *field, uint64_t *out_n) {
  uint64_t at = field->data, value = 0;
  *out_n = 0;
  while (at < field->end) {
    if (!opi_wire_varint(s->bytes, field->end, &at, &value))
      return false;
    ++*out_n;
  }
  return true;
}

static opipe_status check_once(scanner *s, frame *top, const opi_wire_field *field,
                               const opi_field_rule *rule) {
  const uint32_t index = (uint32_t)(rule - opi_message_rules(top->message)->fields);
  if (!rule->repeated && (top->seen >> index & 1u) != 0)
    return bad(s, field->start, rule, "occurs twice");
  if (rule->group != 0 && (top->groups >> rule->group & 1u) != 0)
    return bad(s, field->start, rule, "excludes a field that comes before it");
  top->seen |= 1u << index;
  if (rule->group != 0)
    top->groups |= 1u << rule->group;
  if (++top->n_fields > FREE_FIELDS)
    s->scan.tree_bytes += LISTED_FIELD;
  return OPIPE_OK;
}

/* ---- fields ---- */

static opipe_status scan_text(scanner *s, const opi_wire_field *field, const opi_field_rule *rule) {
  const uint8_t *text = s->bytes + field->data;
  if (field->wire != OPI_WIRE_BYTES)
    return bad(s, field->start, rule, "has another wire type");
  if (field->n_bytes != 0 && memchr(text, 0, field->n_bytes) != NULL)
    return bad(s, field->start, rule, "holds a NUL");
  if (rule->kind == OPI_FIELD_TEXT && !is_text(text, field->n_bytes))
    return bad(s, field->start, rule, "is not UTF-8");
  if (++s->scan.n_strings > OPI_WIRE_MAX_ITEMS)
    return too_many(s, s->scan.n_strings, OPI_WIRE_MAX_ITEMS, "strings");
  s->scan.tree_bytes += block(field->n_bytes + 1);
  if (!put(s, s->bytes + field->start, field->end - field->start))
    return changed(s);
  return OPIPE_OK;
}

/* Numbers, one or many, packed or not. */
static opipe_status scan_numbers(scanner *s, const opi_wire_field *field,
                                 const opi_field_rule *rule) {
  const bool ints = rule->kind == OPI_FIELD_INT || rule->kind == OPI_FIELD_INTS;
  const bool many = rule->kind == OPI_FIELD_INTS || rule->kind == OPI_FIELD_FLOATS;
  const uint32_t single = ints ? OPI_WIRE_VARINT : OPI_WIRE_FIXED32;
  uint64_t n = 1;
  if (field->wire == OPI_WIRE_BYTES && many) {
    if (ints && !packed_ints(s, field, &n))
      return bad(s, field->start, rule, "bad varint");
    if (!ints && field->n_bytes % 4 != 0)
      return bad(s, field->start, rule, "its length is not a multiple of 4");
    if (!ints)
      n = field->n_bytes / 4;
  } else if (field->wire != single) {
    return bad(s, field->start, rule, "has another wire type");
  }
  if (many)
    s->scan.tree_bytes += block(8 * n);
  if (!put(s, s->bytes + field->start, field->end - field->start))
    return changed(s);
  return OPIPE_OK;
}

static opipe_status enter(scanner *s, opi_message message, uint64_t begin, uint64_t end) {
  if (s->depth == OPI_WIRE_MAX_DEPTH) {
    return opi_fail(
        s->err, OPIPE_E_LIMIT, "the model nests messages deeper than %d levels (offset %llu, %s)",
        OPI_WIRE_MAX_DEPTH, (unsigned long long)begin, opi_message_rules(message)->name);
  }
  if (++s->scan.n_messages[message] > OPI_WIRE_MAX_ITEMS) {
    return too_many(s, s->scan.n_messages[message], OPI_WIRE_MAX_ITEMS,
                    opi_message_rules(message)->name);
  }
  s->scan.tree_bytes += block(opi_message_rules(message)->tree_bytes);
  frame *top = &s->stack[s->depth++];
  memset(top, 0, sizeof(*top));
  top->begin = begin;
  top->end = end;
  top->message = message;
  top->length_at = s->scan.copy_bytes;
  s->at = begin;
  return OPIPE_OK;
}

/* A message of the root's kind has no tag and no length of its own. */
static opipe_status enter_field(scanner *s, const opi_wire_field *field,
                                const opi_field_rule *rule) {
  static const uint8_t room[LENGTH_BYTES] = {0x80, 0x80, 0x80, 0x80, 0};
  if (field->wire != OPI_WIRE_BYTES)
    return bad(s, field->start, rule, "has another wire type");
  if (!put_varint(s, (uint64_t)field->number << 3 | OPI_WIRE_BYTES))
    return changed(s);
  const uint64_t length_at = s->scan.copy_bytes;
  if (!put(s, room, LENGTH_BYTES))
    return changed(s);
  OPI_TRY(enter(s, (opi_message)rule->child, field->data, field->end));
  s->stack[s->depth - 1].length_at = length_at;
  if (rule->child != OPI_MSG_TENSOR)
    return OPIPE_OK;
  if (!put_number(s, SPAN_OFFSET, field->data) || !put_number(s, SPAN_BYTES, field->n_bytes))
    return changed(s);
  return OPIPE_OK;
}

static void leave(scanner *s) {
  const frame *top = &s->stack[--s->depth];
  if (s->copy == NULL || s->depth == 0)
    return;
  uint64_t n = s->scan.copy_bytes - top->length_at - LENGTH_BYTES;
  for (uint32_t i = 0; i < LENGTH_BYTES; ++i, n >>= 7) {
    const uint8_t more = i + 1 < LENGTH_BYTES ? 0x80 : 0;
    s->copy[top->length_at + i] = (uint8_t)((n & 0x7f) | more);
  }
}

/* The file's own last field reaches beyond its end, and it was a model up to there: bytes that it
 * should have, or at least that many, as others may follow: a graph is nearly all of a file. */
static bool is_truncated(const scanner *s, uint64_t start, uint64_t *out_n, bool *out_least) {
  const frame *top = &s->stack[s->depth - 1];
  uint64_t at = start, tag = 0, length = 0;
  if (s->depth != 1 || top->seen == 0)
    return false;
  *out_n = s->n_bytes + 1;
  *out_least = true;
  if (!opi_wire_varint(s->bytes, top->end, &at, &tag))
    return top->end - start < VARINT_MOST;
  const opi_field_rule *rule = opi_message_field(top->message, (uint32_t)(tag >> 3));
  if (rule == NULL)
    return false;
  if ((tag & 7) != OPI_WIRE_BYTES || !opi_wire_varint(s->bytes, top->end, &at, &length))
    return top->end - at < VARINT_MOST;
  if (length > INT64_MAX / 2)
    return false;
  *out_n = at + length;
  *out_least = rule->kind != OPI_FIELD_MESSAGE;
  return true;
}

static opipe_status bad_field(scanner *s, uint64_t start) {
  uint64_t n = 0;
  bool least = false;
  if (!is_truncated(s, start, &n, &least))
    return bad(s, start, NULL, "bad tag, varint or length");
  return opi_fail(s->err, OPIPE_E_INVALID,
                  "the file ends at %llu of %s%llu bytes: it was cut off, copy or fetch it again",
                  (unsigned long long)s->n_bytes, least ? "at least " : "", (unsigned long long)n);
}

static opipe_status scan_field(scanner *s) {
  frame *top = &s->stack[s->depth - 1];
  opi_wire_field field;
  const uint64_t start = s->at;
  if (!opi_wire_next(s->bytes, top->end, &s->at, &field))
    return bad_field(s, start);
  const opi_field_rule *rule = opi_message_field(top->message, field.number);
  if (rule == NULL)
    return OPIPE_OK;
  OPI_TRY(check_once(s, top, &field, rule));
  switch (rule->kind) {
    case OPI_FIELD_MESSAGE:
      return enter_field(s, &field, rule);
    case OPI_FIELD_CONTENT:
      /* Elements of fixed size are used where they are; varints have to be decoded. */
      if (rule->number == 9 || rule->number == 4 || rule->number == 10)
        s->scan.content_bytes += field.n_bytes;
      return OPIPE_OK;
    case OPI_FIELD_TEXT:
    case OPI_FIELD_BYTES:
      return scan_text(s, &field, rule);
    default:
      return scan_numbers(s, &field, rule);
  }
}

static opipe_status scan_all(scanner *s, opi_message root) {
  OPI_TRY(enter(s, root, 0, s->n_bytes));
  if (root == OPI_MSG_TENSOR &&
      (!put_number(s, SPAN_OFFSET, 0) || !put_number(s, SPAN_BYTES, s->n_bytes)))
    return changed(s);
  while (s->depth > 0) {
    if (s->at == s->stack[s->depth - 1].end)
      leave(s);
    else
      OPI_TRY(scan_field(s));
  }
  return OPIPE_OK;
}

uint64_t opi_scan_budget(const opi_scan *scan, uint64_t n_bytes, uint64_t budget_bytes) {
  if (budget_bytes != 0)
    return budget_bytes;
  const uint64_t rest = n_bytes - scan->content_bytes;
  return rest > UINT64_MAX / 32 ? UINT64_MAX / 2 : (UINT64_C(64) << 20) + 16 * rest;
}

opipe_status opi_prescan(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                         uint64_t budget_bytes, opi_scan *out_scan, opipe_error *err) {
  scanner s = {.bytes = bytes, .n_bytes = n_bytes, .err = err};
  OPI_TRY(scan_all(&s, root));
  const uint64_t budget = opi_scan_budget(&s.scan, n_bytes, budget_bytes);
  const uint64_t need = s.scan.tree_bytes + s.scan.copy_bytes;
  if (need > budget) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "reading the model would take %s of memory (%llu nodes, %llu tensors, "
                    "%llu attributes); the budget is %s",
                    OPI_SIZE(need), (unsigned long long)s.scan.n_messages[OPI_MSG_NODE],
                    (unsigned long long)s.scan.n_messages[OPI_MSG_TENSOR],
                    (unsigned long long)s.scan.n_messages[OPI_MSG_ATTRIBUTE], OPI_SIZE(budget));
  }
  if (s.scan.copy_bytes > OPI_WIRE_MAX_COPY_BYTES)
    return too_many(&s, s.scan.copy_bytes, OPI_WIRE_MAX_COPY_BYTES, "bytes outside its tensors");
  *out_scan = s.scan;
  return OPIPE_OK;
}

opipe_status opi_prescan_copy(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                              const opi_scan *scan, uint8_t *out_copy, opipe_error *err) {
  scanner s = {.bytes = bytes,
               .n_bytes = n_bytes,
               .copy = out_copy,
               .copy_room = scan->copy_bytes,
               .err = err};
  OPI_TRY(scan_all(&s, root));
  return s.scan.copy_bytes == scan->copy_bytes ? OPIPE_OK : changed(&s);
}
