/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that is built once per instruction set, and the table of it. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_KERNELS_BODY_H_
#define OPIPE_BACKEND_CPU_KERNELS_KERNELS_BODY_H_

#include <math.h>

#include "attention_body.h"
#include "attention_few_body.h"
#include "attention_grad_body.h"
#include "attention_rows_body.h"
#include "codes_body.h"
#include "codes_int8_body.h"
#include "conv_last_body.h"
#include "elements_body.h"
#include "gradient_body.h"
#include "half_body.h"
#include "matmul_body.h"
#include "matmul_f64_body.h"
#include "norm_body.h"
#include "pack_body.h"
#include "quantize_body.h"
#include "rowgrad_body.h"
#include "rowwise_body.h"

#define CPU_KERNELS_TABLE(which)                                                          \
  {                                                                                       \
    .isa = (which), .pack_panel = pack_panel, .pack_half_panel = pack_half_panel,         \
    .product = product_share, .product_half = half_share, .product_codes = codes_share,   \
    .bytes = {codes_int8_share, codes_integer_share}, .round_rows = codes_round_rows,     \
    .product_dx = product_dx_share, .product_dw = product_dw_share,                       \
    .sum_columns = sum_columns_share, .product_f64 = product_f64_share,                   \
    .transpose = transpose_share, .unary = unary_share, .binary = binary_share,           \
    .bias_activation = bias_share, .convert = convert_share, .softmax = softmax_share,    \
    .norm = norm_share, .reduce_rows = reduce_share, .rotary = rotary_share,              \
    .attention = attention_share, .attention_few = attention_few_share, .add = add_share, \
    .attention_rows = attention_rows_share, .sum_squares = sum_squares_share,             \
    .update = update_share, .norm_grad = norm_grad_share,                                 \
    .norm_statistics = norm_statistics_share, .norm_grad_scale = norm_grad_scale_share,   \
    .softmax_grad = softmax_grad_share, .activation_grad = activation_grad_share,         \
    .loss_grad = loss_grad_share, .attention_grad = attention_grad_share,                 \
    .depthwise = depthwise_share, .pool = pool_share, .patches = patch_rows,              \
    .quantize = quantize_share, .dequantize = dequantize_share, .range = range_share,     \
    .row_sums = row_sums_share,                                                           \
  }

#endif
