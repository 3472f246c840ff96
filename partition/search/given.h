/* SPDX-License-Identifier: Apache-2.0 */
/* Given cuts: tensors per boundary, or stage annotations in the file. */
#ifndef OPI_GIVEN_H
#define OPI_GIVEN_H

#include "partition/program/assign.h"

/* One tensor of a boundary and the consumers that the cut moves behind it, named by any of their
 * outputs or by node name; none: all consumers. */
typedef struct opi_cut_edge {
  const char *tensor;
  const char **consumers;
  uint32_t n_consumers;
  uint32_t boundary; /* between stages `boundary` and `boundary + 1` */
} opi_cut_edge;

/* Parses "t1,t2:consumer1+consumer2;t3" into edges, in `arena`. '\' escapes the next character,
 * since names may contain ',', ':', '+' and ';'. */
opipe_status opi_cut_parse(const char *spec, opi_arena *arena, opi_cut_edge **out_edges,
                           uint32_t *out_n_edges, uint32_t *out_n_boundaries, opipe_error *err);

/* Assigns a stage to every node. Whatever a tensor of boundary k needs is in stage k at the latest;
 * a consumer of a cut edge is behind it; all other nodes stay with their producers or, without any,
 * with their first reader. A tensor of the file's graph that was folded away is ignored, because
 * every stage has it. Errors: NOTFOUND, no such tensor or consumer; INVALID, a consumer is before
 * the boundary. */
opipe_status opi_cut_given(const opi_bound *bound, const opi_graph *file_graph,
                           const opi_cut_edge *edges, uint32_t n_edges, uint32_t n_stages,
                           const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                           opipe_error *err);

/* Stages from IR-11 annotations. A node without one stays with its latest producer. Errors:
 * INVALID, an edge would go backwards. */
opipe_status opi_cut_annotated(const opi_graph *graph, uint32_t n_stages,
                               uint32_t *out_stage_of_node, opipe_error *err);

#endif /* OPI_GIVEN_H */
