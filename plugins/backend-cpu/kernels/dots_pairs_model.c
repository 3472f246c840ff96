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

CPU_STATIC void dots_chain(const uint16_t *a, const uint16_t *b, int64_t steps, int64_t rows,
                           float *sum) {
  for (int64_t r = 0; r < rows; ++r, a += CPU_CHAIN) {
    for (int64_t u = 0; u < CPU_PANEL; ++u) {
      float s = 0.0f;
      for (int64_t k = 0; k < steps; k += 2)
        s = model_pair(a + k, b + k * CPU_PANEL + 2 * u, s);
      sum[r * CPU_PANEL + u] = s;
    }
  }
}

const cpu_dots cpu_dots_pairs_model = {CPU_DOTS_PAIRS_MODEL, dots_share};
