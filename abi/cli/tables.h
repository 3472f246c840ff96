/* SPDX-License-Identifier: Apache-2.0 */
/* The command's options, one row each: for getopt_long and --help, how a value is read and where it
 * goes. A row belongs to a section, and each command lists its sections. */
#ifndef CLI_TABLES_H
#define CLI_TABLES_H

#include "cli.h"

typedef struct cli_option cli_option;
/* Reads one value into the options. `value` is NULL if none was given. CLI_DONE, or CLI_USAGE with
 * the message printed. */
typedef int cli_take_fn(const cli_option *option, const char *value, cli_options *out);

struct cli_option {
  uint32_t section; /* of tables.c */
  const char *name;
  const char *argument; /* NULL: takes none; "[X]": optional */
  const char *help;
  cli_take_fn *take;    /* NULL: prints the help */
  size_t at;            /* offset in cli_options of the field */
  uint64_t least, most; /* range of a count; most: also a flag's bits, or other data of a row */
  const char *choices;  /* "a|b|c" */
  bool in_plan;         /* settled by a plan: not allowed with --plan */
  char letter;          /* short form; 0: none */
};

enum { CLI_SECTIONS_MOST = 12, CLI_OPTIONS_MOST = 192 };

struct cli_command {
  const char *name, *help;
  const char *operand; /* operand after the options, NULL: none */
  int (*run)(const cli_options *options);
  uint32_t sections[CLI_SECTIONS_MOST]; /* in the order of --help, ended by 0 */
  const char *usage;  /* in place of the usual line; such a command checks its operands itself */
  const char *basics; /* names of the options that its help lists first, "a b c" */
};

extern const cli_command cli_commands[]; /* ended by a row without a name */
extern const cli_option cli_option_rows[];
extern const uint32_t cli_n_option_rows;

bool cli_takes(const cli_command *command, const cli_option *option);
/* True if a plan's file settles the option when there is nothing else; otherwise it says how to
 * play. */
bool cli_is_settled(const cli_option *option);
bool cli_is_of_training(const cli_option *option); /* only for training plans */
/* Refuses the first given option that does not apply without a model. layers_options.c */
int cli_check_layers(const cli_command *command, const cli_options *o);
/* Visits every option of the command once, by groups, the basics first. */
typedef void cli_option_fn(void *ctx, const char *group, const cli_option *option);
void cli_each_option(const cli_command *command, cli_option_fn *visit, void *ctx);
/* Writes the words of a value that is one of several, "a|b|c" without brackets, to out; false: it
 * is another kind of value. */
bool cli_option_words(const cli_option *option, char *out, size_t room);
void cli_print_help(const cli_command *command); /* help.c */
void cli_print_commands(FILE *out);
/* completion.c, manual.c: run when the command is built. CLI_USAGE: no such shell, or command. */
int cli_print_completion(const char *shell);
int cli_print_manual(const char *command); /* NULL: of all of them */

/* take.c: readers named by rows. */
cli_take_fn cli_take_flag, cli_take_bits, cli_take_text, cli_take_list, cli_take_numeral,
    cli_take_amount, cli_take_real, cli_take_within, cli_take_index;
cli_take_fn cli_take_device, cli_take_cost, cli_take_order_cost, cli_take_dropout, cli_take_glob,
    cli_take_check, cli_take_seed, cli_take_receives, cli_take_auto, cli_take_machine,
    cli_take_tensor;

#endif /* CLI_TABLES_H */
