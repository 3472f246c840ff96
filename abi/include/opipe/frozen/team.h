/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of team.h as they were first released. */
#ifndef OPIPE_FROZEN_TEAM_H
#define OPIPE_FROZEN_TEAM_H

/* clang-format off */
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_team_params(X, T) \
  X(T, struct_size) X(T, rank) X(T, size) X(T, reserved) X(T, job) X(T, launcher) \
  X(T, timeout_ns) X(T, silence_ns) X(T, all_gather) X(T, all_gather_ctx) X(T, address) \
  X(T, token)
OPIPE_ORDER(opipe_team_params)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_team_info(X, T) \
  X(T, struct_size) X(T, rank) X(T, size) X(T, local_rank) X(T, local_size) X(T, failed) \
  X(T, launcher) X(T, job) X(T, machine) X(T, n_machines)
OPIPE_ORDER(opipe_team_info)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_gather_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, name) X(T, data) X(T, n_bytes) X(T, timeout_ns) \
  X(T, reason) X(T, refused) X(T, reserved) X(T, part) X(T, part_ctx)
OPIPE_ORDER(opipe_gather_params)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_TEAM_5 \
  , OPIPE_ROW(opipe_team_params, token, 5) \
  , OPIPE_ROW(opipe_team_info, n_machines, 5) \
  , OPIPE_ROW(opipe_gather_params, part_ctx, 5)
#else
#define OPIPE_ROWS_TEAM_5
#endif
#define OPIPE_ROWS_TEAM OPIPE_ROWS_TEAM_5
/* clang-format on */

#endif /* OPIPE_FROZEN_TEAM_H */
