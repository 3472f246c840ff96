/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence form: where members have some of the rows (samples x tokens) of a whole value.
 *
 * Rows begin where a partial sum is summed: all dimensions but its last, flattened. A whole node
 * passes them on if its rule says so for each of these dimensions (`carry`), or if it broadcasts;
 * whatever else it reads is cut to the member's rows, or has none. All others need the rows of all
 * members; row_costs.c takes back what is better whole.
 */
#include <string.h>

#include "loader/shard/rows.h"

int64_t opi_sh_count_rows(const int64_t *shape, uint32_t k) {
  int64_t n = 1;
  for (uint32_t d = 0; d < k; ++d)
    n *= shape[d];
  return n;
}

opi_shard_run opi_sh_row_run(const opi_sharder *s, int64_t rows, uint32_t r) {
  const int64_t less = rows / s->width, more = rows % s->width, i = r;
  return (opi_shard_run){i * less + (i < more ? i : more), less + (i < more)};
}

/* ---- where rows begin ---- */

static bool is_output(const opi_graph *g, uint32_t v) {
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    if (g->outputs[o] == v)
      return true;
  }
  return false;
}

/* Partial values are read once where they are passed on. */
static void find_sums(opi_row_state *t) {
  const opi_sharder *s = t->s;
  for (uint32_t v = 0; v < s->g->n_values; ++v) {
    t->ends[v] = v;
    t->sums[v] = s->partial[v] && is_output(s->g, v);
  }
  for (uint32_t n = s->g->n_nodes; n-- > 0;) {
    const opi_node *node = &s->g->nodes[n];
    for (uint32_t i = 0; opi_sh_is_live(s, node) && i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      if (v == OPIPE_NONE || !s->partial[v])
        continue;
      if (s->decisions[n].reads[i].kind == OPI_READ_OWN)
        t->ends[v] = t->ends[node->out[0]];
      else
        t->sums[v] = true;
    }
  }
}

static void begin_rows(const opi_row_state *t, uint32_t v) {
  const opi_value *x = opi_sh_value(t->s, v);
  if (t->sums[v] && x->rank > 1 && opi_dtype_is_float(x->dtype) && opi_elems(x) > 0)
    t->s->rows.dims[v] = (uint8_t)(x->rank - 1);
}

/* ---- how nodes pass them ---- */

/* Dimensions of y that hold the rows of x's first k in another form; 0: none. */
static uint32_t rows_in_form(const opi_value *x, uint32_t k, const opi_value *y) {
  const int64_t rows = opi_sh_count_rows(x->shape, k);
  const int32_t same = y->rank - (x->rank - (int32_t)k);
  if (same > 0 && opi_sh_count_rows(y->shape, (uint32_t)same) == rows)
    return (uint32_t)same;
  for (uint32_t d = 1; d < (uint32_t)y->rank; ++d) {
    if (opi_sh_count_rows(y->shape, d) == rows)
      return d;
  }
  return 0;
}

static void read_rows(opi_sharder *s, uint32_t n, uint32_t i) {
  s->decisions[n].reads[i].kind = OPI_READ_ROWS;
}

static void read_spread(opi_sharder *s, uint32_t n) {
  for (uint32_t i = 0; i < s->g->nodes[n].n_in; ++i)
    s->decisions[n].reads[i].kind = OPI_READ_SPREAD;
}

static void refuse(opi_sharder *s, uint32_t n, const char *why) {
  s->rows.mixes[n] = opi_arena_strdup(&s->keep, why);
  s->failed = s->failed || s->rows.mixes[n] == NULL;
}

static bool form_rows(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = opi_sh_value(s, node->in[0]), *y = opi_sh_value(s, node->out[0]);
  const uint32_t k = rows_in_form(x, s->rows.dims[node->in[0]], y);
  if (k == 0) {
    refuse(s, n, "its form has no rows");
    return false;
  }
  read_spread(s, n);
  read_rows(s, n, 0);
  s->rows.dims[node->out[0]] = (uint8_t)k;
  return true;
}

/* Dimensions of y in which a value that has rows in its first k of `rank`, counted from the last
 * dimension as broadcasting does. */
static uint32_t aligned_rows(const opi_value *x, uint32_t k, const opi_value *y) {
  const int32_t lead = y->rank - x->rank;
  for (int32_t d = 0; d < lead; ++d) {
    if (y->shape[d] != 1)
      return 0;
  }
  if (memcmp(y->shape + lead, x->shape, k * sizeof(*x->shape)) != 0)
    return 0;
  return k + (uint32_t)lead;
}

static bool broadcast_rows(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *y = opi_sh_value(s, node->out[0]);
  const bool stretched = opi_op_of(node)->takes == OPI_TAKES_STRETCHED;
  const uint32_t n_in = stretched ? 1 : node->n_in;
  uint32_t k = 0;
  for (uint32_t i = 0; i < n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE || s->rows.dims[v] == 0)
      continue;
    const uint32_t own = aligned_rows(opi_sh_value(s, v), s->rows.dims[v], y);
    if (own == 0 || (k != 0 && own != k)) {
      refuse(s, n, "its inputs have rows in different places, or are repeated along them");
      return false;
    }
    k = own;
  }
  read_spread(s, n);
  for (uint32_t i = 0; i < n_in; ++i) {
    const uint32_t v = node->in[i];
    const opi_value *x = v == OPIPE_NONE ? NULL : opi_sh_value(s, v);
    const int32_t lead = x == NULL ? 0 : y->rank - x->rank;
    for (int32_t d = lead; x != NULL && d < (int32_t)k; ++d) {
      if (x->shape[d - lead] != 1 || s->rows.dims[v] != 0)
        read_rows(s, n, i);
    }
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->rows.dims[node->out[o]] = (uint8_t)k;
  }
  return true;
}

/* Does input i hold the same rows as x, in its first k dimensions? */
static bool is_beside(const opi_sharder *s, const opi_node *node, uint32_t i, const opi_value *x,
                      uint32_t k, bool whole) {
  const uint32_t v = node->in[i];
  if (v == OPIPE_NONE || (s->rows.dims[v] == 0 && !whole))
    return false;
  const opi_value *y = opi_sh_value(s, v);
  return s->rows.dims[v] != 0 ||
         (y->rank == x->rank && memcmp(y->shape, x->shape, k * sizeof(*x->shape)) == 0);
}

/* Does the node carry each of the first k dimensions, entry by entry, to the same ones of all
 * outputs? whole: whole inputs of the same rows are cut, too. */
static bool carries_rows(opi_sharder *s, const opi_node *node, const opi_value *x, uint32_t k,
                         bool whole, opipe_error *why) {
  const opi_op *op = opi_op_of(node);
  opi_carry *in = OPI_ARENA_ARRAY(&s->scratch, opi_carry, (size_t)node->n_in + node->n_out + 1);
  s->failed = s->failed || in == NULL;
  for (uint32_t d = 0; in != NULL && d < k; ++d) {
    opi_carry *out = in + node->n_in;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      in[i] = OPI_CARRY_NONE;
      if (is_beside(s, node, i, x, k, whole))
        in[i].axis = (int32_t)d;
    }
    for (uint32_t o = 0; o < node->n_out; ++o)
      out[o] = OPI_CARRY_NONE;
    if (op->carry(s->g, node, in, out, why) < 0)
      return false;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      const opi_value *y = node->out[o] == OPIPE_NONE ? NULL : opi_sh_value(s, node->out[o]);
      if (y != NULL && (out[o].axis != (int32_t)d || out[o].outer != 1 || out[o].inner != 1 ||
                        out[o].count != 0 || y->rank < (int32_t)k || y->shape[d] != x->shape[d])) {
        (void)opi_carry_fail(s->g, node, why, "rows are elsewhere in '%s'", y->name);
        return false;
      }
    }
  }
  return in != NULL;
}

/* The steps of a Slice along rows, if it has some. */
static bool is_in_steps(opi_sharder *s, const opi_node *node, uint32_t k) {
  uint64_t n = 0, n_steps = 0;
  if (opi_op_of(node)->takes != OPI_TAKES_PART)
    return false;
  const int64_t *axes = opi_sh_ints(s, node->in[3], &n),
                *steps = opi_sh_ints(s, node->in[4], &n_steps);
  bool any = axes == NULL || steps == NULL;
  for (uint64_t i = 0; !any && i < n; ++i)
    any = axes[i] < (int64_t)k && steps[i] != 1;
  return any;
}

static bool carried_rows(opi_sharder *s, uint32_t n, uint32_t first) {
  const opi_node *node = &s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  const opi_value *x = opi_sh_value(s, node->in[first]);
  const uint32_t k = s->rows.dims[node->in[first]];
  opipe_error why = OPIPE_ERROR_INIT;
  bool same = true;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    same = same && (v == OPIPE_NONE || s->rows.dims[v] == 0 ||
                    (s->rows.dims[v] == k &&
                     memcmp(opi_sh_value(s, v)->shape, x->shape, k * sizeof(*x->shape)) == 0));
  }
  if (!same || op->carry == NULL || (op->takes & (OPI_TAKES_TUPLES | OPI_TAKES_SCATTERED)) != 0 ||
      is_in_steps(s, node, k)) {
    refuse(s, n, same ? "it picks or writes rows by their places" : "its inputs have other rows");
    return false;
  }
  const bool alone = carries_rows(s, node, x, k, false, &why);
  if (!alone && !carries_rows(s, node, x, k, true, NULL)) {
    refuse(s, n, why.message);
    return false;
  }
  read_spread(s, n);
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (is_beside(s, node, i, x, k, !alone))
      read_rows(s, n, i);
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->rows.dims[node->out[o]] = (uint8_t)k;
  }
  return true;
}

static void pass_rows(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  uint32_t first = 0;
  while (first < node->n_in &&
         (node->in[first] == OPIPE_NONE || s->rows.dims[node->in[first]] == 0))
    ++first;
  if (s->decisions[n].mode != OPI_MODE_WHOLE || first == node->n_in)
    return;
  if (op->takes == OPI_TAKES_FORM)
    s->rows.nodes[n] = form_rows(s, n);
  else if (op->carry == opi_carry_broadcast || op->takes == OPI_TAKES_STRETCHED)
    s->rows.nodes[n] = broadcast_rows(s, n);
  else
    s->rows.nodes[n] = carried_rows(s, n, first);
}

/* A value that is added behind a sum is read by rows; outputs are whole. */
static void mark_reads(const opi_row_state *t) {
  opi_sharder *s = t->s;
  const opi_graph *g = s->g;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; opi_sh_is_live(s, &g->nodes[n]) && i < g->nodes[n].n_in; ++i) {
      if (g->nodes[n].in[i] != OPIPE_NONE && opi_sh_is_added_to_rows(t, n, i))
        read_rows(s, n, i);
    }
  }
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    const uint32_t v = g->outputs[o];
    const uint32_t p = g->values[v].producer;
    if (s->rows.dims[v] != 0 && s->rows.mixes[p] == NULL) {
      s->rows.mixes[p] = opi_arena_printf(&s->keep, "'%s' is an output", g->values[v].name);
      s->failed = s->failed || s->rows.mixes[p] == NULL;
    }
  }
}

static void mark_early(opi_sharder *s, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->rows.early[node->out[o]] = true;
  }
}

/* Finds nodes before all sums, then movements of whole values. */
static void find_early(opi_sharder *s) {
  const opi_graph *g = s->g;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    bool early = s->decisions[n].mode == OPI_MODE_WHOLE && !s->rows.nodes[n];
    for (uint32_t i = 0; early && i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      early = v == OPIPE_NONE || opi_sh_value(s, v)->producer == OPIPE_NONE || s->rows.early[v];
    }
    if (early)
      mark_early(s, node);
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (s->decisions[n].mode == OPI_MODE_WHOLE && !s->rows.nodes[n] &&
        opi_sh_only_moves(&g->nodes[n]))
      mark_early(s, &g->nodes[n]);
  }
}

opipe_status opi_sh_rows(opi_sharder *s, opipe_error *err) {
  const opi_graph *g = s->g;
  const size_t values = (size_t)g->n_values + 1;
  opi_row_state t = {.s = s,
                     .sums = OPI_ARENA_ARRAY(&s->scratch, bool, values),
                     .ends = OPI_ARENA_ARRAY(&s->scratch, uint32_t, values),
                     .row_reads = OPI_ARENA_ARRAY(&s->scratch, bool, values),
                     .whole_reads = OPI_ARENA_ARRAY(&s->scratch, bool, values),
                     .spread_reads = OPI_ARENA_ARRAY(&s->scratch, bool, values),
                     .counts = OPI_ARENA_ARRAY(&s->scratch, uint32_t, values)};
  if (t.sums == NULL || t.ends == NULL || t.row_reads == NULL || t.whole_reads == NULL ||
      t.spread_reads == NULL || t.counts == NULL)
    return opi_fail_nomem(err, values * 7, "rows");
  find_sums(&t);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    if (!opi_sh_is_live(s, node))
      continue;
    pass_rows(s, n);
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE)
        begin_rows(&t, node->out[o]);
    }
  }
  opi_sh_take_rows_back(&t);
  mark_reads(&t);
  find_early(s);
  return s->failed ? opi_fail_nomem(err, values, "rows") : OPIPE_OK;
}
