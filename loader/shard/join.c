/* SPDX-License-Identifier: Apache-2.0 */
/* Labels of an output from those of several inputs: they are united where they meet. Labels along
 * dimensions that the output does not have are united; whole inputs are cut at the reader where
 * they have a divided dimension.
 */
#include <string.h>

#include "loader/shard/rules.h"

static int32_t inverse(const opi_dim_map *map, const opi_value *x, uint32_t e) {
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map->to[d] == (int8_t)e && x->shape[d] != 1)
      return d;
  }
  return -1;
}

uint64_t opi_sh_place(const opi_labels *grid, const opi_value *y, uint64_t i, const opi_labels *l,
                      const opi_value *x, const opi_dim_map *map) {
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
                           const opi_value *x, const opi_dim_map *map) {
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
    uint32_t *atom = &l->atoms[opi_sh_place(made, y, i, l, x, map)];
    if (*atom == UINT32_MAX)
      *atom = made->atoms[i];
    else if (opi_sh_find(s, *atom) != opi_sh_find(s, made->atoms[i]))
      return NULL;
  }
  return l;
}

/* Mixes what the output does not have; refuses if nothing is apart then. */
static opipe_status mix_lost(opi_sharder *s, const opi_node *node, uint32_t i, opi_labels *l,
                             const opi_dim_map *map) {
  const opi_value *x = opi_sh_value(s, node->in[i]);
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map->to[d] < 0 && opi_sh_has(l, (uint32_t)d))
      opi_sh_mix(s, l, x->shape, (uint32_t)d);
  }
  opi_sh_reduce(s, l, x->shape);
  return l->n_dims != 0 ? OPIPE_OK
                        : opi_sh_refuse(s, node, "it needs all entries of '%s' at once", x->name);
}

/* Whole inputs are cut where they have a divided dimension. */
static opipe_status cut_whole(opi_sharder *s, uint32_t n, opi_labels **in, const opi_dim_map *map,
                              const opi_value *y, opi_labels *made) {
  const opi_node *node = &s->g->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : opi_sh_value(s, node->in[i]);
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

opipe_status opi_sh_join(opi_sharder *s, uint32_t n, opi_labels **in, const opi_dim_map *map,
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
      const uint64_t at = opi_sh_place(made, y, k, in[i], opi_sh_value(s, node->in[i]), &map[i]);
      if (made->atoms[k] == UINT32_MAX)
        made->atoms[k] = in[i]->atoms[at];
      else
        opi_sh_unite(s, made->atoms[k], in[i]->atoms[at]);
    }
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    for (uint32_t e = 0; in[i] != NULL && e < (uint32_t)y->rank; ++e) {
      const int32_t d = inverse(&map[i], opi_sh_value(s, node->in[i]), e);
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

opi_dim_map *opi_sh_maps(opi_sharder *s, const opi_node *node) {
  opi_dim_map *map = OPI_ARENA_ARRAY(&s->scratch, opi_dim_map, (size_t)node->n_in + 1);
  if (map != NULL)
    memset(map, -1, ((size_t)node->n_in + 1) * sizeof(*map));
  s->failed = s->failed || map == NULL;
  return map;
}

void opi_sh_align(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t rank,
                  opi_dim_map *map) {
  const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : opi_sh_value(s, node->in[i]);
  for (int32_t d = 0; x != NULL && d < x->rank; ++d)
    map[i].to[d] = (int8_t)(d + rank - x->rank);
}
