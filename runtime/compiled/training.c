/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of training's mini-batches: whole samples in every micro-batch, and weights, which all
 * shapes of a session share and the plan's own opens.
 */
#include "runtime/compiled/build.h"

/* ---- the plan ---- */

static opipe_status fit(opi_compiled *t, int64_t units, const uint32_t *slices, opipe_error *err) {
  const opi_shape *shape = t->shape;
  const opi_decision *given = &t->given;
  (void)slices; /* a mini-batch has some of every slice */
  if (given->binding.batch_dim == NULL ||
      (shape->rows % units == 0 && given->binding.batch_rows >= given->n_microbatches))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "a mini-batch of %lld rows cannot be cut into %u micro-batches of whole samples",
                  (long long)shape->rows, given->n_microbatches);
}

/* How the logits carry the batch; the labels carry it alike. */
static opipe_status carry_logits(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_bound *bound = t->model->variants[t->model->base].bound;
  const bool split = opi_plan_cuts_rows(&t->given);
  if (s->n_outputs < 2 || s->plan->decided.binding.batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *all = OPI_ARENA_ARRAY(&t->arena, opi_carry, bound->graph->n_values);
  if (all == NULL)
    return opi_fail_nomem(err, bound->graph->n_values * sizeof *all, "the batch axis");
  const opipe_status status = opi_batch_follow(t, all, split ? err : NULL);
  if (status < 0)
    return split ? status : OPIPE_OK;
  const uint32_t v = opi_bound_value(bound, s->output_names[1]);
  if (v != OPIPE_NONE)
    t->output_carry[1] = all[v];
  return OPIPE_OK;
}

/* With slices, logits are [rows, tokens, ...]. */
static opipe_status find_token_axis(opi_compiled *t, opipe_error *err) {
  if (t->model->n_slices == 1)
    return OPIPE_OK;
  t->token_axis = t->model->variants[t->model->base].slices[0].outputs[0].carry.axis;
  const bool batch_first = t->output_carry[1].axis <= 0 && t->output_carry[1].inner == 1;
  if (t->token_axis == 1 && batch_first && t->setup->n_outputs == 2)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "slices of tokens: output '%s' must be [batch, tokens, ...]",
                  t->setup->output_names[t->setup->n_outputs - 1]);
}

static opipe_status carry(opi_compiled *t, opipe_error *err) {
  OPI_TRY(carry_logits(t, err));
  return find_token_axis(t, err);
}

/* ---- weights ---- */

/* i: whole * members + member. */
static opipe_status describe_instance(opi_compiled *t, uint32_t i, opi_weight_instance *out,
                                      opipe_error *err) {
  const opi_setup *s = t->setup;
  const uint32_t width = t->model->n_members, whole = i / width, member = i % width;
  const uint32_t stage = whole / s->plan->decided.n_replicas;
  const uint32_t r = s->plan->decided.instance_rank[whole] == OPIPE_NONE
                         ? OPIPE_NONE
                         : s->plan->decided.instance_rank[whole] + member;
  const uint32_t n_pieces = t->model->n_pieces, each = t->n_classes * OPI_PROGRAMS;
  const uint32_t n = each * n_pieces, n_replicas = t->pieces->n_replicas;
  if (r == OPIPE_NONE)
    return OPIPE_OK;
  const bool elsewhere = !opi_rank_is_here(s, r);
  opipe_program **programs = OPI_ARENA_ARRAY(&t->arena, opipe_program *, n);
  uint32_t *params = NULL, n_params = 0;
  if (programs == NULL)
    return opi_fail_nomem(err, n * sizeof *programs, "weights");
  OPI_TRY(opi_member_params(t->model, stage, member, &t->arena, &params, &n_params, err));
  const uint32_t replica = n_replicas == 1 ? 0 : whole % s->plan->decided.n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t piece = (stage * n_pieces + k / each) * n_replicas + replica;
    if (opi_whole_instance(t, piece) == whole && opi_weights_instance_at(t, piece) == i)
      programs[k] = t->units[piece * each + k % each].program;
  }
  *out = (opi_weight_instance){.rank = r,
                               .stage = stage,
                               .replica = whole % s->plan->decided.n_replicas,
                               .member = member,
                               .sources = s->ranks[r].sources,
                               .n_programs = elsewhere ? 0 : n,
                               .elsewhere = elsewhere,
                               .alignment = s->plan->decided.devices[r].alignment,
                               .backend = &s->env.backends[r],
                               .device = s->ranks[r].device,
                               .device_index = s->plan->decided.devices[r].index,
                               .queue = s->ranks[r].queue,
                               .endpoint = s->ranks[r].endpoint,
                               .programs = programs,
                               .params = params,
                               .n_params = n_params};
  return OPIPE_OK;
}

/* Warns of globs without a match: the list may serve several models, or a name is misspelt. */
static void tell_unused_globs(const opi_setup *s, const opi_cut *cut) {
  const opi_optimizer *optimizer = &s->plan->decided.train->optimizer;
  for (uint32_t g = 0; g < optimizer->n_no_decay && !s->reference; ++g) {
    uint32_t n_trained = 0;
    bool used = false;
    for (uint32_t i = 0; i < cut->n_params && !used; ++i) {
      n_trained += cut->trained[i];
      used = cut->trained[i] && opi_glob(optimizer->no_decay[g], cut->sources[i].name);
    }
    if (!used) {
      opi_log(s->env.logger, OPIPE_LOG_WARN, "no_decay '%s' matches none of %u trained parameters",
              optimizer->no_decay[g], n_trained);
    }
  }
}

static opipe_status open_weights(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[0];
  const uint32_t width = t->model->n_members;
  const uint32_t n = s->plan->decided.n_stages * s->plan->decided.n_replicas * width;
  opi_weight_instance *instances = OPI_ARENA_ARRAY(&t->arena, opi_weight_instance, n);
  if (instances == NULL)
    return opi_fail_nomem(err, n * sizeof *instances, "weights");
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(describe_instance(t, i, &instances[i], err));
  const opi_weights_options options = {
      .allocator = s->allocator,
      .optimizer = &s->plan->decided.train->optimizer,
      .instances = instances,
      .sources = cut->sources,
      .trained = cut->trained,
      .parts = cut->parts,
      .transport = s->reference ? (opi_transport_ref){.table = NULL} : s->env.transport,
      .budget = s->env.budget,
      .n_stages = s->plan->decided.n_stages,
      .n_replicas = s->plan->decided.n_replicas,
      .n_members = width,
      .n_ranks = s->plan->decided.n_ranks,
      .n_sources = cut->n_params,
      .n_versions = s->plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1,
      .keep_gradients = (s->flags & OPIPE_SESSION_KEEP_GRADIENTS) != 0,
      .hold = (s->flags & OPIPE_SESSION_HOLD) != 0,
      .share = opi_is_shared(s) ? s->shapes->above.share : NULL,
      .share_ctx = s->shapes->above.ctx};
  OPI_TRY(opi_weights_open(&options, &s->shapes->weights, err));
  tell_unused_globs(s, cut);
  return OPIPE_OK;
}

static opipe_status take(opi_compiled *t, opipe_error *err) {
  OPI_TRY(opi_shape_sources(t->shape, err));
  OPI_TRY(opi_compiled_memory(t, err));
  return t->shape->keep ? open_weights(t, err) : OPIPE_OK;
}

static opipe_status bind(const opi_compiled *t, const opi_program_unit *unit, uint32_t instance,
                         const opipe_region *regions, opipe_binding **sets, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_rank *rank = &s->ranks[t->pieces->instance_rank[instance]];
  const uint32_t stage = opi_whole_instance(t, instance) / s->plan->decided.n_replicas;
  const uint32_t i = opi_weights_instance_at(t, instance);
  const uint32_t n_sets = s->plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1;
  opipe_bind_params params = opi_unit_params(t, unit, rank, regions);
  params.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients);
  params.gradients = opi_weights_gradients(s->shapes->weights, i);
  for (uint32_t set = 0; set < n_sets; ++set) {
    params.params = opi_weights_params(s->shapes->weights, i, set);
    OPI_TRY(opi_rank_bind(rank, stage, &params, &sets[set], err));
  }
  return OPIPE_OK;
}

/* ---- results ---- */

static uint32_t makes(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c) {
    if (cut->cells[c].output == output)
      return c;
  }
  return OPIPE_NONE;
}

/* The loss is told to all sessions. */
static void tell_rest(opi_compiled *t) {
  t->made[0] = OPI_MADE_ALL;
}

const opi_shape_kind opi_step_shapes = {.what = "mini-batch",
                                        .compile_flags = OPIPE_COMPILE_OWNED,
                                        .fit = fit,
                                        .complete = opi_train_open_counters,
                                        .carry = carry,
                                        .take = take,
                                        .bind = bind,
                                        .makes = makes,
                                        .tell_rest = tell_rest};
