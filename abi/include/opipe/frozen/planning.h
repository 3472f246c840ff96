/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of planning.h as they were first released. */
#ifndef OPIPE_FROZEN_PLANNING_H
#define OPIPE_FROZEN_PLANNING_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_device_choice(X, T) \
  X(T, kind) X(T, options) X(T, memory_bytes) X(T, index) X(T, threads)
OPIPE_ORDER(opipe_device_choice)
OPIPE_FREEZE(opipe_device_choice, threads, 32, 0x0207dd79fa16c69a)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_generation_params(X, T) \
  X(T, struct_size) X(T, context) X(T, n_tokens) X(T, page) X(T, rows) X(T, active) \
  X(T, groups) X(T, draft) X(T, reserved) X(T, gap_passes) X(T, gap_ms) X(T, output)
OPIPE_ORDER(opipe_generation_params)
#endif
#define OPIPE_FIELDS_opipe_plan_params(X, T) \
  X(T, struct_size) X(T, n_stages) X(T, devices) X(T, n_devices) X(T, devices_stride) \
  X(T, n_microbatches) X(T, replicas) X(T, schedule) X(T, cut) X(T, batch_dim) \
  X(T, memory_bytes) X(T, depth) X(T, cost) X(T, flags) X(T, n_ranks) X(T, transport) \
  X(T, train) X(T, costs) X(T, stage_replicas) X(T, n_stage_replicas) X(T, reserved)
OPIPE_ORDER(opipe_plan_params)
OPIPE_FREEZE(opipe_plan_params, reserved, 120, 0x2ffb1f0355847f9e)
#define OPIPE_FIELDS_opipe_plan_info(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, n_stages) X(T, n_microbatches) X(T, request_ns) \
  X(T, interval_ns) X(T, bound_ns)
OPIPE_ORDER(opipe_plan_info)
OPIPE_FREEZE(opipe_plan_info, bound_ns, 40, 0x89b1baaab9fdf795)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_share_params(X, T) \
  X(T, struct_size) X(T, refused) X(T, team) X(T, plan) X(T, reason)
OPIPE_ORDER(opipe_share_params)
#endif
#define OPIPE_FIELDS_opipe_profile_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, samples) X(T, n_samples) X(T, cost) X(T, batch_dim) \
  X(T, train) X(T, cluster) X(T, cluster_bytes) X(T, cluster_name) X(T, device) \
  X(T, device_options) X(T, device_index) X(T, threads)
OPIPE_ORDER(opipe_profile_params)
OPIPE_FREEZE(opipe_profile_params, threads, 88, 0x133e76569620716f)
#define OPIPE_FIELDS_opipe_profile_info(X, T) \
  X(T, struct_size) X(T, n_layers) X(T, n_sizes) X(T, tokens) X(T, weight_bytes) X(T, reserved) \
  X(T, name)
OPIPE_ORDER(opipe_profile_info)
OPIPE_FREEZE(opipe_profile_info, name, 32, 0x89bf32aaba094dd9)
#define OPIPE_FIELDS_opipe_layer_info(X, T) \
  X(T, struct_size) X(T, reserved) X(T, name) X(T, flops) X(T, forward_ns) X(T, input_ns) \
  X(T, weight_ns) X(T, output_bytes) X(T, cut_bytes) X(T, stash_bytes) X(T, param_bytes) \
  X(T, width_share) X(T, width_bytes)
OPIPE_ORDER(opipe_layer_info)
OPIPE_FREEZE(opipe_layer_info, width_bytes, 96, 0x0445aa3e0b2ff92e)
#define OPIPE_FIELDS_opipe_strategy_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, planner) X(T, cluster) X(T, cluster_bytes) \
  X(T, cluster_name) X(T, batch) X(T, memory_bytes) X(T, state_bytes) X(T, limit_ms) \
  X(T, budget_s) X(T, n_devices) X(T, samples) X(T, objective) X(T, n_threads) X(T, schedule) \
  X(T, n_stages) X(T, n_microbatches) X(T, progress) X(T, progress_ctx) X(T, n_ranks) \
  X(T, replicas) X(T, width) X(T, recompute) X(T, spare_bytes) X(T, slice_ns)
OPIPE_ORDER(opipe_strategy_params)
OPIPE_FREEZE(opipe_strategy_params, slice_ns, 160, 0xc9c9557f56927db5)
#define OPIPE_FIELDS_opipe_strategy_info(X, T) \
  X(T, struct_size) X(T, flags) X(T, planner) X(T, schedule) X(T, n_stages) X(T, chunks) \
  X(T, pipelines) X(T, width) X(T, samples) X(T, microbatches) X(T, recompute) X(T, n_slices) \
  X(T, objective) X(T, step_ns) X(T, memory_bytes) X(T, bound) X(T, gap) X(T, n_candidates) \
  X(T, n_bounded) X(T, n_simulated) X(T, n_left) X(T, rank) X(T, n_ranked) X(T, reason)
OPIPE_ORDER(opipe_strategy_info)
OPIPE_FREEZE(opipe_strategy_info, reason, 144, 0x7004be4d8f214af4)
#define OPIPE_FIELDS_opipe_strategy_stage_info(X, T) \
  X(T, struct_size) X(T, first) X(T, end) X(T, n_devices) X(T, devices) X(T, forward_ns) \
  X(T, backward_ns) X(T, memory_bytes)
OPIPE_ORDER(opipe_strategy_stage_info)
OPIPE_FREEZE(opipe_strategy_stage_info, memory_bytes, 48, 0xa7f90cc34d07c334)
#define OPIPE_FIELDS_opipe_machine_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, transport) X(T, devices) X(T, n_devices) \
  X(T, devices_stride)
OPIPE_ORDER(opipe_machine_params)
OPIPE_FREEZE(opipe_machine_params, devices_stride, 32, 0xc9bdd9925c1bf5cf)
#define OPIPE_FIELDS_opipe_tuned(X, T) \
  X(T, struct_size) X(T, n_tried) X(T, n_dropped) X(T, reserved) X(T, own_ns) X(T, ns) \
  X(T, what) X(T, choice)
OPIPE_ORDER(opipe_tuned)
OPIPE_FREEZE(opipe_tuned, choice, 48, 0xa7f90cc34d07c334)
#define OPIPE_FIELDS_opipe_tuning_params(X, T) \
  X(T, struct_size) X(T, index) X(T, kind) X(T, n_candidates) X(T, n_runs) X(T, measured) \
  X(T, measured_ctx)
OPIPE_ORDER(opipe_tuning_params)
OPIPE_FREEZE(opipe_tuning_params, measured_ctx, 40, 0x896022aab9b89e25)
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_PLANNING_5 \
  , OPIPE_ROW(opipe_generation_params, output, 5) \
  , OPIPE_ROW(opipe_share_params, reason, 5)
#else
#define OPIPE_ROWS_PLANNING_5
#endif
#define OPIPE_ROWS_PLANNING \
  OPIPE_ROW(opipe_device_choice, threads, 0), \
  OPIPE_ROW(opipe_plan_params, reserved, 0), \
  OPIPE_ROW(opipe_plan_info, bound_ns, 0), \
  OPIPE_ROW(opipe_profile_params, threads, 3), \
  OPIPE_ROW(opipe_profile_info, name, 3), \
  OPIPE_ROW(opipe_layer_info, width_bytes, 3), \
  OPIPE_ROW(opipe_strategy_params, slice_ns, 3), \
  OPIPE_ROW(opipe_strategy_info, reason, 3), \
  OPIPE_ROW(opipe_strategy_stage_info, memory_bytes, 3), \
  OPIPE_ROW(opipe_machine_params, devices_stride, 3), \
  OPIPE_ROW(opipe_tuned, choice, 3), \
  OPIPE_ROW(opipe_tuning_params, measured_ctx, 3) OPIPE_ROWS_PLANNING_5
/* clang-format on */

#endif /* OPIPE_FROZEN_PLANNING_H */
