/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the CPU kernels: every instruction set of this machine with one thread and
 * with two, data, and the two questions: the same bits? close to the double result? */
#ifndef TESTS_PLUGINS_BACKEND_CPU_KERNEL_TEST_H_
#define TESTS_PLUGINS_BACKEND_CPU_KERNEL_TEST_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/backend-cpu/kernels/kernels.h"
#include "tests/support/support.h"

enum { KERNEL_EXECS = 2 * CPU_ISA_COUNT, KERNEL_BYTE_EXECS = 2 * CPU_ISA_COUNT * CPU_BYTES_COUNT };

typedef struct kernel_exec {
  cpu_exec x;
  char name[32]; /* "avx2, 2 threads" */
} kernel_exec;

/* Memory of exactly n bytes (so that a sanitizer sees the first byte beyond), ends the test program
 * when there is none. */
static inline void *kernel_memory(size_t n) {
  void *p = NULL;
  if (posix_memalign(&p, CPU_TEAM_ALIGN_BYTES, n == 0 ? 1 : n) != 0)
    exit(99);
  memset(p, 0xa5, n);
  return p;
}

static inline float *kernel_floats(int64_t n) {
  return kernel_memory((size_t)n * sizeof(float));
}

static inline cpu_team *kernel_pair(void) {
  static cpu_team *pair = NULL; /* lives until the process ends */
  if (pair == NULL) {
    cpu_team_options options = {.threads = 2, .spin_ns = 20000};
    if (cpu_team_start(kernel_memory(cpu_team_bytes(2)), &options, &pair) != 0)
      exit(99);
  }
  return pair;
}

/* Every instruction set here with 1 and 2 threads. */
static inline int kernel_execs(kernel_exec out[KERNEL_EXECS]) {
  int n = 0;
  for (int isa = 0; isa < CPU_ISA_COUNT; ++isa) {
    const cpu_kernels *kernels = cpu_kernels_get((cpu_isa)isa);
    for (int threads = 1; kernels != NULL && threads <= 2; ++threads, ++n) {
      out[n].x = (cpu_exec){kernels, threads == 2 ? kernel_pair() : NULL, NULL};
      snprintf(out[n].name, sizeof out[n].name, "%s, %d thread(s)", cpu_isa_name((cpu_isa)isa),
               threads);
    }
  }
  return n;
}

/* The same with every kind of sums of bytes that each has; the model of tiles only once. */
static inline int kernel_byte_execs(kernel_exec out[KERNEL_BYTE_EXECS]) {
  int n = 0;
  for (int i = 0; i < CPU_ISA_COUNT * CPU_BYTES_COUNT * 2; ++i) {
    const cpu_isa isa = (cpu_isa)(i / 2 / CPU_BYTES_COUNT);
    const cpu_bytes_kind kind = (cpu_bytes_kind)(i / 2 % CPU_BYTES_COUNT);
    const cpu_byte_kernels *bytes = cpu_bytes_get(kind, isa);
    if (bytes == NULL || (kind == CPU_BYTES_TILES_MODEL && isa != CPU_ISA_PORTABLE))
      continue;
    out[n].x = (cpu_exec){cpu_kernels_get(isa), i % 2 == 1 ? kernel_pair() : NULL, bytes};
    snprintf(out[n].name, sizeof out[n].name, "%s, %s, %d thread(s)", cpu_isa_name(isa),
             cpu_bytes_name(kind), i % 2 + 1);
    ++n;
  }
  return n;
}

/* Uniform in (-1, 1), the same for the same seed. */
static inline void kernel_fill(float *p, int64_t n, uint32_t seed) {
  opi_test_random random = {seed};
  opi_test_fill_f32(&random, p, (size_t)n, -1.0, 1.0);
}

static inline float *kernel_random(int64_t n, uint32_t seed) {
  float *p = kernel_floats(n);
  kernel_fill(p, n, seed);
  return p;
}

/* The first element whose bits differ (two NaN count as equal), or -1. */
static inline int64_t kernel_differ(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
      return i;
  }
  return -1;
}

/* Fails the test, with the place and both values, when bits differ. */
static inline bool kernel_same(const float *found, const float *wanted, int64_t n, const char *what,
                               const char *exec) {
  const int64_t i = kernel_differ(found, wanted, n), at = i < 0 ? 0 : i;
  return opi_test_check(
      i < 0, __FILE__, __LINE__, false, "%s, %s: element %lld of %lld is %a, wanted %a", what, exec,
      (long long)i, (long long)n, n == 0 ? 0 : (double)found[at], n == 0 ? 0 : (double)wanted[at]);
}

/* |found - wanted| <= tolerance * (size of the largest wanted, at least floor). */
static inline bool kernel_close(const float *found, const double *wanted, int64_t n,
                                double tolerance, const char *what, const char *exec) {
  double size = 0.0;
  for (int64_t i = 0; i < n; ++i)
    size = fabs(wanted[i]) > size ? fabs(wanted[i]) : size;
  for (int64_t i = 0; i < n; ++i) {
    if (!(fabs((double)found[i] - wanted[i]) <= tolerance * size)) {
      OPI_FAIL("%s, %s: element %lld of %lld is %.9g, wanted %.9g", what, exec, (long long)i,
               (long long)n, (double)found[i], wanted[i]);
      return false;
    }
  }
  return true;
}

#endif
