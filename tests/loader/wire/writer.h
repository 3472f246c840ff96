/* SPDX-License-Identifier: Apache-2.0 */
/* Writes ONNX messages by hand, wrong ones too: what the tests of the file side feed to the loader.
 * A `bytes` grows in malloc'd memory; w_sub and w_file take what they are given over and free it.
 */
#ifndef TESTS_LOADER_WIRE_WRITER_H
#define TESTS_LOADER_WIRE_WRITER_H

#include <stdlib.h>

#include "loader/graph/model.h"
#include "tests/support/support.h"

typedef struct bytes {
  uint8_t *data;
  size_t n, room;
} bytes;

static inline void w_raw(bytes *b, const void *data, size_t n) {
  if (b->n + n > b->room) {
    b->room = 2 * (b->n + n) + 64;
    b->data = realloc(b->data, b->room);
    if (b->data == NULL)
      abort();
  }
  if (n != 0)
    memcpy(b->data + b->n, data, n);
  b->n += n;
}

static inline void w_varint(bytes *b, uint64_t value) {
  do {
    const uint8_t byte = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    w_raw(b, &byte, 1);
    value >>= 7;
  } while (value != 0);
}

static inline void w_num(bytes *b, uint32_t field, int64_t value) {
  w_varint(b, (uint64_t)field << 3);
  w_varint(b, (uint64_t)value);
}

static inline void w_bytes(bytes *b, uint32_t field, const void *data, size_t n) {
  w_varint(b, (uint64_t)field << 3 | 2);
  w_varint(b, n);
  w_raw(b, data, n);
}

static inline void w_text(bytes *b, uint32_t field, const char *text) {
  w_bytes(b, field, text, strlen(text));
}

static inline void w_float(bytes *b, uint32_t field, float value) {
  w_varint(b, (uint64_t)field << 3 | 5);
  w_raw(b, &value, sizeof(value));
}

/* A message as a field; `sub` is freed. */
static inline void w_sub(bytes *b, uint32_t field, bytes sub) {
  w_bytes(b, field, sub.data, sub.n);
  free(sub.data);
}

/* ---- messages ---- */

/* TensorProto; raw NULL: none. */
static inline bytes w_tensor(const char *name, int dtype, const int64_t *dims, size_t rank,
                             const void *raw, size_t n) {
  bytes b = {0};
  for (size_t d = 0; d < rank; ++d)
    w_num(&b, 1, dims[d]);
  w_num(&b, 2, dtype);
  if (name != NULL)
    w_text(&b, 8, name);
  if (raw != NULL)
    w_bytes(&b, 9, raw, n);
  return b;
}

static inline void w_entry(bytes *tensor, const char *key, const char *value) {
  bytes b = {0};
  w_text(&b, 1, key);
  w_text(&b, 2, value);
  w_sub(tensor, 13, b);
}

/* TensorProto whose content lies elsewhere; offset and length may be NULL. */
static inline bytes w_external(const char *name, int dtype, const int64_t *dims, size_t rank,
                               const char *location, const char *offset, const char *length) {
  bytes b = w_tensor(name, dtype, dims, rank, NULL, 0);
  w_entry(&b, "location", location);
  if (offset != NULL)
    w_entry(&b, "offset", offset);
  if (length != NULL)
    w_entry(&b, "length", length);
  w_num(&b, 14, 1);
  return b;
}

/* ValueInfoProto of a tensor; a dimension below 0 is the free one "n". */
static inline bytes w_value(const char *name, int dtype, const int64_t *dims, size_t rank) {
  bytes shape = {0}, tensor = {0}, type = {0}, b = {0};
  for (size_t d = 0; d < rank; ++d) {
    bytes dim = {0};
    if (dims[d] < 0)
      w_text(&dim, 2, "n");
    else
      w_num(&dim, 1, dims[d]);
    w_sub(&shape, 1, dim);
  }
  w_num(&tensor, 1, dtype);
  w_sub(&tensor, 2, shape);
  w_sub(&type, 1, tensor);
  w_text(&b, 1, name);
  w_sub(&b, 2, type);
  return b;
}

static inline void w_names(bytes *b, uint32_t field, const char *names) {
  /* Separated by blanks; "-" is the empty name. */
  for (const char *at = names; *at != '\0';) {
    const size_t n = strcspn(at, " ");
    const bool empty = n == 1 && at[0] == '-';
    w_bytes(b, field, at, empty ? 0 : n);
    at += n + (at[n] == ' ');
  }
}

/* NodeProto; name and domain may be NULL. */
static inline bytes w_node(const char *op, const char *name, const char *domain, const char *in,
                           const char *out) {
  bytes b = {0};
  w_names(&b, 1, in);
  w_names(&b, 2, out);
  if (name != NULL)
    w_text(&b, 3, name);
  w_text(&b, 4, op);
  if (domain != NULL)
    w_text(&b, 7, domain);
  return b;
}

static inline void w_attr_int(bytes *node, const char *name, int64_t value) {
  bytes b = {0};
  w_text(&b, 1, name);
  w_num(&b, 3, value);
  w_num(&b, 20, 2);
  w_sub(node, 5, b);
}

static inline void w_attr_ints(bytes *node, const char *name, const int64_t *values, size_t n) {
  bytes b = {0};
  w_text(&b, 1, name);
  for (size_t i = 0; i < n; ++i)
    w_num(&b, 8, values[i]);
  w_num(&b, 20, 7);
  w_sub(node, 5, b);
}

static inline void w_attr_ref(bytes *node, const char *name, const char *of) {
  bytes b = {0};
  w_text(&b, 1, name);
  w_text(&b, 21, of);
  w_num(&b, 20, 2);
  w_sub(node, 5, b);
}

static inline void w_attr_graph(bytes *node, const char *name, bytes graph) {
  bytes b = {0};
  w_text(&b, 1, name);
  w_sub(&b, 6, graph);
  w_num(&b, 20, 5);
  w_sub(node, 5, b);
}

static inline void w_stage(bytes *node, const char *configuration, int64_t stage) {
  bytes b = {0};
  w_text(&b, 1, configuration);
  w_num(&b, 3, stage);
  w_sub(node, 10, b);
}

static inline void w_opset(bytes *b, uint32_t field, const char *domain, int64_t version) {
  bytes o = {0};
  w_text(&o, 1, domain);
  w_num(&o, 2, version);
  w_sub(b, field, o);
}

/* ModelProto of a graph, opset 17. */
static inline bytes w_model(bytes graph, int64_t ir) {
  bytes b = {0};
  w_num(&b, 1, ir);
  w_opset(&b, 8, "", 17);
  w_text(&graph, 2, "g");
  w_sub(&b, 7, graph);
  return b;
}

/* A file: x [rows, width] -> (MatMul, `op`) x layers -> y, with seeded weights. rows below 0: free.
 * False when it cannot be written. */
static inline bool w_write_chain(const char *path, const char *op, int64_t rows, int64_t width,
                                 int layers) {
  const int64_t square[] = {width, width}, shape[] = {rows, width};
  const size_t n_bytes = sizeof(float) * (size_t)(width * width);
  float *weights = malloc(n_bytes);
  bytes graph = {0};
  if (weights == NULL)
    return false;
  opi_test_random random = {7};
  for (int i = 0; i < layers; ++i) {
    char in[64], mid[32], out[32], name[32];
    (void)snprintf(name, sizeof name, "w%d", i);
    (void)snprintf(mid, sizeof mid, "m%d", i);
    (void)snprintf(out, sizeof out, i == layers - 1 ? "y" : "h%d", i);
    (void)snprintf(in, sizeof in, i == 0 ? "x w%d" : "h%d w%d", i == 0 ? 0 : i - 1, i);
    opi_test_fill_f32(&random, weights, (size_t)(width * width), -0.05, 0.05);
    w_sub(&graph, 1, w_node("MatMul", NULL, NULL, in, mid));
    w_sub(&graph, 1, w_node(op, NULL, NULL, mid, out));
    w_sub(&graph, 5, w_tensor(name, OPIPE_FLOAT, square, 2, weights, n_bytes));
  }
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, shape, 2));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, shape, 2));
  bytes model = w_model(graph, 9);
  const bool ok = opi_test_write_file(path, model.data, model.n);
  free(model.data);
  free(weights);
  return ok;
}

/* ---- loading ---- */

static inline opipe_status w_load(bytes model, uint32_t flags, const opi_logger *logger,
                                  opi_model **out_model, opipe_error *err) {
  const opi_load_params params = {
      .data = model.data, .n_bytes = model.n, .flags = flags, .logger = logger};
  *out_model = NULL;
  return opi_model_load(&params, out_model, err);
}

/* Index of the value of that name in the graph, OPIPE_NONE if there is none. */
static inline uint32_t w_find(const opi_graph *graph, const char *name) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (strcmp(graph->values[v].name, name) == 0)
      return v;
  }
  return OPIPE_NONE;
}

#endif /* TESTS_LOADER_WIRE_WRITER_H */
