/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of gradients, and how their holders share them out. All sizes are those of masters, so
 * every process finds the same buckets for the parameters that it holds.
 */
#include <string.h>

#include "partition/memory/weights.h"

typedef struct buckets {
  const opi_weight_query *query;
  opi_weight_layout *const *layouts;
  opi_arena *arena;
  opi_weight_bucket *list; /* [n] */
  uint32_t *bucket_of;     /* [n_sources] OPIPE_NONE: in none */
  uint32_t *holders;       /* [n_holders] of the slot at hand */
  uint32_t n, n_holders;
} buckets;

static opi_weight_layout *layout_of(const buckets *b, uint32_t holder, uint32_t slot) {
  return &b->layouts[holder][opi_weight_index(&b->query->holders[holder], slot)];
}

/* Bytes of the slot's master: those of a holder here, whose programs tell, before an estimate. */
static uint64_t bytes_of(const buckets *b, uint32_t slot) {
  for (uint32_t m = 0; m < b->n_holders; ++m) {
    if (b->query->holders[b->holders[m]].backend != NULL)
      return layout_of(b, b->holders[m], slot)->master_bytes;
  }
  return layout_of(b, b->holders[0], slot)->master_bytes;
}

static void list_holders(buckets *b, uint32_t slot) {
  b->n_holders = 0;
  for (;;) {
    const uint32_t h = opi_weight_holder_at(b->query, slot, b->n_holders);
    if (h == OPIPE_NONE)
      return;
    b->holders[b->n_holders++] = h;
  }
}

/* A tie is added in the layout of all its holders if they have one. If a holder is elsewhere
 * nobody knows: then it is added in dense form, as each session finds. */
static bool has_one_layout(const buckets *b, uint32_t slot) {
  for (uint32_t m = 0; m < b->n_holders; ++m) {
    if (b->query->holders[b->holders[m]].backend == NULL)
      return false;
  }
  return opi_weight_layouts_equal(b->query, b->layouts, slot);
}

/* The stage of the slot's first reader. */
static uint32_t stage_of(const buckets *b, uint32_t slot) {
  const opi_weight_holder *holder = &b->query->holders[b->holders[0]];
  return b->query->readers[holder->first[opi_weight_index(holder, slot)]].stage;
}

/* The bucket of these holders and this stage that still has room; NULL: there is none. */
static opi_weight_bucket *find_open(const buckets *b, uint32_t stage, uint64_t n_bytes) {
  for (uint32_t i = b->n; i-- > 0;) {
    opi_weight_bucket *bucket = &b->list[i];
    if (bucket->tied || bucket->stage != stage || bucket->n_holders != b->n_holders ||
        memcmp(bucket->holders, b->holders, b->n_holders * sizeof *b->holders) != 0)
      continue;
    return n_bytes <= OPI_BUCKET_BYTES && bucket->n_bytes <= OPI_BUCKET_BYTES - n_bytes ? bucket
                                                                                        : NULL;
  }
  return NULL;
}

static opipe_status place_slot(buckets *b, uint32_t slot, opipe_error *err) {
  const bool tied = opi_weight_tied(b->query, slot);
  b->bucket_of[slot] = OPIPE_NONE;
  list_holders(b, slot);
  for (uint32_t m = 0; m < b->n_holders; ++m) {
    opi_weight_layout *layout = layout_of(b, b->holders[m], slot);
    layout->own_first = 0;
    layout->own_bytes = layout->master_bytes;
  }
  if (b->n_holders < 2 || (tied && !has_one_layout(b, slot)))
    return OPIPE_OK;
  const uint64_t n_bytes = bytes_of(b, slot);
  const uint32_t stage = stage_of(b, slot);
  opi_weight_bucket *bucket = tied ? NULL : find_open(b, stage, n_bytes);
  if (bucket == NULL) {
    bucket = &b->list[b->n++];
    *bucket = (opi_weight_bucket){.stage = stage, .n_holders = b->n_holders, .tied = tied};
    bucket->holders = opi_arena_copy(b->arena, b->holders, b->n_holders * sizeof *b->holders);
    bucket->ends = OPI_ARENA_ARRAY(b->arena, uint64_t, b->n_holders);
    if (bucket->holders == NULL || bucket->ends == NULL)
      return opi_fail_nomem(err, b->n_holders * sizeof *b->holders, "buckets of gradients");
  }
  b->bucket_of[slot] = (uint32_t)(bucket - b->list);
  bucket->n_bytes += n_bytes;
  ++bucket->n_slots;
  return OPIPE_OK;
}

static opipe_status list_slots(buckets *b, opipe_error *err) {
  for (uint32_t i = 0; i < b->n; ++i) {
    b->list[i].slots = OPI_ARENA_ARRAY(b->arena, uint32_t, b->list[i].n_slots);
    if (b->list[i].slots == NULL)
      return opi_fail_nomem(err, b->list[i].n_slots * sizeof(uint32_t), "buckets of gradients");
    b->list[i].n_slots = 0;
  }
  for (uint32_t slot = b->query->n_sources; slot-- > 0;) {
    if (b->bucket_of[slot] != OPIPE_NONE) {
      opi_weight_bucket *bucket = &b->list[b->bucket_of[slot]];
      bucket->slots[bucket->n_slots++] = slot;
    }
  }
  return OPIPE_OK;
}

/* The end of part m of n: within the parameter that it falls into, a multiple of the alignment. */
static uint64_t end_of_part(const buckets *b, const opi_weight_bucket *bucket, uint32_t m,
                            uint64_t alignment) {
  const uint32_t n = bucket->n_holders;
  const uint64_t wanted =
      bucket->n_bytes / n * (m + 1) + bucket->n_bytes % n * (m + 1) / n; /* no overflow */
  uint64_t start = 0;
  for (uint32_t i = 0; i < bucket->n_slots && m + 1 < n; ++i) {
    const uint64_t n_bytes = bytes_of(b, bucket->slots[i]);
    if (wanted < start + n_bytes)
      return start + (wanted - start) / alignment * alignment;
    start += n_bytes;
  }
  return bucket->n_bytes;
}

/* The holders of the bucket are in b->holders. */
static void share_out(const buckets *b, const opi_weight_bucket *bucket) {
  uint64_t alignment = 1, start = 0;
  for (uint32_t m = 0; m < bucket->n_holders; ++m) {
    const uint32_t own = b->query->holders[bucket->holders[m]].alignment;
    alignment = own > alignment ? own : alignment;
  }
  for (uint32_t m = 0; m < bucket->n_holders; ++m)
    bucket->ends[m] = end_of_part(b, bucket, m, alignment);
  for (uint32_t i = 0; i < bucket->n_slots; ++i) {
    const uint64_t n_bytes = bytes_of(b, bucket->slots[i]), end = start + n_bytes;
    for (uint32_t m = 0; m < bucket->n_holders; ++m) {
      opi_weight_layout *layout = layout_of(b, bucket->holders[m], bucket->slots[i]);
      const uint64_t part = m == 0 ? 0 : bucket->ends[m - 1];
      const uint64_t first = part > start ? part : start;
      const uint64_t last = bucket->ends[m] < end ? bucket->ends[m] : end;
      layout->own_bytes = last > first ? last - first : 0;
      layout->own_first = layout->own_bytes == 0 ? 0 : first - start;
    }
    start = end;
  }
}

opipe_status opi_weight_buckets(const opi_weight_query *query, opi_weight_layout *const *layouts,
                                opi_arena *arena, opi_weight_bucket **out_buckets,
                                uint32_t *out_n_buckets, opipe_error *err) {
  buckets b = {.query = query, .layouts = layouts, .arena = arena};
  b.list = OPI_ARENA_ARRAY(arena, opi_weight_bucket, query->n_sources);
  b.bucket_of = OPI_ARENA_ARRAY(arena, uint32_t, query->n_sources);
  b.holders = OPI_ARENA_ARRAY(arena, uint32_t, query->n_holders);
  if (b.list == NULL || b.bucket_of == NULL || b.holders == NULL)
    return opi_fail_nomem(err, query->n_sources * sizeof *b.list, "buckets of gradients");
  for (uint32_t slot = query->n_sources; slot-- > 0;) {
    b.bucket_of[slot] = OPIPE_NONE;
    if (query->trained[slot])
      OPI_TRY(place_slot(&b, slot, err));
  }
  OPI_TRY(list_slots(&b, err));
  for (uint32_t i = 0; i < b.n; ++i) {
    list_holders(&b, b.list[i].slots[0]);
    share_out(&b, &b.list[i]);
  }
  if (out_buckets != NULL)
    *out_buckets = b.list;
  if (out_n_buckets != NULL)
    *out_n_buckets = b.n;
  return OPIPE_OK;
}
