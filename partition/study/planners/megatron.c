/* SPDX-License-Identifier: Apache-2.0 */
/* The planner of Megatron-LM (Narayanan et al., SC'21): (1) tensor parallelism within a node, then
 * pipelines across nodes; (2) as little of both as the model needs to fit, data parallelism for the
 * rest; (3) the micro-batch by equation 1, (B / (d b) + p - 1) (t_f(b) + t_b(b)), with the bubble
 * divided by the chunks per device (section 2.2.2) and messages between nodes scattered over the
 * tensor group (section 4.1).
 */
#include <math.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/strategy.h"

enum { CHUNKS_MOST = 16 };

typedef struct megatron {
  const opi_planning *planning;
  const opi_machine *machine;
  uint32_t *ends;
  uint32_t tensor, pipeline, data, chunks, samples, n_microbatches;
  bool recompute;
} megatron;

typedef struct judged {
  double ns, bytes;
} judged;

/* A ring over n devices of a node, or over n nodes. */
static double ring_ns(double n_bytes, uint32_t n, const opi_reach *reach) {
  if (n < 2)
    return 0;
  return opi_bytes_ns(2.0 * (n - 1) / n * n_bytes, reach->sum_bytes_per_ns) +
         2.0 * (n - 1) * reach->sum_latency_ns;
}

/* Times of stage s on `tensor` devices: the divided share, and the two sums in each direction. */
static void stage_ns(const megatron *g, uint32_t s, double *out_forward, double *out_backward) {
  const opi_layer sum = opi_layers_sum(g->planning->layers, g->ends[s], g->ends[s + 1], g->samples);
  const double share = 1 - sum.width_share + sum.width_share / g->tensor;
  const double sums = ring_ns((double)sum.width_bytes, g->tensor, &g->machine->inside);
  *out_forward = sum.forward_ns * share + sums;
  *out_backward = opi_layer_backward_ns(&sum) * share + sums + (g->recompute ? *out_forward : 0);
}

/* Bytes of place i: parameters of all its chunks, and the stashes of 1F1B, p - i micro-batches;
 * with chunks at most (1 + (p - 1) / (p v)) times p. */
static double place_bytes(const megatron *g, uint32_t i) {
  const opi_layers *layers = g->planning->layers;
  const uint32_t p = g->pipeline;
  double params = 0, stash = 0, inputs = 0;
  for (uint32_t c = 0; c < g->chunks; ++c) {
    const uint32_t s = c * p + i;
    const opi_layer sum = opi_layers_sum(layers, g->ends[s], g->ends[s + 1], g->samples);
    const double share = 1 - sum.width_share + sum.width_share / g->tensor;
    params += (double)sum.param_bytes * (sum.param_bytes == 0 ? 0 : 1.0 / g->tensor);
    stash += (double)sum.stash_bytes * share;
    /* a checkpoint before every layer */
    for (uint32_t l = g->ends[s]; l < g->ends[s + 1]; ++l)
      inputs += l == 0 ? 0 : (double)opi_layers_at(layers, l - 1, g->samples).output_bytes;
  }
  const double most = g->n_microbatches;
  const double wanted = g->chunks == 1 ? p - i : p + (p - 1.0) / g->chunks;
  const double held = most < wanted ? most : wanted;
  /* recomputed layer by layer: one layer's stash at a time */
  const double layers_here = (double)(g->ends[i + 1] - g->ends[i]) * g->chunks;
  return params * g->planning->state_bytes +
         (g->recompute ? held * inputs + stash / layers_here : held * stash);
}

static judged judge(const megatron *g, opi_strategy *fill) {
  const opi_machine *m = g->machine;
  const uint32_t p = g->pipeline, n_stages = p * g->chunks;
  judged out = {0, 0};
  double slowest = 0, message = 0, params = 0;
  for (uint32_t i = 0; i < p; ++i) {
    double forward = 0, backward = 0, mine = 0;
    for (uint32_t c = 0; c < g->chunks; ++c) {
      const uint32_t s = c * p + i;
      double f = 0, b = 0;
      stage_ns(g, s, &f, &b);
      forward += f;
      backward += b;
      const opi_layer sum =
          opi_layers_sum(g->planning->layers, g->ends[s], g->ends[s + 1], g->samples);
      mine += (double)sum.param_bytes / g->tensor;
      message = s + 1 < n_stages ? fmax(message, (double)sum.cut_bytes) : message;
      if (fill != NULL) {
        fill->stages[s].first = g->ends[s];
        fill->stages[s].end = g->ends[s + 1];
        fill->stages[s].forward_ns = f;
        fill->stages[s].backward_ns = b;
        fill->stages[s].memory_bytes = (uint64_t)place_bytes(g, i);
      }
    }
    slowest = fmax(slowest, forward + backward);
    params = fmax(params, mine);
    out.bytes = fmax(out.bytes, place_bytes(g, i));
  }
  /* the pipeline stays in one node if it fits; between nodes each device of the tensor group sends
   * its part, gathered inside the node */
  const bool inside = g->tensor * p <= m->per_node;
  const opi_reach *reach = inside ? &m->inside : &m->across;
  double hop =
      reach->latency_ns + opi_bytes_ns(inside ? message : message / g->tensor, reach->bytes_per_ns);
  if (!inside && g->tensor > 1)
    hop += m->inside.sum_latency_ns + opi_bytes_ns(message, m->inside.sum_bytes_per_ns);
  const double round = slowest + (p == 1 ? 0 : 2 * hop * g->chunks);
  out.ns = (g->n_microbatches + (p - 1.0) / g->chunks) * round +
           ring_ns(params, g->data, m->n_nodes == 1 ? &m->inside : &m->across);
  return out;
}

/* Takeaway 3: the fastest micro-batch and number of chunks that fit. */
static bool choose(megatron *g, judged *out) {
  const uint64_t share = g->planning->batch / g->data;
  megatron best = *g;
  out->ns = INFINITY;
  for (uint64_t b = 1; b <= share; b *= 2) {
    for (uint32_t v = 1; v <= CHUNKS_MOST && share % b == 0; ++v) {
      g->samples = (uint32_t)b;
      g->n_microbatches = (uint32_t)(share / b);
      g->chunks = v;
      if ((v > 1 && (g->pipeline == 1 || g->n_microbatches % g->pipeline != 0)) ||
          !opi_even_stages(g->planning->layers, g->pipeline * v, g->ends))
        continue;
      for (uint32_t r = 0; r < 2; ++r) {
        g->recompute = r == 1;
        const judged j = judge(g, NULL);
        if (j.bytes <= (double)g->machine->memory_bytes && j.ns < out->ns) {
          *out = j;
          best = *g;
        }
      }
    }
  }
  *g = best;
  return isfinite(out->ns);
}

static opipe_status answer(megatron *g, opi_strategy **out_strategy, opipe_error *err) {
  opi_strategy *s = NULL;
  const uint32_t n_stages = g->pipeline * g->chunks;
  OPI_TRY(opi_strategy_new("megatron", n_stages, g->planning->allocator, &s, err));
  (void)opi_even_stages(g->planning->layers, n_stages, g->ends);
  const judged j = judge(g, s);
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; k < n_stages && status == OPIPE_OK; ++k)
    status = opi_strategy_place(s, k, k % g->pipeline * g->tensor, g->tensor, err);
  if (status == OPIPE_OK && g->chunks > 1) {
    s->schedule = opi_arena_printf(&s->arena, "interleaved:chunks=%u", g->chunks);
    status = s->schedule == NULL ? opi_fail_nomem(err, 1, "a strategy") : OPIPE_OK;
  } else {
    s->schedule = "1f1b";
  }
  s->pipelines = g->data;
  s->width = g->tensor;
  s->chunks = g->chunks;
  s->samples = g->samples;
  s->microbatches = g->n_microbatches;
  s->recompute = g->recompute;
  s->objective = s->step_ns = j.ns;
  s->memory_bytes = (uint64_t)j.bytes;
  if (status < 0) {
    opi_strategy_free(s);
    return status;
  }
  *out_strategy = s;
  return OPIPE_OK;
}

/* Takeaways 1 and 2: the smallest t, up to a node, then the smallest p with which anything fits. */
static bool find_size(megatron *g, judged *out) {
  const opi_machine *m = g->machine;
  for (uint32_t size = 1; size <= m->n_devices; ++size) {
    g->tensor = size < m->per_node ? size : m->per_node;
    if (m->per_node % g->tensor != 0 || size % g->tensor != 0 || m->n_devices % size != 0)
      continue;
    g->pipeline = size / g->tensor;
    g->data = m->n_devices / size;
    if (g->pipeline >= g->planning->layers->n_layers || g->planning->batch % g->data != 0)
      continue;
    if (choose(g, out))
      return true;
  }
  return false;
}

opipe_status opi_plan_megatron(const opi_planning *planning, opi_strategy **out_strategy,
                               opipe_error *err) {
  opi_planning q = *planning;
  opi_machine machine;
  opi_arena arena;
  judged j = {0, 0};
  OPI_TRY(opi_planning_check("megatron", &q, &machine, err));
  megatron g = {.planning = &q, .machine = &machine};
  opi_arena_init(&arena, q.allocator, 0);
  g.ends = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)q.layers->n_layers + 1);
  opipe_status status =
      g.ends == NULL ? opi_fail_nomem(err, q.layers->n_layers * sizeof(uint32_t), "a planner")
                     : OPIPE_OK;
  if (status == OPIPE_OK && !find_size(&g, &j)) {
    status = opi_fail(err, OPIPE_E_LIMIT,
                      "planner 'megatron': no tensor width and number of stages of %u devices fits "
                      "%s, also with recomputing and micro-batches of one sample",
                      machine.n_devices, OPI_SIZE(machine.memory_bytes));
  }
  if (status == OPIPE_OK)
    status = answer(&g, out_strategy, err);
  opi_arena_release(&arena);
  return status;
}
