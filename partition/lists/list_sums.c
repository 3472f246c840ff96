/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a training step sum up, as runtime/weights does it: gradients over the replicas
 * of a stage, begun by REDUCE and awaited by UPDATE; there those of parameters that several stages
 * read, one after the other; then all ranks wait for each other and sum the norms. Double-buffered
 * ranks that step alone sum these beside the next mini-batch.
 */
#include <string.h>

#include "partition/lists/list_build.h"

/* ---- who holds what ---- */

/* What ranks hold of the trained parameters. */
typedef struct holdings {
  opi_list_builder *b;
  uint32_t *n_stages; /* [ranks * params] stages of the rank that read it */
  bool *reads;        /* [whole stages * params] */
  bool *at_home;      /* [whole stages * ranks] */
  bool *tied;         /* [params] */
  uint64_t *bytes;    /* [ranks] dense */
  uint32_t n_trained; /* parameters that any rank holds */
} holdings;

static void list_readers(const holdings *h) {
  const opi_list_builder *b = h->b;
  const opi_cut *cut = b->cut;
  const uint32_t n_pieces = opi_list_pieces(b), n_ranks = b->plan->n_ranks;
  for (uint32_t s = 0; s < b->plan->n_stages; ++s) {
    for (uint32_t kind = 0; kind < cut->n_kinds; ++kind) {
      const opi_program *program = opi_program_of(cut, s, kind);
      for (uint32_t k = 0; k < program->n_params; ++k) {
        const uint32_t slot = program->params[k];
        h->reads[(size_t)(s / n_pieces) * cut->n_params + slot] = cut->trained[slot];
      }
    }
    for (uint32_t i = 0; i < b->plan->n_replicas; ++i) {
      const uint32_t rank = opi_plan_rank(b->plan, s, i);
      if (rank != OPIPE_NONE)
        h->at_home[(size_t)(s / n_pieces) * n_ranks + rank] = true;
    }
  }
}

/* A parameter that several ranks hold is tied where more than one stage reads it: then it is summed
 * at the step, over all of them. */
static void judge_param(holdings *h, uint32_t slot) {
  opi_list_builder *b = h->b;
  const uint32_t n_params = b->cut->n_params, n_ranks = b->plan->n_ranks;
  uint32_t n_readers = 0, n_holders = 0;
  for (uint32_t w = 0; w < opi_list_whole_stages(b); ++w) {
    n_readers += h->reads[(size_t)w * n_params + slot];
    for (uint32_t rank = 0; rank < n_ranks && h->reads[(size_t)w * n_params + slot]; ++rank)
      h->n_stages[(size_t)rank * n_params + slot] += h->at_home[(size_t)w * n_ranks + rank];
  }
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    const bool holds = h->n_stages[(size_t)rank * n_params + slot] > 0;
    n_holders += holds;
    h->bytes[rank] += holds ? b->cut->sources[slot].n_bytes : 0;
  }
  h->n_trained += n_holders > 0;
  h->tied[slot] = n_readers > 1 && n_holders > 1;
  b->sums.n_ties += h->tied[slot];
}

static opipe_status find_holdings(opi_list_builder *b, holdings *out) {
  opi_arena *arena = b->arena;
  const size_t n_params = b->cut->n_params, n_ranks = b->plan->n_ranks;
  const size_t n_whole = opi_list_whole_stages(b);
  *out = (holdings){.b = b,
                    .n_stages = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks * n_params),
                    .reads = OPI_ARENA_ARRAY(arena, bool, n_whole *n_params),
                    .at_home = OPI_ARENA_ARRAY(arena, bool, n_whole *n_ranks),
                    .tied = OPI_ARENA_ARRAY(arena, bool, n_params),
                    .bytes = OPI_ARENA_ARRAY(arena, uint64_t, n_ranks)};
  if (out->n_stages == NULL || out->reads == NULL || out->at_home == NULL || out->tied == NULL ||
      out->bytes == NULL)
    return opi_fail_nomem(b->err, n_ranks * n_params * sizeof *out->n_stages, "a simulation");
  list_readers(out);
  for (uint32_t slot = 0; slot < n_params; ++slot)
    judge_param(out, slot);
  return OPIPE_OK;
}

/* What a sum over the group's ranks moves: of the accumulators of a rank, which lie in its
 * backend's layouts, the part that is of `own` dense bytes. */
static uint64_t sum_bytes(const holdings *h, const opi_play_group *group, uint64_t own) {
  const opi_plan *plan = h->b->plan;
  uint64_t most = 0;
  for (uint32_t i = 0; i < group->n_lists; ++i) {
    const uint32_t rank = h->b->group_lists[group->first + i];
    const double all = plan->memory == NULL || plan->memory[rank].gradient_bytes == 0
                           ? (double)h->bytes[rank]
                           : (double)plan->memory[rank].gradient_bytes;
    const double part = h->bytes[rank] == 0 ? 0 : all * (double)own / (double)h->bytes[rank];
    most = part > (double)most ? (uint64_t)part : most;
  }
  return most;
}

/* ---- groups ---- */

static opi_play_group new_group(const opi_list_builder *b, uint32_t algorithm, uint32_t times) {
  return (opi_play_group){
      .op = OPI_OP_ALL_REDUCE, .algorithm = algorithm, .times = times, .first = b->n_group_lists};
}

static void add_group(opi_list_builder *b, opi_play_group *group) {
  group->n_lists = b->n_group_lists - group->first;
  b->groups[b->n_groups++] = *group;
}

/* Over the replicas of a stage, if these are of several ranks. */
static void make_stage_sum(const holdings *h, uint32_t whole, uint32_t algorithm) {
  opi_list_builder *b = h->b;
  const uint32_t n_params = b->cut->n_params, n_ranks = b->plan->n_ranks;
  opi_play_group group = new_group(b, algorithm, 1);
  uint64_t own = 0;
  for (uint32_t slot = 0; slot < n_params; ++slot) {
    if (h->reads[(size_t)whole * n_params + slot] && !h->tied[slot])
      own += b->cut->sources[slot].n_bytes;
  }
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    if (h->at_home[(size_t)whole * n_ranks + rank])
      b->group_lists[b->n_group_lists++] = rank;
  }
  group.n_lists = b->n_group_lists - group.first;
  group.n_bytes = sum_bytes(h, &group, own);
  if (group.n_lists < 2 || group.n_bytes == 0) {
    b->n_group_lists = group.first;
    return;
  }
  b->sums.stage_group[whole] = b->n_groups;
  add_group(b, &group);
}

/* One for every tied parameter, over the ranks that hold it, in dense form. */
static void make_ties(const holdings *h, uint32_t algorithm) {
  opi_list_builder *b = h->b;
  opi_list_sums *sums = &b->sums;
  const uint32_t n_params = b->cut->n_params;
  uint32_t n = 0;
  sums->first_tie = b->n_groups;
  for (uint32_t slot = 0; slot < n_params; ++slot) {
    if (!h->tied[slot])
      continue;
    opi_play_group group = new_group(b, algorithm, 1);
    for (uint32_t rank = 0; rank < b->plan->n_ranks; ++rank) {
      if (h->n_stages[(size_t)rank * n_params + slot] == 0)
        continue;
      sums->has_tie[(size_t)rank * sums->n_ties + n] = true;
      b->group_lists[b->n_group_lists++] = rank;
    }
    group.n_bytes = b->cut->sources[slot].n_bytes;
    add_group(b, &group);
    ++n;
  }
}

static bool takes_part(const opi_list_builder *b, uint32_t rank) {
  return b->lists->rank_first[rank + 1] != b->lists->rank_first[rank];
}

/* Nothing travels, and all of a group go on when the last has come. */
static void make_barriers(opi_list_builder *b) {
  b->sums.first_barrier = b->n_groups;
  for (uint32_t rank = 0; rank < b->plan->n_ranks; ++rank) {
    opi_play_group group = new_group(b, 0, 0);
    for (uint32_t r = 0; r < b->plan->n_ranks; ++r) {
      if (b->sums.update_group[r] == rank && takes_part(b, r))
        b->group_lists[b->n_group_lists++] = r;
    }
    add_group(b, &group);
  }
}

/* A number for every trained parameter, and one for the losses, each as far apart as the devices'
 * memory wants it. */
static void make_norms(const holdings *h, uint32_t algorithm) {
  opi_list_builder *b = h->b;
  const uint32_t alignment = b->plan->devices == NULL ? 0 : b->plan->devices[0].alignment;
  const uint64_t stride = alignment > sizeof(double) ? alignment : sizeof(double);
  opi_play_group group = new_group(b, algorithm, 1);
  for (uint32_t rank = 0; rank < b->plan->n_ranks; ++rank) {
    if (takes_part(b, rank))
      b->group_lists[b->n_group_lists++] = rank;
  }
  if (b->n_group_lists - group.first < 2 || h->n_trained == 0)
    return;
  group.n_bytes = stride * (h->n_trained + 1);
  b->sums.norms_group = b->n_groups;
  add_group(b, &group);
}

static opipe_status allocate(opi_list_builder *b) {
  opi_list_sums *sums = &b->sums;
  const size_t n_ranks = b->plan->n_ranks, n_whole = opi_list_whole_stages(b);
  const size_t n_ties = sums->n_ties, n_batches = b->n_batches;
  b->groups = OPI_ARENA_ARRAY(b->arena, opi_play_group, n_whole + n_ties + n_ranks + 1);
  b->group_lists = OPI_ARENA_ARRAY(b->arena, uint32_t, (n_whole + n_ties + 2) * n_ranks);
  sums->stage_group = opi_list_index(b->arena, n_whole);
  sums->stage_sum = opi_list_index(b->arena, n_batches * n_whole);
  sums->n_come = OPI_ARENA_ARRAY(b->arena, uint32_t, n_whole);
  sums->has_tie = OPI_ARENA_ARRAY(b->arena, bool, n_ranks *n_ties);
  sums->tie_sum = opi_list_index(b->arena, n_batches * n_ties);
  sums->barrier = opi_list_index(b->arena, n_batches * n_ranks);
  sums->norms = opi_list_index(b->arena, n_batches);
  return b->groups == NULL || b->group_lists == NULL || sums->stage_group == NULL ||
                 sums->stage_sum == NULL || sums->n_come == NULL || sums->has_tie == NULL ||
                 sums->tie_sum == NULL || sums->barrier == NULL || sums->norms == NULL
             ? opi_fail_nomem(b->err, (n_whole + n_ties) * n_ranks * sizeof(uint32_t),
                              "a simulation")
             : OPIPE_OK;
}

opipe_status opi_list_sums_make(opi_list_builder *b, uint32_t algorithm) {
  const opi_plan *plan = b->plan;
  holdings h;
  OPI_TRY(opi_update_groups(plan, b->cut, b->arena, &b->sums.update_group, b->err));
  OPI_TRY(find_holdings(b, &h));
  OPI_TRY(allocate(b));
  b->sums.norms_group = OPIPE_NONE;
  b->sums.alone = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED &&
                  opi_optimizer_steps_alone(&plan->train->optimizer);
  for (uint32_t w = 0; w < opi_list_whole_stages(b); ++w)
    make_stage_sum(&h, w, algorithm);
  make_ties(&h, algorithm);
  make_barriers(b);
  make_norms(&h, algorithm);
  return OPIPE_OK;
}

/* ---- operations ---- */

static opipe_status number(opi_list_builder *b, uint32_t group, uint32_t *io_collective) {
  if (*io_collective != OPIPE_NONE)
    return OPIPE_OK;
  if (!opi_arena_grow(b->arena, (void **)&b->collective_group, &b->room_collectives,
                      b->n_collectives + 1, sizeof *b->collective_group))
    return opi_fail_nomem(b->err, b->n_collectives * sizeof(uint32_t), "a simulation");
  b->collective_group[b->n_collectives] = group;
  *io_collective = b->n_collectives++;
  return OPIPE_OK;
}

/* The rank comes to it and waits for what it brings. */
static opipe_status add_sum(opi_list_builder *b, uint32_t group, uint32_t *io_collective,
                            uint32_t item, uint32_t batch) {
  OPI_TRY(number(b, group, io_collective));
  OPI_TRY(opi_list_add(b, OPI_PLAY_START, *io_collective, item, batch));
  return opi_list_add(b, OPI_PLAY_JOIN, *io_collective, item, batch);
}

/* REDUCEs of a rank for one stage: of each of its replicas there, the last comes for all. */
static uint32_t reduces_of(const opi_list_builder *b, uint32_t rank, uint32_t whole) {
  uint32_t n = 0;
  for (uint32_t i = b->lists->rank_first[rank]; i < b->lists->rank_first[rank + 1]; ++i) {
    n += b->lists->steps[i].kind == OPI_ACT_REDUCE &&
         b->lists->steps[i].stage / opi_list_pieces(b) == whole;
  }
  return n;
}

opipe_status opi_list_sums_reduce(opi_list_builder *b, uint32_t rank, const opi_step *step,
                                  uint32_t item, uint32_t batch) {
  const uint32_t w = step->stage / opi_list_pieces(b);
  uint32_t *c = &b->sums.stage_sum[(size_t)batch * opi_list_whole_stages(b) + w];
  if (b->sums.stage_group[w] == OPIPE_NONE || ++b->sums.n_come[w] < reduces_of(b, rank, w))
    return OPIPE_OK;
  OPI_TRY(number(b, b->sums.stage_group[w], c));
  return opi_list_add(b, OPI_PLAY_START, *c, item, batch);
}

/* Beside what follows: the next update waits for it. */
static opipe_status start_norms(opi_list_builder *b, uint32_t item, uint32_t batch) {
  OPI_TRY(number(b, b->sums.norms_group, &b->sums.norms[batch]));
  return opi_list_add(b, OPI_PLAY_START, b->sums.norms[batch], item, batch);
}

opipe_status opi_list_sums_update(opi_list_builder *b, uint32_t rank, uint32_t item,
                                  uint32_t batch) {
  opi_list_sums *sums = &b->sums;
  const uint32_t group = sums->update_group[rank], n_whole = opi_list_whole_stages(b);
  const bool norms = sums->norms_group != OPIPE_NONE;
  if (norms && sums->alone && batch > 0)
    OPI_TRY(opi_list_add(b, OPI_PLAY_JOIN, sums->norms[batch - 1], item, batch));
  for (uint32_t w = 0; w < n_whole; ++w) {
    if (sums->n_come[w] > 0) {
      OPI_TRY(opi_list_add(b, OPI_PLAY_JOIN, sums->stage_sum[(size_t)batch * n_whole + w], item,
                           batch));
    }
    sums->n_come[w] = 0;
  }
  for (uint32_t t = 0; t < sums->n_ties; ++t) {
    if (sums->has_tie[(size_t)rank * sums->n_ties + t]) {
      OPI_TRY(add_sum(b, sums->first_tie + t, &sums->tie_sum[(size_t)batch * sums->n_ties + t],
                      item, batch));
    }
  }
  OPI_TRY(add_sum(b, sums->first_barrier + group,
                  &sums->barrier[(size_t)batch * b->plan->n_ranks + group], item, batch));
  if (!norms)
    return OPIPE_OK;
  return sums->alone ? start_norms(b, item, batch)
                     : add_sum(b, sums->norms_group, &sums->norms[batch], item, batch);
}
