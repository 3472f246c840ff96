/* SPDX-License-Identifier: Apache-2.0 */
/* Checks at open that sessions agree about the parameters that several of them hold: equal values,
 * and one layout of gradients that are added. */
#ifndef OPI_ALIKE_H
#define OPI_ALIKE_H

#include "runtime/requests/requests.h"

/* Once the plan's own shape is there. Errors: those of env.together.compare. */
opipe_status opi_alike_check(const opi_session *session, opipe_error *err);

#endif /* OPI_ALIKE_H */
