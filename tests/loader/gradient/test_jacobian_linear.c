/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of products, losses and movement against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_matmul(void) {
  JAC_CASES(
      "MatMul@13 d[2,3] d[3,4] -> y", "MatMul@13 d[2,2,3] d[3,4] -> y",
      "MatMul@13 d[2,2,3] d[2,3,2] -> y", "MatMul@13 d[2,1,2,3] d[3,3,2] -> y",
      "MatMul@13 d[2,3] d[2,3,2] -> y", "MatMul@13 d[3] d[3,2] -> y", "MatMul@13 d[2,3] d[3] -> y",
      "MatMul@13 d[3] d[3] -> y", "MatMul@13 d[3] d[2,3,2] -> y", "MatMul@13 d[2,2,3] d[3] -> y",
      "MatMul@13 d[1,2,3] d[2,1,3,1] -> y", "ms.FusedMatMul@1 d[2,3] d[3,4] | alpha=0.5f -> y",
      "ms.FusedMatMul@1 d[3,2] d[4,3] | transA=1 transB=1 alpha=2f -> y",
      "ms.FusedMatMul@1 d[2,3,2] d[2,3] | transA=1 transB=1 -> y",
      "ms.FusedMatMul@1 d[2,3,2] d[3,4] | transA=1 -> y",
      "ms.FusedMatMul@1 d[2,2,3] d[1,4,3] | transB=1 alpha=0.3f -> y",
      "ms.FusedMatMul@1 d[2,3,2] d[3,2,4] | transBatchA=1 -> y");
}

static void test_gemm(void) {
  JAC_CASES("Gemm@13 d[2,3] d[3,4] -> y", "Gemm@13 d[2,3] d[3,4] d[4] -> y",
            "Gemm@13 d[2,3] d[3,4] d[1,4] | alpha=0.5f beta=2f -> y",
            "Gemm@13 d[2,3] d[3,4] d[2,1] | beta=0.3f -> y", "Gemm@13 d[2,3] d[3,4] d=1 -> y",
            "Gemm@13 d[3,2] d[4,3] d[2,4] | transA=1 transB=1 alpha=1.5f -> y",
            "Gemm@13 d[3,2] d[3,4] d[1] | transA=1 -> y", "Gemm@13 d[2,3] d[4,3] | transB=1 -> y",
            "Gemm@6 d[2,3] d[3,2] d[2] | broadcast=1 -> y",
            "Gemm@13 d[2,3] d[3,4] d[1,1] | beta=0f -> y");
}

static void test_losses(void) {
  JAC_CASES("SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} | reduction=$sum -> y",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} | reduction=$none -> y",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,-1,1} | ignore_index=-1 -> y",
            "SoftmaxCrossEntropyLoss@13 d[3,4] n{0,3,1} c+[4] -> y",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,-100,1} c+[4] | reduction=$none "
            "ignore_index=-100 -> y",
            "SoftmaxCrossEntropyLoss@13 d[2,3,2] i{0,1,2,2}[2,2] -> y",
            "SoftmaxCrossEntropyLoss@13 d[2,3,1,2] i{0,1,2,2}[2,1,2] c+[3] | reduction=$sum -> y",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} | reduction=$none -> yy",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} -> yy",
            "SoftmaxCrossEntropyLoss@13 d[3,4] i{0,3,1} -> ny",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,3,1} -> y",
            "NegativeLogLikelihoodLoss@13 d[3,4] i{0,3,1} c+[4] | reduction=$sum -> y",
            "NegativeLogLikelihoodLoss@13 d[2,3,2] i{0,1,2,-1}[2,2] c+[3] | ignore_index=-1 -> y",
            "NegativeLogLikelihoodLoss@13 d[2,3,2] i{0,1,2,2}[2,2] | reduction=$none -> y");
}

static void test_shapes(void) {
  JAC_CASES("Reshape@13 d[2,6] i{3,-1} -> y", "Flatten@13 d[2,3,2] | axis=1 -> y",
            "Squeeze@13 d[2,1,3,1] i{1} -> y", "Squeeze@11 d[2,1,3,1] -> y",
            "Unsqueeze@13 d[2,3] i{0,-1} -> y", "Expand@13 d[2,1,3] i{2,2,4,1} -> y",
            "Expand@13 d=2 i{2,3} -> y", "Transpose@13 d[2,3,4] | perm=[2,0,1] -> y",
            "Transpose@13 d[2,3] -> y", "Tile@13 d[2,3] i{2,3} -> y",
            "Tile@13 d[2,1,2] i{1,3,2} -> y", "Tile@13 d[2] i{1} -> y");
}

static void test_joins(void) {
  JAC_CASES("Concat@13 d[2,3] d[2,1] d[2,2] | axis=1 -> y",
            "Concat@13 d[1,2] c[2,2] d[1,2] | axis=0 -> y",
            "Split@13 d[2,6] i{1,2,3} | axis=1 -> yyy", "Split@13 d[2,6] i{1,2,3} | axis=1 -> nyn",
            "Split@13 d[2,6] i{1,2,3} | axis=1 -> y-n", "Split@18 d[5,2] | num_outputs=3 -> nny",
            "Split@11 d[4,2] -> yn", "Trilu@14 d[3,3] -> y", "Trilu@14 d[2,3,4] i=1 | upper=0 -> y",
            "Trilu@14 d[2,3] i=-1 -> y", "Where@16 o{1,0,1,0,0,1}[2,3] d[2,3] d[2,3] -> y",
            "Where@16 o{1,0}[2,1] d[3] d[1,1] -> y", "Where@16 o{1} d[2,3] d=0.5 -> y",
            "Where@16 o{0,1,1}[3] d[2,1] c[3] -> y", "Where@16 o{0,1,1,0}[2,2] d=1 d[2] -> y");
}

static void test_slices(void) {
  JAC_CASES("Slice@13 d[5,4] i{1,0} i{4,3} -> y", "Slice@13 d[5,4] i{-1} i{-9} i{0} i{-2} -> y",
            "Slice@13 d[6] i{0} i{9223372036854775807} i{0} i{2} -> y",
            "Slice@13 d[3,6] i{5,2} i{0,0} i{1,0} i{-2,-1} -> y",
            "Slice@9 d[4,3] | starts=[1] ends=[-1] axes=[0] -> y",
            "Slice@13 d[7] i{1} i{7} i{0} i{3} -> y");
}

static void test_pads(void) {
  JAC_CASES("Pad@13 d[2,3] i{1,0,2,1} -> y", "Pad@13 d[2,3] i{0,1,1,0} d=0.5 -> y",
            "Pad@13 d[4,3] i{-1,2,-1,-1} -> y", "Pad@13 d[3,4] i{0,3,1,2} | mode=$reflect -> y",
            "Pad@13 d[2,3] i{1,4,0,2} | mode=$edge -> y",
            "Pad@19 d[2,3] i{1,4,0,2} | mode=$wrap -> y",
            "Pad@18 d[2,4] i{1,1} - i{1} | mode=$edge -> y",
            "Pad@19 d[5] i{-2,3} | mode=$wrap -> y", "Pad@18 d[5] i{2,-1} | mode=$reflect -> y",
            "Pad@18 d[5] i{2,-1} | mode=$edge -> y", "Pad@18 d[5,2] i{2,-1,-3,1} d=1 -> y");
}

static void test_casts(void) {
  JAC_CASES("Cast@13 d[2,2] | to=11 -> y");
}

OPI_TEST_MAIN("gradients of products and movement", OPI_TEST(test_matmul), OPI_TEST(test_gemm),
              OPI_TEST(test_losses), OPI_TEST(test_shapes), OPI_TEST(test_joins),
              OPI_TEST(test_slices), OPI_TEST(test_pads), OPI_TEST(test_casts))
