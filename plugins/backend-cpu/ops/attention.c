/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: the rule, and the joining of past and fresh keys.
 *
 * Inputs Q, K, V, attn_mask?, past_key?, past_value?, nonpad_kv_seqlen?; outputs Y, present_key?,
 * present_value?, qk_matmul_output?, what is handed on (OPIPE_DEVICE_HANDS_ON)?. Q, K, V are all
 * [B, H, S, D] or all [B, S, H*D].
 */
#include "attention.h"

enum { IN_MASK = 3, IN_PAST_K = 4, IN_PAST_V = 5, IN_NONPAD = 6 };

/* Copies fresh [B, H, L, D] (any strides) behind past (dense [B, H, P, D]) into to (dense, T rows).
 */
static void join_one(const cpu_tensor *past, const char *fresh, const int64_t *stride,
                     const cpu_attention_plan *plan, int64_t dim, char *to, int64_t size) {
  for (int64_t bh = 0; bh < plan->batch * plan->kv_heads; ++bh) {
    const int64_t b = bh / plan->kv_heads;
    const int64_t h = bh % plan->kv_heads;
    char *row = to + bh * plan->keys * dim * size;
    if (plan->past > 0) {
      memcpy(row, (const char *)past->data + bh * plan->past * dim * size,
             (size_t)(plan->past * dim * size));
    }
    row += plan->past * dim * size;
    for (int64_t r = 0; r < plan->fresh; ++r) {
      memcpy(row + r * dim * size, fresh + (b * stride[0] + h * stride[1] + r * stride[2]) * size,
             (size_t)(dim * size));
    }
  }
}

static void dense_strides(const cpu_attention_plan *plan, int64_t dim, int64_t *out) {
  out[2] = dim;
  out[1] = plan->keys * dim;
  out[0] = plan->kv_heads * out[1];
}

void cpu_attention_join(const cpu_call *call, cpu_attention_view *out_view) {
  const cpu_attention_plan *plan = call->plan;
  const int64_t size = call->in[0].dtype == OPIPE_DOUBLE ? 8 : 4;
  char *workspace = call->workspace;
  int64_t *valid = (int64_t *)(void *)(workspace + plan->valid_at), *places = valid + plan->batch;
  const char *fresh_k = (const char *)call->in[plan->base + 1].data + plan->first[1] * size;
  const char *fresh_v = (const char *)call->in[plan->base + 2].data + plan->first[2] * size;
  out_view->k = fresh_k;
  out_view->v = fresh_v;
  memcpy(out_view->k_stride, plan->k, sizeof plan->k);
  memcpy(out_view->v_stride, plan->v, sizeof plan->v);
  if (plan->joined) {
    static const cpu_tensor none;
    char *k = plan->join_k != UINT64_MAX ? workspace + plan->join_k : call->out[1].data;
    char *v = plan->join_v != UINT64_MAX ? workspace + plan->join_v : call->out[2].data;
    const bool has_past = call->n_in > plan->base + IN_PAST_V;
    join_one(has_past ? &call->in[plan->base + IN_PAST_K] : &none, fresh_k, plan->k, plan,
             plan->dim, k, size);
    join_one(has_past ? &call->in[plan->base + IN_PAST_V] : &none, fresh_v, plan->v, plan,
             plan->v_dim, v, size);
    out_view->k = k;
    out_view->v = v;
    dense_strides(plan, plan->dim, out_view->k_stride);
    dense_strides(plan, plan->v_dim, out_view->v_stride);
  }
  for (int64_t b = 0; b < plan->batch; ++b) {
    valid[b] = plan->has_mask ? plan->mask_keys : plan->keys;
    places[b] = plan->past;
    if (plan->has_nonpad) {
      int64_t n = cpu_index(&call->in[plan->base + IN_NONPAD], (uint64_t)b);
      n = n < 0 ? 0 : n < plan->keys ? n : plan->keys;
      places[b] = n - plan->rows;
      valid[b] = n < valid[b] ? n : valid[b];
    }
  }
  out_view->valid = valid;
  out_view->places = places;
}

/* Sizes of one of Q, K, V by the rank of Q; `heads` is known for rank 3. */
static opipe_status read_operand(cpu_prep *p, uint32_t base, uint32_t i, int64_t *io_heads,
                                 int64_t *out_rows, int64_t *out_dim, int64_t *out_strides) {
  const opipe_value *value = &p->graph->values[p->node->in[base + i]];
  const opipe_value *q = &p->graph->values[p->node->in[base]];
  if (value->rank != q->rank || value->dtype != q->dtype || value->shape[0] != q->shape[0])
    return cpu_invalid(p, "'%.80s' differs from Q in rank, type or batch", value->name);
  if (value->rank == 4) {
    *io_heads = value->shape[1];
    *out_rows = value->shape[2];
    *out_dim = value->shape[3];
    out_strides[2] = *out_dim;
    out_strides[1] = *out_dim * *out_rows;
  } else {
    if (*io_heads <= 0 || value->shape[2] % *io_heads != 0) {
      return cpu_invalid(p, "'%.80s' has %lld features for %lld heads", value->name,
                         (long long)value->shape[2], (long long)*io_heads);
    }
    *out_rows = value->shape[1];
    *out_dim = value->shape[2] / *io_heads;
    out_strides[1] = *out_dim;
    out_strides[2] = value->shape[2];
  }
  out_strides[0] = *io_heads * *out_rows * *out_dim;
  return OPIPE_OK;
}

static opipe_status read_sizes(cpu_prep *p, cpu_attention_plan *plan) {
  const uint32_t base = plan->base;
  const opipe_value *q = &p->graph->values[p->node->in[base]];
  int64_t v_heads = opipe_attr_int(p->node, "kv_num_heads", 0);
  int64_t v_rows = 0;
  if (!cpu_is_float(q->dtype) || (q->rank != 3 && q->rank != 4))
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(q->dtype), q->rank);
  plan->batch = q->shape[0];
  plan->heads = opipe_attr_int(p->node, "q_num_heads", 0);
  plan->kv_heads = v_heads;
  CPU_TRY(read_operand(p, base, 0, &plan->heads, &plan->rows, &plan->dim, plan->q));
  int64_t k_dim = 0;
  CPU_TRY(read_operand(p, base, 1, &plan->kv_heads, &plan->fresh, &k_dim, plan->k));
  CPU_TRY(read_operand(p, base, 2, &v_heads, &v_rows, &plan->v_dim, plan->v));
  if (k_dim != plan->dim || v_heads != plan->kv_heads || v_rows != plan->fresh ||
      plan->kv_heads == 0 || plan->heads % plan->kv_heads != 0) {
    return cpu_invalid(p, "Q has %lld heads of %lld, K %lld of %lld, V %lld; %lld and %lld rows",
                       (long long)plan->heads, (long long)plan->dim, (long long)plan->kv_heads,
                       (long long)k_dim, (long long)v_heads, (long long)plan->fresh,
                       (long long)v_rows);
  }
  return OPIPE_OK;
}

/* Q, K and V as columns of one tensor: see cpu_fusion. */
static opipe_status read_packed(cpu_prep *p, cpu_attention_plan *plan) {
  const opipe_value *all = cpu_in(p, 0);
  int64_t *strides[3] = {plan->q, plan->k, plan->v};
  if (p->fusion == NULL || !p->fusion->packed_rows)
    return OPIPE_OK;
  if (all->rank != 3 || plan->fresh != plan->rows || plan->rows != all->shape[1]) {
    return cpu_invalid(p, "'%.80s' does not hold %lld rows of queries, keys and values", all->name,
                       (long long)plan->rows);
  }
  for (int i = 0; i < 3; ++i) {
    plan->first[i] = p->fusion->column[i];
    strides[i][2] = all->shape[2];
    strides[i][0] = all->shape[1] * all->shape[2];
  }
  return OPIPE_OK;
}

static opipe_status read_past(cpu_prep *p, cpu_attention_plan *plan) {
  const opipe_value *k = cpu_in(p, plan->base + IN_PAST_K);
  const opipe_value *v = cpu_in(p, plan->base + IN_PAST_V);
  if ((k == NULL) != (v == NULL))
    return cpu_invalid(p, "has only one of past_key and past_value");
  if (k != NULL) {
    const int64_t wanted_k[4] = {plan->batch, plan->kv_heads, k->rank == 4 ? k->shape[2] : 0,
                                 plan->dim};
    const int64_t wanted_v[4] = {plan->batch, plan->kv_heads, wanted_k[2], plan->v_dim};
    if (k->rank != 4 || v->rank != 4 || memcmp(k->shape, wanted_k, sizeof wanted_k) != 0 ||
        memcmp(v->shape, wanted_v, sizeof wanted_v) != 0 ||
        k->dtype != cpu_in(p, plan->base)->dtype || v->dtype != k->dtype)
      return cpu_invalid(p, "past_key or past_value do not fit K and V");
    plan->past = k->shape[2];
  }
  plan->keys = plan->past + plan->fresh;
  return OPIPE_OK;
}

static opipe_status read_mask(cpu_prep *p, cpu_attention_plan *plan) {
  const opipe_value *mask = cpu_in(p, plan->base + IN_MASK);
  const opipe_value *nonpad = cpu_in(p, plan->base + IN_NONPAD);
  plan->mask_keys = plan->keys;
  plan->has_nonpad = nonpad != NULL;
  if (nonpad != NULL && ((nonpad->dtype != OPIPE_INT64 && nonpad->dtype != OPIPE_INT32) ||
                         (int64_t)cpu_elems(nonpad) != plan->batch))
    return cpu_invalid(p, "nonpad_kv_seqlen is not [%lld]", (long long)plan->batch);
  if (mask == NULL)
    return OPIPE_OK;
  plan->has_mask = true;
  plan->bool_mask = mask->dtype == OPIPE_BOOL;
  if ((!plan->bool_mask && mask->dtype != cpu_in(p, plan->base)->dtype) || mask->rank < 1 ||
      mask->rank > 4)
    return cpu_refuse(p, "its mask is %s of rank %u", opipe_dtype_name(mask->dtype), mask->rank);
  const uint32_t type =
      p->given == NULL ? mask->dtype : p->given->values[p->node->in[plan->base + IN_MASK]].dtype;
  plan->mask_bits = type == OPIPE_FLOAT16 ? 11 : type == OPIPE_BFLOAT16 ? 8 : 0;
  const int64_t n = mask->shape[mask->rank - 1];
  plan->mask_keys = n != 1 && n < plan->keys ? n : plan->keys;
  const int64_t full[4] = {plan->batch, plan->heads, plan->rows, plan->mask_keys};
  if (!opipe_broadcast_strides(mask->shape, mask->rank, full, 4, plan->mask)) {
    return cpu_invalid(p, "its mask does not broadcast to [%lld, %lld, %lld, %lld]",
                       (long long)full[0], (long long)full[1], (long long)full[2],
                       (long long)full[3]);
  }
  return OPIPE_OK;
}

static opipe_status check_outputs(cpu_prep *p, const cpu_attention_plan *plan) {
  const opipe_value *q = &p->graph->values[p->node->in[0]];
  const int64_t four[4] = {plan->batch, plan->heads, plan->rows, plan->v_dim};
  const int64_t three[3] = {plan->batch, plan->rows, plan->heads * plan->v_dim};
  const int64_t present_k[4] = {plan->batch, plan->kv_heads, plan->keys, plan->dim};
  const int64_t present_v[4] = {plan->batch, plan->kv_heads, plan->keys, plan->v_dim};
  const int64_t scores[4] = {plan->batch, plan->heads, plan->rows, plan->keys};
  CPU_TRY(q->rank == 4 ? cpu_expect(p, 0, q->dtype, four, 4)
                       : cpu_expect(p, 0, q->dtype, three, 3));
  CPU_TRY(cpu_out(p, 1) != NULL ? cpu_expect(p, 1, q->dtype, present_k, 4) : OPIPE_OK);
  CPU_TRY(cpu_out(p, 2) != NULL ? cpu_expect(p, 2, q->dtype, present_v, 4) : OPIPE_OK);
  CPU_TRY(cpu_out(p, 3) != NULL ? cpu_expect(p, 3, q->dtype, scores, 4) : OPIPE_OK);
  return cpu_out(p, 4) != NULL ? cpu_expect(p, 4, OPIPE_FLOAT, scores, 3) : OPIPE_OK;
}

void cpu_attention_plan_join(cpu_prep *p, cpu_attention_plan *plan, bool to_outputs,
                             uint64_t *io_at) {
  const uint64_t size = cpu_in(p, plan->base)->dtype == OPIPE_DOUBLE ? 8 : 4;
  const uint64_t rows = (uint64_t)(plan->batch * plan->kv_heads * plan->keys) * size;
  const bool k_out = to_outputs && cpu_out(p, 1) != NULL;
  const bool v_out = to_outputs && cpu_out(p, 2) != NULL;
  plan->joined = plan->past > 0 || k_out || v_out;
  plan->join_k = UINT64_MAX;
  plan->join_v = UINT64_MAX;
  if (plan->joined && !k_out) {
    plan->join_k = *io_at;
    *io_at += cpu_align_up(rows * (uint64_t)plan->dim, CPU_ALIGN_BYTES);
  }
  if (plan->joined && !v_out) {
    plan->join_v = *io_at;
    *io_at += cpu_align_up(rows * (uint64_t)plan->v_dim, CPU_ALIGN_BYTES);
  }
  plan->valid_at = *io_at;
  *io_at += cpu_align_up((uint64_t)plan->batch * 2 * sizeof(int64_t), CPU_ALIGN_BYTES);
}

/* Offsets in the workspace: joined keys and values, valid keys, the kernel's scratch. */
static opipe_status plan_workspace(cpu_prep *p, cpu_attention_plan *plan, bool fast) {
  uint64_t at = 0;
  uint64_t scratch = (uint64_t)plan->keys * sizeof(double);
  cpu_attention_plan_join(p, plan, true, &at);
  plan->scratch_at = at;
  const cpu_attention_args sizes = {.heads = plan->heads,
                                    .kv_heads = plan->kv_heads,
                                    .q_rows = plan->rows,
                                    .kv_rows = plan->keys,
                                    .qk_dim = plan->dim,
                                    .v_dim = plan->v_dim};
  if (fast && !cpu_attention_workspace(p->device->threads, &sizes, &scratch)) {
    return cpu_refuse(p, "%lld keys need more workspace than can be addressed",
                      (long long)plan->keys);
  }
  cpu_want_workspace(p, at + scratch);
  return OPIPE_OK;
}

opipe_status cpu_attention_read(cpu_prep *p, cpu_attention_plan *plan) {
  CPU_TRY(read_sizes(p, plan));
  CPU_TRY(read_packed(p, plan));
  CPU_TRY(read_past(p, plan));
  CPU_TRY(read_mask(p, plan));
  const double root = __builtin_sqrt((double)plan->dim);
  plan->scale = opipe_attr_float(p->node, "scale", root > 0 ? 1.0 / root : 1.0);
  plan->softcap = opipe_attr_float(p->node, "softcap", 0.0);
  plan->causal = opipe_attr_int(p->node, "is_causal", 0) != 0;
  plan->window = opipe_attr_int(p->node, "left_window_size", -1) + 1;
  if (opipe_attr_int(p->node, "right_window_size", -1) >= 0 ||
      (plan->window > 0 && !plan->has_nonpad))
    return cpu_refuse(p, "windows are supported beside nonpad_kv_seqlen alone, to the left");
  const uint32_t rank = p->graph->values[p->node->in[plan->base]].rank;
  plan->out[0] = plan->heads * plan->rows * plan->v_dim;
  plan->out[1] = rank == 4 ? plan->rows * plan->v_dim : plan->v_dim;
  plan->out[2] = rank == 4 ? plan->v_dim : plan->heads * plan->v_dim;
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  return OPIPE_OK;
}

static opipe_status prepare_attention(cpu_prep *p) {
  cpu_attention_plan *plan = CPU_PLAN(p, cpu_attention_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_attention_read(p, plan));
  CPU_TRY(check_outputs(p, plan));
  plan->mode = (int)opipe_attr_int(p->node, "qk_matmul_output_mode", 0);
  if (plan->mode < 0 || plan->mode > 3)
    return cpu_refuse(p, "qk_matmul_output_mode %d is not known", plan->mode);
  const bool fast = p->fast && cpu_in(p, 0)->dtype == OPIPE_FLOAT && cpu_out(p, 3) == NULL &&
                    cpu_out(p, 4) == NULL &&
                    opipe_attr_int(p->node, "softmax_precision", OPIPE_FLOAT) != OPIPE_DOUBLE;
  p->step->run = fast ? cpu_attention_fast : cpu_attention_reference;
  return plan_workspace(p, plan, fast);
}

static const cpu_op ops[] = {
    {"Attention", NULL, prepare_attention, 3, 7, 5, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_attention = {ops, CPU_COUNT_OF(ops)};
