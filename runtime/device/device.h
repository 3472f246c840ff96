/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/device: the ranks' devices, and the fixed part of a session.
 *
 *   setup.h   what a session was opened with, and how it ends
 *   rank.h    a rank's device: memory, programs, tensors in and out, checks of the host's tensors
 *   budget.h  caps on the memory that a context's sessions take of a device
 *   pinned.h  host memory that devices copy to and from
 *   record.h  events behind queues that may be full, queues that are given up
 *   mover.h   queues to the host and back
 *   ready.h   waiting for peers after set-up
 *
 * Invariants
 * - Memory is charged to the budget before it is taken, and given back with the rank at the latest.
 * - Regions of a block travel only while it is registered with its rank's endpoint.
 * - Staging memory that a rank may still use is never freed before the session's end.
 * - A wait for a device is cut into slices of OPI_LOOK_NS, after each of which the watchdog looks
 *   and a failed session is noticed.
 *
 * Told upwards (opi_device_above): a thread waits for a device, so the watchdog should look.
 */
#ifndef OPI_DEVICE_H
#define OPI_DEVICE_H

#include "runtime/device/mover.h"
#include "runtime/device/rank.h"
#include "runtime/device/ready.h"
#include "runtime/device/record.h"
#include "runtime/device/setup.h"

#endif /* OPI_DEVICE_H */
