/* SPDX-License-Identifier: Apache-2.0 */
/* Inference in token slices (TeraPipe's prompts), through the host's table: streams of requests of
 * other rows and tokens have the bits of the plan's reference under every rule of delivery, from
 * plans that were written and read; a bad request fails alone; what cannot be sliced is refused;
 * masks of Dropout do not depend on how a request is cut. ctest: timeout=120 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

enum { RULES = 6, REQUESTS = 6, ROWS = 4, TOKENS = 8, MOST = 16, CLASSES = 256 };
#define LLAMA "tests/data/llama_8block/model.onnx"
#define GPT "tests/data/gpt_8block/model.onnx"
#define ENCODER "tests/data/encoder/model.onnx"
#define DROPOUT "tests/data/odd/dropout_tokens/model.onnx"

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

/* What the plan was made for, other rows, other tokens. */
static const int64_t MIXED[REQUESTS][2] = {{ROWS, TOKENS}, {ROWS, TOKENS}, {3, TOKENS},
                                           {ROWS, MOST},   {2, 2},         {1, 1}};
static const int64_t ALIKE[REQUESTS][2] = {{ROWS, TOKENS}, {ROWS, TOKENS}, {ROWS, TOKENS},
                                           {ROWS, TOKENS}, {ROWS, TOKENS}, {ROWS, TOKENS}};
static const stream LLAMA_MIXED = {"input_ids", MIXED, CLASSES, REQUESTS};

static opipe_binding_io tensor(const char *name, void *data, int64_t rank, uint8_t code,
                               uint8_t bits, const int64_t *shape) {
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = (int32_t)rank,
                                       .dtype = {code, bits, 1},
                                       .shape = shape}};
}

static opipe_status submit(host_kit *k, const stream *s, uint32_t i, int64_t *ids, answer *out,
                           opipe_request **out_request) {
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
static void run_stream(host_kit *k, const stream *s, uint32_t flags, answer *out) {
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

/* credits: micro-batches at a time between the first stage and the last, written in by hand. */
static void read_again(host_kit *k, char credits) {
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, &text, &k->err), &k->err);
  char *at = strstr(text.data, "\"in_flight\": 0");
  OPI_ASSERT_FATAL(at != NULL);
  at[strlen("\"in_flight\": ")] = credits;
  if (credits != '0')
    kit_take_out_hash(text.data, &text.n);
  k->api->plan_destroy(k->plan);
  k->plan = NULL;
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->bound, text.data, text.n, &k->plan, &k->err), &k->err);
  free(text.data);
}

/* Largest difference, of the largest number. */
static double apart(const answer *a, const answer *b) {
  double worst = 0, largest = 0;
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    for (int64_t e = 0; e < a[i].shape[0] * a[i].shape[1] * a[i].shape[2]; ++e) {
      worst = fmax(worst, fabs((double)a[i].logits[e] - (double)b[i].logits[e]));
      largest = fmax(largest, fabs((double)b[i].logits[e]));
    }
  }
  return largest > 0 ? worst / largest : INFINITY;
}

typedef struct plan_case {
  const char *schedule;
  uint32_t n_ranks, n_microbatches, replicas;
} plan_case;

static opipe_plan_params params_of(const plan_case *c, const char *transport) {
  return (opipe_plan_params){.struct_size = sizeof(opipe_plan_params),
                             .n_ranks = c->n_ranks,
                             .n_microbatches = c->n_microbatches,
                             .replicas = c->replicas,
                             .schedule = c->schedule,
                             .transport = transport};
}

/* ---- bits ---- */

static const plan_case CASES[] = {
    {"terapipe:slices=2", 2, 1, 0},       {"terapipe:slices=4", 4, 2, 0},
    {"seq1f1b:slices=3", 3, 3, 0},        {"terapipe:lengths=1+4+3", 2, 2, 0},
    {"terapipe:slices=3", 4, 4, 2},       {"terapipe:slices=3", 1, 1, 0},
    {"terapipe:lengths=3+2+2+1", 3, 1, 0}};

static void run_case(const plan_case *c, uint32_t rule, const answer *uncut) {
  static const char *const names[RULES] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
  static answer x[REQUESTS], y[REQUESTS], z[REQUESTS];
  host_kit k;
  char transport[60];
  (void)snprintf(transport, sizeof transport, "emulated:rule=%s,latency_us=20", names[rule]);
  const opipe_plan_params params = params_of(c, c->n_ranks == 1 ? NULL : transport);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
  read_again(&k, '0');
  run_stream(&k, &LLAMA_MIXED, 0, x);
  run_stream(&k, &LLAMA_MIXED, OPIPE_SESSION_REFERENCE, y);
  run_stream(&k, &LLAMA_MIXED, OPIPE_SESSION_POISON, z);
  if (memcmp(x, y, sizeof x) != 0 || memcmp(x, z, sizeof x) != 0) {
    OPI_FAIL("%s on %u ranks, %u micro-batches, rule %s: other bits than the reference's",
             c->schedule, c->n_ranks, c->n_microbatches, names[rule]);
  }
  const double worst = apart(x, uncut);
  if (!(worst <= 1e-5))
    OPI_FAIL("%s on %u ranks: %g from the uncut model", c->schedule, c->n_ranks, worst);
  kit_close(&k);
}

static void run_uncut(const char *file, uint32_t flags, const stream *s, answer *out) {
  host_kit k;
  const plan_case one = {"gpipe", 1, 1, 0};
  const opipe_plan_params params = params_of(&one, NULL);
  OPI_ASSERT_OK_FATAL(
      kit_plan_bound(&k, NULL, file, ROWS, TOKENS, flags | OPIPE_BIND_DEFAULTS, &params), &k.err);
  run_stream(&k, s, OPIPE_SESSION_REFERENCE, out);
  kit_close(&k);
}

static void test_every_rule(void) {
  static answer uncut[REQUESTS];
  uint32_t n = 0;
  run_uncut(LLAMA, 0, &LLAMA_MIXED, uncut);
  for (uint32_t i = 0; i < OPI_COUNT(CASES); ++i) {
    for (uint32_t rule = 0; rule < (CASES[i].n_ranks == 1 ? 1u : (uint32_t)RULES); ++rule) {
      if (!opi_test_covers(i + rule, 3))
        continue;
      run_case(&CASES[i], rule, uncut);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

/* A micro-batch enters when one has left, all slices of it. */
static void test_credits(void) {
  static answer x[REQUESTS], y[REQUESTS];
  const plan_case c = {"terapipe:slices=4", 3, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  for (uint32_t credits = 1; credits <= 3; ++credits) {
    host_kit k;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
    read_again(&k, (char)('0' + credits));
    run_stream(&k, &LLAMA_MIXED, 0, x);
    run_stream(&k, &LLAMA_MIXED, OPIPE_SESSION_REFERENCE, y);
    OPI_ASSERT(memcmp(x, y, sizeof x) == 0 && x[0].logits[0] != 0);
    kit_close(&k);
  }
}

/* ---- one request that fails ---- */

static void test_failure_is_one_requests(void) {
  static const stream good = {"input_ids", ALIKE, CLASSES, REQUESTS};
  static const stream bad = {"input_ids", ALIKE, CLASSES, 2};
  static answer x[REQUESTS], y[REQUESTS];
  const plan_case c = {"terapipe:slices=4", 3, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
  run_stream(&k, &good, 0, x);
  run_stream(&k, &bad, 0, y);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    OPI_ASSERT_INT(x[i].status, OPIPE_OK);
    OPI_ASSERT_INT(y[i].status, i == bad.bad ? OPIPE_E_INVALID : OPIPE_OK);
    OPI_ASSERT(i == bad.bad || memcmp(x[i].logits, y[i].logits, sizeof x[i].logits) == 0);
  }
  kit_close(&k);
}

/* ---- refusals ---- */

static void refuse(const char *file, const char *schedule, int64_t tokens, const char *part) {
  host_kit k;
  const plan_case c = {schedule, 2, 1, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, file, ROWS, tokens, &params),
                   strstr(part, "slices") == part || strstr(part, " slices of ") != NULL
                       ? OPIPE_E_INVALID
                       : OPIPE_E_UNSUPPORTED,
                   &k.err, part);
  kit_close(&k);
}

static void test_refusals(void) {
  refuse(ENCODER, "terapipe:slices=2", TOKENS,
         "(Attention): tokens cannot be sliced: it is not causal: row 0 may read token");
  refuse(GPT, "terapipe:slices=9", TOKENS, ": 9 slices of 8 tokens");
  refuse(GPT, "terapipe:lengths=3+4", TOKENS, "slices have 7 tokens, the model's sequences 8");
  refuse(GPT, "seq1f1b:slices=2", 1, ": 2 slices of 1 tokens");
}

/* ---- masks ---- */

/* Dropout that runs: whatever cuts the request, the same elements drop; the next request draws
 * anew. */
static void test_masks(void) {
  static const plan_case cuts[] = {{"gpipe", 2, 1, 0},
                                   {"gpipe", 2, 4, 0},
                                   {"gpipe", 3, 3, 0},
                                   {"gpipe", 4, 4, 2},
                                   {"terapipe:slices=4", 2, 1, 0},
                                   {"terapipe:lengths=1+5+2", 3, 2, 0},
                                   {"seq1f1b:slices=2", 4, 4, 2}};
  static const stream s = {"ids", ALIKE, 32, REQUESTS};
  static answer uncut[REQUESTS], still[REQUESTS], x[REQUESTS], y[REQUESTS];
  run_uncut(DROPOUT, 0, &s, still);
  run_uncut(DROPOUT, OPIPE_BIND_GRAPH_DROPOUT, &s, uncut);
  OPI_ASSERT(apart(uncut, still) > 1e-2);
  /* Requests 0 and 2 hold the same ids. */
  OPI_ASSERT(memcmp(still[0].logits, still[2].logits, sizeof still[0].logits) == 0);
  OPI_ASSERT(memcmp(uncut[0].logits, uncut[2].logits, sizeof uncut[0].logits) != 0);
  for (size_t i = 0; i < OPI_COUNT(cuts); ++i) {
    host_kit k;
    const opipe_plan_params params = params_of(&cuts[i], NULL);
    OPI_ASSERT_OK_FATAL(kit_plan_bound(&k, NULL, DROPOUT, ROWS, TOKENS,
                                       OPIPE_BIND_GRAPH_DROPOUT | OPIPE_BIND_DEFAULTS, &params),
                        &k.err);
    run_stream(&k, &s, 0, x);
    run_stream(&k, &s, OPIPE_SESSION_REFERENCE, y);
    OPI_ASSERT(memcmp(x, y, sizeof x) == 0);
    const double worst = apart(x, uncut);
    if (!(worst <= 1e-5)) {
      OPI_FAIL("%s, %u ranks, %u micro-batches, %u replicas: %g from the uncut model",
               cuts[i].schedule, cuts[i].n_ranks, cuts[i].n_microbatches, cuts[i].replicas, worst);
    }
    kit_close(&k);
  }
}

/* ---- memory ---- */

static opipe_status whole_life(opi_test_memory *memory) {
  const plan_case c = {"terapipe:slices=3", 2, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  const opipe_context_params context = {
      .struct_size = sizeof context, .log_level = OPIPE_LOG_ERROR, .allocator = &memory->allocator};
  host_kit k;
  opipe_status status = kit_plan_bound(&k, &context, DROPOUT, ROWS, TOKENS,
                                       OPIPE_BIND_GRAPH_DROPOUT | OPIPE_BIND_DEFAULTS, &params);
  if (status == OPIPE_OK)
    status = kit_open(&k, NULL);
  kit_close(&k);
  return status;
}

/* Some of all allocations, in a stride. */
static void test_failing_allocations(void) {
  uint64_t nth = 1, runs = 0;
  for (bool failed = true; failed; nth += 1 + nth / 16, ++runs) {
    opi_test_memory memory;
    opi_test_memory_init(&memory);
    memory.fail_at = nth;
    const opipe_status status = whole_life(&memory);
    failed = memory.n_failed != 0;
    if (failed ? status != OPIPE_E_NOMEM && status != OPIPE_OK : status != OPIPE_OK)
      OPI_FAIL("allocation %llu fails: status %d", (unsigned long long)nth, (int)status);
    OPI_ASSERT(opi_test_memory_end(&memory));
  }
  OPI_ASSERT(runs > 40);
}

OPI_TEST_MAIN("token slices of requests", OPI_TEST(test_every_rule), OPI_TEST(test_credits),
              OPI_TEST(test_failure_is_one_requests), OPI_TEST(test_refusals), OPI_TEST(test_masks),
              OPI_TEST(test_failing_allocations))
