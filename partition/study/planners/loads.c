/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of a strategy's stages from its layers. */
#include "partition/study/planners/loads.h"

#include "partition/study/planners/apply.h"

enum { PASSES = 3, SUMS_OF_BLOCK = 2 }; /* a backward does the work of two forwards */

static uint32_t count_sums(const opi_strategy *s, const opi_layers *layers, uint32_t stage) {
  uint32_t n = 0;
  for (uint32_t l = s->stages[stage].first; l < s->stages[stage].end; ++l)
    n += layers->at[l].width_bytes > 0 ? SUMS_OF_BLOCK : 0;
  return n;
}

void opi_strategy_loads(const opi_strategy *s, const opi_layers *layers, double state_bytes,
                        double bandwidth, opi_stage_load *out) {
  const double update_ns = bandwidth > 0 ? state_bytes * 2e9 / bandwidth : 0; /* per byte */
  const uint32_t owners = opi_strategy_replicas(s, NULL) == 0 ? 1 : opi_strategy_replicas(s, NULL);
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const opi_strategy_stage *stage = &s->stages[i];
    const double samples = (double)s->samples / owners;
    const opi_layer sum = opi_layers_sum(layers, stage->first, stage->end, samples);
    const double share = 1 - sum.width_share + sum.width_share / s->width;
    const double params = (double)sum.param_bytes / s->width;
    const uint32_t n_sums = s->width > 1 ? count_sums(s, layers, i) : 0;
    const bool trains = opi_layer_backward_ns(&sum) > 0;
    opi_stage_load *load = &out[i];
    *load = (opi_stage_load){.forward_ns = sum.forward_ns * share,
                             .input_ns = sum.input_ns * share,
                             .weight_ns = sum.weight_ns * share,
                             .step_ns = trains ? params * update_ns : 0,
                             .flops = sum.flops * (trains ? PASSES : 1) / s->width,
                             .send_bytes = (double)sum.cut_bytes,
                             .stash_bytes = (double)sum.stash_bytes * share,
                             .fixed_bytes = params * state_bytes,
                             .gradient_bytes = trains ? params : 0,
                             .tensor_sums = n_sums,
                             .tensor_bytes = n_sums == 0 ? 0 : (double)sum.width_bytes / n_sums};
    if (!s->recompute)
      continue;
    load->input_ns += load->forward_ns;
    load->stash_bytes =
        stage->first == 0 ? 0 : (double)opi_layers_at(layers, stage->first - 1, samples).cut_bytes;
  }
}
