/* SPDX-License-Identifier: Apache-2.0 */
/* What a session's ranks are at: the requests that they were given, and each one's place in its
 * list.
 */
#ifndef OPI_WORKERS_H
#define OPI_WORKERS_H

#include "runtime/compiled/compiled.h"

/* What every rank does next, in the order of submission. A double-buffered session begins with a
 * PROLOGUE, then runs bodies (ALL), and a flush ends it by an EPILOGUE; others know only ALL. */
enum {
  OPI_ITEM_ALL = 0,
  OPI_ITEM_PROLOGUE = 1,
  OPI_ITEM_EPILOGUE = 2,
  OPI_ITEM_EVALUATE = 3,
  OPI_ITEM_REQUEST = 4 /* of inference: one of a body's */
};
typedef struct opi_item {
  opi_request *current; /* the mini-batch of ordinary steps */
  opi_request *next;    /* the mini-batch of steps with `next` set */
  opi_compiled *shape;  /* of both */
  uint64_t body;        /* REQUEST: of its shape */
  uint32_t kind;
} opi_item;

/* A rank's place in a mini-batch or request; its thread alone writes it, but for n_steps and
 * n_done, which a load sets between steps. */
typedef struct opi_cursor {
  opi_seat *busy;     /* shapes with sends that wait */
  uint32_t *reducing; /* [instances] REDUCE steps whose sums are under way */
  uint32_t n_reducing;
  uint32_t end;  /* step behind the last of the item */
  uint32_t part; /* of the step that is being tried: inputs or results that are through */
  opi_item item;
  opi_request *owed; /* done with but for the norms of its step */
  bool begun;
  bool posting; /* the first receives of a shape */
  bool finite;  /* what the rank has of the mini-batch's loss is a number */
  bool updated; /* reference: the rank's update of this mini-batch is done */
  bool second;  /* evaluate, double-buffered: the forwards that are not of the next mini-batch */
  /* Not double-buffered: training steps that were begun, ever; those of them before the mini-batch
   * in work (the scalar STEP); those that the rank has done. */
  uint64_t n_steps, number;
  _Atomic uint64_t n_done;
  opipe_error bad; /* what a mini-batch's data is wrong by; status 0: nothing */
  int64_t scalars[OPI_SCALAR_TABLE];
  char pad_[128]; /* the next rank's is its own */
} opi_cursor;

/* What a rank is doing, for the watchdog. */
enum { OPI_DOING_NOTHING = 0, OPI_DOING_STEP = 1, OPI_DOING_PROGRAM = 2 };

/* For other threads to read; the rank's thread writes it, but for `driving` and `driven_ns`. */
typedef struct opi_doing {
  _Atomic uint32_t doing;    /* OPI_DOING_* */
  _Atomic uint64_t since_ns; /* of a program or a blocked step; 0: it moves */
  _Atomic uint64_t request;
  _Atomic uint32_t kind, pass, stage, microbatch, peer;
  _Atomic uint32_t pieces; /* of a stage, in what it is at work with */
} opi_doing;

/* A rank's thread, or whoever drives it. */
typedef struct opi_worker {
  opi_thread thread;
  struct opi_ahead *ahead;   /* what an asynchronous device was given; NULL: it is synchronous */
  struct opi_stamps *stamps; /* times by the device's clock; NULL: by the host's */
  /* the interpreter's place: own thread */
  char pad_[128];
  opi_cursor *cursor;
  opi_request *request;      /* in work, NULL: none */
  uint32_t step;             /* next, in the list of its shape */
  bool polls;                /* it waits for something that rings no bell; */
  bool at_fence;             /* that is a fence of the host's, */
  uint64_t fence_ns;         /* since then; 0: it is at none */
  uint32_t peer;             /* rank that a blocked step waits for, OPIPE_NONE: none */
  uint64_t blocked_since_ns; /* 0: not blocked */
  /* for other threads */
  char pad2_[128];
  _Atomic uint32_t touching;  /* 1 while it may touch a request's memory */
  _Atomic uint32_t gone;      /* 1: its thread has ended */
  _Atomic uint32_t driving;   /* 1: a host thread is in session_drive */
  _Atomic uint64_t n_taken;   /* requests begun */
  _Atomic uint64_t n_moves;   /* steps done */
  _Atomic uint64_t n_looks;   /* at fences of the host's that were not set */
  _Atomic uint64_t driven_ns; /* host-driven: when it was last */
  _Atomic int32_t fd;         /* host-driven: readable when there may be work; -1: none */
  _Atomic uint64_t busy_ns;
  opi_doing doing;
  char pad3_[128]; /* the next rank reads what comes behind */
} opi_worker;

/* Told upwards; the requests layer fills it in. All at most a few times a request. */
typedef struct opi_engine_above {
  void *ctx; /* the session */
  /* The request ends for the caller; the first call counts. It may be another's when this returns,
   * once it has passed. */
  void (*finish)(opi_request *request);
  void (*passed)(opi_request *request); /* the last rank is done with it */
  /* Its part is queued on every device that hosts lent something of. */
  void (*queued)(void *ctx);
  void (*settle)(void *ctx); /* the session has failed: unfinished requests are to end */
  /* What is kept from the ranks: looked at, unless somebody has just now; when to look again
   * (UINT64_MAX: nothing is kept). */
  void (*admit)(void *ctx);
  uint64_t (*held_looks_ns)(const void *ctx);
} opi_engine_above;

/* Ranks of other sessions, as the ranks here see them; requests/ fills it in. */
typedef struct opi_elsewhere {
  void *ctx;
  /* What a rank hears and tells between its steps, on its thread. */
  opipe_status (*exchange)(void *ctx, opi_rank *rank, opipe_error *err);
  /* May the rank begin what the ranks are given as number `number`? */
  bool (*let_begin)(const void *ctx, const opi_rank *rank, uint64_t number);
  /* The rank is done with a request but for the verdict; is any such left? */
  void (*await)(void *ctx, const opi_rank *rank, opi_request *request);
  bool (*awaits)(const void *ctx, const opi_rank *rank);
  /* Does something move there, as far as they have told? Any thread. */
  bool (*moves)(const void *ctx, uint64_t now_ns);
  bool (*have_gone)(const void *ctx); /* or go, as this one does */
} opi_elsewhere;

typedef struct opi_engine {
  opi_setup *setup;
  const struct opi_runner *runner; /* requests, or mini-batches */
  opi_engine_above above;
  const opi_elsewhere *elsewhere; /* NULL: all ranks are here */
  opi_worker *workers;            /* [n_ranks] */
  opi_cursor *cursors;            /* [n_ranks] */
  /* What the ranks were given, by its order modulo ring_room; submit_lock writes. */
  opi_request **ring; /* [ring_room] */
  opi_item *items;    /* [ring_room] training: beside the ring */
  uint32_t ring_room;
  _Atomic uint64_t n_submitted;
  /* host-driven: what the watchdog saw last; `watching` guards it */
  _Atomic uint32_t watching;
  uint64_t watch_moves, watch_since_ns, watch_looked_ns;
} opi_engine;

#endif /* OPI_WORKERS_H */
