/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's list, step by step. Each step happens, or answers OPIPE_PENDING and is tried again; the
 * time is used for sums over replicas, norms and the device.
 *
 * A failed request flows on: its messages are received and sent as ever, so that all ranks go on
 * counting alike; only loads, programs and stores are left out.
 */
#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

static bool in_evaluate(const opi_step *step) {
  return step->kind != OPI_ACT_REDUCE && step->kind != OPI_ACT_UPDATE &&
         (step->kind < OPI_ACT_OFFLOAD || step->kind > OPI_ACT_RETURN) &&
         step->pass == OPI_PROGRAM_F;
}

static uint32_t peer_of(const opi_rank *rank, const opi_step *step) {
  const opi_compiled *t = opi_compiled_at(rank);
  switch (step->kind) {
    case OPI_ACT_RECV:
    case OPI_ACT_POST:
      return t->messages[step->route].src_rank;
    case OPI_ACT_SEND:
    case OPI_ACT_DRAIN:
    case OPI_ACT_RESERVE:
      return t->messages[step->route].dst_rank;
    case OPI_ACT_SUM:
    case OPI_ACT_AWAIT:
      return opi_meet_awaits(rank);
    default:
      return OPIPE_NONE;
  }
}

opipe_status opi_step_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                              opipe_error *err) {
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  return opi_engine_of(rank)->runner->compute(rank, step, index, err);
}

/* Has the rank more under way than its list: norms, sums, letters? */
static bool has_more(const opi_rank *rank) {
  return opi_weights_of(rank) != NULL || opi_cursor_of(rank)->owed != NULL ||
         opi_engine_of(rank)->elsewhere != NULL || opi_comings_of(rank)->n != 0;
}

static opipe_status compute(opi_rank *rank, const opi_step *step, uint32_t index,
                            opipe_error *err) {
  const opipe_status status = opi_step_compute(rank, step, index, err);
  if (status != OPIPE_OK)
    return status;
  OPI_TRY(opi_messages_flush(rank, err));
  OPI_TRY(opi_ahead_move(rank, err));
  if (!has_more(rank))
    return OPIPE_OK;
  OPI_TRY(opi_meets_move(rank, err));
  const opipe_status settled = opi_rank_settle(rank, err);
  return settled < 0 ? settled : opi_sums_move(rank, err);
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
      return opi_engine_of(rank)->runner->store(rank, step, err);
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
    case OPI_ACT_SUM:
      return opi_step_sum(rank, step, index, err);
    case OPI_ACT_AWAIT:
      return opi_step_await(rank, step, err);
    case OPI_ACT_REDUCE:
      return opi_step_reduce(rank, step, index, err);
    case OPI_ACT_OFFLOAD:
    case OPI_ACT_LEAVE:
    case OPI_ACT_RELOAD:
    case OPI_ACT_RETURN:
      return opi_step_move(rank, step, index, err);
    default:
      return opi_step_update(rank, index, err);
  }
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

opipe_status opi_list_walk(opi_rank *rank, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_cursor *cursor = opi_cursor_of(rank);
  const bool all = cursor->item.kind == OPI_ITEM_REQUEST && !cursor->posting;
  const opi_step *steps = t->lists->steps;
  const uint32_t end = cursor->end;
  for (uint32_t i = rank->worker->step; i < end;) {
    const opi_step *step = &steps[i];
    const uint32_t batch = step->batch;
    /* Try the step, or a batch as a whole. Pass over steps that do not belong to the item. */
    const opipe_status status = batch != 0 ? run_batch(rank, &step, err)
                                : all || opi_step_takes_part(t, cursor, step)
                                    ? run_step(rank, step, i, err)
                                    : OPIPE_OK;
    /* Blocked: use the time for norms, sums and the device, and note the rank that is waited for.
     */
    if (status == OPIPE_PENDING) {
      const opipe_status settled = has_more(rank) ? opi_rank_settle(rank, err) : OPIPE_OK;
      if (settled < 0)
        return settled;
      OPI_TRY(opi_sums_move(rank, err));
      OPI_TRY(opi_meets_move(rank, err));
      OPI_TRY(opi_ahead_move(rank, err));
      rank->worker->peer = peer_of(rank, step);
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

opipe_status opi_list_run(opi_rank *rank, opipe_error *err) {
  return opi_engine_of(rank)->runner->run(rank, err);
}
