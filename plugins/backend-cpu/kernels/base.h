/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all kernels: who computes, storage types, activations. The rules stand in kernels.h.
 */
#ifndef OPIPE_BACKEND_CPU_KERNELS_BASE_H_
#define OPIPE_BACKEND_CPU_KERNELS_BASE_H_

#include "bytes.h"
#include "isa.h"
#include "team.h"

enum { CPU_ALIGN_BYTES = 64 };

/* Who computes: the kernels of one instruction set, a team (NULL: the calling thread alone), and
 * what products of bytes are summed by (NULL: the machine's best beside those kernels). */
typedef struct cpu_exec {
  const cpu_kernels *kernels;
  cpu_team *team;
  const cpu_byte_kernels *bytes;
} cpu_exec;

/* The same without a team. */
static inline cpu_exec cpu_alone(const cpu_exec *x) {
  return (cpu_exec){x->kernels, NULL, x->bytes};
}

/* Storage types that kernels read or write; arithmetic is in fp32. */
typedef enum cpu_dtype { CPU_F32 = 0, CPU_F16 = 1, CPU_BF16 = 2 } cpu_dtype;

typedef enum cpu_activation {
  CPU_ACT_NONE = 0,
  CPU_ACT_RELU = 1,
  CPU_ACT_GELU_ERF = 2,   /* x Phi(x) */
  CPU_ACT_GELU_TANH = 3,  /* x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is the tanh form */
  CPU_ACT_GELU_QUICK = 4, /* x sigmoid(1.702 x) */
  CPU_ACT_SILU = 5,       /* x sigmoid(x) */
  CPU_ACT_TANH = 6,
  CPU_ACT_SIGMOID = 7,
  CPU_ACT_HARD_SWISH = 8, /* x min(max(x/6 + 1/2, 0), 1) */
  CPU_ACT_COUNT = 9
} cpu_activation;

#endif
