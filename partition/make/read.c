/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a plan with its model. The parts of the file (partition/file/read.h) are checked against
 * the bound graph, then the plan is finished like one made here: every edge goes forward, the order
 * is proven. */
#include "partition/file/read.h"

#include "partition/make/make.h"
#include "partition/make/passes.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
#include "partition/program/states.h"

static opipe_status read_parts(opi_reading *r, const opi_plan_env *env, opi_bound **out_bound) {
  const opi_decision *plan = &r->plan->decided;
  OPI_TRY(opi_reading_beginning(r));
  opi_plan_env own = *env;
  if (plan->generation.context != 0)
    OPI_TRY(opi_passes_open(env, r->plan, r->err));
  own.model = opi_plan_model(r->plan, env->model);
  env = &own;
  const int64_t rows = opi_microbatch_rows_most(plan);
  OPI_TRY(opi_plan_bind(plan, env->model, env->bind, rows, out_bound, r->err));
  const opi_graph *graph = (*out_bound)->graph;
  if (opi_plan_trains(plan))
    OPI_TRY(opi_train_check_choice(plan, graph, r->err));
  OPI_TRY(opi_reading_stages(r, graph));
  OPI_TRY(opi_reading_layout(r));
  OPI_TRY(opi_states_check(&r->plan->decided, env->model->graph, graph, r->err));
  OPI_TRY(opi_plan_check_link(plan, r->err)); /* once its mode and layout are known */
  OPI_TRY(opi_reading_orders(r));
  return opi_plan_finish(env, r->plan, r->facts, *out_bound, r->err);
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
