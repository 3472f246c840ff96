/* SPDX-License-Identifier: Apache-2.0 */
/* The doorbell: an eventcount. Waiting spins on the count for a while, then sleeps in a futex on
 * it; or it is left to a function that the ringer calls.
 *
 * No wake-up is lost: a sleeper announces itself before it looks at the count for the last time, a
 * ringer moves the count before it looks for sleepers (both sequentially consistent), so at least
 * one of them sees the other; and the futex itself compares once more.
 */
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

enum { UNREADY_WAIT_NS = 20000, LOOKS_PER_CLOCK = 32, YIELD_AFTER_NS = 1000 };

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void futex_wake(_Atomic uint32_t *word) {
  (void)syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT32_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t for_ns) {
  const struct timespec t = {.tv_sec = (time_t)(for_ns / UINT64_C(1000000000)),
                             .tv_nsec = (long)(for_ns % UINT64_C(1000000000))};
  (void)syscall(SYS_futex, word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen,
                for_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

uint32_t local_doorbell(opipe_endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->bell.count, memory_order_acquire);
}

/* Takes what is armed, so that it is called once. */
static void call(doorbell *bell) {
  atomic_fetch_add(&bell->callers, 1);
  if (atomic_exchange(&bell->armed, 0) != 0) {
    bell->notify(bell->ctx);
    atomic_fetch_sub(&bell->sleepers, 1);
  }
  atomic_fetch_sub(&bell->callers, 1);
}

void local_ring(opipe_endpoint *endpoint) {
  doorbell *bell = &endpoint->bell;
  atomic_fetch_add(&bell->count, 1);
  if (atomic_load(&bell->sleepers) == 0)
    return;
  if (atomic_load(&bell->armed) != 0)
    call(bell);
  futex_wake(&bell->count);
}

void local_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  doorbell *bell = &endpoint->bell;
  if (atomic_exchange(&bell->armed, 0) != 0)
    atomic_fetch_sub(&bell->sleepers, 1);
  while (atomic_load(&bell->callers) != 0)
    relax();
  if (fn == NULL)
    return;
  bell->notify = fn;
  bell->ctx = ctx;
  atomic_store(&bell->armed, 1);
  atomic_fetch_add(&bell->sleepers, 1);
  const bool look_again = endpoint->unready; /* nobody rings for events of other devices */
  endpoint->unready = false;
  if (look_again || atomic_load(&bell->count) != seen || local_check(endpoint->world, NULL) < 0)
    call(bell);
}

void local_ring_rank(opipe_world *world, uint32_t rank) {
  opipe_endpoint *endpoint = atomic_load_explicit(&world->endpoints[rank], memory_order_acquire);
  if (endpoint != NULL)
    local_ring(endpoint);
}

/* True when the count left `seen` before the clock shows until_ns. */
static bool spin(opipe_endpoint *endpoint, uint32_t seen, uint64_t start_ns, uint64_t until_ns) {
  for (;;) {
    for (int i = 0; i < LOOKS_PER_CLOCK; ++i) {
      if (local_doorbell(endpoint) != seen)
        return true;
      relax();
    }
    const uint64_t now = now_ns();
    if (now >= until_ns)
      return false;
    if (now - start_ns > YIELD_AFTER_NS)
      (void)sched_yield();
  }
}

static void sleep_until(opipe_endpoint *endpoint, uint32_t seen, uint64_t until_ns) {
  doorbell *bell = &endpoint->bell;
  atomic_fetch_add(&bell->sleepers, 1);
  while (atomic_load(&bell->count) == seen) {
    const uint64_t now = until_ns == UINT64_MAX ? 0 : now_ns();
    if (now >= until_ns)
      break;
    futex_wait(&bell->count, seen, until_ns == UINT64_MAX ? UINT64_MAX : until_ns - now);
  }
  atomic_fetch_sub(&bell->sleepers, 1);
}

opipe_status local_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                        opipe_error *err) {
  /* An abort that came before `seen` was read rings no more. */
  const opipe_status before = local_check(endpoint->world, err);
  if (before < 0 || local_doorbell(endpoint) != seen)
    return before;
  const bool look_again = endpoint->unready;
  endpoint->unready = false;
  if (look_again && timeout_ns > UNREADY_WAIT_NS)
    timeout_ns = UNREADY_WAIT_NS;
  const uint64_t start = now_ns();
  const uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
  const uint64_t spin_until = start + (uint64_t)endpoint->spin_us * 1000;
  const bool rang = endpoint->spin_us != 0 &&
                    spin(endpoint, seen, start, spin_until < until ? spin_until : until);
  if (!rang)
    sleep_until(endpoint, seen, until);
  const opipe_status status = local_check(endpoint->world, err);
  if (status < 0 || look_again || local_doorbell(endpoint) != seen)
    return status;
  return opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing happened for %llu ns", endpoint->rank,
                    (unsigned long long)timeout_ns);
}
