/* SPDX-License-Identifier: Apache-2.0 */
/* Options that apply without a model: to a description, a profile's file, this machine, and two
 * files that are compared. Others are refused, not ignored. */
#include <string.h>

#include "tables.h"

enum {
  ARCH = 1,             /* plan, simulate --arch */
  FILED = 2,            /* plan, simulate --profile */
  SHAPE = 4,            /* profile --arch */
  MACHINE = 8,          /* profile --cluster */
  EXPLAIN = 16,         /* plan explain */
  ASKED = ARCH | FILED, /* with a planner */
  LAYERS = ASKED | SHAPE,
  ALL = LAYERS | MACHINE | EXPLAIN
};

/* Why the option is refused without a model; NULL: the generic reason. */
typedef struct option_row {
  const char *name;
  uint32_t of; /* kinds to which it applies */
  const char *why;
} option_row;

static const option_row rows[] = {
    {"json", ALL, NULL},
    {"plugin", ALL, NULL},
    {"html", ASKED | EXPLAIN, NULL},
    {"output", LAYERS | MACHINE, NULL},
    {"arch", LAYERS, NULL},
    {"profile", ASKED, NULL},
    {"samples", LAYERS, "applies to a model's layers"},
    {"cluster", LAYERS | MACHINE, NULL},
    {"device", ASKED | MACHINE, "is the device that a model is measured on"},
    {"threads", ASKED | MACHINE, "applies to the device on which a model is measured"},
    {"fallback", ASKED, NULL},
    {"transport", ASKED | MACHINE, "applies to measured links"},
    {"launcher", MACHINE, "applies to measured links"},
    {"cost", LAYERS | MACHINE, NULL},
    {"memory", ASKED, NULL},
    {"batch", LAYERS, NULL},
    {"train", LAYERS, NULL},
    {"stages", ASKED, NULL},
    {"ranks", ASKED, NULL},
    {"schedule", ASKED, NULL},
    {"microbatches", ASKED, NULL},
    {"replicas", ASKED, NULL},
    {"tensor", 0, "divides the graph of a model"},
    {"offload", 0, "moves stashes of a model's plan"},
    {"offload-memory", 0, "caps stashes of a model's plan"},
    {"recompute", ASKED, NULL},
    {"planner", ASKED, NULL},
    {"auto", ASKED, NULL},
    {"budget", ASKED, NULL},
    {"within", ASKED, NULL},
    {"allow-stale", ASKED, NULL},
    {"hypothetical", ASKED, NULL},
    {"rows", ASKED, NULL},
    {"trace", ASKED, NULL},
    {"collective", ASKED, NULL},
    {"sharded", ASKED, NULL},
    {"scattered", ASKED, NULL},
    {"pipeline-first", ASKED, NULL},
    {"annotate", 0, "writes into a model"},
    {"measure", ASKED, NULL}, /* cli_check_measure's refusal */
    {"cut", 0, "names tensors of a model"},
    {"plan", 0, "is a plan of a model"},
    {"improve", 0, "improves the order of a model's plan"},
    {"depth", 0, "applies to boundary tensors of a model's plan"},
    {"batch-dim", 0, "names dimensions of a model"},
    {"nodes", 0, "applies to the nodes of a model"},
    {"ignore-annotations", 0, "applies to the annotations of a model"},
    {"bind", 0, "applies to the free dimensions of a model"},
    {"pin", 0, "applies to the inputs of a model"},
    {"data", 0, "applies to the inputs of a model"},
    {"loss", 0, "names tensors of a model"},
    {"optimizer", 0, "applies to the training of a model (bytes are Adam's)"},
    {"compute", 0, "applies to the tensors of a model (a description has type=)"},
};

static const option_row *row_of(const char *name) {
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    if (strcmp(rows[i].name, name) == 0)
      return &rows[i];
  }
  return NULL;
}

/* Kind of a question without a model; 0: it has one, or is not about layers. */
static uint32_t kind_of(const cli_command *c, const cli_options *o) {
  const bool plans = c->run == cli_plan || c->run == cli_simulate;
  if (c->run == cli_plan && o->n_operands > 1)
    return EXPLAIN;
  if (c->run == cli_profile &&
      (o->planner.arch != NULL || (o->planner.machine && o->n_operands == 0)))
    return o->planner.arch != NULL ? SHAPE : MACHINE;
  if (plans && o->planner.arch != NULL)
    return ARCH;
  return plans && o->planner.profile != NULL ? FILED : 0u;
}

static int refuse(const cli_option *option, const option_row *row, uint32_t kind) {
  const char *why = row == NULL || row->why == NULL ? "applies to a model" : row->why;
  if (kind == EXPLAIN)
    return cli_usage("plan explain takes no --%s: --html and --json do", option->name);
  if (kind == MACHINE) {
    return cli_usage("profile --cluster: --%s %s, but this profiles the machine", option->name,
                     why);
  }
  return cli_usage("--%s %s: --%s has none", option->name, why, kind == FILED ? "profile" : "arch");
}

/* Checks values of options that do apply, also in combination with others. */
static int check_values(const cli_options *o, uint32_t kind) {
  const bool serves = (kind & ASKED) != 0 && o->planner.objective == OPIPE_OBJECTIVE_LATENCY;
  const bool rates = o->plan.cost == OPIPE_COST_RATES && o->plan.stage_costs.costs.struct_size == 0;
  if (o->planner.arch != NULL && o->planner.profile != NULL) {
    return cli_usage("--arch %s, --profile %s: each replaces the model, give only one",
                     o->planner.arch, o->planner.profile);
  }
  if (cli_was_given(o, "cost") && kind == FILED)
    return cli_usage("--cost: --profile %s already has the times of layers", o->planner.profile);
  if (cli_was_given(o, "cost") && !rates && (kind & (ARCH | SHAPE)) != 0)
    return cli_usage("--cost: --arch uses rates, which give the times of layers");
  if (serves && o->train)
    return cli_usage("--train: --auto=latency applies to requests, not to training");
  if (serves && o->t.recompute != NULL) {
    return cli_usage("--recompute %s: --auto=latency applies to requests, not to training",
                     o->t.recompute);
  }
  if ((kind & ASKED) != 0 && o->plan.cluster != NULL && o->plan.transport != NULL) {
    return cli_usage("--transport %s: --cluster %s already gives the links", o->plan.transport,
                     o->plan.cluster);
  }
  return CLI_DONE;
}

int cli_check_layers(const cli_command *command, const cli_options *o) {
  const uint32_t kind = kind_of(command, o);
  for (uint32_t i = 0; kind != 0 && i < cli_n_option_rows; ++i) {
    const cli_option *option = &cli_option_rows[i];
    const option_row *row = row_of(option->name);
    const bool given = (o->given[i / 64] >> i % 64 & 1) != 0;
    if (given && (row == NULL || (row->of & kind) == 0))
      return refuse(option, row, kind);
  }
  return kind == 0 ? CLI_DONE : check_values(o, kind);
}
