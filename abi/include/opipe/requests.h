/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, and what a host gives with a request: tensors, fences, whom to tell; part of host.h.
 *
 * A tensor lies in host memory, or from 1.3 on in that of a device: device_type and device_id are
 * those of DLPack, as a backend tells them (OPIPE_NATIVE_KIND, OPIPE_NATIVE_DEVICE of backend.h;
 * CUDA: 2 and the ordinal in this process). Every rank of this session that touches it must be on
 * that device. It never passes through the host: it is used in place where it is dense and every
 * part that a program takes begins at a multiple of the device's alignment, else copied in queue
 * order. Memory may be given again and again without being announced. What is the host's business
 * before a device comes to it lies in host memory: values that decide shapes, labels, outputs that
 * are inputs or known values, all outputs of training sessions.
 *   A native `ready` fence holds up its own stream alone, up to the request's deadline. As long as
 * all requests of a session are of one stream that of device memory is waited for by the device,
 * which does what it was given behind that wait in order. Where the request has a deadline, from
 * the first request of a second stream on, and where the tensor is the host's, it is looked at as a
 * flag is, and the request is queued (request_queued) once it has come. A fence that a device waits
 * for when the second stream begins still comes first: none that may never come goes without a
 * deadline. Training is one stream. Of a session that has failed, device memory is the host's again
 * when session_close has returned.
 */
#ifndef OPIPE_REQUESTS_H
#define OPIPE_REQUESTS_H

#include "state.h"

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
  OPIPE_SESSION_REFERENCE = 2u, /* the plan's own stages by a plain loop in the submitting thread
                                   (where a fence is not set yet, in one that polls or waits): no
                                   schedule, no transport. Training keeps every tensor then, and
                                   is not held to the plan's caps of memory */
  OPIPE_SESSION_POISON = 4u,    /* tests: freed memory overwritten, red zones checked */
  OPIPE_SESSION_NO_BACKEND_FUSE = 8u,
  OPIPE_SESSION_KEEP_GRADIENTS = 16u, /* gradients can be read until the next step */
  OPIPE_SESSION_HOLD = 32u,  /* a training step that is not finite ends all updates, those of steps
                                in flight too: parameters stay as that step had them, until a clock
                                or a checkpoint is set */
  OPIPE_SESSION_TUNED = 64u, /* 1.3: refused unless all kernels are as a table of the plan's says */
  OPIPE_SESSION_TRACE = 128u /* 1.3: session_trace has times of the devices' own clocks, where their
                                backends tell them; programs take a little longer then */
};

typedef struct opipe_session_params {
  uint32_t struct_size;
  uint32_t threads;       /* OPIPE_THREADS_LIBRARY | _HOST */
  uint32_t flags;         /* OPIPE_SESSION_* */
  uint32_t max_in_flight; /* requests accepted before submit answers OPIPE_PENDING; 0: 2 x stages */
  uint64_t watchdog_ns; /* a rank that has work, and makes no progress so long, ends it; 0: 60 s */
  uint32_t spin_us;    /* how long a waiting rank looks before it sleeps, and, where cores are left,
                          request_wait; UINT32_MAX: the library's choice */
  uint32_t max_shapes; /* shape signatures kept compiled, 0: 8 */
#if OPIPE_TARGET_MINOR >= 2
  const uint32_t *local_ranks; /* [n_local_ranks] of the plan: guide, hosts, "Some of the ranks" */
  uint32_t n_local_ranks;      /* 0: all */
  uint32_t reserved;           /* 0 */
#endif
} opipe_session_params;

typedef struct opipe_session_info {
  uint32_t struct_size;
  uint32_t n_ranks;
  uint64_t requests_done;
  uint64_t requests_failed;
  uint64_t shapes_compiled; /* shape signatures compiled since opening */
  uint64_t busy_ns;         /* sum over ranks of time in programs */
  uint64_t reserved;
} opipe_session_info;

/* ---- requests ---- */

typedef struct opipe_request opipe_request;

/* A named tensor of a request. */
typedef struct opipe_binding_io {
  const char *name;
  opipe_tensor tensor;
  opipe_fence ready; /* inputs: when it may be read; outputs: when it may be written */
  opipe_fence done;  /* set when the library has finished with it: native ones (not of outputs in
                        host  memory; events only where one rank touches it) once what touches it is
                        queued,  at the latest when the request has finished */
} opipe_binding_io;

typedef struct opipe_submit_params {
  uint32_t struct_size;
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t io_stride; /* bytes from element to element of both arrays */
  const opipe_binding_io
      *inputs; /* every graph input, any order; borrowed until the request has finished */
  const opipe_binding_io *outputs; /* caller's buffers for some or all outputs (dense); others stay
                                      the library's until request_release */
  uint64_t stream;                 /* requests of one stream finish in the order of submission */
  uint64_t deadline_ns; /* relative; 0: none. Passed: the request fails with OPIPE_E_TIMEOUT; a
                           training step only if it has not begun (double-buffered: UNSUPPORTED) */
  /* NULL: none. Called once for a request that was submitted, when it has finished: its memory is
   * the host's again, and request_wait and request_poll show it once this has returned. status: how
   * it ended. [callback: whichever thread ends it: a rank's, or one that is inside session_submit
   * (REFERENCE: before it returns, if all fences are set), session_drive, request_cancel, _poll,
   * _wait, or session_close]
   * It must be short, and may call request_poll, _output, _report, _cancel and _release (of this
   * request too); all other functions of the table answer OPIPE_E_STATE inside. `request` is a
   * stale handle where the host has released it before. */
  void (*on_done)(void *ctx, opipe_request *request, opipe_status status);
  void *on_done_ctx;
#if OPIPE_TARGET_MINOR >= 2
  opipe_state *state; /* of the stream that the request is of, in place of `stream`; NULL: none */
#endif
#if OPIPE_TARGET_MINOR >= 3
  /* NULL: none. Asked for the memory of each output, in model order, that is not among `outputs`
   * and that ranks here make, once its shape is known; `tensor` has type and shape, dense, for the
   * time of the call. Sets *out_data to room for it (n_bytes), borrowed as that of `outputs`, or
   * leaves it NULL: the output stays the library's. < 0: submit fails with this status. A submit
   * that fails or answers OPIPE_PENDING has written to nothing, and asks again the next time. The
   * memory is of the device that `tensor` says: the host, or with DEVICE_OUTPUTS another one.
   * [callback: inside session_submit; of the table's functions it may call those that on_done may:
   * the others answer OPIPE_E_STATE] */
  opipe_status (*on_output)(void *ctx, uint32_t index, const opipe_tensor *tensor, uint64_t n_bytes,
                            void **out_data);
  void *on_output_ctx;
  uint32_t flags;     /* OPIPE_SUBMIT_* */
  uint32_t reserved2; /* 0 */
  double lr;          /* with SUBMIT_LR: 0 to OPIPE_LR_MOST; 0 without */
#endif
} opipe_submit_params;
/* 1.3. DEVICE_OUTPUTS, session_submit alone: outputs that are not among `outputs` lie on the device
 * of the rank that makes all of them, where that has addresses to give (CUDA), until
 * request_release; its memory is counted, and kept for later requests.
 *   LR, session_train_step alone: this step's learning rate is `lr`, whatever the plan's options
 * and their schedule say; sessions that share a plan's ranks give the same. What else the optimizer
 * does follows from the steps before, as ever. */
enum { OPIPE_SUBMIT_DEVICE_OUTPUTS = 1u, OPIPE_SUBMIT_LR = 2u };
/* 1.4: what session_submit_wait starts, as session_submit, _train_step, _evaluate do. */
enum { OPIPE_START_REQUEST = 0, OPIPE_START_STEP = 1, OPIPE_START_EVALUATION = 2 };

#include "frozen/requests.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_REQUESTS_H */
