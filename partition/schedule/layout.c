/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule's layout in a plan. The plugin's answer is checked, then laid out several times for
 * copies of the whole pipeline, or with some ranks repeated for replicas that share micro-batches.
 * The plugin knows of neither. */
#include "partition/schedule/compute_order.h"

/* Limits of records: 16 bits for a replica and a slice, 8 for a part. */
enum { INSTANCES_MOST = 1 << 20, REPLICAS_MOST = 65536, SLICES_MOST = 65536, PARTS_MOST = 256 };

static opipe_status check_layout(const opi_schedule_ref *schedule, const opipe_layout *layout,
                                 const uint32_t *ranks, uint32_t most_ranks, bool train,
                                 opipe_error *err) {
  if (layout->n_ranks > most_ranks || layout->n_replicas > REPLICAS_MOST ||
      layout->n_slices > SLICES_MOST || layout->n_parts > PARTS_MOST ||
      layout->versions > OPIPE_VERSIONS_DOUBLE_BUFFERED || layout->sync > OPIPE_SYNC_EAGER_OPT ||
      layout->in_flight > OPI_CREDITS_MOST) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "schedule '%s' lays out %u ranks, %u replicas, %u slices, %u parts, versions %u, "
        "sync %u, %u in flight; at most %u, %d, %d, %d, %d, %d, %d are possible",
        schedule->id, layout->n_ranks, layout->n_replicas, layout->n_slices, layout->n_parts,
        layout->versions, layout->sync, layout->in_flight, most_ranks, REPLICAS_MOST, SLICES_MOST,
        PARTS_MOST, OPIPE_VERSIONS_DOUBLE_BUFFERED, OPIPE_SYNC_EAGER_OPT, OPI_CREDITS_MOST);
  }
  if (!train && layout->n_parts > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "schedule '%s': %u parts of every backward, a forward plan has no backward to "
                    "cut: 1 part",
                    schedule->id, layout->n_parts);
  }
  for (uint32_t i = 0; i < layout->n_stages * layout->n_replicas; ++i) {
    if (ranks[i] < layout->n_ranks)
      continue;
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s' puts stage %u on rank %u of %u",
                    schedule->id, i / layout->n_replicas, ranks[i], layout->n_ranks);
  }
  return OPIPE_OK;
}

/* Replicas of every rank of the layout, from a list for ranks or for stages; counts [n_ranks]. */
static opipe_status count_replicas(const opi_layout_wish *wish, const char *schedule,
                                   const opipe_layout *layout, uint32_t *counts, opipe_error *err) {
  const uint32_t *list = wish->rank_replicas, n = wish->n_rank_replicas;
  if (n != layout->n_ranks && n != layout->n_stages) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "replicas of %u stages are asked for, there are %u stages on %u ranks (schedule "
        "'%s'): a number for each stage, or for each rank, is needed",
        n, layout->n_stages, layout->n_ranks, schedule);
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = n == layout->n_ranks ? i : layout->instance_rank[i];
    if (list[i] == 0 || list[i] > UINT16_MAX) {
      return opi_fail(err, OPIPE_E_INVALID, "stage %u has %u replicas: 1 to %d are possible", i,
                      list[i], UINT16_MAX);
    }
    if (counts[rank] != 0 && counts[rank] != list[i]) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "stages of one rank with %u and with %u replicas: schedule '%s' has stage %u "
                      "and an earlier one on rank %u",
                      counts[rank], list[i], schedule, i, rank);
    }
    counts[rank] = list[i];
  }
  return OPIPE_OK;
}

/* Repeats every rank of the layout as often as asked, side by side. */
static opipe_status replicate_ranks(const opi_layout_wish *wish, opi_decision *plan,
                                    opi_arena *arena, const opipe_layout *layout,
                                    opipe_error *err) {
  uint32_t *counts = OPI_ARENA_ARRAY(arena, uint32_t, layout->n_ranks);
  uint32_t *first = OPI_ARENA_ARRAY(arena, uint32_t, layout->n_ranks);
  plan->shares = OPI_ARENA_ARRAY(arena, uint32_t, layout->n_stages);
  if (counts == NULL || first == NULL || plan->shares == NULL)
    return opi_fail_nomem(err, layout->n_stages * sizeof(uint32_t), "a layout");
  if (layout->n_replicas != 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "schedule '%s' has %u replicas of its own: its stages take no replicas that "
                    "cut micro-batches",
                    plan->schedule.name, layout->n_replicas);
  }
  OPI_TRY(count_replicas(wish, plan->schedule.name, layout, counts, err));
  uint64_t n_ranks = 0;
  plan->n_replicas = 1;
  for (uint32_t r = 0; r < layout->n_ranks; ++r) {
    uint32_t s = 0;
    while (s < layout->n_stages && layout->instance_rank[s] != r)
      ++s;
    if (s == layout->n_stages) {
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s' has no stage on rank %u",
                      plan->schedule.name, r);
    }
    first[r] = (uint32_t)n_ranks;
    n_ranks += counts[r];
    plan->n_replicas = counts[r] > plan->n_replicas ? counts[r] : plan->n_replicas;
  }
  const uint64_t total = (uint64_t)layout->n_stages * plan->n_replicas;
  if (n_ranks > INSTANCES_MOST || total > INSTANCES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "schedule '%s': %u stages x %u replicas, at most %d are possible",
                    plan->schedule.name, layout->n_stages, plan->n_replicas, INSTANCES_MOST);
  }
  plan->n_ranks = (uint32_t)n_ranks;
  plan->n_stages = layout->n_stages;
  plan->instance_rank = OPI_ARENA_ARRAY(arena, uint32_t, total);
  if (plan->instance_rank == NULL)
    return opi_fail_nomem(err, total * sizeof(uint32_t), "a layout");
  for (uint32_t i = 0; i < (uint32_t)total; ++i) {
    const uint32_t s = i / plan->n_replicas, r = i % plan->n_replicas;
    const uint32_t rank = layout->instance_rank[s];
    plan->shares[s] = counts[rank];
    plan->instance_rank[i] = r < counts[rank] ? first[rank] + r : OPIPE_NONE;
  }
  return OPIPE_OK;
}

static opipe_status copy_ranks(opi_decision *plan, opi_arena *arena, const opipe_layout *layout,
                               opipe_error *err) {
  const uint32_t n = opi_plan_copies(plan);
  const uint64_t total = (uint64_t)layout->n_stages * layout->n_replicas * n;
  if (total > INSTANCES_MOST || (uint64_t)layout->n_ranks * n > INSTANCES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "schedule '%s': %u copies of %u stages x %u replicas, at most %d are possible",
                    plan->schedule.name, n, layout->n_stages, layout->n_replicas, INSTANCES_MOST);
  }
  uint32_t *ranks = OPI_ARENA_ARRAY(arena, uint32_t, total);
  if (ranks == NULL)
    return opi_fail_nomem(err, total * sizeof *ranks, "a layout");
  plan->n_ranks = layout->n_ranks * n;
  plan->n_stages = layout->n_stages;
  plan->n_replicas = layout->n_replicas * n;
  for (uint32_t i = 0; i < (uint32_t)total; ++i) {
    const uint32_t s = i / plan->n_replicas, r = i % plan->n_replicas;
    ranks[i] = layout->instance_rank[s * layout->n_replicas + r % layout->n_replicas] +
               r / layout->n_replicas * layout->n_ranks;
  }
  plan->instance_rank = ranks;
  plan->shares = NULL;
  return OPIPE_OK;
}

/* Makes a tensor group of every rank of the layout. */
static opipe_status widen(opi_decision *plan, opipe_error *err) {
  const uint32_t width = opi_plan_width(plan);
  if ((uint64_t)plan->n_ranks * width > INSTANCES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "schedule '%s': %u tensor groups of %u members, at most %d ranks are possible",
                    plan->schedule.name, plan->n_ranks, width, INSTANCES_MOST);
  }
  plan->n_ranks *= width;
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas; ++i)
    plan->instance_rank[i] *= plan->instance_rank[i] == OPIPE_NONE ? 1 : width;
  return OPIPE_OK;
}

static opipe_status copy_layout(const opi_layout_wish *wish, opi_decision *plan, opi_arena *arena,
                                const opipe_layout *layout, opipe_error *err) {
  OPI_TRY(wish->n_rank_replicas != 0 ? replicate_ranks(wish, plan, arena, layout, err)
                                     : copy_ranks(plan, arena, layout, err));
  plan->in_flight = layout->in_flight;
  plan->n_slices = layout->n_slices == 0 ? 1 : layout->n_slices;
  plan->n_parts = layout->n_parts == 0 ? 1 : layout->n_parts;
  plan->versions = layout->versions;
  plan->sync = layout->sync;
  plan->slice_lengths = NULL;
  if (layout->slice_lengths == NULL || plan->n_slices == 1)
    return OPIPE_OK;
  plan->slice_lengths =
      opi_arena_copy(arena, layout->slice_lengths, plan->n_slices * sizeof *plan->slice_lengths);
  return plan->slice_lengths == NULL ? opi_fail_nomem(err, plan->n_slices, "slices") : OPIPE_OK;
}

opipe_status opi_schedule_layout(const opi_schedule_ref *schedule, const opi_layout_wish *wish,
                                 opi_decision *plan, opi_arena *arena, opipe_error *err) {
  const uint32_t n_ranks = wish->n_ranks, n_stages = wish->n_stages;
  const uint32_t copies = opi_plan_copies(plan);
  plan->in_turn = !opi_plan_trains(plan) && plan->n_microbatches < copies;
  if (n_ranks % copies != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "%u replicas of the pipeline cannot share %u ranks",
                    copies, n_ranks);
  }
  if (opi_plan_copy_share(plan, copies - 1) == 0 && !plan->in_turn) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%u replicas of the pipeline need a micro-batch each, there are %u", copies,
                    plan->n_microbatches);
  }
  const opipe_layout_request request = {
      .struct_size = (uint32_t)OPIPE_END(opipe_layout_request, settings),
      .mode = opi_plan_mode(plan),
      .n_ranks = wish->n_rank_replicas == 0 ? n_ranks / copies
                 : n_stages == 0            ? wish->n_rank_replicas
                                            : 0,
      .n_stages = n_stages,
      .n_microbatches = opi_plan_copy_share(plan, 0),
      .n_settings = plan->schedule.n_settings,
      .settings = plan->schedule.settings};
  opipe_layout layout = {0};
  if (n_ranks > INSTANCES_MOST || n_stages > INSTANCES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u ranks, %u stages: at most %d are possible", n_ranks,
                    n_stages, INSTANCES_MOST);
  }
  uint32_t room = n_stages > n_ranks ? n_stages : n_ranks;
  room = wish->n_rank_replicas > room ? wish->n_rank_replicas : room;
  for (uint32_t attempt = 0;; ++attempt) {
    layout = (opipe_layout){.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths),
                            .instance_room = room};
    layout.instance_rank = OPI_ARENA_ARRAY(arena, uint32_t, room);
    if (layout.instance_rank == NULL)
      return opi_fail_nomem(err, room * sizeof(uint32_t), "a layout");
    uint32_t *ranks = layout.instance_rank;
    const opipe_status status =
        OPI_ASK("schedule", schedule, layout, err, schedule->self, &request, &layout);
    const uint64_t need = (uint64_t)layout.n_stages * layout.n_replicas;
    if (need > INSTANCES_MOST || (status == OPIPE_OK && (need == 0 || layout.n_ranks == 0))) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "schedule '%s' lays out %u stages x %u replicas on %u ranks", schedule->id,
                      layout.n_stages, layout.n_replicas, layout.n_ranks);
    }
    layout.instance_rank = ranks;
    if (status == OPIPE_OK && need <= room)
      break;
    if ((status < 0 && status != OPIPE_E_LIMIT) || attempt > 0 || need <= room) {
      return status < 0
                 ? status
                 : opi_fail(err, OPIPE_E_INVALID, "schedule '%s' changes its layout", schedule->id);
    }
    room = (uint32_t)need;
  }
  const uint32_t n_instances = layout.n_stages * layout.n_replicas;
  OPI_TRY(check_layout(schedule, &layout, layout.instance_rank,
                       request.n_ranks > n_instances ? request.n_ranks : n_instances,
                       opi_plan_trains(plan), err));
  OPI_TRY(copy_layout(wish, plan, arena, &layout, err));
  if (opi_plan_width(plan) > 1)
    OPI_TRY(widen(plan, err));
  if (wish->n_rank_replicas == 0 || n_ranks == 0 || n_ranks == plan->n_ranks)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "the replicas asked for take %u ranks, not %u",
                  plan->n_ranks, n_ranks);
}
