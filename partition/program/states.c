/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a plan: checked against the model, tied together for the cut, placed, counted. */
#include "partition/program/states.h"

#include <string.h>

#include "partition/schedule/compute_order.h"

enum { STREAMS_MOST = 1 << 20, PAIRS_MOST = 1 << 16 };
static const uint64_t BYTES_MOST = UINT64_C(1) << 56;

opipe_status opi_states_copy(opi_plan *plan, const opipe_plan_params *params, opipe_error *err) {
  if (params->n_states == 0 && params->n_streams != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: n_streams is %u, there are no states",
                    params->n_streams);
  }
  if (params->n_states > PAIRS_MOST || params->n_streams > STREAMS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "plan_make: %u states of %u streams: at most %d of %d",
                    params->n_states, params->n_streams, PAIRS_MOST, STREAMS_MOST);
  }
  plan->decided.states = OPI_ARENA_ARRAY(&plan->arena, opi_state_pair, params->n_states);
  if (plan->decided.states == NULL)
    return opi_fail_nomem(err, params->n_states * sizeof *plan->decided.states, "states");
  for (uint32_t i = 0; i < params->n_states; ++i) {
    opipe_state_pair given = {.capacity = 0};
    opi_array_get(params->states, params->states_stride, i, &given, sizeof given);
    plan->decided.states[i] =
        (opi_state_pair){.output = opi_arena_strdup(&plan->arena, given.output),
                         .input = opi_arena_strdup(&plan->arena, given.input),
                         .capacity = given.capacity};
    if (plan->decided.states[i].output == NULL || plan->decided.states[i].input == NULL)
      return opi_fail_nomem(err, strlen(given.output), "states");
  }
  plan->decided.n_states = params->n_states;
  plan->predicted.n_streams = params->n_streams;
  return OPIPE_OK;
}

/* ---- pairs in the model ---- */

static uint32_t find(const opi_graph *g, const uint32_t *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(g->values[list[i]].name, name) == 0)
      return i;
  }
  return OPIPE_NONE;
}

/* The output's value follows the file's; an input keeps its name. */
static uint32_t output_value(const opi_state_pair *pair, const opi_graph *bound) {
  return bound->outputs[pair->output_index];
}
static uint32_t input_value(const opi_state_pair *pair, const opi_graph *bound) {
  const uint32_t port = find(bound, bound->inputs, bound->n_inputs, pair->input);
  return port == OPIPE_NONE ? OPIPE_NONE : bound->inputs[port];
}

static opipe_status find_names(opi_state_pair *pair, const opi_graph *file, opipe_error *err) {
  pair->output_index = find(file, file->outputs, file->n_outputs, pair->output);
  pair->input_index = find(file, file->inputs, file->n_inputs, pair->input);
  if (pair->output_index == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "state '%s' -> '%s': the model has no output '%s'",
                    pair->output, pair->input, pair->output);
  }
  if (pair->input_index == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "state '%s' -> '%s': the model has no input '%s'",
                    pair->output, pair->input, pair->input);
  }
  return OPIPE_OK;
}

static opipe_status check_once(const opi_decision *plan, uint32_t index, const opi_graph *bound,
                               opipe_error *err) {
  const opi_state_pair *pair = &plan->states[index];
  for (uint32_t i = 0; i < index; ++i) {
    const opi_state_pair *other = &plan->states[i];
    if (strcmp(other->input, pair->input) != 0 &&
        output_value(other, bound) != output_value(pair, bound))
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "state '%s' -> '%s': pair %u, '%s' -> '%s', has the same %s already",
                    pair->output, pair->input, i, other->output, other->input,
                    strcmp(other->input, pair->input) == 0 ? "input" : "tensor");
  }
  return OPIPE_OK;
}

/* Checks that one node makes the output, and that neither it nor the input is another output too.
 * *out_read: only nodes read the input. If a shape leaves nothing of it, none may. */
static opipe_status check_made(const opi_state_pair *pair, const opi_graph *bound, bool *out_read,
                               opipe_error *err) {
  const uint32_t in = input_value(pair, bound), out = output_value(pair, bound);
  bool read = false;
  if (bound->values[out].producer == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "state '%s' -> '%s': no node makes output '%s': it is an input or known",
                    pair->output, pair->input, pair->output);
  }
  for (uint32_t n = 0; in != OPIPE_NONE && n < bound->n_nodes; ++n) {
    for (uint32_t i = 0; i < bound->nodes[n].n_in; ++i)
      read = read || bound->nodes[n].in[i] == in;
  }
  for (uint32_t o = 0; o < bound->n_outputs; ++o) {
    if (in != OPIPE_NONE && bound->outputs[o] == in) {
      return opi_fail(
          err, OPIPE_E_UNSUPPORTED,
          "state '%s' -> '%s': output %u hands input '%s' through, which a stream keeps",
          pair->output, pair->input, o, pair->input);
    }
    if (bound->outputs[o] != out || o == pair->output_index)
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "state '%s' -> '%s': outputs %u and %u are one tensor, which a stream cannot "
                    "keep and hand out",
                    pair->output, pair->input, pair->output_index, o);
  }
  *out_read = read;
  return OPIPE_OK;
}

/* Checks that all dimensions are equal but one, which is free in the file. */
static opipe_status check_shapes(opi_state_pair *pair, const opi_value *file,
                                 const opi_graph *bound, opipe_error *err) {
  char made[128], read[128];
  const opi_value *in = &bound->values[input_value(pair, bound)];
  const opi_value *out = &bound->values[output_value(pair, bound)];
  uint64_t n_in = 1, n_out = 1;
  uint32_t n_other = 0;
  bool fits = in->rank == out->rank && in->rank <= OPIPE_MAX_RANK;
  if (in->dtype != out->dtype || opi_dtype_bits(in->dtype) < 8) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "state '%s' -> '%s': the output is %s, the input %s; equal types of whole "
                    "bytes are needed",
                    pair->output, pair->input, opi_dtype_name(out->dtype),
                    opi_dtype_name(in->dtype));
  }
  for (int32_t d = 0; fits && d < in->rank; ++d) {
    const bool same = in->shape[d] == out->shape[d];
    n_other += same ? 0 : 1;
    fits = n_other <= 1 && (same || file->shape[d] < 0);
    n_in *= (uint64_t)in->shape[d];
    n_out *= (uint64_t)out->shape[d];
  }
  if (!fits) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "state '%s' -> '%s': the output has shape %s, the input %s; they may differ in "
                    "one dimension, which is free in the input",
                    pair->output, pair->input,
                    opi_shape_text(made, sizeof made, out->shape, (uint32_t)out->rank),
                    opi_shape_text(read, sizeof read, in->shape, (uint32_t)in->rank));
  }
  pair->dtype = in->dtype;
  if (pair->capacity == 0)
    pair->capacity = n_in > n_out ? n_in : n_out;
  return OPIPE_OK;
}

static opipe_status check_plan(const opi_decision *plan, opipe_error *err) {
  if (opi_plan_trains(plan))
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "states: a plan for training keeps none");
  if (plan->n_microbatches > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "states: %u micro-batches; a request with states is one: several streams fill "
                    "the pipeline",
                    plan->n_microbatches);
  }
  if (plan->shares != NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "states: replicas of single stages (%u of the first) cut every request; copies "
                    "of the whole pipeline take streams in turn",
                    plan->shares[0]);
  }
  if (plan->n_slices > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "states: schedule '%s' cuts requests into %u token slices; parts of a prompt "
                    "are requests of one stream instead",
                    plan->schedule.name, plan->n_slices);
  }
  return OPIPE_OK;
}

opipe_status opi_states_check(opi_decision *plan, const opi_graph *file, const opi_graph *bound,
                              opipe_error *err) {
  uint64_t n_bytes = 0;
  bool read = false;
  if (plan->n_states == 0)
    return OPIPE_OK;
  OPI_TRY(check_plan(plan, err));
  for (uint32_t i = 0; i < plan->n_states; ++i) {
    opi_state_pair *pair = &plan->states[i];
    OPI_TRY(find_names(pair, file, err));
    OPI_TRY(check_once(plan, i, bound, err));
    OPI_TRY(check_made(pair, bound, &read, err));
    if (!read) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "state '%s' -> '%s': no node reads input '%s', or it is pinned", pair->output,
                      pair->input, pair->input);
    }
    OPI_TRY(check_shapes(pair, &file->values[file->inputs[pair->input_index]], bound, err));
    if (!opi_state_bytes(pair, 0, pair->capacity, 1, &n_bytes)) {
      return opi_fail(err, OPIPE_E_LIMIT, "state '%s' -> '%s': %llu elements exceed 2^56 bytes",
                      pair->output, pair->input, (unsigned long long)pair->capacity);
    }
  }
  return OPIPE_OK;
}

/* ---- the cut ---- */

/* Calls `visit` for the maker of the output and the readers of the input. */
typedef opipe_status (*visit_fn)(void *ctx, const opi_state_pair *pair, uint32_t node,
                                 opipe_error *err);

static opipe_status for_nodes(const opi_state_pair *pair, const opi_graph *bound, visit_fn visit,
                              void *ctx, opipe_error *err) {
  const uint32_t in = input_value(pair, bound), out = output_value(pair, bound);
  OPI_TRY(visit(ctx, pair, bound->values[out].producer, err));
  for (uint32_t n = 0; n < bound->n_nodes; ++n) {
    bool reads = false;
    for (uint32_t i = 0; i < bound->nodes[n].n_in; ++i)
      reads = reads || bound->nodes[n].in[i] == in;
    if (reads)
      OPI_TRY(visit(ctx, pair, n, err));
  }
  return OPIPE_OK;
}

/* Positions of the nodes that a pair keeps together. */
typedef struct tied {
  bool *stays;
  uint32_t first, last;
} tied;

static opipe_status tie_node(void *ctx, const opi_state_pair *pair, uint32_t node,
                             opipe_error *err) {
  tied *t = ctx;
  (void)pair;
  (void)err;
  t->stays[node] = true;
  t->first = node < t->first ? node : t->first;
  t->last = node > t->last ? node : t->last;
  return OPIPE_OK;
}

/* Pairs that one node of the file makes or reads: in some shapes it may still be one node. */
typedef struct joining {
  uint32_t *with;    /* [n_states] an earlier pair that it is joined with, or itself */
  uint32_t *toucher; /* [file->n_nodes] the first pair that the node makes or reads, OPIPE_NONE */
  uint32_t pair;     /* the current pair */
} joining;

static uint32_t first_joined(const joining *j, uint32_t pair) {
  while (j->with[pair] != pair)
    pair = j->with[pair];
  return pair;
}

static void touch(joining *j, uint32_t node) {
  if (node == OPIPE_NONE)
    return;
  if (j->toucher[node] == OPIPE_NONE)
    j->toucher[node] = j->pair;
  const uint32_t a = first_joined(j, j->toucher[node]), b = first_joined(j, j->pair);
  j->with[a > b ? a : b] = a > b ? b : a;
}

static void join(joining *j, const opi_decision *plan, const opi_graph *file) {
  for (j->pair = 0; j->pair < plan->n_states; ++j->pair) {
    const opi_state_pair *pair = &plan->states[j->pair];
    const uint32_t in = file->inputs[pair->input_index];
    j->with[j->pair] = j->pair;
    touch(j, file->values[file->outputs[pair->output_index]].producer);
    for (uint32_t n = 0; n < file->n_nodes; ++n) {
      for (uint32_t i = 0; i < file->nodes[n].n_in; ++i) {
        if (file->nodes[n].in[i] == in)
          touch(j, n);
      }
    }
  }
}

opipe_status opi_states_tie(const opi_decision *plan, const opi_graph *file, const opi_graph *bound,
                            bool *out_stays, bool *out_closed, opipe_error *err) {
  joining j = {.pair = 0};
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  tied *ties = OPI_ARENA_ARRAY(&scratch, tied, plan->n_states);
  j.with = OPI_ARENA_ARRAY(&scratch, uint32_t, plan->n_states);
  j.toucher = OPI_ARENA_ARRAY(&scratch, uint32_t, file->n_nodes);
  opipe_status status = ties == NULL || j.with == NULL || j.toucher == NULL
                            ? opi_fail_nomem(err, plan->n_states * sizeof *ties, "states")
                            : OPIPE_OK;
  for (uint32_t n = 0; status == OPIPE_OK && n < file->n_nodes; ++n)
    j.toucher[n] = OPIPE_NONE;
  if (status == OPIPE_OK)
    join(&j, plan, file);
  for (uint32_t i = 0; status == OPIPE_OK && i < plan->n_states; ++i) {
    tied *t = &ties[first_joined(&j, i)];
    if (t->stays == NULL)
      *t = (tied){.stays = out_stays, .first = OPIPE_NONE};
    status = for_nodes(&plan->states[i], bound, tie_node, t, err);
  }
  for (uint32_t i = 0; status == OPIPE_OK && i < plan->n_states; ++i) {
    for (uint32_t p = ties[i].first + 1; ties[i].stays != NULL && p <= ties[i].last; ++p)
      out_closed[p] = true;
  }
  opi_arena_release(&scratch);
  return status;
}

typedef struct placed {
  const opi_decision *plan;
  const opi_graph *bound;
  uint32_t maker;
} placed;

static opipe_status place_node(void *ctx, const opi_state_pair *pair, uint32_t node,
                               opipe_error *err) {
  placed *p = ctx;
  const uint32_t *stage = p->plan->stage_of_node;
  if (p->maker == OPIPE_NONE)
    p->maker = node;
  if (stage[node] == stage[p->maker])
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "state '%s' -> '%s': stage %u makes the output (node '%s'), stage %u reads the "
                  "input (node '%s'); both must be one stage",
                  pair->output, pair->input, stage[p->maker], p->bound->nodes[p->maker].name,
                  stage[node], p->bound->nodes[node].name);
}

opipe_status opi_states_place(opi_decision *plan, const opi_graph *bound, opipe_error *err) {
  for (uint32_t i = 0; i < plan->n_states; ++i) {
    placed p = {.plan = plan, .bound = bound, .maker = OPIPE_NONE};
    OPI_TRY(for_nodes(&plan->states[i], bound, place_node, &p, err));
    plan->states[i].stage = plan->stage_of_node[p.maker];
  }
  return OPIPE_OK;
}

/* ---- the cut of another shape ---- */

/* The pairs that pin nodes of a graph to stages. */
typedef struct holding {
  const opi_decision *plan;
  const opi_graph *bound;
  uint32_t *pair;  /* [n_nodes] pair that the node makes or reads; OPIPE_NONE: none */
  uint32_t *limit; /* [n_nodes] pair whose stage is the latest for the node, since the stage needs
                      it; OPIPE_NONE: none */
  uint32_t index;  /* the current pair */
} holding;

static opipe_status no_rank(const holding *h, uint32_t node, uint32_t one, uint32_t other,
                            opipe_error *err) {
  const opi_state_pair *a = &h->plan->states[one], *b = &h->plan->states[other];
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "state '%s' -> '%s': in this shape stage %u cannot keep it: node '%s' of it is "
                  "needed by stage %u, which keeps '%s' -> '%s'",
                  a->output, a->input, a->stage, h->bound->nodes[node].name, b->stage, b->output,
                  b->input);
}

static opipe_status hold_node(void *ctx, const opi_state_pair *pair, uint32_t node,
                              opipe_error *err) {
  holding *h = ctx;
  const uint32_t before = h->pair[node];
  (void)pair;
  if (before != OPIPE_NONE && h->plan->states[before].stage != h->plan->states[h->index].stage)
    return no_rank(h, node, h->index, before, err);
  h->pair[node] = h->limit[node] = h->index;
  return OPIPE_OK;
}

/* Goes from the last node to the first and limits the makers of a pair stage's inputs. */
static opipe_status limit_makers(const holding *h, opipe_error *err) {
  const opi_state_pair *states = h->plan->states;
  const opi_graph *g = h->bound;
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    const opi_node *node = &g->nodes[n];
    const uint32_t own = h->pair[n], limit = h->limit[n];
    if (limit == OPIPE_NONE)
      continue;
    if (own != OPIPE_NONE && states[limit].stage < states[own].stage)
      return no_rank(h, n, own, limit, err);
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t maker =
          node->in[i] == OPIPE_NONE ? OPIPE_NONE : g->values[node->in[i]].producer;
      if (maker == OPIPE_NONE)
        continue;
      uint32_t *of = &h->limit[maker];
      *of = *of == OPIPE_NONE || states[limit].stage < states[*of].stage ? limit : *of;
    }
  }
  return OPIPE_OK;
}

/* Moves every node within its limit, and raises its readers as needed. */
static void settle(const holding *h, uint32_t *io_stage_of_node) {
  const opi_state_pair *states = h->plan->states;
  const opi_graph *g = h->bound;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    uint32_t stage = io_stage_of_node[n];
    if (h->limit[n] != OPIPE_NONE && stage > states[h->limit[n]].stage)
      stage = states[h->limit[n]].stage;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t maker =
          node->in[i] == OPIPE_NONE ? OPIPE_NONE : g->values[node->in[i]].producer;
      stage =
          maker != OPIPE_NONE && io_stage_of_node[maker] > stage ? io_stage_of_node[maker] : stage;
    }
    io_stage_of_node[n] = h->pair[n] == OPIPE_NONE ? stage : states[h->pair[n]].stage;
  }
}

opipe_status opi_states_hold(const opi_decision *plan, const opi_graph *bound,
                             uint32_t *io_stage_of_node, opipe_error *err) {
  const size_t n = bound->n_nodes == 0 ? 1 : bound->n_nodes;
  if (plan->n_states == 0)
    return OPIPE_OK;
  holding h = {
      .plan = plan, .bound = bound, .pair = opi_alloc(plan->allocator, 2 * n * sizeof *h.pair)};
  if (h.pair == NULL)
    return opi_fail_nomem(err, 2 * n * sizeof *h.pair, "states");
  h.limit = h.pair + n;
  for (size_t i = 0; i < 2 * n; ++i)
    h.pair[i] = OPIPE_NONE;
  opipe_status status = OPIPE_OK;
  for (h.index = 0; h.index < plan->n_states && status == OPIPE_OK; ++h.index) {
    const opi_state_pair *pair = &plan->states[h.index];
    bool read = false;
    status = check_once(plan, h.index, bound, err);
    if (status == OPIPE_OK)
      status = check_made(pair, bound, &read, err);
    if (status == OPIPE_OK)
      status = for_nodes(pair, bound, hold_node, &h, err);
  }
  if (status == OPIPE_OK)
    status = limit_makers(&h, err);
  if (status == OPIPE_OK)
    settle(&h, io_stage_of_node);
  opi_free(plan->allocator, h.pair, 2 * n * sizeof *h.pair);
  return status;
}

/* ---- placement ---- */

uint32_t opi_states_homes(const opi_decision *plan) {
  return plan->in_turn ? opi_plan_copies(plan) : 1;
}

uint32_t opi_state_rank(const opi_decision *plan, uint32_t index, uint32_t home) {
  const uint32_t stage = plan->states[index].stage, n_homes = opi_states_homes(plan);
  uint32_t replica = 0;
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    if (plan->actions[a].stage == stage)
      replica = plan->actions[a].replica;
  }
  return opi_plan_rank(plan, stage, replica + home * (plan->n_replicas / n_homes));
}

/* ---- members ---- */

void opi_states_list(const opi_decision *plan, const opi_graph *bound, opi_shard_pair *out) {
  for (uint32_t i = 0; i < plan->n_states; ++i) {
    out[i] = (opi_shard_pair){.input = input_value(&plan->states[i], bound),
                              .output = output_value(&plan->states[i], bound)};
  }
}

/* A member's part of an input or output. */
static const opi_port_part *port_of(const opi_cut_model *model, uint32_t member, bool input,
                                    uint32_t port) {
  const opi_variant_slice *slice = &model->variants[model->base].slices[member];
  return &(input ? slice->input_parts : slice->output_parts)[port];
}

/* Whether a member has the same entries of the output and of the input, one run of them or all. */
static bool are_alike(const opi_port_part *out, const opi_port_part *in) {
  if (in == NULL || in->axis != out->axis)
    return false;
  return in->axis < 0 ||
         (in->n_whole == out->n_whole && in->n_runs == out->n_runs && in->n_runs <= 1 &&
          (in->n_runs == 0 ||
           (in->runs[0].first == out->runs[0].first && in->runs[0].n == out->runs[0].n)));
}

static opipe_status divide_pair(const opi_cut_model *model, opi_state_pair *pair, uint32_t port,
                                opi_arena *arena, opipe_error *err) {
  const uint32_t width = model->n_members;
  const opi_port_part *all = port_of(model, 0, false, pair->output_index);
  int64_t *first = OPI_ARENA_ARRAY(arena, int64_t, width);
  int64_t *parts = OPI_ARENA_ARRAY(arena, int64_t, width);
  if (first == NULL || parts == NULL)
    return opi_fail_nomem(err, 2 * width * sizeof *first, "states");
  for (uint32_t k = 0; k < width; ++k) {
    const opi_port_part *out = port_of(model, k, false, pair->output_index);
    const opi_port_part *in = port == OPIPE_NONE ? NULL : port_of(model, k, true, port);
    if (!are_alike(out, in) || out->axis != all->axis) {
      return opi_fail(
          err, OPIPE_E_INTERNAL,
          "state '%s' -> '%s': member %u of a tensor group of %u makes other parts of it "
          "than it reads",
          pair->output, pair->input, k, width);
    }
    first[k] = out->axis < 0 || out->n_runs == 0 ? 0 : out->runs[0].first;
    parts[k] = out->axis < 0 || out->n_runs == 0 ? 0 : out->runs[0].n;
  }
  if (all->axis < 0)
    return OPIPE_OK;
  pair->axis = all->axis;
  pair->whole = all->n_whole;
  pair->first = first;
  pair->parts = parts;
  return OPIPE_OK;
}

opipe_status opi_states_divide(const opi_cut_model *model, opi_decision *plan, opi_arena *arena,
                               opipe_error *err) {
  const opi_graph *g = model->cuts[0]->graph;
  for (uint32_t i = 0; model->n_members > 1 && i < plan->n_states; ++i) {
    opi_state_pair *pair = &plan->states[i];
    OPI_TRY(divide_pair(model, pair, find(g, g->inputs, g->n_inputs, pair->input), arena, err));
  }
  return OPIPE_OK;
}

bool opi_state_bytes(const opi_state_pair *pair, uint32_t member, uint64_t n_elems,
                     uint32_t alignment, uint64_t *out_bytes) {
  const uint64_t each = opi_dtype_bits(pair->dtype) / 8;
  if (n_elems > BYTES_MOST / each)
    return false;
  if (pair->parts != NULL) {
    const uint64_t whole = (uint64_t)pair->whole;
    n_elems = (n_elems / whole + (n_elems % whole != 0)) * (uint64_t)pair->parts[member];
  }
  *out_bytes = opi_align_up(n_elems * each, alignment);
  return true;
}

uint64_t opi_state_share(const opi_state_pair *pair, uint32_t member, uint64_t n_bytes) {
  return pair->parts == NULL ? n_bytes
                             : n_bytes / (uint64_t)pair->whole * (uint64_t)pair->parts[member];
}

uint64_t opi_stream_bytes(const opi_decision *plan, uint32_t rank, uint32_t alignment,
                          uint32_t *out_home) {
  uint64_t sum = 0, one = 0;
  *out_home = 0;
  for (uint32_t i = 0; i < plan->n_states; ++i) {
    for (uint32_t home = 0; home < opi_states_homes(plan); ++home) {
      const uint32_t first = opi_state_rank(plan, i, home);
      if (rank < first || rank >= first + opi_plan_width(plan) ||
          !opi_state_bytes(&plan->states[i], rank - first, plan->states[i].capacity, alignment,
                           &one))
        continue;
      *out_home = home;
      sum += 2 * one;
    }
  }
  return sum;
}
