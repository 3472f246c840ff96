/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the CUDA kernels: tensors between red zones, launches by the shim in
 * several orders of threads, comparisons with results in double. */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_KERNELS_KIT_H_
#define TESTS_PLUGINS_BACKEND_CUDA_KERNELS_KIT_H_

#include <math.h>
#include <stdlib.h>

#include "opipe/types.h"
#include "plugins/backend-cuda/kernels/kernels.h"
#include "tests/support/support.h"

typedef struct kit_tensor {
  void *data;
  int64_t n; /* elements */
  uint32_t dtype;
  uint32_t bytes; /* of an element */
} kit_tensor;

enum { KIT_TYPES = 4 };
extern const uint32_t kit_types[KIT_TYPES]; /* fp32, bf16, fp16, double */

/* Elements that later tensors are moved away from an address of 256 bytes. */
extern int64_t kit_skew;

/* n elements of 0xff bytes between red zones; lives until kit_end. */
kit_tensor kit_new(uint32_t dtype, int64_t n);
/* Bytes at an address of 256, as backends give them, between red zones. */
void *kit_workspace(uint64_t n_bytes);
/* n_bytes of `from`, where a device reads and writes them. */
void *kit_placed(const void *from, size_t n_bytes);
/* Where kernels report bad data: nothing yet. Read before kit_end. */
cuda_status *kit_status(void);
/* Uniform in (low, high); integers: whole numbers of it. The same for the same seed. */
kit_tensor kit_random(uint32_t dtype, int64_t n, uint32_t seed, double low, double high);
kit_tensor kit_copy(const kit_tensor *of);
/* Frees all tensors; fails the test where a red zone was written. */
void kit_end(void);

double kit_get(const kit_tensor *t, int64_t i);
void kit_set(const kit_tensor *t, int64_t i, double value); /* rounded to the type */
/* n doubles, zeros; freed by kit_end. */
double *kit_doubles(int64_t n);
/* Is case i one to run? A cover has two of five, of every type; under a sanitizer, where all take
 * many times as long, every n-th. */
bool kit_covers(size_t i, size_t n);

/* Runs launches one after the other: threads and blocks in order, then in two random orders from
 * the same beginning of the outputs (each may be NULL); the outputs' bits must be the same. */
void kit_run(const cuda_launch *launches, uint32_t n, const kit_tensor *const *outputs,
             uint32_t n_outputs);
#define KIT_RUN(launches, n, ...)                                                      \
  do {                                                                                 \
    const kit_tensor *const kit_outputs[] = {__VA_ARGS__};                             \
    kit_run((launches), (n), kit_outputs, sizeof kit_outputs / sizeof kit_outputs[0]); \
  } while (0)

/* ||found - wanted|| <= tol ||wanted||, and no element further off than 8 tol max |wanted|; where
 * wanted is not a number or infinite, so is found. tol 0: the type's usual. */
bool kit_close(const kit_tensor *found, const double *wanted, double tol, const char *what,
               int line);
#define KIT_CLOSE(found, wanted, tol) \
  OPI_ASSERT(kit_close(&(found), (wanted), (tol), #found, __LINE__))
/* The same bits from element `first` on, n of them. */
bool kit_same(const kit_tensor *a, int64_t first_a, const kit_tensor *b, int64_t first_b,
              int64_t n);

#endif
