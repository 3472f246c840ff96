/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's own objects: places, devices, buffers, queues, events.
 *
 *   place   a GPU of this process: its primary context, kernels, whether it is lost. All openings
 * of the GPU share it; it is made by the first and released by the last device  an opening: a cap
 * on memory, options, a stream for [control] calls queue   a stream of its own, and where runs
 * report bad data event   a driver's event, and what it took over of the queue's reports
 *
 * Every entry that calls the driver stands between cuda_enter and cuda_leave: it is refused in a
 * forked child and after the context was lost, and the caller's current context is restored.
 */
#ifndef OPIPE_BACKEND_CUDA_CUDA_H_
#define OPIPE_BACKEND_CUDA_CUDA_H_

#include <pthread.h>
#include <sys/types.h>

#include "kernels/kernels.h"
#include "libraries.h"

enum { CUDA_SUMS_ROOM = 64 * CUDA_SUMS }; /* parts of sums of squares in one go */
enum { CUDA_ALIGN = 256 }; /* of every region: what products and kernels may count on */
enum { CUDA_BOUNCE = 4 << 20 };

enum { CUDA_GIVEN_UP = 32 };
enum { CUDA_PLACES = 64 };

/* A queue whose work may never end (abandoned.c). */
typedef struct cuda_given_up {
  CUstream stream;
  double *sums;       /* of a queue that was closed; pinned */
  CUdeviceptr bounce; /* its; 0: none */
  bool is_closed;
} cuda_given_up;

typedef struct cuda_place {
  const cuda_libraries *libraries;
  const cuda_driver *driver;
  CUdevice ordinal;
  CUcontext context;
  CUmodule module; /* our kernels */
  uint32_t index;
  int shared_bytes; /* of a block, at most */
  uint32_t n_open;  /* under the lock of places */
  uint32_t lost; /* atomic: a driver's error after which the context answers nothing but errors */
  bool is_made;  /* under the lock of places */
  uint32_t n_given_up; /* atomic */
  cuda_given_up given_up[CUDA_GIVEN_UP];
  CUcontext peers[CUDA_PLACES]; /* by ordinal: of GPUs whose memory this one's work may use */
} cuda_place;

/* Backend "cpu", for nodes that the device lacks (fallback.c). */
typedef struct cuda_inner_backend {
  const opipe_backend_lookup *lookup; /* NULL: this host has no such service */
  const opipe_backend *table;         /* NULL: there is none, as `why` says */
  opipe_instance *self;
  char why[200];
} cuda_inner_backend;

/* An opening of it, for an opening of a GPU. */
enum { CUDA_HOST_TEXTS = 16 };
typedef struct cuda_inner {
  const cuda_inner_backend *backend;
  opipe_device *device; /* NULL: nothing falls back, as `why` says */
  uint32_t threads, alignment;
  bool asked, refused; /* fallback=cpu, fallback=none */
  char why[240];
  pthread_mutex_t lock; /* of runs, and of texts */
  opipe_error texts[CUDA_HOST_TEXTS];
  uint64_t n_texts;      /* errors so far */
  opipe_late failed;     /* any error but a data error: told by every event */
  uint32_t has_failed;   /* atomic */
  uint64_t host_bytes;   /* atomic: pinned for sections */
  uint64_t host_alloced; /* atomic: by host_alloc */
} cuda_inner;

enum { CUDA_DETAILS = 4, CUDA_DETAIL_ROOM = 640 };

struct opipe_instance {
  const opipe_host *host;
  const cuda_libraries *libraries;
  cuda_inner_backend inner;
  pid_t owner;                                  /* process that opened it */
  char details[CUDA_DETAILS][CUDA_DETAIL_ROOM]; /* driver and libraries found, for people */
};

/* Names of nodes that reports speak of, by number from 0. They stay until the device is closed:
 * a report may outlive its program. */
typedef struct cuda_names {
  pthread_mutex_t lock;
  char **texts; /* by number */
  uint32_t *sorted;
  uint32_t n, room;
} cuda_names;

/* Pinned memory for cuda_status words, a page at a time. */
typedef struct cuda_words cuda_words;
typedef struct cuda_choices cuda_choices;
typedef struct cuda_dnn cuda_dnn;

struct opipe_device {
  const opipe_host *host;
  cuda_place *place;
  pid_t owner;
  opipe_meter meter;
  uint64_t memory_bytes; /* of the GPU */
  uint64_t kept_bytes;   /* atomic: freed, and left to the driver (cuda_may_give) */
  CUstream control;
  cublasLtHandle_t products;
  cuda_words *words;
  cuda_names names;
  pthread_mutex_t small_lock; /* of words and host_blocks */
  pthread_mutex_t lock;       /* of the list of queues */
  opipe_queue *queues;
  opipe_queue *closed; /* events that were recorded on them may be asked yet */
  struct cuda_host_block *host_blocks;
  cuda_inner inner;
  cuda_choices *choices; /* of kernels_use; NULL: none */
  cuda_dnn *dnn;         /* plans of cuDNN; NULL: our own kernels do all attention */
  int32_t processors;    /* sm=N: how many products aim at; 0: all */
  bool cudnn;            /* cudnn=1: where it is, it does the attention that it takes */
  bool dnn_masks;        /* dnn_masks=1: that with a mask or a past too */
  bool few_attention;    /* few_attention=1: that of few rows takes a kernel of its own */
  bool half_copies;      /* half_copies=1: parameters that are trained are rounded once a step */
  bool bias_gradients;   /* bias_gradients=1: the products of weights' gradients make them along */
  bool norm_sums;        /* norm_sums=1: norms' gradients make sums over their rows along */
  bool deterministic;    /* deterministic=1: what it runs has the same bits in every run */
  uint32_t few_rows;     /* few_rows=N: products of at most N rows take our kernel */
  uint32_t pad;          /* pad=N: rows are padded for products of 2^N operations; 0: for none */
  uint32_t pad_mib;      /* pad_mib=N: scratch of a piece of these */
  bool invariant;        /* invariant=1: bits of a row do not depend on the number of rows */
  bool tf32;             /* products of fp32 may round their operands to TF32 */
  bool blocking;         /* launch_blocking=1: every launch is waited for */
  bool graphs;           /* graphs=1: the steps of a binding are one launch */
  bool pdl; /* pdl=1, kernels for sm_90 and newer: launches may begin while others end */
};

struct opipe_buffer {
  opipe_device *device;
  CUdeviceptr address;
  uint64_t n_bytes;
  uint32_t kind;
  CUcontext peer; /* of the GPU that the memory is on; NULL: the device's own */
  bool imported;  /* somebody else's memory */
  bool opened;    /* another process's memory, mapped here */
  bool shared;    /* a handle of it was made */
  bool kept;      /* a process may have it open still: it is left to the driver */
};

struct opipe_queue {
  opipe_device *device;
  opipe_queue *next; /* of the device's, open or closed */
  CUstream stream;
  cuda_status *late;  /* pinned: the first report since the last event was recorded */
  double *sums;       /* pinned [CUDA_SUMS_ROOM]: parts of the sums of squares on their way */
  CUdeviceptr bounce; /* [CUDA_BOUNCE] for copies within a buffer; 0: none yet */
  uint64_t n_runs;    /* atomic: queued so far */
  uint64_t n_done;    /* atomic: known to be complete */
  bool reports;       /* a run since the last event was recorded may have reported */
  uint32_t aborted;   /* atomic: it was given up */
  bool imported;      /* somebody else's stream: events alone */
};

struct opipe_event {
  opipe_device *device;
  CUevent event;
  opipe_queue *queue; /* recorded last on; NULL: never */
  cuda_status *taken; /* pinned: what it took over */
  uint64_t n_runs;    /* of the queue when it was recorded */
  bool took;
  bool timed;
  bool imported; /* somebody else's event */
  bool opened;   /* another process's event: a handle of ours */
};

/* ---- device.c ---- */

/* As nvidia-smi writes it: what CUDA_VISIBLE_DEVICES takes too. "": the driver has none. */
void cuda_uuid_text(const cuda_driver *driver, CUdevice device, char *out, size_t room);
int cuda_attribute(const cuda_driver *driver, CUdevice device, int which);
/* NOTFOUND: there is no such device. */
opipe_status cuda_check_index(opipe_instance *self, uint32_t index, const char *what,
                              opipe_error *err);

/* ---- place.c ---- */

/* The place of GPU `index`, made by its first user; given back by cuda_place_give, by the last one
 * with all that was made where `all` says that this may be. */
opipe_status cuda_place_take(const cuda_libraries *libraries, uint32_t index,
                             cuda_place **out_place, opipe_error *err);
void cuda_place_give(cuda_place *place, bool all);
/* OPIPE_OK where result is CUDA_OK; else NOMEM or DEVICE, with the driver's name of it. One of
 * those after which the context is lost marks the place. */
opipe_status cuda_result(cuda_place *place, CUresult result, const char *what, opipe_error *err);
/* Is it one of those? */
bool cuda_is_fatal(CUresult result);
/* A library's call failed, as *err says: where the driver has a fatal error that is the cause, and
 * *err says that. Always DEVICE. Within an entry. */
opipe_status cuda_library_failed(const opipe_device *device, const char *what, opipe_error *err);
/* Begins an entry: `what` stands in messages. Ends with cuda_leave when it answered OPIPE_OK. */
opipe_status cuda_enter(const opipe_device *device, const char *what, opipe_error *err);
void cuda_leave(const opipe_device *device);
/* The same for a call with a queue (share.c): CANCELLED where that was given up. */
opipe_status cuda_enter_queue(const opipe_queue *queue, const char *what, opipe_error *err);
/* Ends it. A fatal error that the call met is of what was queued before: the text names the first
 * run of the queue that is not known to be complete; with launch_blocking=1 it stays the kernel's.
 */
opipe_status cuda_leave_queue(const opipe_queue *queue, opipe_status status, opipe_error *err);
void cuda_name_run(const opipe_queue *queue, char *out, size_t room);
opipe_status cuda_check_owner(pid_t owner, const char *what, opipe_error *err);
bool cuda_place_is_lost(const cuda_place *place);

/* ---- peers.c ---- */

/* The context of GPU `ordinal`, whose memory the device's work may use from now on. INVALID: the
 * device does not reach it. Within an entry. */
opipe_status cuda_peer_take(const opipe_device *device, CUdevice ordinal, CUcontext *out_peer,
                            opipe_error *err);
/* The place is given back. */
void cuda_peers_give(cuda_place *place);

/* ---- memory.c ---- */

/* n_bytes becomes what was taken. Within an entry. */
opipe_status cuda_memory_take(opipe_device *device, uint32_t kind, const char *what,
                              uint64_t *io_bytes, CUdeviceptr *out_address, opipe_error *err);
void cuda_memory_give(opipe_device *device, uint32_t kind, CUdeviceptr address, uint64_t n_bytes);
/* Address of a region that lies inside its buffer, of this device. */
opipe_status cuda_region(const opipe_device *device, const opipe_region *region, const char *what,
                         CUdeviceptr *out_address, opipe_error *err);
/* A zeroed word of pinned memory; NULL: none (*err). Within an entry. */
cuda_status *cuda_word_take(opipe_device *device, opipe_error *err);
void cuda_word_give(opipe_device *device, cuda_status *word);
void cuda_words_free(opipe_device *device);

/* ---- abandoned.c ---- */

/* May memory and handles be given back? Not in a forked child, nor where the context is lost, nor
 * while work of a queue that was given up is under way on the GPU: the driver would wait for it.
 * Otherwise they stay the driver's. Within an entry, or where that was refused. */
bool cuda_may_give(const opipe_device *device);

/* ---- queue.c ---- */

/* Waits for all that is queued on the device's queues: calls on sets see it. Within an entry. */
opipe_status cuda_queues_settle(opipe_device *device, const char *what, opipe_error *err);
void cuda_queues_free(opipe_device *device); /* closed queues */

/* ---- fallback.c ---- */

/* Looks for backend "cpu"; within the plugin's open. */
void cuda_inner_find(const opipe_host *host, cuda_inner_backend *out);
/* Opens and closes the inner device of an opening: options are read. UNSUPPORTED: fallback=cpu was
 * asked for and there is none. */
opipe_status cuda_inner_open(opipe_instance *self, opipe_device *device, opipe_error *err);
void cuda_inner_close(opipe_device *device);
/* The error that a node on the CPU reported, by the number of its text. */
opipe_status cuda_inner_answer(opipe_device *device, const char *node, uint64_t number,
                               opipe_error *err);
/* The error that every event tells, once there is one. */
opipe_status cuda_inner_failed(opipe_device *device, opipe_error *err);

/* ---- cudnn.c ---- */

/* Makes device->dnn where cuDNN is and the device's options want it; frees it. entered: the library
 * may be called, within an entry. */
opipe_status cuda_dnn_open(opipe_device *device, opipe_error *err);
void cuda_dnn_close(opipe_device *device, bool entered);

/* ---- choices.c ---- */

void cuda_choices_free(opipe_device *device);

/* ---- names.c ---- */
opipe_status cuda_names_open(cuda_names *names, opipe_error *err);
void cuda_names_close(cuda_names *names, const opipe_host *host);
opipe_status cuda_names_add(cuda_names *names, const opipe_host *host, const char *text,
                            uint32_t *out_number, opipe_error *err);
void cuda_names_text(cuda_names *names, uint32_t number, char *out, size_t room);

/* ---- launch.c ---- */

/* The kernel of `launch`, ready for its shared memory. Within an entry. */
opipe_status cuda_find_kernel(opipe_device *device, const cuda_launch *launch,
                              CUfunction *out_function, opipe_error *err);
/* args: of the launch, or a copy of them with addresses */
opipe_status cuda_launch_on(opipe_device *device, CUfunction function, const cuda_launch *launch,
                            const unsigned char *args, CUstream stream, opipe_error *err);
/* The same behind one of these two, with nothing between them on the stream: where the device's
 * `pdl` allows it, it may begin while that one ends (programmatic dependent launch, CUDA C++
 * Programming Guide). All our kernels wait before they touch memory. */
opipe_status cuda_launch_behind(opipe_device *device, CUfunction function,
                                const cuda_launch *launch, const unsigned char *args,
                                CUstream stream, opipe_error *err);

/* ---- metadata: zeroed, freed together ---- */

typedef struct cuda_chunk cuda_chunk;
typedef struct cuda_pool {
  const opipe_host *host;
  cuda_chunk *head;
} cuda_pool;
/* NULL when out of memory or n * size overflows. */
void *cuda_pool_array(cuda_pool *pool, uint64_t n, size_t size);
void cuda_pool_release(cuda_pool *pool);
#define CUDA_POOL_ARRAY(pool, type, n) ((type *)cuda_pool_array((pool), (n), sizeof(type)))

static inline uint64_t cuda_align_up(uint64_t n) {
  return (n + CUDA_ALIGN - 1) & ~(uint64_t)(CUDA_ALIGN - 1);
}

#define CUDA_TRY(expr)                   \
  do {                                   \
    const opipe_status cuda_s_ = (expr); \
    if (cuda_s_ < 0)                     \
      return cuda_s_;                    \
  } while (0)

extern const opipe_backend cuda_backend_table;

/* ---- slots of the table, by file ---- */

/* device.c */
opipe_status cuda_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err);
opipe_status cuda_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                               opipe_error *err);
opipe_status cuda_device_open(opipe_instance *self, const opipe_device_params *params,
                              opipe_device **out_device, opipe_error *err);
void cuda_device_close(opipe_device *device);
opipe_status cuda_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                               opipe_error *err);
/* memory.c */
opipe_status cuda_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                               opipe_buffer **out_buffer, opipe_error *err);
void cuda_buffer_free(opipe_buffer *buffer);
opipe_status cuda_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err);
/* peers.c */
opipe_status cuda_device_reach(opipe_instance *self, uint32_t index, uint32_t other,
                               uint32_t *out_reach, opipe_error *err);
opipe_status cuda_buffer_share(opipe_buffer *buffer, opipe_shared *out_shared, opipe_error *err);
void cuda_buffer_unshare(opipe_buffer *buffer, uint32_t all_closed);
opipe_status cuda_buffer_open(opipe_device *device, const opipe_shared *shared, uint64_t n_bytes,
                              opipe_buffer **out_buffer, opipe_error *err);
opipe_status cuda_event_create_shared(opipe_device *device, opipe_event **out_event,
                                      opipe_shared *out_shared, opipe_error *err);
opipe_status cuda_event_open(opipe_device *device, const opipe_shared *shared,
                             opipe_event **out_event, opipe_error *err);
/* queue.c */
/* A driver's event of these flags. */
opipe_status cuda_event_make(opipe_device *device, unsigned flags, opipe_event **out_event,
                             opipe_error *err);
opipe_status cuda_queue_open(opipe_device *device, opipe_queue **out_queue, opipe_error *err);
void cuda_queue_close(opipe_queue *queue);
opipe_status cuda_event_create(opipe_device *device, opipe_event **out_event, opipe_error *err);
opipe_status cuda_event_create_timed(opipe_device *device, opipe_event **out_event,
                                     opipe_error *err);
void cuda_event_destroy(opipe_event *event);
opipe_status cuda_event_record(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status cuda_event_wait(opipe_queue *queue, opipe_event *event, opipe_error *err);
opipe_status cuda_event_poll(opipe_event *event, opipe_error *err);
opipe_status cuda_event_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err);
opipe_status cuda_write(opipe_queue *queue, const opipe_region *dst, const void *src,
                        opipe_error *err);
opipe_status cuda_read(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err);
opipe_status cuda_copy(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                       opipe_error *err);
/* timed.c */
opipe_status cuda_event_elapsed(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                opipe_error *err);
/* update.c */
opipe_status cuda_fill_zero(opipe_queue *queue, const opipe_region *dst, opipe_error *err);
opipe_status cuda_add(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err);
opipe_status cuda_sum_squares(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                              opipe_error *err);
opipe_status cuda_update(opipe_queue *queue, const opipe_update *update, opipe_error *err);
opipe_status cuda_update_many(opipe_queue *queue, const opipe_update *update,
                              const opipe_update_part *parts, uint32_t n, opipe_error *err);
opipe_status cuda_sum_squares_many(opipe_queue *queue, const opipe_region *dst,
                                   const opipe_region *src, uint32_t n, opipe_error *err);
opipe_status cuda_sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                      const opipe_region *src, uint32_t n, opipe_error *err);
/* compile.c */
opipe_status cuda_support(opipe_device *device, const opipe_graph *graph,
                          opipe_support *out_support, opipe_error *err);
opipe_status cuda_compile(opipe_device *device, const opipe_compile_params *params,
                          opipe_program **out_program, opipe_error *err);
void cuda_program_free(opipe_program *program);
opipe_status cuda_program_info(const opipe_program *program, opipe_program_info *io_info,
                               opipe_error *err);
opipe_status cuda_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                 uint32_t *io_count, opipe_error *err);
/* params.c */
opipe_status cuda_params_create(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                                opipe_params **out_params, opipe_error *err);
void cuda_params_free(opipe_params *params);
opipe_status cuda_params_prepare(opipe_params *params, const opipe_program *program,
                                 opipe_error *err);
opipe_status cuda_params_clone(const opipe_params *params, opipe_params **out_params,
                               opipe_error *err);
opipe_status cuda_params_write(opipe_params *params, uint32_t slot, const void *src,
                               uint64_t n_bytes, opipe_error *err);
opipe_status cuda_params_read(const opipe_params *params, uint32_t slot, void *dst,
                              uint64_t n_bytes, opipe_error *err);
opipe_status cuda_params_commit(opipe_params *params, opipe_error *err);
opipe_status cuda_params_create_owned(opipe_device *device, const opipe_param_source *sources,
                                      uint32_t n, opipe_params **out_params, opipe_error *err);
/* train.c */
opipe_status cuda_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                   opipe_error *err);
opipe_status cuda_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                    uint32_t *io_count, opipe_error *err);
opipe_status cuda_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                opipe_error *err);
opipe_status cuda_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
opipe_status cuda_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
opipe_status cuda_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *dst, opipe_error *err);
opipe_status cuda_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *src, opipe_error *err);
/* share.c */
opipe_status cuda_native(opipe_device *device, uint32_t what, const void *object,
                         uint64_t *out_native, opipe_error *err);
opipe_status cuda_event_notify(opipe_queue *queue, void (*fn)(void *ctx), void *ctx,
                               opipe_error *err);
opipe_status cuda_host_alloc(opipe_device *device, uint64_t n_bytes, void **out_data,
                             opipe_error *err);
void cuda_host_free(opipe_device *device, void *data);
opipe_status cuda_host_register(opipe_device *device, void *data, uint64_t n_bytes,
                                opipe_error *err);
void cuda_host_unregister(opipe_device *device, void *data);
opipe_status cuda_buffer_import(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                opipe_buffer **out_buffer, opipe_error *err);
opipe_status cuda_event_import(opipe_device *device, uint64_t native, opipe_event **out_event,
                               opipe_error *err);
opipe_status cuda_queue_abort(opipe_queue *queue, opipe_error *err);
opipe_status cuda_queue_import(opipe_device *device, uint64_t native, opipe_queue **out_queue,
                               opipe_error *err);
opipe_status cuda_event_signal(opipe_queue *queue, uint64_t native, opipe_error *err);
/* choices.c, tune.c */
opipe_status cuda_kernels_fit(opipe_device *device, char *out_text, uint64_t room,
                              opipe_error *err);
opipe_status cuda_kernels_use(opipe_device *device, const opipe_kernel *kernels, uint32_t n,
                              opipe_error *err);
opipe_status cuda_program_kernels(const opipe_program *program, opipe_kernel *out_kernels,
                                  uint32_t *io_count, opipe_error *err);
opipe_status cuda_kernel_tune(opipe_program *program, const opipe_tune_params *params,
                              opipe_kernel *io_kernel, opipe_error *err);
/* bind.c, run.c */
opipe_status cuda_bind(opipe_device *device, const opipe_bind_params *params,
                       opipe_binding **out_binding, opipe_error *err);
void cuda_binding_free(opipe_binding *binding);
opipe_status cuda_run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                      uint32_t n_scalars, opipe_error *err);
opipe_status cuda_program_places(const opipe_program *program, uint32_t *out_ends, uint32_t *out_n,
                                 opipe_error *err);
opipe_status cuda_run_part(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                           uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err);

#endif /* OPIPE_BACKEND_CUDA_CUDA_H_ */
