/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-ucx: ranks of one machine go by transport-shm, others by tags of UCX.
 *
 * A world contains a world of transport-shm (`near`), with the same local ranks; what joins two
 * ranks of one machine is opened there, and every call on it is handed on. A rank has a worker of
 * UCX, and a helper thread that sleeps on the worker's descriptor and moves messages while the rank
 * computes. Workers find each other by the world's board; streams, groups, and what a receiver has
 * posted are told by notes, short messages of their own tag.
 *
 * Invariants
 * - A worker's lock is held around every call of UCX for it, and guards its lists. UCX's callbacks
 *   run under it; they only say that an operation is over. Notes are heard after `progress`.
 * - A receive is posted before its sender is told, so no message of data comes unexpected.
 * - An operation's memory stays until it is over, or its worker is destroyed.
 * - The message path allocates nothing: operations and their requests lie in the stream or group.
 * - The world's end is that of `near`: shm_check says whether it has ended, and why.
 */
#ifndef OPIPE_TRANSPORT_UCX_H
#define OPIPE_TRANSPORT_UCX_H

#include <opipe/collect.h>
#include <opipe/ways.h>
#include <pthread.h>
#include <sys/types.h>

#include "../machine/machine.h"
#include "../machine/round.h"
#include "../transport-shm/near.h"
#include "ucp.h"

enum {
  UCX_RANKS_MOST = 1024,
  UCX_ADDRESS_MOST = 3840,  /* of a worker; a note of the board has OPIPE_BOARD_BYTES */
  UCX_HEARD_MOST = 1 << 16, /* streams and groups of peers that nobody here has opened */
  UCX_CONTROLS = 32,        /* receives of notes that are posted at once */
  UCX_TEXT = 320,
  UCX_PORTS = 16,
  UCX_WORDS = 192
};

struct opipe_instance {
  const opipe_host *host;
  opipe_instance *near;
};

/* ---- libucp: once per process ---- */

typedef struct ucx_library {
  ucp_calls ucp;
  unsigned major, minor, release;
  uint32_t error_mode; /* UCP_ERRORS_* */
  bool was_there;      /* before this plugin: with settings of somebody else's */
} ucx_library;

typedef struct ucx_options {
  char tls[UCX_WORDS], net[UCX_WORDS]; /* "": UCX's own */
  uint32_t together;                   /* ranks that may share memory; 0: all of a machine */
} ucx_options;

/* ---- operations ---- */

typedef struct ucx_worker ucx_worker;

typedef struct ucx_op {
  void *request; /* the end of its memory */
  ucx_worker *worker;
  _Atomic uint32_t pending;
  ucp_code status;
  uint32_t peer;                   /* the other rank */
  uint64_t n_bytes;                /* that have come */
  void (*over)(struct ucx_op *op); /* under the lock, not where it was over at once; may be NULL */
} ucx_op;

/* ---- notes ---- */

enum {
  UCX_NOTE_STREAM = 1, /* `rank` has opened side `index` of a stream, which it calls `id` */
  UCX_NOTE_GROUP,      /* `rank` has opened place `index` of a group, which it calls `id` */
  UCX_NOTE_CLOSE,      /* `id` of `rank` is closed */
  UCX_NOTE_POSTED,     /* stream `to`: message `sequence` may be sent, of n_bytes at most */
  UCX_NOTE_TAKEN,      /* group `to`: member `index` has taken `sequence` messages of kind `id` */
  UCX_NOTE_ABORT,      /* by `id`; text */
  UCX_NOTE_BYE,        /* `rank` leaves */
  UCX_NOTE_HEARD,      /* the answer: all that came before has arrived */
  UCX_NOTE_END
};

typedef struct ucx_brief { /* POSTED and TAKEN are no longer */
  uint32_t magic, kind;
  uint32_t rank, id;
  uint32_t to, index;
  uint64_t sequence, n_bytes;
} ucx_brief;

typedef struct ucx_note {
  ucx_brief brief;
  uint64_t hash[2];    /* of a group's ranks or id */
  uint64_t members[2]; /* of a group that collects: of its ranks */
  uint32_t n_members;
  uint32_t turn; /* how many such groups were opened before */
  int32_t status;
  uint32_t reserved;
  opipe_stream_params stream;
  char text[UCX_TEXT];
} ucx_note;

typedef struct ucx_letter { /* a note on its way */
  struct ucx_letter *next;
  ucx_op op;
  ucx_note note;
  char *requests;
} ucx_letter;

typedef struct ucx_heard { /* a stream or group that a peer has opened, and nobody here yet */
  struct ucx_heard *next;
  ucx_note note;
} ucx_heard;

typedef struct ucx_control { /* a receive of notes */
  ucx_op op;
  ucx_note note;
  struct ucx_control *next; /* that have come */
} ucx_control;

/* ---- worlds ---- */

typedef struct ucx_peer { /* as one worker knows it */
  ucx_worker *worker;
  uint32_t rank;
  ucp_handle ep; /* NULL: not connected */
  bool left;     /* it said BYE */
  bool heard;    /* our BYE */
} ucx_peer;

struct ucx_worker {
  opipe_world *world;
  uint32_t rank;
  pthread_mutex_t lock; /* all below, but the address */
  opipe_endpoint *endpoint;
  ucp_handle worker;
  int wakes; /* its descriptor; UCX's */
  uint8_t *address;
  size_t n_address;
  bool stopping, stopped, has_helper;
  pthread_t helper;
  ucx_peer *peers; /* [n_ranks] */
  opipe_stream *streams;
  opipe_group *groups;
  ucx_heard *heard;
  ucx_letter *letters;
  machine_count *counts;
  uint32_t last_id, n_heard;
  ucx_control *controls; /* [UCX_CONTROLS] */
  ucx_control *came, **last_came;
  char *requests;
  bool fails; /* the world is to end: said once the lock is free */
  uint32_t fail_rank;
  opipe_error why;
};

enum { UCX_UNKNOWN = 0, UCX_SAME_MACHINE, UCX_ELSEWHERE };

typedef struct ucx_seat { /* a rank as the world knows it */
  bool local, posted;
  uint32_t machine;   /* UCX_UNKNOWN until its note is read */
  ucx_worker *worker; /* here; NULL: UCX is not used */
  uint8_t *address;   /* elsewhere */
  uint64_t n_address;
} ucx_seat;

struct opipe_world {
  const opipe_host *host;
  opipe_world *near; /* of transport-shm: never looked into */
  uint32_t n_ranks;
  bool alone; /* all ranks are here */
  ucx_options options;
  pid_t process;              /* a forked child touches nothing */
  const ucx_library *library; /* NULL: UCX is not used */
  ucp_handle context;
  uint64_t request_bytes; /* with the distance to the next */
  void *environment;      /* as UCX saw it; kept while somebody may read it */
  uint64_t n_environment;
  pthread_mutex_t lock; /* seats' machine and address */
  ucx_seat *seats;
  const opipe_board *board;
  uint16_t ports[UCX_PORTS]; /* at which UCX listens */
  uint32_t n_ports;
  _Atomic uint32_t told; /* its end, to workers elsewhere */
};

struct opipe_endpoint {
  opipe_world *world;
  opipe_endpoint *near;
  ucx_worker *worker;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  uint32_t rank, spin_us;
  /* own thread */
  _Atomic bool has_remote; /* memory without host addresses was registered */
  bool unready;            /* an event of a device is awaited */
  struct ucx_slot *late;   /* messages that wait for `ready`, or whose `done` is to be recorded */
};

/* ---- streams ---- */

/* One message in flight, of one end: number q uses slot q % depth. */
typedef struct ucx_slot {
  struct opipe_stream *stream;
  uint64_t begun, ended; /* q + 1: sent or posted; finished */
  ucx_op op;
  opipe_region region; /* the receiver's */
  opipe_event *done;
  opipe_event *moved; /* behind the last copy by the device's queue */
  char *bounce;       /* for memory without a host address */
  bool away;          /* it is received in `bounce` */
  /* the sender's */
  _Atomic uint64_t posted; /* by the receiver's note: q + 1 */
  _Atomic uint64_t room;
  bool started, is_late;
  struct ucx_slot *next;
  opipe_event *ready;
  const char *source;
  uint64_t n_bytes;
  /* the receiver's */
  ucx_op tells;
  ucx_brief posts;
} ucx_slot;

struct opipe_stream {
  opipe_stream *next;
  opipe_endpoint *endpoint;
  opipe_stream *near; /* NULL: by UCX, or not known yet */
  opipe_stream_params params;
  uint32_t side, other; /* of the rank that is here; the other's rank */
  bool is_listed, by_ucx, told, joined;
  uint32_t id, peer_id;
  ucx_slot *slots; /* [depth] */
  char *requests;
  opipe_ring ring; /* the slots' bounces */
  bool has_ring;
  char why[160]; /* why the ring is not pinned; "": it is */
};

/* ---- groups ---- */

enum { UCX_VALUES = 0, UCX_SUMS = 1, UCX_WINDOW = 2 };

typedef struct ucx_piece { /* of a message to or from a member */
  ucx_op op, tells;
  ucx_brief takes;
  char *data;
} ucx_piece;

/* One direction between two members: messages are numbered from the group's start on, number m in
 * piece m % UCX_WINDOW. */
typedef struct ucx_lane {
  uint64_t n;             /* messages sent, or taken */
  _Atomic uint64_t taken; /* by the other end, as it says */
  ucx_piece pieces[UCX_WINDOW];
} ucx_lane;

typedef struct ucx_member {
  uint32_t id; /* of its group, as it calls it */
  bool known;
  ucx_lane out, in[2]; /* out: values; in: by UCX_VALUES, UCX_SUMS */
  _Atomic uint64_t sums_taken;
  uint64_t n_sums; /* given to it since the start; number n lies in sums[n % UCX_WINDOW] */
  ucx_op sums[UCX_WINDOW];
  /* of the round */
  bool said, agreed;          /* heads: ours to it, its to us */
  uint64_t sent, come, given; /* pieces */
} ucx_member;

typedef struct ucx_room { /* of a group's messages */
  char *staging, *requests;
  uint64_t n_staging, n_requests;
  char *sums[UCX_WINDOW];
} ucx_room;

struct opipe_group {
  opipe_group *next;
  opipe_endpoint *endpoint;
  opipe_group *near; /* NULL: by UCX, or not known yet */
  opipe_collective *near_collective;
  uint32_t *ranks; /* [n] */
  uint32_t n, turn, id, n_known;
  bool is_listed, by_ucx, told;
  uint64_t hash[2], member_hash[2], piece_bytes;
  ucx_member *members; /* [n] */
  ucx_room room;
  /* own thread */
  machine_round round;
  uint64_t added; /* pieces of the own segment that are in `sums`, or beyond */
  uint64_t base;  /* such pieces of all earlier rounds that were given away */
};

struct opipe_collective {
  opipe_group group;
};

/* ---- ucx.c ---- */
extern const opipe_transport ucx_transport;
void *ucx_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err);
void ucx_delete(const opipe_host *host, void *data, size_t n_bytes);
/* Is this a child of the process that opened the world? It closes nothing: neither UCX nor shared
 * memory are its own. */
bool ucx_is_child(const opipe_world *world);
/* OK | PEER; hands on what transport-shm has heard. Not under a lock. */
opipe_status ucx_check(opipe_world *world, opipe_error *err);
/* The first reason wins. Not under a lock. */
void ucx_fail(opipe_world *world, uint32_t rank, const opipe_error *why);
opipe_status ucx_address(const opipe_endpoint *endpoint, const opipe_region *region,
                         void **out_data, bool *out_remote, opipe_error *err);

/* ---- options.c ---- */
opipe_status ucx_read_options(const char *text, ucx_options *out, opipe_error *err);
/* Completes them by the environment, the team's address (board: may be NULL) and the interfaces of
 * this machine. */
opipe_status ucx_complete_options(ucx_options *io, const opipe_board *board, opipe_error *err);
bool ucx_is_loopback(const ucx_options *options);

/* ---- library.c ---- */
/* Loads libucp, opens a context and the workers of the world's local ranks. */
opipe_status ucx_start(opipe_world *world, opipe_error *err);
opipe_status ucx_failed(const opipe_world *world, const char *call, ucp_code code,
                        opipe_error *err);

/* ---- files.c: descriptors of UCX's are closed on exec ---- */
typedef struct ucx_files ucx_files;
ucx_files *ucx_files_before(const opipe_host *host);
void ucx_files_after(opipe_world *world, ucx_files *before, bool finds_ports);
/* Connections that came. */
void ucx_files_accepted(const opipe_world *world);

/* ---- worker.c ---- */
opipe_status ucx_worker_make(opipe_world *world, uint32_t rank, opipe_error *err);
opipe_status ucx_worker_begin(ucx_worker *worker, opipe_endpoint *endpoint, opipe_error *err);
/* Leaves in order, or at once if the world has ended. Whatever is pending ends. */
void ucx_worker_stop(ucx_worker *worker);
void ucx_worker_delete(ucx_worker *worker);
void ucx_lock(ucx_worker *worker);
void ucx_unlock(ucx_worker *worker);
/* Moves what can be moved, and hears notes. Under the lock. */
bool ucx_progress(ucx_worker *worker);
/* Behind operations that were posted and are under way: wakes the helper if nothing moves. Under
 * the lock. */
void ucx_poke(ucx_worker *worker);
/* Moves what can be moved, unless somebody else does. Not under the lock. */
void ucx_move(ucx_worker *worker);
/* Ends the world when the lock is free. Under the lock. */
void ucx_lose(ucx_worker *worker, uint32_t rank, ucp_code code);
void ucx_ring(ucx_op *op);
/* Waits until nothing of `what` is pending; receives were cancelled. Where the world has ended, or
 * a peer does not go on, the worker is stopped. Not under the lock. */
void ucx_settle(ucx_worker *worker, uint32_t peer, bool (*is_pending)(const void *what),
                const void *what);

/* ---- ops.c; under the lock ---- */
/* Gives n operations requests of memory that the caller frees. */
void ucx_op_init(ucx_op *op, ucx_worker *worker, uint32_t peer, char **io_requests,
                 void (*over)(ucx_op *op));
void ucx_send_op(ucx_op *op, const void *data, uint64_t n_bytes, uint64_t tag);
void ucx_recv_op(ucx_op *op, void *data, uint64_t n_bytes, uint64_t tag, uint64_t mask);
void ucx_cancel_op(ucx_op *op);
void ucx_forget_op(ucx_op *op);
static inline bool ucx_is_pending(const ucx_op *op) {
  return atomic_load_explicit(&op->pending, memory_order_acquire) != 0;
}

/* ---- notes.c; under the lock ---- */
#define UCX_TAG_NOTE (UINT64_C(1) << 62)
#define UCX_TAG_STREAM (UINT64_C(2) << 62)
#define UCX_TAG_GROUP (UINT64_C(3) << 62)
#define UCX_TAG_KIND (UINT64_C(3) << 62)
enum { UCX_IDS_MOST = 1 << 24 };
ucx_brief ucx_brief_of(const ucx_worker *worker, uint32_t kind, uint32_t id);
/* In an operation and memory of the caller's. */
void ucx_tell_briefly(ucx_op *op, const ucx_brief *brief);
opipe_status ucx_tell(ucx_worker *worker, uint32_t rank, const ucx_note *note, opipe_error *err);
void ucx_tell_end(opipe_world *world);
void ucx_hear(ucx_worker *worker, const ucx_note *note, uint64_t n_bytes);
void ucx_forget_note(ucx_worker *worker, ucx_heard *heard);
opipe_status ucx_next_id(ucx_worker *worker, uint32_t *out_id, opipe_error *err);

/* ---- peers.c; not under a worker's lock ---- */
opipe_status ucx_post(ucx_worker *worker, opipe_error *err);
/* Is it reached by UCX? OK | PENDING: not known yet. */
opipe_status ucx_find(opipe_world *world, uint32_t own, uint32_t other, bool *out_by_ucx,
                      opipe_error *err);
/* OK once there is a connection to it. */
opipe_status ucx_reach(ucx_worker *worker, uint32_t rank, opipe_error *err);

/* ---- streams.c ---- */
opipe_status ucx_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                             opipe_stream **out_stream, opipe_error *err);
void ucx_stream_close(opipe_stream *stream);
opipe_status ucx_stream_ready(opipe_stream *stream, opipe_error *err);
opipe_status ucx_stream_bounce(opipe_stream *stream, opipe_error *err);
opipe_status ucx_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                     opipe_way *io_way, opipe_error *err);
opipe_status ucx_stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err);

/* ---- messages.c ---- */
opipe_status ucx_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status ucx_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status ucx_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *done, opipe_error *err);
opipe_status ucx_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);
/* Goes on with late messages; every call of the rank's begins with it. */
opipe_status ucx_go_on(opipe_endpoint *endpoint, opipe_error *err);
void ucx_cancel(const opipe_stream *stream);

/* ---- groups.c ---- */
opipe_status ucx_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                            uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void ucx_group_close(opipe_group *group);
opipe_status ucx_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                 opipe_collective **out_collective, opipe_error *err);
void ucx_collective_close(opipe_collective *collective);
opipe_status ucx_group_ready(opipe_group *group, opipe_error *err);

/* ---- lanes.c: messages between members; own thread, not under the lock but where stated ---- */
opipe_status ucx_lanes_make(opipe_group *group, opipe_error *err);
void ucx_lanes_delete(opipe_group *group);
/* Posts the first receives. Under the lock. */
void ucx_lanes_post(opipe_group *group);
/* Cancels receives. Under the lock. */
void ucx_lanes_cancel(opipe_group *group);
/* For operations that UCX has forgotten. Under the lock. */
void ucx_lanes_forget(opipe_group *group);
bool ucx_lanes_pending(const void *group);
/* A place for the next message of values; NULL: there is none now. */
char *ucx_lane_place(const opipe_group *group, uint32_t member);
void ucx_lane_send(opipe_group *group, uint32_t member, uint64_t n_bytes);
/* May the next sums be given to a member? */
bool ucx_sums_free(const opipe_group *group, uint32_t member);
void ucx_sums_send(opipe_group *group, uint32_t member, uint64_t n_bytes);
/* The next message of a member, NULL: it has not come; ucx_lane_taken once it was used. */
const char *ucx_lane_look(const opipe_group *group, uint32_t member, uint32_t kind,
                          uint64_t *out_bytes);
void ucx_lane_taken(opipe_group *group, uint32_t member, uint32_t kind);

/* ---- collect.c ---- */
opipe_status ucx_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err);
opipe_status ucx_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
opipe_status ucx_collect(opipe_collective *collective, uint64_t sequence,
                         const opipe_collect *collect, opipe_error *err);
opipe_status ucx_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);

#endif /* OPIPE_TRANSPORT_UCX_H */
