/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what a host holds in place of an address. A handle is a number in a pointer's clothes,
 * looked up in one table of the process and never followed, so that NULL, a handle of another kind,
 * one of an object that is gone and plain garbage are told apart and refused, whenever they come.
 *
 *   bits 63..29  generation: which of the objects that its slot has had
 *   bits 28..5   index of the slot
 *   bits  4..0   2 * kind + 1: odd, so that no aligned address looks like a handle
 *
 * A slot is one word {generation, live, killed, pins} and what stands beside it. Looking up is one
 * compare-and-swap that pins the slot: no lock, and what is pinned stays in memory. An object that
 * is destroyed while calls are inside ends with the last of them. Slots are never given back to the
 * system: the table's memory (64 bytes for each object that lives at the same time; the first
 * OPI_SLOTS are part of the library) is the process's and not a context's.
 *
 * In a forked child every handle from before answers OPIPE_E_STATE "opened in another process".
 */
#ifndef OPI_HANDLES_H
#define OPI_HANDLES_H

#include <stdatomic.h>

#include "loader/base/base.h"

enum {
  OPI_HANDLE_CONTEXT = 1,
  OPI_HANDLE_MODEL = 2,
  OPI_HANDLE_PLAN = 3,
  OPI_HANDLE_SESSION = 4,
  OPI_HANDLE_REQUEST = 5,
  OPI_HANDLE_ORDER = 6,
  OPI_HANDLE_STATE = 7,
  OPI_HANDLE_PROFILE = 8,
  OPI_HANDLE_STRATEGY = 9,
  OPI_HANDLE_TEAM = 10,
  OPI_HANDLE_KINDS = 11
};
enum { OPI_SLOTS = 1024 /* of one chunk of the table */ };

typedef void (*opi_handle_end_fn)(void *object);

typedef struct opi_handle_entry {
  _Alignas(64) _Atomic uint64_t word; /* generation, live, killed, pins; 0: never used */
  void *object;
  opi_handle_end_fn end;  /* the handle was destroyed and nobody is inside any more */
  _Atomic uint64_t owner; /* handle of the context, for its log */
  _Atomic uint64_t since; /* generation before the taker's first */
  uint32_t index;
  _Atomic uint32_t next; /* of the free ones: index + 1 */
  _Atomic int32_t pid;   /* the process that took it */
  uint16_t kind;
  uint16_t kept; /* 1: its taker gives it back, not the end of a handle */
} opi_handle_entry;

/* A call that is inside an object. */
typedef struct opi_entry {
  opi_handle_entry *slot;
  void *object;
} opi_entry;

/* "context", "model", ... */
const char *opi_handle_kind(uint32_t kind);

/* A slot for `object`, for one handle after another: arm, ..., give. NULL: no memory (or 2^24
 * objects live). [any-thread] */
opi_handle_entry *opi_handle_slot_take(uint32_t kind, void *object, opi_handle_end_fn end,
                                       uint64_t owner, opipe_error *err);
/* A new handle; all earlier ones of the slot are stale. The slot must not be live. */
uint64_t opi_handle_slot_arm(opi_handle_entry *slot);
/* The handle becomes stale without an end. Nothing if it is. */
void opi_handle_slot_disarm(opi_handle_entry *slot);
/* Sleeps until at most `n` calls are inside. */
void opi_handle_slot_drain(opi_handle_entry *slot, uint32_t n);
void opi_handle_slot_give(opi_handle_entry *slot); /* disarmed, nobody inside; accepts NULL */

/* A slot that lives as long as its one handle. `end` is called for the object also when this fails.
 */
opipe_status opi_handle_new(uint32_t kind, void *object, opi_handle_end_fn end, uint64_t owner,
                            uint64_t *out_handle, opipe_error *err);

/* Enters the object behind `handle`, for `call` (its name stands in messages). Errors: INVALID
 * (NULL, another kind, no handle at all), STATE (destroyed; opened in another process).
 * [any-thread] */
opipe_status opi_handle_enter(const void *handle, uint32_t kind, const char *call,
                              opi_entry *out_entry, opipe_error *err);
void opi_handle_leave(const opi_entry *entry); /* ends the object when it was destroyed meanwhile */
/* From here on the pinned handle is stale; false: another thread was faster. The object ends with
 * the last unpin. */
bool opi_handle_kill(const opi_entry *entry);
/* Made by the process that this one was forked from. */
bool opi_handle_inherited(const void *handle);
/* The context to which a handle belongs or, as long as its slot has the same taker, belonged; 0:
 * nobody knows. */
uint64_t opi_handle_owner(const void *handle);

/* Handles cross the border as pointers that are not followed. */
static inline void *opi_handle_pointer(uint64_t handle) {
  return (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr) */
}

#endif /* OPI_HANDLES_H */
