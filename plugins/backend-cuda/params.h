/* SPDX-License-Identifier: Apache-2.0 */
/* Inside parameter sets. */
#ifndef OPIPE_BACKEND_CUDA_PARAMS_H_
#define OPIPE_BACKEND_CUDA_PARAMS_H_

#include "program.h"

enum { CUDA_COPIES = CUDA_LAYOUTS };

/* A copy is a buffer of the set's own: its device, address 0 where there is none. */
typedef opipe_buffer cuda_param_copy;

typedef struct cuda_param_state {
  opipe_param_source source;
  cuda_param_copy copies[CUDA_COPIES]; /* [key - 1] */
} cuda_param_state;

struct opipe_params {
  opipe_device *device;
  cuda_pool pool;
  cuda_param_state *states;
  opipe_params *of; /* of a gradient set: the parameters; else NULL */
  uint32_t n;
  bool owned; /* its values change: optimizers update it */
};

/* ---- params.c ---- */

opipe_status cuda_params_new(opipe_device *device, uint32_t n, opipe_params **out_params,
                             opipe_error *err);
opipe_status cuda_params_take(opipe_params *params, uint32_t slot, const opipe_param_source *source,
                              opipe_error *err);
/* Memory for a copy; what it holds is undefined. Within an entry. */
opipe_status cuda_params_reserve(opipe_params *params, uint32_t slot, uint32_t key,
                                 uint64_t n_bytes, opipe_error *err);
/* The copy of the source's own type, made where there is none. Within an entry. */
opipe_status cuda_params_own_copy(opipe_params *params, uint32_t slot, opipe_error *err);
/* The parameter must be what the program was compiled for. */
opipe_status cuda_params_match(const opipe_program *program, const cuda_layout *layout,
                               const opipe_params *params, opipe_error *err);
/* Waits for the device's own stream; the first error of the two. Within an entry. */
opipe_status cuda_params_settle(opipe_device *device, CUresult queued, const char *what,
                                opipe_error *err);
/* Fills a copy from the host and zeroes the rest (src NULL: all of it); waits. Within an entry. */
opipe_status cuda_params_upload(opipe_device *device, const cuda_param_copy *copy, const void *src,
                                uint64_t n_bytes, opipe_error *err);

/* ---- train.c; within an entry ---- */

/* The fp32 copy of a parameter of a half type, made of the other one where there is none. */
opipe_status cuda_train_widen(opipe_params *params, uint32_t slot, opipe_error *err);
/* The copy of a half type holds what the master does, rounded. */
opipe_status cuda_train_narrow(const opipe_params *params, uint32_t slot, CUstream stream,
                               opipe_error *err);
/* A copy of a parameter of fp32 that is rounded, made of it anew where it is there; waits. key:
 * CUDA_LAYOUT_BF16 or _F16. */
opipe_status cuda_train_round(opipe_params *params, uint32_t slot, uint32_t key, opipe_error *err);
/* All rounded copies that there are, queued. */
opipe_status cuda_train_round_all(const opipe_params *params, uint32_t slot, CUstream stream,
                                  opipe_error *err);
/* Has the slot rounded copies of both types? */
bool cuda_train_rounds_twice(const opipe_params *params, uint32_t slot);
/* The copy that params_refresh of a slot writes where its master, `weight` [n], has changed:
 * *out_half of *out_dtype; NULL: none. Errors: INVALID, a set, slot or master that it is not. */
opipe_status cuda_train_follow(opipe_params *params, uint32_t slot, const float *weight, uint64_t n,
                               void **out_half, uint32_t *out_dtype, opipe_error *err);
opipe_status cuda_train_prepare(opipe_params *gradients, const opipe_program *program,
                                opipe_error *err);

#endif /* OPIPE_BACKEND_CUDA_PARAMS_H_ */
