/* SPDX-License-Identifier: Apache-2.0 */
/* A fault at an exact instant, as the environment asks.
 *   OPIPE_FAULT=HOW@WHERE:N   call number N (from 1) of WHERE goes wrong in this way. Calls are
 *                       counted over all threads.
 *     HOW    kill  stop (SIGSTOP)  exit0  exit3  hang (never returns)  eat (takes memory until it
 * is killed)  refuse (answers OPIPE_E_LIMIT) OPIPE_FAULT_PROCESS=R     only in process R, as
 * launchers number them
 */
#ifndef FAULT_H
#define FAULT_H

#include <opipe/helpers.h>

/* OPIPE_OK, unless the fault is a refusal. count: of the calls of `where`. err may be NULL. */
opipe_status fault_pass(const char *where, _Atomic uint32_t *count, opipe_error *err);

#endif /* FAULT_H */
