/* SPDX-License-Identifier: Apache-2.0 */
/* How a plan trains: its optimizer, and the specification that it was made for. */
#ifndef OPI_PLAN_TRAINING_H
#define OPI_PLAN_TRAINING_H

#include "loader/gradient/gradient.h"

/* Most bytes of gradients that are summed together; a larger parameter has a bucket of its own. */
enum { OPI_BUCKET_BYTES = 4 << 20 };

enum { OPI_LR_CONSTANT = 0, OPI_LR_LINEAR = 1, OPI_LR_COSINE = 2 };

typedef struct opi_optimizer {
  uint32_t kind; /* OPIPE_OPTIMIZER_* */
  uint32_t nesterov;
  uint32_t eps_inner;   /* eps-mode=hf */
  uint32_t lr_schedule; /* OPI_LR_* */
  double lr, momentum, beta1, beta2, epsilon, decay;
  uint64_t warmup_steps, total_steps;
  double clip_norm;            /* 0: none */
  const char *const *no_decay; /* [n_no_decay] globs */
  uint32_t n_no_decay;
  uint32_t loss_scaling; /* 1: dynamic loss scale, under compute OPIPE_FLOAT16 alone */
  uint32_t shard; /* 1: the ranks that hold a parameter share out its moments and its update */
} opi_optimizer;

/* Errors: INVALID names the value that is out of range, and the range. */
opipe_status opi_optimizer_check(const opi_optimizer *optimizer, opipe_error *err);
/* State tensors per parameter beside the weights: 0, 1 or 2. */
uint32_t opi_optimizer_moments(const opi_optimizer *optimizer);
/* True if the session has a loss scale. Specs that scale without fp16 are refused
 * (opi_train_spec_copy). */
static inline bool opi_optimizer_scales(const opi_optimizer *optimizer) {
  return optimizer->loss_scaling != 0;
}
/* True if a rank's step needs nothing from others but the sums of its own gradients: no norm to
 * clip by, no loss scale to judge, no part of a weight that another rank updates. */
static inline bool opi_optimizer_steps_alone(const opi_optimizer *optimizer) {
  return optimizer->clip_norm == 0 && !opi_optimizer_scales(optimizer) && optimizer->shard == 0;
}

/* The training that a plan is made for. The loss, the globs, recompute and compute shape the graph,
 * the optimizer its memory. All of it is written into the plan, so that a plan can be trained on
 * its own. */
typedef struct opi_train_spec {
  opi_loss loss; /* kind OPI_LOSS_OUTPUT with output NULL: the only scalar float output */
  const opi_train_glob *globs; /* [n_globs] */
  uint32_t n_globs;
  uint32_t recompute; /* OPI_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16; 0: OPIPE_FLOAT */
  uint32_t replicas;  /* data-parallel copies of the whole pipeline, each on its own ranks; 0
                         means 1. Multiplies the schedule's layout */
  uint32_t n_rank_replicas;
  const uint32_t
      *rank_replicas;      /* [n_rank_replicas] replicas of every rank of the schedule (or of every
                              stage), which divide each micro-batch; empty: `replicas` applies */
  uint64_t seed;           /* for dropout */
  opi_train_choice choice; /* trained parameters: found once, when the plan is made */
  opi_optimizer optimizer;
} opi_train_spec;

#endif /* OPI_PLAN_TRAINING_H */
