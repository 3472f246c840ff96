/* SPDX-License-Identifier: Apache-2.0 */
/* Emitting a node: its outputs are created, the operator's shape rule runs, and if everything it
 * reads is known and small enough, the evaluator computes it at once and only its results stay.
 *
 * A node is folded if all inputs are known and no input or result exceeds the fold limit. The limit
 * is 64 times larger if the node reads no parameter (a float initializer of more than one element),
 * as for index tables and masks that follow from shapes; there is no limit where weights become
 * few-bit numbers. Random operators and matrices unpacked from few bits are never folded, nor, with
 * keep_parameters, readers of a parameter.
 */
#include "loader/ops/builder.h"

#include <inttypes.h>

#define SHAPE_FACTOR 64u

/* Copies what an attribute points to; tensors are the model's own and stay where they are. */
static bool copy_attr(opi_arena *arena, const opipe_attr *from, opipe_attr *to) {
  *to = *from;
  if (from->kind == OPIPE_ATTR_STRING)
    to->data = opi_arena_strndup(arena, from->data, from->n);
  else if (from->kind == OPIPE_ATTR_INTS)
    to->data = opi_arena_copy(arena, from->data, (size_t)from->n * sizeof(int64_t));
  else if (from->kind == OPIPE_ATTR_FLOATS)
    to->data = opi_arena_copy(arena, from->data, (size_t)from->n * sizeof(float));
  else if (from->kind == OPIPE_ATTR_STRINGS)
    to->data = opi_arena_copy(arena, from->data, (size_t)from->n * sizeof(char *));
  else
    return true;
  return to->data != NULL;
}

static const char *node_name(opi_builder *b) {
  const char *base = b->origin != NULL ? b->origin->name : NULL;
  if (base == NULL || base[0] == '\0')
    return opi_arena_printf(b->graph->arena, "node_%" PRIu32, b->graph->n_nodes);
  if (b->n_emitted == 0)
    return base;
  return opi_arena_printf(b->graph->arena, "%s/%" PRIu32, base, b->n_emitted + 1);
}

static opipe_status add_outputs(opi_builder *b, const opi_emit *emit, uint32_t *out_values,
                                opipe_error *err) {
  uint32_t other = 0;
  for (uint32_t o = 0; o < emit->n_out; ++o) {
    const char *name = emit->out_names != NULL ? emit->out_names[o] : NULL;
    out_values[o] = OPIPE_NONE;
    if (name != NULL && name[0] == '\0')
      continue;
    if (name == NULL)
      name = opi_b_name(b);
    if (name == NULL)
      return opi_fail_nomem(err, 32, "a value's name");
    const uint32_t next = b->graph->n_values;
    OPI_TRY(opi_map_claim(b->names, name, next, &other, err));
    if (other != next)
      return opi_fail(err, OPIPE_E_INTERNAL, "value name '%s' is taken", name);
    out_values[o] = opi_graph_add_value(b->graph, name, OPIPE_UNDEFINED, NULL, 0);
    if (out_values[o] == OPIPE_NONE)
      return opi_fail_nomem(err, sizeof(opi_value), "a value");
  }
  return OPIPE_OK;
}

/* Appends the node with its outputs; shapes are not there yet. */
static opipe_status append(opi_builder *b, const opi_op *op, const opi_emit *emit,
                           uint32_t *out_values, opipe_error *err) {
  OPI_TRY(add_outputs(b, emit, out_values, err));
  uint32_t n_in = emit->n_in;
  while (n_in > 0 && emit->in[n_in - 1] == OPIPE_NONE)
    --n_in;
  const char *name = node_name(b);
  opi_node *node = name == NULL ? NULL
                                : opi_graph_add_node(b->graph, name, op->name, op->domain, n_in,
                                                     emit->n_out, emit->n_attrs);
  if (node == NULL)
    return opi_fail_nomem(err, sizeof(*node), "a node");
  ++b->n_emitted;
  const uint32_t index = b->graph->n_nodes - 1;
  if (n_in != 0)
    memcpy(node->in, emit->in, n_in * sizeof(uint32_t));
  for (uint32_t a = 0; a < emit->n_attrs; ++a) {
    if (!copy_attr(b->graph->arena, &emit->attrs[a], &node->attrs[a]))
      return opi_fail_nomem(err, emit->attrs[a].n, "an attribute");
  }
  for (uint32_t o = 0; o < emit->n_out; ++o) {
    node->out[o] = out_values[o];
    if (out_values[o] != OPIPE_NONE)
      b->graph->values[out_values[o]].producer = index;
  }
  node->version = emit->version != 0 ? emit->version : op->last;
  node->source = b->origin_index;
  node->stage = b->origin_stage;
  node->pattern = emit->pattern;
  OPI_TRY(opi_check_arity(b, op, node, err));
  for (uint32_t i = 0; i < n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    if (node->in[i] >= b->graph->n_values) {
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                           "input %" PRIu32 " is a sequence, which only known positions allow", i);
    }
  }
  if (op->infer == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INTERNAL, "occurs in a bound graph");
  return op->infer(b, node, err);
}

static bool is_parameter(const opi_value *value) {
  if (value->flags & OPI_VALUE_KEPT)
    return true;
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 && opi_dtype_is_float(value->dtype) &&
         value->n_bytes * 8 > opi_dtype_bits(value->dtype);
}

static bool reads_parameter(const opi_builder *b, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && is_parameter(&b->graph->values[node->in[i]]))
      return true;
  }
  return false;
}

static bool may_fold(const opi_builder *b, const opi_node *node) {
  const bool parameter = reads_parameter(b, node);
  const uint64_t limit = b->fold_limit_bytes * (parameter ? 1u : SHAPE_FACTOR);
  const uint8_t kind = opi_op_of(node)->kind;
  const bool packs = kind == OPI_KIND_PACK; /* its result is smaller than what it reads */
  const bool unpacks = kind == OPI_KIND_UNPACK && b->graph->values[node->out[0]].rank == 2;
  if (b->evaluator == NULL || kind == OPI_KIND_RANDOM || unpacks)
    return false;
  if (parameter && b->keep_parameters)
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *value = &b->graph->values[node->in[i]];
    if (!opi_value_known(value) || (value->n_bytes > limit && !packs))
      return false;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    if (b->graph->values[node->out[o]].n_bytes > limit && !packs)
      return false;
  }
  return true;
}

typedef struct one_node {
  opipe_value *values; /* inputs, then outputs */
  opipe_node node;
  void **data; /* [n outputs present] */
  uint32_t n_values, n_data;
} one_node;

static uint32_t add_abi_value(one_node *one, const opi_value *value, uint32_t role, uint32_t slot) {
  opipe_value *out = &one->values[one->n_values];
  *out = opi_value_view(value);
  out->data = role == OPIPE_VALUE_CONSTANT ? value->data : NULL;
  out->role = role;
  out->slot = slot;
  return one->n_values++;
}

/* The node alone, as a backend sees it; a value read twice is listed once. */
static bool isolate(opi_builder *b, const opi_node *node, one_node *one) {
  const size_t n = (size_t)node->n_in + node->n_out;
  one->values = OPI_ARENA_ARRAY(b->scratch, opipe_value, n);
  one->data = OPI_ARENA_ARRAY(b->scratch, void *, node->n_out);
  uint32_t *indices = OPI_ARENA_ARRAY(b->scratch, uint32_t, n);
  if (one->values == NULL || one->data == NULL || indices == NULL)
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    indices[i] = OPIPE_NONE;
    if (node->in[i] == OPIPE_NONE)
      continue;
    for (uint32_t k = 0; k < i && indices[i] == OPIPE_NONE; ++k) {
      if (node->in[k] == node->in[i])
        indices[i] = indices[k];
    }
    if (indices[i] != OPIPE_NONE)
      continue;
    indices[i] = add_abi_value(one, &b->graph->values[node->in[i]], OPIPE_VALUE_CONSTANT, 0);
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    uint32_t *index = &indices[node->n_in + o];
    *index = OPIPE_NONE;
    if (node->out[o] == OPIPE_NONE)
      continue;
    const opi_value *value = &b->graph->values[node->out[o]];
    one->data[one->n_data] = opi_arena_alloc(b->graph->arena, value->n_bytes);
    if (one->data[one->n_data] == NULL)
      return false;
    *index = add_abi_value(one, value, OPIPE_VALUE_OUTPUT, one->n_data++);
  }
  one->node = opi_node_view(node, indices, indices + node->n_in);
  return true;
}

/* Codes that were unpacked stay known to fusions, which may multiply them as they are. */
static opipe_status note_codes(opi_builder *b, const opi_node *node, opipe_error *err) {
  if (opi_op_of(node)->kind != OPI_KIND_UNPACK || node->domain[0] != '\0')
    return OPIPE_OK;
  if (!opi_arena_grow(b->scratch, (void **)&b->unpacked.list, &b->unpacked.room, b->unpacked.n + 1,
                      sizeof(*b->unpacked.list)))
    return opi_fail_nomem(err, sizeof(*b->unpacked.list), "folding a node");
  b->unpacked.list[b->unpacked.n++] =
      (opi_unpacked){.value = node->out[0],
                     .codes = node->in[0],
                     .scale = node->in[1],
                     .zero = opi_node_in(node, 2),
                     .axis = (uint32_t)opi_attr_int(node, "axis", 0),
                     .blocks = opi_attr_int(node, "block_size", 0) != 0};
  return OPIPE_OK;
}

/* Takes the last node away; its outputs become known. */
static void keep_results(opi_builder *b, const one_node *one) {
  const opi_node *node = &b->graph->nodes[b->graph->n_nodes - 1];
  uint32_t k = 0;
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    opi_value *value = &b->graph->values[node->out[o]];
    value->producer = OPIPE_NONE;
    value->data = one->data[k++];
  }
  --b->graph->n_nodes;
}

static opipe_status fold_last(opi_builder *b, opipe_error *err) {
  const opi_node *node = &b->graph->nodes[b->graph->n_nodes - 1];
  if (!may_fold(b, node))
    return OPIPE_OK;
  one_node one;
  memset(&one, 0, sizeof(one));
  if (!isolate(b, node, &one))
    return opi_fail_nomem(err, 0, "folding a node");
  const opipe_graph graph = {.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                             .n_values = one.n_values,
                             .values = one.values,
                             .nodes = &one.node,
                             .n_nodes = 1,
                             .n_boundaries = one.n_data};
  opipe_error reason = OPIPE_ERROR_INIT;
  const opipe_status status = b->evaluator->run(b->evaluator->ctx, &graph, one.data, &reason);
  if (status == OPIPE_E_UNSUPPORTED) {
    opi_log(b->logger, OPIPE_LOG_DEBUG, "not folded: %s", reason.message);
    return OPIPE_OK;
  }
  if (status < 0)
    return opi_node_fail(b, node, err, status, "cannot be computed: %s", reason.message);
  OPI_TRY(note_codes(b, node, err));
  keep_results(b, &one);
  return OPIPE_OK;
}

static opipe_status emit_node(opi_builder *b, const opi_emit *emit, bool fold, uint32_t *out_values,
                              opipe_error *err) {
  const char *domain = emit->domain != NULL ? emit->domain : "";
  const opi_op *op = opi_op_find(domain, emit->op);
  if (op == NULL) {
    return opi_fail(err, OPIPE_E_INTERNAL, "operator %s of domain '%s' is in no table", emit->op,
                    domain);
  }
  OPI_TRY(append(b, op, emit, out_values, err));
  return fold ? fold_last(b, err) : OPIPE_OK;
}

opipe_status opi_b_emit(opi_builder *b, const opi_emit *emit, uint32_t *out_values,
                        opipe_error *err) {
  const bool named = emit->out_names != NULL && emit->out_names[0] != NULL;
  if (strcmp(emit->op, "Identity") == 0 && emit->n_in == 1 && emit->n_out == 1 && !named) {
    out_values[0] = emit->in[0];
    return OPIPE_OK;
  }
  return emit_node(b, emit, true, out_values, err);
}

opipe_status opi_b_emit_kept(opi_builder *b, const opi_emit *emit, uint32_t *out_values,
                             opipe_error *err) {
  return emit_node(b, emit, false, out_values, err);
}

opipe_status opi_b_emit_again(opi_builder *b, const opi_node *node, const uint32_t *in,
                              const char *const *out_names, uint32_t *out_values,
                              opipe_error *err) {
  const opi_emit emit = {.op = node->op,
                         .domain = node->domain,
                         .in = in,
                         .n_in = node->n_in,
                         .n_out = node->n_out,
                         .attrs = node->attrs,
                         .n_attrs = node->n_attrs,
                         .version = node->version,
                         .out_names = out_names,
                         .pattern = node->pattern};
  return emit_node(b, &emit, false, out_values, err);
}

opipe_status opi_b_op1(opi_builder *b, const char *op, uint32_t a, uint32_t *out,
                       opipe_error *err) {
  const opi_emit emit = {.op = op, .in = &a, .n_in = 1, .n_out = 1};
  return opi_b_emit(b, &emit, out, err);
}

opipe_status opi_b_op2(opi_builder *b, const char *op, uint32_t a, uint32_t c, uint32_t *out,
                       opipe_error *err) {
  const uint32_t in[2] = {a, c};
  const opi_emit emit = {.op = op, .in = in, .n_in = 2, .n_out = 1};
  return opi_b_emit(b, &emit, out, err);
}

opipe_status opi_b_lift(opi_builder *b, const opi_node *file_node, const char *op,
                        const uint32_t *in, uint32_t n_in, const opipe_attr *attrs,
                        uint32_t n_attrs, opipe_error *err) {
  const uint32_t n_out = file_node->n_out;
  uint32_t *out = OPI_ARENA_ARRAY(b->scratch, uint32_t, n_out);
  const char **names = OPI_ARENA_ARRAY(b->scratch, const char *, n_out);
  if (out == NULL || names == NULL)
    return opi_fail_nomem(err, (uint64_t)n_out * 12, "outputs");
  for (uint32_t o = 0; o < n_out; ++o)
    names[o] = file_node->out[o] == OPIPE_NONE ? "" : NULL;
  const opi_emit emit = {.op = op,
                         .domain = file_node->domain,
                         .in = in,
                         .n_in = n_in,
                         .n_out = n_out,
                         .attrs = attrs,
                         .n_attrs = n_attrs,
                         .out_names = names};
  OPI_TRY(opi_b_emit(b, &emit, out, err));
  for (uint32_t o = 0; o < n_out; ++o)
    OPI_TRY(opi_b_result(b, file_node, o, out[o], err));
  return OPIPE_OK;
}
