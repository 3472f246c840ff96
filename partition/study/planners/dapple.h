/* SPDX-License-Identifier: Apache-2.0 */
/* DAPPLE's cost model (Fan et al., PPoPP'21, section 4; rates and rules as in its planner's code).
 */
#ifndef OPI_DAPPLE_H
#define OPI_DAPPLE_H

#include "partition/study/planners/strategy.h"

/* All-reduce of n_bytes over devices: 2 (n - 1) / n n_bytes, at n / 2 times the link rate within a
 * node, at the collectives' rate between nodes. */
double opi_dapple_sum_ns(const opi_machine *machine, const uint32_t *devices, uint32_t n,
                         double n_bytes);
/* A micro-batch's tensor, split over the devices of one stage, concatenated and split again for
 * those of the next. Within one node at its rate; to several nodes at the rate of collectives;
 * otherwise at that of messages, for the share that other nodes send. */
double opi_dapple_cross_ns(const opi_machine *machine, const uint32_t *src, uint32_t n_src,
                           const uint32_t *dst, uint32_t n_dst, double n_bytes);

/* A pipeline with links as stages: stages at even indices, links at odd ones. */
typedef struct opi_dapple_pipe {
  double *forward_ns, *backward_ns, *sum_ns; /* [n] */
  uint32_t n;                                /* 2 stages - 1 */
  uint32_t n_microbatches;
} opi_dapple_pipe;

/* Latency of a mini-batch around its pivot, L = T_w + T_s + T_e (section 4.2). */
double opi_dapple_latency_ns(const opi_dapple_pipe *pipe, uint32_t *out_pivot);
/* The same, played micro-batch by micro-batch with policy PA over all n stages, as the planner's
 * code evaluates plans: a stage does one thing at a time. scratch [2 n]. */
double opi_dapple_play_ns(const opi_dapple_pipe *pipe, double *scratch);

/* Computes the pipe of a strategy whose stages have layers and devices, and fills in the stages'
 * times. `pipe` has room for 2 n_stages - 1. */
void opi_dapple_fill(const opi_planning *planning, const opi_machine *machine,
                     opi_strategy *strategy, opi_dapple_pipe *pipe);

#endif /* OPI_DAPPLE_H */
