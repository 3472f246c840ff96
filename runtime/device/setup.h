/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed part of a session, which every layer reads: plan, plugins, ranks, inputs and outputs.
 *
 * Session open writes it, and the plan's own shape (compiled/) adds a training session's labels and
 * outputs; afterwards only `ending` and the ranks change. The pointers to the layers above are for
 * those layers: nothing below them knows what they point to.
 */
#ifndef OPI_SETUP_H
#define OPI_SETUP_H

#include <opipe/host.h>
#include <stdatomic.h>

#include "partition/plan/plan.h"
#include "runtime/base/base.h"
#include "runtime/device/budget.h"

enum {
  OPI_LOOK_NS = 100000000,  /* the longest sleep without a look at deadlines and the watchdog */
  OPI_POLL_NS = 50000,      /* between looks at something without a doorbell: fences, devices */
  OPI_POLL_LEAST_NS = 2000, /* the shortest time between two looks at a device */
  OPI_STAGED = 64,
  OPI_STAGING_BYTES = 16 << 20
};

/* How a shape's graph is made. NULL members stand for opi_bind, and for following the batch through
 * a binding of its own. */
typedef struct opi_shape_source {
  opipe_status (*bind)(const opi_model *model, const opi_bind_options *options,
                       opi_bound **out_bound, opipe_error *err);
  opipe_status (*carry)(const opi_graph *graph, const opi_carry *in_carry, opi_carry *out_carry,
                        opipe_error *err);
} opi_shape_source;

/* A parameter that a rank here holds. */
typedef struct opi_held_param {
  const opipe_param_source *source;
  const char *backend;
  uint32_t rank;
  uint32_t summed; /* 1: its gradients are added to other ranks' in this layout: */
  uint64_t layout, n_bytes;
} opi_held_param;

enum {
  OPI_FOLLOW_NEW = 0, /* its shape is new: all sessions are going to agree about it */
  OPI_FOLLOW_GOES = 1 /* it is accepted as `number`; from here on nothing fails */
};

/* How sessions that hold the other ranks open and fail together. NULL members: this one is alone.
 */
typedef struct opi_together {
  /* Every session calls it at the same places, `what`, with its own status so far, and gets the
   * answer of all: OPIPE_OK, or the reason of one. */
  opipe_status (*agree)(void *ctx, const char *what, opipe_status own, opipe_error *err);
  /* The same, once all hold their parameters: do those that several hold agree? */
  opipe_status (*compare)(void *ctx, const opi_held_param *params, uint32_t n, opipe_status own,
                          opipe_error *err);
  /* A part of each session for all (opipe/team.h). */
  opipe_status (*gather)(void *ctx, const opipe_gather_params *params, opipe_error *err);
  /* OPIPE_OK, or why the others are gone; never waits. [any-thread] */
  opipe_status (*check)(void *ctx, opipe_error *err);
  /* From now on `tell` says what the ranks here are at; NULL: no longer. */
  void (*told)(void *ctx, opi_tell_fn tell, void *tell_ctx);
  /* NULL: each session is called by its own host. The submitting thread tells how far a request has
   * come (OPI_FOLLOW_*), with submit_lock held: process 0, whose calls the others repeat, so that
   * it tells them; another, so that it waits for process 0's word. Errors refuse the request. */
  opipe_status (*follow)(void *ctx, uint32_t how, uint64_t number, opipe_error *err);
  /* Letters beside the transport (base/letters.h); all four or none. io_key: in, 32 bits that
   * tell the session's boxes apart; out, the whole key. `ring` is called on another thread when the
   * box has changed, until box_close returns. take: PENDING, there is none. [any-thread] */
  opipe_status (*box_open)(void *ctx, uint64_t *io_key, void (*ring)(void *ring_ctx),
                           void *ring_ctx, opi_box **out_box, opipe_error *err);
  void (*box_close)(void *ctx, opi_box *box); /* accepts NULL */
  opipe_status (*letter)(void *ctx, const opi_envelope *letter, uint64_t n_bytes, opipe_error *err);
  opipe_status (*letter_take)(void *ctx, opi_box *box, void *out, uint64_t room, uint64_t *out_n,
                              opipe_error *err);
  void *ctx;
} opi_together;

/* All borrowed: must outlive the session. */
typedef struct opi_session_env {
  const opipe_allocator *allocator;
  const opi_logger *logger; /* may be NULL */
  const opi_model *model;
  const opi_plan *plan;
  const opi_backend_ref *backends; /* [plan->n_ranks] */
  opi_transport_ref transport;
  const char *transport_options; /* may be NULL */
  const char *job;               /* for the transport; may be NULL */
  const opipe_board *board;      /* where other sessions of the plan are found; may be NULL */
  opi_together together;
  const opi_evaluator *evaluator; /* for binding further shapes; may be NULL */
  opi_budget *budget;             /* may be NULL */
  opi_shape_source source;
  uint64_t owner;         /* handle of the context that its requests belong to; 0: none */
  const bool *local;      /* [plan->n_ranks] ranks that are here, at least one; NULL: all */
  const uint32_t *places; /* [plan->n_ranks] process of each rank, in a team; NULL: no team */
  uint32_t process, n_processes; /* this one, and how many; in a team */
  uint32_t cores;                /* cores that the ranks may use; 0: those of the process */
  uint32_t threads_elsewhere;    /* compute threads of other processes on these cores */
} opi_session_env;

typedef struct opi_input {
  const char *name;
  const opi_value *value; /* of the model's file graph, with its fixed dimensions */
  const opi_pin *pin;     /* the plan's value, NULL: none */
  int32_t batch_axis;     /* -1: none */
  bool valued;            /* shapes depend on its value: part of the signature */
  bool labels;            /* of training's loss; not in the model's file */
} opi_input;

/* How a session ends. opi_session_break (executor/) writes it once: whoever sets `failing` writes
 * `why`, which is complete before `failed` is 1 and never changes afterwards. Close sets
 * `closing`. */
typedef struct opi_ending {
  _Atomic uint32_t failed; /* 1: `why` holds, nothing runs any more */
  _Atomic uint32_t failing;
  _Atomic uint32_t closing;
  opipe_error why;
} opi_ending;

/* Told upwards; the executor fills it in. */
typedef struct opi_setup opi_setup;
typedef struct opi_device_above {
  void (*watch)(opi_setup *setup); /* a thread waits for a device: lets the watchdog look */
} opi_device_above;

struct opi_rank;
struct opi_shapes; /* compiled/ */
struct opi_engine; /* executor/ */

struct opi_setup {
  opi_session_env env;
  const opipe_allocator *allocator;
  const opi_plan *plan;
  const opipe_transport *transport;
  opi_arena arena; /* lives as long as the session */
  int32_t pid;
  uint32_t flags, threads; /* OPIPE_SESSION_*, OPIPE_THREADS_* */
  uint32_t max_in_flight;
  uint32_t compile_flags;
  uint32_t spin_us, worker_spin_us; /* of ranks; of devices */
  uint64_t watchdog_ns;
  bool reference;
  bool inputs_travel, outputs_travel; /* from process 0 of the team to the others; to process 0 */

  opi_input *inputs;
  const char **output_names;
  uint32_t *output_dtypes;
  uint32_t n_inputs, n_outputs, n_dims; /* n_dims: of all inputs together */
  uint32_t n_batch_inputs;              /* inputs that carry the batch */

  opipe_world *world;
  struct opi_rank *ranks; /* [plan->n_ranks] ranks of other sessions are empty */
  const bool *local;      /* [plan->n_ranks] is the rank here? */
  const uint32_t *here;   /* [n_here] rising */
  uint32_t n_here;
  opi_ending ending;
  opi_device_above above;
  struct opi_shapes *shapes;
  struct opi_engine *engine;
};

static inline bool opi_rank_is_here(const opi_setup *setup, uint32_t rank) {
  return setup->local[rank];
}
/* Are some of the plan's ranks in other sessions? */
static inline bool opi_is_shared(const opi_setup *setup) {
  return setup->n_here != setup->plan->decided.n_ranks;
}
/* Do this session's inputs come from process 0? Does process 0 need them for all? */
static inline bool opi_inputs_come(const opi_setup *setup) {
  return setup->inputs_travel && setup->env.process != 0;
}
static inline bool opi_inputs_go(const opi_setup *setup) {
  return setup->inputs_travel && setup->env.process == 0;
}
static inline bool opi_session_trains(const opi_setup *setup) {
  return setup->plan->decided.train != NULL;
}
static inline bool opi_session_failed(const opi_setup *setup) {
  return atomic_load(&setup->ending.failed) != 0;
}

/* Is an object without users and safe to free? The count is read before `failed`: after a failure
 * requests are ended although ranks may still work with the objects that they counted on. Counts
 * drop for that reason only once `failed` is 1, so that whoever reads such a count reads `failed`
 * as 1 afterwards. In the other order `failed` could be read just before the failure and the count
 * just after it. Both loads are sequentially consistent. */
static inline bool opi_is_idle(const opi_setup *setup, const _Atomic uint32_t *n_users) {
  return atomic_load(n_users) == 0 && !opi_session_failed(setup);
}

/* STATE: the session was opened in another process (a fork's child); or it is being closed. */
opipe_status opi_process_check(const opi_setup *setup, opipe_error *err);
opipe_status opi_session_check(const opi_setup *setup, opipe_error *err);
/* NOTFOUND: the rank is in another session. */
opipe_status opi_rank_find(const opi_setup *setup, const char *call, uint32_t rank,
                           opipe_error *err);

#endif /* OPI_SETUP_H */
