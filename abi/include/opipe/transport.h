/* SPDX-License-Identifier: Apache-2.0 */
/* Interface "opipe.transport/1": moves boundary tensors between ranks.
 *
 *   world     the ranks that talk to each other (in one process: one object)
 *   endpoint  one rank's end. All hot calls of an endpoint come from that rank's thread
 *             [step:endpoint]; abort, ring and doorbell from any
 *   stream    messages of one kind from one stage instance to another, numbered 0, 1, 2 ... by
 *             `sequence`
 *
 * Back-pressure: a receiver posts `recv` with the region that it has set aside. `reserve` tells the
 * sender whether the matching receive has been posted; outside batches nothing is sent before it
 * answers OK. With OPIPE_TRANSPORT_DIRECT, between two ranks that share memory (devices of one
 * kind, in one domain, with host memory), the core binds the producer's output to the *receiver's*
 * region and calls reserve before the producer runs; `send` then only publishes. Otherwise the
 * sender's region is in use until `test` says OK.
 *
 * Errors of every slot: INVALID names the broken rule, stream, rank and both numbers; NOMEM; PEER
 * after abort; others where stated. Outputs are set only on success.
 *
 * Waiting: every endpoint has a doorbell, a counter that grows (rings) whenever something may have
 * changed for its rank. Read it, try, and if nothing moved wait for it to leave the value read: no
 * wake-up is lost.
 */
#ifndef OPIPE_TRANSPORT_H
#define OPIPE_TRANSPORT_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_TRANSPORT_ID "opipe.transport/1"

typedef struct opipe_world opipe_world;
typedef struct opipe_endpoint opipe_endpoint;
typedef struct opipe_stream opipe_stream;
typedef struct opipe_memory opipe_memory; /* a registered buffer */
typedef struct opipe_group opipe_group;   /* ranks that reduce together */
#if OPIPE_TARGET_MINOR >= 5
typedef struct opipe_collective opipe_collective; /* a member's place in a group that collects */
#endif

/* Which messages may overtake others; a plan is proven under the transport's rule. */
enum {
  OPIPE_RULE_TAG = 0,      /* matched by (stream, sequence); any order */
  OPIPE_RULE_STREAM = 1,   /* FIFO per stream */
  OPIPE_RULE_EDGE = 2,     /* FIFO per directed pair of ranks */
  OPIPE_RULE_PAIR = 3,     /* FIFO per pair of ranks, both directions together */
  OPIPE_RULE_BLOCKING = 4, /* rendezvous: a send ends when its receive runs */
  OPIPE_RULE_GROUPED = 5   /* operations issued together proceed together */
};
/* Threads of hot calls. SINGLE: one for all of a world. PER_ENDPOINT: one for each endpoint. */
enum { OPIPE_THREADS_SINGLE = 0, OPIPE_THREADS_PER_ENDPOINT = 1 };
/* DIRECT: messages between ranks that share memory are written in place. REDUCES: the group slots
 * are present. EMULATED: times are declared. */
enum { OPIPE_TRANSPORT_DIRECT = 1u, OPIPE_TRANSPORT_REDUCES = 2u, OPIPE_TRANSPORT_EMULATED = 4u };
#if OPIPE_TARGET_MINOR >= 5
/* COLLECTIVES: the collective slots are present. QUEUED: a collect with `done` is over for the host
 * once it has answered OK: `done` is recorded, and nobody has to poll for it; without UNORDERED
 * only among ranks of one device whose backend has `sum`. MACHINES: joins processes of several
 * machines. UNORDERED: sums are added in an order of the transport's own, and half types may be
 * rounded at each addition; the members of one all-reduce still get the same bits. SCATTERED:
 * between stages of tensor groups each member should send its part of what all of them have, and
 * the receivers gather: the link between groups is slower than the one inside them. */
enum {
  OPIPE_TRANSPORT_COLLECTIVES = 8u,
  OPIPE_TRANSPORT_QUEUED = 16u,
  OPIPE_TRANSPORT_MACHINES = 32u,
  OPIPE_TRANSPORT_UNORDERED = 64u,
  OPIPE_TRANSPORT_SCATTERED = 128u
};
#endif

typedef struct opipe_transport_info {
  uint32_t struct_size;
  uint32_t rule;        /* OPIPE_RULE_* */
  uint32_t thread_rule; /* OPIPE_THREADS_* */
  uint32_t flags;       /* OPIPE_TRANSPORT_* */
  uint32_t fence_kinds; /* bit (1 << OPIPE_FENCE_*) for each native handle that the transport
                           understands */
  uint32_t max_ranks;   /* 0: no limit */
  double latency_ns;    /* one message; 0 to 1e15 */
  double bandwidth;     /* bytes per second, 1 to 1e18; 0: passes addresses, copies nothing */
} opipe_transport_info;

#if OPIPE_TARGET_MINOR >= 5
enum { OPIPE_BOARD_BYTES = 4096, OPIPE_BOARD_KEY = 64 };
/* Where the processes of one world leave short notes, addresses for example, before they can send
 * messages. No call waits. Keys are text of fewer than OPIPE_BOARD_KEY bytes; the world has
 * them for itself. [any-thread] */
typedef struct opipe_board {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  void *ctx;
  /* Leaves n_bytes, at most OPIPE_BOARD_BYTES, under a key that nobody has used. Errors: INVALID:
   * too long; STATE: the key is taken; PEER. */
  opipe_status (*post)(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                       opipe_error *err);
  /* Reads what was left under the key. *io_bytes: in, room in out_bytes; out, size. OK | PENDING:
   * nothing yet | < 0. Errors: LIMIT: the room is too small; PEER. */
  opipe_status (*look)(void *ctx, const char *key, void *out_bytes, uint64_t *io_bytes,
                       opipe_error *err);
} opipe_board;
#endif

/* params are borrowed for the call; stream params are copied. */
typedef struct opipe_world_params {
  uint32_t struct_size;
  uint32_t n_ranks;
  const char *options; /* "key=value,..." or NULL; unknown keys are errors */
#if OPIPE_TARGET_MINOR >= 5
  const uint32_t *local_ranks; /* [n_local_ranks] ranks that have their endpoints in this world */
  uint32_t n_local_ranks;      /* 0: all */
  uint32_t reserved;           /* 0 */
  const char *job; /* name of the job of the ranks' processes, for names and messages; NULL: none */
  const opipe_board *board; /* used from any thread until world_close; NULL: none */
#endif
} opipe_world_params;

typedef struct opipe_endpoint_params {
  uint32_t struct_size;
  uint32_t rank;
  const opipe_backend *backend; /* of the rank's device: for events and copies of regions */
  opipe_device *device;
  opipe_queue *queue; /* this rank's transfers are ordered after its events; may be NULL on
                         synchronous devices */
  opipe_instance *backend_self; /* the backend's instance, for calls that take no device */
  const char *backend_id;       /* its plugin's id, "cpu"; NULL without a backend */
  uint32_t spin_us;             /* how long `wait` spins before it sleeps; 0: sleep at once */
  uint32_t reserved;            /* 0 */
#if OPIPE_TARGET_MINOR >= 5
  uint32_t device_index; /* the device's number at its backend */
  uint32_t reserved2;    /* 0 */
#endif
} opipe_endpoint_params;

#if OPIPE_TARGET_MINOR >= 1
enum { OPIPE_BATCH_MOST = 256 }; /* operations between batch_begin and batch_end */
#endif

enum { OPIPE_STREAM_FORWARD = 0, OPIPE_STREAM_GRADIENT = 1, OPIPE_STREAM_CONTROL = 2 };

typedef struct opipe_stream_params {
  uint32_t struct_size;
  uint32_t kind; /* OPIPE_STREAM_* */
  uint32_t src_rank, dst_rank;
  uint32_t src_stage, dst_stage;
  uint32_t src_replica, dst_replica;
  uint32_t index;   /* distinguishes the tensors of one pair of instances */
  uint32_t depth;   /* receives that may be posted at once, at least 1 */
  uint64_t n_bytes; /* largest message */
} opipe_stream_params;

#if OPIPE_TARGET_MINOR >= 5
/* How the messages of a stream get from one device's memory to the other's. */
enum {
  OPIPE_WAY_NONE = 0,     /* not known yet */
  OPIPE_WAY_HOST = 1,     /* both lie in the host's memory */
  OPIPE_WAY_DEVICE = 2,   /* both lie on one device: its queue copies */
  OPIPE_WAY_PEER = 3,     /* the sender's queue copies to the other device's memory */
  OPIPE_WAY_SHARED = 4,   /* the same to memory of another process */
  OPIPE_WAY_STAGED = 5,   /* through pinned memory of the host */
  OPIPE_WAY_PAGEABLE = 6, /* through memory of the host that is not pinned: copies wait */
  OPIPE_WAY_KINDS = 8     /* room for so many */
};
typedef struct opipe_way {
  uint32_t struct_size;
  uint32_t way; /* OPIPE_WAY_* */
  /* Pinned host memory for the stream, taken by the rank at its source and at its destination. */
  uint64_t src_bytes, dst_bytes;
  char why[160]; /* STAGED, PAGEABLE: why it is no better one; else "" */
} opipe_way;
/* The two ends of a stream, by backend, its instance, and the device's number. */
typedef struct opipe_way_params {
  uint32_t struct_size;
  uint32_t src_index, dst_index;
  uint32_t reserved; /* 0 */
  const opipe_backend *src_backend, *dst_backend;
  opipe_instance *src_self, *dst_self;
  const opipe_stream_params *stream;
} opipe_way_params;

/* A collect among n members. The values of a list are those of its regions, one region after the
 * other; lists of different members may be divided into regions differently.
 *   ALL_REDUCE      from: all values; to: their sums over the members
 *   REDUCE_SCATTER  from: all values; to: the sums of the member's own part
 *   ALL_GATHER      from: the values of the member's own part; to: the parts of all, in their order
 * Parts lie one after the other in rising order of member, cover all values, and may have any size,
 * also 0. Sums begin with member 0's value, to which those of members 1, 2, ... are added in this
 * order, whatever arrives first: float64 in float64; float32, float16 and bfloat16 in float32, and
 * rounded to the type once, to nearest even; but see OPIPE_TRANSPORT_UNORDERED. Nothing but `to` is
 * written. */
enum {
  OPIPE_COLLECT_ALL_REDUCE = 0,
  OPIPE_COLLECT_REDUCE_SCATTER = 1,
  OPIPE_COLLECT_ALL_GATHER = 2,
  OPIPE_COLLECT_KINDS = 3
};

/* Equal on all members. */
typedef struct opipe_collective_params {
  uint32_t struct_size;
  uint32_t n_ranks;
  const uint32_t *ranks; /* [n_ranks] the members in their order, each rank once */
  uint64_t id;           /* of the group, in the world; free again once all have closed it */
  uint64_t n_bytes;      /* most bytes of a list */
  uint32_t n_regions;    /* most regions of a list, at least 1 */
  uint32_t reserved;     /* 0 */
} opipe_collective_params;

typedef struct opipe_collect {
  uint32_t struct_size;
  uint32_t kind;            /* OPIPE_COLLECT_* */
  uint32_t dtype;           /* that of all values; ALL_GATHER: any of whole bytes */
  uint32_t n_from, n_to;    /* regions of the lists */
  uint32_t reserved;        /* 0 */
  const opipe_region *from; /* whole values each. Where a value of `to` lies, the same value of */
  const opipe_region *to;   /* `from` may lie; elsewhere the lists do not overlap */
  const uint64_t *parts;    /* [n members] values of each part; ALL_REDUCE: NULL */
  opipe_event *ready;       /* the values of `from` are valid once it has completed; NULL: now */
  opipe_event *done; /* recorded when `to` has been written and `from` may be reused; NULL: none */
} opipe_collect;
#endif

typedef struct opipe_transport {
  uint32_t struct_size;
  uint32_t reserved;
  opipe_status (*info)(opipe_instance *self, opipe_transport_info *io_info,
                       opipe_error *err); /* [any-thread] */

  /* -- set-up [control]; may run while the rank steps other streams of the same endpoint. None of
   * these calls waits for a peer: one thread may open all local ends of a world one after the
   * other, in any order. Work that needs the peers (connections, communicators) is done by
   * endpoint_ready -- */
  opipe_status (*world_open)(opipe_instance *self, const opipe_world_params *params,
                             opipe_world **out_world, opipe_error *err);
  void (*world_close)(opipe_world *world); /* after its endpoints; accepts NULL */
  opipe_status (*endpoint_open)(opipe_world *world, const opipe_endpoint_params *params,
                                opipe_endpoint **out_endpoint, opipe_error *err);
  void (*endpoint_close)(opipe_endpoint *endpoint); /* accepts NULL */
  /* Opens one end of a stream; both ends pass equal params (endpoint: src rank's or dst rank's). If
   * they differ the error names both sides. */
  opipe_status (*stream_open)(opipe_endpoint *endpoint, const opipe_stream_params *params,
                              opipe_stream **out_stream, opipe_error *err);
  void (*stream_close)(opipe_stream *stream); /* accepts NULL */
  /* Registers the first n_bytes of a buffer, before its regions are sent, received or reduced by
   * this rank; a message sent in place lies in memory that the receiver has registered. Regions of
   * it may be in flight until memory_drop, which is called after the streams and groups that use it
   * are closed and before the buffer is freed. */
  opipe_status (*memory_register)(opipe_endpoint *endpoint, opipe_buffer *buffer, uint64_t n_bytes,
                                  opipe_memory **out_memory, opipe_error *err);
  void (*memory_drop)(opipe_memory *memory); /* accepts NULL */

  /* -- messages [step:endpoint]; none blocks or allocates. OK | PENDING (nothing happened, call
   * again) | < 0 -- */
  /* Sender: OK once the receive of `sequence` has been posted. */
  opipe_status (*reserve)(opipe_stream *stream, uint64_t sequence, opipe_error *err);
  /* Sender: message `sequence` is `region`, valid once `ready` (NULL: now) has completed. `done`,
   * if not NULL, is recorded when the region may be reused. With OPIPE_TRANSPORT_DIRECT nothing is
   * copied if the region lies inside the receiver's posted region. */
  opipe_status (*send)(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *ready, opipe_event *done, opipe_error *err);
  /* Receiver: posts `region` for message `sequence`. `done`, if not NULL, is recorded when the data
   * has arrived. */
  opipe_status (*recv)(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *done, opipe_error *err);
  /* Either side: OK once its operation on `sequence` has finished. Sender: the region may be
   * reused. Receiver: the data has arrived. Once OK, it stays OK. */
  opipe_status (*test)(opipe_stream *stream, uint64_t sequence, opipe_error *err);

  /* -- doorbell -- */
  uint32_t (*doorbell)(opipe_endpoint *endpoint); /* current value, acquire order. [any-thread] */
  void (*ring)(opipe_endpoint *endpoint); /* moves the doorbell and wakes a waiter. [any-thread] */
  /* Blocks until doorbell != seen, the world is aborted, or `timeout_ns` has passed
   * (OPIPE_E_TIMEOUT). [step:endpoint], blocks */
  opipe_status (*wait)(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                       opipe_error *err);

  /* -- reductions over a group, added in rising order of member, whatever arrives first (but see
   * OPIPE_TRANSPORT_UNORDERED); NULL slots without OPIPE_TRANSPORT_REDUCES. Members are `ranks` in
   * the order given; a rank listed several times opens the group as often and takes its places in
   * order. The caller of group_test may be the one that computes the sum, so all members must go on
   * calling it until it answers OK -- */
  opipe_status (*group_open)(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                             uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
  void (*group_close)(opipe_group *group); /* accepts NULL. [control] */
  /* Sums n_elems values of dtype (fp32 or fp64) over the members, in place; every member gets the
   * same bits. Rounds are numbered from 0; PENDING while the previous round, or `ready`, is not
   * complete. `done`, if not NULL, is recorded when the sum is available. [step:endpoint] */
  opipe_status (*all_reduce)(opipe_group *group, uint64_t sequence, const opipe_region *region,
                             uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                             opipe_event *done, opipe_error *err);
  /* Round `sequence`: OK once this member's region holds the sum. [step:endpoint] */
  opipe_status (*group_test)(opipe_group *group, uint64_t sequence, opipe_error *err);

  /* -- failure -- */
  /* Ends the world: every pending and later call on any endpoint returns OPIPE_E_PEER with `why`
   * (the first call wins). [any-thread] */
  void (*abort)(opipe_world *world, uint32_t rank, const opipe_error *why);

  /* -- each of the following slots may be NULL -- */
  /* Describes a world opened with these options; NULL: info holds for every world. Plans are proven
   * and laid out by the answer, so it must be the same on every machine and contain nothing
   * measured. Errors: those of world_open for options. [any-thread] */
  opipe_status (*world_info)(opipe_instance *self, const char *options,
                             opipe_transport_info *io_info, opipe_error *err);
  /* Continues the set-up that needs peers, for the streams, groups and registrations opened on the
   * endpoint so far, and tells whether it is done: OK | PENDING | < 0. Does not wait. Whoever
   * opened them calls it for all local endpoints in turn until each has answered OK, before the
   * first message on them, and again after a later opening. NULL: no set-up needs peers. Errors:
   * PEER, and any fault of a peer that the transport detects. [control], as the other set-up calls
   */
  opipe_status (*endpoint_ready)(opipe_endpoint *endpoint, opipe_error *err);
  /* `wait` without a thread: calls fn(ctx) once, on any thread, when the doorbell leaves `seen` or
   * `wait` would return for any reason but its time-out; at once if that is already so. It replaces
   * an earlier request, also with fn NULL; after it, or endpoint_close, has returned, no thread is
   * inside the earlier fn. fn is short and calls nothing of the transport. NULL: a host cannot wait
   * for a rank in a loop of its own (session_fd). [step:endpoint] */
  void (*notify)(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx);
#if OPIPE_TARGET_MINOR >= 1
  /* Batches: both slots or neither; called if the world's rule is GROUPED. Between the two calls,
   * send and recv on the endpoint (at most OPIPE_BATCH_MOST, no operation twice) are only noted;
   * they start together at batch_end, where none waits for a peer and none answers PENDING. A send
   * then need not find its receive posted, and has as many bytes as that; its region and `ready`
   * belong to the transport until test says OK. test answers OK for an operation once all of its
   * batch have finished. In between, only doorbell and ring are called on the endpoint, and abort
   * on its world. NULL: the core issues the operations one by one, in the same order. Errors:
   * STATE: a batch is already open, or none is; a fault of an operation is reported by its own call
   * or by batch_end, which closes the batch whatever it answers; PEER. */
  /* OK | PENDING (earlier operations have not finished; no batch was opened) | < 0. [step:endpoint]
   */
  opipe_status (*batch_begin)(opipe_endpoint *endpoint, opipe_error *err);
  opipe_status (*batch_end)(opipe_endpoint *endpoint, opipe_error *err); /* OK | < 0.
                                                                             [step:endpoint] */
#endif
#if OPIPE_TARGET_MINOR >= 5
  /* Memory of the transport's in which a message arrives without another copy; both slots or
   * neither. The core takes it for what a rank receives where the rank's backend has
   * buffer_import, registers the buffer made of it as any other, and counts it as the device's. A
   * receive anywhere else costs one copy more. [control] */
  /* Gives n_bytes at an address that is a multiple of 4096; contents undefined. The memory is there
   * when the call returns: using it fails on no machine. Errors: LIMIT: the machine, or the control
   * group of the process, has no room for it, with both numbers. */
  opipe_status (*memory_alloc)(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                               opipe_error *err);
  /* After memory_drop and buffer_free of the buffer. Accepts NULL. */
  void (*memory_free)(opipe_endpoint *endpoint, void *data);

  /* Collectives; all four slots with OPIPE_TRANSPORT_COLLECTIVES, else none.
   *
   * A collect is a meeting of its group: number k of a member meets number k of every other member,
   * and ends for nobody before all have come. A group has one meeting at a time, and a member's
   * order of calls is the order of its meetings. Groups are independent of each other, with one
   * exception that callers keep and transports may rely on: of groups that share two ranks or more,
   * these ranks call in one order, the same on all of them. */
  /* Opens a member's place in the group `id`. Errors: INVALID: the rank is no member, a rank is
   * listed twice, members differ in params (both are named); STATE: it is open already. [control]
   */
  opipe_status (*collective_open)(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                  opipe_collective **out_collective, opipe_error *err);
  void (*collective_close)(opipe_collective *collective); /* accepts NULL. [control] */
  /* Takes part in meeting `sequence`, numbered from 0. OK | PENDING (call again with the same
   * arguments: `ready`, or, among ranks of one device, a member is awaited) | < 0. From the first
   * call until the meeting has ended for this member, the lists and parts, and the memory of the
   * regions, stay as they are and belong to the transport. Errors: STATE: another number is next;
   * UNSUPPORTED: the type; INVALID: a list is longer than params say, or has another number of
   * values than the kind and the parts ask for (both numbers are named). Nothing has happened then.
   * Members that differ in kind, type, number of values or parts are told so, INVALID with both
   * numbers, by this call or collect_test; the group is of no use afterwards. [step:endpoint] */
  opipe_status (*collect)(opipe_collective *collective, uint64_t sequence,
                          const opipe_collect *collect, opipe_error *err);
  /* OK once meeting `sequence` has ended for this member: `done` is recorded, and without `done`
   * the values are there. Once OK, it stays OK. It may be the one that adds, so all members must go
   * on calling it until it answers OK; but see OPIPE_TRANSPORT_QUEUED. [step:endpoint] */
  opipe_status (*collect_test)(opipe_collective *collective, uint64_t sequence, opipe_error *err);

  /* As recv, of a region that is in use until `ready` (NULL: it is free) has completed: nothing is
   * written there before. `done`, not NULL, is recorded no later than the data's arrival is certain
   * by work that is queued, so that neither end's host waits for a device: test answers OK for this
   * receive once `done` is recorded, and whoever reads the region makes its queue wait for `done`.
   * A transport with this slot takes sends that are given `done` in a batch in the same way: OK
   * once `done` is recorded, and nobody writes to the region before `done` has completed; its
   * batch_begin is PENDING at most until all such events of earlier batches are recorded.
   * Outside batches it may answer PENDING until `ready` has completed. The core uses it under the
   * rule GROUPED, in batches, on asynchronous devices. NULL: there the core waits, in front of a
   * batch, for the device's queued work. [step:endpoint] */
  opipe_status (*recv_after)(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                             opipe_event *ready, opipe_event *done, opipe_error *err);

  /* How messages travel between devices; both slots or neither. NULL: nobody knows, and memory that
   * the transport takes for it is in no prediction. */
  /* For plans: how a stream between two devices will travel in a world opened with these options.
   * Contains nothing measured. Errors: those of the backends' device_query and device_reach.
   * [any-thread] */
  opipe_status (*way)(opipe_instance *self, const char *options, const opipe_way_params *params,
                      opipe_way *io_way, opipe_error *err);
  /* For sessions: how this stream does, once endpoint_ready has answered OK; before, `way` is NONE.
   * [control] */
  opipe_status (*stream_way)(opipe_stream *stream, opipe_way *io_way, opipe_error *err);
#endif
} opipe_transport;

#include "frozen/transport.h"
static const opipe_struct_row opipe_rows_of_OPIPE_KIND_TRANSPORT[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI, OPIPE_ROWS_TYPES, OPIPE_ROWS_BACKEND, OPIPE_ROWS_TRANSPORT};

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TRANSPORT_H */
