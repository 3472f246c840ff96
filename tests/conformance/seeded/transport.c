/* SPDX-License-Identifier: Apache-2.0 */
/* A transport with a defect, or with a slowness that is none: between machines a credit has a way
 * to go, and what a peer has opened is known late. */
#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/collect.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "seeded.h"
#include "transport_left.h"

static opipe_transport real;

/* ---- opening ---- */

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  const opipe_status status = real.info(self, io_info, err);
  if (seeded("info-beyond"))
    memset(io_info + 1, 0, 16);
  if (seeded("info-rule"))
    io_info->rule = 17;
  if (seeded("one-thread"))
    io_info->thread_rule = OPIPE_THREADS_SINGLE;
  return status;
}

static opipe_status world_info(opipe_instance *self, const char *options,
                               opipe_transport_info *io_info, opipe_error *err) {
  const opipe_status status = real.world_info(self, options, io_info, err);
  if (seeded("one-thread"))
    io_info->thread_rule = OPIPE_THREADS_SINGLE;
  return status;
}

/* "one-thread": hot calls of another thread than the first. */
static bool other_thread(opipe_error *err) {
  static pthread_t first;
  static atomic_int known;
  if (atomic_exchange(&known, 1) == 0)
    first = pthread_self();
  const bool other = seeded("one-thread") && pthread_equal(first, pthread_self()) == 0;
  if (other)
    (void)opipe_fail(err, OPIPE_E_STATE, "this thread is not the first one's");
  return other;
}

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  opipe_world_params plain = *params;
  if (seeded("world-without-object"))
    return OPIPE_OK;
  if (seeded("options-ignored"))
    plain.options = NULL;
  if (seeded("world-leaks"))
    lose_memory();
  if (!leave_behind(&plain, err))
    return OPIPE_E_STATE;
  const opipe_status status = real.world_open(self, &plain, out_world, err);
  if (seeded("world-silent"))
    return silence(status, err);
  if (seeded("world-other-status") && err != NULL && status < 0)
    err->status = OPIPE_E_IO;
  if (seeded("world-set-on-failure") && status < 0)
    *out_world = (opipe_world *)&real;
  return status;
}

/* Streams whose other end differs, as a peer tells it: the next call that asks peers refuses. */
static opipe_endpoint *endpoints[3];
static opipe_error unlike;
static char unlike_stream;

static opipe_status endpoint_open(opipe_world *world, const opipe_endpoint_params *params,
                                  opipe_endpoint **out_endpoint, opipe_error *err) {
  if (seeded("endpoint-without-object"))
    return OPIPE_OK;
  if (seeded("endpoint-leaks"))
    lose_memory();
  const opipe_status status = real.endpoint_open(world, params, out_endpoint, err);
  if (status == OPIPE_OK && params->rank < 3)
    endpoints[params->rank] = *out_endpoint;
  return status;
}

static opipe_status endpoint_ready(opipe_endpoint *endpoint, opipe_error *err) {
  if (unlike.status < 0)
    return opipe_fail(err, unlike.status, "%s", unlike.message);
  return real.endpoint_ready == NULL ? OPIPE_OK : real.endpoint_ready(endpoint, err);
}

/* In the process of rank 0 nobody hears of an abort, or of a process that has ended. */
static opipe_status deaf(opipe_status status, const opipe_error *err) {
  const bool dead = err != NULL && strstr(err->message, "has ended") != NULL;
  const bool unheard = seeded(dead ? "death-unheard" : "abort-unheard") && endpoints[0] != NULL;
  return status == OPIPE_E_PEER && unheard ? OPIPE_PENDING : status;
}

/* ---- streams ---- */

enum { STREAMS = 64, LATE = 3 };
static struct {
  opipe_stream *stream;
  opipe_endpoint *endpoint;
  uint32_t n_asked; /* since the sequence has changed */
  uint64_t sequence;
} opened[STREAMS]; /* "credit-late" */

static void note(opipe_stream *stream, opipe_endpoint *endpoint) {
  uint32_t i = 0;
  while (i < STREAMS - 1 && opened[i].stream != NULL && opened[i].stream != stream)
    ++i;
  opened[i].stream = stream;
  opened[i].endpoint = endpoint;
  opened[i].n_asked = 0;
  opened[i].sequence = 0;
}

/* The receive was posted, and the news is on its way: the endpoint rings when it comes. */
static bool is_late(const opipe_stream *stream, uint64_t sequence) {
  uint32_t i = 0;
  while (i < STREAMS - 1 && opened[i].stream != stream)
    ++i;
  if (opened[i].sequence != sequence)
    opened[i].n_asked = 0;
  opened[i].sequence = sequence;
  const bool late = ++opened[i].n_asked <= LATE;
  if (late)
    real.ring(opened[i].endpoint);
  return late;
}

static void stream_close(opipe_stream *stream) {
  for (uint32_t i = 0; i < STREAMS; ++i) {
    if (opened[i].stream == stream)
      opened[i].stream = NULL;
  }
  if (stream == (opipe_stream *)(void *)&unlike_stream)
    unlike.status = OPIPE_OK;
  else
    real.stream_close(stream);
}

/* Two streams of one pair: the sender takes one for the other. */
static void mix_up(opipe_stream_params *p) {
  static uint32_t n_opened;
  if (p->src_rank == 0 && p->dst_rank == 1 && p->src_stage == 0 && p->dst_stage == 1 &&
      p->src_replica == 0 && p->dst_replica == 0 && p->kind == 0 && p->index / 2 == 10 &&
      n_opened++ % 2 == 0)
    p->index ^= 1;
}

static opipe_status stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  opipe_stream_params p = *params;
  if (seeded("stream-without-object"))
    return OPIPE_OK;
  if (seeded("stream-leaks"))
    lose_memory();
  if (seeded("stream-size-unchecked"))
    p.n_bytes = 4096;
  if (seeded("stream-depth-unchecked") && p.depth > 2)
    p.depth = 2;
  if (seeded("depth-less") && p.depth > 1)
    p.depth = 1;
  if (seeded("streams-mixed-up"))
    mix_up(&p);
  if (seeded("streams-crossed") && p.src_rank == 0 && endpoint == endpoints[0] && p.kind == 0 &&
      p.index / 2 == 10)
    p.index ^= 1;
  opipe_status status = real.stream_open(endpoint, &p, out_stream, err);
  if (status == OPIPE_OK)
    note(*out_stream, endpoint);
  if (seeded("unlike-told-late") && status < 0 && endpoint == endpoints[1] && p.dst_rank == 1) {
    unlike = *err;
    *out_stream = (opipe_stream *)(void *)&unlike_stream;
    status = OPIPE_OK;
  }
  return status;
}

static opipe_status memory_register(opipe_endpoint *endpoint, opipe_buffer *buffer,
                                    uint64_t n_bytes, opipe_memory **out_memory, opipe_error *err) {
  if (seeded("memory-without-object"))
    return OPIPE_OK;
  if (seeded("memory-leaks"))
    lose_memory();
  return real.memory_register(endpoint, buffer, n_bytes, out_memory, err);
}

/* ---- messages ---- */

static atomic_uint n_tests;

static opipe_status reserve(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  if (other_thread(err))
    return OPIPE_E_STATE;
  const opipe_status status = real.reserve(stream, sequence, err);
  if (status == OPIPE_OK && seeded("credit-late") && is_late(stream, sequence))
    return OPIPE_PENDING;
  return status == OPIPE_PENDING && seeded("reserve-always") ? OPIPE_OK : status;
}

static opipe_status send(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *ready, opipe_event *done, opipe_error *err) {
  opipe_region r = *region;
  const struct timespec pause = {.tv_nsec = 1000000};
  if (seeded("torn"))
    r.n_bytes /= 2;
  if (seeded("torn-at-the-start") && r.n_bytes > 64) {
    r.n_bytes -= 64;
    r.offset_bytes += 64;
  }
  if (seeded("zero-refused") && r.n_bytes == 0)
    return opipe_fail(err, OPIPE_E_INVALID, "there is nothing to send");
  if (seeded("large-cut") && r.n_bytes == 36)
    r.n_bytes = 32;
  if (seeded("ready-ignored"))
    ready = NULL;
  if (seeded("message-lost") && sequence == 20)
    return OPIPE_OK;
  static _Thread_local opipe_region last;
  if (seeded("message-twice") && sequence == 21)
    r = last; /* a receiver gets 20 again, and never 21 */
  last = *region;
  const unsigned before = atomic_load(&n_tests);
  const opipe_status status =
      real.send(stream, sequence, &r, ready, seeded("sent-ignored") ? NULL : done, err);
  while (seeded("send-blocks") && status == OPIPE_OK && atomic_load(&n_tests) == before)
    (void)nanosleep(&pause, NULL);
  return status;
}

static opipe_status recv(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                         opipe_event *done, opipe_error *err) {
  opipe_region r = *region;
  if (other_thread(err))
    return OPIPE_E_STATE;
  if (seeded("other-sequence") && r.n_bytes != 0)
    r.offset_bytes ^= 1024;
  if (seeded("other-bytes") && sequence == 5)
    r.offset_bytes += 4;
  if (seeded("recv-allocates"))
    host->realloc(host->ctx, host->realloc(host->ctx, NULL, 0, 8, 8), 8, 0, 8);
  const opipe_status status =
      deaf(real.recv(stream, sequence, &r, seeded("received-ignored") ? NULL : done, err), err);
  return status == OPIPE_PENDING && seeded("depth-more") ? OPIPE_OK : status;
}

static opipe_status test(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  static uint32_t n_calls;
  if (other_thread(err))
    return OPIPE_E_STATE;
  const opipe_status status = deaf(real.test(stream, sequence, err), err);
  atomic_fetch_add(&n_tests, 1);
  if (seeded("test-unsteady") && status == OPIPE_OK && ++n_calls % 2 == 0)
    return OPIPE_PENDING;
  return status == OPIPE_PENDING && seeded("test-early") ? OPIPE_OK : status;
}

/* ---- doorbells, failure ---- */

static void ring(opipe_endpoint *endpoint) {
  if (!seeded("ring-of-nothing"))
    real.ring(endpoint);
}

static opipe_status wait_(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                          opipe_error *err) {
  if (other_thread(err))
    return OPIPE_E_STATE;
  if (seeded("wait-loses-rings"))
    seen = real.doorbell(endpoint);
  if (seeded("wait-without-timeout"))
    timeout_ns = UINT64_MAX;
  const opipe_status status = deaf(real.wait(endpoint, seen, timeout_ns, err), err);
  if (status == OPIPE_PENDING) { /* as if it had slept */
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return opipe_fail(err, OPIPE_E_TIMEOUT, "nothing has rung");
  }
  return status;
}

static void notify(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx), void *ctx) {
  if (seeded("notify-never"))
    return;
  if (seeded("notify-twice") && fn != NULL)
    fn(ctx);
  real.notify(endpoint, seen, fn, ctx);
}

static opipe_error last_reason;

static void abort_(opipe_world *world, uint32_t rank, const opipe_error *why) {
  static const opipe_error none = OPIPE_ERROR_INIT;
  last_reason = *why;
  if (!seeded("abort-of-nothing"))
    real.abort(world, rank, seeded("abort-without-reason") ? &none : why);
}

static opipe_status reserve_aborted(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const opipe_status status = real.reserve(stream, sequence, err);
  if (status != OPIPE_E_PEER)
    return status;
  return seeded("abort-not-in-reserve") ? OPIPE_PENDING
                                        : opipe_fail(err, OPIPE_E_PEER, "%s", last_reason.message);
}

/* ---- sums: of this file's own making where the order of adding is at fault ---- */

enum { PARTS = 3, MOST = 256 };

static struct {
  pthread_mutex_t lock;
  opipe_group *groups[PARTS]; /* by rising member */
  double given[PARTS][MOST], sums[MOST];
  uint32_t arrived[PARTS];
  opipe_region regions[PARTS];
  uint64_t n_elems, round; /* the rounds that are complete */
  uint32_t n_groups, n_given, dtype;
  bool taken[PARTS];
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool adds_itself(void) {
  return seeded("sums-by-arrival") || seeded("sums-wide") || seeded("sums-of-one-rank");
}

static opipe_status group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  uint32_t turned[8];
  for (uint32_t i = 0; i < n_ranks && i < 8; ++i)
    turned[i] = ranks[n_ranks - 1 - i];
  if (seeded("sums-by-rank") && n_ranks == PARTS)
    memcpy(turned, (const uint32_t[]){0, 1, 2}, sizeof(uint32_t) * PARTS);
  if (seeded("group-without-object"))
    return OPIPE_OK;
  if (seeded("group-leaks"))
    lose_memory();
  const bool other = seeded("sums-falling") || seeded("sums-by-rank");
  const opipe_status status =
      real.group_open(endpoint, other ? turned : ranks, n_ranks, n_bytes, out_group, err);
  if (adds_itself() && status == OPIPE_OK) {
    if (own.n_groups == 0)
      own.round = own.n_given = 0;
    memset(own.taken, 1, sizeof own.taken);
    own.groups[own.n_groups++ % PARTS] = *out_group;
  }
  return status;
}

static void group_close(opipe_group *group) {
  if (adds_itself() && group != NULL)
    --own.n_groups;
  real.group_close(group);
}

static uint32_t member_of(const opipe_group *group) {
  uint32_t m = 0;
  while (m < PARTS - 1 && own.groups[m] != group)
    ++m;
  return m;
}

static double get(const opipe_region *region, uint64_t i) {
  const void *data = opipe_host_at(region);
  return own.dtype == OPIPE_DOUBLE ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void put(const opipe_region *region, uint64_t i, double value) {
  void *data = opipe_host_at(region);
  if (own.dtype == OPIPE_DOUBLE)
    ((double *)data)[i] = value;
  else
    ((float *)data)[i] = (float)value;
}

/* In the order of `own.arrived`, or in that of the members, in double precision. */
static void add_up(void) {
  for (uint64_t i = 0; i < own.n_elems; ++i) {
    double sum = 0;
    for (uint32_t k = 0; k < PARTS; ++k) {
      sum += own.given[seeded("sums-by-arrival") ? own.arrived[k] : k][i];
      if (own.dtype == OPIPE_FLOAT && !seeded("sums-wide"))
        sum = (double)(float)sum;
    }
    own.sums[i] = sum;
  }
}

static opipe_status reduce_itself(opipe_group *group, uint64_t sequence, const opipe_region *region,
                                  uint64_t n_elems, uint32_t dtype) {
  opipe_status status = OPIPE_PENDING;
  (void)pthread_mutex_lock(&own.lock);
  const uint32_t m = member_of(group);
  if (sequence == own.round && own.n_given < PARTS && own.taken[m]) {
    own.n_elems = n_elems;
    own.dtype = dtype;
    own.regions[m] = *region;
    own.taken[m] = false;
    own.arrived[own.n_given++] = m;
    for (uint64_t i = 0; i < n_elems; ++i)
      own.given[m][i] = get(region, i);
    if (own.n_given == PARTS)
      add_up();
    status = OPIPE_OK;
  }
  (void)pthread_mutex_unlock(&own.lock);
  return status;
}

static opipe_status test_itself(opipe_group *group, uint64_t sequence) {
  (void)pthread_mutex_lock(&own.lock);
  const uint32_t m = member_of(group);
  const bool now = sequence == own.round && own.n_given == PARTS;
  if (now && !own.taken[m]) {
    own.taken[m] = true;
    for (uint64_t i = 0; i < own.n_elems && !(seeded("sums-of-one-rank") && m != 0); ++i)
      put(&own.regions[m], i, own.sums[i]);
  }
  const bool done = sequence < own.round || (now && own.taken[m]);
  if (now && own.taken[0] && own.taken[1] && own.taken[2]) {
    ++own.round;
    own.n_given = 0;
  }
  (void)pthread_mutex_unlock(&own.lock);
  return done ? OPIPE_OK : OPIPE_PENDING;
}

/* "sum-bit": the lowest bit of the last sum of round 3, once. */
static struct {
  opipe_group *group;
  opipe_region region;
} summed;

static void flip_bit(const opipe_group *group, uint64_t sequence) {
  if (sequence != 3 || summed.group != group)
    return;
  ((unsigned char *)opipe_host_at(&summed.region))[0] ^= 1;
  summed.group = NULL;
}

static opipe_status all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err) {
  if (adds_itself())
    return reduce_itself(group, sequence, region, n_elems, dtype);
  if (sequence == 3) {
    summed.region = *region;
    summed.group = group;
  }
  if (seeded("sums-of-fewer"))
    n_elems -= n_elems > 1;
  if (seeded("sums-of-more"))
    n_elems += n_elems < 100;
  if (seeded("sums-of-float64") && dtype == OPIPE_DOUBLE)
    dtype = OPIPE_FLOAT;
  if (seeded("sums-of-strings") && dtype == OPIPE_STRING)
    return OPIPE_OK;
  if (seeded("sums-too-many") && n_elems > MOST)
    n_elems = MOST;
  return real.all_reduce(group, sequence, region, n_elems, dtype,
                         seeded("sums-ready-ignored") ? NULL : ready,
                         seeded("sums-done-ignored") ? NULL : done, err);
}

static opipe_status group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  const struct timespec pause = {.tv_nsec = 20000};
  if (adds_itself()) {
    const opipe_status status = test_itself(group, sequence);
    if (status == OPIPE_PENDING) /* nobody rings */
      (void)nanosleep(&pause, NULL);
    return status;
  }
  const opipe_status status = real.group_test(group, sequence, err);
  if (seeded("sum-bit") && status == OPIPE_OK && endpoints[1] != NULL)
    flip_bit(group, sequence);
  return status == OPIPE_PENDING && seeded("sums-early") ? OPIPE_OK : status;
}

#include "collects_body.h"
#include "ways_body.h"

/* ---- batches ---- */

static opipe_status batch_begin(opipe_endpoint *endpoint, opipe_error *err) {
  if (seeded("batch-of-nothing"))
    return OPIPE_OK;
  const opipe_status status = real.batch_begin(endpoint, err);
  return status == OPIPE_PENDING && seeded("batch-too-early") ? OPIPE_OK : status;
}

static opipe_status batch_end(opipe_endpoint *endpoint, opipe_error *err) {
  const opipe_status status = seeded("batch-of-nothing") ? OPIPE_OK : real.batch_end(endpoint, err);
  return seeded("batch-never-open") && status == OPIPE_E_STATE ? OPIPE_OK : status;
}

/* ---- memory of the transport's ---- */

/* "memory-overlaps": what an endpoint is given second is what it was given first. */
static struct {
  opipe_endpoint *endpoint;
  void *data;
} given[3];

static opipe_status memory_alloc(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                                 opipe_error *err) {
  uint32_t i = 0;
  while (i < 2 && given[i].endpoint != endpoint && given[i].endpoint != NULL)
    ++i;
  if (seeded("memory-overlaps") && given[i].endpoint == endpoint) {
    *out_data = given[i].data;
    return OPIPE_OK;
  }
  const opipe_status status = real.memory_alloc(endpoint, n_bytes, out_data, err);
  if (status == OPIPE_OK) {
    given[i].endpoint = endpoint;
    given[i].data = *out_data;
  }
  return status;
}

static void memory_free(opipe_endpoint *endpoint, void *data) {
  static void *freed[3];
  uint32_t i = 0;
  while (i < 2 && freed[i] != data && freed[i] != NULL)
    ++i;
  if (seeded("memory-overlaps") && freed[i] == data)
    return;
  freed[i] = data;
  real.memory_free(endpoint, data);
}

void seeded_damage(void *table) {
  opipe_transport *t = table;
  memset(&real, 0, sizeof real);
  memcpy(&real, t, t->struct_size < sizeof real ? t->struct_size : sizeof real);
  t->info = info;
  t->world_info = world_info;
  t->world_open = world_open;
  t->endpoint_open = endpoint_open;
  t->endpoint_ready = endpoint_ready;
  t->stream_open = stream_open;
  t->stream_close = stream_close;
  t->memory_register = memory_register;
  t->reserve = seeded("abort-not-in-reserve") || seeded("abort-second") ? reserve_aborted : reserve;
  t->send = send;
  t->recv = recv;
  t->test = test;
  t->ring = ring;
  t->wait = wait_;
  t->notify = notify;
  t->abort = abort_;
  t->group_open = group_open;
  t->group_close = group_close;
  t->all_reduce = all_reduce;
  t->group_test = group_test;
  if (OPIPE_HAS(t, opipe_transport, batch_end)) {
    t->batch_begin = batch_begin;
    t->batch_end = seeded("batch-without-end") ? NULL : batch_end;
  }
  if (OPIPE_HAS(t, opipe_transport, memory_free) && t->memory_alloc != NULL) {
    t->memory_alloc = memory_alloc;
    t->memory_free = memory_free;
  }
  if (OPIPE_HAS(t, opipe_transport, collect_test) && t->collect_test != NULL) {
    t->collective_open = collective_open;
    t->collect = collect;
    t->collect_test = seeded("table-half-of-collectives") ? NULL : collect_test;
    if (seeded("collectives-null")) {
      t->collective_open = NULL, t->collective_close = NULL, t->collect = NULL,
      t->collect_test = NULL;
    }
  }
  if (OPIPE_HAS(t, opipe_transport, stream_way) && t->stream_way != NULL) {
    t->way = way;
    t->stream_way = seeded("table-half-of-ways") ? NULL : stream_way;
  }
  if (seeded("groups-null"))
    t->group_open = NULL, t->group_close = NULL, t->all_reduce = NULL, t->group_test = NULL;
  if (seeded("table-half-a-group"))
    t->group_test = NULL;
}
