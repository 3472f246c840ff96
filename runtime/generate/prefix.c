/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that may be reused, by the ids that they hold and the page before them. A page is named by
 * a serial that is never used again, so what was listed behind a page that is gone is not found. */
#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#include "runtime/generate/kv.h"

static uint32_t *bucket_of(const opi_kv *pool, uint64_t parent, uint64_t salt,
                           const uint32_t *ids) {
  const uint64_t seed = parent * UINT64_C(0x9e3779b97f4a7c15) ^ salt;
  const uint64_t hash = XXH3_64bits_withSeed(ids, pool->params.page * sizeof *ids, seed);
  return &pool->buckets[hash & pool->bucket_mask];
}

uint32_t opi_prefix_find(const opi_kv *pool, uint64_t parent, uint64_t salt, const uint32_t *ids) {
  uint32_t at = *bucket_of(pool, parent, salt, ids);
  for (; at != OPI_NO_PAGE; at = pool->pages[at].same) {
    const opi_kv_page *page = &pool->pages[at];
    if (page->parent == parent && page->salt == salt &&
        memcmp(opi_kv_ids_of(pool, at), ids, pool->params.page * sizeof *ids) == 0)
      break;
  }
  return at;
}

uint32_t opi_prefix_match(const opi_kv *pool, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                          uint32_t *out) {
  const uint32_t most = pool->params.reuse ? (n_ids - 1) / pool->params.page : 0;
  uint64_t parent = 0;
  uint32_t n = 0;
  for (; n < most; ++n) {
    out[n] = opi_prefix_find(pool, parent, salt, ids + (size_t)n * pool->params.page);
    if (out[n] == OPI_NO_PAGE)
      break;
    parent = pool->pages[out[n]].serial;
  }
  return n;
}

uint32_t opi_kv_known(const opi_kv *pool, const uint32_t *ids, uint32_t n_ids, uint64_t salt) {
  const uint32_t most = pool->params.reuse ? (n_ids - 1) / pool->params.page : 0;
  uint64_t parent = 0;
  uint32_t n = 0, page = OPI_NO_PAGE;
  for (; n < most; ++n) {
    page = opi_prefix_find(pool, parent, salt, ids + (size_t)n * pool->params.page);
    if (page == OPI_NO_PAGE)
      break;
    parent = pool->pages[page].serial;
  }
  return n * pool->params.page;
}

void opi_prefix_list(opi_kv *pool, uint32_t sequence) {
  opi_kv_sequence *s = &pool->sequences[sequence];
  const uint32_t *table = opi_kv_pages_of(pool, sequence);
  const uint32_t n_full = pool->params.reuse ? s->n_computed / pool->params.page : 0;
  for (; s->n_listed < n_full; ++s->n_listed) {
    const uint32_t at = table[s->n_listed], *ids = opi_kv_ids_of(pool, at);
    const uint64_t parent = s->n_listed == 0 ? 0 : pool->pages[table[s->n_listed - 1]].serial;
    const uint32_t found = opi_prefix_find(pool, parent, s->salt, ids);
    opi_kv_page *page = &pool->pages[at];
    if (found != OPI_NO_PAGE && found != at)
      return;
    if (found == at)
      continue;
    uint32_t *bucket = bucket_of(pool, parent, s->salt, ids);
    page->serial = ++pool->last_serial;
    page->parent = parent;
    page->salt = s->salt;
    page->same = *bucket;
    *bucket = at;
  }
}

void opi_prefix_unlist(opi_kv *pool, uint32_t page) {
  opi_kv_page *p = &pool->pages[page];
  uint32_t *link = bucket_of(pool, p->parent, p->salt, opi_kv_ids_of(pool, page));
  while (*link != page)
    link = &pool->pages[*link].same;
  *link = p->same;
  p->serial = 0;
}
