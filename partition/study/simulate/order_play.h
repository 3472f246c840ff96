/* SPDX-License-Identifier: Apache-2.0 */
/* Orders on a cluster: a lowered order and its stages' costs become a play. */
#ifndef OPI_ORDER_PLAY_H
#define OPI_ORDER_PLAY_H

#include "partition/study/simulate/play.h"

/* Load of a stage (of one replica and one tensor rank); times and bytes of one whole micro-batch.
 */
typedef struct opi_stage_load {
  double forward_ns, input_ns, weight_ns;
  double recompute_ns;   /* 0: as the forward */
  double step_ns;        /* of the optimizer */
  double flops;          /* of forward and backward, without recomputation: for utilisation */
  double send_bytes;     /* to each stage that reads it; gradients back are equally large */
  double stash_bytes;    /* from the forward (or the recomputation) to the end of the backward */
  double input_bytes;    /* from a recomputed forward to the end of the backward */
  double fixed_bytes;    /* weights, gradients, optimizer's state */
  double gradient_bytes; /* reduced over replicas */
  uint32_t tensor_sums;  /* all-reduces over the tensor group in a forward, and as many in a
                            backward, in its part for the inputs (I) */
  double tensor_bytes;   /* of each */
} opi_stage_load;

/* The order of the three kinds of ranks on the devices, nearest first. */
enum {
  OPI_PLACE_TENSOR_DATA_PIPELINE = 0, /* as Megatron-LM places them */
  OPI_PLACE_TENSOR_PIPELINE_DATA = 1,
  OPI_PLACES = 2
};

typedef struct opi_order_play {
  const opi_cluster *cluster;
  const opi_stage_load *stages;    /* [n_stages] */
  const opi_stage_load *instances; /* [n_stages * n_replicas] loads with each instance's own times,
                                      if devices differ; NULL: the stage's */
  const uint32_t *device;          /* [ranks * copies] as opi_play's; NULL: by `place` */
  const double *edge_bytes;        /* [n_edges] replaces send_bytes; NULL: send_bytes hold */
  uint32_t n_tensor, n_data;       /* 0: the order's (opi_problem.n_tensor, n_copies). Data: copies
                                      of the whole order, each with its own micro-batches */
  uint32_t place;                  /* OPI_PLACE_* */
  uint32_t collective;             /* OPI_COLLECTIVE_* of all collectives */
  uint32_t dtype;                  /* of products, for utilisation: OPIPE_FLOAT, ... */
  uint32_t n_bodies;               /* of a double-buffered order; 0: 8 */
  const double *slice_times; /* [n_slices] fraction of a stage's times that each token slice takes;
                                NULL: its share of the tokens */
  bool recomputes_late;      /* a recomputation waits for the gradient first, as automatic
                                differentiation with checkpoints does */
  bool updates_each;         /* every micro-batch is a mini-batch: its gradients are summed over
                                copies and stepped after its backward (orders of one replica, whose
                                reductions and steps are left out) */
  bool updates_beside;       /* with updates_each: a sum runs beside the passes that follow, and the
                                next of its stage waits for it (gradients are summed while the
                                backward continues: Harlap et al. 2018, 3.3) */
  bool waits_for_reductions; /* a reduction blocks its rank; else it runs in the background */
  bool sharded;              /* even if the order does not say so, as the next two: gradients are
                                scattered, weights gathered after the step */
  bool sequence;    /* each tensor rank has a part of the tokens: a gather before and a scatter
                       after a pass, in place of sums (Korthikanti et al. 2022) */
  bool scattered;   /* each tensor rank sends its part to the next stage, and the receivers gather
                       (Narayanan et al., SC'21, section 4.1) */
  bool posted_late; /* receives are posted at their places in the list, and the rule of the
                       cluster's link holds; else there is room from the start */
  bool own_machine; /* for a plan: the cluster is its own devices, and the plan's prediction is the
                       time */
  bool apart;       /* tests: every copy is played */
} opi_order_play;

typedef struct opi_order_played {
  opi_play play; /* the play itself; in the arena, as all below */
  opi_played result;
  uint32_t n_ranks;        /* of the cluster */
  double step_ns;          /* of a mini-batch; double-buffered: in the steady state */
  double bubble;           /* idle share of all ranks' time: 1 - busy / (ranks x step) */
  double bubble_overhead;  /* idle over busy time of the busiest rank: (step - busy) / busy */
  double flops;            /* per second, all ranks */
  double utilisation;      /* relative to the peak of large products of the type; 0: unknown */
  double *fixed_bytes;     /* [lists] weights, gradients and optimizer state */
  const opi_do_list *list; /* the items that operations name: the order's list, or one made from it
                            */
} opi_order_played;

/* list: lowered, and proven. Collectives of groups are played as they stand in the list; if it has
 * none of tensor and sharded groups, those that order and play ask for are placed first
 * (opi_pass_groups). Allocates in `arena`, except the list that is then played. Errors: INVALID,
 * fewer devices than ranks, a cost out of range, an order of other groups; LIMIT, more operations
 * than 2^32; as opi_play_run. */
opipe_status opi_order_play_run(const opi_problem *problem, const opi_do_list *list,
                                const opi_order_play *how, opi_arena *arena,
                                opi_order_played *out_played, opipe_error *err);
/* Frees the list that the play made, if any; `list`: the given one. */
void opi_order_played_release(opi_order_played *played, const opi_do_list *list);

#endif /* OPI_ORDER_PLAY_H */
