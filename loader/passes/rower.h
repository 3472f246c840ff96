/* SPDX-License-Identifier: Apache-2.0 */
/* State of building a graph of rows: row_walk.c walks, row_attend.c handles attention, row_mask.c
 * reads masks, row_cache.c recognises caches. Private to the row form. */
#ifndef OPI_ROWER_H
#define OPI_ROWER_H

#include "loader/ops/row_attention.h"
#include "loader/passes/row_form.h"
#include "loader/passes/slicer.h"

/* The slicer's sliced values are rows: all of the pass, or behind the last attention the wanted
 * ones. */
typedef struct rower {
  slicer s; /* length: rows of the node at work */
  const opi_row_form *form;
  const opi_row_wish *wish;
  bool *few;        /* [n_values] only the wanted rows of it are made */
  bool *stale;      /* [n_values] it depends on keys, values or states of before, and is not made */
  uint32_t *picked; /* [n_values] the wanted rows of what has all; OPIPE_NONE: not made */
  uint32_t *tables[2]; /* [n_values] rows of what is known by position: all, wanted */
  uint32_t place[2];   /* positions: all, wanted */
  uint32_t position, sequence, table, wanted, copies; /* inputs; OPIPE_NONE: none */
  uint32_t *ids;                              /* [n_ids] inputs */
  uint32_t n_ids;
  opi_row_pages *pages; /* [n_pages], room for one a node */
  uint32_t n_pages;
} rower;

static inline bool opi_r_stale(const rower *r, uint32_t v) {
  return v != OPIPE_NONE && r->stale[v];
}
/* The rows of v that a node reads: few, the wanted ones. how: its carry. */
opipe_status opi_r_operand(rower *r, const opi_node *node, uint32_t v, const opi_carry *how,
                           bool few, uint32_t *out);

/* Writes of new rows into keys and values of before, or their concatenation: *out_rows is the input
 * with the new rows, *out_axis the axis along which they are tokens in the output. OPIPE_NONE: the
 * node is none of these. */
opipe_status opi_r_cache(rower *r, const opi_node *node, uint32_t *out_rows, int32_t *out_axis);

/* The last token of a sequence, picked along axis *out_axis of the rows in input 0: every row is
 * the last one of what it sees. False: the node is no such pick. */
bool opi_r_is_last(const rower *r, const opi_node *node, int32_t *out_axis);

/* Attention over rows. */
opipe_status opi_r_attention(rower *r, const opi_node *node);

/* An attention's mask and causality, over every row and key of the context. */
typedef struct opi_row_mask {
  int64_t window; /* keys that a row sees, its own the last; 0: all before it */
  float *slopes;  /* [heads]; NULL: all 0 */
} opi_row_mask;
/* Slopes in the form's arena. */
opipe_status opi_r_mask(rower *r, const opi_node *node, int64_t heads, int64_t keys,
                        opi_row_mask *out_mask);
/* An empty list of masks in `arena`; NULL: out of memory. */
opi_row_masks *opi_row_masks_new(opi_arena *arena);

/* row_form.c: returns `status`; where it refuses the form, the message names the way out. */
opipe_status opi_row_refused(opipe_status status, opipe_error *err);
/* row_inputs.c: the whole graph of n_tokens tokens of one sequence. */
opipe_status opi_row_bind(const opi_model *model, const opi_bind_options *options, int64_t n_tokens,
                          opi_bound **out_bound, opipe_error *err);

#endif /* OPI_ROWER_H */
