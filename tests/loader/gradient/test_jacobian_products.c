/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of products and losses against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_products(void) {
  JAC_CASES("MatMul@13 d[2,3] d[3,4] -> y", "MatMul@13 d[2,2,3] d[3,4] -> y",
            "MatMul@13 d[2,2,3] d[2,3,4] -> y", "MatMul@13 d[2,1,2,3] d[3,3,2] -> y",
            "MatMul@13 d[1,2,3] d[4,3,2] -> y", "MatMul@13 d[4,2,3] d[1,3,2] -> y",
            "MatMul@13 d[2,3] d[4,3,2] -> y", "MatMul@13 d[3] d[3] -> y",
            "MatMul@13 d[3] d[3,2] -> y", "MatMul@13 d[2,3] d[3] -> y",
            "MatMul@13 d[3] d[2,3,4] -> y", "MatMul@13 d[2,4,3] d[3] -> y",
            "MatMul@13 d[2,2,3] d[1,1,3,4] -> y", "MatMul@13 c[2,3] d[3,4] -> y",
            "MatMul@13 d[2,3] c[3,4] -> y", "MatMul@13 d[2,1,2,3] d[1,3,3,2] -> y");
}

static void test_fused_products(void) {
  JAC_CASES("ms.FusedMatMul@1 d[3,2] d[3,4] | transA=1 alpha=0.5f -> y",
            "ms.FusedMatMul@1 d[2,3] d[4,3] | transB=1 -> y",
            "ms.FusedMatMul@1 d[3,2] d[4,3] | transA=1 transB=1 alpha=2f -> y",
            "ms.FusedMatMul@1 d[2,2,3] d[4,3] | transB=1 -> y",
            "ms.FusedMatMul@1 d[2,3,2] d[4,3] | transA=1 transB=1 -> y",
            "ms.FusedMatMul@1 d[2,3,2] d[2,3,4] | transA=1 -> y",
            "ms.FusedMatMul@1 d[3] d[4,3] | transB=1 -> y",
            "ms.FusedMatMul@1 d[3,2] d[3] | transA=1 transB=1 -> y",
            "ms.FusedMatMul@1 d[3,2,4] d[2,4,2] | transBatchA=1 -> y",
            "ms.FusedGemm@1 d[2,3] d[4,3] d[4] | transB=1 alpha=0.5f activation=$Tanh -> y",
            "ms.FusedGemm@1 d[2,3] d[3,4] | activation=$Elu activation_alpha=0.7f -> y",
            "ms.FusedConv@1 d[2,2,5] d[3,2,3] d[3] d[2,3,3] | activation=$Sigmoid -> y",
            "ms.FusedConv@1 d[1,2,5] d[2,2,3] | pads=[1,1] activation=$LeakyRelu "
            "activation_params=f[0.2] -> y");
}

static void test_gemm(void) {
  JAC_CASES("Gemm@13 d[2,3] d[3,4] d[4] -> y", "Gemm@13 d[2,3] d[3,4] -> y",
            "Gemm@13 d[3,2] d[4,3] d[2,1] | transA=1 transB=1 alpha=0.5f beta=2f -> y",
            "Gemm@13 d[2,3] d[4,3] d[1,4] | transB=1 beta=0.25f -> y",
            "Gemm@13 d[3,2] d[3,4] d[2,4] | transA=1 -> y", "Gemm@13 d[2,3] d[3,4] d=0.5 -> y",
            "Gemm@13 d[2,3] d[3,4] d[1] | beta=3f -> y", "Gemm@13 c[2,3] d[3,4] d[4] -> y",
            "Gemm@13 d[2,3] c[3,4] d[1,1] -> y", "Gemm@6 d[2,3] d[3,2] d[2] | broadcast=1 -> y",
            "Gemm@13 d[2,3] d[3,4] d[1,1] | beta=0f -> y",
            "Gemm@13 d[3,2] d[3,4] d[1] | transA=1 -> y");
}

static void test_cross_entropy(void) {
  JAC_CASES(
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} | reduction=$sum -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] n{0,3,1} | reduction=$none -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,-100,1} | ignore_index=-100 -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{2,2,1} | ignore_index=2 reduction=$none -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} c+[4] -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} c+[4] | reduction=$sum -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,-1,1} c+[4] | ignore_index=-1 -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} c+[4] | ignore_index=3 reduction=$none -> y",
      "SoftmaxCrossEntropyLoss@13 d[2,3,2] i{0,2,1,1}[2,2] -> y",
      "SoftmaxCrossEntropyLoss@13 d[1,3,2,2] i{0,2,1,1}[1,2,2] c+[3] | ignore_index=1 -> y",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} | reduction=$sum -> yy",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} -> ny",
      "SoftmaxCrossEntropyLoss@13 d[2,3,2] i{0,2,1,1}[2,2] | reduction=$none -> yy",
      "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} -> yy",
      "SoftmaxCrossEntropyLoss@13 d[2,3,1,2] i{0,1,2,2}[2,1,2] c+[3] | reduction=$sum -> y");
}

static void test_likelihood(void) {
  JAC_CASES("NegativeLogLikelihoodLoss@13 d[3,4] i{0,3,1} -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,3,1} | reduction=$sum -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] n{0,3,1} | reduction=$none -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,-100,1} | ignore_index=-100 -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,3,1} c+[4] -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,-2,1} c+[4] | ignore_index=-2 -> y",
            "NegativeLogLikelihoodLoss@13 d[2,3,2] i{0,2,1,1}[2,2] | reduction=$none -> y",
            "NegativeLogLikelihoodLoss@13 d[1,3,2,2] i{0,2,1,1}[1,2,2] c+[3] -> y");
}

OPI_TEST_MAIN("gradients of products and losses", OPI_TEST(test_products),
              OPI_TEST(test_fused_products), OPI_TEST(test_gemm), OPI_TEST(test_cross_entropy),
              OPI_TEST(test_likelihood))
