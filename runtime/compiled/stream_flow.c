/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's request from submit to its end: kept tensors take the place of inputs and outputs. */
#include "runtime/compiled/stream.h"

#include <string.h>

#include "partition/program/states.h"

uint32_t opi_stream_pair_in(const opi_setup *s, uint32_t input) {
  return s->shapes->streams == NULL ? OPIPE_NONE : s->shapes->streams->pair_of_input[input];
}

bool opi_stream_keeps(const opi_request *request, uint32_t output) {
  return request->stream_kept != NULL &&
         request->setup->shapes->streams->pair_of_output[output] != OPIPE_NONE;
}

static uint64_t count(const int64_t *shape, uint32_t rank) {
  uint64_t n = 1;
  for (uint32_t d = 0; d < rank; ++d)
    n *= (uint64_t)shape[d]; /* the tensor's size in bytes has been checked */
  return n;
}

static opipe_status check_room(const opi_stream *stream, uint32_t p, const char *which,
                               const int64_t *shape, uint32_t rank, opipe_error *err) {
  const opi_state_pair *pair = &stream->setup->plan->decided.states[p];
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

opipe_status opi_stream_begin(opi_setup *s, const opipe_submit_params *params, opi_request *request,
                              opipe_error *err) {
  request->stream_kept = NULL;
  if (!OPIPE_HAS(params, opipe_submit_params, state) || params->state == NULL)
    return OPIPE_OK;
  opi_stream *stream = (opi_stream *)(void *)params->state;
  if (stream->setup != s)
    return opi_fail(err, OPIPE_E_INVALID, "session_submit: the state belongs to another session");
  if (!opi_is_shared(s) && atomic_load(&stream->broken_at) != UINT64_MAX) {
    return opi_fail(err, OPIPE_E_STATE,
                    "session_submit: a request of the state has failed: reset it");
  }
  request->stream_kept = stream;
  return OPIPE_OK;
}

opipe_status opi_stream_feed(const opi_request *request, uint32_t input, opi_feed *feed,
                             bool *out_kept, opipe_error *err) {
  const opi_setup *s = request->setup;
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
  for (uint32_t p = 0; stream != NULL && p < request->setup->plan->decided.n_states; ++p) {
    const opi_result *result =
        &request->results[request->setup->plan->decided.states[p].output_index];
    OPI_TRY(check_room(stream, p, "output", result->shape, result->rank, err));
  }
  return OPIPE_OK;
}

void opi_stream_advance(opi_request *request) {
  opi_stream *stream = request->stream_kept;
  const opi_plan *plan = request->setup->plan;
  if (stream == NULL)
    return;
  for (uint32_t p = 0; p < plan->decided.n_states; ++p) {
    const opi_result *result = &request->results[plan->decided.states[p].output_index];
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

/* The replica that the request must have, of *out_n; *out_n 1: any. */
static uint32_t home_of(const opi_request *request, uint64_t stream, uint32_t *out_n) {
  const opi_plan *plan = request->setup->plan;
  *out_n = plan->rows != NULL             ? opi_states_homes(&plan->decided)
           : request->stream_kept == NULL ? 1
                                          : request->setup->shapes->streams->n_homes;
  return *out_n == 1          ? 0
         : plan->rows != NULL ? (uint32_t)(stream % *out_n)
                              : request->stream_kept->home;
}

uint32_t opi_stream_gap(const opi_request *request, uint64_t stream) {
  uint32_t n_homes = 1;
  const uint32_t home = home_of(request, stream, &n_homes);
  const opi_shape *lead = request->shape->lead;
  if (n_homes == 1)
    return 0;
  const uint32_t position =
      (uint32_t)(lead->n_requests %
                 request->runs->lists->n_positions); /* n_positions is a multiple of n_homes */
  return (home + n_homes - position % n_homes) % n_homes;
}

void opi_stream_place(const opi_request *request, uint32_t output, uint32_t member,
                      uint64_t n_bytes, opipe_region *out_region, char **out_host) {
  const uint32_t p = request->setup->shapes->streams->pair_of_output[output];
  const uint32_t turn = request->turn ^ 1;
  *out_region = opi_kept_region(request->stream_kept, p, member, turn, n_bytes);
  *out_host = opi_kept_host(request->stream_kept, p, member, turn);
}

bool opi_stream_load(const opi_request *request, uint32_t input, uint32_t member,
                     opipe_region *io_region, char **io_host) {
  const opi_stream *stream = request->stream_kept;
  const uint32_t p = stream == NULL ? OPIPE_NONE : opi_stream_pair_in(request->setup, input);
  if (p == OPIPE_NONE)
    return true;
  if (!request->feeds[input].given)
    return false;
  *io_region = opi_kept_region(stream, p, member, request->turn, io_region->n_bytes);
  *io_host = opi_kept_host(stream, p, member, request->turn);
  return true;
}
