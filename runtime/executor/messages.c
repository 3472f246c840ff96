/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's ends of messages. A send whose receive is not posted yet is put aside, so that the rank
 * goes on. It is tried again after every program and whenever the rank wakes, also while the rank
 * works with another shape.
 */
#include <string.h>

#include "runtime/executor/ahead.h"

/* A message's number in its stream since that was opened. False: it belongs to a body or mini-batch
 * before the first. */
static bool number_of(const opi_cursor *cursor, const opi_message_run *m, const opi_step *step,
                      bool source, uint64_t *out_number) {
  if (cursor->item.kind == OPI_ITEM_REQUEST) {
    const int64_t body = (int64_t)cursor->item.body + step->lap - (cursor->posting ? 1 : 0);
    *out_number = (uint64_t)body * m->n_messages + m->sequence;
    return body >= 0;
  }
  const int64_t ahead = (cursor->item.kind == OPI_ITEM_ALL && step->next != 0) + step->lap;
  const int64_t number = (int64_t)(source ? m->wire->src_base : m->wire->dst_base) +
                         (int64_t)m->sequence + ahead * (int64_t)m->n_messages;
  *out_number = (uint64_t)number;
  return number >= 0;
}

/* A step's message. A message that is received may be of any shape with this lead, so there is room
 * for the largest. */
static const opi_message_run *message_of(const opi_compiled *t, const opi_step *step, bool sends) {
  return &(sends ? t : t->shape->lead->compiled)->messages[step->route];
}

/* ---- the reader's end ---- */

opipe_status opi_message_post(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  opi_compiled *lead = t->shape->lead->compiled;
  const opi_message_run *m = message_of(t, step, false);
  uint64_t number = 0;
  if (t->strict && (opi_sums_start(rank) || opi_queue_starts(rank)))
    return OPIPE_PENDING; /* they stand before it */
  (void)number_of(opi_cursor_of(rank), m, step, false, &number);
  if (opi_ahead_is_empty(rank))
    return OPI_POLL_WIRE(rank->setup, recv, err, m->wire->dst, number, &m->to, NULL);
  if (t->strict || !opi_ahead_has_room(rank))
    return OPIPE_PENDING; /* strict: nothing may be issued before it */
  const opi_ahead_entry e = {
      .kind = OPI_AHEAD_POST, .work.shape = lead, .message = step->route, .number = number};
  return opi_ahead_push(rank, &e, err);
}

opipe_status opi_message_receive(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_message_run *m = message_of(opi_compiled_at(rank), step, false);
  uint64_t number = 0;
  if (!number_of(opi_cursor_of(rank), m, step, false, &number))
    return OPIPE_OK; /* the first body needs no credit */
  if (opi_ahead_posts(rank, m, number))
    return OPIPE_PENDING;
  const opipe_status status = OPI_POLL_WIRE(rank->setup, test, err, m->wire->dst, number);
  if (status != OPIPE_OK || m->dst.done == NULL)
    return status;
  return OPI_ASK_RANK(rank, event_wait, err, rank->queue, m->dst.done);
}

/* ---- the writer's end ---- */

opipe_status opi_message_reserve(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_message_run *m = &opi_compiled_at(rank)->messages[step->route];
  uint64_t number = 0;
  (void)number_of(opi_cursor_of(rank), m, step, true, &number);
  return OPI_POLL_WIRE(rank->setup, reserve, err, m->wire->src, number);
}

/* Sends a message once its receive is posted, and waits until its memory is free again. A message
 * written in place needs neither: its receive was posted before it was made. */
static opipe_status deliver(const opi_compiled *t, opi_waiting_send *waiting, opipe_error *err) {
  const opi_message_run *m = waiting->of;
  if (!waiting->sent) {
    opipe_status status = OPIPE_OK;
    if (!m->direct)
      status = OPI_POLL_WIRE(t->setup, reserve, err, m->wire->src, waiting->number);
    if (status == OPIPE_OK) {
      status = OPI_POLL_WIRE(t->setup, send, err, m->wire->src, waiting->number, &m->from,
                             waiting->ready, NULL);
    }
    if (status != OPIPE_OK)
      return status;
    waiting->sent = true;
  }
  return m->direct && waiting->ready == NULL
             ? OPIPE_OK
             : OPI_POLL_WIRE(t->setup, test, err, m->wire->src, waiting->number);
}

/* The same of a send of a queued batch: until the device is through with it. */
static opipe_status leave(const opi_rank *rank, const opi_waiting_send *waiting, opipe_error *err) {
  return waiting->done == NULL
             ? OPIPE_OK
             : OPI_POLL("backend", opi_rank_backend(rank), event_poll, err, waiting->done);
}

/* Tries the sends that wait, those of one stream in their order. */
static opipe_status flush_seat(opi_rank *rank, opi_seat *seat, opipe_error *err) {
  const opi_compiled *t = seat->shape;
  opipe_status failed = OPIPE_OK;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < seat->n_waiting; ++i) {
    opi_waiting_send waiting = seat->waiting[i];
    const uint32_t stream = waiting.of->stream;
    opipe_status status = failed;
    for (uint32_t k = 0; k < kept && status == OPIPE_OK && !waiting.sent; ++k) {
      if (seat->waiting[k].of->stream == stream && !seat->waiting[k].sent)
        status = OPIPE_PENDING;
    }
    if (status == OPIPE_OK)
      status = deliver(t, &waiting, err);
    if (status == OPIPE_OK)
      status = leave(rank, &waiting, err);
    if (status < 0)
      failed = status;
    rank->worker->polls = rank->worker->polls || waiting.done != NULL;
    if (status != OPIPE_OK)
      seat->waiting[kept++] = waiting;
    else
      opi_ahead_arrived(rank, waiting.ready);
  }
  if (kept != seat->n_waiting)
    opi_count_on(&rank->worker->n_moves);
  seat->n_waiting = kept;
  return failed;
}

opipe_status opi_messages_try(opi_rank *rank, opipe_error *err) {
  opi_seat **at = &opi_cursor_of(rank)->busy;
  while (*at != NULL) {
    opi_seat *seat = *at;
    OPI_TRY(flush_seat(rank, seat, err));
    if (seat->n_waiting != 0) {
      at = &seat->next_busy;
      continue;
    }
    *at = seat->next_busy;
    atomic_fetch_sub(&seat->shape->shape->n_users, 1); /* from here on the shape may be freed */
  }
  return OPIPE_OK;
}

/* Puts a send aside; OPIPE_PENDING: there is no room. */
static opipe_status put_aside(opi_rank *rank, opi_compiled *t, const opi_waiting_send *waiting,
                              opipe_error *err) {
  opi_cursor *cursor = opi_cursor_of(rank);
  opi_seat *seat = t->seats[rank->index].sends;
  if (seat->n_waiting == seat->room_waiting) {
    OPI_TRY(opi_messages_flush(rank, err));
    if (seat->n_waiting == seat->room_waiting)
      return OPIPE_PENDING;
  }
  if (seat->n_waiting == 0) {
    seat->next_busy = cursor->busy;
    cursor->busy = seat;
    atomic_fetch_add(&seat->shape->shape->n_users, 1);
  }
  seat->waiting[seat->n_waiting++] = *waiting;
  return OPIPE_OK;
}

opipe_status opi_message_send(opi_rank *rank, const opi_step *step, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  const opi_seat *seat = t->seats[rank->index].sends;
  const bool strict = t->strict;
  opi_waiting_send waiting = {.of = &t->messages[step->route], .message = step->route};
  if (strict && (opi_sums_start(rank) || opi_queue_starts(rank)))
    return OPIPE_PENDING; /* they stand before it */
  (void)number_of(opi_cursor_of(rank), &t->messages[step->route], step, true, &waiting.number);
  /* Record an event behind the device's queued work, for which the message waits. */
  opipe_status status = opi_ahead_ready(rank, &waiting.ready, err);
  if (status != OPIPE_OK)
    return status;
  /* Send at once, unless other sends wait. */
  if (strict || seat->n_waiting == 0) {
    status = deliver(t, &waiting, err);
    if (status == OPIPE_OK)
      opi_ahead_arrived(rank, waiting.ready);
    if (status == OPIPE_OK)
      opi_ahead_given(rank);
    if (status != OPIPE_PENDING || (strict && !waiting.sent))
      return status; /* strict: nothing may be issued before it */
  }
  /* Otherwise put it aside and go on. */
  status = put_aside(rank, t, &waiting, err);
  if (status != OPIPE_OK)
    return status;
  opi_ahead_given(rank);
  return seat->n_waiting > 1 ? opi_messages_flush(rank, err) : OPIPE_OK;
}

/* ---- batches ---- */

/* The event of the batch's operations, recorded behind all queued work with the first of them;
 * NULL: the batch is not queued. */
static opipe_status make_ready(opi_rank *rank, const opi_step *step, opipe_event **io_ready,
                               opipe_error *err) {
  const opi_message_run *m = message_of(opi_compiled_at(rank), step, step->kind == OPI_ACT_SEND);
  opipe_event *own = step->kind == OPI_ACT_SEND ? m->src.ready : m->dst.ready;
  if (*io_ready != NULL || own == NULL)
    return OPIPE_OK;
  *io_ready = own;
  return OPI_ASK_RANK(rank, event_record, err, rank->queue, own);
}

/* Issues an operation of an open batch. */
static opipe_status issue(opi_rank *rank, const opi_step *step, opipe_event *ready,
                          opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  const opi_transport_ref *via = &rank->setup->env.transport;
  const bool sends = step->kind == OPI_ACT_SEND;
  const opi_message_run *m = message_of(t, step, sends);
  opi_waiting_send waiting = {.of = m, .message = step->route, .sent = true, .done = m->src.done};
  (void)number_of(opi_cursor_of(rank), m, step, sends, &waiting.number);
  if (!sends && ready != NULL) {
    return OPI_ASK("transport", via, recv_after, err, m->wire->dst, waiting.number, &m->to, ready,
                   m->dst.done);
  }
  if (!sends)
    return OPI_ASK("transport", via, recv, err, m->wire->dst, waiting.number, &m->to, NULL);
  /* Its receive has room for any shape with this lead: both ends of a batch have equal bytes. */
  const opipe_region *from = &t->shape->lead->compiled->messages[step->route].from;
  OPI_TRY(
      OPI_ASK("transport", via, send, err, m->wire->src, waiting.number, from, ready, m->src.done));
  return put_aside(rank, t, &waiting, err);
}

/* Has the batch events for the device's queue? All of a rank have, or none. */
static bool queues(const opi_rank *rank, const opi_step *step) {
  const opi_message_run *m = &opi_compiled_at(rank)->messages[step->route];
  return (step->kind == OPI_ACT_SEND ? m->src.done : m->dst.done) != NULL;
}

/* Issues the batch's operations that belong to the item as one. An error ends the batch, too. */
opipe_status opi_messages_batch(opi_rank *rank, const opi_step *steps, uint32_t n,
                                opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_cursor *cursor = opi_cursor_of(rank);
  const opi_seat *seat = t->seats[rank->index].sends;
  opipe_event *ready = NULL;
  if (opi_queue_starts(rank) || (!opi_ahead_is_empty(rank) && !queues(rank, steps)))
    return OPIPE_PENDING; /* sums stand before it; a receive has no event to wait for */
  if (seat->room_waiting - seat->n_waiting < n) {
    OPI_TRY(opi_messages_flush(rank, err));
    if (seat->room_waiting - seat->n_waiting < n)
      return OPIPE_PENDING;
  }
  /* Open the batch, issue its operations, end it: then they start. */
  opipe_status status = OPI_POLL_WIRE(rank->setup, batch_begin, err, rank->endpoint);
  if (status != OPIPE_OK)
    return status;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    if (!opi_step_takes_part(t, cursor, &steps[i]))
      continue;
    status = make_ready(rank, &steps[i], &ready, err);
    if (status == OPIPE_OK)
      status = issue(rank, &steps[i], ready, err);
  }
  opipe_error late = OPIPE_ERROR_INIT;
  const opipe_status ended =
      OPI_ASK("transport", &rank->setup->env.transport, batch_end, &late, rank->endpoint);
  if (status < 0 || ended == OPIPE_OK)
    return status;
  if (err != NULL)
    *err = late;
  return ended;
}

/* ---- the writer's memory ---- */

/* A send of a queued batch: what the rank queues from now on waits for it. The seat may have none
 * left, and then leaves the busy ones, as it would come among them twice. */
static opipe_status order(opi_rank *rank, opi_seat *seat, uint32_t index, opipe_error *err) {
  const opi_waiting_send waiting = seat->waiting[index];
  const opipe_status status = deliver(seat->shape, &seat->waiting[index], err);
  if (status != OPIPE_OK)
    return status;
  memmove(&seat->waiting[index], &seat->waiting[index + 1],
          (--seat->n_waiting - index) * sizeof *seat->waiting);
  opi_count_on(&rank->worker->n_moves);
  OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, rank->queue, waiting.done));
  return opi_messages_flush(rank, err); /* a seat without sends leaves the list of busy ones */
}

opipe_status opi_message_drain(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  opi_seat *seat = t->seats[rank->index].sends;
  uint64_t number = 0;
  if (seat->n_waiting == 0 ||
      !number_of(opi_cursor_of(rank), &t->messages[step->route], step, true, &number))
    return OPIPE_OK;
  OPI_TRY(opi_messages_flush(rank, err));
  for (uint32_t i = 0; i < seat->n_waiting; ++i) {
    if (seat->waiting[i].message == step->route && seat->waiting[i].number == number)
      return seat->waiting[i].done == NULL ? OPIPE_PENDING : order(rank, seat, i, err);
  }
  return OPIPE_OK;
}
