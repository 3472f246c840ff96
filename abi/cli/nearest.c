/* SPDX-License-Identifier: Apache-2.0 */
/* What was probably meant by a word that is none of those that are possible. */
#include "nearest.h"

#include <string.h>

/* Longest words that are compared; scores: less is nearer. Letters that differ, then words that
 * begin alike, then words that end alike. */
enum { WORD_MOST = 40, BEGINS = 64, ENDS = 256, SHORTEST = 2 };

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

/* Letters to put in, take out, replace or swap with the next one. */
static uint32_t letters_apart(const char *a, size_t n, const char *b, size_t m) {
  size_t rows[3][WORD_MOST + 1]; /* this one, the one before, the one before that */
  size_t *row = rows[0], *last = rows[1], *older = rows[2];
  for (size_t j = 0; j <= m; ++j)
    row[j] = j;
  for (size_t i = 1; i <= n; ++i) {
    size_t *const unused = older;
    older = last;
    last = row;
    row = unused;
    row[0] = i;
    for (size_t j = 1; j <= m; ++j) {
      const size_t other = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = least(least(last[j], row[j - 1]) + 1, other);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = least(row[j], older[j - 2] + 1);
    }
  }
  return (uint32_t)row[m];
}

/* Is the shorter one's end the longer one's, as a word of its own behind a '-'? */
static bool ends_alike(const char *longer, size_t n, const char *shorter, size_t m) {
  return n > m && longer[n - m - 1] == '-' && memcmp(longer + n - m, shorter, m) == 0;
}

/* 0: they have nothing in common that could be a slip. */
static uint32_t score(const char *a, size_t n, const char *b, size_t m) {
  const size_t allowed = n < 3 ? 0 : n < 7 ? 1 : 2, shorter = least(n, m);
  const uint32_t rest = (uint32_t)(n + m - 2 * shorter);
  if (n > WORD_MOST || m > WORD_MOST || shorter < SHORTEST)
    return 0;
  const uint32_t apart = letters_apart(a, n, b, m);
  if (apart <= allowed)
    return 1 + apart;
  if (memcmp(a, b, shorter) == 0)
    return BEGINS + rest;
  return ends_alike(a, n, b, m) || ends_alike(b, m, a, n) ? ENDS + rest : 0;
}

void cli_nearest_look(cli_nearest *io_nearest, const char *candidate) {
  cli_nearest *o = io_nearest;
  const uint32_t found = score(o->word, o->n, candidate, strlen(candidate));
  if (found == 0 || (o->found != NULL && found >= o->score))
    return;
  o->found = candidate;
  o->score = found;
}
