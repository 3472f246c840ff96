/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of simulate.h as they were first released. */
#ifndef OPIPE_FROZEN_SIMULATE_H
#define OPIPE_FROZEN_SIMULATE_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_order_costs(X, T) \
  X(T, struct_size) X(T, n_stages) X(T, forward) X(T, input) X(T, weight) X(T, comm) \
  X(T, stage_forward) X(T, stage_input) X(T, stage_weight)
OPIPE_ORDER(opipe_order_costs)
OPIPE_FREEZE(opipe_order_costs, stage_weight, 64, 0xbe1123dbdb915924)
#define OPIPE_FIELDS_opipe_order_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, schedule) X(T, n_ranks) X(T, n_stages) \
  X(T, n_microbatches) X(T, replicas) X(T, costs)
OPIPE_ORDER(opipe_order_params)
OPIPE_FREEZE(opipe_order_params, costs, 40, 0xa7637cc34c88aa90)
#define OPIPE_FIELDS_opipe_order_info(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, n_stages) X(T, n_replicas) X(T, n_microbatches) \
  X(T, n_slices) X(T, n_parts) X(T, n_actions) X(T, lowered) X(T, forward_only)
OPIPE_ORDER(opipe_order_info)
OPIPE_FREEZE(opipe_order_info, forward_only, 40, 0xeed69bf479696e91)
#define OPIPE_FIELDS_opipe_stage_load(X, T) \
  X(T, recompute_ms) X(T, step_ms) X(T, flops) X(T, send_bytes) X(T, stash_bytes) \
  X(T, input_bytes) X(T, fixed_bytes) X(T, gradient_bytes) X(T, tensor_bytes) X(T, tensor_sums) \
  X(T, reserved)
OPIPE_ORDER(opipe_stage_load)
OPIPE_FREEZE(opipe_stage_load, reserved, 80, 0x12ce590d0ed4c68b)
#define OPIPE_FIELDS_opipe_play_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, cluster) X(T, cluster_bytes) X(T, cluster_name) \
  X(T, stages) X(T, n_stages) X(T, stages_stride) X(T, tensor) X(T, copies) X(T, collective) \
  X(T, dtype) X(T, title) X(T, answer) X(T, answer_bytes)
OPIPE_ORDER(opipe_play_params)
OPIPE_FREEZE(opipe_play_params, answer_bytes, 88, 0x15258f6f186a6d09)
#define OPIPE_ROWS_SIMULATE \
  OPIPE_ROW(opipe_order_costs, stage_weight, 0), \
  OPIPE_ROW(opipe_order_params, costs, 0), \
  OPIPE_ROW(opipe_order_info, forward_only, 0), \
  OPIPE_ROW(opipe_stage_load, reserved, 3), \
  OPIPE_ROW(opipe_play_params, answer_bytes, 3)
/* clang-format on */

#endif /* OPIPE_FROZEN_SIMULATE_H */
