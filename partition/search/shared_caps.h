/* SPDX-License-Identifier: Apache-2.0 */
/* Caps shared by several ranks, divided for everything that looks at one rank at a time: the search
 * for a cut, schedules that are told what is free, the search for an order. */
#ifndef OPI_SHARED_CAPS_H
#define OPI_SHARED_CAPS_H

#include "partition/plan/plan.h"

enum {
  OPI_SHARE_LEAST = 0, /* one byte each: schedules that heed caps keep as little as they can */
  OPI_SHARE_LIKE =
      1, /* in proportion to current needs, shrinking only what each could do without */
  OPI_SHARE_EQUAL = 2, /* equal parts */
  OPI_SHARE_REST = 3   /* current needs plus equal parts of the rest */
};

/* Needs of ranks, [n_ranks] bytes each. */
typedef struct opi_rank_bytes {
  uint64_t *now, *least;
} opi_rank_bytes;

/* True if the predicted memory of ranks that share a cap exceeds it; false if there is no
 * prediction. */
bool opi_shared_caps_lack(const opi_plan *plan);
/* Allocates *out in `arena` and fills it from the predicted memory, `least` with the same numbers;
 * *out_devices is room for a copy of the devices.
 */
opipe_status opi_shared_caps_needs(const opi_plan *plan, opi_arena *arena, opi_rank_bytes *out,
                                   opi_device_spec **out_devices, opipe_error *err);
/* Divides every shared cap. Saves the devices as they were in out_devices [n_ranks]. */
void opi_shared_caps_divide(opi_plan *plan, const opi_rank_bytes *needs, uint32_t how,
                            opi_device_spec *out_devices);
/* Restores the caps of `devices` [n_ranks], in the predicted memory too. */
void opi_shared_caps_restore(opi_plan *plan, const opi_device_spec *devices);

#endif /* OPI_SHARED_CAPS_H */
