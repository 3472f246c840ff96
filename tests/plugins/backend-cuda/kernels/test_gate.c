/* SPDX-License-Identifier: Apache-2.0 */
/* Gates of feed-forward layers: the bits of the two functions that they stand for, one after the
 * other. */
#include "kit.h"

enum { CELLS = 1027 };

/* out = op of a and, of two operands, b */
static void run_step(uint32_t op, uint32_t dtype, const kit_tensor *a, const kit_tensor *b,
                     const kit_tensor *out) {
  const cuda_map_args args = {.out = out->data,
                              .in = {a->data, b != NULL ? b->data : NULL},
                              .n = CELLS,
                              .shape = {CELLS},
                              .stride = {{1}, {1}},
                              .alpha = 1.25,
                              .rank = 1,
                              .op = op};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_map(&args, dtype, dtype, &launch));
  KIT_RUN(&launch, 1, out);
}

static void gate_case(uint32_t op, uint32_t dtype) {
  const kit_tensor x = kit_random(dtype, CELLS, 2, -4, 4), z = kit_random(dtype, CELLS, 3, -2, 2);
  const kit_tensor y = kit_new(dtype, CELLS), kept = kit_new(dtype, CELLS);
  const kit_tensor f = kit_new(dtype, CELLS), want = kit_new(dtype, CELLS);
  cuda_gate_args args = {.y = y.data,
                         .kept = kept.data,
                         .x = x.data,
                         .z = z.data,
                         .n = CELLS,
                         .alpha = 1.25,
                         .op = op};
  cuda_launch launch;
  run_step(op, dtype, &x, NULL, &f);
  run_step(CUDA_MAP_MUL, dtype, &f, &z, &want);
  OPI_ASSERT_FATAL(cuda_plan_gate(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &y, &kept);
  OPI_ASSERT(kit_same(&want, 0, &y, 0, CELLS) && kit_same(&f, 0, &kept, 0, CELLS));
  args.kept = NULL;
  OPI_ASSERT_FATAL(cuda_plan_gate(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &y);
  OPI_ASSERT(kit_same(&want, 0, &y, 0, CELLS));
  kit_end();
}

static void gradient_case(uint32_t op, uint32_t dtype) {
  const kit_tensor dy = kit_random(dtype, CELLS, 2, -1, 1), z = kit_random(dtype, CELLS, 3, -2, 2),
                   x = kit_random(dtype, CELLS, 4, -4, 4);
  const kit_tensor dx = kit_new(dtype, CELLS);
  const kit_tensor product = kit_new(dtype, CELLS), want = kit_new(dtype, CELLS);
  const cuda_gate_grad_args args = {
      .dx = dx.data, .dy = dy.data, .z = z.data, .x = x.data, .n = CELLS, .alpha = 1.25, .op = op};
  cuda_launch launch;
  run_step(CUDA_MAP_MUL, dtype, &dy, &z, &product);
  run_step(op, dtype, &product, &x, &want);
  OPI_ASSERT_FATAL(cuda_plan_gate_grad(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &dx);
  OPI_ASSERT(kit_same(&want, 0, &dx, 0, CELLS));
  kit_end();
}

static void test_gates(void) {
  static const uint32_t forward[] = {CUDA_MAP_SIGMOID, CUDA_MAP_RELU, CUDA_MAP_GELU,
                                     CUDA_MAP_GELU_TANH, CUDA_MAP_SWISH};
  static const uint32_t backward[] = {CUDA_MAP_GRAD_RELU, CUDA_MAP_GRAD_GELU,
                                      CUDA_MAP_GRAD_GELUTANH, CUDA_MAP_GRAD_SWISH,
                                      CUDA_MAP_GRAD_QUICKGELU};
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < 5; ++i) {
      kit_skew = (t + i) % 2; /* no vectors */
      gate_case(forward[i], kit_types[t]);
      gradient_case(backward[i], kit_types[t]);
    }
  }
  kit_skew = 0;
}

static void test_what_has_no_gate(void) {
  const cuda_gate_args by_tanh = {.n = 1, .op = CUDA_MAP_TANH};
  const cuda_gate_args swish = {.n = 1, .op = CUDA_MAP_SWISH};
  const cuda_gate_grad_args grad_tanh = {.n = 1, .op = CUDA_MAP_GRAD_TANH};
  const cuda_gate_grad_args grad_swish = {.n = 1, .op = CUDA_MAP_GRAD_SWISH};
  cuda_launch launch;
  OPI_ASSERT(!cuda_plan_gate(&by_tanh, OPIPE_FLOAT, &launch));
  OPI_ASSERT(!cuda_plan_gate(&swish, OPIPE_DOUBLE, &launch));
  OPI_ASSERT(!cuda_plan_gate_grad(&grad_tanh, OPIPE_FLOAT, &launch));
  OPI_ASSERT(!cuda_plan_gate_grad(&grad_swish, OPIPE_DOUBLE, &launch));
}

OPI_TEST_MAIN("cuda_gate", OPI_TEST(test_gates), OPI_TEST(test_what_has_no_gate))
