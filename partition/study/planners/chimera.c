/* SPDX-License-Identifier: Apache-2.0 */
/* Chimera's planner (Li and Hoefler, SC'21, section 3.4): for all W copies of D stages, the largest
 * micro-batch that fits, and T = (F_t + Comm_p2p) C_f + (B_t + Comm_p2p) C_b + max over workers of
 * Comm_unoverlapped where a worker's all-reduces run in the bubbles after the last backward of its
 * two stages.
 */
#include <math.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/strategy.h"

typedef struct chimera {
  const opi_planning *planning;
  const opi_machine *machine;
  uint32_t *ends;
  uint32_t depth, width, samples,
      units; /* a worker has n = units * depth micro-batches, or fewer than depth */
  uint32_t n_microbatches;
  bool recompute;
} chimera;

typedef struct judged {
  double ns, bytes, forward_ns, backward_ns;
} judged;

/* Rabenseifner's all-reduce over the 2 W owners of a stage: 2 log2(r) alpha + 2 (r - 1) / r beta L.
 */
static double all_reduce_ns(const chimera *c, double n_bytes) {
  const opi_reach *reach = c->machine->n_nodes == 1 ? &c->machine->inside : &c->machine->across;
  const double r = 2.0 * c->width;
  return 2 * log2(r) * reach->sum_latency_ns +
         opi_bytes_ns(2 * (r - 1) / r * n_bytes, reach->sum_bytes_per_ns);
}

static double message_ns(const chimera *c, double n_bytes) {
  const opi_reach *reach = c->machine->n_nodes == 1 ? &c->machine->inside : &c->machine->across;
  return reach->latency_ns + opi_bytes_ns(n_bytes, reach->bytes_per_ns);
}

/* Forwards and backwards on the critical path: D and 2 D - 2 for a unit of D micro-batches; each
 * further concatenated unit adds 2 and 2 D - 2. With fewer micro-batches than stages: D and D + N
 * - 2.
 */
static void critical_path(const chimera *c, double *out_forwards, double *out_backwards) {
  const double d = c->depth;
  if (c->n_microbatches < c->depth) {
    *out_forwards = d;
    *out_backwards = d + c->n_microbatches - 2;
    return;
  }
  *out_forwards = d + 2.0 * (c->units - 1);
  *out_backwards = (2 * d - 2) * c->units;
}

/* Unoverlapped all-reduce time of worker i (stage i of the down pipeline): the stage that ends
 * first reduces in the gaps between the last backwards of the other, then both until all are done.
 */
static double unoverlapped_ns(const chimera *c, uint32_t i, const double *sum_ns,
                              double backward_ns) {
  const uint32_t half = c->depth / 2, mirror = c->depth - 1 - i;
  const uint32_t low = i < mirror ? i : mirror; /* the lower of its two stages */
  const double gaps = (half - low) * backward_ns, end = low * backward_ns;
  const double first = fmax(0, sum_ns[c->depth - 1 - low] - gaps);
  return fmax(0, sum_ns[low] + first - end);
}

static judged judge(const chimera *c, double *sum_ns, opi_strategy *fill) {
  const opi_layers *layers = c->planning->layers;
  const uint32_t d = c->depth;
  judged out = {0};
  double comm = 0, rest = 0, forwards = 0, backwards = 0;
  for (uint32_t s = 0; s < d; ++s) {
    const opi_layer sum = opi_layers_sum(layers, c->ends[s], c->ends[s + 1], c->samples);
    /* the last stage runs its backward at once: no recomputation */
    const double again = c->recompute && s + 1 < d ? sum.forward_ns : 0;
    out.forward_ns = fmax(out.forward_ns, sum.forward_ns);
    out.backward_ns = fmax(out.backward_ns, opi_layer_backward_ns(&sum) + again);
    comm = s + 1 < d ? fmax(comm, message_ns(c, (double)sum.cut_bytes)) : comm;
    sum_ns[s] = all_reduce_ns(c, (double)sum.param_bytes);
    if (fill != NULL) {
      fill->stages[s].first = c->ends[s];
      fill->stages[s].end = c->ends[s + 1];
      fill->stages[s].forward_ns = sum.forward_ns;
      fill->stages[s].backward_ns = opi_layer_backward_ns(&sum) + again;
    }
  }
  for (uint32_t i = 0; i < d; ++i) {
    const uint32_t low = i < d - 1 - i ? i : d - 1 - i;
    const opi_layer down = opi_layers_sum(layers, c->ends[i], c->ends[i + 1], c->samples);
    const opi_layer up = opi_layers_sum(layers, c->ends[d - 1 - i], c->ends[d - i], c->samples);
    const uint32_t peak = d / 2 + 1 + low; /* table 2 */
    const double held = c->n_microbatches < peak ? c->n_microbatches : peak,
                 one = (double)(down.stash_bytes + up.stash_bytes) / 2;
    const double inputs = (double)(down.cut_bytes + up.cut_bytes) / 2;
    const double bytes = (double)(down.param_bytes + up.param_bytes) * c->planning->state_bytes +
                         (c->recompute ? held * inputs + one : held * one);
    out.bytes = fmax(out.bytes, bytes);
    rest = fmax(rest, unoverlapped_ns(c, i, sum_ns, out.backward_ns));
    if (fill != NULL)
      fill->stages[i].memory_bytes = (uint64_t)bytes;
  }
  critical_path(c, &forwards, &backwards);
  out.ns = (out.forward_ns + comm) * forwards + (out.backward_ns + comm) * backwards + rest;
  return out;
}

/* Sets micro-batches of b samples as the plan under judgement; false if a worker's share of the
 * mini-batch is not made of whole units of them. */
static bool set_samples(chimera *c, uint64_t b) {
  const uint64_t share = c->planning->batch / c->width;
  if (b == 0 || share % b != 0)
    return false;
  c->samples = (uint32_t)b;
  c->n_microbatches = (uint32_t)(share / b);
  c->units = c->n_microbatches / c->depth;
  return c->n_microbatches >= 2 && c->n_microbatches % 2 == 0 &&
         (c->n_microbatches < c->depth || c->n_microbatches % c->depth == 0);
}

/* Greedy: the largest micro-batch that fits and gives every stage one at a time (N >= D),
 * recomputing only if none fits otherwise; fewer micro-batches than stages if the share is too
 * small. */
static bool choose_samples(chimera *c, double *sum_ns, judged *out) {
  for (uint32_t few = 0; few < 2; ++few) {
    for (uint32_t r = 0; r < 2; ++r) {
      c->recompute = r == 1;
      for (uint64_t b = c->planning->batch / c->width; b > 0; --b) {
        if (!set_samples(c, b) || (c->n_microbatches < c->depth) != (few == 1))
          continue;
        *out = judge(c, sum_ns, NULL);
        if (out->bytes <= (double)c->machine->memory_bytes)
          return true;
      }
    }
  }
  return false;
}

static opipe_status answer(chimera *c, double *sum_ns, opi_strategy **out_strategy,
                           opipe_error *err) {
  opi_strategy *s = NULL;
  OPI_TRY(opi_strategy_new("chimera", c->depth, c->planning->allocator, &s, err));
  (void)opi_even_stages(c->planning->layers, c->depth, c->ends);
  const judged j = judge(c, sum_ns, s);
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; k < c->depth && status == OPIPE_OK; ++k) {
    uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, 2);
    if (devices == NULL) {
      status = opi_fail_nomem(err, 2 * sizeof(uint32_t), "a strategy");
      break;
    }
    devices[0] = k; /* down and up */
    devices[1] = c->depth - 1 - k;
    s->stages[k].devices = devices;
    s->stages[k].n_devices = 2;
  }
  s->schedule = "chimera";
  s->pipelines = c->width;
  s->samples = c->samples;
  s->microbatches = c->n_microbatches;
  s->recompute = c->recompute;
  s->objective = s->step_ns = j.ns;
  s->memory_bytes = (uint64_t)j.bytes;
  if (status < 0) {
    opi_strategy_free(s);
    return status;
  }
  *out_strategy = s;
  return OPIPE_OK;
}

opipe_status opi_plan_chimera(const opi_planning *planning, opi_strategy **out_strategy,
                              opipe_error *err) {
  opi_planning q = *planning;
  opi_machine machine;
  opi_arena arena;
  OPI_TRY(opi_planning_check("chimera", &q, &machine, err));
  chimera c = {.planning = &q, .machine = &machine}, best = c;
  double best_ns = INFINITY;
  const size_t n = (size_t)q.layers->n_layers + 1;
  opi_arena_init(&arena, q.allocator, 0);
  c.ends = OPI_ARENA_ARRAY(&arena, uint32_t, n);
  double *sum_ns = OPI_ARENA_ARRAY(&arena, double, n);
  opipe_status status = c.ends == NULL || sum_ns == NULL
                            ? opi_fail_nomem(err, n * sizeof(double), "a planner")
                            : OPIPE_OK;
  for (uint32_t d = 2; d <= machine.n_devices && d < n && status == OPIPE_OK; d += 2) {
    judged j;
    c.depth = d;
    c.width = machine.n_devices / d;
    if (machine.n_devices % d != 0 || q.batch % c.width != 0 ||
        !opi_even_stages(q.layers, d, c.ends) || !choose_samples(&c, sum_ns, &j))
      continue;
    if (j.ns < best_ns) {
      best_ns = j.ns;
      best = c;
    }
  }
  if (status == OPIPE_OK && !isfinite(best_ns)) {
    status = opi_fail(err, OPIPE_E_LIMIT,
                      "planner 'chimera': no even number of stages divides %u devices and the "
                      "blocks, and fits %s with an even number of micro-batches",
                      machine.n_devices, OPI_SIZE(machine.memory_bytes));
  }
  if (status == OPIPE_OK)
    status = answer(&best, sum_ns, out_strategy, err);
  opi_arena_release(&arena);
  return status;
}
