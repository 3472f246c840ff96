/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a value above the diagonal of its rows and columns of tokens, whatever the
 * inputs hold; see token_mask.c. Private to the token slices. */
#ifndef OPI_TOKEN_MASK_H
#define OPI_TOKEN_MASK_H

#include "loader/passes/tokens.h"

/* Where a value [.., rows, .., columns, ..] has the tokens of queries and of keys. */
typedef struct opi_token_plane {
  int32_t row, column; /* dimensions */
  int64_t lead, tail;  /* columns before and after those of the tokens: attention sinks */
} opi_token_plane;

enum {
  OPI_ABOVE_FALSE, /* bool: false at every later column */
  OPI_ABOVE_LOW,   /* so negative that Softmax makes it 0 */
  OPI_ABOVE_ZERO
};

/* Is it shown that value `v` of the whole graph is `what` at each column after its row? False: not
 * shown, and `why` [n] says what stands in the way. */
opipe_status opi_tokens_above(const opi_tokens *tokens, uint32_t v, const opi_token_plane *plane,
                              uint32_t what, const opi_evaluator *evaluator, bool *out_shown,
                              char *why, size_t n, opipe_error *err);

#endif /* OPI_TOKEN_MASK_H */
