/* SPDX-License-Identifier: Apache-2.0 */
/* Links between the processes of a team (machine_links.c). */
#ifndef OPI_API_MACHINE_LINKS_H
#define OPI_API_MACHINE_LINKS_H

#include "abi/api/api.h"
#include "runtime/base/base.h"

/* The slowest link between process 0 and the others, the same answer in all; all processes of the
 * team call it together. transport: "id" or "id:key=value,...". A team of one: zeros. Errors: the
 * team's, the transport's. */
opipe_status opi_links_measure(opi_context_object *context, opipe_team *team, const char *transport,
                               opi_between *out, opipe_error *err);

#endif /* OPI_API_MACHINE_LINKS_H */
