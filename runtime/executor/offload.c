/* SPDX-License-Identifier: Apache-2.0 */
/* Stashes on their way to the host and back. All four steps queue work and go on:
 *
 *   rank's queue   ─[F]─■ready ── OFFLOAD ── ... wait for left ── LEAVE ──► the memory is free
 *   out queue           └► wait ─[read]─[read]─■left
 *
 *   rank's queue   ─────■ready ── RELOAD ─── ... wait for returned ─ RETURN ─[B]─►
 *   in queue            └► wait for ready, left ─[write]─[write]─■returned
 *
 * LEAVE and RETURN also add an entry to the work queued ahead, which is due when the copies are
 * done: receives that go where a stash was are posted behind it, and it reports late errors of the
 * copies. */
#include "runtime/executor/ahead.h"
#include "runtime/executor/stamps.h"
#include "runtime/executor/steps.h"

/* Makes `queue` wait for all that the rank's queue was given. */
static opipe_status follow(opi_rank *rank, opipe_queue *queue, opipe_error *err) {
  OPI_TRY(OPI_ASK_RANK(rank, event_record, err, rank->queue, rank->mover.ready));
  return OPI_ASK_RANK(rank, event_wait, err, queue, rank->mover.ready);
}

/* A tensor's place on the device: where the forward left it, or where the backward reads it. */
static opipe_region region_of(const opi_compiled *t, const opi_list_move *move, uint32_t i,
                              bool out) {
  opipe_region from, to;
  opi_route_regions(t, t->lists->moved[move->first + i].route, move->microbatch, &from, &to);
  return out ? from : to;
}

static opipe_status copy_all(opi_rank *rank, const opi_step *step, bool out, opipe_error *err) {
  const opi_compiled *t = opi_compiled_at(rank);
  const opi_list_move *move = &t->lists->moves[step->route];
  char *host = t->offloads[rank->index].data + move->at_bytes;
  opipe_queue *queue = out ? rank->mover.out : rank->mover.in;
  for (uint32_t i = 0; i < move->n; ++i) {
    const opipe_region region = region_of(t, move, i, out);
    char *at = host + t->lists->moved[move->first + i].offset_bytes;
    OPI_TRY(out ? OPI_ASK_RANK(rank, read, err, queue, at, &region)
                : OPI_ASK_RANK(rank, write, err, queue, &region, at));
  }
  return OPIPE_OK;
}

static opipe_status begin(opi_rank *rank, const opi_step *step, uint32_t index, bool out,
                          opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_move_run *run = &t->move_runs[step->route];
  opipe_queue *queue = out ? rank->mover.out : rank->mover.in;
  opipe_event *begun = out ? run->left_begun : run->return_begun;
  if (run->n_awaited != 0) /* its events still belong to the mini-batch before */
    return OPIPE_PENDING;
  OPI_TRY(follow(rank, queue, err));
  if (!out)
    OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, queue, run->left));
  if (begun != NULL)
    OPI_TRY(OPI_ASK_RANK(rank, event_record, err, queue, begun));
  OPI_TRY(copy_all(rank, step, out, err));
  opi_ran *ran = opi_ran_at(t, rank->index, index);
  *ran = (opi_ran){{opi_clock_ns(), 0}, opi_step_request(rank, step)->number + 1};
  *(out ? &run->out_ran : &run->in_ran) = ran;
  return OPI_ASK_RANK(rank, event_record, err, queue, out ? run->left : run->returned);
}

static opipe_status await(opi_rank *rank, const opi_step *step, bool out, opipe_error *err) {
  opi_compiled *t = opi_compiled_at(rank);
  opi_move_run *run = &t->move_runs[step->route];
  const opi_ahead_entry e = {
      .kind = OPI_AHEAD_MOVE, .work.shape = t, .message = step->route, .out = out};
  if (!opi_ahead_has_room(rank))
    return OPIPE_PENDING;
  OPI_TRY(OPI_ASK_RANK(rank, event_wait, err, rank->queue, out ? run->left : run->returned));
  ++run->n_awaited;
  return opi_ahead_push(rank, &e, err);
}

opipe_status opi_step_move(opi_rank *rank, const opi_step *step, uint32_t index, opipe_error *err) {
  switch (step->kind) {
    case OPI_ACT_OFFLOAD:
      return begin(rank, step, index, true, err);
    case OPI_ACT_RELOAD:
      return begin(rank, step, index, false, err);
    default:
      return await(rank, step, step->kind == OPI_ACT_LEAVE, err);
  }
}

opipe_event *opi_moved_event(const opi_ahead_entry *e) {
  const opi_move_run *run = &e->work.shape->move_runs[e->message];
  return e->out ? run->left : run->returned;
}

opipe_status opi_step_moved(opi_rank *rank, const opi_ahead_entry *e, opipe_error *err) {
  opi_move_run *run = &e->work.shape->move_runs[e->message];
  opi_span *span = &(e->out ? run->out_ran : run->in_ran)->span;
  --run->n_awaited;
  span->end_ns = opi_clock_ns();
  if (run->left_begun == NULL)
    return OPIPE_OK;
  return opi_stamps_span(rank, e->out ? run->left_begun : run->return_begun,
                         e->out ? &run->left : &run->returned, span, err);
}
