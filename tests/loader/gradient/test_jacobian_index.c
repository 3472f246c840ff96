/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of reading and writing by index against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_gather(void) {
  JAC_CASES("Gather@13 d[4,3] i{0,-1,0,2}[2,2] -> y", "Gather@13 d[2,3,2] n{2,0,2} | axis=1 -> y",
            "Gather@13 d[2,3] i=-1 | axis=-1 -> y", "Gather@13 d[3] i{1,1,1,-2} -> y",
            "Gather@1 d[2,1] i{0,0} | axis=1 -> y");
}

static void test_gather_elements(void) {
  JAC_CASES("GatherElements@13 d[3,2] i{0,1,2,-1,0,0}[3,2] -> y",
            "GatherElements@13 d[3,4] i{3,3,-4}[3,1] | axis=1 -> y",
            "GatherElements@11 d[2,3] n{1,1}[1,2] | axis=0 -> y");
}

static void test_gather_nd(void) {
  JAC_CASES("GatherND@13 d[3,2] i{0,1,2,-2,0,1}[3,2] -> y",
            "GatherND@13 d[3,2] i{2,2,-1}[3,1] -> y",
            "GatherND@12 d[2,3,2] i{2,0,1,1}[2,2,1] | batch_dims=1 -> y",
            "GatherND@12 d[2,2,3] n{2,-1,0,0}[2,2,1] | batch_dims=2 -> y",
            "GatherND@12 d[2,2,3] i{1,2,0,-1}[2,1,2] | batch_dims=1 -> y",
            "GatherND@11 d[2,3] i{0,1}[2,1] -> y");
}

static void test_scatter(void) {
  JAC_CASES(
      "ScatterElements@16 d[3,3] i{0,2,1,1,0,-1}[2,3] d[2,3] -> y",
      "ScatterElements@16 d[2,4] i{3,0}[2,1] d[2,1] | axis=1 -> y",
      "ScatterElements@16 d[4] i{1,1,-3,2} d[4] | axis=0 -> y",
      "ScatterElements@16 d[4] i{1,1,-3,2} d[4] | axis=0 reduction=$add -> y",
      "ScatterElements@18 d[2,2] i{0,0}[1,2] d[1,2] | reduction=$mul -> y !reduction 'mul' has no",
      "ScatterND@16 d[4,2] i{1,3}[2,1] d[2,2] -> y",
      "ScatterND@16 d[3,2] i{2,0,2}[3,1] d[3,2] -> y",
      "ScatterND@16 d[3,2] i{0,1,2,-1,0,-1}[3,2] d[3] -> y",
      "ScatterND@16 d[3,2] i{2,0,-1}[3,1] d[3,2] | reduction=$add -> y",
      "ScatterND@16 d[3,2] i{0,1,2,1,0,1}[3,2] c[3] -> y",
      "ScatterND@16 c[3,2] i{0,1,2,1,0,0}[3,2] d[3] | reduction=$none -> y",
      "ScatterND@18 d[3] i{0}[1,1] d[1] | reduction=$max -> y !reduction 'max' has no",
      "Scatter@9 d[3,2] i{0,2}[1,2] d[1,2] -> y");
}

static void test_tensor_scatter(void) {
  JAC_CASES("TensorScatter@24 d[2,5,2] d[2,2,2] i{3,0} -> y",
            "TensorScatter@24 d[2,4,2] d[2,3,2] i{3,6} | mode=$circular -> y",
            "TensorScatter@24 d[2,2,4] d[2,2,3] i{1,0} | axis=-1 -> y",
            "TensorScatter@24 c[2,5,2] d[2,2,2] i{2,1} -> y",
            "TensorScatter@24 d[2,5,2] c[2,2,2] i{2,1} -> y",
            "TensorScatter@24 d[2,5,2] d[2,5,2] -> y");
}

static void test_one_hot(void) {
  JAC_CASES("OneHot@11 i{0,2,-1,5} i=3 d[2] -> y", "OneHot@11 i{1,0}[2,1] i=2 d[2] | axis=0 -> y");
}

static void test_top_k(void) {
  JAC_CASES("TopK@11 d~[3,4] i{2} -> yn", "TopK@11 d~[3,4] i{2} | axis=0 largest=0 -> y-",
            "TopK@11 d~[5] i{5} | sorted=0 -> y", "TopK@10 d~[2,3] i{1} -> y");
}

static void test_einsum(void) {
  JAC_CASES("Einsum@12 d[2,3] d[3,4] | equation=$ij,jk->ik -> y",
            "Einsum@12 d[2,3] | equation=$ij->ji -> y", "Einsum@12 d[2,3] | equation=$ij-> -> y",
            "Einsum@12 d[2,3] | equation=$ij->j -> y", "Einsum@12 d[3,3] | equation=$ii->i -> y",
            "Einsum@12 d[3,3] | equation=$ii -> y", "Einsum@12 d[2,3,2] | equation=$iji->ij -> y",
            "Einsum@12 d[2,2,2] | equation=$iii->i -> y",
            "Einsum@12 d[2,3] d[3,2] d[2,2] | equation=$ij,jk,kl->il -> y",
            "Einsum@12 d[2,3] d[4] | equation=$ij,k->i -> y",
            "Einsum@12 d[2,3] d[3] | equation=$ij,j->ij -> y",
            "Einsum@12 d[2,2] d[2,2] | equation=$ii,jj->ij -> y",
            "Einsum@12 d[2,1,3] d[2,4,3] | equation=$b...i,b...i->b... -> y",
            "Einsum@12 d[2,3,4] d[2,4,2] | equation=$...ij,...jk->...ik -> y",
            "Einsum@12 d[] d[2] | equation=$,i->i -> y",
            "Einsum@12 d[2,3,2] d[3,2] | equation=$bhd,hd->bh -> y");
}

OPI_TEST_MAIN("gradients by index", OPI_TEST(test_gather), OPI_TEST(test_gather_elements),
              OPI_TEST(test_gather_nd), OPI_TEST(test_scatter), OPI_TEST(test_tensor_scatter),
              OPI_TEST(test_one_hot), OPI_TEST(test_top_k), OPI_TEST(test_einsum))
