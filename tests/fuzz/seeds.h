/* SPDX-License-Identifier: Apache-2.0 */
/* Seeds that lie elsewhere in the tree. Seeds of one target alone are files below
 * tests/fuzz/seeds/TARGET, which ./dev fuzz gives it. */
#ifndef TESTS_FUZZ_SEEDS_H
#define TESTS_FUZZ_SEEDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_FOLDERS_MOST = 4 };

/* Adds folders of the source tree behind the corpus, if one was given; for LLVMFuzzerInitialize. */
static inline void seeds_add(int *argc, char ***argv, const char *const *folders, size_t n) {
  static char paths[SEED_FOLDERS_MOST][1024];
  const char *source = getenv("OPIPE_SOURCE_DIR");
  const size_t count = (size_t)*argc;
  int has_corpus = 0;
  for (size_t i = 1; i < count; ++i)
    has_corpus = has_corpus || (*argv)[i][0] != '-';
  if (source == NULL || !has_corpus || n > SEED_FOLDERS_MOST)
    return;
  char **longer = calloc(count + n + 1, sizeof *longer);
  if (longer == NULL)
    return;
  memcpy(longer, *argv, count * sizeof *longer);
  for (size_t i = 0; i < n; ++i) {
    (void)snprintf(paths[i], sizeof paths[i], "%s/%s", source, folders[i]);
    longer[count + i] = paths[i];
  }
  *argv = longer; /* until the process ends */
  *argc += (int)n;
}

#endif /* TESTS_FUZZ_SEEDS_H */
