/* SPDX-License-Identifier: Apache-2.0 */
/* transport-strict by its table: messages through pipes, events, sums, worlds that meet. Its
 * refusals are in test_refusals.c. ctest: timeout=120
 */
#include <pthread.h>

#include "tests/plugins/transport-strict/kit.h"

static void test_bytes_go_through_a_pipe(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_status status = OPIPE_OK;
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 2, &src, &dst);
  ready(&b);
  const uint64_t before = atomic_load(&counted()->messages);
  for (uint64_t q = 0; q < 20; ++q) {
    const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, (uint32_t)q % 2);
    memset(host_of(&b, 0, 0), (int)q + 1, BYTES);
    status = carry(&b, src, &from, dst, &to, q);
    OPI_ASSERT_OK(status, &b.err);
    OPI_ASSERT_INT(host_of(&b, 1, (uint32_t)q % 2)[BYTES - 1], q + 1);
    OPI_ASSERT_INT(b.table->test(src, q, &b.err), OPIPE_OK); /* stays OK */
  }
  OPI_ASSERT_INT(atomic_load(&counted()->messages) - before, 20);
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

static void test_any_order_within_the_window(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_status status = OPIPE_OK;
  setup(&b, "rule=tag", false);
  open_pair(&b, 2, 0, 3, &src, &dst);
  ready(&b);
  for (uint32_t q = 3; q > 0; --q) {
    const opipe_region to = slot(&b, 0, q - 1);
    OPI_ASSERT_OK(b.table->recv(dst, q - 1, &to, NULL, &b.err), &b.err);
  }
  for (uint32_t i = 0; i < 3; ++i) {
    const uint32_t q = (i + 1) % 3;
    const opipe_region from = slot(&b, 2, q);
    memset(host_of(&b, 2, q), (int)q + 40, BYTES);
    OPI_ASSERT_OK(b.table->reserve(src, q, &b.err), &b.err);
    OPI_ASSERT_OK(b.table->send(src, q, &from, NULL, NULL, &b.err), &b.err);
  }
  for (uint32_t q = 0; q < 3; ++q) {
    AWAIT(status, b.table->test(dst, q, &b.err));
    OPI_ASSERT_OK(status, &b.err);
    OPI_ASSERT_INT(host_of(&b, 0, q)[0], q + 40);
    AWAIT(status, b.table->test(src, q, &b.err));
    OPI_ASSERT_OK(status, &b.err);
  }
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

/* More than a pipe holds, both ways at once, and to a rank itself. */
static void test_large_messages_both_ways(void) {
  enum { LARGE = 1 << 20, PAIRS = 3 };
  static const uint32_t pairs[PAIRS][2] = {{0, 1}, {1, 0}, {2, 2}};
  bench b;
  opipe_stream *src[PAIRS] = {NULL}, *dst[PAIRS] = {NULL};
  opipe_buffer *from[PAIRS] = {NULL}, *to[PAIRS] = {NULL};
  opipe_memory *memories[2 * PAIRS] = {NULL};
  opipe_status status = OPIPE_OK;
  setup(&b, NULL, false);
  for (uint32_t i = 0; i < PAIRS; ++i) {
    void *data = NULL;
    opipe_stream_params p = stream_params(pairs[i][0], pairs[i][1], 1);
    p.n_bytes = LARGE;
    OPI_ASSERT_OK(toy_backend.buffer_alloc(b.device, LARGE, 0, &from[i], &b.err), &b.err);
    OPI_ASSERT_OK(toy_backend.buffer_alloc(b.device, LARGE, 0, &to[i], &b.err), &b.err);
    opipe_endpoint *a = b.ends[p.src_rank], *z = b.ends[p.dst_rank];
    OPI_ASSERT_OK(b.table->memory_register(a, from[i], LARGE, &memories[2 * i], &b.err), &b.err);
    OPI_ASSERT_OK(b.table->memory_register(z, to[i], LARGE, &memories[2 * i + 1], &b.err), &b.err);
    OPI_ASSERT_OK_FATAL(b.table->stream_open(a, &p, &src[i], &b.err), &b.err);
    if (a != z)
      OPI_ASSERT_OK_FATAL(b.table->stream_open(z, &p, &dst[i], &b.err), &b.err);
    OPI_ASSERT_OK(toy_backend.buffer_host(from[i], &data, &b.err), &b.err);
    memset(data, (int)i + 1, LARGE);
  }
  ready(&b);
  for (uint32_t i = 0; i < PAIRS; ++i) {
    const opipe_region out = {.buffer = from[i], .n_bytes = LARGE};
    const opipe_region in = {.buffer = to[i], .n_bytes = LARGE};
    OPI_ASSERT_OK(b.table->recv(dst[i] == NULL ? src[i] : dst[i], 0, &in, NULL, &b.err), &b.err);
    OPI_ASSERT_OK(b.table->reserve(src[i], 0, &b.err), &b.err);
    OPI_ASSERT_OK(b.table->send(src[i], 0, &out, NULL, NULL, &b.err), &b.err);
  }
  for (uint32_t i = 0; i < PAIRS; ++i) {
    void *data = NULL;
    AWAIT(status, b.table->test(dst[i] == NULL ? src[i] : dst[i], 0, &b.err));
    OPI_ASSERT_OK(status, &b.err);
    AWAIT(status, b.table->test(src[i], 0, &b.err));
    OPI_ASSERT_OK(status, &b.err);
    OPI_ASSERT_OK(toy_backend.buffer_host(to[i], &data, &b.err), &b.err);
    OPI_ASSERT_INT(((char *)data)[0], i + 1);
    OPI_ASSERT_INT(((char *)data)[LARGE - 1], i + 1);
    b.table->stream_close(src[i]);
    b.table->stream_close(dst[i]);
  }
  for (uint32_t i = 0; i < 2 * PAIRS; ++i) {
    b.table->memory_drop(memories[i]);
    toy_backend.buffer_free(i < PAIRS ? from[i] : to[i - PAIRS]);
  }
  teardown(&b);
}

/* Nothing reads the region before `ready` has completed: what is written there until then is what
 * arrives; a message behind it that is ready does not wait for it. */
static void test_ready_is_awaited(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL, *src2 = NULL, *dst2 = NULL;
  opipe_status status = OPIPE_OK;
  told event = {.state = OPIPE_PENDING};
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 1, &src, &dst);
  open_pair(&b, 0, 2, 1, &src2, &dst2);
  ready(&b);
  const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, 0);
  memset(host_of(&b, 0, 0), 3, BYTES);
  OPI_ASSERT_OK(b.table->recv(dst, 0, &to, NULL, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->reserve(src, 0, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->send(src, 0, &from, event_of(&event), NULL, &b.err), &b.err);
  const opipe_region from2 = slot(&b, 0, 1), to2 = slot(&b, 2, 0);
  status = carry(&b, src2, &from2, dst2, &to2, 0);
  OPI_ASSERT_OK(status, &b.err);
  for (uint32_t i = 0; i < 100; ++i) {
    OPI_ASSERT_INT(b.table->test(dst, 0, &b.err), OPIPE_PENDING);
    OPI_ASSERT_INT(b.table->test(src, 0, &b.err), OPIPE_PENDING);
    pause_a_while();
  }
  memset(host_of(&b, 0, 0), 4, BYTES);
  atomic_store(&event.state, OPIPE_OK);
  AWAIT(status, b.table->test(dst, 0, &b.err));
  OPI_ASSERT_OK(status, &b.err);
  OPI_ASSERT_INT(host_of(&b, 1, 0)[0], 4);
  OPI_ASSERT_INT(host_of(&b, 1, 0)[BYTES - 1], 4);
  AWAIT(status, b.table->test(src, 0, &b.err));
  OPI_ASSERT_OK(status, &b.err);
  b.table->stream_close(src);
  b.table->stream_close(dst);
  b.table->stream_close(src2);
  b.table->stream_close(dst2);
  teardown(&b);
}

static void test_event_that_fails_ends_the_world(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_status status = OPIPE_OK;
  told event = {.state = OPIPE_E_DEVICE};
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 1, &src, &dst);
  ready(&b);
  const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, 0);
  OPI_ASSERT_OK(b.table->recv(dst, 0, &to, NULL, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->reserve(src, 0, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->send(src, 0, &from, event_of(&event), NULL, &b.err), &b.err);
  AWAIT(status, b.table->test(dst, 0, &b.err));
  OPI_ASSERT_ERROR(status, OPIPE_E_PEER, &b.err, "rank 0 ended the run: the event was told to");
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

/* Once each, when the operation is done and not before. */
static void test_done_is_recorded(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_status status = OPIPE_OK;
  told event = {.state = OPIPE_PENDING}, sent = {.state = OPIPE_OK}, got = {.state = OPIPE_OK};
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 1, &src, &dst);
  ready(&b);
  const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, 0);
  OPI_ASSERT_OK(b.table->recv(dst, 0, &to, event_of(&got), &b.err), &b.err);
  OPI_ASSERT_OK(b.table->reserve(src, 0, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->send(src, 0, &from, event_of(&event), event_of(&sent), &b.err), &b.err);
  OPI_ASSERT_INT(b.table->test(src, 0, &b.err), OPIPE_PENDING);
  OPI_ASSERT_INT(b.table->test(dst, 0, &b.err), OPIPE_PENDING);
  OPI_ASSERT_INT(atomic_load(&sent.n_recorded) + atomic_load(&got.n_recorded), 0);
  atomic_store(&event.state, OPIPE_OK);
  AWAIT(status, b.table->test(src, 0, &b.err));
  OPI_ASSERT_OK(status, &b.err);
  AWAIT(status, b.table->test(dst, 0, &b.err));
  OPI_ASSERT_OK(status, &b.err);
  OPI_ASSERT_INT(b.table->test(src, 0, &b.err), OPIPE_OK);
  OPI_ASSERT_INT(b.table->test(dst, 0, &b.err), OPIPE_OK);
  OPI_ASSERT_INT(atomic_load(&sent.n_recorded), 1);
  OPI_ASSERT_INT(atomic_load(&got.n_recorded), 1);
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

/* ---- sums ---- */

/* All members by one thread, each until it has the sum. */
static void sum_up(bench *b, opipe_group *const *groups, uint32_t n, uint64_t round,
                   const opipe_region *regions, uint64_t n_elems, uint32_t dtype, told *ready_event,
                   told *done) {
  opipe_event *first = ready_event == NULL ? NULL : event_of(ready_event);
  for (uint32_t m = 0; m < n; ++m) {
    OPI_ASSERT_OK(b->table->all_reduce(groups[m], round, &regions[m], n_elems, dtype,
                                       m == 0 ? first : NULL, event_of(done), &b->err),
                  &b->err);
  }
  const uint64_t until = toy_now_ns() + DEADLINE_NS;
  uint32_t left = n;
  while (left != 0 && toy_now_ns() < until) {
    left = 0;
    for (uint32_t m = 0; m < n; ++m) {
      const opipe_status status = b->table->group_test(groups[m], round, &b->err);
      left += status == OPIPE_PENDING;
      OPI_ASSERT(status >= 0);
    }
  }
  OPI_ASSERT_INT(left, 0);
}

static void test_sums_rise(void) {
  enum { ROUNDS = 5, MEMBERS = 4 };
  static const uint32_t ranks[MEMBERS] = {2, 0, 2, 3}; /* one of them twice */
  static const double parts[MEMBERS] = {1e17, 1.0, -1e17, 3.0};
  bench b;
  opipe_group *groups[MEMBERS] = {NULL};
  told done = {.state = OPIPE_OK};
  setup(&b, NULL, false);
  for (uint32_t m = 0; m < MEMBERS; ++m) {
    OPI_ASSERT_OK_FATAL(
        b.table->group_open(b.ends[ranks[m]], ranks, MEMBERS, BYTES, &groups[m], &b.err), &b.err);
  }
  ready(&b);
  for (uint64_t round = 0; round < ROUNDS; ++round) {
    const bool wide = round % 2 == 0;
    opipe_region regions[MEMBERS];
    volatile double sum = parts[0];
    volatile float narrow = (float)parts[0];
    for (uint32_t m = 0; m < MEMBERS; ++m) {
      regions[m] = slot(&b, ranks[m], m);
      for (uint32_t i = 0; i < 8 && wide; ++i)
        ((double *)(void *)host_of(&b, ranks[m], m))[i] = parts[m];
      for (uint32_t i = 0; i < 8 && !wide; ++i)
        ((float *)(void *)host_of(&b, ranks[m], m))[i] = (float)parts[m];
      sum = m == 0 ? sum : sum + parts[m];
      narrow = m == 0 ? narrow : narrow + (float)parts[m];
    }
    sum_up(&b, groups, MEMBERS, round, regions, 8, wide ? OPIPE_DOUBLE : OPIPE_FLOAT, NULL, &done);
    for (uint32_t m = 0; m < MEMBERS; ++m) {
      const double found = wide ? ((double *)(void *)host_of(&b, ranks[m], m))[7]
                                : (double)((float *)(void *)host_of(&b, ranks[m], m))[7];
      OPI_ASSERT(found == (wide ? sum : (double)narrow));
    }
    OPI_ASSERT_INT(atomic_load(&done.n_recorded), MEMBERS * (round + 1));
  }
  for (uint32_t m = 0; m < MEMBERS; ++m)
    b.table->group_close(groups[m]);
  teardown(&b);
}

static void test_sums_wait_for_ready(void) {
  static const uint32_t ranks[2] = {0, 1};
  bench b;
  opipe_group *groups[2] = {NULL};
  opipe_status status = OPIPE_OK;
  told event = {.state = OPIPE_PENDING}, done = {.state = OPIPE_OK};
  setup(&b, NULL, false);
  for (uint32_t m = 0; m < 2; ++m)
    OPI_ASSERT_OK(b.table->group_open(b.ends[m], ranks, 2, BYTES, &groups[m], &b.err), &b.err);
  ready(&b);
  const opipe_region own[2] = {slot(&b, 0, 0), slot(&b, 1, 0)};
  OPI_ASSERT_INT(
      b.table->all_reduce(groups[0], 0, &own[0], 4, OPIPE_FLOAT, event_of(&event), NULL, &b.err),
      OPIPE_PENDING);
  atomic_store(&event.state, OPIPE_OK);
  sum_up(&b, groups, 2, 0, own, 4, OPIPE_FLOAT, &event, &done);
  /* the round before has to end first: here it does so by the call itself */
  AWAIT(status, b.table->all_reduce(groups[0], 1, &own[0], 4, OPIPE_FLOAT, NULL, NULL, &b.err));
  OPI_ASSERT_OK(status, &b.err);
  OPI_ASSERT_INT(b.table->all_reduce(groups[0], 1, &own[0], 4, OPIPE_FLOAT, NULL, NULL, &b.err),
                 OPIPE_E_INVALID);
  const opipe_error why = {.struct_size = sizeof why, .status = OPIPE_E_CANCELLED};
  b.table->abort(b.worlds[0], 0, &why);
  for (uint32_t m = 0; m < 2; ++m)
    b.table->group_close(groups[m]);
  teardown(&b);
}

/* ---- worlds that meet ---- */

static void test_two_worlds_are_one(void) {
  static const uint32_t ranks[2] = {1, 2};
  bench b;
  opipe_stream *src = NULL, *dst = NULL;
  opipe_group *groups[2] = {NULL};
  opipe_status status = OPIPE_OK;
  told done = {.state = OPIPE_OK};
  setup(&b, "rule=stream,meet=halves", true);
  const opipe_stream_params p = stream_params(1, 2, 2);
  OPI_ASSERT_OK(b.table->stream_open(b.ends[1], &p, &src, &b.err), &b.err);
  OPI_ASSERT_INT(b.table->endpoint_ready(b.ends[1], &b.err), OPIPE_PENDING);
  OPI_ASSERT_INT(b.table->endpoint_ready(b.ends[0], &b.err), OPIPE_OK);
  opipe_stream_params other = p;
  other.depth = 3;
  OPI_ASSERT_ERROR(b.table->stream_open(b.ends[2], &other, &dst, &b.err), OPIPE_E_INVALID, &b.err,
                   "rank 2 opens it with depth 3 and 256 bytes, its peer with depth 2 and 256");
  OPI_ASSERT_OK(b.table->stream_open(b.ends[2], &p, &dst, &b.err), &b.err);
  OPI_ASSERT_OK(b.table->group_open(b.ends[1], ranks, 2, BYTES, &groups[0], &b.err), &b.err);
  OPI_ASSERT_INT(b.table->endpoint_ready(b.ends[1], &b.err), OPIPE_PENDING);
  OPI_ASSERT_OK(b.table->group_open(b.ends[2], ranks, 2, BYTES, &groups[1], &b.err), &b.err);
  ready(&b);
  const opipe_region from = slot(&b, 1, 0), to = slot(&b, 2, 0);
  memset(host_of(&b, 1, 0), 9, BYTES);
  status = carry(&b, src, &from, dst, &to, 0);
  OPI_ASSERT_OK(status, &b.err);
  OPI_ASSERT_INT(host_of(&b, 2, 0)[5], 9);
  const opipe_region own[2] = {from, to};
  sum_up(&b, groups, 2, 0, own, 4, OPIPE_FLOAT, NULL, &done);
  opipe_error why = OPIPE_ERROR_INIT;
  (void)opi_fail(&why, OPIPE_E_DEVICE, "the half on the left");
  b.table->abort(b.worlds[0], 1, &why);
  OPI_ASSERT_ERROR(b.table->test(dst, 0, &b.err), OPIPE_E_PEER, &b.err, "the half on the left");
  b.table->group_close(groups[0]);
  b.table->group_close(groups[1]);
  b.table->stream_close(src);
  b.table->stream_close(dst);
  teardown(&b);
}

static void test_who_may_meet(void) {
  bench b;
  opipe_world *more = NULL, *alone[2] = {NULL};
  opipe_endpoint *end = NULL;
  setup(&b, "meet=them", true);
  opipe_world_params params = {.struct_size = (uint32_t)OPIPE_END(opipe_world_params, options),
                               .n_ranks = RANKS + 1,
                               .options = "meet=them"};
  OPI_ASSERT_ERROR(b.table->world_open(b.self, &params, &more, &b.err), OPIPE_E_INVALID, &b.err,
                   "meet=them: 5 ranks under rule 0, its peer has 4 under rule 0");
  OPI_ASSERT_ERROR(open_world(&b, b.self, "rule=stream,meet=them", &more), OPIPE_E_INVALID, &b.err,
                   "4 ranks under rule 1, its peer has 4 under rule 0");
  OPI_ASSERT_OK(open_world(&b, b.self, "meet=them", &more), &b.err);
  const opipe_endpoint_params taken = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved), .rank = 3};
  OPI_ASSERT_ERROR(b.table->endpoint_open(more, &taken, &end, &b.err), OPIPE_E_STATE, &b.err,
                   "rank 3 has an endpoint already");
  b.table->world_close(more);
  /* nobody can come to a world that has ended; without a name nobody comes */
  const opipe_error why = {.struct_size = sizeof why, .status = OPIPE_E_CANCELLED};
  b.table->abort(b.worlds[0], 0, &why);
  OPI_ASSERT_OK(open_world(&b, b.self, "meet=them", &more), &b.err);
  OPI_ASSERT_OK(b.table->endpoint_open(more, &taken, &end, &b.err), &b.err);
  b.table->endpoint_close(end);
  b.table->world_close(more);
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_ASSERT_OK(open_world(&b, b.self, NULL, &alone[i]), &b.err);
    OPI_ASSERT_OK(b.table->endpoint_open(alone[i], &taken, &end, &b.err), &b.err);
    b.table->endpoint_close(end);
  }
  b.table->world_close(alone[0]);
  b.table->world_close(alone[1]);
  teardown(&b);
}

/* One of two halves of a ring of ranks, opened, run and closed by a thread of its own. */
typedef struct half {
  bench *b; /* device, buffers, backend */
  opipe_instance *self;
  uint32_t first; /* of its two ranks */
  uint32_t n_good;
  opipe_status status;
  opipe_error err;
  opipe_world *world;
  opipe_endpoint *ends[2];
  opipe_memory *memories[2];
  opipe_stream *in[2], *out[2];
} half;

static opipe_status open_half(half *h) {
  const opipe_transport *t = h->b->table;
  const opipe_world_params world = {.struct_size = (uint32_t)OPIPE_END(opipe_world_params, options),
                                    .n_ranks = RANKS,
                                    .options = "meet=threads"};
  opipe_status status = t->world_open(h->self, &world, &h->world, &h->err);
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i) {
    const uint32_t r = h->first + i;
    const opipe_stream_params in = stream_params((r + RANKS - 1) % RANKS, r, 1);
    const opipe_stream_params out = stream_params(r, (r + 1) % RANKS, 1);
    const opipe_endpoint_params end = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
        .rank = r,
        .backend = &h->b->backend,
        .device = h->b->device};
    status = t->endpoint_open(h->world, &end, &h->ends[i], &h->err);
    if (status == OPIPE_OK) {
      status = t->memory_register(h->ends[i], h->b->buffers[r], (uint64_t)SLOTS * BYTES,
                                  &h->memories[i], &h->err);
    }
    if (status == OPIPE_OK)
      status = t->stream_open(h->ends[i], &in, &h->in[i], &h->err);
    if (status == OPIPE_OK)
      status = t->stream_open(h->ends[i], &out, &h->out[i], &h->err);
  }
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i)
    AWAIT(status, t->endpoint_ready(h->ends[i], &h->err));
  return status;
}

/* Slot 0 is sent, slot 1 receives. */
static opipe_status go_round(half *h, uint64_t q) {
  const opipe_transport *t = h->b->table;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i) {
    const opipe_region to = slot(h->b, h->first + i, 1);
    memset(host_of(h->b, h->first + i, 0), (int)(h->first + i + q) % 100, BYTES);
    status = t->recv(h->in[i], q, &to, NULL, &h->err);
  }
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i) {
    const opipe_region from = slot(h->b, h->first + i, 0);
    AWAIT(status, t->reserve(h->out[i], q, &h->err));
    if (status == OPIPE_OK)
      AWAIT(status, t->send(h->out[i], q, &from, NULL, NULL, &h->err));
  }
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i) {
    const uint32_t before = (h->first + i + RANKS - 1) % RANKS;
    AWAIT(status, t->test(h->out[i], q, &h->err));
    if (status == OPIPE_OK)
      AWAIT(status, t->test(h->in[i], q, &h->err));
    const char *got = host_of(h->b, h->first + i, 1);
    h->n_good +=
        status == OPIPE_OK && got[0] == (char)((before + q) % 100) && got[BYTES - 1] == got[0];
  }
  return status;
}

static void *run_half(void *arg) {
  half *h = arg;
  const opipe_transport *t = h->b->table;
  h->err.struct_size = (uint32_t)sizeof h->err;
  h->status = open_half(h);
  for (uint64_t q = 0; q < 50 && h->status == OPIPE_OK; ++q)
    h->status = go_round(h, q);
  for (uint32_t i = 0; i < 2; ++i) {
    t->stream_close(h->in[i]);
    t->stream_close(h->out[i]);
    t->memory_drop(h->memories[i]);
    t->endpoint_close(h->ends[i]);
  }
  t->world_close(h->world);
  return NULL;
}

static void test_halves_in_two_threads(void) {
  bench b;
  setup(&b, NULL, false);
  const uint64_t refused = atomic_load(&counted()->refused);
  half halves[2] = {{.b = &b, .self = b.self}, {.b = &b, .self = b.other, .first = 2}};
  pthread_t threads[2];
  for (uint32_t i = 0; i < 2; ++i)
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, run_half, &halves[i]) == 0);
  for (uint32_t i = 0; i < 2; ++i) {
    (void)pthread_join(threads[i], NULL);
    OPI_ASSERT_OK(halves[i].status, &halves[i].err);
    OPI_ASSERT_INT(halves[i].n_good, 100);
  }
  OPI_ASSERT_INT(atomic_load(&counted()->refused) - refused, 0);
  teardown(&b);
}

/* An end that comes again meets a new one, not what its peer still has of the old. */
static void test_stream_is_opened_again(void) {
  bench b;
  opipe_stream *src = NULL, *dst = NULL, *again = NULL, *anew = NULL;
  opipe_status status = OPIPE_OK;
  setup(&b, NULL, false);
  open_pair(&b, 0, 1, 1, &src, &dst);
  ready(&b);
  const opipe_region from = slot(&b, 0, 0), to = slot(&b, 1, 0);
  status = carry(&b, src, &from, dst, &to, 0);
  OPI_ASSERT_OK(status, &b.err);
  b.table->stream_close(src);
  const opipe_stream_params p = stream_params(0, 1, 1);
  OPI_ASSERT_OK_FATAL(b.table->stream_open(b.ends[0], &p, &again, &b.err), &b.err);
  OPI_ASSERT_INT(b.table->endpoint_ready(b.ends[0], &b.err), OPIPE_PENDING);
  b.table->stream_close(dst);
  OPI_ASSERT_OK_FATAL(b.table->stream_open(b.ends[1], &p, &anew, &b.err), &b.err);
  ready(&b);
  status = carry(&b, again, &from, anew, &to, 0);
  OPI_ASSERT_OK(status, &b.err);
  b.table->stream_close(again);
  b.table->stream_close(anew);
  teardown(&b);
}

OPI_TEST_MAIN("transport-strict", OPI_TEST(test_bytes_go_through_a_pipe),
              OPI_TEST(test_any_order_within_the_window), OPI_TEST(test_large_messages_both_ways),
              OPI_TEST(test_ready_is_awaited), OPI_TEST(test_event_that_fails_ends_the_world),
              OPI_TEST(test_done_is_recorded), OPI_TEST(test_sums_rise),
              OPI_TEST(test_sums_wait_for_ready), OPI_TEST(test_two_worlds_are_one),
              OPI_TEST(test_who_may_meet), OPI_TEST(test_halves_in_two_threads),
              OPI_TEST(test_stream_is_opened_again))
