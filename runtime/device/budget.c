/* SPDX-License-Identifier: Apache-2.0 */
/* Device budgets: a short list of devices, each with its cap and the bytes charged, under one lock.
 */
#include "runtime/device/budget.h"

#include <string.h>

#include "loader/base/sizes.h"
#include "runtime/base/base.h"

typedef struct account {
  struct account *next;
  char kind[64];
  uint32_t index;
  uint64_t cap_bytes;
  uint64_t charged_bytes;
  uint64_t threads; /* beside those of ranks */
} account;

struct opi_budget {
  const opipe_allocator *allocator;
  opi_budget *within; /* charged too; NULL: none */
  opi_lock lock;
  account *accounts;
};

opipe_status opi_budget_create(const opipe_allocator *allocator, opi_budget **out_budget,
                               opipe_error *err) {
  opi_budget *budget = opi_alloc_zero(allocator, 1, sizeof *budget);
  if (budget == NULL)
    return opi_fail_nomem(err, sizeof *budget, "a device budget");
  budget->allocator = allocator;
  const opipe_status status = opi_lock_init(&budget->lock, err);
  if (status < 0) {
    opi_free(allocator, budget, sizeof *budget);
    return status;
  }
  *out_budget = budget;
  return OPIPE_OK;
}

void opi_budget_put_within(opi_budget *budget, opi_budget *outer) {
  budget->within = outer;
}

void opi_budget_free(opi_budget *budget) {
  if (budget == NULL)
    return;
  while (budget->accounts != NULL) {
    account *next = budget->accounts->next;
    opi_free(budget->allocator, budget->accounts, sizeof *next);
    budget->accounts = next;
  }
  opi_lock_destroy(&budget->lock);
  opi_free(budget->allocator, budget, sizeof *budget);
}

static account *find(const opi_budget *budget, const char *kind, uint32_t index) {
  account *a = budget->accounts;
  while (a != NULL && (a->index != index || strcmp(a->kind, kind) != 0))
    a = a->next;
  return a;
}

/* The account of a device, made without a cap if there is none. NULL: `err` says why. */
static account *find_or_add(opi_budget *budget, const char *kind, uint32_t index,
                            opipe_error *err) {
  account *a = find(budget, kind, index);
  if (a != NULL)
    return a;
  if (strlen(kind) >= sizeof a->kind) {
    (void)opi_fail(err, OPIPE_E_INVALID, "device '%s': its name is longer than %zu characters",
                   kind, sizeof a->kind - 1);
    return NULL;
  }
  a = opi_alloc_zero(budget->allocator, 1, sizeof *a);
  if (a == NULL) {
    (void)opi_fail_nomem(err, sizeof *a, "a device budget");
    return NULL;
  }
  memcpy(a->kind, kind, strlen(kind) + 1);
  a->index = index;
  a->cap_bytes = UINT64_MAX;
  a->next = budget->accounts;
  budget->accounts = a;
  return a;
}

opipe_status opi_budget_cap(opi_budget *budget, const char *kind, uint32_t index,
                            uint64_t cap_bytes, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  opi_lock_take(&budget->lock);
  account *a = find_or_add(budget, kind, index, e);
  if (a != NULL)
    a->cap_bytes = cap_bytes;
  opi_lock_give(&budget->lock);
  return a == NULL ? e->status : OPIPE_OK;
}

/* New accounts are put first and live as long as the list does. Caps are set before sessions open.
 */
bool opi_budget_next_cap(opi_budget *budget, const void **io_at, opi_capped_device *out) {
  const account *a = *io_at;
  opi_lock_take(&budget->lock);
  a = a == NULL ? budget->accounts : a->next;
  while (a != NULL && a->cap_bytes == UINT64_MAX)
    a = a->next;
  opi_lock_give(&budget->lock);
  *io_at = a;
  if (a != NULL)
    *out = (opi_capped_device){a->kind, a->index, a->cap_bytes};
  return a != NULL;
}

static opipe_status charge_locked(opi_budget *budget, const char *kind, uint32_t index,
                                  uint64_t n_bytes, const char *what, opipe_error *err) {
  account *a = find_or_add(budget, kind, index, err);
  if (a == NULL)
    return err->status;
  const uint64_t left = a->cap_bytes > a->charged_bytes ? a->cap_bytes - a->charged_bytes : 0;
  if (n_bytes > left) {
    return opi_fail(
        err, OPIPE_E_LIMIT,
        "%s: %s of device %s:%u are needed, but of its budget of %s only %s are free (%s "
        "are taken): %s are missing",
        what, OPI_SIZE(n_bytes), kind, index, OPI_SIZE(a->cap_bytes), OPI_SIZE(left),
        OPI_SIZE(a->charged_bytes), OPI_SIZE(n_bytes - left));
  }
  a->charged_bytes += n_bytes;
  return OPIPE_OK;
}

static void release_own(opi_budget *budget, const char *kind, uint32_t index, uint64_t n_bytes) {
  opi_lock_take(&budget->lock);
  account *a = find(budget, kind, index);
  if (a != NULL)
    a->charged_bytes -= n_bytes < a->charged_bytes ? n_bytes : a->charged_bytes;
  opi_lock_give(&budget->lock);
}

opipe_status opi_budget_charge(opi_budget *budget, const char *kind, uint32_t index,
                               uint64_t n_bytes, const char *what, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opi_lock_take(&budget->lock);
  opipe_status status =
      charge_locked(budget, kind, index, n_bytes, what, err == NULL ? &local : err);
  opi_lock_give(&budget->lock);
  if (status < 0 || budget->within == NULL)
    return status;
  status = opi_budget_charge(budget->within, kind, index, n_bytes, what, err);
  if (status < 0)
    release_own(budget, kind, index, n_bytes);
  return status;
}

void opi_budget_release(opi_budget *budget, const char *kind, uint32_t index, uint64_t n_bytes) {
  for (opi_budget *at = budget; at != NULL; at = at->within)
    release_own(at, kind, index, n_bytes);
}

opipe_status opi_budget_threads(opi_budget *budget, const char *kind, uint32_t index,
                                int64_t threads, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  while (budget->within != NULL)
    budget = budget->within;
  opi_lock_take(&budget->lock);
  account *a = find_or_add(budget, kind, index, e);
  if (a != NULL && threads >= 0)
    a->threads += (uint64_t)threads;
  else if (a != NULL)
    a->threads -= (uint64_t)-threads < a->threads ? (uint64_t)-threads : a->threads;
  opi_lock_give(&budget->lock);
  return a == NULL ? e->status : OPIPE_OK;
}

uint64_t opi_budget_all_threads(opi_budget *budget) {
  uint64_t sum = 0;
  while (budget->within != NULL)
    budget = budget->within;
  opi_lock_take(&budget->lock);
  for (const account *a = budget->accounts; a != NULL; a = a->next)
    sum += a->threads;
  opi_lock_give(&budget->lock);
  return sum;
}

void opi_budget_state(opi_budget *budget, const char *kind, uint32_t index,
                      uint64_t *out_charged_bytes, uint64_t *out_cap_bytes) {
  opi_lock_take(&budget->lock);
  const account *a = find(budget, kind, index);
  *out_charged_bytes = a == NULL ? 0 : a->charged_bytes;
  *out_cap_bytes = a == NULL ? UINT64_MAX : a->cap_bytes;
  opi_lock_give(&budget->lock);
}
