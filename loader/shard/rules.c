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

#include "loader/shard/sharder.h"

typedef struct dim_map {
  int8_t to[OPIPE_MAX_RANK]; /* dimension of the output; -1: mixed, or none */
} dim_map;

opipe_status opi_sh_refuse(opi_sharder *s, const opi_node *node, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return opi_fail(&s->why, OPIPE_E_UNSUPPORTED, "'%s' (%s): %s", node->name, node->op, text);
}

static const opi_value *value_of(const opi_sharder *s, uint32_t v) {
  return &s->g->values[v];
}

const int64_t *opi_sh_ints(opi_sharder *s, uint32_t v, uint64_t *out_n) {
  const opi_value *x = v == OPIPE_NONE ? NULL : value_of(s, v);
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
  const opi_value *x = value_of(s, v);
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

/* ---- join ---- */

static int32_t inverse(const dim_map *map, const opi_value *x, uint32_t e) {
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map->to[d] == (int8_t)e && x->shape[d] != 1)
      return d;
  }
  return -1;
}

/* Place in labels `l` of x of element i of `grid`, labels over dimensions of y. */
static uint64_t place_of(const opi_labels *grid, const opi_value *y, uint64_t i,
                         const opi_labels *l, const opi_value *x, const dim_map *map) {
  int64_t at[OPIPE_MAX_RANK] = {0};
  uint64_t place = 0;
  for (uint32_t k = grid->n_dims; k-- > 0;) {
    at[grid->dims[k]] = (int64_t)(i % (uint64_t)y->shape[grid->dims[k]]);
    i /= (uint64_t)y->shape[grid->dims[k]];
  }
  for (uint32_t k = 0; k < l->n_dims; ++k) {
    const int64_t c = at[map->to[l->dims[k]]];
    place = place * (uint64_t)x->shape[l->dims[k]] + (uint64_t)c;
  }
  return place;
}

/* Labels that cut whole x beside `made`; NULL: they vary along dimensions that x lacks. */
static opi_labels *project(opi_sharder *s, const opi_labels *made, const opi_value *y,
                           const opi_value *x, const dim_map *map) {
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n = 0;
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map->to[d] >= 0 && x->shape[d] != 1 && opi_sh_has(made, (uint32_t)map->to[d]))
      dims[n++] = (uint8_t)d;
  }
  opi_labels *l = opi_sh_labels(s, x->shape, dims, n);
  if (l == NULL)
    return NULL;
  for (uint64_t i = 0; i < l->n; ++i)
    l->atoms[i] = UINT32_MAX;
  for (uint64_t i = 0; i < made->n; ++i) {
    uint32_t *atom = &l->atoms[place_of(made, y, i, l, x, map)];
    if (*atom == UINT32_MAX)
      *atom = made->atoms[i];
    else if (opi_sh_find(s, *atom) != opi_sh_find(s, made->atoms[i]))
      return NULL;
  }
  return l;
}

/* Mixes what the output does not have; refuses if nothing is apart then. */
static opipe_status mix_lost(opi_sharder *s, const opi_node *node, uint32_t i, opi_labels *l,
                             const dim_map *map) {
  const opi_value *x = value_of(s, node->in[i]);
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map->to[d] < 0 && opi_sh_has(l, (uint32_t)d))
      opi_sh_mix(s, l, x->shape, (uint32_t)d);
  }
  opi_sh_reduce(s, l, x->shape);
  return l->n_dims != 0 ? OPIPE_OK
                        : opi_sh_refuse(s, node, "it needs all entries of '%s' at once", x->name);
}

/* Whole inputs are cut where they have a divided dimension. */
static opipe_status cut_whole(opi_sharder *s, uint32_t n, opi_labels **in, const dim_map *map,
                              const opi_value *y, opi_labels *made) {
  const opi_node *node = &s->g->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : value_of(s, node->in[i]);
    bool any = false;
    for (int32_t d = 0; x != NULL && in[i] == NULL && d < x->rank; ++d) {
      any = any ||
            (map[i].to[d] >= 0 && x->shape[d] != 1 && opi_sh_has(made, (uint32_t)map[i].to[d]));
    }
    if (!any)
      continue;
    opi_labels *cut = project(s, made, y, x, &map[i]);
    if (cut == NULL) { /* it stays whole, and so do the output's dimensions that it has */
      for (int32_t d = 0; d < x->rank; ++d) {
        if (map[i].to[d] >= 0 && x->shape[d] != 1)
          opi_sh_mix(s, made, y->shape, (uint32_t)map[i].to[d]);
      }
      opi_sh_reduce(s, made, y->shape);
      continue;
    }
    if (!opi_sh_demand(s, node->in[i], cut))
      return opi_sh_refuse(s, node, "'%s' has the divided axis and is whole", x->name);
    s->decisions[n].reads[i] = (opi_read){OPI_READ_CUT, cut};
  }
  return OPIPE_OK;
}

static opipe_status join(opi_sharder *s, uint32_t n, opi_labels **in, const dim_map *map,
                         const opi_value *y, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n_dims = 0;
  bool has[OPIPE_MAX_RANK] = {false};
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (in[i] == NULL)
      continue;
    OPI_TRY(mix_lost(s, node, i, in[i], &map[i]));
    for (uint32_t k = 0; k < in[i]->n_dims; ++k)
      has[map[i].to[in[i]->dims[k]]] = true;
  }
  for (uint32_t d = 0; d < (uint32_t)y->rank; ++d) {
    if (has[d])
      dims[n_dims++] = (uint8_t)d;
  }
  opi_labels *made = opi_sh_labels(s, y->shape, dims, n_dims);
  if (made == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  for (uint64_t k = 0; k < made->n; ++k)
    made->atoms[k] = UINT32_MAX;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    for (uint64_t k = 0; in[i] != NULL && k < made->n; ++k) {
      const uint64_t at = place_of(made, y, k, in[i], value_of(s, node->in[i]), &map[i]);
      if (made->atoms[k] == UINT32_MAX)
        made->atoms[k] = in[i]->atoms[at];
      else
        opi_sh_unite(s, made->atoms[k], in[i]->atoms[at]);
    }
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    for (uint32_t e = 0; in[i] != NULL && e < (uint32_t)y->rank; ++e) {
      const int32_t d = inverse(&map[i], value_of(s, node->in[i]), e);
      if (d >= 0 && opi_sh_has(made, e) && !opi_sh_has(in[i], (uint32_t)d))
        opi_sh_mix(s, made, y->shape, e);
    }
  }
  opi_sh_reduce(s, made, y->shape);
  OPI_TRY(cut_whole(s, n, in, map, y, made));
  if (made->n_dims == 0)
    return opi_sh_refuse(s, node, "it needs all entries at once");
  *out = made;
  return OPIPE_OK;
}

static dim_map *new_maps(opi_sharder *s, const opi_node *node) {
  dim_map *map = OPI_ARENA_ARRAY(&s->scratch, dim_map, (size_t)node->n_in + 1);
  if (map != NULL)
    memset(map, -1, ((size_t)node->n_in + 1) * sizeof(*map));
  s->failed = s->failed || map == NULL;
  return map;
}

/* Dimensions counted from the last, as broadcasting does. */
static void align(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t rank,
                  dim_map *map) {
  const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : value_of(s, node->in[i]);
  for (int32_t d = 0; x != NULL && d < x->rank; ++d)
    map[i].to[d] = (int8_t)(d + rank - x->rank);
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
  const opi_value *a = value_of(s, node->in[0]), *b = value_of(s, node->in[1]);
  const opi_value *y = value_of(s, node->out[0]);
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
  dim_map *map = new_maps(s, node);
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
    align(s, node, 2, y->rank, map);
  const bool both = in[0] != NULL && in[1] != NULL;
  OPI_TRY(join(s, n, in, map, y, out));
  if (both)
    s->openings[opi_sh_opening(s, out[0]->atoms[0])].heads = true;
  return OPIPE_OK;
}

/* ---- along one axis ---- */

/* Split, or entries picked along an axis: list of input entries for output o. */
static const int64_t *picked(opi_sharder *s, const opi_node *node, uint32_t o, uint32_t *out_axis,
                             uint64_t *out_n) {
  const uint32_t takes = opi_op_of(node)->takes;
  const opi_value *x = value_of(s, node->in[0]);
  uint64_t n = 0, n_axes = 0;
  if (takes == OPI_TAKES_ROWS) {
    *out_axis = (uint32_t)opi_attr_int(node, "axis", 0);
    int64_t *list = (int64_t *)(uintptr_t)opi_sh_ints(s, node->in[1], out_n);
    for (uint64_t i = 0; list != NULL && i < *out_n; ++i)
      list[i] += list[i] < 0 ? x->shape[*out_axis] : 0;
    return list;
  }
  int64_t first = 0, step = 1;
  if (takes == OPI_TAKES_PARTS) {
    const int64_t *sizes = opi_sh_ints(s, node->in[1], &n);
    *out_axis = (uint32_t)opi_attr_int(node, "axis", 0);
    for (uint32_t k = 0; sizes != NULL && k < o; ++k)
      first += sizes[k];
    *out_n = sizes != NULL && o < n ? (uint64_t)sizes[o] : 0;
  } else {
    const int64_t *starts = opi_sh_ints(s, node->in[1], &n),
                  *axes = opi_sh_ints(s, node->in[3], &n_axes),
                  *steps = opi_sh_ints(s, node->in[4], &n);
    uint64_t k = 0;
    while (axes != NULL && k < n_axes && axes[k] != (int64_t)*out_axis)
      ++k;
    if (axes == NULL || starts == NULL || steps == NULL || k == n_axes)
      return NULL;
    first = starts[k];
    step = steps[k];
    *out_n = (uint64_t)value_of(s, node->out[0])->shape[*out_axis];
  }
  int64_t *list = OPI_ARENA_ARRAY(&s->scratch, int64_t, *out_n);
  for (uint64_t i = 0; list != NULL && i < *out_n; ++i)
    list[i] = first + (int64_t)i * step;
  return list;
}

/* Along the axis of Split, Slice and Gather; *out_done false: labels lie elsewhere. */
static opipe_status pick(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out,
                         bool *out_done) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = value_of(s, node->in[0]);
  const uint32_t takes = opi_op_of(node)->takes;
  opi_labels *l = in[0];
  *out_done = false;
  for (uint32_t k = 0; l != NULL && k < l->n_dims; ++k) {
    uint32_t axis = takes == OPI_TAKES_PART ? l->dims[k] : (uint32_t)opi_attr_int(node, "axis", 0);
    if (l->dims[k] != axis)
      continue;
    opi_labels *made = l;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      uint64_t count = 0;
      const int64_t *list = picked(s, node, o, &axis, &count);
      if (list == NULL && takes == OPI_TAKES_PART)
        break; /* not sliced along it */
      if (takes == OPI_TAKES_PART && count > 1 && list[1] != list[0] + 1)
        return opi_sh_refuse(s, node, "it picks entries of the divided axis by steps");
      if (list == NULL)
        return opi_sh_refuse(s, node, "it picks entries that are not known");
      made = opi_sh_select(s, l, x, axis, list, count);
      if (made == NULL)
        return opi_fail_nomem(&s->why, 64, "labels");
      const opi_value *y = node->out[o] == OPIPE_NONE ? NULL : value_of(s, node->out[o]);
      if (y == NULL)
        continue;
      if (takes == OPI_TAKES_ROWS) { /* indices of any shape take the axis' place */
        opi_value from = *x;
        int64_t shape[OPIPE_MAX_RANK];
        memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
        shape[axis] = (int64_t)count;
        from.shape = shape;
        made = opi_sh_reshape(s, made, &from, y);
      }
      if (made == NULL || y->shape == NULL)
        return opi_sh_refuse(s, node, "its shape");
      opi_sh_reduce(s, made, y->shape);
      if (made->n_dims == 0)
        return opi_sh_refuse(s, node, "it leaves one unit of '%s'", x->name);
      out[o] = made;
      *out_done = true;
    }
  }
  return OPIPE_OK;
}

/* Entries repeated along divided axes. */
static opipe_status repeat(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *y = value_of(s, node->out[0]);
  opi_value x = *value_of(s, node->in[0]);
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, x.shape, (size_t)x.rank * sizeof(*shape));
  x.shape = shape;
  out[0] = in[0];
  for (uint32_t k = 0; k < in[0]->n_dims; ++k) {
    const uint32_t axis = in[0]->dims[k];
    const uint64_t count = (uint64_t)y->shape[axis];
    int64_t *list = OPI_ARENA_ARRAY(&s->scratch, int64_t, (size_t)count + 1);
    for (uint64_t i = 0; list != NULL && i < count; ++i)
      list[i] = (int64_t)(i % (uint64_t)shape[axis]);
    out[0] = list == NULL ? NULL : opi_sh_select(s, out[0], &x, axis, list, count);
    if (out[0] == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    shape[axis] = (int64_t)count;
  }
  return OPIPE_OK;
}

/* Concat along a divided axis. */
static opipe_status concat(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *y = value_of(s, node->out[0]);
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n_dims = 0;
  for (uint32_t d = 0; d < (uint32_t)y->rank; ++d) {
    bool any = false;
    for (uint32_t i = 0; i < node->n_in; ++i)
      any = any || opi_sh_has(in[i], d);
    if (any)
      dims[n_dims++] = (uint8_t)d;
  }
  opi_labels *made = opi_sh_labels(s, y->shape, dims, n_dims);
  if (made == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  uint64_t stride = 1, first = 0;
  for (uint32_t k = n_dims; k-- > 0 && dims[k] != axis;)
    stride *= (uint64_t)y->shape[dims[k]];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opi_value *x = value_of(s, node->in[i]);
    const uint64_t own = (uint64_t)x->shape[axis], whole = (uint64_t)y->shape[axis];
    if (in[i] == NULL)
      return opi_sh_refuse(s, node, "'%s' is joined to it and is whole", x->name);
    dim_map same;
    for (int32_t d = 0; d < OPIPE_MAX_RANK; ++d)
      same.to[d] = (int8_t)d;
    for (uint64_t k = 0; k < made->n; ++k) {
      const uint64_t at = k / stride % whole;
      if (at < first || at >= first + own)
        continue;
      opi_value shifted = *y; /* coordinates of y, moved to x */
      const uint64_t moved = k - first * stride;
      made->atoms[k] = in[i]->atoms[place_of(made, &shifted, moved, in[i], x, &same)];
    }
    first += own;
  }
  opi_sh_reduce(s, made, y->shape);
  if (made->n_dims == 0)
    return opi_sh_refuse(s, node, "it needs all entries at once");
  out[0] = made;
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
  const opi_value *x = value_of(s, node->in[i]), *y = value_of(s, node->out[o]);
  const bool same = out[o].axis < y->rank && y->shape[out[o].axis] == x->shape[d] &&
                    out[o].outer == 1 && out[o].inner == 1;
  return same ? (int8_t)out[o].axis : -1;
}

/* Dimensions of whole inputs that `carry` lets hold the axis beside dimension d of input i. */
static void beside(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t d, uint32_t o,
                   opi_labels **all, dim_map *map) {
  opi_carry in[64], out[64];
  const opi_op *op = opi_op_of(node);
  const int64_t extent = value_of(s, node->in[i])->shape[d];
  for (uint32_t k = 0; k < node->n_in && node->n_in <= OPI_COUNT(in); ++k) {
    const opi_value *x = node->in[k] == OPIPE_NONE ? NULL : value_of(s, node->in[k]);
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
                      dim_map *map) {
  const opi_op *op = opi_op_of(node);
  const opi_value *y = value_of(s, node->out[o]);
  const bool aligned = op->carry == opi_carry_broadcast || op->takes == OPI_TAKES_JOINED;
  const uint32_t n = (op->takes & (OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED)) != 0 ? 1 : node->n_in;
  for (uint32_t i = 0; i < n; ++i) {
    if (aligned || op->takes == OPI_TAKES_STRETCHED)
      align(s, node, i, y->rank, map);
    for (int32_t d = 0; !aligned && in[i] != NULL && op->takes != OPI_TAKES_STRETCHED &&
                        d < value_of(s, node->in[i])->rank;
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
    dim_map *map = new_maps(s, node);
    if (map == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    make_maps(s, node, o, in, map);
    OPI_TRY(join(s, n, in, map, value_of(s, node->out[o]), &out[o]));
  }
  return OPIPE_OK;
}

/* Sums, norms and losses over divided axes; *out_done: it is one. */
static opipe_status along_axes(opi_sharder *s, uint32_t n, opi_labels **in, bool *out_done) {
  const opi_node *node = &s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  opi_shard_decision *decision = &s->decisions[n];
  *out_done = false;
  if (in[0] == NULL)
    return OPIPE_OK;
  if (op->sums == OPI_SUMS_AXES) {
    uint64_t n_axes = 0;
    const int64_t *axes = opi_sh_ints(s, opi_node_in(node, 1), &n_axes);
    uint32_t found = 0;
    for (uint64_t k = 0; axes != NULL && k < n_axes; ++k)
      found += opi_sh_has(in[0], (uint32_t)axes[k]);
    if (axes != NULL && found == in[0]->n_dims) {
      decision->mode = OPI_MODE_SUM;
      *out_done = true;
    }
  } else if (op->kind == OPI_KIND_LOSS && only_along(in[0], 1) && in[1] == NULL &&
             opi_node_out(node, 1) == OPIPE_NONE) {
    decision->mode = OPI_MODE_LOSS;
    *out_done = true;
  }
  return OPIPE_OK;
}

/* A norm over the divided axis: its scale is cut, its statistics are summed. */
static opipe_status norm(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = value_of(s, node->in[0]);
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *scale = value_of(s, node->in[i]);
    const int32_t d = (int32_t)in[0]->dims[0] - (x->rank - scale->rank);
    opi_labels *cut = opi_sh_copy(s, in[0]);
    if (d < 0 || scale->shape[d] != x->shape[in[0]->dims[0]] || cut == NULL)
      return opi_sh_refuse(s, node, "the form of its scale");
    cut->dims[0] = (uint8_t)d;
    if (!opi_sh_demand(s, node->in[i], cut))
      return opi_sh_refuse(s, node, "'%s' is whole", scale->name);
    s->decisions[n].reads[i] = (opi_read){OPI_READ_CUT, cut};
  }
  s->decisions[n].mode = OPI_MODE_NORM;
  out[0] = in[0];
  return OPIPE_OK;
}

static bool is_norm_over(const opi_sharder *s, uint32_t n, const opi_labels *l) {
  const opi_node *node = &s->g->nodes[n];
  const uint32_t kind = opi_op_of(node)->kind;
  const opi_value *x = value_of(s, node->in[0]);
  return (kind == OPI_KIND_RMS_NORM || kind == OPI_KIND_LAYER_NORM) && !s->plain[n] && l != NULL &&
         l->n_dims == 1 && x->dtype == OPIPE_FLOAT && opi_node_out(node, 1) == OPIPE_NONE &&
         opi_node_out(node, 2) == OPIPE_NONE &&
         (int64_t)l->dims[0] >= opi_attr_int(node, "axis", x->rank - 1);
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
  if (op->kind == OPI_KIND_ROTARY && value_of(s, node->in[0])->rank == 3)
    return opi_sh_rotary(s, n, in, out);
  OPI_TRY(along_axes(s, n, in, &done));
  if (done)
    return OPIPE_OK;
  if (is_norm_over(s, n, in[0]))
    return norm(s, n, in, out);
  if (op->takes == OPI_TAKES_FORM && in[0] != NULL) {
    out[0] = opi_sh_reshape(s, in[0], value_of(s, node->in[0]), value_of(s, node->out[0]));
    return out[0] != NULL ? OPIPE_OK : opi_sh_refuse(s, node, "its shape");
  }
  if ((op->takes & (OPI_TAKES_PART | OPI_TAKES_PARTS | OPI_TAKES_ROWS)) != 0)
    OPI_TRY(pick(s, n, in, out, &done));
  if (done)
    return OPIPE_OK;
  if (op->takes == OPI_TAKES_REPEATED && in[0] != NULL)
    return repeat(s, n, in, out);
  if (op->takes == OPI_TAKES_JOINED) {
    for (uint32_t i = 0; i < node->n_in; ++i)
      done = done || opi_sh_has(in[i], (uint32_t)opi_attr_int(node, "axis", 0));
    if (done)
      return concat(s, n, in, out);
  }
  return by_maps(s, n, in, out);
}
