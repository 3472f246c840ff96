/* SPDX-License-Identifier: Apache-2.0 */
/* transport-nccl as a plugin. It opens nothing of the vendor's: worlds do. */
#include "world.h"

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    nccl_delete(self->host, self, sizeof *self);
}

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  opipe_instance *self = nccl_new(host, "transport 'nccl'", sizeof *self, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &nccl_transport : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "nccl",
    "1.0",
    "Apache-2.0",
    "NVIDIA GPUs by NCCL: one rank per process, batches and sums queued on the device",
    open_plugin,
    close_plugin,
    get_interface,
};
