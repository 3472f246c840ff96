/* SPDX-License-Identifier: Apache-2.0 */
/* Results of the engine over the whole matrix, kept as data: outputs, losses, weights, orders and
 * bytes of every case as hashes, in tests/data/digests/NAME.txt.
 *
 *   @GROUP          a model, a data set or a batch, fused or not, a compute type
 *   ITEM VALUE      a case of it; VALUE: hashes, or how it was refused
 *
 * Kernels are the portable ones and rates are nominal, so that every machine finds the same. With
 * OPIPE_DIGESTS=DIR a run writes DIR/NAME.txt instead of comparing.
 */
#ifndef TESTS_DIGESTS_H
#define TESTS_DIGESTS_H

#include "opipe/host.h"
#include "tests/support/support.h"

typedef struct dg_table dg_table;
/* NULL after failing the running test. */
dg_table *dg_open(const char *name);
/* Begins the group of the cases that follow. */
void dg_group(dg_table *t, const char *format, ...);
/* Fails the running test where the case is unknown or has another value. */
void dg_case(dg_table *t, const char *item, const char *value);
/* Where no cover is enough, every case of every group that was begun must have come. Prints how
 * many did. */
void dg_close(dg_table *t);

/* ---- hashes ---- */

typedef struct dg_hash {
  uint64_t value;
} dg_hash;
void dg_add(dg_hash *h, const void *data, size_t n_bytes);
/* Order and bytes of a plan. */
typedef struct dg_plan_text {
  char text[24];
} dg_plan_text;
opipe_status dg_plan(const opipe_api *api, opipe_plan *plan, dg_plan_text *out, opipe_error *err);
/* Eight hexadecimal digits. */
const char *dg_hex(const dg_hash *h, char text[9]);

/* ---- cases ---- */

void dg_forward(void);
void dg_training(size_t subject);

#endif /* TESTS_DIGESTS_H */
