/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: open, ready, close; who may call what on which thread.
 *
 * The thread that steps a rank may change (a session is opened by one thread and run by others),
 * but a thread that steps one rank keeps off another that a thread of its own steps.
 */
#include <poll.h>
#include <stdio.h>

#include "strict.h"

/* ---- threads ---- */

/* Never another thread's, as a pthread_t is once its thread has ended. */
static uint64_t thread_number(void) {
  static _Atomic uint64_t n_threads;
  static _Thread_local uint64_t own;
  if (own == 0)
    own = atomic_fetch_add(&n_threads, 1) + 1;
  return own;
}

static opipe_status check_thread(opipe_endpoint *e, const char *call, opipe_error *err) {
  const place *p = e->place;
  const uint64_t self = thread_number();
  char who[STRICT_WHO];
  for (uint32_t r = 0; e->owned && e->owner != self && r < p->n_ranks; ++r) {
    const opipe_endpoint *other = p->endpoints[r];
    if (other == NULL || other == e || !other->owned || other->owner != self)
      continue;
    strict_who_rank(e, who);
    return strict_refuse(who, call, err,
                         "a thread of its own steps it; the one that calls steps rank %u", r);
  }
  e->owner = self;
  e->owned = true;
  return OPIPE_OK;
}

opipe_status strict_enter(opipe_endpoint *e, const char *call, opipe_error *err) {
  char who[STRICT_WHO];
  if (atomic_exchange(&e->inside, 1) != 0) {
    strict_who_rank(e, who);
    return strict_refuse(who, call, err, "2 threads at once are in calls of the rank's thread");
  }
  pthread_mutex_lock(&e->place->lock);
  opipe_status status = strict_check(e->place, err);
  if (status == OPIPE_OK)
    status = check_thread(e, call, err);
  if (status < 0)
    strict_leave(e);
  return status;
}

void strict_leave(opipe_endpoint *e) {
  pthread_mutex_unlock(&e->place->lock);
  atomic_store(&e->inside, 0);
}

opipe_status strict_usable(const opipe_endpoint *e, uint64_t n_opened, const char *who,
                           const char *call, opipe_error *err) {
  return n_opened <= e->n_ready
             ? OPIPE_OK
             : strict_refuse(who, call, err,
                             "endpoint_ready has answered OK for %llu openings, this was number "
                             "%llu",
                             (unsigned long long)e->n_ready, (unsigned long long)n_opened);
}

/* ---- events ---- */

/* An event that is to be recorded needs somewhere to. */
opipe_status strict_events(const opipe_endpoint *e, const opipe_event *ready,
                           const opipe_event *done, const char *who, const char *call,
                           opipe_error *err) {
  if ((ready == NULL || e->backend != NULL) &&
      (done == NULL || (e->backend != NULL && e->queue != NULL)))
    return OPIPE_OK;
  return strict_refuse(who, call, err,
                       "an event, but rank %u was opened with %s backend and %s queue", e->rank,
                       e->backend == NULL ? "no" : "a", e->queue == NULL ? "no" : "a");
}

opipe_status strict_record(const opipe_endpoint *e, opipe_event **io_event, opipe_error *err) {
  opipe_event *event = *io_event;
  *io_event = NULL;
  return opipe_endpoint_record(e->rank, e->backend, e->queue, event, err);
}

/* ---- open ---- */

static bool make_conditions(opipe_endpoint *e) {
  pthread_condattr_t attributes;
  if (pthread_condattr_init(&attributes) != 0)
    return false;
  bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
              pthread_cond_init(&e->cond, &attributes) == 0;
  if (made && pthread_cond_init(&e->work, &attributes) != 0) {
    (void)pthread_cond_destroy(&e->cond);
    made = false;
  }
  if (made && pthread_cond_init(&e->calm, &attributes) != 0) {
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_cond_destroy(&e->cond);
    made = false;
  }
  (void)pthread_condattr_destroy(&attributes);
  return made;
}

static opipe_status take_place(opipe_endpoint *e, opipe_error *err) {
  place *p = e->place;
  opipe_status status = OPIPE_OK;
  pthread_mutex_lock(&p->lock);
  if (p->endpoints[e->rank] != NULL) {
    status =
        opipe_fail(err, OPIPE_E_STATE, "endpoint_open: rank %u has an endpoint already", e->rank);
  } else {
    p->endpoints[e->rank] = e;
    ++e->world->n_endpoints;
  }
  pthread_mutex_unlock(&p->lock);
  return status;
}

static void free_polled(opipe_endpoint *e) {
  const uint64_t n = e->place->n_ranks;
  opipe_free(e->world->host, e->polled, (n + 1) * sizeof *e->polled, STRICT_ALIGN);
}

opipe_status strict_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  place *p = world->place;
  opipe_status status = opipe_endpoint_check(p->n_ranks, params, err);
  if (status < 0)
    return status;
  opipe_endpoint *e = opipe_zeroed(world->host, "an endpoint", sizeof *e, STRICT_ALIGN, err);
  if (e == NULL)
    return OPIPE_E_NOMEM;
  e->world = world;
  e->place = p;
  e->backend = params->backend;
  e->queue = params->queue;
  e->rank = params->rank;
  e->last_job = &e->first_job;
  e->polled = opipe_zeroed(world->host, "an endpoint",
                           ((uint64_t)p->n_ranks + 1) * sizeof *e->polled, STRICT_ALIGN, err);
  if (e->polled == NULL) {
    status = OPIPE_E_NOMEM;
    goto fail;
  }
  if (!make_conditions(e)) {
    status = opipe_fail(err, OPIPE_E_NOMEM, "an endpoint: no signal could be made");
    goto fail;
  }
  status = take_place(e, err);
  if (status < 0)
    goto fail_conditions;
  status = strict_threads_start(e, err);
  if (status < 0) {
    pthread_mutex_lock(&p->lock);
    p->endpoints[e->rank] = NULL;
    --world->n_endpoints;
    pthread_mutex_unlock(&p->lock);
    goto fail_conditions;
  }
  *out_endpoint = e;
  return OPIPE_OK;
fail_conditions:
  (void)pthread_cond_destroy(&e->calm);
  (void)pthread_cond_destroy(&e->work);
  (void)pthread_cond_destroy(&e->cond);
fail:
  free_polled(e);
  opipe_free(world->host, e, sizeof *e, STRICT_ALIGN);
  return status;
}

/* ---- ready ---- */

static bool has_met(const opipe_group *g) {
  const opipe_circle *c = &g->circle->base;
  uint32_t i = 0;
  while (i < c->n && c->joined[i])
    ++i;
  return i == c->n;
}

static opipe_status ready_locked(opipe_endpoint *e, opipe_error *err) {
  const opipe_status status = strict_check(e->place, err);
  if (status < 0)
    return status;
  for (const opipe_stream *s = e->streams; s != NULL; s = s->next) {
    if (!s->wire->met)
      return OPIPE_PENDING;
  }
  for (const opipe_group *g = e->groups; g != NULL; g = g->next) {
    if (!has_met(g))
      return OPIPE_PENDING;
  }
  e->n_ready = e->n_opened;
  return OPIPE_OK;
}

opipe_status strict_endpoint_ready(opipe_endpoint *e, opipe_error *err) {
  pthread_mutex_lock(&e->place->lock);
  const opipe_status status = ready_locked(e, err);
  pthread_mutex_unlock(&e->place->lock);
  return status;
}

/* ---- close ---- */

static void count_left(const opipe_endpoint *e, uint32_t out_n[3]) {
  memset(out_n, 0, 3 * sizeof *out_n);
  for (const opipe_stream *s = e->streams; s != NULL; s = s->next)
    ++out_n[0];
  for (const opipe_group *g = e->groups; g != NULL; g = g->next)
    ++out_n[1];
  for (const opipe_memory *m = e->memories; m != NULL; m = m->next)
    ++out_n[2];
}

static bool has_nothing(const opipe_endpoint *e) {
  return e->streams == NULL && e->groups == NULL && e->memories == NULL;
}

/* It has nothing any more, and its place in the world is empty: nobody finds it. */
static void endpoint_free(opipe_endpoint *e) {
  opipe_world *world = e->world;
  strict_threads_stop(e);
  (void)pthread_cond_destroy(&e->calm);
  (void)pthread_cond_destroy(&e->work);
  (void)pthread_cond_destroy(&e->cond);
  free_polled(e);
  opipe_free(world->host, e, sizeof *e, STRICT_ALIGN);
  strict_world_leave(world);
}

void strict_endpoint_close(opipe_endpoint *e) {
  if (e == NULL)
    return;
  place *p = e->place;
  uint32_t left[3];
  pthread_mutex_lock(&p->lock);
  e->notify = NULL;
  const bool last = has_nothing(e);
  if (last) {
    p->endpoints[e->rank] = NULL;
  } else {
    count_left(e, left);
    e->closed = true;
    strict_break(e->world->host, p, e->rank,
                 "endpoint_close: rank %u still has %u streams, %u groups, %u registered buffers",
                 e->rank, left[0], left[1], left[2]);
  }
  pthread_mutex_unlock(&p->lock);
  if (last)
    endpoint_free(e);
}

void strict_endpoint_leave(opipe_endpoint *e) {
  place *p = e->place;
  pthread_mutex_lock(&p->lock);
  const bool last = e->closed && has_nothing(e);
  if (last)
    p->endpoints[e->rank] = NULL;
  pthread_mutex_unlock(&p->lock);
  if (last)
    endpoint_free(e);
}
