/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over a stage's layers. */
#include "partition/study/simulate/stage_loads.h"

/* Tensor parallelism sums twice per layer and direction: after its attention, and after its two
 * products (Shoeybi et al. 2019). */
enum { SUMS_OF_LAYER = 2 };

static void add_layer(const opi_stage_question *q, uint32_t index, opi_stage_load *io,
                      double *io_largest_stash, uint32_t *io_divided) {
  const opi_layer layer = opi_layers_at(q->layers, index, q->samples);
  const double share = 1 - layer.width_share + layer.width_share / q->width;
  const double stash = (double)layer.stash_bytes * share;
  const double params = (double)layer.param_bytes / (layer.width_share > 0 ? q->width : 1);
  io->forward_ns += layer.forward_ns * share;
  io->input_ns += layer.input_ns * share;
  io->weight_ns += layer.weight_ns * share;
  io->flops += 3 * layer.flops / q->width; /* backward: twice the forward */
  io->stash_bytes += stash;
  io->fixed_bytes += params * q->state_bytes;
  io->gradient_bytes += params * q->gradient_bytes;
  io->step_ns += q->bandwidth > 0 ? params * q->update_bytes / q->bandwidth * 1e9 : 0;
  io->tensor_bytes += (double)layer.width_bytes;
  *io_divided += layer.width_bytes > 0;
  *io_largest_stash = stash > *io_largest_stash ? stash : *io_largest_stash;
}

static double input_of(const opi_stage_question *q, uint32_t layer) {
  return layer == 0 ? 0 : (double)opi_layers_at(q->layers, layer - 1, q->samples).cut_bytes;
}

static void fill(const opi_stage_question *q, uint32_t s, opi_stage_load *out) {
  double largest = 0;
  uint32_t divided = 0;
  *out = (opi_stage_load){0};
  for (uint32_t l = q->ends[s]; l < q->ends[s + 1]; ++l)
    add_layer(q, l, out, &largest, &divided);
  if (s + 1 < q->n_stages)
    out->send_bytes = input_of(q, q->ends[s + 1]);
  out->tensor_sums = q->width > 1 ? SUMS_OF_LAYER * divided : 0;
  out->tensor_bytes = out->tensor_sums > 0 ? out->tensor_bytes / out->tensor_sums : 0;
  const uint32_t keep = q->keep == NULL ? OPI_KEEP_ALL : q->keep[s];
  if (keep == OPI_KEEP_STAGE)
    out->input_bytes = input_of(q, q->ends[s]);
  if (keep == OPI_KEEP_LAYERS) {
    for (uint32_t l = q->ends[s]; l < q->ends[s + 1]; ++l)
      out->input_bytes += input_of(q, l);
    out->stash_bytes = largest;
  }
}

opipe_status opi_stage_loads(const opi_stage_question *q, opi_stage_load *out_loads,
                             opipe_error *err) {
  if (q->width == 0 || q->n_stages == 0 || !(q->samples > 0) || !(q->state_bytes >= 0) ||
      !(q->gradient_bytes >= 0) || !(q->update_bytes >= 0) || !(q->bandwidth >= 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "stages of layers: %u stages, width %u, %g samples; bytes per byte of "
                    "parameters %g, %g, %g; bandwidth %g",
                    q->n_stages, q->width, q->samples, q->state_bytes, q->gradient_bytes,
                    q->update_bytes, q->bandwidth);
  }
  for (uint32_t s = 0; s < q->n_stages; ++s) {
    if (q->ends[s] >= q->ends[s + 1] || q->ends[s + 1] > q->layers->n_layers) {
      return opi_fail(err, OPIPE_E_INVALID, "stage %u: layers %u to %u of %u", s, q->ends[s],
                      q->ends[s + 1], q->layers->n_layers);
    }
    if (q->keep != NULL && q->keep[s] > OPI_KEEP_LAYERS)
      return opi_fail(err, OPIPE_E_INVALID, "stage %u: keeps %u (0 to 2)", s, q->keep[s]);
    fill(q, s, &out_loads[s]);
  }
  return OPIPE_OK;
}
