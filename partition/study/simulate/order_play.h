/* SPDX-License-Identifier: Apache-2.0 */
/* Orders on a cluster: a lowered order with what its stages cost becomes a play. */
#ifndef OPI_ORDER_PLAY_H
#define OPI_ORDER_PLAY_H

#include "partition/study/simulate/play.h"

/* Of a stage (of one of its replicas, and of one of its tensor ranks); times and bytes of one whole
 * micro-batch. */
typedef struct opi_stage_load {
  double forward_ns, input_ns, weight_ns;
  double recompute_ns; /* 0: as the forward */
  double step_ns;      /* of the optimizer */
  double flops;        /* of forward and backward, without recomputation: for utilisation */
  double send_bytes;   /* to each stage that reads it; gradients back are as large */
  double stash_bytes;  /* from the forward (or what is computed again) to the end of the backward */
  double input_bytes;  /* from a forward that is computed again to the end of the backward */
  double fixed_bytes;  /* weights, gradients, optimizer's state */
  double gradient_bytes; /* reduced over replicas */
  uint32_t tensor_sums;  /* all-reduces over the tensor group in a forward, as many in a backward,
                            and in the part of it that goes with the inputs (I) */
  double tensor_bytes;   /* of each */
} opi_stage_load;

/* In which order ranks of the three kinds stand on the devices, from the nearest. */
enum {
  OPI_PLACE_TENSOR_DATA_PIPELINE = 0, /* as Megatron-LM places them */
  OPI_PLACE_TENSOR_PIPELINE_DATA = 1,
  OPI_PLACES = 2
};

typedef struct opi_order_play {
  const opi_cluster *cluster;
  const opi_stage_load *stages;    /* [n_stages] */
  const opi_stage_load *instances; /* [n_stages * n_replicas] whose times hold for each instance, as
                                      where devices differ; NULL: those of its stage */
  const uint32_t *device;          /* [ranks * copies] as opi_play's; NULL: by `place` */
  const double *edge_bytes;        /* [n_edges] in place of send_bytes; NULL: these hold */
  uint32_t n_tensor, n_data;       /* 0: what the order says (opi_problem.n_tensor, n_copies). Data:
                                      copies of the whole order, each with its own micro-batches */
  uint32_t place;                  /* OPI_PLACE_* */
  uint32_t collective;             /* OPI_COLLECTIVE_* of all */
  uint32_t dtype;                  /* of products, for utilisation: OPIPE_FLOAT, ... */
  uint32_t n_bodies;               /* of a double-buffered order; 0: 8 */
  const double *slice_times; /* [n_slices] what part of a stage's times each token slice takes;
                                NULL: its share of the tokens */
  bool recomputes_late;      /* what is computed again waits for the gradient first, as automatic
                                differentiation with checkpoints does */
  bool updates_each;         /* every micro-batch is a mini-batch: its gradients are summed over
                                copies and stepped behind its backward (orders of one replica,
                                whose reductions and steps are left out) */
  bool updates_beside;       /* with updates_each: a sum runs beside the passes that follow, and is
                                waited for before the next of its stage begins (as gradients that
                                are summed while the backward goes on: Harlap et al. 2018, 3.3) */
  bool waits_for_reductions; /* a reduction holds its rank up; else it runs beside */
  bool sharded;              /* also where the order does not say so, as the next two: gradients are
                                scattered, weights gathered behind the step */
  bool sequence;    /* each tensor rank has a part of the tokens: a gather before, a scatter
                       behind a pass, in place of sums (Korthikanti et al. 2022) */
  bool scattered;   /* each tensor rank sends its part between stages, and the receivers
                       gather (Narayanan et al., SC'21, section 4.1) */
  bool posted_late; /* receives are posted where they stand in the list, and the rule of
                       the cluster's link holds; else there is room from the start */
  bool own_machine; /* of a plan: the cluster is its own devices, and its prediction is the time */
  bool apart;       /* tests: every copy is played */
} opi_order_play;

typedef struct opi_order_played {
  opi_play play; /* what was played; in the arena, as all below */
  opi_played result;
  uint32_t n_ranks;        /* of the cluster */
  double step_ns;          /* of a mini-batch; double-buffered: in the steady state */
  double bubble;           /* idle share of all ranks' time: 1 - busy / (ranks x step) */
  double bubble_overhead;  /* idle over busy time of the busiest rank: (step - busy) / busy */
  double flops;            /* per second, all ranks */
  double utilisation;      /* of what large products of the type reach; 0 where that is not known */
  double *fixed_bytes;     /* [lists] weights and what belongs to them */
  const opi_do_list *list; /* the items that operations name: the order's, or one made of it */
} opi_order_played;

/* list: lowered, and proven. What groups do stands in the list; where it has no collectives of
 * tensor and sharded groups, those that order and play ask for are placed first (opi_pass_groups).
 * All in `arena`, but the list that is then played. Errors: INVALID, fewer devices than ranks, a
 * cost out of range, an order of other groups; LIMIT, more operations than 2^32; as opi_play_run.
 */
opipe_status opi_order_play_run(const opi_problem *problem, const opi_do_list *list,
                                const opi_order_play *how, opi_arena *arena,
                                opi_order_played *out_played, opipe_error *err);
/* Frees the list that was made, where there is one; `list`: what was given. */
void opi_order_played_release(opi_order_played *played, const opi_do_list *list);

#endif /* OPI_ORDER_PLAY_H */
