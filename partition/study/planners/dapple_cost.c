/* SPDX-License-Identifier: Apache-2.0 */
/* Times of DAPPLE's pipelines. */
#include <math.h>

#include "partition/study/planners/dapple.h"

static uint32_t node_of(const opi_machine *machine, uint32_t device) {
  return device / machine->per_node;
}

static bool in_one_node(const opi_machine *machine, const uint32_t *devices, uint32_t n) {
  for (uint32_t i = 1; i < n; ++i) {
    if (node_of(machine, devices[i]) != node_of(machine, devices[0]))
      return false;
  }
  return true;
}

double opi_dapple_sum_ns(const opi_machine *machine, const uint32_t *devices, uint32_t n,
                         double n_bytes) {
  if (n < 2)
    return 0;
  const double volume = 2.0 * (n - 1) / n * n_bytes;
  return in_one_node(machine, devices, n)
             ? opi_bytes_ns(volume, machine->inside.bytes_per_ns * n / 2)
             : opi_bytes_ns(volume, machine->across.sum_bytes_per_ns);
}

double opi_dapple_cross_ns(const opi_machine *machine, const uint32_t *src, uint32_t n_src,
                           const uint32_t *dst, uint32_t n_dst, double n_bytes) {
  const bool gathers = in_one_node(machine, dst, n_dst);
  if (!gathers)
    return opi_bytes_ns(n_bytes, machine->across.sum_bytes_per_ns);
  uint32_t elsewhere = 0;
  for (uint32_t i = 0; i < n_src; ++i)
    elsewhere += node_of(machine, src[i]) != node_of(machine, dst[0]);
  return elsewhere == 0 ? opi_bytes_ns(n_bytes, machine->inside.bytes_per_ns)
                        : opi_bytes_ns(n_bytes * elsewhere / n_src, machine->across.bytes_per_ns);
}

/* Finds the pivot, the stage that dictates the steady phase. From the last stage backwards, an
 * earlier one takes over if its steady time exceeds that of the current pivot plus one pass of what
 * lies between. */
static uint32_t find_pivot(const opi_dapple_pipe *pipe) {
  const double rounds = pipe->n_microbatches - 1.0;
  uint32_t q = pipe->n - 1;
  double between = 0; /* sum over the stages between s and q */
  for (uint32_t s = pipe->n - 1; s-- > 0;) {
    const double here = pipe->forward_ns[s] + pipe->backward_ns[s];
    if (rounds * here > rounds * (pipe->forward_ns[q] + pipe->backward_ns[q]) + between) {
      q = s;
      between = 0;
    } else {
      between += here;
    }
  }
  return q;
}

double opi_dapple_latency_ns(const opi_dapple_pipe *pipe, uint32_t *out_pivot) {
  const uint32_t q = find_pivot(pipe);
  double begin = 0, end = 0, after = 0;
  for (uint32_t s = 0; s <= q; ++s)
    begin += pipe->forward_ns[s];
  for (uint32_t s = q + 1;
       s-- > 0;) { /* how much later its last backward ends than the pivot's begins */
    after += pipe->backward_ns[s];
    end = fmax(end, after + pipe->sum_ns[s]);
  }
  after = 0;
  for (uint32_t s = q + 1; s < pipe->n; ++s) { /* how much earlier */
    end = fmax(end, pipe->sum_ns[s] - after);
    after += pipe->backward_ns[s];
  }
  if (out_pivot != NULL)
    *out_pivot = q;
  return begin + (pipe->n_microbatches - 1.0) * (pipe->forward_ns[q] + pipe->backward_ns[q]) + end;
}

double opi_dapple_play_ns(const opi_dapple_pipe *pipe, double *scratch) {
  const int64_t n = pipe->n, m = pipe->n_microbatches;
  double *forward = scratch,
         *backward = scratch + n; /* end of each stage's last forward and backward */
  double last = 0;
  for (int64_t x = 0; x < n; ++x)
    forward[x] = backward[x] = 0;
  /* round i: forward i of every stage, then the backward that stage x must run before its next
   * forward, that of micro-batch i - n + x + 1 */
  for (int64_t i = 0; i < m + n - 1; ++i) {
    for (int64_t x = 0; i < m && x < n; ++x) {
      const double before = x == 0 ? 0 : forward[x - 1];
      forward[x] = fmax(fmax(forward[x], backward[x]), before) + pipe->forward_ns[x];
    }
    for (int64_t x = 0; x < n; ++x) {
      const int64_t j = i - n + x + 1;
      if (j < 0 || j >= m)
        continue;
      const double behind = x + 1 == n ? 0 : backward[x + 1];
      backward[x] = fmax(fmax(backward[x], forward[x]), behind) + pipe->backward_ns[x];
      if (j == m - 1)
        last = fmax(last, backward[x] + pipe->sum_ns[x]);
    }
  }
  return last;
}

void opi_dapple_fill(const opi_planning *planning, const opi_machine *machine,
                     opi_strategy *strategy, opi_dapple_pipe *pipe) {
  pipe->n = 2 * strategy->n_stages - 1;
  pipe->n_microbatches = (uint32_t)(planning->batch / planning->samples);
  for (uint32_t s = 0; s < strategy->n_stages; ++s) {
    opi_strategy_stage *stage = &strategy->stages[s];
    const opi_layer sum =
        opi_layers_sum(planning->layers, stage->first, stage->end, planning->samples);
    stage->forward_ns = sum.forward_ns / stage->n_devices;
    stage->backward_ns = opi_layer_backward_ns(&sum) / stage->n_devices;
    pipe->forward_ns[2 * s] = stage->forward_ns;
    pipe->backward_ns[2 * s] = stage->backward_ns;
    pipe->sum_ns[2 * s] =
        opi_dapple_sum_ns(machine, stage->devices, stage->n_devices, (double)sum.param_bytes);
    if (s + 1 == strategy->n_stages)
      continue;
    const opi_strategy_stage *next = stage + 1;
    const double cross = opi_dapple_cross_ns(machine, stage->devices, stage->n_devices,
                                             next->devices, next->n_devices, (double)sum.cut_bytes);
    pipe->forward_ns[2 * s + 1] = pipe->backward_ns[2 * s + 1] = cross;
    pipe->sum_ns[2 * s + 1] = 0;
  }
}
