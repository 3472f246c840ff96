/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's double moves what it is given and nothing early; what is wrong ends the process with its
 * name.
 * ctest: timeout=120 */
#include "double_kit.h"

enum { N = 20000, BIG = 4 * N }; /* values of a message: more than one piece */

static float *floats(member *m, size_t at) {
  return (float *)(void *)(m->memory + at);
}

static void fill(member *m, size_t at, size_t n, float first) {
  for (size_t i = 0; i < n; ++i)
    floats(m, at)[i] = first + (float)i;
}

static void need_values(member *m, size_t at, size_t n, float first) {
  for (size_t i = 0; i < n; ++i) {
    need(floats(m, at)[i] == first + (float)i, "value %zu is %g, not %g", i, floats(m, at)[i],
         first + (float)i);
  }
}

/* ---- messages ---- */

static int send_floats(member *m, size_t at, size_t n, int peer) {
  return m->nccl.send(m->memory + at, n, NCCL_DOUBLE_FLOAT32, peer, m->comms[0], m->streams[0]);
}

static int recv_floats(member *m, size_t at, size_t n, int peer) {
  return m->nccl.recv(m->memory + at, n, NCCL_DOUBLE_FLOAT32, peer, m->comms[0], m->streams[0]);
}

/* Two messages to the next one, two from the one before, some rounds. */
static void pass_round(member *m) {
  const int next = (m->rank + 1) % m->n, before = (m->rank + m->n - 1) % m->n;
  need_comm(m, 0);
  for (int k = 0; k < 4; ++k) {
    const float mine = (float)(1000 * m->rank + k), its = (float)(1000 * before + k);
    fill(m, 0, N, mine);
    fill(m, BIG, 7, mine + 1e6f);
    (void)m->nccl.group_start();
    (void)send_floats(m, 0, N, next);
    (void)recv_floats(m, 3 * BIG, N, before);
    (void)send_floats(m, BIG, 7, next);
    (void)recv_floats(m, 2 * BIG, 7, before);
    end_group(m, m->comms[0]);
    finish(m, 0);
    need_values(m, 3 * BIG, N, its);
    need_values(m, 2 * BIG, 7, its + 1e6f);
  }
  close_comm(m, 0);
}

static void test_messages_go_round(void) {
  expect_team(2, pass_round);
  expect_team(3, pass_round);
  (void)setenv("OPIPE_NCCL_DOUBLE_SEED", "7", 1);
  expect_team(4, pass_round);
  (void)unsetenv("OPIPE_NCCL_DOUBLE_SEED");
}

/* The send is not over before its receive has come, however small it is. */
static void wait_for_receive(member *m) {
  need_comm(m, 0);
  if (m->rank == 0)
    launched(m, m->comms[0], send_floats(m, 0, 0, 1)); /* without it there is no connection */
  else
    launched(m, m->comms[0], recv_floats(m, 0, 0, 0));
  finish(m, 0);
  if (m->rank == 0) {
    launched(m, m->comms[0], send_floats(m, 0, 1, 1));
    for (int i = 0; i < 100; ++i, nap_us(200))
      need(m->driver.stream_query(m->streams[0]) == CUDA_NOT_READY, "a send is over before");
    atomic_store(&m->board->flags[0], 1);
  } else {
    while (atomic_load(&m->board->flags[0]) == 0)
      nap_us(200);
    launched(m, m->comms[0], recv_floats(m, 0, 1, 0));
  }
  finish(m, 0);
  close_comm(m, 0);
}

static void test_nothing_is_buffered(void) {
  expect_team(2, wait_for_receive);
}

static void send_other_count(member *m) {
  need_comm(m, 0);
  launched(m, m->comms[0], m->rank == 0 ? send_floats(m, 0, 12, 1) : recv_floats(m, 0, 11, 0));
  finish(m, 0);
}

static void test_counts_that_differ_are_named(void) {
  expect_words(2, send_other_count,
               "message 0 from rank 0 to rank 1: 12 of float32 are sent, 11 of float32 received");
}

/* Both send first. */
static void send_first(member *m) {
  need_comm(m, 0);
  (void)m->nccl.group_start(); /* both connections */
  (void)send_floats(m, 0, 1, 1 - m->rank);
  (void)recv_floats(m, BIG, 1, 1 - m->rank);
  end_group(m, m->comms[0]);
  launched(m, m->comms[0], send_floats(m, 0, 1, 1 - m->rank));
  launched(m, m->comms[0], recv_floats(m, BIG, 1, 1 - m->rank));
  finish(m, 0);
}

/* The same over three: everyone sends to the next one. */
static void send_on(member *m) {
  const int next = (m->rank + 1) % m->n, before = (m->rank + m->n - 1) % m->n;
  need_comm(m, 0);
  (void)m->nccl.group_start();
  (void)send_floats(m, 0, 1, next);
  (void)recv_floats(m, BIG, 1, before);
  end_group(m, m->comms[0]);
  launched(m, m->comms[0], send_floats(m, 0, 1, next));
  launched(m, m->comms[0], recv_floats(m, BIG, 1, before));
  finish(m, 0);
}

static void test_sends_that_wait_for_each_other_are_named(void) {
  expect_words(2, send_first, "ranks wait for each other: ");
  expect_words(3, send_on, "ranks wait for each other: ");
}

static void send_many(member *m) {
  need_comm(m, 0);
  (void)m->nccl.group_start();
  for (int i = 0; i < 257; ++i)
    (void)(m->rank == 0 ? send_floats(m, 0, 1, 1) : recv_floats(m, 0, 1, 0));
  end_group(m, m->comms[0]);
  finish(m, 0);
}

static void test_long_groups_are_named(void) {
  expect_words(2, send_many, "a group has 257 messages");
}

/* ---- collectives ---- */

static const int types[] = {NCCL_DOUBLE_FLOAT32, NCCL_DOUBLE_FLOAT64, NCCL_DOUBLE_FLOAT16,
                            NCCL_DOUBLE_BFLOAT16, NCCL_DOUBLE_INT32};

/* 1, 2, 3, 4 in each type. */
static void put_small(int type, void *to, int value) {
  static const uint16_t half[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500,
                                  0x4600, 0x4700, 0x4800, 0x4880, 0x4900};
  static const uint16_t brain[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
                                   0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120};
  const float single = (float)value;
  const double twice = value;
  const void *from = type == NCCL_DOUBLE_FLOAT32    ? (const void *)&single
                     : type == NCCL_DOUBLE_FLOAT64  ? (const void *)&twice
                     : type == NCCL_DOUBLE_FLOAT16  ? (const void *)&half[value - 1]
                     : type == NCCL_DOUBLE_BFLOAT16 ? (const void *)&brain[value - 1]
                                                    : (const void *)&value;
  memcpy(to, from, type == NCCL_DOUBLE_FLOAT64 ? 8 : type >= 6 && type != 7 ? 2 : 4);
}

static size_t size_of(int type) {
  return type == NCCL_DOUBLE_FLOAT64 ? 8 : type >= NCCL_DOUBLE_FLOAT16 && type != 7 ? 2 : 4;
}

static void put_all(int type, unsigned char *to, size_t n, int value) {
  for (size_t i = 0; i < n; ++i)
    put_small(type, to + i * size_of(type), value);
}

static void need_all(int type, const unsigned char *from, size_t n, int value, const char *what) {
  unsigned char wanted[8];
  put_small(type, wanted, value);
  for (size_t i = 0; i < n; ++i) {
    need(memcmp(from + i * size_of(type), wanted, size_of(type)) == 0,
         "%s of type %d: value %zu is not %d", what, type, i, value);
  }
}

static void collect_all(member *m) {
  enum { COUNT = 9000 };
  const nccl_table *c = &m->nccl;
  unsigned char *from = m->memory, *to = m->memory + ROOM / 2;
  const int sum = m->n * (m->n + 1) / 2;
  need_comm(m, 0);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    const int type = types[i];
    const size_t part = COUNT / (size_t)m->n, bytes = part * size_of(type);
    ncclComm_t comm = m->comms[0];
    CUstream s = m->streams[0];
    put_all(type, from, COUNT, m->rank + 1);
    launched(m, comm, c->all_reduce(from, to, COUNT, type, 0, comm, s));
    finish(m, 0);
    need_all(type, to, COUNT, sum, "ncclAllReduce");
    launched(m, comm, c->reduce_scatter(from, to, part, type, 0, comm, s));
    finish(m, 0);
    need_all(type, to, part, sum, "ncclReduceScatter");
    launched(m, comm, c->all_gather(from, to, part, type, comm, s));
    finish(m, 0);
    for (int r = 0; r < m->n; ++r)
      need_all(type, to + (size_t)r * bytes, part, r + 1, "ncclAllGather");
    launched(m, comm, c->broadcast(from, to, COUNT, type, m->n - 1, comm, s));
    finish(m, 0);
    need_all(type, to, COUNT, m->n, "ncclBroadcast");
    memset(to, 0, COUNT * size_of(type));
    launched(m, comm, c->reduce(from, to, COUNT, type, 0, 1, comm, s));
    finish(m, 0);
    if (m->rank == 1)
      need_all(type, to, COUNT, sum, "ncclReduce");
    else
      need(to[0] == 0 && to[COUNT / 2] == 0, "ncclReduce writes where it is no root");
    launched(m, comm,
             c->reduce_scatter(from, from + (size_t)m->rank * bytes, part, type, 0, comm, s));
    launched(m, comm, c->all_gather(from + (size_t)m->rank * bytes, from, part, type, comm, s));
    finish(m, 0);
    need_all(type, from, part * (size_t)m->n, sum, "in place");
  }
  close_comm(m, 0);
}

static void test_collectives_of_every_type(void) {
  expect_team(2, collect_all);
  expect_team(3, collect_all);
}

/* 1e8 and -1e8 hide the 1 in some orders. All have the same bits; not all are those of rising
 * order. */
static void sum_in_its_order(member *m) {
  static const float values[3] = {1e8f, 1, -1e8f};
  float *to = floats(m, BIG);
  volatile float rising = values[0];
  size_t n_rising = 0;
  rising = rising + values[1];
  rising = rising + values[2];
  need_comm(m, 0);
  for (size_t i = 0; i < 64; ++i)
    floats(m, 0)[i] = values[m->rank];
  launched(
      m, m->comms[0],
      m->nccl.all_reduce(m->memory, to, 64, NCCL_DOUBLE_FLOAT32, 0, m->comms[0], m->streams[0]));
  finish(m, 0);
  memcpy(m->board->results[m->rank], to, 64 * sizeof *to);
  atomic_fetch_add(&m->board->flags[0], 1);
  while (atomic_load(&m->board->flags[0]) < 3)
    nap_us(100);
  need(memcmp(m->board->results[0], to, 64 * sizeof *to) == 0, "ranks have other bits");
  for (size_t i = 0; i < 64; ++i)
    n_rising += to[i] == rising;
  need(n_rising < 64, "all sums are those of rising order");
  close_comm(m, 0);
}

static void test_sums_are_not_in_the_members_order(void) {
  expect_team(3, sum_in_its_order);
}

static void collect_other(member *m) {
  need_comm(m, 0);
  const nccl_table *c = &m->nccl;
  void *at = m->memory;
  CUstream s = m->streams[0];
  launched(m, m->comms[0],
           m->rank == 0 ? c->all_reduce(at, at, 5, NCCL_DOUBLE_FLOAT32, 0, m->comms[0], s)
                        : c->broadcast(at, at, 5, NCCL_DOUBLE_FLOAT32, 0, m->comms[0], s));
  finish(m, 0);
}

static void test_collectives_that_differ_are_named(void) {
  expect_words(2, collect_other, "ncclAllReduce of 5 float32");
}

static int sum_on(member *m, int comm, int stream) {
  return m->nccl.all_reduce(m->memory, m->memory, 1, NCCL_DOUBLE_FLOAT32, 0, m->comms[comm],
                            m->streams[stream]);
}

/* Two communicators, in another order on each rank: one stream, so that the order is certain. */
static void sum_in_other_order(member *m) {
  need_comm(m, 0);
  need_comm(m, 1);
  for (int i = 0; i < 2; ++i)
    launched(m, m->comms[i], sum_on(m, i, 0));
  finish(m, 0);
  for (int i = 0; i < 2; ++i)
    launched(m, m->comms[i ^ m->rank], sum_on(m, i ^ m->rank, 0));
  finish(m, 0);
}

static void test_communicators_in_another_order_are_named(void) {
  expect_words(2, sum_in_other_order, "ranks wait for each other: ");
}

/* On two streams the device decides which is first: here another one on each rank, by holding up
 * the other stream. Unless the order of the host's calls is asked for, nothing else counts. */
static void sum_on_two_streams(member *m) {
  need_comm(m, 0);
  need_comm(m, 1);
  for (int k = 0; k < 2; ++k) {
    m->hold(m->streams[m->rank], k == 1);
    launched(m, m->comms[0], sum_on(m, 0, 0));
    launched(m, m->comms[1], sum_on(m, 1, 1));
    for (int i = 0; i < 50; ++i, nap_us(200))
      (void)m->driver.stream_query(m->streams[1 - m->rank]);
    m->hold(m->streams[m->rank], false);
    finish(m, 0);
    finish(m, 1);
  }
  close_comm(m, 0);
  close_comm(m, 1);
}

static void test_two_streams_have_no_order(void) {
  expect_words(2, sum_on_two_streams, "ranks wait for each other: ");
  (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  expect_team(2, sum_on_two_streams);
  (void)unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

OPI_TEST_MAIN("NCCL's double", OPI_TEST(test_messages_go_round), OPI_TEST(test_nothing_is_buffered),
              OPI_TEST(test_counts_that_differ_are_named),
              OPI_TEST(test_sends_that_wait_for_each_other_are_named),
              OPI_TEST(test_long_groups_are_named), OPI_TEST(test_collectives_of_every_type),
              OPI_TEST(test_sums_are_not_in_the_members_order),
              OPI_TEST(test_collectives_that_differ_are_named),
              OPI_TEST(test_communicators_in_another_order_are_named),
              OPI_TEST(test_two_streams_have_no_order))
