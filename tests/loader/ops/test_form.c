/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes in files: what a row does not list or honour is refused by node, attribute and value;
 * what changes nothing is taken. */
#include "tests/loader/cases.h"

static void test_unlisted(void) {
  TEST_CASES(
      "Gemm@13 f[2,3] f[4,3] | transb=1 -> !UNSUPPORTED attribute 'transb' (1) is not known in "
      "version 13, perhaps 'transB' is meant; known: ",
      "Gemm@13 f[2,3] f[3,4] | transb=0 -> Gemm f[2,4]",
      "Relu@14 f[2] | alpha=0.5f -> !UNSUPPORTED attribute 'alpha' (0.5) is not known in version "
      "14; known: none",
      "Softmax@13 f[2,3] | axes=[1,2] -> !UNSUPPORTED attribute 'axes' ([1, 2])",
      "LayerNormalization@17 f[2,3] f[3] | epsilonn=0.5f -> !UNSUPPORTED 'epsilonn' (0.5)",
      "LayerNormalization@17 f[2,3] f[3] | epsion=0.00001f -> LayerNormalization f[2,3]",
      "Reshape@21 f[2,3] i{3,2} | kept=[0] -> !UNSUPPORTED attribute 'kept'",
      "ms.BiasGelu@1 f[2,3] f[3] | mode=$fast -> !UNSUPPORTED attribute 'mode' ('fast')");
}

static void test_values(void) {
  TEST_CASES(
      "Cast@28 f[2] | to=10 round_mode=$down -> !UNSUPPORTED attribute 'round_mode' is 'down', "
      "supported: up",
      "Cast@28 f[2] | to=10 round_mode=$up -> Cast h[2]",
      "QuantizeLinear@23 f[2,3] f[] c[] | precision=10 -> !UNSUPPORTED attribute 'precision' is "
      "10, only 0 is supported",
      "QuantizeLinear@23 f[2,3] f[] c[] | precision=0 -> QuantizeLinear c[2,3]",
      "Pad@18 f[2,3] i{0,0,1,1} | mode=$mirror -> !UNSUPPORTED attribute 'mode' is 'mirror'",
      "MaxPool@12 f[1,2,4,4] | kernel_shape=[2,2] storage_order=1 -> !UNSUPPORTED 'storage_order'",
      "Attention@25 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | left_window_size=-2 -> !UNSUPPORTED -1 to "
      "2147483647 are supported",
      "Gemm@13 f[2,3] f[3,4] | alpha=1 -> !INVALID attribute 'alpha' is of type INT, FLOAT is "
      "needed",
      "Range@27 i=0 i=4 i=1 | stash_type=16 -> !UNSUPPORTED attribute 'stash_type' is 16");
}

static void test_without_effect(void) {
  TEST_CASES(
      "Gemm@13 f[2,3] f[3,4] | __note=$kept -> Gemm f[2,4]",
      "Relu@1 f[2] | consumed_inputs=[0] -> Relu f[2]",
      "Relu@14 f[2] | consumed_inputs=[0] -> Relu f[2]",
      "Conv@11 f[1,2,4,4] f[3,2,1,1] | cudnn_exhaustive_search=1 -> Conv f[1,3,4,4]",
      "Add@7 f[2,3] f[3] | broadcast=1 -> Add f[2,3]",
      "Add@7 f[2,3] f[2] | broadcast=1 axis=0 -> !UNSUPPORTED attribute 'axis' (0)",
      "MaxPool@8 f[1,2,4,4] | kernel_shape=[2,2] dilations=[1,1] -> MaxPool f[1,2,3,3]",
      "MaxPool@8 f[1,2,4,4] | kernel_shape=[2,2] dilations=[1,2] -> !UNSUPPORTED 'dilations'",
      "TopK@11 f[2,5] i{2} | sorted=0 -> TopK f[2,2] i[2,2]",
      "ms.MatMulNBits@1 f[2,32] u[4,1,16] f[4] | K=32 N=4 bits=4 block_size=32 "
      "weight_prepacked=0 -> FusedMatMul f[2,4]");
}

static void test_versions(void) {
  TEST_CASES(
      "Squeeze@13 f[1,2] i{0} | axes=[0] -> !UNSUPPORTED attribute 'axes' ([0]) is not known in "
      "version 13",
      "Squeeze@13 f[1,2] | axes=[0] -> Reshape f[2]",
      "Slice@14 f[4,4] | starts=[1,0] ends=[4,4] axes=[0,1] -> Slice f[3,4]",
      "Attention@24 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | left_window_size=2 -> !UNSUPPORTED "
      "'left_window_size' (2) is not known in version 24",
      "Attention@24 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | left_window_size=-1 -> Attention "
      "f[2,4,3,8]",
      "Attention@25 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] | left_window_size=2 -> Attention f[2,4,3,8]",
      "Attention@25 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] h[3,5] - - i[2] | right_window_size=2 -> "
      "!INVALID",
      "Attention@25 f[2,4,3,8] f[2,4,5,8] f[2,4,5,8] o[3,4] - - i[2] | left_window_size=2 "
      "is_causal=1 -> Attention f[2,4,3,8]",
      "Relu@28 f[2] -> Relu f[2]", "Relu@29 f[2] -> !UNSUPPORTED has version 29, known are 1 to 28",
      "Upsample@10 f[1,1,2,2] f{1} -> !UNSUPPORTED has version 10, known are 7 to 9");
}

OPI_TEST_MAIN("form", OPI_TEST(test_unlisted), OPI_TEST(test_values), OPI_TEST(test_without_effect),
              OPI_TEST(test_versions))
