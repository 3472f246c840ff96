/* SPDX-License-Identifier: Apache-2.0 */
/* The border of kernels.h, continued: cross entropy of one member's part of the classes; attention
 * of token rows whose keys and values lie in pages. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_PARTS_H_
#define OPIPE_BACKEND_CUDA_KERNELS_PARTS_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cross entropy in parts ----
 *
 * scores [rows, own, inner]: classes [first, first + own) of `whole`; labels [rows, inner] of int32
 * or int64, of all classes. Statistics of a row are floats, doubles of double. */

/* Which labels count. */
typedef struct cuda_entropy_labels {
  const void *labels;
  cuda_status *status;
  int64_t whole;
  int64_t ignored; /* where `ignores` */
  uint32_t ignores;
  uint32_t bytes; /* 4 or 8 */
  uint32_t node;
  uint32_t reserved;
} cuda_entropy_labels;

/* statistics [rows, inner, columns]: the largest score, the sum of exp(score - largest), the
 * label's score (0: it is another member's), and with four columns the sum of the scores. A part
 * whose scores are all -infinity has the sum 0. */
typedef struct cuda_entropy_args {
  void *statistics;
  const void *scores;
  cuda_entropy_labels of;
  int64_t rows, own, inner, first;
  uint32_t columns; /* 3 or 4 */
  uint32_t reserved;
} cuda_entropy_args;
bool cuda_plan_entropy(const cuda_entropy_args *args, uint32_t dtype, cuda_launch *out);

/* statistics [members, rows, columns] merged in rising order; rows: those of all labels. loss:
 * reduction 0 none: [rows], 1 sum, 2 mean (by the weights of the labels that count): one element.
 * log_sum [rows] of the statistics' type, weights [whole] of the loss' type: may be NULL. */
typedef struct cuda_entropy_merge_args {
  void *loss, *log_sum;
  const void *weights, *statistics;
  void *workspace; /* of cuda_entropy_workspace bytes, aligned to 16 */
  cuda_entropy_labels of;
  int64_t rows, members;
  double smoothing;
  uint32_t columns;
  uint32_t reduction;
} cuda_entropy_merge_args;
uint64_t cuda_entropy_workspace(const cuda_entropy_merge_args *args);
uint32_t cuda_plan_entropy_merge(const cuda_entropy_merge_args *args, uint32_t dtype,
                                 cuda_launch *out);

/* dx = the gradient of the loss by the member's scores, from the logarithm of the sum over all
 * classes [rows, inner]; dl: one element, or [rows, inner] where `dl_rows`. dx may be the scores.
 * weights as above. */
typedef struct cuda_entropy_grad_args {
  void *dx;
  const void *scores, *dl, *weights, *log_sum;
  cuda_entropy_labels of;
  int64_t rows, own, inner, first;
  double smoothing;
  uint32_t dl_rows;
  uint32_t reserved;
} cuda_entropy_grad_args;
bool cuda_plan_entropy_grad(const cuda_entropy_grad_args *args, uint32_t dtype, cuda_launch *out);

/* ---- attention of token rows ----
 *
 * Row n is the token at position[n] of sequence[n] (below 0: no row; its y is zeros). Page
 * table[s][p] holds tokens [p * page, (p + 1) * page) of sequence s, as [kv_heads][page][depth] of
 * keys and [kv_heads][page][value_depth] of values. First the copies [n_copies][3] are made in
 * order (from page, to page, so many first tokens; from below 0: none), then k and v of all rows
 * are written into their pages, then each row attends to keys 0 to its own, with window > 0 to the
 * last `window` of them.
 *
 * Positions, sequences and the table are read as the launches run, which depend on extents alone: a
 * captured graph serves any. A row's bits depend on its query and the keys and values that it sees,
 * never on the other rows, on the page or on `pages`: keys are taken in parts of CUDA_ROWS_KEYS,
 * counted from key 0, and parts are joined in rising order. */
enum { CUDA_ROWS_KEYS = 128, CUDA_ROWS_HEADS = 8 /* query heads that share a key as it is read */ };
typedef struct cuda_row_attention_args {
  void *y;                 /* [rows][heads * value_depth] */
  const void *q, *k, *v;   /* [rows][heads or kv_heads * depth or value_depth] */
  const int64_t *position; /* [rows] */
  const int64_t *sequence; /* [rows] */
  const int64_t *table;    /* [sequences][pages] */
  const float *slopes;     /* [heads] slope * (key - position) is added to the capped score; NULL:
                              none */
  const int64_t *copies;   /* [n_copies][3] */
  void *key_pages;         /* [pool] pages; read and written */
  void *value_pages;
  void *workspace; /* of cuda_row_attention_workspace bytes, aligned to 16 */
  cuda_status *status;
  int64_t rows, heads, kv_heads, depth, value_depth;
  int64_t page, pages, sequences, pool, n_copies;
  int64_t window;       /* keys that a row sees, its own the last; 0: all before it */
  int64_t first, count; /* rows of one launch; set by the plan */
  double scale, softcap;
  uint32_t node;
  uint32_t size; /* bytes of an element; set by the plan */
} cuda_row_attention_args;
uint64_t cuda_row_attention_workspace(const cuda_row_attention_args *args);
/* How many launches it takes, at most CUDA_LAUNCHES; 0: no kernel for the type, or a head of more
 * than 256 elements. */
uint32_t cuda_plan_row_attention(const cuda_row_attention_args *args, uint32_t dtype,
                                 cuda_launch *out);

#ifdef __cplusplus
}
#endif
#endif
