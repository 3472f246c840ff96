/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/device: the ranks' devices, and the fixed part of a session.
 *
 *   setup.h   what a session was opened with, and how it ends
 *   rank.h    a rank's device: memory, programs, tensors in and out, checks of the host's tensors
 *   budget.h  what the sessions of one context may take of a device
 *   pinned.h  host memory that devices copy to and from
 *   record.h  events behind queues that may be full
 *   ready.h   waiting for peers after set-up
 *
 * Invariants
 * - Memory is charged to the budget before it is taken, and given back with the rank at the latest.
 * - Regions of a block travel only while it is registered with its rank's endpoint.
 * - Staging memory that a rank may be at work with is never freed before the session's end.
 * - A wait for a device is cut into slices of OPI_LOOK_NS: a failed session, or the watchdog, is
 *   never far.
 *
 * Told upwards: while a thread waits for a device, the watchdog is to look (opi_device_above).
 */
#ifndef OPI_DEVICE_H
#define OPI_DEVICE_H

#include "runtime/device/rank.h"
#include "runtime/device/ready.h"
#include "runtime/device/record.h"
#include "runtime/device/setup.h"

#endif /* OPI_DEVICE_H */
