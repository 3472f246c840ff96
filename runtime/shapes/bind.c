/* SPDX-License-Identifier: Apache-2.0 */
/* From a signature to a bound graph, cut as the plan says, and how its outputs carry the batch.
 *
 * When the loader says that it needs the value of an input, that input's value becomes part of
 * every later signature and the binding is tried again with it pinned.
 */
#include <stdio.h>
#include <string.h>

#include "partition/cut/assign.h"
#include "partition/cut/batch.h"
#include "runtime/train/state.h"

/* The free dimensions of all inputs with their numbers; the batch has `rows`. */
static opipe_status name_dims(const opi_shape *shape, int64_t rows, opi_arena *scratch,
                              opi_bind_options *options, opipe_error *err) {
  const opi_session *s = shape->session;
  opi_dim_binding *dims = OPI_ARENA_ARRAY(scratch, opi_dim_binding, s->n_dims);
  uint32_t n = 0, at = 0;
  char buffer[256];
  if (dims == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof *dims, "dimensions");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_value *value = s->inputs[i].value;
    for (int32_t d = 0; d < value->rank; ++d, ++at) {
      if (value->shape[d] >= 0 || s->inputs[i].labels)
        continue;
      const char *key = opi_batch_dim_key(value, (uint32_t)d, buffer, sizeof buffer);
      const int64_t length = d == s->inputs[i].batch_axis ? rows : shape->dims[at];
      uint32_t k = 0;
      while (k < n && strcmp(dims[k].name, key) != 0)
        ++k;
      if (k < n && dims[k].value == length)
        continue;
      if (k < n) { /* one name for two lengths: the loader takes the second one by its place */
        (void)snprintf(buffer, sizeof buffer, "%s.%d", s->inputs[i].name, d);
        key = buffer;
      }
      /* An expression over the batch follows from the batch. */
      if ((s->train != NULL ? s->plan->batch_dim != NULL : s->plan->n_microbatches > 1) &&
          opi_depends_on_batch(s->plan->batch_dim, key))
        continue;
      dims[n] = (opi_dim_binding){.name = opi_arena_strdup(scratch, key), .value = length};
      if (dims[n++].name == NULL)
        return opi_fail_nomem(err, strlen(key), "dimensions");
    }
  }
  options->dims = dims;
  options->n_dims = n;
  return OPIPE_OK;
}

static opipe_status name_pins(const opi_shape *shape, opi_arena *scratch, opi_bind_options *options,
                              opipe_error *err) {
  const opi_session *s = shape->session;
  opi_pin *pins = OPI_ARENA_ARRAY(scratch, opi_pin, shape->n_pins);
  if (pins == NULL)
    return opi_fail_nomem(err, shape->n_pins * sizeof *pins, "pinned inputs");
  for (uint32_t p = 0; p < shape->n_pins; ++p) {
    const uint32_t input = shape->pins[p].input;
    uint32_t at = 0;
    for (uint32_t i = 0; i < input; ++i)
      at += (uint32_t)s->inputs[i].value->rank;
    pins[p] = (opi_pin){.input = s->inputs[input].name,
                        .data = shape->pins[p].data,
                        .shape = &shape->dims[at],
                        .rank = (uint32_t)s->inputs[input].value->rank,
                        .dtype = s->inputs[input].value->dtype};
  }
  options->pins = pins;
  options->n_pins = shape->n_pins;
  return OPIPE_OK;
}

opipe_status opi_shape_name(const opi_shape *shape, int64_t rows, opi_arena *arena,
                            opi_bind_options *out_options, opipe_error *err) {
  OPI_TRY(name_dims(shape, rows, arena, out_options, err));
  return name_pins(shape, arena, out_options, err);
}

/* The plan's own request: its dimensions and pins as they stand there. */
static opipe_status name_plan(const opi_shape *shape, int64_t rows, opi_arena *scratch,
                              opi_bind_options *options, opipe_error *err) {
  const opi_plan *plan = shape->session->plan;
  options->dims = plan->dims;
  options->n_dims = plan->n_dims;
  options->pins = plan->pins;
  options->n_pins = plan->n_pins;
  if (rows == 0 || plan->batch_dim == NULL)
    return OPIPE_OK;
  options->dims = opi_batch_bind(plan->dims, &options->n_dims, plan->batch_dim, rows, scratch);
  return options->dims == NULL
             ? opi_fail_nomem(err, plan->n_dims * sizeof(opi_dim_binding), "dimensions")
             : OPIPE_OK;
}

/* The graph of the signature, but with `rows` rows. */
static opipe_status bind_graph(const opi_shape *shape, int64_t rows, opi_arena *scratch,
                               opi_bound **out_bound, opipe_error *err) {
  const opi_session *s = shape->session;
  opi_bind_options options = {.barriers = s->plan->barriers,
                              .n_barriers = s->plan->n_barriers,
                              .flags = s->plan->bind_flags,
                              .dropout = s->plan->dropout,
                              .dropout_ratio = s->plan->dropout_ratio,
                              .evaluator = s->env.evaluator,
                              .allocator = s->allocator,
                              .logger = s->env.logger};
  if (shape->keep)
    OPI_TRY(name_plan(shape, rows, scratch, &options, err));
  else
    OPI_TRY(opi_shape_name(shape, rows, scratch, &options, err));
  return s->env.source.bind(s->env.model, &options, out_bound, err);
}

/* The plan's signature, read off its bound graph; pinned inputs are not in it. */
opipe_status opi_shape_sign_plan(opi_shape *shape, const opi_graph *g, opipe_error *err) {
  const opi_session *s = shape->session;
  uint32_t at = 0;
  shape->dims = OPI_ARENA_ARRAY(&shape->arena, int64_t, s->n_dims);
  shape->pins = OPI_ARENA_ARRAY(&shape->arena, opi_shape_pin, s->n_inputs);
  if (shape->dims == NULL || shape->pins == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof(int64_t), "a shape signature");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_pin *pin = s->inputs[i].pin;
    const int64_t *shape_of =
        pin == NULL || (int32_t)pin->rank != s->inputs[i].value->rank ? NULL : pin->shape;
    for (uint32_t p = 0; pin == NULL && p < g->n_inputs; ++p) {
      const opi_value *value = &g->values[g->inputs[p]];
      if (strcmp(value->name, s->inputs[i].name) == 0 && value->rank == s->inputs[i].value->rank)
        shape_of = value->shape;
    }
    if (shape_of == NULL && !s->inputs[i].labels) {
      return opi_fail(err, OPIPE_E_INTERNAL,
                      "input '%s' of rank %d is neither bound nor pinned by the plan",
                      s->inputs[i].name, s->inputs[i].value->rank);
    }
    if (s->inputs[i].value->rank > 0 && shape_of != NULL)
      memcpy(&shape->dims[at], shape_of, (size_t)s->inputs[i].value->rank * sizeof(int64_t));
    at += (uint32_t)s->inputs[i].value->rank;
    if (pin == NULL)
      continue;
    opi_shape_pin *own = &shape->pins[shape->n_pins++];
    own->input = i;
    if (!opi_tensor_bytes(pin->dtype, pin->shape, pin->rank, &own->n_bytes)) {
      return opi_fail(err, OPIPE_E_INVALID, "the plan's value of input '%s' has no size",
                      pin->input);
    }
    own->data = opi_arena_copy(&shape->arena, pin->data, (size_t)own->n_bytes);
    if (own->data == NULL)
      return opi_fail_nomem(err, own->n_bytes, "a pinned input");
  }
  return OPIPE_OK;
}

/* Every port of the bound graph by name, with the shape that the signature says. */
static opipe_status match_ports(opi_shape *shape, opipe_error *err) {
  const opi_session *s = shape->session;
  const opi_graph *g = shape->bound->graph;
  char found[128], wanted[128];
  shape->port_input = OPI_ARENA_ARRAY(&shape->arena, uint32_t, g->n_inputs);
  if (shape->port_input == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof(uint32_t), "inputs");
  if (g->n_outputs != s->n_outputs) {
    return opi_fail(err, OPIPE_E_INTERNAL, "a bound graph has %u outputs, the model %u",
                    g->n_outputs, s->n_outputs);
  }
  for (uint32_t p = 0; p < g->n_inputs; ++p) {
    const opi_value *value = &g->values[g->inputs[p]];
    uint32_t i = 0, at = 0;
    for (; i < s->n_inputs && strcmp(s->inputs[i].name, value->name) != 0; ++i)
      at += (uint32_t)s->inputs[i].value->rank;
    if (i == s->n_inputs || s->inputs[i].value->rank != value->rank) {
      return opi_fail(err, OPIPE_E_INTERNAL,
                      "a bound graph reads input '%s' of rank %d, which the model does not have",
                      value->name, value->rank);
    }
    if (value->rank > 0 &&
        memcmp(value->shape, &shape->dims[at], (size_t)value->rank * sizeof(int64_t)) != 0) {
      return opi_fail(
          err, OPIPE_E_INVALID, "input '%s' of a micro-batch has shape %s, the model makes it %s",
          value->name, opi_shape_text(found, sizeof found, &shape->dims[at], (uint32_t)value->rank),
          opi_shape_text(wanted, sizeof wanted, value->shape, (uint32_t)value->rank));
    }
    shape->port_input[p] = i;
  }
  return OPIPE_OK;
}

typedef struct rebinding {
  const opi_shape *shape;
  opi_arena *scratch;
} rebinding;

static opipe_status bind_rows(void *ctx, int64_t rows, opi_bound **out_bound, opipe_error *err) {
  const rebinding *r = ctx;
  return bind_graph(r->shape, rows, r->scratch, out_bound, err);
}

static opipe_status follow_batch(const opi_shape *shape, opi_arena *scratch, opi_carry *all,
                                 opipe_error *err) {
  const opi_session *s = shape->session;
  const opi_graph *g = shape->bound->graph;
  const opi_known_axis *known = shape->keep ? s->plan->batch : NULL;
  rebinding r = {shape, scratch};
  opi_carry *in = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_inputs);
  if (in == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof *in, "the batch axis");
  for (uint32_t p = 0; p < g->n_inputs; ++p)
    in[p] = (opi_carry){.axis = s->inputs[shape->port_input[p]].batch_axis, .outer = 1, .inner = 1};
  if (s->env.source.carry != NULL)
    return s->env.source.carry(g, in, all, err);
  if (known == NULL)
    OPI_TRY(opi_batch_learn(s->plan, s->env.model, g, bind_rows, &r, scratch, &known, err));
  return opi_carry_axis(g, known, in, all, err);
}

static opipe_status carry_batch(opi_shape *shape, opi_arena *scratch, opipe_error *err) {
  const opi_session *s = shape->session;
  const opi_graph *g = shape->bound->graph;
  shape->output_carry = OPI_ARENA_ARRAY(&shape->arena, opi_carry, s->n_outputs);
  if (shape->output_carry == NULL)
    return opi_fail_nomem(err, s->n_outputs * sizeof(opi_carry), "outputs");
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    shape->output_carry[o].axis = -1;
  if (s->plan->n_microbatches == 1)
    return OPIPE_OK;
  opi_carry *all = OPI_ARENA_ARRAY(scratch, opi_carry, g->n_values);
  if (all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  OPI_TRY(follow_batch(shape, scratch, all, err));
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_value *value = &g->values[g->outputs[o]];
    shape->output_carry[o] = all[g->outputs[o]];
    if (shape->output_carry[o].axis >= 0 && opi_dtype_bits(value->dtype) < 8) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "output '%s' of type %s cannot be put together from micro-batches",
                      value->name, opi_dtype_name(value->dtype));
    }
  }
  return OPIPE_OK;
}

static opipe_status cut_graph(opi_shape *shape, opi_arena *scratch, opipe_error *err) {
  const opi_session *s = shape->session;
  const opi_graph *g = shape->bound->graph;
  uint32_t *stages = OPI_ARENA_ARRAY(scratch, uint32_t, g->n_nodes);
  if (stages == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof *stages, "a cut");
  OPI_TRY(opi_plan_assign(s->plan, g, s->allocator, stages, err));
  const opi_cut_source source = {
      .graph = g, .stage = stages, .n_stages = s->plan->n_stages, .master = s->master};
  OPI_TRY(opi_cut_build(&source, s->allocator, &shape->cut, err));
  return opi_lower(s->plan, shape->cut, s->allocator, &shape->list, err);
}

opipe_status opi_shape_bind(opi_shape *shape, opipe_error *err) {
  opi_arena scratch;
  if (shape->session->train != NULL)
    return opi_train_shape_bind(shape, err);
  opi_arena_init(&scratch, shape->session->allocator, 0);
  opipe_status status = bind_graph(shape, shape->rows, &scratch, &shape->bound, err);
  if (status == OPIPE_OK && shape->keep)
    status = opi_shape_sign_plan(shape, shape->bound->graph, err);
  if (status == OPIPE_OK)
    status = match_ports(shape, err);
  if (status == OPIPE_OK)
    status = carry_batch(shape, &scratch, err);
  if (status == OPIPE_OK)
    status = cut_graph(shape, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}
