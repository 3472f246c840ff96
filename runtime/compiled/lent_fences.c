/* SPDX-License-Identifier: Apache-2.0 */
/* Native fences. Submit records an event on the host's stream. Each rank that touches the tensor
 * lets its queue wait for that event, or for the host's own, before its first work for the request;
 * behind its last work it lets streams wait and records events.
 *
 * A queue works in order, so a wait holds up everything behind it. If that is not allowed (the
 * request has a deadline, or the session has requests of several streams), or the host itself
 * touches the tensor, the event is polled here, like a flag, and ranks get the request later.
 */
#include "runtime/compiled/lent_kit.h"

static bool is_native(const opipe_fence *fence) {
  return fence->kind == OPIPE_FENCE_NATIVE_STREAM || fence->kind == OPIPE_FENCE_NATIVE_EVENT;
}

static uint64_t handle_of(const opipe_fence *fence) {
  return (uint64_t)(uintptr_t)fence->handle;
}

/* ---- submitting ---- */

static opipe_status take_event(opi_rank *rank, opipe_event **io_event, opipe_error *err) {
  return *io_event != NULL ? OPIPE_OK
                           : OPI_MAKE_RANK(rank, event_create, io_event, err, rank->device);
}

static opipe_status take_ready(const opi_request *request, opi_rank *rank, uint32_t item,
                               const opipe_fence *ready, opipe_event **out_event,
                               opipe_error *err) {
  const uint32_t at = rank->place * opi_n_items(request->setup) + item;
  opi_lent_item *it = &request->lent->items[at];
  if (ready->kind == OPIPE_FENCE_NATIVE_EVENT) {
    OPI_TRY(opi_import_take(rank, OPI_IMPORT_EVENT, handle_of(ready), 0, &it->event, err));
    *out_event = it->event->as.event;
    return OPIPE_OK;
  }
  OPI_TRY(opi_import_take(rank, OPI_IMPORT_QUEUE, handle_of(ready), 0, &it->source, err));
  OPI_TRY(take_event(rank, &request->lent->events[at], err));
  *out_event = request->lent->events[at];
  return OPI_ASK_RANK(rank, event_record, err, it->source->as.queue, *out_event);
}

static opipe_status take_done(const opi_request *request, opi_rank *rank, uint32_t item,
                              const opipe_fence *done, opipe_error *err) {
  opi_lent_item *it = opi_lent_at(request, rank->place, item);
  if (done->kind == OPIPE_FENCE_NATIVE_EVENT) {
    it->signal = handle_of(done);
    return OPIPE_OK;
  }
  OPI_TRY(take_event(rank, &request->lent->ends[rank->place], err));
  return opi_import_take(rank, OPI_IMPORT_QUEUE, handle_of(done), 0, &it->stream, err);
}

/* One event can be recorded by one queue only. */
static opipe_status check_done(const opi_request *request, uint32_t item, const opipe_fence *done,
                               opipe_error *err) {
  const opi_setup *s = request->setup;
  uint32_t n = 0;
  for (uint32_t h = 0; h < s->n_here; ++h)
    n += opi_is_touched(request->runs, h, item);
  if (done->kind == OPIPE_FENCE_NATIVE_EVENT && n > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "tensor '%s': %u ranks touch it, one native event can say that 1 is done: give "
                    "a stream",
                    opi_item_name(s, item), n);
  }
  if (is_native(done) && item >= s->n_inputs && !request->results[item - s->n_inputs].on_device) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "output '%s' is in host memory, which the host writes: its `done` cannot be of "
                    "kind %u",
                    opi_item_name(s, item), done->kind);
  }
  return OPIPE_OK;
}

opipe_status opi_lent_take_fences(opi_request *request, uint32_t item, const opipe_fence *ready,
                                  const opipe_fence *done, bool look, opipe_error *err) {
  const opi_setup *s = request->setup;
  OPI_TRY(check_done(request, item, done, err));
  for (uint32_t h = 0; h < s->n_here; ++h) {
    opi_rank *rank = &s->ranks[s->here[h]];
    opi_lent_look *seen = &request->lent->looks[item];
    if (!opi_is_touched(request->runs, h, item) || (!is_native(ready) && !is_native(done)))
      continue;
    if (rank->device_type == 0) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "tensor '%s': the device of rank %u, which touches it, does not support "
                      "fences of kind %u",
                      opi_item_name(s, item), rank->index,
                      is_native(ready) ? ready->kind : done->kind);
    }
    if (is_native(ready) && !look) {
      OPI_TRY(take_ready(request, rank, item, ready, &opi_lent_at(request, h, item)->ready, err));
    } else if (is_native(ready) && seen->rank == NULL) {
      seen->rank = rank;
      OPI_TRY(take_ready(request, rank, item, ready, &seen->event, err));
    }
    if (is_native(done))
      OPI_TRY(take_done(request, rank, item, done, err));
  }
  return OPIPE_OK;
}

/* ---- looking ---- */

/* A device's error counts as ready: the work behind the fence will report it. */
static bool is_ready(const opi_request *request, uint32_t item, const opipe_fence *fence) {
  if (!is_native(fence))
    return opi_fence_set(fence);
  const opi_lent_look *seen = request->lends ? &request->lent->looks[item] : NULL;
  return seen == NULL || seen->event == NULL ||
         seen->rank->backend->event_poll(seen->event, NULL) != OPIPE_PENDING;
}

bool opi_feed_ready(const opi_request *request, uint32_t input) {
  return is_ready(request, input, &request->feeds[input].ready);
}

bool opi_result_ready(const opi_request *request, uint32_t output) {
  return is_ready(request, request->setup->n_inputs + output, &request->results[output].ready);
}

/* ---- ranks ---- */

opipe_status opi_lent_wait_fences(opi_rank *rank, opi_request *request, opipe_error *err) {
  const uint32_t n = opi_n_items(rank->setup);
  if (request->lent->begun[rank->place])
    return OPIPE_OK;
  for (uint32_t i = 0; i < n; ++i) {
    opipe_event *ready = opi_lent_at(request, rank->place, i)->ready;
    if (ready != NULL)
      OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, rank->queue, ready));
  }
  request->lent->begun[rank->place] = true;
  return OPIPE_OK;
}

static opipe_status set_done(opi_rank *rank, const opi_request *request, opipe_error *err) {
  const uint32_t n = opi_n_items(rank->setup);
  opipe_event *end = NULL;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_lent_item *it = opi_lent_at(request, rank->place, i);
    if (it->signal != 0)
      OPI_TRY(OPI_ASK_RANK(rank, event_signal, err, rank->queue, it->signal));
    if (it->stream == NULL)
      continue;
    if (end == NULL) {
      end = request->lent->ends[rank->place];
      OPI_TRY(OPI_ASK_RANK(rank, event_record, err, rank->queue, end));
    }
    OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, it->stream->as.queue, end));
  }
  return OPIPE_OK;
}

/* A rank without work for the request sets no fences. */
opipe_status opi_lent_set_fences(opi_rank *rank, opi_request *request, opipe_error *err) {
  if (request->lent->begun[rank->place])
    OPI_TRY(set_done(rank, request, err));
  atomic_fetch_sub(&request->lent->n_left, 1);
  return OPIPE_OK;
}

bool opi_lent_queued(const opi_request *request) {
  return request->lends && atomic_load(&request->lent->n_left) == 0;
}
