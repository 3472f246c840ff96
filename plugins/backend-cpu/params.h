/* SPDX-License-Identifier: Apache-2.0 */
/* Inside parameter sets: what params.c (inference) and train.c (sets whose values change) share.
 *
 * In an owned set the truth is the master copy as soon as there is one; before that the dense copy
 * `own`, or the source. A gradient set is an owned set of fp32 shadows: each has one accumulator,
 * of the layout of its parameter's master.
 */
#ifndef OPIPE_BACKEND_CPU_PARAMS_H_
#define OPIPE_BACKEND_CPU_PARAMS_H_

#include "codes.h"

typedef struct param_copy {
  opipe_buffer buffer; /* device NULL: none */
  bool present;
} param_copy;

typedef struct param_state {
  opipe_param_source source;
  void *own; /* dense copy, once written */
  uint64_t own_bytes;
  bool dirty;      /* written since the last commit */
  bool followed;   /* owned: a program reads the master, whichever it is */
  uint32_t master; /* owned: layout of the master, CPU_LAYOUT_MASTER: not chosen yet */
  param_copy copies[CPU_LAYOUT_COUNT];
} param_state;

struct opipe_params {
  opipe_device *device;
  cpu_pool pool; /* names and shapes */
  param_state *states;
  uint32_t n;
  bool owned;
  opipe_params *of; /* gradient set: the set of its parameters */
  uint64_t version;
  cpu_matrix_copy *matrices; /* of weights of few bits */
};

/* params.c */
/* An empty set of n states. */
opipe_status cpu_params_new(opipe_device *device, uint32_t n, opipe_params **out_params,
                            opipe_error *err);
/* Copies name and shape of the source into the set. */
opipe_status cpu_params_take(opipe_params *params, uint32_t slot, const opipe_param_source *source,
                             opipe_error *err);
opipe_status cpu_params_alloc_copy(opipe_params *params, uint32_t slot, uint32_t kind,
                                   uint64_t n_bytes, opipe_error *err);
opipe_status cpu_params_check(const opipe_params *params, uint32_t slot, uint64_t n_bytes,
                              const char *what, opipe_error *err);
/* The parameter must be what the program was compiled for. */
opipe_status cpu_params_match(const opipe_program *program, const cpu_layout *layout,
                              const opipe_params *params, opipe_error *err);
/* Never NULL: a parameter without elements has some address. */
const void *cpu_params_dense(const param_state *state);

/* codes.c: the packed copy of a matrix is made unless it is there; all of them in a clone; anew
 * after writes; freed. */
opipe_status cpu_params_pack(opipe_params *params, const cpu_matrix *matrix, opipe_error *err);
opipe_status cpu_params_clone_packed(opipe_params *params, const opipe_params *from,
                                     opipe_error *err);
void cpu_params_repack(opipe_params *params);
void cpu_params_free_packed(opipe_params *params);

/* train.c: of owned sets */
opipe_status cpu_owned_make_copy(opipe_params *params, uint32_t slot, uint32_t kind,
                                 uint64_t n_bytes, opipe_error *err);
opipe_status cpu_owned_write(opipe_params *params, uint32_t slot, const void *src,
                             opipe_error *err);
/* Once all programs are known: chooses the master that programs follow, and makes one where none of
 * them has brought it. */
opipe_status cpu_owned_settle(opipe_params *params, uint32_t slot, opipe_error *err);
void cpu_owned_read(const opipe_params *params, uint32_t slot, void *dst);
opipe_status cpu_gradients_prepare(opipe_params *gradients, const opipe_program *program,
                                   opipe_error *err);

#endif
