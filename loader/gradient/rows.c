/* SPDX-License-Identifier: Apache-2.0 */
/* A training graph for another number of rows: the graph by loader/graph/rows.h, and what was
 * noted of it, which must be the same in both but for the count. */
#include <string.h>

#include "loader/gradient/gradient.h"

static bool same_params(const opi_training *a, const opi_training *b) {
  bool same = a->n_params == b->n_params;
  for (uint32_t p = 0; same && p < a->n_params; ++p) {
    const opi_train_param *x = &a->params[p], *y = &b->params[p];
    same = x->value == y->value && x->n_gradients == y->n_gradients;
    for (uint32_t i = 0; same && i < x->n_gradients; ++i)
      same = x->gradients[i] == y->gradients[i];
  }
  return same;
}

static bool same_states(const opi_training *a, const opi_training *b) {
  bool same = a->n_states == b->n_states;
  for (uint32_t i = 0; same && i < a->n_states; ++i) {
    const opi_slice_state *x = &a->states[i], *y = &b->states[i];
    same = x->past == y->past && x->present == y->present && x->stage == y->stage &&
           x->present_gradient == y->present_gradient && x->past_gradient == y->past_gradient;
  }
  return same;
}

static bool same_notes(const opi_training *a, const opi_training *b) {
  const uint32_t n = a->graph->n_nodes;
  return a->loss == b->loss && a->output == b->output && a->labels == b->labels &&
         a->by_rows == b->by_rows && a->n_sums == b->n_sums &&
         (a->count_graph == NULL) == (b->count_graph == NULL) &&
         memcmp(a->scalars, b->scalars, sizeof a->scalars) == 0 && n == b->graph->n_nodes &&
         memcmp(a->stage, b->stage, n * sizeof *a->stage) == 0 && same_params(a, b) &&
         same_states(a, b);
}

static opipe_status resize_all(const opi_training *a, const opi_training *b,
                               const opi_row_change *change, opi_training *t, opipe_error *err) {
  OPI_TRY(opi_graph_with_rows(a->graph, b->graph, change, &t->arena, &t->graph, err));
  if (!same_notes(a, b) || !opi_rows_double(change, a->count, b->count, &t->count)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "training graphs of %lld and of %lld rows differ by more than the rows",
                    (long long)change->rows_a, (long long)change->rows_b);
  }
  return a->count_graph == NULL ? OPIPE_OK
                                : opi_graph_with_rows(a->count_graph, b->count_graph, change,
                                                      &t->arena, &t->count_graph, err);
}

opipe_status opi_training_with_rows(const opi_training *a, const opi_training *b,
                                    const opi_row_change *change, opi_training **out_training,
                                    opipe_error *err) {
  const opipe_allocator *allocator = a->arena.allocator;
  opi_training *t = opi_alloc_zero(allocator, 1, sizeof *t);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "a training graph");
  *t = *a;
  opi_arena_init(&t->arena, allocator, 0);
  const opipe_status status = resize_all(a, b, change, t, err);
  if (status < 0) {
    opi_training_free(t);
    return status;
  }
  *out_training = t;
  return OPIPE_OK;
}
