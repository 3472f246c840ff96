/* SPDX-License-Identifier: Apache-2.0 */
/* What was probably meant by a word that is none of those that are possible: few letters differ,
 * or one of both is how the other begins or ends.
 */
#ifndef CLI_NEAREST_H
#define CLI_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_nearest {
  const char *word; /* not ended: n bytes of it */
  size_t n;
  const char *found; /* the nearest candidate so far; NULL: none is near */
  uint32_t score;
} cli_nearest;

/* Keeps the candidate where it is nearer than all before it. */
void cli_nearest_look(cli_nearest *io_nearest, const char *candidate);

#endif /* CLI_NEAREST_H */
