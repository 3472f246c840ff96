/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of train.h as they were first released. */
#ifndef OPIPE_FROZEN_TRAIN_H
#define OPIPE_FROZEN_TRAIN_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_train_glob(X, T) \
  X(T, pattern) X(T, trainable) X(T, reserved)
OPIPE_ORDER(opipe_train_glob)
OPIPE_FREEZE(opipe_train_glob, reserved, 16, 0x9d7e2c494e375947)
#define OPIPE_FIELDS_opipe_train_options(X, T) \
  X(T, struct_size) X(T, loss) X(T, output) X(T, labels) X(T, ignore) X(T, smoothing) \
  X(T, shift) X(T, n_globs) X(T, globs) X(T, globs_stride) X(T, recompute) X(T, compute) \
  X(T, optimizer) X(T, seed) X(T, lr) X(T, momentum) X(T, beta1) X(T, beta2) X(T, epsilon) \
  X(T, decay) X(T, clip_norm) X(T, flags) X(T, lr_schedule) X(T, warmup_steps) \
  X(T, total_steps) X(T, no_decay) X(T, n_no_decay) X(T, loss_scaling)
OPIPE_ORDER(opipe_train_options)
OPIPE_FREEZE(opipe_train_options, loss_scaling, 176, 0x038fa0b10ca512a2)
#define OPIPE_FIELDS_opipe_train_report(X, T) \
  X(T, struct_size) X(T, skipped) X(T, step) X(T, step_ns) X(T, loss) X(T, count) \
  X(T, gradient_norm) X(T, lr) X(T, loss_scale)
OPIPE_ORDER(opipe_train_report)
OPIPE_FREEZE(opipe_train_report, loss_scale, 64, 0xbe1123dbdb915924)
#define OPIPE_FIELDS_opipe_parameter_info(X, T) \
  X(T, struct_size) X(T, dtype) X(T, name) X(T, shape) X(T, rank) X(T, trained) X(T, n_bytes) \
  X(T, n_copies) X(T, reserved) X(T, gradient_norm)
OPIPE_ORDER(opipe_parameter_info)
OPIPE_FREEZE(opipe_parameter_info, gradient_norm, 56, 0xee4eabf478f5f029)
#define OPIPE_FIELDS_opipe_train_clock(X, T) \
  X(T, struct_size) X(T, reserved) X(T, steps) X(T, updates) X(T, good_steps) X(T, loss_scale)
OPIPE_ORDER(opipe_train_clock)
OPIPE_FREEZE(opipe_train_clock, loss_scale, 40, 0xc99501925bf934b3)
#if OPIPE_TARGET_MINOR >= 4
#define OPIPE_FIELDS_opipe_tensor_read(X, T) \
  X(T, name) X(T, data) X(T, n_bytes) X(T, state) X(T, version)
OPIPE_ORDER(opipe_tensor_read)
OPIPE_FREEZE(opipe_tensor_read, version, 32, 0x0207dd79fa16c69a)
#endif
#if OPIPE_TARGET_MINOR >= 4
#define OPIPE_FIELDS_opipe_read_params(X, T) \
  X(T, struct_size) X(T, n_tensors) X(T, tensors) X(T, tensors_stride) X(T, reserved)
OPIPE_ORDER(opipe_read_params)
OPIPE_FREEZE(opipe_read_params, reserved, 24, 0x01fa2579fa0b0396)
#endif
#if OPIPE_TARGET_MINOR >= 4
#define OPIPE_ROWS_TRAIN_4 \
  , OPIPE_ROW(opipe_tensor_read, version, 4) \
  , OPIPE_ROW(opipe_read_params, reserved, 4)
#else
#define OPIPE_ROWS_TRAIN_4
#endif
#define OPIPE_ROWS_TRAIN \
  OPIPE_ROW(opipe_train_glob, reserved, 0), \
  OPIPE_ROW(opipe_train_options, loss_scaling, 0), \
  OPIPE_ROW(opipe_train_report, loss_scale, 0), \
  OPIPE_ROW(opipe_parameter_info, gradient_norm, 0), \
  OPIPE_ROW(opipe_train_clock, loss_scale, 0) OPIPE_ROWS_TRAIN_4
/* clang-format on */

#endif /* OPIPE_FROZEN_TRAIN_H */
