/* SPDX-License-Identifier: Apache-2.0 */
/* plan --measure: plans that were predicted are run where they shall run. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "train.h"

/* Does --measure ask for what cannot be run here? */
int cli_check_measure(const cli_options *o);
/* Runs s->plan, and further plans of the strategies that `strategy` was ranked with (api NULL:
 * none), in turn; prints predicted and measured figures (with --json the beginning of an object,
 * whose member "plan" the caller prints). s->plan and strategy->strategy are then those that
 * measured best. run: of training, whose plan is set here; NULL: requests, their inputs drawn. */
int cli_measure(const cli_options *o, cli_session *s, cli_strategy *strategy, const train_run *run);

#endif /* CLI_MEASURE_H */
