/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the parts of a shape that follow its graphs: lists, programs, memory, bindings, streams of
 * messages. They are taken down in reverse order.
 */
#include <string.h>

#include "partition/schedule/compute_order.h"
#include "runtime/compiled/build.h"

/* ---- programs ---- */

static opipe_status compile_unit(opi_compiled *t, uint32_t instance, uint32_t class,
                                 uint32_t program, opipe_error *err) {
  const opi_setup *s = t->setup;
  const uint32_t stage = instance / t->pieces->n_replicas, r = t->pieces->instance_rank[instance];
  opi_program_unit *unit = opi_unit_at(t, instance, class, program);
  if (program >= t->model->cuts[class]->n_kinds)
    return OPIPE_OK;
  unit->cut = opi_program_of(t->model->cuts[class], stage, program);
  if (r == OPIPE_NONE || !opi_rank_is_here(s, r) || unit->cut->graph.n_nodes == 0)
    return OPIPE_OK;
  const opi_rank *rank = &s->ranks[r];
  opi_seat *seat = &t->seats[r];
  opipe_program_info info;
  OPI_TRY(opi_rank_compile(rank, &unit->cut->graph, stage / t->model->n_pieces,
                           s->shapes->kind->compile_flags, &unit->program, &info, err));
  const uint64_t arena = opi_align_up(info.arena_bytes, rank->alignment);
  if (arena > seat->arena_bytes) {
    seat->arena_bytes = arena;
    seat->workspace_bytes = info.workspace_bytes;
  }
  return OPIPE_OK;
}

static opipe_status compile_all(opi_compiled *t, opipe_error *err) {
  const size_t n = (size_t)t->n_instances * t->n_classes * OPI_PROGRAMS;
  t->units = OPI_ARENA_ARRAY(&t->arena, opi_program_unit, n);
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

/* ---- memory ---- */

/* Bytes of the largest cell of the rank's stages; the reference's copies go through any rank. */
static uint64_t largest_on(const opi_compiled *t, uint32_t rank) {
  const opi_cut *cut = t->model->cuts[0];
  uint64_t most = 0;
  if (t->setup->reference)
    return opi_largest_cell(cut, 0, OPIPE_NONE);
  for (uint32_t i = 0; i < t->n_instances; ++i) {
    const uint32_t stage = i / t->pieces->n_replicas;
    if (t->pieces->instance_rank[i] != rank)
      continue;
    const uint64_t n = opi_largest_cell(cut, stage, stage + 1);
    most = n > most ? n : most;
  }
  return most;
}

opipe_status opi_compiled_memory(opi_compiled *t, opipe_error *err) {
  opi_setup *s = t->setup;
  opi_rank_needs *needs = OPI_ARENA_ARRAY(&t->arena, opi_rank_needs, s->plan->decided.n_ranks);
  if (needs == NULL)
    return opi_fail_nomem(err, s->plan->decided.n_ranks * sizeof *needs, "ranks");
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
    needs[r] =
        (opi_rank_needs){.boundary_bytes = t->lists->boundary_bytes[r] + t->lists->stash_bytes[r],
                         .arena_bytes = t->seats[r].arena_bytes};
  }
  OPI_TRY(opi_residents_find(t, err));
  OPI_TRY(opi_shape_memory(t->shape, needs, err));
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    opi_seat *seat = &t->seats[r];
    seat->shape = t;
    seat->sends = &t->shape->lead->compiled->seats[r];
    if (seat->sends != seat)
      continue;
    seat->room_waiting = 2 * t->lists->n_messages + 1;
    seat->waiting = OPI_ARENA_ARRAY(&t->arena, opi_waiting_send, seat->room_waiting);
    if (seat->waiting == NULL)
      return opi_fail_nomem(err, t->lists->n_messages * sizeof(uint32_t), "messages");
    OPI_TRY(opi_rank_reserve_staging(&s->ranks[r], largest_on(t, r), err));
  }
  return OPIPE_OK;
}

opipe_region opi_cell_region(const opi_compiled *t, uint32_t cell, uint32_t microbatch) {
  const opi_piece_plan *plan = t->pieces;
  const opi_cell *c = &t->model->cuts[opi_class_at(t, microbatch)]->cells[cell];
  const size_t occurrence = (size_t)cell * plan->n_microbatches + microbatch;
  if (c->held)
    return opi_resident_region(t, t->resident_of[occurrence]);
  return (opipe_region){.buffer = t->shape->boundary[t->lists->lies_on[occurrence]].buffer,
                        .offset_bytes = t->lists->offsets[occurrence],
                        .n_bytes = c->n_bytes};
}

char *opi_cell_host(const opi_compiled *t, uint32_t cell, uint32_t microbatch) {
  const size_t occurrence = (size_t)cell * t->pieces->n_microbatches + microbatch;
  if (t->model->cuts[opi_class_at(t, microbatch)]->cells[cell].held)
    return NULL; /* its reader alone touches it */
  char *host = t->shape->boundary[t->lists->lies_on[occurrence]].host;
  return host == NULL ? NULL : host + t->lists->offsets[occurrence];
}

static opipe_region part_of(opipe_region cell, uint64_t first, uint64_t n_bytes) {
  cell.offset_bytes += first;
  cell.n_bytes = n_bytes;
  return cell;
}

void opi_route_regions(const opi_compiled *t, uint32_t route, uint32_t microbatch,
                       opipe_region *out_from, opipe_region *out_to) {
  const opi_route *r = opi_route_at(t, route, microbatch);
  *out_from = part_of(opi_cell_region(t, r->src_cell, microbatch), r->src_bytes, r->n_bytes);
  *out_to = part_of(opi_cell_region(t, r->dst_cell, microbatch), r->dst_bytes, r->n_bytes);
}

/* ---- streams ---- */

/* The larger of a message's sizes in the two row classes. */
static uint64_t most_bytes(const opi_compiled *t, uint32_t route) {
  uint64_t most = 0;
  for (uint32_t c = 0; c < t->n_classes; ++c) {
    const uint64_t n = t->model->cuts[c]->routes[route].n_bytes;
    most = n > most ? n : most;
  }
  return most;
}

static opipe_status open_ends(opi_compiled *t, uint32_t i, const opipe_stream_params *params,
                              opipe_error *err) {
  const opi_setup *s = t->setup;
  opi_wire *wire = &t->wires[i];
  opipe_endpoint *src = s->ranks[params->src_rank].endpoint;
  opipe_endpoint *dst = s->ranks[params->dst_rank].endpoint;
  if (src != NULL)
    OPI_TRY(OPI_MAKE_WIRE(s, stream_open, &wire->src, err, src, params));
  return dst == NULL ? OPIPE_OK : OPI_MAKE_WIRE(s, stream_open, &wire->dst, err, dst, params);
}

static opipe_status open_credit(opi_compiled *t, uint32_t i, opipe_error *err) {
  const opi_list_stream *stream = &t->lists->streams[i];
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = OPIPE_STREAM_CONTROL,
      .src_rank = stream->src_rank,
      .dst_rank = stream->dst_rank,
      .src_stage = stream->src_stage,
      .dst_stage = stream->dst_stage,
      .src_replica = stream->src_replica,
      .dst_replica = stream->dst_replica,
      .index = t->shape->index << 16,
      .depth = stream->depth,
      .n_bytes = 0};
  return open_ends(t, i, &params, err);
}

static opipe_status open_wire(opi_compiled *t, uint32_t i, opipe_error *err) {
  const opi_list_stream *stream = &t->lists->streams[i];
  if (stream->route == OPI_ROUTE_CREDIT)
    return open_credit(t, i, err);
  const opi_route *route = &t->model->cuts[0]->routes[stream->route];
  const bool forward = route->phase == OPI_PHASE_F;
  if (route->index >= 65536) {
    return opi_fail(err, OPIPE_E_LIMIT, "stages %u -> %u exchange more than 65536 tensors",
                    route->src_stage, route->dst_stage);
  }
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = forward ? OPIPE_STREAM_FORWARD : OPIPE_STREAM_GRADIENT,
      .src_rank = stream->src_rank,
      .dst_rank = stream->dst_rank,
      .src_stage = route->src_stage,
      .dst_stage = route->dst_stage,
      .src_replica = stream->src_replica,
      .dst_replica = stream->dst_replica,
      .index = t->shape->index << 16 | route->index,
      .depth = stream->depth == 0 ? 1 : stream->depth,
      .n_bytes = most_bytes(t, stream->route)};
  const opipe_status status = open_ends(t, i, &params, err);
  if (status < 0) {
    (void)opi_error_prefix(err, "tensor '%s' from stage %u to stage %u: ",
                           t->model->cuts[0]->cells[route->src_cell].name, route->src_stage,
                           route->dst_stage);
  }
  return status;
}

static opipe_status open_wires(opi_compiled *t, opipe_error *err) {
  const opi_compiled *lead = t->shape->lead->compiled;
  t->wires = lead == t ? OPI_ARENA_ARRAY(&t->arena, opi_wire, t->lists->n_streams) : lead->wires;
  if (t->wires == NULL)
    return opi_fail_nomem(err, t->lists->n_streams * sizeof *t->wires, "streams");
  for (uint32_t i = 0; lead == t && i < t->lists->n_streams && !t->setup->reference; ++i)
    OPI_TRY(open_wire(t, i, err));
  return OPIPE_OK;
}

/* Gathers what the steps of each message read. */
static opipe_status place_messages(opi_compiled *t, opipe_error *err) {
  const opi_lists *lists = t->lists;
  t->messages = OPI_ARENA_ARRAY(&t->arena, opi_message_run, lists->n_messages);
  if (t->messages == NULL)
    return opi_fail_nomem(err, lists->n_messages * sizeof *t->messages, "messages");
  for (uint32_t i = 0; i < lists->n_messages; ++i) {
    const opi_list_message *m = &lists->messages[i];
    const opi_list_stream *stream = &lists->streams[m->stream];
    t->messages[i] = (opi_message_run){.wire = &t->wires[m->stream],
                                       .src_rank = stream->src_rank,
                                       .dst_rank = stream->dst_rank,
                                       .sequence = m->sequence,
                                       .n_messages = stream->n_messages,
                                       .stream = m->stream,
                                       .direct = m->direct};
    if (m->route == OPI_ROUTE_CREDIT)
      continue;
    opi_route_regions(t, m->route, m->microbatch, &t->messages[i].from, &t->messages[i].to);
  }
  return OPIPE_OK;
}

/* Makes the records of when steps ran, and finds which requests must wake the rank. Records of
 * different ranks are kept apart: ranks that write to one cache line, or to two that are fetched
 * together, wait for each other. */
static opipe_status prepare_seat(opi_compiled *t, uint32_t r, opipe_error *err) {
  enum { APART = 2 * 64 / sizeof(opi_ran) + 1 };
  const opi_lists *lists = t->lists;
  const uint32_t n = lists->n_positions, n_steps = lists->rank_first[r + 1] - lists->rank_first[r];
  opi_seat *seat = &t->seats[r];
  opi_ran *ran = OPI_ARENA_ARRAY(&t->arena, opi_ran, (size_t)n_steps + 2 * APART);
  seat->wakes = OPI_ARENA_ARRAY(&t->arena, bool, n);
  if (ran == NULL || seat->wakes == NULL)
    return opi_fail_nomem(err, n_steps * sizeof *ran, "ranks");
  seat->ran = ran + APART;
  for (uint32_t p = 0; p < n; ++p) {
    uint32_t first = lists->request_first[r * n + p];
    const uint32_t end = lists->request_first[r * n + p + 1];
    while (first < end && (lists->steps[first].kind == OPI_ACT_RESERVE ||
                           lists->steps[first].kind == OPI_ACT_DRAIN))
      ++first; /* these are done when the message has come at the latest */
    const opi_step *step = first == end ? NULL : &lists->steps[first];
    seat->wakes[p] = step == NULL || step->kind != OPI_ACT_RECV ||
                     lists->messages[step->route].route == OPI_ROUTE_CREDIT;
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status list_steps(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const uint32_t n_ranks = s->plan->decided.n_ranks;
  uint32_t *alignment = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_ranks);
  t->seats = OPI_ARENA_ARRAY(&t->arena, opi_seat, n_ranks);
  if (alignment == NULL || t->seats == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof *t->seats, "ranks");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint32_t planned =
        s->plan->decided.devices[r].alignment; /* equal to that of a device that is here */
    alignment[r] = opi_rank_is_here(s, r) ? s->ranks[r].alignment : planned == 0 ? 1 : planned;
  }
  if (t->shape->lead != t->shape) {
    t->lists = t->shape->lead->compiled->lists;
    return OPIPE_OK;
  }
  OPI_TRY(opi_lists_build(t->model, alignment, s->reference, s->allocator, &t->lists, err));
  const bool alone = !s->reference && s->transport->batch_begin == NULL;
  for (uint32_t i = 0; i < t->lists->n_steps && alone; ++i)
    t->lists->steps[i].batch = 0; /* a transport without batches */
  return OPIPE_OK;
}

opipe_status opi_compiled_build(opi_shape *shape, opipe_error *err) {
  opi_compiled *t = shape->compiled;
  const opi_setup *s = t->setup;
  OPI_TRY(list_steps(t, err));
  OPI_TRY(compile_all(t, err));
  OPI_TRY(s->shapes->kind->take(t, err));
  OPI_TRY(opi_bindings_make(t, err));
  OPI_TRY(open_wires(t, err));
  OPI_TRY(place_messages(t, err));
  OPI_TRY(opi_batches_make(t, err));
  OPI_TRY(opi_meets_make(t, err));
  OPI_TRY(opi_moves_make(t, err));
  OPI_TRY(opi_parts_find(t, err));
  OPI_TRY(opi_results_find(t, err));
  OPI_TRY(opi_touches_find(t, err));
  for (uint32_t i = 0; i < s->n_here; ++i)
    OPI_TRY(prepare_seat(t, s->here[i], err));
  return OPIPE_OK;
}

static void free_unit(const opi_rank *rank, const opi_program_unit *unit) {
  for (uint32_t b = 0; b < unit->n_bindings; ++b) {
    for (uint32_t set = 0; set < OPI_WEIGHT_SETS; ++set)
      rank->backend->binding_free(unit->bindings[b].sets[set]);
  }
  rank->backend->program_free(unit->program);
}

void opi_compiled_stop(opi_shape *shape) {
  opi_compiled *t = shape->compiled;
  if (t == NULL)
    return;
  const opi_setup *s = t->setup;
  const uint32_t per_instance = t->n_classes * OPI_PROGRAMS;
  opi_streams_forget(t);
  opi_lent_forget(t);
  opi_meets_stop(t);
  opi_moves_stop(t);
  opi_ways_forget(t);
  for (uint32_t i = 0; shape->lead == shape && t->wires != NULL && i < t->lists->n_streams; ++i) {
    s->transport->stream_close(t->wires[i].src);
    s->transport->stream_close(t->wires[i].dst);
  }
  opi_batches_stop(t);
  for (uint32_t u = 0; t->units != NULL && u < t->n_instances * per_instance; ++u) {
    if (t->units[u].program != NULL)
      free_unit(&s->ranks[t->pieces->instance_rank[u / per_instance]], &t->units[u]);
  }
  t->wires = NULL;
  t->units = NULL;
}

void opi_compiled_free(opi_shape *shape) {
  opi_compiled *t = shape->compiled;
  if (t == NULL)
    return;
  if (shape->setup->shapes->master != NULL && t->model != NULL && shape->keep)
    shape->setup->shapes->master = NULL;
  opi_train_close_counters(t);
  if (shape->lead == shape)
    opi_lists_free(t->lists);
  opi_cut_model_free(t->model);
  opi_arena_release(&t->arena);
  opi_free(shape->setup->allocator, t, sizeof *t);
  shape->compiled = NULL;
}
