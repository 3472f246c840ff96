/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `schedule`'s subcommands, and the machine-readable answer of `check`. */
#ifndef CLI_SCHEDULE_VERDICT_H
#define CLI_SCHEDULE_VERDICT_H

#include "cli.h"

/* Refuses a word that is not a subcommand of `schedule`, with the nearest one. schedule_options.c
 */
int cli_check_verb(const char *verb);
/* Refuses the first given option that the subcommand does not use with operand `what` (NULL: none).
 */
int cli_check_verb_options(const cli_options *o, const char *verb, const char *what, bool is_file);

/* why: message of the proof that refuses the order; NULL: it accepts it. */
void cli_put_verdict(FILE *json, const char *rule, const char *why);

/* True if a message says what is wrong with an order, by a place or by a missing action. Otherwise
 * there is no order: it cannot be read, or made. */
bool cli_is_verdict(const char *why);

#endif /* CLI_SCHEDULE_VERDICT_H */
