/* SPDX-License-Identifier: Apache-2.0 */
/* Of blocks that find parts of a result the last one to arrive goes on: what a second launch would
 * do, with the same bits, whoever is last. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_LAST_BLOCK_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_LAST_BLOCK_CUH_

#include "../device.cuh"

/* Is the block the last of n to come here? What the others wrote before it then reads, past its
 * first-level cache. The counter is 0 before the first comes, and after the last. */
CUDA_FN bool is_last_block(unsigned *counter, unsigned n, bool *shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    *shared = atomicInc(counter, n - 1) == n - 1;
  __syncthreads();
  if (*shared)
    __threadfence();
  return *shared;
}

CUDA_FN packet<float> four_of_others(const float *at) {
  const float4 four = __ldcg(reinterpret_cast<const float4 *>(at));
  return {{four.x, four.y, four.z, four.w}};
}

#endif
