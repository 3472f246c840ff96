/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint's bytes are known by: XXH3, 64 bits. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/checkpoint/safetensors.h"

uint64_t opi_tensors_hash(const void *data, uint64_t n_bytes) {
  return XXH3_64bits(data, (size_t)n_bytes);
}
