/* SPDX-License-Identifier: Apache-2.0 */
/* The attention fusion's two halves: finding the group (fuse_attention.c) and joining its masks
 * (fuse_mask.c). */
#ifndef OPI_FUSE_ATTENTION_H
#define OPI_FUSE_ATTENTION_H

#include "loader/passes/fuse.h"

enum { OPI_MAX_MASKS = 4 };

/* One thing that is added to the scores or decides which of them count. */
typedef struct opi_mask_item {
  uint32_t value; /* bool: which scores are kept (dropped when `inverted`); else added */
  bool keeps;     /* `value` is bool, or known and kept where it is not 0 */
  bool inverted;
  bool subtracted; /* added with a minus sign */
  double fill;     /* what a score that is not kept becomes */
  double factor;   /* what is added is multiplied by it: the scales behind the mask */
  int32_t rank;    /* of the scores where the mask stands */
} opi_mask_item;

typedef struct opi_scores {
  opi_mask_item masks[OPI_MAX_MASKS];
  uint32_t n_masks;
  double scale;
  double softcap;
  uint32_t left, right; /* operands of the product */
  bool trans_right;
  bool transposed; /* the product is K Q^T, the softmax goes along its rows */
  bool kept; /* recognised, but its mask is multiplied and not known to be of zeros and ones: stays
                as it is written */
  int64_t dims[4]; /* B, H, S, T */
  uint32_t dtype;  /* of the scores where masks are added */
} opi_scores;

/* Joins the masks: *out a value for attn_mask or OPIPE_NONE, *out_causal the flag. past: keys that
 * stand before the first row's own position. *out_ok false: the masks do not fit; nothing was
 * emitted that matters. */
opipe_status opi_fuse_masks(opi_fuse *f, const opi_scores *s, int64_t past, uint32_t *out,
                            bool *out_causal, bool *out_ok, opipe_error *err);

#endif /* OPI_FUSE_ATTENTION_H */
