/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of requests: any number of rows and tokens that the plan's records cover, parameters that
 * the rank's programs share, outputs as the model's file has them.
 */
#include "partition/program/batch.h"
#include "runtime/compiled/build.h"

/* ---- the plan ---- */

/* Keeps the records of micro-batches that have rows and of slices that have tokens (NULL: all). */
static opipe_status leave_out(opi_compiled *t, uint32_t n_microbatches, const uint32_t *slices,
                              opipe_error *err) {
  opi_decision *given = &t->given;
  const opi_decision *plan = &t->setup->plan->decided;
  uint32_t n = 0;
  opipe_action *actions = OPI_ARENA_ARRAY(&t->arena, opipe_action, plan->n_actions);
  uint32_t *rank_first = OPI_ARENA_ARRAY(&t->arena, uint32_t, (size_t)plan->n_ranks + 1);
  if (actions == NULL || rank_first == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof *actions, "a shorter request");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    rank_first[r] = n;
    for (uint32_t a = plan->rank_first[r]; a < plan->rank_first[r + 1]; ++a) {
      opipe_action action = plan->actions[a];
      if (action.microbatch >= n_microbatches ||
          (slices != NULL && slices[action.slice] == OPIPE_NONE))
        continue;
      if (slices != NULL)
        action.slice = (uint16_t)slices[action.slice];
      actions[n++] = action;
    }
  }
  rank_first[plan->n_ranks] = n;
  given->actions = actions;
  given->rank_first = rank_first;
  given->n_actions = n;
  given->n_microbatches = n_microbatches;
  return OPIPE_OK;
}

/* A request of few rows leaves micro-batches out, one of few tokens slices. */
static opipe_status fit(opi_compiled *t, int64_t units, const uint32_t *slices, opipe_error *err) {
  const opi_decision *given = &t->given;
  const int64_t most = given->binding.batch_rows / (given->shares == NULL ? 1 : given->n_replicas);
  (void)units;
  if (given->binding.batch_dim != NULL && most < given->n_microbatches)
    return leave_out(t, most < 1 ? 1 : (uint32_t)most, slices, err);
  return slices == NULL ? OPIPE_OK : leave_out(t, given->n_microbatches, slices, err);
}

static opipe_status complete(opi_compiled *t, opipe_error *err) {
  const opi_variant *base = &t->model->variants[t->model->base];
  OPI_TRY(opi_piece_plan_build(&t->given, t->model, err));
  if (base->bound->graph->n_outputs != t->setup->n_outputs) {
    return opi_fail(err, OPIPE_E_INTERNAL, "a bound graph has %u outputs, the model %u",
                    base->bound->graph->n_outputs, t->setup->n_outputs);
  }
  t->draws = base->slices[0].scalars != NULL;
  return OPIPE_OK;
}

static opipe_status carry(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_graph *g = t->model->variants[t->model->base].bound->graph;
  if (!opi_plan_cuts_rows(&t->given))
    return OPIPE_OK;
  opi_carry *all = OPI_ARENA_ARRAY(&t->arena, opi_carry, g->n_values);
  if (all == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  OPI_TRY(opi_batch_follow(t, all, err));
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_value *value = &g->values[g->outputs[o]];
    t->output_carry[o] = all[g->outputs[o]];
    if (t->output_carry[o].axis >= 0 && opi_dtype_bits(value->dtype) < 8) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "output '%s' of type %s cannot be put together from micro-batches",
                      value->name, opi_dtype_name(value->dtype));
    }
  }
  return OPIPE_OK;
}

static opipe_status take(opi_compiled *t, opipe_error *err) {
  OPI_TRY(opi_shape_params(t->shape, err));
  return opi_compiled_memory(t, err);
}

/* ---- results ---- */

static uint32_t makes(const opi_compiled *t, const opi_step *step, uint32_t output) {
  const opi_cut *cut = t->model->cuts[opi_class_at(t, step->microbatch)];
  const uint32_t cell = opi_output_cell_at(cut, output, step->stage);
  return cell != OPIPE_NONE && opi_result_takes(t, step->stage, step->microbatch, output)
             ? cell
             : OPIPE_NONE;
}

/* The first rank touches outputs that no program makes, and the inputs that they are copies of. */
static void tell_rest(opi_compiled *t) {
  bool *touched = t->touched;
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[0];
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    if (opi_output_is_made(cut, o))
      continue;
    touched[s->n_inputs + o] = true;
    if (cut->output_port[o] == OPIPE_NONE)
      continue;
    const uint32_t input = t->ports[0][0].input[cut->output_port[o]];
    touched[input] = true;
    opi_parcel_read_everywhere(t, input);
  }
}

const opi_shape_kind opi_request_shapes = {.what = "request",
                                           .fit = fit,
                                           .complete = complete,
                                           .carry = carry,
                                           .take = take,
                                           .bind = opi_unit_bind,
                                           .makes = makes,
                                           .tell_rest = tell_rest};
