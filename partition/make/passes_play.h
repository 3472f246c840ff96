/* SPDX-License-Identifier: Apache-2.0 */
/* Plays of passes through a plan's stages: how many tokens per second sequences that generate get
 * with each number of passes in flight, and how long a prompt takes in slices.
 *
 *   rank 0      0 1 2 3 . 0 1 2 3        a pass begins once its tokens are known, which the last
 *   rank 1        0 1 2 3 . 0 1 2 ...    stage made `groups` passes before
 *
 * Plays follow the scheduler of passes (runtime/generate): each pass has a row of at most its share
 * of the sequences that generate, the least recently served first, and begins as soon as there is
 * one. Stages work in the order of passes, links are free for each message. */
#ifndef OPI_PASSES_PLAY_H
#define OPI_PASSES_PLAY_H

#include "partition/plan/plan.h"

/* Times of the plan's stages, by class of rows: 1, 2, 4 ... */
typedef struct opi_pass_times {
  uint32_t n_stages, n_classes;
  double *ns;     /* [n_stages, n_classes] of a pass, without keys */
  double *hop_ns; /* [n_stages, n_classes] of what comes into the stage */
  double *key_ns; /* [n_stages] for each key that a row sees */
} opi_pass_times;

/* The same as the scheduler has them: a pass on all stages, one after the other. */
typedef struct opi_pass_sums {
  double class_ns[OPI_GENERATION_CLASSES], key_ns;
} opi_pass_sums;
void opi_pass_sum(const opi_pass_times *times, opi_pass_sums *out);

typedef struct opi_decode_play {
  double tokens_per_s;
  double idle; /* share of the stages' time, 0 to 1, in the steady state */
} opi_decode_play;
/* `active` sequences that see `keys` keys each, `groups` passes in flight. */
opi_decode_play opi_passes_play_decode(const opi_pass_times *times, uint32_t active,
                                       uint32_t groups, double keys);
/* The number of passes in flight from 1 to `most` that gives most tokens; of equal ones that with
 * least idle time, then the lowest. Every number is played. */
uint32_t opi_passes_best_groups(const opi_pass_times *times, uint32_t active, uint32_t most,
                                double keys, opi_decode_play *out_play);

/* How prompts are sliced: at most `rows` rows, and none longer than ns on all stages; 0: any. */
typedef struct opi_prompt_slices {
  uint32_t rows;
  double ns;
} opi_prompt_slices;
/* Rows of the slice that begins at `first` of a prompt of n_ids, 1 at least. */
uint32_t opi_slice_rows(const opi_pass_sums *sums, const opi_prompt_slices *how, uint32_t first,
                        uint32_t n_ids);
/* The time until the last stage has computed the last slice, alone; *out_n, optional: slices. */
double opi_passes_play_prompt(const opi_pass_times *times, const opi_prompt_slices *how,
                              uint32_t n_ids, uint32_t groups, uint32_t *out_n);
/* The fastest for a prompt of n_ids whose slices take at most gap_ns (0: no limit): equal slices of
 * every number of rows, and slices that shrink as keys grow. If some are as fast, the fewest
 * slices. */
opi_prompt_slices opi_passes_best_slices(const opi_pass_times *times, uint32_t rows, uint32_t n_ids,
                                         uint32_t groups, double gap_ns, double *out_ns,
                                         uint32_t *out_n);

/* Proves the ranks' lists of passes under every rule: `groups` passes in flight, again and again,
 * whose tokens go from the last stage back to the first. Errors: those of opi_proof_check. */
opipe_status opi_passes_prove(uint32_t n_stages, uint32_t groups, const opipe_allocator *allocator,
                              opipe_error *err);

#endif /* OPI_PASSES_PLAY_H */
