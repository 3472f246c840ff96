/* SPDX-License-Identifier: Apache-2.0 */
/* Queueing ahead of a device: entries, events of messages, staging memory. */
#include "runtime/executor/ahead.h"

#include "runtime/executor/stamps.h"

enum { ABORT_NS = 2000000000 }; /* a transport may need as long to end what it has queued */

/* ---- open and close ---- */

opipe_status opi_ahead_open(opi_rank *rank, opipe_error *err) {
  struct opi_ahead *a = opi_alloc_zero(rank->setup->allocator, 1, sizeof *a);
  if (a == NULL)
    return opi_fail_nomem(err, sizeof *a, "a queue");
  rank->worker->ahead = a;
  OPI_TRY(opi_stamps_open(rank, err));
  for (uint32_t i = 0; i < OPI_AHEAD; ++i) {
    OPI_TRY(opi_stamps_event(rank, &a->entries[i].event, err));
    if (rank->worker->stamps != NULL)
      OPI_TRY(opi_stamps_event(rank, &a->entries[i].begun, err));
  }
  for (uint32_t i = 0; i < OPI_AHEAD_SENDS; ++i) {
    OPI_TRY(OPI_MAKE_RANK(rank, event_create, &a->sends[i], err, rank->device));
    ++a->n_sends;
  }
  return OPIPE_OK;
}

/* Takes back the events of messages that never arrived; their world is closed. */
static void take_back(struct opi_ahead *a, opi_shape *const *shapes, uint32_t n, uint32_t rank) {
  for (uint32_t i = 0; i < n; ++i) {
    const opi_compiled *t = shapes[i] == NULL ? NULL : shapes[i]->compiled;
    opi_seat *seat = t == NULL || t->seats == NULL ? NULL : &t->seats[rank];
    for (uint32_t w = 0; seat != NULL && w < seat->n_waiting; ++w) {
      if (seat->waiting[w].ready != NULL)
        a->sends[a->n_sends++] = seat->waiting[w].ready;
      seat->waiting[w].ready = NULL;
    }
  }
  if (a->standing != NULL)
    a->sends[a->n_sends++] = a->standing;
  a->standing = NULL;
}

void opi_ahead_close(opi_rank *rank) {
  const opi_setup *s = rank->setup;
  struct opi_ahead *a = rank->worker->ahead;
  if (a == NULL)
    return;
  take_back(a, s->shapes->list, s->shapes->list == NULL ? 0 : s->shapes->n_places, rank->index);
  for (uint32_t i = 0; i < OPI_AHEAD; ++i) {
    rank->backend->event_destroy(a->entries[i].event);
    rank->backend->event_destroy(a->entries[i].begun);
  }
  for (uint32_t i = 0; i < a->n_sends; ++i)
    rank->backend->event_destroy(a->sends[i]);
  opi_stamps_close(rank);
  opi_free(s->allocator, a, sizeof *a);
  rank->worker->ahead = NULL;
}

/* A device that the watchdog has given up on is hardly waited for again. But where messages between
 * sessions are work of the device, it may stand for a peer alone: the transport then ends that
 * work, and needs a moment for it. */
static uint64_t patience_ns_of(const opi_setup *s, bool given_up) {
  if (!given_up)
    return s->watchdog_ns;
  return opi_is_shared(s) && s->plan->decided.link.queues ? ABORT_NS : OPI_LOOK_NS;
}

/* Waits until the device has finished its queued work, so that memory can be freed. A queue that
 * has not finished by then is given up, if the backend can do that: nothing that its work may touch
 * is freed. Otherwise freeing waits, or fails. A queue that takes no event any more is closed,
 * which finishes its work. */
void opi_ahead_end(opi_rank *rank) {
  const opi_setup *s = rank->setup;
  opipe_error why = OPIPE_ERROR_INIT;
  if (rank->event == NULL)
    return;
  const bool given_up = s->ending.why.status == OPIPE_E_TIMEOUT && s->watchdog_ns > OPI_LOOK_NS;
  const uint64_t patience_ns = patience_ns_of(s, given_up);
  opipe_status status =
      opi_record(opi_rank_backend(rank), rank->queue, rank->event, patience_ns, &why);
  if (status == OPIPE_OK) {
    status = rank->backend->event_sync(rank->event, patience_ns, &why);
  } else if (!given_up) {
    rank->backend->queue_close(rank->queue);
    rank->queue = NULL;
  }
  const bool stands = status == OPIPE_E_TIMEOUT;
  opi_mover_end(rank, stands && patience_ns > OPI_LOOK_NS ? OPI_LOOK_NS : patience_ns);
  if (stands) {
    const bool left = opi_queue_give_up(rank->backend, &rank->queue);
    opi_log(s->env.logger, OPIPE_LOG_ERROR,
            "rank %u: its device has not finished what was queued, %.3g s after the session "
            "ended%s",
            rank->index, (double)patience_ns * 1e-9, left ? ": the queue is given up" : "");
  }
}

/* ---- entries ---- */

bool opi_ahead_finds(const struct opi_ahead *a, const opi_message_run *message, uint64_t number) {
  for (uint64_t n = a->n_out; n < a->n_in; ++n) {
    const opi_ahead_entry *e = &a->entries[n % OPI_AHEAD];
    if (e->kind == OPI_AHEAD_POST && e->work.shape->messages[e->message].wire == message->wire &&
        e->number == number)
      return true;
  }
  return false;
}

opipe_status opi_ahead_begin(opi_rank *rank, opipe_error *err) {
  struct opi_ahead *a = rank->worker->ahead;
  return a == NULL || rank->worker->stamps == NULL
             ? OPIPE_OK
             : OPI_ASK_RANK(rank, event_record, err, rank->queue,
                            a->entries[a->n_in % OPI_AHEAD].begun);
}

opipe_status opi_ahead_push(opi_rank *rank, const opi_ahead_entry *entry, opipe_error *err) {
  struct opi_ahead *a = rank->worker->ahead;
  opi_ahead_entry *e = &a->entries[a->n_in % OPI_AHEAD];
  opipe_event *event = e->event, *begun = e->begun;
  *e = *entry;
  e->event = event;
  e->begun = begun;
  e->staging_end = a->staged_in;
  if (a->n_in == a->n_out)
    a->moved_ns = opi_clock_ns();
  ++a->n_in;
  a->n_stores += e->kind == OPI_AHEAD_STORE;
  a->n_posts += e->kind == OPI_AHEAD_POST;
  return e->kind >= OPI_AHEAD_SUM ? OPIPE_OK
                                  : OPI_ASK_RANK(rank, event_record, err, rank->queue, event);
}

/* Staging memory that has grown is used from its beginning; data in the old one stays there. */
char *opi_ahead_stage(opi_rank *rank, uint64_t n_bytes) {
  struct opi_ahead *a = rank->worker->ahead;
  const opi_staging *now = atomic_load_explicit(&rank->staging, memory_order_acquire);
  if (a->staging != now) {
    a->staging = now;
    a->staged_in = a->staged_out = 0;
    a->staging_first = a->n_in;
  }
  const uint64_t at = a->staged_in % now->memory.n_bytes;
  const uint64_t skipped = at + n_bytes > now->memory.n_bytes ? now->memory.n_bytes - at : 0;
  if (a->staged_in == a->staged_out)
    a->staged_out += skipped;
  if (a->staged_in + skipped + n_bytes - a->staged_out > now->memory.n_bytes)
    return NULL;
  a->staged_in += skipped + n_bytes;
  return now->memory.data + (a->staged_in - n_bytes) % now->memory.n_bytes;
}

static opipe_status post(const opi_rank *rank, const opi_ahead_entry *e, opipe_error *err) {
  const opi_message_run *m = &e->work.shape->messages[e->message];
  return OPI_POLL_WIRE(rank->setup, recv, err, m->wire->dst, e->number, &m->to, NULL);
}

/* The program's event is complete with this status. */
static opipe_status ran(opi_rank *rank, opi_ahead_entry *e, opipe_status status, opipe_error *local,
                        opipe_error *err) {
  const bool stamped = rank->worker->stamps != NULL && status == OPIPE_OK;
  opi_span at = {0, 0};
  if (stamped)
    status = opi_stamps_span(rank, e->begun, &e->event, &at, local);
  return opi_step_ran(rank, &e->work, stamped ? &at : NULL, status, local, err);
}

/* Carries out an entry. OPIPE_PENDING: it is not due yet. */
static opipe_status act(opi_rank *rank, opi_ahead_entry *e, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (e->kind < OPI_AHEAD_SUM || e->kind == OPI_AHEAD_MOVE) {
    opipe_event *event = e->kind == OPI_AHEAD_MOVE ? opi_moved_event(e) : e->event;
    status = OPI_POLL("backend", opi_rank_backend(rank), event_poll, &local, event);
  }
  if (status == OPIPE_PENDING)
    return status;
  if (e->kind == OPI_AHEAD_RUN)
    return ran(rank, e, status, &local, err);
  if (status < 0) {
    (void)opi_error_prefix(&local, "rank %u: ", rank->index);
    *err = local;
    return status;
  }
  if (e->kind == OPI_AHEAD_MOVE)
    return opi_step_moved(rank, e, err);
  if (e->kind == OPI_AHEAD_SUM)
    opi_step_summing(e);
  else if (e->kind == OPI_AHEAD_STORE)
    opi_step_stored(rank, e);
  else if (e->kind == OPI_AHEAD_LEAVE)
    opi_rank_leave(rank, e->work.request);
  return e->kind == OPI_AHEAD_POST ? post(rank, e, err) : OPIPE_OK;
}

static void pop(struct opi_ahead *a, const opi_ahead_entry *e, uint64_t number) {
  if (number >= a->staging_first && e->staging_end > a->staged_out)
    a->staged_out = e->staging_end;
  a->n_stores -= e->kind == OPI_AHEAD_STORE;
  a->n_posts -= e->kind == OPI_AHEAD_POST;
  a->n_out = number + 1;
  a->moved_ns = opi_clock_ns();
}

opipe_status opi_ahead_act(opi_rank *rank, opipe_error *err) {
  struct opi_ahead *a = rank->worker->ahead;
  opipe_status status = OPIPE_OK;
  while (status == OPIPE_OK && a->n_out != a->n_in) {
    opi_ahead_entry *e = &a->entries[a->n_out % OPI_AHEAD];
    status = act(rank, e, err);
    if (status < 0 && e->work.request != NULL)
      rank->worker->request = e->work.request; /* the failure is this request's */
    if (status != OPIPE_OK)
      break;
    pop(a, e, a->n_out);
    opi_count_on(&rank->worker->n_moves);
  }
  rank->worker->polls = rank->worker->polls || a->n_out != a->n_in;
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_ahead_drain(opi_rank *rank, opipe_error *err) {
  OPI_TRY(opi_ahead_move(rank, err));
  while (!opi_ahead_is_empty(rank) && !opi_session_failed(rank->setup)) {
    opipe_error late = OPIPE_ERROR_INIT; /* the entries report it again */
    (void)opi_rank_sync(rank, &late);
    OPI_TRY(opi_ahead_move(rank, err));
  }
  return OPIPE_OK;
}

void opi_ahead_note(opi_rank *rank) {
  const struct opi_ahead *a = rank->worker->ahead;
  opi_rank_note_ahead(rank, &a->entries[a->n_out % OPI_AHEAD], a->moved_ns);
}

/* ---- messages ---- */

opipe_status opi_ahead_ready(opi_rank *rank, opipe_event **out, opipe_error *err) {
  struct opi_ahead *a = rank->worker->ahead;
  *out = a == NULL ? NULL : a->standing;
  if (a == NULL || a->standing != NULL || a->n_in == a->n_out)
    return OPIPE_OK;
  if (a->n_sends == 0)
    return OPIPE_PENDING;
  *out = a->standing = a->sends[--a->n_sends];
  return OPI_ASK_RANK(rank, event_record, err, rank->queue, a->standing);
}
