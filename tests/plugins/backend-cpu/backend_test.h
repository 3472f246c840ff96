/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the CPU backend: the plugin, opened from the build tree with memory that
 * counts; small graphs; one call that compiles, binds and runs.
 */
#ifndef TESTS_PLUGINS_BACKEND_CPU_BACKEND_TEST_H_
#define TESTS_PLUGINS_BACKEND_CPU_BACKEND_TEST_H_

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "opipe/helpers.h"
#include "tests/support/support.h"

enum { BT_VALUES = 48, BT_NODES = 24, BT_OPERANDS = 10, BT_ATTRS = 8, BT_RANK = 6 };

/* ---- graphs ---- */

typedef struct bt_graph {
  opipe_graph graph;
  opipe_value values[BT_VALUES];
  int64_t shapes[BT_VALUES][BT_RANK];
  char names[BT_VALUES][16];
  opipe_node nodes[BT_NODES];
  uint32_t in[BT_NODES][BT_OPERANDS], out[BT_NODES][BT_OPERANDS];
  opipe_attr attrs[BT_NODES][BT_ATTRS];
  /* boundaries: data of inputs (read) and outputs (written) by slot; parameters by slot */
  void *data[BT_VALUES];
  opipe_param_source sources[BT_VALUES];
} bt_graph;

static inline void bt_init(bt_graph *g) {
  memset(g, 0, sizeof *g);
  g->graph.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars);
  g->graph.values = g->values;
  g->graph.nodes = g->nodes;
}

/* A value; data: of constants and parameters the content, of inputs and outputs the host memory to
 * write from and read to. */
static inline uint32_t bt_value(bt_graph *g, uint32_t role, uint32_t dtype, const void *data,
                                uint32_t rank, const int64_t *shape) {
  const uint32_t v = g->graph.n_values++;
  opipe_value *value = &g->values[v];
  (void)snprintf(g->names[v], sizeof g->names[v], "v%u", v);
  for (uint32_t i = 0; i < rank; ++i)
    g->shapes[v][i] = shape[i];
  *value = (opipe_value){
      .name = g->names[v], .shape = g->shapes[v], .dtype = dtype, .rank = rank, .role = role};
  (void)opipe_tensor_bytes(dtype, shape, rank, &value->n_bytes);
  if (role == OPIPE_VALUE_CONSTANT)
    value->data = data;
  if (role == OPIPE_VALUE_INPUT || role == OPIPE_VALUE_OUTPUT) {
    value->slot = g->graph.n_boundaries++;
    memcpy(&g->data[value->slot], &data, sizeof data);
  }
  if (role == OPIPE_VALUE_PARAMETER) {
    value->slot = g->graph.n_params++;
    g->sources[value->slot] =
        (opipe_param_source){g->names[v], data, g->shapes[v], value->n_bytes, dtype, rank, 0};
  }
  return v;
}

#define BT_SHAPE(...)                                                                 \
  (uint32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
    __VA_ARGS__                                                                       \
  }

/* A node; inputs and outputs end with BT_END. */
#define BT_END (OPIPE_NONE - 1)
static inline opipe_node *bt_node(bt_graph *g, const char *op, const uint32_t *in,
                                  const uint32_t *out) {
  const uint32_t n = g->graph.n_nodes++;
  opipe_node *node = &g->nodes[n];
  *node = (opipe_node){.name = op, .op = op, .domain = "", .in = g->in[n], .out = g->out[n]};
  node->attrs = g->attrs[n];
  for (; in[node->n_in] != BT_END; ++node->n_in)
    g->in[n][node->n_in] = in[node->n_in];
  for (; out[node->n_out] != BT_END; ++node->n_out)
    g->out[n][node->n_out] = out[node->n_out];
  return node;
}
#define BT_IN(...)      \
  (const uint32_t[]) {  \
    __VA_ARGS__, BT_END \
  }
#define BT_OUT BT_IN

static inline void bt_int(bt_graph *g, opipe_node *node, const char *name, int64_t value) {
  g->attrs[node - g->nodes][node->n_attrs++] =
      (opipe_attr){.name = name, .i = value, .kind = OPIPE_ATTR_INT};
}

static inline void bt_float(bt_graph *g, opipe_node *node, const char *name, double value) {
  g->attrs[node - g->nodes][node->n_attrs++] =
      (opipe_attr){.name = name, .f = value, .kind = OPIPE_ATTR_FLOAT};
}

static inline void bt_text(bt_graph *g, opipe_node *node, const char *name, const char *value) {
  g->attrs[node - g->nodes][node->n_attrs++] = (opipe_attr){
      .name = name, .data = value, .kind = OPIPE_ATTR_STRING, .n = (uint32_t)strlen(value)};
}

static inline void bt_ints(bt_graph *g, opipe_node *node, const char *name, uint32_t n,
                           const int64_t *values) {
  g->attrs[node - g->nodes][node->n_attrs++] =
      (opipe_attr){.name = name, .data = values, .kind = OPIPE_ATTR_INTS, .n = n};
}

/* ---- the plugin ---- */

typedef struct bt_backend {
  opi_test_memory memory;
  opipe_host host;
  const opipe_plugin *plugin;
  const opipe_backend *table;
  opipe_instance *self;
} bt_backend;

static inline void *bt_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size,
                               size_t align) {
  const opipe_allocator *allocator = ctx;
  return allocator->realloc(allocator->ctx, ptr, old_size, new_size, align);
}

static inline void bt_log(void *ctx, uint32_t level, const char *file, uint32_t line,
                          const char *msg) {
  (void)ctx;
  fprintf(stderr, "%u %s:%u %s\n", level, file, line, msg);
}

static inline uint64_t bt_now(void *ctx) {
  (void)ctx;
  return 0;
}

static inline const void *bt_interface(void *ctx, const char *id) {
  (void)ctx;
  (void)id;
  return NULL;
}

/* Fails the running test when the plugin is not there. */
static inline void bt_open(bt_backend *b) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(b, 0, sizeof *b);
  opi_test_memory_init(&b->memory);
  b->host = (opipe_host){.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                         .abi_major = OPIPE_ABI_MAJOR,
                         .abi_minor = OPIPE_ABI_MINOR,
                         .ctx = &b->memory.allocator,
                         .realloc = bt_realloc,
                         .log = bt_log,
                         .now_ns = bt_now,
                         .get_interface = bt_interface};
  void *library =
      dlopen(opi_test_build("lib/onnx-pipe/opipe-backend-cpu.so"), RTLD_NOW | RTLD_LOCAL);
  OPI_ASSERT_FATAL(library != NULL);
  b->plugin = dlsym(library, "opipe_plugin_v1");
  OPI_ASSERT_FATAL(b->plugin != NULL);
  OPI_ASSERT_OK_FATAL(b->plugin->open(&b->host, &b->self, &err), &err);
  b->table = b->plugin->get_interface(b->self, OPIPE_BACKEND_ID);
  OPI_ASSERT_FATAL(b->table != NULL);
}

static inline void bt_close(bt_backend *b) {
  b->plugin->close(b->self);
  OPI_ASSERT(opi_test_memory_end(&b->memory));
}

static inline opipe_status bt_device(bt_backend *b, const char *options, uint32_t threads,
                                     uint64_t cap, opipe_device **out_device, opipe_error *err) {
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .memory_bytes = cap,
      .threads = threads,
      .options = options};
  return b->table->device_open(b->self, &params, out_device, err);
}

/* Devices that sum products of bytes in every way that there is; a machine without the instructions
 * refuses with OPIPE_E_UNSUPPORTED. The first is the reference. */
static const char *const bt_byte_options[] = {"kernels=reference",
                                              "kernels=portable",
                                              "kernels=portable,int8=tiles-model",
                                              "kernels=avx2",
                                              "kernels=avx2,int8=plain",
                                              "kernels=avx512",
                                              "kernels=avx512,int8=plain",
                                              "kernels=avx512,int8=vnni"};
enum { BT_BYTE_OPTIONS = sizeof bt_byte_options / sizeof bt_byte_options[0] };

/* ---- compile, bind, run, read back ---- */

typedef struct bt_run {
  opipe_program *program;
  opipe_program_info info;
  opipe_params *params, *gradients; /* gradients: with OPIPE_COMPILE_OWNED */
  opipe_buffer *arena, *boundary;
  opipe_region regions[BT_VALUES];
  opipe_binding *binding;
  opipe_queue *queue;
} bt_run;

static inline void bt_release(const opipe_backend *t, bt_run *r) {
  t->queue_close(r->queue);
  t->binding_free(r->binding);
  t->buffer_free(r->arena);
  t->buffer_free(r->boundary);
  t->params_free(r->gradients);
  t->params_free(r->params);
  t->program_free(r->program);
}

/* The sets of a graph with parameters. */
static inline opipe_status bt_parameters(const opipe_backend *t, opipe_device *device,
                                         const bt_graph *g, uint32_t flags, bt_run *r,
                                         opipe_error *err) {
  const bool owned = (flags & OPIPE_COMPILE_OWNED) != 0;
  opipe_status s = (owned ? t->params_create_owned : t->params_create)(
      device, g->sources, g->graph.n_params, &r->params, err);
  if (s >= 0 && owned)
    s = t->gradients_create(r->params, &r->gradients, err);
  if (s >= 0)
    s = t->params_prepare(r->params, r->program, err);
  if (s >= 0 && owned)
    s = t->params_prepare(r->gradients, r->program, err);
  return s;
}

/* On failure what was made stays in *r for bt_release. */
static inline opipe_status bt_prepare(const opipe_backend *t, opipe_device *device,
                                      const bt_graph *g, uint32_t flags, bt_run *r,
                                      opipe_error *err) {
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = flags,
      .graph = &g->graph};
  uint64_t total = 0;
  memset(r, 0, sizeof *r);
  r->info.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes);
  opipe_status s = t->compile(device, &compile, &r->program, err);
  if (s >= 0)
    s = t->program_info(r->program, &r->info, err);
  if (s >= 0 && g->graph.n_params > 0)
    s = bt_parameters(t, device, g, flags, r, err);
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT)
      continue;
    r->regions[value->slot].offset_bytes = total;
    r->regions[value->slot].n_bytes = value->n_bytes;
    total += (value->n_bytes + 256) / 256 * 256; /* any device's alignment */
  }
  if (s >= 0)
    s = t->buffer_alloc(device, r->info.arena_bytes, OPIPE_BUFFER_ARENA, &r->arena, err);
  if (s >= 0)
    s = t->buffer_alloc(device, total, OPIPE_BUFFER_BOUNDARY, &r->boundary, err);
  for (uint32_t i = 0; i < g->graph.n_boundaries; ++i)
    r->regions[i].buffer = r->boundary;
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = g->graph.n_boundaries,
                                  .program = r->program,
                                  .params = r->params,
                                  .arena = {r->arena, 0, r->info.arena_bytes},
                                  .boundaries = r->regions,
                                  .gradients = r->gradients};
  if (s >= 0)
    s = t->bind(device, &bind, &r->binding, err);
  if (s >= 0)
    s = t->queue_open(device, &r->queue, err);
  return s;
}

/* Writes the inputs, runs, reads the outputs. */
static inline opipe_status bt_step(const opipe_backend *t, const bt_graph *g, bt_run *r,
                                   opipe_error *err) {
  opipe_status s = OPIPE_OK;
  for (uint32_t v = 0; s >= 0 && v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_INPUT)
      s = t->write(r->queue, &r->regions[value->slot], g->data[value->slot], err);
  }
  if (s >= 0)
    s = t->run(r->binding, r->queue, NULL, 0, err);
  for (uint32_t v = 0; s >= 0 && v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_OUTPUT)
      s = t->read(r->queue, g->data[value->slot], &r->regions[value->slot], err);
  }
  return s;
}

static inline opipe_status bt_run_once(const opipe_backend *t, opipe_device *device,
                                       const bt_graph *g, uint32_t flags, opipe_error *err) {
  bt_run r;
  opipe_status s = bt_prepare(t, device, g, flags, &r, err);
  if (s >= 0)
    s = bt_step(t, g, &r, err);
  bt_release(t, &r);
  return s;
}

#endif
