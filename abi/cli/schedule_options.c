/* SPDX-License-Identifier: Apache-2.0 */
/* Subcommands of `schedule`, and the options that each uses, with a name and with a file. Other
 * options are refused, not ignored. */
#include <string.h>

#include "schedule_verdict.h"

enum {
  LIST = 1,
  SHOW = 2,
  LOWER = 4,
  CHECK = 8,
  SIMULATE = 16,
  DRAW = 32,
  CONVERT = 64,
  MAKES = SHOW | LOWER | CHECK | SIMULATE | DRAW,
  READS = MAKES | CONVERT,
  WRITES = SHOW | LOWER | CONVERT,
  PLAYS = SIMULATE | DRAW
};

static const char *const verb_names[] = {"list",     "show", "lower",  "check",
                                         "simulate", "draw", "convert"};
enum { N_VERBS = sizeof(verb_names) / sizeof(verb_names[0]) };

typedef struct option_row {
  const char *name;
  uint32_t of_names, of_files; /* subcommands that use it */
} option_row;

static const option_row rows[] = {{"ranks", MAKES, READS},
                                  {"stages", MAKES, READS},
                                  {"microbatches", MAKES, READS},
                                  {"replicas", MAKES, 0},
                                  {"forward", MAKES, 0},
                                  {"aligned", SHOW, 0},
                                  {"improve", MAKES, MAKES}, /* with a file: refused by open_order
                                                              */
                                  {"format", WRITES, WRITES},
                                  {"dialect", WRITES, WRITES},
                                  {"receives", LOWER | CHECK, LOWER | CHECK},
                                  {"rule", CHECK, CHECK},
                                  {"cost", MAKES, PLAYS},
                                  {"from", 0, READS},
                                  {"output", WRITES | PLAYS, WRITES | PLAYS},
                                  {"cluster", PLAYS, PLAYS},
                                  {"load", PLAYS, PLAYS},
                                  {"tensor", PLAYS, PLAYS},
                                  {"copies", PLAYS, PLAYS},
                                  {"collective", PLAYS, PLAYS},
                                  {"sharded", PLAYS, PLAYS},
                                  {"scattered", PLAYS, PLAYS},
                                  {"pipeline-first", PLAYS, PLAYS},
                                  {"json", LIST | (READS & ~DRAW), READS & ~DRAW}};

int cli_check_verb(const char *verb) {
  opi_nearest nearest = {.word = verb, .n = strlen(verb)};
  for (size_t i = 0; i < N_VERBS; ++i) {
    if (strcmp(verb, verb_names[i]) == 0)
      return CLI_DONE;
    opi_nearest_look(&nearest, verb_names[i]);
  }
  return nearest.found != NULL
             ? cli_usage("there is no 'schedule %s'; did you mean '%s'?", verb, nearest.found)
             : cli_usage(
                   "there is no 'schedule %s': list, show, lower, check, simulate, draw, "
                   "convert",
                   verb);
}

/* "show, lower and convert" */
static void put_verbs(char *text, size_t room, uint32_t verbs) {
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t v = 0; v < N_VERBS && used < room; ++v) {
    const bool last = verbs >> v == 1;
    if ((verbs >> v & 1) != 0) {
      used += (size_t)snprintf(text + used, room - used, "%s%s",
                               used == 0 ? ""
                               : last    ? " and "
                                         : ", ",
                               verb_names[v]);
    }
  }
}

static int refuse(const option_row *row, uint32_t bit, const char *verb, const char *what,
                  bool is_file) {
  char verbs[80];
  const bool file_alone = is_file && (row->of_names & bit) != 0;
  const uint32_t others = is_file ? row->of_files : row->of_names;
  if (others == 0 && is_file) {
    return cli_usage("schedule %s: --%s applies to a NAME, but %s is a file", verb, row->name,
                     what);
  }
  if (others == 0) {
    return cli_usage("schedule %s: --%s applies to a FILE, but %s is not one", verb, row->name,
                     what);
  }
  put_verbs(verbs, sizeof(verbs), others);
  return cli_usage("schedule %s%s takes no --%s: %s %s", verb, file_alone ? " FILE" : "", row->name,
                   verbs, (others & (others - 1)) == 0 ? "does" : "do");
}

int cli_check_verb_options(const cli_options *o, const char *verb, const char *what, bool is_file) {
  uint32_t bit = 0;
  for (uint32_t v = 0; v < N_VERBS; ++v)
    bit |= strcmp(verb, verb_names[v]) == 0 ? 1u << v : 0;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    if (((is_file ? rows[i].of_files : rows[i].of_names) & bit) == 0 &&
        cli_was_given(o, rows[i].name))
      return refuse(&rows[i], bit, verb, what, is_file);
  }
  return CLI_DONE;
}
