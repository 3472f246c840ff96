/* SPDX-License-Identifier: Apache-2.0 */
/* All families, and the way from a node to its rule.
 */
#include "op.h"

static const cpu_op_family *const families[] = {
    &cpu_family_shape,          &cpu_family_movement,
    &cpu_family_index,          &cpu_family_elementwise,
    &cpu_family_logic,          &cpu_family_cast,
    &cpu_family_activation,     &cpu_family_reduce,
    &cpu_family_order,          &cpu_family_generate,
    &cpu_family_scatter,        &cpu_family_linear,
    &cpu_family_quantize,       &cpu_family_quantize_linear,
    &cpu_family_integer,        &cpu_family_conv_integer,
    &cpu_family_einsum,         &cpu_family_norm,
    &cpu_family_softmax,        &cpu_family_conv,
    &cpu_family_pool,           &cpu_family_attention,
    &cpu_family_rotary,         &cpu_family_loss,
    &cpu_family_dropout,        &cpu_family_train,
    &cpu_family_dropout_train,  &cpu_family_parts,
    &cpu_family_conv_grad,      &cpu_family_norm_grad,
    &cpu_family_softmax_grad,   &cpu_family_activation_grad,
    &cpu_family_attention_grad, &cpu_family_pool_grad,
    &cpu_family_interpolate,    &cpu_family_dft,
    &cpu_family_recurrent,      &cpu_family_recurrent_grad,
    &cpu_family_row_attention,
};

const cpu_op *cpu_op_find(const char *domain, const char *name) {
  const char *wanted = domain == NULL || strcmp(domain, "ai.onnx") == 0 ? "" : domain;
  for (uint32_t f = 0; f < CPU_COUNT_OF(families); ++f) {
    for (uint32_t i = 0; i < families[f]->n; ++i) {
      const cpu_op *op = &families[f]->ops[i];
      if (op->name[0] == name[0] && strcmp(op->name, name) == 0 &&
          strcmp(op->domain != NULL ? op->domain : "", wanted) == 0)
        return op;
    }
  }
  return NULL;
}

static bool has_half(const cpu_prep *p) {
  bool found = false;
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    found = found || (cpu_in(p, i) != NULL && cpu_is_half(cpu_in(p, i)->dtype));
  for (uint32_t i = 0; i < p->step->n_out; ++i)
    found = found || (cpu_out(p, i) != NULL && cpu_is_half(cpu_out(p, i)->dtype));
  return found;
}

opipe_status cpu_op_prepare(cpu_prep *p) {
  const opipe_node *node = p->node;
  p->op = cpu_op_find(node->domain, node->op);
  if (p->op == NULL) {
    return cpu_refuse(p, "no such operator in domain '%.40s'",
                      node->domain != NULL ? node->domain : "");
  }
  if (node->n_in < p->op->min_in || (p->op->max_in != 255 && node->n_in > p->op->max_in) ||
      node->n_out < 1 || (p->op->max_out != 255 && node->n_out > p->op->max_out)) {
    return cpu_refuse(p, "has %u inputs and %u outputs; it takes %u to %u and 1 to %u", node->n_in,
                      node->n_out, p->op->min_in, p->op->max_in, p->op->max_out);
  }
  for (uint32_t i = 0; i < p->op->min_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      return cpu_refuse(p, "input %u is absent", i);
  }
  if (node->out[0] == OPIPE_NONE && p->op->max_out == 1)
    return cpu_refuse(p, "its output is absent");
  if ((p->op->flags & CPU_OP_WIDEN) != 0 && has_half(p))
    return cpu_prepare_widened(p);
  return p->op->prepare(p);
}
