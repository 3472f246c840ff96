/* SPDX-License-Identifier: Apache-2.0 */
/* transport-ucx as a plugin. */
#include "ucx.h"

static void ucx_close(opipe_instance *self) {
  if (self == NULL)
    return;
  shm_instance_close(self->near);
  ucx_delete(self->host, self, sizeof *self);
}

static opipe_status ucx_open(const opipe_host *host, opipe_instance **out_self, opipe_error *err) {
  opipe_instance *self = ucx_new(host, "transport 'ucx'", sizeof *self, err);
  if (self == NULL)
    return OPIPE_E_NOMEM;
  self->host = host;
  const opipe_status status = shm_instance_open(host, &self->near, err);
  if (status < 0)
    ucx_close(self);
  else
    *out_self = self;
  return status;
}

static const void *ucx_get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &ucx_transport : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "ucx",
    "1.0",
    "Apache-2.0",
    "ranks of one machine share memory, others exchange messages by UCX (TCP, RDMA)",
    ucx_open,
    ucx_close,
    ucx_get_interface,
};
