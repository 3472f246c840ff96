/* SPDX-License-Identifier: Apache-2.0 */
/* A request as the ranks see it: what was given, what is to be made, how far it has got.
 *
 * Its memory is the requests layer's, which keeps the caller's side (`caller`) beside it.
 *
 *     fate        fail            fail_at, a lower stage         close
 *   OPEN ──► WRITTEN ──► FAILED ──► WRITTEN ──► FAILED ────────────────► TOLD
 *     │                                                          ▲
 *     ├─── seal (peers) ──► SEALED ──┬─ judge ──► WRITTEN ───────┘(by way of FAILED)
 *     │                              │                 close
 *     └──────────────────────────────┴────────────────────────► DONE
 *
 *   OPEN     any thread may fail it
 *   WRITTEN  one thread is at `error`: it writes it, or copies it (opi_request_reason). A few
 *            instructions long; whoever comes meanwhile spins
 *   FAILED   `error` and `failed_stage` hold; bad data noticed at a lower stage rewrites them
 *   SEALED   well done in this session; only the verdict of the session with rank 0 fails it
 *   TOLD     handed back as failed: `error` never changes again, and the host may copy it
 *   DONE     handed back as done: it fails no more
 *
 * No lock: every arrow is one compare-and-exchange on `fate`, and who makes it owns `error` until
 * it leaves WRITTEN. So `error` is never read while it is rewritten: before TOLD it is copied in
 * WRITTEN, from TOLD on nobody writes.
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

/* Has a rank begun it? Who withdraws it first (NEVER) ends it for the caller at once; the ranks
 * pass it by in their order. */
enum { OPI_BEGUN_NO = 0, OPI_BEGUN_YES = 1, OPI_BEGUN_NEVER = 2 };

/* data: an address of the device's where it lies on one, which the host does not touch. */
typedef struct opi_feed {
  const char *data; /* first element */
  int64_t shape[OPIPE_MAX_RANK];
  int64_t strides[OPIPE_MAX_RANK]; /* elements */
  bool given;                      /* false: pinned by the plan */
  bool on_device;                  /* of kind and number: */
  int32_t device_type, device_id;  /* DLPack's */
  opipe_fence ready, done;
} opi_feed;

/* How much of a result the ranks here make; replicas of the last stage make some of the rows each.
 * KEPT: the request's stream keeps it. */
enum { OPI_MADE_NONE = 0, OPI_MADE_SOME = 1, OPI_MADE_ALL = 2, OPI_MADE_KEPT = 3 };

typedef struct opi_result {
  char *data; /* the caller's, or `own` */
  char *own;  /* kept from request to request */
  uint64_t own_bytes;
  opi_block block;     /* the library's own on a device, kept too */
  uint32_t block_rank; /* of which rank */
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
  double *losses;        /* [n_microbatches * n_pieces] written by the rank that computes each */
  bool shifted, counted; /* its labels are */
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
  opi_feed judge;         /* the labels' port reads that copy; data NULL: they are not shifted */
  opi_step_report report; /* all ranks have the same */
  double loss;
  _Atomic double told_loss; /* where rank 0 is in another session */
} opi_ticket;

struct opi_shape;
struct opi_compiled;
struct opi_caller; /* requests/ */
struct opi_lent;   /* lent_kit.h */
struct opi_stream; /* stream.h */

typedef struct opi_request {
  opi_setup *setup;
  struct opi_caller *caller;
  opi_ticket *ticket; /* NULL: of an inference session */
  /* submit writes, before the ranks get it */
  uint64_t number;      /* counts the session's requests */
  uint64_t order;       /* counts those that the ranks got */
  uint64_t deadline_ns; /* absolute; 0: none */
  struct opi_shape *shape;
  struct opi_compiled *runs;      /* of `shape`; valid while `shape` is counted on */
  uint64_t body;                  /* of its shape's requests */
  uint32_t position;              /* in that body */
  uint32_t n_microbatches;        /* that hold rows */
  int64_t rows;                   /* of the whole request */
  struct opi_stream *stream_kept; /* whose pairs it reads and writes; NULL: none */
  opipe_binding **bound; /* [steps of `runs`] in place of the shape's; NULL entries: the shape's */
  uint64_t sequence;     /* counts the requests of that stream */
  uint32_t turn;         /* which of the stream's buffers it reads */
  bool is_gap;           /* nobody's: it stands in for another replica's request */
  bool has_plain;        /* an output is an input or a known value */
  bool lends;            /* it was given tensors or fences of a device */
  struct opi_lent *lent; /* kept from request to request; NULL: none has been */
  opi_feed *feeds;       /* [setup->n_inputs] */
  opi_result *results;   /* [setup->n_outputs] */
  /* any thread */
  _Atomic uint32_t failed;         /* OPI_FATE_* */
  _Atomic uint32_t begun;          /* OPI_BEGUN_* */
  _Atomic uint32_t failed_stage;   /* with `error`; OPIPE_NONE: before any stage */
  opipe_error error;               /* see above */
  _Atomic uint32_t n_ranks_left;   /* ranks here that have not left it */
  _Atomic uint32_t n_taking_left;  /* the same of those that have steps of it */
  _Atomic uint32_t n_reports_left; /* the same of those that have not told the other sessions */
} opi_request;

static inline bool opi_request_failed(const opi_request *request) {
  const uint32_t fate = atomic_load_explicit(&request->failed, memory_order_acquire);
  return fate == OPI_FATE_WRITTEN || fate == OPI_FATE_FAILED || fate == OPI_FATE_TOLD;
}
static inline bool opi_request_withdrawn(const opi_request *request) {
  return atomic_load_explicit(&request->begun, memory_order_acquire) == OPI_BEGUN_NEVER;
}
/* The first reason stays; false: it was not this one. */
bool opi_request_fail(opi_request *request, const opipe_error *why);
/* The same, noticed at a stage: bad data of a lower stage replaces that of a higher one. */
bool opi_request_fail_at(opi_request *request, uint32_t stage, const opipe_error *why);
/* Fails also what is SEALED. */
void opi_request_judge(opi_request *request, const opipe_error *why);
/* No rank here fails it any more. */
void opi_request_seal(opi_request *request);
/* FAILED becomes TOLD, else DONE. */
void opi_request_close_fate(opi_request *request);
/* Copies the reason and its stage; false: it has not failed. */
bool opi_request_reason(opi_request *request, opipe_error *out_why, uint32_t *out_stage);

#endif /* OPI_REQUEST_H */
