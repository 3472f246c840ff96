/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices: from the graph of a whole sequence to the graph of a piece of it (TeraPipe, Li et
 * al. 2021, section 3.2; Seq1F1B).
 *
 * A slice holds the tokens [first, first + length). Values that depend on parameters and tokens are
 * computed for these rows only. Values that depend on neither parameters nor activations (masks,
 * positions, rotary tables) are computed whole and cut where they are read. Causal self-attention
 * reads the keys and values of earlier slices: they come in as past_key and past_value and leave,
 * extended, as present_key and present_value. Everything else must treat tokens independently;
 * nodes that do not, and attention that is not causal, are refused by name.
 */
#ifndef OPI_TOKENS_H
#define OPI_TOKENS_H

#include "loader/passes/passes.h"

enum { OPI_TOKEN_DIMS = 2 };

/* Where every value of a graph has the token axis: found by comparing two bindings of one model. */
typedef struct opi_tokens {
  opi_arena arena;
  const opi_bound *whole; /* borrowed */
  int64_t n_tokens;
  int8_t (*dims)[OPI_TOKEN_DIMS]; /* [n_values] dimensions of length n_tokens (the second may be
                                     slightly longer); -1: none; first -2: the length is mixed with
                                     others in it */
  uint8_t *above;                 /* [n_values] results of token_mask.c */
  bool *differs; /* [n_values] known content that depends on the number of tokens although the shape
                    does not */
} opi_tokens;

/* whole and other: the same model bound for n_tokens and n_other tokens, otherwise equal. Errors:
 * UNSUPPORTED, the graphs differ in their nodes. */
opipe_status opi_tokens_find(const opi_bound *whole, int64_t n_tokens, const opi_bound *other,
                             int64_t n_other, const opipe_allocator *allocator,
                             opi_tokens **out_tokens, opipe_error *err);
void opi_tokens_free(opi_tokens *tokens); /* accepts NULL */

/* Keys or values that one attention keeps from slice to slice: [batch, heads, tokens so far, size].
 */
typedef struct opi_token_state {
  const char *name; /* name in the whole graph, the same in every slice */
  uint32_t past;    /* input of the slice's graph; OPIPE_NONE in the first slice */
  uint32_t present; /* output of the slice's graph; OPIPE_NONE in the last */
} opi_token_state;

/* A requested output: entries first to first + length - 1 of the token axis, which has n_whole over
 * all slices. Keys and values that grow with the sequence may hold more than the tokens; the first
 * slice includes the entries before them. */
typedef struct opi_token_output {
  uint32_t value;                 /* in the slice's graph */
  opi_carry carry;                /* where it has tokens; axis -1: the same in every slice */
  int64_t first, length, n_whole; /* if there is an axis */
} opi_token_output;

typedef struct opi_token_slice {
  opi_bound
      *bound; /* its graph: inputs are the whole graph's, then the pasts; outputs the requested
                 ones, then the presents. Nodes and values keep the whole graph's names */
  opi_token_state *states;
  opi_token_output *outputs; /* [n_outputs] in the requested order */
  uint32_t n_states;         /* the same in every slice, in node order: K, V, K, V ... */
  uint32_t n_outputs;
} opi_token_slice;

/* A request: values of the whole graph by name (the logits, or all outputs), and tokens [first,
 * first + length). */
typedef struct opi_token_wish {
  const char *const *outputs; /* [n_outputs] */
  uint32_t n_outputs;
  int64_t first, length;
} opi_token_wish;

/* Errors: INVALID, a range outside the sequence; NOTFOUND, a missing output; UNSUPPORTED names the
 * node that mixes tokens, the attention that is not causal, or the output that has tokens along two
 * axes; or no output has a token axis. */
opipe_status opi_slice_tokens(const opi_tokens *tokens, const opi_token_wish *wish,
                              const opi_evaluator *evaluator, const opipe_allocator *allocator,
                              opi_token_slice **out_slice, opipe_error *err);
void opi_token_slice_free(opi_token_slice *slice); /* accepts NULL */

#endif /* OPI_TOKENS_H */
