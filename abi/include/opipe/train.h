/* SPDX-License-Identifier: Apache-2.0 */
/* Training: the options of a training plan, reports of steps, the state of parameters; part of
 * host.h, which has the functions and whose rules for structs apply. Plain data: no thread rule.
 */
#ifndef OPIPE_TRAIN_H
#define OPIPE_TRAIN_H

#include "optimizers.h" /* OPIPE_OPTIMIZER_* */
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  OPIPE_LOSS_OUTPUT = 0, /* a scalar of the graph: means and sums over the batch's rows, ratios of
                            sums whose divisor depends only on data (a mask), and linear forms of
                            these. With micro-batches any other is UNSUPPORTED */
  OPIPE_LOSS_CROSS_ENTROPY = 1, /* logits [.., classes] against labels of int64 */
  OPIPE_LOSS_MSE = 2,           /* mean squared error */
  OPIPE_LOSS_BCE = 3            /* binary cross entropy with logits */
};
enum { OPIPE_LR_CONSTANT = 0, OPIPE_LR_LINEAR = 1, OPIPE_LR_COSINE = 2 };
enum {
  OPIPE_RECOMPUTE_NONE = 0,
  OPIPE_RECOMPUTE_STAGE = 1,    /* a stage keeps only its inputs for its backward */
  OPIPE_RECOMPUTE_BLOCK = 2,    /* keeps values at the narrow places of a stage */
  OPIPE_RECOMPUTE_ATTENTION = 3 /* keeps all but the insides of attention */
};
enum {
  OPIPE_TRAIN_NESTEROV = 1u, /* SGD with momentum */
  OPIPE_TRAIN_EPS_INNER = 2u /* ADAM*: epsilon is added to the root of the uncorrected moment */
};
#if OPIPE_TARGET_MINOR >= 5
/* Ranks that hold the same parameter share out its optimizer state and update: each has the moments
 * of its part and updates that, and the weights are gathered. Bits are those of a session without.
 * Needs a transport with collectives. */
enum { OPIPE_TRAIN_SHARD_OPTIMIZER = 4u };
#endif

typedef struct opipe_train_glob {
  const char *pattern; /* for initializer names, with '*' and '?'; a name without wildcards also
                          matches an initializer of one element */
  uint32_t trainable;  /* 1: trained; 0: frozen */
  uint32_t reserved;
} opipe_train_glob;

/* Options of a training plan; copied. 0 is the plain choice unless stated otherwise. */
typedef struct opipe_train_options {
  uint32_t struct_size;
  uint32_t loss;      /* OPIPE_LOSS_* */
  const char *output; /* logits, predictions, or the scalar; NULL: the only scalar float output */
  const char *labels; /* labels or targets: a graph input, or the name of an input to add. Labels
                         have the output's shape without its last axis, targets its shape */
  int64_t ignore;     /* CROSS_ENTROPY: label that is ignored; usual: -100 */
  double smoothing;   /* CROSS_ENTROPY: [0, 1) */
  uint32_t shift;     /* 1: position t is compared with label t + 1 (causal models). Labels are
                         given unshifted; a label input that the model also reads is not shifted for
                         it */
  uint32_t n_globs;
  const opipe_train_glob *globs; /* the last match wins; without a match the library's rule applies
                                  */
  uint32_t globs_stride;         /* bytes from glob to glob */
  uint32_t recompute;            /* OPIPE_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT (or 0), OPIPE_BFLOAT16, OPIPE_FLOAT16: type of activations and
                         products; parameters stay fp32 */
  uint32_t optimizer; /* OPIPE_OPTIMIZER_* */
  uint64_t seed;      /* of dropout */
  double lr;
  double momentum;             /* SGD */
  double beta1, beta2;         /* ADAM*; usual: 0.9, 0.999 */
  double epsilon;              /* ADAM*; usual: 1e-8 */
  double decay;                /* SGD, ADAM: added to the gradient; ADAMW: decoupled */
  double clip_norm;            /* of the norm over all gradients; 0: none */
  uint32_t flags;              /* OPIPE_TRAIN_* */
  uint32_t lr_schedule;        /* OPIPE_LR_* */
  uint64_t warmup_steps;       /* at first lr (step + 1) / warmup_steps */
  uint64_t total_steps;        /* LINEAR, COSINE: step at which the learning rate reaches 0 */
  const char *const *no_decay; /* [n_no_decay] globs of parameters without decay; a session warns
                                  about one without a match */
  uint32_t n_no_decay;
  uint32_t loss_scaling; /* 1: dynamic loss scale, for OPIPE_FLOAT16; INVALID with another type */
} opipe_train_options;

/* Reason why a training step changed neither parameters nor optimizer state. */
enum {
  OPIPE_SKIP_NONE = 0,       /* not skipped */
  OPIPE_SKIP_OVERFLOW = 1,   /* the norm overflowed with a loss scale above 1, which is then halved
                              */
  OPIPE_SKIP_NOT_FINITE = 2, /* loss or norm is infinite or NaN */
  OPIPE_SKIP_HELD = 3        /* OPIPE_SESSION_HOLD: an earlier step was not finite */
};

/* Result of a training step or an evaluation. */
typedef struct opipe_train_report {
  uint32_t struct_size;
  uint32_t skipped;     /* OPIPE_SKIP_* */
  uint64_t step;        /* mini-batches since training began, this one included; evaluation: 0 */
  uint64_t step_ns;     /* wall time */
  double loss;          /* mean over the mini-batch's valid labels */
  double count;         /* divisor of the loss */
  double gradient_norm; /* of all gradients, before clipping */
  double lr;
  double loss_scale;
} opipe_train_report;

enum {
  OPIPE_STATE_WEIGHT = 0,        /* the initializer's own type */
  OPIPE_STATE_GRADIENT = 1,      /* fp32; of the last step, before clipping; needs
                                    OPIPE_SESSION_KEEP_GRADIENTS */
  OPIPE_STATE_FIRST_MOMENT = 2,  /* fp32; SGD: momentum */
  OPIPE_STATE_SECOND_MOMENT = 3, /* fp32 */
  OPIPE_STATE_MASTER = 4         /* fp32: the optimizer's copy of the weight */
};

/* A parameter of a training session. Pointers belong to the session. */
typedef struct opipe_parameter_info {
  uint32_t struct_size;
  uint32_t dtype; /* of the initializer */
  const char *name;
  const int64_t *shape; /* [rank] */
  uint32_t rank;
  uint32_t trained;  /* 1: trained; 0: only read */
  uint64_t n_bytes;  /* of OPIPE_STATE_WEIGHT */
  uint32_t n_copies; /* stage instances with a copy */
  uint32_t reserved;
  double gradient_norm; /* of the last step, before clipping */
} opipe_parameter_info;

/* State that continues a run, besides parameters and moments; for hosts with checkpoints of their
 * own. A loss scale continues if both sessions use one. A session without loss scaling has 1,
 * whatever is set; a session with loss scaling starts afresh if loss_scale is 1 and good_steps is
 * 0, the clock of a session without. */
typedef struct opipe_train_clock {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  uint64_t steps;      /* mini-batches; dropout's random numbers depend on it */
  uint64_t updates;    /* updates that were not skipped; learning rate and Adam's corrections depend
                          on it */
  uint64_t good_steps; /* since the loss scale last changed */
  double loss_scale;   /* 1 without loss scaling */
} opipe_train_clock;

#if OPIPE_TARGET_MINOR >= 4
/* A tensor of session_read; fields as the arguments of session_get. */
typedef struct opipe_tensor_read {
  const char *name; /* the initializer's */
  void *data;       /* dense row-major, [n_bytes] */
  uint64_t n_bytes;
  uint32_t state;   /* OPIPE_STATE_* */
  uint32_t version; /* 0: newest */
} opipe_tensor_read;

typedef struct opipe_read_params {
  uint32_t struct_size;
  uint32_t n_tensors;
  const opipe_tensor_read *tensors; /* [n_tensors] */
  uint32_t tensors_stride;          /* bytes from tensor to tensor */
  uint32_t reserved;                /* 0 */
} opipe_read_params;
#endif

/* CHROME: JSON for chrome://tracing. SVG: a picture. HTML: a self-contained page. */
enum { OPIPE_TRACE_CHROME = 0, OPIPE_TRACE_SVG = 1, OPIPE_TRACE_HTML = 2 };
enum { OPIPE_POSITION = 4 }; /* numbers of the host in a checkpoint */
/* The function that session_try_save tests. */
enum { OPIPE_SAVE_CHECKPOINT = 0, OPIPE_SAVE_MODEL = 1, OPIPE_SAVE_GRADIENTS = 2 };

#include "frozen/train.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TRAIN_H */
