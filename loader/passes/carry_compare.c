/* SPDX-License-Identifier: Apache-2.0 */
/* The length of the axis read as data: a scale of 1 / batch, positions counted through the batch.
 *
 * One bound graph cannot show it, because such numbers are constants there, or fused into a node.
 * Two graphs of the same model, bound for the whole request and for one part of it, can: attributes
 * with fractions must be the same in both, and constants that are data, but for dimensions that
 * grow with the axis, along which they must repeat. Constants that only shape a result (of Reshape,
 * Slice, ...) may differ, and so may numbers of rows that scale sums over them (carry_count.c).
 * Constants are matched by name; one that is folded in one graph alone is not compared.
 */
#include <string.h>

#include "loader/passes/carry.h"

static bool is_known_to_carry(const opi_graph *graph, const opi_known_axis *known, uint32_t v) {
  opi_carry carry = OPI_CARRY_NONE;
  return known != NULL && opi_known_carry(known, graph, v, -1, &carry) && opi_carries(&carry);
}

/* Input i of the node decides shapes and positions alone: also what is picked from a value that is
 * not known, and where rows of the axis are written, since the axis rules look at such indices
 * themselves. */
static bool is_shape_input(const opi_graph *graph, const opi_known_axis *known,
                           const opi_node *node, uint32_t i) {
  const uint32_t shaped = OPI_TAKES_FORM | OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED |
                          OPI_TAKES_PARTS | OPI_TAKES_PADDED;
  const uint32_t takes = opi_op_of(node)->takes;
  if ((takes & (OPI_TAKES_ROWS | OPI_TAKES_TUPLES)) != 0)
    return i == 1 && graph->values[node->in[0]].data == NULL;
  if ((takes & OPI_TAKES_SCATTERED) != 0) {
    return i == 1 && (is_known_to_carry(graph, known, node->in[0]) ||
                      is_known_to_carry(graph, known, node->in[2]));
  }
  return takes == OPI_TAKES_PART ? i > 0 : (takes & shaped) != 0 && i == 1;
}

/* Marks the constants of a graph that some node reads as data. */
static bool *mark_data(const opi_graph *graph, const bool *nodes, const opi_known_axis *known,
                       opi_arena *scratch) {
  bool *data = OPI_ARENA_ARRAY(scratch, bool, graph->n_values);
  for (uint32_t n = 0; data != NULL && n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t i = 0; (nodes == NULL || nodes[n]) && i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE && !is_shape_input(graph, known, node, i))
        data[node->in[i]] = true;
    }
  }
  return data;
}

typedef struct dims {
  uint64_t before, whole, part, after_bytes; /* around the one dimension that differs */
  uint32_t axis;
} dims;

/* Elements of whole bytes. */
static bool has_bytes(const opi_value *v) {
  return opi_dtype_bits(v->dtype) % 8 == 0;
}

/* False when more than one dimension differs, or one where several elements share a byte. */
static bool find_dimension(const opi_value *a, const opi_value *b, dims *out) {
  bool found = false;
  if (a->rank != b->rank || a->dtype != b->dtype)
    return false;
  *out = (dims){.before = 1, .whole = 1, .part = 1, .after_bytes = opi_dtype_bits(a->dtype) / 8};
  for (int32_t d = 0; d < a->rank; ++d) {
    if (a->shape[d] != b->shape[d]) {
      if (found || !has_bytes(a))
        return false;
      found = true;
      out->whole = (uint64_t)a->shape[d];
      out->part = (uint64_t)b->shape[d];
      out->axis = (uint32_t)d;
    } else if (found) {
      out->after_bytes *= (uint64_t)a->shape[d];
    } else {
      out->before *= (uint64_t)a->shape[d];
    }
  }
  if (!found) /* equal shapes: one dimension of everything */
    *out = (dims){.before = 1, .whole = 1, .part = 1, .after_bytes = a->n_bytes};
  return true;
}

/* Each entry of the whole equals the part's entry at the same place: counted round and round (the
 * axis stands before other factors), or stretched (behind them). */
static bool repeats(const opi_value *a, const opi_value *b, const dims *d, bool stretched) {
  for (uint64_t p = 0; p < d->before; ++p) {
    for (uint64_t j = 0; j < d->whole; ++j) {
      const uint64_t k = stretched ? j * d->part / d->whole : j % d->part;
      const char *x = (const char *)a->data + (p * d->whole + j) * d->after_bytes;
      const char *y = (const char *)b->data + (p * d->part + k) * d->after_bytes;
      if (memcmp(x, y, d->after_bytes) != 0)
        return false;
    }
  }
  return true;
}

/* Positions that count along the axis, `count` for each element of it: the whole goes on counting
 * where the part ends. */
static bool counts_on(const opi_value *a, const opi_value *b, const dims *d,
                      const opi_carry *carry) {
  const uint64_t size = opi_dtype_bits(a->dtype) / 8, after = d->after_bytes / size;
  const uint64_t inner = (uint64_t)carry->inner;
  if (carry->outer != 1 || (uint32_t)carry->axis != d->axis || d->part % inner != 0)
    return false;
  for (uint64_t i = 0; i < d->before * d->whole * after; ++i) {
    const uint64_t row = i / after % d->whole, place = row % d->part;
    const uint64_t same = (i / after / d->whole * d->part + place) * after + i % after;
    const int64_t parts_before = (int64_t)((row - place) / inner);
    if (opi_index_at(a, i) - opi_index_at(b, same) != parts_before * carry->count)
      return false;
  }
  return true;
}

static opipe_status compare(const opi_value *a, const opi_value *b, const opi_carry *carry,
                            opipe_error *err) {
  dims d;
  char whole[96], part[96];
  if (a->data == b->data)
    return OPIPE_OK;
  if (find_dimension(a, b, &d)) {
    if (d.part == 0 || d.whole == 0)
      return OPIPE_OK;
    if (carry->count != 0 && has_bytes(a) ? counts_on(a, b, &d, carry)
                                          : repeats(a, b, &d, false) || repeats(a, b, &d, true))
      return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "constant '%s' depends on the length that is split: it is %s in the whole and %s "
                  "in a part, with other numbers",
                  b->name, opi_shape_text(whole, sizeof(whole), a->shape, (uint32_t)a->rank),
                  opi_shape_text(part, sizeof(part), b->shape, (uint32_t)b->rank));
}

typedef struct comparison {
  const opi_graph *whole, *part;
  const bool *nodes, *sums;
  const opi_known_axis *known;
} comparison;

/* The length of the axis in a graph: of the first input that is longer in the whole. */
static int64_t length_in(const comparison *c, const opi_graph *graph) {
  for (uint32_t i = 0; i < c->part->n_inputs && i < c->whole->n_inputs; ++i) {
    const uint32_t v = c->part->inputs[i];
    opi_carry carry = OPI_CARRY_NONE;
    if (c->known != NULL && opi_known_carry(c->known, c->part, v, -1, &carry) &&
        opi_carries(&carry))
      return opi_carry_length(&graph->values[graph->inputs[i]], &carry);
  }
  return 0;
}

/* Do all nodes that read the number read it beside sums over the axis? */
static bool scales_sums(const comparison *c, uint32_t v) {
  for (uint32_t n = 0; n < c->part->n_nodes; ++n) {
    const opi_node *node = &c->part->nodes[n];
    bool reads = false, is_sum = true;
    for (uint32_t i = 0; (c->nodes == NULL || c->nodes[n]) && i < node->n_in; ++i)
      reads = reads || node->in[i] == v;
    for (uint32_t o = 0; o < node->n_out; ++o)
      is_sum = is_sum && (node->out[o] == OPIPE_NONE || c->sums[node->out[o]]);
    if (reads && !is_sum)
      return false;
  }
  return true;
}

/* A number of rows that scales sums over them. */
static opipe_status note_count(const comparison *c, const opi_value *a, uint32_t v, bool *out_is,
                               opipe_error *err) {
  *out_is = false;
  if (c->sums == NULL || !scales_sums(c, v))
    return OPIPE_OK;
  return opi_known_count_note(opi_known_axis_counts(c->known), a, length_in(c, c->whole),
                              &c->part->values[v], length_in(c, c->part), out_is, err);
}

/* A node's numbers with fractions, as a scale that was fused into it. */
static opipe_status compare_attributes(const opi_node *whole, const opi_node *part,
                                       opipe_error *err) {
  for (uint32_t i = 0; i < part->n_attrs; ++i) {
    const opipe_attr *b = &part->attrs[i], *a = opi_attr_find(whole, b->name);
    if (a == NULL || a->kind != OPIPE_ATTR_FLOAT || b->kind != OPIPE_ATTR_FLOAT || a->f == b->f)
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "node '%s' (%s): attribute '%s' depends on the length that is split: it is %g "
                    "in the whole and %g in a part",
                    part->name, part->op, b->name, a->f, b->f);
  }
  return OPIPE_OK;
}

/* Nodes that make the same value. */
static opipe_status compare_nodes(const comparison *c, const opi_map *names, opipe_error *err) {
  for (uint32_t n = 0; n < c->part->n_nodes; ++n) {
    const opi_node *node = &c->part->nodes[n];
    uint32_t other = 0;
    if ((c->nodes != NULL && !c->nodes[n]) || node->n_out == 0 || node->out[0] == OPIPE_NONE ||
        !opi_map_get(names, c->part->values[node->out[0]].name, &other) ||
        c->whole->values[other].producer == OPIPE_NONE)
      continue;
    const opi_node *twin = &c->whole->nodes[c->whole->values[other].producer];
    if (strcmp(twin->op, node->op) == 0)
      OPI_TRY(compare_attributes(twin, node, err));
  }
  return OPIPE_OK;
}

static opipe_status compare_all(const comparison *c, const opi_map *names, const bool *data,
                                opipe_error *err) {
  for (uint32_t v = 0; v < c->part->n_values; ++v) {
    uint32_t other = 0;
    const opi_value *b = &c->part->values[v];
    if (b->data == NULL || !data[v] || !opi_map_get(names, b->name, &other))
      continue;
    const opi_value *a = &c->whole->values[other];
    opi_carry carry = OPI_CARRY_NONE;
    bool counts = false;
    if (c->known != NULL)
      (void)opi_known_carry(c->known, c->part, v, -1, &carry);
    if (a->data == NULL || compare(a, b, &carry, NULL) >= 0)
      continue;
    OPI_TRY(note_count(c, a, v, &counts, err));
    if (!counts)
      return compare(a, b, &carry, err);
  }
  return OPIPE_OK;
}

/* An output that grows with the axis, but is made from no input that holds it. */
static opipe_status compare_outputs(const opi_graph *whole, const opi_graph *part,
                                    const bool *nodes, const opi_known_axis *known,
                                    opipe_error *err) {
  for (uint32_t o = 0; known != NULL && o < part->n_outputs; ++o) {
    const opi_value *a = &whole->values[whole->outputs[o]], *b = &part->values[part->outputs[o]];
    opi_carry carry = OPI_CARRY_NONE;
    char all[96], some[96];
    if (nodes != NULL && b->producer != OPIPE_NONE && !nodes[b->producer])
      continue;
    if (a->rank == b->rank &&
        (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0))
      continue;
    if (opi_known_carry(known, part, part->outputs[o], -1, &carry) && opi_carries(&carry))
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "output '%s' is %s in the whole and %s in a part, and no input decides it",
                    b->name, opi_shape_text(all, sizeof(all), a->shape, (uint32_t)a->rank),
                    opi_shape_text(some, sizeof(some), b->shape, (uint32_t)b->rank));
  }
  return OPIPE_OK;
}

opipe_status opi_carry_compare(const opi_graph *whole, const opi_graph *part, const bool *nodes,
                               const bool *sums, const opi_known_axis *known, opipe_error *err) {
  const comparison c = {whole, part, nodes, sums, known};
  const opipe_allocator *allocator = part->arena->allocator;
  opi_arena scratch;
  opi_map *names = NULL;
  OPI_TRY(opi_map_create(allocator, &names, err));
  opi_arena_init(&scratch, allocator, 0);
  opipe_status status = OPIPE_OK;
  for (uint32_t v = 0; v < whole->n_values && status >= 0; ++v)
    status = opi_map_set(names, whole->values[v].name, v, err);
  const bool *data = mark_data(part, nodes, known, &scratch);
  if (status >= 0 && data == NULL)
    status = opi_fail_nomem(err, part->n_values, "marking constants");
  if (status >= 0)
    status = compare_all(&c, names, data, err);
  if (status >= 0)
    status = compare_nodes(&c, names, err);
  if (status >= 0)
    status = compare_outputs(whole, part, nodes, known, err);
  opi_arena_release(&scratch);
  opi_map_free(names);
  return status;
}
