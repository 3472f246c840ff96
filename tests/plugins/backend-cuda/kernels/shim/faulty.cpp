/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that break the rules of the device, each in one way: what the shim has to find. */
#include "faulty.h"

#include "run.h"
#include "shim.hpp"

static unsigned counter;

struct room {
  int value[64];
};

static void body(const void *args) {
  CUDA_SHARED(room, shared);
  const uint32_t fault = *static_cast<const uint32_t *>(args);
  const unsigned i = threadIdx.x;
  int value = (int)i;
  if (fault == FAULT_COPIED_EARLY && i == 3)
    shim_copy_begin(&shared.value[i], args, 4, 4);
  if (fault != FAULT_NOT_WAITED || i != 9)
    shim_wait();
  switch (fault) {
    case FAULT_NOT_WAITED:
    case FAULT_COPIED_EARLY:
      break;
    case FAULT_FETCHED_LATE:
      fetch_sector(args);
      break;
    case FAULT_NONE:
      shared.value[i] = value;
      __syncthreads();
      value = __shfl_xor_sync(0xffffffffu, shared.value[63 - i], 1);
      break;
    case FAULT_BARRIER_MISSED:
      if (i != 5)
        __syncthreads();
      break;
    case FAULT_TWO_BARRIERS:
      if (i < 32)
        __syncthreads();
      else
        __syncthreads();
      break;
    case FAULT_LANE_MISSING:
      if (i % 32 != 7)
        value = __shfl_xor_sync(0xffffffffu, value, 1);
      break;
    case FAULT_TWO_MEETINGS:
      if (i % 2 != 0)
        __syncwarp();
      else
        value = __shfl_sync(0xffffffffu, value, 0);
      break;
    case FAULT_NOT_IN_MASK:
      value = __shfl_sync(i % 32 < 16 ? 0x0000ffffu : 0xffff0000u, value, 20);
      break;
    case FAULT_BEYOND_SHARED:
      (&shared.value[0])[64 + i] = value;
      break;
    case FAULT_COPY_LEFT:
      if (i == 0)
        shim_copy_begin(&shared.value[0], args, 4, 4);
      break;
    default: /* FAULT_NOT_FENCED */
      if (i != 40)
        __threadfence();
      __syncthreads();
      if (i == 0)
        (void)atomicInc(&counter, 1);
      break;
  }
  if (value < 0)
    shared.value[0] = value;
}

void faulty_run(uint32_t fault, uint64_t seed) {
  static const uint32_t grid[3] = {2, 1, 1}, block[3] = {64, 1, 1};
  shim_run("faulty", body, &fault, grid, block, 64, 0, seed);
}
