/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: the plain kernel in fp64, and the call of the fused one.
 */
#include <math.h>

#include "attention.h"

static void put(const cpu_tensor *out, int64_t i, double value) {
  if (out->dtype == OPIPE_DOUBLE)
    ((double *)out->data)[i] = value;
  else
    ((float *)out->data)[i] = (float)value;
}

static double get(const cpu_call *call, const void *data, int64_t i) {
  const cpu_attention_plan *plan = call->plan;
  return call->in[plan->base].dtype == OPIPE_DOUBLE ? ((const double *)data)[i]
                                                    : (double)((const float *)data)[i];
}

/* The number that the mask adds to the score of key j: 0, a number, or minus infinity. */
static double mask_value(const cpu_call *call, const cpu_attention_plan *plan,
                         const cpu_attention_view *view, const int64_t *at, int64_t j) {
  const int64_t place = at[2] + view->places[at[0]];
  if (j >= view->valid[at[0]] || (plan->causal && j > place) ||
      (plan->window > 0 && j <= place - plan->window))
    return -(double)INFINITY;
  if (!plan->has_mask)
    return 0;
  const int64_t i =
      at[0] * plan->mask[0] + at[1] * plan->mask[1] + at[2] * plan->mask[2] + j * plan->mask[3];
  if (plan->bool_mask)
    return ((const uint8_t *)call->in[plan->base + 3].data)[i] != 0 ? 0 : -(double)INFINITY;
  return get(call, call->in[plan->base + 3].data, i);
}

/* As attention_round_low of the fused kernel. */
static double round_low(uint32_t bits, double score) {
  if (bits == 0 || !(score < -1024) || score < -1e30)
    return score;
  const double split = score * (double)(UINT64_C(1) << (53u - bits)) + score;
  const double rounded = split - (split - score);
  return bits == 11 && rounded < -65504 ? -(double)INFINITY : rounded;
}

double cpu_attention_row(const cpu_call *call, const cpu_attention_view *view, const int64_t *at,
                         double *s, double *slope, const cpu_tensor *qk) {
  const cpu_attention_plan *plan = call->plan;
  const int64_t kv = at[1] / (plan->heads / plan->kv_heads);
  const int64_t q = plan->first[0] + at[0] * plan->q[0] + at[1] * plan->q[1] + at[2] * plan->q[2];
  const int64_t row = ((at[0] * plan->heads + at[1]) * plan->rows + at[2]) * plan->keys;
  double top = -(double)INFINITY;
  double sum = 0;
  for (int64_t j = 0; j < plan->keys; ++j) {
    const int64_t k = at[0] * view->k_stride[0] + kv * view->k_stride[1] + j * view->k_stride[2];
    double score = 0;
    for (int64_t d = 0; d < plan->dim; ++d)
      score += get(call, call->in[plan->base].data, q + d) * get(call, view->k, k + d);
    score *= plan->scale;
    if (qk != NULL && plan->mode == 0)
      put(qk, row + j, score);
    if (slope != NULL) {
      const double t = plan->softcap > 0 ? tanh(score / plan->softcap) : 0;
      slope[j] = 1 - t * t;
    }
    score = plan->softcap > 0 ? plan->softcap * tanh(score / plan->softcap) : score;
    if (qk != NULL && plan->mode == 1)
      put(qk, row + j, score);
    score = round_low(plan->mask_bits, score + mask_value(call, plan, view, at, j));
    if (qk != NULL && plan->mode == 2)
      put(qk, row + j, score);
    s[j] = score;
    top = score > top || isnan(score) ? score : top;
  }
  for (int64_t j = 0; j < plan->keys; ++j) {
    s[j] = top == -(double)INFINITY ? 0 : exp(s[j] - top);
    sum += s[j];
  }
  for (int64_t j = 0; j < plan->keys; ++j) {
    s[j] = sum == 0 ? 0 : s[j] / sum;
    if (qk != NULL && plan->mode == 3)
      put(qk, row + j, s[j]);
  }
  return sum == 0 ? (double)INFINITY : top + log(sum);
}

opipe_status cpu_attention_reference(const cpu_call *call, opipe_error *err) {
  const cpu_attention_plan *plan = call->plan;
  double *s = (double *)(void *)((char *)call->workspace + plan->scratch_at);
  cpu_attention_view view;
  (void)err;
  cpu_attention_join(call, &view);
  for (int64_t i = 0; i < plan->batch * plan->heads * plan->rows; ++i) {
    const int64_t at[3] = {i / plan->rows / plan->heads, i / plan->rows % plan->heads,
                           i % plan->rows};
    const int64_t kv = at[1] / (plan->heads / plan->kv_heads);
    const int64_t out = at[0] * plan->out[0] + at[1] * plan->out[1] + at[2] * plan->out[2];
    const double found =
        cpu_attention_row(call, &view, at, s, NULL,
                          call->n_out > 3 && call->out[3].data != NULL ? &call->out[3] : NULL);
    if (call->n_out > 4 && call->out[4].data != NULL)
      put(&call->out[4], i, found);
    for (int64_t d = 0; d < plan->v_dim; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < plan->keys; ++j) {
        const int64_t v = at[0] * view.v_stride[0] + kv * view.v_stride[1] + j * view.v_stride[2];
        sum += s[j] == 0 ? 0 : s[j] * get(call, view.v, v + d);
      }
      put(&call->out[0], out + d, sum);
    }
  }
  return OPIPE_OK;
}

static cpu_attention_strides strides_of(const int64_t *stride) {
  const cpu_attention_strides s = {stride[0], stride[1], stride[2]};
  return s;
}

opipe_status cpu_attention_fast(const cpu_call *call, opipe_error *err) {
  const cpu_attention_plan *plan = call->plan;
  cpu_attention_view view;
  (void)err;
  cpu_attention_join(call, &view);
  cpu_attention_args args = {.batch = plan->batch,
                             .heads = plan->heads,
                             .kv_heads = plan->kv_heads,
                             .q_rows = plan->rows,
                             .kv_rows = plan->keys,
                             .qk_dim = plan->dim,
                             .v_dim = plan->v_dim,
                             .q = (const float *)call->in[0].data + plan->first[0],
                             .k = view.k,
                             .v = view.v,
                             .q_stride = strides_of(plan->q),
                             .k_stride = strides_of(view.k_stride),
                             .v_stride = strides_of(view.v_stride),
                             .out = call->out[0].data,
                             .out_stride = strides_of(plan->out),
                             .scale = (float)plan->scale,
                             .softcap = (float)plan->softcap,
                             .causal = plan->causal,
                             .causal_offset = plan->past,
                             .offsets = plan->has_nonpad ? view.places : NULL,
                             .window = plan->window,
                             .masked_row = CPU_MASKED_ROW_ZERO,
                             .workspace = (char *)call->workspace + plan->scratch_at};
  if (plan->has_nonpad || plan->mask_keys < plan->keys)
    args.kv_valid = view.valid;
  if (plan->has_mask) {
    memcpy(args.mask_stride, plan->mask, sizeof plan->mask);
    args.mask_bits = plan->mask_bits;
    *(plan->bool_mask ? (const void **)&args.mask_keep : (const void **)&args.mask_add) =
        call->in[3].data;
  }
  cpu_attention(call->exec, &args);
  return OPIPE_OK;
}
