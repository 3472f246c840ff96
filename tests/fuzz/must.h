/* SPDX-License-Identifier: Apache-2.0 */
/* The assert of fuzz targets that need no mutator of their own. */
#ifndef TESTS_FUZZ_MUST_H
#define TESTS_FUZZ_MUST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void must(bool condition, const char *what) {
  if (condition)
    return;
  (void)fprintf(stderr, "broken: %s\n", what);
  abort();
}

#endif /* TESTS_FUZZ_MUST_H */
