/* SPDX-License-Identifier: Apache-2.0 */
/* Doorbells: in the shared memory of their ranks (machine/bell.c). A rank that waits without a
 * thread is told by who rings, where that is in this process, else by this world's helper.
 */
#include <unistd.h>

#include "shm.h"

enum { UNREADY_WAIT_NS = 20000 };

uint32_t shm_doorbell(opipe_endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->bell->count, memory_order_acquire);
}

/* Takes what is armed, so that it is called once. */
static void call(opipe_endpoint *endpoint) {
  atomic_fetch_add(&endpoint->callers, 1);
  if (atomic_exchange(&endpoint->armed, 0) != 0) {
    atomic_store(&endpoint->bell->armed, 0);
    endpoint->notify(endpoint->ctx);
  }
  atomic_fetch_sub(&endpoint->callers, 1);
}

void shm_call_if_rung(opipe_endpoint *endpoint) {
  if (atomic_load(&endpoint->armed) != 0 &&
      atomic_load(&endpoint->bell->count) != atomic_load(&endpoint->seen))
    call(endpoint);
}

void shm_ring(opipe_endpoint *endpoint) {
  machine_ring(endpoint->bell);
  if (atomic_load(&endpoint->armed) != 0)
    call(endpoint);
}

void shm_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  (void)atomic_exchange(&endpoint->armed, 0);
  atomic_store(&endpoint->bell->armed, 0);
  while (atomic_load(&endpoint->callers) != 0)
    machine_relax();
  if (fn == NULL)
    return;
  endpoint->notify = fn;
  endpoint->ctx = ctx;
  atomic_store(&endpoint->seen, seen);
  atomic_store(&endpoint->armed, 1);
  atomic_store(&endpoint->bell->armed, 1);
  (void)shm_go_on(endpoint, NULL);
  const bool look_again = endpoint->unready; /* nobody rings for events of devices */
  endpoint->unready = false;
  if (look_again || atomic_load(&endpoint->bell->count) != seen ||
      shm_check(endpoint->world, NULL) < 0)
    call(endpoint);
}

void shm_ring_rank(opipe_world *world, uint32_t rank) {
  static const uint64_t one = 1;
  shm_seat *seat = &world->seats[rank];
  opipe_endpoint *endpoint = atomic_load_explicit(&seat->endpoint, memory_order_acquire);
  machine_bell *bell = atomic_load_explicit(&seat->bell, memory_order_acquire);
  if (endpoint != NULL) {
    shm_ring(endpoint);
  } else if (bell != NULL) {
    machine_ring(bell);
    if (atomic_load(&bell->armed) != 0) {
      const ssize_t n = write(atomic_load(&seat->ring_fd), &one, sizeof one);
      (void)n; /* it rings already, or its process is gone */
    }
  }
}

static bool is_over(void *ctx) {
  return shm_check(ctx, NULL) < 0;
}

opipe_status shm_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                      opipe_error *err) {
  opipe_status status = shm_check(endpoint->world, err);
  if (status == OPIPE_OK && endpoint->late != NULL)
    status = shm_go_on(endpoint, err);
  if (status < 0 || shm_doorbell(endpoint) != seen)
    return status;
  const bool look_again = endpoint->unready;
  endpoint->unready = false;
  if (look_again && timeout_ns > UNREADY_WAIT_NS)
    timeout_ns = UNREADY_WAIT_NS;
  const uint64_t start = machine_now_ns();
  const uint64_t until = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
  const bool rang =
      machine_wait(endpoint->bell, seen, endpoint->spin_us, until, is_over, endpoint->world);
  status = shm_check(endpoint->world, err);
  if (status < 0 || look_again || rang)
    return status;
  return opipe_fail(err, OPIPE_E_TIMEOUT, "rank %u: nothing happened for %llu ns", endpoint->rank,
                    (unsigned long long)timeout_ns);
}
