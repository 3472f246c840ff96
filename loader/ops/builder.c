/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a graph under construction: fresh names, constants, results under their file names,
 * aliases. Nodes are emitted in emit.c.
 *
 * A value made while lifting first gets a made-up name; when the file's name for it is told, it
 * takes that name unless it bears one already, and then the file's name becomes an alias.
 */
#include "loader/ops/builder.h"

#include "loader/base/halves.h"

#include <inttypes.h>
#include <math.h>

#define FOLD_LIMIT_BYTES ((uint64_t)1 << 20)

uint32_t opi_b_choose(opi_builder *b, uint32_t by_shapes) {
  opi_choices *c = b->choices;
  if (c == NULL)
    return by_shapes;
  if (c->repeats)
    return c->next < c->n ? c->list[c->next++] : by_shapes;
  if (opi_arena_grow(c->arena, (void **)&c->list, &c->room, c->n + 1, sizeof *c->list))
    c->list[c->n++] = by_shapes;
  return by_shapes;
}

opipe_status opi_b_open(opi_builder *b, opi_graph *graph, opi_arena *scratch,
                        const opipe_allocator *allocator, opipe_error *err) {
  memset(b, 0, sizeof(*b));
  b->graph = graph;
  b->scratch = scratch;
  b->allocator = allocator;
  b->fold_limit_bytes = FOLD_LIMIT_BYTES;
  b->origin_index = OPIPE_NONE;
  b->origin_stage = -1;
  OPI_TRY(opi_map_create(allocator, &b->names, err));
  if (opi_map_create(allocator, &b->next_names, err) < 0 ||
      opi_map_create(allocator, &b->taken, err) < 0) {
    opi_b_close(b);
    return OPIPE_E_NOMEM;
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_status status = opi_map_keep(b->names, graph->values[v].name, v, err);
    if (status < 0) {
      opi_b_close(b);
      return status;
    }
  }
  return OPIPE_OK;
}

opipe_status opi_b_reserve(opi_builder *b, const opi_graph *from, opipe_error *err) {
  OPI_TRY(opi_map_create(b->allocator, &b->reserved, err));
  for (uint32_t v = 0; v < from->n_values; ++v)
    OPI_TRY(opi_map_keep(b->reserved, from->values[v].name, v, err));
  return OPIPE_OK;
}

void opi_b_close(opi_builder *b) {
  opi_map_free(b->names);
  opi_map_free(b->next_names);
  opi_map_free(b->taken);
  opi_map_free(b->kept);
  opi_map_free(b->merged);
  opi_map_free(b->reserved);
  b->names = b->next_names = b->reserved = b->taken = b->kept = b->merged = NULL;
}

static bool is_in_use(const opi_builder *b, const char *name) {
  uint32_t other = 0;
  return opi_map_get(b->names, name, &other) ||
         (b->reserved != NULL && opi_map_get(b->reserved, name, &other));
}

/* Counted for each stem alone: what one node makes more or less in a binding (a Tile that repeats
 * nothing) renames nothing of the others, and bindings are compared by names. */
const char *opi_b_name(opi_builder *b) {
  const char *stem = b->origin != NULL && b->origin->name[0] != '\0' ? b->origin->name : "v";
  const char *name = NULL;
  uint32_t next = 0;
  (void)opi_map_get(b->next_names, stem, &next);
  do {
    name = opi_arena_printf(b->graph->arena, "%s~%" PRIu32, stem, next++);
  } while (name != NULL && is_in_use(b, name));
  return opi_map_set(b->next_names, stem, next, NULL) < 0 ? NULL : name;
}

/* Adds a value and takes its name. */
static uint32_t add_named(opi_builder *b, const char *name, uint32_t dtype, const int64_t *shape,
                          uint32_t rank) {
  if (name == NULL)
    return OPIPE_NONE;
  const uint32_t v = opi_graph_add_value(b->graph, name, dtype, shape, (int32_t)rank);
  if (v == OPIPE_NONE || opi_map_keep(b->names, name, v, NULL) < 0)
    return OPIPE_NONE;
  return v;
}

uint32_t opi_b_borrow(opi_builder *b, const char *name, uint32_t dtype, const int64_t *shape,
                      uint32_t rank, const void *data) {
  uint64_t n_bytes = 0;
  if (!opi_tensor_bytes(dtype, shape, rank, &n_bytes))
    return OPIPE_NONE;
  const uint32_t v = add_named(b, name != NULL ? name : opi_b_name(b), dtype, shape, rank);
  if (v == OPIPE_NONE)
    return OPIPE_NONE;
  opi_value *value = opi_b_value(b, v);
  value->data = data;
  value->n_bytes = n_bytes;
  value->flags |= OPI_VALUE_BORROWED;
  return v;
}

uint32_t opi_b_const(opi_builder *b, uint32_t dtype, const int64_t *shape, uint32_t rank,
                     const void *data) {
  uint64_t n_bytes = 0;
  if (!opi_tensor_bytes(dtype, shape, rank, &n_bytes))
    return OPIPE_NONE;
  const void *copy = opi_arena_copy(b->graph->arena, data, n_bytes);
  if (copy == NULL)
    return OPIPE_NONE;
  const uint32_t v = opi_b_borrow(b, NULL, dtype, shape, rank, copy);
  if (v != OPIPE_NONE)
    opi_b_value(b, v)->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  return v;
}

uint32_t opi_b_const_ints(opi_builder *b, const int64_t *ints, uint32_t n) {
  const int64_t shape[1] = {n};
  return opi_b_const(b, OPIPE_INT64, shape, 1, ints);
}

uint32_t opi_b_reshaped(opi_builder *b, uint32_t value, const int64_t *shape, uint32_t rank) {
  const opi_value from = *opi_b_value(b, value);
  const uint32_t v = opi_b_borrow(b, NULL, from.dtype, shape, rank, from.data);
  if (v != OPIPE_NONE && !(from.flags & OPI_VALUE_BORROWED))
    opi_b_value(b, v)->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  return v;
}

/* The nearest number of an integer type of so many bits, towards zero; NaN is 0. */
static uint64_t saturate(double value, uint32_t bits, bool natural) {
  const double limit = ldexp(1.0, (int)bits - (natural ? 0 : 1));
  const uint64_t top = UINT64_MAX >> (natural ? 64 - bits : 65 - bits);
  if (isnan(value))
    return 0;
  if (value >= limit)
    return top;
  if (natural)
    return value <= 0 ? 0 : (uint64_t)value;
  return value <= -limit ? ~top : (uint64_t)(int64_t)value;
}

/* Writes value as dtype; false for types without plain numbers. */
static bool write_number(uint32_t dtype, double value, void *out) {
  const float single = (float)value;
  const uint16_t half = dtype == OPIPE_FLOAT16 ? opi_half_of(single) : opi_bfloat_of(single);
  const uint8_t truth = value != 0;
  uint64_t whole = 0;
  switch (dtype) {
    case OPIPE_FLOAT:
      memcpy(out, &single, 4);
      return true;
    case OPIPE_DOUBLE:
      memcpy(out, &value, 8);
      return true;
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      memcpy(out, &half, 2);
      return true;
    case OPIPE_BOOL:
      memcpy(out, &truth, 1);
      return true;
    default:
      if (!opi_dtype_is_integer(dtype))
        return false;
      whole = saturate(value, opi_dtype_bits(dtype), opi_dtype_is_unsigned(dtype));
      memcpy(out, &whole, opi_dtype_bits(dtype) / 8); /* little-endian: the low bytes */
      return true;
  }
}

uint32_t opi_b_const_scalar(opi_builder *b, uint32_t dtype, double value) {
  uint64_t number = 0;
  if (!write_number(dtype, value, &number))
    return OPIPE_NONE;
  return opi_b_const(b, dtype, NULL, 0, &number);
}

static opipe_status add_alias(opi_builder *b, const char *name, uint32_t value, opipe_error *err) {
  if (!opi_arena_grow(b->graph->arena, (void **)&b->aliases, &b->room_aliases, b->n_aliases + 1,
                      sizeof(opi_alias)))
    return opi_fail_nomem(err, sizeof(opi_alias), "a second name");
  b->aliases[b->n_aliases++] = (opi_alias){name, value};
  return OPIPE_OK;
}

/* Gives the value the file's name, or notes the name as an alias. */
static opipe_status take_name(opi_builder *b, uint32_t value, uint32_t file_value,
                              opipe_error *err) {
  if (b->scope->file == NULL)
    return OPIPE_OK;
  opi_value *v = opi_b_value(b, value);
  const char *name = b->scope->file->values[file_value].name;
  uint32_t other = 0;
  const bool fixed = v->source != OPIPE_NONE ||
                     (v->flags & (OPI_VALUE_INPUT | OPI_VALUE_OUTPUT | OPI_VALUE_INITIALIZER)) != 0;
  if (fixed || opi_map_get(b->names, name, &other))
    return add_alias(b, name, value, err);
  opi_map_remove(b->names, v->name);
  v->name = name;
  if (b->scope->outer == NULL)
    v->source = file_value;
  return opi_map_keep(b->names, name, value, err);
}

opipe_status opi_b_result(opi_builder *b, const opi_node *file_node, uint32_t i, uint32_t value,
                          opipe_error *err) {
  const uint32_t file_value = opi_node_out(file_node, i);
  if (file_value == OPIPE_NONE)
    return OPIPE_OK;
  b->scope->values[file_value] = value;
  if (value >= OPI_POISONED || opi_is_sequence(value))
    return OPIPE_OK;
  return take_name(b, value, file_value, err);
}

opipe_status opi_b_lift_within(opi_builder *b, const opi_node *node, uint32_t *out_values,
                               opipe_error *err) {
  enum { MOST_OUT = 8 };
  const opi_op *op = opi_op_find(node->domain, node->op);
  opi_frame *outer = b->scope;
  opi_frame within = {.file = NULL, .values = out_values, .outer = outer};
  uint32_t out[MOST_OUT];
  opi_node own = *node;
  if (op == NULL || node->n_out > MOST_OUT)
    return opi_fail(err, OPIPE_E_INTERNAL, "operator %s is in no table", node->op);
  for (uint32_t o = 0; o < node->n_out; ++o) {
    out[o] = node->out[o] == OPIPE_NONE ? OPIPE_NONE : o;
    out_values[o] = OPIPE_NONE;
  }
  own.out = out;
  while (own.n_in > 0 && own.in[own.n_in - 1] == OPIPE_NONE)
    --own.n_in;
  b->scope = &within;
  const opipe_status status = op->lift != NULL ? op->lift(b, &own, err)
                                               : opi_b_lift(b, &own, op->name, own.in, own.n_in,
                                                            own.attrs, own.n_attrs, err);
  b->scope = outer;
  return status;
}

opipe_status opi_b_sequence(opi_builder *b, const uint32_t *items, uint32_t n, uint32_t dtype,
                            uint32_t *out_handle, opipe_error *err) {
  uint32_t *own = opi_arena_copy(b->scratch, items, (size_t)n * sizeof(*items));
  if (own == NULL || !opi_arena_grow(b->scratch, (void **)&b->sequences, &b->room_sequences,
                                     b->n_sequences + 1, sizeof(opi_sequence)))
    return opi_fail_nomem(err, (uint64_t)n * 4, "a sequence");
  b->sequences[b->n_sequences] = (opi_sequence){own, n, dtype};
  *out_handle = OPI_SEQUENCE_BIT | b->n_sequences++;
  return OPIPE_OK;
}
