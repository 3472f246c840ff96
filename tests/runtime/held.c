/* SPDX-License-Identifier: Apache-2.0 */
/* Queues that note what they are given; see held.h. One lock for all: whoever polls goes on. */
#include "tests/runtime/held.h"

#include <opipe/helpers.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 1024, SCALARS = 64 };
enum { RUN, WRITE, READ, COPY, RECORD };

typedef struct operation {
  uint32_t kind;
  opipe_binding *binding;
  int64_t scalars[SCALARS];
  uint32_t n_scalars;
  opipe_region dst, src;
  const void *from;
  void *to;
  opipe_event *event;
  uint64_t recording; /* of the event, counted */
} operation;

struct opipe_queue {
  opipe_queue *inner;
  operation ring[ROOM];
  uint64_t n_in, n_out, n_runs; /* n_runs: of those in there */
  bool given_up;
  opipe_late late;
};
struct opipe_event {
  opipe_queue *queue; /* recorded on it; NULL: never, or its record is done */
  uint64_t n_records;
  opipe_late late;
};

held_gate gate;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void held_reset(void) {
  atomic_store(&gate.n_let_go, 0);
  atomic_store(&gate.n_done, 0);
  atomic_store(&gate.n_waiting, 0);
  atomic_store(&gate.most_waits, 0);
  atomic_store(&gate.n_polls, 0);
  atomic_store(&gate.n_given_up, 0);
}

/* ---- queues ---- */

static opipe_status queue_open(opipe_device *d, opipe_queue **out, opipe_error *err) {
  opipe_queue *q = calloc(1, sizeof *q);
  if (q == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "held: no memory");
  const opipe_status status = toy_backend.queue_open(d, &q->inner, err);
  if (status < 0) {
    free(q);
    return status;
  }
  *out = q;
  return OPIPE_OK;
}

static opipe_status act(opipe_queue *q, operation *o, opipe_error *err) {
  switch (o->kind) {
    case RUN:
      return toy_backend.run(o->binding, q->inner, o->scalars, o->n_scalars, err);
    case WRITE:
      return toy_backend.write(q->inner, &o->dst, o->from, err);
    case READ:
      return toy_backend.read(q->inner, o->to, &o->src, err);
    case COPY:
      return toy_backend.copy(q->inner, &o->dst, &o->src, err);
    default:
      if (o->event->n_records == o->recording) {
        opipe_late_record(&q->late, &o->event->late);
        o->event->queue = NULL;
      }
      return OPIPE_OK;
  }
}

/* As far as the gate is open; `all`: to the end. Under the lock. */
static void go_on(opipe_queue *q, bool all) {
  while (q->n_out != q->n_in) {
    operation *o = &q->ring[q->n_out % ROOM];
    opipe_error why = OPIPE_ERROR_INIT;
    if (o->kind == RUN && !all && atomic_load(&gate.n_done) >= atomic_load(&gate.n_let_go))
      return;
    const opipe_status status = act(q, o, &why);
    opipe_late_add(&q->late, status, &why);
    ++q->n_out;
    if (o->kind != RUN)
      continue;
    --q->n_runs;
    atomic_fetch_add(&gate.n_done, 1);
    atomic_fetch_sub(&gate.n_waiting, 1);
  }
}

static opipe_status queue_abort(opipe_queue *q, opipe_error *err) {
  (void)err;
  q->given_up = true;
  atomic_fetch_add(&gate.n_given_up, 1);
  return OPIPE_OK;
}

/* Its events know no longer of it. Under the lock. */
static void drop(opipe_queue *q) {
  for (; q->n_out != q->n_in; ++q->n_out) {
    const operation *o = &q->ring[q->n_out % ROOM];
    if (o->kind == RECORD && o->event->queue == q)
      o->event->queue = NULL;
  }
}

static void queue_close(opipe_queue *q) {
  if (q == NULL)
    return;
  (void)pthread_mutex_lock(&lock);
  if (q->given_up)
    drop(q);
  else
    go_on(q, true);
  (void)pthread_mutex_unlock(&lock);
  toy_backend.queue_close(q->inner);
  free(q);
}

static opipe_status push(opipe_queue *q, const operation *o, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&lock);
  if (q->n_in - q->n_out == ROOM) {
    status = opipe_fail(err, OPIPE_E_NOMEM, "held: %d operations wait", ROOM);
  } else {
    q->ring[q->n_in++ % ROOM] = *o;
    if (o->kind == RECORD) {
      o->event->queue = q;
      q->ring[(q->n_in - 1) % ROOM].recording = ++o->event->n_records;
    }
    if (o->kind == RUN) {
      atomic_fetch_add(&gate.n_waiting, 1);
      ++q->n_runs;
      if (q->n_runs > atomic_load(&gate.most_waits))
        atomic_store(&gate.most_waits, q->n_runs);
    }
  }
  (void)pthread_mutex_unlock(&lock);
  return status;
}

static opipe_status run(opipe_binding *b, opipe_queue *q, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  operation o = {.kind = RUN, .binding = b, .n_scalars = n_scalars};
  if (n_scalars > SCALARS)
    return opipe_fail(err, OPIPE_E_LIMIT, "held: %u scalars", n_scalars);
  if (n_scalars != 0)
    memcpy(o.scalars, scalars, n_scalars * sizeof *scalars);
  return push(q, &o, err);
}
static opipe_status write_region(opipe_queue *q, const opipe_region *dst, const void *src,
                                 opipe_error *err) {
  const operation o = {.kind = WRITE, .dst = *dst, .from = src};
  return push(q, &o, err);
}
static opipe_status read_region(opipe_queue *q, void *dst, const opipe_region *src,
                                opipe_error *err) {
  const operation o = {.kind = READ, .src = *src, .to = dst};
  return push(q, &o, err);
}
static opipe_status copy_region(opipe_queue *q, const opipe_region *dst, const opipe_region *src,
                                opipe_error *err) {
  const operation o = {.kind = COPY, .dst = *dst, .src = *src};
  return push(q, &o, err);
}

/* ---- events ---- */

static opipe_status event_create(opipe_device *d, opipe_event **out, opipe_error *err) {
  (void)d;
  *out = calloc(1, sizeof **out);
  return *out == NULL ? opipe_fail(err, OPIPE_E_NOMEM, "held: no memory") : OPIPE_OK;
}
static void event_destroy(opipe_event *e) {
  (void)pthread_mutex_lock(&lock);
  if (e != NULL && e->queue != NULL)
    go_on(e->queue, true);
  (void)pthread_mutex_unlock(&lock);
  free(e);
}
static opipe_status event_record(opipe_queue *q, opipe_event *e, opipe_error *err) {
  const operation o = {.kind = RECORD, .event = e};
  return push(q, &o, err);
}
static opipe_status event_wait(opipe_queue *q, opipe_event *e, opipe_error *err) {
  (void)q, (void)e;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "held: queues do not wait for each other");
}
static opipe_status event_poll(opipe_event *e, opipe_error *err) {
  opipe_status status = OPIPE_PENDING;
  (void)atomic_fetch_add(&gate.n_polls, 1);
  (void)pthread_mutex_lock(&lock);
  if (e->queue != NULL)
    go_on(e->queue, false);
  if (e->queue == NULL)
    status = opipe_late_answer(&e->late, err);
  (void)pthread_mutex_unlock(&lock);
  return status;
}
static opipe_status event_sync(opipe_event *e, uint64_t timeout_ns, opipe_error *err) {
  static const struct timespec moment = {.tv_nsec = 1000000};
  const uint64_t patience = timeout_ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : timeout_ns;
  const uint64_t until = toy_now_ns() + patience;
  opipe_status status = event_poll(e, err);
  while (status == OPIPE_PENDING && toy_now_ns() < until) {
    (void)nanosleep(&moment, NULL);
    status = event_poll(e, err);
  }
  return status == OPIPE_PENDING ? opipe_fail(err, OPIPE_E_TIMEOUT, "held: not let go") : status;
}

const opipe_backend *held_table(void) {
  static opipe_backend table;
  table = toy_backend;
  table.struct_size = (uint32_t)OPIPE_END(opipe_backend, queue_abort);
  table.queue_open = queue_open;
  table.queue_close = queue_close;
  table.queue_abort = queue_abort;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_wait = event_wait;
  table.event_poll = event_poll;
  table.event_sync = event_sync;
  table.run = run;
  table.write = write_region;
  table.read = read_region;
  table.copy = copy_region;
  return &table;
}
