/* SPDX-License-Identifier: Apache-2.0 */
/* How a plan trains: its optimizer, and the specification that it was made for. */
#ifndef OPI_PLAN_TRAINING_H
#define OPI_PLAN_TRAINING_H

#include "loader/gradient/gradient.h"

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
} opi_optimizer;

/* Errors: INVALID names what is out of range, with both numbers. */
opipe_status opi_optimizer_check(const opi_optimizer *optimizer, opipe_error *err);
/* Tensors of state per parameter beside the weights: 0, 1 or 2. */
uint32_t opi_optimizer_moments(const opi_optimizer *optimizer);
/* Has the session a loss scale? Everywhere else gradients come as they are: a spec that scales
 * where nothing is fp16 is no plan's (opi_train_spec_copy). */
static inline bool opi_optimizer_scales(const opi_optimizer *optimizer) {
  return optimizer->loss_scaling != 0;
}
/* Does a step need nothing of other ranks but sums of its own gradients: neither a norm to clip by
 * nor a loss scale to judge? */
static inline bool opi_optimizer_steps_alone(const opi_optimizer *optimizer) {
  return optimizer->clip_norm == 0 && !opi_optimizer_scales(optimizer);
}

/* What a training plan is made for. The loss, the globs, recompute and compute shape the graph; the
 * optimizer its memory; all of it is written into the plan, so that a plan alone can be trained. */
typedef struct opi_train_spec {
  opi_loss loss; /* kind OPI_LOSS_OUTPUT with output NULL: the only scalar float output */
  const opi_train_glob *globs; /* [n_globs] */
  uint32_t n_globs;
  uint32_t recompute; /* OPI_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16; 0: OPIPE_FLOAT */
  uint32_t replicas;  /* data parallel copies of the whole pipeline, each on ranks of its own; 0: 1.
                         Multiplies what the schedule lays out */
  uint32_t n_rank_replicas;
  const uint32_t *rank_replicas; /* [n_rank_replicas] replicas of every rank of the schedule (or of
                                    every stage), which cut each micro-batch between them; none:
                                    `replicas` holds */
  uint64_t seed;                 /* of dropout */
  opi_train_choice choice;       /* what is trained: found when the plan is made, never again */
  opi_optimizer optimizer;
} opi_train_spec;

#endif /* OPI_PLAN_TRAINING_H */
