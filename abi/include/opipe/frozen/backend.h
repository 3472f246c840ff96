/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of backend.h as they were first released. */
#ifndef OPIPE_FROZEN_BACKEND_H
#define OPIPE_FROZEN_BACKEND_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_device_info(X, T) \
  X(T, struct_size) X(T, flags) X(T, memory_bytes) X(T, peak_flops) X(T, bandwidth) \
  X(T, launch_ns) X(T, max_threads) X(T, alignment) X(T, name)
OPIPE_ORDER(opipe_device_info)
OPIPE_FREEZE(opipe_device_info, name, 112, 0xbe3a2bdbdbb46bd0)
#define OPIPE_FIELDS_opipe_device_params(X, T) \
  X(T, struct_size) X(T, index) X(T, memory_bytes) X(T, threads) X(T, spin_us) X(T, options)
OPIPE_ORDER(opipe_device_params)
OPIPE_FREEZE(opipe_device_params, options, 32, 0xc9a2b9925c04f7b7)
#define OPIPE_FIELDS_opipe_region(X, T) \
  X(T, buffer) X(T, offset_bytes) X(T, n_bytes)
OPIPE_ORDER(opipe_region)
OPIPE_FREEZE(opipe_region, n_bytes, 24, 0x9d1f14494de69bfb)
#define OPIPE_FIELDS_opipe_device_usage(X, T) \
  X(T, struct_size) X(T, reserved) X(T, live_bytes) X(T, mapped_bytes) X(T, peak_bytes)
OPIPE_ORDER(opipe_device_usage)
OPIPE_FREEZE(opipe_device_usage, peak_bytes, 152, 0x05a3b579fd273b12)
#define OPIPE_FIELDS_opipe_support(X, T) \
  X(T, status) X(T, reserved) X(T, reason)
OPIPE_ORDER(opipe_support)
OPIPE_FREEZE(opipe_support, reason, 128, 0x9d47ec494e095d17)
#define OPIPE_FIELDS_opipe_compile_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, graph) X(T, stage) X(T, reserved)
OPIPE_ORDER(opipe_compile_params)
OPIPE_FREEZE(opipe_compile_params, reserved, 24, 0x01fa2579fa0b0396)
#define OPIPE_FIELDS_opipe_program_info(X, T) \
  X(T, struct_size) X(T, n_kernels) X(T, temp_bytes) X(T, workspace_bytes) X(T, arena_bytes)
OPIPE_ORDER(opipe_program_info)
OPIPE_FREEZE(opipe_program_info, arena_bytes, 32, 0x0207ad79fa16750a)
#define OPIPE_FIELDS_opipe_param_layout(X, T) \
  X(T, struct_size) X(T, slot) X(T, key) X(T, n_bytes) X(T, mapped_bytes)
OPIPE_ORDER(opipe_param_layout)
OPIPE_FREEZE(opipe_param_layout, mapped_bytes, 32, 0x0207ad79fa16750a)
#define OPIPE_FIELDS_opipe_param_source(X, T) \
  X(T, name) X(T, data) X(T, shape) X(T, n_bytes) X(T, dtype) X(T, rank) X(T, flags) \
  X(T, reserved) X(T, reserved2)
OPIPE_ORDER(opipe_param_source)
OPIPE_FREEZE(opipe_param_source, reserved2, 64, 0xbd7bcbdbdb129fa8)
#define OPIPE_FIELDS_opipe_bind_params(X, T) \
  X(T, struct_size) X(T, n_boundaries) X(T, program) X(T, params) X(T, arena) X(T, boundaries) \
  X(T, gradients)
OPIPE_ORDER(opipe_bind_params)
OPIPE_FREEZE(opipe_bind_params, gradients, 64, 0x896d9aaab9c3f469)
#define OPIPE_FIELDS_opipe_update(X, T) \
  X(T, struct_size) X(T, kind) X(T, flags) X(T, reserved) X(T, n_elems) X(T, weight) \
  X(T, gradient) X(T, first) X(T, second) X(T, gradient_scale) X(T, lr) X(T, momentum) \
  X(T, beta1) X(T, beta2) X(T, correction1) X(T, correction2) X(T, epsilon) X(T, decay)
OPIPE_ORDER(opipe_update)
OPIPE_FREEZE(opipe_update, decay, 192, 0x4ff800b952812dd1)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_shared(X, T) \
  X(T, n_bytes) X(T, process) X(T, native) X(T, driver) X(T, handle) X(T, uuid) X(T, reserved)
OPIPE_ORDER(opipe_shared)
#endif
#if OPIPE_TARGET_MINOR >= 3
#define OPIPE_FIELDS_opipe_update_part(X, T) \
  X(T, weight) X(T, gradient) X(T, first) X(T, second) X(T, n_elems) X(T, decay) X(T, params) \
  X(T, slot) X(T, reserved)
OPIPE_ORDER(opipe_update_part)
OPIPE_FREEZE(opipe_update_part, reserved, 128, 0xbac6e3dbd8c63e1c)
#endif
#if OPIPE_TARGET_MINOR >= 3
#define OPIPE_FIELDS_opipe_kernel(X, T) \
  X(T, struct_size) X(T, flags) X(T, n_tried) X(T, n_dropped) X(T, own_ns) X(T, ns) X(T, what) \
  X(T, choice)
OPIPE_ORDER(opipe_kernel)
OPIPE_FREEZE(opipe_kernel, choice, 416, 0xa4785cc34a0e5a6c)
#endif
#if OPIPE_TARGET_MINOR >= 3
#define OPIPE_FIELDS_opipe_tune_params(X, T) \
  X(T, struct_size) X(T, n_candidates) X(T, n_runs) X(T, reserved)
OPIPE_ORDER(opipe_tune_params)
OPIPE_FREEZE(opipe_tune_params, reserved, 16, 0x5417aa61a69ae67e)
#endif
#define OPIPE_FIELDS_opipe_backend(X, T) \
  X(T, struct_size) X(T, reserved) X(T, device_count) X(T, device_query) X(T, device_open) \
  X(T, device_close) X(T, device_usage) X(T, buffer_alloc) X(T, buffer_free) X(T, buffer_host) \
  X(T, queue_open) X(T, queue_close) X(T, event_create) X(T, event_destroy) X(T, event_record) \
  X(T, event_wait) X(T, event_poll) X(T, event_sync) X(T, write) X(T, read) X(T, copy) \
  X(T, support) X(T, compile) X(T, program_free) X(T, program_info) X(T, program_params) \
  X(T, params_create) X(T, params_free) X(T, params_prepare) X(T, params_clone) \
  X(T, params_write) X(T, params_read) X(T, params_commit) X(T, bind) X(T, binding_free) \
  X(T, run) X(T, params_create_owned) X(T, gradients_create) X(T, program_gradients) \
  X(T, params_master) X(T, gradients_fold) X(T, params_refresh) X(T, params_export) \
  X(T, params_import) X(T, fill_zero) X(T, add) X(T, sum_squares) X(T, update)
OPIPE_ORDER(opipe_backend)
OPIPE_FREEZE(opipe_backend, update, 376, 0x9de924915c93254c)
#if OPIPE_TARGET_MINOR >= 3
#define OPIPE_FIELDS_opipe_backend_lookup(X, T) \
  X(T, struct_size) X(T, reserved) X(T, find) X(T, count)
OPIPE_ORDER(opipe_backend_lookup)
OPIPE_FREEZE(opipe_backend_lookup, count, 24, 0x53b87a61a64a006a)
#endif
#if OPIPE_TARGET_MINOR >= 3
#define OPIPE_ROWS_BACKEND_3 \
  , OPIPE_ROW(opipe_update_part, reserved, 3) \
  , OPIPE_ROW(opipe_kernel, choice, 3) \
  , OPIPE_ROW(opipe_tune_params, reserved, 3) \
  , OPIPE_ROW(opipe_backend_lookup, count, 3)
#else
#define OPIPE_ROWS_BACKEND_3
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_BACKEND_5 \
  , OPIPE_ROW(opipe_shared, reserved, 5)
#else
#define OPIPE_ROWS_BACKEND_5
#endif
#define OPIPE_ROWS_BACKEND \
  OPIPE_ROW(opipe_device_info, name, 0), \
  OPIPE_ROW(opipe_device_params, options, 0), \
  OPIPE_ROW(opipe_region, n_bytes, 0), \
  OPIPE_ROW(opipe_device_usage, peak_bytes, 0), \
  OPIPE_ROW(opipe_support, reason, 0), \
  OPIPE_ROW(opipe_compile_params, reserved, 0), \
  OPIPE_ROW(opipe_program_info, arena_bytes, 0), \
  OPIPE_ROW(opipe_param_layout, mapped_bytes, 0), \
  OPIPE_ROW(opipe_param_source, reserved2, 0), \
  OPIPE_ROW(opipe_bind_params, gradients, 0), \
  OPIPE_ROW(opipe_update, decay, 0), \
  OPIPE_ROW(opipe_backend, update, 0) OPIPE_ROWS_BACKEND_3 OPIPE_ROWS_BACKEND_5
/* clang-format on */

#endif /* OPIPE_FROZEN_BACKEND_H */
