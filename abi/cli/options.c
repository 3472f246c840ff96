/* SPDX-License-Identifier: Apache-2.0 */
/* One table per command: what getopt_long parses is what --help prints. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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
  O_TRACE
};

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
      {"batch-dim", "NAME", "the dimension that micro-batches split", O_BATCH},                    \
      {"depth", "N", "slots of every boundary tensor (2)", O_DEPTH},                               \
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
    {"seed", "N", "of everything random: nothing here, so far", O_SEED},
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
    {"data", "SOURCE",
     "a folder of NAME.npy, NAME=FILE.npy, FILE.npz (stored), or text:FILE (repeatable)", O_DATA},
    {"batch", "N", "samples per mini-batch (all up to 64, else 8)", O_BATCH_ROWS},
    {"shuffle", NULL, "another order of samples every epoch", O_SHUFFLE},
    TRAINED_ROWS,
    {"optimizer", "SPEC",
     "sgd:lr=..[,momentum=..,nesterov=1,decay=..], adam:.., "
     "adamw:lr=..,beta1=..,beta2=..,eps=..,decay=..,eps-mode=torch|hf (preset: adamw:lr=0.001)",
     O_OPTIMIZER},
    {"lr-schedule", "SPEC", "constant|linear|cosine[:warmup=N,total=N]", O_LR_SCHEDULE},
    {"clip", "NORM", "scale gradients down to this norm of all together", O_CLIP},
    {"no-decay", "GLOB", "parameters without decay (repeatable)", O_NO_DECAY},
    {"recompute", "none|stage|block|attention", "what backward computes again", O_RECOMPUTE},
    {"compute", "fp32|bf16|fp16", "type of activations and products", O_COMPUTE},
    {"steps", "N", "mini-batches of this run (one epoch)", O_STEPS},
    {"save", "DIR", "write a checkpoint there at the end", O_SAVE},
    {"save-every", "N", "also after every N mini-batches", O_SAVE_EVERY},
    {"resume", "DIR", "continue from a checkpoint", O_RESUME},
    {"save-model", "OUT.onnx", "write the model with its new weights", O_SAVE_MODEL},
    {"save-gradients", "OUT.safetensors", "of the last mini-batch, before clipping",
     O_SAVE_GRADIENTS},
    {"trace", "OUT.json|OUT.svg", "the last step, planned and measured", O_TRACE},
    {"reference", NULL, "compare with the plan's reference, and with the uncut model", O_REFERENCE},
    {"check-finite", NULL, "fail when a node's output is NaN or infinite", O_FINITE},
    {"seed", "N", "of dropout and --shuffle (0)", O_SEED},
    PLAN_ROWS,
    MODEL_ROWS,
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};
static const cli_option plugins_table[] = {
    {"why", NULL, "also every candidate that was refused, and why", O_WHY},
    COMMON_ROWS,
    {NULL, NULL, NULL, 0}};

typedef struct spec {
  const char *command, *operand;
  const cli_option *table;
} spec;
static const spec specs[] = {{"inspect", "MODEL", inspect_table},
                             {"plan", "MODEL", plan_table},
                             {"run", "MODEL|DIR", run_table},
                             {"train", "MODEL", train_table},
                             {"plugins", NULL, plugins_table}};

/* ---- errors ---- */

int cli_usage(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)fputs("onnx-pipe: ", stderr);
  (void)vfprintf(stderr, fmt, args);
  (void)fputs("\n", stderr);
  va_end(args);
  return CLI_USAGE;
}

int cli_report(const char *what, const opipe_error *err) {
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", what,
                err->message[0] == '\0' ? "failed" : err->message);
  return CLI_FAILED;
}

static void print_help(const spec *s) {
  (void)printf("usage: onnx-pipe %s [OPTION ...]%s%s\n\n", s->command,
               s->operand == NULL ? "" : " ", s->operand == NULL ? "" : s->operand);
  for (const cli_option *o = s->table; o->name != NULL; ++o) {
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

/* ---- values ---- */

static bool parse_u64(const char *text, uint64_t max, uint64_t *out) {
  char *end = NULL;
  if (text[0] < '0' || text[0] > '9')
    return false;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || value > max)
    return false;
  *out = value;
  return true;
}

static int take_count(const char *name, const char *text, uint64_t min, uint64_t max,
                      uint32_t *out) {
  uint64_t value = 0;
  if (!parse_u64(text, max, &value) || value < min) {
    return cli_usage("--%s %s: an integer from %llu to %llu is needed", name, text,
                     (unsigned long long)min, (unsigned long long)max);
  }
  *out = (uint32_t)value;
  return CLI_DONE;
}

static bool parse_size(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    double scale;
  } units[] = {{"", 1},          {"B", 1},    {"k", 1024},        {"K", 1024},
               {"KiB", 1024},    {"kB", 1e3}, {"KB", 1e3},        {"M", 1048576},
               {"MiB", 1048576}, {"MB", 1e6}, {"G", 1073741824.}, {"GiB", 1073741824.},
               {"GB", 1e9}};
  char *end = NULL;
  if (text[0] < '0' || text[0] > '9')
    return false;
  const double value = strtod(text, &end);
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); ++i) {
    if (strcmp(end, units[i].name) != 0)
      continue;
    if (!(value * units[i].scale < 9e18))
      return false;
    *out = (uint64_t)(value * units[i].scale);
    return true;
  }
  return false;
}

static int take_size(const char *name, const char *text, uint64_t *out) {
  return parse_size(text, out) ? CLI_DONE
                               : cli_usage("--%s %s: a size such as 300MiB is needed", name, text);
}

static int take_item(const char *name, const char *text, cli_list *list) {
  if (list->n == CLI_LIST_MOST)
    return cli_usage("--%s is given more than %d times", name, CLI_LIST_MOST);
  list->items[list->n++] = text;
  return CLI_DONE;
}

/* KIND[:INDEX][,memory=SIZE][,threads=N][,key=value for the backend ...] */
static int take_device(const char *text, cli_options *o) {
  if (o->n_devices == 64)
    return cli_usage("--device is given more than 64 times");
  char *own = o->device_text[o->n_devices];
  opipe_device_choice *choice = &o->devices[o->n_devices];
  if (strlen(text) >= sizeof(o->device_text[0]) / 2)
    return cli_usage("--device %s: too long", text);
  memset(choice, 0, sizeof(*choice));
  (void)snprintf(own, sizeof(o->device_text[0]), "%s", text);
  char *rest = own + strlen(own) + 1; /* options for the backend are gathered here */
  const size_t room = sizeof(o->device_text[0]) - (size_t)(rest - own);
  rest[0] = '\0';
  char *save = NULL;
  for (char *word = strtok_r(own, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
    if (choice->kind == NULL) {
      char *colon = strchr(word, ':');
      choice->kind = word;
      if (colon != NULL) {
        *colon = '\0';
        if (take_count("device", colon + 1, 0, 1023, &choice->index) != CLI_DONE)
          return CLI_USAGE;
      }
    } else if (strncmp(word, "memory=", 7) == 0) {
      if (take_size("device memory", word + 7, &choice->memory_bytes) != CLI_DONE)
        return CLI_USAGE;
    } else if (strncmp(word, "threads=", 8) == 0) {
      if (take_count("device threads", word + 8, 1, 4096, &choice->threads) != CLI_DONE)
        return CLI_USAGE;
    } else {
      const size_t used = strlen(rest);
      (void)snprintf(rest + used, room - used, "%s%s", used == 0 ? "" : ",", word);
    }
  }
  if (choice->kind == NULL || choice->kind[0] == '\0')
    return cli_usage("--device '%s' names no kind", text);
  choice->options = rest[0] == '\0' ? NULL : rest;
  ++o->n_devices;
  return CLI_DONE;
}

static int take_double(const char *name, const char *text, double *out) {
  char *end = NULL;
  *out = strtod(text, &end);
  if (end == text || *end != '\0' || !(*out >= 0))
    return cli_usage("--%s %s: a number >= 0 is needed", name, text);
  return CLI_DONE;
}

static int take_word(const char *name, const char *text, const char *a, const char *b,
                     bool *out_second) {
  *out_second = strcmp(text, b) == 0;
  if (*out_second || strcmp(text, a) == 0)
    return CLI_DONE;
  return cli_usage("--%s %s: %s or %s is needed", name, text, a, b);
}

/* Where node times come from, or the stages' times themselves. */
static int take_cost(const char *text, cli_options *o) {
  bool measured = false;
  if (strchr(text, '=') == NULL) {
    const int status = take_word("cost", text, "rates", "measured", &measured);
    o->cost = measured ? OPIPE_COST_MEASURED : OPIPE_COST_RATES;
    return status;
  }
  o->stage_costs.costs = cli_unit_costs;
  return cli_take_costs(text, &o->stage_costs);
}

static int take_dropout(const char *text, cli_options *o) {
  char *end = NULL;
  o->graph_dropout = strcmp(text, "graph") == 0;
  o->ratio_dropout = false;
  if (o->graph_dropout || strcmp(text, "off") == 0)
    return CLI_DONE;
  o->dropout_ratio = strtod(text, &end);
  o->ratio_dropout = end != text && *end == '\0' && o->dropout_ratio >= 0 && o->dropout_ratio < 1;
  return o->ratio_dropout
             ? CLI_DONE
             : cli_usage("--dropout %s: off, graph or a ratio below 1 is needed", text);
}

static int take_number(const char *name, const char *text, uint64_t *out) {
  return parse_u64(text, UINT64_MAX / 2, out) && *out != 0
             ? CLI_DONE
             : cli_usage("--%s %s: an integer above 0 is needed", name, text);
}

/* What `train` adds; -1: none of them. */
static int take_train_option(int id, const char *value, cli_options *o) {
  cli_train_texts *t = &o->t;
  switch (id) {
    case O_TRAIN:
      o->train = true;
      return CLI_DONE;
    case O_DATA:
      return take_item("data", value, &t->data);
    case O_BATCH_ROWS:
      return take_count("batch", value, 1, 1u << 30, &t->batch);
    case O_SHUFFLE:
      t->shuffle = true;
      return CLI_DONE;
    case O_LOSS:
      t->loss = value;
      return CLI_DONE;
    case O_OPTIMIZER:
      t->optimizer = value;
      return CLI_DONE;
    case O_LR_SCHEDULE:
      t->lr_schedule = value;
      return CLI_DONE;
    case O_CLIP:
      return take_double("clip", value, &t->clip);
    case O_NO_DECAY:
      return take_item("no-decay", value, &t->no_decay);
    case O_TRAINABLE:
    case O_FROZEN:
      t->globs_train[t->globs.n % CLI_LIST_MOST] = id == O_TRAINABLE;
      return take_item(id == O_TRAINABLE ? "trainable" : "frozen", value, &t->globs);
    case O_PARAMETER:
      return take_item("parameter", value, &t->parameters);
    case O_REPLICAS:
      t->replicas = value;
      return CLI_DONE;
    case O_RECOMPUTE:
      t->recompute = value;
      return CLI_DONE;
    case O_COMPUTE:
      t->compute = value;
      return CLI_DONE;
    case O_STEPS:
      return take_number("steps", value, &t->n_steps);
    case O_SAVE:
      t->save = value;
      return CLI_DONE;
    case O_SAVE_EVERY:
      return take_number("save-every", value, &t->save_every);
    case O_RESUME:
      t->resume = value;
      return CLI_DONE;
    case O_SAVE_MODEL:
      t->save_model = value;
      return CLI_DONE;
    case O_TRACE:
      t->trace = value;
      return CLI_DONE;
    case O_SAVE_GRADIENTS:
      t->save_gradients = value;
      return CLI_DONE;
    default:
      return -1;
  }
}

static int take_option(int id, const char *value, cli_options *o) {
  bool second = false;
  int status = take_train_option(id, value, o);
  if (status >= 0)
    return status;
  switch (id) {
    case O_JSON:
      o->json = true;
      break;
    case O_DEVICE:
      return take_device(value, o);
    case O_STAGES:
      return take_count("stages", value, 1, 4096, &o->n_stages);
    case O_RANKS:
      return take_count("ranks", value, 1, 4096, &o->n_ranks);
    case O_THREADS:
      return take_count("threads", value, 1, 4096, &o->n_threads);
    case O_CUT:
      o->cut = value;
      break;
    case O_PLAN:
      o->plan_file = value;
      break;
    case O_MEMORY:
      return take_size("memory", value, &o->memory_bytes);
    case O_SCHEDULE:
      o->schedule = value;
      break;
    case O_MICROBATCHES:
      return take_count("microbatches", value, 1, 1u << 20, &o->n_microbatches);
    case O_BATCH:
      o->batch = value;
      break;
    case O_DEPTH:
      return take_count("depth", value, 1, 1024, &o->depth);
    case O_TRANSPORT:
      o->transport = value;
      break;
    case O_COST:
      return take_cost(value, o);
    case O_IGNORE:
      o->ignore_annotations = true;
      break;
    case O_BIND:
      return take_item("bind", value, &o->bind);
    case O_PIN:
      return take_item("pin", value, &o->pins);
    case O_NO_FUSE:
      o->no_fuse = true;
      break;
    case O_DROPOUT:
      return take_dropout(value, o);
    case O_SYMLINKS:
      o->load_flags |= OPIPE_LOAD_ALLOW_SYMLINKS;
      break;
    case O_HARDLINKS:
      o->load_flags |= OPIPE_LOAD_ALLOW_HARDLINKS;
      break;
    case O_GRAPH_ONLY:
      o->load_flags |= OPIPE_LOAD_GRAPH_ONLY;
      break;
    case O_SEED:
      return parse_u64(value, UINT64_MAX - 1, &o->seed)
                 ? CLI_DONE
                 : cli_usage("--seed %s: an integer is needed", value);
    case O_PLUGIN:
      return take_item("plugin", value, &o->plugins);
    case O_ANNOTATE:
      o->annotate = value;
      break;
    case O_INPUT:
      return take_item("input", value, &o->inputs);
    case O_OUTPUT:
      o->output = value;
      break;
    case O_REQUESTS:
      return take_count("requests", value, 1, 1u << 30, &o->n_requests);
    case O_CHECK:
      o->check = value == NULL ? "max" : value;
      return take_word("check", o->check, "max", "element", &second);
    case O_RTOL:
      return take_double("rtol", value, &o->rtol);
    case O_ATOL:
      return take_double("atol", value, &o->atol);
    case O_REFERENCE:
      o->reference = true;
      break;
    case O_FINITE:
      o->check_finite = true;
      break;
    case O_WHY:
      o->why = true;
      break;
    default:
      return CLI_USAGE; /* getopt_long has said why */
  }
  return CLI_DONE;
}

/* An option that was given although a whole plan says it; NULL: none. */
static const char *said_by_plan(const cli_options *o) {
  const struct {
    bool given;
    const char *name;
  } all[] = {{o->n_devices != 0, "device"},
             {o->n_stages != 0, "stages"},
             {o->n_ranks != 0, "ranks"},
             {o->n_threads != 0, "threads"},
             {o->cut != NULL, "cut"},
             {o->memory_bytes != 0, "memory"},
             {o->schedule != NULL, "schedule"},
             {o->n_microbatches != 0, "microbatches"},
             {o->t.replicas != NULL, "replicas"},
             {o->batch != NULL, "batch-dim"},
             {o->depth != 0, "depth"},
             {o->transport != NULL, "transport"},
             {o->cost != OPIPE_COST_RATES || o->stage_costs.costs.struct_size != 0, "cost"},
             {o->ignore_annotations, "ignore-annotations"}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (all[i].given)
      return all[i].name;
  }
  return NULL;
}

int cli_parse(const char *command, int argc, char **argv, cli_options *out) {
  struct option longs[64];
  const spec *s = specs;
  size_t n = 0;
  while (strcmp(s->command, command) != 0)
    ++s;
  for (const cli_option *o = s->table; o->name != NULL; ++o, ++n) {
    const int kind = o->argument == NULL     ? no_argument
                     : o->argument[0] == '[' ? optional_argument
                                             : required_argument;
    longs[n] = (struct option){o->name, kind, NULL, o->id};
  }
  longs[n] = (struct option){NULL, 0, NULL, 0};
  memset(out, 0, sizeof(*out));
  out->rtol = out->atol = -1;
  out->train = out->graph_dropout = strcmp(command, "train") == 0;
  optind = 1;
  for (int id = 0; (id = getopt_long(argc, argv, "ho:", longs, NULL)) != -1;) {
    if (id == 'h' || id == O_HELP) {
      print_help(s);
      return -1;
    }
    const int status = take_option(id == 'o' ? O_OUTPUT : id, optarg, out);
    if (status != CLI_DONE)
      return status;
  }
  const int n_operands = argc - optind;
  if (n_operands != (s->operand != NULL)) {
    return cli_usage("%s takes %s, %d operands were given ('onnx-pipe %s --help')", command,
                     s->operand == NULL ? "no operand" : s->operand, n_operands, command);
  }
  if (s->operand != NULL)
    out->model = argv[optind];
  const char *besides = out->plan_file == NULL ? NULL : said_by_plan(out);
  return besides == NULL
             ? CLI_DONE
             : cli_usage("--plan %s is a whole plan: --%s is said by it", out->plan_file, besides);
}
