/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's extents and emission, shared by the operator, the contrib forms and the fusion.
 */
#ifndef OPI_ATTENTION_H
#define OPI_ATTENTION_H

#include "loader/ops/kit.h"

enum {
  OPI_ATT_Q,
  OPI_ATT_K,
  OPI_ATT_V,
  OPI_ATT_MASK,
  OPI_ATT_PAST_K,
  OPI_ATT_PAST_V,
  OPI_ATT_SEQLEN,
  OPI_ATT_INPUTS
};
enum { OPI_ATT_Y, OPI_ATT_PRESENT_K, OPI_ATT_PRESENT_V, OPI_ATT_QK, OPI_ATT_OUTPUTS };
/* With OPIPE_DEVICE_HANDS_ON, Attention has one more output, FOUND; Y and FOUND are then the last
 * inputs of AttentionGrad, after dY and the others. */
enum {
  OPI_ATT_FOUND = OPI_ATT_OUTPUTS,
  OPI_ATT_GRAD_Y = 1 + OPI_ATT_INPUTS,
  OPI_ATT_GRAD_FOUND,
  OPI_ATT_GRAD_INPUTS
};

/* Parameters of the canonical node beside its inputs. */
typedef struct opi_attention {
  int64_t q_heads, kv_heads;
  double scale;   /* factor of q.k */
  double softcap; /* 0: none */
  bool causal;    /* beside nonpad_kv_seqlen from the end of each sequence's keys */
  int64_t window; /* > 0, beside nonpad_kv_seqlen: keys that a row sees, its own the last; 0: all */
  int64_t qk_mode;
  int64_t precision; /* OPIPE_FLOAT or OPIPE_DOUBLE */
} opi_attention;

/* Reads the parameters of a canonical node. */
opi_attention opi_attention_of(const opi_node *node);
/* in [OPI_ATT_INPUTS]; want: one bit per output; out [OPI_ATT_OUTPUTS]. */
opipe_status opi_attention_emit(opi_builder *b, const opi_attention *how, const uint32_t *in,
                                uint32_t want, uint32_t pattern, uint32_t *out, opipe_error *err);

/* The keys that a row may see by its position (attention_mask.c). */
typedef struct opi_attention_window {
  int64_t batch, rows, keys; /* B, S and T = past + new keys */
  int64_t past;              /* keys before the first row; overridden by nonpad_kv_seqlen */
  int64_t left, right;       /* visible keys before and after a row's position; -1: all */
} opi_attention_window;
/* Adds to the mask *io_mask (a value, or OPIPE_NONE) whatever plain causality cannot express, and
 * clears *io_causal if the mask covers it. lengths: nonpad_kv_seqlen, or OPIPE_NONE. */
opipe_status opi_attention_places(opi_builder *b, const opi_attention_window *places,
                                  uint32_t *io_mask, uint32_t lengths, bool *io_causal,
                                  opipe_error *err);

/* Checks all inputs of a canonical node and computes the shape of Y, shape [4]. */
opipe_status opi_attention_shape(const opi_builder *b, const opi_node *node, int64_t *shape,
                                 uint32_t *out_rank, opipe_error *err);

/* attention_gradient.c: gradient rules, and the rules of opipe.AttentionGrad. */
opipe_status opi_gradient_attention(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_gradient_rotary(opi_grad *g, const opi_node *node, opipe_error *err);
opipe_status opi_attention_grad_infer(opi_builder *b, const opi_node *node, opipe_error *err);
void opi_attention_grad_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_ATTENTION_H */
