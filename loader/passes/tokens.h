/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices: from the graph of a whole sequence to the graph of a piece of it (TeraPipe, Li et
 * al. 2021, section 3.2; Seq1F1B).
 *
 * A slice holds the tokens [first, first + length). What depends on parameters and tokens is
 * computed for these rows only; what depends on neither parameters nor activations (masks,
 * positions, rotary tables) is computed whole and cut where it is read. Causal self-attention reads
 * the keys and values of earlier slices: they come in as past_key and past_value and leave,
 * extended, as present_key and present_value. Everything else must treat tokens independently; what
 * does not, and attention that is not causal, is refused by node.
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
  int8_t (*dims)[OPI_TOKEN_DIMS]; /* [n_values] dimensions that are n_tokens long, the second
                                     perhaps a few more, -1: none; the
                                     first -2: the length is in it mixed with others */
  uint8_t *above;                 /* [n_values] what token_mask.c has shown */
  bool *differs; /* [n_values] known content that depends on the number of tokens although the shape
                    does not */
} opi_tokens;

/* whole and other: the same model bound for n_tokens and n_other tokens, all else equal. Errors:
 * UNSUPPORTED when the graphs are not node by node alike. */
opipe_status opi_tokens_find(const opi_bound *whole, int64_t n_tokens, const opi_bound *other,
                             int64_t n_other, const opipe_allocator *allocator,
                             opi_tokens **out_tokens, opipe_error *err);
void opi_tokens_free(opi_tokens *tokens); /* accepts NULL */

/* Keys or values that one attention keeps from slice to slice: [batch, heads, tokens so far, size].
 */
typedef struct opi_token_state {
  const char *name; /* of the whole graph's value, the same in every slice */
  uint32_t past;    /* input of the slice's graph; OPIPE_NONE in the first slice */
  uint32_t present; /* output of the slice's graph; OPIPE_NONE in the last */
} opi_token_state;

/* A wanted output: entries first to first + length - 1 of the token axis, whose n_whole are those
 * of all slices together. Keys and values that grow with the sequence may hold more than the
 * tokens: the first slice has those in front too. */
typedef struct opi_token_output {
  uint32_t value;                 /* in the slice's graph */
  opi_carry carry;                /* where it has tokens; axis -1: the same in every slice */
  int64_t first, length, n_whole; /* with an axis */
} opi_token_output;

typedef struct opi_token_slice {
  opi_bound *bound; /* its graph: the whole one's inputs and the pasts; the wanted outputs, then the
                       presents. Nodes and values keep the whole graph's names */
  opi_token_state *states;
  opi_token_output *outputs; /* [n_outputs] in the order wanted */
  uint32_t n_states;         /* the same in every slice, in node order: K, V, K, V ... */
  uint32_t n_outputs;
} opi_token_slice;

/* What is wanted: values of the whole graph by name (the logits, or all outputs), and tokens
 * [first, first + length). */
typedef struct opi_token_wish {
  const char *const *outputs; /* [n_outputs] */
  uint32_t n_outputs;
  int64_t first, length;
} opi_token_wish;

/* Errors: INVALID for a range outside the sequence; NOTFOUND, an output that is not there;
 * UNSUPPORTED names the node that mixes tokens, the attention that is not causal, or the output
 * that has tokens along two axes; or no output has a token axis. */
opipe_status opi_slice_tokens(const opi_tokens *tokens, const opi_token_wish *wish,
                              const opi_evaluator *evaluator, const opipe_allocator *allocator,
                              opi_token_slice **out_slice, opipe_error *err);
void opi_token_slice_free(opi_token_slice *slice); /* accepts NULL */

#endif /* OPI_TOKENS_H */
