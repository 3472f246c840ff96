/* SPDX-License-Identifier: Apache-2.0 */
/* The border between the CUDA backend's host code (C11) and its kernels (CUDA
 * C): what is launched, with what.
 *
 *   host:   fills an argument block, cuda_plan_X chooses kernel, grid, block
 * and shared memory (plan.c) device: every kernel takes one such block by
 * value:  extern "C" __global__ void opipe_X(X_args)
 *
 * A launch is a value without device state: it is made when a program is bound
 * and launched again in every run, on a GPU by name out of the module that nvcc
 * compiled, on the doubles by the same name out of the sources that g++
 * compiled. Pointers are device addresses. Extents and strides are in elements.
 * Kernels allocate nothing, write what the block says and nothing else, add in
 * a fixed order, and a row's bits never depend on the number of rows.
 */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_H_
#define OPIPE_BACKEND_CUDA_KERNELS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CUDA_AXES = 8,          /* after neighbouring axes were merged */
  CUDA_ARGS_BYTES = 768,  /* the largest argument block that a launch holds itself */
  CUDA_FAR_BYTES = 32764, /* the largest that a kernel takes: CUDA 12.1, sm_70 up */
  CUDA_SCALARS = 64,      /* numbers of a run */
  CUDA_COUNTERS = 256     /* of blocks that have come so far */
};

typedef struct cuda_launch {
  const char *kernel; /* name in the module: "opipe_softmax_f32" */
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes; /* dynamic */
  uint32_t args_bytes;
  const void *far_args; /* a larger block: the caller's own, while the launch is used; else NULL */
  union {
    uint64_t align;
    unsigned char args[CUDA_ARGS_BYTES];
  } block_args;
} cuda_launch;
/* The launch's argument block. */
static inline const void *cuda_launch_args(const cuda_launch *launch) {
  return launch->far_args != NULL ? launch->far_args : launch->block_args.args;
}

/* Where a kernel reports bad data; in the run's block. The first wins:
 * atomicCAS of `code` from 0.
 */
enum {
  CUDA_STATUS_OK = 0,
  CUDA_STATUS_INDEX = 1,    /* value: the index, limit: the extent */
  CUDA_STATUS_FINITE = 2,   /* value: position of the first element that is not finite, limit: 0 */
  CUDA_STATUS_LABEL = 3,    /* value: the label, limit: classes */
  CUDA_STATUS_POSITION = 4, /* rotary: value: the position, limit: rows of the caches */
  CUDA_STATUS_DIVIDE = 5,   /* an integer was divided by 0; value: the dividend */
  CUDA_STATUS_ZONE = 6,     /* value: the first byte that a thread found changed, limit: bytes */
  CUDA_STATUS_HOST = 7,     /* of a node on the CPU; value: number of its text (fallback.c) */
  CUDA_STATUS_LENGTH = 8, /* of a row of a recurrent layer; value: its steps, limit: the layer's */
  CUDA_STATUS_SEQUENCE = 9, /* of a token row; value: its sequence, limit: how many there are */
  CUDA_STATUS_PAGE = 10,    /* value: the page, limit: how many there are */
  CUDA_STATUS_COPY = 11     /* value: tokens to be copied, limit: a page's */
};
typedef struct cuda_status {
  uint32_t code; /* CUDA_STATUS_* */
  uint32_t node; /* of the graph: handed through from the argument block */
  int64_t value;
  int64_t limit;
} cuda_status;

/* One per binding, in its arena; written in stream order by the first launch of
 * a run. Counters: of kernels whose last block to arrive goes on alone; such a launch leaves them
 * as it finds them, 0, for the next. Programs without such launches have none. */
typedef struct cuda_run_block {
  cuda_status status;
  int64_t scalars[CUDA_SCALARS];
  uint32_t counters[CUDA_COUNTERS];
} cuda_run_block;

typedef struct cuda_begin_args { /* block->status = 0, block->scalars[0 .. n) =
                                    scalars, block->counters[0 .. n_counters) = 0 */
  cuda_run_block *block;
  uint32_t n;
  uint32_t n_counters;
  int64_t scalars[CUDA_SCALARS];
} cuda_begin_args;
bool cuda_plan_begin(const cuda_begin_args *args, cuda_launch *out);

/* ---- element by element ---- */

/* out dense [n] of shape [rank]; in[i] with strides (0: repeats). Unary: in[0];
 * binary: in[0], in[1]; WHERE: in[0] the condition (bool), then X, Y; CLIP:
 * in[1], in[2] may be NULL. GRAD_*: in[0] = dY, in[1] = X. in: may equal out
 * where strides are dense. Half types: computed in float, rounded once. */
typedef enum cuda_map_op {
  CUDA_MAP_COPY,
  CUDA_MAP_CAST,
  CUDA_MAP_ABS,
  CUDA_MAP_NEG,
  CUDA_MAP_SIGN,
  CUDA_MAP_SQRT,
  CUDA_MAP_RECIPROCAL,
  CUDA_MAP_EXP,
  CUDA_MAP_LOG,
  CUDA_MAP_FLOOR,
  CUDA_MAP_CEIL,
  CUDA_MAP_ROUND,
  CUDA_MAP_SIN,
  CUDA_MAP_COS,
  CUDA_MAP_TAN,
  CUDA_MAP_ASIN,
  CUDA_MAP_ACOS,
  CUDA_MAP_ATAN,
  CUDA_MAP_SINH,
  CUDA_MAP_COSH,
  CUDA_MAP_ASINH,
  CUDA_MAP_ACOSH,
  CUDA_MAP_ATANH,
  CUDA_MAP_NOT,
  CUDA_MAP_ISNAN,
  CUDA_MAP_ISINF, /* ISINF: alpha detect_negative, beta detect_positive (0 or 1)
                   */
  CUDA_MAP_RELU,
  CUDA_MAP_SIGMOID,
  CUDA_MAP_TANH,
  CUDA_MAP_ERF,
  CUDA_MAP_SOFTPLUS,
  CUDA_MAP_SOFTSIGN,
  CUDA_MAP_MISH,
  CUDA_MAP_HARDSWISH,
  CUDA_MAP_GELU,
  CUDA_MAP_GELU_TANH,
  CUDA_MAP_SWISH,
  CUDA_MAP_ELU,
  CUDA_MAP_LEAKYRELU,
  CUDA_MAP_THRESHOLDEDRELU,
  CUDA_MAP_CELU,
  CUDA_MAP_SELU,
  CUDA_MAP_HARDSIGMOID, /* alpha, gamma / beta as the attributes */
  CUDA_MAP_ADD,
  CUDA_MAP_SUB,
  CUDA_MAP_MUL,
  CUDA_MAP_DIV,
  CUDA_MAP_MOD,
  CUDA_MAP_FMOD,
  CUDA_MAP_POW,
  CUDA_MAP_MAX,
  CUDA_MAP_MIN,
  CUDA_MAP_PRELU,
  CUDA_MAP_EQUAL,
  CUDA_MAP_GREATER,
  CUDA_MAP_GREATEROREQUAL,
  CUDA_MAP_LESS,
  CUDA_MAP_LESSOREQUAL,
  CUDA_MAP_AND,
  CUDA_MAP_OR,
  CUDA_MAP_XOR,
  CUDA_MAP_WHERE,
  CUDA_MAP_CLIP,
  CUDA_MAP_GRAD_RELU,
  CUDA_MAP_GRAD_SIGMOID,
  CUDA_MAP_GRAD_TANH,
  CUDA_MAP_GRAD_GELU,
  CUDA_MAP_GRAD_GELUTANH,
  CUDA_MAP_GRAD_QUICKGELU,
  CUDA_MAP_GRAD_SWISH,
  CUDA_MAP_GRAD_ERF,
  CUDA_MAP_GRAD_ELU,
  CUDA_MAP_GRAD_CELU,
  CUDA_MAP_GRAD_SELU,
  CUDA_MAP_GRAD_LEAKYRELU,
  CUDA_MAP_GRAD_THRESHOLDEDRELU,
  CUDA_MAP_GRAD_MISH,
  CUDA_MAP_GRAD_HARDSWISH,
  CUDA_MAP_GRAD_HARDSIGMOID,
  CUDA_MAP_GRAD_SOFTPLUS,
  CUDA_MAP_GRAD_SOFTSIGN,
  CUDA_MAP_COUNT
} cuda_map_op;
typedef struct cuda_map_args {
  void *out;
  const void *in[3];
  int64_t n;
  int64_t shape[CUDA_AXES];
  int64_t stride[3][CUDA_AXES];
  double alpha, beta, gamma;
  uint32_t rank;
  uint32_t op;
  cuda_status *status; /* may be NULL: an integer divided by 0 gives 0 */
  uint32_t node;
  uint32_t reserved;
} cuda_map_args;
/* dtypes: OPIPE_*. in_dtype: of in[0] (of X for WHERE); out_dtype differs for
 * CAST and tests only. POW: exponent of in_dtype. false: this op has no kernel
 * for these types. The answer does not depend on pointers (`support` asks with
 * NULL). That holds for every cuda_plan_*. */
bool cuda_plan_map(const cuda_map_args *args, uint32_t in_dtype, uint32_t out_dtype,
                   cuda_launch *out);

/* ---- moving ---- */

/* out[i] = in[i] over shape, both with strides (any sign); elements of `size`
 * bytes: 1, 2, 4, 8 */
typedef struct cuda_move_args {
  void *out;
  const void *in;
  int64_t n;
  int64_t shape[CUDA_AXES], in_stride[CUDA_AXES], out_stride[CUDA_AXES];
  uint32_t rank;
  uint32_t size;
} cuda_move_args;
bool cuda_plan_move(const cuda_move_args *args, cuda_launch *out);

typedef struct cuda_fill_args { /* n elements of `size` bytes: *value (a device
                                   address), or `bits` where NULL */
  void *out;
  const void *value;
  int64_t n;
  uint64_t bits;
  uint32_t size;
  uint32_t reserved;
} cuda_fill_args;
bool cuda_plan_fill(const cuda_fill_args *args, cuda_launch *out);

/* out [outer, n_indices, inner] = data [outer, extent, inner] at indices
 * [n_indices] (negative: from the end). whole > 0: data are entries [first, first + extent) of as
 * many, which the indices count; where they name another, zeros. */
typedef struct cuda_gather_args {
  void *out;
  const void *data;
  const void *indices; /* int32 or int64 */
  cuda_status *status;
  int64_t outer, extent, n_indices, inner;
  int64_t first, whole;
  uint32_t size;        /* bytes of an element */
  uint32_t index_bytes; /* 4 or 8 */
  uint32_t node;
  uint32_t reserved;
} cuda_gather_args;
bool cuda_plan_gather(const cuda_gather_args *args, cuda_launch *out);

/* Rows of n elements of 2 or 4 bytes, from one distance between them to another: `to` gets nothing
 * between its rows. They do not overlap. */
typedef struct cuda_relay_args {
  void *to;
  const void *from;
  int64_t rows, n, to_distance, from_distance;
  uint32_t size; /* bytes of an element */
  uint32_t reserved;
} cuda_relay_args;
bool cuda_plan_relay(const cuda_relay_args *args, cuda_launch *out);

/* Trilu over [matrices, rows, columns]: keep column - row <= k (lower) or >= k
 * (upper), else 0 */
typedef struct cuda_trilu_args {
  void *out;
  const void *in;
  int64_t matrices, rows, columns, k;
  uint32_t upper;
  uint32_t size;
} cuda_trilu_args;
bool cuda_plan_trilu(const cuda_trilu_args *args, cuda_launch *out);

/* ---- rows ---- */

/* x, y [outer, n, inner], along n. mode 0 softmax, 1 log softmax, 2 hardmax */
typedef struct cuda_softmax_args {
  void *y;
  const void *x;
  int64_t outer, n, inner;
  uint32_t mode;
  uint32_t reserved;
} cuda_softmax_args;
bool cuda_plan_softmax(const cuda_softmax_args *args, uint32_t dtype, cuda_launch *out);

/* x, y [rows, n]; scale, bias [n]; bias, mean, inv_std [rows], residual, sum
 * [rows, n] may be NULL. residual: x + residual is normalised, and written to
 * sum. rms: no mean is taken */
typedef struct cuda_norm_args {
  void *y;
  const void *x;
  const void *residual;
  void *sum;
  const void *scale;
  const void *bias;
  void *mean;
  void *inv_std;
  int64_t rows, n;
  double epsilon;
  uint32_t rms;
  uint32_t reserved;
} cuda_norm_args;
bool cuda_plan_norm(const cuda_norm_args *args, uint32_t dtype, uint32_t scale_dtype,
                    cuda_launch *out);

/* out dense [n_out] over kept axes; every one reduces n_in elements over
 * reduced axes, in row-major order of chunks that depend on n_in alone. Strides
 * of `in`. */
typedef enum cuda_reduce_op {
  CUDA_REDUCE_SUM,
  CUDA_REDUCE_MEAN,
  CUDA_REDUCE_MAX,
  CUDA_REDUCE_MIN,
  CUDA_REDUCE_PROD,
  CUDA_REDUCE_L1,
  CUDA_REDUCE_L2,
  CUDA_REDUCE_SUMSQUARE,
  CUDA_REDUCE_LOGSUM,
  CUDA_REDUCE_LOGSUMEXP,
  CUDA_REDUCE_COUNT
} cuda_reduce_op;
typedef struct cuda_reduce_args {
  void *out;
  const void *in;
  int64_t n_out, n_in;
  int64_t kept_shape[CUDA_AXES], kept_stride[CUDA_AXES];
  int64_t reduced_shape[CUDA_AXES], reduced_stride[CUDA_AXES];
  uint32_t kept_rank, reduced_rank;
  uint32_t op;
  uint32_t reserved;
} cuda_reduce_args;
bool cuda_plan_reduce(const cuda_reduce_args *args, uint32_t dtype, cuda_launch *out);

/* out dense [kept_shape] = sum over summed_shape, in rising order, of the product of the operands,
 * each read through its strides along both (0: it has no such letter; a diagonal has the sum of
 * two). Floats are computed in double and rounded once to float before they are to halves;
 * integers wrap. */
enum { CUDA_EINSUM_OPERANDS = 2 };
typedef struct cuda_einsum_args {
  void *out;
  const void *in[CUDA_EINSUM_OPERANDS];
  int64_t n_out, n_summed; /* elements of both shapes */
  int64_t kept_shape[CUDA_AXES], kept_stride[CUDA_EINSUM_OPERANDS][CUDA_AXES];
  int64_t summed_shape[CUDA_AXES], summed_stride[CUDA_EINSUM_OPERANDS][CUDA_AXES];
  uint32_t kept_rank, summed_rank;
  uint32_t n_operands; /* 1 or more */
  uint32_t reserved;
} cuda_einsum_args;
bool cuda_plan_einsum(const cuda_einsum_args *args, uint32_t dtype, cuda_launch *out);

/* y [outer, n, inner] = running sums along n */
typedef struct cuda_cumsum_args {
  void *y;
  const void *x;
  int64_t outer, n, inner;
  uint32_t exclusive, reverse;
} cuda_cumsum_args;
bool cuda_plan_cumsum(const cuda_cumsum_args *args, uint32_t dtype, cuda_launch *out);

/* ---- attention ---- */

/* Element (b, h, s, d) of X is X[b * stride[0] + h * stride[1] + s * stride[2]
 * + d]. Keys and values come in two pieces: positions [0, P) from past, [P, T)
 * from K, V. Semantics of abi/guide/operators.md (softmax in float). A row's bits are those of any
 * number of rows: of any up to 8 that read a head, by parts of the keys, or of any above. */
typedef struct cuda_attention_args {
  const void *q, *k, *v, *past_k, *past_v;
  void *y;
  const void *mask;      /* NULL: none */
  const int64_t *nonpad; /* [B] or NULL */
  float *found;          /* [B, Hq, S] log of the sum of exponentials of a row's scores, or NULL */
  void *scores;          /* [B, Hq, S, T] of the type of q for `scores_mode` 0..3, or
                            NULL */
  int64_t q_stride[3], k_stride[3], v_stride[3], past_k_stride[3], past_v_stride[3], y_stride[3];
  int64_t mask_stride[4]; /* (b, h, s, t), 0: repeats */
  int64_t mask_keys;      /* keys from here on are masked (== T: none) */
  int64_t batch, heads, kv_heads, queries, keys, past, depth, value_depth;
  double scale, softcap;
  uint32_t causal;
  uint32_t mask_kind; /* 0 none, 1 bool, 2 added, of the type of q, 3 added, float */
  uint32_t scores_mode;
  uint32_t no_few;    /* 1: few rows take the kernels of many */
  void *workspace;    /* of cuda_attention_workspace bytes; of gradients: NULL */
  uint32_t *counters; /* [cuda_attention_counters], all 0, and again when it is done; NULL: with a
                         launch more, and the same bits */
} cuda_attention_args;
enum { CUDA_ATTENTION_LAUNCHES = 2 };
uint64_t cuda_attention_workspace(const cuda_attention_args *args, uint32_t dtype);
uint32_t cuda_attention_counters(const cuda_attention_args *args, uint32_t dtype); /* 0: none */
/* How many launches it takes, at most CUDA_ATTENTION_LAUNCHES; 0: no kernel. */
uint32_t cuda_plan_attention(const cuda_attention_args *args, uint32_t dtype, cuda_launch *out);

/* A mask as cuDNN adds it to scores, [batch, heads, rows, keys]: finite, 0 or -2^127 of what was
 * bool or -infinity, and -2^127 of keys that a row does not see. For each row it notes two keys:
 * the first that is seen, and among the seen ones the first whose number is none; `keys` where
 * there is none. */
typedef struct cuda_mask_args {
  const void *mask;
  void *out;         /* of cuda_mask_type */
  int32_t *notes;    /* [batch, heads, rows, 2] */
  int64_t stride[4]; /* of the mask, (b, h, s, t), 0: repeats */
  int64_t batch, heads, rows, keys;
  int64_t shift; /* row s sees keys t <= s + shift; < 0: all */
} cuda_mask_args;
/* Type of the prepared mask beside Q of a half type: bfloat16, if that holds every number of it, or
 * float. */
uint32_t cuda_mask_type(uint32_t mask_dtype, uint32_t dtype);
bool cuda_plan_mask(const cuda_mask_args *args, uint32_t mask_dtype, uint32_t dtype,
                    cuda_launch *out);

/* Rows of attention of a half type that added a prepared mask: those that see nothing are 0, of
 * what is no number none. dY too, for gradients that take P as exp(S - stats); the stats of those
 * that see nothing but numbers beside which scores vanish are the largest of these, and their dY
 * is divided by how many weigh as much. */
typedef struct cuda_settle_args {
  void *y;              /* NULL: it and the stats are so already */
  float *stats;         /* [batch, heads, queries]: +infinity of those that see nothing, or NULL */
  const void *dy;       /* NULL: none */
  void *dy_out;         /* [batch, heads, queries, value_depth] */
  const void *mask;     /* prepared */
  const int32_t *notes; /* of cuda_mask_args */
  int64_t y_stride[3], dy_stride[3];
  int64_t row_stride[3]; /* rows of the mask, (b, h, s), 0: repeats */
  int64_t batch, heads, queries, keys, value_depth;
  uint32_t causal;    /* row s sees keys t <= s */
  uint32_t half_mask; /* the prepared mask is bfloat16 */
} cuda_settle_args;
bool cuda_plan_settle(const cuda_settle_args *args, uint32_t dtype, cuda_launch *out);

/* x, y element (b, h, s, d) at b * stride[0] + h * stride[1] + s * stride[2] +
 * d. */
typedef struct cuda_rotary_args {
  void *y;
  const void *x;
  const void *cosines, *sines; /* [positions, turned / 2] */
  const int64_t *ids;          /* [batch, queries], or NULL: row s (+ b * queries where
                                  per_batch) */
  cuda_status *status;
  int64_t x_stride[3], y_stride[3];
  int64_t batch, heads, queries, depth, turned, positions;
  uint32_t interleaved;
  uint32_t per_batch;
  uint32_t node;
  uint32_t reserved;
} cuda_rotary_args;
bool cuda_plan_rotary(const cuda_rotary_args *args, uint32_t dtype, uint32_t cache_dtype,
                      cuda_launch *out);

/* ---- checks ---- */
typedef struct cuda_finite_args { /* reports FINITE where x [n] is not */
  const void *x;
  cuda_status *status;
  int64_t n;
  uint32_t node;
  uint32_t reserved;
  int64_t row, distance; /* elements of a row, and from one to the next; 0: side by side */
} cuda_finite_args;
bool cuda_plan_finite(const cuda_finite_args *args, uint32_t dtype, cuda_launch *out);

/* bytes data [0, n) must be those of `same`, or where it is NULL all 0xff */
typedef struct cuda_zone_args {
  const void *data;
  const void *same;
  cuda_status *status;
  int64_t n;
  uint32_t node;
  uint32_t reserved;
} cuda_zone_args;
bool cuda_plan_zone(const cuda_zone_args *args, cuda_launch *out);

typedef struct cuda_report_args { /* if (from->code != 0 && to->code == 0) *to =
                                   *from */
  cuda_status *to;
  const cuda_status *from;
} cuda_report_args;
bool cuda_plan_report(const cuda_report_args *args, cuda_launch *out);

typedef struct cuda_take_args { /* *to = *from; from->code = 0 */
  cuda_status *to;
  cuda_status *from;
} cuda_take_args;
bool cuda_plan_take(const cuda_take_args *args, cuda_launch *out);

/* ---- more of inference ---- */

/* y [n] = f(x) z, f by op: SIGMOID RELU GELU GELU_TANH SWISH (alpha). f(x) is
 * rounded as if it were stored, and is where `kept` is there. y may be x or z. */
typedef struct cuda_gate_args {
  void *y;
  void *kept; /* may be NULL */
  const void *x, *z;
  int64_t n;
  double alpha;
  uint32_t op; /* CUDA_MAP_* */
  uint32_t reserved;
} cuda_gate_args;
bool cuda_plan_gate(const cuda_gate_args *args, uint32_t dtype, cuda_launch *out);

/* y = normalised x [batch, channels, pixels] over groups of channels, scale and
 * bias [channels] */
typedef struct cuda_group_norm_args {
  void *y;
  const void *x;
  const void *scale, *bias;
  int64_t batch, channels, pixels, groups;
  double epsilon;
} cuda_group_norm_args;
bool cuda_plan_group_norm(const cuda_group_norm_args *args, uint32_t dtype, uint32_t scale_dtype,
                          cuda_launch *out);

/* The k first of every line of x [outer, n, inner], in order: values [outer, k,
 * inner] of x's type, indices int64; either may be NULL. ArgMax and ArgMin:
 * cuda_plan_arg, indices [outer, inner], k and values unused; last: of equals the highest
 * index. Any numbers. A number that is none counts as the largest. */
typedef struct cuda_order_args {
  void *values;
  void *indices;
  const void *x;
  int64_t outer, n, inner, k;
  uint32_t largest, last;
  uint32_t dtype; /* set by the plan */
  uint32_t reserved;
  void *workspace; /* of cuda_plan_arg: cuda_arg_workspace bytes, which may be 0 */
} cuda_order_args;
bool cuda_plan_topk(const cuda_order_args *args, uint32_t dtype, cuda_launch *out);
/* How many launches it takes, at most CUDA_LAUNCHES; 0: no kernel. */
uint32_t cuda_plan_arg(const cuda_order_args *args, uint32_t dtype, cuda_launch *out);
uint64_t cuda_arg_workspace(const cuda_order_args *args, uint32_t dtype);

#ifdef __cplusplus
}
#endif

#include "kernels_parts.h"
#include "kernels_recurrent.h"
#include "kernels_train.h"
#include "kernels_window.h"
#endif /* OPIPE_BACKEND_CUDA_KERNELS_H_ */
