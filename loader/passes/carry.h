/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files that follow an axis. Private to loader/passes. */
#ifndef OPI_CARRY_H
#define OPI_CARRY_H

#include "loader/ops/common.h"
#include "loader/passes/passes.h"

typedef struct opi_follower {
  const opi_graph *graph;
  const opi_known_axis *known; /* NULL: nothing is known from another binding */
  opi_carry *carry;            /* [n_values] */
  opi_carry *in, *out;         /* room for any node */
  int64_t length;              /* of the axis; 0: no input carries it */
  opi_arena *scratch;
  opi_carry *derived; /* [n_values] carry that a value without one may be given; made on demand */
  uint8_t *tried;     /* [n_values] */
  bool *mixed;        /* [n_values] if set: marks refused values and all that depend on them */
  bool *sums; /* [n_values] if set: reductions may end the axis; marks values that depend on them */
  const bool *nodes; /* [n_nodes] nodes to consider; NULL: all */
  bool failed;       /* out of memory */
} opi_follower;

/* Applies the node's own rule, or that of positions that count along the axis. */
opipe_status opi_carry_apply(const opi_follower *f, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err);
/* The carry of a known integer value whose positions count along a dimension, if it is one. */
opi_carry opi_carry_counting(const opi_follower *f, uint32_t v);
/* The rule for a node with a counting input. */
opipe_status opi_carry_counted(const opi_follower *f, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err);
/* The carry of value v in another binding; false: unknown, or it does not fit an axis of `length`
 * (-1: any). */
bool opi_known_carry(const opi_known_axis *known, const opi_graph *graph, uint32_t v,
                     int64_t length, opi_carry *out_carry);
/* carry_count.c: numbers that scale with the length of the axis. */
typedef struct opi_known_counts opi_known_counts;
opi_known_counts *opi_known_counts_new(opi_arena *arena);
opi_known_counts *opi_known_axis_counts(const opi_known_axis *known);
/* Records number v of `part` as one, if it is `a` for an axis of `whole` elements and its own value
 * for one of `length`, the same multiple of either length or of its inverse. *out_is: whether it
 * is. */
opipe_status opi_known_count_note(opi_known_counts *counts, const opi_value *a, int64_t whole,
                                  const opi_value *b, int64_t length, bool *out_is,
                                  opipe_error *err);
/* Marks them in the follower's graph. Errors: UNSUPPORTED, a number does not match its length.
 */
opipe_status opi_known_count_mark(const opi_follower *f, opipe_error *err);

#endif /* OPI_CARRY_H */
