/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ranks, and the places of both ends in the lists. */
#include "partition/lists/listing.h"

#include <stdlib.h>
#include <string.h>

opipe_status opi_bucket_make(opi_listing *l, const uint32_t *keys, uint32_t n, uint32_t n_keys,
                             opi_bucket *out) {
  out->first = OPI_ARENA_ARRAY(&l->scratch, uint32_t, (size_t)n_keys + 1);
  out->items = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  uint32_t *at = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n_keys);
  if (out->first == NULL || out->items == NULL || at == NULL)
    return opi_fail_nomem(l->err, n_keys * sizeof(uint32_t), "steps");
  for (uint32_t i = 0; i < n; ++i)
    ++out->first[keys[i] + 1];
  for (uint32_t k = 0; k < n_keys; ++k) {
    out->first[k + 1] += out->first[k];
    at[k] = out->first[k];
  }
  for (uint32_t i = 0; i < n; ++i)
    out->items[at[keys[i]]++] = i;
  return OPIPE_OK;
}

/* ---- messages ---- */

static opipe_status add_stream(opi_listing *l, const opi_list_stream *stream,
                               uint32_t *out_stream) {
  opi_lists *lists = l->lists;
  if (!opi_arena_grow(&lists->arena, (void **)&lists->streams, &l->rooms.streams,
                      lists->n_streams + 1, sizeof *lists->streams))
    return opi_fail_nomem(l->err, sizeof *lists->streams, "a stream");
  *out_stream = lists->n_streams++;
  lists->streams[*out_stream] = *stream;
  return OPIPE_OK;
}

static opipe_status find_stream(opi_listing *l, uint32_t route, uint32_t m, uint32_t *out_stream) {
  const opi_route *r = &l->cut->routes[route];
  const uint32_t n = l->plan->n_replicas;
  const uint32_t src = opi_listing_replica(l, r->src_stage, m),
                 dst = opi_listing_replica(l, r->dst_stage, m);
  uint32_t *at = &l->stream_at[((size_t)route * n + src) * n + dst];
  const opi_list_stream stream = {.route = route,
                                  .src_stage = r->src_stage,
                                  .dst_stage = r->dst_stage,
                                  .src_replica = src,
                                  .dst_replica = dst,
                                  .src_rank = opi_piece_rank(l->plan, r->src_stage, src),
                                  .dst_rank = opi_piece_rank(l->plan, r->dst_stage, dst)};
  if (*at == OPIPE_NONE)
    OPI_TRY(add_stream(l, &stream, at));
  *out_stream = *at;
  return OPIPE_OK;
}

static opipe_status push_message(opi_listing *l, uint32_t route, uint32_t m, uint32_t stream,
                                 bool direct) {
  opi_lists *lists = l->lists;
  if (!opi_arena_grow(&lists->arena, (void **)&lists->messages, &l->rooms.messages,
                      lists->n_messages + 1, sizeof *lists->messages))
    return opi_fail_nomem(l->err, sizeof *lists->messages, "a message");
  lists->messages[lists->n_messages++] =
      (opi_list_message){.route = route,
                         .microbatch = m,
                         .stream = stream,
                         .sequence = lists->streams[stream].n_messages++,
                         .direct = direct};
  return OPIPE_OK;
}

static opipe_status add_message(opi_listing *l, uint32_t route, uint32_t m) {
  const opi_route *r = &l->cut->routes[route];
  const opi_occurrence *dst = opi_listing_occurrence(l, r->dst_cell, m);
  const uint32_t home = opi_listing_occurrence(l, r->src_cell, m)->home;
  uint32_t stream = 0;
  OPI_TRY(find_stream(l, route, m, &stream));
  if (dst->n_slots > l->lists->streams[stream].depth)
    l->lists->streams[stream].depth = dst->n_slots;
  return push_message(l, route, m, stream,
                      home != OPIPE_NONE && dst == &l->slots.occurrences[home]);
}

/* By the order in which the senders' lists make them; those of the next mini-batch come first. */
static opipe_status list_messages(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  for (uint32_t i = 0; i < 2 * plan->n_actions; ++i) {
    const uint32_t a = i % plan->n_actions;
    const opipe_action *action = &plan->actions[a];
    if (opi_action_is_next(action) != (i < plan->n_actions))
      continue;
    const uint32_t phases = opi_program_phases(opi_action_program(action));
    const uint32_t class = opi_row_class_of(plan->whole, action->microbatch);
    for (uint32_t k = l->routes.first[action->stage]; k < l->routes.first[action->stage + 1]; ++k) {
      const uint32_t r = l->routes.items[k];
      const opi_route *route = &l->cut->routes[r];
      if ((phases & 1u << route->phase) == 0 || route->within || l->cuts[class]->routes[r].empty ||
          opi_listing_occurrence(l, route->dst_cell, action->microbatch)->home != OPIPE_NONE)
        continue;
      OPI_TRY(add_message(l, r, action->microbatch));
    }
  }
  return OPIPE_OK;
}

static opipe_status sort_routes(opi_listing *l) {
  const uint32_t n = l->cut->n_routes;
  uint32_t *stages = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  if (stages == NULL)
    return opi_fail_nomem(l->err, n * sizeof *stages, "routes");
  for (uint32_t r = 0; r < n; ++r)
    stages[r] = l->cut->routes[r].src_stage;
  return opi_bucket_make(l, stages, n, l->plan->n_stages, &l->routes);
}

/* ---- credits: the most micro-batches between the first stage and the last ---- */

/* The k-th credit is given after the k-th end, and the (k + in_flight)-th start waits for it; its
 * receive is posted with the k-th start. */
static opipe_status add_credits(opi_listing *l, const uint32_t *starts, const uint32_t *ends,
                                uint32_t n, uint32_t stream) {
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t taker = k + l->plan->whole->in_flight,
                   i = l->lists->n_messages - l->first_credit;
    if (!opi_arena_grow(&l->scratch, (void **)&l->credits, &l->rooms.credits, i + 1,
                        sizeof *l->credits))
      return opi_fail_nomem(l->err, sizeof *l->credits, "credits");
    l->credits[i] = (opi_credit){.send = ends[k],
                                 .post = starts[k],
                                 .recv = starts[taker % n],
                                 .lap = -(int32_t)(taker / n)};
    OPI_TRY(push_message(l, OPI_ROUTE_CREDIT, l->plan->actions[ends[k]].microbatch, stream, false));
  }
  return OPIPE_OK;
}

static opipe_status credit_pair(opi_listing *l, const opi_credit_pair *pair, uint32_t *starts,
                                uint32_t *ends) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t first = pair->first_replica, last = pair->last_replica;
  const opi_list_stream stream = {.route = OPI_ROUTE_CREDIT,
                                  .src_stage = pair->last,
                                  .dst_stage = pair->first,
                                  .src_replica = last,
                                  .dst_replica = first,
                                  .src_rank = opi_piece_rank(plan, pair->last, last),
                                  .dst_rank = opi_piece_rank(plan, pair->first, first),
                                  .depth = plan->whole->in_flight};
  uint32_t index = 0;
  if (stream.src_rank == OPIPE_NONE || stream.dst_rank == OPIPE_NONE ||
      stream.src_rank == stream.dst_rank)
    return OPIPE_OK;
  const uint32_t n =
      opi_passes_find(plan, l->times.replica_of, pair->first, first, pair->last, last, starts);
  if (n == 0 ||
      opi_passes_find(plan, l->times.replica_of, pair->last, last, pair->first, first, ends) != n)
    return OPIPE_OK;
  OPI_TRY(add_stream(l, &stream, &index));
  return add_credits(l, starts, ends, n, index);
}

static opipe_status list_credits(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t n = opi_credit_pairs(plan);
  l->first_credit = l->lists->n_messages;
  if (l->plan->trains || l->reference || plan->whole->in_flight == 0)
    return OPIPE_OK;
  uint32_t *starts = OPI_ARENA_ARRAY(&l->scratch, uint32_t, plan->n_microbatches);
  uint32_t *ends = OPI_ARENA_ARRAY(&l->scratch, uint32_t, plan->n_microbatches);
  if (starts == NULL || ends == NULL)
    return opi_fail_nomem(l->err, plan->n_microbatches * sizeof *ends, "credits");
  for (uint32_t i = 0; i < n; ++i) {
    const opi_credit_pair pair = opi_credit_pair_at(plan, i);
    OPI_TRY(credit_pair(l, &pair, starts, ends));
  }
  return OPIPE_OK;
}

/* ---- keys of messages: their places ---- */

static uint32_t maker_action(const opi_listing *l, uint32_t route, uint32_t m) {
  const opi_route *r = &l->cut->routes[route];
  return l->times
      .phase_action[((size_t)r->src_stage * l->plan->n_microbatches + m) * OPI_PHASES + r->phase];
}

/* A receive is posted after the last use of its bytes by their previous owner, and not before
 * earlier receives of its stream. */
static void key_post(opi_listing *l, uint32_t i, uint32_t *last) {
  const opi_list_message *message = &l->lists->messages[i];
  const opi_occurrence *dst =
      opi_listing_occurrence(l, l->cut->routes[message->route].dst_cell, message->microbatch);
  for (uint32_t k = dst->before; k != OPIPE_NONE; k = l->slots.before[k].next) {
    const opi_occurrence *had = &l->slots.occurrences[l->slots.before[k].occurrence];
    const uint32_t after = l->plan->rank_first[dst->rank] + had->to;
    if (*last == OPIPE_NONE || after > *last)
      *last = after;
  }
  l->post_key[i] = *last == OPIPE_NONE ? l->plan->n_actions + dst->rank : *last;
}

/* The same around the circle, in positions: the last moment, before the message is needed, at which
 * its slot is released. `io_last` carries a stream's order on, also from one mini-batch to the
 * next. */
static void key_post_circle(opi_listing *l, uint32_t i, uint64_t *io_last) {
  const opi_list_message *message = &l->lists->messages[i];
  const opi_occurrence *dst =
      opi_listing_occurrence(l, l->cut->routes[message->route].dst_cell, message->microbatch);
  const uint32_t first = l->plan->rank_first[dst->rank];
  const uint64_t n = l->plan->rank_first[dst->rank + 1] - first;
  const uint64_t given = l->slots.occurrences[dst->previous].t1;
  const uint64_t gap = (dst->t0 % n + n - given % n) % n;
  uint64_t at = dst->t0 > gap ? dst->t0 - gap : 0;
  if (at == 0 && !l->plan->trains) /* after a record: an arriving request wakes no rank for it */
    at = 1;
  if (at < *io_last)
    at = *io_last;
  *io_last = at;
  l->post_next[i] = at <= n;
  l->post_key[i] = at == 0 ? l->plan->n_actions + dst->rank : first + (uint32_t)((at - 1) % n);
}

static opipe_status key_posts_circle(opi_listing *l) {
  const opi_lists *lists = l->lists;
  uint64_t *last = OPI_ARENA_ARRAY(&l->scratch, uint64_t, lists->n_streams);
  if (last == NULL)
    return opi_fail_nomem(l->err, lists->n_streams * sizeof *last, "messages");
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < l->first_credit; ++i)
      key_post_circle(l, i, &last[lists->messages[i].stream]);
    for (uint32_t s = 0; s < lists->n_streams && round == 0; ++s) {
      const uint32_t rank = lists->streams[s].dst_rank;
      const uint64_t n = l->plan->rank_first[rank + 1] - l->plan->rank_first[rank];
      last[s] = last[s] > n ? last[s] - n : 0;
    }
  }
  return OPIPE_OK;
}

static void key_message(opi_listing *l, uint32_t i, uint32_t *stream_last) {
  const opi_piece_plan *plan = l->plan;
  const opi_list_message *message = &l->lists->messages[i];
  if (i >= l->first_credit) {
    const opi_credit *c = &l->credits[i - l->first_credit];
    l->send_key[i] = c->send;
    l->recv_key[i] = c->recv;
    l->post_key[i] = c->post;
    return;
  }
  const opi_route *route = &l->cut->routes[message->route];
  l->send_key[i] = maker_action(l, message->route, message->microbatch);
  l->recv_key[i] = opi_listing_occurrence(l, route->dst_cell, message->microbatch)->first_action;
  if (!l->circle) {
    key_post(l, i, stream_last);
  } else if (l->strict) { /* in the body that sends it */
    l->post_key[i] = l->send_key[i];
    l->post_next[i] = opi_action_is_next(&plan->actions[l->send_key[i]]);
  }
}

opipe_status opi_listing_keys(opi_listing *l) {
  const opi_lists *lists = l->lists;
  const opi_piece_plan *plan = l->plan;
  const uint32_t n = lists->n_messages, n_keys = plan->n_actions + plan->n_ranks;
  l->send_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->recv_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->post_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->post_next = OPI_ARENA_ARRAY(&l->scratch, bool, n);
  uint32_t *stream_last = OPI_ARENA_ARRAY(&l->scratch, uint32_t, lists->n_streams);
  if (l->post_next == NULL || l->send_key == NULL || l->recv_key == NULL || l->post_key == NULL ||
      stream_last == NULL)
    return opi_fail_nomem(l->err, n * sizeof(uint32_t), "messages");
  memset(stream_last, 0xff, lists->n_streams * sizeof *stream_last);
  if (l->circle && !l->strict)
    OPI_TRY(key_posts_circle(l));
  for (uint32_t i = 0; i < n; ++i)
    key_message(l, i, &stream_last[lists->messages[i].stream]);
  OPI_TRY(opi_bucket_make(l, l->send_key, n, n_keys, &l->sends));
  OPI_TRY(opi_bucket_make(l, l->recv_key, n, n_keys, &l->recvs));
  OPI_TRY(opi_bucket_make(l, l->post_key, n, n_keys, &l->posts));
  return opi_listing_drains(l);
}

/* ---- rules that match by order ---- */

/* Both ends of a message stand at the maker's modelled end in every list. The lists are then parts
 * of one order of all programs and messages, so ranks agree on the order of their messages and can
 * wait for each other at every one. */
opipe_status opi_listing_ends(opi_listing *l) {
  const uint32_t n = l->lists->n_messages, n_ranks = l->plan->n_ranks;
  uint32_t *ranks = OPI_ARENA_ARRAY(&l->scratch, uint32_t, 2 * (size_t)n);
  if (ranks == NULL)
    return opi_fail_nomem(l->err, 2 * (size_t)n * sizeof *ranks, "messages");
  for (uint32_t i = 0; i < n; ++i) {
    const opi_list_stream *stream = &l->lists->streams[l->lists->messages[i].stream];
    ranks[2 * i] = stream->src_rank;
    ranks[2 * i + 1] = stream->dst_rank;
  }
  OPI_TRY(opi_bucket_make(l, ranks, 2 * n, n_ranks, &l->ends));
  opi_timed *order = OPI_ARENA_ARRAY(&l->scratch, opi_timed, 2 * (size_t)n);
  if (order == NULL)
    return opi_fail_nomem(l->err, 2 * (size_t)n * sizeof *order, "messages");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    uint32_t *items = &l->ends.items[l->ends.first[r]];
    const uint32_t n_ends = l->ends.first[r + 1] - l->ends.first[r];
    for (uint32_t i = 0; i < n_ends; ++i)
      order[i] = (opi_timed){opi_listing_made_at(l, items[i] / 2), items[i]};
    qsort(order, n_ends, sizeof *order, opi_by_time);
    for (uint32_t i = 0; i < n_ends; ++i)
      items[i] = order[i].index;
  }
  return OPIPE_OK;
}

opipe_status opi_listing_messages(opi_listing *l) {
  OPI_TRY(sort_routes(l));
  OPI_TRY(list_messages(l));
  return list_credits(l);
}
