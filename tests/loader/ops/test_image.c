/* SPDX-License-Identifier: Apache-2.0 */
/* ConvTranspose, Col2Im, GridSample, DepthToSpace and SpaceToDepth: what they become, which axes
 * they carry, what is refused. Values: tests/nodes, and gradients of tests/loader/gradient. */
#include "tests/loader/cases.h"

static void test_conv_transpose(void) {
  TEST_CASES(
      "ConvTranspose@22 f[5,2,4]^0 f[2,3,3] f[3] -> Conv f[5,3,6]^0",
      "ConvTranspose@1 f[5,2,4]^0 f[2,3,2] | strides=[2] -> Reshape f[5,3,8]^0",
      "ConvTranspose@11 h[5,2,4,3] h[2,3,3,3] | strides=[2,2] pads=[1,1,1,1] -> Slice h[5,3,7,5]",
      "ConvTranspose@11 f[5,2,4,3]^0 f[2,3,3,3] f[3] | strides=[2,2] pads=[1,1,1,1] "
      "output_padding=[1,1] -> Slice f[5,3,8,6]^0",
      "ConvTranspose@22 f[1,4,5] f[4,3,3] | group=2 dilations=[2] -> Conv f[1,6,9]",
      "ConvTranspose@22 f[1,1,3,3] f[1,2,3,3] | strides=[3,2] output_shape=[10,8] -> Slice "
      "f[1,2,10,8]",
      "ConvTranspose@22 f[1,1,3,3] f[1,2,3,3] | strides=[2,2] auto_pad=$SAME_UPPER -> Reshape "
      "f[1,2,6,6]",
      "ConvTranspose@22 f[1,1,3] f[1,2,3] | auto_pad=$VALID -> Conv f[1,2,5]",
      "ConvTranspose@22 f[1,1,2,2,2] f[1,2,2,2,2] | strides=[2,2,2] -> Reshape f[1,2,4,4,4]",
      "ConvTranspose@22 f[1,2,4]^2 f[2,3,3] -> !carry",
      "ConvTranspose@22 f[1,2,4] f[3,3,3] -> !INVALID axis 0 must be 2 (the channels of X)",
      "ConvTranspose@22 f[1,3,4] f[3,3,3] | group=2 -> !INVALID group 2 does not divide the 3",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] f[2] -> !INVALID the output channels of W",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] | pads=[3,3] -> !INVALID would have 0 in the result",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] | kernel_shape=[2] -> !INVALID kernel_shape says 2",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] | strides=[0] -> !INVALID strides holds 0",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] | strides=[2147483647] -> !INVALID in the result",
      "ConvTranspose@22 f[1,2,4] f[2,3,3] | auto_pad=$SAME -> !UNSUPPORTED 'SAME', supported: "
      "NOTSET",
      "ConvTranspose@22 f[1,2,1] f[2,3,3] | strides=[2147483647] -> Conv f[1,3,3]",
      "ConvTranspose@22 f[1,2,2,2,2] f[2,3,1,1,1] | strides=[2000000000,2000000000,2000000000] -> "
      "!LIMIT overflow",
      "ConvTranspose@22 f[1,2,4,4] f[2,3,3] -> !INVALID rank 4 is needed",
      "ConvTranspose@22 n[1,2,4] n[2,3,3] -> !INVALID");
}

static void test_col2im(void) {
  TEST_CASES("Col2Im@18 f[5,8,6]^0 i{4,3} i{2,2} -> Reshape f[5,2,4,3]^0",
             "Col2Im@18 d[1,12,4] i{4,7} i{2,3} | strides=[2,4] -> Reshape d[1,2,4,7]",
             "Col2Im@18 h[1,9,16] i{4,4} i{3,3} | pads=[1,1,1,1] -> Conv h[1,1,4,4]",
             "Col2Im@18 f[1,4,4] i{4,4} i{2,2} | dilations=[2,2] -> Conv f[1,1,4,4]",
             "Col2Im@18 f[1,6,2] i{5} i{3} | strides=[2] -> Reshape f[1,2,5]",
             "Col2Im@18 f[1,4,1] i{3,3} i{2,2} | strides=[5,5] -> Conv f[1,1,3,3]",
             "Col2Im@18 f[1,8,4] i{2,2,1} i{2,2,1} -> !INVALID the 1 blocks of the image",
             "Col2Im@18 f[1,9,4] i{3,3} i{2,2} -> !INVALID multiple of the 4 elements of a block",
             "Col2Im@18 f[1,4,4] i{1,3} i{2,2} -> !INVALID 1 elements with its pads, a block "
             "reaches over 2",
             "Col2Im@18 f[1,8192,1] i{128,64} i{128,64} -> !LIMIT 64 elements along axis 1, and at "
             "most 4096",
             "Col2Im@18 f[1,4,4] i{3,3} i{2} -> !INVALID has 1 numbers, not 2",
             "Col2Im@18 f[1,4,4] i{3,0} i{2,2} -> !INVALID has 0 along axis 1",
             "Col2Im@18 f[1,4,4] i{3,3,3,3} i{2,2,1,1} -> !UNSUPPORTED 4 axes, of at most 3",
             "Col2Im@18 f[1,4,4]^2 i{3,3} i{2,2} -> !carry",
             "Col2Im@18 f[4,4] i{3,3} i{2,2} -> !INVALID");
}

static void test_grid_sample(void) {
  TEST_CASES(
      "GridSample@16 f[5,2,4,3]^0 f[5,6,7,2]^0 -> Reshape f[5,2,6,7]^0",
      "GridSample@20 h[1,2,4,3] h[1,6,7,2] | mode=$cubic -> Reshape h[1,2,6,7]",
      "GridSample@20 f[1,2,4,3,5] d[1,6,7,8,3] | padding_mode=$reflection -> Reshape "
      "f[1,2,6,7,8]",
      "GridSample@20 f[5,2,4,3]^1 f[5,6,7,2] -> Reshape f[5,2,6,7]^1",
      "GridSample@20 f[5,2,4,3]^2 f[5,6,7,2] -> !carry",
      "GridSample@20 f[1,2,4,3] f[2,6,7,2] -> !INVALID the batch of X",
      "GridSample@20 f[1,2,4,3] f[1,6,7,3] -> !INVALID a coordinate for each axis",
      "GridSample@20 f[1,2,4,0] f[1,6,7,2] -> !INVALID has 0 along axis 3",
      "GridSample@20 f[1,2,4,3] f[1,6,7,2] | mode=$spline -> !INVALID 'spline', which is unknown",
      "GridSample@20 f[1,2,4,3] f[1,6,7,2] | padding_mode=$wrap -> !INVALID 'wrap'",
      "GridSample@20 f[1,2,4,3] f[1,6,2] -> !INVALID rank 4 is needed");
}

static void test_blocks(void) {
  TEST_CASES(
      "DepthToSpace@13 f[5,8,2,3]^0 | blocksize=2 -> Reshape f[5,2,4,6]^0",
      "DepthToSpace@1 i[1,9,2,3] | blocksize=3 -> Reshape i[1,1,6,9]",
      "DepthToSpace@13 u[1,8,2,3] | blocksize=2 mode=$CRD -> Reshape u[1,2,4,6]",
      "SpaceToDepth@13 f[5,2,4,6]^0 | blocksize=2 -> Reshape f[5,8,2,3]^0",
      "DepthToSpace@13 f[1,6,2,3] | blocksize=2 -> !INVALID 6 along axis 1, no multiple of 4",
      "SpaceToDepth@13 f[1,2,4,5] | blocksize=2 -> !INVALID 5 along axis 3, no multiple",
      "DepthToSpace@13 f[1,8,2,3] | blocksize=2 mode=$RCD -> !UNSUPPORTED 'RCD'",
      "DepthToSpace@13 f[1,8,2,3] | blocksize=0 -> !INVALID blocksize",
      "DepthToSpace@13 f[1,8,2,3] -> !INVALID blocksize",
      "SpaceToDepth@13 f[8,2,3] | blocksize=1 -> !INVALID rank 4 is needed");
}

static void test_rows_that_are_assigned(void) {
  TEST_CASES("ScatterND@16 f[3,4,2]^0 i#[3,1,2] f[3,1,2]^0 -> !carry",
             "ScatterND@16 f[4,2]^1 i#[3,1] f[3,2]^1 -> ScatterND f[4,2]^1");
}

OPI_TEST_MAIN("image", OPI_TEST(test_conv_transpose), OPI_TEST(test_col2im),
              OPI_TEST(test_grid_sample), OPI_TEST(test_blocks),
              OPI_TEST(test_rows_that_are_assigned))
