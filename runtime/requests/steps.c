/* SPDX-License-Identifier: Apache-2.0 */
/* A training session from the caller's side: steps, evaluations, flush, reports. */
#include <string.h>
#include <time.h>

#include "runtime/requests/requests.h"

/* ---- tickets ---- */

/* One loss for every piece of every micro-batch. */
static size_t n_losses(const opi_setup *s) {
  return (size_t)s->plan->decided.n_microbatches * s->shapes->n_pieces;
}

opipe_status opi_ticket_make(opi_request *request, opipe_error *err) {
  const opi_setup *s = request->setup;
  if (!opi_session_trains(s))
    return OPIPE_OK;
  struct opi_ticket *ticket = opi_alloc_zero(s->allocator, 1, sizeof *ticket);
  if (ticket == NULL)
    return opi_fail_nomem(err, sizeof *ticket, "a ticket");
  ticket->losses = opi_alloc_zero(s->allocator, n_losses(s), sizeof(double));
  if (ticket->losses == NULL) {
    opi_free(s->allocator, ticket, sizeof *ticket);
    return opi_fail_nomem(err, n_losses(s) * sizeof(double), "a ticket");
  }
  request->ticket = ticket;
  return OPIPE_OK;
}

void opi_ticket_free(opi_request *request) {
  const opi_setup *s = request->setup;
  struct opi_ticket *ticket = request->ticket;
  if (ticket == NULL)
    return;
  opi_free(s->allocator, ticket->labels, (size_t)ticket->labels_bytes);
  opi_free(s->allocator, ticket->losses, n_losses(s) * sizeof(double));
  opi_free(s->allocator, ticket, sizeof *ticket);
}

/* The order of the sum does not depend on which rank finished first. */
double opi_train_loss(const opi_request *request) {
  const size_t n = n_losses(request->setup);
  double loss = 0;
  for (size_t m = 0; m < n; ++m)
    loss += request->ticket->losses[m];
  return loss;
}

/* A failed request has no loss, and other ranks may still work on it. */
void opi_train_finished(opi_request *request) {
  struct opi_ticket *ticket = request->ticket;
  atomic_store(&ticket->end_ns, opi_clock_ns());
  if (opi_request_failed(request))
    return;
  ticket->loss = opi_rank_is_here(request->setup, 0) ? opi_train_loss(request)
                                                     : atomic_load(&ticket->told_loss);
  if (ticket->is_told)
    ticket->count = atomic_load(&ticket->told_count);
  const float loss = (float)ticket->loss;
  if (request->results[0].data != NULL)
    memcpy(request->results[0].data, &loss, sizeof loss);
}

/* ---- parameters ---- */

/* Does the host give a learning rate? The API has checked whether it may. */
static bool gives_lr(const opipe_submit_params *params) {
  return OPIPE_HAS(params, opipe_submit_params, lr) && (params->flags & OPIPE_SUBMIT_LR) != 0;
}

static opipe_status check_params(const opi_setup *s, const opipe_submit_params *params,
                                 uint32_t kind, opipe_error *err) {
  if (OPIPE_HAS(params, opipe_submit_params, on_output_ctx) && params->on_output != NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "on_output: only session_submit asks for the memory of outputs");
  }
  if (OPIPE_HAS(params, opipe_submit_params, flags) &&
      (params->flags & OPIPE_SUBMIT_DEVICE_OUTPUTS) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "flags 0x%x: outputs of training sessions are in host memory", params->flags);
  }
  if (params->deadline_ns == 0 || !s->shapes->periodic || kind != OPI_TICKET_TRAIN)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_UNSUPPORTED,
      "train_step: a deadline of %llu ns: with double-buffered weights the steps before "
      "and after it share its work",
      (unsigned long long)params->deadline_ns);
}

/* ---- results ---- */

static opipe_status place_results(const opi_compiled *t, const opipe_submit_params *params,
                                  opi_request *request, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_variant *variant = &t->model->variants[0];
  const opi_training *training = variant->slices[0].training;
  const bool evaluate = request->ticket->kind == OPI_TICKET_EVALUATE;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    opi_result *result = &request->results[o];
    result->data = NULL;
    result->on_device = false;
    result->ready = result->done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
    result->made = t->made[o];
    result->rank = 0;
    result->n_bytes = o == 0 ? sizeof(float) : 0;
    if (o == 1 && !evaluate)
      continue;
    if (o == 1) {
      const opi_value *value = &training->graph->values[training->output];
      result->rank = (uint32_t)value->rank;
      for (int32_t d = 0; d < value->rank; ++d)
        result->shape[d] = value->shape[d];
      if (t->output_carry[1].axis >= 0) {
        result->shape[t->output_carry[1].axis] =
            value->shape[t->output_carry[1].axis] / variant->rows * t->given.binding.batch_rows;
      }
      if (t->model->n_slices > 1)
        result->shape[t->token_axis] = t->model->n_tokens;
      if (!opi_tensor_bytes(s->output_dtypes[o], result->shape, result->rank, &result->n_bytes)) {
        return opi_fail(err, OPIPE_E_INVALID, "output '%s': its size overflows",
                        s->output_names[o]);
      }
    }
    if (result->made == OPI_MADE_NONE)
      continue; /* elsewhere */
    OPI_TRY(opi_result_own(s, o, result, err));
    if (result->made == OPI_MADE_SOME)
      memset(result->data, 0, (size_t)result->n_bytes);
  }
  for (uint32_t i = 0; i < params->n_outputs; ++i) {
    uint32_t o = 0;
    opipe_binding_io io;
    opi_array_get(params->outputs, params->io_stride, i, &io, sizeof io);
    while (o < s->n_outputs &&
           (io.name == NULL || strcmp(io.name, s->output_names[o]) != 0 || (o == 1 && !evaluate)))
      ++o;
    if (o == s->n_outputs) {
      return opi_fail(err, OPIPE_E_NOTFOUND, "a %s has no output '%s'",
                      evaluate ? "evaluation" : "training step",
                      io.name == NULL ? "(NULL)" : io.name);
    }
    const char *data = request->results[o].data;
    if (data != NULL && data != request->results[o].own)
      return opi_fail(err, OPIPE_E_INVALID, "output '%s' is given twice", s->output_names[o]);
    OPI_TRY(opi_result_take(s, o, &io, &request->results[o], err));
    if (request->results[o].on_device) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "output '%s' lies on device %d:%d: outputs of training sessions are in host "
                      "memory",
                      s->output_names[o], request->results[o].device_type,
                      request->results[o].device_id);
    }
  }
  return OPIPE_OK;
}

/* ---- starting ---- */

static opipe_status prepare(opi_session *s, const opipe_submit_params *params, opi_request *request,
                            opipe_error *err) {
  struct opi_ticket *ticket = request->ticket;
  opipe_status status = opi_read_inputs(s->setup, params, request, err);
  if (status == OPIPE_OK)
    status = opi_shape_find(s->setup, request, err);
  if (status == OPIPE_OK)
    status = opi_needs_check(request, err);
  if (status != OPIPE_OK)
    return status;
  opi_compiled *shape = request->runs;
  const opi_decision *given = &shape->given;
  request->rows =
      given->binding.batch_dim == NULL ? (int64_t)given->n_microbatches : given->binding.batch_rows;
  request->n_microbatches = s->setup->plan->decided.n_microbatches;
  request->has_plain = false;
  for (size_t m = 0; m < n_losses(s->setup); ++m)
    ticket->losses[m] = 0;
  memset(&ticket->report, 0, sizeof ticket->report);
  atomic_store(&ticket->end_ns, 0);
  OPI_TRY(place_results(shape, params, request, err));
  OPI_TRY(opi_parcel_check(request, err));
  OPI_TRY(opi_lent_take(request, params->deadline_ns != 0, err));
  OPI_TRY(opi_train_look(request, err)); /* PENDING: labels that come later are read later */
  return OPIPE_OK;
}

opipe_status opi_train_look(opi_request *request, opipe_error *err) {
  opi_setup *s = request->setup;
  const uint32_t labels = s->shapes->labels_input;
  struct opi_ticket *ticket = request->ticket;
  const bool away = labels != OPIPE_NONE && request->feeds[labels].on_device; /* refused */
  if (opi_inputs_come(s)) { /* shifted and counted by process 0, they come before the step begins */
    ticket->shifted = ticket->counted = true;
    ticket->count = 0;
    memset(ticket->sums, 0, sizeof ticket->sums);
    return OPIPE_OK;
  }
  if (!opi_counts_here(request)) { /* told with the verdict */
    ticket->shifted = ticket->counted = true;
    ticket->is_told = true;
    ticket->judge.data = NULL;
    ticket->count = 0;
    memset(ticket->sums, 0, sizeof ticket->sums);
  }
  if (!ticket->shifted) {
    const opipe_status status = opi_train_shift(s, request, err);
    if (status != OPIPE_OK)
      return status;
    ticket->shifted = true;
  }
  if (ticket->counted)
    return OPIPE_OK;
  if (!away && !opi_request_may_go(request))
    return OPIPE_PENDING;
  OPI_TRY(opi_train_count(request->runs, request, &ticket->count, ticket->sums, err));
  ticket->counted = true;
  return OPIPE_OK;
}

static void publish(opi_session *s, opi_request *current, opi_request *next, uint32_t kind) {
  opi_steps *t = &s->steps;
  const uint64_t k = t->n_items++;
  s->engine->ring[k % s->engine->ring_room] = current != NULL ? current : next;
  s->engine->items[k % s->engine->ring_room] =
      (opi_item){.current = current,
                 .next = next,
                 .shape = s->engine->ring[k % s->engine->ring_room]->shape->compiled,
                 .kind = kind};
  atomic_store_explicit(&s->engine->n_submitted, k + 1, memory_order_release);
  for (uint32_t i = 0; i < s->setup->n_here; ++i)
    s->setup->transport->ring(s->setup->ranks[s->setup->here[i]].endpoint);
}

static void publish_epilogue(opi_session *s) {
  if (s->steps.held != NULL)
    publish(s, s->steps.held, NULL, OPI_ITEM_EPILOGUE);
  s->steps.held = NULL;
}

static void run_reference(opi_request *request) {
  opi_session *s = request->caller->session;
  opi_steps *t = &s->steps;
  opipe_error why = OPIPE_ERROR_INIT;
  const opipe_status status = opi_reference_run(s->setup, request, &why);
  if (status < 0)
    (void)opi_request_fail(request, &why);
  t->n_steps += status == OPIPE_OK && request->ticket->kind == OPI_TICKET_TRAIN;
}

void opi_train_publish(opi_request *request) {
  opi_session *s = request->caller->session;
  opi_steps *t = &s->steps;
  const bool trains = request->ticket->kind == OPI_TICKET_TRAIN;
  request->ticket->step = t->n_steps;
  t->n_steps += trains && s->shapes->periodic;
  if (s->setup->reference) {
    run_reference(request);
  } else if (!trains) {
    publish_epilogue(s);
    publish(s, request, request, OPI_ITEM_EVALUATE);
  } else if (!s->shapes->periodic) {
    publish(s, request, request, OPI_ITEM_ALL);
  } else {
    if (t->held != NULL && t->held->shape != request->shape)
      publish_epilogue(s); /* another shape: the pipeline drains */
    publish(s, t->held, request, t->held == NULL ? OPI_ITEM_PROLOGUE : OPI_ITEM_ALL);
    t->held = request;
    if (request->ticket->wanted)
      publish_epilogue(s);
  }
}

/* Returns the handle, since an on_done may release the request once it is published. */
static opipe_request *begin(opi_session *s, opi_request *request,
                            const opipe_submit_params *params) {
  request->number = s->shapes->n_numbered++;
  request->shape->last_used = request->number + 1;
  request->ticket->start_ns = opi_clock_ns();
  request->deadline_ns =
      params->deadline_ns == 0 ? 0 : opi_later_ns(request->ticket->start_ns, params->deadline_ns);
  const bool goes = request->ticket->counted && s->held.first == NULL &&
                    request->number < s->held.gate && opi_request_may_go(request);
  opi_request_begin(request, params); /* from here on a failed session ends it */
  opipe_request *handle = opi_request_handle(request);
  opi_request_start(request, goes);
  return handle;
}

static opipe_status start_locked(opi_session *s, const opipe_submit_params *params, uint32_t kind,
                                 opi_request **out_request, opipe_request **out_handle,
                                 opipe_error *err) {
  opi_request *request = NULL;
  const opipe_status admitted = opi_submit_admit(s, &request, err);
  if (admitted != OPIPE_OK)
    return admitted;
  request->ticket->kind = kind;
  request->ticket->shifted = request->ticket->counted = request->ticket->wanted = false;
  request->ticket->is_told = false;
  atomic_store(&request->ticket->told_count, 0);
  request->ticket->has_lr = gives_lr(params);
  request->ticket->lr = request->ticket->has_lr ? params->lr : 0;
  const uint64_t passed = atomic_load(&s->room.n_passed);
  opipe_status status = prepare(s, params, request, err);
  if (status == OPIPE_OK)
    status = opi_submit_follow(s, err);
  if (status != OPIPE_OK) {
    opi_submit_refuse(s, request, passed, status);
    return status;
  }
  *out_request = request;
  *out_handle = begin(s, request, params);
  return OPIPE_OK;
}

opipe_status opi_train_check(const opi_session *s, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  return opi_session_trains(s->setup) ? OPIPE_OK : opi_train_refuse(err);
}

opipe_status opi_train_refuse(opipe_error *err) {
  return opi_fail(err, OPIPE_E_STATE, "the session's plan is for inference: it cannot train");
}

static opipe_status start(opi_session *s, const opipe_submit_params *params, uint32_t kind,
                          opi_request **out_request, opipe_request **out_handle, opipe_error *err) {
  opipe_request *handle = NULL;
  OPI_TRY(opi_train_check(s, err));
  OPI_TRY(check_params(s->setup, params, kind, err));
  opi_submit_begin(s);
  const opipe_status status = start_locked(s, params, kind, out_request, &handle, err);
  opi_submit_end(s, status == OPIPE_OK ? *out_request : NULL);
  if (status == OPIPE_OK && out_handle != NULL)
    *out_handle = handle;
  return status;
}

opipe_status opi_train_step(opi_session *s, const opipe_submit_params *params,
                            opi_request **out_ticket, opipe_request **out_handle,
                            opipe_error *err) {
  return start(s, params, OPI_TICKET_TRAIN, out_ticket, out_handle, err);
}

opipe_status opi_train_evaluate(opi_session *s, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err) {
  return start(s, params, OPI_TICKET_EVALUATE, out_request, out_handle, err);
}

void opi_train_let_finish(opi_request *request) {
  opi_session *s = request->caller->session;
  if (!s->shapes->periodic)
    return;
  opi_lock_take(&s->shapes->submit_lock);
  if (s->steps.held == request)
    publish_epilogue(s);
  else
    request->ticket->wanted = true; /* it may not be published yet */
  opi_lock_give(&s->shapes->submit_lock);
  if (opi_session_failed(s->setup))
    opi_session_settle(s);
}

void opi_train_leave_none(opi_session *s) {
  if (!s->shapes->periodic)
    return;
  opi_lock_take(&s->shapes->submit_lock);
  publish_epilogue(s);
  opi_lock_give(&s->shapes->submit_lock);
  if (opi_session_failed(s->setup))
    opi_session_settle(s);
}

/* ---- reports ---- */

opipe_status opi_train_report(opi_request *ticket, opi_train_result *out_result, opipe_error *err) {
  if (ticket->ticket == NULL) {
    return opi_fail(err, OPIPE_E_STATE,
                    "request %llu is not a step: its session's plan is for inference",
                    (unsigned long long)ticket->number);
  }
  OPI_TRY(opi_request_poll(ticket, err) == OPIPE_PENDING
              ? opi_fail(err, OPIPE_E_STATE, "ticket %llu has not finished",
                         (unsigned long long)ticket->number)
              : opi_request_poll(ticket, err));
  const struct opi_ticket *t = ticket->ticket;
  *out_result = (opi_train_result){.step = t->report,
                                   .loss = t->loss,
                                   .count = t->count,
                                   .step_ns = atomic_load(&t->end_ns) - t->start_ns};
  return OPIPE_OK;
}

opi_weights *opi_train_weights(opi_session *session) {
  return session->shapes->weights;
}

void opi_train_set_step(opi_session *session, uint64_t step) {
  opi_lock_take(&session->shapes->submit_lock);
  session->steps.n_steps = step;
  for (uint32_t r = 0; r < session->setup->plan->decided.n_ranks; ++r) {
    session->engine->cursors[r].n_steps = step;
    atomic_store(&session->engine->cursors[r].n_done, step);
  }
  opi_lock_give(&session->shapes->submit_lock);
}
