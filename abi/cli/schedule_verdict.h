/* SPDX-License-Identifier: Apache-2.0 */
/* What `schedule check` answers to machines. */
#ifndef CLI_SCHEDULE_VERDICT_H
#define CLI_SCHEDULE_VERDICT_H

#include "cli.h"

/* why: the message of the proof that refuses the order; NULL: it does not. */
void cli_put_verdict(FILE *json, const char *rule, const char *why);

#endif /* CLI_SCHEDULE_VERDICT_H */
