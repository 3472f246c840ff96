/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of attention by cuDNN: an opening that counts its messages about plans;
 * numbers of half types.
 */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_CUDNN_BENCH_H_
#define TESTS_PLUGINS_BACKEND_CUDA_CUDNN_BENCH_H_

#include <math.h>

#include "cuda_test.h"
#include "doubles/half.h"

typedef struct cd_opening {
  ct_backend b;
  const opipe_backend *t;
  opipe_device *device;
  uint32_t n_told, n_warned; /* of plans that were made, and that were refused */
} cd_opening;

static cd_opening *cd_listening;
static inline void cd_listen(void *ctx, uint32_t level, const char *file, uint32_t line,
                             const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  cd_listening->n_told += strstr(msg, "cuDNN's engine") != NULL;
  cd_listening->n_warned += level == OPIPE_LOG_WARN && strstr(msg, "our own kernels") != NULL;
}

/* False, after a skip: this build has no doubles. The one that was opened last counts. */
static inline bool cd_open(cd_opening *x, const char *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (!ct_open(&x->b))
    return false;
  cd_listening = x;
  x->n_told = x->n_warned = 0;
  x->b.base.host.log = cd_listen;
  x->t = x->b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&x->b.base, options, 1, 0, &x->device, &err), &err);
  return true;
}

static inline void cd_close(cd_opening *x) {
  x->t->device_close(x->device);
  bt_close(&x->b.base);
}

/* Cut, not rounded; normal numbers, 0 and infinities. */
static inline uint16_t cd_to_half(uint32_t dtype, double value) {
  const float x = (float)value;
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  if (dtype == OPIPE_BFLOAT16)
    return (uint16_t)(bits >> 16);
  if (isinf(x))
    return (uint16_t)((bits >> 16 & 0x8000) | 0x7c00);
  return (uint16_t)((bits >> 16 & 0x8000) |
                    (x == 0 ? 0 : ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023)));
}

static inline double cd_from_half(uint32_t dtype, uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value = 0;
  if (dtype != OPIPE_BFLOAT16)
    return half_to_double(half);
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

#endif
