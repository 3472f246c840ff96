/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a schedule plugin for an order of modelled stages, without a model. */
#ifndef OPI_ASK_H
#define OPI_ASK_H

#include "partition/plan/env.h"
#include "partition/schedule/events.h"
#include "partition/schedule/order.h"

typedef struct opi_question {
  const char *schedule;       /* "NAME:key=value,..." or "file:PATH" */
  uint32_t mode;              /* OPIPE_MODE_* */
  uint32_t n_ranks, n_stages; /* one may be 0 */
  uint32_t n_microbatches;
  uint32_t replicas; /* copies of the whole pipeline, 0: 1 */
  uint32_t n_rank_replicas;
  const uint32_t *rank_replicas; /* [n_rank_replicas] replicas of every rank of the layout, which
                                    share micro-batches; then `replicas` is not read */
  const opi_costs *costs;        /* of every stage; per-stage arrays may be longer than there are
                                    stages */
  const uint64_t *stash_bytes;   /* [stages] kept per micro-batch; NULL: the same in every stage */
  const uint64_t *free_bytes;    /* [ranks] of one copy: room for stashes; NULL: no cap */
} opi_question;

/* Puts the schedule's layout into an empty plan: ranks, stages, replicas, places, slices, parts,
 * versions. Costs are not read. Errors: as the plugin states them. */
opipe_status opi_order_lay_out(const opi_plugins *plugins, const opi_question *question,
                               opi_plan *plan, opi_schedule_ref *out_schedule, opipe_error *err);

/* Errors: as the plugin states them; INVALID, incomplete records. */
opipe_status opi_order_ask(const opi_plugins *plugins, const opi_question *question,
                           const opipe_allocator *allocator, opi_order **out_order,
                           opipe_error *err);
/* With the idle cells of the schedule's own table, if it has one; otherwise aligned in time. */
opipe_status opi_order_ask_aligned(const opi_plugins *plugins, const opi_question *question,
                                   const opipe_allocator *allocator, opi_order **out_order,
                                   opipe_error *err);

#endif /* OPI_ASK_H */
