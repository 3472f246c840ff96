/* SPDX-License-Identifier: Apache-2.0 */
/* Training whose stashes wait in the host's memory, on emulated devices that do everything later.
 */
#ifndef TESTS_TRAIN_OFFLOAD_H
#define TESTS_TRAIN_OFFLOAD_H

#include "tests/runtime/train/cases.h"

/* Where: with memory that has host addresses, and without. */
enum { OFFLOAD_PLACES = 2 };
extern const kit_place offload_places[OFFLOAD_PLACES];

typedef struct offload_count {
  uint32_t passed, refused, failed;
  uint32_t n_moves; /* of all plans */
} offload_count;

/* Trains by the schedule with all that can be offloaded, and compares losses and weights, bit by
 * bit, with the plan's reference and with the plan without offloads; and bytes with the prediction.
 * Combinations that are not supported must be refused by name. `k` is open. */
void offload_check(kit *k, const kit_schedule *schedule, const kit_case *c, offload_count *count);
/* Transfers that a mini-batch of the kit's plan begins, and bytes of host memory of its ranks. */
uint32_t offload_moves(kit *k);
uint64_t offload_bytes(const kit *k);

#endif /* TESTS_TRAIN_OFFLOAD_H */
