/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the token axis of every value: two bindings of one model that differ in the number of
 * tokens alone are compared value by value. */
#include "loader/passes/tokens.h"

#include <inttypes.h>
#include <string.h>

#include "loader/ops/common.h"

static opipe_status check_alike(const opi_graph *a, const opi_graph *b, opipe_error *err) {
  if (a->n_nodes != b->n_nodes || a->n_values != b->n_values || a->n_inputs != b->n_inputs) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the graph depends on the number of tokens: %" PRIu32 " nodes and %" PRIu32
                    " values, or %" PRIu32 " and %" PRIu32,
                    a->n_nodes, a->n_values, b->n_nodes, b->n_values);
  }
  for (uint32_t n = 0; n < a->n_nodes; ++n) {
    const opi_node *x = &a->nodes[n], *y = &b->nodes[n];
    if (strcmp(x->op, y->op) != 0 || x->n_in != y->n_in || x->n_out != y->n_out ||
        memcmp(x->in, y->in, x->n_in * sizeof(*x->in)) != 0 ||
        memcmp(x->out, y->out, x->n_out * sizeof(*x->out)) != 0) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "the graph depends on the number of tokens: node '%s' (%s) or '%s' (%s)",
                      x->name, x->op, y->name, y->op);
    }
  }
  return OPIPE_OK;
}

/* How many dimensions of v are the token axis; they are written to dims. */
static opipe_status compare_value(opi_tokens *t, const opi_graph *other, int64_t n_other,
                                  uint32_t v, opipe_error *err) {
  const opi_value *x = &t->whole->graph->values[v], *y = &other->values[v];
  uint32_t n = 0;
  if (x->rank != y->rank || x->dtype != y->dtype) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "value '%s' has rank %" PRId32 " or %" PRId32
                    ", depending on the number of tokens",
                    x->name, x->rank, y->rank);
  }
  for (int32_t d = 0; d < x->rank; ++d) {
    if (x->shape[d] == y->shape[d])
      continue;
    const bool sinks =
        n == 1 && x->shape[d] > t->n_tokens && x->shape[d] - y->shape[d] == t->n_tokens - n_other;
    const bool plain = (x->shape[d] == t->n_tokens && y->shape[d] == n_other) || sinks;
    if (plain && n < OPI_TOKEN_DIMS)
      t->dims[v][n++] = (int8_t)d;
    else
      t->dims[v][0] = -2;
    if (!plain || t->dims[v][0] == -2)
      break;
  }
  const bool known = opi_value_known(x) && opi_value_known(y);
  t->differs[v] = opi_value_known(x) != opi_value_known(y) ||
                  (known && n == 0 && t->dims[v][0] == -1 && x->data != y->data &&
                   (x->n_bytes != y->n_bytes || memcmp(x->data, y->data, x->n_bytes) != 0));
  return OPIPE_OK;
}

static opipe_status compare(opi_tokens *t, const opi_graph *other, int64_t n_other,
                            opipe_error *err) {
  const uint32_t n = t->whole->graph->n_values;
  OPI_TRY(check_alike(t->whole->graph, other, err));
  t->dims = opi_arena_array(&t->arena, n, sizeof(*t->dims));
  t->differs = OPI_ARENA_ARRAY(&t->arena, bool, n);
  t->above = OPI_ARENA_ARRAY(&t->arena, uint8_t, n);
  if (t->dims == NULL || t->differs == NULL || t->above == NULL)
    return opi_fail_nomem(err, n * 4, "token axes");
  memset(t->dims, -1, (size_t)n * sizeof(*t->dims));
  for (uint32_t v = 0; v < n; ++v)
    OPI_TRY(compare_value(t, other, n_other, v, err));
  return OPIPE_OK;
}

opipe_status opi_tokens_find(const opi_bound *whole, int64_t n_tokens, const opi_bound *other,
                             int64_t n_other, const opipe_allocator *allocator,
                             opi_tokens **out_tokens, opipe_error *err) {
  if (n_tokens < 1 || n_other < 1 || n_tokens == n_other) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "token axes are found from two numbers of tokens, not %" PRId64 " and %" PRId64,
                    n_tokens, n_other);
  }
  opi_tokens *t = opi_alloc_zero(allocator, 1, sizeof(*t));
  if (t == NULL)
    return opi_fail_nomem(err, sizeof(*t), "token axes");
  opi_arena_init(&t->arena, allocator, 0);
  t->whole = whole;
  t->n_tokens = n_tokens;
  const opipe_status status = compare(t, other->graph, n_other, err);
  if (status < 0) {
    opi_tokens_free(t);
    return status;
  }
  *out_tokens = t;
  return OPIPE_OK;
}

void opi_tokens_free(opi_tokens *tokens) {
  if (tokens == NULL)
    return;
  const opipe_allocator *allocator = tokens->arena.allocator;
  opi_arena_release(&tokens->arena);
  opi_free(allocator, tokens, sizeof(*tokens));
}
