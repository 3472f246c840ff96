/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft GroupQueryAttention: the parsed node, and the cache that holds only a window of the
 * keys (contrib_gqa_window.c). */
#ifndef OPI_CONTRIB_GQA_H
#define OPI_CONTRIB_GQA_H

#include "loader/ops/contrib.h"

enum {
  OPI_GQA_Q,
  OPI_GQA_K,
  OPI_GQA_V,
  OPI_GQA_PAST_K,
  OPI_GQA_PAST_V,
  OPI_GQA_LENGTHS,
  OPI_GQA_TOTAL,
  OPI_GQA_COS,
  OPI_GQA_SIN,
  OPI_GQA_POSITIONS,
  OPI_GQA_BIAS,
  OPI_GQA_SINK
};

typedef struct opi_gqa {
  int64_t batch, length, heads, kv_heads, head, cache, total;
  int64_t window;               /* visible keys before the row's own; -1: all */
  bool causal;                  /* attribute causal; if false, a row sees every valid key */
  bool packed, prompt, aligned; /* aligned: every sequence's past fills the cache exactly */
  bool slides;                  /* attribute sliding_window_cache */
  uint32_t dtype;
  uint32_t past; /* int64 [B, 1]: keys before this call; OPIPE_NONE for a prompt */
} opi_gqa;

/* [B, S, K*H] -> [B, K, S, H] */
opipe_status opi_gqa_by_head(opi_builder *b, const opi_gqa *g, uint32_t x, uint32_t *out,
                             opipe_error *err);

/* -- sliding cache: g->slides -- */

/* Checks the attributes and inputs that a sliding cache allows. */
opipe_status opi_gqa_window_check(const opi_builder *b, const opi_node *node, const opi_gqa *g,
                                  opipe_error *err);
/* Binds the node's present_key (i = 1) or present_value (2) [B, K, cache, H], cut from `joined`,
 * the cache and the new rows [B, K, cache + S, H]. */
opipe_status opi_gqa_window_present(opi_builder *b, const opi_node *node, const opi_gqa *g,
                                    uint32_t i, uint32_t joined, opipe_error *err);
/* int64 [B, cache + S]: positions of cached and new keys; rows without a key are at `total`, after
 * every row's own. */
opipe_status opi_gqa_window_positions(opi_builder *b, const opi_gqa *g, uint32_t *out,
                                      opipe_error *err);

#endif /* OPI_CONTRIB_GQA_H */
