/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: ids that a sequence may have next, so that one pass computes several of its rows. A draft
 * never changes a token: it is accepted as far as it equals the ids that are sampled without it.
 * Inside runtime/generate. */
#ifndef OPI_GENERATE_DRAFTS_H
#define OPI_GENERATE_DRAFTS_H

#include "runtime/generate/sample.h"

enum { OPI_DRAFT_MOST = 64 }; /* ids of a draft */

typedef struct opi_ngrams {
  uint32_t shortest, longest; /* ids that must, and that may, repeat; 1 <= shortest <= longest */
  uint32_t most;              /* ids of a draft, at most OPI_DRAFT_MOST; 0: no drafts */
} opi_ngrams;

/* How far drafts of a sequence have been right; zero at first. */
typedef struct opi_draft_record {
  uint32_t length; /* of the next draft; 0: the first one's */
  uint32_t misses; /* drafts in a row of which nothing was accepted */
  uint32_t wait;   /* tokens until the next one */
  uint64_t n_drafted, n_accepted;
} opi_draft_record;

/* The ids that followed the last ids of ids [n_ids] when they stood there before: the longest such
 * place, of equal ones the latest. Where the place reaches the end it goes on into the draft
 * itself. out [most]; returns how many, 0: the last `shortest` ids are new, or `most` is 0. */
uint32_t opi_draft_find(const opi_ngrams *how, const uint32_t *ids, uint32_t n_ids, uint32_t most,
                        uint32_t *out);
/* Ids that the next draft should have. Doubles while drafts are accepted whole, falls to what was
 * accepted; after misses it is 0 for 1, 3, 7 ... 31 tokens. Call it once per token. */
uint32_t opi_draft_length(const opi_ngrams *how, opi_draft_record *record);
void opi_draft_judge(const opi_ngrams *how, uint32_t n_drafted, uint32_t n_accepted,
                     opi_draft_record *record);

/* Rows of logits behind the last id and behind each id of a draft. */
typedef struct opi_draft_rows {
  void *logits;       /* [n_draft + 1] rows, of a type as in opi_logits */
  uint64_t row_bytes; /* from one row to the next */
  uint32_t dtype, branch;
  uint32_t *ids; /* [n_ids + n_draft + 1]: sampled ones are added behind the first n_ids */
  uint32_t n_ids, n_prompt, context;
  const uint32_t *draft; /* [n_draft] */
  uint32_t n_draft;
  /* The host's wish, or NULL: may change the row, or set *io_id (-1) to the id to take. */
  opipe_status (*on_logits)(void *ctx, uint32_t position, void *row, int64_t *io_id,
                            opipe_error *err);
  void *ctx;
} opi_draft_rows;

typedef struct opi_draft_result {
  uint32_t n;   /* ids that were added; n - 1 of the draft were right */
  uint32_t end; /* OPI_TURN_* */
  uint32_t n_stop;
} opi_draft_result;

/* Samples row after row while the draft is right and the turn goes on. sampled [n_draft + 1].
 * Errors: of opi_sample and on_logits; *out then has what was sampled before the row that failed.
 */
opipe_status opi_draft_sample(opi_sampler *sampler, const opi_sampling *sampling,
                              const opi_draft_rows *rows, opi_sampled *sampled,
                              opi_draft_result *out, opipe_error *err);

#endif /* OPI_GENERATE_DRAFTS_H */
