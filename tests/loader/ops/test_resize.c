/* SPDX-License-Identifier: Apache-2.0 */
/* Resize and Upsample vanish where they change nothing, in every mode; to another size they become
 * Gather or opipe.Interpolate along each axis that changes. Values: tests/nodes, and gradients of
 * tests/loader/gradient. */
#include "tests/loader/cases.h"

static void test_the_size_that_is_there(void) {
  TEST_CASES(
      "Resize@19 f[1,3,5,7] - - i{1,3,5,7} -> alias f[1,3,5,7]",
      "Resize@11 f[1,3,5,7] f{} f{} i{1,3,5,7} | mode=$linear -> alias f[1,3,5,7]",
      "Resize@13 f[1,3,5,7] - f{1,1,1,1} | mode=$cubic cubic_coeff_a=-0.5f -> alias f[1,3,5,7]",
      "Resize@10 f[1,3,5,7] f{1,1,1,1} | mode=$linear -> alias f[1,3,5,7]",
      "Resize@18 f[1,3,5,7] - - i{5,7} | axes=[2,3] antialias=1 mode=$cubic -> alias f[1,3,5,7]",
      "Resize@18 f[1,3,5,7] - - i{7,5} | axes=[-1,2] -> alias f[1,3,5,7]",
      "Resize@19 f[2,3] - - i{2,3} | keep_aspect_ratio_policy=$not_larger -> alias f[2,3]",
      "Upsample@7 f[1,3,5,7] | scales=f[1,1,1,1] -> alias f[1,3,5,7]",
      "Upsample@9 f[1,3,5,7] f{1,1,1,1} | mode=$linear -> alias f[1,3,5,7]");
}

static void test_every_transformation(void) {
  TEST_CASES(
      "Resize@19 f[2,3] - - i{2,3} | coordinate_transformation_mode=$half_pixel -> alias f[2,3]",
      "Resize@19 f[2,3] - - i{2,3} | coordinate_transformation_mode=$half_pixel_symmetric "
      "mode=$linear -> alias f[2,3]",
      "Resize@19 f[2,1] - - i{2,1} | coordinate_transformation_mode=$pytorch_half_pixel "
      "mode=$cubic exclude_outside=1 -> alias f[2,1]",
      "Resize@19 f[2,1] - - i{2,1} | coordinate_transformation_mode=$align_corners mode=$linear -> "
      "alias f[2,1]",
      "Resize@19 f[2,3] - - i{2,3} | coordinate_transformation_mode=$asymmetric "
      "nearest_mode=$ceil -> alias f[2,3]",
      "Resize@11 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_half_pixel_for_nn -> "
      "Gather f[2,3]",
      "Resize@11 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_half_pixel_for_nn "
      "nearest_mode=$ceil -> Gather f[2,3]",
      "Resize@11 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_half_pixel_for_nn "
      "mode=$linear -> Interpolate f[2,3]",
      "Resize@19 f[2,3] f{0,0,1,1} - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize "
      "-> alias f[2,3]",
      "Resize@19 f[2,3] f{0,1} - i{3} | axes=[1] "
      "coordinate_transformation_mode=$tf_crop_and_resize -> alias f[2,3]",
      "Resize@19 f[2,3] f{0,1,1,2} - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize "
      "-> Where f[2,3]",
      "Resize@19 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize -> "
      "!INVALID lacks its roi");
}

static void test_another_size(void) {
  TEST_CASES(
      "Resize@19 f[1,3,5,7]^0 - - i{1,3,5,9} -> Gather f[1,3,5,9]^0",
      "Resize@19 f[1,3,5,7]^1 - f{1,1,2,1} | mode=$linear -> Interpolate f[1,3,10,7]^1",
      "Resize@19 h[1,3,5,7]^0 - f{1,1,2,2} | mode=$cubic -> Interpolate h[1,3,10,14]^0",
      "Resize@18 f[1,3,8,8] - - i{4,2} | axes=[2,3] antialias=1 mode=$linear -> "
      "Interpolate f[1,3,4,2]",
      "Resize@18 f[1,3,8,4] - - i{4,4} | axes=[2,3] keep_aspect_ratio_policy=$not_larger -> "
      "Gather f[1,3,4,2]",
      "Resize@18 f[1,3,8,4] - - i{4,4} | axes=[-2,-1] keep_aspect_ratio_policy=$not_smaller -> "
      "alias f[1,3,8,4]",
      "Resize@18 u[2,4] - - i{2,8} | mode=$linear -> Cast u[2,8]",
      "Resize@18 o[2,4] - - i{2,8} -> Gather o[2,8]",
      "Resize@10 f[1,2,2] f{1,2,2} -> Gather f[1,4,4]",
      "Resize@18 f[2,4] - - i{2,0} | mode=$linear -> Gather f[2,0]",
      "Upsample@9 f[2,3] f{1,2} -> Gather f[2,6]",
      "Upsample@7 f[2,3] | scales=f[2,1] mode=$linear -> Interpolate f[4,3]",
      "Resize@19 f[2,3]^1 - - i{2,5} | mode=$linear -> !carry depend on each other",
      "Resize@19 f[2,3]^1 - - i{2,5} -> !carry",
      "Resize@18 f[2,0] - - i{2,3} -> !INVALID cannot be resized from 0 to 3",
      "Resize@18 f[2,3] - - i{2,-3} -> !INVALID cannot be resized from 3 to -3",
      "Resize@18 f[2,3] - f{1,0} -> !INVALID 3 elements and scale 0",
      "Resize@18 o[2,3] - - i{2,5} | mode=$cubic -> !UNSUPPORTED bool",
      "Resize@18 f[2,3] - - i{2,5} | mode=$spline -> !INVALID 'spline', which is unknown",
      "Resize@18 f[2,3] - - i{2,5} | nearest_mode=$up -> !INVALID 'up', which is unknown",
      "Resize@18 f[2,3] - - i{2,5} | coordinate_transformation_mode=$half -> !INVALID 'half'",
      "Resize@18 f[2,3] - - i{2,3} | axes=[1,1] -> !INVALID axis 1 is named twice",
      "Resize@18 f[2,2000000000] - - i{2,3} | mode=$cubic antialias=1 -> !LIMIT filters of",
      "Resize@19 f[2,3] - f[2] -> !UNSUPPORTED needs the value of graph input",
      "Resize@19 f[2,3] - - i{2} -> !INVALID 1 numbers for 2 axes, 2 are needed",
      "Resize@19 f[2,3] -> !INVALID neither scales nor sizes",
      "Resize@19 f[2,3] - - i{2} | axes=[2] -> !INVALID axis 2 is outside",
      "Upsample@7 f[2,3] | scales=f[1] -> !INVALID 1 scales");
}

OPI_TEST_MAIN("resize", OPI_TEST(test_the_size_that_is_there), OPI_TEST(test_every_transformation),
              OPI_TEST(test_another_size))
