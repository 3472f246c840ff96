/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of matching beyond tag and stream. Under edge and pair every operation draws a number from
 * its channel when it is first tried; the k-th of one end belongs to the k-th of the other, and a
 * mismatch is an error. Under blocking an endpoint has one operation at a time, under grouped those
 * that were tried since the last group was tested: until they are complete nothing else begins.
 * World's lock held everywhere.
 */
#include "emulated.h"

static bool matches_in_order(const opipe_stream *s) {
  const uint32_t rule = s->endpoint->world->options.rule;
  return (rule == OPIPE_RULE_EDGE || rule == OPIPE_RULE_PAIR) && s->wire->channel != NULL;
}

/* Which end of the channel an operation belongs to. edge: sends and receives; pair: the lower and
 * the higher rank. */
static uint32_t end_of(const opipe_stream *s, uint32_t side) {
  const opipe_stream_params *p = &s->wire->base.params;
  if (s->endpoint->world->options.rule == OPIPE_RULE_EDGE)
    return side;
  const uint32_t own = side == 0 ? p->src_rank : p->dst_rank;
  const uint32_t other = side == 0 ? p->dst_rank : p->src_rank;
  return own > other;
}

static opipe_status draw_number(opipe_stream *s, cell *c, uint64_t sequence, uint32_t side) {
  channel *ch = s->wire->channel;
  if (c->begun[side] == sequence + 1)
    return OPIPE_OK;
  if (c->begun[side] > c->arrived)
    return OPIPE_PENDING; /* the slot's last message is still under way */
  c->number[side] = ch->next_number[end_of(s, side)]++;
  c->begun[side] = sequence + 1;
  return OPIPE_OK;
}

/* All operations of the endpoint's group complete? Moves what can be moved. */
static opipe_status group_complete(opipe_endpoint *e, opipe_error *err) {
  if (e->orders)
    return emutrans_queue_move(e, err);
  for (uint32_t i = 0; i < e->n_ops; ++i) {
    opipe_stream *s = e->ops[i].stream;
    cell *c = emutrans_cell(s, e->ops[i].sequence);
    const opipe_status status = emutrans_move(s, c, e->ops[i].sequence, err);
    if (status != OPIPE_OK)
      return status;
  }
  return OPIPE_OK;
}

static opipe_status join_group(opipe_stream *s, cell *c, uint64_t sequence, uint32_t side,
                               opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  if (c->begun[side] == sequence + 1)
    return OPIPE_OK;
  if (c->begun[side] > c->arrived)
    return OPIPE_PENDING;
  if (!emutrans_clock_is_empty(e)) {
    const opipe_status status = emutrans_clock_move(e, err);
    if (status != OPIPE_OK)
      return status;
  }
  if (e->group_closed) {
    const opipe_status status = group_complete(e, err);
    if (status != OPIPE_OK)
      return status;
    e->n_ops = 0;
    e->group_closed = e->batched = e->orders = false;
  }
  if (e->n_ops == OPS_MOST)
    return OPIPE_PENDING;
  e->ops[e->n_ops++] = (operation){s, sequence, side};
  e->group_closed = e->world->options.rule == OPIPE_RULE_BLOCKING;
  c->begun[side] = sequence + 1;
  return OPIPE_OK;
}

/* The batch before has finished, so that the slot is free but for what the batch itself has there.
 */
static opipe_status note_operation(opipe_stream *s, cell *c, uint64_t sequence, uint32_t side,
                                   opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  if (c->begun[side] > c->arrived) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "message %llu of a batch: message %llu of the same slot is still under way",
                      (unsigned long long)sequence, (unsigned long long)(c->begun[side] - 1));
  }
  if (e->n_ops == OPS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "a batch of rank %u has more than %d operations", e->rank,
                      OPS_MOST);
  }
  e->ops[e->n_ops++] = (operation){s, sequence, side};
  c->begun[side] = sequence + 1;
  return OPIPE_OK;
}

opipe_status emutrans_begin(opipe_stream *s, cell *c, uint64_t sequence, uint32_t side,
                            opipe_error *err) {
  const uint32_t rule = s->endpoint->world->options.rule;
  if (s->endpoint->noting)
    return note_operation(s, c, sequence, side, err);
  if (matches_in_order(s))
    return draw_number(s, c, sequence, side);
  if (rule == OPIPE_RULE_BLOCKING || rule == OPIPE_RULE_GROUPED)
    return join_group(s, c, sequence, side, err);
  return OPIPE_OK;
}

opipe_status emutrans_may_send(opipe_stream *s, const cell *c, uint64_t sequence,
                               opipe_error *err) {
  channel *ch = s->wire->channel;
  if (!matches_in_order(s))
    return OPIPE_OK;
  if (c->number[0] != c->number[1]) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "message %llu of stages %u -> %u is operation %llu of rank %u, but operation "
                      "%llu of rank %u: ranks %u and %u do not agree on the order",
                      (unsigned long long)sequence, s->wire->base.params.src_stage,
                      s->wire->base.params.dst_stage, (unsigned long long)c->number[0],
                      s->wire->base.params.src_rank, (unsigned long long)c->number[1],
                      s->wire->base.params.dst_rank, s->wire->base.params.src_rank,
                      s->wire->base.params.dst_rank);
  }
  if (c->number[0] != ch->n_done)
    return OPIPE_PENDING;
  ++ch->n_done;
  return OPIPE_OK;
}

/* ---- batches ---- */

opipe_status emutrans_not_noting(const opipe_endpoint *e, const char *what, opipe_error *err) {
  return !e->noting
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_STATE, "%s: rank %u has a batch of %u operations open", what,
                          e->rank, e->n_ops);
}

static opipe_status begin_batch(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK && e->world->options.rule != OPIPE_RULE_GROUPED) {
    status = opipe_fail(err, OPIPE_E_STATE, "batch_begin: the world of rank %u has rule %u, not %d",
                        e->rank, e->world->options.rule, OPIPE_RULE_GROUPED);
  }
  if (status == OPIPE_OK)
    status = emutrans_not_noting(e, "batch_begin", err);
  if (status == OPIPE_OK)
    status = group_complete(e, err);
  if (status == OPIPE_OK)
    status = emutrans_clock_ready(e, err);
  if (status != OPIPE_OK)
    return status;
  e->n_ops = 0;
  e->group_closed = e->orders = false;
  e->noting = true;
  return OPIPE_OK;
}

opipe_status emutrans_batch_begin(opipe_endpoint *e, opipe_error *err) {
  pthread_mutex_lock(&e->world->lock);
  const opipe_status status = begin_batch(e, err);
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

opipe_status emutrans_start(const opipe_endpoint *e, const operation *op, opipe_error *err) {
  wire *w = op->stream->wire;
  cell *c = emutrans_cell(op->stream, op->sequence);
  if (op->side == 0) {
    c->offered = op->sequence + 1;
  } else {
    c->posted = op->sequence + 1;
    w->n_posted = op->sequence + 1;
  }
  emutrans_ring_locked(e->world, op->side == 0 ? w->base.params.dst_rank : w->base.params.src_rank);
  return emutrans_meet(e->world, w, c, op->sequence, err);
}

/* Its peers may be asleep, or at work of another kind. */
static opipe_status queue_with_peers(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = emutrans_queue_move(e, err);
  for (uint32_t i = 0; i < e->n_ops && e->orders && status >= 0; ++i) {
    const opipe_stream_params *p = &e->ops[i].stream->wire->base.params;
    opipe_endpoint *peer = e->world->endpoints[e->ops[i].side == 0 ? p->dst_rank : p->src_rank];
    if (peer != NULL && !peer->noting)
      status = emutrans_queue_move(peer, err);
  }
  if (status >= 0) /* a peer's copy may be what this rank's lane waits for */
    status = emutrans_queue_move(e, err);
  return status < 0 ? status : OPIPE_OK;
}

static opipe_status end_batch(opipe_endpoint *e, opipe_error *err) {
  if (!e->noting)
    return opipe_fail(err, OPIPE_E_STATE, "batch_end: rank %u has no batch open", e->rank);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK)
    status = emutrans_queue_batch(e, err);
  for (uint32_t i = 0; i < e->n_ops && status == OPIPE_OK; ++i)
    status = emutrans_start(e, &e->ops[i], err);
  if (status == OPIPE_OK)
    status = queue_with_peers(e, err);
  emutrans_clock_end(e);
  if (status == OPIPE_OK)
    status = emutrans_clock_move(e, err);
  status = status < 0 ? status : OPIPE_OK;
  e->group_closed = e->batched = true;
  e->noting = false;
  return status;
}

opipe_status emutrans_batch_end(opipe_endpoint *e, opipe_error *err) {
  pthread_mutex_lock(&e->world->lock);
  const opipe_status status = end_batch(e, err);
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

opipe_status emutrans_batch_done(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  for (uint32_t i = 0; i < e->n_ops && e->batched; ++i) {
    if (e->ops[i].stream == s && e->ops[i].sequence == sequence)
      return group_complete(e, err);
  }
  return OPIPE_OK;
}

void emutrans_close_group(opipe_endpoint *e) {
  if (e->world->options.rule == OPIPE_RULE_GROUPED)
    e->group_closed = e->n_ops > 0;
}

void emutrans_forget(opipe_stream *s) {
  opipe_endpoint *e = s->endpoint;
  uint32_t kept = 0;
  emutrans_clock_forget(s);
  for (uint32_t i = 0; i < e->n_ops; ++i) {
    if (e->ops[i].stream == s)
      continue;
    e->queued[kept] = e->queued[i];
    e->ops[kept++] = e->ops[i];
  }
  e->n_ops = kept;
}

/* ---- channels ---- */

opipe_status emutrans_channel_take(opipe_world *world, wire *w, opipe_error *err) {
  const uint32_t rule = world->options.rule;
  uint32_t from = w->base.params.src_rank, to = w->base.params.dst_rank;
  if ((rule != OPIPE_RULE_EDGE && rule != OPIPE_RULE_PAIR) || from == to)
    return OPIPE_OK;
  if (rule == OPIPE_RULE_PAIR && from > to) {
    from = w->base.params.dst_rank;
    to = w->base.params.src_rank;
  }
  channel *ch = world->channels;
  while (ch != NULL && (ch->from != from || ch->to != to))
    ch = ch->next;
  if (ch == NULL) {
    ch = opipe_zeroed(world->host, "a channel", sizeof *ch, ALIGN, err);
    if (ch == NULL)
      return OPIPE_E_NOMEM;
    ch->from = from;
    ch->to = to;
    ch->next = world->channels;
    world->channels = ch;
  }
  ++ch->n_wires;
  w->channel = ch;
  return OPIPE_OK;
}

void emutrans_channel_leave(opipe_world *world, wire *w) {
  channel *ch = w->channel;
  if (ch == NULL || --ch->n_wires > 0)
    return;
  channel **at = &world->channels;
  while (*at != ch)
    at = &(*at)->next;
  *at = ch->next;
  opipe_free(world->host, ch, sizeof *ch, ALIGN);
}
