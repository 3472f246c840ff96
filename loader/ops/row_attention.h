/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: attention of token rows of many sequences, keys and values in pages. Made by
 * loader/rows; abi/guide/operators.md has its form. */
#ifndef OPI_ROW_ATTENTION_H
#define OPI_ROW_ATTENTION_H

#include "loader/ops/kit.h"

enum {
  OPI_ROWS_Q,
  OPI_ROWS_K,
  OPI_ROWS_V,
  OPI_ROWS_POSITION,
  OPI_ROWS_SEQUENCE,
  OPI_ROWS_TABLE,
  OPI_ROWS_KEY_PAGES,
  OPI_ROWS_VALUE_PAGES,
  OPI_ROWS_SLOPES,
  OPI_ROWS_COPIES,
  OPI_ROWS_INPUTS
};
enum { OPI_ROWS_Y, OPI_ROWS_KEYS_OUT, OPI_ROWS_VALUES_OUT, OPI_ROWS_OUTPUTS };

typedef struct opi_row_attention {
  int64_t heads, kv_heads;
  double scale, softcap; /* softcap 0: none */
  int64_t window;        /* keys that a row sees, its own the last; 0: all before it */
  bool in_place;         /* the pages that come in are written; none come out */
} opi_row_attention;

/* in [OPI_ROWS_INPUTS], slopes and copies may be OPIPE_NONE; out [OPI_ROWS_OUTPUTS]: in place,
 * OPIPE_NONE for pages. */
opipe_status opi_row_attention_emit(opi_builder *b, const opi_row_attention *how,
                                    const uint32_t *in, uint32_t *out, opipe_error *err);

/* An integer input of an operator in file form that says where keys lie, for a sequence of n tokens
 * without a past. */
enum {
  OPI_PLACES_NONE,    /* another input, or another operator */
  OPI_PLACES_KEYS,    /* n: numbers of keys */
  OPI_PLACES_LAST,    /* n - 1: the last key's place */
  OPI_PLACES_BEFORE,  /* 0: keys before the first token */
  OPI_PLACES_COUNTED, /* 0, 1, 2 ... n - 1 */
  OPI_PLACES_ONES     /* a mask of keys */
};
uint32_t opi_places_of(const opi_node *file_node, uint32_t input);
/* The least length that a file's operator accepts for past keys or values in that input. */
int64_t opi_least_past(const opi_node *file_node, uint32_t input);

#endif /* OPI_ROW_ATTENTION_H */
