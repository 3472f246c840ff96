/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of handing a tensor from rank to rank, in two ways:
 *   transport  a message goes round a ring of ranks; a hop is from one rank's send to the next
 *              one's test
 *   session    requests go one by one through a pipeline of near-empty stages; a hop is from the
 *              end of one stage's program to the start of the next one's, by the clocks of the
 *              ranks: slots reserved, messages sent and tested, lists interpreted
 *
 * Usage: bench_handoff [--ranks N] [--spin US] [--count N] [--bytes N]; prints one line of medians
 * and percentiles (ns).
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/thread.h"
#include "tests/runtime/toy.h"

typedef struct setting {
  uint32_t n_ranks, spin_us, count;
  uint64_t n_bytes;
} setting;

static int by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void report(const char *what, const setting *s, uint64_t *times, uint32_t n) {
  if (n == 0) {
    printf("%-10s nothing was measured\n", what);
    return;
  }
  qsort(times, n, sizeof *times, by_value);
  printf(
      "%-10s ranks %u  cores %u  spin %u us  hops %u  median %llu ns  p10 %llu  p90 %llu  p99 "
      "%llu\n",
      what, s->n_ranks, opi_cores_allowed(), s->spin_us, n, (unsigned long long)times[n / 2],
      (unsigned long long)times[n / 10], (unsigned long long)times[n / 10 * 9],
      (unsigned long long)times[n / 100 * 99]);
}

static void fail(const char *what, const opipe_error *err) {
  fprintf(stderr, "%s: %s\n", what, err->message);
  exit(1);
}

/* ---- the transport alone ---- */

typedef struct seat {
  const opipe_transport *t;
  opipe_endpoint *endpoint;
  opipe_stream *in, *out;
  opipe_region slot, next; /* own slot; the next rank's */
  uint32_t rank, count;
  uint64_t *hops;
  _Atomic uint64_t *sent_ns; /* clock of the last send anywhere */
} seat;

static void until_ok(const seat *s, opipe_stream *stream, uint64_t q,
                     opipe_status (*ask)(opipe_stream *, uint64_t, opipe_error *)) {
  opipe_error err = OPIPE_ERROR_INIT;
  for (;;) {
    const uint32_t seen = s->t->doorbell(s->endpoint);
    const opipe_status status = ask(stream, q, &err);
    if (status == OPIPE_OK)
      return;
    if (status < 0 || s->t->wait(s->endpoint, seen, UINT64_MAX, &err) < 0)
      fail("transport", &err);
  }
}

static void *sit(void *arg) {
  seat *s = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  if (s->t->recv(s->in, 0, &s->slot, NULL, &err) < 0)
    fail("recv", &err);
  for (uint64_t q = 0; q < s->count; ++q) {
    if (q != 0 || s->rank != 0) {
      const uint64_t want = s->rank == 0 ? q - 1 : q;
      until_ok(s, s->in, want, s->t->test);
      s->hops[q] = toy_now_ns() - atomic_load(s->sent_ns);
      if (s->t->recv(s->in, want + 1, &s->slot, NULL, &err) < 0)
        fail("recv", &err);
    }
    until_ok(s, s->out, q, s->t->reserve);
    atomic_store(s->sent_ns, toy_now_ns());
    if (s->t->send(s->out, q, &s->next, NULL, NULL, &err) != OPIPE_OK)
      fail("send", &err);
  }
  return NULL;
}

static void measure_transport(const setting *want, toy *t) {
  const opipe_transport *table = t->env.transport.table;
  opipe_world *world = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  static seat seats[TOY_MAX_RANKS];
  static _Atomic uint64_t sent_ns;
  opipe_device *devices[TOY_MAX_RANKS];
  pthread_t threads[TOY_MAX_RANKS];
  const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options), .n_ranks = want->n_ranks};
  if (table->world_open(t->transport_self, &params, &world, &err) < 0)
    fail("world", &err);
  for (uint32_t r = 0; r < want->n_ranks; ++r) {
    const opipe_device_params open = {
        .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .index = r};
    if (toy_backend.device_open(t->backends[r].self, &open, &devices[r], &err) < 0)
      fail("device", &err);
    const opipe_endpoint_params end = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
        .rank = r,
        .backend = &toy_backend,
        .device = devices[r],
        .spin_us = want->spin_us};
    seats[r] = (seat){.t = table, .rank = r, .count = want->count, .sent_ns = &sent_ns};
    seats[r].hops = calloc(want->count, sizeof *seats[r].hops);
    if (table->endpoint_open(world, &end, &seats[r].endpoint, &err) < 0)
      fail("endpoint", &err);
    seats[r].slot.n_bytes = want->n_bytes;
    if (toy_backend.buffer_alloc(devices[r], want->n_bytes, OPIPE_BUFFER_BOUNDARY,
                                 &seats[r].slot.buffer, &err) < 0)
      fail("buffer", &err);
  }
  for (uint32_t r = 0; r < want->n_ranks; ++r) {
    const uint32_t to = (r + 1) % want->n_ranks;
    const opipe_stream_params stream = {
        .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
        .src_rank = r,
        .dst_rank = to,
        .src_stage = r,
        .dst_stage = to,
        .depth = 1,
        .n_bytes = want->n_bytes};
    seats[r].next = seats[to].slot;
    if (table->stream_open(seats[r].endpoint, &stream, &seats[r].out, &err) < 0)
      fail("stream", &err);
    if (table->stream_open(seats[to].endpoint, &stream, &seats[to].in, &err) < 0)
      fail("stream", &err);
  }
  for (uint32_t r = 0; r < want->n_ranks; ++r)
    (void)pthread_create(&threads[r], NULL, sit, &seats[r]);
  for (uint32_t r = 0; r < want->n_ranks; ++r)
    (void)pthread_join(threads[r], NULL);
  uint64_t *all = calloc((size_t)want->n_ranks * want->count, sizeof *all);
  uint32_t n = 0;
  for (uint32_t r = 0; r < want->n_ranks; ++r) {
    for (uint32_t q = want->count / 10; q < want->count; ++q)
      all[n++] = seats[r].hops[q];
  }
  report("transport", want, all, n);
  free(all);
  for (uint32_t r = 0; r < want->n_ranks; ++r) {
    table->stream_close(seats[r].in);
    table->stream_close(seats[r].out);
    free(seats[r].hops);
  }
  for (uint32_t r = 0; r < want->n_ranks; ++r) {
    table->endpoint_close(seats[r].endpoint);
    toy_backend.buffer_free(seats[r].slot.buffer);
    toy_backend.device_close(devices[r]);
  }
  table->world_close(world);
}

/* ---- through a session ---- */

/* One request at a time: every hop but the first of a request is from stage to stage. Stages
 * alternate over the ranks and a rank has several, so that a request makes many hops. */
static void measure_session(const setting *want) {
  enum { STAGES = TOY_MAX_STAGES };
  uint32_t ranks[STAGES];
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t s = 0; s < STAGES; ++s)
    ranks[s] = s % want->n_ranks;
  const uint32_t n_requests = want->count / STAGES + 1;
  toy t = {.faults = {.hops_room = n_requests * STAGES}};
  t.faults.hops = calloc(t.faults.hops_room, sizeof *t.faults.hops);
  const toy_plan plan = {.n_nodes = 3 * STAGES,
                         .n_stages = STAGES,
                         .n_ranks = want->n_ranks,
                         .n_microbatches = 1,
                         .depth = 1,
                         .rows = 1,
                         .seq = 1,
                         .rank_of_stage = ranks};
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .spin_us = want->spin_us};
  if (toy_make(&t, &plan, &OPIPE_PLUGIN_STATIC(transport_local), &err) < 0 ||
      toy_open(&t, &params, &err) < 0)
    fail("session", &err);
  for (uint32_t i = 0; i < 50; ++i)
    (void)toy_round(&t, 1, 1, i, 0);
  atomic_store(&t.faults.n_hops, 0);
  for (uint32_t i = 0; i < n_requests; ++i) {
    atomic_store(&t.faults.last_end_ns, 0); /* the hop into a request is not one */
    if (!toy_round(&t, 1, 1, i, 0))
      exit(1);
  }
  report("session", want, t.faults.hops, atomic_load(&t.faults.n_hops));
  toy_end(&t);
  free(t.faults.hops);
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"ranks", required_argument, NULL, 'r'},
                                          {"spin", required_argument, NULL, 's'},
                                          {"count", required_argument, NULL, 'c'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {NULL, 0, NULL, 0}};
  setting s = {.n_ranks = 2, .spin_us = UINT32_MAX, .count = 20000, .n_bytes = 4096};
  for (int c = getopt_long(argc, argv, "", options, NULL); c != -1;
       c = getopt_long(argc, argv, "", options, NULL)) {
    const long value = optarg == NULL ? -1 : strtol(optarg, NULL, 10);
    if (c == '?' || value < 0)
      return 2;
    if (c == 'r')
      s.n_ranks = (uint32_t)value;
    if (c == 's')
      s.spin_us = (uint32_t)value;
    if (c == 'c')
      s.count = (uint32_t)value;
    if (c == 'b')
      s.n_bytes = (uint64_t)value;
  }
  if (s.n_ranks < 2 || s.n_ranks > TOY_MAX_RANKS || s.count < 100)
    return 2;
  if (s.spin_us == UINT32_MAX)
    s.spin_us = s.n_ranks <= opi_cores_allowed() ? 50 : 5; /* as the library chooses */
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  const toy_plan plan = {.n_nodes = 4,
                         .n_stages = 1,
                         .n_ranks = 1,
                         .n_microbatches = 1,
                         .depth = 1,
                         .rows = 1,
                         .seq = 1};
  if (toy_make(&t, &plan, &OPIPE_PLUGIN_STATIC(transport_local), &err) < 0)
    fail("toy", &err);
  measure_transport(&s, &t);
  toy_end(&t);
  measure_session(&s);
  return 0;
}
