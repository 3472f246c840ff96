/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of types.h as they were first released. */
#ifndef OPIPE_FROZEN_TYPES_H
#define OPIPE_FROZEN_TYPES_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_dtype(X, T) \
  X(T, code) X(T, bits) X(T, lanes)
OPIPE_ORDER(opipe_dtype)
OPIPE_FREEZE(opipe_dtype, lanes, 4, 0x9d2ffe494df4e9cc)
#define OPIPE_FIELDS_opipe_tensor(X, T) \
  X(T, data) X(T, device_type) X(T, device_id) X(T, rank) X(T, dtype) X(T, shape) X(T, strides) \
  X(T, byte_offset)
OPIPE_ORDER(opipe_tensor)
OPIPE_FREEZE(opipe_tensor, byte_offset, 48, 0xa7dde4c34cf0b784)
#define OPIPE_FIELDS_opipe_fence(X, T) \
  X(T, kind) X(T, reserved) X(T, handle)
OPIPE_ORDER(opipe_fence)
OPIPE_FREEZE(opipe_fence, handle, 16, 0x9d47bc494e090b87)
#define OPIPE_FIELDS_opipe_value(X, T) \
  X(T, name) X(T, shape) X(T, data) X(T, n_bytes) X(T, dtype) X(T, rank) X(T, role) X(T, slot) \
  X(T, flags) X(T, reserved) X(T, reserved2)
OPIPE_ORDER(opipe_value)
OPIPE_FREEZE(opipe_value, reserved2, 64, 0x1481610d104668a3)
#define OPIPE_FIELDS_opipe_literal(X, T) \
  X(T, data) X(T, shape) X(T, n_bytes) X(T, dtype) X(T, rank)
OPIPE_ORDER(opipe_literal)
OPIPE_FREEZE(opipe_literal, rank, 32, 0x0207dd79fa16c69a)
#define OPIPE_FIELDS_opipe_attr(X, T) \
  X(T, name) X(T, data) X(T, i) X(T, f) X(T, kind) X(T, n)
OPIPE_ORDER(opipe_attr)
OPIPE_FREEZE(opipe_attr, n, 40, 0xc8d6f1925b57f07b)
#define OPIPE_FIELDS_opipe_node(X, T) \
  X(T, name) X(T, op) X(T, domain) X(T, in) X(T, out) X(T, attrs) X(T, n_in) X(T, n_out) \
  X(T, n_attrs) X(T, version) X(T, pass) X(T, flags) X(T, reserved)
OPIPE_ORDER(opipe_node)
OPIPE_FREEZE(opipe_node, reserved, 80, 0x047c3a3e0b5e7d4e)
#define OPIPE_FIELDS_opipe_graph(X, T) \
  X(T, struct_size) X(T, n_values) X(T, values) X(T, nodes) X(T, n_nodes) X(T, n_boundaries) \
  X(T, n_params) X(T, n_scalars)
OPIPE_ORDER(opipe_graph)
OPIPE_FREEZE(opipe_graph, n_scalars, 40, 0xa799d4c34cb6cf88)
#define OPIPE_FIELDS_opipe_device_description(X, T) \
  X(T, flops) X(T, bandwidth) X(T, launch_ns) X(T, memory_bytes) X(T, max_threads) \
  X(T, alignment) X(T, flags) X(T, domain)
OPIPE_ORDER(opipe_device_description)
OPIPE_FREEZE(opipe_device_description, domain, 48, 0xa6e94cc34c20fcc4)
#define OPIPE_FIELDS_opipe_link_description(X, T) \
  X(T, struct_size) X(T, rule) X(T, thread_rule) X(T, flags) X(T, max_ranks) X(T, reserved) \
  X(T, latency_ns) X(T, bandwidth)
OPIPE_ORDER(opipe_link_description)
OPIPE_FREEZE(opipe_link_description, bandwidth, 40, 0xa7eb64c34cfc1b60)
#define OPIPE_ROWS_TYPES \
  OPIPE_ROW(opipe_dtype, lanes, 0), \
  OPIPE_ROW(opipe_tensor, byte_offset, 0), \
  OPIPE_ROW(opipe_fence, handle, 0), \
  OPIPE_ROW(opipe_value, reserved2, 0), \
  OPIPE_ROW(opipe_literal, rank, 0), \
  OPIPE_ROW(opipe_attr, n, 0), \
  OPIPE_ROW(opipe_node, reserved, 0), \
  OPIPE_ROW(opipe_graph, n_scalars, 0), \
  OPIPE_ROW(opipe_device_description, domain, 1), \
  OPIPE_ROW(opipe_link_description, bandwidth, 1)
/* clang-format on */

#endif /* OPIPE_FROZEN_TYPES_H */
