/* SPDX-License-Identifier: Apache-2.0 */
/* The graphs of a shape: how inputs and outputs carry the batch and the tokens, and where the
 * graphs get their inputs from. The plan's own shape comes first; it names a training session's
 * outputs and adds the labels.
 *
 * The plan of another shape is the session's with other dimensions: cut, schedule, trained names
 * and parameter table are the same, so that weights and optimizer state are shared. A request with
 * fewer rows than the plan has micro-batches (times the replicas of a stage, where these divide
 * rows), or with fewer tokens than slices, leaves micro-batches or slices out.
 */
#include <string.h>

#include "partition/program/batch.h"
#include "runtime/compiled/build.h"

/* ---- inputs and outputs ---- */

static uint32_t find_input(const opi_setup *s, const char *name) {
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (strcmp(s->inputs[i].name, name) == 0)
      return i;
  }
  return OPIPE_NONE;
}

/* Adds the labels, which the model's file does not have, to the session's inputs. */
static opipe_status add_labels(opi_setup *s, const opi_value *value, opipe_error *err) {
  opi_input *inputs = OPI_ARENA_ARRAY(&s->arena, opi_input, (size_t)s->n_inputs + 1);
  opi_value *own = OPI_ARENA_NEW(&s->arena, opi_value);
  int64_t *shape = OPI_ARENA_ARRAY(&s->arena, int64_t, (size_t)value->rank);
  if (inputs == NULL || own == NULL || shape == NULL)
    return opi_fail_nomem(err, sizeof *inputs, "inputs");
  memcpy(inputs, s->inputs, s->n_inputs * sizeof *inputs);
  *own = *value;
  own->shape = shape;
  own->name = opi_arena_strdup(&s->arena, value->name);
  if (own->name == NULL)
    return opi_fail_nomem(err, 0, "inputs");
  for (int32_t d = 0; d < value->rank; ++d)
    shape[d] = -1; /* checked against the mini-batch's shape later */
  inputs[s->n_inputs] =
      (opi_input){.name = own->name, .value = own, .batch_axis = -1, .labels = true};
  s->inputs = inputs;
  s->n_dims += (uint32_t)value->rank;
  ++s->n_inputs;
  return OPIPE_OK;
}

static opipe_status name_outputs(const opi_compiled *t, opipe_error *err) {
  opi_setup *s = t->setup;
  const opi_training *training = t->model->variants[0].slices[0].training;
  s->n_outputs = training->output == OPIPE_NONE ? 1 : 2;
  s->output_names = OPI_ARENA_ARRAY(&s->arena, const char *, s->n_outputs);
  s->output_dtypes = OPI_ARENA_ARRAY(&s->arena, uint32_t, s->n_outputs);
  if (s->output_names == NULL || s->output_dtypes == NULL)
    return opi_fail_nomem(err, s->n_outputs * sizeof(char *), "outputs");
  s->output_names[0] = "loss";
  s->output_dtypes[0] = OPIPE_FLOAT;
  if (s->n_outputs == 2) {
    const char *asked = s->plan->decided.train->loss.output;
    s->output_names[1] = asked != NULL ? asked : training->output_name;
    s->output_dtypes[1] = training->graph->values[training->output].dtype;
  }
  return OPIPE_OK;
}

opipe_status opi_batch_follow(opi_compiled *t, opi_carry *all, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_graph *g = t->model->variants[t->model->base].bound->graph;
  opi_carry *in = OPI_ARENA_ARRAY(&t->arena, opi_carry, g->n_inputs);
  if (in == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof *in, "the batch axis");
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const uint32_t i = find_input(s, g->values[g->inputs[p]].name);
    in[p] =
        (opi_carry){.axis = i == OPIPE_NONE ? -1 : s->inputs[i].batch_axis, .outer = 1, .inner = 1};
  }
  if (s->env.source.carry != NULL)
    return s->env.source.carry(g, in, all, err);
  opi_carry_part part;
  OPI_TRY(opi_batch_part(&t->given, g, &t->arena, &part, err));
  return opi_carry_through(g, &part, t->given.binding.batch, in, all, NULL, err);
}

static opipe_status carry_outputs(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  t->output_carry = OPI_ARENA_ARRAY(&t->arena, opi_carry, (size_t)s->n_outputs + 2);
  if (t->output_carry == NULL)
    return opi_fail_nomem(err, s->n_outputs * sizeof *t->output_carry, "outputs");
  for (uint32_t o = 0; o < s->n_outputs + 2; ++o)
    t->output_carry[o] = (opi_carry){.axis = -1, .outer = 1, .inner = 1};
  return s->shapes->kind->carry(t, err);
}

/* Labels are split like the output that they are compared with. */
static opipe_status place_labels(const opi_compiled *t, const opi_value *value, int32_t *io_axis,
                                 opipe_error *err) {
  if (*io_axis >= 0 || t->setup->plan->decided.binding.batch_dim == NULL)
    return OPIPE_OK;
  *io_axis = t->output_carry[1].axis;
  if (t->output_carry[1].axis >= value->rank || t->output_carry[1].outer != 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "labels '%s' of rank %d cannot be split like the output", value->name,
                    value->rank);
  }
  return OPIPE_OK;
}

static opipe_status match_ports(opi_compiled *t, const opi_variant_slice *slice, opi_ports *ports,
                                opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_training *training = slice->training;
  const opi_graph *g = slice->graph;
  ports->input = OPI_ARENA_ARRAY(&t->arena, uint32_t, g->n_inputs);
  ports->axis = OPI_ARENA_ARRAY(&t->arena, int32_t, g->n_inputs);
  ports->labels = OPIPE_NONE;
  if (ports->input == NULL || ports->axis == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof(uint32_t), "inputs");
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const opi_value *value = &g->values[g->inputs[p]];
    const bool labels = training != NULL && g->inputs[p] == training->labels;
    const uint32_t i = find_input(s, labels ? training->labels_name : value->name);
    ports->input[p] = i;
    ports->axis[p] = i == OPIPE_NONE ? -1 : s->inputs[i].batch_axis;
    if ((value->flags & OPI_VALUE_HELD) != 0)
      continue; /* no input of a request */
    if ((i == OPIPE_NONE || s->inputs[i].value->rank != value->rank) && t->model->n_slices == 1) {
      return opi_fail(err, OPIPE_E_INTERNAL,
                      "a graph reads input '%s' of rank %d, which the model does not have",
                      value->name, value->rank);
    }
    if (!labels)
      continue;
    ports->labels = p;
    OPI_TRY(place_labels(t, value, &ports->axis[p], err));
  }
  return OPIPE_OK;
}

/* ---- the plan ---- */

/* Copies the session's plan with the dimensions of the shape. */
static opipe_status give_plan(opi_compiled *t, const opi_bind_options *base, opipe_error *err) {
  const opi_setup *s = t->setup;
  const int64_t units = s->shapes->units_per_row;
  opi_decision *given = &t->given;
  opi_bind_options named = {.n_dims = 0};
  const uint32_t *slices = NULL;
  *given = s->plan->decided;
  if (t->shape->keep)
    return OPIPE_OK;
  OPI_TRY(opi_shape_name(t->shape, t->shape->rows, &t->arena, &named, err));
  given->binding.dims = opi_arena_copy(&t->arena, named.dims, named.n_dims * sizeof *named.dims);
  given->binding.pins = opi_arena_copy(&t->arena, named.pins, named.n_pins * sizeof *named.pins);
  if ((given->binding.dims == NULL && named.n_dims != 0) ||
      (given->binding.pins == NULL && named.n_pins != 0))
    return opi_fail_nomem(err, named.n_dims * sizeof *named.dims, "dimensions");
  given->binding.n_dims = named.n_dims;
  given->binding.n_pins = named.n_pins;
  if (given->binding.batch_dim != NULL && s->n_batch_inputs != 0)
    given->binding.batch_rows = t->shape->rows / units;
  OPI_TRY(opi_slices_scale(s->env.model, given, &t->arena, &slices, err));
  OPI_TRY(s->shapes->kind->fit(t, units, slices, err));
  if (!opi_plan_cuts_rows(given) || s->env.source.carry != NULL)
    return OPIPE_OK;
  return opi_batch_prove(given, s->env.model, base, NULL, &t->arena, err);
}

/* ---- the signature ---- */

/* The shape for the whole mini-batch, where `rows` rows have the shape of `value`. */
static void whole_shape(const opi_compiled *t, const opi_value *value, int64_t rows, int32_t axis,
                        int64_t *out) {
  for (int32_t d = 0; d < value->rank; ++d)
    out[d] = value->shape[d];
  if (axis >= 0)
    out[axis] = value->shape[axis] / rows * t->given.binding.batch_rows;
}

/* The shape that the graphs give to input `i`; false: no graph reads it. */
static bool made_shape(const opi_compiled *t, uint32_t i, int64_t *out) {
  const opi_setup *s = t->setup;
  const opi_variant *base = &t->model->variants[t->model->base];
  const opi_graph *g = base->bound->graph;
  const opi_ports *ports = &t->ports[0][0];
  if (s->inputs[i].labels) {
    const opi_training *training = t->model->variants[0].slices[0].training;
    whole_shape(t, &training->graph->values[training->labels], t->model->variants[0].rows,
                ports->axis[ports->labels], out);
    if (t->model->n_slices > 1)
      out[t->token_axis] = t->model->n_tokens;
    return true;
  }
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const opi_value *value = &g->values[g->inputs[p]];
    if (strcmp(value->name, s->inputs[i].name) != 0 || value->rank != s->inputs[i].value->rank)
      continue;
    whole_shape(t, value, base->rows, s->inputs[i].batch_axis, out);
    return true;
  }
  return false;
}

/* Writes the plan's signature, or checks that of a request or step. */
static opipe_status sign(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  opi_shape *shape = t->shape;
  char given[128], wanted[128];
  if (shape->keep)
    OPI_TRY(opi_shape_sign_plan(shape, t->model->variants[t->model->base].bound->graph, err));
  for (uint32_t i = 0, at = 0; i < s->n_inputs; at += (uint32_t)s->inputs[i++].value->rank) {
    const size_t n_bytes = (size_t)s->inputs[i].value->rank * sizeof(int64_t);
    int64_t made[OPIPE_MAX_RANK] = {0};
    if (!made_shape(t, i, made) || n_bytes == 0)
      continue;
    if (shape->keep)
      memcpy(&shape->dims[at], made, n_bytes);
    if (memcmp(&shape->dims[at], made, n_bytes) == 0)
      continue;
    return opi_fail(
        err, OPIPE_E_INVALID, "input '%s' of a %s has shape %s, beside the others it is %s",
        s->inputs[i].name, s->shapes->kind->what,
        opi_shape_text(given, sizeof given, &shape->dims[at], (uint32_t)s->inputs[i].value->rank),
        opi_shape_text(wanted, sizeof wanted, made, (uint32_t)s->inputs[i].value->rank));
  }
  return OPIPE_OK;
}

/* Finds how many entries of the batch axis make a sample. */
static void count_units(opi_compiled *t) {
  opi_setup *s = t->setup;
  s->shapes->units_per_row = 1;
  for (uint32_t i = 0, at = 0; i < s->n_inputs; at += (uint32_t)s->inputs[i++].value->rank) {
    const int32_t axis = s->inputs[i].batch_axis;
    if (axis < 0 || t->given.binding.batch_rows <= 0)
      continue;
    t->shape->rows = t->shape->dims[at + (uint32_t)axis];
    if (t->shape->rows >= t->given.binding.batch_rows)
      s->shapes->units_per_row = t->shape->rows / t->given.binding.batch_rows;
    return;
  }
}

/* ---- all of it ---- */

static opipe_status place_parts(opi_compiled *t, opipe_error *err) {
  const uint32_t n = t->given.n_microbatches;
  t->parts = OPI_ARENA_ARRAY(&t->arena, opi_microbatch, t->pieces->n_microbatches);
  if (t->parts == NULL)
    return opi_fail_nomem(err, t->pieces->n_microbatches * sizeof *t->parts, "micro-batches");
  for (uint32_t i = 0; i < t->pieces->n_microbatches; ++i) {
    const uint32_t m = i % n, n_large = m < t->n_large ? m : t->n_large;
    t->parts[i] =
        (opi_microbatch){.first_row = t->rows[0] * n_large + t->rows[1] * (int64_t)(m - n_large),
                         .class = m < t->n_large ? 0 : 1,
                         .in_request = m};
  }
  return OPIPE_OK;
}

static void count_rows(opi_compiled *t) {
  const opi_decision *plan = &t->given;
  const int64_t whole =
      plan->binding.batch_dim == NULL ? plan->n_microbatches : plan->binding.batch_rows;
  const uint32_t extra = (uint32_t)((uint64_t)whole % plan->n_microbatches);
  t->n_classes = t->model->n_classes;
  t->pieces = &t->model->piece_plan;
  t->strict = opi_plan_is_strict(t->pieces->whole);
  t->n_instances = t->pieces->n_stages * t->pieces->n_replicas;
  t->n_large = extra == 0 ? plan->n_microbatches : extra;
  t->rows[0] = opi_microbatch_rows(whole, plan->n_microbatches, 0);
  t->rows[1] = whole / plan->n_microbatches;
}

/* The plan's own shape completes the session's inputs and outputs. */
static opipe_status name_session(opi_compiled *t, opipe_error *err) {
  opi_setup *s = t->setup;
  const opi_variant_slice *first = &t->model->variants[0].slices[0];
  const opi_training *training = first->training;
  s->shapes->n_pieces = t->model->n_pieces;
  s->shapes->n_slices = t->model->n_slices;
  s->shapes->loss_stage = t->model->loss_stage;
  for (uint32_t o = 0; o < s->n_outputs && training == NULL; ++o)
    s->output_dtypes[o] = first->graph->values[first->graph->outputs[o]].dtype;
  if (training == NULL)
    return OPIPE_OK;
  if (training->labels != OPIPE_NONE) {
    if (find_input(s, training->labels_name) == OPIPE_NONE)
      OPI_TRY(add_labels(s, &training->graph->values[training->labels], err));
    s->shapes->labels_input = find_input(s, training->labels_name);
  }
  return name_outputs(t, err);
}

static opipe_status bind_ports(opi_compiled *t, opipe_error *err) {
  t->ports = OPI_ARENA_ARRAY(&t->arena, opi_ports *, t->model->n_variants);
  if (t->ports == NULL)
    return opi_fail_nomem(err, t->model->n_variants * sizeof *t->ports, "inputs");
  const uint32_t n = t->model->n_slices * t->model->n_members;
  for (uint32_t v = 0; v < t->model->n_variants; ++v) {
    t->ports[v] = OPI_ARENA_ARRAY(&t->arena, opi_ports, n);
    if (t->ports[v] == NULL)
      return opi_fail_nomem(err, n * sizeof(opi_ports), "inputs");
    for (uint32_t k = 0; k < n; ++k)
      OPI_TRY(match_ports(t, &t->model->variants[v].slices[k], &t->ports[v][k], err));
  }
  return OPIPE_OK;
}

opipe_status opi_compiled_graphs(opi_shape *shape, opipe_error *err) {
  opi_setup *s = shape->setup;
  opi_compiled *t = opi_alloc_zero(s->allocator, 1, sizeof *t);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "a training shape");
  shape->compiled = t;
  t->setup = s;
  t->shape = shape;
  opi_arena_init(&t->arena, s->allocator, 0);
  const opi_bind_options base = {
      .evaluator = s->env.evaluator, .allocator = s->allocator, .logger = s->env.logger};
  OPI_TRY(give_plan(t, &base, err));
  const opi_cut_sources from = {
      .plan = &t->given,
      .times = &s->plan->predicted.times,
      .n_positions = s->reference ? 1 : 0, /* one request after the other */
      .file = s->env.model,
      .base = &base,
      .master = s->shapes->master,
      .bind = s->env.source.bind};
  OPI_TRY(opi_cut_model_build(&from, &t->model, err));
  OPI_TRY(s->shapes->kind->complete(t, err));
  count_rows(t);
  OPI_TRY(place_parts(t, err));
  const opi_cut *first = t->model->variants[t->model->base].slices[0].cut;
  if (s->shapes->master == NULL)
    s->shapes->master = t->model->table != NULL ? t->model->table : first;
  if (shape->keep)
    OPI_TRY(name_session(t, err));
  OPI_TRY(carry_outputs(t, err));
  OPI_TRY(bind_ports(t, err));
  OPI_TRY(opi_parts_check(t, err));
  OPI_TRY(sign(t, err));
  if (shape->keep)
    count_units(t);
  return OPIPE_OK;
}
