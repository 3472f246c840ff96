/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that bytes choose: stages over ranks, replicas, slices, parts, whole backwards or halves
 * by stage; every order is one that could run, until its records are moved about. Behind the last
 * byte a fixed sequence goes on.
 */
#ifndef TESTS_RANDOM_ORDER_H
#define TESTS_RANDOM_ORDER_H

#include "tests/partition/schedule/interleavings.h"

enum {
  RANDOM_STAGES = 6,
  RANDOM_MICROBATCHES = 4,
  RANDOM_REPLICAS = 2,
  RANDOM_SLICES = 2,
  RANDOM_PARTS = 2,
  RANDOM_RECORDS = 160
};

typedef struct random_bytes {
  const uint8_t *at, *end;
  uint32_t spent;
} random_bytes;

/* Behind the end a fixed sequence that tries everything in turn. */
static inline uint32_t random_take(random_bytes *b, uint32_t below) {
  return (b->at < b->end ? *b->at++ : b->spent++) % below;
}

typedef struct random_order {
  opi_problem problem;
  uint32_t place[RANDOM_STAGES * RANDOM_REPLICAS];
  uint32_t replica[RANDOM_STAGES][RANDOM_MICROBATCHES];
  opi_stage_edge edges[RANDOM_STAGES];
  opipe_action records[RANDOM_RECORDS];
  uint32_t n;
  bool forward[RANDOM_STAGES][RANDOM_MICROBATCHES][RANDOM_SLICES];
  uint8_t backward[RANDOM_STAGES][RANDOM_MICROBATCHES][RANDOM_SLICES]
                  [RANDOM_PARTS]; /* 1: input, 2: weight */
} random_order;

static inline void random_choose(random_order *m, random_bytes *b) {
  const uint32_t ranks = 2 + random_take(b, 3),
                 stages = ranks + random_take(b, RANDOM_STAGES + 1 - ranks);
  const uint32_t inner = random_take(b, 8); /* most have whole micro-batches */
  const uint32_t microbatches = 1 + random_take(b, RANDOM_MICROBATCHES);
  memset(m, 0, sizeof *m);
  m->problem = (opi_problem){.n_ranks = ranks,
                             .n_stages = stages,
                             .n_replicas = microbatches > 1 ? 1 + random_take(b, 4) / 3 : 1,
                             .n_microbatches = microbatches,
                             .n_slices = inner == 1 || inner == 3 ? RANDOM_SLICES : 1,
                             .n_parts = inner == 2 || inner == 3 ? RANDOM_PARTS : 1,
                             .mode = OPIPE_MODE_TRAIN,
                             .instance_rank = m->place,
                             .edges = m->edges,
                             .n_edges = stages - 1};
  opi_edges_chain(m->edges, stages);
  for (uint32_t i = 0; i < stages * m->problem.n_replicas; ++i) {
    m->place[i] = i % m->problem.n_replicas == 0 && i / m->problem.n_replicas < ranks
                      ? i / m->problem.n_replicas
                      : random_take(b, ranks);
  }
  for (uint32_t s = 0; s < stages; ++s) {
    for (uint32_t k = 0; k < m->problem.n_microbatches; ++k)
      m->replica[s][k] = k < m->problem.n_replicas ? k : random_take(b, m->problem.n_replicas);
  }
}

static inline void random_add(random_order *m, uint32_t s, uint32_t mb, uint32_t slice,
                              uint32_t part, uint32_t pass) {
  const uint32_t replica = m->replica[s][mb];
  m->records[m->n++] = (opipe_action){.rank = m->place[s * m->problem.n_replicas + replica],
                                      .replica = (uint16_t)replica,
                                      .stage = s,
                                      .microbatch = mb,
                                      .slice = (uint16_t)slice,
                                      .part = (uint8_t)part,
                                      .pass = (uint8_t)pass};
}

/* Whole backwards, or halves by stage. */
static inline bool random_split(const random_order *m, uint32_t s, uint32_t halves) {
  return (halves >> s % 3 & 1) != 0 && m->problem.n_parts == 1;
}

static inline bool random_try_forward(random_order *m, uint32_t s, uint32_t mb, uint32_t k) {
  if (m->forward[s][mb][k] || (s > 0 && !m->forward[s - 1][mb][k]) ||
      (k > 0 && !m->forward[s][mb][k - 1]))
    return false;
  m->forward[s][mb][k] = true;
  random_add(m, s, mb, k, 0, OPIPE_PASS_FORWARD);
  return true;
}

static inline bool random_try_backward(random_order *m, uint32_t s, uint32_t mb, uint32_t k,
                                       uint32_t part, uint32_t halves) {
  uint8_t *at = &m->backward[s][mb][k][part];
  const bool apart = random_split(m, s, halves);
  if (!m->forward[s][mb][k])
    return false;
  if (*at == 1 && apart) {
    *at = 2;
    random_add(m, s, mb, k, part, OPIPE_PASS_BACKWARD_WEIGHT);
    return true;
  }
  if (*at != 0 || (s + 1 < m->problem.n_stages && m->backward[s + 1][mb][k][part] == 0) ||
      (k + 1 < m->problem.n_slices && m->backward[s][mb][k + 1][part] == 0))
    return false;
  *at = apart ? 1 : 2;
  random_add(m, s, mb, k, part, apart ? OPIPE_PASS_BACKWARD_INPUT : OPIPE_PASS_BACKWARD);
  return true;
}

static inline uint32_t random_total(const random_order *m, uint32_t halves) {
  uint32_t n = 0;
  for (uint32_t s = 0; s < m->problem.n_stages; ++s) {
    n += m->problem.n_microbatches * m->problem.n_slices *
         (1 + m->problem.n_parts * (random_split(m, s, halves) ? 2 : 1));
  }
  return n;
}

/* Takes everything that is possible, in the order that the bytes say; false: too much of it. */
static inline bool random_make(random_order *m, random_bytes *b) {
  random_choose(m, b);
  const opi_problem *p = &m->problem;
  const uint32_t halves = random_take(b, 8), n = random_total(m, halves);
  const uint32_t places = p->n_stages * p->n_microbatches * p->n_slices * p->n_parts;
  if (n > RANDOM_RECORDS)
    return false;
  while (m->n < n) {
    bool taken = false;
    for (uint32_t at = random_take(b, 256); !taken; ++at) { /* the next that is possible */
      const uint32_t s = at % places % p->n_stages, rest = at % places / p->n_stages;
      const uint32_t mb = rest % p->n_microbatches, inner = rest / p->n_microbatches;
      const uint32_t k = inner % p->n_slices, part = inner / p->n_slices;
      taken = random_try_forward(m, s, mb, k) || random_try_backward(m, s, mb, k, part, halves);
    }
  }
  return true;
}

/* Records change places, half of the time: with a neighbour, or by moving far. */
static inline void random_perturb_records(random_order *m, random_bytes *b) {
  for (uint32_t n = random_take(b, 8); n > 4; --n) {
    const uint32_t from = random_take(b, m->n),
                   to = random_take(b, 2) == 0 ? from + 1 : random_take(b, m->n);
    if (to >= m->n)
      continue;
    const opipe_action held = m->records[from];
    const uint32_t low = from < to ? from : to, high = from < to ? to : from;
    if (from < to)
      memmove(&m->records[low], &m->records[low + 1], (high - low) * sizeof held);
    else
      memmove(&m->records[low + 1], &m->records[low], (high - low) * sizeof held);
    m->records[to] = held;
  }
}

/* Without messages: does the order come to its end when ranks take turns? */
static inline bool random_order_ends(const random_order *m, const opi_do_list *order) {
  static replay_tables tables;
  replay r = {.p = &m->problem, .list = order, .rule = OPI_RULE_TAG};
  replay_tabulate(&r, &tables);
  memcpy(r.at, order->rank_first, order->n_ranks * sizeof(uint32_t));
  uint32_t done = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < order->n_ranks; ++rank) {
      for (; replay_can(&r, rank); ++r.at[rank], ++done)
        moved = true;
    }
  }
  return done == order->n_items;
}

#endif /* TESTS_RANDOM_ORDER_H */
