/* SPDX-License-Identifier: Apache-2.0 */
/* From steps to operations: each is one, of the same name; what REDUCE and UPDATE come to:
 * list_sums.c. */
#include "partition/lists/list_play.h"

#include <string.h>

#include "partition/lists/list_build.h"

enum { BODIES = 8 };

opipe_status opi_list_add(opi_list_builder *b, uint32_t kind, uint32_t index, uint32_t item,
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

/* Pieces of the same rows of a stage that compute a phase. */
static uint32_t alike(const opi_list_builder *b, uint32_t stage, uint32_t phase) {
  const uint32_t first = stage / opi_list_pieces(b) * opi_list_pieces(b);
  const opi_piece *pieces = b->model->pieces[0];
  uint32_t n = 0;
  for (uint32_t s = first; s < first + opi_list_pieces(b); ++s) {
    n += pieces[s].variant != OPIPE_NONE && pieces[s].share == pieces[stage].share &&
         (pieces[s].phases & 1u << phase) != 0;
  }
  return n == 0 ? 1 : n;
}

/* A stash is taken by forwards and given back by the ends of backwards, in equal parts. */
static opi_play_work make_work(const opi_list_builder *b, uint32_t stage, uint32_t pass) {
  const opi_plan *plan = b->plan;
  const uint32_t phases = opi_program_phases(pass), whole = stage / opi_list_pieces(b);
  const double stash = plan->stage_stash_bytes == NULL ? 0 : (double)plan->stage_stash_bytes[whole];
  opi_play_work work = {0, 0, 0};
  for (uint32_t i = 0; i < OPI_PHASES; ++i)
    work.ns += opi_phase_ns(plan, b->cut, stage, pass, i);
  if (!b->forward && (phases & 1u << OPI_PHASE_F) != 0)
    work.take_bytes = stash / alike(b, stage, OPI_PHASE_F);
  if ((phases & 1u << OPI_PHASE_W) != 0)
    work.give_bytes = stash / alike(b, stage, OPI_PHASE_W);
  return work;
}

static opipe_status add_compute(opi_list_builder *b, const opi_step *step, uint32_t item,
                                uint32_t batch) {
  uint32_t *at = &b->work_at[step->stage * OPI_PROGRAMS + step->pass];
  if (*at == OPIPE_NONE) {
    *at = b->n_work;
    b->work[b->n_work++] = make_work(b, step->stage, step->pass);
  }
  return opi_list_add(b, OPI_PLAY_COMPUTE, *at, item, batch);
}

/* ---- messages ---- */

/* The mini-batch that the message of a step is of; false: of before the first, or behind the last.
 */
static bool batch_of(const opi_list_builder *b, uint32_t body, const opi_step *step,
                     uint32_t *out_batch) {
  const int64_t own = b->twice ? (int64_t)body + step->next - 1 : (int64_t)body;
  const int64_t batch = own + step->lap;
  *out_batch = batch < 0 ? 0 : (uint32_t)batch;
  return batch >= 0 && batch < (int64_t)b->n_batches;
}

static opipe_status add_end(opi_list_builder *b, uint32_t kind, const opi_step *step, uint32_t body,
                            uint32_t item) {
  uint32_t batch = 0;
  return batch_of(b, body, step, &batch)
             ? opi_list_add(b, kind, batch * b->lists->n_messages + step->route, item, batch)
             : OPIPE_OK;
}

/* What was posted for the first body before it began. */
static opipe_status post_first(opi_list_builder *b, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end && b->forward; ++i) {
    const opi_step *step = &b->lists->steps[i];
    if (step->kind == OPI_ACT_POST && step->lap > 0)
      OPI_TRY(opi_list_add(b, OPI_PLAY_POST, step->route, i, 0));
  }
  return OPIPE_OK;
}

/* Two for each of the lists': made in place, nothing travels. */
static opipe_status make_streams(opi_list_builder *b) {
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

/* ---- steps ---- */

static opipe_status add_step(opi_list_builder *b, uint32_t rank, uint32_t body, uint32_t item) {
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
      return opi_list_sums_reduce(b, rank, step, item, batch);
    case OPI_ACT_UPDATE:
      return opi_list_sums_update(b, rank, item, batch);
    default: /* LOAD, STORE, COPY: no time of their own */
      return OPIPE_OK;
  }
}

/* Bodies of a double-buffered run: prologue, bodies, epilogue. */
static bool takes_part(const opi_list_builder *b, uint32_t body, const opi_step *step) {
  if (!b->twice)
    return true;
  return body == 0 ? step->next == 1 : body + 1 < b->n_items || step->next == 0;
}

/* Is it an end of a message of the mini-batches that are played? */
static bool is_played(const opi_list_builder *b, uint32_t body, const opi_step *step) {
  uint32_t batch = 0;
  return takes_part(b, body, step) && batch_of(b, body, step, &batch);
}

/* Those of a batch that take part begin together. */
static opipe_status add_batch(opi_list_builder *b, uint32_t body, uint32_t item) {
  const opi_step *steps = &b->lists->steps[item];
  uint32_t n = 0;
  for (uint32_t i = 0; i < steps->batch; ++i)
    n += is_played(b, body, &steps[i]);
  return n == 0 ? OPIPE_OK : opi_list_add(b, OPI_PLAY_BATCH, n, item, 0);
}

static opipe_status build_rank(opi_list_builder *b, uint32_t rank) {
  const opi_lists *l = b->lists;
  const uint32_t first = l->rank_first[rank];
  const uint32_t end =
      b->forward ? l->request_first[rank * l->n_positions + 1] : l->rank_first[rank + 1];
  OPI_TRY(post_first(b, first, l->rank_first[rank + 1]));
  for (uint32_t body = 0; body < b->n_items; ++body) {
    for (uint32_t i = first; i < end; ++i) {
      if (l->steps[i].batch != 0)
        OPI_TRY(add_batch(b, body, i));
      if (takes_part(b, body, &l->steps[i]))
        OPI_TRY(add_step(b, rank, body, i));
    }
  }
  return OPIPE_OK;
}

uint32_t *opi_list_index(opi_arena *arena, uint64_t n) {
  uint32_t *index = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n);
  if (index != NULL)
    memset(index, 0xff, (size_t)n * sizeof *index);
  return index;
}

static opipe_status allocate(opi_list_builder *b) {
  const size_t n_works = (size_t)b->plan->n_stages * OPI_PROGRAMS;
  b->work = OPI_ARENA_ARRAY(b->arena, opi_play_work, n_works);
  b->work_at = opi_list_index(b->arena, n_works);
  return b->work == NULL || b->work_at == NULL
             ? opi_fail_nomem(b->err, n_works * sizeof *b->work, "a simulation")
             : OPIPE_OK;
}

static opipe_status build(opi_list_builder *b, const opi_order_play *how) {
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
  if (!b->forward)
    OPI_TRY(opi_list_sums_make(b, how->collective));
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

static opipe_status make_labels(const opi_list_builder *b, opi_do_list **out_labels) {
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
      const uint32_t piece = step->stage % opi_list_pieces(b);
      const opi_do label = {
          .stage = step->kind == OPI_ACT_UPDATE ? OPIPE_NONE : step->stage / opi_list_pieces(b),
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
static double period_of(const opi_list_builder *b, const opi_played *r, double *ends) {
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
  opi_list_builder b = {.model = model,
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
