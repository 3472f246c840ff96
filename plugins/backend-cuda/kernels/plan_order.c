/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of what finds places: ArgMax, ArgMin, TopK. */
#include "plan.h"

enum {
  MOST_ALONE = 2048, /* elements of a row that one block takes: 16 bytes a thread of half types */
  LEAST_PART = 1024, /* where it is longer, of a part: a vocabulary of 50304 is 50 blocks */
  ENOUGH_BLOCKS = 512
};

static bool plan_order(uint32_t id, const cuda_order_args *args, uint32_t dtype, cuda_launch *out) {
  cuda_order_args block = *args;
  block.dtype = dtype;
  return (cuda_float_place(dtype) >= 0 || cuda_is_integer(dtype)) &&
         cuda_make_launch(id, &block, cuda_blocks(args->outer * args->inner, 1), 1, 0, out);
}

/* Rows of floats, whose places fit 32 bits. */
static bool is_by_rows(const cuda_order_args *args, uint32_t dtype) {
  return (dtype == OPIPE_FLOAT || dtype == OPIPE_BFLOAT16 || dtype == OPIPE_FLOAT16) &&
         args->inner == 1 && args->n > 0 && args->n <= UINT32_MAX;
}

/* Parts of a row, which begin at multiples of 8 elements: more than one where rows are few. */
static cuda_arg_block parts_of(const cuda_order_args *args) {
  cuda_arg_block block = {.indices = args->indices,
                          .x = args->x,
                          .found = args->workspace,
                          .rows = args->outer,
                          .n = args->n,
                          .largest = args->largest,
                          .last = args->last};
  const int64_t most = args->n <= MOST_ALONE ? 1 : (args->n + LEAST_PART - 1) / LEAST_PART;
  const int64_t wanted = args->outer > 0 ? (ENOUGH_BLOCKS + args->outer - 1) / args->outer : 1;
  const int64_t n = wanted < most ? wanted : most;
  block.part = ((args->n + n - 1) / n + 7) / 8 * 8;
  block.n_parts = (args->n + block.part - 1) / block.part;
  return block;
}

uint64_t cuda_arg_workspace(const cuda_order_args *args, uint32_t dtype) {
  if (!is_by_rows(args, dtype))
    return 0;
  const cuda_arg_block block = parts_of(args);
  return block.n_parts > 1 ? (uint64_t)(block.rows * block.n_parts) * sizeof(uint64_t) : 0;
}

uint32_t cuda_plan_arg(const cuda_order_args *args, uint32_t dtype, cuda_launch *out) {
  if (!is_by_rows(args, dtype))
    return plan_order(CUDA_ID_opipe_arg, args, dtype, out) ? 1 : 0;
  const cuda_arg_block block = parts_of(args);
  const uint32_t id = (uint32_t)CUDA_ID_opipe_arg_rows_f32 + (uint32_t)cuda_float_place(dtype);
  cuda_make_launch(id, &block, cuda_blocks(block.rows * block.n_parts, 1), 1, 0, &out[0]);
  if (block.n_parts == 1)
    return 1;
  cuda_make_launch(CUDA_ID_opipe_arg_join, &block, cuda_blocks(block.rows, 8), 1, 0, &out[1]);
  return 2;
}

bool cuda_plan_topk(const cuda_order_args *args, uint32_t dtype, cuda_launch *out) {
  return plan_order(CUDA_ID_opipe_topk, args, dtype, out);
}
