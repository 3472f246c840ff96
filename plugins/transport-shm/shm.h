/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-shm: ranks are threads of processes of one machine.
 *
 * Every rank has segments of shared memory (machine/machine.h): its doorbell, the cells of the
 * streams that it receives, what groups sum, memory for messages. Who needs one maps it. A message
 * is copied once, by the sender, to where the receiver's cell says; a place is a segment's number
 * and an offset, never an address.
 *
 * Worlds of different processes have a connection, over which a helper thread of each hears notes
 * (notes.c): segments with their descriptors, streams and groups that were opened or closed, abort.
 * A world notes its own ranks' streams in the same way, without a connection.
 *
 * Invariants
 * - Whatever lies in shared memory may be changed by a peer at any time: it is read once, and
 *   checked, and what an end decides by (numbers of its own, sizes of segments) is private.
 * - A segment is unmapped only when nobody copies to it (`users`), and mapped segments' records
 *   live as long as the world.
 * - The message path takes no lock and allocates nothing, but for the first message to memory that
 *   lies outside the transport's.
 */
#ifndef OPIPE_TRANSPORT_SHM_H
#define OPIPE_TRANSPORT_SHM_H

#include <opipe/collect.h>
#include <opipe/ways.h>
#include <pthread.h>

#include "../machine/machine.h"
#include "../machine/round.h"
#include "near.h"

enum {
  SHM_RANKS_MOST = 1024,
  SHM_SEGMENTS = 1024, /* of one rank at a time */
  SHM_BUCKETS = 256,
  SHM_TEXT = 384
};

struct opipe_instance {
  const opipe_host *host;
};

/* ---- places ---- */

typedef struct shm_place {
  uint64_t offset;
  uint32_t segment;
  uint32_t reserved;
} shm_place;

/* A segment as it is mapped here. */
typedef struct shm_mapped {
  struct shm_mapped *next; /* all of the world */
  char *data;
  uint64_t n_bytes;
  uint32_t id;
  int fd;                   /* of an own segment, for peers; -1 */
  _Atomic uint32_t users;   /* copies that are under way */
  _Atomic uint32_t dropped; /* its rank has given it up */
  bool unmapped;
  opipe_endpoint *pinned_by; /* whose device has pinned it; NULL: none; under the lock */
  _Atomic uint32_t pins;     /* SHM_PIN_* */
} shm_mapped;
enum { SHM_PIN_UNTRIED = 0, SHM_PINNED, SHM_PIN_FAILED };

/* A piece of an own segment that is used, or free for the next. */
typedef struct shm_span {
  struct shm_span *next;
  char *data;
  uint64_t n_bytes;
  shm_place place;
  bool used;
  /* closed here and not yet elsewhere: given back when n_left others have closed, too */
  struct shm_span *limbo;
  uint32_t rank, n_left;
} shm_span;

/* ---- notes: what worlds tell each other ---- */

enum {
  SHM_NOTE_HELLO = 1, /* first; descriptor: of the process */
  SHM_NOTE_RANK,      /* `rank` is there, its bell at `place`; descriptor: to ring it by */
  SHM_NOTE_SEGMENT,   /* segment `id` of `rank`, n_bytes; its descriptor */
  SHM_NOTE_DROP,      /* segment `id` of `rank` is given up */
  SHM_NOTE_STREAM,    /* `rank` has opened side `index` of a stream; cells at `place` */
  SHM_NOTE_GROUP,     /* `rank` has opened place `index` of a group; member 0: area at `place` */
  SHM_NOTE_CLOSE,     /* the stream or group `id` of `rank` is closed */
  SHM_NOTE_ABORT,     /* by `rank`; text */
  SHM_NOTE_BYE,
  SHM_NOTE_LEND,     /* device memory `id` of `rank`, n_bytes, to be opened by `shared` */
  SHM_NOTE_TAKE,     /* it is to be closed */
  SHM_NOTE_RETURNED, /* by a world with `rank`: memory is closed, one TAKE is answered */
  SHM_NOTE_END
};
/* `turn` of SHM_NOTE_STREAM, of the end's rank: messages may go to its device memory; it has some.
 */
enum { SHM_LENDS = 1u, SHM_REMOTE = 2u };

typedef struct shm_note {
  uint32_t magic, kind;
  uint32_t rank, id;
  shm_place place;
  uint64_t n_bytes;          /* HELLO: ranks of the world */
  uint64_t hash[2];          /* of a group's ranks or id; HELLO: the listener's token */
  uint64_t members[2];       /* of a group that collects: of its ranks */
  uint32_t index, n_members; /* of a stream: side; of a group */
  uint32_t turn;             /* how many such groups were opened before; of a stream: flags */
  int32_t status;            /* of an abort */
  opipe_stream_params stream;
  union {
    char text[SHM_TEXT];
    opipe_shared shared; /* LEND */
  };
} shm_note;

/* Streams and groups that others, and this world's own ranks, have open. */
typedef struct shm_heard {
  struct shm_heard *next;
  shm_note note;
  shm_span *limbo; /* wait for its end */
  bool taken;      /* by the other side of the stream */
} shm_heard;

/* ---- peers ---- */

typedef struct shm_waiting { /* a note that could not be sent yet */
  struct shm_waiting *next;
  shm_note note;
  int fd; /* a copy; -1 */
} shm_waiting;

/* The world of another process. */
typedef struct shm_peer {
  struct shm_peer *next;
  int fd, process; /* process: tells its end; -1 */
  uint32_t first_rank;
  uint32_t listed; /* its place in what the helper polls; 0: none yet */
  bool greeted, leaving, gone;
  uint64_t n_takes, n_returned; /* TAKE notes that it was sent, that it has answered */
  uint32_t n_naps;              /* spent on waiting for its next answer (lend.c) */
  shm_waiting *first, **last;
} shm_peer;

/* ---- device memory (lend.c) ---- */

/* A rank's own, which others may open. It stays until the endpoint is closed. */
typedef struct shm_lent {
  struct shm_lent *next;
  _Atomic(opipe_buffer *) buffer; /* NULL: dropped */
  uint64_t n_bytes;
  uint32_t id;
  opipe_shared shared;
} shm_lent;

/* Another rank's, as it was told of. It stays until the world is closed. */
typedef struct shm_theirs {
  struct shm_theirs *next;
  uint32_t rank, id;
  uint64_t n_bytes;
  opipe_shared shared;
  _Atomic uint32_t ended; /* its rank wants it closed */
  bool answered;
  opipe_endpoint *owner; /* of a rank that is here; NULL: it is elsewhere */
  const shm_lent *lent;  /* its own */
} shm_theirs;

/* Such memory as it is opened by an endpoint here; it stays until that is closed. */
typedef struct shm_opened {
  struct shm_opened *next;
  shm_theirs *theirs;
  opipe_buffer *buffer;   /* NULL: closed */
  _Atomic uint32_t users; /* copies that are under way */
} shm_opened;

/* An event that a peer may still look at. */
typedef struct shm_kept_event {
  struct shm_kept_event *next;
  opipe_event *event;
  opipe_endpoint *endpoint;
  shm_heard *heard; /* the peer's end; NULL: it is closed */
} shm_kept_event;

typedef struct shm_seat {             /* a rank as this world knows it */
  _Atomic(opipe_endpoint *) endpoint; /* here */
  _Atomic(machine_bell *) bell;
  _Atomic(_Atomic(shm_mapped *) *) table; /* [SHM_SEGMENTS] by id modulo it */
  shm_peer *peer;                         /* NULL: here, or not known yet */
  _Atomic int ring_fd;                    /* elsewhere: what wakes its helper; -1 */
  bool local, posted;
  shm_span *spans; /* of its own segments, where it is here */
  uint32_t last_segment;
} shm_seat;

struct opipe_world {
  const opipe_host *host;
  uint32_t n_ranks, first_rank;
  bool alone; /* all ranks are here */
  shm_seat *seats;
  pthread_mutex_t lock; /* set-up: all below */
  shm_mapped *mapped;
  shm_heard *heard[SHM_BUCKETS];
  shm_heard closed; /* stands for what was heard and is closed */
  opipe_stream *streams;
  opipe_group *groups;
  shm_theirs *theirs;
  shm_kept_event *kept;
  machine_count *counts;
  uint32_t last_id;
  const opipe_board *board;
  shm_peer *peers;
  int listener, kick; /* kick: the helper looks anew; -1: alone */
  char name[MACHINE_NAME_MOST];
  uint64_t token[2];
  pthread_t helper;
  bool has_helper, closing;
  _Atomic uint32_t aborted; /* 1 once `why` is complete */
  uint32_t abort_rank;
  opipe_error why;
};

struct opipe_endpoint {
  opipe_world *world;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_instance *backend_self;
  uint32_t device_index; /* OPIPE_NONE: not known */
  uint32_t rank, spin_us;
  uint32_t last_lent;
  _Atomic(shm_lent *) lent;
  _Atomic(shm_opened *) opened;
  char why_not[160]; /* why its device memory is not lent; "": it is, or nobody has asked */
  machine_bell *bell;
  shm_place bell_place;
  bool has_memory; /* memory_alloc was used */
  bool has_other;  /* other memory was registered */
  bool has_remote; /* memory without host addresses was */
  /* notify */
  _Atomic uint32_t armed, callers, seen;
  void (*notify)(void *ctx);
  void *ctx;
  /* own thread */
  bool unready;          /* an event of a device is awaited */
  struct shm_slot *late; /* messages whose data is not there yet */
};

struct opipe_memory {
  opipe_endpoint *endpoint;
  shm_lent *lent; /* NULL: it is not lent */
};

/* ---- streams ---- */

/* One message in flight, in the receiver's shared memory: number q uses cell q % depth. */
typedef struct shm_cell {
  alignas(MACHINE_LINE) _Atomic uint64_t posted; /* by the receiver: q + 1 once q may be sent */
  _Atomic uint64_t offset, room;
  _Atomic uint32_t segment;
  _Atomic uint32_t lent; /* device memory of this id instead of a segment; 0: none */
  alignas(MACHINE_LINE) _Atomic uint64_t sent; /* by the sender: q + 1 once q is there */
  _Atomic uint64_t n_bytes;
  _Atomic uint32_t queued; /* 1: it is there once `event` has completed */
  _Atomic uint32_t way;    /* of the first cell: OPIPE_WAY_*, once the sender has decided */
  union {                  /* by the sender, before `way` */
    opipe_shared event;
    char why[160]; /* of the first cell, STAGED: why it is no better way */
  };
} shm_cell;

/* A cell's private part, of one end. */
typedef struct shm_slot {
  uint64_t begun, ended; /* q + 1: posted or sent; finished */
  opipe_region region;   /* the receiver's; n_bytes: room */
  opipe_event *done;
  opipe_event *moved; /* behind the last copy by the device's queue */
  char *bounce;       /* the receiver's, in its ring: for memory that is not the transport's */
  bool away;          /* it is received in `bounce` */
  opipe_event *peers; /* the receiver's: the sender's event, opened; NULL: not yet */
  bool lent;          /* the sender's: `moved` is one that the receiver may open */
  bool said;          /* the sender's: the receiver knows of it */
  /* the sender's, of a message that waits for `ready` */
  struct shm_slot *next;
  opipe_event *ready;
  const char *source; /* NULL: its queue copies it */
  char *target;
  shm_mapped *to;
  shm_opened *into; /* device memory that its queue copies to */
  uint64_t n_bytes;
  opipe_stream *stream;
} shm_slot;

typedef struct shm_end {
  shm_slot *slots;           /* [depth]; NULL: not held */
  _Atomic(shm_cell *) cells; /* NULL: not known yet */
  shm_span *span;            /* the receiver's cells */
  shm_span *ring;            /* the receiver's: where messages for other memory arrive */
  uint64_t step;             /* of a message in it */
  bool pinned;
  uint32_t id;      /* of its note */
  shm_heard *heard; /* the other side's; NULL: not yet; &world->closed */
} shm_end;

struct opipe_stream {
  opipe_stream *next;
  opipe_endpoint *endpoint;
  opipe_stream_params params;
  uint32_t sides;       /* bit 0: source, bit 1: destination */
  shm_end ends[2];      /* by side */
  shm_mapped *cells_in; /* the segment of the source's cells */
  uint32_t way;         /* OPIPE_WAY_*; NONE: not decided */
  char why[160];
};

/* ---- groups ---- */

typedef struct shm_line { /* a member's, in the shared memory of member 0's rank */
  alignas(MACHINE_LINE) _Atomic uint64_t given; /* chunks since the start */
  _Atomic uint64_t added, taken;
  _Atomic uint64_t n_values; /* of its round */
  _Atomic uint32_t dtype, kind;
} shm_line;

/* A member's own side of a group; of all-reduces of one region, or of collects. */
struct opipe_group {
  opipe_group *next;
  opipe_endpoint *endpoint;
  uint32_t *ranks; /* [n] */
  uint32_t n, turn, id;
  uint64_t hash[2], members[2], chunk_bytes;
  shm_span *span;       /* member 0's */
  _Atomic(char *) area; /* NULL: not known yet. Lines [n], parts [n][n], then chunks [n][2] */
  shm_mapped *area_in;  /* the segment of another's area */
  bool known;           /* all others have opened it */
  /* own thread */
  machine_round round;
  uint64_t base;     /* chunks of all earlier rounds */
  uint64_t n_chunks; /* of the round */
  uint64_t given, added, taken;
};

struct opipe_collective {
  opipe_group group;
};

/* ---- shm.c ---- */
opipe_status shm_check_options(const char *options, opipe_error *err);
/* The first reason wins; rings the ranks that are here. Under the lock. */
void shm_fail(opipe_world *world, uint32_t rank, const opipe_error *why);
void *shm_new(const opipe_host *host, const char *what, size_t n_bytes, opipe_error *err);
void shm_delete(const opipe_host *host, void *data, size_t n_bytes);

/* ---- doorbell.c ---- */
uint32_t shm_doorbell(opipe_endpoint *endpoint);
void shm_ring(opipe_endpoint *endpoint);
opipe_status shm_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                      opipe_error *err);
void shm_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx);
void shm_ring_rank(opipe_world *world, uint32_t rank);
/* Calls what notify asked for, if the bell has moved, or `anyhow`. */
void shm_call_if_rung(opipe_endpoint *endpoint);

/* ---- memory.c; under the lock but for shm_use, shm_let_go, shm_find ---- */
opipe_status shm_memory_open(opipe_endpoint *endpoint, opipe_error *err);
/* Shared memory of a rank that is here, in a segment of its own where `apart`. */
opipe_status shm_take(opipe_world *world, uint32_t rank, uint64_t n_bytes, bool apart,
                      const char *what, shm_span **out_span, opipe_error *err);
void shm_give(opipe_world *world, shm_span *span);
/* Gives it back when what was heard is closed. */
void shm_leave(opipe_world *world, shm_heard *heard, shm_span *span);
/* A peer's segment; the descriptor is the caller's. */
opipe_status shm_map(opipe_world *world, uint32_t rank, uint32_t id, uint64_t n_bytes, int fd,
                     opipe_error *err);
void shm_drop(opipe_world *world, uint32_t rank, uint32_t id);
void shm_sweep(opipe_world *world, bool all);
/* The address of n_bytes of a rank's memory, kept until shm_let_go. OK | PENDING: no such segment
 * yet | PEER: beyond its end. */
opipe_status shm_use(opipe_world *world, uint32_t rank, shm_place place, uint64_t n_bytes,
                     uint64_t align, shm_mapped **out_mapped, char **out_data, opipe_error *err);
void shm_let_go(shm_mapped *mapped);
/* Does this memory lie in a segment of the endpoint's? */
bool shm_find(const opipe_endpoint *endpoint, const void *data, uint64_t n_bytes,
              shm_place *out_place);
opipe_status shm_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer, uint64_t n_bytes,
                                 opipe_memory **out_memory, opipe_error *err);
void shm_memory_drop(opipe_memory *memory);
opipe_status shm_memory_alloc(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                              opipe_error *err);
void shm_memory_free(opipe_endpoint *endpoint, void *data);
opipe_status shm_address(const opipe_endpoint *endpoint, const opipe_region *region,
                         void **out_data, bool *out_remote, opipe_error *err);
/* Pins a segment for the endpoint's device, once; NULL err: no reason is wanted. False: it is not.
 */
bool shm_pin(opipe_endpoint *endpoint, shm_mapped *mapped, opipe_error *err);
/* Gives back what the endpoint has pinned. */
void shm_unpin_all(opipe_endpoint *endpoint);
shm_mapped *shm_mapped_of(const opipe_world *world, uint32_t rank, uint32_t id);

/* ---- lend.c; under the lock but for shm_find_lent, shm_use_lent, shm_let_go_lent ---- */
opipe_status shm_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                     opipe_way *io_way, opipe_error *err);
opipe_status shm_stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err);
/* Lends device memory; where that is refused the endpoint's `why_not` says so. NULL lent then. */
opipe_status shm_lend(opipe_endpoint *endpoint, opipe_buffer *buffer, uint64_t n_bytes,
                      shm_lent **out_lent, opipe_error *err);
/* Nobody has it open when this answers, or it is left to the driver; lets go of the lock meanwhile.
 */
void shm_take_back(opipe_endpoint *endpoint, shm_lent *lent);
opipe_status shm_hear_lend(opipe_world *world, const shm_note *note, opipe_error *err);
void shm_hear_take(opipe_world *world, shm_peer *peer, const shm_note *note);
/* Closes what is to be closed and is not in use. */
void shm_close_ended(opipe_world *world);
/* The endpoint is being closed. */
void shm_forget_lent(opipe_endpoint *endpoint);
void shm_forget_theirs(opipe_world *world);
/* The sender's end is joined: decides how its messages travel, and says so in the cells. */
opipe_status shm_decide_way(opipe_stream *stream, const shm_note *receiver, opipe_error *err);
/* The receiver's: takes over what the sender says. PENDING: it has not decided. */
opipe_status shm_take_way(opipe_stream *stream, opipe_error *err);
/* The id of the lent memory that a region lies in; 0: none. */
uint32_t shm_find_lent(const opipe_endpoint *endpoint, const opipe_region *region);
/* n_bytes at `offset` of memory `id` of a rank, as a region of the endpoint's device; kept until
 * shm_let_go_lent. Errors: PEER. */
opipe_status shm_use_lent(opipe_endpoint *endpoint, uint32_t rank, uint32_t id, uint64_t offset,
                          uint64_t n_bytes, shm_opened **out_opened, opipe_region *out_region,
                          opipe_error *err);
void shm_let_go_lent(shm_opened *opened);
/* An event that the peer's end may look at goes when that end is closed. */
void shm_keep_event(opipe_endpoint *endpoint, shm_heard *heard, opipe_event *event);
/* The peer's end is closed. */
void shm_drop_events(opipe_world *world, const shm_heard *heard);
/* Waits for them, at most 2 s; lets go of the lock meanwhile. */
void shm_end_events(opipe_endpoint *endpoint);

/* ---- notes.c; under the lock ---- */
/* Is a note that came over a connection one of a world of n_ranks? All fields that are used to
 * compute with are within bounds then. */
opipe_status shm_note_check(const shm_note *note, uint32_t n_ranks, opipe_error *err);
/* Tells all that the stream or group concerns; own ranks too. */
opipe_status shm_tell_stream(const opipe_stream *stream, uint32_t side, opipe_error *err);
opipe_status shm_tell_group(const opipe_group *group, opipe_error *err);
opipe_status shm_tell_rank(opipe_endpoint *endpoint, opipe_error *err);
opipe_status shm_tell_segment(opipe_world *world, uint32_t rank, const shm_mapped *m,
                              opipe_error *err);
void shm_tell_drop(opipe_world *world, uint32_t rank, uint32_t id);
void shm_tell_abort(opipe_world *world);
shm_note shm_hello(const opipe_world *world, const uint64_t *token);
shm_note shm_bye(const opipe_world *world);
opipe_status shm_tell_lend(opipe_world *world, uint32_t rank, const shm_lent *lent,
                           opipe_error *err);
/* To all that were told; counts. */
void shm_tell_take(opipe_world *world, uint32_t rank, uint32_t id);
void shm_tell_returned(opipe_world *world, shm_peer *peer);
void shm_tell_close(opipe_world *world, uint32_t rank, uint32_t id);
/* peer NULL: an own note. */
opipe_status shm_hear(opipe_world *world, shm_peer *peer, const shm_note *note, const int *fds,
                      opipe_error *err);
shm_heard **shm_bucket(opipe_world *world, const shm_note *note);
void shm_forget(opipe_world *world);
/* A peer holds the rank: it is told what concerns it. */
opipe_status shm_adopt(opipe_world *world, uint32_t rank, shm_peer *peer, opipe_error *err);
/* A peer is connected: it is told all. */
opipe_status shm_greet(opipe_world *world, shm_peer *peer, opipe_error *err);

/* ---- peers.c; under the lock ---- */
opipe_status shm_peers_open(opipe_world *world, const char *job, opipe_error *err);
void shm_peers_close(opipe_world *world); /* not under it */
/* Has the process ended? Its connection may end before its memory is gone. True if that cannot be
 * asked. */
bool shm_peer_has_ended(const shm_peer *peer);
/* Queues a note; fd stays the caller's, -1: none. */
opipe_status shm_send_note(opipe_world *world, shm_peer *peer, const shm_note *note, int fd,
                           opipe_error *err);
/* OK | PENDING until the world of `rank` is connected. */
opipe_status shm_reach(opipe_world *world, uint32_t rank, opipe_error *err);
opipe_status shm_post(opipe_world *world, uint32_t rank, opipe_error *err);

/* ---- streams.c ---- */
opipe_status shm_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                             opipe_stream **out_stream, opipe_error *err);
void shm_stream_close(opipe_stream *stream);
/* OK | PENDING | < 0; under the lock. */
opipe_status shm_stream_ready(opipe_stream *stream, opipe_error *err);
/* Shared memory for messages to memory that is not the transport's. Under the lock. */
opipe_status shm_stream_bounce(opipe_stream *stream, opipe_error *err);

/* ---- messages.c ---- */
opipe_status shm_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status shm_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status shm_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                      opipe_event *done, opipe_error *err);
opipe_status shm_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);
/* Sends what has become ready. */
opipe_status shm_go_on(opipe_endpoint *endpoint, opipe_error *err);
void shm_cancel(const opipe_stream *stream);

/* ---- groups.c, collect.c ---- */
opipe_status shm_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                            uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void shm_group_close(opipe_group *group);
opipe_status shm_group_ready(opipe_group *group, opipe_error *err);
/* Offsets in the area. */
uint64_t shm_group_parts(const opipe_group *group);
uint64_t shm_group_chunks(const opipe_group *group);
opipe_status shm_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err);
opipe_status shm_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
opipe_status shm_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                 opipe_collective **out_collective, opipe_error *err);
void shm_collective_close(opipe_collective *collective);
opipe_status shm_collect(opipe_collective *collective, uint64_t sequence,
                         const opipe_collect *collect, opipe_error *err);
opipe_status shm_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);

#endif /* OPIPE_TRANSPORT_SHM_H */
