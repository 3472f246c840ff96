/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor groups while a plan is made: refusals, the costs of a member's nodes, descriptions. */
#ifndef OPI_MAKE_TENSOR_H
#define OPI_MAKE_TENSOR_H

#include "partition/cost/profile.h"
#include "partition/plan/env.h"
#include "partition/program/model.h"

/* Errors: INVALID, a width that divides neither ranks nor devices, with both numbers. */
opipe_status opi_tensor_asked(const opipe_plan_params *params, opipe_error *err);
/* Width and form as asked for. */
void opi_tensor_take(const opipe_plan_params *params, opi_decision *plan);
/* The form that the plan's link asks for, too. */
void opi_tensor_meet_link(opi_decision *plan);
/* Members compute the same bits only on like devices. Errors: INVALID names what differs. */
opipe_status opi_tensor_devices(const opi_decision *plan, opipe_error *err);

/* Costs of the whole graph's nodes, by rank. All borrowed. */
typedef struct opi_tensor_costs {
  const opi_decision *plan;
  const opi_bound *bound;
  const opi_bind_options *base;
  const opi_device_facts *facts; /* [n_ranks] */
  opi_profile *const *profiles;  /* [n_ranks] */
  const uint32_t *owner;         /* [n_ranks] the rank whose profile and costs it shares */
  double *const *passes_ns[3];   /* [n_ranks][n_nodes] of F, I, W; NULL: forward plans */
} opi_tensor_costs;

/* Scales the costs to those of the member for which a node takes longest, by the rates of rank 0's
 * device. */
opipe_status opi_tensor_share_costs(const opi_tensor_costs *costs, opipe_error *err);

/* shardings.c: the width of a file's sharding specs, unless annotations are ignored: *io_params
 * becomes `own`, a copy with it. *out_checks: the specs must say how the model is divided. Errors:
 * UNSUPPORTED names the spec that no plan can be made of, or two widths; INVALID, another width is
 * asked for. */
opipe_status opi_shardings_take(const opi_model *file, const opipe_plan_params **io_params,
                                opipe_plan_params *own, bool *out_checks, opipe_error *err);
/* shardings.c: whether every spec says how the model is divided. Errors: INVALID, UNSUPPORTED, the
 * tensor with both axes, or why it cannot be used. */
opipe_status opi_shardings_check(const opi_model *file, const opi_cut_model *model,
                                 opipe_error *err);

/* Notes how the graph is divided, or compares it with what the plan says. Errors: INVALID, both. */
opipe_status opi_tensor_compare(opi_decision *plan, const opi_cut_model *model, opipe_error *err);
/* Notes the collectives of every stage and the nodes that stay whole. */
opipe_status opi_tensor_tell(opi_plan *plan, const opi_cut_model *model, opipe_error *err);

#endif /* OPI_MAKE_TENSOR_H */
