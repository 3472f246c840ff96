/* SPDX-License-Identifier: Apache-2.0 */
/* How much of every result the ranks of this session make, where other ranks are in other sessions;
 * and which ranks touch which tensors of a request.
 */
#include "runtime/compiled/build.h"
#include "runtime/compiled/parcels.h"

typedef struct count {
  uint32_t all, here; /* parts */
} count;

static count count_parts(const opi_compiled *t, uint32_t output) {
  const opi_setup *s = t->setup;
  count n = {0, 0};
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
    for (uint32_t i = t->lists->rank_first[r]; i < t->lists->rank_first[r + 1]; ++i) {
      const opi_step *step = &t->lists->steps[i];
      if (step->kind != OPI_ACT_STORE ||
          t->setup->shapes->kind->makes(t, step, output) == OPIPE_NONE)
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
    if (s->outputs_travel && s->env.process == 0)
      t->made[o] = OPI_MADE_ALL; /* here or elsewhere */
  }
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

/* Does a program here read the count of labels, or one of the other sums? */
static bool reads_count(const opi_compiled *t) {
  const size_t n = (size_t)t->n_instances * t->n_classes * OPI_PROGRAMS;
  for (size_t u = 0; u < n; ++u) {
    const opi_program_unit *unit = &t->units[u];
    for (uint32_t v = 0; unit->program != NULL && v < unit->cut->graph.n_values; ++v) {
      const opipe_value *value = &unit->cut->graph.values[v];
      if (value->role == OPIPE_VALUE_SCALAR &&
          (value->slot == OPI_SCALAR_COUNT || value->slot >= OPI_SCALAR_SUM))
        return true;
    }
  }
  return false;
}

/* Does any process read the input, as it is or shifted, or is it counted? */
static bool reads_anywhere(const opi_compiled *t, uint32_t input) {
  const opi_setup *s = t->setup;
  bool reads = opi_train_counts(t, input);
  for (uint32_t w = 0; w < s->env.n_processes && !reads; ++w) {
    reads = opi_parcel_reads(t, w, input) ||
            (input == s->shapes->labels_input && opi_parcel_reads(t, w, s->n_inputs));
  }
  return reads;
}

static opipe_status find_needs(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const size_t n = s->n_inputs + s->n_outputs;
  t->needed = OPI_ARENA_ARRAY(&t->arena, bool, s->n_inputs);
  if (t->needed == NULL)
    return opi_fail_nomem(err, s->n_inputs, "who needs what");
  t->counts = reads_count(t);
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    t->needed[i] = t->counts && opi_train_counts(t, i);
    for (uint32_t h = 0; h < s->n_here; ++h)
      t->needed[i] |= t->touched[h * n + i];
    if (s->inputs_travel) /* process 0 gives all that travel */
      t->needed[i] = s->env.process == 0 && reads_anywhere(t, i);
  }
  return OPIPE_OK;
}

opipe_status opi_needs_check(opi_request *request, opipe_error *err) {
  const opi_setup *s = request->setup;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (!request->feeds[i].absent || !request->runs->needed[i])
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "input '%s' has no data, and ranks of this session (the first of %u is rank "
                    "%u) read it",
                    s->inputs[i].name, s->n_here, s->here[0]);
  }
  return opi_parcel_place(request, err);
}

bool opi_shapes_need(opi_shapes *shapes, uint32_t input) {
  bool needed = shapes->setup->inputs[input].valued;
  opi_lock_take(&shapes->lock);
  for (uint32_t i = 0; i < shapes->n_places; ++i) {
    const opi_shape *shape = shapes->list[i];
    needed = needed || (shape != NULL && shape->keep && shape->compiled->needed[input]);
  }
  opi_lock_give(&shapes->lock);
  return needed;
}

bool opi_counts_here(const opi_request *request) {
  const opi_compiled *t = request->runs;
  for (uint32_t i = 0; !t->counts && i < t->setup->n_inputs; ++i) {
    if (request->feeds[i].absent && opi_train_counts(t, i))
      return false;
  }
  return true;
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
      touched[s->n_inputs + o] |= s->shapes->kind->makes(t, step, o) != OPIPE_NONE;
  }
  OPI_TRY(opi_parcel_find(t, err));
  s->shapes->kind->tell_rest(t);
  return find_needs(t, err);
}
