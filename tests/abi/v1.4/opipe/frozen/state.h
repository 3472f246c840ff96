/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of state.h as they were first released. */
#ifndef OPIPE_FROZEN_STATE_H
#define OPIPE_FROZEN_STATE_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_state_pair(X, T) \
  X(T, output) X(T, input) X(T, capacity)
OPIPE_ORDER(opipe_state_pair)
OPIPE_FREEZE(opipe_state_pair, capacity, 24, 0x9d1f14494de69bfb)
#define OPIPE_FIELDS_opipe_state_params(X, T) \
  X(T, struct_size) X(T, n_capacities) X(T, capacities)
OPIPE_ORDER(opipe_state_params)
OPIPE_FREEZE(opipe_state_params, capacities, 16, 0x9d47bc494e090b87)
#define OPIPE_FIELDS_opipe_state_info(X, T) \
  X(T, struct_size) X(T, flags) X(T, output) X(T, input) X(T, n_elems) X(T, capacity) \
  X(T, n_bytes) X(T, dtype) X(T, stage) X(T, holder) X(T, rank) X(T, shape)
OPIPE_ORDER(opipe_state_info)
OPIPE_FREEZE(opipe_state_info, shape, 192, 0x11bac725910b065e)
#define OPIPE_ROWS_STATE \
  OPIPE_ROW(opipe_state_pair, capacity, 2), \
  OPIPE_ROW(opipe_state_params, capacities, 2), \
  OPIPE_ROW(opipe_state_info, shape, 2)
/* clang-format on */

#endif /* OPIPE_FROZEN_STATE_H */
