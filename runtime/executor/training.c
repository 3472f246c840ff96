/* SPDX-License-Identifier: Apache-2.0 */
/* Mini-batches of training: a rank runs its whole list of each, adds its gradients up over replicas
 * meanwhile, and updates its parameters. An evaluation runs the forward part of the list.
 */
#include <string.h>

#include "partition/lists/passed.h"
#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

/* ---- sums over replicas ---- */

opipe_status opi_sums_carry_on(opi_rank *rank, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  uint32_t kept = 0;
  const opipe_status status = opi_weights_progress(rank->setup->shapes->weights, rank->index, err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < cursor->n_reducing; ++i) {
    const uint32_t index = cursor->reducing[i];
    const opi_step *step = &t->lists->steps[index];
    const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
    if (opi_weights_is_summed(rank->setup->shapes->weights, opi_weights_instance_at(t, instance)))
      opi_ran_at(t, rank->index, index)->span.end_ns = opi_clock_ns();
    else
      cursor->reducing[kept++] = index;
  }
  cursor->n_reducing = kept;
  rank->worker->polls =
      rank->worker->polls || ((kept != 0 || cursor->passing) && rank->worker->ahead != NULL);
  return OPIPE_OK;
}

bool opi_sums_start(const opi_rank *rank) {
  return opi_cursor_of(rank)->n_reducing != 0 &&
         opi_weights_starts(rank->setup->shapes->weights, rank->index);
}

/* The members of a sum are queued. The sum may even be done when the host sees that. */
void opi_step_summing(const opi_ahead_entry *e) {
  const uint64_t now = opi_clock_ns(), end = e->work.ran->span.end_ns;
  e->work.ran->span.start_ns = end != 0 && end < now ? end : now;
}

opipe_status opi_step_reduce(opi_rank *rank, const opi_step *step, uint32_t index,
                             opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  const opi_ahead_entry e = {.kind = OPI_AHEAD_SUM, .work.ran = opi_ran_at(t, rank->index, index)};
  if (!opi_ahead_has_room(rank) || opi_queue_starts(rank))
    return OPIPE_PENDING;
  if (!opi_ahead_is_empty(rank))
    OPI_TRY(opi_ahead_push(rank, &e, err));
  e.work.ran->span = (opi_span){opi_clock_ns(), 0};
  cursor->reducing[cursor->n_reducing++] = index;
  OPI_TRY(
      opi_weights_reduce(rank->setup->shapes->weights, opi_weights_instance_at(t, instance), err));
  return opi_sums_move(rank, err);
}

/* ---- programs ---- */

/* The number that dropout's random numbers follow from: training steps before this one. */
static uint64_t step_number(const opi_compiled *t, const opi_request *request,
                            const opi_cursor *cursor) {
  return t->setup->shapes->periodic || t->setup->reference ? request->ticket->step : cursor->number;
}

static void set_scalars(opi_rank *rank, const opi_step *step, const struct opi_ticket *ticket,
                        uint64_t number) {
  int64_t *scalars = opi_cursor_of(rank)->scalars;
  opi_program_place(rank, step, number);
  scalars[OPI_SCALAR_SEED] = (int64_t)rank->setup->plan->decided.train->seed;
  memcpy(&scalars[OPI_SCALAR_COUNT], &ticket->count, sizeof ticket->count);
  memcpy(&scalars[OPI_SCALAR_SUM], ticket->sums, sizeof ticket->sums);
}

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
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
  const bool parts =
      !evaluate && t->passed.first != NULL && t->passed.first[index] != t->passed.first[index + 1];
  if (parts && !opi_ahead_has_room_for(rank, OPI_PARTS_MOST + 1))
    return OPIPE_PENDING;
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
  set_scalars(rank, step, request->ticket, work.number);
  opipe_binding *bound = unit->bindings[binding].sets[set];
  const uint32_t n_scalars =
      opi_scalar_count(opi_graphs_at(t, step->stage, step->microbatch)->scalars);
  return parts ? opi_program_run_parts(rank, &work, bound, n_scalars, err)
               : opi_program_run(rank, &work, bound, n_scalars, err);
}

/* ---- the update ---- */

/* The update needed all sums, so they are done. */
static void end_sums(const opi_compiled *t, const opi_rank *rank) {
  opi_cursor *cursor = opi_cursor_of(rank);
  for (uint32_t i = 0; i < cursor->n_reducing; ++i)
    opi_ran_at(t, rank->index, cursor->reducing[i])->span.end_ns = opi_clock_ns();
  cursor->n_reducing = 0;
  cursor->passing = false;
}

opipe_status opi_step_update(opi_rank *rank, uint32_t index, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_span *span = &opi_ran_at(t, rank->index, index)->span;
  opi_cursor *cursor = opi_cursor_of(rank);
  /* Wait until the previous step is settled and this one's loss is there. */
  const opipe_status settled = opi_rank_settle(rank, err);
  if (settled != OPIPE_OK)
    return settled;
  if (opi_ahead_stores(rank))
    return OPIPE_PENDING;
  if (span->start_ns == 0 || span->end_ns != 0) { /* the first try */
    *span = (opi_span){opi_clock_ns(), 0};
    cursor->finite = opi_train_is_finite(t, rank->worker->request, rank->index);
  }
  OPI_TRY(opi_sums_move(rank, err));
  /* Try sums, norm and update until all ranks have got there. */
  const struct opi_ticket *ticket = rank->worker->request->ticket;
  opi_weights *weights = rank->setup->shapes->weights;
  const opipe_status status = opi_weights_step(weights, rank->index, cursor->finite,
                                               ticket->has_lr ? &ticket->lr : NULL, err);
  if (status == OPIPE_PENDING && rank->worker->ahead != NULL)
    rank->worker->polls = true; /* an asynchronous device has no doorbell */
  if (status == OPIPE_OK)
    span->end_ns = opi_clock_ns();
  if (status == OPIPE_OK)
    end_sums(t, rank);
  if (status == OPIPE_OK && rank->index == opi_weights_reporter(weights))
    opi_weights_report(weights, rank->index, &rank->worker->request->ticket->report);
  return status;
}

/* ---- a mini-batch ---- */

static opipe_status begin(opi_rank *rank, opipe_error *err) {
  const opi_engine *engine = opi_engine_of(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  if (cursor->begun)
    return OPIPE_OK;
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

/* Counts the messages of this mini-batch, on which the numbers of the next ones stand. */
static void end(opi_rank *rank) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t kind = cursor->item.kind;
  const bool evaluate = kind == OPI_ITEM_EVALUATE;
  cursor->begun = false;
  if (kind == OPI_ITEM_PROLOGUE) {
    rank->worker->request = NULL; /* its body is still to come */
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

/* A double-buffered evaluation runs the list twice: the steps of a prologue, then the rest. */
static bool goes_on(const opi_compiled *t, const opi_rank *rank) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  return t->setup->shapes->periodic && cursor->item.kind == OPI_ITEM_EVALUATE && !cursor->second;
}

/* Messages of a double-buffered body leave its memory during the next body. Where none follows, the
 * next item may be of another shape, and this one's may be freed: none may be left behind. */
static opipe_status leave_nothing(opi_rank *rank, opipe_error *err) {
  const opi_cursor *cursor = opi_cursor_of(rank);
  const uint32_t kind = cursor->item.kind;
  if (!rank->setup->shapes->periodic || kind == OPI_ITEM_PROLOGUE || kind == OPI_ITEM_ALL)
    return OPIPE_OK;
  return opi_list_idle(rank, err);
}

static opipe_status run(opi_rank *rank, opipe_error *err) {
  opi_cursor *cursor = opi_cursor_of(rank);
  if (opi_request_withdrawn(rank->worker->request))
    return opi_messages_flush(rank, err); /* all ranks leave the step out */
  OPI_TRY(begin(rank, err));
  /* Try the sends that wait, then run the list; a double-buffered evaluation runs it twice. */
  opi_compiled *t = cursor->item.shape;
  OPI_TRY(opi_messages_flush(rank, err));
  opipe_status status = opi_list_walk(rank, err);
  if (status == OPIPE_OK && goes_on(t, rank)) {
    cursor->second = true;
    rank->worker->step = t->lists->rank_first[rank->index];
    status = opi_list_walk(rank, err);
  }
  if (status == OPIPE_OK && cursor->owed != NULL && cursor->item.kind == OPI_ITEM_EVALUATE)
    status = opi_rank_settle(rank, err); /* the step before it is left first */
  if (status == OPIPE_OK)
    status = leave_nothing(rank, err);
  if (status == OPIPE_OK)
    end(rank);
  return status;
}

const opi_runner opi_step_runner = {.n_items = 2,
                                    .run = run,
                                    .compute = compute,
                                    .store = opi_store_losses,
                                    .reference = opi_reference_step};
