/* SPDX-License-Identifier: Apache-2.0 */
/* A transport's slots that make objects, checked at every call (made.h). */
#ifndef TRANSPORT_MADE_H
#define TRANSPORT_MADE_H

#include <opipe/transport.h>

#include "made.h"

static const opipe_transport *transport_tested;
static opipe_transport transport_made;

CONF_MADE(transport_tested, world_open,
          (opipe_instance * self, const opipe_world_params *params, opipe_world **out,
           opipe_error *err),
          (self, params, out, err))
CONF_MADE(transport_tested, endpoint_open,
          (opipe_world * world, const opipe_endpoint_params *params, opipe_endpoint **out,
           opipe_error *err),
          (world, params, out, err))
CONF_MADE(transport_tested, stream_open,
          (opipe_endpoint * endpoint, const opipe_stream_params *params, opipe_stream **out,
           opipe_error *err),
          (endpoint, params, out, err))
CONF_MADE(transport_tested, group_open,
          (opipe_endpoint * endpoint, const uint32_t *ranks, uint32_t n_ranks, uint64_t n_bytes,
           opipe_group **out, opipe_error *err),
          (endpoint, ranks, n_ranks, n_bytes, out, err))

static const opipe_transport *transport_checked(const opipe_transport *table) {
  transport_tested = table;
  CONF_COPY(transport_made, table);
  transport_made.world_open = made_world_open;
  transport_made.endpoint_open = made_endpoint_open;
  transport_made.stream_open = made_stream_open;
  if (table->group_open != NULL)
    transport_made.group_open = made_group_open;
  return &transport_made;
}

#endif /* TRANSPORT_MADE_H */
