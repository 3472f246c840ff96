/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of 64 bits over a checkpoint's bytes. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/checkpoint/safetensors.h"

uint64_t opi_tensors_hash(const void *data, uint64_t n_bytes) {
  return XXH3_64bits(data, (size_t)n_bytes);
}
