/* SPDX-License-Identifier: Apache-2.0 */
/* Inside transport-staged: transport 'local' for devices whose memory has no host addresses.
 *
 * Every registered buffer has a mirror in host memory, of the same offsets, that 'local' knows
 * instead. A message is read into the mirror before it is sent, and written out of it after it has
 * arrived, both by the rank's own queue, and an event says when that is done. Ranks ask for
 * progress by `test`.
 */
#ifndef TESTS_STAGED_H
#define TESTS_STAGED_H

#include <pthread.h>

#include "opipe/streams.h"

extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_local);

struct opipe_instance {
  const opipe_host *host;
  const opipe_transport *inner;
  opipe_instance *inner_self;
};

struct opipe_world {
  opipe_instance *self;
  opipe_world *inner;
};

struct opipe_endpoint {
  opipe_instance *self;
  opipe_endpoint *inner;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  uint32_t rank;
  uint32_t n_copying;   /* copies between memory and mirror that are on their way */
  pthread_mutex_t lock; /* of the list: set-up runs beside the rank */
  opipe_memory *memories;
};

/* A mirror. The rank's own buffers are never looked into. */
struct opipe_buffer {
  char *data;
  uint64_t n_bytes;
};

struct opipe_memory {
  opipe_endpoint *endpoint;
  opipe_memory *inner, *next;
  opipe_buffer *buffer; /* the rank's */
  opipe_buffer mirror;
};

enum { IDLE = 0, IN = 1 /* into the mirror */, AWAY = 2 /* with 'local' */, OUT = 3 };

/* One end's message number `number` - 1, or a group's round. */
typedef struct passage {
  uint64_t number;
  uint32_t state; /* IDLE: finished */
  opipe_region region, mirror;
  opipe_event *event; /* of the copy */
  opipe_event *done;  /* the caller's, NULL: none */
} passage;

struct opipe_stream {
  opipe_endpoint *endpoint;
  opipe_stream *inner;
  uint32_t depth;
  passage *sends, *receives; /* [depth] NULL: the other end's */
  opipe_buffer outgoing;     /* [depth][a message]: one region may go out by several streams */
  opipe_memory *registered;  /* with 'local' */
};

struct opipe_group {
  opipe_endpoint *endpoint;
  opipe_group *inner;
  uint64_t n_elems;
  uint32_t dtype;
  bool given;
  passage round;
};

struct opipe_collective {
  opipe_endpoint *endpoint;
  opipe_collective *inner;
  uint32_t n_regions;
  opipe_region *mirrors; /* [2 * n_regions] of the lists: from, then to */
  opipe_collect what;    /* of the round */
  uint64_t round;        /* rounds begun */
  uint32_t state;
  bool given;
  opipe_event *event; /* of the copies */
};

void *staged_zeroed(const opipe_instance *self, const char *what, uint64_t n_bytes,
                    opipe_error *err);
void staged_free(const opipe_instance *self, void *data, uint64_t n_bytes);

/* passages.c */
opipe_status staged_stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err);
void staged_stream_close(opipe_stream *stream);
opipe_status staged_reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status staged_send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *ready, opipe_event *done, opipe_error *err);
opipe_status staged_recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *done, opipe_error *err);
opipe_status staged_test(opipe_stream *stream, uint64_t sequence, opipe_error *err);
opipe_status staged_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err);
void staged_group_close(opipe_group *group);
opipe_status staged_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err);
opipe_status staged_group_test(opipe_group *group, uint64_t sequence, opipe_error *err);

/* The region's place in its buffer's mirror. Errors: INVALID, the buffer was not registered. */
opipe_status staged_mirror(opipe_endpoint *endpoint, const opipe_region *region,
                           opipe_region *out_mirror, opipe_error *err);

/* collects.c */
opipe_status staged_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                    opipe_collective **out_collective, opipe_error *err);
void staged_collective_close(opipe_collective *collective);
opipe_status staged_collect(opipe_collective *collective, uint64_t sequence,
                            const opipe_collect *collect, opipe_error *err);
opipe_status staged_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err);

#endif /* TESTS_STAGED_H */
