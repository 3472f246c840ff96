/* SPDX-License-Identifier: Apache-2.0 */
/* A table under test, with its slots that make objects wrapped: what they answer is checked at
 * every call, so that the checks which use the objects need not. An answer of OK without an object,
 * or a status that is neither done nor failed, is reported and becomes an error.
 */
#ifndef CONFORMANCE_MADE_H
#define CONFORMANCE_MADE_H

#include <opipe/helpers.h>

#include "conformance.h"

/* Defines made_SLOT over `table`; `out` and `err` are the names of its last two parameters. */
#define CONF_MADE(table, slot, parameters, arguments)  \
  static opipe_status made_##slot parameters {         \
    *out = NULL;                                       \
    err->message[0] = '\0';                            \
    const opipe_status status = table->slot arguments; \
    return conf_made(status, *out, err, #slot);        \
  }

/* As much of a table as this program knows. */
#define CONF_COPY(to, from)                                                            \
  do {                                                                                 \
    const uint32_t size_ =                                                             \
        (from)->struct_size < sizeof(to) ? (from)->struct_size : (uint32_t)sizeof(to); \
    memset(&(to), 0, sizeof(to));                                                      \
    memcpy(&(to), (from), size_);                                                      \
    (to).struct_size = size_;                                                          \
  } while (0)

#endif /* CONFORMANCE_MADE_H */
