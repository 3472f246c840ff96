/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reading of models and tensors from memory. What is read must be consistent: every
 * tensor's bytes readable, every index in range, and an annotated copy readable again.
 *
 * Seeds are the small models of tests/data, found when the fuzzer starts. The mutator knows
 * messages: it changes one field at some depth and makes the lengths around it fit again, so that
 * inputs get past the wire format; one time in four it mutates plain bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/graph/model.h"
#include "loader/wire/scan.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* ---- seeds ---- */

/* Adds the seed folders behind the corpus, if one was given. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  static const char *const folders[] = {"odd", "old"};
  static char paths[OPI_COUNT(folders)][1024];
  const char *source = getenv("OPIPE_SOURCE_DIR");
  bool has_corpus = false;
  for (int i = 1; i < *argc; i++)
    has_corpus = has_corpus || (*argv)[i][0] != '-';
  if (source == NULL || !has_corpus)
    return 0;
  const size_t n = (size_t)*argc;
  char **longer = calloc(n + OPI_COUNT(folders) + 1, sizeof(*longer));
  if (longer == NULL)
    return 0;
  memcpy(longer, *argv, n * sizeof(*longer));
  for (size_t i = 0; i < OPI_COUNT(folders); i++) {
    (void)snprintf(paths[i], sizeof(paths[i]), "%s/tests/data/%s", source, folders[i]);
    longer[n + i] = paths[i];
  }
  *argv = longer; /* until the process ends */
  *argc += (int)OPI_COUNT(folders);
  return 0;
}

/* ---- the test ---- */

static void must(bool condition, const char *what) {
  if (condition)
    return;
  (void)fprintf(stderr, "fuzz_model: %s\n", what);
  abort();
}

static volatile uint8_t sink;

/* Reads the ends of a tensor: they must be memory. */
static void touch(const void *data, uint64_t n_bytes) {
  const uint8_t *bytes = data;
  if (data == NULL || n_bytes == 0)
    return;
  sink = (uint8_t)(bytes[0] ^ bytes[n_bytes / 2] ^ bytes[n_bytes - 1]);
}

static void check_graph(const opi_graph *graph);

static void check_attribute(const opi_graph *graph, const opipe_attr *attr) {
  must(attr->name != NULL, "an attribute without a name");
  if (attr->kind == OPIPE_ATTR_TENSOR) {
    const opipe_literal *literal = attr->data;
    touch(literal->data, literal->n_bytes);
  } else if (attr->kind == OPI_ATTR_GRAPH) {
    const opi_graph *inner = attr->data;
    must(inner->outer == graph, "a subgraph of another graph");
    check_graph(inner);
  } else if (attr->kind == OPIPE_ATTR_STRING) {
    must(((const char *)attr->data)[attr->n] == '\0', "a string without its end");
  }
}

static void check_node(const opi_graph *graph, uint32_t n) {
  const opi_node *node = &graph->nodes[n];
  for (uint32_t i = 0; i < node->n_in; i++) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    must(node->in[i] < graph->n_values, "an input out of range");
    const uint32_t producer = graph->values[node->in[i]].producer;
    must(producer == OPIPE_NONE || producer < n, "read before it is made");
  }
  for (uint32_t i = 0; i < node->n_out; i++) {
    if (node->out[i] == OPIPE_NONE)
      continue;
    must(node->out[i] < graph->n_values, "an output out of range");
    must(graph->values[node->out[i]].producer == n, "made by another node");
  }
  for (uint32_t a = 0; a < node->n_attrs; a++)
    check_attribute(graph, &node->attrs[a]);
}

static void check_graph(const opi_graph *graph) {
  for (uint32_t v = 0; v < graph->n_values; v++) {
    const opi_value *value = &graph->values[v];
    must(value->name != NULL, "a value without a name");
    touch(value->data, value->n_bytes);
  }
  for (uint32_t n = 0; n < graph->n_nodes; n++)
    check_node(graph, n);
  for (uint32_t i = 0; i < graph->n_outputs; i++) {
    must(graph->outputs[i] < graph->n_values, "a graph output out of range");
  }
  for (uint32_t i = 0; i < graph->n_captures; i++) {
    must(graph->capture_inner[i] < graph->n_values, "a captured value out of range");
    must(graph->capture_outer[i] < graph->outer->n_values, "a captured name out of range");
  }
}

typedef struct copy {
  uint8_t *data;
  size_t n, room;
} copy;

static opipe_status append(void *ctx, const void *data, size_t n) {
  copy *c = ctx;
  if (n > c->room - c->n)
    return OPIPE_E_LIMIT;
  memcpy(c->data + c->n, data, n);
  c->n += n;
  return OPIPE_OK;
}

/* Nodes in the file's main graph: the annotation wants one stage for each. */
static uint32_t count_nodes(const opi_model *model) {
  uint64_t at = 0;
  uint32_t n = 0;
  opi_wire_field field, inner;
  while (at < model->file_bytes && opi_wire_next(model->file, model->file_bytes, &at, &field)) {
    if (field.number != 7)
      continue;
    for (uint64_t k = field.data;
         k < field.end && opi_wire_next(model->file, field.end, &k, &inner);) {
      n += inner.number == 1;
    }
  }
  return n;
}

static void check_annotation(const opi_model *model, const opi_load_params *params) {
  const uint32_t n_nodes = count_nodes(model);
  int32_t *stages = calloc((size_t)n_nodes + 1, sizeof(*stages));
  copy out = {.room = model->file_bytes + 64 * ((size_t)n_nodes + 1)};
  out.data = malloc(out.room);
  if (stages != NULL && out.data != NULL) {
    must(opi_model_annotate(model, "p", stages, n_nodes, 1, append, &out, NULL) >= 0,
         "it cannot be annotated");
    opi_load_params again = *params;
    opi_model *annotated = NULL;
    again.data = out.data;
    again.n_bytes = out.n;
    const opipe_status status = opi_model_load(&again, &annotated, NULL);
    /* A copy is a little larger, so a limit may be met. */
    must(status >= 0 || status == OPIPE_E_LIMIT, "the annotated copy cannot be read");
    opi_model_free(annotated);
  }
  free(out.data);
  free(stages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const opi_load_params params = {.data = data,
                                  .n_bytes = size,
                                  .flags = size % 2 == 0 ? OPI_LOAD_GRAPH_ONLY : 0,
                                  .memory_budget_bytes = UINT64_C(16) << 20};
  opi_model *model = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_model_load(&params, &model, &err);
  must((status < 0) == (err.message[0] != '\0'), "a status without a message");
  if (status >= 0) {
    check_graph(model->graph);
    check_annotation(model, &params);
  }
  opi_model_free(model);

  opi_arena arena;
  opi_value tensor;
  opi_arena_init(&arena, opi_allocator_system(), UINT64_C(64) << 20);
  if (opi_tensor_parse(data, size, &arena, &tensor, NULL) >= 0)
    touch(tensor.data, tensor.n_bytes);
  opi_arena_release(&arena);
  return 0;
}

/* ---- the mutator ---- */

enum { MOST_DEPTH = 12, MOST_BYTES = 1 << 16 };

static uint32_t rng;

static uint32_t pick(uint32_t n) {
  rng = rng * 1664525u + 1013904223u;
  return n == 0 ? 0 : (rng >> 8) % n;
}

/* Whether bytes [data, end) are fields throughout: then they may be a message. */
static bool is_message(const uint8_t *bytes, uint64_t at, uint64_t end) {
  opi_wire_field field;
  while (at < end) {
    if (!opi_wire_next(bytes, end, &at, &field))
      return false;
  }
  return true;
}

/* Chooses one of the fields of [begin, end); false when there is none. */
static bool choose(const uint8_t *bytes, uint64_t begin, uint64_t end, opi_wire_field *out) {
  opi_wire_field field;
  uint32_t n = 0;
  for (uint64_t at = begin; at < end && opi_wire_next(bytes, end, &at, &field);) {
    if (pick(++n) == 0)
      *out = field;
  }
  return n != 0;
}

typedef struct piece {
  uint8_t *data; /* room for MOST_BYTES */
  size_t n;
} piece;

static void put(piece *p, const uint8_t *data, size_t n) {
  if (n > MOST_BYTES - p->n)
    n = MOST_BYTES - p->n;
  if (n != 0)
    memcpy(p->data + p->n, data, n);
  p->n += n;
}

static void put_head(piece *p, const opi_wire_field *field, uint64_t n) {
  uint8_t head[20];
  uint32_t k = opi_wire_put_varint(head, (uint64_t)field->number << 3 | field->wire);
  if (field->wire == OPI_WIRE_BYTES)
    k += opi_wire_put_varint(head + k, n);
  put(p, head, k);
}

/* What the chosen field becomes: absent, twice, another's content, or changed. */
static void change(const uint8_t *bytes, const opi_wire_field *field, piece *out) {
  static uint8_t content[MOST_BYTES];
  static const uint64_t numbers[] = {0,   1,         2,          7,         16,        127,
                                     128, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
  size_t n = field->n_bytes < MOST_BYTES / 4 ? (size_t)field->n_bytes : MOST_BYTES / 4;
  switch (pick(6)) {
    case 0:
      return;
    case 1:
      put(out, bytes + field->start, (size_t)(field->end - field->start));
      put(out, bytes + field->start, (size_t)(field->end - field->start));
      return;
    default:
      break;
  }
  if (field->wire == OPI_WIRE_VARINT) {
    put_head(out, field, 0);
    const uint64_t value =
        pick(2) == 0 ? numbers[pick(OPI_COUNT(numbers))] : field->value + pick(5) - 2;
    put(out, content, opi_wire_put_varint(content, value));
    return;
  }
  memcpy(content, bytes + field->data, n);
  if (field->wire == OPI_WIRE_BYTES)
    n = LLVMFuzzerMutate(content, n, n + 1 + pick(64));
  put_head(out, field, n);
  put(out, content, n);
}

/* Copies [begin, end) with one field in it changed, at this level or below. */
static void rewrite(const uint8_t *bytes, uint64_t begin, uint64_t end, uint32_t depth,
                    piece *out) {
  opi_wire_field field = {0};
  if (!choose(bytes, begin, end, &field)) {
    put(out, bytes + begin, (size_t)(end - begin));
    return;
  }
  put(out, bytes + begin, (size_t)(field.start - begin));
  const bool below = field.wire == OPI_WIRE_BYTES && field.n_bytes != 0 && depth < MOST_DEPTH &&
                     pick(8) != 0 && is_message(bytes, field.data, field.end);
  if (below) {
    piece inner = {malloc(MOST_BYTES), 0};
    if (inner.data == NULL)
      return;
    rewrite(bytes, field.data, field.end, depth + 1, &inner);
    put_head(out, &field, inner.n);
    put(out, inner.data, inner.n);
    free(inner.data);
  } else {
    change(bytes, &field, out);
  }
  put(out, bytes + field.end, (size_t)(end - field.end));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  rng = seed;
  if (pick(4) == 0 || size > MOST_BYTES / 2 || !is_message(data, 0, size)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  piece out = {malloc(MOST_BYTES), 0};
  if (out.data == NULL)
    return size;
  rewrite(data, 0, size, 0, &out);
  const size_t n = out.n < max_size ? out.n : max_size;
  memcpy(data, out.data, n);
  free(out.data);
  return n;
}
