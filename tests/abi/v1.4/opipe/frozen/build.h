/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of build.h as they were first released. */
#ifndef OPIPE_FROZEN_BUILD_H
#define OPIPE_FROZEN_BUILD_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_build_value(X, T) \
  X(T, name) X(T, shape) X(T, dim_names) X(T, dtype) X(T, rank)
OPIPE_ORDER(opipe_build_value)
OPIPE_FREEZE(opipe_build_value, rank, 32, 0x0207dd79fa16c69a)
#define OPIPE_FIELDS_opipe_build_tensor(X, T) \
  X(T, name) X(T, shape) X(T, data) X(T, file) X(T, offset_bytes) X(T, n_bytes) X(T, dtype) \
  X(T, rank)
OPIPE_ORDER(opipe_build_tensor)
OPIPE_FREEZE(opipe_build_tensor, rank, 56, 0xa68a34c34bd03f78)
#define OPIPE_FIELDS_opipe_build_node(X, T) \
  X(T, name) X(T, op) X(T, domain) X(T, inputs) X(T, outputs) X(T, attrs) X(T, n_inputs) \
  X(T, n_outputs) X(T, n_attrs) X(T, reserved)
OPIPE_ORDER(opipe_build_node)
OPIPE_FREEZE(opipe_build_node, reserved, 64, 0xed316bf47803c5dd)
#define OPIPE_FIELDS_opipe_build_graph(X, T) \
  X(T, struct_size) X(T, n_inputs) X(T, name) X(T, inputs) X(T, outputs) X(T, tensors) \
  X(T, nodes) X(T, n_outputs) X(T, n_tensors) X(T, n_nodes) X(T, values_stride) \
  X(T, tensors_stride) X(T, nodes_stride)
OPIPE_ORDER(opipe_build_graph)
OPIPE_FREEZE(opipe_build_graph, nodes_stride, 72, 0x0437e23e0b241afa)
#define OPIPE_FIELDS_opipe_build_opset(X, T) \
  X(T, domain) X(T, version)
OPIPE_ORDER(opipe_build_opset)
OPIPE_FREEZE(opipe_build_opset, version, 16, 0xbb5edf30dd1d9291)
#define OPIPE_FIELDS_opipe_build_params(X, T) \
  X(T, struct_size) X(T, flags) X(T, graph) X(T, opsets) X(T, base_dir) \
  X(T, memory_budget_bytes) X(T, n_opsets) X(T, opsets_stride) X(T, ir_version) X(T, reserved) \
  X(T, on_release) X(T, release_ctx)
OPIPE_ORDER(opipe_build_params)
OPIPE_FREEZE(opipe_build_params, release_ctx, 72, 0x120bf725914faf16)
#define OPIPE_ROWS_BUILD \
  OPIPE_ROW(opipe_build_value, rank, 3), \
  OPIPE_ROW(opipe_build_tensor, rank, 3), \
  OPIPE_ROW(opipe_build_node, reserved, 3), \
  OPIPE_ROW(opipe_build_graph, nodes_stride, 3), \
  OPIPE_ROW(opipe_build_opset, version, 3), \
  OPIPE_ROW(opipe_build_params, release_ctx, 3)
/* clang-format on */

#endif /* OPIPE_FROZEN_BUILD_H */
