/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: random lists have the same times in every order of the queue, and those of a
 * plain fixpoint; ranks that wait for each other stop, and no others; entries come by time.
 */
#include "partition/plan/clock.h"
#include "tests/support/support.h"

enum { RANKS = 5, ITEMS = 12, EVENTS = RANKS * ITEMS };

/* Rank r, item i makes event r * ITEMS + i when it ends, and begins behind event needs[r][i]. */
typedef struct lists {
  double ns[RANKS][ITEMS];
  uint32_t needs[RANKS][ITEMS]; /* OPIPE_NONE: nothing */
} lists;

typedef struct player {
  const lists *l;
  opi_clock clock;
  opi_clock_order order;
  uint32_t at[RANKS];
  double ended[EVENTS]; /* < 0: not yet */
  double last;
  uint32_t last_rank;
} player;

/* Starts never fall; of one time the lower rank is first, since nothing here takes no time. */
static void check_order(player *p, uint32_t rank, double start) {
  if (p->order == OPI_CLOCK_TURNS)
    return;
  OPI_ASSERT(start >= p->last);
  if (p->order == OPI_CLOCK_STARTS && start == p->last)
    OPI_ASSERT(rank > p->last_rank);
  p->last = start;
  p->last_rank = rank;
}

static double act(void *ctx, uint32_t rank, double now) {
  player *p = ctx;
  const uint32_t i = p->at[rank];
  if (i == ITEMS)
    return OPI_CLOCK_STANDS;
  const uint32_t need = p->l->needs[rank][i], event = rank * ITEMS + i;
  if (need != OPIPE_NONE && p->ended[need] < 0)
    return opi_clock_wait(&p->clock, rank, need);
  const double start = need == OPIPE_NONE || p->ended[need] < now ? now : p->ended[need];
  if (start > now && p->order != OPI_CLOCK_TURNS)
    return opi_clock_again(&p->clock, rank, start);
  check_order(p, rank, start);
  ++p->at[rank];
  p->ended[event] = start + p->l->ns[rank][i];
  /* known at once; ranks that wait are looked at from their own times on */
  opi_clock_happen(&p->clock, event, p->order == OPI_CLOCK_STARTS ? 0 : p->ended[event]);
  return p->ended[event];
}

static void play(const lists *l, opi_clock_order order, player *out) {
  opi_arena arena;
  opipe_error err;
  *out = (player){.l = l, .order = order, .last = -1};
  const opi_clock_rules rules = {act, NULL, out, order};
  for (uint32_t e = 0; e < EVENTS; ++e)
    out->ended[e] = -1;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_clock_open(RANKS, &rules, &arena, &out->clock, &err), &err);
  OPI_ASSERT_OK(opi_clock_run(&out->clock, &err), &err);
  opi_arena_release(&arena);
}

/* By going round until nothing changes. */
static void fix(const lists *l, double *ended) {
  for (uint32_t e = 0; e < EVENTS; ++e)
    ended[e] = -1;
  for (uint32_t round = 0; round < EVENTS; ++round) {
    for (uint32_t rank = 0; rank < RANKS; ++rank) {
      double free_at = 0;
      for (uint32_t i = 0; i < ITEMS && free_at >= 0; ++i) {
        const uint32_t need = l->needs[rank][i];
        const double there = need == OPIPE_NONE ? 0 : ended[need];
        const double start = there > free_at ? there : free_at;
        free_at = there < 0 ? -1 : start + l->ns[rank][i];
        ended[rank * ITEMS + i] = free_at;
      }
    }
  }
}

static void test_every_order_gives_the_times_of_a_fixpoint(void) {
  opi_test_random random = {7};
  uint32_t n_whole = 0, n_stuck = 0;
  for (uint32_t round = 0; round < 300; ++round) {
    lists l;
    player p;
    double ended[EVENTS];
    for (uint32_t i = 0; i < EVENTS; ++i) {
      const bool needs = opi_test_next(&random) % 3 == 0;
      /* whole numbers, so that many starts are the same; mostly of earlier items */
      l.ns[i / ITEMS][i % ITEMS] = (double)(1 + opi_test_next(&random) % 4);
      l.needs[i / ITEMS][i % ITEMS] = needs
                                          ? (uint32_t)(opi_test_next(&random) % RANKS) * ITEMS +
                                                (uint32_t)(opi_test_next(&random) % (i % ITEMS + 1))
                                          : OPIPE_NONE;
    }
    fix(&l, ended);
    bool whole = true;
    for (uint32_t order = OPI_CLOCK_TURNS; order <= OPI_CLOCK_TIME; ++order) {
      play(&l, (opi_clock_order)order, &p);
      for (uint32_t e = 0; e < EVENTS; ++e) {
        OPI_ASSERT(p.ended[e] == ended[e]);
        whole = whole && ended[e] >= 0;
      }
    }
    n_whole += whole;
    n_stuck += !whole;
  }
  OPI_ASSERT(n_whole > 20 && n_stuck > 20);
}

/* ---- entries that are no ranks ---- */

typedef struct link {
  opi_clock clock;
  uint32_t seen[8], n;
  double woken_at;
} link;

static double wait_first(void *ctx, uint32_t rank, double now) {
  link *l = ctx;
  if (now > 0 || rank > 0) {
    l->woken_at = rank == 0 ? now : l->woken_at;
    return OPI_CLOCK_STANDS;
  }
  opi_clock_put(&l->clock, 5, 1, 10);
  opi_clock_put(&l->clock, 3, 2, 20);
  opi_clock_put(&l->clock, 5, 0, 30);
  return opi_clock_wait(&l->clock, rank, 99);
}

static void due(void *ctx, uint32_t what, uint32_t version, double now) {
  link *l = ctx;
  l->seen[l->n++] = what + version;
  opi_clock_wake(&l->clock, 1, 99, now); /* it does not wait */
  if (what == 0) {
    opi_clock_happen(&l->clock, 98, now + 1); /* another event */
    opi_clock_happen(&l->clock, 99, now + 2);
  }
}

static void test_entries_come_by_time_and_wake_ranks(void) {
  link l = {.woken_at = -1};
  opi_arena arena;
  opipe_error err;
  const opi_clock_rules rules = {wait_first, due, &l, OPI_CLOCK_TIME};
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_clock_open(2, &rules, &arena, &l.clock, &err), &err);
  OPI_ASSERT_OK(opi_clock_run(&l.clock, &err), &err);
  OPI_ASSERT_INT(l.n, 3);
  OPI_ASSERT(l.seen[0] == 22 && l.seen[1] == 11 && l.seen[2] == 30);
  OPI_ASSERT(l.woken_at == 7);
  opi_arena_release(&arena);
}

OPI_TEST_MAIN("clock", OPI_TEST(test_every_order_gives_the_times_of_a_fixpoint),
              OPI_TEST(test_entries_come_by_time_and_wake_ranks))
