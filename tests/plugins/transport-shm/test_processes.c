/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm between processes, then transport-ucx: messages into the receiver's memory, sums,
 * and a process that is killed at any instant is an error in the other. Two worlds in one process
 * are the same to it: sanitizers see both ends. ctest: timeout=120
 */
#include <pthread.h>
#include <signal.h>

#include "tests/plugins/transport-shm/play.h"

enum { KILLS = 4 };

static pid_t begin(uint32_t rank, note *notes, uint64_t n_messages) {
  const pid_t pid = fork();
  if (pid == 0) {
    (void)alarm(20); /* never a hang */
    _exit(-play(rank, notes, n_messages) & 0x7f);
  }
  return pid;
}

static void test_messages_and_sums(void) {
  note *notes = new_board();
  const pid_t a = begin(0, notes, MESSAGES), b = begin(1, notes, MESSAGES);
  OPI_ASSERT_INT(status_of(a), 0);
  OPI_ASSERT_INT(status_of(b), 0);
  (void)munmap(notes, N_NOTES * sizeof *notes);
}

/* At any instant once both have met: the other ends with PEER, in time. */
static void test_a_killed_process_is_an_error_in_the_other(void) {
  for (uint32_t i = 0; i < KILLS; ++i) {
    note *notes = new_board();
    const pid_t pids[2] = {begin(0, notes, UINT64_MAX), begin(1, notes, UINT64_MAX)};
    const struct timespec pause = {.tv_nsec = (long)(200 + 13 * i) * 1000000};
    (void)nanosleep(&pause, NULL);
    const uint64_t start = now_ns(NULL);
    (void)kill(pids[i % 2], SIGKILL);
    OPI_ASSERT_INT(status_of(pids[i % 2]), 256 + SIGKILL);
    OPI_ASSERT_INT(status_of(pids[1 - i % 2]), -OPIPE_E_PEER & 0x7f);
    OPI_ASSERT(now_ns(NULL) - start < UINT64_C(2000000000));
    (void)munmap(notes, N_NOTES * sizeof *notes);
  }
}

/* ---- both ends in one process ---- */

enum { OPENED = 20 };

typedef struct side {
  end e;
  uint32_t rank;
  opipe_status status;
  bool waits; /* for a message that never comes */
} side;

static opipe_status wait_for_ever(end *e) {
  UNTIL(e, e->t->test(e->in, MESSAGES, &e->err));
  return OPIPE_OK;
}

static void *side_body(void *arg) {
  side *s = arg;
  s->status = s->waits ? wait_for_ever(&s->e) : step(&s->e, s->rank, MESSAGES);
  return NULL;
}

/* By one thread, in turn. */
static opipe_status both_ready(side *sides) {
  const uint64_t start = now_ns(NULL);
  while (now_ns(NULL) - start < PATIENCE_NS) {
    const struct timespec pause = {.tv_nsec = 20000};
    opipe_status all = OPIPE_OK;
    for (int i = 0; i < 2; ++i) {
      const opipe_status status =
          sides[i].e.t->endpoint_ready(sides[i].e.endpoint, &sides[i].e.err);
      if (status < 0)
        return status;
      all = status == OPIPE_OK ? all : status;
    }
    if (all == OPIPE_OK)
      return all;
    (void)nanosleep(&pause, NULL);
  }
  return OPIPE_E_TIMEOUT;
}

/* Streams and groups come and go while both ranks step others. */
static opipe_status open_more(side *sides, uint32_t k) {
  static const uint32_t turned[2] = {1, 0};
  opipe_stream *streams[2] = {NULL, NULL};
  opipe_group *groups[2] = {NULL, NULL};
  opipe_status status = OPIPE_OK;
  for (int i = 0; i < 2 && status == OPIPE_OK; ++i) {
    end *e = &sides[i].e;
    const opipe_stream_params p = {.struct_size = (uint32_t)sizeof p,
                                   .src_rank = k % 2,
                                   .dst_rank = 1 - k % 2,
                                   .index = 1 + k % 3,
                                   .depth = 1 + k,
                                   .n_bytes = 100000};
    status = e->t->stream_open(e->endpoint, &p, &streams[i], &e->err);
    if (status == OPIPE_OK)
      status = e->t->group_open(e->endpoint, turned, 2, 8192, &groups[i], &e->err);
  }
  if (status == OPIPE_OK)
    status = both_ready(sides);
  for (uint32_t i = 0; i < 2; ++i) { /* either side closes first */
    end *e = &sides[(i + k) % 2].e;
    e->t->stream_close(streams[(i + k) % 2]);
    if (groups[(i + k) % 2] != NULL)
      e->t->group_close(groups[(i + k) % 2]);
  }
  return status;
}

static void run_sides(side *sides, void (*meanwhile)(side *sides)) {
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i)
    OPI_ASSERT_INT(pthread_create(&threads[i], NULL, side_body, &sides[i]), 0);
  meanwhile(sides);
  for (int i = 0; i < 2; ++i)
    (void)pthread_join(threads[i], NULL);
}

static void open_while_they_step(side *sides) {
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; k < OPENED && status == OPIPE_OK; ++k)
    status = open_more(sides, k);
  OPI_ASSERT_INT(status, OPIPE_OK);
}

static void abort_while_they_wait(side *sides) {
  const struct timespec pause = {.tv_nsec = 20000000};
  opipe_error why = OPIPE_ERROR_INIT;
  (void)opipe_fail(&why, OPIPE_E_DEVICE, "the first reason");
  (void)nanosleep(&pause, NULL);
  sides[0].e.t->abort(sides[0].e.world, 0, &why);
}

static void test_two_worlds_in_one_process(void) {
  note *notes = new_board();
  side sides[2];
  memset(sides, 0, sizeof sides);
  for (uint32_t i = 0; i < 2; ++i) {
    sides[i].rank = i;
    sides[i].e.patience_ns = PATIENCE_NS;
    OPI_ASSERT_FATAL(open_end(&sides[i].e, i, notes) == OPIPE_OK);
  }
  OPI_ASSERT_FATAL(both_ready(sides) == OPIPE_OK);
  run_sides(sides, open_while_they_step);
  for (int i = 0; i < 2; ++i) {
    OPI_ASSERT_INT(sides[i].status, OPIPE_OK);
    sides[i].waits = true;
  }
  run_sides(sides, abort_while_they_wait);
  for (int i = 0; i < 2; ++i) {
    OPI_ASSERT_INT(sides[i].status, OPIPE_E_PEER);
    OPI_ASSERT_STR(sides[i].e.err.message, "rank 0 ended the run: the first reason");
  }
  close_end(&sides[0].e);
  close_end(&sides[1].e);
  (void)munmap(notes, N_NOTES * sizeof *notes);
}

/* The bell, once nothing has rung it for a while. */
static uint32_t quiet_bell(const end *e) {
  const struct timespec pause = {.tv_nsec = 50000000};
  uint32_t seen = 0;
  do {
    seen = e->t->doorbell(e->endpoint);
    (void)nanosleep(&pause, NULL);
  } while (e->t->doorbell(e->endpoint) != seen);
  return seen;
}

/* A sender may know the number of its peer's memory before it knows the memory: it waits for its
 * bell. */
static void test_memory_of_another_process_rings_the_bell(void) {
  note *notes = new_board();
  side sides[2];
  void *more = NULL;
  memset(sides, 0, sizeof sides);
  for (uint32_t i = 0; i < 2; ++i) {
    sides[i].e.patience_ns = PATIENCE_NS;
    OPI_ASSERT_FATAL(open_end(&sides[i].e, i, notes) == OPIPE_OK);
  }
  OPI_ASSERT_FATAL(both_ready(sides) == OPIPE_OK);
  end *waits = &sides[0].e, *tells = &sides[1].e;
  const uint32_t seen = quiet_bell(waits);
  OPI_ASSERT_INT(tells->t->memory_alloc(tells->endpoint, BYTES, &more, &tells->err), OPIPE_OK);
  const uint64_t start = now_ns(NULL);
  while (waits->t->doorbell(waits->endpoint) == seen && now_ns(NULL) - start < PATIENCE_NS)
    (void)waits->t->wait(waits->endpoint, seen, PATIENCE_NS, &waits->err);
  OPI_ASSERT(waits->t->doorbell(waits->endpoint) != seen);
  tells->t->memory_free(tells->endpoint, more);
  close_end(waits);
  close_end(tells);
  (void)munmap(notes, N_NOTES * sizeof *notes);
}

static void test_ucx(void) {
  if (!take_ucx())
    OPI_SKIP("UCX (libucp.so.0) is not there");
  test_messages_and_sums();
  test_a_killed_process_is_an_error_in_the_other();
  test_two_worlds_in_one_process();
  OPI_ASSERT(dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD) != NULL);
}

OPI_TEST_MAIN("transports between processes", OPI_TEST(test_two_worlds_in_one_process),
              OPI_TEST(test_memory_of_another_process_rings_the_bell),
              OPI_TEST(test_messages_and_sums),
              OPI_TEST(test_a_killed_process_is_an_error_in_the_other), OPI_TEST(test_ucx))
