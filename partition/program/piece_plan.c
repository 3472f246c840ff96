/* SPDX-License-Identifier: Apache-2.0 */
/* The plan in which every piece of a stage is a stage of its own (opi_piece_place_of numbers them).
 *
 *   stretches          the pieces of the first, then those of the sums behind it, and so on
 *   unequal replicas   in each of these: the pieces of replica 0, then those of replica 1, and so
 * on token slices       in each of these: the pieces of slice 0, then those of slice 1 halves in
 * each of these: the forward, then the backwards of the parts tensor groups      in each of these:
 * one piece for every member
 *
 * If replicas share micro-batches, each is a piece of its own; else pieces belong to the replica
 * that their micro-batch passes. Every member of a tensor group is on a rank of its own. */
#include <string.h>

#include "partition/program/model.h"
#include "partition/schedule/compute_order.h"

/* How much of a stage's phase a piece of all members takes, by the work of the member that has
 * most; piece: member 0's. */
static double work_at(const opi_cut_model *model, uint32_t piece, uint32_t phase) {
  enum { FLOPS_OF_BYTE = 8 }; /* roughly what devices compute while they read one */
  const opi_cut *cut = model->cuts[0];
  double most = 0;
  for (uint32_t v = piece; v < piece + model->n_members; ++v) {
    double sum = 0;
    for (uint32_t p = 0; p < cut->n_kinds; ++p) {
      const opi_program *program = opi_program_of(cut, v, p);
      if (p != OPI_PROGRAM_E && (program->phases & 1u << phase) != 0)
        sum += program->flops + FLOPS_OF_BYTE * program->bytes;
    }
    most = sum > most ? sum : most;
  }
  return most;
}

/* The times of the pieces of a stage of tensor groups, the same for all members, which meet at
 * every sum: so all their modelled times agree. */
static double *spread_places(const opi_decision *plan, opi_cut_model *model, const double *ns,
                             uint32_t phase) {
  const uint32_t n = plan->n_stages * model->n_pieces, width = model->n_members;
  double *out = ns == NULL ? NULL : OPI_ARENA_ARRAY(&model->arena, double, n);
  for (uint32_t s = 0; out != NULL && s < plan->n_stages; ++s) {
    const uint32_t first = s * model->n_pieces, end = first + model->n_pieces;
    double sum = 0;
    for (uint32_t v = first; v < end; v += width)
      sum += work_at(model, v, phase);
    for (uint32_t v = first; v < end; v += width) {
      const double share = sum > 0 ? work_at(model, v, phase) / sum : v == first;
      for (uint32_t k = 0; k < width; ++k)
        out[v + k] = ns[s] * share;
    }
  }
  return out;
}

static double *spread(const opi_decision *plan, opi_cut_model *model, const double *ns,
                      bool parts) {
  const uint32_t n = plan->n_stages * model->n_pieces;
  double *out = ns == NULL ? NULL : OPI_ARENA_ARRAY(&model->arena, double, n);
  for (uint32_t v = 0; out != NULL && v < n; ++v) {
    const uint32_t s = v / model->n_pieces;
    out[v] = ns[s] / model->n_slices / (plan->shares == NULL ? 1 : plan->shares[s]) /
             (parts && plan->n_parts > 1 ? plan->n_parts : 1);
  }
  return out;
}

static opipe_status check_action(const opi_decision *plan, const opi_cut_model *model, uint32_t a,
                                 opipe_error *err) {
  const opipe_action *action = &plan->actions[a];
  const uint32_t n_parts = plan->n_parts > 1 ? plan->n_parts : 1;
  const bool forward = action->pass == OPIPE_PASS_FORWARD;
  const uint32_t n_replicas = plan->shares == NULL || action->stage >= plan->n_stages
                                  ? plan->n_replicas
                                  : plan->shares[action->stage];
  if (action->stage < plan->n_stages && action->slice < model->n_slices &&
      action->part < (forward ? 1 : n_parts) && action->replica < n_replicas)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "schedule '%s', action %u: stage %u of %u, slice %u of %u, part %u of %u, "
                  "replica %u of %u",
                  plan->schedule.name, a, action->stage, plan->n_stages, action->slice,
                  model->n_slices, action->part, forward ? 1 : n_parts, action->replica,
                  n_replicas);
}

void opi_action_place(const opi_decision *plan, const opi_cut_model *model, uint32_t place,
                      uint32_t member, opipe_action *io_action) {
  const bool forward = io_action->pass == OPIPE_PASS_FORWARD;
  const opi_piece_place at = {.share = plan->shares == NULL ? 0 : io_action->replica,
                              .slice = io_action->slice,
                              .part = plan->n_parts <= 1 || forward ? 0 : 1u + io_action->part,
                              .member = member,
                              .place = place};
  io_action->stage = io_action->stage * model->n_pieces + opi_piece_at_place(plan, at);
  io_action->slice = 0;
  io_action->part = 0;
  if (plan->shares != NULL)
    io_action->replica = 0;
}

enum { RECORDS_MOST = 1 << 19 }; /* in a body */

static uint32_t common_divisor(uint32_t a, uint32_t b) {
  while (b != 0) {
    const uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The fewest micro-batches of a request, or slices of them, that pass an instance with any. */
static uint32_t least_passes(const opi_decision *plan) {
  uint32_t least = plan->n_microbatches * opi_plan_slices(plan);
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas && plan->n_replicas > 1; ++i) {
    const uint32_t rank = plan->instance_rank[i];
    uint32_t n = 0;
    for (uint32_t a = rank == OPIPE_NONE ? 0 : plan->rank_first[rank];
         rank != OPIPE_NONE && a < plan->rank_first[rank + 1]; ++a) {
      n += plan->actions[a].stage == i / plan->n_replicas &&
           plan->actions[a].replica == i % plan->n_replicas;
    }
    least = n != 0 && n < least ? n : least;
  }
  return least;
}

/* Requests until the first copy of the pipeline takes one again. */
static uint32_t n_turns(const opi_decision *plan) {
  return plan->in_turn ? opi_plan_copies(plan) : 1;
}

/* Copies that take requests in turn have equal layouts, and the actions are the first copy's. */
static opipe_status check_turns(const opi_decision *plan, opipe_error *err) {
  const uint32_t n = n_turns(plan), n_ranks = plan->n_ranks / n, own = plan->n_replicas / n;
  bool alike = n_ranks * n == plan->n_ranks && own * n == plan->n_replicas &&
               plan->rank_first[n_ranks] == plan->n_actions;
  for (uint32_t i = 0; alike && i < plan->n_stages * plan->n_replicas; ++i) {
    const uint32_t s = i / plan->n_replicas, r = i % plan->n_replicas;
    alike = opi_plan_rank(plan, s, r) == opi_plan_rank(plan, s, r % own) + r / own * n_ranks;
  }
  if (alike)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%u copies of the pipeline take requests in turn (%u micro-batches each): every "
                  "copy must have its %u stages on as many of the %u ranks, in the same order, and "
                  "only the first its actions",
                  n, plan->n_microbatches, plan->n_stages, plan->n_ranks);
}

/* Requests of a stream that the lists hold: as many as return every tensor's slots to where they
 * began. One for a training step or a single request. */
static uint32_t count_positions(const opi_decision *plan, const opi_cut_model *model) {
  const opi_cut *cut = model->cuts[0];
  uint32_t distance = 1;
  if (model->n_positions != 0)
    return model->n_positions;
  if (!opi_plan_is_periodic(plan) || opi_plan_trains(plan) || plan->actions == NULL)
    return n_turns(plan);
  for (uint32_t r = 0; cut != NULL && r < cut->n_routes; ++r) {
    const opi_route *route = &cut->routes[r];
    const uint32_t apart = route->dst_stage / model->n_pieces - route->src_stage / model->n_pieces;
    distance = apart > distance ? apart : distance;
  }
  uint32_t slots = opi_forward_slots(plan, distance);
  while (slots % 2 == 0 && slots > plan->depth &&
         (uint64_t)slots * plan->n_actions / plan->n_microbatches > RECORDS_MOST / 4)
    slots /= 2;
  return slots / common_divisor(slots, least_passes(plan)) * n_turns(plan);
}

/* The records of one request at all places. */
static opipe_status count_records(const opi_decision *plan, const opi_cut_model *model,
                                  uint64_t *out_n, opipe_error *err) {
  uint64_t n = 0;
  for (uint32_t a = 0; a < plan->n_actions; ++a) {
    OPI_TRY(check_action(plan, model, a, err));
    n += model->n_members == 1 ? 1 : opi_member_records_count(plan, model, a);
  }
  *out_n = n * model->n_members;
  return OPIPE_OK;
}

/* Adds the records of a request to a rank's list. */
static void add_records(const opi_decision *plan, const opi_cut_model *model, uint32_t from,
                        uint32_t member, opi_piece_plan *out, uint32_t *io_at) {
  opipe_action *list = &out->actions[*io_at];
  uint32_t n = 0;
  for (uint32_t a = plan->rank_first[from]; a < plan->rank_first[from + 1];) {
    if (model->n_members > 1) {
      a += opi_member_records_add(plan, model, a, member, list, &n, out->last_of);
      continue;
    }
    list[n] = plan->actions[a];
    opi_action_place(plan, model, 0, 0, &list[n++]);
    ++a;
  }
  *io_at += n;
}

/* Places every rank's records, one request after the other. */
static opipe_status place_actions(const opi_decision *plan, opi_cut_model *model,
                                  opipe_error *err) {
  opi_piece_plan *out = &model->piece_plan;
  const uint32_t n = out->n_positions, turns = n_turns(plan), each = plan->n_ranks / turns;
  const uint32_t width = model->n_members;
  uint64_t n_each = 0;
  uint32_t at = 0;
  if (plan->actions == NULL || (!opi_plan_trains(plan) && model->cuts[0] == NULL))
    return OPIPE_OK; /* the received tensors decide the number of requests */
  if (turns > 1)
    OPI_TRY(check_turns(plan, err));
  OPI_TRY(count_records(plan, model, &n_each, err));
  if ((n > 1 || width > 1) && n_each * n > RECORDS_MOST) {
    return opi_fail(
        err, OPIPE_E_LIMIT,
        "depth %u: slots come round after %u requests of %llu records each; at most %d of "
        "all",
        plan->depth, n, (unsigned long long)n_each, RECORDS_MOST);
  }
  out->actions = OPI_ARENA_ARRAY(&model->arena, opipe_action, n_each * n);
  out->rank_first = OPI_ARENA_ARRAY(&model->arena, uint32_t, (size_t)plan->n_ranks + 1);
  if (width > 1)
    out->last_of = OPI_ARENA_ARRAY(&model->arena, uint32_t, plan->n_actions);
  if (out->actions == NULL || out->rank_first == NULL || (width > 1 && out->last_of == NULL))
    return opi_fail_nomem(err, n_each * n * sizeof *plan->actions, "pieces");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint32_t copy = r / each, member = r % width, from = r % each - member;
    out->rank_first[r] = at;
    for (uint32_t p = copy; p < n; p += turns) {
      const uint32_t first = at;
      add_records(plan, model, from, member, out, &at);
      for (uint32_t i = first; i < at; ++i) {
        opipe_action *action = &out->actions[i];
        action->rank = r;
        action->replica = (uint16_t)(action->replica + copy * (plan->n_replicas / turns));
        action->microbatch += p * plan->n_microbatches;
      }
    }
  }
  out->rank_first[plan->n_ranks] = at;
  out->n_actions = at;
  out->n_microbatches = plan->n_microbatches * n;
  return OPIPE_OK;
}

/* Takes over the plan's own arrays wherever pieces do not change them. */
static opi_piece_plan like_plan(const opi_decision *plan, const opi_cut_model *model) {
  return (opi_piece_plan){.whole = plan,
                          .n_ranks = plan->n_ranks,
                          .n_stages = plan->n_stages * model->n_pieces,
                          .n_replicas = plan->shares == NULL ? plan->n_replicas : 1,
                          .n_pieces = model->n_pieces,
                          .trains = opi_plan_trains(plan),
                          .apart = plan->shares != NULL,
                          .n_positions = count_positions(plan, model),
                          .n_microbatches = plan->n_microbatches,
                          .actions = plan->actions,
                          .n_actions = plan->n_actions,
                          .rank_first = plan->rank_first,
                          .reduce_after = model->piece_plan.reduce_after,
                          .times = model->times == NULL ? (opi_stage_times){NULL} : *model->times};
}

opipe_status opi_piece_plan_build(const opi_decision *plan, opi_cut_model *model,
                                  opipe_error *err) {
  opi_piece_plan *out = &model->piece_plan;
  *out = like_plan(plan, model);
  const uint32_t n = out->n_stages * out->n_replicas;
  out->instance_rank = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  out->whole_of = OPI_ARENA_ARRAY(&model->arena, uint32_t, n);
  if (out->instance_rank == NULL || out->whole_of == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "pieces");
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t v = i / out->n_replicas, s = v / model->n_pieces;
    const uint32_t share = opi_piece_place_of(plan, v % model->n_pieces).share;
    const uint32_t replica = plan->shares == NULL ? i % out->n_replicas : share;
    const bool there = plan->shares == NULL || share < plan->shares[s];
    const uint32_t whole = s * plan->n_replicas + replica;
    const uint32_t rank = there ? plan->instance_rank[whole] : OPIPE_NONE;
    out->whole_of[i] = there ? whole : OPIPE_NONE;
    out->instance_rank[i] = rank == OPIPE_NONE ? rank : rank + v % model->n_members;
  }
  const opi_stage_times of_stages = out->times;
  if (model->n_members > 1) {
    out->times.stage_ns = spread_places(plan, model, of_stages.stage_ns, OPI_PHASE_F);
    out->times.input_ns = spread_places(plan, model, of_stages.input_ns, OPI_PHASE_I);
    out->times.weight_ns = spread_places(plan, model, of_stages.weight_ns, OPI_PHASE_W);
  } else if (model->n_pieces > 1) {
    out->times.stage_ns = spread(plan, model, of_stages.stage_ns, false);
    out->times.input_ns = spread(plan, model, of_stages.input_ns, true);
    out->times.weight_ns = spread(plan, model, of_stages.weight_ns, true);
  }
  return place_actions(plan, model, err);
}
