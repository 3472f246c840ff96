/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of elements between their stored type and the class in which they are computed.
 *
 * Every load and store goes through memcpy of one element, which costs nothing and allows any
 * alignment: parameters may lie anywhere in a mapped file.
 */
#include "../kernels/half.h"
#include "loop.h"

cpu_class cpu_class_of(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_DOUBLE:
      return CPU_CLASS_F64;
    case OPIPE_FLOAT:
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      return CPU_CLASS_F32;
    case OPIPE_UINT64:
      return CPU_CLASS_U64;
    default:
      return CPU_CLASS_I64;
  }
}

bool cpu_raw_class_of(uint32_t dtype, cpu_class *out_class) {
  switch (opipe_dtype_bits(dtype)) {
    case 8:
      *out_class = CPU_CLASS_RAW1;
      return true;
    case 16:
      *out_class = CPU_CLASS_RAW2;
      return true;
    case 32:
      *out_class = CPU_CLASS_RAW4;
      return true;
    case 64:
      *out_class = CPU_CLASS_RAW8;
      return true;
    default:
      return false;
  }
}

/* Loads n strided elements of type S, converts each with CONVERT, into T *out. */
#define LOAD(S, T, CONVERT)                                             \
  do {                                                                  \
    const char *from = (const char *)data + first * (int64_t)sizeof(S); \
    const int64_t step = stride * (int64_t)sizeof(S);                   \
    if (stride == 1) {                                                  \
      for (int64_t k = 0; k < n; ++k) {                                 \
        S v;                                                            \
        memcpy(&v, from + k * (int64_t)sizeof(S), sizeof v);            \
        out[k] = (T)CONVERT(v);                                         \
      }                                                                 \
    } else {                                                            \
      for (int64_t k = 0; k < n; ++k) {                                 \
        S v;                                                            \
        memcpy(&v, from + k * step, sizeof v);                          \
        out[k] = (T)CONVERT(v);                                         \
      }                                                                 \
    }                                                                   \
  } while (0)

#define LOAD_CASES(T)                   \
  case OPIPE_FLOAT:                     \
    LOAD(float, T, );                   \
    break;                              \
  case OPIPE_DOUBLE:                    \
    LOAD(double, T, );                  \
    break;                              \
  case OPIPE_FLOAT16:                   \
    LOAD(uint16_t, T, cpu_f16_to_f32);  \
    break;                              \
  case OPIPE_BFLOAT16:                  \
    LOAD(uint16_t, T, cpu_bf16_to_f32); \
    break;                              \
    LOAD_INTEGER_CASES(T)

#define LOAD_INTEGER_CASES(T) \
  case OPIPE_UINT8:           \
  case OPIPE_BOOL:            \
    LOAD(uint8_t, T, );       \
    break;                    \
  case OPIPE_INT8:            \
    LOAD(int8_t, T, );        \
    break;                    \
  case OPIPE_UINT16:          \
    LOAD(uint16_t, T, );      \
    break;                    \
  case OPIPE_INT16:           \
    LOAD(int16_t, T, );       \
    break;                    \
  case OPIPE_UINT32:          \
    LOAD(uint32_t, T, );      \
    break;                    \
  case OPIPE_INT32:           \
    LOAD(int32_t, T, );       \
    break;                    \
  case OPIPE_UINT64:          \
    LOAD(uint64_t, T, );      \
    break;                    \
  default:                    \
    LOAD(int64_t, T, );       \
    break;

static void load_f32(uint32_t dtype, const void *data, int64_t first, int64_t stride, int64_t n,
                     float *out) {
  switch (dtype) { LOAD_CASES(float) }
}

static void load_f64(uint32_t dtype, const void *data, int64_t first, int64_t stride, int64_t n,
                     double *out) {
  switch (dtype) { LOAD_CASES(double) }
}

/* Also for the U64 class: the 64 bits are the same. */
static void load_i64(uint32_t dtype, const void *data, int64_t first, int64_t stride, int64_t n,
                     int64_t *out) {
  switch (dtype) { LOAD_INTEGER_CASES(int64_t) }
}

static void load_raw(uint32_t size, const void *data, int64_t first, int64_t stride, int64_t n,
                     uint8_t *out) {
  const char *from = (const char *)data + first * (int64_t)size;
  const int64_t step = stride * (int64_t)size;
  for (int64_t k = 0; k < n; ++k)
    memcpy(out + k * (int64_t)size, from + k * step, size);
}

/* True when stored elements are already in the class. */
static bool is_native(cpu_class to, uint32_t dtype) {
  switch (to) {
    case CPU_CLASS_F32:
      return dtype == OPIPE_FLOAT;
    case CPU_CLASS_F64:
      return dtype == OPIPE_DOUBLE;
    case CPU_CLASS_I64:
    case CPU_CLASS_U64:
      return dtype == OPIPE_INT64 || dtype == OPIPE_UINT64;
    default:
      return true;
  }
}

static uint32_t class_bytes(cpu_class to) {
  static const uint8_t bytes[] = {4, 8, 8, 8, 1, 2, 4, 8};
  return bytes[to];
}

const void *cpu_fetch(cpu_class to, uint32_t dtype, const void *data, int64_t first, int64_t stride,
                      int64_t n, cpu_run_buffer *buffer) {
  const uint32_t size = class_bytes(to);
  const char *from = (const char *)data + first * (int64_t)size;
  if (stride == 1 && is_native(to, dtype) && (uintptr_t)from % size == 0)
    return from;
  switch (to) {
    case CPU_CLASS_F32:
      load_f32(dtype, data, first, stride, n, buffer->f32);
      break;
    case CPU_CLASS_F64:
      load_f64(dtype, data, first, stride, n, buffer->f64);
      break;
    case CPU_CLASS_I64:
    case CPU_CLASS_U64:
      load_i64(dtype, data, first, stride, n, buffer->i64);
      break;
    default:
      load_raw(size, data, first, stride, n, buffer->raw);
      break;
  }
  return buffer;
}

void *cpu_stage(cpu_class from, uint32_t dtype, void *data, int64_t first, cpu_run_buffer *buffer) {
  return is_native(from, dtype) ? (char *)data + first * (int64_t)class_bytes(from)
                                : (void *)buffer;
}

#define STORE(S, CONVERT)             \
  do {                                \
    S *to = (S *)data + first;        \
    for (int64_t k = 0; k < n; ++k) { \
      to[k] = (S)CONVERT(in[k]);      \
    }                                 \
  } while (0)

static void store_f32(uint32_t dtype, const float *in, void *data, int64_t first, int64_t n) {
  switch (dtype) {
    case OPIPE_FLOAT16:
      STORE(uint16_t, cpu_f32_to_f16);
      break;
    case OPIPE_BFLOAT16:
      STORE(uint16_t, cpu_f32_to_bf16);
      break;
    case OPIPE_DOUBLE:
      STORE(double, );
      break;
    default:
      STORE(float, );
      break;
  }
}

static void store_i64(uint32_t dtype, const int64_t *in, void *data, int64_t first, int64_t n) {
  switch (opipe_dtype_bits(dtype)) {
    case 8:
      STORE(uint8_t, );
      break;
    case 16:
      STORE(uint16_t, );
      break;
    case 32:
      STORE(uint32_t, );
      break;
    default:
      STORE(uint64_t, );
      break;
  }
}

void cpu_store(cpu_class from, uint32_t dtype, const void *run, void *data, int64_t first,
               int64_t n) {
  if (is_native(from, dtype) && run == (char *)data + first * (int64_t)class_bytes(from))
    return;
  switch (from) {
    case CPU_CLASS_F32:
      store_f32(dtype, run, data, first, n);
      break;
    case CPU_CLASS_F64: {
      const double *in = run;
      STORE(double, );
      break;
    }
    case CPU_CLASS_I64:
    case CPU_CLASS_U64:
      store_i64(dtype, run, data, first, n);
      break;
    default:
      memcpy((char *)data + first * (int64_t)class_bytes(from), run, (size_t)n * class_bytes(from));
      break;
  }
}

double cpu_number(const cpu_tensor *tensor, uint64_t i) {
  double out[1];
  load_f64(tensor->dtype, tensor->data, (int64_t)i, 1, 1, out);
  return out[0];
}
