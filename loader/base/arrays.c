/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of structs that a caller gives. Its elements are as long as its headers say, shorter or
 * longer than this library's: they are reached by the stride that it states. */
#include <string.h>

#include "loader/base/base.h"

void opi_array_get(const void *data, uint32_t stride, uint32_t index, void *out, size_t known) {
  const size_t n = stride < known ? stride : known;
  memcpy(out, (const char *)data + (size_t)index * stride, n);
  if (n < known)
    memset((char *)out + n, 0, known - n);
}
