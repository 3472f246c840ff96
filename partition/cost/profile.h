/* SPDX-License-Identifier: Apache-2.0 */
/* Time and memory of each node on a device: the basis of every cut. */
#ifndef OPI_PROFILE_H
#define OPI_PROFILE_H

#include "partition/program/cut.h"

/* One parameter layout that a node wants. */
typedef struct opi_node_param {
  uint32_t param; /* index in the table of opi_profile.single */
  uint32_t reserved;
  uint64_t key;
  uint64_t n_bytes; /* in device memory */
} opi_node_param;

typedef struct opi_profile {
  opi_arena arena;
  opi_cut *single;           /* every node as its own stage */
  double *node_ns;           /* [n_nodes] time of one run */
  uint64_t *workspace_bytes; /* [n_nodes] */
  uint64_t *output_bytes;    /* [n_nodes] sum over its outputs */
  opi_node_param
      *params; /* layouts of node n: params[param_first[n]] .. params[param_first[n + 1] - 1] */
  uint32_t *param_first;        /* [n_nodes + 1] */
  const opipe_support *support; /* [n_nodes] the device's answers; NULL: it supports all nodes */
  uint32_t n_nodes;
  double transfer_bytes_per_ns; /* rate for boundary tensors */
  double transfer_ns;           /* fixed cost of a boundary tensor */
} opi_profile;

/* The device on which nodes are profiled. All borrowed. */
typedef struct opi_profile_place {
  const opi_backend_ref *backend; /* NULL, with `device`: described only */
  opipe_device *device;           /* opened */
  const opi_device_facts *facts;
  uint32_t threads; /* as in the plan's spec */
  bool may_refuse;  /* unsupported nodes may run elsewhere; they cost OPI_REFUSED_NS */
} opi_profile_place;

/* More than any supported node takes, and small enough to be summed over all nodes. */
#define OPI_REFUSED_NS 1e12

/* Errors: UNSUPPORTED, with one report of all nodes that the backend refuses. wanted [n_nodes]: the
 * nodes to consider; NULL: all. */
opipe_status opi_profile_support(const opi_graph *graph, const bool *wanted,
                                 const opi_backend_ref *backend, opipe_device *device,
                                 const opipe_allocator *allocator, opipe_error *err);

/* True if the device supports the node; described devices support all. */
static inline bool opi_profile_takes(const opi_profile *profile, uint32_t node) {
  return profile->support == NULL || profile->support[node].status == OPIPE_OK;
}
/* The same report from an existing profile. kind: the backend's. OK if all wanted nodes are
 * supported. */
opipe_status opi_profile_refusal(const opi_profile *profile, const opi_graph *graph,
                                 const bool *wanted, const char *kind, opipe_error *err);

/* Profiles `graph` on a device. Asks for support first (one report of all refused nodes), then
 * compiles each node by itself. A described device is assumed to support all nodes, with dense
 * parameters and no workspace. kind: OPI_COST_RATES     max(flops / peak, bytes / bandwidth) +
 * launch, scaled by the share of `threads` in the device's threads OPI_COST_MEASURED  best of 3
 * runs on zeros; UNSUPPORTED for a described device */
opipe_status opi_profile_make(const opi_graph *graph, const opi_profile_place *place, uint32_t kind,
                              const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                              opi_profile **out_profile, opipe_error *err);
void opi_profile_free(opi_profile *profile); /* accepts NULL */

#endif /* OPI_PROFILE_H */
