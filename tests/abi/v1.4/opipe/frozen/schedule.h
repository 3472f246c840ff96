/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of schedule.h as they were first released. */
#ifndef OPIPE_FROZEN_SCHEDULE_H
#define OPIPE_FROZEN_SCHEDULE_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_action(X, T) \
  X(T, rank) X(T, stage) X(T, microbatch) X(T, replica) X(T, slice) X(T, part) X(T, pass) \
  X(T, version) X(T, flags) X(T, reserved)
OPIPE_ORDER(opipe_action)
OPIPE_FREEZE(opipe_action, reserved, 32, 0xeda14df478629a9a)
#define OPIPE_FIELDS_opipe_schedule_option(X, T) \
  X(T, key) X(T, choices) X(T, preset) X(T, help) X(T, min) X(T, max) X(T, type) X(T, reserved)
OPIPE_ORDER(opipe_schedule_option)
OPIPE_FREEZE(opipe_schedule_option, reserved, 56, 0xa68a34c34bd03f78)
#define OPIPE_FIELDS_opipe_schedule_setting(X, T) \
  X(T, key) X(T, value)
OPIPE_ORDER(opipe_schedule_setting)
OPIPE_FREEZE(opipe_schedule_setting, value, 16, 0xbb5edf30dd1d9291)
#define OPIPE_FIELDS_opipe_layout_request(X, T) \
  X(T, struct_size) X(T, mode) X(T, n_ranks) X(T, n_stages) X(T, n_microbatches) \
  X(T, n_settings) X(T, settings)
OPIPE_ORDER(opipe_layout_request)
OPIPE_FREEZE(opipe_layout_request, settings, 32, 0x89bf32aaba094dd9)
#define OPIPE_FIELDS_opipe_layout(X, T) \
  X(T, struct_size) X(T, n_ranks) X(T, n_stages) X(T, n_replicas) X(T, n_slices) X(T, n_parts) \
  X(T, versions) X(T, sync) X(T, instance_room) X(T, in_flight) X(T, instance_rank) \
  X(T, slice_lengths)
OPIPE_ORDER(opipe_layout)
OPIPE_FREEZE(opipe_layout, slice_lengths, 56, 0x114dbf2590ae26e6)
#define OPIPE_FIELDS_opipe_schedule_problem(X, T) \
  X(T, struct_size) X(T, mode) X(T, n_microbatches) X(T, n_settings) X(T, settings) \
  X(T, layout) X(T, forward_ns) X(T, backward_input_ns) X(T, backward_weight_ns) \
  X(T, transfer_ns) X(T, stash_bytes) X(T, rank_memory_bytes)
OPIPE_ORDER(opipe_schedule_problem)
OPIPE_FREEZE(opipe_schedule_problem, rank_memory_bytes, 80, 0x135fbf2592704fea)
#define OPIPE_FIELDS_opipe_schedule(X, T) \
  X(T, struct_size) X(T, reserved) X(T, options) X(T, layout) X(T, plan)
OPIPE_ORDER(opipe_schedule)
OPIPE_FREEZE(opipe_schedule, plan, 32, 0x0207ad79fa16750a)
#define OPIPE_ROWS_SCHEDULE \
  OPIPE_ROW(opipe_action, reserved, 0), \
  OPIPE_ROW(opipe_schedule_option, reserved, 0), \
  OPIPE_ROW(opipe_schedule_setting, value, 0), \
  OPIPE_ROW(opipe_layout_request, settings, 0), \
  OPIPE_ROW(opipe_layout, slice_lengths, 0), \
  OPIPE_ROW(opipe_schedule_problem, rank_memory_bytes, 0), \
  OPIPE_ROW(opipe_schedule, plan, 0)
/* clang-format on */

#endif /* OPIPE_FROZEN_SCHEDULE_H */
