/* SPDX-License-Identifier: Apache-2.0 */
/* Inside runtime/weights: what ranks hold, the sums between them, a rank's place in its step. What
 * a rank writes while it steps is its own (opi_weight_rank, its holder and parts); groups are the
 * transport's, or the plain ones below, which one thread drives.
 */
#ifndef OPI_WEIGHTS_KEPT_H
#define OPI_WEIGHTS_KEPT_H

#include "partition/memory/weights.h"
#include "runtime/weights/weights.h"

enum { OPI_SETS = 2 };

/* One rank's part in an all-reduce; rounds are numbered. */
typedef struct opi_plain_group opi_plain_group;
typedef struct opi_member {
  opipe_group *group;     /* of the transport */
  opi_plain_group *plain; /* without one */
  uint32_t index;         /* among the members */
  uint32_t pending;       /* 1: started, not finished */
  bool asked;             /* `ready` stands behind what this round adds; it has not started yet */
  uint64_t round;
} opi_member;

/* A trained parameter of a rank. */
typedef struct opi_weight_param {
  uint32_t slot;
  uint32_t n_readers;  /* instances of the rank whose programs add to the gradient */
  uint32_t n_complete; /* of these, in this mini-batch */
  bool tied;           /* summed at the step, over stages too */
  bool dense;          /* in dense form */
  bool owner;          /* of the rank with the first instance that has it: its norm is taken here */
  bool no_decay;
  uint32_t trained_index; /* among trained parameters: place in the table of norms */
  uint64_t n_bytes;       /* of the master */
  uint64_t dense_bytes;
  opipe_region weight[OPI_SETS], gradient, moments[OPIPE_MOMENTS_MOST]; /* masters and state */
  opi_member replicas, tie;
  bool replicated;  /* summed over ranks as soon as it is complete */
  bool summed;      /* over replicas, or nothing is to be added */
  bool tie_started; /* of the step that runs */
} opi_weight_param;

/* Progress of a mini-batch's sum over replicas. */
enum { OPI_SUM_IDLE = 0, OPI_SUM_RUNS = 1, OPI_SUM_DONE = 2 };

/* What a rank holds, for all its instances. */
typedef struct opi_holder {
  opi_weight_instance env; /* of the rank's first instance; programs and parameters of all */
  uint32_t n_trained;
  uint32_t alignment; /* of the device */
  bool synchronous;
  opi_weight_param *trained; /* [n_trained] rising slot */
  /* [n_trained] of a step, for backends that take many parameters at once */
  opipe_update_part *updates;
  opipe_region *cells, *squared;
  opipe_params *sets[OPI_SETS];
  opipe_params *gradients;
  opipe_buffer *state; /* moments */
  opipe_buffer *dense; /* one tied parameter */
  uint64_t dense_bytes;
  opipe_event *ready, *done; /* NULL on synchronous devices */
  opi_weight_bytes bytes;
  uint64_t charged_bytes;
} opi_holder;

/* A stage instance's part of what its rank holds. */
typedef struct opi_part {
  opi_holder *holder; /* NULL: there is no such instance */
  uint32_t stage, replica, n_trained;
  uint32_t *trained; /* [n_trained] of the holder's: those that it reads */
  uint32_t sum;      /* OPI_SUM_*: the rank's own */
} opi_part;

/* Phases of a step. */
enum { OPI_PHASE_SUM = 0, OPI_PHASE_TIES = 1, OPI_PHASE_NORM = 2, OPI_PHASE_READ = 3 };

typedef struct opi_weight_rank {
  opi_holder *holder; /* NULL: the rank holds nothing, and has no part */
  opi_part **parts;   /* [n_parts] rising (stage, replica) */
  uint32_t n_parts;
  uint32_t phase, tie; /* tie: next of weights->ties */
  bool started;        /* of the phase */
  bool dirty;          /* gradients of the last step are still there */
  bool updating;       /* in an update, or in one that did not end */
  uint32_t newest;     /* set of version 0 */
  opi_member norms;
  bool norms_given;    /* in this step */
  bool lags;           /* alone: the norms of the last step have not been read yet */
  bool held;           /* a step was not finite: nothing is applied any more */
  opipe_buffer *table; /* [n_trained + 1] doubles, `stride` bytes apart; the last: ranks whose part
                          of the loss is no number */
  uint64_t stride, table_bytes;
  opi_pinned host;   /* the same, on the host */
  double *norms_now; /* [n_trained] of the last step */
  opi_step_report report;
  opi_weights_clock clock;
  double gradient_scale; /* what the last mini-batch's gradients were multiplied by */
} opi_weight_rank;

/* A buffer of which groups sum regions. */
typedef struct opi_travelling {
  opipe_endpoint *endpoint;
  opipe_buffer *buffer;
  opipe_memory *memory;
  uint64_t n_bytes;
} opi_travelling;

struct opi_weights {
  const opipe_allocator *allocator;
  opi_arena arena;
  opi_optimizer optimizer;
  opi_transport_ref transport;
  opi_budget *budget;
  const opipe_param_source *sources;
  bool *trained;           /* [n_sources] */
  bool *changed;           /* [n_sources] not trained, and set */
  uint32_t *used;          /* [n_used] slots that some stage reads, rising */
  uint32_t *ties;          /* [n_ties] slots, rising */
  uint32_t *trained_index; /* [n_sources] */
  uint32_t n_sources, n_used, n_ties, n_trained, n_parts, n_holders, n_ranks, n_versions, n_moments;
  bool keep_gradients, hold;
  opipe_status (*share)(void *ctx, uint32_t holder, void *data, uint64_t n_bytes, opipe_status had,
                        opipe_error *io_err); /* NULL: all instances are here */
  void *share_ctx;
  bool alone;                 /* no rank waits for the norms of others: see update.c */
  opi_part *parts;            /* [n_parts] stage * n_replicas + replica */
  opi_holder *holders;        /* [n_holders] rising rank */
  opi_weight_rank *ranks;     /* [n_ranks] */
  opi_travelling *travelling; /* [n_travelling] */
  uint32_t n_travelling, room_travelling;
  opi_plain_group *plain; /* all, for freeing */
  char *plain_scratch;    /* of the largest: a sum and a part */
  uint64_t plain_bytes;   /* of either */
};

/* -- groups.c -- */
/* Opens the members of a sum over `holders` [n] in this order; members[i] is that of holder i.
 * n_bytes: largest region. [control] */
opipe_status opi_group_open(opi_weights *weights, opi_holder *const *holders, uint32_t n,
                            uint64_t n_bytes, opi_member *const *members, opipe_error *err);
void opi_member_close(const opi_weights *weights, opi_member *member);
void opi_groups_free(opi_weights *weights);
/* Gives `region` to the sum / asks whether it is there. OPIPE_PENDING: call again. */
opipe_status opi_member_start(opi_weights *weights, opi_holder *holder, opi_member *member,
                              const opipe_region *region, uint32_t dtype, opipe_error *err);
opipe_status opi_member_test(opi_weights *weights, opi_holder *holder, opi_member *member,
                             opipe_error *err);

/* -- travel.c -- */
/* Registers what the groups that are open will sum. [control] */
opipe_status opi_travel_register(opi_weights *weights, opipe_error *err);
void opi_travel_drop(const opi_weights *weights); /* behind the groups, before the buffers */

/* -- reduce.c -- */
/* Moves the sums over replicas on. */
opipe_status opi_rank_sum(opi_weights *weights, opi_weight_rank *rank, opipe_error *err);
/* Sums parameters that several stages read. */
opipe_status opi_rank_ties(opi_weights *weights, opi_weight_rank *rank, opipe_error *err);

/* -- update.c -- */
/* Takes the norms' table; writes the new version. */
opipe_status opi_rank_update(opi_weights *weights, opi_weight_rank *rank, const double *lr,
                             opipe_error *err);

/* -- open.c -- */
/* NULL: not held, or not trained. */
opi_weight_param *opi_holder_param(const opi_holder *holder, uint32_t slot);
/* Waits for all that is queued. [control] */
opipe_status opi_holder_sync(opi_holder *holder, opipe_error *err);

static inline const opipe_backend *opi_backend_of(const opi_holder *holder) {
  return holder->env.backend->table;
}

#endif /* OPI_WEIGHTS_KEPT_H */
