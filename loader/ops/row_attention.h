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
  OPI_ROWS_INPUTS
};
enum { OPI_ROWS_Y, OPI_ROWS_KEYS_OUT, OPI_ROWS_VALUES_OUT, OPI_ROWS_OUTPUTS };

typedef struct opi_row_attention {
  int64_t heads, kv_heads;
  double scale, softcap; /* softcap 0: none */
  int64_t window;        /* keys that a row sees, its own the last; 0: all before it */
} opi_row_attention;

/* in [OPI_ROWS_INPUTS]; out [OPI_ROWS_OUTPUTS]. */
opipe_status opi_row_attention_emit(opi_builder *b, const opi_row_attention *how,
                                    const uint32_t *in, uint32_t *out, opipe_error *err);

#endif /* OPI_ROW_ATTENTION_H */
