/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels: name, argument block, threads of a block (at most). Launches,
 * the shim's rows and the check of registers go through this list. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_TABLE_H_
#define OPIPE_BACKEND_CUDA_KERNELS_TABLE_H_

#include "blocks.h"

/* A kernel per type of elements; with double, and without. */
#define CUDA_HALVES(X, name, type, threads) \
  X(name##_f32, type, threads)              \
  X(name##_bf16, type, threads) X(name##_f16, type, threads)
#define CUDA_FLOATS(X, name, type, threads) \
  CUDA_HALVES(X, name, type, threads) X(name##_f64, type, threads)
/* And per type of a second operand, which is of the elements' type or float. */
#define CUDA_PAIRS(X, name, type, threads) \
  CUDA_FLOATS(X, name, type, threads)      \
  X(name##_bf16_f32, type, threads)        \
  X(name##_f16_f32, type, threads) X(name##_f64_f32, type, threads)

/* For half types alone. */
#define CUDA_TENSOR(X, name, type, threads) \
  X(name##_bf16, type, threads) X(name##_f16, type, threads)

/* By tiles: of rows of 64 and of 128 elements, without masks and with them. */
#define CUDA_BY_TILES(X, name, type)          \
  CUDA_TENSOR(X, name##_64, type, 128)        \
  CUDA_TENSOR(X, name##_128, type, 128)       \
  CUDA_TENSOR(X, name##_masked_64, type, 128) \
  CUDA_TENSOR(X, name##_masked_128, type, 128)

#define CUDA_KERNELS(X)                                                    \
  X(opipe_begin, cuda_begin_args, 64)                                      \
  X(opipe_report, cuda_report_args, 1)                                     \
  X(opipe_take, cuda_take_args, 1)                                         \
  X(opipe_finite, cuda_finite_block, 256)                                  \
  X(opipe_zone, cuda_zone_args, 256)                                       \
  X(opipe_fill, cuda_fill_args, 256)                                       \
  CUDA_FLOATS(X, opipe_map, cuda_map_block, 256)                           \
  X(opipe_map_int, cuda_map_block, 256)                                    \
  X(opipe_map_test, cuda_map_block, 256)                                   \
  X(opipe_map_where, cuda_map_block, 256)                                  \
  X(opipe_map_cast, cuda_map_block, 256)                                   \
  CUDA_HALVES(X, opipe_one, cuda_flat_block, 256)                          \
  CUDA_HALVES(X, opipe_two, cuda_flat_block, 256)                          \
  CUDA_HALVES(X, opipe_gate, cuda_gate_args, 256)                          \
  CUDA_HALVES(X, opipe_gate_grad, cuda_gate_grad_args, 256)                \
  X(opipe_convert_f32_bf16, cuda_convert_block, 256)                       \
  X(opipe_convert_f32_f16, cuda_convert_block, 256)                        \
  X(opipe_convert_bf16_f32, cuda_convert_block, 256)                       \
  X(opipe_convert_f16_f32, cuda_convert_block, 256)                        \
  X(opipe_convert_bf16_f16, cuda_convert_block, 256)                       \
  X(opipe_convert_f16_bf16, cuda_convert_block, 256)                       \
  CUDA_HALVES(X, opipe_accumulate, cuda_convert_block, 256)                \
  X(opipe_move, cuda_move_block, 256)                                      \
  X(opipe_relay, cuda_relay_args, 256)                                     \
  X(opipe_transpose, cuda_transpose_block, 256)                            \
  X(opipe_trilu, cuda_trilu_args, 256)                                     \
  X(opipe_gather, cuda_gather_block, 256)                                  \
  CUDA_FLOATS(X, opipe_softmax_warp, cuda_softmax_args, 256)               \
  CUDA_FLOATS(X, opipe_softmax_block, cuda_softmax_args, 256)              \
  CUDA_FLOATS(X, opipe_softmax_line, cuda_softmax_args, 256)               \
  CUDA_FLOATS(X, opipe_softmax_grad_warp, cuda_softmax_grad_args, 256)     \
  CUDA_FLOATS(X, opipe_softmax_grad_block, cuda_softmax_grad_args, 256)    \
  CUDA_FLOATS(X, opipe_softmax_grad_line, cuda_softmax_grad_args, 256)     \
  CUDA_PAIRS(X, opipe_norm_warp, cuda_norm_args, 256)                      \
  CUDA_PAIRS(X, opipe_norm_block, cuda_norm_args, 256)                     \
  CUDA_PAIRS(X, opipe_norm_grad_warp, cuda_norm_grad_args, 256)            \
  CUDA_PAIRS(X, opipe_norm_grad_block, cuda_norm_grad_args, 256)           \
  CUDA_HALVES(X, opipe_norm_grad_sums, cuda_norm_sums_block, 128)          \
  X(opipe_norm_grad_sums_bf16_f32, cuda_norm_sums_block, 128)              \
  X(opipe_norm_grad_sums_f16_f32, cuda_norm_sums_block, 128)               \
  X(opipe_norm_grad_totals, cuda_norm_sums_block, 1024)                    \
  CUDA_FLOATS(X, opipe_norm_moments_warp, cuda_norm_scale_args, 256)       \
  CUDA_FLOATS(X, opipe_norm_moments_block, cuda_norm_scale_args, 256)      \
  CUDA_FLOATS(X, opipe_norm_chunks, cuda_norm_scale_args, 256)             \
  X(opipe_norm_sums_f32, cuda_norm_scale_args, 256)                        \
  X(opipe_norm_sums_f64, cuda_norm_scale_args, 256)                        \
  CUDA_PAIRS(X, opipe_group_norm, cuda_group_norm_args, 256)               \
  CUDA_FLOATS(X, opipe_reduce_thread, cuda_reduce_block, 256)              \
  CUDA_FLOATS(X, opipe_reduce_warp, cuda_reduce_block, 256)                \
  CUDA_FLOATS(X, opipe_reduce_block, cuda_reduce_block, 256)               \
  X(opipe_reduce_int, cuda_reduce_block, 256)                              \
  X(opipe_einsum, cuda_einsum_block, 256)                                  \
  X(opipe_arg, cuda_order_args, 256)                                       \
  CUDA_HALVES(X, opipe_arg_rows, cuda_arg_block, 256)                      \
  X(opipe_arg_join, cuda_arg_block, 256)                                   \
  X(opipe_topk, cuda_order_args, 256)                                      \
  X(opipe_cumsum, cuda_typed_block, 256)                                   \
  CUDA_FLOATS(X, opipe_column_chunks, cuda_columns_args, 256)              \
  CUDA_FLOATS(X, opipe_column_sums, cuda_columns_args, 256)                \
  CUDA_HALVES(X, opipe_column_far, cuda_columns_args, 256)                 \
  CUDA_FLOATS(X, opipe_attention, cuda_attention_args, 256)                \
  CUDA_FLOATS(X, opipe_attention_grad_rows, cuda_attention_grad_args, 256) \
  CUDA_FLOATS(X, opipe_attention_grad_keys, cuda_attention_grad_args, 256) \
  CUDA_FLOATS(X, opipe_attention_grad_mask, cuda_attention_grad_args, 256) \
  CUDA_HALVES(X, opipe_attention_few_64, cuda_attention_args, 256)         \
  CUDA_HALVES(X, opipe_attention_few_128, cuda_attention_args, 256)        \
  CUDA_HALVES(X, opipe_attention_join, cuda_attention_args, 256)           \
  CUDA_BY_TILES(X, opipe_flash, cuda_attention_args)                       \
  CUDA_BY_TILES(X, opipe_flash_grad_rows, cuda_attention_grad_args)        \
  CUDA_BY_TILES(X, opipe_flash_grad_keys, cuda_attention_grad_args)        \
  X(opipe_flash_64_f32, cuda_attention_args, 128)                          \
  X(opipe_flash_128_f32, cuda_attention_args, 128)                         \
  X(opipe_mask_bool_bf16, cuda_mask_args, 256)                             \
  X(opipe_mask_bool_f32, cuda_mask_args, 256)                              \
  X(opipe_mask_bf16, cuda_mask_args, 256)                                  \
  X(opipe_mask_f16, cuda_mask_args, 256)                                   \
  X(opipe_mask_f32, cuda_mask_args, 256)                                   \
  CUDA_TENSOR(X, opipe_settle, cuda_settle_args, 256)                      \
  CUDA_PAIRS(X, opipe_rotary, cuda_rotary_args, 256)                       \
  CUDA_FLOATS(X, opipe_loss_block, cuda_loss_args, 512)                    \
  X(opipe_loss_block_bf16_f32, cuda_loss_args, 512)                        \
  X(opipe_loss_block_f16_f32, cuda_loss_args, 512)                         \
  CUDA_FLOATS(X, opipe_loss_line, cuda_loss_args, 256)                     \
  CUDA_FLOATS(X, opipe_loss_sum, cuda_loss_args, 256)                      \
  CUDA_FLOATS(X, opipe_loss_grad_block, cuda_loss_grad_args, 512)          \
  X(opipe_loss_grad_block_bf16_f32, cuda_loss_grad_args, 512)              \
  X(opipe_loss_grad_block_f16_f32, cuda_loss_grad_args, 512)               \
  CUDA_FLOATS(X, opipe_loss_grad_line, cuda_loss_grad_args, 256)           \
  CUDA_FLOATS(X, opipe_dropout, cuda_dropout_args, 256)                    \
  X(opipe_sort_keys, cuda_scatter_block, 256)                              \
  X(opipe_sort_count, cuda_scatter_block, 256)                             \
  X(opipe_sort_scan, cuda_scatter_block, 256)                              \
  X(opipe_sort_place, cuda_scatter_block, 256)                             \
  CUDA_FLOATS(X, opipe_scatter, cuda_scatter_block, 256)                   \
  X(opipe_scatter_bf16_f32, cuda_scatter_block, 256)                       \
  X(opipe_scatter_f16_f32, cuda_scatter_block, 256)                        \
  X(opipe_scatter_int, cuda_scatter_block, 256)                            \
  X(opipe_scatter_copy, cuda_scatter_block, 256)                           \
  X(opipe_pick, cuda_pick_args, 256)                                       \
  X(opipe_one_hot, cuda_one_hot_args, 256)                                 \
  X(opipe_pad, cuda_pad_args, 256)                                         \
  CUDA_HALVES(X, opipe_few_columns_1, cuda_few_rows_block, 256)            \
  CUDA_HALVES(X, opipe_few_columns_4, cuda_few_rows_block, 256)            \
  CUDA_HALVES(X, opipe_few_columns_8, cuda_few_rows_block, 256)            \
  CUDA_HALVES(X, opipe_few_sums, cuda_few_rows_block, 256)                 \
  CUDA_HALVES(X, opipe_few_turned_1, cuda_few_rows_block, 256)             \
  CUDA_HALVES(X, opipe_few_turned_4, cuda_few_rows_block, 256)             \
  CUDA_HALVES(X, opipe_few_turned_8, cuda_few_rows_block, 256)             \
  CUDA_FLOATS(X, opipe_conv, cuda_window_args, 256)                        \
  CUDA_FLOATS(X, opipe_conv_grad_x, cuda_window_args, 256)                 \
  CUDA_FLOATS(X, opipe_conv_grad_w, cuda_window_args, 256)                 \
  CUDA_FLOATS(X, opipe_pool, cuda_window_args, 256)                        \
  CUDA_FLOATS(X, opipe_pool_grad, cuda_window_args, 256)                   \
  CUDA_FLOATS(X, opipe_batch_norm, cuda_batch_norm_args, 256)              \
  CUDA_FLOATS(X, opipe_recurrent, cuda_recurrent_args, 256)                \
  X(opipe_update, cuda_update_args, 256)                                   \
  X(opipe_squares_parts, cuda_squares_args, 256)                           \
  X(opipe_squares_sum, cuda_squares_args, 256)                             \
  CUDA_FLOATS(X, opipe_sum, cuda_sum_args, 256)                            \
  CUDA_FLOATS(X, opipe_entropy_part, cuda_entropy_args, 256)               \
  CUDA_FLOATS(X, opipe_entropy_merge, cuda_entropy_merge_args, 256)        \
  CUDA_FLOATS(X, opipe_entropy_grad, cuda_entropy_grad_args, 256)          \
  X(opipe_pages_copy, cuda_row_attention_args, 256)                        \
  CUDA_HALVES(X, opipe_pages_write, cuda_row_attention_args, 256)          \
  CUDA_HALVES(X, opipe_rows_part, cuda_row_attention_args, 256)            \
  CUDA_HALVES(X, opipe_rows_join, cuda_row_attention_args, 256)

#define CUDA_KERNEL_TYPES(name, type, threads) \
  typedef type name##_block;                   \
  enum { name##_threads = (threads) };
CUDA_KERNELS(CUDA_KERNEL_TYPES)

#define CUDA_KERNEL_ID(name, type, threads) CUDA_ID_##name,
enum { CUDA_KERNELS(CUDA_KERNEL_ID) CUDA_N_KERNELS };

#endif
