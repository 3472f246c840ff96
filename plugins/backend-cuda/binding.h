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
  cuda_bound_plan *plan;
} cuda_bound;

struct opipe_binding {
  const opipe_program *program;
  cuda_pool pool;
  cuda_bound *steps;
  uint32_t n_steps;
  CUdeviceptr arena;
  CUdeviceptr workspace;
  CUfunction begin, report, zone; /* of programs with a run block */
  CUgraphExec graph;              /* its steps in one launch; NULL: a launch each */
};

/* run.c: what stands before the steps; all steps, one after the other. has_begun: what
 * cuda_run_begin gave the stream is the last that it was given. */
opipe_status cuda_run_begin(const opipe_binding *binding, CUstream stream, const int64_t *scalars,
                            uint32_t n_scalars, opipe_error *err);
opipe_status cuda_run_steps(const opipe_binding *binding, CUstream stream, bool has_begun,
                            opipe_error *err);
/* graph.c: the binding's graph where the device's `graphs` asks for them and the steps can be in
 * one. Within an entry, as the next. */
opipe_status cuda_graph_make(opipe_binding *binding, opipe_error *err);
void cuda_graph_free(opipe_binding *binding);

#endif /* OPIPE_BACKEND_CUDA_BINDING_H_ */
