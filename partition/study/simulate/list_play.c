/* SPDX-License-Identifier: Apache-2.0 */
/* From a playlist to operations: one for each item, for every played mini-batch. */
#include "partition/study/simulate/list_play.h"

#include <stdlib.h>
#include <string.h>

enum { BODIES = 8 };

/* A message of a body, by its stream and micro-batch. */
typedef struct message {
  uint32_t stream, microbatch;
} message;

typedef struct builder {
  const opi_decision *plan;
  const opi_playlist *list;
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  uint32_t *batch;   /* [n_ops] mini-batch */
  uint32_t *work_at; /* [pieces * OPI_PROGRAMS] OPIPE_NONE: none */
  message *messages; /* [n_messages] of a body, by stream and micro-batch */
  uint32_t
      *group_first; /* [groups + 1] their meetings in a body: one, or one for each micro-batch */
  uint32_t *come;   /* [meetings] last mini-batch + 1 for which the current rank came to it */
  uint32_t n_ops, room_ops, room_batch, n_messages, n_items, n_batches;
  bool twice; /* double-buffered weights */
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

static opipe_status make_works(builder *b) {
  const opi_playlist *l = b->list;
  opi_play_work *works = OPI_ARENA_ARRAY(b->arena, opi_play_work, l->n_works);
  if (works == NULL)
    return opi_fail_nomem(b->err, l->n_works * sizeof *works, "a simulation");
  for (uint32_t i = 0; i < l->n_works; ++i) {
    const opi_playlist_work *w = &l->works[i];
    works[i] = (opi_play_work){w->ns, w->take_bytes, w->give_bytes};
    if (w->part == 0)
      b->work_at[w->piece * OPI_PROGRAMS + w->pass] = i;
  }
  b->play->work = works;
  return OPIPE_OK;
}

static opipe_status add_compute(builder *b, const opi_playlist_item *item, uint32_t i,
                                uint32_t batch) {
  const opi_playlist_work *works = b->list->works;
  const uint32_t whole = b->work_at[item->at * OPI_PROGRAMS + item->pass];
  const uint32_t work = whole == OPIPE_NONE ? OPIPE_NONE : whole + item->part;
  if (work >= b->list->n_works || works[work].piece != item->at || works[work].pass != item->pass ||
      works[work].part != item->part) {
    return opi_fail(b->err, OPIPE_E_INVALID,
                    "pass %u of piece %u, part %u, is played and has no time", item->pass, item->at,
                    item->part);
  }
  return add_op(b, OPI_PLAY_COMPUTE, work, i, batch);
}

/* ---- messages ---- */

static int by_stream(const void *left, const void *right) {
  const message *a = left, *b = right;
  if (a->stream != b->stream)
    return a->stream < b->stream ? -1 : 1;
  return a->microbatch < b->microbatch ? -1 : a->microbatch > b->microbatch;
}

/* Checks that every message is sent once in a body. */
static opipe_status number_messages(builder *b) {
  const opi_playlist *l = b->list;
  const uint32_t n = l->rank_first[b->plan->n_ranks];
  for (uint32_t i = 0; i < n; ++i)
    b->n_messages += l->items[i].kind == OPI_PLAY_SEND;
  b->messages = OPI_ARENA_ARRAY(b->arena, message, b->n_messages);
  if (b->messages == NULL)
    return opi_fail_nomem(b->err, b->n_messages * sizeof *b->messages, "a simulation");
  for (uint32_t i = 0, k = 0; i < n; ++i) {
    if (l->items[i].kind == OPI_PLAY_SEND)
      b->messages[k++] = (message){l->items[i].at, l->items[i].microbatch};
  }
  if (b->n_messages > 1)
    qsort(b->messages, b->n_messages, sizeof *b->messages, by_stream);
  for (uint32_t k = 1; k < b->n_messages; ++k) {
    if (by_stream(&b->messages[k - 1], &b->messages[k]) == 0) {
      return opi_fail(b->err, OPIPE_E_INVALID, "stream %u: micro-batch %u is sent twice",
                      b->messages[k].stream, b->messages[k].microbatch);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_streams(builder *b) {
  const opi_playlist *l = b->list;
  const size_t n = (size_t)b->n_messages * b->n_batches;
  opi_play_stream *streams = OPI_ARENA_ARRAY(b->arena, opi_play_stream, l->n_streams);
  uint32_t *of = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  if (streams == NULL || of == NULL)
    return opi_fail_nomem(b->err, n * sizeof *of, "a simulation");
  for (uint32_t s = 0; s < l->n_streams; ++s) {
    streams[s] = (opi_play_stream){l->streams[s].src_rank, l->streams[s].dst_rank,
                                   (double)l->streams[s].n_bytes};
  }
  for (size_t m = 0; m < n; ++m)
    of[m] = b->messages[m % b->n_messages].stream;
  b->play->streams = streams;
  b->play->n_streams = l->n_streams;
  b->play->message_stream = of;
  b->play->n_messages = (uint32_t)n;
  return OPIPE_OK;
}

static bool receives(const opi_playlist_item *item) {
  return item->kind == OPI_PLAY_POST || item->kind == OPI_PLAY_WAIT;
}

/* The mini-batch of an item's message or group; false: before the first, or after the last. */
static bool batch_of(const builder *b, uint32_t body, const opi_playlist_item *item,
                     uint32_t *out_batch) {
  const int64_t own = b->twice ? (int64_t)body + item->next - 1 : (int64_t)body;
  const int64_t batch = own + item->lap;
  *out_batch = batch < 0 ? 0 : (uint32_t)batch;
  return batch >= 0 && batch < (int64_t)b->n_batches;
}

static opipe_status add_end(builder *b, uint32_t rank, uint32_t body, uint32_t i) {
  const opi_playlist_item *item = &b->list->items[i];
  const opi_playlist_stream *stream = &b->list->streams[item->at];
  const message key = {item->at, item->microbatch};
  const message *found = b->n_messages == 0 ? NULL
                                            : bsearch(&key, b->messages, b->n_messages,
                                                      sizeof *b->messages, by_stream);
  uint32_t batch = 0;
  if (found == NULL || rank != (receives(item) ? stream->dst_rank : stream->src_rank)) {
    return opi_fail(b->err, OPIPE_E_INVALID,
                    "rank %u has an end of micro-batch %u on stream %u, which %s", rank,
                    item->microbatch, item->at, found == NULL ? "nobody sends" : "is not its own");
  }
  return batch_of(b, body, item, &batch)
             ? add_op(b, item->kind, batch * b->n_messages + (uint32_t)(found - b->messages), i,
                      batch)
             : OPIPE_OK;
}

/* ---- groups ---- */

static uint32_t n_meetings(const builder *b) {
  return b->group_first[b->list->n_groups];
}

static opipe_status number_meetings(builder *b) {
  const opi_playlist *l = b->list;
  uint64_t n = 0;
  b->group_first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)l->n_groups + 1);
  if (b->group_first == NULL)
    return opi_fail_nomem(b->err, l->n_groups * sizeof *b->group_first, "a simulation");
  for (uint32_t g = 0; g < l->n_groups; ++g) {
    n += l->groups[g].each ? b->plan->n_microbatches : 1;
    if (n * b->n_batches > UINT32_MAX / 2)
      return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of %u groups", l->n_groups);
    b->group_first[g + 1] = (uint32_t)n;
  }
  b->come = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)n);
  return b->come == NULL ? opi_fail_nomem(b->err, n * sizeof *b->come, "a simulation") : OPIPE_OK;
}

static opi_play_group make_group(const opi_playlist_group *from, uint32_t algorithm,
                                 uint32_t first) {
  static const uint32_t ops[OPI_PLAY_HOWS] = {OPI_OP_ALL_REDUCE, OPI_OP_ALL_GATHER,
                                              OPI_OP_REDUCE_SCATTER, OPI_STASH_OUT, OPI_STASH_IN};
  return (opi_play_group){.op = ops[from->how],
                          .algorithm = from->waits ? 0 : algorithm,
                          .times = from->waits ? 0 : 1,
                          .n_bytes = from->n_bytes,
                          .kept_bytes = from->how >= OPI_PLAY_OUT ? (double)from->n_bytes : 0,
                          .first = first,
                          .n_lists = from->n_ranks,
                          .over_tensor = from->each && from->how < OPI_PLAY_OUT};
}

/* Makes the collectives of each group in every mini-batch. */
static opipe_status make_groups(builder *b, uint32_t algorithm) {
  const opi_playlist *l = b->list;
  uint32_t n_members = 0, at = 0;
  OPI_TRY(number_meetings(b));
  const size_t n = (size_t)n_meetings(b) * b->n_batches;
  for (uint32_t g = 0; g < l->n_groups; ++g)
    n_members += l->groups[g].n_ranks;
  opi_play_group *groups = OPI_ARENA_ARRAY(b->arena, opi_play_group, l->n_groups);
  uint32_t *members = OPI_ARENA_ARRAY(b->arena, uint32_t, n_members);
  uint32_t *of = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  if (groups == NULL || members == NULL || of == NULL)
    return opi_fail_nomem(b->err, n * sizeof *of, "a simulation");
  for (uint32_t g = 0; g < l->n_groups; ++g) {
    const opi_playlist_group *from = &l->groups[g];
    groups[g] = make_group(from, algorithm, at);
    for (uint32_t i = 0; i < from->n_ranks; ++i)
      members[at++] = from->ranks[i];
    for (uint32_t k = b->group_first[g]; k < b->group_first[g + 1]; ++k) {
      for (uint32_t i = 0; i < b->n_batches; ++i)
        of[(size_t)i * n_meetings(b) + k] = g;
    }
  }
  b->play->groups = groups;
  b->play->n_groups = l->n_groups;
  b->play->group_lists = members;
  b->play->collective_group = of;
  b->play->n_collectives = (uint32_t)n;
  return OPIPE_OK;
}

static bool is_member(const opi_playlist_group *group, uint32_t rank) {
  for (uint32_t i = 0; i < group->n_ranks; ++i) {
    if (group->ranks[i] == rank)
      return true;
  }
  return false;
}

/* A rank comes to a meeting of its group once in a mini-batch, and later joins it. */
static opipe_status add_collective(builder *b, uint32_t rank, uint32_t body, uint32_t i) {
  const opi_playlist_item *item = &b->list->items[i];
  const opi_playlist_group *group = &b->list->groups[item->at];
  const uint32_t meeting = b->group_first[item->at] + (group->each ? item->microbatch : 0);
  const bool starts = item->kind == OPI_PLAY_START;
  uint32_t batch = 0;
  if (!batch_of(b, body, item, &batch))
    return OPIPE_OK;
  const uint32_t come = b->come[meeting];
  if (!is_member(group, rank) || (starts ? come > batch : come < batch + 1)) {
    return opi_fail(b->err, OPIPE_E_INVALID, "rank %u %s group %u, %s", rank,
                    starts ? "comes to" : "waits for", item->at,
                    !is_member(group, rank) ? "in which it has no part"
                    : starts                ? "to which it has come already"
                                            : "to which it has not come");
  }
  if (starts)
    b->come[meeting] = batch + 1;
  return add_op(b, item->kind, batch * n_meetings(b) + meeting, i, batch);
}

/* ---- items ---- */

static opipe_status add_item(builder *b, uint32_t rank, uint32_t body, uint32_t i) {
  const opi_playlist_item *item = &b->list->items[i];
  if (item->kind == OPI_PLAY_COMPUTE)
    return add_compute(b, item, i, b->twice ? body + item->next - 1 : body);
  return item->kind == OPI_PLAY_START || item->kind == OPI_PLAY_JOIN
             ? add_collective(b, rank, body, i)
             : add_end(b, rank, body, i);
}

/* Whether the item runs in this body of a double-buffered run: prologue, body or epilogue. */
static bool takes_part(const builder *b, uint32_t body, const opi_playlist_item *item) {
  if (!b->twice)
    return true;
  return body == 0 ? item->next == 1 : body + 1 < b->n_items || item->next == 0;
}

/* Adds a batch: its operations that run begin together. */
static opipe_status add_batch(builder *b, uint32_t rank, uint32_t body, uint32_t i) {
  const opi_playlist_item *items = &b->list->items[i];
  const uint32_t room = b->list->rank_first[rank + 1] - i - 1;
  uint32_t n = 0, batch = 0;
  for (uint32_t k = 1; k <= items[0].at; ++k) {
    if (k > room || (items[k].kind != OPI_PLAY_SEND && items[k].kind != OPI_PLAY_POST)) {
      return opi_fail(b->err, OPIPE_E_INVALID,
                      "rank %u has a batch of %u sends and posts, of which %u follow", rank,
                      items[0].at, k - 1);
    }
    n += takes_part(b, body, &items[k]) && batch_of(b, body, &items[k], &batch);
  }
  return n == 0 ? OPIPE_OK : add_op(b, OPI_PLAY_BATCH, n, i, 0);
}

static opipe_status build_rank(builder *b, uint32_t rank) {
  const opi_playlist *l = b->list;
  for (uint32_t body = 0; body < b->n_items; ++body) {
    for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
      if (l->items[i].kind == OPI_PLAY_BATCH)
        OPI_TRY(add_batch(b, rank, body, i));
      else if (takes_part(b, body, &l->items[i]))
        OPI_TRY(add_item(b, rank, body, i));
    }
  }
  return OPIPE_OK;
}

static uint32_t *new_index(opi_arena *arena, uint64_t n) {
  uint32_t *index = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n);
  if (index != NULL && n != 0)
    memset(index, 0xff, (size_t)n * sizeof *index);
  return index;
}

static opipe_status allocate(builder *b) {
  const size_t n_works = (size_t)b->plan->n_stages * b->list->n_pieces * OPI_PROGRAMS;
  b->work_at = new_index(b->arena, n_works);
  return b->work_at == NULL ? opi_fail_nomem(b->err, n_works * sizeof *b->work_at, "a simulation")
                            : OPIPE_OK;
}

/* The rates of copies to the host by the plan, where the cluster gives none. */
static opipe_status find_rates(builder *b) {
  const uint32_t n_ranks = b->plan->n_ranks;
  double *rates = OPI_ARENA_ARRAY(b->arena, double, n_ranks);
  if (rates == NULL)
    return opi_fail_nomem(b->err, n_ranks * sizeof *rates, "a simulation");
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    rates[rank] = opi_device_host_rate(&b->plan->devices[rank]);
  b->play->host_bytes_per_ns = rates;
  return OPIPE_OK;
}

/* A rank that is occupied by its messages has no lane. */
static opipe_status find_lanes(builder *b, const opi_cluster *cluster) {
  const uint32_t n_ranks = b->plan->n_ranks;
  bool any = false, *lanes = OPI_ARENA_ARRAY(b->arena, bool, n_ranks);
  if (lanes == NULL)
    return opi_fail_nomem(b->err, n_ranks * sizeof *lanes, "a simulation");
  for (uint32_t rank = 0; rank < n_ranks && cluster->occupies == OPI_OCCUPIES_LINK; ++rank) {
    lanes[rank] = opi_rank_has_lane(b->plan, rank);
    any = any || lanes[rank];
  }
  b->play->lanes = any ? lanes : NULL;
  return OPIPE_OK;
}

static opipe_status build(builder *b, const opi_order_play *how) {
  opi_play *play = b->play;
  const uint32_t n_ranks = b->plan->n_ranks;
  uint32_t *first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)n_ranks + 1);
  uint32_t *device = OPI_ARENA_ARRAY(b->arena, uint32_t, n_ranks);
  if (first == NULL || device == NULL)
    return opi_fail_nomem(b->err, n_ranks * sizeof *first, "a simulation");
  if (n_ranks > how->cluster->n_devices) {
    return opi_fail(b->err, OPIPE_E_INVALID, "%u ranks, but the cluster has %u devices", n_ranks,
                    how->cluster->n_devices);
  }
  OPI_TRY(allocate(b));
  OPI_TRY(make_works(b));
  OPI_TRY(number_messages(b));
  OPI_TRY(make_streams(b));
  OPI_TRY(make_groups(b, how->collective));
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    first[rank] = b->n_ops;
    device[rank] = how->device == NULL ? rank : how->device[rank];
    for (uint32_t k = 0; k < n_meetings(b); ++k)
      b->come[k] = 0;
    OPI_TRY(build_rank(b, rank));
  }
  first[n_ranks] = b->n_ops;
  OPI_TRY(find_lanes(b, how->cluster));
  OPI_TRY(find_rates(b));
  play->device = device;
  play->list_first = first;
  play->ops = b->ops;
  return OPIPE_OK;
}

/* ---- labels ---- */

static bool is_each(const builder *b, const opi_playlist_item *item) {
  return (item->kind == OPI_PLAY_START || item->kind == OPI_PLAY_JOIN) &&
         b->list->groups[item->at].each;
}

/* A batch has the label of its first item. */
static opi_do label_of(const builder *b, const opi_playlist_item *item) {
  static const uint8_t group_kinds[OPI_PLAY_HOWS][2] = {{OPI_DO_SUM_F, OPI_DO_SUM_B},
                                                        {OPI_DO_GATHER_F, OPI_DO_GATHER_B},
                                                        {OPI_DO_SCATTER_F, OPI_DO_SCATTER_B},
                                                        {OPI_DO_OFFLOAD, OPI_DO_OFFLOAD},
                                                        {OPI_DO_RELOAD, OPI_DO_RELOAD}};
  static const uint8_t passes[OPI_PROGRAMS] = {OPI_DO_F, OPI_DO_B, OPI_DO_I, OPI_DO_W, OPI_DO_F};
  if (item->kind == OPI_PLAY_BATCH)
    ++item;
  opi_do label = {.stage = item->at,
                  .microbatch = item->microbatch,
                  .edge = OPIPE_NONE,
                  .replica = item->replica,
                  .flags = item->next == 1 ? OPIPE_ACTION_NEXT_STEP : 0};
  if (item->kind == OPI_PLAY_COMPUTE) {
    label.kind = passes[item->pass];
    label.stage = item->at / b->list->n_pieces;
    label.slice = (uint16_t)opi_piece_place_of(b->plan, item->at % b->list->n_pieces).slice;
  } else if (is_each(b, item)) {
    const opi_playlist_group *g = &b->list->groups[item->at];
    label.kind = group_kinds[g->how][g->backward];
    label.stage = g->stage;
  } else if (item->kind == OPI_PLAY_START || item->kind == OPI_PLAY_JOIN) {
    const uint32_t stage = b->list->groups[item->at].stage;
    const bool sums = item->kind == OPI_PLAY_START && stage != OPIPE_NONE;
    label.kind = sums ? OPI_DO_REDUCE : OPI_DO_STEP;
    label.stage = sums ? stage : OPIPE_NONE;
  } else {
    const opi_playlist_stream *s = &b->list->streams[item->at];
    const bool in = receives(item);
    label.kind = in ? (s->backward ? OPI_DO_RECV_B : OPI_DO_RECV_F)
                    : (s->backward ? OPI_DO_SEND_B : OPI_DO_SEND_F);
    label.stage = in ? s->dst_stage : s->src_stage;
    label.replica = in ? s->dst_replica : s->src_replica;
    label.slice = in ? s->dst_slice : s->src_slice;
  }
  return label;
}

static opipe_status make_labels(const builder *b, opi_do_list **out_labels) {
  const opi_playlist *l = b->list;
  const uint32_t n_ranks = b->plan->n_ranks;
  opi_do_list *labels = NULL;
  opipe_status status = OPIPE_OK;
  OPI_TRY(
      opi_do_list_create(b->arena->allocator, n_ranks, l->rank_first[n_ranks], &labels, b->err));
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    opi_do_list_rank(labels, rank);
    for (uint32_t i = l->rank_first[rank]; status == OPIPE_OK && i < l->rank_first[rank + 1]; ++i)
      status = opi_do_list_add(labels, label_of(b, &l->items[i]), b->err);
  }
  opi_do_list_rank(labels, n_ranks);
  if (status < 0)
    opi_do_list_free(labels);
  else
    *out_labels = labels;
  return status;
}

/* Measures between the ends of mini-batches in the middle, as the order repeats. */
static double period_of(const builder *b, const opi_played *r, double *ends) {
  const uint32_t n = b->n_batches - 1, half = n / 2;
  for (uint32_t i = 0; i < b->n_ops; ++i) {
    double *end = &ends[b->batch[i]];
    if (b->ops[i].kind == OPI_PLAY_COMPUTE && r->end[i] > *end)
      *end = r->end[i];
  }
  return half == 0 ? ends[0] : (ends[n - 1] - ends[half - 1]) / (n - half);
}

opipe_status opi_list_play_run(const opi_plan *plan, const opi_order_play *how, opi_arena *arena,
                               opi_list_played *out, opipe_error *err) {
  const uint32_t n_bodies = how->n_bodies == 0 ? BODIES : how->n_bodies;
  builder b = {.plan = &plan->decided,
               .list = plan->predicted.play,
               .play = &out->play,
               .arena = arena,
               .twice = plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
               .err = err};
  b.n_items = b.twice ? n_bodies + 2 : 1;
  b.n_batches = b.twice ? n_bodies + 1 : 1;
  *out = (opi_list_played){.n_batches = b.n_batches};
  out->play = (opi_play){.cluster = how->cluster,
                         .n_lists = plan->decided.n_ranks,
                         .n_tensor = 1,
                         .n_data = 1,
                         .rule = plan->decided.n_ranks > 1 ? plan->decided.link.rule : OPI_RULE_TAG,
                         .apart = how->apart};
  double *ends = OPI_ARENA_ARRAY(arena, double, (size_t)b.n_batches);
  if (ends == NULL)
    return opi_fail_nomem(err, b.n_batches * sizeof *ends, "a simulation");
  OPI_TRY(build(&b, how));
  OPI_TRY(opi_play_run(&out->play, arena, &out->result, err));
  out->step_ns = b.twice ? period_of(&b, &out->result, ends) : out->result.makespan;
  return make_labels(&b, &out->labels);
}
