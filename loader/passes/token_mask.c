/* SPDX-License-Identifier: Apache-2.0 */
/* Does a mask block every later token? Constants are looked at, element by element; logic that
 * joins them with padding masks is followed: a conjunction blocks where one part does, a choice
 * where the condition is settled, a sum of biases where one is very negative.
 *
 * Above the diagonal a value is one of: FALSE everywhere, TRUE everywhere, LOW (a bias of at most
 * LOW_BIAS) everywhere, or not known to be any.
 */
#include <math.h>
#include <string.h>

#include "loader/ops/common.h"
#include "loader/ops/kit.h"
#include "loader/passes/tokens.h"

enum { ABOVE_UNKNOWN, ABOVE_FALSE, ABOVE_TRUE, ABOVE_LOW };
enum { MOST_DEPTH = 64 };
static const double LOW_BIAS = -1e4;

static double number_at(const opi_value *v, uint64_t i) {
  switch (v->dtype) {
    case OPIPE_BOOL:
      return ((const uint8_t *)v->data)[i] != 0;
    case OPIPE_FLOAT:
      return (double)((const float *)v->data)[i];
    case OPIPE_DOUBLE:
      return ((const double *)v->data)[i];
    default:
      return NAN;
  }
}

/* Known content: the last two dimensions are rows and columns, broadcast where 1 long. */
static int above_of_constant(const opi_value *v, int64_t n_tokens) {
  const bool known_type =
      v->dtype == OPIPE_BOOL || v->dtype == OPIPE_FLOAT || v->dtype == OPIPE_DOUBLE;
  const int64_t cols = v->rank < 1 ? 1 : v->shape[v->rank - 1];
  const int64_t rows = v->rank < 2 ? 1 : v->shape[v->rank - 2];
  bool all_false = true, all_true = true, all_low = v->dtype != OPIPE_BOOL;
  if (!known_type || (cols != 1 && cols != n_tokens) || (rows != 1 && rows != n_tokens))
    return ABOVE_UNKNOWN;
  const uint64_t n = opi_elems(v), plane = (uint64_t)(rows * cols);
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t row = rows == 1 ? 0 : (int64_t)(i % plane) / cols;
    const int64_t col = cols == 1 ? n_tokens - 1 : (int64_t)(i % plane) % cols;
    if (col <= row)
      continue;
    const double x = number_at(v, i);
    all_false = all_false && x == 0;
    all_true = all_true && x != 0 && v->dtype == OPIPE_BOOL;
    all_low = all_low && x <= LOW_BIAS;
  }
  if (v->dtype == OPIPE_BOOL)
    return all_false ? ABOVE_FALSE : all_true ? ABOVE_TRUE : ABOVE_UNKNOWN;
  return all_low ? ABOVE_LOW : ABOVE_UNKNOWN;
}

static int above(const opi_tokens *t, uint32_t v, uint32_t depth);

static int above_of_where(const opi_tokens *t, const opi_node *node, uint32_t depth) {
  const int cond = above(t, node->in[0], depth);
  if (cond == ABOVE_TRUE)
    return above(t, node->in[1], depth);
  if (cond == ABOVE_FALSE)
    return above(t, node->in[2], depth);
  const int yes = above(t, node->in[1], depth), no = above(t, node->in[2], depth);
  return yes == no ? yes : ABOVE_UNKNOWN;
}

/* Both operands of a two-sided rule: `either` suffices, or both must be it. */
static int join(const opi_tokens *t, const opi_node *node, int either, int both, uint32_t depth) {
  const int a = above(t, node->in[0], depth), c = above(t, node->in[1], depth);
  if (a == either || c == either)
    return either;
  return a == both && c == both ? both : ABOVE_UNKNOWN;
}

/* Does the node leave the last two dimensions where they are? */
static bool keeps_plane(const opi_graph *graph, const opi_node *node) {
  const opi_value *x = &graph->values[node->in[0]], *y = &graph->values[node->out[0]];
  if (x->rank < 2 || y->rank < 2)
    return opi_elems(x) == 1;
  for (int32_t d = 1; d <= 2; ++d) {
    const int64_t had = x->shape[x->rank - d], has = y->shape[y->rank - d];
    if (had != has && had != 1)
      return false;
  }
  return true;
}

static int above_of_node(const opi_tokens *t, const opi_node *node, uint32_t depth) {
  static const char *const moves[] = {"Expand", "Reshape", "Identity", "Cast"};
  if (node->domain[0] != '\0')
    return ABOVE_UNKNOWN;
  if (strcmp(node->op, "And") == 0)
    return join(t, node, ABOVE_FALSE, ABOVE_TRUE, depth);
  if (strcmp(node->op, "Or") == 0)
    return join(t, node, ABOVE_TRUE, ABOVE_FALSE, depth);
  if (strcmp(node->op, "Add") == 0 || strcmp(node->op, "Min") == 0)
    return join(t, node, ABOVE_LOW, ABOVE_LOW, depth);
  if (strcmp(node->op, "Where") == 0)
    return above_of_where(t, node, depth);
  if (strcmp(node->op, "Not") == 0) {
    const int x = above(t, node->in[0], depth);
    return x == ABOVE_FALSE ? ABOVE_TRUE : x == ABOVE_TRUE ? ABOVE_FALSE : ABOVE_UNKNOWN;
  }
  for (size_t i = 0; i < OPI_COUNT(moves); ++i) {
    if (strcmp(node->op, moves[i]) != 0 || !keeps_plane(t->whole->graph, node))
      continue;
    const int x = above(t, node->in[0], depth);
    const uint32_t to = t->whole->graph->values[node->out[0]].dtype;
    const uint32_t from = t->whole->graph->values[node->in[0]].dtype;
    return to == from || x == ABOVE_LOW ? x : ABOVE_UNKNOWN;
  }
  return ABOVE_UNKNOWN;
}

static int above(const opi_tokens *t, uint32_t v, uint32_t depth) {
  const opi_value *value = &t->whole->graph->values[v];
  if (opi_value_known(value))
    return above_of_constant(value, t->n_tokens);
  if (value->producer == OPIPE_NONE || depth == 0)
    return ABOVE_UNKNOWN;
  return above_of_node(t, &t->whole->graph->nodes[value->producer], depth - 1);
}

bool opi_mask_is_causal(const opi_tokens *tokens, uint32_t mask) {
  const int found = above(tokens, mask, MOST_DEPTH);
  return found == ABOVE_FALSE || found == ABOVE_LOW;
}
