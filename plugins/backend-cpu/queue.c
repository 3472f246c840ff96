/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events of a synchronous device: work runs on the caller's thread and its team, and is
 * done when the call returns. So an event has nothing to wait for, and errors come at once.
 */
#include "cpu.h"

opipe_status cpu_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err) {
  opipe_queue *queue = cpu_acquire(device->host, sizeof *queue, "queue", err);
  if (queue == NULL)
    return OPIPE_E_NOMEM;
  queue->device = device;
  *out_queue = queue;
  return OPIPE_OK;
}

void cpu_queue_close(opipe_queue *queue) {
  if (queue != NULL)
    cpu_release(queue->device->host, queue, sizeof *queue);
}

opipe_status cpu_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err) {
  opipe_event *event = cpu_acquire(device->host, sizeof *event, "event", err);
  if (event == NULL)
    return OPIPE_E_NOMEM;
  event->device = device;
  *out_event = event;
  return OPIPE_OK;
}

void cpu_event_destroy(opipe_event *event) {
  if (event != NULL)
    cpu_release(event->device->host, event, sizeof *event);
}

opipe_status cpu_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  (void)queue;
  (void)err;
  opipe_sync_event_record(&event->done);
  return OPIPE_OK;
}

opipe_status cpu_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  (void)queue;
  (void)err;
  return opipe_sync_event_poll(&event->done);
}

opipe_status cpu_event_poll(opipe_event *event, opipe_error *err) {
  (void)err;
  return opipe_sync_event_poll(&event->done);
}

opipe_status cpu_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  (void)timeout_ns;
  (void)err;
  return opipe_sync_event_poll(&event->done);
}

opipe_status cpu_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                       opipe_error *err) {
  void *to = NULL;
  (void)queue;
  const opipe_status status = cpu_region_data(dst, "write: destination", &to, err);
  if (status >= 0 && dst->n_bytes > 0)
    memcpy(to, src, (size_t)dst->n_bytes);
  return status;
}

opipe_status cpu_read(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err) {
  void *from = NULL;
  (void)queue;
  const opipe_status status = cpu_region_data(src, "read: source", &from, err);
  if (status >= 0 && src->n_bytes > 0)
    memcpy(dst, from, (size_t)src->n_bytes);
  return status;
}

opipe_status cpu_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err) {
  void *to = NULL;
  void *from = NULL;
  (void)queue;
  opipe_status status = cpu_region_data(dst, "copy: destination", &to, err);
  if (status < 0)
    return status;
  status = cpu_region_data(src, "copy: source", &from, err);
  if (status < 0)
    return status;
  if (dst->n_bytes != src->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "copy: destination has %llu bytes, source %llu",
                      (unsigned long long)dst->n_bytes, (unsigned long long)src->n_bytes);
  }
  if (src->n_bytes > 0)
    memmove(to, from, (size_t)src->n_bytes);
  return OPIPE_OK;
}
