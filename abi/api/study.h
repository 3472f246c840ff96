/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from the core's slots into partition/study: study.c implements them if it is built,
 * without_study.c otherwise (OPIPE_STUDY=OFF). */
#ifndef OPI_API_STUDY_H
#define OPI_API_STUDY_H

#include "abi/api/api.h"
#include "partition/schedule/order_search.h"

/* UNSUPPORTED: "CALL: built without the study". */
static inline opipe_status opi_without_study(const char *call, opipe_error *err) {
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s: built without the study", call);
}

/* The search for better orders in plan making; NULL: there is none. */
const opi_order_search *opi_study_order_search(void);
/* The search in lists of schedules: returns the number of its options; *out_summary NULL: there is
 * no search. */
uint32_t opi_study_search_options(const opipe_schedule_option **out_options,
                                  const char **out_summary);
/* Makes an order that no plugin makes: a searched one, or a baseline. flags: of order_make. */
opipe_status opi_study_order(opi_context_object *context, const opi_question *question,
                             uint32_t flags, opi_order **out_order, opipe_error *err);
/* A lower bound on the time of every order of these computes, in the unit of the costs. */
opipe_status opi_study_bound(const opi_order *order, const opi_costs *costs, double *out_bound,
                             opipe_error *err);
/* The order as an HTML page; figures: JSON. */
opipe_status opi_study_order_page(const opi_order *order, const opi_costs *costs,
                                  const opi_simulation *result, const char *figures,
                                  const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                                  opipe_error *err);
/* Replaces the host's devices and link by a cluster's; does nothing without one. The arena must
 * outlive the use of `io_params`. */
opipe_status opi_study_take_cluster(opi_arena *arena, opipe_plan_params *io_params,
                                    opipe_error *err);

#endif /* OPI_API_STUDY_H */
