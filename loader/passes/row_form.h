/* SPDX-License-Identifier: Apache-2.0 */
/* Row form: a causal decoder as a graph over token rows of any number of sequences.
 *
 * Row n is the token ids[n] at position[n] of sequence[n]. Outside attention, every operator of a
 * decoder works on token rows, whichever sequences they are of. Attention becomes
 * opipe.RowAttention, which writes the keys and values of its rows into pages and reads what lies
 * before each row. A sequence needs pages for its tokens and nothing else: past keys and values,
 * masks, positions and lengths are no inputs any more.
 *
 * The form is made from the graph of one whole sequence without a past, bound for `context` tokens
 * and compared with that of one token less. Inputs that tell what is known of such a sequence are
 * pinned: masks to ones, positions to 0, 1, 2 ..., lengths to the number of tokens, the branch of a
 * merged decoder. Values that depend on nothing else (positions, rotary tables) are then known for
 * every position of the context, and rows pick theirs; masks are read number by number, and must be
 * causal: all before a row, a window, or ALiBi. Keys that a file writes into a buffer of fixed size
 * (ScatterND, ScatterElements, TensorScatter) are taken as written at their tokens' positions,
 * which is checked. Where a file picks the last token, every wanted row is one.
 *
 * Refused, by node and reason: what mixes rows, is not causal, keeps other state than keys and
 * values, or depends on the number of tokens. Such models run with states, as they are.
 *
 * Limits: a mask is read whole, of 2^27 numbers at most (11,585 tokens of context; attention that
 * is causal by a flag has none). The file's number of tokens must be free, its batch 1 or free.
 * Pages are fp32.
 */
#ifndef OPI_ROW_FORM_H
#define OPI_ROW_FORM_H

#include "loader/passes/tokens.h"

typedef struct opi_row_masks opi_row_masks; /* row_mask.c */

typedef struct opi_row_form {
  opi_arena arena;
  opi_bound *whole; /* bound for `context` tokens of one sequence */
  opi_tokens *tokens;
  int64_t context;
  const opi_evaluator *evaluator; /* borrowed */
  uint32_t logits;                /* a value of the whole graph */
  opi_row_masks *masks; /* read so far: graphs of one form are made by one thread at a time */
  bool *main;           /* [n_nodes] the logits need it, not only by a mask */
  bool *front;          /* [n_nodes] an attention needs it, or it is one */
} opi_row_form;

/* output: the wanted output's name; NULL: the first of those that most attentions stand before. The
 * model, and the evaluator of `options`, must outlive the form. options: pins and dims of the host
 * come before the form's own. Errors: UNSUPPORTED, it has none: names the input or node and the
 * reason; INVALID, a context below 2; as opi_bind. */
opipe_status opi_row_form_find(const opi_model *model, const opi_bind_options *options,
                               int64_t context, const char *output, opi_row_form **out_form,
                               opipe_error *err);
void opi_row_form_free(opi_row_form *form); /* accepts NULL */

/* Numbers of one graph. */
typedef struct opi_row_wish {
  int64_t rows;      /* of a pass */
  int64_t wanted;    /* rows behind the last attention; 0: all, without the input `wanted` */
  int64_t sequences; /* rows of the table of pages */
  int64_t page;      /* tokens of a page */
  int64_t pages;     /* of every attention */
  int64_t copies;    /* of pages, made before rows are written; 0: without the input `copies` */
  bool in_place;     /* pages are inputs alone, of the kind OPI_VALUE_HELD, which are written */
} opi_row_wish;

/* Keys and values of one attention, [pages, heads, page, size] each: inputs, and outputs with the
 * rows written, which are absent in place. */
typedef struct opi_row_pages {
  const char *node; /* the attention's name in the whole graph */
  uint32_t in[2];   /* values of the graph: keys, values */
  uint32_t out[2]; /* OPIPE_NONE: absent */
  int64_t window; /* > 0: no later row reads keys so many tokens behind it; 0: all are read */
} opi_row_pages;

typedef struct opi_row_graph {
  opi_bound *bound;     /* inputs: the model's own, per row (ids [rows], in file order), then
                           position, sequence, table, wanted, copies, pages; outputs: logits,
                           pages. It borrows from the form, which must outlive it */
  opi_row_pages *pages; /* [n_pages] in node order */
  uint32_t n_pages;
  uint32_t n_ids;    /* the model's own inputs */
  uint32_t position; /* int64 [rows], 0 to context - 1 */
  uint32_t sequence; /* int64 [rows]; below 0: no row, whose results mean nothing */
  uint32_t table;    /* int64 [sequences, ceil(context / page)] */
  uint32_t wanted;   /* int64 [wanted] rows; OPIPE_NONE: none was asked for */
  uint32_t copies;   /* int64 [copies, 3]: from page, to page (below 0: none), the first tokens of a
                        page, in the order in which they are made; OPIPE_NONE: none was asked for */
  uint32_t logits;   /* as in the file, without its batch, tokens as rows; in a file's own layout */
} opi_row_graph;

/* Errors: INVALID, numbers below 1, more wanted rows than rows; UNSUPPORTED as above. */
opipe_status opi_row_graph_make(const opi_row_form *form, const opi_row_wish *wish,
                                const opipe_allocator *allocator, opi_row_graph **out_graph,
                                opipe_error *err);
void opi_row_graph_free(opi_row_graph *graph); /* accepts NULL */

#endif /* OPI_ROW_FORM_H */
