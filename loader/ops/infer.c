/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for shape rules: setting an output, reading a known input, errors that name node and
 * tensor, broadcasting, axes.
 */
#include "loader/ops/builder.h"

#include <inttypes.h>
#include <stdio.h>

opipe_status opi_node_fail(const opi_builder *b, const opi_node *node, opipe_error *err,
                           opipe_status status, const char *fmt, ...) {
  char text[400];
  (void)b;
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof(text), fmt, args);
  va_end(args);
  return opi_fail(err, status, "node '%s' (%s): %s", node->name, node->op, text);
}

opipe_status opi_check_arity(const opi_builder *b, const opi_op *op, const opi_node *node,
                             opipe_error *err) {
  if (node->n_in < op->min_in || (op->max_in != 255 && node->n_in > op->max_in)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "has %" PRIu32 " inputs, the operator takes %u to %u", node->n_in,
                         op->min_in, op->max_in);
  }
  if (node->n_out < op->min_out || (op->max_out != 255 && node->n_out > op->max_out)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "has %" PRIu32 " outputs, the operator gives %u to %u", node->n_out,
                         op->min_out, op->max_out);
  }
  return OPIPE_OK;
}

opipe_status opi_b_set(opi_builder *b, const opi_node *node, uint32_t output, uint32_t dtype,
                       const int64_t *shape, uint32_t rank, opipe_error *err) {
  const uint32_t v = opi_node_out(node, output);
  char text[128];
  uint64_t n_bytes = 0;
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  opi_value *value = opi_b_value(b, v);
  if (rank > OPIPE_MAX_RANK) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT,
                         "output '%s' has rank %" PRIu32 ", at most %d is possible", value->name,
                         rank, OPIPE_MAX_RANK);
  }
  if (opi_dtype_bits(dtype) == 0) {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "output '%s' has type %s", value->name,
                         opi_dtype_name(dtype));
  }
  if (!opi_tensor_bytes(dtype, shape, rank, &n_bytes)) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "output '%s' of shape %s has no valid size",
                         value->name, opi_shape_text(text, sizeof(text), shape, rank));
  }
  int64_t *own = NULL;
  if (rank > 0) {
    own = opi_arena_copy(b->graph->arena, shape, rank * sizeof(int64_t));
    if (own == NULL)
      return opi_fail_nomem(err, rank * sizeof(int64_t), "a shape");
  }
  value->shape = own;
  value->rank = (int32_t)rank;
  value->dtype = dtype;
  value->n_bytes = n_bytes;
  return OPIPE_OK;
}

/* The low bytes of a little-endian number, its sign carried on. */
static int64_t read_int(uint32_t dtype, const void *data, uint64_t i) {
  const uint32_t bits = opi_dtype_bits(dtype);
  const bool is_signed = opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_INT;
  const uint64_t sign = is_signed ? UINT64_C(1) << (bits - 1) : 0;
  uint64_t value = 0;
  memcpy(&value, (const char *)data + i * (bits / 8), bits / 8);
  return (int64_t)((value ^ sign) - sign);
}

const int64_t *opi_b_ints(opi_builder *b, uint32_t v, uint32_t *out_n) {
  const opi_value *value = opi_b_value(b, v);
  const bool integer = opi_dtype_is_integer(value->dtype) || value->dtype == OPIPE_BOOL;
  uint64_t n = 0;
  *out_n = 0;
  if (value->data == NULL || !integer)
    return NULL;
  if (!opi_shape_elems(value->shape, (uint32_t)value->rank, &n) || n > UINT32_MAX)
    return NULL;
  int64_t *ints = OPI_ARENA_ARRAY(b->scratch, int64_t, (size_t)n);
  if (ints == NULL)
    return NULL;
  for (uint64_t i = 0; i < n; ++i)
    ints[i] = read_int(value->dtype, value->data, i);
  *out_n = (uint32_t)n;
  return ints;
}

typedef struct search {
  const opi_graph *graph;
  uint8_t *seen; /* [n_values] */
  uint32_t *stack;
  uint32_t n;
} search;

static void push(search *s, uint32_t v) {
  if (v == OPIPE_NONE || v >= s->graph->n_values || s->seen[v])
    return;
  s->seen[v] = 1;
  s->stack[s->n++] = v;
}

/* Lists up to three graph inputs that `value` is computed from: "'a', 'b'"; *out_first is the
 * first. */
static void list_inputs(opi_builder *b, uint32_t value, char *text, size_t room,
                        uint32_t *out_first) {
  const opi_graph *graph = b->graph;
  search s = {graph, OPI_ARENA_ARRAY(b->scratch, uint8_t, graph->n_values),
              OPI_ARENA_ARRAY(b->scratch, uint32_t, graph->n_values), 0};
  uint32_t found = 0;
  size_t used = 0;
  text[0] = '\0';
  if (s.seen == NULL || s.stack == NULL)
    return;
  push(&s, value);
  while (s.n > 0 && found < 3) {
    const opi_value *at = &graph->values[s.stack[--s.n]];
    if (at->flags & OPI_VALUE_INPUT) {
      if (found == 0)
        *out_first = (uint32_t)(at - graph->values);
      const int n =
          snprintf(text + used, room - used, "%s'%s'", found++ == 0 ? "" : ", ", at->name);
      used += n < 0 ? 0 : (size_t)n;
      if (used >= room)
        return;
    }
    if (at->producer == OPIPE_NONE)
      continue;
    const opi_node *node = &graph->nodes[at->producer];
    for (uint32_t i = 0; i < node->n_in; ++i)
      push(&s, node->in[i]);
  }
}

/* Tells programs which input is meant: its value in the file graph, which opi_bind turns into an
 * index. */
static opipe_status note_input(opi_builder *b, uint32_t value, opipe_error *err) {
  if (err != NULL) {
    err->domain = OPIPE_DOMAIN_INPUT;
    err->native = (int32_t)opi_b_value(b, value)->source;
  }
  return OPIPE_E_UNSUPPORTED;
}

opipe_status opi_need_value(opi_builder *b, const opi_node *node, uint32_t value,
                            opipe_error *err) {
  const opi_value *v = opi_b_value(b, value);
  char inputs[200];
  uint32_t first = value;
  if (v->flags & OPI_VALUE_INPUT) {
    (void)opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                        "needs the value of graph input '%s': pin it to a constant", v->name);
    return note_input(b, value, err);
  }
  list_inputs(b, value, inputs, sizeof(inputs), &first);
  if (inputs[0] == '\0') {
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                         "needs the value of '%s', which is not known before the run", v->name);
  }
  (void)opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED,
                      "needs the value of '%s', which depends on graph input %s: pin it to a "
                      "constant",
                      v->name, inputs);
  return note_input(b, first, err);
}

opipe_status opi_known_ints(opi_builder *b, const opi_node *node, uint32_t i,
                            const int64_t **out_ints, uint32_t *out_n, opipe_error *err) {
  const uint32_t v = opi_node_in(node, i);
  if (v == OPIPE_NONE)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "lacks input %" PRIu32, i);
  if (opi_is_sequence(v))
    return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input %" PRIu32 " is a sequence", i);
  const opi_value *value = opi_b_value(b, v);
  if (!opi_dtype_is_integer(value->dtype) && value->dtype != OPIPE_BOOL) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "input '%s' has type %s, integers are needed", value->name,
                         opi_dtype_name(value->dtype));
  }
  if (value->data == NULL)
    return opi_need_value(b, node, v, err);
  *out_ints = opi_b_ints(b, v, out_n);
  if (*out_ints == NULL)
    return opi_fail_nomem(err, value->n_bytes, "known integers");
  return OPIPE_OK;
}

bool opi_broadcast(const int64_t *a, uint32_t rank_a, const int64_t *b, uint32_t rank_b,
                   int64_t *out, uint32_t *out_rank) {
  const uint32_t rank = rank_a > rank_b ? rank_a : rank_b;
  if (rank > OPIPE_MAX_RANK)
    return false;
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t d = 0; d < rank; ++d) {
    const int64_t x = d + rank_a < rank ? 1 : a[d + rank_a - rank];
    const int64_t y = d + rank_b < rank ? 1 : b[d + rank_b - rank];
    if (x != y && x != 1 && y != 1)
      return false;
    shape[d] = x == 1 ? y : x;
  }
  if (rank != 0)
    memcpy(out, shape, rank * sizeof(int64_t));
  *out_rank = rank;
  return true;
}

bool opi_axis(int64_t axis, uint32_t rank, uint32_t *out_axis) {
  if (axis < -(int64_t)rank || axis >= (int64_t)rank)
    return false;
  *out_axis = (uint32_t)(axis < 0 ? axis + (int64_t)rank : axis);
  return true;
}
