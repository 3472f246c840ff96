/* SPDX-License-Identifier: Apache-2.0 */
/* Collective nodes of tensor groups: kinds and attributes; see group.h. */
#ifndef OPI_OPS_COLLECTIVE_H
#define OPI_OPS_COLLECTIVE_H

#include "loader/graph/graph.h"

enum {
  OPI_COLLECTIVE_SPREAD = 0, /* none: an identity */
  OPI_COLLECTIVE_SUM = 1,
  OPI_COLLECTIVE_GATHER = 2,
  OPI_COLLECTIVE_SCATTER = 3
};

typedef struct opi_collective {
  uint32_t kind; /* OPI_COLLECTIVE_* */
  uint32_t dtype;
  int32_t axis;         /* -1: SPREAD, SUM */
  uint32_t n_parts;     /* members of the group; 0: SPREAD, SUM */
  uint32_t member;      /* whose graph this is */
  const int64_t *parts; /* [n_parts] entries of each member along `axis`; 0 is possible */
} opi_collective;

/* True if the node is a collective; *out says which. */
bool opi_collective_of(const opi_graph *graph, const opi_node *node, opi_collective *out);

#endif /* OPI_OPS_COLLECTIVE_H */
