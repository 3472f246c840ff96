/* SPDX-License-Identifier: Apache-2.0 */
/* A plan written into a model file: NodeProto.device_configurations and ModelProto.configuration of
 * IR version 11, by surgery on the file's own bytes.
 *
 * Nothing is unpacked or serialised anew: fields are handed to the sink as they stand in the file,
 * in their order, so whatever else it holds (functions, metadata, unknown fields, documentation)
 * survives. Only four things change: entries under the configuration's name go, new ones are
 * appended to their nodes and to the model, the lengths around them follow, and an ir_version below
 * 11 becomes 11. Two passes with the same decisions: one for lengths, one that writes.
 */
#include <string.h>

#include "loader/wire/save.h"

enum {
  MODEL_IR_VERSION = 1,
  MODEL_GRAPH = 7,
  MODEL_CONFIGURATION = 26,
  GRAPH_NODE = 1,
  NODE_INPUT = 1,
  NODE_CONFIGURATIONS = 10,
  NAME = 1, /* of either kind of configuration */
  CONFIGURATION_DEVICES = 2,
  ENTRY_SHARDING = 2, /* of a node's configuration */
  ENTRY_STAGE = 3,
  SHARDING_TENSOR = 1,
  SHARDING_DEVICE = 2,
  SHARDING_DIM = 4,
  DIM_AXIS = 1,
  DIM_SIMPLE = 2,
  SIMPLE_EXTENT = 1,
  SIMPLE_SHARDS = 3,
  IR_VERSION = 11,
  SMALL = 64 /* bytes of anything made here but a name */
};

typedef struct annotator {
  const uint8_t *file;
  const char *name;
  uint64_t n_name;
  const int32_t *stages;
  uint32_t n_nodes, n_devices;
  const opi_annotated_shards *shards; /* NULL: nothing is divided */
  opi_text *entry;                    /* of the node at hand: its configuration */
  opipe_write_fn write;
  void *ctx;
  opipe_error *err;
} annotator;

/* ---- writing ---- */

static opipe_status emit(const annotator *a, const void *data, uint64_t n) {
  if (n == 0)
    return OPIPE_OK;
  const opipe_status status = a->write(a->ctx, data, n);
  if (status >= 0)
    return OPIPE_OK;
  return opi_fail(a->err, status, "writing the annotated model failed (status %d)", (int)status);
}

static uint32_t put_number(uint8_t *out, uint32_t number, uint64_t value) {
  const uint32_t n = opi_wire_put_varint(out, (uint64_t)number << 3 | OPI_WIRE_VARINT);
  return n + opi_wire_put_varint(out != NULL ? out + n : NULL, value);
}

static uint32_t put_length(uint8_t *out, uint32_t number, uint64_t n_bytes) {
  const uint32_t n = opi_wire_put_varint(out, (uint64_t)number << 3 | OPI_WIRE_BYTES);
  return n + opi_wire_put_varint(out != NULL ? out + n : NULL, n_bytes);
}

/* Bytes of a message {NAME: name, number: value}. */
static uint64_t pair_bytes(const annotator *a, uint32_t number, uint64_t value) {
  return put_length(NULL, NAME, a->n_name) + a->n_name + put_number(NULL, number, value);
}

static opipe_status write_pair(const annotator *a, uint32_t field, uint32_t number,
                               uint64_t value) {
  uint8_t head[SMALL], tail[SMALL];
  uint32_t n = put_length(head, field, pair_bytes(a, number, value));
  n += put_length(head + n, NAME, a->n_name);
  OPI_TRY(emit(a, head, n));
  OPI_TRY(emit(a, a->name, a->n_name));
  return emit(a, tail, put_number(tail, number, value));
}

/* ---- reading ---- */

static opipe_status next_field(const annotator *a, uint64_t end, uint64_t *io_at,
                               opi_wire_field *out) {
  if (opi_wire_next(a->file, end, io_at, out))
    return OPIPE_OK;
  return opi_fail(a->err, OPIPE_E_INVALID,
                  "the model file changed since it was loaded (offset %llu)",
                  (unsigned long long)out->start);
}

/* Is this a configuration (of a node or of the model) under our name? */
static bool is_ours(const annotator *a, const opi_wire_field *field, uint32_t number) {
  if (field->number != number || field->wire != OPI_WIRE_BYTES)
    return false;
  uint64_t at = field->data;
  opi_wire_field inner;
  while (at < field->end) {
    if (!opi_wire_next(a->file, field->end, &at, &inner))
      return false;
    if (inner.number != NAME || inner.wire != OPI_WIRE_BYTES)
      continue;
    return inner.n_bytes == a->n_name && memcmp(a->file + inner.data, a->name, a->n_name) == 0;
  }
  return false;
}

/* ---- nodes ---- */

static void add_number(opi_text *out, uint32_t number, uint64_t value) {
  uint8_t head[SMALL];
  const uint32_t n = put_number(head, number, value);
  opi_text_add(out, (const char *)head, n);
}

static void add_head(opi_text *out, uint32_t number, uint64_t n_bytes) {
  uint8_t head[SMALL];
  const uint32_t n = put_length(head, number, n_bytes);
  opi_text_add(out, (const char *)head, n);
}

/* Adds how a tensor's equal parts lie on the devices of a stage, one part after the other. */
static void add_sharding(const annotator *a, const opi_annotated_part *part, int32_t stage) {
  const uint32_t width = a->shards->width, first = a->shards->first_device[stage];
  const uint64_t n_name = strlen(part->name);
  const uint64_t simple = put_number(NULL, SIMPLE_EXTENT, (uint64_t)part->extent) +
                          put_number(NULL, SIMPLE_SHARDS, width);
  const uint64_t dim = put_number(NULL, DIM_AXIS, (uint64_t)part->axis) +
                       put_length(NULL, DIM_SIMPLE, simple) + simple;
  uint64_t n = put_length(NULL, SHARDING_TENSOR, n_name) + n_name +
               put_length(NULL, SHARDING_DIM, dim) + dim;
  for (uint32_t k = 0; k < width; ++k)
    n += put_number(NULL, SHARDING_DEVICE, first + k);
  add_head(a->entry, ENTRY_SHARDING, n);
  add_head(a->entry, SHARDING_TENSOR, n_name);
  opi_text_add(a->entry, part->name, n_name);
  for (uint32_t k = 0; k < width; ++k)
    add_number(a->entry, SHARDING_DEVICE, first + k);
  add_head(a->entry, SHARDING_DIM, dim);
  add_number(a->entry, DIM_AXIS, (uint64_t)part->axis);
  add_head(a->entry, DIM_SIMPLE, simple);
  add_number(a->entry, SIMPLE_EXTENT, (uint64_t)part->extent);
  add_number(a->entry, SIMPLE_SHARDS, width);
}

static void add_input(const annotator *a, const opi_wire_field *field, int32_t stage) {
  for (uint32_t i = 0; a->shards != NULL && i < a->shards->n_parts; ++i) {
    const opi_annotated_part *part = &a->shards->parts[i];
    if (strlen(part->name) == field->n_bytes &&
        memcmp(part->name, a->file + field->data, field->n_bytes) == 0)
      add_sharding(a, part, stage);
  }
}

/* Makes the node's own configuration: its name, how its divided inputs lie, its stage. */
static opipe_status make_entry(const annotator *a, const opi_wire_field *node, int32_t stage) {
  uint64_t at = node->data;
  opi_wire_field field;
  a->entry->n = 0;
  add_head(a->entry, NAME, a->n_name);
  opi_text_add(a->entry, a->name, a->n_name);
  while (at < node->end) {
    OPI_TRY(next_field(a, node->end, &at, &field));
    if (field.number == NODE_INPUT && field.wire == OPI_WIRE_BYTES)
      add_input(a, &field, stage);
  }
  add_number(a->entry, ENTRY_STAGE, (uint64_t)stage);
  return a->entry->failed ? opi_fail_nomem(a->err, a->entry->n, "annotations") : OPIPE_OK;
}

/* Size of the node's content afterwards. */
static opipe_status measure_node(const annotator *a, const opi_wire_field *node, int32_t stage,
                                 uint64_t *out_bytes) {
  uint64_t at = node->data, n = 0;
  opi_wire_field field;
  while (at < node->end) {
    OPI_TRY(next_field(a, node->end, &at, &field));
    if (!is_ours(a, &field, NODE_CONFIGURATIONS))
      n += field.end - field.start;
  }
  if (stage >= 0) {
    OPI_TRY(make_entry(a, node, stage));
    n += put_length(NULL, NODE_CONFIGURATIONS, a->entry->n) + a->entry->n;
  }
  *out_bytes = n;
  return OPIPE_OK;
}

static opipe_status write_node(const annotator *a, const opi_wire_field *node, int32_t stage) {
  uint8_t head[SMALL];
  uint64_t at = node->data, n = 0;
  opi_wire_field field;
  OPI_TRY(measure_node(a, node, stage, &n));
  OPI_TRY(emit(a, head, put_length(head, GRAPH_NODE, n)));
  while (at < node->end) {
    OPI_TRY(next_field(a, node->end, &at, &field));
    if (is_ours(a, &field, NODE_CONFIGURATIONS))
      continue;
    OPI_TRY(emit(a, a->file + field.start, field.end - field.start));
  }
  if (stage < 0)
    return OPIPE_OK;
  OPI_TRY(emit(a, head, put_length(head, NODE_CONFIGURATIONS, a->entry->n)));
  return emit(a, a->entry->data, a->entry->n);
}

/* ---- the graph ---- */

static opipe_status measure_graph(const annotator *a, const opi_wire_field *graph,
                                  uint64_t *out_bytes) {
  uint64_t at = graph->data, n = 0;
  uint32_t index = 0;
  opi_wire_field field;
  while (at < graph->end) {
    OPI_TRY(next_field(a, graph->end, &at, &field));
    if (field.number != GRAPH_NODE || field.wire != OPI_WIRE_BYTES) {
      n += field.end - field.start;
      continue;
    }
    uint64_t node_bytes = 0;
    const int32_t stage = index < a->n_nodes ? a->stages[index] : -1;
    OPI_TRY(measure_node(a, &field, stage, &node_bytes));
    n += put_length(NULL, GRAPH_NODE, node_bytes) + node_bytes;
    ++index;
  }
  if (index < a->n_nodes) {
    return opi_fail(a->err, OPIPE_E_INVALID, "stages for %u nodes; the model's graph has %u",
                    a->n_nodes, index);
  }
  *out_bytes = n;
  return OPIPE_OK;
}

static opipe_status write_graph(const annotator *a, const opi_wire_field *graph) {
  uint8_t head[SMALL];
  uint64_t at = graph->data, n = 0;
  uint32_t index = 0;
  opi_wire_field field;
  OPI_TRY(measure_graph(a, graph, &n));
  OPI_TRY(emit(a, head, put_length(head, MODEL_GRAPH, n)));
  while (at < graph->end) {
    OPI_TRY(next_field(a, graph->end, &at, &field));
    if (field.number == GRAPH_NODE && field.wire == OPI_WIRE_BYTES)
      OPI_TRY(write_node(a, &field, a->stages[index++]));
    else
      OPI_TRY(emit(a, a->file + field.start, field.end - field.start));
  }
  return OPIPE_OK;
}

/* ---- the model ---- */

static opipe_status write_model(const annotator *a, uint64_t n_bytes) {
  uint8_t small[SMALL];
  uint64_t at = 0;
  opi_wire_field field;
  while (at < n_bytes) {
    OPI_TRY(next_field(a, n_bytes, &at, &field));
    if (field.number == MODEL_GRAPH && field.wire == OPI_WIRE_BYTES)
      OPI_TRY(write_graph(a, &field));
    else if (field.number == MODEL_IR_VERSION && field.value < IR_VERSION)
      OPI_TRY(emit(a, small, put_number(small, MODEL_IR_VERSION, IR_VERSION)));
    else if (!is_ours(a, &field, MODEL_CONFIGURATION))
      OPI_TRY(emit(a, a->file + field.start, field.end - field.start));
  }
  return write_pair(a, MODEL_CONFIGURATION, CONFIGURATION_DEVICES, a->n_devices);
}

static opipe_status to_text(void *ctx, const void *data, size_t n_bytes) {
  opi_text *text = ctx;
  opi_text_add(text, data, n_bytes);
  return text->failed ? OPIPE_E_NOMEM : OPIPE_OK;
}

opipe_status opi_model_annotate(const opi_model *model, const char *name,
                                const int32_t *stage_of_node, uint32_t n_nodes, uint32_t n_devices,
                                const opi_annotated_shards *shards, opipe_write_fn write, void *ctx,
                                opipe_error *err) {
  OPI_TRY(opi_model_check_files(model, err));
  if (name == NULL || name[0] == '\0')
    return opi_fail(err, OPIPE_E_INVALID, "a device configuration needs a name");
  if (n_devices < 1 || n_devices > INT32_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "a device configuration of %u devices", n_devices);
  for (uint32_t i = 0; i < n_nodes; ++i) {
    if (stage_of_node[i] >= -1 && stage_of_node[i] <= OPI_WIRE_MAX_STAGE)
      continue;
    return opi_fail(err, OPIPE_E_INVALID, "node %u: stage %d is outside [-1, %d]", i,
                    stage_of_node[i], OPI_WIRE_MAX_STAGE);
  }
  opi_text own, entry;
  opi_text_init(&own, model->allocator);
  opi_text_init(&entry, model->allocator);
  const bool built = model->built != NULL; /* its content is put into the bytes first */
  opipe_status status = built ? opi_built_write(model, to_text, &own, err) : OPIPE_OK;
  const annotator a = {.file = built ? (const uint8_t *)own.data : model->file,
                       .name = name,
                       .n_name = strlen(name),
                       .stages = stage_of_node,
                       .n_nodes = n_nodes,
                       .n_devices = n_devices,
                       .shards = shards,
                       .entry = &entry,
                       .write = write,
                       .ctx = ctx,
                       .err = err};
  if (status == OPIPE_OK)
    status = write_model(&a, built ? own.n : model->file_bytes);
  opi_text_release(&own);
  opi_text_release(&entry);
  return status;
}
