/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights of 2, 4 or 8 bits: W[k,n] = (code - zero) * scale, one scale and zero for a
 * block of consecutive k of a column.
 *
 * Codes, scales and zeros lie together in panels of 64 columns, in the order in which a product
 * reads them; they become fp32 in registers (one row) or in a buffer of one panel's chain (more
 * rows). Every weight is rounded once, (code - zero) being exact where zeros are integers, and the
 * order of additions is that of cpu_matmul: the bits are those of a product with the unpacked
 * matrix.
 *
 * With `int8` the rows of A are rounded to 8 bits too, a block at a time: q = a * (1 / s), to even,
 * s = max |a| / 127 (as ONNX Runtime does at accuracy level 4). An element is then one chain of v =
 * fma(dot(q, codes) - zero * sum(q), s * scale, v) over the blocks in rising order; dot and sum are
 * exact integers: the same bits on every instruction set. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_CODES_H_
#define OPIPE_BACKEND_CPU_KERNELS_CODES_H_

#include "matmul.h"

typedef enum cpu_zeros {
  CPU_ZEROS_ONE = 0,    /* one integer for the whole matrix: cpu_codes.zero */
  CPU_ZEROS_BYTES = 1,  /* an integer from 0 to 255 for each block of a column */
  CPU_ZEROS_FLOATS = 2, /* a number for each */
  CPU_ZEROS_COUNT = 3
} cpu_zeros;

/* The form of a matrix W[K,N] of codes. Codes and integer zeros count from 0: signed types are
 * stored with 2^(bits - 1) added to both. */
typedef struct cpu_codes {
  int64_t k, n;
  int64_t block;   /* k that share a scale: at least 16 and a multiple of 16, or all of K */
  uint32_t bits;   /* 2, 4, 8 */
  cpu_dtype scale; /* type in which scales, and zeros that are numbers, are kept */
  cpu_zeros zeros;
  int32_t zero; /* of CPU_ZEROS_ONE */
} cpu_codes;

/* Packed numbers of 2, 4, 8 bits, first in the lowest bits, or of a float type: number (i, j) is
 * element i * i_stride + j * j_stride. */
typedef struct cpu_code_source {
  const void *data;
  uint32_t bits;  /* 0: floats of `type` */
  bool is_signed; /* two's complement */
  cpu_dtype type;
  int64_t i_stride, j_stride;
  int64_t i_inner, i_outer; /* not 0: i is i / i_inner * i_outer + i % i_inner, of whole bytes */
} cpu_code_source;

/* Codes (k, n), scales (block, n; data NULL: none, for cpu_codes_integer) and zeros (block, n; data
 * NULL with CPU_ZEROS_ONE). */
typedef struct cpu_codes_source {
  cpu_code_source codes, scales, zeros;
} cpu_codes_source;

/* Bytes of a packed matrix; false when the form is none of the above or they do not fit. */
bool cpu_codes_bytes(const cpu_codes *form, uint64_t *out_bytes);

/* Packs `count` panels of 64 columns from panel `first` on into `packed` (of the whole matrix:
 * cpu_codes_bytes, aligned to CPU_ALIGN_BYTES). Splits over the team. */
void cpu_codes_pack(const cpu_exec *x, const cpu_codes *form, const cpu_codes_source *source,
                    int64_t first, int64_t count, void *packed);
int64_t cpu_codes_panels(const cpu_codes *form);

typedef struct cpu_codes_args {
  int64_t m;
  const float *a; /* [M,K] */
  int64_t a_stride;
  const cpu_codes *form;
  const void *packed;
  float *c; /* [M,N] */
  int64_t c_stride;
  const cpu_epilogue *epilogue; /* NULL: none */
  bool int8;                    /* A is rounded; form->block is 256 at most */
  void *workspace;              /* cpu_codes_workspace, aligned to CPU_ALIGN_BYTES */
} cpu_codes_args;

/* False where int8 is asked for and the form has larger blocks. */
bool cpu_codes_workspace(int32_t threads, const cpu_codes *form, int64_t m, bool int8,
                         uint64_t *out_bytes);

/* C = epilogue(A W). C may not overlap any input. */
void cpu_codes_matmul(const cpu_exec *x, const cpu_codes_args *args);

/* C[m,n] = sum over k of (a - a_zero)(b - zero of n), modulo 2^32: integers of 8 bits by codes of 8
 * bits without scales, in one block. Or as numbers: epilogue((float)C scale), each rounded. Or
 * those as integers of 8 bits again: cpu_quantize. */
typedef struct cpu_codes_integer_args {
  int64_t m;
  const void *a; /* [M,K] int8 or uint8; NULL: the caller has made rows in the workspace */
  bool a_signed;
  int32_t a_zero;
  const cpu_codes *form;
  const void *packed;
  int32_t b_base;      /* b = code - b_base */
  const void *b_zeros; /* int8 or uint8, one or [N]; NULL: 0 */
  bool b_zeros_signed, b_zero_each;
  int32_t *c;                           /* [M,N]; NULL: */
  float *numbers;                       /* [M,N]; NULL: */
  uint8_t *bytes;                       /* [M,N] */
  float y_scale, y_zero, y_low, y_high; /* of bytes */
  const float *scale;                   /* one, or [N] */
  bool scale_each;
  const cpu_epilogue *epilogue; /* of numbers, and before they become bytes; NULL: none */
  void *workspace;              /* cpu_codes_integer_workspace, aligned to CPU_ALIGN_BYTES */
} cpu_codes_integer_args;

bool cpu_codes_integer_workspace(const cpu_codes *form, int64_t m, uint64_t *out_bytes);

/* Bytes of a row of A in the workspace: the sum of its signed bytes, int32, in the first
 * CPU_ALIGN_BYTES; the K signed bytes; zeros. */
int64_t cpu_codes_integer_row(const cpu_codes *form);

/* to[n] = from[n] as signed bytes (unsigned ones less 128), which may be the same; returns their
 * sum modulo 2^32. */
int32_t cpu_signed_bytes(const void *from, bool is_signed, int64_t n, void *to);

void cpu_codes_integer(const cpu_exec *x, const cpu_codes_integer_args *args);

#endif
