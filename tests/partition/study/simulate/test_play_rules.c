/* SPDX-License-Identifier: Apache-2.0 */
/* How the rules of transports treat the same ends of messages, in a play of two ranks and in its
 * times: an endpoint that has one of them, or one batch, under way.
 */
#include "partition/study/simulate/play.h"
#include "tests/support/support.h"

static const char CLUSTER[] =
    "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"emulated\", \"count\": 2, "
    "\"alignment\": 64}], \"links\": [{\"transport\": \"emulated\", \"rule\": \"tag\"}], "
    "\"tiers\": [{\"latency_ns\": 50, \"bandwidth\": 1e15, \"port\": 0, "
    "\"collective_latency_ns\": 0, \"collective\": \"ring\"}]}";

enum { OPS = 12, WORK_10 = 0, WORK_5 = 1 };

/* Rank 0 makes two tensors, 10 ns each, for rank 1. */
typedef struct row {
  const char *what;
  uint32_t rule;
  opi_play_op ops[OPS]; /* rank 0's, then rank 1's */
  uint32_t n_first, n;
  double ends[2]; /* of the ranks */
  bool lanes;     /* the ranks have them */
} row;

#define C(work) \
  { OPI_PLAY_COMPUTE, work, 0 }
#define SEND(m) \
  { OPI_PLAY_SEND, m, 0 }
#define POST(m) \
  { OPI_PLAY_POST, m, 0 }
#define WAIT(m) \
  { OPI_PLAY_WAIT, m, 0 }
#define DRAIN(m) \
  { OPI_PLAY_DRAIN, m, 0 }
#define BATCH(n) \
  { OPI_PLAY_BATCH, n, 0 }
#define ONE_BY_ONE C(WORK_10), SEND(0), C(WORK_10), SEND(1)

static const row rows[] = {
    {"a receive holds nobody up",
     OPI_RULE_BLOCKING,
     {C(WORK_10), SEND(0), POST(0), C(WORK_5), WAIT(0)},
     2,
     5,
     {10, 60}},
    {"tag: a send waits aside",
     OPI_RULE_TAG,
     {ONE_BY_ONE, C(WORK_10), C(WORK_10), C(WORK_10), POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     11,
     {20, 80}},
    {"edge: a send waits for its receive",
     OPI_RULE_EDGE,
     {ONE_BY_ONE, C(WORK_10), C(WORK_10), C(WORK_10), POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     11,
     {40, 90}},
    {"edge: both receives stand",
     OPI_RULE_EDGE,
     {ONE_BY_ONE, POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     8,
     {20, 70}},
    {"blocking: the second when the first has arrived",
     OPI_RULE_BLOCKING,
     {ONE_BY_ONE, POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     8,
     {60, 110}},
    {"blocking: from when both ends are there",
     OPI_RULE_BLOCKING,
     {ONE_BY_ONE, C(WORK_10), C(WORK_10), C(WORK_10), POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     11,
     {80, 130}},
    {"grouped: receives join, a send was asked for",
     OPI_RULE_GROUPED,
     {ONE_BY_ONE, POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     8,
     {60, 110}},
    {"grouped: a receive behind one that was asked for",
     OPI_RULE_GROUPED,
     {C(WORK_10), BATCH(2), SEND(0), SEND(1), POST(0), WAIT(0), POST(1), WAIT(1)},
     4,
     8,
     {10, 110}},
    {"grouped: all of a batch at once",
     OPI_RULE_GROUPED,
     {C(WORK_10), BATCH(2), SEND(0), SEND(1), BATCH(2), POST(0), POST(1), WAIT(0), WAIT(1)},
     4,
     9,
     {10, 60}},
    {"grouped: none of a batch before all of it",
     OPI_RULE_GROUPED,
     {BATCH(1), SEND(0), C(WORK_10), C(WORK_10), BATCH(1), SEND(1), BATCH(2), POST(0), POST(1),
      WAIT(0)},
     6,
     10,
     {50, 100}},
    {"grouped: a batch behind a batch",
     OPI_RULE_GROUPED,
     {BATCH(1), SEND(0), C(WORK_10), BATCH(1), SEND(1), BATCH(2), POST(0), POST(1), WAIT(0),
      WAIT(1)},
     5,
     10,
     {50, 100}},
    {"lanes: a rank goes on, its lane does one batch after the other",
     OPI_RULE_GROUPED,
     {ONE_BY_ONE, BATCH(2), POST(0), POST(1), WAIT(0)},
     4,
     8,
     {20, 110},
     true},
    {"lanes: a reader waits for its own batch",
     OPI_RULE_GROUPED,
     {C(WORK_10), BATCH(2), SEND(0), SEND(1), POST(0), POST(1), WAIT(0), C(WORK_10), WAIT(1)},
     4,
     9,
     {10, 110},
     true},
    {"lanes: a sender has its bytes back when its batch has ended",
     OPI_RULE_GROUPED,
     {C(WORK_10), BATCH(2), SEND(0), SEND(1), DRAIN(0), POST(0), POST(1), WAIT(0)},
     5,
     8,
     {110, 60},
     true}};

static void test_ends_of_messages_by_rule(void) {
  static const opi_play_work work[] = {{10, 0, 0}, {5, 0, 0}};
  static const opi_play_stream streams[] = {{0, 1, 0}, {0, 1, 0}};
  static const uint32_t message_stream[] = {0, 1}, device[] = {0, 1};
  static const bool lanes[] = {true, true};
  opi_arena arena;
  opi_cluster cluster;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(opi_cluster_read("test", CLUSTER, sizeof CLUSTER - 1, &arena, &cluster, &err),
                      &err);
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    const row *r = &rows[i];
    const uint32_t first[] = {0, r->n_first, r->n};
    const opi_play play = {.cluster = &cluster,
                           .n_lists = 2,
                           .n_tensor = 1,
                           .n_data = 1,
                           .device = device,
                           .list_first = first,
                           .ops = r->ops,
                           .work = work,
                           .streams = streams,
                           .message_stream = message_stream,
                           .n_streams = 2,
                           .n_messages = 2,
                           .rule = r->rule,
                           .lanes = r->lanes ? lanes : NULL};
    opi_played played;
    OPI_ASSERT_OK_FATAL(opi_play_run(&play, &arena, &played, &err), &err);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      if (played.finish_ns[rank] != r->ends[rank]) {
        OPI_FAIL("%s: rank %u ends at %g, not at %g", r->what, rank, played.finish_ns[rank],
                 r->ends[rank]);
      }
    }
  }
  opi_arena_release(&arena);
}

OPI_TEST_MAIN("rules of plays", OPI_TEST(test_ends_of_messages_by_rule))
