/* SPDX-License-Identifier: Apache-2.0 */
/* Interface "opipe.backend/1": a backend enumerates devices, allocates buffers, compiles static
 * graphs to programs and runs them.
 *
 *   support -> compile -> program_info -> (params_create, params_prepare) -> bind -> run, run ...
 *   cold [control]:    everything up to bind. May allocate host metadata; device memory only in
 *                      buffer_alloc and params_*.
 *   hot [step:queue]:  run, write, read, copy, event_*. They neither allocate nor block (event_sync
 *                      blocks). Work is queued in order; it may finish later, and so may its error.
 *
 * Late errors. An error belongs to the run (or copy) that caused it.
 *   data error    OPIPE_E_INVALID: data broke a rule (an index out of range, CHECK_FINITE); what
 * that run wrote is lost, the device goes on. Reported once: by the first event that is recorded on
 * the queue after that run. The first of several is reported. device error  any other status:
 * reported by that event and by every later one of the queue, until the queue is closed; it goes
 * before a data error. Later calls on the queue may report it too. The event keeps its error:
 * event_poll and event_sync report it as often as they are asked, until the event is recorded
 * again, and never consume one of another event. event_wait makes the waiting queue wait, and hands
 * on nothing. Whoever records no event after a run is not told. (opipe_late in helpers.h does this
 * bookkeeping.)
 *
 * A slot without a tag is [control]. Errors of every slot: INVALID for what breaks a rule, naming
 * it; NOMEM; DEVICE with the device's own code; others where stated. Outputs are set on success
 * only. Nothing here knows of schedules, ranks or requests. All tables are const and may be called
 * for different objects at once.
 */
#ifndef OPIPE_BACKEND_H
#define OPIPE_BACKEND_H

#include "optimizers.h" /* OPIPE_UPDATE_SGD, _ADAM, _ADAMW */
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_BACKEND_ID "opipe.backend/1"

typedef struct opipe_device opipe_device;
typedef struct opipe_buffer
    opipe_buffer; /* device memory; dereferenceable by the host only through buffer_host */
typedef struct opipe_queue opipe_queue; /* an in-order stream of work on one device */
typedef struct opipe_event opipe_event; /* a point in a queue's work */
typedef struct opipe_program opipe_program;
typedef struct opipe_params
    opipe_params; /* a parameter set: one value of every parameter, in the backend's layouts */
typedef struct opipe_binding opipe_binding;

enum {
  OPIPE_DEVICE_HOST_MEMORY =
      1u, /* buffer_host gives pointers that the host may use while no queued work touches them */
  OPIPE_DEVICE_SYNCHRONOUS =
      2u, /* run, write, read and copy have finished when they return; errors are immediate */
  OPIPE_DEVICE_EMULATED = 4u, /* times or memory are declared, not real */
  OPIPE_DEVICE_ALONE = 8u,    /* 1.3: it reaches no other device of its kind (a MIG slice) */
  /* 1.3: its Attention hands on to its gradient what it found. In training graphs whose devices all
   * say so, an Attention of a half type without past and cap has an output 4, fp32 [batch, heads,
   * queries]: the logarithm of the sum of the exponentials of a row's scores, the mask added to
   * them; +infinity of a row that sees nothing. opipe.AttentionGrad then reads the Attention's
   * output 0 as its input 8 and output 4 as its input 9. abi/guide/operators.md */
  OPIPE_DEVICE_HANDS_ON = 16u
};

/* Filled by device_query. The caller sets struct_size; fields beyond it are not written. */
typedef struct opipe_device_info {
  uint32_t struct_size;
  uint32_t flags;        /* OPIPE_DEVICE_* */
  uint64_t memory_bytes; /* memory that programs may use */
  double peak_flops; /* fp32 operations per second of the whole device (a multiply-add counts 2) */
  double bandwidth;  /* bytes per second of main memory */
  double launch_ns;  /* fixed cost of one node */
  uint32_t max_threads; /* compute threads that make sense; 0: not applicable */
  uint32_t alignment;   /* every region's offset and size is a multiple of it (a power of two) */
  char name[64];        /* for people: "AMD EPYC (avx512)" */
#if OPIPE_TARGET_MINOR >= 3
  /* Operations per second of other types with sums of fp32 (fp64: of fp64), as peak_flops; 0: as
   * peak_flops. */
  double fp64_flops, fp16_flops, bf16_flops;
  char uuid[48]; /* names the device on every machine and in every order; "": it has none */
#endif
} opipe_device_info;

typedef struct opipe_device_params {
  uint32_t struct_size;
  uint32_t index;        /* 0 .. device_count - 1 */
  uint64_t memory_bytes; /* cap for this opening; 0: the device's own. buffer_alloc beyond it fails
                            with OPIPE_E_LIMIT */
  uint32_t threads;      /* compute threads, 0: the backend's choice */
  uint32_t spin_us;      /* how long idle workers spin before they sleep; 0: sleep at once */
  const char *options;   /* "key=value,key=value" or NULL; unknown keys are errors. Common:
                            kernels=reference|portable|avx2|avx512 */
} opipe_device_params;

/* A piece of a buffer. */
typedef struct opipe_region {
  opipe_buffer *buffer;
  uint64_t offset_bytes;
  uint64_t n_bytes;
} opipe_region;
OPIPE_FROZEN_SIZE(opipe_region, 24);

/* What a buffer is for. A kind only says under which number its bytes are counted: the memory is
 * the same. A backend takes every kind below OPIPE_BUFFER_KINDS, those too that have no name yet.
 */
enum {
  OPIPE_BUFFER_ARENA = 0,
  OPIPE_BUFFER_BOUNDARY = 1,
  OPIPE_BUFFER_PARAMS = 2,
  OPIPE_BUFFER_STAGING = 3,
  OPIPE_BUFFER_STATE = 4, /* what streams of requests keep */
  OPIPE_BUFFER_KINDS = 16 /* how many there are room for */
};

/* What the device has handed out since it was opened. Every allocation of device memory is in one
 * of the kinds. */
typedef struct opipe_device_usage {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t live_bytes[16]; /* [OPIPE_BUFFER_KINDS] by kind, now */
  uint64_t mapped_bytes;   /* host mappings (weight files) used in place; not device memory */
  uint64_t peak_bytes;     /* largest sum of live_bytes so far */
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* host memory, now: what nodes that run elsewhere are copied to (live_bytes
                          of an inner device among it), host_alloc. Not device memory */
#endif
} opipe_device_usage;

/* One answer of `support`. */
typedef struct opipe_support {
  int32_t status; /* OPIPE_OK or OPIPE_E_UNSUPPORTED */
  uint32_t reserved;
  char reason[120]; /* empty when supported */
} opipe_support;
OPIPE_FROZEN_SIZE(opipe_support, 128);

enum {
  OPIPE_COMPILE_CHECK_FINITE =
      1u, /* run fails, naming the node, when a floating-point output is NaN or infinite */
  OPIPE_COMPILE_POISON = 2u, /* tests: freed parts of the arena are overwritten and red zones around
                                every value are checked by run */
  OPIPE_COMPILE_NO_FUSE = 4u, /* every node by itself */
  OPIPE_COMPILE_OWNED = 8u    /* parameters will come from an owned set: no layout has key 0, and
                                 operators may read a format that another one needs */
};

typedef struct opipe_compile_params {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_COMPILE_* */
  const opipe_graph *graph;
  uint32_t stage; /* of the plan that the program belongs to; OPIPE_NONE: of none. For names, traces
                     and modelled times: results never depend on it */
  uint32_t reserved;
} opipe_compile_params;

/* What a compiled program needs. All numbers are exact: the core adds them up to the predicted
 * memory. */
typedef struct opipe_program_info {
  uint32_t struct_size;
  uint32_t n_kernels;       /* kernels that one run launches, after the backend's own fusion */
  uint64_t temp_bytes;      /* values inside the program: part of the arena slot */
  uint64_t workspace_bytes; /* scratch of kernels: part of the arena slot */
  uint64_t arena_bytes; /* size of the arena slot: temp + workspace, rounded up to the alignment */
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* host memory that the program keeps from compile to program_free: copies of
                          what nodes that run elsewhere read and write, and their scratch */
  uint32_t n_fallback; /* nodes that the device lacks and another backend runs */
  uint32_t n_rounded;  /* products that round the rows they multiply to 8 bits a block, as the
                          accuracy_level 4 of opipe.DequantizeNBits lets them */
#endif
} opipe_program_info;

/* How a program wants one parameter: parameters of different programs with equal (slot, key) share
 * one copy in a set. A copy may hold other parameters of the set too, as scales beside codes: it
 * then has one entry, under one of them, a key that says which the others are, and all its bytes.
 * The caller sets struct_size in every element of an array: it is the distance between elements, so
 * that a plugin reaches them by it and not by its own sizeof (opipe_param_layout_put of helpers.h).
 */
typedef struct opipe_param_layout {
  uint32_t struct_size;
  uint32_t slot;         /* index in the set */
  uint64_t key;          /* identifies the layout; 0: the source's own bytes, used in place */
  uint64_t n_bytes;      /* device memory of this copy, 0 for key 0 */
  uint64_t mapped_bytes; /* bytes of the source that are used in place */
} opipe_param_layout;

/* Where a parameter comes from. `data` (host memory, often a mapped file, any alignment) must stay
 * valid as long as the set. */
typedef struct opipe_param_source {
  const char *name;
  const void *data; /* dense, row-major */
  const int64_t *shape;
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
  uint32_t flags;        /* 0; others are refused */
  uint32_t reserved;     /* 0 */
  uint64_t reserved2[2]; /* 0 */
} opipe_param_source;
OPIPE_FROZEN_SIZE(opipe_param_source, 64);

typedef struct opipe_bind_params {
  uint32_t struct_size;
  uint32_t n_boundaries;
  const opipe_program *program;
  const opipe_params *params; /* prepared for the program; NULL when it has no parameters */
  opipe_region
      arena; /* at least program_info.arena_bytes; contents undefined before and after a run */
  const opipe_region *boundaries; /* [n_boundaries] by slot; copied. An input's region may equal no
                                     output's region */
  opipe_params *gradients; /* set made by gradients_create and prepared for the program; NULL when
                              it has no GRADIENT values */
} opipe_bind_params;

/* ---- training ----
 *
 * Sets whose values change. Every copy (slot, key) of such a set is the set's own device memory,
 * fp32 elements where the key's layout is a format of fp32 (padding elements are zero and stay so):
 * element-wise work and sums over equal layouts need not know the format.
 *   One copy of each parameter is its *master* (params_master): the one that the optimizer changes,
 * of those prepared when it was first needed that of the highest key below OPIPE_LAYOUT_DERIVED;
 * the others (further formats, half types) are made from it by params_refresh. A gradient set
 * (gradients_create) has, per parameter, one accumulator for every layout that programs accumulate
 * in; the first is of the master's layout, and gradients_fold adds the others to it. */

#define OPIPE_LAYOUT_DERIVED (UINT64_C(1) << 32) /* keys from here on are never a master */
/* Of an accumulator: it is the master's, whichever that is; n_bytes: if no other program reads the
 * parameter. Of a parameter of an owned set (1.2): the program reads the master, whichever that is;
 * n_bytes: of the one that params_commit, or gradients_create, makes where the programs that were
 * prepared want no other. A backend names it only to hosts whose abi_minor is 2 or more. */
#define OPIPE_LAYOUT_MASTER UINT64_MAX

enum {
  OPIPE_UPDATE_NESTEROV = 1u, /* SGD */
  OPIPE_UPDATE_EPS_INNER =
      2u,                 /* ADAM*: epsilon is added to the root of the uncorrected second moment */
  OPIPE_UPDATE_CLEAR = 4u /* the gradient is set to 0 */
};
/* One element-wise update. g = gradient * gradient_scale; w, m, v: weight, first, second.
 *   SGD        g += decay w;  m = momentum m + g;  w -= lr (nesterov ? g + momentum m : m)
 *              without `first`: m is g (momentum as Sutskever et al. 2013, in PyTorch's form)
 *   ADAM       g += decay w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *              w -= lr (m / c1) / (sqrt(v / c2) + eps);  c1 = 1 - b1^t, c2 = 1 - b2^t
 *              (Kingma and Ba 2015, algorithm 1)
 *   EPS_INNER  w -= lr (sqrt(c2) / c1) m / (sqrt(v) + eps)  (the same paper, end of section 2)
 *   ADAMW      as ADAM without decay in g;  w -= lr decay w, of the value before this update
 *              (Loshchilov and Hutter 2019, algorithm 2)
 * Where the denominator is 0 the step is 0: padding stays zero. */
typedef struct opipe_update {
  uint32_t struct_size;
  uint32_t kind;  /* OPIPE_UPDATE_SGD ... */
  uint32_t flags; /* OPIPE_UPDATE_* */
  uint32_t reserved;
  uint64_t n_elems;
  opipe_region weight, gradient, first, second; /* fp32 [n_elems]; first, second: buffer NULL where
                                                   the kind has none */
  /* correction1, correction2: c1 and c2, made by the caller */
  double gradient_scale, lr, momentum, beta1, beta2, correction1, correction2, epsilon, decay;
} opipe_update;

#if OPIPE_TARGET_MINOR >= 3
/* One parameter of update_many. */
typedef struct opipe_update_part {
  opipe_region weight, gradient, first, second; /* as in opipe_update */
  uint64_t n_elems;
  double decay;
  opipe_params *params; /* an owned set: parameter `slot` is made anew there, by params_refresh;
                           NULL: none is */
  uint32_t slot;
  uint32_t reserved; /* 0 */
} opipe_update_part;
OPIPE_FROZEN_SIZE(opipe_update_part, 128);

/* A kernel that a backend can compute in several ways, and the way that is taken. Texts are one
 * line each, NUL behind the end. */
enum { OPIPE_KERNEL_GIVEN = 1u /* by kernels_use; else it is the backend's own choice */ };
typedef struct opipe_kernel {
  uint32_t struct_size;
  uint32_t flags;     /* OPIPE_KERNEL_* */
  uint32_t n_tried;   /* kernel_tune: candidates that ran */
  uint32_t n_dropped; /* kernel_tune: of these, whose bits were not the same in every run */
  double own_ns, ns;  /* kernel_tune: median time of the backend's own choice, and of this one */
  char what[256];     /* all that the choice depends on: "product m=768 n=64 k=768 ..." */
  char choice[128];   /* in the backend's words: "algorithm=21 tile=20 ..." */
} opipe_kernel;

typedef struct opipe_tune_params {
  uint32_t struct_size;
  uint32_t n_candidates; /* at most; 0: 16 */
  uint32_t n_runs;       /* of each, at least 2; 0: 20 */
  uint32_t reserved;     /* 0 */
} opipe_tune_params;
#endif

typedef struct opipe_backend {
  uint32_t struct_size;
  uint32_t reserved;

  /* -- devices -- */
  /* Number of devices on this machine. [control] */
  opipe_status (*device_count)(opipe_instance *self, uint32_t *out_count, opipe_error *err);
  /* Describes device `index` without opening it. [control] */
  opipe_status (*device_query)(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                               opipe_error *err);
  /* Opens a device; several openings of one index are independent (own cap, own threads). [control]
   */
  opipe_status (*device_open)(opipe_instance *self, const opipe_device_params *params,
                              opipe_device **out_device, opipe_error *err);
  /* Closes; every object of the device must have been released. Accepts NULL. [control] */
  void (*device_close)(opipe_device *device);
  /* Live bytes by kind, exact. [any-thread] */
  opipe_status (*device_usage)(opipe_device *device, opipe_device_usage *io_usage,
                               opipe_error *err);

  /* -- memory -- */
  /* n_bytes is rounded up to the device's alignment; contents undefined. kind: OPIPE_BUFFER_*.
   * Errors: LIMIT beyond the opening's cap. [control] */
  opipe_status (*buffer_alloc)(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                               opipe_buffer **out_buffer, opipe_error *err);
  void (*buffer_free)(opipe_buffer *buffer); /* no binding may use it; accepts NULL. [control] */
  /* Host address of a buffer's first byte; OPIPE_E_UNSUPPORTED without OPIPE_DEVICE_HOST_MEMORY.
   * [any-thread] */
  opipe_status (*buffer_host)(opipe_buffer *buffer, void **out_data, opipe_error *err);

  /* -- queues and events -- */
  opipe_status (*queue_open)(opipe_device *device, opipe_queue **out_queue,
                             opipe_error *err); /* [control] */
  void (*queue_close)(opipe_queue *queue); /* finishes queued work first; accepts NULL. [control] */
  opipe_status (*event_create)(opipe_device *device, opipe_event **out_event,
                               opipe_error *err); /* [control] */
  void (*event_destroy)(opipe_event *event);      /* accepts NULL. [control] */
  /* The event is complete when all work queued so far is; it takes the queue's late errors over.
   * Recorded again, it means the new place. An event that was never recorded is complete.
   * [step:queue] */
  opipe_status (*event_record)(opipe_queue *queue, opipe_event *event, opipe_error *err);
  opipe_status (*event_wait)(opipe_queue *queue, opipe_event *event,
                             opipe_error *err); /* later work of queue waits. [step:queue] */
  opipe_status (*event_poll)(
      opipe_event *event, opipe_error *err); /* OK | PENDING | < 0: its late error. [any-thread] */
  opipe_status (*event_sync)(opipe_event *event, uint64_t timeout_ns,
                             opipe_error *err); /* blocks; OPIPE_E_TIMEOUT. [any-thread] */

  /* -- data between host and device, in queue order; regions lie inside their buffers; host memory,
   * n_bytes of the region, is borrowed until an event recorded afterwards has completed.
   * [step:queue] -- */
  opipe_status (*write)(opipe_queue *queue, const opipe_region *dst, const void *src,
                        opipe_error *err);
  opipe_status (*read)(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err);
  /* Regions of equal size, of one device; they may overlap. */
  opipe_status (*copy)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                       opipe_error *err);

  /* -- programs -- */
  /* Batched: out_support [graph->n_nodes], one answer per node. Shapes may be used for the answer.
   * [control] */
  opipe_status (*support)(opipe_device *device, const opipe_graph *graph,
                          opipe_support *out_support, opipe_error *err);
  /* Compiles; uses no device memory. A node that it does not support is an error that names it.
   * `params->graph` is borrowed until program_free. [control] */
  opipe_status (*compile)(opipe_device *device, const opipe_compile_params *params,
                          opipe_program **out_program, opipe_error *err);
  void (*program_free)(opipe_program *program); /* no binding of it may be left; accepts NULL */
  /* Exact needs of the program. [any-thread] */
  opipe_status (*program_info)(const opipe_program *program, opipe_program_info *io_info,
                               opipe_error *err);
  /* Layouts that the program wants: *io_count in: room in out_layouts, out: how many there are
   * (call with 0 and NULL to ask). A parameter may appear with several keys. A layout depends on
   * the parameter and its consumers' operators only, never on the batch. Errors: LIMIT when the
   * room is too small. [any-thread] */
  opipe_status (*program_params)(const opipe_program *program, opipe_param_layout *out_layouts,
                                 uint32_t *io_count, opipe_error *err);

  /* -- parameter sets -- */
  /* A set over `n` sources; no layout is made yet. [control] */
  opipe_status (*params_create)(opipe_device *device, const opipe_param_source *sources, uint32_t n,
                                opipe_params **out_params, opipe_error *err);
  void (*params_free)(opipe_params *params); /* no binding may use it; accepts NULL. [control] */
  /* Makes the layouts that `program` wants and the set lacks (allocates OPIPE_BUFFER_PARAMS memory,
   * packs). [control] */
  opipe_status (*params_prepare)(opipe_params *params, const opipe_program *program,
                                 opipe_error *err);
  /* A second set with the same layouts and values. [control] */
  opipe_status (*params_clone)(const opipe_params *params, opipe_params **out_params,
                               opipe_error *err);
  /* Replaces / reads parameter `slot` (dense host form). A write is seen by runs queued after
   * params_commit. No program that uses the set may run meanwhile. [control] */
  opipe_status (*params_write)(opipe_params *params, uint32_t slot, const void *src,
                               uint64_t n_bytes, opipe_error *err);
  opipe_status (*params_read)(const opipe_params *params, uint32_t slot, void *dst,
                              uint64_t n_bytes, opipe_error *err);
  /* Makes the writes so far visible to runs that are queued from now on. [control] */
  opipe_status (*params_commit)(opipe_params *params, opipe_error *err);

  /* -- running -- */
  /* Ties a program to a parameter set and memory. Cold: may allocate host metadata, build
   * descriptors, capture a graph. [control] */
  opipe_status (*bind)(opipe_device *device, const opipe_bind_params *params,
                       opipe_binding **out_binding, opipe_error *err);
  void (*binding_free)(opipe_binding *binding); /* not while it runs; accepts NULL. [control] */
  /* Queues one run. scalars [n_scalars]: the run's numbers by slot, copied. Errors name the node;
   * INVALID where data broke a rule (an index out of range, CHECK_FINITE): the run is lost, the
   * device goes on. What is answered here is not reported again by an event. Bindings that share
   * regions must not run at once. [step:queue] */
  opipe_status (*run)(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                      uint32_t n_scalars, opipe_error *err);

  /* -- training; all NULL: the backend cannot train -- */
  /* A set whose values may change: nothing is used in place, every layout is device memory (key 0
   * of a program compiled without OPIPE_COMPILE_OWNED too: mapped_bytes, rounded up). Otherwise as
   * params_create. params_prepare, _clone, _write, _read, _commit work on it; params_write changes
   * every layout. [control] */
  opipe_status (*params_create_owned)(opipe_device *device, const opipe_param_source *sources,
                                      uint32_t n, opipe_params **out_params, opipe_error *err);
  /* A gradient set over the parameters of `params` (owned); no accumulator yet. params_prepare
   * makes those that a program accumulates in, zeroed; params_read gives the folded sum, dense
   * fp32. [control] */
  opipe_status (*gradients_create)(opipe_params *params, opipe_params **out_gradients,
                                   opipe_error *err);
  /* Accumulators that the program wants, as program_params. A backend chooses the layout from the
   * parameter and its consumers' operators only. [control] */
  opipe_status (*program_gradients)(const opipe_program *program, opipe_param_layout *out_layouts,
                                    uint32_t *io_count, opipe_error *err);
  /* The master copy of `slot` (of a gradient set: the accumulator of the master's layout), once
   * prepared; n_bytes is its size, a multiple of 4; n_bytes 0: the set has none. [control] */
  opipe_status (*params_master)(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                opipe_error *err);
  /* Adds all other accumulators of `slot` to the master's and clears them. [step:queue] */
  opipe_status (*gradients_fold)(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
  /* Makes all other copies of `slot` anew from the master. [step:queue] */
  opipe_status (*params_refresh)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
  /* master of `slot` <-> dense row-major fp32 (ties between stages whose layouts differ).
   * [step:queue] */
  opipe_status (*params_export)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *dst, opipe_error *err);
  opipe_status (*params_import)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *src, opipe_error *err);
  /* Element-wise on fp32: dst = 0; dst += src. Regions of equal size. [step:queue] */
  opipe_status (*fill_zero)(opipe_queue *queue, const opipe_region *dst, opipe_error *err);
  opipe_status (*add)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err);
  /* dst (a double) = sum of squares of src's fp32 elements, added in an order that depends on the
   * number of elements alone; infinite or NaN when an element is. [step:queue] */
  opipe_status (*sum_squares)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                              opipe_error *err);
  /* One update as described above; `update` is copied. [step:queue] */
  opipe_status (*update)(opipe_queue *queue, const opipe_update *update, opipe_error *err);

#if OPIPE_TARGET_MINOR >= 3
  /* -- devices that are shared with others in the process; each may be NULL -- */
  /* What the device's own programming interface calls an object of ours (OPIPE_NATIVE_*); valid as
   * long as the object is. STATE: an event that was imported and is not ours to give. [any-thread]
   */
  opipe_status (*native)(opipe_device *device, uint32_t what, const void *object,
                         uint64_t *out_native, opipe_error *err);
  /* fn(ctx) is called once all that was queued so far is done, by a thread of the backend's: it
   * neither blocks nor calls a slot. Behind a device error it may never be called: event_poll
   * tells. ctx stays valid until then, or until queue_close. [step:queue] */
  opipe_status (*event_notify)(opipe_queue *queue, void (*fn)(void *ctx), void *ctx,
                               opipe_error *err);
  /* Host memory that `write` and `read` reach without waiting; counted in host_bytes. [control] */
  opipe_status (*host_alloc)(opipe_device *device, uint64_t n_bytes, void **out_data,
                             opipe_error *err);
  void (*host_free)(opipe_device *device, void *data); /* accepts NULL. [control] */
  /* The same of memory that there is: pinned until host_unregister. INVALID: a part of it is
   * registered already. [control] */
  opipe_status (*host_register)(opipe_device *device, void *data, uint64_t n_bytes,
                                opipe_error *err);
  void (*host_unregister)(opipe_device *device, void *data); /* accepts NULL. [control] */
  /* A buffer over device memory of somebody else's, by its native address, a multiple of the
   * alignment: not counted, and left alone by buffer_free. Queued work alone touches it: memory
   * that is gone may have a buffer left that no work uses. Errors: INVALID, an address that is
   * known to be no memory of this device's. [control] */
  opipe_status (*buffer_import)(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                opipe_buffer **out_buffer, opipe_error *err);
  /* An event of somebody else's, by its native handle: to be waited for, polled and synchronised
   * with, as it was recorded last at the time of that call. event_record answers STATE;
   * event_destroy leaves the native one alone, which may be gone by then. [control] */
  opipe_status (*event_import)(opipe_device *device, uint64_t native, opipe_event **out_event,
                               opipe_error *err);
  /* Gives a queue up whose work may never end (a peer is gone): every later call on it but
   * queue_close answers CANCELLED, queue_close does not wait, what was queued may still be done.
   * Objects that it uses must outlive it, or the device. [any-thread] */
  opipe_status (*queue_abort)(opipe_queue *queue, opipe_error *err);
  /* A queue of somebody else's, by its native handle (CUDA: a CUstream, 0: the default one, 2, each
   * thread's own default one, is INVALID: calls come from several threads): to record events on,
   * which are recorded on no queue of the opening's own, and to let wait for events, both
   * [any-thread]. Slots that queue work answer STATE; queue_close leaves the native one alone,
   * which may be gone by then. [control] */
  opipe_status (*queue_import)(opipe_device *device, uint64_t native, opipe_queue **out_queue,
                               opipe_error *err);
  /* Records an event of somebody else's, by its native handle, behind all that was queued so far.
   * It takes no errors over. [step:queue] */
  opipe_status (*event_signal)(opipe_queue *queue, uint64_t native, opipe_error *err);

  /* -- many parameters at once; both or none: they are called one by one -- */
  /* The same bits as `update` for each of `parts` [n] in turn, whose regions, n_elems and decay
   * stand in the place of the update's own (not read), and params_refresh behind it. Regions of
   * different parts do not overlap. All is copied. [step:queue] */
  opipe_status (*update_many)(opipe_queue *queue, const opipe_update *update,
                              const opipe_update_part *parts, uint32_t n, opipe_error *err);
  /* The same bits as sum_squares for each of dst, src [n]. [step:queue] */
  opipe_status (*sum_squares_many)(opipe_queue *queue, const opipe_region *dst,
                                   const opipe_region *src, uint32_t n, opipe_error *err);

  /* -- kernels that are chosen by measuring; all four or none: the backend has no such choice -- */
  /* What choices hold for beside `what`, one line: chip, its processors, versions of libraries.
   * Choices fit a device that writes the same line. room: of out_text, with its NUL; LIMIT: too
   * small. [any-thread] */
  opipe_status (*kernels_fit)(opipe_device *device, char *out_text, uint64_t room,
                              opipe_error *err);
  /* What programs compiled from now on choose where a kernel's `what` is among `kernels` [n]
   * (elements `struct_size` of the first apart; copied). n 0: nothing is given any more. INVALID: a
   * choice that cannot be read, or a `what` twice; the device is as it was. [control] */
  opipe_status (*kernels_use)(opipe_device *device, const opipe_kernel *kernels, uint32_t n,
                              opipe_error *err);
  /* The program's kernels that have a choice; equal ones may appear several times. *io_count and
   * out_kernels as program_params. [any-thread] */
  opipe_status (*program_kernels)(const opipe_program *program, opipe_kernel *out_kernels,
                                  uint32_t *io_count, opipe_error *err);
  /* Measures the program's kernel of io_kernel->what: each candidate runs `n_runs` times on random
   * data; one whose bits are not the same in every run is dropped, the fastest of the others is the
   * choice. Fills all of *io_kernel. Takes device memory (STAGING) and gives it back; nothing else
   * may run on the device. Errors: NOTFOUND, the program has no such kernel; UNSUPPORTED, no
   * candidate is steady. [control] */
  opipe_status (*kernel_tune)(opipe_program *program, const opipe_tune_params *params,
                              opipe_kernel *io_kernel, opipe_error *err);

  /* -- when work was done, by the device's own clock; both or none: it has none that it tells -- */
  /* An event that also keeps the time at which the queue came to its record: all that was queued
   * before was done, and what the queue waited for. Else as event_create; recording it may cost
   * more. [control] */
  opipe_status (*event_create_timed)(opipe_device *device, opipe_event **out_event,
                                     opipe_error *err);
  /* How long after `from` the device came to `to`, in nanoseconds; negative: before. Both are timed
   * and complete, of whichever queues and openings of one device. The clock may step by a
   * microsecond, and long times are as exact as a float: ask of events that are near each other.
   * Late errors are not told. PENDING: one is not complete. Errors: INVALID, one is not timed, was
   * never recorded, or is of another device. [any-thread] */
  opipe_status (*event_elapsed)(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                opipe_error *err);
#endif
} opipe_backend;

/* 1.3. What `native` gives of which object. */
enum {
  OPIPE_NATIVE_DEVICE = 0, /* object: NULL. CUDA: the ordinal */
  OPIPE_NATIVE_QUEUE = 1,  /* opipe_queue. CUDA: a CUstream */
  OPIPE_NATIVE_BUFFER = 2, /* opipe_buffer. CUDA: the CUdeviceptr of its first byte */
  OPIPE_NATIVE_EVENT = 3,  /* opipe_event. CUDA: a CUevent */
  OPIPE_NATIVE_KIND = 4    /* object: NULL. What DLPack calls devices whose memory this is,
                              OPIPE_DL_*; DEVICE is then its device_id. CUDA: 2 */
};

/* Host service for backends that stand on another one (an emulator, a tracer; a device whose
 * missing operators another one runs): opipe_host.get_interface(ctx, OPIPE_BACKEND_LOOKUP_ID).
 * Settled with 1.3; hosts answer the id that it had before, "opipe.backends/0", with the same
 * table, in which older ones have `find` alone. */
#define OPIPE_BACKEND_LOOKUP_ID "opipe.backends/1"
#define OPIPE_BACKEND_LOOKUP_0_ID "opipe.backends/0"
typedef struct opipe_backend_lookup {
  uint32_t struct_size;
  uint32_t reserved;
  /* ctx: opipe_host.ctx. Opens backend `id` if need be; the table is valid until the asking
   * plugin's close. Within the asking plugin's open. [control] */
  opipe_status (*find)(void *ctx, const char *id, const opipe_backend **out_table,
                       opipe_instance **out_self, opipe_error *err);
#if OPIPE_TARGET_MINOR >= 3
  /* What the asking backend takes of device `index` of backend `id` beside what its own
   * device_usage tells: `threads` more compute threads and `n_bytes` more memory; negative: given
   * back. Bytes go to the budget that the host has for that device, threads are counted where it
   * asks whether there are cores for all. Errors: LIMIT, with both numbers: nothing was counted.
   * Giving back never fails. [any-thread] */
  opipe_status (*count)(void *ctx, const char *id, uint32_t index, int64_t threads, int64_t n_bytes,
                        opipe_error *err);
#endif
} opipe_backend_lookup;

/* Host service for backends that copy parameters out of mapped files (from 1.3 on):
 * opipe_host.get_interface(ctx, OPIPE_HOST_PAGES_ID). Not settled: the id ends in "/0". */
#define OPIPE_HOST_PAGES_ID "opipe.host_pages/0"
typedef struct opipe_host_pages {
  uint32_t struct_size;
  uint32_t reserved;
  /* ctx: opipe_host.ctx. `n_bytes` at `data`, a part of some opipe_param_source.data, have been
   * read and will not be for a while: where they are pages of a file that the library has mapped,
   * they need not stay resident; what reads them later gets the same bytes. Other memory is left
   * alone. A backend that says so tensor by tensor, or piece by piece, never has a model's weights
   * in memory twice. [any-thread] */
  void (*drop)(void *ctx, const void *data, uint64_t n_bytes);
} opipe_host_pages;

#include "frozen/backend.h"
static const opipe_struct_row opipe_rows_of_OPIPE_KIND_BACKEND[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI, OPIPE_ROWS_TYPES, OPIPE_ROWS_BACKEND};

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_BACKEND_H */
