/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-local: ranks are threads of one process and see each other's memory.
 *
 * A message is a hand-over of an address: the receiver posts the region, the sender writes there
 * (or asks for a copy) and publishes a number. Every rank has a doorbell, an eventcount: it spins
 * on it, then sleeps in a futex; who rings wakes only announced sleepers. Invariants: the fields of
 * a cell are written by the side named beside them, and read by the other side only after the
 * number that publishes them (acquire) has been seen. Nothing on the message path locks, blocks or
 * allocates.
 */
#ifndef OPIPE_TRANSPORT_LOCAL_H
#define OPIPE_TRANSPORT_LOCAL_H

#include <opipe/meeting.h>
#include <opipe/ways.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

enum { LINE_BYTES = 128 }; /* two cache lines: neighbours are prefetched in pairs */

struct opipe_instance {
  const opipe_host *host;
};

typedef struct doorbell {
  alignas(LINE_BYTES) _Atomic uint32_t count; /* the futex word */
  _Atomic uint32_t sleepers;                  /* a thread in a futex, or `armed` */
  alignas(LINE_BYTES) _Atomic uint32_t armed; /* 1: who rings next takes it and calls notify */
  _Atomic uint32_t callers;                   /* that may be in notify */
  void (*notify)(void *ctx);                  /* own thread's, while there are no callers */
  void *ctx;
} doorbell;

struct opipe_endpoint {
  doorbell bell;
  alignas(LINE_BYTES) opipe_world *world; /* written by set-up only from here on */
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_instance *backend_self;
  uint32_t rank;
  uint32_t spin_us;
  uint32_t device_index; /* OPIPE_NONE: not known */
  opipe_buffer *sample; /* of the memory without host addresses, by which peers are tried; under the
                           lock */
  bool remote;          /* memory without host addresses was registered */
  bool unready;         /* own thread: an event of a device is awaited, so `wait` must look again by
                           itself */
};

/* One message in flight: sequence number `q` uses cell q % depth. A line for each side's own: it
 * moves to the other's core when that looks at it, and back when it is next written. */
typedef struct cell {
  /* receiver */
  alignas(LINE_BYTES) _Atomic uint64_t posted; /* q + 1 once the receive of q stands */
  char *target;
  opipe_region region; /* where it goes; its size is the room */
  opipe_event *recv_done;
  opipe_event *written; /* behind the last write from the bounce */
  bool away;            /* it is received in `bounce`, and is still to be written to its region */
  /* sender */
  alignas(LINE_BYTES) _Atomic uint64_t sent; /* q + 1 once message q has been published */
  _Atomic uint64_t arrived; /* q + 1 once its data is there: `sent`, unless an event is awaited */
  _Atomic uint64_t taken;   /* q + 1 once one side is about to copy what was awaited */
  opipe_event *ready;       /* awaited before the data is valid; NULL: none */
  const char *source;       /* to be copied once ready; NULL: in place */
  uint64_t n_bytes;
  opipe_event *send_done;
  opipe_event *fetched; /* behind the last read of a region without a host address */
  bool placed;          /* it was copied to its region on the device */
  /* receiver, once: host memory for what has no host address; NULL: not made yet */
  alignas(LINE_BYTES) char *bounce;
} cell;
_Static_assert(sizeof(cell) == 3 * LINE_BYTES, "a side writes in one line");

/* Can the queue of a stream's sender, of a group's member 0, copy to the memory of all others? */
enum { LOCAL_UNKNOWN = 0, LOCAL_NEAR, LOCAL_FAR };

/* A buffer of another opening, or of a device that this one reaches, as one of our own. */
typedef struct borrowed {
  opipe_buffer *buffer; /* NULL: none */
  uint64_t native, n_bytes;
} borrowed;

typedef struct wire {
  opipe_wire base;                  /* its cells: cell */
  const opipe_backend *src_backend; /* for its events */
  _Atomic uint32_t near;            /* LOCAL_*; set once, under the lock */
  uint32_t way;                     /* from then on: OPIPE_WAY_* */
  char why[160];                    /* STAGED: why none better */
} wire;

struct opipe_stream {
  wire *wire;
  opipe_endpoint *endpoint;
  uint32_t sides;       /* bit 0: source, bit 1: destination */
  bool bounces;         /* its side of the cells has what messages without host addresses need */
  opipe_ring ring;      /* the receiver's: the cells' bounces */
  char not_pinned[160]; /* why the ring is not; "": it is, or there is none */
  borrowed theirs;      /* the last one that a message was copied to */
};

struct opipe_memory {
  opipe_endpoint *endpoint;
  opipe_buffer *buffer;
};

/* A member's place in a group; on a line of its own. Read by others from when it has given until it
 * has taken. */
typedef struct member {
  alignas(LINE_BYTES) _Atomic uint64_t given; /* q + 1: contribution q stands */
  _Atomic uint64_t added;                     /* q + 1: its share of round q is done */
  uint64_t taken;                             /* q + 1: own thread: it has seen that q is done */
  opipe_collect what;                         /* of the round */
  uint64_t n_values;
  opipe_span *from, *to; /* [n_regions] the lists, where they are added */
  uint32_t n_from, n_to; /* spans */
  opipe_event *ready;    /* near: its values are valid behind it */
} member;

typedef struct reduction {
  opipe_circle base;                            /* its members: member */
  alignas(LINE_BYTES) _Atomic uint64_t n_given; /* contributions since the start */
  _Atomic uint64_t n_added;                     /* shares done since the start */
  _Atomic uint32_t near;                        /* LOCAL_*; set once, under the lock */
} reduction;

/* A member's own side of a group; of all-reduces of one region, or of collects. */
struct opipe_group {
  reduction *reduction;
  opipe_endpoint *endpoint;
  opipe_collective_params params; /* without ranks */
  uint32_t index;                 /* of this rank among the members */
  bool collects;
  opipe_region region;  /* of all-reduce: its only one */
  opipe_span *spans;    /* [2 * n_regions] the member's */
  opipe_cursor *walks;  /* [2 * n members] own thread: over all members' from, then to */
  borrowed *borrowed;   /* [n members] near */
  opipe_region *pieces; /* [n members] near */
  /* The values of a member without a host address are summed here, by its own thread. */
  opipe_ring bounce;  /* of one; without data: not made yet */
  opipe_event *moved; /* behind the last copy to or from the bounce */
  bool away;          /* the round's values are in the bounce until it is done */
  uint64_t fetched; /* q + 1: the values of round q are on their way to the bounce, or there; near:
                       its sums are queued */
  bool is_near;     /* of the round: it is done on the device */
};

struct opipe_collective {
  opipe_group group;
};

struct opipe_world {
  const opipe_host *host;
  uint32_t n_ranks;
  _Atomic uint32_t aborted; /* 1 once `why` is complete */
  pthread_mutex_t lock;     /* set-up, and the first abort */
  uint32_t abort_rank;
  opipe_error why;
  _Atomic(opipe_endpoint *) *endpoints; /* [n_ranks] */
  opipe_wires wires;
  opipe_circles reductions, collectives;
};

/* ---- local.c ---- */
opipe_status local_check_options(const char *options, opipe_error *err);
/* OPIPE_OK, or OPIPE_E_PEER with the reason of the abort. */
opipe_status local_check(opipe_world *world, opipe_error *err);
/* Host address of a region; 0 bytes need no buffer. *out_remote: it has none. */
opipe_status local_address(const opipe_endpoint *endpoint, const opipe_region *region,
                           void **out_data, bool *out_remote, opipe_error *err);
/* Records `event` on the endpoint's queue; NULL: nothing. */
opipe_status local_record(const opipe_endpoint *endpoint, opipe_event *event, opipe_error *err);

/* ---- doorbell.c ---- */
uint32_t local_doorbell(opipe_endpoint *endpoint);
void local_ring(opipe_endpoint *endpoint);
opipe_status local_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                        opipe_error *err);
void local_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx);
void local_ring_rank(opipe_world *world, uint32_t rank);

/* ---- streams.c ---- */
opipe_status local_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                               opipe_stream **out_stream, opipe_error *err);
void local_stream_close(opipe_stream *stream);
/* Makes what the stream's own side needs for messages without host addresses, once. */
opipe_status local_stream_bounce(opipe_stream *stream, opipe_error *err);

/* ---- messages.c ---- */
opipe_status local_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status local_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                        opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status local_recv_after(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                              opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status local_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                        opipe_event *done, opipe_error *err);
opipe_status local_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);

/* ---- near.c ---- */
/* A region of the owner's device as one of the endpoint's; io: kept from call to call. */
opipe_status local_borrow(const opipe_endpoint *endpoint, const opipe_endpoint *owner,
                          const opipe_region *region, borrowed *io, opipe_region *out_region,
                          opipe_error *err);
void local_give_back(const opipe_endpoint *endpoint, borrowed *io);
/* False too while the other end is not open. Not under the lock. */
bool local_stream_is_near(opipe_stream *stream);
opipe_status local_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                       opipe_way *io_way, opipe_error *err);
opipe_status local_stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err);
/* Queues the copy of a message to its region, behind *io_ready; *io_ready: stands behind it. */
opipe_status local_place(opipe_stream *stream, cell *c, const opipe_region *region,
                         opipe_event **io_ready, opipe_error *err);
/* OPIPE_PENDING: a member's endpoint is not open. */
opipe_status local_group_nearness(opipe_group *group, bool *out_near);
/* Can the devices' own queue add values of this type? */
bool local_adds_near(const opipe_group *group, uint32_t dtype);
/* The member's values, behind `ready`, are there for the sum. */
opipe_status local_give_near(opipe_group *group, opipe_event *ready, opipe_error *err);
/* OPIPE_OK once the round is queued, by member 0, behind everybody's values. All have given. */
opipe_status local_queue_near(opipe_group *group, uint64_t sequence, opipe_error *err);

/* ---- groups.c ---- */
opipe_status local_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                              uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void local_group_close(opipe_group *group);
opipe_status local_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                   opipe_collective **out_collective, opipe_error *err);
void local_collective_close(opipe_collective *collective);
/* Makes what values without host addresses need, once. */
opipe_status local_group_bounce(opipe_group *group, opipe_error *err);

/* ---- collect.c ---- */
opipe_status local_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                              uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                              opipe_event *done, opipe_error *err);
opipe_status local_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
opipe_status local_collect(opipe_collective *collective, uint64_t sequence,
                           const opipe_collect *collect, opipe_error *err);
opipe_status local_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);

#endif /* OPIPE_TRANSPORT_LOCAL_H */
