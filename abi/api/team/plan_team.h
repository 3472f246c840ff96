/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that the processes of a team make together. */
#ifndef OPI_API_PLAN_TEAM_H
#define OPI_API_PLAN_TEAM_H

#include "abi/api/api.h"

/* plan_make with params->team: *out_plan is a new reference, NULL on failure. `as` counts in
 * process 0. */
opipe_status opi_plan_make_together(opi_model_object *model, const opipe_plan_params *params,
                                    const opi_applied *as, opi_plan_object **out_plan,
                                    opipe_error *err);
/* Does every process of `size` have ranks, and every rank of n_ranks a process? places [n_places],
 * n_places 0: blocks. Errors: INVALID, with both numbers. */
opipe_status opi_places_check(const uint32_t *places, uint32_t n_places, uint32_t n_ranks,
                              uint32_t size, opipe_error *err);
/* plan_words.c: everything in the params that all processes must ask for alike, one line each;
 * devices, machine facts, are left out. */
void opi_plan_params_write(const opipe_plan_params *params, opi_text *out);

/* ---- plan.c ---- */

/* An opi_plan_make_as without handles. told: who tells of the devices; NULL: backends here. */
opipe_status opi_plan_make_object(opi_model_object *model, const opipe_plan_params *params,
                                  const opi_applied *as, const opi_devices_told *told,
                                  opi_plan_object **out_plan, opipe_error *err);
opipe_status opi_plan_read_object(opi_model_object *model, const void *json, uint64_t n_bytes,
                                  opi_plan_object **out_plan, opipe_error *err);
/* Remembers in which of `size` processes the plan's ranks are. places [n_ranks], checked; NULL:
 * blocks. */
opipe_status opi_plan_place(opi_plan_object *plan, const uint32_t *places, uint32_t size,
                            opipe_error *err);
/* Makes the plan's handle for the host. Takes the plan over, also on failure. */
opipe_status opi_plan_hand_out(opi_plan_object *plan, opipe_plan **out_plan, opipe_error *err);
/* An opipe_write_fn into an opi_text. */
int opi_text_take(void *text, const void *data, size_t n_bytes);

#endif /* OPI_API_PLAN_TEAM_H */
