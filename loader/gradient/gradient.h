/* SPDX-License-Identifier: Apache-2.0 */
/* Appends the backward pass to a bound graph: a training graph of one micro-batch.
 *
 *   bound graph -> copy -> loss nodes -> backward nodes (rules in loader/ops) -> Accumulate nodes
 *               -> marks (I | W) -> recomputation (cloned forward nodes, pass I) -> opi_training
 *
 * Reverse mode over nodes in topological order, from the loss, through nodes that lie on a path
 * from a trainable parameter. Contributions to one value's gradient are added in a fixed order:
 * descending stage of the consumer, then descending node index, so that a partial sum travels
 * backwards through the stages once. Every backward node has an *anchor*, the forward node whose
 * rule made it (of a sum: the consumer whose contribution is added): it runs in the anchor's stage
 * and reads only values that the anchor's stage has: its inputs, its outputs, and gradients.
 */
#ifndef OPI_GRADIENT_H
#define OPI_GRADIENT_H

#include "loader/graph/rows.h"
#include "loader/passes/passes.h"
#include "loader/passes/tokens.h"

/* ---- what is asked ---- */

enum {
  OPI_LOSS_OUTPUT = 0,
  OPI_LOSS_CROSS_ENTROPY = 1,
  OPI_LOSS_MSE = 2,
  OPI_LOSS_BCE = 3,
  OPI_LOSS_REPORT = 4 /* for reports of what is trainable while no loss is named: the only scalar
                         float output, else the sum of the first float output */
};

typedef struct opi_loss {
  uint32_t kind;      /* OPI_LOSS_* */
  uint32_t shift;     /* CROSS_ENTROPY: 1: row t is judged by label t + 1. Done by whoever feeds the
                         labels, before micro-batches and slices; here only remembered */
  const char *output; /* logits, predictions or the scalar; NULL: the only scalar float output */
  const char *labels; /* labels or targets: a graph input, or the name of an input to be added
                         (labels: int64, the logits' shape without the last axis) */
  int64_t ignore;     /* label that does not count, -100 */
  double smoothing;   /* [0, 1) */
} opi_loss;

/* The last match wins. Laid out as hosts have it, who read a plan's. */
typedef struct opi_train_glob {
  const char *pattern; /* fnmatch, of initializer names */
  uint32_t trainable;
  uint32_t reserved; /* 0 */
} opi_train_glob;

/* What was found once, when the plan was made: later builds take it as it is. */
typedef struct opi_train_doubt {
  const char *name, *why;
} opi_train_doubt;
typedef struct opi_train_choice {
  const char *const *trained;    /* [n_trained] initializers */
  const opi_train_doubt *doubts; /* [n_doubts] initializers, trained or not, that may be judged
                                    wrongly */
  uint32_t n_trained, n_doubts;  /* nothing is trained: there is no choice yet */
} opi_train_choice;

enum {
  OPI_RECOMPUTE_NONE = 0,
  OPI_RECOMPUTE_STAGE = 1,    /* only what a stage receives is kept */
  OPI_RECOMPUTE_BLOCK = 2,    /* values at the narrow places of a stage are kept */
  OPI_RECOMPUTE_ATTENTION = 3 /* scores and probabilities of attention are made again */
};

typedef struct opi_gradient_options {
  const opi_loss *loss; /* NULL: the only scalar float output */
  const opi_train_glob *globs;
  const opi_train_choice *choice; /* NULL or empty: the rule is asked, then the globs */
  const uint32_t *stage_of_node;  /* [bound graph's nodes]; NULL: one stage */
  const opi_carry *carry; /* [bound graph's values] of the batch axis (opi_carry_axis); NULL: the
                             batch is not split */
  const opi_carry *token_carry; /* the same of the token axis, for the masks of Dropout; NULL: no
                                   value is told by token. Give it wherever tokens might be sliced,
                                   so that slices drop what the whole sequence drops */
  uint32_t n_globs;
  uint32_t recompute; /* OPI_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16: type of activations and
                         products; parameters, gradients of parameters, norm statistics and the loss
                         stay fp32 */
  bool hands_on;      /* an Attention gives its gradient what it found: OPIPE_DEVICE_HANDS_ON */
  const opi_evaluator *evaluator;
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_token_slice *slice; /* the slice whose graph `bound` is, NULL: whole sequences */
} opi_gradient_options;

/* ---- what comes out ---- */

/* Per-run scalars of every program of training, and of inference where something is dropped, by
 * slot: values of role SCALAR, rank 0. INT64: the number; DOUBLE: the bits of a double in the
 * int64. */
enum {
  OPI_SCALAR_SEED = 0,   /* int64; inference: 0 */
  OPI_SCALAR_STEP = 1,   /* int64: mini-batches since training began; requests of the session */
  OPI_SCALAR_SAMPLE = 2, /* int64: first row of this micro-batch or part, counted over the
                            mini-batch or request */
  OPI_SCALAR_TOKEN = 3,  /* int64: first token of this slice */
  OPI_SCALAR_COUNT = 4,  /* double: what the mini-batch's loss is divided by */
  OPI_SCALAR_SCALE = 5,  /* double: loss scale, 1 without */
  OPI_SCALAR_SUM = 6,    /* double: the first of OPI_MOST_SUMS other numbers that are added up over
                            the mini-batch before */
  OPI_SCALAR_TABLE = 22  /* how many there are */
};
enum { OPI_MOST_SUMS = OPI_SCALAR_TABLE - OPI_SCALAR_SUM };
/* How many of a table [OPI_SCALAR_TABLE] programs are given: those that all have, and the sums that
 * are read. */
static inline uint32_t opi_scalar_count(const uint32_t *scalars) {
  uint32_t n = OPI_SCALAR_TABLE;
  while (n > OPI_SCALAR_SUM && scalars[n - 1] == OPIPE_NONE)
    --n;
  return n;
}

/* Why an initializer is, or is not, trained. */
enum {
  OPI_TRAINED = 0,
  OPI_NOT_FLOAT = 1,
  OPI_NOT_REACHED = 2, /* no differentiable path to the loss */
  OPI_NOT_LITERAL = 3, /* one element, no scale or shift that a module named */
  OPI_NOT_BUFFER = 4,  /* reaches the loss only through Sin, Cos or as a table of RotaryEmbedding,
                          or is a running statistic */
  OPI_FROZEN_BY_GLOB = 5,
  OPI_TRAINED_BY_GLOB = 6,
  OPI_NOT_MASK = 7,    /* a mask: 0 and numbers of at most -100, or two numbers only */
  OPI_NOT_TABLE = 8,   /* sines and cosines, affine in the position, or coordinates */
  OPI_NOT_FACTOR = 9,  /* multiplies what is made of integer inputs alone (slopes), or scales and
                          shifts a graph input */
  OPI_NOT_HALF = 10,   /* of a half type, cast, where parameters are of another */
  OPI_NOT_MADE = 11,   /* an exporter's constant by name and place, or a row on top of logits */
  OPI_NOT_LISTED = 12, /* the plan does not list it */
  OPI_NOT_NUMBER = 13, /* an exponent, a bound, a value to fill in of the operator that reads it */
  OPI_NOT_ASKED = 14   /* patterns of what is trained were given, and none matches it */
};
typedef struct opi_train_param {
  const char *name;     /* initializer */
  const char *origin;   /* what the model's author called it, where the exporter lost that name and
                           the file still says it (opi_origin); NULL: `name` is all there is */
  const char *doubt;    /* why the answer may be wrong, NULL: it is sure */
  uint32_t value;       /* in the training graph; OPIPE_NONE: not in it */
  uint32_t why;         /* OPI_TRAINED ... */
  uint32_t n_gradients; /* Accumulate nodes: one per use. Those of one stage share the stage's
                           accumulator */
  uint32_t *gradients;  /* [n_gradients] values of role GRADIENT, rising stage, within a stage in
                           falling order of running */
} opi_train_param;

/* What one slice of tokens hands to the next and gets back (values of the training graph,
 * OPIPE_NONE in the first or last slice). Forward: `present` of a slice is `past` of the next.
 * Backward: a slice's `past_gradient` is `present_gradient`, an input, of the one before. All four
 * live in `stage`. */
typedef struct opi_slice_state {
  const char *name;
  uint32_t past, present;
  uint32_t present_gradient; /* input */
  uint32_t past_gradient;    /* made by a backward node, pass I */
  uint32_t stage;
  uint32_t reserved;
} opi_slice_state;

typedef struct opi_training {
  opi_arena arena;
  opi_graph *graph;     /* forward, loss and backward; node.pass says which. Outputs: `loss`, then
                           `output` where there is one */
  uint32_t *anchor;     /* [graph->n_nodes] forward node (index in this graph) */
  uint32_t *stage;      /* [graph->n_nodes] */
  uint32_t *forward_of; /* [bound graph's nodes] index in this graph, OPIPE_NONE: not needed for the
                           loss */
  uint32_t loss;   /* fp32, rank 0: this micro-batch's share; the mini-batch's loss is their sum */
  uint32_t output; /* what the loss judges (logits), OPIPE_NONE: OPI_LOSS_OUTPUT */
  const char *output_name; /* its name before a compute type gave it another; of the bound graph */
  /* input that was added or named, OPIPE_NONE: none. Where labels are shifted and the model reads
   * that input too: one of its own, of the same tensor, as the model's must not be shifted */
  uint32_t labels;
  const char *labels_name;            /* of the tensor that `labels` is fed from */
  uint32_t scalars[OPI_SCALAR_TABLE]; /* values, OPIPE_NONE: not read */
  uint32_t n_params, n_trained;
  opi_train_param *params; /* every float initializer, graph order */
  const char **unmatched;  /* [n_unmatched] patterns of the options' globs that match none */
  uint32_t n_unmatched;
  /* What COUNT adds up over micro-batches: a graph of some of the inputs with one output, a double
   * of rank 0; NULL: the constant `count`. Runs before the first backward. */
  opi_graph *count_graph;
  double count;
  uint32_t n_sums;         /* not 0: the count graph has so many outputs, which the scalars from
                              OPI_SCALAR_SUM on add up; COUNT adds up `count` */
  opi_slice_state *states; /* [n_states] with a slice, in its order; those that no loss reads are
                              left out of the graph: all OPIPE_NONE */
  uint32_t n_states;
  bool by_rows; /* the loss is a scalar that is averaged by batch rows, as far as the batch is known
                 */
  bool is_odd;  /* and no mean over them: micro-batches of it do not add up to the mini-batch's */
  const char *odd; /* the node that makes it so; NULL: not known */
} opi_training;

/* Errors: UNSUPPORTED, one report of every node on the path that has no gradient rule; INVALID
 * names the loss output that is missing or not scalar (and lists the outputs), labels of a wrong
 * shape. A glob that matches nothing is warned of. `bound` is not changed and must outlive the
 * result. */
opipe_status opi_gradient_build(const opi_bound *bound, const opi_gradient_options *options,
                                opi_training **out_training, opipe_error *err);
/* The training graph of another number of rows, from those of two; it borrows from `a`, which must
 * outlive it. Errors: as opi_graph_with_rows. */
opipe_status opi_training_with_rows(const opi_training *a, const opi_training *b,
                                    const opi_row_change *change, opi_training **out_training,
                                    opipe_error *err);
void opi_training_free(opi_training *training); /* accepts NULL */

/* ---- without a backward: dropout.c ---- */

/* Is it a Dropout that drops when the graph runs? */
bool opi_node_draws(const opi_node *node);
/* The graph with the same nodes, of which those that draw have masks by the scalars SEED, STEP,
 * SAMPLE and TOKEN: out_scalars [OPI_SCALAR_TABLE] gets their values; the others are left as they
 * are. batch, tokens: [n_values] as in opi_gradient_options; NULL: no value is told by it.
 * *out_graph lies in `arena` and borrows from `graph`. */
opipe_status opi_graph_draws(const opi_graph *graph, const opi_carry *batch,
                             const opi_carry *tokens, opi_arena *arena, const opi_graph **out_graph,
                             uint32_t *out_scalars, opipe_error *err);

/* For `inspect --train`: every initializer, trained or not, and why. */
opipe_status opi_training_describe(const opi_training *training, opipe_write_fn write, void *ctx,
                                   opipe_error *err);

const char *opi_training_reason(uint32_t why); /* in words */

#endif /* OPI_GRADIENT_H */
