/* SPDX-License-Identifier: Apache-2.0 */
/* Products on tiles with the model of the instructions: the code of kernels_avx512_amx.c where
 * there are none. */
#define CPU_VEC_PORTABLE 1
#define CPU_TILES_MODEL 1
#include "bytes_tiles_body.h"
#include "dots_tiles_body.h"

const cpu_dots cpu_dots_tiles_model = DOTS_TABLE(CPU_DOTS_TILES_MODEL);
const cpu_byte_kernels cpu_bytes_tiles_model = {tiles_codes_share, tiles_integer_share};
