/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-emulated: messages between threads of one process that take modelled time, come
 * late, or get lost by rule.
 *
 * For tests of timing, back-pressure and watchdogs, not for speed: one lock guards a world. A
 * message arrives at max(send, the link is free) + bytes / bandwidth + latency (+ its stall) and is
 * copied when its receive stands and its time has come, by whichever side looks. Nothing is written
 * in place.
 */
#ifndef OPIPE_TRANSPORT_EMULATED_H
#define OPIPE_TRANSPORT_EMULATED_H

#include <opipe/meeting.h>
#include <pthread.h>

enum { FAULTS_MOST = 16, OPS_MOST = OPIPE_BATCH_MOST, ALIGN = 16 };
enum { AGAIN_NS = 20000 }; /* after which an event is looked at again */

struct opipe_instance {
  const opipe_host *host;
};

typedef struct fault {
  uint32_t src, dst;
  uint64_t sequence;
  uint64_t delay_ns; /* UINT64_MAX: lost */
} fault;

typedef struct options {
  uint32_t rule; /* OPIPE_RULE_* */
  uint64_t latency_ns;
  uint64_t jitter_ns; /* the most that chance adds; 0: nothing */
  uint64_t seed;
  double bytes_per_ns; /* 0: no limit */
  uint64_t setup_ns;   /* an endpoint can be used so long after it is opened; 0: at once */
  bool scattered;      /* the link is one for parts (OPIPE_TRANSPORT_SCATTERED) */
  fault faults[FAULTS_MOST];
  uint32_t n_faults;
} options;

/* Sequence number q uses cell q % depth. Under the world's lock. */
typedef struct cell {
  uint64_t posted, sent, arrived; /* q + 1 of the latest */
  uint64_t offered;               /* the same: of a batch, sent once the receive stands */
  char *target;
  uint64_t room_bytes;
  const char *source;
  uint64_t n_bytes;
  uint64_t at_ns; /* clock when it arrives; UINT64_MAX: never */
  opipe_event *ready, *recv_done, *send_done;
  opipe_event *after;  /* the target is in use until then; NULL: it is free */
  opipe_event *copied; /* of the receiver's device, where ranks have lanes (queued.c) */
  opipe_region to;     /* the target */
  bool orders[2];      /* by side: the operation is of a batch that queues */
  uint64_t from_ns[2]; /* by side: clock when its batch on a lane by the clock began; 0: of none */
  uint64_t begun[2];   /* by side: q + 1 of the latest operation that was tried */
  uint64_t number[2];  /* by side: its place in the channel */
  uint64_t
      through[2]; /* by side: q + 1 of the latest whose batch on a lane by the clock has ended */
} cell;

/* The messages that are matched in order under the rules edge (from -> to) and pair (from < to). */
typedef struct channel {
  struct channel *next;
  uint32_t from, to, n_wires;
  uint64_t next_number[2]; /* by end */
  uint64_t n_done;
} channel;

typedef struct wire {
  opipe_wire base;  /* its cells: cell */
  channel *channel; /* NULL: the rule needs none */
  const opipe_backend *src_backend, *dst_backend;
  uint64_t n_posted, n_sent; /* for the FIFO rule: the next to be posted, to be sent */
  uint64_t free_ns;          /* clock when the link has carried all before */
} wire;

typedef struct operation {
  opipe_stream *stream;
  uint64_t sequence;
  uint32_t side; /* 0: send, 1: receive */
} operation;

struct opipe_stream {
  wire *wire;
  opipe_endpoint *endpoint;
  uint32_t sides;    /* bit 0: source, bit 1: destination */
  uint64_t n_opened; /* of its endpoint, when it was opened */
};

typedef struct clock_lane clock_lane; /* lanes.c */

struct opipe_endpoint {
  opipe_world *world;
  const opipe_backend *backend;
  opipe_queue *queue;
  uint32_t rank;
  uint32_t count; /* the doorbell */
  uint64_t n_opened,
      n_ready;       /* streams and groups so far; those that endpoint_ready has answered for */
  uint64_t ready_ns; /* clock at which the newest can be used */
  uint64_t
      next_ns; /* clock at which something may have arrived; UINT64_MAX: nothing is on its way */
  uint64_t sums_free_ns; /* clock when the bytes of its reductions so far are through */
  pthread_cond_t cond;
  void (*notify)(void *ctx); /* called by whoever rings next; NULL: nobody asked */
  void *notify_ctx;
  operation ops[OPS_MOST]; /* rules blocking and grouped: of the group at hand */
  uint32_t n_ops;
  bool group_closed; /* nothing may join it */
  bool noting;       /* between batch_begin and batch_end */
  bool batched;      /* the group was a batch: none of its operations ends before the others */
  /* batches that queue (queued.c) */
  opipe_device *device;
  opipe_queue *lane;     /* does the rank's batches one after the other; NULL: there is none */
  opipe_queue **from;    /* [n_ranks] copies what comes from a peer; NULL: not opened */
  opipe_event *started;  /* recorded where the lane has come to the batch at hand */
  bool orders;           /* the batch at hand queues: every operation has brought `done` */
  bool settled;          /* all `done` of it are recorded */
  bool queued[OPS_MOST]; /* of operation i: the lane has it */
  clock_lane *clock;     /* batches where messages take time (lanes.c); NULL: there is none */
};

struct opipe_memory {
  opipe_world *world;
};

typedef struct member {
  uint64_t given, taken; /* rounds */
  opipe_collect what;    /* of the round */
  uint64_t n_values;
  opipe_span *from, *to; /* [n_regions] of the lists */
} member;

typedef struct reduction {
  opipe_circle base;                   /* its members: member */
  uint64_t n_given, n_begun, n_summed; /* n_given: contributions since the start; rounds that have
                                          begun, that are over */
  uint64_t at_ns;                      /* when the round at hand has taken its time */
} reduction;

struct opipe_world {
  const opipe_host *host;
  options options;
  uint32_t n_ranks;
  pthread_mutex_t lock;
  bool aborted;
  uint32_t abort_rank;
  opipe_error why;
  opipe_endpoint **endpoints; /* [n_ranks] */
  opipe_wires wires;
  channel *channels;
  opipe_circles reductions, collectives;
};

/* options.c */
opipe_status emutrans_options(const char *text, options *out, opipe_error *err);

/* emulated.c */
uint64_t emutrans_now(void);
opipe_status emutrans_check(const opipe_world *world, opipe_error *err); /* lock held */
void emutrans_ring_locked(opipe_world *world, uint32_t rank);

/* Counts something opened on the endpoint; its number. Lock held. */
uint64_t emutrans_opened(opipe_endpoint *endpoint);
/* STATE: endpoint_ready has not answered OK since number `n_opened` was opened. */
opipe_status emutrans_usable(const opipe_endpoint *endpoint, uint64_t n_opened, const char *what,
                             opipe_error *err);

/* messages.c */
cell *emutrans_cell(const opipe_stream *stream, uint64_t sequence);
opipe_status emutrans_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status emutrans_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                           opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status emutrans_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                           opipe_event *done, opipe_error *err);
opipe_status emutrans_recv_after(opipe_stream *stream, uint64_t sequence,
                                 const opipe_region *region, opipe_event *ready, opipe_event *done,
                                 opipe_error *err);
opipe_status emutrans_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);

/* Host address of a region; 0 bytes need no buffer. */
opipe_status emutrans_address(const opipe_endpoint *endpoint, const opipe_region *region,
                              void **out_data, opipe_error *err);
/* Records *io_event on the endpoint's queue and forgets it; NULL: nothing. */
opipe_status emutrans_record(const opipe_endpoint *endpoint, opipe_event **io_event,
                             opipe_error *err);

/* groups.c */
opipe_status emutrans_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                                 uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void emutrans_group_close(opipe_group *group);
opipe_status emutrans_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                                 uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                                 opipe_event *done, opipe_error *err);
opipe_status emutrans_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
opipe_status emutrans_collective_open(opipe_endpoint *endpoint,
                                      const opipe_collective_params *params,
                                      opipe_collective **out_collective, opipe_error *err);
void emutrans_collective_close(opipe_collective *collective);
opipe_status emutrans_collect(opipe_collective *collective, uint64_t sequence,
                              const opipe_collect *collect, opipe_error *err);
opipe_status emutrans_collect_test(opipe_collective *collective, uint64_t sequence,
                                   opipe_error *err);

/* A message that was offered is sent once its receive stands; lock held. */
opipe_status emutrans_meet(opipe_world *world, wire *wire, cell *c, uint64_t sequence,
                           opipe_error *err);
/* The endpoint is to look again at that time; lock held. */
void emutrans_look_at(opipe_endpoint *endpoint, uint64_t ns);
/* The time that chance adds to number `sequence` between two ranks, or in their group: 0 to
 * jitter_ns. */
uint64_t emutrans_chance(const options *o, uint32_t a, uint32_t b, uint64_t sequence);
/* Copies message `sequence` if its time has come; lock held. */
opipe_status emutrans_move(opipe_stream *stream, cell *c, uint64_t sequence, opipe_error *err);

/* rules.c; lock held. May an operation of one side (0: send, 1: receive) begin? PENDING: not now.
 */
opipe_status emutrans_begin(opipe_stream *stream, cell *c, uint64_t sequence, uint32_t side,
                            opipe_error *err);
/* May a message whose receive stands be sent now? OK counts it. */
opipe_status emutrans_may_send(opipe_stream *stream, const cell *c, uint64_t sequence,
                               opipe_error *err);
void emutrans_close_group(opipe_endpoint *endpoint);
/* Has every operation of the batch finished that this one belongs to? OK: so it has, or there is
 * none. */
opipe_status emutrans_batch_done(opipe_stream *stream, uint64_t sequence, opipe_error *err);
/* STATE: a batch is open. */
opipe_status emutrans_not_noting(const opipe_endpoint *endpoint, const char *what,
                                 opipe_error *err);
/* An operation whose cell is filled in stands, or is offered: from here on its peer sees it. */
opipe_status emutrans_start(const opipe_endpoint *endpoint, const operation *op, opipe_error *err);
opipe_status emutrans_batch_begin(opipe_endpoint *endpoint, opipe_error *err);
opipe_status emutrans_batch_end(opipe_endpoint *endpoint, opipe_error *err);
void emutrans_forget(opipe_stream *stream);
opipe_status emutrans_channel_take(opipe_world *world, wire *w, opipe_error *err);
void emutrans_channel_leave(opipe_world *world, wire *w);

/* queued.c; lock held but in open and close */
opipe_status emutrans_lane_open(opipe_endpoint *endpoint, const opipe_endpoint_params *params,
                                opipe_error *err);
void emutrans_lane_close(opipe_endpoint *endpoint);
/* The events of a stream's cells, of its receiver's endpoint. */
opipe_status emutrans_cells_open(const opipe_stream *stream, opipe_error *err);
void emutrans_cells_close(const opipe_stream *stream);
/* A batch has ended: does it queue? Then the lane comes to it. */
opipe_status emutrans_queue_batch(opipe_endpoint *endpoint, opipe_error *err);
/* Queues what can be queued of the batch at hand. PENDING: peers have not come to theirs. */
opipe_status emutrans_queue_move(opipe_endpoint *endpoint, opipe_error *err);
/* Is the message moved by the lanes of its ranks? */
static inline bool emutrans_is_queued(const cell *c) {
  return c->orders[0] && c->orders[1];
}

/* lanes.c; lock held but in open and close; by the endpoint's own thread */
opipe_status emutrans_clock_open(opipe_endpoint *endpoint, opipe_error *err);
void emutrans_clock_close(opipe_endpoint *endpoint);
/* May another batch be opened? PENDING: not now. */
opipe_status emutrans_clock_ready(opipe_endpoint *endpoint, opipe_error *err);
/* Does the lane take the next operation of the batch at hand? orders: it brings `done`, and whoever
 * uses its region waits for that. */
bool emutrans_clock_takes(const opipe_endpoint *endpoint, bool orders);
opipe_status emutrans_clock_note(opipe_endpoint *endpoint, const operation *op, void *data,
                                 uint64_t n_bytes, opipe_event *ready, opipe_event *done,
                                 bool orders, opipe_error *err);
/* The batch at hand has ended. */
void emutrans_clock_end(opipe_endpoint *endpoint);
/* Carries on with the lane's batches. PENDING: one is under way. */
opipe_status emutrans_clock_move(opipe_endpoint *endpoint, opipe_error *err);
/* Has the lane the operation, whose batch has not ended? */
bool emutrans_clock_has(const opipe_endpoint *endpoint, const opipe_stream *stream,
                        uint64_t sequence);
bool emutrans_clock_is_empty(const opipe_endpoint *endpoint);
void emutrans_clock_forget(const opipe_stream *stream);

/* streams.c */
opipe_status emutrans_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                  opipe_stream **out_stream, opipe_error *err);
void emutrans_stream_close(opipe_stream *stream);

#endif /* OPIPE_TRANSPORT_EMULATED_H */
