/* SPDX-License-Identifier: Apache-2.0 */
/* Element by element, any strides: arithmetic, activations and their gradients,
 * comparisons, Where, Cast.
 *
 * A thread makes one element at a time; the type is the kernel's for floats, and read as it runs
 * for integers, comparisons and conversions. Hot functions on dense operands go to flat.cu. */
#include "map_math.cuh"
#include "numbers.cuh"

/* The two parameters of activations: alpha, and beta or gamma. */
template <class R>
CUDA_FN R second_parameter(const cuda_map_block &a) {
  return (R)(a.op == CUDA_MAP_SELU || a.op == CUDA_MAP_GRAD_SELU ? a.gamma : a.beta);
}

template <class R, class T>
CUDA_FN R clip(const cuda_map_block &a, R x) {
  const T *low = static_cast<const T *>(a.in[1]);
  const T *high = static_cast<const T *>(a.in[2]);
  x = low != nullptr && x < (R)widen(*low) ? (R)widen(*low) : x;
  return high != nullptr && x > (R)widen(*high) ? (R)widen(*high) : x;
}

template <class T>
CUDA_FN void map_floats(const cuda_map_block &a) {
  typedef typename real_of<T>::type R;
  const T *first = static_cast<const T *>(a.in[0]);
  const T *second = static_cast<const T *>(a.in[1]);
  const R p = (R)a.alpha, q = second_parameter<R>(a);
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[2];
    offsets<2>(a.axes, i, at);
    const R x = widen(first[at[0]]);
    R y;
    if (a.op <= CUDA_MAP_ATANH)
      y = function(a.op, x);
    else if (a.op <= CUDA_MAP_HARDSIGMOID)
      y = activation(a.op, x, p, q);
    else if (a.op == CUDA_MAP_CLIP)
      y = clip<R, T>(a, x);
    else if (a.op < CUDA_MAP_GRAD_RELU)
      y = binary(a.op, x, (R)widen(second[at[1]]));
    else
      y = slope_times(a.op, x, (R)widen(second[at[1]]), p, q);
    put(static_cast<T *>(a.out), i, y);
  }
}

CUDA_KERNEL(opipe_map_f32) {
  map_floats<float>(a);
}
CUDA_KERNEL(opipe_map_bf16) {
  map_floats<bf16>(a);
}
CUDA_KERNEL(opipe_map_f16) {
  map_floats<f16>(a);
}
CUDA_KERNEL(opipe_map_f64) {
  map_floats<double>(a);
}

/* ---- integers: they wrap ---- */

CUDA_FN uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    result = (exponent & 1) != 0 ? result * base : result;
    base *= base;
  }
  return result;
}

/* A negative exponent leaves a fraction: 0 but for bases 1 and -1. */
CUDA_FN int64_t signed_power(int64_t base, int64_t exponent) {
  if (exponent >= 0)
    return (int64_t)power((uint64_t)base, (uint64_t)exponent);
  return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
}

/* INT64_MIN / -1 wraps. b is not 0. */
CUDA_FN int64_t quotient(int64_t x, int64_t b) {
  return b == -1 ? (int64_t)((uint64_t)0 - (uint64_t)x) : x / b;
}
CUDA_FN int64_t remainder_of(int64_t x, int64_t b, bool floored) {
  const int64_t rest = b == -1 ? 0 : x % b;
  return floored && rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

CUDA_FN int64_t divide_integers(const cuda_map_block &a, int64_t x, int64_t b) {
  if (b == 0) {
    report(a.status, CUDA_STATUS_DIVIDE, a.node, x, 0);
    return 0;
  }
  if (a.is_u64)
    return (int64_t)(a.op == CUDA_MAP_DIV ? (uint64_t)x / (uint64_t)b : (uint64_t)x % (uint64_t)b);
  return a.op == CUDA_MAP_DIV ? quotient(x, b) : remainder_of(x, b, a.op == CUDA_MAP_MOD);
}

CUDA_FN bool less(const cuda_map_block &a, int64_t x, int64_t y) {
  return a.is_u64 ? (uint64_t)x < (uint64_t)y : x < y;
}

CUDA_FN int64_t integer_of_two(const cuda_map_block &a, int64_t x, int64_t y) {
  switch (a.op) {
    case CUDA_MAP_ADD:
      return (int64_t)((uint64_t)x + (uint64_t)y);
    case CUDA_MAP_SUB:
      return (int64_t)((uint64_t)x - (uint64_t)y);
    case CUDA_MAP_MUL:
      return (int64_t)((uint64_t)x * (uint64_t)y);
    case CUDA_MAP_DIV:
    case CUDA_MAP_MOD:
    case CUDA_MAP_FMOD:
      return divide_integers(a, x, y);
    case CUDA_MAP_POW:
      return a.is_u64 ? (int64_t)power((uint64_t)x, (uint64_t)y) : signed_power(x, y);
    case CUDA_MAP_MAX:
      return less(a, x, y) ? y : x;
    case CUDA_MAP_MIN:
      return less(a, y, x) ? y : x;
    default: /* PRELU */
      return less(a, x, 0) ? (int64_t)((uint64_t)x * (uint64_t)y) : x;
  }
}

CUDA_FN int64_t integer_of_one(const cuda_map_block &a, int64_t x) {
  switch (a.op) {
    case CUDA_MAP_ABS:
      return less(a, x, 0) ? (int64_t)((uint64_t)0 - (uint64_t)x) : x;
    case CUDA_MAP_NEG:
      return (int64_t)((uint64_t)0 - (uint64_t)x);
    case CUDA_MAP_SIGN:
      return less(a, x, 0) ? -1 : x != 0;
    default: /* RELU */
      return less(a, x, 0) ? 0 : x;
  }
}

CUDA_KERNEL(opipe_map_int) {
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[2];
    offsets<2>(a.axes, i, at);
    int64_t y = load_integer(a.in[0], a.in_dtype, at[0]);
    if (a.op == CUDA_MAP_CLIP) {
      const int64_t low = a.in[1] == nullptr ? y : load_integer(a.in[1], a.in_dtype, 0);
      y = less(a, y, low) ? low : y;
      const int64_t high = a.in[2] == nullptr ? y : load_integer(a.in[2], a.in_dtype, 0);
      y = less(a, high, y) ? high : y;
    } else if (a.op <= CUDA_MAP_HARDSIGMOID) {
      y = integer_of_one(a, y);
    } else {
      y = integer_of_two(a, y, load_integer(a.in[1], a.in_dtype, at[1]));
    }
    store_integer(a.out, a.in_dtype, i, y);
  }
}

/* ---- to bool ---- */

template <class N>
CUDA_FN bool compare(uint32_t op, N x, N y) {
  switch (op) {
    case CUDA_MAP_EQUAL:
      return x == y;
    case CUDA_MAP_GREATER:
      return x > y;
    case CUDA_MAP_GREATEROREQUAL:
      return x >= y;
    case CUDA_MAP_LESS:
      return x < y;
    case CUDA_MAP_LESSOREQUAL:
      return x <= y;
    case CUDA_MAP_AND:
      return x != 0 && y != 0;
    case CUDA_MAP_OR:
      return x != 0 || y != 0;
    default: /* XOR */
      return (x != 0) != (y != 0);
  }
}

CUDA_FN bool test_one(const cuda_map_block &a, double x) {
  if (a.op == CUDA_MAP_NOT)
    return x == 0;
  if (a.op == CUDA_MAP_ISNAN)
    return x != x;
  return (x > 0 ? a.beta : a.alpha) != 0 && isinf(x);
}

CUDA_KERNEL(opipe_map_test) {
  const bool floats = is_float(a.in_dtype);
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[2];
    bool y;
    offsets<2>(a.axes, i, at);
    if (a.op <= CUDA_MAP_ISINF) {
      y = test_one(a, load_number(a.in[0], a.in_dtype, at[0]));
    } else if (floats) {
      y = compare(a.op, load_number(a.in[0], a.in_dtype, at[0]),
                  load_number(a.in[1], a.in_dtype, at[1]));
    } else {
      const int64_t x = load_integer(a.in[0], a.in_dtype, at[0]);
      const int64_t z = load_integer(a.in[1], a.in_dtype, at[1]);
      y = a.is_u64 ? compare(a.op, (uint64_t)x, (uint64_t)z) : compare(a.op, x, z);
    }
    static_cast<uint8_t *>(a.out)[i] = y;
  }
}

/* ---- Where ---- */

template <class T>
CUDA_FN void select(const cuda_map_block &a) {
  const uint8_t *condition = static_cast<const uint8_t *>(a.in[0]);
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[3];
    offsets<3>(a.axes, i, at);
    static_cast<T *>(a.out)[i] = condition[at[0]] != 0 ? static_cast<const T *>(a.in[1])[at[1]]
                                                       : static_cast<const T *>(a.in[2])[at[2]];
  }
}

CUDA_KERNEL(opipe_map_where) {
  switch (a.size) {
    case 1:
      select<uint8_t>(a);
      break;
    case 2:
      select<uint16_t>(a);
      break;
    case 4:
      select<uint32_t>(a);
      break;
    default:
      select<uint64_t>(a);
      break;
  }
}

/* ---- Cast: through fp64 or 64-bit integers, one rounding ---- */

CUDA_KERNEL(opipe_map_cast) {
  const bool from_float = is_float(a.in_dtype), to_float = is_float(a.out_dtype);
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[1];
    offsets<1>(a.axes, i, at);
    if (from_float) {
      const double x = load_number(a.in[0], a.in_dtype, at[0]);
      if (to_float) {
        store_number(a.out, a.out_dtype, i, x);
      } else {
        store_integer(a.out, a.out_dtype, i,
                      a.out_dtype == TYPE_BOOL ? x != 0 : to_integer(x, a.out_dtype));
      }
    } else {
      const int64_t x = load_integer(a.in[0], a.in_dtype, at[0]);
      if (a.out_dtype == TYPE_F32) /* one rounding: not by way of fp64 */
        static_cast<float *>(a.out)[i] = a.is_u64 ? (float)(uint64_t)x : (float)x;
      else if (to_float)
        store_number(a.out, a.out_dtype, i, a.is_u64 ? (double)(uint64_t)x : (double)x);
      else
        store_integer(a.out, a.out_dtype, i, a.out_dtype == TYPE_BOOL ? x != 0 : x);
    }
  }
}
