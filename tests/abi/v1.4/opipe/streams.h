/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of transports: checks and answers that every transport needs. Header only, as
 * helpers.h; nothing here is part of the ABI.
 *
 *   worlds        opipe_transport_tell, opipe_world_check, opipe_endpoint_check
 *   streams       opipe_stream_check, opipe_stream_same, opipe_stream_sides, opipe_stream_agree,
 *                 opipe_stream_not_held
 *   devices       opipe_endpoint_address, opipe_endpoint_record
 *   reductions    opipe_group_check, opipe_reduce_size, opipe_reduce_check
 *
 * Thread rule: functions work only on their arguments, and call the backend as a message call of
 * the same endpoint would. Errors name the rank, the stream and both numbers.
 */
#ifndef OPIPE_STREAMS_H
#define OPIPE_STREAMS_H

#include "helpers.h"
#include "transport.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OPIPE_RANKS_MOST = 65536, OPIPE_DEPTH_MOST = 65536 };

/* ---- worlds and endpoints ---- */

/* Answers info(): copies as much of `full` as the caller's struct holds. Errors: ABI. */
static inline opipe_status opipe_transport_tell(opipe_transport_info *io_info,
                                                const opipe_transport_info *full,
                                                opipe_error *err) {
  const uint32_t size = io_info->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth);
  if (size < OPIPE_END(opipe_transport_info, max_ranks))
    return opipe_fail(err, OPIPE_E_ABI, "transport info: struct_size %u is too small", size);
  memcpy(io_info, full, size < known ? size : known);
  io_info->struct_size = size;
  return OPIPE_OK;
}

/* Checks all but the options, which are the transport's own. Errors: ABI, INVALID. */
static inline opipe_status opipe_world_check(const opipe_world_params *params, opipe_error *err) {
  if (params->struct_size < OPIPE_END(opipe_world_params, options)) {
    return opipe_fail(err, OPIPE_E_ABI, "world_open: struct_size %u is too small",
                      params->struct_size);
  }
  if (params->n_ranks == 0 || params->n_ranks > OPIPE_RANKS_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID, "world_open: %u ranks, 1 to %u are possible",
                      params->n_ranks, (unsigned)OPIPE_RANKS_MOST);
  }
  return OPIPE_OK;
}

/* Does not check whether the rank already has an endpoint; the world knows that. Errors: ABI,
 * INVALID. */
static inline opipe_status opipe_endpoint_check(uint32_t n_ranks,
                                                const opipe_endpoint_params *params,
                                                opipe_error *err) {
  if (params->struct_size < OPIPE_END(opipe_endpoint_params, spin_us)) {
    return opipe_fail(err, OPIPE_E_ABI, "endpoint_open: struct_size %u is too small",
                      params->struct_size);
  }
  if (params->rank >= n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID, "endpoint_open: rank %u in a world of %u", params->rank,
                      n_ranks);
  }
  return OPIPE_OK;
}

/* ---- streams ---- */

/* Checks the params of a stream_open by `rank` of `n_ranks`. Errors: ABI, INVALID. */
static inline opipe_status opipe_stream_check(uint32_t rank, uint32_t n_ranks,
                                              const opipe_stream_params *params, opipe_error *err) {
  if (params->struct_size < OPIPE_END(opipe_stream_params, n_bytes)) {
    return opipe_fail(err, OPIPE_E_ABI, "stream_open: struct_size %u is too small",
                      params->struct_size);
  }
  if (params->kind > OPIPE_STREAM_CONTROL)
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: unknown kind %u", params->kind);
  if (params->src_rank >= n_ranks || params->dst_rank >= n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: ranks %u -> %u in a world of %u",
                      params->src_rank, params->dst_rank, n_ranks);
  }
  if (params->src_rank != rank && params->dst_rank != rank) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "stream_open: rank %u is neither end of a stream %u -> %u", rank,
                      params->src_rank, params->dst_rank);
  }
  if (params->depth == 0 || params->depth > OPIPE_DEPTH_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID, "stream_open: depth %u, 1 to %u are possible",
                      params->depth, (unsigned)OPIPE_DEPTH_MOST);
  }
  return OPIPE_OK;
}

/* True if both describe the same stream. */
static inline bool opipe_stream_same(const opipe_stream_params *a, const opipe_stream_params *b) {
  return a->kind == b->kind && a->src_rank == b->src_rank && a->dst_rank == b->dst_rank &&
         a->src_stage == b->src_stage && a->dst_stage == b->dst_stage &&
         a->src_replica == b->src_replica && a->dst_replica == b->dst_replica &&
         a->index == b->index;
}

/* Ends that `rank` holds: bit 0 source, bit 1 destination; both if it sends to itself. */
static inline uint32_t opipe_stream_sides(const opipe_stream_params *params, uint32_t rank) {
  return (params->src_rank == rank ? 1u : 0u) | (params->dst_rank == rank ? 2u : 0u);
}

/* Checks that both ends of a stream agree. Errors: INVALID. */
static inline opipe_status opipe_stream_agree(uint32_t rank, const opipe_stream_params *params,
                                              const opipe_stream_params *peer, opipe_error *err) {
  if (params->depth == peer->depth && params->n_bytes == peer->n_bytes)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "stream %u of stages %u -> %u: rank %u opens it with depth %u and %llu bytes, "
                    "its peer with depth %u and %llu bytes",
                    params->index, params->src_stage, params->dst_stage, rank, params->depth,
                    (unsigned long long)params->n_bytes, peer->depth,
                    (unsigned long long)peer->n_bytes);
}

/* The error of a call on an end that the rank does not hold. Always STATE. */
static inline opipe_status opipe_stream_not_held(uint32_t rank, const opipe_stream_params *params,
                                                 const char *call, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_STATE,
                    "%s on stream %u of stages %u -> %u: rank %u holds only its other end", call,
                    params->index, params->src_stage, params->dst_stage, rank);
}

/* ---- devices whose buffers are host memory ---- */

/* Host address of a region; 0 bytes need no buffer (NULL). Errors: INVALID, the backend's. */
static inline opipe_status opipe_endpoint_address(uint32_t rank, const opipe_backend *backend,
                                                  const opipe_region *region, void **out_data,
                                                  opipe_error *err) {
  void *base = NULL;
  *out_data = NULL;
  if (region->buffer == NULL && region->n_bytes == 0)
    return OPIPE_OK;
  if (region->buffer == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u: a region of %llu bytes without a buffer",
                      rank, (unsigned long long)region->n_bytes);
  }
  if (backend == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u: its endpoint was opened without a backend",
                      rank);
  }
  const opipe_status status = backend->buffer_host(region->buffer, &base, err);
  if (status < 0)
    return status;
  if (status != OPIPE_OK || base == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u: its backend gives no host address of a buffer (answered %d)", rank,
                      (int)status);
  }
  *out_data = (char *)base + region->offset_bytes;
  return OPIPE_OK;
}

/* Records `event` on the endpoint's queue; NULL: does nothing. Errors: INVALID, the backend's. */
static inline opipe_status opipe_endpoint_record(uint32_t rank, const opipe_backend *backend,
                                                 opipe_queue *queue, opipe_event *event,
                                                 opipe_error *err) {
  if (event == NULL)
    return OPIPE_OK;
  if (backend == NULL || queue == NULL) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u: an event to record, but its endpoint was opened without a queue",
                      rank);
  }
  return backend->event_record(queue, event, err);
}

/* ---- reductions ---- */

/* Checks the members of a group that `rank` of `n_ranks` opens. Errors: INVALID. */
static inline opipe_status opipe_group_check(uint32_t rank, uint32_t n_ranks,
                                             const uint32_t *members, uint32_t n_members,
                                             uint64_t n_bytes, opipe_error *err) {
  bool among = false;
  for (uint32_t i = 0; i < n_members; ++i) {
    if (members[i] >= n_ranks) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "group_open: member %u is rank %u: it must be below %u", i, members[i],
                        n_ranks);
    }
    among = among || members[i] == rank;
  }
  if (!among) {
    return opipe_fail(err, OPIPE_E_INVALID, "group_open: rank %u is not among the %u members", rank,
                      n_members);
  }
  return n_bytes <= PTRDIFF_MAX ? OPIPE_OK
                                : opipe_fail(err, OPIPE_E_INVALID, "group_open: %llu bytes",
                                             (unsigned long long)n_bytes);
}

/* Bytes of one value of fp64 or fp32. */
static inline uint64_t opipe_reduce_size(uint32_t dtype) {
  return dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float);
}

/* Checks the arguments of all_reduce in a group opened with `group_bytes`. Errors: UNSUPPORTED
 * (types other than fp32 and fp64), INVALID. */
static inline opipe_status opipe_reduce_check(uint64_t group_bytes, const opipe_region *region,
                                              uint64_t n_elems, uint32_t dtype, opipe_error *err) {
  const uint64_t size = opipe_reduce_size(dtype);
  if (dtype != OPIPE_DOUBLE && dtype != OPIPE_FLOAT) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "all_reduce of %s: float32 and float64 are added",
                      opipe_dtype_name(dtype));
  }
  if (n_elems > group_bytes / size || n_elems > region->n_bytes / size) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "all_reduce: %llu values of %llu bytes, the region has %llu bytes, the group %llu",
        (unsigned long long)n_elems, (unsigned long long)size, (unsigned long long)region->n_bytes,
        (unsigned long long)group_bytes);
  }
  return OPIPE_OK;
}

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_STREAMS_H */
