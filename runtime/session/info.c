/* SPDX-License-Identifier: Apache-2.0 */
/* A session's counters, and the memory that its devices have handed out. */
#include <string.h>

#include "partition/program/states.h"
#include "runtime/session/session.h"

/* Copies as much as the caller's struct has room for. */
static void copy_out(void *dst, uint32_t dst_size, const void *src, size_t src_size) {
  memcpy(dst, src, dst_size < src_size ? dst_size : src_size);
}

/* The arena that is charged as activations and workspace belongs to the largest program of all
 * shapes. */
static uint64_t workspace_of(const opi_session *s, uint32_t rank) {
  uint64_t largest = 0, workspace = 0;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    const opi_compiled *shape = s->shapes->list[i] == NULL ? NULL : s->shapes->list[i]->compiled;
    if (shape == NULL || shape->seats[rank].arena_bytes <= largest)
      continue;
    largest = shape->seats[rank].arena_bytes;
    workspace = shape->seats[rank].workspace_bytes;
  }
  return workspace;
}

/* Host memory in which the rank's stashes wait, of all shapes. */
static uint64_t offload_bytes(const opi_session *s, uint32_t index) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    const opi_compiled *shape = s->shapes->list[i] == NULL ? NULL : s->shapes->list[i]->compiled;
    n += shape == NULL || shape->offloads == NULL ? 0 : shape->offloads[index].n_bytes;
  }
  return n;
}

/* Pinned host memory of messages, of all shapes. */
static uint64_t staging_bytes(const opi_session *s, uint32_t index) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    const opi_compiled *shape = s->shapes->list[i] == NULL ? NULL : s->shapes->list[i]->compiled;
    n += shape == NULL ? 0 : opi_ways_staged(shape, index);
  }
  return n;
}

/* The session's own pinned bytes. The plan counts others: copies for nodes that the device lacks.
 */
static uint64_t pinned_bytes(const opi_session *s, uint32_t index) {
  uint64_t n = opi_weights_pinned(s->shapes->weights, index) + offload_bytes(s, index);
  for (const opi_staging *at = s->setup->ranks[index].stagings; at != NULL; at = at->next)
    n += opi_pinned_bytes(&at->memory);
  return n;
}

/* Splits the bytes that the device has handed out by category, as weights and lists count them. */
static void train_memory(const opi_session *s, uint32_t index, const opipe_device_usage *usage,
                         opipe_memory_info *info) {
  opi_weight_bytes bytes = {0, 0, 0, 0};
  opi_weights_bytes(s->shapes->weights, index, &bytes);
  const uint64_t others = bytes.gradients + bytes.optimizer + bytes.versions;
  const uint64_t params = usage->live_bytes[OPIPE_BUFFER_PARAMS];
  const uint64_t boundaries = usage->live_bytes[OPIPE_BUFFER_BOUNDARY];
  info->params_bytes = params - (others < params ? others : params);
  info->gradient_bytes = bytes.gradients;
  info->optimizer_bytes = bytes.optimizer;
  info->version_bytes = bytes.versions;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    const opi_compiled *shape = s->shapes->list[i] == NULL ? NULL : s->shapes->list[i]->compiled;
    info->stash_bytes += shape == NULL ? 0 : shape->lists->stash_bytes[index];
  }
  info->boundary_bytes =
      boundaries - (info->stash_bytes < boundaries ? info->stash_bytes : boundaries);
}

opipe_status opi_session_memory(opi_session *s, uint32_t index, opipe_memory_info *io_info,
                                opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  if (io_info->struct_size < OPIPE_END(opipe_memory_info, total_bytes)) {
    return opi_fail(err, OPIPE_E_ABI, "session_memory: struct_size %u is too small",
                    io_info->struct_size);
  }
  if (index >= s->setup->plan->decided.n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "session_memory: rank %u of %u", index,
                    s->setup->plan->decided.n_ranks);
  }
  OPI_TRY(opi_rank_find(s->setup, "session_memory", index, err));
  opi_rank *rank = &s->setup->ranks[index];
  uint32_t home = 0;
  opi_streams_tidy(s->setup);
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, host_bytes)};
  OPI_TRY(OPI_ASK_RANK(rank, device_usage, err, rank->device, &usage));
  const uint64_t cap = s->setup->plan->decided.devices[index].memory_bytes;
  opipe_memory_info info = {
      .struct_size = io_info->struct_size,
      .rank = index,
      .cap_bytes = cap == 0 ? UINT64_MAX : cap,
      .mapped_bytes = usage.mapped_bytes,
      .state_bytes = usage.live_bytes[OPIPE_BUFFER_STATE],
      .stream_bytes = opi_stream_bytes(&s->setup->plan->decided, index, rank->alignment, &home)};
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    info.total_bytes += usage.live_bytes[kind];
  opi_lock_take(&s->shapes->submit_lock); /* keeps shapes from coming and going */
  usage.live_bytes[OPIPE_BUFFER_BOUNDARY] += rank->wire_bytes;
  info.total_bytes += rank->wire_bytes;
  info.params_bytes = usage.live_bytes[OPIPE_BUFFER_PARAMS];
  info.boundary_bytes = usage.live_bytes[OPIPE_BUFFER_BOUNDARY];
  info.workspace_bytes = workspace_of(s, index);
  const uint64_t pinned = pinned_bytes(s, index);
  info.host_bytes = usage.host_bytes - (pinned < usage.host_bytes ? pinned : usage.host_bytes) +
                    rank->packed_host_bytes;
  info.offload_bytes = offload_bytes(s, index);
  info.staging_bytes = staging_bytes(s, index);
  if (s->shapes->weights != NULL)
    train_memory(s, index, &usage, &info);
  opi_lock_give(&s->shapes->submit_lock);
  const uint64_t arena = usage.live_bytes[OPIPE_BUFFER_ARENA];
  if (info.workspace_bytes > arena)
    info.workspace_bytes = arena;
  info.activation_bytes = arena - info.workspace_bytes;
  copy_out(io_info, io_info->struct_size, &info, OPIPE_END(opipe_memory_info, staging_bytes));
  return OPIPE_OK;
}

opipe_status opi_session_info(opi_session *s, opipe_session_info *io_info, opipe_error *err) {
  OPI_TRY(opi_session_check(s->setup, err));
  if (io_info->struct_size < OPIPE_END(opipe_session_info, requests_failed)) {
    return opi_fail(err, OPIPE_E_ABI, "session_info: struct_size %u is too small",
                    io_info->struct_size);
  }
  opipe_session_info info = {.struct_size = io_info->struct_size,
                             .n_ranks = s->setup->plan->decided.n_ranks,
                             .requests_done = atomic_load(&s->n_done),
                             .requests_failed = atomic_load(&s->n_failed),
                             .shapes_compiled = atomic_load(&s->shapes->n_compiled),
                             .travelled_bytes = opi_peers_travelled(s)};
  for (uint32_t way = 0; way < OPIPE_WAY_KINDS; ++way)
    info.streams_by_way[way] = atomic_load(&s->shapes->streams_by_way[way]);
  for (uint32_t r = 0; r < s->setup->plan->decided.n_ranks; ++r)
    info.busy_ns += atomic_load(&s->setup->ranks[r].worker->busy_ns);
  copy_out(io_info, io_info->struct_size, &info, OPIPE_END(opipe_session_info, streams_by_way));
  return OPIPE_OK;
}

opipe_status opi_session_needs(opi_session *session, const char *input, uint32_t *out_needed,
                               opipe_error *err) {
  const opi_setup *s = session->setup;
  OPI_TRY(opi_session_check(s, err));
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (strcmp(s->inputs[i].name, input) != 0)
      continue;
    *out_needed = opi_shapes_need(session->shapes, i) ? 1 : 0;
    return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_NOTFOUND, "session_needs: there is no input '%s' among %u", input,
                  s->n_inputs);
}

opipe_status opi_session_reason(const opi_session *session, opipe_error *err) {
  const opi_ending *end = &session->setup->ending;
  return atomic_load(&end->failed) == 0
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_PEER, "the session has failed: %s", end->why.message);
}
