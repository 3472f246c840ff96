/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of the attention fusion: finding the group (fuse_attention.c) and joining its
 * masks (fuse_mask.c). */
#ifndef OPI_FUSE_ATTENTION_H
#define OPI_FUSE_ATTENTION_H

#include "loader/passes/fuse.h"

enum { OPI_MAX_MASKS = 4 };

/* One value that is added to the scores or selects them. */
typedef struct opi_mask_item {
  uint32_t value; /* bool: keeps scores (drops them if `inverted`); otherwise added */
  bool keeps;     /* `value` is bool, or known and keeps where it is not 0 */
  bool inverted;
  bool subtracted; /* added with negative sign */
  double fill;     /* value of a score that is not kept */
  double factor;   /* factor of an added value: scales applied after the mask */
  int32_t rank;    /* of the scores at the mask */
} opi_mask_item;

typedef struct opi_scores {
  opi_mask_item masks[OPI_MAX_MASKS];
  uint32_t n_masks;
  double scale;
  double softcap;
  uint32_t left, right; /* operands of the product */
  bool trans_right;
  bool transposed; /* the product is K Q^T, with the softmax along its rows */
  bool kept; /* recognised but left as written, because its mask is multiplied and not known to be
                zeros and ones */
  int64_t dims[4]; /* B, H, S, T */
  uint32_t dtype;  /* of the scores where masks are added */
} opi_scores;

/* Joins the masks: *out is a value for attn_mask or OPIPE_NONE, *out_causal the flag. past: keys
 * before the first row's own position. *out_ok false: the masks cannot be joined; nothing relevant
 * was emitted. */
opipe_status opi_fuse_masks(opi_fuse *f, const opi_scores *s, int64_t past, uint32_t *out,
                            bool *out_causal, bool *out_ok, opipe_error *err);

#endif /* OPI_FUSE_ATTENTION_H */
