/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions over transport-strict: streams of several shapes, some of which are given up, credits,
 * devices that answer later, a session that fails. Nothing is refused, and all that was opened and
 * registered is given back. ctest: timeout=120
 */
#include "tests/plugins/transport-strict/counts.h"
#include "tests/runtime/toy.h"

enum { REQUESTS = 6, ROUNDS = 9 };
static const uint64_t DEADLINE_NS = UINT64_C(10000000000);

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 5,
                                     .seq = 2};

static const strict_counts *counted(void) {
  return OPIPE_PLUGIN_STATIC(transport_strict).get_interface(NULL, STRICT_COUNTS_ID);
}

static bool open_toy(toy *t, const toy_plan *plan, const char *options, uint32_t max_shapes) {
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .max_in_flight = REQUESTS,
      .max_shapes = max_shapes};
  opipe_error err = OPIPE_ERROR_INIT;
  t->env.transport_options = options;
  const bool made =
      opi_test_check_ok(toy_make(t, plan, &OPIPE_PLUGIN_STATIC(transport_strict), &err),
                        err.message, "toy_make", __FILE__, __LINE__, false);
  return made && opi_test_check_ok(toy_open(t, &params, &err), err.message, "toy_open", __FILE__,
                                   __LINE__, false);
}

/* More shapes than there are places: those that rest are given up, with streams whose receives are
 * posted for the next body. */
static void check_stream(const toy_plan *plan, const char *options, uint32_t device_flags) {
  toy t = {.faults.device_flags = device_flags};
  toy_request r[REQUESTS];
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t refused = atomic_load(&counted()->refused);
  const uint64_t messages = atomic_load(&counted()->messages);
  if (!open_toy(&t, plan, options, 4))
    return;
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      const int64_t rows = i % 2 == 0 ? 5 : 2 + (int64_t)round % 4, seq = 1 + (int64_t)round / 3;
      OPI_ASSERT_OK_FATAL(toy_submit(&t, rows, seq, i, 0, 0, &r[i], &err), &err);
    }
    for (uint32_t i = 0; i < REQUESTS; ++i) {
      OPI_ASSERT_OK(opi_request_wait(r[i].request, DEADLINE_NS, &err), &err);
      OPI_ASSERT(toy_check(&t, &r[i]));
      toy_release(&r[i]);
    }
  }
  toy_end(&t);
  OPI_ASSERT(atomic_load(&counted()->messages) > messages);
  OPI_ASSERT_INT(atomic_load(&counted()->refused) - refused, 0);
}

static void test_streams(void) {
  static const uint32_t there_and_back[4] = {0, 1, 1, 0};
  static const char *const options[2] = {NULL, "rule=stream"};
  for (uint32_t i = 0; i < 16; ++i) {
    toy_plan plan = three_ranks;
    plan.depth = 1 + i / 2 % 2;
    plan.in_flight = i / 4 % 2;
    if (i / 8 != 0) {
      plan.n_stages = 4;
      plan.n_ranks = 2;
      plan.rank_of_stage = there_and_back;
    }
    check_stream(&plan, options[i % 2], OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS);
  }
}

static void test_devices_that_answer_later(void) {
  check_stream(&three_ranks, NULL, OPIPE_DEVICE_HOST_MEMORY);
}

/* The first reason reaches every rank, nobody waits for ever, and closing is in order. */
static void test_session_that_fails(void) {
  toy t = {.faults = {.fail_node = "node_h6", .fail_at = 4, .fail_status = OPIPE_E_DEVICE}};
  toy_request r[3];
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t refused = atomic_load(&counted()->refused);
  if (!open_toy(&t, &three_ranks, NULL, 0))
    return;
  OPI_ASSERT(toy_round(&t, 5, 2, 1, 0)); /* two micro-batches; the next request's second fails */
  uint32_t n = 0;
  while (n < 3 && toy_submit(&t, 5, 2, n, 0, 0, &r[n], &err) == OPIPE_OK)
    ++n;
  OPI_ASSERT(n > 0);
  for (uint32_t i = 0; i < n; ++i) {
    OPI_ASSERT_ERROR(opi_request_wait(r[i].request, DEADLINE_NS, &err),
                     i == 0 ? OPIPE_E_DEVICE : OPIPE_E_PEER, &err, "node 'node_h6'");
    toy_release(&r[i]);
  }
  if (n < 3)
    toy_release(&r[n]);
  toy_end(&t);
  OPI_ASSERT_INT(atomic_load(&counted()->refused) - refused, 0);
}

OPI_TEST_MAIN("strict", OPI_TEST(test_streams), OPI_TEST(test_devices_that_answer_later),
              OPI_TEST(test_session_that_fails))
