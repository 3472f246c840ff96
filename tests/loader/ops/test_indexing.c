/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing by index, reductions, generators: forms, shapes, axis rule, hostile input. */
#include "tests/loader/cases.h"

static void test_gather(void) {
  TEST_CASES("Gather@1 f[4,3] i[2,5] -> Gather f[2,5,3]",
             "Gather@11 f[4,3] n[] | axis=-1 -> Gather f[4]",
             "Gather@13 f[4,3] i{0,-4,3} -> Gather f[3,3]",
             "Gather@13 f[4,3] i{4} -> !INVALID index 4 in 't1'",
             "Gather@13 f[4,3] i{-5} -> !INVALID index -5",
             "Gather@13 f[4] i[] | axis=1 -> !INVALID axis 1",
             "Gather@13 f[4] f[2] -> !INVALID needed is int32 or int64",
             "Gather@13 f[9,3] i[4,2]^0 -> Gather f[4,2,3]^0",
             "Gather@13 f[5,4]^1 i[2,2] -> Gather f[2,2,4]^2",
             "Gather@13 f[4,5]^0 i[2] | axis=1 -> Gather f[4,2]^0",
             "Gather@13 f[4,5]^0 i[2] -> !carry entries of dimension 0 of 't0' are picked",
             "Gather@13 f[4,5]^0 i[4]^0 -> !carry both data and indices",
             "Gather@13 f[6]^0:1:3 i{1,4} -> Gather f[2]^0",
             "Gather@13 f[6]^0:1:3 i{1,5} -> !carry picked");
}

static void test_gather_elements(void) {
  TEST_CASES("GatherElements@11 f[4,3] i[2,3] -> GatherElements f[2,3]",
             "GatherElements@13 f[4,3]^0 i[4,2]^0 | axis=-1 -> GatherElements f[4,2]^0",
             "GatherElements@11 f[4,3] i[2] -> !INVALID 't0' has rank 2, 't1' has 1",
             "GatherElements@11 f[4,3] i[2,4] -> !INVALID dimension 1 of 't1' is 4",
             "GatherElements@13 f[4,3]^0 i[4,3]^0 -> !carry dimension 0",
             "GatherElements@13 f#[4,3] i[4,2]^0 | axis=1 -> GatherElements f[4,2]^0");
}

static void test_gather_nd(void) {
  TEST_CASES("GatherND@11 f[4,3] i[2,1] -> GatherND f[2,3]",
             "GatherND@12 f[4,3] i[5,2] -> GatherND f[5]",
             "GatherND@12 f[4,3,2] i[4,5,1] | batch_dims=1 -> GatherND f[4,5,2]",
             "GatherND@11 f[4] i#[3,1] -> GatherND f[3]",
             "GatherND@11 f[0] i#[3,1] -> !INVALID index 0 in 't1' is outside dimension 0",
             "GatherND@11 f[4] i[2,2] -> !INVALID 2 components", "GatherND@11 f[4] i[] -> !INVALID",
             "GatherND@12 f[4,3] i[2,1] | batch_dims=1 -> !INVALID batch dimension 0 is 4",
             "GatherND@12 f[4,3,2]^0 i[4,5,1]^0 | batch_dims=1 -> GatherND f[4,5,2]^0",
             "GatherND@12 f[9,3] i[4,2,1]^0 -> GatherND f[4,2,3]^0",
             "GatherND@12 f[9,3]^1 i[4,2,1] -> GatherND f[4,2,3]^2",
             "GatherND@12 f[4,3]^0 i[5,2] -> !carry entries of dimension 0");
}

/* Indices that count along dimensions of their own: [[b, k]] for b in 0..1, k in 0..2. */
static void test_counted_indices_are_movement(void) {
  static const int64_t counted[2][1][3][2] = {{{{0, 0}, {0, 1}, {0, 2}}},
                                              {{{1, 0}, {1, 1}, {1, 2}}}};
  static const int64_t shape[2] = {2, 3}, index_shape[4] = {2, 1, 3, 2};
  test_graph t;
  opi_bound *bound = NULL;
  uint32_t in[2], out = OPIPE_NONE;
  opi_carry carry[32];
  const opi_carry held = {0, 0, 1, 1};
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&t);
  in[0] = test_input(&t, "mask", OPIPE_BOOL, shape, 2);
  in[1] = test_known(&t, "index", OPIPE_INT64, index_shape, 4, counted);
  test_node(&t, "GatherND", 13, in, 2, NULL, 0, &out, 1);
  test_output(&t, out);
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  OPI_ASSERT_INT(test_count(bound->graph, "GatherND"), 0);
  OPI_ASSERT_INT(test_count(bound->graph, "Reshape"), 1);
  OPI_ASSERT_OK(opi_carry_axis(bound->graph, NULL, &held, carry, &err), &err);
  OPI_ASSERT_INT(carry[bound->graph->outputs[0]].axis, 0);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_scatter(void) {
  TEST_CASES("Scatter@9 f[4,3] i[2,3] f[2,3] -> ScatterElements f[4,3]",
             "ScatterElements@11 f[4,3] i[2,3] f[2,3] | axis=-2 -> ScatterElements f[4,3]",
             "ScatterElements@18 f[4,3] i[2,3] f[2,3] | reduction=$max -> ScatterElements f[4,3]",
             "ScatterElements@18 f[4,3] i[2,3] f[2,3] | reduction=$odd -> !UNSUPPORTED 'reduction' "
             "is 'odd'",
             "ScatterElements@11 f[4,3] i[2,3] f[2,2] -> !INVALID do not fit",
             "ScatterElements@11 f[4,3] i[2,3] d[2,3] -> !INVALID of float64 do not fit",
             "ScatterElements@13 f[4,3]^0 i[4,1]^0 f[4,1]^0 | axis=1 -> ScatterElements f[4,3]^0",
             "ScatterElements@13 f[4,3]^0 i[4,1]^0 f[4,1]^0 -> !carry dimension 0 are written",
             "ScatterND@11 f[4,3] i[2,1] f[2,3] -> ScatterND f[4,3]",
             "ScatterND@16 f[4,3] i[2,2] f[2] | reduction=$add -> ScatterND f[4,3]",
             "ScatterND@11 f[4,3] i[2,3] f[2] -> !INVALID do not fit",
             "ScatterND@11 f[4,3] i[2,1] f[2,4] -> !INVALID do not fit",
             "ScatterND@13 f[5,4]^1 i[2,1] f[2,4]^1 -> ScatterND f[5,4]^1",
             "ScatterND@13 f#[5,4] i[2,1] f[2,4]^1 -> ScatterND f[5,4]^1",
             "ScatterND@13 f[5,4]^0 i[2,1] f[2,4] -> !carry entries of dimension 0 are written");
}

static void test_tensor_scatter(void) {
  TEST_CASES(
      "TensorScatter@24 f[2,3,7,4] f[2,3,2,4] i[2] -> TensorScatter f[2,3,7,4]",
      "TensorScatter@24 f[2,3,7,4] f[2,3,2,4] -> TensorScatter f[2,3,7,4]",
      "TensorScatter@24 h[2,7,4] h[2,7,1] i[2] | axis=-1 mode=$circular -> TensorScatter h[2,7,4]",
      "TensorScatter@24 f[2,7,4] f[2,3,4] i{4,0} -> TensorScatter f[2,7,4]",
      "TensorScatter@24 f[2,7,4] f[2,3,4] i{0,5} -> !INVALID row 1 is written from 5 on, 0 to 4",
      "TensorScatter@24 f[2,7,4] f[2,3,4] i{0,9} | mode=$circular -> TensorScatter f[2,7,4]",
      "TensorScatter@24 f[2,7,4] f[2,8,4] i[2] -> !INVALID do not fit along axis 1",
      "TensorScatter@24 f[2,7,4] d[2,3,4] i[2] -> !INVALID of float64 do not fit",
      "TensorScatter@24 f[2,7,4] f[2,3,4] i[3] -> !INVALID has 2 rows",
      "TensorScatter@24 f[2,7,4] f[2,7,4] i[2] | axis=0 -> !INVALID axis is 0",
      "TensorScatter@24 f[2,7,4] f[2,3,4] i[2] | mode=$odd -> !UNSUPPORTED attribute 'mode' is "
      "'odd'",
      "TensorScatter@24 f[4,7,2]^0 f[4,3,2]^0 i[4]^0 -> TensorScatter f[4,7,2]^0",
      "TensorScatter@24 f[4,7,2]^0 f[4,3,2]^0 -> TensorScatter f[4,7,2]^0",
      "TensorScatter@24 f#[4,7,2] f[4,3,2]^0 i[4]^0 -> TensorScatter f[4,7,2]^0",
      "TensorScatter@24 f[4,7,2]^2 f[4,3,2]^2 i[4] -> TensorScatter f[4,7,2]^2",
      "TensorScatter@24 f[4,7,2]^0 f[4,3,2] i[4] -> !carry differs along it",
      "TensorScatter@24 f[4,7,2] f[4,3,2]^1 i[4] -> !carry entries of dimension 1 are written");
}

static void test_one_hot_and_top_k(void) {
  TEST_CASES("OneHot@9 i[2,3] i=5 f{0,1} -> OneHot f[2,3,5]",
             "OneHot@11 i[2,3]^1 f=5 f{0,1} | axis=1 -> !UNSUPPORTED",
             "OneHot@11 i[2,3]^1 i{5} f{0,1} | axis=1 -> OneHot f[2,5,3]^2",
             "OneHot@11 i[2] i=0 f{0,1} -> !INVALID depth 't1'",
             "OneHot@11 i[2] i[] f{0,1} -> !UNSUPPORTED 't1'",
             "OneHot@11 i[2] i=3 f{0} -> !INVALID values 't2'",
             "TopK@1 f[2,7] | k=3 -> TopK f[2,3] i[2,3]",
             "TopK@10 f[2,7]^0 i{3} -> TopK f[2,3]^0 i[2,3]^0",
             "TopK@11 f[2,7] i{2} | axis=0 largest=0 -> TopK f[2,7] i[2,7]",
             "TopK@11 f[2,7] i{8} -> !INVALID k is 8, dimension 1 of 't0' is 7",
             "TopK@11 f[2,7]^1 i{2} -> !carry dimension 1 of 't0' is sorted",
             "TopK@11 f[2,7] i[1] -> !UNSUPPORTED needs the value of graph input 't1'");
}

static void test_generators_are_constants(void) {
  TEST_CASES("Range@11 i=2 i=9 i=3 -> const i[3]", "Range@11 f=0 f=1 f=0.25 -> const f[4]",
             "Range@11 n=5 n=0 n=-2 -> const n[3]", "Range@11 i=5 i=0 i=1 -> const i[0]",
             "Range@11 i=0 i=5 i=0 -> !INVALID step is 0",
             "Range@11 i=0 i=9223372036854775807 i=1 -> !LIMIT elements",
             "Range@11 i=0 i[] i=1 -> !UNSUPPORTED needs the value of graph input 't1'",
             "Range@11 i=0 f=3 i=1 -> !INVALID 't1' has float32",
             "ConstantOfShape@9 i{2,3} -> Expand f[2,3]", "ConstantOfShape@9 i{} -> const f[]",
             "ConstantOfShape@9 i{-1} -> !INVALID entry 0 is -1",
             "ConstantOfShape@9 i{4611686018427387904,8} -> !INVALID no valid size",
             "EyeLike@9 f[3,4] -> const f[3,4]", "EyeLike@9 f[3,4] | dtype=7 k=1 -> const i[3,4]",
             "EyeLike@9 f[3] -> !INVALID rank 1", "NonZero@9 i{0,5,0,7} -> const i[1,2]",
             "NonZero@13 f[4] -> !UNSUPPORTED needs the value of graph input 't0'");
}

static void test_range_and_eye_content(void) {
  test_graph t;
  opi_bound *bound = NULL;
  uint32_t in[3], out = OPIPE_NONE;
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t from[3] = {7, 1, -2};
  test_open(&t);
  for (uint32_t i = 0; i < 3; ++i)
    in[i] = test_known(&t, NULL, OPIPE_INT64, NULL, 0, &from[i]);
  test_node(&t, "Range", 11, in, 3, NULL, 0, &out, 1);
  test_output(&t, out);
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  const opi_node *node = &bound->graph->nodes[0];
  const int64_t wanted[3] = {7, 5, 3};
  OPI_ASSERT_BITS(bound->graph->values[node->in[0]].data, wanted, 3, OPIPE_INT64);
  opi_bound_free(bound);
  test_close(&t);
}

static void test_reductions(void) {
  TEST_CASES("ReduceMean@1 f[2,3,4] | axes=[1] -> ReduceMean f[2,1,4]",
             "ReduceMean@11 f[2,3,4] | axes=[-1,0] keepdims=0 -> ReduceMean f[3]",
             "ReduceMean@18 f[2,3,4] i{-1} -> ReduceMean f[2,3,1]",
             "ReduceSum@1 f[2,3] -> ReduceSum f[1,1]",
             "ReduceSum@13 f[2,3] i{} -> ReduceSum f[1,1]",
             "ReduceSum@13 f[2,3] i{} | noop_with_empty_axes=1 -> alias f[2,3]",
             "ReduceL1@18 f[2,3] | noop_with_empty_axes=1 -> ReduceL1 f[2,3]",
             "ReduceMax@20 o[2,3] i{1} | keepdims=0 -> ReduceMax o[2]",
             "ReduceProd@13 i[2,3] | axes=[0] -> ReduceProd i[1,3]",
             "ReduceL2@13 f[2,3] -> ReduceL2 f[1,1]",
             "ReduceSumSquare@18 f[2,3] i{1} -> ReduceSumSquare f[2,1]",
             "ReduceLogSum@18 f[2,3] -> ReduceLogSum f[1,1]",
             "ReduceLogSumExp@18 f[2] | keepdims=0 -> ReduceLogSumExp f[]",
             "ReduceMin@13 f[2,3] | axes=[2] -> !INVALID axis 2 is outside rank 2 of 't0'",
             "ReduceMin@18 f[2,3] i[1] -> !UNSUPPORTED needs the value of graph input 't1'",
             "ReduceMean@13 f[4,3,2]^0 | axes=[1] keepdims=0 -> ReduceMean f[4,2]^0",
             "ReduceMean@13 f[4,3,2]^2 | axes=[1] keepdims=0 -> ReduceMean f[4,2]^1",
             "ReduceMean@13 f[4,3]^0 | axes=[0] -> !carry dimension 0 of 't0' is reduced",
             "ReduceMean@13 f[4,3]^0 -> !carry dimension 0 of 't0' is reduced");
  TEST_CASES(
      "ArgMax@1 f[2,3] -> ArgMax i[1,3]", "ArgMin@13 f[2,3] | axis=-1 keepdims=0 -> ArgMin i[2]",
      "ArgMax@12 f[4,3]^0 | axis=1 keepdims=0 -> ArgMax i[4]^0",
      "ArgMax@12 f[0,3] -> !INVALID is empty",
      "ArgMax@12 f[3,4]^1 | axis=0 keepdims=0 -> ArgMax i[4]^0",
      "ArgMax@12 f[4,3]^0 -> !carry is reduced", "CumSum@11 i[2,3] n=1 -> CumSum i[2,3]",
      "CumSum@14 f[2,3]^0 i{-1} | reverse=1 -> CumSum f[2,3]^0",
      "CumSum@14 f[2,3] i=2 -> !INVALID axis 2", "CumSum@14 f[2,3]^0 i=0 -> !carry summed along",
      "CumSum@14 o[2,3] i=0 -> !INVALID has type bool");
}

OPI_TEST_MAIN("indexing", OPI_TEST(test_gather), OPI_TEST(test_gather_elements),
              OPI_TEST(test_gather_nd), OPI_TEST(test_counted_indices_are_movement),
              OPI_TEST(test_scatter), OPI_TEST(test_tensor_scatter),
              OPI_TEST(test_one_hot_and_top_k), OPI_TEST(test_generators_are_constants),
              OPI_TEST(test_range_and_eye_content), OPI_TEST(test_reductions))
