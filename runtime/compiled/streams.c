/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's life: open, reset, close, and its memory. */
#include "runtime/compiled/stream.h"

#include "partition/program/states.h"

/* ---- with the session ---- */

opipe_status opi_streams_open(opi_setup *s, opipe_error *err) {
  const opi_decision *plan = &s->plan->decided;
  if (plan->n_states == 0)
    return OPIPE_OK;
  opi_streams *t = OPI_ARENA_NEW(&s->arena, opi_streams);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "states");
  t->pair_of_input = OPI_ARENA_ARRAY(&s->arena, uint32_t, s->n_inputs);
  t->pair_of_output = OPI_ARENA_ARRAY(&s->arena, uint32_t, s->n_outputs);
  t->sides = OPI_ARENA_ARRAY(&s->arena, opi_side, plan->n_ranks);
  if (t->pair_of_input == NULL || t->pair_of_output == NULL || t->sides == NULL)
    return opi_fail_nomem(err, s->n_inputs * sizeof(uint32_t), "states");
  for (uint32_t i = 0; i < s->n_inputs; ++i)
    t->pair_of_input[i] = OPIPE_NONE;
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    t->pair_of_output[o] = OPIPE_NONE;
  for (uint32_t p = 0; p < plan->n_states; ++p) {
    t->pair_of_input[plan->states[p].input_index] = p;
    t->pair_of_output[plan->states[p].output_index] = p;
  }
  t->n_homes = s->reference ? 1 : opi_states_homes(plan);
  s->shapes->streams = t;
  return opi_sides_open(s, err);
}

static void give_memory(opi_stream *stream) {
  opi_setup *s = stream->setup;
  opi_stream_unbind(stream);
  for (uint32_t i = 0; i < s->n_here; ++i)
    opi_rank_give(&s->ranks[s->here[i]], &stream->blocks[s->here[i]]);
  stream->filled = false;
}

void opi_streams_shut(opi_setup *s) {
  opi_stream *first = s->shapes->streams == NULL ? NULL : s->shapes->streams->list;
  for (const opi_stream *at = first; at != NULL; at = at->next)
    opi_handle_slot_disarm(at->slot);
  for (const opi_stream *at = first; at != NULL; at = at->next)
    opi_handle_slot_drain(at->slot, 0);
}

void opi_streams_stop(opi_setup *s) {
  if (s->shapes->streams == NULL)
    return;
  for (opi_stream *at = s->shapes->streams->list; at != NULL; at = at->next)
    give_memory(at);
  opi_sides_close(s);
}

static size_t n_places(const opi_setup *s) {
  return (size_t)s->plan->decided.n_states * opi_plan_width(&s->plan->decided);
}

static void unmake(opi_stream *stream) {
  const opi_setup *s = stream->setup;
  opi_handle_slot_give(stream->slot);
  opi_free(s->allocator, stream->places, n_places(s) * sizeof *stream->places);
  opi_free(s->allocator, stream->pairs, s->plan->decided.n_states * sizeof *stream->pairs);
  opi_free(s->allocator, stream->blocks, s->plan->decided.n_ranks * sizeof *stream->blocks);
  opi_free(s->allocator, stream, sizeof *stream);
}

void opi_streams_free(opi_setup *s) {
  while (s->shapes->streams != NULL && s->shapes->streams->list != NULL) {
    opi_stream *stream = s->shapes->streams->list;
    s->shapes->streams->list = stream->next;
    unmake(stream);
  }
}

void opi_streams_reclaim(opi_setup *s) {
  for (opi_stream *at = s->shapes->streams->list; at != NULL; at = at->next) {
    if (at->filled && !at->leased && opi_is_idle(s, &at->n_unfinished))
      give_memory(at);
  }
}

void opi_streams_tidy(opi_setup *s) {
  if (s->shapes->streams == NULL)
    return;
  opi_lock_take(&s->shapes->submit_lock);
  opi_streams_reclaim(s);
  opi_lock_give(&s->shapes->submit_lock);
}

/* ---- one stream ---- */

/* The end of the host's handle. */
static void end_lease(void *object) {
  opi_stream *stream = object;
  opi_setup *s = stream->setup;
  opi_lock_take(&s->shapes->submit_lock);
  stream->leased = false;
  opi_streams_reclaim(s);
  opi_lock_give(&s->shapes->submit_lock);
}

static opi_stream *make(opi_setup *s, opipe_error *err) {
  opi_stream *stream = opi_alloc_zero(s->allocator, 1, sizeof *stream);
  if (stream == NULL) {
    (void)opi_fail_nomem(err, sizeof *stream, "a state");
    return NULL;
  }
  stream->setup = s;
  stream->pairs = opi_alloc_zero(s->allocator, s->plan->decided.n_states, sizeof *stream->pairs);
  stream->places = opi_alloc_zero(s->allocator, n_places(s), sizeof *stream->places);
  stream->blocks = opi_alloc_zero(s->allocator, s->plan->decided.n_ranks, sizeof *stream->blocks);
  if (stream->pairs == NULL || stream->places == NULL || stream->blocks == NULL)
    (void)opi_fail_nomem(err, s->plan->decided.n_states * sizeof *stream->pairs, "a state");
  else
    stream->slot = opi_handle_slot_take(OPI_HANDLE_STATE, stream, end_lease, s->env.owner, err);
  if (stream->slot == NULL) {
    unmake(stream);
    return NULL;
  }
  stream->next = s->shapes->streams->list;
  s->shapes->streams->list = stream;
  return stream;
}

/* A stream that is FREE, or a new one. */
static opi_stream *find_free(opi_setup *s, opipe_error *err) {
  opi_stream *at = s->shapes->streams->list;
  while (at != NULL && (at->leased || at->filled))
    at = at->next;
  return at == NULL ? make(s, err) : at;
}

void opi_stream_clear(opi_stream *stream) {
  stream->empty = true;
  stream->turn = 0;
  atomic_store(&stream->broken_at, UINT64_MAX);
  for (uint32_t p = 0; p < stream->setup->plan->decided.n_states; ++p)
    stream->pairs[p].n_elems = stream->pairs[p].n_bytes = stream->pairs[p].rank = 0;
}

/* Lays out a member's two buffers. */
static opipe_status place(opi_stream *stream, uint32_t p, uint32_t member, uint64_t *out_bytes,
                          opipe_error *err) {
  const opi_setup *s = stream->setup;
  const opi_decision *plan = &s->plan->decided;
  const opi_state_pair *pair = &plan->states[p];
  const uint64_t capacity = stream->pairs[p].capacity;
  opi_kept_place *kept = &stream->places[p * opi_plan_width(plan) + member];
  kept->holder = opi_state_rank(plan, p, stream->home) + member;
  const uint32_t planned = plan->devices[kept->holder].alignment;
  const uint32_t alignment = opi_rank_is_here(s, kept->holder) ? s->ranks[kept->holder].alignment
                             : planned == 0                    ? 1
                                                               : planned;
  kept->offset_bytes = out_bytes[kept->holder];
  if (opi_state_bytes(pair, member, capacity, alignment, &kept->buffer_bytes) &&
      !opi_add_u64(kept->offset_bytes, 2 * kept->buffer_bytes, &out_bytes[kept->holder]))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT, "state '%s' -> '%s': %llu elements exceed 2^56 bytes",
                  pair->output, pair->input, (unsigned long long)capacity);
}

/* Lays out the pairs; *out_bytes [n_ranks]: bytes on each rank. */
static opipe_status lay_out(opi_stream *stream, const opipe_state_params *params,
                            uint64_t *out_bytes, opipe_error *err) {
  const opi_setup *s = stream->setup;
  const opi_decision *plan = &s->plan->decided;
  for (uint32_t p = 0; p < plan->n_states; ++p) {
    const opi_state_pair *pair = &plan->states[p];
    opi_kept *kept = &stream->pairs[p];
    const uint64_t asked = params == NULL || params->n_capacities == 0 ? 0 : params->capacities[p];
    kept->capacity = asked != 0 ? asked : pair->capacity;
    for (uint32_t k = 0; k < opi_plan_width(plan); ++k)
      OPI_TRY(place(stream, p, k, out_bytes, err));
  }
  return OPIPE_OK;
}

static opipe_status fill(opi_stream *stream, const opipe_state_params *params, opipe_error *err) {
  opi_setup *s = stream->setup;
  const uint32_t n_ranks = s->plan->decided.n_ranks;
  uint64_t *bytes = opi_alloc_zero(s->allocator, n_ranks, sizeof *bytes);
  if (bytes == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof *bytes, "a state");
  stream->home = (uint32_t)(s->shapes->streams->n_opened % s->shapes->streams->n_homes);
  opipe_status status = lay_out(stream, params, bytes, err);
  stream->filled = true;
  for (uint32_t i = 0; i < s->n_here && status == OPIPE_OK; ++i) {
    const uint32_t r = s->here[i];
    status = opi_rank_take(&s->ranks[r], bytes[r], OPIPE_BUFFER_STATE, "the state of a stream",
                           &stream->blocks[r], err);
  }
  opi_free(s->allocator, bytes, n_ranks * sizeof *bytes);
  if (status < 0)
    give_memory(stream);
  return status;
}

static opipe_status open_locked(opi_setup *s, const opipe_state_params *params,
                                opi_stream **out_stream, opipe_error *err) {
  if (opi_session_failed(s))
    return opi_fail(err, OPIPE_E_STATE, "the session has failed: %s", s->ending.why.message);
  opi_streams_reclaim(s);
  opi_stream *stream = find_free(s, err);
  if (stream == NULL)
    return OPIPE_E_NOMEM;
  OPI_TRY(fill(stream, params, err));
  ++s->shapes->streams->n_opened;
  stream->leased = true;
  opi_stream_clear(stream);
  *out_stream = stream;
  return OPIPE_OK;
}

opipe_status opi_stream_open(opi_setup *s, const opipe_state_params *params,
                             opipe_state **out_state, opipe_error *err) {
  opi_stream *stream = NULL;
  OPI_TRY(opi_session_check(s, err));
  if (s->shapes->streams == NULL)
    return opi_fail(err, OPIPE_E_STATE, "session_state_open: the plan has no pairs to keep");
  if (params != NULL && params->n_capacities != 0 &&
      params->n_capacities != s->plan->decided.n_states) {
    return opi_fail(err, OPIPE_E_INVALID, "session_state_open: %u capacities for %u pairs",
                    params->n_capacities, s->plan->decided.n_states);
  }
  opi_lock_take(&s->shapes->submit_lock);
  const opipe_status status = open_locked(s, params, &stream, err);
  opi_lock_give(&s->shapes->submit_lock);
  if (status == OPIPE_OK)
    *out_state = opi_handle_pointer(opi_handle_slot_arm(stream->slot));
  return status;
}

const opi_setup *opi_stream_setup(const opi_stream *stream) {
  return stream->setup;
}

uint32_t opi_stream_n_unfinished(const opi_stream *stream) {
  return atomic_load(&stream->n_unfinished);
}

/* ---- requests of it ---- */

opipe_status opi_stream_rest(const opi_stream *stream, const char *call, bool whole,
                             opipe_error *err) {
  const opi_setup *s = stream->setup;
  const uint32_t n = atomic_load(&stream->n_unfinished);
  if (opi_session_failed(s)) {
    return opi_fail(err, OPIPE_E_STATE, "%s: the session has failed: %s", call,
                    s->ending.why.message);
  }
  if (n != 0) {
    return opi_fail(err, OPIPE_E_STATE, "%s: %u request%s of the state %s unfinished: wait for %s",
                    call, n, n == 1 ? "" : "s", n == 1 ? "is" : "are", n == 1 ? "it" : "them");
  }
  if (whole && atomic_load(&stream->broken_at) != UINT64_MAX)
    return opi_fail(err, OPIPE_E_STATE, "%s: a request of the state has failed: reset it", call);
  return OPIPE_OK;
}

opipe_status opi_stream_reset(opi_stream *stream, opipe_error *err) {
  opi_setup *s = stream->setup;
  OPI_TRY(opi_session_check(s, err));
  opi_lock_take(&s->shapes->submit_lock);
  const opipe_status status = opi_stream_rest(stream, "state_reset", false, err);
  if (status == OPIPE_OK)
    opi_stream_clear(stream);
  opi_lock_give(&s->shapes->submit_lock);
  return status;
}

void opi_stream_hold(opi_stream *stream) {
  atomic_fetch_add(&stream->n_breaking, 1);
}

void opi_stream_let_go(opi_stream *stream) {
  atomic_fetch_sub(&stream->n_breaking, 1);
}

void opi_stream_break(const opi_request *request) {
  _Atomic uint64_t *at = &request->stream_kept->broken_at;
  uint64_t old = atomic_load(at);
  while (request->sequence < old && !atomic_compare_exchange_weak(at, &old, request->sequence)) {
  }
}

void opi_stream_look(opi_request *request) {
  opipe_error why = OPIPE_ERROR_INIT;
  while (atomic_load(&request->stream_kept->n_breaking) != 0) { /* a few instructions long */
  }
  if (atomic_load(&request->stream_kept->broken_at) >= request->sequence ||
      opi_request_failed(request))
    return;
  (void)opi_fail(&why, OPIPE_E_STATE,
                 "request %llu: one before it in its stream has failed: reset the state",
                 (unsigned long long)request->number);
  (void)opi_request_fail(request, &why);
}

void opi_stream_finish(const opi_request *request) {
  atomic_fetch_sub(&request->stream_kept->n_unfinished, 1);
}
