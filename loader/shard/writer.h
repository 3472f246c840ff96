/* SPDX-License-Identifier: Apache-2.0 */
/* State of writing one member's graph: forms.c has values in the form that a reader wants, nodes.c
 * the nodes, special.c those that become several, member.c the frame. Private to loader/shard. */
#ifndef OPI_SHARD_WRITER_H
#define OPI_SHARD_WRITER_H

#include "loader/ops/kit.h"
#include "loader/shard/sharder.h"

typedef struct opi_shard_memo {
  uint64_t hash;
  uint32_t whole, made;
} opi_shard_memo;

typedef struct opi_aside { /* whole values to be added behind a sum */
  const uint32_t *list;
  uint32_t n;
} opi_aside;

typedef struct opi_writer {
  opi_sharder *s;
  uint32_t r; /* the member */
  opi_arena scratch;
  opi_builder b;
  uint32_t *own;    /* [n_values] in its own form: whole, part or partial */
  uint32_t *whole;  /* [n_values] of partial values and of leaves */
  uint32_t *spread; /* [n_values] */
  opi_aside *aside; /* [n_values] of partial values */
  opi_shard_memo *cuts;
  uint32_t n_cuts, room_cuts;
  opi_shard_part *parts; /* of leaves */
  uint32_t n_parts, room_parts;
  uint32_t *sums; /* whole leaves of the bound graph */
  uint32_t n_sums, room_sums;
  uint32_t n_repeated;
  opipe_error *err;
} opi_writer;

/* Names of a node's outputs: after the node, as in the whole graph, or as partial sums. */
enum { OPI_NAMES_NEW, OPI_NAMES_KEPT, OPI_NAMES_PARTIAL };

/* ---- forms.c ---- */
/* Later emissions belong to this node; their names are none of the whole graph's. */
opipe_status opi_w_origin(opi_writer *w, const opi_node *node);
opipe_status opi_w_whole(opi_writer *w, uint32_t v, uint32_t *out);
opipe_status opi_w_spread(opi_writer *w, uint32_t v, uint32_t *out);
opipe_status opi_w_cut(opi_writer *w, uint32_t v, opi_labels *l, uint32_t *out);
/* Input i of node n as it is read. OPIPE_NONE: absent. */
opipe_status opi_w_read(opi_writer *w, uint32_t n, uint32_t i, uint32_t *out);
/* A node `Spread` behind x, if gradients are wanted. */
opipe_status opi_w_spread_node(opi_writer *w, uint32_t x, uint32_t *out);
/* Entries of `runs` along `axis` of x. */
opipe_status opi_w_pick(opi_writer *w, uint32_t x, uint32_t axis, const opi_shard_run *runs,
                        uint32_t n_runs, uint32_t *out);
/* Shape of this member's form of v. */
opipe_status opi_w_shape(opi_writer *w, uint32_t v, const opi_labels *l, int64_t *shape);
opipe_status opi_w_runs(opi_writer *w, const opi_labels *l, opi_shard_run **out_runs,
                        uint32_t *out_n, int64_t *out_sum, bool *out_shared);
/* ---- nodes.c ---- */
/* Node n with these inputs, of which input 0 is cut by in_labels (NULL: whole) and output o by
 * out_labels[o]; out [n_out]. names: OPI_NAMES_*. */
opipe_status opi_w_node(opi_writer *w, uint32_t n, const uint32_t *in, const opi_labels *in_labels,
                        opi_labels *const *out_labels, uint32_t names, uint32_t *out);
/* ---- special.c ---- */
opipe_status opi_w_special(opi_writer *w, uint32_t n);

#endif /* OPI_SHARD_WRITER_H */
