/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's device: opened with the session, its memory charged to the budget. */
#ifndef OPI_RANK_H
#define OPI_RANK_H

#include "runtime/device/pinned.h"
#include "runtime/device/setup.h"

/* Memory of a rank's device, charged to the budget. */
typedef struct opi_block {
  opipe_buffer *buffer; /* NULL: none */
  opipe_memory *memory; /* its registration with the rank's endpoint; NULL: no region travels */
  char *host;           /* of a boundary buffer; NULL: none */
  void *wire_data;      /* memory of the transport's that the buffer was made of; NULL: none */
  uint64_t n_bytes;
} opi_block;

typedef struct opi_rank_arena {
  opi_block block;   /* none: freed */
  uint32_t n_shapes; /* bound to it */
} opi_rank_arena;
enum { OPI_ARENAS = 32 /* an arena is made only when a shape needs more than all before */ };

/* Staging memory. When it grows a rank may still use the smaller one, so all are kept. */
typedef struct opi_staging {
  struct opi_staging *next;
  opi_pinned memory;
} opi_staging;

/* Queues to the host and back (mover.h). */
typedef struct opi_mover {
  opipe_queue *out, *in; /* NULL: the plan offloads nothing */
  opipe_event *ready;    /* of the rank's queue: what they wait for */
} opi_mover;

struct opi_import; /* compiled/ */
struct opi_worker; /* executor/ */

typedef struct opi_rank {
  opi_setup *setup; /* NULL: the rank is in another session */
  uint32_t index;
  uint32_t place; /* in setup->here */
  const opipe_backend *backend;
  opipe_instance *instance;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event; /* NULL: the device is synchronous */
  opi_mover mover;
  uint32_t device_flags;
  uint32_t alignment;
  bool has_kernels;               /* the plan's table of kernels was given to the device */
  int32_t device_type, device_id; /* DLPack's, of tensors that it takes; 0: host memory only */
  opipe_endpoint *endpoint;
  opipe_params *params; /* NULL: the model has no parameters, or the session trains */
  /* tensor groups: the rank's own sources, with parts that are packed for it, in memory of the
   * device or, if that is none of the host's, in the host's */
  opipe_param_source *sources; /* NULL: those of the plan */
  opi_block packed;
  char *packed_host;
  uint64_t packed_host_bytes;
  uint64_t charged_bytes; /* to the budget */
  uint64_t wire_bytes;    /* of the transport's memory; the device counts none of it */
  /* under the shapes' submit_lock */
  opi_rank_arena arenas[OPI_ARENAS];
  uint32_t n_arenas;
  struct opi_import *imports; /* handles of hosts */
  uint32_t n_imports;
  uint64_t staging_bytes;
  opi_staging *stagings;          /* all, for freeing */
  _Atomic(opi_staging *) staging; /* the latest; NULL: plain host memory */
  struct opi_worker *worker;      /* its thread's state */
} opi_rank;

/* The rank that does the work of the session as a whole, such as looking at held requests. */
static inline opi_rank *opi_session_first(const opi_setup *setup) {
  return &setup->ranks[setup->here[0]];
}
static inline const opi_backend_ref *opi_rank_backend(const opi_rank *rank) {
  return &rank->setup->env.backends[rank->index];
}

/* These call a slot of the rank's backend or of the transport; see OPI_ASK. */
#define OPI_ASK_RANK(rank, slot, err, ...) \
  OPI_ASK("backend", &(rank)->setup->env.backends[(rank)->index], slot, err, __VA_ARGS__)
#define OPI_ASK_WIRE(fixed, slot, err, ...) \
  OPI_ASK("transport", &(fixed)->env.transport, slot, err, __VA_ARGS__)
#define OPI_MAKE_RANK(rank, slot, out, err, ...) \
  OPI_MAKE("backend", &(rank)->setup->env.backends[(rank)->index], slot, out, err, __VA_ARGS__)
#define OPI_MAKE_WIRE(fixed, slot, out, err, ...) \
  OPI_MAKE("transport", &(fixed)->env.transport, slot, out, err, __VA_ARGS__)
#define OPI_POLL_WIRE(fixed, slot, err, ...) \
  OPI_POLL("transport", &(fixed)->env.transport, slot, err, __VA_ARGS__)

/* Host address of a buffer of the rank's device, never NULL. */
static inline opipe_status opi_buffer_host(const opi_rank *rank, opipe_buffer *buffer,
                                           void **out_data, opipe_error *err) {
  *out_data = NULL;
  OPI_TRY(OPI_ASK_RANK(rank, buffer_host, err, buffer, out_data));
  return *out_data != NULL
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID,
                        "backend '%s': a buffer of a device with host memory has none",
                        opi_rank_backend(rank)->id);
}

/* ---- memory ---- */

/* Charges the budget. Bytes that are not discharged are released with the rank. */
opipe_status opi_rank_charge(opi_rank *rank, uint64_t n_bytes, const char *what, opipe_error *err);
void opi_rank_discharge(opi_rank *rank, uint64_t n_bytes);
/* Charges memory, then takes it; 0 bytes take nothing. kind: OPIPE_BUFFER_*; messages say
 * `what`. */
opipe_status opi_rank_take(opi_rank *rank, uint64_t n_bytes, uint32_t kind, const char *what,
                           opi_block *out_block, opipe_error *err);
/* Regions of the block may be sent and received from now on. Does nothing without an endpoint, as
 * in the reference. */
opipe_status opi_rank_register(const opi_rank *rank, opi_block *block, opipe_error *err);
/* The streams that use the block must be closed. */
void opi_rank_give(opi_rank *rank, opi_block *block);

/* ---- programs ---- */

opipe_status opi_rank_give_kernels(opi_rank *rank, opipe_error *err);
/* flags: added to the session's. */
opipe_status opi_rank_compile(const opi_rank *rank, const opipe_graph *graph, uint32_t stage,
                              uint32_t flags, opipe_program **out_program,
                              opipe_program_info *out_info, opipe_error *err);
opipe_status opi_rank_bind(const opi_rank *rank, uint32_t stage, const opipe_bind_params *params,
                           opipe_binding **out_binding, opipe_error *err);
/* Waits for a queue of the rank's device with `event` (NULL: the device is synchronous), and
 * returns late errors. Calls `watch` now and then meanwhile. */
opipe_status opi_queue_sync(const opi_rank *rank, opipe_queue *queue, opipe_event *event,
                            opipe_error *err);
static inline opipe_status opi_rank_sync(const opi_rank *rank, opipe_error *err) {
  return opi_queue_sync(rank, rank->queue, rank->event, err);
}
/* Waits, at most for the watchdog's time, until messages can use what was opened on the ranks'
 * endpoints. */
opipe_status opi_session_ready(const opi_setup *setup, opipe_error *err);

/* ---- tensors ---- */

typedef struct opi_span {
  uint64_t start_ns, end_ns; /* 0: not yet */
} opi_span;

/* Staging memory for tensors of up to n_bytes, unless the device is plain host memory. On
 * asynchronous devices it holds OPI_STAGED of them, or as many as fit into OPI_STAGING_BYTES, but
 * at least two. Under submit_lock. */
opipe_status opi_rank_reserve_staging(opi_rank *rank, uint64_t n_bytes, opipe_error *err);
static inline char *opi_rank_staging(const opi_rank *rank) {
  opi_staging *staging = atomic_load_explicit(&rank->staging, memory_order_acquire);
  return staging == NULL ? NULL : staging->memory.data;
}
/* For synchronous devices. Write copies a view of host memory into a region, whose address is
 * `host` where it has one. Read finds a region's bytes, in place or in the rank's staging memory.
 */
opipe_status opi_rank_write(opi_rank *rank, const opi_view *view, const opipe_region *region,
                            char *host, opipe_error *err);
opipe_status opi_rank_read(opi_rank *rank, const opipe_region *region, char *host,
                           const char **out_data, opipe_error *err);

/* ---- the host's border (border.c) ---- */

/* Check a tensor's place and type, and a fence. Errors name tensor `name`. */
opipe_status opi_check_tensor(const opi_setup *setup, const char *name, const opipe_tensor *tensor,
                              uint32_t dtype, opipe_error *err);
opipe_status opi_check_fence(const opi_setup *setup, const char *name, const opipe_fence *fence,
                             opipe_error *err);
/* Has the host set its flag? True for fences of every other kind. */
bool opi_fence_set(const opipe_fence *fence);

#endif /* OPI_RANK_H */
