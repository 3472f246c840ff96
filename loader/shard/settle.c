/* SPDX-License-Identifier: Apache-2.0 */
/* Atoms that the walk left apart become units, and units get members. Regions that failed, or have
 * too few units, are closed, with a reason; then the graph is walked again.
 */
#include <inttypes.h>
#include <string.h>

#include "loader/ops/attention.h"
#include "loader/shard/sharder.h"

static bool is_attention(const opi_sharder *s, uint32_t n) {
  return opi_op_of(&s->g->nodes[n])->kind == OPI_KIND_ATTENTION;
}

static opi_opening *region_of(opi_sharder *s, const opi_labels *l) {
  return &s->openings[opi_sh_opening(s, l->atoms[0])];
}

static void fail(opi_sharder *s, opi_opening *region, const char *why) {
  if (region->failed)
    return;
  region->failed = true;
  region->why = why;
  s->failed = s->failed || why == NULL;
}

/* Closes the openings of failed regions; true: there were some. */
static bool close_failed(opi_sharder *s) {
  bool any = false;
  for (uint32_t o = 0; o < s->n_openings; ++o) {
    const opi_opening *region = &s->openings[opi_sh_opening(s, s->openings[o].first)];
    if (!region->failed)
      continue;
    s->closed[s->openings[o].node] = region->why;
    any = true;
  }
  return any;
}

/* ---- every label ---- */

typedef bool (*label_visitor)(opi_sharder *s, uint32_t n, uint32_t v, opi_labels *l, void *ctx);

/* Labels of values, and of whole inputs where they are cut. Stops at false. */
static bool visit(opi_sharder *s, label_visitor see, void *ctx) {
  for (uint32_t v = 0; v < s->g->n_values; ++v) {
    if (s->labels[v] != NULL && !see(s, s->g->values[v].producer, v, s->labels[v], ctx))
      return false;
  }
  for (uint32_t n = 0; n < s->g->n_nodes; ++n) {
    const opi_node *node = &s->g->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const opi_read *read = &s->decisions[n].reads[i];
      if (read->kind == OPI_READ_CUT && !see(s, n, node->in[i], read->labels, ctx))
        return false;
    }
  }
  return true;
}

/* A part has entries along one axis: labels along a second one are united. */
static bool one_axis(opi_sharder *s, uint32_t n, uint32_t v, opi_labels *l, void *changed) {
  const int64_t *shape = s->g->values[v].shape;
  (void)n;
  if (l->n_dims != 0)
    opi_sh_reduce(s, l, shape);
  while (l->n_dims > 1) {
    opi_sh_mix(s, l, shape, l->dims[l->n_dims - 1]);
    opi_sh_reduce(s, l, shape);
    *(bool *)changed = true;
  }
  if (l->n_dims == 0)
    fail(s, region_of(s, l), "all its entries are one unit");
  return true;
}

/* Every member has some of it; a partial sum counts nothing twice. */
static bool all_have(opi_sharder *s, uint32_t n, uint32_t v, opi_labels *l, void *ctx) {
  const uint32_t mode = n == OPIPE_NONE ? OPI_MODE_CUT : s->decisions[n].mode;
  (void)ctx;
  for (uint32_t r = 0; r < s->width; ++r) {
    uint32_t n_runs = 0;
    int64_t sum = 0;
    bool shared = false;
    (void)opi_sh_runs(s, l, r, &s->scratch, &n_runs, &sum, &shared);
    if (sum == 0) {
      fail(
          s, region_of(s, l),
          opi_arena_printf(&s->keep, "member %" PRIu32 " of %" PRIu32 " would have nothing of '%s'",
                           r, s->width, s->g->values[v].name));
    } else if (n_runs != 1 && mode == OPI_MODE_ROWS) {
      fail(s, region_of(s, l), "a member's rows are not consecutive");
    }
  }
  return true;
}

/* A product whose sum would be a graph output as it is: its columns are divided instead, so that
 * nothing is summed; what divides its rows stays whole. Not for heads. */
static bool ends_in_output(const opi_sharder *s, uint32_t n, const opi_opening *region) {
  const opi_node *node = &s->g->nodes[n];
  if (s->decisions[n].mode != OPI_MODE_SUM || !opi_sh_is_product(node) || region->heads ||
      s->closed[n] != NULL || s->uses[node->out[0]] != 1)
    return false;
  const opi_product_axes axes = opi_sh_product_axes(s->g, node);
  bool output = false;
  for (uint32_t o = 0; o < s->g->n_outputs; ++o)
    output = output || s->g->outputs[o] == node->out[0];
  return output && axes.n >= 0 && s->g->values[node->in[1]].shape[axes.n] >= (int64_t)s->width;
}

static void keep_whole(opi_sharder *s) {
  for (uint32_t i = 0; i < s->wish->n_whole; ++i) {
    const uint32_t v = opi_bound_value(s->bound, s->wish->whole[i]);
    if (v != OPIPE_NONE && s->labels[v] != NULL) {
      fail(s, region_of(s, s->labels[v]),
           opi_arena_printf(&s->keep, "'%s' is wanted whole", s->wish->whole[i]));
    }
  }
}

/* A value that several products sum over would cost a sum for each: it stays whole, and their
 * columns are divided. Not for heads. */
static void check_readers(opi_sharder *s) {
  uint32_t *readers = OPI_ARENA_ARRAY(&s->scratch, uint32_t, (size_t)s->g->n_values + 1);
  s->failed = s->failed || readers == NULL;
  for (uint32_t n = 0; readers != NULL && n < s->g->n_nodes; ++n) {
    const opi_node *node = &s->g->nodes[n];
    if (s->decisions[n].mode != OPI_MODE_SUM || !opi_sh_is_product(node) || s->closed[n] != NULL)
      continue;
    opi_opening *region = region_of(s, s->labels[node->in[0]]);
    if (++readers[node->in[0]] > 1 && !region->heads)
      fail(s, region, "the columns of the products behind it are divided instead");
  }
}

static void check_modes(opi_sharder *s) {
  for (uint32_t n = 0; n < s->g->n_nodes; ++n) {
    const opi_node *node = &s->g->nodes[n];
    const uint32_t mode = s->decisions[n].mode;
    const opi_labels *l =
        node->n_in == 0 || node->in[0] == OPIPE_NONE ? NULL : s->labels[node->in[0]];
    for (uint32_t r = 0; l != NULL && l->n_dims == 1 && r < s->width; ++r) {
      uint32_t n_runs = 0;
      int64_t sum = 0;
      bool shared = false;
      (void)opi_sh_runs(s, l, r, &s->scratch, &n_runs, &sum, &shared);
      if (shared && (mode == OPI_MODE_SUM || mode == OPI_MODE_NORM || mode == OPI_MODE_LOSS))
        fail(s, region_of(s, l), "heads that several members hold would be summed twice");
      if (n_runs != 1 && mode == OPI_MODE_LOSS)
        fail(s, region_of(s, l), "a member's classes are not consecutive");
    }
    if (l != NULL && ends_in_output(s, n, region_of(s, l)))
      fail(s, region_of(s, l), "the columns of the product behind it are divided instead");
    if (mode == OPI_MODE_NORM && !s->openings[opi_sh_opening(s, l->atoms[0])].heads)
      s->plain[n] = true;
  }
}

/* ---- units ---- */

/* Divides attentions of a region within groups, if that helps; true: some now are. */
static bool refine(opi_sharder *s, uint32_t region) {
  bool any = false;
  for (uint32_t n = 0; n < s->g->n_nodes; ++n) {
    const opi_node *node = &s->g->nodes[n];
    if (!is_attention(s, n) || s->decisions[n].mode != OPI_MODE_CUT || s->fine[n])
      continue;
    const opi_labels *y = s->labels[node->out[OPI_ATT_Y]];
    const opi_value *q = &s->g->values[node->in[OPI_ATT_Q]],
                    *k = &s->g->values[node->in[OPI_ATT_K]];
    const bool flat = q->rank == 3;
    const int64_t heads = flat ? opi_attr_int(node, "q_num_heads", 1) : q->shape[1];
    const int64_t kv = flat ? opi_attr_int(node, "kv_num_heads", 1) : k->shape[1];
    if (y == NULL || opi_sh_opening(s, y->atoms[0]) != region || heads == kv ||
        heads < (int64_t)s->width)
      continue;
    s->fine[n] = any = true;
  }
  return any;
}

static void mark_followers(opi_sharder *s, bool *follows) {
  for (uint32_t i = 0; i < s->n_follows; ++i)
    follows[opi_sh_find(s, s->follows[i].follower)] = true;
}

/* Units of every region, in the order of their first entries. */
static opipe_status count_units(opi_sharder *s, uint32_t *units, const bool *follows,
                                bool *out_again, opipe_error *err) {
  for (uint32_t a = 0; a < s->n_atoms; ++a) {
    if (opi_sh_find(s, a) == a && !follows[a])
      ++units[opi_sh_opening(s, a)];
  }
  for (uint32_t o = 0; o < s->n_openings; ++o) {
    if (opi_sh_opening(s, s->openings[o].first) != o || units[o] >= s->width ||
        s->openings[o].failed)
      continue;
    bool only_followers = units[o] == 0;
    if (only_followers)
      continue;
    if (refine(s, o)) {
      *out_again = true;
      continue;
    }
    fail(s, &s->openings[o],
         opi_arena_printf(&s->keep, "%" PRIu32 " unit%s for %" PRIu32 " members", units[o],
                          units[o] == 1 ? "" : "s", s->width));
  }
  return s->failed ? opi_fail_nomem(err, 64, "units") : OPIPE_OK;
}

/* Members get consecutive units; the first ones one more where they do not divide. */
static void assign(opi_sharder *s, const uint32_t *units, uint32_t *next, const bool *follows) {
  for (uint32_t a = 0; a < s->n_atoms; ++a) {
    if (opi_sh_find(s, a) != a || follows[a])
      continue;
    const uint32_t o = opi_sh_opening(s, a), i = next[o]++;
    const uint32_t less = units[o] / s->width, more = units[o] % s->width;
    const uint32_t member = i < more * (less + 1) ? i / (less + 1)
                            : less == 0           ? 0
                                                  : (i - more) / less;
    s->holders[a] = (opi_shard_holder){member, member};
  }
  for (uint32_t i = 0; i < s->n_follows; ++i) {
    const opi_shard_holder leader = s->holders[opi_sh_find(s, s->follows[i].leader)];
    opi_shard_holder *held = &s->holders[opi_sh_find(s, s->follows[i].follower)];
    held->lo = leader.lo < held->lo ? leader.lo : held->lo;
    held->hi = held->hi == UINT32_MAX || leader.hi > held->hi ? leader.hi : held->hi;
  }
}

opi_shard_holder opi_sh_holder(opi_sharder *s, const opi_labels *l, int64_t i) {
  return s->holders[opi_sh_find(s, l->atoms[i])];
}

opi_shard_run *opi_sh_runs(opi_sharder *s, const opi_labels *l, uint32_t r, opi_arena *arena,
                           uint32_t *out_n, int64_t *out_sum, bool *out_shared) {
  opi_shard_run *runs = NULL;
  uint32_t room = 0;
  *out_n = 0;
  *out_sum = 0;
  *out_shared = false;
  for (uint64_t i = 0; i < l->n; ++i) {
    const opi_shard_holder h = opi_sh_holder(s, l, (int64_t)i);
    if (h.lo == UINT32_MAX || h.lo > r || h.hi < r)
      continue;
    *out_shared = *out_shared || h.lo != h.hi;
    ++*out_sum;
    if (*out_n != 0 && runs[*out_n - 1].first + runs[*out_n - 1].n == (int64_t)i) {
      ++runs[*out_n - 1].n;
      continue;
    }
    if (!opi_arena_grow(arena, (void **)&runs, &room, *out_n + 1, sizeof(*runs))) {
      s->failed = true;
      return NULL;
    }
    runs[(*out_n)++] = (opi_shard_run){(int64_t)i, 1};
  }
  return runs;
}

uint64_t opi_sh_cut_hash(opi_sharder *s, const opi_labels *l) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ l->dims[0];
  for (uint64_t i = 0; i < l->n; ++i) {
    const opi_shard_holder h = opi_sh_holder(s, l, (int64_t)i);
    hash = (hash ^ (((uint64_t)h.lo << 32) | h.hi)) * UINT64_C(0x100000001b3);
    hash ^= hash >> 29;
  }
  return hash | 4;
}

/* ---- needed values and their forms ---- */

bool opi_sh_is_pushed(const opi_sharder *s, uint32_t v) {
  const uint32_t p = s->g->values[v].producer;
  return p != OPIPE_NONE && s->g->nodes[p].n_out == 1 && (s->weight[v] || s->rows.early[v]) &&
         s->leaf[v] == OPI_LEAF_SPREAD;
}

/* Values made of parameters, too: opi_sh_is_pushed. */
static void read_leaf(opi_sharder *s, uint32_t v, uint64_t form) {
  s->leaf[v] = s->leaf[v] == 0 || s->leaf[v] == form ? form : OPI_LEAF_SEVERAL;
}

/* Do members' parts of codes below a byte begin and end with a byte? */
static bool in_bytes(opi_sharder *s, const opi_value *x, const opi_labels *l) {
  uint64_t inner = opi_dtype_bits(x->dtype);
  for (int32_t d = l->dims[0] + 1; d < x->rank; ++d)
    inner *= (uint64_t)x->shape[d];
  for (uint32_t r = 0; inner % 8 != 0 && r < s->width; ++r) {
    uint32_t n = 0;
    int64_t sum = 0;
    bool shared = false;
    const opi_shard_run *runs = opi_sh_runs(s, l, r, &s->scratch, &n, &sum, &shared);
    for (uint32_t k = 0; runs != NULL && k < n; ++k) {
      if ((uint64_t)runs[k].first * inner % 8 != 0 || (uint64_t)runs[k].n * inner % 8 != 0)
        return false;
    }
  }
  return inner % 8 == 0 || (uint64_t)x->shape[l->dims[0]] * inner % 8 == 0;
}

bool opi_sh_by_parts(opi_sharder *s, uint32_t v, const opi_labels *l, opi_labels **in) {
  const opi_node *node = &s->g->nodes[s->g->values[v].producer];
  if ((!s->weight[v] && !s->main[v] && !s->trains[v]) || s->rows.dims[v] != 0 ||
      !opi_sh_back(s, node, l, in))
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (in[i] == NULL)
      continue;
    opi_sh_reduce(s, in[i], s->g->values[node->in[i]].shape);
    const opi_value *x = &s->g->values[node->in[i]];
    if (in[i]->n_dims != 1 || (x->producer == OPIPE_NONE && !in_bytes(s, x, in[i])))
      return false;
  }
  return true;
}

uint64_t opi_sh_leaf_form(const opi_sharder *s, uint32_t v) {
  return s->trains[v] ? OPI_LEAF_SPREAD : OPI_LEAF_WHOLE;
}

/* Value v is read cut by l: its parts are computed from parts, or it is cut at the reader. */
static void need_cut(opi_sharder *s, uint32_t v, opi_labels *l) {
  const uint32_t p = s->g->values[v].producer;
  opi_sh_reduce(s, l, s->g->values[v].shape);
  if (p == OPIPE_NONE) {
    read_leaf(s, v, opi_sh_cut_hash(s, l));
    s->cut[v] = l;
    return;
  }
  const opi_node *node = &s->g->nodes[p];
  opi_labels **in = OPI_ARENA_ARRAY(&s->scratch, opi_labels *, (size_t)node->n_in + 1);
  s->failed = s->failed || in == NULL;
  const bool parts = in != NULL && opi_sh_by_parts(s, v, l, in);
  if (!parts) {
    s->needed[v] = true;
    read_leaf(s, v, opi_sh_leaf_form(s, v));
  }
  for (uint32_t i = 0; parts && i < node->n_in; ++i) {
    const uint32_t x = node->in[i];
    if (x == OPIPE_NONE)
      continue;
    if (in[i] != NULL) {
      need_cut(s, x, in[i]);
      continue;
    }
    s->needed[x] = s->needed[x] || s->g->values[x].producer != OPIPE_NONE;
    read_leaf(s, x, opi_sh_leaf_form(s, x));
  }
}

/* From the last node to the first: a value's readers come before its producer. Cuts are followed
 * first, because they need values in front of them. */
static void find_needed(opi_sharder *s) {
  const opi_graph *g = s->g;
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    s->needed[g->outputs[o]] = true;
    read_leaf(s, g->outputs[o], OPI_LEAF_WHOLE);
    s->rows.gathered[g->outputs[o]] = true;
  }
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    const opi_node *node = &g->nodes[n];
    bool live = false, pushed = false;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      live = live || (node->out[o] != OPIPE_NONE && s->needed[node->out[o]]);
      pushed = pushed || (node->out[o] != OPIPE_NONE && opi_sh_is_pushed(s, node->out[o]));
    }
    if (s->rows.nodes[n] && opi_op_of(node)->takes == OPI_TAKES_FORM &&
        s->rows.gathered[node->out[0]])
      s->rows.gathered[node->in[0]] = true;
    for (uint32_t i = 0; live && i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      const opi_read *read = &s->decisions[n].reads[i];
      if (v == OPIPE_NONE)
        continue;
      if (read->kind == OPI_READ_CUT) {
        need_cut(s, v, read->labels);
        continue;
      }
      s->needed[v] = s->needed[v] || g->values[v].producer != OPIPE_NONE;
      const bool whole = read->kind == OPI_READ_WHOLE && !pushed;
      s->rows.gathered[v] = s->rows.gathered[v] || whole;
      if (read->kind != OPI_READ_OWN)
        read_leaf(s, v, whole ? OPI_LEAF_WHOLE : opi_sh_leaf_form(s, v));
    }
  }
}

/* Rows change how values are read, not which. */
static opipe_status settle_reads(opi_sharder *s, opipe_error *err) {
  const size_t values = (size_t)s->g->n_values + 1;
  find_needed(s);
  if ((s->wish->flags & OPI_SHARD_SEQUENCE) == 0 || s->width < 2)
    return OPIPE_OK;
  OPI_TRY(opi_sh_rows(s, err));
  memset(s->leaf, 0, values * sizeof(*s->leaf));
  memset(s->cut, 0, values * sizeof(*s->cut));
  memset(s->rows.gathered, 0, values * sizeof(*s->rows.gathered));
  find_needed(s);
  return OPIPE_OK;
}

/* ---- pairs ---- */

/* Has every member the same entries, one run of them, by both labels? */
static bool are_alike(opi_sharder *s, const opi_labels *a, const opi_labels *b) {
  bool alike = a->dims[0] == b->dims[0] && opi_sh_cut_hash(s, a) == opi_sh_cut_hash(s, b);
  for (uint32_t r = 0; r < s->width && alike; ++r) {
    uint32_t n_runs = 0;
    int64_t sum = 0;
    bool shared = false;
    (void)opi_sh_runs(s, a, r, &s->scratch, &n_runs, &sum, &shared);
    alike = n_runs <= 1;
  }
  return alike;
}

/* An input is read in the parts in which the output that feeds it is made, else both stay whole. */
static void check_pairs(opi_sharder *s) {
  for (uint32_t i = 0; i < s->wish->n_pairs; ++i) {
    const opi_shard_pair *pair = &s->wish->pairs[i];
    if (pair->input == OPIPE_NONE || s->leaf[pair->input] == OPI_LEAF_UNREAD)
      continue;
    const opi_labels *made = s->labels[pair->output];
    const opi_labels *read = s->leaf[pair->input] > OPI_LEAF_SEVERAL ? s->cut[pair->input] : NULL;
    if ((made == NULL && read == NULL) ||
        (made != NULL && read != NULL && are_alike(s, made, read)))
      continue;
    const char *why = opi_arena_printf(
        &s->keep, "members would read other parts of '%s' than they make of '%s', which feeds it",
        s->g->values[pair->input].name, s->g->values[pair->output].name);
    if (made != NULL)
      fail(s, region_of(s, made), why);
    if (read != NULL)
      fail(s, region_of(s, read), why);
  }
}

/* ---- all of it ---- */

opipe_status opi_sh_settle(opi_sharder *s, bool *out_again, opipe_error *err) {
  *out_again = close_failed(s);
  if (*out_again)
    return OPIPE_OK;
  for (bool changed = true; changed;) {
    changed = false;
    (void)visit(s, one_axis, &changed);
  }
  *out_again = close_failed(s);
  if (*out_again)
    return OPIPE_OK;
  const size_t atoms = (size_t)s->n_atoms + 1, openings = (size_t)s->n_openings + 1;
  uint32_t *units = OPI_ARENA_ARRAY(&s->scratch, uint32_t, openings);
  uint32_t *next = OPI_ARENA_ARRAY(&s->scratch, uint32_t, openings);
  bool *follows = OPI_ARENA_ARRAY(&s->scratch, bool, atoms);
  bool *plain = opi_arena_copy(&s->scratch, s->plain, s->g->n_nodes + (size_t)1);
  s->holders = OPI_ARENA_ARRAY(&s->scratch, opi_shard_holder, atoms);
  if (units == NULL || next == NULL || follows == NULL || s->holders == NULL || plain == NULL)
    return opi_fail_nomem(err, atoms * 16, "units");
  memset(s->holders, 0xff, atoms * sizeof(*s->holders));
  mark_followers(s, follows);
  OPI_TRY(count_units(s, units, follows, out_again, err));
  *out_again = close_failed(s) || *out_again;
  if (*out_again)
    return OPIPE_OK;
  assign(s, units, next, follows);
  (void)visit(s, all_have, NULL);
  check_modes(s);
  check_readers(s);
  keep_whole(s);
  if (s->failed)
    return opi_fail_nomem(err, 64, "units");
  *out_again = close_failed(s) || memcmp(plain, s->plain, s->g->n_nodes) != 0;
  if (!*out_again) {
    OPI_TRY(settle_reads(s, err));
    check_pairs(s);
    *out_again = close_failed(s);
  }
  return s->failed ? opi_fail_nomem(err, 64, "units") : OPIPE_OK;
}
