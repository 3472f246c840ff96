/* SPDX-License-Identifier: Apache-2.0 */
/* Inside parameter sets. */
#ifndef OPIPE_BACKEND_CUDA_PARAMS_H_
#define OPIPE_BACKEND_CUDA_PARAMS_H_

#include "program.h"

enum { CUDA_COPIES = 2 }; /* CUDA_LAYOUT_OWN, CUDA_LAYOUT_F32 */

typedef struct cuda_param_copy {
  CUdeviceptr address; /* 0: none */
  uint64_t n_bytes;
} cuda_param_copy;

typedef struct cuda_param_state {
  opipe_param_source source;
  cuda_param_copy copies[CUDA_COPIES]; /* [key - 1] */
} cuda_param_state;

struct opipe_params {
  opipe_device *device;
  cuda_pool pool;
  cuda_param_state *states;
  uint32_t n;
};

opipe_status cuda_params_new(opipe_device *device, uint32_t n, opipe_params **out_params,
                             opipe_error *err);
/* Fills a copy from the host and zeroes its padding; waits. Within an entry. */
opipe_status cuda_params_upload(opipe_device *device, const cuda_param_copy *copy, const void *src,
                                uint64_t n_bytes, opipe_error *err);

#endif /* OPIPE_BACKEND_CUDA_PARAMS_H_ */
