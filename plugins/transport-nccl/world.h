/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-nccl: one rank of a process, whose messages and sums are NCCL's work on its GPU.
 *
 *   lane      a queue of the rank's device. Everything goes there, in the order of the rank's list:
 *             batches (a group of sends and receives each), sums, and the copies that these need
 *   launch    what one ncclGroupEnd starts. NCCL does that on a thread of its own: the lane is
 *             touched again once ncclCommGetAsyncError says that it stands there
 *   comm      a communicator: one for messages, one for each set of members that sums
 *   helper    a thread that polls errors, hears of the end, and aborts what hangs
 *
 * Invariants
 * - `lock` guards an endpoint and every call of NCCL for it, save those that abort. Nothing under
 *   it waits for a peer.
 * - Communicators and connections are made by the first endpoint_ready, in one order on all ranks
 *   (messages; sets by their ranks; edges by their ranks). Whatever would need another one later is
 *   refused: made in the middle of a run it could wait for a rank that waits for this one.
 * - Launches of one lane end in their order, so a number says what is done.
 * - Once the world has ended no call but the helper's touches a communicator.
 */
#ifndef OPIPE_TRANSPORT_NCCL_WORLD_H
#define OPIPE_TRANSPORT_NCCL_WORLD_H

#include <opipe/collect.h>
#include <opipe/streams.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "../machine/machine.h"
#include "../machine/round.h"
#include "vendor.h"

enum {
  NCCL_LEAST = 22600, /* as ncclGetVersion says it: 2.26.0 */
  NCCL_RANKS_MOST = 4096,
  NCCL_PATH = 256,
  NCCL_TEXT = 320,
  NCCL_CLOSE_NS = 2000000000,
  NCCL_MARKS = 16,        /* launches whose end can be told apart */
  NCCL_RECORDS = 256,     /* operations that are remembered */
  NCCL_SCRATCH = 1 << 25, /* bytes of a window of values whose lists have several regions */
  NCCL_SMALL = 4096       /* bytes of device memory for warm-ups */
};

struct opipe_instance {
  const opipe_host *host;
};

/* ---- the libraries: once per process ---- */

typedef struct nccl_library {
  nccl_calls nccl;
  nccl_driver driver;
  int version; /* 22809: 2.28.9 */
  char path[512];
} nccl_library;

typedef struct nccl_options {
  uint32_t ctas, sum_ctas, setup_s;
  bool share, check, records;
  double latency_ns, bandwidth;
  char record[NCCL_PATH]; /* "": the usual folder */
} nccl_options;

/* ---- worlds ---- */

struct opipe_world {
  const opipe_host *host;
  uint32_t n_ranks;
  nccl_options options;
  pid_t process; /* a forked child touches nothing */
  const nccl_library *library;
  const opipe_board *board; /* NULL: one rank alone */
  char job[64];
  pthread_mutex_t lock;     /* `why` */
  _Atomic uint32_t ended;   /* 1: `why` holds */
  _Atomic uint32_t orderly; /* 1: it was closed, nothing failed */
  uint32_t end_rank;
  uint64_t end_ns;
  opipe_error why;
  _Atomic(opipe_endpoint *) endpoint; /* its only one; NULL: none */
};

/* ---- communicators ---- */

enum { NCCL_COMM_NEW = 0, NCCL_COMM_STARTS, NCCL_COMM_STANDS };

typedef struct nccl_comm {
  struct nccl_comm *next; /* in the order in which they are made */
  uint32_t *ranks;        /* [n] rising */
  uint32_t n, index;      /* index: the rank's own */
  bool sums;              /* false: for messages */
  uint32_t state;         /* NCCL_COMM_* */
  bool warm;
  uint64_t n_groups, hash; /* opened before they were made */
  uint32_t seen;           /* the rank, plus 1, in whose note it was found */
  ncclComm_t comm;
} nccl_comm;

/* ---- a remembered operation ---- */

enum {
  NCCL_DID_SEND = 0,
  NCCL_DID_RECV,
  NCCL_DID_ALL_REDUCE,
  NCCL_DID_REDUCE_SCATTER,
  NCCL_DID_ALL_GATHER,
  NCCL_DID_WARM,
  NCCL_DID_CHECK
};

typedef struct nccl_record {
  uint64_t number; /* of the rank's operations, from 0 */
  uint64_t launch; /* that started it; 0: none yet */
  uint64_t sequence, group, n_bytes;
  uint64_t at_ns;
  uint32_t kind, peer; /* peer: a rank; of a sum the number of members */
} nccl_record;

/* ---- endpoints ---- */

typedef struct nccl_op { /* of a batch */
  opipe_stream *stream;  /* NULL: it was closed */
  uint64_t sequence, n_bytes, address;
  uint32_t side; /* 0: send */
  bool orders;   /* it is over for the host once `done` is recorded */
  opipe_event *ready, *done;
  uint64_t record; /* its number */
} nccl_op;

enum { NCCL_BATCH_NONE = 0, NCCL_BATCH_NOTES, NCCL_BATCH_LAUNCHES, NCCL_BATCH_STANDS };

typedef struct nccl_batch {
  uint32_t state, n; /* NCCL_BATCH_* */
  uint64_t launch;
  bool awaits; /* some of its operations are over once the device is */
  nccl_op ops[OPIPE_BATCH_MOST];
} nccl_batch;

typedef struct nccl_edge {  /* to one other rank */
  uint64_t n_streams, hash; /* opened before communicators were made */
  bool warm;
} nccl_edge;

enum { NCCL_SETUP_NEW = 0, NCCL_SETUP_MEETS, NCCL_SETUP_MAKES, NCCL_SETUP_WARMS, NCCL_SETUP_DONE };

typedef struct nccl_setup {
  uint32_t state; /* NCCL_SETUP_* */
  uint32_t n_posted;
  uint64_t until_ns;
  bool *heard;          /* [n_ranks] */
  uint8_t (*uuids)[16]; /* [n_ranks] of the GPUs of ranks that were heard */
  nccl_edge *edges;     /* [n_ranks] */
  void *environment;    /* the host's, with NCCL_HOSTID; NULL: it is the host's own */
  uint64_t n_environment;
  char **host_environ;
  char host_id[64];
} nccl_setup;

typedef struct nccl_bell {
  machine_bell bell;
  pthread_mutex_t lock; /* the next two */
  void (*notify)(void *ctx);
  void *ctx;
  bool has_lock;
} nccl_bell;

typedef struct nccl_helper {
  pthread_t thread;
  pthread_cond_t work;
  bool is_there, stops;
  bool aborts, aborted; /* communicators are aborted; they have been */
  bool nudge;           /* ring soon: somebody is to look again */
  uint32_t hears;       /* the last rank of which it has asked the board */
} nccl_helper;

/* Device memory that no plan counts. */
typedef struct nccl_own {
  uint64_t scratch, small; /* addresses: of windows; of warm-ups and checks. 0: none */
  opipe_buffer *scratch_buffer, *small_buffer;
} nccl_own;

struct opipe_endpoint {
  nccl_bell ring;
  opipe_world *world;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *lane;
  cudaStream_t stream; /* the lane's */
  CUdevice gpu;
  CUcontext context;
  bool has_context, has_lock;
  uint32_t rank, spin_us;
  pthread_mutex_t lock; /* all below */
  nccl_setup setup;
  nccl_comm *comms, *messages; /* messages: the first of them */
  nccl_comm *launching;        /* NULL: all launches stand in the lane */
  uint64_t n_launches, n_done;
  opipe_event *marks[NCCL_MARKS]; /* behind launch number i % NCCL_MARKS */
  struct opipe_group *busy;       /* its sum is on its way to the lane */
  nccl_batch batch;
  opipe_stream *streams;
  struct opipe_group *groups;
  bool unready;  /* nobody rings for what the last call waits for */
  bool given_up; /* the lane's work does not end: nothing is done with the device any more */
  nccl_own own;
  nccl_record records[NCCL_RECORDS];
  uint64_t n_records;
  nccl_helper helper;
};

struct opipe_memory {
  const opipe_host *host;
};

/* ---- streams ---- */

typedef struct nccl_slot { /* message q uses slot q % depth */
  uint64_t begun, ended;   /* q + 1 */
} nccl_slot;

struct opipe_stream {
  opipe_stream *next;
  opipe_endpoint *endpoint;
  opipe_stream_params params;
  uint32_t side, peer;
  uint64_t n_begun; /* the next number */
  uint64_t launch;  /* the last that it takes part in */
  nccl_slot *slots; /* [depth] */
};

/* ---- groups ---- */

enum { NCCL_ROUND_NONE = 0, NCCL_ROUND_CHECKS, NCCL_ROUND_COMPARES, NCCL_ROUND_MOVES };

struct opipe_group {
  struct opipe_group *next;
  opipe_endpoint *endpoint;
  nccl_comm *comm;
  machine_round round; /* no host addresses: spans hold the device's */
  uint32_t *roots;     /* [n] the communicator's rank of each member */
  uint32_t n;
  bool sorted;           /* members are in the communicator's order */
  uint32_t phase;        /* NCCL_ROUND_* */
  uint64_t n_told;       /* rounds whose call has answered OK */
  bool flying;           /* a window was launched, and does not stand in the lane yet */
  uint64_t first, limit; /* values of the window */
  uint64_t launch;       /* of the round's last window; 0: it has none */
  uint64_t last;         /* the last launch of any round */
  uint64_t record;
  uint64_t *heads; /* [(n + 1) * (4 + n)] of a check: own, then all; NULL: none */
  opipe_error why; /* it is of no use any more; status 0: it is */
};

struct opipe_collective {
  opipe_group group;
};

/* ---- world.c ---- */
extern const opipe_transport nccl_transport;
void *nccl_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err);
void nccl_delete(const opipe_host *host, void *data, size_t n_bytes);
bool nccl_is_child(const opipe_world *world);
/* OK | PEER with the reason. */
opipe_status nccl_check(opipe_world *world, opipe_error *err);
/* Ends the world; the first reason wins. [any-thread] posts: tells the others by the board. */
void nccl_end(opipe_world *world, uint32_t rank, const opipe_error *why, bool posts);
void nccl_log(const opipe_host *host, uint32_t level, const char *text);
void nccl_ring(opipe_endpoint *endpoint);
/* The answer of a call that waits for what nobody rings for. */
opipe_status nccl_again(opipe_endpoint *endpoint);
opipe_status nccl_address(const opipe_endpoint *endpoint, const opipe_region *region,
                          uint64_t *out_address, opipe_error *err);

/* ---- options.c ---- */
opipe_status nccl_read_options(const char *text, nccl_options *out, opipe_error *err);

/* ---- library.c ---- */
opipe_status nccl_library_open(const nccl_library **out, opipe_error *err);
/* "2.28.9" */
void nccl_version_text(int version, char out[32]);

/* ---- launch.c; the lock is held ---- */
/* Is a call of NCCL's fine, or under way? Else the world ends, and the answer says why. */
opipe_status nccl_fine(opipe_endpoint *endpoint, const nccl_comm *comm, const char *call,
                       ncclResult_t result, opipe_error *err);
opipe_status nccl_push(const opipe_endpoint *endpoint, opipe_error *err);
void nccl_pop(const opipe_endpoint *endpoint);
/* A group of calls: begin, the calls, end; their launch is number n_launches then. */
opipe_status nccl_launch_begin(opipe_endpoint *endpoint, opipe_error *err);
opipe_status nccl_launch_end(opipe_endpoint *endpoint, nccl_comm *comm, opipe_status status,
                             opipe_error *err);
/* OK: the last launch stands in the lane, and may be followed. PENDING: not yet. */
opipe_status nccl_launch_poll(opipe_endpoint *endpoint, opipe_error *err);
/* Records the mark of the last launch, behind all that the lane has. */
opipe_status nccl_mark(opipe_endpoint *endpoint, opipe_error *err);
/* OK once launch `number` is done. */
opipe_status nccl_done(opipe_endpoint *endpoint, uint64_t number, opipe_error *err);
/* OK: launch `number` is done, also after the world's end. PENDING | < 0: the device has failed. */
opipe_status nccl_settle(opipe_endpoint *endpoint, uint64_t number);
/* Waits until launch `number`, whose memory the caller is about to give up, is done: at most 2 s
 * for peers, then the world ends, and as long again for the helper; then the lane is given up.
 * Without the lock. */
void nccl_leave(opipe_endpoint *endpoint, uint64_t number);
/* The lane's work does not end: from here on the backend frees nothing that it may touch, and the
 * lane takes nothing any more. Without the lock. */
void nccl_give_up(opipe_endpoint *endpoint);
/* Moves on what is on its way to the lane. OK | PENDING | < 0. */
opipe_status nccl_go_on(opipe_endpoint *endpoint, opipe_error *err);
/* The same within spin_us. */
opipe_status nccl_go_on_soon(opipe_endpoint *endpoint, opipe_error *err);
/* Device memory of the endpoint's own, once: nothing later frees it before the endpoint closes. */
opipe_status nccl_memory_make(const opipe_endpoint *endpoint, uint64_t n_bytes,
                              uint64_t *io_address, opipe_buffer **io_buffer, opipe_error *err);

/* ---- setup.c ---- */
opipe_status nccl_endpoint_ready(opipe_endpoint *endpoint, opipe_error *err);
/* Counts what is opened, as long as communicators can be made for it. Errors: STATE: later. */
opipe_status nccl_count_stream(opipe_endpoint *endpoint, const opipe_stream_params *params,
                               opipe_error *err);
opipe_status nccl_count_group(opipe_endpoint *endpoint, const opipe_collective_params *params,
                              bool collects, nccl_comm **out_comm, opipe_error *err);
opipe_status nccl_count_all(opipe_endpoint *endpoint, opipe_error *err);

/* ---- meet.c; the lock is held ---- */
/* Posts this rank's note, and compares those of the others with it. OK | PENDING | < 0. */
opipe_status nccl_meet(opipe_endpoint *endpoint, opipe_error *err);
/* The unique id of a communicator, by the board. */
opipe_status nccl_find_id(opipe_endpoint *endpoint, const nccl_comm *comm, ncclUniqueId *out,
                          opipe_error *err);
/* own: this process's rank; rank: that has ended the world. */
void nccl_post_end(opipe_world *world, uint32_t own, uint32_t rank, const opipe_error *why);
/* Has another rank ended the world? of_all: asks for every rank, else for the next ones. */
void nccl_hear_end(opipe_endpoint *endpoint, bool of_all);

/* ---- comms.c; the lock is held ---- */
/* OK once it stands. */
opipe_status nccl_comm_make(opipe_endpoint *endpoint, nccl_comm *comm, opipe_error *err);
/* Has one of them failed meanwhile? Then the world ends. */
void nccl_comms_poll(opipe_endpoint *endpoint);
/* Ends all in order until the clock shows until_ns. False: one does not end. */
bool nccl_comms_finish(opipe_endpoint *endpoint, uint64_t until_ns);
/* The helper's; without the lock. */
void nccl_comms_abort(opipe_endpoint *endpoint);
void nccl_comms_free(opipe_endpoint *endpoint);

/* ---- helper.c ---- */
opipe_status nccl_helper_start(opipe_endpoint *endpoint, opipe_error *err);
/* False: it does not end within the time. */
bool nccl_helper_stop(opipe_endpoint *endpoint, uint64_t until_ns);
void nccl_helper_wake(opipe_endpoint *endpoint);

/* ---- record.c; the lock is held ---- */
uint64_t nccl_note(opipe_endpoint *endpoint, uint32_t kind, uint32_t peer, uint64_t group,
                   uint64_t sequence, uint64_t n_bytes);
/* Operation `number` belongs to launch `launch`. */
void nccl_noted(opipe_endpoint *endpoint, uint64_t number, uint64_t launch);
/* Writes them as JSON, with the reason of the world's end. */
void nccl_write_records(opipe_endpoint *endpoint);

/* ---- streams.c, messages.c ---- */
opipe_status nccl_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                              opipe_stream **out_stream, opipe_error *err);
void nccl_stream_close(opipe_stream *stream);
opipe_status nccl_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status nccl_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status nccl_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *done, opipe_error *err);
opipe_status nccl_recv_after(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                             opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status nccl_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status nccl_batch_begin(opipe_endpoint *endpoint, opipe_error *err);
opipe_status nccl_batch_end(opipe_endpoint *endpoint, opipe_error *err);
/* Moves on a batch that launches. */
opipe_status nccl_batch_go_on(opipe_endpoint *endpoint, opipe_error *err);
void nccl_batch_forget(opipe_stream *stream);

/* ---- groups.c, collect.c ---- */
opipe_status nccl_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                             uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void nccl_group_close(opipe_group *group);
opipe_status nccl_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                  opipe_collective **out_collective, opipe_error *err);
void nccl_collective_close(opipe_collective *collective);
opipe_status nccl_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                             uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                             opipe_event *done, opipe_error *err);
opipe_status nccl_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
opipe_status nccl_collect(opipe_collective *collective, uint64_t sequence,
                          const opipe_collect *collect, opipe_error *err);
opipe_status nccl_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);
/* Moves on the round that is on its way to the lane. */
opipe_status nccl_round_go_on(opipe_group *group, opipe_error *err);

/* ---- windows.c: what of a round one launch carries ---- */
/* Whether values need the scratch, and how much of it: equal on all members. */
uint64_t nccl_window_bytes(const opipe_group *group);
/* Chooses the window from value `first` on, packs what it needs, and launches it. */
opipe_status nccl_window_launch(opipe_group *group, opipe_error *err);
/* It stands in the lane: what lies in the scratch goes home. */
opipe_status nccl_window_unpack(const opipe_group *group, opipe_error *err);

#endif /* OPIPE_TRANSPORT_NCCL_WORLD_H */
