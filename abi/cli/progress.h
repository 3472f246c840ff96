/* SPDX-License-Identifier: Apache-2.0 */
/* Progress for people at a terminal; signals that end a run in order. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <signal.h>

#include "cli.h"

double cli_now(void); /* seconds, monotonic */

/* Replaces the previous line; does nothing if standard error is not a terminal. */
void cli_progress(const char *fmt, ...) OPIPE_PRINTF(1, 2);
/* True when it is time for the next line. *io_last: time of the last line, 0 before the first.
 * Never true without a terminal. */
bool cli_progress_due(double *io_last);
enum { CLI_TIME_ROOM = 32 };
/* "1:05 min", "2:00:31 h". Returns out. */
const char *cli_time_left(double seconds, char out[CLI_TIME_ROOM]);

enum { CLI_STOP_SIGNALS = 2 };
/* Notes SIGINT and SIGTERM from here on; a second one ends the process. Signals that the caller of
 * the command ignores stay ignored. */
void cli_listen(struct sigaction before[CLI_STOP_SIGNALS]);
void cli_stop_listening(const struct sigaction before[CLI_STOP_SIGNALS]);
int cli_asked_to_stop(void); /* the signal's number; 0: none since cli_listen */
const char *cli_signal_name(int number);

/* Notes SIGUSR1, which asks for a checkpoint and ends nothing. */
void cli_listen_to_save(struct sigaction *before);
void cli_stop_listening_to_save(const struct sigaction *before);
bool cli_asked_to_save(void); /* since the last call */

#endif /* CLI_PROGRESS_H */
