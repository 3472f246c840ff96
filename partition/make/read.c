/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a plan with its model: the file's parts (partition/file/read.h), each checked against the
 * bound graph, then finished like a plan that is made here: every edge goes forward, the order is
 * proven. */
#include "partition/file/read.h"

#include "partition/make/make.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
#include "partition/program/states.h"

static opipe_status read_parts(opi_reading *r, const opi_plan_env *env, opi_bound **out_bound) {
  opi_plan *plan = r->plan;
  OPI_TRY(opi_reading_beginning(r));
  const int64_t rows =
      plan->batch_dim == NULL ? 0 : opi_microbatch_rows(plan->batch_rows, plan->n_microbatches, 0);
  OPI_TRY(opi_plan_bind(plan, env->model, env->bind, rows, out_bound, r->err));
  const opi_graph *graph = (*out_bound)->graph;
  if (plan->train != NULL)
    OPI_TRY(opi_train_check_choice(plan, graph, r->err));
  OPI_TRY(opi_reading_stages(r, graph));
  OPI_TRY(opi_reading_layout(r));
  OPI_TRY(opi_states_check(plan, env->model->graph, graph, r->err));
  OPI_TRY(opi_plan_check_link(plan, r->err)); /* by what the plan is for, and its layout */
  OPI_TRY(opi_reading_orders(r));
  return opi_plan_finish(env, plan, *out_bound, r->err);
}

opipe_status opi_plan_read(const opi_plan_env *env, const void *json, uint64_t n_bytes,
                           opi_plan **out_plan, opipe_error *err) {
  opi_reading r = {.model = env->model, .err = err};
  opi_bound *bound = NULL;
  opipe_status status = opi_reading_begin(env->allocator, json, n_bytes, &r);
  if (status == OPIPE_OK)
    status = read_parts(&r, env, &bound);
  status = opi_reading_end(&r, status, out_plan);
  opi_bound_free(bound);
  return status;
}
