/* SPDX-License-Identifier: Apache-2.0 */
/* A section's nodes as a graph of their own: what they read of others becomes an input, what others
 * read of them an output, in memory of the host. Constants and scalars stay what they are.
 */
#include "fallback.h"

typedef struct maker {
  cuda_section_graph *s;
  cuda_pool *pool;
  opipe_value *values;
  uint32_t *number; /* [whole->n_values]: 1 + its index in `values`; 0: none yet */
  bool *made;       /* [whole->n_values]: by a node of the section */
  bool *outside;    /* [whole->n_values]: read by a node outside */
} maker;

static bool is_inside(const cuda_section_graph *s, uint32_t node) {
  return node >= s->first && node - s->first < s->n;
}

static void look(maker *m) {
  const opipe_graph *whole = m->s->whole;
  for (uint32_t i = 0; i < whole->n_nodes; ++i) {
    const opipe_node *node = &whole->nodes[i];
    const bool inside = is_inside(m->s, i);
    for (uint32_t k = 0; k < node->n_in && !inside; ++k) {
      if (node->in[k] != OPIPE_NONE)
        m->outside[node->in[k]] = true;
    }
    for (uint32_t k = 0; k < node->n_out && inside; ++k) {
      if (node->out[k] != OPIPE_NONE)
        m->made[node->out[k]] = true;
    }
  }
}

static uint32_t role_of(const maker *m, uint32_t v) {
  const uint32_t role = m->s->whole->values[v].role;
  if (role == OPIPE_VALUE_CONSTANT || role == OPIPE_VALUE_SCALAR)
    return role;
  if (!m->made[v])
    return OPIPE_VALUE_INPUT;
  return role == OPIPE_VALUE_OUTPUT || m->outside[v] ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP;
}

static void add_crossing(maker *m, uint32_t v, uint32_t role) {
  cuda_section_graph *s = m->s;
  const bool scalar = role == OPIPE_VALUE_SCALAR;
  s->crossings[s->n_crossings++] =
      (cuda_crossing){.value = v,
                      .n_bytes = scalar ? sizeof(int64_t) : s->whole->values[v].n_bytes,
                      .out = role == OPIPE_VALUE_OUTPUT,
                      .boundary = scalar ? OPIPE_NONE : s->graph.n_boundaries++};
}

/* The value's index in the section's graph. */
static uint32_t number_of(maker *m, uint32_t v) {
  cuda_section_graph *s = m->s;
  if (v == OPIPE_NONE)
    return OPIPE_NONE;
  if (m->number[v] == 0) {
    const uint32_t role = role_of(m, v);
    opipe_value *value = &m->values[s->graph.n_values];
    *value = s->whole->values[v];
    value->role = role;
    if (role != OPIPE_VALUE_CONSTANT)
      value->data = NULL;
    const bool crosses = role == OPIPE_VALUE_INPUT || role == OPIPE_VALUE_OUTPUT;
    if (role == OPIPE_VALUE_SCALAR)
      s->graph.n_scalars = s->whole->n_scalars;
    else
      value->slot = crosses ? s->graph.n_boundaries : OPIPE_NONE;
    if (role != OPIPE_VALUE_CONSTANT && role != OPIPE_VALUE_TEMP)
      add_crossing(m, v, role);
    m->number[v] = ++s->graph.n_values;
  }
  return m->number[v] - 1;
}

static opipe_status add_node(maker *m, opipe_node *to, const opipe_node *from, opipe_error *err) {
  uint32_t *in = CUDA_POOL_ARRAY(m->pool, uint32_t, from->n_in);
  uint32_t *out = CUDA_POOL_ARRAY(m->pool, uint32_t, from->n_out);
  if (in == NULL || out == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "node '%.80s': no memory to run it on the CPU",
                      from->name);
  }
  for (uint32_t i = 0; i < from->n_out; ++i) {
    if (from->out[i] != OPIPE_NONE &&
        m->s->whole->values[from->out[i]].role == OPIPE_VALUE_GRADIENT) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                        "node '%.80s' (%s) adds to a gradient, which is the device's", from->name,
                        from->op);
    }
  }
  for (uint32_t i = 0; i < from->n_in; ++i)
    in[i] = number_of(m, from->in[i]);
  for (uint32_t i = 0; i < from->n_out; ++i)
    out[i] = number_of(m, from->out[i]);
  *to = *from;
  to->in = in;
  to->out = out;
  return OPIPE_OK;
}

opipe_status cuda_section_graph_make(cuda_section_graph *s, cuda_pool *pool, opipe_error *err) {
  const uint32_t n_values = s->whole->n_values;
  maker m = {.s = s,
             .pool = pool,
             .values = CUDA_POOL_ARRAY(pool, opipe_value, n_values),
             .number = CUDA_POOL_ARRAY(pool, uint32_t, n_values),
             .made = CUDA_POOL_ARRAY(pool, bool, n_values),
             .outside = CUDA_POOL_ARRAY(pool, bool, n_values)};
  opipe_node *nodes = CUDA_POOL_ARRAY(pool, opipe_node, s->n);
  s->crossings = CUDA_POOL_ARRAY(pool, cuda_crossing, n_values);
  if (m.values == NULL || m.number == NULL || m.made == NULL || m.outside == NULL ||
      nodes == NULL || s->crossings == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for a section of %u nodes", s->n);
  s->graph = (opipe_graph){.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                           .values = m.values,
                           .nodes = nodes,
                           .n_nodes = s->n};
  look(&m);
  for (uint32_t i = 0; i < s->n; ++i)
    CUDA_TRY(add_node(&m, &nodes[i], &s->whole->nodes[s->first + i], err));
  return OPIPE_OK;
}
