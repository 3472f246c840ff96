/* SPDX-License-Identifier: Apache-2.0 */
/* `onnx-pipe manual [COMMAND]`: man pages from the option tables. The build writes them, `cmake
 * --install` installs them.
 */
#include <string.h>

#include "tables.h"

/* Text of a page: '-' is written as a minus, and no line begins as a request. */
static void put(const char *text) {
  bool begins = true;
  for (const char *at = text; *at != '\0'; ++at) {
    if (begins && (*at == '.' || *at == '\''))
      (void)fputs("\\&", stdout);
    if (*at == '-')
      (void)fputs("\\-", stdout);
    else if (*at == '\\')
      (void)fputs("\\e", stdout);
    else
      (void)putchar(*at);
    begins = *at == '\n';
  }
}

static void put_line(const char *text) {
  put(text);
  (void)putchar('\n');
}

static int put_head(const char *name, const char *what) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  char title[64];
  size_t n = 0;
  if (opipe_get_api(OPIPE_VIEW, &api, &err) < 0)
    return cli_report("opipe_get_api", &err);
  for (; name[n] != '\0' && n + 1 < sizeof(title); ++n)
    title[n] = (char)(name[n] >= 'a' && name[n] <= 'z' ? name[n] - 'a' + 'A' : name[n]);
  title[n] = '\0';
  (void)printf(".TH %s 1 \"\" \"onnx-pipe %s\" \"User Commands\"\n.SH NAME\n", title, api->version);
  put(name);
  (void)fputs(" \\- ", stdout);
  put_line(what);
  return CLI_DONE;
}

static void put_status(void) {
  (void)puts(
      ".SH EXIT STATUS\n"
      ".TP\n.B 0\ndone\n"
      ".TP\n.B 1\na check failed\n"
      ".TP\n.B 2\nusage: a wrong option, an unknown name, a file or an input that is missing\n"
      ".TP\n.B 3\nrefused or failed: the file is there, and the message says why\n"
      ".TP\n.B 128 + N\nended by signal N");
}

static void put_option(void *ctx, const char *group, const cli_option *o) {
  const char **last = ctx;
  const bool optional = o->argument != NULL && o->argument[0] == '[';
  if (*last == NULL || strcmp(*last, group) != 0) {
    (void)fputs(".SS ", stdout);
    put_line(group);
  }
  *last = group;
  (void)puts(".TP");
  if (o->letter != 0)
    (void)printf("\\fB\\-%c\\fR, ", o->letter);
  (void)fputs("\\fB\\-\\-", stdout);
  put(o->name);
  (void)fputs("\\fR", stdout);
  if (o->argument != NULL) {
    (void)fputs(optional ? "[=\\fI" : " \\fI", stdout);
    put(o->argument + (optional ? 1 : 0));
    (void)fputs("\\fR", stdout);
  }
  (void)putchar('\n');
  put_line(o->help);
}

static int print_page(const cli_command *c) {
  char name[64];
  const char *group = NULL;
  (void)snprintf(name, sizeof(name), "onnx-pipe-%s", c->name);
  const int status = put_head(name, c->help);
  if (status != CLI_DONE)
    return status;
  (void)puts(".SH SYNOPSIS");
  if (c->usage != NULL) {
    (void)puts(".nf");
    put_line(c->usage);
    (void)puts(".fi");
  } else {
    (void)printf(".B onnx\\-pipe %s\n[\\fIOPTION\\fR ...]", c->name);
    (void)printf(c->operand == NULL ? "\n" : " \\fI%s\\fR\n", c->operand);
  }
  (void)puts(".SH OPTIONS");
  cli_each_option(c, put_option, &group);
  put_status();
  (void)puts(".SH SEE ALSO\n.BR onnx\\-pipe (1)");
  return CLI_DONE;
}

int cli_print_manual(const char *command) {
  for (const cli_command *c = cli_commands; command != NULL && c->name != NULL; ++c) {
    if (strcmp(c->name, command) == 0)
      return print_page(c);
  }
  if (command != NULL)
    return cli_usage("manual: there is no command '%s'", command);
  const int status =
      put_head("onnx-pipe", "pipelines over ONNX models: plan, run, train, simulate");
  if (status != CLI_DONE)
    return status;
  (void)puts(
      ".SH SYNOPSIS\n.B onnx\\-pipe\n\\fICOMMAND\\fR [\\fIOPTION\\fR ...] [\\fIMODEL\\fR]\n.SH "
      "COMMANDS");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    (void)printf(".TP\n.BR onnx\\-pipe\\-%s (1)\n", c->name);
    put_line(c->help);
  }
  put_status();
  return CLI_DONE;
}
