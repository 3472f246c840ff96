/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop that times orders and lists. Ranks work through lists of their own, in order. The
 * user's callback `act` knows what an action is: it looks at the action at which a rank stands and
 * says until when the rank is in it, or which *event* the rank waits for. The clock knows who waits
 * for what, which rank goes on next, and what time it is. A new action is taught in `act`.
 *
 *   user                 actions     links                                    order
 *   schedule/events      computes    none: a delay of each edge               TURNS
 *   lists/order          records     fixed: opi_link_ns                       STARTS
 *   lists/replay         steps       fixed: opi_link_pass, a queue a stream   TURNS
 *   study/simulate/play  operations  shared: flows on ports, told by `due`    TIME
 *
 * Invariants
 * 1. A rank runs (`act` looks at it), has one entry in the queue, waits for one event, or is at the
 *    end of its list.
 * 2. A rank's time never falls.
 * 3. An event that has happened stays so, and the callback waits only for events that have not:
 *    whoever makes one happen says so to the clock in the same call of `act` or `due`.
 * 4. Without links, and with fixed ones, the time of an action does not depend on which rank is
 *    looked at first, because each wait is for something that one other rank brings (a Kahn
 *    network). Such ranks may run ahead of each other (TURNS). Flows that share a port see each
 *    other: their ranks go by time (TIME).
 * 5. The same input gives the same bits: no two entries of the queue compare equal.
 * 6. When the queue is empty, ranks that are not at the end of their lists wait for each other.
 */
#ifndef OPI_PLAN_CLOCK_H
#define OPI_PLAN_CLOCK_H

#include "loader/base/base.h"

/* Which entry of the queue comes next. */
typedef enum opi_clock_order {
  OPI_CLOCK_TURNS = 0,  /* rank after rank, each as far as it comes, and again until none moves */
  OPI_CLOCK_STARTS = 1, /* by time, then the lower rank: always the action that can start first */
  OPI_CLOCK_TIME = 2    /* by time, then the entry that was put first */
} opi_clock_order;

/* Answered by `act`: the rank is not through with an action. */
#define OPI_CLOCK_STANDS (-1.0)
/* An event that never happens. */
#define OPI_CLOCK_NO_EVENT UINT64_MAX

typedef struct opi_clock_rules {
  /* Looks at the action at which the rank stands. If it can happen, moves the rank behind it and
   * returns when the rank is through with it, >= now. If not, OPI_CLOCK_STANDS, after
   * opi_clock_wait or opi_clock_again; so at the end of the list. `now`: in TURNS the rank's own
   * time, clock->now, that of its last answer, which the callback may raise; else the time of the
   * queue. */
  double (*act)(void *ctx, uint32_t rank, double now);
  /* Sees an entry of opi_clock_put; NULL: there are none. */
  void (*due)(void *ctx, uint32_t what, uint32_t version, double now);
  void *ctx;
  opi_clock_order order;
} opi_clock_rules;

typedef struct opi_clock_entry {
  double at;
  uint64_t order; /* among entries of one time */
  uint32_t what;  /* a rank, or n_ranks + what is due */
  uint32_t version;
} opi_clock_entry;

typedef struct opi_clock {
  opi_clock_rules rules;
  opi_arena *arena;
  uint32_t n_ranks;
  double *now;         /* [n_ranks] */
  uint64_t *waits_for; /* [n_ranks] event; OPI_CLOCK_NO_EVENT: none, or one that never happens */
  uint32_t *sleeper;   /* [n_sleepers] first of the ranks whose event falls there; OPIPE_NONE */
  uint32_t n_sleepers; /* a power of 2 */
  uint32_t *next_sleeper, *previous_sleeper; /* [n_ranks] of the same place; OPIPE_NONE */
  uint32_t running;                          /* rank that `act` looks at */
  uint64_t *turn, *next_turn; /* TURNS: bits of the ranks that still have this turn, and the next */
  uint32_t n_words;           /* of each */
  opi_clock_entry *heap;      /* else */
  uint32_t n, room;           /* n: entries, or ranks that have a turn */
  uint64_t n_put;
  bool failed; /* out of memory */
} opi_clock;

/* All in `arena`. Errors: NOMEM. */
opipe_status opi_clock_open(uint32_t n_ranks, const opi_clock_rules *rules, opi_arena *arena,
                            opi_clock *out_clock, opipe_error *err);
/* Runs every rank from time 0 until the queue is empty. Errors: NOMEM. Ranks that wait for ever are
 * the caller's to find: those whose lists have not ended. */
opipe_status opi_clock_run(opi_clock *clock, opipe_error *err);

/* The rank at which `act` looks waits for the event. Returns OPI_CLOCK_STANDS. */
double opi_clock_wait(opi_clock *clock, uint32_t rank, uint64_t event);
/* STARTS, TIME: it is looked at again at that time. Returns OPI_CLOCK_STANDS. */
double opi_clock_again(opi_clock *clock, uint32_t rank, double at);
/* The event has happened, or is known to happen at that time: ranks that wait for it are looked at
 * again, not before `at` nor before their own time (TURNS: in their turn). In TIME, where the order
 * in which ranks are woken counts, call opi_clock_wake for each. */
void opi_clock_happen(opi_clock *clock, uint64_t event, double at);
/* The same for one rank, if that is what it waits for. */
void opi_clock_wake(opi_clock *clock, uint32_t rank, uint64_t event, double at);
/* Shared links (TIME): `due` sees `what` at that time. */
void opi_clock_put(opi_clock *clock, double at, uint32_t what, uint32_t version);

#endif /* OPI_PLAN_CLOCK_H */
