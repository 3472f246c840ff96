/* SPDX-License-Identifier: Apache-2.0 */
/* An order asked of a schedule plugin for modelled stages, without any model. */
#ifndef OPI_ASK_H
#define OPI_ASK_H

#include "partition/make.h"
#include "partition/schedule/order.h"
#include "partition/simulate/events.h"

typedef struct opi_question {
  const char *schedule;       /* "NAME:key=value,..." or "file:PATH" */
  uint32_t mode;              /* OPIPE_MODE_* */
  uint32_t n_ranks, n_stages; /* one may be 0 */
  uint32_t n_microbatches;
  uint32_t replicas;      /* copies of the whole pipeline, 0: 1 */
  const opi_costs *costs; /* of every stage; per-stage arrays as far as there are stages */
} opi_question;

/* Errors: as the plugin states them; INVALID, records that are not whole. */
opipe_status opi_order_ask(const opi_plugins *plugins, const opi_question *question,
                           const opipe_allocator *allocator, opi_order **out_order,
                           opipe_error *err);
/* With the idle cells of the schedule's own table, where it has one; else aligned in time. */
opipe_status opi_order_ask_aligned(const opi_plugins *plugins, const opi_question *question,
                                   const opipe_allocator *allocator, opi_order **out_order,
                                   opipe_error *err);

#endif /* OPI_ASK_H */
