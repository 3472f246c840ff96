/* SPDX-License-Identifier: Apache-2.0 */
/* One training run of the command, and what --reference compares. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include <jansson.h>
#include <math.h>

#include "data.h"
#include "planning.h"

typedef struct train_part { /* of what a session goes on from */
  char *name;
  void *data;
  size_t n_bytes;
  uint32_t state, version; /* OPIPE_STATE_* */
} train_part;

typedef struct train_state { /* train_state.h */
  train_part *parts;         /* [n] */
  uint32_t n;
  opipe_train_clock clock;
  uint64_t first; /* mini-batches before */
} train_state;

/* What a run came to. Arrays are malloc'ed. */
typedef struct train_result {
  opipe_train_report *reports; /* [n_steps] */
  double *seconds;             /* [n_steps] */
  uint64_t n_steps;
  uint64_t n_not_finite;           /* of them, not applied */
  char stopped[600];               /* the message about the step that ended the run; "": none
                                      did */
  cli_tensor *weights, *gradients; /* [n_params] fp32, of the trained ones; with `keep` */
  uint32_t n_params;
  uint32_t coarsest; /* type that values are rounded to most; with `keep` */
  train_state start; /* what it went on from; with `keep`, n = 0: the beginning */
} train_result;

typedef struct train_noise train_noise; /* train_noise.h */

typedef struct train_run {
  const cli_options *o;
  cli_session *s;
  opipe_plan *plan;
  const cli_data *data;
  const opipe_train_options *options;
  uint64_t n_steps;
  uint32_t batch;
  uint32_t session_flags;   /* OPIPE_SESSION_* */
  bool quiet;               /* no lines, no files: a run that is compared with */
  uint64_t *fullest_bytes;  /* of the rank that has most, by the session; NULL: nobody asks */
  bool keep;                /* weights and gradients into the result */
  const train_state *start; /* to go on from, in place of --resume's folder; NULL: that */
  train_noise *noise;       /* what rounding may do to the weights; NULL: nobody asks */
} train_run;

/* What a training plan is made from. Large: not on the stack; zeroed before it is opened. */
typedef struct train_setup {
  cli_options o; /* the command's, of its own */
  cli_session s;
  cli_data data;
  cli_train_own own;
  opipe_train_options options;
  cli_strategy strategy; /* where a planner was asked */
  json_t *plan_file;     /* --plan, as JSON */
  train_run run;         /* of all this */
} train_setup;
/* Loads, binds, plans. `needs_data`: without any it is refused. */
int train_setup_open(train_setup *setup, const cli_options *given, bool needs_data);
/* The same without a plan. */
int train_setup_bind(train_setup *setup, const cli_options *given, bool needs_data);
/* Samples of the mini-batch that it is bound to. */
uint64_t train_setup_batch(const train_setup *setup);
void train_setup_close(train_setup *setup); /* whatever came of opening */

/* train_names.c */
/* A pattern of --trainable or --frozen that matches nothing is a wrong option. */
int cli_check_globs(const cli_options *o, const cli_session *s, const opipe_train_options *options);
/* Adds "file": how many float initializers of the file became how many parameters. */
int cli_put_account(const cli_options *o, const cli_session *s, const opipe_train_options *options,
                    FILE *json);

/* train_loop.c */
int train_go(const train_run *run, train_result *out);
void train_result_free(train_result *result);
/* Does a rank of the plan keep a second version of its weights? */
bool train_is_double_buffered(const train_run *run);
/* A number for people: NaN without a sign. */
static inline double train_shown(double x) {
  return isnan(x) ? fabs(x) : x;
}
/* What values of a type may be off by, relative: 1e-5 in fp32, 2e-3 in fp16, 2e-2 in bf16. */
double train_tolerance(uint32_t type);
/* Runs the plan's reference and the uncut model beside it; prints the largest differences, in JSON
 * as a member of an object. */
int train_reference(const train_run *run, const train_result *result, const cli_json *json);

#endif /* CLI_TRAIN_H */
