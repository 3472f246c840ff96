/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog has no thread of its own: every waiter looks now and then. The session is stuck when
 * every rank with work has stood still for the watchdog's time. Then the chain of "waits for" is
 * followed to the rank that holds up all others, and the error names it. Host-driven ranks may
 * stand still because nobody drives them: time counts only while somebody looks, so that a host may
 * pause.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/executor/ahead.h"

static void note(opi_rank *rank, uint32_t doing, const opi_step *step, const opi_request *request,
                 const opi_compiled *t, uint64_t since_ns) {
  if (request != NULL) {
    atomic_store_explicit(&rank->worker->doing.request, request->number, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.kind, step->kind, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.pass, step->pass, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.stage, step->stage, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.pieces, t->model->n_pieces, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.microbatch, step->microbatch, memory_order_relaxed);
    atomic_store_explicit(&rank->worker->doing.peer,
                          doing == OPI_DOING_PROGRAM ? OPIPE_NONE : rank->worker->peer,
                          memory_order_relaxed);
  }
  atomic_store_explicit(&rank->worker->doing.doing, doing, memory_order_relaxed);
  atomic_store_explicit(&rank->worker->doing.since_ns, since_ns, memory_order_release);
}

void opi_rank_note(opi_rank *rank, uint32_t doing, const opi_step *step, uint64_t since_ns) {
  if (step != NULL && rank->worker->request != NULL)
    note(rank, doing, step, opi_step_request(rank, step), opi_compiled_at(rank), since_ns);
  else
    note(rank, doing, NULL, NULL, NULL, since_ns);
}

void opi_rank_note_ahead(opi_rank *rank, const opi_ahead_entry *e, uint64_t since_ns) {
  note(rank, OPI_DOING_PROGRAM, e->work.step, e->work.step == NULL ? NULL : e->work.request,
       e->work.shape, since_ns);
}

static const char *kind_name(uint32_t kind) {
  static const char *const names[] = {"COMPUTE", "RECV",    "SEND",   "LOAD",   "STORE",   "POST",
                                      "DRAIN",   "REDUCE",  "UPDATE", "COPY",   "RESERVE", "SUM",
                                      "AWAIT",   "OFFLOAD", "LEAVE",  "RELOAD", "RETURN"};
  return kind < OPI_COUNT(names) ? names[kind] : "?";
}

/* The name of a rank's program: the pass, in training. */
static const char *program_name(const opi_setup *s, uint32_t pass) {
  static const char *const names[OPI_PROGRAMS] = {"forward", "backward", "input backward",
                                                  "weight backward", "forward"};
  return s->shapes->weights == NULL || pass >= OPI_PROGRAMS ? "program" : names[pass];
}

static bool others_move(const opi_setup *s, uint64_t now) {
  const opi_elsewhere *there = s->engine->elsewhere;
  return there != NULL && there->moves(there->ctx, now);
}

/* How long all ranks here may stand still. With ranks in other processes, these look first at which
 * of all ranks it is that holds up the others: they need two heartbeats. */
static uint64_t patience(const opi_setup *s) {
  return s->watchdog_ns + (s->env.together.told == NULL ? 0 : UINT64_C(2500000000));
}

/* Does a rank stand still, while no rank with work moves? */
static bool is_stuck(opi_setup *s, uint64_t now, uint32_t *out_rank) {
  bool any = false;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    opi_rank *rank = &s->ranks[r];
    const uint32_t doing = atomic_load_explicit(&rank->worker->doing.doing, memory_order_relaxed);
    const uint64_t since =
        atomic_load_explicit(&rank->worker->doing.since_ns, memory_order_acquire);
    if (doing == OPI_DOING_NOTHING)
      continue;
    if (since == 0 || now < since || now - since < patience(s))
      return false;
    if (!any)
      *out_rank = r;
    any = true;
  }
  return any && !others_move(s, now);
}

static bool has_work(opi_setup *s, const opi_rank *rank) {
  return atomic_load(&rank->worker->doing.doing) != OPI_DOING_NOTHING ||
         atomic_load(&rank->worker->n_taken) < atomic_load(&s->engine->n_submitted);
}

/* The same for host-driven ranks: nothing has moved on any rank although there is work. */
static bool is_still(opi_setup *s, uint64_t now) {
  uint64_t moves = 0;
  bool work = false;
  if (atomic_exchange(&s->engine->watching, 1) != 0)
    return false; /* another thread is looking */
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    moves += atomic_load_explicit(&rank->worker->n_moves, memory_order_relaxed) +
             atomic_load_explicit(&rank->worker->n_looks, memory_order_relaxed);
    work = work || has_work(s, rank);
  }
  if (!work || moves != s->engine->watch_moves ||
      now - s->engine->watch_looked_ns > s->watchdog_ns / 2 || others_move(s, now))
    s->engine->watch_since_ns = now;
  s->engine->watch_moves = moves;
  s->engine->watch_looked_ns = now;
  const bool still = now - s->engine->watch_since_ns >= patience(s);
  atomic_store(&s->engine->watching, 0);
  return still;
}

/* The rank with work that has not been driven for the longest time; OPIPE_NONE: all are driven. */
static uint32_t left_alone(opi_setup *s, uint64_t now) {
  uint32_t found = OPIPE_NONE;
  uint64_t longest = s->watchdog_ns / 2;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    const uint64_t driven = atomic_load(&s->ranks[r].worker->driven_ns);
    if (atomic_load(&s->ranks[r].worker->driving) != 0 || !has_work(s, &s->ranks[r]) ||
        now < driven || now - driven < longest)
      continue;
    longest = now - driven;
    found = r;
  }
  return found;
}

/* The first rank with work. */
static uint32_t first_busy(opi_setup *s) {
  uint32_t i = 0;
  while (i + 1 < s->n_here &&
         atomic_load(&s->ranks[s->here[i]].worker->doing.doing) == OPI_DOING_NOTHING)
    ++i;
  return s->here[i];
}

/* Follows the ranks that wait for each other to one that waits for none, or around a cycle once. */
static uint32_t follow(opi_setup *s, uint32_t r, uint32_t *out_waiter) {
  for (uint32_t i = 0; i < s->plan->decided.n_ranks; ++i) {
    const opi_rank *rank = &s->ranks[r];
    if (atomic_load(&rank->worker->doing.doing) != OPI_DOING_STEP)
      break;
    const uint32_t peer = atomic_load(&rank->worker->doing.peer);
    if (peer >= s->plan->decided.n_ranks ||
        atomic_load(&s->ranks[peer].worker->doing.doing) == OPI_DOING_NOTHING)
      break;
    *out_waiter = r;
    r = peer;
  }
  return r;
}

/* Names stage, request and micro-batch. Slices and pieces are stages of the shape's view. */
static void describe_place(const opi_setup *s, const opi_rank *rank, char *text, size_t room) {
  const uint32_t noted = atomic_load(&rank->worker->doing.pieces),
                 n_pieces = noted == 0 ? 1 : noted;
  const uint32_t stage = atomic_load(&rank->worker->doing.stage);
  char part[64] = "";
  if (n_pieces > 1) {
    const opi_decision *plan = &s->plan->decided;
    const opi_piece_place at = opi_piece_place_of(plan, stage % n_pieces);
    const char *what = opi_plan_cuts_microbatches(plan) ? "piece" : "slice";
    const uint32_t n = (uint32_t)opi_plan_pieces(plan), width = opi_plan_width(plan);
    if (n > 1)
      (void)snprintf(part, sizeof part, ", %s %u", what, stage % n_pieces / width % n);
    const size_t used = strlen(part);
    if (width > 1) {
      (void)snprintf(part + used, sizeof part - used, ", member %u, stretch %u", at.member,
                     at.place / 2);
    }
  }
  (void)snprintf(text, room, "stage %u (request %llu, micro-batch %u%s)", stage / n_pieces,
                 (unsigned long long)atomic_load(&rank->worker->doing.request),
                 atomic_load(&rank->worker->doing.microbatch) % s->plan->decided.n_microbatches,
                 part);
}

/* "RECV of stage 1 (request 7, micro-batch 2)". */
static void describe_work(const opi_setup *s, const opi_rank *rank, char *text, size_t room) {
  char place[88];
  const uint32_t doing = atomic_load(&rank->worker->doing.doing);
  describe_place(s, rank, place, sizeof place);
  (void)snprintf(text, room, "%s of %s",
                 doing == OPI_DOING_PROGRAM
                     ? program_name(s, atomic_load(&rank->worker->doing.pass))
                     : kind_name(atomic_load(&rank->worker->doing.kind)),
                 place);
}

/* peer: the rank that it waits for; OPIPE_NONE: none, or all. */
static void describe(opi_setup *s, uint32_t r, uint32_t peer, uint64_t now, char *text,
                     size_t room) {
  const opi_rank *rank = &s->ranks[r];
  const double seconds = (double)(now - atomic_load(&rank->worker->doing.since_ns)) * 1e-9;
  char place[120];
  describe_place(s, rank, place, sizeof place);
  if (atomic_load(&rank->worker->doing.doing) == OPI_DOING_PROGRAM) {
    (void)snprintf(text, room, "rank %u has been in the %s of %s for %.3g s", r,
                   program_name(s, atomic_load(&rank->worker->doing.pass)), place, seconds);
    return;
  }
  const int n = snprintf(text, room, "rank %u has been held up at %s of %s for %.3g s", r,
                         kind_name(atomic_load(&rank->worker->doing.kind)), place, seconds);
  if (peer != OPIPE_NONE && n > 0 && (size_t)n < room) {
    const bool idle = atomic_load(&s->ranks[peer].worker->doing.doing) == OPI_DOING_NOTHING;
    (void)snprintf(text + n, room - (size_t)n, ", waiting for rank %u%s", peer,
                   !opi_rank_is_here(s, peer) ? ", which is in another session"
                   : idle                     ? ", which has nothing left to do"
                                              : "");
  }
}

/* A sum over all ranks has no single peer: a rank in a program holds it up. */
static uint32_t in_program(opi_setup *s, uint32_t r) {
  for (uint32_t i = 0; i < s->plan->decided.n_ranks &&
                       atomic_load(&s->ranks[r].worker->doing.doing) == OPI_DOING_STEP;
       ++i) {
    if (atomic_load(&s->ranks[i].worker->doing.doing) == OPI_DOING_PROGRAM)
      return i;
  }
  return r;
}

static void fail_undriven(opi_setup *s, uint32_t rank, uint64_t now) {
  opipe_error why = OPIPE_ERROR_INIT;
  const uint64_t taken = atomic_load(&s->ranks[rank].worker->n_taken);
  (void)opi_fail(&why, OPIPE_E_TIMEOUT,
                 "watchdog: rank %u has work and has not been driven for %.3g s (session_drive)",
                 rank, (double)(now - atomic_load(&s->ranks[rank].worker->driven_ns)) * 1e-9);
  opi_session_fail(s, rank,
                   taken < atomic_load(&s->engine->n_submitted)
                       ? s->engine->ring[taken % s->engine->ring_room]
                       : NULL,
                   &why);
}

static bool find_stuck(opi_setup *s, uint64_t now, uint32_t *out_rank) {
  if (s->threads != OPIPE_THREADS_HOST)
    return is_stuck(s, now, out_rank);
  if (!is_still(s, now))
    return false;
  const uint32_t alone = left_alone(s, now);
  if (alone != OPIPE_NONE) {
    fail_undriven(s, alone, now);
    return false;
  }
  *out_rank = first_busy(s);
  return true;
}

/* The request that the rank works on: the last that it has taken, unless its device is behind. */
static opi_request *request_at(const opi_setup *s, const opi_rank *rank, uint64_t n_taken) {
  const uint64_t number = atomic_load(&rank->worker->doing.request);
  uint64_t n = n_taken - 1;
  while (rank->worker->ahead != NULL && n != 0 && n_taken - n < s->engine->ring_room &&
         s->engine->ring[n % s->engine->ring_room]->number != number)
    --n;
  return s->engine->ring[n % s->engine->ring_room];
}

uint32_t opi_watch_tell(void *setup, opi_told *out, uint32_t room) {
  opi_setup *s = setup;
  const uint64_t now = opi_clock_ns();
  uint32_t n = 0;
  for (; n < s->n_here && n < room; ++n) {
    const opi_rank *rank = &s->ranks[s->here[n]];
    const uint32_t doing = atomic_load_explicit(&rank->worker->doing.doing, memory_order_relaxed);
    const uint64_t since =
        atomic_load_explicit(&rank->worker->doing.since_ns, memory_order_acquire);
    out[n] = (opi_told){
        .rank = rank->index,
        .state = doing == OPI_DOING_STEP      ? OPI_TOLD_WAITS
                 : doing == OPI_DOING_PROGRAM ? OPI_TOLD_WORKS
                                              : OPI_TOLD_IDLE,
        .peer = doing == OPI_DOING_STEP ? atomic_load(&rank->worker->doing.peer) : OPIPE_NONE,
        .still_ns = since == 0 || now < since ? 0 : now - since,
        .limit_ns = s->threads == OPIPE_THREADS_HOST ? 0 : s->watchdog_ns};
    if (doing != OPI_DOING_NOTHING)
      describe_work(s, rank, out[n].at, sizeof out[n].at);
  }
  return n;
}

bool opi_watch_explain(opi_setup *s, uint32_t rank, opipe_error *why) {
  enum { LOOK_NS = 1000000 };
  const opi_together *t = &s->env.together;
  const struct timespec pause = {.tv_nsec = LOOK_NS};
  opipe_error told = OPIPE_ERROR_INIT;
  char work[OPI_TOLD_ROOM];
  const bool is_gone = why->status == OPIPE_E_PEER;
  if (t->check == NULL)
    return false;
  for (uint32_t left = is_gone ? 300 : 0; t->check(t->ctx, &told) == OPIPE_OK && left != 0; --left)
    (void)nanosleep(&pause, NULL);
  if (told.status == OPIPE_OK || (!is_gone && strcmp(told.message, why->message) != 0))
    return false;
  describe_work(s, &s->ranks[rank], work, sizeof work);
  const bool works = atomic_load(&s->ranks[rank].worker->doing.doing) != OPI_DOING_NOTHING;
  (void)opi_fail(why, told.status, "rank %u%s%s: %s", rank, works ? ", at " : "", works ? work : "",
                 told.message);
  return true;
}

/* Fails the session where processes that hold its other ranks are gone, or one of their ranks holds
 * up all others. */
static bool is_deserted(opi_setup *s) {
  const opi_together *t = &s->env.together;
  opipe_error why = OPIPE_ERROR_INIT;
  if (t->check == NULL || t->check(t->ctx, &why) == OPIPE_OK)
    return false;
  opi_session_fail(s, first_busy(s), NULL, &why);
  return true;
}

void opi_watch(opi_setup *s) {
  const uint64_t now = opi_clock_ns();
  uint32_t rank = 0, waiter = OPIPE_NONE;
  if (s->reference || opi_session_failed(s) || is_deserted(s) || !find_stuck(s, now, &rank))
    return;
  char culprit[250], other[200] = "";
  opipe_error why = OPIPE_ERROR_INIT;
  rank = follow(s, rank, &waiter);
  const uint32_t busy = in_program(s, rank);
  waiter = busy == rank ? waiter : rank;
  describe(s, busy, atomic_load(&s->ranks[busy].worker->doing.peer), now, culprit, sizeof culprit);
  if (waiter != OPIPE_NONE)
    describe(s, waiter, busy, now, other, sizeof other);
  rank = busy;
  (void)opi_fail(&why, OPIPE_E_TIMEOUT, "watchdog: %s%s%s", culprit, other[0] == '\0' ? "" : "; ",
                 other);
  const uint64_t taken = atomic_load(&s->ranks[rank].worker->n_taken);
  const bool counted = !s->shapes->periodic && taken > 0; /* requests are the ring's entries */
  opi_session_fail(s, rank, counted ? request_at(s, &s->ranks[rank], taken) : NULL, &why);
}
