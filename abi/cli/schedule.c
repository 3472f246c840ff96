/* SPDX-License-Identifier: Apache-2.0 */
/* schedule list|show|lower|check|simulate|draw|convert: schedules without a model. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tables.h"
#include "values.h"

enum {
  S_HELP = 256,
  S_JSON,
  S_RANKS,
  S_STAGES,
  S_MICROBATCHES,
  S_REPLICAS,
  S_FORMAT,
  S_ALIGNED,
  S_FORWARD,
  S_RECEIVES,
  S_RULE,
  S_COST,
  S_DIALECT,
  S_FROM,
  S_OUTPUT,
  S_PLUGIN
};

static const cli_option table[] = {
    {"ranks", "P", "ranks", S_RANKS},
    {"stages", "S", "stages (either of the two is enough for a name)", S_STAGES},
    {"microbatches", "M", "micro-batches of the whole mini-batch", S_MICROBATCHES},
    {"replicas", "N", "copies of the whole pipeline (1)", S_REPLICAS},
    {"forward", NULL, "the forward-only form", S_FORWARD},
    {"format", "csv|text|json", "show, lower, convert: form of the output (csv)", S_FORMAT},
    {"aligned", NULL, "show: with idle cells, aligned in time", S_ALIGNED},
    {"receives", "early|lazy[=DEPTH]", "lower, check: where receives stand (early)", S_RECEIVES},
    {"rule", "RULE", "check: tag (preset), stream, edge, pair, blocking or grouped", S_RULE},
    {"cost", "F=1,I=1,W=1,comm=0",
     "times per stage and whole micro-batch; F=5+5+9: of stage 0, 1, 2", S_COST},
    {"dialect", "torch|torch-old|opipe", "show, lower, convert: dialect of a CSV (opipe)",
     S_DIALECT},
    {"from", "torch|torch-old|opipe", "dialect of a FILE (opipe, which reads torch's as well)",
     S_FROM},
    {"output", "FILE", "write to FILE instead of standard output; also -o", S_OUTPUT},
    {"json", NULL, "machine-readable output", S_JSON},
    {"plugin", "PATH", "a plugin file or a folder of plugins, searched first (repeatable)",
     S_PLUGIN},
    {"help", NULL, "this text", S_HELP},
    {NULL, NULL, NULL, 0}};

typedef struct job {
  const char *verb, *what;
  uint32_t n_ranks, n_stages, n_microbatches, replicas;
  uint32_t format, dialect, from, rule, receive_depth;
  cli_costs costs;
  const char *output;
  bool json, aligned, forward, format_given;
  cli_options common; /* plugins */
  cli_session session;
  opipe_order *order;
} job;

static void print_help(void) {
  (void)printf(
      "usage: onnx-pipe schedule list|show|lower|check|simulate|draw|convert [FILE|NAME] "
      "[OPTION ...]\n\n"
      "  list      the schedules found and their options\n"
      "  show      compute order\n"
      "  lower     with messages, reductions, frees and steps\n"
      "  check     the proof under a transport's rule: status 1 when it refuses\n"
      "  simulate  makespan, span, bubble, peak stash\n"
      "  draw      an SVG picture\n"
      "  convert   a FILE in another form or dialect\n\n"
      "NAME is NAME[:key=value,...]; what exists as a file, or file:PATH, is read.\n\n");
  cli_print_options(table);
}

/* ---- values ---- */

static int take_number(const char *name, const char *value, uint32_t *out) {
  return cli_take_count(name, value, 1, 1u << 24, out);
}

static int take_receives(const char *value, uint32_t *out_depth) {
  *out_depth = strcmp(value, "early") == 0 ? 0 : 1;
  if (*out_depth == 0 || strcmp(value, "lazy") == 0)
    return CLI_DONE;
  if (strncmp(value, "lazy=", 5) == 0)
    return take_number("receives lazy", value + 5, out_depth);
  return cli_usage("--receives %s: early, lazy or lazy=DEPTH is needed", value);
}

static int take_option(int id, const char *value, job *j) {
  switch (id) {
    case S_JSON:
      j->json = true;
      return CLI_DONE;
    case S_RANKS:
      return take_number("ranks", value, &j->n_ranks);
    case S_STAGES:
      return take_number("stages", value, &j->n_stages);
    case S_MICROBATCHES:
      return take_number("microbatches", value, &j->n_microbatches);
    case S_REPLICAS:
      return take_number("replicas", value, &j->replicas);
    case S_FORMAT:
      j->format_given = true;
      return cli_take_choice("format", value, "text|json|csv", &j->format);
    case S_ALIGNED:
      j->aligned = true;
      return CLI_DONE;
    case S_FORWARD:
      j->forward = true;
      return CLI_DONE;
    case S_RECEIVES:
      return take_receives(value, &j->receive_depth);
    case S_RULE:
      return cli_take_choice("rule", value, "tag|stream|edge|pair|blocking|grouped", &j->rule);
    case S_COST:
      return cli_take_costs(value, &j->costs);
    case S_DIALECT:
      return cli_take_choice("dialect", value, "opipe|torch|torch-old", &j->dialect);
    case S_FROM:
      return cli_take_choice("from", value, "opipe|torch|torch-old", &j->from);
    case S_OUTPUT:
      j->output = value;
      return CLI_DONE;
    case S_PLUGIN:
      return cli_take_item("plugin", value, &j->common.plugins);
    default:
      return CLI_USAGE; /* getopt_long has said why */
  }
}

static int parse(int argc, char **argv, job *j) {
  struct option longs[CLI_OPTIONS_MOST];
  cli_long_options(table, longs);
  optind = 1;
  for (int id = 0; (id = getopt_long(argc, argv, "ho:", longs, NULL)) != -1;) {
    if (id == 'h' || id == S_HELP) {
      print_help();
      return -1;
    }
    const int status = take_option(id == 'o' ? S_OUTPUT : id, optarg, j);
    if (status != CLI_DONE)
      return status;
  }
  if (optind >= argc)
    return cli_usage("schedule takes list, show, lower, check, simulate, draw or convert");
  j->verb = argv[optind++];
  const int wanted = strcmp(j->verb, "list") != 0;
  if (argc - optind != wanted)
    return cli_usage("schedule %s takes %s, %d operands were given", j->verb,
                     wanted ? "one FILE or NAME" : "no operand", argc - optind);
  j->what = wanted ? argv[optind] : NULL;
  return CLI_DONE;
}

/* ---- orders ---- */

static const char *file_of(const char *what) {
  struct stat info;
  if (strncmp(what, "file:", 5) == 0)
    return what + 5;
  return stat(what, &info) == 0 && S_ISREG(info.st_mode) ? what : NULL;
}

/* Options that are given must say what the file says. */
static int check_numbers(const job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order_info info = {.struct_size = sizeof(info)};
  if (j->session.api->order_info(j->order, &info, &err) < 0)
    return cli_report(j->what, &err);
  const struct {
    const char *name;
    uint32_t given, found;
  } numbers[] = {{"ranks", j->n_ranks, info.n_ranks},
                 {"stages", j->n_stages, info.n_stages},
                 {"microbatches", j->n_microbatches, info.n_microbatches}};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    if (numbers[i].given != 0 && numbers[i].given != numbers[i].found)
      return cli_usage("--%s %u: the file has %u", numbers[i].name, numbers[i].given,
                       numbers[i].found);
  }
  return CLI_DONE;
}

static int read_file(job *j, const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *text = NULL;
  size_t n = 0;
  int status = cli_file_read(path, &text, &n);
  if (status != CLI_DONE)
    return status;
  if (j->session.api->order_read(j->session.context, text, n, j->from, &j->order, &err) < 0)
    status = cli_report(path, &err);
  free(text);
  return status == CLI_DONE ? check_numbers(j) : status;
}

static int open_order(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *path = file_of(j->what);
  if (path != NULL)
    return read_file(j, path);
  if (strcmp(j->verb, "convert") == 0)
    return cli_usage("convert %s: there is no such file", j->what);
  if ((j->n_ranks == 0 && j->n_stages == 0) || j->n_microbatches == 0)
    return cli_usage("%s %s: --ranks and --microbatches are needed (there is no file of that name)",
                     j->verb, j->what);
  const opipe_order_params params = {
      .struct_size = sizeof(params),
      .flags = (j->forward ? OPIPE_ORDER_FORWARD : 0) | (j->aligned ? OPIPE_ORDER_ALIGNED : 0),
      .schedule = j->what,
      .n_ranks = j->n_ranks,
      .n_stages = j->n_stages,
      .n_microbatches = j->n_microbatches,
      .replicas = j->replicas,
      .costs = &j->costs.costs};
  if (j->session.api->order_make(j->session.context, &params, &j->order, &err) < 0)
    return cli_report(j->what, &err);
  return CLI_DONE;
}

/* ---- output ---- */

typedef struct sink {
  FILE *file;
} sink;

static opipe_status write_sink(void *ctx, const void *data, size_t n) {
  const sink *s = ctx;
  return fwrite(data, 1, n, s->file) == n ? OPIPE_OK : OPIPE_E_IO;
}

/* What a verb writes, gathered first so that a file is made only when all is well. */
static opipe_status produce(job *j, opipe_order *order, sink *s, opipe_error *err) {
  const opipe_api *api = j->session.api;
  if (strcmp(j->verb, "simulate") == 0)
    return api->order_simulate(order, &j->costs.costs,
                               j->json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT, write_sink, s, err);
  if (strcmp(j->verb, "draw") == 0)
    return api->order_draw(order, &j->costs.costs, write_sink, s, err);
  const uint32_t format = j->format_given ? j->format
                          : j->json       ? OPIPE_FORMAT_JSON
                                          : OPIPE_FORMAT_CSV;
  return api->order_write(order, format, j->dialect, write_sink, s, err);
}

static int write_order(job *j, opipe_order *order) {
  opipe_error err = OPIPE_ERROR_INIT;
  char *data = NULL;
  size_t n = 0;
  sink s = {open_memstream(&data, &n)};
  if (s.file == NULL)
    return cli_usage("out of memory");
  int status = produce(j, order, &s, &err) < 0 ? cli_report(j->what, &err) : CLI_DONE;
  if (fclose(s.file) != 0 && status == CLI_DONE)
    status = cli_usage("out of memory");
  if (status == CLI_DONE && j->output != NULL)
    status = cli_write_file(j->output, data, n);
  else if (status == CLI_DONE && fwrite(data, 1, n, stdout) != n)
    status = CLI_FAILED;
  free(data);
  return status;
}

/* Status 1 when the proof refuses. */
static int prove(job *j) {
  static const char *const rules[] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order_info info = {.struct_size = sizeof(info)};
  opipe_order *lowered = NULL;
  const opipe_api *api = j->session.api;
  if (api->order_info(j->order, &info, &err) < 0)
    return cli_report(j->what, &err);
  opipe_status status = OPIPE_OK;
  if (info.lowered == 0)
    status = api->order_lower(j->order, j->receive_depth, 0, &lowered, &err);
  if (status == OPIPE_OK)
    status = api->order_check(lowered != NULL ? lowered : j->order, j->rule, &err);
  api->order_destroy(lowered);
  if (status == OPIPE_E_NOMEM || status == OPIPE_E_LIMIT)
    return cli_report(j->what, &err);
  if (j->json && status < 0)
    (void)printf("{\"rule\": \"%s\", \"proven\": false}\n", rules[j->rule]);
  else if (j->json)
    (void)printf("{\"rule\": \"%s\", \"proven\": true}\n", rules[j->rule]);
  else if (status == OPIPE_OK)
    (void)printf("proven: %u ranks, %u stages, %u micro-batches, rule %s\n", info.n_ranks,
                 info.n_stages, info.n_microbatches, rules[j->rule]);
  if (status == OPIPE_OK)
    return CLI_DONE;
  (void)cli_report(j->what, &err);
  return CLI_CHECK_FAILED;
}

static int lower(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order *lowered = NULL;
  /* PyTorch's runtime reduces, frees and steps by itself: its tables hold messages alone. */
  const uint32_t flags = j->dialect == OPIPE_DIALECT_OPIPE ? 0 : OPIPE_LOWER_MESSAGES;
  if (j->session.api->order_lower(j->order, j->receive_depth, flags, &lowered, &err) < 0)
    return cli_report(j->what, &err);
  const int status = write_order(j, lowered);
  j->session.api->order_destroy(lowered);
  return status;
}

static int list(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t format = j->json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT;
  if (j->session.api->schedule_list(j->session.context, format, cli_write_stdout, NULL, &err) < 0)
    return cli_report("schedule list", &err);
  return CLI_DONE;
}

static int run_verb(job *j) {
  static const struct {
    const char *verb;
    int (*run)(job *j);
  } verbs[] = {{"list", list}, {"lower", lower}, {"check", prove}};
  static const char *const writers[] = {"show", "simulate", "draw", "convert"};
  for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); ++i) {
    if (strcmp(j->verb, verbs[i].verb) != 0)
      continue;
    const int status = j->what == NULL ? CLI_DONE : open_order(j);
    return status == CLI_DONE ? verbs[i].run(j) : status;
  }
  for (size_t i = 0; i < sizeof(writers) / sizeof(writers[0]); ++i) {
    if (strcmp(j->verb, writers[i]) != 0)
      continue;
    const int status = open_order(j);
    return status == CLI_DONE ? write_order(j, j->order) : status;
  }
  return cli_usage("there is no 'schedule %s': list, show, lower, check, simulate, draw, convert",
                   j->verb);
}

int cli_schedule(int argc, char **argv) {
  static job j; /* large: not on the stack */
  j.costs.costs = cli_unit_costs;
  int status = parse(argc, argv, &j);
  if (status != CLI_DONE)
    return status < 0 ? CLI_DONE : status;
  status = cli_open(&j.common, &j.session);
  if (status == CLI_DONE)
    status = run_verb(&j);
  if (j.session.api != NULL)
    j.session.api->order_destroy(j.order);
  cli_close(&j.session);
  if (fflush(stdout) != 0 || ferror(stdout) != 0) {
    (void)fprintf(stderr, "onnx-pipe: cannot write the output\n");
    return CLI_FAILED;
  }
  return status;
}
