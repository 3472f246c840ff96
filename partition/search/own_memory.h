/* SPDX-License-Identifier: Apache-2.0 */
/* Devices without a cap have the memory that they say to have: no plan needs more. It is no
 * decision of the plan's, so it stands in for caps only where a cut would not fit. */
#ifndef OPI_OWN_MEMORY_H
#define OPI_OWN_MEMORY_H

#include "partition/plan.h"

/* Does a rank without a cap need more than its device has? By plan->memory, of a finished cut. */
bool opi_own_memory_lacks(const opi_plan *plan, const opi_device_facts *facts);
/* Ranks without a cap get what their devices have for one; out_set [n_ranks]: which. */
void opi_own_memory_set(opi_plan *plan, const opi_device_facts *facts, bool *out_set);
void opi_own_memory_unset(opi_plan *plan, const bool *set);

#endif /* OPI_OWN_MEMORY_H */
