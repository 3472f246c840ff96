/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the training graph of one micro-batch: appends the backward pass to a bound graph.
 *
 *   bound graph -> copy -> loss nodes -> backward nodes (rules in loader/ops) -> Accumulate nodes
 *               -> marks (I | W) -> recomputation (cloned forward nodes, pass I) -> opi_training
 *
 * Reverse mode over nodes in topological order, from the loss, through nodes on a path from a
 * trainable parameter. Contributions to a value's gradient are added in a fixed order: descending
 * stage of the consumer, then descending node index, so that one partial sum travels backwards
 * through the stages. Every backward node has an *anchor*: the forward node whose rule made it or,
 * for a sum, the consumer whose contribution is added. It runs in the anchor's stage and reads only
 * values that the stage has: the anchor's inputs, its outputs, and gradients.
 */
#ifndef OPI_GRADIENT_H
#define OPI_GRADIENT_H

#include "loader/graph/rows.h"
#include "loader/passes/passes.h"
#include "loader/passes/tokens.h"

/* ---- options ---- */

enum {
  OPI_LOSS_OUTPUT = 0,
  OPI_LOSS_CROSS_ENTROPY = 1,
  OPI_LOSS_MSE = 2,
  OPI_LOSS_BCE = 3,
  OPI_LOSS_REPORT = 4 /* for reports on what is trainable when no loss is named: the only scalar
                         float output, else the sum of the first float output */
};

typedef struct opi_loss {
  uint32_t kind;      /* OPI_LOSS_* */
  uint32_t shift;     /* CROSS_ENTROPY: 1: row t is compared with label t + 1. Recorded here only;
                         whoever feeds the labels shifts them, before micro-batches and slices */
  const char *output; /* logits, predictions or the scalar; NULL: the only scalar float output */
  const char *labels; /* labels or targets: a graph input, or the name of an input to add (labels:
                         int64, the logits' shape without the last axis) */
  int64_t ignore;     /* label that is ignored, -100 */
  double smoothing;   /* [0, 1) */
} opi_loss;

/* The last match wins. The layout is that of the host interface, which exposes a plan's globs. */
typedef struct opi_train_glob {
  const char *pattern; /* fnmatch, of initializer names */
  uint32_t trainable;
  uint32_t reserved; /* 0 */
} opi_train_glob;

/* The choice made once, with the plan; later builds adopt it. */
typedef struct opi_train_doubt {
  const char *name, *why;
} opi_train_doubt;
typedef struct opi_train_choice {
  const char *const *trained; /* [n_trained] initializers */
  const opi_train_doubt
      *doubts; /* [n_doubts] initializers, trained or not, whose classification may be wrong */
  uint32_t n_trained, n_doubts; /* both 0: no choice yet */
} opi_train_choice;

enum {
  OPI_RECOMPUTE_NONE = 0,
  OPI_RECOMPUTE_STAGE = 1,    /* keeps only the inputs of a stage */
  OPI_RECOMPUTE_BLOCK = 2,    /* keeps values at the narrow places of a stage */
  OPI_RECOMPUTE_ATTENTION = 3 /* recomputes scores and probabilities of attention */
};

/* For the graph of one member of a tensor group (loader/shard) whose logits are divided along the
 * last axis: the classes of every member. */
typedef struct opi_divided_classes {
  const int64_t *parts; /* [n_parts] */
  uint32_t n_parts;
  uint32_t member; /* whose graph it is */
} opi_divided_classes;

/* The values that OPI_RECOMPUTE_BLOCK keeps. They are chosen by their sizes, which graphs of the
 * same nodes (the members of a tensor group, other numbers of rows) do not have alike: the graph
 * that is built first chooses, and the others keep the values of the same names. */
typedef struct opi_kept_blocks {
  opi_arena *arena;   /* of the names */
  const char **names; /* [n] sorted; NULL: not chosen yet */
  uint32_t n;
} opi_kept_blocks;

typedef struct opi_gradient_options {
  const opi_loss *loss; /* NULL: the only scalar float output */
  const opi_train_glob *globs;
  const opi_train_choice *choice; /* NULL or empty: the rules decide, then the globs */
  const uint32_t *stage_of_node;  /* [bound graph's nodes]; NULL: one stage */
  const bool *apart;      /* [stages] W runs apart from I: of a tensor group's gradients in rows it
                             gathers its own, so that members keep theirs; NULL: nowhere */
  const opi_carry *carry; /* [bound graph's values] of the batch axis (opi_carry_axis); NULL: the
                             batch is not split */
  const opi_carry *token_carry; /* the same for the token axis, for the masks of Dropout; NULL:
                                   masks do not depend on tokens. Required if tokens may be sliced,
                                   so that slices drop what the whole sequence drops */
  uint32_t n_globs;
  uint32_t recompute; /* OPI_RECOMPUTE_* */
  uint32_t compute; /* OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16: type of activations and products;
                       parameters, their gradients, norm statistics and the loss stay fp32 */
  bool hands_on; /* Attention passes intermediate results to its gradient (OPIPE_DEVICE_HANDS_ON) */
  const opi_evaluator *evaluator;
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_token_slice *slice;       /* the slice that `bound` represents; NULL: whole sequences */
  const opi_divided_classes *classes; /* CROSS_ENTROPY only; NULL: the logits are whole */
  struct opi_choices *choices;        /* begun anew here; NULL: none */
  opi_kept_blocks *blocks;            /* NULL: no other graph has to keep the same */
} opi_gradient_options;

/* ---- result ---- */

/* Per-run scalars by slot, for all programs of training, and of inference with Dropout: values of
 * role SCALAR, rank 0. INT64: the number; DOUBLE: the bits of a double, stored in the int64. */
enum {
  OPI_SCALAR_SEED = 0, /* int64; inference: 0 */
  OPI_SCALAR_STEP = 1, /* int64: mini-batches since training began, or requests of the session */
  OPI_SCALAR_SAMPLE =
      2, /* int64: first row of this micro-batch or part, counted over the mini-batch or request */
  OPI_SCALAR_TOKEN = 3, /* int64: first token of this slice */
  OPI_SCALAR_COUNT = 4, /* double: divisor of the mini-batch's loss */
  OPI_SCALAR_SCALE = 5, /* double: loss scale, 1 if none */
  OPI_SCALAR_SUM = 6,   /* double: the first of OPI_MOST_SUMS further numbers, summed over the
                           mini-batch beforehand */
  OPI_SCALAR_TABLE = 22 /* number of slots */
};
enum { OPI_MOST_SUMS = OPI_SCALAR_TABLE - OPI_SCALAR_SUM };
/* Number of leading entries of a table [OPI_SCALAR_TABLE] that programs receive: the common ones,
 * and sums up to the last that is read. */
static inline uint32_t opi_scalar_count(const uint32_t *scalars) {
  uint32_t n = OPI_SCALAR_TABLE;
  while (n > OPI_SCALAR_SUM && scalars[n - 1] == OPIPE_NONE)
    --n;
  return n;
}

/* Why an initializer is trained or not. */
enum {
  OPI_TRAINED = 0,
  OPI_NOT_FLOAT = 1,
  OPI_NOT_REACHED = 2, /* no differentiable path to the loss */
  OPI_NOT_LITERAL = 3, /* one element, and not a scale or shift named by a module */
  OPI_NOT_BUFFER = 4,  /* reaches the loss only through Sin, Cos or as a table of RotaryEmbedding,
                          or is a running statistic */
  OPI_FROZEN_BY_GLOB = 5,
  OPI_TRAINED_BY_GLOB = 6,
  OPI_NOT_MASK = 7,    /* a mask: 0 and numbers of at most -100, or two numbers only */
  OPI_NOT_TABLE = 8,   /* sines and cosines, affine in the position, or coordinates */
  OPI_NOT_FACTOR = 9,  /* multiplies values made from integer inputs alone (slopes), or scales and
                          shifts a graph input */
  OPI_NOT_HALF = 10,   /* of a half type and cast, where parameters have another type */
  OPI_NOT_MADE = 11,   /* an exporter's constant by name and place, or a row on top of logits */
  OPI_NOT_LISTED = 12, /* the plan does not list it */
  OPI_NOT_NUMBER = 13, /* an exponent, bound or fill value of the operator that reads it */
  OPI_NOT_ASKED = 14   /* patterns of trained parameters were given, and none matches it */
};
typedef struct opi_train_param {
  const char *name;   /* initializer */
  const char *origin; /* the author's name for it, if the exporter lost that but the file still has
                         it (opi_origin); NULL: only `name` is known */
  const char *doubt;  /* why the answer may be wrong; NULL: certain */
  uint32_t value;     /* in the training graph; OPIPE_NONE: not in it */
  uint32_t why;       /* OPI_TRAINED ... */
  uint32_t n_gradients; /* Accumulate nodes, one per use; those of one stage share an accumulator */
  uint32_t *gradients;  /* [n_gradients] values of role GRADIENT, by rising stage, then in falling
                           execution order */
} opi_train_param;

/* State passed from one token slice to the next and its gradient passed back; values of the
 * training graph, OPIPE_NONE in the first or last slice. Forward: `present` of a slice is `past` of
 * the next. Backward: a slice's `past_gradient` is the input `present_gradient` of the previous
 * one. All four are in `stage`. */
typedef struct opi_slice_state {
  const char *name;
  uint32_t past, present;
  uint32_t present_gradient; /* input */
  uint32_t past_gradient;    /* produced by a backward node, pass I */
  uint32_t stage;
  uint32_t reserved;
} opi_slice_state;

typedef struct opi_training {
  opi_arena arena;
  opi_graph *graph;     /* forward, loss and backward; node.pass says which. Outputs: `loss`, then
                           `output` if there is one */
  uint32_t *anchor;     /* [graph->n_nodes] the anchor, a forward node (index in this graph) */
  uint32_t *stage;      /* [graph->n_nodes] */
  uint32_t *forward_of; /* [bound graph's nodes] index in this graph; OPIPE_NONE: not needed for the
                           loss */
  uint32_t
      loss; /* fp32, rank 0: this micro-batch's share; the mini-batch's loss is the sum of shares */
  uint32_t output;         /* input of the loss (logits); OPIPE_NONE: OPI_LOSS_OUTPUT */
  const char *output_name; /* its name in the bound graph, before casts renamed it */
  /* Input that was added or named; OPIPE_NONE: none. If labels are shifted and the model itself
   * reads that input, this is a separate input fed from the same tensor, because the model's must
   * not be shifted. */
  uint32_t labels;
  const char *labels_name;            /* of the tensor that feeds `labels` */
  uint32_t scalars[OPI_SCALAR_TABLE]; /* values; OPIPE_NONE: not read */
  uint32_t n_params, n_trained;
  opi_train_param *params; /* every float initializer, in graph order */
  const char **unmatched;  /* [n_unmatched] globs of the options that match nothing */
  uint32_t n_unmatched;
  /* Computes what COUNT sums over micro-batches: a graph of some of the inputs with one output, a
   * double of rank 0; NULL: the constant `count`. Runs before the first backward. */
  opi_graph *count_graph;
  double count;
  uint32_t n_sums; /* if not 0: number of outputs of the count graph, summed by the scalars from
                      OPI_SCALAR_SUM on; COUNT then sums `count` */
  opi_slice_state *states; /* [n_states] with a slice, in its order; states that no loss reads are
                              not in the graph: all OPIPE_NONE */
  uint32_t n_states;
  bool by_rows; /* the loss is a scalar averaged by batch rows, as far as the batch is known */
  bool is_odd;  /* it is not a mean over rows, so micro-batches do not add up to the mini-batch */
  const char *odd; /* the node responsible; NULL: unknown */
} opi_training;

/* Errors: UNSUPPORTED, one report of every node on the path without a gradient rule; INVALID names
 * the loss output that is missing or not scalar (and lists the outputs), or labels of a wrong
 * shape. A glob that matches nothing causes a warning. `bound` is not changed and must outlive the
 * result. */
opipe_status opi_gradient_build(const opi_bound *bound, const opi_gradient_options *options,
                                opi_training **out_training, opipe_error *err);
/* The training graph for another number of rows, derived from those of two. It borrows from `a`,
 * which must outlive it. Errors: as opi_graph_with_rows. */
opipe_status opi_training_with_rows(const opi_training *a, const opi_training *b,
                                    const opi_row_change *change, opi_training **out_training,
                                    opipe_error *err);
void opi_training_free(opi_training *training); /* accepts NULL */

/* ---- without a backward: dropout.c ---- */

/* True for a Dropout that is active at run time. */
bool opi_node_draws(const opi_node *node);
/* The same graph, except that active Dropouts have masks by the scalars SEED, STEP, SAMPLE and
 * TOKEN. out_scalars [OPI_SCALAR_TABLE] receives the values of these; other entries are unchanged.
 * batch, tokens: [n_values] as in opi_gradient_options; NULL: masks do not depend on them.
 * *out_graph is in `arena` and borrows from `graph`. */
opipe_status opi_graph_draws(const opi_graph *graph, const opi_carry *batch,
                             const opi_carry *tokens, opi_arena *arena, const opi_graph **out_graph,
                             uint32_t *out_scalars, opipe_error *err);

/* For `inspect --train`: every initializer, whether it is trained, and why. */
opipe_status opi_training_describe(const opi_training *training, opipe_write_fn write, void *ctx,
                                   opipe_error *err);

const char *opi_training_reason(uint32_t why); /* in words */

#endif /* OPI_GRADIENT_H */
