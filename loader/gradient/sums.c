/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of values, as rules give them.
 *
 * Contributions are added at once, in the order in which they come: nodes are visited from the last
 * stage to the first and within a stage from the last node to the first.
 */
#include "loader/gradient/state.h"

static uint32_t gradient_of(const opi_grad_state *s, uint32_t value) {
  return s->gradient[value];
}

static bool is_wanted(const opi_grad_state *s, uint32_t value) {
  return (s->flags[value] & OPI_V_WANTED) != 0;
}

static opipe_status give(opi_grad_state *s, uint32_t value, uint32_t gradient, opipe_error *err) {
  uint32_t sum = gradient;
  if ((s->flags[value] & OPI_V_TRAINED) != 0)
    return opi_grad_accumulate(s, value, gradient, err);
  if (s->gradient[value] != OPIPE_NONE)
    OPI_TRY(opi_b_op2(&s->builder, "Add", s->gradient[value], gradient, &sum, err));
  s->gradient[value] = sum;
  OPI_TRY(opi_grad_flags(s, err));
  if ((s->flags[value] & OPI_V_CONSTANT) == 0) {
    s->flags[gradient] |= OPI_V_ACTIVE;
    s->flags[sum] |= OPI_V_ACTIVE;
  }
  return OPIPE_OK;
}

opi_grad opi_grad_open(opi_grad_state *s) {
  return (opi_grad){
      .builder = &s->builder, .state = s, .of = gradient_of, .wanted = is_wanted, .give = give};
}
