/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 and bf16 for operators whose kernels know fp32: their operands are converted into the
 * workspace, the fp32 kernel runs, its results are rounded once into the outputs.
 *
 * The operator's rule sees a small graph of its own in which those values are fp32. A parameter for
 * which the rule asks for a layout (panels, fp32) comes as that: nothing is converted. An operand
 * that the rule's kernel reads as it is is not converted either; there is room for it all the same,
 * so that a program takes the same bytes whichever kernels a machine has.
 */
#include "loop.h"

typedef struct widen_plan {
  cpu_kernel run;
  const void *plan;
  uint64_t *in_at; /* [n_in] offset in the workspace, NOT_WIDENED: used as it is */
  uint64_t *out_at;
  uint64_t inner_at; /* the kernel's own workspace */
  uint64_t tensors_at;
  uint32_t narrow; /* cpu_step.narrow */
} widen_plan;

#define NOT_WIDENED UINT64_MAX

/* Widens or passes on the operands, into `tensors` (in the workspace: a run allocates nothing). */
static opipe_status widen_kernel(const cpu_call *call, opipe_error *err) {
  const widen_plan *plan = call->plan;
  char *workspace = call->workspace;
  cpu_tensor *tensors = (cpu_tensor *)(void *)(workspace + plan->tensors_at);
  cpu_call inner = *call;
  for (uint32_t i = 0; i < call->n_in; ++i) {
    tensors[i] = call->in[i];
    if (plan->in_at[i] != NOT_WIDENED) {
      tensors[i].data = workspace + plan->in_at[i];
      tensors[i].dtype = OPIPE_FLOAT;
      tensors[i].n_bytes = call->in[i].n * 4;
      cpu_convert(call->exec, cpu_storage_type(call->in[i].dtype), call->in[i].data, CPU_F32,
                  tensors[i].data, (int64_t)call->in[i].n);
    } else if (cpu_is_half(tensors[i].dtype) && (plan->narrow >> i & 1u) == 0) {
      tensors[i].dtype = OPIPE_FLOAT; /* its layout is fp32, or one that the kernel knows */
    }
  }
  for (uint32_t i = 0; i < call->n_out; ++i) {
    tensors[call->n_in + i] = call->out[i];
    if (plan->out_at[i] != NOT_WIDENED) {
      tensors[call->n_in + i].data = workspace + plan->out_at[i];
      tensors[call->n_in + i].dtype = OPIPE_FLOAT;
      tensors[call->n_in + i].n_bytes = call->out[i].n * 4;
    }
  }
  inner.in = tensors;
  inner.out = tensors + call->n_in;
  inner.plan = plan->plan;
  inner.workspace = workspace + plan->inner_at;
  const opipe_status status = plan->run(&inner, err);
  for (uint32_t i = 0; status >= 0 && i < call->n_out; ++i) {
    if (plan->out_at[i] != NOT_WIDENED) {
      cpu_convert(call->exec, CPU_F32, workspace + plan->out_at[i],
                  cpu_storage_type(call->out[i].dtype), call->out[i].data, (int64_t)call->out[i].n);
    }
  }
  return status;
}

/* The node's values with fp32 in place of fp16 and bf16. */
static opipe_status shadow_graph(cpu_prep *p, opipe_graph *graph) {
  const cpu_step *step = p->step;
  opipe_value *values = CPU_POOL_ARRAY(p->pool, opipe_value, p->graph->n_values);
  if (values == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
    const uint32_t v = i < step->n_in ? step->in[i].value : step->out[i - step->n_in].value;
    if (v == OPIPE_NONE)
      continue;
    values[v] = p->graph->values[v];
    if (cpu_is_half(values[v].dtype)) {
      values[v].dtype = OPIPE_FLOAT;
      values[v].n_bytes *= 2;
    }
  }
  *graph = *p->graph;
  graph->values = values;
  return OPIPE_OK;
}

/* Room for fp32 copies of half operands that have no layout of their own. */
static void plan_copies(const cpu_prep *p, widen_plan *plan, uint64_t *io_at) {
  const cpu_step *step = p->step;
  for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
    const bool is_in = i < step->n_in;
    const uint32_t k = is_in ? i : i - step->n_in;
    const opipe_value *value = is_in ? cpu_in(p, k) : cpu_out(p, k);
    uint64_t *at = is_in ? &plan->in_at[k] : &plan->out_at[k];
    const bool has_layout = is_in && step->in[k].layout > CPU_LAYOUT_COPY;
    *at = NOT_WIDENED;
    if (value != NULL && cpu_is_half(value->dtype) && !has_layout) {
      *at = is_in && (step->narrow >> k & 1u) != 0 ? NOT_WIDENED : *io_at;
      *io_at += cpu_align_up(cpu_elems(value) * 4, CPU_ALIGN_BYTES);
    }
  }
}

opipe_status cpu_prepare_widened(cpu_prep *p) {
  cpu_step *step = p->step;
  opipe_graph *shadow = CPU_POOL_ARRAY(p->pool, opipe_graph, 1);
  widen_plan *plan = CPU_POOL_ARRAY(p->pool, widen_plan, 1);
  cpu_prep inner = *p;
  uint64_t at = 0;
  if (shadow == NULL || plan == NULL)
    return cpu_nomem(p);
  plan->in_at = CPU_POOL_ARRAY(p->pool, uint64_t, step->n_in);
  plan->out_at = CPU_POOL_ARRAY(p->pool, uint64_t, step->n_out);
  if (plan->in_at == NULL || plan->out_at == NULL)
    return cpu_nomem(p);
  CPU_TRY(shadow_graph(p, shadow));
  inner.graph = shadow;
  inner.given = p->graph;
  CPU_TRY(p->op->prepare(&inner));
  if (step->is_view || step->run == NULL)
    return OPIPE_OK;
  for (uint32_t i = 0; i < step->n_in; ++i) {
    if (step->in[i].layout == CPU_LAYOUT_COPY && cpu_is_half(cpu_in(p, i)->dtype))
      step->in[i].layout = CPU_LAYOUT_F32;
  }
  plan->narrow = step->narrow;
  plan_copies(p, plan, &at);
  plan->tensors_at = at;
  at += cpu_align_up((uint64_t)(step->n_in + step->n_out) * sizeof(cpu_tensor), CPU_ALIGN_BYTES);
  plan->inner_at = at;
  plan->run = step->run;
  plan->plan = step->plan;
  step->run = widen_kernel;
  step->plan = plan;
  step->workspace_bytes += at;
  step->inplace = 0;
  return OPIPE_OK;
}
