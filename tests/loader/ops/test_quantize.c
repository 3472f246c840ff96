/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of few bits: what their operators become, what is refused, and how they carry an axis. */
#include "tests/loader/cases.h"

static void test_matmul_of_few_bits(void) {
  TEST_CASES(
      "ms.MatMulNBits@1 f[2,3,33] u[5,3,8] f[15] | K=33 N=5 block_size=16 bits=4 -> FusedMatMul "
      "f[2,3,5]",
      "ms.MatMulNBits@1 f[2,16]^0 u[4,1,16] f[4] u[4] - f[4] | K=16 N=4 block_size=16 bits=8 -> "
      "Add f[2,4]^0",
      "ms.MatMulNBits@1 h[2,64] u[4,2,8] h[4,2] u[4,1] | K=64 N=4 block_size=32 bits=2 -> Cast "
      "h[2,4]",
      "ms.MatMulNBits@1 f[2,32] u[4,2,8] f[8] f[8] | K=32 N=4 block_size=16 -> FusedMatMul f[2,4]",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] f[3] | K=16 N=4 block_size=16 bits=4 -> !INVALID 't2' "
      "(scales) has 3",
      "ms.MatMulNBits@1 f[2,16] u[4,1,7] f[4] | K=16 N=4 block_size=16 bits=4 -> !INVALID 't1' has "
      "shape [4, 1, 7]",
      "ms.MatMulNBits@1 f[2,16] c[4,1,8] f[4] | K=16 N=4 block_size=16 bits=4 -> !INVALID 't1'",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] h[4] | K=16 N=4 block_size=16 bits=4 -> !INVALID float16",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] f[4] u[5] | K=16 N=4 block_size=16 bits=4 -> !INVALID "
      "'t3' (zero_points) has 5",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] f[4] - n[16] | K=16 N=4 block_size=16 bits=4 -> "
      "!UNSUPPORTED 't3' (g_idx)",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] f[4] | K=16 N=4 block_size=16 bits=5 -> !INVALID bits is "
      "5, not 2, 4 or 8",
      "ms.MatMulNBits@1 f[2,16] u[4,1,8] f[4] | K=16 N=4 block_size=24 bits=4 -> !INVALID "
      "block_size is 24",
      "ms.MatMulNBits@1 f[2,15] u[4,1,8] f[4] | K=16 N=4 block_size=16 bits=4 -> !INVALID axis 1 "
      "must be 16 (K)");
}

static void test_dequantize_linear(void) {
  TEST_CASES(
      "DequantizeLinear@13 c[4,6] f[6] c[6] | axis=-1 -> DequantizeLinear f[4,6]",
      "DequantizeLinear@10 u[4,6] f[] u[] -> DequantizeLinear f[4,6]",
      "DequantizeLinear@13 u[4,6]^0 f[] u[] -> DequantizeLinear f[4,6]^0",
      "DequantizeLinear@19 n[4] h[] -> DequantizeLinear h[4]",
      "DequantizeLinear@21 q[5,6] f[2,6] q[2,6] | axis=0 block_size=4 -> DequantizeLinear f[5,6]",
      "DequantizeLinear@23 c[4] f[1] | output_dtype=10 -> Cast h[4]",
      "DequantizeLinear@13 c[4,6]^1 f[6] | axis=1 -> !carry its scales follow that axis",
      "DequantizeLinear@13 c[4,6] f[4] | axis=1 -> !INVALID 't1' (scale) has shape [4]",
      "DequantizeLinear@21 q[5,6] f[3,6] | axis=0 block_size=4 -> !INVALID blocks of 4",
      "DequantizeLinear@13 c[4,6] f[6] c[5] | axis=1 -> !INVALID 't2' (zero point) has 5",
      "DequantizeLinear@13 c[4,6] f[6] u[6] | axis=1 -> !INVALID 't2' is of type uint8",
      "DequantizeLinear@13 f[4,6] f[6] | axis=1 -> !UNSUPPORTED 't0' (x) is of type float32",
      "DequantizeLinear@13 c[4,6] f[6] | axis=2 -> !INVALID axis");
}

static void test_quantize_linear(void) {
  TEST_CASES(
      "QuantizeLinear@13 f[4,6] f[6] c[6] | axis=-1 -> QuantizeLinear c[4,6]",
      "QuantizeLinear@10 f[4,6]^0 f[] -> QuantizeLinear u[4,6]^0",
      "QuantizeLinear@21 h[5,6] h[2,6] q[2,6] | axis=0 block_size=4 -> QuantizeLinear q[5,6]",
      "QuantizeLinear@21 f[4] f[] | output_dtype=3 -> QuantizeLinear c[4]",
      "QuantizeLinear@21 f[4] f[] u[] | output_dtype=3 -> !UNSUPPORTED output_dtype 3",
      "QuantizeLinear@21 f[4] f[] | output_dtype=17 -> !UNSUPPORTED output_dtype 17",
      "QuantizeLinear@13 f[4,6]^1 f[6] | axis=1 -> !carry its scales follow that axis",
      "QuantizeLinear@13 u[4] f[] -> !INVALID 't0' (x) is of type uint8",
      "DynamicQuantizeLinear@11 f[2,3] -> DynamicQuantizeLinear u[2,3] f[] u[]");
}

static void test_integer_products(void) {
  TEST_CASES("MatMulInteger@10 u[2,3,4] c[4,5] u[] c[] -> MatMulInteger n[2,3,5]",
             "MatMulInteger@10 u[2,4]^0 u[4,5] u[1] u[5] -> MatMulInteger n[2,5]^0",
             "MatMulInteger@10 c[2,4]^1 c[4,5] -> !carry summed over",
             "MatMulInteger@10 u[2,4] c[4,5] u[2] -> !UNSUPPORTED 't2' has 2 zero points",
             "MatMulInteger@10 u[2,4] c[4,5] u[] u[] -> !INVALID 't3' is of type uint8",
             "MatMulInteger@10 u[2,4] f[4,5] -> !INVALID 't1'",
             "MatMulInteger@10 u[2,4] c[3,5] -> !INVALID 4 and 3 along the summed axis");
}

static void test_integer_convolutions(void) {
  TEST_CASES(
      "ConvInteger@10 u[2,3,8,9]^0 c[5,3,3,3] u[] c[5] | pads=[1,1,1,1] -> ConvInteger "
      "n[2,5,8,9]^0",
      "ConvInteger@10 c[1,4,7] u[6,2,3] | group=2 strides=[2] -> ConvInteger n[1,6,3]",
      "ConvInteger@10 u[2,3,8,9] c[5,3,3,3] u[] c[4] -> !UNSUPPORTED 't3' has 4 zero points",
      "ConvInteger@10 u[2,3,8,9] c[5,3,3,3] u[2] -> !UNSUPPORTED 't2' has 2 zero points",
      "ConvInteger@10 u[2,3,8,9] c[5,2,3,3] -> !INVALID 't1'",
      "ConvInteger@10 u[2,3,8,9] f[5,3,3,3] -> !INVALID 't1'",
      "ConvInteger@10 u[2,3,8,9]^1 c[5,3,3,3] -> !carry depend on each other");
}

/* QLinear operators and their kin become DequantizeLinear, the operator, QuantizeLinear. */
static void test_operators_on_codes(void) {
  TEST_CASES(
      "QLinearMatMul@10 u[2,4]^0 f[] u[] c[4,5] f[5] c[5] f[] u[] -> QuantizeLinear u[2,5]^0",
      "QLinearMatMul@21 u[2,4] f[2] u[2] c[4,5] f[] c[] f[] c[] -> QuantizeLinear c[2,5]",
      "QLinearMatMul@10 u[2,4] f[] u[] c[3,5] f[] c[] f[] u[] -> !INVALID 4 and 3",
      "QLinearConv@10 u[2,3,8,9]^0 f[] u[] c[5,3,3,3] f[5] c[] f[] u[] n[5] | pads=[1,1,1,1] -> "
      "QuantizeLinear u[2,5,8,9]^0",
      "QLinearConv@10 u[2,3,8,9] f[] u[] c[5,3,3,3] f[] c[] f[] u[] f[5] -> !INVALID 't8' is of "
      "type float32",
      "ms.QLinearConv@1 u[2,8,9,3] f[] u[] c[5,3,3,3] f[] c[] f[] u[] | channels_last=1 -> "
      "QuantizeLinear u[2,6,7,5]",
      "ms.QGemm@1 u[2,4] f[] u[] c[5,4] f[5] c[5] n[5] | transB=1 -> Gemm f[2,5]",
      "ms.QGemm@1 u[2,4] f[] u[] c[4,5] f[] c[] - f[] u[] -> QuantizeLinear u[2,5]",
      "ms.MatMulIntegerToFloat@1 u[2,3,4]^0 c[4,5] f[] f[5] u[] c[5] f[5] -> Add f[2,3,5]^0",
      "ms.DynamicQuantizeMatMul@1 f[2,4] c[4,5] f[5] c[5] -> MatMul f[2,5]",
      "ms.QLinearAdd@1 u[2,3] f[] u[] u[3] f[] u[] f[] -> QuantizeLinear u[2,3]",
      "ms.QLinearMul@1 c[2,3]^0 f[] - c[1,3] f[] c[] f[] c[] -> QuantizeLinear c[2,3]^0",
      "ms.QLinearSigmoid@1 u[2,3] f[] u[] f[] u[] -> QuantizeLinear u[2,3]",
      "ms.QLinearLeakyRelu@1 u[2,3] f[] u[] f[] u[] | alpha=0.5f -> QuantizeLinear u[2,3]",
      "ms.QLinearSoftmax@1 u[2,3] f[] u[] f[] u[] | opset=13 -> QuantizeLinear u[2,3]",
      "ms.QLinearSoftmax@1 u[2,3] f[] u[] f[] u[] -> !INVALID opset",
      "ms.QLinearReduceMean@1 u[2,3,4] f[] u[] f[] u[] | axes=[1] keepdims=0 -> QuantizeLinear "
      "u[2,4]",
      "ms.QLinearGlobalAveragePool@1 u[2,5,6,3] f[] u[] f[] u[] | channels_last=1 -> "
      "QuantizeLinear u[2,1,1,3]",
      "ms.QLinearAveragePool@1 u[2,3,6,6] f[] u[] f[] u[] | kernel_shape=[2,2] -> QuantizeLinear "
      "u[2,3,5,5]",
      "ms.QLinearWhere@1 o[2,3] u[2,3] f[] u[] u[3] f[] u[] f[] u[] -> QuantizeLinear u[2,3]",
      "ms.QLinearConcat@1 f[] u[] u[2,3] f[] u[] u[2,4] f[] u[] | axis=1 -> QuantizeLinear u[2,7]",
      "ms.QLinearConcat@1 f[] u[] u[2,3] f[] u[] u[2,4] | axis=1 -> !INVALID 6 inputs");
}

OPI_TEST_MAIN("quantize", OPI_TEST(test_operators_on_codes), OPI_TEST(test_matmul_of_few_bits),
              OPI_TEST(test_dequantize_linear), OPI_TEST(test_quantize_linear),
              OPI_TEST(test_integer_products), OPI_TEST(test_integer_convolutions))
