/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that cuDNN takes: of half types, without a mask, a past or scores that are asked for.
 *
 *   Attention       a plan; what it needs beside the results lies in the workspace
 *   AttentionGrad   for so many sequences at a time as the workspace holds: the result and its
 *                   statistics again, unless they are handed on, then the gradients
 */
#include "../cudnn.h"
#include "ops/attention.h"

enum {
  LEAST_ROWS = 32, /* of queries and of keys: below, our own kernels do as well */
  MOST_DEPTH = 256 /* of a head; smaller chips refuse gradients of more than 128 */
};
static const uint64_t CHUNK_BYTES = UINT64_C(256) << 20; /* scores of sequences that go together */
enum { CHUNK_PART = 64 };                                /* of the GPU's memory, at most */

static bool by_eights(const void *at, const int64_t *stride) {
  return (uintptr_t)at % 16 == 0 && stride[0] % 8 == 0 && stride[1] % 8 == 0 && stride[2] % 8 == 0;
}

static bool may_take(const cuda_attention_args *a, uint32_t dtype) {
  return cuda_is_half(dtype) && a->scores == NULL && a->mask_kind == 0 && a->nonpad == NULL &&
         a->past == 0 && a->softcap == 0.0 && a->batch > 0 && a->heads > 0 && a->depth > 0 &&
         a->value_depth > 0 && a->depth % 8 == 0 && a->value_depth % 8 == 0 &&
         a->depth <= MOST_DEPTH && a->value_depth <= MOST_DEPTH && a->queries >= LEAST_ROWS &&
         a->keys >= LEAST_ROWS && by_eights(a->q, a->q_stride) && by_eights(a->k, a->k_stride) &&
         by_eights(a->v, a->v_stride);
}

/* Sizes and operands; the rest is zero. */
static void fill_form(const cuda_attention_args *a, uint32_t dtype, uint32_t what, int64_t batch,
                      cuda_dnn_form *out) {
  memset(out, 0, sizeof *out);
  out->batch = batch;
  out->heads = a->heads;
  out->kv_heads = a->kv_heads;
  out->queries = a->queries;
  out->keys = a->keys;
  out->depth = a->depth;
  out->value_depth = a->value_depth;
  out->scale = (float)a->scale;
  out->dtype = dtype;
  out->what = what;
  out->causal = a->causal != 0;
  memcpy(out->stride[CUDA_DNN_AT_Q], a->q_stride, sizeof a->q_stride);
  memcpy(out->stride[CUDA_DNN_AT_K], a->k_stride, sizeof a->k_stride);
  memcpy(out->stride[CUDA_DNN_AT_V], a->v_stride, sizeof a->v_stride);
}

/* Of fp32 numbers, one for each query. */
static uint64_t row_bytes(const cuda_dnn_form *f) {
  return cuda_align_up((uint64_t)(f->batch * f->heads * f->queries) * sizeof(float));
}

opipe_status cuda_attention_by_dnn(cuda_rule *r, const cuda_attention_args *a, uint32_t dtype,
                                   bool *out_done) {
  const cuda_dnn_plan *plan = NULL;
  cuda_dnn_form form;
  *out_done = false;
  if (!may_take(a, dtype) || !by_eights(a->y, a->y_stride))
    return OPIPE_OK;
  fill_form(a, dtype, CUDA_DNN_RESULT, a->batch, &form);
  memcpy(form.stride[CUDA_DNN_AT_O], a->y_stride, sizeof a->y_stride);
  CUDA_TRY(cuda_dnn_find(r->program->device, &form, &plan, r->err));
  if (plan == NULL)
    return OPIPE_OK;
  cuda_dnn_args args = {.at = {NULL}, .workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0)};
  args.at[CUDA_DNN_AT_Q] = (void *)(uintptr_t)a->q;
  args.at[CUDA_DNN_AT_K] = (void *)(uintptr_t)a->k;
  args.at[CUDA_DNN_AT_V] = (void *)(uintptr_t)a->v;
  args.at[CUDA_DNN_AT_O] = a->y;
  const uint64_t own = cuda_align_up(plan->workspace_bytes);
  args.at[CUDA_DNN_AT_STATS] =
      a->found != NULL ? (void *)a->found : cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)own);
  *out_done = true;
  return cuda_emit_plan(r, plan, &args, own + (a->found != NULL ? 0 : row_bytes(&form)));
}

/* ---- gradients ---- */

/* Both plans for so many sequences, and where what they share lies in the workspace. forward NULL:
 * its result and statistics are handed on. */
typedef struct chunk_plans {
  const cuda_dnn_plan *forward, *backward;
  uint64_t result, stats, sums, acc, n_bytes; /* offsets; the library's own is at 0 */
} chunk_plans;

/* The most sequences that divide the batch and whose scores fit; where no scores are kept, all. */
static int64_t sequences_of(const opipe_device *device, const cuda_attention_args *a) {
  const uint64_t part = device->memory_bytes / CHUNK_PART;
  const uint64_t room = part < CHUNK_BYTES ? part : CHUNK_BYTES;
  const uint64_t each = (uint64_t)(a->heads * a->queries * a->keys) * 2;
  int64_t n = a->batch;
  while (device->deterministic && n > 1 && (a->batch % n != 0 || (uint64_t)n * each > room))
    --n;
  return n;
}

static void place(const cuda_dnn_form *f, chunk_plans *p) {
  const uint64_t a = p->forward != NULL ? p->forward->workspace_bytes : 0,
                 b = p->backward->workspace_bytes;
  p->result = cuda_align_up(a > b ? a : b);
  p->stats = p->result;
  p->sums = p->result;
  if (p->forward != NULL) {
    p->stats +=
        cuda_align_up((uint64_t)(f->batch * f->heads * f->queries) * (uint64_t)f->value_depth * 2);
    p->sums = p->stats + row_bytes(f);
  }
  p->acc = p->sums + row_bytes(f);
  p->n_bytes = p->acc;
  if (f->unsteady != 0)
    p->n_bytes += row_bytes(f) * (uint64_t)f->depth;
}

static opipe_status find_plans(cuda_rule *r, const cuda_attention_grad_args *g, uint32_t dtype,
                               int64_t batch, chunk_plans *out) {
  const cuda_attention_args *a = &g->forward;
  opipe_device *device = r->program->device;
  cuda_dnn_form form;
  memset(out, 0, sizeof *out);
  fill_form(a, dtype, CUDA_DNN_RESULT, batch, &form);
  if (a->found != NULL) {
    memcpy(form.stride[CUDA_DNN_AT_O], a->y_stride, sizeof a->y_stride);
  } else {
    cuda_head_strides(false, a->heads, a->queries, a->value_depth, form.stride[CUDA_DNN_AT_O]);
    CUDA_TRY(cuda_dnn_find(device, &form, &out->forward, r->err));
    if (out->forward == NULL)
      return OPIPE_OK;
  }
  form.what = CUDA_DNN_GRADIENTS;
  form.unsteady = !device->deterministic;
  memcpy(form.stride[CUDA_DNN_AT_DO], g->dy_stride, sizeof g->dy_stride);
  memcpy(form.stride[CUDA_DNN_AT_DQ], g->dq_stride, sizeof g->dq_stride);
  memcpy(form.stride[CUDA_DNN_AT_DK], g->dk_stride, sizeof g->dk_stride);
  memcpy(form.stride[CUDA_DNN_AT_DV], g->dv_stride, sizeof g->dv_stride);
  CUDA_TRY(cuda_dnn_find(device, &form, &out->backward, r->err));
  if (out->backward != NULL)
    place(&form, out);
  return OPIPE_OK;
}

/* The stand-in of a value, `sequences` further on. */
static void *at_sequence(const void *tensor, const int64_t *stride, int64_t sequences) {
  return (void *)((uintptr_t)tensor + (uintptr_t)(sequences * stride[0] * 2));
}

/* What both plans are given. */
static void point_operands(cuda_rule *r, const cuda_attention_grad_args *g, const chunk_plans *p,
                           int64_t first, cuda_dnn_args *out) {
  const cuda_attention_args *a = &g->forward;
  memset(out, 0, sizeof *out);
  out->at[CUDA_DNN_AT_Q] = at_sequence(a->q, a->q_stride, first);
  out->at[CUDA_DNN_AT_K] = at_sequence(a->k, a->k_stride, first);
  out->at[CUDA_DNN_AT_V] = at_sequence(a->v, a->v_stride, first);
  if (p->forward == NULL) {
    out->at[CUDA_DNN_AT_O] = at_sequence(a->y, a->y_stride, first);
    out->at[CUDA_DNN_AT_STATS] = a->found + first * a->heads * a->queries;
  } else {
    out->at[CUDA_DNN_AT_O] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->result);
    out->at[CUDA_DNN_AT_STATS] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->stats);
  }
  out->workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
}

static opipe_status emit_chunk(cuda_rule *r, const cuda_attention_grad_args *g,
                               const chunk_plans *p, int64_t first) {
  cuda_dnn_args args;
  point_operands(r, g, p, first, &args);
  if (p->forward != NULL)
    CUDA_TRY(cuda_emit_plan(r, p->forward, &args, p->n_bytes));
  args.at[CUDA_DNN_AT_DO] = at_sequence(g->dy, g->dy_stride, first);
  args.at[CUDA_DNN_AT_SUMS] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->sums);
  args.at[CUDA_DNN_AT_DQ] = at_sequence(g->dq, g->dq_stride, first);
  args.at[CUDA_DNN_AT_DK] = at_sequence(g->dk, g->dk_stride, first);
  args.at[CUDA_DNN_AT_DV] = at_sequence(g->dv, g->dv_stride, first);
  if (p->backward->form.unsteady != 0)
    args.at[CUDA_DNN_AT_ACC] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->acc);
  return cuda_emit_plan(r, p->backward, &args, p->n_bytes);
}

opipe_status cuda_attention_grad_by_dnn(cuda_rule *r, const cuda_attention_grad_args *g,
                                        uint32_t dtype, bool *out_done) {
  const cuda_attention_args *a = &g->forward;
  chunk_plans plans;
  *out_done = false;
  if (!may_take(a, dtype) || g->dq == NULL || g->dk == NULL || g->dv == NULL || g->dmask != NULL ||
      !by_eights(g->dy, g->dy_stride) || !by_eights(g->dq, g->dq_stride) ||
      !by_eights(g->dk, g->dk_stride) || !by_eights(g->dv, g->dv_stride) ||
      (a->found != NULL && !by_eights(a->y, a->y_stride)))
    return OPIPE_OK;
  const int64_t batch = sequences_of(r->program->device, a);
  CUDA_TRY(find_plans(r, g, dtype, batch, &plans));
  if (plans.backward == NULL)
    return OPIPE_OK;
  for (int64_t first = 0; first < a->batch; first += batch)
    CUDA_TRY(emit_chunk(r, g, &plans, first));
  *out_done = true;
  return OPIPE_OK;
}
