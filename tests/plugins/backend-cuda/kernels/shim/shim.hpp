/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C for g++: the words of the language that the kernels use, as C++ on the host.
 *
 * Force-included (-include) before a kernel source. A block's threads are fibers of one host
 * thread; a thread runs until it waits for others, so that kernels without barriers never switch.
 * The promises of the language hold, and no more: other threads' writes are seen after a barrier,
 * shared memory begins as poison, the order of threads is the seed's. Behaviour that a device would
 * leave undefined ends the process with a line on stderr: a barrier that not all threads reach or
 * that they reach at different places, a thread that does not wait for the launch in front or
 * copies before it has, a shuffle without the lanes that its mask names, a write beyond shared
 * memory, copies that nobody waited for, a block that is counted before its threads have fenced
 * their writes. */
#ifndef OPIPE_TESTS_CUDA_SHIM_H_
#define OPIPE_TESTS_CUDA_SHIM_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

struct shim_copy { /* cp.async: lands when it is waited for */
  void *to;
  const void *from;
  uint32_t bytes; /* taken from `from`, the rest of `room` is 0 */
  uint32_t room;
  uint32_t group;
};

enum { SHIM_COPIES = 64 };

struct shim_warp;
struct shim_thread {
  uint3 index;
  unsigned lane;
  shim_warp *warp;
  void *fiber;          /* that it waits in; NULL: it has not begun, runs, or is done */
  const char *waits_in; /* file and line of what it waits at; NULL: it does not wait */
  int waits_at;
  bool done;
  bool waited; /* for the launch in front */
  bool fenced; /* its writes so far are seen before its later ones */
  uint32_t n_copies, group;
  shim_copy *copies; /* [SHIM_COPIES] */
};

struct shim_launch {
  uint3 block_index, block_size, grid_size;
  bool begins; /* threads end where they wait for the launch in front */
};

extern __thread shim_thread *shim_self __attribute__((tls_model("initial-exec")));
extern __thread shim_launch shim_now __attribute__((tls_model("initial-exec")));

#define threadIdx (shim_self->index)
#define blockIdx (shim_now.block_index)
#define blockDim (shim_now.block_size)
#define gridDim (shim_now.grid_size)

/* ---- waiting ---- */

/* All lanes of `mask` meet here; the last one calls `all` with what each brought (slots [32]).
 * `kind` and place must be the same for all. */
void shim_meet(const char *kind, unsigned mask, void *slot,
               void (*all)(void **slots, unsigned mask), const char *file, int line);
void shim_barrier(const char *file, int line);
[[noreturn]] void shim_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define SHIM_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(SHIM_PLACE) {
  shim_barrier(file, line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, SHIM_PLACE) {
  shim_meet("__syncwarp", mask, NULL, NULL, file, line);
}

template <class T>
struct shim_shuffle {
  T in, out;
  unsigned from; /* lane */
};

template <class T>
static void shim_shuffle_all(void **slots, unsigned mask) {
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) == 0)
      continue;
    shim_shuffle<T> *own = static_cast<shim_shuffle<T> *>(slots[i]);
    if ((mask >> own->from & 1u) == 0)
      shim_fault("lane %u takes a value of lane %u, which is not in mask %08x", i, own->from, mask);
    own->out = static_cast<shim_shuffle<T> *>(slots[own->from])->in;
  }
}

template <class T>
static inline T shim_take(unsigned mask, T value, unsigned from, const char *file, int line) {
  shim_shuffle<T> own = {value, value, from & 31u};
  shim_meet("__shfl_sync", mask, &own, shim_shuffle_all<T>, file, line);
  return own.out;
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, SHIM_PLACE) {
  return shim_take(mask, value, (unsigned)lane, file, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, SHIM_PLACE) {
  return shim_take(mask, value, shim_self->lane ^ (unsigned)bits, file, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, SHIM_PLACE) {
  const unsigned lane = shim_self->lane;
  return shim_take(mask, value, lane >= by ? lane - by : lane, file, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, SHIM_PLACE) {
  const unsigned lane = shim_self->lane;
  return shim_take(mask, value, lane + by < 32 ? lane + by : lane, file, line);
}

struct shim_vote {
  uint64_t in;
  unsigned out;
};
void shim_ballot_all(void **slots, unsigned mask);
void shim_match_all(void **slots, unsigned mask);

static inline unsigned __ballot_sync(unsigned mask, int predicate, SHIM_PLACE) {
  shim_vote own = {(uint64_t)(predicate != 0), 0};
  shim_meet("__ballot_sync", mask, &own, shim_ballot_all, file, line);
  return own.out;
}
static inline unsigned __match_any_sync(unsigned mask, unsigned value, SHIM_PLACE) {
  shim_vote own = {value, 0};
  shim_meet("__match_any_sync", mask, &own, shim_match_all, file, line);
  return own.out;
}

/* mma.m16n8k16, for all lanes at once: d [4] += a [4] b [2], a lane's pieces of the three matrices,
 * two halves in a word. */
struct shim_product {
  float *d;
  const unsigned *a, *b;
};
void shim_multiply_bf16(void **slots, unsigned mask);
void shim_multiply_f16(void **slots, unsigned mask);

/* ---- memory ---- */

/* `bytes` of a block's shared memory, the same for all its threads. */
void *shim_shared(uint32_t bytes);
void *shim_dynamic(void);
#define CUDA_SHARED(type, name) type &name = *static_cast<type *>(shim_shared(sizeof(type)))
#define CUDA_DYNAMIC(name) unsigned char *name = static_cast<unsigned char *>(shim_dynamic())

void shim_copy_begin(void *to, const void *from, uint32_t bytes, uint32_t room);
void shim_copy_commit(void);
void shim_copy_wait(uint32_t groups); /* all but the `groups` newest groups land */

/* Launched while the one in front still runs: see device.cuh. */
#define CUDA_BOUNDED_KERNEL(name, fetch, ...)            \
  static inline void name##_work(const name##_block &a); \
  extern "C" void name(const name##_block &a);           \
  extern "C" void name(const name##_block &a) {          \
    fetch;                                               \
    shim_wait();                                         \
    name##_work(a);                                      \
  }                                                      \
  static inline void name##_work(const name##_block &a)

[[noreturn]] void shim_end_begun(void);
static inline void shim_wait(void) {
  shim_self->waited = true;
  if (shim_now.begins)
    shim_end_begun();
}
/* Before that wait; it must lie in memory that is there. */
static inline void fetch_sector(const void *at) {
  if (shim_self->waited)
    shim_fault("memory is fetched after the wait for the launch in front");
  (void)*static_cast<const volatile unsigned char *>(at);
}

template <class T>
static inline T __ldg(const T *at) {
  return *at;
}
template <class T>
static inline T __ldcg(const T *at) { /* past the first-level cache */
  return *at;
}
static inline void __threadfence(void) {
  shim_self->fenced = true;
}
static inline void __threadfence_system(void) {
  shim_self->fenced = true;
}

/* Integers alone: sums of floats in no order have no place in a kernel. */
static inline unsigned atomicAdd(unsigned *at, unsigned value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
/* Counts blocks that have done their part, back to 0 after `last`: who reads what the others wrote
 * relies on fences that their threads have behind them. */
void shim_check_fences(const char *file, int line);
static inline unsigned atomicInc(unsigned *at, unsigned last, SHIM_PLACE) {
  unsigned found = __atomic_load_n(at, __ATOMIC_RELAXED);
  shim_check_fences(file, line);
  while (!__atomic_compare_exchange_n(at, &found, found >= last ? 0 : found + 1, false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    continue;
  return found;
}
static inline unsigned atomicCAS(unsigned *at, unsigned expected, unsigned wanted) {
  __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}

/* ---- numbers ---- */

template <class To, class From>
static inline To shim_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline unsigned __float_as_uint(float x) {
  return shim_bits<unsigned>(x);
}
static inline float __uint_as_float(unsigned x) {
  return shim_bits<float>(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((uint64_t)a * b >> 32);
}
/* Products and sums that nothing is joined with. */
static inline float __fmul_rn(float a, float b) {
  return a * b;
}
static inline float __fsub_rn(float a, float b) {
  return a - b;
}
static inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
static inline int __ffs(int x) {
  return __builtin_ffs(x);
}

#endif
