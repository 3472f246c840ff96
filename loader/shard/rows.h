/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by rows.c and row_costs.c: who reads what by rows. Private to loader/shard. */
#ifndef OPI_SHARD_ROWS_H
#define OPI_SHARD_ROWS_H

#include "loader/shard/rules.h"

typedef struct opi_row_state {
  opi_sharder *s;
  bool *sums;      /* [n_values] partial, and summed at a reader */
  uint32_t *ends;  /* [n_values] of a partial value: the value that is summed */
  bool *row_reads; /* [n_values] read by rows */
  bool *whole_reads;
  bool *spread_reads; /* [n_values] of those read whole: beside something divided */
  uint32_t *counts;   /* [n_values] scratch */
} opi_row_state;

static inline bool opi_sh_is_live(const opi_sharder *s, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE && s->needed[node->out[o]])
      return true;
  }
  return false;
}

/* ---- row_costs.c ---- */
/* Takes rows back where values are better whole; reads of taken nodes are whole again. */
void opi_sh_take_rows_back(const opi_row_state *t);
/* Are the outputs the inputs' elements in another form or order? */
bool opi_sh_only_moves(const opi_node *node);
/* Is input i of an addition to a partial sum, or of a layer, added to rows? */
bool opi_sh_is_added_to_rows(const opi_row_state *t, uint32_t n, uint32_t i);

#endif /* OPI_SHARD_ROWS_H */
