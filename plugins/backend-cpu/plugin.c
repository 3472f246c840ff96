/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin's descriptor and the backend's table.
 *
 * An instance holds the host's services and nothing else: devices are independent of each other.
 */
#include "cpu.h"

const opipe_backend cpu_backend_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_backend, run_part),
    .device_count = cpu_device_count,
    .device_query = cpu_device_query,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .device_usage = cpu_device_usage,
    .buffer_alloc = cpu_buffer_alloc,
    .buffer_free = cpu_buffer_free,
    .buffer_host = cpu_buffer_host,
    .queue_open = cpu_queue_open,
    .queue_close = cpu_queue_close,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_poll = cpu_event_poll,
    .event_sync = cpu_event_sync,
    .write = cpu_write,
    .read = cpu_read,
    .copy = cpu_copy,
    .support = cpu_support,
    .compile = cpu_compile,
    .program_free = cpu_program_free,
    .program_info = cpu_program_info,
    .program_params = cpu_program_params,
    .params_create = cpu_params_create,
    .params_free = cpu_params_free,
    .params_prepare = cpu_params_prepare,
    .params_clone = cpu_params_clone,
    .params_write = cpu_params_write,
    .params_read = cpu_params_read,
    .params_commit = cpu_params_commit,
    .bind = cpu_bind,
    .binding_free = cpu_binding_free,
    .run = cpu_run,
    .params_create_owned = cpu_params_create_owned,
    .gradients_create = cpu_gradients_create,
    .program_gradients = cpu_program_gradients,
    .params_master = cpu_params_master,
    .gradients_fold = cpu_gradients_fold,
    .params_refresh = cpu_params_refresh,
    .params_export = cpu_params_export,
    .params_import = cpu_params_import,
    .fill_zero = cpu_fill_zero,
    .add = cpu_add,
    .sum_squares = cpu_sum_squares,
    .update = cpu_update,
    .buffer_import = cpu_buffer_import,
    .sum = cpu_sum,
    .program_places = cpu_program_places,
    .run_part = cpu_run_part,
};

static opipe_status open_instance(const opipe_host *host, opipe_instance **out_self,
                                  opipe_error *err) {
  if (host == NULL || !OPIPE_HAS(host, opipe_host, now_ns) || host->realloc == NULL)
    return opipe_fail(err, OPIPE_E_ABI, "backend cpu: the host's services are incomplete");
  opipe_instance *self = cpu_acquire(host, sizeof *self, "backend cpu", err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static void close_instance(opipe_instance *self) {
  if (self != NULL)
    cpu_release(self->host, self, sizeof *self);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return id != NULL && strcmp(id, OPIPE_BACKEND_ID) == 0 ? &cpu_backend_table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0),
    "cpu",
    OPIPE_VERSION,
    "Apache-2.0",
    "x86-64 and portable CPU kernels: AVX-512, AVX2, plain C",
    open_instance,
    close_instance,
    get_interface,
};
