/* SPDX-License-Identifier: Apache-2.0 */
/* The events of messages, reductions and collects: `ready` is waited for, `done` is recorded, and
 * not before.
 */
#ifndef CONFORMANCE_TRANSPORT_EVENTS_H
#define CONFORMANCE_TRANSPORT_EVENTS_H

#include "transport_collects.h"
#include "transport_sums.h"

/* ---- an event that another thread completes, once it has made the data ---- */

typedef struct maker {
  opipe_event *ready;
  void (*make)(void *ctx);
  void *ctx;
} maker;

static void *maker_body(void *arg) {
  const maker *m = (const maker *)arg;
  (void)nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
  m->make(m->ctx);
  let_go(m->ready);
  return NULL;
}

static bool is_recorded(const opipe_event *event) {
  return __atomic_load_n(&event->event.n_recorded, __ATOMIC_ACQUIRE) != 0;
}

static bool open_events(rank *r) {
  bool made = true;
  for (uint32_t i = 0; i < WATCHED; ++i) {
    made = conf_ok(opipe_host_event_create(r->device, &r->events[i], &r->err), &r->err, "event") &&
           made;
  }
  return made;
}

/* ---- messages ---- */

static void make_message(void *ctx) {
  const passing *p = (const passing *)ctx;
  fill(&p->from, p->tag, p->sequence);
}

/* Sends while `ready` is held. False: nobody can go on. */
static bool send_held(const subject *s, passing *p, maker *m) {
  pthread_t thread;
  bool done = false;
  if (!pass_until(s, p, PASS_SEND))
    return false;
  hold(m->ready);
  if (!conf_check(pthread_create(&thread, NULL, maker_body, m) == 0, "pthread_create"))
    return false;
  if (pass_until(s, p, PASS_TEST)) {
    uint32_t n_early = 0;
    opipe_error err = OPIPE_ERROR_INIT;
    while (held_poll(m->ready, NULL) == OPIPE_PENDING) {
      const opipe_status status = s->t->test(p->in, p->sequence, &err);
      n_early += status == OPIPE_OK && held_poll(m->ready, NULL) == OPIPE_PENDING;
      if (status == OPIPE_OK)
        break;
    }
    conf_check(n_early == 0, "a message is there although its `ready` is not complete");
    done = pass_until(s, p, PASS_DONE);
  }
  (void)pthread_join(thread, NULL);
  return done;
}

static void check_event_messages(const subject *s, bool copies) {
  ring g;
  if (open_ring(&g, s) && open_events(&g.ranks[0])) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    a->copies = copies;
    passing p = passing_of(a, b, 0);
    p.ready = a->events[WATCHED_READY];
    p.sent = a->events[WATCHED_SENT];
    p.received = a->events[WATCHED_RECEIVED];
    maker m = {p.ready, make_message, &p};
    blank(&p.to);
    if (!copies || (s->info.flags & OPIPE_TRANSPORT_DIRECT) == 0)
      blank(&p.from);
    atomic_store(&events_early, 0);
    if (send_held(s, &p, &m)) {
      conf_check(holds(&p.to, p.tag, 0, ELEMS), "the message is that of before its `ready`");
      conf_check(atomic_load(&events_early) == 0,
                 "a `done` is recorded although the message's `ready` is not complete");
      conf_check(is_recorded(p.sent), "the sender's `done` is not recorded");
      conf_check(is_recorded(p.received), "the receiver's `done` is not recorded");
    }
  }
  close_ring(&g, s);
}

/* ---- receives of regions that are in use ---- */

#if OPIPE_ABI_MINOR >= 5
enum { HELD_NS = 30000000 };

typedef struct held_receive {
  const subject *s;
  rank *a, *b;
  opipe_region to, from;
  bool posted, sent, there;
} held_receive;

/* Takes one step of each end. False: an error. */
static bool go_on(held_receive *h) {
  const opipe_transport *t = h->s->t;
  opipe_status status = OPIPE_OK;
  if (!h->posted) {
    status = t->recv_after(h->b->in, 0, &h->to, h->b->events[WATCHED_READY],
                           h->b->events[WATCHED_RECEIVED], &h->b->err);
    h->posted = status == OPIPE_OK;
  }
  if (status < 0)
    return conf_ok(status, &h->b->err, "recv_after");
  if (!h->sent && t->reserve(h->a->out, 0, &h->a->err) == OPIPE_OK) {
    status = t->send(h->a->out, 0, &h->from, NULL, NULL, &h->a->err);
    h->sent = status == OPIPE_OK;
  }
  if (status < 0)
    return conf_ok(status, &h->a->err, "send to a receive after an event");
  if (h->sent)
    status = t->test(h->a->out, 0, &h->a->err);
  if (h->posted && status >= 0) {
    status = t->test(h->b->in, 0, &h->b->err);
    h->there = status == OPIPE_OK;
  }
  return status >= 0 || conf_ok(status, &h->b->err, "test of a receive after an event");
}

static void receive_held(held_receive *h) {
  char before[SLOT_BYTES];
  opipe_event *ready = h->b->events[WATCHED_READY], *done = h->b->events[WATCHED_RECEIVED];
  const char *target = (const char *)opipe_host_at(&h->to);
  const uint64_t start = conf_host.now_ns(NULL);
  memcpy(before, target, sizeof before);
  hold(ready);
  bool good = true;
  while (good && conf_host.now_ns(NULL) - start < HELD_NS) {
    good = go_on(h);
    if (memcmp(before, target, sizeof before) != 0)
      good = conf_check(false, "a region is written to although its `ready` is not complete");
  }
  let_go(ready);
  while (good && !(h->there && h->sent && held_poll(done, NULL) == OPIPE_OK)) {
    good = go_on(h) && conf_check(conf_host.now_ns(NULL) - start < DEADLINE_NS,
                                  "a receive after an event never ends");
  }
  if (good) {
    conf_check(is_recorded(done), "`done` of recv_after is not recorded");
    conf_check(holds(&h->to, h->a->index, 0, ELEMS), "the message after an event is not whole");
  }
}

static void check_event_receives(const subject *s) {
  ring g;
  if (open_ring(&g, s) && open_events(&g.ranks[1])) {
    rank *a = &g.ranks[0], *b = &g.ranks[1];
    a->copies = true;
    const passing p = passing_of(a, b, 0);
    held_receive h = {s, a, b, p.to, p.from, false, false, false};
    blank(&h.to);
    fill(&h.from, a->index, 0);
    conf_error(s->t->recv_after(b->in, 0, &h.to, NULL, NULL, &b->err), OPIPE_E_INVALID, &b->err,
               "recv_after without `done`");
    receive_held(&h);
  }
  close_ring(&g, s);
}
#endif

/* ---- sums ---- */

static void make_terms(void *ctx) {
  const rank *r = (const rank *)ctx;
  const opipe_region region = {r->slots, 0, SLOT_BYTES};
  set_terms(r, &region, 0, ELEMS);
}

/* One round by one thread; rank 1's values come late. False: nobody can go on. */
static bool reduce_held(const subject *s, ring *g, opipe_event *const *events) {
  const uint64_t start = conf_host.now_ns(NULL);
  bool given[RANKS] = {false}, done[RANKS] = {false};
  uint32_t n_done = 0;
  while (n_done < RANKS) {
    for (uint32_t i = 0; i < RANKS; ++i) {
      rank *r = &g->ranks[i];
      const opipe_region region = {r->slots, 0, SLOT_BYTES};
      const bool held = held_poll(events[WATCHED_READY], NULL) == OPIPE_PENDING;
      const opipe_status status =
          given[i] ? s->t->group_test(r->group, 0, &r->err)
                   : s->t->all_reduce(r->group, 0, &region, ELEMS, OPIPE_FLOAT,
                                      i == 1 ? events[WATCHED_READY] : NULL,
                                      i == 1 ? events[WATCHED_SENT] : NULL, &r->err);
      if (status < 0)
        return conf_ok(status, &r->err, "all_reduce");
      if (status == OPIPE_OK && given[i] && !done[i]) {
        done[i] = true;
        ++n_done;
        conf_check(!held || held_poll(events[WATCHED_READY], NULL) != OPIPE_PENDING,
                   "a sum is there although a member's `ready` is not complete");
      }
      given[i] = given[i] || status == OPIPE_OK;
    }
    if (conf_host.now_ns(NULL) - start > DEADLINE_NS)
      return conf_check(false, "a reduction behind a `ready` never ends");
  }
  return true;
}

static void check_event_sums(const subject *s) {
  static const sum_case c = {"", {0, 1, 2}, OPIPE_FLOAT};
  ring g;
  pthread_t thread;
  if (open_ring(&g, s) && open_groups(&g, &c) && open_events(&g.ranks[1])) {
    opipe_event *const *events = g.ranks[1].events;
    maker m = {events[WATCHED_READY], make_terms, &g.ranks[1]};
    for (uint32_t i = 0; i < RANKS; ++i) {
      const opipe_region region = {g.ranks[i].slots, 0, SLOT_BYTES};
      set_terms(&g.ranks[i], &region, 0, i == 1 ? 0 : ELEMS);
    }
    atomic_store(&events_early, 0);
    hold(m.ready);
    if (conf_check(pthread_create(&thread, NULL, maker_body, &m) == 0, "pthread_create")) {
      const bool done = reduce_held(s, &g, events);
      (void)pthread_join(thread, NULL);
      for (uint32_t i = 0; i < RANKS && done; ++i) {
        const opipe_region region = {g.ranks[i].slots, 0, SLOT_BYTES};
        conf_check(has_sums(&g.ranks[i], &region, 0, ELEMS),
                   "rank %u has sums of values of before their `ready`", i);
      }
      conf_check(!done || is_recorded(events[WATCHED_SENT]), "`done` is not recorded");
      conf_check(atomic_load(&events_early) == 0,
                 "`done` is recorded although a member's `ready` is not complete");
    }
  }
  close_groups(&g);
  close_ring(&g, s);
}

/* ---- collects ---- */

#if OPIPE_ABI_MINOR >= 5
typedef struct late_values {
  rank *r;
  asked a;
} late_values;

static const meeting held_meeting = {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 200, {0}, true};

static void make_late_values(void *ctx) {
  late_values *late = (late_values *)ctx;
  make_values(&held_meeting, member_of_rank(late->r->index), 0, late->r->slots, &late->a);
}

/* One meeting by one thread; rank 1's values come late. False: nobody can go on. */
static bool collect_held(const subject *s, ring *g, late_values *values,
                         opipe_event *const *events) {
  const uint64_t start = conf_host.now_ns(NULL);
  bool given[RANKS] = {false}, done[RANKS] = {false};
  uint32_t n_done = 0;
  while (n_done < RANKS) {
    for (uint32_t i = 0; i < RANKS; ++i) {
      rank *r = &g->ranks[i];
      const bool held = held_poll(events[WATCHED_READY], NULL) == OPIPE_PENDING;
      const opipe_status status = given[i]
                                      ? s->t->collect_test(r->collective, 0, &r->err)
                                      : s->t->collect(r->collective, 0, &values[i].a.what, &r->err);
      if (status < 0)
        return conf_ok(status, &r->err, "collect");
      if (status == OPIPE_OK && given[i] && !done[i]) {
        done[i] = true;
        ++n_done;
        conf_check(!held || held_poll(events[WATCHED_READY], NULL) != OPIPE_PENDING,
                   "a collect is over although a member's `ready` is not complete");
      }
      given[i] = given[i] || status == OPIPE_OK;
    }
    if (conf_host.now_ns(NULL) - start > DEADLINE_NS)
      return conf_check(false, "a collect behind a `ready` never ends");
  }
  return true;
}

static void check_event_collects(const subject *s) {
  ring g;
  pthread_t thread;
  late_values values[RANKS];
  if (open_ring(&g, s) && open_collectives(&g) && open_events(&g.ranks[1])) {
    opipe_event *const *events = g.ranks[1].events;
    const opipe_region all = {g.ranks[1].slots, 0, COLLECT_BYTES};
    for (uint32_t i = 0; i < RANKS; ++i) {
      values[i].r = &g.ranks[i];
      ask(&held_meeting, &g.ranks[i], 0, &values[i].a);
    }
    memset(opipe_host_at(&all), 0, COLLECT_BYTES);
    values[1].a.what.ready = events[WATCHED_READY];
    values[1].a.what.done = events[WATCHED_SENT];
    maker m = {events[WATCHED_READY], make_late_values, &values[1]};
    atomic_store(&events_early, 0);
    hold(m.ready);
    if (conf_check(pthread_create(&thread, NULL, maker_body, &m) == 0, "pthread_create")) {
      const bool done = collect_held(s, &g, values, events);
      (void)pthread_join(thread, NULL);
      for (uint32_t i = 0; i < RANKS && done; ++i) {
        conf_check(is_as_wanted(&g.ranks[i], &held_meeting, 0, &values[i].a),
                   "rank %u has values of before their `ready`", i);
      }
      conf_check(!done || is_recorded(events[WATCHED_SENT]), "`done` is not recorded");
      conf_check(atomic_load(&events_early) == 0,
                 "`done` is recorded although a member's `ready` is not complete");
    }
  }
  close_collectives(&g, s);
  close_ring(&g, s);
}
#endif

static void check_events(const subject *s) {
  conf_case("events of messages");
  check_event_messages(s, false);
  if ((s->info.flags & OPIPE_TRANSPORT_DIRECT) != 0) {
    conf_case("events of messages from the sender's own memory");
    check_event_messages(s, true);
  }
  conf_case("events of reductions");
  if ((s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0)
    check_event_sums(s);
#if OPIPE_ABI_MINOR >= 5
  conf_case("events of collects");
  if (collects(s))
    check_event_collects(s);
  if (OPIPE_HAS(s->t, opipe_transport, recv_after) && s->t->recv_after != NULL) {
    conf_case("receives after events");
    check_event_receives(s);
  }
#endif
}

#endif /* CONFORMANCE_TRANSPORT_EVENTS_H */
