/* SPDX-License-Identifier: Apache-2.0 */
/* Binds, differentiates and cuts the row classes of a training plan. */
#include "partition/train/model.h"

#include <string.h>

#include "partition/cut/batch.h"
#include "partition/cut/cutting.h"

uint32_t opi_train_batch_nodes(const opi_plan *plan, const opi_graph *g) {
  if (plan->train == NULL || plan->train->loss.kind != OPI_LOSS_OUTPUT)
    return g->n_nodes;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t v = opi_node_out(&g->nodes[n], 0);
    if (v != OPIPE_NONE && g->values[v].rank == 0 && opi_dtype_is_float(g->values[v].dtype))
      return n;
  }
  return g->n_nodes;
}

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
    bool known = false;
    in[i] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
    for (uint32_t k = 0; k < file->n_inputs; ++k) {
      if (strcmp(file->values[file->inputs[k]].name, g->values[g->inputs[i]].name) != 0)
        continue;
      known = true;
      in[i].axis = opi_batch_axis(model, plan->batch_dim, k);
    }
    if (!known) /* keys and values of earlier tokens: [batch, heads, tokens, size] */
      in[i].axis = 0;
  }
  /* A loss that the graph makes ends the batch: it is a sum over micro-batches by the gradient's
   * rules. */
  opi_graph part = *g;
  part.n_nodes = opi_train_batch_nodes(plan, g);
  for (uint32_t v = 0; v < g->n_values; ++v)
    all[v] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  const opipe_status status = opi_carry_axis(&part, in, all, plan->n_microbatches > 1 ? err : NULL);
  if (status == OPIPE_OK)
    *out_carry = all;
  return plan->n_microbatches > 1 ? status : OPIPE_OK;
}

/* How tokens run through the inputs of Dropout; *out_carry NULL where no axis is known. */
static opipe_status token_carry_of(const opi_token_axes *axes, const opi_graph *g,
                                   opi_arena *scratch, opi_carry **out_carry, opipe_error *err) {
  *out_carry = NULL;
  if (axes == NULL || axes->n == 0)
    return OPIPE_OK;
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  if (all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the token axis");
  for (uint32_t v = 0; v < g->n_values; ++v)
    all[v] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; strcmp(g->nodes[n].op, "Dropout") == 0 && i < axes->n; ++i) {
      if (strcmp(axes->list[i].node, g->nodes[n].name) == 0)
        all[g->nodes[n].in[0]].axis = axes->list[i].axis;
    }
  }
  *out_carry = all;
  return OPIPE_OK;
}

opipe_status opi_train_gradient(const opi_plan *plan, const opi_model *model,
                                const opi_bound *bound, const uint32_t *stage_of_node,
                                const opi_token_slice *slice, const opi_token_axes *axes,
                                const opi_bind_options *base, opi_training **out_training,
                                opipe_error *err) {
  const opi_train_spec *spec = plan->train;
  opi_arena scratch;
  opi_carry *carry = NULL, *token_carry = NULL;
  opi_arena_init(&scratch, plan->allocator, 0);
  opipe_status status = carry_of(plan, model, bound, &scratch, &carry, err);
  if (status == OPIPE_OK)
    status = token_carry_of(axes, bound->graph, &scratch, &token_carry, err);
  opi_loss loss = spec->loss;
  if (slice != NULL) /* the states are outputs too */
    loss.output = bound->graph->values[slice->output].name;
  const bool plain = loss.kind == OPI_LOSS_OUTPUT && loss.output == NULL;
  const opi_gradient_options options = {
      .loss = plain ? NULL : &loss,
      .globs = spec->globs,
      .n_globs = spec->n_globs,
      .stage_of_node = stage_of_node,
      .carry = carry,
      .token_carry = token_carry,
      .slice = slice,
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

static opipe_status build_slice(const opi_plan *plan, const opi_model *file,
                                const opi_bind_options *base, uint32_t c, uint32_t k,
                                const uint32_t *used, opi_train_model *model, opipe_error *err) {
  opi_train_slice *slice = &model->slices[c][k];
  const opi_bound *bound = slice->tokens == NULL ? model->bounds[c] : slice->tokens->bound;
  const opi_graph *g = bound->graph;
  uint32_t *stages = opi_alloc_zero(plan->allocator, (size_t)g->n_nodes + 1, sizeof *stages);
  if (stages == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof *stages, "a cut");
  opipe_status status = opi_plan_assign(plan, g, plan->allocator, stages, err);
  if (status == OPIPE_OK)
    status = opi_train_gradient(plan, file, bound, stages, slice->tokens, &model->token_axes, base,
                                &slice->training, err);
  if (status == OPIPE_OK)
    status = opi_train_cut_build(
        slice->training, used, plan->n_stages, c + k == 0 ? NULL : model->slices[0][0].cut,
        c == 0 ? NULL : model->slices[0][k].cut, plan->allocator, &slice->cut, err);
  opi_free(plan->allocator, stages, ((size_t)g->n_nodes + 1) * sizeof *stages);
  if (status < 0 && slice->tokens != NULL)
    (void)opi_error_prefix(err, "tokens %lld to %lld: ", (long long)slice->first,
                           (long long)(slice->first + slice->length - 1));
  return status;
}

static opipe_status build_class(const opi_plan *plan, const opi_model *file,
                                const opi_bind_options *base, uint32_t c, int64_t rows,
                                const uint32_t *used, opi_train_model *model, opipe_error *err) {
  model->n_classes = c + 1;
  model->slices[c] = OPI_ARENA_ARRAY(&model->arena, opi_train_slice, model->n_slices);
  if (model->slices[c] == NULL)
    return opi_fail_nomem(err, model->n_slices * sizeof(opi_train_slice), "token slices");
  OPI_TRY(opi_plan_bind(plan, file, base, rows, &model->bounds[c], err));
  if (c == 0)
    OPI_TRY(opi_train_token_axes(plan, file, base, rows, model->bounds[c], model, err));
  if (model->n_slices > 1)
    OPI_TRY(opi_train_slices(plan, file, base, c, rows, model, err));
  for (uint32_t k = 0; k < model->n_slices; ++k)
    OPI_TRY(build_slice(plan, file, base, c, k, used, model, err));
  model->trainings[c] = model->slices[c][0].training;
  model->cuts[c] = model->slices[c][0].cut;
  if (model->n_slices == 1)
    return OPIPE_OK;
  opi_train_cut **parts = OPI_ARENA_ARRAY(&model->arena, opi_train_cut *, model->n_slices);
  if (parts == NULL)
    return opi_fail_nomem(err, model->n_slices * sizeof *parts, "token slices");
  for (uint32_t k = 0; k < model->n_slices; ++k)
    parts[k] = model->slices[c][k].cut;
  model->cuts[c] = NULL;
  return opi_train_cut_merge(parts, model->n_slices, plan->allocator, &model->cuts[c], err);
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
    model->n_slices = plan->n_slices == 0 ? 1 : plan->n_slices;
    opi_arena_init(&model->arena, plan->allocator, 0);
    status = opi_train_view(plan, model, err);
  }
  if (status == OPIPE_OK) {
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
    for (uint32_t p = 0; p < OPI_PROGRAMS * model->n_slices; ++p) {
      const opi_train_program *program = opi_train_program_of(
          model->cuts[c], stage * model->n_slices + p / OPI_PROGRAMS, p % OPI_PROGRAMS);
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
    if (model->n_slices > 1)
      opi_train_cut_free(model->cuts[c]);
    for (uint32_t k = model->slices[c] == NULL ? 0 : model->n_slices; k-- > 0;) {
      opi_train_cut_free(model->slices[c][k].cut);
      opi_training_free(model->slices[c][k].training);
      opi_token_slice_free(model->slices[c][k].tokens);
    }
    opi_bound_free(model->bounds[c]);
  }
  opi_arena_release(&model->arena);
  opi_free(model->allocator, model, sizeof *model);
}
