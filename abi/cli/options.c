/* SPDX-License-Identifier: Apache-2.0 */
/* A command line, read into one struct as the rows of tables.c say. */
#include <getopt.h>
#include <stdarg.h>
#include <string.h>

#include "tables.h"

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

/* ---- the command line ---- */

enum { FIRST_ID = 256 }; /* what getopt_long answers for a row: this and the row's number */

/* The command's rows for getopt_long. `letters` has room for two characters a row. */
static void make_getopt(const cli_command *command, struct option *longs, char *letters) {
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

/* The row of what getopt_long answered; NULL: it has said what is wrong. */
static const cli_option *row_of(const cli_command *command, int id) {
  if (id >= FIRST_ID)
    return &cli_option_rows[id - FIRST_ID];
  for (uint32_t i = 0; i < cli_n_option_rows; ++i) {
    if (cli_option_rows[i].letter == id && cli_takes(command, &cli_option_rows[i]))
      return &cli_option_rows[i];
  }
  return NULL;
}

static void print_help(const cli_command *c) {
  if (c->usage != NULL) {
    (void)printf("%s\n", c->usage);
  } else {
    (void)printf("usage: onnx-pipe %s [OPTION ...]%s%s\n\n", c->name, c->operand == NULL ? "" : " ",
                 c->operand == NULL ? "" : c->operand);
  }
  cli_print_options(c);
}

/* Reads the options. given [rows]: which of them were there. -1: the help was printed. */
static int take_options(const cli_command *command, int argc, char **argv, bool *given,
                        cli_options *out) {
  struct option longs[CLI_OPTIONS_MOST + 1];
  char letters[2 * CLI_OPTIONS_MOST + 1];
  make_getopt(command, longs, letters);
  optind = 1;
  for (int id = 0; (id = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    const cli_option *option = row_of(command, id);
    if (option == NULL)
      return CLI_USAGE;
    if (option->take == NULL) {
      print_help(command);
      return -1;
    }
    const int status = option->take(option, optarg, out);
    if (status != CLI_DONE)
      return status;
    given[option - cli_option_rows] = true;
  }
  return CLI_DONE;
}

static bool is_in_plan(const cli_option *option) {
  return option->in_plan;
}

/* The first of the given options that `is` holds for; NULL: none. */
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
    return cli_usage("%s %s: --%s stands in place of a model", c->name, operands[0],
                     out->planner.arch != NULL ? "arch" : "profile");
  }
  if (c->run == cli_plan && n == 3 && strcmp(operands[0], "explain") == 0)
    return CLI_DONE;
  if (n != (c->operand != NULL)) {
    return cli_usage("%s takes %s, %d operands were given ('onnx-pipe %s --help')", c->name,
                     c->operand == NULL ? "no operand" : c->operand, n, c->name);
  }
  out->model = c->operand != NULL ? operands[0] : NULL;
  return CLI_DONE;
}

/* An option of every device but the CPU's, which has nothing to fall back on. */
static int say_fallback(cli_options *o) {
  static const char *const words[] = {"fallback=none", "fallback=cpu"};
  uint32_t n = 0;
  if (o->fallback == CLI_FALLBACK_UNSAID)
    return CLI_DONE;
  for (uint32_t d = 0; d < o->n_devices; ++d) {
    opipe_device_choice *choice = &o->devices[d];
    if (strcmp(choice->kind, "cpu") == 0)
      continue;
    cli_add_device_option(o, d, words[o->fallback]);
    ++n;
  }
  return n != 0 ? CLI_DONE
                : cli_usage("--fallback %s: no --device other than cpu is given",
                            words[o->fallback] + strlen("fallback="));
}

int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out) {
  bool given[CLI_OPTIONS_MOST] = {false};
  const bool plays = command->run == cli_simulate;
  const bool is_plan = command->run == cli_plan || plays;
  memset(out, 0, sizeof(*out));
  out->rtol = out->atol = -1;
  out->fallback = CLI_FALLBACK_UNSAID;
  out->order.format = CLI_FORMAT_UNSAID;
  out->cost = command->run == cli_profile ? CLI_COST_UNSAID : OPIPE_COST_RATES;
  out->train = out->graph_dropout = command->run == cli_train;
  int status = take_options(command, argc, argv, given, out);
  if (status != CLI_DONE)
    return status;
  status = say_fallback(out);
  if (status != CLI_DONE)
    return status;
  const char *of_training = first_given(given, cli_is_of_training);
  const bool may_train = is_plan || command->run == cli_profile;
  const bool has_model = out->planner.arch == NULL && out->planner.profile == NULL;
  if (may_train && has_model && !out->train && of_training != NULL)
    return cli_usage("--%s applies to plans for training only: add --train", of_training);
  if (may_train && out->train && !out->says_dropout)
    out->graph_dropout = true; /* as train does */
  status = take_operands(command, argc - optind, argv + optind, out);
  if (status == CLI_DONE && out->cluster != NULL && (out->n_devices != 0 || out->n_threads != 0)) {
    return cli_usage("--cluster %s says the devices: --%s is said by it", out->cluster,
                     out->n_devices != 0 ? "device" : "threads");
  }
  out->settled = first_given(given, cli_is_settled);
  const char *besides = out->plan_file == NULL ? NULL : first_given(given, is_in_plan);
  if (besides != NULL && plays && strcmp(besides, "cluster") == 0)
    besides = NULL; /* where it is played */
  if (status == CLI_DONE && besides != NULL) {
    return cli_usage("--plan %s is a whole plan, which already settles --%s", out->plan_file,
                     besides);
  }
  return status;
}
