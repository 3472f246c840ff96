/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a stream; private to runtime/compiled.
 *
 *   opi_shapes ── opi_streams ── opi_stream (one per state; pooled: its address lasts)
 *                                     ├─ pairs    place, capacity and present shape
 *                                     ├─ blocks   one per rank: two buffers of each pair it holds
 *                                     └─ tables   one per compiled shape and turn: bindings of the
 *                                                 programs that read or make kept tensors
 *
 * Submit decides a request's turn (which buffer it reads), its shapes and its bindings. So requests
 * of one stream can be under way one behind the other: a rank that comes to the next one has left
 * the one before, and its input is made. Under submit_lock, except atomic fields.
 */
#ifndef OPI_STREAM_H
#define OPI_STREAM_H

#include "runtime/compiled/build.h"

/* A kept tensor, whole. */
typedef struct opi_kept {
  uint32_t rank;     /* dimensions */
  uint64_t capacity; /* elements of a buffer */
  uint64_t n_elems, n_bytes;
  int64_t shape[OPIPE_MAX_RANK];
} opi_kept;

/* The two buffers of it, in tensor groups of a member's part (perhaps the whole). */
typedef struct opi_kept_place {
  uint32_t holder;       /* rank */
  uint64_t offset_bytes; /* of the first of the two in the holder's block */
  uint64_t buffer_bytes; /* from the first to the second */
} opi_kept_place;

/* Bindings with a stream's buffers in place of a shape's cells. */
typedef struct opi_stream_table {
  struct opi_stream_table *next;
  const opi_compiled *shape;
  uint32_t turn;
  uint32_t n_steps;
  opipe_binding **bound; /* [n_steps] of the shape's lists; NULL: the shape's own */
} opi_stream_table;

struct opi_stream {
  opi_setup *setup;
  opi_handle_entry *slot; /* kept from state to state */
  opi_stream *next;
  uint32_t home; /* replica */
  uint32_t turn; /* the buffer that the next request reads, 0 or 1 */
  bool empty;
  bool leased;                   /* the host has its handle */
  bool filled;                   /* it has memory */
  uint64_t sequence;             /* of its next request */
  _Atomic uint64_t broken_at;    /* sequence of the first failed request; UINT64_MAX: none */
  _Atomic uint32_t n_breaking;   /* threads that may be about to set broken_at */
  _Atomic uint32_t n_unfinished; /* requests that ranks may still touch */
  opi_kept *pairs;               /* [plan->n_states] */
  opi_kept_place *places;        /* [plan->n_states * width] pair by pair, by member */
  opi_block *blocks;             /* [plan->n_ranks] */
  opi_stream_table *tables;
};

/* A queue of its own on a rank's device, for calls from the host's threads. */
typedef struct opi_side {
  opipe_queue *queue; /* NULL: plain host memory */
  opipe_event *event;
} opi_side;

typedef struct opi_streams {
  opi_stream *list;         /* all ever made */
  uint32_t *pair_of_input;  /* [setup->n_inputs] OPIPE_NONE: none */
  uint32_t *pair_of_output; /* [setup->n_outputs] */
  opi_side *sides;          /* [plan->n_ranks] */
  uint64_t n_opened;
  uint32_t n_homes;
} opi_streams;

static inline const opi_kept_place *opi_kept_at(const opi_stream *stream, uint32_t pair,
                                                uint32_t member) {
  return &stream->places[pair * opi_plan_width(&stream->setup->plan->decided) + member];
}
static inline opipe_region opi_kept_region(const opi_stream *stream, uint32_t pair, uint32_t member,
                                           uint32_t turn, uint64_t n_bytes) {
  const opi_kept_place *kept = opi_kept_at(stream, pair, member);
  return (opipe_region){.buffer = stream->blocks[kept->holder].buffer,
                        .offset_bytes = kept->offset_bytes + turn * kept->buffer_bytes,
                        .n_bytes = n_bytes};
}
/* NULL: the device has no host memory. */
static inline char *opi_kept_host(const opi_stream *stream, uint32_t pair, uint32_t member,
                                  uint32_t turn) {
  const opi_kept_place *kept = opi_kept_at(stream, pair, member);
  char *host = stream->blocks[kept->holder].host;
  return host == NULL ? NULL : host + kept->offset_bytes + turn * kept->buffer_bytes;
}

/* streams.c: frees the memory of closed streams that no request needs. After a failure ranks may
 * still use it, so the session's end frees it. Under submit_lock. */
void opi_streams_reclaim(opi_setup *setup);
/* stream_access.c: the sides' queues. */
opipe_status opi_sides_open(opi_setup *setup, opipe_error *err);
void opi_sides_close(opi_setup *setup);
/* stream_bound.c: frees all bindings of a stream. */
void opi_stream_unbind(opi_stream *stream);

/* STATE: the stream has unfinished requests, or (`whole`) one of its requests has failed. */
opipe_status opi_stream_rest(const opi_stream *stream, const char *call, bool whole,
                             opipe_error *err);
void opi_stream_clear(opi_stream *stream); /* back to its state after open */

#endif /* OPI_STREAM_H */
