/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the command and runs it. */
#include <string.h>

#include "tables.h"

static int print_version(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (opipe_get_api(OPIPE_VIEW, &api, &err) < 0)
    return cli_report("opipe_get_api", &err);
  (void)printf("onnx-pipe %s (ABI %u.%u)\n", api->version, api->abi_major, api->abi_minor);
  return CLI_DONE;
}

static int refuse_command(const char *name) {
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  if (name[0] == '-')
    return cli_usage("%s: a command comes first; 'onnx-pipe --help' lists them", name);
  for (const cli_command *c = cli_commands; c->name != NULL; ++c)
    opi_nearest_look(&nearest, c->name);
  return nearest.found == NULL
             ? cli_usage("there is no command '%s'; 'onnx-pipe --help' lists them", name)
             : cli_usage("there is no command '%s'; did you mean '%s'?", name, nearest.found);
}

/* Flushes standard output; a failure is the result. */
static int finish(int result) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0)
    return result;
  (void)fprintf(stderr, "onnx-pipe: cannot write the output\n");
  return CLI_FAILED;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    cli_print_commands(stderr);
    return CLI_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      (strcmp(argv[1], "help") == 0 && argc == 2)) {
    cli_print_commands(stdout);
    return finish(CLI_DONE);
  }
  if (strcmp(argv[1], "--version") == 0)
    return finish(print_version());
  if (strcmp(argv[1], "completion") == 0 && argc == 3) /* used by the build */
    return finish(cli_print_completion(argv[2]));
  if (strcmp(argv[1], "manual") == 0 && argc <= 3)
    return finish(cli_print_manual(argv[2]));
  const bool asks = strcmp(argv[1], "help") == 0; /* help COMMAND: COMMAND --help */
  const char *name = argv[asks ? 2 : 1];
  char help[] = "--help", *words[] = {argv[0], help, NULL};
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    static cli_options options; /* large: not on the stack */
    if (strcmp(name, c->name) != 0)
      continue;
    const int status =
        asks ? cli_parse(c, 2, words, &options) : cli_parse(c, argc - 1, argv + 1, &options);
    if (status != CLI_DONE)
      return status < 0 ? finish(CLI_DONE) : status;
    const int numbers = cli_schedule_numbers(&options);
    if (numbers != CLI_DONE)
      return numbers;
    return finish(c->run(&options));
  }
  return refuse_command(name);
}
