/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of norms, softmax and windows against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_layer_norm(void) {
  JAC_CASES(
      "LayerNormalization@17 d[2,3,4] d[4] d[4] -> y", "LayerNormalization@17 d[2,3,4] d[4] -> y",
      "LayerNormalization@17 d[2,3,4] d[3,4] d[3,4] | axis=1 epsilon=0.01f -> y",
      "LayerNormalization@17 d[3,4] d[1,4] d[4] -> y",
      "LayerNormalization@17 d[3,4] c[4] d[4] -> y", "LayerNormalization@17 c[3,4] d[4] c[4] -> y",
      "LayerNormalization@17 d[3,4] c[4] c[4] | epsilon=0.1f -> y",
      "LayerNormalization@17 d[2,3,4] d[3,1] d[2,1,4] -> y",
      "LayerNormalization@17 d[1,1] d[1] d[1] | epsilon=0.5f -> y");
}

/* The optional outputs, used or not. */
static void test_layer_norm_statistics(void) {
  JAC_CASES("LayerNormalization@17 d[2,4] d[4] d[4] | stash_type=11 -> yny",
            "LayerNormalization@17 d[2,4] d[4] d[4] | stash_type=11 -> yyn",
            "LayerNormalization@17 d[2,3,4] d[4] d[4] | stash_type=11 epsilon=0.02f -> yyy",
            "LayerNormalization@17 d[2,3,2] d[3,2] | axis=1 stash_type=11 -> n-y",
            "LayerNormalization@17 d[2,4] d[4] d[4] | stash_type=11 -> ny",
            "LayerNormalization@17 d[2,4] d[4] d[4] | stash_type=11 -> ynn");
}

static void test_rms_norm(void) {
  JAC_CASES("RMSNormalization@23 d[2,3,4] d[4] -> y",
            "RMSNormalization@23 d[2,3,4] d[3,4] | axis=1 epsilon=0.1f -> y",
            "RMSNormalization@23 d[3,4] c[4] -> y", "RMSNormalization@23 c[3,4] d[4] -> y",
            "RMSNormalization@23 d[3,4] d[1] -> y",
            "SimplifiedLayerNormalization@1 d[3,4] d[4] | axis=-1 epsilon=0.001f -> y",
            "LpNormalization@1 d[3,4] | p=2 axis=0 -> y",
            "LpNormalization@1 d~[3,4] | p=1 axis=1 -> y");
}

static void test_contrib_norms(void) {
  JAC_CASES("ms.SkipLayerNormalization@1 d[2,3,4] d[2,3,4] d[4] d[4] d[4] -> y",
            "ms.SkipLayerNormalization@1 d[2,3,4] d[2,3,4] d[4] d[4] | epsilon=0.1f -> y--y",
            "ms.SkipSimplifiedLayerNormalization@1 d[2,3,4] d[2,3,4] d[4] d[4] -> y--y",
            "ms.SkipSimplifiedLayerNormalization@1 d[2,3,4] d[2,3,4] d[4] -> y",
            "ms.EmbedLayerNormalization@1 n{0,2,1,2}[2,2] n{0,1,0,0}[2,2] d[3,4] d[2,4] d[2,4] "
            "d[4] d[4] | epsilon=0.01f -> y");
}

static void test_channel_norms(void) {
  JAC_CASES("BatchNormalization@15 d[2,3,4] d[3] d[3] d[3] d+[3] | epsilon=0.01f -> y",
            "BatchNormalization@15 d[2,3] d[3] d[3] c[3] c+[3] -> y",
            "BatchNormalization@15 c[2,3,2,2] d[3] c[3] d[3] d+[3] -> y",
            "BatchNormalization@15 d[3,2,2] d[2] d[2] c[2] c+[2] | training_mode=1 -> y",
            "GroupNormalization@21 d[2,4,3] d[4] d[4] | num_groups=2 epsilon=0.1f -> y",
            "GroupNormalization@18 d[2,4,3] d[2] d[2] | num_groups=2 -> y",
            "GroupNormalization@21 d[1,4,2,2] c[4] d[4] | num_groups=1 -> y",
            "GroupNormalization@21 c[2,2,3] d[2] c[2] | num_groups=2 -> y",
            "InstanceNormalization@6 d[2,3,4] d[3] d[3] | epsilon=0.01f -> y");
}

static void test_softmax(void) {
  JAC_CASES("Softmax@13 d[2,3,4] -> y", "Softmax@13 d[2,3,4] | axis=1 -> y",
            "Softmax@13 d[4] | axis=0 -> y", "Softmax@11 d[2,3,4] | axis=1 -> y",
            "Softmax@11 d[2,3,4] | axis=2 -> y", "Softmax@11 d[2,2,2] | axis=0 -> y",
            "LogSoftmax@13 d[2,3,4] -> y", "LogSoftmax@13 d[2,3,4] | axis=0 -> y",
            "LogSoftmax@11 d[2,3,2] -> y", "Hardmax@13 d[2,3] -> y !nothing can be trained",
            "ms.BiasSoftmax@1 d[2,3,4] d[1,3,4] | axis=2 is_inner_broadcast=0 -> y",
            "ms.BiasSoftmax@1 d[2,2,3] d[2,1,3] | axis=2 is_inner_broadcast=1 -> y",
            "ms.BiasSplitGelu@1 d[1,2,8] d[8] -> y");
}

static void test_conv(void) {
  JAC_CASES("Conv@11 d[2,2,5] d[3,2,3] d[3] -> y",
            "Conv@11 d[1,2,6] d[2,2,3] | strides=[2] pads=[1,2] dilations=[2] -> y",
            "Conv@11 d[1,2,4,4] d[2,2,2,2] d[2] | strides=[2,2] -> y",
            "Conv@11 d[1,4,4,3] d[4,2,3,2] d[4] | group=2 pads=[1,0,1,1] -> y",
            "Conv@11 d[2,3,4] d[3,1,2] | group=3 -> y",
            "Conv@11 d[1,1,3,3,3] d[2,1,2,2,2] d[2] | pads=[0,1,0,1,0,1] strides=[1,2,1] -> y",
            "Conv@11 d[1,1,5,5] d[1,1,3,3] | auto_pad=$SAME_UPPER strides=[2,2] -> y",
            "Conv@11 c[1,1,4] d[1,1,2] -> y", "Conv@11 d[1,1,4] c[1,1,2] d[1] -> y",
            "Conv@11 d[1,1,7] d[1,1,2] | strides=[3] -> y");
}

static void test_pools(void) {
  JAC_CASES(
      "AveragePool@11 d[1,2,5] | kernel_shape=[2] -> y",
      "AveragePool@11 d[1,1,4,4] | kernel_shape=[3,3] pads=[1,1,1,1] strides=[2,2] -> y",
      "AveragePool@11 d[1,1,4,4] | kernel_shape=[3,3] pads=[1,1,1,1] count_include_pad=1 -> y",
      "AveragePool@19 d[1,1,5] | kernel_shape=[2] strides=[2] ceil_mode=1 -> y",
      "AveragePool@19 d[1,1,7] | kernel_shape=[2] dilations=[3] -> y",
      "MaxPool@12 d~[1,2,5] | kernel_shape=[2] -> y",
      "MaxPool@12 d~[1,1,4,4] | kernel_shape=[3,2] pads=[1,0,1,1] strides=[2,1] -> y",
      "MaxPool@12 d~[1,1,5] | kernel_shape=[2] strides=[2] ceil_mode=1 -> y",
      "MaxPool@12 d~[1,1,2,3,3] | kernel_shape=[2,2,2] dilations=[1,2,1] -> y",
      "GlobalAveragePool@1 d[2,2,3] -> y", "GlobalMaxPool@1 d~[2,2,3] -> y");
}

OPI_TEST_MAIN("gradients of norms", OPI_TEST(test_layer_norm), OPI_TEST(test_layer_norm_statistics),
              OPI_TEST(test_rms_norm), OPI_TEST(test_contrib_norms), OPI_TEST(test_channel_norms),
              OPI_TEST(test_softmax), OPI_TEST(test_conv), OPI_TEST(test_pools))
