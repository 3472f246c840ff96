/* SPDX-License-Identifier: Apache-2.0 */
/* The reference runs the plan's own programs in the submitting thread, one after the other, without
 * schedule, transport or other threads: all forwards, then all backwards, each rank's in the order
 * of its records, so that gradients are added in that order. Every tensor has memory of its own;
 * messages are copies.
 */
#include <string.h>

#include "runtime/executor/ahead.h"
#include "runtime/executor/steps.h"

static opipe_status hand_on(opi_compiled *t, const opi_step *step, opipe_error *err) {
  opi_setup *s = t->setup;
  const opi_list_message *m = &t->lists->messages[step->route];
  const opi_list_stream *stream = &t->lists->streams[m->stream];
  opipe_region src, dst;
  opi_route_regions(t, m->route, m->microbatch, &src, &dst);
  return opi_move_region(&s->ranks[stream->src_rank], &src, &s->ranks[stream->dst_rank], &dst, err);
}

static opipe_status run_step(opi_compiled *t, opi_request *request, uint32_t index,
                             opipe_error *err) {
  opi_setup *s = t->setup;
  const opi_step *step = &t->lists->steps[index];
  const bool evaluate = request->ticket != NULL && request->ticket->kind == OPI_TICKET_EVALUATE;
  opi_rank *rank = &s->ranks[opi_piece_rank(t->pieces, step->stage, step->replica)];
  opipe_status status = OPIPE_PENDING;
  if (step->kind == OPI_ACT_REDUCE || step->kind == OPI_ACT_UPDATE ||
      (evaluate && step->pass != OPI_PROGRAM_F))
    return OPIPE_OK;
  rank->worker->request = request;
  s->engine->cursors[rank->index].item =
      (opi_item){.current = request, .next = request, .shape = t, .kind = OPI_ITEM_ALL};
  while (status == OPIPE_PENDING) { /* until the host's flag is set */
    switch (step->kind) {
      case OPI_ACT_LOAD:
        status = opi_step_load(rank, step, err);
        break;
      case OPI_ACT_STORE:
        status = s->engine->runner->store(rank, step, err);
        break;
      case OPI_ACT_SEND:
        status = hand_on(t, step, err);
        break;
      case OPI_ACT_COPY:
        status = opi_step_copy(rank, step, err);
        break;
      case OPI_ACT_SUM:
        status = step->route == OPIPE_NONE ? OPIPE_OK : opi_plain_sum(t, step->route, err);
        break;
      default:
        status = opi_step_compute(rank, step, index, err);
        break;
    }
    if (status >= 0)
      OPI_TRY(opi_ahead_drain(rank, err));
  }
  s->engine->cursors[rank->index].part = 0;
  rank->worker->request = NULL;
  return status;
}

static opipe_status begin(opi_engine *t, const opi_request *request, opipe_error *err) {
  const uint32_t n_ranks = t->setup->plan->decided.n_ranks;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const double scale = opi_weights_loss_scale(t->setup->shapes->weights, r);
    memcpy(&t->cursors[r].scalars[OPI_SCALAR_SCALE], &scale, sizeof scale);
    if (request->ticket->kind == OPI_TICKET_TRAIN)
      OPI_TRY(opi_weights_begin(t->setup->shapes->weights, r, err));
  }
  return OPIPE_OK;
}

/* Makes the sums and updates of all ranks, in turns. */
static opipe_status update(opi_engine *t, opi_request *request, opipe_error *err) {
  const opi_decision *plan = &t->setup->plan->decided;
  opi_weights *weights = t->setup->shapes->weights;
  const double *lr = request->ticket->has_lr ? &request->ticket->lr : NULL;
  uint32_t left = plan->n_ranks;
  const uint32_t width = opi_plan_width(plan);
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas * width; ++i) {
    if (plan->instance_rank[i / width] != OPIPE_NONE)
      OPI_TRY(opi_weights_reduce(weights, i, err));
  }
  opipe_status status = OPIPE_OK;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    t->cursors[r].updated = false;
    t->cursors[r].finite = opi_train_is_finite(request->runs, request, r);
  }
  for (uint32_t r = 0; status >= 0 && left > 0; r = (r + 1) % plan->n_ranks) {
    if (t->cursors[r].updated)
      continue;
    status = opi_weights_step(weights, r, t->cursors[r].finite, lr, err);
    t->cursors[r].updated = status == OPIPE_OK;
    left -= status == OPIPE_OK;
  }
  if (status >= 0)
    opi_weights_report(weights, opi_weights_reporter(weights), &request->ticket->report);
  return status < 0 ? status : OPIPE_OK;
}

static opipe_status store_plain(opi_setup *s, opi_request *request, opipe_error *err) {
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) /* until the host's flag is set */
    status = opi_store_plain(&s->ranks[0], request, err);
  return status;
}

static opipe_status run_steps(opi_setup *s, opi_request *request, opipe_error *err) {
  opi_compiled *t = request->runs;
  for (uint32_t i = 0; i < t->lists->n_steps; ++i)
    OPI_TRY(run_step(t, request, i, err));
  for (uint32_t i = 0; i < s->n_here; ++i)
    OPI_TRY(opi_lent_end(&s->ranks[s->here[i]], request, err));
  if (opi_lent_queued(request))
    s->engine->above.queued(s->engine->above.ctx);
  return OPIPE_OK;
}

opipe_status opi_reference_request(opi_setup *s, opi_request *request, opipe_error *err) {
  OPI_TRY(run_steps(s, request, err));
  return store_plain(s, request, err);
}

opipe_status opi_reference_step(opi_setup *s, opi_request *request, opipe_error *err) {
  OPI_TRY(begin(s->engine, request, err));
  OPI_TRY(run_steps(s, request, err));
  return request->ticket->kind == OPI_TICKET_EVALUATE ? OPIPE_OK : update(s->engine, request, err);
}

opipe_status opi_reference_run(opi_setup *s, opi_request *request, opipe_error *err) {
  return s->engine->runner->reference(s, request, err);
}
