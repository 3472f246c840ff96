/* SPDX-License-Identifier: Apache-2.0 */
/* A request of a stream on its way: what it finds instead of inputs, what it leaves instead of
 * outputs. */
#include "runtime/compiled/streams.h"

#include <string.h>

#include "runtime/executor/ahead.h"

uint32_t opi_stream_pair_in(const opi_session *s, uint32_t input) {
  return s->streams == NULL ? OPIPE_NONE : s->streams->pair_of_input[input];
}

bool opi_stream_keeps(const opi_request *request, uint32_t output) {
  return request->stream_kept != NULL &&
         request->session->streams->pair_of_output[output] != OPIPE_NONE;
}

static uint64_t count(const int64_t *shape, uint32_t rank) {
  uint64_t n = 1;
  for (uint32_t d = 0; d < rank; ++d)
    n *= (uint64_t)shape[d]; /* the tensor's size in bytes has been checked */
  return n;
}

static opipe_status check_room(const opi_stream *stream, uint32_t p, const char *which,
                               const int64_t *shape, uint32_t rank, opipe_error *err) {
  const opi_state_pair *pair = &stream->session->plan->states[p];
  const uint64_t n = count(shape, rank), room = stream->pairs[p].capacity;
  char text[128];
  if (n <= room)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT,
                  "state '%s' -> '%s': the %s of shape %s has %llu elements, the state has room "
                  "for %llu",
                  pair->output, pair->input, which, opi_shape_text(text, sizeof text, shape, rank),
                  (unsigned long long)n, (unsigned long long)room);
}

opipe_status opi_stream_begin(opi_session *s, const opipe_submit_params *params,
                              opi_request *request, opipe_error *err) {
  request->stream_kept = NULL;
  if (!OPIPE_HAS(params, opipe_submit_params, state) || params->state == NULL)
    return OPIPE_OK;
  opi_stream *stream = (opi_stream *)(void *)params->state;
  if (stream->session != s)
    return opi_fail(err, OPIPE_E_INVALID, "session_submit: the state belongs to another session");
  if (s->peers == NULL && atomic_load(&stream->broken_at) != UINT64_MAX) {
    return opi_fail(err, OPIPE_E_STATE,
                    "session_submit: a request of the state has failed: reset it");
  }
  request->stream_kept = stream;
  return OPIPE_OK;
}

opipe_status opi_stream_feed(const opi_request *request, uint32_t input, opi_feed *feed,
                             bool *out_kept, opipe_error *err) {
  const opi_session *s = request->session;
  const opi_stream *stream = request->stream_kept;
  const uint32_t p = stream == NULL ? OPIPE_NONE : opi_stream_pair_in(s, input);
  *out_kept = false;
  if (p == OPIPE_NONE)
    return OPIPE_OK;
  const opi_kept *kept = &stream->pairs[p];
  const opi_input *in = &s->inputs[input];
  if (feed->given && !stream->empty) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "input '%s' is given, and the state has it: only the first request of a state, "
                    "and after a reset, gives it",
                    in->name);
  }
  if (feed->given)
    return check_room(stream, p, "input", feed->shape, (uint32_t)in->value->rank, err);
  if (stream->empty) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "input '%s' is missing: the first request of a state, and after a reset, gives "
                    "it",
                    in->name);
  }
  int64_t dense = 1;
  for (uint32_t d = kept->rank; d > 0; --d) {
    feed->shape[d - 1] = kept->shape[d - 1];
    feed->strides[d - 1] = dense;
    dense *= kept->shape[d - 1];
  }
  *out_kept = true;
  return OPIPE_OK;
}

opipe_status opi_stream_check_results(const opi_request *request, opipe_error *err) {
  const opi_stream *stream = request->stream_kept;
  for (uint32_t p = 0; stream != NULL && p < request->session->plan->n_states; ++p) {
    const opi_result *result = &request->results[request->session->plan->states[p].output_index];
    OPI_TRY(check_room(stream, p, "output", result->shape, result->rank, err));
  }
  return OPIPE_OK;
}

void opi_stream_advance(opi_request *request) {
  opi_stream *stream = request->stream_kept;
  const opi_plan *plan = request->session->plan;
  if (stream == NULL)
    return;
  for (uint32_t p = 0; p < plan->n_states; ++p) {
    const opi_result *result = &request->results[plan->states[p].output_index];
    opi_kept *kept = &stream->pairs[p];
    kept->rank = result->rank;
    memcpy(kept->shape, result->shape, result->rank * sizeof *kept->shape);
    kept->n_elems = count(kept->shape, kept->rank);
    kept->n_bytes = result->n_bytes;
  }
  request->sequence = stream->sequence++;
  stream->empty = false;
  stream->turn ^= 1;
  atomic_fetch_add(&stream->n_unfinished, 1);
}

uint32_t opi_stream_gap(const opi_request *request) {
  const uint32_t n_homes = request->stream_kept == NULL ? 1 : request->session->streams->n_homes;
  const opi_shape *shape = request->shape;
  if (n_homes == 1)
    return 0;
  const uint32_t position =
      (uint32_t)(shape->n_requests % request->runs->lists->n_positions); /* of n_homes a multiple */
  return (request->stream_kept->home + n_homes - position % n_homes) % n_homes;
}

opipe_status opi_stream_store(opi_rank *rank, const opi_request *request, uint32_t output,
                              uint32_t cell, uint32_t microbatch, opipe_error *err) {
  static const int64_t one = 1;
  const opi_ahead_entry e = {.kind = OPI_AHEAD_DATA};
  const opi_compiled *t = opi_compiled_at(rank);
  const uint32_t p = request->session->streams->pair_of_output[output];
  const uint32_t turn = request->turn ^ 1;
  const size_t occurrence = (size_t)cell * t->pieces->plan.n_microbatches + microbatch;
  const opipe_region src = opi_cell_region(t, cell, microbatch);
  const opipe_region dst = opi_kept_region(request->stream_kept, p, turn, src.n_bytes);
  const int64_t n_bytes = (int64_t)src.n_bytes;
  if (t->model->cuts[0]->cells[cell].first_out == OPIPE_NONE || n_bytes == 0)
    return OPIPE_OK; /* it was made where it is kept */
  const char *host = opi_cell_host(t, cell, microbatch);
  const bool own = t->lists->lies_on[occurrence] == rank->index;
  if (own ? !opi_ahead_has_room(rank) : !opi_ahead_is_empty(rank))
    return OPIPE_PENDING;
  if (own && (host == NULL || rank->ahead != NULL)) {
    OPI_TRY(OPI_ASK_RANK(rank, copy, err, rank->queue, &dst, &src));
    return rank->ahead == NULL ? opi_rank_sync(rank, err) : opi_ahead_push(rank, &e, err);
  }
  const opi_view view = {
      .data = host, .shape = &n_bytes, .strides = &one, .rank = 1, .elem_bytes = 1};
  return opi_rank_write(rank, &view, &dst, opi_kept_host(request->stream_kept, p, turn), err);
}

bool opi_stream_load(const opi_request *request, uint32_t input, opipe_region *io_region,
                     char **io_host) {
  const opi_stream *stream = request->stream_kept;
  const uint32_t p = stream == NULL ? OPIPE_NONE : opi_stream_pair_in(request->session, input);
  if (p == OPIPE_NONE)
    return true;
  if (!request->feeds[input].given)
    return false;
  *io_region = opi_kept_region(stream, p, request->turn, io_region->n_bytes);
  *io_host = opi_kept_host(stream, p, request->turn);
  return true;
}
