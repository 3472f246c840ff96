/* SPDX-License-Identifier: Apache-2.0 */
/* Binds the model for every number of samples, makes the training graph, profiles nodes, and sums
 * their costs by layer. */
#include "partition/study/layers/of_graph.h"

#include <inttypes.h>
#include <string.h>

#include "loader/ops/op.h"
#include "partition/cost/backward.h"
#include "partition/cost/profile.h"
#include "partition/plan/spec.h"
#include "partition/program/assign.h"
#include "partition/program/batch.h"
#include "partition/program/model.h"
#include "partition/study/layers/split.h"

enum { WIDTH_SUMS = 2 };

typedef struct counting {
  const opi_graph_profile *q;
  opi_plan *plan; /* holds the model's binding */
  opi_layers *out;
  opi_arena scratch; /* for one number of samples */
  opi_arena arena;   /* for all */
  uint32_t *layer_of_node;
  uint32_t n_nodes, n_layers;
  uint32_t n_samples; /* requested; 0: as bound */
  opipe_error *err;
} counting;

/* State for one number of samples. */
typedef struct sized {
  const opi_bound *bound;
  opi_bound *own;
  opi_training *training;
  opi_profile *profile;
  opi_cut *cut;
  double *input_ns, *weight_ns; /* [n_nodes] */
  opi_layer *layers;            /* [n_layers] */
} sized;

/* ---- the batch ---- */

static opipe_status no_batch(const counting *c) {
  return opi_fail(c->err, OPIPE_E_INVALID,
                  "'%.80s': %u numbers of samples, but no free dimension is the batch", c->q->name,
                  c->n_samples);
}

static opipe_status settle_batch(counting *c) {
  opi_plan *plan = c->plan;
  plan->decided.n_microbatches = 1;
  OPI_TRY(opi_batch_choose(c->q->env, c->q->batch_dim, plan, c->err));
  if (c->n_samples == 0)
    return OPIPE_OK;
  if (plan->decided.binding.batch_dim == NULL)
    return no_batch(c);
  if (plan->decided.binding.batch_rows > 1) /* then try whether rows may be split */
    plan->decided.n_microbatches = (uint32_t)plan->decided.binding.batch_rows;
  OPI_TRY(opi_batch_settle(c->q->env, c->q->batch_dim, plan, c->err));
  plan->decided.n_microbatches = 1;
  return OPIPE_OK;
}

static int64_t bound_samples(const counting *c) {
  const opi_graph *g = c->q->env->bound->graph;
  if (c->plan->decided.binding.batch_dim != NULL)
    return c->plan->decided.binding.batch_rows;
  return g->n_inputs > 0 && g->values[g->inputs[0]].rank > 0 ? g->values[g->inputs[0]].shape[0] : 1;
}

/* ---- graphs and costs ---- */

static opipe_status bind_rows(counting *c, int64_t rows, sized *s) {
  OPI_TRY(opi_plan_bound(c->q->env, &c->plan->decided, rows, &s->bound, &s->own, c->err));
  const opi_graph *g = s->bound->graph;
  if (c->layer_of_node != NULL && g->n_nodes != c->n_nodes) {
    return opi_fail(c->err, OPIPE_E_UNSUPPORTED,
                    "'%.80s': %u nodes with %" PRId64 " samples, and %u with %u", c->q->name,
                    g->n_nodes, rows, c->n_nodes, c->out->samples[0]);
  }
  if (c->layer_of_node != NULL)
    return OPIPE_OK;
  c->n_nodes = g->n_nodes;
  if (!c->q->every_node)
    return opi_layers_split(g, &c->arena, &c->layer_of_node, &c->n_layers, c->err);
  c->n_layers = g->n_nodes;
  c->layer_of_node = OPI_ARENA_ARRAY(&c->arena, uint32_t, g->n_nodes);
  if (c->layer_of_node == NULL)
    return opi_fail_nomem(c->err, g->n_nodes * sizeof(uint32_t), "layers");
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    c->layer_of_node[n] = n;
  return OPIPE_OK;
}

static opipe_status cost_nodes(counting *c, sized *s) {
  const opi_graph_profile *q = c->q;
  opi_backend_ref backend;
  opi_profile_place place = {.facts = q->facts, .threads = q->device->threads};
  if (!q->facts->described) {
    OPI_TRY(opi_device_open(q->env, q->device, &backend, &place.device, c->err));
    place.backend = &backend;
  }
  opipe_status status = opi_profile_make(s->bound->graph, &place, q->cost, q->env->allocator,
                                         q->env->now_ns, &s->profile, c->err);
  double *measured = NULL;
  if (status == OPIPE_OK && s->training != NULL && q->cost == OPI_COST_MEASURED) {
    measured = OPI_ARENA_ARRAY(&c->scratch, double, s->training->graph->n_nodes);
    status = measured == NULL
                 ? opi_fail_nomem(c->err, s->training->graph->n_nodes * sizeof(double), "costs")
                 : opi_train_measure(s->training, &backend, place.device, q->env->allocator,
                                     q->env->now_ns, measured, c->err);
  }
  if (place.backend != NULL)
    backend.table->device_close(place.device);
  if (status == OPIPE_OK && s->training != NULL) {
    status = opi_train_costs(s->training, s->bound, measured, q->facts, q->device->threads,
                             s->input_ns, s->weight_ns, c->err);
  }
  return status;
}

/* Makes every layer a stage of its own. */
static opipe_status cut_layers(counting *c, sized *s) {
  const bool trains = s->training != NULL;
  uint32_t *used = OPI_ARENA_ARRAY(&c->scratch, uint32_t, c->n_layers);
  if (used == NULL)
    return opi_fail_nomem(c->err, c->n_layers * sizeof *used, "layers");
  for (uint32_t i = 0; i < c->n_layers; ++i)
    used[i] = 1u << OPI_PROGRAM_F | (trains ? 1u << OPI_PROGRAM_B : 0u);
  const opi_cut_source source = {.graph = trains ? s->training->graph : s->bound->graph,
                                 .training = s->training,
                                 .stage = trains ? s->training->stage : c->layer_of_node,
                                 .scalars = trains ? s->training->scalars : NULL,
                                 .used = used,
                                 .n_stages = c->n_layers};
  return opi_cut_build(&source, c->q->env->allocator, &s->cut, c->err);
}

/* ---- sums ---- */

/* Activations that cross the cut behind every layer, each counted once. */
static opipe_status add_crossings(counting *c, sized *s) {
  const opi_graph *g = s->bound->graph;
  int64_t *change = OPI_ARENA_ARRAY(&c->scratch, int64_t, (size_t)c->n_layers + 1);
  uint32_t *last = OPI_ARENA_ARRAY(&c->scratch, uint32_t, g->n_values);
  int64_t here = 0;
  if (change == NULL || last == NULL)
    return opi_fail_nomem(c->err, g->n_values * sizeof *last, "layers");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      if (g->nodes[n].in[i] != OPIPE_NONE)
        last[g->nodes[n].in[i]] = c->layer_of_node[n];
    }
  }
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *value = &g->values[v];
    const uint32_t from = value->producer == OPIPE_NONE ? 0 : c->layer_of_node[value->producer];
    if (value->producer == OPIPE_NONE)
      continue;
    if (last[v] > from) {
      change[from] += (int64_t)value->n_bytes;
      change[last[v]] -= (int64_t)value->n_bytes;
    }
    if (last[v] > from || (value->flags & OPI_VALUE_OUTPUT) != 0)
      s->layers[from].output_bytes += value->n_bytes;
  }
  for (uint32_t i = 0; i < c->n_layers; ++i) {
    here += change[i];
    s->layers[i].cut_bytes = (uint64_t)here;
  }
  return OPIPE_OK;
}

/* Stashes and parameters of every layer, each counted once. */
static opipe_status add_bytes(counting *c, sized *s) {
  const opi_cut *cut = s->cut;
  uint32_t *seen = OPI_ARENA_ARRAY(&c->scratch, uint32_t, cut->n_params); /* layer + 1 */
  if (seen == NULL)
    return opi_fail_nomem(c->err, cut->n_params * sizeof *seen, "layers");
  for (uint32_t i = 0; i < cut->n_cells; ++i) {
    if (s->training != NULL && cut->cells[i].stash && cut->cells[i].phase == OPI_PHASE_F)
      s->layers[cut->cells[i].stage].stash_bytes += cut->cells[i].n_bytes;
  }
  for (uint32_t i = 0; i < c->n_layers; ++i) {
    const opi_program *program = opi_forward_of(cut, i);
    for (uint32_t k = 0; k < program->n_params; ++k) {
      const uint32_t slot = program->params[k];
      if (seen[slot] != i + 1)
        s->layers[i].param_bytes += cut->sources[slot].n_bytes;
      seen[slot] = i + 1;
    }
  }
  return OPIPE_OK;
}

/* True if a tensor group divides the node: attention, or a product with a parameter. */
static bool is_divided(const opi_graph *g, const opi_node *node) {
  const opi_op *op = opi_op_of(node);
  if (op->kind == OPI_KIND_ATTENTION)
    return true;
  if (op->meets != OPI_MEETS_PRODUCT && op->meets != OPI_MEETS_LAYER && op->meets != OPI_MEETS_ROWS)
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && opi_value_is_param(&g->values[node->in[i]]))
      return true;
  }
  return false;
}

static opipe_status add_work(counting *c, sized *s) {
  const opi_graph *g = s->bound->graph;
  double *shared = OPI_ARENA_ARRAY(&c->scratch, double, c->n_layers);
  double *all = OPI_ARENA_ARRAY(&c->scratch, double, c->n_layers);
  bool *attends = OPI_ARENA_ARRAY(&c->scratch, bool, c->n_layers);
  if (shared == NULL || all == NULL || attends == NULL)
    return opi_fail_nomem(c->err, c->n_layers * sizeof *all, "layers");
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t i = c->layer_of_node[n];
    opi_layer *layer = &s->layers[i];
    opi_work work = {0, 0};
    opi_node_work(g, &g->nodes[n], &work);
    const double ns = s->profile->node_ns[n] + s->input_ns[n] + s->weight_ns[n];
    layer->flops += work.flops;
    layer->forward_ns += s->profile->node_ns[n];
    layer->input_ns += s->input_ns[n];
    layer->weight_ns += s->weight_ns[n];
    all[i] += ns;
    shared[i] += is_divided(g, &g->nodes[n]) ? ns : 0;
    attends[i] |= opi_op_of(&g->nodes[n])->kind == OPI_KIND_ATTENTION;
  }
  for (uint32_t i = 0; i < c->n_layers; ++i) {
    s->layers[i].width_share = all[i] > 0 ? shared[i] / all[i] : 0;
    s->layers[i].width_bytes = attends[i] ? WIDTH_SUMS * s->layers[i].output_bytes : 0;
  }
  return OPIPE_OK;
}

static opipe_status new_layers(counting *c, const opi_graph *g) {
  const uint32_t n_sizes = c->n_samples == 0 ? 1 : c->n_samples;
  OPI_TRY(opi_layers_new(c->q->name, c->n_layers, n_sizes, c->q->env->allocator, &c->out, c->err));
  for (uint32_t k = 0; k < n_sizes; ++k) {
    c->out->samples[k] =
        c->n_samples == 0 ? (uint32_t)bound_samples(c) : (uint32_t)c->q->samples[k];
  }
  c->out->halves = true;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (n + 1 < g->n_nodes && c->layer_of_node[n + 1] == c->layer_of_node[n])
      continue;
    const char *key = opi_arena_strdup(&c->out->arena, opi_node_key(g, &g->nodes[n]));
    if (key == NULL)
      return opi_fail_nomem(c->err, 1, "layers");
    c->out->names[c->layer_of_node[n]] = key;
  }
  for (uint32_t v = 0; v < g->n_values && c->out->weight_bytes == 0; ++v) {
    if (opi_value_is_param(&g->values[v]) && opi_dtype_is_float(g->values[v].dtype))
      c->out->weight_bytes = opi_dtype_bits(g->values[v].dtype) / 8;
  }
  return OPIPE_OK;
}

static opipe_status count_rows(counting *c, int64_t rows, uint32_t k, sized *s) {
  OPI_TRY(bind_rows(c, rows, s));
  if (c->out == NULL)
    OPI_TRY(new_layers(c, s->bound->graph));
  s->layers = &c->out->at[(size_t)k * c->n_layers];
  s->input_ns = OPI_ARENA_ARRAY(&c->scratch, double, c->n_nodes);
  s->weight_ns = OPI_ARENA_ARRAY(&c->scratch, double, c->n_nodes);
  if (s->input_ns == NULL || s->weight_ns == NULL)
    return opi_fail_nomem(c->err, c->n_nodes * sizeof(double), "costs");
  if (c->q->spec != NULL) {
    OPI_TRY(opi_train_gradient(&c->plan->decided, c->q->env->model, s->bound, c->layer_of_node,
                               NULL, NULL, NULL, c->q->env->bind, &s->training, c->err));
  }
  OPI_TRY(cost_nodes(c, s));
  OPI_TRY(cut_layers(c, s));
  OPI_TRY(add_crossings(c, s));
  OPI_TRY(add_bytes(c, s));
  return add_work(c, s);
}

static opipe_status count_size(counting *c, int64_t rows, uint32_t k) {
  sized s = {NULL};
  opi_arena_init(&c->scratch, c->q->env->allocator, 0);
  const opipe_status status = count_rows(c, rows, k, &s);
  opi_cut_free(s.cut);
  opi_profile_free(s.profile);
  opi_training_free(s.training);
  opi_bound_free(s.own);
  opi_arena_release(&c->scratch);
  return status;
}

static opipe_status count_sizes(counting *c) {
  OPI_TRY(settle_batch(c));
  if (c->n_samples == 0) {
    return count_size(
        c, c->plan->decided.binding.batch_dim == NULL ? 0 : c->plan->decided.binding.batch_rows, 0);
  }
  for (uint32_t k = 0; k < c->n_samples; ++k)
    OPI_TRY(count_size(c, c->q->samples[k], k));
  return OPIPE_OK;
}

/* Counts the model as bound, because `refused` says that its batch cannot be split; if that fails
 * too, the first error stands. */
static opipe_status count_whole(counting *c, opipe_status refused) {
  opipe_error *why = c->err, unused = OPIPE_ERROR_INIT;
  opi_layers_free(c->out);
  c->out = NULL;
  c->layer_of_node = NULL;
  c->n_samples = 0;
  c->err = &unused;
  opipe_status status = count_sizes(c);
  c->err = why;
  if (status < 0)
    return status == OPIPE_E_NOMEM ? opi_fail_nomem(why, 1, "layers") : refused;
  c->out->whole = opi_arena_strdup(&c->out->arena, why->message);
  return c->out->whole == NULL ? opi_fail_nomem(why, 1, "layers") : OPIPE_OK;
}

static opipe_status count_all(counting *c) {
  const opi_graph_profile *q = c->q;
  OPI_TRY(opi_plan_take_binding(c->plan, q->env->bind, 0, c->err));
  if (q->spec != NULL) {
    c->plan->decided.binding.bind_flags |= OPI_BIND_KEEP_PARAMETERS;
    OPI_TRY(opi_train_spec_copy(c->plan, q->spec, c->err));
  }
  const opipe_status status = count_sizes(c);
  const bool uncut = status == OPIPE_E_INVALID || status == OPIPE_E_UNSUPPORTED;
  return uncut && q->may_be_whole && c->n_samples > 1 ? count_whole(c, status) : status;
}

opipe_status opi_layers_of_graph(const opi_graph_profile *profile, opi_layers **out_layers,
                                 opipe_error *err) {
  opipe_error unused = OPIPE_ERROR_INIT;
  counting c = {.q = profile, .n_samples = profile->n_samples, .err = err == NULL ? &unused : err};
  OPI_TRY(opi_plan_new(profile->env->allocator, &c.plan, err));
  opi_arena_init(&c.arena, profile->env->allocator, 0);
  opipe_status status = count_all(&c);
  if (status == OPIPE_OK)
    status = opi_layers_check(c.out, err);
  opi_arena_release(&c.arena);
  opi_plan_free(c.plan);
  if (status < 0) {
    opi_layers_free(c.out);
    return status;
  }
  *out_layers = c.out;
  return OPIPE_OK;
}
