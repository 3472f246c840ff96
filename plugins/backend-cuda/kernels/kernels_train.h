/* SPDX-License-Identifier: Apache-2.0 */
/* The border of kernels.h, continued: gradients, losses, dropout, writing and reading by index,
 * optimizers, sums of regions. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_TRAIN_H_
#define OPIPE_BACKEND_CUDA_KERNELS_TRAIN_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- training ----
 *
 * Some take several launches, one after the other on one stream: the answer is
 * their number, 0: no kernel for these types. workspace: device memory of
 * cuda_X_workspace bytes, aligned to 16. */
enum { CUDA_LAUNCHES = 40, CUDA_CHUNK_ROWS = 128 };

typedef struct cuda_accumulate_args { /* to fp32 [n] += x [n] */
  void *to;
  const void *x;
  int64_t n;
} cuda_accumulate_args;
bool cuda_plan_accumulate(const cuda_accumulate_args *args, uint32_t dtype, cuda_launch *out);

/* dx [n] = dy z f'(x), of the gate f(x) z; f' by op: GRAD_RELU GRAD_GELU GRAD_GELUTANH GRAD_SWISH
 * GRAD_QUICKGELU (alpha). dy z is rounded as if it were stored. dx may be any of them. */
typedef struct cuda_gate_grad_args {
  void *dx;
  const void *dy, *z, *x;
  int64_t n;
  double alpha;
  uint32_t op; /* CUDA_MAP_* */
  uint32_t reserved;
} cuda_gate_grad_args;
bool cuda_plan_gate_grad(const cuda_gate_grad_args *args, uint32_t dtype, cuda_launch *out);

/* dx [outer, n, inner] of Softmax (mode 0) or LogSoftmax (1), from y and dy. dx
 * may be y or dy. */
typedef struct cuda_softmax_grad_args {
  void *dx;
  const void *dy, *y;
  int64_t outer, n, inner;
  uint32_t mode;
  uint32_t reserved;
} cuda_softmax_grad_args;
bool cuda_plan_softmax_grad(const cuda_softmax_grad_args *args, uint32_t dtype, cuda_launch *out);

/* dx [rows, n] of layer and RMS norm from dy, x and scale; residual [rows, n],
 * may be NULL, is added (the gradient that goes past the norm) to what was rounded
 * as it would be stored. dx may be dy or residual. statistics [rows, 2], may be NULL: mean and
 * 1 / deviation of the rows, floats (doubles of double). */
typedef struct cuda_norm_grad_args {
  void *dx;
  const void *dy, *x, *scale, *residual;
  void *statistics;
  int64_t rows, n;
  double epsilon;
  uint32_t rms;
  uint32_t reserved;
} cuda_norm_grad_args;
bool cuda_plan_norm_grad(const cuda_norm_grad_args *args, uint32_t dtype, uint32_t scale_dtype,
                         cuda_launch *out);

/* The same along with sums over the rows, fp32 [n], of which some may be NULL: of dY h, the scale's
 * gradient, of dY, the bias', and of dX as it is stored, that of a bias in front. adds: of which
 * (bit k: of sums[k]) what is there is kept. Rows of up to 1024 elements, not of double; the
 * statistics are not written. dx has the same bits. */
enum { CUDA_NORM_OF_SCALE, CUDA_NORM_OF_BIAS, CUDA_NORM_OF_DX, CUDA_NORM_SUMS };
typedef struct cuda_norm_sums_args {
  cuda_norm_grad_args grad;
  void *sums[CUDA_NORM_SUMS];
  void *workspace;
  uint32_t adds;
  uint32_t reserved;
} cuda_norm_sums_args;
uint64_t cuda_norm_sums_workspace(const cuda_norm_sums_args *args);
uint32_t cuda_plan_norm_sums(const cuda_norm_sums_args *args, uint32_t dtype, uint32_t scale_dtype,
                             cuda_launch *out);

/* dscale, dbias [n], either may be NULL: fp32, of double x and dy fp64. adds:
 * to what is there. given: the workspace begins with the rows' statistics, as
 * cuda_plan_norm_grad writes them. */
typedef struct cuda_norm_scale_args {
  void *dscale, *dbias;
  const void *dy, *x;
  void *workspace;
  int64_t rows, n;
  double epsilon;
  uint32_t rms;
  uint32_t adds;
  uint32_t given;
  uint32_t reserved;
} cuda_norm_scale_args;
uint64_t cuda_norm_scale_workspace(const cuda_norm_scale_args *args);
uint32_t cuda_plan_norm_scale(const cuda_norm_scale_args *args, uint32_t dtype, cuda_launch *out);

/* out [n] = sums of the columns of x [rows, n] (gradients of biases). out of x's type, or fp32
 * where `adds`: to what is there. distance: elements between rows, but of double; 0: n. The
 * elements between them may be read. */
typedef struct cuda_columns_args {
  void *out;
  const void *x;
  void *workspace;
  int64_t rows, n;
  uint32_t adds;
  uint32_t reserved;
  int64_t distance;
} cuda_columns_args;
uint64_t cuda_columns_workspace(const cuda_columns_args *args);
uint32_t cuda_plan_columns(const cuda_columns_args *args, uint32_t dtype, cuda_launch *out);

/* Gradients of attention: forward's q, k, v, past, mask, nonpad and numbers (y
 * and scores are not read), dy with strides as forward's y. Any output may be
 * NULL. dmask is of the mask's shape and type, with its strides; a mask of
 * floats only. */
typedef struct cuda_attention_grad_args {
  cuda_attention_args forward;
  const void *dy;
  void *dq, *dk, *dv, *dpast_k, *dpast_v, *dmask;
  void *workspace;
  int64_t dy_stride[3], dq_stride[3], dk_stride[3], dv_stride[3], dpast_k_stride[3],
      dpast_v_stride[3];
} cuda_attention_grad_args;
uint64_t cuda_attention_grad_workspace(const cuda_attention_grad_args *args);
uint32_t cuda_plan_attention_grad(const cuda_attention_grad_args *args, uint32_t dtype,
                                  cuda_launch *out);

/* ---- losses ---- */

/* scores [rows, classes, inner] (rows: the batch; inner: what lies behind the
 * classes), labels [rows, inner] of int32 or int64. loss: `reduction` 0 none:
 * [rows, inner], 1 sum, 2 mean (by the weights of the labels that count): one element. log_prob
 * (like scores), weights [classes] of the loss' type: may be NULL. softmax 0: the scores are
 * log-probabilities (NegativeLogLikelihoodLoss). loss_dtype: that of the scores; or fp32 with
 * scores of a half type, inner 1 and no log_prob: losses of scores that are widened as they are
 * read. distance: elements between rows of scores where inner is 1; 0: classes. The elements
 * between them may be read. */
typedef struct cuda_loss_args {
  void *loss;
  void *log_prob;
  const void *scores, *labels, *weights;
  void *workspace;
  cuda_status *status;
  int64_t rows, classes, inner;
  int64_t ignored; /* where `ignores` */
  int64_t distance;
  uint32_t ignores;
  uint32_t reduction, softmax;
  uint32_t label_bytes; /* 4 or 8 */
  uint32_t node;
  uint32_t reserved;
} cuda_loss_args;
uint64_t cuda_loss_workspace(const cuda_loss_args *args);
uint32_t cuda_plan_loss(const cuda_loss_args *args, uint32_t dtype, uint32_t loss_dtype,
                        cuda_launch *out);

/* dx = dl (softmax(x) - one-hot), weighted and smoothed, of the loss above; dl:
 * one element, or [rows, inner] where `dl_rows`. dx may be x: the gradient
 * takes the place of the scores. loss_dtype: of dl and weights, as above; dx
 * is of the scores' type, rounded once. Distances as above; between rows of dx
 * zeros may be written, up to 16 bytes beyond the last class. */
typedef struct cuda_loss_grad_args {
  void *dx;
  const void *x, *dl, *labels, *weights;
  cuda_status *status;
  int64_t rows, classes, inner;
  int64_t ignored;
  int64_t x_distance, dx_distance;
  double smoothing;
  uint32_t ignores;
  uint32_t dl_rows;
  uint32_t label_bytes;
  uint32_t node;
} cuda_loss_grad_args;
bool cuda_plan_loss_grad(const cuda_loss_grad_args *args, uint32_t dtype, uint32_t loss_dtype,
                         cuda_launch *out);

/* ---- dropout ---- */

/* An axis that holds outer * n * inner elements of which n counts samples or
 * tokens; axis -1: none (n and inner 1). */
typedef struct cuda_dropout_factor {
  int64_t n, inner;
  int32_t axis;
  uint32_t reserved;
} cuda_dropout_factor;

/* y = x / (1 - ratio) where the counter of opipe.Dropout keeps the element,
 * else 0; mask: bytes, may be NULL. seed, step, sample, token: device addresses
 * of one int64 each, NULL: 0. key: cuda_dropout_key of the node's `key`. y may be x. n_runs > 0: x
 * is a part of a tensor with part_whole entries along part_axis, which has these runs (first, n) of
 * them, and each element is kept as there; the factors of that axis count the whole tensor's. */
enum { CUDA_DROPOUT_RUNS = 16 };
typedef struct cuda_dropout_args {
  void *y;
  const void *x;
  uint8_t *mask;
  const int64_t *seed, *step, *sample, *token;
  int64_t n;
  int64_t shape[CUDA_AXES];
  cuda_dropout_factor batch_part, token_part;
  uint64_t key;
  double ratio;
  int64_t part_whole;
  int64_t part_runs[2 * CUDA_DROPOUT_RUNS];
  uint32_t rank;
  uint32_t part_axis, n_runs;
  uint32_t reserved;
} cuda_dropout_args;
uint64_t cuda_dropout_key(const char *key);
bool cuda_plan_dropout(const cuda_dropout_args *args, uint32_t dtype, cuda_launch *out);

/* ---- writing by index, in rising order of the index's position ---- */

/* Where update i of n goes, by form:
 *   AXIS      out [outer, extent, inner], updates [outer, n, inner], indices
 * [n]: GatherGrad; every outer alike; whole > 0: out are entries [first, first + extent) of as
 * many, which the indices count, and updates of others are left out ELEMENTS  updates of
 * index_shape [rank]: element i goes to its own position, along `axis` to indices[i]; out_shape
 * [rank], inner 1 TUPLES        indices [n, tuple]: out_shape [tuple] are the axes
 * that they count, inner elements behind each kind: 0 none (the last one
 * stays), 1 add, 2 mul, 3 max, 4 min. `out` holds the data before. out_dtype of
 * AXIS with add may be fp32 for any float updates (an accumulator); else out is
 * of the updates' type. */
enum { CUDA_SCATTER_AXIS, CUDA_SCATTER_ELEMENTS, CUDA_SCATTER_TUPLES };
typedef struct cuda_scatter_args {
  void *out;
  const void *updates, *indices;
  void *workspace;
  cuda_status *status;
  int64_t outer, extent, n, inner;
  int64_t first, whole;
  int64_t index_shape[CUDA_AXES], out_shape[CUDA_AXES];
  uint32_t form, kind;
  uint32_t rank, axis; /* ELEMENTS; TUPLES: rank is the tuple's length */
  uint32_t index_bytes;
  uint32_t node;
} cuda_scatter_args;
uint64_t cuda_scatter_workspace(const cuda_scatter_args *args);
uint32_t cuda_plan_scatter(const cuda_scatter_args *args, uint32_t dtype, uint32_t out_dtype,
                           cuda_launch *out);

/* y of index_shape: ELEMENTS, data [out_shape], element i is data at its own
 * position, along `axis` at indices[i]. TUPLES: y [outer, n, inner] = data [outer,
 * out_shape ..., inner] at indices [outer, n, tuple] (GatherTUPLES; outer: the
 * batch axes). size: bytes of an element. kind, workspace, extent are not read.
 */
typedef struct cuda_pick_args {
  void *y;
  const void *data, *indices;
  cuda_status *status;
  int64_t outer, n, inner;
  int64_t index_shape[CUDA_AXES], out_shape[CUDA_AXES];
  uint32_t form;
  uint32_t rank, axis;
  uint32_t index_bytes, size;
  uint32_t node;
} cuda_pick_args;
bool cuda_plan_pick(const cuda_pick_args *args, cuda_launch *out);

/* y [outer, depth, inner] = on where indices [outer, inner] (any numbers) name
 * the place, else off; values: off, on, of `size` bytes each */
typedef struct cuda_one_hot_args {
  void *y;
  const void *indices, *values;
  int64_t outer, depth, inner;
  uint32_t size;
  uint32_t dtype; /* of indices; set by the plan */
} cuda_one_hot_args;
bool cuda_plan_one_hot(const cuda_one_hot_args *args, uint32_t dtype, cuda_launch *out);

/* y of y_shape from x of x_shape, begin [rank] elements before it (negative:
 * cut); value: one element or NULL (0) */
enum { CUDA_PAD_CONSTANT, CUDA_PAD_REFLECT, CUDA_PAD_EDGE, CUDA_PAD_WRAP };
typedef struct cuda_pad_args {
  void *y;
  const void *x, *value;
  int64_t n; /* elements of y */
  int64_t y_shape[CUDA_AXES], x_shape[CUDA_AXES], begin[CUDA_AXES];
  uint32_t rank;
  uint32_t mode;
  uint32_t size;
  uint32_t reserved;
} cuda_pad_args;
bool cuda_plan_pad(const cuda_pad_args *args, cuda_launch *out);

/* ---- products of few rows ---- */

/* y [m, n] = alpha x [m, k] w + bias + residual, m at most CUDA_FEW_ROWS; w [k, n], or [n, k] where
 * `turned`; bias [n], residual [m, n], which may be y: may be NULL. gelu: y is GELU (tanh) of that,
 * which is also written to aux [m, n], may be NULL. fp32 and half types. Sums in
 * float, rounded once; a row's bits do not depend on m. counters [cuda_few_rows_counters], all 0,
 * and again when it is done; NULL: sums are made by a launch more, with the same bits. */
enum { CUDA_FEW_ROWS = 8 };
typedef struct cuda_few_rows_args {
  void *y;
  const void *x, *w, *bias, *residual;
  void *aux;
  void *workspace;
  uint32_t *counters;
  int64_t m, n, k;
  double alpha;
  uint32_t turned;
  uint32_t gelu;
} cuda_few_rows_args;
uint64_t cuda_few_rows_workspace(const cuda_few_rows_args *args, uint32_t dtype);
uint32_t cuda_few_rows_counters(const cuda_few_rows_args *args, uint32_t dtype); /* 0: none */
uint32_t cuda_plan_few_rows(const cuda_few_rows_args *args, uint32_t dtype, cuda_launch *out);

/* ---- optimizers ---- */

enum {
  CUDA_UPDATE_CHUNK = 4096, /* elements of a block */
  CUDA_MANY = 192,          /* parameters of a launch: their table is in its argument block */
  CUDA_SUMS = 256           /* parts of a sum of squares, at most */
};

/* One parameter. half: a copy of the weight in `half_dtype` (OPIPE_BFLOAT16,
 * OPIPE_FLOAT16), written with it; NULL: none */
typedef struct cuda_update_item {
  float *weight, *gradient, *first, *second;
  void *half;
  int64_t n; /* at least 1 */
  uint32_t half_dtype;
  uint32_t reserved;
  double decay; /* of this parameter: backend.h's `decay` */
} cuda_update_item;

/* The numbers of backend.h's opipe_update. */
typedef struct cuda_update_args {
  cuda_update_item items[CUDA_MANY];
  uint64_t ends[CUDA_MANY]; /* blocks of all items up to this one; set by the plan */
  uint32_t n_items;         /* 1 to CUDA_MANY */
  uint32_t kind, flags;     /* OPIPE_UPDATE_* */
  uint32_t reserved;
  double gradient_scale, lr, momentum, beta1, beta2, correction1, correction2, epsilon;
} cuda_update_args;
/* The block is launched from where it is. */
bool cuda_plan_update(cuda_update_args *io_args, cuda_launch *out);

/* *sum = sum of squares of x [n], in fp64, for each item. At most CUDA_SUMS parts of as many chunks
 * each are summed and then added, in order: a sum depends on its number of elements alone. */
typedef struct cuda_squares_item {
  const float *x;
  double *sum;
  int64_t n;         /* at least 1 */
  uint64_t per_part; /* chunks; set by the plan */
} cuda_squares_item;
typedef struct cuda_squares_args {
  cuda_squares_item items[CUDA_MANY];
  uint64_t ends[CUDA_MANY]; /* parts of all items up to this one; set by the plan */
  uint32_t n_items;         /* 1 to CUDA_MANY */
  uint32_t reserved;
  double *workspace; /* [parts of all] */
} cuda_squares_args;
/* Parts of a sum over n elements. */
uint32_t cuda_squares_parts(int64_t n);
/* Two launches, from where the block is. */
uint32_t cuda_plan_squares(cuda_squares_args *io_args, cuda_launch *out);

/* ---- sums of regions ---- */

/* dst [n] = src[0] + src[1] + ... of n_src regions, in this order; fp32 and half types in fp32,
 * rounded once, double in double. dst may be any of them. */
enum { CUDA_SUM_REGIONS = 192 };
typedef struct cuda_sum_args {
  void *dst;
  const void *src[CUDA_SUM_REGIONS];
  int64_t n;
  uint32_t n_src; /* 1 to CUDA_SUM_REGIONS */
  uint32_t reserved;
} cuda_sum_args;
/* The block is launched from where it is. */
bool cuda_plan_sum(const cuda_sum_args *args, uint32_t dtype, cuda_launch *out);

#ifdef __cplusplus
}
#endif
#endif
