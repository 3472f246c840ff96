/* SPDX-License-Identifier: Apache-2.0 */
/* Interface "opipe.transport/1": moves boundary tensors between ranks.
 *
 *   world     the ranks that talk to each other (in one process: one object)
 *   endpoint  one rank's end. All hot calls of an endpoint come from that rank's thread
 *             [step:endpoint]; abort, ring and doorbell from any
 *   stream    messages of one kind from one stage instance to another, numbered 0, 1, 2 ... by
 *             `sequence`
 *
 * Back-pressure: a receiver posts `recv` with the region it has set aside; `reserve` tells the
 * sender whether the matching receive has been posted, and nothing is sent before it has answered
 * OK (batches apart). With OPIPE_TRANSPORT_DIRECT, between two ranks that share memory (their
 * devices are of one kind, in one domain, with host memory), the core binds the producer's output
 * to the *receiver's* region, calls reserve before the producer runs, and `send` only publishes.
 * Otherwise the sender's region is in use until `test` says OK.
 *
 * Errors of every slot: INVALID for what breaks a rule, naming stream, rank and both numbers;
 * NOMEM; PEER after abort; others where stated. Outputs are set on success only.
 *
 * Waiting: every endpoint has a doorbell, a counter that rings (grows) whenever something may have
 * changed for that rank. Read it, try, and if nothing moved wait for it to leave the value read: no
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

/* Which messages may overtake which: the proof is made under the transport's rule. */
enum {
  OPIPE_RULE_TAG = 0,      /* matched by (stream, sequence); any order */
  OPIPE_RULE_STREAM = 1,   /* FIFO per stream */
  OPIPE_RULE_EDGE = 2,     /* FIFO per directed pair of ranks */
  OPIPE_RULE_PAIR = 3,     /* FIFO per pair of ranks, both directions together */
  OPIPE_RULE_BLOCKING = 4, /* rendezvous: a send ends when its receive runs */
  OPIPE_RULE_GROUPED = 5   /* operations issued together proceed together */
};
/* Hot calls: SINGLE, all of a world from one thread; PER_ENDPOINT, one thread for each. */
enum { OPIPE_THREADS_SINGLE = 0, OPIPE_THREADS_PER_ENDPOINT = 1 };
/* DIRECT: it writes in place where two ranks share memory. REDUCES: the group slots are there.
 * EMULATED: times are declared. */
enum { OPIPE_TRANSPORT_DIRECT = 1u, OPIPE_TRANSPORT_REDUCES = 2u, OPIPE_TRANSPORT_EMULATED = 4u };

typedef struct opipe_transport_info {
  uint32_t struct_size;
  uint32_t rule;        /* OPIPE_RULE_* */
  uint32_t thread_rule; /* OPIPE_THREADS_* */
  uint32_t flags;       /* OPIPE_TRANSPORT_* */
  uint32_t fence_kinds; /* bit (1 << OPIPE_FENCE_*) for each native handle that it understands */
  uint32_t max_ranks;   /* 0: no limit */
  double latency_ns;    /* one message; 0 to 1e15 */
  double bandwidth;     /* bytes per second, 1 to 1e18; 0: by address, no copy */
} opipe_transport_info;

/* params are borrowed for the call; a stream's are copied. */
typedef struct opipe_world_params {
  uint32_t struct_size;
  uint32_t n_ranks;
  const char *options; /* "key=value,..." or NULL; unknown keys are errors */
} opipe_world_params;

typedef struct opipe_endpoint_params {
  uint32_t struct_size;
  uint32_t rank;
  const opipe_backend *backend; /* of the rank's device: for events and copies of regions */
  opipe_device *device;
  opipe_queue *queue; /* transfers of this rank are ordered after its events; may be NULL on
                         synchronous devices */
  opipe_instance
      *backend_self;      /* the backend's instance: for what is asked of it, not of a device */
  const char *backend_id; /* its plugin's id, "cpu"; NULL without a backend */
  uint32_t spin_us;       /* how long `wait` spins before it sleeps; 0: sleep at once */
  uint32_t reserved;      /* 0 */
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
  uint32_t index;   /* tells apart the tensors of one pair of instances */
  uint32_t depth;   /* receives that may be posted at once, at least 1 */
  uint64_t n_bytes; /* largest message */
} opipe_stream_params;

typedef struct opipe_transport {
  uint32_t struct_size;
  uint32_t reserved;
  opipe_status (*info)(opipe_instance *self, opipe_transport_info *io_info,
                       opipe_error *err); /* [any-thread] */

  /* -- set-up [control]; may run while the rank steps other streams of the same endpoint. None of
   * these calls waits for a peer: one thread may open all local ends of a world one after the
   * other, in any order. What needs the others (connections, communicators) is done by
   * endpoint_ready --
   */
  opipe_status (*world_open)(opipe_instance *self, const opipe_world_params *params,
                             opipe_world **out_world, opipe_error *err);
  void (*world_close)(opipe_world *world); /* after its endpoints; accepts NULL */
  opipe_status (*endpoint_open)(opipe_world *world, const opipe_endpoint_params *params,
                                opipe_endpoint **out_endpoint, opipe_error *err);
  void (*endpoint_close)(opipe_endpoint *endpoint); /* accepts NULL */
  /* Both ends open the stream with equal params (endpoint = src or dst rank's). Names both sides
   * when they differ. */
  opipe_status (*stream_open)(opipe_endpoint *endpoint, const opipe_stream_params *params,
                              opipe_stream **out_stream, opipe_error *err);
  void (*stream_close)(opipe_stream *stream); /* accepts NULL */
  /* The first n_bytes of a buffer, before its regions are sent, received or reduced by this rank;
   * what is sent in place lies in memory that the receiver has registered. Regions of it may be in
   * flight until memory_drop, which comes behind the streams and groups that use it, before the
   * buffer is freed. */
  opipe_status (*memory_register)(opipe_endpoint *endpoint, opipe_buffer *buffer, uint64_t n_bytes,
                                  opipe_memory **out_memory, opipe_error *err);
  void (*memory_drop)(opipe_memory *memory); /* accepts NULL */

  /* -- messages [step:endpoint]; none blocks or allocates. OK | PENDING (nothing happened, call
   * again) | < 0 -- */
  /* Sender: has the receive of `sequence` been posted? */
  opipe_status (*reserve)(opipe_stream *stream, uint64_t sequence, opipe_error *err);
  /* Sender: message `sequence` is `region`, valid once `ready` (NULL: now) has completed. `done`,
   * if not NULL, is recorded when the region may be reused. With OPIPE_TRANSPORT_DIRECT and region
   * inside the receiver's posted region nothing is copied. */
  opipe_status (*send)(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *ready, opipe_event *done, opipe_error *err);
  /* Receiver: posts `region` for message `sequence`. `done`, if not NULL, is recorded when the data
   * is there. */
  opipe_status (*recv)(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                       opipe_event *done, opipe_error *err);
  /* Either side: has its operation on `sequence` finished? Sender: the region is its own again.
   * Receiver: the data is there. OK stays OK. */
  opipe_status (*test)(opipe_stream *stream, uint64_t sequence, opipe_error *err);

  /* -- doorbell -- */
  uint32_t (*doorbell)(opipe_endpoint *endpoint); /* current value, acquire order. [any-thread] */
  void (*ring)(
      opipe_endpoint *endpoint); /* makes the doorbell move and wakes a waiter. [any-thread] */
  /* Blocks until doorbell != seen, the world is aborted, or `timeout_ns` passed (OPIPE_E_TIMEOUT).
   * [step:endpoint], blocks */
  opipe_status (*wait)(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                       opipe_error *err);

  /* -- reductions over a group, added in rising order of member, whatever arrives first; NULL slots
   * without OPIPE_TRANSPORT_REDUCES. Members are `ranks` in the order given; a rank that stands
   * there several times opens the group as often, and takes its places in order. The sum may be
   * made by whoever calls group_test: all members must go on calling it until it answers OK -- */
  opipe_status (*group_open)(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                             uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
  void (*group_close)(opipe_group *group); /* accepts NULL. [control] */
  /* In place sum of n_elems values of dtype (fp32 or fp64) over the members; every member gets the
   * same bits. Rounds are numbered from 0; PENDING while the round before, or `ready`, is not
   * complete. `done`, if not NULL, is recorded when the sum is there. [step:endpoint] */
  opipe_status (*all_reduce)(opipe_group *group, uint64_t sequence, const opipe_region *region,
                             uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                             opipe_event *done, opipe_error *err);
  /* Round `sequence`: OK once this member's region holds the sum. [step:endpoint] */
  opipe_status (*group_test)(opipe_group *group, uint64_t sequence, opipe_error *err);

  /* -- failure -- */
  /* Ends the world: every pending and later call on any endpoint returns OPIPE_E_PEER with `why`
   * (first call wins). [any-thread] */
  void (*abort)(opipe_world *world, uint32_t rank, const opipe_error *why);

  /* -- each of the following may be NULL -- */
  /* What a world that is opened with these options declares; NULL: info holds for every world.
   * Plans are proven and laid out by it, so it is the same on every machine: nothing measured.
   * Errors: those of world_open about options. [any-thread] */
  opipe_status (*world_info)(opipe_instance *self, const char *options,
                             opipe_transport_info *io_info, opipe_error *err);
  /* Goes on with what the streams, groups and registrations that were opened on the endpoint so far
   * need from peers, and says whether it is done: OK | PENDING | < 0. Does not wait; whoever opened
   * them calls it, for all local endpoints in turn, until each has answered OK, before the first
   * message on them; after a later opening again. NULL: nothing is ever needed. Errors: PEER, and
   * what the transport finds wrong with a peer. [control], as the other calls of set-up */
  opipe_status (*endpoint_ready)(opipe_endpoint *endpoint, opipe_error *err);
  /* `wait` without a thread: calls fn(ctx) once, on any thread, when the doorbell leaves `seen` or
   * `wait` would return for another reason but its time-out; at once if that is so already. What
   * was asked for before is forgotten, with fn NULL too; once this, or endpoint_close, has returned
   * nobody is in the fn of before. fn is short, and calls nothing of the transport. NULL: a host
   * cannot wait for a rank in a loop of its own (session_fd). [step:endpoint] */
  void (*notify)(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx);
#if OPIPE_TARGET_MINOR >= 1
  /* Both or neither; called where the world's rule is GROUPED. send and recv of the endpoint
   * between the two, at most OPIPE_BATCH_MOST, none twice, are noted, and start together at
   * batch_end: there none of them waits for a peer, and none answers PENDING. A send need not find
   * its receive posted; its region and `ready` are the transport's until test says OK. test answers
   * OK for an operation once all of its batch have finished. Nothing else is called on the endpoint
   * in between but doorbell and ring, and abort on its world. NULL: the core issues the operations
   * one by one, in the same order. Errors: STATE, a batch is open already, or none is; what is
   * wrong with an operation is said by its own call or by batch_end, which closes the batch
   * whatever it answers; PEER. */
  /* OK | PENDING (what was issued before has not finished; nothing is open) | < 0.
   * [step:endpoint] */
  opipe_status (*batch_begin)(opipe_endpoint *endpoint, opipe_error *err);
  opipe_status (*batch_end)(opipe_endpoint *endpoint, opipe_error *err); /* OK | < 0.
                                                                             [step:endpoint] */
#endif
} opipe_transport;

#include "frozen/transport.h"
static const opipe_struct_row opipe_rows_of_OPIPE_KIND_TRANSPORT[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI, OPIPE_ROWS_TYPES, OPIPE_ROWS_BACKEND, OPIPE_ROWS_TRANSPORT};

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TRANSPORT_H */
