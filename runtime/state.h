/* SPDX-License-Identifier: Apache-2.0 */
/* What a session is made of; private to runtime/.
 *
 *   session ── ranks      device, queue, parameter set, arena, endpoint, thread, cursor
 *           ── shapes     one per signature: graphs, programs, lists, buffers, streams
 *           ── requests   a pool: what the caller gave, how far it is, how it ended
 *
 * Who may touch what: `submit_lock` guards accepting requests and building or evicting shapes
 * (cold); `lock` guards the pool's free list and the sleep of waiters; `shapes_lock` guards the
 * list of shapes against ranks that look for new ones. A rank's own fields belong to its thread;
 * what other threads read of it is atomic. The step loop takes no lock and allocates nothing.
 */
#ifndef OPI_RUNTIME_STATE_H
#define OPI_RUNTIME_STATE_H

#include <stdatomic.h>

#include "partition/plan/kernels.h"
#include "partition/program/cut.h"
#include "runtime/base/handles.h"
#include "runtime/base/strided.h"
#include "runtime/base/thread.h"
#include "runtime/device/pinned.h"
#include "runtime/session/session.h"

/* Memory of a rank's device, charged to the budget. */
typedef struct opi_block {
  opipe_buffer *buffer; /* NULL: none */
  opipe_memory *memory; /* with the rank's endpoint: regions of it travel; NULL: none do */
  char *host;           /* of a boundary buffer; NULL: none */
  uint64_t n_bytes;
} opi_block;

enum {
  OPI_LOOK_NS = 100000000,  /* waits look up at least so often: deadlines, watchdog */
  OPI_POLL_NS = 50000,      /* waits for something that rings no bell: host fences, devices */
  OPI_POLL_LEAST_NS = 2000, /* of devices, at first (executor/loop.c) */
  OPI_STAGED = 64,
  OPI_STAGING_BYTES = 16 << 20
};

/* ---- shapes ---- */

/* A pinned value that is part of a shape's signature. */
typedef struct opi_shape_pin {
  uint32_t input; /* of the session */
  void *data;
  uint64_t n_bytes;
} opi_shape_pin;

typedef struct opi_shape {
  opi_session *session;
  struct opi_compiled *compiled; /* what it runs: graphs, lists, programs */
  opi_arena arena;               /* the tables below */
  uint32_t index;                /* in session->shapes; part of its streams' names */
  bool keep; /* of the plan itself: never evicted, its constants are the parameter sets' sources */
  int64_t rows;  /* of a request or mini-batch along the batch axis; 0 without one */
  int64_t *dims; /* all dimensions of all inputs, in order */
  opi_shape_pin *pins;
  uint32_t n_pins;
  uint64_t last_used;       /* request number */
  uint64_t n_requests;      /* of it so far; submit_lock */
  _Atomic uint32_t n_users; /* unfinished requests, ranks with sends that wait */
  opi_block *boundary;      /* [n_ranks] */
  uint32_t *arena_of_rank;  /* [n_ranks] index in the rank's arenas */
} opi_shape;

/* ---- requests ---- */

/* TELLING: the host's on_done runs; finished for that thread alone. */
enum {
  OPI_REQUEST_FREE = 0,
  OPI_REQUEST_ACTIVE = 1,
  OPI_REQUEST_ENDING = 2,
  OPI_REQUEST_TELLING = 3,
  OPI_REQUEST_FINISHED = 4,
  OPI_REQUEST_PROGRESS = 7,  /* the bits of the above; beside them: */
  OPI_REQUEST_PASSED = 8,    /* no rank comes to it any more */
  OPI_REQUEST_RELEASED = 16, /* by the caller */
  OPI_REQUEST_PASSING = 32   /* somebody is about to set PASSED */
};
enum { OPI_REQUEST_OVER = OPI_REQUEST_FINISHED | OPI_REQUEST_PASSED | OPI_REQUEST_RELEASED };

/* Has a rank come to it? Who withdraws it first ends it for the caller at once; the ranks pass it
 * by in their order. */
enum { OPI_BEGUN_NO = 0, OPI_BEGUN_YES = 1, OPI_BEGUN_NEVER = 2 /* withdrawn */ };

/* OPEN until it fails (being WRITTEN, then FAILED: `error` holds) or ends well (SEALED: can fail no
 * more). Handed back it is TOLD, where it had failed, and `error` stays as it is, else DONE. */
enum { OPI_FATE_OPEN = 0, OPI_FATE_WRITTEN = 1, OPI_FATE_FAILED = 2, OPI_FATE_SEALED = 3 };
enum { OPI_FATE_TOLD = 4, OPI_FATE_DONE = 5 };

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

/* What of a result the ranks here make; of replicas of the last stage each makes some of the rows.
 */
enum { OPI_MADE_NONE = 0, OPI_MADE_SOME = 1, OPI_MADE_ALL = 2, OPI_MADE_KEPT = 3 };

struct opi_ticket; /* runtime/engine.h */
struct opi_engine;
struct opi_streams; /* runtime/compiled/streams.h: what streams keep */
struct opi_peers;   /* runtime/requests/peers.h */
struct opi_lent;    /* runtime/compiled/lent_kit.h: what hosts lend on a device */
struct opi_import;
struct opi_places;

struct opi_request {
  opi_session *session;
  struct opi_ticket *ticket; /* of a training session, else NULL */
  opi_request *next_free;
  opi_handle_entry *slot; /* its place in the table of handles, kept from request to request */
  uint64_t handle;        /* the host's, from submit to release */
  uint64_t number;        /* counts the session's requests */
  uint64_t order;         /* counts those that the ranks got: once its inputs could be read */
  uint64_t stream;        /* the host's: requests of one finish in order */
  /* Among those that are kept from the ranks (held.c); submit_lock. */
  opi_request *next_fenced, *ahead_in_stream, *behind_in_stream, *next_in_row;
  bool held, foremost;             /* foremost: of its stream */
  _Atomic uint32_t state;          /* OPI_REQUEST_*; whoever completes OVER gives it to the pool */
  _Atomic uint32_t failed;         /* OPI_FATE_* */
  _Atomic uint32_t failed_stage;   /* where, OPIPE_NONE: before any; behind `failed`, as `error` */
  _Atomic uint32_t n_ranks_left;   /* of those here */
  _Atomic uint32_t n_reports_left; /* the same, where other sessions are told */
  _Atomic uint32_t n_taking_left;  /* of those that have a part in it, where others have none */
  _Atomic uint32_t waiting;        /* a thread is in request_wait */
  _Atomic uint32_t begun;          /* OPI_BEGUN_* */
  void (*on_done)(void *ctx, opipe_request *request, opipe_status status); /* NULL: none */
  void *on_done_ctx;
  opipe_error error;
  uint64_t deadline_ns; /* absolute; 0: none */
  opi_shape *shape;
  struct opi_compiled
      *runs;         /* what of it the ranks read: theirs alone, while `shape` is counted on */
  uint64_t body;     /* of its shape's requests, */
  uint32_t position; /* and which of those of a body it is */
  int64_t rows;      /* of the whole request */
  uint32_t n_microbatches; /* that hold rows */
  opi_stream *stream_kept; /* what its stream keeps; NULL: nothing. With it: */
  opipe_binding **bound;   /* [steps of `runs`] in place of the shape's, NULL entries: those */
  uint64_t sequence;       /* counts the requests of that stream */
  uint32_t turn;           /* which buffers it reads */
  bool is_gap;             /* nobody's: it takes the place of another replica's request */
  bool has_plain;          /* an output is an input or a known value */
  bool lends;              /* tensors or fences of a device are among what was given */
  struct opi_lent *lent;   /* kept from request to request; NULL: none has been */
  opi_feed *feeds;         /* [session->n_inputs] */
  opi_result *results;     /* [session->n_outputs] */
};

/* ---- ranks ---- */

typedef struct opi_rank_arena {
  opi_block block;   /* none: freed */
  uint32_t n_shapes; /* that are bound to it */
} opi_rank_arena;

enum { OPI_ARENAS = 32 /* an arena is made only when a shape needs more than all before */ };

/* What a rank is doing, for the watchdog. */
enum { OPI_DOING_NOTHING = 0, OPI_DOING_STEP = 1, OPI_DOING_PROGRAM = 2 };

/* Staging memory that grew: a rank may still be at work with the one before, so all are kept. */
typedef struct opi_staging {
  struct opi_staging *next;
  opi_pinned memory;
} opi_staging;

typedef struct opi_rank {
  opi_session *session;
  uint32_t index;
  const opipe_backend *backend;
  opipe_instance *instance;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;      /* NULL on synchronous devices */
  struct opi_ahead *ahead; /* what an asynchronous device has been given, NULL: it is synchronous */
  struct opi_stamps *stamps; /* times by the device's clock, NULL: by the host's; stamps.h */
  uint32_t device_flags;
  bool has_kernels; /* the plan's table of kernels was given to the device */
  uint32_t alignment;
  uint32_t place;                 /* in session->here */
  int32_t device_type, device_id; /* DLPack's, of tensors that it takes; 0: host memory alone */
  struct opi_import *imports;     /* of hosts; submit_lock */
  uint32_t n_imports;
  opipe_params *params; /* NULL: the model has none */
  opi_rank_arena arenas[OPI_ARENAS];
  uint32_t n_arenas;
  uint64_t charged_bytes; /* to the budget */
  opipe_endpoint *endpoint;
  opi_thread thread;
  _Atomic(opi_staging *) staging; /* for copies to and from devices without plain host memory */
  uint64_t staging_bytes;         /* submit_lock */
  struct opi_staging *stagings;   /* all, for freeing */
  /* the interpreter's place: own thread */
  char pad_[128];
  struct opi_cursor *cursor; /* of the engine: what it is at */
  opi_request *request;      /* in work, NULL: none */
  uint32_t step;             /* next, in the list of its shape */
  bool polls;                /* it waits for something that rings no bell, */
  bool at_fence;             /* and that is the host's, */
  uint64_t fence_ns;         /* since then; 0: it is at none */
  uint32_t peer;             /* rank that a blocked step waits for, OPIPE_NONE: none */
  uint64_t blocked_since_ns; /* 0: not blocked */
  /* for other threads */
  char pad2_[128];
  _Atomic uint32_t touching;       /* 1 while it may touch a request's memory */
  _Atomic uint32_t gone;           /* 1: its thread has ended */
  _Atomic uint32_t driving;        /* 1: a host thread is in session_drive */
  _Atomic uint64_t n_taken;        /* requests begun */
  _Atomic uint64_t n_moves;        /* steps done */
  _Atomic uint64_t n_looks;        /* at fences of the host's that were not set */
  _Atomic uint64_t driven_ns;      /* host-driven: when it was last */
  _Atomic int32_t fd;              /* host-driven: readable when there may be work; -1: none */
  _Atomic uint32_t doing;          /* OPI_DOING_* */
  _Atomic uint64_t doing_since_ns; /* of a program or a blocked step; 0: it moves */
  _Atomic uint64_t doing_request;
  _Atomic uint32_t doing_kind, doing_pass, doing_stage, doing_microbatch, doing_peer;
  _Atomic uint32_t doing_pieces; /* of a stage, in what it is at work with */
  _Atomic uint64_t busy_ns;
  char pad3_[128]; /* the next rank reads what comes behind */
} opi_rank;

/* ---- the session ---- */

typedef struct opi_input {
  const char *name;
  const opi_value *value; /* of the model's file graph: what is fixed about it */
  const opi_pin *pin;     /* the plan's value, NULL: none */
  int32_t batch_axis;     /* -1: none */
  bool valued;            /* shapes depend on its value: part of the signature */
  bool labels;            /* of training's loss: the model's file does not have it */
} opi_input;

struct opi_session {
  opi_session_env env;
  opi_budget *caps; /* that ranks have together; within the context's. NULL: none */
  const opipe_allocator *allocator;
  const opi_plan *plan;
  const opipe_transport *transport;
  opi_arena arena;
  int32_t pid;
  uint32_t flags, threads;
  uint32_t max_in_flight;
  uint32_t compile_flags;
  uint32_t spin_us, worker_spin_us, wait_spin_us; /* of ranks; of devices; of request_wait */
  uint32_t wait_cores; /* idle ones, on which callers may look for longer; 0: ranks compute, or the
                          host chose */
  uint64_t watchdog_ns;
  bool reference;
  struct opi_engine *engine; /* what its ranks are at */

  opi_input *inputs;
  const char **output_names;
  uint32_t *output_dtypes;
  uint32_t n_inputs, n_outputs, n_dims; /* n_dims: of all inputs together */
  uint32_t n_batch_inputs;              /* that carry the batch */
  const opi_cut *master;                /* whose parameter table all shapes use */
  opipe_world *world;
  opi_rank *ranks;      /* [plan->n_ranks] those of other sessions are empty */
  const bool *local;    /* [plan->n_ranks] is it here? */
  const uint32_t *here; /* [n_here] rising */
  uint32_t n_here;
  bool opened;                 /* all of it: threads run */
  struct opi_peers *peers;     /* NULL: all ranks are here */
  struct opi_streams *streams; /* NULL: the plan has no pairs */
  struct opi_places *places;   /* programs bound to tensors of hosts; submit_lock */

  opi_lock submit_lock;
  opi_lock shapes_lock;
  opi_shape **shapes; /* [n_places] NULL: empty */
  uint32_t n_places;
  _Atomic uint32_t shapes_version;

  opi_request **ring; /* [ring_room] by order of the ranks, modulo room */
  uint32_t ring_room;
  uint64_t n_numbered;          /* submit_lock */
  uint64_t first_stream;        /* of the first request; submit_lock */
  const opi_stream *first_kept; /* the same, where it has a state */
  bool has_streams;             /* requests of more than one were given; submit_lock */
  opi_request *fenced;          /* kept from the ranks, oldest first; with the rest submit_lock */
  opi_request **fenced_end;     /* the last one's link */
  opi_request **held_rows;      /* [held_mask + 1] the last of each stream of them, hashed */
  uint32_t held_mask;
  uint64_t gate; /* requests with this number and later ones are kept: train/rest.c */
  _Atomic uint32_t n_fenced;
  _Atomic uint64_t held_ns; /* when the first of them came, or the last of them went */
  _Atomic uint64_t look_ns; /* before that nobody looks at them without need */
  opi_lock run_lock;  /* the reference: taken before submit_lock, where requests run and end */
  opi_lock rest_lock; /* training: of whoever reads or writes parameters; train/rest.c */
  _Atomic uint64_t resting; /* that thread; 0: nobody */
  uint32_t rung_version;    /* shapes_version when all ranks were last rung; submit_lock */
  _Atomic uint64_t n_submitted;
  _Atomic uint32_t n_unfinished;
  opi_lock room_lock; /* sleep of those who wait for room; room.c */
  _Atomic uint32_t n_room_waiters;
  _Atomic uint64_t n_passed; /* requests, ever */
  _Atomic uint64_t
      full_at; /* 1 + n_passed when a submit found no room for its shape; 0: none has */
  /* The host's flag behind which lies a value that the last submit needed, NULL: it needed none;
   * n_passed at that time. room_lock */
  _Atomic(opi_request *) looked_at; /* whose fences somebody reads, who holds submit_lock */
  _Atomic(const uint32_t *) awaited;
  _Atomic uint64_t awaited_at;

  opi_lock lock;
  opi_request **pool; /* all requests ever made */
  uint32_t n_pool, pool_room;
  opi_request *free_requests;
  _Atomic uint32_t n_waiters;
  _Atomic uint64_t waited_ns; /* callers, lately: request.c */

  /* host-driven: what the watchdog saw last; `watching` guards it */
  _Atomic uint32_t watching;
  uint64_t watch_moves, watch_since_ns, watch_looked_ns;
  _Atomic int32_t finished_fd; /* readable when a request has finished; -1: none */

  _Atomic uint32_t failed; /* 1: `why` holds, nothing runs any more */
  _Atomic uint32_t failing;
  opipe_error why;
  _Atomic uint32_t closing;
  _Atomic uint64_t n_done, n_failed, n_shapes;
};

static inline bool opi_rank_is_here(const opi_session *session, uint32_t rank) {
  return session->local[rank];
}
/* The rank that looks after what is the session's and no rank's. */
static inline opi_rank *opi_session_first(const opi_session *session) {
  return &session->ranks[session->here[0]];
}

/* Is it a training session? */
static inline bool opi_session_trains(const opi_session *session) {
  return session->plan->train != NULL;
}

/* Calls a slot of the rank's backend or of the transport, see OPI_ASK. */
#define OPI_ASK_RANK(rank, slot, err, ...) \
  OPI_ASK("backend", &(rank)->session->env.backends[(rank)->index], slot, err, __VA_ARGS__)
#define OPI_ASK_WIRE(session, slot, err, ...) \
  OPI_ASK("transport", &(session)->env.transport, slot, err, __VA_ARGS__)
#define OPI_MAKE_RANK(rank, slot, out, err, ...) \
  OPI_MAKE("backend", &(rank)->session->env.backends[(rank)->index], slot, out, err, __VA_ARGS__)
#define OPI_MAKE_WIRE(session, slot, out, err, ...) \
  OPI_MAKE("transport", &(session)->env.transport, slot, out, err, __VA_ARGS__)
#define OPI_POLL_WIRE(session, slot, err, ...) \
  OPI_POLL("transport", &(session)->env.transport, slot, err, __VA_ARGS__)
static inline const opi_backend_ref *opi_rank_backend(const opi_rank *rank) {
  return &rank->session->env.backends[rank->index];
}
/* Host address of a buffer of the rank's device, never NULL. */
static inline opipe_status opi_buffer_host(const opi_rank *rank, opipe_buffer *buffer,
                                           void **out_data, opipe_error *err) {
  *out_data = NULL;
  OPI_TRY(OPI_ASK_RANK(rank, buffer_host, err, buffer, out_data));
  return *out_data != NULL
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID,
                        "backend '%s': a buffer of a device with host memory has none",
                        opi_rank_backend(rank)->id);
}

/* NOTFOUND: the rank is in another session. info.c */
opipe_status opi_rank_find(const opi_session *session, const char *call, uint32_t rank,
                           opipe_error *err);

/* ---- device.c: what every session does with a rank's device ---- */

/* Against the budget; what is not discharged is given back with the rank. */
opipe_status opi_rank_charge(opi_rank *rank, uint64_t n_bytes, const char *what, opipe_error *err);
void opi_rank_discharge(opi_rank *rank, uint64_t n_bytes);
/* Charged, then taken; nothing for 0 bytes. kind: OPIPE_BUFFER_*; `what` is for messages. */
opipe_status opi_rank_take(opi_rank *rank, uint64_t n_bytes, uint32_t kind, const char *what,
                           opi_block *out_block, opipe_error *err);
/* Regions of it may be sent and received from now on; the reference has no transport. */
opipe_status opi_rank_register(const opi_rank *rank, opi_block *block, opipe_error *err);
/* Its streams are closed. */
void opi_rank_give(opi_rank *rank, opi_block *block);
opipe_status opi_rank_give_kernels(opi_rank *rank, opipe_error *err);
/* flags: beside the session's. */
opipe_status opi_rank_compile(const opi_rank *rank, const opipe_graph *graph, uint32_t stage,
                              uint32_t flags, opipe_program **out_program,
                              opipe_program_info *out_info, opipe_error *err);
opipe_status opi_rank_bind(const opi_rank *rank, uint32_t stage, const opipe_bind_params *params,
                           opipe_binding **out_binding, opipe_error *err);
/* Waits for a queue of the rank's device by `event`; late errors come out here. NULL: the device is
 * synchronous. */
opipe_status opi_queue_sync(const opi_rank *rank, opipe_queue *queue, opipe_event *event,
                            opipe_error *err);
static inline opipe_status opi_rank_sync(const opi_rank *rank, opipe_error *err) {
  return opi_queue_sync(rank, rank->queue, rank->event, err);
}
typedef struct opi_span {
  uint64_t start_ns, end_ns; /* 0: not yet */
} opi_span;
/* For tensors up to n_bytes, where the device is not plain host memory. Where it is asynchronous:
 * for OPI_STAGED of them, or as many as OPI_STAGING_BYTES hold, at least two. Under submit_lock. */
opipe_status opi_rank_reserve_staging(opi_rank *rank, uint64_t n_bytes, opipe_error *err);
static inline char *opi_rank_staging(const opi_rank *rank) {
  opi_staging *staging = atomic_load_explicit(&rank->staging, memory_order_acquire);
  return staging == NULL ? NULL : staging->memory.data;
}
/* Synchronous devices. A view of host memory into a region, `host` its address where it has one;
 * and a region's bytes, in place or in the rank's staging memory. */
opipe_status opi_rank_write(opi_rank *rank, const opi_view *view, const opipe_region *region,
                            char *host, opipe_error *err);
opipe_status opi_rank_read(opi_rank *rank, const opipe_region *region, char *host,
                           const char **out_data, opipe_error *err);

/* ---- shapes/ ---- */

/* What a request's inputs look like: signature.c */
opipe_status opi_read_inputs(opi_session *session, const opipe_submit_params *params,
                             opi_request *request, opipe_error *err);
/* Checks of tensors at the border, naming tensor `name`: place and type; fences. */
opipe_status opi_check_tensor(const opi_session *session, const char *name,
                              const opipe_tensor *tensor, uint32_t dtype, opipe_error *err);
opipe_status opi_check_fence(const opi_session *session, const char *name, const opipe_fence *fence,
                             opipe_error *err);
/* Is `shape` the one for requests like `request`, of `rows` rows? */
bool opi_shape_fits(const opi_shape *shape, const opi_request *request, int64_t rows);
/* Fills dims and pins of a new shape. */
opipe_status opi_shape_sign(opi_shape *shape, const opi_request *request, int64_t rows,
                            opipe_error *err);
/* bind.c: free dimensions and pinned values of a signature, with `rows` rows. In `arena`. */
opipe_status opi_shape_name(const opi_shape *shape, int64_t rows, opi_arena *arena,
                            opi_bind_options *out_options, opipe_error *err);
/* bind.c: dims and pins of the plan's own shape, as its graph has them. */
opipe_status opi_shape_sign_plan(opi_shape *shape, const opi_graph *graph, opipe_error *err);

/* The shape for requests like `request`, of `rows` rows, built if need be. Under submit_lock.
 * request NULL: the plan's own. cache.c */
opipe_status opi_shape_get(opi_session *session, const opi_request *request, int64_t rows,
                           opi_shape **out_shape, opipe_error *err);
void opi_shapes_free(opi_session *session);

/* The shape that `request` is of, in use until it has passed. OPIPE_PENDING: no room until one that
 * is in use is let go. */
opipe_status opi_shape_find(opi_session *session, opi_request *request, opipe_error *err);
void opi_shape_stop(
    opi_shape *shape); /* gives back all that is the backend's or the transport's; once idle */
void opi_shape_free(opi_shape *shape); /* accepts NULL */
/* memory.c: arenas and boundary buffers as needs [n_ranks] says, charged */
typedef struct opi_rank_needs {
  uint64_t boundary_bytes, arena_bytes;
} opi_rank_needs;
opipe_status opi_shape_memory(opi_shape *shape, const opi_rank_needs *needs, opipe_error *err);
void opi_shape_memory_free(opi_shape *shape);
opipe_status opi_shape_params(opi_shape *shape,
                              opipe_error *err); /* params.c: prepares the ranks' sets */
/* ---- executor/ ---- */

/* Runs rank `rank` as far as it goes. OPIPE_OK: no request left; OPIPE_PENDING: blocked; < 0: the
 * session has failed. interpret.c */
opipe_status opi_rank_advance(opi_rank *rank, opipe_error *err);
/* Ranks that have a part in it; interpret.c */
uint32_t opi_request_n_taking(const opi_request *request);
/* The rank is done with it: the last of those here ends it. interpret.c */
void opi_request_leave(const opi_rank *rank, opi_request *request);
void *opi_rank_thread(void *arg);                                       /* loop.c */
opipe_status opi_session_start(opi_session *session, opipe_error *err); /* threads of all ranks */
void opi_session_close_fds(opi_session *session);                       /* drive.c */
void opi_session_ring_finished(opi_session *session);
uint64_t opi_rank_looks_ns(const opi_rank *rank);
/* Waits until something may have changed, at most until `until_ns`; watches. A transport that fails
 * while it waits has failed the session, which has the error. */
opipe_status opi_rank_wait(opi_rank *rank, uint32_t seen, bool idle, uint64_t until_ns);
/* The part of what feeds `value` that has `shape` [value->rank] and begins at index `first` of
 * `axis` (-1: it is not cut). The view borrows `shape`, and changes it for packed types. */
opi_view opi_feed_part(const opi_feed *feed, const opi_value *value, int64_t *shape, int32_t axis,
                       int64_t first);
/* Along one axis (rows, tokens) a part has entries first to first + n - 1 of n_whole; carry.axis
 * -1: it has all that there is. */
typedef struct opi_result_part {
  opi_carry carry;
  int64_t n_whole, first, n;
} opi_result_part;
/* Where the bytes of a part of shape `value` belong, in pieces (strided.h). */
opipe_status opi_result_runs(const opi_value *value, const opi_result_part *rows,
                             const opi_result_part *tokens, opi_run_fn each, void *ctx);
/* Puts a part of shape `value` into its place. */
void opi_result_put(const opi_result *result, const opi_value *value, const opi_result_part *rows,
                    const opi_result_part *tokens, const char *part);
opipe_status opi_store_plain(opi_rank *rank, opi_request *request,
                             opipe_error *err); /* outputs that are inputs or known values */
/* Between regions of two ranks, on the calling thread. */
opipe_status opi_move_region(opi_rank *from, const opipe_region *src, opi_rank *to,
                             const opipe_region *dst, opipe_error *err);
/* A request's memory is touched only between these; false: the session has failed, do not. */
bool opi_rank_touch(opi_rank *rank);
void opi_rank_let_go(opi_rank *rank);
bool opi_fence_set(const opipe_fence *fence);
/* room.c: a submit answers OPIPE_PENDING for a value behind this flag; NULL: for none. */
void opi_room_await(opi_session *session, const uint32_t *flag);
/* One request less is unfinished, or the session ends: wakes those who wait for room. */
void opi_room_tell(opi_session *session);
/* The rank's step blocks, is done: for the watchdog. interpret.c */
void opi_rank_blocked(opi_rank *rank, const opi_step *step);
void opi_rank_unblocked(opi_rank *rank, const opi_step *step);
/* Counts one of the owner's own numbers on, for others to read. */
static inline void opi_count_on(_Atomic uint64_t *number) {
  atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + 1,
                        memory_order_relaxed);
}
static inline void opi_rank_moves(opi_rank *rank, const opi_step *step) {
  opi_count_on(&rank->n_moves);
  rank->fence_ns = 0;
  if (rank->blocked_since_ns != 0)
    opi_rank_unblocked(rank, step);
}
/* Memory of the library's own for a result. submit.c */
opipe_status opi_result_own(const opi_session *session, uint32_t output, opi_result *result,
                            opipe_error *err);
/* A caller's buffer for output `output`, checked against the result's shape. submit.c */
opipe_status opi_result_take(const opi_session *session, uint32_t output,
                             const opipe_binding_io *io, opi_result *result, opipe_error *err);
/* -- ahead.c: asynchronous devices; see executor/ahead.h -- */
opipe_status opi_ahead_open(opi_rank *rank, opipe_error *err);
void opi_ahead_close(opi_rank *rank); /* accepts ranks without */
/* Waits until all that is queued is done. [control] */
void opi_ahead_end(opi_rank *rank);
/* -- stamps.c: programs by the device's clock; see executor/stamps.h -- */
/* The session is at rest: the host's clock is met. [control] */
opipe_status opi_stamps_meet(const opi_session *session, opipe_error *err);
/* What the rank's spans are off the host's clock by; 0: they are the host's. */
int64_t opi_stamps_shift(const opi_rank *rank);

/* Takes note of what the rank is doing, for the watchdog. watch.c */
void opi_rank_note(opi_rank *rank, uint32_t doing, const opi_step *step, uint64_t since_ns);
/* Fails the session when a rank has been stuck for the watchdog's time. Any thread. */
void opi_watch(opi_session *session);

/* ---- peers/: ranks of other sessions; nothing to do where all are here ---- */

/* Can the plan's ranks be in several sessions? UNSUPPORTED says why not. */
opipe_status opi_peers_check(const opi_session *session, opipe_error *err);
opipe_status opi_peers_open(opi_session *session, opipe_error *err); /* once streams can be */
void opi_peers_close(opi_session *session);                          /* before the endpoints */
/* What a rank hears and tells between its steps, on its thread. There are peers. */
opipe_status opi_peers_exchange(opi_rank *rank, opipe_error *err);
static inline opipe_status opi_peers_move(opi_rank *rank, opipe_error *err) {
  return rank->session->peers == NULL ? OPIPE_OK : opi_peers_exchange(rank, err);
}
/* May the rank begin what the ranks are given as number `number`? */
bool opi_peers_let_begin(const opi_rank *rank, uint64_t number);
/* The rank is done with a request but for the verdict. */
void opi_peers_await(opi_rank *rank, opi_request *request);
bool opi_peers_awaits(const opi_rank *rank);
/* Does something move in other sessions, as far as they have told? Any thread. */
bool opi_peers_move_elsewhere(const opi_session *session, uint64_t now_ns);
/* Waits until the others have heard all that they have to, at most for the watchdog's time. */
void opi_peers_leave(opi_session *session);
bool opi_peers_have_gone(const opi_session *session); /* or go, as this one does */
void opi_peers_drive(opi_session *session);           /* ranks here that the host drives */
/* data [n_bytes] of the session with rank `holder` is given to all others, between steps; `had`:
 * how it was come by there, the reason in *io_err. Blocks until all sessions have called it. */
opipe_status opi_peers_share(opi_session *session, uint32_t holder, void *data, uint64_t n_bytes,
                             opipe_status had, opipe_error *io_err);

/* ---- streams/: what streams of requests keep ---- */

opipe_status opi_streams_open(opi_session *session, opipe_error *err); /* once devices are open */
void opi_streams_shut(opi_session *session); /* handles become stale; nobody is inside any more */
void opi_streams_stop(opi_session *session); /* what is the backends' */
void opi_streams_free(opi_session *session);
void opi_streams_tidy(opi_session *session); /* gives back what closed ones had */
/* A compiled shape goes, and all bindings that were made of it. Under submit_lock. */
void opi_streams_forget(const struct opi_compiled *shape);
/* The pair that an input belongs to; OPIPE_NONE: to none. */
uint32_t opi_stream_pair_in(const opi_session *session, uint32_t input);
/* Does the request's stream keep the output? */
bool opi_stream_keeps(const opi_request *request, uint32_t output);
/* Submitting, in this order, under submit_lock: whose request it is; each input, given or
 * (*out_kept) kept, with the shape of what is kept; the outputs' sizes against the room; the
 * bindings; and, when nothing can fail any more, what the next request finds. */
opipe_status opi_stream_begin(opi_session *session, const opipe_submit_params *params,
                              opi_request *request, opipe_error *err);
opipe_status opi_stream_feed(const opi_request *request, uint32_t input, opi_feed *feed,
                             bool *out_kept, opipe_error *err);
opipe_status opi_stream_check_results(const opi_request *request, opipe_error *err);
opipe_status opi_stream_bind(opi_request *request, opipe_error *err);
void opi_stream_advance(opi_request *request);
/* Requests that must stand before it so that its stream's replica takes it. */
uint32_t opi_stream_gap(const opi_request *request);
/* A rank comes to it: it fails if one before it in its stream has. */
void opi_stream_look(opi_request *request);
/* Where a given input goes instead; false: it is kept, there is nothing to load. */
bool opi_stream_load(const opi_request *request, uint32_t input, opipe_region *io_region,
                     char **io_host);
void opi_stream_break(const opi_request *request); /* it has failed */
/* Around a request's failing: whoever looks at the stream meanwhile waits. */
void opi_stream_hold(opi_stream *stream);
void opi_stream_let_go(opi_stream *stream);
void opi_stream_finish(const opi_request *request); /* no rank uses the stream for it any more */
/* Of an output that other stages read too: from its cell into what the stream keeps. */
opipe_status opi_stream_store(opi_rank *rank, const opi_request *request, uint32_t output,
                              uint32_t cell, uint32_t microbatch, opipe_error *err);
/* STATE: requests of it are unfinished; `whole`: or one has failed. */
opipe_status opi_stream_rest(const opi_stream *stream, const char *call, bool whole,
                             opipe_error *err);
void opi_stream_clear(opi_stream *stream); /* as it was opened */

/* ---- request.c, finish.c ---- */

static inline bool opi_request_failed(const opi_request *request) {
  const uint32_t fate = atomic_load_explicit(&request->failed, memory_order_acquire);
  return fate == OPI_FATE_WRITTEN || fate == OPI_FATE_FAILED || fate == OPI_FATE_TOLD;
}
/* The first reason stays; false: it was not this one. */
bool opi_request_fail(opi_request *request, const opipe_error *why);
bool opi_request_fail_at(opi_request *request, uint32_t stage, const opipe_error *why);
/* What has been sealed has failed elsewhere. */
void opi_request_judge(opi_request *request, const opipe_error *why);
/* rank NULL: the caller's side; stage OPIPE_NONE: the rank is about to begin. A training step that
 * has begun is done, however late. */
void opi_request_check_deadline(opi_request *request, const opi_rank *rank, uint32_t stage);
/* The same of one that no rank has been given; whoever keeps it ends it. */
void opi_request_check_held(opi_request *request);
void opi_request_finish(opi_request *request); /* for the caller; the first call counts */
static inline uint32_t opi_request_progress(const opi_request *request) {
  return atomic_load_explicit(&request->state, memory_order_acquire) & OPI_REQUEST_PROGRESS;
}
/* Finished, as far as this thread may know? */
bool opi_request_over(const opi_request *request);
/* No rank has begun it: then it finishes now, and false comes from then on. Its reason is set. */
bool opi_request_withdraw(opi_request *request);
/* The same for a training step, whose fate is decided here: other ranks' sums need what one has
 * begun, so a step is left out as a whole or not at all. */
bool opi_step_leave_out(opi_request *request, const opipe_error *why);
static inline bool opi_request_withdrawn(const opi_request *request) {
  return atomic_load_explicit(&request->begun, memory_order_acquire) == OPI_BEGUN_NEVER;
}
void opi_request_passed(opi_request *request); /* the last rank is done with it: it finishes */
void opi_request_let_go(opi_request *request); /* the caller is done with it */
/* finish.c: asks the host for the memory of a result; NULL: it has none. Inside, this thread is as
 * inside an on_done. */
opipe_status opi_result_ask(const opi_session *session, const opipe_submit_params *params,
                            uint32_t output, const opi_result *result, void **out_data,
                            opipe_error *err);
/* It is about to be published: open, ACTIVE, under a handle of its own. */
void opi_request_begin(opi_request *request, const opipe_submit_params *params);
/* Ends the session: the first reason stays; all ranks stop. `request`: whose step failed, NULL:
 * nobody's. */
void opi_session_fail(opi_session *session, uint32_t rank, opi_request *request,
                      const opipe_error *why);
/* The same under submit_lock: whoever gives it back settles. */
void opi_session_break(opi_session *session, uint32_t rank, opi_request *request,
                       const opipe_error *why);
/* After a failure: ends all unfinished requests once no rank touches their memory. */
void opi_session_settle(opi_session *session);
/* Is a request over, but not yet its caller's? (Unfinished ones are counted in n_unfinished.) */
bool opi_session_is_ending(opi_session *session);
static inline bool opi_session_failed(opi_session *session) {
  return atomic_load(&session->failed) != 0;
}

/* Has nobody counted himself in? After a failure counts go down although ranks are still at work in
 * what they count. */
static inline bool opi_is_idle(opi_session *session, const _Atomic uint32_t *n_users) {
  return atomic_load(n_users) == 0 && !opi_session_failed(session); /* in this order */
}
/* Until messages can use what was opened on the ranks' endpoints; within the watchdog's time. */
opipe_status opi_session_ready(const opi_session *session, opipe_error *err);
opipe_status opi_session_check(const opi_session *session,
                               opipe_error *err); /* forked child, closing */
opipe_status opi_process_check(const opi_session *session, opipe_error *err); /* forked child */
opi_request *opi_request_new(opi_session *session, opipe_error *err);         /* from the pool */
void opi_request_recycle(opi_request *request);
void opi_request_drop_shape(opi_request *request); /* it will not use it */
opipe_status opi_requests_make(opi_session *session, uint32_t n,
                               opipe_error *err); /* the first n of the pool */
/* All handles become stale; returns when nobody is inside. */
void opi_requests_shut(opi_session *session);
void opi_requests_free(opi_session *session);

#endif /* OPI_RUNTIME_STATE_H */
