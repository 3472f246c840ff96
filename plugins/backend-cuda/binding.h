/* SPDX-License-Identifier: Apache-2.0 */
/* Inside bindings: what bind.c makes and run.c launches. */
#ifndef OPIPE_BACKEND_CUDA_BINDING_H_
#define OPIPE_BACKEND_CUDA_BINDING_H_

#include "program.h"

typedef struct cuda_bound {
  const cuda_step *step;
  unsigned char *args; /* with addresses */
  CUfunction kernel;   /* LAUNCH */
  cuda_bound_product *product;
} cuda_bound;

struct opipe_binding {
  const opipe_program *program;
  cuda_pool pool;
  cuda_bound *steps;
  uint32_t n_steps;
  CUdeviceptr arena;
  CUdeviceptr workspace;
  CUfunction begin, report, zone; /* of programs with a run block */
};

#endif /* OPIPE_BACKEND_CUDA_BINDING_H_ */
