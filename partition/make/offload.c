/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of the planner: makes a plan with the stashes offloaded that were asked for, or tries
 * how many must be. */
#include <string.h>

#include "partition/make/making.h"

/* `auto`: without offloads, if caps allow that; else with as few as they demand. A plan that
 * recomputes is compared with one that offloads all instead. */
static opipe_status plan_auto(const opi_plan_env *env, const opipe_plan_params *params,
                              const opi_train_spec *spec, opi_plan **out_plan, opipe_error *err) {
  const opi_offloading none = {NULL, false}, least = {"*", true}, all = {"*", false};
  opipe_error own = OPIPE_ERROR_INIT;
  opi_plan *plan = NULL, *other = NULL;
  opipe_status status = opi_plan_make_so(env, params, spec, &none, &plan, err);
  if (status == OPIPE_E_LIMIT) {
    const opipe_status late = opi_plan_make_so(env, params, spec, &least, &plan, &own);
    if (late < 0 && late != OPIPE_E_LIMIT)
      (void)opi_error_prefix(err, "%s; without: ", own.message);
    else if (late < 0 && err != NULL)
      *err = own;
    status = late < 0 ? status : late;
  }
  if (status < 0 && status != OPIPE_E_LIMIT)
    return status;
  if (spec != NULL && spec->recompute != OPI_RECOMPUTE_NONE) {
    opi_train_spec keeps = *spec;
    keeps.recompute = OPI_RECOMPUTE_NONE;
    const opipe_status instead = opi_plan_make_so(env, params, &keeps, &all, &other, &own);
    const bool better = instead == OPIPE_OK &&
                        (status < 0 || other->predicted.interval_ns < plan->predicted.interval_ns);
    opi_plan_free(better ? plan : other);
    plan = better ? other : plan;
    status = better ? OPIPE_OK : status;
  }
  *out_plan = plan;
  return status;
}

static opipe_status plan_with(const opi_plan_env *env, const opipe_plan_params *params,
                              const opi_train_spec *spec, opi_plan **out_plan, opipe_error *err) {
  const char *offload = params->offload;
  if (offload == NULL || offload[0] == '\0' || strcmp(offload, "none") == 0)
    return opi_plan_make_so(env, params, spec, &(opi_offloading){NULL, false}, out_plan, err);
  if (spec == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "offload '%.100s': a plan for inference keeps no stashes", offload);
  }
  return strcmp(offload, "auto") == 0
             ? plan_auto(env, params, spec, out_plan, err)
             : opi_plan_make_so(env, params, spec, &(opi_offloading){offload, false}, out_plan,
                                err);
}

opipe_status opi_plan_make(const opi_plan_env *env, const opipe_plan_params *params,
                           opi_plan **out_plan, opipe_error *err) {
  return plan_with(env, params, NULL, out_plan, err);
}

opipe_status opi_plan_make_training(const opi_plan_env *env, const opipe_plan_params *params,
                                    const opi_train_spec *spec, opi_plan **out_plan,
                                    opipe_error *err) {
  return plan_with(env, params, spec, out_plan, err);
}
