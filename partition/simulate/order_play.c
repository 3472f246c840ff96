/* SPDX-License-Identifier: Apache-2.0 */
/* From a lowered order to operations: a receive is a post where it stands, and a wait in front of
 * what reads it; a compute with sums over the tensor group is followed by them; a reduction starts
 * where it stands and is waited for by the step.
 */
#include "partition/simulate/order_play.h"

#include <math.h>
#include <string.h>

#include "partition/schedule/proof.h"
#include "partition/simulate/events.h"

enum { BODIES = 8 };

/* Kinds of work of a stage, and of groups of a stage. */
enum {
  GROUP_REDUCE = 0, /* gradients */
  GROUP_GATHER,     /* weights, behind a sharded step */
  GROUP_FORWARD,    /* sums over the tensor group */
  GROUP_BACKWARD,
  GROUP_ARRIVE, /* what came in parts */
  GROUP_RETURN, /* gradients that did */
  GROUPS
};

typedef struct builder {
  const opi_problem *problem;
  const opi_order_play *how;
  opi_do_list *unrolled; /* NULL: the list itself is played */
  const opi_do_list *list;
  opi_prover prover; /* of which the messages are numbered */
  opi_play *play;
  opi_arena *arena;
  opi_play_op *ops;
  opi_play_work *work;
  uint32_t *collective_group;
  opi_play_group *groups;
  uint32_t *group_at; /* [((instance) * GROUPS + which) * n_slices + slice] OPIPE_NONE: none yet */
  uint32_t
      *group_lists;    /* [2 * instances] by stage the ranks of its replicas; by instance its own */
  uint32_t *n_homes;   /* [n_stages] of the first */
  uint32_t *stream_at; /* [((edge * 2 + backward) * n_slices + slice) * R * R + src * R + dst] */
  opi_play_stream *streams;
  uint32_t *message_stream, *message_at; /* [messages]; [messages of the prover]: its number */
  uint32_t *reduction; /* [steps * n_stages * 2] its collective, and that of what follows the step;
                          OPIPE_NONE: not yet numbered */
  bool *reduces;       /* [steps * instances] one that its rank's step has not waited for */
  bool *recomputes;    /* [n_stages] */
  uint32_t n_ops, room_ops, n_work, room_work, n_collectives, room_collectives, n_streams;
  uint32_t room_streams, n_messages, room_messages, n_groups, room_groups;
  double n_tokens;
  opipe_error *err;
} builder;

/* The other replica of its stage on the same rank is behind it. */
static bool is_twin(const opi_problem *p, uint32_t instance) {
  for (uint32_t r = 0; r < instance % p->n_replicas; ++r) {
    if (opi_problem_rank(p, instance / p->n_replicas, r) == p->instance_rank[instance])
      return true;
  }
  return false;
}

/* ---- operations ---- */

static opipe_status add_op(builder *b, uint32_t kind, uint32_t index, uint32_t item) {
  if (b->n_ops == UINT32_MAX - 1)
    return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of more than %u operations", b->n_ops);
  if (!opi_arena_grow(b->arena, (void **)&b->ops, &b->room_ops, b->n_ops + 1, sizeof *b->ops))
    return opi_fail_nomem(b->err, (uint64_t)b->n_ops * sizeof *b->ops, "a simulation");
  b->ops[b->n_ops++] = (opi_play_op){kind, index, item};
  return OPIPE_OK;
}

/* Works are few: of every stage, kind, slice and part. */
static opipe_status add_work(builder *b, opi_play_work work, uint32_t item) {
  uint32_t i = b->n_work;
  const uint32_t recent = b->n_work > 64 ? b->n_work - 64 : 0;
  while (i > recent && memcmp(&b->work[i - 1], &work, sizeof work) != 0)
    --i;
  if (i > recent)
    return add_op(b, OPI_PLAY_COMPUTE, i - 1, item);
  if (!opi_arena_grow(b->arena, (void **)&b->work, &b->room_work, b->n_work + 1, sizeof work))
    return opi_fail_nomem(b->err, b->n_work * sizeof work, "a simulation");
  b->work[b->n_work++] = work;
  return add_op(b, OPI_PLAY_COMPUTE, b->n_work - 1, item);
}

/* ---- collectives ---- */

/* Of the edges that end at a stage, the most that one brings. */
static double arriving_bytes(const builder *b, uint32_t stage) {
  double most = 0;
  for (uint32_t e = 0; e < b->problem->n_edges; ++e) {
    const double n_bytes = b->how->stages[b->problem->edges[e].src].send_bytes;
    if (b->problem->edges[e].dst == stage && n_bytes > most)
      most = n_bytes;
  }
  return most;
}

static double slice_share(const builder *b, uint32_t slice) {
  const opi_problem *p = b->problem;
  return b->n_tokens > 0 ? p->slice_lengths[slice] / b->n_tokens : 1.0 / p->n_slices;
}

/* What a kind of collective of an instance is. Tensor groups are those of the instance's rank. */
static opi_play_group make_group(const builder *b, uint32_t which, uint32_t stage, uint32_t replica,
                                 uint32_t slice) {
  const opi_problem *p = b->problem;
  const opi_stage_load *s = &b->how->stages[stage];
  const double shares = p->stage_shares == NULL ? 1 : p->stage_shares[stage];
  const double rows = slice_share(b, slice) / shares;
  const bool over_data = which == GROUP_REDUCE || which == GROUP_GATHER;
  const struct {
    uint32_t op;
    double n_bytes;
    uint32_t times;
  } kinds[GROUPS] = {
      {b->how->sharded ? OPI_OP_REDUCE_SCATTER : OPI_OP_ALL_REDUCE, s->gradient_bytes, 1},
      {OPI_OP_ALL_GATHER, s->gradient_bytes, 1},
      {OPI_OP_ALL_REDUCE, s->tensor_bytes * rows, s->tensor_sums},
      {OPI_OP_ALL_REDUCE, s->tensor_bytes * rows / p->n_parts, s->tensor_sums},
      {OPI_OP_ALL_GATHER, arriving_bytes(b, stage) * rows, 1},
      {OPI_OP_ALL_GATHER, s->send_bytes * rows / p->n_parts, 1}};
  const uint32_t n = p->n_stages * p->n_replicas, instance = stage * p->n_replicas + replica;
  return (opi_play_group){.op = kinds[which].op,
                          .algorithm = b->how->collective,
                          .n_bytes = (uint64_t)kinds[which].n_bytes,
                          .times = kinds[which].times,
                          .first = over_data ? stage * p->n_replicas : n + instance,
                          .n_lists = over_data ? b->n_homes[stage] : 1,
                          .over_tensor = !over_data,
                          .over_data = over_data};
}

/* One more collective of a kind; reductions of a stage are of its first replica. */
static opipe_status new_collective(builder *b, uint32_t which, uint32_t stage, uint32_t replica,
                                   uint32_t slice, uint32_t *out_collective) {
  const opi_problem *p = b->problem;
  uint32_t *group =
      &b->group_at[((stage * p->n_replicas + replica) * GROUPS + which) * p->n_slices + slice];
  if (!opi_arena_grow(b->arena, (void **)&b->collective_group, &b->room_collectives,
                      b->n_collectives + 1, sizeof *b->collective_group) ||
      !opi_arena_grow(b->arena, (void **)&b->groups, &b->room_groups, b->n_groups + 1,
                      sizeof *b->groups))
    return opi_fail_nomem(b->err, b->n_collectives * sizeof(uint32_t), "a simulation");
  if (*group == OPIPE_NONE) {
    *group = b->n_groups;
    b->groups[b->n_groups++] = make_group(b, which, stage, replica, slice);
  }
  b->collective_group[b->n_collectives] = *group;
  *out_collective = b->n_collectives++;
  return OPIPE_OK;
}

/* One that only the rank's own copies take part in. */
static opipe_status join_tensor_group(builder *b, uint32_t which, const opi_do *a, uint32_t item) {
  uint32_t c = 0;
  OPI_TRY(new_collective(b, which, a->stage, a->replica, a->slice, &c));
  OPI_TRY(add_op(b, OPI_PLAY_START, c, item));
  return add_op(b, OPI_PLAY_JOIN, c, item);
}

/* ---- messages ---- */

static double least(double a, double b) {
  return a < b ? a : b;
}

/* Of a micro-batch's rows, those that one of n_src replicas has and one of n_dst needs. */
static double rows_of(const opi_problem *p, const opi_stage_edge *e, uint32_t src, uint32_t dst) {
  if (p->stage_shares == NULL)
    return 1;
  const double n_src = p->stage_shares[e->src], n_dst = p->stage_shares[e->dst];
  const double last = least((src + 1) / n_src, (dst + 1) / n_dst);
  const double first = src / n_src > dst / n_dst ? src / n_src : dst / n_dst;
  return last > first ? last - first : 0;
}

/* Of the edge's source, whichever way it goes. */
static double bytes_of(const builder *b, uint32_t edge, bool forward, uint32_t slice, uint32_t src,
                       uint32_t dst) {
  const opi_problem *p = b->problem;
  const opi_stage_edge *e = &p->edges[edge];
  const double rows = forward ? rows_of(p, e, src, dst) : rows_of(p, e, dst, src) / p->n_parts;
  const double parts = b->how->scattered ? b->play->n_tensor : 1;
  const double all =
      b->how->edge_bytes != NULL ? b->how->edge_bytes[edge] : b->how->stages[e->src].send_bytes;
  return all * slice_share(b, slice) * rows / parts;
}

static opipe_status stream_of(builder *b, uint32_t edge, bool forward, uint32_t slice, uint32_t src,
                              uint32_t dst, uint32_t *out_stream) {
  const opi_problem *p = b->problem;
  const opi_stage_edge *e = &p->edges[edge];
  const size_t way = ((size_t)edge * 2 + !forward) * p->n_slices + slice;
  uint32_t *at = &b->stream_at[(way * p->n_replicas + src) * p->n_replicas + dst];
  if (*at == OPIPE_NONE) {
    *at = b->n_streams;
    if (!opi_arena_grow(b->arena, (void **)&b->streams, &b->room_streams, b->n_streams + 1,
                        sizeof *b->streams))
      return opi_fail_nomem(b->err, b->n_streams * sizeof *b->streams, "a simulation");
    b->streams[b->n_streams++] =
        (opi_play_stream){opi_problem_rank(p, forward ? e->src : e->dst, src),
                          opi_problem_rank(p, forward ? e->dst : e->src, dst),
                          bytes_of(b, edge, forward, slice, src, dst)};
  }
  *out_stream = *at;
  return OPIPE_OK;
}

/* The number of a message of the list, from its sender's end. */
static opipe_status number_message(builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  uint32_t stream = 0;
  if (a->kind != OPI_DO_SEND_F && a->kind != OPI_DO_SEND_B)
    return OPIPE_OK;
  OPI_TRY(stream_of(b, a->edge, a->kind == OPI_DO_SEND_F, a->slice, a->replica, a->peer, &stream));
  if (!opi_arena_grow(b->arena, (void **)&b->message_stream, &b->room_messages, b->n_messages + 1,
                      sizeof *b->message_stream))
    return opi_fail_nomem(b->err, b->n_messages * sizeof(uint32_t), "a simulation");
  b->message_stream[b->n_messages] = stream;
  b->message_at[opi_message_of(&b->prover, item)] = b->n_messages++;
  return OPIPE_OK;
}

/* ---- computes ---- */

typedef struct reader {
  builder *b;
  const opi_do *a;
  uint32_t item;
  opipe_status status;
} reader;

/* Waits for what comes from another rank. */
static bool wait_for(void *ctx, const opi_do *a, const opi_need *need) {
  reader *r = ctx;
  builder *b = r->b;
  const opi_problem *p = b->problem;
  if (need->edge == OPIPE_NONE || need->replica == OPIPE_NONE ||
      opi_problem_rank(p, need->stage, need->replica) == opi_problem_rank(p, a->stage, a->replica))
    return true;
  const bool forward = p->edges[need->edge].src == need->stage;
  const uint64_t m = opi_message_index(
      &b->prover, opi_step_of(&b->prover, r->item), need->edge, forward, a->microbatch, need->slice,
      need->part, forward ? need->replica : a->replica, forward ? a->replica : need->replica);
  if (b->message_at[m] == OPIPE_NONE) {
    r->status = opi_fail(b->err, OPIPE_E_INVALID, "a message that nobody sends: is it lowered?");
    return false;
  }
  r->status = add_op(b, OPI_PLAY_WAIT, b->message_at[m], r->item);
  if (r->status == OPIPE_OK && b->how->scattered && b->play->n_tensor > 1)
    r->status = join_tensor_group(b, forward ? GROUP_ARRIVE : GROUP_RETURN, a, r->item);
  return r->status == OPIPE_OK;
}

/* Whose times an instance takes. */
static const opi_stage_load *times_of(const builder *b, uint32_t stage, uint32_t replica) {
  return b->how->instances == NULL
             ? &b->how->stages[stage]
             : &b->how->instances[(size_t)stage * b->problem->n_replicas + replica];
}

static opi_play_work work_of(const builder *b, const opi_do *a) {
  const opi_stage_load *s = times_of(b, a->stage, a->replica);
  const double part = opi_compute_share(b->problem, b->n_tokens, a);
  const bool again = b->recomputes[a->stage], train = b->problem->mode != OPIPE_MODE_FORWARD;
  const double kept = train ? (again ? s->input_bytes : s->stash_bytes) * part : 0;
  const double all = (again ? s->input_bytes + s->stash_bytes : s->stash_bytes) * part;
  switch (a->kind) {
    case OPI_DO_F:
      return (opi_play_work){s->forward_ns * part, kept, 0};
    case OPI_DO_R:
      return (opi_play_work){(s->recompute_ns > 0 ? s->recompute_ns : s->forward_ns) * part,
                             s->stash_bytes * part, 0};
    case OPI_DO_B:
      return (opi_play_work){(s->input_ns + s->weight_ns) * part, 0, all};
    case OPI_DO_I:
      return (opi_play_work){s->input_ns * part, 0, 0};
    default:
      return (opi_play_work){s->weight_ns * part, 0, all};
  }
}

static opipe_status add_compute(builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const opi_stage_load *s = &b->how->stages[a->stage];
  reader r = {b, a, item, OPIPE_OK};
  (void)opi_each_need(&b->prover.index, a, wait_for, &r);
  OPI_TRY(r.status);
  OPI_TRY(add_work(b, work_of(b, a), item));
  if (b->play->n_tensor == 1 || s->tensor_sums == 0 || a->kind == OPI_DO_W)
    return OPIPE_OK;
  const bool forward = a->kind == OPI_DO_F || a->kind == OPI_DO_R;
  return join_tensor_group(b, forward ? GROUP_FORWARD : GROUP_BACKWARD, a, item);
}

/* ---- reductions and steps ---- */

static bool sums(const builder *b, uint32_t stage) {
  uint32_t n = b->play->n_data;
  for (uint32_t r = 0; r < b->problem->n_replicas && n < 2; ++r)
    n += r > 0 && opi_problem_rank(b->problem, stage, r) != OPIPE_NONE;
  return n > 1 && b->how->stages[stage].gradient_bytes > 0;
}

/* The same for all replicas of a stage, in a mini-batch. */
static opipe_status reduction_of(builder *b, uint32_t step, uint32_t stage, uint32_t which,
                                 uint32_t *out_collective) {
  uint32_t *at = &b->reduction[((size_t)step * b->problem->n_stages + stage) * 2 + which];
  if (*at == OPIPE_NONE)
    OPI_TRY(new_collective(b, which, stage, 0, 0, at));
  *out_collective = *at;
  return OPIPE_OK;
}

static opipe_status add_reduction(builder *b, uint32_t step, uint32_t stage, uint32_t replica,
                                  uint32_t item) {
  const opi_problem *p = b->problem;
  bool *came = &b->reduces[((size_t)step * p->n_stages + stage) * p->n_replicas];
  uint32_t c = 0;
  if (!sums(b, stage))
    return OPIPE_OK;
  came[replica] = true;
  for (uint32_t r = 0; r < p->n_replicas; ++r) { /* the rank's last one comes for all of them */
    if (opi_problem_rank(p, stage, r) == opi_problem_rank(p, stage, replica) && !came[r])
      return OPIPE_OK;
  }
  OPI_TRY(reduction_of(b, step, stage, GROUP_REDUCE, &c));
  OPI_TRY(add_op(b, OPI_PLAY_START, c, item));
  return b->how->waits_for_reductions ? add_op(b, OPI_PLAY_JOIN, c, item) : OPIPE_OK;
}

/* Starts the reductions that the order does not state (those over copies of all of it), waits for
 * all of them; or starts and waits for what gathers weights. */
static opipe_status join_all(builder *b, uint32_t rank, uint32_t step, uint32_t which,
                             uint32_t item) {
  const opi_problem *p = b->problem;
  const uint32_t n = p->n_stages * p->n_replicas;
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t k = 0; k < n; ++k) {
      uint32_t c = 0;
      if (p->instance_rank[k] != rank || !sums(b, k / p->n_replicas) || is_twin(p, k))
        continue;
      const bool started = which == GROUP_REDUCE && b->reduces[(size_t)step * n + k];
      OPI_TRY(reduction_of(b, step, k / p->n_replicas, which, &c));
      if (pass == 1)
        OPI_TRY(add_op(b, OPI_PLAY_JOIN, c, item));
      else if (!started)
        OPI_TRY(add_op(b, OPI_PLAY_START, c, item));
    }
  }
  return OPIPE_OK;
}

static opipe_status add_step(builder *b, uint32_t rank, uint32_t step, uint32_t item) {
  const opi_problem *p = b->problem;
  double ns = 0;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    const uint32_t stage = k / p->n_replicas;
    if (p->instance_rank[k] == rank && !is_twin(p, k)) {
      const bool shards = b->how->sharded && sums(b, stage);
      ns += times_of(b, stage, k % p->n_replicas)->step_ns / (shards ? b->play->n_data : 1);
    }
  }
  OPI_TRY(join_all(b, rank, step, GROUP_REDUCE, item));
  OPI_TRY(add_work(b, (opi_play_work){ns, 0, 0}, item));
  return b->how->sharded ? join_all(b, rank, step, GROUP_GATHER, item) : OPIPE_OK;
}

static opipe_status add_item(builder *b, uint32_t rank, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  const uint32_t step = opi_step_of(&b->prover, item);
  if (opi_do_is_compute(a->kind))
    return add_compute(b, item);
  if (opi_do_is_message(a->kind)) {
    const uint32_t m = b->message_at[opi_message_of(&b->prover, item)];
    const bool sends = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
    if (!sends && b->play->posted_ahead)
      return OPIPE_OK;
    return m == OPIPE_NONE ? opi_fail(b->err, OPIPE_E_INVALID, "a receive without its send")
                           : add_op(b, sends ? OPI_PLAY_SEND : OPI_PLAY_POST, m, item);
  }
  if (a->kind == OPI_DO_REDUCE)
    return add_reduction(b, step, a->stage, a->replica, item);
  return a->kind == OPI_DO_STEP ? add_step(b, rank, step, item) : OPIPE_OK;
}

/* ---- the play ---- */

/* Ranks on which a stage's gradients are, each once; and every instance's own. */
static void find_homes(const builder *b) {
  const opi_problem *p = b->problem;
  const uint32_t n = p->n_stages * p->n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t stage = k / p->n_replicas;
    b->group_lists[n + k] = p->instance_rank[k];
    if (p->instance_rank[k] != OPIPE_NONE && !is_twin(p, k))
      b->group_lists[stage * p->n_replicas + b->n_homes[stage]++] = p->instance_rank[k];
  }
}

/* Fills an array with OPIPE_NONE. */
static uint32_t *new_index(opi_arena *arena, uint64_t n) {
  uint32_t *index = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n + 1);
  if (index != NULL)
    memset(index, 0xff, ((size_t)n + 1) * sizeof *index);
  return index;
}

static opipe_status prepare(builder *b, uint32_t n_steps) {
  const opi_problem *p = b->problem;
  opi_prover *v = &b->prover;
  const uint64_t n = (uint64_t)p->n_stages * p->n_replicas;
  OPI_TRY(opi_index_build(p, b->list, b->arena, &v->index, b->err));
  const uint64_t shares = v->index.n_shares;
  v->n_messages = (uint64_t)n_steps * p->n_edges * 2 * p->n_microbatches * p->n_slices *
                  p->n_parts * shares * shares;
  if (v->n_messages > OPI_ACTIONS_MOST) {
    return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of %llu messages; at most %d",
                    (unsigned long long)v->n_messages, OPI_ACTIONS_MOST);
  }
  b->message_at = new_index(b->arena, v->n_messages);
  b->stream_at =
      new_index(b->arena, (uint64_t)p->n_edges * 2 * p->n_slices * p->n_replicas * p->n_replicas);
  b->group_at = new_index(b->arena, n * GROUPS * p->n_slices);
  b->reduction = new_index(b->arena, (uint64_t)n_steps * p->n_stages * 2);
  b->group_lists = OPI_ARENA_ARRAY(b->arena, uint32_t, 2 * (size_t)n);
  b->n_homes = OPI_ARENA_ARRAY(b->arena, uint32_t, p->n_stages);
  b->reduces = OPI_ARENA_ARRAY(b->arena, bool, (size_t)(n_steps * n));
  b->recomputes = OPI_ARENA_ARRAY(b->arena, bool, p->n_stages);
  if (b->message_at == NULL || b->stream_at == NULL || b->group_at == NULL ||
      b->reduction == NULL || b->group_lists == NULL || b->n_homes == NULL || b->reduces == NULL ||
      b->recomputes == NULL)
    return opi_fail_nomem(b->err, v->n_messages * sizeof(uint32_t), "a simulation");
  find_homes(b);
  for (uint32_t i = 0; i < b->list->n_items; ++i) {
    if (b->list->items[i].kind == OPI_DO_R)
      b->recomputes[b->list->items[i].stage] = true;
    OPI_TRY(number_message(b, i));
  }
  return OPIPE_OK;
}

static opipe_status place_ranks(const builder *b) {
  opi_play *play = b->play;
  const uint32_t n_copies = play->n_tensor * play->n_data, n = b->list->n_ranks;
  if (b->how->device != NULL) {
    play->device = b->how->device;
    return OPIPE_OK;
  }
  uint32_t *device = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)n * n_copies);
  if ((uint64_t)n * n_copies > b->how->cluster->n_devices) {
    return opi_fail(b->err, OPIPE_E_INVALID,
                    "%u ranks x %u tensor ranks x %u replicas, and the cluster has %u devices", n,
                    play->n_tensor, play->n_data, b->how->cluster->n_devices);
  }
  if (device == NULL)
    return opi_fail_nomem(b->err, (uint64_t)n * n_copies * sizeof *device, "a simulation");
  for (uint32_t rank = 0; rank < n; ++rank) {
    for (uint32_t copy = 0; copy < n_copies; ++copy) {
      const uint32_t tensor = copy % play->n_tensor, data = copy / play->n_tensor;
      const uint32_t outer = b->how->place == OPI_PLACE_TENSOR_DATA_PIPELINE
                                 ? rank * play->n_data + data
                                 : data * n + rank;
      device[rank * n_copies + copy] = outer * play->n_tensor + tensor;
    }
  }
  play->device = device;
  return OPIPE_OK;
}

static opipe_status build(builder *b) {
  opi_play *play = b->play;
  uint32_t *first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)b->list->n_ranks + 1);
  if (first == NULL)
    return opi_fail_nomem(b->err, b->list->n_ranks * sizeof *first, "a simulation");
  OPI_TRY(place_ranks(b));
  for (uint32_t rank = 0; rank < b->list->n_ranks; ++rank) {
    first[rank] = b->n_ops;
    for (uint32_t i = b->list->rank_first[rank]; i < b->list->rank_first[rank + 1]; ++i)
      OPI_TRY(add_item(b, rank, i));
  }
  first[b->list->n_ranks] = b->n_ops;
  play->list_first = first;
  play->ops = b->ops;
  play->work = b->work;
  play->streams = b->streams;
  play->message_stream = b->message_stream;
  play->groups = b->groups;
  play->group_lists = b->group_lists;
  play->collective_group = b->collective_group;
  play->n_streams = b->n_streams;
  play->n_messages = b->n_messages;
  play->n_groups = b->n_groups;
  play->n_collectives = b->n_collectives;
  return OPIPE_OK;
}

/* ---- figures ---- */

/* Between the ends of mini-batches in the middle, as the order repeats. */
static double period_of(const builder *b, const opi_played *r, double *ends, uint32_t n_bodies) {
  const uint32_t n = r->n_classes;
  for (uint32_t i = 0; i < b->n_ops; ++i) {
    if (b->ops[i].kind != OPI_PLAY_COMPUTE)
      continue;
    double *end = &ends[opi_step_of(&b->prover, b->ops[i].item)];
    for (uint32_t k = 0; k < n; ++k)
      *end = r->end[(size_t)i * n + k] > *end ? r->end[(size_t)i * n + k] : *end;
  }
  const uint32_t half = n_bodies / 2;
  return half == 0 ? ends[0] : (ends[n_bodies - 1] - ends[half - 1]) / (n_bodies - half);
}

/* n_steps: mini-batches that were played. */
static void measure(const builder *b, uint32_t n_steps, opi_order_played *out) {
  const opi_problem *p = b->problem;
  const opi_play *play = &out->play;
  const uint32_t n = out->result.n_classes, n_copies = play->n_tensor * play->n_data;
  double busy = 0, busiest = 0, peak = 0;
  for (uint32_t rank = 0; rank < play->n_lists * n; ++rank) {
    const double own = out->result.busy_ns[rank] / n_steps;
    busy += own * out->result.class_size[rank % n];
    busiest = own > busiest ? own : busiest;
  }
  out->n_ranks = play->n_lists * n_copies;
  for (uint32_t i = 0; i < out->n_ranks; ++i)
    peak += opi_cluster_flops(play->cluster, play->device[i], b->how->dtype, UINT64_MAX);
  for (uint32_t s = 0; s < p->n_stages; ++s)
    out->flops += b->how->stages[s].flops * p->n_microbatches * n_copies;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    if (p->instance_rank[k] != OPIPE_NONE && !is_twin(p, k))
      out->fixed_bytes[p->instance_rank[k]] += b->how->stages[k / p->n_replicas].fixed_bytes;
  }
  if (out->step_ns <= 0)
    return;
  out->bubble = 1 - busy / (out->n_ranks * out->step_ns);
  out->bubble_overhead = busiest > 0 ? (out->step_ns - busiest) / busiest : 0;
  out->flops /= out->step_ns * 1e-9;
  out->utilisation = peak > 0 ? out->flops / peak : 0;
}

/* ---- all of it ---- */

static bool is_number(double x) {
  return x >= 0 && x <= 1e18;
}

static opipe_status check_load(const opi_stage_load *l, uint32_t stage, opipe_error *err) {
  const double times[] = {l->forward_ns,  l->input_ns,     l->weight_ns,     l->recompute_ns,
                          l->step_ns,     l->send_bytes,   l->stash_bytes,   l->input_bytes,
                          l->fixed_bytes, l->tensor_bytes, l->gradient_bytes};
  for (size_t i = 0; i < OPI_COUNT(times); ++i) {
    if (!is_number(times[i])) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "stage %u: time or bytes %g (number %zu): 0 to 1e18 is needed", stage,
                      times[i], i);
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_problem *p, const opi_order_play *how, opipe_error *err) {
  for (uint32_t s = 0; s < p->n_stages; ++s)
    OPI_TRY(check_load(&how->stages[s], s, err));
  for (uint32_t i = 0; how->instances != NULL && i < p->n_stages * p->n_replicas; ++i)
    OPI_TRY(check_load(&how->instances[i], i / p->n_replicas, err));
  if (how->place >= OPI_PLACES || how->collective >= OPI_COLLECTIVES) {
    return opi_fail(err, OPIPE_E_INVALID, "placement %u (of %d), collectives %u (of %d)",
                    how->place, OPI_PLACES, how->collective, OPI_COLLECTIVES);
  }
  return OPIPE_OK;
}

static opipe_status run(builder *b, uint32_t n_steps, opi_order_played *out) {
  const uint32_t n_bodies = n_steps - 1;
  double *ends = OPI_ARENA_ARRAY(b->arena, double, (size_t)n_steps + 1);
  out->fixed_bytes = OPI_ARENA_ARRAY(b->arena, double, b->list->n_ranks);
  if (ends == NULL || out->fixed_bytes == NULL)
    return opi_fail_nomem(b->err, b->list->n_ranks * sizeof(double), "a simulation");
  OPI_TRY(prepare(b, n_steps));
  OPI_TRY(build(b));
  OPI_TRY(opi_play_run(&out->play, b->arena, &out->result, b->err));
  out->step_ns =
      b->unrolled == NULL ? out->result.makespan : period_of(b, &out->result, ends, n_bodies);
  measure(b, n_steps, out);
  return OPIPE_OK;
}

opipe_status opi_order_play_run(const opi_problem *problem, const opi_do_list *list,
                                const opi_order_play *how, opi_arena *arena, opi_order_played *out,
                                opipe_error *err) {
  const bool repeats = problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const uint32_t n_bodies = how->n_bodies == 0 ? BODIES : how->n_bodies;
  uint32_t *step = NULL;
  builder b = {.problem = problem,
               .how = how,
               .list = list,
               .prover = {.problem = problem, .arena = arena, .err = err},
               .play = &out->play,
               .arena = arena,
               .n_tokens = opi_order_tokens(problem),
               .err = err};
  OPI_TRY(check(problem, how, err));
  *out = (opi_order_played){.list = list};
  out->play = (opi_play){.cluster = how->cluster,
                         .n_lists = list->n_ranks,
                         .n_tensor = how->n_tensor == 0 ? 1 : how->n_tensor,
                         .n_data = how->n_data == 0 ? 1 : how->n_data,
                         .rule = how->posted_late ? how->cluster->link.rule : OPI_RULE_TAG,
                         .posted_ahead = !how->posted_late,
                         .apart = how->apart};
  if (repeats) {
    OPI_TRY(opi_unroll(list, n_bodies, arena->allocator, arena, &b.unrolled, &step, err));
    b.list = out->list = b.unrolled;
  }
  b.prover.list = b.list;
  b.prover.step = step;
  const opipe_status status = run(&b, repeats ? n_bodies + 1 : 1, out);
  if (status < 0)
    opi_order_played_release(out, list);
  return status;
}

void opi_order_played_release(opi_order_played *played, const opi_do_list *list) {
  if (played->list != list)
    opi_do_list_free((opi_do_list *)(uintptr_t)played->list);
  played->list = list;
}
