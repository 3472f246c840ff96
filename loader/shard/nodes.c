/* SPDX-License-Identifier: Apache-2.0 */
/* A member's copy of a node: shapes, sizes, heads and positions follow its parts. */
#include <string.h>

#include "loader/ops/attention.h"
#include "loader/ops/row_attention.h"
#include "loader/shard/writer.h"

static const opi_value *value_of(const opi_writer *w, uint32_t v) {
  return &w->s->g->values[v];
}

static opipe_status no_memory(opi_writer *w) {
  return opi_fail_nomem(w->err, 64, "a member's node");
}

static opipe_status set_ints(opi_writer *w, const int64_t *ints, uint64_t n, uint32_t *out) {
  *out = opi_b_const_ints(&w->b, ints, (uint32_t)n);
  return opi_k_const(*out, w->err);
}

/* The same attributes, some with other numbers. */
static opipe_attr *copy_attrs(opi_writer *w, const opi_node *node, uint32_t more) {
  opipe_attr *attrs = OPI_ARENA_ARRAY(&w->scratch, opipe_attr, (size_t)node->n_attrs + more + 1);
  if (attrs != NULL && node->n_attrs != 0)
    memcpy(attrs, node->attrs, node->n_attrs * sizeof(*attrs));
  return attrs;
}

static void change(opipe_attr *attrs, uint32_t n, const char *name, int64_t value) {
  for (uint32_t a = 0; a < n; ++a) {
    if (strcmp(attrs[a].name, name) == 0)
      attrs[a].i = value;
  }
}

/* ---- positions ---- */

/* How many of the entries [0, end) of the whole axis this member has. */
static int64_t before(const opi_shard_run *runs, uint32_t n_runs, int64_t end) {
  int64_t count = 0;
  for (uint32_t k = 0; k < n_runs && runs[k].first < end; ++k)
    count += runs[k].first + runs[k].n <= end ? runs[k].n : end - runs[k].first;
  return count;
}

/* Slice along the divided axis: from and to within the part. */
static opipe_status slice_inputs(opi_writer *w, const opi_node *node, const opi_labels *l,
                                 const opi_labels *out, uint32_t *in) {
  const opi_value *x = value_of(w, node->in[0]);
  opi_shard_run *runs;
  uint32_t n_runs = 0;
  uint64_t n = 0, n_starts = 0;
  int64_t sum = 0, part[OPIPE_MAX_RANK];
  bool shared = false;
  const int64_t *axes = opi_sh_ints(w->s, node->in[3], &n),
                *starts = opi_sh_ints(w->s, node->in[1], &n_starts),
                *steps = opi_sh_ints(w->s, node->in[4], &n_starts);
  int64_t *from = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n + 1);
  int64_t *to = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n + 1);
  uint64_t n_ends = 0;
  const int64_t *ends = opi_sh_ints(w->s, node->in[2], &n_ends);
  if (axes == NULL || starts == NULL || steps == NULL || ends == NULL || from == NULL || to == NULL)
    return no_memory(w);
  OPI_TRY(opi_w_runs(w, l, &runs, &n_runs, &sum, &shared));
  OPI_TRY(opi_w_shape(w, node->out[0], out, part));
  for (uint64_t k = 0; k < n; ++k) {
    from[k] = starts[k];
    to[k] = ends[k];
    if (axes[k] != (int64_t)l->dims[0])
      continue;
    if (steps[k] != 1) {
      return opi_fail(w->err, OPIPE_E_UNSUPPORTED,
                      "node '%s' (%s) picks every %lld-th entry of '%s'", node->name, node->op,
                      (long long)steps[k], x->name);
    }
    from[k] = before(runs, n_runs, starts[k]);
    to[k] = from[k] + part[l->dims[0]];
  }
  OPI_TRY(set_ints(w, from, n, &in[1]));
  return set_ints(w, to, n, &in[2]);
}

/* Gather of known entries along the divided axis: those of this member, by place in its part. */
static opipe_status gather_indices(opi_writer *w, const opi_node *node, const opi_labels *l,
                                   const opi_labels *out, uint32_t *in) {
  const opi_value *at = value_of(w, node->in[1]), *x = value_of(w, node->in[0]);
  const int32_t axis = (int32_t)l->dims[0], d = (int32_t)out->dims[0] - axis;
  opi_shard_run *runs, *own;
  uint32_t n_runs = 0, n_own = 0;
  int64_t sum = 0, shape[OPIPE_MAX_RANK];
  uint64_t inner = 1, n = 0, to = 0;
  bool shared = false;
  const int64_t *given = opi_sh_ints(w->s, node->in[1], &n);
  if (d < 0 || d >= at->rank || given == NULL)
    return opi_fail(w->err, OPIPE_E_INTERNAL, "node '%s': its indices", node->name);
  OPI_TRY(opi_w_runs(w, l, &runs, &n_runs, &sum, &shared));
  OPI_TRY(opi_w_runs(w, out, &own, &n_own, &sum, &shared));
  memcpy(shape, at->shape, (size_t)at->rank * sizeof(*shape));
  shape[d] = sum;
  for (int32_t e = d + 1; e < at->rank; ++e)
    inner *= (uint64_t)at->shape[e];
  int64_t *list = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n + 1);
  if (list == NULL)
    return no_memory(w);
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t c = (int64_t)(i / inner % (uint64_t)at->shape[d]);
    if (before(own, n_own, c + 1) == before(own, n_own, c))
      continue;
    const int64_t p = given[i] < 0 ? given[i] + x->shape[axis] : given[i];
    list[to++] = before(runs, n_runs, p);
  }
  in[1] = opi_b_const(&w->b, OPIPE_INT64, shape, (uint32_t)at->rank, list);
  return opi_k_const(in[1], w->err);
}

/* ---- heads ---- */

/* Heads of the labels that this member has; per head `size` entries. */
static int64_t *heads_of(opi_writer *w, const opi_labels *l, int64_t heads, uint32_t *out_n) {
  int64_t *list = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)heads + 1);
  const int64_t size = (int64_t)l->n / heads;
  *out_n = 0;
  for (int64_t h = 0; list != NULL && h < heads; ++h) {
    const opi_shard_holder held = opi_sh_holder(w->s, l, h * size);
    if (held.lo <= w->r && w->r <= held.hi)
      list[(*out_n)++] = h;
  }
  return list;
}

/* A copied node's attributes, and what its outputs keep. */
typedef struct adapted {
  opipe_attr *attrs;
  uint32_t n_attrs;
  int64_t *kept; /* [n_kept] heads of the node's keys and values that the outputs have; NULL: all */
  uint32_t n_kept;
} adapted;

/* Heads at[0 .. n) along `axis`, `size` entries each. */
static opipe_status pick_heads(opi_writer *w, uint32_t axis, const int64_t *at, uint32_t n,
                               int64_t size, uint32_t *io) {
  opi_attrs attrs = {.n = 0};
  uint32_t in[2] = {*io, OPIPE_NONE};
  int64_t *list = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n * (size_t)size + 1);
  if (list == NULL)
    return no_memory(w);
  for (uint32_t h = 0; h < n; ++h) {
    for (int64_t k = 0; k < size; ++k)
      list[(int64_t)h * size + k] = at[h] * size + k;
  }
  OPI_TRY(set_ints(w, list, (uint64_t)n * (uint64_t)size, &in[1]));
  opi_attrs_int(&attrs, "axis", axis);
  return opi_k_one(&w->b, "Gather", 0, in, 2, &attrs, io, w->err);
}

static opi_labels *read_labels(opi_writer *w, uint32_t n, uint32_t i) {
  const opi_read *read = &w->s->decisions[n].reads[i];
  return read->kind == OPI_READ_CUT ? read->labels : w->s->labels[w->s->g->nodes[n].in[i]];
}

/* Queries of this member fall unevenly on its keys and values: they are repeated once per query
 * head, the first of each is kept. */
static opipe_status repeat_keys(opi_writer *w, uint32_t n, const int64_t *at, uint32_t n_q,
                                int64_t kv_heads, uint32_t *in, adapted *a) {
  const opi_node *node = &w->s->g->nodes[n];
  for (uint32_t i = OPI_ATT_K; i < node->n_in && i <= OPI_ATT_PAST_V; ++i) {
    if (node->in[i] == OPIPE_NONE || i == OPI_ATT_MASK)
      continue;
    const opi_value *x = value_of(w, node->in[i]);
    const bool flat = x->rank == 3;
    OPI_TRY(pick_heads(w, flat ? 2 : 1, at, n_q, flat ? x->shape[2] / kv_heads : 1, &in[i]));
  }
  a->kept = OPI_ARENA_ARRAY(&w->scratch, int64_t, n_q);
  if (a->kept == NULL)
    return no_memory(w);
  for (uint32_t h = 0; h < n_q; ++h) {
    if (h == 0 || at[h] != at[h - 1])
      a->kept[a->n_kept++] = h;
  }
  return OPIPE_OK;
}

static opipe_status attention(opi_writer *w, uint32_t n, uint32_t *in, adapted *a) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_value *q = value_of(w, node->in[OPI_ATT_Q]), *k = value_of(w, node->in[OPI_ATT_K]);
  const bool flat = q->rank == 3;
  const int64_t q_heads = flat ? opi_attr_int(node, "q_num_heads", 1) : q->shape[1];
  const int64_t kv_heads = flat ? opi_attr_int(node, "kv_num_heads", 1) : k->shape[1];
  uint32_t n_q = 0, n_k = 0;
  const int64_t *own = heads_of(w, read_labels(w, n, OPI_ATT_Q), q_heads, &n_q);
  const int64_t *keys = heads_of(w, read_labels(w, n, OPI_ATT_K), kv_heads, &n_k);
  int64_t *at = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)n_q + 1);
  if (own == NULL || keys == NULL || at == NULL)
    return no_memory(w);
  bool even = n_k != 0 && n_q % n_k == 0;
  for (uint32_t h = 0; h < n_q; ++h) {
    uint32_t j = 0;
    while (j < n_k && keys[j] != own[h] / (q_heads / kv_heads))
      ++j;
    if (j == n_k)
      return opi_fail(w->err, OPIPE_E_INTERNAL, "node '%s': a member lacks keys", node->name);
    at[h] = j;
    even = even && j == h / (n_q / n_k);
  }
  if (!even)
    OPI_TRY(repeat_keys(w, n, at, n_q, kv_heads, in, a));
  w->n_repeated += even ? 0 : n_q - n_k;
  change(a->attrs, node->n_attrs, "q_num_heads", n_q);
  change(a->attrs, node->n_attrs, "kv_num_heads", even ? n_k : n_q);
  return OPIPE_OK;
}

/* Whole groups are divided: keys and values stay beside their queries. */
static opipe_status row_attention(opi_writer *w, uint32_t n, opipe_attr *attrs) {
  const opi_node *node = &w->s->g->nodes[n];
  uint32_t n_q = 0, n_k = 0;
  if (heads_of(w, read_labels(w, n, OPI_ROWS_Q), opi_attr_int(node, "num_heads", 1), &n_q) ==
          NULL ||
      heads_of(w, read_labels(w, n, OPI_ROWS_K), opi_attr_int(node, "kv_num_heads", 1), &n_k) ==
          NULL)
    return no_memory(w);
  change(attrs, node->n_attrs, "num_heads", n_q);
  change(attrs, node->n_attrs, "kv_num_heads", n_k);
  return OPIPE_OK;
}

/* ---- all ---- */

/* Attributes and constant inputs of a node whose input 0 or outputs are divided. */
static opipe_status adapt(opi_writer *w, uint32_t n, uint32_t *in, const opi_labels *l,
                          opi_labels *const *out, adapted *a) {
  const opi_node *node = &w->s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  int64_t shape[OPIPE_MAX_RANK];
  if ((op->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0 && node->n_in > 1) {
    OPI_TRY(opi_w_shape(w, node->out[0], out[0], shape));
    return set_ints(w, shape, (uint64_t)value_of(w, node->out[0])->rank, &in[1]);
  }
  if (op->takes == OPI_TAKES_PARTS) {
    int64_t *sizes = OPI_ARENA_ARRAY(&w->scratch, int64_t, (size_t)node->n_out + 1);
    for (uint32_t o = 0; sizes != NULL && o < node->n_out; ++o) {
      OPI_TRY(opi_w_shape(w, node->out[o], out[o], shape));
      sizes[o] = shape[opi_attr_int(node, "axis", 0)];
    }
    return sizes == NULL ? no_memory(w) : set_ints(w, sizes, node->n_out, &in[1]);
  }
  if (l != NULL && op->takes == OPI_TAKES_PART)
    return slice_inputs(w, node, l, out[0], in);
  if (l != NULL && op->takes == OPI_TAKES_ROWS && l->dims[0] == opi_attr_int(node, "axis", 0))
    return gather_indices(w, node, l, out[0], in);
  if (op->kind == OPI_KIND_ATTENTION)
    return attention(w, n, in, a);
  if (op->kind == OPI_KIND_ROW_ATTENTION)
    return row_attention(w, n, a->attrs);
  if (op->kind == OPI_KIND_ROTARY && l != NULL && value_of(w, node->in[0])->rank == 3) {
    uint32_t heads = 0;
    (void)heads_of(w, l, opi_attr_int(node, "num_heads", 1), &heads);
    change(a->attrs, node->n_attrs, "num_heads", heads);
  }
  if (op->kind == OPI_KIND_UNPACK && node->domain[0] != '\0') {
    OPI_TRY(opi_w_shape(w, node->out[0], out[0], shape));
    change(a->attrs, node->n_attrs, "N", shape[0]);
    change(a->attrs, node->n_attrs, "K", shape[1]);
  }
  if (op->kind == OPI_KIND_RANDOM && l != NULL) { /* the mask of the whole tensor */
    opi_shard_run *runs;
    uint32_t n_runs = 0;
    int64_t sum = 0;
    bool shared = false;
    OPI_TRY(opi_w_runs(w, l, &runs, &n_runs, &sum, &shared));
    a->attrs[a->n_attrs++] = OPI_ATTR_I("part_axis", l->dims[0]);
    a->attrs[a->n_attrs++] = OPI_ATTR_I("part_whole", value_of(w, node->in[0])->shape[l->dims[0]]);
    a->attrs[a->n_attrs++] = OPI_ATTR_N("part_runs", (const int64_t *)runs, 2 * n_runs);
  }
  return OPIPE_OK;
}

/* The name of output o; NULL: one of its own, after the node. *out_ok false: out of memory. */
static const char *name_of(opi_writer *w, const opi_node *node, uint32_t o, uint32_t naming,
                           bool *out_ok) {
  const char *name = node->out[o] == OPIPE_NONE ? "" : value_of(w, node->out[o])->name;
  *out_ok = true;
  if (node->out[o] == OPIPE_NONE || naming == OPI_NAMES_KEPT)
    return name;
  if (naming == OPI_NAMES_NEW)
    return NULL;
  name = opi_arena_printf(w->b.graph->arena, "%s/%s", name,
                          naming == OPI_NAMES_PARTIAL ? "partial" : "rows");
  *out_ok = name != NULL;
  return name;
}

/* The keys and values that the node kept in outputs `out`, without repeats, under their names. */
static opipe_status keep_heads(opi_writer *w, const adapted *a, const char *const *names,
                               uint32_t n_out, uint32_t *out) {
  const opipe_attr axis = OPI_ATTR_I("axis", 1);
  for (uint32_t o = OPI_ATT_PRESENT_K; o < n_out && o <= OPI_ATT_PRESENT_V; ++o) {
    uint32_t in[2] = {out[o], OPIPE_NONE};
    if (out[o] == OPIPE_NONE)
      continue;
    OPI_TRY(set_ints(w, a->kept, a->n_kept, &in[1]));
    const opi_emit emit = {.op = "Gather",
                           .in = in,
                           .n_in = 2,
                           .n_out = 1,
                           .attrs = &axis,
                           .n_attrs = 1,
                           .out_names = &names[o]};
    OPI_TRY(opi_b_emit_kept(&w->b, &emit, &out[o], w->err));
  }
  return OPIPE_OK;
}

opipe_status opi_w_node(opi_writer *w, uint32_t n, const uint32_t *in, const opi_labels *in_labels,
                        opi_labels *const *out_labels, uint32_t naming, uint32_t *out) {
  const opi_node *node = &w->s->g->nodes[n];
  adapted a = {.attrs = copy_attrs(w, node, 3), .n_attrs = node->n_attrs};
  uint32_t *own = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)node->n_in + 1);
  const char **names = OPI_ARENA_ARRAY(&w->scratch, const char *, (size_t)node->n_out + 1);
  const char *kept[OPI_ATT_OUTPUTS] = {NULL};
  bool divided = in_labels != NULL, ok = true;
  if (a.attrs == NULL || own == NULL || names == NULL)
    return no_memory(w);
  memcpy(own, in, node->n_in * sizeof(*own));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    divided = divided || out_labels[o] != NULL;
    names[o] = name_of(w, node, o, naming, &ok);
    if (!ok)
      return no_memory(w);
  }
  OPI_TRY(opi_w_origin(w, node));
  if (divided)
    OPI_TRY(adapt(w, n, own, in_labels, out_labels, &a));
  else if (naming == OPI_NAMES_ROWS)
    opi_w_row_attrs(w, n, a.attrs, &a.n_attrs);
  for (uint32_t o = OPI_ATT_PRESENT_K; a.kept != NULL && o < node->n_out && o <= OPI_ATT_PRESENT_V;
       ++o) {
    kept[o] = names[o]; /* for keep_heads */
    names[o] = node->out[o] == OPIPE_NONE ? "" : NULL;
  }
  if (naming != OPI_NAMES_NEW) { /* masks of Dropout are told by the node's name */
    w->b.origin = node;
    w->b.n_emitted = 0;
  }
  const opi_emit emit = {.op = node->op,
                         .domain = node->domain,
                         .in = own,
                         .n_in = node->n_in,
                         .n_out = node->n_out,
                         .attrs = a.attrs,
                         .n_attrs = a.n_attrs,
                         .version = node->version,
                         .out_names = names,
                         .pattern = node->pattern};
  OPI_TRY(opi_b_emit_kept(&w->b, &emit, out, w->err));
  return a.kept == NULL ? OPIPE_OK : keep_heads(w, &a, kept, node->n_out, out);
}
