/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tiles for AVX-512 with AMX-BF16 and, of bytes, AMX-INT8. Everything in this file but
 * the tables is static, so that no function built for one instruction set can be called by code of
 * another. */
#if defined(__x86_64__)
#define CPU_VEC_AVX512 1
#include "bytes_tiles_body.h"
#include "dots_tiles_body.h"

const cpu_dots cpu_dots_tiles = DOTS_TABLE(CPU_DOTS_TILES);
const cpu_byte_kernels cpu_bytes_tiles = {tiles_codes_share, tiles_integer_share};

#else
/* No kernels here for other architectures; C wants a declaration. */
typedef int cpu_no_tiles;
#endif
