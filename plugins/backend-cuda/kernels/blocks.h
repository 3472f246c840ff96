/* SPDX-License-Identifier: Apache-2.0 */
/* Argument blocks as kernels see them: where plan.c adds to what kernels.h
 * says, it is here. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_BLOCKS_H_
#define OPIPE_BACKEND_CUDA_KERNELS_BLOCKS_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Division by d as a product and a shift (Granlund and Montgomery 1994,
 * figure 4.1). */
typedef struct cuda_divisor {
  uint32_t factor, shift;
} cuda_divisor;

enum { CUDA_OPERANDS = 3 };

/* A dense shape and what its elements are in strided operands. */
typedef struct cuda_axes {
  int64_t shape[CUDA_AXES];
  int64_t stride[CUDA_OPERANDS][CUDA_AXES];
  cuda_divisor divisor[CUDA_AXES];
  uint32_t rank;  /* 1 or more */
  uint32_t small; /* fewer than 2^31 elements: divisors are used */
} cuda_axes;

typedef struct cuda_map_block {
  void *out;
  const void *in[CUDA_OPERANDS];
  int64_t n;
  double alpha, beta, gamma;
  cuda_status *status;
  uint32_t node;
  uint32_t op;
  uint32_t in_dtype, out_dtype;
  uint32_t size;   /* bytes of an element */
  uint32_t is_u64; /* compared and divided without sign */
  cuda_axes axes;
} cuda_map_block;

/* Operands without strides: element i is in[k][i % period[k]]; period 0:
 * in[k][i] */
typedef struct cuda_flat_block {
  void *out;
  const void *in[2];
  int64_t n;
  int64_t period[2];
  double alpha;
  uint32_t op;
  uint32_t reserved;
} cuda_flat_block;

typedef struct cuda_move_block {
  void *out;
  const void *in;
  int64_t n;
  uint32_t size; /* bytes of an element: 1, 2, 4, 8, 16 */
  uint32_t reserved;
  cuda_axes axes; /* operand 0: in, 1: out */
} cuda_move_block;

/* out [batch, columns, rows] = in [batch, rows, columns]; strides in elements
 */
typedef struct cuda_transpose_block {
  void *out;
  const void *in;
  int64_t batch, rows, columns;
  int64_t in_batch, out_batch, in_row, out_row;
  uint32_t size;
  uint32_t reserved;
} cuda_transpose_block;

typedef struct cuda_convert_block {
  void *out;
  const void *in;
  int64_t n;
} cuda_convert_block;

typedef struct cuda_gather_block {
  cuda_gather_args g; /* inner and size: in units of `unit` bytes */
  uint32_t unit;
  uint32_t reserved;
} cuda_gather_block;

typedef struct cuda_finite_block {
  cuda_finite_args f;
  uint32_t dtype;
  uint32_t reserved;
} cuda_finite_block;

enum { CUDA_DEPTH = 256 }; /* of a head, for the plain attention: a thread an element */

/* Attention by tiles: keys and queries that are copied at a time; heads of at most CUDA_FLASH_DEPTH
 * elements. A block's own rows, of queries or of keys, are 16 times its four warps times their
 * pieces: two where a row of both is short and nothing but its place says what it sees. */
enum {
  CUDA_FLASH_THREADS = 128,
  CUDA_FLASH_KEYS = 64,
  CUDA_FLASH_QUERIES = 64,
  CUDA_FLASH_DEPTH = 128,
  CUDA_FLASH_TASK_BYTES = 64, /* of what a block of keys notes of its task */
  CUDA_FLASH_PLAIN_ROWS = 32, /* query rows of a block in fp32 */
  CUDA_FLASH_PLAIN_KEYS = 64
};
#define CUDA_FLASH_PIECES(depth, bare) ((bare) && (depth) == 64 ? 2 : 1)
#define CUDA_FLASH_ROWS(depth, bare) (64 * CUDA_FLASH_PIECES(depth, bare))

/* Attention of few rows: query rows that read a key-value head, at most, a warp each when scores
 * are weighed; keys of a part. */
enum { CUDA_FEW_QUERIES = 8, CUDA_FEW_KEYS = 64 };

enum { CUDA_WARP_ROW = 1024 }; /* elements of a row that a warp takes, at most */

/* Gradients of norms with sums over rows: four warps a block, each with its own of every sum in
 * shared memory, which are 48 KiB at most. As many chunks of rows, at most, as let four blocks lie
 * on each processor of a large device; of so many rows at least. */
enum {
  CUDA_NORM_WARPS = 4,
  CUDA_NORM_THREADS = 32 * CUDA_NORM_WARPS,
  CUDA_NORM_CHUNKS = 512,
  CUDA_NORM_LEAST = 16
};
typedef struct cuda_norm_sums_block {
  cuda_norm_grad_args g;
  float *partial;                /* [chunks, n_sums, n] */
  float *sums[CUDA_NORM_SUMS];   /* [n_sums] that are wanted */
  int64_t chunk, chunks;         /* rows of one; how many */
  int32_t place[CUDA_NORM_SUMS]; /* of a sum in a warp's shared memory, in floats; -1: not wanted */
  uint32_t n_sums;
  uint32_t adds; /* bit i: sums[i] is added to */
  uint32_t reserved;
} cuda_norm_sums_block;

/* Losses by rows: threads of a block, and bytes of a row that the gradient keeps in shared memory:
 * two blocks on a processor of 228 KiB, one on the smallest (100 KiB). */
enum { CUDA_LOSS_THREADS = 512, CUDA_LOSS_KEPT = 100864 };

typedef struct cuda_typed_block { /* of kernels that choose the type as they run
                                   */
  void *out;
  const void *in;
  int64_t outer, n, inner;
  uint32_t dtype;
  uint32_t flags;
} cuda_typed_block;

typedef struct cuda_scatter_block {
  cuda_scatter_args s;
  uint32_t *keys[2], *positions[2]; /* [n] each: before a pass of the sort, and after */
  uint32_t *counts;                 /* [256][tiles] */
  uint32_t from;                    /* which of the two holds what is sorted so far */
  uint32_t shift;                   /* of the digit */
  uint32_t dtype, size;
} cuda_scatter_block;

/* Rows of w that a block of a product of few rows takes, at least and at most; and how many blocks
 * there are to be before it takes more: four for each processor of a large device. */
enum { CUDA_FEW_LEAST = 64, CUDA_FEW_DEPTH = 512, CUDA_FEW_BLOCKS = 512 };
typedef struct cuda_few_rows_block {
  cuda_few_rows_args f;
  int64_t depth; /* rows of w that a block takes */
} cuda_few_rows_block;

typedef struct cuda_einsum_block {
  void *out;
  const void *in[CUDA_EINSUM_OPERANDS];
  int64_t n_out, n_summed;
  uint32_t n_operands;
  uint32_t dtype;
  cuda_axes kept, summed; /* operands: in */
} cuda_einsum_block;

typedef struct cuda_reduce_block {
  void *out;
  const void *in;
  int64_t n_out, n_in;
  uint32_t op;
  uint32_t dtype;
  uint32_t is_u64;
  uint32_t reserved;
  cuda_axes kept, reduced; /* operand 0: in */
} cuda_reduce_block;

/* ArgMax and ArgMin along rows, in parts of as many elements. */
typedef struct cuda_arg_block {
  int64_t *indices; /* [rows] */
  const void *x;    /* [rows, n] */
  uint64_t
      *found; /* [rows, n_parts], where there are several: key and place of each part's first */
  int64_t rows, n;
  int64_t n_parts, part; /* of a row; elements of one */
  uint32_t largest, last;
} cuda_arg_block;

#ifdef __cplusplus
}
#endif
#endif
