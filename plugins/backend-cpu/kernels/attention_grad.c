/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of attention: workspace, and the division by (batch, key head). */
#include "attention_grad.h"

#include <stddef.h>

#include "attention_grad_plan.h"

bool cpu_attention_grad_workspace(int32_t threads, int64_t kv_rows, int64_t qk_dim, int64_t v_dim,
                                  uint64_t *out_bytes) {
  const int64_t most = INT32_MAX / 64;
  if (threads < 1 || kv_rows < 0 || qk_dim < 0 || v_dim < 0 || kv_rows > most || qk_dim > most ||
      v_dim > most)
    return false;
  const uint64_t each = attention_grad_divide(NULL, kv_rows, qk_dim, v_dim, NULL) * sizeof(float);
  return !__builtin_mul_overflow(each, (uint64_t)threads, out_bytes);
}

typedef struct grad_job {
  const cpu_kernels *kernels;
  const cpu_attention_grad_args *args;
  uint64_t thread_floats;
} grad_job;

static void grad_task(void *argument, int32_t worker, int32_t workers) {
  const grad_job *j = argument;
  const cpu_attention_args *g = &j->args->forward;
  float *workspace = (float *)j->args->workspace + (uint64_t)worker * j->thread_floats;
  cpu_range units;
  cpu_team_share(g->batch * g->kv_heads, worker, workers, &units.begin, &units.end);
  for (int64_t unit = units.begin; unit < units.end; ++unit)
    j->kernels->attention_grad(j->args, unit / g->kv_heads, unit % g->kv_heads, workspace);
}

void cpu_attention_grad(const cpu_exec *x, const cpu_attention_grad_args *args) {
  const cpu_attention_args *g = &args->forward;
  grad_job job = {.kernels = x->kernels, .args = args};
  job.thread_floats = attention_grad_divide(NULL, g->kv_rows, g->qk_dim, g->v_dim, NULL);
  cpu_team_run(x->team, grad_task, &job);
}
