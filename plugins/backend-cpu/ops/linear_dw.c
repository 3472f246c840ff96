/* SPDX-License-Identifier: Apache-2.0 */
/* A^T B added to a weight's accumulator, in whatever layout that has: G [m,n] += A[k,m]^T B[k,n].
 *
 *   PANEL    panels of G: X is A, dY is B        PANEL_T   panels of G^T: X is B, dY is A
 *   dense    a panel at a time through the workspace
 * Every element goes on as one chain over the rows, so rows in several runs give the bits of one;
 * of bf16 by dots as matmul.h says.
 */
#include "linear.h"

static void dense_panels(const cpu_call *call, cpu_matmul_dw_args *args, float *panel) {
  float *g = call->out[0].data;
  const int64_t columns = args->n;
  const float *dy = args->dy;
  const uint16_t *dy_half = args->dy_half;
  args->dw = panel;
  for (int64_t first = 0; first < columns; first += CPU_PANEL) {
    const int64_t n = columns - first < CPU_PANEL ? columns - first : CPU_PANEL;
    for (int64_t k = 0; k < args->k; ++k) {
      memset(panel + k * CPU_PANEL, 0, CPU_PANEL * sizeof *panel);
      memcpy(panel + k * CPU_PANEL, g + k * columns + first, (size_t)n * sizeof *panel);
    }
    if (args->dots != NULL)
      args->dy_half = dy_half + first;
    else
      args->dy = dy + first;
    args->n = n;
    cpu_matmul_dw(call->exec, args);
    for (int64_t k = 0; k < args->k; ++k)
      memcpy(g + k * columns + first, panel + k * CPU_PANEL, (size_t)n * sizeof *panel);
  }
}

static opipe_status accumulate_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_linear_plan *plan = call->plan;
  const cpu_tensor *g = &call->out[0];
  const bool turned = g->layout == CPU_LAYOUT_PANEL_T;
  const uint32_t x = turned ? 1 : 0;
  cpu_matmul_dw_args args = {.m = plan->k,
                             .k = turned ? plan->n : plan->m,
                             .n = turned ? plan->m : plan->n,
                             .x = call->in[x].data,
                             .x_stride = turned ? plan->b_k : plan->a_k,
                             .dy = call->in[1 - x].data,
                             .dy_stride = turned ? plan->a_k : plan->b_k,
                             .format = CPU_PACK_F32_PANEL,
                             .dw = g->data,
                             .workspace = (char *)call->workspace + plan->scratch_at,
                             .dots = plan->dots,
                             .x_half = call->in[x].data,
                             .dy_half = call->in[1 - x].data};
  (void)err;
  if (g->layout == CPU_LAYOUT_PANEL || turned)
    cpu_matmul_dw(call->exec, &args);
  else
    dense_panels(call, &args, call->workspace);
  return OPIPE_OK;
}

opipe_status cpu_linear_accumulate(cpu_prep *p, cpu_linear_plan *plan) {
  const int64_t most = plan->m > plan->n ? plan->m : plan->n;
  uint64_t bytes = 0;
  if (!cpu_matmul_dw_workspace(p->device->threads, most, &bytes)) {
    return cpu_refuse(p, "[%lld, %lld] needs more workspace than can be addressed",
                      (long long)plan->m, (long long)plan->n);
  }
  plan->scratch_at = cpu_align_up((uint64_t)plan->m * CPU_PANEL * sizeof(float), CPU_ALIGN_BYTES);
  cpu_want_workspace(p, plan->scratch_at + bytes);
  for (uint32_t i = 0; i < 2; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  if (cpu_given(p, 0)->dtype == OPIPE_BFLOAT16 && cpu_given(p, 1)->dtype == OPIPE_BFLOAT16 &&
      !cpu_is_param(p, 0) && !cpu_is_param(p, 1)) {
    plan->dots = cpu_device_dots(p->device);
    p->step->narrow |= plan->dots != NULL ? 3u : 0u;
  }
  p->step->out[0].layout = CPU_LAYOUT_PANEL;
  p->step->run = accumulate_kernel;
  return OPIPE_OK;
}
