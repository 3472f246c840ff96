/* SPDX-License-Identifier: Apache-2.0 */
/* V-Half and V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, section 4): one block
 * per micro-batch, the same on every rank but for its offset, repeated every 6 slots; 2 slots of 6
 * stay free for the two W. How long a block lives on a rank is what the rank keeps.
 */
#include "zb.h"

enum { PERIOD = 6 };

/* Slots of F and I of both stages of rank `i`, micro-batch 0: F lower, F upper, I upper, I lower.
 */
static void block_of(uint32_t p, uint32_t i, bool least, uint64_t out_slot[4]) {
  const uint32_t half = p % 2 == 0 ? 3 : 0, third = p % 3 == 0 ? 2 : 0;
  if (least) {
    out_slot[0] = i;
    out_slot[1] = 2 * p - i - 1;
    out_slot[2] = 2 * p + third + i;
    out_slot[3] = 4 * p + third - i - 1;
  } else {
    out_slot[0] = 2 * i;
    out_slot[1] = 3 * p - i - 2;
    out_slot[2] = 3 * p + half + 2 * i - 1;
    out_slot[3] = 6 * p + half - i - 2;
  }
}

/* Rank `i`: F and I by slot, and a W in every free slot, of the stage that is further behind. */
static void unroll(const zb_model *model, uint32_t i, bool least, zb_order *order) {
  const uint32_t upper = model->n_stages - 1 - i, m = model->n_mb;
  const uint32_t stage[4] = {i, upper, upper, i};
  uint64_t slot[4];
  uint32_t next[4] = {0}, weight[2] = {0}; /* F, F, I, I; W of the upper and the lower stage */
  block_of(model->n_ranks, i, least, slot);
  for (uint64_t now = 0; weight[0] < m || weight[1] < m; ++now) {
    bool busy = false;
    for (uint32_t k = 0; k < 4; ++k) {
      if (next[k] < m && slot[k] + (uint64_t)PERIOD * next[k] == now) {
        zb_push(order, i, k < 2 ? ZB_F : ZB_I, stage[k], next[k]++);
        busy = true;
      }
    }
    const bool upper_waits = weight[0] < next[2], lower_waits = weight[1] < next[3];
    if (!busy && (upper_waits || lower_waits)) {
      const uint32_t k = upper_waits && (!lower_waits || weight[0] <= weight[1]) ? 0 : 1;
      zb_push(order, i, ZB_W, stage[2 + k], weight[k]++);
    }
  }
}

opipe_status zb_v_blocks(zb_job *job, bool least, const char *name, opipe_error *err) {
  zb_model *model = &job->model;
  uint64_t top = 0;
  for (uint32_t i = 0; i < model->n_ranks; ++i)
    unroll(model, i, least, &job->best);
  job->score = zb_replay(model, &job->best, &job->scratch);
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    const uint64_t peak = job->scratch.peak[r];
    if (peak > model->cap[r]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule '%s' keeps %llu bytes on rank %u, which may hold %llu", name,
                        (unsigned long long)zb_bytes(model, peak), r,
                        (unsigned long long)zb_bytes(model, model->cap[r]));
    }
    top = peak > top ? peak : top;
  }
  for (uint32_t r = 0; r < model->n_ranks; ++r)
    model->cap[r] = model->cap[r] < top ? model->cap[r] : top;
  zb_improve(job);
  return OPIPE_OK;
}
