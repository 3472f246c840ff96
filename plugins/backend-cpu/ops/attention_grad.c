/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.AttentionGrad: dY, then the inputs of Attention -> dQ, dK, dV, dMask?, dPastK?, dPastV?.
 *
 * Scores are made again row by row: with p the probabilities, D = sum(p dP), dS = p (dP - D); dV +=
 * p dY, dQ += dS K, dK += dS Q. A row that is masked everywhere has p = 0 and gives nothing. The
 * reference sums in fp64, head by head. The sums handed on by the forward (inputs 8 and 9) are not
 * read.
 */
#include <math.h>

#include "attention.h"

enum { IN_DY = 0, BASE = 1, OUT_MASK = 3, OUT_PAST_K = 4, OUT_PAST_V = 5, OUTPUTS = 6 };

typedef struct grad_plan {
  cpu_attention_plan forward; /* first: what the forward's functions take as the plan */
  uint64_t row_at;            /* probabilities, slopes, dP [3][keys] */
  uint64_t kv_at;             /* dK and dV of one key head, [keys][dim + v_dim] */
  uint64_t mask_at;           /* dMask in fp64 */
  uint64_t scores_at;         /* fast: gradients of all scores, where dMask is wanted */
} grad_plan;

static void put(const cpu_tensor *out, int64_t i, double value) {
  if (out->dtype == OPIPE_DOUBLE)
    ((double *)out->data)[i] = value;
  else
    ((float *)out->data)[i] = (float)value;
}

static double get(const cpu_call *call, const void *data, int64_t i) {
  return call->in[0].dtype == OPIPE_DOUBLE ? ((const double *)data)[i]
                                           : (double)((const float *)data)[i];
}

static bool wanted(const cpu_call *call, uint32_t out) {
  return out < call->n_out && call->out[out].data != NULL;
}

/* One query row: adds to the sums of its key head and of the mask, stores dQ. */
static void grad_row(const cpu_call *call, const cpu_attention_view *view, const int64_t *at) {
  const grad_plan *own = call->plan;
  const cpu_attention_plan *plan = &own->forward;
  char *workspace = call->workspace;
  double *p = (double *)(void *)(workspace + own->row_at);
  double *slope = p + plan->keys;
  double *ds = slope + plan->keys;
  double *dk = (double *)(void *)(workspace + own->kv_at);
  double *dv = dk + plan->keys * plan->dim;
  double *dmask = (double *)(void *)(workspace + own->mask_at);
  const int64_t kv = at[1] / (plan->heads / plan->kv_heads);
  const int64_t y = at[0] * plan->out[0] + at[1] * plan->out[1] + at[2] * plan->out[2];
  const int64_t q = at[0] * plan->q[0] + at[1] * plan->q[1] + at[2] * plan->q[2];
  double weighted = 0;
  cpu_attention_row(call, view, at, p, slope, NULL);
  for (int64_t j = 0; j < plan->keys; ++j) {
    const int64_t v = at[0] * view->v_stride[0] + kv * view->v_stride[1] + j * view->v_stride[2];
    ds[j] = 0;
    for (int64_t d = 0; p[j] != 0 && d < plan->v_dim; ++d) {
      const double dy = get(call, call->in[IN_DY].data, y + d);
      ds[j] += dy * get(call, view->v, v + d);
      dv[j * plan->v_dim + d] += p[j] * dy;
    }
    weighted += p[j] == 0 ? 0 : p[j] * ds[j];
  }
  for (int64_t j = 0; j < plan->keys; ++j) {
    ds[j] = p[j] == 0 ? 0 : p[j] * (ds[j] - weighted);
    if (wanted(call, OUT_MASK) && j < plan->mask_keys) {
      dmask[at[0] * plan->mask[0] + at[1] * plan->mask[1] + at[2] * plan->mask[2] +
            j * plan->mask[3]] += ds[j];
    }
    ds[j] *= slope[j] * plan->scale;
  }
  for (int64_t d = 0; d < plan->dim; ++d) {
    const double x = get(call, call->in[BASE].data, q + d);
    double sum = 0;
    for (int64_t j = 0; j < plan->keys; ++j) {
      const int64_t k = at[0] * view->k_stride[0] + kv * view->k_stride[1] + j * view->k_stride[2];
      if (ds[j] != 0) {
        sum += ds[j] * get(call, view->k, k + d);
        dk[j * plan->dim + d] += ds[j] * x;
      }
    }
    if (wanted(call, 0))
      put(&call->out[0], q + d, sum);
  }
}

/* Sums of one key head, fresh keys to dK or dV with the input's strides, earlier ones to the past's
 * gradient. */
static void store_keys(const cpu_call *call, const int64_t *at, const double *sum, int64_t dim,
                       const int64_t *stride, uint32_t out, uint32_t past_out) {
  const cpu_attention_plan *plan = call->plan;
  for (int64_t j = 0; j < plan->keys; ++j) {
    for (int64_t d = 0; d < dim; ++d) {
      if (j < plan->past && wanted(call, past_out)) {
        const int64_t row = (at[0] * plan->kv_heads + at[1]) * plan->past + j;
        put(&call->out[past_out], row * dim + d, sum[j * dim + d]);
      } else if (j >= plan->past && wanted(call, out)) {
        put(&call->out[out],
            at[0] * stride[0] + at[1] * stride[1] + (j - plan->past) * stride[2] + d,
            sum[j * dim + d]);
      }
    }
  }
}

static opipe_status reference_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *own = call->plan;
  const cpu_attention_plan *plan = &own->forward;
  const int64_t group = plan->heads / plan->kv_heads;
  const int64_t kv_elems = plan->keys * (plan->dim + plan->v_dim);
  double *dk = (double *)(void *)((char *)call->workspace + own->kv_at);
  double *dmask = (double *)(void *)((char *)call->workspace + own->mask_at);
  cpu_attention_view view;
  (void)err;
  cpu_attention_join(call, &view);
  for (uint64_t i = 0; wanted(call, OUT_MASK) && i < call->out[OUT_MASK].n; ++i)
    dmask[i] = 0;
  for (int64_t i = 0; i < plan->batch * plan->kv_heads; ++i) {
    const int64_t kv[2] = {i / plan->kv_heads, i % plan->kv_heads};
    for (int64_t e = 0; e < kv_elems; ++e)
      dk[e] = 0;
    for (int64_t r = 0; r < group * plan->rows; ++r) {
      const int64_t at[3] = {kv[0], kv[1] * group + r / plan->rows, r % plan->rows};
      grad_row(call, &view, at);
    }
    store_keys(call, kv, dk, plan->dim, plan->k, 1, OUT_PAST_K);
    store_keys(call, kv, dk + plan->keys * plan->dim, plan->v_dim, plan->v, 2, OUT_PAST_V);
  }
  for (uint64_t i = 0; wanted(call, OUT_MASK) && i < call->out[OUT_MASK].n; ++i)
    put(&call->out[OUT_MASK], (int64_t)i, dmask[i]);
  return OPIPE_OK;
}

static cpu_attention_strides strides_of(const int64_t *stride) {
  const cpu_attention_strides s = {stride[0], stride[1], stride[2]};
  return s;
}

/* Rows of joined keys (dense, past first) to the gradients of past and fresh ones. */
static void split_joined(const cpu_call *call, const float *sum, int64_t dim, const int64_t *stride,
                         uint32_t out, uint32_t past_out) {
  const cpu_attention_plan *plan = call->plan;
  for (int64_t i = 0; i < plan->batch * plan->kv_heads * plan->keys; ++i) {
    const int64_t j = i % plan->keys;
    const int64_t head = i / plan->keys;
    float *to = NULL;
    if (j < plan->past && wanted(call, past_out)) {
      to = (float *)call->out[past_out].data + (head * plan->past + j) * dim;
    } else if (j >= plan->past && wanted(call, out)) {
      to = (float *)call->out[out].data + head / plan->kv_heads * stride[0] +
           head % plan->kv_heads * stride[1] + (j - plan->past) * stride[2];
    }
    if (to != NULL)
      memcpy(to, sum + i * dim, (size_t)dim * sizeof *to);
  }
}

/* Gradients of all scores, [batch, heads, rows, keys], added up along the axes that the mask
 * repeats, in rising order; `sum` is fp64 of the mask's shape. */
static void reduce_mask(const cpu_call *call, const float *dscores, double *sum) {
  const cpu_attention_plan *plan = call->plan;
  const cpu_tensor *out = &call->out[OUT_MASK];
  memset(sum, 0, (size_t)out->n * sizeof *sum);
  for (int64_t i = 0; i < plan->batch * plan->heads * plan->rows; ++i) {
    const int64_t at = i / plan->rows / plan->heads * plan->mask[0] +
                       i / plan->rows % plan->heads * plan->mask[1] +
                       i % plan->rows * plan->mask[2];
    for (int64_t j = 0; j < plan->mask_keys; ++j)
      sum[at + j * plan->mask[3]] += (double)dscores[i * plan->keys + j];
  }
  for (uint64_t i = 0; i < out->n; ++i)
    ((float *)out->data)[i] = (float)sum[i];
}

static void set_forward(const cpu_call *call, const cpu_attention_view *view,
                        cpu_attention_args *g) {
  const cpu_attention_plan *plan = call->plan;
  g->batch = plan->batch;
  g->heads = plan->heads;
  g->kv_heads = plan->kv_heads;
  g->q_rows = plan->rows;
  g->kv_rows = plan->keys;
  g->qk_dim = plan->dim;
  g->v_dim = plan->v_dim;
  g->q = call->in[BASE].data;
  g->k = view->k;
  g->v = view->v;
  g->q_stride = strides_of(plan->q);
  g->k_stride = strides_of(view->k_stride);
  g->v_stride = strides_of(view->v_stride);
  g->scale = (float)plan->scale;
  g->causal = plan->causal;
  g->causal_offset = plan->past;
  g->masked_row = CPU_MASKED_ROW_ZERO;
  g->kv_valid = plan->has_nonpad || plan->mask_keys < plan->keys ? view->valid : NULL;
  if (plan->has_mask) {
    memcpy(g->mask_stride, plan->mask, sizeof plan->mask);
    g->mask_bits = plan->mask_bits;
    *(plan->bool_mask ? (const void **)&g->mask_keep : (const void **)&g->mask_add) =
        call->in[BASE + 3].data;
  }
}

static opipe_status fast_kernel(const cpu_call *call, opipe_error *err) {
  const grad_plan *own = call->plan;
  const cpu_attention_plan *plan = &own->forward;
  char *workspace = call->workspace;
  const bool joined = plan->past > 0;
  const int64_t rows = plan->batch * plan->kv_heads * plan->keys;
  float *sum_k = (float *)(void *)(workspace + own->kv_at);
  float *sum_v = sum_k + rows * plan->dim;
  cpu_attention_view view;
  cpu_attention_grad_args args;
  (void)err;
  memset(&args, 0, sizeof args);
  cpu_attention_join(call, &view);
  set_forward(call, &view, &args.forward);
  args.dy = call->in[IN_DY].data;
  args.dy_stride = strides_of(plan->out);
  args.dq = wanted(call, 0) ? call->out[0].data : NULL;
  args.dq_stride = strides_of(plan->q);
  args.dk_stride = strides_of(view.k_stride);
  args.dv_stride = strides_of(view.v_stride);
  if (joined) {
    args.dk = wanted(call, 1) || wanted(call, OUT_PAST_K) ? sum_k : NULL;
    args.dv = wanted(call, 2) || wanted(call, OUT_PAST_V) ? sum_v : NULL;
  } else {
    args.dk = wanted(call, 1) ? call->out[1].data : NULL;
    args.dv = wanted(call, 2) ? call->out[2].data : NULL;
  }
  args.workspace = workspace + own->row_at;
  if (wanted(call, OUT_MASK)) {
    args.dscores = (float *)(void *)(workspace + own->scores_at);
    memset(args.dscores, 0, (size_t)(plan->batch * plan->heads * plan->rows * plan->keys) * 4);
  }
  cpu_attention_grad(call->exec, &args);
  if (args.dscores != NULL)
    reduce_mask(call, args.dscores, (double *)(void *)(workspace + own->mask_at));
  if (joined && args.dk != NULL)
    split_joined(call, sum_k, plan->dim, plan->k, 1, OUT_PAST_K);
  if (joined && args.dv != NULL)
    split_joined(call, sum_v, plan->v_dim, plan->v, 2, OUT_PAST_V);
  return OPIPE_OK;
}

/* fp32 without soft cap, and without places that differ between sequences. */
static bool take_fast(cpu_prep *p, grad_plan *own, uint64_t at) {
  const cpu_attention_plan *plan = &own->forward;
  uint64_t bytes = 0;
  if (!p->fast || cpu_in(p, 0)->dtype != OPIPE_FLOAT || plan->softcap > 0 || plan->window > 0 ||
      (plan->has_nonpad && plan->causal) ||
      !cpu_attention_grad_workspace(p->device->threads, plan->keys, plan->dim, plan->v_dim, &bytes))
    return false;
  own->row_at = at;
  own->kv_at = at + bytes;
  if (plan->past > 0) {
    bytes += (uint64_t)(plan->batch * plan->kv_heads * plan->keys * (plan->dim + plan->v_dim)) *
             sizeof(float);
  }
  at += cpu_align_up(bytes, CPU_ALIGN_BYTES);
  if (cpu_out(p, OUT_MASK) != NULL) {
    own->mask_at = at;
    at += cpu_align_up(cpu_elems(cpu_out(p, OUT_MASK)) * sizeof(double), CPU_ALIGN_BYTES);
    own->scores_at = at;
    at += (uint64_t)(plan->batch * plan->heads * plan->rows * plan->keys) * sizeof(float);
  }
  cpu_want_workspace(p, at);
  p->step->run = fast_kernel;
  return true;
}

/* Every gradient is like its input; one of an absent input is refused. */
static opipe_status check_outputs(cpu_prep *p) {
  static const uint32_t of[OUTPUTS] = {0, 1, 2, 3, 4, 5};
  for (uint32_t i = 0; i < p->step->n_out; ++i) {
    const opipe_value *in = cpu_in(p, BASE + of[i]);
    if (cpu_out(p, i) == NULL)
      continue;
    if (in == NULL || !cpu_is_float(in->dtype))
      return cpu_invalid(p, "output %u is the gradient of an input that has none", i);
    CPU_TRY(cpu_expect_like(p, i, in));
  }
  return OPIPE_OK;
}

static opipe_status check_dy(cpu_prep *p, const cpu_attention_plan *plan) {
  const opipe_value *dy = cpu_in(p, IN_DY);
  const opipe_value *q = cpu_in(p, BASE);
  const int64_t four[4] = {plan->batch, plan->heads, plan->rows, plan->v_dim};
  const int64_t three[3] = {plan->batch, plan->rows, plan->heads * plan->v_dim};
  if (dy->dtype != q->dtype || dy->rank != q->rank ||
      memcmp(dy->shape, q->rank == 4 ? four : three, q->rank * sizeof four[0]) != 0)
    return cpu_invalid(p, "'%.80s' is not of the shape and type of the output", dy->name);
  return OPIPE_OK;
}

static opipe_status prepare_attention_grad(cpu_prep *p) {
  grad_plan *own = CPU_PLAN(p, grad_plan);
  uint64_t at = 0;
  if (own == NULL)
    return cpu_nomem(p);
  cpu_attention_plan *plan = &own->forward;
  plan->base = BASE;
  CPU_TRY(cpu_attention_read(p, plan));
  CPU_TRY(check_dy(p, plan));
  CPU_TRY(check_outputs(p));
  cpu_attention_plan_join(p, plan, false, &at);
  if (take_fast(p, own, at))
    return OPIPE_OK;
  own->row_at = at;
  at += cpu_align_up((uint64_t)plan->keys * 3 * sizeof(double), CPU_ALIGN_BYTES);
  own->kv_at = at;
  at += cpu_align_up((uint64_t)(plan->keys * (plan->dim + plan->v_dim)) * sizeof(double),
                     CPU_ALIGN_BYTES);
  own->mask_at = at;
  if (cpu_out(p, OUT_MASK) != NULL)
    at += cpu_align_up(cpu_elems(cpu_out(p, OUT_MASK)) * sizeof(double), CPU_ALIGN_BYTES);
  cpu_want_workspace(p, at);
  p->step->run = reference_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"AttentionGrad", "opipe", prepare_attention_grad, 4, 10, OUTPUTS, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_attention_grad = {ops, CPU_COUNT_OF(ops)};
