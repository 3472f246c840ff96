/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a session's ranks: the requests that they were given, and each rank's place in its
 * list.
 */
#ifndef OPI_WORKERS_H
#define OPI_WORKERS_H

#include "runtime/compiled/compiled.h"

/* Work that every rank does, in the order of submission. A double-buffered session begins with a
 * PROLOGUE, then runs bodies (ALL); a flush ends it with an EPILOGUE. Other sessions train by ALL
 * only. */
enum {
  OPI_ITEM_ALL = 0,
  OPI_ITEM_PROLOGUE = 1,
  OPI_ITEM_EPILOGUE = 2,
  OPI_ITEM_EVALUATE = 3,
  OPI_ITEM_REQUEST = 4 /* of inference: one request of a body */
};
typedef struct opi_item {
  opi_request *current; /* the mini-batch of ordinary steps */
  opi_request *next;    /* the mini-batch of steps with `next` set */
  opi_compiled *shape;  /* of both */
  uint64_t body;        /* REQUEST: counts its shape's bodies */
  uint32_t kind;
} opi_item;

/* A rank's place in a mini-batch or request. Only its thread writes it, except n_steps and n_done,
 * which loading a checkpoint sets between steps. */
typedef struct opi_cursor {
  opi_seat *busy;     /* shapes with sends that wait */
  uint32_t *reducing; /* [n_instances] REDUCE steps whose sums are under way; none in inference */
  uint32_t n_reducing;
  bool passing;  /* sums of this mini-batch were started before its REDUCEs */
  uint32_t end;  /* the step behind the item's last */
  uint32_t part; /* inputs or results of the step being tried that are done */
  opi_item item;
  opi_request *owed; /* a step that waits only for its norms */
  bool begun;
  bool posting; /* the first receives of a shape */
  bool finite;  /* the rank's part of the mini-batch's loss is finite */
  bool updated; /* reference: the rank's update of this mini-batch is done */
  bool second;  /* evaluation, double-buffered: the forwards that are not of the next mini-batch */
  /* Not double-buffered: training steps begun, ever; those of them before the mini-batch in work
   * (the scalar STEP); steps that the rank has done. */
  uint64_t n_steps, number;
  _Atomic uint64_t n_done;
  opipe_error bad; /* the error in a mini-batch's data; status 0: none */
  int64_t scalars[OPI_SCALAR_TABLE];
  char pad_[128]; /* keeps the next rank's cursor off this one's cache lines */
} opi_cursor;

/* A rank's activity, for the watchdog. */
enum { OPI_DOING_NOTHING = 0, OPI_DOING_STEP = 1, OPI_DOING_PROGRAM = 2 };

/* Written by the rank's thread for other threads to read. */
typedef struct opi_doing {
  _Atomic uint32_t doing;    /* OPI_DOING_* */
  _Atomic uint64_t since_ns; /* since when in a program or a blocked step; 0: it moves */
  _Atomic uint64_t request;
  _Atomic uint32_t kind, pass, stage, microbatch, peer;
  _Atomic uint32_t pieces; /* of a stage, in the shape that it works with */
} opi_doing;

/* A rank's thread, or the host thread that drives it. */
typedef struct opi_worker {
  opi_thread thread;
  struct opi_ahead *ahead;   /* work queued on an asynchronous device; NULL: it is synchronous */
  struct opi_stamps *stamps; /* times by the device's clock; NULL: by the host's */
  /* the interpreter's state, written by the rank's thread */
  char pad_[128];
  opi_cursor *cursor;
  opi_request *request;      /* in work; NULL: none */
  uint32_t step;             /* the next one in its shape's list */
  bool polls;                /* it waits for something without a doorbell */
  bool at_fence;             /* namely for a host's fence */
  uint64_t fence_ns;         /* since when; 0: it waits for none */
  uint32_t peer;             /* the rank that a blocked step waits for; OPIPE_NONE: none */
  uint64_t blocked_since_ns; /* 0: not blocked */
  /* read, and partly written, by other threads */
  char pad2_[128];
  _Atomic uint32_t touching;  /* 1 while it may touch a request's memory */
  _Atomic uint32_t gone;      /* 1: the thread has ended */
  _Atomic uint32_t driving;   /* 1: a host thread is in session_drive */
  _Atomic uint64_t n_taken;   /* requests begun */
  _Atomic uint64_t n_moves;   /* steps done */
  _Atomic uint64_t n_looks;   /* looks at host fences that were not set */
  _Atomic uint64_t driven_ns; /* host-driven: when it was driven last */
  _Atomic int32_t fd;         /* host-driven: readable when there may be work; -1: none */
  _Atomic uint64_t busy_ns;
  opi_doing doing;
  char pad3_[128]; /* keeps the next rank's fields off these cache lines */
} opi_worker;

/* Told upwards; the requests layer fills it in. Each is called a few times per request at most. */
typedef struct opi_engine_above {
  void *ctx; /* the session */
  /* Ends the request for the caller; only the first call counts. Once the request has passed, its
   * memory may be another request's when this returns. */
  void (*finish)(opi_request *request);
  void (*passed)(opi_request *request); /* the last rank is done with it */
  /* A request's work is queued on every device that hosts lent it something of. */
  void (*queued)(void *ctx);
  void (*settle)(void *ctx); /* the session has failed: ends unfinished requests */
  /* admit looks at requests that are kept from the ranks, unless a thread did so just now.
   * held_looks_ns: the time until the next look; UINT64_MAX: no request is kept. */
  void (*admit)(void *ctx);
  uint64_t (*held_looks_ns)(const void *ctx);
} opi_engine_above;

/* The ranks of other sessions, as the ranks here see them; requests/ fills it in. */
typedef struct opi_elsewhere {
  void *ctx;
  /* Receives and sends a rank's letters between its steps, on its thread. */
  opipe_status (*exchange)(void *ctx, opi_rank *rank, opipe_error *err);
  /* May the rank begin entry `number` of the ring? */
  bool (*let_begin)(const void *ctx, const opi_rank *rank, uint64_t number);
  /* await: the rank is done with a request except for its verdict. awaits: is there such a one? */
  void (*await)(void *ctx, const opi_rank *rank, opi_request *request);
  bool (*awaits)(const void *ctx, const opi_rank *rank);
  /* Have the others said lately that they make progress? Any thread. */
  bool (*moves)(const void *ctx, uint64_t now_ns);
  bool (*have_gone)(const void *ctx); /* is another session, or this one, being closed? */
} opi_elsewhere;

typedef struct opi_engine {
  opi_setup *setup;
  const struct opi_runner *runner; /* requests, or mini-batches */
  opi_engine_above above;
  const opi_elsewhere *elsewhere; /* NULL: all ranks are here */
  opi_worker *workers;            /* [n_ranks] */
  opi_cursor *cursors;            /* [n_ranks] */
  /* Entry n, at n modulo ring_room, is the n-th request that the ranks were given. Written under
   * submit_lock, published by n_submitted. */
  opi_request **ring; /* [ring_room] */
  opi_item *items;    /* [ring_room] the items of these entries; inference: `next` alone */
  uint32_t ring_room;
  _Atomic uint64_t n_submitted;
  /* host-driven: the watchdog's last look; guarded by `watching` */
  _Atomic uint32_t watching;
  uint64_t watch_moves, watch_since_ns, watch_looked_ns;
} opi_engine;

#endif /* OPI_WORKERS_H */
