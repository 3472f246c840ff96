/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of an order's operations: works, collectives, messages and their streams. */
#include "partition/study/simulate/order_build.h"

#include <string.h>

/* ---- operations ---- */

opipe_status opi_builder_op(opi_order_builder *b, uint32_t kind, uint32_t index, uint32_t item) {
  if (b->n_ops == UINT32_MAX - 1)
    return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of more than %u operations", b->n_ops);
  if (!opi_arena_grow(b->arena, (void **)&b->ops, &b->room_ops, b->n_ops + 1, sizeof *b->ops))
    return opi_fail_nomem(b->err, (uint64_t)b->n_ops * sizeof *b->ops, "a simulation");
  b->ops[b->n_ops++] = (opi_play_op){kind, index, item};
  return OPIPE_OK;
}

/* There are few works: one per stage, kind, slice and part. */
opipe_status opi_builder_work(opi_order_builder *b, opi_play_work work, uint32_t item) {
  uint32_t i = b->n_work;
  const uint32_t recent = b->n_work > 64 ? b->n_work - 64 : 0;
  while (i > recent && memcmp(&b->work[i - 1], &work, sizeof work) != 0)
    --i;
  if (i > recent)
    return opi_builder_op(b, OPI_PLAY_COMPUTE, i - 1, item);
  if (!opi_arena_grow(b->arena, (void **)&b->work, &b->room_work, b->n_work + 1, sizeof work))
    return opi_fail_nomem(b->err, b->n_work * sizeof work, "a simulation");
  b->work[b->n_work++] = work;
  return opi_builder_op(b, OPI_PLAY_COMPUTE, b->n_work - 1, item);
}

/* ---- collectives ---- */

/* The most bytes that one edge into the stage brings. */
static double arriving_bytes(const opi_order_builder *b, uint32_t stage) {
  double most = 0;
  for (uint32_t e = 0; e < b->problem->n_edges; ++e) {
    const double n_bytes = b->how->stages[b->problem->edges[e].src].send_bytes;
    if (b->problem->edges[e].dst == stage && n_bytes > most)
      most = n_bytes;
  }
  return most;
}

double opi_builder_slice_share(const opi_order_builder *b, uint32_t slice) {
  const opi_problem *p = b->problem;
  return b->n_tokens > 0 ? p->slice_lengths[slice] / b->n_tokens : 1.0 / p->n_slices;
}

/* The stash of a slice of a micro-batch that a forward leaves on the device. */
static double stash_of(const opi_order_builder *b, uint32_t stage, uint32_t slice) {
  const opi_stage_load *s = &b->how->stages[stage];
  const double shares = b->problem->stage_shares == NULL ? 1 : b->problem->stage_shares[stage];
  return (b->recomputes[stage] ? s->input_bytes : s->stash_bytes) *
         opi_builder_slice_share(b, slice) / shares;
}

/* Describes a kind of collective of an instance. Tensor groups belong to the instance's rank. */
static opi_play_group make_group(const opi_order_builder *b, uint32_t which, uint32_t stage,
                                 uint32_t replica, uint32_t slice) {
  const opi_problem *p = b->problem;
  const opi_stage_load *s = &b->how->stages[stage];
  const double shares = p->stage_shares == NULL ? 1 : p->stage_shares[stage];
  const double rows = opi_builder_slice_share(b, slice) / shares;
  const double sum = s->tensor_bytes * rows, part = sum / p->n_parts;
  const double kept = which >= GROUP_OUT ? stash_of(b, stage, slice) : 0;
  const bool over_data = which == GROUP_REDUCE || which == GROUP_GATHER;
  const struct {
    uint32_t op;
    double n_bytes;
    uint32_t times;
  } kinds[GROUPS] = {[GROUP_REDUCE] = {p->sharded ? OPI_OP_REDUCE_SCATTER : OPI_OP_ALL_REDUCE,
                                       s->gradient_bytes, 1},
                     [GROUP_GATHER] = {OPI_OP_ALL_GATHER, s->gradient_bytes, 1},
                     [GROUP_SUM_F] = {OPI_OP_ALL_REDUCE, sum, s->tensor_sums},
                     [GROUP_SUM_B] = {OPI_OP_ALL_REDUCE, part, s->tensor_sums},
                     [GROUP_GATHER_F] = {OPI_OP_ALL_GATHER, sum, s->tensor_sums},
                     [GROUP_GATHER_B] = {OPI_OP_ALL_GATHER, part, s->tensor_sums},
                     [GROUP_SCATTER_F] = {OPI_OP_REDUCE_SCATTER, sum, s->tensor_sums},
                     [GROUP_SCATTER_B] = {OPI_OP_REDUCE_SCATTER, part, s->tensor_sums},
                     [GROUP_ARRIVE] = {OPI_OP_ALL_GATHER, arriving_bytes(b, stage) * rows, 1},
                     [GROUP_RETURN] = {OPI_OP_ALL_GATHER, s->send_bytes * rows / p->n_parts, 1},
                     [GROUP_OUT] = {OPI_STASH_OUT, kept, 1},
                     [GROUP_IN] = {OPI_STASH_IN, kept, 1}};
  const uint32_t n = p->n_stages * p->n_replicas, instance = stage * p->n_replicas + replica;
  return (opi_play_group){.op = kinds[which].op,
                          .algorithm = b->how->collective,
                          .n_bytes = (uint64_t)kinds[which].n_bytes,
                          .kept_bytes = kept,
                          .times = kinds[which].times,
                          .first = over_data ? stage * p->n_replicas : n + instance,
                          .n_lists = over_data ? b->n_homes[stage] : 1,
                          .over_tensor = !over_data && which < GROUP_OUT,
                          .over_data = over_data};
}

opipe_status opi_builder_collective(opi_order_builder *b, uint32_t which, uint32_t stage,
                                    uint32_t replica, uint32_t slice, uint32_t *out_collective) {
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

opipe_status opi_builder_join(opi_order_builder *b, uint32_t which, const opi_do *a,
                              uint32_t item) {
  uint32_t c = 0;
  OPI_TRY(opi_builder_collective(b, which, a->stage, a->replica, a->slice, &c));
  OPI_TRY(opi_builder_op(b, OPI_PLAY_START, c, item));
  return opi_builder_op(b, OPI_PLAY_JOIN, c, item);
}

/* ---- messages ---- */

static double least(double a, double b) {
  return a < b ? a : b;
}

/* The share of a micro-batch's rows that one of n_src replicas has and one of n_dst needs. */
static double rows_of(const opi_problem *p, const opi_stage_edge *e, uint32_t src, uint32_t dst) {
  if (p->stage_shares == NULL)
    return 1;
  const double n_src = p->stage_shares[e->src], n_dst = p->stage_shares[e->dst];
  const double last = least((src + 1) / n_src, (dst + 1) / n_dst);
  const double first = src / n_src > dst / n_dst ? src / n_src : dst / n_dst;
  return last > first ? last - first : 0;
}

/* Bytes of the edge's source, in either direction. */
static double bytes_of(const opi_order_builder *b, uint32_t edge, bool forward, uint32_t slice,
                       uint32_t src, uint32_t dst) {
  const opi_problem *p = b->problem;
  const opi_stage_edge *e = &p->edges[edge];
  const double rows = forward ? rows_of(p, e, src, dst) : rows_of(p, e, dst, src) / p->n_parts;
  const double parts = p->scattered || p->sequence ? b->play->n_tensor : 1;
  const double all =
      b->how->edge_bytes != NULL ? b->how->edge_bytes[edge] : b->how->stages[e->src].send_bytes;
  return all * opi_builder_slice_share(b, slice) * rows / parts;
}

static opipe_status stream_of(opi_order_builder *b, uint32_t edge, bool forward, uint32_t slice,
                              uint32_t src, uint32_t dst, uint32_t *out_stream) {
  const opi_problem *p = b->problem;
  const opi_stage_edge *e = &p->edges[edge];
  const size_t way = ((size_t)edge * 2 + !forward) * p->n_slices + slice;
  uint32_t *at = &b->links.stream_at[(way * p->n_replicas + src) * p->n_replicas + dst];
  if (*at == OPIPE_NONE) {
    *at = b->links.n_streams;
    if (!opi_arena_grow(b->arena, (void **)&b->links.streams, &b->links.room_streams,
                        b->links.n_streams + 1, sizeof *b->links.streams))
      return opi_fail_nomem(b->err, b->links.n_streams * sizeof *b->links.streams, "a simulation");
    b->links.streams[b->links.n_streams++] =
        (opi_play_stream){opi_problem_rank(p, forward ? e->src : e->dst, src),
                          opi_problem_rank(p, forward ? e->dst : e->src, dst),
                          bytes_of(b, edge, forward, slice, src, dst)};
  }
  *out_stream = *at;
  return OPIPE_OK;
}

opipe_status opi_builder_message(opi_order_builder *b, uint32_t item) {
  const opi_do *a = &b->list->items[item];
  uint32_t stream = 0;
  if (a->kind != OPI_DO_SEND_F && a->kind != OPI_DO_SEND_B)
    return OPIPE_OK;
  OPI_TRY(stream_of(b, a->edge, a->kind == OPI_DO_SEND_F, a->slice, a->replica, a->peer, &stream));
  if (!opi_arena_grow(b->arena, (void **)&b->links.message_stream, &b->links.room_messages,
                      b->links.n_messages + 1, sizeof *b->links.message_stream))
    return opi_fail_nomem(b->err, b->links.n_messages * sizeof(uint32_t), "a simulation");
  b->links.message_stream[b->links.n_messages] = stream;
  b->links.message_at[opi_message_of(&b->prover, item)] = b->links.n_messages++;
  return OPIPE_OK;
}
