/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and movement operators: every file form, canonical form, shapes, axis rule, hostile input.
 */
#include "tests/loader/cases.h"

static void test_shape_and_size_are_constants(void) {
  TEST_CASES("Shape@1 f[2,3,4] -> const i[3]", "Shape@15 f[2,3,4] | start=1 -> const i[2]",
             "Shape@15 f[2,3,4] | start=-2 end=-1 -> const i[1]",
             "Shape@15 f[2,3,4] | start=-9 end=9 -> const i[3]",
             "Shape@15 f[2,3,4] | start=2 end=1 -> const i[0]", "Shape@1 f[] -> const i[0]",
             "Size@1 f[2,3,4] -> const i[]");
}

static void test_reshape_forms(void) {
  TEST_CASES(
      "Reshape@1 f[2,6] | shape=[3,4] -> Reshape f[3,4]",
      "Reshape@5 f[2,6] i{3,4} -> Reshape f[3,4]", "Reshape@5 f[2,6] i{0,-1,3} -> Reshape f[2,2,3]",
      "Reshape@14 f[0,6] i{0,7} | allowzero=1 -> Reshape f[0,7]",
      "Reshape@14 f[0,6] i{0,3,2} | allowzero=0 -> Reshape f[0,3,2]",
      "Reshape@5 f[2,6] i{2,6} -> alias f[2,6]", "Reshape@5 f[1] i{} -> Reshape f[]",
      "Reshape@5 i#[2,6] i{12} -> const i[12]",
      "Reshape@5 f[2,6] i{5,-1} -> !INVALID cannot be divided by 5",
      "Reshape@5 f[2,6] i{-1,-1} -> !INVALID second of its kind",
      "Reshape@5 f[2,6] i{-2,6} -> !INVALID is -2", "Reshape@5 f[2,6] i{3,5} -> !INVALID [3, 5]",
      "Reshape@5 f[2] i{2,0} -> !INVALID copies a dimension",
      "Reshape@5 f[2,6] i{4611686018427387904,4,0,-1} -> !INVALID",
      "Reshape@5 f[2,6] i[2] -> !UNSUPPORTED needs the value of graph input",
      "Reshape@5 f[2,6] f{3,4} -> !INVALID integers are needed");
}

static void test_reshape_carries_factors(void) {
  TEST_CASES("Reshape@5 f[4,6]^0 i{4,2,3} -> Reshape f[4,2,3]^0",
             "Reshape@5 f[4,6]^0 i{24} -> Reshape f[24]^0:1:6",
             "Reshape@5 f[4,6]^1 i{24} -> Reshape f[24]^0:4:1",
             "Reshape@5 f[4,6]^1 i{2,2,6} -> Reshape f[2,2,6]^2",
             "Reshape@5 f[24]^0:1:6 i{4,6} -> Reshape f[4,6]^0",
             "Reshape@5 f[24]^0:2:3 i{2,4,3} -> Reshape f[2,4,3]^1",
             "Reshape@5 f[4,6]^0 i{3,8} -> !carry no dimension of [3, 8] keeps dimension 0",
             "Reshape@5 f[4,6]^0 i{2,12} -> !carry no dimension",
             "Flatten@13 f[4,3,2]^0 -> Reshape f[4,6]^0",
             "Flatten@13 f[4,3,2]^1 | axis=2 -> Reshape f[12,2]^0:4:1");
}

static void test_flatten_squeeze_unsqueeze(void) {
  TEST_CASES(
      "Flatten@1 f[2,3,4] -> Reshape f[2,12]", "Flatten@11 f[2,3,4] | axis=-1 -> Reshape f[6,4]",
      "Flatten@9 f[2,3,4] | axis=0 -> Reshape f[1,24]",
      "Flatten@9 f[2,3,4] | axis=3 -> Reshape f[24,1]",
      "Flatten@9 f[2,3,4] | axis=4 -> !INVALID axis 4 is outside rank 3",
      "Squeeze@1 f[1,3,1] | axes=[0] -> Reshape f[3,1]",
      "Squeeze@11 f[1,3,1] | axes=[-1] -> Reshape f[1,3]",
      "Squeeze@13 f[1,3,1] i{0,2} -> Reshape f[3]", "Squeeze@13 f[1,3,1] -> Reshape f[3]",
      "Squeeze@13 f[2,3] -> alias f[2,3]",
      "Squeeze@13 f[2,3] i{0} -> !INVALID dimension 0 of 't0' is 2, not 1",
      "Squeeze@13 f[1,3] i{0,0} -> !INVALID twice",
      "Squeeze@13 f[1,3] i{7} -> !INVALID axis 7 is outside rank 2",
      "Unsqueeze@1 f[3] | axes=[0,2] -> Reshape f[1,3,1]",
      "Unsqueeze@13 f[3] i{-1} -> Reshape f[3,1]", "Unsqueeze@13 f[3] i=0 -> Reshape f[1,3]",
      "Unsqueeze@13 f[3] i{} -> alias f[3]", "Unsqueeze@13 f[3] i{3} -> !INVALID outside rank 2",
      "Unsqueeze@13 f[3] i{0,0} -> !INVALID twice", "Unsqueeze@13 f[3] -> !INVALID has no axes");
}

/* A batch of one is not taken for another 1; what squeezes it away is refused. */
static void test_batch_of_one(void) {
  TEST_CASES("Unsqueeze@13 f[1,3]^0 i{0} -> Reshape f[1,1,3]^1",
             "Unsqueeze@13 f[1,3]^0 i{1} -> Reshape f[1,1,3]^0",
             "Squeeze@13 f[1,1,3]^1 i{0} -> Reshape f[1,3]^0",
             "Squeeze@13 f[1,1,3]^1 -> !carry dimension 1 of 't0' is squeezed away",
             "Reshape@13 f[1,6]^0 i{1,2,3} -> Reshape f[1,2,3]^0",
             "Reshape@13 f[1,6]^0 i{6} -> Reshape f[6]^0:1:6",
             "Reshape@13 f[2,1,6]^1 i{2,1,2,3} -> Reshape f[2,1,2,3]^1",
             "Reshape@13 f[5,1,6]^1 i{5,2,3} -> Reshape f[5,2,3]^1:1:2",
             "Reshape@13 f[5,2,3]^1:1:2 i{5,6} -> Reshape f[5,6]^0:5:1",
             "Reshape@13 f[5,6]^0:5:1 i{5,1,6} -> Reshape f[5,1,6]^1",
             "Reshape@13 f[1,8,6]^0 i{1,8,2,3} -> Reshape f[1,8,2,3]^0");
}

static void test_expand(void) {
  TEST_CASES("Expand@8 f[3,1] i{2,1,4} -> Expand f[2,3,4]", "Expand@13 f[3,1] i{1} -> alias f[3,1]",
             "Expand@8 f[3] i{4} -> !INVALID does not expand to [4]",
             "Expand@8 f[1] i{-3} -> !INVALID no valid size",
             "Expand@8 f[4,1]^0 i{4,5} -> Expand f[4,5]^0",
             "Expand@8 f[4,1]^0 i{2,4,5} -> Expand f[2,4,5]^1",
             "Expand@8 f[1,3]^0 i{5,3} -> !carry expanded from 1 to 5");
}

static void test_transpose(void) {
  TEST_CASES("Transpose@1 f[2,3,4] -> Transpose f[4,3,2]",
             "Transpose@13 f[2,3,4]^0 | perm=[1,0,2] -> Transpose f[3,2,4]^1",
             "Transpose@1 f[2,3] | perm=[0,1] -> alias f[2,3]", "Transpose@1 f[] -> alias f[]",
             "Transpose@1 f[2,3] | perm=[0] -> !INVALID perm has 1 entries",
             "Transpose@1 f[2,3] | perm=[0,0] -> !INVALID not a permutation",
             "Transpose@1 f[2,3] | perm=[0,2] -> !INVALID not a permutation");
}

static void test_tile(void) {
  TEST_CASES("Tile@6 f[2,3] i{2,1} -> Tile f[4,3]", "Tile@1 f[2,3] i=3 i=1 -> Tile f[2,9]",
             "Tile@6 f[2,3] i{1,1} -> alias f[2,3]", "Tile@6 f[2,3] i{2} -> !INVALID repeats has 1",
             "Tile@6 f[2,3] i{-1,1} -> !INVALID repeated -1 times",
             "Tile@6 f[2,3] i{4611686018427387904,4} -> !INVALID",
             "Tile@6 f[4,3]^0 i{1,2} -> Tile f[4,6]^0",
             "Tile@6 f[4,3]^0 i{2,1} -> Tile f[8,3]^0:2:1");
}

static void test_concat(void) {
  TEST_CASES("Concat@1 f[2,3] f[2,3] -> Concat f[2,6]",
             "Concat@4 f[2,3] f[4,3] | axis=0 -> Concat f[6,3]",
             "Concat@11 f[2,3] f[2,1] | axis=-1 -> Concat f[2,4]",
             "Concat@13 f[2,3] | axis=0 -> alias f[2,3]",
             "Concat@13 f[0,3] f[4,3] | axis=0 -> alias f[4,3]",
             "Concat@13 f[2,3] f[2,3] | axis=2 -> !INVALID axis 2 is outside rank 2",
             "Concat@13 f[2,3] f[4,3] | axis=1 -> !INVALID cannot be joined along axis 1",
             "Concat@13 f[2,3] d[2,3] | axis=1 -> !INVALID 't1' has float64",
             "Concat@13 f[2,3] f[2] | axis=1 -> !INVALID cannot be joined",
             "Concat@13 f[4,3]^0 f[4,2]^0 | axis=1 -> Concat f[4,5]^0",
             "Concat@13 f[4,3]^0 f[4,2]^0 | axis=0 -> !INVALID",
             "Concat@13 f[4,3]^0 f[4,3]^0 | axis=0 -> !carry joined along it",
             "Concat@13 f[4,3]^0 f#[4,2] | axis=1 -> Concat f[4,5]^0",
             "Concat@13 f[4,3]^0 f[4,2] | axis=1 -> !carry 4 different entries");
}

static void test_split(void) {
  TEST_CASES("Split@2 f[6,2] | axis=0 split=[2,4] -> Split f[2,2] f[4,2]",
             "Split@2 f[6,2] -> Split f[3,2] f[3,2]",
             "Split@13 f[2,6] i{1,5} | axis=-1 -> Split f[2,1] f[2,5]",
             "Split@18 f[7] | num_outputs=3 -> Split f[3] f[3] f[1]", "Split@13 f[7] -> alias f[7]",
             "Split@13 f[6] i{2,3} -> !INVALID split has 2 entries",
             "Split@13 f[6,3]^1 i{2,4} | axis=0 -> Split f[2,3]^1 f[4,3]^1");
  TEST_CASES("Split@13 f[7] i{3} -> !INVALID split adds up to 3",
             "Split@13 f[7] i{-3} -> !INVALID is -3", "Split@13 f[6] i{6} -> alias f[6]",
             "Split@18 f[6] | num_outputs=3 -> !INVALID num_outputs is 3, the node has 1",
             "Split@13 f[6]^0 i{4} -> !INVALID split adds up to 4");
}

static void test_slice(void) {
  TEST_CASES("Slice@1 f[4,6] | starts=[1,0] ends=[3,1000] -> Slice f[2,6]",
             "Slice@9 f[4,6] | starts=[-2] ends=[9223372036854775807] axes=[1] -> Slice f[4,2]",
             "Slice@10 f[4,6] i{1} i{3} -> Slice f[2,6]",
             "Slice@13 f[4,6] i{0} i{9223372036854775807} i{-1} i{2} -> Slice f[4,3]",
             "Slice@13 f[4,6] i{-1} i{-9223372036854775808} i{0} i{-1} -> Slice f[4,6]",
             "Slice@13 f[4,6] i{5} i{0} i{1} i{-2} -> Slice f[4,3]",
             "Slice@13 f[4,6] i{0} i{9223372036854775807} i{1} -> alias f[4,6]",
             "Slice@13 f[4,6] i{4} i{2} i{1} -> Slice f[4,0]",
             "Slice@13 f[4,6] i{-100} i{2} i{1} -> Slice f[4,2]",
             "Slice@13 f[4,6] n{1,2} n{2,4} n{1,0} -> Slice f[2,1]",
             "Slice@13 f[4,6] i{0} i{1} i{2} -> !INVALID axis 2 is outside rank 2",
             "Slice@13 f[4,6] i{0,0} i{1,1} i{1,1} -> !INVALID listed twice",
             "Slice@13 f[4,6] i{0} i{1} i{1} i{0} -> !INVALID step of axis 1 is 0",
             "Slice@13 f[4,6] i{0} i{1,2} -> !INVALID 1, 2, 0, 0 entries",
             "Slice@13 f[4,6] i[1] i{1} -> !UNSUPPORTED needs the value of graph input 't1'",
             "Slice@13 f[4,6]^0 i{1} i{3} i{1} -> Slice f[4,2]^0",
             "Slice@13 f[4,6]^1 i{1} i{3} i{1} -> !carry dimension 1 of 't0' is sliced");
}

static void test_pad(void) {
  TEST_CASES(
      "Pad@1 f[2,3] | paddings=[0,1,0,2] -> Pad f[2,6]",
      "Pad@2 f[2,3] | pads=[1,0,0,0] mode=$edge -> Pad f[3,3]",
      "Pad@11 f[2,3] i{0,1,0,-1} -> Pad f[2,3]", "Pad@13 f[2,3] i{0,0,0,0} f=1 -> alias f[2,3]",
      "Pad@18 f[2,3] i{1,1} f=1.5 i{-1} -> Pad f[2,5]", "Pad@18 f[2,3] i{1} -> !INVALID pads has 1",
      "Pad@18 f[2,3] i{0,-4,0,0} -> !INVALID cannot be padded by -4 and 0",
      "Pad@13 f[2,3] i{0,3,0,0} | mode=$reflect -> !INVALID cannot be padded by 3",
      "Pad@13 f[2,3] i{0,3,0,0} | mode=$odd -> !UNSUPPORTED 'mode' is 'odd'",
      "Pad@13 f[2,3] i{0,1,0,0} i=1 -> !INVALID the fill int64",
      "Pad@13 f[4,3]^0 i{0,1,0,0} -> Pad f[4,4]^0",
      "Pad@13 f[4,3]^0 i{1,0,0,0} -> !carry dimension 0 is padded");
}

static void test_trilu(void) {
  TEST_CASES("Trilu@14 f[4,5] -> Trilu f[4,5]",
             "Trilu@14 f[2,4,5]^0 i=1 | upper=0 -> Trilu f[2,4,5]^0",
             "Trilu@14 f[5] -> !INVALID rank 1", "Trilu@14 f[4,5]^0 -> !carry cut at a diagonal",
             "Trilu@14 f[4,5] i[] -> !UNSUPPORTED needs the value");
}

OPI_TEST_MAIN("movement", OPI_TEST(test_shape_and_size_are_constants), OPI_TEST(test_reshape_forms),
              OPI_TEST(test_reshape_carries_factors), OPI_TEST(test_flatten_squeeze_unsqueeze),
              OPI_TEST(test_batch_of_one), OPI_TEST(test_expand), OPI_TEST(test_transpose),
              OPI_TEST(test_tile), OPI_TEST(test_concat), OPI_TEST(test_split),
              OPI_TEST(test_slice), OPI_TEST(test_pad), OPI_TEST(test_trilu))
