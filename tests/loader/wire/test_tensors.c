/* SPDX-License-Identifier: Apache-2.0 */
/* TensorProto -> dense rows: every element type, from raw_data and from its typed field, packed or
 * not; sizes that do not fit, numbers out of range, dimensions that overflow.
 */
#include "tests/loader/wire/writer.h"

/* Parses and frees `tensor`. */
static opipe_status parse(bytes tensor, opi_arena *arena, opi_value *out, opipe_error *err) {
  const opipe_status status = opi_tensor_parse(tensor.data, tensor.n, arena, out, err);
  free(tensor.data);
  return status;
}

static void expect_bytes(bytes tensor, uint32_t dtype, const void *wanted, uint64_t n_bytes) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  opi_value value;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status = parse(tensor, &arena, &value, &err);
  OPI_ASSERT_OK(status, &err);
  if (status >= 0) {
    OPI_ASSERT_INT(value.dtype, dtype);
    OPI_ASSERT_INT(value.n_bytes, n_bytes);
    OPI_ASSERT_STR(value.name, "t");
    OPI_ASSERT(memcmp(value.data, wanted, n_bytes) == 0);
    OPI_ASSERT((uintptr_t)value.data % 16 == 0);
  }
  opi_arena_release(&arena);
}

static void expect_error(bytes tensor, opipe_status wanted, const char *part) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  opi_value value;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_ERROR(parse(tensor, &arena, &value, &err), wanted, &err, part);
  opi_arena_release(&arena);
}

/* Elements of every type in three rows of three, and their dense bytes. */
static void test_raw_data_of_every_type(void) {
  uint8_t data[9 * 16 + 1];
  for (size_t i = 0; i < sizeof(data); ++i)
    data[i] = (uint8_t)(i * 7 + 1);
  const int64_t dims[] = {3, 3};
  for (uint32_t dtype = 1; dtype < OPIPE_N_DTYPES; ++dtype) {
    if (dtype == OPIPE_STRING)
      continue;
    const uint64_t n_bytes = (9 * (uint64_t)opi_dtype_bits(dtype) + 7) / 8;
    OPI_ASSERT(n_bytes != 0);
    expect_bytes(w_tensor("t", (int)dtype, dims, 2, data, n_bytes), dtype, data, n_bytes);
    expect_error(w_tensor("t", (int)dtype, dims, 2, data, n_bytes - 1), OPIPE_E_INVALID, "'t'");
    expect_error(w_tensor("t", (int)dtype, dims, 2, data, n_bytes + 1), OPIPE_E_INVALID, "'t'");
  }
}

/* A tensor [n] whose typed field holds `values`, packed or entry by entry. */
static bytes typed(uint32_t dtype, uint32_t field, int64_t n_elems, const int64_t *values, size_t n,
                   bool packed) {
  bytes b = w_tensor("t", (int)dtype, &n_elems, 1, NULL, 0), list = {0};
  for (size_t i = 0; i < n; ++i) {
    if (packed)
      w_varint(&list, (uint64_t)values[i]);
    else
      w_num(&b, field, values[i]);
  }
  if (packed)
    w_sub(&b, field, list);
  return b;
}

typedef struct typed_case {
  uint32_t dtype, field, unit;
  int64_t n_elems;
  int64_t values[3];
} typed_case;

static void test_typed_integers(void) {
  static const typed_case cases[] = {
      {OPIPE_INT32, 5, 4, 3, {-5, 0, INT32_MAX}},
      {OPIPE_INT16, 5, 2, 3, {-5, 32767, -32768}},
      {OPIPE_UINT16, 5, 2, 3, {0, 65535, 9}},
      {OPIPE_INT8, 5, 1, 3, {-128, 127, -1}},
      {OPIPE_UINT8, 5, 1, 3, {255, 0, 3}},
      {OPIPE_BOOL, 5, 1, 3, {1, 0, 1}},
      {OPIPE_FLOAT16, 5, 2, 3, {0x3c00, 0xbc00, 0}},
      {OPIPE_BFLOAT16, 5, 2, 3, {0x3f80, 0xbf80, 0}},
      {OPIPE_FLOAT8E4M3FN, 5, 1, 3, {0x38, 0xb8, 0}},
      {OPIPE_FLOAT8E8M0, 5, 1, 3, {127, 255, 0}},
      {OPIPE_INT4, 5, 1, 5, {0x21, 0x43, 0x05}},
      {OPIPE_UINT4, 5, 1, 6, {0x21, 0xf3, 0x65}},
      {OPIPE_FLOAT4E2M1, 5, 1, 6, {0x21, 0xf3, 0x65}},
      {OPIPE_INT2, 5, 1, 9, {0xe4, 0x1b, 0x03}},
      {OPIPE_UINT2, 5, 1, 12, {0xe4, 0x1b, 0x03}},
      {OPIPE_INT64, 7, 8, 3, {INT64_MIN, -1, INT64_MAX}},
      {OPIPE_UINT32, 11, 4, 3, {0, UINT32_MAX, 7}},
      {OPIPE_UINT64, 11, 8, 3, {-1, 0, 7}},
  };
  for (size_t c = 0; c < OPI_COUNT(cases); ++c) {
    const typed_case *t = &cases[c];
    uint8_t wanted[24];
    for (size_t i = 0; i < 3; ++i)
      memcpy(wanted + i * t->unit, &t->values[i], t->unit);
    for (int packed = 0; packed < 2; ++packed) {
      expect_bytes(typed(t->dtype, t->field, t->n_elems, t->values, 3, packed != 0), t->dtype,
                   wanted, 3 * t->unit);
      expect_error(typed(t->dtype, t->field, t->n_elems, t->values, 2, packed != 0),
                   OPIPE_E_INVALID, "'t'");
    }
    expect_error(typed(t->dtype, t->field == 5 ? 7 : 5, t->n_elems, t->values, 3, true),
                 OPIPE_E_INVALID, "another type");
  }
}

static void test_typed_floats(void) {
  const float f[] = {1.5f, -2.0f, 0.0f};
  const double d[] = {1.5, -2.0, 0.0};
  const int64_t dims[] = {3};
  bytes packed = w_tensor("t", OPIPE_FLOAT, dims, 1, NULL, 0);
  w_bytes(&packed, 4, f, sizeof(f));
  expect_bytes(packed, OPIPE_FLOAT, f, sizeof(f));
  /* In two pieces and a single entry. */
  bytes pieces = w_tensor("t", OPIPE_FLOAT, dims, 1, NULL, 0);
  w_bytes(&pieces, 4, f, 4);
  w_float(&pieces, 4, f[1]);
  w_bytes(&pieces, 4, f + 2, 4);
  expect_bytes(pieces, OPIPE_FLOAT, f, sizeof(f));
  bytes doubles = w_tensor("t", OPIPE_DOUBLE, dims, 1, NULL, 0);
  w_bytes(&doubles, 10, d, sizeof(d));
  expect_bytes(doubles, OPIPE_DOUBLE, d, sizeof(d));
  bytes odd = w_tensor("t", OPIPE_FLOAT, dims, 1, NULL, 0);
  w_bytes(&odd, 4, f, 11);
  expect_error(odd, OPIPE_E_INVALID, "'t'");
  const int64_t one[] = {1};
  bytes complex = w_tensor("t", OPIPE_COMPLEX64, one, 1, NULL, 0);
  w_bytes(&complex, 4, f, 8);
  expect_bytes(complex, OPIPE_COMPLEX64, f, 8);
}

static void test_numbers_out_of_range(void) {
  const int64_t big[] = {256}, small[] = {-129}, two[] = {2}, wide[] = {INT64_C(1) << 40};
  expect_error(typed(OPIPE_UINT8, 5, 1, big, 1, true), OPIPE_E_INVALID, "256");
  expect_error(typed(OPIPE_INT8, 5, 1, small, 1, true), OPIPE_E_INVALID, "-129");
  expect_error(typed(OPIPE_BOOL, 5, 1, two, 1, true), OPIPE_E_INVALID, "outside [0, 1]");
  expect_error(typed(OPIPE_INT32, 5, 1, wide, 1, true), OPIPE_E_INVALID, "outside");
  expect_error(typed(OPIPE_UINT32, 11, 1, wide, 1, true), OPIPE_E_INVALID, "outside");
  bytes cut = w_tensor("t", OPIPE_INT64, two, 1, NULL, 0);
  w_bytes(&cut, 7, "\x01\x80", 2);
  expect_error(cut, OPIPE_E_INVALID, "malformed");
}

static void test_shapes(void) {
  const int64_t none[] = {3, 0, 5}, negative[] = {-1}, huge[] = {INT64_MAX, 4};
  const int64_t wraps[] = {INT64_C(1) << 32, INT64_C(1) << 32}, deep[17] = {1};
  const float f = 2;
  expect_bytes(w_tensor("t", OPIPE_FLOAT, NULL, 0, &f, 4), OPIPE_FLOAT, &f, 4);
  expect_bytes(w_tensor("t", OPIPE_FLOAT, none, 3, NULL, 0), OPIPE_FLOAT, &f, 0);
  expect_bytes(w_tensor("t", OPIPE_FLOAT, none, 3, &f, 0), OPIPE_FLOAT, &f, 0);
  expect_error(w_tensor("t", OPIPE_FLOAT, none, 3, &f, 4), OPIPE_E_INVALID, "'t'");
  expect_error(w_tensor("t", OPIPE_FLOAT, negative, 1, &f, 4), OPIPE_E_INVALID, "-1");
  expect_error(w_tensor("t", OPIPE_FLOAT, huge, 2, &f, 4), OPIPE_E_INVALID, "overflows");
  expect_error(w_tensor("t", OPIPE_FLOAT, wraps, 2, &f, 4), OPIPE_E_INVALID, "overflows");
  expect_error(w_tensor("t", OPIPE_FLOAT, deep, 17, &f, 4), OPIPE_E_LIMIT, "17 dimensions");
  /* A size that only the claim has: no memory is taken for it. */
  const int64_t claim[] = {INT64_C(1) << 40};
  const int64_t entry[] = {1};
  bytes b = w_tensor("t", OPIPE_INT64, claim, 1, NULL, 0);
  w_num(&b, 7, entry[0]);
  expect_error(b, OPIPE_E_INVALID, "'t'");
}

static void test_refusals(void) {
  const float f = 2;
  const int64_t one[] = {1};
  expect_error(w_tensor("t", 0, one, 1, &f, 4), OPIPE_E_INVALID, "type 0");
  expect_error(w_tensor("t", 27, one, 1, &f, 4), OPIPE_E_INVALID, "type 27");
  expect_error(w_tensor("t", OPIPE_STRING, one, 1, NULL, 0), OPIPE_E_UNSUPPORTED, "strings");
  expect_error(w_tensor("t", OPIPE_FLOAT, one, 1, NULL, 0), OPIPE_E_INVALID, "4 bytes");
  bytes both = w_tensor("t", OPIPE_FLOAT, one, 1, &f, 4);
  w_bytes(&both, 4, &f, 4);
  expect_error(both, OPIPE_E_INVALID, "both");
  bytes place = w_tensor("t", OPIPE_FLOAT, one, 1, &f, 4);
  w_num(&place, 14, 2);
  expect_error(place, OPIPE_E_INVALID, "data_location 2");
  expect_error(w_external("t", OPIPE_FLOAT, one, 1, "w.bin", NULL, NULL), OPIPE_E_INVALID,
               "no folder");
  /* The pre-scan's own fields mean nothing in a file. */
  bytes spans = w_tensor("t", OPIPE_FLOAT, one, 1, &f, 4);
  w_num(&spans, 1001, 1 << 20);
  w_num(&spans, 1002, 1 << 20);
  expect_bytes(spans, OPIPE_FLOAT, &f, 4);
}

OPI_TEST_MAIN("tensors", OPI_TEST(test_raw_data_of_every_type), OPI_TEST(test_typed_integers),
              OPI_TEST(test_typed_floats), OPI_TEST(test_numbers_out_of_range),
              OPI_TEST(test_shapes), OPI_TEST(test_refusals))
