/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: out[batch] = f(alpha a[batch] b[batch] + beta c), f the fused element-wise work.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_LINEAR_H_
#define OPIPE_BACKEND_CPU_OPS_LINEAR_H_

#include "loop.h"

typedef struct cpu_linear_plan {
  int64_t m, n, k;
  int64_t a_m, a_k, b_k, b_n; /* strides in elements inside a matrix */
  cpu_loop batch;             /* operands a, b, out */
  double alpha, beta;
  int c; /* index of the addend among the inputs, -1: none */
  int64_t c_m, c_n;
  cpu_fusion fusion;
  cpu_pack_format format;   /* of packed B */
  const cpu_dots *dots;     /* A is bf16 too, and is multiplied as such; NULL: in fp32 */
  uint64_t matrix_bytes;    /* of one matrix of packed B, where B is a stack of them */
  const cpu_matrix *matrix; /* B of few bits; NULL: none */
  bool int8;                /* its rows of A are rounded to 8 bits */
  /* fast kernels: offsets in the workspace */
  uint64_t a_at;       /* A transposed */
  uint64_t c_at;       /* beta c, dense */
  uint64_t scratch_at; /* the kernel's own; packed: of products with W transposed */
  bool b_turned;       /* B is stored [N,K] */
  bool turn_a;
  bool packed;
  bool scale_c;
} cpu_linear_plan;

/* The plain kernels; false when there is none for the type. */
bool cpu_linear_reference(uint32_t dtype, cpu_kernel *out_kernel);
/* For a product whose output is an accumulator: see linear_dw.c. */
opipe_status cpu_linear_accumulate(cpu_prep *p, cpu_linear_plan *plan);
/* Chooses a fast kernel where one fits; leaves the step alone otherwise. */
opipe_status cpu_linear_fast(cpu_prep *p, cpu_linear_plan *plan);

#endif
