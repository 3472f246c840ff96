/* SPDX-License-Identifier: Apache-2.0 */
/* The graphs of every number of rows that a plan's pieces have, and their cuts.
 *
 * One number of rows: its graph as it is bound. Several: the cut must not depend on the rows, so
 * the graph is made for the most rows (the *base*) and for one row more (the *probe*, which goes
 * again), and graphs of fewer rows are derived from the two (loader/graph/rows.h). If these two
 * numbers make different graphs, because one happens to equal another extent, two primes are taken.
 */
#include <string.h>

#include "loader/ops/group.h"
#include "partition/program/assign.h"
#include "partition/program/batch.h"
#include "partition/program/model.h"
#include "partition/program/states.h"

typedef struct making {
  const opi_cut_sources *from;
  const opi_decision *plan;
  const opi_model *file;
  const opi_bind_options *bind;
  const uint32_t *used; /* [n_stages] */
  opi_cut_model *model;
  const bool *apart; /* [n_stages] members in rows: the schedule runs W apart; NULL: nowhere */
} making;

opipe_status opi_variant_note(opi_cut_model *model, int64_t rows, uint32_t *out_variant,
                              opipe_error *err) {
  const int64_t counted = rows == 0 ? 1 : rows;
  for (*out_variant = 0; *out_variant < model->n_variants; ++*out_variant) {
    if (model->variants[*out_variant].rows == counted)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&model->arena, (void **)&model->variants, &model->room_variants,
                      model->n_variants + 1, sizeof *model->variants))
    return opi_fail_nomem(err, sizeof *model->variants, "a training model");
  model->variants[model->n_variants++] = (opi_variant){.rows = counted};
  return OPIPE_OK;
}

/* Frees its contents and keeps its rows. */
static void empty(const opi_cut_model *model, opi_variant *variant) {
  for (uint32_t k = variant->slices == NULL ? 0 : opi_model_graphs(model); k-- > 0;) {
    opi_cut_free(variant->slices[k].cut);
    opi_training_free(variant->slices[k].training);
  }
  for (uint32_t k = variant->shards == NULL ? 0 : model->n_slices; k-- > 0;)
    opi_shards_free(variant->shards[k]);
  for (uint32_t k = variant->tokens == NULL ? 0 : model->n_slices; k-- > 0;)
    opi_token_slice_free(variant->tokens[k]);
  opi_bound_free(variant->own);
  *variant = (opi_variant){.rows = variant->rows};
}

void opi_variants_free(opi_cut_model *model) {
  for (uint32_t v = model->n_variants; v-- > 0;) {
    if (v != model->base)
      empty(model, &model->variants[v]);
  }
  if (model->n_variants != 0) /* the others borrow from it */
    empty(model, &model->variants[model->base]);
}

/* Whether members' graphs for other numbers of rows are divided anew: their rows do not scale with
 * those of the batch. */
static bool divides_anew(const making *m) {
  return m->plan->division.sequence && m->model->n_members > 1 && m->model->n_variants > 1;
}

static opipe_status make_slices(const making *m, opi_variant *variant, opipe_error *err) {
  const uint32_t n = opi_model_graphs(m->model);
  variant->slices = OPI_ARENA_ARRAY(&m->model->arena, opi_variant_slice, n);
  return variant->slices == NULL ? opi_fail_nomem(err, n * sizeof(opi_variant_slice), "graphs")
                                 : OPIPE_OK;
}

/* ---- from the file ---- */

/* Notes the tensors that a forward slice hands on; no gradient comes back. */
static opipe_status note_states(const making *m, opi_variant_slice *slice, opipe_error *err) {
  const opi_token_slice *tokens = slice->tokens;
  if (tokens == NULL)
    return OPIPE_OK;
  opi_slice_state *states = OPI_ARENA_ARRAY(&m->model->arena, opi_slice_state, tokens->n_states);
  if (states == NULL)
    return opi_fail_nomem(err, tokens->n_states * sizeof *states, "slice states");
  for (uint32_t i = 0; i < tokens->n_states; ++i) {
    states[i] = (opi_slice_state){.name = tokens->states[i].name,
                                  .past = tokens->states[i].past,
                                  .present = tokens->states[i].present,
                                  .present_gradient = OPIPE_NONE,
                                  .past_gradient = OPIPE_NONE};
  }
  slice->states = states;
  slice->n_states = tokens->n_states;
  return OPIPE_OK;
}

/* whole: the graph of a micro-batch; bound: of the slice or member. */
static opipe_status finish_forward(const making *m, const opi_bound *whole, const opi_bound *bound,
                                   const opi_train_member *member, opi_variant_slice *slice,
                                   opipe_error *err) {
  OPI_TRY(note_states(m, slice, err));
  return opi_forward_draws(m->plan, m->file, m->bind, whole, bound, &m->model->token_axes, member,
                           &m->model->arena, slice, err);
}

static void take_training(opi_variant_slice *slice) {
  const opi_training *t = slice->training;
  slice->graph = t->graph;
  slice->stage = t->stage;
  slice->states = t->states;
  slice->n_states = t->n_states;
  slice->scalars = t->scalars;
}

/* Assigns stages to a bound graph's nodes. */
static opipe_status assign(const making *m, const opi_bound *bound, const uint32_t **out_stages,
                           opipe_error *err) {
  const opi_decision *plan = m->plan;
  const opi_graph *g = bound->graph;
  *out_stages = plan->stage_of_node;
  if (bound == m->from->bound)
    return OPIPE_OK;
  uint32_t *stages = OPI_ARENA_ARRAY(&m->model->arena, uint32_t, g->n_nodes);
  if (stages == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof *stages, "a cut");
  *out_stages = stages;
  OPI_TRY(opi_plan_assign(plan, g, plan->allocator, stages, err));
  return opi_states_hold(plan, g, stages, err);
}

/* Makes the graph of all passes of a slice or of a member, whose stages are known. */
static opipe_status differentiate(const making *m, const opi_bound *whole, const opi_bound *bound,
                                  const opi_train_member *member, opi_variant_slice *slice,
                                  opipe_error *err) {
  slice->graph = bound->graph;
  if (!opi_plan_trains(m->plan)) {
    opi_group_parts_to_slices(bound->graph);
    return finish_forward(m, whole, bound, member, slice, err);
  }
  OPI_TRY(opi_train_gradient(m->plan, m->file, bound, slice->stage, slice->tokens,
                             &m->model->token_axes, member, m->bind, &slice->training, err));
  opi_group_parts_to_slices(slice->training->graph);
  take_training(slice);
  return OPIPE_OK;
}

static opipe_status make_slice(const making *m, opi_variant *variant, uint32_t k,
                               opipe_error *err) {
  opi_variant_slice *slice = &variant->slices[k];
  slice->tokens = variant->tokens == NULL ? NULL : variant->tokens[k];
  const opi_bound *bound = slice->tokens == NULL ? variant->bound : slice->tokens->bound;
  slice->outputs = slice->tokens == NULL ? NULL : slice->tokens->outputs;
  slice->n_outputs = slice->tokens == NULL ? 0 : slice->tokens->n_outputs;
  OPI_TRY(assign(m, bound, &slice->stage, err));
  return differentiate(m, variant->bound, bound, NULL, slice, err);
}

/* The place of a value in a list; OPIPE_NONE: it is not there. */
static uint32_t index_of(const uint32_t *list, uint32_t n, uint32_t value) {
  uint32_t i = 0;
  while (i < n && list[i] != value)
    ++i;
  return i == n ? OPIPE_NONE : i;
}

/* The member's input or output in the place of a slice's. */
static uint32_t input_in(const opi_graph *own, const opi_graph *g, uint32_t value) {
  const uint32_t i = index_of(g->inputs, g->n_inputs, value);
  return i < own->n_inputs ? own->inputs[i] : OPIPE_NONE;
}
static uint32_t output_in(const opi_graph *own, const opi_graph *g, uint32_t value) {
  const uint32_t i = index_of(g->outputs, g->n_outputs, value);
  return i < own->n_outputs ? own->outputs[i] : OPIPE_NONE;
}

/* A token slice with a member's values: it has inputs and outputs in the slice's order. */
static opipe_status take_tokens(const making *m, const opi_token_slice *from,
                                const opi_shard_member *member, opi_variant_slice *slice,
                                opipe_error *err) {
  opi_arena *arena = &m->model->arena;
  const opi_graph *g = from->bound->graph, *own = member->bound->graph;
  opi_token_slice *tokens = OPI_ARENA_NEW(arena, opi_token_slice);
  if (tokens == NULL)
    return opi_fail_nomem(err, sizeof *tokens, "a slice's graph");
  *tokens = *from;
  tokens->bound = member->bound;
  tokens->states = opi_arena_copy(arena, from->states, from->n_states * sizeof *from->states);
  tokens->outputs = opi_arena_copy(arena, from->outputs, from->n_outputs * sizeof *from->outputs);
  if (tokens->states == NULL || tokens->outputs == NULL)
    return opi_fail_nomem(err, from->n_states * sizeof *from->states, "a slice's graph");
  for (uint32_t i = 0; i < from->n_states; ++i) {
    opi_token_state *state = &tokens->states[i];
    state->past = input_in(own, g, state->past);
    state->present = output_in(own, g, state->present);
  }
  for (uint32_t o = 0; o < from->n_outputs; ++o)
    tokens->outputs[o].value = output_in(own, g, tokens->outputs[o].value);
  slice->tokens = tokens;
  slice->outputs = tokens->outputs;
  slice->n_outputs = tokens->n_outputs;
  return OPIPE_OK;
}

/* Values kept by recomputation: of each slice, alike for all members and rows. */
static opipe_status make_blocks(opi_cut_model *model, opipe_error *err) {
  if (model->blocks != NULL)
    return OPIPE_OK;
  model->blocks = OPI_ARENA_ARRAY(&model->arena, opi_kept_blocks, model->n_slices);
  if (model->blocks == NULL)
    return opi_fail_nomem(err, model->n_slices * sizeof *model->blocks, "recomputation");
  for (uint32_t k = 0; k < model->n_slices; ++k)
    model->blocks[k].arena = &model->arena;
  return OPIPE_OK;
}

/* The graphs of all members for slice k, whose graph `bound` is divided. tokens NULL: it has whole
 * sequences. */
static opipe_status make_members(const making *m, uint32_t k, const opi_bound *bound,
                                 const opi_token_slice *tokens, opi_variant *variant,
                                 opipe_error *err) {
  opi_cut_model *model = m->model;
  const uint32_t *stages = NULL, first = k * model->n_members;
  const int64_t *parts = NULL;
  OPI_TRY(assign(m, bound, &stages, err));
  OPI_TRY(make_blocks(model, err));
  const uint32_t target = tokens != NULL ? tokens->outputs[0].value : OPIPE_NONE;
  OPI_TRY(opi_members_divide(m->plan, m->file, m->bind, bound, stages, target, k, variant, model,
                             &parts, err));
  for (uint32_t i = 0; i < model->n_members; ++i) {
    opi_variant_slice *slice = &variant->slices[first + i];
    const opi_shard_member *of = &variant->shards[k]->members[i];
    const opi_divided_classes classes = {parts, model->n_members, i};
    const opi_train_member member = {
        .whole = bound,
        .of = of,
        .classes = parts == NULL ? NULL : &classes,
        .apart = m->apart,
        .choices = variant->choices[1] == NULL ? NULL : &variant->choices[1][first + i],
        .blocks = &model->blocks[k]};
    if (tokens != NULL)
      OPI_TRY(take_tokens(m, tokens, of, slice, err));
    OPI_TRY(differentiate(m, tokens == NULL ? of->bound : variant->bound, of->bound, &member, slice,
                          err));
    OPI_TRY(opi_members_ports(bound, of, slice, &model->arena, err));
  }
  return OPIPE_OK;
}

static opipe_status name_tokens(const opi_cut_model *model, uint32_t graph, opipe_status status,
                                opipe_error *err) {
  const opi_variant_slice *slice = &model->variants[model->base].slices[graph];
  return status >= 0 || model->n_slices == 1
             ? status
             : opi_error_prefix(err, "tokens %lld to %lld: ", (long long)slice->first,
                                (long long)(slice->first + slice->length - 1));
}

/* The variant's whole graph. */
static opipe_status bind_whole(const making *m, bool first, opi_variant *variant,
                               opipe_error *err) {
  const int64_t bound_rows = /* of from->bound */
      opi_microbatch_rows(m->plan->binding.batch_rows, m->plan->n_microbatches, 0);
  const bool other = m->plan->shares != NULL && variant->rows != bound_rows; /* all are pieces */
  variant->bound = first && !other && !opi_plan_trains(m->plan) ? m->from->bound : NULL;
  if (variant->bound == NULL) {
    const bool none =
        m->plan->binding.batch_dim != NULL && m->plan->binding.batch_rows == 0; /* as given */
    OPI_TRY(opi_plan_bind_by(m->from->bind, m->plan, m->file, m->bind, none ? 0 : variant->rows,
                             &variant->own, err));
    variant->bound = variant->own;
  }
  return OPIPE_OK;
}

static const opi_token_slice *tokens_of(const opi_variant *variant, uint32_t slice) {
  return variant->tokens == NULL ? NULL : variant->tokens[slice];
}

/* If other numbers of rows are divided anew, what the base has without effect is noted. */
static opipe_status record_choices(const making *m, opi_variant *base, opipe_error *err) {
  opi_arena *arena = &m->model->arena;
  const uint32_t n = opi_model_graphs(m->model);
  for (uint32_t i = 0; divides_anew(m) && i < OPI_COUNT(base->choices); ++i) {
    base->choices[i] = OPI_ARENA_ARRAY(arena, opi_choices, n);
    if (base->choices[i] == NULL)
      return opi_fail_nomem(err, n * sizeof(opi_choices), "graphs");
    for (uint32_t k = 0; k < n; ++k)
      base->choices[i][k].arena = arena;
  }
  return OPIPE_OK;
}

static opipe_status repeat_choices(const making *m, const opi_variant *base, opi_variant *variant,
                                   opipe_error *err) {
  const uint32_t n = opi_model_graphs(m->model);
  for (uint32_t i = 0; i < OPI_COUNT(base->choices); ++i) {
    variant->choices[i] =
        opi_arena_copy(&m->model->arena, base->choices[i], n * sizeof(opi_choices));
    if (variant->choices[i] == NULL)
      return opi_fail_nomem(err, n * sizeof(opi_choices), "graphs");
    for (uint32_t k = 0; k < n; ++k)
      variant->choices[i][k].repeats = true;
  }
  return OPIPE_OK;
}

static opipe_status cut_tokens(const making *m, opi_variant *variant, opipe_error *err) {
  opi_cut_model *model = m->model;
  if (model->n_slices == 1)
    return OPIPE_OK;
  variant->tokens = OPI_ARENA_ARRAY(&model->arena, opi_token_slice *, model->n_slices);
  return variant->tokens == NULL
             ? opi_fail_nomem(err, model->n_slices * sizeof *variant->tokens, "slices")
             : opi_slices_cut(m->plan, m->file, m->bind, variant, model, err);
}

static opipe_status bind_variant(const making *m, bool first, opi_variant *variant,
                                 opipe_error *err) {
  opi_cut_model *model = m->model;
  OPI_TRY(make_slices(m, variant, err));
  OPI_TRY(bind_whole(m, first, variant, err));
  if (first) {
    OPI_TRY(record_choices(m, variant, err));
    OPI_TRY(
        opi_token_axes_find(m->plan, m->file, m->bind, variant->rows, variant->bound, model, err));
  }
  OPI_TRY(cut_tokens(m, variant, err));
  for (uint32_t k = 0; k < model->n_slices; ++k) {
    const uint32_t graph = k * model->n_members;
    OPI_TRY(name_tokens(model, graph,
                        model->n_members > 1 ? make_members(m, k, opi_variant_bound(variant, k),
                                                            tokens_of(variant, k), variant, err)
                                             : make_slice(m, variant, k, err),
                        err));
  }
  return OPIPE_OK;
}

/* ---- derived from two others ---- */

static opipe_status resize_slice(const making *m, const opi_variant_slice *base,
                                 const opi_variant_slice *probe, const opi_row_change *change,
                                 opi_variant_slice *slice, opipe_error *err) {
  opi_graph *graph = NULL;
  *slice = *base;
  slice->tokens = NULL;
  slice->training = NULL;
  slice->cut = NULL;
  if (base->training == NULL) {
    OPI_TRY(opi_graph_with_rows(base->graph, probe->graph, change, &m->model->arena, &graph, err));
    slice->graph = graph;
    return OPIPE_OK;
  }
  OPI_TRY(opi_training_with_rows(base->training, probe->training, change, &slice->training, err));
  take_training(slice);
  return OPIPE_OK;
}

static opipe_status resize_variant(const making *m, const opi_variant *base,
                                   const opi_variant *probe, opi_variant *variant,
                                   opipe_error *err) {
  const opi_row_change change = {base->rows, probe->rows, variant->rows};
  OPI_TRY(make_slices(m, variant, err));
  for (uint32_t k = 0; k < opi_model_graphs(m->model); ++k) {
    OPI_TRY(name_tokens(
        m->model, k,
        resize_slice(m, &base->slices[k], &probe->slices[k], &change, &variant->slices[k], err),
        err));
  }
  return OPIPE_OK;
}

/* ---- members that have some of the rows ---- */

static bool same_uses(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b) {
  return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * sizeof *a) == 0);
}

/* Checks that a graph has the same nodes in two variants. */
static opipe_status compare(const opi_variant *base, const opi_variant *other, uint32_t k,
                            uint32_t n_members, opipe_error *err) {
  const opi_graph *a = base->slices[k].graph, *b = other->slices[k].graph;
  uint32_t n = 0;
  while (n < a->n_nodes && n < b->n_nodes && strcmp(a->nodes[n].op, b->nodes[n].op) == 0 &&
         same_uses(a->nodes[n].in, a->nodes[n].n_in, b->nodes[n].in, b->nodes[n].n_in) &&
         same_uses(a->nodes[n].out, a->nodes[n].n_out, b->nodes[n].out, b->nodes[n].n_out))
    ++n;
  if (n == a->n_nodes && n == b->n_nodes)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_UNSUPPORTED,
      "sequence=1: member %u of a tensor group has another graph with %lld row%s of the "
      "batch than with %lld, from '%.80s' on: micro-batches must have equally many rows",
      k % n_members, (long long)other->rows, other->rows == 1 ? "" : "s", (long long)base->rows,
      n < b->n_nodes ? b->nodes[n].name : "its end");
}

/* The graph of a slice, or the whole, for the variant's rows, derived from those of two. */
static opipe_status derive_whole(const making *m, const opi_bound *base, const opi_bound *probe,
                                 const opi_row_change *change, opi_bound **out_whole,
                                 opipe_error *err) {
  opi_arena *arena = &m->model->arena;
  opi_bound *whole = OPI_ARENA_NEW(arena, opi_bound);
  if (whole == NULL)
    return opi_fail_nomem(err, sizeof *whole, "graphs");
  *whole = *base; /* owned by the base */
  whole->dims = opi_arena_copy(arena, whole->dims, whole->n_dims * sizeof *whole->dims);
  if (whole->dims == NULL)
    return opi_fail_nomem(err, whole->n_dims * sizeof *whole->dims, "graphs");
  for (uint32_t d = 0; d < whole->n_dims && d < probe->n_dims; ++d)
    (void)opi_rows_int(change, base->dims[d].value, probe->dims[d].value, &whole->dims[d].value);
  *out_whole = whole;
  return opi_graph_with_rows(base->graph, probe->graph, change, arena, &whole->graph, err);
}

/* Divides the whole graph for the variant's rows. */
static opipe_status divide_variant(const making *m, const opi_variant *base,
                                   const opi_variant *probe, opi_variant *variant,
                                   opipe_error *err) {
  const opi_row_change change = {base->rows, probe->rows, variant->rows};
  opi_cut_model *model = m->model;
  opi_bound *whole = NULL;
  OPI_TRY(derive_whole(m, base->bound, probe->bound, &change, &whole, err));
  variant->bound = whole;
  OPI_TRY(make_slices(m, variant, err));
  OPI_TRY(repeat_choices(m, base, variant, err));
  for (uint32_t k = 0; k < model->n_slices; ++k) {
    opi_token_slice *tokens = NULL;
    if (base->tokens != NULL) {
      tokens = opi_arena_copy(&model->arena, base->tokens[k], sizeof *tokens);
      if (tokens == NULL)
        return opi_fail_nomem(err, sizeof *tokens, "graphs");
      OPI_TRY(derive_whole(m, opi_variant_bound(base, k), opi_variant_bound(probe, k), &change,
                           &whole, err));
      tokens->bound = whole; /* the same values */
    }
    for (uint32_t i = k * model->n_members; i < (k + 1) * model->n_members; ++i) {
      variant->slices[i].first = base->slices[i].first;
      variant->slices[i].length = base->slices[i].length;
    }
    OPI_TRY(make_members(m, k, whole, tokens, variant, err));
  }
  for (uint32_t k = 0; k < opi_model_graphs(model); ++k)
    OPI_TRY(compare(base, variant, k, model->n_members, err));
  return OPIPE_OK;
}

static opipe_status resize_others(const making *m, int64_t probe_rows, opipe_error *err) {
  opi_cut_model *model = m->model;
  opi_variant probe = {.rows = probe_rows};
  const bool divides = divides_anew(m);
  opipe_status status =
      divides ? bind_whole(m, false, &probe, err) : bind_variant(m, false, &probe, err);
  if (status == OPIPE_OK && divides) {
    status = make_slices(m, &probe, err);
    status = status == OPIPE_OK ? cut_tokens(m, &probe, err) : status;
  }
  if (status < 0)
    (void)opi_error_prefix(err, "bound with %lld rows: ", (long long)probe_rows);
  for (uint32_t v = 0; v < model->n_variants && status >= 0; ++v) {
    const opi_variant *base = &model->variants[model->base];
    if (v == model->base)
      continue;
    status = divides ? divide_variant(m, base, &probe, &model->variants[v], err)
                     : resize_variant(m, base, &probe, &model->variants[v], err);
  }
  empty(model, &probe);
  return status;
}

static int64_t prime_above(int64_t n) {
  bool prime = false;
  while (!prime) {
    prime = true;
    ++n;
    for (int64_t d = 2; prime && d * d <= n; ++d)
      prime = n % d != 0;
  }
  return n;
}

static opipe_status make_all(const making *m, opipe_error *err) {
  opi_cut_model *model = m->model;
  for (uint32_t v = 0; v < model->n_variants; ++v) {
    if (model->variants[v].rows > model->variants[model->base].rows)
      model->base = v;
  }
  const int64_t most = model->variants[model->base].rows;
  OPI_TRY(bind_variant(m, true, &model->variants[model->base], err));
  if (model->n_variants == 1)
    return OPIPE_OK;
  opipe_status status = resize_others(m, most + 1, err);
  if (status != OPIPE_E_UNSUPPORTED)
    return status;
  opi_variants_free(model);
  model->token_axes = (opi_token_axes){.n = 0}; /* its names were the old base's */
  const int64_t prime = prime_above(most + 1);
  opi_cut_sources from = *m->from;
  const making again = {&from, m->plan, m->file, m->bind, m->used, model, m->apart};
  from.bound = NULL; /* it has other rows */
  OPI_TRY(opi_variant_note(model, prime, &model->base, err));
  OPI_TRY(bind_variant(&again, true, &model->variants[model->base], err));
  return resize_others(&again, prime_above(prime), err);
}

/* ---- cuts ---- */

static opipe_status cut_all(const making *m, const uint32_t *used, const uint32_t *const *rows,
                            opipe_error *err) {
  opi_cut_model *model = m->model;
  const opi_variant *base = &model->variants[model->base];
  const opi_cut *master = model->table == NULL ? model->master : model->table;
  for (uint32_t i = 0; i < model->n_variants; ++i) {
    /* the base first: it has the parameter table */
    const uint32_t v = i == 0 ? model->base : i <= model->base ? i - 1 : i;
    for (uint32_t k = 0; k < opi_model_graphs(model); ++k) {
      opi_variant_slice *slice = &model->variants[v].slices[k];
      const opi_cut_source source = {.graph = slice->graph,
                                     .training = slice->training,
                                     .stage = slice->stage,
                                     .states = slice->states,
                                     .n_states = slice->n_states,
                                     .scalars = slice->scalars,
                                     .used = used,
                                     .n_stages = m->plan->n_stages * model->n_places,
                                     .n_places = model->n_places > 1 ? model->n_places : 0,
                                     .master = master,
                                     .rows = rows == NULL ? NULL : rows[k]};
      OPI_TRY(
          name_tokens(model, k, opi_cut_build(&source, m->plan->allocator, &slice->cut, err), err));
      if (master == NULL)
        master = base->slices[0].cut;
    }
  }
  return OPIPE_OK;
}

/* The programs of a place: its stage's, but for whole backwards that run apart. */
static uint32_t used_at(const making *m, uint32_t place) {
  const uint32_t of = m->used[place / m->model->n_places], whole = 1u << OPI_PROGRAM_B;
  const bool apart = m->model->splits[place] && (of & whole) != 0;
  return apart ? (of & ~whole) | 1u << OPI_PROGRAM_I | 1u << OPI_PROGRAM_W : of;
}

static opipe_status cut_members(const making *m, opipe_error *err) {
  opi_cut_model *model = m->model;
  const uint32_t n = m->plan->n_stages;
  const uint32_t **rows = NULL;
  uint32_t *used = NULL;
  OPI_TRY(opi_members_stretch(m->plan, model, err));
  OPI_TRY(opi_members_split(m->plan, model, err));
  OPI_TRY(opi_members_table(model, &rows, err));
  if (m->used != NULL) {
    used = OPI_ARENA_ARRAY(&model->arena, uint32_t, (size_t)n * model->n_places);
    if (used == NULL)
      return opi_fail_nomem(err, n * model->n_places * sizeof *used, "a cut");
    for (uint32_t i = 0; i < n * model->n_places; ++i)
      used[i] = used_at(m, i);
  }
  return cut_all(m, used, rows, err);
}

/* Stages whose W the schedule runs apart from I, if members have rows. */
static opipe_status find_apart(making *m, opipe_error *err) {
  const uint32_t n = m->plan->n_stages;
  if (m->used == NULL || !m->plan->division.sequence || m->model->n_members == 1)
    return OPIPE_OK;
  bool *apart = OPI_ARENA_ARRAY(&m->model->arena, bool, n);
  if (apart == NULL)
    return opi_fail_nomem(err, n, "stages");
  for (uint32_t s = 0; s < n; ++s)
    apart[s] = (m->used[s] & 1u << OPI_PROGRAM_W) != 0;
  m->apart = apart;
  return OPIPE_OK;
}

opipe_status opi_variants_build(const opi_cut_sources *from, const uint32_t *used,
                                opi_cut_model *model, opipe_error *err) {
  making m = {from, from->plan, from->file, from->base, used, model, NULL};
  OPI_TRY(find_apart(&m, err));
  OPI_TRY(opi_members_scatter(from->plan, model, err));
  OPI_TRY(make_all(&m, err));
  return model->n_members > 1 ? cut_members(&m, err) : cut_all(&m, used, NULL, err);
}
