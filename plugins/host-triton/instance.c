/* SPDX-License-Identifier: Apache-2.0 */
/* A session, the batches that are in flight in it, and the thread that answers them: ranks hand a
 * batch over and go on. While something is in flight the thread also looks whether the server's
 * clients have gone.
 */
#include <opipe/threads.h>
#include <time.h>

#include "adapter.h"

enum { LOOK_NS = 10 * 1000 * 1000 /* between two looks */ };

uint64_t now_ns(void) {
  struct timespec t = {0, 0};
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- lists ---- */

static void append(batch **list, batch *b) {
  while (*list != NULL)
    list = &(*list)->next;
  b->next = NULL;
  *list = b;
}

static void take_out(batch **list, const batch *b) {
  while (*list != NULL && *list != b)
    list = &(*list)->next;
  if (*list != NULL)
    *list = b->next;
}

void instance_launch(batch *b) {
  instance *i = b->owner;
  (void)pthread_mutex_lock(&i->lock);
  append(&i->flying, b);
  (void)pthread_cond_signal(&i->changed);
  (void)pthread_mutex_unlock(&i->lock);
}

void instance_land(batch *b) {
  instance *i = b->owner;
  (void)pthread_mutex_lock(&i->lock);
  take_out(&i->flying, b);
  append(&i->landed, b);
  (void)pthread_cond_signal(&i->changed);
  (void)pthread_mutex_unlock(&i->lock);
}

/* ---- the thread ---- */

/* Only this thread ends batches: what is in the list stays while it looks without the lock. */
static void look_around(instance *i) {
  batch *b = i->flying;
  while (b != NULL) {
    (void)pthread_mutex_unlock(&i->lock);
    batch_look(b);
    (void)pthread_mutex_lock(&i->lock);
    const batch *at = i->flying;
    while (at != NULL && at != b)
      at = at->next;
    b = at == NULL ? NULL : b->next; /* it has landed meanwhile: the rest another time */
  }
}

bool instance_sleep(instance *i, bool looks) {
  const uint64_t at = now_ns() + LOOK_NS;
  const struct timespec until = {(time_t)(at / UINT64_C(1000000000)),
                                 (long)(at % UINT64_C(1000000000))};
  if (looks)
    return pthread_cond_timedwait(&i->changed, &i->lock, &until) != 0;
  (void)pthread_cond_wait(&i->changed, &i->lock);
  return false;
}

static void *answer(void *arg) {
  instance *i = arg;
  opipe_thread_enter("onnxpipe-answer");
  (void)pthread_mutex_lock(&i->lock);
  if (i->s->set.n_context > 0)
    generate_run(i);
  while (!i->stop || i->flying != NULL || i->landed != NULL) {
    batch *b = i->landed;
    if (b != NULL) {
      i->landed = b->next;
      (void)pthread_mutex_unlock(&i->lock);
      batch_answer(b);
      (void)pthread_mutex_lock(&i->lock);
    } else if (instance_sleep(i, i->flying != NULL)) {
      look_around(i);
    }
  }
  (void)pthread_mutex_unlock(&i->lock);
  return NULL;
}

/* ---- open, close ---- */

tri_error *instance_open(tri_instance *handle, const served *s, instance **out) {
  opipe_session *session = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  pthread_condattr_t clock;
  instance *i = host_take(sizeof *i);
  if (i == NULL)
    return tri_no_memory();
  if (s->plan != NULL && host_open(&s->maker, s->plan, &session, &err) < 0) {
    host_give(i);
    return tri_fail_with(s->name, &err);
  }
  i->handle = handle;
  i->s = s;
  atomic_store(&i->late.session, session);
  (void)pthread_mutex_init(&i->late.lock, NULL);
  (void)pthread_mutex_init(&i->lock, NULL);
  (void)pthread_condattr_init(&clock);
  (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&i->changed, &clock);
  (void)pthread_cond_init(&i->room, NULL);
  (void)pthread_condattr_destroy(&clock);
  if (opipe_thread_create(&i->thread, NULL, answer, i) != 0) {
    host_close(&s->maker, session);
    host_give(i);
    return tri_fail(TRI_ERROR_UNAVAILABLE, "onnx-pipe: %s: no thread can be started", s->name);
  }
  *out = i;
  return NULL;
}

void instance_close(instance *i) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (i == NULL)
    return;
  (void)pthread_mutex_lock(&i->lock);
  i->stop = true;
  (void)pthread_cond_signal(&i->changed);
  (void)pthread_mutex_unlock(&i->lock);
  (void)pthread_join(i->thread, NULL);
  opipe_session *session = atomic_load(&i->late.session);
  if (host_write_trace(&i->s->maker, i->s->model, session, &err) < 0)
    tri_log(TRI_LOG_WARN, "onnx-pipe: no trace in %s: %s", i->s->set.common.trace, err.message);
  host_close(&i->s->maker, session);
  (void)pthread_cond_destroy(&i->changed);
  (void)pthread_cond_destroy(&i->room);
  (void)pthread_mutex_destroy(&i->lock);
  (void)pthread_mutex_destroy(&i->late.lock);
  host_give(i);
}
