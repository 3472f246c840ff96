/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's list of one mini-batch: each step happens or answers OPIPE_PENDING and is tried again. A
 * send whose receive does not stand yet waits aside, so that the rank goes on; it is tried after
 * every program and whenever the rank is woken, and so are sums over replicas moved on. Evaluate
 * runs the forward part of the same list.
 *
 * Whatever goes wrong in a program ends the session: gradients that miss a micro-batch are of no
 * use.
 */
#include <string.h>

#include "runtime/train/state.h"

static bool in_evaluate(const opi_step *step) {
  return step->kind != OPI_ACT_REDUCE && step->kind != OPI_ACT_UPDATE &&
         step->pass == OPI_PROGRAM_F;
}

/* ---- messages ---- */

/* How far a step's mini-batch is beyond the counted ones, in messages. */
static uint64_t beyond(const opi_train_shape *t, const opi_train_place *place,
                       const opi_step *step) {
  const opi_train_message *m = &t->lists->messages[step->route];
  const bool later = place->item.kind == OPI_ITEM_ALL && step->next != 0;
  return m->sequence + (later ? (uint64_t)t->lists->streams[m->stream].n_messages : 0);
}

static opipe_status post(opi_train_shape *t, const opi_train_place *place, const opi_step *step,
                         opipe_error *err) {
  const opi_train_message *m = &t->lists->messages[step->route];
  const opi_train_wire *w = &t->wires[m->stream];
  const opipe_region region = opi_train_target(t, m->route, m->microbatch);
  return OPI_POLL_WIRE(t->session, recv, err, w->dst, w->dst_base + beyond(t, place, step), &region,
                       NULL);
}

static opipe_status receive(opi_train_shape *t, const opi_train_place *place, const opi_step *step,
                            opipe_error *err) {
  const opi_train_message *m = &t->lists->messages[step->route];
  const opi_train_wire *w = &t->wires[m->stream];
  return OPI_POLL_WIRE(t->session, test, err, w->dst, w->dst_base + beyond(t, place, step));
}

static opipe_region source_of(const opi_train_shape *t, uint32_t message) {
  const opi_train_message *m = &t->lists->messages[message];
  return opi_train_source(t, m->route, m->microbatch);
}

static opipe_status deliver(opi_train_shape *t, opi_train_waiting *waiting, opipe_error *err) {
  const opi_train_wire *w = &t->wires[t->lists->messages[waiting->message].stream];
  const opipe_region region = source_of(t, waiting->message);
  if (!waiting->sent) {
    const opipe_status status =
        OPI_POLL_WIRE(t->session, send, err, w->src, waiting->number, &region, NULL, NULL);
    if (status != OPIPE_OK)
      return status;
    waiting->sent = true;
  }
  return OPI_POLL_WIRE(t->session, test, err, w->src, waiting->number);
}

/* Tries what waits, the messages of one stream in their order. */
static opipe_status flush_waiting(opi_train_shape *t, opi_train_place *place, opipe_error *err) {
  uint32_t kept = 0;
  if (place->n_waiting == 0)
    return OPIPE_OK;
  for (uint32_t i = 0; i < place->n_waiting; ++i) {
    opi_train_waiting waiting = place->waiting[i];
    const uint32_t stream = t->lists->messages[waiting.message].stream;
    opipe_status status = OPIPE_OK;
    for (uint32_t k = 0; k < kept && status == OPIPE_OK && !waiting.sent; ++k) {
      if (t->lists->messages[place->waiting[k].message].stream == stream && !place->waiting[k].sent)
        status = OPIPE_PENDING;
    }
    if (status == OPIPE_OK)
      status = deliver(t, &waiting, err);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      place->waiting[kept++] = waiting;
  }
  if (kept != place->n_waiting)
    opi_count_on(&t->session->ranks[place - t->session->train->places].n_moves);
  place->n_waiting = kept;
  return OPIPE_OK;
}

static bool is_waiting(const opi_train_place *place, uint32_t message) {
  for (uint32_t i = 0; i < place->n_waiting; ++i) {
    if (place->waiting[i].message == message)
      return true;
  }
  return false;
}

static opipe_status give(opi_train_shape *t, opi_train_place *place, const opi_step *step,
                         opipe_error *err) {
  if (place->n_waiting == place->room_waiting) {
    OPI_TRY(flush_waiting(t, place, err));
    if (place->n_waiting == place->room_waiting)
      return OPIPE_PENDING;
  }
  const opi_train_wire *w = &t->wires[t->lists->messages[step->route].stream];
  opi_train_waiting waiting = {.message = step->route,
                               .number = w->src_base + beyond(t, place, step)};
  if (opi_plan_is_strict(t->plan)) { /* nothing may be issued in front of it */
    const opipe_status status = deliver(t, &waiting, err);
    if (status < 0 || !waiting.sent)
      return status;
  }
  place->waiting[place->n_waiting++] = waiting;
  return flush_waiting(t, place, err);
}

/* Double-buffered lists have no drains: a program waits for what still lies where it writes. */
static opipe_status outputs_free(opi_train_shape *t, opi_train_place *place, const opi_step *step,
                                 opipe_error *err) {
  const opi_program *program = opi_program_of(t->model->cuts[0], step->stage, step->pass);
  if (!t->session->train->periodic || place->n_waiting == 0)
    return OPIPE_OK;
  OPI_TRY(flush_waiting(t, place, err));
  for (uint32_t b = 0; b < program->graph.n_boundaries; ++b) {
    if (!program->writes[b])
      continue;
    const opipe_region out = opi_train_region(t, program->cells[b], step->microbatch);
    for (uint32_t i = 0; i < place->n_waiting; ++i) {
      const opipe_region region = source_of(t, place->waiting[i].message);
      if (region.buffer == out.buffer && region.offset_bytes < out.offset_bytes + out.n_bytes &&
          out.offset_bytes < region.offset_bytes + region.n_bytes)
        return OPIPE_PENDING;
    }
  }
  return OPIPE_OK;
}

/* The message has been taken over, and its memory is free. */
static opipe_status drain(opi_train_shape *t, opi_train_place *place, const opi_step *step,
                          opipe_error *err) {
  OPI_TRY(flush_waiting(t, place, err));
  return is_waiting(place, step->route) ? OPIPE_PENDING : OPIPE_OK;
}

/* ---- sums over replicas ---- */

/* Moves on what has begun, and notes when a sum was there. */
static opipe_status move_sums(opi_rank *rank, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  uint32_t kept = 0;
  if (place->n_reducing == 0)
    return OPIPE_OK;
  const opipe_status status = opi_weights_progress(rank->session->train->weights, rank->index, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < place->n_reducing; ++i) {
    const uint32_t index = place->reducing[i];
    const opi_step *step = &t->lists->steps[index];
    const uint32_t instance = step->stage * t->plan->n_replicas + step->replica;
    if (opi_weights_is_summed(rank->session->train->weights, opi_train_whole(t, instance)))
      t->spans[index].end_ns = opi_clock_ns();
    else
      place->reducing[kept++] = index;
  }
  place->n_reducing = kept;
  return OPIPE_OK;
}

/* ---- programs ---- */

static void set_scalars(const opi_train_shape *t, const opi_request *request, uint32_t stage,
                        uint32_t microbatch, int64_t *scalars) {
  const struct opi_ticket *ticket = request->ticket;
  const opi_train_piece *piece = opi_train_piece_of(t, stage, microbatch);
  scalars[OPI_SCALAR_SEED] = (int64_t)t->session->plan->train->seed;
  scalars[OPI_SCALAR_STEP] = (int64_t)ticket->step;
  scalars[OPI_SCALAR_SAMPLE] = opi_train_piece_row(t, piece, microbatch);
  scalars[OPI_SCALAR_TOKEN] = opi_train_graphs_of(t, stage, microbatch)->first;
  memcpy(&scalars[OPI_SCALAR_COUNT], &ticket->count, sizeof ticket->count);
}

/* Tests: what nobody needs any more is overwritten. */
static void poison_freed(const opi_train_shape *t, const opi_step *step) {
  const uint32_t n_mb = t->plan->n_microbatches;
  for (uint32_t c = 0; c < t->model->cuts[0]->n_cells; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m) {
      if (t->lists->freed_after[(size_t)c * n_mb + m] != step->route)
        continue;
      char *host = opi_train_host(t, c, m);
      if (host != NULL)
        memset(host, 0xff, (size_t)t->model->cuts[opi_train_class(t, m)]->cells[c].n_bytes);
    }
  }
}

/* While a program runs on an asynchronous device: sends and sums that wait are tried again, or they
 * would wait for the program's end. */
static opipe_status beside_program(opi_rank *rank, bool *out_more, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  *out_more = place->n_reducing != 0;
  OPI_TRY(flush_waiting(t, place, err));
  for (uint32_t i = 0; i < place->n_waiting; ++i)
    *out_more = *out_more || !place->waiting[i].sent;
  return move_sums(rank, err);
}

opipe_status opi_train_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                               opipe_error *err) {
  opi_session *s = rank->session;
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  const uint32_t instance = step->stage * t->plan->n_replicas + step->replica;
  const uint32_t class = opi_train_class(t, step->microbatch);
  uint32_t program = step->pass, binding = t->binding_of_step[index];
  const opi_request *request = opi_train_request(rank, step);
  const bool evaluate = request->ticket->kind == OPI_TICKET_EVALUATE;
  if (evaluate && t->eval_of_step[index] != OPIPE_NONE) {
    program = OPI_PROGRAM_E;
    binding = t->eval_of_step[index];
  }
  if (binding == OPIPE_NONE)
    return OPIPE_OK;
  const opi_train_unit *unit = opi_train_unit_of(t, instance, class, program);
  /* The first forwards after a pause see the weights as their backwards will: one step old. */
  uint32_t version = step->version;
  if (place->item.kind == OPI_ITEM_PROLOGUE ||
      (s->reference && s->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED))
    version = 1;
  const uint32_t set =
      opi_weights_set_of(rank->session->train->weights, rank->index, evaluate ? 0 : version);
  opipe_error local = OPIPE_ERROR_INIT;
  set_scalars(t, request, step->stage, step->microbatch, place->scalars);
  const opi_running how = {
      .scalars = place->scalars, .n_scalars = OPI_SCALAR_TABLE, .beside = beside_program};
  opi_span span;
  const opipe_status status =
      opi_rank_run(rank, step, unit->bindings[binding].sets[set], &how, &span, &local);
  if (!evaluate)
    t->spans[index] = span;
  if (status >= 0 && (s->flags & OPIPE_SESSION_POISON) != 0)
    poison_freed(t, step);
  if (status >= 0)
    return OPIPE_OK;
  static const char *const names[] = {"forward", "backward", "input backward", "weight backward",
                                      "forward"};
  local.status = status;
  (void)opi_error_prefix(&local,
                         "rank %u, stage %u, %s, mini-batch %llu, micro-batch %u: ", rank->index,
                         step->stage / t->model->n_views, names[program],
                         (unsigned long long)request->number, step->microbatch);
  if (err != NULL)
    *err = local;
  return status;
}

/* Rows that a backward cannot read where they lie. */
opipe_status opi_train_copy(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_train_shape *t = opi_train_at(rank);
  const opipe_region src = opi_train_source(t, step->route, step->microbatch);
  const opipe_region dst = opi_train_target(t, step->route, step->microbatch);
  if (src.n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
  return opi_rank_sync(rank, err);
}

/* ---- the list ---- */

static uint32_t peer_of(const opi_train_shape *t, const opi_step *step) {
  if (step->kind < OPI_ACT_RECV || step->kind == OPI_ACT_COPY || step->route == OPIPE_NONE)
    return OPIPE_NONE;
  const opi_train_stream *stream = &t->lists->streams[t->lists->messages[step->route].stream];
  if (step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_POST)
    return stream->src_rank;
  return step->kind == OPI_ACT_SEND || step->kind == OPI_ACT_DRAIN ? stream->dst_rank : OPIPE_NONE;
}

static opipe_status reduce(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  const uint32_t instance = step->stage * t->plan->n_replicas + step->replica;
  t->spans[index] = (opi_span){opi_clock_ns(), 0};
  place->reducing[place->n_reducing++] = index;
  OPI_TRY(opi_weights_reduce(rank->session->train->weights, opi_train_whole(t, instance), err));
  return move_sums(rank, err);
}

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
                            opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  const opipe_status status = outputs_free(t, place, step, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_train_compute(rank, step, index, err));
  OPI_TRY(flush_waiting(t, place, err));
  return move_sums(rank, err);
}

/* The step has been made with all of them. */
static void end_sums(opi_train_shape *t, opi_train_place *place) {
  for (uint32_t i = 0; i < place->n_reducing; ++i)
    t->spans[place->reducing[i]].end_ns = opi_clock_ns();
  place->n_reducing = 0;
}

static opipe_status update(opi_rank *rank, uint32_t index, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_span *span = &t->spans[index];
  opi_train_place *place = opi_train_place_of(rank);
  if (span->start_ns == 0 || span->end_ns != 0) { /* the first try */
    *span = (opi_span){opi_clock_ns(), 0};
    place->finite = opi_train_is_finite(t, rank->request, rank->index);
  }
  OPI_TRY(move_sums(rank, err));
  const opipe_status status =
      opi_weights_step(rank->session->train->weights, rank->index, place->finite, err);
  if (status == OPIPE_OK)
    span->end_ns = opi_clock_ns();
  if (status == OPIPE_OK)
    end_sums(t, place);
  if (status == OPIPE_OK && rank->index == 0)
    opi_weights_report(rank->session->train->weights, 0, &rank->request->ticket->report);
  return status;
}

/* Does the step belong to what the rank does now? */
static bool takes_part(const opi_train_shape *t, const opi_train_place *place,
                       const opi_step *step) {
  switch (place->item.kind) {
    case OPI_ITEM_PROLOGUE:
      return step->next != 0;
    case OPI_ITEM_EPILOGUE:
      return step->next == 0;
    case OPI_ITEM_EVALUATE:
      return in_evaluate(step) &&
             (!t->session->train->periodic || place->second == (step->next == 0));
    default:
      return true;
  }
}

static opipe_status run_step(opi_rank *rank, uint32_t index, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  const opi_step *step = &t->lists->steps[index];
  if (!takes_part(t, place, step))
    return OPIPE_OK;
  rank->peer = peer_of(t, step);
  switch (step->kind) {
    case OPI_ACT_LOAD:
      return opi_train_load(rank, step, err);
    case OPI_ACT_STORE:
      return opi_train_store(rank, step, err);
    case OPI_ACT_POST:
      return post(t, place, step, err);
    case OPI_ACT_RECV:
      return receive(t, place, step, err);
    case OPI_ACT_SEND:
      return give(t, place, step, err);
    case OPI_ACT_DRAIN:
      return drain(t, place, step, err);
    case OPI_ACT_COPY:
      return opi_train_copy(rank, step, err);
    case OPI_ACT_COMPUTE:
      return compute(rank, step, index, err);
    case OPI_ACT_REDUCE:
      return reduce(rank, step, index, err);
    default:
      return update(rank, index, err);
  }
}

static opipe_status begin(opi_rank *rank, opipe_error *err) {
  opi_train *train = rank->session->train;
  opi_train_place *place = opi_train_place_of(rank);
  if (place->begun)
    return OPIPE_OK;
  place->item = train->items[(rank->n_taken - 1) % rank->session->ring_room];
  const opi_train_shape *t = place->item.shape;
  place->waiting = t->seats[rank->index].waiting;
  place->room_waiting = t->seats[rank->index].room_waiting;
  place->second = false;
  if (place->item.kind == OPI_ITEM_ALL || place->item.kind == OPI_ITEM_EPILOGUE)
    OPI_TRY(opi_weights_begin(train->weights, rank->index, err));
  const double scale = opi_weights_loss_scale(train->weights, rank->index);
  memcpy(&place->scalars[OPI_SCALAR_SCALE], &scale, sizeof scale);
  place->begun = true;
  rank->step = t->lists->rank_first[rank->index];
  return OPIPE_OK;
}

/* Counts on: messages of this mini-batch. */
static void end(opi_rank *rank) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  const uint32_t kind = place->item.kind;
  const bool evaluate = kind == OPI_ITEM_EVALUATE;
  place->begun = false;
  if (kind == OPI_ITEM_PROLOGUE) {
    rank->request = NULL; /* not done with it: its body comes */
    return;
  }
  for (uint32_t i = 0; i < t->lists->n_streams; ++i) {
    const opi_train_stream *stream = &t->lists->streams[i];
    if (evaluate && t->model->cuts[0]->routes[stream->route].phase != OPI_PHASE_F)
      continue;
    if (stream->src_rank == rank->index)
      t->wires[i].src_base += stream->n_messages;
    if (stream->dst_rank == rank->index)
      t->wires[i].dst_base += stream->n_messages;
  }
}

/* A double-buffered evaluation runs the list twice: what a prologue has, then the rest. */
static bool goes_on(const opi_train_shape *t, const opi_rank *rank) {
  const opi_train_place *place = opi_train_place_of(rank);
  return t->session->train->periodic && place->item.kind == OPI_ITEM_EVALUATE && !place->second;
}

static opipe_status run_list(opi_rank *rank, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  while (rank->step < t->lists->rank_first[rank->index + 1]) {
    const opi_step *step = &t->lists->steps[rank->step];
    const opipe_status status = run_step(rank, rank->step, err);
    if (status == OPIPE_PENDING) {
      const opipe_status moved = move_sums(rank, err);
      if (moved < 0)
        return moved;
      opi_rank_blocked(rank, step);
    }
    if (status != OPIPE_OK)
      return status;
    opi_rank_moves(rank, step);
    ++rank->step;
    if (opi_session_failed(rank->session))
      return OPIPE_PENDING;
  }
  return OPIPE_OK;
}

opipe_status opi_train_idle(opi_rank *rank, opipe_error *err) {
  opi_train_shape *t = opi_train_at(rank);
  opi_train_place *place = opi_train_place_of(rank);
  OPI_TRY(flush_waiting(t, place, err));
  return place->n_waiting == 0 ? OPIPE_OK : OPIPE_PENDING;
}

/* Double-buffered lists have no drains. The next item may be of another shape, and this one's go:
 * nothing of it may be left behind. */
static bool leaves_nothing(const opi_train *train, const opi_train_place *place) {
  const uint32_t kind = place->item.kind;
  return !train->periodic || kind == OPI_ITEM_PROLOGUE || kind == OPI_ITEM_ALL ||
         place->n_waiting == 0;
}

opipe_status opi_train_run(opi_rank *rank, opipe_error *err) {
  const opi_train *train = rank->session->train;
  opi_train_place *place = opi_train_place_of(rank);
  if (opi_request_withdrawn(rank->request))
    return flush_waiting(place->item.shape, place, err); /* no rank does anything for it */
  OPI_TRY(begin(rank, err));
  opi_train_shape *t = place->item.shape;
  OPI_TRY(flush_waiting(t, place, err));
  opipe_status status = run_list(rank, err);
  if (status == OPIPE_OK && goes_on(t, rank)) {
    place->second = true;
    rank->step = t->lists->rank_first[rank->index];
    status = run_list(rank, err);
  }
  if (status == OPIPE_OK && !leaves_nothing(train, place)) {
    status = flush_waiting(t, place, err);
    if (status == OPIPE_OK && place->n_waiting != 0)
      status = OPIPE_PENDING;
  }
  if (status == OPIPE_OK)
    end(rank);
  return status;
}
