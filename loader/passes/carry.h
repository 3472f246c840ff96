/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that follow an axis share. Private to loader/passes. */
#ifndef OPI_CARRY_H
#define OPI_CARRY_H

#include "loader/ops/common.h"
#include "loader/passes/passes.h"

typedef struct opi_follower {
  const opi_graph *graph;
  const opi_known_axis *known; /* NULL: nothing is known from elsewhere */
  opi_carry *carry;            /* [n_values] */
  opi_carry *in, *out;         /* room for any node */
  int64_t length;              /* of the axis; 0: no input carries it */
  opi_arena *scratch;
  opi_carry *derived; /* [n_values] what a value that carries nothing may be taken to carry; made
                         when needed */
  uint8_t *tried;     /* [n_values] */
  bool *mixed;        /* [n_values] not NULL: what is refused is marked, with all that reads it */
  bool *sums;         /* [n_values] not NULL: reductions may end the axis; marks what is made of
                         them */
  const bool *nodes;  /* [n_nodes] those that count; NULL: all */
  bool failed;        /* out of memory */
} opi_follower;

/* The node's own rule, or that of positions that count along the axis. */
opipe_status opi_carry_apply(const opi_follower *f, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err);
/* Is a known integer value made of positions that count along a dimension? */
opi_carry opi_carry_counting(const opi_follower *f, uint32_t v);
/* The rule of a node of which some input counts. */
opipe_status opi_carry_counted(const opi_follower *f, const opi_node *node, const opi_carry *in,
                               opi_carry *out, opipe_error *err);
/* What another binding says of value v; false: nothing, or it does not fit an axis of `length` (-1:
 * any). */
bool opi_known_carry(const opi_known_axis *known, const opi_graph *graph, uint32_t v,
                     int64_t length, opi_carry *out_carry);
/* carry_count.c: numbers that go with the length of the axis. */
typedef struct opi_known_counts opi_known_counts;
opi_known_counts *opi_known_counts_new(opi_arena *arena);
opi_known_counts *opi_known_axis_counts(const opi_known_axis *known);
/* Notes number v of `part` as one of them, if it is `a` in an axis of `whole` elements, its own in
 * one of `length`, and the same multiple of either length or of its inverse; *out_is: whether. */
opipe_status opi_known_count_note(opi_known_counts *counts, const opi_value *a, int64_t whole,
                                  const opi_value *b, int64_t length, bool *out_is,
                                  opipe_error *err);
/* Marks them in the follower's graph. UNSUPPORTED: one is another number than its length makes it.
 */
opipe_status opi_known_count_mark(const opi_follower *f, opipe_error *err);

#endif /* OPI_CARRY_H */
