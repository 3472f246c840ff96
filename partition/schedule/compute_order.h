/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a schedule plugin for its layout and its compute order, checking every answer. */
#ifndef OPI_COMPUTE_ORDER_H
#define OPI_COMPUTE_ORDER_H

#include "partition/plan.h"

/* "name:key=value,key=value" -> name and settings in `arena`; keys and values are checked against
 * the plugin's options. "file:PATH" is the schedule `csv` with the file's order, as CSV, in its
 * setting `text`. */
opipe_status opi_schedule_split(const char *spec, opi_arena *arena, const char **out_name,
                                opipe_schedule_setting **out_settings, uint32_t *out_n,
                                opipe_error *err);
opipe_status opi_schedule_check_settings(const opi_schedule_ref *schedule,
                                         const opipe_schedule_setting *settings, uint32_t n,
                                         opipe_error *err);

/* Calls layout(): sets plan->n_ranks, n_stages, n_replicas, instance_rank, in_flight. n_ranks or
 * n_stages may be 0 (not both). Forward mode: one replica, one slice, one part. */
opipe_status opi_schedule_layout(const opi_schedule_ref *schedule, uint32_t n_ranks,
                                 uint32_t n_stages, opi_plan *plan, opipe_error *err);

/* Calls plan() with the plan's stage_ns: sets plan->actions and rank_first. A record out of range
 * is an error naming it. */
opipe_status opi_schedule_order(const opi_schedule_ref *schedule, opi_plan *plan, opipe_error *err);
/* The same with a modelled time of messages between ranks. */
opipe_status opi_schedule_order_over(const opi_schedule_ref *schedule, opi_plan *plan,
                                     uint64_t transfer_ns, opipe_error *err);

#endif /* OPI_COMPUTE_ORDER_H */
