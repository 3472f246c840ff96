/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of other sessions: opening, the exchange between a rank's steps, and leaving, such that
 * every session still gets the letters that it needs.
 */
#include <time.h>

#include "runtime/requests/peers.h"

/* ---- refusals ---- */

/* A rank can write into another's memory only within its session. */
static opipe_status check_edges(const opi_setup *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
      if (opi_rank_is_here(s, r) || !opi_plan_edge_is_direct(&s->plan->decided, s->here[i], r))
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

opipe_status opi_peers_check(const opi_setup *s, opipe_error *err) {
  if (s->n_here == s->plan->decided.n_ranks)
    return OPIPE_OK;
  if (s->reference) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "session_open: the reference runs all ranks: %u of %u are given", s->n_here,
                    s->plan->decided.n_ranks);
  }
  if (!opi_letters_beside(&s->plan->decided) || s->env.together.box_open != NULL)
    return check_edges(s, err);
  return opi_fail(
      err, OPIPE_E_UNSUPPORTED,
      "session_open: %u of %u ranks: transport '%s' matches messages by the order in "
      "which ranks issue them (rule %u), and without a team what sessions tell each other comes "
      "between: open the sessions in a team, or take one of the rules tag (%d) and stream (%d)",
      s->n_here, s->plan->decided.n_ranks, s->env.transport.id, s->plan->decided.link.rule,
      OPIPE_RULE_TAG, OPIPE_RULE_STREAM);
}

/* ---- progress ---- */

static uint64_t moves_of(const opi_peers *p) {
  const opi_session *s = p->session;
  uint64_t moves = atomic_load_explicit(&p->n_heard, memory_order_relaxed);
  for (uint32_t i = 0; i < s->setup->n_here; ++i) {
    const opi_rank *rank = &s->setup->ranks[s->setup->here[i]];
    moves += atomic_load_explicit(&rank->worker->n_moves, memory_order_relaxed) +
             atomic_load_explicit(&rank->worker->n_looks, memory_order_relaxed);
  }
  return moves;
}

/* Says ALIVE several times in the watchdog's time, as long as something moves here or elsewhere, or
 * waits for the host's fences. */
static opipe_status tell_alive(const opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_session *s = p->session;
  static const opi_letter letter = {.kind = OPI_LETTER_ALIVE};
  const uint64_t now = opi_clock_ns(), moves = moves_of(p);
  const bool held = atomic_load_explicit(&s->held.n, memory_order_relaxed) != 0;
  if (now - lane->alive.ns < s->setup->watchdog_ns / 8 || (moves == lane->alive.moves && !held) ||
      atomic_load_explicit(&p->session->n_unfinished, memory_order_relaxed) == 0 ||
      !opi_lane_has_room(lane))
    return OPIPE_OK;
  lane->alive.ns = now;
  lane->alive.moves = moves;
  return opi_lane_write(lane, &letter, NULL, err);
}

static bool moves_elsewhere(const void *ctx, uint64_t now) {
  const opi_peers *p = ctx;
  const uint64_t heard = atomic_load(&p->heard_ns);
  return heard != 0 && (now < heard || now - heard < p->session->setup->watchdog_ns);
}

/* ---- leaving ---- */

/* A session that is closed says LEAVE once it has heard all verdicts. Rank 0 passes that on, and
 * all others say LEAVE, too. When all have, rank 0 says BYE, so that no session misses a letter. */
static opipe_status say(opi_lane *lane, uint32_t kind, bool when, bool *io_said, opipe_error *err) {
  const opi_letter letter = {.kind = kind};
  if (!when || *io_said || !opi_lane_has_room(lane))
    return OPIPE_OK;
  *io_said = true;
  return opi_lane_write(lane, &letter, NULL, err);
}

static opipe_status tell_leave(opi_peers *p, opi_lane *lane, opipe_error *err) {
  /* Who wants to leave, and who has said so? */
  const bool may = !p->owns || !opi_peers_awaits(p, lane->rank);
  bool any = atomic_load(&p->leaving) != 0 || lane->leave_got, all = p->owns && may;
  for (uint32_t i = 0; p->owns && i < p->n_lanes; ++i) {
    any = any || p->lanes[i].leave_got;
    all = all && p->lanes[i].leave_got;
  }
  OPI_TRY(say(lane, OPI_LETTER_LEAVE, any && may, &lane->leave_sent, err));
  OPI_TRY(say(lane, OPI_LETTER_BYE, all && lane->leave_sent, &lane->bye_sent, err));
  /* The lane is done once BYE has arrived at its far end. */
  const bool over = p->owns ? lane->bye_sent && lane->n_free == lane->n_written : lane->bye_got;
  if (lane->left || !over)
    return OPIPE_OK;
  lane->left = true;
  atomic_fetch_add(&p->n_left, 1);
  return OPIPE_OK;
}

void opi_peers_leave(opi_session *s) {
  opi_peers *p = s->peers;
  const struct timespec again = {.tv_nsec = 50000};
  if (p == NULL || p->n_lanes == 0 || !s->opened || opi_session_failed(s->setup) ||
      (atomic_load(&s->n_unfinished) != 0 && !opi_session_only_passes(s)))
    return;
  const uint64_t until = opi_later_ns(opi_clock_ns(), s->setup->watchdog_ns);
  if (s->setup->threads == OPIPE_THREADS_HOST && !s->lingers &&
      opi_session_start(s->setup, NULL) < 0)
    return; /* the host does not drive any more */
  /* The others still need what cancelled requests send, and the word that they were cancelled. */
  while (atomic_load(&s->n_unfinished) != 0 && !opi_session_failed(s->setup) &&
         opi_clock_ns() < until)
    (void)nanosleep(&again, NULL);
  if (atomic_load(&s->n_unfinished) != 0)
    return;
  atomic_store(&p->leaving, 1);
  for (uint32_t i = 0; i < s->setup->n_here; ++i)
    s->setup->transport->ring(s->setup->ranks[s->setup->here[i]].endpoint);
  while (atomic_load(&p->n_left) < p->n_lanes && !opi_session_failed(s->setup) &&
         opi_clock_ns() < until)
    (void)nanosleep(&again, NULL);
}

static bool have_gone(const void *ctx) {
  const opi_peers *p = ctx;
  return atomic_load(&p->gone) != 0 || atomic_load(&p->leaving) != 0;
}

/* ---- a rank ---- */

/* Writes the first letter that rank 0 gets. */
static opipe_status say_hello(const opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_letter letter = {.kind = OPI_LETTER_HELLO, .leader = p->session->setup->here[0]};
  return p->owns || lane->n_written != 0 ? OPIPE_OK : opi_lane_write(lane, &letter, NULL, err);
}

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

static opipe_status hear_all(opi_peers *p, const opi_rank *rank, opipe_error *err) {
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->rank != rank)
      continue;
    OPI_TRY(say_hello(p, lane, err));
    OPI_TRY(opi_lane_move(lane, err));
    OPI_TRY(hear(p, lane, err));
  }
  return OPIPE_OK;
}

static opipe_status exchange(void *ctx, opi_rank *rank, opipe_error *err) {
  opi_peers *p = ctx;
  const uint64_t *n_out = &p->awaited[rank->index].n_out;
  uint64_t before = 0;
  /* Hear and tell, again after each judged request: the next one's reports may have come before. */
  do {
    before = *n_out;
    OPI_TRY(hear_all(p, rank, err));
    OPI_TRY(opi_values_move(p, rank, err));
    OPI_TRY(opi_fates_tell(p, rank, err));
  } while (*n_out != before);
  /* Then shared data, signs of life, and leaving. */
  OPI_TRY(opi_share_tell(p, rank, err));
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->rank != rank)
      continue;
    OPI_TRY(tell_alive(p, lane, err));
    OPI_TRY(tell_leave(p, lane, err));
  }
  return OPIPE_OK;
}

static bool let_begin(const void *ctx, const opi_rank *rank, uint64_t number) {
  const opi_peers *p = ctx;
  if (!opi_values_let_begin(p, number))
    return false;
  if (p->owns || !p->says_go)
    return true;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (p->lanes[i].rank == rank)
      return p->lanes[i].n_gone > number;
  }
  return true;
}

/* ---- open and close ---- */

opipe_status opi_peers_open(opi_session *s, opipe_error *err) {
  if (s->setup->n_here == s->setup->plan->decided.n_ranks)
    return OPIPE_OK;
  opi_peers *p = opi_alloc_zero(s->setup->allocator, 1, sizeof *p);
  if (p == NULL)
    return opi_fail_nomem(err, sizeof *p, "ranks of other sessions");
  p->session = s;
  p->owns = opi_rank_is_here(s->setup, 0);
  p->says_go = opi_session_trains(s->setup);
  opi_arena_init(&p->arena, s->setup->allocator, 0);
  p->seen = (opi_elsewhere){.ctx = p,
                            .exchange = exchange,
                            .let_begin = let_begin,
                            .await = opi_peers_await,
                            .awaits = opi_peers_awaits,
                            .moves = moves_elsewhere,
                            .have_gone = have_gone};
  s->peers = p;
  s->engine->elsewhere = &p->seen;
  OPI_TRY(opi_fates_open(p, err));
  return opi_lanes_open(p, err);
}

void opi_peers_close(opi_session *s) {
  opi_peers *p = s->peers;
  if (p == NULL)
    return;
  opi_lanes_close(p);
  opi_arena_release(&p->arena);
  opi_free(s->setup->allocator, p, sizeof *p);
  s->peers = NULL;
  s->engine->elsewhere = NULL;
}
