/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and collects in modelled time: once every member has given its values, and its device
 * has made them (a member that gives them waits for neither), they are over
 * after the time that they take over a ring of the n members (an all-reduce 2 (n - 1) messages of a
 * n-th of the bytes each, the others n - 1 messages of the largest part each), behind the bytes of
 * others in which one of their ranks takes part; whoever looks first then adds up, member after
 * member in their order, and writes to all of them. Everything under the world's lock. An
 * all-reduce is a collect of one region.
 */
#include "emulated.h"

struct opipe_group {
  reduction *reduction;
  opipe_endpoint *endpoint;
  opipe_collective_params params; /* without ranks */
  uint64_t n_opened;              /* of its endpoint, when it was opened */
  uint32_t index;
  bool collects;
  opipe_region region; /* of all-reduce: its only one */
  opipe_span *spans;   /* [2 * n_regions] the member's */
  opipe_cursor *walks; /* [2 * n members] over all members' from, then to */
};

struct opipe_collective {
  opipe_group group;
};

static member *members_of(const opipe_group *group) {
  return group->reduction->base.members;
}

static member *me_of(const opipe_group *group) {
  return members_of(group) + group->index;
}

/* ---- set-up ---- */

static opipe_status make_room(opipe_group *group, opipe_error *err) {
  const opipe_host *host = group->endpoint->world->host;
  const uint64_t n = group->reduction->base.n, n_regions = group->params.n_regions;
  member *me = me_of(group);
  group->spans = opipe_zeroed(host, "a group", 2 * n_regions * sizeof *group->spans, ALIGN, err);
  group->walks = opipe_zeroed(host, "a group", 2 * n * sizeof *group->walks, ALIGN, err);
  if (group->spans == NULL || group->walks == NULL)
    return OPIPE_E_NOMEM;
  me->from = group->spans;
  me->to = group->spans + n_regions;
  return OPIPE_OK;
}

static void leave(opipe_group *group) {
  opipe_world *world = group->endpoint->world;
  if (group->reduction == NULL)
    return;
  const uint64_t n = group->reduction->base.n, n_regions = group->params.n_regions;
  opipe_free(world->host, group->spans, 2 * n_regions * sizeof *group->spans, ALIGN);
  opipe_free(world->host, group->walks, 2 * n * sizeof *group->walks, ALIGN);
  pthread_mutex_lock(&world->lock);
  opipe_circle_leave(group->collects ? &world->collectives : &world->reductions,
                     &group->reduction->base);
  pthread_mutex_unlock(&world->lock);
}

opipe_status emutrans_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                                 uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_group *group = opipe_zeroed(world->host, "a group", sizeof *group, ALIGN, err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  group->params = (opipe_collective_params){.n_bytes = n_bytes, .n_regions = 1};
  pthread_mutex_lock(&world->lock);
  opipe_status status = opipe_circle_join(&world->reductions, endpoint->rank, ranks, n_ranks,
                                          n_bytes, &circle, &group->index, err);
  if (status == OPIPE_OK)
    group->n_opened = emutrans_opened(endpoint);
  pthread_mutex_unlock(&world->lock);
  group->reduction = (reduction *)circle;
  if (status >= 0)
    status = make_room(group, err);
  if (status < 0)
    emutrans_group_close(group);
  else
    *out_group = group;
  return status;
}

void emutrans_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  leave(group);
  opipe_free(group->endpoint->world->host, group, sizeof *group, ALIGN);
}

opipe_status emutrans_collective_open(opipe_endpoint *endpoint,
                                      const opipe_collective_params *params,
                                      opipe_collective **out_collective, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_collective *c = opipe_zeroed(world->host, "a group", sizeof *c, ALIGN, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = endpoint;
  c->group.collects = true;
  pthread_mutex_lock(&world->lock);
  opipe_status status =
      opipe_circle_meet(&world->collectives, endpoint->rank, params, &circle, &c->group.index, err);
  if (status == OPIPE_OK)
    c->group.n_opened = emutrans_opened(endpoint);
  pthread_mutex_unlock(&world->lock);
  c->group.reduction = (reduction *)circle;
  if (status >= 0) {
    c->group.params = (opipe_collective_params){.n_ranks = params->n_ranks,
                                                .id = params->id,
                                                .n_bytes = params->n_bytes,
                                                .n_regions = params->n_regions};
    status = make_room(&c->group, err);
  }
  if (status < 0)
    emutrans_collective_close(c);
  else
    *out_collective = c;
  return status;
}

void emutrans_collective_close(opipe_collective *c) {
  if (c == NULL)
    return;
  leave(&c->group);
  opipe_free(c->group.endpoint->world->host, c, sizeof *c, ALIGN);
}

/* ---- time; lock held ---- */

/* Messages that go around the ring one after the other, and the bytes of each. */
static uint64_t ring_messages(const opipe_group *group, double *out_bytes) {
  const member *m = members_of(group);
  const uint64_t size = opipe_collect_size(m->what.kind, m->what.dtype);
  const uint32_t n = group->reduction->base.n;
  uint64_t most = 0;
  if (m->what.kind == OPIPE_COLLECT_ALL_REDUCE) {
    *out_bytes = (double)(m->n_values * size) / n;
    return 2 * (uint64_t)(n - 1);
  }
  for (uint32_t i = 0; i < n; ++i)
    most = m->what.parts[i] > most ? m->what.parts[i] : most;
  *out_bytes = (double)(most * size);
  return n - 1;
}

/* The ranks of a group pass on the bytes of one round after the other: when they have these, and
 * they have arrived. */
static uint64_t end_of_round(const opipe_group *group, uint64_t sequence) {
  const reduction *r = group->reduction;
  const opipe_world *world = group->endpoint->world;
  double bytes = 0;
  const uint64_t n_messages = ring_messages(group, &bytes);
  const double ns = world->options.bytes_per_ns > 0
                        ? (double)n_messages * bytes / world->options.bytes_per_ns
                        : 0;
  uint64_t at = emutrans_now();
  for (uint32_t i = 0; i < r->base.n; ++i) {
    const opipe_endpoint *e = world->endpoints[r->base.ranks[i]];
    at = e != NULL && e->sums_free_ns > at ? e->sums_free_ns : at;
  }
  at += (uint64_t)ns;
  for (uint32_t i = 0; i < r->base.n; ++i) {
    if (world->endpoints[r->base.ranks[i]] != NULL)
      world->endpoints[r->base.ranks[i]]->sums_free_ns = at;
  }
  const uint32_t *ranks = r->base.ranks;
  return at + n_messages * world->options.latency_ns +
         emutrans_chance(&world->options, ranks[0], ranks[r->base.n - 1], sequence);
}

/* ---- rounds; lock held ---- */

static opipe_collect_head head_of(const opipe_group *group, uint32_t i) {
  const member *m = members_of(group) + i;
  return (opipe_collect_head){.rank = group->reduction->base.ranks[i],
                              .kind = m->what.kind,
                              .dtype = m->what.dtype,
                              .n_values = m->n_values,
                              .parts = m->what.parts};
}

/* Did all members come to the same? */
static opipe_status agree(const opipe_group *group, uint64_t sequence, opipe_error *err) {
  const opipe_collect_head own = head_of(group, group->index);
  const uint32_t n = group->reduction->base.n;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    const opipe_collect_head other = head_of(group, i);
    status =
        opipe_round_agree(group->collects ? &group->params : NULL, sequence, n, &own, &other, err);
  }
  return status;
}

static opipe_status find_list(const opipe_endpoint *e, const opipe_region *list, uint32_t n,
                              opipe_span *out, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    void *data = NULL;
    status = emutrans_address(e, &list[i], &data, err);
    out[i] = (opipe_span){data, list[i].n_bytes};
  }
  return status;
}

/* The member has checked what it asks for. */
static opipe_status give(const opipe_group *group, const opipe_collect *what, uint64_t n_values,
                         opipe_error *err) {
  reduction *r = group->reduction;
  member *me = me_of(group);
  opipe_world *world = group->endpoint->world;
  opipe_status status = find_list(group->endpoint, what->from, what->n_from, me->from, err);
  if (status == OPIPE_OK)
    status = find_list(group->endpoint, what->to, what->n_to, me->to, err);
  if (status != OPIPE_OK)
    return status;
  me->what = *what;
  me->n_values = n_values;
  ++me->given;
  if (++r->n_given < me->given * r->base.n)
    return OPIPE_OK;
  for (uint32_t i = 0; i < r->base.n; ++i)
    emutrans_ring_locked(world, r->base.ranks[i]);
  return OPIPE_OK;
}

/* PENDING: a member's device has not made its values. */
static opipe_status poll_readies(const opipe_group *group, opipe_error *err) {
  opipe_endpoint *own = group->endpoint;
  for (uint32_t i = 0; i < group->reduction->base.n; ++i) {
    member *m = members_of(group) + i;
    const opipe_endpoint *e = own->world->endpoints[group->reduction->base.ranks[i]];
    if (m->what.ready == NULL)
      continue;
    const opipe_status status =
        e == NULL ? (opipe_status)OPIPE_PENDING : e->backend->event_poll(m->what.ready, err);
    if (status == OPIPE_PENDING)
      emutrans_look_at(own, emutrans_now() + AGAIN_NS);
    if (status < 0 && e != own)
      return OPIPE_PENDING; /* that rank knows more about it */
    if (status != OPIPE_OK)
      return status;
    m->what.ready = NULL;
  }
  return OPIPE_OK;
}

/* The round takes its time from when all values are there. */
static opipe_status begin_round(const opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  const opipe_world *world = group->endpoint->world;
  if (r->n_begun > sequence)
    return OPIPE_OK;
  const opipe_status status = poll_readies(group, err);
  if (status != OPIPE_OK)
    return status;
  r->n_begun = sequence + 1;
  r->at_ns = end_of_round(group, sequence);
  for (uint32_t i = 0; i < r->base.n; ++i) {
    opipe_endpoint *e = world->endpoints[r->base.ranks[i]];
    if (e != NULL)
      emutrans_look_at(e, r->at_ns); /* a waiter wakes for it */
  }
  return OPIPE_OK;
}

/* All shares of the round, whoever looks first. */
static opipe_status do_round(const opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  opipe_endpoint *e = group->endpoint;
  const uint32_t n = r->base.n;
  if (r->n_given < (sequence + 1) * n)
    return OPIPE_PENDING;
  opipe_status status = agree(group, sequence, err);
  if (status == OPIPE_OK)
    status = begin_round(group, sequence, err);
  if (status != OPIPE_OK)
    return status;
  if (emutrans_now() < r->at_ns) {
    emutrans_look_at(e, r->at_ns);
    return OPIPE_PENDING;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const member *m = members_of(group) + i;
    group->walks[i] = (opipe_cursor){.spans = m->from, .n = m->what.n_from};
    group->walks[n + i] = (opipe_cursor){.spans = m->to, .n = m->what.n_to};
  }
  for (uint32_t i = 0; i < n; ++i) {
    const member *m = members_of(group) + i;
    opipe_collect_share(&m->what, n, i, m->n_values, group->walks, group->walks + n);
  }
  r->n_summed = sequence + 1;
  for (uint32_t i = 0; i < n; ++i)
    emutrans_ring_locked(e->world, r->base.ranks[i]);
  return OPIPE_OK;
}

static opipe_status check_number(const opipe_group *group, const char *call, uint64_t sequence,
                                 opipe_error *err) {
  const member *me = me_of(group);
  opipe_status status = emutrans_check(group->endpoint->world, err);
  if (status == OPIPE_OK)
    status = emutrans_usable(group->endpoint, group->n_opened, call, err);
  return status < 0 ? status
                    : opipe_round_check(call, group->collects ? &group->params : NULL, sequence,
                                        group->endpoint->rank, me->given, me->taken, err);
}

static opipe_status finish(opipe_group *group, uint64_t sequence, opipe_error *err) {
  const reduction *r = group->reduction;
  member *me = me_of(group);
  opipe_endpoint *e = group->endpoint;
  pthread_mutex_lock(&e->world->lock);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK && me->taken <= sequence) {
    if (me->given <= sequence)
      status = OPIPE_PENDING;
    else if (r->n_summed <= sequence)
      status = do_round(group, sequence, err);
    if (status == OPIPE_OK) {
      me->taken = sequence + 1;
      status = emutrans_record(e, &me->what.done, err);
    }
  }
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

/* ---- the slots ---- */

opipe_status emutrans_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                                 uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                                 opipe_event *done, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const opipe_collect what = {.kind = OPIPE_COLLECT_ALL_REDUCE,
                              .dtype = dtype,
                              .n_from = 1,
                              .n_to = 1,
                              .from = &group->region,
                              .to = &group->region,
                              .ready = ready,
                              .done = done};
  opipe_status status = opipe_reduce_check(group->params.n_bytes, region, n_elems, dtype, err);
  if (status < 0)
    return status;
  pthread_mutex_lock(&e->world->lock);
  status = check_number(group, "all_reduce", sequence, err);
  if (status == OPIPE_OK && group->reduction->n_summed < sequence)
    status = OPIPE_PENDING; /* the round before */
  if (status == OPIPE_OK) {
    group->region =
        (opipe_region){region->buffer, region->offset_bytes, n_elems * opipe_reduce_size(dtype)};
    status = give(group, &what, n_elems, err);
  }
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

opipe_status emutrans_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  return finish(group, sequence, err);
}

opipe_status emutrans_collect(opipe_collective *collective, uint64_t sequence,
                              const opipe_collect *collect, opipe_error *err) {
  const opipe_group *group = &collective->group;
  uint64_t n_values = 0;
  pthread_mutex_lock(&group->endpoint->world->lock);
  opipe_status status = check_number(group, "collect", sequence, err);
  if (status == OPIPE_OK)
    status = opipe_collect_check(&group->params, group->index, collect, &n_values, err);
  if (status == OPIPE_OK)
    status = give(group, collect, n_values, err);
  pthread_mutex_unlock(&group->endpoint->world->lock);
  return status;
}

opipe_status emutrans_collect_test(opipe_collective *collective, uint64_t sequence,
                                   opipe_error *err) {
  return finish(&collective->group, sequence, err);
}
