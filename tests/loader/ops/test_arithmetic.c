/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic, logic and casts: file forms, canonical forms, shapes, axis rule, hostile input. */
#include <math.h>

#include "tests/loader/cases.h"

static void test_binary_broadcasts(void) {
  TEST_CASES("Add@14 f[2,3] f[3] -> Add f[2,3]", "Sub@13 h[2,1] h[1,3] -> Sub h[2,3]",
             "Mul@7 i[2] i[] -> Mul i[2]", "Div@7 d[2,0] d[1] -> Div d[2,0]",
             "Add@13 f[2,3] f[2] -> !INVALID 't1' of shape [2] does not broadcast with [2, 3]",
             "Add@13 f[2] i[2] -> !INVALID 't0' has type float32, 't1' has int64",
             "Add@13 o[2] o[2] -> !INVALID needed is a float type an integer type",
             "Add@13 f[2] - -> !INVALID has 1 inputs", "Pow@7 f[2] f[1] -> Pow f[2]",
             "Pow@13 f[2] i=2 -> Pow f[2]", "Mod@10 i[4] i=3 -> Mod i[4]",
             "Mod@13 f[4] f=3 | fmod=1 -> Mod f[4]");
}

static void test_old_broadcast_attributes(void) {
  TEST_CASES("Add@1 f[2,3] f[3] | broadcast=1 -> Add f[2,3]",
             "Add@6 f[2,3,4] f[3] | broadcast=1 axis=1 -> Add f[2,3,4]",
             "Mul@6 f[2,3,4] f[2] | broadcast=1 axis=0 -> Mul f[2,3,4]",
             "Div@6 f[2,3] f[2,3] | consumed_inputs=[0,0] -> Div f[2,3]",
             "Pow@1 f[2,3] f#[3] | broadcast=1 axis=-1 -> Pow f[2,3]",
             "Greater@1 f[2,3] f[2] | broadcast=1 axis=0 -> Greater o[2,3]",
             "And@1 o[2,3] o[2] | broadcast=1 axis=0 -> And o[2,3]",
             "Add@6 f[2,3] f[3,4] | broadcast=1 axis=1 -> !INVALID does not fit at axis 1",
             "Add@6 f[2,3] f[3] | broadcast=1 axis=5 -> !INVALID axis 5 is outside rank 2");
}

static void test_many_become_chains(void) {
  TEST_CASES("Sum@8 f[2] f[2] f[2] -> Add f[2]", "Sum@1 f[2] -> alias f[2]",
             "Mean@8 f[2] f[1] f[3,2] -> Div f[3,2]", "Mean@13 f[2] -> alias f[2]",
             "Max@8 f[2] f[1] f[2] -> Max f[2]", "Min@12 i[2] i[2] -> Min i[2]",
             "Max@8 f[2] -> alias f[2]", "Sum@8 f[2] f[3] -> !INVALID does not broadcast");
}

static void test_unary_and_clip(void) {
  TEST_CASES("Abs@6 i[2] -> Abs i[2]", "Neg@13 f[2] -> Neg f[2]", "Sqrt@6 f[2] -> Sqrt f[2]",
             "Sqrt@6 i[2] -> !INVALID has type int64, needed is a float type",
             "Exp@1 d[] -> Exp d[]", "Round@11 h[3] -> Round h[3]",
             "Round@9 h[3] -> !UNSUPPORTED version 9, known are 11 to 28",
             "Sign@13 n[3] -> Sign n[3]", "Tan@7 f[3] -> Tan f[3]",
             "Floor@29 f[3] -> !UNSUPPORTED version 29",
             "Clip@6 f[2] | min=0.5f max=2.5f -> Clip f[2]", "Clip@6 f[2] -> alias f[2]",
             "Clip@11 f[2] f=0 -> Clip f[2]", "Clip@11 f[2] - f=6 -> Clip f[2]",
             "Clip@13 i[2] i[] i[] -> Clip i[2]", "Clip@12 f[2] d=0 -> !INVALID 't1' has float64",
             "Clip@12 f[2] f{0,1} -> !INVALID bound 't1' has 2 elements");
}

static void test_casts(void) {
  TEST_CASES("Cast@1 f[2] | to=$INT64 -> Cast i[2]", "Cast@6 f[2] | to=7 -> Cast i[2]",
             "Cast@13 f[2] | to=1 -> alias f[2]", "Cast@19 f[2] | to=16 saturate=0 -> Cast B[2]",
             "Cast@13 f[2] | to=99 -> !UNSUPPORTED type 99",
             "Cast@13 f[2] | to=8 -> !UNSUPPORTED string",
             "Cast@1 f[2] | to=$NOTHING -> !UNSUPPORTED type NOTHING",
             "CastLike@15 f[2] i[3] -> Cast i[2]", "CastLike@19 f[2] f[] -> alias f[2]");
}

static void test_compare_makes_bool(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t shape[1] = {4};
  static const char *const ops[] = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"};
  static const char *const logic[] = {"And", "Or", "Xor"};
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, shape, 1);
  const uint32_t c = test_input(&t, "c", OPIPE_BOOL, shape, 1);
  for (size_t i = 0; i < OPI_COUNT(ops); ++i)
    test_output(&t, test_op(&t, ops[i], x, x));
  for (size_t i = 0; i < OPI_COUNT(logic); ++i)
    test_output(&t, test_op(&t, logic[i], c, c));
  test_output(&t, test_op(&t, "Not", c, OPIPE_NONE));
  test_output(&t, test_op(&t, "IsNaN", x, OPIPE_NONE));
  test_output(&t, test_op(&t, "IsInf", x, OPIPE_NONE));
  const opi_bind_options options = test_options();
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &options, &bound, &err), &err);
  for (uint32_t o = 0; o < bound->graph->n_outputs; ++o) {
    const opi_value *v = &bound->graph->values[bound->graph->outputs[o]];
    OPI_ASSERT_INT(v->dtype, OPIPE_BOOL);
    OPI_ASSERT_INT(v->shape[0], 4);
  }
  opi_bound_free(bound);
  test_close(&t);
}

/* A number that an integer type does not have becomes the nearest that it has. */
static void test_literals_saturate(void) {
  static const struct {
    uint32_t dtype;
    double value;
    int64_t want;
  } cases[] = {{OPIPE_INT32, 1e38, INT32_MAX},
               {OPIPE_INT32, -1e38, INT32_MIN},
               {OPIPE_INT8, 200, INT8_MAX},
               {OPIPE_UINT8, 200, 200},
               {OPIPE_UINT8, -1, 0},
               {OPIPE_UINT16, 1e9, UINT16_MAX},
               {OPIPE_INT64, 1e30, INT64_MAX},
               {OPIPE_INT64, -1e30, INT64_MIN},
               {OPIPE_UINT64, 1e30, -1},
               {OPIPE_UINT64, -INFINITY, 0},
               {OPIPE_INT16, (double)NAN, 0},
               {OPIPE_INT64, -7.9, -7},
               {OPIPE_UINT64, 0x1p63, INT64_MIN}};
  opi_builder b;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena, scratch;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  opi_arena_init(&scratch, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(
      opi_b_open(&b, opi_graph_new(&arena, "g"), &scratch, opi_allocator_system(), &err), &err);
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    const opi_value *v = opi_b_value(&b, opi_b_const_scalar(&b, cases[i].dtype, cases[i].value));
    int64_t has = 0;
    memcpy(&has, v->data, (size_t)v->n_bytes);
    const bool negative = cases[i].want < 0 && cases[i].dtype != OPIPE_UINT64;
    if (negative && v->n_bytes < sizeof(has))
      has -= (int64_t)1 << (8 * v->n_bytes);
    OPI_ASSERT_INT(has, cases[i].want);
  }
  opi_b_close(&b);
  opi_arena_release(&scratch);
  opi_arena_release(&arena);
}

static void test_elementwise_carries(void) {
  TEST_CASES(
      "Add@14 f[4,3]^0 f[3] -> Add f[4,3]^0", "Add@14 f[3]^0 f[2,3]^1 -> Add f[2,3]^1",
      "Add@14 f[4,3]^0 f[4,3]^0 -> Add f[4,3]^0",
      "Mul@14 f[8,3]^0:2:1 f[8,1]^0:2:1 -> Mul f[8,3]^0:2:1",
      "Add@14 f[4,3]^0 f[4,3] -> !carry 't1' has 4 different entries along it in dimension 0",
      "Add@14 f[4,3]^0 f#[4,3] -> Add f[4,3]^0",
      "Add@14 f[4]^0 f{1,2,3,4} -> !carry 4 different entries",
      "Add@14 f[4]^0 f{2,2,2,2} -> Add f[4]^0", "Add@14 f[4]^0 f[4,1]^0 -> !carry different places",
      "Add@14 f[1,3]^0 f[4,3] -> !carry broadcast along it from 1 to 4",
      "Clip@13 f[4]^0 f[] f[] -> Clip f[4]^0", "Cast@13 f[4]^0 | to=7 -> Cast i[4]^0");
}

OPI_TEST_MAIN("arithmetic", OPI_TEST(test_binary_broadcasts),
              OPI_TEST(test_old_broadcast_attributes), OPI_TEST(test_many_become_chains),
              OPI_TEST(test_unary_and_clip), OPI_TEST(test_casts),
              OPI_TEST(test_compare_makes_bool), OPI_TEST(test_literals_saturate),
              OPI_TEST(test_elementwise_carries))
