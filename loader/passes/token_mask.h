/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds on a value above the diagonal of its rows and columns of tokens, for all possible inputs;
 * see token_mask.c. Private to the token slices. */
#ifndef OPI_TOKEN_MASK_H
#define OPI_TOKEN_MASK_H

#include "loader/passes/tokens.h"

/* Position of the tokens of queries and keys in a value [.., rows, .., columns, ..]. */
typedef struct opi_token_plane {
  int32_t row, column; /* dimensions */
  int64_t lead, tail;  /* columns before and after those of the tokens: attention sinks */
} opi_token_plane;

enum {
  OPI_ABOVE_FALSE, /* bool: false at every later column */
  OPI_ABOVE_LOW,   /* so negative that Softmax yields 0 */
  OPI_ABOVE_ZERO
};

/* Proves that value `v` of the whole graph is `what` at each column after its row. *out_shown
 * false: not proven; `why` [n] says what prevents it. */
opipe_status opi_tokens_above(const opi_tokens *tokens, uint32_t v, const opi_token_plane *plane,
                              uint32_t what, const opi_evaluator *evaluator, bool *out_shown,
                              char *why, size_t n, opipe_error *err);

enum { OPI_TOKEN_MOST = 1 << 27 }; /* elements of a value that is followed */

/* Content of a value that follows from constants alone, though it was too large to be folded. */
typedef struct opi_token_content {
  const float *numbers; /* broadcast to the value's shape from the right; NULL: not known */
  const char *input;    /* a graph input that it is made from; NULL: none was found */
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank;
} opi_token_content;

/* numbers in `arena`. */
opipe_status opi_tokens_content(const opi_tokens *tokens, uint32_t v,
                                const opi_evaluator *evaluator, opi_arena *arena,
                                opi_token_content *out_content, opipe_error *err);

#endif /* OPI_TOKEN_MASK_H */
