/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for peers after set-up, since the calls that open something do not (transport.h). */
#ifndef OPI_RUNTIME_READY_H
#define OPI_RUNTIME_READY_H

#include "partition/plan/plan.h"

typedef struct opi_ready {
  const opi_transport_ref *transport;
  opipe_endpoint *(*endpoint)(const void *ctx, uint32_t index); /* of the local ranks */
  const void *ctx;
  uint32_t n;
  uint64_t timeout_ns;
  const opipe_board *board; /* where another session says that it will not come; NULL: nowhere */
} opi_ready;

#define OPI_READY_REFUSED "refused" /* the board's key for that, with the reason */

/* Calls endpoint_ready for all local endpoints in turn until each has answered OK. A transport
 * without the slot needs no set-up. Errors: those of the transport; PEER, another session will not
 * come; TIMEOUT names the first endpoint that is left. */
opipe_status opi_endpoints_ready(const opi_ready *what, opipe_error *err);

#endif /* OPI_RUNTIME_READY_H */
