/* SPDX-License-Identifier: Apache-2.0 */
/* Inference, also by copies of the pipeline, over transports that match messages by rules of their
 * own: the lists are proven under each rule and run, from plans that were written and read, over
 * the emulated transport, which fails where two ranks do not agree, or one begins what it may not.
 * Streams of requests of several sizes have the bits of the plan's reference.
 * ctest: timeout=300 label=twice */
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

enum { RULES = 6, REQUESTS = 7, ROWS = 6, WIDTH = 4, CLASSES = 256 };
#define LLAMA "tests/data/llama_8block/model.onnx"

typedef struct schedule_case {
  const char *schedule;
  uint32_t n_ranks, n_stages, n_microbatches;
  uint32_t replicas; /* copies of the pipeline, on ranks of their own */
} schedule_case;

static const schedule_case cases[] = {
    {"gpipe", 2, 0, 1},         {"gpipe", 4, 0, 3},      {"gpipe", 3, 0, 4},
    {"1f1b", 4, 0, 4},          {"1f1b", 2, 0, 3},       {"sequential", 3, 0, 2},
    {"interleaved", 2, 4, 4},   {"looped-bfs", 2, 4, 4}, {"sequential", 4, 0, 3},
    {"zbv", 2, 0, 4},           {"gpipe", 1, 0, 2},      {"zb-h1", 4, 0, 4},
    {"looped-bfs", 3, 6, 3},    {"1f1b", 3, 0, 6},       {"gpipe", 4, 0, 4, 2},
    {"1f1b", 4, 0, 3, 2},       {"gpipe", 2, 0, 2, 2},   {"interleaved", 4, 4, 4, 2},
    {"sequential", 4, 0, 3, 2}, {"gpipe", 3, 0, 6, 3},
};

typedef struct answer {
  float logits[ROWS * WIDTH * CLASSES];
} answer;

static int64_t rows_of(uint32_t request) {
  static const int64_t rows[] = {ROWS, ROWS, 3, ROWS, 5, 1, 3};
  return rows[request % OPI_COUNT(rows)];
}

static opipe_binding_io logits_of(float *data, const int64_t *shape) {
  return (opipe_binding_io){.name = "logits",
                            .tensor = {.data = data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = 3,
                                       .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                       .shape = shape}};
}

/* A stream of requests, as many at a time as the session takes. */
static void run_stream(host_kit *k, uint32_t flags, answer *out) {
  int64_t ids[REQUESTS][ROWS * WIDTH];
  int64_t shapes[REQUESTS][2], logits[REQUESTS][3];
  opipe_request *requests[REQUESTS];
  const opipe_session_params open = {
      .struct_size = sizeof open, .flags = flags, .max_in_flight = REQUESTS, .spin_us = UINT32_MAX};
  OPI_ASSERT_OK_FATAL(kit_open(k, &open), &k->err);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    memcpy(shapes[i], (int64_t[]){rows_of(i), WIDTH}, sizeof shapes[i]);
    memcpy(logits[i], (int64_t[]){rows_of(i), WIDTH, CLASSES}, sizeof logits[i]);
    for (uint32_t e = 0; e < ROWS * WIDTH; ++e)
      ids[i][e] = (e * 7 + i * 5) % CLASSES;
    const opipe_binding_io in = kit_ids(ids[i], shapes[i]);
    const opipe_binding_io result = logits_of(out[i].logits, logits[i]);
    const opipe_submit_params submit = {.struct_size = sizeof submit,
                                        .n_inputs = 1,
                                        .n_outputs = 1,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = &in,
                                        .outputs = &result};
    OPI_ASSERT_OK_FATAL(k->api->session_submit(k->session, &submit, &requests[i], &k->err),
                        &k->err);
  }
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    OPI_ASSERT_OK(k->api->request_wait(requests[i], UINT64_MAX, &k->err), &k->err);
    k->api->request_release(requests[i]);
  }
  k->api->session_close(k->session);
  k->session = NULL;
}

/* Replaces the plan by one that was read, which then runs. */
static void read_again(host_kit *k) {
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, &text, &k->err), &k->err);
  k->api->plan_destroy(k->plan);
  k->plan = NULL;
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->model, text.data, text.n, &k->plan, &k->err), &k->err);
  free(text.data);
}

static void run_case(const schedule_case *c, uint32_t rule) {
  static const char *const names[RULES] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
  static answer x[REQUESTS], y[REQUESTS];
  host_kit k;
  char transport[60];
  (void)snprintf(transport, sizeof transport, "emulated:rule=%s,latency_us=20", names[rule]);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = c->n_stages,
                                    .n_ranks = c->n_ranks,
                                    .n_microbatches = c->n_microbatches,
                                    .replicas = c->replicas,
                                    .schedule = c->schedule,
                                    .transport = transport};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, WIDTH, &params), &k.err);
  read_again(&k);
  memset(x, 0, sizeof x);
  memset(y, 0, sizeof y);
  run_stream(&k, 0, x);
  run_stream(&k, OPIPE_SESSION_REFERENCE, y);
  if (memcmp(x, y, sizeof x) != 0) {
    OPI_FAIL("%s on %u ranks, %u micro-batches, rule %s: other bits than the reference's",
             c->schedule, c->n_ranks, c->n_microbatches, names[rule]);
  }
  OPI_ASSERT(x[0].logits[0] != 0);
  kit_close(&k);
}

static void test_every_rule(void) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < OPI_COUNT(cases); ++i) {
    for (uint32_t rule = 0; rule < RULES; ++rule) {
      if (!opi_test_covers(i + rule, opi_test_sparse(3)))
        continue;
      run_case(&cases[i], rule);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

OPI_TEST_MAIN("rules of delivery", OPI_TEST(test_every_rule))
