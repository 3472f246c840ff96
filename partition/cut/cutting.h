/* SPDX-License-Identifier: Apache-2.0 */
/* A cutting: a bound graph taken apart into one program per stage, with every tensor that crosses
 * listed as a route.
 *
 * Any edge may be cut. A tensor goes from the stage that makes it straight to each stage that reads
 * it (a tensor that skips stages has a route of its own). Graph inputs are loaded by every stage
 * that reads them. A constant or parameter is never routed: each stage that reads one has it.
 * Parameters are one logical parameter by initializer name wherever they are used.
 */
#ifndef OPI_CUTTING_H
#define OPI_CUTTING_H

#include "partition/plan.h"

/* What a program's boundary slot is tied to. */
enum {
  OPI_BOUNDARY_REQUEST = 0,  /* input: a graph input, loaded from the request */
  OPI_BOUNDARY_RECEIVED = 1, /* input: comes over `route` */
  OPI_BOUNDARY_PRODUCED = 2 /* output: read by later stages (routes with this value and stage) and /
                               or a graph output */
};

typedef struct opi_boundary {
  uint32_t kind;  /* OPI_BOUNDARY_* */
  uint32_t value; /* in the bound graph */
  uint32_t route; /* RECEIVED: the route; PRODUCED: the first route out of this stage, OPIPE_NONE
                     when only a graph output */
  uint32_t
      port; /* REQUEST: index in graph inputs; PRODUCED: index in graph outputs or OPIPE_NONE */
  uint64_t n_bytes;
} opi_boundary;

typedef struct opi_route {
  uint32_t value;
  uint32_t src_stage, dst_stage;
  uint32_t src_slot, dst_slot; /* boundary slots in the two programs */
  uint32_t index;              /* counts the routes of one pair of stages */
  uint64_t n_bytes;
} opi_route;

typedef struct opi_stage {
  opipe_graph
      graph; /* what the backend compiles; pointers in the cutting's arena and the bound graph */
  uint32_t *nodes;          /* [graph.n_nodes] bound graph's node indices */
  opi_boundary *boundaries; /* [graph.n_boundaries] by slot */
  uint32_t *
      params; /* [n_params] indices in the cutting's parameter table that the stage reads, rising */
  uint32_t n_params;
  double flops, bytes; /* work of one micro-batch */
} opi_stage;

/* A parameter: a known value that stays outside the program (an initializer, or a folded constant
 * above 1 KiB). */
typedef struct opi_param {
  uint32_t value; /* in the bound graph */
  opipe_param_source source;
  uint32_t first_stage; /* lowest stage that reads it */
  uint32_t n_stages;    /* how many do */
} opi_param;

typedef struct opi_cutting {
  opi_arena arena;
  const opi_graph *graph; /* borrowed */
  opi_stage *stages;
  opi_route *routes; /* by src_stage, dst_stage, index */
  opi_param *params; /* the parameter table: `slot` of PARAMETER values in every stage's graph
                        indexes it */
  opipe_param_source *sources; /* [n_params] contiguous copies, for params_create */
  uint32_t n_stages, n_routes, n_params;
  /* [graph->n_outputs] where results come from: stage and slot; OPIPE_NONE stage: the output is a
   * graph input (slot = input index) or a known value (slot = OPIPE_NONE). */
  uint32_t *output_stage, *output_slot;
} opi_cutting;

/* stage_of_node [graph->n_nodes]; every edge must go forward or stay (else OPIPE_E_INVALID naming
 * tensor and both stages). */
opipe_status opi_cutting_build(const opi_graph *graph, const uint32_t *stage_of_node,
                               uint32_t n_stages, const opipe_allocator *allocator,
                               opi_cutting **out_cutting, opipe_error *err);
void opi_cutting_free(opi_cutting *cutting); /* accepts NULL */

/* Is the content known before any run (constant or parameter)? Is it one that stays outside the
 * programs: an initializer of more than one element, or larger than 1 KiB? */
bool opi_value_is_known(const opi_value *value);
bool opi_value_is_param(const opi_value *value);
/* Are two sources one parameter: equal in name, type, shape and content? */
bool opi_same_source(const opipe_param_source *a, const opipe_param_source *b);

/* A node's key in plans: the name of its first present output. */
const char *opi_node_key(const opi_graph *graph, const opi_node *node);
/* Are two names the same but for a counter at their end ("_12")? */
bool opi_same_stem(const char *a, const char *b);

/* Stage of every node of `graph` (another binding of the plan's model) by the plan's node keys; a
 * node that the plan does not know takes the largest stage of its producers. */
opipe_status opi_plan_assign(const opi_plan *plan, const opi_graph *graph,
                             const opipe_allocator *allocator, uint32_t *out_stage_of_node,
                             opipe_error *err);

#endif /* OPI_CUTTING_H */
