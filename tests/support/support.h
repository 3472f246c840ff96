/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers that every test needs on top of CUnit: a main, skipping that is seen, comparisons of
 * tensors that say where they fail, files and folders, and memory that fails when told to.
 *
 * One executable per source file:
 *   static void test_add_overflow_is_refused(void) { OPI_ASSERT_INT(opi_add(1, 2), 3); }
 *   OPI_TEST_MAIN("sizes", OPI_TEST(test_add_overflow_is_refused))
 * A test in which no assertion ran fails, unless it was skipped. The process ends with 0 when all
 * passed, 77 when every test was skipped (ctest: skipped), else with the number of failed tests.
 * Arguments: names of tests to run (all without); -l lists them.
 * Asserts belong to the test's own thread: other threads record what they saw, and the test asserts
 * it.
 */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <CUnit/CUnit.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "opipe/abi.h"

typedef struct opi_test {
  const char *name;
  void (*run)(void);
} opi_test;

int opi_test_main(const char *suite, const opi_test *tests, size_t n_tests, int argc, char **argv);

#define OPI_TEST(function) \
  { #function, function }
#define OPI_TEST_MAIN(suite, ...)                                                   \
  int main(int argc, char **argv) {                                                 \
    static const opi_test tests[] = {__VA_ARGS__};                                  \
    return opi_test_main(suite, tests, sizeof tests / sizeof tests[0], argc, argv); \
  }

/* ---- asserts: print what was found, then go on (or leave the test, _FATAL) ---- */

bool opi_test_check(bool passed, const char *file, int line, bool fatal, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
bool opi_test_check_int(int64_t found, int64_t wanted, const char *text, const char *file,
                        int line);
bool opi_test_check_str(const char *found, const char *wanted, const char *text, const char *file,
                        int line);
bool opi_test_check_ok(int32_t status, const char *message, const char *text, const char *file,
                       int line, bool fatal);
bool opi_test_check_error(int32_t status, int32_t wanted, const char *message, const char *part,
                          const char *text, const char *file, int line);

#define OPI_ASSERT(cond) opi_test_check((cond), __FILE__, __LINE__, false, "%s", #cond)
#define OPI_ASSERT_FATAL(cond) opi_test_check((cond), __FILE__, __LINE__, true, "%s", #cond)
#define OPI_FAIL(...) opi_test_check(false, __FILE__, __LINE__, false, __VA_ARGS__)
/* Integers of any type up to 64 bits; both values are printed. */
#define OPI_ASSERT_INT(found, wanted) \
  opi_test_check_int((int64_t)(found), (int64_t)(wanted), #found, __FILE__, __LINE__)
#define OPI_ASSERT_STR(found, wanted) \
  opi_test_check_str((found), (wanted), #found, __FILE__, __LINE__)
/* `expr` is an opipe_status, `err` the opipe_error * given to it: its message is printed. */
#define OPI_ASSERT_OK(expr, err) \
  opi_test_check_ok((expr), (err)->message, #expr, __FILE__, __LINE__, false)
#define OPI_ASSERT_OK_FATAL(expr, err) \
  opi_test_check_ok((expr), (err)->message, #expr, __FILE__, __LINE__, true)
/* Fails with exactly `wanted`, with a message that holds `part` ("" for any, but never an empty
 * message). */
#define OPI_ASSERT_ERROR(expr, wanted, err, part) \
  opi_test_check_error((expr), (wanted), (err)->message, (part), #expr, __FILE__, __LINE__)

/* ---- skipping ---- */

/* Prints "SKIP: <test>: <reason>" and leaves the running test function. */
void opi_test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define OPI_SKIP(...)           \
  do {                          \
    opi_test_skip(__VA_ARGS__); \
    return;                     \
  } while (0)

/* Path of `relative` below the folder `shared` beside the project, or NULL after printing why it is
 * skipped. Static storage, valid until the next call but seven. Use: const char *p =
 * opi_test_shared("models/x"); if (!p) return; */
const char *opi_test_shared(const char *relative);
/* Path below the source tree, the build tree. Storage as above. */
const char *opi_test_source(const char *relative);
const char *opi_test_build(const char *relative);

/* ---- covers ---- */

/* A cover of a long series is enough for `./dev test`: OPIPE_TEST_COVER is set, to another number
 * in each build; `--all` runs all of it. */
bool opi_test_is_cover(void);
/* Is case i one of it? Every n-th is. */
bool opi_test_covers(size_t i, size_t n);
/* n cases of which every `n_th` is in a cover: how many are run. */
size_t opi_test_covered(size_t n, size_t n_th);
/* n; 8 n in a sanitized build, for a test that runs on the optimized build too (label=twice). */
size_t opi_test_sparse(size_t n);
/* Is this build, or that of the command under test, sanitized? Everything takes many times as long
 * then. */
bool opi_test_is_sanitized(void);

/* ---- tensors ---- */

/* Element by element: |a - b| <= atol + rtol * |b|; a NaN equals a NaN, an infinity itself. dtype:
 * OPIPE_FLOAT ... (float, double, half, bfloat16, integers, bool). On failure prints the worst
 * element: index, both values, distance in units of the last place, and how many elements differ. n
 * in elements. */
bool opi_test_near(const void *found, const void *wanted, size_t n, uint32_t dtype, double atol,
                   double rtol, const char *text, const char *file, int line);
/* Per tensor: max |a - b| <= tol * max |b|. */
bool opi_test_close(const void *found, const void *wanted, size_t n, uint32_t dtype, double tol,
                    const char *text, const char *file, int line);
/* The same bits. size in bytes; on failure prints the first element that differs. */
bool opi_test_bits(const void *found, const void *wanted, size_t n, uint32_t dtype,
                   const char *text, const char *file, int line);

#define OPI_ASSERT_NEAR(found, wanted, n, dtype, atol, rtol) \
  opi_test_near((found), (wanted), (n), (dtype), (atol), (rtol), #found, __FILE__, __LINE__)
#define OPI_ASSERT_CLOSE(found, wanted, n, dtype, tol) \
  opi_test_close((found), (wanted), (n), (dtype), (tol), #found, __FILE__, __LINE__)
#define OPI_ASSERT_BITS(found, wanted, n, dtype) \
  opi_test_bits((found), (wanted), (n), (dtype), #found, __FILE__, __LINE__)

/* Element i of a tensor as a double; NaN for types that have no number. */
double opi_test_element(const void *data, size_t i, uint32_t dtype);
/* Bytes of an element; 0 for unknown and sub-byte types. */
size_t opi_test_dtype_bytes(uint32_t dtype);

/* Numbers for test data: the same sequence for the same seed everywhere. */
typedef struct opi_test_random {
  uint64_t state;
} opi_test_random;
uint64_t opi_test_next(opi_test_random *random);
double opi_test_uniform(opi_test_random *random, double low, double high);
void opi_test_fill_f32(opi_test_random *random, float *data, size_t n, double low, double high);

/* ---- files ---- */

/* A folder of this process, made at the first call and removed when the process ends (kept if
 * OPIPE_KEEP_TMP is set). */
const char *opi_test_tmpdir(void);
/* Path below that folder. Storage as opi_test_shared. */
const char *opi_test_tmp(const char *relative);
bool opi_test_write_file(const char *path, const void *data, size_t n_bytes);
/* Whole file in malloc'd memory with a NUL after it, or NULL after printing why. */
char *opi_test_read_file(const char *path, size_t *out_n_bytes);

/* Text that a call hands out: `opi_test_take` is its sink. data is malloc'ed, NUL-terminated. */
typedef struct opi_test_text {
  char *data;
  size_t n;
} opi_test_text;
opipe_status opi_test_take(void *ctx, const void *data, size_t n_bytes);

/* ---- memory that fails ---- */

/* An opipe_allocator that counts, checks the sizes given back to it, and fails one allocation.
 *   opi_test_memory memory = {0};
 *   opi_test_memory_init(&memory);
 *   memory.fail_at = 3;                        the third allocation or growth from now fails (1 =
 * the next; 0 = none)
 *   ... memory.allocator goes to the code under test ...
 *   OPI_ASSERT(opi_test_memory_end(&memory));  false after printing what leaked or was misused
 * Safe from several threads. */
typedef struct opi_test_memory {
  opipe_allocator allocator;
  uint64_t fail_at;     /* counted down by allocations; 0: never */
  bool fail_after;      /* from fail_at on, every further allocation fails too */
  uint64_t n_calls;     /* allocations and growths */
  uint64_t n_failed;    /* refused on purpose */
  uint64_t live_blocks; /* now */
  uint64_t live_bytes;  /* now */
  uint64_t peak_bytes;  /* highest ever */
  uint64_t n_misused;   /* wrong old_size or align, or a foreign pointer */
  void *lock;           /* own */
} opi_test_memory;
void opi_test_memory_init(opi_test_memory *memory);
bool opi_test_memory_end(opi_test_memory *memory);

/* Calls `body(memory, arg)` with the first allocation failing, then the second, and so on until a
 * run in which none was left to fail; checks after every run that all memory came back. `body`
 * returns the status of what it tried: a run with a failed allocation must return OPIPE_E_NOMEM (or
 * OPIPE_OK, where going on without the memory is right), the last one OPIPE_OK. Returns the number
 * of runs; at most max_runs. */
uint64_t opi_test_every_allocation(opipe_status (*body)(opi_test_memory *memory, void *arg),
                                   void *arg, uint64_t max_runs);

#endif /* TESTS_SUPPORT_H */
