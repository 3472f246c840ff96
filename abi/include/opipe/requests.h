/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, and the parts of a request: tensors, fences, callbacks; part of host.h.
 *
 * A tensor is in host memory or, from 1.3 on, in device memory. device_type and device_id are those
 * of DLPack, as the backend reports them (OPIPE_NATIVE_KIND, OPIPE_NATIVE_DEVICE of backend.h;
 * CUDA: 2 and the ordinal in this process).
 *   Device memory never passes through the host, and every rank of the session that touches it must
 * be on that device. It is used in place if it is dense and every part that a program takes begins
 * at a multiple of the device's alignment; otherwise it is copied in queue order. The same memory
 * may be passed again and again; it is never announced. Tensors that the host must read before a
 * device does have to be in host memory: values that decide shapes, labels, outputs that are also
 * inputs or known values, and all outputs of training sessions.
 *   A native `ready` fence holds up only its own stream, up to the request's deadline. While all
 * requests of a session belong to one stream, the device itself waits for the fence of a device
 * tensor, and does its earlier work in order. If the request has a deadline, if the session has
 * seen a second stream, or if the tensor is in host memory, the library polls the fence as it polls
 * a flag, and the request is queued (request_queued) once the fence is set. A fence that a device
 * already waits for when the second stream begins still comes first, so a fence that may never be
 * set needs a deadline. Training counts as one stream. After a session has failed, its device
 * memory belongs to the host again when session_close has returned.
 */
#ifndef OPIPE_REQUESTS_H
#define OPIPE_REQUESTS_H

#include "state.h"
#include "team.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sessions ---- */

enum {
  OPIPE_THREADS_LIBRARY = 0, /* one executor thread per rank, started by the session */
  OPIPE_THREADS_HOST = 1     /* the host drives each rank: session_drive */
};
enum {
  OPIPE_SESSION_CHECK_FINITE =
      1u, /* a NaN or infinity in any node's output fails the request, naming the node */
  OPIPE_SESSION_REFERENCE = 2u, /* runs the plan's stages one by one, without schedule and
                                   transport, in the submitting thread (if a fence is not set yet,
                                   in a thread that polls or waits). Training then keeps every
                                   tensor and is not held to the plan's memory caps */
  OPIPE_SESSION_POISON = 4u,    /* tests: freed memory is overwritten, red zones are checked */
  OPIPE_SESSION_NO_BACKEND_FUSE = 8u,
  OPIPE_SESSION_KEEP_GRADIENTS = 16u, /* gradients can be read until the next step */
  OPIPE_SESSION_HOLD = 32u,  /* a training step that is not finite stops all updates, those of steps
                                in flight included: parameters stay as that step had them until a
                                clock or a checkpoint is set */
  OPIPE_SESSION_TUNED = 64u, /* 1.3: opens only if every kernel is as the plan's tables say */
  OPIPE_SESSION_TRACE = 128u, /* 1.3: session_trace uses the devices' own clocks where their
                                 backends have one; programs take a little longer */
  /* 1.5, with `team`; alike in all its processes. Values travel by the transport, in host memory
   * that is kept with the request, and without fences on them.
   *   INPUTS_OF_0   process 0 gives the inputs, and labels, of all: each other process gets the
   *                 rows that its ranks read before they begin. The others give shapes; their data
   *                 are not read, but for inputs whose values decide shapes
   *   OUTPUTS_TO_0  process 0 has all outputs when a request ends, the others those that they make
   *   FOLLOWED      with both: process 0 alone calls, from any thread; the others are in
   *                 session_follow. Followed are session_submit, session_evaluate,
   *                 session_state_open, state_reset, _copy, _close, request_cancel and
   *                 session_close; process 0's other calls that need all processes are UNSUPPORTED.
   *                 A plan with `generation` sets all three
   */
  OPIPE_SESSION_INPUTS_OF_0 = 256u,
  OPIPE_SESSION_OUTPUTS_TO_0 = 512u,
  OPIPE_SESSION_FOLLOWED = 1024u
};

#if OPIPE_TARGET_MINOR >= 5
/* The device that a process takes in place of the plan's, for one of its ranks. */
typedef struct opipe_rank_device {
  uint32_t rank;
  uint32_t index;        /* of the backend's devices here; OPIPE_NONE: the plan's */
  uint32_t threads;      /* 0: the plan's */
  uint32_t reserved;     /* 0 */
  uint64_t memory_bytes; /* 0: the plan's */
} opipe_rank_device;
#endif

typedef struct opipe_session_params {
  uint32_t struct_size;
  uint32_t threads;       /* OPIPE_THREADS_LIBRARY | _HOST */
  uint32_t flags;         /* OPIPE_SESSION_* */
  uint32_t max_in_flight; /* requests accepted before submit answers OPIPE_PENDING; 0: 2 x stages */
  uint64_t watchdog_ns;   /* a rank with work that makes no progress for so long fails the session;
                             0: 60 s */
  uint32_t spin_us;    /* how long a waiting rank spins before it sleeps, and request_wait if cores
                          are left; UINT32_MAX: the library's choice */
  uint32_t max_shapes; /* shapes kept compiled, 0: 8 */
#if OPIPE_TARGET_MINOR >= 2
  const uint32_t *local_ranks; /* [n_local_ranks] ranks of the plan that run here (guide: hosts) */
  uint32_t n_local_ranks;      /* 0: all */
  uint32_t reserved;           /* 0 */
#endif
#if OPIPE_TARGET_MINOR >= 5
  opipe_team *team; /* its processes open the session together, each with ranks of its own; without
                       local_ranks, process w of W runs ranks w * P / W to (w + 1) * P / W - 1 of P.
                       A process that refuses is the answer for all; one that fails later fails the
                       session everywhere. NULL: none */
  /* With team: sessions of one name meet, so that several can be open, and be opened by different
   * threads in different order; at most 40 bytes. NULL: the fingerprint of the plan's model and how
   * many of this team's sessions had it before. */
  const char *name;
  const char *transport_options; /* in place of those of the plan's transport; NULL: the plan's */
  const opipe_rank_device *devices; /* [n_devices] facts of this machine, outside the plan's hash */
  uint32_t n_devices, devices_stride; /* bytes from one to the next */
#endif
} opipe_session_params;

typedef struct opipe_session_info {
  uint32_t struct_size;
  uint32_t n_ranks;
  uint64_t requests_done;
  uint64_t requests_failed;
  uint64_t shapes_compiled; /* since the session was opened */
  uint64_t busy_ns;         /* time in programs, summed over ranks */
  uint64_t reserved;
#if OPIPE_TARGET_MINOR >= 5
  uint64_t travelled_bytes; /* of inputs and outputs that came from other processes or went there */
  uint32_t streams_by_way[8]; /* streams of messages with an end here, by OPIPE_WAY_* (transport.h);
                                 [0]: by one that the transport does not tell */
#endif
} opipe_session_info;

/* ---- memory: of a plan, of a session ---- */

/* ESTIMATED: the numbers are not exact, because the rank's device cannot be asked from here.
 * TRAVELS (1.5): set by the caller of plan_memory, for sessions with OPIPE_SESSION_INPUTS_OF_0 or
 * _OUTPUTS_TO_0 of a team's plan: with the buffers of values that travel. Always set for a team's
 * plan with `generation`, all of whose sessions have both. */
enum { OPIPE_MEMORY_ESTIMATED = 1u, OPIPE_MEMORY_TRAVELS = 2u };

/* Bytes of one rank. */
typedef struct opipe_memory_info {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t flags; /* OPIPE_MEMORY_* */
  uint32_t reserved;
  uint64_t params_bytes;
  uint64_t activation_bytes;
  uint64_t workspace_bytes;
  uint64_t boundary_bytes;
  uint64_t gradient_bytes;
  uint64_t optimizer_bytes;
  uint64_t version_bytes;
  uint64_t stash_bytes;
  uint64_t total_bytes;
  uint64_t cap_bytes;    /* UINT64_MAX: none */
  uint64_t mapped_bytes; /* weight files used in place; not in total */
#if OPIPE_TARGET_MINOR >= 2
  uint64_t state_bytes;  /* kept by streams: predicted for the plan's n_streams, measured for those
                            that are open */
  uint64_t stream_bytes; /* of one stream with the plan's capacities, on its replica */
#endif
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* host memory for nodes that the device lacks; not in total */
#endif
#if OPIPE_TARGET_MINOR >= 5
  uint64_t offload_bytes; /* host memory in which stashes wait between forwards and backwards; not
                             in total, nor in host_bytes */
  uint64_t staging_bytes; /* pinned host memory that messages between devices go through; not in
                             total, nor in host_bytes */
#endif
} opipe_memory_info;

/* ---- requests ---- */

typedef struct opipe_request opipe_request;

/* A named tensor of a request. */
typedef struct opipe_binding_io {
  const char *name;
  opipe_tensor tensor;
  opipe_fence ready; /* inputs: when it may be read; outputs: when it may be written */
  opipe_fence done;  /* set when the library has finished with the tensor. Native fences are set
                        once the work that touches it is queued, at the latest when the request has
                        finished; not allowed for outputs in host memory; events only if a single
                        rank touches the tensor */
} opipe_binding_io;

typedef struct opipe_submit_params {
  uint32_t struct_size;
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t io_stride; /* bytes from element to element of both arrays */
  const opipe_binding_io
      *inputs; /* every graph input, in any order; borrowed until the request has finished */
  const opipe_binding_io *outputs; /* the caller's buffers for some or all outputs (dense); others
                                      belong to the library until request_release */
  uint64_t stream;                 /* requests of one stream finish in the order of submission */
  uint64_t deadline_ns; /* relative; 0: none. After it the request fails with OPIPE_E_TIMEOUT; a
                           training step only if it has not begun (double-buffered: UNSUPPORTED) */
  /* NULL: none. Called once for each request that was submitted, when it has finished and its
   * memory belongs to the host again; request_wait and request_poll report the end after this
   * returns. status: how the request ended.
   *   [callback: on the thread that ends the request: a rank's, or one inside session_submit
   * (REFERENCE with all fences set: before it returns), session_drive, request_cancel, _poll, _wait
   * or session_close]
   *   It must be short. It may call request_poll, _output, _report, _cancel and _release, for this
   * request too; all other functions of the table answer OPIPE_E_STATE inside it. `request` is a
   * stale handle if the host has released it. */
  void (*on_done)(void *ctx, opipe_request *request, opipe_status status);
  void *on_done_ctx;
#if OPIPE_TARGET_MINOR >= 2
  opipe_state *state; /* state of the request's stream, in place of `stream`; NULL: none */
#endif
#if OPIPE_TARGET_MINOR >= 3
  /* NULL: none. Asks for the memory of each output that is not among `outputs` and that ranks here
   * make, in model order, once its shape is known. `tensor` has type and shape, dense, and is valid
   * for the call. The callback sets *out_data to n_bytes of memory, borrowed as `outputs` are, or
   * leaves it NULL: the output then belongs to the library. A negative status makes submit fail
   * with it. A submit that fails or answers OPIPE_PENDING has written nothing, and asks again next
   * time. The memory must be on the device in `tensor`: the host, or with DEVICE_OUTPUTS another
   * one. [callback: inside session_submit; it may call what on_done may; other functions of the
   * table answer OPIPE_E_STATE] */
  opipe_status (*on_output)(void *ctx, uint32_t index, const opipe_tensor *tensor, uint64_t n_bytes,
                            void **out_data);
  void *on_output_ctx;
  uint32_t flags;     /* OPIPE_SUBMIT_* */
  uint32_t reserved2; /* 0 */
  double lr;          /* with SUBMIT_LR: 0 to OPIPE_LR_MOST; 0 without */
#endif
} opipe_submit_params;
/* 1.3.
 *   DEVICE_OUTPUTS (session_submit only): outputs that are not among `outputs` stay on the device
 * of the rank that makes all of them, if it has addresses to give (CUDA), until request_release.
 * Their memory is counted, and kept for later requests.
 *   LR (session_train_step only): this step's learning rate is `lr` instead of that of the plan's
 * options and their schedule; sessions that share a plan's ranks must pass the same. The rest of
 * the optimizer follows from the steps before. */
enum { OPIPE_SUBMIT_DEVICE_OUTPUTS = 1u, OPIPE_SUBMIT_LR = 2u };
/* 1.4: the call that session_submit_wait makes. */
enum { OPIPE_START_REQUEST = 0, OPIPE_START_STEP = 1, OPIPE_START_EVALUATION = 2 };

#include "frozen/requests.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_REQUESTS_H */
