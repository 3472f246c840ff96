/* SPDX-License-Identifier: Apache-2.0 */
/* AttributeProto -> opipe_attr: the declared type decides (old files leave it out: then what is
 * there), references inside function bodies are replaced by what the call says or by the function's
 * default, and subgraphs become graphs of their own.
 */
#include "loader/wire/wire.h"

#include <string.h>

enum {
  TYPE_FLOAT = 1,
  TYPE_INT,
  TYPE_STRING,
  TYPE_TENSOR,
  TYPE_GRAPH,
  TYPE_FLOATS,
  TYPE_INTS,
  TYPE_STRINGS,
  TYPE_TENSORS,
  TYPE_GRAPHS,
  TYPE_SPARSE_TENSOR,
  TYPE_SPARSE_TENSORS,
  TYPE_TYPE_PROTO,
  TYPE_TYPE_PROTOS,
  TYPE_COUNT
};

static const char *const type_names[TYPE_COUNT] = {
    "UNDEFINED",      "FLOAT",      "INT",        "STRING",  "TENSOR", "GRAPH",
    "FLOATS",         "INTS",       "STRINGS",    "TENSORS", "GRAPHS", "SPARSE_TENSOR",
    "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"};

/* Bit per type for which the message holds something. */
static uint32_t held_types(const OpiOnnx__AttributeProto *a) {
  const bool has[TYPE_COUNT] = {
      [TYPE_FLOAT] = a->has_f,
      [TYPE_INT] = a->has_i,
      [TYPE_STRING] = a->has_s,
      [TYPE_TENSOR] = a->t != NULL,
      [TYPE_GRAPH] = a->g != NULL,
      [TYPE_FLOATS] = a->n_floats != 0,
      [TYPE_INTS] = a->n_ints != 0,
      [TYPE_STRINGS] = a->n_strings != 0,
      [TYPE_TENSORS] = a->n_tensors != 0,
      [TYPE_GRAPHS] = a->n_graphs != 0,
      [TYPE_SPARSE_TENSOR] = a->sparse_tensor != NULL,
      [TYPE_SPARSE_TENSORS] = a->n_sparse_tensors != 0,
      [TYPE_TYPE_PROTO] = a->tp != NULL,
      [TYPE_TYPE_PROTOS] = a->n_type_protos != 0,
  };
  uint32_t held = 0;
  for (uint32_t t = 1; t < TYPE_COUNT; ++t)
    held |= (uint32_t)has[t] << t;
  return held;
}

/* Names the attribute in what went wrong. */
static opipe_status about(const OpiOnnx__AttributeProto *a, opipe_status status, opipe_error *err) {
  (void)opi_error_prefix(err, "attribute '%.100s': ", opi_wire_text(a->name));
  return status;
}

static opipe_status decide_type(const OpiOnnx__AttributeProto *a, uint32_t *out_type,
                                opipe_error *err) {
  const uint32_t held = held_types(a), type = (uint32_t)a->type;
  if (type >= TYPE_COUNT)
    return opi_fail(err, OPIPE_E_INVALID, "unknown attribute type %d", a->type);
  if (held != 0 && (held & (held - 1)) != 0)
    return opi_fail(err, OPIPE_E_INVALID, "it has values of more than one type");
  if (type != 0) {
    if (held != 0 && held != 1u << type) {
      return opi_fail(err, OPIPE_E_INVALID, "declared %s, but holds %s", type_names[type],
                      type_names[__builtin_ctz(held)]);
    }
    *out_type = type;
    return OPIPE_OK;
  }
  /* Old files: no type. Nothing at all is an empty list; which one makes no difference. */
  *out_type = held != 0 ? (uint32_t)__builtin_ctz(held) : TYPE_INTS;
  return OPIPE_OK;
}

static opipe_status nomem(opipe_error *err, uint64_t n_bytes) {
  return opi_fail_nomem(err, n_bytes, "an attribute");
}

static opipe_status read_string(opi_arena *arena, const ProtobufCBinaryData *text, const char **out,
                                opipe_error *err) {
  *out = opi_arena_strndup(arena, (const char *)text->data, text->len);
  return *out != NULL ? OPIPE_OK : nomem(err, text->len);
}

static opipe_status read_strings(opi_arena *arena, const OpiOnnx__AttributeProto *a,
                                 opipe_attr *out, opipe_error *err) {
  const char **list = OPI_ARENA_ARRAY(arena, const char *, a->n_strings);
  if (list == NULL)
    return nomem(err, 8 * a->n_strings);
  for (size_t i = 0; i < a->n_strings; ++i)
    OPI_TRY(read_string(arena, &a->strings[i], &list[i], err));
  out->kind = OPIPE_ATTR_STRINGS;
  out->data = list;
  out->n = (uint32_t)a->n_strings;
  return OPIPE_OK;
}

static opipe_status read_list(opi_arena *arena, uint32_t kind, const void *data, size_t n,
                              size_t size, opipe_attr *out, opipe_error *err) {
  if (n > UINT32_MAX)
    return nomem(err, n * size);
  out->kind = kind;
  out->n = (uint32_t)n;
  out->data = opi_arena_copy(arena, data, n * size);
  return out->data != NULL ? OPIPE_OK : nomem(err, n * size);
}

static opipe_status read_tensor(opi_load *load, const OpiOnnx__AttributeProto *a, opipe_attr *out,
                                opipe_error *err) {
  opi_dense dense;
  if (a->t == NULL && a->sparse_tensor == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "declared a tensor, but holds none");
  OPI_TRY(a->t != NULL ? opi_wire_tensor(load, a->t, &dense, err)
                       : opi_wire_sparse(load, a->sparse_tensor, &dense, err));
  opipe_literal *literal = OPI_ARENA_NEW(load->arena, opipe_literal);
  if (literal == NULL)
    return nomem(err, sizeof(*literal));
  *literal = (opipe_literal){dense.data, dense.shape, dense.n_bytes, dense.dtype, dense.rank};
  out->kind = OPIPE_ATTR_TENSOR;
  out->n = 1;
  out->data = literal;
  return OPIPE_OK;
}

static opipe_status read_subgraph(opi_scope *scope, const OpiOnnx__AttributeProto *a,
                                  opipe_attr *out, opipe_error *err) {
  if (a->g == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "declared a graph, but holds none");
  opi_arena *arena = scope->load->arena;
  const char *name = opi_arena_strdup(arena, opi_wire_text(a->g->name));
  opi_graph *graph = name != NULL ? opi_graph_new(arena, name) : NULL;
  if (graph == NULL)
    return nomem(err, sizeof(*graph));
  graph->outer = scope->graph;
  opi_scope inner;
  opipe_status status = opi_scope_open(&inner, scope->load, graph, scope, err);
  if (status >= 0)
    status = opi_wire_graph(&inner, a->g, err);
  opi_scope_close(&inner);
  out->kind = OPI_ATTR_GRAPH;
  out->n = 1;
  out->data = graph;
  return status;
}

static opipe_status read_value(opi_scope *scope, const OpiOnnx__AttributeProto *a, opipe_attr *out,
                               opipe_error *err) {
  opi_arena *arena = scope->load->arena;
  uint32_t type = 0;
  OPI_TRY(decide_type(a, &type, err));
  switch (type) {
    case TYPE_FLOAT:
      out->kind = OPIPE_ATTR_FLOAT;
      out->f = (double)a->f;
      return OPIPE_OK;
    case TYPE_INT:
      out->kind = OPIPE_ATTR_INT;
      out->i = a->i;
      return OPIPE_OK;
    case TYPE_STRING: {
      const char *text = NULL;
      OPI_TRY(read_string(arena, &a->s, &text, err));
      out->kind = OPIPE_ATTR_STRING;
      out->data = text;
      out->n = (uint32_t)a->s.len;
      return OPIPE_OK;
    }
    case TYPE_TENSOR:
    case TYPE_SPARSE_TENSOR:
      return read_tensor(scope->load, a, out, err);
    case TYPE_GRAPH:
      return read_subgraph(scope, a, out, err);
    case TYPE_FLOATS:
      return read_list(arena, OPIPE_ATTR_FLOATS, a->floats, a->n_floats, 4, out, err);
    case TYPE_INTS:
      return read_list(arena, OPIPE_ATTR_INTS, a->ints, a->n_ints, 8, out, err);
    case TYPE_STRINGS:
      return read_strings(arena, a, out, err);
    default:
      /* Lists of tensors, graphs and types: no operator that is supported has one. */
      out->kind = OPI_ATTR_OTHER;
      return OPIPE_OK;
  }
}

/* Resolves `a`, a reference to an attribute of the enclosing function; kind 0: the caller does not
 * set it. */
static opipe_status read_reference(opi_scope *scope, const OpiOnnx__AttributeProto *a,
                                   opipe_attr *out, opipe_error *err) {
  const opi_call *call = scope->call;
  if (call == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "refers to attribute '%.100s' outside of a function",
                    a->ref_attr_name);
  }
  for (uint32_t i = 0; i < call->n_attrs; ++i) {
    if (strcmp(call->attrs[i].name, a->ref_attr_name) != 0)
      continue;
    const char *name = out->name;
    *out = call->attrs[i];
    out->name = name;
    if (out->kind == OPI_ATTR_GRAPH && ((const opi_graph *)out->data)->outer != scope->graph)
      return opi_fail(err, OPIPE_E_UNSUPPORTED, "a graph handed into a function's subgraph");
    return OPIPE_OK;
  }
  const OpiOnnx__FunctionProto *function = call->function;
  for (size_t i = 0; i < function->n_attribute_proto; ++i) {
    const OpiOnnx__AttributeProto *preset = function->attribute_proto[i];
    if (strcmp(opi_wire_text(preset->name), a->ref_attr_name) != 0)
      continue;
    return read_value(scope, preset, out, err);
  }
  return OPIPE_OK;
}

static opipe_status read_attribute(opi_scope *scope, const OpiOnnx__NodeProto *node,
                                   const OpiOnnx__AttributeProto *a, opipe_attr *out,
                                   opipe_error *err) {
  const char *name = opi_wire_text(a->name);
  if (name[0] == '\0')
    return opi_fail(err, OPIPE_E_INVALID, "has no name");
  /* Read here, so that operators know one form less. */
  if (strcmp(name, "sparse_value") == 0 && strcmp(opi_wire_text(node->op_type), "Constant") == 0)
    name = "value";
  out->name = opi_arena_strdup(scope->load->arena, name);
  if (out->name == NULL)
    return nomem(err, strlen(name) + 1);
  if (opi_wire_text(a->ref_attr_name)[0] != '\0')
    return read_reference(scope, a, out, err);
  return read_value(scope, a, out, err);
}

opipe_status opi_wire_attributes(opi_scope *scope, const OpiOnnx__NodeProto *node,
                                 opipe_attr **out_attrs, uint32_t *out_n, opipe_error *err) {
  uint32_t n = 0;
  if (node->n_attribute > OPI_WIRE_MAX_ATTRIBUTES) {
    return opi_fail(err, OPIPE_E_LIMIT, "has %zu attributes; the limit is %d", node->n_attribute,
                    OPI_WIRE_MAX_ATTRIBUTES);
  }
  opipe_attr *attrs = OPI_ARENA_ARRAY(scope->load->arena, opipe_attr, node->n_attribute);
  if (attrs == NULL)
    return nomem(err, node->n_attribute * sizeof(*attrs));
  for (size_t i = 0; i < node->n_attribute; ++i) {
    const OpiOnnx__AttributeProto *a = node->attribute[i];
    const opipe_status status = read_attribute(scope, node, a, &attrs[n], err);
    if (status < 0)
      return about(a, status, err);
    for (uint32_t k = 0; k < n; ++k) {
      if (strcmp(attrs[k].name, attrs[n].name) != 0)
        continue;
      return about(a, opi_fail(err, OPIPE_E_INVALID, "occurs twice"), err);
    }
    if (attrs[n].kind != 0)
      ++n;
  }
  *out_attrs = attrs;
  *out_n = n;
  return OPIPE_OK;
}
