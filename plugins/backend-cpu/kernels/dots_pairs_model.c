/* SPDX-License-Identifier: Apache-2.0 */
/* Products of pairs of bf16 by the model of the instruction: what kernels_avx512_bf16.c must give.
 */
#define CPU_VEC_PORTABLE 1
#include "vec.h"

#include "tiles_model.h"

#define DOTS_ROWS 4
#include "dots_body.h"

CPU_STATIC void dots_begin(void) {}

CPU_STATIC void dots_end(void) {}

CPU_STATIC void dots_chain(const dots_tile *t) {
  for (int64_t r = 0; r < t->rows; ++r) {
    for (int64_t u = 0; u < CPU_PANEL; ++u) {
      float *sum = t->sum + r * CPU_PANEL + u, s = t->resume ? *sum : 0.0f;
      for (int64_t k = 0; k < t->steps; k += 2)
        s = model_pair(t->a + r * t->a_stride + k, t->b + k * CPU_PANEL + 2 * u, s);
      *sum = s;
    }
  }
}

const cpu_dots cpu_dots_pairs_model = DOTS_TABLE(CPU_DOTS_PAIRS_MODEL);
