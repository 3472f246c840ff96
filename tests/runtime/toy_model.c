/* SPDX-License-Identifier: Apache-2.0 */
/* The toy model: its file graph, its bound graphs, how it carries the batch, and plans for it. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/toy.h"

/* The toy whose graph is bound: the hook has the model only. */
static toy *owner_of(const opi_model *model) {
  return (toy *)(void *)((char *)(uintptr_t)model - offsetof(toy, model));
}

static float weight(uint32_t node, uint32_t i) {
  return 0.5f + 0.01f * (float)((node * 7 + i * 3) % 50);
}

static const float constant_data[2] = {1.0f, 2.0f};

/* ---- the file's graph ---- */

static opipe_status make_file_graph(toy *t, opipe_error *err) {
  static const char *const outputs[TOY_OUTPUTS] = {"y", "mid", "x", "c", "q", "t", "f"};
  static const int64_t x_shape[3] = {-1, -1, TOY_WIDTH}, p_shape[1] = {TOY_WIDTH};
  opi_model *m = &t->model;
  opi_arena_init(&m->arena, t->allocator, 0);
  m->allocator = t->allocator;
  m->graph = opi_graph_new(&m->arena, "toy");
  if (m->graph == NULL)
    return opi_fail_nomem(err, 0, "toy");
  const uint32_t x = opi_graph_add_value(m->graph, "x", OPIPE_FLOAT, x_shape, 3);
  const uint32_t p =
      opi_graph_add_value(m->graph, "p", t->needs_value ? OPIPE_INT64 : OPIPE_FLOAT, p_shape, 1);
  if (x == OPIPE_NONE || p == OPIPE_NONE)
    return opi_fail_nomem(err, 0, "toy");
  const char **names = OPI_ARENA_ARRAY(&m->arena, const char *, 3);
  if (names == NULL)
    return opi_fail_nomem(err, 0, "toy");
  names[0] = "batch";
  names[1] = "seq";
  m->graph->values[x].dim_names = names;
  if (!opi_graph_add_input(m->graph, x) || !opi_graph_add_input(m->graph, p))
    return opi_fail_nomem(err, 0, "toy");
  for (uint32_t o = 0; o < TOY_OUTPUTS; ++o) {
    const uint32_t v =
        o == TOY_X ? x : opi_graph_add_value(m->graph, outputs[o], OPIPE_FLOAT, x_shape, 3);
    if (v == OPIPE_NONE || !opi_graph_add_output(m->graph, v))
      return opi_fail_nomem(err, 0, "toy");
  }
  return OPIPE_OK;
}

/* ---- bound graphs ---- */

typedef struct maker {
  const toy *t;
  opi_graph *g;
  opi_arena *arena;
  int64_t rows, seq;
  bool failed;
} maker;

static uint32_t add_value(maker *m, const char *name, const int64_t *shape, int32_t rank) {
  const char *own = opi_arena_strdup(m->arena, name);
  const uint32_t v =
      own == NULL ? OPIPE_NONE : opi_graph_add_value(m->g, own, OPIPE_FLOAT, shape, rank);
  if (v == OPIPE_NONE) {
    m->failed = true;
    return 0;
  }
  (void)opi_tensor_bytes(OPIPE_FLOAT, shape, (uint32_t)rank, &m->g->values[v].n_bytes);
  return v;
}

static uint32_t add_known(maker *m, const char *name, const float *data, int64_t n) {
  const uint32_t v = add_value(m, name, &n, 1);
  if (!m->failed) {
    m->g->values[v].data = opi_arena_copy(m->arena, data, (size_t)n * sizeof *data);
    m->g->values[v].flags |= OPI_VALUE_INITIALIZER;
    m->failed = m->g->values[v].data == NULL;
  }
  return v;
}

static uint32_t add_weight(maker *m, uint32_t node) {
  float data[TOY_WIDTH];
  char name[32];
  for (uint32_t i = 0; i < TOY_WIDTH; ++i)
    data[i] = weight(node, i);
  (void)snprintf(name, sizeof name, "w%u", node);
  return add_known(m, name, data, TOY_WIDTH);
}

static void add_node(maker *m, const char *op, uint32_t a, uint32_t b, uint32_t out) {
  char name[64];
  if (m->failed)
    return;
  (void)snprintf(name, sizeof name, "node_%s", m->g->values[out].name);
  const char *own = opi_arena_strdup(m->arena, name);
  opi_node *node =
      own == NULL ? NULL : opi_graph_add_node(m->g, own, op, "toy", b == OPIPE_NONE ? 1 : 2, 1, 0);
  if (node == NULL) {
    m->failed = true;
    return;
  }
  node->in[0] = a;
  if (b != OPIPE_NONE)
    node->in[1] = b;
  node->out[0] = out;
  m->g->values[out].producer = m->g->n_nodes - 1;
}

/* q: a node, or folded where p is pinned. */
static uint32_t add_q(maker *m, const opi_bind_options *options) {
  static const int64_t shape[1] = {TOY_WIDTH};
  if (!m->t->needs_value) {
    const uint32_t p = add_value(m, "p", shape, 1);
    const uint32_t w = add_weight(m, 100);
    const uint32_t q = add_value(m, "q", shape, 1);
    if (!m->failed)
      m->failed = !opi_graph_add_input(m->g, p);
    add_node(m, "Mix", p, w, q);
    return q;
  }
  float data[TOY_WIDTH];
  for (uint32_t i = 0; i < TOY_WIDTH; ++i)
    data[i] = (float)((const int64_t *)options->pins[0].data)[i] * weight(100, i) + 0.25f;
  return add_known(m, "q", data, TOY_WIDTH);
}

static void add_chain(maker *m, uint32_t x, uint32_t *out_y, uint32_t *out_mid) {
  const int64_t shape[3] = {m->rows, m->seq, TOY_WIDTH};
  const uint32_t n = m->t->shape.n_nodes;
  uint32_t h[TOY_MAX_NODES + 1];
  h[0] = x;
  for (uint32_t i = 0; i < n && !m->failed; ++i) {
    char name[32];
    (void)snprintf(name, sizeof name, "h%u", i);
    const bool adds = i % 3 == 2;
    const uint32_t w = adds ? 0 : add_weight(m, i);
    h[i + 1] = add_value(m, i + 1 == n ? "y" : i == (n - 1) / 2 ? "mid" : name, shape, 3);
    add_node(m, adds ? "Add" : "Mix", h[i], adds ? h[i - 2] : w, h[i + 1]);
  }
  *out_y = h[n];
  *out_mid = h[(n - 1) / 2 + 1];
}

static void build(maker *m, const opi_bind_options *options) {
  const int64_t shape[3] = {m->rows, m->seq, TOY_WIDTH}, swapped[3] = {m->seq, m->rows, TOY_WIDTH};
  const int64_t flat[2] = {m->rows * m->seq, TOY_WIDTH};
  uint32_t y = 0, mid = 0;
  const uint32_t x = add_value(m, "x", shape, 3);
  if (!m->failed)
    m->failed = !opi_graph_add_input(m->g, x);
  const uint32_t q = add_q(m, options);
  add_chain(m, x, &y, &mid);
  const uint32_t c = add_known(m, "c", constant_data, 2);
  const uint32_t t = add_value(m, "t", swapped, 3), f = add_value(m, "f", flat, 2);
  add_node(m, "Swap", y, OPIPE_NONE, t);
  add_node(m, "Flat", y, OPIPE_NONE, f);
  const uint32_t outputs[TOY_OUTPUTS] = {y, mid, x, c, q, t, f};
  for (uint32_t o = 0; o < TOY_OUTPUTS && !m->failed; ++o)
    m->failed = !opi_graph_add_output(m->g, outputs[o]);
}

static opipe_status toy_bind(const opi_model *model, const opi_bind_options *options,
                             opi_bound **out_bound, opipe_error *err) {
  toy *t = owner_of(model);
  maker m = {.t = t};
  for (uint32_t i = 0; i < options->n_dims; ++i) {
    if (strcmp(options->dims[i].name, "batch") == 0)
      m.rows = options->dims[i].value;
    if (strcmp(options->dims[i].name, "seq") == 0)
      m.seq = options->dims[i].value;
  }
  ++t->n_binds;
  if (t->needs_value && options->n_pins == 0) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "node 'node_q' (Mix): needs the value of graph input 'p': pin it to a constant");
  }
  opi_bound *bound = opi_alloc_zero(t->allocator, 1, sizeof *bound);
  if (bound == NULL)
    return opi_fail_nomem(err, sizeof *bound, "toy");
  opi_arena_init(&bound->arena, t->allocator, 0);
  m.arena = &bound->arena;
  m.g = bound->graph = opi_graph_new(&bound->arena, "toy");
  m.failed = m.g == NULL;
  if (!m.failed)
    build(&m, options);
  if (m.failed) {
    opi_bound_free(bound);
    return opi_fail_nomem(err, 0, "toy");
  }
  *out_bound = bound;
  return OPIPE_OK;
}

static opipe_status toy_carry(const opi_graph *g, const opi_carry *in, opi_carry *out,
                              opipe_error *err) {
  (void)err;
  for (uint32_t v = 0; v < g->n_values; ++v)
    out[v] = (opi_carry){.axis = -1};
  for (uint32_t i = 0; i < g->n_inputs; ++i)
    out[g->inputs[i]] = in[i];
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    opi_carry carry = out[node->in[0]];
    if (strcmp(node->op, "Swap") == 0)
      carry.axis = 1;
    if (strcmp(node->op, "Flat") == 0)
      carry.inner = g->values[node->in[0]].shape[1];
    out[node->out[0]] = carry;
  }
  return OPIPE_OK;
}

/* ---- plans ---- */

static uint32_t rank_of(const toy_plan *shape, uint32_t stage) {
  return shape->rank_of_stage != NULL ? shape->rank_of_stage[stage] : stage % shape->n_ranks;
}

static void add_actions(opi_decision *plan, const toy_plan *shape, uint32_t rank) {
  const uint32_t outer = shape->by_microbatch ? shape->n_microbatches : shape->n_stages;
  const uint32_t inner = shape->by_microbatch ? shape->n_stages : shape->n_microbatches;
  for (uint32_t a = 0; a < outer; ++a) {
    for (uint32_t b = 0; b < inner; ++b) {
      const uint32_t stage = shape->by_microbatch ? b : a, m = shape->by_microbatch ? a : b;
      if (rank_of(shape, stage) != rank)
        continue;
      plan->actions[plan->n_actions++] =
          (opipe_action){.rank = rank, .stage = stage, .microbatch = m};
    }
  }
}

/* Nodes in order, in equal portions. */
static opipe_status assign_nodes(toy *t, opi_plan *plan, opipe_error *err) {
  opi_bound *bound = NULL;
  static const int64_t zeros[TOY_WIDTH];
  static const int64_t pin_shape[1] = {TOY_WIDTH};
  const opi_dim_binding dims[2] = {{"batch", 1}, {"seq", 1}};
  const opi_pin pin = {
      .input = "p", .data = zeros, .shape = pin_shape, .rank = 1, .dtype = OPIPE_INT64};
  const opi_bind_options options = {.dims = dims,
                                    .n_dims = 2,
                                    .pins = &pin,
                                    .n_pins = t->needs_value ? 1 : 0,
                                    .allocator = t->allocator};
  OPI_TRY(toy_bind(&t->model, &options, &bound, err));
  const opi_graph *g = bound->graph;
  plan->decided.n_nodes = g->n_nodes;
  plan->decided.node_keys = OPI_ARENA_ARRAY(&plan->arena, const char *, g->n_nodes);
  plan->decided.stage_of_node = OPI_ARENA_ARRAY(&plan->arena, uint32_t, g->n_nodes);
  bool failed = plan->decided.node_keys == NULL || plan->decided.stage_of_node == NULL;
  for (uint32_t n = 0; n < g->n_nodes && !failed; ++n) {
    plan->decided.node_keys[n] = opi_arena_strdup(&plan->arena, g->values[g->nodes[n].out[0]].name);
    plan->decided.stage_of_node[n] = n * plan->decided.n_stages / g->n_nodes;
    failed = plan->decided.node_keys[n] == NULL;
  }
  if (t->needs_value && !failed) {
    plan->decided.binding.pins = OPI_ARENA_ARRAY(&plan->arena, opi_pin, 1);
    failed = plan->decided.binding.pins == NULL;
    if (!failed) {
      plan->decided.binding.pins[0] = pin;
      plan->decided.binding.n_pins = 1;
    }
  }
  opi_bound_free(bound);
  return failed ? opi_fail_nomem(err, 0, "toy") : OPIPE_OK;
}

static opipe_status make_plan(toy *t, opipe_error *err) {
  const toy_plan *shape = &t->shape;
  OPI_TRY(opi_plan_new(t->allocator, &t->plan, err));
  opi_plan *plan = t->plan;
  const uint32_t n_actions = shape->n_stages * shape->n_microbatches;
  plan->decided.binding.dims = OPI_ARENA_ARRAY(&plan->arena, opi_dim_binding, 2);
  plan->decided.devices = OPI_ARENA_ARRAY(&plan->arena, opi_device_spec, shape->n_ranks);
  plan->decided.instance_rank = OPI_ARENA_ARRAY(&plan->arena, uint32_t, shape->n_stages);
  plan->decided.actions = OPI_ARENA_ARRAY(&plan->arena, opipe_action, n_actions);
  plan->decided.rank_first = OPI_ARENA_ARRAY(&plan->arena, uint32_t, (size_t)shape->n_ranks + 1);
  if (plan->decided.binding.dims == NULL || plan->decided.devices == NULL ||
      plan->decided.instance_rank == NULL || plan->decided.actions == NULL ||
      plan->decided.rank_first == NULL)
    return opi_fail_nomem(err, 0, "toy");
  plan->decided.binding.n_dims = 2;
  plan->decided.binding.dims[0] = (opi_dim_binding){"batch", shape->rows};
  plan->decided.binding.dims[1] = (opi_dim_binding){"seq", shape->seq};
  plan->decided.binding.batch_dim = "batch";
  plan->decided.binding.batch_rows = shape->rows;
  plan->decided.n_microbatches = shape->n_microbatches;
  plan->decided.n_ranks = shape->n_ranks;
  plan->decided.n_stages = shape->n_stages;
  plan->decided.n_replicas = 1;
  plan->decided.schedule.name = "toy";
  plan->decided.in_flight = shape->in_flight;
  plan->decided.depth = shape->depth;
  for (uint32_t r = 0; r < shape->n_ranks; ++r) {
    plan->decided.devices[r] = (opi_device_spec){.kind = "toy",
                                                 .options = "",
                                                 .index = r,
                                                 .threads = 1,
                                                 .flags = t->faults.device_flags,
                                                 .memory_bytes = shape->memory_bytes};
    plan->decided.rank_first[r] = plan->decided.n_actions;
    add_actions(&plan->decided, shape, r);
  }
  plan->decided.rank_first[shape->n_ranks] = plan->decided.n_actions;
  for (uint32_t s = 0; s < shape->n_stages; ++s)
    plan->decided.instance_rank[s] = rank_of(shape, s);
  return assign_nodes(t, plan, err);
}

/* ---- the whole ---- */

static void *host_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  const toy *t = ctx;
  return t->allocator->realloc(t->allocator->ctx, ptr, old_size, new_size, align);
}
static void host_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx, (void)level, (void)file, (void)line, (void)msg;
}
static uint64_t host_now(void *ctx) {
  (void)ctx;
  return toy_now_ns();
}
static opipe_status find_backend(void *ctx, const char *id, const opipe_backend **out_table,
                                 opipe_instance **out_self, opipe_error *err) {
  (void)id;
  (void)err;
  *out_table = &toy_backend;
  *out_self = ctx;
  return OPIPE_OK;
}

/* A backend that stands on another one stands on the toy. */
static const void *host_interface(void *ctx, const char *id) {
  static const opipe_backend_lookup lookup = {
      .struct_size = (uint32_t)OPIPE_END(opipe_backend_lookup, find), .find = find_backend};
  (void)ctx;
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0 ? &lookup : NULL;
}

opipe_status toy_make(toy *t, const toy_plan *shape, const opipe_plugin *transport,
                      opipe_error *err) {
  if (t->allocator == NULL)
    t->allocator = opi_allocator_system();
  if (t->faults.device_flags == 0)
    t->faults.device_flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  t->shape = *shape;
  t->host = (opipe_host){.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                         .abi_major = OPIPE_ABI_MAJOR,
                         .ctx = t,
                         .realloc = host_realloc,
                         .log = host_log,
                         .now_ns = host_now,
                         .get_interface = host_interface};
  OPI_TRY(make_file_graph(t, err));
  OPI_TRY(make_plan(t, err));
  OPI_TRY(transport->open(&t->host, &t->transport_self, err));
  t->transport_plugin = transport;
  for (uint32_t r = 0; r < TOY_MAX_RANKS; ++r) {
    t->backends[r] =
        (opi_backend_ref){.table = &toy_backend, .self = (opipe_instance *)(void *)t, .id = "toy"};
  }
  const opi_session_env env = {
      .allocator = t->allocator,
      .model = &t->model,
      .plan = t->plan,
      .backends = t->backends,
      .transport = {.table = transport->get_interface(t->transport_self, OPIPE_TRANSPORT_ID),
                    .self = t->transport_self,
                    .id = transport->id},
      .transport_options = t->env.transport_options,
      .budget = t->env.budget,
      .source = {.bind = toy_bind, .carry = toy_carry}};
  opipe_transport_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  t->env = env;
  OPI_TRY(env.transport.table->info(t->transport_self, &info, err));
  t->plan->decided.link = (opi_link){.rule = info.rule, .flags = info.flags};
  return OPIPE_OK;
}

opipe_status toy_open(toy *t, const opipe_session_params *params, opipe_error *err) {
  return opi_session_open(&t->env, params, &t->session, err);
}

void toy_end(toy *t) {
  opi_session_close(t->session);
  t->session = NULL;
  if (t->transport_plugin != NULL)
    t->transport_plugin->close(t->transport_self);
  opi_plan_free(t->plan);
  if (t->model.arena.allocator != NULL)
    opi_arena_release(&t->model.arena);
}
