/* SPDX-License-Identifier: Apache-2.0 */
/* Checks at open that the members of a tensor group have devices that compute alike. */
#ifndef OPI_MEMBERS_H
#define OPI_MEMBERS_H

#include "runtime/device/device.h"

/* Once devices are open; looks at ranks here. Errors: UNSUPPORTED names both ranks and how they
 * differ. */
opipe_status opi_members_check(const opi_setup *setup, opipe_error *err);

#endif /* OPI_MEMBERS_H */
