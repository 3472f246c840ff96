/* SPDX-License-Identifier: Apache-2.0 */
/* What Attention and its gradient read of a node. */
#ifndef OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_
#define OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_

#include "rule.h"

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_PAST_K, IN_PAST_V, IN_NONPAD };
/* Of AttentionGrad, behind dY and these: Y, and what the Attention found (OPIPE_DEVICE_HANDS_ON).
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

/* ---- attention_cudnn.c ---- */

/* Emits what cuDNN does of it; *out_done false: it does not, and nothing was emitted. Arguments as
 * for our own kernels, with stand-ins; of gradients, y and found where they are handed on. */
opipe_status cuda_attention_by_dnn(cuda_rule *r, const cuda_attention_args *args, uint32_t dtype,
                                   bool *out_done);
opipe_status cuda_attention_grad_by_dnn(cuda_rule *r, const cuda_attention_grad_args *args,
                                        uint32_t dtype, bool *out_done);

#endif /* OPIPE_BACKEND_CUDA_OPS_ATTENTION_H_ */
