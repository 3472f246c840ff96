/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm for a transport that contains it: near ranks are then its, and worlds, endpoints,
 * streams and groups of it are reached by this table alone.
 */
#ifndef OPIPE_TRANSPORT_SHM_NEAR_H
#define OPIPE_TRANSPORT_SHM_NEAR_H

#include <opipe/transport.h>

extern const opipe_transport shm_transport;

opipe_status shm_instance_open(const opipe_host *host, opipe_instance **out_self, opipe_error *err);
void shm_instance_close(opipe_instance *self);
/* OK | PEER: the world was aborted. [any-thread] */
opipe_status shm_check(opipe_world *world, opipe_error *err);
/* The first reason for which the world was aborted, and the rank that gave it. */
uint32_t shm_reason(const opipe_world *world, opipe_error *out_why);

#endif /* OPIPE_TRANSPORT_SHM_NEAR_H */
