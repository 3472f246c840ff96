/* SPDX-License-Identifier: Apache-2.0 */
/* Every case of caps.h against its recorded smallest cap; with OPIPE_CAPS=FILE the caps are found
 * anew and written there.
 * ctest: timeout=1200 label=full
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/partition/caps.h"

static void record(const char *path) {
  FILE *file = fopen(path, "w");
  OPI_ASSERT_FATAL(file != NULL);
  (void)fprintf(file,
                "# The smallest cap in bytes that some cut between blocks fits; written by "
                "tests/partition/test_caps_full.\n");
  for (size_t i = 0; i < caps_n_cases; ++i) {
    char name[160];
    caps_name(&caps_cases[i], name, sizeof name);
    (void)fprintf(file, "%s %" PRIu64 "\n", name, caps_smallest(&caps_cases[i]));
    (void)fflush(file);
  }
  OPI_ASSERT_INT(fclose(file), 0);
}

static void test_all(void) {
  const char *path = getenv("OPIPE_CAPS");
  if (path != NULL) {
    record(path);
    return;
  }
  for (size_t i = 0; i < caps_n_cases; ++i) {
    const uint64_t smallest = caps_recorded(&caps_cases[i]);
    OPI_ASSERT(smallest != 0);
    if (smallest != 0)
      caps_check(&caps_cases[i], smallest);
  }
}

OPI_TEST_MAIN("caps, full", OPI_TEST(test_all))
