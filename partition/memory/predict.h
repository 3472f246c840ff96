/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted memory of a plan. */
#ifndef OPI_MEMORY_PREDICT_H
#define OPI_MEMORY_PREDICT_H

#include "partition/lists/lists.h"
#include "partition/memory/caps.h"
#include "partition/program/model.h"

/* Graphs of the same plan for other numbers of rows, which a session holds too: programs share the
 * arena and the parameters. lists: boundaries are their own; NULL: they are the model's. */
typedef struct opi_memory_more {
  const opi_cut_model *model;
  const opi_lists *lists;
} opi_memory_more;

/* Predicts the bytes of every rank of a plan, with the states of n_streams streams; every program
 * of every class is compiled, or estimated if the device is only described. out_memory [n_ranks];
 * out_sums [parameters], optional, in training: bytes that a sum over its ranks moves for a
 * parameter, 0: it is not trained. */
opipe_status opi_memory_predict(const opi_decision *plan, uint32_t n_streams,
                                const opi_cut_model *model, const opi_lists *lists,
                                const opi_memory_more *more, uint32_t n_more,
                                const opi_rank_device *devices, uint32_t compile_flags,
                                opi_memory *out_memory, uint64_t *out_sums, opipe_error *err);

#endif /* OPI_MEMORY_PREDICT_H */
