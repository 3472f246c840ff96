/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-scan: what is malformed is refused with offset, message and field; what is well-formed is
 * copied without the tensors' content, byte for byte as much as was measured.
 */
#include "loader/wire/scan.h"

#include "tests/loader/wire/writer.h"

static opipe_status scan_model(bytes b, opi_scan *out_scan, opipe_error *err) {
  return opi_prescan(b.data, b.n, OPI_MSG_MODEL, 0, out_scan, err);
}

/* Scans and frees. */
static opipe_status scan_once(bytes b, opipe_error *err) {
  opi_scan scan;
  const opipe_status status = scan_model(b, &scan, err);
  free(b.data);
  return status;
}

static void test_varint_bounds(void) {
  static const uint8_t longest[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1};
  static const uint8_t too_big[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2};
  uint64_t at = 0, value = 0;
  OPI_ASSERT(opi_wire_varint(longest, 10, &at, &value));
  OPI_ASSERT(value == UINT64_MAX && at == 10);
  at = 0;
  OPI_ASSERT(!opi_wire_varint(longest, 9, &at, &value));
  at = 0;
  OPI_ASSERT(!opi_wire_varint(too_big, 10, &at, &value));
  uint8_t out[10];
  for (uint32_t shift = 0; shift < 64; ++shift) {
    const uint64_t wanted = UINT64_C(1) << shift;
    const uint32_t n = opi_wire_put_varint(out, wanted);
    OPI_ASSERT_INT(n, shift / 7 + 1);
    at = 0;
    OPI_ASSERT(opi_wire_varint(out, n, &at, &value) && value == wanted);
  }
}

static void test_field_bounds(void) {
  opi_wire_field field;
  uint64_t at = 0;
  static const uint8_t good[] = {0x0a, 2, 'a', 'b', 0x15, 1, 2, 3, 4};
  OPI_ASSERT(opi_wire_next(good, 9, &at, &field));
  OPI_ASSERT(field.number == 1 && field.wire == 2 && field.data == 2 && field.end == 4);
  OPI_ASSERT(opi_wire_next(good, 9, &at, &field));
  OPI_ASSERT(field.number == 2 && field.wire == 5 && field.end == 9);
  at = 4;
  OPI_ASSERT(!opi_wire_next(good, 8, &at, &field));
  at = 0;
  OPI_ASSERT(!opi_wire_next(good, 3, &at, &field));
  static const uint8_t huge[] = {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1};
  at = 0;
  OPI_ASSERT(!opi_wire_next(huge, sizeof(huge), &at, &field));
  static const uint8_t kinds[] = {0x0b, 0x0c, 0x0e, 0x0f, 0x00};
  for (size_t i = 0; i < sizeof(kinds); ++i) {
    at = 0;
    OPI_ASSERT(!opi_wire_next(kinds + i, 1, &at, &field));
  }
}

/* n types inside one another, below an input's type. */
static bytes nested_types(uint32_t n) {
  bytes type = {0};
  for (uint32_t i = 0; i < n; ++i) {
    bytes sequence = {0}, outer = {0};
    w_sub(&sequence, 1, type);
    w_sub(&outer, 4, sequence);
    type = outer;
  }
  bytes info = {0}, graph = {0};
  w_text(&info, 1, "x");
  w_sub(&info, 2, type);
  w_sub(&graph, 11, info);
  return w_model(graph, 8);
}

static void test_depth_is_bounded(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  /* model, graph, input, type: 4 levels; each sequence adds 2. */
  OPI_ASSERT_OK(scan_once(nested_types(30), &err), &err);
  OPI_ASSERT_ERROR(scan_once(nested_types(31), &err), OPIPE_E_LIMIT, &err, "64 levels");
  OPI_ASSERT_ERROR(scan_once(nested_types(8000), &err), OPIPE_E_LIMIT, &err, "64 levels");
}

static void test_repeats_are_refused(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bytes twice = w_model((bytes){0}, 8);
  w_sub(&twice, 7, (bytes){0});
  OPI_ASSERT_ERROR(scan_once(twice, &err), OPIPE_E_INVALID, &err, "MODEL.graph: occurs twice");

  bytes node = w_node("Relu", "n1", NULL, "x", "y");
  w_text(&node, 4, "Neg");
  bytes graph = {0};
  w_sub(&graph, 1, node);
  OPI_ASSERT_ERROR(scan_once(w_model(graph, 8), &err), OPIPE_E_INVALID, &err,
                   "NODE.op_type 'n1': occurs twice");

  bytes both = {0}, dim = {0}, shape = {0}, tensor = {0}, type = {0};
  w_num(&dim, 1, 3);
  w_text(&dim, 2, "n");
  w_sub(&shape, 1, dim);
  w_sub(&tensor, 2, shape);
  w_sub(&type, 1, tensor);
  bytes info = {0};
  w_sub(&info, 2, type);
  w_sub(&both, 11, info);
  OPI_ASSERT_ERROR(scan_once(w_model(both, 8), &err), OPIPE_E_INVALID, &err, "DIMENSION.dim_param");
}

static opipe_status scan_name(const char *name, size_t n, opipe_error *err) {
  bytes node = {0}, graph = {0};
  w_bytes(&node, 3, name, n);
  w_sub(&graph, 1, node);
  return scan_once(w_model(graph, 8), err);
}

static void test_names_are_text(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_ERROR(scan_name("a\0b", 3, &err), OPIPE_E_INVALID, &err, "NODE.name");
  static const char *const good[] = {"", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x01"};
  for (size_t i = 0; i < OPI_COUNT(good); ++i)
    OPI_ASSERT_OK(scan_name(good[i], strlen(good[i]), &err), &err);
  static const char *const bad[] = {"\x80",
                                    "\xc3",
                                    "\xc3(",
                                    "\xc0\xaf",
                                    "\xe0\x80\xaf",
                                    "\xed\xa0\x80",
                                    "\xf5\x80\x80\x80",
                                    "\xf4\x90\x80\x80",
                                    "\xe2\x82",
                                    "\xff"};
  for (size_t i = 0; i < OPI_COUNT(bad); ++i)
    OPI_ASSERT_ERROR(scan_name(bad[i], strlen(bad[i]), &err), OPIPE_E_INVALID, &err, "UTF-8");
}

static void test_wire_types_are_checked(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bytes b = {0};
  w_text(&b, 1, "8");
  OPI_ASSERT_ERROR(scan_once(b, &err), OPIPE_E_INVALID, &err, "ir_version");
  bytes number = {0};
  w_num(&number, 7, 1);
  OPI_ASSERT_ERROR(scan_once(number, &err), OPIPE_E_INVALID, &err, "MODEL.graph");
  bytes floats = {0}, attribute = {0}, node = {0}, graph = {0};
  w_raw(&floats, "12345", 5);
  w_sub(&attribute, 7, floats);
  w_sub(&node, 5, attribute);
  w_sub(&graph, 1, node);
  OPI_ASSERT_ERROR(scan_once(w_model(graph, 8), &err), OPIPE_E_INVALID, &err, "multiple of 4");
}

/* 5 million empty nodes in 10 MB would take most of a gigabyte. */
static void test_empty_messages_stay_in_the_budget(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  static const uint32_t fields[] = {1, 5, 11, 15};
  for (size_t f = 0; f < OPI_COUNT(fields); ++f) {
    bytes graph = {0};
    for (uint32_t i = 0; i < (f == 0 ? 5000000 : 1000000); ++i)
      w_bytes(&graph, fields[f], NULL, 0);
    OPI_ASSERT_ERROR(scan_once(w_model(graph, 8), &err), OPIPE_E_LIMIT, &err, "the budget is");
  }
}

static void test_copy_has_no_content_and_no_unknown_fields(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  enum { N = 1 << 20 };
  float *weights = calloc(N, sizeof(float));
  const int64_t dims[] = {N};
  bytes graph = {0};
  w_sub(&graph, 5, w_tensor("w", OPIPE_FLOAT, dims, 1, weights, N * sizeof(float)));
  w_text(&graph, 10, "documentation");
  bytes model = w_model(graph, 8);
  w_text(&model, 999, "nobody knows this");
  opi_scan scan;
  OPI_ASSERT_OK_FATAL(scan_model(model, &scan, &err), &err);
  OPI_ASSERT_INT(scan.content_bytes, N * sizeof(float));
  OPI_ASSERT(scan.copy_bytes < 200);
  OPI_ASSERT_INT(scan.n_messages[OPI_MSG_TENSOR], 1);
  uint8_t *copy = malloc(scan.copy_bytes);
  OPI_ASSERT_OK(opi_prescan_copy(model.data, model.n, OPI_MSG_MODEL, &scan, copy, &err), &err);
  /* Less room than measured: the file grew meanwhile. */
  opi_scan less = scan;
  --less.copy_bytes;
  OPI_ASSERT_ERROR(opi_prescan_copy(model.data, model.n, OPI_MSG_MODEL, &less, copy, &err),
                   OPIPE_E_INVALID, &err, "changed");
  free(copy);
  free(weights);
  free(model.data);
}

/* The copy is a fixed point but for the spans: scanning it again gives the same messages. */
static void test_copy_is_well_formed(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bytes node = w_node("Relu", "n", NULL, "x", "y"), graph = {0};
  w_attr_int(&node, "a", -1);
  w_sub(&graph, 1, node);
  bytes model = w_model(graph, 8);
  opi_scan scan, again;
  OPI_ASSERT_OK_FATAL(scan_model(model, &scan, &err), &err);
  uint8_t *copy = malloc(scan.copy_bytes);
  OPI_ASSERT_OK(opi_prescan_copy(model.data, model.n, OPI_MSG_MODEL, &scan, copy, &err), &err);
  OPI_ASSERT_OK(opi_prescan(copy, scan.copy_bytes, OPI_MSG_MODEL, 0, &again, &err), &err);
  OPI_ASSERT_INT(again.n_messages[OPI_MSG_ATTRIBUTE], 1);
  OPI_ASSERT_INT(again.n_strings, scan.n_strings);
  free(copy);
  free(model.data);
}

OPI_TEST_MAIN("prescan", OPI_TEST(test_varint_bounds), OPI_TEST(test_field_bounds),
              OPI_TEST(test_depth_is_bounded), OPI_TEST(test_repeats_are_refused),
              OPI_TEST(test_names_are_text), OPI_TEST(test_wire_types_are_checked),
              OPI_TEST(test_empty_messages_stay_in_the_budget),
              OPI_TEST(test_copy_has_no_content_and_no_unknown_fields),
              OPI_TEST(test_copy_is_well_formed))
