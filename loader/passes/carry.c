/* SPDX-License-Identifier: Apache-2.0 */
/* Follows one axis (batch, token, feature) from the inputs through every node.
 *
 * Nodes that read nothing carrying it carry nothing; for the others their operator's rule decides.
 * A node without a rule, or whose rule says that splitting does not commute, is refused by name.
 */
#include <string.h>

#include "loader/passes/carry.h"

static bool any_counts(const opi_node *node, const opi_carry *in) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (in[i].count != 0)
      return true;
  }
  return false;
}

opipe_status opi_carry_apply(const opi_follower *f, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = OPI_CARRY_NONE;
  if (op == NULL || op->carry == NULL)
    return opi_carry_fail(f->graph, node, err, "the operator has no rule for it");
  if (any_counts(node, in))
    return opi_carry_counted(f, node, in, out, err);
  return op->carry(f->graph, node, in, out, err);
}

/* The first dimension along which all parts of a value are equal: the axis alone, or the axis
 * before, then behind other factors (heads). */
static opi_carry uniform_dimension(const opi_follower *f, uint32_t v) {
  const opi_value *value = &f->graph->values[v];
  for (uint32_t form = 0; form < 3; ++form) {
    for (int32_t d = 0; d < value->rank; ++d) {
      const int64_t rest = f->length == 0 ? 0 : value->shape[d] / f->length;
      const opi_carry carry = {d, 0, form == 2 ? rest : 1, form == 1 ? rest : 1, 0};
      if (rest < 1 || value->shape[d] % f->length != 0 || (rest == 1) != (form == 0))
        continue;
      if (opi_is_uniform(f->graph, v, (uint32_t)d, carry.outer, f->length, carry.inner))
        return carry;
    }
  }
  return OPI_CARRY_NONE;
}

enum { MOST_STEPS_BACK = 64 };

/* A value that does not depend on the split but was expanded to the axis' length (latents, a class
 * token) may be taken to carry it, because all parts are equal. So may positions that count along
 * it. Followed back to where it was expanded. */
static opi_carry derive(opi_follower *f, uint32_t v, uint32_t depth) {
  if (v == OPIPE_NONE || depth == 0)
    return OPI_CARRY_NONE;
  if (f->tried[v])
    return f->derived[v];
  f->tried[v] = 1;
  f->derived[v] = uniform_dimension(f, v);
  if (!opi_carries(&f->derived[v]))
    f->derived[v] = opi_carry_counting(f, v);
  const uint32_t producer = f->graph->values[v].producer;
  if (opi_carries(&f->derived[v]) || producer == OPIPE_NONE)
    return f->derived[v];
  const opi_node *node = &f->graph->nodes[producer];
  opi_carry *in = OPI_ARENA_ARRAY(f->scratch, opi_carry, (size_t)node->n_in + node->n_out);
  if (in == NULL) {
    f->failed = true;
    return OPI_CARRY_NONE;
  }
  opi_carry *out = in + node->n_in;
  bool any = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = derive(f, node->in[i], depth - 1);
    any = any || opi_carries(&in[i]);
  }
  if (!any || opi_carry_apply(f, node, in, out, NULL) < 0)
    return OPI_CARRY_NONE;
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == v)
      f->derived[v] = out[o];
  }
  return f->derived[v];
}

static bool make_derived(opi_follower *f) {
  const size_t n = f->graph->n_values;
  if (f->derived != NULL)
    return true;
  f->derived = OPI_ARENA_ARRAY(f->scratch, opi_carry, n);
  f->tried = OPI_ARENA_ARRAY(f->scratch, uint8_t, n);
  f->failed = f->derived == NULL || f->tried == NULL;
  for (size_t v = 0; !f->failed && v < n; ++v)
    f->derived[v] = OPI_CARRY_NONE;
  return !f->failed;
}

/* The rule refused: tries again with one input that carries nothing taken to carry what it may,
 * then with all of them. */
static bool retry(opi_follower *f, const opi_node *node) {
  if (!make_derived(f))
    return false;
  uint32_t n = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE || opi_carries(&f->in[i]))
      continue;
    f->in[i] = derive(f, node->in[i], MOST_STEPS_BACK);
    if (!opi_carries(&f->in[i]))
      continue;
    if (opi_carry_apply(f, node, f->in, f->out, NULL) >= 0)
      return true;
    f->in[i] = OPI_CARRY_NONE;
    ++n;
  }
  for (uint32_t i = 0; n > 1 && i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && !opi_carries(&f->in[i]))
      f->in[i] = f->derived[node->in[i]];
  }
  return n > 1 && opi_carry_apply(f, node, f->in, f->out, NULL) >= 0;
}

static bool reads_mixed(const opi_follower *f, const opi_node *node) {
  for (uint32_t i = 0; f->mixed != NULL && i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && f->mixed[node->in[i]])
      return true;
  }
  return false;
}

static void mark_mixed(const opi_follower *f, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      f->mixed[node->out[o]] = true;
  }
}

/* ---- where it may end ---- */

/* Does the node sum, or pick the largest, along axes? */
static bool reduces(const opi_node *node) {
  const uint32_t kind = opi_op_of(node)->kind;
  return kind == OPI_KIND_LOSS || kind == OPI_KIND_LIKELIHOOD || kind == OPI_KIND_SUM ||
         kind == OPI_KIND_MEAN || kind == OPI_KIND_REDUCTION;
}

/* The first input that is made of sums, or that carries the axis; OPIPE_NONE: none. */
static uint32_t input_of(const opi_follower *f, const opi_node *node, bool summed) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v != OPIPE_NONE && (summed ? f->sums[v] : opi_carries(&f->carry[v])))
      return v;
  }
  return OPIPE_NONE;
}

static void mark_sums(const opi_follower *f, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      f->sums[node->out[o]] = true;
  }
}

/* A reduction whose results do not carry what it reads. */
static void note_end(const opi_follower *f, const opi_node *node) {
  bool carries = false;
  for (uint32_t o = 0; o < node->n_out; ++o)
    carries = carries || (node->out[o] != OPIPE_NONE && opi_carries(&f->carry[node->out[o]]));
  if (f->sums != NULL && !carries && reduces(node) && input_of(f, node, false) != OPIPE_NONE)
    mark_sums(f, node);
}

/* Whatever reads a sum depends on it. */
static opipe_status follow_sum(const opi_follower *f, const opi_node *node, uint32_t sum,
                               opipe_error *err) {
  const uint32_t rows = input_of(f, node, false);
  if (rows != OPIPE_NONE) {
    return opi_carry_fail(f->graph, node, err, "'%s', which is made of all of it, beside '%s'",
                          f->graph->values[sum].name, f->graph->values[rows].name);
  }
  mark_sums(f, node);
  return OPIPE_OK;
}

/* ---- all of it ---- */

/* Another binding, in which nothing can be mistaken for the axis, tells of all outputs. */
static bool take_known(const opi_follower *f, const opi_node *node) {
  for (uint32_t o = 0; f->known != NULL && o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v != OPIPE_NONE && !opi_known_carry(f->known, f->graph, v, f->length, &f->carry[v]))
      return false;
  }
  return f->known != NULL;
}

static opipe_status follow_node(opi_follower *f, const opi_node *node, opipe_error *err) {
  bool carried = false;
  const uint32_t sum = f->sums == NULL ? OPIPE_NONE : input_of(f, node, true);
  if (reads_mixed(f, node)) {
    mark_mixed(f, node);
    return OPIPE_OK;
  }
  if (sum != OPIPE_NONE)
    return follow_sum(f, node, sum, err);
  if (take_known(f, node)) {
    note_end(f, node);
    return OPIPE_OK;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    f->in[i] = node->in[i] == OPIPE_NONE ? OPI_CARRY_NONE : f->carry[node->in[i]];
    carried = carried || opi_carries(&f->in[i]);
  }
  for (uint32_t o = 0; o < node->n_out; ++o)
    f->out[o] = OPI_CARRY_NONE;
  if (carried) {
    const opipe_status status = opi_carry_apply(f, node, f->in, f->out, err);
    const bool passed = status >= 0 || (status == OPIPE_E_UNSUPPORTED && retry(f, node));
    if (f->failed)
      return opi_fail_nomem(err, f->graph->n_values * sizeof(opi_carry), "carries");
    if (!passed && status == OPIPE_E_UNSUPPORTED && f->mixed != NULL) {
      mark_mixed(f, node);
      return OPIPE_OK;
    }
    if (!passed && status == OPIPE_E_UNSUPPORTED && f->sums != NULL && reduces(node)) {
      mark_sums(f, node);
      return OPIPE_OK;
    }
    if (!passed)
      return status;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      f->carry[node->out[o]] = f->out[o];
  }
  note_end(f, node);
  return OPIPE_OK;
}

static uint32_t widest(const opi_graph *graph) {
  uint32_t most = 1;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (graph->nodes[n].n_in > most)
      most = graph->nodes[n].n_in;
    if (graph->nodes[n].n_out > most)
      most = graph->nodes[n].n_out;
  }
  return most;
}

/* Every input holds the axis whole and with the same length. */
static opipe_status check_inputs(const opi_graph *graph, const opi_carry *in, int64_t *out_length,
                                 opipe_error *err) {
  int64_t length = -1;
  const char *first = "";
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *value = &graph->values[graph->inputs[i]];
    if (!opi_carries(&in[i]))
      continue;
    if (in[i].axis >= value->rank || in[i].outer < 1 || in[i].inner < 1 ||
        value->shape[in[i].axis] % (in[i].outer * in[i].inner) != 0) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "input '%s' of rank %" PRId32 " cannot hold the axis in dimension %" PRId32,
                      value->name, value->rank, in[i].axis);
    }
    const int64_t own = opi_carry_length(value, &in[i]);
    if (length >= 0 && own != length) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "the axis has length %" PRId64 " in input '%s' and %" PRId64 " in '%s'",
                      length, first, own, value->name);
    }
    if (length < 0)
      first = value->name;
    length = own;
  }
  *out_length = length < 0 ? 0 : length;
  return OPIPE_OK;
}

/* Constants whose positions count are marked at the end: opi_carry_compare asks for them. */
static opipe_status follow_all(opi_follower *f, const opi_carry *in_carry, opipe_error *err) {
  const opi_graph *graph = f->graph;
  opi_arena scratch;
  OPI_TRY(check_inputs(graph, in_carry, &f->length, err));
  opi_arena_init(&scratch, graph->arena->allocator, 0);
  const uint32_t room = widest(graph);
  f->scratch = &scratch;
  f->in = OPI_ARENA_ARRAY(&scratch, opi_carry, room);
  f->out = OPI_ARENA_ARRAY(&scratch, opi_carry, room);
  opipe_status status = OPIPE_OK;
  if (f->in == NULL || f->out == NULL)
    status = opi_fail_nomem(err, room * 2 * sizeof(opi_carry), "carries");
  for (uint32_t v = 0; v < graph->n_values && status >= 0; ++v)
    f->carry[v] = OPI_CARRY_NONE;
  for (uint32_t i = 0; i < graph->n_inputs && status >= 0; ++i)
    f->carry[graph->inputs[i]] = in_carry[i];
  for (uint32_t n = 0; n < graph->n_nodes && status >= 0; ++n) {
    if (f->nodes == NULL || f->nodes[n])
      status = follow_node(f, &graph->nodes[n], err);
  }
  for (uint32_t v = 0; v < graph->n_values && status >= 0 && f->derived != NULL; ++v) {
    if (graph->values[v].data != NULL && f->derived[v].count != 0)
      f->carry[v] = f->derived[v];
  }
  if (status >= 0)
    status = opi_known_count_mark(f, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_carry_axis(const opi_graph *graph, const opi_known_axis *known,
                            const opi_carry *in_carry, opi_carry *out_carry, opipe_error *err) {
  opi_follower f = {.graph = graph, .known = known, .carry = out_carry};
  return follow_all(&f, in_carry, err);
}

opipe_status opi_carry_through(const opi_graph *graph, const opi_carry_part *part,
                               const opi_known_axis *known, const opi_carry *in_carry,
                               opi_carry *out_carry, bool *out_sums, opipe_error *err) {
  const opipe_allocator *allocator = graph->arena->allocator;
  opi_follower f = {.graph = graph, .known = known, .carry = out_carry, .nodes = part->nodes};
  const size_t room = (size_t)graph->n_values + 1;
  if (part->sums) {
    f.sums = opi_alloc_zero(allocator, room, sizeof *f.sums);
    if (f.sums == NULL)
      return opi_fail_nomem(err, room, "sums over an axis");
  }
  const opipe_status status = follow_all(&f, in_carry, err);
  for (uint32_t v = 0; v < graph->n_values && out_sums != NULL; ++v)
    out_sums[v] = f.sums != NULL && f.sums[v];
  opi_free(allocator, f.sums, f.sums == NULL ? 0 : room * sizeof *f.sums);
  return status;
}

opipe_status opi_carry_follow(const opi_graph *graph, const opi_known_axis *known,
                              const opi_carry *in_carry, opi_carry *out_carry, bool *out_mixed,
                              opipe_error *err) {
  opi_follower f = {.graph = graph, .known = known, .carry = out_carry, .mixed = out_mixed};
  memset(out_mixed, 0, graph->n_values * sizeof *out_mixed);
  return follow_all(&f, in_carry, err);
}
