/* SPDX-License-Identifier: Apache-2.0 */
/* Steps around the compute records: loads, receives, sends, posts, drains, reductions, the update.
 *
 *   head posts
 *   | DRAIN.. LOAD RELOAD.. RESERVE.. RECV.. COPY.. RETURN.. COMPUTE STORE SEND.. OFFLOAD.. LEAVE..
 *   | (DRAIN.. POST).. REDUCE..
 *   | ...
 *   | REDUCE.. DRAIN.. UPDATE
 *
 * Around a circle neither a POST nor a LOAD needs a DRAIN, and the LOAD comes first.
 */
#include <stdlib.h>
#include <string.h>

#include "partition/lists/offloads.h"
/* ---- steps ---- */

static opipe_status add(opi_listing *l, uint32_t kind, const opipe_action *action, uint32_t item) {
  opi_lists *lists = l->lists;
  if (!opi_arena_grow(&lists->arena, (void **)&lists->steps, &l->rooms.steps, lists->n_steps + 1,
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

static bool is_next(const opi_listing *l, uint32_t kind, uint32_t message) {
  const uint32_t key = kind == OPI_ACT_RECV ? l->recv_key[message] : l->send_key[message];
  return kind == OPI_ACT_POST ? l->post_next[message] : opi_action_is_next(&l->plan->actions[key]);
}

/* The body, counted from its own, whose message a step of a forward list concerns. */
static int32_t lap_of(const opi_listing *l, uint32_t kind, uint32_t message) {
  if (kind == OPI_ACT_POST)
    return l->post_next[message];
  return message >= l->first_credit && kind == OPI_ACT_RECV
             ? l->credits[message - l->first_credit].lap
             : 0;
}

static opipe_status add_message_step(opi_listing *l, uint32_t kind, uint32_t message, bool next) {
  const opi_list_message *m = &l->lists->messages[message];
  const bool source = kind == OPI_ACT_SEND || kind == OPI_ACT_DRAIN || kind == OPI_ACT_RESERVE;
  const opi_route *route = m->route == OPI_ROUTE_CREDIT ? NULL : &l->cut->routes[m->route];
  const opi_list_stream *stream = &l->lists->streams[m->stream];
  const uint32_t stage = source ? stream->src_stage : stream->dst_stage;
  OPI_TRY(add(l, kind, NULL, message));
  opi_step *step = &l->lists->steps[l->lists->n_steps - 1];
  step->stage = stage;
  step->microbatch = m->microbatch;
  step->replica = opi_listing_replica(l, stage, m->microbatch);
  step->pass = route == NULL || route->phase == OPI_PHASE_F ? OPI_PROGRAM_F : OPI_PROGRAM_I;
  step->next = !l->reference && l->plan->trains && next;
  step->lap = !l->plan->trains && !l->reference ? lap_of(l, kind, message) : 0;
  return OPIPE_OK;
}

static opipe_status add_drains(opi_listing *l, uint32_t key, bool next) {
  for (uint32_t i = l->drains.first[key]; i < l->drains.first[key + 1]; ++i) {
    const opi_drain *drain = &l->drain_items[l->drains.items[i]];
    OPI_TRY(add_message_step(l, OPI_ACT_DRAIN, drain->message, next));
    l->lists->steps[l->lists->n_steps - 1].lap = drain->lap;
  }
  return OPIPE_OK;
}

/* Adds an end of a message. At a receive, the previous tensor there has left. */
static opipe_status add_end(opi_listing *l, uint32_t kind, uint32_t message, bool next) {
  const opi_list_message *m = &l->lists->messages[message];
  if (kind == OPI_ACT_POST && !l->circle && m->route != OPI_ROUTE_CREDIT) {
    const size_t dst = (size_t)l->cut->routes[m->route].dst_cell * l->plan->n_microbatches;
    OPI_TRY(add_drains(l, opi_listing_post_key(l, (uint32_t)dst + m->microbatch), false));
  }
  return add_message_step(l, kind, message, next);
}

static opipe_status add_messages(opi_listing *l, uint32_t kind, const opi_bucket *b, uint32_t key,
                                 bool next) {
  for (uint32_t i = b->first[key]; i < b->first[key + 1]; ++i) {
    if (is_next(l, kind, b->items[i]) == next)
      OPI_TRY(add_end(l, kind, b->items[i], next));
  }
  return OPIPE_OK;
}

static opipe_status add_bucket(opi_listing *l, uint32_t kind, const opi_bucket *b, uint32_t key) {
  OPI_TRY(add_messages(l, kind, b, key, false));
  return add_messages(l, kind, b, key, true);
}

/* Adds steps of the messages of an action's maker that are (or are not) written in place. */
static opipe_status add_direct(opi_listing *l, uint32_t kind, uint32_t a, bool direct) {
  const bool next = opi_action_is_next(&l->plan->actions[a]);
  for (uint32_t i = l->sends.first[a]; i < l->sends.first[a + 1]; ++i) {
    if (l->lists->messages[l->sends.items[i]].direct == direct)
      OPI_TRY(add_message_step(l, kind, l->sends.items[i], next));
  }
  return OPIPE_OK;
}

/* A tensor that also goes elsewhere has left before the reader that holds its memory gets it. */
static opipe_status add_copied(opi_listing *l, uint32_t a) {
  for (uint32_t i = l->sends.first[a]; i < l->sends.first[a + 1]; ++i) {
    const uint32_t message = l->sends.items[i];
    const opi_list_message *m = &l->lists->messages[message];
    if (m->route == OPI_ROUTE_CREDIT || m->direct ||
        opi_listing_occurrence(l, l->cut->routes[m->route].src_cell, m->microbatch)->home ==
            OPIPE_NONE)
      continue;
    OPI_TRY(add_message_step(l, OPI_ACT_DRAIN, message, opi_action_is_next(&l->plan->actions[a])));
  }
  return OPIPE_OK;
}

/* Sends go in the stream's own order; if tensors are made in place, copies go first. */
static opipe_status add_sends(opi_listing *l, uint32_t a) {
  if (!l->slots.direct)
    return add_bucket(l, OPI_ACT_SEND, &l->sends, a);
  OPI_TRY(add_direct(l, OPI_ACT_SEND, a, false));
  OPI_TRY(add_copied(l, a));
  return add_direct(l, OPI_ACT_SEND, a, true);
}

static bool has_cell(const opi_listing *l, const opipe_action *action, bool output) {
  const uint32_t phases = opi_program_phases(opi_action_program(action));
  for (uint32_t c = l->cut->cell_first[action->stage]; c < l->cut->cell_first[action->stage + 1];
       ++c) {
    const opi_cell *cell = &l->cut->cells[c];
    if (output
            ? cell->output != OPIPE_NONE && cell->source == OPI_CELL_MADE &&
                  (phases & 1u << cell->phase) != 0
            : cell->source == OPI_CELL_REQUEST && !cell->held && (phases & 1u << OPI_PHASE_F) != 0)
      return true;
  }
  return false;
}

static bool is_listed(const opi_lists *lists, uint32_t meeting) {
  uint32_t i = lists->n_steps;
  while (i > 0 && (lists->steps[i - 1].kind != OPI_ACT_SUM || lists->steps[i - 1].route != meeting))
    --i;
  return i > 0;
}

/* Comes to the sums of an odd place, and waits for their results at once if they leave the rank, or
 * the next record reads them. The reference makes them itself with the first record of any member:
 * the stretches before, of all members, have run, and no member has sent or stored results yet. */
static opipe_status add_sums(opi_listing *l, uint32_t a) {
  const uint32_t meeting = l->groups.meeting_at == NULL ? OPIPE_NONE : l->groups.meeting_at[a];
  const opipe_action *action = &l->plan->actions[a];
  if (meeting == OPIPE_NONE || (l->reference && is_listed(l->lists, meeting)))
    return OPIPE_OK;
  OPI_TRY(add(l, OPI_ACT_SUM, action, meeting));
  return l->reference || l->times.await_at[a] != a ? OPIPE_OK
                                                   : add(l, OPI_ACT_AWAIT, action, meeting);
}

/* Waits for the sums that the record is the first to read. */
static opipe_status add_awaits(opi_listing *l, uint32_t a) {
  const opi_bucket *b = &l->awaits_at;
  if (l->reference || l->groups.meeting_at == NULL)
    return OPIPE_OK;
  for (uint32_t i = b->first[a]; i < b->first[a + 1]; ++i) {
    const uint32_t of = l->groups.awaited[b->items[i]];
    OPI_TRY(add(l, OPI_ACT_AWAIT, &l->plan->actions[of], l->groups.meeting_at[of]));
  }
  return OPIPE_OK;
}

/* Copies rows from another piece of the instance that cannot be read in place. */
static opipe_status add_copies(opi_listing *l, uint32_t a) {
  const opipe_action *action = &l->plan->actions[a];
  const opi_cut *cut = l->cut;
  for (uint32_t c = cut->cell_first[action->stage]; c < cut->cell_first[action->stage + 1]; ++c) {
    const opi_cell *cell = &cut->cells[c];
    const opi_occurrence *o = opi_listing_occurrence(l, c, action->microbatch);
    if (cell->source == OPI_CELL_RECEIVED && cut->routes[cell->route].within &&
        !cut->routes[cell->route].offload && o->home == OPIPE_NONE && o->first_action == a)
      OPI_TRY(add(l, OPI_ACT_COPY, action, cell->route));
  }
  return OPIPE_OK;
}

/* Adds the steps of moves that stand at an action of the rank. */
static opipe_status add_moves(opi_listing *l, uint32_t kind, const opi_bucket *b, uint32_t a) {
  for (uint32_t i = b->first == NULL ? 0 : b->first[a]; b->first != NULL && i < b->first[a + 1];
       ++i) {
    const opi_list_move *move = &l->lists->moves[b->items[i]];
    const bool out = kind == OPI_ACT_OFFLOAD || kind == OPI_ACT_LEAVE;
    OPI_TRY(add(l, kind, &l->plan->actions[out ? move->forward : move->reader], b->items[i]));
  }
  return OPIPE_OK;
}

static opipe_status list_action(opi_listing *l, uint32_t a) {
  const opipe_action *action = &l->plan->actions[a];
  const bool first = !l->reference && !l->circle; /* loaded tensors may take a message's memory */
  OPI_TRY(add_awaits(l, a));
  if (first)
    OPI_TRY(add_drains(l, a, false));
  if (has_cell(l, action, false))
    OPI_TRY(add(l, OPI_ACT_LOAD, action, OPIPE_NONE));
  OPI_TRY(add_moves(l, OPI_ACT_RELOAD, &l->moves.come, a));
  if (!l->reference) {
    if (!first)
      OPI_TRY(add_drains(l, a, opi_action_is_next(action)));
    if (l->slots.direct) /* while the rank waits for its inputs anyway */
      OPI_TRY(add_direct(l, OPI_ACT_RESERVE, a, true));
    OPI_TRY(add_bucket(l, OPI_ACT_RECV, &l->recvs, a));
  }
  OPI_TRY(add_copies(l, a));
  OPI_TRY(add_moves(l, OPI_ACT_RETURN, &l->moves.back, a));
  OPI_TRY(opi_piece_sums(l->plan, action->stage) ? add_sums(l, a)
                                                 : add(l, OPI_ACT_COMPUTE, action, a));
  if (has_cell(l, action, true))
    OPI_TRY(add(l, OPI_ACT_STORE, action, OPIPE_NONE));
  if (!l->strict)             /* else by time */
    OPI_TRY(add_sends(l, a)); /* first, as other ranks wait for them */
  OPI_TRY(add_moves(l, OPI_ACT_OFFLOAD, &l->moves.leave, a));
  OPI_TRY(add_moves(l, OPI_ACT_LEAVE, &l->moves.left, a));
  if (l->strict)
    return OPIPE_OK;
  return l->reference ? OPIPE_OK : add_bucket(l, OPI_ACT_POST, &l->posts, a);
}

/* Adds the rank's sums over replicas that stand there. They run in the background. */
static opipe_status add_reduction(opi_listing *l, const opi_reduction *r) {
  OPI_TRY(add(l, OPI_ACT_REDUCE, NULL, r->meeting));
  l->lists->steps[l->lists->n_steps - 1].stage = r->instance / l->plan->n_replicas;
  l->lists->steps[l->lists->n_steps - 1].replica = r->instance % l->plan->n_replicas;
  return OPIPE_OK;
}

static opipe_status add_reductions(opi_listing *l, uint32_t key) {
  const opi_bucket *b = &l->reductions_at;
  for (uint32_t i = b->first[key]; i < b->first[key + 1]; ++i)
    OPI_TRY(add_reduction(l, &l->reductions[b->items[i]]));
  return OPIPE_OK;
}

static opipe_status list_tail(opi_listing *l, uint32_t rank) {
  if (l->plan->trains)
    OPI_TRY(add_reductions(l, l->plan->n_actions + rank));
  if (!l->reference && !l->circle)
    OPI_TRY(add_drains(l, l->plan->n_actions + rank, false));
  return l->plan->trains ? add(l, OPI_ACT_UPDATE, NULL, OPIPE_NONE) : OPIPE_OK;
}

/* ---- rules that match by order ---- */

/* The rank's place in its ends of messages, and in the sums that stand among them. */
typedef struct places {
  uint32_t end, sum;
} places;

/* The rank's next sum that stands among the messages; NULL: there is none. */
static const opi_reduction *next_sum(const opi_listing *l, uint32_t rank, places *io) {
  const uint32_t n = !opi_listing_one_queue(l) || !l->plan->trains
                         ? 0
                         : l->reductions_at.first[l->plan->n_actions + l->plan->n_ranks + 1];
  while (io->sum < n &&
         (l->reductions[io->sum].rank != rank || l->reductions[io->sum].at == UINT64_MAX))
    ++io->sum;
  return io->sum < n ? &l->reductions[io->sum] : NULL;
}

/* Adds the rank's ends of messages made by then, and sums of by then (`before`: of before), in one
 * order with other ranks': by time, messages first. */
static opipe_status add_ends(opi_listing *l, uint32_t rank, uint64_t until, bool before,
                             places *io) {
  for (;;) {
    const bool any = io->end < l->ends.first[rank + 1];
    const uint32_t end = any ? l->ends.items[io->end] : 0, message = end / 2;
    const uint64_t made = any ? opi_listing_made_at(l, message) : UINT64_MAX;
    const opi_reduction *sum = next_sum(l, rank, io);
    const bool is_due = sum != NULL && (before ? sum->at < until : sum->at <= until);
    if (is_due && (!any || sum->at < made)) {
      OPI_TRY(add_reduction(l, sum));
      ++io->sum;
      continue;
    }
    if (!any || made > until)
      return OPIPE_OK;
    const uint32_t kind = end % 2 == 0 ? OPI_ACT_SEND : OPI_ACT_POST;
    OPI_TRY(add_end(l, kind, message, is_next(l, kind, message)));
    ++io->end;
  }
}

/* Notes the first steps of a body's requests up to `position`. A rank may take no part in some. */
static void note_requests(opi_listing *l, uint32_t rank, uint32_t position, uint32_t *io_noted) {
  for (; *io_noted < position; ++*io_noted)
    l->lists->request_first[rank * l->lists->n_positions + *io_noted + 1] = l->lists->n_steps;
}

/* Groups operations that directly follow each other into batches that start together, as large as
 * the transport allows. */
static void mark_batches(opi_listing *l, uint32_t rank) {
  opi_step *steps = l->lists->steps;
  uint32_t first = l->lists->rank_first[rank];
  for (uint32_t i = first; i <= l->lists->n_steps; ++i) {
    const bool end =
        i < l->lists->n_steps && (steps[i].kind == OPI_ACT_POST || steps[i].kind == OPI_ACT_SEND);
    if (end && i - first < OPIPE_BATCH_MOST)
      continue;
    if (i - first > 1)
      steps[first].batch = i - first;
    first = end ? i : i + 1;
  }
}

static opipe_status list_rank(opi_listing *l, uint32_t rank) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t n_positions = l->lists->n_positions, each = plan->n_microbatches / n_positions;
  places next = {.end = l->strict ? l->ends.first[rank] : 0};
  uint32_t noted = 0;
  if (!l->strict)
    OPI_TRY(add_bucket(l, OPI_ACT_POST, &l->posts, plan->n_actions + rank));
  for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a) {
    if (n_positions > 1)
      note_requests(l, rank, plan->actions[a].microbatch / each, &noted);
    if (l->strict)
      OPI_TRY(add_ends(l, rank, l->times.clock_start[a], true, &next));
    OPI_TRY(list_action(l, a));
    if (l->strict)
      OPI_TRY(add_ends(l, rank, l->times.clock_end[a], false, &next));
    if (plan->trains)
      OPI_TRY(add_reductions(l, a));
  }
  note_requests(l, rank, n_positions - 1, &noted);
  if (l->strict)
    OPI_TRY(add_ends(l, rank, UINT64_MAX, false, &next));
  return list_tail(l, rank);
}

/* Copies of the pipeline that take requests in turn: ranks of the other copies take no part. */
static opipe_status count_taking(opi_listing *l) {
  const uint32_t n = l->lists->n_positions, *first = l->lists->request_first;
  uint32_t *taking = OPI_ARENA_ARRAY(&l->lists->arena, uint32_t, n);
  bool all = true;
  if (taking == NULL)
    return opi_fail_nomem(l->err, n * sizeof *taking, "lists");
  for (uint32_t i = 0; i < l->plan->n_ranks * n; ++i) {
    taking[i % n] += first[i] != first[i + 1];
    all = all && first[i] != first[i + 1];
  }
  l->lists->n_taking = all ? NULL : taking;
  return OPIPE_OK;
}

static opipe_status list_ranks(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  const uint32_t n = l->lists->n_positions;
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    l->lists->rank_first[rank] = l->lists->n_steps;
    l->lists->request_first[rank * n] = l->lists->n_steps;
    OPI_TRY(list_rank(l, rank));
    if (l->strict && plan->whole->link.rule == OPIPE_RULE_GROUPED)
      mark_batches(l, rank);
  }
  l->lists->rank_first[plan->n_ranks] = l->lists->n_steps;
  l->lists->request_first[plan->n_ranks * n] = l->lists->n_steps;
  return l->plan->trains ? OPIPE_OK : count_taking(l);
}

/* Lists every forward, micro-batch by micro-batch; then the backwards, a rank's in the order of its
 * records, which is the order in which it accumulates gradients. */
static opipe_status list_reference(opi_listing *l) {
  const opi_piece_plan *plan = l->plan;
  for (uint32_t m = 0; m < plan->n_microbatches; ++m) {
    for (uint32_t s = 0; s < plan->n_stages; ++s) {
      const uint32_t a = l->times.phase_action[((size_t)s * plan->n_microbatches + m) * OPI_PHASES];
      if (a != OPIPE_NONE)
        OPI_TRY(list_action(l, a));
    }
  }
  for (uint32_t i = 0; plan->trains && i < plan->n_actions; ++i) {
    if (plan->actions[l->times.sequence[i]].pass != OPIPE_PASS_FORWARD)
      OPI_TRY(list_action(l, l->times.sequence[i]));
  }
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    OPI_TRY(list_tail(l, rank));
  for (uint32_t rank = 1; rank <= plan->n_ranks; ++rank)
    l->lists->rank_first[rank] = l->lists->n_steps;
  return OPIPE_OK;
}

/* ---- all of it ---- */

static void find_freed(opi_listing *l) {
  const opi_lists *lists = l->lists;
  const opi_occurrence *occurrences = l->slots.occurrences;
  const uint32_t n_mb = l->plan->n_microbatches;
  for (size_t i = 0; i < (size_t)l->cut->n_cells * n_mb; ++i) {
    const opi_cell *cell = &l->cut->cells[i / n_mb];
    const bool own = occurrences[i].home == OPIPE_NONE && cell->output == OPIPE_NONE && !cell->held;
    lists->freed_after[i] = own ? occurrences[i].last_action : OPIPE_NONE;
  }
  for (uint32_t i = 0; i < l->first_credit; ++i) {
    const opi_list_message *message = &lists->messages[i];
    size_t src = (size_t)l->cut->routes[message->route].src_cell * n_mb + message->microbatch;
    if (message->direct)
      continue;
    while (occurrences[src].home != OPIPE_NONE)
      src = occurrences[src].home;
    lists->freed_after[src] = OPIPE_NONE;
  }
  for (uint32_t i = 0; i < lists->n_moves; ++i) { /* copies run beside programs */
    for (uint32_t k = 0; k < lists->moves[i].n; ++k) {
      const uint32_t cell = l->cut->routes[lists->moved[lists->moves[i].first + k].route].src_cell;
      size_t src = (size_t)cell * n_mb + lists->moves[i].microbatch;
      while (occurrences[src].home != OPIPE_NONE)
        src = occurrences[src].home;
      lists->freed_after[src] = OPIPE_NONE;
    }
  }
}

static opipe_status keep_offsets(opi_listing *l) {
  opi_lists *lists = l->lists;
  const size_t n = (size_t)l->cut->n_cells * l->plan->n_microbatches;
  lists->offsets = OPI_ARENA_ARRAY(&lists->arena, uint64_t, n);
  lists->freed_after = OPI_ARENA_ARRAY(&lists->arena, uint32_t, n);
  lists->lies_on = OPI_ARENA_ARRAY(&lists->arena, uint32_t, n);
  if (lists->offsets == NULL || lists->freed_after == NULL || lists->lies_on == NULL)
    return opi_fail_nomem(l->err, n * sizeof(uint64_t), "offsets");
  for (size_t i = 0; i < n; ++i) {
    lists->offsets[i] = l->slots.occurrences[i].offset_bytes;
    lists->lies_on[i] = l->slots.occurrences[i].lies_on;
  }
  find_freed(l);
  lists->replica_of =
      opi_arena_copy(&lists->arena, l->times.replica_of,
                     (size_t)l->plan->n_stages * l->plan->n_microbatches * sizeof(uint32_t));
  return lists->replica_of == NULL ? opi_fail_nomem(l->err, 0, "replicas") : OPIPE_OK;
}

static void count_copies(opi_listing *l) {
  opi_lists *lists = l->lists;
  for (uint32_t i = 0; i < l->first_credit; ++i) {
    const opi_list_message *m = &lists->messages[i];
    lists->n_made_in_place += m->direct;
    if (m->direct)
      continue;
    ++lists->n_copied;
    lists->copied_bytes +=
        l->cuts[opi_row_class_of(l->plan->whole, m->microbatch)]->routes[m->route].n_bytes;
  }
}

/* Counts the receives of a stream that the lists hold posted at once. */
static opipe_status count_posted(opi_listing *l) {
  opi_lists *lists = l->lists;
  uint32_t *posted = OPI_ARENA_ARRAY(&l->scratch, uint32_t, lists->n_streams);
  if (posted == NULL)
    return opi_fail_nomem(l->err, lists->n_streams * sizeof *posted, "lists");
  for (uint32_t i = 0; i < lists->n_steps; ++i) {
    const opi_step *step = &lists->steps[i];
    if (step->kind != OPI_ACT_POST && step->kind != OPI_ACT_RECV)
      continue;
    const uint32_t stream = lists->messages[step->route].stream;
    if (lists->streams[stream].route == OPI_ROUTE_CREDIT) /* as many as may be in flight */
      continue;
    posted[stream] += step->kind == OPI_ACT_POST ? 1u : UINT32_MAX;
    if (step->kind == OPI_ACT_POST && posted[stream] > lists->streams[stream].depth)
      lists->streams[stream].depth = posted[stream];
  }
  return OPIPE_OK;
}

/* Whether tensors are made where they are read. Not in double-buffered bodies, which know no moment
 * at which a reader's place is free, nor if messages are matched by order, where each must meet its
 * other end. */
static bool is_direct(const opi_listing *l) {
  return !l->reference && !l->strict && opi_plan_is_direct(l->plan->whole);
}

static opipe_status build_all(opi_listing *l, uint32_t n_classes, const uint32_t *alignment) {
  opi_lists *lists = l->lists;
  const opi_piece_plan *plan = l->plan;
  const size_t n_keys = (size_t)l->cut->n_routes * plan->n_replicas * plan->n_replicas;
  lists->n_ranks = plan->n_ranks;
  lists->n_positions = plan->n_positions == 0 ? 1 : plan->n_positions;
  lists->rank_first = OPI_ARENA_ARRAY(&lists->arena, uint32_t, (size_t)plan->n_ranks + 1);
  lists->request_first =
      OPI_ARENA_ARRAY(&lists->arena, uint32_t, (size_t)plan->n_ranks * lists->n_positions + 1);
  lists->boundary_bytes = OPI_ARENA_ARRAY(&lists->arena, uint64_t, plan->n_ranks);
  lists->stash_bytes = OPI_ARENA_ARRAY(&lists->arena, uint64_t, plan->n_ranks);
  l->stream_at = OPI_ARENA_ARRAY(&l->scratch, uint32_t, n_keys);
  if (lists->rank_first == NULL || lists->request_first == NULL || lists->boundary_bytes == NULL ||
      lists->stash_bytes == NULL || l->stream_at == NULL)
    return opi_fail_nomem(l->err, n_keys * sizeof(uint32_t), "lists");
  memset(l->stream_at, 0xff, n_keys * sizeof(uint32_t));
  OPI_TRY(opi_times_build(l->plan, l->cut, &l->scratch, &l->times, l->err));
  l->circle = l->times.periodic && !l->reference;
  l->slots = (opi_slots){.plan = plan,
                         .cut = l->cut,
                         .cuts = l->cuts,
                         .times = &l->times,
                         .alignment = alignment,
                         .boundary_bytes = lists->boundary_bytes,
                         .stash_bytes = lists->stash_bytes,
                         .n_classes = n_classes,
                         .reference = l->reference,
                         .strict = l->strict,
                         .direct = is_direct(l),
                         .err = l->err};
  OPI_TRY(opi_slots_build(&l->slots, &l->scratch));
  OPI_TRY(opi_listing_moves(l));
  OPI_TRY(opi_listing_messages(l));
  count_copies(l);
  OPI_TRY(opi_listing_keys(l));
  OPI_TRY(opi_listing_group_sums(l));
  OPI_TRY(opi_listing_sums(l));
  if (l->strict)
    OPI_TRY(opi_listing_ends(l));
  OPI_TRY(l->reference ? list_reference(l) : list_ranks(l));
  if (!l->circle && !l->reference)
    OPI_TRY(count_posted(l));
  if (!l->reference)
    OPI_TRY(opi_lists_prove(l->plan, lists, l->cut, lists->arena.allocator, l->err));
  return keep_offsets(l);
}

opipe_status opi_lists_build(const opi_cut_model *model, const uint32_t *alignment, bool reference,
                             const opipe_allocator *allocator, opi_lists **out_lists,
                             opipe_error *err) {
  const opi_piece_plan *plan = &model->piece_plan;
  opi_lists *lists = opi_alloc_zero(allocator, 1, sizeof *lists);
  if (lists == NULL)
    return opi_fail_nomem(err, sizeof *lists, "lists");
  opi_arena_init(&lists->arena, allocator, 0);
  opi_listing l = {.plan = plan,
                   .cut = model->cuts[0],
                   .lists = lists,
                   .cuts = (const opi_cut *const *)model->cuts,
                   .reference = reference,
                   .strict = !reference && opi_plan_is_strict(plan->whole),
                   .err = err};
  opi_arena_init(&l.scratch, allocator, 0);
  const opipe_status status = build_all(&l, model->n_classes, alignment);
  opi_arena_release(&l.scratch);
  if (status < 0) {
    opi_lists_free(lists);
    return status;
  }
  *out_lists = lists;
  return OPIPE_OK;
}

void opi_lists_free(opi_lists *lists) {
  if (lists == NULL)
    return;
  const opipe_allocator *allocator = lists->arena.allocator;
  opi_arena_release(&lists->arena);
  opi_free(allocator, lists, sizeof *lists);
}
