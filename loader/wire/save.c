/* SPDX-License-Identifier: Apache-2.0 */
/* The model file with other values for some initializers, by surgery on the file's own bytes.
 *
 * As annotate.c: fields are handed on as they stand, in their order, and survive whatever they are.
 * Only the content of a replaced initializer changes, in the field that held it (raw_data, or the
 * typed field of its type), with the lengths around it. External content is not here: the files
 * that hold it are written by save_files.c. An input that was made a parameter gets an initializer
 * of its name behind the others. Two passes with the same decisions: lengths, then bytes.
 *
 * In the bytes of a built model external tensors are places in the host's memory: every one of them
 * is replaced, by its content or by its place in a file of data.
 */
#include <stdio.h>
#include <string.h>

#include "loader/wire/save.h"

enum {
  MODEL_GRAPH = 7,
  GRAPH_INITIALIZER = 5,
  GRAPH_SPARSE = 15,
  SPARSE_VALUES = 1,
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

typedef struct saver {
  const opi_model *model;
  const uint8_t *file;
  const opi_replacement *list;
  const opi_model_data *data; /* NULL: content of built models is embedded */
  bool *seen;                 /* [n] found in the file */
  uint32_t n;
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

/* What of a tensor's message matters here. */
typedef struct tensor_view {
  const opi_replacement *with; /* NULL: it stays */
  uint32_t index;              /* of `with` */
  uint32_t content;            /* field that holds the elements, 0: none (empty) */
  bool external;
  bool lent; /* of a built model: all that says where its content is is replaced */
} tensor_view;

static bool is_content(uint32_t number) {
  return number == TENSOR_FLOATS || number == TENSOR_INT32S || number == TENSOR_RAW ||
         number == TENSOR_DOUBLES;
}

static opipe_status look(const saver *s, const opi_wire_field *tensor, tensor_view *out) {
  uint64_t at = tensor->data;
  opi_wire_field f;
  *out = (tensor_view){.index = OPIPE_NONE};
  while (at < tensor->end) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (is_content(f.number))
      out->content = f.number;
    if (f.number == TENSOR_LOCATION && f.value == 1)
      out->external = true;
    for (uint32_t i = 0; f.number == TENSOR_NAME && i < s->n; ++i) {
      if (strlen(s->list[i].name) == f.n_bytes &&
          memcmp(s->list[i].name, s->file + f.data, f.n_bytes) == 0)
        out->index = i;
    }
  }
  if (out->index != OPIPE_NONE)
    out->with = &s->list[out->index];
  out->lent = out->external && s->model->built != NULL;
  if (out->lent)
    out->content = TENSOR_RAW;
  return OPIPE_OK;
}

static uint64_t half_at(const opi_replacement *r, uint64_t i) {
  return opi_wire_fixed((const uint8_t *)r->data + 2 * i, 2);
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
  return view->with == NULL || (view->external && !view->lent) || view->content == 0;
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

/* ---- the graph ---- */

static opipe_status refuse_sparse(const saver *s, const opi_wire_field *sparse) {
  uint64_t at = sparse->data;
  opi_wire_field f;
  tensor_view view;
  while (at < sparse->end) {
    OPI_TRY(next_field(s, sparse->end, &at, &f));
    if (f.number != SPARSE_VALUES || f.wire != OPI_WIRE_BYTES)
      continue;
    OPI_TRY(look(s, &f, &view));
    if (view.with != NULL) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                      "initializer '%s' is sparse in the file: new values cannot be written there",
                      view.with->name);
    }
  }
  return OPIPE_OK;
}

static bool is_input(const saver *s, const char *name) {
  const opi_graph *g = s->model->graph;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    if (strcmp(g->values[v].name, name) == 0)
      return (g->values[v].flags & OPI_VALUE_PROMOTED) != 0;
  }
  return false;
}

/* Has every replacement a place there? Notes those that are found. */
static opipe_status find_places(const saver *s, const opi_wire_field *graph) {
  uint64_t at = graph->data;
  opi_wire_field f;
  tensor_view view;
  while (at < graph->end) {
    OPI_TRY(next_field(s, graph->end, &at, &f));
    if (f.number == GRAPH_SPARSE && f.wire == OPI_WIRE_BYTES)
      OPI_TRY(refuse_sparse(s, &f));
    if (f.number != GRAPH_INITIALIZER || f.wire != OPI_WIRE_BYTES)
      continue;
    OPI_TRY(look(s, &f, &view));
    if (view.with != NULL)
      s->seen[view.index] = true;
  }
  for (uint32_t i = 0; i < s->n; ++i) {
    if (!s->seen[i] && !is_input(s, s->list[i].name)) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                      "parameter '%s' is not an initializer of the file's main graph",
                      s->list[i].name);
    }
  }
  return OPIPE_OK;
}

static opipe_status measure_graph(const saver *s, const opi_wire_field *graph,
                                  uint64_t *out_bytes) {
  uint64_t at = graph->data, n = 0, tensor = 0;
  opi_wire_field f;
  tensor_view view;
  while (at < graph->end) {
    OPI_TRY(next_field(s, graph->end, &at, &f));
    if (f.number != GRAPH_INITIALIZER || f.wire != OPI_WIRE_BYTES) {
      n += f.end - f.start;
      continue;
    }
    OPI_TRY(look(s, &f, &view));
    if (is_kept(&view)) {
      n += f.end - f.start;
      continue;
    }
    OPI_TRY(measure_tensor(s, &f, &view, &tensor));
    n += put_head(NULL, GRAPH_INITIALIZER, tensor) + tensor;
  }
  for (uint32_t i = 0; i < s->n; ++i) {
    if (!s->seen[i])
      n += put_head(NULL, GRAPH_INITIALIZER, added_bytes(&s->list[i])) + added_bytes(&s->list[i]);
  }
  *out_bytes = n;
  return OPIPE_OK;
}

static opipe_status write_graph(const saver *s, const opi_wire_field *graph) {
  uint8_t head[SMALL];
  uint64_t at = graph->data, n = 0;
  opi_wire_field f;
  tensor_view view;
  OPI_TRY(find_places(s, graph));
  OPI_TRY(measure_graph(s, graph, &n));
  OPI_TRY(emit(s, head, put_head(head, MODEL_GRAPH, n)));
  while (at < graph->end) {
    OPI_TRY(next_field(s, graph->end, &at, &f));
    if (f.number == GRAPH_INITIALIZER && f.wire == OPI_WIRE_BYTES) {
      OPI_TRY(look(s, &f, &view));
      OPI_TRY(write_tensor(s, &f, &view));
    } else {
      OPI_TRY(emit(s, s->file + f.start, f.end - f.start));
    }
  }
  for (uint32_t i = 0; i < s->n; ++i) {
    if (!s->seen[i])
      OPI_TRY(write_added(s, &s->list[i]));
  }
  return OPIPE_OK;
}

/* Writes the file, or finds the places of the list alone. */
static opipe_status go_through(saver *s, bool writes) {
  uint64_t at = 0;
  opi_wire_field f;
  opipe_status status = OPIPE_OK;
  s->seen = opi_alloc_zero(s->model->allocator, (size_t)s->n + 1, sizeof *s->seen);
  if (s->seen == NULL)
    return opi_fail_nomem(s->err, s->n, "initializers");
  while (at < s->model->file_bytes && status == OPIPE_OK) {
    status = next_field(s, s->model->file_bytes, &at, &f);
    if (status < 0)
      break;
    if (f.number == MODEL_GRAPH && f.wire == OPI_WIRE_BYTES)
      status = writes ? write_graph(s, &f) : find_places(s, &f);
    else if (writes)
      status = emit(s, s->file + f.start, f.end - f.start);
  }
  opi_free(s->model->allocator, s->seen, (size_t)s->n + 1);
  return status;
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
  return go_through(&s, true);
}

opipe_status opi_model_find_places(const opi_model *model, const opi_replacement *list, uint32_t n,
                                   opipe_error *err) {
  saver s = {.model = model, .file = model->file, .list = list, .n = n, .err = err};
  return go_through(&s, false);
}

/* ---- where external content lies ---- */

static bool text_is(const saver *s, const opi_wire_field *f, const char *text) {
  return f->n_bytes == strlen(text) && memcmp(s->file + f->data, text, f->n_bytes) == 0;
}

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

static opipe_status place_of(const saver *s, const opi_wire_field *tensor,
                             opi_external_place *places) {
  uint64_t at = tensor->data;
  opi_wire_field f;
  tensor_view view;
  OPI_TRY(look(s, tensor, &view));
  if (view.with == NULL || !view.external)
    return OPIPE_OK;
  while (at < tensor->end) {
    OPI_TRY(next_field(s, tensor->end, &at, &f));
    if (f.number == TENSOR_EXTERNAL && f.wire == OPI_WIRE_BYTES)
      OPI_TRY(read_entry(s, &f, &places[view.index]));
  }
  return OPIPE_OK;
}

opipe_status opi_model_externals(const opi_model *model, const opi_replacement *list, uint32_t n,
                                 opi_external_place *out_places, opipe_error *err) {
  const saver s = {.model = model, .file = model->file, .list = list, .n = n, .err = err};
  uint64_t at = 0;
  opi_wire_field f, g;
  memset(out_places, 0, n * sizeof *out_places);
  while (at < model->file_bytes) {
    OPI_TRY(next_field(&s, model->file_bytes, &at, &f));
    uint64_t in = f.data;
    while (f.number == MODEL_GRAPH && f.wire == OPI_WIRE_BYTES && in < f.end) {
      OPI_TRY(next_field(&s, f.end, &in, &g));
      if (g.number == GRAPH_INITIALIZER && g.wire == OPI_WIRE_BYTES)
        OPI_TRY(place_of(&s, &g, out_places));
    }
  }
  return OPIPE_OK;
}
