/* SPDX-License-Identifier: Apache-2.0 */
/* Training, as host.h offers it: what a training plan is made for, what a step came to, the state
 * of parameters. Included by host.h, whose table has the functions; its rules for structs hold here
 * too. Plain data: no thread rule.
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
                            sums whose lower one is of data alone (a mask), linear forms of
                            these; any other is UNSUPPORTED with micro-batches */
  OPIPE_LOSS_CROSS_ENTROPY = 1, /* over logits [.., classes] and labels of int64 */
  OPIPE_LOSS_MSE = 2,           /* mean squared error */
  OPIPE_LOSS_BCE = 3            /* binary cross entropy with logits */
};
enum { OPIPE_LR_CONSTANT = 0, OPIPE_LR_LINEAR = 1, OPIPE_LR_COSINE = 2 };
enum {
  OPIPE_RECOMPUTE_NONE = 0,
  OPIPE_RECOMPUTE_STAGE = 1,    /* only what a stage receives is kept for its backward */
  OPIPE_RECOMPUTE_BLOCK = 2,    /* values at the narrow places of a stage */
  OPIPE_RECOMPUTE_ATTENTION = 3 /* all but the insides of attention */
};
enum {
  OPIPE_TRAIN_NESTEROV = 1u, /* SGD with momentum */
  OPIPE_TRAIN_EPS_INNER = 2u /* ADAM*: epsilon is added to the root of the uncorrected moment */
};

typedef struct opipe_train_glob {
  const char *pattern; /* of initializer names, '*' and '?'; a name without them also takes an
                          initializer of one element */
  uint32_t trainable;  /* 1: train it; 0: freeze it */
  uint32_t reserved;
} opipe_train_glob;

/* What a training plan is made for; copied. Zero is a plain choice wherever no other is stated. */
typedef struct opipe_train_options {
  uint32_t struct_size;
  uint32_t loss;      /* OPIPE_LOSS_* */
  const char *output; /* logits, predictions, or the scalar; NULL: the only scalar float output */
  const char *labels; /* labels or targets: a graph input, or a name of one that is added: labels
                         have the output's shape without its last axis, targets its shape */
  int64_t ignore;     /* CROSS_ENTROPY: label that does not count; usual: -100 */
  double smoothing;   /* CROSS_ENTROPY: [0, 1) */
  uint32_t shift;     /* 1: position t is judged by label t + 1 (causal models); labels are given
                         unshifted, and an input that the model reads too stays so for it */
  uint32_t n_globs;
  const opipe_train_glob *globs; /* the last match wins; none matches: the library's rule */
  uint32_t globs_stride;         /* bytes from glob to glob */
  uint32_t recompute;            /* OPIPE_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT (or 0), OPIPE_BFLOAT16, OPIPE_FLOAT16: type of activations
                         and products; parameters stay fp32 */
  uint32_t optimizer; /* OPIPE_OPTIMIZER_* */
  uint64_t seed;      /* of dropout */
  double lr;
  double momentum;             /* SGD */
  double beta1, beta2;         /* ADAM*; usual: 0.9, 0.999 */
  double epsilon;              /* ADAM*; usual: 1e-8 */
  double decay;                /* SGD, ADAM: added to the gradient; ADAMW: decoupled */
  double clip_norm;            /* of all gradients together; 0: none */
  uint32_t flags;              /* OPIPE_TRAIN_* */
  uint32_t lr_schedule;        /* OPIPE_LR_* */
  uint64_t warmup_steps;       /* lr (step + 1) / warmup_steps at first */
  uint64_t total_steps;        /* LINEAR, COSINE: where the learning rate reaches 0 */
  const char *const *no_decay; /* [n_no_decay] globs of parameters without decay; a session warns of
                                * one that matches none */
  uint32_t n_no_decay;
  uint32_t loss_scaling; /* 1: dynamic loss scale, for OPIPE_FLOAT16; INVALID with another type */
} opipe_train_options;

/* Why a training step changed neither parameters nor optimizer state. */
enum {
  OPIPE_SKIP_NONE = 0,       /* it did */
  OPIPE_SKIP_OVERFLOW = 1,   /* the norm, while the loss scale is above 1; it is halved */
  OPIPE_SKIP_NOT_FINITE = 2, /* loss or norm is an infinity or no number */
  OPIPE_SKIP_HELD = 3        /* OPIPE_SESSION_HOLD: a step before was not finite */
};

/* What a training step, or an evaluation, came to. */
typedef struct opipe_train_report {
  uint32_t struct_size;
  uint32_t skipped;     /* OPIPE_SKIP_* */
  uint64_t step;        /* mini-batches since training began, this one included; evaluation: 0 */
  uint64_t step_ns;     /* wall time */
  double loss;          /* mean over the mini-batch's valid labels */
  double count;         /* what the loss was divided by */
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
  OPIPE_STATE_MASTER = 4         /* fp32: the weight as the optimizer has it */
};

/* A parameter of a training session. Pointers belong to the session. */
typedef struct opipe_parameter_info {
  uint32_t struct_size;
  uint32_t dtype; /* of the initializer */
  const char *name;
  const int64_t *shape; /* [rank] */
  uint32_t rank;
  uint32_t trained;  /* 1: it is; 0: read, and left as it is */
  uint64_t n_bytes;  /* of OPIPE_STATE_WEIGHT */
  uint32_t n_copies; /* stage instances that hold it */
  uint32_t reserved;
  double gradient_norm; /* of the last step, before clipping */
} opipe_parameter_info;

/* What continues a run besides parameters and moments: for hosts with checkpoints of their own.
 * A loss scale goes on where both sessions scale. One that does not has 1, whatever is set; one
 * that scales begins anew where loss_scale is 1 and good_steps is 0, the clock of one that does
 * not. */
typedef struct opipe_train_clock {
  uint32_t struct_size;
  uint32_t reserved;   /* 0 */
  uint64_t steps;      /* mini-batches; dropout's random numbers follow from it */
  uint64_t updates;    /* those that were not skipped: learning rate, Adam's corrections */
  uint64_t good_steps; /* since the loss scale last changed */
  double loss_scale;   /* 1 without loss scaling */
} opipe_train_clock;

#if OPIPE_TARGET_MINOR >= 4
/* A tensor of session_read: what session_get would read. */
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

/* JSON for chrome://tracing; a picture; a page of HTML that needs nothing besides. */
enum { OPIPE_TRACE_CHROME = 0, OPIPE_TRACE_SVG = 1, OPIPE_TRACE_HTML = 2 };
enum { OPIPE_POSITION = 4 }; /* numbers of the host's own in a checkpoint */
/* What session_try_save asks about. */
enum { OPIPE_SAVE_CHECKPOINT = 0, OPIPE_SAVE_MODEL = 1, OPIPE_SAVE_GRADIENTS = 2 };

#include "frozen/train.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TRAIN_H */
