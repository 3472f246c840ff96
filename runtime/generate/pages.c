/* SPDX-License-Identifier: Apache-2.0 */
/* Pages come from the free ones, then from those kept for reuse. A call first finds out whether it
 * can have all that it needs, and then takes it, so that PENDING leaves everything as it was. */
#include <string.h>

#include "runtime/generate/kv.h"

/* ---- opening ---- */

/* Offsets of the pool's arrays in its block. */
typedef struct pool_layout {
  uint64_t pages, sequences, tables, ids, buckets, n_bytes;
  uint32_t table_room, n_buckets;
} pool_layout;

static opipe_status lay_out(const opi_kv_params *p, pool_layout *out, opipe_error *err) {
  pool_layout l = {.n_bytes = sizeof(opi_kv), .n_buckets = 1};
  if (p->page == 0 || p->n_pages == 0 || p->n_pages > INT32_MAX || p->n_sequences == 0 ||
      p->context == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a pool of %u pages of %u tokens for %u sequences of at most %u tokens: each "
                    "must be at least 1, and pages at most %d",
                    p->n_pages, p->page, p->n_sequences, p->context, INT32_MAX);
  }
  while (l.n_buckets < p->n_pages)
    l.n_buckets *= 2;
  l.table_room = (p->context - 1) / p->page + 1;
  if (!opi_block_place(&l.n_bytes, (uint64_t)p->n_pages + 1, 1, sizeof(opi_kv_page), &l.pages) ||
      !opi_block_place(&l.n_bytes, p->n_sequences, 1, sizeof(opi_kv_sequence), &l.sequences) ||
      !opi_block_place(&l.n_bytes, p->n_sequences, l.table_room, sizeof(uint32_t), &l.tables) ||
      !opi_block_place(&l.n_bytes, p->n_pages, p->page, sizeof(uint32_t), &l.ids) ||
      !opi_block_place(&l.n_bytes, l.n_buckets, 1, sizeof(uint32_t), &l.buckets)) {
    return opi_fail(err, OPIPE_E_LIMIT, "a pool of %u pages of %u tokens: its tables exceed memory",
                    p->n_pages, p->page);
  }
  *out = l;
  return OPIPE_OK;
}

opipe_status opi_kv_bytes(const opi_kv_params *params, uint64_t *out_bytes, opipe_error *err) {
  pool_layout l = {.n_bytes = 0};
  OPI_TRY(lay_out(params, &l, err));
  *out_bytes = l.n_bytes;
  return OPIPE_OK;
}

opipe_status opi_kv_create(const opipe_allocator *allocator, const opi_kv_params *params,
                           opi_kv **out, opipe_error *err) {
  pool_layout l = {.n_bytes = 0};
  OPI_TRY(lay_out(params, &l, err));
  char *block = opi_alloc_zero(allocator, 1, (size_t)l.n_bytes);
  if (block == NULL)
    return opi_fail_nomem(err, l.n_bytes, "tables of pages");
  opi_kv *pool = (opi_kv *)(void *)block;
  pool->allocator = allocator;
  pool->params = *params;
  pool->n_bytes = l.n_bytes;
  pool->table_room = l.table_room;
  pool->bucket_mask = l.n_buckets - 1;
  pool->pages = (opi_kv_page *)(void *)(block + l.pages);
  pool->sequences = (opi_kv_sequence *)(void *)(block + l.sequences);
  pool->tables = (uint32_t *)(void *)(block + l.tables);
  pool->ids = (uint32_t *)(void *)(block + l.ids);
  pool->buckets = (uint32_t *)(void *)(block + l.buckets);
  memset(pool->buckets, 0xff, l.n_buckets * sizeof *pool->buckets);
  for (uint32_t i = 0; i < params->n_pages; ++i)
    pool->pages[i].next = i + 1 < params->n_pages ? i + 1 : OPI_NO_PAGE;
  pool->n_free = params->n_pages;
  pool->pages[params->n_pages].next = pool->pages[params->n_pages].before = params->n_pages;
  *out = pool;
  return OPIPE_OK;
}

void opi_kv_free(opi_kv *pool) {
  if (pool != NULL)
    opi_free(pool->allocator, pool, (size_t)pool->n_bytes);
}

/* ---- single pages ---- */

static void unkeep(opi_kv *pool, uint32_t page) {
  opi_kv_page *p = &pool->pages[page];
  pool->pages[p->before].next = p->next;
  pool->pages[p->next].before = p->before;
  --pool->n_kept;
}

static void hold(opi_kv *pool, uint32_t page) {
  if (pool->pages[page].refs++ == 0)
    unkeep(pool, page);
}

static void free_page(opi_kv *pool, uint32_t page) {
  pool->pages[page].next = pool->first_free;
  pool->first_free = page;
  ++pool->n_free;
}

/* A page for the caller alone; there is one. */
static uint32_t take_page(opi_kv *pool) {
  const uint32_t head = pool->params.n_pages;
  uint32_t page = pool->first_free;
  if (pool->n_free > 0) {
    pool->first_free = pool->pages[page].next;
    --pool->n_free;
  } else {
    page = pool->pages[head].next;
    unkeep(pool, page);
    opi_prefix_unlist(pool, page);
    ++pool->counts.evicted;
  }
  pool->pages[page].refs = 1;
  return page;
}

static void drop_page(opi_kv *pool, uint32_t page, bool keep) {
  opi_kv_page *p = &pool->pages[page];
  opi_kv_page *head = &pool->pages[pool->params.n_pages];
  if (--p->refs > 0)
    return;
  if (!keep && p->serial != 0)
    opi_prefix_unlist(pool, page);
  if (p->serial == 0) {
    free_page(pool, page);
    return;
  }
  p->before = head->before;
  p->next = pool->params.n_pages;
  pool->pages[p->before].next = page;
  head->before = page;
  ++pool->n_kept;
}

uint32_t opi_kv_room(const opi_kv *pool) {
  return pool->n_free + pool->n_kept;
}

/* ---- sequences ---- */

static uint32_t pages_for(const opi_kv *pool, uint32_t n_tokens) {
  return n_tokens == 0 ? 0 : (n_tokens - 1) / pool->params.page + 1;
}

static opipe_status check_context(const opi_kv *pool, uint64_t n_tokens, opipe_error *err) {
  if (n_tokens <= pool->params.context)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT, "a sequence of %llu tokens, the context has %u",
                  (unsigned long long)n_tokens, pool->params.context);
}

opipe_status opi_kv_check(const opi_kv *pool, uint32_t n_tokens, opipe_error *err) {
  OPI_TRY(check_context(pool, n_tokens, err));
  if (pages_for(pool, n_tokens) <= pool->params.n_pages)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT,
                  "a sequence of %u tokens takes %u pages of %u tokens, there are %u", n_tokens,
                  pages_for(pool, n_tokens), pool->params.page, pool->params.n_pages);
}

static opipe_status check_open(const opi_kv *pool, uint32_t sequence, bool open, opipe_error *err) {
  if (sequence >= pool->params.n_sequences) {
    return opi_fail(err, OPIPE_E_INVALID, "sequence %u, the pool has %u", sequence,
                    pool->params.n_sequences);
  }
  if (pool->sequences[sequence].open == open)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_STATE, "sequence %u is %s", sequence, open ? "closed" : "open");
}

/* Writes ids behind the sequence's last token; their pages are in the table. */
static void put_ids(opi_kv *pool, uint32_t sequence, const uint32_t *ids, uint32_t n_ids) {
  opi_kv_sequence *s = &pool->sequences[sequence];
  const uint32_t *table = opi_kv_pages_of(pool, sequence), size = pool->params.page;
  for (uint32_t done = 0, n = 0; done < n_ids; done += n, s->n_tokens += n) {
    const uint32_t at = s->n_tokens % size;
    n = size - at < n_ids - done ? size - at : n_ids - done;
    memcpy(opi_kv_ids_of(pool, table[s->n_tokens / size]) + at, ids + done, n * sizeof *ids);
  }
}

opipe_status opi_kv_begin(opi_kv *pool, uint32_t sequence, const uint32_t *ids, uint32_t n_ids,
                          uint64_t salt, uint32_t n_left, uint32_t *out_n_reused,
                          opipe_error *err) {
  OPI_TRY(check_open(pool, sequence, false, err));
  if (n_ids == 0)
    return opi_fail(err, OPIPE_E_INVALID, "a sequence without tokens");
  OPI_TRY(opi_kv_check(pool, n_ids, err));
  opi_kv_sequence *s = &pool->sequences[sequence];
  uint32_t *table = opi_kv_pages_of(pool, sequence);
  const uint32_t n_found = opi_prefix_match(pool, ids, n_ids, salt, table);
  const uint32_t n_new = pages_for(pool, n_ids) - n_found;
  uint32_t n_waking = 0; /* found pages that nobody holds: part of the room now */
  for (uint32_t i = 0; i < n_found; ++i)
    n_waking += pool->pages[table[i]].refs == 0;
  if ((uint64_t)n_new + n_left > opi_kv_room(pool) - n_waking)
    return OPIPE_PENDING;
  for (uint32_t i = 0; i < n_found; ++i)
    hold(pool, table[i]);
  for (uint32_t i = 0; i < n_new; ++i)
    table[n_found + i] = take_page(pool);
  const uint32_t n_reused = n_found * pool->params.page;
  *s = (opi_kv_sequence){.open = true,
                         .n_tokens = n_reused,
                         .n_computed = n_reused,
                         .n_listed = n_found,
                         .salt = salt};
  put_ids(pool, sequence, ids + n_reused, n_ids - n_reused);
  pool->counts.asked_tokens += n_ids;
  pool->counts.reused_tokens += n_reused;
  *out_n_reused = n_reused;
  return OPIPE_OK;
}

/* Replaces the last page, which holds n_tokens of the sequence, by a copy. */
static opi_page_copy copy_last(opi_kv *pool, uint32_t sequence, uint32_t n_tokens) {
  uint32_t *last =
      &opi_kv_pages_of(pool, sequence)[pool->sequences[sequence].n_tokens / pool->params.page];
  const opi_page_copy copy = {*last, take_page(pool), n_tokens};
  memcpy(opi_kv_ids_of(pool, copy.to), opi_kv_ids_of(pool, copy.from), n_tokens * sizeof(uint32_t));
  *last = copy.to;
  drop_page(pool, copy.from, true);
  ++pool->counts.copied;
  return copy;
}

opipe_status opi_kv_append(opi_kv *pool, uint32_t sequence, const uint32_t *ids, uint32_t n_ids,
                           opi_page_copy *out_copy, opipe_error *err) {
  OPI_TRY(check_open(pool, sequence, true, err));
  const opi_kv_sequence *s = &pool->sequences[sequence];
  uint32_t *table = opi_kv_pages_of(pool, sequence);
  OPI_TRY(check_context(pool, (uint64_t)s->n_tokens + n_ids, err));
  *out_copy = (opi_page_copy){OPI_NO_PAGE, OPI_NO_PAGE, 0};
  if (n_ids == 0)
    return OPIPE_OK;
  const uint32_t n_old = pages_for(pool, s->n_tokens), n_part = s->n_tokens % pool->params.page;
  const uint32_t n_new = pages_for(pool, s->n_tokens + n_ids) - n_old;
  const opi_kv_page *last = n_part == 0 ? NULL : &pool->pages[table[n_old - 1]];
  const bool copies = last != NULL && (last->refs > 1 || last->serial != 0);
  if (n_new + copies > opi_kv_room(pool))
    return OPIPE_PENDING;
  for (uint32_t i = 0; i < n_new; ++i)
    table[n_old + i] = take_page(pool);
  if (copies)
    *out_copy = copy_last(pool, sequence, n_part);
  put_ids(pool, sequence, ids, n_ids);
  return OPIPE_OK;
}

void opi_kv_commit(opi_kv *pool, uint32_t sequence, uint32_t n_tokens) {
  opi_kv_sequence *s = &pool->sequences[sequence];
  const uint32_t n = n_tokens < s->n_tokens ? n_tokens : s->n_tokens;
  if (!s->open || n <= s->n_computed)
    return;
  const bool has_page = n / pool->params.page > s->n_computed / pool->params.page;
  s->n_computed = n;
  if (has_page)
    opi_prefix_list(pool, sequence);
}

void opi_kv_truncate(opi_kv *pool, uint32_t sequence, uint32_t n_tokens) {
  opi_kv_sequence *s = &pool->sequences[sequence];
  const uint32_t *table = opi_kv_pages_of(pool, sequence);
  if (!s->open || n_tokens >= s->n_tokens)
    return;
  for (uint32_t i = pages_for(pool, s->n_tokens); i > pages_for(pool, n_tokens); --i)
    drop_page(pool, table[i - 1], true);
  s->n_tokens = n_tokens;
  s->n_computed = n_tokens < s->n_computed ? n_tokens : s->n_computed;
  const uint32_t n_full = n_tokens / pool->params.page;
  s->n_listed = n_full < s->n_listed ? n_full : s->n_listed;
}

opipe_status opi_kv_fork(opi_kv *pool, uint32_t from, uint32_t to, opipe_error *err) {
  OPI_TRY(check_open(pool, from, true, err));
  OPI_TRY(check_open(pool, to, false, err));
  const uint32_t n = pages_for(pool, pool->sequences[from].n_tokens);
  memcpy(opi_kv_pages_of(pool, to), opi_kv_pages_of(pool, from), n * sizeof(uint32_t));
  pool->sequences[to] = pool->sequences[from];
  for (uint32_t i = 0; i < n; ++i)
    ++pool->pages[opi_kv_pages_of(pool, to)[i]].refs;
  return OPIPE_OK;
}

/* From the last page on: among pages that are kept, the end of a beginning goes before it. */
void opi_kv_end(opi_kv *pool, uint32_t sequence, bool keep) {
  opi_kv_sequence *s = &pool->sequences[sequence];
  const uint32_t *table = opi_kv_pages_of(pool, sequence);
  for (uint32_t i = s->open ? pages_for(pool, s->n_tokens) : 0; i > 0; --i)
    drop_page(pool, table[i - 1], keep);
  *s = (opi_kv_sequence){.open = false};
}

const uint32_t *opi_kv_table(const opi_kv *pool, uint32_t sequence, uint32_t *out_n_pages) {
  *out_n_pages = pages_for(pool, pool->sequences[sequence].n_tokens);
  return opi_kv_pages_of(pool, sequence);
}

uint32_t opi_kv_tokens(const opi_kv *pool, uint32_t sequence) {
  return pool->sequences[sequence].n_tokens;
}

uint32_t opi_kv_computed(const opi_kv *pool, uint32_t sequence) {
  return pool->sequences[sequence].n_computed;
}

opi_kv_counts opi_kv_count(const opi_kv *pool) {
  opi_kv_counts counts = pool->counts;
  counts.free = pool->n_free;
  counts.kept = pool->n_kept;
  counts.held = pool->params.n_pages - pool->n_free - pool->n_kept;
  return counts;
}
