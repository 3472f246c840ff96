/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a command line into one struct, by the rows of tables.c. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "tables.h"

/* ---- errors ---- */

static char last_said[sizeof(((opipe_error *)0)->message)]; /* the main thread's */

const char *cli_last_said(void) {
  return last_said[0] == '\0' ? "it has failed" : last_said;
}

static void say(const char *fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  cli_progress_end();
  (void)vsnprintf(last_said, sizeof last_said, fmt, again);
  va_end(again);
  (void)fputs("onnx-pipe: ", stderr);
  (void)vfprintf(stderr, fmt, args);
  (void)fputs("\n", stderr);
}

int cli_usage(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  say(fmt, args);
  va_end(args);
  return CLI_USAGE;
}

int cli_fail(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  say(fmt, args);
  va_end(args);
  return CLI_FAILED;
}

/* True if the message itself has `what`: a path, a name in quotes, or its first word. */
static bool names(const char *message, const char *what) {
  const size_t n = strlen(what);
  if (n != 0 && strncmp(message, what, n) == 0 && message[n] == ' ')
    return true;
  const char *at = n == 0 ? NULL : strstr(message, what);
  return at != NULL &&
         (strchr(what, '/') != NULL || (at > message && at[-1] == '\'' && at[n] == '\''));
}

int cli_report(const char *what, const opipe_error *err) {
  const char *message = err->message[0] == '\0' ? "failed" : err->message;
  cli_progress_end();
  const bool named = names(message, what);
  (void)snprintf(last_said, sizeof last_said, "%.100s%s%.390s", named ? "" : what,
                 named ? "" : ": ", message);
  (void)fprintf(stderr, "onnx-pipe: %s%s%s\n", named ? "" : what, named ? "" : ": ", message);
  return CLI_FAILED;
}

int cli_report_name(const char *what, const opipe_error *err) {
  const int status = cli_report(what, err);
  return err->status == OPIPE_E_NOTFOUND ? CLI_USAGE : status;
}

bool cli_is_missing(int number) {
  return number == ENOENT || number == ENOTDIR;
}

bool cli_is_there(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 || !cli_is_missing(errno);
}

/* ---- the command line ---- */

enum { FIRST_ID = 256 }; /* getopt_long's value for a row: this plus the row's number */

/* The command's rows for getopt_long. `letters` has room for two characters per row, and three
 * more.
 */
static void make_getopt(const cli_command *command, struct option *longs, char *letters) {
  if (command->run == cli_launch)
    *letters++ = '+'; /* the options of the command that is launched are its own */
  *letters++ = ':';   /* getopt_long prints nothing, and reports missing values */
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    const cli_option *o = &cli_option_rows[i];
    const int kind = o->argument == NULL     ? no_argument
                     : o->argument[0] == '[' ? optional_argument
                                             : required_argument;
    if (!cli_takes(command, o))
      continue;
    *longs++ = (struct option){o->name, kind, NULL, FIRST_ID + (int)i};
    if (o->letter != 0)
      *letters++ = o->letter;
    if (o->letter != 0 && o->argument != NULL)
      *letters++ = ':';
  }
  *longs = (struct option){NULL, 0, NULL, 0};
  *letters = '\0';
}

/* The row of getopt_long's value; NULL: none. */
static const cli_option *row_of(const cli_command *command, int id) {
  if (id >= FIRST_ID)
    return &cli_option_rows[id - FIRST_ID];
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    if (cli_option_rows[i].letter == id && cli_takes(command, &cli_option_rows[i]))
      return &cli_option_rows[i];
  }
  return NULL;
}

/* ---- unknown options ---- */

/* Refuses a word that begins several options, and names them. False: fewer than two. */
static bool refuse_ambiguous(const cli_command *c, const char *word, size_t n) {
  char which[512] = "";
  uint32_t found = 0;
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    const char *name = cli_option_rows[i].name;
    if (!cli_takes(c, &cli_option_rows[i]) || strncmp(name, word, n) != 0)
      continue;
    const size_t used = strlen(which);
    (void)snprintf(which + used, sizeof(which) - used, "%s--%s", found == 0 ? "" : ", ", name);
    ++found;
  }
  if (found > 1)
    (void)cli_usage("%s: option '--%.*s' may be any of %s", c->name, (int)n, word, which);
  return found > 1;
}

/* Refuses `dashes` and a word, which may be an option with a dash missing. */
static int refuse_word(const cli_command *c, const char *dashes, const char *word) {
  opi_nearest nearest = {.word = word, .n = strcspn(word, "=")};
  if (strcmp(dashes, "--") == 0 && refuse_ambiguous(c, word, nearest.n))
    return CLI_USAGE;
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    if (cli_takes(c, &cli_option_rows[i]))
      opi_nearest_look(&nearest, cli_option_rows[i].name);
  }
  if (nearest.found == NULL) {
    return cli_usage("%s: there is no option '%s%.*s' ('onnx-pipe %s --help')", c->name, dashes,
                     (int)nearest.n, word, c->name);
  }
  return cli_usage("%s: there is no option '%s%.*s'; did you mean '--%s'?", c->name, dashes,
                   (int)nearest.n, word, nearest.found);
}

/* Refuses the option at which getopt_long stopped: `id` is ':' if a value is missing, else '?'. */
static int refuse_option(const cli_command *c, int id, char **argv) {
  const char letter[] = {(char)optopt, '\0'};
  if (optopt == 0)
    return refuse_word(c, "--", argv[optind - 1] + strlen("--"));
  const cli_option *row = row_of(c, optopt);
  if (row != NULL && id == ':')
    return cli_usage("%s: --%s needs a value: %s", c->name, row->name, row->argument);
  if (row != NULL)
    return cli_usage("%s: --%s takes no value", c->name, row->name);
  /* A letter; the whole word if getopt_long has not moved past it. */
  const char *word = argv[optind] == NULL ? "" : argv[optind];
  return refuse_word(c, "-", word[0] == '-' && word[1] == optopt ? word + 1 : letter);
}

/* Reads the options. given [rows]: set for those present. -1: the help was printed. */
static int take_options(const cli_command *command, int argc, char **argv, bool *given,
                        cli_options *out) {
  struct option longs[CLI_OPTIONS_MOST + 1];
  char letters[2 * CLI_OPTIONS_MOST + 3];
  make_getopt(command, longs, letters);
  optind = 1;
  opterr = 0;
  for (int id = 0; (id = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    const cli_option *option = row_of(command, id);
    if (option == NULL)
      return refuse_option(command, id, argv);
    if (optarg != NULL && optarg[0] == '\0')
      return cli_usage("--%s: its value is empty, %s is needed", option->name, option->argument);
    if (option->take == NULL) {
      cli_print_help(command);
      return -1;
    }
    const int status = option->take(option, optarg, out);
    if (status != CLI_DONE)
      return status;
    const size_t row = (size_t)(option - cli_option_rows);
    given[row] = true;
    out->given[row / 64] |= UINT64_C(1) << row % 64;
  }
  return CLI_DONE;
}

bool cli_was_given(const cli_options *o, const char *name) {
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    if ((o->given[i / 64] >> i % 64 & 1) != 0 && strcmp(cli_option_rows[i].name, name) == 0)
      return true;
  }
  return false;
}

static bool is_in_plan(const cli_option *option) {
  return option->in_plan;
}

/* The first given option for which `is` holds; NULL: none. */
static const char *first_given(const bool *given, bool (*is)(const cli_option *option)) {
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    if (given[i] && is(&cli_option_rows[i]))
      return cli_option_rows[i].name;
  }
  return NULL;
}

static int take_operands(const cli_command *c, int n, char **operands, cli_options *out) {
  out->operands = operands;
  out->n_operands = (uint32_t)n;
  if (c->usage != NULL)
    return CLI_DONE;
  const bool layers = out->planner.arch != NULL || out->planner.profile != NULL;
  if (layers && n == 0)
    return CLI_DONE;
  if (layers && n == 1) {
    return cli_usage("%s %s: --%s replaces the model", c->name, operands[0],
                     out->planner.arch != NULL ? "arch" : "profile");
  }
  if (c->run == cli_plan && n > 1) {
    opi_nearest verb = {.word = operands[0], .n = strlen(operands[0])};
    opi_nearest_look(&verb, "explain");
    if (strcmp(operands[0], "explain") == 0)
      return CLI_DONE; /* it counts them itself */
    if (verb.found != NULL)
      return cli_usage("there is no 'plan %s'; did you mean 'explain'?", operands[0]);
  }
  if (n != (c->operand != NULL)) {
    return cli_usage("%s takes %s, %d operands were given ('onnx-pipe %s --help')", c->name,
                     c->operand == NULL ? "no operand" : c->operand, n, c->name);
  }
  if (n != 0 && operands[0][0] == '\0')
    return cli_usage("%s takes %s, its name is empty", c->name, c->operand);
  out->model = c->operand != NULL ? operands[0] : NULL;
  return CLI_DONE;
}

/* An option for every device but the CPU, which has nothing to fall back on. */
static int say_fallback(cli_options *o) {
  static const char *const words[] = {"fallback=none", "fallback=cpu"};
  uint32_t n = 0;
  if (o->on.fallback == CLI_FALLBACK_UNSAID)
    return CLI_DONE;
  for (uint32_t d = 0; d < o->on.n_devices; ++d) {
    opipe_device_choice *choice = &o->on.devices[d];
    if (strcmp(choice->kind, "cpu") == 0)
      continue;
    cli_add_device_option(o, d, words[o->on.fallback]);
    ++n;
  }
  return n != 0 ? CLI_DONE
                : cli_usage("--fallback %s: no --device other than cpu is given",
                            words[o->on.fallback] + strlen("fallback="));
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out) {
  bool given[CLI_OPTIONS_MOST] = {false};
  _Static_assert(CLI_OPTIONS_MOST <= 8 * sizeof(out->given), "a bit for each row");
  const bool plays = command->run == cli_simulate;
  const bool is_plan = command->run == cli_plan || plays;
  memset(out, 0, sizeof(*out));
  out->launch.tag = 1;
  out->run.rtol = out->run.atol = out->team.silence_s = -1;
  out->on.fallback = CLI_FALLBACK_UNSAID;
  out->order.format = CLI_FORMAT_UNSAID;
  out->plan.cost = command->run == cli_profile ? CLI_COST_UNSAID : OPIPE_COST_RATES;
  out->train = out->graph.graph_dropout = command->run == cli_train;
  int status = take_options(command, argc, argv, given, out);
  if (status != CLI_DONE)
    return status;
  status = say_fallback(out);
  if (status != CLI_DONE)
    return status;
  const char *of_training = first_given(given, cli_is_of_training);
  const bool may_train = is_plan || command->run == cli_profile;
  const bool has_model = out->planner.arch == NULL && out->planner.profile == NULL;
  status = take_operands(command, argc - optind, argv + optind, out);
  if (status == CLI_DONE)
    status = cli_check_layers(command, out);
  if (status == CLI_DONE && may_train && has_model && !out->train && of_training != NULL)
    return cli_usage("--%s applies to plans for training only: add --train", of_training);
  if (may_train && out->train && !out->graph.says_dropout)
    out->graph.graph_dropout = true; /* as train does */
  if (status == CLI_DONE && out->plan.cluster != NULL &&
      (out->on.n_devices != 0 || out->on.n_threads != 0)) {
    return cli_usage("--cluster %s already gives the devices: --%s is not allowed",
                     out->plan.cluster, out->on.n_devices != 0 ? "device" : "threads");
  }
  out->settled = first_given(given, cli_is_settled);
  const char *besides = out->plan.plan_file == NULL ? NULL : first_given(given, is_in_plan);
  if (besides != NULL && plays && strcmp(besides, "cluster") == 0)
    besides = NULL; /* the cluster to play on */
  if (status == CLI_DONE && besides != NULL) {
    return cli_usage("--plan %s is a whole plan, which already settles --%s", out->plan.plan_file,
                     besides);
  }
  return status;
}
