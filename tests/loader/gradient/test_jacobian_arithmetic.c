/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of arithmetic, activations and reductions against central differences. */
#include "tests/loader/gradient/jacobian.h"

static void test_two_inputs(void) {
  JAC_CASES("Add@13 d[2,3] d[2,3] -> y", "Add@13 d[2,1,3] d[4,1] -> y", "Add@13 d[2,3] d=0.5 -> y",
            "Add@6 d[2,3,2] d[3] | broadcast=1 axis=1 -> y", "Sub@13 d[3] d[2,3] -> y",
            "Sub@13 d=1 d[2,2] -> y", "Mul@13 d[2,3] d[3] -> y", "Mul@13 d[2,1] d[1,3] -> y",
            "Mul@13 d=2 d[1,2] -> y", "Div@13 d[2,3] d+[2,3] -> y", "Div@13 d[2,3] d+[3] -> y",
            "Div@13 d[3] d+[2,1,3] -> y", "Div@13 d=3 d+[2] -> y", "Sum@13 d[2,3] d[3] d=1 -> y",
            "Mean@13 d[2,3] d[3] d[2,1] -> y",
            "Mod@13 d{2.3,-1.2,3.1}[3] d{0.7,1.1,-2}[3] | fmod=1 -> y",
            "ms.BiasGelu@1 d[2,3] d[3] -> y");
}

static void test_pow(void) {
  JAC_CASES("Pow@13 d+[2,3] d[2,3] -> y", "Pow@13 d+[2,3] d[3] -> y", "Pow@13 d+[3] d[2,1] -> y",
            "Pow@13 d[2,3] c=2 -> y", "Pow@13 d{0,-1.5,2}[3] c=2 -> y",
            "Pow@13 d{0,-1.5,2}[3] c=3 -> y", "Pow@13 d{0,-1.5,2}[3] i=2 -> y",
            "Pow@13 d{0,-1.5,2}[3] i{2,3,1}[3] -> y",
            "Pow@13 d{-0.5,2,1.5}[3] c{-1,-2,0.5}[3] -> y", "Pow@13 d{0,3}[2] c=1 -> y",
            "Pow@13 d{0,3}[2] c=0 -> y", "Pow@13 d+[2] d=0.5 -> y", "Pow@13 c+[2,2] d[2] -> y",
            "Pow@13 d+[2,1] f{2,0.5} -> y");
}

static void test_extremes(void) {
  JAC_CASES("Max@13 d~[2,3] d~[2,3] -> y", "Max@13 d~[2,3] d~[3] d=0.02 -> y",
            "Min@13 d~[2,1] d~[1,3] -> y", "Min@13 d~[2,2] c=0.01 -> y",
            "Clip@13 d~[2,3] c=-0.21 c=0.22 -> y", "Clip@13 d~[2,3] c=-0.1 -> y",
            "Clip@13 d~[2,3] - c=0.1 -> y", "Clip@6 d~[5] | min=-0.2f max=0.19f -> y");
}

static void test_one_input(void) {
  JAC_CASES("Abs@13 d[2,3] -> y", "Neg@13 d[2,3] -> y", "Sqrt@13 d+[2,3] -> y",
            "Reciprocal@13 d+[2,3] -> y", "Exp@13 d[2,3] -> y", "Log@13 d+[2,3] -> y",
            "Sin@7 d[2,3] -> y", "Cos@7 d[2,3] -> y", "Tan@7 d[2,3] -> y", "Asin@7 d[3] -> y",
            "Acos@7 d[3] -> y", "Atan@7 d[3] -> y", "Sinh@9 d[3] -> y", "Cosh@9 d[3] -> y",
            "Asinh@9 d[3] -> y", "Acosh@9 d{1.2,2,3.5} -> y", "Atanh@9 d{-0.5,0.3,0.8} -> y",
            "Sign@13 d[2] -> y !nothing can be trained",
            "Floor@13 d[2] -> y !nothing can be trained", "Ceil@13 d[2] -> y !nothing",
            "Round@11 d[2] -> y !nothing");
}

static void test_activations(void) {
  JAC_CASES("Relu@14 d[3,4] -> y", "Sigmoid@13 d[3] -> y", "Tanh@13 d[3] -> y", "Erf@13 d[3] -> y",
            "Gelu@20 d[3,3] -> y", "Gelu@20 d[3,3] | approximate=$tanh -> y", "Swish@24 d[3] -> y",
            "Swish@24 d[3] | alpha=1.702f -> y", "Elu@6 d[4] | alpha=0.7f -> y", "Selu@6 d[4] -> y",
            "Selu@6 d[4] | alpha=1.5f gamma=0.8f -> y", "LeakyRelu@16 d[4] | alpha=0.2f -> y",
            "Mish@18 d[4] -> y", "HardSwish@14 d{-4,-1,0.5,2,5} -> y",
            "HardSigmoid@6 d{-4,-1,0.5,1.9,5} | alpha=0.3f beta=0.4f -> y", "Softplus@1 d[4] -> y",
            "Softsign@1 d[4] -> y", "ThresholdedRelu@10 d[5] | alpha=0.3f -> y",
            "Celu@12 d[4] | alpha=0.6f -> y", "PRelu@16 d[2,3] d[3] -> y",
            "PRelu@16 d[2,3,2] d[3,1] -> y", "PRelu@16 d[2,2] d=0.3 -> y",
            "ms.FastGelu@1 d[3,2] d[2] -> y", "ms.QuickGelu@1 d[4] | alpha=1.5f -> y",
            "ms.Gelu@1 d[4] -> y");
}

#define REDUCE_CASES(op, kind)                                                              \
  op "@18 d" kind "[2,3,2] i{1} -> y", op "@18 d" kind "[2,3] -> y",                        \
      op "@18 d" kind "[2,3,2] i{0,-1} | keepdims=0 -> y",                                  \
      op "@13 d" kind "[2,3] | axes=[-2] keepdims=0 -> y", op "@18 d" kind "[3] i{0} -> y", \
      op "@18 d" kind "[2,2] | noop_with_empty_axes=1 -> y"

static void test_reductions(void) {
  JAC_CASES(REDUCE_CASES("ReduceMean", ""), REDUCE_CASES("ReduceSum", ""),
            REDUCE_CASES("ReduceMax", "~"), REDUCE_CASES("ReduceMin", "~"),
            REDUCE_CASES("ReduceProd", ""), REDUCE_CASES("ReduceL1", "~"),
            REDUCE_CASES("ReduceL2", ""), REDUCE_CASES("ReduceLogSum", "+"),
            REDUCE_CASES("ReduceLogSumExp", ""), REDUCE_CASES("ReduceSumSquare", ""),
            "ReduceProd@18 d{0,2,3,4}[2,2] i{1} -> y", "ReduceProd@18 d{0,2,0}[3] -> y",
            "ReduceL2@18 d{3,4,0,1}[2,2] i{1} -> y");
}

static void test_cum_sum(void) {
  JAC_CASES("CumSum@14 d[2,3] i=1 -> y", "CumSum@14 d[2,3] i=0 | exclusive=1 -> y",
            "CumSum@14 d[4] i=-1 | reverse=1 -> y",
            "CumSum@11 d[2,3,2] i=1 | reverse=1 exclusive=1 -> y");
}

OPI_TEST_MAIN("gradients of arithmetic", OPI_TEST(test_two_inputs), OPI_TEST(test_pow),
              OPI_TEST(test_extremes), OPI_TEST(test_one_input), OPI_TEST(test_activations),
              OPI_TEST(test_reductions), OPI_TEST(test_cum_sum))
