/* SPDX-License-Identifier: Apache-2.0 */
/* Products of pairs of bf16 for AVX-512 with AVX512-BF16. Everything in this file but the table is
 * static, so that no function built for one instruction set can be called by code of another. */
#if defined(__x86_64__)
#define CPU_VEC_AVX512 1
#include "vec.h"

#define DOTS_ROWS 6
#include "dots_body.h"

CPU_STATIC void dots_begin(void) {}

CPU_STATIC void dots_end(void) {}

/* rows is a constant. */
CPU_INLINE void pairs_rows(const dots_tile *t, const int rows) {
  __m512 sum[DOTS_ROWS][PANEL_VECTORS];
  const uint16_t *a = t->a, *b = t->b;
  const int64_t a_stride = t->a_stride, ahead_bytes = t->ahead_bytes;
  const char *ahead = t->ahead;
  CPU_UNROLL(6)
  for (int r = 0; r < rows; r++) {
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      sum[r][v] =
          t->resume ? _mm512_loadu_ps(t->sum + r * CPU_PANEL + 16 * v) : _mm512_setzero_ps();
    }
  }
  for (int64_t left = t->steps; left > 0; left -= 2, a += 2, b += 2 * CPU_PANEL) {
    __m512bh w[PANEL_VECTORS];
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      w[v] = (__m512bh)_mm512_loadu_si512(b + 32 * v);
      v16_prefetch_l1(b + 16 * CPU_PANEL + 32 * v);
    }
    v16_prefetch_l2(ahead);
    ahead += ahead_bytes;
    CPU_UNROLL(6)
    for (int r = 0; r < rows; r++) {
      int32_t two;
      memcpy(&two, a + r * a_stride, sizeof two);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(two);
      CPU_UNROLL(4)
      for (int v = 0; v < PANEL_VECTORS; v++) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, w[v]);
      }
    }
  }
  CPU_UNROLL(6)
  for (int r = 0; r < rows; r++) {
    CPU_UNROLL(4)
    for (int v = 0; v < PANEL_VECTORS; v++) {
      _mm512_storeu_ps(t->sum + r * CPU_PANEL + 16 * v, sum[r][v]);
    }
  }
}

CPU_STATIC void dots_chain(const dots_tile *t) {
  if (t->rows == 1)
    pairs_rows(t, 1);
  else if (t->rows <= 3)
    pairs_rows(t, 3);
  else
    pairs_rows(t, 6);
}

const cpu_dots cpu_dots_pairs = DOTS_TABLE(CPU_DOTS_PAIRS);

#else
/* No kernels here for other architectures; C wants a declaration. */
typedef int cpu_no_dots_pairs;
#endif
