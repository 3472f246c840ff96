/* SPDX-License-Identifier: Apache-2.0 */
/* State of writing one member's graph: forms.c has values in the form that a reader wants, nodes.c
 * the nodes, special.c those that become several, sent.c what goes to other stages, member.c the
 * frame. Private to loader/shard. */
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

typedef struct opi_w_part { /* of a whole value, for members of other stages */
  uint32_t whole, part;
  uint32_t node; /* that makes it */
} opi_w_part;

typedef struct opi_w_arrival { /* a value gathered in a stage from such parts */
  uint32_t value, stage;
  uint32_t whole, spread; /* spread OPIPE_NONE: not yet */
} opi_w_arrival;

typedef struct opi_writer {
  opi_sharder *s;
  uint32_t r; /* the member */
  opi_arena scratch;
  opi_builder b;
  uint32_t *own;    /* [n_values] in its own form: whole, part or partial */
  uint32_t *whole;  /* [n_values] of partial values and of leaves */
  uint32_t *spread; /* [n_values] */
  uint32_t *row;    /* [n_values] the member's rows of values in rows */
  opi_aside *aside; /* [n_values] of partial values */
  opi_shard_memo *cuts;
  uint32_t n_cuts, room_cuts;
  opi_shard_memo *row_cuts; /* of whole values */
  uint32_t n_row_cuts, room_row_cuts;
  opi_shard_part *parts; /* of leaves */
  uint32_t n_parts, room_parts;
  uint32_t *sums; /* whole leaves of the bound graph */
  uint32_t n_sums, room_sums;
  uint32_t n_repeated;
  uint32_t stage; /* of the node that is written; OPIPE_NONE: of no matter */
  opi_w_part *sent;
  uint32_t n_sent, room_sent;
  opi_w_arrival *arrivals;
  uint32_t n_arrivals, room_arrivals;
  opipe_error *err;
} opi_writer;

/* Names of a node's outputs: after the node, as in the whole graph, as partial sums, or as rows. */
enum { OPI_NAMES_NEW, OPI_NAMES_KEPT, OPI_NAMES_PARTIAL, OPI_NAMES_ROWS };

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
/* The sum over the group, and what was kept aside behind it: whole, or the member's rows. */
opipe_status opi_w_sum(opi_writer *w, uint32_t v, uint32_t *out);
/* ---- sent.c ---- */
/* *io, whole value v where it is made: as the stage that is written reads it. */
opipe_status opi_w_arrive(opi_writer *w, uint32_t v, uint32_t *io);
/* NULL: v is not gathered in that stage. */
opi_w_arrival *opi_w_arrival_of(const opi_writer *w, uint32_t v);
/* The whole graph's node to which node `made` belongs, if it makes a part to be sent. */
uint32_t opi_w_node_sent(const opi_writer *w, uint32_t made, uint32_t otherwise);
/* ---- leaves.c ---- */
/* v, which has no producer, whole; or cut by l, its only cut. In training, entries that several
 * members hold are parameters of their own where the member has others too, and a node joins them.
 */
opipe_status opi_w_leaf(opi_writer *w, uint32_t v, uint32_t *out);
opipe_status opi_w_leaf_part(opi_writer *w, uint32_t v, const opi_labels *l, uint32_t *out);
/* ---- row_forms.c ---- */
/* The member's rows of the sum of partial value v. */
opipe_status opi_w_scatter(opi_writer *w, uint32_t v, uint32_t *out);
/* The member's rows of v, which is in rows. */
opipe_status opi_w_row(opi_writer *w, uint32_t v, uint32_t *out);
/* All rows of v, which is in rows; one collective for all its forms. sum: its gradients in the
 * members are partial. */
opipe_status opi_w_gather(opi_writer *w, uint32_t v, bool sum, uint32_t *out);
/* v beside a value y whose first k dimensions are rows: the member's rows of v, or v if it has no
 * dimension of them. Dimensions are counted from the last. */
opipe_status opi_w_beside(opi_writer *w, uint32_t v, const opi_value *y, uint32_t k, uint32_t *out);
/* Input i of node n, which is added behind the sum of output 0. */
opipe_status opi_w_added(opi_writer *w, uint32_t n, uint32_t i, uint32_t *out);
/* Node n by rows. */
opipe_status opi_w_row_node(opi_writer *w, uint32_t n);
/* Masks of Dropout are those of the whole value. */
void opi_w_row_attrs(opi_writer *w, uint32_t n, opipe_attr *attrs, uint32_t *io_n);
/* ---- nodes.c ---- */
/* Node n with these inputs, of which input 0 is cut by in_labels (NULL: whole) and output o by
 * out_labels[o]; out [n_out]. names: OPI_NAMES_*. */
opipe_status opi_w_node(opi_writer *w, uint32_t n, const uint32_t *in, const opi_labels *in_labels,
                        opi_labels *const *out_labels, uint32_t names, uint32_t *out);
/* ---- special.c ---- */
opipe_status opi_w_special(opi_writer *w, uint32_t n);

#endif /* OPI_SHARD_WRITER_H */
