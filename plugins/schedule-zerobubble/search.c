/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the best of many orders. A candidate counts only if its
 * replay ends and stays below the caps, so a search is never worse than what it started from.
 */
#include "zb.h"

/* Ops that all greedy runs of a call may take together: about a second or two. */
enum { OPS_PER_CALL = 4000000, RUNS_LEAST = 6, POLICIES = 3 * 3 * 2 * 2, ROUNDS = 3, PLENTY = 100 };

bool zb_offer(zb_job *job, uint32_t k) {
  const zb_score score = zb_replay(&job->model, &job->trial[k], &job->scratch);
  const bool better = zb_better(&score, &job->score);
  if (better) {
    zb_order_copy(&job->model, &job->trial[k], &job->best);
    job->score = score;
  }
  return better;
}

static bool may_run(zb_job *job) {
  const bool may = job->runs > 0;
  job->runs -= may;
  return may;
}

void zb_search(zb_job *job) {
  const uint32_t n = job->model.chunks == 1 ? POLICIES / 4 : POLICIES;
  for (uint32_t k = 0; k < n && may_run(job); ++k) {
    const zb_policy policy = {.prefer = k % 3,
                              .weight = k / 3 % 3,
                              .forward_shallow = k / 9 % 2 != 0,
                              .input_shallow = k / 18 % 2 != 0,
                              .cap = job->model.cap};
    zb_greedy(&job->model, &policy, &job->scratch, &job->trial[0]);
    (void)zb_offer(job, 0);
  }
}

static void reverse(const zb_model *model, zb_order *order) {
  for (uint32_t r = 0; r < model->n_ranks; ++r) {
    zb_op *ops = &order->ops[(size_t)r * order->room];
    for (uint32_t i = 0, j = order->n[r]; i + 1 < j; ++i, --j) {
      const zb_op op = ops[i];
      ops[i] = ops[j - 1];
      ops[j - 1] = op;
    }
  }
}

/* trial[0] earlier, into trial[1]; that later, into trial[0]. True when one of them is the best. */
static bool round_trip(zb_job *job, uint32_t weight) {
  zb_order *from = &job->trial[0], *to = &job->trial[1];
  const zb_policy early = {.weight = weight, .cap = job->model.cap, .given = from};
  zb_greedy(&job->model, &early, &job->scratch, to);
  const bool better = zb_offer(job, 1);
  reverse(&job->model, to);
  const zb_policy late = {.cap = job->model.cap, .given = to, .mirrored = true};
  zb_greedy(&job->model, &late, &job->scratch, from);
  reverse(&job->model, from);
  return zb_offer(job, 0) || better;
}

void zb_improve(zb_job *job) {
  for (uint32_t weight = ZB_WEIGHT_FITS; job->score.complete && weight <= ZB_WEIGHT_NEXT;
       ++weight) {
    zb_order_copy(&job->model, &job->best, &job->trial[0]);
    bool goes_on = true; /* in a long plan a second round without a gain is the last */
    for (uint32_t i = 0; i < ROUNDS && goes_on && may_run(job) && may_run(job); ++i)
      goes_on = round_trip(job, weight) || i == 0 || job->runs > PLENTY;
  }
}

opipe_status zb_job_start(zb_job *job, opipe_error *err) {
  opipe_status status = zb_model_make(&job->work, job->problem, &job->model, err);
  if (status >= 0)
    status = zb_scratch_make(&job->work, &job->model, &job->scratch, err);
  if (status >= 0)
    status = zb_order_make(&job->work, &job->model, &job->best, err);
  for (uint32_t k = 0; k < 2 && status >= 0; ++k)
    status = zb_order_make(&job->work, &job->model, &job->trial[k], err);
  if (status >= 0) {
    const uint64_t ops = 3 * (uint64_t)job->model.n_stages * job->model.n_mb;
    job->runs = OPS_PER_CALL / ops > RUNS_LEAST ? OPS_PER_CALL / ops : RUNS_LEAST;
  }
  return status;
}
