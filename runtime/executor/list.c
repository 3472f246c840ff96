/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's list of one mini-batch, or of one request of a body: each step happens or answers
 * OPIPE_PENDING and is tried again; sums over replicas are moved on meanwhile. Evaluate runs the
 * forward part of a training list.
 *
 * A request that has failed flows on: its messages are received and sent as ever, so that the
 * counting of all ranks stays in step; only loads, programs and stores are left out.
 */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

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
  const opipe_status status = opi_weights_progress(rank->setup->shapes->weights, rank->index, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < cursor->n_reducing; ++i) {
    const uint32_t index = cursor->reducing[i];
    const opi_step *step = &t->lists->steps[index];
    const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
    if (opi_weights_is_summed(rank->setup->shapes->weights, opi_whole_instance(t, instance)))
      opi_ran_at(t, rank->index, index)->span.end_ns = opi_clock_ns();
    else
      cursor->reducing[kept++] = index;
  }
  cursor->n_reducing = kept;
  rank->worker->polls = rank->worker->polls || (kept != 0 && rank->worker->ahead != NULL);
  return OPIPE_OK;
}

/* ---- programs ---- */

/* What dropout's random numbers follow from: of training, the steps before. */
static uint64_t step_number(const opi_compiled *t, const opi_request *request,
                            const opi_cursor *cursor) {
  if (request->ticket == NULL)
    return request->number;
  return t->setup->shapes->periodic || t->setup->reference ? request->ticket->step : cursor->number;
}

static void set_scalars(const opi_compiled *t, const opi_request *request, uint32_t stage,
                        uint32_t microbatch, opi_cursor *cursor) {
  int64_t *scalars = cursor->scalars;
  const struct opi_ticket *ticket = request->ticket;
  const opi_train_spec *train = t->setup->plan->decided.train;
  const opi_piece *piece = opi_piece_at(t, stage, microbatch);
  const double count = ticket == NULL ? 1 : ticket->count;
  scalars[OPI_SCALAR_SEED] = train == NULL ? 0 : (int64_t)train->seed;
  scalars[OPI_SCALAR_STEP] = (int64_t)step_number(t, request, cursor);
  scalars[OPI_SCALAR_SAMPLE] = opi_piece_row(t, piece, microbatch);
  scalars[OPI_SCALAR_TOKEN] = opi_graphs_at(t, stage, microbatch)->first;
  memcpy(&scalars[OPI_SCALAR_COUNT], &count, sizeof count);
  if (ticket != NULL)
    memcpy(&scalars[OPI_SCALAR_SUM], ticket->sums, sizeof ticket->sums);
}

/* Tests: what nobody needs any more is overwritten. */
static void poison_freed(const opi_compiled *t, const opi_step *step) {
  const uint32_t n_mb = t->pieces->n_microbatches;
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

static void name_failure(const opi_rank *rank, const opi_errand *run, opipe_error *io_err) {
  static const char *const names[] = {"forward", "backward", "input backward", "weight backward",
                                      "forward"};
  const opi_compiled *t = run->shape;
  const uint32_t stage = run->step->stage / t->model->n_pieces;
  const uint32_t m = t->parts[run->step->microbatch].in_request;
  const struct opi_ticket *ticket = run->request->ticket;
  if (ticket != NULL && ticket->kind == OPI_TICKET_TRAIN) { /* as its report counts it */
    (void)opi_error_prefix(io_err,
                           "rank %u, stage %u, %s, step %llu, micro-batch %u: ", rank->index, stage,
                           names[run->program], (unsigned long long)run->number + 1, m);
  } else {
    (void)opi_error_prefix(io_err, "rank %u, stage %u, request %llu, micro-batch %u: ", rank->index,
                           stage, (unsigned long long)run->request->number, m);
  }
}

/* What a program says about a request's data (OPIPE_E_INVALID: a NaN with the check on, an index
 * out of range) fails the request, an evaluation too; anything else fails the rank, and with it the
 * session. So does whatever goes wrong in a training step: gradients that miss a micro-batch are of
 * no use. */
opipe_status opi_step_ran(opi_rank *rank, const opi_errand *run, const opi_span *at,
                          opipe_status status, opipe_error *local, opipe_error *err) {
  const opi_setup *s = rank->setup;
  const uint32_t stage = run->step->stage / run->shape->model->n_pieces;
  const struct opi_ticket *ticket = run->request->ticket;
  const bool trains = ticket != NULL && ticket->kind == OPI_TICKET_TRAIN;
  opi_span span = {run->since_ns, opi_clock_ns()};
  if (at != NULL)
    span = *at;
  else if (rank->worker->ahead != NULL && rank->worker->ahead->moved_ns > span.start_ns)
    span.start_ns = rank->worker->ahead->moved_ns; /* it waited for the one before */
  atomic_store_explicit(&rank->worker->busy_ns,
                        atomic_load_explicit(&rank->worker->busy_ns, memory_order_relaxed) +
                            (span.end_ns - span.start_ns),
                        memory_order_relaxed);
  if (run->ran != NULL)
    *run->ran = (opi_ran){span, run->ran_number};
  if (status >= 0) {
    if ((s->flags & OPIPE_SESSION_POISON) != 0)
      poison_freed(run->shape, run->step);
    return OPIPE_OK;
  }
  name_failure(rank, run, local);
  local->status = status;
  if (run->request->stream_kept != NULL)
    opi_stream_look(run->request); /* it may have computed on what one before it left behind */
  if (status == OPIPE_E_INVALID && !trains) {
    (void)opi_request_fail_at(run->request, stage, local);
    return OPIPE_OK;
  }
  *err = *local;
  return status;
}

/* On an asynchronous device it ends later; an error may come at once all the same. */
static opipe_status run(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                        uint32_t n_scalars, opipe_error *err) {
  const bool ahead = rank->worker->ahead != NULL;
  opipe_error local = OPIPE_ERROR_INIT;
  work->since_ns = opi_clock_ns();
  opi_rank_note(rank, ahead ? OPI_DOING_STEP : OPI_DOING_PROGRAM, work->step,
                ahead ? 0 : work->since_ns);
  opipe_status status = opi_ahead_begin(rank, &local);
  if (status == OPIPE_OK) {
    status = OPI_ASK_RANK(rank, run, &local, binding, rank->queue, opi_cursor_of(rank)->scalars,
                          n_scalars);
  }
  if (!ahead)
    opi_rank_note(rank, OPI_DOING_STEP, work->step, 0);
  if (!ahead || status < 0)
    return opi_step_ran(rank, work, NULL, status, &local, err);
  const opi_ahead_entry e = {.kind = OPI_AHEAD_RUN, .work = *work};
  status = opi_ahead_push(rank, &e, err);
  return status < 0 || (rank->setup->flags & OPIPE_SESSION_POISON) == 0
             ? status
             : opi_ahead_drain(rank, err);
}

static opipe_status compute_request(opi_rank *rank, const opi_step *step, uint32_t index,
                                    opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_request *request = rank->worker->request;
  opi_errand work = {.step = step,
                     .request = request,
                     .shape = t,
                     .ran = opi_ran_at(t, rank->index, index),
                     .ran_number = request->order + 1,
                     .program = OPI_PROGRAM_F};
  if (request->deadline_ns != 0)
    opi_request_check_deadline(request, rank, step->stage / t->model->n_pieces);
  if (opi_request_failed(request)) /* its stream may have gone, with what it had bound */
    return OPIPE_OK;
  opipe_binding *bound = t->bound[index];
  if (request->bound != NULL && request->bound[index] != NULL)
    bound = request->bound[index]; /* with what its stream keeps */
  if (bound == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_lent_begin(rank, request, err));
  if (t->draws)
    set_scalars(t, request, step->stage, step->microbatch, opi_cursor_of(rank));
  return run(rank, &work, bound, t->draws ? OPI_SCALAR_SUM : 0, err);
}

static opipe_status compute_step(opi_rank *rank, const opi_step *step, uint32_t index,
                                 opipe_error *err) {
  opi_setup *s = rank->setup;
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  uint32_t program = step->pass, binding = t->binding_of_step[index];
  opi_request *request = opi_step_request(rank, step);
  const bool evaluate = request->ticket->kind == OPI_TICKET_EVALUATE;
  if (evaluate && t->eval_of_step[index] != OPIPE_NONE) {
    program = OPI_PROGRAM_E;
    binding = t->eval_of_step[index];
  }
  if (binding == OPIPE_NONE || (evaluate && opi_request_failed(request)))
    return OPIPE_OK;
  const opi_program_unit *unit =
      opi_unit_at(t, instance, opi_class_at(t, step->microbatch), program);
  /* The first forwards after a pause see the weights as their backwards will: one step old. */
  uint32_t version = step->version;
  if (cursor->item.kind == OPI_ITEM_PROLOGUE ||
      (s->reference && s->plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED))
    version = 1;
  const uint32_t set = opi_weights_set_of(s->shapes->weights, rank->index, evaluate ? 0 : version);
  opi_errand work = {.step = step,
                     .request = request,
                     .shape = t,
                     .ran = evaluate ? NULL : opi_ran_at(t, rank->index, index),
                     .ran_number = request->number + 1,
                     .number = step_number(t, request, cursor),
                     .program = program};
  set_scalars(t, request, step->stage, step->microbatch, cursor);
  return run(rank, &work, unit->bindings[binding].sets[set],
             opi_scalar_count(opi_graphs_at(t, step->stage, step->microbatch)->scalars), err);
}

opipe_status opi_step_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                              opipe_error *err) {
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  return opi_session_trains(rank->setup) ? compute_step(rank, step, index, err)
                                         : compute_request(rank, step, index, err);
}

/* Rows that a backward cannot read where they lie. */
opipe_status opi_step_copy(opi_rank *rank, const opi_step *step, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  opipe_region src, dst;
  opi_route_regions(t, step->route, step->microbatch, &src, &dst);
  if (src.n_bytes == 0)
    return OPIPE_OK;
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
  return rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_push(rank, &e, err);
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

/* Its members are queued, and it may even be over when that is seen. */
void opi_step_summing(const opi_ahead_entry *e) {
  const uint64_t now = opi_clock_ns(), end = e->work.ran->span.end_ns;
  e->work.ran->span.start_ns = end != 0 && end < now ? end : now;
}

static opipe_status reduce(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  const opi_ahead_entry e = {.kind = OPI_AHEAD_SUM, .work.ran = opi_ran_at(t, rank->index, index)};
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  if (!opi_ahead_is_empty(rank))
    OPI_TRY(opi_ahead_push(rank, &e, err));
  e.work.ran->span = (opi_span){opi_clock_ns(), 0};
  cursor->reducing[cursor->n_reducing++] = index;
  OPI_TRY(opi_weights_reduce(rank->setup->shapes->weights, opi_whole_instance(t, instance), err));
  return move_sums(rank, err);
}

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
                            opipe_error *err) {
  const opipe_status status = opi_step_compute(rank, step, index, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_messages_flush(rank, err));
  OPI_TRY(opi_ahead_move(rank, err));
  if (!opi_session_trains(rank->setup))
    return opi_peers_move(rank, err);
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
  /* The step before must be settled, and this one's loss be there. */
  const opipe_status settled = opi_rank_settle(rank, err);
  if (settled != OPIPE_OK)
    return settled;
  if (opi_ahead_stores(rank))
    return OPIPE_PENDING;
  if (span->start_ns == 0 || span->end_ns != 0) { /* the first try */
    *span = (opi_span){opi_clock_ns(), 0};
    cursor->finite = opi_train_is_finite(t, rank->worker->request, rank->index);
  }
  OPI_TRY(move_sums(rank, err));
  /* Sums, norm and update: tried until all ranks have got there. */
  const struct opi_ticket *ticket = rank->worker->request->ticket;
  opi_weights *weights = rank->setup->shapes->weights;
  const opipe_status status = opi_weights_step(weights, rank->index, cursor->finite,
                                               ticket->has_lr ? &ticket->lr : NULL, err);
  if (status == OPIPE_PENDING && rank->worker->ahead != NULL)
    rank->worker->polls = true; /* a device that is asynchronous rings no bell */
  if (status == OPIPE_OK)
    span->end_ns = opi_clock_ns();
  if (status == OPIPE_OK)
    end_sums(t, rank);
  if (status == OPIPE_OK && rank->index == opi_weights_reporter(weights))
    opi_weights_report(weights, rank->index, &rank->worker->request->ticket->report);
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
             (!t->setup->shapes->periodic || cursor->second == (step->next == 0));
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
  const opi_request *request = rank->worker->request;
  opi_compiled *t = request->runs;
  const opi_lists *lists = t->lists;
  const uint32_t p = rank->index * lists->n_positions + request->position;
  if (!cursor->begun) {
    cursor->item = (opi_item){.current = rank->worker->request,
                              .next = rank->worker->request,
                              .shape = t,
                              .body = request->body,
                              .kind = OPI_ITEM_REQUEST};
    cursor->begun = true;
    cursor->posting = request->body == 0 && request->position == 0;
  } else {
    cursor->posting = false;
  }
  rank->worker->step = cursor->posting ? lists->rank_first[rank->index] : lists->request_first[p];
  cursor->end = cursor->posting ? lists->rank_first[rank->index + 1] : lists->request_first[p + 1];
}

static opipe_status begin(opi_rank *rank, opipe_error *err) {
  const opi_engine *engine = opi_engine_of(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  if (cursor->begun)
    return OPIPE_OK;
  if (!opi_session_trains(rank->setup)) {
    begin_request(rank);
    return OPIPE_OK;
  }
  opi_weights *weights = opi_weights_of(rank);
  cursor->item = engine->items[(rank->worker->n_taken - 1) % engine->ring_room];
  const opi_compiled *t = cursor->item.shape;
  cursor->second = false;
  if (cursor->item.kind == OPI_ITEM_ALL || cursor->item.kind == OPI_ITEM_EPILOGUE)
    OPI_TRY(opi_weights_begin(weights, rank->index, err));
  const double scale = opi_weights_loss_scale(weights, rank->index);
  memcpy(&cursor->scalars[OPI_SCALAR_SCALE], &scale, sizeof scale);
  cursor->begun = true;
  rank->worker->step = t->lists->rank_first[rank->index];
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
    rank->worker->request = NULL; /* not done with it: its body comes */
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
  if (!evaluate)
    opi_count_on(&cursor->n_done);
}

/* A double-buffered evaluation runs the list twice: what a prologue has, then the rest. */
static bool goes_on(const opi_compiled *t, const opi_rank *rank) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  return t->setup->shapes->periodic && cursor->item.kind == OPI_ITEM_EVALUATE && !cursor->second;
}

/* Runs the batch's applicable steps. *io_step: in, its first; out, the first applicable. */
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
  for (uint32_t i = rank->worker->step; i < end;) {
    const opi_step *step = &steps[i];
    const uint32_t batch = step->batch;
    /* Try the step, or all of a batch; what does not belong to the item is passed over. */
    const opipe_status status = batch != 0 ? run_batch(rank, &step, err)
                                : all || opi_step_takes_part(t, cursor, step)
                                    ? run_step(rank, step, i, err)
                                    : OPIPE_OK;
    /* Blocked: use the time for norms, sums and the device, and say what the rank waits for. */
    if (status == OPIPE_PENDING) {
      const opipe_status settled = opi_rank_settle(rank, err);
      if (settled < 0)
        return settled;
      OPI_TRY(move_sums(rank, err));
      OPI_TRY(opi_ahead_move(rank, err));
      rank->worker->peer = peer_of(t, step);
      opi_rank_blocked(rank, step);
    }
    if (status != OPIPE_OK)
      return status;
    /* Done: on to the next. */
    opi_rank_moves(rank, step);
    opi_cursor_of(rank)->part = 0;
    i += batch != 0 ? batch : 1;
    rank->worker->step = i;
    if (step->kind == OPI_ACT_COMPUTE && opi_session_failed(rank->setup))
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
  if (!rank->setup->shapes->periodic || kind == OPI_ITEM_PROLOGUE || kind == OPI_ITEM_ALL)
    return OPIPE_OK;
  return opi_list_idle(rank, err);
}

static opipe_status run_request(opi_rank *rank, opipe_error *err) {
  OPI_TRY(opi_messages_flush(rank, err));
  /* The receives of a shape's first body, then the request itself. */
  opipe_status status = run_list(rank, err);
  if (status == OPIPE_OK && opi_cursor_of(rank)->posting) {
    begin_request(rank);
    status = run_list(rank, err);
  }
  if (status == OPIPE_OK && rank == opi_session_first(rank->setup))
    status = opi_store_plain(rank, rank->worker->request, err);
  if (status == OPIPE_PENDING && rank->worker->at_fence)
    opi_count_on(&rank->worker->n_looks);
  if (status == OPIPE_OK)
    end(rank);
  return status;
}

opipe_status opi_list_run(opi_rank *rank, opipe_error *err) {
  opi_cursor *cursor = opi_cursor_of(rank);
  const bool trains = opi_session_trains(rank->setup);
  if (trains && opi_request_withdrawn(rank->worker->request))
    return opi_messages_flush(rank, err); /* no rank does anything for it */
  OPI_TRY(begin(rank, err));
  if (!trains)
    return run_request(rank, err);
  /* Sends that wait, then the list; a double-buffered evaluation runs it a second time. */
  opi_compiled *t = cursor->item.shape;
  OPI_TRY(opi_messages_flush(rank, err));
  opipe_status status = run_list(rank, err);
  if (status == OPIPE_OK && goes_on(t, rank)) {
    cursor->second = true;
    rank->worker->step = t->lists->rank_first[rank->index];
    status = run_list(rank, err);
  }
  if (status == OPIPE_OK)
    status = leave_nothing(rank, err);
  if (status == OPIPE_OK)
    end(rank);
  return status;
}
