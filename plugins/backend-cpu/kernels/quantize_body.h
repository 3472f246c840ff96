/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to integers of 8 bits, included once per instruction set after vec.h. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_QUANTIZE_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_QUANTIZE_BODY_H_

#include "quantize.h"
#include "table.h"
#include "vec.h"

CPU_STATIC void quantize_share(const cpu_quantize_args *g, cpu_range share) {
  /* 1.5 * 2^23 rounds what is below 2^22; what is beyond 2^21 is out of any range */
  const v16 shift = v16_set(12582912.0f), far = v16_set(2097152.0f);
  const v16 scale = v16_set(g->scale), zero = v16_set(g->zero);
  const v16 low = v16_set(g->low), high = v16_set(g->high);
  for (int64_t i = share.begin; i < share.end; i += 16) {
    const int64_t left = share.end - i;
    const v16 quotient = v16_div(v16_load_part_or(g->x + i, left, 0.0f), scale);
    const v16 near = v16_min(v16_max(quotient, v16_neg(far)), far); /* NaN: -2^21 */
    const v16 steps = v16_sub(v16_add(near, shift), shift);
    const v16 y = v16_min(v16_max(v16_add(steps, zero), low), high);
    if (left >= 16) {
      v16_store_bytes(g->y + i, y);
    } else {
      uint8_t bytes[16];
      v16_store_bytes(bytes, y);
      memcpy(g->y + i, bytes, (size_t)left);
    }
  }
}

CPU_STATIC void dequantize_share(const cpu_dequantize_args *g, cpu_range share) {
  const int8_t *wide = (const int8_t *)g->x;
  const uint8_t *plain = (const uint8_t *)g->x;
  float *y = g->y;
  const int32_t zero = g->zero;
  const float scale = g->scale;
  if (g->is_signed) {
    for (int64_t i = share.begin; i < share.end; ++i)
      y[i] = (float)(wide[i] - zero) * scale;
  } else {
    for (int64_t i = share.begin; i < share.end; ++i)
      y[i] = (float)(plain[i] - zero) * scale;
  }
}

/* io: the least and the greatest so far */
CPU_STATIC void range_share(const float *in, int64_t n, float *io) {
  v16 least = v16_set(io[0]), greatest = v16_set(io[1]);
  for (int64_t i = 0; i < n; i += 16) {
    const v16 x = v16_load_part_or(in + i, n - i, 0.0f);
    least = v16_min(x, least);
    greatest = v16_max(x, greatest);
  }
  io[0] = -v16_largest(v16_neg(least));
  io[1] = v16_largest(greatest);
}

#endif
