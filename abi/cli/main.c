/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the command and hands over. */
#include <string.h>

#include "cli.h"

typedef struct command {
  const char *name;
  const char *help;
  int (*run)(const cli_options *options);
} command;

static const command commands[] = {
    {"inspect", "what a model consists of: inputs, operators, patterns, parameters", cli_inspect},
    {"plan", "cut a model into stages and print or write the plan", cli_plan},
    {"run", "run a model (or a model folder with data sets) as a pipeline", cli_run},
    {"train", "train a model as a pipeline on data from files", cli_train},
    {"plugins", "the plugins that were found, and why others were refused", cli_plugins},
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_commands(FILE *out) {
  (void)fprintf(out, "usage: onnx-pipe COMMAND [OPTION ...] [MODEL]\n\n");
  for (int i = 0; i < N_COMMANDS; ++i)
    (void)fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
  (void)fprintf(out, "  %-9s %s\n", "schedule",
                "schedules without a model: list, show, lower, check, simulate, draw, convert");
  (void)fprintf(out, "\nonnx-pipe COMMAND --help lists a command's options.\n");
}

static int print_version(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (opipe_get_api(OPIPE_VIEW, &api, &err) < 0)
    return cli_report("opipe_get_api", &err);
  (void)printf("onnx-pipe %s (ABI %u.%u)\n", api->version, api->abi_major, api->abi_minor);
  return CLI_DONE;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    print_commands(stderr);
    return CLI_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      strcmp(argv[1], "help") == 0) {
    print_commands(stdout);
    return CLI_DONE;
  }
  if (strcmp(argv[1], "--version") == 0)
    return print_version();
  static char program[64]; /* what getopt_long begins its messages with */
  const char *name = argv[1];
  (void)snprintf(program, sizeof(program), "onnx-pipe %.40s", name);
  argv[1] = program;
  if (strcmp(name, "schedule") == 0)
    return cli_schedule(argc - 1, argv + 1);
  for (int i = 0; i < N_COMMANDS; ++i) {
    static cli_options options; /* large: not on the stack */
    if (strcmp(name, commands[i].name) != 0)
      continue;
    const int status = cli_parse(name, argc - 1, argv + 1, &options);
    if (status != CLI_DONE)
      return status < 0 ? CLI_DONE : status;
    const int numbers = cli_schedule_numbers(&options);
    if (numbers != CLI_DONE)
      return numbers;
    const int result = commands[i].run(&options);
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
      (void)fprintf(stderr, "onnx-pipe: cannot write the output\n");
      return CLI_FAILED;
    }
    return result;
  }
  return cli_usage("there is no command '%s'; 'onnx-pipe --help' lists them", name);
}
