/* SPDX-License-Identifier: Apache-2.0 */
/* The support itself: comparisons see what differs and pass what does not, and the failing
 * allocator fails, counts and notices misuse. Comparisons that must fail are called in a child
 * process, whose exit status tells.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opipe/types.h"
#include "tests/support/support.h"

static void test_element_types_convert(void) {
  const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e00};
  const uint16_t bfloat[] = {0x3f80, 0xc000};
  const int8_t small[] = {-7};
  OPI_ASSERT(opi_test_element(half, 0, OPIPE_FLOAT16) == 1.0);
  OPI_ASSERT(opi_test_element(half, 1, OPIPE_FLOAT16) == -2.0);
  OPI_ASSERT(opi_test_element(half, 2, OPIPE_FLOAT16) == 0x1p-24);
  OPI_ASSERT(isinf(opi_test_element(half, 3, OPIPE_FLOAT16)));
  OPI_ASSERT(isnan(opi_test_element(half, 4, OPIPE_FLOAT16)));
  OPI_ASSERT(opi_test_element(bfloat, 0, OPIPE_BFLOAT16) == 1.0);
  OPI_ASSERT(opi_test_element(bfloat, 1, OPIPE_BFLOAT16) == -2.0);
  OPI_ASSERT(opi_test_element(small, 0, OPIPE_INT8) == -7.0);
}

static void test_equal_tensors_pass(void) {
  const float a[] = {1.0f, -2.0f, NAN, INFINITY};
  const float b[] = {1.00001f, -2.0f, NAN, INFINITY};
  OPI_ASSERT_NEAR(a, b, 4, OPIPE_FLOAT, 0, 1e-4);
  OPI_ASSERT_CLOSE(a, b, 4, OPIPE_FLOAT, 1e-4);
  OPI_ASSERT_BITS(a, a, 4, OPIPE_FLOAT);
}

static const float found[] = {1.0f, 2.0f, 3.0f};
static const float off[] = {1.0f, 2.5f, 3.0f};
static const float not_finite[] = {1.0f, NAN, 3.0f};

static void near_differs(void) {
  OPI_ASSERT_NEAR(found, off, 3, OPIPE_FLOAT, 0.1, 0.1);
}
static void near_nan(void) {
  OPI_ASSERT_NEAR(not_finite, found, 3, OPIPE_FLOAT, 10, 10);
}
static void close_differs(void) {
  OPI_ASSERT_CLOSE(found, off, 3, OPIPE_FLOAT, 0.1);
}
static void close_nan(void) {
  OPI_ASSERT_CLOSE(not_finite, found, 3, OPIPE_FLOAT, 10);
}
static void bits_differ(void) {
  OPI_ASSERT_BITS(found, off, 3, OPIPE_FLOAT);
}
static void number_differs(void) {
  OPI_ASSERT_INT(1, 2);
}
static void skips(void) {
  OPI_SKIP("to see what the process says");
}
static void nothing(void) {}

/* Exit status of a process whose only test is `body`. */
static int status_of(void (*body)(void)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    const opi_test tests[] = {{"body", body}};
    char *arguments[] = {NULL};
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
      _exit(99);
    CU_cleanup_registry();
    _exit(opi_test_main("child", tests, 1, 0, arguments));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const struct {
  const char *what;
  void (*body)(void);
  int status;
} outcomes[] = {
    {"near", near_differs, 1},        {"near with NaN", near_nan, 1}, {"close", close_differs, 1},
    {"close with NaN", close_nan, 1}, {"bits", bits_differ, 1},       {"int", number_differs, 1},
    {"skipped", skips, 77},           {"no assert", nothing, 1},
};

int main(int argc, char **argv) {
  int wrong = 0;
  for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; ++i) {
    int status = status_of(outcomes[i].body);
    if (status != outcomes[i].status) {
      fprintf(stderr, "%s: exit status %d, wanted %d\n", outcomes[i].what, status,
              outcomes[i].status);
      ++wrong;
    }
  }
  const opi_test tests[] = {
      OPI_TEST(test_element_types_convert),
      OPI_TEST(test_equal_tensors_pass),
  };
  return wrong + opi_test_main("support", tests, sizeof tests / sizeof tests[0], argc, argv);
}
