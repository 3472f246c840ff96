/* SPDX-License-Identifier: Apache-2.0 */
/* Exact memory of a plan: compiles every program, which takes no device memory, and adds up the
 * needs: parameters by layout, in training with their gradients and moments
 * (partition/memory/weights.h), slots by the lists, one arena per rank for its largest program. */
#include <string.h>

#include "partition/memory/layouts.h"
#include "partition/memory/predict.h"
#include "partition/memory/weights.h"
#include "partition/plan/estimate.h"
#include "partition/program/packed.h"
#include "partition/program/states.h"

typedef struct predict {
  const opi_decision *plan;
  const opi_cut_model *model;
  const opi_rank_device *devices;
  opi_memory *memory;
  uint64_t *sums;
  opi_arena scratch;
  opipe_program **programs; /* [instances * OPI_PROGRAMS * classes] */
  opi_layout_set layouts;   /* forward: parameters' layouts, by rank */
  uint32_t **params;        /* [n_stages * members] slots that the stage reads, by member */
  uint32_t *n_params;       /* the same index */
  uint64_t *arena_bytes, *workspace_bytes; /* [n_ranks] of the largest program */
  uint32_t per_instance, compile_flags, n_streams;
  opipe_error *err;
} predict;

static opipe_status beyond(const predict *p, uint32_t rank, const char *what) {
  const opi_backend_ref *backend = p->devices[rank].backend;
  return opi_fail(p->err, OPIPE_E_LIMIT, "rank %u: by backend '%s' its %s exceed 2^64 bytes", rank,
                  backend == NULL ? p->plan->devices[rank].kind : backend->id, what);
}

/* A rank of a forward plan holds each layout of a parameter once, whichever programs read it. */
static opipe_status add_params(predict *p, const opi_program *cut, uint32_t rank,
                               const opipe_program *program) {
  const opi_backend_ref *backend = p->devices[rank].backend;
  const uint32_t align = p->devices[rank].alignment == 0 ? 1 : p->devices[rank].alignment;
  opi_memory *m = &p->memory[rank];
  uint32_t i = p->layouts.n;
  OPI_TRY(backend == NULL ? opi_layouts_estimate(&p->layouts, rank, p->model->cuts[0]->sources,
                                                 cut->params, cut->n_params, NULL, p->err)
                          : opi_layouts_add(&p->layouts, rank, backend, program, false, p->err));
  for (; i < p->layouts.n; ++i) {
    const opipe_param_layout *layout = &p->layouts.list[i].layout;
    if (opi_add_u64(m->params_bytes, opi_align_up(layout->n_bytes, align), &m->params_bytes) ||
        opi_add_u64(m->mapped_bytes, layout->mapped_bytes, &m->mapped_bytes))
      return beyond(p, rank, "parameters");
  }
  return OPIPE_OK;
}

static opipe_status show(const predict *p, uint32_t rank, opipe_program *program) {
  const opi_rank_device *d = &p->devices[rank];
  return d->visitor == NULL
             ? OPIPE_OK
             : d->visitor->visit(d->visitor->ctx, rank, d->backend, d->device, program, p->err);
}

/* The place of an instance's program in p->programs. */
static opipe_program **place_of(const predict *p, uint32_t instance, uint32_t class,
                                uint32_t program) {
  const opi_piece_plan *plan = &p->model->piece_plan;
  const uint32_t stage = instance / plan->n_replicas;
  const uint32_t piece = stage % p->model->n_pieces, width = p->model->n_members;
  const uint32_t at = piece % width * (p->model->n_pieces / width) + piece / width; /* by member */
  return &p->programs[plan->whole_of[instance] * p->per_instance +
                      (at * p->model->n_classes + class) * OPI_PROGRAMS + program];
}

/* to: NULL where there is no such instance. */
static opipe_status compile_one(predict *p, const opi_cut_model *model, uint32_t instance,
                                uint32_t class, uint32_t program, opipe_program **to) {
  const opi_piece_plan *plan = &model->piece_plan;
  const uint32_t stage = instance / plan->n_replicas, rank = plan->instance_rank[instance];
  const opi_program *cut = opi_program_of(model->cuts[class], stage, program);
  if (rank == OPIPE_NONE || cut->graph.n_nodes == 0)
    return OPIPE_OK;
  const opi_backend_ref *backend = p->devices[rank].backend;
  const uint32_t align = p->devices[rank].alignment == 0 ? 1 : p->devices[rank].alignment;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, stage),
      .flags = p->compile_flags | (opi_plan_trains(p->plan) ? (uint32_t)OPIPE_COMPILE_OWNED : 0u),
      .graph = &cut->graph,
      .stage = stage / model->n_pieces};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  if (backend == NULL) {
    OPI_TRY(
        opi_estimate_arena(&cut->graph, align, plan->whole->allocator, &info.arena_bytes, p->err));
  } else {
    OPI_TRY(OPI_MAKE("backend", backend, compile, to, p->err, p->devices[rank].device, &params));
    OPI_TRY(opi_program_ask(backend, *to, &info, p->err));
    OPI_TRY(show(p, rank, *to));
  }
  opi_memory *m = &p->memory[rank];
  m->n_fallback += info.n_fallback;
  /* others compute the same for other rows and tokens, an evaluation repeats it */
  const bool first = stage % model->n_pieces / model->n_members % opi_plan_pieces(plan->whole) == 0;
  if (class == 0 && first && model == p->model && program != OPI_PROGRAM_E)
    m->n_rounded += info.n_rounded;
  if (opi_add_u64(m->host_bytes, info.host_bytes, &m->host_bytes))
    return beyond(p, rank, "copies for nodes that run elsewhere");
  const uint64_t arena = opi_align_up(info.arena_bytes, align);
  if (arena > p->arena_bytes[rank]) {
    p->arena_bytes[rank] = arena;
    p->workspace_bytes[rank] = info.workspace_bytes;
  }
  return opi_plan_trains(p->plan) ? OPIPE_OK : add_params(p, cut, rank, *to);
}

static opipe_status compile_all(predict *p) {
  const opi_piece_plan *view = &p->model->piece_plan;
  const uint32_t n = view->n_stages * view->n_replicas;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t c = 0; c < p->model->n_classes; ++c) {
      for (uint32_t k = 0; k < p->model->cuts[c]->n_kinds; ++k) {
        opipe_program **to = view->instance_rank[i] == OPIPE_NONE ? NULL : place_of(p, i, c, k);
        const opipe_status status = compile_one(p, p->model, i, c, k, to);
        if (status < 0 && opi_plan_trains(p->plan)) {
          return opi_error_prefix(p->err, "rank %u, stage %u: ", view->instance_rank[i],
                                  i / view->n_replicas / p->model->n_pieces);
        }
        OPI_TRY(status);
      }
    }
  }
  return OPIPE_OK;
}

/* Programs for other numbers of rows. */
static opipe_status compile_more(predict *p, const opi_memory_more *more) {
  const opi_piece_plan *view = &more->model->piece_plan;
  for (uint32_t i = 0; i < view->n_stages * view->n_replicas; ++i) {
    opipe_program *program = NULL;
    const uint32_t rank = view->instance_rank[i];
    const opipe_status status = compile_one(p, more->model, i, 0, OPI_PROGRAM_F, &program);
    if (program != NULL)
      p->devices[rank].backend->table->program_free(program);
    OPI_TRY(status);
  }
  return OPIPE_OK;
}

/* A parameter is summed in its layout, or in dense form if the ranks' layouts differ. */
static opipe_status tell_sums(const predict *p, const opi_weight_query *query,
                              opi_weight_layout *const *layouts) {
  for (uint32_t slot = 0; slot < query->n_sources; ++slot) {
    const bool equal = opi_weight_layouts_equal(query, layouts, slot);
    p->sums[slot] = 0;
    if (query->trained[slot] && !equal && opi_weight_tied(query, slot) &&
        !opi_weight_dense_bytes(&query->sources[slot], &p->sums[slot])) {
      return opi_fail(p->err, OPIPE_E_INVALID, "parameter '%s': its bytes do not fit 64 bits",
                      query->sources[slot].name);
    }
    for (uint32_t h = 0; query->trained[slot] && p->sums[slot] == 0 && h < query->n_holders; ++h) {
      const uint32_t k = opi_weight_index(&query->holders[h], slot);
      if (k != OPIPE_NONE)
        p->sums[slot] = layouts[h][k].master_bytes;
    }
  }
  return OPIPE_OK;
}

static opipe_status add_weights(predict *p) {
  const opi_decision *plan = p->plan;
  const opi_cut *cut = p->model->cuts[0];
  const uint32_t width = p->model->n_members, each = p->per_instance / width;
  const uint32_t all = plan->n_stages * plan->n_replicas * width;
  opi_weight_reader *readers = OPI_ARENA_ARRAY(&p->scratch, opi_weight_reader, all);
  opi_weight_bytes *bytes = OPI_ARENA_ARRAY(&p->scratch, opi_weight_bytes, plan->n_ranks);
  opi_weight_layout **layouts = OPI_ARENA_ARRAY(&p->scratch, opi_weight_layout *, plan->n_ranks);
  opi_weight_holder *holders = NULL;
  uint32_t n = 0, n_holders = 0;
  if (readers == NULL || bytes == NULL || layouts == NULL)
    return opi_fail_nomem(p->err, all * sizeof *readers, "a prediction");
  for (uint32_t i = 0; i < all; ++i) {
    const uint32_t stage = i / width / plan->n_replicas, rank = plan->instance_rank[i / width];
    const uint32_t list = stage * width + i % width;
    if (rank == OPIPE_NONE)
      continue;
    readers[n++] = (opi_weight_reader){.rank = rank + i % width,
                                       .stage = stage,
                                       .n_programs = each,
                                       .n_params = p->n_params[list],
                                       .programs = &p->programs[i * each],
                                       .params = p->params[list]};
  }
  OPI_TRY(opi_weight_holders(readers, n, plan->n_ranks, cut->n_params, &p->scratch, &holders,
                             &n_holders, p->err));
  for (uint32_t h = 0; h < n_holders; ++h) {
    holders[h].alignment = p->devices[holders[h].rank].alignment;
    holders[h].backend = p->devices[holders[h].rank].backend;
  }
  const opi_weight_query query = {
      .readers = readers,
      .holders = holders,
      .sources = cut->sources,
      .trained = cut->trained,
      .n_readers = n,
      .n_holders = n_holders,
      .n_sources = cut->n_params,
      .n_versions = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1,
      .n_moments = opi_optimizer_moments(&plan->train->optimizer),
      .shard = plan->train->optimizer.shard != 0};
  OPI_TRY(opi_predict_weights(&query, &p->scratch, layouts, bytes, p->err));
  for (uint32_t h = 0; h < n_holders; ++h) {
    opi_memory *m = &p->memory[holders[h].rank];
    m->params_bytes += bytes[h].params;
    m->version_bytes += bytes[h].versions;
    m->gradient_bytes += bytes[h].gradients;
    m->optimizer_bytes += bytes[h].optimizer;
  }
  return p->sums == NULL ? OPIPE_OK : tell_sums(p, &query, layouts);
}

/* Adds the dense copies of parts of parameters, which sessions make beside the layouts: in device
 * memory that the host sees, else in the host's. */
static opipe_status add_packed(predict *p) {
  const opi_decision *plan = p->plan;
  bool *rows = OPI_ARENA_ARRAY(&p->scratch, bool, (size_t)p->model->cuts[0]->n_params + 1);
  if (rows == NULL)
    return opi_fail_nomem(p->err, p->model->cuts[0]->n_params, "a prediction");
  for (uint32_t r = 0; r < plan->n_ranks && p->model->n_members > 1; ++r) {
    const bool host = (plan->devices[r].flags & OPIPE_DEVICE_HOST_MEMORY) != 0;
    opi_memory *m = &p->memory[r];
    uint64_t *to = host ? &m->params_bytes : &m->host_bytes;
    if (opi_add_u64(*to, opi_packed_find(p->model, r, p->devices[r].alignment, rows), to))
      return beyond(p, r, "parameters");
  }
  return OPIPE_OK;
}

static opipe_status list_params(predict *p) {
  const uint32_t width = p->model->n_members;
  for (uint32_t i = 0; i < p->plan->n_stages * width; ++i) {
    OPI_TRY(opi_member_params(p->model, i / width, i % width, &p->scratch, &p->params[i],
                              &p->n_params[i], p->err));
  }
  return OPIPE_OK;
}

/* Bytes of tensors that the rank holds for all its programs; false: beyond 2^64. */
static bool add_held(const predict *p, uint32_t rank, uint64_t *io_bytes) {
  const opi_piece_plan *plan = &p->model->piece_plan;
  const opi_cut *cut = p->model->cuts[0];
  const uint32_t align = p->devices[rank].alignment == 0 ? 1 : p->devices[rank].alignment;
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas; ++i) {
    const uint32_t stage = i / plan->n_replicas;
    for (uint32_t c = cut->cell_first[stage];
         plan->instance_rank[i] == rank && c < cut->cell_first[stage + 1]; ++c) {
      if (cut->cells[c].held &&
          opi_add_u64(*io_bytes, opi_align_up(cut->cells[c].n_bytes, align), io_bytes))
        return false;
    }
  }
  return true;
}

/* Adds the states that streams keep between requests; false: beyond 2^64. */
static bool add_states(predict *p, uint32_t rank) {
  const opi_decision *plan = p->plan;
  const uint32_t align = p->devices[rank].alignment == 0 ? 1 : p->devices[rank].alignment;
  opi_memory *m = &p->memory[rank];
  uint32_t home = 0;
  if (plan->n_states == 0)
    return add_held(p, rank, &m->state_bytes);
  m->stream_bytes = opi_stream_bytes(plan, rank, align, &home);
  const uint64_t n = opi_streams_at(plan, p->n_streams, home);
  m->state_bytes = n * m->stream_bytes;
  return n == 0 || m->state_bytes / n == m->stream_bytes;
}

static opipe_status predict_all(predict *p, const opi_lists *lists, const opi_memory_more *more,
                                uint32_t n_more) {
  const opi_decision *plan = p->plan;
  const uint32_t n = plan->n_stages * plan->n_replicas;
  p->per_instance = OPI_PROGRAMS * p->model->n_classes * p->model->n_pieces;
  p->programs = OPI_ARENA_ARRAY(&p->scratch, opipe_program *, (size_t)n * p->per_instance);
  const size_t n_lists = (size_t)plan->n_stages * p->model->n_members;
  p->params = OPI_ARENA_ARRAY(&p->scratch, uint32_t *, n_lists);
  p->n_params = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_lists);
  p->arena_bytes = OPI_ARENA_ARRAY(&p->scratch, uint64_t, plan->n_ranks);
  p->workspace_bytes = OPI_ARENA_ARRAY(&p->scratch, uint64_t, plan->n_ranks);
  if (p->programs == NULL || p->params == NULL || p->n_params == NULL || p->arena_bytes == NULL ||
      p->workspace_bytes == NULL)
    return opi_fail_nomem(p->err, n * sizeof(void *), "a prediction");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint64_t cap = plan->devices[r].memory_bytes;
    p->memory[r] = (opi_memory){.cap_bytes = cap == 0 ? UINT64_MAX : cap,
                                .device_bytes = p->devices[r].memory_bytes,
                                .estimated = p->devices[r].backend == NULL};
  }
  OPI_TRY(opi_layouts_begin(&p->layouts, p->model->cuts[0]->n_params, &p->scratch, p->err));
  OPI_TRY(list_params(p));
  OPI_TRY(compile_all(p));
  for (uint32_t k = 0; k < n_more; ++k)
    OPI_TRY(compile_more(p, &more[k]));
  OPI_TRY(add_packed(p));
  if (opi_plan_trains(plan))
    OPI_TRY(add_weights(p));
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    opi_memory *m = &p->memory[r];
    m->workspace_bytes = p->workspace_bytes[r];
    m->activation_bytes = p->arena_bytes[r] - p->workspace_bytes[r];
    m->boundary_bytes = lists->boundary_bytes[r];
    for (uint32_t k = 0; k < n_more; ++k)
      m->boundary_bytes += more[k].lists == NULL ? 0 : more[k].lists->boundary_bytes[r];
    m->stash_bytes = lists->stash_bytes[r];
    m->offload_bytes = lists->offload_bytes[r];
    uint64_t total = m->gradient_bytes + m->optimizer_bytes + m->version_bytes + m->stash_bytes;
    if (!add_states(p, r) || opi_add_u64(total, m->state_bytes, &total) ||
        opi_add_u64(total, m->params_bytes, &total) ||
        opi_add_u64(total, m->boundary_bytes, &total) ||
        opi_add_u64(total, p->arena_bytes[r], &total))
      return beyond(p, r, "needs");
    m->total_bytes = total;
  }
  return OPIPE_OK;
}

opipe_status opi_memory_predict(const opi_decision *plan, uint32_t n_streams,
                                const opi_cut_model *model, const opi_lists *lists,
                                const opi_memory_more *more, uint32_t n_more,
                                const opi_rank_device *devices, uint32_t compile_flags,
                                opi_memory *out_memory, uint64_t *out_sums, opipe_error *err) {
  predict p = {.plan = plan,
               .n_streams = n_streams,
               .model = model,
               .devices = devices,
               .memory = out_memory,
               .sums = out_sums,
               .compile_flags = compile_flags,
               .err = err};
  opi_arena_init(&p.scratch, plan->allocator, 0);
  const opipe_status status = predict_all(&p, lists, more, n_more);
  const uint32_t n = plan->n_stages * plan->n_replicas * p.per_instance;
  const uint32_t each = p.per_instance / model->n_members; /* of a member */
  for (uint32_t i = 0; p.programs != NULL && i < n; ++i) {
    if (p.programs[i] != NULL) {
      const uint32_t rank = plan->instance_rank[i / p.per_instance] + i % p.per_instance / each;
      devices[rank].backend->table->program_free(p.programs[i]);
    }
  }
  opi_arena_release(&p.scratch);
  return status;
}
