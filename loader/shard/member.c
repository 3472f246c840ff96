/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a member's graph, and describes its parts. */
#include <inttypes.h>
#include <string.h>

#include "loader/shard/writer.h"

/* ---- nodes ---- */

static opipe_status write_node(opi_writer *w, uint32_t n) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_shard_decision *d = &w->s->decisions[n];
  if (w->s->rows.nodes[n])
    return opi_w_row_node(w, n);
  if (d->mode != OPI_MODE_WHOLE && d->mode != OPI_MODE_CUT && d->mode != OPI_MODE_PASS)
    return opi_w_special(w, n);
  uint32_t *in = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)node->n_in + node->n_out + 1);
  opi_labels **labels = OPI_ARENA_ARRAY(&w->scratch, opi_labels *, (size_t)node->n_out + 1);
  if (in == NULL || labels == NULL)
    return opi_fail_nomem(w->err, 64, "a member's node");
  uint32_t *out = in + node->n_in;
  for (uint32_t i = 0; i < node->n_in; ++i)
    OPI_TRY(opi_w_read(w, n, i, &in[i]));
  for (uint32_t o = 0; o < node->n_out; ++o)
    labels[o] = node->out[o] == OPIPE_NONE ? NULL : w->s->labels[node->out[o]];
  const opi_labels *first = d->mode != OPI_MODE_CUT || node->n_in == 0 ? NULL
                            : d->reads[0].kind == OPI_READ_CUT         ? d->reads[0].labels
                            : node->in[0] == OPIPE_NONE                ? NULL
                                                                       : w->s->labels[node->in[0]];
  OPI_TRY(opi_w_node(w, n, in, first, labels,
                     d->mode == OPI_MODE_PASS ? OPI_NAMES_PARTIAL : OPI_NAMES_KEPT, out));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    w->own[node->out[o]] = out[o];
    opi_b_value(&w->b, out[o])->source = w->s->g->values[node->out[o]].source;
  }
  return OPIPE_OK;
}

/* Nodes emitted since the last call belong to node n of the whole graph, which `pass` keeps until
 * the graph is finished. */
static void tag(opi_writer *w, uint32_t n, uint32_t *io_done) {
  const opi_node *node = &w->s->g->nodes[n];
  for (; *io_done < w->b.graph->n_nodes; ++*io_done) {
    opi_node *made = &w->b.graph->nodes[*io_done];
    made->pass = opi_w_node_sent(w, *io_done, n);
    made->source = node->source;
    made->stage = node->stage;
  }
}

/* Graph outputs keep their names. */
static opipe_status write_outputs(opi_writer *w, uint32_t *io_done) {
  const opi_graph *g = w->s->g;
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    const uint32_t v = g->outputs[o];
    const opi_value *x = &g->values[v];
    uint32_t made = w->own[v], other = OPIPE_NONE;
    if (w->s->labels[v] == NULL)
      OPI_TRY(opi_w_whole(w, v, &made));
    if (strcmp(opi_b_value(&w->b, made)->name, x->name) != 0 &&
        !opi_map_get(w->b.names, x->name, &other)) {
      const opi_emit emit = {
          .op = "Identity", .in = &made, .n_in = 1, .n_out = 1, .out_names = &x->name};
      OPI_TRY(opi_b_emit_kept(&w->b, &emit, &other, w->err));
      made = other;
    }
    if (w->s->partial[v] || w->s->rows.dims[v] != 0)
      w->whole[v] = made;
    else
      w->own[v] = made;
    if (!opi_graph_add_output(w->b.graph, made))
      return opi_fail_nomem(w->err, 4, "an output");
    if (x->producer != OPIPE_NONE)
      tag(w, x->producer, io_done);
  }
  return OPIPE_OK;
}

static bool is_needed(const opi_sharder *s, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE && s->needed[node->out[o]])
      return true;
  }
  return false;
}

/* Inputs come first and in order, whole or divided. */
static opipe_status write_inputs(opi_writer *w) {
  const opi_sharder *s = w->s;
  for (uint32_t i = 0; i < s->g->n_inputs; ++i) {
    const uint32_t v = s->g->inputs[i];
    uint32_t made;
    if (s->leaf[v] > OPI_LEAF_SEVERAL)
      OPI_TRY(opi_w_cut(w, v, s->cut[v], &made));
    else
      OPI_TRY(opi_w_whole(w, v, &made));
    if (!opi_graph_add_input(w->b.graph, made))
      return opi_fail_nomem(w->err, 4, "an input");
  }
  return OPIPE_OK;
}

static opipe_status write_graph(opi_writer *w) {
  uint32_t done = 0;
  OPI_TRY(write_inputs(w));
  for (uint32_t n = 0; n < w->s->g->n_nodes; ++n) {
    w->stage = w->s->wish->scatters == NULL ? OPIPE_NONE : w->s->wish->stages[n];
    if (is_needed(w->s, &w->s->g->nodes[n]))
      OPI_TRY(write_node(w, n));
    tag(w, n, &done);
  }
  w->stage = OPIPE_NONE;
  return write_outputs(w, &done);
}

/* ---- descriptions ---- */

static uint32_t find_name(const opi_map *names, const char *name) {
  uint32_t v = OPIPE_NONE;
  return name != NULL && opi_map_get(names, name, &v) ? v : OPIPE_NONE;
}

static opipe_status finish_part(opi_writer *w, const opi_shard_part *from, opi_shard_member *m,
                                const opi_map *names, const char *own_name) {
  const bool input = (w->s->g->values[from->whole].flags & OPI_VALUE_INPUT) != 0;
  opi_shard_part *to = input ? &m->inputs[m->n_inputs] : &m->params[m->n_params];
  *to = *from;
  to->value = find_name(names, own_name);
  if (to->value == OPIPE_NONE)
    return OPIPE_OK; /* no node needs it */
  to->runs = opi_arena_copy(&m->bound->arena, from->runs, from->n_runs * sizeof(*from->runs));
  if (to->runs == NULL)
    return opi_fail_nomem(w->err, 64, "parts");
  m->n_inputs += input;
  m->n_params += !input && (w->s->g->values[from->whole].flags & OPI_VALUE_INITIALIZER) != 0;
  return OPIPE_OK;
}

static opipe_status finish_outputs(opi_writer *w, opi_shard_member *m) {
  const opi_graph *g = w->s->g;
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    const uint32_t v = g->outputs[o];
    opi_labels *l = w->s->labels[v];
    int64_t sum = 0;
    bool shared = false;
    if (l == NULL)
      continue;
    opi_shard_part *part = &m->outputs[m->n_outputs++];
    *part = (opi_shard_part){.name = g->values[v].name,
                             .whole = v,
                             .value = m->bound->graph->outputs[o],
                             .axis = l->dims[0]};
    part->runs = opi_sh_runs(w->s, l, w->r, &m->bound->arena, &part->n_runs, &sum, &shared);
    part->flags = shared ? OPI_PART_SHARED : 0u;
    if (part->runs == NULL)
      return opi_fail_nomem(w->err, 64, "parts");
  }
  return OPIPE_OK;
}

/* Names of the file, and those that values had in the whole graph. */
static opipe_status finish_aliases(opi_writer *w, opi_shard_member *m) {
  const opi_bound *from = w->s->bound;
  const opi_graph *g = w->s->g;
  opi_bound *to = m->bound;
  to->aliases = OPI_ARENA_ARRAY(&to->arena, opi_alias, (size_t)from->n_aliases + g->n_values + 1);
  if (to->aliases == NULL)
    return opi_fail_nomem(w->err, from->n_aliases * sizeof(opi_alias), "names");
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const uint32_t own = m->value_of[v];
    if (own != OPIPE_NONE && strcmp(to->graph->values[own].name, g->values[v].name) != 0) {
      to->aliases[to->n_aliases++] =
          (opi_alias){opi_arena_strdup(&to->arena, g->values[v].name), own};
    }
  }
  for (uint32_t a = 0; a < from->n_aliases; ++a) {
    const uint32_t v = from->aliases[a].value;
    const uint32_t own = v == OPIPE_NONE ? OPIPE_NONE : m->value_of[v];
    to->aliases[to->n_aliases++] =
        (opi_alias){opi_arena_strdup(&to->arena, from->aliases[a].name), own};
  }
  for (uint32_t a = 0; a < to->n_aliases; ++a) {
    if (to->aliases[a].name == NULL)
      return opi_fail_nomem(w->err, 64, "names");
  }
  return OPIPE_OK;
}

static opipe_status finish_bound(opi_writer *w, opi_shard_member *m) {
  const opi_bound *from = w->s->bound;
  opi_bound *to = m->bound;
  const opi_graph *g = to->graph;
  to->n_file_nodes = from->n_file_nodes;
  memcpy(to->patterns, from->patterns, sizeof to->patterns);
  to->n_dims = from->n_dims;
  to->dims = opi_arena_copy(&to->arena, from->dims, from->n_dims * sizeof(*from->dims));
  for (uint32_t d = 0; to->dims != NULL && d < to->n_dims; ++d)
    to->dims[d].name = opi_arena_strdup(&to->arena, from->dims[d].name);
  to->index_limits = OPI_ARENA_ARRAY(&to->arena, int64_t, (size_t)g->n_inputs + 1);
  if ((to->dims == NULL && from->n_dims != 0) || to->index_limits == NULL)
    return opi_fail_nomem(w->err, 64, "a member's graph");
  if (from->index_limits != NULL)
    memcpy(to->index_limits, from->index_limits, g->n_inputs * sizeof(int64_t));
  to->origins = from->origins;
  to->n_origins = from->n_origins;
  return OPIPE_OK;
}

/* Names before nodes are dropped and values renumbered; NULL: not made. */
static const char *name_of(const opi_writer *w, uint32_t made) {
  return made == OPIPE_NONE ? NULL : w->b.graph->values[made].name;
}

typedef struct old_names {
  const char **values, **parts, **sent;
} old_names;

static opipe_status keep_names(opi_writer *w, old_names *old) {
  const uint32_t n = w->s->g->n_values;
  old->values = OPI_ARENA_ARRAY(&w->scratch, const char *, (size_t)n + 1);
  old->parts = OPI_ARENA_ARRAY(&w->scratch, const char *, (size_t)w->n_parts + 1);
  old->sent = OPI_ARENA_ARRAY(&w->scratch, const char *, (size_t)w->n_sent + 1);
  if (old->values == NULL || old->parts == NULL || old->sent == NULL)
    return opi_fail_nomem(w->err, n * 8u, "names");
  for (uint32_t v = 0; v < n; ++v) {
    const bool summed = w->s->partial[v] && w->whole[v] != OPIPE_NONE;
    old->values[v] = name_of(w, w->row[v] != OPIPE_NONE ? w->row[v]
                                : summed                ? w->whole[v]
                                                        : w->own[v]);
  }
  for (uint32_t i = 0; i < w->n_parts; ++i)
    old->parts[i] = name_of(w, w->parts[i].value);
  for (uint32_t i = 0; i < w->n_sent; ++i)
    old->sent[i] = name_of(w, w->sent[i].part);
  return OPIPE_OK;
}

static opipe_status finish_rows(opi_writer *w, opi_shard_member *m) {
  const opi_graph *g = w->s->g;
  m->rows = OPI_ARENA_ARRAY(&m->bound->arena, opi_shard_rows, (size_t)g->n_values + 1);
  for (uint32_t v = 0; m->rows != NULL && v < g->n_values; ++v) {
    const uint32_t k = w->s->rows.dims[v];
    if (k == 0 || w->row[v] == OPIPE_NONE || m->value_of[v] == OPIPE_NONE)
      continue;
    const int64_t of = opi_sh_count_rows(g->values[v].shape, k);
    const opi_shard_run run = opi_sh_row_run(w->s, of, w->r);
    m->rows[m->n_rows++] = (opi_shard_rows){.whole = v,
                                            .value = m->value_of[v],
                                            .axis = (int32_t)k - 1,
                                            .first = run.first,
                                            .n = run.n,
                                            .of = of};
  }
  return m->rows == NULL ? opi_fail_nomem(w->err, g->n_values * 8u, "rows") : OPIPE_OK;
}

/* By name, as values have other numbers now. */
static opipe_status finish_sent(opi_writer *w, opi_shard_member *m, const old_names *old,
                                const opi_map *names) {
  m->sent = OPI_ARENA_ARRAY(&m->bound->arena, uint32_t, (size_t)w->n_sent + 1);
  for (uint32_t i = 0; m->sent != NULL && i < w->n_sent; ++i) {
    const uint32_t v = find_name(names, old->sent[i]);
    if (v != OPIPE_NONE)
      m->sent[m->n_sent++] = v;
  }
  return m->sent == NULL ? opi_fail_nomem(w->err, w->n_sent * sizeof(*m->sent), "parts") : OPIPE_OK;
}

static opipe_status describe(opi_writer *w, opi_shard_member *m, const old_names *old,
                             opi_map *names) {
  opi_arena *arena = &m->bound->arena;
  opi_graph *g = m->bound->graph;
  const uint32_t n_values = w->s->g->n_values;
  for (uint32_t v = 0; v < g->n_values; ++v)
    OPI_TRY(opi_map_set(names, g->values[v].name, v, w->err));
  m->node_of = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)g->n_nodes + 1);
  m->value_of = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n_values + 1);
  m->params = OPI_ARENA_ARRAY(arena, opi_shard_part, (size_t)w->n_parts + 1);
  m->inputs = OPI_ARENA_ARRAY(arena, opi_shard_part, (size_t)w->n_parts + 1);
  m->outputs = OPI_ARENA_ARRAY(arena, opi_shard_part, (size_t)g->n_outputs + 1);
  m->sums = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)w->n_sums + 1);
  if (m->node_of == NULL || m->value_of == NULL || m->params == NULL || m->inputs == NULL ||
      m->outputs == NULL || m->sums == NULL)
    return opi_fail_nomem(w->err, n_values * 8u, "a member's parts");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    m->node_of[n] = g->nodes[n].pass;
    g->nodes[n].pass = 0;
  }
  for (uint32_t v = 0; v < n_values; ++v)
    m->value_of[v] = find_name(names, old->values[v]);
  for (uint32_t i = 0; i < w->n_parts; ++i)
    OPI_TRY(finish_part(w, &w->parts[i], m, names, old->parts[i]));
  for (uint32_t i = 0; i < w->n_sums; ++i) {
    const uint32_t v = m->value_of[w->sums[i]];
    if (v != OPIPE_NONE)
      m->sums[m->n_sums++] = v;
  }
  m->n_repeated = w->n_repeated;
  OPI_TRY(finish_rows(w, m));
  OPI_TRY(finish_sent(w, m, old, names));
  OPI_TRY(finish_bound(w, m));
  OPI_TRY(finish_outputs(w, m));
  return finish_aliases(w, m);
}

static opipe_status finish(opi_writer *w, opi_shard_member *m, const old_names *old) {
  opi_map *names = NULL;
  OPI_TRY(opi_graph_copy(w->b.graph, &m->bound->arena, &m->bound->graph, w->err));
  OPI_TRY(opi_map_create(w->s->wish->allocator, &names, w->err));
  opipe_status status = describe(w, m, old, names);
  opi_map_free(names);
  return status < 0 ? status : opi_graph_verify(m->bound->graph, w->err);
}

/* ---- the frame ---- */

static opipe_status open_writer(opi_writer *w) {
  const uint32_t n = w->s->g->n_values;
  opi_graph *graph = opi_graph_new(&w->scratch, w->s->g->name);
  w->own = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)n + 1);
  w->whole = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)n + 1);
  w->spread = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)n + 1);
  w->row = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)n + 1);
  w->aside = OPI_ARENA_ARRAY(&w->scratch, opi_aside, (size_t)n + 1);
  if (graph == NULL || w->own == NULL || w->whole == NULL || w->spread == NULL || w->row == NULL ||
      w->aside == NULL)
    return opi_fail_nomem(w->err, n * 32u, "a member's graph");
  for (uint32_t v = 0; v < n; ++v)
    w->own[v] = w->whole[v] = w->spread[v] = w->row[v] = OPIPE_NONE;
  OPI_TRY(opi_b_open(&w->b, graph, &w->scratch, w->s->wish->allocator, w->err));
  OPI_TRY(opi_b_reserve(&w->b, w->s->g, w->err));
  w->b.evaluator = w->s->wish->evaluator;
  w->b.keep_parameters = true;
  if (w->s->wish->choices != NULL) {
    w->b.choices = &w->s->wish->choices[w->r];
    opi_choices_begin(w->b.choices);
  }
  return OPIPE_OK;
}

opipe_status opi_sh_write(opi_sharder *s, uint32_t r, opi_shard_member *out, opipe_error *err) {
  opi_writer w = {.s = s, .r = r, .stage = OPIPE_NONE, .err = err};
  old_names old;
  out->bound = opi_alloc_zero(s->wish->allocator, 1, sizeof(*out->bound));
  if (out->bound == NULL)
    return opi_fail_nomem(err, sizeof(*out->bound), "a member's graph");
  opi_arena_init(&out->bound->arena, s->wish->allocator, 0);
  opi_arena_init(&w.scratch, s->wish->allocator, 0);
  opipe_status status = open_writer(&w);
  if (status >= 0) {
    status = write_graph(&w);
    if (status >= 0)
      status = keep_names(&w, &old);
    if (status >= 0)
      status = opi_pass_dead(&w.b, err);
    if (status >= 0)
      status = finish(&w, out, &old);
  }
  opi_b_close(&w.b);
  opi_arena_release(&w.scratch);
  return status;
}
