/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of NCCL's double.
 *
 * One lock guards all that a process has of its own. It is taken inside the driver's: a stream asks
 * the launch at its head under that one. Every word that processes share has one writer, and
 * counters say how far that one is.
 */
#ifndef OPIPE_TEST_NCCL_DOUBLE_H_
#define OPIPE_TEST_NCCL_DOUBLE_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "api.h"

enum {
  NCCL_PATIENCE_MS = 30000,
  MOST_RANKS = 16,
  CHUNK = 32768,
  SPLITS = 4,
  UUID = 16,
  WORDS = 160
};

/* ---- shared by processes ---- */

enum {
  TASK_SEND,
  TASK_RECV,
  TASK_ALL_REDUCE,
  TASK_REDUCE_SCATTER,
  TASK_ALL_GATHER,
  TASK_BROADCAST,
  TASK_REDUCE
};

/* The ends of an operation must have this in common. */
typedef struct nccl_header {
  uint64_t count;
  int32_t kind, type, op, root;
} nccl_header;

/* Where a communicator's memory is: file `fd` of process `pid`. */
typedef struct nccl_place {
  char magic[8];
  int32_t pid, fd;
  uint64_t nonce;
} nccl_place;

typedef struct nccl_split {
  _Atomic uint64_t number;  /* of the split that the following is about, from 1 */
  _Atomic uint64_t offered; /* the same for `place` */
  int32_t colour, key;
  nccl_place place; /* of the new communicator, from its first member */
} nccl_split;

/* How far a process is: the same in all its communicators. */
typedef struct nccl_status {
  _Atomic uint64_t runs;              /* number of the launch that it runs; 0: none */
  _Atomic uint64_t moves;             /* steps of all launches that did something */
  _Atomic uint64_t looks;             /* that did not */
  _Atomic int32_t awaits[MOST_RANKS]; /* processes, up to the first 0 */
  char text[WORDS];                   /* names its launch */
} nccl_status;

/* Written by the member alone. */
typedef struct nccl_member {
  _Atomic uint32_t joined, finalized;
  int32_t pid, version;
  uint64_t host;
  char uuid[UUID];
  nccl_split splits[SPLITS];
  _Atomic uint64_t met;         /* collectives that it has come to */
  nccl_header header;           /* the last one */
  _Atomic uint32_t used;        /* it wants the connections of collectives */
  _Atomic uint64_t wrote, took; /* pieces of all collectives so far */
  nccl_status status;
  unsigned char piece[CHUNK];
} nccl_member;

/* From one member to another. sends, header_sent, wrote: the sender's; the rest the receiver's. */
typedef struct nccl_channel {
  _Atomic uint32_t used_sender, used_receiver; /* it wants the connection */
  _Atomic uint64_t sends, recvs;               /* operations that it has come to */
  nccl_header sent, received;                  /* the last one of each */
  _Atomic uint64_t wrote, took;                /* pieces so far */
  unsigned char piece[CHUNK];
} nccl_channel;

typedef struct nccl_shared {
  uint64_t nonce;
  _Atomic uint32_t n_ranks; /* 0: nobody has come */
  _Atomic uint32_t n_here;  /* members that have it */
} nccl_shared;

/* ---- of one process ---- */

typedef struct nccl_task {
  struct nccl_task *next;
  ncclComm_t comm;
  struct CUstream_st *stream;
  const void *from;
  void *to;
  nccl_header header; /* root: the peer, of a message */
  uint64_t number;    /* of such operations between the two, or of the communicator's collectives */
  uint64_t n_pieces, n_done;
  bool posted, matched, over;
} nccl_task;

/* The tasks that one call, or one group, gives to one communicator. */
typedef struct nccl_launch {
  struct nccl_launch *next;  /* that waits outside of its stream */
  struct nccl_launch *after; /* that has not begun */
  ncclComm_t comm;
  nccl_task *tasks;
  uint32_t n_tasks;
  uint64_t number; /* of the process's launches, from 1 */
  uint64_t group;  /* the first of its group */
  uint64_t begins_ns;
  uint64_t stands_ns; /* since when nothing has moved */
  bool connects;      /* it needed a new connection */
  bool runs;
} nccl_launch;

enum {
  COMM_STARTING,
  COMM_READY,
  COMM_LAUNCHING,
  COMM_FINALIZING,
  COMM_FINALIZED,
  COMM_FAILED,
  COMM_ABORTED
};

struct ncclComm {
  struct ncclComm *next;
  int state; /* COMM_* */
  int error; /* of COMM_FAILED */
  int rank, n_ranks, device;
  bool blocking, destroyed, silent;
  nccl_place place;
  nccl_shared *shared; /* NULL: not yet */
  size_t n_bytes;
  uint64_t ready_ns; /* it is not ready before */
  char uuid[UUID];
  /* a communicator that is made by a split */
  ncclComm_t parent;
  uint64_t split;
  int colour, key;
  /* launches */
  nccl_launch *launch; /* that is not yet in its stream */
  struct CUstream_st *stream;
  uint32_t n_queued; /* launches in streams */
  uint64_t n_splits, n_collectives, n_sent[MOST_RANKS], n_received[MOST_RANKS];
  bool connected, sends_to[MOST_RANKS], receives_from[MOST_RANKS];
  uint32_t n_enrolled;
};

extern pthread_mutex_t nccl_lock;
extern ncclComm_t nccl_comms; /* that are open */

/* ---- options.c ---- */

uint64_t nccl_option(const char *name, uint64_t fallback); /* name without its beginning */
uint64_t nccl_draw(uint64_t n);                            /* under nccl_lock */
uint64_t nccl_now_ns(void);
void nccl_nap(uint64_t us);
_Noreturn void nccl_die(const char *form, ...) __attribute__((format(printf, 1, 2)));
/* A result, with a text for ncclGetLastError. */
int nccl_fail(int result, const char *form, ...) __attribute__((format(printf, 2, 3)));
const char *nccl_words(void);
enum { FAULT_NONE, FAULT_SILENT, FAULT_DIE, FAULT_STOP, FAULT_ERROR };
/* The fault that is asked for here; FAULT_DIE and FAULT_STOP happen before it returns. */
int nccl_fault(const char *where);
/* sum: of the launches with a collective; 0: it has none. */
int nccl_fault_at_launch(uint64_t number, uint64_t sum);
typedef struct nccl_counts {
  uint64_t comms, connections, launches, most, messages, late, aborts;
  uint64_t moves; /* steps of launches that did something */
  bool settled;   /* a launch needed no connection */
} nccl_counts;
extern nccl_counts nccl_counted;
void nccl_count_late(const char *what);
void nccl_report(void);

/* ---- shared.c ---- */

int nccl_place_make(nccl_place *out);
/* Maps the memory of all members. ncclInProgress: it is not there yet. */
int nccl_place_open(ncclComm_t comm);
/* Gives back what was made here and has been opened by all. False: some is still needed. */
bool nccl_places_drop(void);
void nccl_place_close(ncclComm_t comm);
nccl_member *nccl_member_of(const struct ncclComm *comm, int rank);
nccl_channel *nccl_channel_of(const struct ncclComm *comm, int from, int to);

/* ---- comm.c ---- */

/* Goes on with what the communicator has been asked for. */
void nccl_advance(ncclComm_t comm);
int nccl_check(ncclComm_t comm, const char *what); /* may it be given work? */
void nccl_abort_end(ncclComm_t comm);              /* waits for its launches, and closes it */

/* ---- thread.c: a thread goes on with everything while there is a communicator or an id ---- */

void nccl_wake(void); /* under the lock */
void nccl_rest(void); /* under the lock: if nothing is left, waits for its end */

/* ---- group.c ---- */

bool nccl_inside_group(void);
/* True: its end is the group's end. */
bool nccl_group_aborts(ncclComm_t comm);
bool nccl_launch_waits(void); /* under the lock: is one outside of its stream? */
void nccl_launch_some(void);  /* puts those that can go into their streams; without the lock */
void nccl_launch_drop(ncclComm_t comm); /* that waits, if any; under the lock, which is given up */
void nccl_launch_free(nccl_launch *launch);

/* ---- run.c, sums.c, stuck.c ---- */

/* The order of the host's launches: one is added by its call, removed when it is dropped. */
void nccl_order_add(nccl_launch *launch);
void nccl_order_remove(const nccl_launch *launch);
size_t nccl_size_of(int type);
const char *nccl_type_name(int type);
const char *nccl_kind_name(int kind);
/* Called by the stream at whose head the launch stands, under the driver's lock; true: over. */
bool nccl_meet(const void *args);
/* values [count] from element `first` of `total` on: those of n members, one piece each. */
void nccl_combine(const nccl_header *header, void *to, const unsigned char *const *from, int n,
                  uint64_t first, uint64_t count, uint64_t total);
/* The launch that runs has moved, or has not and waits for those members. */
void nccl_tell(const nccl_launch *launch, bool moved, const bool *awaited);
void nccl_tell_idle(void);

#endif /* OPIPE_TEST_NCCL_DOUBLE_H_ */
