/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of movement, shapes, slices and reductions against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_shapes(void) {
  JAC_CASES("Reshape@14 d[2,3] i{3,-1} -> y", "Flatten@13 d[2,3,2] | axis=2 -> y",
            "Squeeze@13 d[2,1,3] i{1} -> y", "Squeeze@13 d[1,2,1] -> y",
            "Unsqueeze@13 d[2,3] i{0,-1} -> y", "Expand@13 d[2,1] i{3,1,4} -> y",
            "Expand@13 d[3] i{2,3} -> y", "Expand@13 d=2 i{2,2} -> y",
            "Transpose@13 d[2,3,4] | perm=[2,0,1] -> y", "Transpose@13 d[2,3] -> y",
            "Tile@13 d[2,3] i{2,1} -> y", "Tile@13 d[2,3] i{3,2} -> y",
            "Tile@13 d[2,1,2] i{2,3,2} -> y", "Identity@16 d[2,3] -> y");
}

static void test_joins(void) {
  JAC_CASES("Concat@13 d[2,3] d[1,3] d[3,3] | axis=0 -> y",
            "Concat@13 d[2,3] c[2,1] d[2,2] | axis=-1 -> y",
            "Concat@13 c[2,0] d[2,2] d[2,1] | axis=1 -> y", "Split@13 d[4,2] i{1,3} -> yy",
            "Split@13 d[4,2] i{1,2,1} -> yny", "Split@13 d[2,6] | axis=1 -> ny",
            "Split@13 d[2,6] i{2,2,2} | axis=1 -> nny", "Split@18 d[5,2] | num_outputs=2 -> yy",
            "Split@13 d[4,2] i{0,4} -> ny", "Split@13 d[4,2] i{1,2,1} -> -y-");
}

static void test_slices(void) {
  JAC_CASES(
      "Slice@13 d[4,5] i{1} i{3} -> y", "Slice@13 d[4,5] i{1,0} i{9223372036854775807,3} -> y",
      "Slice@13 d[4,5] i{-3} i{-1} i{1} -> y", "Slice@13 d[4,7] i{0} i{7} i{1} i{2} -> y",
      "Slice@13 d[4,7] i{1} i{7} i{1} i{3} -> y",
      "Slice@13 d[4,5] i{-1} i{-9223372036854775807} i{1} i{-1} -> y",
      "Slice@13 d[4,7] i{5} i{0} i{1} i{-2} -> y",
      "Slice@13 d[4,7] i{3,6} i{-9,1} i{0,1} i{-2,-3} -> y",
      "Slice@13 d[4,5] i{1,4} i{4,0} i{0,1} i{2,-4} -> y", "Slice@13 d[4] i{2} i{3} -> y",
      "Slice@13 d[2,8,3] i{1} i{8} i{1} i{2} -> y", "Slice@9 d[4,5] | starts=[1] ends=[3] -> y");
}

static void test_pads(void) {
  JAC_CASES("Pad@18 d[2,3] i{1,0,0,2} -> y", "Pad@18 d[2,3] i{1,-1,0,2} c=3 -> y",
            "Pad@18 d[3,4] i{2,3} - i{1} | mode=$reflect -> y",
            "Pad@18 d[3,2] i{2,0,1,1} | mode=$edge -> y",
            "Pad@19 d[3,2] i{2,1,1,3} | mode=$wrap -> y",
            "Pad@18 d[3,4] i{1,2,2,3} | mode=$reflect -> y", "Trilu@14 d[3,4] -> y",
            "Trilu@14 d[2,3,3] i=1 | upper=0 -> y", "Trilu@14 d[3,3] i=-1 -> y",
            "Pad@13 d[2,3] i{0,1,1,0} d=0.5 -> y", "Pad@13 d[4,3] i{-1,2,-1,-1} -> y",
            "Pad@19 d[5] i{-2,3} | mode=$wrap -> y", "Pad@18 d[5] i{2,-1} | mode=$reflect -> y",
            "Pad@18 d[5] i{2,-1} | mode=$edge -> y", "Pad@18 d[5,2] i{2,-1,-3,1} d=1 -> y");
}

static void test_reductions(void) {
  JAC_CASES(
      "ReduceMean@18 d[2,3,4] i{1} -> y", "ReduceMean@18 d[2,3,4] i{-1,0} | keepdims=0 -> y",
      "ReduceMean@13 d[2,3] -> y", "ReduceMean@13 d[2,3] | axes=[-1] keepdims=0 -> y",
      "ReduceSum@13 d[2,3] i{0} -> y", "ReduceSum@13 d[2,3] | keepdims=0 -> y",
      "ReduceSum@13 d[2,3] - | noop_with_empty_axes=1 -> y", "ReduceSum@13 d=2 -> y",
      "ReduceMax@18 d~[2,3,2] i{1} -> y", "ReduceMax@18 d~[2,3] | keepdims=0 -> y",
      "ReduceMax@18 d{1,3,3,2,0,1}[2,3] i{1} | keepdims=0 -> y",
      "ReduceMin@18 d~[2,3,2] i{0,2} | keepdims=0 -> y", "ReduceMin@18 d{1,1,3}[1,3] i{1} -> y",
      "ReduceProd@18 d[2,3] i{1} -> y", "ReduceProd@18 d{1,0,2,3,0,0}[2,3] i{1} -> y",
      "ReduceProd@13 d+[2,2] -> y", "ReduceL1@18 d~[2,3] i{1} -> y", "ReduceL2@18 d[2,3] i{1} -> y",
      "ReduceL2@18 d[2,3] | keepdims=0 -> y", "ReduceL1@18 d~[2,3] - | noop_with_empty_axes=1 -> y",
      "ReduceSumSquare@18 d[2,3] i{0} -> y", "ReduceLogSum@18 d+[2,3] i{1} -> y",
      "ReduceLogSumExp@18 d[2,3] i{1} | keepdims=0 -> y", "ReduceLogSumExp@18 d[2,3] -> y",
      "ReduceSumSquare@18 d[2,3] - | noop_with_empty_axes=1 -> y",
      "ReduceMean@18 d[2,2] | noop_with_empty_axes=1 -> y", "ReduceL2@18 d{3,4,0,1}[2,2] i{1} -> y",
      "ReduceLogSum@13 d+[2,3] | axes=[-2] keepdims=0 -> y");
}

static void test_cumulative_sums(void) {
  JAC_CASES("CumSum@14 d[2,4] i=1 -> y", "CumSum@14 d[2,4] i=-1 | exclusive=1 -> y",
            "CumSum@14 d[2,4] i=0 | reverse=1 -> y",
            "CumSum@14 d[3] i=0 | reverse=1 exclusive=1 -> y");
}

OPI_TEST_MAIN("gradients of movement", OPI_TEST(test_shapes), OPI_TEST(test_joins),
              OPI_TEST(test_slices), OPI_TEST(test_pads), OPI_TEST(test_reductions),
              OPI_TEST(test_cumulative_sums))
