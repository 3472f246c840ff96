/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that tests make themselves, and shorthands around reading, lowering and printing. */
#ifndef TESTS_ORDERS_H
#define TESTS_ORDERS_H

#include <stdio.h>
#include <stdlib.h>

#include "partition/schedule/events.h"
#include "partition/schedule/order.h"
#include "tests/support/support.h"

static inline opi_order *order_read(const char *text, uint32_t dialect) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = NULL;
  OPI_ASSERT_OK_FATAL(
      opi_order_read(text, strlen(text), dialect, opi_allocator_system(), &order, &err), &err);
  return order;
}

/* Text of an order, to be freed with free(). */
static inline char *order_text(const opi_order *order, uint32_t format, uint32_t dialect) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_text text;
  opi_text_init(&text, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(opi_order_write(order, format, dialect, &text, &err), &err);
  char *copy = strdup(text.data == NULL ? "" : text.data);
  opi_text_release(&text);
  return copy;
}

/* An order with the same problem around another list, which it takes over. */
static inline opi_order *order_with(const opi_order *order, opi_do_list *list) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *out = NULL;
  OPI_ASSERT_OK_FATAL(opi_order_make(&order->problem, list, opi_allocator_system(), &out, &err),
                      &err);
  return out;
}

static inline opi_order *order_lower(const opi_order *order, uint32_t depth) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL;
  const opi_lowering how = {.receive_depth = depth};
  OPI_ASSERT_OK_FATAL(
      opi_lower_order(&order->problem, order->list, &how, opi_allocator_system(), &list, &err),
      &err);
  return order_with(order, list);
}

static inline opipe_status order_prove(const opi_order *order, uint32_t rule, opipe_error *err) {
  opi_proof proof = {0};
  return opi_proof_check(&order->problem, order->list, rule, opi_allocator_system(), &proof, err);
}

/* ---- made orders: a chain, stage s on rank s ---- */

typedef struct made {
  opi_problem problem;
  uint32_t place[64];
  opi_stage_edge edges[64];
  opipe_action records[1 << 16];
  uint32_t n;
} made;

static inline void made_begin(made *m, uint32_t n_ranks, uint32_t n_microbatches) {
  m->n = 0;
  for (uint32_t s = 0; s < n_ranks; ++s)
    m->place[s] = s;
  opi_edges_chain(m->edges, n_ranks);
  m->problem = (opi_problem){.n_ranks = n_ranks,
                             .n_stages = n_ranks,
                             .n_replicas = 1,
                             .n_microbatches = n_microbatches,
                             .n_slices = 1,
                             .n_parts = 1,
                             .mode = OPIPE_MODE_TRAIN,
                             .instance_rank = m->place,
                             .edges = m->edges,
                             .n_edges = n_ranks - 1};
}

static inline void made_add(made *m, uint32_t rank, uint32_t stage, uint32_t pass,
                            uint32_t microbatch) {
  m->records[m->n++] =
      (opipe_action){.rank = rank, .stage = stage, .microbatch = microbatch, .pass = (uint8_t)pass};
}

static inline opi_do_list *made_list(const made *m) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL;
  OPI_ASSERT_OK_FATAL(
      opi_do_list_from_records(&m->problem, m->records, m->n, opi_allocator_system(), &list, &err),
      &err);
  return list;
}

/* warm-up forwards, then pairs, then backwards: 1F1B; with warmup == M: GPipe. */
static inline void made_1f1b(made *m, uint32_t n_ranks, uint32_t n_microbatches, bool gpipe) {
  made_begin(m, n_ranks, n_microbatches);
  for (uint32_t s = 0; s < n_ranks; ++s) {
    uint32_t warm = gpipe ? n_microbatches : n_ranks - s - 1;
    warm = warm < n_microbatches ? warm : n_microbatches;
    for (uint32_t k = 0; k < warm; ++k)
      made_add(m, s, s, OPIPE_PASS_FORWARD, k);
    for (uint32_t k = warm; k < n_microbatches; ++k) {
      made_add(m, s, s, OPIPE_PASS_FORWARD, k);
      made_add(m, s, s, OPIPE_PASS_BACKWARD, k - warm);
    }
    for (uint32_t k = n_microbatches - warm; k < n_microbatches; ++k)
      made_add(m, s, s, OPIPE_PASS_BACKWARD, k);
  }
}

/* The slot rule of bidirectional pipelines: forward of the k-th micro-batch of a direction on its
 * stage st at st + 2k, backward at 2D - st - 1 + 2k; N micro-batches, half each way; units of D one
 * after the other. D even. */
typedef struct keyed {
  uint64_t key;
  uint32_t rank, stage, pass, microbatch, replica;
} keyed;

static inline int keyed_compare(const void *a, const void *b) {
  const keyed *x = a, *y = b;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  return x->key < y->key ? -1 : x->key > y->key;
}

static inline void made_chimera(made *m, uint32_t depth, uint32_t n_microbatches) {
  static keyed keys[1 << 16];
  uint32_t n = 0;
  made_begin(m, depth, n_microbatches);
  m->problem.n_replicas = 2;
  for (uint32_t s = 0; s < depth; ++s) {
    m->place[2 * s] = s;
    m->place[2 * s + 1] = depth - 1 - s;
  }
  for (uint32_t b = 0; b < n_microbatches; ++b) {
    const uint32_t up = b % 2, k = b / 2;
    for (uint32_t s = 0; s < depth; ++s) {
      const uint32_t rank = up == 0 ? s : depth - 1 - s;
      keys[n++] = (keyed){s + 2 * (uint64_t)k, rank, s, OPIPE_PASS_FORWARD, b, up};
      keys[n++] = (keyed){2 * depth - s - 1 + 2 * (uint64_t)k, rank, s, OPIPE_PASS_BACKWARD, b, up};
    }
  }
  qsort(keys, n, sizeof *keys, keyed_compare);
  for (uint32_t i = 0; i < n; ++i) {
    made_add(m, keys[i].rank, keys[i].stage, keys[i].pass, keys[i].microbatch);
    m->records[m->n - 1].replica = (uint16_t)keys[i].replica;
  }
}

#endif /* TESTS_ORDERS_H */
