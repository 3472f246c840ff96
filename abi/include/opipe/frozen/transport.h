/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of transport.h as they were first released. */
#ifndef OPIPE_FROZEN_TRANSPORT_H
#define OPIPE_FROZEN_TRANSPORT_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_transport_info(X, T) \
  X(T, struct_size) X(T, rule) X(T, thread_rule) X(T, flags) X(T, fence_kinds) X(T, max_ranks) \
  X(T, latency_ns) X(T, bandwidth)
OPIPE_ORDER(opipe_transport_info)
OPIPE_FREEZE(opipe_transport_info, bandwidth, 40, 0xa7eb64c34cfc1b60)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_board(X, T) \
  X(T, struct_size) X(T, reserved) X(T, ctx) X(T, post) X(T, look)
OPIPE_ORDER(opipe_board)
#endif
#define OPIPE_FIELDS_opipe_world_params(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, options)
OPIPE_ORDER(opipe_world_params)
OPIPE_FREEZE(opipe_world_params, options, 16, 0x9d47bc494e090b87)
#define OPIPE_FIELDS_opipe_endpoint_params(X, T) \
  X(T, struct_size) X(T, rank) X(T, backend) X(T, device) X(T, queue) X(T, backend_self) \
  X(T, backend_id) X(T, spin_us) X(T, reserved)
OPIPE_ORDER(opipe_endpoint_params)
OPIPE_FREEZE(opipe_endpoint_params, reserved, 56, 0xbde84bdbdb6e9808)
#define OPIPE_FIELDS_opipe_stream_params(X, T) \
  X(T, struct_size) X(T, kind) X(T, src_rank) X(T, dst_rank) X(T, src_stage) X(T, dst_stage) \
  X(T, src_replica) X(T, dst_replica) X(T, index) X(T, depth) X(T, n_bytes)
OPIPE_ORDER(opipe_stream_params)
OPIPE_FREEZE(opipe_stream_params, n_bytes, 48, 0x1591190d112d217b)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_way(X, T) \
  X(T, struct_size) X(T, way) X(T, src_bytes) X(T, dst_bytes) X(T, why)
OPIPE_ORDER(opipe_way)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_way_params(X, T) \
  X(T, struct_size) X(T, src_index) X(T, dst_index) X(T, reserved) X(T, src_backend) \
  X(T, dst_backend) X(T, src_self) X(T, dst_self) X(T, stream)
OPIPE_ORDER(opipe_way_params)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_collective_params(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, ranks) X(T, id) X(T, n_bytes) X(T, n_regions) \
  X(T, reserved)
OPIPE_ORDER(opipe_collective_params)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_collect(X, T) \
  X(T, struct_size) X(T, kind) X(T, dtype) X(T, n_from) X(T, n_to) X(T, reserved) X(T, from) \
  X(T, to) X(T, parts) X(T, ready) X(T, done)
OPIPE_ORDER(opipe_collect)
#endif
#define OPIPE_FIELDS_opipe_transport(X, T) \
  X(T, struct_size) X(T, reserved) X(T, info) X(T, world_open) X(T, world_close) \
  X(T, endpoint_open) X(T, endpoint_close) X(T, stream_open) X(T, stream_close) \
  X(T, memory_register) X(T, memory_drop) X(T, reserve) X(T, send) X(T, recv) X(T, test) \
  X(T, doorbell) X(T, ring) X(T, wait) X(T, group_open) X(T, group_close) X(T, all_reduce) \
  X(T, group_test) X(T, abort) X(T, world_info) X(T, endpoint_ready) X(T, notify)
OPIPE_ORDER(opipe_transport)
OPIPE_FREEZE(opipe_transport, notify, 200, 0xcd8e757f59c67199)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_TRANSPORT_5 \
  , OPIPE_ROW(opipe_board, look, 5) \
  , OPIPE_ROW(opipe_way, why, 5) \
  , OPIPE_ROW(opipe_way_params, stream, 5) \
  , OPIPE_ROW(opipe_collective_params, reserved, 5) \
  , OPIPE_ROW(opipe_collect, done, 5)
#else
#define OPIPE_ROWS_TRANSPORT_5
#endif
#define OPIPE_ROWS_TRANSPORT \
  OPIPE_ROW(opipe_transport_info, bandwidth, 0), \
  OPIPE_ROW(opipe_world_params, options, 0), \
  OPIPE_ROW(opipe_endpoint_params, reserved, 0), \
  OPIPE_ROW(opipe_stream_params, n_bytes, 0), \
  OPIPE_ROW(opipe_transport, notify, 0) OPIPE_ROWS_TRANSPORT_5
/* clang-format on */

#endif /* OPIPE_FROZEN_TRANSPORT_H */
