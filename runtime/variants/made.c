/* SPDX-License-Identifier: Apache-2.0 */
/* Which results the ranks of this session make: all of them, or some of their rows, or none, where
 * other ranks are in other sessions.
 */
#include "runtime/engine.h"

typedef struct count {
  uint32_t all, here; /* parts */
} count;

/* What is the same for all rows and tokens is taken from the first part. */
static bool is_taken(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_variant_slice *slice = opi_graphs_at(t, step->stage, step->microbatch);
  const bool first_rows = t->parts[step->microbatch].in_request == 0;
  const bool first_tokens = slice->first == 0 || slice->n_outputs <= output;
  return (t->output_carry[output].axis >= 0 || first_rows) &&
         (first_tokens || slice->outputs[output].carry.axis >= 0);
}

static bool makes(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  if (!opi_session_trains(t->session))
    return opi_output_cell_at(cut, output, step->stage) != OPIPE_NONE && is_taken(t, step, output);
  for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c) {
    if (cut->cells[c].output == output)
      return true;
  }
  return false;
}

static count count_parts(const opi_compiled *t, uint32_t output) {
  const opi_session *s = t->session;
  count n = {0, 0};
  for (uint32_t r = 0; r < s->plan->n_ranks; ++r) {
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i) {
      const opi_step *step = &t->lists->steps[i];
      if (step->kind != OPI_ACT_STORE || !makes(t, step, output))
        continue;
      ++n.all;
      n.here += opi_rank_is_here(s, r) ? 1 : 0;
    }
  }
  return n;
}

opipe_status opi_results_find(opi_compiled *t, opipe_error *err) {
  const opi_session *s = t->session;
  t->made = OPI_ARENA_ARRAY(&t->arena, uint8_t, s->n_outputs);
  if (t->made == NULL)
    return opi_fail_nomem(err, s->n_outputs, "results");
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const bool whole = s->peers == NULL && s->n_here == s->plan->n_ranks;
    const count n = whole ? (count){0, 0} : count_parts(t, o);
    t->made[o] = n.here == n.all ? OPI_MADE_ALL : n.here == 0 ? OPI_MADE_NONE : OPI_MADE_SOME;
  }
  if (opi_session_trains(s))
    t->made[0] = OPI_MADE_ALL; /* the loss is told to all */
  return OPIPE_OK;
}
