/* SPDX-License-Identifier: Apache-2.0 */
/* Inside backend-emulated: a device that stands on backend "cpu" and declares what it is not.
 *
 * Arithmetic is the inner backend's (or left out), memory is the inner one's under the declared
 * cap, time is modelled: a run occupies its queue from max(now, the queue is free) for the modelled
 * time, and events complete when the clock comes there. Calls return at once. Every object wraps
 * the inner one and knows its device, since most calls are given nothing else.
 *
 * Every call with a queue makes a `work` and hands it to emudev_do: it is done within the call, or,
 * where the device is asynchronous, later by the queue's thread. The instance's lock guards the
 * state of queues and events that both share.
 */
#ifndef OPIPE_BACKEND_EMULATED_H
#define OPIPE_BACKEND_EMULATED_H

#include <opipe/backend.h>
#include <opipe/helpers.h>
#include <opipe/threads.h>
#include <stdatomic.h>
#include <time.h>

/* Devices from HOST_DEVICES on have memory without host addresses. */
enum { HOST_DEVICES = 16, DEVICES = 32, STAGES_MOST = 256, SCALARS_MOST = 24, SOURCES_MOST = 16 };
enum { QUEUED_MOST = 65536, QUEUED_PLAIN = 4096 };

struct opipe_instance {
  const opipe_host *host;
  const opipe_backend *inner;
  opipe_instance *inner_self;
  pthread_mutex_t lock; /* guards the state shared by asynchronous queues and their callers */
};

/* One time for every program, or one for each stage of the plan. */
typedef struct times {
  uint64_t ns[STAGES_MOST];
  uint32_t n; /* 0: not given; 1: of every program; else by stage */
} times;

typedef struct options {
  uint64_t memory_bytes;         /* 0: what the opening says */
  times run;                     /* of every run; not given: by the passes or the rates */
  times pass[OPIPE_PASS_UPDATE]; /* of a run with nodes of that pass */
  double flops;                  /* per second; 0: not modelled */
  double bandwidth;              /* bytes per second; 0: not modelled */
  double host_bandwidth;         /* of write and read, bytes per second; 0: they take no time */
  bool compute;                  /* do the arithmetic */
  bool async;                    /* queues work by threads of their own */
  uint32_t queued_most;          /* operations that wait in an asynchronous queue */
  /* which one, counted from 1; 0: none */
  uint64_t fail_run, fail_late, stall_run, fail_alloc, fail_copy;
  uint64_t stall_ns;
  char inner[256]; /* options for the inner device */
} options;

struct opipe_device {
  opipe_instance *self;
  opipe_device *inner;
  options options;
  uint32_t index;
  _Atomic uint64_t n_runs, n_allocs, n_copies;
  _Atomic uint64_t host_bytes; /* of host_alloc */
  opipe_queue *queues;         /* the asynchronous ones that are open; lock */
};

struct opipe_buffer {
  opipe_device *device;
  opipe_buffer *inner;
};

/* One operation of a queue. Regions are the inner backend's, sets and bindings ours. */
typedef struct work work;
struct work {
  opipe_status (*act)(opipe_queue *queue, const work *w, opipe_error *err);
  opipe_region regions[4];
  opipe_binding *binding;
  opipe_params *params;
  opipe_event *event; /* recorded here */
  opipe_queue *other; /* waited for, until it has done its operation number `count` */
  const void *from;   /* host memory */
  void *to;
  const int64_t *scalars;
  const opipe_region *sources; /* of a sum: the inner backend's */
  uint64_t count;              /* of a run: its number on the device */
  uint64_t queued_ns;          /* clock at the call */
  uint64_t at_ns;              /* of a record that was done: clock when the event is complete */
  uint32_t slot, n_scalars, n_sources, dtype;
  uint32_t first_place, last_place; /* of a part of a run; last_place 0: the whole */
  bool at_once;                     /* takes no place in modelled time */
  union {
    opipe_update update;
    int64_t scalars[SCALARS_MOST];      /* where an asynchronous queue keeps them */
    opipe_region sources[SOURCES_MOST]; /* the same */
  } copied;
};

struct opipe_queue {
  opipe_instance *self;
  opipe_device *device;
  opipe_queue *inner;
  _Atomic uint64_t free_ns; /* clock when all work done so far has taken its time */
  opipe_late late;          /* of whoever does the work */
  /* asynchronous; lock */
  opipe_queue *next;         /* of the device's */
  work *ring;                /* [options.queued_most] number n is at n % queued_most */
  uint64_t n_queued, n_done; /* since it was opened */
  uint32_t n_users;          /* events recorded here, waits for it, its opener */
  uint32_t n_hurries;        /* modelled time is not waited for */
  bool closing;
  pthread_cond_t posted; /* the thread sleeps here */
  pthread_cond_t moved;  /* others do: an event has been recorded */
  pthread_t thread;
};

struct opipe_event {
  opipe_device *device;
  _Atomic uint64_t at_ns; /* clock when it is complete; written last */
  opipe_late late;
  bool timed;
  _Atomic uint64_t came_ns; /* clock when the queue came to its last record; 0: never recorded */
  /* of an asynchronous device; lock */
  opipe_queue *queue; /* recorded on it as operation number `place`; NULL: never */
  uint64_t place;
  uint32_t n_users; /* records on their way, its owner */
  bool pending;     /* the record has not been done */
};

struct opipe_program {
  opipe_device *device;
  opipe_program *inner;
  uint64_t time_ns;    /* modelled, of one run */
  uint64_t *places_ns; /* [n_places + 1] of its part up to a place; NULL: it has no parts */
  uint32_t *ends;      /* [n_params] places at which gradients are complete */
  uint32_t n_places, n_params;
};

struct opipe_params {
  opipe_device *device;
  opipe_params *inner;
  opipe_buffer *masters; /* [n] wrap the inner ones of params_master */
  uint32_t n;
};

struct opipe_binding {
  opipe_device *device;
  opipe_binding *inner;
  const opipe_params *params, *gradients; /* NULL: none */
  const opipe_program *program;
};

/* options.c: all strings are copied */
opipe_status emudev_options(const char *text, options *out, opipe_error *err);

/* device.c */
void *emudev_alloc(const opipe_device *device, size_t n_bytes); /* zeroed; NULL */
void emudev_free(const opipe_device *device, void *ptr, size_t n_bytes);
void emudev_give(const opipe_instance *self, void *ptr, size_t n_bytes); /* the same */
opipe_status emudev_nomem(size_t n_bytes, opipe_error *err);
opipe_status emudev_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err);
opipe_status emudev_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err);
opipe_status emudev_device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err);
void emudev_device_close(opipe_device *device);
opipe_status emudev_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                                 opipe_error *err);
opipe_status emudev_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                                 opipe_buffer **out_buffer, opipe_error *err);
void emudev_buffer_free(opipe_buffer *buffer);
opipe_status emudev_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                  opipe_buffer **out_buffer, opipe_error *err);
opipe_status emudev_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err);
opipe_region emudev_region(const opipe_region *region); /* the same of the inner buffer */

/* host.c */
opipe_status emudev_host_alloc(opipe_device *device, uint64_t n_bytes, void **out_data,
                               opipe_error *err);
void emudev_host_free(opipe_device *device, void *data);
opipe_status emudev_host_rate(opipe_device *device, double *out_rate, opipe_error *err);
/* Modelled time of a copy between the device and the host. */
uint64_t emudev_host_ns(const opipe_device *device, uint64_t n_bytes);

/* work.c */
/* The same under the lock, for an asynchronous queue. NOMEM: as many operations wait as the queue
 * has room for. */
opipe_status emudev_do(opipe_queue *queue, const work *w, opipe_error *err);
/* The same under the lock, of an asynchronous queue. */
opipe_status emudev_push(opipe_queue *queue, const work *w, opipe_error *err);
opipe_status emudev_thread_start(opipe_queue *queue, opipe_error *err);
void emudev_thread_end(opipe_queue *queue); /* once all that is queued has been done */
/* A user less, the last frees it; under the lock. */
void emudev_queue_drop(opipe_queue *queue);
void emudev_event_drop(opipe_event *event);

/* idle.c: what the caller of a [control] call promises of an object: no queued work uses it. If
 * some does, that is logged, and waited for. Fields that are NULL are not looked for. */
typedef struct target {
  const opipe_buffer *buffer; /* the inner one */
  const opipe_binding *binding;
  const opipe_params *params;
} target;
void emudev_expect_idle(opipe_device *device, const target *object, const char *call);

/* events.c */
opipe_status emudev_record_later(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status emudev_wait_later(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status emudev_poll_later(opipe_event *event, opipe_error *err);
opipe_status emudev_sync_later(opipe_event *event, uint64_t until_ns, opipe_error *err);

/* timed.c */
opipe_status emudev_event_create_timed(opipe_device *device, opipe_event **out_event,
                                       opipe_error *err);
opipe_status emudev_event_elapsed(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                  opipe_error *err);
/* The queue comes to the record of a timed event that was queued at `queued_ns`. */
void emudev_event_came(const opipe_queue *queue, opipe_event *event, uint64_t queued_ns);

/* queue.c */
enum { EMUDEV_WATCHED_NS = 100000 }; /* before an instant nobody sleeps any more */
uint64_t emudev_now(void);
struct timespec emudev_timespec(uint64_t ns);
void emudev_sleep_until(uint64_t ns);
opipe_status emudev_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err);
void emudev_queue_close(opipe_queue *queue);
opipe_status emudev_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err);
void emudev_event_destroy(opipe_event *event);
opipe_status emudev_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status emudev_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status emudev_event_poll(opipe_event *event, opipe_error *err);
opipe_status emudev_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err);
opipe_status emudev_queue_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                                opipe_error *err);
opipe_status emudev_queue_read(opipe_queue *queue, void *dst, const opipe_region *src,
                               opipe_error *err);
opipe_status emudev_queue_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                               opipe_error *err);

/* program.c */
/* time.c: modelled time of one run of a program of `stage` (OPIPE_NONE: of none, as of the first).
 * INVALID: the options list fewer stages. */
opipe_status emudev_graph_ns(const options *o, const opipe_graph *graph, uint32_t stage,
                             uint64_t *out_ns, opipe_error *err);
/* The part of the program's modelled time that passes up to each place: places_ns. */
void emudev_spread_ns(const options *o, const opipe_graph *graph, uint32_t stage,
                      opipe_program *program);
opipe_status emudev_support(opipe_device *device, const opipe_graph *graph,
                            opipe_support *out_support, opipe_error *err);
opipe_status emudev_compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *err);
void emudev_program_free(opipe_program *program);
opipe_status emudev_program_info(const opipe_program *program, opipe_program_info *io_info,
                                 opipe_error *err);
opipe_status emudev_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *err);
opipe_status emudev_bind(opipe_device *device, const opipe_bind_params *params,
                         opipe_binding **out_binding, opipe_error *err);
void emudev_binding_free(opipe_binding *binding);
opipe_status emudev_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err);
opipe_status emudev_program_places(const opipe_program *program, uint32_t *out_ends,
                                   uint32_t *out_n, opipe_error *err);
opipe_status emudev_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                             uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err);

/* params.c */
opipe_status emudev_params_create(opipe_device *device, const opipe_param_source *sources,
                                  uint32_t n, opipe_params **out_params, opipe_error *err);
void emudev_params_free(opipe_params *params);
opipe_status emudev_params_prepare(opipe_params *params, const opipe_program *program,
                                   opipe_error *err);
opipe_status emudev_params_clone(const opipe_params *params, opipe_params **out_params,
                                 opipe_error *err);
opipe_status emudev_params_write(opipe_params *params, uint32_t slot, const void *src,
                                 uint64_t n_bytes, opipe_error *err);
opipe_status emudev_params_read(const opipe_params *params, uint32_t slot, void *dst,
                                uint64_t n_bytes, opipe_error *err);
opipe_status emudev_params_commit(opipe_params *params, opipe_error *err);

/* train.c: the training slots; UNSUPPORTED where the inner backend has none */
opipe_status emudev_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                        uint32_t n, opipe_params **out_params, opipe_error *err);
opipe_status emudev_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                     opipe_error *err);
opipe_status emudev_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                      uint32_t *io_count, opipe_error *err);
opipe_status emudev_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                  opipe_error *err);
opipe_status emudev_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err);
opipe_status emudev_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                   opipe_error *err);
opipe_status emudev_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *dst, opipe_error *err);
opipe_status emudev_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                  const opipe_region *src, opipe_error *err);
opipe_status emudev_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err);
opipe_status emudev_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                        opipe_error *err);
opipe_status emudev_sum_squares(opipe_queue *queue, const opipe_region *dst,
                                const opipe_region *src, opipe_error *err);
opipe_status emudev_update(opipe_queue *queue, const opipe_update *update, opipe_error *err);
opipe_status emudev_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                        const opipe_region *src, uint32_t n, opipe_error *err);

/* params.c, for train.c: an empty wrapper of a set of n; and what becomes of it */
opipe_params *emudev_params_wrap(opipe_device *device, uint32_t n, opipe_error *err);
opipe_status emudev_params_keep(opipe_params *params, opipe_status status,
                                opipe_params **out_params);

#endif /* OPIPE_BACKEND_EMULATED_H */
