/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a training session's sets, gradients, moments and groups, and frees them in reverse order.
 * Sizes come from partition/memory/weights.h and are charged before anything is allocated.
 */
#include <string.h>

#include "runtime/weights/kept.h"
#include "runtime/weights/optimizer.h"

/* ---- options ---- */

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

/* Gathers the ranks' instances for the prediction of memory. */
static opipe_status make_query(opi_weights *w, const opi_weights_options *o,
                               opi_weight_query *query, opipe_error *err) {
  opi_weight_reader *readers = OPI_ARENA_ARRAY(&w->arena, opi_weight_reader, w->n_parts);
  opi_weight_holder *holders = NULL;
  uint32_t n = 0;
  if (readers == NULL)
    return opi_fail_nomem(err, w->n_parts * sizeof *readers, "stage instances");
  for (uint32_t i = 0; i < w->n_parts; ++i) {
    const opi_weight_instance *instance = &o->instances[i];
    if (instance->backend == NULL)
      continue;
    readers[n++] = (opi_weight_reader){.rank = instance->rank,
                                       .stage = instance->stage,
                                       .n_programs = instance->n_programs,
                                       .n_params = instance->n_params,
                                       .programs = instance->programs,
                                       .params = instance->params};
  }
  OPI_TRY(opi_weight_holders(readers, n, o->n_ranks, w->n_sources, &w->arena, &holders,
                             &w->n_holders, err));
  w->holders = OPI_ARENA_ARRAY(&w->arena, opi_holder, w->n_holders);
  if (w->holders == NULL)
    return opi_fail_nomem(err, w->n_holders * sizeof *w->holders, "weights of ranks");
  *query = (opi_weight_query){.readers = readers,
                              .holders = holders,
                              .sources = w->sources,
                              .trained = w->trained,
                              .n_readers = n,
                              .n_holders = w->n_holders,
                              .n_sources = w->n_sources,
                              .n_versions = w->n_versions,
                              .n_moments = w->n_moments,
                              .shard = w->optimizer.shard != 0};
  return OPIPE_OK;
}

/* Takes the rank's device from its first instance. */
static opipe_status place_holder(opi_weights *w, const opi_weights_options *o, uint32_t index,
                                 opi_weight_holder *held, opipe_error *err) {
  opi_holder *holder = &w->holders[index];
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  uint32_t i = 0;
  while (o->instances[i].backend == NULL || o->instances[i].rank != held->rank)
    ++i;
  holder->env = o->instances[i];
  holder->env.n_programs = held->n_programs;
  holder->env.programs = held->programs;
  holder->env.n_params = held->n_params;
  holder->env.params = held->params;
  held->backend = holder->env.elsewhere != 0 ? NULL : holder->env.backend;
  info.alignment = holder->env.alignment;
  if (held->backend != NULL)
    OPI_TRY(opi_device_ask(held->backend, holder->env.device_index, &info, err));
  held->alignment = info.alignment < sizeof(double) ? sizeof(double) : info.alignment;
  holder->alignment = held->alignment;
  holder->synchronous = (info.flags & OPIPE_DEVICE_SYNCHRONOUS) != 0;
  w->ranks[held->rank].holder = holder;
  return OPIPE_OK;
}

/* Lists the slots that are read, trained and tied. */
static opipe_status list_slots(opi_weights *w, const opi_weight_query *query, opipe_error *err) {
  w->used = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  w->ties = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  w->trained_index = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  w->rows.changed = OPI_ARENA_ARRAY(&w->arena, bool, w->n_sources);
  bool *read = OPI_ARENA_ARRAY(&w->arena, bool, w->n_sources);
  if (w->used == NULL || w->ties == NULL || w->trained_index == NULL || w->rows.changed == NULL ||
      read == NULL)
    return opi_fail_nomem(err, w->n_sources * sizeof *w->used, "parameters");
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    for (uint32_t i = 0; i < query->n_holders && !read[slot]; ++i)
      read[slot] = opi_weight_index(&query->holders[i], slot) != OPIPE_NONE;
  }
  OPI_TRY(opi_rows_link(w, read, err));
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    w->trained[slot] = w->trained[slot] && read[slot];
    w->trained_index[slot] = w->n_trained;
    if (read[slot] && !w->rows.is_later[slot])
      w->used[w->n_used++] = slot;
    if (w->trained[slot])
      ++w->n_trained;
    if (opi_weight_tied(query, slot))
      w->ties[w->n_ties++] = slot;
  }
  return OPIPE_OK;
}

/* ---- holders ---- */

static opipe_status charge(opi_weights *w, opi_holder *holder, opipe_error *err) {
  const opi_weight_bytes *b = &holder->bytes;
  const uint64_t n_bytes = b->params + b->versions + b->gradients + b->optimizer;
  if (w->budget == NULL || n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(opi_budget_charge(w->budget, holder->env.backend->id, holder->env.device_index, n_bytes,
                            "weights and optimizer state", err));
  holder->charged_bytes = n_bytes;
  return OPIPE_OK;
}

static opipe_status make_sets(opi_weights *w, opi_holder *holder, opipe_error *err) {
  const opi_weight_instance *env = &holder->env;
  OPI_TRY(OPI_MAKE("backend", holder->env.backend, params_create_owned, &holder->sets[0], err,
                   env->device, env->sources != NULL ? env->sources : w->sources, w->n_sources));
  for (uint32_t p = 0; p < env->n_programs; ++p) {
    if (env->programs[p] != NULL) {
      OPI_TRY(OPI_ASK("backend", holder->env.backend, params_prepare, err, holder->sets[0],
                      env->programs[p]));
    }
  }
  OPI_TRY(OPI_ASK("backend", holder->env.backend, params_commit, err, holder->sets[0]));
  OPI_TRY(OPI_MAKE("backend", holder->env.backend, gradients_create, &holder->gradients, err,
                   holder->sets[0]));
  for (uint32_t p = 0; p < env->n_programs; ++p) {
    if (env->programs[p] != NULL) {
      OPI_TRY(OPI_ASK("backend", holder->env.backend, params_prepare, err, holder->gradients,
                      env->programs[p]));
    }
  }
  return w->n_versions < 2 ? OPIPE_OK
                           : OPI_MAKE("backend", holder->env.backend, params_clone,
                                      &holder->sets[1], err, holder->sets[0]);
}

static opipe_status find_masters(const opi_weights *w, const opi_holder *holder,
                                 opi_weight_param *p, opipe_error *err) {
  for (uint32_t v = 0; v < w->n_versions; ++v) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, params_master, err, holder->sets[v], p->slot,
                    &p->weight[v]));
  }
  OPI_TRY(OPI_ASK("backend", holder->env.backend, params_master, err, holder->gradients, p->slot,
                  &p->gradient));
  for (uint32_t v = 0; v < w->n_versions; ++v) {
    if (p->weight[v].n_bytes == p->n_bytes && p->gradient.n_bytes == p->n_bytes)
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "parameter '%s': backend '%s' has a master of %llu bytes and an accumulator of "
                    "%llu, its layout says %llu",
                    w->sources[p->slot].name, holder->env.backend->id,
                    (unsigned long long)p->weight[v].n_bytes,
                    (unsigned long long)p->gradient.n_bytes, (unsigned long long)p->n_bytes);
  }
  return OPIPE_OK;
}

/* Bytes of one moment. */
static uint64_t state_bytes(const opi_weights *w, const opi_weight_param *p) {
  return opi_shares_out(w) ? p->own_bytes : p->n_bytes;
}

/* Makes the moments in one buffer, parameter after parameter. */
static opipe_status make_state(opi_weights *w, opi_holder *holder, opipe_error *err) {
  uint64_t n_bytes = 0;
  for (uint32_t k = 0; k < holder->n_trained; ++k)
    n_bytes += opi_align_up(state_bytes(w, &holder->trained[k]), holder->alignment) * w->n_moments;
  if (n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(OPI_MAKE("backend", holder->env.backend, buffer_alloc, &holder->state, err,
                   holder->env.device, n_bytes, OPIPE_BUFFER_PARAMS));
  const opipe_region all = {.buffer = holder->state, .n_bytes = n_bytes};
  OPI_TRY(OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue, &all));
  uint64_t at = 0;
  for (uint32_t k = 0; k < holder->n_trained; ++k) {
    opi_weight_param *p = &holder->trained[k];
    for (uint32_t m = 0; m < w->n_moments; ++m) {
      p->moments[m] =
          (opipe_region){.buffer = holder->state, .offset_bytes = at, .n_bytes = state_bytes(w, p)};
      at += opi_align_up(state_bytes(w, p), holder->alignment);
    }
  }
  return OPIPE_OK;
}

/* The n-th rank that holds a parameter, in the order of first readers; NULL: there are fewer. */
static opi_holder *holder_of(const opi_weights *w, const opi_weight_query *query, uint32_t slot,
                             uint32_t n) {
  const uint32_t index = opi_weight_holder_at(query, slot, n);
  return index == OPIPE_NONE ? NULL : &w->holders[index];
}

opi_weight_param *opi_holder_param(const opi_holder *holder, uint32_t slot) {
  for (uint32_t k = 0; k < holder->n_trained; ++k) {
    if (holder->trained[k].slot == slot)
      return &holder->trained[k];
  }
  return NULL;
}

static bool is_tied(const opi_weights *w, uint32_t slot) {
  for (uint32_t t = 0; t < w->n_ties; ++t) {
    if (w->ties[t] == slot)
      return true;
  }
  return false;
}

static opipe_status list_trained(opi_weights *w, opi_holder *holder, const opi_weight_query *query,
                                 opi_weight_layout *const *layouts, opipe_error *err) {
  const opi_weight_instance *env = &holder->env;
  const uint32_t index = (uint32_t)(holder - w->holders);
  const opi_weight_holder *held = &query->holders[index];
  holder->trained = OPI_ARENA_ARRAY(&w->arena, opi_weight_param, env->n_params);
  holder->updates = OPI_ARENA_ARRAY(&w->arena, opipe_update_part, env->n_params);
  holder->cells = OPI_ARENA_ARRAY(&w->arena, opipe_region, env->n_params);
  holder->squared = OPI_ARENA_ARRAY(&w->arena, opipe_region, env->n_params);
  holder->due = OPI_ARENA_ARRAY(&w->arena, opi_due, env->n_params);
  if (holder->trained == NULL || holder->updates == NULL || holder->cells == NULL ||
      holder->squared == NULL || holder->due == NULL)
    return opi_fail_nomem(err, env->n_params * sizeof *holder->trained, "parameters");
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    const uint32_t k = opi_weight_index(held, slot);
    if (k == OPIPE_NONE || !w->trained[slot])
      continue;
    opi_weight_param *p = &holder->trained[holder->n_trained++];
    *p = (opi_weight_param){.slot = slot,
                            .n_readers = held->n_readers[k],
                            .owner = holder_of(w, query, slot, 0) == holder,
                            .tied = is_tied(w, slot),
                            .repeats = opi_row_repeats(w, slot),
                            .no_decay = !opi_optimizer_decays(&w->optimizer, w->sources[slot].name),
                            .summed = true,
                            .trained_index = w->trained_index[slot],
                            .key = layouts[index][k].key,
                            .n_bytes = layouts[index][k].master_bytes,
                            .own_first = layouts[index][k].own_first,
                            .own_bytes = layouts[index][k].own_bytes};
    (void)opi_weight_dense_bytes(&w->sources[slot], &p->dense_bytes);
    p->dense = p->tied && !opi_weight_layouts_equal(query, layouts, slot);
    if (p->dense && p->dense_bytes > holder->dense_bytes)
      holder->dense_bytes = p->dense_bytes;
  }
  return OPIPE_OK;
}

static opipe_status make_holder(opi_weights *w, opi_holder *holder, const opi_weight_query *query,
                                opi_weight_layout *const *layouts, opipe_error *err) {
  OPI_TRY(list_trained(w, holder, query, layouts, err));
  if (holder->env.elsewhere != 0)
    return OPIPE_OK;
  OPI_TRY(charge(w, holder, err));
  if (!holder->synchronous) {
    OPI_TRY(OPI_MAKE("backend", holder->env.backend, event_create, &holder->ready, err,
                     holder->env.device));
    OPI_TRY(OPI_MAKE("backend", holder->env.backend, event_create, &holder->done, err,
                     holder->env.device));
  }
  if (holder->env.n_params == 0)
    return OPIPE_OK;
  OPI_TRY(make_sets(w, holder, err));
  for (uint32_t k = 0; k < holder->n_trained; ++k)
    OPI_TRY(find_masters(w, holder, &holder->trained[k], err));
  OPI_TRY(make_state(w, holder, err));
  if (holder->dense_bytes != 0) {
    OPI_TRY(OPI_MAKE("backend", holder->env.backend, buffer_alloc, &holder->dense, err,
                     holder->env.device, holder->dense_bytes, OPIPE_BUFFER_PARAMS));
  }
  return OPIPE_OK;
}

static void free_holder(opi_weights *w, opi_holder *holder) {
  if (holder->env.elsewhere != 0)
    return;
  const opipe_backend *b = opi_backend_of(holder);
  b->event_destroy(holder->done);
  b->event_destroy(holder->ready);
  b->buffer_free(holder->dense);
  b->buffer_free(holder->state);
  b->params_free(holder->gradients);
  b->params_free(holder->sets[1]);
  b->params_free(holder->sets[0]);
  if (w->budget != NULL) {
    opi_budget_release(w->budget, holder->env.backend->id, holder->env.device_index,
                       holder->charged_bytes);
  }
}

/* ---- groups ---- */

/* Opens the sum of a parameter over the ranks that hold it. */
static opipe_status open_sum(opi_weights *w, const opi_weight_query *query, uint32_t slot,
                             opi_holder **list, opi_member **members, opipe_error *err) {
  uint32_t n = 0;
  uint64_t n_bytes = 0;
  opi_holder *holder = holder_of(w, query, slot, 0);
  for (; holder != NULL; holder = holder_of(w, query, slot, ++n)) {
    opi_weight_param *p = opi_holder_param(holder, slot);
    if (p->bucket != NULL && p->bucket->collects)
      return OPIPE_OK;
    list[n] = holder;
    members[n] = p->tied ? &p->tie : &p->replicas;
    if (n == 0 || holder->env.elsewhere == 0) /* elsewhere: an estimate */
      n_bytes = p->dense ? p->dense_bytes : p->n_bytes;
  }
  if (n < 2)
    return OPIPE_OK;
  for (uint32_t i = 0; i < n; ++i) {
    opi_weight_param *p = opi_holder_param(list[i], slot);
    p->replicated = !p->tied;
  }
  return opi_group_open(w, list, n, n_bytes, members, err);
}

/* Opens the sum of the norms over the ranks that hold parameters. */
static opipe_status open_norms(opi_weights *w, opi_holder **list, opi_member **members,
                               opipe_error *err) {
  uint32_t n = 0;
  uint64_t n_bytes = 0;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    opi_weight_rank *rank = &w->ranks[r];
    if (rank->holder == NULL)
      continue;
    list[n] = rank->holder;
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

static opipe_status open_groups(opi_weights *w, const opi_weight_query *query, opipe_error *err) {
  opi_holder **list = OPI_ARENA_ARRAY(&w->arena, opi_holder *, w->n_holders);
  opi_member **members = OPI_ARENA_ARRAY(&w->arena, opi_member *, w->n_holders);
  if (list == NULL || members == NULL)
    return opi_fail_nomem(err, w->n_holders * sizeof *list, "groups");
  OPI_TRY(opi_buckets_open(w, err));
  for (uint32_t slot = 0; slot < w->n_sources; ++slot) {
    if (w->trained[slot])
      OPI_TRY(open_sum(w, query, slot, list, members, err));
  }
  OPI_TRY(open_norms(w, list, members, err));
  return opi_travel_register(w, err);
}

static void close_groups(opi_weights *w) {
  opi_buckets_close(w);
  for (uint32_t r = 0; w->ranks != NULL && r < w->n_ranks; ++r)
    opi_member_close(w, &w->ranks[r].norms);
  for (uint32_t i = 0; w->holders != NULL && i < w->n_holders; ++i) {
    for (uint32_t k = 0; k < w->holders[i].n_trained; ++k) {
      opi_member_close(w, &w->holders[i].trained[k].replicas);
      opi_member_close(w, &w->holders[i].trained[k].tie);
    }
  }
  opi_travel_drop(w);
}

/* ---- ranks ---- */

static opipe_status make_part(opi_weights *w, const opi_weight_instance *env, opi_part *part,
                              opipe_error *err) {
  opi_weight_rank *rank = &w->ranks[env->rank];
  *part = (opi_part){.holder = rank->holder, .stage = env->stage, .replica = env->replica};
  part->trained = OPI_ARENA_ARRAY(&w->arena, uint32_t, env->n_params);
  if (part->trained == NULL)
    return opi_fail_nomem(err, env->n_params * sizeof *part->trained, "parameters");
  for (uint32_t k = 0; k < env->n_params; ++k) {
    const opi_weight_param *p = opi_holder_param(rank->holder, env->params[k]);
    if (p != NULL)
      part->trained[part->n_trained++] = (uint32_t)(p - rank->holder->trained);
  }
  rank->parts[rank->n_parts++] = part;
  return OPIPE_OK;
}

static opipe_status make_rank(opi_weights *w, const opi_weights_options *o, uint32_t r,
                              opipe_error *err) {
  opi_weight_rank *rank = &w->ranks[r];
  opi_optimizer_first_scale(&w->optimizer, &rank->clock);
  rank->gradient_scale = 1;
  rank->parts = OPI_ARENA_ARRAY(&w->arena, opi_part *, w->n_parts);
  rank->norms_now = OPI_ARENA_ARRAY(&w->arena, double, w->n_trained);
  if (rank->parts == NULL || rank->norms_now == NULL)
    return opi_fail_nomem(err, w->n_parts * sizeof *rank->parts, "ranks");
  for (uint32_t i = 0; i < w->n_parts; ++i) {
    if (o->instances[i].backend != NULL && o->instances[i].rank == r)
      OPI_TRY(make_part(w, &o->instances[i], &w->parts[i], err));
  }
  const opi_holder *holder = rank->holder;
  if (holder == NULL || w->n_trained == 0)
    return OPIPE_OK;
  rank->stride = opi_align_up(sizeof(double), holder->alignment);
  rank->table_bytes = rank->stride * (w->n_trained + 1);
  if (holder->env.elsewhere != 0)
    return OPIPE_OK;
  OPI_TRY(opi_pinned_take(holder->env.backend, holder->env.device, w->allocator, rank->table_bytes,
                          "norms", &rank->host, err));
  return OPI_MAKE("backend", holder->env.backend, buffer_alloc, &rank->table, err,
                  holder->env.device, rank->table_bytes, OPIPE_BUFFER_PARAMS);
}

/* ---- open and close ---- */

static opipe_status take_options(opi_weights *w, const opi_weights_options *o, opipe_error *err) {
  OPI_TRY(copy_optimizer(w, o->optimizer, err));
  w->n_parts = o->n_stages * o->n_replicas * (o->n_members == 0 ? 1 : o->n_members);
  w->trained = opi_arena_copy(&w->arena, o->trained, o->n_sources * sizeof *o->trained);
  w->parts = OPI_ARENA_ARRAY(&w->arena, opi_part, w->n_parts);
  w->ranks = OPI_ARENA_ARRAY(&w->arena, opi_weight_rank, o->n_ranks);
  if (w->trained == NULL || w->parts == NULL || w->ranks == NULL)
    return opi_fail_nomem(err, w->n_parts * sizeof *w->parts, "stage instances");
  w->n_ranks = o->n_ranks;
  return OPIPE_OK;
}

static opipe_status open_all(opi_weights *w, const opi_weights_options *o, opipe_error *err) {
  opi_weight_query query;
  OPI_TRY(take_options(w, o, err));
  OPI_TRY(make_query(w, o, &query, err));
  for (uint32_t i = 0; i < w->n_holders; ++i)
    OPI_TRY(place_holder(w, o, i, &query.holders[i], err));
  OPI_TRY(list_slots(w, &query, err));
  opi_weight_layout **layouts = OPI_ARENA_ARRAY(&w->arena, opi_weight_layout *, w->n_holders);
  opi_weight_bytes *bytes = OPI_ARENA_ARRAY(&w->arena, opi_weight_bytes, w->n_holders);
  if (layouts == NULL || bytes == NULL)
    return opi_fail_nomem(err, w->n_holders * sizeof *bytes, "sizes of weights");
  OPI_TRY(opi_predict_weights(&query, &w->arena, layouts, bytes, err));
  OPI_TRY(opi_weight_buckets(&query, layouts, &w->arena, &w->shapes.list, &w->shapes.n, err));
  if (opi_shares_out(w) && w->shapes.n != 0 && w->transport.table != NULL && !opi_collects(w)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport '%s' has no collectives (OPIPE_TRANSPORT_COLLECTIVES): optimizer "
                    "state cannot be shared out over ranks",
                    w->transport.id);
  }
  for (uint32_t i = 0; i < w->n_holders; ++i) {
    w->holders[i].bytes = bytes[i];
    const opipe_status status = make_holder(w, &w->holders[i], &query, layouts, err);
    if (status < 0)
      return opi_error_prefix(err, "rank %u: ", w->holders[i].env.rank);
  }
  for (uint32_t r = 0; r < w->n_ranks; ++r)
    OPI_TRY(make_rank(w, o, r, err));
  return open_groups(w, &query, err);
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
  w->rows.parts = options->parts;
  w->n_sources = options->n_sources;
  w->n_versions = options->n_versions;
  w->keep_gradients = options->keep_gradients != 0;
  w->hold = options->hold != 0;
  w->share = options->share;
  w->share_ctx = options->share_ctx;
  w->alone = options->n_ranks > 1 && options->n_versions > 1 && options->transport.table != NULL &&
             options->n_members < 2 && opi_optimizer_steps_alone(options->optimizer);
  opi_arena_init(&w->arena, options->allocator, 0);
  const opipe_status status = open_all(w, options, err == NULL ? &local : err);
  if (status < 0) {
    opi_weights_close(w);
    return status;
  }
  *out_weights = w;
  return OPIPE_OK;
}

bool opi_weights_sums(const opi_weights *weights, uint32_t rank, uint32_t slot, uint64_t *out_key,
                      uint64_t *out_bytes) {
  const opi_holder *holder = weights->ranks[rank].holder;
  const opi_weight_param *p = holder == NULL ? NULL : opi_holder_param(holder, slot);
  if (p == NULL || (!p->replicated && (!p->tied || p->dense)))
    return false;
  *out_key = p->key;
  *out_bytes = p->n_bytes;
  return true;
}

uint32_t opi_weights_trained(const opi_weights *weights, uint32_t instance, uint32_t *out_slots,
                             uint32_t *out_buckets) {
  const opi_part *part = &weights->parts[instance];
  for (uint32_t i = 0; i < part->n_trained; ++i) {
    const opi_weight_param *p = &part->holder->trained[part->trained[i]];
    const bool sums = p->bucket != NULL && p->bucket->collects && !p->bucket->shape->tied;
    out_slots[i] = p->slot;
    out_buckets[i] = sums ? (uint32_t)(p->bucket - part->holder->buckets) : OPIPE_NONE;
  }
  return part->n_trained;
}

void opi_weights_close(opi_weights *weights) {
  if (weights == NULL)
    return;
  const opipe_allocator *allocator = weights->allocator;
  close_groups(weights);
  for (uint32_t r = 0; r < weights->n_ranks; ++r) {
    opi_weight_rank *rank = &weights->ranks[r];
    if (rank->host.data == NULL)
      continue;
    if (rank->table != NULL)
      opi_backend_of(rank->holder)->buffer_free(rank->table);
    opi_pinned_give(rank->holder->env.backend, rank->holder->env.device, allocator, &rank->host);
  }
  for (uint32_t i = weights->holders == NULL ? 0 : weights->n_holders; i-- > 0;)
    free_holder(weights, &weights->holders[i]);
  opi_groups_free(weights);
  opi_arena_release(&weights->arena);
  opi_free(allocator, weights, sizeof *weights);
}

opipe_status opi_holder_sync(opi_holder *holder, opipe_error *err) {
  if (holder->done == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_record(holder->env.backend, holder->env.queue, holder->done, OPI_RECORD_NS, err));
  return OPI_ASK("backend", holder->env.backend, event_sync, err, holder->done, UINT64_MAX);
}
