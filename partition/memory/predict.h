/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of every rank of a plan: its stages are compiled (which takes no device memory) and their
 * needs added up by the same layout code that the runtime allocates by. Exact, but of ranks whose
 * device is only described: those are estimates. */
#ifndef OPI_PREDICT_H
#define OPI_PREDICT_H

#include "partition/memory/layout.h"

/* Devices of a plan while it is made: one opening per rank. */
typedef struct opi_rank_device {
  const opi_backend_ref *backend; /* NULL, and no device: it is described */
  opipe_device *device;
  uint32_t alignment;
} opi_rank_device;

/* Adds the needs of one shape class (cut) to `io_memory` [n_ranks]: parameters are counted once
 * per (rank, parameter, layout) over all classes given to one call, the arena once per rank (the
 * largest), boundaries for every class. cuts [n_cuts]: the classes (rows of a micro-batch), all
 * with the parameter table of the first; compile_flags: OPIPE_COMPILE_* of the session to come */
opipe_status opi_predict(const opi_plan *plan, const opi_cut *const *cuts, uint32_t n_cuts,
                         const opi_rank_device *devices, bool direct, uint32_t compile_flags,
                         const opipe_allocator *allocator, opi_memory *out_memory,
                         opipe_error *err);

/* caps.c. Errors: LIMIT names the first rank that needs more than its cap, with all numbers. */
opipe_status opi_plan_check_caps(const opi_plan *plan, opipe_error *err);

#endif /* OPI_PREDICT_H */
