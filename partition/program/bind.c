/* SPDX-License-Identifier: Apache-2.0 */
/* The options with which a plan binds its model. */
#include "partition/program/bind.h"

#include <string.h>

#include "partition/plan/env.h"
#include "partition/program/batch.h"

static opipe_status take_pin(opi_plan *plan, const opi_pin *pin, opi_pin *out, opipe_error *err) {
  uint64_t n_bytes = 0;
  if (!opi_tensor_bytes(pin->dtype, pin->shape, pin->rank, &n_bytes))
    return opi_fail(err, OPIPE_E_INVALID, "pinned input '%s' has no valid shape", pin->input);
  *out = (opi_pin){.input = opi_arena_strdup(&plan->arena, pin->input),
                   .data = opi_arena_copy(&plan->arena, pin->data, (size_t)n_bytes),
                   .shape = opi_arena_copy(&plan->arena, pin->shape, pin->rank * sizeof(int64_t)),
                   .rank = pin->rank,
                   .dtype = pin->dtype};
  return out->input == NULL || out->data == NULL || out->shape == NULL
             ? opi_fail_nomem(err, n_bytes, "a plan")
             : OPIPE_OK;
}

opipe_status opi_plan_take_binding(opi_plan *plan, const opi_bind_options *bind, uint32_t n_more,
                                   opipe_error *err) {
  plan->decided.binding.dims = OPI_ARENA_ARRAY(&plan->arena, opi_dim_binding, bind->n_dims);
  plan->decided.binding.pins = OPI_ARENA_ARRAY(&plan->arena, opi_pin, bind->n_pins);
  plan->decided.binding.barriers =
      OPI_ARENA_ARRAY(&plan->arena, const char *, (size_t)bind->n_barriers + n_more);
  if (plan->decided.binding.dims == NULL || plan->decided.binding.pins == NULL ||
      plan->decided.binding.barriers == NULL)
    return opi_fail_nomem(err, 0, "a plan");
  for (uint32_t i = 0; i < bind->n_dims; ++i) {
    const opi_dim_binding *dim = &bind->dims[i];
    plan->decided.binding.dims[i] =
        (opi_dim_binding){opi_arena_strdup(&plan->arena, dim->name), dim->value};
    if (plan->decided.binding.dims[i].name == NULL)
      return opi_fail_nomem(err, 0, "a plan");
  }
  for (uint32_t i = 0; i < bind->n_pins; ++i)
    OPI_TRY(take_pin(plan, &bind->pins[i], &plan->decided.binding.pins[i], err));
  for (uint32_t i = 0; i < bind->n_barriers; ++i) {
    plan->decided.binding.barriers[i] = opi_arena_strdup(&plan->arena, bind->barriers[i]);
    if (plan->decided.binding.barriers[i] == NULL)
      return opi_fail_nomem(err, 0, "a plan");
  }
  plan->decided.binding.n_dims = bind->n_dims;
  plan->decided.binding.n_pins = bind->n_pins;
  plan->decided.binding.n_barriers = bind->n_barriers;
  plan->decided.binding.bind_flags = bind->flags & ~(uint32_t)OPI_BIND_DEFAULTS;
  plan->decided.binding.dropout = bind->dropout;
  plan->decided.binding.dropout_ratio = bind->dropout_ratio;
  return OPIPE_OK;
}

/* One-element initializers that are trained must not be folded away: the plan's list, and names
 * that are asked for. */
static opipe_status keep_named(const opi_decision *plan, opi_arena *scratch,
                               opi_bind_options *options, opipe_error *err) {
  const char **keep = OPI_ARENA_ARRAY(scratch, const char *,
                                      (size_t)plan->train->n_globs + plan->train->choice.n_trained);
  if (keep == NULL)
    return opi_fail_nomem(err, plan->train->n_globs * sizeof(*keep), "a binding");
  options->keep = keep;
  options->n_keep = 0;
  for (uint32_t i = 0; i < plan->train->n_globs; ++i) {
    const opi_train_glob *glob = &plan->train->globs[i];
    if (glob->trainable && strpbrk(glob->pattern, "*?") == NULL)
      keep[options->n_keep++] = glob->pattern;
  }
  for (uint32_t i = 0; i < plan->train->choice.n_trained; ++i)
    keep[options->n_keep++] = plan->train->choice.trained[i];
  return OPIPE_OK;
}

/* Devices with host memory append to caches and attend to lengths (abi/guide/operators.md); for
 * plans with others, caches are gathered and keys are masked. */
static uint32_t flags_of(const opi_decision *plan) {
  bool append = true;
  for (uint32_t r = 0; r < plan->n_ranks && plan->devices != NULL; ++r)
    append = append && (plan->devices[r].flags & OPIPE_DEVICE_HOST_MEMORY) != 0;
  return plan->binding.bind_flags | (append ? 0 : OPI_BIND_NO_APPEND);
}

/* The options for the plan's micro-batch of `rows` rows. */
static opipe_status bind_options(const opi_decision *plan, const opi_bind_options *base,
                                 int64_t rows, opi_arena *scratch, opi_bind_options *out_options,
                                 opipe_error *err) {
  opi_bind_options options = *base;
  options.shapes = NULL;
  options.n_shapes = 0;
  options.dims = plan->binding.dims;
  options.n_dims = plan->binding.n_dims;
  options.pins = plan->binding.pins;
  options.n_pins = plan->binding.n_pins;
  options.barriers = plan->binding.barriers;
  options.n_barriers = plan->binding.n_barriers;
  options.flags = flags_of(plan);
  options.dropout = plan->binding.dropout;
  options.dropout_ratio = plan->binding.dropout_ratio;
  if (opi_plan_trains(plan))
    OPI_TRY(keep_named(plan, scratch, &options, err));
  if (rows > 0 && plan->binding.batch_dim != NULL) {
    options.dims =
        opi_batch_bind(plan->binding.dims, &options.n_dims, plan->binding.batch_dim, rows, scratch);
    if (options.dims == NULL)
      return opi_fail_nomem(err, plan->binding.n_dims * sizeof(*options.dims), "a binding");
  }
  *out_options = options;
  return OPIPE_OK;
}

opipe_status opi_plan_bind_by(opi_bind_fn bind, const opi_decision *plan, const opi_model *model,
                              const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                              opipe_error *err) {
  opi_arena scratch;
  opi_bind_options options;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = bind_options(plan, base, rows, &scratch, &options, err);
  if (status == OPIPE_OK)
    status = (bind == NULL ? opi_bind : bind)(model, &options, out_bound, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_plan_bind(const opi_decision *plan, const opi_model *model,
                           const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                           opipe_error *err) {
  return opi_plan_bind_by(NULL, plan, model, base, rows, out_bound, err);
}

opipe_status opi_plan_bound(const opi_plan_env *env, const opi_decision *plan, int64_t rows,
                            const opi_bound **out_bound, opi_bound **out_own, opipe_error *err) {
  opi_arena scratch;
  opi_bind_options options;
  *out_own = NULL;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = bind_options(plan, env->bind, rows, &scratch, &options, err);
  const bool at_hand =
      status == OPIPE_OK && env->bound != NULL && opi_bind_same(&options, env->bind);
  if (at_hand)
    status = opi_model_check_files(env->model, err);
  else if (status == OPIPE_OK)
    status = opi_bind(env->model, &options, out_own, err);
  *out_bound = at_hand ? env->bound : *out_own;
  opi_arena_release(&scratch);
  return status;
}
