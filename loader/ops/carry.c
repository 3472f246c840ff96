/* SPDX-License-Identifier: Apache-2.0 */
/* Axis rules that operators have in common; see common.h for what a carry is.
 *
 * A value that does not carry the axis is the same for every part of a split. Read beside one that
 * carries it, it fits when its dimension there is 1, or when its N parts along the axis are all
 * equal (a mask that shapes alone decide, expanded over the batch): then a split run makes the same
 * parts.
 */
#include "loader/ops/common.h"

#include <stdio.h>

int64_t opi_carry_length(const opi_value *value, const opi_carry *carry) {
  const int64_t rest = carry->outer * carry->inner;
  return rest == 0 ? 0 : value->shape[carry->axis] / rest;
}

opipe_status opi_carry_fail(const opi_graph *graph, const opi_node *node, opipe_error *err,
                            const char *fmt, ...) {
  char text[360];
  (void)graph;
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof(text), fmt, args);
  va_end(args);
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "node '%s' (%s) does not carry the axis: %s",
                  node->name, node->op, text);
}

/* Equal parts in known data [before, outer, N, inner, after]. */
static bool is_data_uniform(const opi_value *value, uint32_t axis, int64_t outer, int64_t length,
                            int64_t inner) {
  const uint32_t bits = opi_dtype_bits(value->dtype);
  uint64_t before = 1, after = 1;
  if (bits % 8 != 0)
    return false;
  for (uint32_t d = 0; d < axis; ++d)
    before *= (uint64_t)value->shape[d];
  for (uint32_t d = axis + 1; d < (uint32_t)value->rank; ++d)
    after *= (uint64_t)value->shape[d];
  const uint64_t part = (uint64_t)inner * after * (bits / 8);
  const char *at = value->data;
  for (uint64_t r = 0; r < before * (uint64_t)outer; ++r) {
    for (int64_t i = 1; i < length; ++i) {
      if (memcmp(at, at + (uint64_t)i * part, part) != 0)
        return false;
    }
    at += (uint64_t)length * part;
  }
  return true;
}

static bool is_node_uniform(const opi_graph *graph, const opi_node *node, const opi_value *out,
                            uint32_t axis, int64_t outer, int64_t length, int64_t inner,
                            uint32_t depth);

static bool is_uniform(const opi_graph *graph, uint32_t v, uint32_t axis, int64_t outer,
                       int64_t length, int64_t inner, uint32_t depth) {
  const opi_value *value = &graph->values[v];
  if (depth == 0 || axis >= (uint32_t)value->rank)
    return false;
  if (length <= 1)
    return true;
  if (outer * length * inner != value->shape[axis])
    return false;
  if (value->data != NULL)
    return is_data_uniform(value, axis, outer, length, inner);
  if (value->producer == OPIPE_NONE)
    return false;
  return is_node_uniform(graph, &graph->nodes[value->producer], value, axis, outer, length, inner,
                         depth - 1);
}

/* Broadcasting operators are uniform when each input is, or has 1 (or nothing) there; what Tile
 * repeats, when the parts hold whole repeats. */
static bool is_node_uniform(const opi_graph *graph, const opi_node *node, const opi_value *out,
                            uint32_t axis, int64_t outer, int64_t length, int64_t inner,
                            uint32_t depth) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  const bool expand = strcmp(node->op, "Expand") == 0 || strcmp(node->op, "Tile") == 0;
  if (op == NULL || (op->carry != opi_carry_broadcast && !expand))
    return false;
  const uint32_t n = expand ? 1 : node->n_in;
  for (uint32_t i = 0; i < n; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *x = &graph->values[node->in[i]];
    const uint32_t lead = (uint32_t)(out->rank - x->rank);
    if (axis < lead || x->shape[axis - lead] == 1)
      continue;
    const int64_t repeated = x->shape[axis - lead];
    if (expand && repeated != out->shape[axis] && repeated > 0 && inner % repeated == 0)
      continue;
    if (!is_uniform(graph, node->in[i], axis - lead, outer, length, inner, depth))
      return false;
  }
  return true;
}

bool opi_is_uniform(const opi_graph *graph, uint32_t value, uint32_t axis, int64_t outer,
                    int64_t length, int64_t inner) {
  return is_uniform(graph, value, axis, outer, length, inner, 16);
}

/* Takes input i's carry, seen from the output, into *io; they must agree. */
static opipe_status join(const opi_graph *graph, const opi_node *node, uint32_t i,
                         const opi_carry *in, int32_t out_rank, opi_carry *io, opipe_error *err) {
  const opi_value *x = &graph->values[node->in[i]];
  opi_carry seen = *in;
  seen.axis += out_rank - x->rank;
  if (!opi_carries(io)) {
    *io = seen;
    return OPIPE_OK;
  }
  if (io->axis == seen.axis && io->outer == seen.outer && io->inner == seen.inner)
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err,
                        "its inputs hold it in different places: dimension %" PRId32
                        " and, in '%s'"
                        ", dimension %" PRId32,
                        io->axis, x->name, seen.axis);
}

/* Input i beside a carried dimension `out` of an output of `out_rank`. */
static opipe_status check_beside(const opi_graph *graph, const opi_node *node, uint32_t i,
                                 const opi_value *y, const opi_carry *out, int64_t length,
                                 opipe_error *err) {
  const opi_value *x = &graph->values[node->in[i]];
  const int32_t axis = out->axis - (y->rank - x->rank);
  if (axis < 0 || x->shape[axis] == 1)
    return OPIPE_OK;
  if (opi_is_uniform(graph, node->in[i], (uint32_t)axis, out->outer, length, out->inner))
    return OPIPE_OK;
  return opi_carry_fail(graph, node, err,
                        "'%s' has %" PRId64 " different entries along it in dimension %" PRId32,
                        x->name, x->shape[axis], axis);
}

opipe_status opi_carry_broadcast(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err) {
  const opi_value *y = &graph->values[node->out[0]];
  opi_carry carry = OPI_CARRY_NONE;
  int64_t length = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || !opi_carries(&in[i]))
      continue;
    const opi_value *x = &graph->values[node->in[i]];
    OPI_TRY(join(graph, node, i, &in[i], y->rank, &carry, err));
    length = opi_carry_length(x, &in[i]);
    if (x->shape[in[i].axis] != y->shape[carry.axis]) {
      return opi_carry_fail(graph, node, err,
                            "'%s' is broadcast along it from %" PRId64 " to %" PRId64, x->name,
                            x->shape[in[i].axis], y->shape[carry.axis]);
    }
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || opi_carries(&in[i]))
      continue;
    OPI_TRY(check_beside(graph, node, i, y, &carry, length, err));
  }
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = carry;
  return OPIPE_OK;
}

opipe_status opi_carry_same(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                            opi_carry *out, opipe_error *err) {
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || !opi_carries(&in[i]))
      continue;
    return opi_carry_fail(graph, node, err, "input '%s' holds it", graph->values[node->in[i]].name);
  }
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = in[0];
  return OPIPE_OK;
}

opipe_status opi_carry_mixing(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, uint32_t first, uint32_t last, const char *what,
                              opipe_error *err) {
  if (opi_carries(&in[0]) && (uint32_t)in[0].axis >= first && (uint32_t)in[0].axis < last) {
    return opi_carry_fail(graph, node, err, "dimension %" PRId32 " of '%s' is %s", in[0].axis,
                          graph->values[node->in[0]].name, what);
  }
  return opi_carry_same(graph, node, in, out, err);
}

/* Could dimension d of `to` hold the axis, with these elements before and after it? */
static bool fits_dimension(const opi_value *to, int32_t d, int64_t before, int64_t length,
                           int64_t after, opi_carry *out) {
  int64_t lead = 1, tail = 1;
  for (int32_t e = 0; e < d; ++e)
    lead *= to->shape[e];
  for (int32_t e = d + 1; e < to->rank; ++e)
    tail *= to->shape[e];
  if (lead == 0 || tail == 0 || before % lead != 0 || after % tail != 0)
    return false;
  *out = (opi_carry){d, 0, before / lead, after / tail};
  return out->outer * length * out->inner == to->shape[d];
}

/* With a length above 1 one dimension fits at most. An axis of 1 fits wherever its neighbours do: a
 * dimension of its own is taken first, then the last one that is not the very last (batch and heads
 * are merged, batch and features are not), then any. */
opi_carry opi_carry_reshape(const opi_value *from, const opi_carry *carry, const opi_value *to) {
  opi_carry best = OPI_CARRY_NONE, found = OPI_CARRY_NONE;
  if (!opi_carries(carry))
    return best;
  const int64_t length = opi_carry_length(from, carry);
  int64_t before = carry->outer, after = carry->inner;
  for (int32_t d = 0; d < carry->axis; ++d)
    before *= from->shape[d];
  for (int32_t d = carry->axis + 1; d < from->rank; ++d)
    after *= from->shape[d];
  for (int32_t d = 0; d < to->rank; ++d) {
    if (!fits_dimension(to, d, before, length, after, &found))
      continue;
    if (length != 1 || found.outer * found.inner == 1)
      return found;
    if (!opi_carries(&best) || d + 1 < to->rank)
      best = found;
  }
  return best;
}

/* Indices [.., n]: how many there are, and how many lie between two along dimension d. */
static uint64_t count_indices(const opi_value *at, uint32_t d, uint64_t *out_inner) {
  const uint64_t n = (uint64_t)at->shape[at->rank - 1];
  *out_inner = 1;
  for (int32_t e = (int32_t)d + 1; e + 1 < at->rank; ++e)
    *out_inner *= (uint64_t)at->shape[e];
  return n == 0 ? 0 : opi_elems(at) / n;
}

bool opi_index_is_coordinate(const opi_value *at, uint32_t d, uint32_t c) {
  const uint64_t n = (uint64_t)at->shape[at->rank - 1];
  uint64_t inner = 1;
  const uint64_t rows = count_indices(at, d, &inner);
  for (uint64_t r = 0; r < rows; ++r) {
    const int64_t coordinate = (int64_t)(r / inner % (uint64_t)at->shape[d]);
    if (opi_index_at(at, r * n + c) != coordinate)
      return false;
  }
  return true;
}

bool opi_index_others_are_uniform(const opi_value *at, uint32_t d, uint32_t c) {
  const uint64_t n = (uint64_t)at->shape[at->rank - 1];
  uint64_t inner = 1;
  const uint64_t rows = count_indices(at, d, &inner);
  for (uint64_t r = 0; r < rows; ++r) {
    const uint64_t coordinate = r / inner % (uint64_t)at->shape[d];
    for (uint64_t k = 0; k < n; ++k) {
      if (k != c &&
          opi_index_at(at, r * n + k) != opi_index_at(at, (r - coordinate * inner) * n + k))
        return false;
    }
  }
  return true;
}
