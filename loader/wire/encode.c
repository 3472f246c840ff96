/* SPDX-License-Identifier: Apache-2.0 */
/* A host's tables -> the bytes of a model file (numbers of fields and types are the format's), so
 * that one import checks whatever becomes a model, and what was built can be saved and annotated
 * like what was read.
 *
 * A nested message stands behind its length: the same function runs twice, first only counting.
 */
#include <stdio.h>
#include <string.h>

#include "loader/wire/build.h"

enum { IR_VERSION = 10 /* where the host says none */ };

typedef struct encoder {
  uint8_t *out; /* NULL: only count */
  uint64_t n;
} encoder;

typedef void (*body_fn)(encoder *e, const void *what);

/* ---- fields ---- */

static void put(encoder *e, const void *data, uint64_t n_bytes) {
  if (e->out != NULL && n_bytes != 0)
    memcpy(e->out + e->n, data, n_bytes);
  e->n += n_bytes;
}

static void put_varint(encoder *e, uint64_t value) {
  e->n += opi_wire_put_varint(e->out == NULL ? NULL : e->out + e->n, value);
}

static void put_number(encoder *e, uint32_t field, uint64_t value) {
  put_varint(e, (uint64_t)field << 3 | OPI_WIRE_VARINT);
  put_varint(e, value);
}

static void put_float(encoder *e, uint32_t field, float value) {
  put_varint(e, (uint64_t)field << 3 | OPI_WIRE_FIXED32);
  put(e, &value, sizeof value);
}

static void put_bytes(encoder *e, uint32_t field, const void *data, uint64_t n_bytes) {
  put_varint(e, (uint64_t)field << 3 | OPI_WIRE_BYTES);
  put_varint(e, n_bytes);
  put(e, data, n_bytes);
}

static void put_text(encoder *e, uint32_t field, const char *text) {
  put_bytes(e, field, text, strlen(text));
}

static void put_message(encoder *e, uint32_t field, body_fn body, const void *what) {
  encoder count = {NULL, 0};
  body(&count, what);
  put_varint(e, (uint64_t)field << 3 | OPI_WIRE_BYTES);
  put_varint(e, count.n);
  if (e->out == NULL)
    e->n += count.n;
  else
    body(e, what);
}

/* ---- types ---- */

/* A dimension and its name, NULL: none. */
typedef struct dimension {
  int64_t value;
  const char *name;
} dimension;

static void put_dimension(encoder *e, const void *what) {
  enum { VALUE = 1, PARAM = 2 };
  const dimension *d = what;
  if (d->value >= 0)
    put_number(e, VALUE, (uint64_t)d->value);
  else if (d->name != NULL)
    put_text(e, PARAM, d->name);
}

static void put_shape(encoder *e, const void *what) {
  const opipe_build_value *v = what;
  for (int32_t i = 0; i < v->rank; ++i) {
    const dimension d = {v->shape[i], v->dim_names == NULL ? NULL : v->dim_names[i]};
    put_message(e, 1, put_dimension, &d);
  }
}

static void put_tensor_type(encoder *e, const void *what) {
  const opipe_build_value *v = what;
  put_number(e, 1, v->dtype);
  if (v->rank >= 0)
    put_message(e, 2, put_shape, v);
}

static void put_type(encoder *e, const void *what) {
  put_message(e, 1, put_tensor_type, what);
}

static void put_value(encoder *e, const void *what) {
  const opipe_build_value *v = what;
  put_text(e, 1, v->name);
  put_message(e, 2, put_type, v);
}

/* ---- tensors ---- */

enum {
  TENSOR_DIMS = 1,
  TENSOR_TYPE = 2,
  TENSOR_NAME = 8,
  TENSOR_RAW = 9,
  TENSOR_EXTERNAL = 13,
  TENSOR_LOCATION = 14
};

static void put_literal(encoder *e, const void *what) {
  const opipe_literal *t = what;
  for (uint32_t d = 0; d < t->rank; ++d)
    put_number(e, TENSOR_DIMS, (uint64_t)t->shape[d]);
  put_number(e, TENSOR_TYPE, t->dtype);
  if (t->dtype != OPIPE_STRING)
    put_bytes(e, TENSOR_RAW, t->data, t->n_bytes);
}

static void put_place(encoder *e, const void *what) {
  put_text(e, 1, "location");
  put_text(e, 2, what);
}

/* A tensor of the main graph, whose content is found again by `index`; OPIPE_NONE: it is in a body.
 */
typedef struct tensor_at {
  opipe_build_tensor tensor;
  uint32_t index;
} tensor_at;

static void put_tensor(encoder *e, const void *what) {
  const tensor_at *at = what;
  const opipe_build_tensor *t = &at->tensor;
  const bool external = at->index != OPIPE_NONE && t->dtype != OPIPE_STRING;
  const opipe_literal literal = {t->data, t->shape, t->n_bytes, t->dtype, t->rank};
  char location[16];
  if (!external) {
    put_literal(e, &literal);
    put_text(e, TENSOR_NAME, t->name);
    return;
  }
  (void)snprintf(location, sizeof location, "%u", at->index);
  for (uint32_t d = 0; d < t->rank; ++d)
    put_number(e, TENSOR_DIMS, (uint64_t)t->shape[d]);
  put_number(e, TENSOR_TYPE, t->dtype);
  put_text(e, TENSOR_NAME, t->name);
  put_message(e, TENSOR_EXTERNAL, put_place, location);
  put_number(e, TENSOR_LOCATION, 1);
}

/* ---- nodes ---- */

static void put_body(encoder *e, const void *what);

static void put_attribute(encoder *e, const void *what) {
  enum {
    NAME = 1,
    F = 2,
    I = 3,
    S = 4,
    T = 5,
    G = 6,
    FLOATS = 7,
    INTS = 8,
    STRINGS = 9,
    TYPE = 20
  };
  static const uint8_t types[] = {
      [OPIPE_ATTR_FLOAT] = 1,  [OPIPE_ATTR_INT] = 2,    [OPIPE_ATTR_STRING] = 3,
      [OPIPE_ATTR_TENSOR] = 4, [OPIPE_ATTR_GRAPH] = 5,  [OPIPE_ATTR_FLOATS] = 6,
      [OPIPE_ATTR_INTS] = 7,   [OPIPE_ATTR_STRINGS] = 8};
  const opipe_attr *a = what;
  put_text(e, NAME, a->name);
  switch (a->kind) {
    case OPIPE_ATTR_FLOAT:
      put_float(e, F, (float)a->f);
      break;
    case OPIPE_ATTR_INT:
      put_number(e, I, (uint64_t)a->i);
      break;
    case OPIPE_ATTR_STRING:
      put_bytes(e, S, a->data, a->n);
      break;
    case OPIPE_ATTR_TENSOR:
      put_message(e, T, put_literal, a->data);
      break;
    case OPIPE_ATTR_GRAPH:
      put_message(e, G, put_body, a->data);
      break;
    default:
      break;
  }
  for (uint32_t i = 0; i < a->n; ++i) {
    if (a->kind == OPIPE_ATTR_FLOATS)
      put_float(e, FLOATS, ((const float *)a->data)[i]);
    else if (a->kind == OPIPE_ATTR_INTS)
      put_number(e, INTS, (uint64_t)((const int64_t *)a->data)[i]);
    else if (a->kind == OPIPE_ATTR_STRINGS)
      put_text(e, STRINGS, ((const char *const *)a->data)[i]);
  }
  put_number(e, TYPE, types[a->kind]);
}

static void put_node(encoder *e, const void *what) {
  enum { INPUT = 1, OUTPUT = 2, NAME = 3, OP = 4, ATTRIBUTE = 5, DOMAIN = 7 };
  const opipe_build_node *n = what;
  for (uint32_t i = 0; i < n->n_inputs; ++i)
    put_text(e, INPUT, n->inputs[i]);
  for (uint32_t i = 0; i < n->n_outputs; ++i)
    put_text(e, OUTPUT, n->outputs[i]);
  if (n->name != NULL)
    put_text(e, NAME, n->name);
  put_text(e, OP, n->op);
  for (uint32_t i = 0; i < n->n_attrs; ++i)
    put_message(e, ATTRIBUTE, put_attribute, &n->attrs[i]);
  if (n->domain != NULL)
    put_text(e, DOMAIN, n->domain);
}

/* ---- graphs ---- */

static void put_graph(encoder *e, const opipe_build_graph *g, bool is_main) {
  enum { NODE = 1, NAME = 2, INITIALIZER = 5, INPUT = 11, OUTPUT = 12 };
  opipe_build_value value;
  opipe_build_node node;
  for (uint32_t i = 0; i < g->n_nodes; ++i) {
    opi_array_get(g->nodes, g->nodes_stride, i, &node, sizeof node);
    put_message(e, NODE, put_node, &node);
  }
  put_text(e, NAME, g->name == NULL || g->name[0] == '\0' ? "graph" : g->name);
  for (uint32_t i = 0; i < g->n_tensors; ++i) {
    const tensor_at at = {opi_build_tensor_at(g, i), is_main ? i : OPIPE_NONE};
    put_message(e, INITIALIZER, put_tensor, &at);
  }
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    opi_array_get(g->inputs, g->values_stride, i, &value, sizeof value);
    put_message(e, INPUT, put_value, &value);
  }
  for (uint32_t i = 0; i < g->n_outputs; ++i) {
    opi_array_get(g->outputs, g->values_stride, i, &value, sizeof value);
    put_message(e, OUTPUT, put_value, &value);
  }
}

static void put_body(encoder *e, const void *what) {
  put_graph(e, what, false);
}

static void put_main(encoder *e, const void *what) {
  put_graph(e, what, true);
}

static void put_opset(encoder *e, const void *what) {
  const opipe_build_opset *o = what;
  put_text(e, 1, o->domain == NULL ? "" : o->domain);
  put_number(e, 2, (uint64_t)o->version);
}

uint64_t opi_build_encode(const opipe_build_params *params, uint8_t *out) {
  enum { IR = 1, PRODUCER = 2, GRAPH = 7, OPSET = 8 };
  encoder e = {out, 0};
  put_number(&e, IR, params->ir_version == 0 ? (uint32_t)IR_VERSION : params->ir_version);
  put_text(&e, PRODUCER, "onnx-pipe");
  put_message(&e, GRAPH, put_main, params->graph);
  for (uint32_t i = 0; i < params->n_opsets; ++i) {
    opipe_build_opset opset;
    opi_array_get(params->opsets, params->opsets_stride, i, &opset, sizeof opset);
    put_message(&e, OPSET, put_opset, &opset);
  }
  return e.n;
}
