/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of structs that a caller gives. Its elements are as long as its headers say, shorter or
 * longer than this library's: they are reached by the stride that it states. */
#include <string.h>

#include "loader/base/base.h"

/* Index of the first byte in [from, to) that is not 0; `to` when all are. */
static size_t first_set(const unsigned char *bytes, size_t from, size_t to) {
  while (from < to && bytes[from] == 0)
    ++from;
  return from;
}

opipe_status opi_array_check(const opi_array *a, opipe_error *err) {
  if (a->n == 0)
    return OPIPE_OK;
  if (a->data == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %u %s, but the list is NULL", a->function, a->n,
                    a->field);
  }
  if (a->stride < a->least) {
    return opi_fail(err, OPIPE_E_ABI,
                    "%s: the stride of %s is %u bytes, an element has at least %zu", a->function,
                    a->field, a->stride, a->least);
  }
  for (uint32_t i = 0; i < a->n && a->stride > a->known; ++i) {
    const unsigned char *element = (const unsigned char *)a->data + (size_t)i * a->stride;
    const size_t at = first_set(element, a->known, a->stride);
    if (at < a->stride) {
      return opi_fail(err, OPIPE_E_ABI,
                      "%s: element %u of %s has %u at byte %zu, this library knows %zu bytes of "
                      "it: use a newer library",
                      a->function, i, a->field, element[at], at, a->known);
    }
  }
  return OPIPE_OK;
}

void opi_array_get(const void *data, uint32_t stride, uint32_t index, void *out, size_t known) {
  const size_t n = stride < known ? stride : known;
  memcpy(out, (const char *)data + (size_t)index * stride, n);
  if (n < known)
    memset((char *)out + n, 0, known - n);
}
