/* SPDX-License-Identifier: Apache-2.0 */
/* Which results the ranks of this session make: all of them, or some of their rows, or none, where
 * other ranks are in other sessions. And which ranks touch which tensors of a request.
 */
#include "runtime/compiled/build.h"

typedef struct count {
  uint32_t all, here; /* parts */
} count;

/* What is the same for all rows and tokens is taken from the first part. */
static bool is_taken(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_variant_slice *slice = opi_graphs_at(t, step->stage, step->microbatch);
  const bool first_rows = opi_has_first_rows(t, step->stage, step->microbatch);
  const bool first_tokens = slice->first == 0 || slice->n_outputs <= output;
  return (t->output_carry[output].axis >= 0 || first_rows) &&
         (first_tokens || slice->outputs[output].carry.axis >= 0);
}

static bool makes(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  if (!opi_session_trains(t->setup))
    return opi_output_cell_at(cut, output, step->stage) != OPIPE_NONE && is_taken(t, step, output);
  for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c) {
    if (cut->cells[c].output == output)
      return true;
  }
  return false;
}

static count count_parts(const opi_compiled *t, uint32_t output) {
  const opi_setup *s = t->setup;
  count n = {0, 0};
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
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
  const opi_setup *s = t->setup;
  t->made = OPI_ARENA_ARRAY(&t->arena, uint8_t, s->n_outputs);
  if (t->made == NULL)
    return opi_fail_nomem(err, s->n_outputs, "results");
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const bool whole = !opi_is_shared(s);
    const count n = whole ? (count){0, 0} : count_parts(t, o);
    t->made[o] = n.here == n.all ? OPI_MADE_ALL : n.here == 0 ? OPI_MADE_NONE : OPI_MADE_SOME;
  }
  if (opi_session_trains(s))
    t->made[0] = OPI_MADE_ALL; /* the loss is told to all */
  return OPIPE_OK;
}

static void touch_inputs(const opi_compiled *t, const opi_step *step, bool *touched) {
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  const opi_ports *ports = opi_ports_at(t, opi_piece_at(t, step->stage, step->microbatch));
  for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c) {
    if (cut->cells[c].source == OPI_CELL_REQUEST && ports->input[cut->cells[c].port] != OPIPE_NONE)
      touched[ports->input[cut->cells[c].port]] = true;
  }
}

/* Outputs that no program makes, and the inputs that they are, are the first rank's. */
static void touch_plain(const opi_compiled *t, bool *touched) {
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[0];
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    if (opi_output_is_made(cut, o))
      continue;
    touched[s->n_inputs + o] = true;
    if (cut->output_port[o] != OPIPE_NONE)
      touched[t->ports[0][0].input[cut->output_port[o]]] = true;
  }
}

opipe_status opi_touches_find(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const size_t n = s->n_inputs + s->n_outputs;
  t->touched = OPI_ARENA_ARRAY(&t->arena, bool, n * s->n_here);
  if (t->touched == NULL)
    return opi_fail_nomem(err, n * s->n_here, "who touches what");
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    const opi_step *step = &t->lists->steps[i];
    if (step->kind != OPI_ACT_LOAD && step->kind != OPI_ACT_STORE)
      continue;
    const uint32_t rank = opi_piece_rank(t->pieces, step->stage, step->replica);
    bool *touched = opi_rank_is_here(s, rank) ? &t->touched[s->ranks[rank].place * n] : NULL;
    if (touched != NULL && step->kind == OPI_ACT_LOAD)
      touch_inputs(t, step, touched);
    for (uint32_t o = 0; touched != NULL && step->kind == OPI_ACT_STORE && o < s->n_outputs; ++o)
      touched[s->n_inputs + o] |= makes(t, step, o);
  }
  if (!opi_session_trains(s))
    touch_plain(t, t->touched);
  return OPIPE_OK;
}
