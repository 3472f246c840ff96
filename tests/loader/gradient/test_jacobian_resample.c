/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of Resize and DFT against central differences. */
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

OPI_TEST_MAIN("gradients of resampling", OPI_TEST(test_resize), OPI_TEST(test_dft))
