/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products, Einsum and convolutions: forms, shapes, axis rules, hostile input. */
#include "tests/loader/cases.h"

static void test_matmul(void) {
  TEST_CASES(
      "MatMul@1 f[2,3] f[3,4] -> MatMul f[2,4]", "MatMul@13 f[3] f[3] -> MatMul f[]",
      "MatMul@13 f[3] f[5,3,4] -> MatMul f[5,4]", "MatMul@13 f[5,2,3] f[3] -> MatMul f[5,2]",
      "MatMul@13 f[5,1,2,3] f[7,3,4] -> MatMul f[5,7,2,4]",
      "MatMul@13 n[2,3] n[3,4] -> MatMul n[2,4]", "MatMul@13 f[2,0] f[0,4] -> MatMul f[2,4]",
      "MatMul@13 f[2,3] f[4,5] -> !INVALID 3 and 4 along the summed axis",
      "MatMul@13 f[2,2,3] f[5,3,4] -> !INVALID the batch axes do not broadcast",
      "MatMul@13 f[2,3] d[3,4] -> !INVALID is of type float32, but input 't1' is of type float64",
      "MatMul@13 f[] f[3] -> !INVALID of rank 0",
      "MatMul@13 u[2,2] u[2,2] -> !INVALID of type uint8");
}

static void test_matmul_carries(void) {
  TEST_CASES("MatMul@13 f[4,3,8]^0 f[8,5] -> MatMul f[4,3,5]^0",
             "MatMul@13 f[4,3,8]^1 f[8,5] -> MatMul f[4,3,5]^1",
             "MatMul@13 f[12,8]^0:1:3 f[8,5] -> MatMul f[12,5]^0:1:3",
             "MatMul@13 f[3,8] f[8,5]^1 -> MatMul f[3,5]^1",
             "MatMul@13 f[4,3,8]^0 f[4,8,5]^0 -> MatMul f[4,3,5]^0",
             "MatMul@13 f[8] f[4,8,5]^0 -> MatMul f[4,5]^0",
             "MatMul@13 f[4,3,8]^0 f[8] -> MatMul f[4,3]^0",
             "MatMul@13 f[4,3,8]^2 f[8,5] -> !carry summed over",
             "MatMul@13 f[4,3,8] f[4,8,5]^0 -> !carry does not carry it",
             "MatMul@13 f[4,3,8]^0 f[4,8,4]^2 -> !carry at different places");
}

static void test_gemm(void) {
  TEST_CASES(
      "Gemm@13 f[2,3] f[3,4] f[4] -> Gemm f[2,4]",
      "Gemm@13 f[3,2] f[4,3] | transA=1 transB=1 -> Gemm f[2,4]",
      "Gemm@11 f[2,3] f[3,4] -> Gemm f[2,4]", "Gemm@9 f[2,3] f[3,4] f[2,1] -> Gemm f[2,4]",
      "Gemm@9 f[2,3] f[3,4] -> !INVALID it is optional from opset 11 on, the file has 9",
      "Gemm@6 f[2,3] f[3,4] f[4] | broadcast=1 -> Gemm f[2,4]",
      "Gemm@6 f[2,3] f[3,4] f[2,4] -> Gemm f[2,4]",
      "Gemm@6 f[2,3] f[3,4] f[1,4] -> !INVALID is [1, 4], without broadcast it must be [2, 4]",
      "Gemm@13 f[2,3] f[3,4] f[3] -> !INVALID does not broadcast to [2, 4]",
      "Gemm@13 f[2,3] f[3,4] f[5,2,4] -> !INVALID of rank 3",
      "Gemm@13 f[2,3] f[4,3] -> !INVALID 3 and 4 along the summed axis",
      "Gemm@13 f[8,3]^0 f[3,4] f[4] -> Gemm f[8,4]^0",
      "Gemm@13 f[8,3]^0 f[3,4] f[8,4] -> !carry has that axis and does not carry it",
      "Gemm@13 f[8,3]^0 f[3,4] f[8,4]^0 -> Gemm f[8,4]^0");
}

static void test_fused_matmul(void) {
  TEST_CASES(
      "ms.FusedMatMul@1 f[5,3,2] f[5,4,3] | transA=1 transB=1 alpha=0.5f -> FusedMatMul f[5,2,4]",
      "ms.FusedMatMul@1 f[2,5,3] f[5,3,4] | transBatchA=1 -> FusedMatMul f[5,2,4]",
      "ms.FusedMatMul@1 f[5,3,2]^0 f[2,4] -> FusedMatMul f[5,3,4]^0",
      "ms.FusedMatMul@1 f[5,3,2]^1 f[3,4] | transA=1 -> !carry summed over",
      "ms.FusedMatMul@1 n[2,2] n[2,2] -> !INVALID must be a floating-point type");
}

static void test_einsum(void) {
  TEST_CASES(
      "Einsum@12 f[2,3] f[3,4] | equation=$ij,jk->ik -> MatMul f[2,4]",
      "Einsum@12 f[5,2,3] f[5,4,3] | equation=$bij,bkj->bik -> MatMul f[5,2,4]",
      "Einsum@12 f[2,3] | equation=$ij->ji -> Einsum f[3,2]",
      "Einsum@12 f[2,3] | equation=$ij->i -> Einsum f[2]",
      "Einsum@12 f[2,3] f[3,4] | equation=$ij,jk -> MatMul f[2,4]",
      "Einsum@12 f[3,5,5] | equation=$...ii->...i -> Einsum f[3,5]",
      "Einsum@12 f[7,2,3] f[3,4] | equation=$...ij,jk->...ik -> Reshape f[7,2,4]",
      "Einsum@12 f[2] f[2] | equation=$i,i -> Reshape f[]",
      "Einsum@12 f[2,3] | equation=$ij->ik -> !INVALID 'k' is in no operand",
      "Einsum@12 f[2,3] f[4,5] | equation=$ij,jk->ik -> !INVALID 4 along 'j', another operand 3",
      "Einsum@12 f[2,3] | equation=$ijk->i -> !INVALID is of rank 2, its term has 3 letters",
      "Einsum@12 f[2,3] | equation=$i+j -> !INVALID cannot be read at '+j'",
      "Einsum@12 f[2,3] | equation=$ij,j->i -> !INVALID the equation has 2 operands, the node 1 "
      "inputs",
      "Einsum@12 f[2,3] -> !INVALID attribute 'equation' is missing",
      "Einsum@12 f[6,5,5]^0 | equation=$bii->bi -> Einsum f[6,5]^0",
      "Einsum@12 f[6,5]^0 | equation=$bi->i -> !carry summed over");
}

static void test_conv(void) {
  TEST_CASES(
      "Conv@11 f[2,3,10,10] f[8,3,3,3] f[8] -> Conv f[2,8,8,8]",
      "Conv@11 f[2,4,10] f[8,2,3] | group=2 strides=[2] pads=[1,1] -> Conv f[2,8,5]",
      "Conv@1 f[1,1,5,5,5] f[1,1,3,3,3] | dilations=[2,2,2] -> Conv f[1,1,1,1,1]",
      "Conv@11 f[1,1,5,5] f[1,1,3,3] | auto_pad=$SAME_UPPER strides=[2,2] -> Conv f[1,1,3,3]",
      "Conv@11 f[1,1,5,5] f[1,1,3,3] | auto_pad=$VALID pads=[9,9,9,9] -> Conv f[1,1,3,3]",
      "Conv@11 f[1,3,5,5] f[8,2,3,3] -> !INVALID axis 1 must be 3 (the channels of X in a group)",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] n[8] -> !INVALID (B) is of type int32",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] f[7] -> !INVALID axis 0 must be 8",
      "Conv@11 f[1,3,2,2] f[8,3,3,3] -> !INVALID the window needs 3",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] | kernel_shape=[3,2] -> !INVALID kernel_shape says 2",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] | strides=[0,1] -> !INVALID strides holds 0",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] | pads=[1,1] -> !INVALID pads has 2 numbers, 4 are needed",
      "Conv@11 f[1,3,5,5] f[8,3,3,3] | group=2 -> !INVALID group 2 does not divide",
      "Conv@11 f[1,3,5] f[8,3,3,3] -> !INVALID rank 3 is needed",
      "Conv@11 f[6,3,5,5]^0 f[8,3,3,3] -> Conv f[6,8,3,3]^0",
      "Conv@11 f[6,3,5,5]^1 f[8,3,3,3] -> !carry depend on each other");
}

static void test_pools(void) {
  TEST_CASES(
      "AveragePool@19 f[1,2,5,5] | kernel_shape=[2,2] strides=[2,2] ceil_mode=1 -> AveragePool "
      "f[1,2,3,3]",
      "MaxPool@12 f[1,2,5,5] | kernel_shape=[3,3] -> MaxPool f[1,2,3,3]",
      "MaxPool@12 f[1,2,5] | strides=[2] -> !INVALID kernel_shape is missing",
      "GlobalAveragePool@1 f[2,3,4,5] -> ReduceMean f[2,3,1,1]",
      "GlobalMaxPool@1 f[2,3,4] -> ReduceMax f[2,3,1]",
      "AveragePool@19 f[6,2,5]^0 | kernel_shape=[2] -> AveragePool f[6,2,4]^0");
}

static void test_fused_activation(void) {
  TEST_CASES(
      "ms.FusedGemm@1 f[2,3] f[3,4] f[4] | activation=$Relu -> Relu f[2,4]",
      "ms.FusedGemm@1 f[3,2] f[4,3] | transA=1 transB=1 activation=$Selu activation_alpha=1.5f "
      "activation_gamma=0.5f -> Selu f[2,4]",
      "ms.FusedGemm@1 f[8,3]^0 f[3,4] f[4] | activation=$Tanh -> Tanh f[8,4]^0",
      "ms.FusedGemm@1 f[8,3]^0 f[3,4] f[8,4] | activation=$Tanh -> !carry does not carry it",
      "ms.FusedGemm@1 f[2,3] f[3,4] | activation=$LeakyRelu -> !INVALID activation_alpha is "
      "missing: LeakyRelu needs it",
      "ms.FusedGemm@1 f[2,3] f[3,4] | activation=$Selu activation_alpha=1.5f -> !INVALID "
      "activation_gamma is missing",
      "ms.FusedGemm@1 f[2,3] f[3,4] | activation=$Clip -> !UNSUPPORTED activation is 'Clip', which "
      "FusedGemm does not have",
      "ms.FusedGemm@1 f[2,3] f[3,4] -> !UNSUPPORTED activation is ''",
      "ms.FusedGemm@1 f[2,3] f[4,5] | activation=$Relu -> !INVALID 3 and 4 along the summed axis",
      "ms.FusedGemm@1 n[2,3] n[3,4] | activation=$Relu -> !INVALID must be a floating-point type",
      "ms.FusedConv@1 f[2,3,10,10] f[8,3,3,3] f[8] | activation=$Relu -> Relu f[2,8,8,8]",
      "ms.FusedConv@1 f[2,3,10,10] f[8,3,3,3] f[8] f[2,8,8,8] -> Add f[2,8,8,8]",
      "ms.FusedConv@1 f[2,3,10,10] f[8,3,3,3] - f[2,8,8,8] | activation=$Sigmoid -> Sigmoid "
      "f[2,8,8,8]",
      "ms.FusedConv@1 f[1,1,5,5] f[1,1,3,3] | auto_pad=$SAME_UPPER strides=[2,2] activation=$Clip "
      "activation_params=f[0,6] -> Clip f[1,1,3,3]",
      "ms.FusedConv@1 f[6,3,5,5]^0 f[8,3,3,3] - f[6,8,3,3]^0 | activation=$HardSwish -> HardSwish "
      "f[6,8,3,3]^0",
      "ms.FusedConv@1 f[2,3,5,5] f[8,3,3,3] - f[2,8,5,5] -> !INVALID 't2' has shape [2, 8, 5, 5]",
      "ms.FusedConv@1 f[2,3,5,5] f[8,3,3,3] | activation=$HardSigmoid activation_params=f[1] -> "
      "!INVALID activation_params has 1 numbers, HardSigmoid needs 2",
      "ms.FusedConv@1 f[2,3,5,5] f[8,3,3,3] | activation=$Elu -> !UNSUPPORTED which FusedConv does "
      "not have",
      "ms.FusedConv@1 f[1,3,5,5] f[8,2,3,3] | activation=$Relu -> !INVALID the channels of X in a "
      "group");
}

OPI_TEST_MAIN("linear operators", OPI_TEST(test_matmul), OPI_TEST(test_matmul_carries),
              OPI_TEST(test_gemm), OPI_TEST(test_fused_matmul), OPI_TEST(test_einsum),
              OPI_TEST(test_conv), OPI_TEST(test_pools), OPI_TEST(test_fused_activation))
