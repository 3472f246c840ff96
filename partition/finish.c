/* SPDX-License-Identifier: Apache-2.0 */
/* From "which node in which stage" to a whole plan: schedule, proof, exact memory against the caps,
 * simulated times. */
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/cut/assign.h"
#include "partition/cut/batch.h"
#include "partition/make.h"
#include "partition/memory/predict.h"
#include "partition/program/records.h"
#include "partition/schedule/compute_order.h"
#include "partition/simulate/replay.h"
#include "partition/train/model.h"

enum { CLASSES = 2, STEPS_REPLAYED = 1 << 21 };

typedef struct finish {
  const opi_plan_env *env;
  opi_plan *plan;
  opi_bound *bounds[CLASSES]; /* of the smaller class only [1] is owned */
  opi_cut *cuts[CLASSES];
  uint32_t n_classes;
  opi_rank_device *devices;  /* [n_ranks]; NULL: the plan was read */
  opi_backend_ref *backends; /* [n_ranks] */
  opi_program_list *list;
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

opipe_status opi_plan_bind(const opi_plan *plan, const opi_model *model,
                           const opi_bind_options *base, int64_t rows, opi_bound **out_bound,
                           opipe_error *err) {
  opi_arena scratch;
  opi_bind_options options;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = bind_options(plan, base, rows, &scratch, &options, err);
  if (status == OPIPE_OK)
    status = opi_bind(model, &options, out_bound, err);
  opi_arena_release(&scratch);
  return status;
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

static opipe_status cut_classes(finish *f, const opi_bound *bound) {
  opi_plan *plan = f->plan;
  const int64_t rows = plan->batch_rows;
  opi_cut_source source = {
      .graph = bound->graph, .stage = plan->stage_of_node, .n_stages = plan->n_stages};
  OPI_TRY(opi_cut_build(&source, plan->allocator, &f->cuts[0], f->err));
  f->n_classes = 1;
  if (plan->n_microbatches == 1 || rows % plan->n_microbatches == 0)
    return OPIPE_OK;
  OPI_TRY(opi_plan_bind(plan, f->env->model, f->env->bind, rows / plan->n_microbatches,
                        &f->bounds[1], f->err));
  const opi_graph *g = f->bounds[1]->graph;
  uint32_t *stages = OPI_ARENA_ARRAY(&f->scratch, uint32_t, g->n_nodes);
  if (stages == NULL)
    return opi_fail_nomem(f->err, g->n_nodes * sizeof(*stages), "a cut");
  OPI_TRY(opi_plan_assign(plan, g, plan->allocator, stages, f->err));
  source.graph = g;
  source.stage = stages;
  source.master = f->cuts[0];
  OPI_TRY(opi_cut_build(&source, plan->allocator, &f->cuts[1], f->err));
  f->n_classes = 2;
  return OPIPE_OK;
}

/* Enough for a steady state, of very long lists as many as take about a second. */
static uint32_t requests_to_replay(const opi_plan *plan, const opi_program_list *list) {
  const uint32_t wanted = 2 * plan->n_stages + 4;
  const uint32_t most = list->n_steps == 0 ? wanted : STEPS_REPLAYED / list->n_steps;
  return wanted <= most ? wanted : most < 4 ? 4 : most;
}

static opipe_status order_and_prove(finish *f) {
  opi_plan *plan = f->plan;
  if (plan->actions == NULL) {
    opi_schedule_ref schedule;
    OPI_TRY(f->env->plugins->schedule(f->env->plugins->ctx, plan->schedule, &schedule, f->err));
    OPI_TRY(opi_schedule_order(&schedule, plan, f->err));
  }
  OPI_TRY(opi_records_prove(plan, f->cuts[0], f->err));
  for (uint32_t c = 0; c < f->n_classes; ++c) {
    opi_program_list_free(f->list);
    f->list = NULL;
    OPI_TRY(opi_lower(plan, f->cuts[c], plan->allocator, &f->list, f->err));
    OPI_TRY(opi_prove(plan, f->cuts[c], f->list, plan->allocator, f->err));
  }
  opi_replay_result times = {0};
  const uint32_t n_requests = requests_to_replay(plan, f->list);
  OPI_TRY(opi_replay(plan, f->cuts[f->n_classes - 1], f->list, plan->stage_ns, n_requests,
                     plan->allocator, &times, f->err));
  plan->request_ns = times.request_ns;
  plan->interval_ns = times.interval_ns;
  return OPIPE_OK;
}

static opipe_status predict(finish *f) {
  opi_plan *plan = f->plan;
  const bool direct =
      (plan->link.flags & OPIPE_TRANSPORT_DIRECT) != 0 && opi_plan_shares_memory(plan);
  if (f->devices == NULL)
    return OPIPE_OK;
  plan->memory = OPI_ARENA_ARRAY(&plan->arena, opi_memory, plan->n_ranks);
  if (plan->memory == NULL)
    return opi_fail_nomem(f->err, plan->n_ranks * sizeof(opi_memory), "a prediction");
  return opi_predict(plan, (const opi_cut *const *)f->cuts, f->n_classes, f->devices, direct, 0,
                     plan->allocator, plan->memory, f->err);
}

static opipe_status finish_all(finish *f, const opi_bound *bound) {
  OPI_TRY(check_batch(f, bound));
  OPI_TRY(open_devices(f));
  if (f->plan->train != NULL)
    return opi_train_finish(f->env, f->plan, f->devices, f->err);
  OPI_TRY(cut_classes(f, bound));
  OPI_TRY(opi_plan_name_crossings(f->plan, f->cuts[0], f->err));
  OPI_TRY(order_and_prove(f));
  OPI_TRY(predict(f));
  return opi_plan_check_caps(f->plan, f->err);
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
  opi_program_list_free(f.list);
  for (uint32_t c = 0; c < CLASSES; ++c) {
    opi_cut_free(f.cuts[c]);
    opi_bound_free(f.bounds[c]);
  }
  opi_arena_release(&f.scratch);
  return status;
}
