/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix instructions of a warp (sm_80 and newer), and copies into shared memory that go on beside
 * it; for g++ what the instruction set's description says of them, lane by lane.
 *
 * Pieces of 8 x 8 halves are what lanes hold: lane l the elements (l / 4, 2 (l % 4)) and the one
 * to its right, in one word. a [16, 16]: four pieces, {rows 0-7, rows 8-15} of columns 0-7, then
 * of 8-15. b [16, 8] two, turned: lane l holds rows 2 (l % 4) and the next of column l / 4. d [16,
 * 8]: floats, rows l / 4 and l / 4 + 8 of columns 2 (l % 4) and the next. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_TENSOR_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_TENSOR_CUH_

#include "../device.cuh"

#ifdef __CUDACC__

/* d += a b; a warp's lanes together. */
CUDA_FN void multiply_add(float *d, const unsigned *a, const unsigned *b, bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
CUDA_FN void multiply_add(float *d, const unsigned *a, const unsigned *b, f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

CUDA_FN unsigned shared_address(const void *at) {
  return (unsigned)__cvta_generic_to_shared(at);
}

/* Four pieces: lane l says where row l % 8 of piece l / 8 lies, 16 bytes at a multiple of 16. */
CUDA_FN void load_pieces(unsigned *out, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
/* The same, each piece turned. */
CUDA_FN void load_turned(unsigned *out, const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

/* 16 bytes into shared memory, zeros where they are not `there`. They land at a copy_wait. */
CUDA_FN void copy_begin(void *to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
               : "memory");
}
/* The same of 4 bytes. */
CUDA_FN void copy_word(void *to, const void *from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
               : "memory");
}
CUDA_FN void copy_commit(void) {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All groups but the N newest have landed: those of this thread. */
template <int N>
CUDA_FN void copy_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Two halves in a word, `low` first. */
CUDA_FN unsigned pair_of(float low, float high, bf16) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
CUDA_FN unsigned pair_of(float low, float high, f16) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

CUDA_FN float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

static inline void multiply_add(float *d, const unsigned *a, const unsigned *b, bf16, SHIM_PLACE) {
  shim_product own = {d, a, b};
  shim_meet("mma", 0xffffffffu, &own, shim_multiply_bf16, file, line);
}
static inline void multiply_add(float *d, const unsigned *a, const unsigned *b, f16, SHIM_PLACE) {
  shim_product own = {d, a, b};
  shim_meet("mma", 0xffffffffu, &own, shim_multiply_f16, file, line);
}

struct lanes_load {
  unsigned *out;
  const void *row;
};

template <bool TURNED>
static void load_lanes(void **slots, unsigned) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int piece = 0; piece < 4; ++piece) {
      uint16_t half[2];
      for (int k = 0; k < 2; ++k) {
        const int row = TURNED ? lane % 4 * 2 + k : lane / 4;
        const int column = TURNED ? lane / 4 : lane % 4 * 2 + k;
        const void *at = static_cast<const lanes_load *>(slots[piece * 8 + row])->row;
        half[k] = static_cast<const uint16_t *>(at)[column];
      }
      static_cast<const lanes_load *>(slots[lane])->out[piece] = half[0] | (unsigned)half[1] << 16;
    }
  }
}

template <bool TURNED>
static inline void load_by_lanes(unsigned *out, const void *row, const char *file, int line) {
  lanes_load own = {out, row};
  if (!aligned16(row))
    shim_fault("ldmatrix of %s:%d: a row at %p, not at a multiple of 16", file, line, row);
  shim_meet("ldmatrix", 0xffffffffu, &own, load_lanes<TURNED>, file, line);
}
static inline void load_pieces(unsigned *out, const void *row, SHIM_PLACE) {
  load_by_lanes<false>(out, row, file, line);
}
static inline void load_turned(unsigned *out, const void *row, SHIM_PLACE) {
  load_by_lanes<true>(out, row, file, line);
}

static inline void copy_begin(void *to, const void *from, bool there) {
  shim_copy_begin(to, from, there ? 16 : 0, 16);
}
static inline void copy_word(void *to, const void *from, bool there) {
  shim_copy_begin(to, from, there ? 4 : 0, 4);
}
static inline void copy_commit(void) {
  shim_copy_commit();
}
template <int N>
static inline void copy_wait(void) {
  shim_copy_wait(N);
}

template <class T>
static inline unsigned pair_of(float low, float high, T) {
  T one, two;
  narrow(low, &one);
  narrow(high, &two);
  return one.bits | (unsigned)two.bits << 16;
}

static inline float power_of_two(float x) {
  return exp2f(x);
}

#endif

#endif
