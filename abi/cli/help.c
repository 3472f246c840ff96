/* SPDX-License-Identifier: Apache-2.0 */
/* --help: the options of a command in groups, the basics first. */
#include <string.h>

#include "tables.h"

/* True for lower case letters, digits, '-' and '|' only: words to choose from. */
bool cli_option_words(const cli_option *option, char *out, size_t room) {
  const char *text = option->choices != NULL ? option->choices : option->argument;
  if (text == NULL || strchr(text, '|') == NULL)
    return false;
  const size_t skip = text[0] == '[', n = strlen(text) - 2 * skip;
  if (n >= room || strspn(text + skip, "abcdefghijklmnopqrstuvwxyz0123456789-|") < n)
    return false;
  (void)snprintf(out, room, "%.*s", (int)n, text + skip);
  return true;
}

void cli_print_commands(FILE *out) {
  (void)fprintf(out, "usage: onnx-pipe COMMAND [OPTION ...] [MODEL]\n\n");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c)
    (void)fprintf(out, "  %-9s %s\n", c->name, c->help);
  (void)fprintf(out,
                "\nonnx-pipe COMMAND --help lists a command's options. A unique beginning stands "
                "for\nan option (--stage for --stages); scripts should write it out.\n");
}

static void print_option(void *ctx, const char *group, const cli_option *o) {
  const char **last = ctx;
  char left[80];
  const bool optional = o->argument != NULL && o->argument[0] == '[';
  if (*last == NULL || strcmp(*last, group) != 0)
    (void)printf("%s%s:\n", *last == NULL ? "" : "\n", group);
  *last = group;
  (void)snprintf(left, sizeof(left), "--%s%s%s", o->name,
                 o->argument == NULL ? ""
                 : optional          ? "[="
                                     : " ",
                 o->argument == NULL ? "" : o->argument + (optional ? 1 : 0));
  (void)printf("  %-40s %s\n", left, o->help);
}

void cli_print_help(const cli_command *c) {
  const char *group = NULL;
  if (c->usage != NULL) {
    (void)printf("%s\n", c->usage);
  } else {
    (void)printf("usage: onnx-pipe %s [OPTION ...]%s%s\n", c->name, c->operand == NULL ? "" : " ",
                 c->operand == NULL ? "" : c->operand);
    if (c->run == cli_plan)
      (void)puts("       onnx-pipe plan explain A.json B.json [--html OUT.html] [--json]");
    (void)printf("\n%s\n\n", c->help);
  }
  cli_each_option(c, print_option, &group);
}
