/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever computes passes, as the engine of generation sees it: a session, or a double in tests. */
#ifndef OPI_GENERATE_RUNNER_H
#define OPI_GENERATE_RUNNER_H

#include "runtime/generate/batch.h"

/* One pass, as arrays. The caller owns them; valid during the call. */
typedef struct opi_pass_rows {
  uint64_t number;           /* from 1 on, without gaps */
  uint32_t n_rows, n_wanted; /* real ones; the runner pads to a class */
  uint32_t n_sequences,
      n_copies;        /* of this pass, numbered 0 to n_sequences - 1 in order of entries */
  uint32_t table_room; /* ceil(context / page) */
  const int64_t *ids, *position, *sequence; /* [n_rows] */
  const int64_t *wanted;                    /* [n_wanted] rows, rising */
  const int64_t *table;        /* [n_sequences, table_room]: pages; -1 behind the last */
  const opi_page_copy *copies; /* [n_copies] in the order in which they are made */
} opi_pass_rows;

/* Passes end in the order in which they began. One thread at a time. */
typedef struct opi_pass_runner {
  void *ctx;
  /* Copies what it needs. PENDING, only if the host drives: there is no room until it has; begin
   * the same pass again. Errors: STATE: `groups` passes are in flight; the session's. */
  opipe_status (*begin)(void *ctx, const opi_pass_rows *pass, opipe_error *err);
  /* The oldest pass: waits up to timeout_ns (0: looks only). OK: *out_logits [n_wanted rows of
   * n_vocab of the dtype, row_bytes apart], valid and writable until `finish`. PENDING: not yet.
   * Other: that pass failed (err); `finish` it all the same. */
  opipe_status (*end)(void *ctx, uint64_t timeout_ns, void **out_logits, opipe_error *err);
  void (*finish)(void *ctx); /* of the oldest */
} opi_pass_runner;

/* Told by a runner's owner. */
typedef struct opi_pass_facts {
  opi_batch_params batch; /* from the plan: pool, active, rows, groups, draft, times, gap */
  uint32_t n_vocab, dtype;
  uint32_t n_known; /* ids that the model reads are below it */
  uint32_t reserved;
  uint64_t row_bytes;
} opi_pass_facts;

#endif /* OPI_GENERATE_RUNNER_H */
