/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the CUDA backend: the doubles and the plugin on them, opened from the
 * build tree; a program of one Gather.
 */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_CUDA_TEST_H_
#define TESTS_PLUGINS_BACKEND_CUDA_CUDA_TEST_H_

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "tests/plugins/backend-cpu/backend_test.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

typedef struct ct_backend {
  bt_backend base; /* memory, host, plugin, table, self */
  cuda_driver driver;
  void (*look)(cuda_double_facts *out);
  void *double_hold; /* cuda_double_hold */
} ct_backend;

static inline uint64_t ct_now(void *ctx) {
  struct timespec now;
  (void)ctx;
  (void)timespec_get(&now, TIME_UTC); /* for limits of time only */
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* False, after a skip: this build has no doubles. */
static inline bool ct_open_with(ct_backend *b,
                                const void *(*get_interface)(void *ctx, const char *id)) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(b, 0, sizeof *b);
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  void *plugin =
      dlopen(opi_test_build("tests/cuda/plugins/opipe-backend-cuda.so"), RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL || plugin == NULL)
    return false;
  opi_test_memory_init(&b->base.memory);
  b->base.host = (opipe_host){.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                              .abi_major = OPIPE_ABI_MAJOR,
                              .abi_minor = OPIPE_ABI_MINOR,
                              .ctx = &b->base.memory.allocator,
                              .realloc = bt_realloc,
                              .log = bt_log,
                              .now_ns = ct_now,
                              .get_interface = get_interface};
#define CT_TAKE(member, symbol, result, arguments) \
  *(void **)(void *)&b->driver.member = dlsym(driver, #symbol);
  CUDA_DRIVER_FUNCTIONS(CT_TAKE)
  *(void **)(void *)&b->look = dlsym(driver, "cuda_double_look");
  b->double_hold = dlsym(driver, "cuda_double_hold");
  b->base.plugin = dlsym(plugin, "opipe_plugin_v1");
  OPI_ASSERT_FATAL(b->base.plugin != NULL && b->look != NULL && b->double_hold != NULL);
  OPI_ASSERT_OK_FATAL(b->base.plugin->open(&b->base.host, &b->base.self, &err), &err);
  b->base.table = b->base.plugin->get_interface(b->base.self, OPIPE_BACKEND_ID);
  OPI_ASSERT_FATAL(b->base.table != NULL);
  return true;
}

static inline bool ct_open(ct_backend *b) {
  return ct_open_with(b, bt_interface);
}

#define CT_WHY "the doubles of CUDA need a C++ compiler at build"
#define CT_OPEN(b) \
  if (!ct_open(b)) \
  OPI_SKIP("%s", CT_WHY)

/* n numbers of a seed's, from -1/2 to 1/2. */
static inline void ct_draw(float *out, size_t n, uint64_t seed) {
  opi_test_random random = {seed};
  opi_test_fill_f32(&random, out, n, -0.5, 0.5);
}

/* Runs it n times, and waits. */
static inline void ct_step(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                           bt_run *run, int n) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_event *event = NULL;
  for (int i = 0; i < n; ++i)
    OPI_ASSERT_OK(bt_step(t, g, run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run->queue, event, &err), &err);
  OPI_ASSERT_OK(t->event_sync(event, UINT64_C(120000000000), &err), &err);
  t->event_destroy(event);
}

/* A program of the graph that has run n times and is done; whoever asked for it releases it. */
static inline void ct_run(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                          uint32_t flags, int n, bt_run *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, g, flags, out, &err), &err);
  ct_step(t, device, g, out, n);
}

/* rows [n_rows, 3] = table [4, 3] at ids [n_rows] (int64) */
typedef struct ct_gather {
  bt_graph graph;
  opipe_program *program;
  opipe_buffer *memory;
  opipe_binding *binding;
  opipe_params *params;
  opipe_region ids, rows;
} ct_gather;

enum { CT_ROWS = 5 };
static const float ct_table[12] = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32};

static inline void ct_make_gather(const opipe_backend *t, opipe_device *device, ct_gather *g) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  memset(g, 0, sizeof *g);
  bt_init(&g->graph);
  const uint32_t table =
      bt_value(&g->graph, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, ct_table, BT_SHAPE(4, 3));
  const uint32_t ids = bt_value(&g->graph, OPIPE_VALUE_INPUT, OPIPE_INT64, NULL, BT_SHAPE(CT_ROWS));
  const uint32_t rows =
      bt_value(&g->graph, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, NULL, BT_SHAPE(CT_ROWS, 3));
  opipe_node *node = bt_node(&g->graph, "Gather", BT_IN(table, ids), BT_OUT(rows));
  node->name = "tokens";
  bt_int(&g->graph, node, "axis", 0);
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph), .graph = &g->graph.graph};
  OPI_ASSERT_OK_FATAL(t->compile(device, &compile, &g->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->program_info(g->program, &info, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_create(device, g->graph.sources, 1, &g->params, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_prepare(g->params, g->program, &err), &err);
  OPI_ASSERT_OK_FATAL(
      t->buffer_alloc(device, info.arena_bytes + 1024, OPIPE_BUFFER_ARENA, &g->memory, &err), &err);
  g->ids = (opipe_region){g->memory, info.arena_bytes, CT_ROWS * sizeof(int64_t)};
  g->rows = (opipe_region){g->memory, info.arena_bytes + 512, CT_ROWS * 3 * sizeof(float)};
  const opipe_region boundaries[] = {g->ids, g->rows};
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                                  .n_boundaries = 2,
                                  .program = g->program,
                                  .params = g->params,
                                  .arena = {g->memory, 0, info.arena_bytes},
                                  .boundaries = boundaries};
  OPI_ASSERT_OK_FATAL(t->bind(device, &bind, &g->binding, &err), &err);
}

static inline void ct_free_gather(const opipe_backend *t, ct_gather *g) {
  t->binding_free(g->binding);
  t->buffer_free(g->memory);
  t->params_free(g->params);
  t->program_free(g->program);
}

#endif /* TESTS_PLUGINS_BACKEND_CUDA_CUDA_TEST_H_ */
