/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of runs of consecutive parts of a model as one stage: every part is compiled once, alone,
 * and the bytes are added up. These are estimates: a stage of several parts is one program, whose
 * temporaries differ from those of its parts. */
#ifndef OPI_MEMORY_PARTS_H
#define OPI_MEMORY_PARTS_H

#include "partition/memory/caps.h"
#include "partition/plan/env.h"

/* Parts [from, to). */
typedef struct opi_parts_run {
  uint64_t weight_bytes; /* parameters, versions, gradients, optimizer: each once */
  uint64_t stash_bytes;  /* per micro-batch, from its forward to its backward */
  uint64_t arena_bytes;  /* of the largest program of any part */
} opi_parts_run;

/* The part of every node, and the device to compile for. All borrowed. */
typedef struct opi_parts_place {
  const uint32_t *part_of_node; /* [n_nodes] */
  uint32_t n_parts, rank;
  const opi_rank_device *device; /* the rank's, open or described */
} opi_parts_place;

/* Run [from, to) is runs[from * (n_parts + 1) + to]; the table is made in `arena`. The plan's
 * layout is not read. Errors: those of compiling. */
opipe_status opi_parts_measure(const opi_plan_env *env, const opi_decision *plan,
                               const opi_bound *bound, const opi_parts_place *place,
                               opi_arena *arena, opi_parts_run **out_runs, opipe_error *err);

#endif /* OPI_MEMORY_PARTS_H */
