/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the ranks of a training step, as runtime/weights runs them. REDUCE begins the
 * gradients' sum over the replicas of a stage, and UPDATE waits for it. UPDATE then sums parameters
 * that several stages read, one after the other; then all ranks wait for each other and sum the
 * norms. Double-buffered ranks that step alone sum norms beside the next mini-batch. */
#include <stdio.h>
#include <string.h>

#include "partition/lists/playlist_build.h"

/* ---- holders ---- */

/* The trained parameters that ranks hold. */
typedef struct holdings {
  opi_playlist_maker *m;
  uint32_t *n_stages; /* [ranks * params] stages of the rank that read it */
  bool *reads;        /* [shards * params] a shard: a stage, or a member's part of it */
  bool *at_home;      /* [shards * ranks] */
  bool *tied;         /* [params] */
  uint32_t *ranks;    /* [ranks] of the current group */
  uint32_t n_trained; /* parameters that at least one rank holds */
} holdings;

static void list_readers(const holdings *h) {
  const opi_playlist_maker *m = h->m;
  const opi_cut *cut = m->cut;
  const uint32_t n_ranks = m->plan->n_ranks;
  for (uint32_t s = 0; s < m->plan->n_stages; ++s) {
    const size_t shard = opi_playlist_shard(m, s);
    for (uint32_t kind = 0; kind < cut->n_kinds; ++kind) {
      const opi_program *program = opi_program_of(cut, s, kind);
      for (uint32_t k = 0; k < program->n_params; ++k) {
        const uint32_t slot = program->params[k];
        h->reads[shard * cut->n_params + slot] = cut->trained[slot];
      }
    }
    for (uint32_t i = 0; i < m->plan->n_replicas; ++i) {
      const uint32_t rank = opi_piece_rank(m->plan, s, i);
      if (rank != OPIPE_NONE)
        h->at_home[shard * n_ranks + rank] = true;
    }
  }
}

/* A parameter on several ranks is tied if more than one stage reads it: it is summed at the step,
 * over all of them. */
static void judge_param(holdings *h, uint32_t slot) {
  opi_playlist_maker *m = h->m;
  const uint32_t n_params = m->cut->n_params, n_ranks = m->plan->n_ranks;
  uint32_t n_readers = 0, n_holders = 0;
  for (uint32_t w = 0; w < opi_playlist_shards(m); ++w) {
    n_readers += h->reads[(size_t)w * n_params + slot];
    for (uint32_t rank = 0; rank < n_ranks && h->reads[(size_t)w * n_params + slot]; ++rank)
      h->n_stages[(size_t)rank * n_params + slot] += h->at_home[(size_t)w * n_ranks + rank];
  }
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    const bool holds = h->n_stages[(size_t)rank * n_params + slot] > 0;
    n_holders += holds;
  }
  h->n_trained += n_holders > 0;
  h->tied[slot] = n_readers > 1 && n_holders > 1;
  m->sums.n_ties += h->tied[slot];
}

static opipe_status find_holdings(opi_playlist_maker *m, holdings *out) {
  opi_arena *arena = &m->scratch;
  const size_t n_params = m->cut->n_params, n_ranks = m->plan->n_ranks;
  const size_t n_shards = opi_playlist_shards(m);
  *out = (holdings){.m = m,
                    .n_stages = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks * n_params),
                    .reads = OPI_ARENA_ARRAY(arena, bool, n_shards *n_params),
                    .at_home = OPI_ARENA_ARRAY(arena, bool, n_shards *n_ranks),
                    .tied = OPI_ARENA_ARRAY(arena, bool, n_params),
                    .ranks = OPI_ARENA_ARRAY(arena, uint32_t, n_ranks)};
  if (out->n_stages == NULL || out->reads == NULL || out->at_home == NULL || out->tied == NULL ||
      out->ranks == NULL)
    return opi_fail_nomem(m->err, n_ranks * n_params * sizeof *out->n_stages, "a playlist");
  list_readers(out);
  for (uint32_t slot = 0; slot < n_params; ++slot)
    judge_param(out, slot);
  return OPIPE_OK;
}

/* Bytes that a sum over ranks moves for a parameter. */
static uint64_t sum_bytes(const holdings *h, uint32_t slot) {
  const opi_playlist_maker *m = h->m;
  return m->sum_bytes == NULL ? m->cut->sources[slot].n_bytes : m->sum_bytes[slot];
}

/* ---- groups ---- */

static bool is_shared(const opi_playlist_maker *m) {
  return m->plan->whole->train->optimizer.shard != 0;
}

/* Adds a group of the first group->n_ranks of h->ranks. */
static opipe_status add_group(const holdings *h, const opi_playlist_group *group) {
  opi_playlist_maker *m = h->m;
  opi_playlist_group *to = &m->out->groups[m->out->n_groups++];
  *to = *group;
  to->ranks = opi_arena_copy(m->arena, h->ranks, group->n_ranks * sizeof *h->ranks);
  return to->ranks == NULL ? opi_fail_nomem(m->err, group->n_ranks * sizeof *h->ranks, "a playlist")
                           : OPIPE_OK;
}

/* Makes one sum for every tied parameter, over the ranks that hold it. */
static opipe_status make_ties(const holdings *h) {
  opi_playlist_maker *m = h->m;
  opi_playlist_sums *sums = &m->sums;
  const uint32_t n_params = m->cut->n_params;
  uint32_t n = 0;
  sums->first_tie = m->out->n_groups;
  for (uint32_t slot = 0; slot < n_params; ++slot) {
    opi_playlist_group group = {.stage = OPIPE_NONE};
    if (!h->tied[slot])
      continue;
    for (uint32_t rank = 0; rank < m->plan->n_ranks; ++rank) {
      if (h->n_stages[(size_t)rank * n_params + slot] == 0)
        continue;
      sums->has_tie[(size_t)rank * sums->n_ties + n] = true;
      h->ranks[group.n_ranks++] = rank;
    }
    group.n_bytes = sum_bytes(h, slot);
    group.how = is_shared(m) ? OPI_PLAY_SCATTER : OPI_PLAY_SUM;
    OPI_TRY(add_group(h, &group));
    ++n;
  }
  return OPIPE_OK;
}

static bool takes_part(const opi_playlist_maker *m, uint32_t rank) {
  return m->lists->rank_first[rank + 1] != m->lists->rank_first[rank];
}

/* A barrier moves no bytes; its group proceeds when the last rank has come. */
static opipe_status make_barriers(const holdings *h) {
  opi_playlist_maker *m = h->m;
  const uint32_t n_ranks = m->plan->n_ranks;
  uint32_t *of = NULL;
  OPI_TRY(opi_update_groups(m->plan, m->cut, &m->scratch, &of, m->err));
  for (uint32_t first = 0; first < n_ranks; ++first) {
    opi_playlist_group group = {.stage = OPIPE_NONE, .waits = true};
    for (uint32_t rank = 0; rank < n_ranks; ++rank) {
      if (of[rank] != first || !takes_part(m, rank))
        continue;
      m->sums.barrier[rank] = m->out->n_groups;
      h->ranks[group.n_ranks++] = rank;
    }
    if (group.n_ranks != 0)
      OPI_TRY(add_group(h, &group));
  }
  return OPIPE_OK;
}

/* Sums one number per trained parameter, and one for the losses, spaced by the devices' alignment.
 */
static opipe_status make_norms(const holdings *h) {
  opi_playlist_maker *m = h->m;
  const uint32_t alignment =
      m->plan->whole->devices == NULL ? 0 : m->plan->whole->devices[0].alignment;
  const uint64_t stride = alignment > sizeof(double) ? alignment : sizeof(double);
  opi_playlist_group group = {.stage = OPIPE_NONE, .n_bytes = stride * (h->n_trained + 1)};
  for (uint32_t rank = 0; rank < m->plan->n_ranks; ++rank) {
    if (takes_part(m, rank))
      h->ranks[group.n_ranks++] = rank;
  }
  m->sums.norms = OPIPE_NONE;
  if (group.n_ranks < 2 || h->n_trained == 0)
    return OPIPE_OK;
  m->sums.norms = m->out->n_groups;
  return add_group(h, &group);
}

/* Makes the gathers of weights that are shared out, one behind each bucket's and tie's sum. */
static opipe_status make_gathers(const holdings *h) {
  opi_playlist_maker *m = h->m;
  const uint32_t n = m->sums.first_tie + m->sums.n_ties;
  m->sums.first_gather = is_shared(m) && n != 0 ? m->out->n_groups : OPIPE_NONE;
  for (uint32_t g = 0; g < n && is_shared(m); ++g) {
    opi_playlist_group group = m->out->groups[g];
    group.how = OPI_PLAY_GATHER;
    memcpy(h->ranks, group.ranks, group.n_ranks * sizeof *h->ranks);
    OPI_TRY(add_group(h, &group));
  }
  return OPIPE_OK;
}

static opipe_status allocate(opi_playlist_maker *m) {
  opi_playlist_sums *sums = &m->sums;
  const size_t n_ranks = m->plan->n_ranks, n_shards = opi_playlist_shards(m);
  sums->n_come = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n_shards);
  sums->n_started = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n_shards);
  sums->has_tie = OPI_ARENA_ARRAY(&m->scratch, bool, n_ranks * sums->n_ties);
  sums->barrier = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n_ranks);
  return sums->n_come == NULL || sums->n_started == NULL || sums->has_tie == NULL ||
                 sums->barrier == NULL
             ? opi_fail_nomem(m->err, n_shards * sizeof *sums->n_come, "a playlist")
             : OPIPE_OK;
}

opipe_status opi_playlist_sums_make(opi_playlist_maker *m) {
  const opi_piece_plan *plan = m->plan;
  holdings h;
  OPI_TRY(find_holdings(m, &h));
  OPI_TRY(allocate(m));
  m->sums.alone = m->twice && opi_plan_steps_alone(plan->whole);
  OPI_TRY(opi_playlist_buckets_make(m, h.reads, h.tied, h.at_home));
  OPI_TRY(make_ties(&h));
  OPI_TRY(make_barriers(&h));
  OPI_TRY(make_norms(&h));
  return make_gathers(&h);
}

/* ---- items ---- */

static opipe_status add_start(opi_playlist_maker *m, uint32_t group) {
  return opi_playlist_add(m, &(opi_playlist_item){.kind = OPI_PLAY_START, .at = group});
}

/* lap -1: of the mini-batch before. */
static opipe_status add_join(opi_playlist_maker *m, uint32_t group, int16_t lap) {
  return opi_playlist_add(m, &(opi_playlist_item){.kind = OPI_PLAY_JOIN, .at = group, .lap = lap});
}

/* The rank enters the sum and waits for its result. */
static opipe_status add_sum(opi_playlist_maker *m, uint32_t group) {
  OPI_TRY(add_start(m, group));
  return add_join(m, group, 0);
}

opipe_status opi_playlist_sums_reduce(opi_playlist_maker *m, uint32_t rank, const opi_step *step) {
  const uint32_t whole = step->stage / opi_playlist_pieces(m);
  const uint32_t width = opi_plan_width(m->plan->whole), w = whole * width + rank % width;
  const uint32_t n = m->sums.slot_first[w + 1] - m->sums.slot_first[w];
  return ++m->sums.n_come[w] < opi_playlist_reduces(m, rank, whole)
             ? OPIPE_OK
             : opi_playlist_buckets_start(m, w, step->replica, n);
}

static bool is_member(const opi_playlist_group *group, uint32_t rank) {
  uint32_t i = 0;
  while (i < group->n_ranks && group->ranks[i] != rank)
    ++i;
  return i < group->n_ranks;
}

/* Weights are gathered once the rank's own parts are updated; all start before the first is
 * awaited. */
static opipe_status gather(opi_playlist_maker *m, uint32_t rank) {
  const uint32_t n = m->sums.first_tie + m->sums.n_ties;
  for (uint32_t i = 0; i < 2 * n && m->sums.first_gather != OPIPE_NONE; ++i) {
    const uint32_t group = m->sums.first_gather + i % n;
    if (is_member(&m->out->groups[group], rank))
      OPI_TRY(i < n ? add_start(m, group) : add_join(m, group, 0));
  }
  return OPIPE_OK;
}

opipe_status opi_playlist_sums_update(opi_playlist_maker *m, uint32_t rank) {
  opi_playlist_sums *sums = &m->sums;
  const bool norms = sums->norms != OPIPE_NONE;
  if (norms && sums->alone)
    OPI_TRY(add_join(m, sums->norms, -1));
  for (uint32_t w = 0; w < opi_playlist_shards(m); ++w) {
    for (uint32_t k = 0; k < sums->n_started[w]; ++k)
      OPI_TRY(add_join(m, sums->bucket_first[w] + k, 0));
    sums->n_come[w] = sums->n_started[w] = 0;
  }
  for (uint32_t t = 0; t < sums->n_ties; ++t) {
    if (sums->has_tie[(size_t)rank * sums->n_ties + t])
      OPI_TRY(add_sum(m, sums->first_tie + t));
  }
  OPI_TRY(add_sum(m, sums->barrier[rank]));
  if (norms) /* alone: the next update waits for it */
    OPI_TRY(sums->alone ? add_start(m, sums->norms) : add_sum(m, sums->norms));
  return gather(m, rank);
}

/* ---- of a plan that was read ---- */

/* A file without numbers of parameters has one bucket of them all. */
static bool are_as_many(const opi_playlist_group *a, const opi_playlist_group *b) {
  return b->n_params == 0 || a->n_params == b->n_params;
}

static bool are_alike(const opi_playlist_group *a, const opi_playlist_group *b) {
  return a->waits == b->waits && a->each == b->each && a->backward == b->backward &&
         a->how == b->how && a->stage == b->stage && are_as_many(a, b) &&
         a->n_ranks == b->n_ranks && memcmp(a->ranks, b->ranks, a->n_ranks * sizeof *a->ranks) == 0;
}

static void describe(const opi_playlist_group *group, char *out_text, size_t room) {
  int n = group->stage == OPIPE_NONE
              ? snprintf(out_text, room, "%s of ranks", group->waits ? "a barrier" : "a sum")
              : snprintf(out_text, room, "a sum %s stage %u, of ranks",
                         group->each ? "inside" : "of", group->stage);
  for (uint32_t i = 0; i < group->n_ranks && n > 0 && (size_t)n < room; ++i)
    n += snprintf(out_text + n, room - (size_t)n, " %u", group->ranks[i]);
}

opipe_status opi_playlist_keep_bytes(opi_playlist *playlist, const opi_playlist *file,
                                     opipe_error *err) {
  enum { ROOM = 120 };
  char own[ROOM], other[ROOM];
  if (playlist->n_groups != file->n_groups) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the plan's \"play\" has %u groups, its actions make %u; a file without it is "
                    "read, and gets it anew",
                    file->n_groups, playlist->n_groups);
  }
  for (uint32_t g = 0; g < playlist->n_groups; ++g) {
    if (!are_alike(&playlist->groups[g], &file->groups[g])) {
      describe(&playlist->groups[g], own, sizeof own);
      describe(&file->groups[g], other, sizeof other);
      return opi_fail(err, OPIPE_E_INVALID,
                      "the plan's \"play\": group %u is %s, its actions make %s; a file without it "
                      "is read, and gets it anew",
                      g, other, own);
    }
    playlist->groups[g].n_bytes = file->groups[g].n_bytes;
  }
  return OPIPE_OK;
}
