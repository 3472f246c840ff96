/* SPDX-License-Identifier: Apache-2.0 */
/* Stretches: the nodes of a stage between sums over a group of ranks that stand inside it. No
 * program can stop in the middle, so a stage with sums is cut there, forwards and backwards:
 *
 *   forward order     a ── f ── b ── g ── c        f copies, and its gradient is summed; g sums
 *   regions           0    0  │ 1  │    │ 2        cut behind f and at g
 *   places            0    0    0    3    4        F: nothing is summed behind f, so 0 and 1 are
 * one 0    1    2    2    4        B: of the backward nodes of each
 *
 * Region r is place 2 r; the sums between regions r and r + 1, of either pass, are place 2 r + 1.
 * Values of F go to higher places and gradients to lower ones, as between stages: a cut with a
 * stage for every place (opi_cut_build) has a program for each stretch, and routes to and from the
 * sums.
 */
#ifndef OPI_STRETCHES_H
#define OPI_STRETCHES_H

#include "loader/graph/graph.h"

/* Whether members of a group make the node's results together. */
typedef bool (*opi_collective_fn)(const opi_graph *graph, const opi_node *node);

typedef struct opi_stretch_source {
  const opi_graph *graph;
  const uint32_t *stage;  /* [graph->n_nodes] */
  const uint32_t *anchor; /* [graph->n_nodes] forward node of each backward node (opi_training);
                             NULL: there are none */
  uint32_t n_stages;
  opi_collective_fn is_collective; /* NULL: what operators say, but for GroupSpread, which moves
                                      nothing (loader/ops/group.h) */
} opi_stretch_source;

typedef struct opi_stretches {
  uint32_t *stage;   /* [n_nodes] stage * n_places + place */
  uint32_t n_places; /* of the stage that has most; 1: nothing is summed */
} opi_stretches;

/* Near-linear in nodes and their inputs. Results lie in `arena`. Errors: NOMEM. */
opipe_status opi_stretches_find(const opi_stretch_source *source, opi_arena *arena,
                                opi_stretches *out, opipe_error *err);

#endif /* OPI_STRETCHES_H */
