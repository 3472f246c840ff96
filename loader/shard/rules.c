/* SPDX-License-Identifier: Apache-2.0 */
/* How operators pass labels on, by the columns of their rows.
 *
 * For most, every dimension of an input is one of the output or is mixed: `carry` says which, entry
 * by entry. Labels along a mixed dimension are united; those of several inputs are united where
 * they meet. An input that is whole is cut at the reader where it has the divided dimension.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loader/shard/rules.h"

opipe_status opi_sh_refuse(opi_sharder *s, const opi_node *node, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return opi_fail(&s->why, OPIPE_E_UNSUPPORTED, "'%s' (%s): %s", node->name, node->op, text);
}

const int64_t *opi_sh_ints(opi_sharder *s, uint32_t v, uint64_t *out_n) {
  const opi_value *x = v == OPIPE_NONE ? NULL : opi_sh_value(s, v);
  *out_n = 0;
  if (x == NULL || x->data == NULL || (x->dtype != OPIPE_INT64 && x->dtype != OPIPE_INT32))
    return NULL;
  *out_n = opi_elems(x);
  int64_t *list = OPI_ARENA_ARRAY(&s->scratch, int64_t, *out_n);
  s->failed = s->failed || list == NULL;
  for (uint64_t i = 0; list != NULL && i < *out_n; ++i)
    list[i] = opi_index_at(x, i);
  return list;
}

/* Entries that share a byte stay together. False: rows do not begin with a byte. */
static bool keep_bytes(opi_sharder *s, const opi_value *x, const opi_labels *l) {
  const uint64_t in_byte = 8 / opi_dtype_bits(x->dtype);
  uint64_t inner = 1;
  if (l->n_dims != 1)
    return false;
  for (int32_t d = l->dims[0] + 1; d < x->rank; ++d)
    inner *= (uint64_t)x->shape[d];
  if (inner % in_byte == 0)
    return true;
  if (inner != 1 || l->n % in_byte != 0)
    return false;
  for (uint64_t i = 0; i < l->n; ++i)
    opi_sh_unite(s, l->atoms[i], l->atoms[i / in_byte * in_byte]);
  return true;
}

/* Parts of what is made from parameters are made from parts of them; of what is made from inputs
 * alone, cut where they are read. */
bool opi_sh_demand(opi_sharder *s, uint32_t v, const opi_labels *l) {
  const opi_value *x = opi_sh_value(s, v);
  if (s->labels[v] != NULL)
    return false;
  if (x->producer == OPIPE_NONE)
    return opi_dtype_bits(x->dtype) >= 8 || keep_bytes(s, x, l);
  const opi_node *node = &s->g->nodes[x->producer];
  opi_labels **in = OPI_ARENA_ARRAY(&s->scratch, opi_labels *, (size_t)node->n_in + 1);
  bool all = in != NULL && opi_sh_back(s, node, l, in);
  for (uint32_t i = 0; all && i < node->n_in; ++i)
    all = in[i] == NULL || opi_sh_demand(s, node->in[i], in[i]);
  return all || !s->main[v];
}

/* ---- products ---- */

bool opi_sh_is_product(const opi_node *node) {
  const uint32_t sums = opi_op_of(node)->sums;
  return sums == OPI_SUMS_PRODUCT || sums == OPI_SUMS_LAYER;
}

opi_product_axes opi_sh_product_axes(const opi_graph *g, const opi_node *node) {
  const opi_value *a = &g->values[node->in[0]], *b = &g->values[node->in[1]];
  const bool ta = opi_attr_int(node, "transA", 0) != 0, tb = opi_attr_int(node, "transB", 0) != 0;
  opi_product_axes x = {-1, 0, 0, -1};
  if (a->rank > 1) {
    x.m = a->rank - (ta ? 1 : 2);
    x.ka = a->rank - (ta ? 2 : 1);
  }
  if (b->rank > 1) {
    x.n = b->rank - (tb ? 2 : 1);
    x.kb = b->rank - (tb ? 1 : 2);
  }
  return x;
}

static bool only_along(const opi_labels *l, int32_t d) {
  return l != NULL && l->n_dims == 1 && (int32_t)l->dims[0] == d;
}

static opipe_status product(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *a = opi_sh_value(s, node->in[0]), *b = opi_sh_value(s, node->in[1]);
  const opi_value *y = opi_sh_value(s, node->out[0]);
  const opi_product_axes x = opi_sh_product_axes(s->g, node);
  if (only_along(in[0], x.ka) && in[1] == NULL && s->weight[node->in[1]]) {
    opi_labels *cut = opi_sh_copy(s, in[0]);
    if (cut == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    cut->dims[0] = (uint8_t)x.kb;
    if (!opi_sh_demand(s, node->in[1], cut))
      return opi_sh_refuse(s, node, "'%s' cannot be cut", b->name);
    s->decisions[n].reads[1] = (opi_read){OPI_READ_CUT, cut};
    s->decisions[n].mode = OPI_MODE_SUM;
    return OPIPE_OK;
  }
  opi_dim_map *map = opi_sh_maps(s, node);
  if (map == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  const int32_t rows = x.m < 0 ? 0 : 1, columns = x.n < 0 ? 0 : 1, batch = y->rank - rows - columns;
  for (int32_t d = 0; d + 2 < a->rank; ++d)
    map[0].to[d] = (int8_t)(d + batch - (a->rank - 2));
  for (int32_t d = 0; d + 2 < b->rank; ++d)
    map[1].to[d] = (int8_t)(d + batch - (b->rank - 2));
  if (x.m >= 0)
    map[0].to[x.m] = (int8_t)batch;
  if (x.n >= 0)
    map[1].to[x.n] = (int8_t)(batch + rows);
  if (node->n_in > 2)
    opi_sh_align(s, node, 2, y->rank, map);
  const bool both = in[0] != NULL && in[1] != NULL;
  OPI_TRY(opi_sh_join(s, n, in, map, y, out));
  if (both)
    s->openings[opi_sh_opening(s, out[0]->atoms[0])].heads = true;
  return OPIPE_OK;
}

/* ---- all others ---- */

static const opi_carry none = {-1, 0, 1, 1, 0};

/* Where carry says that dimension d of input i goes, entry by entry; -1: it is mixed. */
static int8_t carried(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t d,
                      uint32_t o) {
  opi_carry in[64], out[64];
  const opi_op *op = opi_op_of(node);
  if (op->carry == NULL || node->n_in > OPI_COUNT(in) || node->n_out > OPI_COUNT(out))
    return -1;
  for (uint32_t k = 0; k < node->n_in; ++k)
    in[k] = none;
  for (uint32_t k = 0; k < node->n_out; ++k)
    out[k] = none;
  in[i] = (opi_carry){d, 0, 1, 1, 0};
  if (op->carry(s->g, node, in, out, NULL) < 0 || out[o].axis < 0 || node->out[o] == OPIPE_NONE)
    return -1;
  const opi_value *x = opi_sh_value(s, node->in[i]), *y = opi_sh_value(s, node->out[o]);
  const bool same = out[o].axis < y->rank && y->shape[out[o].axis] == x->shape[d] &&
                    out[o].outer == 1 && out[o].inner == 1;
  return same ? (int8_t)out[o].axis : -1;
}

/* Dimensions of whole inputs that `carry` lets hold the axis beside dimension d of input i. */
static void beside(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t d, uint32_t o,
                   opi_labels **all, opi_dim_map *map) {
  opi_carry in[64], out[64];
  const opi_op *op = opi_op_of(node);
  const int64_t extent = opi_sh_value(s, node->in[i])->shape[d];
  for (uint32_t k = 0; k < node->n_in && node->n_in <= OPI_COUNT(in); ++k) {
    const opi_value *x = node->in[k] == OPIPE_NONE ? NULL : opi_sh_value(s, node->in[k]);
    for (int32_t e = 0; x != NULL && all[k] == NULL && k != i && e < x->rank; ++e) {
      for (uint32_t j = 0; j < node->n_in; ++j)
        in[j] = none;
      for (uint32_t j = 0; j < node->n_out && j < OPI_COUNT(out); ++j)
        out[j] = none;
      in[i] = (opi_carry){d, 0, 1, 1, 0};
      in[k] = (opi_carry){e, 0, 1, 1, 0};
      if (x->shape[e] == extent && extent != 1 && op->carry != NULL &&
          op->carry(s->g, node, in, out, NULL) >= 0 && out[o].axis >= 0)
        map[k].to[e] = (int8_t)out[o].axis;
    }
  }
}

static void make_maps(const opi_sharder *s, const opi_node *node, uint32_t o, opi_labels **in,
                      opi_dim_map *map) {
  const opi_op *op = opi_op_of(node);
  const opi_value *y = opi_sh_value(s, node->out[o]);
  const bool aligned = op->carry == opi_carry_broadcast || op->takes == OPI_TAKES_JOINED;
  const uint32_t n = (op->takes & (OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED)) != 0 ? 1 : node->n_in;
  for (uint32_t i = 0; i < n; ++i) {
    if (aligned || op->takes == OPI_TAKES_STRETCHED)
      opi_sh_align(s, node, i, y->rank, map);
    for (int32_t d = 0; !aligned && in[i] != NULL && op->takes != OPI_TAKES_STRETCHED &&
                        d < opi_sh_value(s, node->in[i])->rank;
         ++d) {
      if (!opi_sh_has(in[i], (uint32_t)d))
        continue;
      map[i].to[d] = carried(s, node, i, d, o);
      if (map[i].to[d] >= 0 && n == node->n_in)
        beside(s, node, i, d, o, in, map);
    }
  }
}

static opipe_status by_maps(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    opi_dim_map *map = opi_sh_maps(s, node);
    if (map == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    make_maps(s, node, o, in, map);
    OPI_TRY(opi_sh_join(s, n, in, map, opi_sh_value(s, node->out[o]), &out[o]));
  }
  return OPIPE_OK;
}

opipe_status opi_sh_rule(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  bool done = false;
  s->decisions[n].mode = OPI_MODE_CUT;
  if (opi_sh_is_product(node))
    return product(s, n, in, out);
  if (op->kind == OPI_KIND_ATTENTION)
    return opi_sh_attention(s, n, in, out);
  if (op->kind == OPI_KIND_ROW_ATTENTION)
    return opi_sh_row_attention(s, n, in, out);
  if (op->kind == OPI_KIND_ROTARY && opi_sh_value(s, node->in[0])->rank == 3)
    return opi_sh_rotary(s, n, in, out);
  if (op->takes == OPI_TAKES_FORM && in[0] != NULL) {
    out[0] = opi_sh_reshape(s, in[0], opi_sh_value(s, node->in[0]), opi_sh_value(s, node->out[0]));
    return out[0] != NULL ? OPIPE_OK : opi_sh_refuse(s, node, "its shape");
  }
  OPI_TRY(opi_sh_along(s, n, in, out, &done));
  return done ? OPIPE_OK : by_maps(s, n, in, out);
}
