/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and collects through the same pipes: member 0 sends its values to member 1, which adds
 * its own and sends the sum on; the last member has the sum of all, in rising order, and sends it
 * to the others, who keep what is theirs. In an all-gather the members put their parts in instead
 * of adding. A member adds on its rank's thread, in group_test, once both are there. On their way
 * values of half types are float32. An all-reduce is a collect of one region.
 */
#include "strict.h"

static member *members_of(const opipe_group *g) {
  return g->circle->base.members;
}

static member *me_of(const opipe_group *g) {
  return &members_of(g)[g->index];
}

static bool gathers(const member *m) {
  return m->what.kind == OPIPE_COLLECT_ALL_GATHER;
}

/* Bytes of a value on its way. */
static uint64_t wide_size(const member *m) {
  const uint64_t size = opipe_collect_size(m->what.kind, m->what.dtype);
  return !gathers(m) && size < sizeof(float) ? sizeof(float) : size;
}

static uint64_t wide_bytes(const opipe_group *g) {
  return 2 * g->params.n_bytes + 1;
}

/* ---- set-up ---- */

static void give_back(opipe_group *g) {
  const opipe_host *host = g->endpoint->world->host;
  const uint64_t n_regions = 2 * g->params.n_regions;
  opipe_free(host, g->spans, n_regions * sizeof *g->spans, STRICT_ALIGN);
  if (g->circle == NULL)
    return;
  member *me = me_of(g);
  opipe_free(host, me->data, wide_bytes(g), STRICT_ALIGN);
  opipe_free(host, me->scratch, wide_bytes(g), STRICT_ALIGN);
  opipe_free(host, me->memories, n_regions * sizeof *me->memories, STRICT_ALIGN);
  opipe_free(host, g->jobs, g->n_jobs * sizeof *g->jobs, STRICT_ALIGN);
  *me = (member){.group = NULL};
  opipe_circle_leave(g->collects ? &g->endpoint->place->collectives : &g->endpoint->place->circles,
                     &g->circle->base);
}

/* Pipes to whom this member sends. */
static opipe_status make_lanes(const opipe_group *g, opipe_error *err) {
  const opipe_circle *c = &g->circle->base;
  const bool last = g->index + 1 == c->n;
  opipe_status status = OPIPE_OK;
  for (uint32_t m = 0; m < c->n && status == OPIPE_OK; ++m) {
    if (m != g->index && (last || m == g->index + 1))
      status = strict_lane(g->endpoint->place, g->endpoint->rank, c->ranks[m], err);
  }
  return status;
}

/* It is in its circle. */
static opipe_status make_room(opipe_group *g, opipe_circle *base, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const opipe_host *host = e->world->host;
  const uint64_t n_regions = 2 * g->params.n_regions;
  g->circle = (circle *)base;
  if (g->circle->id == 0)
    g->circle->id = ++e->place->n_ids;
  g->n_jobs = base->n;
  g->jobs = opipe_zeroed(host, "a group", g->n_jobs * sizeof *g->jobs, STRICT_ALIGN, err);
  g->spans = opipe_zeroed(host, "a group", n_regions * sizeof *g->spans, STRICT_ALIGN, err);
  member *me = me_of(g);
  *me = (member){.group = g};
  me->data = opipe_zeroed(host, "a group", wide_bytes(g), STRICT_ALIGN, err);
  me->scratch = opipe_zeroed(host, "a group", wide_bytes(g), STRICT_ALIGN, err);
  me->memories = opipe_zeroed(host, "a group", n_regions * sizeof *me->memories, STRICT_ALIGN, err);
  if (g->jobs == NULL || g->spans == NULL || me->data == NULL || me->scratch == NULL ||
      me->memories == NULL)
    return OPIPE_E_NOMEM;
  const opipe_status status = make_lanes(g, err);
  if (status < 0)
    return status;
  g->n_opened = ++e->n_opened;
  g->next = e->groups;
  e->groups = g;
  return OPIPE_OK;
}

/* Lock held. ranks: of a group that reduces. */
static opipe_status open_locked(opipe_group *g, const uint32_t *ranks,
                                const opipe_collective_params *params, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_circle *base = NULL;
  opipe_status status = strict_check(e->place, err);
  if (status < 0)
    return status;
  if (g->collects) {
    status = opipe_circle_meet(&e->place->collectives, e->rank, params, &base, &g->index, err);
  } else {
    status = opipe_circle_join(&e->place->circles, e->rank, ranks, g->params.n_ranks,
                               g->params.n_bytes, &base, &g->index, err);
  }
  if (status == OPIPE_E_INVALID || (g->collects && status == OPIPE_E_STATE))
    atomic_fetch_add(&strict_counted()->refused, 1);
  return status < 0 ? status : make_room(g, base, err);
}

opipe_status strict_group_open(opipe_endpoint *e, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_group *g = opipe_zeroed(e->world->host, "a group", sizeof *g, STRICT_ALIGN, err);
  if (g == NULL)
    return OPIPE_E_NOMEM;
  g->endpoint = e;
  g->params = (opipe_collective_params){.n_ranks = n_ranks, .n_bytes = n_bytes, .n_regions = 1};
  pthread_mutex_lock(&e->place->lock);
  const opipe_status status = open_locked(g, ranks, NULL, err);
  if (status < 0)
    give_back(g);
  pthread_mutex_unlock(&e->place->lock);
  if (status < 0)
    opipe_free(e->world->host, g, sizeof *g, STRICT_ALIGN);
  else
    *out_group = g;
  return status;
}

opipe_status strict_collective_open(opipe_endpoint *e, const opipe_collective_params *params,
                                    opipe_collective **out_collective, opipe_error *err) {
  opipe_collective *c = opipe_zeroed(e->world->host, "a group", sizeof *c, STRICT_ALIGN, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = e;
  c->group.collects = true;
  c->group.params = (opipe_collective_params){.n_ranks = params->n_ranks,
                                              .id = params->id,
                                              .n_bytes = params->n_bytes,
                                              .n_regions = params->n_regions};
  pthread_mutex_lock(&e->place->lock);
  const opipe_status status = open_locked(&c->group, NULL, params, err);
  if (status < 0)
    give_back(&c->group);
  pthread_mutex_unlock(&e->place->lock);
  if (status < 0)
    opipe_free(e->world->host, c, sizeof *c, STRICT_ALIGN);
  else
    *out_collective = c;
  return status;
}

static void give_memories(const opipe_group *g) {
  for (uint32_t i = 0; i < 2 * g->params.n_regions; ++i)
    strict_give(&me_of(g)->memories[i]);
}

static void leave(opipe_group *g, const char *call) {
  opipe_endpoint *e = g->endpoint;
  place *p = e->place;
  const member *me = me_of(g);
  char who[STRICT_WHO];
  pthread_mutex_lock(&p->lock);
  if (me->given != me->finished && atomic_load(&p->aborted) == 0) {
    strict_who_group(g, who);
    strict_break(e->world->host, p, e->rank, "%s: %s: %llu rounds have begun, %llu have ended",
                 call, who, (unsigned long long)me->given, (unsigned long long)me->finished);
  }
  strict_unqueue(e, g);
  strict_calm(e, g);
  give_memories(g);
  opipe_group **at = &e->groups;
  while (*at != g)
    at = &(*at)->next;
  *at = g->next;
  give_back(g);
  pthread_mutex_unlock(&p->lock);
}

void strict_group_close(opipe_group *g) {
  if (g == NULL)
    return;
  opipe_endpoint *e = g->endpoint;
  leave(g, "group_close");
  opipe_free(e->world->host, g, sizeof *g, STRICT_ALIGN);
  strict_endpoint_leave(e);
}

void strict_collective_close(opipe_collective *c) {
  if (c == NULL)
    return;
  opipe_endpoint *e = c->group.endpoint;
  leave(&c->group, "collective_close");
  opipe_free(e->world->host, c, sizeof *c, STRICT_ALIGN);
  strict_endpoint_leave(e);
}

/* ---- values; lock held ---- */

static uint64_t bytes_of(const member *m) {
  return m->n_values * wide_size(m);
}

/* Out of the lists of `from` into `data`, or out of `data` into the lists of `to`. */
static void move_values(const opipe_group *g, bool in) {
  const member *me = me_of(g);
  const uint32_t dtype = me->what.dtype;
  const uint64_t size = opipe_collect_size(me->what.kind, dtype);
  const opipe_part all = {0, me->n_values};
  const opipe_part own = opipe_collect_part(&me->what, g->index, me->n_values);
  const bool some = me->what.kind == (in ? (uint32_t)OPIPE_COLLECT_ALL_GATHER
                                         : (uint32_t)OPIPE_COLLECT_REDUCE_SCATTER);
  const opipe_part part = some ? own : all;
  const uint64_t width = wide_size(me);
  opipe_cursor walk = {.spans = in ? g->spans : g->spans + g->params.n_regions,
                       .n = in ? me->what.n_from : me->what.n_to};
  opipe_sum sum;
  uint64_t narrow[OPIPE_SUM_BLOCK];
  for (uint64_t i = 0, n = 0; i < part.n; i += n) {
    char *wide = me->data + (part.first + i) * width;
    n = part.n - i < OPIPE_SUM_BLOCK ? part.n - i : OPIPE_SUM_BLOCK;
    if (width == size) {
      if (in)
        opipe_cursor_get(&walk, i * size, wide, n * size);
      else
        opipe_cursor_put(&walk, i * size, wide, n * size);
    } else if (in) {
      opipe_cursor_get(&walk, i * size, narrow, n * size);
      opipe_sum_add(&sum, dtype, narrow, 0, n, true);
      memcpy(wide, sum.narrow, n * width);
    } else {
      memcpy(sum.narrow, wide, n * width);
      opipe_sum_round(&sum, dtype, narrow, n);
      opipe_cursor_put(&walk, i * size, narrow, n * size);
    }
  }
}

/* The members before this one, then this one. */
static void add_part(const opipe_group *g) {
  const member *m = me_of(g);
  if (gathers(m)) {
    const uint64_t before = opipe_collect_part(&m->what, g->index, m->n_values).first;
    memcpy(m->data, m->scratch, before * wide_size(m));
  } else if (m->what.dtype == OPIPE_DOUBLE) {
    const double *part = (const double *)(const void *)m->scratch;
    double *own = (double *)(void *)m->data;
    for (uint64_t i = 0; i < m->n_values; ++i)
      own[i] = part[i] + own[i];
  } else {
    const float *part = (const float *)(const void *)m->scratch;
    float *own = (float *)(void *)m->data;
    for (uint64_t i = 0; i < m->n_values; ++i)
      own[i] = part[i] + own[i];
  }
}

/* ---- a round; lock held ---- */

static void send_to(opipe_group *g, uint32_t to, uint32_t kind) {
  member *me = me_of(g);
  g->jobs[to] = (job){.head = {.magic = FRAME_MAGIC,
                               .kind = kind,
                               .src_rank = g->endpoint->rank,
                               .member = to,
                               .dtype = me->what.dtype,
                               .id = g->circle->id,
                               .number = me->given - 1,
                               .n_bytes = bytes_of(me)},
                      .dst_rank = g->circle->base.ranks[to],
                      .source = me->data,
                      .group = g};
  ++me->n_jobs_left;
  strict_queue(g->endpoint, &g->jobs[to]);
}

static opipe_collect_head head_of(const opipe_group *g, uint32_t i) {
  const member *m = &members_of(g)[i];
  return (opipe_collect_head){.rank = g->circle->base.ranks[i],
                              .kind = m->what.kind,
                              .dtype = m->what.dtype,
                              .n_values = m->n_values,
                              .parts = m->what.parts};
}

/* Have those who have come come to the same? */
static opipe_status agree(const opipe_group *g, opipe_error *err) {
  const member *me = me_of(g);
  const opipe_collect_head own = head_of(g, g->index);
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < g->circle->base.n && status == OPIPE_OK && g->collects; ++i) {
    const opipe_collect_head other = head_of(g, i);
    if (members_of(g)[i].group != NULL && members_of(g)[i].given == me->given &&
        members_of(g)[i].finished < me->given) {
      status =
          opipe_collect_agree(g->params.id, me->given - 1, g->circle->base.n, &own, &other, err);
    }
  }
  if (status < 0)
    atomic_fetch_add(&strict_counted()->refused, 1);
  return status;
}

static opipe_status advance(opipe_group *g, const char *who, opipe_error *err) {
  member *me = me_of(g);
  const uint32_t n = g->circle->base.n;
  const opipe_status agreed = me->given == me->finished ? OPIPE_OK : agree(g, err);
  if (agreed < 0 || me->given == me->added || (g->index != 0 && me->part != me->given))
    return agreed;
  if (g->index != 0) {
    if (me->part_bytes != bytes_of(me) || me->part_dtype != me->what.dtype) {
      return strict_refuse(who, "all_reduce", err,
                           "round %llu: %llu bytes of %s, the members before have %llu of %s",
                           (unsigned long long)me->given - 1, (unsigned long long)bytes_of(me),
                           opipe_dtype_name(me->what.dtype), (unsigned long long)me->part_bytes,
                           opipe_dtype_name(me->part_dtype));
    }
    add_part(g);
  }
  me->added = me->given;
  if (g->index + 1 < n) {
    send_to(g, g->index + 1, FRAME_PART);
    return OPIPE_OK;
  }
  me->sum = me->given;
  for (uint32_t m = 0; m + 1 < n; ++m)
    send_to(g, m, FRAME_SUM);
  return OPIPE_OK;
}

static opipe_status finish(opipe_group *g, const char *who, opipe_error *err) {
  member *me = me_of(g);
  opipe_status status = advance(g, who, err);
  if (status == OPIPE_OK && (me->sum != me->given || me->n_jobs_left != 0))
    status = OPIPE_PENDING;
  if (status != OPIPE_OK)
    return status;
  move_values(g, false);
  me->finished = me->given;
  give_memories(g);
  atomic_fetch_add(&strict_counted()->sums, 1);
  return strict_record(g->endpoint, &me->what.done, err);
}

/* Addresses of a list, and the memory that it lies in. */
static opipe_status find_list(const opipe_group *g, const opipe_region *list, uint32_t n,
                              uint32_t first, const char *who, const char *call, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    opipe_memory *memory = NULL;
    char *data = NULL;
    status = strict_region(g->endpoint, &list[i], who, call, &memory, &data, err);
    g->spans[first + i] = (opipe_span){data, list[i].n_bytes};
    me_of(g)->memories[first + i] = memory; /* not taken yet */
  }
  return status;
}

static opipe_status begin_locked(opipe_group *g, const opipe_collect *what, uint64_t n_values,
                                 const char *who, const char *call, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const uint32_t n_regions = g->params.n_regions;
  member *me = me_of(g);
  opipe_status status = strict_events(e, what->ready, what->done, who, call, err);
  if (status == OPIPE_OK && me->finished != me->given)
    status = finish(g, who, err); /* the round before */
  if (status == OPIPE_OK)
    status = find_list(g, what->from, what->n_from, 0, who, call, err);
  if (status == OPIPE_OK)
    status = find_list(g, what->to, what->n_to, n_regions, who, call, err);
  if (status == OPIPE_OK && what->ready != NULL)
    status = e->backend->event_poll(what->ready, err);
  if (status == OPIPE_OK)
    status = strict_begin_in_order(g, who, call, err);
  if (status != OPIPE_OK) {
    if (me->finished == me->given)
      memset(me->memories, 0, 2 * (size_t)n_regions * sizeof *me->memories);
    return status;
  }
  me->what = *what;
  me->n_values = n_values;
  ++me->given;
  for (uint32_t i = 0; i < 2 * n_regions; ++i)
    strict_take(me->memories[i]);
  move_values(g, true);
  /* who has come looks whether they agree */
  for (uint32_t i = 0; i < g->circle->base.n && g->collects; ++i)
    strict_ring_rank(e->place, g->circle->base.ranks[i]);
  return g->index == 0 ? advance(g, who, err) : OPIPE_OK; /* others when their part is there */
}

static opipe_status check_round(const opipe_group *g, uint64_t sequence, const char *who,
                                const char *call, opipe_error *err) {
  const member *me = me_of(g);
  if (sequence != me->given) {
    return strict_refuse(who, call, err, "round %llu, round %llu is next",
                         (unsigned long long)sequence, (unsigned long long)me->given);
  }
  if (g->collects && me->finished != me->given) {
    return strict_refuse(who, call, err, "round %llu, round %llu has not ended",
                         (unsigned long long)sequence, (unsigned long long)me->finished);
  }
  return OPIPE_OK;
}

static opipe_status count_refused(opipe_status status) {
  if (status == OPIPE_E_INVALID)
    atomic_fetch_add(&strict_counted()->refused, 1);
  return status;
}

/* ---- the slots ---- */

opipe_status strict_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err) {
  opipe_collect what = {.kind = OPIPE_COLLECT_ALL_REDUCE,
                        .dtype = dtype,
                        .n_from = 1,
                        .n_to = 1,
                        .ready = ready,
                        .done = done};
  char who[STRICT_WHO];
  opipe_status status = strict_enter(g->endpoint, "all_reduce", err);
  if (status < 0)
    return status;
  strict_who_group(g, who);
  status = strict_usable(g->endpoint, g->n_opened, who, "all_reduce", err);
  if (status == OPIPE_OK)
    status = count_refused(opipe_reduce_check(g->params.n_bytes, region, n_elems, dtype, err));
  if (status == OPIPE_OK)
    status = check_round(g, sequence, who, "all_reduce", err);
  if (status == OPIPE_OK) {
    g->region = *region;
    what.from = what.to = &g->region;
    status = begin_locked(g, &what, n_elems, who, "all_reduce", err);
  }
  strict_leave(g->endpoint);
  return status;
}

static opipe_status test_round(opipe_group *g, uint64_t sequence, const char *call,
                               opipe_error *err) {
  const member *me = me_of(g);
  char who[STRICT_WHO];
  opipe_status status = strict_enter(g->endpoint, call, err);
  if (status < 0)
    return status;
  strict_who_group(g, who);
  status = strict_usable(g->endpoint, g->n_opened, who, call, err);
  if (status == OPIPE_OK && sequence >= me->given) {
    status = strict_refuse(who, call, err, "round %llu, %llu have begun",
                           (unsigned long long)sequence, (unsigned long long)me->given);
  }
  if (status == OPIPE_OK && sequence >= me->finished)
    status = finish(g, who, err);
  strict_leave(g->endpoint);
  return status;
}

opipe_status strict_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  return test_round(g, sequence, "group_test", err);
}

opipe_status strict_collect(opipe_collective *collective, uint64_t sequence,
                            const opipe_collect *collect, opipe_error *err) {
  opipe_group *g = &collective->group;
  uint64_t n_values = 0;
  char who[STRICT_WHO];
  opipe_status status = strict_enter(g->endpoint, "collect", err);
  if (status < 0)
    return status;
  strict_who_group(g, who);
  status = strict_usable(g->endpoint, g->n_opened, who, "collect", err);
  if (status == OPIPE_OK)
    status = check_round(g, sequence, who, "collect", err);
  if (status == OPIPE_OK)
    status = count_refused(opipe_collect_check(&g->params, g->index, collect, &n_values, err));
  if (status == OPIPE_OK)
    status = begin_locked(g, collect, n_values, who, "collect", err);
  strict_leave(g->endpoint);
  return status;
}

opipe_status strict_collect_test(opipe_collective *collective, uint64_t sequence,
                                 opipe_error *err) {
  return test_round(&collective->group, sequence, "collect_test", err);
}

/* ---- received frames ---- */

static opipe_group *find(const opipe_endpoint *e, const frame *head) {
  opipe_group *g = e->groups;
  while (g != NULL && (g->circle->id != head->id || g->index != head->member))
    g = g->next;
  return g;
}

/* A sum may come while the writer, which has sent the part, has not looked up yet: the values are
 * the reader's from then on. NULL, too, where the place ends meanwhile. */
static opipe_group *find_at_rest(opipe_endpoint *e, const frame *head) {
  opipe_group *g = find(e, head);
  while (g != NULL && head->kind == FRAME_SUM && me_of(g)->n_jobs_left != 0) {
    (void)pthread_cond_wait(&e->calm, &e->place->lock);
    g = atomic_load(&e->place->aborted) != 0 ? NULL : find(e, head);
  }
  return g;
}

bool strict_part_comes(opipe_endpoint *e, const frame *head, opipe_group **out_group,
                       char **out_target) {
  opipe_group *g = find_at_rest(e, head);
  const member *me = g == NULL ? NULL : me_of(g);
  const uint64_t n = head->number, room = g == NULL ? 0 : wide_bytes(g) - 1;
  const bool awaited = me != NULL && head->n_bytes <= room &&
                       (head->kind == FRAME_PART
                            ? g->index != 0 && me->part == n && me->added == n
                            : me->given == n + 1 && me->sum == n && me->added == n + 1 &&
                                  head->n_bytes == bytes_of(me) && head->dtype == me->what.dtype);
  if (!awaited && atomic_load(&e->place->aborted) == 0) {
    strict_break(e->world->host, e->place, e->rank,
                 "rank %u: %llu bytes of round %llu of group %llu come to member %u, which is at "
                 "round %llu and has room for %llu",
                 e->rank, (unsigned long long)head->n_bytes, (unsigned long long)n,
                 (unsigned long long)head->id, head->member,
                 (unsigned long long)(me == NULL ? 0 : me->given), (unsigned long long)room);
  }
  if (!awaited)
    return false;
  *out_group = g;
  *out_target = head->kind == FRAME_PART ? me->scratch : me->data;
  return true;
}

void strict_part_arrived(opipe_group *g, const frame *head) {
  member *me = me_of(g);
  if (head->kind == FRAME_PART) {
    me->part = head->number + 1;
    me->part_bytes = head->n_bytes;
    me->part_dtype = head->dtype;
  } else {
    me->sum = head->number + 1;
  }
  strict_ring_rank(g->endpoint->place, g->endpoint->rank);
}

void strict_part_written(const job *j) {
  opipe_group *g = j->group;
  --me_of(g)->n_jobs_left;
  strict_ring_rank(g->endpoint->place, g->endpoint->rank);
}
