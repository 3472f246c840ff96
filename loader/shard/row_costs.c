/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are better computed whole than by rows: one whose result only readers of all rows
 * want, where gathering what it reads takes fewer collectives or bytes; and sums that nobody reads
 * by rows. */
#include <string.h>

#include "loader/shard/rows.h"

static void take_back(opi_sharder *s, uint32_t n) {
  const opi_node *node = &s->g->nodes[n];
  s->rows.nodes[n] = false;
  memset(s->decisions[n].reads, 0, node->n_in * sizeof(opi_read));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->rows.dims[node->out[o]] = 0;
  }
}

/* Collectives take float types. */
static bool has_to_be_whole(const opi_row_state *t, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v != OPIPE_NONE && t->whole_reads[v] && !opi_dtype_is_float(opi_sh_value(t->s, v)->dtype))
      return true;
  }
  return false;
}

bool opi_sh_only_moves(const opi_node *node) {
  return (opi_op_of(node)->takes & (OPI_TAKES_FORM | OPI_TAKES_TURNED)) != 0;
}

/* The only value that node n reads in rows and that is not gathered anyway; NONE: nothing. False:
 * there are several. */
static bool one_source(const opi_row_state *t, uint32_t n, uint32_t *out) {
  const opi_sharder *s = t->s;
  *out = OPIPE_NONE;
  for (uint32_t i = 0; i < s->g->nodes[n].n_in; ++i) {
    const uint32_t v = s->g->nodes[n].in[i];
    if (v == OPIPE_NONE || s->rows.dims[v] == 0 || t->whole_reads[v] || v == *out)
      continue;
    if (*out != OPIPE_NONE)
      return false;
    *out = v;
  }
  return true;
}

/* Up from v, as long as values are read once: what would have to be gathered to compute v whole;
 * NONE: nothing. */
static uint32_t source_of(const opi_row_state *t, uint32_t v) {
  const opi_sharder *s = t->s;
  while (v != OPIPE_NONE && s->rows.dims[v] != 0 && !t->whole_reads[v]) {
    const uint32_t p = opi_sh_value(s, v)->producer;
    uint32_t next = OPIPE_NONE;
    if (!s->rows.nodes[p] || s->uses[v] != 1 || !one_source(t, p, &next))
      return v;
    v = next;
  }
  return OPIPE_NONE;
}

/* Nobody reads its rows, and gathering what it reads takes fewer bytes than what it makes; for a
 * movement, no more. */
static bool is_better_whole(const opi_row_state *t, uint32_t n) {
  const opi_sharder *s = t->s;
  const opi_node *node = &s->g->nodes[n];
  uint64_t made = 0, read = 0;
  if (has_to_be_whole(t, node))
    return true;
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    if (t->row_reads[v])
      return false;
    made += t->whole_reads[v] ? opi_sh_value(s, v)->n_bytes : 0;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    bool again = source_of(t, v) == OPIPE_NONE;
    for (uint32_t k = 0; !again && k < i; ++k)
      again = node->in[k] == v;
    read += again ? 0 : opi_sh_value(s, v)->n_bytes;
  }
  return read < made || (read == made && made != 0 && opi_sh_only_moves(node));
}

/* Results of node n that are gathered, if for whole readers alone. */
static uint32_t results_of(const opi_row_state *t, uint32_t n) {
  const opi_node *node = &t->s->g->nodes[n];
  uint32_t results = 0;
  for (uint32_t o = 0; t->s->rows.nodes[n] && o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    if (t->row_reads[v] || t->spread_reads[v])
      return 0;
    results += t->whole_reads[v];
  }
  return results;
}

/* All that would be gathered to compute node n whole; NONE: nothing, or several values. */
static uint32_t source_of_node(const opi_row_state *t, uint32_t n) {
  uint32_t next = OPIPE_NONE;
  return one_source(t, n, &next) ? source_of(t, next) : OPIPE_NONE;
}

/* Node n, and all between x and it. */
static void take_path(const opi_row_state *t, uint32_t n, uint32_t x) {
  uint32_t next = OPIPE_NONE;
  while (one_source(t, n, &next) && next != OPIPE_NONE) {
    take_back(t->s, n);
    if (next == x)
      return;
    n = opi_sh_value(t->s, next)->producer;
  }
}

/* Gathers one value instead of several that are computed from it. */
static void gather_before(const opi_row_state *t, bool *out_changed) {
  const opi_graph *g = t->s->g;
  memset(t->counts, 0, g->n_values * sizeof(*t->counts));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t results = results_of(t, n);
    const uint32_t x = results == 0 ? OPIPE_NONE : source_of_node(t, n);
    if (x != OPIPE_NONE)
      t->counts[x] += results;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t x = results_of(t, n) == 0 ? OPIPE_NONE : source_of_node(t, n);
    if (x == OPIPE_NONE || t->counts[x] < 2)
      continue;
    take_path(t, n, x);
    *out_changed = true;
  }
}

bool opi_sh_is_added_to_rows(const opi_row_state *t, uint32_t n, uint32_t i) {
  const opi_sharder *s = t->s;
  const opi_node *node = &s->g->nodes[n];
  const uint32_t mode = s->decisions[n].mode, kind = s->decisions[n].reads[i].kind;
  const bool added = mode == OPI_MODE_ADD ||
                     (mode == OPI_MODE_SUM && opi_op_of(node)->sums == OPI_SUMS_LAYER && i == 2);
  return added && (kind == OPI_READ_WHOLE || kind == OPI_READ_ROWS) &&
         s->rows.dims[t->ends[node->out[0]]] != 0;
}

static void note_reads(const opi_row_state *t, uint32_t n) {
  const opi_sharder *s = t->s;
  const opi_node *node = &s->g->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i], kind = s->decisions[n].reads[i].kind;
    if (v == OPIPE_NONE || kind == OPI_READ_OWN)
      continue;
    if (kind == OPI_READ_ROWS || opi_sh_is_added_to_rows(t, n, i))
      t->row_reads[v] = true;
    else
      t->whole_reads[v] = true;
    if (kind == OPI_READ_SPREAD || kind == OPI_READ_CUT)
      t->spread_reads[v] = t->spread_reads[v] || !s->rows.nodes[n];
  }
}

/* From the last node to the first, as readers come behind. *out_changed: something became whole. */
static void sweep(const opi_row_state *t, bool *out_changed) {
  opi_sharder *s = t->s;
  const opi_graph *g = s->g;
  memset(t->row_reads, 0, g->n_values * sizeof(bool));
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    const opi_node *node = &g->nodes[n];
    if (!opi_sh_is_live(s, node))
      continue;
    if (s->rows.nodes[n] && is_better_whole(t, n)) {
      take_back(s, n);
      *out_changed = true;
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
      const uint32_t v = node->out[o];
      if (v != OPIPE_NONE && t->sums[v] && s->rows.dims[v] != 0 && !t->row_reads[v]) {
        s->rows.dims[v] = 0;
        *out_changed = true;
      }
    }
    note_reads(t, n);
  }
}

void opi_sh_take_rows_back(const opi_row_state *t) {
  const opi_sharder *s = t->s;
  for (uint32_t o = 0; o < s->g->n_outputs; ++o)
    t->whole_reads[s->g->outputs[o]] = true;
  for (bool changed = true; changed;) {
    changed = false;
    sweep(t, &changed);
    if (!changed)
      gather_before(t, &changed);
  }
}
