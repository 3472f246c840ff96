/* SPDX-License-Identifier: Apache-2.0 */
/* A cap on the memory that all sessions of a context together may take of each device. Memory is
 * charged before it is taken and released when it is given back. */
#ifndef OPI_BUDGET_H
#define OPI_BUDGET_H

#include "loader/base/base.h"

typedef struct opi_budget opi_budget;

opipe_status opi_budget_create(const opipe_allocator *allocator, opi_budget **out_budget,
                               opipe_error *err);
/* From now on `outer` (NULL: none) is charged with everything that the budget is charged with. It
 * must outlive the budget, and it alone counts threads. */
void opi_budget_put_within(opi_budget *budget, opi_budget *outer);
void opi_budget_free(opi_budget *budget); /* accepts NULL */

/* Caps device `index` of backend `kind` (copied). A device without a cap is not limited.
 * [control] */
opipe_status opi_budget_cap(opi_budget *budget, const char *kind, uint32_t index,
                            uint64_t cap_bytes, opipe_error *err);

/* Steps through the caps; *io_at is NULL before the first. False: there are no more.
 * [any-thread] */
typedef struct opi_capped_device {
  const char *kind; /* lives as long as the budget */
  uint32_t index;
  uint64_t cap_bytes;
} opi_capped_device;
bool opi_budget_next_cap(opi_budget *budget, const void **io_at, opi_capped_device *out);

/* On OPIPE_E_LIMIT nothing is charged; the message names `what`, the bytes that it asks for, those
 * that are charged already, and the cap. [any-thread] */
opipe_status opi_budget_charge(opi_budget *budget, const char *kind, uint32_t index,
                               uint64_t n_bytes, const char *what, opipe_error *err);
void opi_budget_release(opi_budget *budget, const char *kind, uint32_t index,
                        uint64_t n_bytes); /* [any-thread] */
/* Adds threads that compute on a device beside the sessions' ranks; negative: takes them off.
 * [any-thread] */
opipe_status opi_budget_threads(opi_budget *budget, const char *kind, uint32_t index,
                                int64_t threads, opipe_error *err);
/* The sum of these threads over all devices. [any-thread] */
uint64_t opi_budget_all_threads(opi_budget *budget);
/* Bytes charged now; *out_cap_bytes UINT64_MAX: no cap. [any-thread] */
void opi_budget_state(opi_budget *budget, const char *kind, uint32_t index,
                      uint64_t *out_charged_bytes, uint64_t *out_cap_bytes);

#endif /* OPI_BUDGET_H */
