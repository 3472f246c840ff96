/* SPDX-License-Identifier: Apache-2.0 */
/* Three streams, interleaved and in flight at once, beside the same requests with the host feeding
 * outputs back: bits, nearness to the whole prompt, kept tensors, bytes. */
#ifndef TESTS_RUNTIME_STREAMS_RUNS_H
#define TESTS_RUNTIME_STREAMS_RUNS_H

#include "tests/runtime/streams/kit.h"

enum { STREAMS = 3, STEPS = 5 };
/* A prompt and what follows, of each stream; the same lengths meet in different steps. */
static const int64_t LENGTHS[STREAMS][STEPS] = {{6, 1, 1, 1, 3}, {3, 4, 1, 1, 1}, {1, 1, 2, 3, 1}};

typedef struct run {
  call calls[STREAMS][STEPS];
  float kept[STREAMS][PAIRS][KEPT]; /* at the end */
} run;

static run fed, kept, whole;

static inline int64_t first_of(uint32_t stream, uint32_t step) {
  int64_t n = 0;
  for (uint32_t i = 0; i < step; ++i)
    n += LENGTHS[stream][i];
  return n;
}

/* The host has all between the requests. */
static inline void feed_back(host_kit *k, run *r) {
  int64_t ids[MOST];
  for (uint32_t i = 0; i < STREAMS; ++i) {
    const float(*past)[KEPT] = kit_nothing;
    kit_ids_of(i, ids);
    for (uint32_t s = 0; s < STEPS; ++s) {
      const int64_t at = first_of(i, s);
      OPI_ASSERT_OK(kit_step(k, &r->calls[i][s], NULL, ids + at, LENGTHS[i][s], past, at), &k->err);
      past = (const float(*)[KEPT])r->calls[i][s].present;
    }
    memcpy(r->kept[i], past, sizeof r->kept[i]);
  }
}

static inline void close_to_whole(host_kit *k, const run *r) {
  int64_t ids[MOST];
  for (uint32_t i = 0; i < STREAMS; ++i) {
    call *c = &whole.calls[i][0];
    const int64_t n = first_of(i, STEPS);
    double worst = 0, largest = 0;
    kit_ids_of(i, ids);
    OPI_ASSERT_OK(kit_step(k, c, NULL, ids, n, kit_nothing, 0), &k->err);
    for (int64_t e = 0; e < n * CLASSES; ++e) {
      uint32_t s = STEPS - 1;
      while (first_of(i, s) * CLASSES > e)
        --s;
      const float part = r->calls[i][s].logits[e - first_of(i, s) * CLASSES];
      worst = fmax(worst, fabs((double)part - (double)c->logits[e]));
      largest = fmax(largest, fabs((double)c->logits[e]));
    }
    OPI_ASSERT(largest > 0 && worst <= 1e-5 * largest);
  }
}

static inline void check_kept(host_kit *k, opipe_state *state, float (*out)[KEPT], int64_t n) {
  for (uint32_t p = 0; p < PAIRS; ++p) {
    opipe_state_info info = opipe_state_info_init();
    const uint64_t n_bytes = (uint64_t)(kit_heads * n * WIDTH) * sizeof(float);
    OPI_ASSERT_OK(k->api->state_get(state, p, &info, out[p], n_bytes, &k->err), &k->err);
    OPI_ASSERT(info.rank == 4 && info.shape[2] == n && info.n_bytes == n_bytes && info.flags == 0 &&
               info.capacity == kit_pairs[p].capacity &&
               strcmp(info.output, kit_pairs[p].output) == 0);
  }
}

/* All streams in turns, as many requests in flight as the session takes; a step behind the other of
 * its own stream, not waited for. */
static inline void run_streams(host_kit *k, opipe_state **states, run *r) {
  uint32_t n_waited = 0;
  for (uint32_t s = 0; s < STEPS; ++s) {
    for (uint32_t i = 0; i < STREAMS; ++i) {
      int64_t ids[MOST];
      opipe_status status = OPIPE_PENDING;
      kit_ids_of(i, ids);
      while (status == OPIPE_PENDING) {
        status = kit_call(k, &r->calls[i][s], states[i], ids + first_of(i, s), LENGTHS[i][s],
                          s == 0 ? kit_nothing : NULL, 0);
        if (status == OPIPE_PENDING && n_waited < s * STREAMS + i) {
          OPI_ASSERT_OK(kit_end(k, &r->calls[n_waited % STREAMS][n_waited / STREAMS]), &k->err);
          ++n_waited;
        }
      }
      OPI_ASSERT_OK_FATAL(status, &k->err);
    }
  }
  for (; n_waited < STEPS * STREAMS; ++n_waited)
    OPI_ASSERT_OK(kit_end(k, &r->calls[n_waited % STREAMS][n_waited / STREAMS]), &k->err);
  for (uint32_t i = 0; i < STREAMS; ++i)
    check_kept(k, states[i], r->kept[i], first_of(i, STEPS));
}

static inline void compare(const run *a, const run *b) {
  for (uint32_t i = 0; i < STREAMS; ++i) {
    const size_t n = (size_t)(kit_heads * first_of(i, STEPS) * WIDTH) * sizeof(float);
    for (uint32_t s = 0; s < STEPS; ++s) {
      OPI_ASSERT(memcmp(a->calls[i][s].logits, b->calls[i][s].logits,
                        (size_t)LENGTHS[i][s] * CLASSES * sizeof(float)) == 0);
    }
    for (uint32_t p = 0; p < PAIRS; ++p)
      OPI_ASSERT(memcmp(a->kept[i][p], b->kept[i][p], n) == 0);
  }
}

static inline uint64_t measured(host_kit *k, uint32_t rank) {
  opipe_memory_info info = opipe_memory_info_init();
  OPI_ASSERT_OK(k->api->session_memory(k->session, rank, &info, &k->err), &k->err);
  return info.state_bytes;
}

/* Predicted for three streams; measured with three; nothing once they are closed. n_kept: heads
 * that the members of a group keep, counted in each. */
static inline void check_bytes(host_kit *k, opipe_state **states, uint32_t n_ranks,
                               uint32_t n_kept) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opipe_memory_info info = opipe_memory_info_init();
    OPI_ASSERT_OK(k->api->plan_memory(k->plan, r, &info, &k->err), &k->err);
    OPI_ASSERT(measured(k, r) == info.state_bytes);
    sum += info.state_bytes;
  }
  OPI_ASSERT(sum == STREAMS * 2 * PAIRS * n_kept * MOST * WIDTH * sizeof(float));
  for (uint32_t i = 0; i < STREAMS; ++i)
    k->api->state_close(states[i]);
  for (uint32_t r = 0; r < n_ranks; ++r)
    OPI_ASSERT(measured(k, r) == 0);
}

static inline void check_streams(const plan_case *c, uint32_t flags) {
  const opipe_session_params open = {
      .struct_size = sizeof open, .flags = flags, .max_in_flight = 6, .spin_us = UINT32_MAX};
  opipe_state *states[STREAMS];
  host_kit k;
  memset(&fed, 0, sizeof fed);
  memset(&kept, 0, sizeof kept);
  OPI_ASSERT_OK_FATAL(kit_make_case(&k, c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, &open), &k.err);
  feed_back(&k, &fed);
  close_to_whole(&k, &fed);
  for (uint32_t i = 0; i < STREAMS; ++i)
    states[i] = kit_state(&k);
  for (uint32_t round = 0; round < 2; ++round) {
    run_streams(&k, states, &kept);
    compare(&fed, &kept);
    for (uint32_t i = 0; i < STREAMS; ++i)
      OPI_ASSERT_OK(k.api->state_reset(states[i], &k.err), &k.err);
  }
  check_bytes(&k, states, c->n_stages * kit_width(c) * (c->replicas > 1 ? c->replicas : 1),
              c->kept == 0 ? kit_heads : c->kept);
  kit_close(&k);
}

#endif /* TESTS_RUNTIME_STREAMS_RUNS_H */
