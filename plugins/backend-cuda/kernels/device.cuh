/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels share: element types, vectors, sums over warps and blocks,
 * index arithmetic, faults.
 *
 * The same sources are compiled by nvcc and, with the shim force-included, by
 * g++. Order of additions: a thread adds its elements in rising order, lanes
 * are added by a butterfly (16, 8, 4, 2, 1), warps in rising order; which
 * element is whose depends on the row's length alone.
 */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_DEVICE_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_DEVICE_CUH_

#include "table.h"

#define CUDA_FN __device__ __forceinline__

enum { CUDA_SECTOR = 32 }; /* bytes: what fetch_sector takes */

/* A kernel may be launched while the one in front of it on its stream still runs: it waits for that
 * one's end before it touches memory. `fetch` comes before, and may call fetch_sector alone; ...:
 * of
 * __launch_bounds__. */
#ifdef __CUDACC__
#define CUDA_BOUNDED_KERNEL(name, fetch, ...)               \
  CUDA_FN void name##_work(const name##_block &a);          \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) \
      name(const __grid_constant__ name##_block a) {        \
    launch_next();                                          \
    fetch;                                                  \
    wait_for_previous();                                    \
    name##_work(a);                                         \
  }                                                         \
  CUDA_FN void name##_work(const name##_block &a)
#define CUDA_SHARED(type, name) __shared__ type name
#define CUDA_DYNAMIC(name) extern __shared__ __align__(128) unsigned char name[]
#define CUDA_UNROLL _Pragma("unroll")
#define CUDA_PRAGMA(text) _Pragma(#text)
#define CUDA_UNROLL_BY(n) CUDA_PRAGMA(unroll n)
#define CUDA_ROLLED CUDA_UNROLL_BY(1)
#define CUDA_UNROLL_2 CUDA_UNROLL_BY(2)
#else
#define CUDA_UNROLL
#define CUDA_UNROLL_BY(n)
#define CUDA_ROLLED
#define CUDA_UNROLL_2
#endif
#define CUDA_KERNEL(name) CUDA_BOUNDED_KERNEL(name, (void)0, name##_threads)
/* Of those that ptxas would spill for the sake of more blocks on a processor: as many registers as
 * they want. */
#define CUDA_ROOMY_KERNEL(name) CUDA_BOUNDED_KERNEL(name, (void)0, name##_threads, 1)
/* As many registers as let two blocks lie on a processor. */
#define CUDA_TWICE_KERNEL(name) CUDA_BOUNDED_KERNEL(name, (void)0, name##_threads, 2)
/* What it reads first is on its way while the launch in front ends. */
#define CUDA_FETCHING_KERNEL(name, fetch, ...) CUDA_BOUNDED_KERNEL(name, fetch(a), __VA_ARGS__)

#ifdef __CUDACC__
/* PTX ISA, "griddepcontrol": the next launch of the stream may begin as soon as all blocks are on
 * a processor; it waits until this one has ended and its writes are seen. Without the launch's
 * attribute neither does anything. */
CUDA_FN void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
CUDA_FN void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The 32 bytes around an address of global memory, into the second-level cache, which all writes go
 * through: it is never stale. */
CUDA_FN void fetch_sector(const void *at) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
#endif
}
#endif

/* ---- element types ---- */

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

CUDA_FN float widen(float x) {
  return x;
}
CUDA_FN double widen(double x) {
  return x;
}
CUDA_FN float widen(bf16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
CUDA_FN float widen(f16 x) {
#ifdef __CUDACC__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  const unsigned sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u,
                 fraction = x.bits & 0x3ffu;
  if (exponent == 0)
    return __uint_as_float(__float_as_uint((float)fraction * 0x1p-24f) | sign);
  return __uint_as_float(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) |
                         fraction << 13);
#endif
}

/* One rounding to nearest even. */
CUDA_FN void narrow(float x, float *y) {
  *y = x;
}
CUDA_FN void narrow(double x, double *y) {
  *y = x;
}
CUDA_FN void narrow(float x, bf16 *y) {
#ifdef __CUDACC__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
  const unsigned bits = __float_as_uint(x);
  const bool none = (bits & 0x7fffffffu) > 0x7f800000u;
  y->bits = (uint16_t)(none ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}
CUDA_FN void narrow(float x, f16 *y) {
#ifdef __CUDACC__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#else
  const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  unsigned half = size > 0x7f800000u ? 0x7fffu : 0x7c00u;
  if (size < 0x38800000u) /* below 2^-14: in units of 2^-24 */
    half = __float_as_uint(__uint_as_float(size) * 0x1p24f + 0x1p23f) - 0x4b000000u;
  else if (size < 0x477ff000u)
    half = (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13;
  y->bits = (uint16_t)(sign | (size > 0x7f800000u ? half & 0x7fffu : half));
#endif
}

template <class T>
struct real_of { /* in which elements are computed */
  typedef float type;
};
template <>
struct real_of<double> {
  typedef double type;
};

template <class T>
CUDA_FN typename real_of<T>::type get(const T *at, int64_t i) {
  return widen(at[i]);
}
template <class T, class R>
CUDA_FN void put(T *at, int64_t i, R value) {
  T narrowed;
  narrow(value, &narrowed);
  at[i] = narrowed;
}

/* As it would be stored in a T and read again. */
template <class T, class R>
CUDA_FN R as_stored(R x) {
  T narrowed;
  narrow(x, &narrowed);
  return widen(narrowed);
}

/* a b + c, rounded once by nvcc; a + b and a b, rounded whatever stands around them. Where several
 * kernels are to make the same bits. */
template <class R>
CUDA_FN R joined(R a, R b, R c) {
#ifdef __CUDACC__
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}
CUDA_FN float plain_sum(float a, float b) {
#ifdef __CUDACC__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
CUDA_FN float plain_product(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
CUDA_FN double plain_sum(double a, double b) {
#ifdef __CUDACC__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
CUDA_FN double plain_product(double a, double b) {
#ifdef __CUDACC__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/* ---- vectors: 16 bytes of elements ---- */

template <class T>
struct lanes { /* elements in 16 bytes; of double too few to matter */
  static const int n = 16 / sizeof(T);
};

template <class T>
struct alignas(16) packet {
  T v[16 / sizeof(T)];
};

CUDA_FN bool aligned16(const void *p) {
  return ((uintptr_t)p & 15u) == 0;
}

/* x[k] = row[i + k], k < lanes; 0 beyond n. whole: the row's vectors are
 * aligned and complete. */
template <class T, class R>
CUDA_FN void load_packet(const T *row, int64_t i, int64_t n, bool whole, R *x) {
  if (whole) {
    const packet<T> p = *reinterpret_cast<const packet<T> *>(row + i);
    CUDA_UNROLL
    for (int k = 0; k < lanes<T>::n; ++k)
      x[k] = widen(p.v[k]);
  } else {
    CUDA_UNROLL
    for (int k = 0; k < lanes<T>::n; ++k)
      x[k] = i + k < n ? (R)widen(row[i + k]) : (R)0;
  }
}
/* The same of a row of another type than the one that gives the length of a
 * vector, N. */
template <int N, class T, class R>
CUDA_FN void load_run(const T *row, int64_t i, int64_t n, bool whole, R *x) {
  const int L = lanes<T>::n < N ? lanes<T>::n : N;
  if (whole && N % lanes<T>::n == 0) {
    CUDA_UNROLL
    for (int k = 0; k < N; k += L)
      load_packet(row, i + k, n, true, x + k);
  } else {
    CUDA_UNROLL
    for (int k = 0; k < N; ++k)
      x[k] = i + k < n ? (R)widen(row[i + k]) : (R)0;
  }
}
template <class T, class R>
CUDA_FN void store_packet(T *row, int64_t i, int64_t n, bool whole, const R *x) {
  if (whole) {
    packet<T> p;
    CUDA_UNROLL
    for (int k = 0; k < lanes<T>::n; ++k)
      narrow(x[k], &p.v[k]);
    *reinterpret_cast<packet<T> *>(row + i) = p;
  } else {
    CUDA_UNROLL
    for (int k = 0; k < lanes<T>::n; ++k) {
      if (i + k < n)
        put(row, i + k, x[k]);
    }
  }
}

/* ---- sums over threads ---- */

struct add_two {
  template <class R>
  CUDA_FN R operator()(R a, R b) const {
    return a + b;
  }
};
struct max_two { /* not a number wins */
  template <class R>
  CUDA_FN R operator()(R a, R b) const {
    return a != a ? a : b != b ? b : a > b ? a : b;
  }
};

template <class R, class Op>
CUDA_FN R warp_all(R x, Op op) {
  CUDA_UNROLL
  for (int d = 16; d > 0; d /= 2)
    x = op(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

enum { CUDA_WARPS = 8, CUDA_THREADS = 256 }; /* of a block in most kernels */

/* Room for block_all: one value per warp. */
template <class R>
struct block_room {
  R part[CUDA_WARPS];
};

/* The same for all CUDA_THREADS threads of a block; every thread gets the
 * result. */
template <class R, class Op>
CUDA_FN R block_all(R x, Op op, block_room<R> *room) {
  x = warp_all(x, op);
  __syncthreads(); /* the room may still be read */
  if (threadIdx.x % 32 == 0)
    room->part[threadIdx.x / 32] = x;
  __syncthreads();
  R y = room->part[0];
  CUDA_UNROLL
  for (int w = 1; w < CUDA_WARPS; ++w)
    y = op(y, room->part[w]);
  return y;
}

/* A row's threads: a warp, or a block where the row is long. */
template <bool BLOCK, class R>
struct row_team {
  block_room<R> *room;
  CUDA_FN int rank() const {
    return BLOCK ? (int)threadIdx.x : (int)(threadIdx.x % 32);
  }
  CUDA_FN int size() const {
    return BLOCK ? (int)CUDA_THREADS : 32;
  }
  CUDA_FN int64_t first_row() const {
    return BLOCK ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * CUDA_WARPS + threadIdx.x / 32;
  }
  CUDA_FN int64_t row_step() const {
    return BLOCK ? (int64_t)gridDim.x : (int64_t)gridDim.x * CUDA_WARPS;
  }
  template <class Op>
  CUDA_FN R all(R x, Op op) const {
    return BLOCK ? block_all(x, op, room) : warp_all(x, op);
  }
  CUDA_FN R sum(R x) const {
    return all(x, add_two());
  }
};

/* ---- positions ---- */

CUDA_FN int64_t first_element(void) {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
CUDA_FN int64_t element_step(void) {
  return (int64_t)gridDim.x * blockDim.x;
}

/* n / d and n % d by one multiplication (Granlund and Montgomery 1994,
 * figure 4.1); the divisor was made by cuda_divisor_of. n < 2^31. */
CUDA_FN unsigned divide(unsigned n, cuda_divisor d) {
  return (__umulhi(n, d.factor) + n) >> d.shift;
}

/* Offsets of element i of a dense shape in N strided operands. */
template <int N>
CUDA_FN void offsets(const cuda_axes &axes, int64_t i, int64_t *out) {
  CUDA_UNROLL
  for (int k = 0; k < N; ++k)
    out[k] = 0;
  if (axes.small) {
    unsigned left = (unsigned)i;
    for (int axis = (int)axes.rank - 1; axis > 0; --axis) {
      const unsigned q = divide(left, axes.divisor[axis]);
      const int64_t at = left - q * (unsigned)axes.shape[axis];
      left = q;
      CUDA_UNROLL
      for (int k = 0; k < N; ++k)
        out[k] += at * axes.stride[k][axis];
    }
    i = left;
  } else {
    for (int axis = (int)axes.rank - 1; axis > 0; --axis) {
      const int64_t at = i % axes.shape[axis];
      i /= axes.shape[axis];
      CUDA_UNROLL
      for (int k = 0; k < N; ++k)
        out[k] += at * axes.stride[k][axis];
    }
  }
  CUDA_UNROLL
  for (int k = 0; k < N; ++k)
    out[k] += i * axes.stride[k][0];
}

/* ---- a row's threads, one at that ---- */

template <class R>
struct alone {
  CUDA_FN int rank() const {
    return 0;
  }
  CUDA_FN int size() const {
    return 1;
  }
  CUDA_FN int64_t first_row() const {
    return first_element();
  }
  CUDA_FN int64_t row_step() const {
    return element_step();
  }
  template <class Op>
  CUDA_FN R all(R x, Op) const {
    return x;
  }
};

/* ---- faults of the data ---- */

/* The first one stays; kernels go on with a value that harms nothing. */
CUDA_FN void report(cuda_status *status, uint32_t code, uint32_t node, int64_t value,
                    int64_t limit) {
  if (status == nullptr || atomicCAS(&status->code, 0u, code) != 0)
    return;
  status->node = node;
  status->value = value;
  status->limit = limit;
  __threadfence_system();
}

CUDA_FN int64_t index_at(const void *indices, uint32_t bytes, int64_t i) {
  return bytes == 4 ? (int64_t) static_cast<const int32_t *>(indices)[i]
                    : static_cast<const int64_t *>(indices)[i];
}

/* Index i of [-n, n) as a place in [0, n); a bad one is reported and becomes 0.
 */
CUDA_FN int64_t place_of(int64_t i, int64_t n, cuda_status *status, uint32_t node, bool *out_good) {
  const int64_t at = i < 0 ? i + n : i;
  *out_good = at >= 0 && at < n;
  if (!*out_good)
    report(status, CUDA_STATUS_INDEX, node, i, n);
  return *out_good ? at : 0;
}

#endif
