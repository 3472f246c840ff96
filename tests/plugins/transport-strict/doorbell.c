/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's doorbell: a counter under the place's lock. Where it cannot be awaited (`notify`) it
 * calls. */
#include <time.h>

#include "strict.h"

static uint64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void strict_ring_rank(place *p, uint32_t rank) {
  opipe_endpoint *e = p->endpoints[rank];
  if (e == NULL)
    return;
  ++e->count;
  pthread_cond_broadcast(&e->cond);
  if (e->notify != NULL)
    e->notify(e->notify_ctx);
  e->notify = NULL;
}

uint32_t strict_doorbell(opipe_endpoint *e) {
  pthread_mutex_lock(&e->place->lock);
  const uint32_t count = e->count;
  pthread_mutex_unlock(&e->place->lock);
  return count;
}

void strict_ring(opipe_endpoint *e) {
  pthread_mutex_lock(&e->place->lock);
  strict_ring_rank(e->place, e->rank);
  pthread_mutex_unlock(&e->place->lock);
}

opipe_status strict_wait(opipe_endpoint *e, uint32_t seen, uint64_t timeout_ns, opipe_error *err) {
  place *p = e->place;
  const uint64_t start = now_ns();
  const uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
  opipe_status status = strict_enter(e, "wait", err);
  if (status < 0)
    return status;
  uint64_t now = start;
  while (e->count == seen && atomic_load(&p->aborted) == 0 && now < until) {
    const struct timespec t = {.tv_sec = (time_t)(until / UINT64_C(1000000000)),
                               .tv_nsec = (long)(until % UINT64_C(1000000000))};
    if (until == UINT64_MAX)
      (void)pthread_cond_wait(&e->cond, &p->lock);
    else
      (void)pthread_cond_timedwait(&e->cond, &p->lock, &t);
    now = now_ns();
  }
  status = strict_check(p, err);
  if (status == OPIPE_OK && e->count == seen) {
    status = opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing happened for %llu ns", e->rank,
                        (unsigned long long)timeout_ns);
  }
  strict_leave(e);
  return status;
}

/* Whatever was asked for before is forgotten, also when the place has ended. */
void strict_notify(opipe_endpoint *e, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  place *p = e->place;
  pthread_mutex_lock(&p->lock);
  const bool now = e->count != seen || atomic_load(&p->aborted) != 0;
  e->notify = now ? NULL : fn;
  e->notify_ctx = ctx;
  if (now && fn != NULL)
    fn(ctx);
  pthread_mutex_unlock(&p->lock);
}
