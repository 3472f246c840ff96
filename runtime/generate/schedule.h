/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's parts. Inside batch.c and pass.c. */
#ifndef OPI_GENERATE_SCHEDULE_H
#define OPI_GENERATE_SCHEDULE_H

#include "runtime/generate/batch.h"

typedef struct opi_batch_sequence {
  uint32_t state; /* OPI_SEQUENCE_* */
  uint32_t n_ids;
  uint32_t n_rows; /* put into passes in this stay, drafts included */
  uint32_t n_in_flight;
  uint32_t turn;    /* counted up when what is in flight no longer counts */
  uint32_t stay;    /* counted up when its pages go: what is in flight then fills nothing */
  uint32_t n_draft; /* before a pass: of the next; then: of the rows in flight or due */
  bool due;
  bool due_stays;  /* the rows that are due belong to this stay */
  uint64_t order;  /* of submitting: the age */
  uint64_t served; /* the last pass with a row of it */
  uint64_t salt, n_evicted, n_reused;
} opi_batch_sequence;

struct opi_batch {
  const opipe_allocator *allocator;
  opi_batch_params params;
  uint64_t n_bytes;
  opi_kv *pool;
  uint32_t context, n_active;
  uint64_t last_order, n_made, n_done; /* passes */
  uint64_t n_rows, n_evicted;
  opi_batch_sequence *sequences; /* [n_sequences] */
  opi_pass *passes;              /* [2 * groups]: pass p is at p % (2 * groups) */
  opi_pass_entry *entries;       /* [2 * groups, rows] */
  uint32_t *chosen;              /* [n_sequences]: while a pass is made */
  uint32_t *ids;                 /* [n_sequences, context + draft + 1] */
  uint32_t *drafts;              /* [n_sequences, draft] */
};

/* Takes the pages of an active sequence, which waits, or is idle next. */
void opi_batch_leave(opi_batch *batch, uint32_t sequence, bool keep);

#endif /* OPI_GENERATE_SCHEDULE_H */
