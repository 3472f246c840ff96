/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Resize, DFT, ConvTranspose, Col2Im, GridSample and of blocks as channels against
 * central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_resize(void) {
  JAC_CASES("Resize@19 d[1,2,3,4] - f{1,1,2,2} -> y",
            "Resize@19 d[2,3,4] - - i{2,3} | axes=[1,2] nearest_mode=$ceil -> y",
            "Resize@19 d[1,2,3,4] - - i{5,7} | axes=[2,3] mode=$linear -> y",
            "Resize@19 d[1,1,5,7] - - i{3,2} | axes=[2,3] mode=$linear antialias=1 -> y",
            "Resize@19 d[1,4,3] - - i{9,2} | axes=[1,2] mode=$cubic -> y",
            "Resize@19 d[1,4,3] - - i{9,2} | axes=[1,2] mode=$cubic exclude_outside=1 "
            "cubic_coeff_a=-0.5f -> y",
            "Resize@19 d[9,3] - - i{4,3} | mode=$cubic antialias=1 "
            "coordinate_transformation_mode=$align_corners -> y",
            "Resize@19 d[4,5] f{-1,0,2,1} - i{5,7} | mode=$linear extrapolation_value=3.0f "
            "coordinate_transformation_mode=$tf_crop_and_resize -> y",
            "Resize@19 d[4,5] f{1,0,0,2} - i{6,3} | "
            "coordinate_transformation_mode=$tf_crop_and_resize -> y",
            "Upsample@9 d[1,2,3] f{1,1,3} | mode=$linear -> y");
}

static void test_dft(void) {
  JAC_CASES("DFT@20 d[2,6,2] - i=1 -> y", "DFT@20 d[2,5,1] - i=1 -> y",
            "DFT@20 d[2,6,2] - i=1 | inverse=1 -> y", "DFT@20 d[3,2,1] - i=0 | inverse=1 -> y",
            "DFT@20 d[2,6,1] - i=1 | onesided=1 -> y", "DFT@20 d[5,2,1] - i=0 | onesided=1 -> y",
            "DFT@20 d[2,4,2] - i=1 | onesided=1 inverse=1 -> y",
            "DFT@20 d[2,4,2] i=7 i=1 | onesided=1 inverse=1 -> y", "DFT@20 d[2,6,2] i=9 i=1 -> y",
            "DFT@20 d[2,6,1] i=4 i=1 | onesided=1 -> y",
            "DFT@20 d[2,6,2] i=5 i=1 | onesided=1 inverse=1 -> y",
            "DFT@20 d[2,2,2] i=8 i=1 | onesided=1 inverse=1 -> y",
            "DFT@17 d[1,37,1] | axis=1 onesided=1 -> y", "DFT@17 d[1,32,2] | axis=1 -> y");
}

static void test_conv_transpose(void) {
  JAC_CASES("ConvTranspose@22 d[2,2,4] d[2,3,3] d[3] -> y",
            "ConvTranspose@22 d[1,2,2,3] d[2,3,2,2] d[3] | strides=[2,2] -> y",
            "ConvTranspose@11 d[1,2,3,2] d[2,1,3,3] | strides=[2,3] pads=[1,0,0,2] "
            "output_padding=[1,1] -> y",
            "ConvTranspose@22 d[1,4,3] d[4,1,3] d[2] | group=2 strides=[2] dilations=[2] -> y",
            "ConvTranspose@22 d[1,1,4] d[1,2,3] | dilations=[2] pads=[3,2] -> y",
            "ConvTranspose@22 d[1,2,3] d[2,1,2] d[1] | strides=[3] output_shape=[11] -> y",
            "ConvTranspose@22 d[1,2,3] d[2,1,5] | strides=[2] auto_pad=$SAME_LOWER -> y",
            "ConvTranspose@22 d[1,1,2,2,2] d[1,2,2,1,2] d[2] | strides=[2,1,2] -> y");
}

static void test_col2im(void) {
  JAC_CASES("Col2Im@18 d[2,8,6] i{4,3} i{2,2} -> y",
            "Col2Im@18 d[1,6,2] i{5} i{3} | strides=[2] pads=[0,1] dilations=[1] -> y");
}

static void test_grid_sample(void) {
  JAC_CASES("GridSample@20 d[1,2,3,4] d[1,2,2,2] -> y",
            "GridSample@20 d[2,1,3,3] d[2,1,3,2] | align_corners=1 padding_mode=$border -> y",
            "GridSample@16 d[1,1,4,3] d[1,2,2,2] | mode=$bicubic -> y",
            "GridSample@20 d[1,1,3,3] d[1,2,2,2] | mode=$cubic padding_mode=$reflection -> y",
            "GridSample@20 d[1,2,3,3] c[1,2,2,2] | mode=$nearest -> y",
            "GridSample@20 d[1,1,2,2,3] d[1,1,2,1,3] -> y");
}

static void test_blocks(void) {
  JAC_CASES("DepthToSpace@13 d[1,8,2,1] | blocksize=2 -> y",
            "DepthToSpace@13 d[1,8,1,2] | blocksize=2 mode=$CRD -> y",
            "SpaceToDepth@13 d[1,2,4,2] | blocksize=2 -> y");
}

OPI_TEST_MAIN("gradients of resampling", OPI_TEST(test_resize), OPI_TEST(test_dft),
              OPI_TEST(test_conv_transpose), OPI_TEST(test_col2im), OPI_TEST(test_grid_sample),
              OPI_TEST(test_blocks))
