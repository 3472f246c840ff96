/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of stages' gradients in a playlist: a group for every bucket, as partition/memory makes
 * them. If the plan was read its file tells the buckets, which follow from devices' layouts. */
#include <string.h>

#include "partition/lists/playlist_build.h"

/* Bytes that a sum over ranks moves for a parameter. */
static uint64_t bytes_of(const opi_playlist_maker *m, uint32_t slot) {
  return m->sum_bytes == NULL ? m->cut->sources[slot].n_bytes : m->sum_bytes[slot];
}

static bool is_shared(const opi_playlist_maker *m) {
  return m->plan->whole->train->optimizer.shard != 0;
}

static opipe_status list_slots(opi_playlist_maker *m, const bool *reads) {
  opi_playlist_sums *sums = &m->sums;
  const uint32_t n_shards = opi_playlist_shards(m), n_params = m->cut->n_params;
  const size_t n = (size_t)n_shards * n_params;
  sums->slot_first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, (size_t)n_shards + 1);
  sums->bucket_first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, (size_t)n_shards + 1);
  sums->slots = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n);
  sums->buckets = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n);
  if (sums->slot_first == NULL || sums->bucket_first == NULL || sums->slots == NULL ||
      sums->buckets == NULL)
    return opi_fail_nomem(m->err, n * sizeof *sums->slots, "a playlist");
  uint32_t at = 0;
  for (uint32_t w = 0; w < n_shards; ++w) {
    sums->slot_first[w] = at;
    for (uint32_t slot = 0; slot < n_params; ++slot) {
      if (reads[(size_t)w * n_params + slot])
        sums->slots[at++] = slot;
    }
  }
  sums->slot_first[n_shards] = at;
  memset(sums->buckets, 0xff, at * sizeof *sums->buckets);
  return OPIPE_OK;
}

/* The file's next bucket like the group at hand; NULL: there is none. */
static const opi_playlist_group *next_of_file(const opi_playlist_maker *m,
                                              const opi_playlist_group *like) {
  const uint32_t at = m->out->n_groups;
  const opi_playlist_group *g =
      m->file == NULL || at >= m->file->n_groups ? NULL : &m->file->groups[at];
  return g != NULL && !g->each && !g->waits && g->stage == like->stage &&
                 g->n_ranks == like->n_ranks &&
                 memcmp(g->ranks, like->ranks, g->n_ranks * sizeof *g->ranks) == 0
             ? g
             : NULL;
}

/* Makes the bucket of slots from `last` down, skipping ties; returns the index below its lowest. */
static opipe_status add_bucket(opi_playlist_maker *m, const opi_playlist_group *like,
                               const bool *tied, uint32_t first, uint32_t *io_last) {
  opi_playlist_sums *sums = &m->sums;
  const opi_playlist_group *file = next_of_file(m, like);
  opi_playlist_group *to = &m->out->groups[m->out->n_groups];
  *to = *like;
  to->how = is_shared(m) ? OPI_PLAY_SCATTER : OPI_PLAY_SUM;
  for (; *io_last > first; --*io_last) {
    const uint32_t slot = sums->slots[*io_last - 1];
    const uint64_t n = bytes_of(m, slot);
    if (tied[slot])
      continue;
    const bool full =
        m->file != NULL
            ? file != NULL && to->n_params == file->n_params && file->n_params != 0
            : to->n_params != 0 && (n > OPI_BUCKET_BYTES || to->n_bytes > OPI_BUCKET_BYTES - n);
    if (full)
      break;
    sums->buckets[*io_last - 1] = m->out->n_groups;
    to->n_bytes += n;
    ++to->n_params;
  }
  if (to->n_params == 0 || to->n_bytes == 0)
    return OPIPE_OK;
  to->ranks = opi_arena_copy(m->arena, like->ranks, like->n_ranks * sizeof *like->ranks);
  ++m->out->n_groups;
  return to->ranks == NULL
             ? opi_fail_nomem(m->err, like->n_ranks * sizeof *like->ranks, "a playlist")
             : OPIPE_OK;
}

static opipe_status make_shard(opi_playlist_maker *m, uint32_t w, const bool *tied,
                               const bool *at_home, uint32_t *ranks) {
  const uint32_t n_ranks = m->plan->n_ranks, first = m->sums.slot_first[w];
  opi_playlist_group like = {.stage = w / opi_plan_width(m->plan->whole), .ranks = ranks};
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    if (at_home[(size_t)w * n_ranks + rank])
      ranks[like.n_ranks++] = rank;
  }
  uint32_t last = like.n_ranks < 2 ? first : m->sums.slot_first[w + 1];
  while (last > first)
    OPI_TRY(add_bucket(m, &like, tied, first, &last));
  return OPIPE_OK;
}

opipe_status opi_playlist_buckets_make(opi_playlist_maker *m, const bool *reads, const bool *tied,
                                       const bool *at_home) {
  const uint32_t n_shards = opi_playlist_shards(m);
  uint32_t *ranks = OPI_ARENA_ARRAY(&m->scratch, uint32_t, m->plan->n_ranks);
  OPI_TRY(list_slots(m, reads));
  /* Buckets and ties, each gathered, too; barriers; norms. */
  const size_t n =
      2 * ((size_t)m->sums.slot_first[n_shards] + m->sums.n_ties) + m->plan->n_ranks + 2;
  m->out->groups = OPI_ARENA_ARRAY(m->arena, opi_playlist_group, n);
  m->room_groups = (uint32_t)n;
  if (ranks == NULL || m->out->groups == NULL)
    return opi_fail_nomem(m->err, n * sizeof *m->out->groups, "a playlist");
  for (uint32_t w = 0; w < n_shards; ++w) {
    m->sums.bucket_first[w] = m->out->n_groups;
    OPI_TRY(make_shard(m, w, tied, at_home, ranks));
  }
  m->sums.bucket_first[n_shards] = m->out->n_groups;
  return OPIPE_OK;
}

/* Whether all gradients of a bucket are among the `n` with the highest slots. */
static bool is_complete(const opi_playlist_maker *m, uint32_t shard, uint32_t group, uint32_t n) {
  const uint32_t end = m->sums.slot_first[shard + 1];
  for (uint32_t i = m->sums.slot_first[shard]; i + n < end; ++i) {
    if (m->sums.buckets[i] == group)
      return false;
  }
  return true;
}

opipe_status opi_playlist_buckets_start(opi_playlist_maker *m, uint32_t shard, uint32_t replica,
                                        uint32_t n) {
  uint32_t *n_started = &m->sums.n_started[shard];
  for (;;) {
    const uint32_t group = m->sums.bucket_first[shard] + *n_started;
    if (group == m->sums.bucket_first[shard + 1] || !is_complete(m, shard, group, n))
      return OPIPE_OK;
    ++*n_started;
    OPI_TRY(opi_playlist_add(
        m,
        &(opi_playlist_item){.kind = OPI_PLAY_START, .at = group, .replica = (uint16_t)replica}));
  }
}

uint32_t opi_playlist_reduces(const opi_playlist_maker *m, uint32_t rank, uint32_t whole) {
  uint32_t n = 0;
  for (uint32_t i = m->lists->rank_first[rank]; i < m->lists->rank_first[rank + 1]; ++i) {
    n += m->lists->steps[i].kind == OPI_ACT_REDUCE &&
         m->lists->steps[i].stage / opi_playlist_pieces(m) == whole;
  }
  return n;
}
