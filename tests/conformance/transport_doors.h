/* SPDX-License-Identifier: Apache-2.0 */
/* Doorbells, which lose nothing, and abort, which reaches everybody. */
#ifndef CONFORMANCE_TRANSPORT_DOORS_H
#define CONFORMANCE_TRANSPORT_DOORS_H

#include "transport_kit.h"

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
    conf_check(s->t->doorbell(r->endpoint) != seen, "ring does not move the doorbell");
    conf_ok(s->t->wait(r->endpoint, seen, DEADLINE_NS, &r->err), &r->err,
            "wait for what has rung already");
    const int n_rounds = may_have_threads(s) ? 200 : 0;
    for (int round = 0; round < n_rounds;
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

static void is_aborted(opipe_status status, rank *r, const char *what) {
  conf_error(status, OPIPE_E_PEER, &r->err, what);
  conf_check(strstr(r->err.message, "the first reason") != NULL,
             "%s: the message is not that of the first abort: %s", what, r->err.message);
  r->err.message[0] = '\0';
}

static void check_aborted(const subject *s, rank *r) {
  const opipe_region region = slot_of(r, 0), own = {r->slots, DEPTH * SLOT_BYTES, SLOT_BYTES};
  uint32_t n = 0;
  r->err.message[0] = '\0';
  is_aborted(s->t->recv(r->in, 0, &region, NULL, &r->err), r, "recv after abort");
  is_aborted(s->t->reserve(r->out, 0, &r->err), r, "reserve after abort");
  is_aborted(s->t->send(r->out, 0, &own, NULL, NULL, &r->err), r, "send after abort");
  is_aborted(s->t->test(r->in, 0, &r->err), r, "test after abort");
  if (r->group != NULL) {
    is_aborted(s->t->all_reduce(r->group, 0, &own, 1, OPIPE_FLOAT, NULL, NULL, &r->err), r,
               "all_reduce after abort");
    is_aborted(s->t->group_test(r->group, 0, &r->err), r, "group_test after abort");
  }
  if (OPIPE_HAS(s->t, opipe_transport, notify) && s->t->notify != NULL) {
    s->t->notify(r->endpoint, s->t->doorbell(r->endpoint), count_call, &n);
    conf_check(n == 1, "notify after abort calls %u times", n);
  }
}

static void check_abort(const subject *s) {
  static const uint32_t members[RANKS] = {0, 1, 2};
  ring g;
  conf_case("abort");
  if (open_ring(&g, s)) {
    pthread_t thread;
    opipe_error why = OPIPE_ERROR_INIT, later = OPIPE_ERROR_INIT;
    why.status = OPIPE_E_DEVICE;
    (void)snprintf(why.message, sizeof(why.message), "the first reason");
    (void)snprintf(later.message, sizeof(later.message), "a later reason");
    for (uint32_t i = 0; i < RANKS && (s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0; ++i) {
      rank *r = &g.ranks[i];
      (void)s->t->group_open(r->endpoint, members, RANKS, SLOT_BYTES, &r->group, &r->err);
    }
    const bool waits = make_all_ready(&g) && may_have_threads(s);
    if (waits)
      conf_check(pthread_create(&thread, NULL, aborted_body, &g.ranks[1]) == 0, "pthread_create");
    (void)nanosleep(&(struct timespec){0, 20000000}, NULL); /* rank 1 has fallen asleep by then */
    uint64_t start = conf_host.now_ns(NULL);
    s->t->abort(g.world, 0, &why);
    s->t->abort(g.world, 2, &later);
    if (waits)
      (void)pthread_join(thread, NULL);
    else
      (void)aborted_body(&g.ranks[1]);
    conf_check(conf_host.now_ns(NULL) - start < DEADLINE_NS / 4,
               "abort does not wake a waiting rank");
    start = conf_host.now_ns(NULL);
    conf_error(s->t->wait(g.ranks[2].endpoint, s->t->doorbell(g.ranks[2].endpoint), DEADLINE_NS,
                          &g.ranks[2].err),
               OPIPE_E_PEER, &g.ranks[2].err, "wait after abort");
    conf_check(conf_host.now_ns(NULL) - start < DEADLINE_NS / 4, "wait sleeps in an aborted world");
    conf_error(g.ranks[1].status, OPIPE_E_PEER, &g.ranks[1].err, "a waiting rank after abort");
    for (uint32_t i = 0; i < RANKS; ++i)
      check_aborted(s, &g.ranks[i]);
    for (uint32_t i = 0; i < RANKS; ++i) {
      if (g.ranks[i].group != NULL)
        s->t->group_close(g.ranks[i].group);
    }
  }
  close_ring(&g, s);
}

#endif /* CONFORMANCE_TRANSPORT_DOORS_H */
