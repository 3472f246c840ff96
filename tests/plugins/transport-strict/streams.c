/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: two ranks open the two ends of one wire (opipe/meeting.h). One whose end has left is
 * taken off the list, so that who opens the stream again meets a new one.
 */
#include "strict.h"

static void unlist(place *p, wire *w) {
  opipe_wire **at = &p->wires.first;
  while (*at != &w->base)
    at = &(*at)->next;
  *at = w->base.next;
  w->unlisted = true;
}

static void leave(place *p, wire *w, uint32_t sides) {
  const bool last = opipe_wire_leave(&w->base, sides);
  if (!w->unlisted)
    unlist(p, w);
  if (last)
    opipe_wire_free(&p->wires, &w->base);
}

static opipe_status open_locked(opipe_stream *s, const opipe_stream_params *params,
                                opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  place *p = e->place;
  opipe_wire *base = NULL;
  opipe_status status = strict_check(p, err);
  if (status == OPIPE_OK)
    status = opipe_wire_open(&p->wires, e->rank, params, &base, err);
  if (status == OPIPE_E_INVALID)
    atomic_fetch_add(&strict_counted()->refused, 1);
  if (status < 0)
    return status;
  s->wire = (wire *)base;
  s->sides = opipe_stream_sides(params, e->rank);
  status = strict_lane(p, params->src_rank, params->dst_rank, err);
  if (status < 0) {
    leave(p, s->wire, s->sides);
    return status;
  }
  if (s->wire->id == 0)
    s->wire->id = ++p->n_ids;
  s->wire->met = base->sides == 3;
  s->n_opened = ++e->n_opened;
  s->next = e->streams;
  e->streams = s;
  return OPIPE_OK;
}

opipe_status strict_stream_open(opipe_endpoint *e, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  opipe_stream *s = opipe_zeroed(e->world->host, "a stream", sizeof *s, STRICT_ALIGN, err);
  if (s == NULL)
    return OPIPE_E_NOMEM;
  s->endpoint = e;
  pthread_mutex_lock(&e->place->lock);
  const opipe_status status = open_locked(s, params, err);
  pthread_mutex_unlock(&e->place->lock);
  if (status < 0)
    opipe_free(e->world->host, s, sizeof *s, STRICT_ALIGN);
  else
    *out_stream = s;
  return status;
}

/* The message that this end still has a part in, q + 1; 0: none. */
static uint64_t under_way(const opipe_stream *s) {
  const cell *cells = s->wire->base.cells;
  for (uint32_t i = 0; i < s->wire->base.params.depth; ++i) {
    const cell *c = &cells[i];
    if ((s->sides & 1u) != 0 && c->sent != c->written)
      return c->sent;
    if ((s->sides & 2u) != 0 && c->posted != c->arrived && c->sent == c->posted)
      return c->posted;
  }
  return 0;
}

/* Receives that nobody has sent to are taken back. */
static void let_go(const opipe_stream *s) {
  cell *cells = s->wire->base.cells;
  for (uint32_t i = 0; i < s->wire->base.params.depth; ++i) {
    if ((s->sides & 1u) != 0)
      strict_give(&cells[i].send_memory);
    if ((s->sides & 2u) != 0)
      strict_give(&cells[i].recv_memory);
  }
}

void strict_stream_close(opipe_stream *s) {
  if (s == NULL)
    return;
  opipe_endpoint *e = s->endpoint;
  place *p = e->place;
  char who[STRICT_WHO];
  pthread_mutex_lock(&p->lock);
  const uint64_t open = under_way(s);
  if (open != 0 && atomic_load(&p->aborted) == 0) {
    strict_who_stream(s, who);
    strict_break(e->world->host, p, e->rank,
                 "stream_close: %s: message %llu is on its way, %llu have been sent", who,
                 (unsigned long long)(open - 1), (unsigned long long)s->wire->n_sent);
  }
  strict_unqueue(e, s);
  strict_calm(e, s);
  let_go(s);
  opipe_stream **at = &e->streams;
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  leave(p, s->wire, s->sides);
  pthread_mutex_unlock(&p->lock);
  opipe_free(e->world->host, s, sizeof *s, STRICT_ALIGN);
  strict_endpoint_leave(e);
}
