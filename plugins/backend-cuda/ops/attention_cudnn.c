/* SPDX-License-Identifier: Apache-2.0 */
/* Attention that cuDNN takes: of half types, without scores that are asked for; dnn_masks: with a
 * mask that needs no gradient and ends with the keys; the result alone with a past too.
 *
 *   Attention       a plan; what it needs beside the results lies in the workspace
 *   AttentionGrad   the result and its statistics again, unless they are handed on, then the
 *                   gradients
 *
 * Both for so many sequences at a time as the workspace holds: of their scores, which gradients
 * keep, and of their masks (attention_mask.c). Keys and values of a past are put together first.
 */
#include "ops/attention.h"

enum {
  LEAST_ROWS = 32, /* of queries and of keys: below, our own kernels do as well */
  MOST_DEPTH = 256 /* of a head; smaller chips refuse gradients of more than 128 */
};
static const uint64_t CHUNK_BYTES = UINT64_C(256) << 20; /* scores of sequences that go together */
enum { CHUNK_PART = 64 };                                /* of the GPU's memory, at most */
static const char UNALIGNED[] = "its heads must lie at multiples of 16 bytes";

static bool by_eights(const void *at, const int64_t *stride) {
  return (uintptr_t)at % 16 == 0 && stride[0] % 8 == 0 && stride[1] % 8 == 0 && stride[2] % 8 == 0;
}

/* Whether there is work for cuDNN: rows of half types, many enough. */
static bool is_its_kind(const opipe_device *device, const cuda_attention_args *a, uint32_t dtype) {
  return device->dnn != NULL && cuda_is_half(dtype) && a->batch > 0 && a->heads > 0 &&
         a->depth > 0 && a->value_depth > 0 && a->queries >= LEAST_ROWS && a->keys >= LEAST_ROWS &&
         ((a->mask_kind == 0 && a->past == 0) || device->dnn_masks);
}

/* The reason why cuDNN cannot do it; NULL: none. */
static const char *lacks(const cuda_attention_args *a) {
  const char *what = NULL;
  if (a->depth % 8 != 0 || a->value_depth % 8 != 0 || a->depth > MOST_DEPTH ||
      a->value_depth > MOST_DEPTH)
    what = "its heads must have a multiple of 8 elements, at most 256";
  else if (a->softcap != 0.0)
    what = "it is not used with a softcap";
  else if (a->nonpad != NULL)
    what = "it is not used with a number of keys by sequence (nonpad_kv_seqlen)";
  else if (a->scores != NULL)
    what = "it is not used if scores are an output (qk_matmul_output)";
  else if (a->mask_keys != a->keys)
    what = "its masks must be as long as the keys";
  else if (a->keys > INT32_MAX || a->queries > INT32_MAX)
    what = "it takes at most 2147483647 rows";
  else if (!by_eights(a->q, a->q_stride) || !by_eights(a->k, a->k_stride) ||
           !by_eights(a->v, a->v_stride))
    what = UNALIGNED;
  return what;
}

/* The mask of an attention whose Q is input `base`. */
static uint32_t mask_of(const cuda_rule *r, uint32_t base) {
  return base + IN_MASK < r->node->n_in ? r->node->in[base + IN_MASK] : OPIPE_NONE;
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
  memcpy(out->stride[CUDA_DNN_AT_Q], a->q_stride, sizeof a->q_stride);
  memcpy(out->stride[CUDA_DNN_AT_K], a->k_stride, sizeof a->k_stride);
  memcpy(out->stride[CUDA_DNN_AT_V], a->v_stride, sizeof a->v_stride);
}

/* Bytes of one fp32 number for each query. */
static uint64_t row_bytes(const cuda_dnn_form *f) {
  return cuda_align_up((uint64_t)(f->batch * f->heads * f->queries) * sizeof(float));
}

/* A part of the workspace behind what is taken. Returns its offset. */
static uint64_t take(uint64_t *io_end, uint64_t n_bytes) {
  const uint64_t at = *io_end;
  *io_end += cuda_align_up(n_bytes);
  return at;
}

/* The stand-in of a value, `sequences` further on. */
static void *at_sequence(const void *tensor, const int64_t *stride, int64_t sequences) {
  return (void *)((uintptr_t)tensor + (uintptr_t)(sequences * stride[0] * 2));
}

/* The most sequences that divide the batch and whose scores, where they are kept, and masks fit. */
static int64_t sequences_of(const opipe_device *device, const cuda_attention_args *a,
                            bool keeps_scores) {
  const uint64_t part = device->memory_bytes / CHUNK_PART;
  const uint64_t room = part < CHUNK_BYTES ? part : CHUNK_BYTES;
  const uint64_t scores = (uint64_t)(a->heads * a->queries * a->keys) * 2;
  const uint64_t rows = (uint64_t)((a->mask_stride[1] != 0 ? a->heads : 1) *
                                   (a->mask_stride[2] != 0 ? a->queries : 1));
  const uint64_t mask =
      a->mask_kind != 0 && a->mask_stride[0] != 0 ? rows * (uint64_t)a->keys * 4 : 0;
  const uint64_t each = keeps_scores && scores > mask ? scores : mask;
  int64_t n = a->batch;
  while (each > 0 && n > 1 && (a->batch % n != 0 || (uint64_t)n * each > room))
    --n;
  return n;
}

/* Says what cuDNN lacks for this; nothing where there is no work for it. */
static opipe_status tell_lack(opipe_device *device, const cuda_attention_args *a, uint32_t dtype,
                              uint32_t what, const char *why, opipe_error *err) {
  cuda_dnn_form form;
  fill_form(a, dtype, what, a->batch, &form);
  form.causal = a->causal != 0 ? CUDA_DNN_CAUSAL : 0;
  form.mask_dtype = a->mask_kind != 0 ? OPIPE_FLOAT : 0;
  return cuda_dnn_pass(device, &form, why, err);
}

/* ---- the result ---- */

typedef struct result_plan {
  const cuda_dnn_plan *plan;
  cuda_masking masking;
  int64_t batch;                 /* sequences at a time */
  uint64_t stats, k, v, n_bytes; /* in the workspace; the library's own is at 0 */
} result_plan;

/* Keys and values as one piece, with the stand-ins of where they are put. */
static void join_pieces(cuda_rule *r, const result_plan *p, cuda_attention_args *io_a) {
  void *const k = cuda_at_out(r, OUT_PRESENT_K), *const v = cuda_at_out(r, OUT_PRESENT_V);
  io_a->k = k != NULL ? k : cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->k);
  io_a->v = v != NULL ? v : cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->v);
  cuda_head_strides(false, io_a->kv_heads, io_a->keys, io_a->depth, io_a->k_stride);
  cuda_head_strides(false, io_a->kv_heads, io_a->keys, io_a->value_depth, io_a->v_stride);
}

static void place_result(const cuda_rule *r, const cuda_attention_args *a, result_plan *p) {
  const cuda_dnn_form *f = &p->plan->form;
  const uint64_t rows = (uint64_t)(a->batch * a->kv_heads * a->keys) * 2;
  uint64_t end = cuda_align_up(p->plan->workspace_bytes);
  p->stats = take(&end, a->found != NULL ? 0 : row_bytes(f));
  end = cuda_masking_place(r, &p->masking, end);
  p->k = take(&end, a->past > 0 ? rows * (uint64_t)a->depth : 0);
  p->v = take(&end, a->past > 0 ? rows * (uint64_t)a->value_depth : 0);
  p->n_bytes = end;
}

static opipe_status find_result(cuda_rule *r, const cuda_attention_args *a, uint32_t dtype,
                                result_plan *out) {
  cuda_attention_args whole = *a;
  cuda_dnn_form form;
  memset(out, 0, sizeof *out);
  out->batch = sequences_of(r->program->device, a, false);
  if (a->past > 0)
    join_pieces(r, out, &whole);
  fill_form(&whole, dtype, CUDA_DNN_RESULT, out->batch, &form);
  form.causal = a->causal == 0 ? 0 : a->past > 0 ? CUDA_DNN_LAST : CUDA_DNN_CAUSAL;
  cuda_masking_plan(a, mask_of(r, 0), dtype, out->batch, &form, &out->masking);
  if (form.causal == CUDA_DNN_LAST && a->past + a->queries != a->keys)
    return OPIPE_OK;
  memcpy(form.stride[CUDA_DNN_AT_O], a->y_stride, sizeof a->y_stride);
  CUDA_TRY(cuda_dnn_find(r->program->device, &form, &out->plan, r->err));
  if (out->plan != NULL)
    place_result(r, a, out);
  return OPIPE_OK;
}

/* Emits the sequences from `first` on. */
static opipe_status emit_result(cuda_rule *r, const cuda_attention_args *a, const result_plan *p,
                                int64_t first) {
  cuda_dnn_args args = {.at = {NULL}, .workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0)};
  cuda_settle_args settle = {.y = at_sequence(a->y, a->y_stride, first)};
  if (a->found != NULL)
    settle.stats = a->found + first * a->heads * a->queries;
  args.at[CUDA_DNN_AT_Q] = at_sequence(a->q, a->q_stride, first);
  args.at[CUDA_DNN_AT_K] = at_sequence(a->k, a->k_stride, first);
  args.at[CUDA_DNN_AT_V] = at_sequence(a->v, a->v_stride, first);
  args.at[CUDA_DNN_AT_O] = settle.y;
  args.at[CUDA_DNN_AT_STATS] = settle.stats != NULL
                                   ? (void *)settle.stats
                                   : cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->stats);
  args.at[CUDA_DNN_AT_MASK] = cuda_masking_copy(r, &p->masking);
  memcpy(settle.y_stride, a->y_stride, sizeof settle.y_stride);
  CUDA_TRY(cuda_masking_prepare(r, &p->masking, first));
  CUDA_TRY(cuda_emit_plan(r, p->plan, &args, p->n_bytes));
  return cuda_masking_settle(r, &p->masking, &settle);
}

opipe_status cuda_attention_by_dnn(cuda_rule *r, const cuda_attention_args *args, uint32_t dtype,
                                   bool *out_done) {
  cuda_attention_args whole = *args;
  result_plan plan;
  opipe_device *device = r->program->device;
  *out_done = false;
  if (!is_its_kind(device, args, dtype))
    return OPIPE_OK;
  const char *why = lacks(args);
  if (why == NULL && !by_eights(args->y, args->y_stride))
    why = UNALIGNED;
  if (why != NULL)
    return tell_lack(device, args, dtype, CUDA_DNN_RESULT, why, r->err);
  CUDA_TRY(find_result(r, args, dtype, &plan));
  if (plan.plan == NULL)
    return OPIPE_OK;
  if (args->past > 0) {
    join_pieces(r, &plan, &whole);
    CUDA_TRY(cuda_attention_join(r, args, (void *)(uintptr_t)whole.k, (void *)(uintptr_t)whole.v));
  }
  for (int64_t first = 0; first < args->batch; first += plan.batch)
    CUDA_TRY(emit_result(r, &whole, &plan, first));
  *out_done = true;
  return OPIPE_OK;
}

/* ---- gradients ---- */

/* Both plans for so many sequences, and where what they share lies in the workspace. forward NULL:
 * its result and statistics are handed on. */
typedef struct chunk_plans {
  const cuda_dnn_plan *forward, *backward;
  cuda_masking masking;
  uint64_t result, stats, dy, sums, acc, n_bytes; /* offsets; the library's own is at 0 */
} chunk_plans;

static void place(const cuda_rule *r, chunk_plans *p) {
  const cuda_dnn_form *f = &p->backward->form;
  const uint64_t a = p->forward != NULL ? p->forward->workspace_bytes : 0,
                 b = p->backward->workspace_bytes;
  const uint64_t values = (uint64_t)(f->batch * f->heads * f->queries * f->value_depth) * 2;
  uint64_t end = cuda_align_up(a > b ? a : b);
  p->result = take(&end, p->forward != NULL ? values : 0);
  p->stats = take(&end, p->forward != NULL ? row_bytes(f) : 0);
  p->sums = take(&end, row_bytes(f));
  p->acc = take(&end, f->unsteady != 0 ? row_bytes(f) * (uint64_t)f->depth : 0);
  p->dy = take(&end, f->mask_dtype != 0 ? values : 0);
  p->n_bytes = cuda_masking_place(r, &p->masking, end);
}

static opipe_status find_plans(cuda_rule *r, const cuda_attention_grad_args *g, uint32_t dtype,
                               int64_t batch, chunk_plans *out) {
  const cuda_attention_args *a = &g->forward;
  opipe_device *device = r->program->device;
  cuda_dnn_form form;
  int64_t dense[3];
  memset(out, 0, sizeof *out);
  fill_form(a, dtype, CUDA_DNN_RESULT, batch, &form);
  form.causal = a->causal != 0 ? CUDA_DNN_CAUSAL : 0;
  cuda_masking_plan(a, mask_of(r, 1), dtype, batch, &form, &out->masking);
  cuda_head_strides(false, a->heads, a->queries, a->value_depth, dense);
  if (a->found != NULL) {
    memcpy(form.stride[CUDA_DNN_AT_O], a->y_stride, sizeof a->y_stride);
  } else {
    memcpy(form.stride[CUDA_DNN_AT_O], dense, sizeof dense);
    CUDA_TRY(cuda_dnn_find(device, &form, &out->forward, r->err));
    if (out->forward == NULL)
      return OPIPE_OK;
  }
  form.what = CUDA_DNN_GRADIENTS;
  form.unsteady = !device->deterministic;
  memcpy(form.stride[CUDA_DNN_AT_DO], form.mask_dtype != 0 ? dense : g->dy_stride, sizeof dense);
  memcpy(form.stride[CUDA_DNN_AT_DQ], g->dq_stride, sizeof g->dq_stride);
  memcpy(form.stride[CUDA_DNN_AT_DK], g->dk_stride, sizeof g->dk_stride);
  memcpy(form.stride[CUDA_DNN_AT_DV], g->dv_stride, sizeof g->dv_stride);
  CUDA_TRY(cuda_dnn_find(device, &form, &out->backward, r->err));
  if (out->backward != NULL)
    place(r, out);
  return OPIPE_OK;
}

/* Operands of both plans. */
static void point_operands(cuda_rule *r, const cuda_attention_grad_args *g, const chunk_plans *p,
                           int64_t first, cuda_dnn_args *out) {
  const cuda_attention_args *a = &g->forward;
  memset(out, 0, sizeof *out);
  out->at[CUDA_DNN_AT_Q] = at_sequence(a->q, a->q_stride, first);
  out->at[CUDA_DNN_AT_K] = at_sequence(a->k, a->k_stride, first);
  out->at[CUDA_DNN_AT_V] = at_sequence(a->v, a->v_stride, first);
  out->at[CUDA_DNN_AT_MASK] = cuda_masking_copy(r, &p->masking);
  if (p->forward == NULL) {
    out->at[CUDA_DNN_AT_O] = at_sequence(a->y, a->y_stride, first);
    out->at[CUDA_DNN_AT_STATS] = a->found + first * a->heads * a->queries;
  } else {
    out->at[CUDA_DNN_AT_O] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->result);
    out->at[CUDA_DNN_AT_STATS] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->stats);
  }
  out->workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
}

/* The result again, where it is not handed on; of masked attention also a copy of dY. */
static opipe_status emit_before(cuda_rule *r, const cuda_attention_grad_args *g,
                                const chunk_plans *p, int64_t first, cuda_dnn_args *io_args) {
  cuda_settle_args settle = {.stats = io_args->at[CUDA_DNN_AT_STATS],
                             .dy = io_args->at[CUDA_DNN_AT_DO],
                             .dy_out = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->dy)};
  cuda_dnn_args args = *io_args;
  args.at[CUDA_DNN_AT_DO] = NULL;
  memcpy(settle.dy_stride, g->dy_stride, sizeof settle.dy_stride);
  CUDA_TRY(cuda_masking_prepare(r, &p->masking, first));
  if (p->forward != NULL) {
    settle.y = io_args->at[CUDA_DNN_AT_O];
    memcpy(settle.y_stride, p->forward->form.stride[CUDA_DNN_AT_O], sizeof settle.y_stride);
    CUDA_TRY(cuda_emit_plan(r, p->forward, &args, p->n_bytes));
  }
  if (args.at[CUDA_DNN_AT_MASK] != NULL)
    io_args->at[CUDA_DNN_AT_DO] = settle.dy_out;
  return cuda_masking_settle(r, &p->masking, &settle);
}

static opipe_status emit_chunk(cuda_rule *r, const cuda_attention_grad_args *g,
                               const chunk_plans *p, int64_t first) {
  cuda_dnn_args args;
  point_operands(r, g, p, first, &args);
  args.at[CUDA_DNN_AT_DO] = at_sequence(g->dy, g->dy_stride, first);
  CUDA_TRY(emit_before(r, g, p, first, &args));
  args.at[CUDA_DNN_AT_SUMS] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->sums);
  args.at[CUDA_DNN_AT_DQ] = at_sequence(g->dq, g->dq_stride, first);
  args.at[CUDA_DNN_AT_DK] = at_sequence(g->dk, g->dk_stride, first);
  args.at[CUDA_DNN_AT_DV] = at_sequence(g->dv, g->dv_stride, first);
  if (p->backward->form.unsteady != 0)
    args.at[CUDA_DNN_AT_ACC] = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)p->acc);
  return cuda_emit_plan(r, p->backward, &args, p->n_bytes);
}

/* The reason why cuDNN cannot do the gradients; NULL: none. */
static const char *lacks_of_gradients(const cuda_attention_grad_args *g) {
  const cuda_attention_args *a = &g->forward;
  const char *what = lacks(a);
  if (what != NULL)
    return what;
  if (a->past > 0)
    what = "it is not used for gradients behind a past";
  else if (g->dmask != NULL)
    what = "it is not used for the gradient of a mask";
  else if (g->dq == NULL || g->dk == NULL || g->dv == NULL)
    what = "it gives the gradients of Q, K and V only together";
  else if (!by_eights(g->dy, g->dy_stride) || !by_eights(g->dq, g->dq_stride) ||
           !by_eights(g->dk, g->dk_stride) || !by_eights(g->dv, g->dv_stride) ||
           (a->found != NULL && !by_eights(a->y, a->y_stride)))
    what = UNALIGNED;
  return what;
}

opipe_status cuda_attention_grad_by_dnn(cuda_rule *r, const cuda_attention_grad_args *g,
                                        uint32_t dtype, bool *out_done) {
  const cuda_attention_args *a = &g->forward;
  opipe_device *device = r->program->device;
  chunk_plans plans;
  *out_done = false;
  if (!is_its_kind(device, a, dtype))
    return OPIPE_OK;
  const char *why = lacks_of_gradients(g);
  if (why != NULL)
    return tell_lack(device, a, dtype, CUDA_DNN_GRADIENTS, why, r->err);
  const int64_t batch = sequences_of(device, a, device->deterministic);
  CUDA_TRY(find_plans(r, g, dtype, batch, &plans));
  if (plans.backward == NULL)
    return OPIPE_OK;
  for (int64_t first = 0; first < a->batch; first += batch)
    CUDA_TRY(emit_chunk(r, g, &plans, first));
  *out_done = true;
  return OPIPE_OK;
}
