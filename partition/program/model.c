/* SPDX-License-Identifier: Apache-2.0 */
/* Binds, differentiates and cuts the row classes of a training plan. */
#include "partition/program/model.h"

#include <string.h>

#include "partition/program/batch.h"
#include "partition/program/offloads.h"
#include "partition/program/records.h"

enum { PIECES_MOST = 1 << 20 };

/* ---- values that must carry the batch ---- */

/* Whether it may be training's loss, or the value to which a loss is attached, if no output is
 * named. */
static bool may_be_target(const opi_decision *plan, const opi_value *value) {
  uint64_t n = 0;
  if (!opi_dtype_is_float(value->dtype))
    return false;
  if (plan->train->loss.kind != OPI_LOSS_OUTPUT)
    return value->rank >= 1;
  return value->rank <= 1 && opi_shape_elems(value->shape, (uint32_t)value->rank, &n) && n == 1;
}

uint32_t opi_train_target(const opi_decision *plan, const opi_graph *g) {
  const char *name = plan->train->loss.output;
  uint32_t n = 0, target = OPIPE_NONE;
  for (uint32_t v = 0; v < g->n_values && name != NULL; ++v) {
    if (strcmp(g->values[v].name, name) == 0) {
      target = v;
      n = 1;
    }
  }
  for (uint32_t o = 0; o < g->n_outputs && name == NULL; ++o) {
    if (!may_be_target(plan, &g->values[g->outputs[o]]))
      continue;
    target = g->outputs[o];
    ++n;
  }
  return n == 1 ? target : OPIPE_NONE;
}

/* Marks the value that training minimises if it is certain, else all outputs. */
static void mark_target(const opi_decision *plan, const opi_graph *g, bool *values) {
  const uint32_t target = opi_train_target(plan, g);
  for (uint32_t o = 0; o < g->n_outputs && target == OPIPE_NONE; ++o)
    values[g->outputs[o]] = true;
  if (target != OPIPE_NONE)
    values[target] = true;
}

opipe_status opi_batch_part(const opi_decision *plan, const opi_graph *g, opi_arena *arena,
                            opi_carry_part *out, opipe_error *err) {
  *out = (opi_carry_part){.nodes = NULL};
  if (!opi_plan_trains(plan))
    return OPIPE_OK;
  bool *values = OPI_ARENA_ARRAY(arena, bool, g->n_values);
  bool *nodes = OPI_ARENA_ARRAY(arena, bool, (size_t)g->n_nodes + 1);
  if (values == NULL || nodes == NULL)
    return opi_fail_nomem(err, g->n_values, "the nodes that a loss needs");
  mark_target(plan, g, values);
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    const opi_node *node = &g->nodes[n];
    for (uint32_t o = 0; o < node->n_out; ++o)
      nodes[n] = nodes[n] || (node->out[o] != OPIPE_NONE && values[node->out[o]]);
    for (uint32_t i = 0; nodes[n] && i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        values[node->in[i]] = true;
    }
  }
  *out = (opi_carry_part){.nodes = nodes, .sums = plan->train->loss.kind == OPI_LOSS_OUTPUT};
  return OPIPE_OK;
}

/* Follows the batch through the bound graph; *out_carry NULL: it is not split and does not run
 * through. */
static opipe_status carry_of(const opi_decision *plan, const opi_model *model,
                             const opi_bound *bound, opi_arena *scratch, opi_carry **out_carry,
                             opipe_error *err) {
  const opi_graph *g = bound->graph;
  const bool split = opi_plan_cuts_rows(plan);
  *out_carry = NULL;
  if (plan->binding.batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *in = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_inputs);
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  if (in == NULL || all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  opi_place_batch(plan, model, g, in);
  opi_carry_part part;
  OPI_TRY(opi_batch_part(plan, g, scratch, &part, err));
  for (uint32_t v = 0; v < g->n_values; ++v)
    all[v] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  const opipe_status status =
      opi_carry_through(g, &part, plan->binding.batch, in, all, NULL, split ? err : NULL);
  if (status == OPIPE_OK)
    *out_carry = all;
  return split ? status : OPIPE_OK;
}

/* Whether all devices pass on the statistics of their Attention. */
static bool devices_hand_on(const opi_decision *plan) {
  bool all = plan->n_ranks > 0;
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    all = all && (plan->devices[r].flags & OPIPE_DEVICE_HANDS_ON) != 0;
  return all;
}

/* Checks that shares of micro-batches add up to the loss. */
static opipe_status check_form(const opi_decision *plan, const opi_training *t, opipe_error *err) {
  if (!t->is_odd || !opi_plan_cuts_rows(plan))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "the loss '%s' is neither a mean nor a sum over the batch's rows%s%s%s: with %u "
                  "micro-batches it would be another loss; train with one, or attach a loss to an "
                  "output",
                  t->output_name, t->odd == NULL ? "" : ", by node '", t->odd == NULL ? "" : t->odd,
                  t->odd == NULL ? "" : "'", plan->n_microbatches);
}

/* The plan's choice, with the parts of what it names that a member has as parameters. */
static opipe_status choose_parts(const opi_train_choice *choice, const opi_shard_member *member,
                                 opi_arena *arena, opi_train_choice *out, opipe_error *err) {
  const opi_graph *g = member->bound->graph;
  const char **trained =
      OPI_ARENA_ARRAY(arena, const char *, (size_t)choice->n_trained + member->n_params + 1);
  opi_map *names = NULL;
  *out = *choice;
  if (trained == NULL)
    return opi_fail_nomem(err, choice->n_trained * sizeof *trained, "trained names");
  OPI_TRY(opi_map_create(arena->allocator, &names, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; status == OPIPE_OK && i < choice->n_trained; ++i) {
    trained[i] = choice->trained[i];
    status = opi_map_set(names, trained[i], i, err);
  }
  for (uint32_t i = 0; status == OPIPE_OK && i < member->n_params; ++i) {
    const opi_shard_part *part = &member->params[i];
    const char *own = g->values[part->value].name;
    uint32_t at = 0;
    if (strcmp(own, part->name) != 0 && opi_map_get(names, part->name, &at))
      trained[out->n_trained++] = own;
  }
  out->trained = trained;
  opi_map_free(names);
  return status;
}

opipe_status opi_train_gradient(const opi_decision *plan, const opi_model *model,
                                const opi_bound *bound, const uint32_t *stage_of_node,
                                const opi_token_slice *slice, const opi_token_axes *axes,
                                const opi_train_member *member, const opi_bind_options *base,
                                opi_training **out_training, opipe_error *err) {
  const opi_train_spec *spec = plan->train;
  opi_arena scratch;
  opi_carry *carry = NULL, *token_carry = NULL;
  opi_arena_init(&scratch, plan->allocator, 0);
  const bool rows = member != NULL && member->of->n_rows != 0;
  const opi_bound *followed = rows ? member->whole : bound;
  opipe_status status = carry_of(plan, model, followed, &scratch, &carry, err);
  if (status == OPIPE_OK)
    status = opi_token_carry_of(axes, followed->graph, &scratch, &token_carry, err);
  if (status == OPIPE_OK)
    status = opi_member_carry(member, &scratch, &carry, err);
  if (status == OPIPE_OK)
    status = opi_member_carry(member, &scratch, &token_carry, err);
  opi_train_choice choice = spec->choice;
  if (status == OPIPE_OK && member != NULL && choice.n_trained != 0)
    status = choose_parts(&spec->choice, member->of, &scratch, &choice, err);
  opi_loss loss = spec->loss;
  if (slice != NULL) /* the states are outputs too */
    loss.output = bound->graph->values[slice->outputs[0].value].name;
  const bool plain = loss.kind == OPI_LOSS_OUTPUT && loss.output == NULL;
  const opi_gradient_options options = {
      .loss = plain ? NULL : &loss,
      .globs = spec->globs,
      .n_globs = spec->n_globs,
      .choice = &choice,
      .stage_of_node = stage_of_node,
      .carry = carry,
      .token_carry = token_carry,
      .slice = slice,
      .classes = member == NULL ? NULL : member->classes,
      .apart = member == NULL ? NULL : member->apart,
      .choices = member == NULL ? NULL : member->choices,
      .blocks = member == NULL ? NULL : member->blocks,
      .recompute = spec->recompute,
      .compute = spec->compute == 0 ? (uint32_t)OPIPE_FLOAT : spec->compute,
      .hands_on = devices_hand_on(plan),
      .evaluator = base->evaluator,
      .allocator = plan->allocator,
      .logger = base->logger};
  if (status == OPIPE_OK)
    status = opi_gradient_build(bound, &options, out_training, err);
  opi_arena_release(&scratch);
  if (status == OPIPE_OK) {
    status = check_form(plan, *out_training, err);
    if (status < 0) {
      opi_training_free(*out_training);
      *out_training = NULL;
    }
  }
  return status;
}

typedef struct building {
  const opi_cut_sources *from;
  const opi_decision *plan;
  const opi_model *file;
  opi_cut_model *model;
} building;

/* ---- row classes ---- */

/* The axis of the labels, which no input of the file shows: the one that grows with the rows. */
static int32_t grown_axis(const opi_value *a, const opi_value *b) {
  for (int32_t d = 0; d < a->rank && d < b->rank; ++d) {
    if (a->shape[d] != b->shape[d])
      return d;
  }
  return -1;
}

/* Where an input of graph `k` that the file does not have holds the batch: labels, and the states
 * of other slices. */
static opi_carry carry_of_other(const opi_cut_model *model, uint32_t k, uint32_t input) {
  const opi_variant *variants = model->variants;
  const opi_graph *a = variants[0].slices[k].graph;
  const opi_graph *b = variants[model->n_variants - 1].slices[k].graph;
  const opi_value *value = &a->values[a->inputs[input]];
  opi_carry carry = {
      .axis = grown_axis(value, &b->values[b->inputs[input]]), .outer = 1, .inner = 1};
  if (carry.axis >= 0)
    carry.inner = value->shape[carry.axis] / variants[0].rows;
  return carry;
}

/* Follows the batch through graph k for the rows of the first variant. */
static opipe_status follow_batch(const building *b, uint32_t k, opi_arena *scratch,
                                 opi_piece_axes *out, opipe_error *err) {
  const int32_t other = -2;
  const opi_variant_slice *slice = &b->model->variants[0].slices[k];
  const opi_training *training = slice->training;
  const opi_graph *g = slice->graph;
  opi_carry *in = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_inputs);
  out->carry = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  out->mixed = OPI_ARENA_ARRAY(scratch, bool, g->n_values);
  if (in == NULL || out->carry == NULL || out->mixed == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *out->carry, "the batch axis");
  opi_batch_inputs(b->plan, b->file, g, other, in);
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    if (in[i].axis == other || (training != NULL && g->inputs[i] == training->labels))
      in[i] = carry_of_other(b->model, k, i);
  }
  return opi_carry_follow(g, b->plan->binding.batch, in, out->carry, out->mixed, err);
}

static opipe_status compose_classes(building *b, opipe_error *err) {
  opi_cut_model *model = b->model;
  opi_arena scratch;
  opi_piece_axes *axes = NULL;
  opipe_status status = OPIPE_OK;
  opi_arena_init(&scratch, b->plan->allocator, 0);
  if (opi_plan_cuts_microbatches(b->plan)) {
    axes = OPI_ARENA_ARRAY(&scratch, opi_piece_axes, opi_model_graphs(model));
    if (axes == NULL)
      status = opi_fail_nomem(err, opi_model_graphs(model) * sizeof *axes, "pieces");
  }
  for (uint32_t k = 0; axes != NULL && k < opi_model_graphs(model) && status == OPIPE_OK; ++k)
    status = follow_batch(b, k, &scratch, &axes[k], err);
  for (uint32_t c = 0; c < model->n_classes && status == OPIPE_OK; ++c)
    status = opi_pieces_compose(b->plan, c, axes, model, err);
  opi_arena_release(&scratch);
  return status;
}

static opipe_status build_all(building *b, uint32_t *used, opipe_error *err) {
  const opi_decision *plan = b->plan;
  const uint32_t m = plan->n_microbatches;
  const bool split = plan->binding.batch_dim != NULL;
  opi_cut_model *model = b->model;
  const int64_t rows[OPI_ROW_CLASSES] = {
      split ? opi_microbatch_rows(plan->binding.batch_rows, m, 0) : 0,
      plan->binding.batch_rows / m};
  uint32_t ignored = 0;
  if (!opi_plan_trains(plan)) {
    used = NULL;
  } else if (plan->actions != NULL) {
    opi_programs_used(plan, used);
  } else {
    for (uint32_t s = 0; s < plan->n_stages; ++s)
      used[s] = 1u << OPI_PROGRAM_F | 1u << OPI_PROGRAM_B;
  }
  model->n_classes = m == 1 || !split || plan->binding.batch_rows % m == 0 ? 1 : 2;
  for (uint32_t c = 0; c < model->n_classes; ++c)
    OPI_TRY(opi_pieces_place(plan, c, rows[c], model, err));
  if (opi_plan_cuts_microbatches(plan) && model->n_variants == 1)
    OPI_TRY(opi_variant_note(model, rows[0], &ignored, err)); /* two of them show which dimensions
                                                                 grow with the rows */
  OPI_TRY(opi_variants_build(b->from, used, model, err));
  for (uint32_t c = 0; model->n_places > 1 && c < model->n_classes; ++c)
    OPI_TRY(opi_pieces_place(plan, c, rows[c], model, err));
  return compose_classes(b, err);
}

static opipe_status count_pieces(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  const uint64_t n = opi_plan_pieces(plan) * opi_plan_width(plan);
  OPI_TRY(opi_tensor_check(plan, err));
  model->n_slices = opi_plan_slices(plan);
  if (n > PIECES_MOST || n * plan->n_stages > PIECES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u stages in %llu pieces each: at most %d of all",
                    plan->n_stages, (unsigned long long)n, PIECES_MOST);
  }
  if (opi_plan_cuts_microbatches(plan) && plan->binding.batch_dim == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "schedule '%s' cuts micro-batches along the batch: no input has a free "
                    "dimension 0 to split",
                    plan->schedule.name);
  }
  model->n_pieces = (uint32_t)n;
  model->n_members = opi_plan_width(plan);
  model->n_places = 1;
  return OPIPE_OK;
}

static uint32_t find_loss(const opi_cut_model *model) {
  const opi_cut *cut = model->cuts[0];
  uint32_t i = 0;
  while (i < cut->n_cells && (cut->cells[i].source != OPI_CELL_MADE || cut->cells[i].output != 0))
    ++i;
  return cut->training == NULL || i == cut->n_cells ? OPIPE_NONE
                                                    : cut->cells[i].stage / model->n_pieces;
}

opipe_status opi_cut_model_build(const opi_cut_sources *from, opi_cut_model **out_model,
                                 opipe_error *err) {
  const opi_decision *plan = from->plan;
  opi_cut_model *model = opi_alloc_zero(plan->allocator, 1, sizeof *model);
  uint32_t *used = opi_alloc_zero(plan->allocator, plan->n_stages, sizeof *used);
  opipe_status status = OPIPE_OK;
  if (model != NULL) {
    model->allocator = plan->allocator;
    model->master = from->master;
    model->times = from->times;
    model->n_positions = from->n_positions;
    opi_arena_init(&model->arena, plan->allocator, 0);
  }
  status = model == NULL || used == NULL ? opi_fail_nomem(err, sizeof *model, "a plan's graphs")
                                         : count_pieces(plan, model, err);
  if (status == OPIPE_OK && model->n_members == 1)
    status = opi_piece_plan_build(plan, model, err);
  if (status == OPIPE_OK) {
    building b = {.from = from, .plan = plan, .file = from->file, .model = model};
    status = build_all(&b, used, err);
  }
  if (status == OPIPE_OK && model->n_members > 1) /* the graphs tell the places */
    status = opi_piece_plan_build(plan, model, err);
  if (status == OPIPE_OK) {
    model->loss_stage = find_loss(model);
    status = opi_reductions_place(plan, model, err);
  }
  if (status == OPIPE_OK)
    status = opi_offload_split(plan, model, err);
  opi_free(plan->allocator, used, plan->n_stages * sizeof *used);
  if (status < 0) {
    opi_cut_model_free(model);
    return status;
  }
  *out_model = model;
  return OPIPE_OK;
}

opipe_status opi_stage_params(const opi_cut_model *model, uint32_t stage, opi_arena *arena,
                              uint32_t **out_params, uint32_t *out_n, opipe_error *err) {
  return opi_member_params(model, stage, OPIPE_NONE, arena, out_params, out_n, err);
}

opipe_status opi_member_params(const opi_cut_model *model, uint32_t stage, uint32_t member,
                               opi_arena *arena, uint32_t **out_params, uint32_t *out_n,
                               opipe_error *err) {
  const uint32_t n = model->cuts[0]->n_params, width = model->n_members;
  bool *reads = OPI_ARENA_ARRAY(arena, bool, n);
  uint32_t *list = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (reads == NULL || list == NULL)
    return opi_fail_nomem(err, n * sizeof *list, "parameters");
  for (uint32_t c = 0; c < model->n_classes; ++c) {
    const uint32_t n_kinds = model->cuts[c]->n_kinds;
    for (uint32_t p = 0; p < n_kinds * model->n_pieces; ++p) {
      const opi_program *program =
          opi_program_of(model->cuts[c], stage * model->n_pieces + p / n_kinds, p % n_kinds);
      const bool counts = member == OPIPE_NONE || p / n_kinds % width == member;
      for (uint32_t i = 0; counts && i < program->n_params; ++i)
        reads[program->params[i]] = true;
    }
  }
  *out_n = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (reads[i])
      list[(*out_n)++] = i;
  }
  *out_params = list;
  return OPIPE_OK;
}

void opi_cut_model_free(opi_cut_model *model) {
  if (model == NULL)
    return;
  for (uint32_t c = OPI_ROW_CLASSES; c-- > 0;) {
    if (model->n_pieces > 1)
      opi_cut_free(model->cuts[c]);
  }
  opi_variants_free(model);
  opi_cut_free(model->table);
  opi_arena_release(&model->arena);
  opi_free(model->allocator, model, sizeof *model);
}
