/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads that hand each other one word, and then a buffer. They wait as ranks do: they spin
 * for a short time, then yield. */
#include "runtime/base/between.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"

enum { ROUNDS = 2001, COPIES = 9, COPY_BYTES = 32 << 20, SPINS = 2000, LINE = 64 };

typedef struct table {
  _Alignas(64) atomic_uint turn; /* even: the first thread's */
  char *from, *to;
  double ns[ROUNDS];
} table;

static void wait_for(table *t, uint32_t turn) {
  uint32_t spins = 0;
  while (atomic_load_explicit(&t->turn, memory_order_acquire) != turn) {
    if (++spins > SPINS)
      (void)sched_yield();
  }
}

static void give(table *t, uint32_t turn) {
  atomic_store_explicit(&t->turn, turn, memory_order_release);
}

/* Answers every word, then fills the buffer anew for every copy. */
static void *answer(void *arg) {
  table *t = arg;
  uint32_t turn = 1;
  for (uint32_t i = 0; i < ROUNDS; ++i, turn += 2) {
    wait_for(t, turn);
    give(t, turn + 1);
  }
  for (uint32_t i = 0; i < COPIES; ++i, turn += 2) {
    wait_for(t, turn);
    memset(t->from, (int)i + 1, COPY_BYTES);
    give(t, turn + 1);
  }
  return NULL;
}

static int rising(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, uint32_t n) {
  qsort(values, n, sizeof *values, rising);
  return values[n / 2];
}

static void ask(table *t, opi_between *out) {
  uint32_t turn = 1;
  for (uint32_t i = 0; i < ROUNDS; ++i, turn += 2) {
    const uint64_t start = opi_clock_ns();
    give(t, turn);
    wait_for(t, turn + 1);
    t->ns[i] = (double)(opi_clock_ns() - start) / 2;
  }
  out->latency_ns = median(t->ns, ROUNDS);
  for (uint32_t i = 0; i < COPIES; ++i, turn += 2) {
    give(t, turn);
    wait_for(t, turn + 1);
    const uint64_t start = opi_clock_ns();
    memcpy(t->to, t->from, COPY_BYTES);
    t->ns[i] = (double)(opi_clock_ns() - start);
  }
  const double ns = median(t->ns, COPIES);
  out->bytes_per_ns = ns > 0 ? COPY_BYTES / ns : 0;
}

opipe_status opi_between_measure(const opipe_allocator *allocator, opi_between *out,
                                 opipe_error *err) {
  opi_thread other = {.running = false};
  opipe_status status = OPIPE_OK;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  char *room = opi_arena_alloc(&arena, sizeof(table) + LINE);
  char *buffers = opi_arena_alloc(&arena, 2 * (size_t)COPY_BYTES);
  if (room == NULL || buffers == NULL) {
    status = opi_fail_nomem(err, 2 * (uint64_t)COPY_BYTES, "a measurement");
  } else {
    table *t = (table *)(void *)(room + (LINE - (uintptr_t)room % LINE) % LINE);
    memset(t, 0, sizeof *t);
    memset(buffers, 0, 2 * (size_t)COPY_BYTES);
    t->from = buffers;
    t->to = buffers + COPY_BYTES;
    status = opi_thread_start(&other, "opipe-between", answer, t, err);
    if (status == OPIPE_OK)
      ask(t, out);
    opi_thread_join(&other);
  }
  opi_arena_release(&arena);
  return status;
}
