/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of requests of several shapes, all in flight at once, through the host's table: what
 * tests of plans that cut requests share. */
#ifndef TESTS_ABI_STREAMS_H
#define TESTS_ABI_STREAMS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

enum { RULES = 6, REQUESTS = 6, ROWS = 4, TOKENS = 8, MOST = 16, CLASSES = 256 };

typedef struct answer {
  float logits[ROWS * MOST * CLASSES];
  int64_t shape[3];
  opipe_status status;
} answer;

typedef struct stream {
  const char *input;
  const int64_t (*shapes)[2]; /* [REQUESTS] */
  uint32_t classes;
  uint32_t bad; /* this request reads beyond a table; REQUESTS: none */
} stream;

static inline opipe_binding_io tensor(const char *name, void *data, int64_t rank, uint8_t code,
                                      uint8_t bits, const int64_t *shape) {
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = (int32_t)rank,
                                       .dtype = {code, bits, 1},
                                       .shape = shape}};
}

static inline opipe_status submit(host_kit *k, const stream *s, uint32_t i, int64_t *ids,
                                  answer *out, opipe_request **out_request) {
  const int64_t n = s->shapes[i][0] * s->shapes[i][1];
  for (int64_t e = 0; e < n; ++e)
    ids[e] = (e * 7 + i % 2 * 5) % 32;
  if (i == s->bad)
    ids[n - 1] = 1000000;
  memcpy(out->shape, (int64_t[]){s->shapes[i][0], s->shapes[i][1], s->classes}, sizeof out->shape);
  const opipe_binding_io in = tensor(s->input, ids, 2, OPIPE_DL_INT, 64, s->shapes[i]);
  const opipe_binding_io result = tensor("logits", out->logits, 3, OPIPE_DL_FLOAT, 32, out->shape);
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = 1,
                                      .n_outputs = 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = &in,
                                      .outputs = &result};
  return k->api->session_submit(k->session, &params, out_request, &k->err);
}

/* All requests in flight at once. */
static inline void run_stream(host_kit *k, const stream *s, uint32_t flags, answer *out) {
  static int64_t ids[REQUESTS][ROWS * MOST];
  opipe_request *requests[REQUESTS];
  const opipe_session_params open = {
      .struct_size = sizeof open, .flags = flags, .max_in_flight = REQUESTS, .spin_us = UINT32_MAX};
  memset(out, 0, REQUESTS * sizeof *out);
  OPI_ASSERT_OK_FATAL(kit_open(k, &open), &k->err);
  for (uint32_t i = 0; i < REQUESTS; ++i)
    OPI_ASSERT_OK_FATAL(submit(k, s, i, ids[i], &out[i], &requests[i]), &k->err);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    out[i].status = k->api->request_wait(requests[i], UINT64_MAX, &k->err);
    k->api->request_release(requests[i]);
  }
  k->api->session_close(k->session);
  k->session = NULL;
}

/* credits: micro-batches at a time between the first stage and the last, written in by hand in
 * place of what the schedule said. */
static inline void read_again(host_kit *k, char said, char credits) {
  char member[] = "\"in_flight\": 0";
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, &text, &k->err), &k->err);
  member[sizeof member - 2] = said;
  char *at = strstr(text.data, member);
  OPI_ASSERT_FATAL(at != NULL);
  at[sizeof member - 2] = credits;
  if (credits != said)
    kit_take_out_hash(text.data, &text.n);
  k->api->plan_destroy(k->plan);
  k->plan = NULL;
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->bound, text.data, text.n, &k->plan, &k->err), &k->err);
  free(text.data);
}

/* Does the plan give x [REQUESTS] as it runs, as its reference has it, and over poisoned memory? */
static inline bool has_bits_of_reference(host_kit *k, const stream *s, answer *x) {
  static answer y[REQUESTS], z[REQUESTS];
  run_stream(k, s, 0, x);
  run_stream(k, s, OPIPE_SESSION_REFERENCE, y);
  run_stream(k, s, OPIPE_SESSION_POISON, z);
  return memcmp(x, y, sizeof y) == 0 && memcmp(x, z, sizeof z) == 0;
}

/* Largest difference, of the largest number. */
static inline double apart(const answer *a, const answer *b) {
  double worst = 0, largest = 0;
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    for (int64_t e = 0; e < a[i].shape[0] * a[i].shape[1] * a[i].shape[2]; ++e) {
      worst = fmax(worst, fabs((double)a[i].logits[e] - (double)b[i].logits[e]));
      largest = fmax(largest, fabs((double)b[i].logits[e]));
    }
  }
  return largest > 0 ? worst / largest : INFINITY;
}

/* A link that delivers under a rule. */
typedef struct ruled_link {
  const char *rule;
  char transport[60];
} ruled_link;

static inline ruled_link link_of(uint32_t rule) {
  static const char *const names[RULES] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
  ruled_link own = {.rule = names[rule]};
  (void)snprintf(own.transport, sizeof own.transport, "emulated:rule=%s,latency_us=20", own.rule);
  return own;
}

/* ---- whole tests ---- */

static const int64_t ALIKE[REQUESTS][2] = {{ROWS, TOKENS}, {ROWS, TOKENS}, {ROWS, TOKENS},
                                           {ROWS, TOKENS}, {ROWS, TOKENS}, {ROWS, TOKENS}};

/* In one stage. */
static inline void run_uncut(const char *file, uint32_t flags, const stream *s, answer *out) {
  host_kit k;
  const opipe_plan_params one = {.struct_size = sizeof one, .n_stages = 1};
  OPI_ASSERT_OK_FATAL(
      kit_plan_bound(&k, NULL, file, ROWS, TOKENS, flags | OPIPE_BIND_DEFAULTS, &one), &k.err);
  run_stream(&k, s, OPIPE_SESSION_REFERENCE, out);
  kit_close(&k);
}

/* Micro-batches at a time: 1 to 3, where the schedule said none. */
static inline void check_credits(const char *file, const opipe_plan_params *params,
                                 const stream *s) {
  static answer x[REQUESTS];
  for (char credits = '1'; credits <= '3'; ++credits) {
    host_kit k;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, file, ROWS, TOKENS, params), &k.err);
    read_again(&k, '0', credits);
    OPI_ASSERT(has_bits_of_reference(&k, s, x) && x[0].logits[0] != 0);
    kit_close(&k);
  }
}

/* A request that reads beyond a table fails alone; the others have the bits that they have without
 * it. */
static inline void check_bad_request(const char *file, const opipe_plan_params *params) {
  static const stream good = {"input_ids", ALIKE, CLASSES, REQUESTS};
  static const stream bad = {"input_ids", ALIKE, CLASSES, 2};
  static answer x[REQUESTS], y[REQUESTS];
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, file, ROWS, TOKENS, params), &k.err);
  run_stream(&k, &good, 0, x);
  run_stream(&k, &bad, 0, y);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    OPI_ASSERT_INT(x[i].status, OPIPE_OK);
    OPI_ASSERT_INT(y[i].status, i == bad.bad ? OPIPE_E_INVALID : OPIPE_OK);
    OPI_ASSERT(i == bad.bad || memcmp(x[i].logits, y[i].logits, sizeof x[i].logits) == 0);
  }
  kit_close(&k);
}

/* Dropout that runs: however a plan cuts the requests, the same elements drop; the next request
 * draws anew. */
static inline void check_masks(const char *file, const opipe_plan_params *plans, uint32_t n) {
  static const stream s = {"ids", ALIKE, 32, REQUESTS};
  static answer uncut[REQUESTS], still[REQUESTS], x[REQUESTS], y[REQUESTS];
  run_uncut(file, 0, &s, still);
  run_uncut(file, OPIPE_BIND_GRAPH_DROPOUT, &s, uncut);
  OPI_ASSERT(apart(uncut, still) > 1e-2);
  /* Requests 0 and 2 hold the same ids. */
  OPI_ASSERT(memcmp(still[0].logits, still[2].logits, sizeof still[0].logits) == 0);
  OPI_ASSERT(memcmp(uncut[0].logits, uncut[2].logits, sizeof uncut[0].logits) != 0);
  for (uint32_t i = 0; i < n; ++i) {
    host_kit k;
    OPI_ASSERT_OK_FATAL(kit_plan_bound(&k, NULL, file, ROWS, TOKENS,
                                       OPIPE_BIND_GRAPH_DROPOUT | OPIPE_BIND_DEFAULTS, &plans[i]),
                        &k.err);
    run_stream(&k, &s, 0, x);
    run_stream(&k, &s, OPIPE_SESSION_REFERENCE, y);
    OPI_ASSERT(memcmp(x, y, sizeof x) == 0);
    const double worst = apart(x, uncut);
    if (!(worst <= 1e-5)) {
      OPI_FAIL("plan %u, %s, %u micro-batches: %g from the uncut model", i, plans[i].schedule,
               plans[i].n_microbatches, worst);
    }
    kit_close(&k);
  }
}

static inline opipe_status whole_life(opi_test_memory *memory, const char *file,
                                      const opipe_plan_params *params) {
  const opipe_context_params context = {
      .struct_size = sizeof context, .log_level = OPIPE_LOG_ERROR, .allocator = &memory->allocator};
  host_kit k;
  opipe_status status = kit_plan_bound(&k, &context, file, ROWS, TOKENS,
                                       OPIPE_BIND_GRAPH_DROPOUT | OPIPE_BIND_DEFAULTS, params);
  if (status == OPIPE_OK)
    status = kit_open(&k, NULL);
  kit_close(&k);
  return status;
}

/* Some of all allocations fail, in a stride. */
static inline void check_allocations(const char *file, const opipe_plan_params *params) {
  uint64_t nth = 1, runs = 0;
  for (bool failed = true; failed; nth += 1 + nth / 16, ++runs) {
    opi_test_memory memory;
    opi_test_memory_init(&memory);
    memory.fail_at = nth;
    const opipe_status status = whole_life(&memory, file, params);
    failed = memory.n_failed != 0;
    if (failed ? status != OPIPE_E_NOMEM && status != OPIPE_OK : status != OPIPE_OK)
      OPI_FAIL("allocation %llu fails: status %d", (unsigned long long)nth, (int)status);
    OPI_ASSERT(opi_test_memory_end(&memory));
  }
  OPI_ASSERT(runs > 40);
}

#endif /* TESTS_ABI_STREAMS_H */
