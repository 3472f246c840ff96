/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and rotary embedding: the heads may be divided, all else is mixed. Query head h reads
 * key and value head h / (query heads / key heads), so that these go together as a unit; in *fine*
 * attentions units are query heads, and members hold the keys and values that theirs read.
 */
#include <string.h>

#include "loader/ops/attention.h"
#include "loader/ops/row_attention.h"
#include "loader/shard/sharder.h"

/* Atoms of the heads [heads] that x is labelled with; all of a head is united. x is [B, heads,
 * ...], [B, T, heads * size] or [rows, heads * size]. */
static opipe_status heads_of(opi_sharder *s, const opi_node *node, opi_labels *l,
                             const opi_value *x, int64_t heads, uint32_t **out) {
  const uint32_t axis = x->rank == 3 ? 2 : 1;
  for (uint32_t d = 0; d < (uint32_t)x->rank; ++d) {
    if (d != axis && opi_sh_has(l, d))
      opi_sh_mix(s, l, x->shape, d);
  }
  opi_sh_reduce(s, l, x->shape);
  if (l->n_dims == 0)
    return opi_sh_refuse(s, node, "'%s' is divided, but not by heads", x->name);
  const uint64_t size = l->n / (uint64_t)heads;
  *out = OPI_ARENA_ARRAY(&s->scratch, uint32_t, (size_t)heads);
  if (*out == NULL)
    return opi_fail_nomem(&s->why, (uint64_t)heads * 4, "heads");
  for (uint64_t i = 0; i < l->n; ++i)
    opi_sh_unite(s, l->atoms[i], l->atoms[i / size * size]);
  for (int64_t h = 0; h < heads; ++h)
    (*out)[h] = l->atoms[(uint64_t)h * size];
  return OPIPE_OK;
}

/* Labels of x along `axis`, entries of head h in a row. */
static opi_labels *from_heads(opi_sharder *s, const opi_value *x, uint32_t axis,
                              const uint32_t *atoms, int64_t heads) {
  const uint8_t dim = (uint8_t)axis;
  opi_labels *l = opi_sh_labels(s, x->shape, &dim, 1);
  for (uint64_t i = 0; l != NULL && i < l->n; ++i)
    l->atoms[i] = atoms[i / (l->n / (uint64_t)heads)];
  return l;
}

typedef struct head_labels {
  uint32_t *q, *k; /* [q_heads], [kv_heads] */
  int64_t q_heads, kv_heads;
} head_labels;

/* Input i with these heads: united with its own labels, or cut. */
static opipe_status meet(opi_sharder *s, uint32_t n, uint32_t i, opi_labels **in, uint32_t axis,
                         uint32_t *atoms, int64_t heads) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = &s->g->values[node->in[i]];
  if (in[i] == NULL) {
    opi_labels *cut = from_heads(s, x, axis, atoms, heads);
    if (cut == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    if (!opi_sh_demand(s, node->in[i], cut))
      return opi_sh_refuse(s, node, "'%s' is whole", x->name);
    s->decisions[n].reads[i] = (opi_read){OPI_READ_CUT, cut};
    return OPIPE_OK;
  }
  for (uint32_t d = 0; d < (uint32_t)x->rank; ++d) {
    if (d != axis && opi_sh_has(in[i], d))
      opi_sh_mix(s, in[i], x->shape, d);
  }
  opi_sh_reduce(s, in[i], x->shape);
  if (in[i]->n_dims == 0)
    return opi_sh_refuse(s, node, "'%s' is divided, but not by heads", x->name);
  const uint64_t size = in[i]->n / (uint64_t)heads;
  for (uint64_t k = 0; k < in[i]->n; ++k)
    opi_sh_unite(s, in[i]->atoms[k], atoms[k / size]);
  return OPIPE_OK;
}

static opipe_status add_follow(opi_sharder *s, uint32_t leader, uint32_t follower) {
  if (!opi_arena_grow(&s->scratch, (void **)&s->follows, &s->room_follows, s->n_follows + 1,
                      sizeof(*s->follows)))
    return opi_fail_nomem(&s->why, sizeof(*s->follows), "heads");
  s->follows[s->n_follows++] = (opi_follow){leader, follower};
  return OPIPE_OK;
}

/* Labels of output o by heads. */
static opipe_status give_heads(opi_sharder *s, const opi_node *node, uint32_t o, uint32_t axis,
                               const uint32_t *atoms, int64_t heads, opi_labels **out) {
  const opi_value *y = &s->g->values[node->out[o]];
  out[o] = from_heads(s, y, axis, atoms, heads);
  if (out[o] == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  opi_sh_reduce(s, out[o], y->shape);
  return out[o]->n_dims != 0
             ? OPIPE_OK
             : opi_sh_refuse(s, node, "it has one head, or all heads depend on each other");
}

/* Keys' heads beside the queries': united, or followers. */
static opipe_status pair_heads(opi_sharder *s, const opi_node *node, bool fine, head_labels *h) {
  const int64_t group = h->q_heads / h->kv_heads;
  if (fine && (h->q == NULL || h->k == NULL))
    return opi_sh_refuse(s, node, "its queries or keys are whole: only groups can be divided");
  if (h->q == NULL || h->k == NULL) {
    const int64_t n = h->q == NULL ? h->q_heads : h->kv_heads;
    uint32_t *made = OPI_ARENA_ARRAY(&s->scratch, uint32_t, (size_t)n);
    if (made == NULL)
      return opi_fail_nomem(&s->why, (uint64_t)n * 4, "heads");
    for (int64_t i = 0; i < n; ++i)
      made[i] = h->q == NULL ? h->k[i / group] : h->q[i * group];
    *(h->q == NULL ? &h->q : &h->k) = made;
  }
  for (int64_t i = 0; i < h->q_heads; ++i) {
    if (fine)
      OPI_TRY(add_follow(s, h->q[i], h->k[i / group]));
    else
      opi_sh_unite(s, h->q[i], h->k[i / group]);
  }
  return OPIPE_OK;
}

/* Heads by the labels of queries (input 0), keys and values. */
static opipe_status find_heads(opi_sharder *s, const opi_node *node, opi_labels **in,
                               head_labels *io) {
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t **to = i == 0 ? &io->q : &io->k;
    if (in[i] != NULL && *to == NULL) {
      OPI_TRY(heads_of(s, node, in[i], &s->g->values[node->in[i]],
                       i == 0 ? io->q_heads : io->kv_heads, to));
    }
  }
  return io->q != NULL || io->k != NULL
             ? OPIPE_OK
             : opi_sh_refuse(s, node, "queries, keys and values are whole");
}

opipe_status opi_sh_attention(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *q = &s->g->values[node->in[OPI_ATT_Q]], *k = &s->g->values[node->in[OPI_ATT_K]];
  const bool flat = q->rank == 3;
  const uint32_t axis = flat ? 2 : 1;
  head_labels h = {.q_heads = flat ? opi_attr_int(node, "q_num_heads", 1) : q->shape[1],
                   .kv_heads = flat ? opi_attr_int(node, "kv_num_heads", 1) : k->shape[1]};
  OPI_TRY(find_heads(s, node, in, &h));
  OPI_TRY(pair_heads(s, node, s->fine[n], &h));
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *x = &s->g->values[node->in[i]];
    const bool past = i == OPI_ATT_PAST_K || i == OPI_ATT_PAST_V;
    if (i < 3 || past) {
      OPI_TRY(meet(s, n, i, in, past ? 1 : axis, i == OPI_ATT_Q ? h.q : h.k,
                   i == OPI_ATT_Q ? h.q_heads : h.kv_heads));
    } else if (i == OPI_ATT_MASK && x->rank >= 3 && x->shape[x->rank - 3] == h.q_heads &&
               h.q_heads != 1) {
      OPI_TRY(meet(s, n, i, in, (uint32_t)x->rank - 3, h.q, h.q_heads));
    } else if (in[i] != NULL) {
      return opi_sh_refuse(s, node, "'%s' is divided", x->name);
    }
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const bool kv = o == OPI_ATT_PRESENT_K || o == OPI_ATT_PRESENT_V;
    if (node->out[o] == OPIPE_NONE)
      continue;
    OPI_TRY(give_heads(s, node, o, flat && o == OPI_ATT_Y ? 2 : 1, kv ? h.k : h.q,
                       kv ? h.kv_heads : h.q_heads, out));
  }
  s->openings[opi_sh_opening(s, h.q[0])].heads = true;
  return OPIPE_OK;
}

/* Pages are cut by their heads; positions, sequences, tables and copies are every member's. */
opipe_status opi_sh_row_attention(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  head_labels h = {.q_heads = opi_attr_int(node, "num_heads", 1),
                   .kv_heads = opi_attr_int(node, "kv_num_heads", 1)};
  OPI_TRY(find_heads(s, node, in, &h));
  OPI_TRY(pair_heads(s, node, false, &h));
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const bool query = i == OPI_ROWS_Q || i == OPI_ROWS_SLOPES;
    const bool key =
        i == OPI_ROWS_K || i == OPI_ROWS_V || i == OPI_ROWS_KEY_PAGES || i == OPI_ROWS_VALUE_PAGES;
    if (node->in[i] == OPIPE_NONE)
      continue;
    if (query || key) {
      OPI_TRY(meet(s, n, i, in, i == OPI_ROWS_SLOPES ? 0 : 1, query ? h.q : h.k,
                   query ? h.q_heads : h.kv_heads));
    } else if (in[i] != NULL) {
      return opi_sh_refuse(s, node, "'%s' is divided", s->g->values[node->in[i]].name);
    }
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    const bool y = o == OPI_ROWS_Y;
    OPI_TRY(give_heads(s, node, o, 1, y ? h.q : h.k, y ? h.q_heads : h.kv_heads, out));
  }
  s->openings[opi_sh_opening(s, h.q[0])].heads = true;
  return OPIPE_OK;
}

opipe_status opi_sh_rotary(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = &s->g->values[node->in[0]];
  uint32_t *heads = NULL;
  if (in[0] == NULL)
    return opi_sh_refuse(s, node, "its angles are divided");
  OPI_TRY(heads_of(s, node, in[0], x, opi_attr_int(node, "num_heads", 1), &heads));
  out[0] = opi_sh_copy(s, in[0]);
  if (out[0] == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  opi_sh_reduce(s, out[0], x->shape);
  return out[0]->n_dims != 0 ? OPIPE_OK : opi_sh_refuse(s, node, "it has one head");
}
