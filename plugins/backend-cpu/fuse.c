/* SPDX-License-Identifier: Apache-2.0 */
/* From nodes to steps, with what the kernels can do in one go:
 *
 *   product with packed weights, + bias, activation, * gate, + residual  -> one step, where the
 * last of its nodes stood sum of two tensors, then a layer or RMS norm                         ->
 * one step, where the sum stood
 *
 * What disappears must be a temporary that nobody else reads: a value at the border (a cut tensor)
 * is never swallowed. Off for reference kernels and with OPIPE_COMPILE_NO_FUSE.
 */
#include "ops/op.h"

enum { MAX_EXTRA = 3 };

typedef struct group {
  const opipe_node *main; /* whose rule is asked */
  cpu_fusion fusion;
  uint32_t extra[MAX_EXTRA]; /* values appended to the main node's inputs */
  uint32_t n_extra;
  uint32_t out; /* the group's result: in place of the main node's first output */
  uint32_t sum; /* further output, OPIPE_NONE */
} group;

typedef struct fuser {
  opipe_program *program;
  const opipe_graph *graph;
  uint32_t *first; /* [n_values + 1] into users */
  uint32_t *users; /* node indices, one entry per use */
  uint32_t *made;  /* [n_values] node that makes it, OPIPE_NONE */
  bool *taken;     /* [n_nodes] part of a group */
  group **at;      /* [n_nodes] group whose step stands here */
  opipe_error *err;
} fuser;

static opipe_status out_of_memory(fuser *f) {
  return opipe_fail(f->err, OPIPE_E_NOMEM, "no memory for the steps of %u nodes",
                    f->graph->n_nodes);
}

/* ---- consumers ---- */

static opipe_status find_users(fuser *f) {
  const opipe_graph *graph = f->graph;
  cpu_pool *pool = &f->program->pool;
  uint64_t n_uses = 0;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    n_uses += graph->nodes[i].n_in;
  }
  uint32_t *next = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->first = CPU_POOL_ARRAY(pool, uint32_t, (uint64_t)graph->n_values + 1);
  f->users = CPU_POOL_ARRAY(pool, uint32_t, n_uses);
  f->made = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->taken = CPU_POOL_ARRAY(pool, bool, graph->n_nodes);
  f->at = CPU_POOL_ARRAY(pool, group *, graph->n_nodes);
  if (next == NULL || f->first == NULL || f->users == NULL || f->made == NULL || f->taken == NULL ||
      f->at == NULL) {
    return out_of_memory(f);
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    f->made[v] = OPIPE_NONE;
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    for (uint32_t k = 0; k < node->n_in; ++k) {
      f->first[node->in[k] == OPIPE_NONE ? 0 : node->in[k] + 1] += node->in[k] != OPIPE_NONE;
    }
    for (uint32_t k = 0; k < node->n_out; ++k) {
      if (node->out[k] != OPIPE_NONE) {
        f->made[node->out[k]] = i;
      }
    }
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    next[v] = f->first[v];
    f->first[v + 1] += f->first[v];
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    for (uint32_t k = 0; k < node->n_in; ++k) {
      if (node->in[k] != OPIPE_NONE) {
        f->users[next[node->in[k]]++] = i;
      }
    }
  }
  return OPIPE_OK;
}

/* The one node that reads a temporary; NULL when there are more, or it is seen from outside. */
static const opipe_node *only_user(const fuser *f, uint32_t value) {
  return f->graph->values[value].role == OPIPE_VALUE_TEMP &&
                 f->first[value + 1] - f->first[value] == 1 && !f->taken[f->users[f->first[value]]]
             ? &f->graph->nodes[f->users[f->first[value]]]
             : NULL;
}

static uint32_t node_index(const fuser *f, const opipe_node *node) {
  return (uint32_t)(node - f->graph->nodes);
}

static bool is_op(const opipe_node *node, const char *name) {
  return strcmp(node->op, name) == 0 &&
         (node->domain == NULL || node->domain[0] == '\0' || strcmp(node->domain, "ai.onnx") == 0);
}

static bool same_tensor(const opipe_value *a, const opipe_value *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0);
}

/* The other operand of a node of two inputs that reads `value` once and keeps its shape; OPIPE_NONE
 * when it is not that. */
static uint32_t other_operand(const fuser *f, const opipe_node *node, uint32_t value) {
  const opipe_value *in = &f->graph->values[value];
  if (node->n_in != 2 || node->n_out != 1 || node->out[0] == OPIPE_NONE ||
      node->in[0] == node->in[1] || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      !same_tensor(in, &f->graph->values[node->out[0]])) {
    return OPIPE_NONE;
  }
  return node->in[0] == value ? node->in[1] : node->in[0];
}

/* ---- products ---- */

/* True when the product will use packed weights: see cpu_linear_fast. */
static bool is_packed_product(const fuser *f, const opipe_node *node) {
  const bool fused = strcmp(node->op, "FusedMatMul") == 0;
  if ((!fused && !is_op(node, "MatMul") && !is_op(node, "Gemm")) || node->n_in < 2 ||
      node->n_out != 1 || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      node->out[0] == OPIPE_NONE || (fused && opipe_attr_int(node, "transA", 0) != 0)) {
    return false;
  }
  const opipe_value *a = &f->graph->values[node->in[0]];
  const opipe_value *b = &f->graph->values[node->in[1]];
  const opipe_value *y = &f->graph->values[node->out[0]];
  return b->role == OPIPE_VALUE_PARAMETER && b->rank == 2 && a->rank >= 2 && y->rank >= 2 &&
         (a->dtype == OPIPE_FLOAT || cpu_is_half(a->dtype)) && a->dtype == b->dtype;
}

/* [N] of the product's type, whatever the leading ones, while the product still has rows of N. */
static bool is_bias(const opipe_value *bias, const opipe_value *product, int64_t n) {
  return bias->dtype == product->dtype && bias->rank >= 1 && bias->rank <= product->rank &&
         product->shape[product->rank - 1] == n && bias->shape[bias->rank - 1] == n &&
         cpu_elems(bias) == (uint64_t)n;
}

static int add_extra(group *g, uint32_t value) {
  g->extra[g->n_extra] = value;
  return (int)(g->main->n_in + g->n_extra++);
}

/* Takes `node` into the group if it is the next stage that fits; *io_stage counts bias, activation,
 * gate, residual. */
static bool absorb(const fuser *f, group *g, const opipe_node *node, int *io_stage) {
  const opipe_value *product = &f->graph->values[g->out];
  const uint32_t other = other_operand(f, node, g->out);
  const bool sum = is_op(node, "Add");
  if (node->n_in == 1 && *io_stage < 2 && cpu_activation_of(node) != CPU_ACT_NONE &&
      node->n_out == 1 && node->out[0] != OPIPE_NONE &&
      same_tensor(product, &f->graph->values[node->out[0]])) {
    g->fusion.activation = cpu_activation_of(node);
    *io_stage = 2;
    return true;
  }
  if (other == OPIPE_NONE) {
    return false;
  }
  const opipe_value *value = &f->graph->values[other];
  const opipe_value *made = &f->graph->values[g->main->out[0]];
  const bool whole = same_tensor(value, product);
  if (sum && *io_stage < 1 && is_bias(value, product, made->shape[made->rank - 1])) {
    g->fusion.bias = add_extra(g, other);
    *io_stage = 1;
    return true;
  }
  if (is_op(node, "Mul") && *io_stage == 2 && whole) {
    g->fusion.multiplier = add_extra(g, other);
    *io_stage = 3;
    return true;
  }
  if (sum && *io_stage < 4 && whole) {
    g->fusion.residual = add_extra(g, other);
    *io_stage = 4;
    return true;
  }
  return false;
}

/* A node that only gives its input another shape: products are fused through it. */
static bool is_view_of(const fuser *f, const opipe_node *node, uint32_t value) {
  static const char *const views[] = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"};
  for (uint32_t i = 0; i < CPU_COUNT_OF(views); ++i) {
    if (is_op(node, views[i])) {
      return node->n_in >= 1 && node->in[0] == value && node->n_out == 1 &&
             node->out[0] != OPIPE_NONE &&
             f->graph->values[node->out[0]].n_bytes == f->graph->values[value].n_bytes;
    }
  }
  return false;
}

static opipe_status new_group(fuser *f, const opipe_node *main, uint32_t out, group **out_group) {
  group *g = CPU_POOL_ARRAY(&f->program->pool, group, 1);
  if (g == NULL) {
    return out_of_memory(f);
  }
  g->main = main;
  g->fusion = (cpu_fusion)CPU_FUSION_NONE;
  g->out = out;
  g->sum = OPIPE_NONE;
  *out_group = g;
  return OPIPE_OK;
}

static opipe_status match_product(fuser *f, uint32_t i) {
  const opipe_node *node = &f->graph->nodes[i];
  group *g = NULL;
  uint32_t last = i;
  if (!is_packed_product(f, node)) {
    return OPIPE_OK;
  }
  CPU_TRY(new_group(f, node, node->out[0], &g));
  const bool has_c = is_op(node, "Gemm") && node->n_in > 2 && node->in[2] != OPIPE_NONE;
  if (has_c &&
      cpu_elems(&f->graph->values[node->in[2]]) != (uint64_t)f->graph->values[g->out].shape[1]) {
    return OPIPE_OK; /* C is more than a bias: it takes the residual's place */
  }
  int stage = has_c ? 1 : 0;
  for (;;) {
    const opipe_node *next = only_user(f, g->out);
    if (next == NULL || !(is_view_of(f, next, g->out) || absorb(f, g, next, &stage))) {
      break;
    }
    last = node_index(f, next);
    f->taken[last] = true;
    g->out = next->out[0];
  }
  if (last != i) {
    f->taken[i] = true;
    f->at[last] = g;
  }
  return OPIPE_OK;
}

/* ---- sums before norms ---- */

/* A norm of the sum that can stand where the sum stands: it reads no other made value. */
static const opipe_node *norm_of(const fuser *f, uint32_t sum) {
  for (uint32_t u = f->first[sum]; u < f->first[sum + 1]; ++u) {
    const opipe_node *node = &f->graph->nodes[f->users[u]];
    const bool norm = is_op(node, "LayerNormalization") || is_op(node, "RMSNormalization") ||
                      is_op(node, "SimplifiedLayerNormalization");
    bool ready = norm && node->n_in >= 2 && node->in[0] == sum && node->out[0] != OPIPE_NONE &&
                 !f->taken[f->users[u]];
    for (uint32_t k = 1; ready && k < node->n_in; ++k) {
      ready = node->in[k] == OPIPE_NONE || (f->made[node->in[k]] == OPIPE_NONE &&
                                            f->graph->values[node->in[k]].dtype == OPIPE_FLOAT);
    }
    for (uint32_t k = 0; ready && k < node->n_out; ++k) {
      ready = node->out[k] == OPIPE_NONE || f->graph->values[node->out[k]].dtype == OPIPE_FLOAT;
    }
    if (ready) {
      return node;
    }
  }
  return NULL;
}

static opipe_status match_norm(fuser *f, uint32_t i) {
  const opipe_node *add = &f->graph->nodes[i];
  group *g = NULL;
  if (!is_op(add, "Add") || add->n_in != 2 || other_operand(f, add, add->in[0]) == OPIPE_NONE ||
      !same_tensor(&f->graph->values[add->in[0]], &f->graph->values[add->in[1]]) ||
      f->graph->values[add->out[0]].dtype != OPIPE_FLOAT) {
    return OPIPE_OK;
  }
  const uint32_t sum = add->out[0];
  const opipe_node *norm = norm_of(f, sum);
  if (norm == NULL) {
    return OPIPE_OK;
  }
  CPU_TRY(new_group(f, norm, norm->out[0], &g));
  g->fusion.skip = add_extra(g, add->in[1]);
  g->extra[g->n_extra++] = add->in[0]; /* stands for the norm's first input */
  if (f->first[sum + 1] - f->first[sum] > 1 || f->graph->values[sum].role != OPIPE_VALUE_TEMP) {
    g->sum = sum;
    g->fusion.sum = (int)norm->n_out;
  }
  f->taken[i] = true;
  f->taken[node_index(f, norm)] = true;
  f->at[i] = g;
  return OPIPE_OK;
}

/* ---- steps ---- */

static opipe_status make_step(fuser *f, const opipe_node *node, const group *g, cpu_step *step) {
  opipe_program *program = f->program;
  cpu_pool *pool = &program->pool;
  const bool norm = g != NULL && g->fusion.skip >= 0;
  const uint32_t n_extra = g == NULL ? 0 : norm ? 1 : g->n_extra;
  cpu_prep p = {.device = program->device,
                .pool = pool,
                .graph = program->graph,
                .node = node,
                .step = step,
                .fusion = g != NULL ? &g->fusion : NULL,
                .fast = program->device->mode == CPU_MODE_FAST,
                .err = f->err};
  step->node = node;
  step->n_in = node->n_in + n_extra;
  step->n_out = node->n_out + (g != NULL && g->sum != OPIPE_NONE);
  step->in = CPU_POOL_ARRAY(pool, cpu_operand, step->n_in);
  step->out = CPU_POOL_ARRAY(pool, cpu_operand, step->n_out);
  if (step->in == NULL || step->out == NULL) {
    return out_of_memory(f);
  }
  for (uint32_t i = 0; i < step->n_in; ++i) {
    step->in[i].value = i < node->n_in ? node->in[i] : g->extra[i - node->n_in];
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    step->out[i].value = node->out[i];
  }
  if (g != NULL) {
    step->out[0].value = g->out;
    step->in[0].value = norm ? g->extra[1] : step->in[0].value;
    if (g->sum != OPIPE_NONE) {
      step->out[node->n_out].value = g->sum;
    }
  }
  return cpu_op_prepare(&p);
}

opipe_status cpu_build_steps(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  fuser f = {.program = program, .graph = graph, .err = err};
  program->steps = CPU_POOL_ARRAY(&program->pool, cpu_step, graph->n_nodes);
  if (program->steps == NULL) {
    return out_of_memory(&f);
  }
  CPU_TRY(find_users(&f));
  if (program->device->mode == CPU_MODE_FAST && (program->flags & OPIPE_COMPILE_NO_FUSE) == 0) {
    for (uint32_t i = 0; i < graph->n_nodes; ++i) {
      CPU_TRY(f.taken[i] ? OPIPE_OK : match_product(&f, i));
    }
    for (uint32_t i = 0; i < graph->n_nodes; ++i) {
      CPU_TRY(f.taken[i] ? OPIPE_OK : match_norm(&f, i));
    }
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const group *g = f.at[i];
    if (g == NULL && f.taken[i]) {
      continue;
    }
    const opipe_node *node = g != NULL ? g->main : &graph->nodes[i];
    CPU_TRY(make_step(&f, node, g, &program->steps[program->n_steps++]));
  }
  return OPIPE_OK;
}
