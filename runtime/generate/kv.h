/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's parts. Inside pages.c and prefix.c. */
#ifndef OPI_GENERATE_KV_H
#define OPI_GENERATE_KV_H

#include "runtime/generate/pages.h"

/* A page has one of three states: free (refs 0, serial 0), held (refs > 0), kept (refs 0, serial
 * not 0). Free pages are a stack by `next`, kept ones a ring by `next` and `before`, the least
 * recently used first; its head is the page after the last. */
typedef struct opi_kv_page {
  uint32_t refs;
  uint32_t next, before;
  uint32_t same;   /* the next page of its bucket; OPI_NO_PAGE: none */
  uint64_t serial; /* a new number each time it is listed for reuse; 0: it is not */
  uint64_t parent; /* serial of the page before it when it was listed; 0: it is the first */
  uint64_t salt;
} opi_kv_page;

typedef struct opi_kv_sequence {
  bool open;
  uint32_t n_tokens, n_computed;
  uint32_t n_listed; /* its first pages, each of which is the one that a search would find */
  uint64_t salt;
} opi_kv_sequence;

struct opi_kv {
  const opipe_allocator *allocator;
  opi_kv_params params;
  uint64_t n_bytes;
  uint32_t table_room, bucket_mask;
  uint32_t first_free, n_free, n_kept;
  uint64_t last_serial;
  opi_kv_counts counts;       /* free, kept and held are filled in when asked for */
  opi_kv_page *pages;         /* [n_pages + 1]; the last is the ring's head */
  opi_kv_sequence *sequences; /* [n_sequences] */
  uint32_t *tables;           /* [n_sequences, table_room] */
  uint32_t *ids;              /* [n_pages, page] */
  uint32_t *buckets;          /* [bucket_mask + 1]: first page */
};

static inline uint32_t *opi_kv_pages_of(const opi_kv *pool, uint32_t sequence) {
  return pool->tables + (size_t)sequence * pool->table_room;
}
static inline uint32_t *opi_kv_ids_of(const opi_kv *pool, uint32_t page) {
  return pool->ids + (size_t)page * pool->params.page;
}

/* The listed page with these ids [params.page] behind the page of serial `parent`; OPI_NO_PAGE:
 * none. */
uint32_t opi_prefix_find(const opi_kv *pool, uint64_t parent, uint64_t salt, const uint32_t *ids);
/* Lists the sequence's full pages that have been computed. Where another page with the same ids is
 * listed, that one stays, and the pages behind are not listed. */
void opi_prefix_list(opi_kv *pool, uint32_t sequence);
void opi_prefix_unlist(opi_kv *pool, uint32_t page);
/* Pages [at most most] that begin ids [n_ids], written to `out`; returns how many. */
uint32_t opi_prefix_match(const opi_kv *pool, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                          uint32_t *out);

#endif /* OPI_GENERATE_KV_H */
