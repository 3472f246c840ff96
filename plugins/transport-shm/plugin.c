/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm as a plugin. */
#include "shm.h"

static const void *shm_get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &shm_transport : NULL;
}

OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
    "shm",
    "1.0",
    "Apache-2.0",
    "ranks are threads of processes of one machine: senders copy into the receiver's shared memory",
    shm_instance_open,
    shm_instance_close,
    shm_get_interface,
};
