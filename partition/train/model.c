/* SPDX-License-Identifier: Apache-2.0 */
/* Binds, differentiates and cuts the row classes of a training plan. */
#include "partition/train/model.h"

#include <string.h>

#include "partition/cut/batch.h"
#include "partition/cut/cutting.h"

/* How the batch runs through the bound graph; *out_carry NULL when it is not split and does not run
 * through. */
static opipe_status carry_of(const opi_plan *plan, const opi_model *model, const opi_bound *bound,
                             opi_arena *scratch, opi_carry **out_carry, opipe_error *err) {
  const opi_graph *g = bound->graph, *file = model->graph;
  *out_carry = NULL;
  if (plan->batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *in = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_inputs);
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  if (in == NULL || all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    in[i] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
    for (uint32_t k = 0; k < file->n_inputs; ++k) {
      if (strcmp(file->values[file->inputs[k]].name, g->values[g->inputs[i]].name) == 0)
        in[i].axis = opi_batch_axis(model, plan->batch_dim, k);
    }
  }
  const opipe_status status = opi_carry_axis(g, in, all, plan->n_microbatches > 1 ? err : NULL);
  if (status == OPIPE_OK)
    *out_carry = all;
  return plan->n_microbatches > 1 ? status : OPIPE_OK;
}

opipe_status opi_train_gradient(const opi_plan *plan, const opi_model *model,
                                const opi_bound *bound, const uint32_t *stage_of_node,
                                const opi_bind_options *base, opi_training **out_training,
                                opipe_error *err) {
  const opi_train_spec *spec = plan->train;
  opi_arena scratch;
  opi_carry *carry = NULL;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = carry_of(plan, model, bound, &scratch, &carry, err);
  const bool plain = spec->loss.kind == OPI_LOSS_OUTPUT && spec->loss.output == NULL;
  const opi_gradient_options options = {
      .loss = plain ? NULL : &spec->loss,
      .globs = spec->globs,
      .n_globs = spec->n_globs,
      .stage_of_node = stage_of_node,
      .carry = carry,
      .recompute = spec->recompute,
      .compute = spec->compute == 0 ? (uint32_t)OPIPE_FLOAT : spec->compute,
      .evaluator = base->evaluator,
      .allocator = plan->allocator,
      .logger = base->logger};
  if (status == OPIPE_OK)
    status = opi_gradient_build(bound, &options, out_training, err);
  opi_arena_release(&scratch);
  return status;
}

static opipe_status build_class(const opi_plan *plan, const opi_model *file,
                                const opi_bind_options *base, uint32_t c, int64_t rows,
                                const uint32_t *used, opi_train_model *model, opipe_error *err) {
  OPI_TRY(opi_plan_bind(plan, file, base, rows, &model->bounds[c], err));
  const opi_graph *g = model->bounds[c]->graph;
  uint32_t *stages = opi_alloc_zero(plan->allocator, (size_t)g->n_nodes + 1, sizeof *stages);
  if (stages == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof *stages, "a cut");
  opipe_status status = opi_plan_assign(plan, g, plan->allocator, stages, err);
  if (status == OPIPE_OK)
    status =
        opi_train_gradient(plan, file, model->bounds[c], stages, base, &model->trainings[c], err);
  if (status == OPIPE_OK)
    status =
        opi_train_cut_build(model->trainings[c], used, plan->n_stages,
                            c == 0 ? NULL : model->cuts[0], plan->allocator, &model->cuts[c], err);
  opi_free(plan->allocator, stages, ((size_t)g->n_nodes + 1) * sizeof *stages);
  model->n_classes = c + 1;
  return status;
}

static opipe_status build_all(const opi_plan *plan, const opi_model *file,
                              const opi_bind_options *base, uint32_t *used, opi_train_model *model,
                              opipe_error *err) {
  const uint32_t m = plan->n_microbatches;
  const bool split = plan->batch_dim != NULL;
  if (plan->actions != NULL) {
    opi_train_used(plan, used);
  } else {
    for (uint32_t s = 0; s < plan->n_stages; ++s)
      used[s] = 1u << OPI_PROGRAM_F | 1u << OPI_PROGRAM_B;
  }
  OPI_TRY(build_class(plan, file, base, 0, split ? opi_microbatch_rows(plan->batch_rows, m, 0) : 0,
                      used, model, err));
  if (m == 1 || !split || plan->batch_rows % m == 0)
    return OPIPE_OK;
  return build_class(plan, file, base, 1, plan->batch_rows / m, used, model, err);
}

opipe_status opi_train_model_build(const opi_plan *plan, const opi_model *file,
                                   const opi_bind_options *base, opi_train_model **out_model,
                                   opipe_error *err) {
  opi_train_model *model = opi_alloc_zero(plan->allocator, 1, sizeof *model);
  uint32_t *used = opi_alloc_zero(plan->allocator, plan->n_stages, sizeof *used);
  opipe_status status = OPIPE_OK;
  if (model == NULL || used == NULL) {
    status = opi_fail_nomem(err, sizeof *model, "a training model");
  } else {
    model->allocator = plan->allocator;
    status = build_all(plan, file, base, used, model, err);
  }
  opi_free(plan->allocator, used, plan->n_stages * sizeof *used);
  if (status < 0) {
    opi_train_model_free(model);
    return status;
  }
  *out_model = model;
  return OPIPE_OK;
}

opipe_status opi_train_stage_params(const opi_train_model *model, uint32_t stage, opi_arena *arena,
                                    uint32_t **out_params, uint32_t *out_n, opipe_error *err) {
  const uint32_t n = model->cuts[0]->n_params;
  bool *reads = OPI_ARENA_ARRAY(arena, bool, n);
  uint32_t *list = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (reads == NULL || list == NULL)
    return opi_fail_nomem(err, n * sizeof *list, "parameters");
  for (uint32_t c = 0; c < model->n_classes; ++c) {
    for (uint32_t p = 0; p < OPI_PROGRAMS; ++p) {
      const opi_train_program *program = opi_train_program_of(model->cuts[c], stage, p);
      for (uint32_t i = 0; i < program->n_params; ++i)
        reads[program->params[i]] = true;
    }
  }
  *out_n = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (reads[i])
      list[(*out_n)++] = i;
  }
  *out_params = list;
  return OPIPE_OK;
}

void opi_train_model_free(opi_train_model *model) {
  if (model == NULL)
    return;
  for (uint32_t c = OPI_TRAIN_CLASSES; c-- > 0;) {
    opi_train_cut_free(model->cuts[c]);
    opi_training_free(model->trainings[c]);
    opi_bound_free(model->bounds[c]);
  }
  opi_free(model->allocator, model, sizeof *model);
}
