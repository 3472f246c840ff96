/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: how the next token of a sequence is chosen, where its keys and values lie, and which
 * rows the next pass takes.
 *
 * Invariants:
 * - A sequence's tokens depend on its ids, its sampling and its branch alone: no function here
 * looks at the other sequences of a pass, at slices, at drafts or at the clock to choose a token.
 * - Nothing is allocated after opening: samplers, pools and batches have their bounds then.
 * - The same calls in the same order give the same answers.
 * - Everything belongs to one thread at a time, the scheduler's.
 *
 * Token ids are uint32_t; a position counts from 0 at the first token of the prompt.
 */
#ifndef OPI_GENERATE_RULES_H
#define OPI_GENERATE_RULES_H

#include "loader/base/base.h"

enum {
  OPI_SAMPLING_LIKELY = 20,   /* most alternatives with logprobs per token */
  OPI_SAMPLING_STOPS = 64,    /* most stop ids and sequences */
  OPI_SAMPLING_STOP_IDS = 64, /* most ids of a stop sequence */
  OPI_SAMPLING_BIASES = 1024,
  OPI_SAMPLING_ANSWERS = 1024,
};

typedef struct opi_bias {
  uint32_t id;
  double add; /* to the logit */
} opi_bias;

typedef struct opi_stop {
  const uint32_t *ids; /* [n] */
  uint32_t n;          /* 1: a stop id */
} opi_stop;

/* Rules apply in this order: bias (and stop ids masked before min_tokens), repetition, presence and
 * frequency, temperature, top_k, top_p, min_p. Equal scores: the lower id counts as higher. */
typedef struct opi_sampling {
  double temperature; /* 0: greedy, the highest score */
  double top_p;       /* the fewest tokens with this share of the weight; 1: all */
  double min_p;       /* weight of at least this share of the highest; 0: all */
  double
      repetition_penalty;   /* of ids in prompt and answer: divides scores > 0, multiplies others */
  double presence_penalty;  /* subtracted once for ids in the answer */
  double frequency_penalty; /* subtracted for each time that an id stands in the answer */
  uint64_t seed;
  uint32_t top_k; /* the so many highest; 0: all */
  uint32_t n;     /* answers, each a branch */
  uint32_t min_tokens, max_tokens;
  int32_t logprobs; /* alternatives with log-probabilities by the raw logits; -1: none at all */
  uint32_t n_biases, n_stops;
  const opi_bias *biases; /* [n_biases] */
  const opi_stop *stops;  /* [n_stops] */
} opi_sampling;

/* Temperature 1, nothing else: no rule, one answer, max_tokens UINT32_MAX. */
extern const opi_sampling opi_sampling_default;

/* Sets what `text` [n_bytes] says in *io_sampling, a JSON object or "key=value,key=value". Keys are
 * the fields' names, and
 *   JSON:  "stop": 2 or [2, [13, 17]], "logit_bias": {"5": -1.5}
 *   text:  stop=2,stop=13+17,logit_bias=5:-1.5 (both may be repeated)
 * `stop` and `logit_bias` replace earlier lists. Lists live in `arena`. Checks the result as
 * opi_sampling_check does. Errors: INVALID, LIMIT, NOMEM; they name key and value. */
opipe_status opi_sampling_read(const char *text, size_t n_bytes, uint32_t n_vocab, opi_arena *arena,
                               opi_sampling *io_sampling, opipe_error *err);
/* Checks every field, whoever filled them in; n_vocab 0: ids are not checked. */
opipe_status opi_sampling_check(const opi_sampling *sampling, uint32_t n_vocab, opipe_error *err);

/* ---- folders of ONNX Runtime GenAI ---- */

enum { OPI_KEYS, OPI_VALUES, OPI_STORED };

/* A text decoder by genai_config.json. Texts and lists are in the arena. */
typedef struct opi_genai {
  const char *type;
  const char *const *files; /* [n_files] below the folder; several: decoder.pipeline, in order */
  uint32_t n_files, n_layers, n_heads, n_kv_heads, head_size; /* 0: not said (but files, layers) */
  uint32_t context, n_vocab, window;                          /* window 0: none */
  uint32_t bos, pad;                                          /* ids; UINT32_MAX: none */
  const char *input_ids, *attention_mask, *position_ids, *logits;
  /* [n_layers] each: inputs and outputs by layer. past[OPI_VALUES] NULL: one tensor has both. */
  const char *const *past[OPI_STORED], *const *present[OPI_STORED];
  bool shares_buffer;
  uint32_t min_length, max_length; /* tokens with the prompt; max_length at most context */
  opi_sampling sampling;           /* the search defaults; its stops are the ids that end a text */
} opi_genai;

/* Reads a file's text; messages name it as `what`. Nothing is opened. Errors: LIMIT: depth or size;
 * INVALID: a member; UNSUPPORTED: another kind of model or search; NOMEM. */
opipe_status opi_genai_read(const char *text, uint64_t n_bytes, const char *what, opi_arena *arena,
                            opi_genai *out, opipe_error *err);

#endif /* OPI_GENERATE_RULES_H */
