/* SPDX-License-Identifier: Apache-2.0 */
/* How much a plan computes, and how much its devices could. */
#include "partition/work.h"

#include "loader/ops/op.h"
#include "partition/cut/assign.h"

/* Operations by the type of the nodes. */
enum { TYPES = 4 };
static const uint32_t types[TYPES] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16};

/* Nodes of the largest micro-batch, in all its slices; what is computed again is no work.
 * *out_dtype: the type of most of it. */
static double microbatch_flops(const opi_cut_model *model, uint32_t *out_dtype) {
  const opi_variant *variant = &model->variants[model->base];
  double by_type[TYPES] = {0}, sum = 0;
  uint32_t most = 0;
  for (uint32_t k = 0; k < (model->n_slices == 0 ? 1 : model->n_slices); ++k) {
    const opi_graph *g = variant->slices[k].graph;
    for (uint32_t n = 0; n < g->n_nodes; ++n) {
      opi_work work = {0, 0};
      opi_node_work(g, &g->nodes[n], &work);
      const double flops = opi_is_again(opi_node_key(g, &g->nodes[n])) ? 0 : work.flops;
      const uint32_t dtype = opi_node_type(g, &g->nodes[n]);
      for (uint32_t t = 0; t < TYPES; ++t)
        by_type[t] += types[t] == dtype ? flops : 0;
      sum += flops;
    }
  }
  for (uint32_t t = 1; t < TYPES; ++t)
    most = by_type[t] > by_type[most] ? t : most;
  *out_dtype = types[most];
  return sum;
}

/* By nominal rates, the share of its threads in a device; 0: one of them says none. */
static double peak_flops(const opi_plan *plan, uint32_t dtype) {
  double sum = 0;
  for (uint32_t r = 0; plan->facts != NULL && r < plan->n_ranks; ++r) {
    const opi_device_facts *facts = &plan->facts[r];
    const uint32_t threads = plan->devices[r].threads;
    const bool part = threads != 0 && threads < facts->max_threads;
    if (!(opi_device_rate(facts, dtype) > 0))
      return 0;
    sum += opi_device_rate(facts, dtype) * (part ? (double)threads / facts->max_threads : 1);
  }
  return sum;
}

void opi_plan_count_work(opi_plan *plan, const opi_cut_model *model) {
  const int64_t rows = model->variants[model->base].rows;
  const double times = plan->batch_dim != NULL && rows > 0 ? (double)plan->batch_rows / (double)rows
                                                           : (double)plan->n_microbatches;
  uint32_t dtype = OPIPE_FLOAT;
  plan->flops = microbatch_flops(model, &dtype) * times;
  plan->peak_flops = plan->facts == NULL ? plan->peak_flops : peak_flops(plan, dtype);
}
