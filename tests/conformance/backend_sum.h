/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of several regions: a slot that a backend may lack. */
#ifndef CONFORMANCE_BACKEND_SUM_H
#define CONFORMANCE_BACKEND_SUM_H

#include "backend_shared.h"
#include "sum_numbers.h"

#if OPIPE_ABI_MINOR >= 5

enum { SUMMED = 5, SUM_VALUES = 1500, SUM_ROOM = (SUM_VALUES + 2) * 8 };

typedef struct sum_case {
  uint32_t dtype, n;
  uint32_t target; /* the source that it is written to; SUMMED: none of them */
  uint64_t first;  /* value of the regions' rooms at which they begin */
} sum_case;

/* All rooms as they are before, and as they must be behind it. */
static void make_images(const sum_case *c, unsigned char images[2][(SUMMED + 1) * SUM_ROOM]) {
  const uint64_t size = size_of_value(c->dtype);
  memset(images[0], 0xa5, (SUMMED + 1) * SUM_ROOM);
  for (uint32_t m = 0; m < c->n; ++m) {
    for (uint64_t i = 0; i < SUM_VALUES; ++i) {
      put_number(images[0] + m * SUM_ROOM + (c->first + i) * size, c->dtype,
                 number_of(c->dtype, m, 0, i));
    }
  }
  memcpy(images[1], images[0], (SUMMED + 1) * SUM_ROOM);
  for (uint64_t i = 0; i < SUM_VALUES; ++i) {
    put_number(images[1] + c->target * SUM_ROOM + (c->first + i) * size, c->dtype,
               number_sum(c->dtype, c->n, 0, i));
  }
}

static void check_sum_case(const subject *s, opipe_buffer *memory, const sum_case *c) {
  static unsigned char images[2][(SUMMED + 1) * SUM_ROOM], found[(SUMMED + 1) * SUM_ROOM];
  const opipe_region all = {memory, 0, sizeof found};
  const uint64_t size = size_of_value(c->dtype), n_bytes = SUM_VALUES * size;
  opipe_region src[SUMMED];
  const opipe_region dst = {memory, c->target * SUM_ROOM + c->first * size, n_bytes};
  make_images(c, images);
  for (uint32_t m = 0; m < c->n; ++m)
    src[m] = (opipe_region){memory, m * SUM_ROOM + c->first * size, n_bytes};
  conf_ok(s->t->write(s->queue, &all, images[0], &err), &err, "write");
  const uint64_t before = conf_allocations();
  conf_ok(s->t->sum(s->queue, c->dtype, &dst, src, c->n, &err), &err, "sum");
  conf_check(conf_allocations() == before, "sum allocates");
  memset(src, 0, sizeof src); /* it was copied */
  conf_ok(s->t->read(s->queue, found, &all, &err), &err, "read");
  finish(s);
  conf_check(memcmp(found, images[1], sizeof found) == 0,
             "the sum of %u regions of %s to %u is not that of rising order, rounded once, or "
             "something else was written",
             c->n, opipe_dtype_row_of(c->dtype)->name, c->target);
}

static void check_refused_sum(const subject *s, opipe_buffer *memory) {
  const opipe_region dst = {memory, 0, 64}, src = {memory, 128, 64};
  conf_error(s->t->sum(s->queue, OPIPE_INT64, &dst, &src, 1, &err), OPIPE_E_UNSUPPORTED, &err,
             "a sum of int64");
}

static void check_sum(const subject *s) {
  static const uint32_t dtypes[] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16};
  opipe_buffer *memory = NULL;
  conf_case("sums of regions");
  if (!HAS_SLOT(s, sum)) {
    conf_skip("the backend adds no regions");
    return;
  }
  if (!conf_made(s->t->buffer_alloc(s->device, (SUMMED + 1) * SUM_ROOM, OPIPE_BUFFER_STAGING,
                                    &memory, &err),
                 &memory, &err, "buffer_alloc"))
    return;
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
    const sum_case cases[] = {{dtypes[i], 3, SUMMED, 0},
                              {dtypes[i], 3, 0, 1},
                              {dtypes[i], 3, 2, 1},
                              {dtypes[i], 5, 3, 0},
                              {dtypes[i], 1, SUMMED, 2}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k)
      check_sum_case(s, memory, &cases[k]);
  }
  check_refused_sum(s, memory);
  s->t->buffer_free(memory);
}
#else
static void check_sum(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_SUM_H */
