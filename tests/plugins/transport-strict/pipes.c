/* SPDX-License-Identifier: Apache-2.0 */
/* Pipes, and the two threads of an endpoint. The writer takes one job after the other whose `ready`
 * event has completed; the reader takes one frame after the other, from whichever rank. A frame is
 * only written once its receive stands (streams), or once its round has come to it (groups), so the
 * reader always has a place for its bytes, and never waits but for a writer that is under way.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "strict.h"

static opipe_status make_pipe(int out[2], const char *what, opipe_error *err) {
  if (pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0)
    return OPIPE_OK;
  out[0] = out[1] = -1;
  return opipe_fail(err, OPIPE_E_NOMEM, "%s: no pipe could be made (errno %d)", what, errno);
}

opipe_status strict_lane(place *p, uint32_t src, uint32_t dst, opipe_error *err) {
  lane *l = &p->lanes[(size_t)src * p->n_ranks + dst];
  int ends[2];
  if (l->in >= 0)
    return OPIPE_OK;
  const opipe_status status = make_pipe(ends, "a stream or group", err);
  if (status < 0)
    return status;
  *l = (lane){.in = ends[0], .out = ends[1]};
  if (p->endpoints[dst] != NULL)
    strict_prod(p->endpoints[dst]);
  return OPIPE_OK;
}

void strict_lanes_close(place *p) {
  for (size_t i = 0; p->lanes != NULL && i < (size_t)p->n_ranks * p->n_ranks; ++i) {
    if (p->lanes[i].in < 0)
      continue;
    (void)close(p->lanes[i].in);
    (void)close(p->lanes[i].out);
  }
}

/* Both look again. Where the wake pipe is full there is a wake in it already. */
void strict_prod(opipe_endpoint *e) {
  const char one = 1;
  const ssize_t n = e->threaded ? write(e->wake[1], &one, 1) : 0;
  (void)n;
  pthread_cond_broadcast(&e->work);
}

static bool is_over(const opipe_endpoint *e) {
  return atomic_load(&e->stop) != 0 || atomic_load(&e->place->aborted) != 0;
}

static void drain_wakes(const opipe_endpoint *e) {
  char some[64];
  while (read(e->wake[0], some, sizeof some) > 0) {
  }
}

/* Bytes through a pipe end; false: it is over. Only a thread of the endpoint calls it. */
static bool move_bytes(opipe_endpoint *e, int fd, bool writes, char *data, uint64_t n_bytes) {
  while (n_bytes != 0 && !is_over(e)) {
    const ssize_t n = writes ? write(fd, data, (size_t)n_bytes) : read(fd, data, (size_t)n_bytes);
    if (n > 0) {
      data += n;
      n_bytes -= (uint64_t)n;
      continue;
    }
    struct pollfd both[2] = {{.fd = fd, .events = writes ? POLLOUT : POLLIN},
                             {.fd = e->wake[0], .events = POLLIN}};
    (void)poll(both, 2, 50); /* the other thread may take the wake: look again by the clock */
    if (!writes && (both[1].revents & POLLIN) != 0 && !is_over(e))
      drain_wakes(e);
  }
  return n_bytes == 0;
}

/* ---- the writer ---- */

void strict_queue(opipe_endpoint *e, job *j) {
  j->next = NULL;
  j->queued = 1;
  *e->last_job = j;
  e->last_job = &j->next;
  pthread_cond_broadcast(&e->work);
}

static void unlink_job(opipe_endpoint *e, job **at) {
  job *j = *at;
  *at = j->next;
  if (*at == NULL)
    e->last_job = at;
  j->next = NULL;
}

void strict_unqueue(opipe_endpoint *e, const void *owner) {
  for (job **at = &e->first_job; *at != NULL;) {
    if ((*at)->stream == owner || (*at)->group == owner)
      unlink_job(e, at);
    else
      at = &(*at)->next;
  }
}

/* The first whose event has completed; NULL: none. *out_later: one waits for its event. */
static job *take_job(opipe_endpoint *e, bool *out_later) {
  opipe_error why = OPIPE_ERROR_INIT;
  *out_later = false;
  for (job **at = &e->first_job; *at != NULL; at = &(*at)->next) {
    job *j = *at;
    const opipe_status status =
        j->ready == NULL ? OPIPE_OK : e->backend->event_poll(j->ready, &why);
    if (status < 0) {
      strict_end(e->place, e->rank, &why);
      return NULL;
    }
    *out_later = *out_later || status == OPIPE_PENDING;
    if (status == OPIPE_PENDING)
      continue;
    unlink_job(e, at);
    return j;
  }
  return NULL;
}

static void wait_for_work(opipe_endpoint *e, bool soon) {
  enum { AGAIN_NS = 50000 };
  struct timespec t;
  if (!soon) {
    (void)pthread_cond_wait(&e->work, &e->place->lock);
    return;
  }
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += AGAIN_NS;
  if (t.tv_nsec >= 1000000000) {
    t.tv_nsec -= 1000000000;
    ++t.tv_sec;
  }
  (void)pthread_cond_timedwait(&e->work, &e->place->lock, &t);
}

static void written(const job *j) {
  if (j->stream != NULL)
    strict_message_written(j);
  else
    strict_part_written(j);
}

static void *writer_thread(void *arg) {
  opipe_endpoint *e = arg;
  place *p = e->place;
  opipe_thread_enter("strict-writer");
  pthread_mutex_lock(&p->lock);
  while (atomic_load(&e->stop) == 0) {
    bool later = false;
    job *j = is_over(e) ? NULL : take_job(e, &later);
    if (j == NULL) {
      wait_for_work(e, later);
      continue;
    }
    const int fd = p->lanes[(size_t)e->rank * p->n_ranks + j->dst_rank].out;
    e->writing = j->stream != NULL ? (const void *)j->stream : (const void *)j->group;
    pthread_mutex_unlock(&p->lock);
    frame head = j->head;
    const bool done = move_bytes(e, fd, true, (char *)&head, sizeof head) &&
                      move_bytes(e, fd, true, (char *)(uintptr_t)j->source, head.n_bytes);
    pthread_mutex_lock(&p->lock);
    e->writing = NULL;
    j->queued = 0;
    if (done && !is_over(e))
      written(j);
    pthread_cond_broadcast(&e->calm);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* ---- the reader ---- */

/* Lock not held. */
static void take_frame(opipe_endpoint *e, uint32_t src, int fd) {
  place *p = e->place;
  frame head;
  opipe_stream *stream = NULL;
  opipe_group *group = NULL;
  char *target = NULL;
  if (!move_bytes(e, fd, false, (char *)&head, sizeof head))
    return;
  pthread_mutex_lock(&p->lock);
  bool known = head.magic == FRAME_MAGIC && head.src_rank == src && head.kind >= FRAME_MESSAGE &&
               head.kind <= FRAME_SUM;
  if (!known) {
    strict_break(e->world->host, p, e->rank,
                 "rank %u: a frame of kind %u by rank %u in the pipe of rank %u", e->rank,
                 head.kind, head.src_rank, src);
  } else if (atomic_load(&p->aborted) != 0) {
    known = false;
  } else {
    known = head.kind == FRAME_MESSAGE ? strict_message_comes(e, &head, &stream, &target)
                                       : strict_part_comes(e, &head, &group, &target);
  }
  e->reading = !known ? NULL : stream != NULL ? (const void *)stream : (const void *)group;
  pthread_mutex_unlock(&p->lock);
  if (!known)
    return;
  const bool whole = move_bytes(e, fd, false, target, head.n_bytes);
  pthread_mutex_lock(&p->lock);
  e->reading = NULL;
  if (whole && atomic_load(&p->aborted) == 0) {
    if (stream != NULL)
      strict_message_arrived(stream, &head);
    else
      strict_part_arrived(group, &head);
  }
  pthread_cond_broadcast(&e->calm);
  pthread_mutex_unlock(&p->lock);
}

/* Which pipes lead here; [n_ranks] is the wake. */
static void list_pipes(opipe_endpoint *e) {
  const place *p = e->place;
  for (uint32_t r = 0; r < p->n_ranks; ++r) {
    const int fd = p->lanes[(size_t)r * p->n_ranks + e->rank].in;
    e->polled[r] = (struct pollfd){.fd = fd, .events = POLLIN}; /* -1: passed over */
  }
  e->polled[p->n_ranks] = (struct pollfd){.fd = e->wake[0], .events = POLLIN};
}

static void *reader_thread(void *arg) {
  opipe_endpoint *e = arg;
  place *p = e->place;
  opipe_thread_enter("strict-reader");
  while (atomic_load(&e->stop) == 0) {
    pthread_mutex_lock(&p->lock);
    list_pipes(e);
    pthread_mutex_unlock(&p->lock);
    if (is_over(e)) { /* messages in the pipes are nobody's any more */
      for (uint32_t r = 0; r < p->n_ranks; ++r)
        e->polled[r].fd = -1;
    }
    if (poll(e->polled, (nfds_t)p->n_ranks + 1, -1) < 0)
      continue;
    if ((e->polled[p->n_ranks].revents & POLLIN) != 0)
      drain_wakes(e);
    for (uint32_t r = 0; r < p->n_ranks && !is_over(e); ++r) {
      if ((e->polled[r].revents & POLLIN) != 0)
        take_frame(e, r, e->polled[r].fd);
    }
  }
  return NULL;
}

/* ---- both ---- */

void strict_calm(opipe_endpoint *e, const void *owner) {
  while (owner == NULL ? e->writing != NULL || e->reading != NULL
                       : e->writing == owner || e->reading == owner)
    (void)pthread_cond_wait(&e->calm, &e->place->lock);
}

static void stop_one(opipe_endpoint *e, pthread_t thread) {
  pthread_mutex_lock(&e->place->lock);
  atomic_store(&e->stop, 1);
  strict_prod(e);
  pthread_mutex_unlock(&e->place->lock);
  (void)pthread_join(thread, NULL);
}

static void set_threaded(opipe_endpoint *e, bool threaded) {
  pthread_mutex_lock(&e->place->lock);
  e->threaded = threaded;
  pthread_mutex_unlock(&e->place->lock);
}

opipe_status strict_threads_start(opipe_endpoint *e, opipe_error *err) {
  const opipe_status status = make_pipe(e->wake, "an endpoint", err);
  if (status < 0)
    return status;
  set_threaded(e, true);
  if (opipe_thread_create(&e->writer, NULL, writer_thread, e) != 0)
    goto fail;
  if (opipe_thread_create(&e->reader, NULL, reader_thread, e) != 0) {
    stop_one(e, e->writer);
    goto fail;
  }
  return OPIPE_OK;
fail:
  set_threaded(e, false);
  (void)close(e->wake[0]);
  (void)close(e->wake[1]);
  return opipe_fail(err, OPIPE_E_NOMEM, "an endpoint: no thread could be started");
}

void strict_threads_stop(opipe_endpoint *e) {
  stop_one(e, e->reader);
  stop_one(e, e->writer);
  set_threaded(e, false);
  (void)close(e->wake[0]);
  (void)close(e->wake[1]);
}
