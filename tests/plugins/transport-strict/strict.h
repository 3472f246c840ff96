/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-strict: ranks of one process that share numbers, never addresses, and a
 * transport that refuses whatever breaks a rule of opipe/transport.h.
 *
 *   place     what all worlds of one `meet` name are: ranks, wires, circles, pipes; one lock
 *   endpoint  two threads of its own: the writer reads registered memory of its rank and writes
 *             frames into pipes, the reader brings what comes to the region that was posted
 *   board     which receives are posted, which sends are under way: numbers in wires and circles
 *
 * The lock guards everything but what an I/O thread has in hand (`writing`, `reading`); nobody
 * holds it while reading or writing. Nothing on the message path allocates.
 *
 * Refusals are counted (strict_counts). A call with a status answers INVALID and nothing has
 * happened; a call without one (close, drop) ends the world: from then on every call on it answers
 * INVALID with the reason, and what was closed too early goes when the last that needs it does.
 */
#ifndef TESTS_TRANSPORT_STRICT_H
#define TESTS_TRANSPORT_STRICT_H

#include <opipe/meeting.h>
#include <opipe/threads.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "counts.h"

enum { STRICT_ALIGN = 16, STRICT_NAME = 64, STRICT_WHO = 160 };

struct opipe_instance {
  const opipe_host *host;
};

typedef struct options {
  uint32_t rule;          /* OPIPE_RULE_TAG or STREAM */
  char meet[STRICT_NAME]; /* "": nobody else comes */
} options;

/* ---- frames ---- */

enum { FRAME_MAGIC = 0x54435253 };
enum {
  FRAME_MESSAGE = 1, /* of a stream */
  FRAME_PART = 2,    /* sum of members 0 to m - 1, to member m */
  FRAME_SUM = 3      /* the whole sum, from the last member to the others */
};
typedef struct frame {
  uint32_t magic, kind;
  uint32_t src_rank, member; /* member: whom it is for; of a stream 0 */
  uint32_t dtype, reserved;  /* of parts and sums; 0 */
  uint64_t id;               /* of the wire or circle, in the place */
  uint64_t number;           /* of the message, or the round */
  uint64_t n_bytes;          /* that follow */
} frame;

/* A task of a writer; its place never moves. */
typedef struct job {
  struct job *next;
  frame head;
  uint32_t dst_rank;
  uint32_t queued; /* 1: until it has been written */
  const char *source;
  opipe_event *ready; /* awaited first; NULL: none */
  opipe_stream *stream;
  opipe_group *group; /* one of the two */
} job;

/* One directed pair of ranks. -1: not made yet. */
typedef struct lane {
  int in, out; /* the reader's and the writer's end of the pipe */
} lane;

/* ---- streams ---- */

/* Message q uses cell q % depth. */
typedef struct cell {
  uint64_t posted, arrived; /* q + 1 of the latest */
  uint64_t granted, sent, written;
  char *target;
  uint64_t room_bytes;
  opipe_event *recv_done, *send_done;
  opipe_memory *recv_memory, *send_memory; /* in use until arrived, written */
  job job;
} cell;

typedef struct wire {
  opipe_wire base;                      /* its cells: cell */
  uint64_t id;                          /* 0: not given yet */
  uint64_t n_sent, n_posted, n_arrived; /* all below have been */
  bool met;                             /* both ends have been open */
  bool unlisted;                        /* an end has left: nobody can come any more */
} wire;

struct opipe_stream {
  opipe_stream *next; /* of its endpoint */
  wire *wire;
  opipe_endpoint *endpoint;
  uint32_t sides;    /* bit 0: source, bit 1: destination */
  uint64_t n_opened; /* of its endpoint, when it was opened */
};

/* ---- groups ---- */

typedef struct member {
  opipe_group *group;       /* NULL: not open */
  uint64_t given, finished; /* rounds */
  uint64_t part;            /* rounds whose part has come */
  uint64_t added;           /* rounds whose part has been added */
  uint64_t sum;             /* rounds whose sum is in the region */
  opipe_collect what;       /* of the round */
  uint64_t n_values;
  char *data, *scratch; /* all values one after the other, as they are added; room for a part */
  uint64_t part_bytes;
  uint32_t part_dtype, n_jobs_left;
  opipe_memory **memories; /* [2 * n_regions] in use until finished */
} member;

typedef struct circle {
  opipe_circle base; /* its members: member */
  uint64_t id;       /* 0: not given yet */
} circle;

/* A member's own side of a group; of all-reduces of one region, or of collects. */
struct opipe_group {
  opipe_group *next; /* of its endpoint */
  circle *circle;
  opipe_endpoint *endpoint;
  opipe_collective_params params; /* without ranks */
  bool collects;
  uint32_t index;      /* among the members */
  uint32_t n_jobs;     /* [circle's members] */
  uint64_t n_opened;   /* of its endpoint, when it was opened */
  opipe_region region; /* of all-reduce: its only one */
  opipe_span *spans;   /* [2 * n_regions] from, then to */
  job *jobs;
};

struct opipe_collective {
  opipe_group group;
};

/* ---- ranks ---- */

struct opipe_memory {
  opipe_memory *next; /* of its endpoint */
  opipe_endpoint *endpoint;
  opipe_buffer *buffer;
  char *base;
  uint64_t n_bytes;
  uint64_t n_in_flight; /* regions of it */
  bool dropped;         /* while some were in flight: it goes with the last */
};

struct opipe_endpoint {
  opipe_world *world;
  struct place *place;
  const opipe_backend *backend;
  opipe_queue *queue;
  uint32_t rank;
  _Atomic uint32_t inside; /* 1: a thread is in a call of the rank's thread */
  uint64_t owner;          /* the thread that was last */
  bool owned, closed;      /* closed: too early, it goes with the last of what it has */
  /* doorbell */
  uint32_t count;
  pthread_cond_t cond;
  void (*notify)(void *ctx);
  void *notify_ctx;
  /* objects of the endpoint */
  opipe_stream *streams;
  opipe_group *groups;
  opipe_memory *memories;
  uint64_t n_opened, n_ready; /* streams and groups so far; those that are ready */
  /* its threads */
  pthread_t writer, reader;
  pthread_cond_t work, calm; /* there may be jobs; a thread has nothing in hand any more */
  job *first_job, **last_job;
  const void *writing, *reading; /* stream or group that a thread has in hand; NULL: none */
  int wake[2];                   /* a pipe that ends the reader's and the writer's waits */
  struct pollfd *polled;         /* [n_ranks + 1] the reader's own */
  bool threaded;                 /* both run */
  _Atomic uint32_t stop;
};

struct opipe_world {
  const opipe_host *host;
  struct place *place;
  uint32_t n_endpoints; /* that were opened through it */
  bool closed;          /* while some were open: it goes with the last */
};

/* Two ranks: the groups of the rounds that they begin, [n[0]] of the lower, [n[1]] of the higher
 * rank, by number modulo STRICT_AHEAD; both ranks are in all of them (order.c). */
enum { STRICT_AHEAD = 1024 };
typedef struct pair_order {
  uint64_t n[2];
  uint64_t groups[STRICT_AHEAD];
} pair_order;

typedef struct place {
  struct place *next; /* of those with a name */
  options options;
  uint32_t n_ranks, n_worlds;
  pthread_mutex_t lock;
  _Atomic uint32_t aborted; /* 1: `why` holds */
  bool broken;              /* a rule was: everybody gets INVALID */
  uint32_t abort_rank;
  opipe_error why;
  opipe_endpoint **endpoints; /* [n_ranks] */
  lane *lanes;                /* [n_ranks * n_ranks] from * n_ranks + to */
  opipe_wires wires;
  opipe_circles circles, collectives;
  uint64_t n_ids;
  pair_order *orders; /* [n_ranks * n_ranks] lower * n_ranks + higher */
} place;

/* -- strict.c: places; what is wrong -- */
strict_counts *strict_counted(void);
extern const opipe_host strict_memory; /* of what worlds share: none of their hosts' */
/* Counts, and answers INVALID with "CALL: WHO: ..."; strict_who_* say who. */
opipe_status strict_refuse(const char *who, const char *call, opipe_error *err, const char *fmt,
                           ...) OPIPE_PRINTF(4, 5);
void strict_who_stream(const opipe_stream *stream, char who[STRICT_WHO]);
void strict_who_group(const opipe_group *group, char who[STRICT_WHO]);
void strict_who_rank(const opipe_endpoint *endpoint, char who[STRICT_WHO]);
/* Ends the place; lock held. `broken`: by a broken rule, which is counted and logged. */
void strict_end(place *p, uint32_t rank, const opipe_error *why);
void strict_break(const opipe_host *host, place *p, uint32_t rank, const char *fmt, ...)
    OPIPE_PRINTF(4, 5);
opipe_status strict_check(const place *p, opipe_error *err); /* PEER, INVALID: it has ended */
/* An endpoint opened through it has gone. Takes the registry's lock. */
void strict_world_leave(opipe_world *world);

/* -- endpoint.c -- */
opipe_status strict_endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err);
void strict_endpoint_close(opipe_endpoint *endpoint);
opipe_status strict_endpoint_ready(opipe_endpoint *endpoint, opipe_error *err);
/* The endpoint has one object less: one that was closed too early may go now. Lock not held. */
void strict_endpoint_leave(opipe_endpoint *endpoint);
/* A call of the rank's thread: OK takes the lock. strict_leave gives it back. */
opipe_status strict_enter(opipe_endpoint *endpoint, const char *call, opipe_error *err);
void strict_leave(opipe_endpoint *endpoint);
/* May what was opened as number n_opened be used? Lock held. */
opipe_status strict_usable(const opipe_endpoint *endpoint, uint64_t n_opened, const char *who,
                           const char *call, opipe_error *err);

/* INVALID: an event, and nothing to ask or record it with. */
opipe_status strict_events(const opipe_endpoint *endpoint, const opipe_event *ready,
                           const opipe_event *done, const char *who, const char *call,
                           opipe_error *err);
/* Records *io_event on the rank's queue and forgets it; NULL: nothing. On the rank's thread. */
opipe_status strict_record(const opipe_endpoint *endpoint, opipe_event **io_event,
                           opipe_error *err);

/* -- doorbell.c; lock held in the first -- */
void strict_ring_rank(place *p, uint32_t rank);
uint32_t strict_doorbell(opipe_endpoint *endpoint);
void strict_ring(opipe_endpoint *endpoint);
opipe_status strict_wait(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                         opipe_error *err);
void strict_notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx);

/* -- memory.c -- */
opipe_status strict_memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                    uint64_t n_bytes, opipe_memory **out_memory, opipe_error *err);
void strict_memory_drop(opipe_memory *memory);
/* The registered memory that a region lies in, and its address; NULL for 0 bytes. Lock held. */
opipe_status strict_region(const opipe_endpoint *endpoint, const opipe_region *region,
                           const char *who, const char *call, opipe_memory **out_memory,
                           char **out_data, opipe_error *err);
void strict_take(opipe_memory *memory);     /* a region of it is in flight; NULL: none */
void strict_give(opipe_memory **io_memory); /* it is not any more */

/* -- pipes.c; lock held but in start and stop -- */
opipe_status strict_lane(place *p, uint32_t src, uint32_t dst, opipe_error *err);
void strict_lanes_close(place *p);
opipe_status strict_threads_start(opipe_endpoint *endpoint, opipe_error *err);
void strict_threads_stop(opipe_endpoint *endpoint);
void strict_queue(opipe_endpoint *endpoint, job *j);
void strict_unqueue(opipe_endpoint *endpoint, const void *owner); /* of a stream or group */
void strict_prod(opipe_endpoint *endpoint);                       /* threads look again */
/* Waits until neither thread has `owner` in hand (NULL: anything). The place has ended, so that
 * this needs no peer. */
void strict_calm(opipe_endpoint *endpoint, const void *owner);

/* -- streams.c, messages.c -- */
opipe_status strict_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err);
void strict_stream_close(opipe_stream *stream);
cell *strict_cell(const opipe_stream *stream, uint64_t sequence);
opipe_status strict_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status strict_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status strict_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *done, opipe_error *err);
opipe_status strict_recv_after(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                               opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status strict_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);
/* A frame has come: where its bytes go; false: the place has ended. Then they are there. */
bool strict_message_comes(opipe_endpoint *endpoint, const frame *head, opipe_stream **out_stream,
                          char **out_target);
void strict_message_arrived(opipe_stream *stream, const frame *head);
void strict_message_written(const job *j);

/* -- groups.c; the same -- */
opipe_status strict_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void strict_group_close(opipe_group *group);
opipe_status strict_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err);
opipe_status strict_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);
/* -- order.c: may this member begin a round now? OK: it has. Lock held -- */
opipe_status strict_begin_in_order(const opipe_group *group, const char *who, const char *call,
                                   opipe_error *err);
opipe_status strict_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                    opipe_collective **out_collective, opipe_error *err);
void strict_collective_close(opipe_collective *collective);
opipe_status strict_collect(opipe_collective *collective, uint64_t sequence,
                            const opipe_collect *collect, opipe_error *err);
opipe_status strict_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);
bool strict_part_comes(opipe_endpoint *endpoint, const frame *head, opipe_group **out_group,
                       char **out_target);
void strict_part_arrived(opipe_group *group, const frame *head);
void strict_part_written(const job *j);

#endif /* TESTS_TRANSPORT_STRICT_H */
