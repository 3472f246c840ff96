/* SPDX-License-Identifier: Apache-2.0 */
/* The table of handles. Chunks never move and are published with release order; free slots are on a
 * stack whose head carries a count. No lock is taken anywhere, so that a fork at any moment leaves
 * a working table.
 */
#include "runtime/base/handles.h"

#include <sched.h>
#include <string.h>

#include "runtime/base/thread.h"

#define PINS ((UINT64_C(1) << 27) - 1)
#define KILLED (UINT64_C(1) << 27)
#define LIVE (UINT64_C(1) << 28)
enum { GENERATION_SHIFT = 29, INDEX_SHIFT = 5, INDEX_BITS = 24, DRAIN_YIELDS = 100 };
enum { SLOTS_MOST = 1 << INDEX_BITS, CHUNKS = SLOTS_MOST / OPI_SLOTS };

static struct {
  opi_handle_entry first[OPI_SLOTS];
  _Atomic(opi_handle_entry *) chunks[CHUNKS]; /* [0] is not used: `first` */
  _Atomic uint32_t n_fresh;                   /* slots taken so far */
  _Atomic uint64_t free; /* index + 1 of the newest free slot; above it a count */
} table;

static const struct {
  const char *name, *with_article, *gone;
} kinds[OPI_HANDLE_KINDS] = {
    [0] = {"handle", "a handle", "destroyed"},
    [OPI_HANDLE_CONTEXT] = {"context", "a context", "destroyed"},
    [OPI_HANDLE_MODEL] = {"model", "a model", "destroyed"},
    [OPI_HANDLE_PLAN] = {"plan", "a plan", "destroyed"},
    [OPI_HANDLE_SESSION] = {"session", "a session", "closed"},
    [OPI_HANDLE_REQUEST] = {"request", "a request", "released, or its session closed,"},
    [OPI_HANDLE_ORDER] = {"order", "an order", "destroyed"},
    [OPI_HANDLE_STATE] = {"state", "a state", "closed, or its session,"},
    [OPI_HANDLE_PROFILE] = {"profile", "a profile", "destroyed"},
    [OPI_HANDLE_STRATEGY] = {"strategy", "a strategy", "destroyed"},
    [OPI_HANDLE_TEAM] = {"team", "a team", "closed"},
    [OPI_HANDLE_SEQUENCE] = {"sequence", "a sequence", "released, or its session closed,"}};

/* ---- slots ---- */

/* NULL: there is none yet. */
static opi_handle_entry *slot_at(uint32_t index) {
  const uint32_t chunk = index / OPI_SLOTS;
  opi_handle_entry *slots =
      chunk == 0 ? table.first : atomic_load_explicit(&table.chunks[chunk], memory_order_acquire);
  return slots == NULL ? NULL : &slots[index % OPI_SLOTS];
}

static bool make_chunk(uint32_t chunk) {
  const opipe_allocator *system = opi_allocator_system(); /* contexts come and go, slots stay */
  const size_t n_bytes = OPI_SLOTS * sizeof(opi_handle_entry);
  opi_handle_entry *none = NULL;
  opi_handle_entry *slots =
      system->realloc(system->ctx, NULL, 0, n_bytes, sizeof(opi_handle_entry));
  if (slots == NULL)
    return false;
  memset(slots, 0, n_bytes);
  if (!atomic_compare_exchange_strong(&table.chunks[chunk], &none, slots)) {
    (void)system->realloc(system->ctx, slots, n_bytes, 0,
                          sizeof(opi_handle_entry)); /* another was faster */
  }
  return true;
}

/* Takes a slot that was never used from the first `most`; NULL: there is none. */
static opi_handle_entry *fresh_slot(uint32_t most) {
  uint32_t n = atomic_load(&table.n_fresh);
  while (n < most) {
    if (slot_at(n) == NULL && !make_chunk(n / OPI_SLOTS))
      return NULL;
    if (!atomic_compare_exchange_weak(&table.n_fresh, &n, n + 1))
      continue;
    opi_handle_entry *slot = slot_at(n);
    slot->index = n;
    /* Generations begin anywhere, so that a handle of another copy of this library is stale. */
    const uint64_t seed = (opi_clock_ns() ^ ((uint64_t)(uintptr_t)slot << 13)) | 1;
    atomic_store(&slot->word, seed << GENERATION_SHIFT);
    return slot;
  }
  return NULL;
}

static opi_handle_entry *free_slot(void) {
  uint64_t head = atomic_load(&table.free);
  while ((uint32_t)head != 0) {
    opi_handle_entry *slot = slot_at((uint32_t)head - 1);
    const uint64_t next = ((head >> 32) + 1) << 32 | atomic_load(&slot->next);
    if (atomic_compare_exchange_weak(&table.free, &head, next))
      return slot;
  }
  return NULL;
}

opi_handle_entry *opi_handle_slot_take(uint32_t kind, void *object, opi_handle_end_fn end,
                                       uint64_t owner, opipe_error *err) {
  opi_handle_entry *slot = fresh_slot(OPI_SLOTS); /* free ones rest as long as there are others */
  if (slot == NULL)
    slot = free_slot();
  if (slot == NULL)
    slot = fresh_slot(SLOTS_MOST);
  if (slot == NULL) {
    (void)opi_fail_nomem(err, OPI_SLOTS * sizeof *slot, "handles");
    return NULL;
  }
  slot->object = object;
  slot->end = end;
  atomic_store(&slot->owner, owner);
  atomic_store(&slot->since, atomic_load(&slot->word) >> GENERATION_SHIFT);
  atomic_store(&slot->pid, opi_process_id());
  slot->kind = (uint16_t)kind;
  slot->kept = 1;
  return slot;
}

uint64_t opi_handle_slot_arm(opi_handle_entry *slot) {
  uint64_t word = atomic_load(&slot->word), next = 0;
  do {
    next = (((word >> GENERATION_SHIFT) + 1) << GENERATION_SHIFT) | LIVE | (word & PINS);
  } while (!atomic_compare_exchange_weak(&slot->word, &word, next));
  return (next >> GENERATION_SHIFT) << GENERATION_SHIFT | (uint64_t)slot->index << INDEX_SHIFT |
         (2u * slot->kind + 1);
}

void opi_handle_slot_disarm(opi_handle_entry *slot) {
  (void)atomic_fetch_and(&slot->word, ~LIVE);
}

void opi_handle_slot_drain(opi_handle_entry *slot, uint32_t n) {
  for (uint32_t i = 0; (atomic_load(&slot->word) & PINS) > n; ++i) {
    const struct timespec t = {.tv_nsec = 50000};
    if (i < DRAIN_YIELDS)
      (void)sched_yield();
    else
      (void)nanosleep(&t, NULL);
  }
}

void opi_handle_slot_give(opi_handle_entry *slot) {
  if (slot == NULL)
    return;
  uint64_t head = atomic_load(&table.free), next = 0;
  do {
    atomic_store(&slot->next, (uint32_t)head);
    next = ((head >> 32) + 1) << 32 | (slot->index + 1);
  } while (!atomic_compare_exchange_weak(&table.free, &head, next));
}

/* ---- handles ---- */

opipe_status opi_handle_new(uint32_t kind, void *object, opi_handle_end_fn end, uint64_t owner,
                            uint64_t *out_handle, opipe_error *err) {
  opi_handle_entry *slot = opi_handle_slot_take(kind, object, end, owner, err);
  if (slot == NULL) {
    end(object);
    return OPIPE_E_NOMEM;
  }
  slot->kept = 0;
  *out_handle = opi_handle_slot_arm(slot);
  return OPIPE_OK;
}

/* The slot that a handle names; NULL: it never was a handle. */
static opi_handle_entry *find(uint64_t handle, uint32_t *out_kind) {
  const uint32_t low = handle & ((1u << INDEX_SHIFT) - 1);
  opi_handle_entry *slot = slot_at((uint32_t)(handle >> INDEX_SHIFT) & (SLOTS_MOST - 1));
  *out_kind = low / 2;
  if (low % 2 == 0 || *out_kind == 0 || *out_kind >= OPI_HANDLE_KINDS || slot == NULL ||
      atomic_load_explicit(&slot->word, memory_order_relaxed) == 0)
    return NULL;
  return slot;
}

/* False: the handle is stale. */
static bool pin_slot(opi_handle_entry *slot, uint64_t handle, uint32_t kind) {
  uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
  do {
    if ((word & LIVE) == 0 || (word ^ handle) >> GENERATION_SHIFT != 0)
      return false;
  } while (!atomic_compare_exchange_weak_explicit(&slot->word, &word, word + 1,
                                                  memory_order_acquire, memory_order_relaxed));
  if (slot->kind == kind)
    return true;
  opi_handle_leave(&(opi_entry){slot, slot->object});
  return false;
}

opipe_status opi_handle_enter(const void *handle, uint32_t kind, const char *call,
                              opi_entry *out_entry, opipe_error *err) {
  const uint64_t h = (uint64_t)(uintptr_t)handle;
  uint32_t found = 0;
  if (handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: the %s is NULL", call, kinds[kind].name);
  opi_handle_entry *slot = find(h, &found);
  if (slot == NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: %#llx is not a handle of this library; %s is expected", call,
                    (unsigned long long)h, kinds[kind].with_article);
  }
  if (!pin_slot(slot, h, found)) {
    return opi_fail(err, OPIPE_E_STATE, "%s: the %s was %s before (handle %#llx)", call,
                    kinds[found].name, kinds[found].gone, (unsigned long long)h);
  }
  *out_entry = (opi_entry){slot, slot->object};
  const int32_t pid = opi_process_id();
  const int32_t from = atomic_load_explicit(&slot->pid, memory_order_relaxed);
  if (found == kind && from == pid)
    return OPIPE_OK;
  opi_handle_leave(out_entry);
  if (from != pid) {
    return opi_fail(err, OPIPE_E_STATE, "%s: the %s was opened in another process (%d, this is %d)",
                    call, kinds[found].name, from, pid);
  }
  return opi_fail(err, OPIPE_E_INVALID, "%s: this is %s; %s is expected", call,
                  kinds[found].with_article, kinds[kind].with_article);
}

void opi_handle_leave(const opi_entry *entry) {
  opi_handle_entry *slot = entry->slot;
  uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
  for (;;) {
    const bool ends = (word & KILLED) != 0 && (word & PINS) == 1;
    const uint64_t next = ends ? word & ~KILLED : word - 1;
    if (!atomic_compare_exchange_weak_explicit(&slot->word, &word, next, memory_order_acq_rel,
                                               memory_order_relaxed))
      continue;
    if (!ends)
      return;
    /* Pinned still: whoever drains the slot waits for the end too. */
    const bool kept = slot->kept != 0;
    slot->end(slot->object);
    if (!kept) {
      (void)atomic_fetch_sub_explicit(&slot->word, 1, memory_order_release);
      opi_handle_slot_give(slot);
      return;
    }
    word = atomic_load_explicit(&slot->word, memory_order_relaxed); /* it may be armed again */
  }
}

bool opi_handle_kill(const opi_entry *entry) {
  uint64_t word = atomic_load(&entry->slot->word);
  do {
    if ((word & LIVE) == 0)
      return false;
  } while (!atomic_compare_exchange_weak(&entry->slot->word, &word, (word & ~LIVE) | KILLED));
  return true;
}

bool opi_handle_inherited(const void *handle) {
  uint32_t kind = 0;
  const opi_handle_entry *slot = find((uint64_t)(uintptr_t)handle, &kind);
  return slot != NULL && atomic_load(&slot->pid) != opi_process_id();
}

uint64_t opi_handle_owner(const void *handle) {
  const uint64_t h = (uint64_t)(uintptr_t)handle;
  uint32_t kind = 0;
  opi_handle_entry *slot = find(h, &kind);
  if (slot == NULL || h >> GENERATION_SHIFT <= atomic_load(&slot->since) ||
      h >> GENERATION_SHIFT > atomic_load(&slot->word) >> GENERATION_SHIFT)
    return 0;
  return kind == OPI_HANDLE_CONTEXT ? h : atomic_load(&slot->owner);
}
