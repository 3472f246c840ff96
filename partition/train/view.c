/* SPDX-License-Identifier: Apache-2.0 */
/* The plan in which every piece of a stage is a stage of its own.
 *
 *   token slices     piece k                                        of the replica that its
 * micro-batch passes halves           0: the forward, 1 ..: the backward of a part   of the replica
 * that its micro-batch passes unequal replicas replica i's pieces, as above                   of
 * replica i, the only one that they have
 */
#include <string.h>

#include "partition/train/model.h"

/* Pieces of one replica's part of a micro-batch. */
static uint32_t pieces_each(const opi_plan *plan) {
  return plan->n_parts > 1 ? plan->n_parts + 1 : 1;
}

static double *spread(const opi_plan *plan, opi_train_model *model, const double *ns, bool parts) {
  const uint32_t n = plan->n_stages * model->n_views;
  double *out = ns == NULL ? NULL : OPI_ARENA_ARRAY(&model->arena, double, n);
  for (uint32_t v = 0; out != NULL && v < n; ++v) {
    const uint32_t s = v / model->n_views;
    out[v] = ns[s] / model->n_slices / (plan->shares == NULL ? 1 : plan->shares[s]) /
             (parts && plan->n_parts > 1 ? plan->n_parts : 1);
  }
  return out;
}

/* Where a record stands in the view. */
static opipe_status place_action(const opi_plan *plan, const opi_train_model *model, uint32_t a,
                                 opipe_action *action, opipe_error *err) {
  const uint32_t n_parts = plan->n_parts > 1 ? plan->n_parts : 1;
  const bool forward = action->pass == OPIPE_PASS_FORWARD;
  const uint32_t n_replicas = plan->shares == NULL || action->stage >= plan->n_stages
                                  ? plan->n_replicas
                                  : plan->shares[action->stage];
  if (action->stage >= plan->n_stages || action->slice >= model->n_slices ||
      action->part >= (forward ? 1 : n_parts) || action->replica >= n_replicas) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s', action %u: stage %u of %u, slice %u of %u, part %u of %u, "
                    "replica %u of %u",
                    plan->schedule, a, action->stage, plan->n_stages, action->slice,
                    model->n_slices, action->part, forward ? 1 : n_parts, action->replica,
                    n_replicas);
  }
  const uint32_t sub = n_parts == 1 || forward ? 0 : 1u + action->part;
  const uint32_t share = plan->shares == NULL ? 0 : action->replica;
  action->stage = action->stage * model->n_views + action->slice + share * pieces_each(plan) + sub;
  action->slice = 0;
  action->part = 0;
  if (plan->shares != NULL)
    action->replica = 0;
  return OPIPE_OK;
}

static opipe_status place_actions(const opi_plan *plan, opi_train_model *model, opipe_error *err) {
  if (plan->actions == NULL)
    return OPIPE_OK;
  opipe_action *actions =
      opi_arena_copy(&model->arena, plan->actions, plan->n_actions * sizeof *plan->actions);
  if (actions == NULL)
    return opi_fail_nomem(err, plan->n_actions * sizeof *plan->actions, "pieces");
  for (uint32_t a = 0; a < plan->n_actions; ++a)
    OPI_TRY(place_action(plan, model, a, &actions[a], err));
  model->view.actions = actions;
  return OPIPE_OK;
}

opipe_status opi_train_view(const opi_plan *plan, opi_train_model *model, opipe_error *err) {
  opi_plan *view = &model->view;
  *view = *plan;
  view->n_stages = plan->n_stages * model->n_views;
  view->n_replicas = plan->shares == NULL ? plan->n_replicas : 1;
  view->n_slices = view->n_parts = 1;
  view->shares = NULL;
  const uint32_t n = view->n_stages * view->n_replicas;
  view->instance_rank = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  model->whole_of = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  if (view->instance_rank == NULL || model->whole_of == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "pieces");
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t v = i / view->n_replicas, s = v / model->n_views;
    const uint32_t share = v % model->n_views / pieces_each(plan);
    const uint32_t replica = plan->shares == NULL ? i % view->n_replicas : share;
    const bool there = plan->shares == NULL || share < plan->shares[s];
    const uint32_t whole = s * plan->n_replicas + replica;
    model->whole_of[i] = there ? whole : OPIPE_NONE;
    view->instance_rank[i] = there ? plan->instance_rank[whole] : OPIPE_NONE;
  }
  if (model->n_views > 1) {
    view->stage_ns = spread(plan, model, plan->stage_ns, false);
    view->input_ns = spread(plan, model, plan->input_ns, true);
    view->weight_ns = spread(plan, model, plan->weight_ns, true);
  }
  return place_actions(plan, model, err);
}
