/* SPDX-License-Identifier: Apache-2.0 */
/* Queues, events and the errors that come late.
 *
 *   run    a kernel reports bad data to the run's block; the run's last launch hands that on to
 *          queue->late, unless something is there already
 *   record event->taken = queue->late, and that is cleared: by a kernel, in the queue's order
 *   poll   the driver's event, then event->taken
 *
 * So a report is told by the first event behind its run, and stays with it. A device error needs no
 * bookkeeping: after one the driver answers every call with it.
 */
#include <time.h>

#include "share.h"

/* Pinned: sums of squares need a place that no region of the caller's gives. */
static opipe_status take_sums(opipe_queue *queue, opipe_error *err) {
  void *data = NULL;
  CUDA_TRY(cuda_result(
      queue->device->place,
      queue->device->place->driver->host_alloc(&data, CUDA_SUMS_ROOM * sizeof(double),
                                               CUDA_HOST_PORTABLE | CUDA_HOST_DEVICEMAP),
      "pinned memory", err));
  queue->sums = data;
  return OPIPE_OK;
}

opipe_status cuda_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err) {
  const cuda_driver *driver = device->place->driver;
  CUDA_TRY(cuda_enter(device, "queue_open", err));
  opipe_queue *queue =
      opipe_zeroed(device->host, "queue", sizeof *queue, _Alignof(opipe_queue), err);
  opipe_status status = queue == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status >= 0) {
    queue->device = device;
    queue->late = cuda_word_take(device, err);
    status = queue->late == NULL ? OPIPE_E_NOMEM : take_sums(queue, err);
  }
  if (status >= 0) {
    status =
        cuda_result(device->place, driver->stream_create(&queue->stream, CUDA_STREAM_NON_BLOCKING),
                    "cuStreamCreate", err);
  }
  if (status < 0 && queue != NULL) {
    if (queue->sums != NULL)
      (void)driver->host_free(queue->sums);
    cuda_word_give(device, queue->late);
    opipe_free(device->host, queue, sizeof *queue, _Alignof(opipe_queue));
  }
  cuda_leave(device);
  if (status < 0)
    return status;
  (void)pthread_mutex_lock(&device->lock);
  queue->next = device->queues;
  device->queues = queue;
  (void)pthread_mutex_unlock(&device->lock);
  *out_queue = queue;
  return OPIPE_OK;
}

opipe_status cuda_queues_settle(opipe_device *device, const char *what, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&device->lock);
  for (const opipe_queue *queue = device->queues; queue != NULL && status >= 0;
       queue = queue->next) {
    if (__atomic_load_n(&queue->aborted, __ATOMIC_ACQUIRE) != 0)
      continue;
    status =
        cuda_result(device->place, device->place->driver->stream_sync(queue->stream), what, err);
  }
  (void)pthread_mutex_unlock(&device->lock);
  return status;
}

static void unlist(opipe_queue *queue) {
  opipe_device *device = queue->device;
  opipe_queue **at = &device->queues;
  (void)pthread_mutex_lock(&device->lock);
  while (*at != queue)
    at = &(*at)->next;
  *at = queue->next;
  queue->next = device->closed;
  device->closed = queue;
  (void)pthread_mutex_unlock(&device->lock);
}

void cuda_queues_free(opipe_device *device) {
  while (device->closed != NULL) {
    opipe_queue *queue = device->closed;
    device->closed = queue->next;
    opipe_free(device->host, queue, sizeof *queue, _Alignof(opipe_queue));
  }
}

/* Within an entry. */
static void finish(opipe_queue *queue) {
  cuda_place *place = queue->device->place;
  (void)cuda_result(place, place->driver->stream_sync(queue->stream), "queue_close", NULL);
  (void)place->driver->stream_destroy(queue->stream);
  if (!cuda_may_give(queue->device))
    return;
  (void)place->driver->host_free(queue->sums);
  if (queue->bounce != 0)
    (void)place->driver->memory_free(queue->bounce);
}

void cuda_queue_close(opipe_queue *queue) {
  if (queue == NULL)
    return;
  opipe_device *device = queue->device;
  bool abandoned = false;
  if (queue->imported) {
    opipe_free(device->host, queue, sizeof *queue, _Alignof(opipe_queue));
    return;
  }
  unlist(queue);
  if (cuda_enter(device, "queue_close", NULL) >= 0) {
    abandoned = queue->aborted != 0 && cuda_abandon(queue);
    if (!abandoned)
      finish(queue);
    cuda_leave(device);
  }
  if (!abandoned)
    cuda_word_give(device, queue->late);
}

opipe_status cuda_event_make(opipe_device *device, unsigned flags, opipe_event **out_event,
                             opipe_error *err) {
  const cuda_driver *driver = device->place->driver;
  CUDA_TRY(cuda_enter(device, "event_create", err));
  opipe_event *event =
      opipe_zeroed(device->host, "event", sizeof *event, _Alignof(opipe_event), err);
  opipe_status status = event == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status >= 0) {
    event->device = device;
    event->timed = flags == 0;
    event->taken = cuda_word_take(device, err);
    status = event->taken == NULL
                 ? OPIPE_E_NOMEM
                 : cuda_result(device->place, driver->event_create(&event->event, flags),
                               "cuEventCreate", err);
  }
  if (status < 0 && event != NULL) {
    cuda_word_give(device, event->taken);
    opipe_free(device->host, event, sizeof *event, _Alignof(opipe_event));
  }
  cuda_leave(device);
  if (status >= 0)
    *out_event = event;
  return status;
}

opipe_status cuda_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err) {
  return cuda_event_make(device, CUDA_EVENT_DISABLE_TIMING, out_event, err);
}

opipe_status cuda_event_create_timed(opipe_device *device, opipe_event **out_event,
                                     opipe_error *err) {
  return cuda_event_make(device, 0, out_event, err);
}

/* A record that is on its way may still write the event's word. False: it may never come, its queue
 * was given up. */
static bool wait_for_record(const opipe_event *event) {
  const cuda_driver *driver = event->device->place->driver;
  const struct timespec pause = {0, 20000};
  while (event->took && driver->event_query(event->event) == CUDA_NOT_READY) {
    if (__atomic_load_n(&event->queue->aborted, __ATOMIC_ACQUIRE) != 0)
      return false;
    (void)nanosleep(&pause, NULL);
  }
  return true;
}

void cuda_event_destroy(opipe_event *event) {
  if (event == NULL)
    return;
  opipe_device *device = event->device;
  bool is_over = true;
  if (!event->imported && cuda_enter(device, "event_destroy", NULL) >= 0) {
    is_over = wait_for_record(event);
    (void)device->place->driver->event_destroy(event->event); /* once it has come */
    cuda_leave(device);
  }
  if (is_over)
    cuda_word_give(device, event->taken);
  opipe_free(device->host, event, sizeof *event, _Alignof(opipe_event));
}

/* event->taken = queue->late; queue->late = 0. Launched where a run may have reported, or the event
 * still holds what it took before. */
static opipe_status take_reports(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  const cuda_take_args args = {.to = event->taken, .from = queue->late};
  cuda_launch launch;
  CUfunction kernel = NULL;
  if (!queue->reports && !event->took)
    return OPIPE_OK;
  if (!cuda_plan_take(&args, &launch))
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel takes reports over");
  CUDA_TRY(cuda_find_kernel(queue->device, &launch, &kernel, err));
  CUDA_TRY(
      cuda_launch_on(queue->device, kernel, &launch, launch.block_args.args, queue->stream, err));
  event->took = true;
  queue->reports = false;
  return OPIPE_OK;
}

opipe_status cuda_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  opipe_device *device = queue->device;
  if (event->device != device)
    return opipe_fail(err, OPIPE_E_INVALID, "event_record: the event is of another opening");
  if (event->imported || event->opened) {
    return opipe_fail(err, OPIPE_E_STATE, "event_record: the event was %s",
                      event->opened ? "opened, it is another process's" : "imported");
  }
  if (queue->imported && event->took) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "event_record: on an imported queue, of an event that holds what a run told");
  }
  CUDA_TRY(cuda_enter_stream(queue, "event_record", err));
  opipe_status status = take_reports(queue, event, err);
  if (status >= 0) {
    status =
        cuda_result(device->place, device->place->driver->event_record(event->event, queue->stream),
                    "event_record", err);
  }
  if (status >= 0) {
    event->queue = queue->imported ? NULL : queue;
    event->n_runs = queue->n_runs;
  }
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  opipe_device *device = queue->device;
  CUDA_TRY(cuda_enter_stream(queue, "event_wait", err));
  const opipe_status status =
      cuda_result(device->place, device->place->driver->stream_wait(queue->stream, event->event, 0),
                  "event_wait", err);
  return cuda_leave_queue(queue, status, err);
}

static opipe_status answer_report(const opipe_event *event, opipe_error *err) {
  char name[200];
  const volatile cuda_status *report = event->taken;
  const uint32_t code = report->code;
  const long long value = (long long)report->value, limit = (long long)report->limit;
  if (code == CUDA_STATUS_OK)
    return OPIPE_OK;
  cuda_names_text(&event->device->names, report->node, name, sizeof name);
  switch (code) {
    case CUDA_STATUS_INDEX:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': index %lld is outside [%lld, %lld)", name,
                        value, -limit, limit);
    case CUDA_STATUS_FINITE:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': element %lld is NaN or infinite", name,
                        value);
    case CUDA_STATUS_LABEL:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': label %lld is outside [0, %lld)", name,
                        value, limit);
    case CUDA_STATUS_POSITION:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': position %lld is outside [0, %lld)", name,
                        value, limit);
    case CUDA_STATUS_HOST:
      return cuda_inner_answer(event->device, name, (uint64_t)value, err);
    case CUDA_STATUS_SEQUENCE:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': sequence %lld is outside [0, %lld)", name,
                        value, limit);
    case CUDA_STATUS_PAGE:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': page %lld is outside [0, %lld)", name,
                        value, limit);
    case CUDA_STATUS_COPY:
      return opipe_fail(err, OPIPE_E_INVALID,
                        "node '%s': %lld tokens of a page are to be copied, it has %lld", name,
                        value, limit);
    case CUDA_STATUS_DIVIDE:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': an integer is divided by 0", name);
    case CUDA_STATUS_LENGTH:
      return opipe_fail(err, OPIPE_E_INVALID, "node '%s': a row has %lld steps, the layer %lld",
                        name, value, limit);
    default:
      return opipe_fail(err, OPIPE_E_INTERNAL,
                        "node '%s': red zone overwritten at byte %lld of %lld", name, value, limit);
  }
}

/* Within an entry. */
static opipe_status poll(opipe_event *event, opipe_error *err) {
  cuda_place *place = event->device->place;
  opipe_queue *queue = event->queue;
  char what[96];
  const CUresult result = place->driver->event_query(event->event);
  if (result == CUDA_NOT_READY)
    return OPIPE_PENDING;
  if (result == CUDA_OK) {
    if (queue == NULL)
      return OPIPE_OK;
    if (event->n_runs > __atomic_load_n(&queue->n_done, __ATOMIC_RELAXED))
      __atomic_store_n(&queue->n_done, event->n_runs, __ATOMIC_RELAXED);
    CUDA_TRY(cuda_inner_failed(event->device, err));
    return event->took ? answer_report(event, err) : OPIPE_OK;
  }
  cuda_name_run(queue, what, sizeof what);
  return cuda_result(place, result, what, err);
}

opipe_status cuda_event_poll(opipe_event *event, opipe_error *err) {
  CUDA_TRY(cuda_enter(event->device, "event_poll", err));
  const opipe_status status = poll(event, err);
  cuda_leave(event->device);
  return status;
}

opipe_status cuda_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  const uint64_t spin_ns =
      100000; /* a nap takes longer than it says, by the thread's timer slack */
  const opipe_host *host = event->device->host;
  const struct timespec pause = {0, 20000};
  const uint64_t since = host->now_ns(host->ctx);
  opipe_status status = OPIPE_PENDING;
  CUDA_TRY(cuda_enter(event->device, "event_sync", err));
  while ((status = poll(event, err)) == OPIPE_PENDING) {
    const uint64_t waited_ns = host->now_ns(host->ctx) - since;
    if (timeout_ns != UINT64_MAX && waited_ns >= timeout_ns)
      break;
    if (waited_ns >= spin_ns)
      (void)nanosleep(&pause, NULL);
  }
  cuda_leave(event->device);
  return status == OPIPE_PENDING
             ? opipe_fail(err, OPIPE_E_TIMEOUT, "event_sync: not complete after %llu ns",
                          (unsigned long long)timeout_ns)
             : status;
}

/* ---- data ---- */

opipe_status cuda_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                        opipe_error *err) {
  opipe_device *device = queue->device;
  CUdeviceptr to = 0;
  CUDA_TRY(cuda_region(device, dst, "write", &to, err));
  if (dst->n_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, "write", err));
  const opipe_status status = cuda_result(
      device->place, device->place->driver->write(to, src, (size_t)dst->n_bytes, queue->stream),
      "write", err);
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_read(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err) {
  opipe_device *device = queue->device;
  CUdeviceptr from = 0;
  CUDA_TRY(cuda_region(device, src, "read", &from, err));
  if (src->n_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, "read", err));
  const opipe_status status = cuda_result(
      device->place, device->place->driver->read(dst, from, (size_t)src->n_bytes, queue->stream),
      "read", err);
  return cuda_leave_queue(queue, status, err);
}

/* Between two GPUs. */
static opipe_status copy_to_peer(opipe_queue *queue, const opipe_buffer *dst, CUdeviceptr to,
                                 const opipe_buffer *src, CUdeviceptr from, uint64_t n_bytes,
                                 opipe_error *err) {
  cuda_place *place = queue->device->place;
  return cuda_result(place,
                     place->driver->copy_peer(to, dst->peer != NULL ? dst->peer : place->context,
                                              from, src->peer != NULL ? src->peer : place->context,
                                              (size_t)n_bytes, queue->stream),
                     "copy between GPUs", err);
}

static opipe_status copy_bytes(opipe_queue *queue, CUdeviceptr to, CUdeviceptr from,
                               uint64_t n_bytes, opipe_error *err) {
  cuda_place *place = queue->device->place;
  return cuda_result(place, place->driver->copy(to, from, (size_t)n_bytes, queue->stream), "copy",
                     err);
}

/* Where the two are so close that pieces which do not overlap would be many, they go through memory
 * of the queue's own, which it then keeps. It is none of the opening's: not counted. */
static void take_bounce(opipe_queue *queue, uint64_t n_bytes, uint64_t distance) {
  enum { PIECES = 16 };
  if (queue->bounce == 0 && distance < CUDA_BOUNCE && n_bytes / distance >= PIECES &&
      queue->device->place->driver->memory_alloc(&queue->bounce, CUDA_BOUNCE) != CUDA_OK)
    queue->bounce = 0;
}

/* Pieces no longer than the distance of the two do not overlap, nor do those that go through other
 * memory; in the order that reads each byte before it is written over. */
static opipe_status copy_overlapping(opipe_queue *queue, CUdeviceptr to, CUdeviceptr from,
                                     uint64_t n_bytes, opipe_error *err) {
  const bool up = to > from;
  const uint64_t distance = up ? to - from : from - to;
  opipe_status status = OPIPE_OK;
  if (distance == 0)
    return OPIPE_OK;
  take_bounce(queue, n_bytes, distance);
  const bool bounces = queue->bounce != 0 && distance < n_bytes && distance < CUDA_BOUNCE;
  const uint64_t most = bounces ? (uint64_t)CUDA_BOUNCE : distance;
  const uint64_t piece = most < n_bytes ? most : n_bytes;
  for (uint64_t done = 0; done < n_bytes && status >= 0; done += piece) {
    const uint64_t n = n_bytes - done < piece ? n_bytes - done : piece;
    const uint64_t at = up ? n_bytes - done - n : done;
    if (bounces)
      status = copy_bytes(queue, queue->bounce, from + at, n, err);
    if (status >= 0)
      status = copy_bytes(queue, to + at, bounces ? queue->bounce : from + at, n, err);
  }
  return status;
}

opipe_status cuda_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                       opipe_error *err) {
  opipe_device *device = queue->device;
  CUdeviceptr to = 0, from = 0;
  if (dst->n_bytes != src->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "copy: %llu bytes to %llu",
                      (unsigned long long)src->n_bytes, (unsigned long long)dst->n_bytes);
  }
  CUDA_TRY(cuda_region(device, dst, "copy: to", &to, err));
  CUDA_TRY(cuda_region(device, src, "copy: from", &from, err));
  if (dst->n_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, "copy", err));
  const opipe_status status =
      dst->buffer->peer != src->buffer->peer
          ? copy_to_peer(queue, dst->buffer, to, src->buffer, from, dst->n_bytes, err)
          : copy_overlapping(queue, to, from, dst->n_bytes, err);
  return cuda_leave_queue(queue, status, err);
}
