/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of rules: join.c unites labels of several inputs, axes.c has operators along
 * one axis. Private to loader/shard. */
#ifndef OPI_SHARD_RULES_H
#define OPI_SHARD_RULES_H

#include "loader/shard/sharder.h"

typedef struct opi_dim_map {
  int8_t to[OPIPE_MAX_RANK]; /* dimension of the output; -1: mixed, or none */
} opi_dim_map;

static inline const opi_value *opi_sh_value(const opi_sharder *s, uint32_t v) {
  return &s->g->values[v];
}

/* ---- join.c ---- */
/* Maps of a node's inputs, all -1. */
opi_dim_map *opi_sh_maps(opi_sharder *s, const opi_node *node);
/* Dimensions counted from the last, as broadcasting does. */
void opi_sh_align(const opi_sharder *s, const opi_node *node, uint32_t i, int32_t rank,
                  opi_dim_map *map);
/* Place in labels `l` of x of element i of `grid`, labels over dimensions of y. */
uint64_t opi_sh_place(const opi_labels *grid, const opi_value *y, uint64_t i, const opi_labels *l,
                      const opi_value *x, const opi_dim_map *map);
/* Labels of y from those of the inputs; reads of inputs that are cut are set. */
opipe_status opi_sh_join(opi_sharder *s, uint32_t n, opi_labels **in, const opi_dim_map *map,
                         const opi_value *y, opi_labels **out);

/* ---- axes.c ---- */
/* Split, Slice, Gather, Tile and Concat along a divided axis, and sums, losses and norms over it;
 * *out_done false: it is none of them. */
opipe_status opi_sh_along(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out,
                          bool *out_done);

#endif /* OPI_SHARD_RULES_H */
