/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels for plain C. Everything in this file but the table is static, so that no
 * function built for one instruction set can be called by code of another. */
#define CPU_VEC_PORTABLE 1
#include "kernels_body.h"

const cpu_kernels cpu_kernels_portable = CPU_KERNELS_TABLE(CPU_ISA_PORTABLE);
