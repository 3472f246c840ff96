/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout in a training graph: opipe.Dropout, whose mask depends on seed, step, the node's name,
 * the sample's number in the mini-batch, the token's number in the sequence and the place in the
 * rest, so that no split changes it and a clone has the same one.
 */
#include "loader/gradient/state.h"

static void carry_attrs(opi_attrs *attrs, const char *const names[3], const opi_carry *carry) {
  const opi_carry none = {-1, 0, 1, 1};
  const opi_carry *c = carry != NULL ? carry : &none;
  opi_attrs_int(attrs, names[0], c->axis);
  opi_attrs_int(attrs, names[1], c->axis < 0 ? 1 : c->outer);
  opi_attrs_int(attrs, names[2], c->axis < 0 ? 1 : c->inner);
}

opipe_status opi_grad_dropout(opi_grad_state *s, const opi_node *node, uint32_t x,
                              const char *const *out_names, uint32_t *out, opipe_error *err) {
  static const char *const batch[3] = {"batch_axis", "batch_outer", "batch_inner"};
  static const char *const token[3] = {"token_axis", "token_outer", "token_inner"};
  const opi_gradient_options *o = s->options;
  opi_attrs attrs = {.n = 0};
  double ratio = 0.5;
  uint32_t in[5] = {x};
  const uint32_t given = opi_node_in(node, 1);
  if (given != OPIPE_NONE && !opi_known_scalar(&s->bound->graph->values[given], &ratio))
    return opi_fail(err, OPIPE_E_INTERNAL, "node '%s': its ratio is not known", node->name);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_TRY(opi_grad_scalar(s, OPI_SCALAR_SEED + i, &in[1 + i], err));
  opi_attrs_float(&attrs, "ratio", ratio);
  opi_attrs_string(&attrs, "key", node->name);
  carry_attrs(&attrs, batch, o->carry != NULL ? &o->carry[node->in[0]] : NULL);
  carry_attrs(&attrs, token, o->token_carry != NULL ? &o->token_carry[node->in[0]] : NULL);
  const opi_emit emit = {.op = "Dropout",
                         .domain = "opipe",
                         .in = in,
                         .n_in = 5,
                         .n_out = node->n_out,
                         .attrs = attrs.list,
                         .n_attrs = attrs.n,
                         .version = 1,
                         .out_names = out_names};
  return opi_b_emit_kept(&s->builder, &emit, out, err);
}
