/* SPDX-License-Identifier: Apache-2.0 */
/* What the sessions of one context together may take of each device. Charged before memory is
 * taken, released when it is given back. */
#ifndef OPI_BUDGET_H
#define OPI_BUDGET_H

#include "loader/base/base.h"

typedef struct opi_budget opi_budget;

opipe_status opi_budget_create(const opipe_allocator *allocator, opi_budget **out_budget,
                               opipe_error *err);
/* `outer` (NULL: none) is charged with all that the budget is from now on, and must outlive it; it
 * alone counts threads. */
void opi_budget_put_within(opi_budget *budget, opi_budget *outer);
void opi_budget_free(opi_budget *budget); /* accepts NULL */

/* Caps device `index` of backend `kind` (copied); a device that was never capped is not limited.
 * [control] */
opipe_status opi_budget_cap(opi_budget *budget, const char *kind, uint32_t index,
                            uint64_t cap_bytes, opipe_error *err);

/* The caps, one after the other; *io_at is NULL before the first. false: that was the last.
 * [any-thread] */
typedef struct opi_capped_device {
  const char *kind; /* lives as long as the budget */
  uint32_t index;
  uint64_t cap_bytes;
} opi_capped_device;
bool opi_budget_next_cap(opi_budget *budget, const void **io_at, opi_capped_device *out);

/* OPIPE_E_LIMIT names `what`, what it asks for, what is charged already and the cap; nothing is
 * charged then. [any-thread] */
opipe_status opi_budget_charge(opi_budget *budget, const char *kind, uint32_t index,
                               uint64_t n_bytes, const char *what, opipe_error *err);
void opi_budget_release(opi_budget *budget, const char *kind, uint32_t index,
                        uint64_t n_bytes); /* [any-thread] */
/* Threads of a device that others than the session's ranks compute on; negative: less.
 * [any-thread] */
opipe_status opi_budget_threads(opi_budget *budget, const char *kind, uint32_t index,
                                int64_t threads, opipe_error *err);
/* Of all devices. [any-thread] */
uint64_t opi_budget_all_threads(opi_budget *budget);
/* Bytes charged now; *out_cap_bytes UINT64_MAX: no cap. [any-thread] */
void opi_budget_state(opi_budget *budget, const char *kind, uint32_t index,
                      uint64_t *out_charged_bytes, uint64_t *out_cap_bytes);

#endif /* OPI_BUDGET_H */
