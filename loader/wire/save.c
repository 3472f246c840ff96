/* SPDX-License-Identifier: Apache-2.0 */
/* The model file with other values for some initializers, by surgery on the file's own bytes.
 *
 * As annotate.c: fields are handed on as they stand, in their order, and survive whatever they are.
 * Only the content of a replaced initializer changes, in the field that held it (raw_data, or the
 * typed field of its type), with the lengths of all messages around it: the main graph, or a body
 * in a node, in a function, at any depth. An initializer is found by where its message lies, as the
 * loader noted it (opi_value.at). External content is not here: the files that hold it are written
 * by save_files.c. An input that was made a parameter gets an initializer of its name behind the
 * others; so does a parameter that an Identity handed on of another initializer, in place of that
 * node. Two passes with the same decisions: lengths, then bytes.
 *
 * In the bytes of a built model external tensors are places in the host's memory: every one of them
 * is replaced, by its content or by its place in a file of data.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/graph/behind.h"
#include "loader/graph/wide.h"
#include "loader/wire/save.h"

enum {
  MODEL_GRAPH = 7,
  GRAPH_NODE = 1,
  GRAPH_INITIALIZER = 5,
  NODE_OUTPUT = 2,
  NODE_OPERATOR = 4,
  TENSOR_DIMS = 1,
  TENSOR_TYPE = 2,
  TENSOR_FLOATS = 4,
  TENSOR_INT32S = 5,
  TENSOR_NAME = 8,
  TENSOR_RAW = 9,
  TENSOR_DOUBLES = 10,
  TENSOR_EXTERNAL = 13,
  TENSOR_LOCATION = 14,
  SMALL = 32
};

/* A replaced initializer in the file. */
typedef struct target {
  uint64_t at;    /* of its message */
  uint32_t index; /* in the list */
} target;

typedef struct saver {
  const opi_model *model;
  const uint8_t *file;
  const opi_replacement *list;
  const opi_model_data *data;          /* NULL: content of built models is embedded */
  target *targets;                     /* [n_targets] rising; the others of the list are added */
  bool *added;                         /* [n] */
  uint32_t n, n_targets, n_identities; /* added in place of Identity nodes */
  uint64_t main_at, main_end;          /* extent of the main graph */
  opipe_write_fn write;
  void *ctx;
  opipe_error *err;
} saver;

static opipe_status emit(const saver *s, const void *data, uint64_t n) {
  if (n == 0)
    return OPIPE_OK;
  const opipe_status status = s->write(s->ctx, data, n);
  return status >= 0
             ? OPIPE_OK
             : opi_fail(s->err, status, "writing the model failed (status %d)", (int)status);
}

static uint32_t put_head(uint8_t *out, uint32_t number, uint64_t n_bytes) {
  const uint32_t n = opi_wire_put_varint(out, (uint64_t)number << 3 | OPI_WIRE_BYTES);
  return n + opi_wire_put_varint(out != NULL ? out + n : NULL, n_bytes);
}

static opipe_status next_field(const saver *s, uint64_t end, uint64_t *io_at, opi_wire_field *out) {
  if (opi_wire_next(s->file, end, io_at, out))
    return OPIPE_OK;
  return opi_fail(s->err, OPIPE_E_INVALID,
                  "the model file changed since it was loaded (offset %llu)",
                  (unsigned long long)out->start);
}

/* ---- one tensor ---- */

/* The parts of a tensor's message that matter here. */
typedef struct tensor_view {
  const opi_replacement *with;
  uint32_t index;   /* of `with` */
  uint32_t content; /* field that holds the elements, 0: none (empty) */
  bool external;
  bool lent; /* of a built model: all that says where its content is is replaced */
} tensor_view;

static bool is_content(uint32_t number) {
  return number == TENSOR_FLOATS || number == TENSOR_INT32S || number == TENSOR_RAW ||
         number == TENSOR_DOUBLES;
}

static opipe_status look(const saver *s, const opi_wire_field *tensor, uint32_t index,
                         tensor_view *out) {
  uint64_t at = tensor->data;
  opi_wire_field f;
  *out = (tensor_view){.with = &s->list[index], .index = index};
  while (at < tensor->end) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (is_content(f.number))
      out->content = f.number;
    if (f.number == TENSOR_LOCATION && f.value == 1)
      out->external = true;
  }
  out->lent = out->external && s->model->built != NULL;
  if (out->lent)
    out->content = TENSOR_RAW;
  return OPIPE_OK;
}

static uint64_t half_at(const opi_replacement *r, uint64_t i) {
  return opi_wire_fixed((const uint8_t *)r->data + 2 * i, 2);
}

opipe_status opi_replacement_write(const opi_replacement *r, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  if (r->n_bytes == 0)
    return OPIPE_OK;
  return r->data != NULL ? write(ctx, r->data, (size_t)r->n_bytes)
                         : r->stream(r->stream_ctx, r, write, ctx, err);
}

bool opi_model_streams(const opi_model *model, const char *name) {
  const opi_value *value = opi_initializer_behind(model->graph, name);
  if (value == NULL || !opi_dtype_is_half(value->dtype))
    return true;
  const uintptr_t at = (uintptr_t)value->data;
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next) {
    if (at >= (uintptr_t)m->bytes && at - (uintptr_t)m->bytes < m->n_bytes)
      return true; /* as the file has them, and so raw */
  }
  return false;
}

/* Bytes of the elements in the field that holds them: halves are varints there. */
static uint64_t content_bytes(const opi_replacement *r, uint32_t number) {
  uint64_t n = 0;
  if (number != TENSOR_INT32S)
    return r->n_bytes;
  for (uint64_t i = 0; i < r->n_bytes / 2; ++i)
    n += opi_wire_put_varint(NULL, half_at(r, i));
  return n;
}

static opipe_status write_content(const saver *s, const opi_replacement *r, uint32_t number) {
  uint8_t small[SMALL];
  OPI_TRY(emit(s, small, put_head(small, number, content_bytes(r, number))));
  if (number != TENSOR_INT32S && r->data == NULL)
    return opi_replacement_write(r, s->write, s->ctx, s->err);
  if (number != TENSOR_INT32S)
    return emit(s, r->data, r->n_bytes);
  for (uint64_t i = 0; i < r->n_bytes / 2; ++i)
    OPI_TRY(emit(s, small, opi_wire_put_varint(small, half_at(r, i))));
  return OPIPE_OK;
}

/* A text without its end. `out` NULL: measures. */
static uint32_t put_text(uint8_t *out, uint32_t number, const char *text) {
  const uint32_t length = (uint32_t)strlen(text);
  const uint32_t n = put_head(out, number, length);
  for (uint32_t i = 0; out != NULL && i < length; ++i)
    out[n + i] = (uint8_t)text[i];
  return n + length;
}

/* Field of external_data: a key and its value. `out` NULL: measures. */
static uint32_t put_entry(uint8_t *out, const char *key, const char *value) {
  const uint32_t body = put_text(NULL, 1, key) + put_text(NULL, 2, value);
  uint32_t n = put_head(out, TENSOR_EXTERNAL, body);
  n += put_text(out == NULL ? NULL : out + n, 1, key);
  return n + put_text(out == NULL ? NULL : out + n, 2, value);
}

/* Where in the file of data the content is; out [PLACE_ROOM] NULL: measures. */
enum { PLACE_ROOM = OPI_DATA_NAME_MOST + 128 };
static uint32_t put_place(uint8_t *out, const opi_model_data *data, uint32_t index,
                          uint64_t n_bytes) {
  char offset[24], length[24];
  (void)snprintf(offset, sizeof offset, "%llu", (unsigned long long)data->offsets[index]);
  (void)snprintf(length, sizeof length, "%llu", (unsigned long long)n_bytes);
  uint32_t n = put_entry(out, "location", data->name);
  n += put_entry(out == NULL ? NULL : out + n, "offset", offset);
  n += put_entry(out == NULL ? NULL : out + n, "length", length);
  n += opi_wire_put_varint(out == NULL ? NULL : out + n, TENSOR_LOCATION << 3);
  return n + opi_wire_put_varint(out == NULL ? NULL : out + n, 1);
}

static opipe_status write_place(const saver *s, const tensor_view *view) {
  uint8_t place[PLACE_ROOM];
  return emit(s, place, put_place(place, s->data, view->index, view->with->n_bytes));
}

static bool is_apart(const saver *s, const tensor_view *view) {
  return view->lent && s->data != NULL && s->data->offsets[view->index] != OPI_DATA_EMBEDDED;
}

/* Does the field say what the content is, or where? */
static bool is_replaced(const tensor_view *view, uint32_t number) {
  return is_content(number) ||
         (view->lent && (number == TENSOR_EXTERNAL || number == TENSOR_LOCATION));
}

/* Size of the tensor's message afterwards. */
static opipe_status measure_tensor(const saver *s, const opi_wire_field *tensor,
                                   const tensor_view *view, uint64_t *out_bytes) {
  uint64_t at = tensor->data, n = 0;
  opi_wire_field f;
  while (at < tensor->end) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (!is_replaced(view, f.number))
      n += f.end - f.start;
  }
  const uint64_t content = content_bytes(view->with, view->content);
  *out_bytes = n + (is_apart(s, view) ? put_place(NULL, s->data, view->index, content)
                                      : put_head(NULL, view->content, content) + content);
  return OPIPE_OK;
}

static bool is_kept(const tensor_view *view) {
  return (view->external && !view->lent) || view->content == 0;
}

/* The field `number` of a message, which holds a tensor. */
static opipe_status write_tensor(const saver *s, const opi_wire_field *tensor,
                                 const tensor_view *view) {
  uint8_t small[SMALL];
  uint64_t at = tensor->data, n = 0;
  bool done = false;
  opi_wire_field f;
  if (is_kept(view))
    return emit(s, s->file + tensor->start, tensor->end - tensor->start);
  OPI_TRY(measure_tensor(s, tensor, view, &n));
  OPI_TRY(emit(s, small, put_head(small, tensor->number, n)));
  while (at < tensor->end) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (!is_replaced(view, f.number)) {
      OPI_TRY(emit(s, s->file + f.start, f.end - f.start));
    } else if (!done) {
      OPI_TRY(is_apart(s, view) ? write_place(s, view)
                                : write_content(s, view->with, view->content));
      done = true;
    }
  }
  return OPIPE_OK;
}

/* ---- initializers that the file does not have ---- */

static uint64_t added_bytes(const opi_replacement *r) {
  uint64_t n = put_head(NULL, TENSOR_NAME, strlen(r->name)) + strlen(r->name);
  for (uint32_t d = 0; d < r->rank; ++d) {
    n += opi_wire_put_varint(NULL, TENSOR_DIMS << 3) +
         opi_wire_put_varint(NULL, (uint64_t)r->shape[d]);
  }
  n += opi_wire_put_varint(NULL, TENSOR_TYPE << 3) + opi_wire_put_varint(NULL, r->dtype);
  return n + put_head(NULL, TENSOR_RAW, r->n_bytes) + r->n_bytes;
}

static opipe_status write_added(const saver *s, const opi_replacement *r) {
  uint8_t small[SMALL];
  OPI_TRY(emit(s, small, put_head(small, GRAPH_INITIALIZER, added_bytes(r))));
  for (uint32_t d = 0; d < r->rank; ++d) {
    uint32_t n = opi_wire_put_varint(small, TENSOR_DIMS << 3);
    n += opi_wire_put_varint(small + n, (uint64_t)r->shape[d]);
    OPI_TRY(emit(s, small, n));
  }
  uint32_t n = opi_wire_put_varint(small, TENSOR_TYPE << 3);
  n += opi_wire_put_varint(small + n, r->dtype);
  OPI_TRY(emit(s, small, n));
  OPI_TRY(emit(s, small, put_head(small, TENSOR_NAME, strlen(r->name))));
  OPI_TRY(emit(s, r->name, strlen(r->name)));
  return write_content(s, r, TENSOR_RAW);
}

/* ---- where they are ---- */

/* Lets the entry at `i` of a heap of n sink until none below it lies further back. */
static void sink_target(target *heap, uint32_t i, uint32_t n) {
  const target one = heap[i];
  for (uint32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
    child += child + 1 < n && heap[child + 1].at > heap[child].at;
    if (heap[child].at <= one.at)
      break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = one;
}

/* By place, in the memory at hand: qsort takes some of its own. */
static void sort_targets(target *t, uint32_t n) {
  for (uint32_t i = n / 2; i > 0; --i)
    sink_target(t, i - 1, n);
  for (uint32_t end = n; end > 1; --end) {
    const target last = t[end - 1];
    t[end - 1] = t[0];
    t[0] = last;
    sink_target(t, 0, end - 1);
  }
}

/* Gives each replacement its place in the file, or a new one if it was an input. */
static opipe_status find_targets(saver *s) {
  for (uint32_t i = 0; i < s->n; ++i) {
    const opi_value *value = opi_initializer_behind(s->model->graph, s->list[i].name);
    const bool handed_on = value != NULL && strcmp(value->name, s->list[i].name) != 0;
    s->added[i] = handed_on || (value != NULL && (value->flags & OPI_VALUE_PROMOTED) != 0);
    s->n_identities += handed_on;
    if (s->added[i])
      continue;
    if (value == NULL) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "parameter '%s' is no initializer of the file",
                      s->list[i].name);
    }
    if (value->at == 0) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                      "initializer '%s' is sparse in the file: new values cannot be written there",
                      s->list[i].name);
    }
    s->targets[s->n_targets++] = (target){.at = value->at, .index = i};
  }
  sort_targets(s->targets, s->n_targets);
  return OPIPE_OK;
}

/* The first target at or behind `at`; NULL: none. */
static const target *first_from(const saver *s, uint64_t at) {
  uint32_t low = 0, high = s->n_targets;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (s->targets[middle].at < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low < s->n_targets ? &s->targets[low] : NULL;
}

/* The first target inside a field: the field itself when it begins there; NULL: none. */
static const target *target_in(const saver *s, const opi_wire_field *f) {
  const target *t = f->wire == OPI_WIRE_BYTES ? first_from(s, f->data) : NULL;
  return t != NULL && t->at < f->end ? t : NULL;
}

/* ---- messages around them ---- */

static bool text_is(const saver *s, const opi_wire_field *f, const char *text) {
  return f->n_bytes == strlen(text) && memcmp(s->file + f->data, text, f->n_bytes) == 0;
}

/* Is the field, of the main graph, an Identity in whose place an initializer is added? */
static opipe_status find_dropped(const saver *s, const opi_wire_field *f, uint32_t depth,
                                 bool *out_dropped) {
  uint64_t at = f->data;
  opi_wire_field part, output = {.n_bytes = 0};
  bool identity = false;
  *out_dropped = false;
  if (s->n_identities == 0 || depth != 1 || f->number != GRAPH_NODE || f->wire != OPI_WIRE_BYTES ||
      f->start < s->main_at || f->end > s->main_end)
    return OPIPE_OK;
  while (at < f->end) {
    OPI_TRY(next_field(s, f->end, &at, &part));
    if (part.number == NODE_OUTPUT)
      output = part;
    if (part.number == NODE_OPERATOR)
      identity = text_is(s, &part, "Identity");
  }
  for (uint32_t i = 0; i < s->n && identity && !*out_dropped; ++i)
    *out_dropped = s->added[i] && text_is(s, &output, s->list[i].name);
  return OPIPE_OK;
}

static bool is_main_graph(const opi_wire_field *f, uint32_t depth) {
  return depth == 0 && f->number == MODEL_GRAPH && f->wire == OPI_WIRE_BYTES;
}

static opipe_status measure(const saver *s, const opi_wire_field *f, uint32_t depth,
                            uint64_t *out_bytes);

/* Bytes of a field afterwards, its head among them. depth 0: a field of the model itself. */
static opipe_status measure_field(const saver *s, const opi_wire_field *f, uint32_t depth,
                                  uint64_t *out_bytes) {
  const target *t = target_in(s, f);
  tensor_view view;
  uint64_t inner = f->n_bytes;
  bool dropped = false;
  OPI_TRY(find_dropped(s, f, depth, &dropped));
  *out_bytes = dropped ? 0 : f->end - f->start;
  if (dropped || (t == NULL && !is_main_graph(f, depth)))
    return OPIPE_OK;
  if (t == NULL || t->at != f->data) {
    OPI_TRY(measure(s, f, depth, &inner));
  } else {
    OPI_TRY(look(s, f, t->index, &view));
    if (is_kept(&view))
      return OPIPE_OK;
    OPI_TRY(measure_tensor(s, f, &view, &inner));
  }
  *out_bytes = put_head(NULL, f->number, inner) + inner;
  return OPIPE_OK;
}

/* Bytes of what is in the message `f` afterwards. */
static opipe_status measure(const saver *s, const opi_wire_field *f, uint32_t depth,
                            uint64_t *out_bytes) {
  uint64_t at = f->data, n = 0, one = 0;
  opi_wire_field child;
  while (at < f->end) {
    OPI_TRY(next_field(s, f->end, &at, &child));
    OPI_TRY(measure_field(s, &child, depth + 1, &one));
    n += one;
  }
  for (uint32_t i = 0; i < s->n && is_main_graph(f, depth); ++i) {
    const uint64_t added = s->added[i] ? added_bytes(&s->list[i]) : 0;
    n += s->added[i] ? put_head(NULL, GRAPH_INITIALIZER, added) + added : 0;
  }
  *out_bytes = n;
  return OPIPE_OK;
}

static opipe_status write_fields(const saver *s, uint64_t at, uint64_t end, uint32_t depth);

/* A message with targets, or the main graph. */
static opipe_status write_message(const saver *s, const opi_wire_field *f, uint32_t depth) {
  uint8_t head[SMALL];
  uint64_t n = 0;
  OPI_TRY(measure(s, f, depth, &n));
  OPI_TRY(emit(s, head, put_head(head, f->number, n)));
  OPI_TRY(write_fields(s, f->data, f->end, depth + 1));
  for (uint32_t i = 0; i < s->n && is_main_graph(f, depth); ++i) {
    if (s->added[i])
      OPI_TRY(write_added(s, &s->list[i]));
  }
  return OPIPE_OK;
}

static opipe_status write_fields(const saver *s, uint64_t at, uint64_t end, uint32_t depth) {
  opi_wire_field f;
  tensor_view view;
  while (at < end) {
    OPI_TRY(next_field(s, end, &at, &f));
    const target *t = target_in(s, &f);
    bool dropped = false;
    OPI_TRY(find_dropped(s, &f, depth, &dropped));
    if (dropped)
      continue;
    if (t != NULL && t->at == f.data) {
      OPI_TRY(look(s, &f, t->index, &view));
      OPI_TRY(write_tensor(s, &f, &view));
    } else if (t != NULL || is_main_graph(&f, depth)) {
      OPI_TRY(write_message(s, &f, depth));
    } else {
      OPI_TRY(emit(s, s->file + f.start, f.end - f.start));
    }
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status find_main(saver *s) {
  uint64_t at = 0;
  opi_wire_field f;
  while (at < s->model->file_bytes) {
    OPI_TRY(next_field(s, s->model->file_bytes, &at, &f));
    if (!is_main_graph(&f, 0))
      continue;
    s->main_at = f.data;
    s->main_end = f.end;
  }
  return OPIPE_OK;
}

static opipe_status open_saver(saver *s) {
  const opipe_allocator *allocator = s->model->allocator;
  OPI_TRY(find_main(s));
  s->targets = opi_alloc_zero(allocator, (size_t)s->n + 1, sizeof *s->targets);
  s->added = opi_alloc_zero(allocator, (size_t)s->n + 1, sizeof *s->added);
  return s->targets != NULL && s->added != NULL
             ? find_targets(s)
             : opi_fail_nomem(s->err, (uint64_t)s->n * sizeof *s->targets, "initializers");
}

static void close_saver(saver *s) {
  const opipe_allocator *allocator = s->model->allocator;
  opi_free(allocator, s->targets, ((size_t)s->n + 1) * sizeof *s->targets);
  opi_free(allocator, s->added, ((size_t)s->n + 1) * sizeof *s->added);
}

opipe_status opi_model_replace(const opi_model *model, const opi_replacement *list, uint32_t n,
                               const opi_model_data *data, opipe_write_fn write, void *ctx,
                               opipe_error *err) {
  saver s = {.model = model,
             .file = model->file,
             .list = list,
             .data = data,
             .n = n,
             .write = write,
             .ctx = ctx,
             .err = err};
  opipe_status status = open_saver(&s);
  if (status == OPIPE_OK)
    status = write_fields(&s, 0, model->file_bytes, 0);
  close_saver(&s);
  return status;
}

opipe_status opi_model_find_places(const opi_model *model, const opi_replacement *list, uint32_t n,
                                   opipe_error *err) {
  saver s = {.model = model, .file = model->file, .list = list, .n = n, .err = err};
  const opipe_status status = open_saver(&s);
  close_saver(&s);
  return status;
}

/* ---- where external content lies ---- */

/* One {key, value} of external_data. */
static opipe_status read_entry(const saver *s, const opi_wire_field *entry,
                               opi_external_place *io) {
  uint64_t at = entry->data;
  opi_wire_field f, key = {.n_bytes = 0}, value = {.n_bytes = 0};
  while (at < entry->end) {
    OPI_TRY(next_field(s, entry->end, &at, &f));
    if (f.number == 1)
      key = f;
    if (f.number == 2)
      value = f;
  }
  if (text_is(s, &key, "location")) {
    io->location = (const char *)s->file + value.data;
    io->n_location = value.n_bytes;
  }
  for (uint64_t i = 0; text_is(s, &key, "offset") && i < value.n_bytes; ++i)
    io->offset_bytes = io->offset_bytes * 10 + (uint64_t)(s->file[value.data + i] - '0');
  return OPIPE_OK;
}

static opipe_status place_of(const saver *s, const opi_wire_field *tensor, uint32_t index,
                             opi_external_place *out) {
  uint64_t at = tensor->data;
  opi_wire_field f;
  tensor_view view;
  OPI_TRY(look(s, tensor, index, &view));
  while (at < tensor->end && view.external) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (f.number == TENSOR_EXTERNAL && f.wire == OPI_WIRE_BYTES)
      OPI_TRY(read_entry(s, &f, out));
  }
  return OPIPE_OK;
}

/* All targets in the fields from `at` to `end`. */
static opipe_status find_external(const saver *s, uint64_t at, uint64_t end,
                                  opi_external_place *places) {
  opi_wire_field f;
  while (at < end) {
    OPI_TRY(next_field(s, end, &at, &f));
    const target *t = target_in(s, &f);
    if (t != NULL && t->at == f.data)
      OPI_TRY(place_of(s, &f, t->index, &places[t->index]));
    else if (t != NULL)
      OPI_TRY(find_external(s, f.data, f.end, places));
  }
  return OPIPE_OK;
}

opipe_status opi_model_externals(const opi_model *model, const opi_replacement *list, uint32_t n,
                                 opi_external_place *out_places, opipe_error *err) {
  saver s = {.model = model, .file = model->file, .list = list, .n = n, .err = err};
  memset(out_places, 0, n * sizeof *out_places);
  opipe_status status = open_saver(&s);
  if (status == OPIPE_OK)
    status = find_external(&s, 0, model->file_bytes, out_places);
  close_saver(&s);
  return status;
}
