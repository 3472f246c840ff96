/* SPDX-License-Identifier: Apache-2.0 */
/* Queues that were given up: their work may never end.
 *
 * The driver waits for all work of a context when memory is freed, a module unloaded, a library's
 * handle destroyed. So while a stream that was given up has work, nothing of its GPU is given back,
 * whatever opening it is of: it stays the driver's, and others are not held up by a peer that is
 * gone. Streams are asked each time: when the last has come to its end, things are given back
 * again, and what queues left here first.
 */
#include "share.h"

static pthread_mutex_t given_up_lock = PTHREAD_MUTEX_INITIALIZER; /* of all places' lists */

/* Is work of one under way? If not, what closed queues left is given back. Under the lock, within
 * an entry. */
static bool is_held(cuda_place *place) {
  const cuda_driver *driver = place->driver;
  const uint32_t n = place->n_given_up;
  uint32_t kept = 0;
  if (n > CUDA_GIVEN_UP)
    return true; /* more than are known */
  for (uint32_t i = 0; i < n; ++i) {
    if (driver->stream_query(place->given_up[i].stream) != CUDA_OK)
      return true;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const cuda_given_up *left = &place->given_up[i];
    if (!left->is_closed) {
      place->given_up[kept++] = *left;
      continue;
    }
    (void)driver->stream_destroy(left->stream);
    (void)driver->host_free(left->sums);
    if (left->bounce != 0)
      (void)driver->memory_free(left->bounce);
  }
  __atomic_store_n(&place->n_given_up, kept, __ATOMIC_RELEASE);
  return false;
}

void cuda_give_up(const opipe_queue *queue) {
  cuda_place *place = queue->device->place;
  (void)pthread_mutex_lock(&given_up_lock);
  const uint32_t n = place->n_given_up;
  if (n < CUDA_GIVEN_UP)
    place->given_up[n] = (cuda_given_up){.stream = queue->stream};
  __atomic_store_n(&place->n_given_up, n <= CUDA_GIVEN_UP ? n + 1 : n, __ATOMIC_RELEASE);
  (void)pthread_mutex_unlock(&given_up_lock);
}

bool cuda_abandon(opipe_queue *queue) {
  cuda_place *place = queue->device->place;
  uint32_t at = 0;
  (void)pthread_mutex_lock(&given_up_lock);
  const bool held = is_held(place);
  const uint32_t n = place->n_given_up < CUDA_GIVEN_UP ? place->n_given_up : CUDA_GIVEN_UP;
  while (at < n && place->given_up[at].stream != queue->stream)
    ++at;
  if (held && at < n) {
    place->given_up[at].sums = queue->sums;
    place->given_up[at].bounce = queue->bounce;
    place->given_up[at].is_closed = true;
  } else if (!held && at < n) {
    place->given_up[at] = place->given_up[n - 1];
    __atomic_store_n(&place->n_given_up, n - 1, __ATOMIC_RELEASE);
  }
  (void)pthread_mutex_unlock(&given_up_lock);
  return held;
}

bool cuda_may_give(const opipe_device *device) {
  cuda_place *place = device->place;
  if (cuda_check_owner(device->owner, "", NULL) < 0 || cuda_place_is_lost(place))
    return false;
  if (__atomic_load_n(&place->n_given_up, __ATOMIC_ACQUIRE) == 0)
    return true;
  (void)pthread_mutex_lock(&given_up_lock);
  const bool held = is_held(place);
  (void)pthread_mutex_unlock(&given_up_lock);
  return !held;
}
