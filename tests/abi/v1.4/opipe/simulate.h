/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of schedules without a model; plans and orders played on described clusters (guide:
 * clusters); part of host.h.
 *
 * Ranks run the order's lowered list. Messages and collectives take the time that the cluster's
 * links give them, and share the links. Copies of the list (a tensor group, replicas) have devices
 * of their own, placed as: first the ranks of a tensor group, then replicas, then the ranks of the
 * order. Copies that are equal up to names are played once.
 */
#ifndef OPIPE_SIMULATE_H
#define OPIPE_SIMULATE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Costs of one stage and one whole micro-batch, in any unit of time; a slice or half costs its
 * share. comm: delay of every message between ranks. */
typedef struct opipe_order_costs {
  uint32_t struct_size;
  uint32_t n_stages; /* length of the arrays, and then the order's number of stages; 0: no arrays */
  double forward, input, weight, comm;
  const double *stage_forward, *stage_input, *stage_weight; /* [n_stages]; NULL: all stages alike */
} opipe_order_costs;

/* ---- schedules without a model ---- */

/* Forms of an order: OPIPE_FORMAT_TEXT (versioned header, a line per rank), _JSON, _CSV (a row per
 * rank, a cell per action; an empty cell is an idle slot). _HTML, 1.3: a page, for times only. */
enum { OPIPE_FORMAT_CSV = 2, OPIPE_FORMAT_HTML = 3 };
/* Dialects of CSV. TORCH: as PyTorch reads it; an action that PyTorch lacks is refused by name.
 * TORCH_OLD: the same with B for the input half and BW for the whole backward. */
enum { OPIPE_DIALECT_OPIPE = 0, OPIPE_DIALECT_TORCH = 1, OPIPE_DIALECT_TORCH_OLD = 2 };

/* FORWARD: the forward-only form. ALIGNED: idle cells where a rank waits. IMPROVE: as
 * OPIPE_PLAN_IMPROVE. */
enum { OPIPE_ORDER_FORWARD = 1u, OPIPE_ORDER_ALIGNED = 2u, OPIPE_ORDER_IMPROVE = 4u };
/* MESSAGES: without reductions, frees and steps, which other systems leave to their runtime. */
enum { OPIPE_LOWER_MESSAGES = 1u };
typedef struct opipe_order_params {
  uint32_t struct_size;
  uint32_t flags;                 /* OPIPE_ORDER_* */
  const char *schedule;           /* "NAME:key=value,..." */
  uint32_t n_ranks, n_stages;     /* one of them may be 0: the schedule's layout decides */
  uint32_t n_microbatches;        /* of the whole mini-batch */
  uint32_t replicas;              /* copies of the whole pipeline; 0: 1 */
  const opipe_order_costs *costs; /* for schedules that use them; NULL: 1, 1, 1, 0 */
} opipe_order_params;

typedef struct opipe_order_info {
  uint32_t struct_size;
  uint32_t n_ranks, n_stages, n_replicas, n_microbatches, n_slices, n_parts;
  uint32_t n_actions;
  uint32_t lowered; /* 1: it has messages, or steps */
  uint32_t forward_only;
} opipe_order_info;

/* ---- playing ---- */

/* Load of a stage, for one replica and tensor rank, per whole micro-batch unless stated. */
typedef struct opipe_stage_load {
  double recompute_ms;   /* of computing a forward again; 0: as the forward */
  double step_ms;        /* of the optimizer, per mini-batch */
  double flops;          /* of forward and backward, without recomputation */
  double send_bytes;     /* to each stage that reads it; gradients back have the same size */
  double stash_bytes;    /* kept from the forward until the end of the backward */
  double input_bytes;    /* kept by a forward that is recomputed */
  double fixed_bytes;    /* weights, gradients, optimizer state: always held */
  double gradient_bytes; /* reduced over replicas, per mini-batch */
  double tensor_bytes;   /* of each all-reduce over the tensor group */
  uint32_t tensor_sums;  /* all-reduces in a forward, and again in a backward for the inputs */
  uint32_t reserved;     /* 0 */
} opipe_stage_load;

/* SHARDED: gradients are reduce-scattered over replicas, weights gathered after the step.
 * SCATTERED: each tensor rank sends its part between stages, receivers gather. WAITS: a reduction
 * blocks its rank. PIPELINE_FIRST: ranks of the order are placed nearer to each other than
 * replicas. */
enum {
  OPIPE_PLAY_SHARDED = 1u,
  OPIPE_PLAY_SCATTERED = 2u,
  OPIPE_PLAY_WAITS = 4u,
  OPIPE_PLAY_PIPELINE_FIRST = 8u
};
/* Algorithm of all collectives; TIER: the one that the cluster states, else the fastest. */
enum {
  OPIPE_COLLECTIVE_TIER = 0,
  OPIPE_COLLECTIVE_RING = 1,
  OPIPE_COLLECTIVE_RABENSEIFNER = 2,
  OPIPE_COLLECTIVE_TREE = 3,
  OPIPE_COLLECTIVE_HIERARCHICAL = 4
};

typedef struct opipe_play_params {
  uint32_t struct_size;
  uint32_t flags;      /* OPIPE_PLAY_* */
  const void *cluster; /* its text, cluster_bytes long, borrowed for the call. NULL (plans only): a
                          device for each rank, and the link stated in the plan */
  uint64_t cluster_bytes;
  const char *cluster_name; /* in messages; NULL: "the cluster" */
  /* Orders: [n_stages], or one for all; NULL: nothing travels or is kept. Plans have their own:
   * must be NULL. */
  const opipe_stage_load *stages;
  uint32_t n_stages, stages_stride; /* bytes from one to the next */
  uint32_t tensor, copies;          /* orders only: width of tensor groups; replicas of the whole
                                       order, each with its own micro-batches. 0: 1 */
  uint32_t collective;              /* OPIPE_COLLECTIVE_* */
  uint32_t dtype;                   /* of products, for the utilisation; 0: OPIPE_FLOAT */
  const char *title;  /* HTML: the heading, for instance the model's name; NULL: none */
  const void *answer; /* HTML: JSON written by strategy_describe, answer_bytes long, which the page
                         shows with the runners-up; borrowed for the call; NULL: none */
  uint64_t answer_bytes;
} opipe_play_params;

/* Output: figures as text or JSON; Chrome's trace; a picture; a self-contained page of HTML (guide:
 * clusters, "A page"). */
enum {
  OPIPE_PLAY_TEXT = 0,
  OPIPE_PLAY_JSON = 1,
  OPIPE_PLAY_TRACE = 2,
  OPIPE_PLAY_SVG = 3,
  OPIPE_PLAY_HTML = 4
};

#include "frozen/simulate.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_SIMULATE_H */
