/* SPDX-License-Identifier: Apache-2.0 */
/* `onnx-pipe completion bash|zsh|fish`: scripts that complete commands, options and their words,
 * from the option tables. The build writes them, `cmake --install` installs them. */
#include <string.h>

#include "tables.h"

enum { WORDS_ROOM = 160 };
static const char verbs[] = "list show lower check simulate draw convert"; /* subcommands of
                                                                              `schedule` */

static bool has_verbs(const cli_command *c) {
  return c->run == cli_schedule;
}

static void put_words(const char *words) { /* "a|b" as "a b" */
  for (const char *at = words; *at != '\0'; ++at)
    (void)putchar(*at == '|' ? ' ' : *at);
}

static void put_commands(void) {
  for (const cli_command *c = cli_commands; c->name != NULL; ++c)
    (void)printf("%s%s", c == cli_commands ? "" : " ", c->name);
}

/* ---- bash ---- */

static void bash_option(void *ctx, const char *group, const cli_option *o) {
  (void)ctx;
  (void)group;
  (void)printf(" --%s", o->name);
}

static void bash_values(void *ctx, const char *group, const cli_option *o) {
  char words[WORDS_ROOM];
  (void)group;
  if (!cli_option_words(o, words, sizeof(words)))
    return;
  (void)printf("    %s:--%s) words='", ((const cli_command *)ctx)->name, o->name);
  put_words(words);
  (void)puts("' ;;");
}

static void print_bash(void) {
  (void)puts(
      "# bash completion for onnx-pipe\n"
      "_onnx_pipe() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=${COMP_WORDS[1]} words=\n"
      "  if [ \"$current\" = = ]; then current=; fi\n"
      "  if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  COMPREPLY=()\n"
      "  case $COMP_CWORD:$command:$current in");
  (void)fputs("    1:*) words='", stdout);
  put_commands();
  (void)puts(" help --help --version' ;;");
  (void)printf("    2:schedule:[!-]* | 2:schedule:) words='%s' ;;\n", verbs);
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    (void)printf("    *:%s:-*) words='", c->name);
    cli_each_option(c, bash_option, NULL);
    (void)puts("' ;;");
  }
  (void)puts("  esac\n  case $command:$before in");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c)
    cli_each_option(c, bash_values, (void *)(uintptr_t)c);
  (void)puts(
      "  esac\n"
      "  if [ -n \"$words\" ]; then\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -o default -o bashdefault -F _onnx_pipe onnx-pipe");
}

/* ---- zsh ---- */

/* Writes text within single quotes; for _arguments, which gives brackets and colons a meaning, or
 * plain. */
static void put_quoted(const char *text, const char *escaped) {
  for (const char *at = text; *at != '\0'; ++at) {
    if (*at == '\'')
      (void)fputs("'\\''", stdout);
    else
      (void)printf("%s%c", strchr(escaped, *at) == NULL ? "" : "\\", *at);
  }
}

static void zsh_option(void *ctx, const char *group, const cli_option *o) {
  char words[WORDS_ROOM];
  (void)ctx;
  (void)group;
  const bool optional = o->argument != NULL && o->argument[0] == '[';
  (void)printf("        '*--%s%s[", o->name, o->argument == NULL ? "" : optional ? "=-" : "=");
  put_quoted(o->help, "[]:\\");
  (void)fputs("]", stdout);
  if (o->argument != NULL) {
    (void)fputs(optional ? "::" : ":", stdout);
    put_quoted(o->argument, "[]:\\");
    (void)putchar(':');
    if (cli_option_words(o, words, sizeof(words))) {
      (void)putchar('(');
      put_words(words);
      (void)putchar(')');
    } else {
      (void)fputs("_files", stdout);
    }
  }
  (void)puts("' \\");
}

static void print_zsh(void) {
  (void)puts(
      "#compdef onnx-pipe\n"
      "# zsh completion for onnx-pipe\n"
      "_onnx_pipe() {\n"
      "  local -a commands\n"
      "  commands=(");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    (void)printf("    '%s:", c->name);
    put_quoted(c->help, ":\\");
    (void)puts("'");
  }
  (void)puts(
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  case $words[2] in");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    (void)printf("    %s)\n      shift words; (( CURRENT-- ))\n      _arguments \\\n", c->name);
    cli_each_option(c, zsh_option, NULL);
    if (has_verbs(c))
      (void)printf("        '1:verb:(%s)' '*:file:_files' ;;\n", verbs);
    else
      (void)puts("        '*:file:_files' ;;");
  }
  (void)puts(
      "  esac\n"
      "}\n"
      "if [ \"$funcstack[1]\" = _onnx_pipe ]; then\n"
      "  _onnx_pipe \"$@\"\n"
      "else\n"
      "  compdef _onnx_pipe onnx-pipe\n"
      "fi");
}

/* ---- fish ---- */

static void fish_option(void *ctx, const char *group, const cli_option *o) {
  char words[WORDS_ROOM];
  const cli_command *c = ctx;
  (void)group;
  const bool choice = cli_option_words(o, words, sizeof(words));
  (void)printf("complete -c onnx-pipe -n '__fish_seen_subcommand_from %s' -l %s", c->name, o->name);
  if (o->letter != 0)
    (void)printf(" -s %c", o->letter);
  if (o->argument != NULL && o->argument[0] != '[')
    (void)fputs(choice ? " -x" : " -r", stdout);
  if (choice) {
    (void)fputs(" -a '", stdout);
    put_words(words);
    (void)putchar('\'');
  }
  (void)fputs(" -d '", stdout);
  for (const char *at = o->help; *at != '\0'; ++at)
    (void)printf("%s%c", *at == '\'' || *at == '\\' ? "\\" : "", *at);
  (void)puts("'");
}

static void print_fish(void) {
  (void)puts("# fish completion for onnx-pipe");
  for (const cli_command *c = cli_commands; c->name != NULL; ++c) {
    (void)printf("complete -c onnx-pipe -f -n __fish_use_subcommand -a %s -d '", c->name);
    for (const char *at = c->help; *at != '\0'; ++at)
      (void)printf("%s%c", *at == '\'' || *at == '\\' ? "\\" : "", *at);
    (void)puts("'");
    if (has_verbs(c)) {
      (void)printf("complete -c onnx-pipe -n '__fish_seen_subcommand_from %s' -a '%s'\n", c->name,
                   verbs);
    }
    cli_each_option(c, fish_option, (void *)(uintptr_t)c);
  }
}

int cli_print_completion(const char *shell) {
  static const struct {
    const char *name;
    void (*print)(void);
  } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
  char meant[OPI_NEAREST_ROOM];
  for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); ++i) {
    if (strcmp(shell, shells[i].name) != 0)
      continue;
    shells[i].print();
    return CLI_DONE;
  }
  return cli_usage("completion %s: bash, zsh or fish is needed%s", shell,
                   opi_nearest_of(shell, "bash zsh fish", " ", meant, sizeof(meant)));
}
