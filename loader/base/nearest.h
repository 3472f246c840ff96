/* SPDX-License-Identifier: Apache-2.0 */
/* The probable meaning of an unknown word: few letters differ, one is how the other begins or ends,
 * or it is another program's word for the same thing. Capitals do not count.
 */
#ifndef OPI_BASE_NEAREST_H
#define OPI_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct opi_nearest {
  const char *word; /* not ended: n bytes of it */
  size_t n;
  const char *found; /* the nearest candidate so far; NULL: none is near */
  uint32_t score;
} opi_nearest;

/* Keeps the candidate where it is nearer than all before it. */
void opi_nearest_look(opi_nearest *io_nearest, const char *candidate);
/* The first word that it is a synonym of, candidate or not; NULL: of none. */
const char *opi_nearest_synonym(const opi_nearest *nearest);
enum { OPI_NEAREST_ROOM = 160 };
/* "; did you mean 'NAME'?" into out, or "" where nothing is near. Returns out. */
const char *opi_nearest_words(const opi_nearest *nearest, char *out, size_t room);
/* The same of the words of a list, which any of the characters `between` separate. */
const char *opi_nearest_of(const char *word, const char *list, const char *between, char *out,
                           size_t room);

#endif /* OPI_BASE_NEAREST_H */
