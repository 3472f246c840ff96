/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, which hosts hold in place of addresses. A handle is a number with a pointer's type. It
 * is looked up in the process's one table and never dereferenced, so that NULL, a handle of another
 * kind, a stale handle and garbage are told apart and refused.
 *
 *   bits 63..29  generation: counts the objects that its slot has held
 *   bits 28..5   index of the slot
 *   bits  4..0   2 * kind + 1: odd, so that no aligned address looks like a handle
 *
 * A slot is one word {generation, live, killed, pins} and the fields beside it. A look-up is one
 * compare-and-swap, which pins the slot; a pinned object stays in memory. An object that is
 * destroyed while calls are inside ends with the last of them. Slots are never given back to the
 * system: the table (64 bytes for each object alive at the same time; the first OPI_SLOTS are part
 * of the library) belongs to the process and not to a context.
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
  OPI_HANDLE_SEQUENCE = 11,
  OPI_HANDLE_KINDS = 12
};
enum { OPI_SLOTS = 1024 /* of one chunk of the table */ };

typedef void (*opi_handle_end_fn)(void *object);

typedef struct opi_handle_entry {
  _Alignas(64) _Atomic uint64_t word; /* generation, live, killed, pins; 0: never used */
  void *object;
  opi_handle_end_fn end;  /* called once the handle is destroyed and no call is inside */
  _Atomic uint64_t owner; /* handle of the context, for its log */
  _Atomic uint64_t since; /* the generation before the taker's first */
  uint32_t index;
  _Atomic uint32_t next; /* index + 1 of the next free slot */
  _Atomic int32_t pid;   /* the process that took it */
  uint16_t kind;
  uint16_t kept; /* 1: the taker gives the slot back; 0: the end of its handle does */
} opi_handle_entry;

/* A call that is inside an object. */
typedef struct opi_entry {
  opi_handle_entry *slot;
  void *object;
} opi_entry;

/* Takes a slot for `object`, which may arm one handle after another in it and gives it back at the
 * end. NULL: no memory, or 2^24 objects are alive. [any-thread] */
opi_handle_entry *opi_handle_slot_take(uint32_t kind, void *object, opi_handle_end_fn end,
                                       uint64_t owner, opipe_error *err);
/* Makes a new handle; earlier ones of the slot are stale. The slot must not be live. */
uint64_t opi_handle_slot_arm(opi_handle_entry *slot);
/* Makes the handle stale without ending the object; does nothing if it is stale. */
void opi_handle_slot_disarm(opi_handle_entry *slot);
/* Blocks until at most `n` calls are inside. */
void opi_handle_slot_drain(opi_handle_entry *slot, uint32_t n);
void opi_handle_slot_give(opi_handle_entry *slot); /* disarmed, nobody inside; accepts NULL */

/* Makes a handle whose slot lives as long as it does. If that fails, `end` is called as well. */
opipe_status opi_handle_new(uint32_t kind, void *object, opi_handle_end_fn end, uint64_t owner,
                            uint64_t *out_handle, opipe_error *err);

/* Enters the object behind `handle`. `call` names the function in messages. Errors: INVALID (NULL,
 * another kind, no handle at all), STATE (destroyed; opened in another process). [any-thread] */
opipe_status opi_handle_enter(const void *handle, uint32_t kind, const char *call,
                              opi_entry *out_entry, opipe_error *err);
void opi_handle_leave(const opi_entry *entry); /* ends an object that was destroyed meanwhile */
/* Makes the pinned handle stale; false: another thread did so first. The object ends with the last
 * unpin. */
bool opi_handle_kill(const opi_entry *entry);
/* Was the handle made by the process that this one was forked from? */
bool opi_handle_inherited(const void *handle);
/* The context that a handle belongs to, or belonged to if its slot still has the same taker. 0:
 * unknown. */
uint64_t opi_handle_owner(const void *handle);

/* Handles cross the API as pointers that are never dereferenced. */
static inline void *opi_handle_pointer(uint64_t handle) {
  return (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr) */
}

#endif /* OPI_HANDLES_H */
