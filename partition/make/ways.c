/* SPDX-License-Identifier: Apache-2.0 */
/* See ways.h. */
#include <stdio.h>
#include <string.h>

#include "partition/make/ways.h"

typedef struct ways {
  opi_plan *plan;
  const opi_transport_ref *transport;
  const char *options;
  const opi_rank_device *devices;
  opipe_error *err;
} ways;

/* A pair of ranks keeps the worst of its streams' ways. */
static opipe_status note(ways *w, uint32_t src, uint32_t dst, const opipe_way *way) {
  opi_prediction *p = &w->plan->predicted;
  uint32_t i = 0;
  while (i < p->n_ways && (p->ways[i].src_rank != src || p->ways[i].dst_rank != dst))
    ++i;
  if (i == p->n_ways) {
    uint32_t room = p->n_ways;
    if (!opi_arena_grow(&w->plan->arena, (void **)&p->ways, &room, p->n_ways + 1, sizeof *p->ways))
      return opi_fail_nomem(w->err, sizeof *p->ways, "a plan");
    p->ways[p->n_ways++] = (opi_way_told){.src_rank = src, .dst_rank = dst};
  } else if (p->ways[i].way >= way->way) {
    return OPIPE_OK;
  }
  p->ways[i].way = way->way;
  (void)snprintf(p->ways[i].why, sizeof p->ways[i].why, "%s", way->why);
  return OPIPE_OK;
}

/* The larger of a message's sizes in the row classes. */
static uint64_t most_bytes(const opi_cut_model *model, uint32_t route) {
  uint64_t most = 0;
  for (uint32_t c = 0; c < model->n_classes; ++c) {
    const uint64_t n = model->cuts[c]->routes[route].n_bytes;
    most = n > most ? n : most;
  }
  return most;
}

static opipe_status ask(ways *w, const opi_cut_model *model, const opi_list_stream *stream) {
  opi_memory *memory = w->plan->predicted.memory;
  const opi_device_spec *specs = w->plan->decided.devices;
  const uint32_t src = stream->src_rank, dst = stream->dst_rank;
  const opi_rank_device *from = &w->devices[src], *to = &w->devices[dst];
  if (stream->route == OPI_ROUTE_CREDIT || from->backend == NULL || to->backend == NULL)
    return OPIPE_OK;
  const opi_route *route = &model->cuts[0]->routes[stream->route];
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = route->phase == OPI_PHASE_F ? OPIPE_STREAM_FORWARD : OPIPE_STREAM_GRADIENT,
      .src_rank = src,
      .dst_rank = dst,
      .src_stage = route->src_stage,
      .dst_stage = route->dst_stage,
      .src_replica = stream->src_replica,
      .dst_replica = stream->dst_replica,
      .index = route->index,
      .depth = stream->depth == 0 ? 1 : stream->depth,
      .n_bytes = most_bytes(model, stream->route)};
  const opipe_way_params ends = {.struct_size = (uint32_t)OPIPE_END(opipe_way_params, stream),
                                 .src_index = specs[src].index,
                                 .dst_index = specs[dst].index,
                                 .src_backend = from->backend->table,
                                 .dst_backend = to->backend->table,
                                 .src_self = from->backend->self,
                                 .dst_self = to->backend->self,
                                 .stream = &params};
  opipe_way way = {.struct_size = (uint32_t)OPIPE_END(opipe_way, why)};
  OPI_TRY(
      OPI_ASK("transport", w->transport, way, w->err, w->transport->self, w->options, &ends, &way));
  if (way.way >= OPIPE_WAY_KINDS || memchr(way.why, '\0', sizeof way.why) == NULL ||
      opi_add_u64(memory[src].staging_bytes, way.src_bytes, &memory[src].staging_bytes) ||
      opi_add_u64(memory[dst].staging_bytes, way.dst_bytes, &memory[dst].staging_bytes)) {
    return opi_fail(w->err, OPIPE_E_ABI,
                    "transport '%s': way %u of %d, %llu and %llu bytes, from rank %u to rank %u",
                    w->transport->id, way.way, OPIPE_WAY_KINDS, (unsigned long long)way.src_bytes,
                    (unsigned long long)way.dst_bytes, src, dst);
  }
  return note(w, src, dst, &way);
}

static opipe_status ask_all(ways *w, const opi_cut_model *model, const opi_lists *lists) {
  for (uint32_t i = 0; i < lists->n_streams; ++i)
    OPI_TRY(ask(w, model, &lists->streams[i]));
  return OPIPE_OK;
}

/* Are there devices to ask about? A cluster only describes devices, and perhaps a transport that is
 * not here. */
static bool any_opened(const opi_rank_device *devices, uint32_t n_ranks) {
  uint32_t r = 0;
  while (r < n_ranks && devices[r].backend == NULL)
    ++r;
  return r < n_ranks;
}

opipe_status opi_plan_find_ways(const opi_plan_env *env, opi_plan *plan, const opi_cut_model *model,
                                const opi_lists *lists, const opi_memory_more *more,
                                uint32_t n_more, const opi_rank_device *devices, opipe_error *err) {
  char id[64];
  opi_transport_ref ref;
  ways w = {.plan = plan, .transport = &ref, .devices = devices, .err = err};
  plan->predicted.ways = NULL;
  plan->predicted.n_ways = 0;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    plan->predicted.memory[r].staging_bytes = 0;
  if (devices == NULL || plan->decided.n_ranks < 2 || !any_opened(devices, plan->decided.n_ranks))
    return OPIPE_OK;
  OPI_TRY(opi_transport_split(plan->decided.transport, id, &w.options, err));
  OPI_TRY(env->plugins->transport(env->plugins->ctx, id, &ref, err));
  if (!OPIPE_HAS(ref.table, opipe_transport, way) || ref.table->way == NULL)
    return OPIPE_OK;
  OPI_TRY(ask_all(&w, model, lists));
  for (uint32_t k = 0; k < n_more; ++k) {
    if (more[k].lists != NULL)
      OPI_TRY(ask_all(&w, more[k].model, more[k].lists));
  }
  return OPIPE_OK;
}
