/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks that send each other messages of several sizes, and sum, and check all of it. */
#ifndef TESTS_TRANSPORT_SHM_PLAY_H
#define TESTS_TRANSPORT_SHM_PLAY_H

#include "tests/plugins/transport-shm/pair.h"

enum { MESSAGES = 200 };

static inline opipe_status exchange(end *e, uint32_t rank, uint64_t q) {
  const uint64_t n = 64 + q % 7 * 512;
  const opipe_region to = {e->slots, q % 2 * (BYTES / 2), BYTES / 2}, from = {e->own, 0, n};
  UNTIL(e, e->t->recv(e->in, q, &to, NULL, &e->err));
  UNTIL(e, e->t->reserve(e->out, q, &e->err));
  memset(opipe_host_at(&from), (int)(q + rank) % 251, n);
  UNTIL(e, e->t->send(e->out, q, &from, NULL, NULL, &e->err));
  UNTIL(e, e->t->test(e->out, q, &e->err));
  UNTIL(e, e->t->test(e->in, q, &e->err));
  const unsigned char *got = opipe_host_at(&to);
  for (uint64_t i = 0; i < n; ++i) {
    if (got[i] != (q + 1 - rank) % 251) {
      return opipe_fail(&e->err, OPIPE_E_INTERNAL, "message %llu is not whole",
                        (unsigned long long)q);
    }
  }
  return OPIPE_OK;
}

static inline opipe_status sum(end *e, uint32_t rank, uint64_t round) {
  const opipe_region all = {e->own, 0, SUMMED * sizeof(float)};
  float *values = opipe_host_at(&all);
  for (uint64_t i = 0; i < SUMMED; ++i)
    values[i] = (float)i * 0.1F + (float)rank;
  UNTIL(e, e->t->all_reduce(e->group, round, &all, SUMMED, OPIPE_FLOAT, NULL, NULL, &e->err));
  UNTIL(e, e->t->group_test(e->group, round, &e->err));
  for (uint64_t i = 0; i < SUMMED; ++i) {
    if (values[i] != (float)i * 0.1F + ((float)i * 0.1F + 1))
      return opipe_fail(&e->err, OPIPE_E_INTERNAL, "sum %llu is wrong", (unsigned long long)i);
  }
  return OPIPE_OK;
}

#define PATIENCE_NS UINT64_C(10000000000)

static inline opipe_status step(end *e, uint32_t rank, uint64_t n_messages) {
  opipe_status status = OPIPE_OK;
  for (uint64_t q = 0; q < n_messages && status == OPIPE_OK; ++q) {
    status = exchange(e, rank, q);
    if (status == OPIPE_OK && q % 10 == 0)
      status = sum(e, rank, q / 10);
  }
  return status;
}

static inline opipe_status play(uint32_t rank, note *notes, uint64_t n_messages) {
  end e = {.patience_ns = PATIENCE_NS};
  opipe_status status = open_end(&e, rank, notes);
  if (status == OPIPE_OK)
    status = await_ready(&e);
  if (status == OPIPE_OK)
    status = step(&e, rank, n_messages);
  if (status < 0 && status != OPIPE_E_PEER)
    (void)fprintf(stderr, "rank %u: %s\n", rank, e.err.message);
  if (status == OPIPE_OK)
    close_end(&e);
  return status;
}

#endif /* TESTS_TRANSPORT_SHM_PLAY_H */
