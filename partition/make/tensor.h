/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor groups while a plan is made: what may be asked, and the costs of a member's nodes. */
#ifndef OPI_MAKE_TENSOR_H
#define OPI_MAKE_TENSOR_H

#include "partition/plan/env.h"
#include "partition/program/model.h"

/* Errors: INVALID, a width that divides neither ranks nor devices, with both numbers. */
opipe_status opi_tensor_asked(const opipe_plan_params *params, opipe_error *err);
/* Members compute the same bits only on like devices. Errors: INVALID names what differs. */
opipe_status opi_tensor_devices(const opi_decision *plan, opipe_error *err);

/* A member's share of the time of every node of the whole graph: of the member for which it takes
 * longest, by the rates of rank 0's device; nodes that read and write parts are counted with those
 * that they were made for. out_shares [n_nodes]. Errors: UNSUPPORTED, nothing can be divided. */
opipe_status opi_tensor_shares(const opi_decision *plan, const opi_bound *bound,
                               const opi_bind_options *base, const opi_device_facts *facts,
                               double *out_shares, opipe_error *err);

/* Notes the collectives of every stage and the nodes that stay whole. */
opipe_status opi_tensor_tell(opi_plan *plan, const opi_cut_model *model, opipe_error *err);

#endif /* OPI_MAKE_TENSOR_H */
