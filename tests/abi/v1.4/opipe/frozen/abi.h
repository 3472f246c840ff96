/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of abi.h as they were first released. */
#ifndef OPIPE_FROZEN_ABI_H
#define OPIPE_FROZEN_ABI_H

/* clang-format off */
#define OPIPE_FIELDS_opipe_error(X, T) \
  X(T, struct_size) X(T, status) X(T, domain) X(T, native) X(T, message)
OPIPE_ORDER(opipe_error)
OPIPE_FREEZE(opipe_error, message, 512, 0x024b0579fa4f245e)
#define OPIPE_FIELDS_opipe_allocator(X, T) \
  X(T, ctx) X(T, realloc)
OPIPE_ORDER(opipe_allocator)
OPIPE_FREEZE(opipe_allocator, realloc, 16, 0xbb5edf30dd1d9291)
#define OPIPE_FIELDS_opipe_host(X, T) \
  X(T, struct_size) X(T, abi_major) X(T, abi_minor) X(T, ctx) X(T, realloc) X(T, log) \
  X(T, now_ns) X(T, get_interface)
OPIPE_ORDER(opipe_host)
OPIPE_FREEZE(opipe_host, get_interface, 48, 0xa7d71cc34ceaf7fe)
#define OPIPE_FIELDS_opipe_struct_row(X, T) \
  X(T, name) X(T, n_bytes) X(T, minor) X(T, hash)
OPIPE_ORDER(opipe_struct_row)
OPIPE_FREEZE(opipe_struct_row, hash, 24, 0x53eeea61a6784e2a)
#define OPIPE_FIELDS_opipe_plugin(X, T) \
  X(T, magic) X(T, struct_size) X(T, abi_major) X(T, abi_minor) X(T, abi_minor_min) X(T, kind) \
  X(T, structs) X(T, n_structs) X(T, struct_row_bytes) X(T, build_flags) X(T, flags) X(T, id) \
  X(T, version) X(T, license) X(T, summary) X(T, open) X(T, close) X(T, get_interface)
OPIPE_ORDER(opipe_plugin)
OPIPE_FREEZE(opipe_plugin, get_interface, 96, 0x480e80b94bc844c5)
#define OPIPE_ROWS_ABI \
  OPIPE_ROW(opipe_error, message, 0), \
  OPIPE_ROW(opipe_allocator, realloc, 0), \
  OPIPE_ROW(opipe_host, get_interface, 0), \
  OPIPE_ROW(opipe_struct_row, hash, 0), \
  OPIPE_ROW(opipe_plugin, get_interface, 0)
/* clang-format on */

#endif /* OPIPE_FROZEN_ABI_H */
