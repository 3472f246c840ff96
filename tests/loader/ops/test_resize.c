/* SPDX-License-Identifier: Apache-2.0 */
/* Resize and Upsample vanish where they change nothing, in every mode; to another size they are
 * refused, with both numbers. */
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
      "alias f[2,3]",
      "Resize@11 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_half_pixel_for_nn "
      "nearest_mode=$ceil -> !UNSUPPORTED by one half",
      "Resize@11 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_half_pixel_for_nn "
      "mode=$linear -> !UNSUPPORTED by one half",
      "Resize@19 f[2,3] f{0,0,1,1} - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize "
      "-> alias f[2,3]",
      "Resize@19 f[2,3] f{0,1} - i{3} | axes=[1] "
      "coordinate_transformation_mode=$tf_crop_and_resize -> alias f[2,3]",
      "Resize@19 f[2,3] f{0,1,1,2} - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize "
      "-> !UNSUPPORTED axis 1 of 't0' is cropped to 1 .. 2",
      "Resize@19 f[2,3] - - i{2,3} | coordinate_transformation_mode=$tf_crop_and_resize -> "
      "!INVALID lacks its roi");
}

static void test_another_size(void) {
  TEST_CASES(
      "Resize@19 f[1,3,5,7] - - i{1,3,5,9} -> !UNSUPPORTED axis 3 of 't0' is resized from 7 to 9",
      "Resize@19 f[1,3,5,7] - f{1,1,2,1} -> !UNSUPPORTED axis 2 of 't0' is resized by 2",
      "Resize@19 f[2,3] - f[2] -> !UNSUPPORTED needs the value of graph input",
      "Resize@19 f[2,3] - - i{2} -> !INVALID 1 numbers for 2 axes, 2 are needed",
      "Resize@19 f[2,3] -> !INVALID neither scales nor sizes",
      "Resize@19 f[2,3] - - i{2} | axes=[2] -> !INVALID axis 2 is outside",
      "Upsample@9 f[2,3] f{1,2} -> !UNSUPPORTED axis 1 of 't0' is resized by 2",
      "Upsample@7 f[2,3] | scales=f[1] -> !INVALID 1 scales");
}

OPI_TEST_MAIN("resize", OPI_TEST(test_the_size_that_is_there), OPI_TEST(test_every_transformation),
              OPI_TEST(test_another_size))
