/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/base, which knows no plan and no session.
 *
 *   thread.h   threads, locks with a signal, the monotonic clock; the only use of pthreads
 *   handles.h  handles that hosts hold in place of addresses; a table without locks
 *   strided.h  strided copies, parts of tensors
 *   between.h  the measured latency and bandwidth between two threads
 *   told.h     the state of a rank, as other processes are told
 *   letters.h  letters beside the transport: envelopes, boxes
 *
 * Invariants
 * - A handle never becomes an object's address again once it is stale.
 * - Nothing here calls a layer above, except the function that ends a handle's object.
 */
#ifndef OPI_RUNTIME_BASE_H
#define OPI_RUNTIME_BASE_H

#include "runtime/base/between.h"
#include "runtime/base/handles.h"
#include "runtime/base/letters.h"
#include "runtime/base/strided.h"
#include "runtime/base/thread.h"
#include "runtime/base/told.h"

#endif /* OPI_RUNTIME_BASE_H */
