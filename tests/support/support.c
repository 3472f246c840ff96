/* SPDX-License-Identifier: Apache-2.0 */
/* The main of every test executable, its asserts and its skips.
 *
 * CUnit's registry is filled with one suite and run in basic mode; CU_basic_run_tests returns 0
 * even when tests failed, so the number of failed tests is asked for afterwards. A test that
 * skipped itself counts as passed for CUnit; we count it apart, and a process whose every test
 * skipped says so with status 77.
 */
#include "tests/support/support.h"

#include <CUnit/Basic.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned skipped_tests;
static const char *skipped_name; /* the running test has been counted as skipped */

static const char *running_test(void) {
  CU_pTest test = CU_get_current_test();
  return test && test->pName ? test->pName : "(outside a test)";
}

/* Tests that asserted something, or were skipped, in their order. */
enum { TESTS_MOST = 1024 };
static CU_pTest speaking[TESTS_MOST];
static size_t n_speaking;

static void note_test(void) {
  const CU_pTest test = CU_get_current_test();
  if (n_speaking < TESTS_MOST && (n_speaking == 0 || speaking[n_speaking - 1] != test))
    speaking[n_speaking++] = test;
}

void opi_test_skip(const char *fmt, ...) {
  va_list args;
  note_test();
  va_start(args, fmt);
  printf("\nSKIP: %s: ", running_test());
  vprintf(fmt, args);
  printf("\n");
  va_end(args);
  fflush(stdout);
  if (skipped_name != running_test()) {
    skipped_name = running_test();
    ++skipped_tests;
  }
}

bool opi_test_is_cover(void) {
  const char *cover = getenv("OPIPE_TEST_COVER");
  return cover != NULL && cover[0] != '\0';
}

bool opi_test_covers(size_t i, size_t n) {
  return !opi_test_is_cover() || (i + strtoul(getenv("OPIPE_TEST_COVER"), NULL, 10)) % n == 0;
}

size_t opi_test_covered(size_t n, size_t n_th) {
  size_t found = 0;
  for (size_t i = 0; i < n; ++i)
    found += opi_test_covers(i, n_th);
  return found;
}

bool opi_test_is_sanitized(void) {
  const char *what = getenv("OPIPE_SANITIZE");
  return what != NULL && what[0] != '\0';
}

size_t opi_test_sparse(size_t n) {
  return opi_test_is_sanitized() ? 8 * n : n;
}

/* A test function in which no assertion ran cannot fail. Returns how many there are. */
static unsigned count_silent(const CU_pSuite suite) {
  unsigned n_silent = 0;
  for (CU_pTest test = suite->pTest; test != NULL; test = test->pNext) {
    size_t i = 0;
    while (i < n_speaking && speaking[i] != test)
      ++i;
    if (i < n_speaking)
      continue;
    fprintf(stderr, "%s: not a single assert was made\n", test->pName);
    ++n_silent;
  }
  return n_silent;
}

bool opi_test_check(bool passed, const char *file, int line, bool fatal, const char *fmt, ...) {
  char text[1024];
  va_list args;
  note_test();
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  CU_assertImplementation(passed ? CU_TRUE : CU_FALSE, (unsigned)line, text, file, "",
                          fatal ? CU_TRUE : CU_FALSE);
  return passed;
}

bool opi_test_check_int(int64_t found, int64_t wanted, const char *text, const char *file,
                        int line) {
  return opi_test_check(found == wanted, file, line, false, "%s is %" PRId64 ", wanted %" PRId64,
                        text, found, wanted);
}

bool opi_test_check_str(const char *found, const char *wanted, const char *text, const char *file,
                        int line) {
  bool same = found && wanted ? strcmp(found, wanted) == 0 : found == wanted;
  return opi_test_check(same, file, line, false, "%s is \"%s\", wanted \"%s\"", text,
                        found ? found : "(null)", wanted ? wanted : "(null)");
}

bool opi_test_check_ok(int32_t status, const char *message, const char *text, const char *file,
                       int line, bool fatal) {
  return opi_test_check(status == OPIPE_OK, file, line, fatal, "%s failed with %d: %s", text,
                        (int)status, message);
}

bool opi_test_check_error(int32_t status, int32_t wanted, const char *message, const char *part,
                          const char *text, const char *file, int line) {
  if (!opi_test_check(status == wanted, file, line, false, "%s gave status %d, wanted %d (%s)",
                      text, (int)status, (int)wanted, status < 0 ? message : "no error"))
    return false;
  return opi_test_check(message[0] != '\0' && strstr(message, part) != NULL, file, line, false,
                        "%s said \"%s\", wanted something with \"%s\"", text, message, part);
}

/* True when `name` is among the arguments, or there are none. */
static bool chosen(const char *name, int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], name) == 0)
      return true;
  }
  return argc < 2;
}

static int list_tests(const opi_test *tests, size_t n_tests) {
  for (size_t i = 0; i < n_tests; ++i)
    printf("%s\n", tests[i].name);
  return 0;
}

int opi_test_main(const char *suite, const opi_test *tests, size_t n_tests, int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "-l") == 0)
    return list_tests(tests, n_tests);
  setvbuf(stdout, NULL, _IOLBF, 0);
  CU_pSuite registered = NULL;
  if (CU_initialize_registry() == CUE_SUCCESS)
    registered = CU_add_suite(suite, NULL, NULL);
  size_t n_added = 0;
  for (size_t i = 0; registered && i < n_tests; ++i) {
    if (chosen(tests[i].name, argc, argv) && CU_add_test(registered, tests[i].name, tests[i].run))
      ++n_added;
  }
  if (n_added == 0) {
    fprintf(stderr, "%s: no test of that name\n", suite);
    return 1;
  }
  CU_basic_set_mode(CU_BRM_VERBOSE);
  CU_basic_run_tests();
  unsigned failures = CU_get_number_of_tests_failed();
  if (failures == 0 && CU_get_number_of_tests_run() < n_added)
    failures = 1; /* a test that did not even run is no success */
  if (failures == 0)
    failures = count_silent(registered);
  bool all_skipped = failures == 0 && skipped_tests == n_added;
  CU_cleanup_registry();
  if (failures > 76)
    failures = 76;
  return all_skipped ? 77 : (int)failures;
}
