/* SPDX-License-Identifier: Apache-2.0 */
/* Where the matrices of inference and training are run on devices that do all work later, on
 * threads of their own: with memory that transport 'local' writes into, and with memory that has no
 * host addresses, over transport-staged. */
#ifndef TESTS_MATRIX_ASYNC_H
#define TESTS_MATRIX_ASYNC_H

#include "tests/matrix/cases.h"
#include "tests/runtime/train/cases.h"

enum { ASYNC_PLACES = 2 };
static const kit_place ASYNC[ASYNC_PLACES] = {
    {.device = "emulated", .device_options = "async=1"},
    {.device = "emulated", .device_index = 16, .device_options = "async=1", .transport = "staged"}};

/* One model of so many, places in turn; 0: all, with all choices. */
static inline void async_inference(uint32_t one_in, mx_count *count) {
  const mx_scope scope = {
      .full = one_in == 0, .one_in = one_in, .places = ASYNC, .n_places = ASYNC_PLACES};
  mx_matrix(&scope, count);
  OPI_ASSERT_INT(count->failed, 0);
  OPI_ASSERT(count->passed > 0);
}

#endif /* TESTS_MATRIX_ASYNC_H */
