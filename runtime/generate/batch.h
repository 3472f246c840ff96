/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of passes: which rows of which sequences are computed together. Inside
 * runtime/generate.
 *
 *            submit, extend            next: pages, in order              accept: goes on
 *   free ──────────────────► waiting ────────────────────────► active ──────────────────┐
 *    ▲                        ▲  ▲                              │ ▲  └───────────────────┘
 *    │ release         extend │  └───────── evicted ────────────┤
 *    └──────────── idle ──────┘                                 │
 *                   ▲              accept: the turn ends, stop  │
 *                   └───────────────────────────────────────────┘
 *
 * Only active sequences have pages. An idle one is its ids: what it leaves in the pool for reuse is
 * found again when its next turn begins. A pass has rows of sequences that generate, one each and
 * its draft, and slices of prompts in the rest. Passes are computed in order on every stage, and up
 * to `groups` are in flight; the caller reports their ends in the same order.
 *
 * Who waits, runs and is evicted follows from the order of calls alone. A sequence that has waited
 * longer is never overtaken, and the youngest is evicted, so the oldest always goes on.
 * Nothing is allocated after opi_batch_create. One thread at a time. */
#ifndef OPI_GENERATE_BATCH_H
#define OPI_GENERATE_BATCH_H

#include "runtime/generate/pages.h"

enum { OPI_PASS_CLASSES = 32 };

typedef struct opi_batch_params {
  opi_kv_params pool; /* n_sequences: open ones, whatever their state */
  uint32_t active;    /* most sequences with pages at a time */
  uint32_t rows;      /* most rows of a pass */
  uint32_t groups;    /* most passes in flight */
  uint32_t draft;     /* most ids of a draft */
  /* Time of a pass, in any unit: class_time[c] of one padded to 2^c rows (the last class: to
   * `rows`), and key_time for each key that each row sees. */
  double class_time[OPI_PASS_CLASSES], key_time;
  double gap; /* longest pass with slices of prompts; 0: no limit */
  /* Slices of prompts: most rows of one (0: `rows`), and the longest as a pass of its own (0: any).
   */
  uint32_t slice_rows;
  double slice_time;
} opi_batch_params;

typedef struct opi_batch opi_batch;

/* Bytes of host memory, the pool's included. Errors: INVALID, LIMIT. */
opipe_status opi_batch_bytes(const opi_batch_params *params, uint64_t *out_bytes, opipe_error *err);
opipe_status opi_batch_create(const opipe_allocator *allocator, const opi_batch_params *params,
                              opi_batch **out, opipe_error *err);
void opi_batch_free(opi_batch *batch); /* accepts NULL */

/* Most ids of a sequence: context, or what all pages hold. */
uint32_t opi_batch_context(const opi_batch *batch);
const opi_kv *opi_batch_pool(const opi_batch *batch);

/* ---- sequences ---- */

/* Opens a sequence that waits with ids [n_ids > 0]. salt: see opi_kv_begin. Errors: LIMIT: with one
 * more id it exceeds context or all pages, or too many are open; INVALID: no ids. */
opipe_status opi_batch_submit(opi_batch *batch, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                              uint32_t *out_sequence, opipe_error *err);
/* A further turn of an idle sequence: it waits with ids [n_ids > 0] behind those that it has.
 * Errors: LIMIT; INVALID; STATE: it is not idle. */
opipe_status opi_batch_extend(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, opipe_error *err);
/* Leaves the first n_ids > 0 of an idle sequence. Errors: INVALID; STATE. */
opipe_status opi_batch_truncate(opi_batch *batch, uint32_t sequence, uint32_t n_ids,
                                opipe_error *err);
/* Opens another with the same ids, in the same state, with shared pages; it waits where there is no
 * room for another active one, or the prompt is not filled in. While ids are due of one, they are
 * due of both. Errors: LIMIT: too many are open; STATE: it has rows in flight. */
opipe_status opi_batch_fork(opi_batch *batch, uint32_t sequence, uint32_t *out_sequence,
                            opipe_error *err);
/* Opens another with the first n_ids > 0 of opi_batch_ids, whatever is in flight or due of the
 * sequence. goes_on: it shares the pages of what has been computed of them, where that is all but
 * the last id and another active one has room, and waits otherwise; else it is idle. Errors: LIMIT:
 * too many are open. */
opipe_status opi_batch_branch(opi_batch *batch, uint32_t sequence, uint32_t n_ids, bool goes_on,
                              uint32_t *out_sequence, opipe_error *err);
/* Ends the turn: it is idle, and what is in flight of it no longer counts. Accepts an idle one.
 * keep false: its pages may hold anything, and are not reused. Errors: STATE: it is not open. */
opipe_status opi_batch_stop(opi_batch *batch, uint32_t sequence, bool keep, opipe_error *err);
/* Closes it, whatever its state. Errors: STATE. */
opipe_status opi_batch_release(opi_batch *batch, uint32_t sequence, opipe_error *err);

/* A draft for the sequence's next row, of which the first ids that fit are taken. Errors: STATE:
 * ids are due, or rows in flight; LIMIT: params.draft. */
opipe_status opi_batch_draft(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                             uint32_t n_ids, opipe_error *err);

enum { OPI_SEQUENCE_FREE, OPI_SEQUENCE_IDLE, OPI_SEQUENCE_WAITING, OPI_SEQUENCE_ACTIVE };

typedef struct opi_sequence_info {
  uint32_t state;
  uint32_t n_ids,
      n_computed;       /* n_computed: rows that have been put into passes since it has pages */
  uint32_t n_in_flight; /* passes */
  uint32_t n_draft;     /* of the next row, or of the rows in flight or due */
  bool due;             /* opi_batch_accept is expected */
  uint64_t n_evicted, n_reused; /* times; tokens, of all its turns */
} opi_sequence_info;
/* sequence < n_sequences. */
opi_sequence_info opi_batch_info(const opi_batch *batch, uint32_t sequence);
/* Its ids [n_ids], with room for opi_batch_context of them behind which nothing of it is kept:
 * whoever samples may write new ids there before opi_batch_accept takes them over. */
uint32_t *opi_batch_ids(opi_batch *batch, uint32_t sequence);

/* ---- passes ---- */

/* Rows of one sequence: positions first to first + n_rows - 1. */
typedef struct opi_pass_entry {
  uint32_t sequence;
  uint32_t turn, stay; /* own: which turn, and which stay in the pool, it belongs to */
  uint32_t first, n_rows;
  uint32_t n_draft;   /* the last rows: of the draft */
  uint32_t n_wanted;  /* the last rows: their logits are wanted. 0 or n_draft + 1 */
  opi_page_copy copy; /* before any row is written */
  bool live;          /* after opi_batch_done: it still counts */
} opi_pass_entry;

typedef struct opi_pass {
  uint64_t number; /* from 1 on */
  uint32_t n_rows, n_entries;
  uint64_t n_keys;         /* that all rows see */
  double time;             /* by the parameters */
  opi_pass_entry *entries; /* [n_entries]: in the order in which copies are made */
} opi_pass;

/* The next pass; NULL: there is nothing to do now, or `groups` are in flight. Valid until
 * opi_batch_done of it and `groups` passes more. Page tables (opi_kv_table) are as it needs them
 * until the next call of this batch. */
const opi_pass *opi_batch_next(opi_batch *batch);
/* The ids of an entry's rows [n_rows]. Valid for the newest pass. */
void opi_batch_row_ids(const opi_batch *batch, const opi_pass_entry *entry, uint32_t *out);
/* Ids of its draft [n_draft]; valid while the ids that they lead to are due. */
void opi_batch_draft_ids(const opi_batch *batch, const opi_pass_entry *entry, uint32_t *out);
/* The oldest pass in flight has been computed. Ids are now due of each live entry with n_wanted >
 * 0. NULL: none is in flight. */
const opi_pass *opi_batch_done(opi_batch *batch);
/* Takes ids [n_ids, at least 1] that were sampled for a sequence of which they are due: all but the
 * last are the beginning of its draft. goes_on false: the turn ends. Errors: STATE; LIMIT: more
 * than the draft and one, or beyond the context. */
opipe_status opi_batch_accept(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, bool goes_on, opipe_error *err);

typedef struct opi_batch_counts {
  uint32_t open, waiting, active, in_flight; /* sequences; passes */
  uint64_t passes, rows, evicted;
} opi_batch_counts;
opi_batch_counts opi_batch_count(const opi_batch *batch);

#endif /* OPI_GENERATE_BATCH_H */
