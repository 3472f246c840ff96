/* SPDX-License-Identifier: Apache-2.0 */
/* backend-emulated: the plugin's table. It finds backend "cpu" through the host's lookup service
 * when it is opened. */
#include "emulated.h"

static const opipe_backend backend_table = {
    .struct_size = (uint32_t)OPIPE_END(opipe_backend, run_part),
    .device_count = emudev_device_count,
    .device_query = emudev_device_query,
    .device_open = emudev_device_open,
    .device_close = emudev_device_close,
    .device_usage = emudev_device_usage,
    .buffer_alloc = emudev_buffer_alloc,
    .buffer_free = emudev_buffer_free,
    .buffer_host = emudev_buffer_host,
    .queue_open = emudev_queue_open,
    .queue_close = emudev_queue_close,
    .event_create = emudev_event_create,
    .event_destroy = emudev_event_destroy,
    .event_record = emudev_event_record,
    .event_wait = emudev_event_wait,
    .event_poll = emudev_event_poll,
    .event_sync = emudev_event_sync,
    .write = emudev_queue_write,
    .read = emudev_queue_read,
    .copy = emudev_queue_copy,
    .support = emudev_support,
    .compile = emudev_compile,
    .program_free = emudev_program_free,
    .program_info = emudev_program_info,
    .program_params = emudev_program_params,
    .params_create = emudev_params_create,
    .params_free = emudev_params_free,
    .params_prepare = emudev_params_prepare,
    .params_clone = emudev_params_clone,
    .params_write = emudev_params_write,
    .params_read = emudev_params_read,
    .params_commit = emudev_params_commit,
    .bind = emudev_bind,
    .binding_free = emudev_binding_free,
    .run = emudev_run,
    .params_create_owned = emudev_params_create_owned,
    .gradients_create = emudev_gradients_create,
    .program_gradients = emudev_program_gradients,
    .params_master = emudev_params_master,
    .gradients_fold = emudev_gradients_fold,
    .params_refresh = emudev_params_refresh,
    .params_export = emudev_params_export,
    .params_import = emudev_params_import,
    .fill_zero = emudev_fill_zero,
    .add = emudev_add,
    .sum_squares = emudev_sum_squares,
    .update = emudev_update,
    .buffer_import = emudev_buffer_import,
    .event_create_timed = emudev_event_create_timed,
    .event_elapsed = emudev_event_elapsed,
    .host_alloc = emudev_host_alloc,
    .host_free = emudev_host_free,
    .sum = emudev_sum,
    .host_rate = emudev_host_rate,
    .program_places = emudev_program_places,
    .run_part = emudev_run_part};

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  const opipe_backend_lookup *lookup = host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_ID);
  if (lookup == NULL) /* a host before 1.3; nothing of the inner device's is beside what we tell */
    lookup = host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_0_ID);
  if (lookup == NULL || lookup->struct_size < OPIPE_END(opipe_backend_lookup, find)) {
    return opipe_fail(
        err, OPIPE_E_UNSUPPORTED,
        "backend 'emulated' builds on backend 'cpu', and this host has no service '%s'",
        OPIPE_BACKEND_LOOKUP_ID);
  }
  opipe_instance *self = host->realloc(host->ctx, NULL, 0, sizeof *self, 16);
  if (self == NULL)
    return emudev_nomem(sizeof *self, err);
  memset(self, 0, sizeof *self);
  self->host = host;
  const opipe_status status = lookup->find(host->ctx, "cpu", &self->inner, &self->inner_self, err);
  if (status < 0) {
    emudev_give(self, self, sizeof *self);
    return status;
  }
  (void)pthread_mutex_init(&self->lock, NULL); /* cannot fail on Linux */
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self == NULL)
    return;
  (void)pthread_mutex_destroy(&self->lock);
  emudev_give(self, self, sizeof *self);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_BACKEND_ID) == 0 ? &backend_table : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0),
    "emulated",
    "1.0",
    "Apache-2.0",
    "backend 'cpu' with declared memory, modelled time and faults by rule: for tests",
    open_plugin,
    close_plugin,
    get_interface,
};
