/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device that an opening of a GPU has beside it, for nodes that the GPU lacks, and what
 * those nodes report.
 *
 * It is opened with the GPU, with one thread unless told otherwise; its threads, and the bytes of
 * sections (fallback.c), are counted by the host. Texts of errors are kept by number, the last few
 * of the opening: what kernels hand around has no room for one.
 */
#include "fallback.h"

void cuda_inner_find(const opipe_host *host, cuda_inner_backend *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_backend_lookup *lookup =
      OPIPE_HAS(host, opipe_host, get_interface) && host->get_interface != NULL
          ? host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_ID)
          : NULL;
  if (lookup == NULL || !OPIPE_HAS(lookup, opipe_backend_lookup, count)) {
    (void)snprintf(out->why, sizeof out->why, "this host has no service '%s'",
                   OPIPE_BACKEND_LOOKUP_ID);
    return;
  }
  out->lookup = lookup;
  if (lookup->find(host->ctx, "cpu", &out->table, &out->self, &err) < 0) {
    out->table = NULL;
    (void)snprintf(out->why, sizeof out->why, "%.199s", err.message);
  }
}

static opipe_status count_threads(opipe_device *device, int64_t threads, opipe_error *err) {
  const cuda_inner_backend *backend = device->inner.backend;
  return backend->lookup->count(device->host->ctx, "cpu", 0, threads, 0, err);
}

static opipe_status open_device(opipe_device *device, opipe_error *err) {
  cuda_inner *inner = &device->inner;
  const cuda_inner_backend *backend = inner->backend;
  const uint32_t needed = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .threads = inner->threads};
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  CUDA_TRY(backend->table->device_query(backend->self, 0, &info, err));
  if ((info.flags & needed) != needed || info.alignment == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "backend 'cpu': flags 0x%x and alignment %u, sections need flags 0x%x",
                      info.flags, info.alignment, needed);
  }
  inner->alignment = info.alignment;
  CUDA_TRY(count_threads(device, inner->threads, err));
  const opipe_status status =
      backend->table->device_open(backend->self, &params, &inner->device, err);
  if (status < 0) {
    inner->device = NULL;
    (void)count_threads(device, -(int64_t)inner->threads, NULL);
  }
  return status;
}

opipe_status cuda_inner_open(opipe_instance *self, opipe_device *device, opipe_error *err) {
  cuda_inner *inner = &device->inner;
  opipe_error why = OPIPE_ERROR_INIT;
  inner->backend = &self->inner;
  if (inner->refused) {
    (void)snprintf(inner->why, sizeof inner->why, "fallback=none");
    return OPIPE_OK;
  }
  if (self->inner.table == NULL)
    (void)opipe_fail(&why, OPIPE_E_UNSUPPORTED, "%s", self->inner.why);
  else if (open_device(device, &why) >= 0)
    return OPIPE_OK;
  (void)snprintf(inner->why, sizeof inner->why, "%.239s", why.message);
  return inner->asked ? opipe_fail(err, why.status, "backend cuda: fallback=cpu: %s", why.message)
                      : OPIPE_OK;
}

void cuda_inner_close(opipe_device *device) {
  cuda_inner *inner = &device->inner;
  if (inner->device == NULL)
    return;
  inner->backend->table->device_close(inner->device);
  (void)count_threads(device, -(int64_t)inner->threads, NULL);
  inner->device = NULL;
}

uint64_t cuda_inner_note(cuda_inner *inner, opipe_status status, const opipe_error *why) {
  const uint64_t number = inner->n_texts++;
  inner->texts[number % CUDA_HOST_TEXTS] = *why;
  if (!opipe_late_is_data(status)) {
    opipe_late_add(&inner->failed, status, why);
    __atomic_store_n(&inner->has_failed, 1u, __ATOMIC_RELEASE);
  }
  return number;
}

opipe_status cuda_inner_answer(opipe_device *device, const char *node, uint64_t number,
                               opipe_error *err) {
  cuda_inner *inner = &device->inner;
  opipe_error text = OPIPE_ERROR_INIT;
  (void)pthread_mutex_lock(&inner->lock);
  const uint64_t since = inner->n_texts - number;
  const bool kept = since >= 1 && since <= CUDA_HOST_TEXTS;
  if (kept)
    text = inner->texts[number % CUDA_HOST_TEXTS];
  (void)pthread_mutex_unlock(&inner->lock);
  return kept ? opipe_fail(err, text.status, "on the CPU: %s", text.message)
              : opipe_fail(err, OPIPE_E_INVALID,
                           "on the CPU: node '%s', or one behind it, failed; %llu errors later its "
                           "text is gone (%d are kept)",
                           node, (unsigned long long)since - 1, CUDA_HOST_TEXTS);
}

opipe_status cuda_inner_failed(opipe_device *device, opipe_error *err) {
  cuda_inner *inner = &device->inner;
  if (__atomic_load_n(&inner->has_failed, __ATOMIC_ACQUIRE) == 0)
    return OPIPE_OK;
  (void)pthread_mutex_lock(&inner->lock);
  const opipe_status status = opipe_late_answer(&inner->failed, err);
  (void)pthread_mutex_unlock(&inner->lock);
  return status;
}
