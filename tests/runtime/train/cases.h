/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of training: model x schedule x ranks x micro-batches x optimizer x compute type, 10
 * steps each, 4 under a sanitizer.
 *
 * A case holds when its losses and weights have the bits of the plan's reference and are close to
 * the uncut model (uncut.c), or when it is refused with the text that the schedule's constraint
 * documents. Nothing else passes.
 */
#ifndef TESTS_TRAIN_CASES_H
#define TESTS_TRAIN_CASES_H

#include "tests/runtime/train/kit.h"

enum { KIT_TEN = 10, KIT_PARAMS = 160 };
/* Steps of a case: two versions of the weights, moments and a flush half-way take four. */
static inline uint32_t kit_n_steps(void) {
  return opi_test_is_sanitized() ? 4 : KIT_TEN;
}

/* ---- models ---- */

typedef struct kit_subject {
  const char *name;
  const char *path;       /* below the source, or below ../shared */
  bool shared;            /* the latter */
  const char *not_causal; /* node that token slices are refused by; NULL: they are not */
} kit_subject;

/* gpt_8block llama_8block, then a GPT-2, a LLaMA, a BERT, a T5 of models/modern. */
extern const kit_subject kit_subjects[];
extern const size_t kit_n_subjects;

/* ---- schedules ---- */

enum {
  KIT_SLICED = 1,   /* token slices: causal models only */
  KIT_BUFFERED = 2, /* two versions of the weights: M >= stages */
  KIT_WRITTEN = 4,  /* its order is a file that the test writes */
  KIT_BOUNDED = 8,  /* in less memory than it would take: fewer micro-batches are kept */
  KIT_HALVED = 16,  /* backwards in two parts: micro-batches of two rows at least */
  KIT_FOUR = 32     /* two pipelines in each direction: a multiple of four ranks */
};

typedef struct kit_schedule {
  const char *name;
  uint32_t traits; /* KIT_* */
} kit_schedule;

/* Every id that ships, with its variants. */
extern const kit_schedule kit_schedules[];
extern const size_t kit_n_schedules;
/* Written orders of token slices whose backwards run in input and weight apart; the second in two
 * parts of the rows as well. */
extern const kit_schedule kit_pieces[2];
/* The schedule as plan_make takes it: the name, or file:PATH after writing it. In `text`. */
void kit_schedule_name(const kit_schedule *schedule, uint32_t n_ranks, uint32_t m, char *text,
                       size_t room);

/* The text that a constraint on a mini-batch of `rows` documents; NULL: the case must run. */
const char *kit_constraint(const kit_subject *subject, int64_t rows, const kit_schedule *schedule,
                           uint32_t n_ranks, uint32_t m);

/* ---- the types of activations and products ---- */

typedef struct kit_compute {
  const char *name;
  uint32_t dtype;
  double close;   /* relative to the largest, between two ways to cut one model */
  double weights; /* the same of gradients, and of weights after ten steps: in half types units
                     near zero switch, and steps add up */
} kit_compute;
extern const kit_compute kit_computes[3]; /* fp32, bf16, fp16 */

/* ---- the uncut model ---- */

typedef struct kit_optimizer {
  const char *name;
  opi_optimizer spec;
} kit_optimizer;
extern const kit_optimizer kit_optimizers[2]; /* SGD with momentum; AdamW with clipping */

typedef struct kit_uncut {
  double losses[KIT_TEN];
  double *weights; /* after the last step */
  double *noise;   /* allowed error of an element whose update is ill-conditioned */
} kit_uncut;

typedef struct kit_parameter {
  const char *name;
  size_t first, n; /* in the lists of elements */
} kit_parameter;

/* One model in one batch size, with everything that its cases share. */
typedef struct kit_bench {
  kit k;
  const kit_subject *subject;
  const kit_compute *compute;
  kit_place place; /* of the cases' plans */
  int64_t rows;
  kit_batch batches[KIT_TEN];
  kit_parameter params[KIT_PARAMS];
  uint32_t n_params;
  size_t n_elems;
  kit_uncut uncut[2][2]; /* by optimizer; 1: gradients are those of the version before */
  float *weights[2];     /* of a case: under the schedule, of the reference */
} kit_bench;

/* Path of the model; NULL after saying that it is skipped. */
const char *kit_subject_path(const kit_subject *subject);
opipe_status kit_bench_open(kit_bench *b, const kit_subject *subject, const kit_compute *compute,
                            int64_t rows);
void kit_bench_close(kit_bench *b);
/* All trained parameters by name, into dst [n_elems]. */
opipe_status kit_bench_weights(kit_bench *b, opi_session *session, uint32_t state, float *dst);
kit_case kit_bench_case(const kit_bench *b, const char *schedule, uint32_t n_ranks, uint32_t m,
                        uint32_t optimizer);
/* uncut.c: fills b->uncut. session: of the uncut model, whose steps change nothing and which keeps
 * gradients. */
opipe_status kit_uncut_train(kit_bench *b, opi_session *session);
/* Share of the elements that AdamW's condition lets differ by more than a tenth of the way that
 * they could go. */
double kit_uncut_loose(const kit_bench *b);

/* ---- cases ---- */

typedef struct kit_tally {
  uint32_t passed, refused, skipped, failed;
  double worst_loss;    /* relative to what is allowed, of all that passed */
  double worst_weights; /* the same */
} kit_tally;

/* Runs one case and counts it; fails the running test where it does not hold. */
void kit_case_run(kit_bench *b, const kit_schedule *schedule, uint32_t n_ranks, uint32_t m,
                  uint32_t optimizer, kit_tally *tally);
void kit_tally_print(const char *what, const kit_tally *tally);

#endif /* TESTS_TRAIN_CASES_H */
