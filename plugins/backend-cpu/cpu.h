/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's own objects: instance, device, pools of metadata, queues.
 *
 * A device is a cap on memory, a choice of kernels and a team of threads. It is synchronous: when a
 * call returns, its work is done. Device memory (buffers, packed parameters) is counted by the
 * device's meter; metadata (programs, bindings) comes from pools and is not device memory.
 */
#ifndef OPIPE_BACKEND_CPU_CPU_H_
#define OPIPE_BACKEND_CPU_CPU_H_

#include <opipe/helpers.h>

#include "kernels/kernels.h"

struct opipe_instance {
  const opipe_host *host;
};

typedef enum cpu_mode {
  CPU_MODE_REFERENCE = 0, /* plain kernels only */
  CPU_MODE_FAST = 1       /* `isa` where a fast kernel exists */
} cpu_mode;

struct opipe_device {
  const opipe_host *host;
  const opipe_host_pages *pages; /* NULL: the host has no such service */
  opipe_meter meter;
  cpu_mode mode;
  bool copies; /* mapped=0: no weight is used where the host has it */
  cpu_isa isa;
  cpu_dots_kind dots; /* bf16=: products of bf16 by bf16 */
  cpu_exec exec;      /* kernels of isa, team of the device's threads */
  void *team_memory;
  size_t team_bytes;
  int32_t threads;
  uint32_t team_busy; /* 1 while a run or a packing uses the team */
};

/* The device's kernels with its team, or without it while somebody else uses that: queues of one
 * device may run at once. Results do not depend on the number of threads. */
static inline cpu_exec cpu_take_exec(opipe_device *device) {
  cpu_exec exec = device->exec;
  uint32_t idle = 0;
  if (exec.team != NULL && !__atomic_compare_exchange_n(&device->team_busy, &idle, 1u, false,
                                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    exec.team = NULL;
  return exec;
}

static inline void cpu_give_exec(opipe_device *device, const cpu_exec *exec) {
  if (exec->team != NULL)
    __atomic_store_n(&device->team_busy, 0u, __ATOMIC_RELEASE);
}

/* Products of bf16 by bf16; NULL: in fp32. */
static inline const cpu_dots *cpu_device_dots(const opipe_device *device) {
  return device->mode == CPU_MODE_FAST ? cpu_dots_get(device->dots) : NULL;
}

/* Tells the host that a part of a source has been read: it need not stay in memory. */
static inline void cpu_drop_pages(const opipe_device *device, const void *data, uint64_t n_bytes) {
  if (device->pages != NULL && n_bytes > 0)
    device->pages->drop(device->host->ctx, data, n_bytes);
}

struct opipe_buffer {
  opipe_device *device;
  void *data;
  uint64_t n_bytes;
  uint32_t kind;
  bool imported; /* the memory is somebody else's */
};

struct opipe_queue {
  opipe_device *device;
};

struct opipe_event {
  opipe_device *device;
  opipe_sync_event done;
};

extern const opipe_backend cpu_backend_table;

/* ---- metadata ---- */

/* Allocates for what lives and dies together. Zeroed, 64-byte aligned blocks. */
typedef struct cpu_chunk cpu_chunk;
typedef struct cpu_pool {
  const opipe_host *host;
  cpu_chunk *head;
} cpu_pool;

/* A point to which cpu_pool_rewind goes back. */
typedef struct cpu_mark {
  cpu_chunk *head;
  size_t used;
} cpu_mark;

void cpu_pool_init(cpu_pool *pool, const opipe_host *host);
void cpu_pool_release(cpu_pool *pool);
/* NULL when out of memory or n * size overflows; n * size = 0 gives a valid pointer. */
void *cpu_pool_array(cpu_pool *pool, uint64_t n, size_t size);
cpu_mark cpu_pool_mark(const cpu_pool *pool);
/* Frees what was allocated since the mark. */
void cpu_pool_rewind(cpu_pool *pool, cpu_mark mark);

#define CPU_POOL_ARRAY(pool, type, n) ((type *)cpu_pool_array((pool), (n), sizeof(type)))

/* Zeroed single object from the host, freed by cpu_release with the same size. */
void *cpu_acquire(const opipe_host *host, size_t n_bytes, const char *what, opipe_error *err);
void cpu_release(const opipe_host *host, void *object, size_t n_bytes);

static inline uint64_t cpu_align_up(uint64_t n, uint64_t align) {
  return (n + align - 1) & ~(align - 1);
}

/* ---- slots of the backend table, by file ---- */

opipe_status cpu_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err);
opipe_status cpu_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                              opipe_error *err);
opipe_status cpu_device_open(opipe_instance *self, const opipe_device_params *params,
                             opipe_device **out_device, opipe_error *err);
void cpu_device_close(opipe_device *device);
opipe_status cpu_device_usage(opipe_device *device, opipe_device_usage *io_usage, opipe_error *err);

opipe_status cpu_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                              opipe_buffer **out_buffer, opipe_error *err);
void cpu_buffer_free(opipe_buffer *buffer);
opipe_status cpu_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                               opipe_buffer **out_buffer, opipe_error *err);
opipe_status cpu_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err);
void cpu_prefer_huge_pages(void *data, uint64_t n_bytes);
/* Address of a region, checked against its buffer; `what` names it in the message. */
opipe_status cpu_region_data(const opipe_region *region, const char *what, void **out_data,
                             opipe_error *err);

opipe_status cpu_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err);
void cpu_queue_close(opipe_queue *queue);
opipe_status cpu_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err);
void cpu_event_destroy(opipe_event *event);
opipe_status cpu_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status cpu_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status cpu_event_poll(opipe_event *event, opipe_error *err);
opipe_status cpu_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err);
opipe_status cpu_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                       opipe_error *err);
opipe_status cpu_read(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err);
opipe_status cpu_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err);

opipe_status cpu_support(opipe_device *device, const opipe_graph *graph, opipe_support *out_support,
                         opipe_error *err);
opipe_status cpu_compile(opipe_device *device, const opipe_compile_params *params,
                         opipe_program **out_program, opipe_error *err);
void cpu_program_free(opipe_program *program);
opipe_status cpu_program_info(const opipe_program *program, opipe_program_info *io_info,
                              opipe_error *err);
opipe_status cpu_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                uint32_t *io_count, opipe_error *err);

opipe_status cpu_params_create(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                               opipe_params **out_params, opipe_error *err);
void cpu_params_free(opipe_params *params);
opipe_status cpu_params_prepare(opipe_params *params, const opipe_program *program,
                                opipe_error *err);
opipe_status cpu_params_clone(const opipe_params *params, opipe_params **out_params,
                              opipe_error *err);
opipe_status cpu_params_write(opipe_params *params, uint32_t slot, const void *src,
                              uint64_t n_bytes, opipe_error *err);
opipe_status cpu_params_read(const opipe_params *params, uint32_t slot, void *dst, uint64_t n_bytes,
                             opipe_error *err);
opipe_status cpu_params_commit(opipe_params *params, opipe_error *err);

opipe_status cpu_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *err);
opipe_status cpu_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                     uint32_t n, opipe_params **out_params, opipe_error *err);
opipe_status cpu_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                  opipe_error *err);
opipe_status cpu_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                               opipe_error *err);
opipe_status cpu_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                opipe_error *err);
opipe_status cpu_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                opipe_error *err);
opipe_status cpu_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                               const opipe_region *dst, opipe_error *err);
opipe_status cpu_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                               const opipe_region *src, opipe_error *err);
opipe_status cpu_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err);
opipe_status cpu_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                     opipe_error *err);
opipe_status cpu_sum_squares(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                             opipe_error *err);
opipe_status cpu_update(opipe_queue *queue, const opipe_update *update, opipe_error *err);
opipe_status cpu_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                     const opipe_region *src, uint32_t n, opipe_error *err);

opipe_status cpu_bind(opipe_device *device, const opipe_bind_params *params,
                      opipe_binding **out_binding, opipe_error *err);
void cpu_binding_free(opipe_binding *binding);
opipe_status cpu_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                     uint32_t n_scalars, opipe_error *err);
opipe_status cpu_program_places(const opipe_program *program, uint32_t *out_ends, uint32_t *out_n,
                                opipe_error *err);
opipe_status cpu_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                          uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err);

#endif
