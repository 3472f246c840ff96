/* SPDX-License-Identifier: Apache-2.0 */
/* From steps to operations: each is one, of the same name; an update joins the sums of its rank and
 * stands for a barrier.
 */
#include "partition/lists/list_play.h"

#include <string.h>

enum { BODIES = 8 };

typedef struct builder {
  const opi_cut_model *model;
  const opi_plan *plan; /* of the pieces */
  const opi_lists *lists;
  const opi_cut *cut;
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  uint32_t *batch; /* [n_ops] mini-batch */
  opi_play_work *work;
  uint32_t *work_at; /* [stages * OPI_PROGRAMS] OPIPE_NONE: not yet made */
  opi_play_group *groups;
  uint32_t *group_lists;
  uint32_t *collective_group;
  uint32_t *sum_group;    /* [whole stages] OPIPE_NONE: one rank has all of its replicas */
  uint32_t *sum;          /* [batches * whole stages] collective; OPIPE_NONE: not yet numbered */
  uint32_t *n_come;       /* [whole stages] of the rank and mini-batch at hand */
  uint32_t *update_group; /* [ranks] opi_update_groups */
  uint32_t *barrier;      /* [batches * ranks] by the group's lowest rank: as sum */
  uint32_t n_ops, room_ops, room_batch, n_work, n_groups, n_group_lists, n_collectives;
  uint32_t room_collectives, n_items, n_batches;
  bool twice, forward;
  opipe_error *err;
} builder;

static opipe_status add_op(builder *b, uint32_t kind, uint32_t index, uint32_t item,
                           uint32_t batch) {
  if (b->n_ops == UINT32_MAX - 1)
    return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of more than %u operations", b->n_ops);
  if (!opi_arena_grow(b->arena, (void **)&b->ops, &b->room_ops, b->n_ops + 1, sizeof *b->ops) ||
      !opi_arena_grow(b->arena, (void **)&b->batch, &b->room_batch, b->n_ops + 1, sizeof *b->batch))
    return opi_fail_nomem(b->err, (uint64_t)b->n_ops * sizeof *b->ops, "a simulation");
  b->batch[b->n_ops] = batch;
  b->ops[b->n_ops++] = (opi_play_op){kind, index, item};
  return OPIPE_OK;
}

/* ---- programs ---- */

static uint32_t n_pieces(const builder *b) {
  return b->model->piece_plan.n_pieces;
}

/* Pieces of the same rows of a stage that compute a phase. */
static uint32_t alike(const builder *b, uint32_t stage, uint32_t phase) {
  const uint32_t first = stage / n_pieces(b) * n_pieces(b);
  const opi_piece *pieces = b->model->pieces[0];
  uint32_t n = 0;
  for (uint32_t s = first; s < first + n_pieces(b); ++s) {
    n += pieces[s].variant != OPIPE_NONE && pieces[s].share == pieces[stage].share &&
         (pieces[s].phases & 1u << phase) != 0;
  }
  return n == 0 ? 1 : n;
}

/* A stash is taken by forwards and given back by the ends of backwards, in equal parts. */
static opi_play_work make_work(const builder *b, uint32_t stage, uint32_t pass) {
  const opi_plan *plan = b->plan;
  const double *const ns[] = {plan->stage_ns, plan->input_ns, plan->weight_ns};
  const uint32_t phases = opi_program_phases(pass), whole = stage / n_pieces(b);
  const double stash = plan->stage_stash_bytes == NULL ? 0 : (double)plan->stage_stash_bytes[whole];
  opi_play_work work = {0, 0, 0};
  for (uint32_t i = 0; i < OPI_PHASES; ++i)
    work.ns += (phases & 1u << i) != 0 && ns[i] != NULL ? ns[i][stage] : 0;
  if (!b->forward && (phases & 1u << OPI_PHASE_F) != 0)
    work.take_bytes = stash / alike(b, stage, OPI_PHASE_F);
  if ((phases & 1u << OPI_PHASE_W) != 0)
    work.give_bytes = stash / alike(b, stage, OPI_PHASE_W);
  return work;
}

static opipe_status add_compute(builder *b, const opi_step *step, uint32_t item, uint32_t batch) {
  uint32_t *at = &b->work_at[step->stage * OPI_PROGRAMS + step->pass];
  if (*at == OPIPE_NONE) {
    *at = b->n_work;
    b->work[b->n_work++] = make_work(b, step->stage, step->pass);
  }
  return add_op(b, OPI_PLAY_COMPUTE, *at, item, batch);
}

/* ---- messages ---- */

/* The mini-batch that the message of a step is of; false: of before the first, or behind the last.
 */
static bool batch_of(const builder *b, uint32_t body, const opi_step *step, uint32_t *out_batch) {
  const int64_t own = b->twice ? (int64_t)body + step->next - 1 : (int64_t)body;
  const int64_t batch = own + step->lap;
  *out_batch = batch < 0 ? 0 : (uint32_t)batch;
  return batch >= 0 && batch < (int64_t)b->n_batches;
}

static opipe_status add_end(builder *b, uint32_t kind, const opi_step *step, uint32_t body,
                            uint32_t item) {
  uint32_t batch = 0;
  return batch_of(b, body, step, &batch)
             ? add_op(b, kind, batch * b->lists->n_messages + step->route, item, batch)
             : OPIPE_OK;
}

/* What was posted for the first body before it began. */
static opipe_status post_first(builder *b, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end && b->forward; ++i) {
    const opi_step *step = &b->lists->steps[i];
    if (step->kind == OPI_ACT_POST && step->lap > 0)
      OPI_TRY(add_op(b, OPI_PLAY_POST, step->route, i, 0));
  }
  return OPIPE_OK;
}

/* Two for each of the lists': made in place, nothing travels. */
static opipe_status make_streams(builder *b) {
  const opi_lists *l = b->lists;
  const size_t n = (size_t)l->n_messages * b->n_batches;
  opi_play_stream *streams = OPI_ARENA_ARRAY(b->arena, opi_play_stream, 2 * (size_t)l->n_streams);
  uint32_t *of = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  if (streams == NULL || of == NULL)
    return opi_fail_nomem(b->err, n * sizeof *of, "a simulation");
  for (uint32_t s = 0; s < 2 * l->n_streams; ++s) {
    const opi_list_stream *stream = &l->streams[s / 2];
    const double n_bytes =
        stream->route == OPI_ROUTE_CREDIT ? 0 : (double)b->cut->routes[stream->route].n_bytes;
    streams[s] = (opi_play_stream){stream->src_rank, stream->dst_rank, s % 2 == 0 ? n_bytes : 0};
  }
  for (size_t m = 0; m < n; ++m) {
    const opi_list_message *message = &l->messages[m % l->n_messages];
    of[m] = 2 * message->stream + message->direct;
  }
  b->play->streams = streams;
  b->play->n_streams = 2 * l->n_streams;
  b->play->message_stream = of;
  b->play->n_messages = (uint32_t)n;
  return OPIPE_OK;
}

/* ---- sums and updates ---- */

static uint32_t whole_stages(const builder *b) {
  return b->plan->n_stages / n_pieces(b);
}

/* Of the trained parameters that the stage's programs read, dense. */
static uint64_t trained_bytes(const builder *b, uint32_t whole, bool *seen) {
  const opi_cut *cut = b->cut;
  uint64_t n_bytes = 0;
  memset(seen, 0, cut->n_params * sizeof *seen);
  for (uint32_t i = 0; i < n_pieces(b) * cut->n_kinds; ++i) {
    const opi_program *program =
        opi_program_of(cut, whole * n_pieces(b) + i / cut->n_kinds, i % cut->n_kinds);
    for (uint32_t k = 0; k < program->n_params; ++k) {
      const uint32_t slot = program->params[k];
      n_bytes += cut->trained[slot] && !seen[slot] ? cut->sources[slot].n_bytes : 0;
      seen[slot] = true;
    }
  }
  return n_bytes;
}

/* Ranks with a replica of the stage, each once, into the group lists. Returns how many. */
static uint32_t add_homes(builder *b, uint32_t whole, bool *seen) {
  const opi_plan *plan = b->plan;
  const uint32_t first = b->n_group_lists, n = n_pieces(b) * plan->n_replicas;
  memset(seen, 0, plan->n_ranks * sizeof *seen);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = plan->instance_rank[whole * n + i];
    if (rank != OPIPE_NONE && !seen[rank])
      b->group_lists[b->n_group_lists++] = rank;
    if (rank != OPIPE_NONE)
      seen[rank] = true;
  }
  return b->n_group_lists - first;
}

/* What a stage's sum moves: of the accumulators of a rank, which lie in its backend's layouts, the
 * stage's share. */
static uint64_t sum_bytes(const builder *b, const opi_play_group *group, uint64_t own,
                          const uint64_t *of_rank) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < group->n_lists; ++i) {
    const uint32_t rank = b->group_lists[group->first + i];
    const double all = b->plan->memory == NULL || b->plan->memory[rank].gradient_bytes == 0
                           ? (double)of_rank[rank]
                           : (double)b->plan->memory[rank].gradient_bytes;
    const double part = of_rank[rank] == 0 ? 0 : all * (double)own / (double)of_rank[rank];
    most = part > (double)most ? (uint64_t)part : most;
  }
  return most;
}

static opipe_status make_sums(builder *b, uint32_t algorithm) {
  const uint32_t n_whole = whole_stages(b), n_ranks = b->plan->n_ranks;
  const size_t most = b->cut->n_params > n_ranks ? b->cut->n_params : n_ranks;
  bool *seen = OPI_ARENA_ARRAY(b->arena, bool, most);
  uint64_t *trained = OPI_ARENA_ARRAY(b->arena, uint64_t, n_whole);
  uint64_t *of_rank = OPI_ARENA_ARRAY(b->arena, uint64_t, n_ranks);
  if (seen == NULL || trained == NULL || of_rank == NULL)
    return opi_fail_nomem(b->err, most + n_whole * sizeof *trained, "a simulation");
  for (uint32_t w = 0; w < n_whole; ++w) {
    trained[w] = trained_bytes(b, w, seen);
    const uint32_t n = add_homes(b, w, seen);
    b->n_group_lists = 0;
    for (uint32_t i = 0; i < n; ++i)
      of_rank[b->group_lists[i]] += trained[w];
  }
  for (uint32_t w = 0; w < n_whole; ++w) {
    opi_play_group group = {
        .op = OPI_OP_ALL_REDUCE, .algorithm = algorithm, .times = 1, .first = b->n_group_lists};
    group.n_lists = add_homes(b, w, seen);
    group.n_bytes = sum_bytes(b, &group, trained[w], of_rank);
    if (group.n_lists < 2 || group.n_bytes == 0) {
      b->n_group_lists = group.first;
      continue;
    }
    b->sum_group[w] = b->n_groups;
    b->groups[b->n_groups++] = group;
  }
  return OPIPE_OK;
}

/* Nothing travels, and all of a group go on when the last has come. */
static void make_barriers(builder *b) {
  for (uint32_t rank = 0; rank < b->plan->n_ranks; ++rank) {
    opi_play_group group = {.op = OPI_OP_ALL_REDUCE, .first = b->n_group_lists};
    for (uint32_t r = 0; r < b->plan->n_ranks; ++r) {
      if (b->update_group[r] == rank && b->lists->rank_first[r + 1] != b->lists->rank_first[r])
        b->group_lists[b->n_group_lists++] = r;
    }
    group.n_lists = b->n_group_lists - group.first;
    b->groups[b->n_groups++] = group;
  }
}

static opipe_status number(builder *b, uint32_t group, uint32_t *io_collective) {
  if (*io_collective != OPIPE_NONE)
    return OPIPE_OK;
  if (!opi_arena_grow(b->arena, (void **)&b->collective_group, &b->room_collectives,
                      b->n_collectives + 1, sizeof *b->collective_group))
    return opi_fail_nomem(b->err, b->n_collectives * sizeof(uint32_t), "a simulation");
  b->collective_group[b->n_collectives] = group;
  *io_collective = b->n_collectives++;
  return OPIPE_OK;
}

/* REDUCEs of a rank for one stage: of each of its replicas there, the last comes for all. */
static uint32_t reduces_of(const builder *b, uint32_t rank, uint32_t whole) {
  uint32_t n = 0;
  for (uint32_t i = b->lists->rank_first[rank]; i < b->lists->rank_first[rank + 1]; ++i) {
    n += b->lists->steps[i].kind == OPI_ACT_REDUCE &&
         b->lists->steps[i].stage / n_pieces(b) == whole;
  }
  return n;
}

static opipe_status add_reduce(builder *b, uint32_t rank, const opi_step *step, uint32_t item,
                               uint32_t batch) {
  const uint32_t w = step->stage / n_pieces(b);
  uint32_t *c = &b->sum[(size_t)batch * whole_stages(b) + w];
  if (b->sum_group[w] == OPIPE_NONE || ++b->n_come[w] < reduces_of(b, rank, w))
    return OPIPE_OK;
  OPI_TRY(number(b, b->sum_group[w], c));
  return add_op(b, OPI_PLAY_START, *c, item, batch);
}

static opipe_status add_update(builder *b, uint32_t rank, uint32_t item, uint32_t batch) {
  const uint32_t group = b->update_group[rank], first = b->n_groups - b->plan->n_ranks;
  uint32_t *barrier = &b->barrier[(size_t)batch * b->plan->n_ranks + group];
  for (uint32_t w = 0; w < whole_stages(b); ++w) {
    if (b->n_come[w] > 0)
      OPI_TRY(add_op(b, OPI_PLAY_JOIN, b->sum[(size_t)batch * whole_stages(b) + w], item, batch));
    b->n_come[w] = 0;
  }
  OPI_TRY(number(b, first + group, barrier));
  OPI_TRY(add_op(b, OPI_PLAY_START, *barrier, item, batch));
  return add_op(b, OPI_PLAY_JOIN, *barrier, item, batch);
}

/* ---- steps ---- */

static opipe_status add_step(builder *b, uint32_t rank, uint32_t body, uint32_t item) {
  const opi_step *step = &b->lists->steps[item];
  const uint32_t batch = b->twice ? body + step->next - 1 : body;
  switch (step->kind) {
    case OPI_ACT_COMPUTE:
      return add_compute(b, step, item, batch);
    case OPI_ACT_SEND:
      return add_end(b, OPI_PLAY_SEND, step, body, item);
    case OPI_ACT_POST:
      return add_end(b, OPI_PLAY_POST, step, body, item);
    case OPI_ACT_RECV:
      return add_end(b, OPI_PLAY_WAIT, step, body, item);
    case OPI_ACT_DRAIN:
      return add_end(b, OPI_PLAY_DRAIN, step, body, item);
    case OPI_ACT_RESERVE:
      return add_end(b, OPI_PLAY_RESERVE, step, body, item);
    case OPI_ACT_REDUCE:
      return add_reduce(b, rank, step, item, batch);
    case OPI_ACT_UPDATE:
      return add_update(b, rank, item, batch);
    default: /* LOAD, STORE, COPY: no time of their own */
      return OPIPE_OK;
  }
}

/* Bodies of a double-buffered run: prologue, bodies, epilogue. */
static bool takes_part(const builder *b, uint32_t body, const opi_step *step) {
  if (!b->twice)
    return true;
  return body == 0 ? step->next == 1 : body + 1 < b->n_items || step->next == 0;
}

static opipe_status build_rank(builder *b, uint32_t rank) {
  const opi_lists *l = b->lists;
  const uint32_t first = l->rank_first[rank];
  const uint32_t end =
      b->forward ? l->request_first[rank * l->n_positions + 1] : l->rank_first[rank + 1];
  OPI_TRY(post_first(b, first, l->rank_first[rank + 1]));
  for (uint32_t body = 0; body < b->n_items; ++body) {
    for (uint32_t i = first; i < end; ++i) {
      if (takes_part(b, body, &l->steps[i]))
        OPI_TRY(add_step(b, rank, body, i));
    }
  }
  return OPIPE_OK;
}

static uint32_t *new_index(opi_arena *arena, uint64_t n) {
  uint32_t *index = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n);
  if (index != NULL)
    memset(index, 0xff, (size_t)n * sizeof *index);
  return index;
}

static opipe_status allocate(builder *b) {
  const opi_plan *plan = b->plan;
  const size_t n_ranks = plan->n_ranks, n_whole = whole_stages(b);
  const size_t n_works = (size_t)plan->n_stages * OPI_PROGRAMS;
  b->work = OPI_ARENA_ARRAY(b->arena, opi_play_work, n_works);
  b->work_at = new_index(b->arena, n_works);
  b->groups = OPI_ARENA_ARRAY(b->arena, opi_play_group, n_whole + n_ranks);
  b->group_lists = OPI_ARENA_ARRAY(b->arena, uint32_t, (n_whole + 1) * n_ranks);
  b->sum_group = new_index(b->arena, n_whole);
  b->sum = new_index(b->arena, b->n_batches * n_whole);
  b->n_come = OPI_ARENA_ARRAY(b->arena, uint32_t, n_whole);
  b->barrier = new_index(b->arena, b->n_batches * n_ranks);
  return b->work == NULL || b->work_at == NULL || b->groups == NULL || b->group_lists == NULL ||
                 b->sum_group == NULL || b->sum == NULL || b->n_come == NULL || b->barrier == NULL
             ? opi_fail_nomem(b->err, n_works * sizeof *b->work, "a simulation")
             : OPIPE_OK;
}

static opipe_status build(builder *b, const opi_order_play *how) {
  opi_play *play = b->play;
  const uint32_t n_ranks = b->plan->n_ranks;
  uint32_t *first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)n_ranks + 1);
  uint32_t *device = OPI_ARENA_ARRAY(b->arena, uint32_t, n_ranks);
  if (first == NULL || device == NULL)
    return opi_fail_nomem(b->err, n_ranks * sizeof *first, "a simulation");
  if (n_ranks > how->cluster->n_devices) {
    return opi_fail(b->err, OPIPE_E_INVALID, "%u ranks, and the cluster has %u devices", n_ranks,
                    how->cluster->n_devices);
  }
  OPI_TRY(allocate(b));
  OPI_TRY(make_streams(b));
  if (!b->forward) {
    OPI_TRY(opi_update_groups(b->plan, b->cut, b->arena, &b->update_group, b->err));
    OPI_TRY(make_sums(b, how->collective));
    make_barriers(b);
  }
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    first[rank] = b->n_ops;
    device[rank] = rank;
    OPI_TRY(build_rank(b, rank));
  }
  first[n_ranks] = b->n_ops;
  play->device = device;
  play->list_first = first;
  play->ops = b->ops;
  play->work = b->work;
  play->groups = b->groups;
  play->n_groups = b->n_groups;
  play->group_lists = b->group_lists;
  play->collective_group = b->collective_group;
  play->n_collectives = b->n_collectives;
  return OPIPE_OK;
}

/* ---- for people ---- */

static uint8_t kind_of(const opi_step *step) {
  static const uint8_t passes[OPI_PROGRAMS] = {OPI_DO_F, OPI_DO_B, OPI_DO_I, OPI_DO_W, OPI_DO_F};
  const bool forward = step->pass == OPI_PROGRAM_F;
  switch (step->kind) {
    case OPI_ACT_COMPUTE:
      return passes[step->pass];
    case OPI_ACT_SEND:
    case OPI_ACT_DRAIN:
    case OPI_ACT_RESERVE:
      return forward ? OPI_DO_SEND_F : OPI_DO_SEND_B;
    case OPI_ACT_POST:
    case OPI_ACT_RECV:
      return forward ? OPI_DO_RECV_F : OPI_DO_RECV_B;
    case OPI_ACT_REDUCE:
      return OPI_DO_REDUCE;
    case OPI_ACT_UPDATE:
      return OPI_DO_STEP;
    default:
      return OPI_DO_IDLE;
  }
}

static opipe_status make_labels(const builder *b, opi_do_list **out_labels) {
  const opi_lists *l = b->lists;
  const uint32_t per_request = b->plan->n_microbatches / l->n_positions;
  const bool slices = b->model->n_slices > 1;
  opi_do_list *labels = NULL;
  opipe_status status = OPIPE_OK;
  OPI_TRY(opi_do_list_create(b->arena->allocator, l->n_ranks, l->n_steps, &labels, b->err));
  for (uint32_t rank = 0; rank < l->n_ranks; ++rank) {
    opi_do_list_rank(labels, rank);
    for (uint32_t i = l->rank_first[rank]; status == OPIPE_OK && i < l->rank_first[rank + 1]; ++i) {
      const opi_step *step = &l->steps[i];
      const uint32_t piece = step->stage % n_pieces(b);
      const opi_do label = {
          .stage = step->kind == OPI_ACT_UPDATE ? OPIPE_NONE : step->stage / n_pieces(b),
          .microbatch = step->microbatch % per_request,
          .edge = OPIPE_NONE,
          .replica = (uint16_t)step->replica,
          .slice = (uint16_t)(slices ? piece : 0),
          .flags = step->next == 1 ? OPIPE_ACTION_NEXT_STEP : 0,
          .kind = kind_of(step)};
      status = opi_do_list_add(labels, label, b->err);
    }
  }
  opi_do_list_rank(labels, l->n_ranks);
  if (status < 0)
    opi_do_list_free(labels);
  else
    *out_labels = labels;
  return status;
}

/* Between the ends of mini-batches in the middle, as the order repeats. */
static double period_of(const builder *b, const opi_played *r, double *ends) {
  const uint32_t n = b->n_batches - 1, half = n / 2;
  for (uint32_t i = 0; i < b->n_ops; ++i) {
    double *end = &ends[b->batch[i]];
    if (b->ops[i].kind == OPI_PLAY_COMPUTE && r->end[i] > *end)
      *end = r->end[i];
  }
  return half == 0 ? ends[0] : (ends[n - 1] - ends[half - 1]) / (n - half);
}

opipe_status opi_list_play_run(const opi_cut_model *model, const opi_lists *lists,
                               const opi_order_play *how, opi_arena *arena, opi_list_played *out,
                               opipe_error *err) {
  const opi_plan *plan = &model->piece_plan.plan;
  const uint32_t n_bodies = how->n_bodies == 0 ? BODIES : how->n_bodies;
  builder b = {.model = model,
               .plan = plan,
               .lists = lists,
               .cut = model->cuts[0],
               .play = &out->play,
               .arena = arena,
               .twice = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
               .forward = plan->train == NULL,
               .err = err};
  b.n_items = b.twice ? n_bodies + 2 : 1;
  b.n_batches = b.twice ? n_bodies + 1 : 1;
  *out = (opi_list_played){.n_batches = b.n_batches};
  out->play = (opi_play){.cluster = how->cluster,
                         .n_lists = plan->n_ranks,
                         .n_tensor = 1,
                         .n_data = 1,
                         .rule = plan->n_ranks > 1 ? plan->link.rule : OPI_RULE_TAG,
                         .apart = how->apart};
  double *ends = OPI_ARENA_ARRAY(arena, double, (size_t)b.n_batches);
  if (ends == NULL)
    return opi_fail_nomem(err, b.n_batches * sizeof *ends, "a simulation");
  OPI_TRY(build(&b, how));
  OPI_TRY(opi_play_run(&out->play, arena, &out->result, err));
  out->step_ns = b.twice ? period_of(&b, &out->result, ends) : out->result.makespan;
  return make_labels(&b, &out->labels);
}
