/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/base: what knows no plan and no session.
 *
 *   thread.h   threads, locks with a signal, the monotonic clock; the only use of pthreads
 *   handles.h  what hosts hold in place of addresses: a table that is looked up without a lock
 *   strided.h  strided copies, parts of tensors
 *   between.h  what a message between two threads takes, measured
 *
 * Invariants
 * - A handle never becomes an object's address again once it is stale.
 * - Nothing here calls back into a layer above, but for the function that ends a handle's object.
 */
#ifndef OPI_RUNTIME_BASE_H
#define OPI_RUNTIME_BASE_H

#include "runtime/base/between.h"
#include "runtime/base/handles.h"
#include "runtime/base/strided.h"
#include "runtime/base/thread.h"

#endif /* OPI_RUNTIME_BASE_H */
