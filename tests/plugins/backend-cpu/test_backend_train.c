/* SPDX-License-Identifier: Apache-2.0 */
/* Training slots: gradients in accumulators, whole and in micro-batches; owned sets that are read,
 * written, exported and updated; their memory as it was foretold; scalars; updates by formula.
 */
#include <math.h>

#include "backend_test.h"

enum { M = 70, K = 37, N = 130, ROWS_A = 23, BYTES = 1 << 20 };

static bt_backend backend;
static opipe_device *device;
static opipe_error err = OPIPE_ERROR_INIT;

static float x[M * K], w[K * N], bias[N], dy[M * N], y[M * N], dx[M * K];
static float wt[N * K];

static void fill(void) {
  opi_test_random random = {11};
  opi_test_fill_f32(&random, x, M * K, -1, 1);
  opi_test_fill_f32(&random, w, K * N, -1, 1);
  opi_test_fill_f32(&random, bias, N, -1, 1);
  opi_test_fill_f32(&random, dy, M * N, -1, 1);
  for (int k = 0; k < K; ++k) {
    for (int n = 0; n < N; ++n)
      wt[n * K + k] = w[k * N + n];
  }
}

static void open_device(const char *options) {
  bt_open(&backend);
  OPI_ASSERT_OK_FATAL(bt_device(&backend, options, 2, 0, &device, &err), &err);
  fill();
}

static void close_device(void) {
  backend.table->device_close(device);
  bt_close(&backend);
}

/* ---- a program with sets ---- */

typedef struct run_state {
  opipe_program *program;
  opipe_params *params, *gradients;
  opipe_buffer *arena, *boundary;
  opipe_region regions[BT_VALUES];
  opipe_binding *binding;
  opipe_queue *queue;
} run_state;

static uint64_t layout_bytes(opipe_status (*ask)(const opipe_program *, opipe_param_layout *,
                                                 uint32_t *, opipe_error *),
                             const opipe_program *program) {
  opipe_param_layout list[16];
  uint32_t n = 16;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n; ++i)
    list[i].struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes);
  OPI_ASSERT_OK_FATAL(ask(program, list, &n, &err), &err);
  for (uint32_t i = 0; i < n; ++i) {
    sum += (list[i].n_bytes + 63) / 64 * 64;
    OPI_ASSERT(list[i].key != 0);
  }
  return sum;
}

/* sets NULL: makes them, and checks that they take what was foretold. */
static void start(const bt_graph *g, uint32_t flags, const run_state *sets, run_state *r) {
  const opipe_backend *t = backend.table;
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = flags | OPIPE_COMPILE_OWNED,
      .graph = &g->graph};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_device_usage before = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  opipe_device_usage after = before;
  uint64_t total = 0;
  memset(r, 0, sizeof *r);
  OPI_ASSERT_OK_FATAL(t->compile(device, &compile, &r->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->program_info(r->program, &info, &err), &err);
  OPI_ASSERT_OK(t->device_usage(device, &before, &err), &err);
  if (sets == NULL) {
    OPI_ASSERT_OK_FATAL(
        t->params_create_owned(device, g->sources, g->graph.n_params, &r->params, &err), &err);
    OPI_ASSERT_OK_FATAL(t->gradients_create(r->params, &r->gradients, &err), &err);
  } else {
    r->params = sets->params;
    r->gradients = sets->gradients;
  }
  OPI_ASSERT_OK_FATAL(t->params_prepare(r->params, r->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_prepare(r->gradients, r->program, &err), &err);
  OPI_ASSERT_OK(t->device_usage(device, &after, &err), &err);
  if (sets == NULL) {
    OPI_ASSERT_INT(after.live_bytes[OPIPE_BUFFER_PARAMS] - before.live_bytes[OPIPE_BUFFER_PARAMS],
                   layout_bytes(t->program_params, r->program) +
                       layout_bytes(t->program_gradients, r->program));
    OPI_ASSERT_INT(after.mapped_bytes, before.mapped_bytes);
  }
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_INPUT || value->role == OPIPE_VALUE_OUTPUT) {
      r->regions[value->slot] = (opipe_region){NULL, total, value->n_bytes};
      total += (value->n_bytes + 64) / 64 * 64;
    }
  }
  OPI_ASSERT_OK_FATAL(
      t->buffer_alloc(device, info.arena_bytes, OPIPE_BUFFER_ARENA, &r->arena, &err), &err);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, total, OPIPE_BUFFER_BOUNDARY, &r->boundary, &err),
                      &err);
  for (uint32_t i = 0; i < g->graph.n_boundaries; ++i)
    r->regions[i].buffer = r->boundary;
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = g->graph.n_boundaries,
                                  .program = r->program,
                                  .params = r->params,
                                  .arena = {r->arena, 0, info.arena_bytes},
                                  .boundaries = r->regions,
                                  .gradients = r->gradients};
  OPI_ASSERT_OK_FATAL(t->bind(device, &bind, &r->binding, &err), &err);
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &r->queue, &err), &err);
}

static void run(const bt_graph *g, run_state *r, const int64_t *scalars) {
  const opipe_backend *t = backend.table;
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_INPUT)
      OPI_ASSERT_OK(t->write(r->queue, &r->regions[value->slot], g->data[value->slot], &err), &err);
  }
  OPI_ASSERT_OK(t->run(r->binding, r->queue, scalars, g->graph.n_scalars, &err), &err);
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_OUTPUT)
      OPI_ASSERT_OK(t->read(r->queue, g->data[value->slot], &r->regions[value->slot], &err), &err);
  }
}

static void stop(run_state *r, bool sets) {
  const opipe_backend *t = backend.table;
  t->queue_close(r->queue);
  t->binding_free(r->binding);
  t->buffer_free(r->arena);
  t->buffer_free(r->boundary);
  if (sets) {
    t->params_free(r->gradients);
    t->params_free(r->params);
  }
  t->program_free(r->program);
}

/* ---- a linear layer, forward and backward ---- */

static uint32_t gradient(bt_graph *g, uint32_t param) {
  const opipe_value *value = &g->values[param];
  const uint32_t v =
      bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, value->rank, value->shape);
  g->values[v].slot = value->slot;
  return v;
}

static void accumulate(bt_graph *g, uint32_t value, uint32_t param) {
  bt_node(g, "Accumulate", BT_IN(value), BT_OUT(gradient(g, param)))->domain = "opipe";
}

static opipe_node *product(bt_graph *g, uint32_t a, bool trans_a, uint32_t b, bool trans_b,
                           uint32_t out) {
  opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(a, b), BT_OUT(out));
  node->domain = "com.microsoft";
  bt_int(g, node, "transA", trans_a);
  bt_int(g, node, "transB", trans_b);
  return node;
}

/* Rows [first, first + rows) of Y = X W + b, dX, dW and db; turned: W is stored [N, K]. */
static void linear_layer(bt_graph *g, bool turned, int first, int rows) {
  static const int64_t zero = 0;
  bt_init(g);
  const uint32_t in = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, x + first * K, BT_SHAPE(rows, K));
  const uint32_t d = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, dy + first * N, BT_SHAPE(rows, N));
  const uint32_t weight = turned
                              ? bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, wt, BT_SHAPE(N, K))
                              : bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, w, BT_SHAPE(K, N));
  const uint32_t b = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, bias, BT_SHAPE(N));
  const uint32_t axes = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, &zero, BT_SHAPE(1));
  const uint32_t made = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(rows, N));
  const uint32_t out =
      bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, y + first * N, BT_SHAPE(rows, N));
  const uint32_t back =
      bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, dx + first * K, BT_SHAPE(rows, K));
  const uint32_t dw = turned ? bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(N, K))
                             : bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(K, N));
  const uint32_t db = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(N));
  product(g, in, false, weight, turned, made);
  bt_node(g, "Add", BT_IN(made, b), BT_OUT(out));
  product(g, d, false, weight, !turned, back);
  if (turned)
    product(g, d, true, in, false, dw);
  else
    product(g, in, true, d, false, dw);
  accumulate(g, dw, weight);
  bt_int(g, bt_node(g, "ReduceSum", BT_IN(d, axes), BT_OUT(db)), "keepdims", 0);
  accumulate(g, db, b);
}

static double naive_dw(int k, int n) {
  double sum = 0;
  for (int m = 0; m < M; ++m)
    sum += (double)x[m * K + k] * (double)dy[m * N + n];
  return sum;
}

static void check_near(const char *what, double found, double wanted) {
  if (!(fabs(found - wanted) <= 2e-5 * (1 + fabs(wanted))))
    OPI_FAIL("%s: %.9g, not %.9g", what, found, wanted);
}

static void check_layer(run_state *r, bool turned) {
  static float g[N * K], gb[N];
  OPI_ASSERT_OK(backend.table->params_read(r->gradients, 0, g, sizeof g, &err), &err);
  OPI_ASSERT_OK(backend.table->params_read(r->gradients, 1, gb, sizeof gb, &err), &err);
  for (int k = 0; k < K; ++k) {
    for (int n = 0; n < N; ++n)
      check_near("dW", (double)g[turned ? n * K + k : k * N + n], naive_dw(k, n));
  }
  for (int n = 0; n < N; ++n) {
    double sum = 0;
    for (int m = 0; m < M; ++m)
      sum += (double)dy[m * N + n];
    check_near("db", (double)gb[n], sum);
  }
  for (int m = 0; m < M; ++m) {
    for (int k = 0; k < K; ++k) {
      double sum = 0;
      for (int n = 0; n < N; ++n)
        sum += (double)dy[m * N + n] * (double)w[k * N + n];
      check_near("dX", (double)dx[m * K + k], sum);
    }
    for (int n = 0; n < N; ++n) {
      double sum = (double)bias[n];
      for (int k = 0; k < K; ++k)
        sum += (double)x[m * K + k] * (double)w[k * N + n];
      check_near("Y", (double)y[m * N + n], sum);
    }
  }
}

static void test_layer_against_plain_loops(void) {
  static const char *const options[] = {NULL, "kernels=reference", NULL};
  for (int i = 0; i < 6; ++i) {
    const bool turned = i % 2 != 0;
    bt_graph g;
    run_state r;
    open_device(options[i / 2]);
    linear_layer(&g, turned, 0, M);
    start(&g, OPIPE_COMPILE_POISON | (i >= 4 ? OPIPE_COMPILE_NO_FUSE : 0), NULL, &r);
    run(&g, &r, NULL);
    check_layer(&r, turned);
    stop(&r, true);
    close_device();
  }
}

/* Two micro-batches of uneven size add up to the bits of the whole batch. */
static void test_micro_batches_give_the_bits_of_one(void) {
  static float whole[N * K], parts[N * K], whole_b[N], parts_b[N];
  for (int turned = 0; turned < 2; ++turned) {
    bt_graph g, a, b;
    run_state r, s;
    open_device(NULL);
    linear_layer(&g, turned != 0, 0, M);
    start(&g, 0, NULL, &r);
    run(&g, &r, NULL);
    OPI_ASSERT_OK(backend.table->params_read(r.gradients, 0, whole, sizeof whole, &err), &err);
    OPI_ASSERT_OK(backend.table->params_read(r.gradients, 1, whole_b, sizeof whole_b, &err), &err);
    stop(&r, true);
    linear_layer(&a, turned != 0, 0, ROWS_A);
    linear_layer(&b, turned != 0, ROWS_A, M - ROWS_A);
    start(&a, 0, NULL, &r);
    start(&b, 0, &r, &s);
    run(&a, &r, NULL);
    run(&b, &s, NULL);
    OPI_ASSERT_OK(backend.table->params_read(r.gradients, 0, parts, sizeof parts, &err), &err);
    OPI_ASSERT_OK(backend.table->params_read(r.gradients, 1, parts_b, sizeof parts_b, &err), &err);
    OPI_ASSERT_BITS(parts, whole, N * K, OPIPE_FLOAT);
    OPI_ASSERT_BITS(parts_b, whole_b, N, OPIPE_FLOAT);
    check_layer(&r, turned != 0);
    stop(&s, false);
    stop(&r, true);
    close_device();
  }
}

/* ---- sets ---- */

static opipe_region master(opipe_params *set, uint32_t slot) {
  opipe_region region;
  OPI_ASSERT_OK_FATAL(backend.table->params_master(set, slot, &region, &err), &err);
  OPI_ASSERT_FATAL(region.buffer != NULL && region.n_bytes % 4 == 0);
  return region;
}

static void test_update_is_seen_by_the_next_run(void) {
  static float before[N * K], grad[N * K], after[N * K], dense[N * K];
  bt_graph g;
  run_state r;
  opipe_buffer *scratch = NULL;
  const opipe_backend *t = backend.table;
  open_device(NULL);
  t = backend.table;
  linear_layer(&g, true, 0, M);
  start(&g, 0, NULL, &r);
  run(&g, &r, NULL);
  OPI_ASSERT_OK(t->params_read(r.params, 0, before, sizeof before, &err), &err);
  OPI_ASSERT_BITS(before, wt, N * K, OPIPE_FLOAT);
  OPI_ASSERT_OK(t->params_read(r.gradients, 0, grad, sizeof grad, &err), &err);
  const opipe_region weight = master(r.params, 0);
  const opipe_update u = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                          .kind = OPIPE_UPDATE_SGD,
                          .flags = OPIPE_UPDATE_CLEAR,
                          .n_elems = weight.n_bytes / 4,
                          .weight = weight,
                          .gradient = master(r.gradients, 0),
                          .gradient_scale = 0.5,
                          .lr = 0.125};
  OPI_ASSERT_INT(u.gradient.n_bytes, weight.n_bytes);
  OPI_ASSERT_OK(t->gradients_fold(r.gradients, r.queue, 0, &err), &err);
  OPI_ASSERT_OK(t->update(r.queue, &u, &err), &err);
  OPI_ASSERT_OK(t->params_refresh(r.params, r.queue, 0, &err), &err);
  OPI_ASSERT_OK(t->params_read(r.params, 0, after, sizeof after, &err), &err);
  for (int i = 0; i < N * K; ++i)
    check_near("weight", (double)after[i], (double)before[i] - 0.0625 * (double)grad[i]);
  for (int k = 0; k < K; ++k) {
    for (int n = 0; n < N; ++n)
      w[k * N + n] = after[n * K + k];
  }
  OPI_ASSERT_OK(t->fill_zero(r.queue, &(opipe_region){master(r.gradients, 1).buffer, 0, 576}, &err),
                &err);
  run(&g, &r, NULL);
  check_layer(&r, true);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, sizeof dense, OPIPE_BUFFER_STAGING, &scratch, &err),
                      &err);
  const opipe_region region = {scratch, 0, sizeof dense};
  OPI_ASSERT_OK(t->params_export(r.params, r.queue, 0, &region, &err), &err);
  OPI_ASSERT_OK(t->read(r.queue, dense, &region, &err), &err);
  OPI_ASSERT_BITS(dense, after, N * K, OPIPE_FLOAT);
  OPI_ASSERT_OK(t->write(r.queue, &region, wt, &err), &err);
  OPI_ASSERT_OK(t->params_import(r.params, r.queue, 0, &region, &err), &err);
  OPI_ASSERT_OK(t->params_read(r.params, 0, dense, sizeof dense, &err), &err);
  OPI_ASSERT_BITS(dense, wt, N * K, OPIPE_FLOAT);
  OPI_ASSERT_OK(t->params_write(r.params, 0, after, sizeof after, &err), &err);
  OPI_ASSERT_OK(t->params_commit(r.params, &err), &err);
  opipe_params *clone = NULL;
  OPI_ASSERT_OK_FATAL(t->params_clone(r.params, &clone, &err), &err);
  OPI_ASSERT_OK(t->params_read(clone, 0, dense, sizeof dense, &err), &err);
  OPI_ASSERT_BITS(dense, after, N * K, OPIPE_FLOAT);
  t->params_free(clone);
  t->buffer_free(scratch);
  stop(&r, true);
  close_device();
}

/* A table that is gathered from and multiplied by: one copy, both gradients in one accumulator. */
static void test_tied_table(void) {
  enum { IDS = 9, V = 77, D = 70 };
  static float table[V * D], h[IDS * D], dlogits[IDS * V], de[IDS * D], rows[IDS * D];
  static float logits[IDS * V], found[V * D];
  static int64_t ids[IDS] = {3, 76, 3, 0, -1, 12, 3, 40, 12};
  static const int64_t shape[2] = {V, D};
  bt_graph g;
  run_state r;
  opi_test_random random = {3};
  opi_test_fill_f32(&random, table, V * D, -1, 1);
  opi_test_fill_f32(&random, h, IDS * D, -1, 1);
  opi_test_fill_f32(&random, dlogits, IDS * V, -1, 1);
  opi_test_fill_f32(&random, de, IDS * D, -1, 1);
  open_device(NULL);
  bt_init(&g);
  const uint32_t t = bt_value(&g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(V, D));
  const uint32_t i = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_INT64, ids, BT_SHAPE(IDS));
  const uint32_t in = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, h, BT_SHAPE(IDS, D));
  const uint32_t dl = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, dlogits, BT_SHAPE(IDS, V));
  const uint32_t d = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, de, BT_SHAPE(IDS, D));
  const uint32_t e = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, rows, BT_SHAPE(IDS, D));
  const uint32_t out = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, logits, BT_SHAPE(IDS, V));
  const uint32_t ga = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(V, D));
  const uint32_t gb = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(V, D));
  const uint32_t sum = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(V, D));
  bt_int(&g, bt_node(&g, "Gather", BT_IN(t, i), BT_OUT(e)), "axis", 0);
  product(&g, in, false, t, true, out);
  product(&g, dl, true, in, false, ga);
  opipe_node *node = bt_node(&g, "GatherGrad", BT_IN(d, i), BT_OUT(gb));
  node->domain = "opipe";
  bt_int(&g, node, "axis", 0);
  bt_ints(&g, node, "shape", 2, shape);
  bt_node(&g, "Add", BT_IN(ga, gb), BT_OUT(sum));
  accumulate(&g, sum, t);
  start(&g, OPIPE_COMPILE_POISON, NULL, &r);
  run(&g, &r, NULL);
  OPI_ASSERT_OK(backend.table->params_read(r.gradients, 0, found, sizeof found, &err), &err);
  for (int v = 0; v < V; ++v) {
    for (int c = 0; c < D; ++c) {
      double wanted = 0;
      for (int k = 0; k < IDS; ++k) {
        wanted += (double)dlogits[k * V + v] * (double)h[k * D + c];
        wanted += (ids[k] + V) % V == v ? (double)de[k * D + c] : 0;
      }
      check_near("table", (double)found[v * D + c], wanted);
    }
  }
  for (int k = 0; k < IDS; ++k)
    OPI_ASSERT_BITS(rows + k * D, table + (ids[k] + V) % V * D, D, OPIPE_FLOAT);
  uint32_t layouts = 0;
  OPI_ASSERT_OK(backend.table->program_params(r.program, NULL, &layouts, &err), &err);
  OPI_ASSERT_INT(layouts, 1);
  stop(&r, true);
  close_device();
}

static opipe_program *compile_owned(const bt_graph *g) {
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_OWNED,
      .graph = &g->graph};
  opipe_program *program = NULL;
  OPI_ASSERT_OK_FATAL(backend.table->compile(device, &compile, &program, &err), &err);
  return program;
}

/* The only layout that a program wants. */
static opipe_param_layout only_layout(const opipe_program *program) {
  opipe_param_layout layout = {.struct_size =
                                   (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes)};
  uint32_t n = 1;
  OPI_ASSERT_OK(backend.table->program_params(program, &layout, &n, &err), &err);
  OPI_ASSERT_INT(n, 1);
  return layout;
}

static uint64_t params_live(void) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  OPI_ASSERT_OK(backend.table->device_usage(device, &usage, &err), &err);
  return usage.live_bytes[OPIPE_BUFFER_PARAMS];
}

/* Runs a program that gathers, from a set that was committed. */
static void gather_rows(const bt_graph *g, const opipe_program *program, opipe_params *params,
                        opipe_status wanted) {
  const opipe_backend *t = backend.table;
  run_state r = {.params = params};
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, BYTES, OPIPE_BUFFER_BOUNDARY, &r.boundary, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &r.queue, &err), &err);
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_INPUT || value->role == OPIPE_VALUE_OUTPUT) {
      r.regions[value->slot] =
          (opipe_region){r.boundary, value->slot * (BYTES / 2), value->n_bytes};
    }
  }
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                                  .n_boundaries = g->graph.n_boundaries,
                                  .program = program,
                                  .params = params,
                                  .boundaries = r.regions};
  OPI_ASSERT_INT(t->bind(device, &bind, &r.binding, &err), wanted);
  if (r.binding != NULL)
    run(g, &r, NULL);
  t->binding_free(r.binding);
  t->queue_close(r.queue);
  t->buffer_free(r.boundary);
}

/* One program gathers from a table, another one multiplies by it: they share the product's copy,
 * in whichever order they are prepared; alone, the first has a plain one. Hosts of 1.1 do not know
 * of that. */
static void test_tied_table_of_two_programs(void) {
  enum { IDS = 9, V = 77, D = 70 };
  static float table[V * D], h[IDS * V], rows[IDS * D], out[IDS * D];
  static int64_t ids[IDS] = {3, 76, 3, 0, -1, 12, 3, 40, 12};
  bt_graph gather, multiply;
  opi_test_random random = {5};
  opi_test_fill_f32(&random, table, V * D, -1, 1);
  open_device(NULL);
  const opipe_backend *t = backend.table;
  bt_init(&gather);
  const uint32_t from =
      bt_value(&gather, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(V, D));
  const uint32_t i = bt_value(&gather, OPIPE_VALUE_INPUT, OPIPE_INT64, ids, BT_SHAPE(IDS));
  const uint32_t e = bt_value(&gather, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, rows, BT_SHAPE(IDS, D));
  bt_int(&gather, bt_node(&gather, "Gather", BT_IN(from, i), BT_OUT(e)), "axis", 0);
  bt_init(&multiply);
  const uint32_t by =
      bt_value(&multiply, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, table, BT_SHAPE(V, D));
  const uint32_t in = bt_value(&multiply, OPIPE_VALUE_INPUT, OPIPE_FLOAT, h, BT_SHAPE(IDS, V));
  const uint32_t y0 = bt_value(&multiply, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, out, BT_SHAPE(IDS, D));
  product(&multiply, in, false, by, false, y0);
  opipe_program *const panels = compile_owned(&multiply), *const follows = compile_owned(&gather);
  backend.host.abi_minor = 1;
  opipe_program *const old = compile_owned(&gather);
  const opipe_param_layout packed = only_layout(panels), plain = only_layout(follows);
  OPI_ASSERT(only_layout(old).key < OPIPE_LAYOUT_DERIVED);
  OPI_ASSERT(plain.key == OPIPE_LAYOUT_MASTER);
  for (uint32_t order = 0; order < 3; ++order) { /* 2: without the product */
    const uint64_t before = params_live();
    opipe_params *set = NULL;
    memset(rows, 0, sizeof rows);
    OPI_ASSERT_OK_FATAL(t->params_create_owned(device, gather.sources, 1, &set, &err), &err);
    if (order == 1)
      OPI_ASSERT_OK(t->params_prepare(set, panels, &err), &err);
    OPI_ASSERT_OK(t->params_prepare(set, follows, &err), &err);
    if (order == 0)
      OPI_ASSERT_OK(t->params_prepare(set, panels, &err), &err);
    if (order == 2)
      gather_rows(&gather, follows, set, OPIPE_E_STATE); /* the program has nothing to read yet */
    OPI_ASSERT_OK(t->params_commit(set, &err), &err);
    OPI_ASSERT_INT(params_live() - before, order == 2 ? plain.n_bytes : packed.n_bytes);
    gather_rows(&gather, follows, set, OPIPE_OK);
    for (int k = 0; k < IDS; ++k)
      OPI_ASSERT_BITS(rows + k * D, table + (ids[k] + V) % V * D, D, OPIPE_FLOAT);
    t->params_free(set);
  }
  t->program_free(follows);
  t->program_free(old);
  t->program_free(panels);
  close_device();
}

static void test_scalars_reach_their_nodes(void) {
  float in[4] = {1, 2, 3, 4}, out[4] = {0};
  int64_t step = 0;
  double scale = 0;
  const double factor = 2.5;
  int64_t table[2] = {41, 0};
  bt_graph g;
  run_state r;
  memcpy(&table[1], &factor, sizeof factor);
  open_device(NULL);
  bt_init(&g);
  g.graph.n_scalars = 2;
  const uint32_t s = bt_value(&g, OPIPE_VALUE_SCALAR, OPIPE_INT64, NULL, 0, NULL);
  const uint32_t d = bt_value(&g, OPIPE_VALUE_SCALAR, OPIPE_DOUBLE, NULL, 0, NULL);
  g.values[d].slot = 1;
  const uint32_t v = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, in, BT_SHAPE(4));
  const uint32_t narrow = bt_value(&g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, 0, NULL);
  const uint32_t a = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_INT64, &step, 0, NULL);
  const uint32_t b = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_DOUBLE, &scale, 0, NULL);
  const uint32_t c = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, out, BT_SHAPE(4));
  bt_node(&g, "Add", BT_IN(s, s), BT_OUT(a));
  bt_node(&g, "Neg", BT_IN(d), BT_OUT(b));
  bt_int(&g, bt_node(&g, "Cast", BT_IN(d), BT_OUT(narrow)), "to", OPIPE_FLOAT);
  bt_node(&g, "Mul", BT_IN(v, narrow), BT_OUT(c));
  start(&g, OPIPE_COMPILE_POISON, NULL, &r);
  run(&g, &r, table);
  OPI_ASSERT_INT(step, 82);
  OPI_ASSERT(scale == -2.5 && out[3] == 10.0f);
  stop(&r, true);
  close_device();
}

/* ---- element-wise slots ---- */

static void by_formula(const opipe_update *u, double *p, double g, double *m, double *v) {
  g *= u->gradient_scale;
  if (u->kind == OPIPE_UPDATE_SGD) {
    g += u->decay * *p;
    *m = u->momentum * *m + g;
    *p -= u->lr * ((u->flags & OPIPE_UPDATE_NESTEROV) != 0 ? g + u->momentum * *m : *m);
    return;
  }
  const double old = *p;
  g += u->kind == OPIPE_UPDATE_ADAM ? u->decay * *p : 0;
  *m = u->beta1 * *m + (1 - u->beta1) * g;
  *v = u->beta2 * *v + (1 - u->beta2) * g * g;
  if ((u->flags & OPIPE_UPDATE_EPS_INNER) != 0)
    *p -= u->lr * sqrt(u->correction2) / u->correction1 * *m / (sqrt(*v) + u->epsilon);
  else
    *p -= u->lr * (*m / u->correction1) / (sqrt(*v / u->correction2) + u->epsilon);
  *p -= u->kind == OPIPE_UPDATE_ADAMW ? u->lr * u->decay * old : 0;
}

static void test_updates_by_formula(void) {
  enum { COUNT = 10007, PARTS = 4 };
  static float data[PARTS][COUNT], now[PARTS][COUNT];
  static const uint32_t kinds[][2] = {{OPIPE_UPDATE_SGD, 0},
                                      {OPIPE_UPDATE_SGD, OPIPE_UPDATE_NESTEROV},
                                      {OPIPE_UPDATE_ADAM, OPIPE_UPDATE_CLEAR},
                                      {OPIPE_UPDATE_ADAMW, OPIPE_UPDATE_EPS_INNER},
                                      {OPIPE_UPDATE_ADAMW, 0}};
  opi_test_random random = {9};
  opipe_queue *queue = NULL;
  opipe_buffer *buffer = NULL;
  open_device(NULL);
  const opipe_backend *t = backend.table;
  const uint64_t part = (sizeof data[0] + 63) / 64 * 64;
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &queue, &err), &err);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, part * PARTS, OPIPE_BUFFER_PARAMS, &buffer, &err),
                      &err);
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
    opipe_region regions[PARTS];
    for (uint32_t i = 0; i < PARTS; ++i) {
      opi_test_fill_f32(&random, data[i], COUNT, i == 3 ? 0 : -1, 1);
      regions[i] = (opipe_region){buffer, i * part, sizeof data[0]};
      OPI_ASSERT_OK(t->write(queue, &regions[i], data[i], &err), &err);
    }
    const opipe_update u = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                            .kind = kinds[k][0],
                            .flags = kinds[k][1],
                            .n_elems = COUNT,
                            .weight = regions[0],
                            .gradient = regions[1],
                            .first = regions[2],
                            .second = regions[3],
                            .gradient_scale = 0.75,
                            .lr = 0.01,
                            .momentum = 0.9,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .correction1 = 0.19,
                            .correction2 = 0.001999,
                            .epsilon = 1e-8,
                            .decay = 0.1};
    OPI_ASSERT_OK(t->update(queue, &u, &err), &err);
    for (uint32_t i = 0; i < PARTS; ++i)
      OPI_ASSERT_OK(t->read(queue, now[i], &regions[i], &err), &err);
    for (int e = 0; e < COUNT; ++e) {
      double p = (double)data[0][e], m = (double)data[2][e], v = (double)data[3][e];
      by_formula(&u, &p, (double)data[1][e], &m, &v);
      check_near("weight", (double)now[0][e], p);
      check_near("first", (double)now[2][e], m);
      check_near("second", (double)now[3][e], u.kind == OPIPE_UPDATE_SGD ? (double)data[3][e] : v);
      OPI_ASSERT((u.flags & OPIPE_UPDATE_CLEAR) != 0 ? now[1][e] == 0 : now[1][e] == data[1][e]);
    }
  }
  t->buffer_free(buffer);
  t->queue_close(queue);
  close_device();
}

static void test_sums_and_norms(void) {
  enum { COUNT = 100003 };
  static float data[2][COUNT], found[COUNT];
  double norm = 0, wanted = 0, again = 0;
  opi_test_random random = {13};
  opipe_queue *queue = NULL;
  opipe_buffer *buffer = NULL;
  open_device(NULL);
  const opipe_backend *t = backend.table;
  const uint64_t part = (sizeof data[0] + 63) / 64 * 64;
  const uint64_t place = 2 * part;
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &queue, &err), &err);
  OPI_ASSERT_OK_FATAL(t->buffer_alloc(device, place + 64, OPIPE_BUFFER_PARAMS, &buffer, &err),
                      &err);
  const opipe_region a = {buffer, 0, sizeof data[0]}, b = {buffer, part, sizeof data[0]};
  const opipe_region n = {buffer, place, sizeof norm};
  for (int i = 0; i < 2; ++i)
    opi_test_fill_f32(&random, data[i], COUNT, -1, 1);
  OPI_ASSERT_OK(t->write(queue, &a, data[0], &err), &err);
  OPI_ASSERT_OK(t->write(queue, &b, data[1], &err), &err);
  OPI_ASSERT_OK(t->sum_squares(queue, &n, &a, &err), &err);
  OPI_ASSERT_OK(t->read(queue, &norm, &n, &err), &err);
  OPI_ASSERT_OK(t->sum_squares(queue, &n, &a, &err), &err);
  OPI_ASSERT_OK(t->read(queue, &again, &n, &err), &err);
  for (int i = 0; i < COUNT; ++i)
    wanted += (double)data[0][i] * (double)data[0][i];
  OPI_ASSERT(fabs(norm - wanted) < 1e-9 * wanted && norm == again);
  OPI_ASSERT_OK(t->add(queue, &a, &b, &err), &err);
  OPI_ASSERT_OK(t->read(queue, found, &a, &err), &err);
  for (int i = 0; i < COUNT; ++i)
    OPI_ASSERT(found[i] == data[0][i] + data[1][i]);
  data[0][77] = INFINITY;
  OPI_ASSERT_OK(t->write(queue, &a, data[0], &err), &err);
  OPI_ASSERT_OK(t->sum_squares(queue, &n, &a, &err), &err);
  OPI_ASSERT_OK(t->read(queue, &norm, &n, &err), &err);
  OPI_ASSERT(isinf(norm));
  OPI_ASSERT_ERROR(t->add(queue, &a, &n, &err), OPIPE_E_INVALID, &err, "add: source");
  t->buffer_free(buffer);
  t->queue_close(queue);
  close_device();
}

OPI_TEST_MAIN("backend_train", OPI_TEST(test_layer_against_plain_loops),
              OPI_TEST(test_micro_batches_give_the_bits_of_one),
              OPI_TEST(test_update_is_seen_by_the_next_run), OPI_TEST(test_tied_table),
              OPI_TEST(test_tied_table_of_two_programs), OPI_TEST(test_scalars_reach_their_nodes),
              OPI_TEST(test_updates_by_formula), OPI_TEST(test_sums_and_norms))
