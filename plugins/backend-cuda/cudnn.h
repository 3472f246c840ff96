/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN: what cudnn_graph.c, cudnn_plan.c, cudnn.c and ops/attention_cudnn.c share.
 *
 *   form  ──cudnn_graph.c──► operations on tensors ──cudnn_plan.c──► plan (an engine, compiled)
 *   plan  ──cudnn.c──► kept on the opening, by its form; bound to addresses; run
 *
 * cuDNN is told of a graph of products, element-wise operations and reductions, and has kernels for
 * those that are attention. Any graph that it refuses runs on our own kernels.
 */
#ifndef OPIPE_BACKEND_CUDA_CUDNN_H_
#define OPIPE_BACKEND_CUDA_CUDNN_H_

#include "program.h"

/* Numbers that it takes from the host. */
enum {
  CUDA_DNN_SCALE = 0,
  CUDA_DNN_HIDDEN,
  CUDA_DNN_ONE,
  CUDA_DNN_KEYS, /* of int32, as the next */
  CUDA_DNN_QUERIES,
  CUDA_DNN_SCALARS
};
typedef union cuda_dnn_number {
  float real;
  int32_t whole;
} cuda_dnn_number;

enum { CUDA_DNN_RESULT = 0, CUDA_DNN_GRADIENTS = 1 };
/* Query s sees keys t <= s; the same where the last query sees all keys. */
enum { CUDA_DNN_CAUSAL = 1, CUDA_DNN_LAST = 2 };

/* The description that a plan is made from and found by: no member is left unset. Element (b, h, s,
 * d) of tensor i is at b * stride[i][0] + h * stride[i][1] + s * stride[i][2] + d; STATS, SUMS and
 * ACC are dense, as is the mask. */
typedef struct cuda_dnn_form {
  int64_t batch, heads, kv_heads, queries, keys, depth, value_depth;
  int64_t stride[CUDA_DNN_TENSORS][3];
  int64_t mask[3]; /* batch, heads and rows of the mask, 1: it repeats; all 0: none */
  float scale;
  uint32_t dtype;      /* OPIPE_FLOAT16, OPIPE_BFLOAT16 */
  uint32_t what;       /* CUDA_DNN_RESULT, CUDA_DNN_GRADIENTS */
  uint32_t causal;     /* CUDA_DNN_CAUSAL, _LAST; 0: all keys are seen */
  uint32_t unsteady;   /* GRADIENTS: dQ may be summed in any order */
  uint32_t mask_dtype; /* OPIPE_BFLOAT16, OPIPE_FLOAT; 0: no mask */
} cuda_dnn_form;

enum { CUDA_DNN_DESCRIPTORS = 192, CUDA_DNN_WHY = 400 };

struct cuda_dnn_plan {
  cuda_dnn_plan *next;
  cuda_dnn_form form;
  const char *lack;                                   /* NULL: the library was asked for it */
  cudnnBackendDescriptor_t all[CUDA_DNN_DESCRIPTORS]; /* its parts */
  uint32_t n;
  cudnnBackendDescriptor_t plan; /* one of them; NULL: refused, as `why` says */
  uint64_t workspace_bytes;
  int64_t engine;
  cuda_dnn_number scalars[CUDA_DNN_SCALARS];
  char why[CUDA_DNN_WHY];
};

/* ---- cudnn_graph.c ---- */

/* Descriptors in the making. After the first failure calls do nothing: it stays in `status`. */
typedef struct cuda_dnn_maker {
  const cuda_dnn_functions *dnn;
  cuda_dnn_plan *plan;
  cudnnStatus_t status;
  const char *what;  /* is being made, or failed */
  char why[200];     /* the library's words for it */
  int64_t n_virtual; /* tensors that lie nowhere, so far */
  cudnnBackendDescriptor_t ops[32];
  uint32_t n_ops;
} cuda_dnn_maker;
cudnnBackendDescriptor_t cuda_dnn_make(cuda_dnn_maker *m, int type, const char *what);
void cuda_dnn_set(cuda_dnn_maker *m, cudnnBackendDescriptor_t descriptor, int name, int type,
                  int64_t n, const void *elements);
void cuda_dnn_end(cuda_dnn_maker *m, cudnnBackendDescriptor_t descriptor);
/* Keeps the first failure. */
void cuda_dnn_note(cuda_dnn_maker *m, cudnnStatus_t status, const char *what);
/* Appends the operations of the plan's form. */
void cuda_dnn_describe(cuda_dnn_maker *m);
/* Is tensor i one of the form's, and scalar i? */
bool cuda_dnn_has(const cuda_dnn_form *form, uint32_t i);
bool cuda_dnn_has_scalar(const cuda_dnn_form *form, uint32_t i);
/* Its number for the library, and a scalar's. */
int64_t cuda_dnn_tensor_id(uint32_t i);
int64_t cuda_dnn_scalar_id(uint32_t i);

/* ---- cudnn_plan.c ---- */

/* Meaning of the library's status while a plan is made. UNSUPPORTED: by form, library and chip
 * alone; others may be gone the next time, or on the next rank: NOMEM, DEVICE. */
opipe_status cuda_dnn_status(cudnnStatus_t status);
/* Makes the plan of plan->form, for a handle's GPU, or for the one that a descriptor (DEVICE)
 * describes. UNSUPPORTED: the library has no engine for it, or none with the same bits in every
 * run; NOMEM, DEVICE: it failed. cuda_dnn_plan_end frees its parts either way. */
opipe_status cuda_dnn_plan_make(const cuda_dnn_functions *dnn, cudnnHandle_t handle,
                                cudnnBackendDescriptor_t device, cuda_dnn_plan *plan,
                                opipe_error *err);
void cuda_dnn_plan_end(const cuda_dnn_functions *dnn, cuda_dnn_plan *plan);

/* ---- cudnn.c ---- */

/* The plan of a form; NULL: our own kernels do it, and the host's log says why. The first of a form
 * takes a second or so. NOMEM, DEVICE: it failed, which is no refusal: other kernels have other
 * bits. Within an entry. */
opipe_status cuda_dnn_find(opipe_device *device, const cuda_dnn_form *form,
                           const cuda_dnn_plan **out, opipe_error *err);
/* Keeps, and says once, that our own kernels do attention of a form which cuDNN lacks, or lacks
 * with what a form does not tell: `why`, a constant, is a sentence about the library. NOMEM. */
opipe_status cuda_dnn_pass(opipe_device *device, const cuda_dnn_form *form, const char *why,
                           opipe_error *err);

#endif /* OPIPE_BACKEND_CUDA_CUDNN_H_ */
