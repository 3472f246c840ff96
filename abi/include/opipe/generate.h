/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: a host gives token ids and gets tokens; part of host.h. Since 1.5.
 *
 *   plan_make with opipe_plan_params.generation -> session_open -> session_generate -> on_token ...
 *     -> sequence_wait -> sequence_append (a further turn) ... -> sequence_release
 *
 * A sequence is a list of ids: a prompt, an answer, further prompts and answers. A turn begins with
 * session_generate or sequence_append and ends for one of the reasons below; the sequence is idle
 * then. Turns of all sequences are computed together, a row of each in a pass, and every stage
 * works on a pass of its own. A sequence's tokens depend on its ids, its sampling and its branch
 * alone: not on the other sequences, on when they come, or on how the library schedules. Keys and
 * values lie in pages that belong to the session, and beginnings of sequences share them.
 *
 * Sampling is text, "temperature=0.7,top_p=0.9,stop=2" or a JSON object with the same keys:
 *
 *   temperature (1; 0: the highest score), top_k (0: all), top_p (1), min_p (0)
 *   repetition_penalty (1), presence_penalty (0), frequency_penalty (0)
 *   seed (0), n (1: answers), min_tokens (0), max_tokens (no limit but the context)
 *   logprobs (-1: none; 0 to 20: of the token, and of so many alternatives, by the raw logits)
 *   stop=2,stop=13+17 or "stop": [2, [13, 17]]: ids, and sequences of ids, that end a turn
 *   logit_bias=5:-1.5 or "logit_bias": {"5": -1.5}
 *
 * Rules apply in the order bias, repetition, presence and frequency, temperature, top_k, top_p,
 * min_p. Random numbers follow from seed, branch and position. The first answer of a sequence is
 * branch 0, each other answer and each fork without a seed the next number.
 *
 * Callbacks are called one at a time per session, in the order of positions, on the thread that the
 * session keeps for generation, or (threads=HOST) on one inside session_generate, _drive,
 * sequence_wait or another function of sequences; an end also inside sequence_cancel, _release and
 * session_close. Passes wait for them, so they should be short; other threads' calls do not, except
 * sequence_release and session_close, which return when no callback runs: hold no lock around these
 * two that a callback takes (threads=HOST: around no function of generation). [callback]
 *
 * Inside callbacks, on their own session, all functions of generation may be called but
 * sequence_wait; every other function of the table answers OPIPE_E_STATE. There, or while another
 * thread is in one: sequence_cancel and sequence_release end the turn once the callback has
 * returned; sequence_fork inside on_token takes the ids up to that token, inside on_logits those
 * before `position`; sequence_draft inside on_token is for the token behind the last one sampled;
 * sequence_append and _truncate need an idle sequence, as it is in its on_end. Another thread's
 * sequence_wait and sequence_info tell what callbacks that have returned were told.
 *
 * threads=HOST: the host drives every rank (session_drive), which also begins and ends passes.
 *
 * With `replicas` in the plan each replica has pages and passes of its own, and a sequence stays on
 * one: the one that has computed most of its prompt's beginning, else the one with fewest turns.
 * In a team (session_params.team) process 0 generates, and the others are in session_follow;
 * OPIPE_SESSION_FOLLOWED, and what it needs, is set by the plan, in all processes. If a process
 * ends, every turn fails with PEER, or STATE, and a message that names it.
 */
#ifndef OPIPE_GENERATE_H
#define OPIPE_GENERATE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if OPIPE_TARGET_MINOR >= 5
/* Its handle lives until sequence_release or session_close. */
typedef struct opipe_sequence opipe_sequence;

typedef struct opipe_likely {
  uint32_t id;
  uint32_t reserved;
  double logprob; /* natural logarithm, by the raw logits */
} opipe_likely;

/* A token of an answer. Valid during the callback. */
typedef struct opipe_token {
  uint32_t id;
  uint32_t position;          /* in the sequence, from 0 at the first id of the first prompt */
  uint32_t n_likely;          /* `logprobs` of the sampling, at most the vocabulary */
  uint32_t likely_stride;     /* bytes from one to the next */
  double logprob;             /* of `id`; NaN unless the sampling's logprobs is at least 0 */
  const opipe_likely *likely; /* [n_likely], the highest first */
} opipe_token;

/* Why a turn has ended. */
enum {
  OPIPE_END_NONE = 0,     /* it goes on */
  OPIPE_END_STOP = 1,     /* a stop id or sequence, which is the end of the sequence's ids but comes
                             to no on_token */
  OPIPE_END_TOKENS = 2,   /* max_tokens */
  OPIPE_END_CONTEXT = 3,  /* the sequence has as many ids as the plan's context, or as all pages */
  OPIPE_END_FAILED = 4,   /* status and message say why: a row of logits that is not finite, a
                             callback's answer, a pass that failed, the deadline (TIMEOUT) */
  OPIPE_END_CANCELLED = 5 /* sequence_cancel, session_close */
};

/* One turn. Lists and texts are borrowed for the call; callbacks may be NULL. */
typedef struct opipe_generate_params {
  uint32_t struct_size;
  uint32_t n_ids;
  const uint32_t *ids;  /* [n_ids] at least one, each in the vocabulary; room for one more must be
                           left in the context */
  const char *sampling; /* NULL: nothing but the defaults above; in sequence_append: as before */
  uint64_t salt;        /* beginnings are shared only by sequences of equal salt; in sequence_append
                           it must be 0 */
  uint64_t deadline_ns; /* relative, of the turn; 0: none */
  void *ctx;            /* of the callbacks */
  /* A token, once no stop can begin with it. A negative status ends the turn with it. */
  opipe_status (*on_token)(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                           opipe_error *err);
  /* Before a token is sampled: may change `row` [n_vocab] of `dtype` (OPIPE_FLOAT, OPIPE_FLOAT16
   * ..., as in the model's logits), or set *io_id, which is -1, to the id to take. `position` is
   * the new token's. A negative status ends the turn with it. */
  opipe_status (*on_logits)(void *ctx, opipe_sequence *sequence, uint32_t position, void *row,
                            uint32_t n_vocab, uint32_t dtype, int64_t *io_id, opipe_error *err);
  /* One more of n answers, before its first token: `answer` is a sequence of its own, to be
   * released like any. *io_ctx, which is `ctx`, is that of its callbacks. Needed if n > 1. */
  void (*on_answer)(void *ctx, opipe_sequence *sequence, opipe_sequence *answer, void **io_ctx);
  /* The turn has ended, once per turn. why: of OPIPE_END_FAILED, else NULL. */
  void (*on_end)(void *ctx, opipe_sequence *sequence, uint32_t reason, const opipe_error *why);
} opipe_generate_params;

enum {
  OPIPE_SEQUENCE_IDLE = 0,    /* no turn */
  OPIPE_SEQUENCE_WAITING = 1, /* for pages, or for others to go first */
  OPIPE_SEQUENCE_ACTIVE = 2   /* it has pages */
};

typedef struct opipe_sequence_info {
  uint32_t struct_size;
  uint32_t state;      /* OPIPE_SEQUENCE_* */
  uint32_t end;        /* OPIPE_END_* of the latest turn */
  int32_t status;      /* of OPIPE_END_FAILED: why; else OPIPE_OK */
  uint32_t n_ids;      /* prompts and answers, stops included */
  uint32_t n_prompt;   /* ids before the latest answer */
  uint32_t n_tokens;   /* of the latest answer, as far as on_token has them */
  uint32_t branch;     /* of the random numbers */
  uint64_t n_evicted;  /* times that its pages went to others, and were computed again */
  uint64_t n_reused;   /* ids whose keys and values were there already */
  uint64_t n_drafted;  /* ids in drafts */
  uint64_t n_accepted; /* of these, ids that were those sampled */
} opipe_sequence_info;

/* A session's generation, since it was opened; with replicas, all of them together. */
typedef struct opipe_generation_info {
  uint32_t struct_size;
  uint32_t rows;   /* most of a pass, on one replica */
  uint32_t groups; /* most passes in flight */
  uint32_t page;   /* ids per page */
  uint32_t n_pages;
  uint32_t context;     /* most ids of a sequence */
  uint32_t n_sequences; /* most sequences that are open */
  uint32_t n_active;    /* most that have pages at a time */
  uint32_t n_vocab;
  uint32_t dtype;      /* of logits */
  uint32_t open;       /* sequences now */
  uint32_t waiting;    /* of these */
  uint32_t active;     /* of these */
  uint32_t in_flight;  /* passes now */
  uint32_t free_pages; /* now: neither held nor kept for reuse */
  uint32_t kept_pages; /* now, for reuse */
  uint64_t passes;
  uint64_t computed;   /* rows of all passes */
  uint64_t tokens;     /* sampled or chosen */
  uint64_t asked;      /* ids of sequences that got pages */
  uint64_t reused;     /* of these, ids that were there already */
  uint64_t evicted;    /* sequences, whose pages went to others */
  uint64_t forgotten;  /* pages that were kept for reuse, and went to others */
  uint64_t copied;     /* pages */
  uint64_t drafted;    /* ids in drafts */
  uint64_t accepted;   /* of these, ids that were those sampled */
  uint64_t working_ns; /* time with a pass in flight */
  double bubble;       /* idle share of the ranks here in that time, 0 to 1 */
} opipe_generation_info;
#endif

#include "frozen/generate.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_GENERATE_H */
