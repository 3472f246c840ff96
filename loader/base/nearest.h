/* SPDX-License-Identifier: Apache-2.0 */
/* The probable meaning of an unknown word: it differs by few letters, is a prefix or suffix of the
 * known word, or is another program's synonym. Case does not matter.
 */
#ifndef OPI_BASE_NEAREST_H
#define OPI_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct opi_nearest {
  const char *word; /* not terminated: n bytes */
  size_t n;
  const char *found; /* nearest candidate so far; NULL: none */
  uint32_t score;
} opi_nearest;

/* Keeps the candidate if it is nearer than all earlier ones. */
void opi_nearest_look(opi_nearest *io_nearest, const char *candidate);
/* The first word of which it is a synonym, candidate or not; NULL: none. */
const char *opi_nearest_synonym(const opi_nearest *nearest);
enum { OPI_NEAREST_ROOM = 160 };
/* Writes "; did you mean 'NAME'?", or "" if nothing is near. Returns out. */
const char *opi_nearest_words(const opi_nearest *nearest, char *out, size_t room);
/* The same for the words of a list, separated by any of the characters `between`. */
const char *opi_nearest_of(const char *word, const char *list, const char *between, char *out,
                           size_t room);

#endif /* OPI_BASE_NEAREST_H */
