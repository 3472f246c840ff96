/* SPDX-License-Identifier: Apache-2.0 */
/* A double of a session that computes passes: pages hold ids in place of keys and values, and a
 * row's logits follow from the ids that its table leads to, so a wrong table, copy, position or
 * order of passes gives other tokens. */
#ifndef TESTS_GENERATE_DOUBLE_H
#define TESTS_GENERATE_DOUBLE_H

#include <math.h>

#include "runtime/base/thread.h"
#include "runtime/generate/runner.h"
#include "tests/support/support.h"

enum { DOUBLE_VOCAB = 11, DOUBLE_ROWS = 32, DOUBLE_GROUPS = 4, DOUBLE_IDS = 4096 };

typedef struct double_pass {
  float logits[DOUBLE_ROWS][DOUBLE_VOCAB];
  bool fails;
  uint64_t ready_ns;
} double_pass;

typedef struct double_runner {
  opi_pass_runner runner;
  opi_batch_params batch;
  int64_t slots[DOUBLE_IDS]; /* [n_pages * page] */
  double_pass passes[DOUBLE_GROUPS];
  uint64_t n_begun, n_ended, n_finished; /* passes; ended: answered OK or failed */
  uint64_t pass_ns;                      /* from begin to end */
  uint64_t fails_at;                     /* this pass fails; 0: none */
  uint64_t refuses_at;                   /* this call of begin is refused; 0: none */
  uint64_t n_asked;                      /* calls of begin */
  uint32_t n_late;                       /* calls of end that answer PENDING for each pass */
  uint32_t n_full, n_tried;              /* n_full: calls of begin that do; only if driven */
  uint32_t n_waited, n_wrong, n_copies;
} double_runner;

/* Logits behind ids [n]. Mostly one id is likely; seldom they are no numbers. */
static inline void double_model(const int64_t *ids, uint32_t n, float *out) {
  uint64_t word = 7;
  for (uint32_t i = 0; i < n; ++i)
    word = (word ^ ((uint64_t)ids[i] + 1)) * UINT64_C(0x100000001b3);
  opi_test_random random = {word >> 7};
  opi_test_fill_f32(&random, out, DOUBLE_VOCAB, -1, 1);
  out[n * 3 % 5] += (word >> 20) % 5 == 0 ? 0 : 6;
  if ((word >> 30) % 211 == 0)
    out[4] = NAN;
}

static inline void double_row(double_runner *d, const opi_pass_rows *rows, uint32_t row,
                              float *out) {
  const opi_kv_params *p = &d->batch.pool;
  const int64_t *table = rows->table + rows->sequence[row] * rows->table_room;
  int64_t ids[DOUBLE_IDS];
  const uint32_t n = (uint32_t)rows->position[row] + 1;
  for (uint32_t i = 0; i < n; ++i)
    ids[i] = d->slots[table[i / p->page] * p->page + i % p->page];
  d->n_wrong += ids[n - 1] != rows->ids[row];
  double_model(ids, n, out);
}

static inline opipe_status double_begin(void *ctx, const opi_pass_rows *rows, opipe_error *err) {
  double_runner *d = ctx;
  const opi_kv_params *p = &d->batch.pool;
  if (d->n_tried++ < d->n_full)
    return OPIPE_PENDING;
  d->n_tried = 0;
  if (++d->n_asked == d->refuses_at)
    return opi_fail(err, OPIPE_E_DEVICE, "rank 0 is gone");
  if (d->n_begun - d->n_finished == d->batch.groups)
    return opi_fail(err, OPIPE_E_STATE, "%u passes are in flight", d->batch.groups);
  d->n_wrong += rows->number != ++d->n_begun || rows->n_rows == 0 || rows->n_rows > d->batch.rows;
  double_pass *pass = &d->passes[d->n_begun % DOUBLE_GROUPS];
  pass->fails = d->n_begun == d->fails_at;
  pass->ready_ns = d->pass_ns == 0 ? 0 : opi_clock_ns() + d->pass_ns;
  for (uint32_t i = 0; i < rows->n_copies; ++i) {
    const opi_page_copy *c = &rows->copies[i];
    memmove(d->slots + (size_t)c->to * p->page, d->slots + (size_t)c->from * p->page,
            c->n_tokens * sizeof *d->slots);
  }
  d->n_copies += rows->n_copies;
  for (uint32_t i = 0; i < rows->n_rows; ++i) {
    const int64_t at = rows->position[i];
    const int64_t page = rows->table[rows->sequence[i] * rows->table_room + at / p->page];
    d->n_wrong += page < 0 || page >= p->n_pages || rows->sequence[i] >= rows->n_sequences;
    d->slots[page * p->page + at % p->page] = rows->ids[i];
  }
  for (uint32_t i = 0; i < rows->n_wanted; ++i)
    double_row(d, rows, (uint32_t)rows->wanted[i], pass->logits[i]);
  d->n_waited = 0;
  return OPIPE_OK;
}

static inline opipe_status double_end(void *ctx, uint64_t timeout_ns, void **out_logits,
                                      opipe_error *err) {
  double_runner *d = ctx;
  const uint64_t ready = d->passes[(d->n_ended + 1) % DOUBLE_GROUPS].ready_ns;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  while (opi_clock_ns() < ready) {
    const struct timespec moment = {.tv_nsec = 200000};
    if (opi_clock_ns() >= until)
      return OPIPE_PENDING;
    (void)nanosleep(&moment, NULL);
  }
  if (d->n_waited++ < d->n_late)
    return OPIPE_PENDING;
  d->n_waited = 0;
  d->n_wrong += d->n_ended != d->n_finished || d->n_ended == d->n_begun;
  double_pass *pass = &d->passes[++d->n_ended % DOUBLE_GROUPS];
  if (pass->fails)
    return opi_fail(err, OPIPE_E_PEER, "rank 1 died");
  *out_logits = pass->logits;
  return OPIPE_OK;
}

static inline void double_finish(void *ctx) {
  double_runner *d = ctx;
  /* a pass that is dropped at the close has no end */
  d->n_ended += d->n_ended == d->n_finished;
  ++d->n_finished;
}

static inline void double_init(double_runner *d, const opi_batch_params *batch) {
  memset(d, 0, sizeof *d);
  d->batch = *batch;
  d->runner = (opi_pass_runner){d, double_begin, double_end, double_finish};
}

static inline opi_pass_facts double_facts(const double_runner *d) {
  return (opi_pass_facts){.batch = d->batch,
                          .n_vocab = DOUBLE_VOCAB,
                          .dtype = OPIPE_FLOAT,
                          .row_bytes = sizeof d->passes[0].logits[0]};
}

#endif /* TESTS_GENERATE_DOUBLE_H */
