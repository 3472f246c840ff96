/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of `schedule` take, and what `check` answers to machines. */
#ifndef CLI_SCHEDULE_VERDICT_H
#define CLI_SCHEDULE_VERDICT_H

#include "cli.h"

/* Refuses a word that is no verb of `schedule`, with what was probably meant. schedule_options.c */
int cli_check_verb(const char *verb);
/* Refuses the first option given that the verb does not look at. what: the operand, NULL: none. */
int cli_check_verb_options(const cli_options *o, const char *verb, const char *what, bool is_file);

/* why: the message of the proof that refuses the order; NULL: it does not. */
void cli_put_verdict(FILE *json, const char *rule, const char *why);

/* Does a message say what is wrong with an order, by the place or by what it lacks? Else there is
 * none: it cannot be read, or made. */
bool cli_is_verdict(const char *why);

#endif /* CLI_SCHEDULE_VERDICT_H */
