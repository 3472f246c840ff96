/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: what shares memory, what is exact, what is refused, and that the checks find faults.
 * Without this two living tensors could overlap, or a prediction of memory be wrong by a few bytes.
 */
#include <math.h>

#include "backend_test.h"

static bt_backend backend;
static opipe_device *device;

static void open_device(const char *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 1, 0, &device, &err), &err);
}

static void close_device(void) {
  backend.table->device_close(device);
  bt_close(&backend);
}

static uint32_t temp(bt_graph *g, int64_t n) {
  return bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, 1, &n);
}

static uint32_t input(bt_graph *g, float *data, int64_t n) {
  return bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, data, 1, &n);
}

static uint32_t output(bt_graph *g, float *data, int64_t n) {
  return bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, data, 1, &n);
}

static void test_element_wise_chains_need_no_temporaries(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  bt_run r;
  float x[64], y[64];
  open_device(NULL);
  bt_init(&g);
  uint32_t v = input(&g, x, 64);
  for (int i = 0; i < 5; ++i) {
    const uint32_t next = temp(&g, 64);
    bt_node(&g, i % 2 == 0 ? "Neg" : "Abs", BT_IN(v), BT_OUT(next));
    v = next;
  }
  bt_node(&g, "Neg", BT_IN(v), BT_OUT(output(&g, y, 64)));
  for (int i = 0; i < 64; ++i)
    x[i] = (float)(i - 32);
  OPI_ASSERT_OK(bt_prepare(backend.table, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_INT(r.info.temp_bytes, 0);
  OPI_ASSERT_INT(r.info.n_kernels, 6);
  OPI_ASSERT_OK(bt_step(backend.table, &g, &r, &err), &err);
  for (int i = 0; i < 64; ++i)
    OPI_ASSERT(y[i] == fabsf(x[i]));
  bt_release(backend.table, &r);
  close_device();
}

/* x is read again after the result that would have overwritten it. */
static void test_living_inputs_are_not_overwritten(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
  open_device(NULL);
  bt_init(&g);
  const uint32_t a = input(&g, x, 8);
  const uint32_t b = temp(&g, 8);
  const uint32_t c = temp(&g, 8);
  const uint32_t d = temp(&g, 8);
  bt_node(&g, "Neg", BT_IN(a), BT_OUT(b));
  bt_node(&g, "Exp", BT_IN(b), BT_OUT(c));
  bt_node(&g, "Neg", BT_IN(c), BT_OUT(d));
  bt_node(&g, "Sub", BT_IN(b, d), BT_OUT(output(&g, y, 8)));
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
  for (int i = 0; i < 8; ++i)
    OPI_ASSERT(fabsf(y[i] - (-x[i] + expf(-x[i]))) < 1e-5f);
  OPI_ASSERT(x[0] == 1 && x[7] == 8);
  close_device();
}

/* Views of inputs, constants and temporaries; one of a temporary that is also an output, one of an
 * input that must be copied. */
static void test_views_share_or_copy(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  static const int64_t shape[2] = {2, 3};
  static const float constant[6] = {9, 8, 7, 6, 5, 4};
  bt_graph g;
  bt_run r;
  float x[6] = {1, 2, 3, 4, 5, 6}, y1[6], y2[6], y3[6], y4[6];
  open_device(NULL);
  bt_init(&g);
  const uint32_t s = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, shape, BT_SHAPE(2));
  const uint32_t k = bt_value(&g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, constant, BT_SHAPE(6));
  const uint32_t a = input(&g, x, 6);
  const uint32_t av = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(2, 3));
  const uint32_t t = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(2, 3));
  const uint32_t o1 = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y1, BT_SHAPE(2, 3));
  const uint32_t o2 = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y2, BT_SHAPE(2, 3));
  const uint32_t o3 = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y3, BT_SHAPE(2, 3));
  const uint32_t o4 = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y4, BT_SHAPE(2, 3));
  bt_node(&g, "Reshape", BT_IN(a, s), BT_OUT(av));
  bt_node(&g, "Neg", BT_IN(av), BT_OUT(t));
  bt_node(&g, "Identity", BT_IN(t), BT_OUT(o1));
  bt_node(&g, "Reshape", BT_IN(a, s), BT_OUT(o2));
  bt_node(&g, "Reshape", BT_IN(k, s), BT_OUT(o3));
  bt_node(&g, "Abs", BT_IN(t), BT_OUT(o4));
  OPI_ASSERT_OK(bt_prepare(backend.table, device, &g, OPIPE_COMPILE_POISON, &r, &err), &err);
  OPI_ASSERT_INT(r.info.temp_bytes, 0); /* t lies in the region of o1 */
  OPI_ASSERT_INT(r.info.n_kernels, 4);  /* Neg, two copies, Abs */
  OPI_ASSERT_OK(bt_step(backend.table, &g, &r, &err), &err);
  for (int i = 0; i < 6; ++i)
    OPI_ASSERT(y1[i] == -x[i] && y2[i] == x[i] && y3[i] == constant[i] && y4[i] == x[i]);
  bt_release(backend.table, &r);
  close_device();
}

/* Temporaries whose lives do not meet share room; the arena one unit smaller is refused. */
static void test_arena_is_exact(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  static const int64_t perm[2] = {1, 0};
  bt_graph g;
  bt_run r;
  static float x[64 * 64], y[64 * 64];
  open_device(NULL);
  bt_init(&g);
  uint32_t v = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x, BT_SHAPE(64, 64));
  for (int i = 0; i < 6; ++i) {
    const bool last = i == 5;
    const uint32_t next = bt_value(&g, last ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP, OPIPE_FLOAT,
                                   last ? y : NULL, BT_SHAPE(64, 64));
    opipe_node *node = bt_node(&g, "Transpose", BT_IN(v), BT_OUT(next));
    bt_ints(&g, node, "perm", 2, perm);
    v = next;
  }
  for (int i = 0; i < 64 * 64; ++i)
    x[i] = (float)i;
  OPI_ASSERT_OK(bt_prepare(backend.table, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_INT(r.info.temp_bytes, 2 * 64 * 64 * 4); /* the value read and the value written */
  OPI_ASSERT_INT(r.info.workspace_bytes, 0);
  OPI_ASSERT_INT(r.info.arena_bytes, r.info.temp_bytes);
  OPI_ASSERT_OK(bt_step(backend.table, &g, &r, &err), &err);
  OPI_ASSERT_BITS(y, x, 64 * 64, OPIPE_FLOAT);
  opipe_binding *binding = NULL;
  opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                            .n_boundaries = 2,
                            .program = r.program,
                            .arena = {r.arena, 0, r.info.arena_bytes - 64},
                            .boundaries = r.regions};
  OPI_ASSERT_ERROR(backend.table->bind(device, &bind, &binding, &err), OPIPE_E_INVALID, &err,
                   "32768");
  bind.arena.n_bytes += 64;
  bind.n_boundaries = 1;
  OPI_ASSERT_ERROR(backend.table->bind(device, &bind, &binding, &err), OPIPE_E_INVALID, &err,
                   "boundaries");
  bind.n_boundaries = 2;
  r.regions[1].n_bytes -= 1;
  OPI_ASSERT_ERROR(backend.table->bind(device, &bind, &binding, &err), OPIPE_E_INVALID, &err,
                   "16384");
  bt_release(backend.table, &r);
  close_device();
}

static void test_unfinite_results_are_named(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_graph g;
  float x[4] = {1, 2, 0, 4}, y[4];
  open_device(NULL);
  bt_init(&g);
  const uint32_t a = input(&g, x, 4);
  bt_node(&g, "Reciprocal", BT_IN(a), BT_OUT(output(&g, y, 4)));
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, 0, &err), &err);
  OPI_ASSERT(isinf(y[2]));
  OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_CHECK_FINITE, &err),
                   OPIPE_E_INVALID, &err, "element 2 of 4");
  OPI_ASSERT(strstr(err.message, "Reciprocal") != NULL);
  x[2] = 3;
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_CHECK_FINITE, &err), &err);
  close_device();
}

static void test_bad_index_names_the_node(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *options[] = {NULL, "kernels=reference"};
  for (int i = 0; i < 2; ++i) {
    bt_graph g;
    float table[6] = {1, 2, 3, 4, 5, 6}, y[4];
    int64_t indices[2] = {0, 3};
    open_device(options[i]);
    bt_init(&g);
    const uint32_t t = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(3, 2));
    const uint32_t k = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, indices, BT_SHAPE(2));
    const uint32_t o = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(2, 2));
    bt_node(&g, "Gather", BT_IN(t, k), BT_OUT(o));
    OPI_ASSERT_ERROR(bt_run_once(backend.table, device, &g, 0, &err), OPIPE_E_INVALID, &err,
                     "'Gather'");
    OPI_ASSERT(strstr(err.message, "index 3") != NULL);
    indices[1] = -3;
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
    OPI_ASSERT(y[2] == 1 && y[3] == 2);
    close_device();
  }
}

/* Nothing in a graph may be believed. */
static void test_hostile_graphs_are_refused(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float x[4] = {0}, y[4];
  bt_graph good;
  open_device(NULL);
  bt_init(&good);
  const uint32_t a = input(&good, x, 4);
  const uint32_t t = temp(&good, 4);
  const uint32_t b = output(&good, y, 4);
  bt_node(&good, "Neg", BT_IN(a), BT_OUT(t));
  bt_node(&good, "Neg", BT_IN(t), BT_OUT(b));
  for (int fault = 0; fault < 14; ++fault) {
    bt_graph g = good;
    g.graph.values = g.values;
    g.graph.nodes = g.nodes;
    for (int i = 0; i < 3; ++i)
      g.values[i].shape = g.shapes[i];
    for (int i = 0; i < 2; ++i) {
      g.nodes[i].in = g.in[i];
      g.nodes[i].out = g.out[i];
      g.nodes[i].attrs = g.attrs[i];
    }
    switch (fault) {
      case 0:
        g.in[1][0] = 77;
        break;
      case 1:
        g.out[1][0] = 77;
        break;
      case 2:
        g.in[0][0] = t;
        break; /* read before it is made */
      case 3:
        g.out[1][0] = t;
        break; /* made twice */
      case 4:
        g.out[1][0] = a;
        break; /* an input is written */
      case 5:
        g.values[t].n_bytes = 15;
        break;
      case 6:
        g.shapes[t][0] = -4;
        break;
      case 7:
        g.values[t].rank = 99;
        break;
      case 8:
        g.values[b].slot = 2;
        break;
      case 9:
        g.values[t].role = 5;
        break;
      case 10:
        g.shapes[t][0] = 3;
        g.values[t].n_bytes = 12;
        break; /* Neg keeps shapes */
      case 11:
        g.values[t].rank = 3;
        g.shapes[t][0] = 0;
        g.shapes[t][1] = g.shapes[t][2] = INT64_C(1) << 62;
        g.values[t].n_bytes = 0;
        break;
      case 12:
        g.values[b].slot = g.values[a].slot;
        break;
      default:
        g.values[t].dtype = 99;
        break;
    }
    const opipe_status status = bt_run_once(backend.table, device, &g, 0, &err);
    OPI_ASSERT(status == OPIPE_E_INVALID || status == OPIPE_E_UNSUPPORTED);
  }
  OPI_ASSERT_OK(bt_run_once(backend.table, device, &good, 0, &err), &err);
  const opipe_compile_params flags = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = 64,
      .graph = &good.graph};
  opipe_program *program = NULL;
  OPI_ASSERT_ERROR(backend.table->compile(device, &flags, &program, &err), OPIPE_E_UNSUPPORTED,
                   &err, "flags");
  close_device();
}

OPI_TEST_MAIN("backend-cpu programs", OPI_TEST(test_element_wise_chains_need_no_temporaries),
              OPI_TEST(test_living_inputs_are_not_overwritten), OPI_TEST(test_views_share_or_copy),
              OPI_TEST(test_arena_is_exact), OPI_TEST(test_unfinite_results_are_named),
              OPI_TEST(test_bad_index_names_the_node), OPI_TEST(test_hostile_graphs_are_refused))
