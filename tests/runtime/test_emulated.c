/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over a transport that copies, delays, stalls and loses: results stay the same, losses
 * are named. ctest: timeout=120
 */
#include "tests/runtime/toy.h"

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 5,
                                     .seq = 2};

static opipe_session_params session_params(void) {
  return (opipe_session_params){
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .spin_us = 0,
      .max_in_flight = 6};
}

static bool open_toy(toy *t, const toy_plan *plan, const char *options,
                     const opipe_session_params *params) {
  opipe_error err = OPIPE_ERROR_INIT;
  t->env.transport_options = options;
  const bool made =
      opi_test_check_ok(toy_make(t, plan, &OPIPE_PLUGIN_STATIC(transport_emulated), &err),
                        err.message, "toy_make", __FILE__, __LINE__, false);
  return made && opi_test_check_ok(toy_open(t, params, &err), err.message, "toy_open", __FILE__,
                                   __LINE__, false);
}

static void check_stream(const toy_plan *plan, const char *options) {
  static const int64_t rows[3] = {5, 4, 1};
  toy t = {.allocator = NULL};
  const opipe_session_params params = session_params();
  toy_request r[6];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, plan, options, &params))
    return;
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < 6; ++i)
      OPI_ASSERT_OK_FATAL(toy_submit(&t, rows[i % 3], 2, i, 0, 0, &r[i], &err), &err);
    for (uint32_t i = 0; i < 6; ++i) {
      OPI_ASSERT_OK(opi_request_wait(r[i].request, UINT64_MAX, &err), &err);
      OPI_ASSERT(toy_check(&t, &r[i]));
      toy_release(&r[i]);
    }
  }
  toy_end(&t);
}

static void test_copying_transport_gives_the_plain_result(void) {
  static const uint32_t there_and_back[4] = {0, 1, 1, 0};
  static const char *const options[] = {NULL, "rule=stream", "rule=tag,latency_us=300",
                                        "rule=stream,bandwidth=1000000,latency_us=50",
                                        "rule=stream,jitter_us=300,seed=3"};
  for (size_t o = 0; o < OPI_COUNT(options); ++o) {
    for (uint32_t depth = 1; depth <= 2; ++depth) {
      for (uint32_t in_flight = 0; in_flight <= 1; ++in_flight) {
        toy_plan plan = three_ranks;
        plan.depth = depth;
        plan.in_flight = in_flight;
        check_stream(&plan, options[o]);
        plan.n_stages = 4;
        plan.n_ranks = 2;
        plan.rank_of_stage = there_and_back;
        check_stream(&plan, options[o]);
      }
    }
  }
}

/* Two rounds of two micro-batches: messages 0 and 1, then the stalled one. How long the first one
 * took; UINT64_MAX: nothing was run. */
static uint64_t stalled_round(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  params.watchdog_ns = UINT64_C(20000000000);
  if (!open_toy(&t, &three_ranks, "stall=0:1:2:80", &params))
    return UINT64_MAX;
  const uint64_t start = toy_now_ns();
  OPI_ASSERT(toy_round(&t, 5, 2, 1, 0));
  const uint64_t before = toy_now_ns() - start;
  OPI_ASSERT(toy_round(&t, 5, 2, 2, 0));
  OPI_ASSERT(toy_now_ns() - start >= 80000000);
  toy_end(&t);
  return before;
}

/* A busy machine may keep any one round waiting, not the quickest of many. */
static void test_stalled_message_only_delays(void) {
  uint64_t quickest = UINT64_MAX;
  for (uint32_t i = 0; i < 20 && quickest >= 80000000; ++i) {
    const uint64_t took = stalled_round();
    if (took == UINT64_MAX)
      return;
    quickest = took < quickest ? took : quickest;
  }
  OPI_ASSERT(quickest < 80000000);
}

static void test_lost_message_is_named(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  toy_request r[3];
  opipe_error err = OPIPE_ERROR_INIT;
  params.watchdog_ns = 100000000;
  if (!open_toy(&t, &three_ranks, "lose=1:2:2", &params))
    return;
  for (uint32_t i = 0; i < 3; ++i)
    OPI_ASSERT_OK_FATAL(toy_submit(&t, 5, 2, i, 0, 0, &r[i], &err), &err);
  OPI_ASSERT_OK(opi_request_wait(r[0].request, UINT64_MAX, &err), &err);
  OPI_ASSERT(toy_check(&t, &r[0]));
  OPI_ASSERT_ERROR(opi_request_wait(r[1].request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err,
                   "rank 2 has been held up at RECV of stage 2 (request 1, micro-batch 0)");
  OPI_ASSERT(strstr(err.message, "waiting for rank 1") != NULL);
  OPI_ASSERT_ERROR(opi_request_wait(r[2].request, UINT64_MAX, &err), OPIPE_E_PEER, &err,
                   "rank 2 has been held up at RECV");
  for (uint32_t i = 0; i < 3; ++i)
    toy_release(&r[i]);
  toy_end(&t);
}

static void test_wrong_options_are_refused(void) {
  static const struct {
    const char *options, *part;
    opipe_status status;
  } wrong[] = {{"rule=any", "rule=any", OPIPE_E_INVALID},
               {"speed=3", "'speed'", OPIPE_E_NOTFOUND},
               {"latency_us=-1", "latency_us=-1", OPIPE_E_INVALID},
               {"jitter_us=-1", "jitter_us=-1", OPIPE_E_INVALID},
               {"seed=-1", "seed=-1", OPIPE_E_INVALID},
               {"lose=1:2", "SRC:DST:SEQ", OPIPE_E_INVALID},
               {"stall=0:1:2", "SRC:DST:SEQ:MS", OPIPE_E_INVALID},
               {"bandwidth=fast", "bandwidth=fast", OPIPE_E_INVALID}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    toy t = {.env = {.transport_options = wrong[i].options}};
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(toy_make(&t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_emulated), &err),
                        &err);
    OPI_ASSERT_ERROR(toy_open(&t, NULL, &err), wrong[i].status, &err, wrong[i].part);
    toy_end(&t);
  }
}

OPI_TEST_MAIN("emulated", OPI_TEST(test_copying_transport_gives_the_plain_result),
              OPI_TEST(test_stalled_message_only_delays), OPI_TEST(test_lost_message_is_named),
              OPI_TEST(test_wrong_options_are_refused))
