/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that nobody waits for on the host. A rank on whose device work is queued has a lane, a
 * queue of its device that does its batches one after the other, as NCCL's stream does:
 *
 *   lane of rank a   wait for a's readies, record `started` ── wait for `copied` ── record `done`
 *   lane of rank b   the same
 *   b's queue for a  wait for both `started`, copy, record `copied`
 *
 * A rank has a queue for what comes from each peer, so that no message waits for another peer. An
 * event can be waited for only once it is recorded, so a rank's part of a message is queued when
 * both ends have been issued, and the next batch begins when all of this one is queued. Only where
 * messages take no modelled time: a lane cannot wait for a clock. World's lock held everywhere.
 */
#include "emulated.h"

static bool is_timeless(const options *o) {
  return o->latency_ns == 0 && o->jitter_ns == 0 && o->bytes_per_ns <= 0 && o->n_faults == 0;
}

/* ---- open and close ---- */

opipe_status emutrans_lane_open(opipe_endpoint *e, const opipe_endpoint_params *params,
                                opipe_error *err) {
  const options *o = &e->world->options;
  e->device = params->device;
  if (!is_timeless(o))
    return emutrans_clock_open(e, err);
  if (o->rule != OPIPE_RULE_GROUPED || e->backend == NULL || e->queue == NULL)
    return OPIPE_OK;
  e->from = opipe_zeroed(e->world->host, "a lane", e->world->n_ranks * sizeof *e->from, ALIGN, err);
  if (e->from == NULL)
    return OPIPE_E_NOMEM;
  const opipe_status status = e->backend->event_create(e->device, &e->started, err);
  return status < 0 ? status : e->backend->queue_open(e->device, &e->lane, err);
}

void emutrans_lane_close(opipe_endpoint *e) {
  emutrans_clock_close(e);
  for (uint32_t r = 0; r < e->world->n_ranks && e->from != NULL; ++r) {
    if (e->from[r] != NULL)
      e->backend->queue_close(e->from[r]);
  }
  opipe_free(e->world->host, e->from, e->world->n_ranks * sizeof *e->from, ALIGN);
  if (e->lane != NULL)
    e->backend->queue_close(e->lane);
  if (e->started != NULL)
    e->backend->event_destroy(e->started);
}

static cell *cell_at(const opipe_stream *s, uint32_t i) {
  return (cell *)s->wire->base.cells + i;
}

opipe_status emutrans_cells_open(const opipe_stream *s, opipe_error *err) {
  const opipe_endpoint *e = s->endpoint;
  opipe_status status = OPIPE_OK;
  if ((s->sides & 2u) == 0 || e->lane == NULL)
    return OPIPE_OK;
  opipe_queue **from = &e->from[s->wire->base.params.src_rank];
  if (*from == NULL)
    status = e->backend->queue_open(e->device, from, err);
  for (uint32_t i = 0; i < s->wire->base.params.depth && status >= 0; ++i)
    status = e->backend->event_create(e->device, &cell_at(s, i)->copied, err);
  if (status < 0)
    emutrans_cells_close(s);
  return status;
}

void emutrans_cells_close(const opipe_stream *s) {
  const opipe_endpoint *e = s->endpoint;
  for (uint32_t i = 0; i < s->wire->base.params.depth && (s->sides & 2u) != 0; ++i) {
    cell *c = cell_at(s, i);
    if (c->copied != NULL)
      e->backend->event_destroy(c->copied);
    c->copied = NULL;
  }
}

/* ---- a batch ---- */

static cell *cell_of(const operation *op) {
  return emutrans_cell(op->stream, op->sequence);
}

static opipe_event *ready_of(const operation *op) {
  const cell *c = cell_of(op);
  return op->side == 0 ? c->ready : c->after;
}

static bool queues(const opipe_endpoint *e) {
  bool all = e->lane != NULL && e->n_ops != 0;
  for (uint32_t i = 0; i < e->n_ops && all; ++i) {
    const cell *c = cell_of(&e->ops[i]);
    all = e->ops[i].side == 0 ? c->send_done != NULL : c->recv_done != NULL && c->orders[1];
  }
  return all;
}

opipe_status emutrans_queue_batch(opipe_endpoint *e, opipe_error *err) {
  const opipe_event *last = NULL;
  opipe_status status = OPIPE_OK;
  e->orders = queues(e);
  e->settled = false;
  for (uint32_t i = 0; i < e->n_ops && status >= 0; ++i) {
    opipe_event *ready = ready_of(&e->ops[i]);
    cell_of(&e->ops[i])->orders[e->ops[i].side] = e->orders;
    e->queued[i] = false;
    if (e->orders && ready != NULL && ready != last)
      status = e->backend->event_wait(e->lane, ready, err);
    last = ready;
  }
  return status < 0 || !e->orders ? status : e->backend->event_record(e->lane, e->started, err);
}

/* Queues the receiver's part of a message whose ends have both been issued. */
static opipe_status queue_copy(const opipe_endpoint *e, const operation *op, opipe_error *err) {
  cell *c = cell_of(op);
  const uint32_t src = op->stream->wire->base.params.src_rank;
  const opipe_endpoint *from = e->world->endpoints[src];
  opipe_queue *queue = e->from[src];
  opipe_region to = c->to;
  to.n_bytes = c->n_bytes;
  if (from == NULL)
    return OPIPE_PENDING; /* it was closed: the world ends */
  opipe_status status = e->backend->event_wait(queue, e->started, err);
  if (status >= 0)
    status = e->backend->event_wait(queue, from->started, err);
  if (status >= 0 && to.n_bytes != 0)
    status = e->backend->write(queue, &to, c->source, err);
  if (status >= 0)
    status = e->backend->event_record(queue, c->copied, err);
  if (status >= 0)
    status = e->backend->event_wait(e->lane, c->copied, err);
  if (status >= 0)
    c->arrived = op->sequence + 1;
  return status;
}

/* PENDING: the other end has not been issued. */
static opipe_status queue_one(opipe_endpoint *e, const operation *op, opipe_error *err) {
  cell *c = cell_of(op);
  if (c->sent != op->sequence + 1 || c->posted != op->sequence + 1)
    return OPIPE_PENDING;
  if (!emutrans_is_queued(c)) /* the other rank's host waits for its device */
    return emutrans_move(op->stream, c, op->sequence, err);
  if (op->side == 1)
    return c->arrived > op->sequence ? OPIPE_OK : queue_copy(e, op, err);
  return c->arrived > op->sequence ? e->backend->event_wait(e->lane, c->copied, err)
                                   : (opipe_status)OPIPE_PENDING;
}

static opipe_status record_all(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < e->n_ops && status >= 0; ++i) {
    cell *c = cell_of(&e->ops[i]);
    opipe_event **done = e->ops[i].side == 0 ? &c->send_done : &c->recv_done;
    if (*done != NULL)
      status = e->backend->event_record(e->lane, *done, err);
    *done = NULL;
  }
  e->settled = status >= 0;
  emutrans_ring_locked(e->world, e->rank);
  return status;
}

opipe_status emutrans_queue_move(opipe_endpoint *e, opipe_error *err) {
  bool all = true;
  if (!e->orders || e->settled)
    return OPIPE_OK;
  for (uint32_t i = 0; i < e->n_ops; ++i) {
    if (e->queued[i])
      continue;
    const opipe_status status = queue_one(e, &e->ops[i], err);
    if (status < 0)
      return status;
    e->queued[i] = status == OPIPE_OK;
    all = all && e->queued[i];
    if (e->queued[i] && e->ops[i].side == 1)
      emutrans_ring_locked(e->world, e->ops[i].stream->wire->base.params.src_rank);
  }
  return all ? record_all(e, err) : (opipe_status)OPIPE_PENDING;
}
