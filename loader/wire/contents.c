/* SPDX-License-Identifier: Apache-2.0 */
/* Facts from the model's own bytes, independent of the import: its float initializers, as an
 * independent count of what may be trained, and the metadata of its nodes, which nothing else
 * needs. Both walk the messages field by field; the pre-scan has checked the bytes.
 */
#include <string.h>

#include "loader/wire/wire.h"

typedef enum kind { MODEL, GRAPH, NODE, ATTRIBUTE, FUNCTION, SPARSE, TENSOR, ENTRY } kind;

/* The fields that lead on. */
static const struct {
  kind in;
  uint32_t number;
  kind to;
} ways[] = {{MODEL, 7, GRAPH},   {MODEL, 25, FUNCTION},     {GRAPH, 1, NODE},
            {GRAPH, 5, TENSOR},  {GRAPH, 15, SPARSE},       {NODE, 5, ATTRIBUTE},
            {NODE, 9, ENTRY},    {ATTRIBUTE, 6, GRAPH},     {ATTRIBUTE, 11, GRAPH},
            {FUNCTION, 7, NODE}, {FUNCTION, 11, ATTRIBUTE}, {SPARSE, 1, TENSOR}};

enum { TENSOR_TYPE = 2, TENSOR_NAME = 8, ENTRY_KEY = 1, ENTRY_VALUE = 2 };

typedef struct reader {
  const opi_model *model;
  opi_arena *arena; /* of the list; NULL: metadata is read */
  opi_file_tensor *list;
  uint32_t n, room;
  opi_metadata_fn take;
  void *ctx;
  uint32_t node; /* of the main graph */
  opipe_error *err;
} reader;

static const char *text_at(const reader *r, const opi_wire_field *f) {
  return (const char *)r->model->file + f->data;
}

static opipe_status next_field(const reader *r, uint64_t end, uint64_t *io_at,
                               opi_wire_field *out) {
  if (opi_wire_next(r->model->file, end, io_at, out))
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "the model file changed since it was loaded (offset %llu)",
                  (unsigned long long)out->start);
}

static opipe_status add_tensor(reader *r, const opi_wire_field *tensor, bool sparse) {
  opi_file_tensor one = {.name = "", .at = sparse ? 0 : tensor->data};
  uint64_t at = tensor->data;
  opi_wire_field f;
  while (at < tensor->end) {
    OPI_TRY(next_field(r, tensor->end, &at, &f));
    if (f.number == TENSOR_TYPE && f.wire == OPI_WIRE_VARINT)
      one.dtype = (uint32_t)f.value;
    if (f.number != TENSOR_NAME || f.wire != OPI_WIRE_BYTES)
      continue;
    one.name = text_at(r, &f);
    one.n_name = f.n_bytes;
  }
  if (!opi_dtype_is_float(one.dtype))
    return OPIPE_OK;
  if (!opi_arena_grow(r->arena, (void **)&r->list, &r->room, r->n + 1, sizeof *r->list))
    return opi_fail_nomem(r->err, (r->n + 1) * sizeof *r->list, "initializers");
  r->list[r->n++] = one;
  return OPIPE_OK;
}

static opipe_status take_entry(reader *r, const opi_wire_field *entry) {
  uint64_t at = entry->data;
  opi_wire_field f, key = {.n_bytes = 0}, value = {.n_bytes = 0};
  while (at < entry->end) {
    OPI_TRY(next_field(r, entry->end, &at, &f));
    if (f.number == ENTRY_KEY)
      key = f;
    if (f.number == ENTRY_VALUE)
      value = f;
  }
  return r->take(r->ctx, r->node, text_at(r, &key), key.n_bytes, text_at(r, &value), value.n_bytes);
}

static int way_from(kind in, const opi_wire_field *f) {
  for (int i = 0; i < (int)OPI_COUNT(ways); ++i) {
    if (ways[i].in == in && ways[i].number == f->number && f->wire == OPI_WIRE_BYTES)
      return i;
  }
  return -1;
}

/* Metadata is that of the main graph's nodes: bodies and functions are left out. */
static bool leads_on(const reader *r, kind to) {
  return r->arena != NULL ? to != ENTRY : to == GRAPH || to == NODE || to == ENTRY;
}

/* The fields of one message. */
static opipe_status walk(reader *r, kind in, uint64_t at, uint64_t end) {
  opi_wire_field f;
  while (at < end) {
    OPI_TRY(next_field(r, end, &at, &f));
    const int way = way_from(in, &f);
    if (way < 0 || !leads_on(r, ways[way].to))
      continue;
    const kind to = ways[way].to;
    if (to == TENSOR)
      OPI_TRY(add_tensor(r, &f, in == SPARSE));
    else if (to == ENTRY)
      OPI_TRY(take_entry(r, &f));
    else
      OPI_TRY(walk(r, to, f.data, f.end));
    r->node += to == NODE;
  }
  return OPIPE_OK;
}

opipe_status opi_model_metadata(const opi_model *model, opi_metadata_fn take, void *ctx,
                                opipe_error *err) {
  reader r = {.model = model, .take = take, .ctx = ctx, .err = err};
  return walk(&r, MODEL, 0, model->file_bytes);
}

opipe_status opi_model_float_tensors(const opi_model *model, opi_arena *arena,
                                     opi_file_tensor **out_list, uint32_t *out_n,
                                     opipe_error *err) {
  reader r = {.model = model, .arena = arena, .err = err};
  const opipe_status status = walk(&r, MODEL, 0, model->file_bytes);
  *out_list = r.list;
  *out_n = r.n;
  return status;
}
