/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bytes for AVX-512 with AVX512-VNNI: one instruction for a lane's four products and
 * their sum. Everything in this file but the table is static, so that no function built for one
 * instruction set can be called by code of another. */
#if defined(__x86_64__)
#define CPU_VEC_AVX512 1
#include "codes_int8_body.h"

const cpu_byte_kernels cpu_bytes_avx512_vnni = {codes_int8_share, codes_integer_share};

#else
/* No kernels here for other architectures; C wants a declaration. */
typedef int cpu_no_bytes_avx512_vnni;
#endif
