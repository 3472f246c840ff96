/* SPDX-License-Identifier: Apache-2.0 */
/* Steps around the compute records: loads, receives, sends, posts, drains, reductions, the update.
 *
 *   head posts | LOAD DRAIN.. RECV.. COPY.. COMPUTE STORE SEND.. POST.. REDUCE.. | ... | REDUCE..
 *   DRAIN.. UPDATE
 */
#include <stdlib.h>
#include <string.h>

#include "partition/train/slots.h"

/* Items by key: items[first[k]] .. items[first[k + 1] - 1], in rising order. */
typedef struct bucket {
  uint32_t *first, *items;
} bucket;

typedef struct listing {
  const opi_plan *plan;
  const opi_cut *cut;
  opi_train_lists *lists;
  opi_train_times times;
  opi_train_slots slots;
  opi_arena scratch;
  uint32_t *stream_at;                      /* [(route * R + src) * R + dst] */
  uint32_t *send_key, *recv_key, *post_key; /* [n_messages] action; n_actions + rank: the head */
  bool *post_next;                          /* [n_messages] posted for the next mini-batch */
  uint32_t *drain_key;                      /* action before which it has left; the rank's tail */
  bucket sends, recvs, posts, drains;
  bucket ends; /* by rank, strict: messages that it has an end of, by time */
  uint32_t room_messages, room_streams, room_steps;
  uint32_t n_views;
  const uint32_t *whole_of;     /* [instances] */
  const uint32_t *reduce_after; /* [whole instances] action, OPIPE_NONE: the rank's tail */
  const opi_cut *const *cuts;
  bool reference, strict;
  opipe_error *err;
} listing;

static opipe_status make_bucket(listing *l, const uint32_t *keys, uint32_t n, uint32_t n_keys,
                                bucket *out) {
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

static uint32_t replica_of(const listing *l, uint32_t stage, uint32_t m) {
  return l->times.replica_of[(size_t)stage * l->plan->n_microbatches + m];
}

static opi_occurrence *occurrence(const listing *l, uint32_t cell, uint32_t m) {
  return &l->slots.occurrences[(size_t)cell * l->plan->n_microbatches + m];
}

/* ---- messages ---- */

static opipe_status find_stream(listing *l, uint32_t route, uint32_t m, uint32_t *out_stream) {
  const opi_route *r = &l->cut->routes[route];
  const uint32_t n = l->plan->n_replicas;
  const uint32_t src = replica_of(l, r->src_stage, m), dst = replica_of(l, r->dst_stage, m);
  uint32_t *at = &l->stream_at[((size_t)route * n + src) * n + dst];
  if (*at == OPIPE_NONE) {
    opi_train_lists *lists = l->lists;
    if (!opi_arena_grow(&lists->arena, (void **)&lists->streams, &l->room_streams,
                        lists->n_streams + 1, sizeof *lists->streams))
      return opi_fail_nomem(l->err, sizeof *lists->streams, "a stream");
    *at = lists->n_streams++;
    lists->streams[*at] = (opi_train_stream){.route = route,
                                             .src_replica = src,
                                             .dst_replica = dst,
                                             .src_rank = opi_plan_rank(l->plan, r->src_stage, src),
                                             .dst_rank = opi_plan_rank(l->plan, r->dst_stage, dst)};
  }
  *out_stream = *at;
  return OPIPE_OK;
}

static opipe_status add_message(listing *l, uint32_t route, uint32_t m) {
  opi_train_lists *lists = l->lists;
  uint32_t stream = 0;
  OPI_TRY(find_stream(l, route, m, &stream));
  if (!opi_arena_grow(&lists->arena, (void **)&lists->messages, &l->room_messages,
                      lists->n_messages + 1, sizeof *lists->messages))
    return opi_fail_nomem(l->err, sizeof *lists->messages, "a message");
  const uint32_t n_slots = occurrence(l, l->cut->routes[route].dst_cell, m)->n_slots;
  if (n_slots > lists->streams[stream].depth)
    lists->streams[stream].depth = n_slots;
  lists->messages[lists->n_messages++] =
      (opi_train_message){.route = route,
                          .microbatch = m,
                          .stream = stream,
                          .sequence = lists->streams[stream].n_messages++};
  return OPIPE_OK;
}

/* In the order in which the senders' lists make them; those of the next mini-batch come first. */
static opipe_status list_messages(listing *l) {
  const opi_plan *plan = l->plan;
  for (uint32_t i = 0; i < 2 * plan->n_actions; ++i) {
    const uint32_t a = i % plan->n_actions;
    const opipe_action *action = &plan->actions[a];
    if (opi_action_is_next(action) != (i < plan->n_actions))
      continue;
    const uint32_t phases = opi_program_phases(opi_action_program(action));
    for (uint32_t r = 0; r < l->cut->n_routes; ++r) {
      const opi_route *route = &l->cut->routes[r];
      const uint32_t class = opi_train_class_of(plan, action->microbatch);
      if (route->src_stage != action->stage || (phases & 1u << route->phase) == 0 ||
          route->within || l->cuts[class]->routes[r].empty ||
          occurrence(l, route->dst_cell, action->microbatch)->home != OPIPE_NONE)
        continue;
      OPI_TRY(add_message(l, r, action->microbatch));
    }
  }
  return OPIPE_OK;
}

/* ---- when: keys of messages ---- */

static uint32_t maker_action(const listing *l, uint32_t route, uint32_t m) {
  const opi_route *r = &l->cut->routes[route];
  return l->times
      .phase_action[((size_t)r->src_stage * l->plan->n_microbatches + m) * OPI_PHASES + r->phase];
}

/* A receive is posted after the last use of what had its slot, and not before its stream's earlier
 * ones. */
static void key_post(listing *l, uint32_t i, uint32_t *stream_last) {
  const opi_train_message *message = &l->lists->messages[i];
  const opi_occurrence *dst =
      occurrence(l, l->cut->routes[message->route].dst_cell, message->microbatch);
  uint32_t *last = &stream_last[message->stream];
  if (dst->previous != OPIPE_NONE) {
    const uint32_t after = l->slots.occurrences[dst->previous].last_action;
    if (*last == OPIPE_NONE || after > *last)
      *last = after;
  }
  l->post_key[i] = *last == OPIPE_NONE ? l->plan->n_actions + dst->rank : *last;
}

/* The same round the circle, in positions: the last moment before it is wanted at which its slot is
 * given back; `io_last` carries a stream's order on, also from one mini-batch to the next. */
static void key_post_circle(listing *l, uint32_t i, uint64_t *io_last) {
  const opi_train_message *message = &l->lists->messages[i];
  const opi_occurrence *dst =
      occurrence(l, l->cut->routes[message->route].dst_cell, message->microbatch);
  const uint32_t first = l->plan->rank_first[dst->rank];
  const uint64_t n = l->plan->rank_first[dst->rank + 1] - first;
  const uint64_t given = l->slots.occurrences[dst->previous].t1;
  const uint64_t gap = (dst->t0 % n + n - given % n) % n;
  uint64_t at = dst->t0 > gap ? dst->t0 - gap : 0;
  if (at < *io_last)
    at = *io_last;
  *io_last = at;
  l->post_next[i] = at <= n;
  l->post_key[i] = at == 0 ? l->plan->n_actions + dst->rank : first + (uint32_t)((at - 1) % n);
}

static opipe_status key_posts_circle(listing *l) {
  const opi_train_lists *lists = l->lists;
  uint64_t *last = OPI_ARENA_ARRAY(&l->scratch, uint64_t, lists->n_streams);
  if (last == NULL)
    return opi_fail_nomem(l->err, lists->n_streams * sizeof *last, "messages");
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < lists->n_messages; ++i)
      key_post_circle(l, i, &last[lists->messages[i].stream]);
    for (uint32_t s = 0; s < lists->n_streams && round == 0; ++s) {
      const uint32_t rank = lists->streams[s].dst_rank;
      const uint64_t n = l->plan->rank_first[rank + 1] - l->plan->rank_first[rank];
      last[s] = last[s] > n ? last[s] - n : 0;
    }
  }
  return OPIPE_OK;
}

/* A message must have left its memory before the next occurrence of the slot is made. */
static void key_drains(listing *l) {
  const uint32_t n_mb = l->plan->n_microbatches;
  const size_t n = (size_t)l->cut->n_cells * n_mb;
  for (size_t o = 0; o < n; ++o) {
    const opi_occurrence *next = &l->slots.occurrences[o];
    const uint32_t cell = (uint32_t)(o / n_mb);
    if (next->previous == OPIPE_NONE || l->cut->cells[cell].source != OPI_CELL_MADE)
      continue;
    l->drain_key[next->previous] = next->first_action;
  }
}

static opipe_status key_messages(listing *l) {
  const opi_train_lists *lists = l->lists;
  const opi_plan *plan = l->plan;
  const uint32_t n = lists->n_messages, n_keys = plan->n_actions + plan->n_ranks;
  const size_t n_occurrences = (size_t)l->cut->n_cells * plan->n_microbatches;
  l->send_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->recv_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->post_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  l->drain_key = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n_occurrences);
  l->post_next = OPI_ARENA_ARRAY(&l->scratch, bool, n);
  uint32_t *stream_last = OPI_ARENA_ARRAY(&l->scratch, uint32_t, lists->n_streams);
  uint32_t *drain_of = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n);
  if (l->post_next == NULL || l->send_key == NULL || l->recv_key == NULL || l->post_key == NULL ||
      l->drain_key == NULL || stream_last == NULL || drain_of == NULL)
    return opi_fail_nomem(l->err, n * sizeof(uint32_t), "messages");
  memset(stream_last, 0xff, lists->n_streams * sizeof *stream_last);
  memset(l->drain_key, 0xff, n_occurrences * sizeof *l->drain_key);
  const bool circle = l->times.periodic && !l->reference;
  if (!circle)
    key_drains(l);
  else
    OPI_TRY(key_posts_circle(l));
  for (uint32_t i = 0; i < n; ++i) {
    const opi_train_message *message = &lists->messages[i];
    const opi_route *route = &l->cut->routes[message->route];
    const size_t src = (size_t)route->src_cell * plan->n_microbatches + message->microbatch;
    l->send_key[i] = maker_action(l, message->route, message->microbatch);
    l->recv_key[i] = occurrence(l, route->dst_cell, message->microbatch)->first_action;
    if (!circle)
      key_post(l, i, stream_last);
    drain_of[i] = l->drain_key[src] != OPIPE_NONE
                      ? l->drain_key[src]
                      : plan->n_actions + l->slots.occurrences[src].rank;
  }
  OPI_TRY(make_bucket(l, l->send_key, n, n_keys, &l->sends));
  OPI_TRY(make_bucket(l, l->recv_key, n, n_keys, &l->recvs));
  OPI_TRY(make_bucket(l, l->post_key, n, n_keys, &l->posts));
  return make_bucket(l, drain_of, n, n_keys, &l->drains);
}

/* ---- steps ---- */

static opipe_status add(listing *l, uint32_t kind, const opipe_action *action, uint32_t item) {
  opi_train_lists *lists = l->lists;
  if (!opi_arena_grow(&lists->arena, (void **)&lists->steps, &l->room_steps, lists->n_steps + 1,
                      sizeof *lists->steps))
    return opi_fail_nomem(l->err, sizeof *lists->steps, "a step");
  opi_step step = {.kind = kind, .route = item};
  if (action != NULL) {
    step.stage = action->stage;
    step.replica = action->replica;
    step.microbatch = action->microbatch;
    step.pass = opi_action_program(action);
    step.next = !l->reference && opi_action_is_next(action);
    step.version = action->version;
  }
  lists->steps[lists->n_steps++] = step;
  return OPIPE_OK;
}

static bool is_next(const listing *l, uint32_t kind, uint32_t message) {
  const uint32_t key = kind == OPI_ACT_RECV ? l->recv_key[message] : l->send_key[message];
  return kind == OPI_ACT_POST ? l->post_next[message] : opi_action_is_next(&l->plan->actions[key]);
}

static opipe_status add_messages(listing *l, uint32_t kind, const bucket *b, uint32_t key,
                                 bool next) {
  for (uint32_t i = b->first[key]; i < b->first[key + 1]; ++i) {
    if (is_next(l, kind, b->items[i]) != next)
      continue;
    const opi_train_message *message = &l->lists->messages[b->items[i]];
    const opi_route *route = &l->cut->routes[message->route];
    const bool source = kind == OPI_ACT_SEND || kind == OPI_ACT_DRAIN;
    const uint32_t stage = source ? route->src_stage : route->dst_stage;
    OPI_TRY(add(l, kind, NULL, b->items[i]));
    opi_step *step = &l->lists->steps[l->lists->n_steps - 1];
    step->stage = stage;
    step->microbatch = message->microbatch;
    step->replica = replica_of(l, stage, message->microbatch);
    step->pass = route->phase == OPI_PHASE_F ? OPI_PROGRAM_F : OPI_PROGRAM_I;
    step->next = !l->reference && next;
  }
  return OPIPE_OK;
}

static opipe_status add_bucket(listing *l, uint32_t kind, const bucket *b, uint32_t key) {
  OPI_TRY(add_messages(l, kind, b, key, false));
  return add_messages(l, kind, b, key, true);
}

static bool has_cell(const listing *l, const opipe_action *action, bool output) {
  const uint32_t phases = opi_program_phases(opi_action_program(action));
  for (uint32_t c = l->cut->cell_first[action->stage]; c < l->cut->cell_first[action->stage + 1];
       ++c) {
    const opi_cell *cell = &l->cut->cells[c];
    if (output ? cell->output != OPIPE_NONE && cell->source == OPI_CELL_MADE &&
                     (phases & 1u << cell->phase) != 0
               : cell->source == OPI_CELL_REQUEST && (phases & 1u << OPI_PHASE_F) != 0)
      return true;
  }
  return false;
}

/* Rows from another piece of the instance that cannot be read where they lie. */
static opipe_status add_copies(listing *l, uint32_t a) {
  const opipe_action *action = &l->plan->actions[a];
  const opi_cut *cut = l->cut;
  for (uint32_t c = cut->cell_first[action->stage]; c < cut->cell_first[action->stage + 1]; ++c) {
    const opi_cell *cell = &cut->cells[c];
    const opi_occurrence *o = occurrence(l, c, action->microbatch);
    if (cell->source == OPI_CELL_RECEIVED && cut->routes[cell->route].within &&
        o->home == OPIPE_NONE && o->first_action == a)
      OPI_TRY(add(l, OPI_ACT_COPY, action, cell->route));
  }
  return OPIPE_OK;
}

static opipe_status list_action(listing *l, uint32_t a) {
  const opipe_action *action = &l->plan->actions[a];
  if (has_cell(l, action, false))
    OPI_TRY(add(l, OPI_ACT_LOAD, action, OPIPE_NONE));
  if (!l->reference) {
    if (!l->times.periodic)
      OPI_TRY(add_bucket(l, OPI_ACT_DRAIN, &l->drains, a));
    OPI_TRY(add_bucket(l, OPI_ACT_RECV, &l->recvs, a));
  }
  OPI_TRY(add_copies(l, a));
  OPI_TRY(add(l, OPI_ACT_COMPUTE, action, a));
  if (has_cell(l, action, true))
    OPI_TRY(add(l, OPI_ACT_STORE, action, OPIPE_NONE));
  if (l->strict)
    return OPIPE_OK;                                  /* by time */
  OPI_TRY(add_bucket(l, OPI_ACT_SEND, &l->sends, a)); /* somebody waits for them: first */
  return l->reference ? OPIPE_OK : add_bucket(l, OPI_ACT_POST, &l->posts, a);
}

static opipe_status add_reduce(listing *l, uint32_t stage, uint32_t replica) {
  OPI_TRY(add(l, OPI_ACT_REDUCE, NULL, OPIPE_NONE));
  l->lists->steps[l->lists->n_steps - 1].stage = stage;
  l->lists->steps[l->lists->n_steps - 1].replica = replica;
  return OPIPE_OK;
}

/* Is it the first piece of its instance? */
static bool is_first_piece(const listing *l, uint32_t instance) {
  const uint32_t n = l->plan->n_replicas;
  for (uint32_t v = instance / n / l->n_views * l->n_views; v < instance / n; ++v) {
    if (l->whole_of[v * n + instance % n] == l->whole_of[instance])
      return false;
  }
  return true;
}

/* Sums over replicas that stand behind action `after` on the rank. They run in the background. */
static opipe_status add_reductions(listing *l, uint32_t rank, uint32_t after) {
  const opi_plan *plan = l->plan;
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas; ++i) {
    if (plan->instance_rank[i] == rank && is_first_piece(l, i) &&
        (l->reference ? OPIPE_NONE : l->reduce_after[l->whole_of[i]]) == after)
      OPI_TRY(add_reduce(l, i / plan->n_replicas, i % plan->n_replicas));
  }
  return OPIPE_OK;
}

static opipe_status list_tail(listing *l, uint32_t rank) {
  OPI_TRY(add_reductions(l, rank, OPIPE_NONE));
  if (!l->reference && !l->times.periodic)
    OPI_TRY(add_bucket(l, OPI_ACT_DRAIN, &l->drains, l->plan->n_actions + rank));
  return add(l, OPI_ACT_UPDATE, NULL, OPIPE_NONE);
}

/* ---- rules that match by order ---- */

static uint64_t made_at(const listing *l, uint32_t message) {
  return l->times.end[l->send_key[message]];
}

/* Both ends of a message stand where its maker ends in modelled time, in every list: the lists are
 * parts of one order of all programs and messages, so that ranks agree on the order of their
 * messages, and can wait for each other at every one. */
static opipe_status sort_ends(listing *l) {
  const uint32_t n = l->lists->n_messages, n_ranks = l->plan->n_ranks;
  uint32_t *ranks = OPI_ARENA_ARRAY(&l->scratch, uint32_t, 2 * (size_t)n);
  if (ranks == NULL)
    return opi_fail_nomem(l->err, 2 * (size_t)n * sizeof *ranks, "messages");
  for (uint32_t i = 0; i < n; ++i) {
    const opi_train_stream *stream = &l->lists->streams[l->lists->messages[i].stream];
    ranks[2 * i] = stream->src_rank;
    ranks[2 * i + 1] = stream->dst_rank;
  }
  OPI_TRY(make_bucket(l, ranks, 2 * n, n_ranks, &l->ends));
  opi_timed *order = OPI_ARENA_ARRAY(&l->scratch, opi_timed, 2 * (size_t)n);
  if (order == NULL)
    return opi_fail_nomem(l->err, 2 * (size_t)n * sizeof *order, "messages");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    uint32_t *items = &l->ends.items[l->ends.first[r]];
    const uint32_t n_ends = l->ends.first[r + 1] - l->ends.first[r];
    for (uint32_t i = 0; i < n_ends; ++i)
      order[i] = (opi_timed){made_at(l, items[i] / 2), items[i]};
    qsort(order, n_ends, sizeof *order, opi_by_time);
    for (uint32_t i = 0; i < n_ends; ++i)
      items[i] = order[i].index;
  }
  return OPIPE_OK;
}

/* The rank's ends of messages that were made by then. */
static opipe_status add_ends(listing *l, uint32_t rank, uint64_t until, uint32_t *io_next) {
  for (; *io_next < l->ends.first[rank + 1]; ++*io_next) {
    const uint32_t end = l->ends.items[*io_next], one[2] = {0, 1};
    const bucket only = {(uint32_t *)one, &(uint32_t){end / 2}};
    if (made_at(l, end / 2) > until)
      return OPIPE_OK;
    OPI_TRY(add_messages(l, end % 2 == 0 ? OPI_ACT_SEND : OPI_ACT_POST, &only, 0, false));
  }
  return OPIPE_OK;
}

static opipe_status list_rank(listing *l, uint32_t rank) {
  const opi_plan *plan = l->plan;
  const bool eager = plan->sync != OPIPE_SYNC_END;
  uint32_t next = l->strict ? l->ends.first[rank] : 0;
  if (!l->strict)
    OPI_TRY(add_bucket(l, OPI_ACT_POST, &l->posts, plan->n_actions + rank));
  for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a) {
    if (l->strict)
      OPI_TRY(add_ends(l, rank, l->times.start[a], &next));
    OPI_TRY(list_action(l, a));
    if (l->strict)
      OPI_TRY(add_ends(l, rank, l->times.end[a], &next));
    if (eager)
      OPI_TRY(add_reductions(l, rank, a));
  }
  if (l->strict)
    OPI_TRY(add_ends(l, rank, UINT64_MAX, &next));
  return list_tail(l, rank);
}

static opipe_status list_ranks(listing *l) {
  const opi_plan *plan = l->plan;
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    l->lists->rank_first[rank] = l->lists->n_steps;
    OPI_TRY(list_rank(l, rank));
  }
  l->lists->rank_first[plan->n_ranks] = l->lists->n_steps;
  return OPIPE_OK;
}

/* Every forward, micro-batch after micro-batch; then the backwards of each stage in the order of
 * its own records. */
static opipe_status list_reference(listing *l) {
  const opi_plan *plan = l->plan;
  for (uint32_t m = 0; m < plan->n_microbatches; ++m) {
    for (uint32_t s = 0; s < plan->n_stages; ++s) {
      const uint32_t a = l->times.phase_action[((size_t)s * plan->n_microbatches + m) * OPI_PHASES];
      if (a != OPIPE_NONE)
        OPI_TRY(list_action(l, a));
    }
  }
  for (uint32_t s = plan->n_stages / l->n_views; s-- > 0;) {
    for (uint32_t a = 0; a < plan->n_actions; ++a) {
      if (plan->actions[a].stage / l->n_views == s && plan->actions[a].pass != OPIPE_PASS_FORWARD)
        OPI_TRY(list_action(l, a));
    }
  }
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    OPI_TRY(list_tail(l, rank));
  for (uint32_t rank = 1; rank <= plan->n_ranks; ++rank)
    l->lists->rank_first[rank] = l->lists->n_steps;
  return OPIPE_OK;
}

/* ---- all of it ---- */

static void find_freed(listing *l) {
  const opi_train_lists *lists = l->lists;
  const opi_occurrence *occurrences = l->slots.occurrences;
  const uint32_t n_mb = l->plan->n_microbatches;
  for (size_t i = 0; i < (size_t)l->cut->n_cells * n_mb; ++i) {
    const bool own =
        occurrences[i].home == OPIPE_NONE && l->cut->cells[i / n_mb].output == OPIPE_NONE;
    lists->freed_after[i] = own ? occurrences[i].last_action : OPIPE_NONE;
  }
  for (uint32_t i = 0; i < lists->n_messages; ++i) {
    const opi_train_message *message = &lists->messages[i];
    size_t src = (size_t)l->cut->routes[message->route].src_cell * n_mb + message->microbatch;
    while (occurrences[src].home != OPIPE_NONE)
      src = occurrences[src].home;
    lists->freed_after[src] = OPIPE_NONE;
  }
}

static opipe_status keep_offsets(listing *l) {
  opi_train_lists *lists = l->lists;
  const size_t n = (size_t)l->cut->n_cells * l->plan->n_microbatches;
  lists->offsets = OPI_ARENA_ARRAY(&lists->arena, uint64_t, n);
  lists->freed_after = OPI_ARENA_ARRAY(&lists->arena, uint32_t, n);
  if (lists->offsets == NULL || lists->freed_after == NULL)
    return opi_fail_nomem(l->err, n * sizeof(uint64_t), "offsets");
  for (size_t i = 0; i < n; ++i)
    lists->offsets[i] = l->slots.occurrences[i].offset_bytes;
  find_freed(l);
  lists->replica_of =
      opi_arena_copy(&lists->arena, l->times.replica_of,
                     (size_t)l->plan->n_stages * l->plan->n_microbatches * sizeof(uint32_t));
  return lists->replica_of == NULL ? opi_fail_nomem(l->err, 0, "replicas") : OPIPE_OK;
}

static opipe_status build_all(listing *l, const opi_cut *const *cuts, uint32_t n_classes,
                              const uint32_t *alignment) {
  opi_train_lists *lists = l->lists;
  const opi_plan *plan = l->plan;
  const size_t n_keys = (size_t)l->cut->n_routes * plan->n_replicas * plan->n_replicas;
  lists->n_ranks = plan->n_ranks;
  lists->rank_first = OPI_ARENA_ARRAY(&lists->arena, uint32_t, (size_t)plan->n_ranks + 1);
  lists->boundary_bytes = OPI_ARENA_ARRAY(&lists->arena, uint64_t, plan->n_ranks);
  lists->stash_bytes = OPI_ARENA_ARRAY(&lists->arena, uint64_t, plan->n_ranks);
  l->stream_at = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n_keys);
  if (lists->rank_first == NULL || lists->boundary_bytes == NULL || lists->stash_bytes == NULL ||
      l->stream_at == NULL)
    return opi_fail_nomem(l->err, n_keys * sizeof(uint32_t), "lists");
  memset(l->stream_at, 0xff, n_keys * sizeof(uint32_t));
  OPI_TRY(opi_train_times_build(plan, l->cut, &l->scratch, &l->times, l->err));
  lists->step_ns = (double)l->times.end_ns;
  l->slots = (opi_train_slots){.plan = plan,
                               .cut = l->cut,
                               .cuts = cuts,
                               .times = &l->times,
                               .alignment = alignment,
                               .boundary_bytes = lists->boundary_bytes,
                               .stash_bytes = lists->stash_bytes,
                               .n_classes = n_classes,
                               .reference = l->reference,
                               .err = l->err};
  OPI_TRY(opi_train_slots_build(&l->slots, &l->scratch));
  OPI_TRY(list_messages(l));
  OPI_TRY(key_messages(l));
  if (l->strict)
    OPI_TRY(sort_ends(l));
  OPI_TRY(l->reference ? list_reference(l) : list_ranks(l));
  if (!l->reference)
    OPI_TRY(opi_train_lists_prove(plan, lists, l->cut, lists->arena.allocator, l->err));
  return keep_offsets(l);
}

opipe_status opi_train_lists_build(const opi_plan *plan, const opi_cut *const *cuts,
                                   uint32_t n_classes, const uint32_t *alignment, uint32_t n_views,
                                   const uint32_t *whole_of, const uint32_t *reduce_after,
                                   bool reference, const opipe_allocator *allocator,
                                   opi_train_lists **out_lists, opipe_error *err) {
  opi_train_lists *lists = opi_alloc_zero(allocator, 1, sizeof *lists);
  if (lists == NULL)
    return opi_fail_nomem(err, sizeof *lists, "lists");
  opi_arena_init(&lists->arena, allocator, 0);
  listing l = {.plan = plan,
               .cut = cuts[0],
               .lists = lists,
               .cuts = cuts,
               .n_views = n_views,
               .whole_of = whole_of,
               .reduce_after = reduce_after,
               .reference = reference,
               .strict = !reference && opi_plan_is_strict(plan),
               .err = err};
  opi_arena_init(&l.scratch, allocator, 0);
  const opipe_status status = build_all(&l, cuts, n_classes, alignment);
  opi_arena_release(&l.scratch);
  if (status < 0) {
    opi_train_lists_free(lists);
    return status;
  }
  *out_lists = lists;
  return OPIPE_OK;
}

void opi_train_lists_free(opi_train_lists *lists) {
  if (lists == NULL)
    return;
  const opipe_allocator *allocator = lists->arena.allocator;
  opi_arena_release(&lists->arena);
  opi_free(allocator, lists, sizeof *lists);
}
