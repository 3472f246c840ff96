/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of PipeDream-2BW (Narayanan et al., ICML'21, algorithm 1 and its cost model): equal
 * stages, equally replicated; all widths w and depths d with w d devices, each with the largest
 * micro-batch that fits, with and without recomputation.
 */
#include <math.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/strategy.h"

/* Slowdown by recomputation (section 4.1). */
static const double recompute_factor = 4.0 / 3;

typedef struct two_bw {
  const opi_planning *planning;
  const opi_machine *machine;
  uint32_t *ends;
  uint32_t depth, width, samples; /* of the plan under judgement */
  bool recompute;
} two_bw;

typedef struct judged {
  double ns; /* of a micro-batch in the steady state */
  double bytes;
} judged;

/* Rate between stages: inside a node if it holds a whole pipeline, else the network's. */
static double depth_rate(const two_bw *t) {
  const opi_machine *m = t->machine;
  return t->depth * t->width <= m->per_node ? m->inside.bytes_per_ns : m->across.bytes_per_ns;
}

/* Replicas of a stage share a node if they fit. */
static double width_rate(const two_bw *t) {
  const opi_machine *m = t->machine;
  return t->width <= m->per_node ? m->inside.sum_bytes_per_ns : m->across.sum_bytes_per_ns;
}

/* Memory of stage s: two versions of the weights, and state that is kept once; activations of as
 * many micro-batches as there are stages or, with recomputation, their inputs and one micro-batch's
 * activations (section 4.2). */
static double stage_bytes(const two_bw *t, uint32_t s, const opi_layer *sum) {
  const opi_layers *layers = t->planning->layers;
  const double input =
      s == 0 ? 0 : (double)opi_layers_at(layers, t->ends[s] - 1, t->samples).cut_bytes;
  const double held = t->depth > 1 ? t->depth : 1;
  const double versions = t->depth > 1 ? 1 : 0; /* beyond the one in state_bytes */
  const double kept = t->recompute ? (double)sum->stash_bytes : held * (double)sum->stash_bytes;
  return (t->planning->state_bytes + versions) * (double)sum->param_bytes + kept + held * input;
}

/* t = max over stages of max(computing and receiving, summing / micro-batches) */
static judged judge(const two_bw *t, opi_strategy *fill) {
  const opi_layers *layers = t->planning->layers;
  const double rounds = (double)t->planning->batch / ((double)t->width * (double)t->samples);
  judged out = {0, 0};
  for (uint32_t s = 0; s < t->depth; ++s) {
    const opi_layer sum = opi_layers_sum(layers, t->ends[s], t->ends[s + 1], t->samples);
    const double factor = t->recompute ? recompute_factor : 1;
    const double compute = factor * (sum.forward_ns + opi_layer_backward_ns(&sum));
    const double input =
        s == 0 ? 0 : (double)opi_layers_at(layers, t->ends[s] - 1, t->samples).cut_bytes;
    const double receive = opi_bytes_ns(2 * input, depth_rate(t));
    const double volume = 2.0 * (t->width - 1) / t->width * (double)sum.param_bytes;
    const double bytes = stage_bytes(t, s, &sum);
    out.ns = fmax(out.ns, fmax(compute + receive, opi_bytes_ns(volume, width_rate(t)) / rounds));
    out.bytes = fmax(out.bytes, bytes);
    if (fill != NULL) {
      opi_strategy_stage *stage = &fill->stages[s];
      stage->first = t->ends[s];
      stage->end = t->ends[s + 1];
      stage->forward_ns = sum.forward_ns;
      stage->backward_ns = compute - sum.forward_ns;
      stage->memory_bytes = (uint64_t)bytes;
    }
  }
  return out;
}

/* SEARCH: the largest micro-batch whose number m(b) is whole and at least the depth; sizes double,
 * as in the profile. */
static bool search_samples(two_bw *t, judged *out) {
  bool found = false;
  const uint64_t share = t->planning->batch / t->width;
  uint32_t best = 0;
  for (uint64_t b = 1; b <= share; b *= 2) {
    if (share % b != 0 || share / b < t->depth)
      break;
    t->samples = (uint32_t)b;
    const judged j = judge(t, NULL);
    if (j.bytes > (double)t->machine->memory_bytes)
      break;
    found = true;
    best = (uint32_t)b;
    *out = j;
  }
  t->samples = best;
  return found;
}

static opipe_status answer(two_bw *t, double ns, opi_strategy **out_strategy, opipe_error *err) {
  opi_strategy *s = NULL;
  OPI_TRY(opi_strategy_new("2bw", t->depth, t->planning->allocator, &s, err));
  (void)opi_even_stages(t->planning->layers, t->depth, t->ends);
  const judged j = judge(t, s);
  const uint32_t d = t->depth, w = t->width;
  uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, (size_t)w * d);
  opipe_status status =
      devices == NULL ? opi_fail_nomem(err, d * w * sizeof *devices, "a strategy") : OPIPE_OK;
  for (uint32_t k = 0; k < d && status == OPIPE_OK; ++k)
    status = opi_strategy_place(s, k, k * w, 1, err);
  /* copies of the pipeline meet only in sums; replicas of a stage are adjacent */
  for (uint32_t i = 0; i < w * d && status == OPIPE_OK; ++i)
    devices[i] = i % d * w + i / d;
  s->rank_devices = devices;
  s->n_ranks = d;
  s->pipelines = w;
  s->schedule = t->depth > 1 ? "2bw" : "1f1b";
  s->samples = t->samples;
  s->microbatches = (uint32_t)(t->planning->batch / ((uint64_t)w * t->samples));
  s->recompute = t->recompute;
  s->objective = ns;
  s->step_ns = j.ns * (double)t->planning->batch / ((double)t->width * t->samples);
  s->memory_bytes = (uint64_t)j.bytes;
  if (status < 0) {
    opi_strategy_free(s);
    return status;
  }
  *out_strategy = s;
  return OPIPE_OK;
}

opipe_status opi_plan_2bw(const opi_planning *planning, opi_strategy **out_strategy,
                          opipe_error *err) {
  opi_planning q = *planning;
  opi_machine machine;
  opi_arena arena;
  OPI_TRY(opi_planning_check("2bw", &q, &machine, err));
  two_bw t = {.planning = &q, .machine = &machine}, best = t;
  double best_ns = INFINITY; /* per sample */
  opi_arena_init(&arena, q.allocator, 0);
  t.ends = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)q.layers->n_layers + 1);
  opipe_status status =
      t.ends == NULL ? opi_fail_nomem(err, q.layers->n_layers * sizeof(uint32_t), "a planner")
                     : OPIPE_OK;
  for (uint32_t w = 1; w <= machine.n_devices && status == OPIPE_OK; ++w) {
    for (uint32_t d = 1; d <= machine.n_devices / w && d <= q.layers->n_layers; ++d) {
      if (q.batch % w != 0 || !opi_even_stages(q.layers, d, t.ends))
        continue;
      for (uint32_t r = 0; r < 2; ++r) {
        judged j;
        t.width = w;
        t.depth = d;
        t.recompute = r == 1;
        if (!search_samples(&t, &j))
          continue;
        const double ns = j.ns / ((double)t.samples * w);
        if (ns < best_ns) {
          best_ns = ns;
          best = t;
        }
      }
    }
  }
  if (status == OPIPE_OK && !isfinite(best_ns)) {
    status = opi_fail(err, OPIPE_E_LIMIT,
                      "planner '2bw': no depth and width of %u devices fits %s, also with "
                      "recomputing and micro-batches of one sample",
                      machine.n_devices, OPI_SIZE(machine.memory_bytes));
  }
  if (status == OPIPE_OK)
    status = answer(&best, best_ns, out_strategy, err);
  opi_arena_release(&arena);
  return status;
}
