/* SPDX-License-Identifier: Apache-2.0 */
/* One training run of the command, and what --reference compares. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include <jansson.h>
#include <math.h>

#include "data.h"
#include "planning.h"

typedef struct train_part { /* part of the state that a session continues from */
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

/* Results of a run. Arrays are malloc'ed. */
typedef struct train_result {
  opipe_train_report *reports; /* [n_steps] */
  double *seconds;             /* [n_steps] */
  uint64_t n_steps;
  uint64_t n_not_finite;           /* steps not applied */
  char stopped[600];               /* message about the step that ended the run; "": none did */
  cli_tensor *weights, *gradients; /* [n_params] fp32, of the trained ones; with `keep` */
  uint32_t n_params;
  uint32_t coarsest; /* coarsest type that values are rounded to; with `keep` */
  train_state start; /* state that it continued from; with `keep`, n = 0: the beginning */
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
  bool quiet;               /* prints and writes nothing: a run for comparison */
  uint64_t *fullest_bytes;  /* of the fullest rank, as measured by the session; NULL: not asked for
                             */
  bool keep;                /* keep weights and gradients in the result */
  const train_state *start; /* state to continue from, in place of --resume's folder; NULL: that */
  train_noise *noise;       /* possible effect of rounding on the weights; NULL: not asked for */
} train_run;

/* Everything that a training plan is made from. Large: not for the stack; zero it before opening.
 */
typedef struct train_setup {
  cli_options o; /* own copy of the command's */
  cli_session s;
  cli_data data;
  cli_train_own own;
  opipe_train_options options;
  cli_strategy strategy; /* if a planner was asked */
  json_t *plan_file;     /* --plan, as JSON */
  train_run run;         /* made from the above */
  bool joins;            /* set before: this command runs with other processes of a launcher */
} train_setup;
/* Loads, binds, plans. needs_data: refuses to go on without data. */
int train_setup_open(train_setup *setup, const cli_options *given, bool needs_data);
/* The same without a plan. */
int train_setup_bind(train_setup *setup, const cli_options *given, bool needs_data);
/* Samples of the bound mini-batch. */
uint64_t train_setup_batch(const train_setup *setup);
void train_setup_close(train_setup *setup); /* also after opening has failed */

/* train_names.c */
/* Refuses a pattern of --trainable or --frozen that matches nothing. */
int cli_check_globs(const cli_options *o, const cli_session *s, const opipe_train_options *options);
/* Adds "file": how many float initializers of the file became how many parameters. */
int cli_put_account(const cli_options *o, const cli_session *s, const opipe_train_options *options,
                    FILE *json);

/* train_loop.c */
int train_go(const train_run *run, train_result *out);
void train_result_free(train_result *result);
/* True if a rank of the plan keeps a second version of its weights. */
bool train_is_double_buffered(const train_run *run);
/* A number for display: NaN without a sign. */
static inline double train_shown(double x) {
  return isnan(x) ? fabs(x) : x;
}
/* Relative tolerance of a type: 1e-5 in fp32, 2e-3 in fp16, 2e-2 in bf16. */
double train_tolerance(uint32_t type);
/* Also runs the plan's reference and the uncut model; prints the largest differences, in JSON as a
 * member of an object. */
int train_reference(const train_run *run, const train_result *result, const cli_json *json);

#endif /* CLI_TRAIN_H */
