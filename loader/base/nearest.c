/* SPDX-License-Identifier: Apache-2.0 */
/* The probable meaning of an unknown word. The command compiles this file too, for its own words.
 */
#include "loader/base/nearest.h"

#include <stdio.h>
#include <string.h>

/* Longest words that are compared; scores: less is nearer. Letters that differ, then words that
 * begin alike, then words that end alike. */
enum { WORD_MOST = 120, BEGINS = 64, ENDS = 256, SHORTEST = 2 };

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

/* Capitals and small letters, '_' and '-' are alike. */
static char plain(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '_' ? '-' : c;
}

static bool equal(const char *a, const char *b, size_t n) {
  size_t i = 0;
  while (i < n && plain(a[i]) == plain(b[i]))
    ++i;
  return i == n;
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
      const size_t other = last[j - 1] + (plain(a[i - 1]) != plain(b[j - 1]));
      row[j] = least(least(last[j], row[j - 1]) + 1, other);
      if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
          plain(a[i - 2]) == plain(b[j - 1]))
        row[j] = least(row[j], older[j - 2] + 1);
    }
  }
  return (uint32_t)row[m];
}

/* True if the longer word ends in the shorter one, as a word of its own after '-', '.' or '/'. */
static bool ends_alike(const char *longer, size_t n, const char *shorter, size_t m) {
  return n > m && strchr("-./", plain(longer[n - m - 1])) != NULL &&
         equal(longer + n - m, shorter, m);
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
  if (equal(a, b, shorter))
    return BEGINS + rest;
  return ends_alike(a, n, b, m) || ends_alike(b, m, a, n) ? ENDS + rest : 0;
}

/* Words of other programs, and what they are called here. */
static const char *const synonyms[][2] = {{"gpu", "cuda"},
                                          {"nvidia", "cuda"},
                                          {"host", "cpu"},
                                          {"sgdm", "sgd"},
                                          {"weight-decay", "decay"},
                                          {"wd", "decay"},
                                          {"learning-rate", "lr"},
                                          {"epsilon", "eps"},
                                          {"float", "fp32"},
                                          {"float32", "fp32"},
                                          {"float16", "fp16"},
                                          {"half", "fp16"},
                                          {"bfloat16", "bf16"},
                                          {"ce", "cross-entropy"},
                                          {"crossentropy", "cross-entropy"},
                                          {"virtual-stages", "chunks"},
                                          {"checkpointing", "recompute"},
                                          {"activation-checkpointing", "recompute"},
                                          {"num-microbatches", "microbatches"},
                                          {"gradient-accumulation-steps", "microbatches"},
                                          {"accumulate-grad-batches", "microbatches"},
                                          {"max-steps", "steps"},
                                          {"iterations", "steps"},
                                          {"max-grad-norm", "clip"},
                                          {"learning-rate", "optimizer"},
                                          {"lr", "optimizer"},
                                          {"weight-decay", "optimizer"},
                                          {"world-size", "ranks"},
                                          {"nproc-per-node", "ranks"},
                                          {"dtype", "compute"},
                                          {"precision", "compute"},
                                          {"dataset", "data"},
                                          {"out", "output"},
                                          {"checkpoint", "save"}};
enum { N_SYNONYMS = sizeof(synonyms) / sizeof(synonyms[0]) };

/* Is this row of synonyms the word's? */
static bool is_of(const opi_nearest *o, size_t row) {
  return strlen(synonyms[row][0]) == o->n && equal(synonyms[row][0], o->word, o->n);
}

static bool is_synonym(const opi_nearest *o, const char *candidate) {
  size_t i = 0;
  while (i < N_SYNONYMS && !(is_of(o, i) && strcmp(synonyms[i][1], candidate) == 0))
    ++i;
  return i < N_SYNONYMS;
}

const char *opi_nearest_synonym(const opi_nearest *nearest) {
  size_t i = 0;
  while (i < N_SYNONYMS && !is_of(nearest, i))
    ++i;
  return i < N_SYNONYMS ? synonyms[i][1] : NULL;
}

void opi_nearest_look(opi_nearest *io_nearest, const char *candidate) {
  opi_nearest *o = io_nearest;
  if (is_synonym(o, candidate)) {
    o->found = candidate;
    o->score = 1;
    return;
  }
  const uint32_t found = score(o->word, o->n, candidate, strlen(candidate));
  if (found == 0 || (o->found != NULL && found >= o->score))
    return;
  o->found = candidate;
  o->score = found;
}

const char *opi_nearest_words(const opi_nearest *nearest, char *out, size_t room) {
  out[0] = '\0';
  if (nearest->found != NULL)
    (void)snprintf(out, room, "; did you mean '%s'?", nearest->found);
  return out;
}

const char *opi_nearest_of(const char *word, const char *list, const char *between, char *out,
                           size_t room) {
  char words[512], *save = NULL;
  opi_nearest nearest = {.word = word, .n = strlen(word)};
  (void)snprintf(words, sizeof(words), "%s", list);
  for (char *one = strtok_r(words, between, &save); one != NULL;
       one = strtok_r(NULL, between, &save))
    opi_nearest_look(&nearest, one);
  return opi_nearest_words(&nearest, out, room);
}
