/* SPDX-License-Identifier: Apache-2.0 */
/* Reads kept tensors and copies them from stream to stream, on the host's threads. Devices that are
 * not plain host memory have a queue for this beside the ranks'. No rank works with a stream at
 * rest.
 */
#include <string.h>

#include "partition/program/states.h"
#include "runtime/compiled/stream.h"

/* ---- queues ---- */

opipe_status opi_sides_open(opi_setup *s, opipe_error *err) {
  const uint32_t plain = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    opi_side *side = &s->shapes->streams->sides[rank->index];
    if ((rank->device_flags & plain) == plain)
      continue;
    OPI_TRY(OPI_MAKE_RANK(rank, queue_open, &side->queue, err, rank->device));
    OPI_TRY(OPI_MAKE_RANK(rank, event_create, &side->event, err, rank->device));
  }
  return OPIPE_OK;
}

void opi_sides_close(opi_setup *s) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    opi_side *side = &s->shapes->streams->sides[rank->index];
    if (side->event != NULL)
      rank->backend->event_destroy(side->event);
    if (side->queue != NULL)
      rank->backend->queue_close(side->queue);
    *side = (opi_side){.queue = NULL};
  }
}

static opipe_status settle(const opi_rank *rank, const opi_side *side, opipe_error *err) {
  OPI_TRY(opi_record(opi_rank_backend(rank), side->queue, side->event, OPI_RECORD_NS, err));
  const opipe_status status = rank->backend->event_sync(side->event, UINT64_MAX, err);
  return opi_answer(status, "backend", opi_rank_backend(rank)->id, "event_sync", err);
}

/* Reads a member's part. */
static opipe_status read_part(const opi_stream *stream, uint32_t p, uint32_t member, void *dst,
                              uint64_t n_bytes, opipe_error *err) {
  const opi_setup *s = stream->setup;
  const uint32_t r = opi_kept_at(stream, p, member)->holder;
  const opi_side *side = &s->shapes->streams->sides[r];
  const opipe_region region = opi_kept_region(stream, p, member, stream->turn, n_bytes);
  if (n_bytes == 0)
    return OPIPE_OK;
  if (side->queue == NULL) {
    memcpy(dst, opi_kept_host(stream, p, member, stream->turn), (size_t)n_bytes);
    return OPIPE_OK;
  }
  OPI_TRY(OPI_ASK_RANK(&s->ranks[r], read, err, side->queue, dst, &region));
  return settle(&s->ranks[r], side, err);
}

static opipe_status write_part(const opi_stream *stream, uint32_t p, uint32_t member,
                               const void *src, uint64_t n_bytes, opipe_error *err) {
  const opi_setup *s = stream->setup;
  const uint32_t r = opi_kept_at(stream, p, member)->holder;
  const opi_side *side = &s->shapes->streams->sides[r];
  const opipe_region region = opi_kept_region(stream, p, member, stream->turn, n_bytes);
  if (side->queue == NULL) {
    memcpy(opi_kept_host(stream, p, member, stream->turn), src, (size_t)n_bytes);
    return OPIPE_OK;
  }
  OPI_TRY(OPI_ASK_RANK(&s->ranks[r], write, err, side->queue, &region, src));
  return settle(&s->ranks[r], side, err);
}

/* Puts a member's part into the whole tensor. */
static void join_part(const opi_stream *stream, uint32_t p, uint32_t member, const char *part,
                      char *whole) {
  const opi_state_pair *pair = &stream->setup->plan->decided.states[p];
  const opi_kept *kept = &stream->pairs[p];
  uint64_t outer = 1;
  for (int32_t d = 0; d < pair->axis; ++d)
    outer *= (uint64_t)kept->shape[d];
  const uint64_t row = outer == 0 ? 0 : kept->n_bytes / outer;
  const uint64_t own = opi_state_share(pair, member, row);
  const uint64_t before = row / (uint64_t)pair->whole * (uint64_t)pair->first[member];
  for (uint64_t o = 0; o < outer; ++o)
    memcpy(whole + o * row + before, part + o * own, (size_t)own);
}

static opipe_status read_kept(const opi_stream *stream, uint32_t p, void *dst, opipe_error *err) {
  const opi_setup *s = stream->setup;
  const opi_state_pair *pair = &s->plan->decided.states[p];
  const uint64_t n_bytes = stream->pairs[p].n_bytes;
  if (pair->parts == NULL)
    return read_part(stream, p, 0, dst, n_bytes, err);
  char *part = opi_alloc(s->allocator, (size_t)n_bytes + 1);
  opipe_status status = part == NULL ? opi_fail_nomem(err, n_bytes, "a state") : OPIPE_OK;
  for (uint32_t k = 0; k < opi_plan_width(&s->plan->decided) && status == OPIPE_OK; ++k) {
    status = read_part(stream, p, k, part, opi_state_share(pair, k, n_bytes), err);
    if (status == OPIPE_OK)
      join_part(stream, p, k, part, dst);
  }
  opi_free(s->allocator, part, (size_t)n_bytes + 1);
  return status;
}

/* ---- copying ---- */

/* Copies through host memory, since another replica's buffers are on another rank. */
static opipe_status carry_over(const opi_stream *to, const opi_stream *from, uint32_t p,
                               uint32_t member, uint64_t n_bytes, opipe_error *err) {
  const opipe_allocator *allocator = to->setup->allocator;
  char *between = opi_alloc(allocator, (size_t)n_bytes);
  if (between == NULL)
    return opi_fail_nomem(err, n_bytes, "a copy of a state");
  opipe_status status = read_part(from, p, member, between, n_bytes, err);
  if (status == OPIPE_OK)
    status = write_part(to, p, member, between, n_bytes, err);
  opi_free(allocator, between, (size_t)n_bytes);
  return status;
}

static opipe_status copy_part(const opi_stream *to, const opi_stream *from, uint32_t p,
                              uint32_t member, opipe_error *err) {
  const opi_setup *s = to->setup;
  const uint32_t r = opi_kept_at(from, p, member)->holder;
  const uint64_t n_bytes =
      opi_state_share(&s->plan->decided.states[p], member, from->pairs[p].n_bytes);
  const opi_side *side = &s->shapes->streams->sides[r];
  if (n_bytes == 0 || !opi_rank_is_here(s, r))
    return OPIPE_OK;
  if (opi_kept_at(to, p, member)->holder != r)
    return carry_over(to, from, p, member, n_bytes, err);
  if (side->queue == NULL)
    return write_part(to, p, member, opi_kept_host(from, p, member, from->turn), n_bytes, err);
  const opipe_region dst = opi_kept_region(to, p, member, to->turn, n_bytes);
  const opipe_region src = opi_kept_region(from, p, member, from->turn, n_bytes);
  OPI_TRY(OPI_ASK_RANK(&s->ranks[r], copy, err, side->queue, &dst, &src));
  return settle(&s->ranks[r], side, err);
}

static opipe_status copy_pair(const opi_stream *to, const opi_stream *from, uint32_t p,
                              opipe_error *err) {
  for (uint32_t k = 0; k < opi_plan_width(&to->setup->plan->decided); ++k)
    OPI_TRY(copy_part(to, from, p, k, err));
  return OPIPE_OK;
}

static opipe_status check_copy(const opi_stream *to, const opi_stream *from, opipe_error *err) {
  const opi_setup *s = to->setup;
  if (from->setup != s)
    return opi_fail(err, OPIPE_E_INVALID, "state_copy: the states are of two sessions");
  OPI_TRY(opi_stream_rest(to, "state_copy", false, err));
  OPI_TRY(opi_stream_rest(from, "state_copy", true, err));
  if (to->home != from->home && opi_is_shared(s)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "state_copy: from replica %u to replica %u, and only %u of %u ranks are here",
                    from->home, to->home, s->n_here, s->plan->decided.n_ranks);
  }
  for (uint32_t p = 0; p < s->plan->decided.n_states; ++p) {
    if (from->pairs[p].n_elems <= to->pairs[p].capacity)
      continue;
    return opi_fail(err, OPIPE_E_LIMIT,
                    "state_copy: '%s' -> '%s' has %llu elements, the state has room for %llu",
                    s->plan->decided.states[p].output, s->plan->decided.states[p].input,
                    (unsigned long long)from->pairs[p].n_elems,
                    (unsigned long long)to->pairs[p].capacity);
  }
  return OPIPE_OK;
}

static opipe_status copy_locked(opi_stream *to, const opi_stream *from, opipe_error *err) {
  const uint32_t n = to->setup->plan->decided.n_states;
  OPI_TRY(check_copy(to, from, err));
  if (to == from)
    return OPIPE_OK;
  opi_stream_clear(to);
  for (uint32_t p = 0; p < n; ++p)
    OPI_TRY(copy_pair(to, from, p, err)); /* on failure `to` stays empty */
  for (uint32_t p = 0; p < n; ++p) {
    to->pairs[p].rank = from->pairs[p].rank;
    to->pairs[p].n_elems = from->pairs[p].n_elems;
    to->pairs[p].n_bytes = from->pairs[p].n_bytes;
    memcpy(to->pairs[p].shape, from->pairs[p].shape, sizeof to->pairs[p].shape);
  }
  to->empty = from->empty;
  return OPIPE_OK;
}

opipe_status opi_stream_copy(opi_stream *to, opi_stream *from, opipe_error *err) {
  opi_setup *s = to->setup;
  OPI_TRY(opi_session_check(s, err));
  opi_lock_take(&s->shapes->submit_lock);
  const opipe_status status = copy_locked(to, from, err);
  opi_lock_give(&s->shapes->submit_lock);
  return status;
}

/* ---- looking ---- */

static void tell(const opi_stream *stream, uint32_t p, opipe_state_info *out_info) {
  const opi_setup *s = stream->setup;
  const opi_state_pair *pair = &s->plan->decided.states[p];
  const opi_kept *kept = &stream->pairs[p];
  const uint32_t holder = opi_kept_at(stream, p, 0)->holder;
  bool here = true;
  for (uint32_t k = 0; k < opi_plan_width(&s->plan->decided); ++k)
    here = here && opi_rank_is_here(s, opi_kept_at(stream, p, k)->holder);
  *out_info = (opipe_state_info){
      .flags = (stream->empty ? OPIPE_STATE_EMPTY : 0u) |
               (atomic_load(&stream->broken_at) != UINT64_MAX ? OPIPE_STATE_BROKEN : 0u) |
               (here ? 0u : OPIPE_STATE_ELSEWHERE),
      .output = pair->output,
      .input = pair->input,
      .n_elems = kept->n_elems,
      .capacity = kept->capacity,
      .n_bytes = kept->n_bytes,
      .dtype = pair->dtype,
      .stage = pair->stage,
      .holder = holder,
      .rank = kept->rank};
  memcpy(out_info->shape, kept->shape, kept->rank * sizeof *kept->shape);
}

static opipe_status check_get(const opi_stream *stream, uint32_t p, uint64_t n_bytes,
                              opipe_error *err) {
  const opi_setup *s = stream->setup;
  const opi_kept *kept = &stream->pairs[p];
  for (uint32_t k = 0; k < opi_plan_width(&s->plan->decided); ++k)
    OPI_TRY(opi_rank_find(s, "state_get", opi_kept_at(stream, p, k)->holder, err));
  OPI_TRY(opi_stream_rest(stream, "state_get", true, err));
  if (stream->empty)
    return opi_fail(err, OPIPE_E_STATE, "state_get: the state is empty: no request has filled it");
  if (n_bytes == kept->n_bytes)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "state_get: '%s' -> '%s' has %llu bytes, the buffer %llu",
                  s->plan->decided.states[p].output, s->plan->decided.states[p].input,
                  (unsigned long long)kept->n_bytes, (unsigned long long)n_bytes);
}

static opipe_status get_locked(const opi_stream *stream, uint32_t p, opipe_state_info *out_info,
                               void *dst, uint64_t n_bytes, opipe_error *err) {
  if (dst != NULL) {
    OPI_TRY(check_get(stream, p, n_bytes, err));
    OPI_TRY(read_kept(stream, p, dst, err));
  }
  tell(stream, p, out_info);
  return OPIPE_OK;
}

opipe_status opi_stream_get(opi_stream *stream, uint32_t p, opipe_state_info *out_info, void *dst,
                            uint64_t n_bytes, opipe_error *err) {
  opi_setup *s = stream->setup;
  OPI_TRY(opi_session_check(s, err));
  if (p >= s->plan->decided.n_states) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "state_get: pair %u of %u", p,
                    s->plan->decided.n_states);
  }
  opi_lock_take(&s->shapes->submit_lock);
  const opipe_status status = get_locked(stream, p, out_info, dst, n_bytes, err);
  opi_lock_give(&s->shapes->submit_lock);
  return status;
}
