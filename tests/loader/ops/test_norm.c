/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, softmax, activations, losses: forms, shapes, axis rules, hostile input. */
#include "tests/loader/cases.h"

static void test_layer_norm(void) {
  TEST_CASES(
      "LayerNormalization@17 f[2,3,8] f[8] f[8] -> LayerNormalization f[2,3,8]",
      "LayerNormalization@11 f[2,3,8] f[8] f[8] -> LayerNormalization f[2,3,8]",
      "LayerNormalization@12 h[2,3,8] f[8] f[8] -> LayerNormalization f[2,3,8]",
      "LayerNormalization@12 f[2,3,8] h[8] h[8] -> Cast h[2,3,8]",
      "LayerNormalization@12 d[2,3,8] f[2,1,8] -> Cast f[2,3,8]",
      "LayerNormalization@17 h[2,3,8] f[8] f[8] -> LayerNormalization h[2,3,8]",
      "LayerNormalization@17 h[2,3,8] h[8] | stash_type=1 -> LayerNormalization h[2,3,8] f[2,3,1] "
      "f[2,3,1]",
      "LayerNormalization@17 f[2,3,8] f[3,8] | axis=1 -> LayerNormalization f[2,3,8] f[2,1,1]",
      "LayerNormalization@17 f[2,3,8] f[1] | axis=-1 -> LayerNormalization f[2,3,8]",
      "LayerNormalization@17 f[2,3,8] f[2,1,8] -> Mul f[2,3,8]",
      "LayerNormalization@17 f[2,3,8] f[8] f[2,1,8] -> Add f[2,3,8]",
      "LayerNormalization@17 f[2,3,8] f[7] -> !INVALID (Scale) has shape [7], which does not "
      "broadcast to [2, 3, 8]",
      "LayerNormalization@17 f[2,3,8] f[8] | axis=3 -> !INVALID axis 3 is outside input 't0' of "
      "rank 3",
      "LayerNormalization@17 f[2,3,8] f[8] | axis=-4 -> !INVALID axis -4 is outside",
      "LayerNormalization@17 n[2,3,8] f[8] -> !INVALID (X) is of type int32",
      "LayerNormalization@17 f[2,3,8] -> !INVALID input 1 (Scale) is missing",
      "LayerNormalization@17 f[2,3,8] f[8] | stash_type=7 -> !UNSUPPORTED stash_type is 7",
      "LayerNormalization@17 f[6,3,8]^0 f[8] -> LayerNormalization f[6,3,8]^0",
      "LayerNormalization@17 f[6,3,8]^1 f[8] -> LayerNormalization f[6,3,8]^1",
      "LayerNormalization@17 f[6,3,8]^2 f[8] -> !carry depend on each other");
}

static void test_rms_norm(void) {
  TEST_CASES(
      "RMSNormalization@23 f[2,3,8] f[8] -> RMSNormalization f[2,3,8]",
      "SimplifiedLayerNormalization@11 h[2,3,8] h[8] -> RMSNormalization h[2,3,8]",
      "SimplifiedLayerNormalization@1 f[2,3,8] f[8] | axis=2 -> RMSNormalization f[2,3,8] f[2,3,1]",
      "RMSNormalization@22 f[2,8] f[8] -> !UNSUPPORTED has version 22, known are 23",
      "RMSNormalization@23 f[2,8] f[4] -> !INVALID (scale) has shape [4]",
      "RMSNormalization@23 f[6,8]^0 f[8] -> RMSNormalization f[6,8]^0");
}

static void test_other_norms(void) {
  TEST_CASES(
      "BatchNormalization@15 f[2,3,4] f[3] f[3] f[3] f[3] -> BatchNormalization f[2,3,4]",
      "BatchNormalization@15 f[2,3] f[3] f[3] f[3] f[3] | training_mode=1 -> BatchNormalization "
      "f[2,3] f[3] f[3]",
      "BatchNormalization@15 f[2,3,4] f[3] f[3] f[3] f[4] -> !INVALID axis 0 must be 3 (the "
      "channels of X)",
      "BatchNormalization@15 f[2,3,4] f[3] f[3] f[3] -> !INVALID",
      "InstanceNormalization@6 f[2,3,4] f[3] f[3] -> GroupNormalization f[2,3,4]",
      "GroupNormalization@18 f[2,6,4] f[2] f[2] | num_groups=2 -> GroupNormalization f[2,6,4]",
      "GroupNormalization@21 f[2,6,4] f[6] f[6] | num_groups=2 -> GroupNormalization f[2,6,4]",
      "GroupNormalization@21 f[2,6,4] f[2] f[2] | num_groups=2 -> !INVALID axis 0 must be 6",
      "GroupNormalization@21 f[2,6,4] f[6] f[6] | num_groups=4 -> !INVALID no multiple of 4 groups",
      "GroupNormalization@21 f[2,6,4] f[6] f[6] -> !INVALID 'num_groups' is missing",
      "LpNormalization@22 f[2,3] | axis=1 p=1 -> Div f[2,3]",
      "LpNormalization@22 f[2,3] | p=3 -> !INVALID p is 3",
      "GroupNormalization@21 f[8,6,4]^0 f[6] f[6] | num_groups=2 -> GroupNormalization f[8,6,4]^0",
      "GroupNormalization@21 f[8,6,4]^1 f[6] f[6] | num_groups=2 -> !carry depend on each other");
}

static void test_softmax(void) {
  TEST_CASES(
      "Softmax@13 f[2,3,4] -> Softmax f[2,3,4]", "Softmax@13 f[2,3,4] | axis=0 -> Softmax f[2,3,4]",
      "Softmax@11 f[2,3,4] -> Reshape f[2,3,4]", "Softmax@11 f[2,3,4] | axis=2 -> Softmax f[2,3,4]",
      "Softmax@11 f[2,3] -> Softmax f[2,3]", "LogSoftmax@1 f[2,3,4] | axis=0 -> Reshape f[2,3,4]",
      "Softmax@13 f[2,3] | axis=2 -> !INVALID axis 2 is outside",
      "Softmax@13 n[2,3] -> !INVALID of type int32", "Softmax@13 f[] -> !INVALID scalar",
      "Softmax@13 f[6,3]^0 -> Softmax f[6,3]^0",
      "Softmax@13 f[6,3]^1 -> !carry depend on each other", "Hardmax@13 f[2,3] -> Hardmax f[2,3]");
}

static void test_activations(void) {
  TEST_CASES("Relu@1 f[2,3] -> Relu f[2,3]", "Relu@14 n[2,3] -> Relu n[2,3]",
             "Gelu@20 f[2] | approximate=$tanh -> Gelu f[2]",
             "Gelu@20 f[2] | approximate=$exact -> !UNSUPPORTED supported: none tanh",
             "Gelu@19 f[2] -> !UNSUPPORTED version 19", "Swish@24 f[2] -> Swish f[2]",
             "Elu@6 f[2] -> Elu f[2]", "HardSigmoid@6 f[2] -> HardSigmoid f[2]",
             "PRelu@16 f[2,3,4] f[3,1] -> PRelu f[2,3,4]",
             "PRelu@6 f[2,3,4] f[3] -> PRelu f[2,3,4]",
             "PRelu@16 f[3,1] f[3,4] -> !INVALID does not broadcast to [3, 1]",
             "PRelu@16 f[2,3]^0 f[3] -> PRelu f[2,3]^0",
             "PRelu@16 f[2,3]^1 f[3] -> !carry the slope has that axis",
             "Tanh@13 f[4,2]^1 -> Tanh f[4,2]^1", "Erf@13 u[2] -> !INVALID of type uint8");
}

static void test_losses(void) {
  TEST_CASES(
      "SoftmaxCrossEntropyLoss@13 f[4,5] i[4] -> SoftmaxCrossEntropyLoss f[]",
      "SoftmaxCrossEntropyLoss@12 f[4,5,2] n[4,2] f[5] | reduction=$none ignore_index=-100 -> "
      "SoftmaxCrossEntropyLoss f[4,2] f[4,5,2]",
      "NegativeLogLikelihoodLoss@13 f[4,5] i[4] | reduction=$sum -> NegativeLogLikelihoodLoss f[]",
      "SoftmaxCrossEntropyLoss@13 f[4,5] i[5] -> !INVALID has shape [5], [4] is needed",
      "SoftmaxCrossEntropyLoss@13 f[4,5] f[4] -> !INVALID (labels) is of type float32",
      "SoftmaxCrossEntropyLoss@13 f[4,5] i[4] f[4] -> !INVALID axis 0 must be 5 (the classes of "
      "the scores)",
      "SoftmaxCrossEntropyLoss@13 f[4,5] i[4] | reduction=$avg -> !UNSUPPORTED supported: mean "
      "sum none",
      "SoftmaxCrossEntropyLoss@13 f[8,5]^0 i[8]^0 | reduction=$none -> SoftmaxCrossEntropyLoss "
      "f[8]^0",
      "SoftmaxCrossEntropyLoss@13 f[8,5]^0 i[8]^0 -> !carry reduced over it",
      "SoftmaxCrossEntropyLoss@13 f[8,5]^0 i[8] -> !carry different axes",
      "Dropout@13 f[2,3] -> alias f[2,3]", "Dropout@7 f[2,3] | ratio=0.5f -> alias f[2,3]",
      "Dropout@13 n[2,3] -> !INVALID of type int32");
}

OPI_TEST_MAIN("norms", OPI_TEST(test_layer_norm), OPI_TEST(test_rms_norm),
              OPI_TEST(test_other_norms), OPI_TEST(test_softmax), OPI_TEST(test_activations),
              OPI_TEST(test_losses))
