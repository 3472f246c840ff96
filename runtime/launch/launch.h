/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/launch: teams, the processes of a job, and the channel that joins them.
 *
 *   launchers.h  a process's place in a job, from launchers' variables
 *   frame.h      the channel's frames, and the reader of foreign bytes
 *   carrier.h    how one process reaches another
 *   token.h      the proof of a token, and the seal on what follows
 *   team.h       the team itself: for this folder alone
 *
 * Invariants
 * - A team fails once and as a whole, and its failure names a rank. Process 0 decides which came
 *   first; no call waits for a process that is known to be gone.
 * - Bytes of other processes are read by frame.c alone, and every message has a bound.
 * - One thread per team does all I/O, and never waits with the lock held. Other threads queue.
 * - No descriptor survives exec, no name survives the process.
 * - Nothing is read from a connection by TCP before it has proved the token, where there is one.
 */
#ifndef OPI_LAUNCH_H
#define OPI_LAUNCH_H

#include <opipe/host.h>

#include "runtime/base/base.h"
#include "runtime/launch/carrier.h"
#include "runtime/launch/launchers.h"

enum { OPI_AT_ROOM = 64, OPI_KEY_ROOM = 128, OPI_POST_MOST = 4096 };

typedef struct opi_team opi_team;

/* Where a team stands: the context's, or a test's. All but the allocator may be NULL. */
typedef struct opi_team_env {
  const opipe_allocator *allocator;
  const opi_logger *logger;       /* copied */
  const opi_variables *variables; /* NULL: of this process */
  const char *boot; /* the machine's kernel, by which processes of one machine know each other;
                       NULL: as the kernel says */
} opi_team_env;

/* Sleeps until all processes have joined. Errors: INVALID, NOTFOUND, UNSUPPORTED, LIMIT: params or
 * variables; STATE, the name is taken; PEER, another process refuses, with its reason; ABI,
 * versions differ; TIMEOUT, with those that have not come. */
opipe_status opi_team_open(const opi_team_env *env, const opipe_team_params *params,
                           opi_team **out_team, opipe_error *err);
void opi_team_end_calls(opi_team *team); /* calls that wait return OPIPE_E_CANCELLED */
void opi_team_close(opi_team *team);     /* nobody is inside; accepts NULL */

void opi_team_info(opi_team *team, opipe_team_info *out);
/* The lowest process of the machine of process `rank`, and the machine's name, which is the team's.
 */
uint32_t opi_team_machine(opi_team *team, uint32_t rank, const char **out_host);
opipe_status opi_team_describe(opi_team *team, uint32_t format, opi_text *out, opipe_error *err);
/* OPIPE_OK, or the failure. [any-thread] */
opipe_status opi_team_check(opi_team *team, opipe_error *err);
/* How far this process has come: heartbeats carry it, and messages about it. at: at most 63 bytes,
 * NULL: as before. [any-thread] */
opipe_status opi_team_moved(opi_team *team, uint64_t moves, const char *at, opipe_error *err);
/* Heartbeats also carry what the ranks of a session are at, as `tell` says; the teller is the
 * caller's, and is asked with the team's lock held. */
typedef struct opi_teller opi_teller;
struct opi_teller {
  opi_teller *next; /* the team's */
  opi_tell_fn tell; /* NULL: the teller has not been given to a team */
  void *ctx;
  uint32_t session;
};
void opi_team_tell(opi_team *team, opi_teller *teller);
void opi_team_untell(opi_team *team, opi_teller *teller); /* accepts one that was not given */
/* OPIPE_OK, or who holds up the session of this number, in which nothing moves although all
 * processes answer. [any-thread] */
opipe_status opi_team_check_session(opi_team *team, uint32_t session, opipe_error *err);
/* The team fails, everywhere, because of this process. [any-thread] */
opipe_status opi_team_abort(opi_team *team, const char *reason, opipe_error *err);
opipe_status opi_team_gather(opi_team *team, const opipe_gather_params *params, opipe_error *err);
/* The same in a lane of its own: calls of one lane have one order everywhere, calls of different
 * lanes any. lane: at most 63 bytes; "" is opi_team_gather's. A process that waits in a lane for
 * longer than the team's time-out, while those it waits for wait in another, is refused with them
 * (STATE), with both names; the team goes on. [any-thread] */
opipe_status opi_team_gather_in(opi_team *team, const char *lane, const opipe_gather_params *params,
                                opipe_error *err);
/* Gives this process's part of a lane's last call, whose result it does not want. [any-thread] */
void opi_team_tell_in(opi_team *team, const char *lane, const opipe_gather_params *params);

/* ---- stop ---- */

/* Asks all processes to do `what` (not 0; the host's number) at one step. Returns at once.
 * [any-thread] */
opipe_status opi_team_stop(opi_team *team, uint32_t what, opipe_error *err);
/* Before a process begins `step`; steps rise, and are the same everywhere. *out_what: what all
 * processes do before this step, or 0. Waits only while an agreement is being made. */
opipe_status opi_team_step(opi_team *team, uint64_t step, uint32_t *out_what, opipe_error *err);

/* ---- mail ---- */

/* From process 0 to all others, in order, for a lane's number. Does not wait. [any-thread] */
opipe_status opi_team_mail(opi_team *team, uint32_t lane, const void *bytes, uint64_t n_bytes,
                           opipe_error *err);
/* Waits for the next message of a lane. *io_bytes [*io_room] is the caller's, of the team's
 * allocator, and grows. OPIPE_PENDING: none came in time. Errors: PEER; NOMEM. [any-thread] */
opipe_status opi_team_mail_take(opi_team *team, uint32_t lane, uint64_t timeout_ns,
                                uint8_t **io_bytes, uint64_t *io_room, uint64_t *out_n,
                                opipe_error *err);
void opi_team_mail_end(opi_team *team, uint32_t lane); /* drops those that nobody has taken */

/* ---- letters ---- */

/* Opens this process's box `key` (base/letters.h); the other end's has the same key. `ring` is
 * called whenever something has changed: on the helper thread, without the team's lock, and not any
 * more once the box is closed. Errors: NOMEM; STATE, the key is taken. [any-thread] */
opipe_status opi_team_box_open(opi_team *team, uint64_t key, void (*ring)(void *ctx), void *ctx,
                               opi_box **out_box, opipe_error *err);
void opi_team_box_close(opi_team *team, opi_box *box); /* accepts NULL */
/* Sends a letter of n_bytes, which begins with its envelope. Does not wait. Errors: PEER.
 * [any-thread] */
opipe_status opi_team_letter(opi_team *team, const opi_envelope *letter, uint64_t n_bytes,
                             opipe_error *err);
/* Copies the oldest letter of a box, without its envelope, to out [room]. OPIPE_PENDING: there is
 * none; never waits. Errors: LIMIT, it is longer; PEER. [any-thread] */
opipe_status opi_team_letter_take(opi_team *team, opi_box *box, void *out, uint64_t room,
                                  uint64_t *out_n, opipe_error *err);

/* ---- board ---- */

/* Entries that every process sees: addresses of transports. key: at most 127 bytes; bytes: at most
 * OPI_POST_MOST. Errors: INVALID; LIMIT; STATE, the key is taken; PEER. [any-thread] */
opipe_status opi_team_post(opi_team *team, const char *key, const void *bytes, uint64_t n_bytes,
                           opipe_error *err);
/* The last part of a key under which each process finds, without a post, the host at which it takes
 * part in the team itself, "10.0.0.1"; without TCP there is none. */
#define OPI_BOARD_ADDRESS "team/address"
/* Copies an entry to out. *io_bytes: in, the room; out, its bytes. OPIPE_PENDING: it is not there
 * yet; never waits. Errors: LIMIT, there is no room; PEER. [any-thread] */
opipe_status opi_team_look(opi_team *team, const char *key, void *out, uint64_t *io_bytes,
                           opipe_error *err);

#endif /* OPI_LAUNCH_H */
