/* SPDX-License-Identifier: Apache-2.0 */
/* Forward nodes that the backward pass makes again; private to loader/gradient.
 *
 * A chosen node's outputs are not kept: a backward node of the same stage that reads one gets a
 * clone (and clones of what that needs) right before it. What a stage received is never made again.
 */
#ifndef OPI_GRADIENT_RECOMPUTE_H
#define OPI_GRADIENT_RECOMPUTE_H

#include "loader/gradient/state.h"

typedef struct opi_recompute {
  bool *chosen;    /* [n_forward_nodes] made again where one of its lost outputs is read */
  bool *kept;      /* [n_forward_values] outputs of chosen nodes that are kept all the same */
  uint32_t *stack; /* [n_forward_nodes + 1] */
  uint32_t *clone; /* [n_forward_values] the value that stands for it in backward nodes */
  opi_node *nodes; /* the new array */
  uint32_t n_chosen, n_nodes;
} opi_recompute;

opipe_status opi_recompute_choose(opi_grad_state *s, opi_recompute *out, opipe_error *err);
/* Writes the clones that backward node `node` of `stage` needs and lets it read them. */
opipe_status opi_recompute_before(opi_grad_state *s, opi_recompute *again, const opi_node *node,
                                  uint32_t stage, opipe_error *err);

#endif /* OPI_GRADIENT_RECOMPUTE_H */
