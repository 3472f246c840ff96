/* SPDX-License-Identifier: Apache-2.0 */
/* Training with ranks on two GPUs of the doubles in turn: bits of the plan's reference whether one
 * reaches the other's memory, is refused it, or goes through pinned memory; the plan and the
 * session say which, and its bytes are as predicted. ctest: timeout=180 */
#include "runtime/session/session.h"
#include "tests/plugins/backend-cuda/training.h"
#include "tests/runtime/train/memory.h"

enum { ROWS = 4, TOKENS = 8, RANKS = 2, GPUS = 2 };

typedef struct links {
  const char *transport, *peers, *ipc; /* environment of the doubles */
  uint32_t foretold, found;            /* OPIPE_WAY_* */
  const char *why;                     /* the plan's */
} links;

static const links all[] = {
    {NULL, "1", "1", OPIPE_WAY_PEER, OPIPE_WAY_PEER, ""},
    {NULL, "0", "1", OPIPE_WAY_STAGED, OPIPE_WAY_STAGED, "does not reach memory"},
    {NULL, "2", "1", OPIPE_WAY_PEER, OPIPE_WAY_STAGED, ""},
    {"shm", "1", "1", OPIPE_WAY_SHARED, OPIPE_WAY_PEER, ""},
    {"shm", "0", "1", OPIPE_WAY_STAGED, OPIPE_WAY_STAGED, "does not reach memory"},
    {"shm", "1", "0", OPIPE_WAY_STAGED, OPIPE_WAY_STAGED, "shares no memory"},
};

static void take(const links *l) {
  OPI_ASSERT_FATAL(setenv("OPIPE_CUDA_DOUBLE_PEERS", l->peers, 1) == 0 &&
                   setenv("OPIPE_CUDA_DOUBLE_IPC", l->ipc, 1) == 0);
}

static kit_place place_of(const links *l) {
  return (kit_place){.device = "cuda", .spread = GPUS, .transport = l->transport};
}

static uint64_t staged(const kit *k) {
  uint64_t n = 0;
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r)
    n += k->plan->predicted.memory[r].staging_bytes;
  return n;
}

/* The plan's ways, those that the session finds, and the bytes of both. */
static void check_ways(const links *l) {
  kit k;
  kit_case c = kit_case_of("1f1b", RANKS, 2, true);
  opi_session *session = NULL;
  opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
  c.device = "cuda";
  c.spread = GPUS;
  c.transport = l->transport;
  take(l);
  OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(ct_subjects[0].path), ROWS, TOKENS), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const opi_prediction *p = &k.plan->predicted;
  OPI_ASSERT_INT(p->n_ways, 2);
  for (uint32_t i = 0; i < p->n_ways; ++i) {
    OPI_ASSERT_INT(p->ways[i].way, l->foretold);
    OPI_ASSERT(strstr(p->ways[i].why, l->why) != NULL);
  }
  OPI_ASSERT((staged(&k) != 0) == (l->foretold == OPIPE_WAY_STAGED));
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK(opi_session_info(session, &info, &k.err), &k.err);
  OPI_ASSERT(info.streams_by_way[l->found] >= 2);
  for (uint32_t way = OPIPE_WAY_HOST; way < OPIPE_WAY_KINDS; ++way)
    OPI_ASSERT(way == l->found || info.streams_by_way[way] == 0);
  if (l->foretold == l->found || l->found == OPIPE_WAY_PEER)
    OPI_ASSERT(memory_as_predicted(&k, session, "two GPUs"));
  opi_session_close(session);
  kit_close(&k);
}

static void test_ways(void) {
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < OPI_COUNT(all); ++i)
    check_ways(&all[i]);
}

/* One of the links in a cover: which one changes. */
static void test_bits(void) {
  const kit_schedule schedule = {"1f1b", 0};
  kit_tally tally = {.passed = 0};
  kit_bench b;
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_OK_FATAL(kit_bench_open(&b, &ct_subjects[0], &kit_computes[0], CT_TRAIN_ROWS),
                      &b.k.err);
  for (size_t i = 0; i < OPI_COUNT(all); ++i) {
    if (!opi_test_covers(i, OPI_COUNT(all)))
      continue;
    take(&all[i]);
    b.place = place_of(&all[i]);
    kit_case_run(&b, &schedule, RANKS, 2, 1, &tally);
  }
  kit_bench_close(&b);
  OPI_ASSERT(tally.failed == 0 && tally.passed > 0);
}

OPI_TEST_MAIN("training on two GPUs of the doubles", OPI_TEST(test_ways), OPI_TEST(test_bits))
