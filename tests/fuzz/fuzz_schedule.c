/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the proof: the bytes choose an order, how its receives are placed and which neighbours are
 * swapped. What the proof accepts under a rule must run in every interleaving, what it refuses must
 * stand still in one.
 */
#include "tests/fuzz/must.h"
#include "tests/partition/schedule/interleavings.h"

enum { STAGES_MOST = 5, MICROBATCHES_MOST = 3, RECORDS_MOST = STAGES_MOST * MICROBATCHES_MOST * 3 };

typedef struct bytes {
  const uint8_t *at, *end;
  uint32_t spent;
} bytes;

/* Behind the end a fixed sequence that tries everything in turn. */
static uint32_t take(bytes *b, uint32_t below) {
  return (b->at < b->end ? *b->at++ : b->spent++) % below;
}

typedef struct made {
  opi_problem problem;
  uint32_t place[STAGES_MOST];
  opi_stage_edge edges[STAGES_MOST];
  opipe_action records[RECORDS_MOST];
  uint32_t n;
} made;

static void add(made *m, uint32_t stage, uint32_t microbatch, uint32_t pass) {
  m->records[m->n++] = (opipe_action){
      .rank = m->place[stage], .stage = stage, .microbatch = microbatch, .pass = (uint8_t)pass};
}

/* Takes every (stage, micro-batch, pass) that is possible, in the order that the bytes say. */
static void make(made *m, bytes *b) {
  uint8_t done[STAGES_MOST][MICROBATCHES_MOST] = {{0}}; /* 1: forward, 2: input, 3: weight */
  const uint32_t ranks = 2 + take(b, 2), stages = ranks + take(b, STAGES_MOST + 1 - ranks);
  const uint32_t microbatches = 1 + take(b, MICROBATCHES_MOST);
  const bool halves = take(b, 2) != 0;
  for (uint32_t s = 0; s < stages; ++s)
    m->place[s] = s < ranks ? s : take(b, ranks);
  opi_edges_chain(m->edges, stages);
  m->problem = (opi_problem){.n_ranks = ranks,
                             .n_stages = stages,
                             .n_replicas = 1,
                             .n_microbatches = microbatches,
                             .n_slices = 1,
                             .n_parts = 1,
                             .mode = OPIPE_MODE_TRAIN,
                             .instance_rank = m->place,
                             .edges = m->edges,
                             .n_edges = stages - 1};
  const uint32_t total = stages * microbatches * (halves ? 3 : 2);
  uint32_t turn = 0;
  while (m->n < total) {
    turn += take(b, 16) + 1;
    const uint32_t s = turn % stages, k = turn / stages % microbatches;
    uint8_t *at = &done[s][k];
    if (*at == 0 && (s == 0 || done[s - 1][k] >= 1)) {
      add(m, s, k, OPIPE_PASS_FORWARD);
      ++*at;
    } else if (*at == 1 && (s + 1 == stages || done[s + 1][k] >= 2)) {
      add(m, s, k, halves ? OPIPE_PASS_BACKWARD_INPUT : OPIPE_PASS_BACKWARD);
      ++*at;
    } else if (*at == 2 && halves) {
      add(m, s, k, OPIPE_PASS_BACKWARD_WEIGHT);
      ++*at;
    }
  }
}

static void swap(opi_do_list *list, bytes *b) {
  for (uint32_t n = take(b, 4); n > 0; --n) {
    const uint32_t rank = take(b, list->n_ranks);
    const uint32_t count = list->rank_first[rank + 1] - list->rank_first[rank];
    if (count < 2)
      continue;
    opi_do *a = &list->items[list->rank_first[rank] + take(b, count - 1)];
    const opi_do held = *a;
    a[0] = a[1];
    a[1] = held;
  }
}

static void compare(const made *m, const opi_do_list *list) {
  if (replay_states(list) > REPLAY_STATES / 16)
    return;
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    opipe_error err = OPIPE_ERROR_INIT;
    opi_proof proof = {0};
    uint32_t states = 0;
    const opipe_status status =
        opi_proof_check(&m->problem, list, rule, opi_allocator_system(), &proof, &err);
    must((status >= 0) == replay_all(&m->problem, list, rule, &states),
         status >= 0 ? "the proof accepts what stands still" : err.message);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static made m;
  const opipe_allocator *allocator = opi_allocator_system();
  bytes b = {data, data + size, 0};
  opi_do_list *order = NULL, *sent = NULL, *placed = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  m.n = 0;
  make(&m, &b);
  must(opi_do_list_from_records(&m.problem, m.records, m.n, allocator, &order, &err) >= 0,
       err.message);
  must(opi_pass_messages(&m.problem, order, allocator, &sent, &err) >= 0, err.message);
  const uint32_t depth = take(&b, 3);
  if (depth > 0)
    must(opi_pass_defer(&m.problem, sent, depth, allocator, &placed, &err) >= 0, err.message);
  opi_do_list *list = placed != NULL ? placed : sent;
  swap(list, &b);
  compare(&m, list);
  opi_do_list_free(placed);
  opi_do_list_free(sent);
  opi_do_list_free(order);
  return 0;
}
