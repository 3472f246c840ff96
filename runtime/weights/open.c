/* SPDX-License-Identifier: Apache-2.0 */
/* Makes what a training session holds: sets, gradients, moments, groups; gives it back in reverse
 * order. Sizes come from partition/memory/weights.h and are charged before anything is allocated.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/weights/optimizer.h"
#include "runtime/weights/state.h"

/* ---- what was asked for ---- */

static opipe_status copy_optimizer(opi_weights *w, const opi_optimizer *optimizer,
                                   opipe_error *err) {
  OPI_TRY(opi_optimizer_check(optimizer, err));
  w->optimizer = *optimizer;
  const char **globs = OPI_ARENA_ARRAY(&w->arena, const char *, optimizer->n_no_decay);
  if (globs == NULL)
    return opi_fail_nomem(err, optimizer->n_no_decay * sizeof *globs, "globs");
  for (uint32_t i = 0; i < optimizer->n_no_decay; ++i) {
    globs[i] = opi_arena_strdup(&w->arena, optimizer->no_decay[i]);
    if (globs[i] == NULL)
      return opi_fail_nomem(err, strlen(optimizer->no_decay[i]), "globs");
  }
  w->optimizer.no_decay = globs;
  w->n_moments = opi_optimizer_moments(optimizer);
  return OPIPE_OK;
}

static opipe_status make_places(opi_weights *w, opi_weight_query *query, opipe_error *err) {
  opi_weight_holder *holders = OPI_ARENA_ARRAY(&w->arena, opi_weight_holder, w->n_instances);
  if (holders == NULL)
    return opi_fail_nomem(err, w->n_instances * sizeof *holders, "stage instances");
  for (uint32_t i = 0; i < w->n_instances; ++i) {
    opi_instance *instance = &w->instances[i];
    const opi_weight_instance *env = &instance->env;
    opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
    const opi_backend_ref *b = env->elsewhere != 0 ? NULL : env->backend;
    info.alignment = env->alignment;
    if (b != NULL)
      OPI_TRY(opi_device_ask(b, env->device_index, &info, err));
    instance->alignment = info.alignment < sizeof(double) ? sizeof(double) : info.alignment;
    instance->synchronous = (info.flags & OPIPE_DEVICE_SYNCHRONOUS) != 0;
    holders[i] = (opi_weight_holder){.rank = env->rank,
                                     .stage = env->stage,
                                     .replica = env->replica,
                                     .alignment = instance->alignment,
                                     .n_programs = env->n_programs,
                                     .n_params = env->n_params,
                                     .backend = b,
                                     .programs = env->programs,
                                     .params = env->params};
  }
  *query = (opi_weight_query){.holders = holders,
                              .sources = w->sources,
                              .trained = w->trained,
                              .n_holders = w->n_instances,
                              .n_sources = w->n_sources,
                              .n_versions = w->n_versions,
                              .n_moments = w->n_moments};
  return OPIPE_OK;
}

/* Which slots are read, trained and tied. */
static opipe_status list_slots(opi_weights *w, const opi_weight_query *query, opipe_error *err) {
  w->used = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  w->ties = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  w->trained_index = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  if (w->used == NULL || w->ties == NULL || w->trained_index == NULL)
    return opi_fail_nomem(err, w->n_sources * sizeof *w->used, "parameters");
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    bool read = false;
    for (uint32_t i = 0; i < query->n_holders && !read; ++i)
      read = opi_weight_index(&query->holders[i], slot) != OPIPE_NONE;
    w->trained[slot] = w->trained[slot] && read;
    w->trained_index[slot] = w->n_trained;
    if (read)
      w->used[w->n_used++] = slot;
    if (w->trained[slot])
      ++w->n_trained;
    if (opi_weight_tied(query, slot))
      w->ties[w->n_ties++] = slot;
  }
  return OPIPE_OK;
}

/* ---- instances ---- */

static opipe_status charge(opi_weights *w, opi_instance *instance, opipe_error *err) {
  const opi_weight_bytes *b = &instance->bytes;
  const uint64_t n_bytes = b->params + b->versions + b->gradients + b->optimizer;
  char what[96];
  if (w->budget == NULL || n_bytes == 0)
    return OPIPE_OK;
  (void)snprintf(what, sizeof what, "rank %u, stage %u, replica %u: weights and optimizer state",
                 instance->env.rank, instance->env.stage, instance->env.replica);
  OPI_TRY(opi_budget_charge(w->budget, instance->env.backend->id, instance->env.device_index,
                            n_bytes, what, err));
  instance->charged_bytes = n_bytes;
  return OPIPE_OK;
}

static opipe_status make_sets(opi_weights *w, opi_instance *instance, opipe_error *err) {
  const opi_weight_instance *env = &instance->env;
  OPI_TRY(OPI_ASK("backend", instance->env.backend, params_create_owned, err, env->device,
                  w->sources, w->n_sources, &instance->sets[0]));
  for (uint32_t p = 0; p < env->n_programs; ++p) {
    if (env->programs[p] != NULL) {
      OPI_TRY(OPI_ASK("backend", instance->env.backend, params_prepare, err, instance->sets[0],
                      env->programs[p]));
    }
  }
  OPI_TRY(OPI_ASK("backend", instance->env.backend, params_commit, err, instance->sets[0]));
  OPI_TRY(OPI_ASK("backend", instance->env.backend, gradients_create, err, instance->sets[0],
                  &instance->gradients));
  for (uint32_t p = 0; p < env->n_programs; ++p) {
    if (env->programs[p] != NULL) {
      OPI_TRY(OPI_ASK("backend", instance->env.backend, params_prepare, err, instance->gradients,
                      env->programs[p]));
    }
  }
  return w->n_versions < 2 ? OPIPE_OK
                           : OPI_ASK("backend", instance->env.backend, params_clone, err,
                                     instance->sets[0], &instance->sets[1]);
}

static opipe_status find_masters(const opi_weights *w, const opi_instance *instance,
                                 opi_weight_param *p, opipe_error *err) {
  for (uint32_t v = 0; v < w->n_versions; ++v) {
    OPI_TRY(OPI_ASK("backend", instance->env.backend, params_master, err, instance->sets[v],
                    p->slot, &p->weight[v]));
  }
  OPI_TRY(OPI_ASK("backend", instance->env.backend, params_master, err, instance->gradients,
                  p->slot, &p->gradient));
  for (uint32_t v = 0; v < w->n_versions; ++v) {
    if (p->weight[v].n_bytes == p->n_bytes && p->gradient.n_bytes == p->n_bytes)
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "parameter '%s': backend '%s' has a master of %llu bytes and an accumulator of "
                    "%llu, its layout says %llu",
                    w->sources[p->slot].name, instance->env.backend->id,
                    (unsigned long long)p->weight[v].n_bytes,
                    (unsigned long long)p->gradient.n_bytes, (unsigned long long)p->n_bytes);
  }
  return OPIPE_OK;
}

/* Moments: one buffer, parameter after parameter. */
static opipe_status make_state(opi_weights *w, opi_instance *instance, opipe_error *err) {
  uint64_t n_bytes = 0;
  for (uint32_t k = 0; k < instance->n_trained; ++k)
    n_bytes += opi_align_up(instance->trained[k].n_bytes, instance->alignment) * w->n_moments;
  if (n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("backend", instance->env.backend, buffer_alloc, err, instance->env.device,
                  n_bytes, OPIPE_BUFFER_PARAMS, &instance->state));
  const opipe_region all = {.buffer = instance->state, .n_bytes = n_bytes};
  OPI_TRY(OPI_ASK("backend", instance->env.backend, fill_zero, err, instance->env.queue, &all));
  uint64_t at = 0;
  for (uint32_t k = 0; k < instance->n_trained; ++k) {
    opi_weight_param *p = &instance->trained[k];
    for (uint32_t m = 0; m < w->n_moments; ++m) {
      p->moments[m] =
          (opipe_region){.buffer = instance->state, .offset_bytes = at, .n_bytes = p->n_bytes};
      at += opi_align_up(p->n_bytes, instance->alignment);
    }
  }
  return OPIPE_OK;
}

/* Is this instance the first, by (stage, replica), that has the parameter? */
static bool is_owner(const opi_weights *w, const opi_instance *instance, uint32_t slot) {
  for (uint32_t i = 0; i < instance->index; ++i) {
    const opi_weight_instance *env = &w->instances[i].env;
    for (uint32_t k = 0; k < env->n_params; ++k) {
      if (env->params[k] == slot)
        return false;
    }
  }
  return true;
}

static bool is_tied(const opi_weights *w, uint32_t slot) {
  for (uint32_t t = 0; t < w->n_ties; ++t) {
    if (w->ties[t] == slot)
      return true;
  }
  return false;
}

static opipe_status list_trained(opi_weights *w, opi_instance *instance,
                                 const opi_weight_query *query, opi_weight_layout *const *layouts,
                                 opipe_error *err) {
  const opi_weight_instance *env = &instance->env;
  instance->trained = OPI_ARENA_ARRAY(&w->arena, opi_weight_param, env->n_params);
  if (instance->trained == NULL)
    return opi_fail_nomem(err, env->n_params * sizeof *instance->trained, "parameters");
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    const uint32_t k = opi_weight_index(&query->holders[instance->index], slot);
    if (k == OPIPE_NONE || !w->trained[slot])
      continue;
    opi_weight_param *p = &instance->trained[instance->n_trained++];
    *p = (opi_weight_param){.slot = slot,
                            .owner = is_owner(w, instance, slot),
                            .tied = is_tied(w, slot),
                            .no_decay = !opi_optimizer_decays(&w->optimizer, w->sources[slot].name),
                            .trained_index = w->trained_index[slot],
                            .n_bytes = layouts[instance->index][k].master_bytes};
    (void)opi_weight_dense_bytes(&w->sources[slot], &p->dense_bytes);
    p->dense = p->tied && !opi_weight_layouts_equal(query, layouts, slot);
    if (p->dense && p->dense_bytes > instance->dense_bytes)
      instance->dense_bytes = p->dense_bytes;
  }
  return OPIPE_OK;
}

static opipe_status make_instance(opi_weights *w, opi_instance *instance,
                                  const opi_weight_query *query, opi_weight_layout *const *layouts,
                                  opipe_error *err) {
  OPI_TRY(list_trained(w, instance, query, layouts, err));
  if (instance->env.elsewhere != 0)
    return OPIPE_OK;
  OPI_TRY(charge(w, instance, err));
  if (!instance->synchronous) {
    OPI_TRY(OPI_ASK("backend", instance->env.backend, event_create, err, instance->env.device,
                    &instance->ready));
    OPI_TRY(OPI_ASK("backend", instance->env.backend, event_create, err, instance->env.device,
                    &instance->done));
  }
  if (instance->env.n_params == 0)
    return OPIPE_OK;
  OPI_TRY(make_sets(w, instance, err));
  for (uint32_t k = 0; k < instance->n_trained; ++k)
    OPI_TRY(find_masters(w, instance, &instance->trained[k], err));
  OPI_TRY(make_state(w, instance, err));
  if (instance->dense_bytes != 0) {
    OPI_TRY(OPI_ASK("backend", instance->env.backend, buffer_alloc, err, instance->env.device,
                    instance->dense_bytes, OPIPE_BUFFER_PARAMS, &instance->dense));
  }
  return OPIPE_OK;
}

static void free_instance(opi_weights *w, opi_instance *instance) {
  if (instance->env.elsewhere != 0)
    return;
  const opipe_backend *b = opi_backend_of(instance);
  b->event_destroy(instance->done);
  b->event_destroy(instance->ready);
  b->buffer_free(instance->dense);
  b->buffer_free(instance->state);
  b->params_free(instance->gradients);
  b->params_free(instance->sets[1]);
  b->params_free(instance->sets[0]);
  if (w->budget != NULL) {
    opi_budget_release(w->budget, instance->env.backend->id, instance->env.device_index,
                       instance->charged_bytes);
  }
}

/* ---- groups ---- */

/* One sum per parameter of a stage that has several instances; they all have the same ones. */
static opipe_status open_stage(opi_weights *w, opi_instance **list, uint32_t n,
                               opi_member **members, opipe_error *err) {
  uint32_t own = 0;
  for (uint32_t m = 0; m < n; ++m)
    list[m]->has_replicas = n > 1;
  while (own < n && list[own]->env.elsewhere != 0)
    ++own;
  for (uint32_t k = 0; own < n && k < list[own]->n_trained && n > 1; ++k) {
    const opi_weight_param *p = &list[own]->trained[k];
    if (p->tied)
      continue;
    for (uint32_t m = 0; m < n; ++m)
      members[m] = &list[m]->trained[k].replicas;
    OPI_TRY(opi_group_open(w, list, n, p->n_bytes, members, err));
  }
  return OPIPE_OK;
}

static opipe_status open_replicas(opi_weights *w, opi_instance **list, opi_member **members,
                                  opipe_error *err) {
  uint32_t i = 0;
  while (i < w->n_instances) {
    uint32_t n = 0;
    for (; i < w->n_instances && (n == 0 || w->instances[i].env.stage == list[0]->env.stage); ++i)
      list[n++] = &w->instances[i];
    OPI_TRY(open_stage(w, list, n, members, err));
  }
  return OPIPE_OK;
}

static opipe_status open_tie(opi_weights *w, uint32_t slot, opi_instance **list,
                             opi_member **members, opipe_error *err) {
  uint32_t n = 0;
  uint64_t n_bytes = 0;
  for (uint32_t i = 0; i < w->n_instances; ++i) {
    for (uint32_t k = 0; k < w->instances[i].n_trained; ++k) {
      opi_weight_param *p = &w->instances[i].trained[k];
      if (p->slot != slot)
        continue;
      list[n] = &w->instances[i];
      members[n++] = &p->tie;
      n_bytes = p->dense ? p->dense_bytes : p->n_bytes;
    }
  }
  return opi_group_open(w, list, n, n_bytes, members, err);
}

/* The norms, over the ranks that hold anything. */
static opipe_status open_norms(opi_weights *w, opi_instance **list, opi_member **members,
                               opipe_error *err) {
  uint32_t n = 0;
  uint64_t n_bytes = 0;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    opi_weight_rank *rank = &w->ranks[r];
    if (rank->n_instances == 0)
      continue;
    list[n] = rank->instances[0];
    members[n++] = &rank->norms;
    if (n_bytes != 0 && n_bytes != rank->table_bytes) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "rank %u: its device aligns to %llu bytes, that of other ranks differently",
                      r, (unsigned long long)rank->stride);
    }
    n_bytes = rank->table_bytes;
  }
  return n < 2 || n_bytes == 0 ? OPIPE_OK : opi_group_open(w, list, n, n_bytes, members, err);
}

static opipe_status open_groups(opi_weights *w, opipe_error *err) {
  const uint32_t most = w->n_instances > w->n_ranks ? w->n_instances : w->n_ranks;
  opi_instance **list = OPI_ARENA_ARRAY(&w->arena, opi_instance *, most);
  opi_member **members = OPI_ARENA_ARRAY(&w->arena, opi_member *, most);
  if (list == NULL || members == NULL)
    return opi_fail_nomem(err, most * sizeof *list, "groups");
  OPI_TRY(open_replicas(w, list, members, err));
  for (uint32_t t = 0; t < w->n_ties; ++t)
    OPI_TRY(open_tie(w, w->ties[t], list, members, err));
  OPI_TRY(open_norms(w, list, members, err));
  return opi_travel_register(w, err);
}

static void close_groups(opi_weights *w) {
  for (uint32_t r = 0; r < w->n_ranks; ++r)
    opi_member_close(w, &w->ranks[r].norms);
  for (uint32_t i = 0; i < w->n_instances; ++i) {
    for (uint32_t k = 0; k < w->instances[i].n_trained; ++k) {
      opi_member_close(w, &w->instances[i].trained[k].replicas);
      opi_member_close(w, &w->instances[i].trained[k].tie);
    }
  }
  opi_travel_drop(w);
}

/* ---- ranks ---- */

static opipe_status make_rank(opi_weights *w, uint32_t r, opipe_error *err) {
  opi_weight_rank *rank = &w->ranks[r];
  rank->clock.loss_scale = w->optimizer.loss_scaling != 0 ? 65536.0 : 1.0;
  rank->gradient_scale = 1;
  rank->instances = OPI_ARENA_ARRAY(&w->arena, opi_instance *, w->n_instances);
  rank->norms_now = OPI_ARENA_ARRAY(&w->arena, double, w->n_trained);
  if (rank->instances == NULL || rank->norms_now == NULL)
    return opi_fail_nomem(err, w->n_instances * sizeof *rank->instances, "ranks");
  for (uint32_t i = 0; i < w->n_instances; ++i) {
    if (w->instances[i].env.rank == r)
      rank->instances[rank->n_instances++] = &w->instances[i];
  }
  if (rank->n_instances == 0 || w->n_trained == 0)
    return OPIPE_OK;
  const opi_instance *first = rank->instances[0];
  rank->stride = opi_align_up(sizeof(double), first->alignment);
  rank->table_bytes = rank->stride * (w->n_trained + 1);
  if (first->env.elsewhere != 0)
    return OPIPE_OK;
  rank->host_table = OPI_ARENA_ARRAY(&w->arena, char, rank->table_bytes);
  if (rank->host_table == NULL)
    return opi_fail_nomem(err, rank->table_bytes, "norms");
  return OPI_ASK("backend", first->env.backend, buffer_alloc, err, first->env.device,
                 rank->table_bytes, OPIPE_BUFFER_PARAMS, &rank->table);
}

/* ---- open and close ---- */

static opipe_status take_options(opi_weights *w, const opi_weights_options *o, opipe_error *err) {
  const uint32_t all = o->n_stages * o->n_replicas;
  OPI_TRY(copy_optimizer(w, o->optimizer, err));
  w->trained = opi_arena_copy(&w->arena, o->trained, o->n_sources * sizeof *o->trained);
  w->instances = OPI_ARENA_ARRAY(&w->arena, opi_instance, all);
  w->instance_at = OPI_ARENA_ARRAY(&w->arena, uint32_t, all);
  w->ranks = OPI_ARENA_ARRAY(&w->arena, opi_weight_rank, o->n_ranks);
  if (w->trained == NULL || w->instances == NULL || w->ranks == NULL || w->instance_at == NULL)
    return opi_fail_nomem(err, all * sizeof *w->instances, "stage instances");
  w->n_ranks = o->n_ranks;
  for (uint32_t i = 0; i < all; ++i) {
    w->instance_at[i] = OPIPE_NONE;
    if (o->instances[i].backend == NULL)
      continue;
    w->instance_at[i] = w->n_instances;
    w->instances[w->n_instances] = (opi_instance){.env = o->instances[i], .index = w->n_instances};
    ++w->n_instances;
  }
  return OPIPE_OK;
}

static opipe_status open_all(opi_weights *w, const opi_weights_options *o, opipe_error *err) {
  opi_weight_query query;
  OPI_TRY(take_options(w, o, err));
  OPI_TRY(make_places(w, &query, err));
  OPI_TRY(list_slots(w, &query, err));
  opi_weight_layout **layouts = OPI_ARENA_ARRAY(&w->arena, opi_weight_layout *, w->n_instances);
  opi_weight_bytes *bytes = OPI_ARENA_ARRAY(&w->arena, opi_weight_bytes, w->n_instances);
  if (layouts == NULL || bytes == NULL)
    return opi_fail_nomem(err, w->n_instances * sizeof *bytes, "sizes of weights");
  OPI_TRY(opi_predict_weights(&query, &w->arena, layouts, bytes, err));
  for (uint32_t i = 0; i < w->n_instances; ++i) {
    w->instances[i].bytes = bytes[i];
    const opipe_status status = make_instance(w, &w->instances[i], &query, layouts, err);
    if (status < 0) {
      return opi_error_prefix(err, "rank %u, stage %u, replica %u: ", w->instances[i].env.rank,
                              w->instances[i].env.stage, w->instances[i].env.replica);
    }
  }
  for (uint32_t r = 0; r < w->n_ranks; ++r)
    OPI_TRY(make_rank(w, r, err));
  return open_groups(w, err);
}

opipe_status opi_weights_open(const opi_weights_options *options, opi_weights **out_weights,
                              opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opi_weights *w = opi_alloc_zero(options->allocator, 1, sizeof *w);
  if (w == NULL)
    return opi_fail_nomem(err, sizeof *w, "weights");
  w->allocator = options->allocator;
  w->transport = options->transport;
  w->budget = options->budget;
  w->sources = options->sources;
  w->n_sources = options->n_sources;
  w->n_versions = options->n_versions;
  w->keep_gradients = options->keep_gradients != 0;
  w->hold = options->hold != 0;
  w->share = options->share;
  w->share_ctx = options->share_ctx;
  w->alone = options->n_ranks > 1 && options->n_versions > 1 && options->transport.table != NULL &&
             opi_optimizer_steps_alone(options->optimizer);
  opi_arena_init(&w->arena, options->allocator, 0);
  const opipe_status status = open_all(w, options, err == NULL ? &local : err);
  if (status < 0) {
    opi_weights_close(w);
    return status;
  }
  *out_weights = w;
  return OPIPE_OK;
}

void opi_weights_close(opi_weights *weights) {
  if (weights == NULL)
    return;
  const opipe_allocator *allocator = weights->allocator;
  close_groups(weights);
  for (uint32_t r = 0; r < weights->n_ranks; ++r) {
    const opi_weight_rank *rank = &weights->ranks[r];
    if (rank->table != NULL)
      opi_backend_of(rank->instances[0])->buffer_free(rank->table);
  }
  for (uint32_t i = weights->n_instances; i-- > 0;)
    free_instance(weights, &weights->instances[i]);
  opi_groups_free(weights);
  opi_arena_release(&weights->arena);
  opi_free(allocator, weights, sizeof *weights);
}

opipe_status opi_instance_sync(opi_instance *instance, opipe_error *err) {
  if (instance->done == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("backend", instance->env.backend, event_record, err, instance->env.queue,
                  instance->done));
  return OPI_ASK("backend", instance->env.backend, event_sync, err, instance->done, UINT64_MAX);
}
