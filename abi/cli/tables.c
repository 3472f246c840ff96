/* SPDX-License-Identifier: Apache-2.0 */
/* The options of every command but `schedule`. */
#include "tables.h"

#include <string.h>

#define COMMON_ROWS                                                                           \
  {"json", NULL, "machine-readable output", O_JSON},                                          \
      {"plugin", "PATH", "a plugin file or a folder of plugins, searched first (repeatable)", \
       O_PLUGIN},                                                                             \
  {                                                                                           \
    "help", NULL, "this text", O_HELP                                                         \
  }
#define MODEL_ROWS                                                                                \
  {"bind", "DIM=N,...", "numbers for free dimensions (a name of the file, or INPUT.axis)",        \
   O_BIND},                                                                                       \
      {"pin", "NAME=VALUE", "fix an input before folding: a number, a list 1,2,3 or a .npy file", \
       O_PIN},                                                                                    \
      {"no-fuse", NULL, "recognise no patterns", O_NO_FUSE},                                      \
      {"dropout", "off|graph|RATIO",                                                              \
       "off (preset, but for train): identity; graph: as the operator text says", O_DROPOUT},     \
      {"allow-symlinks", NULL, "external data may be reached through symlinks", O_SYMLINKS}, {    \
    "allow-hardlinks", NULL, "external data may have several hard links", O_HARDLINKS             \
  }
#define PLAN_ROWS                                                                                  \
  {"device", "KIND[,memory=SIZE][,threads=N]",                                                     \
   "the devices in order, the last one repeats (repeatable)", O_DEVICE},                           \
      {"stages", "S", "number of stages", O_STAGES},                                               \
      {"ranks", "P", "number of ranks: as many stages as the schedule lays out on them", O_RANKS}, \
      {"threads", "T", "compute threads per rank", O_THREADS},                                     \
      {"cut", "SPEC",                                                                              \
       "t1,t2:consumer1+consumer2;t3: tensors per boundary, with optional consumers", O_CUT},      \
      {"plan", "FILE", "a whole plan", O_PLAN},                                                    \
      {"memory", "SIZE", "cap of every device that has none of its own", O_MEMORY},                \
      {"schedule", "NAME[:key=value,...]",                                                         \
       "gpipe (preset), or another that 'schedule list' has; file:PATH", O_SCHEDULE},              \
      {"microbatches", "M", "micro-batches of the whole mini-batch or request", O_MICROBATCHES},   \
      {"replicas", "N[,N...]",                                                                     \
       "train: copies of the pipeline; of single stages: they cut micro-batches", O_REPLICAS},     \
      {"batch-dim", "NAME[,NAME...]",                                                              \
       "the free dimensions that micro-batches split (preset: the first of every input, as far "   \
       "as "                                                                                       \
       "their lengths and the graph agree)",                                                       \
       O_BATCH},                                                                                   \
      {"depth", "N", "slots of a boundary tensor (2; more where it skips stages)", O_DEPTH},       \
      {"transport", "NAME", "local (preset) or a plugin's id, with options as NAME:key=value,...", \
       O_TRANSPORT},                                                                               \
      {"cost", "rates|measured|F=N,I=N,W=N",                                                       \
       "node times from device rates (preset) or measured; the stages' own in ms, F=5+5+9",        \
       O_COST},                                                                                    \
  {                                                                                                \
    "ignore-annotations", NULL, "do not cut where the file's pipeline_stage annotations say",      \
        O_IGNORE                                                                                   \
  }

#define TRAINED_ROWS                                                                             \
  {"loss", "SPEC",                                                                               \
   "cross-entropy:logits=NAME,labels=NAME[,ignore=-100][,shift=0|1][,smoothing=0], "             \
   "mse:output=NAME,target=NAME, bce:..., output:NAME (preset: the only scalar float output)",   \
   O_LOSS},                                                                                      \
      {"trainable", "GLOB", "train these initializers; the last match wins (repeatable)",        \
       O_TRAINABLE},                                                                             \
      {"frozen", "GLOB", "do not train these; the last match wins (repeatable)", O_FROZEN}, {    \
    "parameter", "NAME=FILE", "a graph input that becomes a trainable initializer, .pb or .npy", \
        O_PARAMETER                                                                              \
  }

/* Of train, and of plans for training. */
#define TRAIN_PLAN_ROWS                                                                            \
  {"data", "SOURCE",                                                                               \
   "a folder of NAME.npy, NAME=FILE.npy, FILE.npz (stored), or text:FILE (repeatable)", O_DATA},   \
      {"batch", "N", "samples per mini-batch (all up to 64, else 8)", O_BATCH_ROWS}, TRAINED_ROWS, \
      {"optimizer", "SPEC",                                                                        \
       "sgd:lr=..[,momentum=..,nesterov=1,decay=..], adam:.., "                                    \
       "adamw:lr=..,beta1=..,beta2=..,eps=..,decay=..,eps-mode=torch|hf "                          \
       "(preset: adamw:lr=0.001)",                                                                 \
       O_OPTIMIZER},                                                                               \
      {"lr-schedule", "SPEC", "constant|linear|cosine[:warmup=N,total=N]", O_LR_SCHEDULE},         \
      {"clip", "NORM", "scale gradients down to this norm of all together", O_CLIP},               \
      {"no-decay", "GLOB", "parameters without decay (repeatable)", O_NO_DECAY},                   \
      {"recompute", "none|stage|block|attention", "what backward computes again", O_RECOMPUTE},    \
      {"compute", "fp32|bf16|fp16", "type of activations and products", O_COMPUTE}, {              \
    "steps", "N", "mini-batches of this run (one epoch)", O_STEPS                                  \
  }

static const cli_option inspect_table[] = {
    MODEL_ROWS,   {"train", NULL, "what is trainable, and why", O_TRAIN},
    TRAINED_ROWS, {"graph-only", NULL, "weights need not be there", O_GRAPH_ONLY},
    COMMON_ROWS,  {NULL, NULL, NULL, 0}};
static const cli_option plan_table[] = {
    PLAN_ROWS,
    MODEL_ROWS,
    {"output", "FILE", "write the plan (JSON); also -o", O_OUTPUT},
    {"annotate", "OUT.onnx", "write a copy of the model with the plan as IR-11 annotations",
     O_ANNOTATE},
    {"train", NULL, "a plan for training, with what follows", O_TRAIN},
    TRAIN_PLAN_ROWS,
    {"seed", "N", "of dropout, with --train (0)", O_SEED},
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};
static const cli_option run_table[] = {
    PLAN_ROWS,
    MODEL_ROWS,
    {"input", "NAME=FILE", "an input tensor, .npy or .pb (repeatable)", O_INPUT},
    {"output", "DIR", "write every output as DIR/NAME.npy", O_OUTPUT},
    {"requests", "N", "a stream of N requests: throughput and latency", O_REQUESTS},
    {"check", "[max|element]", "compare with the outputs of a folder's data sets", O_CHECK},
    {"rtol", "X", "relative tolerance of --check", O_RTOL},
    {"atol", "X", "absolute tolerance of --check", O_ATOL},
    {"reference", NULL, "compare with the plan's stages by a plain loop, and with the uncut model",
     O_REFERENCE},
    {"check-finite", NULL, "fail when a node's output is NaN or infinite", O_FINITE},
    {"seed", "N", "of drawn inputs (0)", O_SEED},
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};
static const cli_option train_table[] = {
    TRAIN_PLAN_ROWS,
    {"shuffle", NULL, "another order of samples every epoch", O_SHUFFLE},
    {"save", "DIR", "write a checkpoint there at the end", O_SAVE},
    {"save-every", "N", "also after every N mini-batches", O_SAVE_EVERY},
    {"resume", "DIR", "continue from a checkpoint", O_RESUME},
    {"save-model", "OUT.onnx", "write the model with its new weights", O_SAVE_MODEL},
    {"save-gradients", "OUT.safetensors", "of the last mini-batch, before clipping",
     O_SAVE_GRADIENTS},
    {"trace", "OUT.json|OUT.svg", "the last step, planned and measured", O_TRACE},
    {"reference", NULL, "compare with the plan's reference, and with the uncut model", O_REFERENCE},
    {"check-finite", NULL, "look at every value; end at the first NaN or infinity, naming its node",
     O_FINITE},
    {"go-on", NULL, "skip steps whose loss or norm is not finite (preset: stop at the first)",
     O_GO_ON},
    {"seed", "N", "of dropout and --shuffle (0)", O_SEED},
    PLAN_ROWS,
    MODEL_ROWS,
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};
static const cli_option plugins_table[] = {
    {"why", NULL, "also every candidate that was refused, and why", O_WHY},
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};

static const cli_command commands[] = {{"inspect", "MODEL", inspect_table},
                                       {"plan", "MODEL", plan_table},
                                       {"run", "MODEL|DIR", run_table},
                                       {"train", "MODEL", train_table},
                                       {"plugins", NULL, plugins_table}};

const cli_command *cli_command_of(const char *name) {
  const cli_command *found = commands;
  while (strcmp(found->name, name) != 0)
    ++found;
  return found;
}

void cli_long_options(const cli_option *table, struct option out[CLI_OPTIONS_MOST]) {
  size_t n = 0;
  for (const cli_option *o = table; o->name != NULL && n < CLI_OPTIONS_MOST - 1; ++o, ++n) {
    const int kind = o->argument == NULL     ? no_argument
                     : o->argument[0] == '[' ? optional_argument
                                             : required_argument;
    out[n] = (struct option){o->name, kind, NULL, o->id};
  }
  out[n] = (struct option){NULL, 0, NULL, 0};
}

void cli_print_options(const cli_option *table) {
  for (const cli_option *o = table; o->name != NULL; ++o) {
    char left[80];
    const bool optional = o->argument != NULL && o->argument[0] == '[';
    (void)snprintf(left, sizeof(left), "--%s%s%s", o->name,
                   o->argument == NULL ? ""
                   : optional          ? "[="
                                       : " ",
                   o->argument == NULL ? "" : o->argument + (optional ? 1 : 0));
    (void)printf("  %-40s %s\n", left, o->help);
  }
}
