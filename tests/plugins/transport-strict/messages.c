/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: post, reserve, send, test. Which receives stand is on the board; bytes go through the
 * pipe of the two ranks, and are checked against the board where they come out.
 *
 * A window of `depth` numbers is open on either side: from the first that has not arrived to post,
 * from the first that has not been sent to send.
 */
#include "strict.h"

cell *strict_cell(const opipe_stream *s, uint64_t sequence) {
  const opipe_wire *w = &s->wire->base;
  return (cell *)w->cells + sequence % w->params.depth;
}

static opipe_status check_window(const opipe_stream *s, uint64_t sequence, uint64_t first,
                                 const char *who, const char *call, opipe_error *err) {
  const uint32_t depth = s->wire->base.params.depth;
  if (sequence < first + depth)
    return OPIPE_OK;
  return strict_refuse(who, call, err,
                       "message %llu is out of the window of %u, which is open from message %llu",
                       (unsigned long long)sequence, depth, (unsigned long long)first);
}

/* Enters; `side`: that the call belongs to, OPIPE_NONE: either. */
static opipe_status begin(opipe_stream *s, uint32_t side, const char *call, char who[STRICT_WHO],
                          opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  opipe_status status = strict_enter(e, call, err);
  if (status < 0)
    return status;
  strict_who_stream(s, who);
  if (side != OPIPE_NONE && (s->sides & (1u << side)) == 0)
    status = strict_refuse(who, call, err, "rank %u holds only the other end", e->rank);
  if (status == OPIPE_OK)
    status = strict_usable(e, s->n_opened, who, call, err);
  if (status < 0)
    strict_leave(e);
  return status;
}

static opipe_status check_size(const opipe_stream *s, const opipe_region *region, const char *who,
                               const char *call, opipe_error *err) {
  const uint64_t most = s->wire->base.params.n_bytes;
  if (region->n_bytes <= most)
    return OPIPE_OK;
  return strict_refuse(who, call, err, "a region of %llu bytes, the stream has %llu",
                       (unsigned long long)region->n_bytes, (unsigned long long)most);
}

static opipe_status check_order(const opipe_stream *s, uint64_t sequence, uint64_t next,
                                const char *who, const char *call, opipe_error *err) {
  if (s->endpoint->place->options.rule != OPIPE_RULE_STREAM || sequence == next)
    return OPIPE_OK;
  return strict_refuse(who, call, err, "message %llu of a first-in-first-out stream, %llu is next",
                       (unsigned long long)sequence, (unsigned long long)next);
}

/* ---- the receiver ---- */

static opipe_status recv_locked(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                opipe_event *done, const char *who, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  wire *w = s->wire;
  cell *c = strict_cell(s, sequence);
  opipe_memory *memory = NULL;
  char *target = NULL;
  opipe_status status = check_window(s, sequence, w->n_arrived, who, "recv", err);
  if (status == OPIPE_OK && c->posted > sequence) {
    status = strict_refuse(who, "recv", err, "message %llu was posted before, %llu have arrived",
                           (unsigned long long)sequence, (unsigned long long)w->n_arrived);
  }
  if (status == OPIPE_OK)
    status = check_order(s, sequence, w->n_posted, who, "recv", err);
  if (status == OPIPE_OK)
    status = check_size(s, region, who, "recv", err);
  if (status == OPIPE_OK)
    status = strict_events(e, NULL, done, who, "recv", err);
  if (status == OPIPE_OK)
    status = strict_region(e, region, who, "recv", &memory, &target, err);
  if (status == OPIPE_OK)
    status = strict_record(e, &c->recv_done, err); /* of the message before, which nobody tested */
  if (status < 0)
    return status;
  c->target = target;
  c->room_bytes = region->n_bytes;
  c->recv_done = done;
  c->recv_memory = memory;
  c->posted = sequence + 1;
  w->n_posted = sequence + 1;
  strict_take(memory);
  strict_ring_rank(e->place, w->base.params.src_rank);
  return OPIPE_OK;
}

opipe_status strict_recv(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                         opipe_event *done, opipe_error *err) {
  char who[STRICT_WHO];
  opipe_status status = begin(s, 1, "recv", who, err);
  if (status < 0)
    return status;
  status = recv_locked(s, sequence, region, done, who, err);
  strict_leave(s->endpoint);
  return status;
}

opipe_status strict_recv_after(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                               opipe_event *ready, opipe_event *done, opipe_error *err) {
  char who[STRICT_WHO];
  opipe_status status = begin(s, 1, "recv_after", who, err);
  if (status < 0)
    return status;
  if (done == NULL) {
    status = strict_refuse(who, "recv_after", err, "message %llu: done is NULL",
                           (unsigned long long)sequence);
  }
  if (status == OPIPE_OK)
    status = strict_events(s->endpoint, ready, done, who, "recv_after", err);
  if (status == OPIPE_OK && ready != NULL)
    status = s->endpoint->backend->event_poll(ready, err);
  if (status == OPIPE_OK)
    status = recv_locked(s, sequence, region, done, who, err);
  strict_leave(s->endpoint);
  return status;
}

bool strict_message_comes(opipe_endpoint *e, const frame *head, opipe_stream **out_stream,
                          char **out_target) {
  opipe_stream *s = e->streams;
  char who[STRICT_WHO];
  while (s != NULL && (s->wire->id != head->id || (s->sides & 2u) == 0))
    s = s->next;
  if (s == NULL) {
    strict_break(e->world->host, e->place, e->rank,
                 "rank %u: message %llu of a stream (%llu) that it does not have", e->rank,
                 (unsigned long long)head->number, (unsigned long long)head->id);
    return false;
  }
  const cell *c = strict_cell(s, head->number);
  strict_who_stream(s, who);
  if (c->posted != head->number + 1 || c->arrived == c->posted) {
    strict_break(e->world->host, e->place, e->rank,
                 "%s: message %llu comes, %llu have been posted and %llu have arrived", who,
                 (unsigned long long)head->number, (unsigned long long)s->wire->n_posted,
                 (unsigned long long)s->wire->n_arrived);
    return false;
  }
  if (head->n_bytes > c->room_bytes) {
    strict_break(e->world->host, e->place, e->rank,
                 "%s: message %llu has %llu bytes, room was posted for %llu", who,
                 (unsigned long long)head->number, (unsigned long long)head->n_bytes,
                 (unsigned long long)c->room_bytes);
    return false;
  }
  *out_stream = s;
  *out_target = c->target;
  return true;
}

void strict_message_arrived(opipe_stream *s, const frame *head) {
  wire *w = s->wire;
  cell *c = strict_cell(s, head->number);
  c->arrived = head->number + 1;
  strict_give(&c->recv_memory);
  while (strict_cell(s, w->n_arrived)->arrived == w->n_arrived + 1)
    ++w->n_arrived;
  atomic_fetch_add(&strict_counted()->messages, 1);
  atomic_fetch_add(&strict_counted()->bytes, head->n_bytes);
  strict_ring_rank(s->endpoint->place, s->endpoint->rank);
}

/* ---- the sender ---- */

opipe_status strict_reserve(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  char who[STRICT_WHO];
  opipe_status status = begin(s, 0, "reserve", who, err);
  if (status < 0)
    return status;
  cell *c = strict_cell(s, sequence);
  status = check_window(s, sequence, s->wire->n_sent, who, "reserve", err);
  if (status == OPIPE_OK && c->posted <= sequence)
    status = OPIPE_PENDING;
  if (status == OPIPE_OK && c->granted <= sequence)
    c->granted = sequence + 1;
  strict_leave(s->endpoint);
  return status;
}

static opipe_status send_locked(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                                opipe_event *ready, opipe_event *done, const char *who,
                                opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  wire *w = s->wire;
  cell *c = strict_cell(s, sequence);
  opipe_memory *memory = NULL;
  char *source = NULL;
  opipe_status status = check_window(s, sequence, w->n_sent, who, "send", err);
  if (status == OPIPE_OK && c->sent > sequence) {
    status = strict_refuse(who, "send", err, "message %llu was sent before, %llu have been",
                           (unsigned long long)sequence, (unsigned long long)w->n_sent);
  }
  if (status == OPIPE_OK && c->granted <= sequence) {
    status = strict_refuse(who, "send", err,
                           "message %llu before reserve answered OK for it, %llu have been sent",
                           (unsigned long long)sequence, (unsigned long long)w->n_sent);
  }
  if (status == OPIPE_OK)
    status = check_order(s, sequence, w->n_sent, who, "send", err);
  if (status == OPIPE_OK)
    status = check_size(s, region, who, "send", err);
  if (status == OPIPE_OK)
    status = strict_events(e, ready, done, who, "send", err);
  if (status == OPIPE_OK)
    status = strict_region(e, region, who, "send", &memory, &source, err);
  if (status == OPIPE_OK && c->sent != c->written)
    status = OPIPE_PENDING; /* the writer has not looked up from the message before */
  if (status == OPIPE_OK)
    status = strict_record(e, &c->send_done, err); /* of the message before, which nobody tested */
  if (status != OPIPE_OK)
    return status;
  c->send_done = done;
  c->send_memory = memory;
  c->sent = sequence + 1;
  while (strict_cell(s, w->n_sent)->sent == w->n_sent + 1)
    ++w->n_sent;
  strict_take(memory);
  c->job = (job){.head = {.magic = FRAME_MAGIC,
                          .kind = FRAME_MESSAGE,
                          .src_rank = e->rank,
                          .id = w->id,
                          .number = sequence,
                          .n_bytes = region->n_bytes},
                 .dst_rank = w->base.params.dst_rank,
                 .source = source,
                 .ready = ready,
                 .stream = s};
  strict_queue(e, &c->job);
  return OPIPE_OK;
}

opipe_status strict_send(opipe_stream *s, uint64_t sequence, const opipe_region *region,
                         opipe_event *ready, opipe_event *done, opipe_error *err) {
  char who[STRICT_WHO];
  opipe_status status = begin(s, 0, "send", who, err);
  if (status < 0)
    return status;
  status = send_locked(s, sequence, region, ready, done, who, err);
  strict_leave(s->endpoint);
  return status;
}

void strict_message_written(const job *j) {
  opipe_stream *s = j->stream;
  cell *c = strict_cell(s, j->head.number);
  c->written = j->head.number + 1;
  strict_give(&c->send_memory);
  strict_ring_rank(s->endpoint->place, s->endpoint->rank);
}

/* ---- either ---- */

static opipe_status test_locked(opipe_stream *s, uint64_t sequence, const char *who,
                                opipe_error *err) {
  cell *c = strict_cell(s, sequence);
  opipe_status status = OPIPE_OK;
  if ((s->sides & 1u) != 0) {
    status = check_window(s, sequence, s->wire->n_sent, who, "test", err);
    if (status == OPIPE_OK && c->written <= sequence)
      status = OPIPE_PENDING;
    if (status == OPIPE_OK && c->written == sequence + 1 && c->sent == c->written)
      status = strict_record(s->endpoint, &c->send_done, err);
  }
  if ((s->sides & 2u) != 0 && status == OPIPE_OK) {
    status = check_window(s, sequence, s->wire->n_arrived, who, "test", err);
    if (status == OPIPE_OK && c->arrived <= sequence)
      status = OPIPE_PENDING;
    if (status == OPIPE_OK && c->arrived == sequence + 1 && c->posted == sequence + 1)
      status = strict_record(s->endpoint, &c->recv_done, err);
  }
  return status;
}

opipe_status strict_test(opipe_stream *s, uint64_t sequence, opipe_error *err) {
  char who[STRICT_WHO];
  opipe_status status = begin(s, OPIPE_NONE, "test", who, err);
  if (status < 0)
    return status;
  status = test_locked(s, sequence, who, err);
  strict_leave(s->endpoint);
  return status;
}
