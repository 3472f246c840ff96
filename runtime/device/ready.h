/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for peers after set-up: the calls that open something do not (transport.h). */
#ifndef OPI_RUNTIME_READY_H
#define OPI_RUNTIME_READY_H

#include "partition/plan/plan.h"

typedef struct opi_ready {
  const opi_transport_ref *transport;
  opipe_endpoint *(*endpoint)(const void *ctx, uint32_t index); /* of the local ranks */
  const void *ctx;
  uint32_t n;
  uint64_t timeout_ns;
} opi_ready;

/* Asks endpoint_ready of all local endpoints in turn until each has answered OK; a transport
 * without the slot needs nothing. Errors: TIMEOUT names the first one that is left, the
 * transport's. */
opipe_status opi_endpoints_ready(const opi_ready *what, opipe_error *err);

#endif /* OPI_RUNTIME_READY_H */
