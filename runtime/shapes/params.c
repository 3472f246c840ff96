/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters: one set per rank, shared by all shapes. Its table is that of the plan's own cut
 * (the master); the graphs of other shapes are renumbered to it by name and content. A known value
 * that only one shape has (folded from its dimensions) becomes a constant of that shape's programs.
 */
#include <string.h>

#include "runtime/state.h"

/* Slot of a parameter in the master's table, OPIPE_NONE: not there. */
static uint32_t master_slot(const opi_cut *master, const opipe_param_source *source,
                            uint32_t guess) {
  if (guess < master->n_params && opi_same_source(&master->sources[guess], source))
    return guess;
  for (uint32_t p = 0; p < master->n_params; ++p) {
    if (opi_same_source(&master->sources[p], source))
      return p;
  }
  return OPIPE_NONE;
}

opipe_status opi_stage_graph(opi_shape *shape, uint32_t stage, opipe_error *err) {
  const opi_cut *master = shape->session->master;
  opi_stage_run *run = &shape->stages[stage];
  run->graph = opi_forward_of(shape->cut, stage)->graph;
  if (master == shape->cut)
    return OPIPE_OK;
  opipe_value *values = OPI_ARENA_ARRAY(&shape->arena, opipe_value, run->graph.n_values);
  if (values == NULL)
    return opi_fail_nomem(err, run->graph.n_values * sizeof *values, "a stage");
  for (uint32_t v = 0; v < run->graph.n_values; ++v) {
    values[v] = run->graph.values[v];
    if (values[v].role != OPIPE_VALUE_PARAMETER)
      continue;
    const opipe_param_source *source = &shape->cut->sources[values[v].slot];
    const uint32_t slot = master_slot(master, source, values[v].slot);
    if (slot == OPIPE_NONE) {
      values[v].role = OPIPE_VALUE_CONSTANT;
      values[v].data = source->data;
    }
    values[v].slot = slot;
  }
  run->graph.values = values;
  run->graph.n_params = master->n_params;
  return OPIPE_OK;
}

/* Device bytes of the layouts that `program` wants and `seen` [n_seen] has not; appends them. */
typedef struct wanted {
  opi_arena scratch;
  opipe_param_layout *list;
  uint32_t n, room;
  uint64_t n_bytes;
} wanted;

static opipe_status add_program(wanted *w, const opi_rank *rank, const opipe_program *program,
                                opipe_error *err) {
  opipe_param_layout *list = NULL;
  uint32_t count = 0;
  OPI_TRY(opi_layouts_ask(opi_rank_backend(rank), program, rank->session->master->n_params, false,
                          &w->scratch, &list, &count, err));
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t k = 0;
    while (k < w->n && (w->list[k].slot != list[i].slot || w->list[k].key != list[i].key))
      ++k;
    if (k < w->n)
      continue;
    if (!opi_arena_grow(&w->scratch, (void **)&w->list, &w->room, w->n + 1, sizeof *w->list)) {
      return opi_fail_nomem(err, sizeof *w->list, "parameter layouts");
    }
    w->list[w->n++] = list[i];
    w->n_bytes += opi_align_up(list[i].n_bytes, rank->alignment);
  }
  return OPIPE_OK;
}

static opipe_status held_bytes(const opi_rank *rank, uint64_t *out_bytes, opipe_error *err) {
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  OPI_TRY(OPI_ASK_RANK(rank, device_usage, err, rank->device, &usage));
  *out_bytes = usage.live_bytes[OPIPE_BUFFER_PARAMS];
  return OPIPE_OK;
}

/* Makes the layouts that the rank's programs lack. A set does not tell what it holds: first what is
 * surely missing is charged, then, by what the device has handed out meanwhile, the rest. */
static opipe_status prepare_sets(opi_shape *shape, opi_rank *rank, uint64_t need_bytes,
                                 opipe_error *err) {
  uint64_t before = 0, after = 0;
  OPI_TRY(held_bytes(rank, &before, err));
  const uint64_t sure = need_bytes > before ? need_bytes - before : 0;
  OPI_TRY(opi_rank_charge(rank, sure, "the parameters of a session", err));
  for (uint32_t st = 0; st < shape->cut->n_stages; ++st) {
    if (opi_plan_rank(shape->session->plan, st, 0) != rank->index ||
        shape->stages[st].program == NULL)
      continue;
    const opipe_status status =
        OPI_ASK_RANK(rank, params_prepare, err, rank->params, shape->stages[st].program);
    if (status < 0)
      (void)opi_error_prefix(err, "rank %u, stage %u: ", rank->index, st);
    if (status < 0)
      return status;
  }
  OPI_TRY(held_bytes(rank, &after, err));
  const uint64_t made = after > before ? after - before : 0;
  return opi_rank_charge(rank, made > sure ? made - sure : 0, "the parameters of a session", err);
}

static opipe_status prepare_rank(opi_shape *shape, opi_rank *rank, opipe_error *err) {
  const opi_session *s = shape->session;
  wanted w = {.n = 0};
  opipe_status status = OPIPE_OK;
  opi_arena_init(&w.scratch, s->allocator, 0);
  for (uint32_t st = 0; st < shape->cut->n_stages && status == OPIPE_OK; ++st) {
    if (opi_plan_rank(s->plan, st, 0) != rank->index || shape->stages[st].program == NULL)
      continue;
    status = add_program(&w, rank, shape->stages[st].program, err);
  }
  if (status == OPIPE_OK)
    status = prepare_sets(shape, rank, w.n_bytes, err);
  opi_arena_release(&w.scratch);
  return status;
}

opipe_status opi_shape_params(opi_shape *shape, opipe_error *err) {
  opi_session *s = shape->session;
  for (uint32_t r = 0; r < s->plan->n_ranks; ++r) {
    opi_rank *rank = &s->ranks[r];
    if (s->master->n_params == 0)
      return OPIPE_OK;
    if (rank->params == NULL) {
      OPI_TRY(OPI_ASK_RANK(rank, params_create, err, rank->device, s->master->sources,
                           s->master->n_params, &rank->params));
    }
    OPI_TRY(prepare_rank(shape, rank, err));
  }
  return OPIPE_OK;
}
