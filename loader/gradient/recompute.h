/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputation of forward nodes in the backward pass. Private to loader/gradient.
 *
 * Outputs of a chosen node are not kept: a backward node of the same stage that reads one gets a
 * clone of the node, and of whatever that needs, right before it. Inputs of a stage are never
 * recomputed. W has clones of its own of gathered rows, so that nothing whole is kept from I to W;
 * of rows of gradients only where it runs apart from I, which has gathered them.
 */
#ifndef OPI_GRADIENT_RECOMPUTE_H
#define OPI_GRADIENT_RECOMPUTE_H

#include "loader/gradient/state.h"

typedef struct opi_recompute {
  bool *chosen;    /* [n_forward_nodes] recomputed if a lost output is read */
  bool *kept;      /* [n_forward_values] outputs of chosen nodes that are kept nevertheless */
  bool *rows;      /* [n_forward_nodes] gathers rows, or gives them another shape */
  uint32_t *stack; /* [n_forward_nodes + 1] */
  uint32_t *clone; /* [2][n_forward_values] the value that replaces it in backward nodes; that of
                      gathered rows in W */
  opi_node *nodes; /* the new array */
  uint32_t n_chosen, n_nodes;
  bool *gradients;       /* [of the new array] gathers rows of gradients in I, or gives them another
                            shape, where W runs apart */
  uint32_t *of_gradient; /* [n_values] the clone's value in W; OPIPE_NONE: there is none */
  bool *in_inputs;       /* [n_values] read by I: what W alone reads is not gathered twice */
  uint32_t n_values;     /* before any clone */
} opi_recompute;

/* alive [nodes]: backward nodes that anything needs. */
opipe_status opi_recompute_choose(opi_grad_state *s, const bool *alive, opi_recompute *out,
                                  opipe_error *err);
/* Notes what the node that was written last, a backward one, gathers. */
void opi_recompute_behind(const opi_grad_state *s, opi_recompute *again);
/* Inserts the clones that backward node `node` of `stage` needs and redirects its inputs to them.
 */
opipe_status opi_recompute_before(opi_grad_state *s, opi_recompute *again, const opi_node *node,
                                  uint32_t stage, opipe_error *err);

#endif /* OPI_GRADIENT_RECOMPUTE_H */
