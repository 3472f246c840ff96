/* SPDX-License-Identifier: Apache-2.0 */
/* Builds what a bound and cut shape needs to run: programs, layout, memory, bindings, message
 * streams, the lists' groups. */
#include <string.h>

#include "runtime/train/state.h"

static opi_rank *rank_of(const opi_shape *shape, uint32_t stage) {
  return &shape->session->ranks[opi_plan_rank(shape->session->plan, stage, 0)];
}

/* ---- programs and layout ---- */

static opipe_status compile_stage(opi_shape *shape, uint32_t stage, uint64_t *out_arena_bytes,
                                  opipe_error *err) {
  opi_stage_run *run = &shape->stages[stage];
  const opi_rank *rank = rank_of(shape, stage);
  const opipe_graph *graph = &opi_forward_of(shape->cut, stage)->graph;
  if (graph->n_nodes == 0)
    return OPIPE_OK;
  opipe_program_info info;
  OPI_TRY(opi_rank_compile(rank, graph, stage, 0, &run->program, &info, err));
  *out_arena_bytes = info.arena_bytes;
  return OPIPE_OK;
}

static opipe_status compile_all(opi_shape *shape, opi_arena *scratch, opipe_error *err) {
  const opi_session *s = shape->session;
  const uint32_t n_stages = shape->cut->n_stages;
  uint64_t *arena_bytes = OPI_ARENA_ARRAY(scratch, uint64_t, n_stages);
  uint32_t *alignment = OPI_ARENA_ARRAY(scratch, uint32_t, s->plan->n_ranks);
  shape->stages = OPI_ARENA_ARRAY(&shape->arena, opi_stage_run, n_stages);
  if (arena_bytes == NULL || alignment == NULL || shape->stages == NULL)
    return opi_fail_nomem(err, n_stages * sizeof(opi_stage_run), "stages");
  for (uint32_t st = 0; st < n_stages; ++st)
    OPI_TRY(compile_stage(shape, st, &arena_bytes[st], err));
  for (uint32_t r = 0; r < s->plan->n_ranks; ++r)
    alignment[r] = s->ranks[r].alignment;
  return opi_layout_build(s->plan, shape->cut, arena_bytes, alignment, s->direct, s->allocator,
                          &shape->layout, err);
}

static opipe_status list_results(opi_shape *shape, opipe_error *err) {
  const opi_cut *c = shape->cut;
  for (uint32_t st = 0; st < c->n_stages; ++st) {
    opi_stage_run *run = &shape->stages[st];
    run->results = OPI_ARENA_ARRAY(&shape->arena, uint32_t, shape->session->n_outputs);
    if (run->results == NULL)
      return opi_fail_nomem(err, shape->session->n_outputs * sizeof(uint32_t), "results");
    for (uint32_t o = 0; o < shape->session->n_outputs; ++o) {
      if (c->output_cell[o] != OPIPE_NONE && c->cells[c->output_cell[o]].stage == st)
        run->results[run->n_results++] = o;
    }
  }
  return OPIPE_OK;
}

static opipe_status list_routes(opi_shape *shape, opipe_error *err) {
  const opi_cut *c = shape->cut;
  for (uint32_t st = 0; st < c->n_stages; ++st) {
    opi_stage_run *run = &shape->stages[st];
    run->sends = OPI_ARENA_ARRAY(&shape->arena, uint32_t, c->n_routes);
    run->receives = OPI_ARENA_ARRAY(&shape->arena, uint32_t, c->n_routes);
    if (run->sends == NULL || run->receives == NULL)
      return opi_fail_nomem(err, c->n_routes * sizeof(uint32_t), "routes");
    for (uint32_t r = 0; r < c->n_routes; ++r) {
      if (c->routes[r].src_stage == st)
        run->sends[run->n_sends++] = r;
      if (c->routes[r].dst_stage == st)
        run->receives[run->n_receives++] = r;
    }
  }
  return OPIPE_OK;
}

/* ---- bindings: one per message number modulo the number of slots ---- */

static opipe_status bind_once(opi_shape *shape, uint32_t stage, uint32_t k, opipe_region *regions,
                              opipe_error *err) {
  const opi_program *program = opi_forward_of(shape->cut, stage);
  opi_stage_run *run = &shape->stages[stage];
  const opi_rank *rank = rank_of(shape, stage);
  for (uint32_t b = 0; b < program->graph.n_boundaries; ++b) {
    const uint32_t cell = program->cells[b];
    regions[b] =
        opi_slot_region(shape, &shape->layout->cells[cell], k, shape->cut->cells[cell].n_bytes);
  }
  opipe_bind_params params = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
                              .n_boundaries = program->graph.n_boundaries,
                              .program = run->program,
                              .params = rank->params,
                              .boundaries = regions};
  const uint32_t arena = shape->arena_of_rank[rank->index];
  if (arena != OPIPE_NONE) {
    params.arena = (opipe_region){.buffer = rank->arenas[arena].block.buffer,
                                  .n_bytes = rank->arenas[arena].block.n_bytes};
  }
  return opi_rank_bind(rank, stage, &params, &run->bindings[k], err);
}

static opipe_status bind_stage(opi_shape *shape, uint32_t stage, opi_arena *scratch,
                               opipe_error *err) {
  opi_stage_run *run = &shape->stages[stage];
  const opi_program *program = opi_forward_of(shape->cut, stage);
  const uint32_t n_boundaries = program->graph.n_boundaries;
  uint32_t n = 1;
  if (run->program == NULL)
    return OPIPE_OK;
  for (uint32_t b = 0; b < n_boundaries; ++b) {
    const uint32_t depth = shape->layout->cells[program->cells[b]].depth;
    if (depth > n)
      n = depth;
  }
  opipe_region *regions = OPI_ARENA_ARRAY(scratch, opipe_region, n_boundaries);
  run->bindings = OPI_ARENA_ARRAY(&shape->arena, opipe_binding *, n);
  if (regions == NULL || run->bindings == NULL)
    return opi_fail_nomem(err, n * sizeof(void *), "bindings");
  run->n_bindings = n;
  for (uint32_t k = 0; k < n; ++k)
    OPI_TRY(bind_once(shape, stage, k, regions, err));
  return OPIPE_OK;
}

/* ---- streams ---- */

static opipe_status open_route(opi_shape *shape, uint32_t route, opipe_error *err) {
  const opi_session *s = shape->session;
  const opi_route *r = &shape->cut->routes[route];
  opi_route_run *run = &shape->routes[route];
  run->slot = &shape->layout->cells[r->dst_cell];
  run->home = &shape->layout->cells[r->src_cell];
  run->in_place =
      run->home->rank == run->slot->rank && run->home->offset_bytes == run->slot->offset_bytes;
  run->src_rank = opi_plan_rank(s->plan, r->src_stage, 0);
  run->dst_rank = opi_plan_rank(s->plan, r->dst_stage, 0);
  run->used = OPI_ARENA_ARRAY(&shape->arena, bool, run->slot->depth);
  if (run->used == NULL)
    return opi_fail_nomem(err, run->slot->depth, "a route");
  if (s->reference || run->src_rank == run->dst_rank)
    return OPIPE_OK;
  if (r->index >= 65536) {
    return opi_fail(err, OPIPE_E_LIMIT, "stages %u -> %u exchange more than 65536 tensors",
                    r->src_stage, r->dst_stage);
  }
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = OPIPE_STREAM_FORWARD,
      .src_rank = run->src_rank,
      .dst_rank = run->dst_rank,
      .src_stage = r->src_stage,
      .dst_stage = r->dst_stage,
      .index = shape->place << 16 | r->index,
      .depth = run->slot->depth,
      .n_bytes = r->n_bytes};
  opipe_status status =
      OPI_ASK_WIRE(s, stream_open, err, s->ranks[run->src_rank].endpoint, &params, &run->src);
  if (status == OPIPE_OK) {
    status =
        OPI_ASK_WIRE(s, stream_open, err, s->ranks[run->dst_rank].endpoint, &params, &run->dst);
  }
  if (status < 0) {
    (void)opi_error_prefix(err, "tensor '%s' from stage %u to stage %u: ",
                           shape->bound->graph->values[r->value].name, r->src_stage, r->dst_stage);
  }
  return status;
}

/* ---- lists ---- */

/* Where the steps of each action begin; copies are sent before what was written in place, so that
 * they are read before the reader of the latter may hand its slot on. */
static void sort_sends(const opi_shape *shape, opi_step *steps, uint32_t n) {
  for (uint32_t i = 1; i < n; ++i) {
    for (uint32_t j = i; j > 0; --j) {
      const opi_step *a = &steps[j - 1], *b = &steps[j];
      if (a->kind != OPI_ACT_SEND || b->kind != OPI_ACT_SEND || b->route == OPI_ROUTE_CREDIT ||
          a->route == OPI_ROUTE_CREDIT)
        break;
      if (!shape->routes[a->route].in_place || shape->routes[b->route].in_place)
        break;
      const opi_step held = steps[j];
      steps[j] = steps[j - 1];
      steps[j - 1] = held;
    }
  }
}

static opipe_status group_actions(opi_shape *shape, opipe_error *err) {
  const opi_plan *plan = shape->session->plan;
  opi_program_list *list = shape->list;
  uint32_t at = 0;
  shape->group_first = OPI_ARENA_ARRAY(&shape->arena, uint32_t, (size_t)plan->n_actions + 1);
  if (shape->group_first == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof(uint32_t), "actions");
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    const opipe_action *action = &plan->actions[a];
    uint32_t n_computes = 0;
    shape->group_first[a] = at;
    for (; at < list->n_steps; ++at) {
      const opi_step *step = &list->steps[at];
      const bool before =
          step->kind == OPI_ACT_LOAD || step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_COMPUTE;
      if (n_computes == 1 && before)
        break;
      if (step->stage != action->stage || step->microbatch != action->microbatch) {
        return opi_fail(
            err, OPIPE_E_INTERNAL,
            "step %u of the list is of stage %u, micro-batch %u; action %u of stage %u, %u", at,
            step->stage, step->microbatch, a, action->stage, action->microbatch);
      }
      n_computes += step->kind == OPI_ACT_COMPUTE;
    }
    if (n_computes != 1)
      return opi_fail(err, OPIPE_E_INTERNAL, "action %u has %u computes", a, n_computes);
    sort_sends(shape, &list->steps[shape->group_first[a]], at - shape->group_first[a]);
  }
  shape->group_first[plan->n_actions] = at;
  return OPIPE_OK;
}

/* A rank whose first step is a receive is woken by the message. */
static opipe_status find_wakes(opi_shape *shape, opipe_error *err) {
  const opi_plan *plan = shape->session->plan;
  shape->wakes = OPI_ARENA_ARRAY(&shape->arena, bool, plan->n_ranks);
  if (shape->wakes == NULL)
    return opi_fail_nomem(err, plan->n_ranks, "ranks");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint32_t first = plan->rank_first[r];
    const bool none = first == plan->rank_first[r + 1];
    const opi_step *step = none ? NULL : &shape->list->steps[shape->group_first[first]];
    shape->wakes[r] = none || step->kind != OPI_ACT_RECV || step->route == OPI_ROUTE_CREDIT;
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status reserve_staging(opi_shape *shape, opipe_error *err) {
  for (uint32_t st = 0; st < shape->cut->n_stages; ++st) {
    OPI_TRY(opi_rank_reserve_staging(rank_of(shape, st), opi_largest_cell(shape->cut, st, st + 1),
                                     err));
  }
  return OPIPE_OK;
}

static opipe_status build_all(opi_shape *shape, opi_arena *scratch, opipe_error *err) {
  opi_session *s = shape->session;
  if (s->master == NULL)
    s->master = shape->cut;
  OPI_TRY(compile_all(shape, scratch, err));
  OPI_TRY(opi_shape_params(shape, err));
  OPI_TRY(opi_shape_memory(shape, shape->layout->ranks, err));
  OPI_TRY(list_results(shape, err));
  OPI_TRY(list_routes(shape, err));
  OPI_TRY(reserve_staging(shape, err));
  for (uint32_t st = 0; st < shape->cut->n_stages; ++st)
    OPI_TRY(bind_stage(shape, st, scratch, err));
  shape->routes = OPI_ARENA_ARRAY(&shape->arena, opi_route_run, shape->cut->n_routes);
  if (shape->routes == NULL)
    return opi_fail_nomem(err, shape->cut->n_routes * sizeof(opi_route_run), "routes");
  for (uint32_t r = 0; r < shape->cut->n_routes; ++r)
    OPI_TRY(open_route(shape, r, err));
  OPI_TRY(opi_session_ready(shape->session, err));
  OPI_TRY(group_actions(shape, err));
  return find_wakes(shape, err);
}

opipe_status opi_shape_build(opi_shape *shape, opipe_error *err) {
  opi_arena scratch;
  if (shape->train != NULL)
    return opi_train_shape_build(shape, err);
  opi_arena_init(&scratch, shape->session->allocator, 0);
  const opipe_status status = build_all(shape, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}

static void free_stage(opi_shape *shape, uint32_t stage) {
  opi_stage_run *run = &shape->stages[stage];
  const opipe_backend *backend = rank_of(shape, stage)->backend;
  for (uint32_t k = 0; k < run->n_bindings; ++k)
    backend->binding_free(run->bindings[k]);
  backend->program_free(run->program);
}

void opi_shape_stop(opi_shape *shape) {
  opi_session *s = shape->session;
  if (shape->train != NULL)
    opi_train_shape_stop(shape);
  for (uint32_t r = 0; shape->routes != NULL && r < shape->cut->n_routes; ++r) {
    s->transport->stream_close(shape->routes[r].dst);
    s->transport->stream_close(shape->routes[r].src);
  }
  for (uint32_t st = 0; shape->stages != NULL && st < shape->cut->n_stages; ++st)
    free_stage(shape, st);
  opi_shape_memory_free(shape);
  shape->routes = NULL;
  shape->stages = NULL;
  shape->arena_of_rank = NULL;
}

void opi_shape_free(opi_shape *shape) {
  if (shape == NULL)
    return;
  opi_session *s = shape->session;
  opi_shape_stop(shape);
  opi_train_shape_free(shape);
  opi_program_list_free(shape->list);
  opi_layout_free(shape->layout);
  if (shape->cut != NULL && s->master == shape->cut)
    s->master = NULL;
  opi_cut_free(shape->cut);
  opi_bound_free(shape->bound);
  opi_arena_release(&shape->arena);
  opi_free(s->allocator, shape, sizeof *shape);
}
