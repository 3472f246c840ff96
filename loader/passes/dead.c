/* SPDX-License-Identifier: Apache-2.0 */
/* Drops what no output needs, and copies graphs so that garbage stays behind.
 *
 * Optional outputs that nothing reads go, too.
 * Graph inputs stay even when nothing reads them: callers feed inputs by position. Values are
 * renumbered in their old order, so a graph that has nothing dead does not change.
 */
#include "loader/passes/private.h"

typedef struct marks {
  uint32_t *value; /* [n_values] 1: needed; later the new index + 1, 0: dropped */
  bool *node;      /* [n_nodes] */
} marks;

/* Optional outputs that nothing reads are left out of a node, as a file may leave them out. */
static uint32_t n_required(const opi_node *node) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  const uint32_t least = op != NULL ? op->min_out : node->n_out;
  return least < node->n_out ? least : node->n_out;
}

static void mark(const opi_graph *graph, const marks *m) {
  for (uint32_t i = 0; i < graph->n_inputs; ++i)
    m->value[graph->inputs[i]] = 1;
  for (uint32_t o = 0; o < graph->n_outputs; ++o)
    m->value[graph->outputs[o]] = 1;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE && m->value[node->out[o]])
        m->node[n] = true;
    }
    if (!m->node[n])
      continue;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        m->value[node->in[i]] = 1;
    }
    for (uint32_t o = 0; o < n_required(node); ++o) { /* these stay though nothing reads them */
      if (node->out[o] != OPIPE_NONE)
        m->value[node->out[o]] = 1;
    }
  }
}

static void renumber(const marks *m, uint32_t *indices, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (indices[i] != OPIPE_NONE)
      indices[i] = m->value[indices[i]] - 1;
  }
}

static void compact(opi_graph *graph, const marks *m) {
  uint32_t n_values = 0, n_nodes = 0;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (!m->value[v])
      continue;
    graph->values[n_values] = graph->values[v];
    m->value[v] = ++n_values;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (!m->node[n])
      continue;
    opi_node *node = &graph->nodes[n_nodes];
    *node = graph->nodes[n];
    renumber(m, node->in, node->n_in);
    renumber(m, node->out, node->n_out);
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE)
        graph->values[node->out[o]].producer = n_nodes;
    }
    ++n_nodes;
  }
  renumber(m, graph->inputs, graph->n_inputs);
  renumber(m, graph->outputs, graph->n_outputs);
  graph->n_values = n_values;
  graph->n_nodes = n_nodes;
}

/* The names map follows, so that later passes may take names that became free. */
static opipe_status follow_names(opi_builder *b, const opi_graph *graph, const marks *m,
                                 opipe_error *err) {
  for (uint32_t a = 0; a < b->n_aliases; ++a) {
    if (b->aliases[a].value == OPIPE_NONE)
      continue;
    b->aliases[a].value = m->value[b->aliases[a].value] - 1; /* dropped: OPIPE_NONE */
  }
  opi_map *names = NULL;
  OPI_TRY(opi_map_create(b->allocator, &names, err));
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_status status = opi_map_keep(names, graph->values[v].name, v, err);
    if (status < 0) {
      opi_map_free(names);
      return status;
    }
  }
  opi_map_free(b->names);
  b->names = names;
  return OPIPE_OK;
}

/* Codes stay as long as what was unpacked from them. */
static void mark_unpacked(const opi_builder *b, const marks *m) {
  for (uint32_t i = 0; i < b->unpacked.n; ++i) {
    const opi_unpacked *u = &b->unpacked.list[i];
    if (m->value[u->value] == 0)
      continue;
    m->value[u->codes] = m->value[u->scale] = 1;
    if (u->zero != OPIPE_NONE)
      m->value[u->zero] = 1;
  }
}

static void renumber_unpacked(opi_builder *b, const marks *m) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < b->unpacked.n; ++i) {
    const opi_unpacked u = b->unpacked.list[i];
    if (m->value[u.value] == 0)
      continue;
    b->unpacked.list[n++] = (opi_unpacked){m->value[u.value] - 1,
                                           m->value[u.codes] - 1,
                                           m->value[u.scale] - 1,
                                           u.zero == OPIPE_NONE ? OPIPE_NONE : m->value[u.zero] - 1,
                                           u.axis,
                                           u.blocks};
  }
  b->unpacked.n = n;
}

opipe_status opi_pass_dead(opi_builder *b, opipe_error *err) {
  opi_graph *graph = b->graph;
  marks m = {OPI_ARENA_ARRAY(b->scratch, uint32_t, graph->n_values),
             OPI_ARENA_ARRAY(b->scratch, bool, graph->n_nodes)};
  if (m.value == NULL || m.node == NULL)
    return opi_fail_nomem(err, (uint64_t)graph->n_values * 4 + graph->n_nodes, "marking nodes");
  mark(graph, &m);
  mark_unpacked(b, &m);
  compact(graph, &m);
  renumber_unpacked(b, &m);
  return follow_names(b, graph, &m, err);
}

/* -- copies -- */

/* Constants of programs are copied, so that running them reads no file. */
static bool is_small(const opi_value *value) {
  enum { MOST_BYTES = 1024 };
  return value->n_bytes <= MOST_BYTES;
}

static bool copy_value(opi_arena *arena, const opi_value *from, opi_value *to) {
  *to = *from;
  to->dim_names = NULL;
  to->name = opi_arena_strdup(arena, from->name);
  if (to->name == NULL)
    return false;
  if (from->rank > 0) {
    to->shape = opi_arena_copy(arena, from->shape, (size_t)from->rank * sizeof(int64_t));
    if (to->shape == NULL)
      return false;
  }
  if (from->data != NULL && (!(from->flags & OPI_VALUE_BORROWED) || is_small(from))) {
    to->data = opi_arena_copy(arena, from->data, from->n_bytes);
    to->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
    if (to->data == NULL)
      return false;
  }
  return true;
}

static const void *copy_attr_data(opi_arena *arena, const opipe_attr *attr) {
  switch (attr->kind) {
    case OPIPE_ATTR_STRING:
      return opi_arena_strndup(arena, attr->data, attr->n);
    case OPIPE_ATTR_INTS:
      return opi_arena_copy(arena, attr->data, attr->n * sizeof(int64_t));
    case OPIPE_ATTR_FLOATS:
      return opi_arena_copy(arena, attr->data, attr->n * sizeof(float));
    case OPIPE_ATTR_STRINGS:
      return opi_arena_copy(arena, attr->data, attr->n * sizeof(char *));
    default:
      return attr->data; /* numbers have none, tensors are the model's own */
  }
}

static bool copy_node(opi_arena *arena, const opi_node *from, opi_node *to) {
  *to = *from;
  to->name = opi_arena_strdup(arena, from->name);
  to->op = opi_arena_strdup(arena, from->op);
  to->domain = opi_arena_strdup(arena, from->domain);
  to->in = opi_arena_copy(arena, from->in, from->n_in * sizeof(uint32_t));
  to->out = opi_arena_copy(arena, from->out, from->n_out * sizeof(uint32_t));
  to->attrs = opi_arena_copy(arena, from->attrs, from->n_attrs * sizeof(opipe_attr));
  if (to->name == NULL || to->op == NULL || to->domain == NULL || to->in == NULL ||
      to->out == NULL || to->attrs == NULL)
    return false;
  for (uint32_t a = 0; a < from->n_attrs; ++a) {
    to->attrs[a].name = opi_arena_strdup(arena, from->attrs[a].name);
    to->attrs[a].data = copy_attr_data(arena, &from->attrs[a]);
    if (to->attrs[a].name == NULL)
      return false;
    if (from->attrs[a].data != NULL && to->attrs[a].data == NULL)
      return false;
  }
  return true;
}

static bool copy_all(const opi_graph *from, opi_arena *arena, opi_graph *to) {
  to->values = OPI_ARENA_ARRAY(arena, opi_value, from->n_values);
  to->nodes = OPI_ARENA_ARRAY(arena, opi_node, from->n_nodes);
  to->inputs = opi_arena_copy(arena, from->inputs, from->n_inputs * sizeof(uint32_t));
  to->outputs = opi_arena_copy(arena, from->outputs, from->n_outputs * sizeof(uint32_t));
  if (to->values == NULL || to->nodes == NULL || to->inputs == NULL || to->outputs == NULL)
    return false;
  for (uint32_t v = 0; v < from->n_values; ++v) {
    if (!copy_value(arena, &from->values[v], &to->values[v]))
      return false;
  }
  for (uint32_t n = 0; n < from->n_nodes; ++n) {
    if (!copy_node(arena, &from->nodes[n], &to->nodes[n]))
      return false;
  }
  to->n_values = to->room_values = from->n_values;
  to->n_nodes = to->room_nodes = from->n_nodes;
  to->n_inputs = to->room_inputs = from->n_inputs;
  to->n_outputs = to->room_outputs = from->n_outputs;
  return true;
}

opipe_status opi_graph_copy(const opi_graph *graph, opi_arena *arena, opi_graph **out_graph,
                            opipe_error *err) {
  const char *name = opi_arena_strdup(arena, graph->name);
  opi_graph *copy = name == NULL ? NULL : opi_graph_new(arena, name);
  if (copy == NULL || !copy_all(graph, arena, copy))
    return opi_fail_nomem(err, arena->total_bytes, "the bound graph");
  *out_graph = copy;
  return OPIPE_OK;
}
