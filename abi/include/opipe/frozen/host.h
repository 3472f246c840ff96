/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of host.h as they were first released. */
#ifndef OPIPE_FROZEN_HOST_H
#define OPIPE_FROZEN_HOST_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_device_budget(X, T) \
  X(T, kind) X(T, index) X(T, reserved) X(T, memory_bytes)
OPIPE_ORDER(opipe_device_budget)
OPIPE_FREEZE(opipe_device_budget, memory_bytes, 24, 0x53eeea61a6784e2a)
#define OPIPE_FIELDS_opipe_context_params(X, T) \
  X(T, struct_size) X(T, log_level) X(T, allocator) X(T, log_ctx) X(T, log) X(T, plugin_paths) \
  X(T, budgets) X(T, n_plugin_paths) X(T, n_budgets) X(T, budgets_stride) X(T, cores) \
  X(T, flags) X(T, reserved)
OPIPE_ORDER(opipe_context_params)
OPIPE_FREEZE(opipe_context_params, reserved, 72, 0x0437e23e0b241afa)
#define OPIPE_FIELDS_opipe_api(X, T) \
  X(T, struct_size) X(T, abi_major) X(T, abi_minor) X(T, version) X(T, context_create) \
  X(T, context_destroy) X(T, context_register_static) X(T, context_plugins) X(T, model_load) \
  X(T, model_destroy) X(T, model_bind) X(T, model_info) X(T, model_input) X(T, model_output) \
  X(T, model_dim) X(T, model_describe) X(T, plan_make) X(T, plan_read) X(T, plan_write) \
  X(T, plan_describe) X(T, plan_annotate) X(T, plan_info) X(T, plan_memory) \
  X(T, plan_cut_tensor) X(T, plan_destroy) X(T, session_open) X(T, session_close) \
  X(T, session_submit) X(T, request_poll) X(T, request_wait) X(T, request_cancel) \
  X(T, request_output) X(T, request_release) X(T, session_drive) X(T, session_fd) \
  X(T, session_memory) X(T, session_info) X(T, session_train_step) X(T, session_flush) \
  X(T, session_evaluate) X(T, request_report) X(T, session_parameter) X(T, session_get) \
  X(T, session_set) X(T, session_save) X(T, session_load) X(T, session_save_model) \
  X(T, session_save_gradients) X(T, model_describe_training) X(T, schedule_list) \
  X(T, order_make) X(T, order_read) X(T, order_destroy) X(T, order_info) X(T, order_lower) \
  X(T, order_check) X(T, order_simulate) X(T, order_draw) X(T, order_write) X(T, session_trace) \
  X(T, session_clock) X(T, session_set_clock) X(T, session_try_save)
OPIPE_ORDER(opipe_api)
OPIPE_FREEZE(opipe_api, session_try_save, 488, 0x850263fbce9d7feb)
#define OPIPE_FIELDS_opipe_view(X, T) \
  X(T, struct_size) X(T, abi_major) X(T, abi_minor) X(T, structs) X(T, n_structs) \
  X(T, struct_row_bytes)
OPIPE_ORDER(opipe_view)
OPIPE_FREEZE(opipe_view, struct_row_bytes, 24, 0xc9fb19925c5010ad)
#define OPIPE_ROWS_HOST \
  OPIPE_ROW(opipe_device_budget, memory_bytes, 0), \
  OPIPE_ROW(opipe_context_params, reserved, 0), \
  OPIPE_ROW(opipe_api, session_try_save, 0), \
  OPIPE_ROW(opipe_view, struct_row_bytes, 0)
/* clang-format on */

#endif /* OPIPE_FROZEN_HOST_H */
