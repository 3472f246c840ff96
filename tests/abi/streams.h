/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of requests of several shapes, all in flight at once, through the host's table: what
 * tests of plans that cut requests share. */
#ifndef TESTS_ABI_STREAMS_H
#define TESTS_ABI_STREAMS_H

#include <math.h>
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

static inline opipe_status submit(host_kit *k, const stream *s, uint32_t i, int64_t *ids, answer *out,
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

/* credits: micro-batches at a time between the first stage and the last, written in by hand. */
static inline void read_again(host_kit *k, char credits) {
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

#endif /* TESTS_ABI_STREAMS_H */
