/* SPDX-License-Identifier: Apache-2.0 */
/* Random orders and perturbations, for comparing the proof with all interleavings. */
#ifndef TESTS_REPLAY_H
#define TESTS_REPLAY_H

#include "tests/partition/schedule/interleavings.h"
#include "tests/partition/schedule/orders.h"

/* ---- random orders ---- */

/* A chain of `stages` laid over the ranks in a loop or at random; an order that some schedule could
 * have: at each turn a random rank takes a random action that is possible. halves: I and W. */
static inline void replay_random(made *m, opi_test_random *random, uint32_t ranks, uint32_t stages,
                                 uint32_t microbatches, bool halves) {
  uint8_t forward[8][8] = {{0}}, input[8][8] = {{0}}, weight[8][8] = {{0}};
  made_begin(m, ranks, microbatches);
  for (uint32_t s = 0; s < stages; ++s)
    m->place[s] = s < ranks ? s : (uint32_t)(opi_test_next(random) % ranks);
  opi_edges_chain(m->edges, stages);
  m->problem.n_stages = stages;
  m->problem.n_edges = stages - 1;
  const uint32_t total = stages * microbatches * (halves ? 3 : 2);
  while (m->n < total) {
    const uint32_t s = (uint32_t)(opi_test_next(random) % stages);
    const uint32_t b = (uint32_t)(opi_test_next(random) % microbatches);
    const uint32_t what = (uint32_t)(opi_test_next(random) % 3);
    if (what == 0 && forward[s][b] == 0 && (s == 0 || forward[s - 1][b] != 0)) {
      forward[s][b] = 1;
      made_add(m, m->place[s], s, OPIPE_PASS_FORWARD, b);
    } else if (what == 1 && input[s][b] == 0 && forward[s][b] != 0 &&
               (s + 1 == stages || input[s + 1][b] != 0)) {
      input[s][b] = 1;
      made_add(m, m->place[s], s, halves ? OPIPE_PASS_BACKWARD_INPUT : OPIPE_PASS_BACKWARD, b);
    } else if (what == 2 && halves && input[s][b] != 0 && weight[s][b] == 0) {
      weight[s][b] = 1;
      made_add(m, m->place[s], s, OPIPE_PASS_BACKWARD_WEIGHT, b);
    }
  }
}

/* Swaps neighbours on random ranks. */
static inline void replay_perturb(opi_do_list *list, opi_test_random *random, uint32_t swaps) {
  for (uint32_t k = 0; k < swaps; ++k) {
    const uint32_t rank = (uint32_t)(opi_test_next(random) % list->n_ranks);
    const uint32_t n = list->rank_first[rank + 1] - list->rank_first[rank];
    if (n < 2)
      continue;
    const uint32_t i = list->rank_first[rank] + (uint32_t)(opi_test_next(random) % (n - 1));
    const opi_do held = list->items[i];
    list->items[i] = list->items[i + 1];
    list->items[i + 1] = held;
  }
}

#endif /* TESTS_REPLAY_H */
