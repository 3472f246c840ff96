/* SPDX-License-Identifier: Apache-2.0 */
/* From a lowered order to operations (order_ops.c, order_links.c, order_moves.c). A receive is a
 * post at its place in the list, and a wait in front of its reader. A collective of a pass blocks
 * at its place; a reduction starts at its place, and the step waits for it. */
#include <math.h>
#include <string.h>

#include "partition/study/simulate/order_build.h"

enum { BODIES = 8 };

/* ---- the play ---- */

/* Finds the ranks with a stage's gradients, each once; and every instance's own. */
static void find_homes(const opi_order_builder *b) {
  const opi_problem *p = b->problem;
  const uint32_t n = p->n_stages * p->n_replicas;
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t stage = k / p->n_replicas;
    b->group_lists[n + k] = p->instance_rank[k];
    if (p->instance_rank[k] != OPIPE_NONE && !opi_builder_is_twin(p, k))
      b->group_lists[stage * p->n_replicas + b->n_homes[stage]++] = p->instance_rank[k];
  }
}

/* Fills an array with OPIPE_NONE. */
static uint32_t *new_index(opi_arena *arena, uint64_t n) {
  uint32_t *index = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n + 1);
  if (index != NULL)
    memset(index, 0xff, ((size_t)n + 1) * sizeof *index);
  return index;
}

static opipe_status prepare(opi_order_builder *b, uint32_t n_steps) {
  const opi_problem *p = b->problem;
  opi_prover *v = &b->prover;
  const uint64_t n = (uint64_t)p->n_stages * p->n_replicas;
  OPI_TRY(opi_index_build(p, b->list, b->arena, &v->index, b->err));
  const uint64_t shares = v->index.n_shares;
  v->n_messages = (uint64_t)n_steps * p->n_edges * 2 * p->n_microbatches * p->n_slices *
                  p->n_parts * shares * shares;
  if (v->n_messages > OPI_ACTIONS_MOST) {
    return opi_fail(b->err, OPIPE_E_LIMIT, "a simulation of %llu messages; at most %d",
                    (unsigned long long)v->n_messages, OPI_ACTIONS_MOST);
  }
  b->links.message_at = new_index(b->arena, v->n_messages);
  b->links.stream_at =
      new_index(b->arena, (uint64_t)p->n_edges * 2 * p->n_slices * p->n_replicas * p->n_replicas);
  b->group_at = new_index(b->arena, n * GROUPS * p->n_slices);
  b->reduction = new_index(b->arena, (uint64_t)n_steps * p->n_stages * 2);
  b->group_lists = OPI_ARENA_ARRAY(b->arena, uint32_t, 2 * (size_t)n);
  b->n_homes = OPI_ARENA_ARRAY(b->arena, uint32_t, p->n_stages);
  b->reduces = OPI_ARENA_ARRAY(b->arena, bool, (size_t)(n_steps * n));
  b->recomputes = OPI_ARENA_ARRAY(b->arena, bool, p->n_stages);
  b->update = new_index(b->arena, p->n_stages);
  if (b->links.message_at == NULL || b->links.stream_at == NULL || b->group_at == NULL ||
      b->reduction == NULL || b->group_lists == NULL || b->n_homes == NULL || b->reduces == NULL ||
      b->recomputes == NULL || b->update == NULL)
    return opi_fail_nomem(b->err, v->n_messages * sizeof(uint32_t), "a simulation");
  if (opi_do_list_count(b->list, 1u << OPI_DO_OFFLOAD | 1u << OPI_DO_RELOAD) > 0) {
    b->moves.coming = new_index(b->arena, n_steps * v->index.n_units);
    if (b->moves.coming == NULL)
      return opi_fail_nomem(b->err, n_steps * v->index.n_units * 4, "a simulation");
  }
  find_homes(b);
  for (uint32_t i = 0; i < b->list->n_items; ++i) {
    if (b->list->items[i].kind == OPI_DO_R)
      b->recomputes[b->list->items[i].stage] = true;
    OPI_TRY(opi_builder_message(b, i));
  }
  return OPIPE_OK;
}

static opipe_status place_ranks(const opi_order_builder *b) {
  opi_play *play = b->play;
  const uint32_t n_copies = play->n_tensor * play->n_data, n = b->list->n_ranks;
  if (b->how->device != NULL) {
    play->device = b->how->device;
    return OPIPE_OK;
  }
  uint32_t *device = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)n * n_copies);
  if ((uint64_t)n * n_copies > b->how->cluster->n_devices) {
    return opi_fail(b->err, OPIPE_E_INVALID,
                    "%u ranks x %u tensor ranks x %u replicas, but the cluster has %u devices", n,
                    play->n_tensor, play->n_data, b->how->cluster->n_devices);
  }
  if (device == NULL)
    return opi_fail_nomem(b->err, (uint64_t)n * n_copies * sizeof *device, "a simulation");
  for (uint32_t rank = 0; rank < n; ++rank) {
    for (uint32_t copy = 0; copy < n_copies; ++copy) {
      const uint32_t tensor = copy % play->n_tensor, data = copy / play->n_tensor;
      const uint32_t outer = b->how->place == OPI_PLACE_TENSOR_DATA_PIPELINE
                                 ? rank * play->n_data + data
                                 : data * n + rank;
      device[rank * n_copies + copy] = outer * play->n_tensor + tensor;
    }
  }
  play->device = device;
  return OPIPE_OK;
}

static opipe_status build(opi_order_builder *b) {
  opi_play *play = b->play;
  uint32_t *first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)b->list->n_ranks + 1);
  if (first == NULL)
    return opi_fail_nomem(b->err, b->list->n_ranks * sizeof *first, "a simulation");
  OPI_TRY(place_ranks(b));
  for (uint32_t rank = 0; rank < b->list->n_ranks; ++rank) {
    first[rank] = b->n_ops;
    b->moves.n_leaving = b->moves.first_leaving = b->moves.n_computes = 0;
    memset(b->update, 0xff, b->problem->n_stages * sizeof *b->update);
    for (uint32_t i = b->list->rank_first[rank]; i < b->list->rank_first[rank + 1]; ++i)
      OPI_TRY(opi_builder_item(b, rank, i));
  }
  first[b->list->n_ranks] = b->n_ops;
  play->list_first = first;
  play->ops = b->ops;
  play->work = b->work;
  play->streams = b->links.streams;
  play->message_stream = b->links.message_stream;
  play->groups = b->groups;
  play->group_lists = b->group_lists;
  play->collective_group = b->collective_group;
  play->n_streams = b->links.n_streams;
  play->n_messages = b->links.n_messages;
  play->n_groups = b->n_groups;
  play->n_collectives = b->n_collectives;
  return OPIPE_OK;
}

/* ---- figures ---- */

/* Measures between the ends of mini-batches in the middle, as the order repeats. */
static double period_of(const opi_order_builder *b, const opi_played *r, double *ends,
                        uint32_t n_bodies) {
  const uint32_t n = r->n_classes;
  for (uint32_t i = 0; i < b->n_ops; ++i) {
    if (b->ops[i].kind != OPI_PLAY_COMPUTE)
      continue;
    double *end = &ends[opi_step_of(&b->prover, b->ops[i].item)];
    for (uint32_t k = 0; k < n; ++k)
      *end = r->end[(size_t)i * n + k] > *end ? r->end[(size_t)i * n + k] : *end;
  }
  const uint32_t half = n_bodies / 2;
  return half == 0 ? ends[0] : (ends[n_bodies - 1] - ends[half - 1]) / (n_bodies - half);
}

/* n_steps: mini-batches played. */
static void measure(const opi_order_builder *b, uint32_t n_steps, opi_order_played *out) {
  const opi_problem *p = b->problem;
  const opi_play *play = &out->play;
  const uint32_t n = out->result.n_classes, n_copies = play->n_tensor * play->n_data;
  double busy = 0, busiest = 0, peak = 0;
  for (uint32_t rank = 0; rank < play->n_lists * n; ++rank) {
    const double own = out->result.busy_ns[rank] / n_steps;
    busy += own * out->result.class_size[rank % n];
    busiest = own > busiest ? own : busiest;
  }
  out->n_ranks = play->n_lists * n_copies;
  for (uint32_t i = 0; i < out->n_ranks; ++i)
    peak += opi_cluster_flops(play->cluster, play->device[i], b->how->dtype, UINT64_MAX);
  for (uint32_t s = 0; s < p->n_stages; ++s)
    out->flops += b->how->stages[s].flops * p->n_microbatches * n_copies;
  for (uint32_t k = 0; k < p->n_stages * p->n_replicas; ++k) {
    if (p->instance_rank[k] != OPIPE_NONE && !opi_builder_is_twin(p, k))
      out->fixed_bytes[p->instance_rank[k]] += b->how->stages[k / p->n_replicas].fixed_bytes;
  }
  if (out->step_ns <= 0)
    return;
  out->bubble = 1 - busy / (out->n_ranks * out->step_ns);
  out->bubble_overhead = busiest > 0 ? (out->step_ns - busiest) / busiest : 0;
  out->flops /= out->step_ns * 1e-9;
  out->utilisation = peak > 0 ? out->flops / peak : 0;
}

/* ---- all of it ---- */

static bool is_number(double x) {
  return x >= 0 && x <= 1e18;
}

static opipe_status check_load(const opi_stage_load *l, uint32_t stage, opipe_error *err) {
  const double times[] = {l->forward_ns,  l->input_ns,     l->weight_ns,     l->recompute_ns,
                          l->step_ns,     l->send_bytes,   l->stash_bytes,   l->input_bytes,
                          l->fixed_bytes, l->tensor_bytes, l->gradient_bytes};
  for (size_t i = 0; i < OPI_COUNT(times); ++i) {
    if (!is_number(times[i])) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "stage %u: time or bytes %g (number %zu): 0 to 1e18 is needed", stage,
                      times[i], i);
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const opi_problem *p, const opi_order_play *how, opipe_error *err) {
  for (uint32_t s = 0; s < p->n_stages; ++s)
    OPI_TRY(check_load(&how->stages[s], s, err));
  for (uint32_t i = 0; how->instances != NULL && i < p->n_stages * p->n_replicas; ++i)
    OPI_TRY(check_load(&how->instances[i], i / p->n_replicas, err));
  if (how->place >= OPI_PLACES || how->collective >= OPI_COLLECTIVES) {
    return opi_fail(err, OPIPE_E_INVALID, "placement %u (of %d), collectives %u (of %d)",
                    how->place, OPI_PLACES, how->collective, OPI_COLLECTIVES);
  }
  return OPIPE_OK;
}

static opipe_status run(opi_order_builder *b, uint32_t n_steps, opi_order_played *out) {
  const uint32_t n_bodies = n_steps - 1;
  double *ends = OPI_ARENA_ARRAY(b->arena, double, (size_t)n_steps + 1);
  out->fixed_bytes = OPI_ARENA_ARRAY(b->arena, double, b->list->n_ranks);
  if (ends == NULL || out->fixed_bytes == NULL)
    return opi_fail_nomem(b->err, b->list->n_ranks * sizeof(double), "a simulation");
  OPI_TRY(prepare(b, n_steps));
  OPI_TRY(build(b));
  OPI_TRY(opi_play_run(&out->play, b->arena, &out->result, b->err));
  out->step_ns =
      b->unrolled == NULL ? out->result.makespan : period_of(b, &out->result, ends, n_bodies);
  measure(b, n_steps, out);
  return OPIPE_OK;
}

/* ---- groups ---- */

static opipe_status agree(const char *what, uint32_t of_order, uint32_t of_play, uint32_t *out,
                          opipe_error *err) {
  *out = of_order > 1 ? of_order : of_play > 1 ? of_play : 1;
  return of_order <= 1 || of_play <= 1 || of_order == of_play
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "the order is of %u %s, and is to be played with %u",
                        of_order, what, of_play);
}

/* Copies the problem with the groups that the play adds. */
static opipe_status add_groups(const opi_problem *problem, const opi_order_play *how,
                               opi_problem *out, opipe_error *err) {
  *out = *problem;
  out->sharded = problem->sharded || how->sharded;
  out->sequence = problem->sequence || how->sequence;
  out->scattered = problem->scattered || how->scattered;
  OPI_TRY(agree("tensor ranks", problem->n_tensor, how->n_tensor, &out->n_tensor, err));
  return agree("copies", problem->n_copies, how->n_data, &out->n_copies, err);
}

/* Whether the list has collectives of groups itself; they are then played as they stand. */
static bool states_groups(const opi_do_list *list) {
  enum {
    KINDS = 1 << OPI_DO_SCATTER | 1 << OPI_DO_GATHER | 1 << OPI_DO_SUM_F | 1 << OPI_DO_SUM_B |
            1 << OPI_DO_GATHER_F | 1 << OPI_DO_GATHER_B | 1 << OPI_DO_SCATTER_F |
            1 << OPI_DO_SCATTER_B
  };
  return opi_do_list_count(list, KINDS) > 0;
}

/* Makes the list to play: with its groups' collectives, a body repeated. */
static opipe_status make_list(opi_order_builder *b, uint32_t n_bodies, uint32_t **out_step) {
  const opipe_allocator *allocator = b->arena->allocator;
  const bool repeats = b->problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  if (opi_problem_has_groups(b->problem) && !b->how->updates_each && !states_groups(b->list)) {
    OPI_TRY(opi_pass_groups(b->problem, b->list, allocator, &b->grouped, b->err));
    b->list = b->grouped;
  }
  if (!repeats)
    return OPIPE_OK;
  const opipe_status status =
      opi_unroll(b->list, n_bodies, allocator, b->arena, &b->unrolled, out_step, b->err);
  opi_do_list_free(b->grouped);
  b->grouped = NULL;
  b->list = b->unrolled;
  return status;
}

opipe_status opi_order_play_run(const opi_problem *problem, const opi_do_list *list,
                                const opi_order_play *how, opi_arena *arena, opi_order_played *out,
                                opipe_error *err) {
  opi_problem own;
  const bool repeats = problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const uint32_t n_bodies = how->n_bodies == 0 ? BODIES : how->n_bodies;
  uint32_t *step = NULL;
  opi_order_builder b = {.problem = &own,
                         .how = how,
                         .list = list,
                         .prover = {.problem = &own, .arena = arena, .err = err},
                         .play = &out->play,
                         .arena = arena,
                         .n_tokens = opi_order_tokens(problem),
                         .err = err};
  *out = (opi_order_played){.list = list};
  OPI_TRY(check(problem, how, err));
  OPI_TRY(add_groups(problem, how, &own, err));
  out->play = (opi_play){.cluster = how->cluster,
                         .n_lists = list->n_ranks,
                         .n_tensor = own.n_tensor,
                         .n_data = own.n_copies,
                         .rule = how->posted_late ? how->cluster->link.rule : OPI_RULE_TAG,
                         .posted_ahead = !how->posted_late,
                         .apart = how->apart};
  opipe_status status = make_list(&b, n_bodies, &step);
  out->list = b.list == NULL ? list : b.list;
  b.prover.list = b.list;
  b.prover.step = step;
  if (status == OPIPE_OK)
    status = run(&b, repeats ? n_bodies + 1 : 1, out);
  if (status < 0)
    opi_order_played_release(out, list);
  return status;
}

void opi_order_played_release(opi_order_played *played, const opi_do_list *list) {
  if (played->list != list)
    opi_do_list_free((opi_do_list *)(uintptr_t)played->list);
  played->list = list;
}
