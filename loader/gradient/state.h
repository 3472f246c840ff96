/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the steps of opi_gradient_build. Private to loader/gradient.
 *
 *   forward.c    copies the part of the bound graph that the loss needs, each node into its stage
 *   compute.c    half types: where values are cast
 *   dropout.c    Dropout by counter
 *   loss.c       loss nodes
 *   form.c       how a scalar of the graph is made from the batch's rows
 *   shares.c     a scalar made from several sums, each with a divisor of its own
 *   count.c      divisors of the loss
 *   trainable.c  which initializers are trained
 *   sums.c       sums of gradients, as rules contribute them
 *   backward.c   rules in reverse order, Accumulates
 *   slices.c     gradients that come from and go to other token slices
 *   finish.c     marks, recomputation, order of nodes
 *
 * Forward values have indices below n_forward_values; only they have gradients.
 */
#ifndef OPI_GRADIENT_STATE_H
#define OPI_GRADIENT_STATE_H

#include "loader/gradient/gradient.h"
#include "loader/ops/rules.h"

enum {
  OPI_V_CONSTANT = 1u, /* made from constants and parameters only, not an activation */
  OPI_V_WANTED = 2u,   /* a trained parameter leads to it over differentiable edges */
  OPI_V_REACHES = 4u,  /* leads to the loss over differentiable edges */
  OPI_V_DIRECT = 8u,   /* the same without passing through Sin or Cos */
  OPI_V_TRAINED = 16u, /* a trained parameter itself */
  OPI_V_ACTIVE = 32u   /* is, or leads to, the gradient of a value that is not OPI_V_CONSTANT */
};

typedef struct opi_grad_state {
  const opi_bound *bound;
  const opi_gradient_options *options;
  opi_training *training; /* graph and results; arena */
  opi_arena scratch;
  opi_builder builder;
  opi_grad grad;
  opi_loss loss; /* the options' loss with output and labels resolved */

  /* By index of the bound graph. */
  uint32_t n_stages;
  uint32_t *map; /* [values] value of the training graph; OPIPE_NONE: not copied */
  uint32_t *
      copies; /* [values * n_stages] copies per stage of OPI_V_CONSTANT values that nodes produce */
  uint8_t *bound_flags;  /* [values] OPI_V_CONSTANT */
  uint32_t target;       /* input of the loss: logits or the scalar */
  uint32_t target_stage; /* stage of its producer, where the loss is */

  /* By index of the training graph; arrays grow with it. */
  uint8_t *flags; /* [room_flags] OPI_V_* */
  uint32_t room_flags, n_flags;
  uint32_t *anchor, *stage; /* [n_anchored nodes] */
  uint32_t room_anchor, room_stage, n_anchored;
  uint32_t n_forward_nodes, n_forward_values;
  uint32_t *gradient;  /* [n_forward_values] sum so far; OPIPE_NONE: none */
  uint32_t current;    /* node whose rule is running */
  const void **hidden; /* [n_forward_values] data of trained parameters, set aside while the graph
                          is built */
  struct opi_grad_shares *shares; /* shares.c; NULL: one number divides the whole loss */
  struct opi_grad_cast *casts;    /* [n_casts] compute.c */
  uint32_t n_casts, room_casts;
} opi_grad_state;

/* Assigns anchor and stage to all nodes emitted since the last call. */
opipe_status opi_grad_anchor(opi_grad_state *s, uint32_t anchor, uint32_t stage, opipe_error *err);
/* Makes room for the flags of all values. */
opipe_status opi_grad_flags(opi_grad_state *s, opipe_error *err);
/* The value of a per-run scalar (OPI_SCALAR_*), created on the first call. */
opipe_status opi_grad_scalar(opi_grad_state *s, uint32_t slot, uint32_t *out, opipe_error *err);
/* Origin after which rules' nodes are named: "<name>/grad". */
const opi_node *opi_grad_origin(opi_grad_state *s, const char *name, const char *suffix);

opipe_status opi_grad_forward(opi_grad_state *s, opipe_error *err);
/* Copies one forward node, given its canonical inputs in the training graph. `name` NULL: the
 * node's own.
 */
opipe_status opi_grad_copy_node(opi_grad_state *s, const opi_node *node, const uint32_t *in,
                                const char *const *out_names, uint32_t *out, opipe_error *err);
opipe_status opi_grad_dropout(opi_grad_state *s, const opi_node *node, uint32_t x,
                              const char *const *out_names, uint32_t *out, opipe_error *err);
/* compute.c. Casts the inputs `in` of a node about to be copied; then its output 0; the input of
 * the loss. */
opipe_status opi_grad_cast_inputs(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *in, opipe_error *err);
opipe_status opi_grad_cast_output(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *io_out, opipe_error *err);
opipe_status opi_grad_cast_target(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_find_loss(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_loss(opi_grad_state *s, opipe_error *err);
/* form.c. The form of the scalar loss. FIXED: independent of the batch; ROWS: it carries the batch.
 */
enum { OPI_FORM_FIXED, OPI_FORM_ROWS, OPI_FORM_MEAN, OPI_FORM_SUM, OPI_FORM_RATIO, OPI_FORM_ODD };
enum { OPI_FORM_NODE = 1 << 30 };
typedef struct opi_loss_form {
  uint32_t form;  /* OPI_FORM_* */
  uint32_t lower; /* RATIO: the bound value that is the divisor or, with OPI_FORM_NODE, the bound
                     node that is a mean of what it counts; else OPIPE_NONE */
  const opi_node *odd; /* ODD: the node responsible; may be NULL */
} opi_loss_form;
opipe_status opi_grad_form(opi_grad_state *s, opi_loss_form *out, opipe_error *err);
/* form.c. For a node that reads a number of rows (opi_carry.power): the power of the rows by which
 * its output differs from *out_of, its other input; -1 if it divides by them. 0: not such a node.
 * ODD (2): it uses them in another way. */
enum { OPI_POWER_ODD = 2 };
int32_t opi_grad_power(const opi_node *node, const opi_carry *carry, uint32_t *out_of);
/* shares.c. Finds a loss that is a linear form of several sums, before the forward copy. */
opipe_status opi_grad_find_shares(opi_grad_state *s, opipe_error *err);
/* Adjusts the inputs of bound node n about to be copied, then its output 0, if they belong to such
 * a loss. */
opipe_status opi_grad_share_inputs(opi_grad_state *s, uint32_t n, uint32_t *in, opipe_error *err);
opipe_status opi_grad_share_output(opi_grad_state *s, uint32_t n, uint32_t *io_out,
                                   opipe_error *err);
/* Makes its loss; x is its value in the training graph. */
opipe_status opi_grad_share_loss(opi_grad_state *s, uint32_t x, uint32_t *out, opipe_error *err);
/* Rows of this micro-batch; 1 if no input carries the batch. */
double opi_grad_batch_rows(const opi_grad_state *s);
/* Turns the mean of a loss node into a sum. */
void opi_grad_make_sum(opi_node *node);
/* A number that training->count_graph counts, in values of the training graph. */
typedef struct opi_counted {
  uint32_t labels, weights; /* weights OPIPE_NONE: all 1 */
  int64_t ignore;
  bool ignores, sums; /* sums: add up the labels, which are numbers */
  double times;       /* factor of the sum; 0 means 1 */
} opi_counted;
/* Builds training->count_graph with an output for each entry of list [n]. count.c */
opipe_status opi_grad_count_all(opi_grad_state *s, const opi_counted *list, uint32_t n,
                                opipe_error *err);
/* Builds training->count_graph as the sum of all elements of a value of the training graph. count.c
 */
opipe_status opi_grad_count_sum(opi_grad_state *s, uint32_t value, opipe_error *err);
/* Builds training->count_graph, or sets training->count. `ignore` applies if `ignores`; weights: a
 * value with one weight per class, OPIPE_NONE: all 1. count.c */
opipe_status opi_grad_count(opi_grad_state *s, uint32_t labels, bool ignores, int64_t ignore,
                            uint32_t weights, opipe_error *err);
/* Emits the sum of x over all axes, rank 0. */
opipe_status opi_grad_sum_all(opi_builder *b, uint32_t x, uint32_t *out, opipe_error *err);
opipe_status opi_grad_trainable(opi_grad_state *s, opipe_error *err);
/* The interface of gradient rules to this state. */
opi_grad opi_grad_open(opi_grad_state *s);
opipe_status opi_grad_backward(opi_grad_state *s, opipe_error *err);
/* Adds the current node's contribution to a trained parameter. */
opipe_status opi_grad_accumulate(opi_grad_state *s, uint32_t parameter, uint32_t value,
                                 opipe_error *err);
opipe_status opi_grad_finish(opi_grad_state *s, opipe_error *err);

/* slices.c: keys and values between slices. Called after the forward copy; when parameters are
 * marked; with the loss's seed; before a node's rule, in its stage, whichever stages read its
 * outputs; after all rules. */
opipe_status opi_grad_states(opi_grad_state *s, opipe_error *err);
void opi_grad_mark_states(const opi_grad_state *s);
opipe_status opi_grad_seed_states(opi_grad_state *s, opipe_error *err);
opipe_status opi_grad_meet_states(opi_grad_state *s, const opi_node *node, opipe_error *err);
opipe_status opi_grad_close_states(opi_grad_state *s, opipe_error *err);

#endif /* OPI_GRADIENT_STATE_H */
