/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of attention that cuDNN does: it adds numbers to scores and knows neither -infinity nor
 * rows that see nothing.
 *
 *   prepare   a copy of the mask in the workspace, finite, and notes of its rows
 *   settle    behind the result: rows that see nothing; for gradients a copy of dY
 *
 * The layers of a model read one mask: the first one's copy is kept for all others of the program,
 * where all sequences go at once.
 *
 * A mask that is the same for sequences, heads or rows stays so, but where it also hides by
 * position: what stands behind a past does, which cuDNN does not take with a mask.
 */
#include "ops/attention.h"

struct cuda_kept_mask {
  struct cuda_kept_mask *next;
  cuda_masking of;
  uint32_t step; /* that prepared it */
};

static uint32_t type_of_mask(const cuda_attention_args *a, uint32_t dtype) {
  return a->mask_kind == 1 ? OPIPE_BOOL : a->mask_kind == 2 ? dtype : OPIPE_FLOAT;
}

void cuda_masking_plan(const cuda_attention_args *a, uint32_t value, uint32_t dtype, int64_t batch,
                       cuda_dnn_form *io_form, cuda_masking *out) {
  memset(out, 0, sizeof *out);
  if (a->mask_kind == 0)
    return;
  const bool folds = a->causal != 0 && a->past > 0;
  cuda_mask_args *p = &out->prepare;
  out->value = value;
  out->mask_dtype = type_of_mask(a, dtype);
  out->dtype = dtype;
  out->by_sequence = a->mask_stride[0] != 0;
  out->is_whole = !out->by_sequence || batch == a->batch;
  p->mask = a->mask;
  memcpy(p->stride, a->mask_stride, sizeof p->stride);
  p->batch = out->by_sequence ? batch : 1;
  p->heads = a->mask_stride[1] != 0 ? a->heads : 1;
  p->rows = a->mask_stride[2] != 0 || folds ? a->queries : 1;
  p->keys = a->keys;
  p->shift = folds ? a->past : -1;
  io_form->mask_dtype = cuda_mask_type(out->mask_dtype, dtype);
  io_form->mask[0] = p->batch;
  io_form->mask[1] = p->heads;
  io_form->mask[2] = p->rows;
  if (folds)
    io_form->causal = 0;
  cuda_settle_args *s = &out->settle;
  s->row_stride[0] = p->batch > 1 ? p->heads * p->rows : 0;
  s->row_stride[1] = p->heads > 1 ? p->rows : 0;
  s->row_stride[2] = p->rows > 1 ? 1 : 0;
  s->batch = batch;
  s->heads = a->heads;
  s->queries = a->queries;
  s->keys = a->keys;
  s->value_depth = a->value_depth;
  s->causal = io_form->causal;
  s->half_mask = io_form->mask_dtype == OPIPE_BFLOAT16;
  const int64_t rows = p->batch * p->heads * p->rows;
  out->copy_bytes = cuda_align_up((uint64_t)(rows * p->keys) * (s->half_mask != 0 ? 2 : 4));
  out->notes_bytes = cuda_align_up((uint64_t)rows * 2 * sizeof(int32_t));
}

static bool reads_mask(const opipe_node *node, uint32_t value) {
  const uint32_t at = cuda_named(node, "", "Attention")            ? IN_MASK
                      : cuda_named(node, "opipe", "AttentionGrad") ? 1 + IN_MASK
                                                                   : node->n_in;
  return at < node->n_in && node->in[at] == value;
}

static bool is_shared(const opipe_program *program, uint32_t value) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < program->graph->n_nodes && n < 2; ++i)
    n += reads_mask(&program->graph->nodes[i], value);
  return n > 1;
}

static const struct cuda_kept_mask *find_kept(const opipe_program *program, const cuda_masking *m) {
  const cuda_mask_args *a = &m->prepare;
  for (const struct cuda_kept_mask *kept = program->masks; kept != NULL; kept = kept->next) {
    const cuda_mask_args *b = &kept->of.prepare;
    if (kept->of.value == m->value && kept->of.dtype == m->dtype && a->batch == b->batch &&
        a->heads == b->heads && a->rows == b->rows && a->keys == b->keys && a->shift == b->shift &&
        memcmp(a->stride, b->stride, sizeof a->stride) == 0)
      return kept;
  }
  return NULL;
}

static opipe_status keep(cuda_rule *r, const cuda_masking *m) {
  opipe_program *program = r->program;
  struct cuda_kept_mask *kept = CUDA_POOL_ARRAY(&program->pool, struct cuda_kept_mask, 1);
  if (kept == NULL)
    return cuda_nomem(r);
  *kept = (struct cuda_kept_mask){program->masks, *m, r->step->index};
  program->masks = kept;
  program->kept_bytes = m->at + m->copy_bytes + m->notes_bytes;
  return OPIPE_OK;
}

void cuda_masks_forget(opipe_program *program, uint32_t n_steps) {
  for (; program->masks != NULL && program->masks->step >= n_steps;
       program->masks = program->masks->next)
    program->kept_bytes = program->masks->of.at;
}

uint64_t cuda_masking_place(const cuda_rule *r, cuda_masking *m, uint64_t at) {
  m->is_kept = m->prepare.keys > 0 && m->is_whole && is_shared(r->program, m->value);
  const struct cuda_kept_mask *kept = m->is_kept ? find_kept(r->program, m) : NULL;
  m->at = !m->is_kept ? at : kept != NULL ? kept->of.at : r->program->kept_bytes;
  return m->is_kept ? at : at + m->copy_bytes + m->notes_bytes;
}

static uint32_t place_of(const cuda_masking *m) {
  return m->is_kept ? CUDA_AT_KEPT : CUDA_AT_WORKSPACE;
}

void *cuda_masking_copy(cuda_rule *r, const cuda_masking *m) {
  return m->prepare.keys > 0 ? cuda_at(r, place_of(m), (int64_t)m->at) : NULL;
}

static void *notes_at(cuda_rule *r, const cuda_masking *m) {
  return cuda_at(r, place_of(m), (int64_t)(m->at + m->copy_bytes));
}

opipe_status cuda_masking_prepare(cuda_rule *r, const cuda_masking *m, int64_t first) {
  cuda_mask_args args = m->prepare;
  cuda_launch launch;
  if (args.keys == 0 || (first > 0 && !m->by_sequence) ||
      (m->is_kept && find_kept(r->program, m) != NULL))
    return OPIPE_OK;
  args.mask = (const void *)((uintptr_t)args.mask + (uintptr_t)(first * args.stride[0]) *
                                                        (opipe_dtype_bits(m->mask_dtype) / 8));
  args.out = cuda_masking_copy(r, m);
  args.notes = notes_at(r, m);
  if (!cuda_plan_mask(&args, m->mask_dtype, m->dtype, &launch))
    return cuda_no_kernel(r, cuda_in(r, IN_Q));
  CUDA_TRY(cuda_attention_emit(r, &launch, 1));
  return m->is_kept ? keep(r, m) : OPIPE_OK;
}

opipe_status cuda_masking_settle(cuda_rule *r, const cuda_masking *m, const cuda_settle_args *of) {
  cuda_settle_args args = m->settle;
  cuda_launch launch;
  if (m->prepare.keys == 0)
    return OPIPE_OK;
  args.y = of->y;
  args.stats = of->stats;
  args.dy = of->dy;
  args.dy_out = of->dy_out;
  memcpy(args.y_stride, of->y_stride, sizeof args.y_stride);
  memcpy(args.dy_stride, of->dy_stride, sizeof args.dy_stride);
  args.mask = cuda_masking_copy(r, m);
  args.notes = notes_at(r, m);
  return cuda_plan_settle(&args, m->dtype, &launch) ? cuda_attention_emit(r, &launch, 1)
                                                    : cuda_no_kernel(r, cuda_in(r, IN_Q));
}
