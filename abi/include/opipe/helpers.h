/* SPDX-License-Identifier: Apache-2.0 */
/* For plugin writers: small functions that most plugins need. Header only; nothing here is part of
 * the ABI, and every plugin gets its own copy.
 *
 *   errors        opipe_fail
 *   element types opipe_dtype_bits, opipe_dtype_name, opipe_shape_elems, opipe_tensor_bytes
 *   attributes    opipe_attr_find, _int, _float, _string, _ints
 *   broadcasting  opipe_broadcast_strides, opipe_dense_strides
 *   options       opipe_option_next: walks "key=value,key=value"
 *   memory        opipe_zeroed, opipe_free: from the host's allocator
 *   host devices  opipe_meter (cap and accounting of memory), opipe_host_alloc, opipe_host_free,
 *                 opipe_sync_event (event of a device whose calls return when their work is done)
 *   late errors   opipe_late: errors of a queue, and those that an event has taken over
 *   arguments     opipe_param_layout_put, opipe_check_flags, opipe_check_graph, opipe_check_sources
 *   schedules     opipe_layout_plain, opipe_layout_line, opipe_emit_rising; more in orders.h
 *   descriptors   OPIPE_STATELESS_PLUGIN
 *
 * Thread rule: functions work only on their arguments, unless stated otherwise.
 */
#ifndef OPIPE_HELPERS_H
#define OPIPE_HELPERS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

/* Writes status and message to `err` (NULL is allowed) and returns `status`. */
OPIPE_PRINTF(3, 4)
static inline opipe_status opipe_fail(opipe_error *err, opipe_status status, const char *fmt, ...) {
  if (err != NULL) {
    va_list args;
    err->status = status;
    err->domain = OPIPE_DOMAIN_NONE;
    err->native = 0;
    va_start(args, fmt);
    (void)vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
  }
  return status;
}

/* ---- element types ---- */

/* Bits of one element; 0 for unknown types and strings. */
static inline uint32_t opipe_dtype_bits(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->bits;
}

/* "float32", "int64", ...; "unknown" for anything else. */
static inline const char *opipe_dtype_name(uint32_t dtype) {
  const bool known = dtype != OPIPE_UNDEFINED && dtype < (uint32_t)OPIPE_N_DTYPES;
  return known ? opipe_dtype_row_of(dtype)->name : "unknown";
}

/* Product of shape [rank]; 1 for rank 0. False on a negative dimension or when it exceeds int64. */
static inline bool opipe_shape_elems(const int64_t *shape, uint32_t rank, uint64_t *out_elems) {
  uint64_t n = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0 || __builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
      return false;
  }
  *out_elems = n;
  return true;
}

/* Dense bytes of a tensor; types below a byte are packed and rounded up. False on overflow and
 * unknown types. */
static inline bool opipe_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank,
                                      uint64_t *out_bytes) {
  const uint32_t bits = opipe_dtype_bits(dtype);
  uint64_t n = 0;
  if (bits == 0 || !opipe_shape_elems(shape, rank, &n))
    return false;
  if (bits < 8) {
    const uint32_t per_byte = 8 / bits;
    *out_bytes = n / per_byte + (n % per_byte != 0);
    return true;
  }
  return !__builtin_mul_overflow(n, (uint64_t)(bits / 8), out_bytes);
}

/* ---- attributes of a node ---- */

static inline const opipe_attr *opipe_attr_find(const opipe_node *node, const char *name) {
  for (uint32_t i = 0; i < node->n_attrs; ++i) {
    if (strcmp(node->attrs[i].name, name) == 0)
      return &node->attrs[i];
  }
  return NULL;
}

/* `fallback` when the attribute is absent or of another kind. */
static inline int64_t opipe_attr_int(const opipe_node *node, const char *name, int64_t fallback) {
  const opipe_attr *attr = opipe_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_INT ? attr->i : fallback;
}

static inline double opipe_attr_float(const opipe_node *node, const char *name, double fallback) {
  const opipe_attr *attr = opipe_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_FLOAT ? attr->f : fallback;
}

static inline const char *opipe_attr_string(const opipe_node *node, const char *name,
                                            const char *fallback) {
  const opipe_attr *attr = opipe_attr_find(node, name);
  return attr != NULL && attr->kind == OPIPE_ATTR_STRING ? (const char *)attr->data : fallback;
}

/* NULL and 0 when absent or of another kind. */
static inline const int64_t *opipe_attr_ints(const opipe_node *node, const char *name,
                                             uint32_t *out_n) {
  const opipe_attr *attr = opipe_attr_find(node, name);
  const bool found = attr != NULL && attr->kind == OPIPE_ATTR_INTS;
  *out_n = found ? attr->n : 0u;
  return found ? (const int64_t *)attr->data : NULL;
}

/* ---- broadcasting ---- */

/* Strides in elements of a dense row-major tensor. */
static inline void opipe_dense_strides(const int64_t *shape, uint32_t rank, int64_t *out_strides) {
  int64_t stride = 1;
  for (uint32_t i = rank; i > 0; --i) {
    out_strides[i - 1] = stride;
    stride *= shape[i - 1];
  }
}

/* Strides in elements with which a dense tensor of `shape` is read as one of `to`, aligned at the
 * last axis; 0 where it repeats. False when it does not broadcast to that shape. out [to_rank] */
static inline bool opipe_broadcast_strides(const int64_t *shape, uint32_t rank, const int64_t *to,
                                           uint32_t to_rank, int64_t *out_strides) {
  int64_t stride = 1;
  if (rank > to_rank)
    return false;
  for (uint32_t i = 0; i < to_rank; ++i) {
    const uint32_t axis = to_rank - 1 - i;
    const int64_t n = i < rank ? shape[rank - 1 - i] : 1;
    if (n != to[axis] && n != 1)
      return false;
    out_strides[axis] = n == 1 ? 0 : stride;
    stride *= n;
  }
  return true;
}

/* ---- options: "key=value,key=value" ---- */

/* Takes the next pair from *io_text. Returns 1: a pair was read; 0: the end; -1: malformed, or
 * longer than the buffers. A key without '=' has an empty value. */
static inline int opipe_option_next(const char **io_text, char *out_key, size_t key_room,
                                    char *out_value, size_t value_room) {
  const char *text = *io_text;
  if (text == NULL || *text == '\0')
    return 0;
  const size_t length = strcspn(text, ",");
  const char *equals = (const char *)memchr(text, '=', length);
  const size_t key_n = equals != NULL ? (size_t)(equals - text) : length;
  const size_t value_n = equals != NULL ? length - key_n - 1 : 0;
  if (key_n == 0 || key_n >= key_room || value_n >= value_room)
    return -1;
  memcpy(out_key, text, key_n);
  out_key[key_n] = '\0';
  if (value_n > 0)
    memcpy(out_value, equals + 1, value_n);
  out_value[value_n] = '\0';
  *io_text = text + length + (text[length] == ',');
  return 1;
}

/* ---- checks of arguments ---- */

/* Fills element `index` of a caller's array of layouts; the caller's struct_size is the distance
 * between elements. */
static inline void opipe_param_layout_put(opipe_param_layout *layouts, uint32_t index,
                                          uint32_t slot, uint64_t key, uint64_t n_bytes,
                                          uint64_t mapped_bytes) {
  opipe_param_layout *out =
      (opipe_param_layout *)(void *)((char *)layouts + (size_t)index * layouts->struct_size);
  out->slot = slot;
  out->key = key;
  out->n_bytes = n_bytes;
  out->mapped_bytes = mapped_bytes;
}

/* Refuses bits that this plugin does not know: OPIPE_E_UNSUPPORTED, naming field and value.
 * The message begins with `what`, as "compile: flags". */
static inline opipe_status opipe_check_flags(uint64_t flags, uint64_t known, const char *what,
                                             opipe_error *err) {
  return (flags & ~known) == 0
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s: 0x%llx, known are 0x%llx", what,
                          (unsigned long long)flags, (unsigned long long)known);
}

/* Refuses parts of a graph that newer hosts may send and this plugin would overlook: flags of
 * values and nodes, and roles and passes beyond those of types.h. OPIPE_E_UNSUPPORTED names the
 * value or node. For compile; `support` answers per node by itself. */
static inline opipe_status opipe_check_graph(const opipe_graph *graph, opipe_error *err) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->flags != 0 || value->role > OPIPE_VALUE_GRADIENT ||
        value->role == OPIPE_VALUE_STATE) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                        "value '%s' has role %u (known: up to %d) and flags 0x%x (known: 0)",
                        value->name, value->role, OPIPE_VALUE_GRADIENT, value->flags);
    }
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opipe_node *node = &graph->nodes[n];
    if (node->flags != 0 || node->pass > OPIPE_PASS_BACKWARD) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                        "node '%s' has pass %u (known: up to %d) and flags 0x%x (known: 0)",
                        node->name, node->pass, OPIPE_PASS_BACKWARD, node->flags);
    }
  }
  return OPIPE_OK;
}

/* The same check for the sources of a parameter set. */
static inline opipe_status opipe_check_sources(const opipe_param_source *sources, uint32_t n,
                                               opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    if (sources[i].flags != 0) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "parameter '%s' has flags 0x%x, known are 0",
                        sources[i].name, sources[i].flags);
    }
  }
  return OPIPE_OK;
}

/* ---- devices whose memory is the host's ---- */

/* Counts live bytes by kind (OPIPE_BUFFER_*) under a cap. Zero it, then set cap_bytes (0: none).
 * Its functions are [any-thread]. */
typedef struct opipe_meter {
  uint64_t cap_bytes;
  uint64_t total_bytes; /* of all kinds */
  uint64_t live_bytes[OPIPE_BUFFER_KINDS];
  uint64_t mapped_bytes;
  uint64_t peak_bytes; /* largest total */
} opipe_meter;

/* Takes n_bytes. OPIPE_E_LIMIT, with `what` and both numbers, if that would exceed the cap. */
static inline opipe_status opipe_meter_take(opipe_meter *meter, uint32_t kind, uint64_t n_bytes,
                                            const char *what, opipe_error *err) {
  uint64_t total = __atomic_load_n(&meter->total_bytes, __ATOMIC_RELAXED);
  uint64_t peak = __atomic_load_n(&meter->peak_bytes, __ATOMIC_RELAXED);
  if (kind >= OPIPE_BUFFER_KINDS) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: kind of memory %u, they go up to %d", what, kind,
                      OPIPE_BUFFER_KINDS - 1);
  }
  do {
    const uint64_t cap = meter->cap_bytes != 0 ? meter->cap_bytes : UINT64_MAX;
    if (total > cap || n_bytes > cap - total) {
      return opipe_fail(err, OPIPE_E_LIMIT,
                        "%s: %llu bytes asked for, %llu of the device's %llu bytes are in use",
                        what, (unsigned long long)n_bytes, (unsigned long long)total,
                        (unsigned long long)cap);
    }
  } while (!__atomic_compare_exchange_n(&meter->total_bytes, &total, total + n_bytes, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  while (total + n_bytes > peak &&
         !__atomic_compare_exchange_n(&meter->peak_bytes, &peak, total + n_bytes, true,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  (void)__atomic_add_fetch(&meter->live_bytes[kind], n_bytes, __ATOMIC_RELAXED);
  return OPIPE_OK;
}

static inline void opipe_meter_give(opipe_meter *meter, uint32_t kind, uint64_t n_bytes) {
  (void)__atomic_sub_fetch(&meter->live_bytes[kind], n_bytes, __ATOMIC_RELAXED);
  (void)__atomic_sub_fetch(&meter->total_bytes, n_bytes, __ATOMIC_RELAXED);
}

/* Counts bytes of host mappings that are used in place; `change` may be negative. */
static inline void opipe_meter_map(opipe_meter *meter, int64_t change) {
  (void)__atomic_add_fetch(&meter->mapped_bytes, (uint64_t)change, __ATOMIC_RELAXED);
}

/* Fills as much as the caller's struct_size holds. [any-thread] */
static inline opipe_status opipe_meter_read(const opipe_meter *meter, opipe_device_usage *io_usage,
                                            opipe_error *err) {
  opipe_device_usage full;
  const uint32_t size = io_usage->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes);
  if (size < OPIPE_END(opipe_device_usage, live_bytes))
    return opipe_fail(err, OPIPE_E_ABI, "device_usage: struct_size %u is too small", size);
  memset(&full, 0, sizeof full);
  full.struct_size = size;
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    full.live_bytes[kind] = __atomic_load_n(&meter->live_bytes[kind], __ATOMIC_RELAXED);
  full.mapped_bytes = __atomic_load_n(&meter->mapped_bytes, __ATOMIC_RELAXED);
  full.peak_bytes = __atomic_load_n(&meter->peak_bytes, __ATOMIC_RELAXED);
  memcpy(io_usage, &full, size < known ? size : known);
  return OPIPE_OK;
}

/* A size of 0 would make the host's allocator free, so an empty block takes one byte. */
static inline size_t opipe_at_least_one_(uint64_t n_bytes) {
  return n_bytes == 0 ? 1 : (size_t)n_bytes;
}

/* Zeroed memory from the host's allocator; what: for messages. n_bytes 0 also gives a pointer,
 * freed like any other. NULL: out of memory, *err says so (NOMEM). */
static inline void *opipe_zeroed(const opipe_host *host, const char *what, uint64_t n_bytes,
                                 size_t align, opipe_error *err) {
  void *data = host->realloc(host->ctx, NULL, 0, opipe_at_least_one_(n_bytes), align);
  if (data == NULL) {
    (void)opipe_fail(err, OPIPE_E_NOMEM, "%s: the host cannot provide %llu bytes", what,
                     (unsigned long long)n_bytes);
    return NULL;
  }
  return memset(data, 0, (size_t)n_bytes);
}

/* data may be NULL; n_bytes and align as at allocation. */
static inline void opipe_free(const opipe_host *host, void *data, uint64_t n_bytes, size_t align) {
  if (data != NULL)
    (void)host->realloc(host->ctx, data, opipe_at_least_one_(n_bytes), 0, align);
}

/* Device memory from the host's allocator, counted by the meter. *io_bytes: in, the size wanted;
 * out, the size taken, rounded up to `align` (a power of two). Size 0 takes one unit of `align`. */
static inline opipe_status opipe_host_alloc(const opipe_host *host, opipe_meter *meter,
                                            uint32_t kind, uint64_t *io_bytes, uint32_t align,
                                            void **out_data, opipe_error *err) {
  uint64_t n = *io_bytes != 0 ? *io_bytes : 1;
  if (n > (uint64_t)INT64_MAX - align) {
    return opipe_fail(err, OPIPE_E_INVALID, "buffer of %llu bytes: more than can be addressed",
                      (unsigned long long)n);
  }
  n = (n + align - 1) & ~((uint64_t)align - 1);
  const opipe_status status = opipe_meter_take(meter, kind, n, "device memory", err);
  if (status < 0)
    return status;
  void *data = host->realloc(host->ctx, NULL, 0, (size_t)n, align);
  if (data == NULL) {
    opipe_meter_give(meter, kind, n);
    return opipe_fail(err, OPIPE_E_NOMEM, "device memory: the host cannot provide %llu bytes",
                      (unsigned long long)n);
  }
  *io_bytes = n;
  *out_data = data;
  return OPIPE_OK;
}

/* n_bytes: *io_bytes as opipe_host_alloc set it; data may be NULL. */
static inline void opipe_host_free(const opipe_host *host, opipe_meter *meter, uint32_t kind,
                                   void *data, uint64_t n_bytes, uint32_t align) {
  if (data != NULL) {
    host->realloc(host->ctx, data, (size_t)n_bytes, 0, align);
    opipe_meter_give(meter, kind, n_bytes);
  }
}

/* Event of a device whose calls return when their work is done. It is complete from the start,
 * since an event that was never recorded has nothing to wait for. */
typedef struct opipe_sync_event {
  uint64_t n_recorded; /* release order: a reader sees the work before it */
} opipe_sync_event;

static inline void opipe_sync_event_record(opipe_sync_event *event) {
  __atomic_add_fetch(&event->n_recorded, 1, __ATOMIC_RELEASE);
}

static inline opipe_status opipe_sync_event_poll(const opipe_sync_event *event) {
  (void)__atomic_load_n(&event->n_recorded, __ATOMIC_ACQUIRE);
  return OPIPE_OK;
}

/* ---- late errors ---- */

/* Late errors by the rules of backend.h: those of a queue that no event has taken over, or those of
 * an event. Initialise with zeros. One thread at a time, as for the queue; opipe_late_record writes
 * an event's, which is only read afterwards. */
typedef struct opipe_late {
  opipe_error error; /* status 0: none */
} opipe_late;

static inline bool opipe_late_is_data(opipe_status status) {
  return status == OPIPE_E_INVALID;
}

/* Notes that a run or copy of the queue failed with `status`; why: the error, NULL: no message. */
static inline void opipe_late_add(opipe_late *queue, opipe_status status, const opipe_error *why) {
  const opipe_status held = queue->error.status;
  if (status >= 0 || (held < 0 && (opipe_late_is_data(status) || !opipe_late_is_data(held))))
    return;
  memset(&queue->error, 0, sizeof queue->error);
  if (why != NULL) {
    memcpy(&queue->error, why, sizeof queue->error);
    queue->error.message[sizeof queue->error.message - 1] = '\0';
  }
  queue->error.status = status;
}

/* Records an event: it takes over the queue's errors. A device error also stays with the queue. */
static inline void opipe_late_record(opipe_late *queue, opipe_late *event) {
  memcpy(event, queue, sizeof *event);
  if (opipe_late_is_data(queue->error.status))
    queue->error.status = OPIPE_OK;
}

/* The answer of a completed event, the same every time. */
static inline opipe_status opipe_late_answer(const opipe_late *event, opipe_error *err) {
  return event->error.status >= 0
             ? OPIPE_OK
             : opipe_fail(err, event->error.status, "%s", event->error.message);
}

/* ---- schedules ---- */

/* Fills all but instance_rank: one replica, slice, part and weight version, sums at the end.
 * OPIPE_E_LIMIT when `instance_room` is too small; the library then makes room and calls again.
 * name: for messages. */
static inline opipe_status opipe_layout_plain(opipe_layout *io_layout, uint32_t n_ranks,
                                              uint32_t n_stages, const char *name,
                                              opipe_error *err) {
  io_layout->n_ranks = n_ranks;
  io_layout->n_stages = n_stages;
  io_layout->n_replicas = 1;
  io_layout->n_slices = 1;
  io_layout->n_parts = 1;
  io_layout->versions = OPIPE_VERSIONS_ONE;
  io_layout->sync = OPIPE_SYNC_END;
  io_layout->in_flight = 0;
  io_layout->slice_lengths = NULL;
  return n_stages <= io_layout->instance_room
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_LIMIT,
                          "schedule '%s' needs room for %u instances, %u were given", name,
                          n_stages, io_layout->instance_room);
}

/* Layout of one stage per rank, stage s on rank s; mode forward. name: for messages. */
static inline opipe_status opipe_layout_line(const opipe_layout_request *request,
                                             opipe_layout *io_layout, const char *name,
                                             opipe_error *err) {
  const uint32_t n = request->n_stages != 0 ? request->n_stages : request->n_ranks;
  if (request->mode != OPIPE_MODE_FORWARD) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "schedule '%s' has no form for mode %u; it has mode %u (forward)", name,
                      request->mode, (unsigned)OPIPE_MODE_FORWARD);
  }
  if (request->n_stages != 0 && request->n_ranks != 0 && request->n_stages != request->n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule '%s' puts one stage on each rank: %u stages on %u ranks do not fit",
                      name, request->n_stages, request->n_ranks);
  }
  const opipe_status status = opipe_layout_plain(io_layout, n, n, name, err);
  for (uint32_t stage = 0; stage < n && status >= 0; ++stage)
    io_layout->instance_rank[stage] = stage;
  return status;
}

/* Emits the forward of micro-batch `microbatch` in `stage`, for a layout of one stage per rank. */
static inline opipe_status opipe_emit_forward(opipe_emit_fn emit, void *emit_ctx, uint32_t stage,
                                              uint32_t microbatch, opipe_error *err) {
  opipe_action forward;
  memset(&forward, 0, sizeof forward);
  forward.rank = stage;
  forward.stage = stage;
  forward.microbatch = microbatch;
  forward.pass = OPIPE_PASS_FORWARD;
  return emit(emit_ctx, &forward, 1, err);
}

/* Emits every rank's micro-batches in rising order. */
static inline opipe_status opipe_emit_rising(const opipe_schedule_problem *problem,
                                             opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  for (uint32_t rank = 0; rank < problem->layout->n_ranks; ++rank) {
    for (uint32_t m = 0; m < problem->n_microbatches; ++m) {
      const opipe_status status = opipe_emit_forward(emit, emit_ctx, rank, m, err);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

/* ---- descriptors ---- */

/* Descriptor of a plugin without state: interface `interface_id_` returns `&table_`. Texts are
 * string literals. */
#define OPIPE_STATELESS_PLUGIN(kind_, id_, version_, license_, summary_, interface_id_, table_) \
  struct opipe_instance {                                                                       \
    int unused;                                                                                 \
  };                                                                                            \
  static opipe_status opipe_stateless_open(const opipe_host *host, opipe_instance **out_self,   \
                                           opipe_error *err) {                                  \
    static opipe_instance only;                                                                 \
    (void)host;                                                                                 \
    (void)err;                                                                                  \
    *out_self = &only;                                                                          \
    return OPIPE_OK;                                                                            \
  }                                                                                             \
  static void opipe_stateless_close(opipe_instance *self) {                                     \
    (void)self;                                                                                 \
  }                                                                                             \
  static const void *opipe_stateless_interface(opipe_instance *self, const char *id) {          \
    (void)self;                                                                                 \
    return strcmp(id, interface_id_) == 0 ? &(table_) : NULL;                                   \
  }                                                                                             \
  extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;                                   \
  const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(kind_, 0),                        \
                                            id_,                                                \
                                            version_,                                           \
                                            license_,                                           \
                                            summary_,                                           \
                                            opipe_stateless_open,                               \
                                            opipe_stateless_close,                              \
                                            opipe_stateless_interface}

#ifdef __cplusplus
}
#endif

/* A complete device in host memory, for plugins that ask for it. */
#ifdef OPIPE_HELPERS_HOST_DEVICE
#include "host_device.h"
#endif
#endif /* OPIPE_HELPERS_H */
