/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: what their two ends agree on, those that are nearly alike, and what closing leaves. */
#ifndef CONFORMANCE_TRANSPORT_STREAMS_H
#define CONFORMANCE_TRANSPORT_STREAMS_H

#include "transport_kit.h"

/* A misfit of two ranks is reported where the second end is opened, or by endpoint_ready. */
static void check_unlike(const subject *s, opipe_stream_params p, uint64_t n_bytes, uint32_t depth,
                         const char *what) {
  ring g;
  if (open_ring(&g, s)) {
    opipe_stream *one = NULL, *two = NULL;
    rank *a = &g.ranks[p.src_rank], *b = &g.ranks[p.dst_rank];
    opipe_error err = OPIPE_ERROR_INIT;
    conf_made(s->t->stream_open(a->endpoint, &p, &one, &a->err), &one, &a->err, "stream_open");
    p.n_bytes = n_bytes;
    p.depth = depth;
    opipe_status status = s->t->stream_open(b->endpoint, &p, &two, &err);
    conf_check(status == OPIPE_OK || two == NULL, "stream_open fails, but sets its output");
    if (status == OPIPE_OK && OPIPE_HAS(s->t, opipe_transport, endpoint_ready) &&
        s->t->endpoint_ready != NULL)
      status = ready_or_refused(&g, &err);
    (void)conf_refused(status, &err, what);
    s->t->stream_close(two);
    s->t->stream_close(one);
  }
  close_ring(&g, s);
}

static void check_stream_params(const subject *s) {
  ring g;
  const opipe_stream_params good = stream_params(0, 1, 7);
  conf_case("stream parameters");
  check_unlike(s, good, 2 * good.n_bytes, good.depth, "a stream whose two ends differ in size");
  check_unlike(s, good, good.n_bytes, good.depth + 1, "a stream whose two ends differ in depth");
  if (open_ring(&g, s)) {
    opipe_stream *two = NULL;
    opipe_stream_params p = good;
    rank *a = &g.ranks[0], *c = &g.ranks[2];
    (void)conf_refused(s->t->stream_open(c->endpoint, &p, &two, &c->err), &c->err,
                       "a rank that opens a stream between two others");
    p = stream_params(0, RANKS, 8);
    (void)conf_refused(s->t->stream_open(a->endpoint, &p, &two, &a->err), &a->err,
                       "a stream to a rank that is not there");
    p = stream_params(0, 1, 9);
    p.depth = 0;
    (void)conf_refused(s->t->stream_open(a->endpoint, &p, &two, &a->err), &a->err,
                       "a stream of depth 0");
    conf_check(two == NULL, "stream_open fails, but sets its output");
  }
  close_ring(&g, s);
}

/* ---- streams of one pair of ranks that differ in one word each ---- */

enum { ALIKE = 8, ALIKE_ELEMS = ELEMS / ALIKE };

static void make_alike(opipe_stream_params *p) {
  for (uint32_t i = 0; i < ALIKE; ++i)
    p[i] = stream_params(0, 1, 20);
  p[1].kind = OPIPE_STREAM_GRADIENT;
  p[2].index = 21;
  p[3].src_stage += RANKS;
  p[4].dst_stage += RANKS;
  p[5].src_replica = 1;
  p[6].dst_replica = 1;
  p[7].src_rank = 1; /* the other way */
  p[7].dst_rank = 0;
}

/* All receives stand, then the messages come the other way about. */
static void pass_alike(const subject *s, passing *p) {
  bool good = true;
  for (uint32_t i = 0; i < ALIKE && good; ++i)
    good = pass_until(s, &p[i], PASS_RESERVE);
  for (uint32_t i = ALIKE; i > 0 && good; --i)
    good = pass_until(s, &p[i - 1], PASS_TEST);
  for (uint32_t i = 0; i < ALIKE && good; ++i) {
    good = pass_until(s, &p[i], PASS_DONE);
    conf_check(good && holds(&p[i].to, p[i].tag, 0, ALIKE_ELEMS),
               "stream %u of %u that are alike got another one's message", i, (uint32_t)ALIKE);
  }
}

static void check_alike(const subject *s) {
  ring g;
  opipe_stream_params params[ALIKE];
  passing p[ALIKE];
  conf_case("streams of one pair");
  memset(p, 0, sizeof p);
  make_alike(params);
  bool open = open_ring(&g, s);
  for (uint32_t i = 0; i < ALIKE && open; ++i) {
    const rank *from = &g.ranks[params[i].src_rank], *to = &g.ranks[params[i].dst_rank];
    const uint64_t n_bytes = ALIKE_ELEMS * sizeof(float);
    open = open_ends(&g, &params[i], &p[i].out, &p[i].in);
    p[i].from = (opipe_region){from->slots, DEPTH * SLOT_BYTES + i * n_bytes, n_bytes};
    p[i].to = (opipe_region){to->slots, i * n_bytes, n_bytes};
    p[i].tag = i + 1;
  }
  if (open && make_all_ready(&g))
    pass_alike(s, p);
  for (uint32_t i = 0; i < ALIKE; ++i) {
    s->t->stream_close(p[i].out);
    s->t->stream_close(p[i].in);
  }
  close_ring(&g, s);
}

/* ---- opening and closing leave nothing behind ---- */

static void open_and_close(ring *g, const subject *s) {
  static const uint32_t members[RANKS] = {0, 1, 2};
  opipe_stream *out = NULL, *in = NULL;
  const opipe_stream_params p = stream_params(0, 1, 30);
  (void)open_ends(g, &p, &out, &in);
  (void)make_all_ready(g);
  s->t->stream_close(in);
  s->t->stream_close(out);
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &g->ranks[i];
    opipe_memory *memory = NULL;
    opipe_buffer *buffer = NULL;
    if (!conf_ok(
            opipe_host_buffer_alloc(r->device, SLOT_BYTES, OPIPE_BUFFER_BOUNDARY, &buffer, &r->err),
            &r->err, "buffer"))
      return;
    conf_made(s->t->memory_register(r->endpoint, buffer, SLOT_BYTES, &memory, &r->err), &memory,
              &r->err, "memory_register");
    s->t->memory_drop(memory);
    opipe_host_buffer_free(buffer);
    if ((s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0) {
      conf_made(s->t->group_open(r->endpoint, members, RANKS, SLOT_BYTES, &r->group, &r->err),
                &r->group, &r->err, "group_open");
    }
  }
  (void)make_all_ready(g);
  for (uint32_t i = 0; i < RANKS; ++i) {
    if ((s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0)
      s->t->group_close(g->ranks[i].group);
    g->ranks[i].group = NULL;
  }
}

/* Closing frees everything, or keeps it for the next stream: memory does not grow from one opening
 * to the next. */
static void check_leaks(const subject *s) {
  enum { TIMES = 4 };
  ring g;
  uint64_t within[TIMES], after[TIMES];
  conf_case("leaks");
  for (uint32_t i = 0; i < TIMES; ++i) {
    if (!open_ring(&g, s)) {
      close_ring(&g, s);
      return;
    }
    for (uint32_t k = 0; k < TIMES; ++k) {
      open_and_close(&g, s);
      within[k] = conf_live_bytes();
    }
    close_ring(&g, s);
    after[i] = conf_live_bytes();
    conf_check(within[TIMES - 1] <= within[0],
               "streams, memory and groups that were closed leave %llu bytes each time",
               (unsigned long long)(within[TIMES - 1] - within[TIMES - 2]));
  }
  conf_check(after[TIMES - 1] <= after[0], "a world that was closed leaves %llu bytes each time",
             (unsigned long long)(after[TIMES - 1] - after[TIMES - 2]));
}

#endif /* CONFORMANCE_TRANSPORT_STREAMS_H */
