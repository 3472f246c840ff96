/* SPDX-License-Identifier: Apache-2.0 */
/* A backend for the tests of old minors (mocks.cmake): id "mock", the device of backend "cpu" under
 * another name. Its table is as long as the headers that it is built with say. Every slot but the
 * first three takes objects of the device, so they are cpu's own.
 */
#include <opipe/helpers.h>

struct opipe_instance {
  const opipe_host *host;
  const opipe_backend *cpu;
  opipe_instance *cpu_self;
  opipe_backend table;
};

static opipe_status device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  return self->cpu->device_count(self->cpu_self, out_count, err);
}

static opipe_status device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err) {
  return self->cpu->device_query(self->cpu_self, index, io_info, err);
}

static opipe_status device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err) {
  return self->cpu->device_open(self->cpu_self, params, out_device, err);
}

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  const opipe_backend_lookup *lookup =
      (const opipe_backend_lookup *)host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_ID);
  if (lookup == NULL)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "this host has no %s", OPIPE_BACKEND_LOOKUP_ID);
  opipe_instance *self = (opipe_instance *)host->realloc(host->ctx, NULL, 0, sizeof *self, 16);
  if (self == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the mock");
  memset(self, 0, sizeof *self);
  self->host = host;
  const opipe_status status = lookup->find(host->ctx, "cpu", &self->cpu, &self->cpu_self, err);
  if (status < 0) {
    host->realloc(host->ctx, self, sizeof *self, 0, 16);
    return status;
  }
  const size_t n = self->cpu->struct_size;
  memcpy(&self->table, self->cpu, n < sizeof self->table ? n : sizeof self->table);
  self->table.struct_size = (uint32_t)sizeof self->table;
  self->table.device_count = device_count;
  self->table.device_query = device_query;
  self->table.device_open = device_open;
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    self->host->realloc(self->host->ctx, self, sizeof *self, 0, 16);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  return strcmp(id, OPIPE_BACKEND_ID) == 0 ? &self->table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0), "mock",      "1.0",        "Apache-2.0",
    "backend cpu under another name",         open_plugin, close_plugin, get_interface};
