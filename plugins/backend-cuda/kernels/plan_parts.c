/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of cross entropy in parts, and of attention of token rows. */
#include "plan.h"

/* ---- cross entropy in parts ---- */

static bool takes_labels(const cuda_entropy_labels *of) {
  return of->bytes == 4 || of->bytes == 8;
}

bool cuda_plan_entropy(const cuda_entropy_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 && takes_labels(&args->of) && (args->columns == 3 || args->columns == 4) &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_entropy_part_f32 + (uint32_t)place, args,
                          cuda_blocks(args->rows * args->inner, 1), 1, 0, out);
}

uint64_t cuda_entropy_workspace(const cuda_entropy_merge_args *args) {
  return (uint64_t)args->rows * 2 * sizeof(double);
}

uint32_t cuda_plan_entropy_merge(const cuda_entropy_merge_args *args, uint32_t dtype,
                                 cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const cuda_loss_args sum = {.loss = args->loss,
                              .workspace = args->workspace,
                              .rows = args->rows,
                              .inner = 1,
                              .reduction = args->reduction};
  uint32_t n = 0;
  if (place < 0 || !takes_labels(&args->of) || args->reduction > 2 ||
      (args->columns != 3 && args->columns != 4))
    return 0;
  cuda_make_launch((uint32_t)CUDA_ID_opipe_entropy_merge_f32 + (uint32_t)place, args,
                   cuda_blocks(args->rows, 256), 1, 0, &out[n++]);
  if (args->reduction != 0) {
    cuda_make_launch((uint32_t)CUDA_ID_opipe_loss_sum_f32 + (uint32_t)place, &sum, 1, 1, 0,
                     &out[n++]);
  }
  return n;
}

bool cuda_plan_entropy_grad(const cuda_entropy_grad_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 && takes_labels(&args->of) &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_entropy_grad_f32 + (uint32_t)place, args,
                          cuda_blocks(args->rows * args->inner, 1), 1, 0, out);
}

/* ---- attention of token rows ---- */

/* Parts that a row may have, at most. */
static int64_t parts_of(const cuda_row_attention_args *args) {
  return (args->pages * args->page + CUDA_ROWS_KEYS - 1) / CUDA_ROWS_KEYS;
}

/* The parts of one row leave: sums of weighted values, the largest score and the sum. */
static uint64_t row_bytes(const cuda_row_attention_args *args) {
  return (uint64_t)(args->heads * parts_of(args) * (args->value_depth + 2)) * sizeof(float);
}

/* Rows of one launch: as many as ROOM has for their parts; more where the launches would be too
 * many. */
static int64_t rows_at_once(const cuda_row_attention_args *args) {
  enum { ROOM = 64 << 20, MOST_LAUNCHES = (CUDA_LAUNCHES - 2) / 2 };
  const int64_t fit = (int64_t)(ROOM / (row_bytes(args) + 1));
  const int64_t least = (args->rows + MOST_LAUNCHES - 1) / MOST_LAUNCHES;
  const int64_t n = fit > least ? fit : least;
  return n > args->rows ? args->rows : n;
}

uint64_t cuda_row_attention_workspace(const cuda_row_attention_args *args) {
  return (uint64_t)rows_at_once(args) * row_bytes(args);
}

static bool has_row_kernels(const cuda_row_attention_args *args) {
  enum { MOST_PARTS = 65535, MOST_BLOCKS = INT32_MAX };
  return args->depth >= 1 && args->depth <= CUDA_DEPTH && args->value_depth >= 1 &&
         args->value_depth <= CUDA_DEPTH && args->kv_heads >= 1 &&
         args->heads % args->kv_heads == 0 && args->page >= 1 && args->pages >= 1 &&
         args->page <= INT32_MAX && args->pages <= INT32_MAX && parts_of(args) <= MOST_PARTS &&
         args->heads <= MOST_PARTS && args->rows <= MOST_BLOCKS / MOST_PARTS;
}

uint32_t cuda_plan_row_attention(const cuda_row_attention_args *args, uint32_t dtype,
                                 cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  cuda_row_attention_args block = *args;
  uint32_t n = 0;
  if (place < 0 || place > 2 || !has_row_kernels(args))
    return 0;
  const int64_t each = args->kv_heads * (args->depth + args->value_depth);
  block.size = cuda_element_bytes(dtype);
  if (args->n_copies > 0) {
    cuda_make_launch(CUDA_ID_opipe_pages_copy, &block, cuda_blocks(args->page * each, 256), 1, 0,
                     &out[n++]);
  }
  if (args->rows == 0)
    return n;
  cuda_make_launch((uint32_t)CUDA_ID_opipe_pages_write_f32 + (uint32_t)place, &block,
                   cuda_blocks(args->rows * each, 256), 1, 0, &out[n++]);
  const int64_t at_once = rows_at_once(args);
  for (block.first = 0; block.first < args->rows; block.first += at_once) {
    const int64_t left = args->rows - block.first;
    block.count = left < at_once ? left : at_once;
    cuda_make_launch((uint32_t)CUDA_ID_opipe_rows_part_f32 + (uint32_t)place, &block,
                     (uint32_t)(block.count * args->kv_heads), (uint32_t)parts_of(args), 0,
                     &out[n++]);
    cuda_make_launch((uint32_t)CUDA_ID_opipe_rows_join_f32 + (uint32_t)place, &block,
                     (uint32_t)(block.count * args->heads), 1, 0, &out[n++]);
  }
  return n;
}
