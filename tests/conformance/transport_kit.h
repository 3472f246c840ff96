/* SPDX-License-Identifier: Apache-2.0 */
/* The ground of all checks of transports: a ring of ranks on devices in host memory, messages whose
 * every element says whose it is, events that the program holds.
 */
#ifndef CONFORMANCE_TRANSPORT_KIT_H
#define CONFORMANCE_TRANSPORT_KIT_H

#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "conformance.h"

enum { WATCHED_READY = 0, WATCHED_SENT, WATCHED_RECEIVED, WATCHED };
enum { RANKS = 3, MESSAGES = 200, DEPTH = 2, ELEMS = 256 };
#define DEADLINE_NS conf_patience_ns()
#define BLANK (-7.0f)
#define SLOT_BYTES (ELEMS * sizeof(float))

typedef struct subject {
  const opipe_transport *t;
  opipe_instance *self;
  opipe_transport_info info;
  uint32_t rule; /* with the options */
  const char *options;
  bool newer; /* it may have flags that these headers do not know */
  /* The backend whose devices ranks are on; NULL: they are in host memory. */
  const opipe_backend *on;
  opipe_instance *on_self;
  const char *on_id;
} subject;

/* One rank: its device, its end of the world, its two streams around the ring. */
typedef struct rank {
  const subject *s;
  uint32_t index;
  opipe_device *device;
  opipe_queue *queue;
  opipe_endpoint *endpoint;
  opipe_stream *in, *out;
  opipe_buffer *slots; /* DEPTH receive slots, then as many to send from */
  /* On a backend's device `slots` are the program's image of `far`. */
  uint32_t number; /* of its device */
  opipe_device *far_device;
  opipe_queue *far_queue;
  opipe_event *far_event;
  opipe_buffer *far;
  opipe_memory *memory;
  struct rank *next; /* who receives what this rank sends */
  opipe_error err;
  bool copies; /* the message lies in the sender's own region, also where it need not */
  uint32_t n_good;
  opipe_event *events[WATCHED]; /* of the checks of events */
  opipe_group *group;
  const struct sum_case *sums; /* the values that its group adds */
#if OPIPE_ABI_MINOR >= 5
  opipe_collective *collective;
#endif
  uint32_t n_unsteady;        /* answers OK that did not stay so */
  uint32_t n_pending, n_open; /* of batches */
  uint32_t seen;              /* doorbell before the threads started */
  opipe_status status;
} rank;

/* The backend that endpoints are given: memory, queues and events only. */
static const opipe_backend memory_only = {(uint32_t)OPIPE_END(opipe_backend, run),
                                          0,
                                          NULL,
                                          NULL,
                                          NULL,
                                          OPIPE_HOST_MEMORY_SLOTS,
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          OPIPE_HOST_PARAMS_SLOTS,
                                          NULL,
                                          NULL,
                                          NULL};

/* ---- events that complete when the program says so ---- */

#define EVENT_HELD (UINT64_C(1) << 63)
static atomic_uint events_held;  /* that are not complete */
static atomic_uint events_early; /* events that were recorded while one was held */

static void hold(opipe_event *event) {
  __atomic_store_n(&event->event.n_recorded, EVENT_HELD, __ATOMIC_RELEASE);
  atomic_fetch_add(&events_held, 1);
}

static void let_go(opipe_event *event) {
  atomic_fetch_sub(&events_held, 1);
  __atomic_store_n(&event->event.n_recorded, 1, __ATOMIC_RELEASE);
}

static opipe_status held_poll(opipe_event *event, opipe_error *err) {
  (void)err;
  const uint64_t n = __atomic_load_n(&event->event.n_recorded, __ATOMIC_ACQUIRE);
  return (n & EVENT_HELD) != 0 ? OPIPE_PENDING : OPIPE_OK;
}

static opipe_status held_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  const struct timespec pause = {.tv_nsec = 20000};
  const uint64_t start = conf_host.now_ns(NULL);
  while (held_poll(event, err) == OPIPE_PENDING) {
    if (conf_host.now_ns(NULL) - start >= timeout_ns)
      return opipe_fail(err, OPIPE_E_TIMEOUT, "an event is not complete");
    (void)nanosleep(&pause, NULL);
  }
  return OPIPE_OK;
}

/* The queue of a device whose work is done when a call returns cannot but wait here. */
static opipe_status held_wait(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  (void)queue;
  return held_sync(event, DEADLINE_NS, err);
}

static opipe_status held_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  if (atomic_load(&events_held) != 0)
    atomic_fetch_add(&events_early, 1);
  return opipe_host_event_record(queue, event, err);
}

static opipe_status query_host(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                               opipe_error *err) {
  (void)self, (void)index, (void)err;
  io_info->flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  return OPIPE_OK;
}

static const opipe_backend *kit_backend(void) {
  static opipe_backend table;
  table = memory_only;
  table.device_query = query_host;
  table.event_poll = held_poll;
  table.event_sync = held_sync;
  table.event_wait = held_wait;
  table.event_record = held_record;
  return &table;
}

/* Messages have several lengths, 0 among them. */
static uint64_t bytes_of(uint64_t sequence) {
  static const uint64_t elems[] = {ELEMS, 1, ELEMS - 1, 0, 17};
  return elems[sequence % (sizeof elems / sizeof elems[0])] * sizeof(float);
}

static opipe_region slot_of(const rank *r, uint64_t sequence) {
  const opipe_region region = {r->slots, (sequence % DEPTH) * SLOT_BYTES, bytes_of(sequence)};
  return region;
}

/* Where rank r writes message `sequence`: the receiver's slot when the transport is direct, else
 * its own. */
static opipe_region source_of(const rank *r, uint64_t sequence) {
  if ((r->s->info.flags & OPIPE_TRANSPORT_DIRECT) != 0 && !r->copies)
    return slot_of(r->next, sequence);
  const opipe_region region = {r->slots, (DEPTH + sequence % DEPTH) * SLOT_BYTES,
                               bytes_of(sequence)};
  return region;
}

static float element_of(uint32_t from, uint64_t sequence, uint64_t i) {
  return (float)(from * 1000000 + sequence * 100) + (float)i * 0.125f;
}

static void fill(const opipe_region *region, uint32_t from, uint64_t sequence) {
  float *data = (float *)opipe_host_at(region);
  for (uint64_t i = 0; i < region->n_bytes / sizeof(float); ++i)
    data[i] = element_of(from, sequence, i);
}

/* A slot before its receive is posted. */
static void blank(const opipe_region *region) {
  float *data = (float *)opipe_host_at(region);
  for (uint64_t i = 0; i < ELEMS; ++i)
    data[i] = BLANK;
}

/* The message, and nothing behind it up to the slot's `n_elems`. */
static bool holds(const opipe_region *region, uint32_t from, uint64_t sequence, uint64_t n_elems) {
  const float *data = (const float *)opipe_host_at(region);
  for (uint64_t i = 0; i < n_elems; ++i) {
    const bool within = i < region->n_bytes / sizeof(float);
    if (data[i] != (within ? element_of(from, sequence, i) : BLANK))
      return false;
  }
  return true;
}

/* Repeats a call that may be pending, waiting for the doorbell between. */
#define UNTIL(r, call)                                                             \
  do {                                                                             \
    for (;;) {                                                                     \
      const uint32_t seen_ = (r)->s->t->doorbell((r)->endpoint);                   \
      (r)->status = (call);                                                        \
      if ((r)->status != OPIPE_PENDING)                                            \
        break;                                                                     \
      (r)->status = (r)->s->t->wait((r)->endpoint, seen_, DEADLINE_NS, &(r)->err); \
      if ((r)->status < 0)                                                         \
        break;                                                                     \
    }                                                                              \
    if ((r)->status < 0)                                                           \
      return (r)->status;                                                          \
  } while (0)

static opipe_stream_params stream_params(uint32_t src, uint32_t dst, uint32_t index) {
  opipe_stream_params p;
  memset(&p, 0, sizeof(p));
  p.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes);
  p.kind = OPIPE_STREAM_FORWARD;
  p.src_rank = p.src_stage = src;
  p.dst_rank = p.dst_stage = dst;
  p.index = index;
  p.depth = DEPTH;
  p.n_bytes = ELEMS * sizeof(float);
  return p;
}

/* ---- ranks on a backend's device ---- */

/* Memory as the transport is to see it. */
static opipe_buffer *there(const rank *r) {
  return r->far == NULL ? r->slots : r->far;
}

static opipe_region placed(const rank *r, opipe_region region) {
  region.buffer = there(r);
  return region;
}

/* Brings a region of the program's image to the device, or back. */
static opipe_status move_far(rank *r, const opipe_region *region, bool to_device) {
  const opipe_backend *b = r->s->on;
  const opipe_region far = placed(r, *region);
  if (r->far == NULL || region->n_bytes == 0)
    return OPIPE_OK;
  void *image = opipe_host_at(region);
  opipe_status status = to_device ? b->write(r->far_queue, &far, image, &r->err)
                                  : b->read(r->far_queue, image, &far, &r->err);
  if (status >= 0)
    status = b->event_record(r->far_queue, r->far_event, &r->err);
  return status < 0 ? status : b->event_sync(r->far_event, DEADLINE_NS, &r->err);
}

static bool open_far(rank *r) {
  const subject *s = r->s;
  const opipe_backend *b = s->on;
  uint32_t n = 0;
  if (!conf_ok(b->device_count(s->on_self, &n, &r->err), &r->err, "device_count") ||
      !conf_check(n != 0, "the backend has no device"))
    return false;
  r->number = r->index % n;
  const opipe_device_params device = {
      (uint32_t)OPIPE_END(opipe_device_params, options), r->number, 0, 1, 0, NULL};
  return conf_ok(b->device_open(s->on_self, &device, &r->far_device, &r->err), &r->err,
                 "device_open") &&
         conf_ok(b->queue_open(r->far_device, &r->far_queue, &r->err), &r->err, "queue_open") &&
         conf_ok(b->event_create(r->far_device, &r->far_event, &r->err), &r->err, "event_create") &&
         conf_ok(b->buffer_alloc(r->far_device, 2 * DEPTH * SLOT_BYTES, OPIPE_BUFFER_BOUNDARY,
                                 &r->far, &r->err),
                 &r->err, "buffer_alloc");
}

static inline void close_far(rank *r) {
  const opipe_backend *b = r->s == NULL ? NULL : r->s->on;
  if (b == NULL)
    return;
  b->buffer_free(r->far);
  b->event_destroy(r->far_event);
  b->queue_close(r->far_queue);
  b->device_close(r->far_device);
}

/* ---- a world of RANKS ranks in a ring ---- */

typedef struct ring {
  opipe_world *world;
  rank ranks[RANKS];
} ring;

static bool open_rank(ring *g, const subject *s, uint32_t i) {
  rank *r = &g->ranks[i];
  const opipe_device_params device = {
      (uint32_t)OPIPE_END(opipe_device_params, options), 0, 0, 1, 0, NULL};
  r->s = s;
  r->index = i;
  r->next = &g->ranks[(i + 1) % RANKS];
  r->err.struct_size = sizeof(r->err);
  if (!conf_ok(opipe_host_device_open(&conf_host, &device, &r->device, &r->err), &r->err, "device"))
    return false;
  if (!conf_ok(opipe_host_queue_open(r->device, &r->queue, &r->err), &r->err, "queue"))
    return false;
  if (!conf_ok(opipe_host_buffer_alloc(r->device, 2 * DEPTH * ELEMS * sizeof(float),
                                       OPIPE_BUFFER_BOUNDARY, &r->slots, &r->err),
               &r->err, "buffer"))
    return false;
  if (s->on != NULL && !open_far(r))
    return false;
  const bool far = s->on != NULL;
  opipe_endpoint_params endpoint = {(uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
                                    i,
                                    far ? s->on : kit_backend(),
                                    far ? r->far_device : r->device,
                                    far ? r->far_queue : r->queue,
                                    s->on_self,
                                    far ? s->on_id : "host-memory",
                                    20,
                                    0};
#if OPIPE_ABI_MINOR >= 5
  endpoint.struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved2);
  endpoint.device_index = r->number;
#endif
  const opipe_status opened = s->t->endpoint_open(g->world, &endpoint, &r->endpoint, &r->err);
  if (!conf_made(opened, &r->endpoint, &r->err, "endpoint_open"))
    return false;
  const opipe_status registered =
      s->t->memory_register(r->endpoint, there(r), 2 * DEPTH * SLOT_BYTES, &r->memory, &r->err);
  return conf_made(registered, &r->memory, &r->err, "memory_register");
}

/* All local ends by one thread: each is asked in turn until all have answered, or one refuses. The
 * transport has endpoint_ready. */
static opipe_status ready_or_refused(ring *g, opipe_error *err) {
  const opipe_transport *t = g->ranks[0].s->t;
  opipe_status status = OPIPE_PENDING;
  for (uint64_t spent = 0; status == OPIPE_PENDING && spent < DEADLINE_NS; spent += 50000) {
    const struct timespec again = {.tv_nsec = 50000};
    status = OPIPE_OK;
    for (uint32_t i = 0; i < RANKS && status >= 0; ++i) {
      const opipe_status one = t->endpoint_ready(g->ranks[i].endpoint, err);
      if (one != OPIPE_OK)
        status = one;
    }
    if (status == OPIPE_PENDING)
      (void)nanosleep(&again, NULL);
  }
  return status;
}

static bool make_all_ready(ring *g) {
  const opipe_transport *t = g->ranks[0].s->t;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!OPIPE_HAS(t, opipe_transport, endpoint_ready) || t->endpoint_ready == NULL)
    return true;
  const opipe_status status = ready_or_refused(g, &err);
  if (status == OPIPE_PENDING)
    return conf_check(false, "endpoint_ready of ranks in one thread never answers OK");
  return conf_ok(status, &err, "endpoint_ready") &&
         conf_ok(t->endpoint_ready(g->ranks[0].endpoint, &err), &err, "endpoint_ready, again");
}

/* Both ends of a stream between two ranks. */
static bool open_ends(ring *g, const opipe_stream_params *p, opipe_stream **out,
                      opipe_stream **in) {
  rank *from = &g->ranks[p->src_rank], *to = &g->ranks[p->dst_rank];
  const opipe_transport *t = from->s->t;
  const opipe_status sends = t->stream_open(from->endpoint, p, out, &from->err);
  if (!conf_made(sends, out, &from->err, "stream_open, sender"))
    return false;
  const opipe_status receives = t->stream_open(to->endpoint, p, in, &to->err);
  return conf_made(receives, in, &to->err, "stream_open, receiver");
}

static bool open_streams(ring *g, uint32_t index) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &g->ranks[i], *next = r->next;
    const opipe_stream_params p = stream_params(i, next->index, index);
    if (!open_ends(g, &p, &r->out, &next->in))
      return false;
  }
  return make_all_ready(g);
}

static bool open_ring(ring *g, const subject *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_world_params world = {(uint32_t)OPIPE_END(opipe_world_params, options), RANKS,
                                    s->options};
  memset(g, 0, sizeof(*g));
  if (!conf_made(s->t->world_open(s->self, &world, &g->world, &err), &g->world, &err, "world_open"))
    return false;
  for (uint32_t i = 0; i < RANKS; ++i) {
    if (!open_rank(g, s, i))
      return false;
  }
  return open_streams(g, 0);
}

static void close_ring(ring *g, const subject *s) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    s->t->stream_close(g->ranks[i].in);
    s->t->stream_close(g->ranks[i].out);
  }
  for (uint32_t i = 0; i < RANKS; ++i) {
    s->t->memory_drop(g->ranks[i].memory);
    s->t->endpoint_close(g->ranks[i].endpoint);
  }
  s->t->world_close(g->world);
  for (uint32_t i = 0; i < RANKS; ++i) {
    opipe_host_buffer_free(g->ranks[i].slots);
    for (uint32_t k = 0; k < WATCHED; ++k)
      opipe_host_event_destroy(g->ranks[i].events[k]);
    opipe_host_queue_close(g->ranks[i].queue);
    opipe_host_device_close(g->ranks[i].device);
  }
}

static void on_every_rank(ring *g, void *(*body)(void *)) {
  pthread_t threads[RANKS];
  for (uint32_t i = 0; i < RANKS; ++i)
    conf_check(pthread_create(&threads[i], NULL, body, &g->ranks[i]) == 0, "pthread_create");
  for (uint32_t i = 0; i < RANKS; ++i)
    (void)pthread_join(threads[i], NULL);
}

/* Threads of their own for ranks, which a world may not bear. */
static bool may_have_threads(const subject *s) {
  if (s->info.thread_rule == OPIPE_THREADS_SINGLE)
    conf_skip("all of a world from one thread: nothing is called by several");
  return s->info.thread_rule != OPIPE_THREADS_SINGLE;
}

/* ---- a message by one thread, which plays both sides ---- */

enum { PASS_POST = 0, PASS_RESERVE, PASS_SEND, PASS_TEST, PASS_DONE };

typedef struct passing {
  opipe_stream *out, *in;
  uint64_t sequence;
  opipe_region from, to;
  opipe_event *ready, *sent, *received;
  uint32_t tag;   /* who is said to have sent it */
  uint32_t stage; /* PASS_* that comes next */
} passing;

static opipe_status pass_step(const subject *s, passing *p, opipe_error *err) {
  if (p->stage == PASS_POST)
    return s->t->recv(p->in, p->sequence, &p->to, p->received, err);
  if (p->stage == PASS_RESERVE)
    return s->t->reserve(p->out, p->sequence, err);
  if (p->stage == PASS_SEND) {
    if (p->ready == NULL)
      fill(&p->from, p->tag, p->sequence);
    return s->t->send(p->out, p->sequence, &p->from, p->ready, p->sent, err);
  }
  const opipe_status there = s->t->test(p->in, p->sequence, err);
  const opipe_status gone = there < 0 ? there : s->t->test(p->out, p->sequence, err);
  return there == OPIPE_OK ? gone : there;
}

/* That a receive was posted may have a way to go before its sender knows. */
static bool is_reserved(const subject *s, const rank *sender, uint64_t sequence, const char *what) {
  const struct timespec pause = {.tv_nsec = 20000};
  const uint64_t start = conf_host.now_ns(NULL);
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = s->t->reserve(sender->out, sequence, &err);
  while (status == OPIPE_PENDING && conf_host.now_ns(NULL) - start < DEADLINE_NS) {
    (void)nanosleep(&pause, NULL);
    status = s->t->reserve(sender->out, sequence, &err);
  }
  return conf_ok(status, &err, what);
}

/* Goes on until `stage` comes next. */
static bool pass_until(const subject *s, passing *p, uint32_t stage) {
  static const char *const names[] = {"recv", "reserve", "send", "test"};
  const struct timespec pause = {.tv_nsec = 20000};
  const uint64_t start = conf_host.now_ns(NULL);
  opipe_error err = OPIPE_ERROR_INIT;
  while (p->stage < stage) {
    const opipe_status status = pass_step(s, p, &err);
    if (status == OPIPE_OK) {
      ++p->stage;
    } else if (status < 0) {
      return conf_ok(status, &err, names[p->stage]);
    } else if (conf_host.now_ns(NULL) - start > DEADLINE_NS) {
      return conf_check(false, "%s of message %llu is pending for ever", names[p->stage],
                        (unsigned long long)p->sequence);
    } else {
      (void)nanosleep(&pause, NULL);
    }
  }
  return true;
}

/* Message `sequence` of a stream from rank a to rank b, in the slots of the ring. */
static passing passing_of(const rank *a, const rank *b, uint64_t sequence) {
  const passing p = {.out = a->out,
                     .in = b->in,
                     .sequence = sequence,
                     .from = source_of(a, sequence),
                     .to = slot_of(b, sequence),
                     .tag = a->index};
  return p;
}

#endif /* CONFORMANCE_TRANSPORT_KIT_H */
