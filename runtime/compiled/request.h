/* SPDX-License-Identifier: Apache-2.0 */
/* A request as the ranks see it: its inputs, its results, its progress.
 *
 * The requests layer owns the memory and keeps the caller's side (`caller`) beside it.
 *
 *     fate        fail            fail_at, a lower stage         close
 *   OPEN ──► WRITTEN ──► FAILED ──► WRITTEN ──► FAILED ────────────────► TOLD
 *     │                                                          ▲
 *     ├─── seal (peers) ──► SEALED ──┬─ judge ──► WRITTEN ───────┘(by way of FAILED)
 *     │                              │                 close
 *     └──────────────────────────────┴────────────────────────► DONE
 *
 *   OPEN     any thread may fail it
 *   WRITTEN  one thread writes `error`, or copies it (opi_request_reason), within a few
 *            instructions; other threads spin
 *   FAILED   `error` and `failed_stage` are valid; bad data noticed at a lower stage rewrites them
 *   SEALED   succeeded in this session; only the verdict of the session with rank 0 can fail it
 *   TOLD     handed back as failed: `error` never changes again, and the host may copy it
 *   DONE     handed back as done: it cannot fail any more
 *
 * There is no lock. Every transition is one compare-and-exchange on `fate`, and the thread that
 * makes it owns `error` until it leaves WRITTEN. So `error` is never read while it is rewritten:
 * before TOLD it is copied in WRITTEN, and from TOLD on nobody writes it.
 */
#ifndef OPI_REQUEST_H
#define OPI_REQUEST_H

#include "runtime/device/device.h"
#include "runtime/weights/weights.h"

enum {
  OPI_FATE_OPEN = 0,
  OPI_FATE_WRITTEN = 1,
  OPI_FATE_FAILED = 2,
  OPI_FATE_SEALED = 3,
  OPI_FATE_TOLD = 4,
  OPI_FATE_DONE = 5
};

/* Has a rank begun the request? If it is withdrawn first (NEVER), it ends for the caller at once,
 * and the ranks pass it by in their order. */
enum { OPI_BEGUN_NO = 0, OPI_BEGUN_YES = 1, OPI_BEGUN_NEVER = 2 };

/* data: a device's address if on_device; the host never touches it then. */
typedef struct opi_feed {
  const char *data; /* first element */
  int64_t shape[OPIPE_MAX_RANK];
  int64_t strides[OPIPE_MAX_RANK]; /* elements */
  bool given;                      /* false: pinned by the plan */
  bool absent;                     /* given by its shape alone: no rank here reads it */
  bool on_device;                  /* of this type and number: */
  int32_t device_type, device_id;  /* DLPack's */
  opipe_fence ready, done;
} opi_feed;

/* How much of a result the ranks here make. SOME: replicas of the last stage make some rows each.
 * KEPT: the request's stream keeps the result. */
enum { OPI_MADE_NONE = 0, OPI_MADE_SOME = 1, OPI_MADE_ALL = 2, OPI_MADE_KEPT = 3 };

typedef struct opi_result {
  char *data; /* the caller's, or `own` */
  char *own;  /* kept from request to request */
  uint64_t own_bytes;
  opi_block block;     /* the library's own on a device, kept too */
  uint32_t block_rank; /* the rank that has it */
  uint64_t n_bytes;
  uint32_t rank;
  uint32_t made; /* OPI_MADE_* */
  bool on_device;
  int32_t device_type, device_id;
  int64_t shape[OPIPE_MAX_RANK];
  opipe_fence ready, done;
} opi_result;

enum { OPI_TICKET_TRAIN = 0, OPI_TICKET_EVALUATE = 1 };

/* A training step's or evaluation's part of a request. */
typedef struct opi_ticket {
  uint32_t kind;         /* OPI_TICKET_* */
  double *losses;        /* [n_microbatches * n_pieces] each written by the rank that computes it */
  bool shifted, counted; /* of its labels: has that been done? */
  bool is_told;          /* the labels are elsewhere: `count` comes with the verdict */
  bool wanted;           /* double-buffered: somebody waits for it; submit_lock */
  bool has_lr;           /* `lr` is the host's learning rate */
  double lr;
  double count;               /* valid labels of the mini-batch */
  double sums[OPI_MOST_SUMS]; /* the other numbers that its loss is made of */
  uint64_t step;              /* double-buffered, and reference: the scalar STEP */
  uint64_t start_ns;
  _Atomic uint64_t end_ns;
  int64_t *labels; /* shifted copy, kept from ticket to ticket */
  uint64_t labels_bytes;
  opi_feed judge;         /* shifted labels for the labels' port; data NULL: they are not shifted */
  opi_step_report report; /* the same on all ranks */
  double loss;
  _Atomic double told_loss;  /* by the session with rank 0, if that is another one */
  _Atomic double told_count; /* the same; in that session, by the one that counts */
} opi_ticket;

/* Host memory for an input that comes from another process, kept from request to request. */
typedef struct opi_landing {
  char *data;
  uint64_t n_bytes;
} opi_landing;

struct opi_shape;
struct opi_compiled;
struct opi_caller; /* requests/ */
struct opi_lent;   /* lent_kit.h */
struct opi_stream; /* stream.h */

typedef struct opi_request {
  opi_setup *setup;
  struct opi_caller *caller;
  opi_ticket *ticket; /* NULL in inference */
  /* written by submit, before the ranks get the request */
  uint64_t number;      /* counts the session's requests */
  uint64_t order;       /* counts the requests that the ranks got */
  uint64_t deadline_ns; /* absolute; 0: none */
  struct opi_shape *shape;
  struct opi_compiled *runs;      /* of `shape`; valid while it counts in shape->n_users */
  uint64_t body;                  /* counts the bodies of its shape's requests */
  uint32_t position;              /* in that body */
  uint32_t n_microbatches;        /* with rows in them */
  int64_t rows;                   /* of the whole request */
  struct opi_stream *stream_kept; /* whose pairs it reads and writes; NULL: none */
  opipe_binding **bound; /* [steps of `runs`] in place of the shape's; NULL entries: the shape's */
  uint64_t sequence;     /* counts the requests of that stream */
  uint32_t turn;         /* which of the stream's buffers it reads */
  bool is_gap;           /* without a caller: it takes the place of another replica's request */
  bool has_plain;        /* an output is a copy of an input, or a constant */
  bool lends;            /* the host lent it tensors or fences of a device */
  struct opi_lent *lent; /* kept from request to request; NULL: never needed yet */
  opi_feed *feeds;       /* [setup->n_inputs] */
  opi_result *results;   /* [setup->n_outputs] */
  opi_landing *come;     /* [setup->n_inputs + 1] of inputs, then of shifted labels; NULL: none */
  /* any thread */
  _Atomic uint32_t failed;         /* OPI_FATE_* */
  _Atomic uint32_t begun;          /* OPI_BEGUN_* */
  _Atomic uint32_t failed_stage;   /* with `error`; OPIPE_NONE: before any stage */
  opipe_error error;               /* see above */
  _Atomic uint32_t n_ranks_left;   /* ranks here that have not left it */
  _Atomic uint32_t n_taking_left;  /* ranks among these that have steps of it */
  _Atomic uint32_t n_reports_left; /* ranks here that have not told the other sessions */
  _Atomic uint32_t n_travels_left; /* inputs and outputs on their way to or from other processes */
} opi_request;

static inline bool opi_request_failed(const opi_request *request) {
  const uint32_t fate = atomic_load_explicit(&request->failed, memory_order_acquire);
  return fate == OPI_FATE_WRITTEN || fate == OPI_FATE_FAILED || fate == OPI_FATE_TOLD;
}
static inline bool opi_request_withdrawn(const opi_request *request) {
  return atomic_load_explicit(&request->begun, memory_order_acquire) == OPI_BEGUN_NEVER;
}
/* The first reason stays; false: the request had one already, or cannot fail. */
bool opi_request_fail(opi_request *request, const opipe_error *why);
/* The same for a reason noticed at a stage. Bad data of a lower stage replaces that of a higher
 * one.
 */
bool opi_request_fail_at(opi_request *request, uint32_t stage, const opipe_error *why);
/* Fails the request even if it is SEALED. */
void opi_request_judge(opi_request *request, const opipe_error *why);
/* From now on only a verdict can fail the request. */
void opi_request_seal(opi_request *request);
/* FAILED becomes TOLD, any other fate DONE. */
void opi_request_close_fate(opi_request *request);
/* Copies the reason and its stage; false: it has not failed. */
bool opi_request_reason(opi_request *request, opipe_error *out_why, uint32_t *out_stage);

#endif /* OPI_REQUEST_H */
