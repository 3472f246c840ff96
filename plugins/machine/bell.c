/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell: an eventcount in shared memory. A sleeper announces itself before it looks at the
 * count for the last time, a ringer moves the count before it looks for sleepers (both sequentially
 * consistent), and the futex compares once more: no wake-up is lost.
 */
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

enum { LOOKS_PER_CLOCK = 32, YIELD_AFTER_NS = 1000 };

void machine_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

uint64_t machine_now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void machine_ring(machine_bell *bell) {
  atomic_fetch_add(&bell->count, 1);
  if (atomic_load(&bell->sleepers) != 0)
    (void)syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* True when the count left `seen` before the clock shows until_ns. */
static bool spin(machine_bell *bell, uint32_t seen, uint64_t start_ns, uint64_t until_ns) {
  for (;;) {
    for (int i = 0; i < LOOKS_PER_CLOCK; ++i) {
      if (atomic_load_explicit(&bell->count, memory_order_acquire) != seen)
        return true;
      machine_relax();
    }
    const uint64_t now = machine_now_ns();
    if (now >= until_ns)
      return false;
    if (now - start_ns > YIELD_AFTER_NS)
      (void)sched_yield();
  }
}

static bool sleep_until(machine_bell *bell, uint32_t seen, uint64_t until_ns,
                        bool (*look)(void *ctx), void *ctx) {
  bool moved = false, ended = false;
  atomic_fetch_add(&bell->sleepers, 1);
  while (!ended) {
    const uint64_t now = machine_now_ns();
    moved = atomic_load(&bell->count) != seen;
    ended = moved || now >= until_ns;
    if (ended)
      break;
    const uint64_t left = until_ns - now < MACHINE_LOOK_NS ? until_ns - now : MACHINE_LOOK_NS;
    const struct timespec t = {.tv_nsec = (long)left};
    (void)syscall(SYS_futex, &bell->count, FUTEX_WAIT, seen, &t, NULL, 0);
    ended = look != NULL && look(ctx);
    moved = atomic_load(&bell->count) != seen;
  }
  atomic_fetch_sub(&bell->sleepers, 1);
  return moved;
}

bool machine_wait(machine_bell *bell, uint32_t seen, uint32_t spin_us, uint64_t until_ns,
                  bool (*look)(void *ctx), void *ctx) {
  const uint64_t start = machine_now_ns(), spin_until = start + (uint64_t)spin_us * 1000;
  if (spin_us != 0 && spin(bell, seen, start, spin_until < until_ns ? spin_until : until_ns))
    return true;
  return sleep_until(bell, seen, until_ns, look, ctx);
}
