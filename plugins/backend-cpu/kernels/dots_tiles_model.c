/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 on tiles, with the model of the instructions: the code of kernels_avx512_amx.c
 * where there are none. */
#define CPU_VEC_PORTABLE 1
#include "vec.h"

#include "tiles_model.h"

static _Thread_local model_tiles model;

static void tile_configure(void) {
  memset(&model, 0xff, sizeof model); /* NaN: what nobody has set shows */
}

static void tile_release(void) {
  memset(&model, 0xff, sizeof model);
}

#define TILE_ZERO(t) model_zero(&model, t)
#define TILE_LOAD(t, from, stride) model_load(&model, t, from, stride)
#define TILE_STORE(t, to, stride) model_store(&model, t, to, stride)
#define TILE_DOT(c, a, b) model_dot(&model, c, a, b)

#include "dots_tiles_body.h"

const cpu_dots cpu_dots_tiles_model = DOTS_TABLE(CPU_DOTS_TILES_MODEL);
