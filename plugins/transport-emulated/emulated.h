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

#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <pthread.h>

enum { FAULTS_MOST = 16 };

struct opipe_instance {
  const opipe_host *host;
};

typedef struct fault {
  uint32_t src, dst;
  uint64_t sequence;
  uint64_t delay_ns; /* UINT64_MAX: lost */
} fault;

typedef struct options {
  uint32_t rule; /* OPIPE_RULE_TAG | OPIPE_RULE_STREAM */
  uint64_t latency_ns;
  double bytes_per_ns; /* 0: no limit */
  fault faults[FAULTS_MOST];
  uint32_t n_faults;
} options;

/* Sequence number q uses cell q % depth. Under the world's lock. */
typedef struct cell {
  uint64_t posted, sent, arrived; /* q + 1 of the latest */
  char *target;
  uint64_t room_bytes;
  const char *source;
  uint64_t n_bytes;
  uint64_t at_ns; /* clock when it arrives; UINT64_MAX: never */
  opipe_event *ready, *recv_done, *send_done;
} cell;

typedef struct wire {
  struct wire *next;
  opipe_stream_params params;
  opipe_stream *ends[2];
  cell *cells;
  const opipe_backend *src_backend;
  uint64_t n_posted, n_sent; /* for the FIFO rule: the next to be posted, to be sent */
  uint64_t free_ns;          /* clock when the link has carried all before */
} wire;

struct opipe_stream {
  wire *wire;
  opipe_endpoint *endpoint;
  uint32_t sides; /* bit 0: source, bit 1: destination */
};

struct opipe_endpoint {
  opipe_world *world;
  const opipe_backend *backend;
  opipe_queue *queue;
  uint32_t rank;
  uint32_t count; /* the doorbell */
  uint64_t
      next_ns; /* clock at which something may have arrived; UINT64_MAX: nothing is on its way */
  pthread_cond_t cond;
};

struct opipe_memory {
  opipe_world *world;
};

struct opipe_world {
  const opipe_host *host;
  options options;
  uint32_t n_ranks;
  pthread_mutex_t lock;
  bool aborted;
  uint32_t abort_rank;
  opipe_error why;
  opipe_endpoint **endpoints; /* [n_ranks] */
  wire *wires;
};

/* options.c */
opipe_status emutrans_options(const char *text, options *out, opipe_error *err);

/* emulated.c */
void *emutrans_alloc(const opipe_host *host, size_t n_bytes); /* zeroed; NULL */
void emutrans_free(const opipe_host *host, void *ptr, size_t n_bytes);
uint64_t emutrans_now(void);
opipe_status emutrans_check(const opipe_world *world, opipe_error *err); /* lock held */
void emutrans_ring_locked(opipe_world *world, uint32_t rank);

/* messages.c */
opipe_status emutrans_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status emutrans_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                           opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status emutrans_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                           opipe_event *done, opipe_error *err);
opipe_status emutrans_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);

/* streams.c */
opipe_status emutrans_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                  opipe_stream **out_stream, opipe_error *err);
void emutrans_stream_close(opipe_stream *stream);

#endif /* OPIPE_TRANSPORT_EMULATED_H */
