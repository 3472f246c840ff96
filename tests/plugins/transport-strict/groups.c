/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions through the same pipes: member 0 sends its values to member 1, which adds its own and
 * sends the sum on; the last member has the sum of all, in rising order, and sends it to the
 * others. A member adds on its rank's thread, in group_test, once both are there.
 */
#include "strict.h"

static member *members_of(const opipe_group *g) {
  return g->circle->base.members;
}

static member *me_of(const opipe_group *g) {
  return &members_of(g)[g->index];
}

/* ---- set-up ---- */

static void give_back(opipe_group *g) {
  const opipe_host *host = g->endpoint->world->host;
  if (g->circle != NULL) {
    member *me = me_of(g);
    opipe_free(host, me->scratch, g->circle->base.n_bytes + 1, STRICT_ALIGN);
    opipe_free(host, g->jobs, g->n_jobs * sizeof *g->jobs, STRICT_ALIGN);
    *me = (member){.group = NULL};
    opipe_circle_leave(&g->endpoint->place->circles, &g->circle->base);
  }
  opipe_free(host, g, sizeof *g, STRICT_ALIGN);
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

static opipe_status open_locked(opipe_group *g, const uint32_t *ranks, uint32_t n, uint64_t n_bytes,
                                opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const opipe_host *host = e->world->host;
  opipe_circle *base = NULL;
  opipe_status status = strict_check(e->place, err);
  if (status == OPIPE_OK) {
    status =
        opipe_circle_join(&e->place->circles, e->rank, ranks, n, n_bytes, &base, &g->index, err);
  }
  if (status == OPIPE_E_INVALID)
    atomic_fetch_add(&strict_counted()->refused, 1);
  if (status < 0)
    return status;
  g->circle = (circle *)base;
  if (g->circle->id == 0)
    g->circle->id = ++e->place->n_ids;
  g->n_jobs = n;
  g->jobs = opipe_zeroed(host, "a group", n * sizeof *g->jobs, STRICT_ALIGN, err);
  member *me = me_of(g);
  *me = (member){.group = g};
  me->scratch = opipe_zeroed(host, "a group", n_bytes + 1, STRICT_ALIGN, err);
  if (g->jobs == NULL || me->scratch == NULL)
    return OPIPE_E_NOMEM;
  status = make_lanes(g, err);
  if (status < 0)
    return status;
  g->n_opened = ++e->n_opened;
  g->next = e->groups;
  e->groups = g;
  return OPIPE_OK;
}

opipe_status strict_group_open(opipe_endpoint *e, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_group *g = opipe_zeroed(e->world->host, "a group", sizeof *g, STRICT_ALIGN, err);
  if (g == NULL)
    return OPIPE_E_NOMEM;
  g->endpoint = e;
  pthread_mutex_lock(&e->place->lock);
  const opipe_status status = open_locked(g, ranks, n_ranks, n_bytes, err);
  if (status < 0)
    give_back(g);
  else
    *out_group = g;
  pthread_mutex_unlock(&e->place->lock);
  return status;
}

void strict_group_close(opipe_group *g) {
  if (g == NULL)
    return;
  opipe_endpoint *e = g->endpoint;
  place *p = e->place;
  member *me = me_of(g);
  char who[STRICT_WHO];
  pthread_mutex_lock(&p->lock);
  if (me->given != me->finished && atomic_load(&p->aborted) == 0) {
    strict_who_group(g, who);
    strict_break(e->world->host, p, e->rank,
                 "group_close: %s: %llu rounds have begun, %llu have ended", who,
                 (unsigned long long)me->given, (unsigned long long)me->finished);
  }
  strict_unqueue(e, g);
  strict_calm(e, g);
  strict_give(&me->memory);
  opipe_group **at = &e->groups;
  while (*at != g)
    at = &(*at)->next;
  *at = g->next;
  give_back(g);
  pthread_mutex_unlock(&p->lock);
  strict_endpoint_leave(e);
}

/* ---- a round; lock held ---- */

static uint64_t bytes_of(const member *m) {
  return m->n_elems * opipe_reduce_size(m->dtype);
}

static void send_to(opipe_group *g, uint32_t to, uint32_t kind) {
  member *me = me_of(g);
  g->jobs[to] = (job){.head = {.magic = FRAME_MAGIC,
                               .kind = kind,
                               .src_rank = g->endpoint->rank,
                               .member = to,
                               .dtype = me->dtype,
                               .id = g->circle->id,
                               .number = me->given - 1,
                               .n_bytes = bytes_of(me)},
                      .dst_rank = g->circle->base.ranks[to],
                      .source = me->data,
                      .group = g};
  ++me->n_jobs_left;
  strict_queue(g->endpoint, &g->jobs[to]);
}

/* The members before this one, then this one. */
static void add_part(const member *m) {
  if (m->dtype == OPIPE_DOUBLE) {
    const double *part = (const double *)(const void *)m->scratch;
    double *own = (double *)(void *)m->data;
    for (uint64_t i = 0; i < m->n_elems; ++i)
      own[i] = part[i] + own[i];
    return;
  }
  const float *part = (const float *)(const void *)m->scratch;
  float *own = (float *)(void *)m->data;
  for (uint64_t i = 0; i < m->n_elems; ++i)
    own[i] = part[i] + own[i];
}

static opipe_status advance(opipe_group *g, const char *who, opipe_error *err) {
  member *me = me_of(g);
  const uint32_t n = g->circle->base.n;
  if (me->given == me->added || (g->index != 0 && me->part != me->given))
    return OPIPE_OK;
  if (g->index != 0) {
    if (me->part_bytes != bytes_of(me) || me->part_dtype != me->dtype) {
      return strict_refuse(who, "all_reduce", err,
                           "round %llu: %llu bytes of %s, the members before have %llu of %s",
                           (unsigned long long)me->given - 1, (unsigned long long)bytes_of(me),
                           opipe_dtype_name(me->dtype), (unsigned long long)me->part_bytes,
                           opipe_dtype_name(me->part_dtype));
    }
    add_part(me);
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

static opipe_status check_round(const opipe_group *g, uint64_t sequence, const char *who,
                                const opipe_region *region, uint64_t n_elems, uint32_t dtype,
                                opipe_error *err) {
  const member *me = me_of(g);
  const opipe_status status =
      opipe_reduce_check(g->circle->base.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_E_INVALID)
    atomic_fetch_add(&strict_counted()->refused, 1);
  if (status == OPIPE_OK && sequence != me->given) {
    return strict_refuse(who, "all_reduce", err, "round %llu, round %llu is next",
                         (unsigned long long)sequence, (unsigned long long)me->given);
  }
  return status;
}

static opipe_status finish(opipe_group *g, const char *who, opipe_error *err) {
  member *me = me_of(g);
  opipe_status status = advance(g, who, err);
  if (status == OPIPE_OK && (me->sum != me->given || me->n_jobs_left != 0))
    status = OPIPE_PENDING;
  if (status != OPIPE_OK)
    return status;
  me->finished = me->given;
  strict_give(&me->memory);
  atomic_fetch_add(&strict_counted()->sums, 1);
  return strict_record(g->endpoint, &me->done, err);
}

static opipe_status reduce_locked(opipe_group *g, const member *what, const opipe_region *region,
                                  opipe_event *ready, const char *who, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  member *me = me_of(g);
  opipe_memory *memory = NULL;
  char *data = NULL;
  opipe_status status = strict_events(e, ready, what->done, who, "all_reduce", err);
  if (status == OPIPE_OK)
    status = strict_region(e, region, who, "all_reduce", &memory, &data, err);
  if (status == OPIPE_OK && me->finished != me->given)
    status = finish(g, who, err); /* the round before */
  if (status == OPIPE_OK && ready != NULL)
    status = e->backend->event_poll(ready, err);
  if (status != OPIPE_OK)
    return status;
  me->data = data;
  me->n_elems = what->n_elems;
  me->dtype = what->dtype;
  me->done = what->done;
  me->memory = memory;
  ++me->given;
  strict_take(memory);
  return g->index == 0 ? advance(g, who, err) : OPIPE_OK; /* others when their part is there */
}

opipe_status strict_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err) {
  const member what = {.n_elems = n_elems, .dtype = dtype, .done = done};
  char who[STRICT_WHO];
  opipe_status status = strict_enter(g->endpoint, "all_reduce", err);
  if (status < 0)
    return status;
  strict_who_group(g, who);
  status = strict_usable(g->endpoint, g->n_opened, who, "all_reduce", err);
  if (status == OPIPE_OK)
    status = check_round(g, sequence, who, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = reduce_locked(g, &what, region, ready, who, err);
  strict_leave(g->endpoint);
  return status;
}

opipe_status strict_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  member *me = me_of(g);
  char who[STRICT_WHO];
  opipe_status status = strict_enter(g->endpoint, "group_test", err);
  if (status < 0)
    return status;
  strict_who_group(g, who);
  status = strict_usable(g->endpoint, g->n_opened, who, "group_test", err);
  if (status == OPIPE_OK && sequence >= me->given) {
    status = strict_refuse(who, "group_test", err, "round %llu, %llu have begun",
                           (unsigned long long)sequence, (unsigned long long)me->given);
  }
  if (status == OPIPE_OK && sequence >= me->finished)
    status = finish(g, who, err);
  strict_leave(g->endpoint);
  return status;
}

/* ---- received frames ---- */

static opipe_group *find(const opipe_endpoint *e, const frame *head) {
  opipe_group *g = e->groups;
  while (g != NULL && (g->circle->id != head->id || g->index != head->member))
    g = g->next;
  return g;
}

/* A sum may come while the writer, which has sent the part, has not looked up yet: the region is
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
  const uint64_t n = head->number, room = g == NULL ? 0 : g->circle->base.n_bytes;
  const bool awaited =
      me != NULL && head->n_bytes <= room &&
      (head->kind == FRAME_PART ? g->index != 0 && me->part == n && me->added == n
                                : me->given == n + 1 && me->sum == n && me->added == n + 1 &&
                                      head->n_bytes == bytes_of(me) && head->dtype == me->dtype);
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
