/* SPDX-License-Identifier: Apache-2.0 */
/* Work that a rank has queued on an asynchronous device. The rank goes on at once. Each entry, in
 * the queue's order, tells what to do when the device has come to it.
 *
 *   RUN    a program: note when it ended, and errors in its request's data
 *   DATA   inputs, copies: free their staging memory
 *   STORE  a result is in staging memory: copy it to the request's
 *   SUM    the parts of a sum are there: note that it begins
 *   POST   the last reader of a receive's memory is done: post the receive
 *   LEAVE  nothing of a request is left on the device: leave it
 *   MOVE   stashes have left for the host, or returned (offload.c): due by an event of their own
 *
 * RUN, DATA and STORE record the entry's own event behind the work that they queued, so that a late
 * error comes with the right entry; the others are due when all entries before them are done. A
 * message waits for an event of its own, which reports no error of data (see "Late errors" in
 * opipe/backend.h), so that a failed request flows on.
 *
 * The number of entries (OPI_AHEAD) and the staging memory are bounded; a step that finds no room
 * is tried again. For synchronous devices worker->ahead is NULL.
 */
#ifndef OPI_AHEAD_H
#define OPI_AHEAD_H

#include "runtime/executor/steps.h"

enum {
  OPI_AHEAD = 64,
  OPI_AHEAD_SENDS = 64, /* messages that wait for the device, at most */
  OPI_AHEAD_KEPT = 2    /* reserved for LEAVE, of a request and of the one before */
};
enum {
  OPI_AHEAD_RUN = 0,
  OPI_AHEAD_DATA = 1,
  OPI_AHEAD_STORE = 2,
  OPI_AHEAD_SUM = 3,
  OPI_AHEAD_POST = 4,
  OPI_AHEAD_LEAVE = 5,
  OPI_AHEAD_MOVE = 6
};

/* The work of an entry. */
typedef struct opi_errand {
  const opi_step *step; /* RUN, STORE */
  opi_request *request; /* RUN, STORE, LEAVE */
  opi_compiled *shape;  /* RUN, STORE, POST */
  opi_ran *ran;         /* RUN, SUM: the record of its times; NULL: none */
  uint64_t ran_number;  /* RUN: the number to record */
  uint64_t since_ns;    /* RUN: when it was queued */
  uint64_t number;      /* RUN: training steps before this one, for error messages */
  uint32_t program;     /* RUN: OPI_PROGRAM_*, for error messages */
  bool later, more;     /* RUN of a part of a program: earlier parts ran, further ones follow */
} opi_errand;

typedef struct opi_ahead_entry {
  uint32_t kind; /* OPI_AHEAD_* */
  opipe_event *event;
  opipe_event *begun; /* RUN: recorded in front of the program; NULL: the rank has no stamps */
  opi_errand work;
  uint32_t cell;        /* STORE */
  uint32_t output;      /* STORE: of the session */
  uint32_t message;     /* POST; MOVE: the move */
  bool out;             /* MOVE: to the host */
  uint64_t number;      /* POST: in its stream */
  const char *data;     /* STORE */
  uint64_t staging_end; /* position behind the entry's staging memory */
} opi_ahead_entry;

struct opi_ahead {
  opi_ahead_entry entries[OPI_AHEAD]; /* number n is at n % OPI_AHEAD */
  uint64_t n_in, n_out;
  uint32_t n_stores, n_posts; /* entries of these kinds */
  uint64_t moved_ns;          /* when the last entry was done */
  /* events that messages wait for */
  opipe_event *sends[OPI_AHEAD_SENDS]; /* [n_sends] free ones */
  uint32_t n_sends;
  opipe_event *standing; /* of the message being tried */
  /* staging memory as a ring; positions count all bytes ever used */
  const opi_staging *staging;
  uint64_t staged_in, staged_out;
  uint64_t staging_first; /* number of the first entry that uses it */
};

static inline bool opi_ahead_is_empty(const opi_rank *rank) {
  return rank->worker->ahead == NULL || rank->worker->ahead->n_in == rank->worker->ahead->n_out;
}
/* Is there room for `n` more entries, beside the reserved ones? */
static inline bool opi_ahead_has_room_for(const opi_rank *rank, uint32_t n) {
  return rank->worker->ahead == NULL ||
         rank->worker->ahead->n_in - rank->worker->ahead->n_out + n <= OPI_AHEAD - OPI_AHEAD_KEPT;
}
static inline bool opi_ahead_has_room(const opi_rank *rank) {
  return opi_ahead_has_room_for(rank, 1);
}
/* Are results still to be stored? */
static inline bool opi_ahead_stores(const opi_rank *rank) {
  return rank->worker->ahead != NULL && rank->worker->ahead->n_stores != 0;
}
/* Is the receive still to be posted? */
bool opi_ahead_finds(const struct opi_ahead *ahead, const opi_message_run *message,
                     uint64_t number);
static inline bool opi_ahead_posts(const opi_rank *rank, const opi_message_run *message,
                                   uint64_t number) {
  return rank->worker->ahead != NULL && rank->worker->ahead->n_posts != 0 &&
         opi_ahead_finds(rank->worker->ahead, message, number);
}

/* Records the begin of the program that is queued next, if the rank has stamps. */
opipe_status opi_ahead_begin(opi_rank *rank, opipe_error *err);
/* Appends an entry, for which there is room. RUN, DATA and STORE record its event. */
opipe_status opi_ahead_push(opi_rank *rank, const opi_ahead_entry *entry, opipe_error *err);
/* Takes n_bytes of staging memory for the next entry; NULL: none is free yet. */
char *opi_ahead_stage(opi_rank *rank, uint64_t n_bytes);
/* Carries out the entries that are due. As long as some are left the rank looks again soon. */
opipe_status opi_ahead_act(opi_rank *rank, opipe_error *err); /* the device is asynchronous */
static inline opipe_status opi_ahead_move(opi_rank *rank, opipe_error *err) {
  return rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_act(rank, err);
}
/* The same until no entry is left or the session has failed. Blocks. */
opipe_status opi_ahead_drain(opi_rank *rank, opipe_error *err);

/* Tells the watchdog that the device is at the first entry. There is one. */
void opi_ahead_note(opi_rank *rank);
void opi_rank_note_ahead(opi_rank *rank, const opi_ahead_entry *entry,
                         uint64_t since_ns); /* watch.c */

/* The event that the message being tried has to wait for, recorded behind all queued work. *out
 * NULL: nothing is queued. OPIPE_PENDING: no event is free. */
opipe_status opi_ahead_ready(opi_rank *rank, opipe_event **out, opipe_error *err);
/* The transport has taken the message with its event. */
static inline void opi_ahead_given(opi_rank *rank) {
  if (rank->worker->ahead != NULL)
    rank->worker->ahead->standing = NULL;
}
/* The message has arrived, and its event is free. Accepts NULL. */
static inline void opi_ahead_arrived(opi_rank *rank, opipe_event *ready) {
  if (ready != NULL)
    rank->worker->ahead->sends[rank->worker->ahead->n_sends++] = ready;
}

/* programs.c: runs work->step's program with the first n_scalars of the rank's scalars. There is
 * room for its entry. */
opipe_status opi_program_run(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                             uint32_t n_scalars, opipe_error *err);

/* The same of a program that gives the last gradients of its instance: in parts, between which sums
 * of gradients start. There is room for OPI_PARTS_MOST + 1 entries. */
opipe_status opi_program_run_parts(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                                   uint32_t n_scalars, opipe_error *err);

/* Entries that are due call these, in programs.c, training.c, feed.c and interpret.c. `status` is
 * that of the run's event; at: the device's times, NULL: the host's. */
opipe_status opi_step_ran(opi_rank *rank, const opi_errand *run, const opi_span *at,
                          opipe_status status, opipe_error *local, opipe_error *err);
void opi_step_summing(const opi_ahead_entry *sum);
opipe_event *opi_moved_event(const opi_ahead_entry *move);
opipe_status opi_step_moved(opi_rank *rank, const opi_ahead_entry *move, opipe_error *err);
void opi_step_stored(opi_rank *rank, const opi_ahead_entry *store);
void opi_rank_leave(opi_rank *rank, opi_request *request);

#endif /* OPI_AHEAD_H */
