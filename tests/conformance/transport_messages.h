/* SPDX-License-Identifier: Apache-2.0 */
/* Whole messages: around a ring of threads, one by one, as many as the depth allows, too large
 * ones, in batches.
 */
#ifndef CONFORMANCE_TRANSPORT_MESSAGES_H
#define CONFORMANCE_TRANSPORT_MESSAGES_H

#include "transport_kit.h"

/* ---- messages ---- */

static opipe_status post(rank *r, uint64_t sequence) {
  const opipe_region region = slot_of(r, sequence), to = placed(r, region);
  blank(&region);
  UNTIL(r, r->s->t->recv(r->in, sequence, &to, NULL, &r->err));
  return OPIPE_OK;
}

static opipe_status send_one(rank *r, uint64_t sequence) {
  const opipe_region region = source_of(r, sequence);
  const bool own = (r->s->info.flags & OPIPE_TRANSPORT_DIRECT) == 0 || r->copies;
  if (own && sequence >= DEPTH)
    UNTIL(r, r->s->t->test(r->out, sequence - DEPTH, &r->err)); /* the region is ours again when
                                                                   its last message has gone */
  UNTIL(r, r->s->t->reserve(r->out, sequence, &r->err));
  fill(&region, r->index, sequence);
  const opipe_status moved = move_far(r, &region, true);
  const opipe_region from = r->far == NULL ? region : placed(r, region);
  if (moved < 0)
    return moved;
  UNTIL(r, r->s->t->send(r->out, sequence, &from, NULL, NULL, &r->err));
  return OPIPE_OK;
}

/* n_elems: of the slot that are looked at, more than the message has. */
static opipe_status take_one(rank *r, uint64_t sequence, uint64_t n_elems) {
  const opipe_region region = slot_of(r, sequence);
  UNTIL(r, r->s->t->test(r->in, sequence, &r->err));
  const opipe_status moved = move_far(r, &region, false);
  if (moved < 0)
    return moved;
  r->n_good += holds(&region, (r->index + RANKS - 1) % RANKS, sequence, n_elems);
  r->n_unsteady += r->s->t->test(r->in, sequence, &r->err) != OPIPE_OK;
  return OPIPE_OK;
}

/* Every rank sends to the next and receives from the one before, DEPTH receives ahead. */
static opipe_status go_round(rank *r) {
  opipe_status status = OPIPE_OK;
  for (uint64_t m = 0; m < DEPTH && status == OPIPE_OK; ++m)
    status = post(r, m);
  for (uint64_t m = 0; m < MESSAGES && status == OPIPE_OK; ++m) {
    status = send_one(r, m);
    if (status == OPIPE_OK)
      status = take_one(r, m, ELEMS);
    if (status == OPIPE_OK && m + DEPTH < MESSAGES)
      status = post(r, m + DEPTH);
  }
  for (uint64_t m = MESSAGES - DEPTH; m < MESSAGES && status == OPIPE_OK; ++m)
    UNTIL(r, r->s->t->test(r->out, m, &r->err)); /* before the streams are closed */
  return status;
}

static void *ring_body(void *arg) {
  rank *r = (rank *)arg;
  r->status = go_round(r);
  return NULL;
}

static void go_around(const subject *s, bool copies) {
  ring g;
  if (open_ring(&g, s)) {
    for (uint32_t i = 0; i < RANKS; ++i)
      g.ranks[i].copies = copies;
    const uint64_t before = conf_allocations();
    on_every_rank(&g, ring_body);
    conf_check(conf_allocations() == before, "%llu allocations while messages went",
               (unsigned long long)(conf_allocations() - before));
    for (uint32_t i = 0; i < RANKS; ++i) {
      const rank *r = &g.ranks[i];
      conf_ok(r->status, &r->err, "ring");
      conf_check(r->n_good == MESSAGES, "rank %u: %u of %d messages are whole", i, r->n_good,
                 MESSAGES);
      conf_check(r->n_unsteady == 0, "rank %u: test is not OK again for %u messages", i,
                 r->n_unsteady);
    }
  }
  close_ring(&g, s);
}

static void check_messages(const subject *s) {
  conf_case("messages");
  if (!may_have_threads(s))
    return;
  go_around(s, false);
  if ((s->info.flags & OPIPE_TRANSPORT_DIRECT) != 0) {
    conf_case("messages from the sender's own memory");
    go_around(s, true);
  }
}

/* Under any rule: one message at a time. */
static void check_one_by_one(const subject *s) {
  ring g;
  conf_case("messages one by one");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    for (uint64_t m = 0; m < 12; ++m) {
      a->copies = m % 2 == 1;
      passing p = passing_of(a, b, m);
      const opipe_region all = {p.to.buffer, p.to.offset_bytes, SLOT_BYTES};
      blank(&all);
      if (!pass_until(s, &p, PASS_DONE))
        break;
      conf_check(holds(&p.to, a->index, m, ELEMS), "message %llu, of %llu bytes, is not whole",
                 (unsigned long long)m, (unsigned long long)p.to.n_bytes);
    }
  }
  close_ring(&g, s);
}

/* A fault in a message is told by send, or by test of one side. */
static opipe_status send_and_test(const subject *s, const passing *p, opipe_error *err) {
  const struct timespec pause = {.tv_nsec = 20000};
  const uint64_t start = conf_host.now_ns(NULL);
  opipe_status status = s->t->send(p->out, p->sequence, &p->from, NULL, NULL, err);
  bool there = false, gone = false;
  while (status >= 0 && !(there && gone) && conf_host.now_ns(NULL) - start < DEADLINE_NS) {
    status = there ? OPIPE_OK : s->t->test(p->in, p->sequence, err);
    there = status == OPIPE_OK;
    if (status >= 0 && !gone)
      status = s->t->test(p->out, p->sequence, err);
    gone = gone || status == OPIPE_OK;
    (void)nanosleep(&pause, NULL);
  }
  return status;
}

/* A message that is larger than what was posted is refused, not written. */
static void check_too_large(const subject *s) {
  ring g;
  conf_case("messages that are too large");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    passing p = passing_of(a, b, 0);
    blank(&p.to);
    p.to.n_bytes = 8 * sizeof(float);
    p.from = (opipe_region){a->slots, DEPTH * SLOT_BYTES, 9 * sizeof(float)};
    if (pass_until(s, &p, PASS_SEND)) {
      fill(&p.from, 0, 0);
      a->err.message[0] = '\0';
      (void)conf_refused(send_and_test(s, &p, &a->err), &a->err,
                         "a message of 36 bytes for a receive of 32");
      const float *data = (const float *)opipe_host_at(&p.to);
      conf_check(data[8] == BLANK, "it is written behind what was posted");
    }
  }
  close_ring(&g, s);
}

/* No receive: no reservation. One thread plays both sides. */
static void check_reserve(const subject *s) {
  ring g;
  conf_case("reserve");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    const opipe_region region = slot_of(b, 0);
    conf_check(s->t->test(b->in, 0, &b->err) == OPIPE_PENDING,
               "a message is there before it was sent");
    conf_check(s->t->reserve(a->out, 0, &a->err) == OPIPE_PENDING,
               "reserve succeeds before the receive was posted");
    const uint32_t seen = s->t->doorbell(a->endpoint);
    conf_ok(s->t->recv(b->in, 0, &region, NULL, &b->err), &b->err, "recv");
    if (is_reserved(s, a, 0, "reserve after the receive was posted"))
      conf_check(s->t->doorbell(a->endpoint) != seen, "posting a receive does not ring the sender");
    conf_check(s->t->test(b->in, 1, &b->err) == OPIPE_PENDING,
               "a message is there that nobody asked for");
    conf_check(s->t->reserve(a->out, 1, &a->err) == OPIPE_PENDING,
               "reserve of a message that nobody waits for");
    conf_check(s->t->test(b->in, 0, &b->err) == OPIPE_PENDING,
               "a message is there before it was sent");
  }
  close_ring(&g, s);
}

/* As many receives as were agreed on stand at once, and no more; all of them are answered. */
static void check_depth(const subject *s) {
  ring g;
  conf_case("depth");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    passing p[DEPTH];
    bool good = true;
    for (uint64_t m = 0; m < DEPTH && good; ++m) {
      p[m] = passing_of(a, b, m);
      good = conf_ok(s->t->recv(b->in, m, &p[m].to, NULL, &b->err), &b->err,
                     "recv within the stream's depth");
      p[m].stage = PASS_RESERVE;
    }
    const opipe_region next = slot_of(b, DEPTH);
    conf_check(s->t->recv(b->in, DEPTH, &next, NULL, &b->err) != OPIPE_OK,
               "receive %d of a stream of depth %d stands", (int)DEPTH + 1, (int)DEPTH);
    conf_check(s->t->reserve(a->out, DEPTH, &a->err) != OPIPE_OK,
               "reserve beyond the stream's depth");
    for (uint64_t m = 0; m < DEPTH && good; ++m) {
      good = pass_until(s, &p[m], PASS_DONE);
      conf_check(good && holds(&p[m].to, a->index, m, bytes_of(m) / sizeof(float)),
                 "message %llu is not whole", (unsigned long long)m);
    }
    conf_ok(s->t->recv(b->in, DEPTH, &next, NULL, &b->err), &b->err,
            "recv when the one of its place has been answered");
  }
  close_ring(&g, s);
}

/* An event that lets a rank go on ends its wait, also when it comes between the look and the wait.
 */
static void check_rings(const subject *s) {
  ring g;
  conf_case("rings");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    a->copies = true;
    passing p = passing_of(a, b, 0);
    if (pass_until(s, &p, PASS_SEND)) {
      const uint32_t seen = s->t->doorbell(b->endpoint);
      conf_check(s->t->test(b->in, 0, &b->err) == OPIPE_PENDING,
                 "a message is there before it was sent");
      if (pass_until(s, &p, PASS_TEST)) {
        conf_ok(s->t->wait(b->endpoint, seen, DEADLINE_NS, &b->err), &b->err,
                "wait for a message that has come since");
      }
      (void)pass_until(s, &p, PASS_DONE);
    }
  }
  close_ring(&g, s);
}

/* ---- batches ---- */

/* Do messages go in batches? */
static inline bool in_batches(const subject *s) {
#if OPIPE_TARGET_MINOR >= 1
  return OPIPE_HAS(s->t, opipe_transport, batch_end) && s->t->batch_begin != NULL &&
         s->rule == OPIPE_RULE_GROUPED;
#else
  (void)s;
  return false;
#endif
}

#if OPIPE_TARGET_MINOR >= 1
/* Every rank sends to the next and receives from the one before in one batch, which nobody could do
 * one after the other without somebody who receives first. */
static opipe_status batch_round(rank *r, uint64_t sequence) {
  const opipe_transport *t = r->s->t;
  const opipe_region to = placed(r, slot_of(r, sequence)), image = source_of(r, sequence);
  const opipe_region from = placed(r, image);
  fill(&image, r->index, sequence);
  opipe_status status = move_far(r, &image, true);
  if (status < 0)
    return status;
  UNTIL(r, t->batch_begin(r->endpoint, &r->err));
  status = t->send(r->out, sequence, &from, NULL, NULL, &r->err);
  r->n_pending += status == OPIPE_PENDING;
  if (status == OPIPE_OK)
    status = t->recv(r->in, sequence, &to, NULL, &r->err);
  r->n_pending += status == OPIPE_PENDING;
  const opipe_status ended = t->batch_end(r->endpoint, &r->err);
  r->n_pending += ended == OPIPE_PENDING;
  if (status != OPIPE_OK || ended != OPIPE_OK)
    return status < 0 ? status : ended;
  UNTIL(r, t->test(r->out, sequence, &r->err));
  r->n_open += t->test(r->in, sequence, &r->err) != OPIPE_OK; /* one of a batch: all of it */
  return take_one(r, sequence, bytes_of(sequence) / sizeof(float));
}

static void *batch_body(void *arg) {
  rank *r = (rank *)arg;
  opipe_status status = OPIPE_OK;
  for (uint64_t m = 0; m < MESSAGES && status == OPIPE_OK; ++m)
    status = batch_round(r, m);
  r->status = status;
  return NULL;
}

/* One batch at a time, which is ended once, and of which nothing is seen before its end. */
static void check_batch_calls(const subject *s) {
  ring g;
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    const opipe_region to = slot_of(b, 0);
    conf_error(s->t->batch_end(b->endpoint, &b->err), OPIPE_E_STATE, &b->err,
               "batch_end without a batch");
    conf_ok(s->t->batch_begin(b->endpoint, &b->err), &b->err, "batch_begin");
    conf_error(s->t->batch_begin(b->endpoint, &b->err), OPIPE_E_STATE, &b->err,
               "batch_begin in a batch");
    conf_ok(s->t->recv(b->in, 0, &to, NULL, &b->err), &b->err, "recv in a batch");
    conf_check(s->t->reserve(a->out, 0, &a->err) == OPIPE_PENDING,
               "a receive stands before its batch has ended");
    conf_ok(s->t->batch_end(b->endpoint, &b->err), &b->err, "batch_end");
    (void)is_reserved(s, a, 0, "reserve after the batch has ended");
    conf_check(s->t->batch_begin(b->endpoint, &b->err) == OPIPE_PENDING,
               "a batch begins while the one before is under way");
    conf_error(s->t->batch_end(b->endpoint, &b->err), OPIPE_E_STATE, &b->err,
               "batch_end of a batch that did not begin");
  }
  close_ring(&g, s);
}

static void check_batches(const subject *s) {
  ring g;
  if (!OPIPE_HAS(s->t, opipe_transport, batch_end) ||
      (s->t->batch_begin == NULL && s->t->batch_end == NULL) || s->rule != OPIPE_RULE_GROUPED)
    return;
  conf_case("batches");
  if (!conf_check(s->t->batch_begin != NULL && s->t->batch_end != NULL,
                  "one of batch_begin and batch_end without the other"))
    return;
  check_batch_calls(s);
  if (!may_have_threads(s))
    return;
  if (open_ring(&g, s)) {
    on_every_rank(&g, batch_body);
    for (uint32_t i = 0; i < RANKS; ++i) {
      const rank *r = &g.ranks[i];
      conf_ok(r->status, &r->err, "batches");
      conf_check(r->n_good == MESSAGES, "rank %u: %u of %d messages of batches are whole", i,
                 r->n_good, MESSAGES);
      conf_check(r->n_pending == 0, "rank %u: %u calls in a batch are pending", i, r->n_pending);
      conf_check(r->n_open == 0,
                 "rank %u: of %u batches an operation had finished before the others", i,
                 r->n_open);
    }
  }
  close_ring(&g, s);
}
#else
static void check_batches(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_TRANSPORT_MESSAGES_H */
