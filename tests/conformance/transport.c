/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of transport plugins: conformance-transport PATH.so [OPTIONS]
 *
 * Ranks are threads of this process, on a host-memory device made of opipe/helpers.h. Messages
 * arrive whole, in the order of the rule, never before their receive was posted where the transport
 * is direct; reserve tells the truth; nobody sleeps through a doorbell; reductions give every
 * member the same bits; abort reaches every rank. Each wait has a deadline: a lost wake-up fails,
 * it never hangs.
 */
#include "transport_kit.h"
#include "transport_sums.h"

/* ---- messages ---- */

static opipe_status post(rank *r, uint64_t sequence) {
  const opipe_region region = slot_of(r, sequence);
  UNTIL(r, r->s->t->recv(r->in, sequence, &region, NULL, &r->err));
  return OPIPE_OK;
}

static opipe_status send_one(rank *r, uint64_t sequence) {
  const opipe_region region = source_of(r, sequence);
  if ((r->s->info.flags & OPIPE_TRANSPORT_DIRECT) == 0 && sequence >= DEPTH)
    UNTIL(r, r->s->t->test(r->out, sequence - DEPTH, &r->err)); /* the region is ours again when
                                                                   its last message has gone */
  UNTIL(r, r->s->t->reserve(r->out, sequence, &r->err));
  fill(&region, r->index, sequence);
  UNTIL(r, r->s->t->send(r->out, sequence, &region, NULL, NULL, &r->err));
  return OPIPE_OK;
}

static opipe_status take_one(rank *r, uint64_t sequence) {
  const opipe_region region = slot_of(r, sequence);
  UNTIL(r, r->s->t->test(r->in, sequence, &r->err));
  r->n_good += holds(&region, (r->index + RANKS - 1) % RANKS, sequence);
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
      status = take_one(r, m);
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

static void check_messages(const subject *s) {
  ring g;
  conf_case("messages");
  if (open_ring(&g, s)) {
    on_every_rank(&g, ring_body);
    for (uint32_t i = 0; i < RANKS; ++i) {
      conf_ok(g.ranks[i].status, &g.ranks[i].err, "ring");
      conf_check(g.ranks[i].n_good == MESSAGES, "rank %u: %u of %d messages are whole", i,
                 g.ranks[i].n_good, MESSAGES);
    }
  }
  close_ring(&g, s);
}

/* ---- batches ---- */

#if OPIPE_TARGET_MINOR >= 1
/* Every rank sends to the next and receives from the one before in one batch, which nobody could do
 * one after the other without somebody who receives first. */
static opipe_status batch_round(rank *r, uint64_t sequence) {
  const opipe_transport *t = r->s->t;
  const opipe_region to = slot_of(r, sequence), from = source_of(r, sequence);
  fill(&from, r->index, sequence);
  UNTIL(r, t->batch_begin(r->endpoint, &r->err));
  opipe_status status = t->send(r->out, sequence, &from, NULL, NULL, &r->err);
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
  return take_one(r, sequence);
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
    conf_ok(s->t->reserve(a->out, 0, &a->err), &a->err, "reserve after the batch has ended");
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
    if ((s->info.flags & OPIPE_TRANSPORT_EMULATED) == 0) {
      conf_ok(s->t->reserve(a->out, 0, &a->err), &a->err, "reserve after the receive was posted");
      conf_check(s->t->doorbell(a->endpoint) != seen, "posting a receive does not ring the sender");
    }
    conf_check(s->t->reserve(a->out, 1, &a->err) == OPIPE_PENDING,
               "reserve of a message that nobody waits for");
    conf_check(s->t->test(b->in, 0, &b->err) == OPIPE_PENDING,
               "a message is there before it was sent");
  }
  close_ring(&g, s);
}

static void check_stream_params(const subject *s) {
  ring g;
  conf_case("stream parameters");
  if (open_ring(&g, s)) {
    opipe_stream *one = NULL, *two = NULL;
    opipe_stream_params p = stream_params(0, 1, 7);
    conf_ok(s->t->stream_open(g.ranks[0].endpoint, &p, &one, &g.ranks[0].err), &g.ranks[0].err,
            "stream_open");
    p.n_bytes *= 2;
    g.ranks[1].err.message[0] = '\0';
    conf_check(s->t->stream_open(g.ranks[1].endpoint, &p, &two, &g.ranks[1].err) < 0 &&
                   g.ranks[1].err.message[0] != '\0',
               "the two ends of a stream may differ in size");
    g.ranks[2].err.message[0] = '\0';
    conf_check(s->t->stream_open(g.ranks[2].endpoint, &p, &two, &g.ranks[2].err) < 0 &&
                   g.ranks[2].err.message[0] != '\0',
               "a rank may open a stream between two others");
    s->t->stream_close(one);
  }
  close_ring(&g, s);
}

/* ---- doorbell ---- */

static void *waiting_body(void *arg) {
  rank *r = (rank *)arg;
  if (r->index == 0) {
    r->status = OPIPE_OK;
    r->s->t->ring(r->next->endpoint);
    return NULL;
  }
  r->status = r->index == 1 ? r->s->t->wait(r->endpoint, r->seen, DEADLINE_NS, &r->err) : OPIPE_OK;
  return NULL;
}

static void *ringing_body(void *arg) {
  rank *r = (rank *)arg;
  if (r->index == 0)
    r->s->t->ring(r->next->endpoint);
  r->status = OPIPE_OK;
  return NULL;
}

static void count_call(void *ctx) {
  (void)__atomic_add_fetch((uint32_t *)ctx, 1, __ATOMIC_SEQ_CST);
}

/* Called once for each time that it was asked for, whether the ring came before or after. */
static void check_notify(const subject *s) {
  ring g;
  if (!OPIPE_HAS(s->t, opipe_transport, notify) || s->t->notify == NULL)
    return;
  conf_case("notify");
  if (open_ring(&g, s)) {
    opipe_endpoint *e = g.ranks[1].endpoint;
    uint32_t n = 0;
    uint32_t seen = s->t->doorbell(e);
    s->t->notify(e, seen, count_call, &n);
    conf_check(n == 0, "notify calls although nothing has rung");
    s->t->ring(e);
    s->t->ring(e);
    conf_check(n == 1, "two rings call %u times what was asked for once", n);
    s->t->notify(e, seen, count_call, &n);
    conf_check(n == 2, "notify does not call for what has rung already");
    s->t->notify(e, s->t->doorbell(e), count_call, &n);
    s->t->notify(e, 0, NULL, NULL);
    s->t->ring(e);
    conf_check(n == 2, "notify calls what was taken back");
    for (uint32_t round = 0; round < 200; ++round) { /* while another rank rings */
      seen = s->t->doorbell(e);
      n = 0;
      s->t->notify(e, seen, count_call, &n);
      on_every_rank(&g, ringing_body);
      conf_check(n == 1, "a ring of another thread calls %u times", n);
    }
  }
  close_ring(&g, s);
}

static void check_doorbell(const subject *s) {
  ring g;
  conf_case("doorbell");
  if (open_ring(&g, s)) {
    rank *r = &g.ranks[0];
    const uint32_t seen = s->t->doorbell(r->endpoint);
    r->err.message[0] = '\0';
    conf_error(s->t->wait(r->endpoint, seen, 2000000, &r->err), OPIPE_E_TIMEOUT, &r->err,
               "wait without a ring");
    s->t->ring(r->endpoint);
    const bool rings =
        conf_check(s->t->doorbell(r->endpoint) != seen, "ring does not move the doorbell") &&
        conf_ok(s->t->wait(r->endpoint, seen, DEADLINE_NS, &r->err), &r->err,
                "wait for what has rung already");
    for (int round = 0; rings && round < 200;
         ++round) { /* a ring before, while or after the other side falls asleep is never lost */
      g.ranks[1].seen = s->t->doorbell(g.ranks[1].endpoint);
      on_every_rank(&g, waiting_body);
      if (!conf_ok(g.ranks[1].status, &g.ranks[1].err, "wait while another rank rings"))
        break;
    }
  }
  close_ring(&g, s);
}

/* ---- failure ---- */

static void *aborted_body(void *arg) {
  rank *r = (rank *)arg;
  const uint32_t seen = r->s->t->doorbell(r->endpoint);
  r->status = r->s->t->wait(r->endpoint, seen, DEADLINE_NS, &r->err);
  if (r->status == OPIPE_OK)
    r->status = r->s->t->test(r->in, 0, &r->err);
  return NULL;
}

static void check_abort(const subject *s) {
  ring g;
  conf_case("abort");
  if (open_ring(&g, s)) {
    pthread_t thread;
    opipe_error why = OPIPE_ERROR_INIT, later = OPIPE_ERROR_INIT;
    why.status = OPIPE_E_DEVICE;
    (void)snprintf(why.message, sizeof(why.message), "the first reason");
    (void)snprintf(later.message, sizeof(later.message), "a later reason");
    conf_check(pthread_create(&thread, NULL, aborted_body, &g.ranks[1]) == 0, "pthread_create");
    (void)nanosleep(&(struct timespec){0, 20000000}, NULL); /* rank 1 has fallen asleep by then */
    uint64_t start = conf_host.now_ns(NULL);
    s->t->abort(g.world, 0, &why);
    s->t->abort(g.world, 2, &later);
    (void)pthread_join(thread, NULL);
    conf_check(conf_host.now_ns(NULL) - start < DEADLINE_NS / 4,
               "abort does not wake a waiting rank");
    start = conf_host.now_ns(NULL);
    conf_error(s->t->wait(g.ranks[2].endpoint, s->t->doorbell(g.ranks[2].endpoint), DEADLINE_NS,
                          &g.ranks[2].err),
               OPIPE_E_PEER, &g.ranks[2].err, "wait after abort");
    conf_check(conf_host.now_ns(NULL) - start < DEADLINE_NS / 4, "wait sleeps in an aborted world");
    conf_error(g.ranks[1].status, OPIPE_E_PEER, &g.ranks[1].err, "a waiting rank after abort");
    for (uint32_t i = 0; i < RANKS; ++i) {
      rank *r = &g.ranks[i];
      const opipe_region region = slot_of(r, 0);
      conf_error(s->t->recv(r->in, 0, &region, NULL, &r->err), OPIPE_E_PEER, &r->err,
                 "recv after abort");
      conf_check(strstr(r->err.message, "the first reason") != NULL,
                 "the message is not that of the first abort: %s", r->err.message);
    }
  }
  close_ring(&g, s);
}

/* What a world with given options declares: sane, the same each time, no wider than info. */
static void check_world_info(subject *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_transport_info first = {.struct_size =
                                    (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  opipe_transport_info again = first;
  conf_case("world_info");
  if (s->t->struct_size < OPIPE_END(opipe_transport, world_info) || s->t->world_info == NULL) {
    conf_skip("it declares the same for all its worlds");
    return;
  }
  conf_ok(s->t->world_info(s->self, s->options, &first, &err), &err, "world_info");
  conf_ok(s->t->world_info(s->self, s->options, &again, &err), &err, "world_info, again");
  conf_check(memcmp(&first, &again, sizeof first) == 0, "two answers for the same options");
  conf_check(first.rule <= OPIPE_RULE_GROUPED, "rule %u", first.rule);
  s->rule = first.rule;
  conf_check(first.latency_ns >= 0 && first.latency_ns < 1e15, "latency %g ns", first.latency_ns);
  conf_check(first.bandwidth == 0 || (first.bandwidth >= 1 && first.bandwidth <= 1e18),
             "bandwidth %g", first.bandwidth);
  conf_check(first.flags == s->info.flags && first.thread_rule == s->info.thread_rule,
             "flags %u, thread rule %u; info says %u and %u", first.flags, first.thread_rule,
             s->info.flags, s->info.thread_rule);
  conf_check(s->t->world_info(s->self, "no-such-option=1", &again, &err) < 0,
             "world_info accepts an unknown option");
}

int main(int argc, char **argv) {
  subject s;
  opipe_error err = OPIPE_ERROR_INIT;
  if (argc != 2 && argc != 3) {
    (void)fprintf(stderr, "usage: %s PATH.so [OPTIONS]\n", argv[0]);
    return 2;
  }
  static const conf_table rule = {OPIPE_TRANSPORT_ID, OPIPE_END(opipe_transport, abort),
                                  offsetof(opipe_transport, group_open),
                                  OPIPE_END(opipe_transport, group_test)};
  conf_plugin plugin = conf_open(argv[1], OPIPE_KIND_TRANSPORT, &rule);
  memset(&s, 0, sizeof(s));
  s.t = transport_checked((const opipe_transport *)plugin.table);
  s.self = plugin.self;
  s.options = argc == 3 ? argv[2] : NULL;
  s.info.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth);
  conf_case("info");
  conf_ok(s.t->info(s.self, &s.info, &err), &err, "info");
  conf_check(s.info.rule <= OPIPE_RULE_GROUPED, "rule %u", s.info.rule);
  conf_check(s.info.max_ranks == 0 || s.info.max_ranks >= RANKS, "at most %u ranks",
             s.info.max_ranks);
  s.rule = s.info.rule;
  check_world_info(&s);
  opipe_world *world = NULL;
  const opipe_world_params bad = {(uint32_t)OPIPE_END(opipe_world_params, options), RANKS,
                                  "no-such-option=1"};
  conf_check(s.t->world_open(s.self, &bad, &world, &err) < 0, "an unknown option is accepted");
  s.t->world_close(NULL);
  s.t->endpoint_close(NULL);
  s.t->stream_close(NULL);
  s.t->memory_drop(NULL);
  check_reserve(&s);
  if (s.rule <= OPIPE_RULE_STREAM) /* receives are posted ahead */
    check_messages(&s);
  check_batches(&s);
  check_stream_params(&s);
  check_doorbell(&s);
  check_notify(&s);
  check_reductions(&s);
  check_abort(&s);
  conf_close(&plugin);
  return conf_finish();
}
