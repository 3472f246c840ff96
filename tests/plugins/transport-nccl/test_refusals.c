/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals of transport-nccl, by name: batches that are too long, openings that would need a
 * connection later, and sums whose order differs on two ranks. Two processes, on doubles.
 * ctest: timeout=60 */
#include "rank_kit.h"

enum { RANKS = 2 };
static const uint32_t both[RANKS] = {0, 1};

/* Both ends note as many as are possible, and one more; the rest of the batch is valid. */
static void note_many(member *m) {
  rank r;
  open_rank(&r, m, "record=no");
  need_ok(&r, open_stream(&r), "stream_open");
  get_ready(&r);
  need_ok(&r, r.t->batch_begin(r.end, &r.err), "batch_begin");
  for (uint64_t i = 0; i <= OPIPE_BATCH_MOST; ++i) {
    const opipe_region at = {r.buffer, i * BYTES, BYTES};
    const opipe_status status = m->rank == 0 ? r.t->send(r.stream, i, &at, NULL, NULL, &r.err)
                                             : r.t->recv(r.stream, i, &at, NULL, &r.err);
    if (i < OPIPE_BATCH_MOST)
      need_ok(&r, status, "an operation of a batch");
    else
      need_refused(&r, status, OPIPE_E_LIMIT, "257 operations or more, at most 256 are possible");
  }
  need_ok(&r, r.t->batch_end(r.end, &r.err), "batch_end");
  opipe_status status = OPIPE_PENDING;
  while ((status = r.t->test(r.stream, OPIPE_BATCH_MOST - 1, &r.err)) == OPIPE_PENDING)
    nap_us(100);
  need_ok(&r, status, "test");
  close_rank(&r);
}

static void open_late(member *m) {
  rank r;
  open_rank(&r, m, "record=no");
  get_ready(&r);
  need_refused(&r, open_stream(&r), OPIPE_E_STATE, "would be opened lazily");
  need_refused(&r, open_group(&r, 0, &both[m->rank], 1), OPIPE_E_STATE, "would be opened lazily");
  need_ok(&r, open_group(&r, 1, both, RANKS), "a group of all ranks, whose communicator is there");
  close_rank(&r);
}

/* 1 or 2 values, in groups of the same ranks: one order on rank 0, the other one on rank 1. */
static void sum_in_other_order(member *m) {
  rank r;
  open_rank(&r, m, "record=no,check=1");
  for (uint32_t i = 0; i < 2; ++i)
    need_ok(&r, open_group(&r, i, both, RANKS), "collective_open");
  get_ready(&r);
  const uint32_t which = (uint32_t)m->rank;
  const opipe_region at = {r.buffer, 0, (which + 1) * sizeof(float)};
  const opipe_collect sum = {.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                             .kind = OPIPE_COLLECT_ALL_REDUCE,
                             .dtype = OPIPE_FLOAT,
                             .n_from = 1,
                             .n_to = 1,
                             .from = &at,
                             .to = &at};
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status = r.t->collect(r.groups[which], 0, &sum, &r.err);
    nap_us(100);
  }
  while (status == OPIPE_OK || status == OPIPE_PENDING) {
    status = r.t->collect_test(r.groups[which], 0, &r.err);
    need(status != OPIPE_OK, "rank %d: the sum is over", m->rank);
    nap_us(100);
  }
  need_refused(&r, status, OPIPE_E_INVALID, "rank ");
  (void)fprintf(stderr, "%s\n", r.err.message);
  close_rank(&r);
}

static void test_long_batches_are_refused(void) {
  run_ranks(RANKS, note_many, "");
}

static void test_lazy_communicators_are_refused(void) {
  run_ranks(RANKS, open_late, "");
}

static void test_sums_in_another_order_are_refused(void) {
  run_ranks(RANKS, sum_in_other_order,
            "rank 0 comes to an all-reduce of 1 float32, rank 1 to an all-reduce of 2 float32");
}

OPI_TEST_MAIN("refusals of transport-nccl", OPI_TEST(test_long_batches_are_refused),
              OPI_TEST(test_lazy_communicators_are_refused),
              OPI_TEST(test_sums_in_another_order_are_refused))
