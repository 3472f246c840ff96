/* SPDX-License-Identifier: Apache-2.0 */
/* Inside runtime/weights: the parameters that ranks hold, the sums between them, a rank's progress
 * in its step. While it steps a rank writes only its own opi_weight_rank, holder and parts. Groups
 * are the transport's, or plain ones that a single thread drives.
 */
#ifndef OPI_WEIGHTS_KEPT_H
#define OPI_WEIGHTS_KEPT_H

#include "partition/memory/weights.h"
#include "partition/program/cut.h"
#include "runtime/weights/weights.h"

enum { OPI_SETS = 2 };

/* One rank's part in an all-reduce or a collect; rounds are numbered. */
typedef struct opi_plain_group opi_plain_group;
typedef struct opi_member {
  opipe_group *group;           /* the transport's */
  opipe_collective *collective; /* or this */
  opi_plain_group *plain;       /* without a transport */
  uint32_t index;               /* among the members */
  uint32_t pending;             /* 1: started, not finished */
  bool asked;                   /* `ready` is recorded for this round, which has not started yet */
  uint64_t round;
} opi_member;

/* A trained parameter of a rank. */
typedef struct opi_weight_param {
  uint32_t slot;
  uint32_t n_readers;  /* instances of the rank whose programs add to the gradient */
  uint32_t n_complete; /* readers that are done in this mini-batch */
  bool tied;           /* several stages read it: summed at the step */
  bool dense;          /* tied, and summed in dense form */
  bool owner;          /* the rank has its first reader, and takes the norm of what is dense */
  bool no_decay;
  bool repeats;           /* a later member's copy: its norm is counted elsewhere */
  uint32_t trained_index; /* among trained parameters; its place in the table of norms */
  uint64_t key, n_bytes;  /* of the master's layout */
  uint64_t dense_bytes;
  uint64_t own_first, own_bytes; /* the rank's part of the master (opi_weight_layout) */
  opipe_region weight[OPI_SETS], gradient, moments[OPIPE_MOMENTS_MOST]; /* masters and state */
  opi_member replicas, tie;                                             /* of a sum of its own */
  struct opi_sum_bucket *bucket; /* shared out, or summed by collects; NULL: neither */
  bool replicated;               /* summed over ranks as soon as it is complete */
  bool summed;                   /* the sum over replicas is done, or there is none */
  bool tie_started;              /* in the present step */
} opi_weight_param;

/* A rank's side of parameters that are summed together (opi_weight_bucket). Where the transport has
 * collectives they go as lists of regions; else one by one, each by its own member. */
typedef struct opi_sum_bucket {
  const opi_weight_bucket *shape;
  opi_weight_param **params; /* [shape->n_slots] */
  uint32_t index;            /* of the rank among the holders */
  uint32_t n_complete;       /* parameters whose gradient is complete in this mini-batch */
  bool collects;
  bool started, summed; /* in this mini-batch */
  bool listed;        /* `all` and `own` are those of the collect at hand, which others may read */
  bool recorded;      /* `ready` is, for the sum that is due */
  opipe_event *ready; /* its gradients are complete; NULL on synchronous devices, of ties */
  opi_member member;
  opipe_region *all,
      *own;        /* [n_slots] of the collect at hand: whole masters, and the rank's parts */
  uint64_t *parts; /* [shape->n_holders] in values */
} opi_sum_bucket;

/* A sum over replicas whose gradients are complete: of a bucket, or of one parameter. */
typedef struct opi_due {
  opi_sum_bucket *bucket;  /* NULL: `param` */
  opi_weight_param *param; /* NULL: `bucket` */
} opi_due;

/* Progress of a mini-batch's sum over replicas. */
enum { OPI_SUM_IDLE = 0, OPI_SUM_RUNS = 1, OPI_SUM_DONE = 2 };

/* The parameters that a rank holds for all its instances. */
typedef struct opi_holder {
  opi_weight_instance env; /* the rank's first instance, with programs and parameters of all */
  uint32_t n_trained;
  uint32_t alignment; /* of the device */
  bool synchronous;
  opi_weight_param *trained; /* [n_trained] rising slot */
  opi_sum_bucket *buckets;   /* [n_buckets] in an order that all ranks share */
  uint32_t n_buckets;
  uint32_t n_begun; /* buckets whose weights are being gathered, or have been, in this step */
  opi_due *due; /* [n_due, room n_trained] sums of this mini-batch in the order of their start */
  uint32_t n_due, n_started;
  /* [n_trained] arguments of a step, for backends that take many parameters at once */
  opipe_update_part *updates;
  opipe_region *cells, *squared;
  opipe_params *sets[OPI_SETS];
  opipe_params *gradients;
  opipe_buffer *state; /* moments */
  opipe_buffer *dense; /* room for one tied parameter */
  uint64_t dense_bytes;
  opipe_event *ready, *done; /* NULL on synchronous devices */
  opi_weight_bytes bytes;
  uint64_t charged_bytes;
} opi_holder;

/* A stage instance's part of its rank's parameters. */
typedef struct opi_part {
  opi_holder *holder; /* NULL: there is no such instance */
  uint32_t stage, replica, n_trained;
  uint32_t *trained; /* [n_trained] indices of the parameters that it reads, in the holder's list */
  uint32_t sum;      /* OPI_SUM_*; written by the rank */
  uint32_t n_passed; /* of `trained`, from the last on: complete in this mini-batch */
  bool reduced;      /* all are, as its list says */
} opi_part;

/* Phases of a step. */
enum {
  OPI_PHASE_SUM = 0,
  OPI_PHASE_TIES = 1,
  OPI_PHASE_NORM = 2,
  OPI_PHASE_READ = 3,
  OPI_PHASE_GATHER = 4 /* the update is made; weights are gathered, if they are shared out */
};

typedef struct opi_weight_rank {
  opi_holder *holder; /* NULL: the rank holds no parameters */
  opi_part **parts;   /* [n_parts] rising (stage, replica) */
  uint32_t n_parts;
  uint32_t phase, tie; /* tie: the next of weights->ties */
  bool started;        /* the phase has started */
  bool dirty;          /* the last step's gradients are still there */
  bool updating;       /* in an update, which may have failed half-way */
  uint32_t newest;     /* the set of version 0 */
  opi_member norms;
  bool norms_given;    /* in this step */
  bool gathers;        /* the update of this step was made, and weights are to be gathered */
  uint32_t gathered;   /* buckets of this step whose weights are there */
  bool lags;           /* alone: the last step's norms have not been read yet */
  bool held;           /* a step was not finite, and no update is applied any more */
  opipe_buffer *table; /* [n_trained + 1] doubles, `stride` bytes apart; the last counts ranks whose
                          part of the loss is not finite */
  uint64_t stride, table_bytes;
  opi_pinned host;   /* the same, on the host */
  double *norms_now; /* [n_trained] of the last step's gradients */
  opi_step_report report;
  opi_weights_clock clock;
  double gradient_scale; /* the factor in the last mini-batch's gradients */
} opi_weight_rank;

/* A buffer with regions that groups sum. */
typedef struct opi_travelling {
  opipe_endpoint *endpoint;
  opipe_buffer *buffer;
  opipe_memory *memory;
  uint64_t n_bytes;
} opi_travelling;

/* All buckets of the session. */
typedef struct opi_bucket_list {
  opi_weight_bucket *list; /* [n] */
  uint32_t n;
} opi_bucket_list;

/* [n_sources] of each: rows of the table that are one parameter to the host (rows.c). */
typedef struct opi_weight_rows {
  const opi_param_part *const *parts; /* NULL: no tensor groups */
  uint32_t *next;                     /* the next row of the same parameter; OPIPE_NONE */
  bool *is_later;                     /* it is not the first of these */
  bool *changed;                      /* not trained, and set by the host */
} opi_weight_rows;

struct opi_weights {
  const opipe_allocator *allocator;
  opi_arena arena;
  opi_optimizer optimizer;
  opi_transport_ref transport;
  opi_budget *budget;
  const opipe_param_source *sources;
  bool *trained; /* [n_sources] */
  opi_weight_rows rows;
  uint32_t *used;          /* [n_used] slots that a stage reads, rising; first rows */
  uint32_t *ties;          /* [n_ties] slots, rising */
  uint32_t *trained_index; /* [n_sources] */
  opi_bucket_list shapes;
  uint32_t n_sources, n_used, n_ties, n_trained, n_parts, n_holders, n_ranks, n_versions, n_moments;
  bool keep_gradients, hold;
  opipe_status (*share)(void *ctx, uint32_t holder, void *data, uint64_t n_bytes, opipe_status had,
                        opipe_error *io_err); /* NULL: all instances are here */
  void *share_ctx;
  bool alone;                 /* no rank waits for the norms of others; see update.c */
  opi_part *parts;            /* [n_parts] as instances */
  opi_holder *holders;        /* [n_holders] rising rank */
  opi_weight_rank *ranks;     /* [n_ranks] */
  opi_travelling *travelling; /* [n_travelling] */
  uint32_t n_travelling, room_travelling;
  opi_plain_group *plain; /* all of them, for freeing */
  char *plain_scratch;    /* a sum and a part of the largest group */
  uint64_t plain_bytes;   /* the size of either */
};

/* -- rows.c: parameters with a row for each member of a tensor group -- */
/* Links the rows of one parameter that stages read. [control] */
opipe_status opi_rows_link(opi_weights *weights, const bool *read, opipe_error *err);
bool opi_row_is_part(const opi_weights *weights, uint32_t row);
/* A later member's copy of a whole parameter: it counts in no norm. */
bool opi_row_repeats(const opi_weights *weights, uint32_t row);
/* The parameter as the host knows it; bytes of a row where the whole has whole_bytes. */
const opipe_param_source *opi_row_whole(const opi_weights *weights, uint32_t row);
uint64_t opi_row_bytes(const opi_weights *weights, uint32_t row, uint64_t whole_bytes);
/* Get a row's own dense form, or set it, as `how` says. */
typedef opipe_status (*opi_row_get)(opi_weights *weights, uint32_t row, const void *how, void *dst,
                                    uint64_t n_bytes, opipe_error *err);
typedef opipe_status (*opi_row_set)(opi_weights *weights, uint32_t row, const void *how,
                                    const void *src, uint64_t n_bytes, opipe_error *err);
/* Join the parts from `row`, the first, on; cut the whole for all rows, or give it to all copies.
 */
opipe_status opi_rows_get(opi_weights *weights, uint32_t row, uint64_t n_bytes, opi_row_get get,
                          const void *how, void *dst, opipe_error *err);
opipe_status opi_rows_set(opi_weights *weights, uint32_t row, uint64_t n_bytes, opi_row_set set,
                          const void *how, const void *src, opipe_error *err);

/* -- groups.c -- */
/* Opens the members of a sum over `holders` [n], which is made in this order; members[i] is holder
 * i's. n_bytes: the largest region. [control] */
opipe_status opi_group_open(opi_weights *weights, opi_holder *const *holders, uint32_t n,
                            uint64_t n_bytes, opi_member *const *members, opipe_error *err);
void opi_member_close(const opi_weights *weights, opi_member *member);
void opi_groups_free(opi_weights *weights);
/* Start gives `region` to the sum, test asks whether the sum is there. OPIPE_PENDING: call again.
 */
opipe_status opi_member_start(opi_weights *weights, opi_holder *holder, opi_member *member,
                              const opipe_region *region, uint32_t dtype, opipe_error *err);
opipe_status opi_member_test(opi_weights *weights, opi_holder *holder, opi_member *member,
                             opipe_error *err);

/* Does the transport collect? */
bool opi_collects(const opi_weights *weights);
/* The same as group_open, of members that collect lists of at most n_regions regions. */
opipe_status opi_collective_open(opi_weights *weights, opi_holder *const *holders, uint32_t n,
                                 const opipe_collective_params *params, opi_member *const *members,
                                 opipe_error *err);
/* The same as start. ready: recorded already; NULL: it is set here, as is done. */
opipe_status opi_collect_start(opi_weights *weights, opi_holder *holder, opi_member *member,
                               const opipe_collect *what, opipe_error *err);
/* Without a transport: the parts of `bucket` go to all its holders once all have asked. */
opipe_status opi_plain_gather(opi_weights *weights, opi_holder *holder, opi_sum_bucket *bucket,
                              opipe_error *err);

/* -- buckets.c -- */
/* Makes the ranks' sides of all buckets, and opens their groups. [control] */
opipe_status opi_buckets_open(opi_weights *weights, opipe_error *err);
void opi_buckets_close(const opi_weights *weights);
/* A gradient of the bucket is complete. *out_due: all are, and its sum is to start. */
opipe_status opi_bucket_complete(opi_holder *holder, opi_sum_bucket *bucket, bool *out_due,
                                 opipe_error *err);
/* Starts the sum of a bucket that is due; OPIPE_PENDING: call again. */
opipe_status opi_bucket_start(opi_weights *weights, opi_holder *holder, opi_sum_bucket *bucket,
                              opipe_error *err);
/* Has a sum that has started ended? OPIPE_OK: yes. */
opipe_status opi_bucket_test(opi_weights *weights, opi_holder *holder, opi_sum_bucket *bucket,
                             opipe_error *err);
/* Sums a tied bucket. OPIPE_OK: done. */
opipe_status opi_bucket_tie(opi_weights *weights, opi_holder *holder, opi_sum_bucket *bucket,
                            opipe_error *err);
/* Gathers the weights of `set` that are shared out, and renews their copies. OPIPE_OK: done. */
opipe_status opi_buckets_gather(opi_weights *weights, opi_weight_rank *rank, uint32_t set,
                                opipe_error *err);
void opi_buckets_end(opi_holder *holder); /* of a step */
/* A region's part that is the rank's own. */
opipe_region opi_own_part(const opi_weight_param *param, const opipe_region *master);

/* -- travel.c -- */
/* Registers the buffers with regions that open groups will sum. [control] */
opipe_status opi_travel_register(opi_weights *weights, opipe_error *err);
void opi_travel_drop(const opi_weights *weights); /* after the groups, before the buffers */

/* -- reduce.c -- */
/* Makes progress with the sums over replicas. */
opipe_status opi_rank_sum(opi_weights *weights, opi_weight_rank *rank, opipe_error *err);
/* Sums parameters that several stages read. */
opipe_status opi_rank_ties(opi_weights *weights, opi_weight_rank *rank, opipe_error *err);

/* -- update.c -- */
/* Takes the norms' table; writes the new version. */
opipe_status opi_rank_update(opi_weights *weights, opi_weight_rank *rank, const double *lr,
                             opipe_error *err);

/* -- open.c -- */
/* The holder's trained parameter in `slot`; NULL: none. */
opi_weight_param *opi_holder_param(const opi_holder *holder, uint32_t slot);
/* Waits until everything queued is done. [control] */
opipe_status opi_holder_sync(opi_holder *holder, opipe_error *err);

/* Are moments and updates shared out? */
static inline bool opi_shares_out(const opi_weights *weights) {
  return weights->optimizer.shard != 0;
}

static inline const opipe_backend *opi_backend_of(const opi_holder *holder) {
  return holder->env.backend->table;
}

#endif /* OPI_WEIGHTS_KEPT_H */
