/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts a request: checks its inputs, finds or builds its shape, finds places for its results,
 * and publishes it to the ranks. One thread submits at a time; every rank works in the order of
 * submission.
 */
#include <string.h>

#include "loader/base/nearest.h"
#include "runtime/requests/requests.h"

/* ---- results ---- */

static opipe_status result_shape(const opi_setup *s, const opi_request *request, uint32_t output,
                                 opi_result *result, opipe_error *err) {
  const opi_compiled *t = request->runs;
  const opi_cut *c = t->model->cuts[0];
  const bool is_whole = t->model->n_slices == 1 && t->model->n_members == 1;
  const opi_graph *g = is_whole ? c->graph : t->model->variants[t->model->base].bound->graph;
  const opi_value *value = &g->values[g->outputs[output]];
  const opi_carry *carry = &t->output_carry[output];
  result->rank = (uint32_t)value->rank;
  for (int32_t d = 0; d < value->rank; ++d)
    result->shape[d] = value->shape[d];
  if (c->output_port[output] != OPIPE_NONE) {
    const opi_feed *feed = &request->feeds[t->ports[0][0].input[c->output_port[output]]];
    for (int32_t d = 0; d < value->rank; ++d)
      result->shape[d] = feed->shape[d];
  } else if (carry->axis >= 0) {
    result->shape[carry->axis] = carry->outer * request->rows * carry->inner;
  }
  if (opi_tensor_bytes(s->output_dtypes[output], result->shape, result->rank, &result->n_bytes))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "output '%s': its size overflows", s->output_names[output]);
}

opipe_status opi_result_own(const opi_setup *s, uint32_t output, opi_result *result,
                            opipe_error *err) {
  const uint64_t need = result->n_bytes == 0 ? 1 : result->n_bytes;
  if (result->own_bytes < need) {
    opi_free(s->allocator, result->own, (size_t)result->own_bytes);
    result->own_bytes = 0;
    result->own = s->allocator->realloc(s->allocator->ctx, NULL, 0, (size_t)need, 16);
    if (result->own == NULL)
      return opi_fail_nomem(err, need, s->output_names[output]);
    result->own_bytes = need;
  }
  result->data = result->own;
  return OPIPE_OK;
}

opipe_status opi_result_take(const opi_setup *s, uint32_t output, const opipe_binding_io *io,
                             opi_result *result, opipe_error *err) {
  char given[128], wanted[128];
  const opipe_tensor *t = &io->tensor;
  const char *name = s->output_names[output], *first = NULL;
  OPI_TRY(opi_check_tensor(s, name, t, s->output_dtypes[output], err));
  bool fits = t->rank == (int32_t)result->rank && (t->rank == 0 || t->shape != NULL);
  for (uint32_t d = 0; fits && d < result->rank; ++d)
    fits = t->shape[d] == result->shape[d];
  if (!fits) {
    const uint32_t rank =
        t->rank < 0 || t->rank > OPIPE_MAX_RANK || t->shape == NULL ? 0 : (uint32_t)t->rank;
    return opi_fail(err, OPIPE_E_INVALID,
                    "output '%s': the buffer has rank %d and shape %s, the result %s", name,
                    t->rank, opi_shape_text(given, sizeof given, t->shape, rank),
                    opi_shape_text(wanted, sizeof wanted, result->shape, result->rank));
  }
  int64_t dense = 1;
  for (uint32_t d = result->rank; d > 0; --d) {
    if (t->strides != NULL && t->shape[d - 1] > 1 && t->strides[d - 1] != dense) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "output '%s': the buffer has stride %lld at dimension %u, only dense ones "
                      "(%lld) are accepted",
                      name, (long long)t->strides[d - 1], d - 1, (long long)dense);
    }
    dense *= t->shape[d - 1];
  }
  if (t->data == NULL && result->n_bytes != 0)
    return opi_fail(err, OPIPE_E_INVALID, "output '%s': a buffer without data", name);
  OPI_TRY(opi_check_fence(s, name, &io->ready, err));
  OPI_TRY(opi_check_fence(s, name, &io->done, err));
  OPI_TRY(opi_tensor_begin(t, result->n_bytes, "output", name, &first, err));
  result->data = (char *)(uintptr_t)first;
  result->on_device = t->device_type != OPIPE_DL_CPU && result->n_bytes != 0;
  result->device_type = t->device_type;
  result->device_id = t->device_id;
  result->ready = io->ready;
  result->done = io->done;
  return OPIPE_OK;
}

static opipe_status find_output(const opi_setup *s, const char *name, uint32_t *out_index,
                                opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = name == NULL ? 0 : strlen(name)};
  for (uint32_t o = 0; name != NULL && o < s->n_outputs; ++o) {
    if (strcmp(s->output_names[o], name) != 0)
      continue;
    *out_index = o;
    return OPIPE_OK;
  }
  for (uint32_t o = 0; name != NULL && o < s->n_outputs; ++o)
    opi_nearest_look(&nearest, s->output_names[o]);
  return opi_fail(err, OPIPE_E_NOTFOUND, "the model has no output '%s'; its first of %u is '%s'%s",
                  name == NULL ? "(NULL)" : name, s->n_outputs,
                  s->n_outputs == 0 ? "" : s->output_names[0],
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

/* Finds places for the outputs without host memory. */
static opipe_status place_others(const opi_setup *s, const opipe_submit_params *params,
                                 opi_request *request, opipe_error *err) {
  const bool asks =
      OPIPE_HAS(params, opipe_submit_params, on_output_ctx) && params->on_output != NULL;
  const bool away = OPIPE_HAS(params, opipe_submit_params, flags) &&
                    (params->flags & OPIPE_SUBMIT_DEVICE_OUTPUTS) != 0;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    opi_result *result = &request->results[o];
    void *given = NULL;
    if (result->data != NULL || result->made == OPI_MADE_KEPT || result->made == OPI_MADE_NONE)
      continue; /* given, kept by a stream, or made elsewhere */
    if (away)
      opi_lent_place(request, o, result);
    if (asks)
      OPI_TRY(opi_result_ask(s, params, o, result, &given, err));
    if (given != NULL) {
      result->data = given;
      continue;
    }
    if (result->on_device) {
      OPI_TRY(opi_lent_own(request, o, result, err));
      continue;
    }
    OPI_TRY(opi_result_own(s, o, result, err));
    if (result->made == OPI_MADE_SOME)
      memset(result->data, 0, (size_t)result->n_bytes);
  }
  return OPIPE_OK;
}

static opipe_status place_results(const opi_setup *s, const opipe_submit_params *params,
                                  opi_request *request, opipe_error *err) {
  request->has_plain = false;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    opi_result *result = &request->results[o];
    result->data = NULL;
    result->on_device = false;
    result->ready = result->done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
    result->made = request->runs->made[o];
    OPI_TRY(result_shape(s, request, o, result, err));
    if (!opi_output_is_made(request->runs->model->cuts[0], o))
      request->has_plain = true;
    if (opi_stream_keeps(request, o))
      result->made = OPI_MADE_KEPT;
  }
  for (uint32_t i = 0; i < params->n_outputs; ++i) {
    uint32_t o = 0;
    opipe_binding_io io;
    opi_array_get(params->outputs, params->io_stride, i, &io, sizeof io);
    OPI_TRY(find_output(s, io.name, &o, err));
    if (request->results[o].data != NULL)
      return opi_fail(err, OPIPE_E_INVALID, "output '%s' is given twice", s->output_names[o]);
    if (request->results[o].made == OPI_MADE_KEPT) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "output '%s' is kept by the request's state: no buffer is filled with it",
                      s->output_names[o]);
    }
    OPI_TRY(opi_result_take(s, o, &io, &request->results[o], err));
  }
  OPI_TRY(place_others(s, params, request, err));
  return opi_parcel_check(request, err);
}

/* ---- publishing ---- */

static void number(opi_session *s, opi_request *request, const opipe_submit_params *params) {
  request->number = s->shapes->n_numbered++;
  request->caller->stream = params->stream;
  request->deadline_ns =
      params->deadline_ns == 0 ? 0 : opi_later_ns(opi_clock_ns(), params->deadline_ns);
  request->shape->last_used = request->number + 1;
}

/* Gives the request its place in its shape's bodies and in the ring. */
static void enqueue(opi_session *s, opi_request *request) {
  const uint32_t n_positions = request->runs->lists->n_positions;
  opi_shape *lead = request->shape->lead;
  request->body = lead->n_requests / n_positions;
  request->position = (uint32_t)(lead->n_requests++ % n_positions);
  request->order = atomic_load_explicit(&s->engine->n_submitted, memory_order_relaxed);
  atomic_store(&request->n_taking_left, opi_request_n_taking(request));
}

/* Publishes a request, and rings the ranks that no message will wake. */
static void publish_one(opi_session *s, opi_request *request) {
  const uint32_t version = atomic_load(&s->shapes->version);
  const opi_compiled *t = request->runs; /* read now: once published the request is the ranks' */
  /* Give it its place, then the ring: the ranks may have it from here on. */
  enqueue(s, request);
  const bool all = request->has_plain || s->rung_version != version ||
                   request->body == 0; /* the first of its shape: all ranks post receives */
  const uint32_t position = request->position;
  s->rung_version = version;
  s->engine->ring[request->order % s->engine->ring_room] = request;
  s->engine->items[request->order % s->engine->ring_room] = (opi_item){.next = request};
  atomic_store_explicit(&s->engine->n_submitted, request->order + 1, memory_order_release);
  /* Wake the ranks that no message will wake, and the one that moves inputs between processes. */
  for (uint32_t i = 0; i < s->setup->n_here; ++i) {
    if (all || (i == 0 && s->setup->inputs_travel) || t->seats[s->setup->here[i]].wakes[position])
      s->setup->transport->ring(s->setup->ranks[s->setup->here[i]].endpoint);
  }
}

/* Publishes a gap: a request without a caller that computes nothing. It takes the place of another
 * replica's request, so that the next one is its stream's replica's. */
static opipe_status publish_gap(opi_session *s, const opi_request *like, opipe_error *err) {
  static const opipe_submit_params none = {.struct_size = sizeof none};
  opipe_error why = OPIPE_ERROR_INIT;
  opi_request *gap = opi_request_new(s, err);
  if (gap == NULL)
    return OPIPE_E_NOMEM;
  for (uint32_t i = 0; i < s->setup->n_inputs; ++i)
    gap->feeds[i] = (opi_feed){.given = false};
  for (uint32_t o = 0; o < s->setup->n_outputs; ++o) {
    gap->results[o].made = OPI_MADE_NONE;
    gap->results[o].on_device = false;
    gap->results[o].ready = gap->results[o].done = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  }
  gap->is_gap = true;
  gap->has_plain = false;
  gap->shape = like->shape;
  gap->runs = like->runs;
  gap->rows = like->rows;
  gap->n_microbatches = like->n_microbatches;
  atomic_fetch_add(&gap->shape->n_users, 1);
  number(s, gap, &none);
  opi_request_begin(gap, &none);
  (void)opi_fail(&why, OPIPE_E_CANCELLED, "request %llu is a gap between replicas",
                 (unsigned long long)gap->number);
  (void)opi_request_fail(gap, &why);
  publish_one(s, gap);
  opi_request_let_go(gap);
  return OPIPE_OK;
}

static void run_now(opi_session *s, opi_request *request) {
  opipe_error why = OPIPE_ERROR_INIT;
  enqueue(s, request);
  if (opi_reference_run(s->setup, request, &why) < 0)
    (void)opi_request_fail(request, &why);
}

void opi_request_publish(opi_request *request) {
  opi_session *s = request->caller->session;
  opipe_error why = OPIPE_ERROR_INIT;
  if (s->setup->reference) {
    run_now(s, request);
    return;
  }
  opipe_status status = OPIPE_OK;
  for (uint32_t n = opi_stream_gap(request, request->caller->stream); n > 0 && status == OPIPE_OK;
       --n)
    status = publish_gap(s, request, &why);
  publish_one(s, request);
  if (status < 0) /* without the gap another replica would take the request */
    opi_session_break(s->setup, opi_session_first(s->setup)->index, request, &why);
}

/* ---- submitting ---- */

static bool is_of_first(const opi_session *s, const opi_request *request) {
  return s->shapes->n_numbered == 0 ||
         (s->first_kept == request->stream_kept &&
          (request->stream_kept != NULL || s->first_stream == request->caller->stream));
}

/* May devices wait for the request's fences, and so hold up later work? Only if all requests are of
 * its stream. Sessions that share the work have one stream. */
static bool may_hold_up(const opi_session *s, const opi_request *request) {
  return opi_is_shared(s->setup) || (!s->has_streams && is_of_first(s, request));
}

static void note_stream(opi_session *s, const opi_request *request) {
  s->has_streams = s->has_streams || !is_of_first(s, request);
  if (s->shapes->n_numbered != 0)
    return;
  s->first_stream = request->caller->stream;
  s->first_kept = request->stream_kept;
}

opipe_status opi_submit_admit(opi_session *s, opi_request **out_request, opipe_error *err) {
  if (opi_session_failed(s->setup))
    return opi_fail(err, OPIPE_E_STATE, "the session has failed: %s", s->setup->ending.why.message);
  if (atomic_load(&s->n_unfinished) >= s->setup->max_in_flight)
    return OPIPE_PENDING;
  *out_request = opi_request_new(s, err);
  if (*out_request == NULL)
    return OPIPE_E_NOMEM;
  (*out_request)->shape = NULL;
  return OPIPE_OK;
}

opipe_status opi_submit_follow(const opi_session *s, opipe_error *err) {
  const opi_together *together = &s->setup->env.together;
  return together->follow == NULL
             ? OPIPE_OK
             : together->follow(together->ctx, OPI_FOLLOW_GOES, s->shapes->n_numbered, err);
}

void opi_submit_refuse(opi_session *s, opi_request *request, uint64_t n_passed,
                       opipe_status status) {
  if (status == OPIPE_PENDING) {
    const bool awaits_flag = atomic_load(&s->shapes->awaited) != NULL;
    atomic_store(&s->room.full_at, awaits_flag ? 0 : n_passed + 1);
  }
  opi_lent_drop(request);
  opi_shape_let_go(request);
  opi_request_recycle(request);
}

static opipe_status submit_locked(opi_session *s, const opipe_submit_params *params,
                                  opi_request **out_request, opipe_request **out_handle,
                                  opipe_error *err) {
  opi_request *request = NULL;
  const opipe_status admitted = opi_submit_admit(s, &request, err);
  if (admitted != OPIPE_OK)
    return admitted;
  request->caller->stream = params->stream;
  const uint64_t passed = atomic_load(&s->room.n_passed); /* read before looking for a shape */
  /* Find its stream, read its inputs, find its shape. */
  opipe_status status = opi_stream_begin(s->setup, params, request, err);
  if (status == OPIPE_OK)
    status = opi_read_inputs(s->setup, params, request, err);
  if (status == OPIPE_OK)
    status = opi_shape_find(s->setup, request, err);
  if (status == OPIPE_OK)
    status = opi_needs_check(request, err);
  /* Find places for its results, its stream's bindings, and the lent tensors. */
  if (status == OPIPE_OK)
    status = place_results(s->setup, params, request, err);
  if (status == OPIPE_OK)
    status = opi_stream_check_results(request, err);
  if (status == OPIPE_OK)
    status = opi_stream_bind(request, err);
  if (status == OPIPE_OK)
    status = opi_lent_take(request, params->deadline_ns != 0 || !may_hold_up(s, request), err);
  if (status == OPIPE_OK)
    status = opi_submit_follow(s, err);
  /* Refuse it, or answer OPIPE_PENDING: no room for its shape, or a host's flag is not set. */
  if (status != OPIPE_OK) {
    opi_submit_refuse(s, request, passed, status);
    return status;
  }
  /* Accepted: number it, begin it, and give it to the ranks or hold it. */
  const bool goes = opi_request_may_go(request) && opi_held_last(request) == NULL;
  note_stream(s, request);
  number(s, request, params);
  opi_stream_advance(request);
  opi_request_begin(request, params);
  *out_request = request;
  *out_handle = opi_request_handle(request); /* once published, an on_done may release it */
  opi_request_start(request, goes);
  return OPIPE_OK;
}

static opipe_status refuse_kind(opipe_error *err) {
  return opi_fail(err, OPIPE_E_STATE, "submit: the session trains; use train_step or evaluate");
}

opipe_status opi_session_check_counts(const opi_session *s, const char *call, bool trains,
                                      const opipe_submit_params *params, opipe_error *err) {
  if (params->struct_size < OPIPE_END(opipe_submit_params, n_outputs))
    return OPIPE_OK; /* the size will be refused */
  if (params->n_inputs <= s->setup->n_inputs && params->n_outputs <= s->setup->n_outputs)
    return OPIPE_OK;
  if (trains != opi_session_trains(s->setup))
    return trains ? opi_train_refuse(err) : refuse_kind(err);
  if (params->n_inputs > s->setup->n_inputs) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %u inputs are given, there are %u", call,
                    params->n_inputs, s->setup->n_inputs);
  }
  return opi_fail(err, OPIPE_E_INVALID, "%s: %u outputs are given, there are %u", call,
                  params->n_outputs, s->setup->n_outputs);
}

opipe_status opi_session_submit(opi_session *s, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err) {
  opipe_request *handle = NULL;
  OPI_TRY(opi_session_check(s->setup, err));
  if (s->shapes->weights != NULL)
    return refuse_kind(err);
  opi_submit_begin(s);
  const opipe_status status = submit_locked(s, params, out_request, &handle, err);
  opi_submit_end(s, status == OPIPE_OK ? *out_request : NULL);
  if (status == OPIPE_OK && out_handle != NULL)
    *out_handle = handle;
  return status;
}
