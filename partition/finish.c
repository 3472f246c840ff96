/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan is bound with, and the devices it is finished on (partition/train/finish.c). */
#include <string.h>

#include "partition/cut/batch.h"
#include "partition/train/model.h"

typedef struct finish {
  const opi_plan_env *env;
  opi_plan *plan;
  opi_rank_device *devices;  /* [n_ranks]; NULL: the plan was read */
  opi_backend_ref *backends; /* [n_ranks] */
  opi_arena scratch;
  opipe_error *err;
} finish;

/* One-element initializers that are trained must not be folded away: those that the plan lists, or
 * that are asked for by name. */
static opipe_status keep_named(const opi_plan *plan, opi_arena *scratch, opi_bind_options *options,
                               opipe_error *err) {
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

/* What the plan's micro-batch of `rows` rows is bound with. */
static opipe_status bind_options(const opi_plan *plan, const opi_bind_options *base, int64_t rows,
                                 opi_arena *scratch, opi_bind_options *out_options,
                                 opipe_error *err) {
  opi_bind_options options = *base;
  options.shapes = NULL;
  options.n_shapes = 0;
  options.dims = plan->dims;
  options.n_dims = plan->n_dims;
  options.pins = plan->pins;
  options.n_pins = plan->n_pins;
  options.barriers = plan->barriers;
  options.n_barriers = plan->n_barriers;
  options.flags = plan->bind_flags;
  options.dropout = plan->dropout;
  options.dropout_ratio = plan->dropout_ratio;
  if (plan->train != NULL)
    OPI_TRY(keep_named(plan, scratch, &options, err));
  if (rows > 0 && plan->batch_dim != NULL) {
    options.dims = opi_batch_bind(plan->dims, &options.n_dims, plan->batch_dim, rows, scratch);
    if (options.dims == NULL)
      return opi_fail_nomem(err, plan->n_dims * sizeof(*options.dims), "a binding");
  }
  *out_options = options;
  return OPIPE_OK;
}

opipe_status opi_plan_bind_by(opi_bind_fn bind, const opi_plan *plan, const opi_model *model,
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

opipe_status opi_plan_bind(const opi_plan *plan, const opi_model *model,
                           const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                           opipe_error *err) {
  return opi_plan_bind_by(NULL, plan, model, base, rows, out_bound, err);
}

opipe_status opi_plan_bound(const opi_plan_env *env, const opi_plan *plan, int64_t rows,
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

static opipe_status open_device(finish *f, uint32_t r) {
  const opi_device_spec *spec = &f->plan->devices[r];
  f->devices[r].alignment = spec->alignment;
  if (f->plan->facts[r].described)
    return OPIPE_OK;
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = spec->index,
      .memory_bytes = spec->memory_bytes,
      .threads = spec->threads,
      .options = spec->options[0] == '\0' ? NULL : spec->options};
  OPI_TRY(f->env->plugins->backend(f->env->plugins->ctx, spec->kind, &f->backends[r], f->err));
  f->devices[r].backend = &f->backends[r];
  return OPI_ASK("backend", &f->backends[r], device_open, f->err, f->backends[r].self, &params,
                 &f->devices[r].device);
}

/* Those that were not only described. A plan that was read has its memory, and needs none. */
static opipe_status open_devices(finish *f) {
  const uint32_t n = f->plan->n_ranks;
  if (f->plan->facts == NULL)
    return OPIPE_OK;
  f->devices = OPI_ARENA_ARRAY(&f->scratch, opi_rank_device, n);
  f->backends = OPI_ARENA_ARRAY(&f->scratch, opi_backend_ref, n);
  if (f->devices == NULL || f->backends == NULL)
    return opi_fail_nomem(f->err, n * sizeof(*f->devices), "devices");
  for (uint32_t r = 0; r < n; ++r)
    OPI_TRY(open_device(f, r));
  return OPIPE_OK;
}

/* The graph must carry the batch axis when a request is split. */
static opipe_status check_batch(finish *f, const opi_bound *bound) {
  if (!opi_plan_cuts_rows(f->plan) || f->plan->batch != NULL)
    return OPIPE_OK;
  const opipe_status status = opi_batch_prove(f->plan, f->env->model, f->env->bind, bound, f->err);
  if (status < 0) {
    (void)opi_error_prefix(f->err, "%u micro-batches along '%.80s': ", f->plan->n_microbatches,
                           f->plan->batch_dim == NULL ? "" : f->plan->batch_dim);
  }
  return status;
}

static opipe_status finish_all(finish *f, const opi_bound *bound) {
  OPI_TRY(check_batch(f, bound));
  OPI_TRY(open_devices(f));
  return opi_train_finish(f->env, f->plan, bound, f->devices, f->err);
}

static bool all_asked(const opi_plan *plan) {
  for (uint32_t r = 0; plan->facts != NULL && r < plan->n_ranks; ++r) {
    if (plan->facts[r].described)
      return false;
  }
  return plan->facts != NULL;
}

opipe_status opi_plan_finish(const opi_plan_env *env, opi_plan *plan, const opi_bound *bound,
                             opipe_error *err) {
  finish f = {.env = env, .plan = plan, .err = err};
  opi_arena_init(&f.scratch, plan->allocator, 0);
  const opipe_status status = finish_all(&f, bound);
  plan->counted = status == OPIPE_OK && all_asked(plan);
  for (uint32_t r = 0; f.devices != NULL && f.backends != NULL && r < plan->n_ranks; ++r) {
    if (f.devices[r].device != NULL)
      f.backends[r].table->device_close(f.devices[r].device);
  }
  opi_arena_release(&f.scratch);
  return status;
}
