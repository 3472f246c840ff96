/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of models.h as they were first released. */
#ifndef OPIPE_FROZEN_MODELS_H
#define OPIPE_FROZEN_MODELS_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_pin(X, T) \
  X(T, input) X(T, value)
OPIPE_ORDER(opipe_pin)
OPIPE_FREEZE(opipe_pin, value, 56, 0xbb5ee730dd1da029)
#define OPIPE_FIELDS_opipe_load_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, path) X(T, data) X(T, n_bytes) X(T, base_dir) \
  X(T, memory_budget_bytes) X(T, parameters) X(T, n_parameters) X(T, parameters_stride) \
  X(T, on_release) X(T, release_ctx)
OPIPE_ORDER(opipe_load_params)
OPIPE_FREEZE(opipe_load_params, release_ctx, 80, 0x12d7b72591fca8ba)
#define OPIPE_FIELDS_opipe_dim(X, T) \
  X(T, name) X(T, value)
OPIPE_ORDER(opipe_dim)
OPIPE_FREEZE(opipe_dim, value, 16, 0xbb5edf30dd1d9291)
#define OPIPE_FIELDS_opipe_dim_info(X, T) \
  X(T, struct_size) X(T, flags) X(T, name) X(T, value)
OPIPE_ORDER(opipe_dim_info)
OPIPE_FREEZE(opipe_dim_info, value, 24, 0x53b87a61a64a006a)
#define OPIPE_FIELDS_opipe_bind_options(X, T) \
  X(T, struct_size) X(T, flags) X(T, dims) X(T, pins) X(T, n_dims) X(T, n_pins) \
  X(T, dims_stride) X(T, pins_stride) X(T, keep) X(T, n_keep) X(T, default_batch) \
  X(T, dropout_ratio)
OPIPE_ORDER(opipe_bind_options)
OPIPE_FREEZE(opipe_bind_options, dropout_ratio, 64, 0x10ee7f25905d25a2)
#define OPIPE_FIELDS_opipe_tensor_info(X, T) \
  X(T, struct_size) X(T, dtype) X(T, name) X(T, shape) X(T, dim_names) X(T, rank) X(T, flags) \
  X(T, index_limit)
OPIPE_ORDER(opipe_tensor_info)
OPIPE_FREEZE(opipe_tensor_info, index_limit, 48, 0xa78c24c34cab1a1c)
#define OPIPE_FIELDS_opipe_model_info(X, T) \
  X(T, struct_size) X(T, bound) X(T, n_inputs) X(T, n_outputs) X(T, n_file_nodes) X(T, n_nodes) \
  X(T, n_annotated_stages) X(T, n_dims) X(T, parameter_elems) X(T, parameter_bytes) X(T, flops)
OPIPE_ORDER(opipe_model_info)
OPIPE_FREEZE(opipe_model_info, flops, 56, 0x15d4f10d1166aa4f)
#define OPIPE_ROWS_MODELS \
  OPIPE_ROW(opipe_pin, value, 0), \
  OPIPE_ROW(opipe_load_params, release_ctx, 0), \
  OPIPE_ROW(opipe_dim, value, 0), \
  OPIPE_ROW(opipe_dim_info, value, 0), \
  OPIPE_ROW(opipe_bind_options, dropout_ratio, 0), \
  OPIPE_ROW(opipe_tensor_info, index_limit, 0), \
  OPIPE_ROW(opipe_model_info, flops, 0)
/* clang-format on */

#endif /* OPIPE_FROZEN_MODELS_H */
