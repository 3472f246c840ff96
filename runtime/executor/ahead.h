/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has given to a device that works later. The rank goes on at once: an entry stands in
 * the queue's order for each thing that has to be done, or known, when the device comes to it.
 *
 *   RUN    a program: when it ended, what is wrong with its request's data
 *   DATA   inputs, copies: their staging memory is free again
 *   STORE  a result has come to staging memory: it goes to the request's
 *   SUM    what a sum adds is there: it begins
 *   POST   what read the memory of a receive is done: it is posted
 *   LEAVE  nothing of a request is left on the device: the rank is done with it
 *
 * RUN, DATA and STORE record the entry's own event behind what they queued, so that a late error
 * comes with the one that it belongs to; the others are due when all entries before them are
 * through. What is sent waits for an event of its own, which no error of data is reported by (see
 * "Late errors" in opipe/backend.h), so that a request that has failed flows on.
 *
 * Bound: OPI_AHEAD entries and the staging memory; a step that finds no room is tried again. On
 * synchronous devices there is none of this: rank->ahead is NULL.
 */
#ifndef OPI_AHEAD_H
#define OPI_AHEAD_H

#include "runtime/executor/steps.h"

enum {
  OPI_AHEAD = 64,
  OPI_AHEAD_SENDS = 64, /* messages that wait for the device, at most */
  OPI_AHEAD_KEPT = 2    /* entries for the end of a request: its LEAVE and that of the one before */
};
enum {
  OPI_AHEAD_RUN = 0,
  OPI_AHEAD_DATA = 1,
  OPI_AHEAD_STORE = 2,
  OPI_AHEAD_SUM = 3,
  OPI_AHEAD_POST = 4,
  OPI_AHEAD_LEAVE = 5
};

/* What a step is about. */
typedef struct opi_errand {
  const opi_step *step; /* RUN, STORE */
  opi_request *request; /* RUN, STORE, LEAVE */
  opi_compiled *shape;  /* RUN, STORE, POST */
  opi_ran *ran;         /* RUN, SUM: where its times go, under */
  uint64_t ran_number;  /* this number; NULL: nowhere */
  uint64_t since_ns;    /* RUN: when it was queued */
  uint64_t number;      /* RUN: for messages: steps before it, of a step */
  uint32_t program;     /* RUN: for messages */
} opi_errand;

typedef struct opi_ahead_entry {
  uint32_t kind; /* OPI_AHEAD_* */
  opipe_event *event;
  opipe_event *begun; /* RUN: stands in front of the program; NULL: the rank has no stamps */
  opi_errand work;
  uint32_t cell;        /* STORE */
  uint32_t output;      /* STORE: of the session */
  uint32_t message;     /* POST */
  uint64_t number;      /* POST: of its stream */
  const char *data;     /* STORE */
  uint64_t staging_end; /* position in staging memory behind what the entry uses */
} opi_ahead_entry;

struct opi_ahead {
  opi_ahead_entry entries[OPI_AHEAD]; /* number n is at n % OPI_AHEAD */
  uint64_t n_in, n_out;
  uint32_t n_stores, n_posts; /* of those in there */
  uint64_t moved_ns;          /* when the last one was through */
  /* events that messages wait for */
  opipe_event *sends[OPI_AHEAD_SENDS]; /* [n_sends] free ones */
  uint32_t n_sends;
  opipe_event *standing; /* of the message that is being tried */
  /* staging memory as a ring: positions count all bytes ever used */
  const opi_staging *staging;
  uint64_t staged_in, staged_out;
  uint64_t staging_first; /* number of the first entry that uses it */
};

static inline bool opi_ahead_is_empty(const opi_rank *rank) {
  return rank->worker->ahead == NULL || rank->worker->ahead->n_in == rank->worker->ahead->n_out;
}
/* For one more entry, beside those that the end of a request needs. */
static inline bool opi_ahead_has_room(const opi_rank *rank) {
  return rank->worker->ahead == NULL ||
         rank->worker->ahead->n_in - rank->worker->ahead->n_out < OPI_AHEAD - OPI_AHEAD_KEPT;
}
/* Stores that have not been made. */
static inline bool opi_ahead_stores(const opi_rank *rank) {
  return rank->worker->ahead != NULL && rank->worker->ahead->n_stores != 0;
}
/* Is that receive among what waits to be posted? */
bool opi_ahead_finds(const struct opi_ahead *ahead, const opi_message_run *message,
                     uint64_t number);
static inline bool opi_ahead_posts(const opi_rank *rank, const opi_message_run *message,
                                   uint64_t number) {
  return rank->worker->ahead != NULL && rank->worker->ahead->n_posts != 0 &&
         opi_ahead_finds(rank->worker->ahead, message, number);
}

/* A program comes next: what it is entered with notes when the device comes to it. */
opipe_status opi_ahead_begin(opi_rank *rank, opipe_error *err);
/* Appends an entry; RUN, DATA, STORE: and records its event. There is room. */
opipe_status opi_ahead_push(opi_rank *rank, const opi_ahead_entry *entry, opipe_error *err);
/* n_bytes of staging memory for the next entry; NULL: none is free yet. */
char *opi_ahead_stage(opi_rank *rank, uint64_t n_bytes);
/* Does what is due. Polls: the rank looks again soon as long as something is left. */
opipe_status opi_ahead_act(opi_rank *rank, opipe_error *err); /* the device is asynchronous */
static inline opipe_status opi_ahead_move(opi_rank *rank, opipe_error *err) {
  return rank->worker->ahead == NULL ? OPIPE_OK : opi_ahead_act(rank, err);
}
/* The same until nothing is left, or the session has failed. Blocks. */
opipe_status opi_ahead_drain(opi_rank *rank, opipe_error *err);

/* For the watchdog: the device is at the first entry. There is one. */
void opi_ahead_note(opi_rank *rank);
void opi_rank_note_ahead(opi_rank *rank, const opi_ahead_entry *entry,
                         uint64_t since_ns); /* watch.c */

/* The event that the message which is being tried has to wait for: it stands behind all that is
 * queued. *out NULL: nothing is. OPIPE_PENDING: no event is free. */
opipe_status opi_ahead_ready(opi_rank *rank, opipe_event **out, opipe_error *err);
/* The message is the transport's, with its event. */
static inline void opi_ahead_given(opi_rank *rank) {
  if (rank->worker->ahead != NULL)
    rank->worker->ahead->standing = NULL;
}
/* It has arrived: its event is free. Accepts NULL. */
static inline void opi_ahead_arrived(opi_rank *rank, opipe_event *ready) {
  if (ready != NULL)
    rank->worker->ahead->sends[rank->worker->ahead->n_sends++] = ready;
}

/* Runs work->step's program with the first n_scalars of the rank's scalars. There is room for its
 * entry. programs.c */
opipe_status opi_program_run(opi_rank *rank, opi_errand *work, opipe_binding *binding,
                             uint32_t n_scalars, opipe_error *err);

/* Entries that are due, in programs.c, training.c, feed.c, interpret.c. `status` is that of the
 * run's event; at: when the device was at it, NULL: as the host saw it. */
opipe_status opi_step_ran(opi_rank *rank, const opi_errand *run, const opi_span *at,
                          opipe_status status, opipe_error *local, opipe_error *err);
void opi_step_summing(const opi_ahead_entry *sum);
void opi_step_stored(opi_rank *rank, const opi_ahead_entry *store);
void opi_rank_leave(opi_rank *rank, opi_request *request);

#endif /* OPI_AHEAD_H */
