/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's queues to the host and back, beside the one that computes: stashes leave and return on
 * them. A rank has them if its plan offloads. */
#ifndef OPI_MOVER_H
#define OPI_MOVER_H

#include "runtime/device/rank.h"

/* Opens them. Errors: UNSUPPORTED, a device that is synchronous. [control] */
opipe_status opi_mover_open(opi_rank *rank, opipe_error *err);
/* Waits until the device has done what they were given, for patience_ns at most; then gives them
 * up. [control] */
void opi_mover_end(opi_rank *rank, uint64_t patience_ns);
void opi_mover_close(opi_rank *rank);

#endif /* OPI_MOVER_H */
