/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of arithmetic and activations against central differences. At a tie of two a central
 * difference is the half that the rules give.
 */
#include "tests/loader/gradient/jacobian.h"

static void test_two_inputs(void) {
  JAC_CASES("Add@14 d[2,3] d[2,3] -> y", "Add@14 d[2,3] d[3] -> y", "Add@14 d[3] d[2,3] -> y",
            "Add@14 d[2,1,3] d[4,1] -> y", "Add@14 d[2,3] d=0.5 -> y", "Add@14 d[2,3] d[1,1] -> y",
            "Sub@14 d[2,3] d[2,1] -> y", "Sub@14 d=1.5 d[2,2] -> y", "Sub@14 c[2,3] d[3] -> y",
            "Mul@14 d[2,3] d[2,3] -> y", "Mul@14 d[2,1,3] d[4,1] -> y", "Mul@14 d[2,3] c[3] -> y",
            "Mul@14 d[1] d[2,2] -> y", "Div@14 d[2,3] d+[2,3] -> y", "Div@14 d[3] d+[2,3] -> y",
            "Div@14 d[2,3] d+[1,3] -> y", "Div@14 c[2,3] d+=2.5 -> y", "Div@6 d[2,3] d+[2,3] -> y",
            "Mod@13 d{3.5,-2.25,7.5} d{2,1.5,-2} | fmod=1 -> y",
            "Mod@13 d{3.5,-2.25} d{2} | fmod=1 -> y",
            "Add@6 d[2,3,2] d[3] | broadcast=1 axis=1 -> y");
}

static void test_power(void) {
  JAC_CASES("Pow@15 d[2,3] c=2 -> y", "Pow@15 d{0,-1,2} c=2 -> y", "Pow@15 d[2,3] c=3 -> y",
            "Pow@15 d+[2,3] c=0.5 -> y", "Pow@15 d[2,3] c=1 -> y", "Pow@15 d[2,3] c=0 -> y",
            "Pow@15 d+[2,3] c=-1 -> y", "Pow@15 d+[2,3] c=-0.5 -> y", "Pow@15 d[2,3] i=2 -> y",
            "Pow@15 d[2,3] i=5 -> y", "Pow@15 d[2,2] i{2,3} -> y", "Pow@15 d+[2,3] f{1.5,2,0} -> y",
            "Pow@15 d{0,-1,2} i{0,1,2} -> y", "Pow@15 d+[2,3] d[2,3] -> y",
            "Pow@15 d+[2,3] d[3] -> y", "Pow@15 c+[3] d[2,3] -> y", "Pow@15 d+[3] d=1.5 -> y",
            "Pow@15 c{0,2,3} d{2,1.5,-1} -> y", "Pow@15 d+=1.5 c[2,2] -> y",
            "Pow@13 d{-0.5,2,1.5}[3] c{-1,-2,0.5}[3] -> y",
            "Pow@13 d{0,-1.5,2}[3] i{2,3,1}[3] -> y", "Pow@13 d+[3] d[2,1] -> y");
}

static void test_extremes(void) {
  JAC_CASES("Max@13 d~[2,3] d~[2,3] -> y", "Max@13 d{1,2,3} d{1,2.5,2} -> y",
            "Max@13 d~[2,3] c=0 -> y", "Max@13 d~[3] d~[2,3] -> y", "Max@13 d~[2] d~[2] d~[2] -> y",
            "Min@13 d~[2,3] d~[2,3] -> y", "Min@13 d{1,2,3} d{1,2.5,2} -> y",
            "Min@13 d~[2,1] d~[2,3] -> y", "Sum@13 d[2,3] d[3] d[2,1] -> y",
            "Mean@13 d[2,3] d[3] d=2 -> y", "Clip@13 d~[3,4] c=-0.5 c=0.5 -> y",
            "Clip@13 d~[3,4] - c=0.31 -> y", "Clip@13 d~[3,4] c=0.01 -> y",
            "Clip@6 d~[3,4] | max=0.25f -> y");
}

static void test_one_input(void) {
  JAC_CASES("Abs@13 d~[2,3] -> y", "Abs@13 d{0,1} -> y", "Neg@13 d[2,3] -> y",
            "Sqrt@13 d+[2,3] -> y", "Reciprocal@13 d+[2,3] -> y", "Exp@13 d[2,3] -> y",
            "Log@13 d+[2,3] -> y", "Sin@7 d[2,3] -> y", "Cos@7 d[2,3] -> y", "Sinh@9 d[2,3] -> y",
            "Cosh@9 d[2,3] -> y", "Tan@7 d[2,3] -> y", "Asin@7 d{0.1,-0.5,0.7} -> y",
            "Acos@7 d{0.1,-0.5,0.7} -> y", "Atan@7 d[2,3] -> y", "Asinh@9 d[2,3] -> y",
            "Acosh@9 d{1.5,2,3} -> y", "Atanh@9 d{0.1,-0.5,0.7} -> y", "Erf@13 d[2,3] -> y",
            "Sign@13 d[2,3] -> y !nothing can be trained",
            "Floor@13 d[2,3] -> y !nothing can be trained",
            "Ceil@13 d[2,3] -> y !nothing can be trained",
            "Round@11 d[2,3] -> y !nothing can be trained", "Cast@13 d[2,3] | to=11 -> y");
}

static void test_activations(void) {
  JAC_CASES("Relu@14 d~[3,4] -> y", "Sigmoid@13 d[3,4] -> y", "Tanh@13 d[3,4] -> y",
            "Gelu@20 d[3,4] -> y", "Gelu@20 d[3,4] | approximate=$tanh -> y",
            "Swish@24 d[3,4] -> y", "Swish@24 d[3,4] | alpha=1.702f -> y",
            "ms.QuickGelu@1 d[3,4] -> y", "ms.QuickGelu@1 d[3,4] | alpha=2f -> y",
            "ms.FastGelu@1 d[3,4] d[4] -> y", "ms.BiasGelu@1 d[3,4] d[4] -> y",
            "ms.Gelu@1 d[3,4] -> y", "Elu@6 d~[3,4] -> y", "Elu@6 d~[3,4] | alpha=0.5f -> y",
            "Selu@6 d~[3,4] -> y", "Selu@6 d~[3,4] | alpha=2f gamma=0.5f -> y",
            "LeakyRelu@16 d~[3,4] -> y", "LeakyRelu@16 d~[3,4] | alpha=0.3f -> y",
            "Mish@18 d[3,4] -> y", "HardSwish@14 d[3,4] -> y", "HardSigmoid@6 d~[3,4] -> y",
            "HardSigmoid@6 d~[3,4] | alpha=0.7f beta=0.4f -> y", "Softplus@1 d[3,4] -> y",
            "Softsign@1 d~[3,4] -> y", "ThresholdedRelu@10 d~[3,4] | alpha=0.2f -> y",
            "Celu@12 d~[3,4] | alpha=1f -> y", "PRelu@16 d~[3,4] d[4] -> y",
            "PRelu@16 d~[2,3,2] d[3,1] -> y", "PRelu@16 d~[3] d=0.2 -> y",
            "PRelu@6 d~[2,3,2] d[3] -> y");
}

/* Both branches, broadcast or not; the condition gets nothing. */
static void test_where(void) {
  JAC_CASES("Where@16 o{1,0,1,1,0,0}[2,3] d[2,3] d[2,3] -> y",
            "Where@16 o{1,0,1}[3] d[2,1] d[3] -> y", "Where@16 o{1,0}[2,1] d=2 d[1,3] -> y",
            "Where@16 o{1,0,1}[3] d[3] c=0 -> y", "Where@16 o{1,0,1}[3] c=0 d[1] -> y",
            "Where@16 o=1 d[2] d[3,1] -> y");
}

OPI_TEST_MAIN("gradients element by element", OPI_TEST(test_two_inputs), OPI_TEST(test_power),
              OPI_TEST(test_extremes), OPI_TEST(test_one_input), OPI_TEST(test_activations),
              OPI_TEST(test_where))
