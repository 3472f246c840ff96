/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the requests layer with its session, and fills in the tables of functions that
 * the layers below call. */
#include <errno.h>
#include <unistd.h>

#include "runtime/requests/requests.h"

/* ---- called from below ---- */

static void queued(void *ctx) {
  opi_session *s = ctx;
  if (atomic_load(&s->waits.n_waiters) == 0)
    return;
  opi_lock_take(&s->waits.lock);
  opi_lock_signal(&s->waits.lock);
  opi_lock_give(&s->waits.lock);
}

static void settle(void *ctx) {
  opi_session_settle(ctx);
}

static void admit(void *ctx) {
  opi_session_admit(ctx);
}

static uint64_t held_looks_ns(const void *ctx) {
  return opi_held_looks_ns(ctx);
}

static void await_value(void *ctx, const uint32_t *flag) {
  opi_room_await(ctx, flag);
}

static opipe_status share(void *ctx, uint32_t holder, void *data, uint64_t n_bytes,
                          opipe_status had, opipe_error *io_err) {
  return opi_peers_share(ctx, holder, data, n_bytes, had, io_err);
}

/* ---- open and close ---- */

opipe_status opi_requests_begin(opi_session *s, opipe_error *err) {
  opi_lock *const locks[] = {&s->waits.lock,   &s->shapes->submit_lock,
                             &s->shapes->lock, &s->room.lock,
                             &s->run_lock,     &s->steps.rest_lock};
  opipe_status status = OPIPE_OK;
  uint32_t n = 0;
  while (status == OPIPE_OK && n < OPI_COUNT(locks))
    status = opi_lock_init(locks[n++], err);
  for (uint32_t i = 0; status < 0 && i + 1 < n; ++i)
    opi_lock_destroy(locks[i]);
  atomic_init(&s->waits.finished_fd, -1);
  s->engine->above = (opi_engine_above){.ctx = s,
                                        .finish = opi_request_finish,
                                        .passed = opi_request_passed,
                                        .queued = queued,
                                        .settle = settle,
                                        .admit = admit,
                                        .held_looks_ns = held_looks_ns};
  s->shapes->above = (opi_shapes_above){.ctx = s, .await_value = await_value, .share = share};
  return status;
}

void opi_requests_end(opi_session *s) {
  opi_pool_free(s);
  opi_lock_destroy(&s->steps.rest_lock);
  opi_lock_destroy(&s->run_lock);
  opi_lock_destroy(&s->room.lock);
  opi_lock_destroy(&s->shapes->lock);
  opi_lock_destroy(&s->shapes->submit_lock);
  opi_lock_destroy(&s->waits.lock);
}

static opipe_status make_first(opi_session *s, uint32_t n, opipe_error *err) {
  opi_request *list = NULL;
  for (uint32_t i = 0; i < n; ++i) {
    opi_request *request = opi_request_new(s, err);
    if (request == NULL)
      return OPIPE_E_NOMEM; /* the pool frees those that were made */
    request->caller->next_free = list;
    list = request;
  }
  s->pool.free = list;
  return OPIPE_OK;
}

opipe_status opi_requests_open(opi_session *s, opipe_error *err) {
  const uint32_t n = s->setup->max_in_flight;
  OPI_TRY(opi_held_open(s, err));
  return make_first(s, n < 64 ? n : 64, err);
}

void opi_requests_shut(opi_session *s) {
  for (uint32_t i = 0; i < s->pool.n; ++i)
    opi_handle_slot_disarm(s->pool.all[i]->caller->slot);
  for (uint32_t i = 0; i < s->pool.n; ++i)
    opi_handle_slot_drain(s->pool.all[i]->caller->slot, 0);
}

void opi_requests_stop(opi_session *s) {
  for (uint32_t i = 0; i < s->pool.n; ++i)
    opi_lent_stop_request(s->pool.all[i]);
}

void opi_session_ring_finished(opi_session *s) {
  const uint64_t one = 1;
  while (write(atomic_load(&s->waits.finished_fd), &one, sizeof one) < 0 && errno == EINTR) {
  }
}
