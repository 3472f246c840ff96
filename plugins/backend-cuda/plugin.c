/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin's descriptor and the backend's table. It opens where a driver and the libraries are;
 * elsewhere it is refused with what is missing. */
#include <unistd.h>

#include "cuda.h"

const opipe_backend cuda_backend_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_backend, event_open),
    .device_count = cuda_device_count,
    .device_query = cuda_device_query,
    .device_open = cuda_device_open,
    .device_close = cuda_device_close,
    .device_usage = cuda_device_usage,
    .buffer_alloc = cuda_buffer_alloc,
    .buffer_free = cuda_buffer_free,
    .buffer_host = cuda_buffer_host,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_poll = cuda_event_poll,
    .event_sync = cuda_event_sync,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .support = cuda_support,
    .compile = cuda_compile,
    .program_free = cuda_program_free,
    .program_info = cuda_program_info,
    .program_params = cuda_program_params,
    .params_create = cuda_params_create,
    .params_free = cuda_params_free,
    .params_prepare = cuda_params_prepare,
    .params_clone = cuda_params_clone,
    .params_write = cuda_params_write,
    .params_read = cuda_params_read,
    .params_commit = cuda_params_commit,
    .bind = cuda_bind,
    .binding_free = cuda_binding_free,
    .run = cuda_run,
    .params_create_owned = cuda_params_create_owned,
    .gradients_create = cuda_gradients_create,
    .program_gradients = cuda_program_gradients,
    .params_master = cuda_params_master,
    .gradients_fold = cuda_gradients_fold,
    .params_refresh = cuda_params_refresh,
    .params_export = cuda_params_export,
    .params_import = cuda_params_import,
    .fill_zero = cuda_fill_zero,
    .add = cuda_add,
    .sum_squares = cuda_sum_squares,
    .update = cuda_update,
    .native = cuda_native,
    .event_notify = cuda_event_notify,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .buffer_import = cuda_buffer_import,
    .event_import = cuda_event_import,
    .queue_abort = cuda_queue_abort,
    .queue_import = cuda_queue_import,
    .event_signal = cuda_event_signal,
    .update_many = cuda_update_many,
    .sum_squares_many = cuda_sum_squares_many,
    .kernels_fit = cuda_kernels_fit,
    .kernels_use = cuda_kernels_use,
    .program_kernels = cuda_program_kernels,
    .kernel_tune = cuda_kernel_tune,
    .event_create_timed = cuda_event_create_timed,
    .event_elapsed = cuda_event_elapsed,
    .sum = cuda_sum,
    .program_places = cuda_program_places,
    .run_part = cuda_run_part,
    .device_reach = cuda_device_reach,
    .buffer_share = cuda_buffer_share,
    .buffer_unshare = cuda_buffer_unshare,
    .buffer_open = cuda_buffer_open,
    .event_create_shared = cuda_event_create_shared,
    .event_open = cuda_event_open,
};

/* Lines that plugins --why shows when all is well. */
static const char *detail(opipe_instance *self, uint32_t index) {
  return index < CUDA_DETAILS ? self->details[index] : NULL;
}

static void note_details(opipe_instance *self) {
  const cuda_libraries *l = self->libraries;
  char(*lines)[CUDA_DETAIL_ROOM] = self->details;
  (void)snprintf(lines[0], CUDA_DETAIL_ROOM, "driver of CUDA %d.%d (%d.%d is the least): %s",
                 l->driver_version / 1000, l->driver_version % 1000 / 10, CUDA_LEAST_DRIVER / 1000,
                 CUDA_LEAST_DRIVER % 1000 / 10, l->driver_path);
  (void)snprintf(lines[1], CUDA_DETAIL_ROOM, "cublasLt %llu.%llu.%llu (%d.%d is the least): %s",
                 (unsigned long long)l->products_version / 10000,
                 (unsigned long long)l->products_version % 10000 / 100,
                 (unsigned long long)l->products_version % 100, CUDA_LEAST_PRODUCTS / 10000,
                 CUDA_LEAST_PRODUCTS % 10000 / 100, l->products_path);
  if (l->has_dnn) {
    (void)snprintf(lines[2], CUDA_DETAIL_ROOM, "cuDNN %llu.%llu.%llu (%d.%d is the least): %s",
                   (unsigned long long)l->dnn_version / 10000,
                   (unsigned long long)l->dnn_version % 10000 / 100,
                   (unsigned long long)l->dnn_version % 100, CUDA_LEAST_DNN / 10000,
                   CUDA_LEAST_DNN % 10000 / 100, l->dnn_path);
  } else {
    (void)snprintf(lines[2], CUDA_DETAIL_ROOM, "no cuDNN, own kernels do attention: %s",
                   l->dnn_why);
  }
  (void)snprintf(lines[3], CUDA_DETAIL_ROOM, "operators that it lacks run on %s%s",
                 self->inner.table != NULL ? "backend 'cpu'" : "nothing else: ",
                 self->inner.table != NULL ? "" : self->inner.why);
}

static opipe_status open_instance(const opipe_host *host, opipe_instance **out_self,
                                  opipe_error *err) {
  const cuda_libraries *libraries = NULL;
  if (host == NULL || !OPIPE_HAS(host, opipe_host, now_ns) || host->realloc == NULL ||
      host->now_ns == NULL)
    return opipe_fail(err, OPIPE_E_ABI, "backend cuda: the host's services are incomplete");
  CUDA_TRY(cuda_libraries_open(&libraries, err));
  opipe_instance *self =
      opipe_zeroed(host, "backend cuda", sizeof *self, _Alignof(opipe_instance), err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  self->libraries = libraries;
  self->owner = getpid();
  cuda_inner_find(host, &self->inner);
  note_details(self);
  *out_self = self;
  return OPIPE_OK;
}

static void close_instance(opipe_instance *self) {
  if (self != NULL)
    opipe_free(self->host, self, sizeof *self, _Alignof(opipe_instance));
}

static const void *get_interface(opipe_instance *self, const char *id) {
  static const opipe_details details = {(uint32_t)OPIPE_END(opipe_details, line), 0, detail};
  (void)self;
  if (id == NULL)
    return NULL;
  if (strcmp(id, OPIPE_DETAILS_ID) == 0)
    return &details;
  return strcmp(id, OPIPE_BACKEND_ID) == 0 ? &cuda_backend_table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0),
    "cuda",
    OPIPE_VERSION,
    "Apache-2.0",
    "NVIDIA GPUs: products by cublasLt, own kernels for the rest",
    open_instance,
    close_instance,
    get_interface,
};
