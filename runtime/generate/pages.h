/* SPDX-License-Identifier: Apache-2.0 */
/* Where keys and values lie: a pool of pages of `page` tokens, the same page numbers on every
 * stage. Inside runtime/generate.
 *
 * A sequence is a list of pages. Pages are shared by counting references; one that is shared, or
 * kept for reuse, is copied before it is written to. Full pages whose tokens have been computed are
 * found again by the ids from the sequence's beginning (and its salt): ids are compared, a hash
 * only says where to look. Pages that no sequence has stay for reuse until their place is needed,
 * the least recently used first.
 *
 *   free ──begin, append──► held by sequences ──last one ends──► kept for reuse ──begin──► held
 *    ▲                             │ not computed, or not full          │
 *    └─────────────────────────────┴──────────── evicted ──────────────-┘
 *
 * A page may be given to another sequence while passes that read it are in flight: every stage runs
 * passes in one order, so they have read it before it is written again.
 * Nothing is allocated after opi_kv_create. One thread at a time. */
#ifndef OPI_GENERATE_PAGES_H
#define OPI_GENERATE_PAGES_H

#include "runtime/generate/rules.h"

#define OPI_NO_PAGE UINT32_MAX
#define OPI_NO_SEQUENCE UINT32_MAX

typedef struct opi_kv_params {
  uint32_t page;        /* tokens per page */
  uint32_t n_pages;     /* below 2^31 */
  uint32_t n_sequences; /* sequences are 0 to n_sequences - 1; each is closed at first */
  uint32_t context;     /* most tokens of a sequence */
  bool reuse;           /* keep pages for sequences with the same beginning */
} opi_kv_params;

typedef struct opi_kv opi_kv;

/* Bytes of host memory. Errors: INVALID: a parameter is 0 or too large. */
opipe_status opi_kv_bytes(const opi_kv_params *params, uint64_t *out_bytes, opipe_error *err);
/* Errors: as opi_kv_bytes, NOMEM. */
opipe_status opi_kv_create(const opipe_allocator *allocator, const opi_kv_params *params,
                           opi_kv **out, opipe_error *err);
void opi_kv_free(opi_kv *pool); /* accepts NULL */

/* Could a sequence of n_tokens ever be held? Errors: LIMIT with both numbers: context, or all
 * pages. */
opipe_status opi_kv_check(const opi_kv *pool, uint32_t n_tokens, opipe_error *err);

/* A page to copy on every stage before a pass writes rows, in the order in which copies were asked
 * for; `from` may be another sequence's afterwards. */
typedef struct opi_page_copy {
  uint32_t from, to; /* OPI_NO_PAGE: nothing to copy */
  uint32_t n_tokens; /* the first of the page */
} opi_page_copy;

/* Opens the closed sequence with pages for ids [n_ids > 0], all of them or none. *out_n_reused: so
 * many tokens are there already, a multiple of `page`, fewer than n_ids. PENDING: fewer pages than
 * that and n_left more can be had now, nothing has changed. Errors: those of opi_kv_check; STATE:
 * it is open. */
opipe_status opi_kv_begin(opi_kv *pool, uint32_t sequence, const uint32_t *ids, uint32_t n_ids,
                          uint64_t salt, uint32_t n_left, uint32_t *out_n_reused, opipe_error *err);
/* Room for further ids [n_ids]. PENDING: as above. Errors: LIMIT: context; STATE: it is closed. */
opipe_status opi_kv_append(opi_kv *pool, uint32_t sequence, const uint32_t *ids, uint32_t n_ids,
                           opi_page_copy *out_copy, opipe_error *err);
/* The first n_tokens have been computed, or will be before any pass that is scheduled from now on:
 * their full pages may be reused. */
void opi_kv_commit(opi_kv *pool, uint32_t sequence, uint32_t n_tokens);
/* Leaves the first n_tokens; does nothing if there are not more. */
void opi_kv_truncate(opi_kv *pool, uint32_t sequence, uint32_t n_tokens);
/* Opens the closed sequence `to` with the tokens of `from`, whose pages they share. Errors: STATE.
 */
opipe_status opi_kv_fork(opi_kv *pool, uint32_t from, uint32_t to, opipe_error *err);
/* Closes it; accepts a closed one. keep false: pages that only it has are not kept for reuse. */
void opi_kv_end(opi_kv *pool, uint32_t sequence, bool keep);

/* How many of the ids [n_ids > 0] opi_kv_begin would find computed. */
uint32_t opi_kv_known(const opi_kv *pool, const uint32_t *ids, uint32_t n_ids, uint64_t salt);
/* The pages in order of tokens [*out_n_pages]; valid until the sequence changes. */
const uint32_t *opi_kv_table(const opi_kv *pool, uint32_t sequence, uint32_t *out_n_pages);
/* Tokens with a place; of these, the first that opi_kv_begin found or opi_kv_commit was told of; 0
 * if closed. */
uint32_t opi_kv_tokens(const opi_kv *pool, uint32_t sequence);
uint32_t opi_kv_computed(const opi_kv *pool, uint32_t sequence);
/* Pages that can be had without ending a sequence. */
uint32_t opi_kv_room(const opi_kv *pool);

/* Adds an array [n, m] of elements of `size` bytes to the layout of a block of *io_bytes; *out_at:
 * its offset. False: the block exceeds memory. */
static inline bool opi_block_place(uint64_t *io_bytes, uint64_t n, uint64_t m, uint64_t size,
                                   uint64_t *out_at) {
  uint64_t bytes = 0;
  *out_at = opi_align_up(*io_bytes, 8);
  return !opi_mul_u64(n, m, &bytes) && !opi_mul_u64(bytes, size, &bytes) &&
         !opi_add_u64(*out_at, bytes, io_bytes) && *io_bytes < UINT64_MAX / 2;
}

typedef struct opi_kv_counts {
  uint64_t asked_tokens, reused_tokens; /* of opi_kv_begin */
  uint64_t evicted;                     /* pages that were kept for reuse */
  uint64_t copied;                      /* pages */
  uint32_t free, kept, held;            /* pages now; their sum is n_pages */
} opi_kv_counts;
opi_kv_counts opi_kv_count(const opi_kv *pool);

#endif /* OPI_GENERATE_PAGES_H */
