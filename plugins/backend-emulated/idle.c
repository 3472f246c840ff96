/* SPDX-License-Identifier: Apache-2.0 */
/* Does queued work use what its owner frees, writes or reads? It must not, and on a real device
 * nobody would notice until results are wrong: here it is logged, and waited for.
 */
#include "emulated.h"

static bool is_master(const opipe_params *params, const opipe_buffer *inner) {
  for (uint32_t i = 0; i < params->n; ++i) {
    if (params->masters[i].inner == inner)
      return true;
  }
  return false;
}

static bool is_among(const opipe_region *regions, size_t n, const target *object) {
  for (size_t i = 0; i < n; ++i) {
    const opipe_buffer *inner = regions[i].buffer;
    if (inner != NULL &&
        (inner == object->buffer || (object->params != NULL && is_master(object->params, inner))))
      return true;
  }
  return false;
}

static bool uses(const work *w, const target *object) {
  const opipe_params *set = object->params;
  if (object->binding != NULL)
    return w->binding == object->binding;
  if (set != NULL && w->binding != NULL)
    return w->binding->params == set || w->binding->gradients == set;
  if (set != NULL && w->params == set)
    return true;
  return is_among(w->regions, sizeof w->regions / sizeof w->regions[0], object) ||
         is_among(w->sources, w->n_sources, object);
}

/* Behind the last operation of the queue that uses it; 0: none does. */
static uint64_t end_of_use(const opipe_queue *queue, const target *object) {
  const uint32_t most = queue->device->options.queued_most;
  for (uint64_t n = queue->n_queued; n > queue->n_done; --n) {
    if (uses(&queue->ring[(n - 1) % most], object))
      return n;
  }
  return 0;
}

static void tell(const opipe_device *device, const char *call) {
  const opipe_host *host = device->self->host;
  char text[120];
  (void)snprintf(
      text, sizeof text,
      "emulated device %u: %s of an object that queued work uses; the work is waited for",
      device->index, call);
  host->log(host->ctx, OPIPE_LOG_ERROR, __FILE__, __LINE__, text);
}

void emudev_expect_idle(opipe_device *device, const target *object, const char *call) {
  pthread_mutex_t *lock = &device->self->lock;
  bool in_use = false;
  if (!device->options.async)
    return;
  (void)pthread_mutex_lock(lock);
  for (opipe_queue *queue = device->queues; queue != NULL; queue = queue->next) {
    const uint64_t end = end_of_use(queue, object);
    if (end == 0)
      continue;
    in_use = true;
    ++queue->n_hurries;
    (void)pthread_cond_signal(&queue->posted);
    while (queue->n_done < end)
      (void)pthread_cond_wait(&queue->moved, lock);
    --queue->n_hurries;
  }
  (void)pthread_mutex_unlock(lock);
  if (in_use)
    tell(device, call);
}
