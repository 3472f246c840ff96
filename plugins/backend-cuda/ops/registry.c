/* SPDX-License-Identifier: Apache-2.0 */
/* The families of operators, and the way from a node to its rule. */
#include "ops/rule.h"

static const cuda_family *const families[] = {
    &cuda_elementwise_family, &cuda_movement_family,
    &cuda_einsum_family,      &cuda_linear_family,
    &cuda_rows_family,        &cuda_reduce_family,
    &cuda_attention_family,   &cuda_contrib_family,
    &cuda_gradient_family,    &cuda_index_family,
    &cuda_loss_family,        &cuda_loss_gradient_family,
    &cuda_window_family,      &cuda_window_gradient_family,
    &cuda_recurrent_family,   &cuda_norm_gradient_family,
    &cuda_parts_family,       &cuda_row_attention_family,
    &cuda_dropout_family};

bool cuda_is_accumulate(const opipe_node *node) {
  return strcmp(node->domain, "opipe") == 0 && strcmp(node->op, "Accumulate") == 0;
}

static const cuda_row *find_row(const opipe_node *node) {
  for (size_t f = 0; f < sizeof families / sizeof families[0]; ++f) {
    if (strcmp(families[f]->domain, node->domain) != 0)
      continue;
    for (uint32_t i = 0; i < families[f]->n; ++i) {
      if (strcmp(families[f]->rows[i].op, node->op) == 0)
        return &families[f]->rows[i];
    }
  }
  return NULL;
}

opipe_status cuda_rule_run(cuda_rule *r) {
  const opipe_node *node = r->node;
  const cuda_row *row = find_row(node);
  if (row == NULL) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no rule for it%s%s",
                       node->domain[0] != '\0' ? " in domain " : "", node->domain);
  }
  if (node->n_in < row->least_in || (row->most_in != 255 && node->n_in > row->most_in) ||
      node->n_out < 1 || (row->most_out != 255 && node->n_out > row->most_out))
    return cuda_refuse(r, OPIPE_E_INVALID, "%u inputs and %u outputs", node->n_in, node->n_out);
  for (uint32_t i = 0; i < row->least_in; ++i) {
    if (cuda_in(r, i) == NULL)
      return cuda_refuse(r, OPIPE_E_INVALID, "input %u is absent", i);
  }
  return row->rule(r);
}
