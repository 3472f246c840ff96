/* SPDX-License-Identifier: Apache-2.0 */
/* Interface "opipe.backend/1": a backend enumerates devices, allocates buffers, compiles static
 * graphs to programs and runs them.
 *
 *   support -> compile -> program_info -> (params_create, params_prepare) -> bind -> run, run ...
 *   cold [control]:    everything up to bind. It may allocate host metadata; device memory only in
 *                      buffer_alloc and params_*.
 *   hot [step:queue]:  run, write, read, copy, event_*. They neither allocate nor block (event_sync
 *                      blocks). Work is queued in order; it may finish, and fail, later.
 *
 * Late errors. An error belongs to the run (or copy) that caused it.
 *   data error    OPIPE_E_INVALID: data broke a rule (an index out of range, CHECK_FINITE). The
 *                 run's results are lost, the device goes on. It is reported once, by the first
 *                 event recorded on the queue after that run; of several, the first is reported.
 *   device error  any other status. It is reported by that event and by every later event of the
 *                 queue until the queue is closed, and takes precedence over a data error. Later
 *                 calls on the queue may report it too.
 * An event keeps its error: event_poll and event_sync report it as often as they are called, until
 * the event is recorded again, and never take an error from another event. event_wait only makes
 * the queue wait; it passes no error on. An error of a run after which no event is recorded is not
 * reported. (opipe_late in helpers.h implements these rules.)
 *
 * A slot without a tag is [control]. Errors of every slot: INVALID names the broken rule; NOMEM;
 * DEVICE with the device's own code; others where stated. Outputs are set only on success. A
 * backend knows nothing of schedules, ranks or requests. All tables are const, and may be called
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
    opipe_buffer; /* device memory; the host may dereference it only through buffer_host */
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
  /* 1.3: Attention passes its softmax statistics on to its gradient. In training graphs whose
   * devices all set this flag, an Attention of a half type without past and softcap has an output
   * 4, fp32 [batch, heads, queries]: the logarithm of the sum of the exponentials of a row's
   * scores, with the mask added to them; +infinity for a row that sees nothing. opipe.AttentionGrad
   * then reads the Attention's output 0 as its input 8 and output 4 as its input 9.
   * abi/guide/operators.md */
  OPIPE_DEVICE_HANDS_ON = 16u
};

/* Filled by device_query. The caller sets struct_size; fields beyond it are not written. */
typedef struct opipe_device_info {
  uint32_t struct_size;
  uint32_t flags;        /* OPIPE_DEVICE_* */
  uint64_t memory_bytes; /* available to programs */
  double peak_flops; /* fp32 operations per second of the whole device (a multiply-add counts 2) */
  double bandwidth;  /* bytes per second of main memory */
  double launch_ns;  /* fixed cost of one node */
  uint32_t max_threads; /* useful number of compute threads; 0: not applicable */
  uint32_t alignment;   /* power of two; offset and size of every region are multiples of it */
  char name[64];        /* for people: "AMD EPYC (avx512)" */
#if OPIPE_TARGET_MINOR >= 3
  /* Operations per second in other types with fp32 sums (fp64: fp64 sums), counted as peak_flops;
   * 0: the same as peak_flops. */
  double fp64_flops, fp16_flops, bf16_flops;
  char uuid[48]; /* identifies the device on any machine and in any order; "": none */
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

/* Use of a buffer. The kind only decides under which number its bytes are counted; the memory is
 * the same. A backend accepts every kind below OPIPE_BUFFER_KINDS, including those without a name.
 */
enum {
  OPIPE_BUFFER_ARENA = 0,
  OPIPE_BUFFER_BOUNDARY = 1,
  OPIPE_BUFFER_PARAMS = 2,
  OPIPE_BUFFER_STAGING = 3,
  OPIPE_BUFFER_STATE = 4, /* state kept by streams of requests */
  OPIPE_BUFFER_KINDS = 16 /* room for so many kinds */
};

/* Memory handed out by the device since it was opened. Every allocation of device memory has one of
 * the kinds. */
typedef struct opipe_device_usage {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t live_bytes[16]; /* [OPIPE_BUFFER_KINDS] by kind, now */
  uint64_t mapped_bytes;   /* host mappings (weight files) used in place; not device memory */
  uint64_t peak_bytes;     /* largest sum of live_bytes so far */
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* host memory in use now: copies for nodes that run elsewhere (including
                          live_bytes of an inner device), host_alloc. Not device memory */
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
  OPIPE_COMPILE_POISON = 2u,  /* tests: freed parts of the arena are overwritten, and run checks red
                                 zones around every value */
  OPIPE_COMPILE_NO_FUSE = 4u, /* every node has its own kernel */
  OPIPE_COMPILE_OWNED = 8u    /* parameters will come from an owned set: no layout has key 0, and
                                 operators may read a format that another one needs */
};

typedef struct opipe_compile_params {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_COMPILE_* */
  const opipe_graph *graph;
  uint32_t stage; /* of the plan that the program belongs to; OPIPE_NONE: none. For names, traces
                     and modelled times only; results never depend on it */
  uint32_t reserved;
} opipe_compile_params;

/* Needs of a compiled program. All numbers are exact: the core adds them up to the predicted
 * memory.
 */
typedef struct opipe_program_info {
  uint32_t struct_size;
  uint32_t n_kernels;       /* kernels that one run launches, after the backend's own fusion */
  uint64_t temp_bytes;      /* values inside the program: part of the arena slot */
  uint64_t workspace_bytes; /* scratch of kernels: part of the arena slot */
  uint64_t arena_bytes; /* size of the arena slot: temp + workspace, rounded up to the alignment */
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* host memory that the program holds from compile to program_free: copies of
                          the inputs and outputs of nodes that run elsewhere, and their scratch */
  uint32_t n_fallback; /* nodes that the device lacks and another backend runs */
  uint32_t n_rounded;  /* products that round the rows they multiply to 8 bits per block, as
                          accuracy_level 4 of opipe.DequantizeNBits allows */
#endif
} opipe_program_info;

/* Layout in which a program wants one parameter. Parameters of different programs with equal (slot,
 * key) share one copy in a set. A copy may also hold other parameters of the set, such as scales
 * beside codes: it then has a single entry, under one of them, with a key that identifies the
 * others and all its bytes.
 *   The caller sets struct_size in every element of an array: it is the distance between elements,
 * so a plugin steps by it and not by its own sizeof (opipe_param_layout_put of helpers.h). */
typedef struct opipe_param_layout {
  uint32_t struct_size;
  uint32_t slot;         /* index in the set */
  uint64_t key;          /* identifies the layout; 0: the source's own bytes, used in place */
  uint64_t n_bytes;      /* device memory of this copy, 0 for key 0 */
  uint64_t mapped_bytes; /* bytes of the source that are used in place */
} opipe_param_layout;

/* Source of a parameter. `data` (host memory, often a mapped file, any alignment) must stay valid
 * as long as the set. */
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
  const opipe_region *boundaries; /* [n_boundaries] by slot; copied. No region is both an input and
                                     an output */
  opipe_params *gradients; /* set made by gradients_create and prepared for the program; NULL if it
                              has no GRADIENT values */
} opipe_bind_params;

/* ---- training ----
 *
 * Owned sets hold values that change. Every copy (slot, key) of such a set is the set's own device
 * memory, with fp32 elements if the key's layout is a format of fp32. Padding elements are zero and
 * stay so: element-wise work and sums over equal layouts need not know the format.
 *   One copy of each parameter is its *master* (params_master), which the optimizer changes: among
 * the copies prepared when it was first needed, the one with the highest key below
 * OPIPE_LAYOUT_DERIVED. The others (further formats, half types) are made from it by
 * params_refresh.
 *   A gradient set (gradients_create) has, per parameter, one accumulator for every layout that
 * programs accumulate in. The first has the master's layout, and gradients_fold adds the others to
 * it. */

#define OPIPE_LAYOUT_DERIVED (UINT64_C(1) << 32) /* keys from here on are never a master */
/* Key of an accumulator: it has the master's layout, whichever that is; n_bytes holds if no other
 * program reads the parameter. Key of a parameter of an owned set (1.2): the program reads the
 * master, whichever that is; n_bytes is the size of the master that params_commit or
 * gradients_create makes if the prepared programs want no other. Backends use it only with hosts
 * whose abi_minor is 2 or more. */
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
 *   ADAMW      as ADAM without decay in g;  w -= lr decay w, with w before this update
 *              (Loshchilov and Hutter 2019, algorithm 2)
 * If the denominator is 0 the step is 0, so padding stays zero. */
typedef struct opipe_update {
  uint32_t struct_size;
  uint32_t kind;  /* OPIPE_UPDATE_SGD ... */
  uint32_t flags; /* OPIPE_UPDATE_* */
  uint32_t reserved;
  uint64_t n_elems;
  opipe_region weight, gradient, first, second; /* fp32 [n_elems]; first, second: buffer NULL if the
                                                   kind has none */
  /* correction1, correction2: c1 and c2, computed by the caller */
  double gradient_scale, lr, momentum, beta1, beta2, correction1, correction2, epsilon, decay;
} opipe_update;

#if OPIPE_TARGET_MINOR >= 5
/* PEER: queues of the one device copy to and from memory of the other and add it, by buffer_import
 * of its native address. SHARED: the same for memory that another process has shared
 * (buffer_share). */
enum { OPIPE_REACH_PEER = 1u, OPIPE_REACH_SHARED = 2u };

/* A handle of a buffer or an event for other processes. It goes from process to process as bytes,
 * so whoever opens it believes nothing in it. */
typedef struct opipe_shared {
  uint64_t n_bytes;     /* of the buffer; of an event: 0 */
  uint64_t process;     /* that shared it, by the number that it has for itself */
  uint64_t native;      /* the answer of `native` there */
  uint64_t driver;      /* its version */
  uint8_t handle[64];   /* the driver's */
  char uuid[48];        /* of the device, NUL-terminated */
  uint64_t reserved[2]; /* 0 */
} opipe_shared;
OPIPE_FROZEN_SIZE(opipe_shared, 160);
#endif

#if OPIPE_TARGET_MINOR >= 3
/* One parameter of update_many. */
typedef struct opipe_update_part {
  opipe_region weight, gradient, first, second; /* as in opipe_update */
  uint64_t n_elems;
  double decay;
  opipe_params *params; /* an owned set in which params_refresh renews parameter `slot`; NULL: none
                         */
  uint32_t slot;
  uint32_t reserved; /* 0 */
} opipe_update_part;
OPIPE_FROZEN_SIZE(opipe_update_part, 128);

/* A kernel that a backend can compute in several ways, and the way chosen. Texts are one line each,
 * NUL-terminated. */
enum { OPIPE_KERNEL_GIVEN = 1u /* by kernels_use; else it is the backend's own choice */ };
typedef struct opipe_kernel {
  uint32_t struct_size;
  uint32_t flags;     /* OPIPE_KERNEL_* */
  uint32_t n_tried;   /* kernel_tune: candidates that ran */
  uint32_t n_dropped; /* kernel_tune: candidates whose bits were not the same in every run */
  double own_ns, ns;  /* kernel_tune: median time of the backend's own choice, and of this one */
  char what[256];     /* everything that the choice depends on: "product m=768 n=64 k=768 ..." */
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
  /* Closes the device; every object of it must have been released. Accepts NULL. [control] */
  void (*device_close)(opipe_device *device);
  /* Live bytes by kind, exact. [any-thread] */
  opipe_status (*device_usage)(opipe_device *device, opipe_device_usage *io_usage,
                               opipe_error *err);

  /* -- memory -- */
  /* Allocates n_bytes, rounded up to the device's alignment; contents undefined. kind:
   * OPIPE_BUFFER_*. Errors: LIMIT beyond the opening's cap. [control] */
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
  /* Records the event: it is complete when all work queued so far is, and it takes over the queue's
   * late errors. Recording it again moves it to the new place. An event that was never recorded is
   * complete. [step:queue] */
  opipe_status (*event_record)(opipe_queue *queue, opipe_event *event, opipe_error *err);
  opipe_status (*event_wait)(opipe_queue *queue, opipe_event *event,
                             opipe_error *err); /* later work of the queue waits for it.
                                                   [step:queue] */
  opipe_status (*event_poll)(
      opipe_event *event, opipe_error *err); /* OK | PENDING | < 0: its late error. [any-thread] */
  opipe_status (*event_sync)(opipe_event *event, uint64_t timeout_ns,
                             opipe_error *err); /* blocks; OPIPE_E_TIMEOUT. [any-thread] */

  /* -- data between host and device, in queue order. Regions lie inside their buffers. Host memory,
   * n_bytes of the region, is borrowed until an event recorded afterwards has completed.
   * [step:queue] -- */
  opipe_status (*write)(opipe_queue *queue, const opipe_region *dst, const void *src,
                        opipe_error *err);
  opipe_status (*read)(opipe_queue *queue, void *dst, const opipe_region *src, opipe_error *err);
  /* Copies between regions of equal size on one device; they may overlap. */
  opipe_status (*copy)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                       opipe_error *err);

  /* -- programs -- */
  /* Tells for every node whether the device can run it: out_support [graph->n_nodes]. The answer
   * may depend on shapes. [control] */
  opipe_status (*support)(opipe_device *device, const opipe_graph *graph,
                          opipe_support *out_support, opipe_error *err);
  /* Compiles a program; uses no device memory. A node that is not supported is an error that names
   * it. `params->graph` is borrowed until program_free. [control] */
  opipe_status (*compile)(opipe_device *device, const opipe_compile_params *params,
                          opipe_program **out_program, opipe_error *err);
  void (*program_free)(opipe_program *program); /* no binding of it may be left; accepts NULL */
  /* Exact needs of the program. [any-thread] */
  opipe_status (*program_info)(const opipe_program *program, opipe_program_info *io_info,
                               opipe_error *err);
  /* Layouts that the program wants. *io_count: in, room in out_layouts; out, their number (pass 0
   * and NULL to ask). A parameter may appear with several keys. A layout depends only on the
   * parameter and its consumers' operators, never on the batch. Errors: LIMIT when the room is too
   * small. [any-thread] */
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
  /* Write or read parameter `slot` (dense host form). Runs queued after params_commit see a write.
   * No program that uses the set may run meanwhile. [control] */
  opipe_status (*params_write)(opipe_params *params, uint32_t slot, const void *src,
                               uint64_t n_bytes, opipe_error *err);
  opipe_status (*params_read)(const opipe_params *params, uint32_t slot, void *dst,
                              uint64_t n_bytes, opipe_error *err);
  /* Makes the writes so far visible to runs queued from now on. [control] */
  opipe_status (*params_commit)(opipe_params *params, opipe_error *err);

  /* -- running -- */
  /* Binds a program to a parameter set and memory. Cold: may allocate host metadata, build
   * descriptors, capture a graph. [control] */
  opipe_status (*bind)(opipe_device *device, const opipe_bind_params *params,
                       opipe_binding **out_binding, opipe_error *err);
  void (*binding_free)(opipe_binding *binding); /* not while it runs; accepts NULL. [control] */
  /* Queues one run. scalars [n_scalars]: the run's numbers by slot, copied. Errors name the node;
   * INVALID means that data broke a rule (an index out of range, CHECK_FINITE): the run is lost,
   * the device goes on. An error returned here is not reported again by an event. Bindings that
   * share regions must not run at the same time. [step:queue] */
  opipe_status (*run)(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                      uint32_t n_scalars, opipe_error *err);

  /* -- training; all NULL if the backend cannot train -- */
  /* A set whose values may change: nothing is used in place, and every layout is device memory (so
   * is key 0 of a program compiled without OPIPE_COMPILE_OWNED: mapped_bytes, rounded up).
   * Otherwise as params_create. params_prepare, _clone, _write, _read and _commit work on it;
   * params_write changes every layout. [control] */
  opipe_status (*params_create_owned)(opipe_device *device, const opipe_param_source *sources,
                                      uint32_t n, opipe_params **out_params, opipe_error *err);
  /* A gradient set over the parameters of `params` (owned), without accumulators. params_prepare
   * makes those that a program accumulates in, zeroed; params_read gives the folded sum, dense
   * fp32. [control] */
  opipe_status (*gradients_create)(opipe_params *params, opipe_params **out_gradients,
                                   opipe_error *err);
  /* Accumulators that the program wants; arguments as program_params. The layout depends only on
   * the parameter and its consumers' operators. [control] */
  opipe_status (*program_gradients)(const opipe_program *program, opipe_param_layout *out_layouts,
                                    uint32_t *io_count, opipe_error *err);
  /* The master copy of `slot` (in a gradient set: the accumulator with the master's layout), once
   * prepared. n_bytes is its size, a multiple of 4; n_bytes 0: the set has none. [control] */
  opipe_status (*params_master)(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                opipe_error *err);
  /* Adds all other accumulators of `slot` to the master's and clears them. [step:queue] */
  opipe_status (*gradients_fold)(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
  /* Renews all other copies of `slot` from the master. [step:queue] */
  opipe_status (*params_refresh)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err);
  /* Copy the master of `slot` to, or from, dense row-major fp32 (for ties between stages whose
   * layouts differ). [step:queue] */
  opipe_status (*params_export)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *dst, opipe_error *err);
  opipe_status (*params_import)(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *src, opipe_error *err);
  /* Element-wise on fp32: dst = 0; dst += src. Regions have equal sizes. [step:queue] */
  opipe_status (*fill_zero)(opipe_queue *queue, const opipe_region *dst, opipe_error *err);
  opipe_status (*add)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                      opipe_error *err);
  /* dst (a double) = sum of squares of src's fp32 elements, added in an order that depends only on
   * the number of elements; infinite or NaN if an element is. [step:queue] */
  opipe_status (*sum_squares)(opipe_queue *queue, const opipe_region *dst, const opipe_region *src,
                              opipe_error *err);
  /* One update as defined at opipe_update; `update` is copied. [step:queue] */
  opipe_status (*update)(opipe_queue *queue, const opipe_update *update, opipe_error *err);

#if OPIPE_TARGET_MINOR >= 3
  /* -- devices shared with others in the process; each may be NULL -- */
  /* The handle of one of our objects in the device's own programming interface (OPIPE_NATIVE_*);
   * valid as long as the object. Errors: STATE: an imported event is not ours to give. [any-thread]
   */
  opipe_status (*native)(opipe_device *device, uint32_t what, const void *object,
                         uint64_t *out_native, opipe_error *err);
  /* Calls fn(ctx) once all work queued so far is done, on a thread of the backend. fn neither
   * blocks nor calls a slot. After a device error it may never be called; event_poll tells. ctx
   * stays valid until the call, or until queue_close. [step:queue] */
  opipe_status (*event_notify)(opipe_queue *queue, void (*fn)(void *ctx), void *ctx,
                               opipe_error *err);
  /* Allocates host memory that `write` and `read` reach without waiting; counted in host_bytes.
   * [control] */
  opipe_status (*host_alloc)(opipe_device *device, uint64_t n_bytes, void **out_data,
                             opipe_error *err);
  void (*host_free)(opipe_device *device, void *data); /* accepts NULL. [control] */
  /* Pins existing host memory for the same use, until host_unregister. INVALID: part of it is
   * registered already. [control] */
  opipe_status (*host_register)(opipe_device *device, void *data, uint64_t n_bytes,
                                opipe_error *err);
  void (*host_unregister)(opipe_device *device, void *data); /* accepts NULL. [control] */
  /* Wraps device memory that belongs to somebody else in a buffer, by its native address, a
   * multiple of the alignment (1.5: of a device with OPIPE_DEVICE_HOST_MEMORY, the address that
   * buffer_host would give; where device_reach answers PEER, an address on that device). It is not
   * counted, and buffer_free leaves it alone. Only queued work touches it, so a buffer may outlive
   * its memory if no work uses it. Errors: INVALID: an address known not to be memory of this
   * device, or of one that it reaches. [control] */
  opipe_status (*buffer_import)(opipe_device *device, uint64_t native, uint64_t n_bytes,
                                opipe_buffer **out_buffer, opipe_error *err);
  /* Wraps an event that belongs to somebody else, by its native handle, so that it can be waited
   * for, polled and synchronised with, as it was last recorded at the time of that call.
   * event_record answers STATE. event_destroy leaves the native event alone, which may be gone by
   * then. [control] */
  opipe_status (*event_import)(opipe_device *device, uint64_t native, opipe_event **out_event,
                               opipe_error *err);
  /* Gives up a queue whose work may never end (a peer is gone). Every later call on it but
   * queue_close answers CANCELLED, and queue_close does not wait; queued work may still run.
   * Objects that it uses must outlive it, or the device. [any-thread] */
  opipe_status (*queue_abort)(opipe_queue *queue, opipe_error *err);
  /* Wraps a queue that belongs to somebody else, by its native handle. (CUDA: a CUstream; 0 is the
   * default stream; 2, each thread's own default stream, is INVALID, since calls come from several
   * threads.) Events that are recorded on no queue of this opening can be recorded on it, and it
   * can wait for events, both [any-thread]. Slots that queue work answer STATE. queue_close leaves
   * the native queue alone, which may be gone by then. [control] */
  opipe_status (*queue_import)(opipe_device *device, uint64_t native, opipe_queue **out_queue,
                               opipe_error *err);
  /* Records an event that belongs to somebody else, by its native handle, after all work queued so
   * far. It takes over no errors. [step:queue] */
  opipe_status (*event_signal)(opipe_queue *queue, uint64_t native, opipe_error *err);

  /* -- many parameters at once; both or neither; without them parameters are updated one by one --
   */
  /* Gives the same bits as `update` and then params_refresh for each of `parts` [n] in turn. The
   * parts' regions, n_elems and decay replace the update's own, which are not read. Regions of
   * different parts do not overlap. All is copied. [step:queue] */
  opipe_status (*update_many)(opipe_queue *queue, const opipe_update *update,
                              const opipe_update_part *parts, uint32_t n, opipe_error *err);
  /* Gives the same bits as sum_squares for each of dst, src [n]. [step:queue] */
  opipe_status (*sum_squares_many)(opipe_queue *queue, const opipe_region *dst,
                                   const opipe_region *src, uint32_t n, opipe_error *err);

  /* -- kernels chosen by measuring; all four or none; without them the backend has no such choice
   * -- */
  /* One line that says what choices depend on besides `what`: chip, number of processors, versions
   * of libraries. Choices are valid on any device that writes the same line. room: size of
   * out_text, NUL included; LIMIT: too small. [any-thread] */
  opipe_status (*kernels_fit)(opipe_device *device, char *out_text, uint64_t room,
                              opipe_error *err);
  /* Sets the choices for programs compiled from now on, where a kernel's `what` is among `kernels`
   * [n] (elements are `struct_size` of the first apart; copied). n 0: removes all. INVALID: a
   * choice that cannot be read, or the same `what` twice; nothing has changed then. [control] */
  opipe_status (*kernels_use)(opipe_device *device, const opipe_kernel *kernels, uint32_t n,
                              opipe_error *err);
  /* The program's kernels that have a choice; equal ones may appear several times. *io_count and
   * out_kernels as for program_params. [any-thread] */
  opipe_status (*program_kernels)(const opipe_program *program, opipe_kernel *out_kernels,
                                  uint32_t *io_count, opipe_error *err);
  /* Measures the program's kernel with io_kernel->what: runs each candidate `n_runs` times on
   * random data, drops those whose bits were not the same in every run, and chooses the fastest of
   * the others. Fills all of *io_kernel. Takes device memory (STAGING) and gives it back; nothing
   * else may run on the device. Errors: NOTFOUND: the program has no such kernel; UNSUPPORTED: no
   * candidate gave the same bits in every run. [control] */
  opipe_status (*kernel_tune)(opipe_program *program, const opipe_tune_params *params,
                              opipe_kernel *io_kernel, opipe_error *err);

  /* -- times by the device's own clock; both or neither; without them the device reports no times
   * -- */
  /* An event that also keeps the time at which the queue reached it: all earlier work was done, and
   * so was everything that the queue waited for. Otherwise as event_create; recording it may cost
   * more. [control] */
  opipe_status (*event_create_timed)(opipe_device *device, opipe_event **out_event,
                                     opipe_error *err);
  /* Time from `from` to `to` in nanoseconds; negative if `to` was first. Both are timed and
   * complete; they may be of different queues and openings of one device. The clock may step by a
   * microsecond and long times have only a float's precision, so use events that are close
   * together. Late errors are not reported. PENDING: one is not complete. Errors: INVALID: one is
   * not timed, was never recorded, or belongs to another device. [any-thread] */
  opipe_status (*event_elapsed)(opipe_event *from, opipe_event *to, int64_t *out_ns,
                                opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 5
  /* dst = src[0] + src[1] + ... of `src` [n], n at least 1, element by element and in this order;
   * NULL: collectives of ranks on one device go through host memory. dtype: float64, added in
   * float64; float32, float16 or bfloat16, added in float32 and rounded once, to nearest even.
   * Regions have equal sizes, of whole elements, at any offset that is a multiple of the element's
   * size. dst may be one of `src`; otherwise it overlaps none. `src` is copied. Errors, by the
   * call: UNSUPPORTED: another type. [step:queue] */
  opipe_status (*sum)(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                      const opipe_region *src, uint32_t n, opipe_error *err);
  /* The rate at which `write` and `read` move bytes between the device and memory of host_alloc,
   * each way, in bytes per second, when both ways are busy; 0, or a slot that is NULL: unknown.
   * Plans that offload stashes predict times with it. [any-thread] */
  opipe_status (*host_rate)(opipe_device *device, double *out_bytes_per_second, opipe_error *err);

  /* -- runs in parts; both or neither; without them a program runs as a whole -- */
  /* A run passes the places 0 to *out_n, in this order; 0: it has no parts. out_ends [n_params of
   * the program's graph]: the place from which on a run writes no accumulator of that slot; 0: the
   * program has none, or no parts. [control] */
  opipe_status (*program_places)(const opipe_program *program, uint32_t *out_ends, uint32_t *out_n,
                                 opipe_error *err);
  /* The part of a run from place `from` to place `to`, from < to. Parts that follow each other from
   * 0 to the last place give the bits of `run`, with the same scalars in each; between them
   * nothing else runs in the binding's arena slot. Errors: those of run; INVALID: no such part.
   * [step:queue] */
  opipe_status (*run_part)(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                           uint32_t n_scalars, uint32_t from, uint32_t to, opipe_error *err);

  /* -- memory of other devices and processes -- */
  /* How work of device `index` gets at memory of device `other` of this backend, which may be the
   * same one; numbers as in device_open. *out_reach: OPIPE_REACH_*. NULL: a device reaches nothing
   * but itself, and nothing is shared with other processes. Contains nothing measured. Errors:
   * NOTFOUND: there is no such device. [any-thread] */
  opipe_status (*device_reach)(opipe_instance *self, uint32_t index, uint32_t other,
                               uint32_t *out_reach, opipe_error *err);
  /* The next five: all or none; they need device_reach. */
  /* Makes a handle by which other processes of the machine can open the buffer, of buffer_alloc.
   * Errors: UNSUPPORTED: the device or the driver cannot. [control] */
  opipe_status (*buffer_share)(opipe_buffer *buffer, opipe_shared *out_shared, opipe_error *err);
  /* Nobody opens the buffer by its handle from now on. all_closed 0: a process may still have it
   * open. buffer_free then gives its bytes back to the device's cap, but leaves the memory to the
   * driver until this process ends. Called before buffer_free. [control] */
  void (*buffer_unshare)(opipe_buffer *buffer, uint32_t all_closed);
  /* Opens a buffer that a process of this machine has shared, or this one; its first n_bytes can
   * be copied to and from. It is not counted. buffer_free closes it, before its owner frees it, in
   * any order if its owner's process has ended. Errors: INVALID: another driver, a device that this
   * one does not reach, or a size, with both values; DEVICE: the handle is stale. [control] */
  opipe_status (*buffer_open)(opipe_device *device, const opipe_shared *shared, uint64_t n_bytes,
                              opipe_buffer **out_buffer, opipe_error *err);
  /* An event that other processes can open by the handle. Otherwise as event_create. Errors: as of
   * buffer_share. [control] */
  opipe_status (*event_create_shared)(opipe_device *device, opipe_event **out_event,
                                      opipe_shared *out_shared, opipe_error *err);
  /* Opens it, to be waited for, polled and synchronised with, as it was last recorded at the time
   * of that call; it takes over no errors, and event_record answers STATE. Errors: as of
   * buffer_open. [control] */
  opipe_status (*event_open)(opipe_device *device, const opipe_shared *shared,
                             opipe_event **out_event, opipe_error *err);
#endif
} opipe_backend;

/* 1.3. The handle that `native` returns, by object. */
enum {
  OPIPE_NATIVE_DEVICE = 0, /* object: NULL. CUDA: the ordinal */
  OPIPE_NATIVE_QUEUE = 1,  /* opipe_queue. CUDA: a CUstream */
  OPIPE_NATIVE_BUFFER = 2, /* opipe_buffer. CUDA: the CUdeviceptr of its first byte */
  OPIPE_NATIVE_EVENT = 3,  /* opipe_event. CUDA: a CUevent */
  OPIPE_NATIVE_KIND = 4    /* object: NULL. DLPack's type of this memory, OPIPE_DL_*; DEVICE is then
                              its device_id. CUDA: 2 */
};

/* Host service for backends built on another one (an emulator, a tracer, a device whose missing
 * operators another backend runs): opipe_host.get_interface(ctx, OPIPE_BACKEND_LOOKUP_ID). Settled
 * in 1.3. Hosts also answer the earlier id, "opipe.backends/0", with the same table; older hosts
 * have only `find` in it. */
#define OPIPE_BACKEND_LOOKUP_ID "opipe.backends/1"
#define OPIPE_BACKEND_LOOKUP_0_ID "opipe.backends/0"
typedef struct opipe_backend_lookup {
  uint32_t struct_size;
  uint32_t reserved;
  /* Opens backend `id` if need be; the table is valid until the calling plugin's close. To be
   * called within that plugin's open. ctx: opipe_host.ctx. [control] */
  opipe_status (*find)(void *ctx, const char *id, const opipe_backend **out_table,
                       opipe_instance **out_self, opipe_error *err);
#if OPIPE_TARGET_MINOR >= 3
  /* Counts what the calling backend takes of device `index` of backend `id` in addition to what
   * that device's own device_usage reports: `threads` more compute threads and `n_bytes` more
   * memory; negative: given back. Bytes count against the host's budget for the device, threads in
   * the check whether there are enough cores. Errors: LIMIT, with both numbers; nothing was
   * counted. Giving back never fails. [any-thread] */
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
  /* Says that `n_bytes` at `data`, part of some opipe_param_source.data, have been read and will
   * not be needed for a while. Pages of a file that the library has mapped may then leave memory; a
   * later read gets the same bytes. Other memory is left alone. A backend that calls this tensor by
   * tensor, or piece by piece, never holds a model's weights in memory twice. ctx: opipe_host.ctx.
   * [any-thread] */
  void (*drop)(void *ctx, const void *data, uint64_t n_bytes);
} opipe_host_pages;

#include "frozen/backend.h"
static const opipe_struct_row opipe_rows_of_OPIPE_KIND_BACKEND[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI, OPIPE_ROWS_TYPES, OPIPE_ROWS_BACKEND};

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_BACKEND_H */
