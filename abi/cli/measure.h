/* SPDX-License-Identifier: Apache-2.0 */
/* plan --measure: runs predicted plans on the devices that they are for. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "train.h"

/* Refuses a --measure that cannot be run here. */
int cli_check_measure(const cli_options *o);
/* Runs s->plan and further plans of the strategies that `strategy` was ranked with (api NULL:
 * none), in turn, and prints predicted and measured figures (with --json the beginning of an object
 * whose member "plan" the caller prints). s->plan and strategy->strategy then are those that
 * measured best. run: for training, gets that plan; NULL: requests with random inputs. */
int cli_measure(const cli_options *o, cli_session *s, cli_strategy *strategy, const train_run *run);

#endif /* CLI_MEASURE_H */
