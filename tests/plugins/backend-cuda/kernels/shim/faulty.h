/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel with a fault of choice, for the test of the shim. */
#ifndef OPIPE_TESTS_CUDA_FAULTY_H_
#define OPIPE_TESTS_CUDA_FAULTY_H_

#include <stdint.h>

enum {
  FAULT_NONE,
  FAULT_BARRIER_MISSED,
  FAULT_TWO_BARRIERS,
  FAULT_LANE_MISSING,
  FAULT_TWO_MEETINGS,
  FAULT_NOT_IN_MASK,
  FAULT_BEYOND_SHARED,
  FAULT_COPY_LEFT,
  FAULT_NOT_WAITED,
  FAULT_FETCHED_LATE,
  FAULT_COPIED_EARLY,
  FAULT_NOT_FENCED,
  FAULTS
};

#ifdef __cplusplus
extern "C" {
#endif
void faulty_run(uint32_t fault, uint64_t seed); /* aborts, but with FAULT_NONE */
#ifdef __cplusplus
}
#endif
#endif
