/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that asks communicators for errors, hears from the board that the world has ended, and
 * then aborts all of them: whatever hangs on the device ends. It sleeps otherwise.
 */
#include <opipe/threads.h>

#include "world.h"

enum { LOOK_NS = 50000000, NUDGE_NS = 100000 };

static struct timespec at(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                           .tv_nsec = (long)(ns % UINT64_C(1000000000))};
}

void nccl_helper_wake(opipe_endpoint *e) {
  (void)pthread_cond_signal(&e->helper.work); /* without the lock: it looks soon in any case */
}

/* Is what the lane has to be ended? A world that was closed in order has some time. */
static bool is_to_abort(opipe_endpoint *e) {
  opipe_world *world = e->world;
  if (e->helper.aborts || nccl_check(world, NULL) == OPIPE_OK)
    return false;
  if (atomic_load(&world->orderly) == 0)
    return true;
  return machine_now_ns() - world->end_ns > NCCL_CLOSE_NS &&
         nccl_settle(e, e->n_launches) != OPIPE_OK;
}

/* The lock is held, but while communicators are aborted: others find the world ended, and leave
 * them alone. */
static void abort_all(opipe_endpoint *e) {
  e->helper.aborts = true;
  if (e->world->options.records && nccl_check(e->world, NULL) < 0 &&
      atomic_load(&e->world->orderly) == 0)
    nccl_write_records(e);
  (void)pthread_mutex_unlock(&e->lock);
  nccl_comms_abort(e);
  (void)pthread_mutex_lock(&e->lock);
  for (nccl_comm *comm = e->comms; comm != NULL; comm = comm->next)
    comm->comm = NULL;
  e->launching = NULL;
  ++e->n_launches;  /* the last launch may have no mark: this one is behind it */
  if (!e->given_up) /* else the device may be closed by now */
    (void)nccl_mark(e, NULL);
  e->helper.aborted = true;
}

static void look(opipe_endpoint *e) {
  nccl_hear_end(e, false);
  if (nccl_check(e->world, NULL) == OPIPE_OK && e->launching == NULL)
    nccl_comms_poll(e);
  if (is_to_abort(e))
    abort_all(e);
}

static void nudge(opipe_endpoint *e) {
  const struct timespec pause = {.tv_nsec = NUDGE_NS};
  e->helper.nudge = false;
  (void)pthread_mutex_unlock(&e->lock);
  (void)nanosleep(&pause, NULL);
  nccl_ring(e);
  (void)pthread_mutex_lock(&e->lock);
}

static void *help(void *arg) {
  opipe_endpoint *e = arg;
  opipe_thread_enter("opipe-nccl");
  (void)pthread_mutex_lock(&e->lock);
  while (!e->helper.stops) {
    look(e);
    if (e->helper.nudge) {
      nudge(e);
    } else if (!e->helper.stops) {
      const struct timespec until = at(machine_now_ns() + LOOK_NS);
      (void)pthread_cond_timedwait(&e->helper.work, &e->lock, &until);
    }
  }
  if (!e->helper.aborts && nccl_check(e->world, NULL) < 0 && atomic_load(&e->world->orderly) == 0)
    look(e);
  bool left = false;
  for (const nccl_comm *comm = e->comms; comm != NULL; comm = comm->next)
    left = left || comm->comm != NULL;
  if (left && !e->helper.aborts) /* they do not end in order */
    abort_all(e);
  (void)pthread_mutex_unlock(&e->lock);
  return NULL;
}

opipe_status nccl_helper_start(opipe_endpoint *e, opipe_error *err) {
  if (opipe_thread_create(&e->helper.thread, NULL, help, e) != 0)
    return opipe_fail(err, OPIPE_E_NOMEM, "rank %u: no thread could be made", e->rank);
  e->helper.is_there = true;
  return OPIPE_OK;
}

bool nccl_helper_stop(opipe_endpoint *e, uint64_t until_ns) {
  struct timespec now, until;
  const uint64_t clock = machine_now_ns();
  (void)pthread_mutex_lock(&e->lock);
  e->helper.stops = true;
  (void)pthread_cond_signal(&e->helper.work);
  (void)pthread_mutex_unlock(&e->lock);
  (void)clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t left = until_ns > clock ? until_ns - clock : 1;
  until = at((uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec + left);
  if (pthread_timedjoin_np(e->helper.thread, NULL, &until) == 0)
    return true;
  (void)pthread_detach(e->helper.thread);
  nccl_log(e->world->host, OPIPE_LOG_WARN,
           "transport 'nccl': ncclCommAbort has not ended within its time: a thread, and memory of "
           "the rank's, stay until the process ends");
  return false;
}
