/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of token rows of many sequences, whose keys and values lie in pages.
 *
 * A page holds the keys and values of `page` consecutive tokens of one sequence, `page` a multiple
 * of CPU_PANEL. Keys stand in it as the panels that products read, so that none is packed twice:
 * [kv_heads][page / 64][qk_dim][64]; values as rows: [kv_heads][page][v_dim]. The table says which
 * page holds tokens [p * page, (p + 1) * page) of a sequence.
 *
 * The order of additions is that of attention.h for a sequence of its own: a row's bits depend on
 * its query and on the keys and values up to its position alone, whatever the other rows are and
 * however large the pages. No key or value that a row does not see is read for it, save to be
 * discarded. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_H_
#define OPIPE_BACKEND_CPU_KERNELS_ATTENTION_ROWS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base.h"

typedef struct cpu_row_attention_args {
  int64_t rows, heads, kv_heads; /* heads is a multiple of kv_heads */
  int64_t qk_dim, v_dim;
  int64_t page;                   /* tokens of a page */
  int64_t pages;                  /* of a sequence: columns of the table */
  const float *q, *k, *v;         /* [rows][heads * dim], dense */
  const int64_t *position;        /* [rows] place of the row in its sequence */
  const int64_t *sequence;        /* [rows] row of the table; below 0: there is no such row */
  const int64_t *table;           /* [sequences][pages] */
  float *key_pages, *value_pages; /* read and written */
  const float *slopes;            /* [heads] ALiBi: slope * (key - position) is added to the
                                     capped score; NULL: none */
  float *out;                     /* [rows][heads * v_dim]; zeros where there is no row */
  float scale, softcap;           /* as cpu_attention_args' */
  int64_t n_copies;               /* made before any row is written, in order */
  const int64_t *copies;          /* [n_copies][3]: from page, to page, first tokens; a page
                                     below 0: none */
  int64_t window;                 /* > 0: keys that a row sees, its own the last; 0: all */
  void *workspace;                /* cpu_attention_rows_workspace */
} cpu_row_attention_args;

/* Reads only the sizes in `args`. */
bool cpu_attention_rows_workspace(int32_t threads, const cpu_row_attention_args *args,
                                  uint64_t *out_bytes);
/* Writes the keys and values of all rows into their pages, then attends. */
void cpu_attention_rows(const cpu_exec *x, const cpu_row_attention_args *args);
/* The first half alone, kv heads [first, end): copies, then rows. */
void cpu_attention_rows_write(const cpu_row_attention_args *args, int64_t first, int64_t end);

/* The keys of 64 tokens from key `at` on, a multiple of 64, as [qk_dim][64]; the value of one. */
static inline float *cpu_page_keys(const cpu_row_attention_args *g, int64_t sequence,
                                   int64_t kv_head, int64_t at) {
  const int64_t page = g->table[sequence * g->pages + at / g->page];
  return g->key_pages + ((page * g->kv_heads + kv_head) * g->page + at % g->page) * g->qk_dim;
}
static inline float *cpu_page_value(const cpu_row_attention_args *g, int64_t sequence,
                                    int64_t kv_head, int64_t at) {
  const int64_t page = g->table[sequence * g->pages + at / g->page];
  return g->value_pages + ((page * g->kv_heads + kv_head) * g->page + at % g->page) * g->v_dim;
}

#endif
