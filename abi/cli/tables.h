/* SPDX-License-Identifier: Apache-2.0 */
/* One table of options per command: what getopt_long parses is what --help prints. */
#ifndef CLI_TABLES_H
#define CLI_TABLES_H

#include "cli.h"

enum {
  O_HELP = 256,
  O_JSON,
  O_DEVICE,
  O_STAGES,
  O_RANKS,
  O_THREADS,
  O_CUT,
  O_PLAN,
  O_MEMORY,
  O_SCHEDULE,
  O_MICROBATCHES,
  O_BIND,
  O_PIN,
  O_NO_FUSE,
  O_DROPOUT,
  O_SEED,
  O_PLUGIN,
  O_SYMLINKS,
  O_HARDLINKS,
  O_DEPTH,
  O_TRANSPORT,
  O_COST,
  O_BATCH,
  O_IGNORE,
  O_ANNOTATE,
  O_INPUT,
  O_OUTPUT,
  O_REQUESTS,
  O_CHECK,
  O_RTOL,
  O_ATOL,
  O_REFERENCE,
  O_FINITE,
  O_WHY,
  O_GRAPH_ONLY,
  O_TRAIN,
  O_DATA,
  O_BATCH_ROWS,
  O_SHUFFLE,
  O_LOSS,
  O_OPTIMIZER,
  O_LR_SCHEDULE,
  O_CLIP,
  O_NO_DECAY,
  O_TRAINABLE,
  O_FROZEN,
  O_PARAMETER,
  O_REPLICAS,
  O_RECOMPUTE,
  O_COMPUTE,
  O_STEPS,
  O_SAVE,
  O_SAVE_EVERY,
  O_RESUME,
  O_SAVE_MODEL,
  O_SAVE_GRADIENTS,
  O_TRACE,
  O_GO_ON
};

/* The table of inspect, plan, run, train or plugins. operand: what stands behind the options, NULL:
 * nothing. */
typedef struct cli_command {
  const char *name, *operand;
  const cli_option *table; /* ended by a row without a name */
} cli_command;
const cli_command *cli_command_of(const char *name);

enum { CLI_OPTIONS_MOST = 64 };
/* The same rows for getopt_long, ended by zeros. */
void cli_long_options(const cli_option *table, struct option out[CLI_OPTIONS_MOST]);
void cli_print_options(const cli_option *table);

#endif /* CLI_TABLES_H */
