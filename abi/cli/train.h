/* SPDX-License-Identifier: Apache-2.0 */
/* One training run of the command, and what --reference compares. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "data.h"

/* What a run came to. Arrays are malloc'ed. */
typedef struct train_result {
  opipe_train_report *reports; /* [n_steps] */
  double *seconds;             /* [n_steps] */
  uint64_t n_steps;
  cli_tensor *weights, *gradients; /* [n_params] fp32, of the trained ones; with `keep` */
  uint32_t n_params;
} train_result;

typedef struct train_run {
  const cli_options *o;
  cli_session *s;
  opipe_plan *plan;
  const cli_data *data;
  const opipe_train_options *options;
  uint64_t n_steps;
  uint32_t batch;
  uint32_t session_flags; /* OPIPE_SESSION_* */
  bool quiet;             /* no lines, no files: a run that is compared with */
  bool keep;              /* weights and gradients into the result */
} train_run;

/* train_loop.c */
int train_go(const train_run *run, train_result *out);
void train_result_free(train_result *result);
/* Runs the plan's reference and the uncut model beside it; prints the largest differences. */
int train_reference(const train_run *run, const train_result *result);

#endif /* CLI_TRAIN_H */
