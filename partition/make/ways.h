/* SPDX-License-Identifier: Apache-2.0 */
/* How the messages of a plan travel between devices, as its transport foretells. */
#ifndef OPI_MAKE_WAYS_H
#define OPI_MAKE_WAYS_H

#include "partition/lists/lists.h"
#include "partition/memory/predict.h"
#include "partition/plan/env.h"

/* Fills predicted.ways, and staging_bytes of predicted.memory, for all streams of the lists and of
 * `more` [n_more]. Streams of devices that are only described are left out, and all of a transport
 * that does not know. Errors: the transport's; ABI, a way that is none. */
opipe_status opi_plan_find_ways(const opi_plan_env *env, opi_plan *plan, const opi_cut_model *model,
                                const opi_lists *lists, const opi_memory_more *more,
                                uint32_t n_more, const opi_rank_device *devices, opipe_error *err);

#endif /* OPI_MAKE_WAYS_H */
