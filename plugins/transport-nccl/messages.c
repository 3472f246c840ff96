/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of messages: noted between begin and end, then one group of NCCL's, behind the events
 * that its operations wait for. `done` is recorded behind the group as soon as that stands in the
 * lane, so neither end's host waits for a device.
 */
#include "world.h"

static nccl_slot *slot_of(const opipe_stream *stream, uint64_t sequence) {
  return &stream->slots[sequence % stream->params.depth];
}

/* ---- noting ---- */

static opipe_status check_op(const opipe_stream *s, uint32_t side, uint64_t sequence,
                             const opipe_region *region, opipe_error *err) {
  const opipe_endpoint *e = s->endpoint;
  const opipe_stream_params *p = &s->params;
  const char *call = side == 0 ? "send" : "recv";
  if (s->side != side)
    return opipe_stream_not_held(e->rank, p, call, err);
  if (e->setup.state != NCCL_SETUP_DONE) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "%s on stream %u of stages %u -> %u: endpoint_ready of rank %u has not "
                      "answered OK",
                      call, p->index, p->src_stage, p->dst_stage, e->rank);
  }
  if (e->batch.state != NCCL_BATCH_NOTES) {
    return opipe_fail(
        err, OPIPE_E_STATE,
        "%s of message %llu by rank %u: under the rule grouped messages go in batches "
        "(batch_begin), and none is open",
        call, (unsigned long long)sequence, e->rank);
  }
  if (sequence < s->n_begun) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "%s on stream %u of stages %u -> %u: message %llu comes after message %llu",
                      call, p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
                      (unsigned long long)(s->n_begun - 1));
  }
  if (slot_of(s, sequence)->begun != slot_of(s, sequence)->ended) {
    return opipe_fail(
        err, OPIPE_E_STATE, "%s of message %llu: message %llu of the same slot is still under way",
        call, (unsigned long long)sequence, (unsigned long long)(slot_of(s, sequence)->begun - 1));
  }
  if (region->n_bytes > p->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "%s on stream %u of stages %u -> %u: message %llu has %llu bytes, the stream "
                      "was opened for %llu",
                      call, p->index, p->src_stage, p->dst_stage, (unsigned long long)sequence,
                      (unsigned long long)region->n_bytes, (unsigned long long)p->n_bytes);
  }
  return OPIPE_OK;
}

static opipe_status note_locked(opipe_stream *s, uint32_t side, uint64_t sequence,
                                const opipe_region *region, const nccl_op *events,
                                opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  nccl_batch *batch = &e->batch;
  nccl_op op = *events;
  opipe_status status = nccl_check(e->world, err);
  if (status == OPIPE_OK)
    status = check_op(s, side, sequence, region, err);
  if (status == OPIPE_OK && batch->n == OPIPE_BATCH_MOST) {
    status = opipe_fail(err, OPIPE_E_LIMIT,
                        "a batch of rank %u has %u operations or more, at most %d are possible",
                        e->rank, batch->n + 1, OPIPE_BATCH_MOST);
  }
  if (status == OPIPE_OK)
    status = nccl_address(e, region, &op.address, err);
  if (status < 0)
    return status;
  op.stream = s;
  op.sequence = sequence;
  op.n_bytes = region->n_bytes;
  op.side = side;
  op.record = nccl_note(e, side == 0 ? NCCL_DID_SEND : NCCL_DID_RECV, s->peer, s->params.index,
                        sequence, region->n_bytes);
  batch->awaits = batch->awaits || !op.orders;
  batch->ops[batch->n++] = op;
  slot_of(s, sequence)->begun = sequence + 1;
  s->n_begun = sequence + 1;
  return OPIPE_OK;
}

static opipe_status note(opipe_stream *s, uint32_t side, uint64_t sequence,
                         const opipe_region *region, const nccl_op *events, opipe_error *err) {
  (void)pthread_mutex_lock(&s->endpoint->lock);
  const opipe_status status = note_locked(s, side, sequence, region, events, err);
  (void)pthread_mutex_unlock(&s->endpoint->lock);
  return status;
}

opipe_status nccl_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *ready, opipe_event *done, opipe_error *err) {
  const nccl_op events = {.ready = ready, .done = done, .orders = done != NULL};
  return note(stream, 0, sequence, region, &events, err);
}

opipe_status nccl_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *done, opipe_error *err) {
  const nccl_op events = {.done = done};
  return note(stream, 1, sequence, region, &events, err);
}

opipe_status nccl_recv_after(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                             opipe_event *ready, opipe_event *done, opipe_error *err) {
  const nccl_op events = {.ready = ready, .done = done, .orders = true};
  if (done == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "recv_after of message %llu: done is NULL",
                      (unsigned long long)sequence);
  }
  return note(stream, 1, sequence, region, &events, err);
}

opipe_status nccl_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = stream->endpoint;
  const opipe_status status = nccl_check(e->world, err);
  if (status < 0)
    return status;
  if (stream->side != 0)
    return opipe_stream_not_held(e->rank, &stream->params, "reserve", err);
  return opipe_fail(err, OPIPE_E_STATE,
                    "reserve of message %llu by rank %u: under the rule grouped messages go in "
                    "batches, where a send need not find its receive posted",
                    (unsigned long long)sequence, e->rank);
}

/* ---- batches ---- */

/* All of it is over for the host. */
static void end_ops(nccl_batch *batch, bool orders) {
  for (uint32_t i = 0; i < batch->n; ++i) {
    const nccl_op *op = &batch->ops[i];
    if (op->stream != NULL && op->orders == orders)
      slot_of(op->stream, op->sequence)->ended = op->sequence + 1;
  }
}

/* It stands in the lane: its events are recorded behind it. */
static opipe_status stand(opipe_endpoint *e, opipe_error *err) {
  nccl_batch *batch = &e->batch;
  opipe_status status = batch->launch == 0 ? OPIPE_OK : nccl_mark(e, err);
  for (uint32_t i = 0; i < batch->n && status >= 0; ++i) {
    if (batch->ops[i].done != NULL)
      status = e->backend->event_record(e->lane, batch->ops[i].done, err);
  }
  if (status < 0)
    return status;
  end_ops(batch, true);
  batch->state = batch->awaits ? (uint32_t)NCCL_BATCH_STANDS : (uint32_t)NCCL_BATCH_NONE;
  return OPIPE_OK;
}

opipe_status nccl_batch_go_on(opipe_endpoint *e, opipe_error *err) {
  const opipe_status status = nccl_launch_poll(e, err);
  return status == OPIPE_OK ? stand(e, err) : status;
}

/* OK: no operation of the endpoint's is under way for its host. */
static opipe_status finish(opipe_endpoint *e, opipe_error *err) {
  nccl_batch *batch = &e->batch;
  opipe_status status = nccl_go_on(e, err);
  if (status == OPIPE_OK && batch->state == NCCL_BATCH_STANDS) {
    status = nccl_done(e, batch->launch, err);
    if (status == OPIPE_OK) {
      end_ops(batch, false);
      batch->state = NCCL_BATCH_NONE;
    }
  }
  return status == OPIPE_PENDING ? nccl_again(e) : status;
}

static opipe_status begin_locked(opipe_endpoint *e, opipe_error *err) {
  nccl_batch *batch = &e->batch;
  if (batch->state == NCCL_BATCH_NOTES) {
    return opipe_fail(err, OPIPE_E_STATE, "batch_begin: rank %u has a batch of %u operations open",
                      e->rank, batch->n);
  }
  const opipe_status status = finish(e, err);
  if (status != OPIPE_OK)
    return status;
  batch->state = NCCL_BATCH_NOTES;
  batch->n = 0;
  batch->awaits = false;
  return OPIPE_OK;
}

opipe_status nccl_batch_begin(opipe_endpoint *e, opipe_error *err) {
  (void)pthread_mutex_lock(&e->lock);
  const opipe_status status = begin_locked(e, err);
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}

static opipe_status wait_for_ready(opipe_endpoint *e, opipe_error *err) {
  const opipe_event *last = NULL;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < e->batch.n && status >= 0; ++i) {
    opipe_event *ready = e->batch.ops[i].ready;
    if (ready != NULL && ready != last)
      status = e->backend->event_wait(e->lane, ready, err);
    last = ready;
  }
  return status;
}

static opipe_status start_op(opipe_endpoint *e, const nccl_op *op, opipe_error *err) {
  const nccl_calls *nccl = &e->world->library->nccl;
  const nccl_comm *comm = e->messages;
  void *data = (void *)(uintptr_t)op->address;
  const int peer = (int)op->stream->peer;
  if (op->side == 0) {
    return nccl_fine(e, comm, "ncclSend",
                     nccl->send(data, op->n_bytes, NCCL_BYTES, peer, comm->comm, e->stream), err);
  }
  return nccl_fine(e, comm, "ncclRecv",
                   nccl->recv(data, op->n_bytes, NCCL_BYTES, peer, comm->comm, e->stream), err);
}

/* Messages of 0 bytes are nothing for either end. */
static bool travels(const nccl_op *op) {
  return op->stream != NULL && op->n_bytes != 0;
}

static opipe_status start(opipe_endpoint *e, opipe_error *err) {
  nccl_batch *batch = &e->batch;
  uint32_t n = 0;
  for (uint32_t i = 0; i < batch->n; ++i)
    n += travels(&batch->ops[i]);
  opipe_status status = wait_for_ready(e, err);
  if (status < 0)
    return status;
  batch->launch = 0;
  batch->awaits = batch->awaits && n != 0;
  if (n == 0) {
    end_ops(batch, false);
    return stand(e, err);
  }
  status = nccl_launch_begin(e, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < batch->n && status >= 0; ++i) {
    if (travels(&batch->ops[i]))
      status = start_op(e, &batch->ops[i], err);
  }
  status = nccl_launch_end(e, e->messages, status, err);
  if (status < 0)
    return status;
  batch->launch = e->n_launches;
  for (uint32_t i = 0; i < batch->n; ++i) {
    nccl_noted(e, batch->ops[i].record, batch->launch);
    if (batch->ops[i].stream != NULL)
      batch->ops[i].stream->launch = batch->launch;
  }
  batch->state = NCCL_BATCH_LAUNCHES;
  return nccl_go_on_soon(e, err);
}

static opipe_status end_locked(opipe_endpoint *e, opipe_error *err) {
  nccl_batch *batch = &e->batch;
  if (batch->state != NCCL_BATCH_NOTES)
    return opipe_fail(err, OPIPE_E_STATE, "batch_end: rank %u has no batch open", e->rank);
  batch->state = NCCL_BATCH_NONE;
  opipe_status status = nccl_check(e->world, err);
  if (status == OPIPE_OK)
    status = start(e, err);
  if (status == OPIPE_PENDING)
    (void)nccl_again(e);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status nccl_batch_end(opipe_endpoint *e, opipe_error *err) {
  (void)pthread_mutex_lock(&e->lock);
  const opipe_status status = end_locked(e, err);
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}

void nccl_batch_forget(opipe_stream *stream) {
  nccl_batch *batch = &stream->endpoint->batch;
  for (uint32_t i = 0; i < batch->n; ++i) {
    if (batch->ops[i].stream == stream) {
      batch->ops[i].stream = NULL;
      batch->ops[i].done = NULL;
    }
  }
}

static opipe_status test_locked(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  const nccl_slot *slot = slot_of(s, sequence);
  if (e->batch.state == NCCL_BATCH_NOTES) {
    return opipe_fail(err, OPIPE_E_STATE, "test: rank %u has a batch of %u operations open",
                      e->rank, e->batch.n);
  }
  opipe_status status = nccl_go_on(e, err);
  if (status >= 0 && slot->ended > sequence)
    return OPIPE_OK;
  if (status == OPIPE_OK && slot->begun == sequence + 1)
    status = finish(e, err);
  if (status >= 0 && slot->ended > sequence)
    return OPIPE_OK;
  return status < 0 ? status : nccl_again(e);
}

opipe_status nccl_test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  (void)pthread_mutex_lock(&stream->endpoint->lock);
  const opipe_status status = test_locked(stream, sequence, err);
  (void)pthread_mutex_unlock(&stream->endpoint->lock);
  return status;
}
