/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of some of three ranks: each rank opens its groups in an order of its own, their
 * communicators are made in one, before the first sum; a set that is formed later is refused where
 * it would need another communicator, and the others go on. Three processes, on doubles.
 * ctest: timeout=60 */
#include "rank_kit.h"

enum { RANKS = 3, VALUES = 7 };

typedef struct set {
  uint32_t ranks[RANKS], n;
} set;

/* In the members' order, which is not that of the ranks. */
static const set sets[] = {{{0, 1, 2}, 3}, {{2, 0}, 2}, {{0, 1}, 2}, {{1, 2}, 2}};
enum { ALL = 0, ENDS = 1, SETS = 4, LATE = 4 };

static bool is_in(const set *s, int who) {
  uint32_t i = 0;
  while (i < s->n && s->ranks[i] != (uint32_t)who)
    ++i;
  return i < s->n;
}

/* The values of a rank: small integers, whose sums are exact in any order. */
static float value_of(uint32_t who, uint32_t round, uint32_t i) {
  return (float)((who + 1) * 100 + round * 10 + i);
}

static void await(rank *r, opipe_event *event, const char *what) {
  const opipe_backend *b = r->b.base.table;
  need_ok(r, b->event_record(r->queue, event, &r->err), what);
  need_ok(r, b->event_sync(event, UINT64_C(20000000000), &r->err), what);
}

/* One sum of group i, whose members are `s`. */
static void sum_up(rank *r, uint32_t i, const set *s) {
  const opipe_backend *b = r->b.base.table;
  const opipe_region at = {r->buffer, i * (uint64_t)4096, VALUES * sizeof(float)};
  const opipe_collect sum = {.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                             .kind = OPIPE_COLLECT_ALL_REDUCE,
                             .dtype = OPIPE_FLOAT,
                             .n_from = 1,
                             .n_to = 1,
                             .from = &at,
                             .to = &at};
  opipe_event *event = NULL;
  opipe_status status = OPIPE_PENDING;
  float values[VALUES];
  need_ok(r, b->event_create(r->device, &event, &r->err), "event_create");
  for (uint32_t k = 0; k < VALUES; ++k)
    values[k] = value_of((uint32_t)r->m->rank, i, k);
  need_ok(r, b->write(r->queue, &at, values, &r->err), "write");
  await(r, event, "write");
  while ((status = r->t->collect(r->groups[i], 0, &sum, &r->err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(r, status, "collect");
  while ((status = r->t->collect_test(r->groups[i], 0, &r->err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(r, status, "collect_test");
  need_ok(r, b->read(r->queue, values, &at, &r->err), "read");
  await(r, event, "read");
  for (uint32_t k = 0; k < VALUES; ++k) {
    float wanted = 0;
    for (uint32_t j = 0; j < s->n; ++j)
      wanted += value_of(s->ranks[j], i, k);
    need(values[k] == wanted, "rank %d, group %u: %g at %u, not %g", r->m->rank, i,
         (double)values[k], k, (double)wanted);
  }
  b->event_destroy(event);
}

/* Each rank begins at another place of the circle to open its groups; sums are in one order. */
static void sum_in_sets(member *m) {
  rank r;
  open_rank(&r, m, "record=no,check=1");
  for (uint32_t k = 0; k < SETS; ++k) {
    const uint32_t i = (k + (uint32_t)m->rank + 1) % SETS;
    if (is_in(&sets[i], m->rank))
      need_ok(&r, open_group(&r, i, sets[i].ranks, sets[i].n), "collective_open");
  }
  get_ready(&r);
  for (uint32_t i = 0; i < SETS; ++i) {
    if (is_in(&sets[i], m->rank))
      sum_up(&r, i, &sets[i]);
  }
  close_rank(&r);
}

/* Ranks 0 and 2 form a set after the opening. eager: another group of theirs was there. */
static void form_late(member *m, bool eager) {
  rank r;
  open_rank(&r, m, "record=no");
  need_ok(&r, open_group(&r, ALL, sets[ALL].ranks, RANKS), "a group of all");
  if (eager && is_in(&sets[ENDS], m->rank))
    need_ok(&r, open_group(&r, ENDS, sets[ENDS].ranks, 2), "a group of ranks 0 and 2");
  get_ready(&r);
  if (is_in(&sets[ENDS], m->rank)) {
    const opipe_status status = open_group(&r, LATE, sets[ENDS].ranks, 2);
    if (eager) {
      need_ok(&r, status, "a group whose set is there");
      sum_up(&r, LATE, &sets[ENDS]);
    } else {
      need_refused(&r, status, OPIPE_E_STATE,
                   "the first group of ranks 0 to 2 (2 members) after its communicators were made: "
                   "theirs would be opened lazily");
      need(r.groups[LATE] == NULL, "rank %d: it is refused, and there", m->rank);
    }
  }
  sum_up(&r, ALL, &sets[ALL]);
  close_rank(&r);
}

static void form_without(member *m) {
  form_late(m, false);
}

static void form_with(member *m) {
  form_late(m, true);
}

/* A connection or communicator made after the first launch that needed none ends the process. */
static void test_sets_are_opened_in_one_order(void) {
  OPI_ASSERT_FATAL(setenv("OPIPE_NCCL_DOUBLE_LATE", "die", 1) == 0);
  run_ranks(RANKS, sum_in_sets, "");
}

static void test_a_set_that_is_formed_later(void) {
  OPI_ASSERT_FATAL(setenv("OPIPE_NCCL_DOUBLE_LATE", "die", 1) == 0);
  run_ranks(RANKS, form_without, "");
  run_ranks(RANKS, form_with, "");
}

OPI_TEST_MAIN("sets of ranks over transport-nccl", OPI_TEST(test_sets_are_opened_in_one_order),
              OPI_TEST(test_a_set_that_is_formed_later))
