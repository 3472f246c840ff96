/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels for AVX2, FMA and F16C. Everything in this file but the table is static, so that no
 * function built for one instruction set can be called by code of another. */
#if defined(__x86_64__)
#define CPU_VEC_AVX2 1
#include "kernels_body.h"

const cpu_kernels cpu_kernels_avx2 = CPU_KERNELS_TABLE(CPU_ISA_AVX2);

#else
/* No kernels here for other architectures; C wants a declaration. */
typedef int cpu_no_kernels_avx2;
#endif
