/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and links as plans know them: opened plugins, a rank's device as requested, facts about
 * it, and the transport's link.
 */
#ifndef OPI_PLAN_DEVICE_H
#define OPI_PLAN_DEVICE_H

#include <string.h>

#include "loader/passes/passes.h"

#include <opipe/schedule.h>
#include <opipe/transport.h>

/* Opened plugins as resolved by the caller (abi/api). Borrowed. */
typedef struct opi_backend_ref {
  const opipe_backend *table;
  opipe_instance *self;
  const char *id;
} opi_backend_ref;
typedef struct opi_schedule_ref {
  const opipe_schedule *table;
  const opipe_schedule_cells *cells; /* of the published table; NULL: none */
  opipe_instance *self;
  const char *id;
} opi_schedule_ref;
typedef struct opi_transport_ref {
  const opipe_transport *table;
  opipe_instance *self;
  const char *id;
} opi_transport_ref;

/* Checked answers of a backend; nothing else may trust its numbers. Errors: the plugin's own;
 * INVALID. opi_device_ask: the alignment is a power of two (at least 1), rates are numbers (0:
 * unknown). opi_program_ask: the arena is below 2^48 bytes and contains the workspace.
 * opi_layouts_ask: lists, in the arena, layouts of parameters below n_params with sizes below 2^48
 * bytes; with `gradients`, those of the program's accumulators. */
opipe_status opi_device_ask(const opi_backend_ref *backend, uint32_t index,
                            opipe_device_info *out_info, opipe_error *err);
opipe_status opi_program_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opipe_program_info *out_info, opipe_error *err);
opipe_status opi_layouts_ask(const opi_backend_ref *backend, const opipe_program *program,
                             uint32_t n_params, bool gradients, opi_arena *arena,
                             opipe_param_layout **out_list, uint32_t *out_count, opipe_error *err);

/* Callback that sees each program of a plan once it is compiled. The program remains the caller's.
 */
typedef struct opi_program_visitor {
  opipe_status (*visit)(void *ctx, uint32_t rank, const opi_backend_ref *backend,
                        opipe_device *device, opipe_program *program, opipe_error *err);
  void *ctx;
} opi_program_visitor;

/* A rank's device as the user requested it ("cpu,memory=300MiB,threads=1"), with the properties
 * that the plan depends on. A device with other properties cannot run the plan. */
typedef struct opi_device_spec {
  const char *kind;      /* plugin id */
  const char *options;   /* for the backend; "" if none */
  uint64_t memory_bytes; /* 0: all that the device has */
  uint32_t index;        /* of the backend's devices */
  uint32_t threads;      /* 0: backend's choice */
  uint32_t alignment;    /* of regions, a power of two; 0: unknown, any will do */
  uint32_t flags;        /* OPIPE_DEVICE_* */
  uint32_t domain;       /* devices with host memory share it within a domain */
  uint32_t memory_with; /* memory_bytes is one cap shared with an earlier rank: that rank's number +
                           1; 0: not shared with an earlier one */
  double host_bytes_per_ns; /* plans that offload: each way between its memory and the host's; 0:
                               unknown. No part of the decision */
} opi_device_spec;

/* Bytes per ns each way between its memory and the host's, of which 16 are assumed if it declares
 * none. */
static inline double opi_device_host_rate(const opi_device_spec *device) {
  return device->host_bytes_per_ns > 0 ? device->host_bytes_per_ns : 16;
}

/* True if a and b are the same device, with the same memory. */
static inline bool opi_is_one_device(const opi_device_spec *a, const opi_device_spec *b) {
  return a->index == b->index && a->domain == b->domain && strcmp(a->kind, b->kind) == 0;
}

/* The first of the ranks that share a cap with `rank`. */
static inline uint32_t opi_cap_holder(const opi_device_spec *devices, uint32_t rank) {
  return devices[rank].memory_with == 0 ? rank : devices[rank].memory_with - 1;
}

/* Facts about a device beyond its spec. They come from its backend, or from a description by the
 * caller; then no plugin is opened and bytes are estimates. Rates are nominal.
 */
typedef struct opi_device_facts {
  double flops; /* fp32 operations per second of the whole device; 0: unknown */
  double fp64_flops, fp16_flops, bf16_flops; /* 0: as `flops` */
  double bandwidth;                          /* bytes per second of its memory; 0: unknown */
  double launch_ns;                          /* fixed cost of one node */
  uint64_t memory_bytes;                     /* as the device reports; 0: unknown, or described */
  uint32_t max_threads; /* most compute threads that make sense; 0: not applicable */
  bool described;
} opi_device_facts;

/* Appends a device's options without `kernels`: the choice of kernels is no part of the decision,
 * because results and layouts do not depend on it. device.c */
void opi_options_decided(const char *options, opi_text *out_text);
/* Operations per second of a type; 0: unknown. device.c */
double opi_device_rate(const opi_device_facts *facts, uint32_t dtype);
/* The type whose rate applies to a node: that of its first float input. device.c */
uint32_t opi_node_type(const opi_graph *graph, const opi_node *node);
/* Modelled time of a node of type `dtype` on `threads` of the device's threads (0: all). device.c
 */
double opi_device_ns(const opi_device_facts *facts, uint32_t threads, uint32_t dtype, double flops,
                     double bytes);

/* A transport's link, as declared with the plan's options. */
typedef struct opi_link {
  double latency_ns;
  double bytes_per_ns; /* 0: passed by address, or no limit */
  uint32_t rule;       /* OPIPE_RULE_* */
  uint32_t thread_rule, flags, max_ranks;
  bool queues; /* GROUPED: batches are queued with the work of asynchronous devices (recv_after) */
} opi_link;
/* Modelled time of one message between ranks. */
uint64_t opi_link_ns(const opi_link *link, uint64_t n_bytes);
/* When a message of a stream arrives whose both ends are there at `at`. Where the transport has a
 * bandwidth, messages of a stream leave one after the other. *io_free: when the last one has left.
 */
double opi_link_pass(const opi_link *link, double at, uint64_t n_bytes, double *io_free);

#endif /* OPI_PLAN_DEVICE_H */
