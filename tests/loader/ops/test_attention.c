/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, RotaryEmbedding and the com.microsoft forms: what they become, shapes, axis rules,
 * refusals that name the input. */
#include "tests/loader/cases.h"

static void test_attention(void) {
  TEST_CASES(
      "Attention@23 f[2,4,3,8] f[2,2,5,8] f[2,2,5,6] -> Attention f[2,4,3,6]",
      "Attention@23 f[2,3,32] f[2,5,16] f[2,5,12] | q_num_heads=4 kv_num_heads=2 -> Attention "
      "f[2,3,24]",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] o[3,7] f[2,4,2,8] f[2,4,2,8] -> Attention "
      "f[2,4,3,8] f[2,4,7,8] f[2,4,7,8] f[2,4,3,7]",
      "Attention@24 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] - - - i[2] -> Attention f[2,4,3,8]",
      "Attention@24 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] f[1,4] -> Attention f[2,4,3,8]",
      "Attention@23 f[2,3,32] f[2,5,16] f[2,5,16] -> !INVALID 'q_num_heads' is missing",
      "Attention@23 f[2,3,30] f[2,5,16] f[2,5,16] | q_num_heads=4 kv_num_heads=2 -> !INVALID no "
      "multiple of 4 heads",
      "Attention@23 f[2,4,3,8] f[2,3,5,8] f[2,3,5,8] -> !INVALID has 4 heads, no multiple of the 3 "
      "heads",
      "Attention@23 f[2,4,3,8] f[2,4,5,7] f[2,4,5,8] -> !INVALID axis 3 must be 8 (the head size "
      "of Q)",
      "Attention@23 f[2,4,3,8] f[1,4,5,8] f[1,4,5,8] -> !INVALID axis 0 must be 2 (the batch of Q)",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,6,8] -> !INVALID axis 2 must be 5 (the length of "
      "K)",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] o[3,6] -> !INVALID (attn_mask) has shape [3, "
      "6]",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] n[3,5] -> !INVALID (attn_mask) is of type "
      "int32",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] - f[2,4,2,8] -> !INVALID past_key and "
      "past_value go together",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] - f[2,4,2,7] f[2,4,2,8] -> !INVALID has shape "
      "[2, 4, 2, 7], [2, 4, 2, 8] is needed",
      "Attention@24 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] - f[2,4,2,8] f[2,4,2,8] i[2] -> !INVALID "
      "cannot be combined with past_key",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | qk_matmul_output_mode=4 -> !UNSUPPORTED 0 "
      "to "
      "3 are supported",
      "Attention@23 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | softcap=-1.0f -> !INVALID must not be "
      "negative");
}

static void test_attention_carries(void) {
  TEST_CASES(
      "Attention@23 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 -> Attention f[6,4,3,8]^0",
      "Attention@23 f[2,4,3,8]^1 f[2,4,5,8]^1 f[2,4,5,8]^1 -> Attention f[2,4,3,8]^1",
      "Attention@23 f[6,3,32]^0 f[6,5,32]^0 f[6,5,32]^0 | q_num_heads=4 kv_num_heads=4 -> "
      "Attention f[6,3,32]^0",
      "Attention@23 f[2,3,32]^2:1:8 f[2,5,32]^2:1:8 f[2,5,32]^2:1:8 | q_num_heads=4 kv_num_heads=4 "
      "-> Attention f[2,3,32]^2:1:8",
      "Attention@23 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 o[6,1,3,5]^0 -> Attention f[6,4,3,8]^0",
      "Attention@23 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 o[3,5] -> Attention f[6,4,3,8]^0",
      "Attention@23 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 o[6,1,3,5] -> !carry the mask has that "
      "axis",
      "Attention@24 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 - - - i[6]^0 | is_causal=1 -> Attention "
      "f[6,4,3,8]^0",
      "Attention@25 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 o[6,1,3,4]^0 - - i[6]^0 | "
      "left_window_size=1 -> Attention f[6,4,3,8]^0",
      "Attention@25 f[6,4,3,8]^0 f[6,4,5,8]^0 f[6,4,5,8]^0 o[5] | left_window_size=1 "
      "right_window_size=0 -> Attention f[6,4,3,8]^0",
      "Attention@23 f[6,4,3,8]^0 f[6,4,5,8] f[6,4,5,8]^0 -> !carry at different places",
      "Attention@23 f[2,4,3,8]^2 f[2,4,5,8] f[2,4,5,8] -> !carry rows of later tokens read earlier "
      "keys",
      "Attention@23 f[2,4,3,8]^3 f[2,4,5,8]^3 f[2,4,5,8] -> !carry the head size is summed over");
}

static void test_rotary(void) {
  TEST_CASES(
      "RotaryEmbedding@23 f[2,4,3,8] f[2,3,4] f[2,3,4] -> RotaryEmbedding f[2,4,3,8]",
      "RotaryEmbedding@23 f[2,4,3,8] f[1,3,4] f[1,3,4] -> RotaryEmbedding f[2,4,3,8]",
      "RotaryEmbedding@23 f[2,3,32] f[9,2] f[9,2] i[2,3] | num_heads=4 rotary_embedding_dim=4 -> "
      "RotaryEmbedding f[2,3,32]",
      "RotaryEmbedding@23 f[2,3,32] f[2,3,4] f[2,3,4] -> !INVALID 'num_heads' is missing",
      "RotaryEmbedding@23 f[2,4,3,8] f[2,3,3] f[2,3,3] -> !INVALID axis 2 must be 4 (half of the "
      "rotary dimension)",
      "RotaryEmbedding@23 f[2,4,3,8] f[2,2,4] f[2,2,4] -> !INVALID axis 1 must be 3 (the length of "
      "X)",
      "RotaryEmbedding@23 f[2,4,3,8] f[9,4] f[9,4] i[2,2] -> !INVALID has shape [2, 2], [2, 3] is "
      "needed",
      "RotaryEmbedding@23 f[2,4,3,8] f[2,3,4] f[2,3,4] | rotary_embedding_dim=5 -> !INVALID an "
      "even number",
      "RotaryEmbedding@23 f[6,4,3,8]^0 f[6,3,4]^0 f[6,3,4]^0 -> RotaryEmbedding f[6,4,3,8]^0",
      "RotaryEmbedding@23 f[6,4,3,8]^0 f[1,3,4] f[1,3,4] -> RotaryEmbedding f[6,4,3,8]^0",
      "RotaryEmbedding@23 f[6,4,3,8]^0 f[6,3,4] f[6,3,4] -> !carry different axes",
      "RotaryEmbedding@23 f[2,4,3,8]^3 f[1,3,4] f[1,3,4] -> !carry along the head size",
      "ms.RotaryEmbedding@1 f[2,3,32] i[1] f[9,4] f[9,4] -> RotaryEmbedding f[2,3,32]",
      "ms.RotaryEmbedding@1 f[2,3,32] i[2,3] f[9,4] f[9,4] -> RotaryEmbedding f[2,3,32]",
      "ms.RotaryEmbedding@1 f[2,3,30] i[1] f[9,4] f[9,4] -> !INVALID do not fill",
      "ms.RotaryEmbedding@1 f[2,3,32] i[2] f[9,4] f[9,4] -> !INVALID axis 0 must be 1 (one "
      "offset)");
}

static void test_multi_head(void) {
  TEST_CASES(
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,12] | num_heads=2 -> Attention f[2,3,12]",
      "ms.MultiHeadAttention@1 f[2,3,2,3,4] | num_heads=2 -> Attention f[2,3,8]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,2,2,4] | num_heads=2 -> Attention f[2,3,8]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,2,5,4] f[2,2,5,4] | num_heads=2 -> Attention f[2,3,8]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] f[24] n[2,5] f[1,2,3,5] | num_heads=2 -> "
      "Attention f[2,3,8]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] - n[2] | num_heads=2 -> Attention "
      "f[2,3,8]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] f[23] | num_heads=2 -> !INVALID input "
      "'t3' has shape [23]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,6] f[2,5,8] | num_heads=2 -> !INVALID input 't1' has "
      "shape [2, 5, 6]",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] | num_heads=2 -> !INVALID (value) is missing",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] - n[7] | num_heads=2 -> !INVALID 't3' "
      "has 7 elements",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] - n[8] | num_heads=2 -> !UNSUPPORTED "
      "'t3' of 8 lengths",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] - - f[1,2,3,4] | num_heads=2 -> !INVALID "
      "'t3' has shape",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] | num_heads=3 -> !INVALID no multiple of "
      "num_heads 3",
      "ms.MultiHeadAttention@1 f[2,3,8] f[2,5,8] f[2,5,8] -> !INVALID 'num_heads' is missing");
}

static void test_packed_attention(void) {
  TEST_CASES(
      "ms.Attention@1 f[2,3,8] f[8,24] f[24] | num_heads=2 -> Attention f[2,3,8]",
      "ms.Attention@1 f[2,3,8] f[8,24] f[24] n[2,5] f[2,2,2,2,4] | num_heads=2 unidirectional=1 -> "
      "Attention f[2,3,8] f[2,2,2,5,4]",
      "ms.Attention@1 f[2,3,8] f[8,20] - - | num_heads=2 qkv_hidden_sizes=[8,8,4] -> Attention "
      "f[2,3,4]",
      "ms.Attention@1 f[2,3,8] f[7,24] | num_heads=2 -> !INVALID 't1' has shape [7, 24]",
      "ms.Attention@1 f[2,3,8] f[8,23] | num_heads=2 -> !INVALID 't1' (weights) has 23 columns",
      "ms.Attention@1 f[2,3,8] f[8,24] f[23] | num_heads=2 -> !INVALID 't2' has shape [23]",
      "ms.Attention@1 f[2,3,8] f[8,24] f[24] n[2,4] | num_heads=2 -> !INVALID 't3' has shape [2, "
      "4]",
      "ms.Attention@1 f[2,3,8] f[8,24] f[24] f[2,3] | num_heads=2 -> !INVALID 't3' (mask of keys) "
      "is of type float32",
      "ms.Attention@1 f[2,3,8] f[8,24] | num_heads=2 qkv_hidden_sizes=[8,8] -> !INVALID has 2 "
      "numbers",
      "ms.Attention@1 f[2,3,8] f[8,24] | num_heads=2 do_rotary=1 -> !UNSUPPORTED 'do_rotary' is 1");
}

static void test_grouped_query(void) {
  TEST_CASES(
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,16] f[2,3,16] - - n[2] n=3 | num_heads=4 "
      "kv_num_heads=2 -> Attention f[2,3,32] f[2,2,3,8] f[2,2,3,8]",
      "ms.GroupQueryAttention@1 f[2,3,64] - - - - n[2] n=3 | num_heads=4 kv_num_heads=2 -> "
      "Attention f[2,3,32]",
      "ms.GroupQueryAttention@1 f[1,1,32] f[1,1,16] f[1,1,16] f[1,2,5,8] f[1,2,5,8] n{5} n=6 | "
      "num_heads=4 kv_num_heads=2 -> Attention f[1,1,32] f[1,2,6,8] f[1,2,6,8]",
      "ms.GroupQueryAttention@1 f[2,1,32] f[2,1,16] f[2,1,16] f[2,2,5,8] f[2,2,5,8] n[2] n=6 | "
      "num_heads=4 kv_num_heads=2 -> Reshape f[2,1,32] f[2,2,6,8] f[2,2,6,8]",
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,16] f[2,3,16] - - n[2] n[1] | num_heads=4 "
      "kv_num_heads=2 -> !UNSUPPORTED needs the value of graph input",
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,15] f[2,3,16] - - n[2] n=3 | num_heads=4 "
      "kv_num_heads=2 -> !INVALID 't1' has shape [2, 3, 15]",
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,16] f[2,3,16] - - n[3] n=3 | num_heads=4 "
      "kv_num_heads=2 -> !INVALID 't3' (seqlens_k) has 3 elements for a batch of 2",
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,16] f[2,3,16] - - n[2] n=9 | num_heads=4 "
      "kv_num_heads=2 -> !INVALID make only 3",
      "ms.GroupQueryAttention@1 f[2,3,32] f[2,3,16] f[2,3,16] - - n[2] n=3 | num_heads=4 "
      "kv_num_heads=2 smooth_softmax=1 -> !UNSUPPORTED 'smooth_softmax' is 1");
}

static void test_small_contrib(void) {
  TEST_CASES(
      "ms.SkipLayerNormalization@1 f[2,3,8] f[2,3,8] f[8] f[8] f[8] -> LayerNormalization f[2,3,8] "
      "f[2,3,1] f[2,3,1] f[2,3,8]",
      "ms.SkipLayerNormalization@1 f[2,3,8] f[3,8] f[8] -> LayerNormalization f[2,3,8]",
      "ms.SkipSimplifiedLayerNormalization@1 f[2,3,8] f[2,3,8] f[8] -> RMSNormalization f[2,3,8]",
      "ms.SkipLayerNormalization@1 f[2,3,8] f[2,4,8] f[8] -> !INVALID 't1' (skip) has shape [2, 4, "
      "8]",
      "ms.SkipLayerNormalization@1 f[2,3,8] f[2,3,8] f[8] f[7] -> !INVALID 't3' has shape [7]",
      "ms.EmbedLayerNormalization@1 n[2,3] n[2,3] f[9,8] f[5,8] f[2,8] f[8] f[8] n[2,3] -> "
      "LayerNormalization f[2,3,8] n[2]",
      "ms.EmbedLayerNormalization@1 n[2,3] - f[9,8] f[2,8] - f[8] f[8] -> !INVALID "
      "position_embedding",
      "ms.FastGelu@1 f[2,3] f[3] -> Gelu f[2,3]",
      "ms.BiasGelu@1 f[2,3] f[4] -> !INVALID 't1' has shape [4]",
      "ms.QuickGelu@1 f[2,3] | alpha=1.7f -> Swish f[2,3]",
      "ms.BiasSplitGelu@1 f[2,3,8] f[8] -> Mul f[2,3,4]",
      "ms.BiasSoftmax@1 f[2,3,4] f[1,3,4] | axis=2 is_inner_broadcast=0 -> Reshape f[2,3,4]",
      "ms.BiasDropout@1 f[2,3] f[3] f[2,3] -> Add f[2,3]",
      "ms.Unheard@1 f[2] -> !UNSUPPORTED operator Unheard of domain com.microsoft");
}

OPI_TEST_MAIN("attention", OPI_TEST(test_attention), OPI_TEST(test_attention_carries),
              OPI_TEST(test_rotary), OPI_TEST(test_multi_head), OPI_TEST(test_packed_attention),
              OPI_TEST(test_grouped_query), OPI_TEST(test_small_contrib))
