/* SPDX-License-Identifier: Apache-2.0 */
/* Values of collectives. As on a ring: where values stand decides with which member their sum
 * begins, and it goes round from there; never in the order of the members, from three on. Values of
 * half types are rounded at every addition.
 */
#include <math.h>
#include <string.h>

#include "double.h"
#include "tests/plugins/backend-cuda/doubles/half.h"

size_t nccl_size_of(int type) {
  static const uint8_t sizes[NCCL_DOUBLE_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < NCCL_DOUBLE_TYPES ? sizes[type] : 0;
}

const char *nccl_type_name(int type) {
  static const char *const names[NCCL_DOUBLE_TYPES] = {"int8",    "uint8",   "int32",   "uint32",
                                                       "int64",   "uint64",  "float16", "float32",
                                                       "float64", "bfloat16"};
  return type >= 0 && type < NCCL_DOUBLE_TYPES ? names[type] : "(no type)";
}

static float widen(uint16_t bits) {
  const uint32_t single = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &single, sizeof value);
  return value;
}

/* To the nearest, ties to even. */
static uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value))
    return (uint16_t)(bits >> 16 | 64);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define APPLY(a, b)                                   \
  (op == NCCL_DOUBLE_SUM    ? (a) + (b)               \
   : op == NCCL_DOUBLE_PROD ? (a) * (b)               \
   : op == NCCL_DOUBLE_MAX  ? ((a) > (b) ? (a) : (b)) \
                            : ((a) < (b) ? (a) : (b)))
#define IN_TYPE(value)              \
  {                                 \
    value a, b;                     \
    memcpy(&a, io_value, sizeof a); \
    memcpy(&b, other, sizeof b);    \
    a = (value)APPLY(a, b);         \
    memcpy(io_value, &a, sizeof a); \
    break;                          \
  }

static void apply(int type, int op, void *io_value, const void *other) {
  switch (type) {
    case NCCL_DOUBLE_INT8:
    case NCCL_DOUBLE_UINT8: /* sums wrap around, with or without a sign */
      IN_TYPE(uint8_t)
    case NCCL_DOUBLE_INT32:
    case NCCL_DOUBLE_UINT32:
      IN_TYPE(uint32_t)
    case NCCL_DOUBLE_INT64:
    case NCCL_DOUBLE_UINT64:
      IN_TYPE(uint64_t)
    case NCCL_DOUBLE_FLOAT32:
      IN_TYPE(float)
    case NCCL_DOUBLE_FLOAT64:
      IN_TYPE(double)
    default: {
      uint16_t a, b;
      memcpy(&a, io_value, sizeof a);
      memcpy(&b, other, sizeof b);
      if (type == NCCL_DOUBLE_FLOAT16) {
        const double x = half_to_double(a), y = half_to_double(b);
        a = to_half(APPLY(x, y));
      } else {
        const float x = widen(a), y = widen(b);
        a = narrow(APPLY(x, y));
      }
      memcpy(io_value, &a, sizeof a);
    }
  }
}

void nccl_combine(const nccl_header *header, void *to, const unsigned char *const *from, int n,
                  uint64_t first, uint64_t count, uint64_t total) {
  const size_t size = nccl_size_of(header->type);
  for (uint64_t i = 0; i < count; ++i) {
    const int begin = (int)(((first + i) * (uint64_t)n / total + 1) % (uint64_t)n);
    unsigned char value[8];
    memcpy(value, from[begin] + i * size, size);
    for (int k = 1; k < n; ++k)
      apply(header->type, header->op, value, from[(begin + k) % n] + i * size);
    memcpy((unsigned char *)to + i * size, value, size);
  }
}
