/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas against stages: a stream of requests may be faster with copies of the whole model that
 * take requests in turn. Copies have no imbalance and pass no tensors on, but each holds and reads
 * all weights.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/study/auto/run.h"

static int rising(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Times of a request on each device that can hold the whole model; *out_n: their number. */
static opipe_status time_copies(opi_space *s, double *out_ns, uint32_t *out_n) {
  const opi_planning *q = &s->question->planning;
  const uint32_t last = q->layers->n_layers;
  const opi_point point = {.samples = (uint32_t)q->batch, .width = 1};
  *out_n = 0;
  for (uint32_t k = 0; k < q->cluster->n_classes; ++k) {
    uint32_t unused = 0;
    OPI_TRY(opi_space_sums(s, k, point.samples, 1, &unused));
  }
  for (uint32_t d = 0; d < q->n_devices; ++d) {
    const opi_sums *x = opi_sums_of(s, &point, q->cluster->class_of[d]);
    if (x != NULL && x->params[last] <= s->caps[d])
      out_ns[(*out_n)++] = x->forward[last];
  }
  return OPIPE_OK;
}

static double most_params(const opi_auto_run *run) {
  const opi_space *s = run->space;
  const opi_point *p = &run->best[0].point;
  const opi_sums *x = opi_sums_of(s, p, s->question->planning.cluster->class_of[0]);
  double most = 0;
  for (uint32_t k = 0; x != NULL && k < p->places->n_stages; ++k)
    most = fmax(most, x->params[p->ends[k + 1]] - x->params[p->ends[k]]);
  return most;
}

opipe_status opi_run_turns(opi_auto_run *run, opi_auto_turns *out) {
  opi_space *s = run->space;
  const opi_planning *q = &s->question->planning;
  uint32_t n = 0;
  *out = (opi_auto_turns){.n_copies = 0};
  if (s->question->objective != OPI_AUTO_THROUGHPUT || opi_space_trains(s) || q->batch > UINT32_MAX)
    return OPIPE_OK;
  double *ns = opi_alloc_zero(q->allocator, q->n_devices, sizeof *ns);
  if (ns == NULL)
    return opi_fail_nomem(s->err, q->n_devices * sizeof *ns, "a planner");
  const opipe_status status = time_copies(s, ns, &n);
  qsort(ns, n, sizeof *ns, rising);
  *out = (opi_auto_turns){.interval_ns = INFINITY};
  for (uint32_t i = 0; i < n; ++i) { /* the slowest copy waits for its turn */
    if (ns[i] / (i + 1) < out->interval_ns)
      *out = (opi_auto_turns){.n_copies = i + 1, .interval_ns = ns[i] / (i + 1)};
  }
  const opi_sums *all = opi_sums_of(s, &(opi_point){.samples = (uint32_t)q->batch, .width = 1},
                                    q->cluster->class_of[0]);
  out->weights_bytes = all == NULL ? 0 : all->params[q->layers->n_layers];
  out->stage_weights_bytes = most_params(run);
  opi_free(q->allocator, ns, q->n_devices * sizeof *ns);
  return status;
}
