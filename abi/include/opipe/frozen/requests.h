/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of requests.h as they were first released. */
#ifndef OPIPE_FROZEN_REQUESTS_H
#define OPIPE_FROZEN_REQUESTS_H

/* clang-format off */
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_rank_device(X, T) \
  X(T, rank) X(T, index) X(T, threads) X(T, reserved) X(T, memory_bytes)
OPIPE_ORDER(opipe_rank_device)
#endif
#define OPIPE_FIELDS_opipe_session_params(X, T) \
  X(T, struct_size) X(T, threads) X(T, flags) X(T, max_in_flight) X(T, watchdog_ns) \
  X(T, spin_us) X(T, max_shapes)
OPIPE_ORDER(opipe_session_params)
OPIPE_FREEZE(opipe_session_params, max_shapes, 32, 0x8988e2aab9db3679)
#define OPIPE_FIELDS_opipe_session_info(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, requests_done) X(T, requests_failed) \
  X(T, shapes_compiled) X(T, busy_ns) X(T, reserved)
OPIPE_ORDER(opipe_session_info)
OPIPE_FREEZE(opipe_session_info, reserved, 48, 0x896d8aaab9c3d939)
#define OPIPE_FIELDS_opipe_memory_info(X, T) \
  X(T, struct_size) X(T, rank) X(T, flags) X(T, reserved) X(T, params_bytes) \
  X(T, activation_bytes) X(T, workspace_bytes) X(T, boundary_bytes) X(T, gradient_bytes) \
  X(T, optimizer_bytes) X(T, version_bytes) X(T, stash_bytes) X(T, total_bytes) X(T, cap_bytes) \
  X(T, mapped_bytes)
OPIPE_ORDER(opipe_memory_info)
OPIPE_FREEZE(opipe_memory_info, mapped_bytes, 104, 0x17cd476f1aabf2a9)
#define OPIPE_FIELDS_opipe_binding_io(X, T) \
  X(T, name) X(T, tensor) X(T, ready) X(T, done)
OPIPE_ORDER(opipe_binding_io)
OPIPE_FREEZE(opipe_binding_io, done, 88, 0x5542da61a79932f6)
#define OPIPE_FIELDS_opipe_submit_params(X, T) \
  X(T, struct_size) X(T, n_inputs) X(T, n_outputs) X(T, io_stride) X(T, inputs) X(T, outputs) \
  X(T, stream) X(T, deadline_ns) X(T, on_done) X(T, on_done_ctx)
OPIPE_ORDER(opipe_submit_params)
OPIPE_FREEZE(opipe_submit_params, on_done_ctx, 64, 0xee929bf4792fa1c5)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_REQUESTS_5 \
  , OPIPE_ROW(opipe_rank_device, memory_bytes, 5)
#else
#define OPIPE_ROWS_REQUESTS_5
#endif
#define OPIPE_ROWS_REQUESTS \
  OPIPE_ROW(opipe_session_params, max_shapes, 0), \
  OPIPE_ROW(opipe_session_info, reserved, 0), \
  OPIPE_ROW(opipe_memory_info, mapped_bytes, 0), \
  OPIPE_ROW(opipe_binding_io, done, 0), \
  OPIPE_ROW(opipe_submit_params, on_done_ctx, 0) OPIPE_ROWS_REQUESTS_5
/* clang-format on */

#endif /* OPIPE_FROZEN_REQUESTS_H */
