/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the fusions over a bound graph, keeps it sorted, and counts what a reader would call a norm,
 * an attention, ...
 *
 * The counts are of canonical nodes whether a fusion made them or the file had them. Nodes are put
 * in order by going through the old order and placing first what each node reads: helpers stand
 * just before their first reader, and chains stay together.
 */
#include "loader/passes/fuse.h"

#include <math.h>

#include "loader/passes/private.h"

const opi_node *opi_f_made(const opi_fuse *f, uint32_t v, const char *op) {
  const opi_graph *g = f->b->graph;
  if (v >= g->n_values || g->values[v].producer == OPIPE_NONE)
    return NULL;
  if ((g->values[v].flags & OPI_VALUE_BARRIER) != 0)
    return NULL; /* nobody looks behind a cut */
  const opi_node *node = &g->nodes[g->values[v].producer];
  if (node->stage != f->stage || (op != NULL && !opi_f_is(node, op)))
    return NULL;
  return node;
}

uint32_t opi_f_uses(const opi_fuse *f, uint32_t v) {
  return v < f->n_values ? f->uses.first[v + 1] - f->uses.first[v] : 0;
}

bool opi_f_free(const opi_fuse *f, uint32_t v, uint32_t n) {
  return v < f->n_values && opi_f_uses(f, v) == n &&
         (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

uint32_t opi_f_next(const opi_fuse *f, uint32_t v, const char *op) {
  const uint32_t n = opi_f_uses(f, v);
  if (n == 0 || !opi_f_free(f, v, n))
    return OPIPE_NONE;
  const uint32_t *users = f->uses.users + f->uses.first[v];
  if (users[n - 1] != users[0])
    return OPIPE_NONE;
  const opi_node *node = opi_f_node(f, users[0]);
  if (node->stage != f->stage || (op != NULL && !opi_f_is(node, op)))
    return OPIPE_NONE;
  return users[0];
}

bool opi_f_number(const opi_fuse *f, uint32_t v, double *out) {
  const opi_value *value = v < f->b->graph->n_values ? opi_f_value(f, v) : NULL;
  return value != NULL && opi_k_elems(value) == 1 && opi_known_scalar(value, out);
}

bool opi_f_near(uint32_t dtype, double a, double b) {
  const double tolerance = dtype == OPIPE_FLOAT16 ? 1e-3 : dtype == OPIPE_BFLOAT16 ? 1e-2 : 1e-5;
  return fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

bool opi_f_same_shape(const opi_fuse *f, uint32_t a, uint32_t b) {
  const opi_value *x = opi_f_value(f, a), *y = opi_f_value(f, b);
  return x->rank == y->rank &&
         (x->rank == 0 || memcmp(x->shape, y->shape, (size_t)x->rank * sizeof(*x->shape)) == 0);
}

uint32_t opi_f_uncast(const opi_fuse *f, uint32_t v) {
  for (;;) {
    const opi_node *cast = opi_f_made(f, v, "Cast");
    if (cast == NULL || !opi_dtype_is_float(opi_f_value(f, v)->dtype))
      return v;
    if (!opi_dtype_is_float(opi_f_value(f, cast->in[0])->dtype))
      return v;
    v = cast->in[0];
  }
}

bool opi_f_swaps_last(const opi_node *transpose) {
  uint32_t n;
  const int64_t *perm = opi_attr_ints(transpose, "perm", &n);
  if (perm == NULL || n < 2 || perm[n - 1] != (int64_t)n - 2 || perm[n - 2] != (int64_t)n - 1)
    return false;
  for (uint32_t i = 0; i + 2 < n; ++i) {
    if (perm[i] != (int64_t)i)
      return false;
  }
  return true;
}

void opi_f_forward(opi_fuse *f, uint32_t old, uint32_t v) {
  for (uint32_t i = f->uses.first[old]; i < f->uses.first[old + 1]; ++i) {
    opi_node *user = opi_f_node(f, f->uses.users[i]);
    for (uint32_t k = 0; k < user->n_in; ++k) {
      if (user->in[k] == old)
        user->in[k] = v;
    }
  }
  ++f->n_fused;
}

static uint32_t output_of(const opi_node *node, uint32_t v) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == v)
      return o;
  }
  return OPIPE_NONE;
}

opipe_status opi_f_replace(opi_fuse *f, uint32_t old, uint32_t fresh, uint32_t pattern,
                           opipe_error *err) {
  opi_value *a = opi_f_value(f, old), *b = opi_f_value(f, fresh);
  if (a->producer == OPIPE_NONE || b->producer == OPIPE_NONE || a->dtype != b->dtype ||
      !opi_f_same_shape(f, old, fresh))
    return opi_fail(err, OPIPE_E_INTERNAL, "fusing '%s' gave another type or shape", a->name);
  const uint32_t from = a->producer, to = b->producer;
  opi_node *made = opi_f_node(f, to), *gone = opi_f_node(f, from);
  const uint32_t made_out = output_of(made, fresh), gone_out = output_of(gone, old);
  if (made_out == OPIPE_NONE || gone_out == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_INTERNAL, "value '%s' and its producer do not know each other",
                    a->name);
  }
  made->out[made_out] = old;
  gone->out[gone_out] = fresh;
  a->producer = to;
  b->producer = from;
  if (!opi_f_is(made, "Reshape") && !opi_f_is(made, "Cast"))
    made->pattern = pattern;
  ++f->n_fused;
  return OPIPE_OK;
}

void opi_f_mark(const opi_fuse *f, uint32_t v, uint32_t pattern) {
  const uint32_t producer = opi_f_value(f, v)->producer;
  if (producer != OPIPE_NONE)
    opi_f_node(f, producer)->pattern = pattern;
}

uint32_t opi_f_recall(const opi_fuse *f, uint32_t kind, uint32_t a, uint32_t b) {
  for (uint32_t i = 0; i < f->n_memos; ++i) {
    const uint32_t *key = f->memos[i].key;
    if (key[0] == kind && key[1] == a && key[2] == b)
      return f->memos[i].value;
  }
  return OPIPE_NONE;
}

opipe_status opi_f_remember(opi_fuse *f, uint32_t kind, uint32_t a, uint32_t b, uint32_t value,
                            opipe_error *err) {
  if (!opi_arena_grow(f->b->scratch, (void **)&f->memos, &f->room_memos, f->n_memos + 1,
                      sizeof(*f->memos)))
    return opi_fail_nomem(err, sizeof(*f->memos), "a fusion");
  f->memos[f->n_memos++] = (opi_fuse_memo){{kind, a, b}, value, 0};
  return OPIPE_OK;
}

/* -- order ------------------------------------------------------------------------------------- */

typedef struct ordering {
  const opi_graph *graph;
  uint32_t *place; /* [n_nodes] position + 1, 0: not placed */
  uint32_t *stack; /* [n_nodes] */
  uint32_t *next;  /* [n_nodes] input to look at */
  uint32_t n_placed;
} ordering;

/* Places `root` after everything that it reads. */
static opipe_status place(ordering *o, uint32_t root, opipe_error *err) {
  uint32_t depth = 0;
  o->stack[depth++] = root;
  while (depth > 0) {
    const uint32_t n = o->stack[depth - 1];
    const opi_node *node = &o->graph->nodes[n];
    uint32_t below = OPIPE_NONE;
    while (below == OPIPE_NONE && o->next[n] < node->n_in) {
      const uint32_t v = node->in[o->next[n]++];
      const uint32_t p = v == OPIPE_NONE ? OPIPE_NONE : o->graph->values[v].producer;
      if (p != OPIPE_NONE && o->place[p] == 0)
        below = p;
    }
    if (below == OPIPE_NONE) {
      o->place[n] = ++o->n_placed;
      --depth;
    } else if (o->next[below] != 0 || depth == o->graph->n_nodes) {
      return opi_fail(err, OPIPE_E_INTERNAL, "fusion made a cycle at node '%s'", node->name);
    } else {
      o->stack[depth++] = below;
    }
  }
  return OPIPE_OK;
}

static opipe_status reorder(opi_builder *b, opipe_error *err) {
  opi_graph *g = b->graph;
  ordering o = {g, OPI_ARENA_ARRAY(b->scratch, uint32_t, g->n_nodes),
                OPI_ARENA_ARRAY(b->scratch, uint32_t, g->n_nodes),
                OPI_ARENA_ARRAY(b->scratch, uint32_t, g->n_nodes), 0};
  opi_node *nodes = OPI_ARENA_ARRAY(b->scratch, opi_node, g->n_nodes);
  if (o.place == NULL || o.stack == NULL || o.next == NULL || nodes == NULL)
    return opi_fail_nomem(err, (uint64_t)g->n_nodes * sizeof(opi_node), "sorting nodes");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (o.place[n] == 0)
      OPI_TRY(place(&o, n, err));
  }
  memcpy(nodes, g->nodes, g->n_nodes * sizeof(*nodes));
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    g->nodes[o.place[n] - 1] = nodes[n];
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t k = 0; k < g->nodes[n].n_out; ++k) {
      if (g->nodes[n].out[k] != OPIPE_NONE)
        g->values[g->nodes[n].out[k]].producer = n;
    }
  }
  return OPIPE_OK;
}

/* -- driver ------------------------------------------------------------------------------------ */

static opipe_status run_fusion(opi_builder *b, opi_fuse_visit visit, uint32_t *out_fused,
                               opipe_error *err) {
  opi_graph *g = b->graph;
  opi_fuse f = {.b = b, .n_values = g->n_values};
  const uint32_t n_nodes = g->n_nodes;
  OPI_TRY(opi_graph_uses(g, b->scratch, &f.uses, err));
  for (uint32_t n = 0; n < n_nodes; ++n) {
    const opi_node origin = g->nodes[n]; /* gives its name, source and stage to what is emitted */
    f.stage = origin.stage;
    b->origin = &origin;
    b->origin_index = origin.source;
    b->origin_stage = origin.stage;
    b->n_emitted = 0;
    const opipe_status status = visit(&f, n, err);
    b->origin = NULL;
    if (status < 0)
      return status;
  }
  *out_fused = f.n_fused;
  if (g->n_nodes == n_nodes && f.n_fused == 0)
    return OPIPE_OK;
  OPI_TRY(reorder(b, err));
  return opi_pass_dead(b, err);
}

/* OPI_PATTERN_* that a node is counted as. */
static uint32_t pattern_of(const opi_node *node) {
  static const uint32_t patterns[OPI_KIND_COUNT] = {[OPI_KIND_LAYER_NORM] = OPI_PATTERN_LAYERNORM,
                                                    [OPI_KIND_RMS_NORM] = OPI_PATTERN_RMSNORM,
                                                    [OPI_KIND_GELU] = OPI_PATTERN_GELU,
                                                    [OPI_KIND_SWISH] = OPI_PATTERN_SILU,
                                                    [OPI_KIND_ROTARY] = OPI_PATTERN_ROTARY,
                                                    [OPI_KIND_ATTENTION] = OPI_PATTERN_ATTENTION};
  const uint32_t kind = opi_op_of(node)->kind;
  if (kind == OPI_KIND_SWISH && opi_attr_float(node, "alpha", 1.0) != 1.0)
    return OPI_PATTERN_GELU;
  if (kind == OPI_KIND_SOFTMAX)
    return node->pattern; /* an attention that stays as it is written */
  if (patterns[kind] != OPI_PATTERN_NONE)
    return patterns[kind];
  return node->pattern == OPI_PATTERN_MATMUL ? OPI_PATTERN_MATMUL : OPI_PATTERN_NONE;
}

opipe_status opi_pass_noise(opi_builder *b, opipe_error *err) {
  const opi_node *outer = b->origin;
  uint32_t changed = 0;
  const opipe_status status = run_fusion(b, opi_fuse_noise, &changed, err);
  b->origin = outer;
  return status;
}

opipe_status opi_pass_fuse(opi_builder *b, uint32_t *io_patterns, opipe_error *err) {
  static const opi_fuse_visit fusions[] = {
      opi_fuse_tidy,       opi_fuse_tidy,    opi_fuse_sink,
      opi_fuse_activation, opi_fuse_norm,    opi_fuse_rotary,
      opi_fuse_attention,  opi_fuse_repeats, opi_fuse_flat_attention,
      opi_fuse_matmul,     opi_fuse_integer, opi_fuse_unpack,
      opi_fuse_tidy};
  const opi_node *outer = b->origin;
  for (size_t i = 0; i < OPI_COUNT(fusions); ++i) {
    uint32_t fused = 0;
    const opipe_status status = run_fusion(b, fusions[i], &fused, err);
    b->origin = outer;
    if (status < 0)
      return opi_error_prefix(err, "fusing: ");
  }
  b->origin_index = OPIPE_NONE;
  b->origin_stage = -1;
  for (uint32_t n = 0; n < b->graph->n_nodes; ++n) {
    const uint32_t pattern = pattern_of(&b->graph->nodes[n]);
    if (pattern != OPI_PATTERN_NONE)
      ++io_patterns[pattern];
  }
  return OPIPE_OK;
}
