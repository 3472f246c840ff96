/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise functions that models spend time in, on dense operands, 16
 * bytes at a time.
 *
 * An operand may repeat with a period (a bias, a scalar). The function is
 * chosen once per thread; bits are those of map.cu. Conversions between the
 * float types, sums into gradients and fills are here too. */
#include "map_math.cuh"
#include "numbers.cuh"

/* y = f(x, z) on vectors. whole: see load_packet; of an operand with a period
 * it is decided per vector. */
template <class T, class F>
CUDA_FN void each(const cuda_flat_block &a, F f) {
  typedef typename real_of<T>::type R;
  const int V = lanes<T>::n;
  const T *in[2] = {static_cast<const T *>(a.in[0]), static_cast<const T *>(a.in[1])};
  T *out = static_cast<T *>(a.out);
  const bool flat = aligned16(out);
  for (int64_t i = first_element() * V; i < a.n; i += element_step() * V) {
    R x[2][V];
    const bool whole = i + V <= a.n;
    CUDA_UNROLL
    for (int k = 0; k < 2; ++k) {
      if (in[k] == nullptr) {
        CUDA_UNROLL
        for (int v = 0; v < V; ++v)
          x[k][v] = 0;
        continue;
      }
      if (a.period[k] == 0) {
        load_packet(in[k], i, a.n, whole && aligned16(in[k]), x[k]);
      } else if (a.period[k] == 1) {
        CUDA_UNROLL
        for (int v = 0; v < V; ++v)
          x[k][v] = widen(in[k][0]);
      } else if (a.period[k] % V == 0) {
        load_packet(in[k], i % a.period[k], a.period[k], aligned16(in[k]), x[k]);
      } else {
        int64_t at = i % a.period[k];
        CUDA_UNROLL
        for (int v = 0; v < V; ++v) {
          x[k][v] = widen(in[k][at]);
          at = at + 1 == a.period[k] ? 0 : at + 1;
        }
      }
    }
    CUDA_UNROLL
    for (int v = 0; v < V; ++v)
      x[0][v] = f(x[0][v], x[1][v]);
    store_packet(out, i, a.n, whole && flat, x[0]);
  }
}

#define CUDA_EACH(OP, TYPE, EXPR)                                           \
  case OP:                                                                  \
    each<TYPE>(a, [&](float x, [[maybe_unused]] float z) { return EXPR; }); \
    break;

template <class T>
CUDA_FN void flat_two(const cuda_flat_block &a) {
  const float p = (float)a.alpha;
  switch (a.op) {
    CUDA_EACH(CUDA_MAP_ADD, T, x + z)
    CUDA_EACH(CUDA_MAP_SUB, T, x - z)
    CUDA_EACH(CUDA_MAP_MUL, T, x * z)
    CUDA_EACH(CUDA_MAP_DIV, T, x / z)
    CUDA_EACH(CUDA_MAP_GRAD_RELU, T, (slope_times<float>(CUDA_MAP_GRAD_RELU, x, z, p, 0)))
    CUDA_EACH(CUDA_MAP_GRAD_SIGMOID, T, (slope_times<float>(CUDA_MAP_GRAD_SIGMOID, x, z, p, 0)))
    CUDA_EACH(CUDA_MAP_GRAD_TANH, T, (slope_times<float>(CUDA_MAP_GRAD_TANH, x, z, p, 0)))
    CUDA_EACH(CUDA_MAP_GRAD_GELU, T, x * gelu_slope(z))
    CUDA_EACH(CUDA_MAP_GRAD_GELUTANH, T, x * gelu_tanh_slope(z))
    default: /* GRAD_SWISH, GRAD_QUICKGELU */
      each<T>(a, [&](float x, float z) { return x * swish_slope(z, p); });
      break;
  }
}

template <class T>
CUDA_FN void flat_one(const cuda_flat_block &a) {
  const float p = (float)a.alpha;
  switch (a.op) {
    CUDA_EACH(CUDA_MAP_NEG, T, -x)
    CUDA_EACH(CUDA_MAP_SQRT, T, root_of(x))
    CUDA_EACH(CUDA_MAP_EXP, T, exp_of(x))
    CUDA_EACH(CUDA_MAP_RELU, T, x > 0 || x != x ? x : 0.0f)
    CUDA_EACH(CUDA_MAP_SIGMOID, T, sigmoid(x))
    CUDA_EACH(CUDA_MAP_TANH, T, tanh_of(x))
    CUDA_EACH(CUDA_MAP_GELU, T, gelu(x))
    CUDA_EACH(CUDA_MAP_GELU_TANH, T, gelu_tanh(x))
    default: /* SWISH */
      each<T>(a, [&](float x, float) { return x * sigmoid(p * x); });
      break;
  }
}

#define CUDA_FLAT(SUFFIX, TYPE)     \
  CUDA_KERNEL(opipe_one_##SUFFIX) { \
    flat_one<TYPE>(a);              \
  }                                 \
  CUDA_KERNEL(opipe_two_##SUFFIX) { \
    flat_two<TYPE>(a);              \
  }
CUDA_FLAT(f32, float)
CUDA_FLAT(bf16, bf16)
CUDA_FLAT(f16, f16)

/* ---- gates of feed-forward layers: what two of the functions above would make ---- */

template <class T, class F>
CUDA_FN void gate_each(const cuda_gate_args &a, F f) {
  const int V = lanes<T>::n;
  const T *x = static_cast<const T *>(a.x), *z = static_cast<const T *>(a.z);
  const bool flat = aligned16(x) && aligned16(z) && aligned16(a.y) && aligned16(a.kept);
  for (int64_t i = first_element() * V; i < a.n; i += element_step() * V) {
    const bool whole = flat && i + V <= a.n;
    float u[V], v[V];
    load_packet(x, i, a.n, whole, u);
    load_packet(z, i, a.n, whole, v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      u[k] = as_stored<T>(f(u[k]));
      v[k] = u[k] * v[k];
    }
    if (a.kept != nullptr)
      store_packet(static_cast<T *>(a.kept), i, a.n, whole, u);
    store_packet(static_cast<T *>(a.y), i, a.n, whole, v);
  }
}

template <class T>
CUDA_FN void gated(const cuda_gate_args &a) {
  const float p = (float)a.alpha;
  switch (a.op) {
    case CUDA_MAP_SIGMOID:
      return gate_each<T>(a, [](float x) { return sigmoid(x); });
    case CUDA_MAP_RELU:
      return gate_each<T>(a, [](float x) { return x > 0 || x != x ? x : 0.0f; });
    case CUDA_MAP_GELU:
      return gate_each<T>(a, [](float x) { return gelu(x); });
    case CUDA_MAP_GELU_TANH:
      return gate_each<T>(a, [](float x) { return gelu_tanh(x); });
    default: /* SWISH */
      return gate_each<T>(a, [&](float x) { return x * sigmoid(p * x); });
  }
}

/* f: times the slope at x */
template <class T, class F>
CUDA_FN void gate_grad_each(const cuda_gate_grad_args &a, F f) {
  const int V = lanes<T>::n;
  const T *dy = static_cast<const T *>(a.dy), *z = static_cast<const T *>(a.z),
          *x = static_cast<const T *>(a.x);
  const bool flat = aligned16(dy) && aligned16(z) && aligned16(x) && aligned16(a.dx);
  for (int64_t i = first_element() * V; i < a.n; i += element_step() * V) {
    const bool whole = flat && i + V <= a.n;
    float d[V], v[V];
    load_packet(dy, i, a.n, whole, d);
    load_packet(z, i, a.n, whole, v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      d[k] = as_stored<T>(d[k] * v[k]);
    load_packet(x, i, a.n, whole, v);
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      d[k] = f(d[k], v[k]);
    store_packet(static_cast<T *>(a.dx), i, a.n, whole, d);
  }
}

template <class T>
CUDA_FN void gated_grad(const cuda_gate_grad_args &a) {
  const float p = (float)a.alpha;
  switch (a.op) {
    case CUDA_MAP_GRAD_RELU:
      return gate_grad_each<T>(
          a, [&](float d, float x) { return slope_times<float>(CUDA_MAP_GRAD_RELU, d, x, p, 0); });
    case CUDA_MAP_GRAD_GELU:
      return gate_grad_each<T>(a, [](float d, float x) { return d * gelu_slope(x); });
    case CUDA_MAP_GRAD_GELUTANH:
      return gate_grad_each<T>(a, [](float d, float x) { return d * gelu_tanh_slope(x); });
    default: /* GRAD_SWISH, GRAD_QUICKGELU */
      return gate_grad_each<T>(a, [&](float d, float x) { return d * swish_slope(x, p); });
  }
}

#define CUDA_GATE(SUFFIX, TYPE)           \
  CUDA_KERNEL(opipe_gate_##SUFFIX) {      \
    gated<TYPE>(a);                       \
  }                                       \
  CUDA_KERNEL(opipe_gate_grad_##SUFFIX) { \
    gated_grad<TYPE>(a);                  \
  }
CUDA_GATE(f32, float)
CUDA_GATE(bf16, bf16)
CUDA_GATE(f16, f16)

/* ---- conversions between float types, and sums into fp32 ---- */

/* N elements a turn: 16 bytes of the narrower side. */
template <class From, class To, bool ADDS>
CUDA_FN void convert(const cuda_convert_block &a) {
  const int N = lanes<From>::n > lanes<To>::n ? lanes<From>::n : lanes<To>::n;
  const From *in = static_cast<const From *>(a.in);
  To *out = static_cast<To *>(a.out);
  const bool flat = aligned16(in) && aligned16(out);
  for (int64_t i = first_element() * N; i < a.n; i += element_step() * N) {
    const bool whole = flat && i + N <= a.n;
    float x[N];
    CUDA_UNROLL
    for (int k = 0; k < N; k += lanes<From>::n)
      load_packet(in, i + k, a.n, whole, x + k);
    if (ADDS) {
      float before[N];
      CUDA_UNROLL
      for (int k = 0; k < N; k += lanes<To>::n)
        load_packet(out, i + k, a.n, whole, before + k);
      CUDA_UNROLL
      for (int k = 0; k < N; ++k)
        x[k] = before[k] + x[k];
    }
    CUDA_UNROLL
    for (int k = 0; k < N; k += lanes<To>::n)
      store_packet(out, i + k, a.n, whole, x + k);
  }
}

#define CUDA_CONVERT(FROM, TO, F, T)         \
  CUDA_KERNEL(opipe_convert_##FROM##_##TO) { \
    convert<F, T, false>(a);                 \
  }
CUDA_CONVERT(f32, bf16, float, bf16)
CUDA_CONVERT(f32, f16, float, f16)
CUDA_CONVERT(bf16, f32, bf16, float)
CUDA_CONVERT(f16, f32, f16, float)
CUDA_CONVERT(bf16, f16, bf16, f16)
CUDA_CONVERT(f16, bf16, f16, bf16)

CUDA_KERNEL(opipe_accumulate_f32) {
  convert<float, float, true>(a);
}
CUDA_KERNEL(opipe_accumulate_bf16) {
  convert<bf16, float, true>(a);
}
CUDA_KERNEL(opipe_accumulate_f16) {
  convert<f16, float, true>(a);
}

/* ---- fills, checks, the beginning of a run ---- */

template <class T>
CUDA_FN void fill(const cuda_fill_args &a) {
  const T value = a.value != nullptr ? *static_cast<const T *>(a.value) : (T)a.bits;
  for (int64_t i = first_element(); i < a.n; i += element_step())
    static_cast<T *>(a.out)[i] = value;
}

CUDA_KERNEL(opipe_fill) {
  switch (a.size) {
    case 1:
      fill<uint8_t>(a);
      break;
    case 2:
      fill<uint16_t>(a);
      break;
    case 4:
      fill<uint32_t>(a);
      break;
    default:
      fill<uint64_t>(a);
      break;
  }
}

CUDA_KERNEL(opipe_finite) {
  for (int64_t i = first_element(); i < a.f.n; i += element_step()) {
    const int64_t at = a.f.row == 0 ? i : i / a.f.row * a.f.distance + i % a.f.row;
    const double x = load_number(a.f.x, a.dtype, at);
    if (x - x != 0)
      report(a.f.status, CUDA_STATUS_FINITE, a.f.node, i, 0);
  }
}

CUDA_KERNEL(opipe_begin) {
  const uint32_t i = threadIdx.x;
  if (i < a.n)
    a.block->scalars[i] = a.scalars[i];
  for (uint32_t k = i; k < a.n_counters; k += blockDim.x)
    a.block->counters[k] = 0;
  if (i == 0) {
    a.block->status.code = CUDA_STATUS_OK;
    a.block->status.node = 0;
    a.block->status.value = 0;
    a.block->status.limit = 0;
  }
}

CUDA_KERNEL(opipe_zone) {
  const uint8_t *same = static_cast<const uint8_t *>(a.same);
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    if (static_cast<const uint8_t *>(a.data)[i] != (same != nullptr ? same[i] : 0xff))
      report(a.status, CUDA_STATUS_ZONE, a.node, i, a.n);
  }
}

CUDA_KERNEL(opipe_report) {
  if (a.from->code != CUDA_STATUS_OK && a.to->code == CUDA_STATUS_OK)
    *a.to = *a.from;
}

CUDA_KERNEL(opipe_take) {
  *a.to = *a.from;
  a.from->code = CUDA_STATUS_OK;
}
