/* SPDX-License-Identifier: Apache-2.0 */
/* Caps that several ranks have together, for what looks at one rank at a time: the search of a cut,
 * schedules that are told what is free, the search of an order. While a plan is made such a cap can
 * be divided: every rank has a part of its own. */
#ifndef OPI_SHARED_CAPS_H
#define OPI_SHARED_CAPS_H

#include "partition/plan/plan.h"

enum {
  OPI_SHARE_LEAST = 0, /* a byte each: schedules that heed caps keep as little as they can */
  OPI_SHARE_LIKE = 1,  /* as what the ranks need now: of that, what they could do without shrinks */
  OPI_SHARE_EQUAL = 2, /* all are equal */
  OPI_SHARE_REST = 3   /* what the ranks need now, and equal parts of what is left */
};

/* What ranks need, [n_ranks] bytes each. */
typedef struct opi_rank_bytes {
  uint64_t *now, *least;
} opi_rank_bytes;

/* Do ranks need more than a cap that they have together? By plan->memory, NULL: nobody knows. */
bool opi_shared_caps_lack(const opi_plan *plan);
/* What the ranks need by plan->memory; `least` is the same. out_devices: room. In `arena`. */
opipe_status opi_shared_caps_needs(const opi_plan *plan, opi_arena *arena, opi_rank_bytes *out,
                                   opi_device_spec **out_devices, opipe_error *err);
/* Divides every such cap. The devices as they were are in out_devices [n_ranks]. */
void opi_shared_caps_divide(opi_plan *plan, const opi_rank_bytes *needs, uint32_t how,
                            opi_device_spec *out_devices);
/* The caps are those of `devices` [n_ranks] again, in plan->memory too. */
void opi_shared_caps_restore(opi_plan *plan, const opi_device_spec *devices);

#endif /* OPI_SHARED_CAPS_H */
