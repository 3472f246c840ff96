/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of other sessions: opening, what a rank does for it between its steps, and leaving, so that
 * nobody is cut off from what it still has to hear.
 */
#include <time.h>

#include "runtime/peers/peers.h"

/* ---- open and close ---- */

/* What is made in the reader's memory is made by a rank of the same session. */
static opipe_status check_edges(const opi_session *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    for (uint32_t r = 0; r < s->plan->n_ranks; ++r) {
      if (opi_rank_is_here(s, r) || !opi_plan_edge_is_direct(s->plan, s->here[i], r))
        continue;
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "session_open: by the plan ranks %u and %u write into each other's memory "
                      "(transport '%s'), and rank %u is in another session: describe their devices "
                      "with different domains, or make the plan for another transport",
                      s->here[i], r, s->env.transport.id, r);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_peers_check(const opi_session *s, opipe_error *err) {
  const uint32_t rule = s->plan->link.rule;
  if (s->n_here == s->plan->n_ranks)
    return OPIPE_OK;
  if (s->reference) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "session_open: the reference runs all ranks: %u of %u are given", s->n_here,
                    s->plan->n_ranks);
  }
  if (rule <= OPIPE_RULE_STREAM)
    return check_edges(s, err);
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "session_open: %u of %u ranks: transport '%s' matches messages by the order in "
                  "which ranks issue them (rule %u), and what sessions tell each other comes between: "
                  "one of the rules tag (%d) and stream (%d) is needed",
                  s->n_here, s->plan->n_ranks, s->env.transport.id, rule, OPIPE_RULE_TAG,
                  OPIPE_RULE_STREAM);
}

static opipe_status say_hello(opi_peers *p, opipe_error *err) {
  const opi_letter letter = {.kind = OPI_LETTER_HELLO, .leader = p->session->here[0]};
  for (uint32_t i = 0; i < p->n_lanes && !p->owns; ++i)
    OPI_TRY(opi_lane_write(&p->lanes[i], &letter, NULL, err));
  return OPIPE_OK;
}

opipe_status opi_peers_open(opi_session *s, opipe_error *err) {
  if (s->n_here == s->plan->n_ranks)
    return OPIPE_OK;
  opi_peers *p = opi_alloc_zero(s->allocator, 1, sizeof *p);
  if (p == NULL)
    return opi_fail_nomem(err, sizeof *p, "ranks of other sessions");
  p->session = s;
  p->owns = opi_rank_is_here(s, 0);
  opi_arena_init(&p->arena, s->allocator, 0);
  s->peers = p;
  OPI_TRY(opi_fates_open(p, err));
  return opi_lanes_open(p, err);
}

opipe_status opi_peers_begin(const opi_session *s, opipe_error *err) {
  return s->peers == NULL ? OPIPE_OK : say_hello(s->peers, err);
}

void opi_peers_close(opi_session *s) {
  opi_peers *p = s->peers;
  if (p == NULL)
    return;
  opi_lanes_close(p);
  opi_arena_release(&p->arena);
  opi_free(s->allocator, p, sizeof *p);
  s->peers = NULL;
}

/* ---- is somebody there? ---- */

static uint64_t moves_of(const opi_peers *p) {
  const opi_session *s = p->session;
  uint64_t moves = p->n_heard;
  for (uint32_t i = 0; i < s->n_here; ++i)
    moves += atomic_load_explicit(&s->ranks[s->here[i]].n_moves, memory_order_relaxed);
  return moves;
}

/* Several times in the watchdog's time, as long as something moves here, or is said to elsewhere.
 */
static opipe_status tell_alive(const opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_session *s = p->session;
  static const opi_letter letter = {.kind = OPI_LETTER_ALIVE};
  const uint64_t now = opi_clock_ns(), moves = moves_of(p);
  if (now - lane->alive_ns < s->watchdog_ns / 8 || moves == lane->alive_moves ||
      atomic_load_explicit(&p->session->n_unfinished, memory_order_relaxed) == 0 ||
      !opi_lane_has_room(lane))
    return OPIPE_OK;
  lane->alive_ns = now;
  lane->alive_moves = moves;
  return opi_lane_write(lane, &letter, NULL, err);
}

bool opi_peers_move_elsewhere(const opi_session *s, uint64_t now) {
  const uint64_t heard = s->peers == NULL ? 0 : atomic_load(&s->peers->heard_ns);
  return heard != 0 && (now < heard || now - heard < s->watchdog_ns);
}

/* ---- leaving ---- */

/* Rank 0 answers the first that leaves when all others have heard of it: what they still had to
 * hear lies before. */
static bool says_bye(const opi_peers *p, const opi_lane *lane) {
  bool others_got = true, others_leave = atomic_load(&p->leaving) != 0;
  if (!p->owns)
    return others_leave || lane->bye_got;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (&p->lanes[i] == lane)
      continue;
    others_got = others_got && p->lanes[i].bye_got;
    others_leave = others_leave || p->lanes[i].bye_got;
  }
  return others_leave || (lane->bye_got && others_got);
}

static opipe_status tell_bye(opi_peers *p, opi_lane *lane, opipe_error *err) {
  static const opi_letter letter = {.kind = OPI_LETTER_BYE};
  if (!lane->bye_sent && says_bye(p, lane) && opi_lane_has_room(lane)) {
    lane->bye_sent = true;
    OPI_TRY(opi_lane_write(lane, &letter, NULL, err));
  }
  if (lane->left || !lane->bye_sent || !lane->bye_got || lane->n_free != lane->n_written)
    return OPIPE_OK;
  lane->left = true;
  atomic_fetch_add(&p->n_left, 1);
  return OPIPE_OK;
}

void opi_peers_drive(opi_session *s) {
  for (uint32_t i = 0; s->threads == OPIPE_THREADS_HOST && i < s->n_here; ++i) {
    opi_rank *rank = &s->ranks[s->here[i]];
    if (atomic_exchange(&rank->driving, 1) != 0)
      continue;
    (void)opi_rank_advance(rank, NULL);
    atomic_store(&rank->driving, 0);
  }
}

void opi_peers_leave(opi_session *s) {
  opi_peers *p = s->peers;
  const struct timespec again = {.tv_nsec = 50000};
  if (p == NULL || p->n_lanes == 0 || !s->opened || opi_session_failed(s) ||
      atomic_load(&s->n_unfinished) != 0)
    return;
  const uint64_t until = opi_later_ns(opi_clock_ns(), s->watchdog_ns);
  atomic_store(&p->leaving, 1);
  for (uint32_t i = 0; i < s->n_here; ++i)
    s->transport->ring(s->ranks[s->here[i]].endpoint);
  while (atomic_load(&p->n_left) < p->n_lanes && !opi_session_failed(s) && opi_clock_ns() < until) {
    opi_peers_drive(s);
    (void)nanosleep(&again, NULL);
  }
}

bool opi_peers_have_gone(const opi_session *s) {
  const opi_peers *p = s->peers;
  return p != NULL && (atomic_load(&p->gone) != 0 || atomic_load(&p->leaving) != 0);
}

/* ---- a rank ---- */

static opipe_status hear(opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_letter *letter = NULL;
  bool taken = true;
  OPI_TRY(opi_lane_peek(lane, &letter, err));
  while (letter != NULL && taken) {
    OPI_TRY(opi_fate_hear(p, lane, letter, &taken, err));
    if (!taken)
      break;
    opi_lane_take(lane);
    OPI_TRY(opi_lane_move(lane, err));
    OPI_TRY(opi_lane_peek(lane, &letter, err));
  }
  return OPIPE_OK;
}

opipe_status opi_peers_move(opi_rank *rank, opipe_error *err) {
  opi_peers *p = rank->session->peers;
  for (uint32_t i = 0; p != NULL && i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->rank != rank)
      continue;
    OPI_TRY(opi_lane_move(lane, err));
    OPI_TRY(hear(p, lane, err));
  }
  if (p == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_fates_tell(p, rank, err));
  OPI_TRY(opi_share_tell(p, rank, err));
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->rank != rank)
      continue;
    OPI_TRY(tell_alive(p, lane, err));
    OPI_TRY(tell_bye(p, lane, err));
  }
  return OPIPE_OK;
}

bool opi_peers_let_begin(const opi_rank *rank, uint64_t number) {
  const opi_peers *p = rank->session->peers;
  if (p == NULL || p->owns || !opi_session_trains(rank->session))
    return true;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (p->lanes[i].rank == rank)
      return p->lanes[i].n_gone > number;
  }
  return true;
}
