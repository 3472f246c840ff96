/* SPDX-License-Identifier: Apache-2.0 */
/* Planners in the command, for plan, simulate, run and train. */
#ifndef CLI_PLANNING_H
#define CLI_PLANNING_H

#include "cli.h"

/* True if the options ask for a planner: by name, or by giving devices or a cluster and nothing
 * that places stages on them (annotations of the bound model do, unless they are ignored). */
bool cli_asks_planner(const cli_options *o, const cli_session *s);
/* Refuses options that need a planner if there is none. */
int cli_check_planner(const cli_options *o, const cli_session *s);
/* Samples of the bound model: the first dimension of its first input. */
uint64_t cli_bound_batch(const cli_session *s);

/* A planner's answer; must be ended in any case. */
typedef struct cli_strategy {
  const opipe_api *api; /* NULL: nothing is held */
  opipe_profile *profile;
  opipe_strategy *strategy;
  cli_gathered cluster; /* text of the cluster, --cluster's or this machine's */
} cli_strategy;
void cli_strategy_end(cli_strategy *strategy);

/* Makes a profile from --arch, --profile or the bound model; `batch`: samples of the mini-batch. */
int cli_profile_make(const cli_options *o, const cli_session *s, const opipe_train_options *train,
                     uint64_t batch, const cli_gathered *cluster, opipe_profile **out_profile);
int cli_strategy_make(const cli_options *o, const cli_session *s, const opipe_train_options *train,
                      uint64_t batch, cli_strategy *out_strategy);
/* Makes the strategy and, if there is a model, its plan; *out_plan stays NULL without a model, and
 * for a hypothetical strategy. */
int cli_planner_plan(const cli_options *o, cli_session *s, const opipe_train_options *train,
                     uint64_t batch, cli_strategy *out_strategy, opipe_plan **out_plan);
/* Makes the plan of the next strategy ranked by the same search, from number *io_next on, that
 * fits, and returns that strategy too; moves *io_next past it. Both NULL: there is none. */
void cli_planner_next(const cli_options *o, cli_session *s, const cli_strategy *strategy,
                      const opipe_train_options *train, uint32_t *io_next,
                      opipe_strategy **out_strategy, opipe_plan **out_plan);
/* Prints it. is_all: there is no plan, so --output and --json give the strategy. */
int cli_give_strategy(const cli_options *o, const cli_strategy *strategy, bool is_all);

int cli_explain(const cli_options *o); /* plan explain A.json B.json */

#endif /* CLI_PLANNING_H */
