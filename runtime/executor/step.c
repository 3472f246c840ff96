/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's list of one mini-batch, or of one request of a body: each step happens or answers
 * OPIPE_PENDING and is tried again; sums over replicas are moved on meanwhile. Evaluate runs the
 * forward part of a training list.
 *
 * A request that has failed flows on: its messages are received and sent as ever, so that the
 * counting of all ranks stays in step; only loads, programs and stores are left out.
 */
#include <string.h>

#include "runtime/engine.h"

static bool in_evaluate(const opi_step *step) {
  return step->kind != OPI_ACT_REDUCE && step->kind != OPI_ACT_UPDATE &&
         step->pass == OPI_PROGRAM_F;
}

/* ---- sums over replicas ---- */

/* Moves on what has begun, and notes when a sum was there. */
static opipe_status move_sums(opi_rank *rank, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  uint32_t kept = 0;
  if (cursor->n_reducing == 0)
    return OPIPE_OK;
  const opipe_status status =
      opi_weights_progress(rank->session->engine->weights, rank->index, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < cursor->n_reducing; ++i) {
    const uint32_t index = cursor->reducing[i];
    const opi_step *step = &t->lists->steps[index];
    const uint32_t instance = step->stage * t->pieces->plan.n_replicas + step->replica;
    if (opi_weights_is_summed(rank->session->engine->weights, opi_whole_instance(t, instance)))
      opi_ran_at(t, rank->index, index)->span.end_ns = opi_clock_ns();
    else
      cursor->reducing[kept++] = index;
  }
  cursor->n_reducing = kept;
  rank->polls = rank->polls || (kept != 0 && rank->event != NULL);
  return OPIPE_OK;
}

/* ---- programs ---- */

static void set_scalars(const opi_compiled *t, const opi_request *request, uint32_t stage,
                        uint32_t microbatch, int64_t *scalars) {
  const struct opi_ticket *ticket = request->ticket;
  const opi_train_spec *train = t->session->plan->train;
  const opi_piece *piece = opi_piece_at(t, stage, microbatch);
  const double count = ticket == NULL ? 1 : ticket->count;
  scalars[OPI_SCALAR_SEED] = train == NULL ? 0 : (int64_t)train->seed;
  scalars[OPI_SCALAR_STEP] = (int64_t)(ticket == NULL ? request->number : ticket->step);
  scalars[OPI_SCALAR_SAMPLE] = opi_piece_row(t, piece, microbatch);
  scalars[OPI_SCALAR_TOKEN] = opi_graphs_at(t, stage, microbatch)->first;
  memcpy(&scalars[OPI_SCALAR_COUNT], &count, sizeof count);
}

/* Tests: what nobody needs any more is overwritten. */
static void poison_freed(const opi_compiled *t, const opi_step *step) {
  const uint32_t n_mb = t->pieces->plan.n_microbatches;
  for (uint32_t c = 0; c < t->model->cuts[0]->n_cells; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m) {
      if (t->lists->freed_after[(size_t)c * n_mb + m] != step->route)
        continue;
      char *host = opi_cell_host(t, c, m);
      if (host != NULL)
        memset(host, 0xff, (size_t)t->model->cuts[opi_class_at(t, m)]->cells[c].n_bytes);
    }
  }
}

/* While a program runs on an asynchronous device: sends and sums that wait are tried again, or they
 * would wait for the program's end. */
static opipe_status beside_program(opi_rank *rank, bool *out_more, opipe_error *err) {
  opi_cursor *cursor = opi_cursor_of(rank);
  *out_more = cursor->n_reducing != 0;
  OPI_TRY(opi_messages_flush(rank, err));
  for (const opi_seat *seat = cursor->busy; seat != NULL; seat = seat->next_busy) {
    for (uint32_t i = 0; i < seat->n_waiting; ++i)
      *out_more = *out_more || !seat->waiting[i].sent;
  }
  return move_sums(rank, err);
}

static opipe_status name_failure(const opi_rank *rank, const opi_step *step, uint32_t program,
                                 const opi_request *request, opipe_status status,
                                 opipe_error *local, opipe_error *err) {
  static const char *const names[] = {"forward", "backward", "input backward", "weight backward",
                                      "forward"};
  const opi_compiled *t = opi_compiled_at(rank);
  const uint32_t stage = step->stage / t->model->n_pieces;
  const uint32_t m = t->parts[step->microbatch].in_request;
  local->status = status;
  if (request->ticket != NULL) {
    (void)opi_error_prefix(local,
                           "rank %u, stage %u, %s, mini-batch %llu, micro-batch %u: ", rank->index,
                           stage, names[program], (unsigned long long)request->number, m);
  } else {
    (void)opi_error_prefix(local, "rank %u, stage %u, request %llu, micro-batch %u: ", rank->index,
                           stage, (unsigned long long)request->number, m);
  }
  if (err != NULL)
    *err = *local;
  return status;
}

/* What a program says about a request's data (OPIPE_E_INVALID: a NaN with the check on, an index
 * out of range) fails the request; anything else fails the rank, and with it the session. */
static opipe_status compute_request(opi_rank *rank, const opi_step *step, uint32_t index,
                                    opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_request *request = rank->request;
  opipe_error local = OPIPE_ERROR_INIT;
  if (request->deadline_ns != 0)
    opi_request_check_deadline(request, rank, step->stage / t->model->n_pieces);
  if (t->bound[index] == NULL || opi_request_failed(request))
    return OPIPE_OK;
  int64_t *scalars = opi_cursor_of(rank)->scalars;
  const opi_running how = {
      .scalars = scalars, .n_scalars = t->draws ? OPI_SCALAR_TABLE : 0, .beside = beside_program};
  if (t->draws)
    set_scalars(t, request, step->stage, step->microbatch, scalars);
  opi_ran *ran = opi_ran_at(t, rank->index, index);
  const opipe_status status = opi_rank_run(rank, step, t->bound[index], &how, &ran->span, &local);
  ran->request = request->order + 1;
  if (status >= 0 && (rank->session->flags & OPIPE_SESSION_POISON) != 0)
    poison_freed(t, step);
  if (status >= 0)
    return OPIPE_OK;
  (void)name_failure(rank, step, OPI_PROGRAM_F, request, status, &local,
                     status == OPIPE_E_INVALID ? NULL : err);
  if (status != OPIPE_E_INVALID)
    return status;
  (void)opi_request_fail_at(request, step->stage / t->model->n_pieces, &local);
  return OPIPE_OK;
}

/* Whatever goes wrong in a step ends the session: gradients that miss a micro-batch are of no use.
 */
static opipe_status compute_step(opi_rank *rank, const opi_step *step, uint32_t index,
                                 opipe_error *err) {
  opi_session *s = rank->session;
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t instance = step->stage * t->pieces->plan.n_replicas + step->replica;
  const uint32_t class = opi_class_at(t, step->microbatch);
  uint32_t program = step->pass, binding = t->binding_of_step[index];
  const opi_request *request = opi_step_request(rank, step);
  const bool evaluate = request->ticket->kind == OPI_TICKET_EVALUATE;
  if (evaluate && t->eval_of_step[index] != OPIPE_NONE) {
    program = OPI_PROGRAM_E;
    binding = t->eval_of_step[index];
  }
  if (binding == OPIPE_NONE)
    return OPIPE_OK;
  const opi_program_unit *unit = opi_unit_at(t, instance, class, program);
  /* The first forwards after a pause see the weights as their backwards will: one step old. */
  uint32_t version = step->version;
  if (cursor->item.kind == OPI_ITEM_PROLOGUE ||
      (s->reference && s->plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED))
    version = 1;
  const uint32_t set =
      opi_weights_set_of(rank->session->engine->weights, rank->index, evaluate ? 0 : version);
  opipe_error local = OPIPE_ERROR_INIT;
  set_scalars(t, request, step->stage, step->microbatch, cursor->scalars);
  const opi_running how = {
      .scalars = cursor->scalars, .n_scalars = OPI_SCALAR_TABLE, .beside = beside_program};
  opi_span span;
  const opipe_status status =
      opi_rank_run(rank, step, unit->bindings[binding].sets[set], &how, &span, &local);
  if (!evaluate)
    *opi_ran_at(t, rank->index, index) = (opi_ran){span, request->number + 1};
  if (status >= 0 && (s->flags & OPIPE_SESSION_POISON) != 0)
    poison_freed(t, step);
  return status >= 0 ? OPIPE_OK : name_failure(rank, step, program, request, status, &local, err);
}

opipe_status opi_step_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                              opipe_error *err) {
  return opi_session_trains(rank->session) ? compute_step(rank, step, index, err)
                                           : compute_request(rank, step, index, err);
}

/* Rows that a backward cannot read where they lie. */
opipe_status opi_step_copy(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  opipe_region src, dst;
  opi_route_regions(t, step->route, step->microbatch, &src, &dst);
  if (src.n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
  return opi_rank_sync(rank, err);
}

/* ---- the list ---- */

static uint32_t peer_of(const opi_compiled *t, const opi_step *step) {
  if (step->kind < OPI_ACT_RECV || step->kind == OPI_ACT_COPY || step->route == OPIPE_NONE)
    return OPIPE_NONE;
  const opi_message_run *m = &t->messages[step->route];
  if (step->kind == OPI_ACT_RECV || step->kind == OPI_ACT_POST)
    return m->src_rank;
  return step->kind == OPI_ACT_SEND || step->kind == OPI_ACT_DRAIN || step->kind == OPI_ACT_RESERVE
             ? m->dst_rank
             : OPIPE_NONE;
}

static opipe_status reduce(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t instance = step->stage * t->pieces->plan.n_replicas + step->replica;
  opi_ran_at(t, rank->index, index)->span = (opi_span){opi_clock_ns(), 0};
  cursor->reducing[cursor->n_reducing++] = index;
  OPI_TRY(opi_weights_reduce(rank->session->engine->weights, opi_whole_instance(t, instance), err));
  return move_sums(rank, err);
}

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
                            opipe_error *err) {
  if (!opi_session_trains(rank->session)) {
    OPI_TRY(compute_request(rank, step, index, err));
    OPI_TRY(opi_messages_flush(rank, err));
    return opi_peers_move(rank, err);
  }
  OPI_TRY(opi_step_compute(rank, step, index, err));
  OPI_TRY(opi_messages_flush(rank, err));
  const opipe_status settled = opi_rank_settle(rank, err);
  return settled < 0 ? settled : move_sums(rank, err);
}

/* The step has been made with all of them. */
static void end_sums(const opi_compiled *t, const opi_rank *rank) {
  opi_cursor *cursor = opi_cursor_of(rank);
  for (uint32_t i = 0; i < cursor->n_reducing; ++i)
    opi_ran_at(t, rank->index, cursor->reducing[i])->span.end_ns = opi_clock_ns();
  cursor->n_reducing = 0;
}

static opipe_status update(opi_rank *rank, uint32_t index, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_span *span = &opi_ran_at(t, rank->index, index)->span;
  opi_cursor *cursor = opi_cursor_of(rank);
  const opipe_status settled = opi_rank_settle(rank, err); /* the step before */
  if (settled != OPIPE_OK)
    return settled;
  if (span->start_ns == 0 || span->end_ns != 0) { /* the first try */
    *span = (opi_span){opi_clock_ns(), 0};
    cursor->finite = opi_train_is_finite(t, rank->request, rank->index);
  }
  OPI_TRY(move_sums(rank, err));
  const opipe_status status =
      opi_weights_step(rank->session->engine->weights, rank->index, cursor->finite, err);
  if (status == OPIPE_PENDING && rank->event != NULL)
    rank->polls = true; /* a device that is asynchronous rings no bell */
  if (status == OPIPE_OK)
    span->end_ns = opi_clock_ns();
  if (status == OPIPE_OK)
    end_sums(t, rank);
  if (status == OPIPE_OK && rank == opi_session_first(rank->session))
    opi_weights_report(rank->session->engine->weights, rank->index, &rank->request->ticket->report);
  return status;
}

bool opi_step_takes_part(const opi_compiled *t, const opi_cursor *cursor, const opi_step *step) {
  switch (cursor->item.kind) {
    case OPI_ITEM_REQUEST:
      return !cursor->posting || (step->kind == OPI_ACT_POST && step->lap > 0);
    case OPI_ITEM_PROLOGUE:
      return step->next != 0;
    case OPI_ITEM_EPILOGUE:
      return step->next == 0;
    case OPI_ITEM_EVALUATE:
      return in_evaluate(step) &&
             (!t->session->engine->periodic || cursor->second == (step->next == 0));
    default:
      return true;
  }
}

static opipe_status run_step(opi_rank *rank, const opi_step *step, uint32_t index,
                             opipe_error *err) {
  switch (step->kind) {
    case OPI_ACT_LOAD:
      return opi_step_load(rank, step, err);
    case OPI_ACT_STORE:
      return opi_step_store(rank, step, err);
    case OPI_ACT_POST:
      return opi_message_post(rank, step, err);
    case OPI_ACT_RECV:
      return opi_message_receive(rank, step, err);
    case OPI_ACT_RESERVE:
      return opi_message_reserve(rank, step, err);
    case OPI_ACT_SEND:
      return opi_message_send(rank, step, err);
    case OPI_ACT_DRAIN:
      return opi_message_drain(rank, step, err);
    case OPI_ACT_COPY:
      return opi_step_copy(rank, step, err);
    case OPI_ACT_COMPUTE:
      return compute(rank, step, index, err);
    case OPI_ACT_REDUCE:
      return reduce(rank, step, index, err);
    default:
      return update(rank, index, err);
  }
}

/* A shape's first request is preceded by the receives of the first body. */
static void begin_request(opi_rank *rank) {
  opi_cursor *cursor = opi_cursor_of(rank);
  const opi_request *request = rank->request;
  opi_compiled *t = request->runs;
  const opi_lists *lists = t->lists;
  const uint32_t p = rank->index * lists->n_positions + request->position;
  if (!cursor->begun) {
    cursor->item = (opi_item){.current = rank->request,
                              .next = rank->request,
                              .shape = t,
                              .body = request->body,
                              .kind = OPI_ITEM_REQUEST};
    cursor->begun = true;
    cursor->posting = request->body == 0 && request->position == 0;
  } else {
    cursor->posting = false;
  }
  rank->step = cursor->posting ? lists->rank_first[rank->index] : lists->request_first[p];
  cursor->end = cursor->posting ? lists->rank_first[rank->index + 1] : lists->request_first[p + 1];
}

static opipe_status begin(opi_rank *rank, opipe_error *err) {
  opi_engine *engine = rank->session->engine;
  opi_cursor *cursor = opi_cursor_of(rank);
  if (cursor->begun)
    return OPIPE_OK;
  if (!opi_session_trains(rank->session)) {
    begin_request(rank);
    return OPIPE_OK;
  }
  cursor->item = engine->items[(rank->n_taken - 1) % rank->session->ring_room];
  const opi_compiled *t = cursor->item.shape;
  cursor->second = false;
  if (cursor->item.kind == OPI_ITEM_ALL || cursor->item.kind == OPI_ITEM_EPILOGUE)
    OPI_TRY(opi_weights_begin(engine->weights, rank->index, err));
  const double scale = opi_weights_loss_scale(engine->weights, rank->index);
  memcpy(&cursor->scalars[OPI_SCALAR_SCALE], &scale, sizeof scale);
  cursor->begun = true;
  rank->step = t->lists->rank_first[rank->index];
  cursor->end = t->lists->rank_first[rank->index + 1];
  return OPIPE_OK;
}

/* Counts on: messages of this mini-batch. */
static void end(opi_rank *rank) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t kind = cursor->item.kind;
  const bool evaluate = kind == OPI_ITEM_EVALUATE;
  cursor->begun = false;
  if (kind == OPI_ITEM_REQUEST)
    return;
  if (kind == OPI_ITEM_PROLOGUE) {
    rank->request = NULL; /* not done with it: its body comes */
    return;
  }
  for (uint32_t i = 0; i < t->lists->n_streams; ++i) {
    const opi_list_stream *stream = &t->lists->streams[i];
    if (evaluate && t->model->cuts[0]->routes[stream->route].phase != OPI_PHASE_F)
      continue;
    if (stream->src_rank == rank->index)
      t->wires[i].src_base += stream->n_messages;
    if (stream->dst_rank == rank->index)
      t->wires[i].dst_base += stream->n_messages;
  }
}

/* A double-buffered evaluation runs the list twice: what a prologue has, then the rest. */
static bool goes_on(const opi_compiled *t, const opi_rank *rank) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  return t->session->engine->periodic && cursor->item.kind == OPI_ITEM_EVALUATE && !cursor->second;
}

/* Those of a batch that take part; *io_step: its first step, then the first of them. */
static opipe_status run_batch(opi_rank *rank, const opi_step **io_step, opipe_error *err) {
  const opi_step *first = *io_step, *end = first + first->batch;
  while (first < end && !opi_step_takes_part(opi_compiled_at(rank), opi_cursor_of(rank), first))
    ++first;
  if (first == end)
    return OPIPE_OK;
  *io_step = first;
  return opi_messages_batch(rank, first, (uint32_t)(end - first), err);
}

static opipe_status run_list(opi_rank *rank, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_cursor *cursor = opi_cursor_of(rank);
  const bool all = cursor->item.kind == OPI_ITEM_REQUEST && !cursor->posting;
  const opi_step *steps = t->lists->steps;
  const uint32_t end = cursor->end;
  for (uint32_t i = rank->step; i < end;) {
    const opi_step *step = &steps[i];
    const uint32_t batch = step->batch;
    const opipe_status status = batch != 0 ? run_batch(rank, &step, err)
                                : all || opi_step_takes_part(t, cursor, step)
                                    ? run_step(rank, step, i, err)
                                    : OPIPE_OK;
    if (status == OPIPE_PENDING) {
      const opipe_status settled = opi_rank_settle(rank, err);
      if (settled < 0)
        return settled;
      OPI_TRY(move_sums(rank, err));
      rank->peer = peer_of(t, step);
      opi_rank_blocked(rank, step);
    }
    if (status != OPIPE_OK)
      return status;
    opi_rank_moves(rank, step);
    i += batch != 0 ? batch : 1;
    rank->step = i;
    if (step->kind == OPI_ACT_COMPUTE && opi_session_failed(rank->session))
      return OPIPE_PENDING;
  }
  return OPIPE_OK;
}

opipe_status opi_list_idle(opi_rank *rank, opipe_error *err) {
  OPI_TRY(opi_messages_flush(rank, err));
  return opi_cursor_of(rank)->busy == NULL ? OPIPE_OK : OPIPE_PENDING;
}

/* What a double-buffered body sends leaves its memory in the next one. Where none follows, the next
 * item may be of another shape, and this one's go: nothing of it may be left behind. */
static opipe_status leave_nothing(opi_rank *rank, opipe_error *err) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t kind = cursor->item.kind;
  if (!rank->session->engine->periodic || kind == OPI_ITEM_PROLOGUE || kind == OPI_ITEM_ALL)
    return OPIPE_OK;
  return opi_list_idle(rank, err);
}

static opipe_status run_request(opi_rank *rank, opipe_error *err) {
  OPI_TRY(opi_messages_flush(rank, err));
  opipe_status status = run_list(rank, err);
  if (status == OPIPE_OK && opi_cursor_of(rank)->posting) {
    begin_request(rank);
    status = run_list(rank, err);
  }
  if (status == OPIPE_OK && rank == opi_session_first(rank->session))
    status = opi_store_plain(rank, rank->request, err);
  if (status == OPIPE_OK)
    end(rank);
  return status;
}

opipe_status opi_list_run(opi_rank *rank, opipe_error *err) {
  opi_cursor *cursor = opi_cursor_of(rank);
  const bool trains = opi_session_trains(rank->session);
  if (trains && opi_request_withdrawn(rank->request))
    return opi_messages_flush(rank, err); /* no rank does anything for it */
  OPI_TRY(begin(rank, err));
  if (!trains)
    return run_request(rank, err);
  opi_compiled *t = cursor->item.shape;
  OPI_TRY(opi_messages_flush(rank, err));
  opipe_status status = run_list(rank, err);
  if (status == OPIPE_OK && goes_on(t, rank)) {
    cursor->second = true;
    rank->step = t->lists->rank_first[rank->index];
    status = run_list(rank, err);
  }
  if (status == OPIPE_OK)
    status = leave_nothing(rank, err);
  if (status == OPIPE_OK)
    end(rank);
  return status;
}
