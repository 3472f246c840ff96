/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of transports: in place, over all members, in rising order of the ranks, the same bits for
 * every member, of both types.
 */
#ifndef TRANSPORT_SUMS_H
#define TRANSPORT_SUMS_H

#include "transport_kit.h"

enum { SUM_ROUNDS = 20 };

/* What a rank adds to an element: every other order of the ranks makes another sum of one of three
 * elements in a row. fp32 in even rounds, fp64 in odd ones. */
static double part_of(uint32_t index, uint64_t round, uint32_t element) {
  const double large = round % 2 == 0 ? 1e8 : 1e17;
  const double parts[RANKS] = {large, -large, 3};
  return parts[(index + element) % RANKS] * (double)(round / 2 + 1);
}

static double sum_of(const uint32_t *order, uint64_t round, uint32_t element) {
  volatile float single = 0;
  volatile double sum = 0;
  for (uint32_t i = 0; i < RANKS; ++i) {
    single += (float)part_of(order[i], round, element);
    sum += part_of(order[i], round, element);
  }
  return round % 2 == 0 ? (double)single : sum;
}

/* Two of the three may be added either way round; another pair first is another sum. */
static void check_sums_differ(void) {
  static const uint32_t orders[][RANKS] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}};
  for (uint32_t k = 1; k < 3; ++k) {
    for (uint64_t round = 0; round < 2; ++round) {
      bool differ = false;
      for (uint32_t i = 0; i < ELEMS / 2; ++i)
        differ = differ || sum_of(orders[k], round, i) != sum_of(orders[0], round, i);
      conf_check(differ, "the numbers of this program do not tell orders apart");
    }
  }
}

static uint32_t elements_of(uint64_t round) {
  return round % 2 == 0 ? ELEMS : ELEMS / 2;
}

static void put_parts(const rank *r, const opipe_region *region, uint64_t round) {
  float *singles = (float *)opipe_host_at(region);
  double *doubles = (double *)opipe_host_at(region);
  for (uint32_t i = 0; i < elements_of(round); ++i) {
    if (round % 2 == 0)
      singles[i] = (float)part_of(r->index, round, i);
    else
      doubles[i] = part_of(r->index, round, i);
  }
}

static void count_sums(rank *r, const opipe_region *region, uint64_t round) {
  static const uint32_t rising[RANKS] = {0, 1, 2};
  const float *singles = (const float *)opipe_host_at(region);
  const double *doubles = (const double *)opipe_host_at(region);
  for (uint32_t i = 0; i < elements_of(round); ++i) {
    const double have = round % 2 == 0 ? (double)singles[i] : doubles[i];
    r->n_good += have == sum_of(rising, round, i);
  }
}

static opipe_status reduce_rounds(rank *r) {
  static const uint32_t members[RANKS] = {0, 1, 2};
  opipe_group *group = NULL;
  const opipe_region region = {r->slots, 0, ELEMS * sizeof(float)};
  opipe_status status =
      r->s->t->group_open(r->endpoint, members, RANKS, ELEMS * sizeof(float), &group, &r->err);
  if (status == OPIPE_OK)
    status = make_ready(r);
  for (uint64_t round = 0; round < SUM_ROUNDS && status == OPIPE_OK; ++round) {
    const uint32_t dtype = round % 2 == 0 ? OPIPE_FLOAT : OPIPE_DOUBLE;
    put_parts(r, &region, round);
    UNTIL(r, r->s->t->all_reduce(group, round, &region, elements_of(round), dtype, NULL, NULL,
                                 &r->err));
    UNTIL(r, r->s->t->group_test(group, round, &r->err));
    count_sums(r, &region, round);
  }
  if (group != NULL)
    r->s->t->group_close(group);
  return status;
}

static void *reduce_body(void *arg) {
  rank *r = (rank *)arg;
  r->status = reduce_rounds(r);
  return NULL;
}

static void check_reductions(const subject *s) {
  ring g;
  conf_case("reductions");
  if ((s->info.flags & OPIPE_TRANSPORT_REDUCES) == 0) {
    conf_skip("the transport does not reduce");
    return;
  }
  check_sums_differ();
  if (open_ring(&g, s)) {
    on_every_rank(&g, reduce_body);
    for (uint32_t i = 0; i < RANKS; ++i) {
      conf_ok(g.ranks[i].status, &g.ranks[i].err, "all_reduce");
      conf_check(g.ranks[i].n_good == SUM_ROUNDS / 2 * (ELEMS + ELEMS / 2),
                 "rank %u: %u of %d sums are those of rising order", i, g.ranks[i].n_good,
                 SUM_ROUNDS / 2 * (ELEMS + ELEMS / 2));
    }
  }
  close_ring(&g, s);
}

#endif /* TRANSPORT_SUMS_H */
