/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the training part of a session: graphs and cuts, inputs and outputs by name, lists,
 * programs, weights, memory, bindings, streams; and takes it down in reverse order.
 */
#include <string.h>

#include "partition/cut/batch.h"
#include "partition/schedule/compute_order.h"
#include "runtime/train/state.h"

/* ---- inputs and outputs ---- */

static uint32_t find_input(const opi_session *s, const char *name) {
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (strcmp(s->inputs[i].name, name) == 0)
      return i;
  }
  return OPIPE_NONE;
}

/* An input that the model's file does not have. */
static opipe_status add_labels(opi_session *s, const opi_value *value, opipe_error *err) {
  opi_input *inputs = OPI_ARENA_ARRAY(&s->arena, opi_input, (size_t)s->n_inputs + 1);
  opi_value *own = OPI_ARENA_NEW(&s->arena, opi_value);
  int64_t *shape = OPI_ARENA_ARRAY(&s->arena, int64_t, (size_t)value->rank);
  if (inputs == NULL || own == NULL || shape == NULL)
    return opi_fail_nomem(err, sizeof *inputs, "inputs");
  memcpy(inputs, s->inputs, s->n_inputs * sizeof *inputs);
  *own = *value;
  own->shape = shape;
  own->name = opi_arena_strdup(&s->arena, value->name);
  if (own->name == NULL)
    return opi_fail_nomem(err, 0, "inputs");
  for (int32_t d = 0; d < value->rank; ++d)
    shape[d] = -1; /* checked against the whole mini-batch's */
  inputs[s->n_inputs] = (opi_input){.name = own->name, .value = own, .batch_axis = -1};
  s->inputs = inputs;
  s->n_dims += (uint32_t)value->rank;
  ++s->n_inputs;
  return OPIPE_OK;
}

static opipe_status name_outputs(opi_train *t, opipe_error *err) {
  opi_session *s = t->session;
  const opi_training *training = t->model->variants[0].slices[0].training;
  s->n_outputs = training->output == OPIPE_NONE ? 1 : 2;
  s->output_names = OPI_ARENA_ARRAY(&s->arena, const char *, s->n_outputs);
  s->output_dtypes = OPI_ARENA_ARRAY(&s->arena, uint32_t, s->n_outputs);
  if (s->output_names == NULL || s->output_dtypes == NULL)
    return opi_fail_nomem(err, s->n_outputs * sizeof(char *), "outputs");
  s->output_names[0] = "loss";
  s->output_dtypes[0] = OPIPE_FLOAT;
  if (s->n_outputs == 2) {
    const char *asked = s->plan->train->loss.output;
    s->output_names[1] = asked != NULL ? asked : training->output_name;
    s->output_dtypes[1] = training->graph->values[training->output].dtype;
  }
  return OPIPE_OK;
}

/* How the logits carry the batch; the labels carry it alike. */
static opipe_status carry_output(opi_train *t, opipe_error *err) {
  const opi_session *s = t->session;
  const opi_bound *bound = t->model->variants[t->model->base].bound;
  const opi_graph *g = bound->graph;
  t->output_carry = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  if (s->n_outputs < 2 || s->plan->batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *in = OPI_ARENA_ARRAY(&t->arena, opi_carry, g->n_inputs);
  opi_carry *all = OPI_ARENA_ARRAY(&t->arena, opi_carry, g->n_values);
  if (in == NULL || all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const uint32_t i = find_input(s, g->values[g->inputs[p]].name);
    in[p] =
        (opi_carry){.axis = i == OPIPE_NONE ? -1 : s->inputs[i].batch_axis, .outer = 1, .inner = 1};
  }
  const bool split = opi_plan_cuts_rows(s->plan);
  const opipe_status status = opi_carry_axis(g, s->plan->batch, in, all, split ? err : NULL);
  if (status < 0)
    return split ? status : OPIPE_OK;
  const uint32_t v = opi_bound_value(bound, s->output_names[1]);
  if (v != OPIPE_NONE)
    t->output_carry = all[v];
  return OPIPE_OK;
}

/* Labels are split like the output that they are compared with. */
static opipe_status place_labels(const opi_train *t, const opi_value *value, int32_t *io_axis,
                                 opipe_error *err) {
  if (*io_axis >= 0 || t->session->plan->batch_dim == NULL)
    return OPIPE_OK;
  *io_axis = t->output_carry.axis;
  if (t->output_carry.axis >= value->rank || t->output_carry.outer != 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "labels '%s' of rank %d cannot be split like the output", value->name,
                    value->rank);
  }
  return OPIPE_OK;
}

static opipe_status match_ports(opi_train *t, const opi_training *training, opi_train_ports *ports,
                                opipe_error *err) {
  const opi_session *s = t->session;
  const opi_graph *g = training->graph;
  ports->input = OPI_ARENA_ARRAY(&t->arena, uint32_t, g->n_inputs);
  ports->axis = OPI_ARENA_ARRAY(&t->arena, int32_t, g->n_inputs);
  ports->labels = OPIPE_NONE;
  if (ports->input == NULL || ports->axis == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof(uint32_t), "inputs");
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const opi_value *value = &g->values[g->inputs[p]];
    const uint32_t i = find_input(s, value->name);
    ports->input[p] = i;
    ports->axis[p] = i == OPIPE_NONE ? -1 : s->inputs[i].batch_axis;
    if (i == OPIPE_NONE && t->model->n_slices == 1) {
      return opi_fail(err, OPIPE_E_INTERNAL,
                      "the training graph reads input '%s', which the model does not have",
                      value->name);
    }
    if (g->inputs[p] != training->labels)
      continue;
    ports->labels = p;
    OPI_TRY(place_labels(t, value, &ports->axis[p], err));
  }
  return OPIPE_OK;
}

/* With slices: [rows, tokens, ...] for what the loss judges. */
static opipe_status find_token_axis(opi_train *t, opipe_error *err) {
  if (t->model->n_slices == 1)
    return OPIPE_OK;
  t->token_axis = t->model->variants[t->model->base].slices[0].tokens->output_axis;
  const bool batch_first = t->output_carry.axis <= 0 && t->output_carry.inner == 1;
  if (t->token_axis == 1 && batch_first && t->session->n_outputs == 2)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "slices of tokens: output '%s' must be [batch, tokens, ...]",
                  t->session->output_names[t->session->n_outputs - 1]);
}

opipe_status opi_train_prepare(opi_session *s, opipe_error *err) {
  const opi_plan *plan = s->plan;
  opi_train *t = opi_alloc_zero(s->allocator, 1, sizeof *t);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "a training session");
  t->session = s;
  opi_arena_init(&t->arena, s->allocator, 0);
  s->train = t;
  const opi_bind_options base = {
      .evaluator = s->env.evaluator, .allocator = s->allocator, .logger = s->env.logger};
  OPI_TRY(opi_train_model_build(plan, s->env.model, &base, &t->model, err));
  t->n_classes = t->model->n_classes;
  t->plan = &t->model->view;
  t->n_instances = t->plan->n_stages * t->plan->n_replicas;
  const int64_t whole = plan->batch_dim == NULL ? plan->n_microbatches : plan->batch_rows;
  const uint32_t extra = (uint32_t)((uint64_t)whole % plan->n_microbatches);
  t->n_large = extra == 0 ? plan->n_microbatches : extra;
  t->rows[0] = opi_microbatch_rows(whole, plan->n_microbatches, 0);
  t->rows[1] = whole / plan->n_microbatches;
  const opi_training *training = t->model->variants[0].slices[0].training;
  t->labels_input = OPIPE_NONE;
  if (training->labels != OPIPE_NONE) {
    const opi_value *labels = &training->graph->values[training->labels];
    if (find_input(s, labels->name) == OPIPE_NONE)
      OPI_TRY(add_labels(s, labels, err));
    t->labels_input = find_input(s, labels->name);
  }
  OPI_TRY(name_outputs(t, err));
  OPI_TRY(carry_output(t, err));
  OPI_TRY(find_token_axis(t, err));
  t->ports = OPI_ARENA_ARRAY(&t->arena, opi_train_ports *, t->model->n_variants);
  if (t->ports == NULL)
    return opi_fail_nomem(err, t->model->n_variants * sizeof *t->ports, "inputs");
  for (uint32_t v = 0; v < t->model->n_variants; ++v) {
    t->ports[v] = OPI_ARENA_ARRAY(&t->arena, opi_train_ports, t->model->n_slices);
    if (t->ports[v] == NULL)
      return opi_fail_nomem(err, t->model->n_slices * sizeof(opi_train_ports), "inputs");
    for (uint32_t k = 0; k < t->model->n_slices; ++k)
      OPI_TRY(match_ports(t, t->model->variants[v].slices[k].training, &t->ports[v][k], err));
  }
  return opi_train_open_counters(t, err);
}

/* ---- programs ---- */

static opipe_status compile_unit(opi_train *t, uint32_t instance, uint32_t class, uint32_t program,
                                 opipe_error *err) {
  const opi_session *s = t->session;
  const uint32_t stage = instance / t->plan->n_replicas, r = t->plan->instance_rank[instance];
  opi_train_unit *unit = opi_train_unit_of(t, instance, class, program);
  unit->cut = opi_program_of(t->model->cuts[class], stage, program);
  if (r == OPIPE_NONE || unit->cut->graph.n_nodes == 0)
    return OPIPE_OK;
  const opi_rank *rank = &s->ranks[r];
  opi_train_place *place = &t->places[r];
  opipe_program_info info;
  OPI_TRY(opi_rank_compile(rank, &unit->cut->graph, stage / t->model->n_views, OPIPE_COMPILE_OWNED,
                           &unit->program, &info, err));
  const uint64_t arena = opi_align_up(info.arena_bytes, rank->alignment);
  if (arena > place->arena_bytes) {
    place->arena_bytes = arena;
    place->workspace_bytes = info.workspace_bytes;
  }
  return OPIPE_OK;
}

static opipe_status compile_all(opi_train *t, opipe_error *err) {
  const size_t n = (size_t)t->n_instances * t->n_classes * OPI_PROGRAMS;
  t->units = OPI_ARENA_ARRAY(&t->arena, opi_train_unit, n);
  if (t->units == NULL)
    return opi_fail_nomem(err, n * sizeof *t->units, "programs");
  for (uint32_t i = 0; i < t->n_instances; ++i) {
    for (uint32_t c = 0; c < t->n_classes; ++c) {
      for (uint32_t p = 0; p < OPI_PROGRAMS; ++p)
        OPI_TRY(compile_unit(t, i, c, p, err));
    }
  }
  return OPIPE_OK;
}

/* ---- weights ---- */

static opipe_status describe_instance(opi_train *t, uint32_t i, opi_weight_instance *out,
                                      opipe_error *err) {
  const opi_session *s = t->session;
  const uint32_t stage = i / s->plan->n_replicas, r = s->plan->instance_rank[i];
  const uint32_t n_views = t->model->n_views, each = t->n_classes * OPI_PROGRAMS;
  const uint32_t n = each * n_views, n_replicas = t->plan->n_replicas;
  if (r == OPIPE_NONE)
    return OPIPE_OK;
  opipe_program **programs = OPI_ARENA_ARRAY(&t->arena, opipe_program *, n);
  uint32_t *params = NULL, n_params = 0;
  if (programs == NULL)
    return opi_fail_nomem(err, n * sizeof *programs, "weights");
  OPI_TRY(opi_train_stage_params(t->model, stage, &t->arena, &params, &n_params, err));
  const uint32_t replica = n_replicas == 1 ? 0 : i % s->plan->n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t piece = (stage * n_views + k / each) * n_replicas + replica;
    if (opi_train_whole(t, piece) == i)
      programs[k] = t->units[piece * each + k % each].program;
  }
  *out = (opi_weight_instance){.rank = r,
                               .stage = stage,
                               .replica = i % s->plan->n_replicas,
                               .n_programs = n,
                               .backend = &s->env.backends[r],
                               .device = s->ranks[r].device,
                               .device_index = s->plan->devices[r].index,
                               .queue = s->ranks[r].queue,
                               .endpoint = s->ranks[r].endpoint,
                               .programs = programs,
                               .params = params,
                               .n_params = n_params};
  return OPIPE_OK;
}

static opipe_status open_weights(opi_train *t, opipe_error *err) {
  const opi_session *s = t->session;
  const opi_cut *cut = t->model->cuts[0];
  const uint32_t n = s->plan->n_stages * s->plan->n_replicas;
  opi_weight_instance *instances = OPI_ARENA_ARRAY(&t->arena, opi_weight_instance, n);
  if (instances == NULL)
    return opi_fail_nomem(err, n * sizeof *instances, "weights");
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(describe_instance(t, i, &instances[i], err));
  const opi_weights_options options = {
      .allocator = s->allocator,
      .optimizer = &s->plan->train->optimizer,
      .instances = instances,
      .sources = cut->sources,
      .trained = cut->trained,
      .transport = s->reference ? (opi_transport_ref){.table = NULL} : s->env.transport,
      .budget = s->env.budget,
      .n_stages = s->plan->n_stages,
      .n_replicas = s->plan->n_replicas,
      .n_ranks = s->plan->n_ranks,
      .n_sources = cut->n_params,
      .n_versions = s->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1,
      .keep_gradients = (s->flags & OPIPE_SESSION_KEEP_GRADIENTS) != 0,
      .hold = (s->flags & OPIPE_SESSION_HOLD) != 0};
  return opi_weights_open(&options, &t->weights, err);
}

/* ---- memory ---- */

static opipe_status take_memory(opi_train *t, uint32_t r, opipe_error *err) {
  opi_rank *rank = &t->session->ranks[r];
  opi_train_place *place = &t->places[r];
  const uint64_t n_bytes = t->lists->boundary_bytes[r] + t->lists->stash_bytes[r];
  OPI_TRY(opi_rank_take(rank, place->arena_bytes, OPIPE_BUFFER_ARENA,
                        "the arena of a training session", &place->arena, err));
  OPI_TRY(opi_rank_take(rank, opi_align_up(n_bytes, rank->alignment), OPIPE_BUFFER_BOUNDARY,
                        "stashes and boundaries of a training session", &place->boundary, err));
  place->room_waiting = 2 * t->lists->n_messages + 1;
  place->waiting = OPI_ARENA_ARRAY(&t->arena, opi_train_waiting, place->room_waiting);
  place->reducing = OPI_ARENA_ARRAY(&t->arena, uint32_t, t->n_instances);
  if (place->waiting == NULL || place->reducing == NULL)
    return opi_fail_nomem(err, t->lists->n_messages * sizeof(uint32_t), "messages");
  return opi_rank_reserve_staging(rank, opi_largest_cell(t->model->cuts[0], 0, OPIPE_NONE), err);
}

opipe_region opi_train_region(const opi_train *t, uint32_t cell, uint32_t microbatch) {
  const opi_plan *plan = t->plan;
  const opi_cell *c = &t->model->cuts[opi_train_class(t, microbatch)]->cells[cell];
  const uint32_t rank = plan->instance_rank[opi_train_instance(t, c->stage, microbatch)];
  return (opipe_region){
      .buffer = t->places[rank].boundary.buffer,
      .offset_bytes = t->lists->offsets[(size_t)cell * plan->n_microbatches + microbatch],
      .n_bytes = c->n_bytes};
}

char *opi_train_host(const opi_train *t, uint32_t cell, uint32_t microbatch) {
  const opi_plan *plan = t->plan;
  const uint32_t stage = t->model->cuts[0]->cells[cell].stage;
  const uint32_t rank = plan->instance_rank[opi_train_instance(t, stage, microbatch)];
  char *host = t->places[rank].boundary.host;
  return host == NULL ? NULL
                      : host + t->lists->offsets[(size_t)cell * plan->n_microbatches + microbatch];
}

opipe_region opi_train_source(const opi_train *t, uint32_t route, uint32_t microbatch) {
  const opi_route *r = opi_train_route_of(t, route, microbatch);
  opipe_region region = opi_train_region(t, r->src_cell, microbatch);
  region.offset_bytes += r->src_bytes;
  region.n_bytes = r->n_bytes;
  return region;
}

opipe_region opi_train_target(const opi_train *t, uint32_t route, uint32_t microbatch) {
  const opi_route *r = opi_train_route_of(t, route, microbatch);
  opipe_region region = opi_train_region(t, r->dst_cell, microbatch);
  region.offset_bytes += r->dst_bytes;
  region.n_bytes = r->n_bytes;
  return region;
}

/* ---- streams ---- */

/* Of a message of either class. */
static uint64_t most_bytes(const opi_train *t, uint32_t route) {
  uint64_t most = 0;
  for (uint32_t c = 0; c < t->n_classes; ++c) {
    const uint64_t n = t->model->cuts[c]->routes[route].n_bytes;
    most = n > most ? n : most;
  }
  return most;
}

static opipe_status open_wire(opi_train *t, uint32_t i, opipe_error *err) {
  const opi_session *s = t->session;
  const opi_train_stream *stream = &t->lists->streams[i];
  const opi_route *route = &t->model->cuts[0]->routes[stream->route];
  const bool forward = route->phase == OPI_PHASE_F;
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = forward ? OPIPE_STREAM_FORWARD : OPIPE_STREAM_GRADIENT,
      .src_rank = stream->src_rank,
      .dst_rank = stream->dst_rank,
      .src_stage = route->src_stage,
      .dst_stage = route->dst_stage,
      .src_replica = stream->src_replica,
      .dst_replica = stream->dst_replica,
      .index = route->index,
      .depth = stream->depth == 0 ? 1 : stream->depth,
      .n_bytes = most_bytes(t, stream->route)};
  OPI_TRY(OPI_ASK_WIRE(s, stream_open, err, s->ranks[stream->src_rank].endpoint, &params,
                       &t->wires[i].src));
  return OPI_ASK_WIRE(s, stream_open, err, s->ranks[stream->dst_rank].endpoint, &params,
                      &t->wires[i].dst);
}

/* ---- all of it ---- */

opipe_status opi_train_build(opi_session *s, opipe_error *err) {
  opi_train *t = s->train;
  const uint32_t n_ranks = s->plan->n_ranks;
  uint32_t *alignment = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_ranks);
  t->places = OPI_ARENA_ARRAY(&t->arena, opi_train_place, n_ranks);
  if (alignment == NULL || t->places == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof *t->places, "ranks");
  for (uint32_t r = 0; r < n_ranks; ++r)
    alignment[r] = s->ranks[r].alignment;
  OPI_TRY(opi_train_lists_build(
      t->plan, (const opi_cut *const *)t->model->cuts, t->n_classes, alignment, t->model->n_views,
      t->model->whole_of, t->model->reduce_after, s->reference, s->allocator, &t->lists, err));
  s->ring_room = 2 * s->max_in_flight + 2;
  t->items = OPI_ARENA_ARRAY(&t->arena, opi_train_item, s->ring_room);
  if (t->items == NULL)
    return opi_fail_nomem(err, s->ring_room * sizeof *t->items, "steps");
  t->periodic = s->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED && !s->reference;
  OPI_TRY(compile_all(t, err));
  for (uint32_t r = 0; r < n_ranks; ++r)
    OPI_TRY(take_memory(t, r, err));
  OPI_TRY(open_weights(t, err));
  OPI_TRY(opi_train_bind(t, err));
  t->wires = OPI_ARENA_ARRAY(&t->arena, opi_train_wire, t->lists->n_streams);
  if (t->wires == NULL)
    return opi_fail_nomem(err, t->lists->n_streams * sizeof *t->wires, "streams");
  for (uint32_t i = 0; i < t->lists->n_streams && !s->reference; ++i)
    OPI_TRY(open_wire(t, i, err));
  return OPIPE_OK;
}

static void free_unit(const opi_train *t, const opi_rank *rank, opi_train_unit *unit) {
  for (uint32_t b = 0; b < unit->n_bindings; ++b) {
    for (uint32_t set = 0; set < OPI_WEIGHT_SETS; ++set)
      rank->backend->binding_free(unit->bindings[b].sets[set]);
  }
  (void)t;
}

void opi_train_stop(opi_session *s) {
  opi_train *t = s->train;
  if (t == NULL)
    return;
  const uint32_t per_instance = t->n_classes * OPI_PROGRAMS;
  for (uint32_t i = 0; t->wires != NULL && i < t->lists->n_streams; ++i) {
    s->transport->stream_close(t->wires[i].src);
    s->transport->stream_close(t->wires[i].dst);
  }
  for (uint32_t u = 0; t->units != NULL && u < t->n_instances * per_instance; ++u) {
    if (t->units[u].program != NULL)
      free_unit(t, &s->ranks[t->plan->instance_rank[u / per_instance]], &t->units[u]);
  }
  opi_weights_close(t->weights);
  for (uint32_t u = 0; t->units != NULL && u < t->n_instances * per_instance; ++u) {
    const uint32_t r = t->plan->instance_rank[u / per_instance];
    if (t->units[u].program != NULL)
      s->ranks[r].backend->program_free(t->units[u].program);
  }
  for (uint32_t r = 0; t->places != NULL && r < s->plan->n_ranks; ++r) {
    opi_rank_give(&s->ranks[r], &t->places[r].boundary);
    opi_rank_give(&s->ranks[r], &t->places[r].arena);
  }
}

void opi_train_free(opi_session *s) {
  opi_train *t = s->train;
  if (t == NULL)
    return;
  opi_train_close_counters(t);
  opi_train_lists_free(t->lists);
  opi_train_model_free(t->model);
  opi_arena_release(&t->arena);
  opi_free(s->allocator, t, sizeof *t);
  s->train = NULL;
}
