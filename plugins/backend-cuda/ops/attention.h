/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of Attention and its gradient read nodes through these functions. */
#ifndef OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_
#define OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_

#include "../cudnn.h"
#include "rule.h"

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_PAST_K, IN_PAST_V, IN_NONPAD };
enum { OUT_Y, OUT_PRESENT_K, OUT_PRESENT_V };
/* Further inputs of AttentionGrad, behind dY and these: Y, and the sums that the Attention found
 * (OPIPE_DEVICE_HANDS_ON).
 */
enum { IN_Y = 8, IN_FOUND };

/* (batch, head, row) strides of [B, H, S, D], or of [B, S, H * D]. */
void cuda_head_strides(bool by_rows, int64_t heads, int64_t rows, int64_t depth, int64_t *out);
/* The same of a value, which may be a part of another one's rows. OPIPE_NONE: it is absent. */
void cuda_attention_strides(const cuda_rule *r, uint32_t value, bool by_rows, int64_t heads,
                            int64_t rows, int64_t depth, int64_t *out);
/* Sizes, strides and numbers of the attention whose Q is input `base`. */
opipe_status cuda_attention_read(const cuda_rule *r, uint32_t base, cuda_attention_args *out);
/* Stand-ins for its inputs. */
void cuda_attention_point(cuda_rule *r, uint32_t base, cuda_attention_args *a);

/* cuda_emit_all, whose stand-ins stay good for another one. */
opipe_status cuda_attention_emit(cuda_rule *r, const cuda_launch *launches, uint32_t n);
/* Puts keys and values together, past ones first: [B, kv_heads, T, .] each; NULL: not those. */
opipe_status cuda_attention_join(cuda_rule *r, const cuda_attention_args *a, void *k, void *v);

/* ---- attention_mask.c ---- */

/* A mask for cuDNN. */
typedef struct cuda_masking {
  cuda_mask_args prepare;  /* keys 0: there is none */
  cuda_settle_args settle; /* sizes */
  uint32_t value, mask_dtype, dtype;
  bool by_sequence; /* sequences have their own */
  bool is_whole;    /* all of them at once */
  bool is_kept;     /* for others of the program */
  uint64_t at;      /* in the workspace, or what is kept */
  uint64_t copy_bytes, notes_bytes;
} cuda_masking;
/* value: the mask. batch: sequences at a time. It gets the form's mask, without any causality that
 * the mask holds. */
void cuda_masking_plan(const cuda_attention_args *a, uint32_t value, uint32_t dtype, int64_t batch,
                       cuda_dnn_form *io_form, cuda_masking *out);
/* Gives it bytes of the workspace from `at` on, if it is not kept. Returns where they end. */
uint64_t cuda_masking_place(const cuda_rule *r, cuda_masking *m, uint64_t at);
/* Where cuDNN reads it; NULL: nowhere. */
void *cuda_masking_copy(cuda_rule *r, const cuda_masking *m);
/* In front of sequences from `first` on; behind them, with the y, stats and dY of `of`. */
opipe_status cuda_masking_prepare(cuda_rule *r, const cuda_masking *m, int64_t first);
opipe_status cuda_masking_settle(cuda_rule *r, const cuda_masking *m, const cuda_settle_args *of);

/* ---- attention_cudnn.c ---- */

/* Emits what cuDNN does of it; *out_done false: it does not, and nothing was emitted. Arguments as
 * for our own kernels, with stand-ins; of gradients, y and found where they are handed on. If the
 * node has a past, it makes present_key and present_value. */
opipe_status cuda_attention_by_dnn(cuda_rule *r, const cuda_attention_args *args, uint32_t dtype,
                                   bool *out_done);
opipe_status cuda_attention_grad_by_dnn(cuda_rule *r, const cuda_attention_grad_args *args,
                                        uint32_t dtype, bool *out_done);

#endif /* OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_ */
