/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter sets: layouts by consumer, sources at any alignment, writing, cloning, accounting.
 * Without this a second program would pack again, or a written weight be half seen.
 */
#include "backend_test.h"
#include "plugins/backend-cpu/kernels/half.h"

static bt_backend backend;
static opipe_device *device;

static void open_device(const char *options, uint64_t cap) {
  opipe_error err = OPIPE_ERROR_INIT;
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 1, cap, &device, &err), &err);
}

static void close_device(void) {
  backend.table->device_close(device);
  bt_close(&backend);
}

static opipe_device_usage usage(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_usage u = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  OPI_ASSERT_OK(backend.table->device_usage(device, &u, &err), &err);
  return u;
}

/* A table that is gathered from and multiplied with (a tied embedding), `rows` indices. */
static void tied_graph(bt_graph *g, const float *table, int64_t *ids, float *y, int64_t rows) {
  bt_init(g);
  const uint32_t T = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(6, 4));
  const uint32_t I = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, ids, 1, &rows);
  const uint32_t e = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(rows, 4));
  const uint32_t Y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(rows, 6));
  bt_node(g, "Gather", BT_IN(T, I), BT_OUT(e));
  opipe_node *gemm = bt_node(g, "Gemm", BT_IN(e, T), BT_OUT(Y));
  bt_int(g, gemm, "transB", 1);
}

static void fill_table(float *table) {
  for (int i = 0; i < 24; ++i)
    table[i] = (float)(i % 7) - 3;
}

static void expect_products(const float *table, const int64_t *ids, const float *y, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int n = 0; n < 6; ++n) {
      float sum = 0;
      for (int k = 0; k < 4; ++k)
        sum += table[ids[r] * 4 + k] * table[n * 4 + k];
      OPI_ASSERT(y[r * 6 + n] == sum);
    }
  }
}

static uint32_t read_layouts(const opipe_program *program, opipe_param_layout *layouts) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t n = 0;
  OPI_ASSERT_OK(backend.table->program_params(program, NULL, &n, &err), &err);
  for (uint32_t i = 0; i < n && i < 8; ++i)
    layouts[i].struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes);
  OPI_ASSERT_OK(backend.table->program_params(program, layouts, &n, &err), &err);
  return n;
}

static void test_layouts_do_not_depend_on_the_batch(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float table[24], y[18];
  int64_t ids[3] = {0, 5, 2};
  bt_graph g[2];
  bt_run r[2];
  opipe_param_layout layouts[2][8];
  open_device(NULL, 0);
  fill_table(table);
  for (int i = 0; i < 2; ++i) {
    tied_graph(&g[i], table, ids, y, i == 0 ? 1 : 3);
    OPI_ASSERT_OK(bt_prepare(backend.table, device, &g[i], 0, &r[i], &err), &err);
    memset(layouts[i], 0, sizeof layouts[i]);
    OPI_ASSERT_INT(read_layouts(r[i].program, layouts[i]), 1); /* gathered from the panels */
  }
  OPI_ASSERT(memcmp(layouts[0], layouts[1], sizeof layouts[0]) == 0);
  OPI_ASSERT(layouts[0][0].key != 0);
  OPI_ASSERT_INT(layouts[0][0].n_bytes, 64 * 4 * 4);
  OPI_ASSERT_INT(layouts[0][0].mapped_bytes, 0);
  /* One set serves both programs: preparing it again makes nothing. */
  const uint64_t before = usage().live_bytes[OPIPE_BUFFER_PARAMS];
  OPI_ASSERT_OK(backend.table->params_prepare(r[0].params, r[1].program, &err), &err);
  OPI_ASSERT_INT(usage().live_bytes[OPIPE_BUFFER_PARAMS], before);
  OPI_ASSERT_INT(before, 2 * 64 * 4 * 4);
  OPI_ASSERT_INT(usage().mapped_bytes, 0);
  bt_release(backend.table, &r[0]);
  bt_release(backend.table, &r[1]);
  OPI_ASSERT_INT(usage().live_bytes[OPIPE_BUFFER_PARAMS] + usage().mapped_bytes, 0);
  close_device();
}

/* A table that is only gathered is read in place. */
static void test_a_table_alone_is_used_in_place(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float table[24], y[12];
  int64_t ids[3] = {0, 5, 2};
  bt_graph g;
  bt_run r;
  opipe_param_layout layouts[8];
  open_device(NULL, 0);
  fill_table(table);
  bt_init(&g);
  const uint32_t T = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(6, 4));
  const uint32_t I = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, ids, BT_SHAPE(3));
  bt_node(&g, "Gather", BT_IN(T, I),
          BT_OUT(bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y, BT_SHAPE(3, 4))));
  OPI_ASSERT_OK(bt_prepare(backend.table, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_INT(read_layouts(r.program, layouts), 1);
  OPI_ASSERT_INT(layouts[0].key, 0);
  OPI_ASSERT_INT(layouts[0].n_bytes, 0);
  OPI_ASSERT_INT(layouts[0].mapped_bytes, sizeof table);
  OPI_ASSERT_INT(usage().mapped_bytes, sizeof table);
  OPI_ASSERT_OK(bt_step(backend.table, &g, &r, &err), &err);
  for (int i = 0; i < 12; ++i)
    OPI_ASSERT(y[i] == table[ids[i / 4] * 4 + i % 4]);
  bt_release(backend.table, &r);
  OPI_ASSERT_INT(usage().mapped_bytes, 0);
  close_device();
}

/* ---- sources are given back piece by piece ---- */

enum { DEEP = 1100, BROAD = 2070, MOST_DROPS = 32 }; /* 8.7 MiB of fp32: two pieces */

static struct {
  const char *begin[MOST_DROPS];
  uint64_t n_bytes[MOST_DROPS];
  int n;
} drops;

static void note_drop(void *ctx, const void *data, uint64_t n_bytes) {
  (void)ctx;
  if (drops.n < MOST_DROPS) {
    drops.begin[drops.n] = data;
    drops.n_bytes[drops.n++] = n_bytes;
  }
}

static const void *pages_interface(void *ctx, const char *id) {
  static const opipe_host_pages pages = {(uint32_t)OPIPE_END(opipe_host_pages, drop), 0, note_drop};
  (void)ctx;
  return strcmp(id, OPIPE_HOST_PAGES_ID) == 0 ? &pages : NULL;
}

/* Every byte of the weight once, in its order, no piece much above 8 MiB; and the product is right.
 * kind 0: [K,N], 1: [N,K], 2: [2,K,N]; half: in fp16. */
static void try_pieces(int kind, bool half, const char *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t stack = kind == 2 ? 2 : 1, n = stack * DEEP * BROAD;
  const uint32_t dtype = half ? OPIPE_FLOAT16 : OPIPE_FLOAT;
  const uint64_t n_bytes = (uint64_t)n * (half ? 2 : 4);
  void *w = malloc((size_t)n_bytes), *y = malloc((size_t)(stack * BROAD) * 4);
  static float x[DEEP];
  static uint16_t half_x[DEEP];
  OPI_ASSERT_FATAL(w != NULL && y != NULL);
  /* W[k, j] is 1 for j = 7 k modulo N, and 0 elsewhere: y[j] is the sum of few of x */
  memset(w, 0, (size_t)n_bytes);
  for (int64_t k = 0; k < DEEP; ++k) {
    x[k] = (float)(k % 50);
    half_x[k] = cpu_f32_to_f16(x[k]);
    const int64_t j = 7 * k % BROAD, at = kind == 1 ? j * DEEP + k : k * BROAD + j;
    for (int64_t i = 0; i < stack; ++i) {
      if (half)
        ((uint16_t *)w)[i * DEEP * BROAD + at] = 0x3c00;
      else
        ((float *)w)[i * DEEP * BROAD + at] = 1;
    }
  }
  bt_graph g;
  bt_run r;
  bt_open(&backend);
  backend.host.get_interface = pages_interface;
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 1, 0, &device, &err), &err);
  bt_init(&g);
  const uint32_t X =
      bt_value(&g, OPIPE_VALUE_INPUT, dtype, half ? (void *)half_x : (void *)x, BT_SHAPE(1, DEEP));
  const uint32_t W = kind == 2
                         ? bt_value(&g, OPIPE_VALUE_PARAMETER, dtype, w, BT_SHAPE(2, DEEP, BROAD))
                         : bt_value(&g, OPIPE_VALUE_PARAMETER, dtype, w,
                                    BT_SHAPE(kind == 1 ? BROAD : DEEP, kind == 1 ? DEEP : BROAD));
  const uint32_t Y = kind == 2 ? bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, y, BT_SHAPE(2, 1, BROAD))
                               : bt_value(&g, OPIPE_VALUE_OUTPUT, dtype, y, BT_SHAPE(1, BROAD));
  opipe_node *node = bt_node(&g, kind == 1 ? "Gemm" : "MatMul", BT_IN(X, W), BT_OUT(Y));
  if (kind == 1)
    bt_int(&g, node, "transB", 1);
  drops.n = 0;
  OPI_ASSERT_OK(bt_prepare(backend.table, device, &g, 0, &r, &err), &err);
  OPI_ASSERT(drops.n >= 2 || n_bytes < 8 << 20);
  const char *next = w;
  for (int i = 0; i < drops.n; ++i) {
    OPI_ASSERT(drops.begin[i] == next && drops.n_bytes[i] <= 9 << 20);
    next = drops.begin[i] + drops.n_bytes[i];
  }
  OPI_ASSERT(next == (const char *)w + n_bytes);
  const uint64_t held = usage().live_bytes[OPIPE_BUFFER_PARAMS];
  OPI_ASSERT(held >= n_bytes && held < n_bytes + n_bytes / 16);
  OPI_ASSERT_OK(bt_step(backend.table, &g, &r, &err), &err);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < stack * BROAD; ++i) {
    float wanted = 0;
    for (int64_t k = 0; k < DEEP; ++k)
      wanted += 7 * k % BROAD == i % BROAD ? x[k] : 0;
    n_wrong += (half ? cpu_f16_to_f32(((uint16_t *)y)[i]) : ((float *)y)[i]) != wanted;
  }
  OPI_ASSERT_INT(n_wrong, 0);
  bt_release(backend.table, &r);
  close_device();
  free(w), free(y);
}

static void test_sources_are_given_back_as_they_are_packed(void) {
  for (int kind = 0; kind < 3; ++kind) {
    try_pieces(kind, false, NULL);
    try_pieces(kind, true, NULL);
  }
  try_pieces(0, false, "kernels=reference,mapped=0");
}

static void test_sources_may_lie_anywhere(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *options[] = {NULL, "kernels=reference"};
  for (int i = 0; i < 2; ++i) {
    char bytes[24 * 4 + 1];
    float table[24], y[18];
    int64_t ids[3] = {1, 1, 4};
    bt_graph g;
    open_device(options[i], 0);
    fill_table(table);
    memcpy(bytes + 1, table, sizeof table);
    tied_graph(&g, (const float *)(const void *)(bytes + 1), ids, y, 3);
    OPI_ASSERT_OK(bt_run_once(backend.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
    expect_products(table, ids, y, 3);
    close_device();
  }
}

static void test_writes_are_seen_after_commit(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float table[24], written[24], back[24], y[18];
  int64_t ids[3] = {0, 3, 5};
  bt_graph g;
  bt_run r;
  opipe_params *copy = NULL;
  open_device(NULL, 0);
  const opipe_backend *t = backend.table;
  fill_table(table);
  for (int i = 0; i < 24; ++i)
    written[i] = (float)(i % 5);
  tied_graph(&g, table, ids, y, 3);
  OPI_ASSERT_OK(bt_prepare(t, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_OK(bt_step(t, &g, &r, &err), &err);
  expect_products(table, ids, y, 3);
  OPI_ASSERT_OK(t->params_clone(r.params, &copy, &err), &err);
  OPI_ASSERT_OK(t->params_write(r.params, 0, written, sizeof written, &err), &err);
  OPI_ASSERT_OK(t->params_commit(r.params, &err), &err);
  OPI_ASSERT_OK(bt_step(t, &g, &r, &err), &err);
  expect_products(written, ids, y, 3);
  OPI_ASSERT(table[0] == -3); /* the source is not touched */
  OPI_ASSERT_OK(t->params_read(r.params, 0, back, sizeof back, &err), &err);
  OPI_ASSERT_BITS(back, written, 24, OPIPE_FLOAT);
  OPI_ASSERT_OK(t->params_read(copy, 0, back, sizeof back, &err), &err);
  OPI_ASSERT_BITS(back, table, 24, OPIPE_FLOAT);
  OPI_ASSERT_ERROR(t->params_write(r.params, 0, written, 95, &err), OPIPE_E_INVALID, &err, "96");
  OPI_ASSERT_ERROR(t->params_read(r.params, 1, back, 96, &err), OPIPE_E_INVALID, &err, "slot 1");
  /* The clone carries its own layouts: it runs the program as it is. */
  opipe_binding *binding = NULL;
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                                  .n_boundaries = 2,
                                  .program = r.program,
                                  .params = copy,
                                  .arena = {r.arena, 0, r.info.arena_bytes},
                                  .boundaries = r.regions};
  OPI_ASSERT_OK(t->bind(device, &bind, &binding, &err), &err);
  OPI_ASSERT_OK(t->run(binding, r.queue, NULL, 0, &err), &err);
  OPI_ASSERT_OK(t->read(r.queue, y, &r.regions[1], &err), &err);
  expect_products(table, ids, y, 3);
  t->binding_free(binding);
  bt_release(t, &r);
  t->params_free(copy);
  OPI_ASSERT_INT(usage().live_bytes[OPIPE_BUFFER_PARAMS] + usage().mapped_bytes, 0);
  close_device();
}

static void test_unprepared_or_foreign_sets_are_refused(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float table[24], y[6];
  int64_t ids[1] = {0};
  bt_graph g;
  bt_run r;
  opipe_params *set = NULL;
  opipe_binding *binding = NULL;
  open_device(NULL, 0);
  const opipe_backend *t = backend.table;
  fill_table(table);
  tied_graph(&g, table, ids, y, 1);
  OPI_ASSERT_OK(bt_prepare(t, device, &g, 0, &r, &err), &err);
  OPI_ASSERT_OK(t->params_create(device, g.sources, 1, &set, &err), &err);
  opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                            .n_boundaries = 2,
                            .program = r.program,
                            .params = set,
                            .arena = {r.arena, 0, r.info.arena_bytes},
                            .boundaries = r.regions};
  OPI_ASSERT_ERROR(t->bind(device, &bind, &binding, &err), OPIPE_E_STATE, &err, "prepared");
  bind.params = NULL;
  OPI_ASSERT_ERROR(t->bind(device, &bind, &binding, &err), OPIPE_E_STATE, &err, "prepared");
  t->params_free(set);
  opipe_param_source other = g.sources[0];
  const int64_t turned[2] = {4, 6};
  other.shape = turned;
  OPI_ASSERT_OK(t->params_create(device, &other, 1, &set, &err), &err);
  OPI_ASSERT_ERROR(t->params_prepare(set, r.program, &err), OPIPE_E_INVALID, &err, "shape");
  t->params_free(set);
  other.n_bytes = 95;
  OPI_ASSERT_ERROR(t->params_create(device, &other, 1, &set, &err), OPIPE_E_INVALID, &err, "95");
  bt_release(t, &r);
  close_device();
}

static void test_packing_stays_within_the_cap(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  float table[24], y[6];
  int64_t ids[1] = {0};
  bt_graph g;
  bt_run r;
  open_device(NULL, 1000);
  fill_table(table);
  tied_graph(&g, table, ids, y, 1);
  OPI_ASSERT_ERROR(bt_prepare(backend.table, device, &g, 0, &r, &err), OPIPE_E_LIMIT, &err, "1000");
  OPI_ASSERT(strstr(err.message, "1024") != NULL && strstr(err.message, "v0") != NULL);
  bt_release(backend.table, &r);
  close_device();
}

OPI_TEST_MAIN("backend-cpu parameters", OPI_TEST(test_layouts_do_not_depend_on_the_batch),
              OPI_TEST(test_a_table_alone_is_used_in_place),
              OPI_TEST(test_sources_are_given_back_as_they_are_packed),
              OPI_TEST(test_sources_may_lie_anywhere), OPI_TEST(test_writes_are_seen_after_commit),
              OPI_TEST(test_unprepared_or_foreign_sets_are_refused),
              OPI_TEST(test_packing_stays_within_the_cap))
