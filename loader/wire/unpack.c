/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c behind the pre-scan. It gets a checked copy without tensor contents, and memory from
 * an arena: bounded by the budget, and zeroed, which versions up to 1.4.1 rely on after failures.
 */
#include "loader/wire/wire.h"

static void *arena_alloc(void *arena, size_t n_bytes) {
  return opi_arena_alloc(arena, n_bytes);
}

/* Everything goes with the arena. */
static void arena_free(void *arena, void *ptr) {
  (void)arena;
  (void)ptr;
}

opipe_status opi_wire_unpack_tensor(const uint8_t *copy, size_t n_bytes, opi_arena *arena,
                                    const OpiOnnx__TensorProto **out_tensor, opipe_error *err) {
  ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
  *out_tensor = (const OpiOnnx__TensorProto *)protobuf_c_message_unpack(
      &opi_onnx__tensor_proto__descriptor, &allocator, n_bytes, copy);
  return *out_tensor != NULL ? OPIPE_OK : opi_fail_nomem(err, n_bytes, "an initializer");
}

opipe_status opi_wire_unpack(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                             uint64_t budget_bytes, opi_arena *arena, opi_scan *out_scan,
                             ProtobufCMessage **out_message, opipe_error *err) {
  OPI_TRY(opi_prescan(bytes, n_bytes, root, budget_bytes, out_scan, err));
  arena->limit_bytes = opi_scan_budget(out_scan, n_bytes, budget_bytes) + (2u << 20);
  uint8_t *copy = opi_arena_alloc(arena, out_scan->copy_bytes);
  if (copy == NULL)
    return opi_fail_nomem(err, out_scan->copy_bytes, "the model's structure");
  OPI_TRY(opi_prescan_copy(bytes, n_bytes, root, out_scan, copy, err));
  const ProtobufCMessageDescriptor *descriptor = root == OPI_MSG_TENSOR
                                                     ? &opi_onnx__tensor_proto__descriptor
                                                     : &opi_onnx__model_proto__descriptor;
  ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
  *out_message = protobuf_c_message_unpack(descriptor, &allocator, out_scan->copy_bytes, copy);
  /* The copy is well-formed: what is left to fail is memory. */
  if (*out_message == NULL)
    return opi_fail_nomem(err, out_scan->tree_bytes, "the model's messages");
  return OPIPE_OK;
}
