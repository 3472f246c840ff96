/* SPDX-License-Identifier: Apache-2.0 */
/* The decision: the part of a plan that all ranks must have in common.
 *
 * 1. Making (partition/make) or reading a plan writes it, group by group in the order below. After
 *    opi_plan_hash nobody changes it.
 * 2. The hash covers the decision and nothing else: opi_plan_write_decisions writes every field,
 *    except those that follow from other fields and the model (binding.batch; of a state its
 *    indices, type and stage), those that only choose how fast or how much a device computes (of a
 *    device its threads, caps and option `kernels`; the times of the link), and the allocator.
 * 3. Pointers lead into the arena of the plan. A copy of the struct shares them, so it must not
 *    outlive the plan; whoever changes an array in a copy replaces the pointer.
 * 4. Reading it asks no device and needs no model.
 */
#ifndef OPI_PLAN_DECISION_H
#define OPI_PLAN_DECISION_H

#include "partition/plan/device.h"
#include "partition/plan/training.h"

/* An output whose content a stream of requests keeps for an input of its next one. */
typedef struct opi_state_pair {
  const char *output, *input; /* as the model's file names them */
  uint64_t capacity;          /* elements of each of a stream's two buffers */
  /* These follow from the model and the cut (partition/program/states.h). */
  uint32_t output_index, input_index; /* of the model's file */
  uint32_t dtype;
  uint32_t stage; /* that makes the one and reads the other */
} opi_state_pair;

/* How the model is bound: the graph of every micro-batch follows from this. Written before the
 * layout; the batch is chosen, then settled by how many micro-batches there are. */
typedef struct opi_plan_binding {
  opi_dim_binding *dims; /* [n_dims] shapes of the whole request (batch = rows of the request) */
  uint32_t n_dims;
  opi_pin *pins; /* [n_pins] */
  uint32_t n_pins;
  uint32_t bind_flags;   /* OPI_BIND_* */
  uint32_t dropout;      /* OPI_DROPOUT_* */
  double dropout_ratio;  /* of OPI_DROPOUT_RATIO */
  const char **barriers; /* [n_barriers] cut tensors that fusion keeps */
  uint32_t n_barriers;
  const char *batch_dim;       /* name(s) of the dimension that micro-batches split
                                  (partition/program/batch.h); NULL: none is free */
  int64_t batch_rows;          /* rows of a whole request; 0 without batch_dim */
  const opi_known_axis *batch; /* how the batch runs through the model (opi_batch_prove); NULL: not
                                  proven. Follows from the model */
} opi_plan_binding;

typedef struct opi_decision {
  const opipe_allocator *allocator; /* for the scratch memory of readers */
  uint64_t fingerprint[2]; /* of the model, XXH3-128: graph, names, types, shapes; not the values of
                              weights */
  opi_plan_binding binding;
  const opi_train_spec *train; /* NULL: a forward plan */
  opi_state_pair *states;      /* [n_states] forward plans; a stream has a buffer of each twice */
  uint32_t n_states;
  uint32_t n_microbatches; /* of a request or mini-batch, over all replicas */
  /* The schedule and its layout (opi_schedule_layout). */
  const char *schedule;             /* "gpipe" */
  opipe_schedule_setting *settings; /* [n_settings] */
  uint32_t n_settings;
  uint32_t n_ranks, n_stages, n_replicas;
  uint32_t *instance_rank; /* [n_stages * n_replicas]; OPIPE_NONE: no such replica */
  uint32_t *shares; /* [n_stages] not NULL: each micro-batch is cut along its rows between the first
                       so many replicas of the stage; n_replicas is the most */
  uint32_t copies;  /* forward: of the whole pipeline, each on ranks of its own, which share out the
                       micro-batches; 0: 1. n_replicas counts them. Training: train->replicas */
  bool in_turn;     /* each copy takes a whole request, one after the other: there are fewer
                       micro-batches than copies. The actions are then those of copy 0 */
  uint32_t in_flight;         /* at most OPI_CREDITS_MOST; 0: no limit */
  uint32_t n_slices, n_parts; /* 0 as 1. Forward plans have no parts */
  uint32_t *slice_lengths;    /* [n_slices] tokens; NULL: equal */
  uint32_t versions, sync;    /* OPIPE_VERSIONS_*, OPIPE_SYNC_* */
  /* Where ranks compute, and how they send. */
  opi_device_spec *devices; /* [n_ranks] */
  uint32_t depth;           /* slots of a boundary tensor between neighbours */
  const char *transport;    /* plugin id, or "id:key=value,..." */
  opi_link link;            /* as the transport declares it */
  /* The cut. */
  const char **node_keys;  /* [n_nodes] the name of the first output that is there, of every node of
                              the bound graph, in order */
  uint32_t *stage_of_node; /* [n_nodes] */
  uint32_t n_nodes;
  /* The order, rank by rank (opi_schedule_order). */
  opipe_action *actions; /* [n_actions] */
  uint32_t n_actions;
  uint32_t *rank_first; /* [n_ranks + 1] into actions */
} opi_decision;

enum { OPI_CREDITS_MOST = 65536 }; /* they are posted in a stream: OPIPE_DEPTH_MOST */

/* Does the plan train? Otherwise it runs requests. */
static inline bool opi_plan_trains(const opi_decision *plan) {
  return plan->train != NULL;
}
/* OPIPE_MODE_*, as schedules are told. */
static inline uint32_t opi_plan_mode(const opi_decision *plan) {
  return opi_plan_trains(plan) ? OPIPE_MODE_TRAIN : OPIPE_MODE_FORWARD;
}

/* Are the rows of the batch ever cut? */
static inline bool opi_plan_cuts_rows(const opi_decision *plan) {
  return plan->n_microbatches > 1 || plan->n_parts > 1 || plan->shares != NULL;
}

/* Are messages matched by the order in which ranks issue them (rules above STREAM)? Then every rank
 * issues them in the order of its list, one after the other. */
static inline bool opi_plan_is_strict(const opi_decision *plan) {
  return plan->n_ranks > 1 && plan->link.rule > OPIPE_RULE_STREAM;
}

/* Has the list of a rank no beginning and no end? Streams of requests, and weights in two versions:
 * what follows a body is the body. */
static inline bool opi_plan_is_periodic(const opi_decision *plan) {
  return opi_plan_trains(plan) ? plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED
                               : !opi_plan_is_strict(plan);
}

/* May a producer on one of two ranks write into the other's memory? Only over a transport that
 * writes in place, and where both devices are of one kind, in one domain, and have host memory.
 * device.c */
bool opi_plan_edge_is_direct(const opi_decision *plan, uint32_t src_rank, uint32_t dst_rank);
/* Between any two of its ranks? */
bool opi_plan_is_direct(const opi_decision *plan);

/* Rank of instance (stage, replica). */
static inline uint32_t opi_plan_rank(const opi_decision *plan, uint32_t stage, uint32_t replica) {
  return plan->instance_rank[stage * plan->n_replicas + replica];
}

/* Slots of a boundary tensor of a forward plan between neighbouring stages: plan->depth, or one per
 * micro-batch of a request (and slice) where a rank has several stages and may compute all of one
 * before the next. */
uint32_t opi_route_depth(const opi_decision *plan);
/* The same between stages of the plan that lie `distance` apart: at least one more for each between
 * them, since in a stream that many micro-batches lie between its ends; doubled until there are
 * enough, so that the slots of all of a stage's tensors come round together. */
uint32_t opi_forward_slots(const opi_decision *plan, uint32_t distance);

#endif /* OPI_PLAN_DECISION_H */
