/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the engine. Inside engine.c, sequences.c and events.c. */
#ifndef OPI_GENERATE_GENERATOR_H
#define OPI_GENERATE_GENERATOR_H

#include "runtime/base/base.h"
#include "runtime/generate/sequences.h"
#include "runtime/generate/turns.h"

struct opi_host_sequence {
  opi_generator *generator;
  struct opi_home *home;
  opi_handle_entry *slot;
  opipe_sequence *handle;
  uint32_t number;     /* of its home's turns */
  bool open, gives_up; /* gives_up: a callback has cancelled its turn, which is about to end */
  uint32_t end;        /* OPIPE_END_* */
  opipe_error why;     /* of OPIPE_END_FAILED */
  opipe_error wish;    /* status < 0: on_token wants the turn to end with it */
  uint32_t n_prompt, n_tokens;
  uint64_t deadline_ns;      /* on the monotonic clock; UINT64_MAX: none */
  opipe_generate_params own; /* ctx and callbacks count */
};

/* A fork that waits until nothing of its sequence is in flight. On its caller's stack. */
typedef struct opi_fork_wish {
  struct opi_fork_wish *next;
  opi_host_sequence *sequence, *other;
  const uint64_t *seed;
  void *ctx;           /* of the other's callbacks */
  opipe_status status; /* OPIPE_PENDING: not yet */
  opipe_error why;
} opi_fork_wish;

/* A pass in flight, in order. */
typedef struct opi_flight {
  bool begun;      /* by the runner */
  opipe_error why; /* if it was not */
} opi_flight;

/* One replica's sequences, pages and passes: a sequence stays at its home, so beginnings are shared
 * there alone. */
typedef struct opi_home {
  opi_generator *generator;
  opi_pass_runner runner;
  opi_thread thread;
  opi_turns *turns;
  bool refused;                       /* the sequence that is being opened */
  opi_host_sequence *sequences;       /* [n_sequences] */
  opi_flight *flights;                /* [groups]: pass p is at p % groups */
  uint64_t n_begun, n_ended, n_taken; /* passes; taken: by the runner */
  /* One pass as arrays: rows [rows], tables [active, table_room], copies [active]. */
  int64_t *ids, *positions, *of_sequence, *wanted, *table;
  uint32_t *row_ids; /* [rows] */
  opi_page_copy *copies;
} opi_home;

struct opi_generator {
  opi_generator_params params;
  opi_lock lock;
  bool lock_made, stopping;
  opi_home *homes;              /* [params.n_runners] */
  opi_host_sequence *sequences; /* [n_sequences], of all homes */
  uint32_t n_sequences, table_room;
  opi_fork_wish *forks;               /* a list */
  uint64_t n_flying;                  /* passes of all homes */
  uint64_t working_ns, working_since; /* with passes in flight; since: 0: none is */
  uint64_t next_deadline_ns;          /* of all turns; UINT64_MAX: none */
  uint64_t n_bytes;
};

/* Takes the lock, unless this thread is in a callback, which has it. STATE: in one of another
 * generator. */
opipe_status opi_generator_enter(opi_generator *generator, const char *call, opipe_error *err);
void opi_generator_leave(opi_generator *generator);
/* Why nothing can be asked: it is being closed. Under the lock. */
opipe_status opi_generator_check(const opi_generator *generator, const char *call,
                                 opipe_error *err);
/* There may be something to begin: wakes the thread, or begins it here. Under the lock. */
void opi_generator_kick(opi_generator *generator);
/* Ends and begins passes without waiting. Under the lock. */
void opi_generator_pump(opi_generator *generator);
/* Forks whose sequence has nothing in flight. Under the lock. */
void opi_generator_fork_due(opi_generator *generator);
/* Ends turns whose deadline has passed. Under the lock. */
void opi_generator_expire(opi_generator *generator);
/* Ends turns that callbacks want to end; not inside one. Under the lock. */
void opi_generator_grant(opi_generator *generator);
/* Fills `out` with arrays of the newest pass, valid until the next one. */
void opi_home_describe(opi_home *home, const opi_pass *pass, opi_pass_rows *out);

extern const opi_turn_events opi_generator_events; /* ctx: the home */
/* The end of a sequence's handle. */
void opi_sequence_end(void *sequence);
/* Opens the object of a sequence of the turns; `as`: its turn's callbacks. */
void opi_sequence_begin(opi_home *home, uint32_t number, const opi_host_sequence *as);

#endif /* OPI_GENERATE_GENERATOR_H */
