/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the weights of a training session, which all shapes share, with the plan's own shape. */
#include "runtime/compiled/build.h"

static opipe_status describe_instance(opi_compiled *t, uint32_t i, opi_weight_instance *out,
                                      opipe_error *err) {
  const opi_setup *s = t->setup;
  const uint32_t stage = i / s->plan->decided.n_replicas, r = s->plan->decided.instance_rank[i];
  const uint32_t n_pieces = t->model->n_pieces, each = t->n_classes * OPI_PROGRAMS;
  const uint32_t n = each * n_pieces, n_replicas = t->pieces->n_replicas;
  if (r == OPIPE_NONE)
    return OPIPE_OK;
  const bool elsewhere = !opi_rank_is_here(s, r);
  opipe_program **programs = OPI_ARENA_ARRAY(&t->arena, opipe_program *, n);
  uint32_t *params = NULL, n_params = 0;
  if (programs == NULL)
    return opi_fail_nomem(err, n * sizeof *programs, "weights");
  OPI_TRY(opi_stage_params(t->model, stage, &t->arena, &params, &n_params, err));
  const uint32_t replica = n_replicas == 1 ? 0 : i % s->plan->decided.n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t piece = (stage * n_pieces + k / each) * n_replicas + replica;
    if (opi_whole_instance(t, piece) == i)
      programs[k] = t->units[piece * each + k % each].program;
  }
  *out = (opi_weight_instance){.rank = r,
                               .stage = stage,
                               .replica = i % s->plan->decided.n_replicas,
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

/* A glob that matches nothing may be one of a list for all models; or it is misspelt. */
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

opipe_status opi_train_open_weights(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[0];
  const uint32_t n = s->plan->decided.n_stages * s->plan->decided.n_replicas;
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
      .transport = s->reference ? (opi_transport_ref){.table = NULL} : s->env.transport,
      .budget = s->env.budget,
      .n_stages = s->plan->decided.n_stages,
      .n_replicas = s->plan->decided.n_replicas,
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
