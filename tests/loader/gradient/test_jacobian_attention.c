/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Attention and RotaryEmbedding, and of the contrib forms that become them, against
 * central differences.
 */
#include "tests/loader/gradient/jacobian.h"

static void test_attention(void) {
  JAC_CASES("Attention@23 d[2,2,3,2] d[2,2,4,2] d[2,2,4,3] -> y",
            "Attention@23 d[1,2,4] d[1,3,4] d[1,3,6] | q_num_heads=2 kv_num_heads=2 -> y",
            "Attention@23 d[1,4,2,2] d[1,2,3,2] d[1,2,3,2] | scale=0.3f -> y",
            "Attention@23 d[2,2,8] d[2,3,4] d[2,3,4] | q_num_heads=4 kv_num_heads=2 -> y",
            "Attention@23 d[1,1,3,2] d[1,1,3,2] d[1,1,3,2] | is_causal=1 -> y",
            "Attention@23 d[1,2,3,2] d[1,2,3,2] d[1,2,3,2] | softcap=0.7f is_causal=1 -> y",
            "Attention@23 c[1,1,2,2] d[1,1,3,2] c[1,1,3,2] -> y",
            "Attention@23 d[1,1,2,2] c[1,1,3,2] c[1,1,3,2] -> y",
            "Attention@23 c[1,1,2,2] c[1,1,3,2] d[1,1,3,2] | softmax_precision=11 -> y");
}

static void test_masks(void) {
  JAC_CASES("Attention@23 d[2,2,2,2] d[2,2,3,2] d[2,2,3,2] d[2,2,2,3] -> y",
            "Attention@23 d[2,2,2,2] d[2,2,3,2] d[2,2,3,2] d[2,3] -> y",
            "Attention@23 d[2,2,2,2] d[2,2,3,2] d[2,2,3,2] d[2,1,1,3] | softcap=0.9f -> y",
            "Attention@23 d[2,2,2,2] d[2,2,3,2] d[2,2,3,2] d[1,2,2,3] | is_causal=1 -> y",
            "Attention@23 d[2,2,2,2] d[2,1,3,2] d[2,1,3,2] d[2,1,1] -> y",
            "Attention@23 d[1,1,2,2] d[1,1,3,2] d[1,1,3,2] o{1,0,1,0,1,1}[2,3] -> y",
            "Attention@23 d[1,1,2,2] d[1,1,3,2] d[1,1,3,2] o{0,0,0,1,1,0}[2,3] -> y",
            "Attention@23 d[1,1,2,2] d[1,1,2,2] d[1,1,2,2] c{-inf,-inf,0,0.5}[2,2] -> y",
            "Attention@23 d[1,1,2,2] d[1,1,2,2] d[1,1,2,2] c{-inf,1,0.5,-inf}[2,2] -> y",
            "Attention@23 d[1,1,2,2] d[1,1,4,2] d[1,1,4,2] d[2,3] -> y",
            "Attention@23 d[1,1,2,4] d[1,1,2,4] d[1,1,2,4] c{-60,-60,0,0.5}[2,2] -> y");
}

static void test_past(void) {
  JAC_CASES("Attention@23 d[1,2,2,2] d[1,2,2,2] d[1,2,2,3] - d[1,2,3,2] d[1,2,3,3] -> y",
            "Attention@23 d[1,2,2,2] d[1,2,2,2] d[1,2,2,2] - d[1,2,3,2] d[1,2,3,2] | is_causal=1 "
            "-> yyy",
            "Attention@23 d[1,2,2,2] d[1,1,2,2] d[1,1,2,2] d[2,5] d[1,1,3,2] d[1,1,3,2] -> yny",
            "Attention@23 d[1,2,4] d[1,2,4] d[1,2,4] - d[1,2,1,2] d[1,2,1,2] | q_num_heads=2 "
            "kv_num_heads=2 -> yyy",
            "Attention@23 d[1,2,4] d[1,2,4] d[1,2,4] | q_num_heads=2 kv_num_heads=2 -> nyy",
            "Attention@23 d[1,1,2,2] d[1,1,2,2] d[1,1,2,2] - c[1,1,2,2] c[1,1,2,2] -> y",
            "Attention@24 d[2,1,2,2] d[2,1,3,2] d[2,1,3,2] - - - i{2,3} -> y",
            "Attention@24 d[2,1,2,2] d[2,1,3,2] d[2,1,3,2] - - - i{0,1} -> y");
}

/* The scores as an output: of each kind. */
static void test_scores(void) {
  JAC_CASES(
      "Attention@23 d[2,2,3,2] d[2,2,4,2] c[2,2,4,3] -> y--y",
      "Attention@23 d[1,2,8] d[1,3,4] d[1,3,4] | q_num_heads=4 kv_num_heads=2 softcap=0.8f "
      "-> y--y",
      "Attention@23 d[1,2,3,2] d[1,1,2,2] d[1,1,2,2] - d[1,1,2,2] d[1,1,2,2] | softcap=0.9f "
      "qk_matmul_output_mode=1 -> n--y",
      "Attention@24 d[1,2,2,2] d[1,2,3,2] d[1,2,3,2] d[2,3] | qk_matmul_output_mode=2 -> y--y",
      "Attention@24 d[1,2,2,2] d[1,1,3,2] d[1,1,3,2] d[2,2,3] | softcap=0.7f "
      "qk_matmul_output_mode=3 -> y--y",
      "Attention@24 d[1,2,4] d[1,2,4] d[1,2,4] - d[1,2,1,2] d[1,2,1,2] | q_num_heads=2 "
      "kv_num_heads=2 is_causal=1 qk_matmul_output_mode=3 -> nyyy",
      "Attention@24 d[1,1,2,2] d[1,1,4,2] d[1,1,4,2] o{0,0,0,0,1,0,1,1}[2,4] | "
      "qk_matmul_output_mode=3 -> y--y");
}

static void test_contrib_attention(void) {
  JAC_CASES(
      "ms.MultiHeadAttention@1 d[1,2,4] d[1,3,4] d[1,3,4] d[12] | num_heads=2 -> y",
      "ms.MultiHeadAttention@1 d[1,2,4] d[1,2,4] d[1,2,4] - - d[1,2,2,2] | num_heads=2 "
      "unidirectional=1 scale=0.4f -> y",
      "ms.Attention@1 d[1,2,3] d[3,12] d[12] | num_heads=2 -> y",
      "ms.Attention@1 d[1,2,3] d[3,12] d[12] n{1} | num_heads=2 unidirectional=1 -> y",
      "ms.GroupQueryAttention@1 d[1,3,8] d[1,3,4] d[1,3,4] - - n{2} n=3 | num_heads=4 "
      "kv_num_heads=2 -> y",
      "ms.RotaryEmbedding@1 d[1,2,8] i{1,2}[1,2] d[4,2] d[4,2] | num_heads=2 -> y",
      "ms.MultiHeadAttention@1 d[2,2,4] d[2,3,4] d[2,3,4] - n{1,1,0,1,1,1}[2,3] | num_heads=2 -> y",
      "ms.MultiHeadAttention@1 d[1,2,4] d[1,2,4] d[1,2,4] - - - d[1,2,3,2] d[1,2,3,2] | "
      "num_heads=2 -> yyy",
      "ms.Attention@1 d[1,2,3] d[3,12] d[12] - d[2,1,2,3,2] | num_heads=2 unidirectional=1 -> yy",
      "ms.GroupQueryAttention@1 d[1,1,8] d[1,1,4] d[1,1,4] d[1,2,3,2] d[1,2,3,2] n{3} n=4 | "
      "num_heads=4 kv_num_heads=2 -> yyy",
      "ms.GroupQueryAttention@1 d[1,3,16] - - - - n{2} n=3 d[4,1] d[4,1] | num_heads=4 "
      "kv_num_heads=2 do_rotary=1 softcap=0.8f -> y",
      "ms.GroupQueryAttention@1 d[1,3,8] d[1,3,4] d[1,3,4] - - n{2} n=3 | num_heads=4 "
      "kv_num_heads=2 local_window_size=2 -> y");
}

static void test_rotary(void) {
  JAC_CASES("RotaryEmbedding@23 d[1,2,3,4] d[1,3,2] d[1,3,2] -> y",
            "RotaryEmbedding@23 d[2,2,2,4] d[2,2,2] d[2,2,2] | interleaved=1 -> y",
            "RotaryEmbedding@23 d[2,3,8] c[5,2] c[5,2] i{0,4,1,2,2,0}[2,3] | num_heads=2 -> y",
            "RotaryEmbedding@23 d[2,3,8] d[5,2] d[5,2] i{0,4,1,2,2,0}[2,3] | num_heads=2 -> y",
            "RotaryEmbedding@23 d[1,1,2,6] d[3,2] d[3,2] i{2,2}[1,2] | rotary_embedding_dim=4 "
            "interleaved=1 -> y",
            "RotaryEmbedding@23 d[1,2,2,6] d[3,1] c[3,1] i{0,2}[1,2] | rotary_embedding_dim=2 -> y",
            "RotaryEmbedding@23 c[1,2,8] c[1,2,2] d[1,2,2] | num_heads=2 -> y");
}

OPI_TEST_MAIN("gradients of attention", OPI_TEST(test_attention), OPI_TEST(test_masks),
              OPI_TEST(test_past), OPI_TEST(test_scores), OPI_TEST(test_contrib_attention),
              OPI_TEST(test_rotary))
