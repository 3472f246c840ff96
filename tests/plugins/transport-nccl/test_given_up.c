/* SPDX-License-Identifier: Apache-2.0 */
/* A launch that hangs, and an ncclCommAbort that does not return: what the rank frees stays the
 * driver's, in the order in which a session frees, and closing ends. Two processes, on doubles.
 * ctest: timeout=60 */
#include "rank_kit.h"

enum { RANKS = 2, LOOKS = 50, OVER = 0 };

/* Nobody receives the message: its launch stands in the lane. */
static void send_to_nobody(rank *r) {
  const opipe_region at = {r->buffer, 0, BYTES};
  cuda_double_facts facts = {.queued = 0};
  need_ok(r, r->t->batch_begin(r->end, &r->err), "batch_begin");
  need_ok(r, r->t->send(r->stream, 0, &at, NULL, NULL, &r->err), "send");
  need_ok(r, r->t->batch_end(r->end, &r->err), "batch_end");
  for (int i = 0; i < LOOKS || facts.queued == 0; ++i) {
    need(r->t->test(r->stream, 0, &r->err) == OPIPE_PENDING, "the message has arrived");
    r->b.look(&facts);
    nap_us(500);
  }
}

/* The streams first, then the memory, then the endpoint, then the device. */
static void leave(rank *r) {
  const opipe_backend *b = r->b.base.table;
  const uint64_t since_ns = ct_now(NULL);
  cuda_double_facts before, after;
  r->t->stream_close(r->stream);
  r->b.look(&before);
  r->t->memory_drop(r->memory);
  b->buffer_free(r->buffer);
  r->b.look(&after);
  need(after.live_bytes == before.live_bytes, "memory is given back that a launch may touch");
  r->t->endpoint_close(r->end);
  r->t->world_close(r->world);
  b->queue_close(r->queue);
  b->device_close(r->device);
  r->plugin->close(r->self);
  need(ct_now(NULL) - since_ns < UINT64_C(20000000000), "closing takes longer than 20 s");
}

static void hang(member *m) {
  rank r;
  opipe_error why = OPIPE_ERROR_INIT;
  open_rank(&r, m, "record=no");
  need_ok(&r, open_stream(&r), "stream_open");
  get_ready(&r);
  if (m->rank == 1) {
    while (atomic_load(&m->board->flags[OVER]) == 0)
      nap_us(1000);
    return;
  }
  need(setenv("OPIPE_NCCL_DOUBLE_FAULT", "silent@abort", 1) == 0, "setenv");
  send_to_nobody(&r);
  (void)opipe_fail(&why, OPIPE_E_PEER, "the test ends the world");
  r.t->abort(r.world, 0, &why);
  leave(&r);
  atomic_store(&m->board->flags[OVER], 1);
}

static void test_memory_outlives_a_launch_that_hangs(void) {
  run_ranks(RANKS, hang, "65536 bytes of its memory stay the driver's");
}

OPI_TEST_MAIN("launches over transport-nccl that hang",
              OPI_TEST(test_memory_outlives_a_launch_that_hangs))
