/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan takes, added up. */
#ifndef OPI_MEMORY_PREDICT_H
#define OPI_MEMORY_PREDICT_H

#include "partition/lists/lists.h"
#include "partition/memory/caps.h"
#include "partition/program/model.h"

/* Bytes of every rank of a plan with the states of so many streams; every program of every class is
 * compiled, or estimated where the device is described. out_memory [n_ranks]; out_sums
 * [parameters], optional, of training: what a sum over its ranks moves of a parameter, 0: it is not
 * trained. */
opipe_status opi_memory_predict(const opi_decision *plan, uint32_t n_streams,
                                const opi_cut_model *model, const opi_lists *lists,
                                const opi_rank_device *devices, uint32_t compile_flags,
                                opi_memory *out_memory, uint64_t *out_sums, opipe_error *err);

#endif /* OPI_MEMORY_PREDICT_H */
