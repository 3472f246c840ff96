/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the engine. Inside engine.c, sequences.c and events.c. */
#ifndef OPI_GENERATE_GENERATOR_H
#define OPI_GENERATE_GENERATOR_H

#include "runtime/base/base.h"
#include "runtime/generate/sequences.h"
#include "runtime/generate/turns.h"

/* The callback of a sequence that runs. */
enum { OPI_SAYS_NOTHING, OPI_SAYS_TOKEN, OPI_SAYS_END, OPI_SAYS_OTHER };

struct opi_host_sequence {
  opi_generator *generator;
  struct opi_home *home;
  opi_handle_entry *slot;
  opipe_sequence *handle;
  uint32_t number; /* of its home's turns */
  bool open;
  bool gives_up;    /* its turn was cancelled while a thread told: it ends next */
  bool leaves;      /* its handle is gone: it is closed next */
  uint32_t says;    /* OPI_SAYS_* */
  uint32_t ends;    /* OPI_TURN_*: opened with a turn that is over, which is told next; else 0 */
  uint32_t end;     /* OPIPE_END_* */
  opipe_error why;  /* of OPIPE_END_FAILED */
  opipe_error wish; /* status < 0: on_token wants the turn to end with it */
  uint32_t n_prompt, n_tokens;
  uint64_t deadline_ns;      /* on the monotonic clock; UINT64_MAX: none */
  opipe_generate_params own; /* ctx and callbacks count */
};

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
  opi_pass_rows stalled; /* number 0: none. The next pass, which the runner had no room for */
} opi_home;

struct opi_generator {
  opi_generator_params params;
  opi_lock lock;
  bool lock_made, stopping;
  bool telling;                 /* a thread may be in callbacks: it alone ends passes and turns */
  bool again;                   /* driven: pump once more when it has told */
  opi_home *homes;              /* [params.n_runners] */
  opi_host_sequence *sequences; /* [n_sequences], of all homes */
  uint32_t n_sequences, table_room;
  uint64_t n_flying;                  /* passes of all homes */
  uint64_t working_ns, working_since; /* with passes in flight; since: 0: none is */
  uint64_t next_deadline_ns;          /* of all turns; UINT64_MAX: none */
  uint64_t n_bytes;
};

/* Takes the lock. STATE: in a callback of another generator. */
opipe_status opi_generator_enter(opi_generator *generator, const char *call, opipe_error *err);
void opi_generator_leave(opi_generator *generator);
/* Why nothing can be asked: it is being closed. Under the lock. */
opipe_status opi_generator_check(const opi_generator *generator, const char *call,
                                 opipe_error *err);
/* There may be something to begin: wakes the threads, or begins it here. Under the lock. */
void opi_generator_kick(opi_generator *generator);
/* Ends and begins passes without waiting. Under the lock. */
void opi_generator_pump(opi_generator *generator);

/* Surround whatever may call back, which gives the lock up meanwhile. Under the lock. tell: waits
 * until no other thread does. told: first does what was wished for meanwhile; wakes who waits. */
void opi_generator_tell(opi_generator *generator);
void opi_generator_told(opi_generator *generator);
/* Ends turns whose deadline has passed. While telling. */
void opi_generator_expire(opi_generator *generator);
/* Ends turns and sequences that are to end. While telling. */
void opi_generator_grant(opi_generator *generator);
/* Fills `out` with arrays of the newest pass, valid until the next one. */
void opi_home_describe(opi_home *home, const opi_pass *pass, opi_pass_rows *out);

extern const opi_turn_events opi_generator_events; /* ctx: the home */
/* The end of a sequence's handle. */
void opi_sequence_end(void *sequence);
/* Opens the object of a sequence of the turns; `as`: its turn's callbacks. */
void opi_sequence_begin(opi_home *home, uint32_t number, const opi_host_sequence *as);

#endif /* OPI_GENERATE_GENERATOR_H */
