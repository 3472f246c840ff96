/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: in rising order of member whoever comes first, so many values and no more, the same
 * bits everywhere.
 */
#ifndef CONFORMANCE_TRANSPORT_SUMS_H
#define CONFORMANCE_TRANSPORT_SUMS_H

#include "transport_kit.h"

/* ---- values that only the rising order adds right ---- */

enum { ROUNDS = 12 };

typedef struct sum_case {
  const char *what;
  uint32_t members[RANKS];
  uint32_t dtype;
} sum_case;

/* Member m's value is large, or its negative, or small: with the large ones first the sum is 1, in
 * every other order of adding 0; with a large one last it is 0, and 1 where sums are wider. */
static double term_of(uint32_t dtype, uint32_t m, uint64_t round, uint64_t i) {
  static const int kinds[4][RANKS] = {{2, -2, 1}, {2, 1, -2}, {1, 2, -2}, {-2, 2, 1}};
  const double large = dtype == OPIPE_DOUBLE ? 1e17 : 1e8;
  const int kind = kinds[(i + round) % 4][m];
  const double scale = (double)(1u << ((i + 3 * round) % 8));
  return scale * (kind == 1 ? 1.0 : kind > 0 ? large : -large);
}

/* Orders in which three members may be added, the rising one first. */
enum { SUM_ORDERS = 3 };
static double sum_of(uint32_t dtype, uint32_t order, uint64_t round, uint64_t i) {
  static const uint32_t orders[SUM_ORDERS][RANKS] = {{0, 1, 2}, {0, 2, 1}, {1, 2, 0}};
  volatile float narrow = (float)term_of(dtype, orders[order][0], round, i);
  volatile double wide = term_of(dtype, orders[order][0], round, i);
  for (uint32_t m = 1; m < RANKS; ++m) {
    narrow += (float)term_of(dtype, orders[order][m], round, i);
    wide += term_of(dtype, orders[order][m], round, i);
  }
  return dtype == OPIPE_DOUBLE ? wide : (double)narrow;
}

static bool is_sum(const rank *r, double value, uint32_t dtype, uint64_t round, uint64_t i) {
#if OPIPE_ABI_MINOR >= 5
  const bool unordered = (r->s->info.flags & OPIPE_TRANSPORT_UNORDERED) != 0;
#else
  const bool unordered = false;
  (void)r;
#endif
  bool found = value == sum_of(dtype, 0, round, i);
  for (uint32_t order = 1; order < SUM_ORDERS && unordered; ++order)
    found = found || value == sum_of(dtype, order, round, i);
  return found;
}

static double value_at(const opipe_region *region, uint32_t dtype, uint64_t i) {
  const char *data = (const char *)opipe_host_at(region);
  float narrow = 0;
  double wide = 0;
  if (dtype == OPIPE_DOUBLE)
    memcpy(&wide, data + i * sizeof wide, sizeof wide);
  else
    memcpy(&narrow, data + i * sizeof narrow, sizeof narrow);
  return dtype == OPIPE_DOUBLE ? wide : (double)narrow;
}

static void set_value(const opipe_region *region, uint32_t dtype, uint64_t i, double value) {
  char *data = (char *)opipe_host_at(region);
  const float narrow = (float)value;
  if (dtype == OPIPE_DOUBLE)
    memcpy(data + i * sizeof value, &value, sizeof value);
  else
    memcpy(data + i * sizeof narrow, &narrow, sizeof narrow);
}

static uint64_t size_of(uint32_t dtype) {
  return dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float);
}

static uint32_t place_in(const sum_case *c, uint32_t index) {
  uint32_t m = 0;
  while (c->members[m] != index)
    ++m;
  return m;
}

/* The member's values, and behind them what must stay as it is. */
static void set_terms(const rank *r, const opipe_region *region, uint64_t round, uint64_t n) {
  const uint32_t dtype = r->sums->dtype, m = place_in(r->sums, r->index);
  for (uint64_t i = 0; i < SLOT_BYTES / size_of(dtype); ++i)
    set_value(region, dtype, i, i < n ? term_of(dtype, m, round, i) : (double)BLANK);
}

static bool has_sums(const rank *r, const opipe_region *region, uint64_t round, uint64_t n) {
  const uint32_t dtype = r->sums->dtype;
  for (uint64_t i = 0; i < SLOT_BYTES / size_of(dtype); ++i) {
    const double value = value_at(region, dtype, i);
    if (!(i < n ? is_sum(r, value, dtype, round, i) : value == (double)BLANK))
      return false;
  }
  return true;
}

static uint64_t count_of(uint32_t dtype, uint64_t round) {
  const uint64_t most = SLOT_BYTES / size_of(dtype);
  const uint64_t counts[] = {most, 1, most - 3, 17};
  return counts[round % 4];
}

static opipe_status reduce_rounds(rank *r) {
  static const long late[6][RANKS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                      {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const opipe_region region = {r->slots, 0, SLOT_BYTES}, place = placed(r, region);
  const uint32_t dtype = r->sums->dtype;
  for (uint64_t round = 0; round < ROUNDS; ++round) {
    const uint64_t n = count_of(dtype, round);
    const struct timespec pause = {.tv_nsec = late[round % 6][r->index] * 1000000};
    set_terms(r, &region, round, n);
    opipe_status moved = move_far(r, &region, true);
    if (moved < 0)
      return moved;
    if (round < 6) /* they come in every order */
      (void)nanosleep(&pause, NULL);
    UNTIL(r, r->s->t->all_reduce(r->group, round, &place, n, dtype, NULL, NULL, &r->err));
    UNTIL(r, r->s->t->group_test(r->group, round, &r->err));
    moved = move_far(r, &region, false);
    if (moved < 0)
      return moved;
    r->n_good += has_sums(r, &region, round, n);
    r->n_unsteady += r->s->t->group_test(r->group, round, &r->err) != OPIPE_OK;
  }
  return OPIPE_OK;
}

static void *reduce_body(void *arg) {
  rank *r = (rank *)arg;
  r->status = reduce_rounds(r);
  return NULL;
}

static bool open_groups(ring *g, const sum_case *c) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &g->ranks[i];
    r->sums = c;
    const opipe_status status =
        r->s->t->group_open(r->endpoint, c->members, RANKS, SLOT_BYTES, &r->group, &r->err);
    if (!conf_made(status, &r->group, &r->err, "group_open"))
      return false;
  }
  return make_all_ready(g);
}

static void close_groups(ring *g) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    if (g->ranks[i].group != NULL)
      g->ranks[i].s->t->group_close(g->ranks[i].group);
  }
}

static void check_sums(const subject *s, const sum_case *c) {
  ring g;
  conf_case(c->what);
  if (open_ring(&g, s) && open_groups(&g, c)) {
    const uint64_t before = conf_allocations();
    on_every_rank(&g, reduce_body);
    conf_check(conf_allocations() == before, "%llu allocations in %d reductions",
               (unsigned long long)(conf_allocations() - before), (int)ROUNDS);
    for (uint32_t i = 0; i < RANKS; ++i) {
      const rank *r = &g.ranks[i];
      conf_ok(r->status, &r->err, "all_reduce");
      conf_check(r->n_good == ROUNDS,
                 "rank %u: in %u of %d rounds the sums are those of rising order, and nothing else "
                 "is written",
                 i, r->n_good, (int)ROUNDS);
      conf_check(r->n_unsteady == 0, "rank %u: group_test is not OK again", i);
    }
  }
  close_groups(&g);
  close_ring(&g, s);
}

static void check_refused_sums(const subject *s, const sum_case *c) {
  ring g;
  conf_case("reductions that are refused");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0];
    const uint32_t others[2] = {1, 2}, absent[2] = {0, RANKS};
    opipe_group *none = NULL;
    (void)conf_refused(s->t->group_open(a->endpoint, others, 2, SLOT_BYTES, &none, &a->err),
                       &a->err, "a group that the rank is no member of");
    (void)conf_refused(s->t->group_open(a->endpoint, absent, 2, SLOT_BYTES, &none, &a->err),
                       &a->err, "a group of a rank that is not there");
    conf_check(none == NULL, "group_open fails, but sets its output");
    if (open_groups(&g, c)) {
      const opipe_region region = {a->slots, 0, SLOT_BYTES};
      (void)conf_refused(
          s->t->all_reduce(a->group, 0, &region, 1, OPIPE_STRING, NULL, NULL, &a->err), &a->err,
          "a reduction of strings");
      (void)conf_refused(
          s->t->all_reduce(a->group, 0, &region, ELEMS + 1, OPIPE_FLOAT, NULL, NULL, &a->err),
          &a->err, "a reduction of more values than the group was opened for");
    }
  }
  close_groups(&g);
  close_ring(&g, s);
}

static void check_reductions(const subject *s) {
  static const sum_case cases[] = {
      {"reductions", {0, 1, 2}, OPIPE_FLOAT},
      {"reductions of members in another order than the ranks", {2, 0, 1}, OPIPE_FLOAT},
      {"reductions of float64", {0, 1, 2}, OPIPE_DOUBLE}};
  conf_case("reductions");
  if ((s->info.flags & OPIPE_TRANSPORT_REDUCES) == 0) {
    conf_skip("the transport does not reduce");
    return;
  }
  s->t->group_close(NULL);
  if (!may_have_threads(s))
    return;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    check_sums(s, &cases[i]);
  check_refused_sums(s, &cases[0]);
}

#endif /* CONFORMANCE_TRANSPORT_SUMS_H */
