/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over strided tensors, and conversions of runs of elements.
 *
 * Element-wise kernels work on runs of at most CPU_RUN elements in a *class* of arithmetic: fp32
 * (also for fp16 and bf16), fp64, 64-bit integers; or on raw elements of 1, 2, 4 or 8 bytes where
 * nothing is computed. Reading a run converts from the stored type, whatever stride or alignment.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_LOOP_H_
#define OPIPE_BACKEND_CPU_OPS_LOOP_H_

#include "op.h"

enum { CPU_RUN = 256 };

typedef enum cpu_class {
  CPU_CLASS_F32 = 0,
  CPU_CLASS_F64 = 1,
  CPU_CLASS_I64 = 2,
  CPU_CLASS_U64 = 3,
  CPU_CLASS_RAW1 = 4,
  CPU_CLASS_RAW2 = 5,
  CPU_CLASS_RAW4 = 6,
  CPU_CLASS_RAW8 = 7
} cpu_class;

/* The class in which a type is computed. */
cpu_class cpu_class_of(uint32_t dtype);
/* The raw class of a type; false below a byte and above 8. */
bool cpu_raw_class_of(uint32_t dtype, cpu_class *out_class);

/* Room for one run of any class. */
typedef union cpu_run_buffer {
  float f32[CPU_RUN];
  double f64[CPU_RUN];
  int64_t i64[CPU_RUN];
  uint64_t u64[CPU_RUN];
  uint8_t raw[CPU_RUN * 8];
} cpu_run_buffer;

/* Elements first, first + stride, ... (n <= CPU_RUN of them) of a tensor's data, in `to`. Returns
 * where they are: in `buffer`, or in place when nothing had to be done. */
const void *cpu_fetch(cpu_class to, uint32_t dtype, const void *data, int64_t first, int64_t stride,
                      int64_t n, cpu_run_buffer *buffer);
/* Where a run of class `from` for out[first ...] may be computed: in place or in `buffer`. */
void *cpu_stage(cpu_class from, uint32_t dtype, void *data, int64_t first, cpu_run_buffer *buffer);
/* Stores it (nothing to do where it was computed in place). Integers wrap, fp32 rounds to nearest
 * even. */
void cpu_store(cpu_class from, uint32_t dtype, const void *run, void *data, int64_t first,
               int64_t n);

/* Element i of a dense fp32 or fp64 tensor, for references that work in fp64. */
static inline double cpu_get(const cpu_tensor *t, int64_t i) {
  return t->dtype == OPIPE_DOUBLE ? ((const double *)t->data)[i]
                                  : (double)((const float *)t->data)[i];
}
static inline void cpu_put(const cpu_tensor *t, int64_t i, double value) {
  if (t->dtype == OPIPE_DOUBLE)
    ((double *)t->data)[i] = value;
  else
    ((float *)t->data)[i] = (float)value;
}

/* Index space of an output with the strides of its operands, in elements. Axes are merged where all
 * operands allow it; the last axis is the inner loop. */
typedef struct cpu_loop {
  uint32_t rank; /* at least 1 */
  uint32_t n;    /* operands */
  int64_t rows;  /* product of all axes but the last */
  int64_t columns;
  int64_t shape[OPIPE_MAX_RANK];
  int64_t (*stride)[OPIPE_MAX_RANK]; /* [n][rank] */
} cpu_loop;

/* strides: [n][rank] in the pool; taken over and changed. */
void cpu_loop_init(cpu_loop *loop, const int64_t *shape, uint32_t rank, uint32_t n,
                   int64_t (*strides)[OPIPE_MAX_RANK]);
/* Loop over output `out` with every input in 0 .. n_in broadcast to it. */
opipe_status cpu_loop_broadcast(cpu_prep *p, const opipe_value *out, uint32_t n_in,
                                cpu_loop *out_loop);
/* Element offset of operand i at the start of row r. */
int64_t cpu_loop_offset(const cpu_loop *loop, uint32_t i, int64_t row);

/* Splits `units` over the team: body(ctx, begin, end) on each thread. Small jobs stay on the
 * calling thread: `work` is about the elements touched. */
typedef void (*cpu_range_body)(void *ctx, int64_t begin, int64_t end);
void cpu_parallel(const cpu_exec *exec, int64_t units, int64_t work, cpu_range_body body,
                  void *ctx);

/* Copies a strided block: out[i] = in[i] over shape, element size `size` (1, 2, 4, 8, 16) bytes. */
typedef struct cpu_copy_plan {
  cpu_loop loop; /* operand 0: in, operand 1: out */
  int64_t in_first, out_first;
  uint32_t size;
} cpu_copy_plan;
opipe_status cpu_copy_plan_init(cpu_prep *p, cpu_copy_plan *plan, const int64_t *shape,
                                uint32_t rank, const int64_t *in_strides,
                                const int64_t *out_strides, uint32_t size);
void cpu_copy_run(const cpu_exec *exec, const cpu_copy_plan *plan, const void *in, void *out);

#endif
