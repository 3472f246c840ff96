/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps of opi_gradient_build share; private to loader/gradient.
 *
 *   forward.c    copies what the loss needs of the bound graph, each node into its stage
 *   compute.c    half types: where values are cast
 *   dropout.c    Dropout by counter
 *   loss.c       loss nodes
 *   form.c       how a scalar of the graph is made of the batch's rows
 *   shares.c     one that is made of several sums, each over a number of its own
 *   count.c      what a loss is divided by
 *   trainable.c  which initializers are trained
 *   sums.c       gradients of values, as rules give them
 *   backward.c   rules in reverse order, Accumulates
 *   slices.c     gradients that come from and go to other token slices
 *   finish.c     marks, recomputation, order of nodes
 *
 * Forward values have the indices below n_forward_values: only they have gradients.
 */
#ifndef OPI_GRADIENT_STATE_H
#define OPI_GRADIENT_STATE_H

#include "loader/gradient/gradient.h"
#include "loader/ops/rules.h"

enum {
  OPI_V_CONSTANT = 1u, /* made of constants and parameters only: no activation */
  OPI_V_WANTED = 2u,   /* a trained parameter leads to it over differentiable edges */
  OPI_V_REACHES = 4u,  /* leads to the loss over differentiable edges */
  OPI_V_DIRECT = 8u,   /* the same without passing Sin or Cos */
  OPI_V_TRAINED = 16u, /* a trained parameter itself */
  OPI_V_ACTIVE = 32u   /* is, or leads to, the gradient of a value that is no OPI_V_CONSTANT */
};

typedef struct opi_grad_state {
  const opi_bound *bound;
  const opi_gradient_options *options;
  opi_training *training; /* graph and results; arena */
  opi_arena scratch;
  opi_builder builder;
  opi_grad grad;
  opi_loss loss; /* as asked, output and labels resolved */

  /* Of the bound graph. */
  uint32_t n_stages;
  uint32_t *map;    /* [values] of the training graph; OPIPE_NONE: not copied */
  uint32_t *copies; /* [values * n_stages] per stage, of OPI_V_CONSTANT values that a node makes */
  uint8_t *bound_flags;  /* [values] OPI_V_CONSTANT */
  uint32_t target;       /* bound value that is judged: logits or the scalar */
  uint32_t target_stage; /* of its producer: where the loss is */

  /* Of the training graph; arrays grow with it. */
  uint8_t *flags; /* [room_flags] OPI_V_* */
  uint32_t room_flags, n_flags;
  uint32_t *anchor, *stage; /* [n_anchored nodes] */
  uint32_t room_anchor, room_stage, n_anchored;
  uint32_t n_forward_nodes, n_forward_values;
  uint32_t *gradient;  /* [n_forward_values] sum so far, OPIPE_NONE: none */
  uint32_t current;    /* node whose rule runs */
  const void **hidden; /* [n_forward_values] data of trained parameters while the graph is built */
  struct opi_grad_shares *shares; /* shares.c; NULL: one number divides the whole loss */
  struct opi_grad_cast *casts;    /* [n_casts] compute.c */
  uint32_t n_casts, room_casts;
} opi_grad_state;

/* Gives all nodes emitted since the last call this anchor and stage. */
opipe_status opi_grad_anchor(opi_grad_state *s, uint32_t anchor, uint32_t stage, opipe_error *err);
/* Makes room for flags of every value there is. */
opipe_status opi_grad_flags(opi_grad_state *s, opipe_error *err);
/* The value of a per-run scalar (OPI_SCALAR_*), made at the first call. */
opipe_status opi_grad_scalar(opi_grad_state *s, uint32_t slot, uint32_t *out, opipe_error *err);
/* Name of the node that rules' nodes are called after: "<name>/grad". */
const opi_node *opi_grad_origin(opi_grad_state *s, const char *name, const char *suffix);

opipe_status opi_grad_forward(opi_grad_state *s, opipe_error *err);
/* One forward node, with its canonical inputs in the training graph. `name` NULL: the node's own.
 */
opipe_status opi_grad_copy_node(opi_grad_state *s, const opi_node *node, const uint32_t *in,
                                const char *const *out_names, uint32_t *out, opipe_error *err);
opipe_status opi_grad_dropout(opi_grad_state *s, const opi_node *node, uint32_t x,
                              const char *const *out_names, uint32_t *out, opipe_error *err);
/* compute.c: `in` of a node about to be copied, its output 0 afterwards, what the loss judges. */
opipe_status opi_grad_cast_inputs(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *in, opipe_error *err);
opipe_status opi_grad_cast_output(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *io_out, opipe_error *err);
opipe_status opi_grad_cast_target(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_find_loss(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_loss(opi_grad_state *s, opipe_error *err);
/* form.c: of the scalar that is the loss; FIXED: it does not hang on the batch, ROWS: it carries
 * it. */
enum { OPI_FORM_FIXED, OPI_FORM_ROWS, OPI_FORM_MEAN, OPI_FORM_SUM, OPI_FORM_RATIO, OPI_FORM_ODD };
enum { OPI_FORM_NODE = 1 << 30 };
typedef struct opi_loss_form {
  uint32_t form;  /* OPI_FORM_* */
  uint32_t lower; /* RATIO: the bound value that is the lower sum; with OPI_FORM_NODE: the bound
                     node that is a mean of what it counts; else OPIPE_NONE */
  const opi_node *odd; /* ODD: what makes it so; may be NULL */
} opi_loss_form;
opipe_status opi_grad_form(opi_grad_state *s, opi_loss_form *out, opipe_error *err);
/* Of a node that reads a number of rows (opi_carry.power): by how many powers of the rows what it
 * makes differs from *out_of, its other input: -1 where it divides by them. 0: no such node. ODD
 * (2): it does something else with them. form.c */
enum { OPI_POWER_ODD = 2 };
int32_t opi_grad_power(const opi_node *node, const opi_carry *carry, uint32_t *out_of);
/* shares.c: finds a loss that is a linear form of several sums, before the forward copy. */
opipe_status opi_grad_find_shares(opi_grad_state *s, opipe_error *err);
/* Inputs of bound node n about to be copied, and its output 0 afterwards, as far as they are such a
 * loss's. */
opipe_status opi_grad_share_inputs(opi_grad_state *s, uint32_t n, uint32_t *in, opipe_error *err);
opipe_status opi_grad_share_output(opi_grad_state *s, uint32_t n, uint32_t *io_out,
                                   opipe_error *err);
/* The loss of it: x is its value in the training graph. */
opipe_status opi_grad_share_loss(opi_grad_state *s, uint32_t x, uint32_t *out, opipe_error *err);
/* Rows of this micro-batch; 1: no input carries the batch. */
double opi_grad_batch_rows(const opi_grad_state *s);
/* The element-wise sum of a loss node in place of its mean. */
void opi_grad_make_sum(opi_node *node);
/* What a number of training->count_graph counts, in values of the training graph. */
typedef struct opi_counted {
  uint32_t labels, weights; /* weights OPIPE_NONE: 1 each */
  int64_t ignore;
  bool ignores, sums; /* sums: the labels are numbers to be added up */
  double times;       /* of the sum; 0: once */
} opi_counted;
/* training->count_graph: an output for each of list [n]. count.c */
opipe_status opi_grad_count_all(opi_grad_state *s, const opi_counted *list, uint32_t n,
                                opipe_error *err);
/* training->count_graph: the sum of all elements of a value of the training graph. count.c */
opipe_status opi_grad_count_sum(opi_grad_state *s, uint32_t value, opipe_error *err);
/* training->count_graph, or training->count. `ignore` counts where `ignores`; weights: a value with
 * one weight per class, OPIPE_NONE: 1 each. count.c */
opipe_status opi_grad_count(opi_grad_state *s, uint32_t labels, bool ignores, int64_t ignore,
                            uint32_t weights, opipe_error *err);
/* The sum of x over all its axes, rank 0. */
opipe_status opi_grad_sum_all(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err);
opipe_status opi_grad_trainable(opi_grad_state *s, opipe_error *err);
/* What gradient rules of the state's graph are given. */
opi_grad opi_grad_open(opi_grad_state *s);
opipe_status opi_grad_backward(opi_grad_state *s, opipe_error *err);
/* What the current node gives a trained parameter. */
opipe_status opi_grad_accumulate(opi_grad_state *s, uint32_t parameter, uint32_t value,
                                 opipe_error *err);
opipe_status opi_grad_finish(opi_grad_state *s, opipe_error *err);

/* slices.c: keys and values between slices. After the forward copy; when parameters are marked;
 * with the loss's seed; before a node's rule, in its stage, whichever stages read what it makes;
 * after the rules. */
opipe_status opi_grad_states(opi_grad_state *s, opipe_error *err);
void opi_grad_mark_states(const opi_grad_state *s);
opipe_status opi_grad_seed_states(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_meet_states(opi_grad_state *s, const opi_node *node, opipe_error *err);
opipe_status opi_grad_close_states(opi_grad_state *s, opipe_error *err);

#endif /* OPI_GRADIENT_STATE_H */
