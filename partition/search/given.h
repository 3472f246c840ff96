/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts that somebody gives: tensors per boundary, or stage annotations in the file. */
#ifndef OPI_GIVEN_H
#define OPI_GIVEN_H

#include "partition/program/assign.h"

/* One tensor of a boundary and the consumers (named by any of their outputs, or by node name) that
 * the cut moves behind it; none: all. */
typedef struct opi_cut_edge {
  const char *tensor;
  const char **consumers;
  uint32_t n_consumers;
  uint32_t boundary; /* the cut stands between stage `boundary` and `boundary + 1` */
} opi_cut_edge;

/* "t1,t2:consumer1+consumer2;t3" -> edges in `arena`. '\' takes the next character literally (names
 * may hold ',', ':', '+', ';'). */
opipe_status opi_cut_parse(const char *spec, opi_arena *arena, opi_cut_edge **out_edges,
                           uint32_t *out_n_edges, uint32_t *out_n_boundaries, opipe_error *err);

/* Stage of every node: what a tensor of boundary k needs stands in stage k at the latest; a
 * consumer of a cut edge stands behind it; all else stays with its producers, or where it has none
 * with its first reader. A tensor that is in
 * the file graph but was folded away is ignored: every stage has it. OPIPE_E_NOTFOUND: no such
 * tensor or consumer; OPIPE_E_INVALID: a consumer stands before the boundary. */
opipe_status opi_cut_given(const opi_bound *bound, const opi_graph *file_graph,
                           const opi_cut_edge *edges, uint32_t n_edges, uint32_t n_stages,
                           const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                           opipe_error *err);

/* Stages from IR-11 annotations; a node without one stays with its latest producer. OPIPE_E_INVALID
 * when an edge would go backwards. */
opipe_status opi_cut_annotated(const opi_graph *graph, uint32_t n_stages,
                               uint32_t *out_stage_of_node, opipe_error *err);

#endif /* OPI_GIVEN_H */
